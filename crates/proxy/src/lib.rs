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
//! | decisions from outside | `install` `set_ejected` `drain` `kill` |
//! | what operators ask | `walk_clients` `servers` |
//! | work for the driver | `poll_action` `poll_timeout` `wants_turn` `poll_transmit` + `transmit` |
//!
//! In each turn the driver hands over everything that is ready, executes the actions, and writes
//! the clients that `poll_transmit` names. When nothing more is ready, it calls `end_turn` and
//! writes the links. If `wants_turn` is true then, the next turn begins without waiting.
//!
//! ```text
//!              client/                 proxy.rs                  server/
//!   bytes ──▶ Frame ────────────▶ route ──▶ Part ───────────▶ queue ──▶ bytes to the server
//!   bytes ◀── release ◀── settle ◀──────── Reply, LinkEvent ◀── pair ◀── bytes of the server
//! ```
//!
//! The client half owns clients and their requests, the server half links and what waits on them.
//! Neither knows the other: `proxy.rs` carries requests one way and what becomes of them the other
//! way. `route.rs` says where a request goes. `base/` is what all of them stand on.

#[macro_use]
pub mod bug;

mod base;
mod client;
mod proxy;
mod route;
mod server;

use std::borrow::Cow;

use proto::{Inquiry, Session};

pub use base::block::{Block, BlockPool};
pub use base::buffer::Slices;
pub use base::id::{ConnId, Side};
pub use base::{
    ServerView, access, connection, fault, limits, outliers, plan, slow, tenants, users,
};
pub use client::{ClientView, Look, Recent};
pub use proxy::Proxy;

/// Microseconds since a moment that the driver chooses, the same for all workers of a proxy.
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
    /// The connection could not be established, with this error of the system (`errno`).
    Unmade(i32),
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
    /// The user that it is logged in as; its tenant follows from this.
    pub user: Option<String>,
    /// Failed login attempts: requests before a login, and wrong logins.
    pub failed_logins: u8,
    /// The session settings that the client has chosen.
    pub session: Session,
    pub tally: Tally,
}

/// What a client has done since it came, whichever workers it had since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tally {
    /// Its number, which no other client of this proxy has or had.
    pub id: u64,
    /// When it came, and when bytes came of it last.
    pub came: Time,
    pub active: Time,
    /// Requests read, and bytes from and to it.
    pub requests: u64,
    pub received: u64,
    pub sent: u64,
}

/// An order to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection to the server with this id. The driver answers with `handle_connected` or
    /// `handle_closed`.
    Connect { link: ConnId, server: u32 },
    /// Close the connection. Its id is no longer valid.
    Close(ConnId),
    /// Close the connection of a client that has been told why, or all that it asked. It may still
    /// be writing, and what it was told is to arrive. Its id is no longer valid.
    End(ConnId),
    /// Stop reading this client.
    Pause(ConnId),
    /// Read this client again.
    Resume(ConnId),
    /// Look up the two addresses of a client's connection and answer with `handle_endpoints`.
    LookUpEndpoints(ConnId),
    /// Ask all workers what this client wants to know about clients, and answer with `handle_told`.
    Inquire { client: ConnId, asking: Box<Asking> },
    /// Show this request, of a client of this pool and tenant, to MONITOR: in the ring of this
    /// slot, with the time and the address of its client.
    Tap { client: ConnId, pool: u32, tenant: u32, database: u32, text: Vec<u8> },
    /// Send the pending ACK now, before waiting for more.
    FlushAck(ConnId),
    /// Pass this report to outlier detection, which decides for all workers.
    Report(Report),
    /// Log this event for the operator.
    Log(Event),
    /// Add this request to the slow log, with the address of its client.
    Slow { client: ConnId, entry: Box<metrics::SlowEntry> },
    /// Note that this client sends requests in pieces: so many microseconds after an ACK that was
    /// sent at once, more came. `is_late`: so late that the client was slow in any case.
    InPieces { client: ConnId, late_us: u64, is_late: bool },
    /// Write this line to the access log, with the address of its client.
    Access { client: ConnId, line: Box<access::AccessLine> },
}

/// What a client wants to know about clients, and whose it may ask about: those of its tenant, or
/// else those of its pool that have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    pub inquiry: Inquiry,
    /// Its own number.
    pub asker: u64,
    pub pool: String,
    pub tenant: Option<String>,
}

/// An event that an operator should know of. Events are rare: there is never one for each request.
/// Servers are named by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server failed and will be probed. `why` has its own words, if it said any. If no
    /// connection could be made, the error of the system (`errno`) says why.
    ServerDown { server: u32, why: Cow<'static, str>, errno: Option<i32> },
    /// A server that was down answered its probe.
    ServerBack { server: u32 },
    /// A link could not be made, although the server works on others; `said` are its own words. The
    /// event comes once until a link is made there.
    LinkRefused { server: u32, why: &'static str, said: Option<Box<str>>, serves: bool },
    /// A server sent a reply that cannot answer a request of ours.
    Poisoned { server: u32, why: &'static str },
    /// A login of this client to a pool failed. The event comes for each failed login while the
    /// client's address is known; the log line appears with the next `LoginsFailed`. `name` is the
    /// name that it gave, in printable form; it is empty if no password came with it, since it
    /// could then be one. `is_known`: a user has that name, so the password was wrong.
    LoginFailed { pool: u32, client: ConnId, name: String, is_known: bool },
    /// The number of failed logins to a pool since the last event of this kind. The first failure
    /// is reported at once, later ones when a second is over.
    LoginsFailed { pool: u32, count: u64 },
    /// A server has sent a small reply in so many reads, over so long. The event comes at most once
    /// a minute.
    ServerDrips { server: u32, reads: u32, us: u64 },
    /// A server lacks a capability that clients may ask for. The event comes when that is learned.
    /// `what` is the protocol's name for the capability.
    Lacks { server: u32, what: &'static str },
    /// A server closes its links on commands that it claimed to know. They are not sent to it any
    /// more.
    CapabilityLost { server: u32 },
    /// The first request of a pool that uses marks has come. From here on, reads that would show
    /// marks are not merged.
    Marked { pool: u32 },
    /// A connection was made or lost. The event comes only while it is wanted: see
    /// `metrics::Registry::set_debug`.
    Connection(Box<connection::Connection>),
    /// Subscriptions at a server were lost with their link: so many, and so many clients that had
    /// them were closed.
    SubscriptionsLost { server: u32, subscriptions: usize, closed: usize },
    /// Clients of a pool are refused. The event comes at most once a second.
    ClientsRefused { pool: u32, why: &'static str },
    /// A client has asked for a command about whole servers that its pool does not allow. Some
    /// clients take the refusal for success. The event comes at most once a minute.
    NotAllowed { pool: u32, name: &'static str },
    /// The time that the clients of a removed pool have for their last requests is over. So many
    /// with something outstanding are closed, `half_asked` of them in the middle of a request.
    CutOff { pool: u32, clients: usize, half_asked: usize },
    /// A client is closed: `held` bytes of answers wait for it, of which it has taken nothing for
    /// `timeout_write`, and it has written on. Its next `kept` bytes of requests are kept, and by
    /// this directive no more.
    ClientUnread { pool: u32, client: ConnId, kept: usize, bound: &'static str, held: usize },
    /// A client is closed: `come` bytes of a request of it have come, and none for so long, while
    /// half of the memory for buffers is in use.
    ClientStalled { pool: u32, client: ConnId, come: usize, silent_us: u64 },
    /// So little is left of the memory for buffers that answers may be dropped.
    MemoryShort { held: usize, max: usize },
    /// There is enough again.
    MemoryFree { held: usize, max: usize },
}

/// An observation about a server, which is named by its id. `outliers` may eject the server for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A server failed. `failures` counts its failures since it last answered a request at this
    /// worker.
    Failed { server: u32, failures: u32, why: Cow<'static, str> },
    /// A server that had failed, or is ejected, answered a request or a probe.
    Answered { server: u32, probe: bool },
    /// A server has not answered this worker's attempt to make a link, and other workers have
    /// links: each is to ask on its own (`Proxy::ask_server`).
    Doubted { server: u32 },
}
