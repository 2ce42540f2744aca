//! Commands about the clients of the proxy. Clients are at several workers, so all of them are
//! asked, and the proxy answers when they have told.
//!
//! ```text
//!   CLIENT KILL USER anna ─▶ Inquiry::Kill ─▶ every worker ─▶ Told ─▶ :3
//! ```

/// A question about clients that all workers have to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inquiry {
    /// A line for each client that is meant.
    List(ClientFilter),
    /// The clients that are meant are closed.
    Kill(ClientFilter),
    /// The client that is meant ends its wait at a server, with an error or as if its time were
    /// over.
    Unblock { filter: ClientFilter, with_error: bool },
}

/// The clients that are meant: those to which all of it applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFilter {
    /// One of these numbers, if there are any.
    pub ids: Vec<u64>,
    pub user: Option<String>,
    /// Both ends of the connection, as [`crate::Endpoints`] has them.
    pub from: Option<String>,
    pub to: Option<String>,
    /// Connected for so many seconds at least.
    pub age_min_s: u64,
    /// The client that asks is not meant.
    pub not_own: bool,
    /// No client is meant: none is of the kind that was asked for.
    pub nobody: bool,
}

/// What all workers have told together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The lines of a list.
    pub lines: Vec<u8>,
    /// Clients that were meant.
    pub count: u64,
    /// The client that asks is among them. It is not closed before it has its answer.
    pub is_own: bool,
}

/// A client as lists show it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientLine<'a> {
    pub id: u64,
    pub from: &'a str,
    pub to: &'a str,
    pub descriptor: i32,
    pub name: &'a str,
    pub age_s: u64,
    pub idle_s: u64,
    /// Letters in the protocol's way; empty: none.
    pub flags: &'a str,
    pub database: u32,
    /// Requests of its transaction, if it is in one.
    pub queued: Option<u32>,
    /// Channels, patterns and shard channels that it listens to.
    pub topics: [u32; 3],
    /// Bytes that came of it and are not read, and bytes of answers that wait for it.
    pub input: u64,
    pub output: u64,
    /// Its last command, if that is known.
    pub command: Option<&'a str>,
    /// Empty: it has not logged in.
    pub user: &'a str,
    pub proto_version: u8,
    pub library: &'a str,
    pub library_version: &'a str,
    pub pool: &'a str,
}

/// The settings of a client that lists show as flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientFlags {
    pub no_evict: bool,
    pub no_touch: bool,
    pub in_transaction: bool,
    /// It listens to topics.
    pub listens: bool,
    /// It waits at a server for elements.
    pub waits: bool,
}
