//! The shares of 40 clients that always keep work waiting in front of a saturated server, one of
//! them with far more of it. Jain's index is 1 if all get the same, and 1/40 if one gets all.
//!
//! A relay limits the bytes that the server takes and gives, so that it is the server that all wait
//! for, on any machine, and neither the proxy nor the clients.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::contest::median;
use crate::load::now_ns;
use crate::options::Options;
use crate::peers::{Contestant, Endpoint, Peer, Place};
use crate::process::{self, Cpus};
use crate::relay::Relay;
use crate::servers::{Backend, Servers};

use super::{attacks, trial};

/// One kind of request.
pub struct Share {
    pub name: &'static str,
    pub what: &'static str,
    backend: Backend,
    sets: bool,
}

const CLIENTS: usize = 40;
const DEPTH: u64 = 16;
const GREEDY_DEPTH: u64 = 1_000;
pub(super) const VALUE_LEN: usize = 1_000;
const INDEX_MIN: f64 = 0.95;
pub(super) const SERVER_BYTES_PER_S: u64 = 50_000_000;
const REST: Duration = Duration::from_micros(200);
pub(super) const WARM_UP_NS: u64 = 700_000_000;
pub(super) const WINDOW_NS: u64 = 2_000_000_000;

pub fn shares() -> [Share; 4] {
    let share = |name, what, backend, sets| Share { name, what, backend, sets };
    [
        share("jain-get", "shares of 40 clients: memcached get", Backend::Memcached, false),
        share("jain-set", "shares of 40 clients: memcached set", Backend::Memcached, true),
        share("jain-rget", "shares of 40 clients: Redis GET", Backend::Redis, false),
        share("jain-rset", "shares of 40 clients: Redis SET", Backend::Redis, true),
    ]
}

/// Gets of the clients' keys, which [`Share::fill`] stores.
pub(super) fn gets(backend: Backend) -> Share {
    Share { name: "", what: "", backend, sets: false }
}

/// The results of one window.
struct Window {
    index: f64,
    /// The greedy client's cost over the mean of the others.
    greedy: f64,
    requests_per_s: f64,
    proxy_busy: f64,
}

/// Measures the shares through each peer; returns true if quickack's bar is met.
pub fn measure(
    share: &Share,
    options: &Options,
    folder: &Path,
    lines: &mut String,
) -> Result<bool, String> {
    let quickack = &options.quickack();
    let servers = Servers::start(share.backend, 1, Cpus::Split, quickack)?;
    share.fill(servers.ports[0])?;
    let relay = Relay::limiting(servers.ports[0], SERVER_BYTES_PER_S)?;
    let place = Place {
        folder,
        quickack,
        servers: &[relay.port],
        backend: share.backend,
        merge_gets: true,
        cpus: Cpus::Split,
        wrapper: &[],
        limits: trial::LIMITS,
        added: &options.added,
    };
    let proxies = [Peer::Nutcracker, Peer::Quickack].into_iter();
    let peers = proxies.filter(|peer| options.peers.contains(peer));
    let endpoints: Result<Vec<Endpoint>, String> =
        peers.map(|peer| Endpoint::start(Contestant::one(peer), &place)).collect();
    let endpoints = endpoints?;
    let mut windows: Vec<Vec<Window>> = endpoints.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.runs {
        for (endpoint, windows) in endpoints.iter().zip(&mut windows) {
            windows.push(share.window(endpoint)?);
        }
    }
    let mut all_met = true;
    for (endpoint, windows) in endpoints.iter().zip(&windows) {
        let (line, met) = share.line(endpoint.who.peer, windows);
        print!("{line}");
        let _ = write!(lines, "{line}");
        all_met &= met;
    }
    Ok(all_met)
}

impl Share {
    /// Stores the clients' keys.
    pub(super) fn fill(&self, port: u16) -> Result<(), String> {
        let pairs = (0..CLIENTS).map(|at| (self.key(at), "v".repeat(VALUE_LEN)));
        super::store(self.backend, port, pairs).map_err(|error| error.to_string())
    }

    /// Connects a client that keeps so many requests outstanding.
    pub(super) fn client(&self, to: SocketAddrV4, at: usize, depth: u64) -> Result<Client, String> {
        Client::open(to, self.request(at), self.answer(at), depth)
    }

    fn key(&self, client: usize) -> String {
        format!("share:{client:02}")
    }

    fn request(&self, client: usize) -> Vec<u8> {
        let (key, value) = (self.key(client), "v".repeat(VALUE_LEN));
        match (self.backend, self.sets) {
            (Backend::Redis, true) => attacks::command(&["SET", &key, &value]),
            (Backend::Redis, false) => attacks::command(&["GET", &key]),
            (_, true) => format!("set {key} 0 0 {VALUE_LEN}\r\n{value}\r\n").into_bytes(),
            (_, false) => format!("get {key}\r\n").into_bytes(),
        }
    }

    fn answer(&self, client: usize) -> Vec<u8> {
        let (key, value) = (self.key(client), "v".repeat(VALUE_LEN));
        match (self.backend, self.sets) {
            (Backend::Redis, true) => b"+OK\r\n".to_vec(),
            (Backend::Redis, false) => format!("${VALUE_LEN}\r\n{value}\r\n").into_bytes(),
            (_, true) => b"STORED\r\n".to_vec(),
            (_, false) => format!("VALUE {key} 0 {VALUE_LEN}\r\n{value}\r\nEND\r\n").into_bytes(),
        }
    }

    fn window(&self, endpoint: &Endpoint) -> Result<Window, String> {
        let open = |at: usize| {
            let depth = if at == 0 { GREEDY_DEPTH } else { DEPTH };
            self.client(endpoint.addresses[0], at, depth)
        };
        let mut clients = (0..CLIENTS).map(open).collect::<Result<Vec<_>, String>>()?;
        let busy = || (now_ns(), process::cpu_ns(&endpoint.serving_ids()));
        // A thread of its own, which alone has the priority.
        let (before, begin, after, end) = std::thread::scope(|scope| {
            let load = || {
                super::prefer_this_thread();
                keep_asking(&mut clients, now_ns() + WARM_UP_NS)?;
                let (before, begin) = (served(&clients), busy());
                keep_asking(&mut clients, now_ns() + WINDOW_NS)?;
                Ok::<_, String>((before, begin, served(&clients), busy()))
            };
            let joined = scope.spawn(load).join();
            joined.unwrap_or_else(|_| Err("the clients panicked".into()))
        })?;
        let costs: Vec<f64> =
            after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
        let elapsed = (end.0 - begin.0) as f64;
        let others = costs[1..].iter().sum::<f64>() / (CLIENTS - 1) as f64;
        let each = (clients[0].request.len() + clients[0].answer.len()) as f64;
        Ok(Window {
            index: jain(&costs),
            greedy: costs[0] / others,
            requests_per_s: costs.iter().sum::<f64>() / each / (elapsed / 1e9),
            proxy_busy: (end.1 - begin.1) as f64 / elapsed,
        })
    }

    /// Returns a line of the table, and whether it meets its bar.
    fn line(&self, peer: Peer, windows: &[Window]) -> (String, bool) {
        let at = |figure: fn(&Window) -> f64| {
            median(windows.iter().map(figure).collect()).unwrap_or(f64::NAN)
        };
        let index = super::Spread::of(windows.iter().map(|window| window.index).collect());
        let met = index.median >= INDEX_MIN;
        let (bar, judged) = match (peer, met) {
            (Peer::Quickack, true) => (">= 0.95", "met"),
            (Peer::Quickack, false) => (">= 0.95", "**not met**"),
            _ => ("-", ""),
        };
        let line = format!(
            "| {} | {} | {:.3} ({:.3} to {:.3}) | {:.2} | {:.0} | {:.2} | {bar} | {judged} \
             |\n",
            self.name,
            peer.name(),
            index.median,
            index.low,
            index.high,
            at(|window| window.greedy),
            at(|window| window.requests_per_s),
            at(|window| window.proxy_busy),
        );
        (line, met || peer != Peer::Quickack)
    }
}

/// Keeps work waiting for every client until then.
pub(super) fn keep_asking(clients: &mut [Client], until_ns: u64) -> Result<(), String> {
    let mut scratch = vec![0; 64 * 1024];
    while now_ns() < until_ns {
        let mut polled: Vec<PollFd> =
            clients.iter().map(|it| PollFd::new(&it.socket, it.interest())).collect();
        let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        rustix::event::poll(&mut polled, Some(&pause)).map_err(|errno| format!("poll: {errno}"))?;
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (client, _) in clients.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            client.exchange(&mut scratch)?;
        }
        // Few answers come in this time, and the CPU is left to the server.
        std::thread::sleep(REST);
    }
    Ok(())
}

/// Returns the bytes asked and answered of each client's whole answers.
pub(super) fn served(clients: &[Client]) -> Vec<u64> {
    let cost = |it: &Client| it.served * (it.request.len() + it.answer.len()) as u64;
    clients.iter().map(cost).collect()
}

/// The square of the sum over the sum of the squares and their number.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (squares * shares.len() as f64)
}

/// A client whose answers are all alike, or refusals if it expects them.
pub(super) struct Client {
    socket: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    depth: u64,
    asked: u64,
    out: Vec<u8>,
    pub(super) served: u64,
    refused: u64,
    /// Bytes that have been read of the answer that is coming.
    read: usize,
    /// Error lines are counted. Otherwise they are a fault.
    pub(super) expects_refusals: bool,
    is_refusal: bool,
}

impl Client {
    fn open(
        to: SocketAddrV4,
        request: Vec<u8>,
        answer: Vec<u8>,
        depth: u64,
    ) -> Result<Client, String> {
        let fault = |error: std::io::Error| format!("connect to {to}: {error}");
        let socket = TcpStream::connect(to).map_err(fault)?;
        socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(fault)?;
        let (asked, out, served, refused, read) = (0, Vec::new(), 0, 0, 0);
        let (expects_refusals, is_refusal) = (false, false);
        Ok(Client {
            socket,
            request,
            answer,
            depth,
            asked,
            out,
            served,
            refused,
            read,
            expects_refusals,
            is_refusal,
        })
    }

    /// Sends a login and waits for its answer.
    pub(super) fn log_in(&mut self, login: &[u8], answer: &[u8]) -> Result<(), String> {
        let fault = |error: std::io::Error| format!("login: {error}");
        self.socket.set_nonblocking(false).map_err(fault)?;
        self.socket.write_all(login).map_err(fault)?;
        let mut said = vec![0; answer.len()];
        self.socket.read_exact(&mut said).map_err(fault)?;
        self.socket.set_nonblocking(true).map_err(fault)?;
        if said != answer {
            return Err(format!("login: {}", said.escape_ascii()));
        }
        Ok(())
    }

    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, !self.out.is_empty() || self.asked == 0);
        interest
    }

    /// Reads once and fills the depth again.
    fn exchange(&mut self, scratch: &mut [u8]) -> Result<(), String> {
        match self.socket.read(scratch) {
            Ok(0) => return Err("the other side closed a client's connection".into()),
            Ok(len) => self.take(&scratch[..len])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("read: {error}")),
        }
        while self.asked < self.served + self.refused + self.depth {
            self.out.extend_from_slice(&self.request);
            self.asked += 1;
        }
        match self.socket.write(&self.out) {
            Ok(len) => drop(self.out.drain(..len)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("write: {error}")),
        }
        Ok(())
    }

    /// Counts answers, and compares them with the one that must come.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while let Some(first) = bytes.first() {
            if self.read == 0 {
                self.is_refusal = self.expects_refusals && *first != self.answer[0];
            }
            let len = if self.is_refusal {
                let line = bytes.iter().position(|byte| *byte == b'\n');
                line.map_or(bytes.len(), |at| at + 1)
            } else {
                let rest = &self.answer[self.read..];
                let len = rest.len().min(bytes.len());
                if bytes[..len] != rest[..len] {
                    return Err(format!("wrong answer: {}", bytes[..len].escape_ascii()));
                }
                len
            };
            self.read += len;
            if self.is_refusal && bytes[len - 1] == b'\n' {
                (self.refused, self.read) = (self.refused + 1, 0);
            } else if !self.is_refusal && self.read == self.answer.len() {
                (self.served, self.read) = (self.served + 1, 0);
            }
            bytes = &bytes[len..];
        }
        Ok(())
    }
}

pub const METHOD: &str = "
40 clients with 16 requests outstanding, one of them with 1,000, values of 1,000 bytes, and one
server that takes and gives 50 MB/s. Cost is the bytes of requests and answers; Jain's index of the
clients' cost served in 2 s is 1 if all get the same. `greedy` is the cost served to the client of
1,000, over the mean of the others.

";
pub const HEADING: &str = "\
| load | through | Jain's index | greedy | req/s | proxy busy | bar | |
|---|---|---|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn equal_shares_have_the_index_one() {
        assert!((jain(&[2.0; 40]) - 1.0).abs() < 1e-9);
        let mut one = [0.0; 40];
        one[7] = 3.0;
        assert!((jain(&one) - 0.025).abs() < 1e-9);
    }
}
