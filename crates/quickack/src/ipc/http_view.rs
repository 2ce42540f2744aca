//! What the HTTP process knows beside the shared memory. The names change with the configuration,
//! and may be long; the state is short. Nothing in either is secret: a configuration has passwords,
//! and never goes to that process.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The names of one configuration, and what else of it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    pub memory_max: u64,
    pub private_max: u64,
    pub pools: Vec<PoolNames>,
    pub tenants: Vec<TenantNames>,
}

/// A tenant, by its id in the shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantNames {
    pub id: u32,
    pub name: String,
}

/// A pool, by its id in the shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolNames {
    pub id: u32,
    pub name: String,
    /// The name of its protocol.
    pub protocol: String,
    /// The proxy is not ready while none of its servers is up.
    pub required: bool,
    /// The file of its unix socket, with its inode.
    pub socket: Option<(PathBuf, u64)>,
    pub servers: Vec<ServerNames>,
}

/// A server, by its id in the shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerNames {
    pub id: u32,
    /// Unique among the servers of its pool.
    pub name: String,
    /// The state that an operator has given it, as its word.
    pub admin: String,
    /// Its host has an address.
    pub has_address: bool,
}

/// What the master alone knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The proxy ends: no more clients are taken, or none soon.
    pub draining: bool,
    /// Workers that died, by slot, since the proxy started.
    pub deaths: Vec<u64>,
    /// Deaths of the HTTP process.
    pub http_deaths: u64,
    pub reloads: Reloads,
    pub names: NameCounts,
    /// Lines of the log that could not be written.
    pub log_lines_lost: u64,
}

/// What has come of the names of servers since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameCounts {
    /// Look-ups that had no answer, or one without an address.
    pub lookups_failed: u64,
    /// Servers that got another address.
    pub address_changes: u64,
    /// Lists of servers that could not be taken, or were empty or wrong.
    pub lists_failed: u64,
    /// Pools that got another list.
    pub list_changes: u64,
    /// Pools whose newest list waits, because it would move keys.
    pub lists_waiting: u64,
}

/// Reloads since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloads {
    pub applied: u64,
    pub refused: u64,
    /// The last one was applied.
    pub last_applied: bool,
    /// When the last one was that was applied, in seconds since 1970; at first, the start.
    pub applied_unix_s: u64,
    /// The last ones, for the page; the oldest is first. The HTTP process asks for them.
    #[serde(skip)]
    pub last: VecDeque<Reload>,
}

/// How one reload ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reload {
    pub unix_s: u64,
    pub applied: bool,
    pub text: String,
}

impl Default for Reloads {
    fn default() -> Self {
        Reloads {
            applied: 0,
            refused: 0,
            last_applied: true,
            applied_unix_s: 0,
            last: VecDeque::new(),
        }
    }
}

impl Reloads {
    /// None since then, in seconds since 1970.
    pub fn since(applied_unix_s: u64) -> Reloads {
        Reloads { applied_unix_s, ..Reloads::default() }
    }

    /// Counts one.
    pub fn note(&mut self, applied: bool, unix_s: u64, text: &str) {
        if self.last.len() == LAST_MAX {
            self.last.pop_front();
        }
        let text = text.chars().take(TEXT_LEN_MAX).collect();
        self.last.push_back(Reload { unix_s, applied, text });
        self.last_applied = applied;
        match applied {
            true => (self.applied, self.applied_unix_s) = (self.applied + 1, unix_s),
            false => self.refused += 1,
        }
    }
}

impl Names {
    pub fn seal(&self) -> std::io::Result<OwnedFd> {
        sys::memory::sealed("quickack-names", &serde_json::to_vec(self)?)
    }

    pub fn read(fd: OwnedFd) -> std::io::Result<Names> {
        Ok(serde_json::from_slice(&sys::memory::read_sealed(fd)?)?)
    }
}

/// Reloads that are kept for the page, and characters of each.
const LAST_MAX: usize = 20;
const TEXT_LEN_MAX: usize = 400;
