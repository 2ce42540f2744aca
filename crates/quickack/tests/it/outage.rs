//! A server that is away for a second: the time from the failure to the first answer, compared with
//! a client that connects to the server directly. The times are printed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::{DEADLINE, Family, Memcached, Process, Quickack, Redis};

use super::QUICKACK;

const AWAY: Duration = Duration::from_secs(1);
/// The permitted delay relative to the direct client, as the median of some rounds. With probe
/// intervals that grow with the time since the failure it would be 0.25 s and more.
const LATE: Duration = Duration::from_millis(150);
/// The bar of the long test: a tenth of a second after the server's return.
const BAR: Duration = Duration::from_millis(1_100);
/// On a busy machine the measurement is repeated.
const TRIES: usize = 6;

/// One of the two kinds of servers.
trait Back {
    const PROTOCOL: &'static str;
    const REQUEST: &'static [u8];
    /// The start of an error of the proxy.
    const ERROR: &'static [u8];
    fn start(address: Option<SocketAddr>) -> Option<Self>
    where
        Self: Sized;
    fn address(&self) -> SocketAddr;
    fn process(&mut self) -> &mut Process;
}

impl Back for Redis {
    const PROTOCOL: &'static str = "redis";
    const REQUEST: &'static [u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    const ERROR: &'static [u8] = b"-";

    fn start(address: Option<SocketAddr>) -> Option<Redis> {
        match address {
            Some(address) => Redis::start_on(Family::Redis70, address, &[]),
            None => Some(Redis::start(Family::Redis70)),
        }
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Back for Memcached {
    const PROTOCOL: &'static str = "memcached";
    const REQUEST: &'static [u8] = b"get k\r\n";
    const ERROR: &'static [u8] = b"SERVER_ERROR";

    fn start(address: Option<SocketAddr>) -> Option<Memcached> {
        match address {
            Some(address) => Memcached::start_on(address),
            None => Some(Memcached::start()),
        }
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// A client that repeats its request until it is answered, on a new connection after a loss.
struct Asker {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Asker {
    fn new(address: SocketAddr) -> Asker {
        Asker { address, stream: None }
    }

    fn is_answered<B: Back>(&mut self) -> bool {
        let asked = self.ask(B::REQUEST);
        if asked.is_none() {
            self.stream = None;
        }
        asked.is_some_and(|reply| !reply.starts_with(B::ERROR))
    }

    fn ask(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address).ok()?;
            stream.set_read_timeout(Some(DEADLINE)).ok()?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut()?;
        stream.write_all(request).ok()?;
        let mut reply = vec![0; 4096];
        let len = stream.read(&mut reply).ok().filter(|len| *len > 0)?;
        reply.truncate(len);
        Some(reply)
    }

    /// Returns the time from `start` to the first answer.
    fn until_answered<B: Back>(&mut self, start: Instant) -> Duration {
        while !self.is_answered::<B>() {
            assert!(start.elapsed() < DEADLINE, "it has not come back");
            // Not a wait for a fact: the servers need the two cores as well.
            thread::sleep(Duration::from_millis(1));
        }
        start.elapsed()
    }
}

/// The way in which a server stops and returns.
#[derive(Clone, Copy, Debug)]
enum Way {
    Killed,
    Stopped,
}

fn check<B: Back + Send>(way: Way) {
    let is_soon = |_| {
        let (ours, direct) = measure::<B>(way, 3);
        ours < direct + LATE
    };
    assert!((0..TRIES).any(is_soon), "the first answer comes late, {TRIES} times");
}

fn soak<B: Back + Send>(way: Way) {
    let (ours, direct) = measure::<B>(way, 20);
    assert!(ours <= BAR, "the first answer comes after {ours:?}, directly {direct:?}");
}

/// Returns the time of the first answer, through the proxy and directly. All rounds use one proxy,
/// so that a pause that is not reset after a recovery is also detected.
fn measure<B: Back + Send>(way: Way, rounds: usize) -> (Duration, Duration) {
    let mut back = B::start(None).expect("a port is found");
    let address = back.address();
    let text = format!(
        "alpha:\n  listen: 127.0.0.1:0\n  protocol: {}\n  timeout: 250\n  servers:\n   - \
         {address}:1 s1\n",
        B::PROTOCOL
    );
    let quickack = Quickack::start(QUICKACK, &text);
    let (mut ours, mut direct) = (Asker::new(quickack.address()), Asker::new(address));
    let (mut our_times, mut direct_times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.until_answered::<B>(Instant::now());
        direct.until_answered::<B>(Instant::now());
        let start = Instant::now();
        match way {
            Way::Killed => {
                back.process().signal(Signal::KILL);
                back.process().wait_for_end();
            }
            Way::Stopped => back.process().freeze(),
        }
        let (one, other);
        (one, other, back) = thread::scope(|scope| {
            let ours = scope.spawn(|| ours.until_answered::<B>(start));
            let direct = scope.spawn(|| direct.until_answered::<B>(start));
            thread::sleep(AWAY.saturating_sub(start.elapsed()));
            match way {
                Way::Killed => back = B::start(Some(address)).expect("its port is still free"),
                Way::Stopped => back.process().thaw(),
            }
            (ours.join().expect("we answer"), direct.join().expect("it answers"), back)
        });
        our_times.push(one);
        direct_times.push(other);
    }
    let (ours, direct) = (median(&mut our_times), median(&mut direct_times));
    println!(
        "{} {way:?} for {AWAY:?}: first answer after {ours:?} (direct {direct:?}), median of \
         {rounds}; {our_times:?}",
        B::PROTOCOL
    );
    (ours, direct)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_redis_that_is_away_for_a_second_is_asked_as_soon_as_it_is_back() {
    check::<Redis>(Way::Killed);
}

#[test]
fn a_redis_that_is_stopped_for_a_second_is_asked_as_soon_as_it_goes_on() {
    check::<Redis>(Way::Stopped);
}

#[test]
fn a_memcached_that_is_away_for_a_second_is_asked_as_soon_as_it_is_back() {
    check::<Memcached>(Way::Killed);
}

#[test]
fn a_memcached_that_is_stopped_for_a_second_is_asked_as_soon_as_it_goes_on() {
    check::<Memcached>(Way::Stopped);
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn soak_the_first_answer_after_a_second_without_redis_or_memcached() {
    soak::<Redis>(Way::Killed);
    soak::<Redis>(Way::Stopped);
    soak::<Memcached>(Way::Killed);
    soak::<Memcached>(Way::Stopped);
}
