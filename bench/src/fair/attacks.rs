//! The attacks, as data, and the loop that plays the attackers.
//!
//! An attack is a list of crowds: connections that all send the same bytes in the same way. To add
//! an attack, add an entry to one of the two lists; a new behaviour is a new variant of [`Again`].

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;

use crate::peers::Peer;
use crate::servers::Backend;

/// A few hostile or greedy clients.
pub struct Attack {
    pub name: &'static str,
    pub what: &'static str,
    pub backend: Backend,
    pub servers: usize,
    /// Number of quickack's workers.
    pub workers: usize,
    pub stock: Stock,
    /// Its commands keep a server busy. The quiet client's last phase begins when the servers
    /// answer again.
    pub slow: bool,
    /// Peers that refuse its commands.
    pub refused_by: &'static [Peer],
    pub crowds: Vec<Crowd>,
}

/// The keys on each server, besides those of the quiet client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    Nothing,
    /// `big`, and `big:000` to `big:099`, with values of 1 MB.
    Big,
    /// That many keys with short values.
    Keys(usize),
}

/// Connections that behave alike.
pub struct Crowd {
    pub connections: usize,
    /// Returns the bytes that each of them sends.
    pub request: fn() -> Vec<u8>,
    /// It reads its answers.
    pub reads: bool,
    pub again: Again,
}

/// The rule for sending the bytes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Never,
    /// At once, as long as the socket takes bytes.
    AtOnce,
    /// When the answers to all of it have come, which end with these bytes.
    Answered(&'static [u8]),
    /// After so long, on a new connection; the old one is reset.
    Reconnected(Duration),
}

pub fn attacks() -> Vec<Attack> {
    [attacks_on_memcached(), attacks_on_redis()].into_iter().flatten().collect()
}

fn attacks_on_memcached() -> Vec<Attack> {
    let unread = Crowd {
        connections: 5,
        request: || [b"get".to_vec(), b" big".repeat(400), b"\r\n".to_vec()].concat(),
        reads: false,
        again: Again::Reconnected(Duration::from_millis(300)),
    };
    let unread300 = Crowd {
        connections: 300,
        request: || b"get big\r\n".repeat(50),
        reads: false,
        again: Again::Never,
    };
    let large = Crowd {
        connections: 1,
        request: || (0..100).flat_map(|at| format!("get big:{at:03}\r\n").into_bytes()).collect(),
        reads: true,
        again: Again::AtOnce,
    };
    let sets = Crowd {
        connections: 40,
        request: || b"set greedy 0 0 10\r\n0123456789\r\n".repeat(100),
        reads: true,
        again: Again::AtOnce,
    };
    let attack = |name, what, crowd| Attack::new(Backend::Memcached, name, what, crowd);
    vec![
        attack(
            "unread",
            "5 connections: `get big` x 400 keys of 1 MB, nothing read, new every 0.3 s",
            unread,
        )
        .with(Stock::Big),
        attack(
            "unread300",
            "300 connections: 50 x `get big` of 1 MB, nothing read; 2 workers",
            unread300,
        )
        .with(Stock::Big)
        .workers(2),
        attack(
            "large",
            "1 connection: pipelined gets of 100 keys of 1 MB, read at full speed",
            large,
        )
        .with(Stock::Big),
        attack("sets", "40 connections: pipelined sets of 10 bytes", sets),
    ]
}

fn attacks_on_redis() -> Vec<Attack> {
    let once = |request| Crowd { connections: 1, request, reads: true, again: Again::Never };
    let commands = Crowd {
        connections: 20,
        request: || [command(&["COMMAND"]).repeat(16), command(&["PING"])].concat(),
        reads: true,
        again: Again::Answered(b"+PONG\r\n"),
    };
    let attack = |name, what, crowd| Attack::new(Backend::Redis, name, what, crowd);
    vec![
        attack(
            "keys",
            "1 connection: 20 x `KEYS *` in one write; 4 servers with 250,000 keys each",
            once(|| command(&["KEYS", "*"]).repeat(20)),
        )
        .with(Stock::Keys(250_000))
        .servers(4)
        .slow()
        .refused_by(&[Peer::Nutcracker]),
        attack("eval", "1 connection: one EVAL of about 1.3 s", once(long_eval)).slow(),
        attack(
            "evals",
            "1 connection: 6 x EVAL of about 1.3 s in one write",
            once(|| long_eval().repeat(6)),
        )
        .slow(),
        attack(
            "set100m",
            "1 connection: one SET of 100 MB",
            once(|| command(&["SET", "huge", &"x".repeat(100_000_000)])),
        ),
        attack(
            "command",
            "20 connections: 16 x `COMMAND`, answers read, and at once again",
            commands,
        )
        .refused_by(&[Peer::Nutcracker]),
    ]
}

impl Attack {
    /// One server, one worker, no keys but the quiet client's.
    fn new(backend: Backend, name: &'static str, what: &'static str, crowd: Crowd) -> Attack {
        Attack {
            name,
            what,
            backend,
            servers: 1,
            workers: 1,
            stock: Stock::Nothing,
            slow: false,
            refused_by: &[],
            crowds: vec![crowd],
        }
    }

    fn with(self, stock: Stock) -> Attack {
        Attack { stock, ..self }
    }

    fn servers(self, servers: usize) -> Attack {
        Attack { servers, ..self }
    }

    fn workers(self, workers: usize) -> Attack {
        Attack { workers, ..self }
    }

    fn slow(self) -> Attack {
        Attack { slow: true, ..self }
    }

    fn refused_by(self, refused_by: &'static [Peer]) -> Attack {
        Attack { refused_by, ..self }
    }
}

/// Returns a script of about 1.3 s on a processor of 2025. It counts, because newer servers stop
/// the clock for a script.
fn long_eval() -> Vec<u8> {
    command(&["EVAL", "for i=1,250e6 do end return 1", "1", "slow"])
}

/// Returns a command in RESP.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Attacks `to` until it is stopped, then resets all connections. Returns the bytes read.
pub fn play(crowds: &[Crowd], to: SocketAddrV4, stop: &AtomicBool) -> Result<u64, String> {
    let requests: Vec<Vec<u8>> = crowds.iter().map(|crowd| (crowd.request)()).collect();
    let mut attackers = Vec::new();
    for (crowd, request) in crowds.iter().zip(&requests) {
        let one = |_| Attacker::new(crowd, request, to);
        attackers.extend((0..crowd.connections).map(one));
    }
    let mut scratch = vec![0; 256 * 1024];
    let mut read = 0;
    while !stop.load(Ordering::Relaxed) {
        for attacker in &mut attackers {
            attacker.connect_if_due();
        }
        for at in ready(&attackers)? {
            read += attackers[at].act(&mut scratch);
        }
    }
    Ok(read)
}

/// Returns the attackers that can read or write.
fn ready(attackers: &[Attacker]) -> Result<Vec<usize>, String> {
    let open = || attackers.iter().enumerate().filter(|(_, each)| each.socket.is_some());
    let mut polled: Vec<PollFd> = open()
        .filter_map(|(_, each)| Some(PollFd::new(each.socket.as_ref()?, each.interest())))
        .collect();
    match rustix::event::poll(&mut polled, Some(&WAIT_MAX)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(format!("poll: {errno}")),
    }
    let pairs = open().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
    Ok(pairs.map(|((at, _), _)| at).collect())
}

/// Until an attacker's clock is looked at again.
const WAIT_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// A connection that the other side closed is opened again after this.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// One connection of a crowd.
struct Attacker<'a> {
    crowd: &'a Crowd,
    request: &'a [u8],
    to: SocketAddrV4,
    socket: Option<TcpStream>,
    /// Bytes of the request that are sent.
    sent: usize,
    connect_at: Option<Instant>,
    /// The last bytes read, as many as the end of its answers has.
    tail: Vec<u8>,
}

impl<'a> Attacker<'a> {
    fn new(crowd: &'a Crowd, request: &'a [u8], to: SocketAddrV4) -> Self {
        let connect_at = Some(Instant::now());
        Attacker { crowd, request, to, socket: None, sent: 0, connect_at, tail: Vec::new() }
    }

    fn connect_if_due(&mut self) {
        let now = Instant::now();
        if self.connect_at.is_none_or(|at| now < at) {
            return;
        }
        self.reset();
        self.sent = 0;
        self.socket = TcpStream::connect(self.to).ok().filter(|socket| {
            socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).is_ok()
        });
        self.connect_at = match self.crowd.again {
            Again::Reconnected(pause) => Some(now + pause),
            _ if self.socket.is_none() => Some(now + REFUSED_PAUSE),
            _ => None,
        };
    }

    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, self.crowd.reads);
        interest.set(PollFlags::OUT, self.sent < self.request.len());
        interest
    }

    /// Reads and writes once; returns the number of bytes read.
    fn act(&mut self, scratch: &mut [u8]) -> u64 {
        let Some(socket) = &mut self.socket else { return 0 };
        let mut read = 0;
        let mut closed = false;
        // A crowd that does not read is woken without interest only by a connection that has ended.
        if self.crowd.reads || self.sent == self.request.len() {
            match socket.read(scratch) {
                Ok(0) => closed = true,
                Ok(len) => {
                    read = len as u64;
                    if let Again::Answered(end) = self.crowd.again
                        && ends(&mut self.tail, &scratch[..len], end)
                    {
                        self.sent = 0;
                    }
                }
                Err(error) => closed = !passes(error.kind()),
            }
        }
        if !closed && self.sent < self.request.len() {
            match socket.write(&self.request[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) => closed = !passes(error.kind()),
            }
            if self.sent == self.request.len() && self.crowd.again == Again::AtOnce {
                self.sent = 0;
            }
        }
        if closed {
            self.reset();
            if matches!(self.crowd.again, Again::AtOnce | Again::Answered(_)) {
                self.connect_at = Some(Instant::now() + REFUSED_PAUSE);
            }
        }
        read
    }

    /// Closes with a reset, as a program does that ends with unread answers.
    fn reset(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }
}

impl Drop for Attacker<'_> {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Adds bytes to a tail, and returns whether the stream now ends with `end`.
fn ends(tail: &mut Vec<u8>, bytes: &[u8], end: &[u8]) -> bool {
    tail.extend_from_slice(&bytes[bytes.len().saturating_sub(end.len())..]);
    tail.drain(..tail.len().saturating_sub(end.len()));
    tail == end
}

fn passes(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::{attacks, ends};

    #[test]
    fn the_end_of_the_answers_is_seen_across_reads() {
        let mut tail = Vec::new();
        assert!(!ends(&mut tail, b"*240 and so on +PO", b"+PONG\r\n"));
        assert!(!ends(&mut tail, b"NG", b"+PONG\r\n"));
        assert!(ends(&mut tail, b"\r\n", b"+PONG\r\n"));
        assert!(!ends(&mut tail, b"*240", b"+PONG\r\n"));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = attacks().into_iter().map(|attack| attack.name).collect();
        names.extend(super::super::shares::shares().into_iter().map(|share| share.name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
