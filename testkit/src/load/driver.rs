//! The thread of a load: one epoll over all connections.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::conn::{Conn, State};
use super::{Journal, Options, Shared, Wish};

struct Driver<'a> {
    address: SocketAddr,
    options: &'a Options,
    epoll: OwnedFd,
    conns: Vec<Conn>,
    /// Times at which connections without an event have to be checked again.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Pause between two batches of one connection.
    pause: Duration,
}

/// Runs until it is told to stop, or until a reply is wrong.
pub fn run(address: SocketAddr, options: &Options, shared: &Shared) {
    let count = shared.lock().tally.connections.len();
    let load = LOADS.fetch_add(1, Ordering::Relaxed);
    let flags = epoll::CreateFlags::CLOEXEC;
    let (start, seconds) =
        (Instant::now(), options.rate.map(|rate| count as f64 / f64::from(rate)));
    let pause = Duration::from_secs_f64(seconds.unwrap_or(0.0));
    let mut driver = Driver {
        address,
        options,
        epoll: epoll::create(flags).expect("the machine has a descriptor left"),
        conns: (0..count).map(|place| Conn::new(load, place, options)).collect(),
        // Spread over one pause, so that connections do not run in step.
        due: (0..count).map(|n| Reverse((start + pause * n as u32 / count as u32, n))).collect(),
        pause,
    };
    if let Err(wrong) = driver.run(shared) {
        shared.lock().wrong = Some(wrong);
        shared.more.notify_all();
    }
}

impl Driver<'_> {
    fn run(&mut self, shared: &Shared) -> Result<(), String> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut checked = Instant::now();
        loop {
            let mut journal = shared.lock();
            for event in events.drain(..) {
                let event: epoll::Event = event;
                self.handle_ready(event.data.u64() as usize, &mut journal)?;
            }
            let wish = journal.wish;
            match wish {
                Wish::Run => self.start_due(&mut journal),
                Wish::Stop if journal.outstanding == 0 => return Ok(()),
                Wish::Pause | Wish::Stop => {}
            }
            drop(journal);
            shared.more.notify_all();
            if checked.elapsed() > PATIENCE_CHECK {
                checked = Instant::now();
                self.conns.iter().try_for_each(Conn::check_patience)?;
            }
            let timeout = self.timeout(wish);
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&timeout),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("epoll_wait of the load: {error}"),
            }
        }
    }

    fn handle_ready(&mut self, place: usize, journal: &mut Journal) -> Result<(), String> {
        let conn = &mut self.conns[place];
        let before = conn.state();
        conn.handle_ready(self.options, journal)?;
        let pause = match (before, conn.state()) {
            (_, State::Asking | State::Connecting) => return Ok(()),
            // At this moment no process accepts there.
            (State::Connecting, State::Absent) => RETRY,
            (State::Asking, State::Idle) => self.pause,
            (before, now) if before == now => return Ok(()),
            _ => Duration::ZERO,
        };
        self.due.push(Reverse((Instant::now() + pause, place)));
        Ok(())
    }

    /// Lets connections send or connect whose time has come.
    fn start_due(&mut self, journal: &mut Journal) {
        let now = Instant::now();
        while let Some(Reverse((at, place))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            let conn = &mut self.conns[place];
            match conn.state() {
                State::Idle => conn.ask(self.options, journal),
                State::Absent => {
                    let socket = conn.connect(self.address);
                    let socket = socket.unwrap_or_else(|error| panic!("connect: {error}"));
                    let data = epoll::EventData::new_u64(place as u64);
                    epoll::add(&self.epoll, socket, data, BOTH_WAYS).expect("it is a new socket");
                }
                State::Connecting | State::Asking => {}
            }
            if conn.state() == State::Absent {
                self.due.push(Reverse((now + RETRY, place)));
            }
        }
    }

    fn timeout(&self, wish: Wish) -> Timespec {
        let next = self.due.peek().filter(|_| wish == Wish::Run);
        let next = next.map(|Reverse((at, _))| at.duration_since(Instant::now()));
        let wait = next.map_or(TICK, |wait| wait.clamp(Duration::from_micros(50), TICK));
        Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) }
    }
}

/// Number of loads in this process so far; two loads never share a key.
static LOADS: AtomicUsize = AtomicUsize::new(0);
/// Limit on events of one turn.
const EVENTS: usize = 256;
/// Interval of checks for the test's requests, if nothing else happens.
const TICK: Duration = Duration::from_millis(5);
/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(5);
const PATIENCE_CHECK: Duration = Duration::from_secs(1);
const BOTH_WAYS: epoll::EventFlags =
    epoll::EventFlags::IN.union(epoll::EventFlags::OUT).union(epoll::EventFlags::ET);
