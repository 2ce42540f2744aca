//! What was counted, as people, programs, and twemproxy's collectors want to read it.
//!
//! ```text
//!   Book (shared memory) + Plan (names) + Facts (what only the master knows) ──take──> Snapshot
//!   Snapshot ──> text | JSON | twemproxy's JSON
//! ```
//!
//! A snapshot is data, taken once: the renderings of one agree with each other.

mod json;
mod text;
mod twemproxy;

#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use metrics::{Book, Counter, Histogram, Latency, Metric, Pool, Server, Worker};
use proxy::plan::{Plan, PoolPlan, ServerPlan};

/// Everything that was counted, and whose it is.
pub struct Snapshot {
    pub facts: Facts,
    /// Of all slots, those of dead workers among them.
    pub totals: Counts<Worker>,
    pub workers: Vec<WorkerStats>,
    /// In the order of the file.
    pub pools: Vec<PoolStats>,
}

/// What only the master knows.
#[derive(Clone, Debug)]
pub struct Facts {
    pub release: String,
    /// The machine's name.
    pub host: String,
    /// Seconds since 1970.
    pub unix_s: u64,
    pub uptime_s: u64,
    /// The configuration that holds.
    pub epoch: u64,
    pub workers: Vec<WorkerFacts>,
}

/// A worker as the master sees it.
#[derive(Clone, Debug)]
pub struct WorkerFacts {
    pub slot: usize,
    /// None while there is no process.
    pub pid: Option<u32>,
    /// One word.
    pub state: String,
}

/// What the master has decided about a server.
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
    pub counts: Counts<Worker>,
}

pub struct PoolStats {
    pub name: String,
    pub counts: Counts<Pool>,
    /// As `metrics::LATENCIES` has them.
    pub latencies: Vec<Times>,
    pub servers: Vec<ServerStats>,
}

pub struct ServerStats {
    /// What people call it.
    pub label: String,
    /// What the ring and twemproxy call it.
    pub name: String,
    pub health: Health,
    pub counts: Counts<Server>,
    /// From the queue to the reply.
    pub replies: Times,
}

/// The values of one table.
pub struct Counts<C> {
    /// In its order.
    values: Vec<u64>,
    table: PhantomData<C>,
}

/// A histogram in a few numbers, microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// Whose.
    pub name: &'static str,
    pub count: u64,
    pub mean_us: u64,
    /// As [`QUANTILES`] has them.
    pub quantiles_us: [u64; QUANTILES.len()],
    pub max_us: u64,
}

/// The shares that are shown, and how they are called.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)];

/// Reads the book. `health` is asked for each server's id.
pub fn take(book: &Book, plan: &Plan, facts: Facts, health: &dyn Fn(u32) -> Health) -> Snapshot {
    let worker = |facts: &WorkerFacts| WorkerStats {
        facts: facts.clone(),
        counts: Counts::of(|counter| book.value(1 + facts.slot, WHOLE_WORKER, counter)),
    };
    Snapshot {
        totals: Counts::total(book, WHOLE_WORKER),
        workers: facts.workers.iter().map(worker).collect(),
        pools: plan.pools.iter().map(|pool| take_pool(book, pool, health)).collect(),
        facts,
    }
}

fn take_pool(book: &Book, plan: &PoolPlan, health: &dyn Fn(u32) -> Health) -> PoolStats {
    let latencies = [Latency::Reads, Latency::Updates].iter().zip(metrics::LATENCIES);
    let times =
        |(which, row): (&Latency, &Metric)| Times::of(row.name, &book.histogram(plan.row, *which));
    PoolStats {
        name: plan.name.clone(),
        counts: Counts::total(book, plan.row),
        latencies: latencies.map(times).collect(),
        servers: plan.servers.iter().map(|server| take_server(book, server, health)).collect(),
    }
}

fn take_server(book: &Book, plan: &ServerPlan, health: &dyn Fn(u32) -> Health) -> ServerStats {
    let health = health(plan.row);
    let value = |counter| match (counter, health) {
        (Server::EjectedAt, Health::Ejected { since_us }) => since_us,
        (Server::EjectedAt, _) => 0,
        _ => book.total(plan.row, counter),
    };
    ServerStats {
        label: plan.label.clone(),
        name: plan.name.clone(),
        health,
        counts: Counts::of(value),
        replies: Times::of("replies", &book.histogram(plan.row, Latency::REPLIES)),
    }
}

impl<C: Counter> Counts<C> {
    pub fn of(value: impl FnMut(C) -> u64) -> Counts<C> {
        Counts { values: C::ALL.iter().copied().map(value).collect(), table: PhantomData }
    }

    fn total(book: &Book, id: u32) -> Counts<C> {
        Counts::of(|counter| book.total(id, counter))
    }

    pub fn value(&self, counter: C) -> u64 {
        let name = counter.metric().name;
        self.rows().find(|(row, _)| row.name == name).map_or(0, |(_, value)| value)
    }

    /// Each counter's line of its table, and its value.
    pub fn rows(&self) -> impl Iterator<Item = (&'static Metric, u64)> {
        C::TABLE.iter().zip(self.values.iter().copied())
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
