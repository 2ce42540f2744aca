//! The operator's decisions, compiled: immutable, complete, without names to look up. `config` in
//! the program builds a plan from a file; the data plane only reads it.

use std::collections::BTreeMap;
use std::rc::Rc;

use proto::{Credentials, Extra, Protocol};
use shard::{Distribution, Hash};

use super::limits::{self, Limits};
use super::part::LinkClass;
use super::tenants::plan::{RemovedUsers, TenantPlan};
use super::users::Users;

/// Everything that one `Proxy` needs to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Pools in the order of the file. A client belongs to the pool whose listener accepted it.
    pub pools: Vec<PoolPlan>,
    /// Bytes that all buffers together may hold. Above this limit values are refused, never queued.
    pub memory_max: usize,
    /// The most clients of all pools and all workers together.
    pub clients_max: usize,
    /// The most links that serve one client only, of all pools and all workers together.
    pub private_max: u64,
    /// The most clients of this worker, from its descriptor limit.
    pub clients_room: usize,
    /// How much of each kind may wait.
    pub limits: Limits,
    /// Groups of users and pools, with limits of their own.
    pub tenants: Vec<Rc<TenantPlan>>,
    /// What becomes of clients whose users are not in the next plan.
    pub removed_users: RemovedUsers,
}

/// One pool: the rules of a listener and the servers behind it.
#[derive(Clone)]
pub struct PoolPlan {
    /// The pool's id in the metrics registry and for the driver. A pool with the same id in the
    /// next plan is the same pool.
    pub id: u32,
    pub name: String,
    pub protocol: &'static dyn Protocol,
    pub hash: Hash,
    pub distribution: Distribution,
    /// The two bytes between which a part of the key is hashed instead of the whole.
    pub hash_tag: Option<[u8; 2]>,
    pub servers: Vec<ServerPlan>,
    /// The number of links to each server.
    pub server_connections: usize,
    /// The number of classes of links that have a link of their own to each server, beside those
    /// that all clients share: first slow requests, then control, then large requests, then those
    /// that go around one that takes long.
    pub class_links: usize,
    /// How many requests whose work was never tried a worker may have outstanding at a server: a
    /// few of all workers, and one of each.
    pub untried_max: usize,
    /// Connect before the first request needs it.
    pub preconnect: bool,
    pub timeouts: Timeouts,
    /// The silence, in microseconds, after which a server that owes an answer gets nothing more
    /// until bytes come from it. Without a value, messages are sent all the same.
    pub hold_after: Option<u64>,
    pub on_failure: OnFailure,
    /// Consecutive failures that take a server out of the ring (`OnFailure::Eject`).
    pub server_failure_limit: u32,
    /// How many servers may be out of the ring at once. If the file says nothing: half of them, but
    /// at least one.
    pub max_ejected: Option<usize>,
    /// How long an ejected server stays out before it is probed, in microseconds.
    pub server_retry_timeout: u64,
    /// The most clients of this pool, of all workers together. A further one is refused with an
    /// error.
    pub client_connections: usize,
    /// How much of a client's requests is kept while it reads nothing.
    pub client_buffer_max: usize,
    /// Each client has links of its own.
    pub private: bool,
    pub pubsub: PubSub,
    pub on_subscription_lost: OnSubscriptionLost,
    /// Gather gets of one loop turn into one multi-key get.
    pub merge_gets: bool,
    /// The end of a multi-key get for which a server did not answer.
    pub partial: Partial,
    /// Broadcast commands that the operator allows, by name.
    pub allow: Vec<String>,
    /// The proxy's credentials for the servers, if they require a login.
    pub server_login: Option<Credentials>,
    /// The tenant of its clients, as an index into `Plan::tenants`, unless their users have
    /// another.
    pub tenant: Option<usize>,
    /// The users who may log in; without them, no login is needed.
    pub users: Option<Rc<Users>>,
    /// The treatment of a request whose keys belong to several servers, where it could be split.
    pub multi_key: MultiKey,
    /// Databases that clients may choose, from 0 on.
    pub databases: u32,
    /// The database in which a connection begins; less than `databases`.
    pub database: u32,
    /// Commands that the operator names and the protocol does not know.
    pub extras: Vec<Extra>,
    /// The largest value, in bytes.
    pub item_size_max: usize,
    pub slow: SlowPlan,
    /// One in so many requests has a line in the access log; 0: none has.
    pub access_one_in: u32,
    /// When a client's pending ACK is flushed.
    pub quickack: QuickAck,
    /// When a link's pending ACK is flushed.
    pub server_quickack: QuickAck,
}

/// The servers at which subscriptions stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PubSub {
    /// All servers of the pool: whoever publishes, and where, is heard.
    #[default]
    All,
    /// The one server of the channel. There are no patterns then, unless it is the only server.
    Hashed,
}

/// What becomes of clients when a subscription of theirs is lost with its link: they may miss
/// messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSubscriptionLost {
    /// They are closed, so that they notice.
    #[default]
    Close,
    /// They are kept, and the subscription is made again.
    Keep,
}

/// The slow log of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPlan {
    /// A request that takes as long as this, in microseconds, is slow; `u64::MAX`: none is.
    pub after: u64,
    /// One in so many slow requests is recorded.
    pub one_in: u32,
    pub keys: SlowKeys,
}

impl Default for SlowPlan {
    fn default() -> SlowPlan {
        SlowPlan { after: u64::MAX, one_in: 1, keys: SlowKeys::Hash }
    }
}

/// What the slow log has of a request's first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowKeys {
    Hash,
    /// The key itself, or the beginning of a long one.
    Full,
    None,
}

/// One server, with its names for the ring and the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPlan {
    /// The server's id in the metrics registry and for the driver.
    pub id: u32,
    /// The name that the ring hashes: the server's own, or twemproxy's default for its address.
    pub name: String,
    /// The name shown to people: the one given, or the address.
    pub label: String,
    pub weight: u32,
    pub admin: AdminState,
    /// Its host has an address. Without one the server is down; its keys stay its own.
    pub has_address: bool,
    /// The name of another server of the pool that has the same address: what goes to all servers
    /// goes to that one alone, or the server would do it, or be counted, twice.
    pub twin_of: Option<String>,
    /// The ids of other servers of the plan that have the same address, in any pool: what one of
    /// them does keeps all of them busy, and an answer of one is an answer of all.
    pub others: Vec<u32>,
}

/// The state that the operator has given a server by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdminState {
    #[default]
    Ready,
    /// It gets no new requests while other servers can have its keys, and no link that is not
    /// needed.
    Drain,
    /// It is asked nothing and has no links.
    Maint,
}

impl OnFailure {
    /// Returns which servers are in the ring, by the states that they have by hand; none: it cannot
    /// be in it. Where keys may move, those that drain or are in maintenance are in it only while
    /// there is no better one: the last produce the error.
    pub fn in_ring(self, states: &[Option<AdminState>]) -> Vec<bool> {
        let best = states.iter().flatten().min();
        let is_in = |state: &Option<AdminState>| match self {
            OnFailure::Eject => state.is_some() && state.as_ref() == best,
            OnFailure::FailFast => state.is_some(),
        };
        states.iter().map(is_in).collect()
    }
}

impl AdminState {
    pub const ALL: [AdminState; 3] = [AdminState::Ready, AdminState::Drain, AdminState::Maint];

    pub fn word(self) -> &'static str {
        match self {
            AdminState::Ready => "ready",
            AdminState::Drain => "drain",
            AdminState::Maint => "maint",
        }
    }

    pub fn parse(word: &str) -> Option<AdminState> {
        AdminState::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// Timeouts in microseconds, each measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the call to connect until the link is up.
    pub connect: u64,
    /// From enqueue until the first byte is handed to the kernel.
    pub queue: u64,
    /// Silence of a server that owes an answer, since the request was sent or the answer before it
    /// came.
    pub reply: u64,
    /// How long a request may take whose work the data or its arguments decide, since it was sent.
    pub slow: u64,
    /// How long a client of which no more input can be kept may take nothing of its output.
    pub write: u64,
}

impl Timeouts {
    /// Returns the deadline of slow requests where the file names none.
    pub fn slow_default(reply: u64) -> u64 {
        reply.max(limits::TIMEOUT_SLOW_DEFAULT_US)
    }

    /// Returns how long a request of this class may wait until it is sent.
    pub(crate) fn queue_of(&self, class: LinkClass) -> u64 {
        match class {
            // A server that is busy takes no handshake for a while. And one large request may take
            // longer than a small one may wait.
            LinkClass::Control | LinkClass::Large => self.slow.max(self.queue),
            _ => self.queue,
        }
    }
}

/// The treatment of keys whose server has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The ring is rebuilt without the server: its keys move to the others until it is back.
    Eject,
    /// The ring stays; requests for the server's keys fail at once until it is back.
    FailFast,
}

/// The end of a multi-key get for which a server did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial {
    /// The hits of the other servers, then an error line.
    Error,
    /// The hits of the other servers, then a plain end: the rest look like misses.
    Miss,
}

/// The treatment of a request whose keys belong to several servers, where it could be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiKey {
    /// Each server gets its own keys, and one answer is made from theirs.
    Split,
    /// The client gets an error, so that one step never becomes several.
    Refuse,
}

/// When the pending ACK is flushed with `TCP_QUICKACK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickAck {
    /// Only when the received bytes cannot be answered yet. This costs nothing on whole requests.
    Partial,
    /// After every read.
    Always,
    Off,
}

impl Plan {
    /// Makes a plan of these pools without narrow bounds.
    pub fn new(pools: Vec<PoolPlan>) -> Plan {
        let mut plan = Plan {
            pools,
            memory_max: limits::MEMORY_DEFAULT,
            clients_max: usize::MAX,
            private_max: limits::PRIVATE_LINKS_MAX,
            clients_room: usize::MAX,
            limits: Limits::default(),
            tenants: Vec::new(),
            removed_users: RemovedUsers::default(),
        };
        plan.number();
        plan
    }

    /// Gives everything its first id: a pool, its servers, the next pool; then tenants. Id 0
    /// belongs to the worker.
    pub fn number(&mut self) {
        let mut ids = 1..;
        let mut next = || ids.next().expect("there are more numbers than servers");
        for pool in &mut self.pools {
            pool.id = next();
            pool.servers.iter_mut().for_each(|server| server.id = next());
        }
        self.tenants.iter_mut().for_each(|tenant| Rc::make_mut(tenant).id = next());
    }

    /// Returns how many ids the metrics registry must have.
    pub fn rows(&self) -> usize {
        let of_pool =
            |pool: &PoolPlan| pool.servers.iter().map(|server| server.id).fold(pool.id, u32::max);
        let tenants = self.tenants.iter().map(|tenant| tenant.id);
        self.pools.iter().map(of_pool).chain(tenants).max().unwrap_or(0) as usize + 1
    }

    /// Notes which servers are one, by the addresses of their ids. Of those of one pool, one that
    /// is in service stands for all.
    pub fn note_addresses(&mut self, addresses: &BTreeMap<u32, String>) {
        let mut all: BTreeMap<(&str, String), Vec<u32>> = BTreeMap::new();
        for pool in &mut self.pools {
            let protocol = pool.protocol.name();
            let address_of = |server: &ServerPlan| addresses.get(&server.id);
            let mut stand_ins: BTreeMap<&String, (bool, String)> = BTreeMap::new();
            for server in &mut pool.servers {
                server.has_address = addresses.contains_key(&server.id);
                let Some(address) = address_of(server) else { continue };
                all.entry((protocol, address.clone())).or_default().push(server.id);
                let is_ready = server.admin != AdminState::Maint;
                let one = stand_ins.entry(address).or_insert((is_ready, server.name.clone()));
                if is_ready && !one.0 {
                    *one = (true, server.name.clone());
                }
            }
            for server in &mut pool.servers {
                let one = address_of(server).and_then(|address| stand_ins.get(address));
                let other = one.map(|(_, name)| name).filter(|name| **name != server.name);
                server.twin_of = other.cloned();
            }
        }
        for pool in &mut self.pools {
            for server in &mut pool.servers {
                let address = addresses.get(&server.id).cloned().unwrap_or_default();
                let same = all.get(&(pool.protocol.name(), address)).into_iter().flatten();
                server.others = same.copied().filter(|id| *id != server.id).collect();
            }
        }
    }

    /// Returns the ids of pools that have a tenant, each with the tenant's.
    pub fn tenant_ids(&self) -> Vec<(u32, u32)> {
        let of_pool = |pool: &PoolPlan| Some((pool.id, self.tenants.get(pool.tenant?)?.id));
        self.pools.iter().filter_map(of_pool).collect()
    }
}

impl ServerPlan {
    /// Returns the ids of all servers that are this one.
    pub fn same_ids(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.id).chain(self.others.iter().copied())
    }

    /// Makes a server that has no id yet.
    pub fn new(name: &str, label: &str, weight: u32) -> ServerPlan {
        let (name, label) = (name.to_string(), label.to_string());
        let (admin, has_address) = (AdminState::Ready, true);
        let (twin_of, others) = (None, Vec::new());
        ServerPlan { id: 0, name, label, weight, admin, has_address, twin_of, others }
    }
}

impl PoolPlan {
    /// Makes a pool with twemproxy's defaults where it has them, and ours elsewhere.
    pub fn new(name: &str, protocol: &'static dyn Protocol, servers: Vec<ServerPlan>) -> PoolPlan {
        PoolPlan {
            id: 0,
            name: name.to_string(),
            protocol,
            hash: Hash::Fnv64a,
            distribution: Distribution::Ketama,
            hash_tag: None,
            servers,
            server_connections: 1,
            class_links: LinkClass::SPECIAL,
            untried_max: limits::UNTRIED_INFLIGHT_MAX,
            preconnect: false,
            timeouts: Timeouts {
                connect: limits::TIMEOUT_CONNECT_DEFAULT_US,
                queue: limits::TIMEOUT_QUEUE_DEFAULT_US,
                reply: limits::TIMEOUT_REPLY_DEFAULT_US,
                slow: Timeouts::slow_default(limits::TIMEOUT_REPLY_DEFAULT_US),
                write: limits::TIMEOUT_WRITE_DEFAULT_US,
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
            databases: limits::DATABASES_DEFAULT,
            database: 0,
            extras: Vec::new(),
            client_buffer_max: limits::CLIENT_BUFFER_DEFAULT,
            private: false,
            pubsub: PubSub::All,
            on_subscription_lost: OnSubscriptionLost::Close,
            allow: Vec::new(),
            server_login: None,
            users: None,
            tenant: None,
            item_size_max: limits::ITEM_SIZE_DEFAULT,
            slow: SlowPlan::default(),
            access_one_in: 0,
            quickack: QuickAck::Partial,
            server_quickack: QuickAck::Partial,
        }
    }

    pub(crate) fn logs_slow(&self) -> bool {
        self.slow.after != u64::MAX
    }

    /// Returns how many servers may be out of the ring at once.
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
    fn the_book_has_a_request_for_the_worker_and_for_all_that_is_numbered() {
        assert_eq!(Plan::new(Vec::new()).rows(), 1);
        let server = || ServerPlan::new("s", "s", 1);
        let pool = |count| {
            let servers = (0..count).map(|_| server()).collect();
            PoolPlan::new("pool", proto::PROTOCOLS[0], servers)
        };
        let mut plan = Plan::new(vec![pool(2), pool(0), pool(3)]);
        assert_eq!(plan.pools.iter().map(|pool| pool.id).collect::<Vec<_>>(), [1, 4, 5]);
        assert_eq!(plan.rows(), 9);
        // Ids are kept over reloads, so the highest need not be the last.
        plan.pools[0].servers[0].id = 40;
        assert_eq!(plan.rows(), 41);
        plan.pools[1].id = 50;
        assert_eq!(plan.rows(), 51);
    }

    #[test]
    fn servers_with_one_address_know_of_each_other_and_one_of_a_pool_stands_for_all() {
        let servers =
            |names: &[&str]| names.iter().map(|name| ServerPlan::new(name, name, 1)).collect();
        let pool = |names: &[&str]| PoolPlan::new("pool", proto::PROTOCOLS[0], servers(names));
        let mut plan = Plan::new(vec![pool(&["a", "b", "c", "d"]), pool(&["e"])]);
        let at = [(2, "h:1"), (3, "g:1"), (4, "h:1"), (7, "h:1")];
        let at = at.map(|(id, address)| (id, address.to_string())).into();
        for (out, twins) in [
            (&[][..], [None, None, Some("a"), None]),
            (&[0], [Some("c"), None, None, None]),
            (&[2], [None, None, Some("a"), None]),
            (&[0, 2], [None, None, Some("a"), None]),
        ] {
            for (nth, server) in plan.pools[0].servers.iter_mut().enumerate() {
                server.admin =
                    if out.contains(&nth) { AdminState::Maint } else { AdminState::Ready };
            }
            plan.note_addresses(&at);
            let servers = &plan.pools[0].servers;
            let found: Vec<_> = servers.iter().map(|server| server.twin_of.as_deref()).collect();
            assert_eq!(found, twins, "{out:?} in maint");
        }
        let [first, second] = [&plan.pools[0].servers, &plan.pools[1].servers];
        let others: Vec<&[u32]> = first.iter().chain(second).map(|one| &one.others[..]).collect();
        assert_eq!(others, [&[4, 7][..], &[], &[2, 7], &[], &[2, 4]]);
        assert_eq!(second[0].same_ids().collect::<Vec<_>>(), [7, 2, 4]);
        let has: Vec<bool> = first.iter().map(|server| server.has_address).collect();
        assert_eq!(has, [true, true, true, false]);
    }
}
