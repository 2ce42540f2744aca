//! The loop: wait, read replies, send new requests.
//!
//! ```text
//!   run_until(t) : wait --> receive --> send again (closed loop)
//!                   ^  \--> a request is due --> send, or wait for its connection (open loop)
//!   drain()      : the same without new requests, until all are answered
//! ```

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    self, ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
};

use super::connection::{Connection, Received};
use super::reply::{Asked, Context, Kind};
use super::{Arrival, Corpus, Mix, Random, Tally, Workload, Writing};

pub struct Generator<'a> {
    work: &'a Workload,
    corpus: &'a Corpus,
    /// The addresses over which connections are distributed.
    to: &'a [SocketAddrV4],
    epoll: OwnedFd,
    /// Fires when the next request is due (open loop), because epoll's own timeout counts
    /// milliseconds.
    timer: OwnedFd,
    timer_at_ns: u64,
    connections: Vec<Option<Connection>>,
    /// Indexes of closed connections, and due times of short connections that found no free index
    /// (open loop).
    free: Vec<usize>,
    late: VecDeque<u64>,
    random: Random,
    scratch: Vec<u8>,
    next_due_ns: u64,
    /// New requests are sent.
    asking: bool,
    /// Connections opened so far.
    opened: u32,
    /// The opaque of the next request.
    opaque: u32,
    pub tally: Tally,
}

/// The epoll datum of the timer.
const TIMER: u64 = u64::MAX;
const SCRATCH_LEN: usize = 256 * 1024;
const EVENTS_MAX: usize = 512;
/// The reason why an index in use has a connection.
const OPEN: &str = "only open connections are asked, and their events handled";
/// A request unanswered for this long is lost.
const DRAIN_MAX_NS: u64 = 10_000_000_000;
/// Opaques start again after this one; those of one request do not wrap.
const OPAQUE_MAX: u32 = u32::MAX >> 1;
/// Each short connection leaves a port in TIME_WAIT, so they use this many source addresses in
/// turn.
const SOURCE_HOSTS: u32 = 100;

pub fn now_ns() -> u64 {
    let now = time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl<'a> Generator<'a> {
    /// Opens the connections and sends the first requests on each.
    pub fn start(
        work: &'a Workload,
        corpus: &'a Corpus,
        to: &'a [SocketAddrV4],
        seed: u64,
    ) -> Result<Generator<'a>, String> {
        let os = |errno: Errno| format!("cannot start the generator: {errno}");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?;
        let timer = time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )
        .map_err(os)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).map_err(os)?;
        let mut generator = Generator {
            work,
            corpus,
            to,
            epoll,
            timer,
            timer_at_ns: 0,
            connections: Vec::new(),
            free: Vec::new(),
            late: VecDeque::new(),
            random: Random::new(seed),
            scratch: vec![0; SCRATCH_LEN],
            next_due_ns: now_ns(),
            asking: true,
            opened: 0,
            opaque: 1,
            tally: Tally::new(),
        };
        let is_open = matches!(work.arrival, Arrival::Poisson(_));
        if work.short && is_open {
            generator.free = (0..work.connections).rev().collect();
            generator.connections.resize_with(work.connections, || None);
            return Ok(generator);
        }
        for index in 0..work.connections {
            let connection = generator.open(index)?;
            generator.connections.push(Some(connection));
        }
        if !is_open {
            for index in 0..work.connections {
                generator.ask(index, work.depth, now_ns())?;
            }
        }
        Ok(generator)
    }

    /// Keeps up the load until `deadline_ns`.
    pub fn run_until(&mut self, deadline_ns: u64) -> Result<(), String> {
        loop {
            let now = now_ns();
            if now >= deadline_ns {
                return Ok(());
            }
            self.ask_what_is_due(now)?;
            self.turn(deadline_ns - now)?;
        }
    }

    /// Stops new requests and waits until all outstanding ones are answered.
    pub fn drain(&mut self) -> Result<(), String> {
        self.asking = false;
        let deadline_ns = now_ns() + DRAIN_MAX_NS;
        loop {
            let unanswered: usize =
                self.connections.iter().flatten().map(|each| each.asked.len()).sum();
            if unanswered == 0 {
                return Ok(());
            }
            if now_ns() > deadline_ns {
                return Err(format!("{unanswered} requests were never answered"));
            }
            self.turn(100_000_000)?;
        }
    }

    /// Returns the number of due requests that found no room on their connection (open loop).
    pub fn waiting(&self) -> usize {
        self.late.len()
            + self.connections.iter().flatten().map(|each| each.waiting.len()).sum::<usize>()
    }

    fn turn(&mut self, timeout_ns: u64) -> Result<(), String> {
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        let mut room = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        let events = match epoll::wait(&self.epoll, &mut room[..], Some(&timeout)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(format!("epoll_wait: {errno}")),
        };
        for &mut Event { flags, data } in events {
            if data.u64() == TIMER {
                continue;
            }
            let index = data.u64() as usize;
            if self.connections[index].is_none() {
                // It was closed after the kernel reported the event.
                continue;
            }
            if flags.contains(EventFlags::OUT) {
                self.transmit(index)?;
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                self.receive(index)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> Result<(), String> {
        let mut context = Context {
            corpus: self.corpus,
            tally: &mut self.tally,
            wire: self.work.wire,
            verify: self.work.verify,
            now_ns: 0,
        };
        let connection = self.connections[index].as_mut().expect(OPEN);
        let Received::Answered(count) =
            connection.receive(&mut self.scratch, &mut context, now_ns)?
        else {
            return Ok(());
        };
        let now = context.now_ns;
        if count == 0 || !self.asking {
            if count > 0 && self.work.short {
                self.connections[index] = None;
            }
            return Ok(());
        }
        match self.work.arrival {
            Arrival::Poisson(_) if self.work.short => self.leave(index, now),
            Arrival::Poisson(_) => self.ask_waiting(index, now),
            Arrival::Batch if !connection.asked.is_empty() => Ok(()),
            Arrival::Batch => self.ask(index, self.work.depth, now),
            Arrival::Closed if self.work.short => self.reopen(index),
            Arrival::Closed => self.ask(index, count, now),
        }
    }

    /// Appends `count` new requests and sends them in one write.
    fn ask(&mut self, index: usize, count: usize, now: u64) -> Result<(), String> {
        for _ in 0..count {
            self.push(index, now, now);
        }
        self.transmit(index)
    }

    fn ask_waiting(&mut self, index: usize, now: u64) -> Result<(), String> {
        while self.at(index).asked.len() < self.work.depth {
            let Some(due) = self.at(index).waiting.pop_front() else { break };
            self.ask_one(index, due, now)?;
        }
        Ok(())
    }

    fn ask_what_is_due(&mut self, now: u64) -> Result<(), String> {
        let Arrival::Poisson(rate) = self.work.arrival else { return Ok(()) };
        while self.next_due_ns <= now {
            let due = self.next_due_ns;
            self.next_due_ns += self.random.poisson_gap_ns(rate);
            if self.work.short {
                self.late.push_back(due);
                self.come(now)?;
                continue;
            }
            let index = self.random.below(self.work.connections as u32) as usize;
            self.at(index).waiting.push_back(due);
            self.ask_waiting(index, now)?;
        }
        if self.timer_at_ns != self.next_due_ns {
            self.timer_at_ns = self.next_due_ns;
            self.set_timer()?;
        }
        Ok(())
    }

    fn set_timer(&self) -> Result<(), String> {
        let at = Timespec {
            tv_sec: (self.timer_at_ns / 1_000_000_000) as i64,
            tv_nsec: (self.timer_at_ns % 1_000_000_000) as i64,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)
            .map(drop)
            .map_err(|errno| format!("timerfd_settime: {errno}"))
    }

    /// Sends one request in its own write, or in two if clients split requests.
    fn ask_one(&mut self, index: usize, due: u64, now: u64) -> Result<(), String> {
        let cut = self.push(index, due, now);
        let blocked = self.at(index).blocked;
        if self.work.writing == Writing::Split && !blocked {
            self.at(index).transmit_to(cut)?;
        }
        self.transmit(index)
    }

    /// Appends one request; returns the end of its first piece if it is sent split.
    #[inline]
    fn push(&mut self, index: usize, due_ns: u64, sent_ns: u64) -> usize {
        let connection = self.connections[index].as_mut().expect(OPEN);
        let set = match self.work.mix {
            Mix::Gets | Mix::Pings | Mix::Evals => false,
            Mix::Sets => true,
            Mix::SetEvery(every) => self.random.below(every) == 0,
        };
        let (wire, corpus, out) = (self.work.wire, self.corpus, &mut connection.out);
        let opaque = self.opaque;
        let (kind, cut) = if set {
            let key = self.random.below(self.work.key_count);
            (Kind::Set, wire.push_set(corpus, out, key, opaque))
        } else if self.work.mix == Mix::Pings {
            (Kind::Ping, wire.push_ping(out))
        } else {
            let keys = self.work.keys_per_get;
            let first = self.random.below(self.work.key_count - keys + 1);
            let run = first..first + keys;
            let cut = match self.work.mix {
                Mix::Evals => wire.push_eval(corpus, out, first),
                _ => wire.push_get(corpus, out, run.clone(), opaque),
            };
            (Kind::Get(run), cut)
        };
        self.opaque = opaque.wrapping_add(wire.opaques(self.work.keys_per_get)) & OPAQUE_MAX;
        connection.asked.push_back(Asked { kind, opaque, due_ns, sent_ns });
        cut
    }

    /// Sends a connection's output; the rest is sent on EPOLLOUT.
    #[inline]
    fn transmit(&mut self, index: usize) -> Result<(), String> {
        let connection = self.connections[index].as_mut().expect(OPEN);
        let blocked = !connection.transmit()?;
        if blocked != connection.blocked {
            connection.blocked = blocked;
            let extra = if blocked { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &connection.socket, data, EventFlags::IN | extra)
                .map_err(|errno| format!("epoll_ctl: {errno}"))?;
        }
        Ok(())
    }

    fn open(&mut self, index: usize) -> Result<Connection, String> {
        let host = 2 + self.opened % SOURCE_HOSTS;
        let from = self.work.short.then(|| Ipv4Addr::new(127, 0, 0, host as u8));
        self.opened += 1;
        let nodelay = self.work.writing == Writing::Whole;
        let connection = Connection::open(self.to[index % self.to.len()], from, nodelay)?;
        let data = EventData::new_u64(index as u64);
        epoll::add(&self.epoll, &connection.socket, data, EventFlags::IN)
            .map_err(|errno| format!("epoll_ctl: {errno}"))?;
        Ok(connection)
    }

    /// Closes a short connection and opens the next in its place. Its time counts from here.
    fn reopen(&mut self, index: usize) -> Result<(), String> {
        let now = now_ns();
        self.connections[index] = Some(self.open(index)?);
        self.ask(index, 1, now)
    }

    /// Opens a short connection for each due time, as long as there are free indexes.
    fn come(&mut self, now: u64) -> Result<(), String> {
        while let Some(index) = self.free.pop() {
            let Some(due) = self.late.pop_front() else {
                self.free.push(index);
                break;
            };
            self.connections[index] = Some(self.open(index)?);
            self.ask_one(index, due, now)?;
        }
        Ok(())
    }

    /// Closes a short connection that has received its answer.
    fn leave(&mut self, index: usize, now: u64) -> Result<(), String> {
        self.connections[index] = None;
        self.free.push(index);
        self.come(now)
    }

    fn at(&mut self, index: usize) -> &mut Connection {
        self.connections[index].as_mut().expect(OPEN)
    }
}
