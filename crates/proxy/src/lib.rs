//! The data plane of one worker, as one deterministic value.
//!
//! [`Proxy`] takes bytes and the time, and gives bytes and actions. It owns no socket, clock,
//! thread or file, and no source of randomness. So parsing, routing, pairing and failure are
//! tested, fuzzed and simulated as plain function calls, and the same seed gives the same run.
//!
//! | kind | methods |
//! |---|---|
//! | events on connections | `handle_accept` `handle_received` `handle_transmitted` |
//! | | `handle_connecting` `handle_connected` `handle_closed` `handle_timeout` |
//! | decisions from outside | `install` `set_ejected` `drain` |
//! | work for the driver | `poll_action` `poll_timeout` `wants_turn` `poll_transmit` + `transmit` |
//!
//! In each turn the driver hands over everything that is ready, executes the actions, and writes
//! the clients that `poll_transmit` names. When nothing more is ready, it calls `end_turn` and
//! writes the links. If `wants_turn` is true then, the next turn begins without waiting.
//!
//! ```text
//!   client ──handle_received──▶ intake ──▶ request ──route──▶ link queue ──transmit──▶ server
//!   client ◀──transmit── out ◀──release── request ◀──settle── pair ◀──handle_received── server
//! ```
//!
//! `flow/` holds the path of a request, one file a step. The other files hold the data that it
//! moves.

#[macro_use]
pub mod bug;

mod batch;
mod buffer;
mod client;
mod conn_key;
pub mod fault;
mod flow;
mod id;
pub mod limits;
mod link;
mod memory;
pub mod outliers;
mod pipelines;
pub mod plan;
mod pool;
mod random;
mod request;
mod room;
mod script_cache;
mod timers;
pub mod users;

use std::rc::Rc;

use metrics::{WorkerCounter, WorkerMetrics};
use proto::{Endpoints, Session, Span};

use batch::Batch;
use buffer::Source;
use id::Slab;
use link::Link;
use pipelines::Pipelines;
use plan::Plan;
use pool::{Hold, Pool};
use random::Random;
use timers::Timers;

pub use buffer::Slices;
pub use flow::stats::ServerView;
pub use id::{ConnId, Side};

/// Microseconds since a start that the driver chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Returns the time this many microseconds later.
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
    /// The peer sends nothing more. A client still gets the answers to its requests.
    Eof,
    /// The connection is gone, or was never established.
    Reset,
    /// We could not make the connection for lack of a resource of our own. The server is not to
    /// blame.
    Own,
}

/// The state of a client that a worker needs, beside the connection, to take it over from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passed {
    /// The id of the client's pool.
    pub pool: u32,
    /// The client's protocol, as an index into [`proto::PROTOCOLS`]; None if it has sent nothing
    /// yet.
    pub protocol: Option<u8>,
    pub logged_in: bool,
    /// Failed login attempts: requests and wrong logins before a successful login.
    pub failed_logins: u8,
    /// The session settings that the client has chosen.
    pub session: Session,
}

/// An order to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection to the server with this id. The driver answers with `handle_connected` or
    /// `handle_closed`.
    Connect { link: ConnId, server: u32 },
    /// Close the connection. Its id is no longer valid.
    Close(ConnId),
    /// Stop reading this client.
    Pause(ConnId),
    /// Read this client again.
    Resume(ConnId),
    /// Look up the two addresses of a client's connection and answer with `handle_endpoints`.
    LookUpEndpoints(ConnId),
    /// Send the pending ACK now, before waiting for more.
    FlushAck(ConnId),
    /// Pass this report to outlier detection, which decides for all workers.
    Report(Report),
    /// Log this event for the operator.
    Log(Event),
}

/// An event that an operator should know of. Events are rare: there is never one for each request.
/// Servers are named by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server failed and will be probed.
    ServerDown { server: u32, why: &'static str },
    /// A server that was down answered its probe.
    ServerBack { server: u32 },
    /// A server sent a reply that cannot answer a request of ours.
    Poisoned { server: u32, why: &'static str },
    /// A login of this client to a pool failed. The event comes for each failed login while the
    /// client's address is known; the log line appears with the next `LoginsFailed`.
    LoginFailed { pool: u32, client: ConnId },
    /// The number of failed logins to a pool since the last event of this kind. The first failure
    /// is reported at once, later ones when a second is over.
    LoginsFailed { pool: u32, count: u64 },
    /// A server lacks a capability that clients may ask for. The event comes when that is learned.
    /// `what` is the protocol's name for the capability.
    Lacks { server: u32, what: &'static str },
    /// A server closes its links on commands that it claimed to know. They are not sent to it any
    /// more.
    CapabilityLost { server: u32 },
    /// The first request of a pool that uses marks has come. From here on, reads that would show
    /// marks are not merged.
    Marked { pool: u32 },
    /// Clients of a pool are refused. The event comes at most once a second.
    ClientsRefused { pool: u32, why: &'static str },
}

/// An observation about a server, which is named by its id. `outliers` may eject the server for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A server failed. `failures` counts its failures since it last answered a request at this
    /// worker.
    Failed { server: u32, failures: u32, why: &'static str },
    /// A server that had failed, or is ejected, answered a request or a probe.
    Answered { server: u32, probe: bool },
}

/// The data plane of one worker.
pub struct Proxy {
    links: Slab<Link>,
    pipelines: Pipelines,
    timers: Timers,
    random: Random,
    /// Counts loop turns; identifies the turn in which a shared batch was open.
    turn: u64,
    /// When the turn before this one ended: every message of this turn was queued after it.
    turn_since: Time,
    /// The count of client numbers given out so far.
    client_numbers: u64,
    dirty_links: Vec<ConnId>,
    /// Positions of the keys in the request being read.
    keys: Vec<Span>,
    /// A key that had to be decoded.
    scratch: Vec<u8>,
    /// Servers, by pool and index, whose held messages are sent at the end of this turn.
    ending_holds: Vec<(u32, u32)>,
    /// Links to which the request being read has added keys.
    touched_links: Vec<ConnId>,
    // The boxes themselves are reused, not only their contents.
    #[allow(clippy::vec_box)]
    spare_batches: Vec<Box<Batch>>,
    clients_max: usize,
    clients_room: usize,
    /// The longest pipeline that any plan so far allowed. Requests read under it may still be
    /// outstanding.
    pipeline_ever: usize,
    /// A pool or server that has left the plan is still in use.
    retired: bool,
    /// Something has changed since the gauges were last written to the metrics registry.
    gauges_changed: bool,
    /// A timer for writing the gauges is set.
    publish_due: bool,
    draining: bool,
}

impl Proxy {
    /// Makes a data plane for `plan`. `seed` decides everything random: jitter, and the random
    /// distribution. The data plane counts in `metrics`, where id 0 is its own.
    pub fn new(plan: Plan, seed: u64, now: Time, metrics: WorkerMetrics) -> Proxy {
        let pools = plan.pools.into_iter().map(|pool| Pool::new(pool, &metrics)).collect();
        let mut proxy = Proxy {
            links: Slab::new(Side::Link),
            pipelines: Pipelines::new(pools, plan.memory_max, plan.limits, metrics, now),
            timers: Timers::default(),
            random: Random::new(seed),
            turn: 1,
            turn_since: now,
            client_numbers: 0,
            dirty_links: Vec::new(),
            keys: Vec::new(),
            scratch: Vec::new(),
            ending_holds: Vec::new(),
            touched_links: Vec::new(),
            spare_batches: Vec::new(),
            clients_max: plan.clients_max,
            clients_room: plan.clients_room,
            pipeline_ever: plan.limits.pipeline,
            retired: false,
            gauges_changed: false,
            publish_due: false,
            draining: false,
        };
        for pool in 0..proxy.pipelines.pools.len() {
            if proxy.pipelines.pools[pool].plan.preconnect {
                let servers = proxy.pipelines.pools[pool].servers.len();
                (0..servers).for_each(|server| proxy.preconnect(pool, server, now));
            }
        }
        proxy
    }

    /// Takes a client that arrived at the listener of the pool with this id. `Err` holds the bytes
    /// to send before the driver closes the connection.
    pub fn handle_accept(&mut self, pool_id: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        self.note_change(now);
        self.accept(pool_id, true)
    }

    /// Takes a client that another worker has handed over.
    pub fn handle_adopted(&mut self, client: Passed, now: Time) -> Result<ConnId, Vec<u8>> {
        self.note_change(now);
        let id = self.accept(client.pool, false)?;
        self.take_over(id, client)?;
        Ok(id)
    }

    /// Takes `block[..len]`, read from a connection. Large values are kept by cloning the `Rc`.
    pub fn handle_received(&mut self, conn: ConnId, block: &Rc<Vec<u8>>, len: usize, now: Time) {
        assert!(len > 0, "an empty read is `handle_closed`");
        self.note_change(now);
        let source = Source::block(block, len);
        if conn.is_client() {
            self.receive_client(conn, source, now);
        } else {
            self.receive_link(conn, source, now);
        }
    }

    /// Notes that the kernel took `n` bytes of `transmit`.
    pub fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time) {
        self.note_change(now);
        if conn.is_client() {
            self.pipelines.transmitted(conn, n);
        } else {
            self.transmitted_link(conn, n, now);
        }
    }

    /// Takes the addresses of a client's connection, as `Action::LookUpEndpoints` asked for them.
    /// The client is read again at the end of the turn; if the action was given at a turn's end, at
    /// the end of the next.
    pub fn handle_endpoints(&mut self, client: ConnId, endpoints: Endpoints, now: Time) {
        self.note_change(now);
        self.set_endpoints(client, endpoints);
    }

    /// Notes when the attempt of a `Connect` begins, since the driver may queue it. The connect
    /// timeout counts from `begins`. While the attempt is queued, the driver passes a time far
    /// away; when the attempt begins, it passes the real one.
    pub fn handle_connecting(&mut self, link: ConnId, begins: Time) {
        self.connecting(link, begins);
    }

    /// Notes that a `Connect` succeeded.
    pub fn handle_connected(&mut self, link: ConnId, now: Time) {
        self.note_change(now);
        self.connected(link, now);
    }

    /// Notes that a connection ended, or that a `Connect` failed.
    pub fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time) {
        self.note_change(now);
        if conn.is_client() {
            self.pipelines.client_closed(conn, how);
        } else {
            self.link_closed(conn, how, now);
        }
    }

    /// Runs the timers that are due. Call this when `poll_timeout` has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        self.pipelines.now = now;
        // A timer that is set for a time that has come, again and again, would keep us here for
        // ever: a worker that dies is started again.
        let mut left = limits::TIMERS_IN_A_CALL * (self.timers.len() + 1);
        while let Some((set, due)) = self.timers.pop(now) {
            assert!(left > 0, "timers are set without end for a time that has come: {due:?}");
            left -= 1;
            self.timer(set, due, now);
        }
    }

    /// Ends a turn, when everything that was ready has been handed over. Open batches are closed so
    /// that the links can be written, and clients that may go on are read again.
    pub fn end_turn(&mut self, now: Time) {
        self.pipelines.now = now;
        self.end_holds();
        self.resume_clients(now);
        self.close_batches();
        self.free_retired();
        self.plan_publishing(now);
        self.pipelines.worker.add(WorkerCounter::Turns, 1);
        self.turn += 1;
        self.turn_since = now;
    }

    /// Returns the next order to the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.pipelines.actions.pop_front()
    }

    /// Returns when `handle_timeout` is to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Returns whether a write after `end_turn` allows something to go on. The next turn then
    /// begins at once, since nothing else may wake the driver.
    pub fn wants_turn(&self) -> bool {
        self.pipelines.has_resumable() || !self.ending_holds.is_empty()
    }

    /// Returns the next connection of a side that has new bytes to write. Ask for links only after
    /// `end_turn`: until then their batches are open.
    pub fn poll_transmit(&mut self, side: Side) -> Option<ConnId> {
        match side {
            Side::Client => self.pipelines.next_dirty(),
            Side::Link => self.next_dirty_link(),
        }
    }

    /// Collects the bytes to write to a connection, in order: none if it is gone or cannot send
    /// yet.
    pub fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>) {
        if conn.is_client() {
            if let Some(client) = self.pipelines.clients.find(conn) {
                client.out.slices(out);
            }
        } else if let Some(link) = self.links.find(conn) {
            match link.state {
                link::State::Connecting => {}
                link::State::Handshake if link.handshake.is_empty() => {}
                link::State::Handshake => out.push(&link.handshake),
                link::State::Up => {
                    let server =
                        &self.pipelines.pools[link.pool as usize].servers[link.server as usize];
                    match server.silence.hold {
                        Hold::Off => link.out.slices(out),
                        Hold::On | Hold::Ending => link.out.slices_within(link.begun(), out),
                    }
                }
            }
        }
    }

    /// Installs another plan. Pools and servers with an id in both plans go on undisturbed. A
    /// request that was read under the old plan keeps its route.
    pub fn install(&mut self, plan: Plan, now: Time) {
        self.note_change(now);
        self.pipelines.worker.add(WorkerCounter::Installs, 1);
        self.install_plan(plan, now);
    }

    /// Applies the decision, made for all workers, that a server leaves the ring or comes back.
    pub fn set_ejected(&mut self, server_id: u32, ejected: bool, now: Time) {
        self.note_change(now);
        self.eject(server_id, ejected, now);
    }

    /// Stops reading requests. Each client is closed when it has its answers.
    pub fn drain(&mut self, now: Time) {
        self.note_change(now);
        self.draining = true;
        for client in self.pipelines.client_ids() {
            self.pipelines.finish(client);
        }
        self.tell_all_logins();
    }

    /// Sets the time before something changes.
    fn note_change(&mut self, now: Time) {
        self.pipelines.now = now;
        self.gauges_changed = true;
    }

    /// Returns whether all clients have gone.
    pub fn is_drained(&self) -> bool {
        self.draining && self.pipelines.clients.len() == 0
    }
}
