//! The proxy's own facts and counters, for the protocols that ask for them.

use metrics::{PoolCounter, ServerCounter, WorkerCounter, WorkerMetrics};
use proto::{Facts, Process, ProxyFacts, Totals};

use crate::base::pool::{Pool, Server, Stage};

/// A pool, the counters of all workers, and the master's facts in the metrics registry.
pub(crate) struct PoolFacts<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) metrics: WorkerMetrics,
    /// How long this worker has run, in microseconds.
    pub(crate) uptime: u64,
}

impl ProxyFacts for PoolFacts<'_> {
    fn facts(&self) -> Facts<'_> {
        let PoolFacts { pool, metrics, uptime } = self;
        Facts {
            pool: &pool.plan.name,
            version: VERSION,
            capabilities: pool.capabilities(),
            databases: pool.plan.databases,
            conn_key: pool.conn_keys.of(pool.conn_keys.home),
            servers: pool.planned(),
            clients: metrics.total(pool.plan.id, PoolCounter::ClientsNow),
            uptime_s: uptime / 1_000_000,
            has_users: pool.plan.users.is_some(),
            // These belong to one client.
            endpoints: None,
            age_s: 0,
        }
    }

    fn totals(&self) -> Totals {
        let PoolFacts { pool, metrics, .. } = self;
        let of_pool = |counter| metrics.total(pool.plan.id, counter);
        let of_servers = |counter: ServerCounter| {
            // The id of a vacant place may belong to another server by now.
            let servers = pool.servers.iter().filter(|one| one.stage != Stage::Vacant);
            let of_one = |one: &Server| metrics.total(one.plan.id, counter);
            servers.map(of_one).fold(0, u64::wrapping_add)
        };
        Totals {
            clients: of_pool(PoolCounter::ClientsNow),
            clients_ever: of_pool(PoolCounter::ClientsTotal),
            clients_refused: of_pool(PoolCounter::ClientsRefused),
            requests: of_pool(PoolCounter::Requests),
            refused: of_pool(PoolCounter::Refused),
            keys_asked: of_pool(PoolCounter::KeysAsked),
            hits: of_pool(PoolCounter::Hits),
            misses: of_pool(PoolCounter::Misses),
            stores: of_pool(PoolCounter::Stores),
            logins: of_pool(PoolCounter::Logins),
            logins_failed: of_pool(PoolCounter::LoginsFailed),
            client_bytes_received: of_pool(PoolCounter::ReceivedBytes),
            client_bytes_sent: of_pool(PoolCounter::SentBytes),
            server_bytes_sent: of_servers(ServerCounter::MessageBytes),
            server_bytes_received: of_servers(ServerCounter::ReplyBytes),
        }
    }

    fn process(&self) -> Process {
        let told = self.metrics.registry().process();
        Process {
            pid: told.pid,
            uptime_s: told.told_s - told.started_s.min(told.told_s),
            time_s: told.told_s,
            workers: told.workers,
            clients_max: told.clients_max,
            user_us: self.metrics.total(0, WorkerCounter::UserUs),
            system_us: self.metrics.total(0, WorkerCounter::SystemUs),
        }
    }
}

/// The proxy's name and version; a protocol adds the version that its clients expect.
pub(crate) const VERSION: &str = concat!("quickack-", env!("CARGO_PKG_VERSION"));
