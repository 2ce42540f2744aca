//! `/metrics`: every row of the tables of counters, the latencies, and what the master knows, under
//! names for Prometheus. The reference page is made from the same families.
//!
//! The rules for names: a prefix for what is counted, base units (`busy_us_total` of a worker is
//! `quickack_worker_busy_seconds_total`), and `_now` for a gauge that has the name of a total.
//! Labels are `worker`, `pool`, `server`, `tenant`, `phase`, and `family` for commands: nothing
//! that a client sends becomes one.

mod facts;

use ::metrics::{
    Counter, Histogram, Latency, Metric, Phase, PoolCounter, Registry, ServerCounter,
    TENANT_LATENCIES, TenantCounter, WorkerCounter,
};
use http::{Exposition, Format, Kind, seconds};

use super::view::View;
use crate::ipc::http_view::{PoolNames, ServerNames};
use facts::FACTS;

/// A family of metrics: one name, and a sample for each thing that it is about.
struct Family {
    /// Without the suffix of its kind; with its unit at the end.
    name: String,
    kind: Kind,
    unit: Option<&'static str>,
    help: String,
    source: Source,
}

/// Where the samples come from.
enum Source {
    /// What the master has said, or what is computed.
    Fact(facts::Samples),
    Worker(WorkerCounter),
    Pool(PoolCounter),
    Server(ServerCounter),
    /// A counter that a protocol defines for its servers: the protocol's name, and the place.
    Protocol(&'static str, usize),
    Tenant(TenantCounter),
    /// A pool's updates, or its reads, of each family of commands.
    PoolTimes {
        updates: bool,
    },
    /// Those of its requests that failed.
    FailedTimes,
    /// The phases of a pool's requests.
    PhaseTimes,
    /// One of the histograms of a tenant.
    TenantTimes(Latency),
    /// A server's reads and updates.
    ServerTimes,
}

/// Renders the page. `now_us` is of the clock that all processes share.
pub fn page(view: &View, format: Format, now_us: u64) -> String {
    let mut page = Exposition::new(format);
    for family in families() {
        page.family(&family.name, family.kind, family.unit, &family.help);
        family.write(view, now_us, &mut page);
    }
    page.finish()
}

/// Every family, in the order of the page.
fn families() -> Vec<Family> {
    let mut all: Vec<Family> = FACTS.iter().map(facts::Fact::family).collect();
    all.extend(of_table("worker", Source::Worker));
    all.extend(of_table("pool", Source::Pool));
    let [reads, updates, failed] = ::metrics::LATENCIES else { unreachable!("three rows") };
    all.push(of_times("pool", reads, Source::PoolTimes { updates: false }));
    all.push(of_times("pool", updates, Source::PoolTimes { updates: true }));
    all.push(of_times("pool", failed, Source::FailedTimes));
    all.push(of_times("pool", &PHASES, Source::PhaseTimes));
    all.extend(of_table("tenant", Source::Tenant));
    let latencies = [Latency::REQUESTS, Latency::QUEUE].into_iter().zip(TENANT_LATENCIES);
    all.extend(latencies.map(|(which, row)| of_times("tenant", row, Source::TenantTimes(which))));
    all.extend(of_table("server", Source::Server));
    let replies = Metric {
        name: "replies",
        help: "Messages to a server: from entering the queue to the reply.",
        kind: ::metrics::Kind::Total,
    };
    all.push(of_times("server", &replies, Source::ServerTimes));
    for protocol in proto::NAMED {
        for error in protocol.upstream().retryable_errors() {
            let kind = ::metrics::Kind::Total;
            let row = Metric { name: error.counter, help: error.help, kind };
            let source = Source::Protocol(protocol.name(), error.place);
            all.push(of_row("server", &row, &[], source));
        }
    }
    all
}

fn of_table<C: Counter>(
    prefix: &'static str,
    source: fn(C) -> Source,
) -> impl Iterator<Item = Family> {
    let rows = C::ALL.iter().copied();
    rows.map(move |counter| of_row(prefix, counter.metric(), C::TABLE, source(counter)))
}

/// `table`: the rows beside this one.
fn of_row(prefix: &str, row: &Metric, table: &[Metric], source: Source) -> Family {
    let stem = row.name.trim_end_matches("_total");
    let is_total = |other: &Metric| other.name.strip_suffix("_total") == Some(stem);
    let (name, unit) = match (stem.strip_suffix("_at_us"), stem.strip_suffix("_us")) {
        (Some(what), _) => (format!("{what}_timestamp_seconds"), Some("seconds")),
        (None, Some(what)) => (format!("{what}_seconds"), Some("seconds")),
        _ if row.kind == ::metrics::Kind::Now && table.iter().any(is_total) => {
            (format!("{stem}_now"), None)
        }
        _ => (stem.to_string(), stem.ends_with("_bytes").then_some("bytes")),
    };
    let kind = match row.kind {
        ::metrics::Kind::Now => Kind::Gauge,
        ::metrics::Kind::Total => Kind::Counter,
    };
    let help = in_base_units(row.help);
    Family { name: format!("quickack_{prefix}_{name}"), kind, unit, help, source }
}

/// A row's help says what the row counts, in the row's unit.
fn in_base_units(help: &str) -> String {
    let help =
        help.replace("Microseconds of", "Seconds of").replace("Microseconds in", "Seconds in");
    help.replace("as Unix time in microseconds", "as Unix time")
}

fn of_times(prefix: &str, row: &Metric, source: Source) -> Family {
    Family {
        name: format!("quickack_{prefix}_{}_seconds", row.name),
        kind: Kind::Histogram,
        unit: Some("seconds"),
        help: row.help.to_string(),
        source,
    }
}

impl Family {
    fn write(&self, view: &View, now_us: u64, page: &mut Exposition) {
        let registry = view.scoreboard.registry();
        match self.source {
            Source::Fact(samples) => samples(view, now_us, page),
            Source::Worker(counter) => {
                for slot in 0..view.slots() {
                    let value = registry.value(1 + slot, WHOLE_WORKER, counter);
                    self.sample(&[("worker", &slot.to_string())], value, page);
                }
            }
            Source::Pool(counter) => {
                for pool in &view.names.pools {
                    self.sample(&of_pool(pool), registry.total(pool.id, counter), page);
                }
            }
            Source::Server(counter) => {
                for (pool, server) in view.servers() {
                    let value = registry.total(server.id, counter);
                    self.sample(&of_server(pool, server), value, page);
                }
            }
            Source::Protocol(name, place) => {
                for (pool, server) in view.servers().filter(|(pool, _)| pool.protocol == name) {
                    let value = registry.total_own(server.id, place);
                    self.sample(&of_server(pool, server), value, page);
                }
            }
            Source::PoolTimes { updates } => {
                for pool in &view.names.pools {
                    of_families(registry, pool, updates, page);
                }
            }
            Source::FailedTimes => {
                for pool in &view.names.pools {
                    let histogram = registry.histograms(pool.id, Latency::failed());
                    times(&[("pool", &pool.name)], &histogram, page);
                }
            }
            Source::PhaseTimes => {
                for pool in &view.names.pools {
                    for phase in Phase::ALL {
                        let which = std::iter::once(Latency::of_phase(phase));
                        let labels = [("pool", &*pool.name), ("phase", phase.name())];
                        times(&labels, &registry.histograms(pool.id, which), page);
                    }
                }
            }
            Source::Tenant(counter) => {
                for tenant in &view.names.tenants {
                    let value = registry.total(tenant.id, counter);
                    self.sample(&[("tenant", &tenant.name)], value, page);
                }
            }
            Source::TenantTimes(which) => {
                for tenant in &view.names.tenants {
                    let histogram = registry.histograms(tenant.id, std::iter::once(which));
                    times(&[("tenant", &tenant.name)], &histogram, page);
                }
            }
            Source::ServerTimes => {
                let both = [Latency::READS, Latency::UPDATES];
                for (pool, server) in view.servers() {
                    let histogram = registry.histograms(server.id, both.into_iter());
                    times(&of_server(pool, server), &histogram, page);
                }
            }
        }
    }

    /// Writes a counter of a table, whose times are in microseconds.
    fn sample(&self, labels: &[(&str, &str)], value: u64, page: &mut Exposition) {
        match self.unit {
            Some("seconds") => page.sample(labels, seconds(value)),
            _ => page.sample(labels, value),
        }
    }
}

fn of_families(registry: &Registry, pool: &PoolNames, updates: bool, page: &mut Exposition) {
    for (at, family) in families_of(pool).iter().enumerate() {
        let which = Latency::of_family(at as u8, updates);
        let histogram = registry.histograms(pool.id, std::iter::once(which));
        // Most pools have few families. The first says that there is the pool.
        if at == 0 || histogram.count() > 0 {
            times(&[("pool", &*pool.name), ("family", family)], &histogram, page);
        }
    }
}

fn times(labels: &[(&str, &str)], histogram: &Histogram, page: &mut Exposition) {
    let mut counts = histogram.up_to(EDGES_US);
    counts.push(histogram.count());
    page.histogram(labels, EDGES_US, &counts, histogram.sum());
}

/// Returns the families of commands of a pool's protocol.
fn families_of(pool: &PoolNames) -> &'static [&'static str] {
    let protocol = proto::NAMED.iter().find(|it| it.name() == pool.protocol);
    protocol.map_or(&[], |it| it.upstream().families())
}

fn of_pool(pool: &PoolNames) -> [(&'static str, &str); 1] {
    [("pool", &pool.name)]
}

fn of_server<'v>(pool: &'v PoolNames, server: &'v ServerNames) -> [(&'static str, &'v str); 2] {
    [("pool", &pool.name), ("server", &server.name)]
}

/// The reference: every family with its type, its labels and its help.
pub fn reference() -> String {
    let mut page = String::from("| name | type | labels | meaning |\n|---|---|---|---|\n");
    for family in families() {
        let (name, kind) = (&family.name, family.kind);
        let labels = match family.source {
            Source::Fact(_) => facts::labels(name),
            Source::Worker(_) => "worker",
            Source::Pool(_) | Source::FailedTimes => "pool",
            Source::PoolTimes { .. } => "pool, family",
            Source::PhaseTimes => "pool, phase",
            Source::Tenant(_) | Source::TenantTimes(_) => "tenant",
            Source::Server(_) | Source::Protocol(..) | Source::ServerTimes => "pool, server",
        };
        let (suffix, kind) = (kind.suffix(), kind.name());
        page += &format!("| `{name}{suffix}` | {kind} | {labels} | {} |\n", family.help);
    }
    let edges: Vec<String> = EDGES_US.iter().map(|edge| seconds(*edge)).collect();
    page + &format!("\nEdges of the histograms, in seconds: {}.\n", edges.join(", "))
}

/// All phases are one family of metrics, with a label for each.
const PHASES: Metric = Metric {
    name: "phase",
    help: "Phases of requests, of all or of a sample of them: reading the request, its queue, its \
           server, and writing the answer.",
    kind: ::metrics::Kind::Total,
};
/// The edges of each histogram, in microseconds. A stall by Nagle's algorithm and a delayed ACK is
/// one of 40 ms, between 36 and 48; a lost first packet costs 200 ms, between 190 and 230.
const EDGES_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 36_000, 48_000, 100_000, 190_000, 230_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];
/// The id of a worker as a whole, beside those of pools and servers.
const WHOLE_WORKER: u32 = 0;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_family_has_a_name_of_its_own_in_base_units() {
        let mut names = BTreeSet::new();
        for family in families() {
            let Family { name, help, unit, .. } = &family;
            assert!(names.insert(name.clone()), "two families are called {name}");
            assert!(help.ends_with('.') && !help.to_lowercase().contains("microsecond"), "{help}");
            let is_odd = |word: &str| matches!(word, "us" | "ms" | "total");
            assert!(!name.split('_').any(is_odd), "{name}");
            assert!(unit.is_none_or(|unit| name.ends_with(unit)), "{name}");
        }
        for name in [
            "quickack_worker_busy_seconds",
            "quickack_pool_clients",
            "quickack_pool_clients_now",
            "quickack_pool_received_bytes",
            "quickack_server_ejected_timestamp_seconds",
            "quickack_pool_reads_seconds",
            "quickack_server_again_no_script",
        ] {
            assert!(names.contains(name), "{name} is not among {names:?}");
        }
    }
}
