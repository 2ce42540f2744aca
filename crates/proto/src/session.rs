//! The state of a connection and the identity of its peer. `message.rs` is about one request and
//! its answer.

use std::borrow::Cow;

use crate::{Capabilities, ConnKey};

/// The settings that a connection has chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// Its number, which no other client of this proxy has. 0 until it is asked for.
    pub id: u64,
    pub conn_key: ConnKey,
    pub reply_mode: ReplyMode,
    /// Settings that few connections make. Boxed, since idle connections are many.
    pub profile: Option<Box<Profile>>,
}

/// Whether a client wants answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyMode {
    /// It wants answers.
    #[default]
    On,
    /// It wants no answer to the next request.
    SkipNext,
    /// It wants no answer to the present request.
    SkipThis,
    /// It wants no answers until it turns them on.
    Off,
}

impl ReplyMode {
    /// Whether the client wants the answers to its requests.
    pub fn is_on(self) -> bool {
        self == ReplyMode::On
    }

    /// Returns the mode after a request has been read: the answer to that one alone may have been
    /// skipped.
    pub fn after_request(self) -> ReplyMode {
        if self == ReplyMode::SkipNext { ReplyMode::On } else { self }
    }

    /// Returns the mode in which a local command is answered. `is_silent`: its answer was unwanted
    /// when it was read, unless the command itself decides otherwise.
    pub fn for_local(self, is_silent: bool) -> ReplyMode {
        if is_silent && self == ReplyMode::On { ReplyMode::SkipThis } else { self }
    }

    /// Returns the mode after a local command, which began in the mode of `for_local`.
    pub fn after_local(self) -> ReplyMode {
        if self == ReplyMode::SkipThis { ReplyMode::On } else { self }
    }
}

/// The client's description of itself, which it gets back when it asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Profile {
    pub user: Vec<u8>,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    pub no_evict: bool,
    pub no_touch: bool,
}

/// The proxy's facts that a protocol needs for local commands.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub pool: &'a str,
    /// The proxy's name and version.
    pub version: &'a str,
    /// The capabilities common to all servers whose capabilities are known.
    pub capabilities: Option<Capabilities>,
    /// The number of databases that may be chosen, from 0 on.
    pub databases: u32,
    /// The connection key with which a connection to this pool begins.
    pub conn_key: ConnKey,
    pub servers: usize,
    /// Clients of the pool, at all workers.
    pub clients: u64,
    pub uptime_s: u64,
    /// Clients have to log in.
    pub has_users: bool,
    /// The addresses of the connection, if they were asked for.
    pub endpoints: Option<&'a Endpoints>,
    /// How long the client has been connected, in seconds.
    pub age_s: u64,
    /// Channels, patterns and shard channels that it listens to.
    pub topics: [u32; 3],
}

/// The two addresses of a connection, as its driver knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// `address:port` of the client, and ours; for a unix socket its path, and 0.
    pub from: String,
    pub to: String,
    pub descriptor: i32,
    /// The address of the client, behind a balancer too; an IPv4 one as `::ffff:a.b.c.d`. A unix
    /// socket has none.
    pub address: Option<[u8; 16]>,
}

/// One slow request, as the slow log shows it to a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowRequest {
    /// Its number, which grows with time.
    pub id: u64,
    /// When its answer had been written, in seconds of Unix time.
    pub time_s: u64,
    /// How long it took, in microseconds.
    pub us: u64,
    /// The name of its command, as the protocol's table has it.
    pub command: String,
    /// Its first key or the hash of it, as far as clients may see it.
    pub key: Vec<u8>,
    /// How many bytes more the key has.
    pub key_cut: u64,
    /// The client's address, and the name that it gave itself.
    pub client: String,
    pub name: String,
}

/// One cause of a slow request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowSample {
    /// The cause's index, below 16, and its name in one word.
    pub cause: u8,
    pub name: &'static str,
    /// When the answer had been written, in seconds of Unix time.
    pub time_s: u64,
    /// How long the request was in the phase that the cause is about, in microseconds.
    pub us: u64,
}

/// The client's next state after a local command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLocal {
    /// It goes on.
    Continue,
    /// It is closed when it has its answer.
    Close,
    /// It has to log in again, where a login is required.
    LogOut,
    /// It goes on. The slow requests so far are hidden from it and from those who see the same.
    HideSlow,
    /// The same of these causes, which are bits by their indexes.
    HideCauses(u16),
    /// It goes on. No client that it may ask about is served for so long, or none that changes
    /// something.
    Pause { ms: u64, writes_only: bool },
    /// It goes on, and so do they.
    Unpause,
    /// It goes on, and is shown what the other clients of its pool ask.
    Monitor,
}

/// A name and a password: the proxy's for a server, or a client's for the proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub name: String,
    pub password: String,
}

/// Leaves out the password, since this may reach a log.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The meaning of a request from a client that has not logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login<'a> {
    /// A login. `goes_on`: after a right login the rest of the request is answered as well; after a
    /// wrong one the client keeps the login that it had.
    Attempt { name: Cow<'a, [u8]>, password: Cow<'a, [u8]>, goes_on: bool },
    /// It is about the login, and this is the whole answer to it.
    Answered(Vec<u8>),
    /// It needs no login: it ends the connection, or has no effect at all.
    Free,
    /// It needs a login first.
    Other,
}
