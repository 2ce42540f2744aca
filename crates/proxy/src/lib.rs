//! One worker's whole mind, as one deterministic value.
//!
//! [`Proxy`] takes bytes and the time, and gives bytes and actions. It owns no socket, clock,
//! thread, file or chance of its own, so parsing, routing, pairing and failure are tested, fuzzed
//! and simulated as plain function calls, and the same seed gives the same run.
//!
//! | kind | methods |
//! |---|---|
//! | the world speaks | `handle_accept` `handle_received` `handle_transmitted` |
//! | | `handle_connecting` `handle_connected` `handle_closed` `handle_timeout` |
//! | the operator speaks | `install` `set_ejected` `drain` |
//! | what to do now | `poll_action` `poll_timeout` `wants_turn` `poll_transmit` + `transmit` |
//!
//! A driver's turn: hand over everything that is ready; carry out the actions; write the clients
//! that `poll_transmit` names; when nothing more is ready, `end_turn` and write the links. If
//! `wants_turn` then, the next turn does not wait for anything.
//!
//! ```text
//!   client ──handle_received──▶ intake ──▶ row ──route──▶ link queue ──transmit──▶ server
//!   client ◀──transmit── out ◀──release── row ◀──settle── pair ◀──handle_received── server
//! ```
//!
//! `flow/` is the path, one file a step; the other files are what it moves.

#[macro_use]
pub mod bug;

mod batch;
mod buffer;
mod client;
mod desk;
pub mod fault;
mod flow;
mod id;
pub mod jury;
mod lane;
pub mod limits;
mod link;
mod lore;
mod memory;
pub mod plan;
mod pool;
mod random;
mod request;
mod room;
mod timers;
pub mod users;

use std::rc::Rc;

use metrics::{Sheet, Worker};
use proto::{Ends, Session, Span};

use batch::Batch;
use buffer::Source;
use desk::Desk;
use id::Slab;
use link::Link;
use plan::Plan;
use pool::{Hold, Pool};
use random::Random;
use timers::Timers;

pub use buffer::Slices;
pub use flow::stats::ServerView;
pub use id::{ConnId, Side};

/// Microseconds since a start of the driver's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// This much later.
    pub fn after(self, microseconds: u64) -> Time {
        Time(self.0.saturating_add(microseconds))
    }

    /// Microseconds since `earlier`.
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer sends nothing more; a client is still answered what it asked.
    Eof,
    /// The connection is gone, or never came to be.
    Reset,
    /// We could not make it, for want of something of our own; a server is not to blame.
    Own,
}

/// What a worker that takes over another's client must know of it, beside its connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passed {
    /// The row of its pool.
    pub pool: u32,
    /// What it speaks, by its place in [`proto::PROTOCOLS`]; None if it has said nothing yet.
    pub protocol: Option<u8>,
    pub logged_in: bool,
    /// What it has said instead of logging in.
    pub strikes: u8,
    /// What it has said about itself.
    pub session: Session,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection to a server, which is named by its row; answer with `handle_connected` or
    /// `handle_closed`.
    Connect { link: ConnId, server: u32 },
    /// Close the connection; its id is dead already.
    Close(ConnId),
    /// Do not read this client.
    Pause(ConnId),
    /// Read it again.
    Resume(ConnId),
    /// Say where a client's connection begins and ends: answer with `handle_located`.
    Locate(ConnId),
    /// Send the pending ACK now, before waiting for more.
    FlushAck(ConnId),
    /// Tell whoever decides for all workers.
    Report(Report),
    /// Tell the operator.
    Log(Event),
}

/// What an operator should know. Rare: never one for each request. Servers are named by their
/// rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server failed and will be probed.
    ServerDown { server: u32, why: &'static str },
    /// A server that was down answered its probe.
    ServerBack { server: u32 },
    /// A server sent what nobody asked for.
    Poisoned { server: u32, why: &'static str },
    /// A login of this client to a pool has failed. It is told of each, while it is known where
    /// the client is from, and said with the next `LoginsFailed`.
    LoginFailed { pool: u32, client: ConnId },
    /// So many logins to a pool have failed since this was last told: the first at once, the others
    /// when a second is over.
    LoginsFailed { pool: u32, count: u64 },
    /// A server lacks what clients may ask for; told when that is learned. `what` is its protocol's
    /// word.
    Lacks { server: u32, what: &'static str },
    /// A server closes its links at words that it said it knows: it is not asked so any more.
    Unskilled { server: u32 },
    /// The first request of a pool that has to do with marks: reads that would show them are not
    /// merged from here on.
    Marked { pool: u32 },
    /// Clients of a pool are refused; told at most once a second.
    ClientsRefused { pool: u32, why: &'static str },
}

/// What this worker met, of servers by their rows. Some may be ejected for it: see `jury`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A server failed, for so many times since it last answered a request here.
    Failed { server: u32, failures: u32, why: &'static str },
    /// A server that had failed, or is ejected, answered: a request, or a probe.
    Answered { server: u32, probe: bool },
}

/// The data plane of one worker.
pub struct Proxy {
    links: Slab<Link>,
    desk: Desk,
    timers: Timers,
    random: Random,
    /// Counts loop turns; names the turn in which a shared batch was open.
    turn: u64,
    /// When the turn before this one ended: nothing that this one has queued is older.
    turn_since: Time,
    /// Clients that have got a number.
    named: u64,
    dirty_links: Vec<ConnId>,
    /// Places of the keys of the request being read.
    keys: Vec<Span>,
    /// A key that had to be decoded.
    scratch: Vec<u8>,
    /// Servers of which what was held is sent at the end of this turn, by pool and place.
    waking: Vec<(u32, u32)>,
    /// Links to which the request being read added keys of its own.
    touched: Vec<ConnId>,
    // Boxes are what is reused.
    #[allow(clippy::vec_box)]
    spare_batches: Vec<Box<Batch>>,
    clients_max: usize,
    clients_room: usize,
    /// The longest pipeline that any plan allowed: what was read then is still outstanding now.
    pipeline_ever: usize,
    /// Something that has left the plan is still needed.
    retired: bool,
    /// Something has moved since what is "now" was written into the book.
    stirred: bool,
    /// A timer for that is set.
    publish_due: bool,
    draining: bool,
}

impl Proxy {
    /// A data plane for `plan`. `seed` decides all its chance: jitter, and the random distribution.
    /// It counts in `sheet`, whose row 0 is its own.
    pub fn new(plan: Plan, seed: u64, now: Time, sheet: Sheet) -> Proxy {
        let pools = plan.pools.into_iter().map(|pool| Pool::new(pool, &sheet)).collect();
        let mut proxy = Proxy {
            links: Slab::new(Side::Link),
            desk: Desk::new(pools, plan.memory_max, plan.limits, sheet, now),
            timers: Timers::default(),
            random: Random::new(seed),
            turn: 1,
            turn_since: now,
            named: 0,
            dirty_links: Vec::new(),
            keys: Vec::new(),
            scratch: Vec::new(),
            waking: Vec::new(),
            touched: Vec::new(),
            spare_batches: Vec::new(),
            clients_max: plan.clients_max,
            clients_room: plan.clients_room,
            pipeline_ever: plan.limits.pipeline,
            retired: false,
            stirred: false,
            publish_due: false,
            draining: false,
        };
        for pool in 0..proxy.desk.pools.len() {
            if proxy.desk.pools[pool].plan.preconnect {
                let servers = proxy.desk.pools[pool].servers.len();
                (0..servers).for_each(|server| proxy.preconnect(pool, server, now));
            }
        }
        proxy
    }

    /// A client arrived at the listener of the pool with this row. `Err` is what to send before
    /// closing it.
    pub fn handle_accept(&mut self, pool_row: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        self.stir(now);
        self.accept(pool_row, true)
    }

    /// The same, of a client that another worker has handed over.
    pub fn handle_adopted(&mut self, client: Passed, now: Time) -> Result<ConnId, Vec<u8>> {
        self.stir(now);
        let id = self.accept(client.pool, false)?;
        self.take_over(id, client)?;
        Ok(id)
    }

    /// `block[..len]` was read from a connection. Large values are kept by cloning the `Rc`.
    pub fn handle_received(&mut self, conn: ConnId, block: &Rc<Vec<u8>>, len: usize, now: Time) {
        assert!(len > 0, "an empty read is `handle_closed`");
        self.stir(now);
        let source = Source::block(block, len);
        if conn.is_client() {
            self.receive_client(conn, source, now);
        } else {
            self.receive_link(conn, source, now);
        }
    }

    /// The kernel took `n` bytes of `transmit`.
    pub fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time) {
        self.stir(now);
        if conn.is_client() {
            self.desk.transmitted(conn, n);
        } else {
            self.transmitted_link(conn, n, now);
        }
    }

    /// Where a client's connection begins and ends, as was asked. It goes on at the end of a turn:
    /// of another one, where that was asked at the end of this.
    pub fn handle_located(&mut self, client: ConnId, ends: Ends, now: Time) {
        self.stir(now);
        self.locate(client, ends);
    }

    /// A `Connect` begins then and not when it was asked for: the driver lets it wait for its turn.
    /// Its time to connect counts from there. To let it wait for as long as it takes, say a time
    /// far away, and the real one when it has come.
    pub fn handle_connecting(&mut self, link: ConnId, begins: Time) {
        self.connecting(link, begins);
    }

    /// A `Connect` succeeded.
    pub fn handle_connected(&mut self, link: ConnId, now: Time) {
        self.stir(now);
        self.connected(link, now);
    }

    /// A connection ended, or a `Connect` failed.
    pub fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time) {
        self.stir(now);
        if conn.is_client() {
            self.desk.client_closed(conn, how);
        } else {
            self.link_closed(conn, how, now);
        }
    }

    /// Time has passed; call it when `poll_timeout` is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.desk.now = now;
        // A timer that is set for a time that has come, again and again, would keep us here for
        // ever: a worker that dies is started again.
        let mut left = limits::TIMERS_IN_A_CALL * (self.timers.len() + 1);
        while let Some((set, due)) = self.timers.pop(now) {
            assert!(left > 0, "timers are set without end for a time that has come: {due:?}");
            left -= 1;
            self.timer(set, due, now);
        }
    }

    /// Everything that was ready has been handed over: open batches are closed, so that the links
    /// can be written. Clients that may go on are read again.
    pub fn end_turn(&mut self, now: Time) {
        self.desk.now = now;
        self.end_holds();
        self.resume_clients(now);
        self.close_batches();
        self.sweep();
        self.plan_publishing(now);
        self.desk.worker.add(Worker::Turns, 1);
        self.turn += 1;
        self.turn_since = now;
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.desk.actions.pop_front()
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// What was written after `end_turn` lets something go on: the turn that sees to it comes at
    /// once, for nothing else may wake the driver.
    pub fn wants_turn(&self) -> bool {
        self.desk.has_resumable() || !self.waking.is_empty()
    }

    /// The next connection of a side that has got something to write since it was last named. Ask
    /// for links after `end_turn` only: before it, what gathers for them has not been closed.
    pub fn poll_transmit(&mut self, side: Side) -> Option<ConnId> {
        match side {
            Side::Client => self.desk.next_dirty(),
            Side::Link => self.next_dirty_link(),
        }
    }

    /// What to write to a connection, in order; nothing if it is gone or cannot send yet.
    pub fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>) {
        if conn.is_client() {
            if let Some(client) = self.desk.clients.find(conn) {
                client.out.slices(out);
            }
        } else if let Some(link) = self.links.find(conn) {
            match link.state {
                link::State::Connecting => {}
                link::State::Greeting if link.hello.is_empty() => {}
                link::State::Greeting => out.push(&link.hello),
                link::State::Up => {
                    let server = &self.desk.pools[link.pool as usize].servers[link.server as usize];
                    match server.silence.hold {
                        Hold::Off => link.out.slices(out),
                        Hold::On | Hold::Ending => link.out.slices_within(link.begun(), out),
                    }
                }
            }
        }
    }

    /// Another plan takes the place of the one before. What is in both, by its row, goes on
    /// undisturbed; a request that was read before goes its old way to the end.
    pub fn install(&mut self, plan: Plan, now: Time) {
        self.stir(now);
        self.desk.worker.add(Worker::Installs, 1);
        self.take_up(plan, now);
    }

    /// It was decided for all workers that a server leaves the ring, or comes back.
    pub fn set_ejected(&mut self, server_row: u32, ejected: bool, now: Time) {
        self.stir(now);
        self.eject(server_row, ejected, now);
    }

    /// Reads no more requests; each client is closed when it has been answered.
    pub fn drain(&mut self, now: Time) {
        self.stir(now);
        self.draining = true;
        for client in self.desk.client_ids() {
            self.desk.finish(client);
        }
        self.tell_all_logins();
    }

    /// The time is `now`, and something is about to move.
    fn stir(&mut self, now: Time) {
        self.desk.now = now;
        self.stirred = true;
    }

    /// All clients have gone.
    pub fn is_drained(&self) -> bool {
        self.draining && self.desk.clients.len() == 0
    }
}
