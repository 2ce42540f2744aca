//! The loop: sockets and the clock on one side, a [`Mind`] on the other.
//!
//! ```text
//!   wait ─▶ read what is ready ─▶ actions ─▶ write clients ─▶ look again, without waiting
//!                ▲                                              │ something    │ nothing
//!                └──────────────────────────────────────────────┘              ▼
//!                                              timers ─▶ end of turn ─▶ write links ─▶ wait
//! ```
//!
//! Links are written only when nothing more is ready: what came in together leaves together, in one
//! segment a server, and segments are what costs. Clients are written at once. New connections come
//! last in each pass, and few at a time: those who are here already are served first.

mod accept;
mod blocks;
mod conn;
mod mind;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proxy::{Action, Closed, ConnId, Event, Side, Slices, Time};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use sys::signal::Signals;

use blocks::{BLOCK, Blocks};
use conn::{Conn, Conns, Read, Written};

pub use accept::Listener;
pub use mind::Mind;

/// Where a server is, ready to be connected to, with the options of its links.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: TargetAddress,
    pub nodelay: bool,
    pub keepalive: bool,
}

/// A resolved address.
#[derive(Clone, Debug)]
pub enum TargetAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The loop and everything it owns.
pub struct Loop<'m> {
    mind: &'m mut dyn Mind,
    epoll: OwnedFd,
    conns: Conns,
    blocks: Blocks,
    listeners: Vec<Listener>,
    /// By the server's row.
    targets: BTreeMap<u32, Target>,
    signals: Signals,
    /// Where the mind's events go.
    report: &'m mut dyn FnMut(Event),
    start: Instant,
    now: Time,
    /// A descriptor to give up when there is no other, so that a client can be told so.
    reserve: Option<OwnedFd>,
    /// Listeners that are ready in this pass.
    knocking: Vec<usize>,
    /// A signal has come; it is heeded when everything that was ready with it has been read.
    asked_to_leave: bool,
    /// Since when no more clients are taken.
    leaving: Option<Time>,
    shutdown_timeout: Duration,
}

impl<'m> Loop<'m> {
    /// A loop that ends after TERM or INT, when everything asked has been answered or
    /// `shutdown_timeout` has passed.
    pub fn new(
        mind: &'m mut dyn Mind,
        listeners: Vec<Listener>,
        targets: BTreeMap<u32, Target>,
        signals: Signals,
        report: &'m mut dyn FnMut(Event),
        shutdown_timeout: Duration,
    ) -> std::io::Result<Loop<'m>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (at, listener) in listeners.iter().enumerate() {
            epoll::add(&epoll, &listener.fd, token(LISTENER + at as u64), epoll::EventFlags::IN)?;
        }
        epoll::add(&epoll, signals.fd(), token(SIGNALS), epoll::EventFlags::IN)?;
        let reserve = epoll.try_clone()?;
        Ok(Loop {
            mind,
            epoll,
            conns: Conns::default(),
            blocks: Blocks::new(),
            listeners,
            targets,
            signals,
            report,
            start: Instant::now(),
            now: Time(0),
            reserve: Some(reserve),
            knocking: Vec::new(),
            asked_to_leave: false,
            leaving: None,
            shutdown_timeout,
        })
    }

    /// Runs until it is told to end.
    pub fn run(&mut self) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.run_actions(None);
        loop {
            let timeout = self.timeout();
            self.turn(&mut events, timeout)?;
            if self.leaving.is_some_and(|since| self.is_over(since)) {
                return Ok(());
            }
        }
    }

    /// One turn: everything that is ready, then the links.
    fn turn(
        &mut self,
        events: &mut Vec<epoll::Event>,
        mut timeout: Option<Timespec>,
    ) -> std::io::Result<()> {
        for _ in 0..PASSES_MAX {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref())
            {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.now = Time(self.start.elapsed().as_micros() as u64);
            if events.is_empty() {
                break;
            }
            for event in events.iter() {
                self.dispatch(event.data.u64(), event.flags);
            }
            self.write_side(Side::Client);
            self.accept_waiting();
            timeout = Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        if self.mind.poll_timeout().is_some_and(|due| due <= self.now) {
            self.mind.handle_timeout(self.now);
        }
        if std::mem::take(&mut self.asked_to_leave) {
            self.leave();
        }
        self.wake_listeners();
        self.mind.end_turn(self.now);
        self.run_actions(None);
        self.write_side(Side::Client);
        self.write_side(Side::Link);
        // A write that failed may have left answers behind.
        self.write_side(Side::Client);
        Ok(())
    }

    fn dispatch(&mut self, data: u64, flags: epoll::EventFlags) {
        match data {
            SIGNALS => self.asked_to_leave = true,
            LISTENER.. => self.knocking.push((data - LISTENER) as usize),
            _ => self.ready(ConnId::from_u64(data), flags),
        }
    }

    fn ready(&mut self, id: ConnId, flags: epoll::EventFlags) {
        let Some(conn) = self.conns.find(id) else { return };
        if conn.connecting {
            return self.decide_connect(id);
        }
        if conn.paused && flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
            // It is not read, and gone: nothing else would say so, again and again.
            return self.lose(id);
        }
        let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        if flags.contains(epoll::EventFlags::IN) || failed {
            if conn.ended {
                return self.lose(id);
            }
            self.read(id);
        }
        if flags.contains(epoll::EventFlags::OUT)
            && let Some(conn) = self.conns.find(id)
        {
            conn.blocked = false;
            self.write(id);
            self.watch(id);
        }
    }

    /// Reads what a socket has, within bounds: the others wait as well.
    fn read(&mut self, id: ConnId) {
        let mut ack_due = false;
        for _ in 0..READS_MAX {
            let Some(conn) = self.conns.find(id) else { return };
            if conn.paused {
                break;
            }
            match conn.read(self.blocks.writable()) {
                Read::Bytes(n) => {
                    self.mind.handle_received(id, self.blocks.current(), n, self.now);
                    ack_due = self.run_actions(Some(id));
                    if n < BLOCK {
                        break;
                    }
                }
                Read::Nothing => break,
                Read::End => {
                    conn.ended = true;
                    self.mind.handle_closed(id, Closed::Eof, self.now);
                    self.run_actions(None);
                    if !id.is_client() {
                        self.drop_conn(id);
                    }
                    return self.watch(id);
                }
                Read::Gone => return self.lose(id),
            }
        }
        if ack_due {
            self.flush_ack(id);
        }
    }

    /// A connection is gone; its mind is told.
    fn lose(&mut self, id: ConnId) {
        self.drop_conn(id);
        self.mind.handle_closed(id, Closed::Reset, self.now);
        self.run_actions(None);
    }

    fn decide_connect(&mut self, id: ConnId) {
        let Some(conn) = self.conns.find(id) else { return };
        if sys::connect::outcome(&conn.fd).is_err() {
            return self.lose(id);
        }
        conn.connecting = false;
        self.watch(id);
        self.mind.handle_connected(id, self.now);
        self.run_actions(None);
    }

    /// Writes every connection of a side that has something to say.
    fn write_side(&mut self, side: Side) {
        while let Some(id) = self.mind.poll_transmit(side) {
            match self.conns.find(id) {
                Some(conn) if conn.blocked => self.mind.handle_transmitted(id, 0, self.now),
                Some(_) => self.write(id),
                None => {}
            }
        }
    }

    fn write(&mut self, id: ConnId) {
        loop {
            let mut slices = Slices::default();
            self.mind.transmit(id, &mut slices);
            if slices.is_empty() {
                return;
            }
            let offered: usize = slices.iter().map(|slice| slice.len()).sum();
            let Some(conn) = self.conns.find(id) else { return };
            let taken = match conn.write(&slices) {
                Written::Some(n) => n,
                Written::Blocked => 0,
                Written::Gone => return self.lose(id),
            };
            if taken < offered {
                conn.blocked = true;
            }
            // Told also when it took nothing: what waits now may be kept in another way.
            self.mind.handle_transmitted(id, taken, self.now);
            self.run_actions(None);
            if taken < offered {
                return self.watch(id);
            }
        }
    }

    /// Carries out what the mind wants. The pending ACK of `reading` is not flushed but reported:
    /// more may be read from it first.
    fn run_actions(&mut self, reading: Option<ConnId>) -> bool {
        let mut ack_due = false;
        while let Some(action) = self.mind.poll_action() {
            match action {
                Action::FlushAck(id) if reading == Some(id) => ack_due = true,
                Action::FlushAck(id) => self.flush_ack(id),
                Action::Connect { link, server } => self.connect(link, server),
                Action::Close(id) => self.close(id),
                Action::Pause(id) => self.set_paused(id, true),
                Action::Resume(id) => self.set_paused(id, false),
                Action::Log(event) => (self.report)(event),
                Action::Report(_) => {}
            }
        }
        ack_due
    }

    fn flush_ack(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.find(id)
            && conn.tcp
        {
            // Nothing is lost if it fails: the ACK goes out later by itself.
            let _ = sys::tcp::flush_ack(&conn.fd);
        }
    }

    fn set_paused(&mut self, id: ConnId, paused: bool) {
        if let Some(conn) = self.conns.find(id) {
            conn.paused = paused;
            self.watch(id);
        }
    }

    fn connect(&mut self, link: ConnId, server: u32) {
        let target = self.targets.get(&server).expect("each server of the plan has a target");
        match begin_connect(target) {
            Ok((fd, established)) => {
                let tcp = matches!(target.address, TargetAddress::Tcp(_));
                self.conns.insert(Conn::new(link, fd, tcp, !established));
                self.watch(link);
                if established {
                    self.mind.handle_connected(link, self.now);
                }
            }
            Err(_) => self.mind.handle_closed(link, Closed::Reset, self.now),
        }
    }

    /// Closes a connection of our own will. What a client sent and nobody read would make the
    /// kernel reset the connection and throw our last answer away, so it is read first.
    fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.drop_conn(id)
            && id.is_client()
            && !conn.ended
        {
            let _ = rustix::net::shutdown(&conn.fd, rustix::net::Shutdown::Write);
            for _ in 0..READS_MAX {
                let Read::Bytes(_) = conn.read(self.blocks.writable()) else { break };
            }
        }
    }

    fn drop_conn(&mut self, id: ConnId) -> Option<Conn> {
        self.conns.remove(id)
    }

    /// Tells the kernel what to watch a connection for, if that changed.
    fn watch(&mut self, id: ConnId) {
        let Some(conn) = self.conns.find(id) else { return };
        let wanted = conn.interest();
        if conn.watched == wanted {
            return;
        }
        let outcome = if conn.watched.is_empty() {
            // A connection that was never watched, or is not any more: the kernel knows which.
            match epoll::add(&self.epoll, &conn.fd, token(id.to_u64()), wanted) {
                Err(Errno::EXIST) => {
                    epoll::modify(&self.epoll, &conn.fd, token(id.to_u64()), wanted)
                }
                other => other,
            }
        } else {
            epoll::modify(&self.epoll, &conn.fd, token(id.to_u64()), wanted)
        };
        conn.watched = wanted;
        if outcome.is_err() {
            self.lose(id);
        }
    }

    /// How long the kernel may let us sleep.
    fn timeout(&self) -> Option<Timespec> {
        let rest = self.listeners.iter().filter_map(|listener| listener.resting_until);
        let end = self.leaving.map(|since| since.after(self.shutdown_timeout.as_micros() as u64));
        let due = self.mind.poll_timeout().into_iter().chain(rest).chain(end).min()?;
        let now = Time(self.start.elapsed().as_micros() as u64);
        // Rounded up: a timer that comes a little early would be looked at twice.
        let wait = due.since(now) + 1;
        let nanoseconds = (wait % 1_000_000 * 1_000) as _;
        Some(Timespec { tv_sec: (wait / 1_000_000) as _, tv_nsec: nanoseconds })
    }

    /// TERM or INT: no new clients, and the others leave when they have their answers. Again: at
    /// once.
    fn leave(&mut self) {
        while self.signals.take().is_some() {
            if self.leaving.is_some() {
                self.shutdown_timeout = Duration::ZERO;
                continue;
            }
            self.leaving = Some(self.now);
            self.listeners.clear();
            self.mind.drain(self.now);
            self.run_actions(None);
        }
    }

    fn is_over(&self, since: Time) -> bool {
        let limit = since.after(self.shutdown_timeout.as_micros() as u64);
        self.mind.is_drained() || self.now >= limit
    }
}

/// A socket that connects to `target`, and whether it has already.
fn begin_connect(target: &Target) -> rustix::io::Result<(OwnedFd, bool)> {
    match &target.address {
        TargetAddress::Tcp(address) => {
            let fd = sys::connect::tcp_socket(address)?;
            sys::tcp::set_nodelay(&fd, target.nodelay)?;
            if target.keepalive {
                sys::tcp::set_keepalive(&fd, KEEPALIVE_IDLE, KEEPALIVE_EVERY, KEEPALIVE_COUNT)?;
            }
            sys::tcp::set_user_timeout(&fd, USER_TIMEOUT)?;
            let established = sys::connect::tcp(&fd, address)?;
            Ok((fd, established))
        }
        TargetAddress::Unix(path) => {
            let fd = sys::connect::unix_socket()?;
            let established = sys::connect::unix(&fd, path)?;
            Ok((fd, established))
        }
    }
}

fn token(data: u64) -> epoll::EventData {
    epoll::EventData::new_u64(data)
}

/// Tokens from here up are not connections: ids use half of all generations only.
const LISTENER: u64 = 1 << 63;
const SIGNALS: u64 = u64::MAX;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 512;
/// Looks at the kernel before links are written, at most: nobody waits for ever for quiet.
const PASSES_MAX: usize = 8;
/// Blocks read from one socket before the others have their turn.
const READS_MAX: usize = 4;
/// A silent link is probed after this long …
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// … every so often …
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// … and given up after so many probes.
const KEEPALIVE_COUNT: u32 = 3;
/// A link whose bytes stay unacknowledged for this long is given up; deadlines come long before.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
