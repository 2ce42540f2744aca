//! The loop that plays the attackers.
//!
//! ```text
//!   lead: small requests, answers read | the request, at the crowd's pace, and again
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;

/// Connections that behave alike.
pub struct Crowd {
    pub connections: usize,
    /// Returns the bytes that each of them sends.
    pub request: fn() -> Vec<u8>,
    pub sends: Pace,
    pub reads: Pace,
    pub again: Again,
    /// Returns what it sends every 20 ms before the attack, as long as the attack's lead. Without
    /// it, the crowd comes with the attack.
    pub lead: Option<fn() -> Vec<u8>>,
}

/// How fast a connection is written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as the other side allows.
    Full,
    Never,
    /// Only once all is written, as blocking libraries read; then as `Full`.
    Behind,
    /// So many bytes, each time that so much time has passed.
    Slow(usize, Duration),
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
    /// As reconnected, and each connection's end is sent after the bytes.
    HalfClosed(Duration),
}

/// The attackers and the time at which their attack begins.
pub struct Play<'a> {
    pub crowds: &'a [Crowd],
    pub to: SocketAddrV4,
    pub lead: Duration,
    pub stop: &'a AtomicBool,
}

impl Play<'_> {
    /// Attacks until it is stopped, then resets all connections. Returns the bytes read.
    pub fn run(&self) -> Result<u64, String> {
        let requests: Vec<Vec<u8>> = self.crowds.iter().map(|crowd| (crowd.request)()).collect();
        let begin = Instant::now() + self.lead;
        let mut attackers = Vec::new();
        for (crowd, request) in self.crowds.iter().zip(&requests) {
            let one = |_| Attacker::new(crowd, request, self.to, begin);
            attackers.extend((0..crowd.connections).map(one));
        }
        let mut scratch = vec![0; 256 * 1024];
        let mut read = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            for attacker in &mut attackers {
                attacker.connect_if_due(now);
            }
            for at in ready(&attackers, now)? {
                read += attackers[at].act(&mut scratch, now);
            }
        }
        Ok(read)
    }
}

/// Returns the attackers that can read or write.
fn ready(attackers: &[Attacker], now: Instant) -> Result<Vec<usize>, String> {
    let open = || attackers.iter().enumerate().filter(|(_, each)| each.socket.is_some());
    let mut polled: Vec<PollFd> = open()
        .filter_map(|(_, each)| Some(PollFd::new(each.socket.as_ref()?, each.interest(now))))
        .collect();
    match rustix::event::poll(&mut polled, Some(&WAIT_MAX)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(format!("poll: {errno}")),
    }
    let pairs = open().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
    Ok(pairs.map(|((at, _), _)| at).collect())
}

/// Until an attacker's clock is looked at again.
const WAIT_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// A connection that the other side closed is opened again after this.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Between two requests of a lead.
const LEAD_PAUSE: Duration = Duration::from_millis(20);

/// One connection of a crowd.
struct Attacker<'a> {
    crowd: &'a Crowd,
    request: &'a [u8],
    to: SocketAddrV4,
    begin: Instant,
    socket: Option<TcpStream>,
    /// Bytes of the request that are sent.
    sent: usize,
    connect_at: Option<Instant>,
    write_at: Instant,
    read_at: Instant,
    /// The last bytes read, as many as the end of its answers has.
    tail: Vec<u8>,
}

impl<'a> Attacker<'a> {
    fn new(crowd: &'a Crowd, request: &'a [u8], to: SocketAddrV4, begin: Instant) -> Self {
        let now = Instant::now();
        Attacker {
            crowd,
            request,
            to,
            begin,
            socket: None,
            sent: 0,
            connect_at: Some(if crowd.lead.is_some() { now } else { begin }),
            write_at: now,
            read_at: now,
            tail: Vec::new(),
        }
    }

    fn connect_if_due(&mut self, now: Instant) {
        if self.connect_at.is_none_or(|at| now < at) {
            return;
        }
        self.reset();
        self.sent = 0;
        self.socket = TcpStream::connect(self.to).ok().filter(|socket| {
            socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).is_ok()
        });
        self.connect_at = match self.crowd.again {
            Again::Reconnected(pause) | Again::HalfClosed(pause) => {
                Some(now.max(self.begin) + pause)
            }
            _ if self.socket.is_none() => Some(now + REFUSED_PAUSE),
            _ => None,
        };
    }

    fn leads(&self, now: Instant) -> bool {
        now < self.begin
    }

    fn interest(&self, now: Instant) -> PollFlags {
        let reads = self.reads(now);
        let due = due(self.crowd.sends, self.write_at, now);
        let writes = if self.leads(now) { now >= self.write_at } else { due && !self.all_sent() };
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, reads);
        interest.set(PollFlags::OUT, writes);
        interest
    }

    fn reads(&self, now: Instant) -> bool {
        let is_due = match self.crowd.reads {
            Pace::Behind => self.all_sent(),
            pace => due(pace, self.read_at, now),
        };
        self.leads(now) || is_due
    }

    fn all_sent(&self) -> bool {
        self.sent == self.request.len()
    }

    /// Reads and writes once; returns the number of bytes read.
    fn act(&mut self, scratch: &mut [u8], now: Instant) -> u64 {
        let reads = self.reads(now);
        let Some(socket) = &mut self.socket else { return 0 };
        let leads = now < self.begin;
        let mut read = 0;
        let mut closed = false;
        // A crowd that does not read is woken without interest only by a connection that has ended.
        let idle = self.crowd.reads == Pace::Never && self.sent == self.request.len();
        if reads || idle {
            let len_max = match self.crowd.reads {
                Pace::Slow(len, pause) if !leads => {
                    self.read_at = now + pause;
                    len
                }
                _ => scratch.len(),
            };
            match socket.read(&mut scratch[..len_max]) {
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
        if !closed && leads && now >= self.write_at {
            self.write_at = now + LEAD_PAUSE;
            closed = self.crowd.lead.is_some_and(|lead| socket.write_all(&lead()).is_err());
        } else if !closed && !leads && due(self.crowd.sends, self.write_at, now) && !self.all_sent()
        {
            closed = self.write(now);
        }
        if closed {
            self.reset();
            if matches!(self.crowd.again, Again::AtOnce | Again::Answered(_)) {
                self.connect_at = Some(now + REFUSED_PAUSE);
            }
        }
        read
    }

    /// Writes once; returns true if the connection has ended.
    fn write(&mut self, now: Instant) -> bool {
        let Some(socket) = &mut self.socket else { return true };
        let rest = &self.request[self.sent..];
        let part = match self.crowd.sends {
            Pace::Slow(len, pause) => {
                self.write_at = now + pause;
                &rest[..len.min(rest.len())]
            }
            _ => rest,
        };
        match socket.write(part) {
            Ok(len) => self.sent += len,
            Err(error) => return !passes(error.kind()),
        }
        if self.sent == self.request.len() {
            match self.crowd.again {
                Again::AtOnce => self.sent = 0,
                Again::HalfClosed(_) => return socket.shutdown(Shutdown::Write).is_err(),
                _ => {}
            }
        }
        false
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

fn due(pace: Pace, at: Instant, now: Instant) -> bool {
    match pace {
        Pace::Full | Pace::Behind => true,
        Pace::Never => false,
        Pace::Slow(..) => now >= at,
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
    use super::ends;

    #[test]
    fn the_end_of_the_answers_is_seen_across_reads() {
        let mut tail = Vec::new();
        assert!(!ends(&mut tail, b"*240 and so on +PO", b"+PONG\r\n"));
        assert!(!ends(&mut tail, b"NG", b"+PONG\r\n"));
        assert!(ends(&mut tail, b"\r\n", b"+PONG\r\n"));
        assert!(!ends(&mut tail, b"*240", b"+PONG\r\n"));
    }
}
