//! What binds a connection, beside a direct connection: transactions, waits and subscriptions.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use testkit::process::Facts;
use testkit::wire::resp::{command, push_command};

use crate::contest::{Stage, median};
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Endpoint, Peer};
use crate::process;
use crate::rows::{self, Row};
use crate::servers;

/// Clients with a transaction each under way, and its commands.
const CLIENTS: usize = 16;
const COMMANDS: usize = 10;
/// Transactions that a client sends in one write.
const DEPTHS: [usize; 2] = [1, 16];
/// Hand-offs of a round.
const HAND_OFFS: usize = 500;
const SUBSCRIBERS: usize = 1_000;
/// Messages that are sent before they are read.
const BURST: usize = 20;
const BLOCKED: usize = 2_000;
const DIRECT: Contestant = Contestant::one(Peer::Direct);
const ONE: Contestant = Contestant::one(Peer::Quickack);
const TWO: Contestant = Contestant::of(Peer::Quickack, 2);

/// Redis, and those who ask it.
struct Field<'a> {
    options: &'a Options,
    folder: &'a Path,
    row: Row,
    stage: Stage,
}

/// The CPU time of a proxy and of its server.
#[derive(Clone, Copy)]
struct Cpu {
    proxy: u64,
    server: u64,
}

/// Measures all; returns true if each worker takes one copy of a message.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = String::from("## Transactions, waits and subscriptions\n\n");
    text.push_str(&page::short_origin(&machine, options));
    let mut options = options.clone();
    options.added.global.push(format!("private_connections_max: {}", 2 * BLOCKED));
    let row = rows::binding();
    let stage = Stage::build(&row, &options)?;
    let field = Field { options: &options, folder, row, stage };
    let subscriptions = field.subscriptions()?;
    let parts = [
        (TRANSACTIONS, field.transactions()?),
        (HANDING_OFF, field.hand_offs()?),
        (SUBSCRIPTIONS, subscriptions.0),
        (WAITING, field.blocked()?),
    ];
    let parts: Vec<String> = parts.iter().map(|(head, rows)| format!("{head}{rows}")).collect();
    text.push_str(&parts.join("\n"));
    print!("{text}");
    if options.write {
        page::write(Some("--binding"), &text)?;
    }
    Ok(subscriptions.1)
}

impl Field<'_> {
    fn endpoint(&self, who: Contestant) -> Result<Endpoint, String> {
        self.stage.endpoint(who, &self.row, self.options, self.folder, &[])
    }

    fn cpu(&self, endpoint: &Endpoint) -> Cpu {
        let server = process::cpu_ns(&self.stage.servers.ids());
        Cpu { proxy: process::cpu_ns(&endpoint.ids()), server }
    }

    /// Asks the server itself.
    fn server(&self) -> Result<TcpStream, String> {
        servers::connect(self.stage.servers.ports[0]).map_err(|error| error.to_string())
    }

    /// Waits until so many clients wait at the server.
    fn await_blocked(&self, server: &mut TcpStream, count: usize) -> Result<(), String> {
        let wanted = format!("blocked_clients:{count}\r\n");
        let start = Instant::now();
        while !info(server, "clients")?.contains(&wanted) {
            if start.elapsed() > Duration::from_secs(20) {
                return Err(format!("{wanted:?} does not come"));
            }
        }
        Ok(())
    }

    /// `COMMANDS` commands in MULTI and EXEC, and the same ones bare.
    fn transactions(&self) -> Result<String, String> {
        let mut bare = Vec::new();
        (0..COMMANDS).for_each(|at| push_command(&["SET", &format!("{{t}}{at}"), "1"], &mut bare));
        let block = [command(&["MULTI"]), bare.clone(), command(&["EXEC"])].concat();
        let ok = "+OK\r\n".repeat(COMMANDS);
        let queued = format!("+OK\r\n{}*{COMMANDS}\r\n{ok}", "+QUEUED\r\n".repeat(COMMANDS));
        let mut private = self.options.clone();
        private.added.pool.push("links: private".into());
        let ways = [
            (DIRECT, self.options, ""),
            (ONE, self.options, ""),
            (ONE, &private, ", `links: private`"),
        ];
        let mut out = String::new();
        for depth in DEPTHS {
            for (name, request, reply) in [("MULTI", &block, &queued), ("bare", &bare, &ok)] {
                let (request, reply) = (request.repeat(depth), reply.repeat(depth));
                for (who, options, how) in ways {
                    let endpoint =
                        self.stage.endpoint(who, &self.row, options, self.folder, &[])?;
                    let figures = self.exchanges(&endpoint, (&request, &reply), depth)?;
                    let who = who.name();
                    let _ = writeln!(out, "| {name} | {depth} | {who}{how} | {figures} |");
                }
            }
        }
        Ok(out)
    }

    /// Returns how many exchanges are made in a second if each client has so many at once, and
    /// what one costs the proxy and the server.
    fn exchanges(
        &self,
        endpoint: &Endpoint,
        both: (&[u8], &str),
        depth: usize,
    ) -> Result<String, String> {
        let mut clients = connections(endpoint, CLIENTS)?;
        let mut rounds = Vec::new();
        self.exchange(&mut clients, both, 0.2)?;
        for _ in 0..self.options.runs {
            let before = self.cpu(endpoint);
            let (count, seconds) =
                self.exchange(&mut clients, both, self.options.lengths.measure_s)?;
            rounds.push((count * depth as f64, seconds, before, self.cpu(endpoint)));
        }
        let of = |figure: fn(&(f64, f64, Cpu, Cpu)) -> f64| {
            median(rounds.iter().map(figure).collect()).unwrap_or(0.0)
        };
        let rate = of(|round| round.0 / round.1);
        let proxy = of(|(count, _, from, to)| us(to.proxy - from.proxy) / count);
        let server = of(|(count, _, from, to)| us(to.server - from.server) / count);
        Ok(format!("{rate:.0} | {proxy:.2} | {server:.2}"))
    }

    /// Returns how many exchanges were made, and in how many seconds.
    fn exchange(
        &self,
        clients: &mut [TcpStream],
        (request, reply): (&[u8], &str),
        seconds: f64,
    ) -> Result<(f64, f64), String> {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed().as_secs_f64() < seconds {
            for client in &mut *clients {
                client.write_all(request).map_err(|error| error.to_string())?;
            }
            for client in &mut *clients {
                expect(client, reply.as_bytes())?;
                count += 1;
            }
        }
        Ok((f64::from(count), start.elapsed().as_secs_f64()))
    }

    /// The time from the moment at which an element is pushed until it is with the client that
    /// waits for it.
    fn hand_offs(&self) -> Result<String, String> {
        let ends = [self.endpoint(DIRECT)?, self.endpoint(ONE)?];
        let mut times = [Vec::new(), Vec::new()];
        let mut server = self.server()?;
        for _ in 0..self.options.runs {
            for (end, times) in ends.iter().zip(&mut times) {
                let mut both = connections(end, 2)?;
                let (waits, pushes) = both.split_at_mut(1);
                for _ in 0..HAND_OFFS {
                    say(&mut waits[0], &["BLPOP", "q", "0"])?;
                    self.await_blocked(&mut server, 1)?;
                    let start = Instant::now();
                    say(&mut pushes[0], &["LPUSH", "q", "element"])?;
                    expect(&mut waits[0], &command(&["q", "element"]))?;
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                    expect(&mut pushes[0], b":1\r\n")?;
                }
            }
        }
        let mut out = String::new();
        for (end, times) in ends.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            let (who, p50, p90, p99) = (end.who.name(), at(0.5), at(0.9), at(0.99));
            let _ = writeln!(out, "| {who} | {p50:.0} | {p90:.0} | {p99:.0} |");
        }
        Ok(out)
    }

    /// Messages to many subscribers of a channel. Returns the rows, and whether each worker took
    /// one copy.
    fn subscriptions(&self) -> Result<(String, bool), String> {
        let text = "x".repeat(100);
        let publish = command(&["PUBLISH", "news", &text]);
        let message = command(&["message", "news", &text]).repeat(BURST);
        let mut server = self.server()?;
        let (mut out, mut is_met) = (String::new(), true);
        for who in [DIRECT, ONE, TWO] {
            let endpoint = self.endpoint(who)?;
            let mut subscribers = connections(&endpoint, SUBSCRIBERS)?;
            for one in &mut subscribers {
                say(one, &["SUBSCRIBE", "news"])?;
                expect(one, b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")?;
            }
            say(&mut server, &["PUBSUB", "NUMSUB", "news"])?;
            let copies = counted(&mut server)?;
            let expected = if who.peer == Peer::Direct { SUBSCRIBERS } else { who.count };
            is_met &= copies == expected;
            let mut publisher = connections(&endpoint, 1)?.remove(0);
            let mut rounds = Vec::new();
            for _ in 0..self.options.runs {
                let (before, start, mut bursts) = (self.cpu(&endpoint), Instant::now(), 0);
                while start.elapsed().as_secs_f64() < self.options.lengths.measure_s {
                    let all = publish.repeat(BURST);
                    publisher.write_all(&all).map_err(|error| error.to_string())?;
                    for _ in 0..BURST {
                        counted(&mut publisher)?;
                    }
                    subscribers.iter_mut().try_for_each(|one| expect(one, &message))?;
                    bursts += 1;
                }
                let delivered = f64::from(bursts) * (BURST * SUBSCRIBERS) as f64;
                let after = self.cpu(&endpoint);
                let seconds = start.elapsed().as_secs_f64();
                let each = |from, to| us(to - from) / delivered;
                rounds.push((
                    delivered / seconds,
                    each(before.proxy, after.proxy),
                    each(before.server, after.server),
                ));
            }
            let of = |figure: fn(&(f64, f64, f64)) -> f64| {
                median(rounds.iter().map(figure).collect()).unwrap_or(0.0)
            };
            let (rate, proxy, server) = (of(|one| one.0), of(|one| one.1), of(|one| one.2));
            let who = who.name();
            let _ = writeln!(out, "| {who} | {copies} | {rate:.0} | {proxy:.3} | {server:.3} |");
        }
        Ok((out, is_met))
    }

    /// Clients that wait, and nothing happens.
    fn blocked(&self) -> Result<String, String> {
        let mut out = String::new();
        let mut server = self.server()?;
        let servers = self.stage.servers.ids();
        for who in [DIRECT, ONE] {
            let endpoint = self.endpoint(who)?;
            let of_proxy = |of: &Endpoint| process::memory(&of.ids()).proportional_kb;
            let of_server = || process::memory(&servers).resident_kb;
            let before = (of_proxy(&endpoint), of_server());
            let mut clients = connections(&endpoint, BLOCKED)?;
            for (at, client) in clients.iter_mut().enumerate() {
                say(client, &["BLPOP", &format!("q{at}"), "0"])?;
            }
            self.await_blocked(&mut server, BLOCKED)?;
            let after = (of_proxy(&endpoint), of_server());
            let (cpu, start) = (self.cpu(&endpoint), Instant::now());
            let wakeups = Facts::of(endpoint.serving_ids()).wakeups();
            // Nothing happens in this time: that is what is measured.
            std::thread::sleep(Duration::from_secs_f64(2.0 * self.options.lengths.measure_s));
            let (end, seconds) = (self.cpu(&endpoint), start.elapsed().as_secs_f64());
            let woken = (Facts::of(endpoint.serving_ids()).wakeups() - wakeups) as f64 / seconds;
            let each =
                |from: u64, to: u64| to.saturating_sub(from) as f64 * 1024.0 / BLOCKED as f64;
            let (ours, theirs) = (each(before.0, after.0), each(before.1, after.1));
            let busy = |from: u64, to: u64| (to - from) as f64 / 1e6 / seconds;
            let (proxy, server) = (busy(cpu.proxy, end.proxy), busy(cpu.server, end.server));
            let who = who.name();
            let _ = writeln!(
                out,
                "| {who} | {ours:.0} | {theirs:.0} | {proxy:.2} | {woken:.1} | {server:.2} |"
            );
            drop(clients);
            self.await_blocked(&mut self.server()?, 0)?;
        }
        Ok(out)
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn connections(endpoint: &Endpoint, count: usize) -> Result<Vec<TcpStream>, String> {
    let port = endpoint.addresses[0].port();
    let all = (0..count).map(|_| servers::connect(port));
    all.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn say(to: &mut TcpStream, words: &[&str]) -> Result<(), String> {
    to.write_all(&command(words)).map_err(|error| error.to_string())
}

fn expect(from: &mut TcpStream, reply: &[u8]) -> Result<(), String> {
    let mut bytes = vec![0; reply.len()];
    from.read_exact(&mut bytes).map_err(|error| error.to_string())?;
    match bytes == reply {
        true => Ok(()),
        false => Err(format!("{} is no {}", bytes.escape_ascii(), reply.escape_ascii())),
    }
}

/// Returns a section of what the server tells of itself.
fn info(server: &mut TcpStream, section: &str) -> Result<String, String> {
    say(server, &["INFO", section])?;
    let len = line(server)?.trim_start_matches('$').parse::<usize>();
    let mut bytes = vec![0; len.map_err(|error| error.to_string())? + 2];
    server.read_exact(&mut bytes).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the number at the end of a reply: the number itself, or the last element.
fn counted(from: &mut TcpStream) -> Result<usize, String> {
    loop {
        let line = line(from)?;
        if let Some(number) = line.strip_prefix(':') {
            return number.parse().map_err(|_| format!("{line:?} is no number"));
        }
        if line.starts_with('-') {
            return Err(line);
        }
    }
}

fn line(from: &mut TcpStream) -> Result<String, String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        from.read_exact(&mut byte).map_err(|error| error.to_string())?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned())
}

const TRANSACTIONS: &str = "\
16 clients, each of which sends tens of SETs in one write and reads all answers: in MULTI and EXEC,
and bare; one ten at once, and 16. CPU per ten.

| | at once | through | tens/s | proxy CPU us | server CPU us |
|---|---|---|---|---|---|
";
const HANDING_OFF: &str = "\
BLPOP: from the write of another client's LPUSH until the element is read, when the server has said
that a client waits; microseconds.

| through | p50 | p90 | p99 |
|---|---|---|---|
";
const SUBSCRIPTIONS: &str = "\
PUBLISH of 100 bytes to 1,000 subscribers of one channel. Copies: what the server counts as
subscribers, one a worker. CPU per delivered message.

| through | copies | delivered/s | proxy CPU us | server CPU us |
|---|---|---|---|---|
";
const WAITING: &str = "\
2,000 clients that wait in BLPOP, each for a key of its own, and nothing happens.

| through | proxy PSS, bytes each | server RSS | proxy CPU ms/s | wake-ups/s | server CPU ms/s |
|---|---|---|---|---|---|
";
