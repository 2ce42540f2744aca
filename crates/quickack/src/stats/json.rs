//! For programs: every counter under its name in the reference, without computed values.

use metrics::{Counter, Span};
use serde_json::{Map, Value, json};

use super::{
    Counts, Figures, Health, PoolStats, QUANTILES, ServerStats, Snapshot, TenantStats, Times,
};
use crate::ipc::http_view::Reloads;

impl Snapshot {
    pub fn json(&self) -> String {
        let workers = self.workers.iter().map(|worker| {
            let facts = &worker.facts;
            let head = json!({
                "slot": facts.slot, "pid": facts.pid, "state": facts.state,
                "restarts_total": facts.restarts,
            });
            object(head, &worker.counts, [])
        });
        let windows = Span::ALL.iter().zip(self.seconds);
        let windows: Map<String, Value> =
            windows.map(|(span, seconds)| (span.name.to_string(), seconds.into())).collect();
        let value = json!({
            "release": self.facts.release,
            "host": self.facts.host,
            "time": self.facts.unix_s,
            "uptime_s": self.facts.uptime_s,
            "epoch": self.facts.epoch,
            "memory_max": self.facts.memory_max,
            "reloads": reloads(&self.facts.reloads),
            "names": self.facts.names,
            "problems": self.facts.problems,
            "lists": self.facts.lists,
            "window_seconds": windows,
            "totals": object(json!({}), &self.totals, []),
            "workers": workers.collect::<Vec<Value>>(),
            "pools": self.pools.iter().map(pool).collect::<Vec<Value>>(),
            "tenants": self.tenants.iter().map(tenant).collect::<Vec<Value>>(),
        });
        let mut out = serde_json::to_string_pretty(&value).expect("names and numbers only");
        out.push('\n');
        out
    }
}

/// The numbers, and the last one with its time and reason.
fn reloads(reloads: &Reloads) -> Value {
    let last = reloads.last.back();
    json!({"applied": reloads.applied, "refused": reloads.refused, "last": last})
}

fn pool(pool: &PoolStats) -> Value {
    let families: Map<String, Value> = pool
        .families
        .iter()
        .map(|(name, latencies)| (name.to_string(), all_times(latencies)))
        .collect();
    let servers: Vec<Value> = pool.servers.iter().map(server).collect();
    let more = [
        ("latency_us", all_times(&pool.latencies)),
        ("family_latency_us", families.into()),
        ("phase_us", all_times(&pool.phases)),
        ("servers", servers.into()),
    ];
    object(json!({"name": pool.name}), &pool.counts, more)
}

fn tenant(tenant: &TenantStats) -> Value {
    let latencies: Map<String, Value> =
        tenant.latencies.iter().map(|row| (row.name.to_string(), times(row))).collect();
    object(json!({"name": tenant.name}), &tenant.counts, [("latency_us", latencies.into())])
}

fn server(server: &ServerStats) -> Value {
    let head = json!({
        "label": server.label,
        "name": server.name,
        "admin": server.admin.word(),
        "health": server.health.word(),
        "why": server.why,
        "ejected": matches!(server.health, Health::Ejected { .. }),
    });
    object(head, &server.counts, [("latency_us", all_times(&server.latencies))])
}

fn all_times(all: &[Times]) -> Value {
    let rows = all.iter().map(|one| (one.name.to_string(), times(one)));
    rows.collect::<Map<String, Value>>().into()
}

/// The figures since the start, and under `windows` those of each window.
fn times(times: &Times) -> Value {
    let mut map = figures(&times.since_start);
    let windows = Span::ALL.iter().zip(&times.windows);
    let windows: Map<String, Value> =
        windows.map(|(span, one)| (span.name.to_string(), figures(one).into())).collect();
    map.insert("windows".to_string(), windows.into());
    map.into()
}

fn figures(figures: &Figures) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("count".to_string(), figures.count.into());
    map.insert("mean".to_string(), figures.mean_us.into());
    for ((name, _), us) in QUANTILES.iter().zip(figures.quantiles_us) {
        map.insert((*name).to_string(), us.into());
    }
    map.insert("max".to_string(), figures.max_us.into());
    map
}

/// Renders an object: the named fields, the counters, and more fields.
fn object<C: Counter, const N: usize>(
    head: Value,
    counts: &Counts<C>,
    more: [(&str, Value); N],
) -> Value {
    let Value::Object(mut map) = head else { unreachable!("a head is written as an object") };
    map.extend(counts.rows().map(|(name, value)| (name.to_string(), value.into())));
    map.extend(more.map(|(name, value)| (name.to_string(), value)));
    map.into()
}
