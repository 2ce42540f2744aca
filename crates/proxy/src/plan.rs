//! What the operator decided, compiled: immutable, complete, free of names to look up.
//! `config` in the program builds it from a file; the data plane only reads it.

use std::rc::Rc;

use proto::{Credentials, Extra, Protocol};
use shard::{Distribution, Hash};

use crate::limits::{self, Limits};
use crate::users::Users;

/// Everything one `Proxy` needs to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In the order of the file; a client belongs to the pool whose listener accepted it.
    pub pools: Vec<PoolPlan>,
    /// Bytes that all buffers together may hold. Above it values are refused, never queued.
    pub memory_max: usize,
    /// Clients of all pools and all workers together.
    pub clients_max: usize,
    /// Clients of this worker: what its descriptor limit leaves room for.
    pub clients_room: usize,
    /// How much of each kind may wait.
    pub limits: Limits,
}

/// One pool: a listener's rules and the servers behind it.
#[derive(Clone)]
pub struct PoolPlan {
    /// Its row in the book of counters, and its name towards the driver. Whatever the plan that
    /// comes next calls by this number is this pool.
    pub row: u32,
    pub name: String,
    pub protocol: &'static dyn Protocol,
    pub hash: Hash,
    pub distribution: Distribution,
    /// Only what stands between these two bytes of a key is hashed.
    pub hash_tag: Option<[u8; 2]>,
    pub servers: Vec<ServerPlan>,
    /// Links to each server.
    pub server_connections: usize,
    /// Connect before the first request asks for it.
    pub preconnect: bool,
    pub timeouts: Timeouts,
    /// A server that owes an answer and has been silent this long, microseconds, is sent nothing
    /// more until it speaks. Without it, it is sent everything at once.
    pub hold_after: Option<u64>,
    pub on_failure: OnFailure,
    /// Failures in a row that take a server out of the ring (`OnFailure::Eject`).
    pub server_failure_limit: u32,
    /// How many servers may be out of the ring at once; half of them, but one at least, where the
    /// file says nothing.
    pub max_ejected: Option<usize>,
    /// How long an ejected server stays out before it is probed, microseconds.
    pub server_retry_timeout: u64,
    /// Clients of this pool, of all workers together; one more is refused with a sentence.
    pub client_connections: usize,
    /// Gather gets of one loop turn into one multi-key get.
    pub merge_gets: bool,
    /// What ends a multi-key get when a server did not answer.
    pub partial: Partial,
    /// Broadcast commands that the operator allows, by name.
    pub allow: Vec<String>,
    /// Who we are to the servers, where they want to know.
    pub server_login: Option<Credentials>,
    /// Who may log in; without it nobody has to.
    pub users: Option<Rc<Users>>,
    /// What becomes of a request whose keys live on several servers, where it could be split.
    pub multi_key: MultiKey,
    /// Databases that clients may choose, from 0 on.
    pub spaces: u32,
    /// The one that a connection begins in; less than `spaces`.
    pub space: u32,
    /// Commands that the protocol does not know, and the operator does.
    pub extras: Vec<Extra>,
    /// The largest value, bytes.
    pub item_size_max: usize,
    /// When a client's pending ACK is flushed.
    pub quickack: QuickAck,
    /// The same for the pool's links.
    pub server_quickack: QuickAck,
}

/// One server as the ring and the operator name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPlan {
    /// As of its pool: its row in the book, and what it is known by.
    pub row: u32,
    /// What the ring hashes: its own name, or twemproxy's default for its address.
    pub name: String,
    /// What is shown to people: the name given, or the address.
    pub label: String,
    pub weight: u32,
}

/// Microseconds, each with its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the call to connect until the link stands.
    pub connect: u64,
    /// From enqueue until the first byte is handed to the kernel.
    pub queue: u64,
    /// Silence of a server that owes an answer: since the request was sent, or the answer before it
    /// came.
    pub reply: u64,
}

/// What becomes of keys whose server is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The ring is rebuilt without it: its keys move to the others until it is back.
    Eject,
    /// The ring stays; requests for its keys fail at once until it is back.
    FailFast,
}

/// What ends a multi-key get when a server did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial {
    /// The hits of the living servers, then an error line.
    Error,
    /// The hits of the living servers, then a plain end: the rest look like misses.
    Miss,
}

/// What becomes of a request whose keys live on several servers, where it could be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiKey {
    /// Each server is asked for its own keys, and one answer is made of theirs.
    Split,
    /// The client is told; so nothing that was one step becomes several.
    Refuse,
}

/// When the pending ACK is flushed with `TCP_QUICKACK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickAck {
    /// Only when what has arrived cannot be answered yet: free on whole requests.
    Partial,
    /// After every read.
    Always,
    Off,
}

impl Plan {
    /// A plan of these pools without narrow bounds.
    pub fn new(pools: Vec<PoolPlan>) -> Plan {
        let mut plan = Plan {
            pools,
            memory_max: limits::MEMORY_DEFAULT,
            clients_max: usize::MAX,
            clients_room: usize::MAX,
            limits: Limits::default(),
        };
        plan.number();
        plan
    }

    /// Numbers everything for the first time: a pool, its servers, the next pool. Row 0 is the
    /// worker's own.
    pub fn number(&mut self) {
        let mut rows = 1..;
        let mut next = || rows.next().expect("there are more numbers than servers");
        for pool in &mut self.pools {
            pool.row = next();
            pool.servers.iter_mut().for_each(|server| server.row = next());
        }
    }

    /// How many rows the book must have.
    pub fn rows(&self) -> usize {
        let of_pool =
            |pool: &PoolPlan| pool.servers.iter().map(|server| server.row).fold(pool.row, u32::max);
        self.pools.iter().map(of_pool).max().unwrap_or(0) as usize + 1
    }
}

impl ServerPlan {
    /// A server that has no number yet.
    pub fn new(name: &str, label: &str, weight: u32) -> ServerPlan {
        ServerPlan { row: 0, name: name.to_string(), label: label.to_string(), weight }
    }
}

impl PoolPlan {
    /// A pool with twemproxy's defaults where it has them and ours elsewhere.
    pub fn new(name: &str, protocol: &'static dyn Protocol, servers: Vec<ServerPlan>) -> PoolPlan {
        PoolPlan {
            row: 0,
            name: name.to_string(),
            protocol,
            hash: Hash::Fnv64a,
            distribution: Distribution::Ketama,
            hash_tag: None,
            servers,
            server_connections: 1,
            preconnect: false,
            timeouts: Timeouts {
                connect: limits::TIMEOUT_CONNECT_DEFAULT_US,
                queue: limits::TIMEOUT_QUEUE_DEFAULT_US,
                reply: limits::TIMEOUT_REPLY_DEFAULT_US,
            },
            hold_after: Some(limits::HOLD_AFTER_DEFAULT_US),
            on_failure: OnFailure::FailFast,
            server_failure_limit: 2,
            max_ejected: None,
            server_retry_timeout: 30_000_000,
            client_connections: usize::MAX,
            merge_gets: true,
            partial: Partial::Error,
            multi_key: MultiKey::Split,
            spaces: limits::SPACES_DEFAULT,
            space: 0,
            extras: Vec::new(),
            allow: Vec::new(),
            server_login: None,
            users: None,
            item_size_max: limits::ITEM_SIZE_DEFAULT,
            quickack: QuickAck::Partial,
            server_quickack: QuickAck::Partial,
        }
    }

    /// How many servers may be out of the ring at once.
    pub fn ejected_max(&self) -> usize {
        // twemproxy ejects the only server of a pool, too.
        self.max_ejected.unwrap_or((self.servers.len() / 2).max(1))
    }
}

impl std::fmt::Debug for PoolPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolPlan").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_has_a_row_for_the_worker_and_for_all_that_is_numbered() {
        assert_eq!(Plan::new(Vec::new()).rows(), 1);
        let server = || ServerPlan::new("s", "s", 1);
        let pool = |count| {
            let servers = (0..count).map(|_| server()).collect();
            PoolPlan::new("pool", proto::PROTOCOLS[0], servers)
        };
        let mut plan = Plan::new(vec![pool(2), pool(0), pool(3)]);
        assert_eq!(plan.pools.iter().map(|pool| pool.row).collect::<Vec<_>>(), [1, 4, 5]);
        assert_eq!(plan.rows(), 9);
        // Rows are kept over reloads, so the highest need not be the last.
        plan.pools[0].servers[0].row = 40;
        assert_eq!(plan.rows(), 41);
        plan.pools[1].row = 50;
        assert_eq!(plan.rows(), 51);
    }
}
