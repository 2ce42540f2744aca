//! A forwarder between a proxy and a server. It delays bytes without limiting them, as a distant
//! server does; or it limits bytes a second, as a server does that has all the work it can do.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::load::now_ns;

/// A running forwarder; it ends with the value.
pub struct Relay {
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens on a free port and forwards to `server`, with `delay` in each direction.
    pub fn delaying(server: u16, delay: Duration) -> Result<Relay, String> {
        Relay::start(server, delay, None)
    }

    /// The same with a limit on the bytes a second in each direction, and without a delay. More is
    /// not read.
    pub fn limiting(server: u16, bytes_per_s: u64) -> Result<Relay, String> {
        Relay::start(server, Duration::ZERO, Some(bytes_per_s))
    }

    fn start(server: u16, delay: Duration, rate: Option<u64>) -> Result<Relay, String> {
        let fault = |error: std::io::Error| format!("cannot start a relay: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fault)?;
        listener.set_nonblocking(true).map_err(fault)?;
        let port = listener.local_addr().map_err(fault)?.port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let forward = move || {
            let mut pairs = Vec::new();
            let mut allowed = Allowed { rate, at_ns: now_ns(), bytes: [usize::MAX; 2] };
            while !stopped.load(Ordering::Relaxed) {
                match rate {
                    Some(_) => std::thread::sleep(LIMITED_PAUSE),
                    None => wait(&listener, &pairs),
                }
                allowed.renew();
                turn(&listener, &mut pairs, server, delay.as_nanos() as u64, &mut allowed);
            }
        };
        Ok(Relay { port, stop, thread: Some(std::thread::spawn(forward)) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The longest wait, and so the time until a relay notices that it must end.
const WAIT_MAX_NS: u64 = 20_000_000;

/// A limited relay works this often, and makes up for at most so long.
const LIMITED_PAUSE: Duration = Duration::from_micros(250);
const LATE_MAX_NS: u64 = 5_000_000;

/// The bytes that may be read now in each direction, over all connections.
struct Allowed {
    rate: Option<u64>,
    at_ns: u64,
    bytes: [usize; 2],
}

impl Allowed {
    fn renew(&mut self) {
        let Some(rate) = self.rate else { return };
        let now = now_ns();
        let of = |ns: u64| (rate as u128 * u128::from(ns) / 1_000_000_000) as usize;
        let more = of(now - self.at_ns);
        self.bytes = self.bytes.map(|bytes| bytes.saturating_add(more).min(of(LATE_MAX_NS)));
        self.at_ns = now;
    }

    fn take(&mut self, way: usize, len: usize) {
        if self.rate.is_some() {
            self.bytes[way] -= len;
        }
    }
}

/// Accepts, reads, and writes what is due.
fn turn(
    listener: &TcpListener,
    pairs: &mut Vec<Pair>,
    server: u16,
    delay_ns: u64,
    allowed: &mut Allowed,
) {
    if let Ok((client, _)) = listener.accept()
        && let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server))
    {
        let ready = [&client, &far].into_iter().all(|socket| {
            socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).is_ok()
        });
        if ready {
            pairs.push(Pair { sockets: [client, far], ways: Default::default() });
        }
    }
    pairs.retain_mut(|pair| pair.forward(delay_ns, allowed).is_ok());
}

fn wait(listener: &TcpListener, pairs: &[Pair]) {
    let now = now_ns();
    let due = pairs.iter().flat_map(|pair| &pair.ways).filter_map(|way| way.due_ns(now)).min();
    let pause = due.map_or(WAIT_MAX_NS, |due| due.saturating_sub(now).min(WAIT_MAX_NS));
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    for Pair { sockets, ways } in pairs {
        let [there, back] = ways;
        for (socket, from, to) in [(&sockets[0], there, back), (&sockets[1], back, there)] {
            let mut interest = PollFlags::empty();
            interest.set(PollFlags::IN, !from.is_ended);
            interest.set(PollFlags::OUT, to.is_blocked);
            polled.push(PollFd::new(socket, interest));
        }
    }
    let pause = Timespec { tv_sec: 0, tv_nsec: pause as _ };
    let _ = rustix::event::poll(&mut polled, Some(&pause));
}

/// A connection of the proxy and its connection to the server.
struct Pair {
    sockets: [TcpStream; 2],
    /// From the proxy to the server, and back.
    ways: [Way; 2],
}

/// The bytes that travel in one direction.
#[derive(Default)]
struct Way {
    travelling: VecDeque<(u64, Vec<u8>)>,
    /// The socket at its end takes no bytes.
    is_blocked: bool,
    /// The socket at its start will send no more.
    is_ended: bool,
}

impl Pair {
    /// Fails when either side has closed and what it sent is delivered.
    fn forward(&mut self, delay_ns: u64, allowed: &mut Allowed) -> std::io::Result<()> {
        let mut scratch = [0; 64 * 1024];
        for (from, to) in [(0, 1), (1, 0)] {
            let way = &mut self.ways[from];
            let room = scratch.len().min(allowed.bytes[from]);
            match self.sockets[from].read(&mut scratch[..room]) {
                Ok(0) => way.is_ended |= room > 0,
                Ok(len) => {
                    allowed.take(from, len);
                    way.travelling.push_back((now_ns() + delay_ns, scratch[..len].to_vec()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            way.deliver(&mut self.sockets[to])?;
            if way.is_ended && way.travelling.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl Way {
    /// Returns when it has bytes to write; a blocked way waits for its socket.
    fn due_ns(&self, now: u64) -> Option<u64> {
        let (due, _) = self.travelling.front().filter(|_| !self.is_blocked)?;
        Some((*due).max(now))
    }

    fn deliver(&mut self, to: &mut TcpStream) -> std::io::Result<()> {
        self.is_blocked = false;
        while let Some((due, bytes)) = self.travelling.front_mut() {
            if *due > now_ns() {
                break;
            }
            match to.write(bytes) {
                Ok(len) => drop(bytes.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            if bytes.is_empty() {
                self.travelling.pop_front();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_makes_up_for_a_few_milliseconds_only() {
        let at_ns = now_ns() - 1_000_000_000;
        let mut allowed = Allowed { rate: Some(1_000_000), at_ns, bytes: [0, 0] };
        allowed.renew();
        assert_eq!(allowed.bytes, [5_000, 5_000]);
        allowed.take(1, 4_000);
        assert_eq!(allowed.bytes, [5_000, 1_000]);
    }

    #[test]
    fn bytes_arrive_whole_and_late_in_both_directions() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let delay = Duration::from_millis(30);
        let relay = Relay::delaying(server.local_addr().unwrap().port(), delay).unwrap();
        let echo = std::thread::spawn(move || {
            let (mut socket, _) = server.accept().unwrap();
            let mut bytes = vec![0; 300_000];
            socket.read_exact(&mut bytes).unwrap();
            socket.write_all(&bytes).unwrap();
        });
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, relay.port)).unwrap();
        let sent: Vec<u8> = (0..300_000).map(|at| (at % 251) as u8).collect();
        let begin = now_ns();
        socket.write_all(&sent).unwrap();
        let mut received = vec![0; sent.len()];
        socket.read_exact(&mut received).unwrap();
        assert_eq!(received, sent);
        assert!(now_ns() - begin >= 60_000_000);
        echo.join().unwrap();
    }
}
