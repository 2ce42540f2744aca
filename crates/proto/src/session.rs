//! What is known of a connection, and who is at its other end: apart from `message.rs`, which is
//! about one request and what answers it.

use std::borrow::Cow;

use crate::{Lane, Skills};

/// What a connection has said about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// Its number: no other client of this proxy has it. 0 until it is asked for.
    pub id: u64,
    pub lane: Lane,
    pub muted: Muted,
    /// What it asks is refused, whatever it is, until it says so: it has asked for something that
    /// is all or nothing, and was refused. A client that waits for that answer is closed.
    pub void: bool,
    /// What few connections say more. In a box: connections at rest are many.
    pub profile: Option<Box<Profile>>,
}

/// Whether a client wants answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Muted {
    /// It does.
    #[default]
    No,
    /// Not to what comes next.
    Next,
    /// Not to what is being answered now.
    Now,
    /// Not until it says so.
    Yes,
}

/// What a client has told about itself, which is told back when it asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Profile {
    pub user: Vec<u8>,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    pub no_evict: bool,
    pub no_touch: bool,
}

/// What a protocol must know of the proxy to answer by itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub pool: &'a str,
    /// Our name and version.
    pub version: &'a str,
    /// What all servers can of which that is known.
    pub skills: Option<Skills>,
    /// Databases that may be chosen, from 0 on.
    pub spaces: u32,
    /// Where a connection to this pool begins.
    pub lane: Lane,
    pub servers: usize,
    /// Clients of the pool, of all workers.
    pub clients: u64,
    pub uptime_s: u64,
    /// Clients have to log in.
    pub has_users: bool,
    /// Where its connection begins and ends, if that was asked for.
    pub ends: Option<&'a Ends>,
    /// How long the client has been here.
    pub age_s: u64,
}

/// Where a connection begins and ends, as its driver knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// `address:port` of the client, and ours; of a unix socket its path, and 0.
    pub from: String,
    pub to: String,
    pub descriptor: i32,
}

/// What becomes of a client after an answer of its protocol's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It goes on.
    Stay,
    /// It is closed when it has been answered.
    Leave,
    /// It has to say again who it is, where that is asked for.
    LogOut,
}

/// Who we are to a server, or who a client says it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub name: String,
    pub password: String,
}

/// Without the password: this may reach a log.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a request is to a proxy whose client has not logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login<'a> {
    /// A try. `goes_on`: if it is right, it is answered as what else it asks; if it is wrong, its
    /// client stays who it was.
    Attempt { name: Cow<'a, [u8]>, password: Cow<'a, [u8]>, goes_on: bool },
    /// It asks how to log in.
    Mechanisms,
    /// It needs none: it says good-bye, or nothing at all.
    Free,
    /// It has to wait.
    Other,
}
