//! Counters, rendered for people, for programs, and for twemproxy's collectors.
//!
//! ```text
//!   Book (shared memory) + Plan (names) + Facts (known only to the master) ──take──> Snapshot
//!   Snapshot ──> text | JSON | twemproxy's JSON
//! ```
//!
//! A snapshot is data, taken once, so all its renderings agree.

mod json;
mod text;
mod twemproxy;

#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use metrics::{
    Counter, Histogram, Latency, Metric, PoolCounter, Registry, ServerCounter, TenantCounter,
    WorkerCounter,
};
use proto::Upstream;
use proxy::plan::{Plan, PoolPlan, ServerPlan};
use proxy::tenants::plan::TenantPlan;

/// All counters, with the names of their owners.
pub struct Snapshot {
    pub facts: Facts,
    /// Sums over all slots, including those of dead workers.
    pub totals: Counts<WorkerCounter>,
    pub workers: Vec<WorkerStats>,
    /// In the order of the file.
    pub pools: Vec<PoolStats>,
    /// In the order of the file.
    pub tenants: Vec<TenantStats>,
}

/// Facts that only the master knows.
#[derive(Clone, Debug)]
pub struct Facts {
    pub release: String,
    /// The machine's name.
    pub host: String,
    /// Seconds since 1970.
    pub unix_s: u64,
    pub uptime_s: u64,
    /// Epoch of the configuration in effect.
    pub epoch: u64,
    pub workers: Vec<WorkerFacts>,
}

/// A worker as the master sees it.
#[derive(Clone, Debug)]
pub struct WorkerFacts {
    pub slot: usize,
    /// None while there is no process.
    pub pid: Option<u32>,
    /// The state as one word.
    pub state: String,
}

/// The master's decision about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Up,
    /// It fails, and stays in the ring.
    Down,
    /// It is out of the ring.
    Ejected {
        /// Microseconds since 1970.
        since_us: u64,
    },
}

pub struct WorkerStats {
    pub facts: WorkerFacts,
    pub counts: Counts<WorkerCounter>,
}

pub struct PoolStats {
    pub name: String,
    pub counts: Counts<PoolCounter>,
    /// In the order of `metrics::LATENCIES`.
    pub latencies: Vec<Times>,
    pub servers: Vec<ServerStats>,
}

pub struct TenantStats {
    pub name: String,
    pub counts: Counts<TenantCounter>,
    /// In the order of `metrics::TENANT_LATENCIES`.
    pub latencies: Vec<Times>,
}

pub struct ServerStats {
    /// The name shown to operators.
    pub label: String,
    /// The name in the ring and in twemproxy's JSON.
    pub name: String,
    pub health: Health,
    pub counts: Counts<ServerCounter>,
    /// Times from the queue to the reply.
    pub replies: Times,
}

/// The values of one table.
pub struct Counts<C> {
    /// In the order of the table.
    values: Vec<u64>,
    table: PhantomData<C>,
    /// Those that a server's protocol defines, by their names.
    own: Vec<(&'static str, u64)>,
}

/// A histogram in a few numbers, microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// Name of the histogram.
    pub name: &'static str,
    pub count: u64,
    pub mean_us: u64,
    /// In the order of [`QUANTILES`].
    pub quantiles_us: [u64; QUANTILES.len()],
    pub max_us: u64,
}

/// The quantiles that are shown, with their names.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)];

/// Reads the metrics registry. `health` returns the state of each server by its id.
pub fn take(
    registry: &Registry,
    plan: &Plan,
    facts: Facts,
    health: &dyn Fn(u32) -> Health,
) -> Snapshot {
    let worker = |facts: &WorkerFacts| WorkerStats {
        facts: facts.clone(),
        counts: Counts::of(|counter| registry.value(1 + facts.slot, WHOLE_WORKER, counter)),
    };
    Snapshot {
        totals: Counts::total(registry, WHOLE_WORKER),
        workers: facts.workers.iter().map(worker).collect(),
        pools: plan.pools.iter().map(|pool| take_pool(registry, pool, health)).collect(),
        tenants: plan.tenants.iter().map(|tenant| take_tenant(registry, tenant)).collect(),
        facts,
    }
}

fn take_tenant(registry: &Registry, plan: &TenantPlan) -> TenantStats {
    let latencies = [Latency::REQUESTS, Latency::QUEUE].iter().zip(metrics::TENANT_LATENCIES);
    let times = |(which, row): (&Latency, &Metric)| {
        Times::of(row.name, &registry.histogram(plan.id, *which))
    };
    TenantStats {
        name: plan.name.clone(),
        counts: Counts::total(registry, plan.id),
        latencies: latencies.map(times).collect(),
    }
}

fn take_pool(registry: &Registry, plan: &PoolPlan, health: &dyn Fn(u32) -> Health) -> PoolStats {
    let latencies = [Latency::Reads, Latency::Updates].iter().zip(metrics::LATENCIES);
    let times = |(which, row): (&Latency, &Metric)| {
        Times::of(row.name, &registry.histogram(plan.id, *which))
    };
    let (servers, upstream) = (plan.servers.iter(), plan.protocol.upstream());
    PoolStats {
        name: plan.name.clone(),
        counts: Counts::total(registry, plan.id),
        latencies: latencies.map(times).collect(),
        servers: servers.map(|server| take_server(registry, server, upstream, health)).collect(),
    }
}

fn take_server(
    registry: &Registry,
    plan: &ServerPlan,
    upstream: &dyn Upstream,
    health: &dyn Fn(u32) -> Health,
) -> ServerStats {
    let health = health(plan.id);
    let value = |counter| match (counter, health) {
        (ServerCounter::EjectedAt, Health::Ejected { since_us }) => since_us,
        (ServerCounter::EjectedAt, _) => 0,
        _ => registry.total(plan.id, counter),
    };
    let errors = upstream.retryable_errors().iter();
    let own = errors.map(|error| (error.counter, registry.total_own(plan.id, error.place)));
    ServerStats {
        label: plan.label.clone(),
        name: plan.name.clone(),
        health,
        counts: Counts { own: own.collect(), ..Counts::of(value) },
        replies: Times::of("replies", &registry.histogram(plan.id, Latency::REPLIES)),
    }
}

impl<C: Counter> Counts<C> {
    pub fn of(value: impl FnMut(C) -> u64) -> Counts<C> {
        let values = C::ALL.iter().copied().map(value).collect();
        Counts { values, table: PhantomData, own: Vec::new() }
    }

    fn total(registry: &Registry, id: u32) -> Counts<C> {
        Counts::of(|counter| registry.total(id, counter))
    }

    pub fn value(&self, counter: C) -> u64 {
        let name = counter.metric().name;
        self.rows().find(|(row, _)| *row == name).map_or(0, |(_, value)| value)
    }

    /// Returns the name of each counter, with its value.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = C::TABLE.iter().map(|row| row.name);
        names.zip(self.values.iter().copied()).chain(self.own.iter().copied())
    }
}

impl Times {
    fn of(name: &'static str, histogram: &Histogram) -> Times {
        Times {
            name,
            count: histogram.count(),
            mean_us: histogram.mean(),
            quantiles_us: QUANTILES.map(|(_, share)| histogram.quantile(share)),
            max_us: histogram.max(),
        }
    }
}

impl Health {
    fn word(self) -> &'static str {
        match self {
            Health::Up => "up",
            Health::Down => "down",
            Health::Ejected { .. } => "ejected",
        }
    }
}

/// The id of a worker as a whole, beside those of pools and servers.
const WHOLE_WORKER: u32 = 0;
