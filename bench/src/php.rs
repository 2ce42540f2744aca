//! A miss as php-memcached requests it in binary: GETKQ in one write and NOOP in the next, Nagle
//! on. A quiet miss is not answered, so the NOOP waits for the ACK of the GETKQ, which a server
//! delays by 40 ms.
//!
//! The client is a model, so the times contain no interpreter.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use testkit::wire::binary::HEAD_LEN;

use crate::contest::{Stage, median};
use crate::load::{Corpus, push_noop, push_quiet_get};
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Peer};
use crate::rows;

/// Misses of each client; clients that stall send fewer requests.
const MISSES: usize = 2_000;
const STALLING: usize = 25;
/// The first requests use a fresh socket, which acknowledges at once.
const WARM_UP: usize = 10;
/// Rounds in which the clients take turns.
const ROUNDS: usize = 5;
/// Limit on the median through the proxy, relative to a direct client with TCP_NODELAY.
const RATIO_MAX: f64 = 3.0;
/// A longer time is a stall.
const STALL_US: f64 = 30_000.0;

/// A client, and its server's address.
struct Case {
    name: &'static str,
    to: SocketAddrV4,
    nodelay: bool,
    misses: usize,
    /// Median of each round in microseconds, and the number of stalls.
    medians: Vec<f64>,
    stalls: usize,
}

/// Measures misses; returns true if the bar is met.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let row = rows::php();
    let stage = Stage::build(&row, options)?;
    let endpoint = |peer| stage.endpoint(Contestant::one(peer), &row, options, folder, &[]);
    let (direct, ours) = (endpoint(Peer::Direct)?, endpoint(Peer::Quickack)?);
    let case = |name, to: &[SocketAddrV4], nodelay, misses| {
        let (medians, stalls) = (Vec::new(), 0);
        Case { name, to: to[0], nodelay, misses, medians, stalls }
    };
    let mut cases = [
        case("direct, TCP_NODELAY", &direct.addresses, true, MISSES),
        case("quickack, as php does it", &ours.addresses, false, MISSES),
        case("quickack, TCP_NODELAY", &ours.addresses, true, MISSES),
        case("direct, as php does it", &direct.addresses, false, STALLING),
    ];
    for round in 0..ROUNDS {
        for at in 0..cases.len() {
            let case = &mut cases[(round + at) % 4];
            let times = misses(case, &stage.corpus);
            let times = times.map_err(|fault| format!("{}: {fault}", case.name))?;
            case.stalls += times.iter().filter(|time| **time > STALL_US).count();
            case.medians.extend(median(times));
        }
    }
    let (text, met) = told(&cases, &machine, options);
    print!("{text}");
    if options.write {
        page::write(Some("--php"), &text)?;
    }
    Ok(met)
}

/// Returns the microseconds of each miss.
fn misses(case: &Case, corpus: &Corpus) -> Result<Vec<f64>, String> {
    let mut stream = TcpStream::connect(case.to).map_err(|error| error.to_string())?;
    let set_up = stream
        .set_nodelay(case.nodelay)
        .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(5))));
    set_up.map_err(|error| error.to_string())?;
    let (mut times, mut request, mut noop) = (Vec::new(), Vec::new(), Vec::new());
    let mut reply = [0; HEAD_LEN + 1];
    for at in 0..WARM_UP + case.misses {
        let opaque = 2 * at as u32;
        request.clear();
        noop.clear();
        push_quiet_get(corpus, &mut request, 0, opaque);
        push_noop(&mut noop, opaque + 1);
        let start = Instant::now();
        let exchange = stream
            .write_all(&request)
            .and_then(|()| stream.write_all(&noop))
            .and_then(|()| stream.read(&mut reply));
        let len = exchange.map_err(|error| error.to_string())?;
        let time = start.elapsed().as_nanos() as f64 / 1000.0;
        if len != HEAD_LEN || reply[..2] != [0x81, noop[1]] || reply[12..16] != noop[12..16] {
            return Err(format!("a miss was answered {}", reply[..len].escape_ascii()));
        }
        if at >= WARM_UP {
            times.push(time);
        }
    }
    Ok(times)
}

fn told(cases: &[Case; 4], machine: &Description, options: &Options) -> (String, bool) {
    let mut text = String::from("## Misses as php-memcached asks them\n\n");
    text.push_str(&page::short_origin(machine, options));
    text.push_str(METHOD);
    let of = |case: &Case| median(case.medians.clone()).unwrap_or(f64::NAN);
    for case in cases {
        let low = case.medians.iter().copied().fold(f64::INFINITY, f64::min);
        let high = case.medians.iter().copied().fold(0.0, f64::max);
        let (asked, stalls) = (ROUNDS * case.misses, case.stalls);
        let _ = writeln!(
            text,
            "| {} | {asked} | {:.1} | {low:.1} to {high:.1} | {stalls} |",
            case.name,
            of(case)
        );
    }
    let rounds = cases[0].medians.iter().zip(&cases[1].medians);
    let ratio = median(rounds.map(|(direct, ours)| ours / direct).collect()).unwrap_or(f64::NAN);
    let met = ratio <= RATIO_MAX;
    let judged = if met { "met" } else { "**not met**" };
    let _ = writeln!(
        text,
        "\nThrough quickack, unchanged, a miss takes {ratio:.2} of what it takes with TCP_NODELAY \
         straight to the server (at most {RATIO_MAX}): {judged}."
    );
    (text, met)
}

const METHOD: &str = "\
One connection, one miss after the other: GETKQ and NOOP, each in a write of its own. `As php does
it` leaves Nagle on. Medians of rounds in which all take turns; a stall is more than 30 ms.

| client | misses | median us | rounds | stalls |
|---|---|---|---|---|
";
