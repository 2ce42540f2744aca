//! The embedded cache: the state machine of a process behind `servers: [embedded]`.
//!
//! It accepts memcached's text protocol, classic and meta, with the parser of the proxy, so both
//! read a line in the same way. Like the proxy it implements [`Service`]: bytes and the time go in,
//! bytes and actions come out.
//!
//! ```text
//!   handle_received ─▶ intake.rs ─▶ execute.rs ─▶ cache::Store
//!                       frames      replies │  (meta.rs: meta's)
//!   transmit ◀────────── session.rs's out ◀─┘      all replies to one read leave in one write
//! ```
//!
//! A client that does not read its replies is not read either. A value that is too large is
//! discarded as it arrives. The memory for unfinished requests of all clients together is bounded.

mod counters;
mod execute;
mod intake;
mod meta;
mod reply;
mod session;
mod start;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proxy::{Action, Block, Closed, ConnId, Side, Slices, Time};
use sys::signal::{self, Signals};

use crate::event::{Listener, Loop, NoControl, Service, Sessions};
use execute::Executor;
use session::Session;

pub use start::start;

/// Settings of a cache process, fixed at its start.
#[derive(Clone, Copy, Debug)]
struct Options {
    /// Limit on bytes of items, keys and index together.
    memory_max: usize,
    /// The largest item, counted as memcached counts its `-I`.
    item_size_max: usize,
    /// Limit on clients; one more gets an error line.
    clients_max: usize,
    /// Shown in `stats`.
    pid: u32,
}

/// Serves until TERM or INT; requests that have arrived by then are answered.
fn run(listeners: Vec<Listener>, options: Options) -> io::Result<()> {
    let signals = Signals::new(signal::ALL_OF_A_CHILD)?;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut server = CacheServer::new(options, since_epoch);
    // A cas from before a restart must not match an item from after it.
    server.executor.store.number_from(server.epoch_us);
    Loop::uncontrolled(&mut server, &mut NoControl, listeners, signals, SHUTDOWN_TIMEOUT)?.run()
}

/// One cache and its clients.
struct CacheServer {
    executor: Executor,
    sessions: Sessions<Session>,
    actions: VecDeque<Action>,
    /// Clients with unsent output, each once.
    dirty: Vec<ConnId>,
    /// Empty buffers: an idle client has none of its own.
    spares: Vec<Vec<u8>>,
    /// Microseconds since 1970 at which `Time` was zero.
    epoch_us: u64,
    clients_max: usize,
    /// The next search for expired items.
    sweep_due: Time,
    draining: bool,
}

impl CacheServer {
    /// `since_epoch` is the time since 1970 at which `Time` is zero.
    fn new(options: Options, since_epoch: Duration) -> CacheServer {
        CacheServer {
            executor: Executor::new(&options, since_epoch.as_secs()),
            sessions: Sessions::default(),
            actions: VecDeque::new(),
            dirty: Vec::new(),
            spares: Vec::new(),
            epoch_us: since_epoch.as_micros() as u64,
            clients_max: options.clients_max,
            sweep_due: Time(SWEEP_EVERY_US),
            draining: false,
        }
    }

    /// The current second since 1970, the clock of expiry.
    fn second(&self, now: Time) -> u64 {
        (self.epoch_us + now.0) / 1_000_000
    }

    /// Executes what has arrived, and updates the connection's state.
    fn serve(&mut self, id: ConnId, bytes: &[u8], now: Time) {
        let second = self.second(now);
        let Some(session) = self.sessions.find_mut(id) else { return };
        if session.out.capacity() == 0 {
            session.out = self.spares.pop().unwrap_or_default();
        }
        self.executor.receive(session, bytes, second);
        if !session.is_leaving && session.is_full() != session.is_paused {
            session.is_paused = session.is_full();
            let pause = session.is_paused;
            self.actions.push_back(if pause { Action::Pause(id) } else { Action::Resume(id) });
        }
        if session.is_mid_request() && !session.is_full() && !session.is_leaving {
            // The client may wait for the ACK of these bytes before it sends the rest.
            self.actions.push_back(Action::FlushAck(id));
        }
        self.settle(id);
    }

    /// Queues a session's output, closes it, or takes back its empty buffer.
    fn settle(&mut self, id: ConnId) {
        let Some(session) = self.sessions.find_mut(id) else { return };
        if !session.out.is_empty() {
            if !session.is_dirty {
                session.is_dirty = true;
                self.dirty.push(id);
            }
            return;
        }
        let out = std::mem::take(&mut session.out);
        if (1..=SPARE_LEN_MAX).contains(&out.capacity()) && self.spares.len() < SPARES_MAX {
            self.spares.push(out);
        }
        if session.is_leaving {
            self.drop_session(id);
            self.actions.push_back(Action::End(id));
        }
    }

    fn drop_session(&mut self, id: ConnId) {
        if let Some(session) = self.sessions.remove(id) {
            self.executor.forget(&session);
        }
        self.executor.counters.curr_connections = self.sessions.len() as u64;
    }
}

impl Service for CacheServer {
    fn handle_accept(&mut self, _pool: u32, _now: Time) -> Result<ConnId, Vec<u8>> {
        if self.sessions.len() >= self.clients_max {
            self.executor.counters.rejected_connections += 1;
            return Err(TOO_MANY.to_vec());
        }
        let id = self.sessions.insert(Session::default());
        self.executor.counters.total_connections += 1;
        self.executor.counters.curr_connections = self.sessions.len() as u64;
        Ok(id)
    }

    fn handle_received(&mut self, conn: ConnId, block: &Rc<Block>, len: usize, now: Time) {
        self.executor.counters.bytes_read += len as u64;
        // Bytes after `quit` are ignored, even in the same segment.
        if self.sessions.find(conn).is_some_and(|session| !session.is_leaving) {
            self.serve(conn, &block[..len], now);
        }
    }

    fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time) {
        if n == 0 {
            return;
        }
        self.executor.counters.bytes_written += n as u64;
        let Some(session) = self.sessions.find_mut(conn) else { return };
        session.advance(n);
        if session.has_waiting_input() && !session.is_full() {
            self.serve(conn, &[], now);
        } else {
            self.settle(conn);
        }
    }

    fn handle_connected(&mut self, _link: ConnId, _now: Time) {}

    fn handle_closed(&mut self, conn: ConnId, how: Closed, _now: Time) {
        match how {
            Closed::Reset | Closed::Unmade(_) | Closed::Own => self.drop_session(conn),
            Closed::Eof => {
                if let Some(session) = self.sessions.find_mut(conn) {
                    session.is_leaving = true;
                }
                self.settle(conn);
            }
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        self.sweep_due = now.after(SWEEP_EVERY_US);
        let second = self.second(now);
        self.executor.store.sweep(SWEEP_SLOTS, second);
    }

    fn end_turn(&mut self, _now: Time) {}

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        Some(self.sweep_due)
    }

    fn poll_transmit(&mut self, side: Side) -> Option<ConnId> {
        if side == Side::Link {
            return None;
        }
        let id = self.dirty.pop()?;
        if let Some(session) = self.sessions.find_mut(id) {
            session.is_dirty = false;
        }
        Some(id)
    }

    fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>) {
        if let Some(session) = self.sessions.find(conn)
            && !session.unsent().is_empty()
        {
            out.push(session.unsent());
        }
    }

    fn drain(&mut self, _now: Time) {
        self.draining = true;
        for id in self.sessions.ids() {
            if let Some(session) = self.sessions.find_mut(id) {
                session.is_leaving = true;
            }
            self.settle(id);
        }
    }

    fn is_drained(&self) -> bool {
        self.draining && self.sessions.len() == 0
    }
}

/// The time that clients have to read their last replies.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which an idle server looks for expired items …
const SWEEP_EVERY_US: u64 = 1_000_000;
/// … and at how many slots: a millisecond's worth.
const SWEEP_SLOTS: usize = 10_000;
/// Empty buffers kept …
const SPARES_MAX: usize = 64;
/// … up to this size; a larger one goes back to the allocator.
const SPARE_LEN_MAX: usize = 64 * 1024;
/// memcached's own message.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
