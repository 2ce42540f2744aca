//! Counters, rendered for people, for programs, and for twemproxy's collectors.
//!
//! ```text
//!   Book (shared memory) + Plan (names) + Facts (known only to the master) ──take──> Snapshot
//!   Snapshot ──> text | JSON | twemproxy's JSON
//! ```
//!
//! A snapshot is data, taken once, so all its renderings agree.

mod history;
mod json;
mod text;
mod twemproxy;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::iter;
use std::marker::PhantomData;

use metrics::{
    Counter, Histogram, Latency, Phase, PoolCounter, Registry, ServerCounter, Span, TenantCounter,
    Window, Windows, WorkerCounter,
};
use proto::Upstream;
use proxy::plan::{AdminState, Plan, PoolPlan, ServerPlan};
use proxy::tenants::plan::TenantPlan;

use crate::ipc::http_view::{NameCounts, Reloads};
use crate::scoreboard::Scoreboard;

pub use history::history;
pub use text::{duration, table, time};
pub use twemproxy::describe as describe_twemproxy;

/// All counters, with the names of their owners.
pub struct Snapshot {
    pub facts: Facts,
    /// The seconds that each window covers, in the order of `Span::ALL`.
    pub seconds: [u64; Span::ALL.len()],
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
    /// The limit of `buffer_bytes` of all workers together.
    pub memory_max: u64,
    /// Reloads since the start.
    pub reloads: Reloads,
    pub workers: Vec<WorkerFacts>,
    pub names: NameCounts,
    /// What is wrong with lists of servers that come from elsewhere, and which of them wait.
    pub lists: Vec<String>,
    /// Why servers are nowhere, by their ids.
    pub unresolved: BTreeMap<u32, String>,
    /// Why servers failed last, by their ids.
    pub failures: BTreeMap<u32, String>,
    /// What is wrong now, in sentences.
    pub problems: Vec<String>,
}

/// A worker as the master sees it.
#[derive(Clone, Debug)]
pub struct WorkerFacts {
    pub slot: usize,
    /// None while there is no process.
    pub pid: Option<u32>,
    /// The state as one word; `dead` while one that died is not started again.
    pub state: String,
    /// Times that it died or hung, and was started again.
    pub restarts: u64,
}

/// The master's decision about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Up,
    /// It fails, and stays in the ring.
    Down,
    /// An operator has it in maintenance, and nothing more is known.
    Maint,
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
    /// Reads and updates of all families, and the requests that failed.
    pub latencies: Vec<Times>,
    /// The families that were used, each with those of its reads and updates that there were.
    pub families: Vec<(&'static str, Vec<Times>)>,
    /// The phases of all requests, in the order of `metrics::Phase`.
    pub phases: Vec<Times>,
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
    pub admin: AdminState,
    pub health: Health,
    /// Why it is down, if the master knows.
    pub why: Option<String>,
    pub counts: Counts<ServerCounter>,
    /// Times from the queue to the reply: of all messages, then of reads and of updates.
    pub latencies: Vec<Times>,
}

/// The values of one table.
pub struct Counts<C> {
    /// In the order of the table.
    values: Vec<u64>,
    table: PhantomData<C>,
    /// Those that a server's protocol defines, by their names.
    own: Vec<(&'static str, u64)>,
}

/// The latencies of one kind of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// The kind.
    pub name: &'static str,
    pub since_start: Figures,
    /// In the order of `Span::ALL`.
    pub windows: [Figures; Span::ALL.len()],
}

/// A histogram in a few numbers, microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub count: u64,
    pub mean_us: u64,
    /// In the order of [`QUANTILES`].
    pub quantiles_us: [u64; QUANTILES.len()],
    pub max_us: u64,
}

/// The quantiles that are shown, with their names.
pub const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p98", 0.98), ("p99", 0.99), ("p99.9", 0.999)];

/// The histograms, since the start and of the last seconds and minutes.
struct Latencies<'a> {
    registry: &'a Registry,
    windows: [Window; Span::ALL.len()],
}

/// Reads the metrics registry. `health` returns the state of each server by its id.
pub fn take(
    (registry, windows): (&Registry, &Windows),
    plan: &Plan,
    facts: Facts,
    health: &dyn Fn(u32) -> Health,
) -> Snapshot {
    let worker = |facts: &WorkerFacts| WorkerStats {
        facts: facts.clone(),
        counts: Counts::of(|counter| registry.value(1 + facts.slot, WHOLE_WORKER, counter)),
    };
    let windows = Span::ALL.map(|span| windows.window(span));
    let seconds = [0, 1, 2].map(|at| windows[at].seconds);
    let latencies = &Latencies { registry, windows };
    let state = &|id| match (health(id), facts.unresolved.get(&id)) {
        // No worker has said so yet.
        (Health::Up, Some(why)) => (Health::Down, Some(why.clone())),
        (Health::Up, None) => (Health::Up, None),
        (health, why) => (health, why.or(facts.failures.get(&id)).cloned()),
    };
    Snapshot {
        seconds,
        totals: Counts::total(registry, WHOLE_WORKER),
        workers: facts.workers.iter().map(worker).collect(),
        pools: plan.pools.iter().map(|pool| take_pool(latencies, pool, state)).collect(),
        tenants: plan.tenants.iter().map(|tenant| take_tenant(latencies, tenant)).collect(),
        facts,
    }
}

fn take_tenant(latencies: &Latencies<'_>, plan: &TenantPlan) -> TenantStats {
    let kinds = [Latency::REQUESTS, Latency::QUEUE].iter().zip(metrics::TENANT_LATENCIES);
    let times = kinds.map(|(which, row)| latencies.times(row.name, plan.id, iter::once(*which)));
    TenantStats {
        name: plan.name.clone(),
        counts: Counts::total(latencies.registry, plan.id),
        latencies: times.collect(),
    }
}

fn take_pool(
    latencies: &Latencies<'_>,
    plan: &PoolPlan,
    state: &dyn Fn(u32) -> (Health, Option<String>),
) -> PoolStats {
    let upstream = plan.protocol.upstream();
    let kinds = [("reads", false), ("updates", true)];
    let all = kinds.map(|(name, updates)| latencies.times(name, plan.id, Latency::all(updates)));
    let failed = latencies.times("failed", plan.id, Latency::failed());
    let families = upstream.families().iter().zip(0..).filter_map(|(family, place)| {
        let times = kinds.map(|(name, is_update)| {
            latencies.times(name, plan.id, iter::once(Latency::of_family(place, is_update)))
        });
        let used: Vec<Times> =
            times.into_iter().filter(|times| times.since_start.count > 0).collect();
        (!used.is_empty()).then_some((*family, used))
    });
    let phases = Phase::ALL
        .map(|phase| latencies.times(phase.name(), plan.id, iter::once(Latency::of_phase(phase))));
    let servers = plan.servers.iter();
    PoolStats {
        name: plan.name.clone(),
        counts: Counts::total(latencies.registry, plan.id),
        latencies: all.into_iter().chain([failed]).collect(),
        families: families.collect(),
        phases: phases.into(),
        servers: servers.map(|server| take_server(latencies, server, upstream, state)).collect(),
    }
}

fn take_server(
    latencies: &Latencies<'_>,
    plan: &ServerPlan,
    upstream: &dyn Upstream,
    state: &dyn Fn(u32) -> (Health, Option<String>),
) -> ServerStats {
    let ((health, why), registry) = (state(plan.id), latencies.registry);
    let health = health.under(plan.admin);
    let both = [Latency::READS, Latency::UPDATES];
    let kinds = [("replies", &both[..]), ("reads", &both[..1]), ("updates", &both[1..])];
    let times = kinds.map(|(name, which)| latencies.times(name, plan.id, which.iter().copied()));
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
        admin: plan.admin,
        health,
        why,
        counts: Counts { own: own.collect(), ..Counts::of(value) },
        latencies: times.into(),
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

impl Latencies<'_> {
    /// Returns the figures of several histograms of a row together.
    fn times(
        &self,
        name: &'static str,
        row: u32,
        which: impl Iterator<Item = Latency> + Clone,
    ) -> Times {
        let windows = self.windows.each_ref();
        Times {
            name,
            since_start: Figures::of(&self.registry.histograms(row, which.clone())),
            windows: windows.map(|one| Figures::of(&one.histograms(row, which.clone()))),
        }
    }
}

impl Figures {
    fn of(histogram: &Histogram) -> Figures {
        Figures {
            count: histogram.count(),
            mean_us: histogram.mean(),
            quantiles_us: QUANTILES.map(|(_, share)| histogram.quantile(share)),
            max_us: histogram.max(),
        }
    }
}

/// Returns the state of a server: what the workers see, and what the master has decided.
pub fn health(scoreboard: &Scoreboard, id: u32) -> Health {
    let registry = scoreboard.registry();
    if scoreboard.is_ejected(id) {
        // The master alone writes it.
        let since_us = registry.value(0, id, ServerCounter::EjectedAt);
        return Health::Ejected { since_us };
    }
    match registry.total(id, ServerCounter::DownWorkersNow) {
        0 => Health::Up,
        _ => Health::Down,
    }
}

impl Health {
    /// Returns the same of a server that has this state by hand.
    pub fn under(self, admin: AdminState) -> Health {
        if admin == AdminState::Maint { Health::Maint } else { self }
    }

    pub fn word(self) -> &'static str {
        match self {
            Health::Up => "up",
            Health::Down => "down",
            Health::Maint => "maint",
            Health::Ejected { .. } => "ejected",
        }
    }
}

/// The id of a worker as a whole, beside those of pools and servers.
const WHOLE_WORKER: u32 = 0;
