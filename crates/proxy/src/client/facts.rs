//! The proxy's own facts and counters, for the protocols that ask for them.

use metrics::{
    PoolCounter, ServerCounter, SlowEntry, SlowHead, SlowReset, WorkerCounter, WorkerMetrics,
};
use proto::{
    Endpoints, Facts, Process, ProxyFacts, SlowRequest, SlowSample, Told, TopicKind, Totals,
};

use crate::base::pool::{Pool, Server, Stage};
use crate::base::slow::{Cause, key_text};

/// A pool, the counters of all workers, and the master's facts in the metrics registry.
pub(crate) struct PoolFacts<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) metrics: WorkerMetrics,
    /// How long this worker has run, in microseconds.
    pub(crate) uptime: u64,
    pub(crate) client: ClientFacts<'a>,
    /// What all workers have told, if they were asked.
    pub(crate) told: Option<&'a Result<Told, String>>,
}

/// What belongs to the client that asks, as far as its answer may need it.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClientFacts<'a> {
    pub(crate) endpoints: Option<&'a Endpoints>,
    pub(crate) age_s: u64,
    pub(crate) topics: [u32; 3],
    /// The id of its tenant; 0 if it has none.
    pub(crate) tenant: u32,
}

impl ProxyFacts for PoolFacts<'_> {
    fn facts(&self) -> Facts<'_> {
        let PoolFacts { pool, metrics, uptime, client, .. } = self;
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
            endpoints: client.endpoints,
            age_s: client.age_s,
            topics: client.topics,
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

    fn slow_requests(&self, most: usize) -> Vec<SlowRequest> {
        let heads = self.slow_heads(SlowReset::Clients);
        let registry = self.metrics.registry();
        let newest = heads.iter().rev().take(most);
        newest.filter_map(|head| Some(self.slow_request(registry.slow_entry(head)?))).collect()
    }

    fn has_user(&self, name: &str) -> bool {
        let users = self.pool.plan.users.as_ref();
        name == "default" || users.is_some_and(|users| users.find(name.as_bytes()).is_some())
    }

    fn told(&self) -> Option<&Result<Told, String>> {
        self.told
    }

    fn listeners(&self, kind: TopicKind, topic: &[u8]) -> usize {
        self.pool.topics.listeners(kind, topic)
    }

    fn slow_count(&self) -> usize {
        self.slow_heads(SlowReset::Clients).len()
    }

    fn slow_samples(&self) -> Vec<SlowSample> {
        let (registry, row) = (self.metrics.registry(), self.slow_row());
        let heads = self.slow_heads(SlowReset::All);
        let hidden_us = |cause| registry.slow_reset_us(row, SlowReset::Cause(cause));
        let hidden_us: Vec<u64> = (0..SlowReset::CAUSES as u8).map(hidden_us).collect();
        let of_head = |head: &SlowHead| {
            let SlowHead { at_us, phases, causes, .. } = *head;
            let time_s = self.unix_s(at_us);
            Cause::of_bits(causes).map(move |&(cause, ..)| {
                let (name, us) = (cause.event(), cause.time_of(phases));
                (SlowSample { cause: cause.place(), name, time_s, us }, at_us)
            })
        };
        let all = heads.iter().flat_map(of_head);
        let shown = all.filter(|(one, at_us)| *at_us > hidden_us[usize::from(one.cause)]);
        shown.map(|(sample, _)| sample).collect()
    }
}

impl PoolFacts<'_> {
    /// Returns the row with the resets that hold for the client.
    fn slow_row(&self) -> u32 {
        slow_row(self.pool, self.client.tenant)
    }

    fn slow_heads(&self, reset: SlowReset) -> Vec<SlowHead> {
        self.metrics.registry().slow_heads(self.pool.plan.id, self.client.tenant, reset)
    }

    fn slow_request(&self, entry: SlowEntry) -> SlowRequest {
        let us = entry.phases.iter().sum();
        let (key, key_cut) = key_text(&entry);
        let SlowEntry { number, at_us, command, client, name, .. } = entry;
        SlowRequest {
            id: number,
            time_s: self.unix_s(at_us),
            us,
            command,
            key,
            key_cut,
            client,
            name,
        }
    }

    fn unix_s(&self, at_us: u64) -> u64 {
        at_us.wrapping_add(self.metrics.registry().process().unix_ahead_us) / 1_000_000
    }
}

/// Returns the row with the resets that hold for clients of a pool and a tenant.
pub(crate) fn slow_row(pool: &Pool, tenant: u32) -> u32 {
    if tenant == 0 { pool.plan.id } else { tenant }
}

/// The proxy's name and version; a protocol adds the version that its clients expect.
pub(crate) const VERSION: &str = concat!("quickack-", env!("CARGO_PKG_VERSION"));
