//! The seed experiment: the stall between Nagle and delayed ACK, at a realistic rate.
//!
//! 50 connections, 6,000 requests a second, half of them sets, each connection with one request
//! outstanding. A client that splits its requests under Nagle waits for the other side's delayed
//! ACK, 40 ms; 50 such connections carry 1,250 requests a second, the rest queues in the client.

use std::fmt::Write as _;
use std::path::Path;

use crate::contest::Stage;
use crate::load::Writing;
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Endpoint, Peer};
use crate::rows;
use crate::window::{Lengths, Window};

const PEERS: [Peer; 3] = [Peer::Direct, Peer::Nutcracker, Peer::Quickack];

/// Runs both kinds of client through each peer; returns true if no part failed.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = String::from("## Nagle and delayed ACK\n\n");
    text.push_str(&page::origin(&machine, options));
    text.push_str(&format!("{METHOD}\nEach part lasted {} minutes.\n\n", minutes(options)));
    text.push_str(HEADING);
    print!("{text}");
    let mut whole = true;
    for (clients, writing) in [("clean", Writing::Whole), ("split", Writing::Split)] {
        for peer in PEERS.into_iter().filter(|peer| options.peers.contains(peer)) {
            let result = part(peer, writing, options, folder);
            whole &= result.is_ok();
            let line = line(clients, peer, result);
            print!("{line}");
            text.push_str(&line);
        }
    }
    if options.write {
        page::write(Some("--seed"), &text)?;
    }
    Ok(whole)
}

fn part(peer: Peer, writing: Writing, options: &Options, folder: &Path) -> Result<Window, String> {
    let row = rows::seed(writing);
    let stage = Stage::build(&row, options)?;
    let endpoint: Endpoint = stage.endpoint(Contestant::one(peer), &row, options, folder, &[])?;
    let lengths = Lengths { warm_up_s: 1.0, measure_s: minutes(options) * 60.0 };
    stage.bench(&endpoint).measure(lengths, 1)
}

fn line(clients: &str, peer: Peer, result: Result<Window, String>) -> String {
    let mut out = format!("| {clients} | {} |", peer.name());
    let window = match result {
        Ok(window) => window,
        Err(fault) => return out + &format!(" thrown out: {fault} |\n"),
    };
    let (due, sent) = (window.latency, window.service);
    for value in [window.requests_per_s, window.waiting as f64] {
        let _ = write!(out, " {value:.0} |");
    }
    for us in [due.p50, due.p99, due.p999, due.max, sent.p50, sent.p99, sent.p999, sent.max] {
        let _ = write!(out, " {:.2} |", us / 1000.0);
    }
    let cpu = if peer == Peer::Direct { "-".into() } else { format!("{:.2}", window.proxy_us) };
    let _ = writeln!(out, " {cpu} | {:.2} |", window.proxy_us + window.servers_us);
    out
}

fn minutes(options: &Options) -> f64 {
    options.minutes.unwrap_or(10.0)
}

const METHOD: &str = "
50 connections, 6,000 requests/s in a Poisson process, GET:SET 1:1, 100-byte values, one request
outstanding a connection. Clean clients set TCP_NODELAY and write a request at once. Split clients
leave Nagle on and write in two pieces: `get KEY` and CRLF, or a set's header and its body. A
request that finds its connection busy waits in the client. `due` counts milliseconds from the
moment it should have been sent, `write` from the moment it was.
";
const HEADING: &str = "\
| clients | through | requests/s | never sent | due: p50 | p99 | p99.9 | max \
| write: p50 | p99 | p99.9 | max | CPU us/req | + server |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";
