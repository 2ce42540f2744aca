//! The loop: sockets and the clock on one side, a [`Mind`] on the other, orders from above.
//!
//! ```text
//!   wait ─▶ orders ─▶ read what is ready ─▶ actions ─▶ write clients ─▶ look, without waiting
//!              ▲                                                │ something    │ nothing
//!              └────────────────────────────────────────────────┘              ▼
//!                                                timers ─▶ end of turn ─▶ write links ─▶ wait
//! ```
//!
//! Links are written only when nothing more is ready: what came in together leaves together, in one
//! segment a server, and segments are what costs. Clients are written at once. New connections come
//! last in each pass, and few at a time: those who are here already are served first. (With the
//! accept mutex they come first, so that the lock is free while everything else is done.)

mod accept;
mod arrive;
mod blocks;
mod conn;
mod connect;
mod ebb;
mod errands;
mod header;
mod mind;
mod orders;
#[cfg(test)]
mod tests;
mod traffic;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use metrics::{Counters, Worker};
use proxy::{ConnId, Side, Time};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use sys::signal::Signals;

use crate::board::Board;
use crate::ipc::installation::AcceptMode;
use accept::{Crowd, Door, Policy};
use blocks::Blocks;
use conn::Conns;
use connect::Connects;
use ebb::Ebb;
use header::Greeters;

pub use accept::{CALLS, Choice, Listener, choose};
pub use connect::{Target, TargetAddress};
pub use errands::{Alone, Errands, Install, Note, Order, Traveller};
pub use mind::Mind;

/// Where a worker stands among the others.
pub struct Place {
    pub board: Board,
    pub slot: usize,
    pub mode: AcceptMode,
    /// What wakes each worker, by slot; they come and go.
    pub pokes: Rc<RefCell<Vec<OwnedFd>>>,
    /// The accept mutex; only that mode needs it.
    pub lock: Option<OwnedFd>,
}

/// The loop and everything it owns.
pub struct Loop<'m> {
    mind: &'m mut dyn Mind,
    errands: &'m mut dyn Errands,
    epoll: OwnedFd,
    conns: Conns,
    blocks: Blocks,
    door: Door,
    greeters: Greeters,
    connects: Connects,
    signals: Signals,
    /// What a worker counts of itself.
    counters: Option<Counters<Worker>>,
    ebb: Ebb,
    start: Instant,
    now: Time,
    /// When the last wait ended.
    woken: Time,
    /// Processor time as it was last counted, and when: microseconds.
    used: (u64, u64),
    used_at: Time,
    /// A signal has come; it is heeded when everything that was ready with it has been read.
    asked_to_leave: bool,
    /// The mind has been told where a client's connection begins and ends.
    located: bool,
    /// The same for an order.
    is_called: bool,
    /// Whether the kernel says when the errands' descriptor can be written to.
    is_blocked: bool,
    /// No more clients are taken; those who are quiet go to other workers.
    retiring: bool,
    /// There is somebody else who ends us if need be.
    is_led: bool,
    /// Clients beyond so many go to other workers, until then.
    sharing: Option<(u32, Time)>,
    /// No more clients are taken; it ends then, whoever is still here.
    ends: Option<Time>,
    shutdown_timeout: Duration,
}

impl<'m> Loop<'m> {
    /// A loop that ends after TERM or INT, when everything asked has been answered or
    /// `shutdown_timeout` has passed.
    pub fn alone(
        mind: &'m mut dyn Mind,
        nobody: &'m mut Alone,
        listeners: Vec<Listener>,
        signals: Signals,
        shutdown_timeout: Duration,
    ) -> std::io::Result<Loop<'m>> {
        let mut looping = Loop::new(mind, nobody, signals, shutdown_timeout)?;
        looping.door.set_listeners(&looping.epoll, listeners);
        Ok(looping)
    }

    /// A loop of one worker of several, with the plan of `install` in its mind already.
    pub fn led(
        mind: &'m mut dyn Mind,
        errands: &'m mut dyn Errands,
        place: Place,
        install: Install,
        signals: Signals,
    ) -> std::io::Result<Loop<'m>> {
        let mut looping = Loop::new(mind, errands, signals, SHUTDOWN_TIMEOUT)?;
        let Place { board, slot, mode, pokes, lock } = place;
        if let Some(own) = pokes.borrow().get(slot) {
            // Edge by edge: each poke is an event, and nobody need read what it left behind.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&looping.epoll, own, token(POKE), flags)?;
        }
        looping.is_led = true;
        looping.counters = Some(board.sheet(slot).counters(0));
        looping.connects.share(board.clone());
        let policy = match (mode, lock) {
            (AcceptMode::Gate, _) => Policy::Gate,
            (AcceptMode::Mutex, Some(lock)) => Policy::Mutex(lock),
            (AcceptMode::Reuseport | AcceptMode::Mutex, _) => Policy::Alone,
        };
        looping.door.share(Crowd { board, slot, pokes }, policy);
        looping.take_up(install);
        looping.errands.installed(looping.mind);
        Ok(looping)
    }

    fn new(
        mind: &'m mut dyn Mind,
        errands: &'m mut dyn Errands,
        signals: Signals,
        shutdown_timeout: Duration,
    ) -> std::io::Result<Loop<'m>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, signals.fd(), token(SIGNALS), epoll::EventFlags::IN)?;
        if let Some(fd) = errands.fd() {
            epoll::add(&epoll, fd, token(ERRANDS), epoll::EventFlags::IN)?;
        }
        Ok(Loop {
            mind,
            errands,
            conns: Conns::default(),
            blocks: Blocks::new(),
            door: Door::new(&epoll)?,
            greeters: Greeters::default(),
            connects: Connects::default(),
            epoll,
            signals,
            counters: None,
            ebb: Ebb::default(),
            start: Instant::now(),
            now: Time(0),
            woken: Time(0),
            used: (0, 0),
            used_at: Time(0),
            asked_to_leave: false,
            located: false,
            is_called: false,
            is_blocked: false,
            retiring: false,
            is_led: false,
            sharing: None,
            ends: None,
            shutdown_timeout,
        })
    }

    /// Runs until it is told to end.
    pub fn run(&mut self) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.run_actions(None);
        while !self.is_over() {
            self.turn(&mut events)?;
        }
        Ok(())
    }

    /// One turn: everything that is ready, then the links.
    fn turn(&mut self, events: &mut Vec<epoll::Event>) -> std::io::Result<()> {
        self.door.before_wait(&self.epoll, self.now);
        let mut timeout = self.timeout();
        for pass in 0..PASSES_MAX {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref())
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.now = Time(self.start.elapsed().as_micros() as u64);
            if pass == 0 {
                self.wake();
            }
            self.heed_standing_orders();
            if !self.pass(events) {
                break;
            }
            timeout = Some(AT_ONCE);
        }
        self.end_turn();
        Ok(())
    }

    /// A wait is over.
    fn wake(&mut self) {
        self.woken = self.now;
        if let Some(crowd) = self.door.crowd() {
            crowd.board.beat(crowd.slot);
        }
    }

    /// Serves what is ready. False: there was nothing to serve.
    fn pass(&mut self, events: &[epoll::Event]) -> bool {
        let mut served = false;
        for event in events {
            self.note(event.data.u64());
        }
        let first = self.door.is_first();
        if first {
            served |= self.accept_waiting();
        }
        for event in events {
            // Before each: what holds may change while this pass is under way, and nothing that is
            // read after that may go the old way.
            self.heed_standing_orders();
            served |= self.dispatch(event.data.u64(), event.flags);
        }
        self.write_side(Side::Client);
        if !first {
            served |= self.accept_waiting();
        }
        served
    }

    /// What is not a connection is only noted: it has its time.
    fn note(&mut self, data: u64) {
        match data {
            SIGNALS => self.asked_to_leave = true,
            ERRANDS => self.is_called = true,
            POKE => self.door.poked(&self.epoll, self.now),
            LISTENER.. => self.door.knock((data - LISTENER) as usize),
            _ => {}
        }
    }

    fn dispatch(&mut self, data: u64, flags: epoll::EventFlags) -> bool {
        match data {
            LISTENER.. => return false,
            GREETER.. => self.hear((data - GREETER) as usize),
            _ => self.ready(ConnId::from_u64(data), flags),
        }
        true
    }

    /// Everything that was ready has been read.
    fn end_turn(&mut self) {
        if self.mind.poll_timeout().is_some_and(|due| due <= self.now) {
            self.mind.handle_timeout(self.now);
        }
        self.give_up_greeters();
        if std::mem::take(&mut self.is_called) {
            self.heed_orders();
        }
        if std::mem::take(&mut self.asked_to_leave) {
            self.heed_signals();
        }
        self.located = true;
        while std::mem::take(&mut self.located) {
            // Whoever has waited for that since goes on now: nothing else would wake us for it.
            self.mind.end_turn(self.now);
            self.run_actions(None);
        }
        self.connect_waiting();
        self.write_side(Side::Client);
        self.write_side(Side::Link);
        // A write that failed may have left answers behind.
        self.write_side(Side::Client);
        self.hand_over();
        if let Some(counters) = &self.counters
            && self.ebb.has_fallen(counters.value(Worker::HeldNow), self.now)
        {
            sys::process::trim_heap();
        }
        self.errands.after_turn(self.mind);
        self.watch_errands();
    }

    /// How long the kernel may let us sleep.
    fn timeout(&mut self) -> Option<Timespec> {
        let now = Time(self.start.elapsed().as_micros() as u64);
        if let Some(counters) = &self.counters {
            counters.add(Worker::BusyTime, now.since(self.woken));
            if now.since(self.used_at) >= USAGE_PAUSE_US {
                let (user, system) = sys::process::times_us();
                counters.add(Worker::UserUs, user.saturating_sub(self.used.0));
                counters.add(Worker::SystemUs, system.saturating_sub(self.used.1));
                (self.used, self.used_at) = ((user, system), now);
            }
        }
        if self.door.is_knocked() || self.mind.wants_turn() {
            return Some(AT_ONCE);
        }
        let due = [
            self.mind.poll_timeout(),
            self.door.due(now),
            self.greeters.due(),
            self.connects.due(),
            self.ends,
        ];
        let due = due.into_iter().flatten().min()?;
        // Rounded up: a timer that comes a little early would be looked at twice.
        let wait = due.since(now) + 1;
        let nanoseconds = (wait % 1_000_000 * 1_000) as _;
        Some(Timespec { tv_sec: (wait / 1_000_000) as _, tv_nsec: nanoseconds })
    }

    fn is_over(&self) -> bool {
        match self.ends {
            Some(ends) => self.mind.is_drained() || self.now >= ends,
            None => self.retiring && self.door.is_empty(),
        }
    }

    fn is_leaving(&self) -> bool {
        self.retiring || self.ends.is_some()
    }
}

fn token(data: u64) -> epoll::EventData {
    epoll::EventData::new_u64(data)
}

/// Tokens from here up are not connections: ids use half of all generations only. First those whose
/// PROXY header has not come …
const GREETER: u64 = 1 << 63;
/// … then listeners, then what is there once.
const LISTENER: u64 = GREETER + (1 << 32);
const POKE: u64 = u64::MAX - 2;
const ERRANDS: u64 = u64::MAX - 1;
const SIGNALS: u64 = u64::MAX;
/// How often the processor time is counted, at most.
const USAGE_PAUSE_US: u64 = 500_000;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 512;
/// Looks at the kernel before links are written, at most: nobody waits for ever for quiet.
const PASSES_MAX: usize = 8;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long clients of a worker may wait for their last answers after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
