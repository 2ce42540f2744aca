//! The event loop: sockets and the clock on one side, a [`Service`] on the other, and commands that
//! come over [`Control`].
//!
//! ```text
//!   wait ─▶ commands ─▶ read what is ready ─▶ actions ─▶ write clients ─▶ look, without waiting
//!               ▲                                                 │ something    │ nothing
//!               └─────────────────────────────────────────────────┘              ▼
//!                                                 timers ─▶ end of turn ─▶ write links ─▶ wait
//! ```
//!
//! Links are written only when nothing more is ready: what came in together leaves together, in one
//! segment a server, and segments are what costs. Clients are written at once. New connections come
//! last in each pass, and few at a time: those who are here already are served first. (With the
//! accept mutex they come first, so that the lock is free while everything else is done.)

mod accept;
mod arrive;
mod commands;
mod conn;
mod connect;
mod control;
mod endings;
mod header;
mod heap_trim;
mod in_pieces;
mod inquire;
mod query;
mod refused;
mod service;
mod sessions;
#[cfg(test)]
mod tests;
mod traffic;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use metrics::{Counters, SlowLog, WorkerCounter, WorkerMetrics};
use proxy::{BlockPool, ConnId, Side, Time};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use sys::clock::monotonic_us;
use sys::signal::Signals;

use crate::config::AcceptMode;
use crate::scoreboard::Scoreboard;
use accept::{Acceptor, Peers, Policy};
use conn::{Conn, Conns};
use connect::Connects;
use endings::Endings;
use header::HeaderReaders;
use heap_trim::HeapTrim;
use in_pieces::InPieces;
use inquire::Inquiries;
use query::Queries;
use refused::RefusedClients;

pub use accept::{CALLS, Listener, choose};
pub use connect::{Target, TargetAddress};
pub use control::{Command, Control, Install, Leaver, LoopEvent, NoControl, Rows};
pub use refused::most as refused_max;
pub use service::Service;
pub use sessions::Sessions;

/// The things that a worker shares with the others, and its own slot.
pub struct Shared {
    pub scoreboard: Scoreboard,
    pub slot: usize,
    pub mode: AcceptMode,
    /// The wakeup of each worker, by slot; workers come and go.
    pub wakeups: Rc<RefCell<Vec<OwnedFd>>>,
    /// The accept mutex; only that mode needs it.
    pub lock: Option<OwnedFd>,
}

/// The loop and everything it owns.
pub struct Loop<'m> {
    service: &'m mut dyn Service,
    control: &'m mut dyn Control,
    epoll: OwnedFd,
    conns: Conns,
    /// The one whose loss the service is being told.
    gone: Option<Conn>,
    blocks: BlockPool,
    acceptor: Acceptor,
    header_readers: HeaderReaders,
    refused: RefusedClients,
    endings: Endings,
    connects: Connects,
    signals: Signals,
    /// The counters that a worker keeps of itself.
    counters: Option<Counters<WorkerCounter>>,
    slow_log: Option<SlowLog>,
    /// Of a worker; what MONITOR shows goes through them.
    metrics: Option<WorkerMetrics>,
    heap_trim: HeapTrim,
    queries: Queries,
    in_pieces: InPieces,
    /// Blocks that reads have filled in this turn.
    full_reads: u32,
    /// The moment of the machine's clock at which `Time` is zero.
    origin_us: u64,
    now: Time,
    /// When the last wait ended.
    woken: Time,
    /// Processor time as it was last counted, and when.
    user_us: u64,
    system_us: u64,
    cpu_read_at: Time,
    /// A signal has come; it is handled when everything that was ready with it has been read.
    signal_ready: bool,
    /// The service has been told where a client's connection begins and ends.
    has_new_endpoints: bool,
    /// What clients ask about clients.
    inquiries: Inquiries,
    /// The same for the control channel.
    control_ready: bool,
    /// Whether the kernel says when the control channel can be written to.
    watches_control_writes: bool,
    /// No more clients are taken; those who are quiet go to other workers.
    retiring: bool,
    /// The master controls this process, and ends it if need be.
    has_master: bool,
    sharing: Option<Sharing>,
    /// No more clients are taken; it ends then, whoever is still here.
    drain_deadline: Option<Time>,
    shutdown_timeout: Duration,
}

/// Clients go to other workers until `keep` are left, or the time for it is over.
#[derive(Clone, Copy)]
struct Sharing {
    keep: u32,
    until: Time,
}

impl<'m> Loop<'m> {
    /// A loop that ends after TERM or INT, when everything asked has been answered or
    /// `shutdown_timeout` has passed.
    pub fn uncontrolled(
        service: &'m mut dyn Service,
        control: &'m mut dyn Control,
        listeners: Vec<Listener>,
        signals: Signals,
        shutdown_timeout: Duration,
    ) -> std::io::Result<Loop<'m>> {
        let origin_us = monotonic_us();
        let mut looping = Loop::new(service, control, signals, shutdown_timeout, origin_us)?;
        looping.acceptor.set_listeners(&looping.epoll, listeners);
        Ok(looping)
    }

    /// A loop of one worker of several, whose service has the plan of `install` already. Its time
    /// is the machine's, so that all workers mean the same by a moment.
    pub fn controlled(
        service: &'m mut dyn Service,
        control: &'m mut dyn Control,
        shared: Shared,
        install: Install,
        signals: Signals,
    ) -> std::io::Result<Loop<'m>> {
        let mut looping = Loop::new(service, control, signals, SHUTDOWN_TIMEOUT, 0)?;
        let Shared { scoreboard, slot, mode, wakeups, lock } = shared;
        if let Some(own) = wakeups.borrow().get(slot) {
            // Edge-triggered: each wakeup is an event, and nobody need read what it left behind.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&looping.epoll, own, token(WAKEUP_TOKEN), flags)?;
        }
        looping.has_master = true;
        looping.counters = Some(scoreboard.metrics(slot).counters(0));
        looping.slow_log = Some(scoreboard.metrics(slot).slow_log());
        looping.metrics = Some(scoreboard.metrics(slot));
        looping.connects.share(scoreboard.clone());
        let policy = match (mode, lock) {
            (AcceptMode::Gate, _) => Policy::Gate,
            (AcceptMode::Mutex, Some(lock)) => Policy::Mutex(lock),
            (AcceptMode::Reuseport | AcceptMode::Mutex, _) => Policy::Uncoordinated,
        };
        looping.acceptor.share(Peers { scoreboard, slot, wakeups }, policy);
        looping.apply_install(install);
        looping.control.installed(looping.service);
        Ok(looping)
    }

    fn new(
        service: &'m mut dyn Service,
        control: &'m mut dyn Control,
        signals: Signals,
        shutdown_timeout: Duration,
        origin_us: u64,
    ) -> std::io::Result<Loop<'m>> {
        let now = Time(monotonic_us() - origin_us);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, signals.fd(), token(SIGNALS_TOKEN), epoll::EventFlags::IN)?;
        if let Some(fd) = control.fd() {
            epoll::add(&epoll, fd, token(CONTROL_TOKEN), epoll::EventFlags::IN)?;
        }
        Ok(Loop {
            service,
            control,
            conns: Conns::default(),
            gone: None,
            blocks: BlockPool::default(),
            acceptor: Acceptor::new(&epoll)?,
            header_readers: HeaderReaders::default(),
            refused: RefusedClients::new(refused_max(sys::process::descriptors_max())),
            endings: Endings::default(),
            connects: Connects::default(),
            epoll,
            signals,
            counters: None,
            slow_log: None,
            metrics: None,
            heap_trim: HeapTrim::new(),
            queries: Queries::default(),
            in_pieces: InPieces::default(),
            full_reads: 0,
            origin_us,
            now,
            woken: now,
            user_us: 0,
            system_us: 0,
            cpu_read_at: now,
            signal_ready: false,
            has_new_endpoints: false,
            inquiries: Inquiries::default(),
            control_ready: false,
            watches_control_writes: false,
            retiring: false,
            has_master: false,
            sharing: None,
            drain_deadline: None,
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
        self.tell_cut_off();
        Ok(())
    }

    /// The time is over, and clients are left that have asked for something.
    fn tell_cut_off(&mut self) {
        let (clients, half_asked) = self.service.unfinished();
        let headers = self.header_readers.len();
        let (clients, half_asked) = (clients + headers, half_asked + headers);
        if clients > 0 {
            if let Some(counters) = &self.counters {
                counters.add(WorkerCounter::ClientsUnfinished, clients as u64);
            }
            self.control.log_loop_event(LoopEvent::CutOff { clients, half_asked });
        }
    }

    /// One turn: everything that is ready, then the links.
    fn turn(&mut self, events: &mut Vec<epoll::Event>) -> std::io::Result<()> {
        self.acceptor.before_wait(&self.epoll, self.now);
        let mut timeout = self.timeout();
        self.full_reads = 0;
        for pass in 0..PASSES_MAX {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref())
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if pass == 0 {
                self.now = self.time();
                self.after_wait();
            }
            self.apply_changes();
            if !self.pass(events) || self.full_reads >= traffic::FULL_READS_MAX {
                break;
            }
            timeout = Some(AT_ONCE);
        }
        self.end_turn();
        Ok(())
    }

    /// A wait is over.
    fn after_wait(&mut self) {
        self.woken = self.now;
        if let Some(peers) = self.acceptor.peers() {
            peers.scoreboard.beat(peers.slot, self.now.0);
        }
    }

    /// Serves what is ready. False: there was nothing to serve.
    fn pass(&mut self, events: &[epoll::Event]) -> bool {
        let mut served = false;
        for event in events {
            self.note_event(event.data.u64());
        }
        let first = self.acceptor.is_first();
        if first {
            served |= self.accept_waiting();
        }
        for event in events {
            // Before each: what holds may change while this pass is under way, and nothing that is
            // read after that may go the old way.
            self.apply_changes();
            served |= self.dispatch(event.data.u64(), event.flags);
        }
        if served {
            // So the work of this pass is part of the times of what is written now. It is the time
            // of the next pass as well, which begins at once.
            self.now = self.time();
        }
        self.write_side(Side::Client);
        if !first {
            served |= self.accept_waiting();
        }
        served
    }

    /// Events of other sources than connections are only noted: they are handled in their time.
    fn note_event(&mut self, data: u64) {
        match data {
            SIGNALS_TOKEN => self.signal_ready = true,
            CONTROL_TOKEN => self.control_ready = true,
            WAKEUP_TOKEN => self.acceptor.look(&self.epoll, self.now),
            LISTENER_TOKEN.. => self.acceptor.set_ready((data - LISTENER_TOKEN) as usize),
            _ => {}
        }
    }

    fn dispatch(&mut self, data: u64, flags: epoll::EventFlags) -> bool {
        match data {
            LISTENER_TOKEN.. => return false,
            HEADER_TOKEN.. => self.read_header((data - HEADER_TOKEN) as usize),
            _ => self.ready(ConnId::from_u64(data), flags),
        }
        true
    }

    /// Everything that was ready has been read.
    fn end_turn(&mut self) {
        if self.service.poll_timeout().is_some_and(|due| due <= self.now) {
            self.service.handle_timeout(self.now);
        }
        self.drop_overdue_readers();
        for fd in self.refused.look(self.now) {
            self.end_told(fd);
        }
        self.endings.look(self.blocks.writable(), self.now);
        if std::mem::take(&mut self.control_ready) {
            self.handle_commands();
        }
        if std::mem::take(&mut self.signal_ready) {
            self.handle_signals();
        }
        self.has_new_endpoints = true;
        while std::mem::take(&mut self.has_new_endpoints) {
            // Clients that have waited for that since go on now: nothing else would wake us for it.
            self.service.end_turn(self.now);
            self.run_actions(None);
        }
        self.connect_waiting();
        self.write_side(Side::Client);
        self.write_side(Side::Link);
        // A write that failed may have left answers behind.
        self.write_side(Side::Client);
        self.hand_over();
        if let Some(counters) = &self.counters
            && self.heap_trim.is_due(counters.value(WorkerCounter::BufferBytesNow), self.now)
            && self.heap_trim.go_on(sys::heap::len(), sys::heap::take_piece)
        {
            sys::heap::trim();
        }
        self.blocks.give_back();
        if !self.queries.is_empty() && self.control.has_room() {
            self.answer_queries();
        }
        self.control.after_turn(self.service);
        self.watch_control();
    }

    fn time(&self) -> Time {
        Time(monotonic_us() - self.origin_us)
    }

    /// How long the kernel may let us sleep.
    fn timeout(&mut self) -> Option<Timespec> {
        let now = self.time();
        let work = now.since(self.woken);
        self.service.note_work(work, now);
        if let Some(counters) = &self.counters {
            counters.add(WorkerCounter::BusyUs, work);
            if now.since(self.cpu_read_at) >= USAGE_PAUSE_US {
                let (user, system) = sys::process::times_us();
                counters.add(WorkerCounter::UserUs, user.saturating_sub(self.user_us));
                counters.add(WorkerCounter::SystemUs, system.saturating_sub(self.system_us));
                (self.user_us, self.system_us, self.cpu_read_at) = (user, system, now);
            }
        }
        let is_ready = self.acceptor.has_ready() || self.service.wants_turn();
        if is_ready || self.heap_trim.is_running() || self.blocks.has_surplus() {
            return Some(AT_ONCE);
        }
        let due = [
            self.service.poll_timeout(),
            self.acceptor.due(now),
            self.header_readers.due(),
            self.refused.due(),
            self.endings.due(),
            self.connects.due(),
            self.drain_deadline,
            self.heap_trim.due(),
            // While the channel is full, its room wakes us.
            self.queries.due().filter(|_| self.control.has_room()),
        ];
        let backlog = self.control.has_backlog().then(|| Time(now.0 + BACKLOG_PAUSE_US));
        let due = due.into_iter().chain([backlog]).flatten().min()?;
        if due == Time(0) {
            return Some(AT_ONCE);
        }
        // Rounded up: a timer that comes a little early would be looked at twice.
        Some(timespec(due.since(now) + 1))
    }

    fn is_over(&self) -> bool {
        match self.drain_deadline {
            Some(deadline) => {
                let is_empty = self.service.is_drained() && self.header_readers.len() == 0;
                is_empty || self.now >= deadline
            }
            None => self.retiring && self.acceptor.is_empty(),
        }
    }

    fn is_leaving(&self) -> bool {
        self.retiring || self.drain_deadline.is_some()
    }
}

fn timespec(us: u64) -> Timespec {
    Timespec { tv_sec: (us / 1_000_000) as _, tv_nsec: (us % 1_000_000 * 1_000) as _ }
}

fn token(data: u64) -> epoll::EventData {
    epoll::EventData::new_u64(data)
}

/// Tokens from here up are not connections: ids use half of all generations only. First the readers
/// of PROXY headers …
const HEADER_TOKEN: u64 = 1 << 63;
/// … then listeners, then what is there once.
const LISTENER_TOKEN: u64 = HEADER_TOKEN + (1 << 32);
const WAKEUP_TOKEN: u64 = u64::MAX - 2;
const CONTROL_TOKEN: u64 = u64::MAX - 1;
const SIGNALS_TOKEN: u64 = u64::MAX;
/// How soon a backlog of the control is looked at again.
const BACKLOG_PAUSE_US: u64 = 20_000;
/// How often the processor time is counted, at most.
const USAGE_PAUSE_US: u64 = 500_000;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 512;
/// Looks at the kernel before links are written, at most: nobody waits for ever for quiet.
const PASSES_MAX: usize = 8;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long clients of a worker may wait for their last answers after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
