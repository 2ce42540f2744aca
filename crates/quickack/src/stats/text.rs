//! For people: an overview, then each pool, then the other counters that are not 0.
//!
//! After the first lines, counters that are 0 are left out.

use std::fmt::Write;

use metrics::{Counter, PoolCounter, ServerCounter, TenantCounter, WorkerCounter};

use super::{Counts, Health, PoolStats, QUANTILES, ServerStats, Snapshot, TenantStats, Times};
use crate::config::grouped;

impl Snapshot {
    pub fn text(&self) -> String {
        let (facts, totals) = (&self.facts, &self.totals);
        let mut out = String::new();
        let (release, uptime) = (&facts.release, duration(facts.uptime_s));
        let _ = writeln!(
            out,
            "quickack {release} on {}, up {uptime}, epoch {}",
            facts.host, facts.epoch
        );
        let _ = writeln!(
            out,
            "clients {} now, {} in total; links {} now; {} requests waiting, {} bytes held",
            grouped(totals.value(WorkerCounter::ClientsNow)),
            grouped(totals.value(WorkerCounter::Accepts)),
            grouped(totals.value(WorkerCounter::LinksNow)),
            grouped(totals.value(WorkerCounter::RequestsNow)),
            grouped(totals.value(WorkerCounter::BufferBytesNow)),
        );
        out.push('\n');
        self.workers(&mut out);
        for pool in &self.pools {
            out.push('\n');
            write_pool(pool, facts.unix_s, &mut out);
        }
        for tenant in &self.tenants {
            out.push('\n');
            write_tenant(tenant, &mut out);
        }
        out
    }

    fn workers(&self, out: &mut String) {
        let head =
            ["WORKER", "PID", "STATE", "CLIENTS", "LINKS", "WAITING", "ACCEPTS", "TURNS", "BUSY"];
        let mut rows = vec![head.map(str::to_string).to_vec()];
        rows.extend(self.workers.iter().map(|worker| {
            let count = |counter| grouped(worker.counts.value(counter));
            vec![
                worker.facts.slot.to_string(),
                worker.facts.pid.map_or("-".to_string(), |pid| pid.to_string()),
                worker.facts.state.clone(),
                count(WorkerCounter::ClientsNow),
                count(WorkerCounter::LinksNow),
                count(WorkerCounter::RequestsNow),
                count(WorkerCounter::Accepts),
                count(WorkerCounter::Turns),
                time(worker.counts.value(WorkerCounter::BusyUs)),
            ]
        }));
        table("", &rows, out);
    }
}

fn write_pool(pool: &PoolStats, now_s: u64, out: &mut String) {
    let count = |counter| grouped(pool.counts.value(counter));
    let _ = writeln!(
        out,
        "pool {}: clients {}, requests {}, hits {} of {} keys, failed {}, refused {}",
        pool.name,
        count(PoolCounter::ClientsNow),
        count(PoolCounter::Requests),
        count(PoolCounter::Hits),
        count(PoolCounter::KeysAsked),
        count(PoolCounter::Failed),
        count(PoolCounter::Refused),
    );
    let shown = [
        PoolCounter::ClientsNow,
        PoolCounter::Requests,
        PoolCounter::Hits,
        PoolCounter::KeysAsked,
        PoolCounter::Failed,
        PoolCounter::Refused,
    ];
    others(&pool.counts, &shown, "  also: ", out);
    latencies(&pool.latencies, out);
    servers(&pool.servers, now_s, out);
}

fn write_tenant(tenant: &TenantStats, out: &mut String) {
    let count = |counter| grouped(tenant.counts.value(counter));
    let _ = writeln!(
        out,
        "tenant {}: clients {}, {} of them waiting; requests {}, denied {}, delayed {}, over {}",
        tenant.name,
        count(TenantCounter::ClientsNow),
        count(TenantCounter::WaitingNow),
        count(TenantCounter::Requests),
        count(TenantCounter::Denied),
        count(TenantCounter::Delayed),
        count(TenantCounter::Over),
    );
    let shown = [
        TenantCounter::ClientsNow,
        TenantCounter::WaitingNow,
        TenantCounter::Requests,
        TenantCounter::Denied,
        TenantCounter::Delayed,
        TenantCounter::Over,
    ];
    others(&tenant.counts, &shown, "  also: ", out);
    latencies(&tenant.latencies, out);
}

fn latencies(all: &[Times], out: &mut String) {
    let mut rows = vec![heads(&["LATENCY", "COUNT", "MEAN"])];
    rows.extend(all.iter().map(|times| {
        let mut row = vec![times.name.to_string(), grouped(times.count), time(times.mean_us)];
        row.extend(quantiles(times));
        row
    }));
    table("  ", &rows, out);
}

fn servers(all: &[ServerStats], now_s: u64, out: &mut String) {
    let mut rows =
        vec![heads(&["SERVER", "HEALTH", "LINKS", "WAITING", "SENT", "MESSAGES", "REPLIES"])];
    rows.extend(all.iter().map(|server| server_id(server, now_s)));
    table("  ", &rows, out);
    let shown = [
        ServerCounter::LinksNow,
        ServerCounter::PendingNow,
        ServerCounter::InflightNow,
        ServerCounter::EjectedAt,
        ServerCounter::Messages,
        ServerCounter::Replies,
    ];
    for server in all {
        others(&server.counts, &shown, &format!("  {}: ", server.label), out);
    }
}

/// Returns the header row of a table that ends in percentiles.
fn heads(first: &[&str]) -> Vec<String> {
    let quantiles = QUANTILES.map(|(name, _)| name);
    let all = first.iter().copied().chain(quantiles).chain(["MAX"]);
    all.map(str::to_uppercase).collect()
}

fn server_id(server: &ServerStats, now_s: u64) -> Vec<String> {
    let count = |counter| grouped(server.counts.value(counter));
    let mut row = vec![
        server.label.clone(),
        health(server.health, now_s),
        count(ServerCounter::LinksNow),
        count(ServerCounter::PendingNow),
        count(ServerCounter::InflightNow),
        count(ServerCounter::Messages),
        count(ServerCounter::Replies),
    ];
    row.extend(quantiles(&server.replies));
    row
}

fn health(health: Health, now_s: u64) -> String {
    match health {
        Health::Ejected { since_us } => {
            let seconds = now_s.saturating_sub(since_us / 1_000_000);
            format!("ejected {} ago", duration(seconds))
        }
        Health::Up | Health::Down => health.word().to_string(),
    }
}

/// Renders a line with the counters that are not 0 and are not shown elsewhere.
fn others<C: Counter>(counts: &Counts<C>, shown: &[C], start: &str, out: &mut String) {
    let is_shown = |name: &str| shown.iter().any(|counter| counter.metric().name == name);
    let told: Vec<String> = counts
        .rows()
        .filter(|(name, value)| *value > 0 && !is_shown(name))
        .map(|(name, value)| format!("{} {}", name.trim_end_matches("_total"), grouped(value)))
        .collect();
    if !told.is_empty() {
        let _ = writeln!(out, "{start}{}", told.join(", "));
    }
}

/// Returns empty cells if no time was measured.
fn quantiles(times: &Times) -> Vec<String> {
    let all = times.quantiles_us.into_iter().chain([times.max_us]);
    all.map(|us| if times.count == 0 { "-".to_string() } else { time(us) }).collect()
}

/// Renders rows in columns under the header: words aligned left, numbers right.
fn table(indent: &str, rows: &[Vec<String>], out: &mut String) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |at: usize| rows.iter().filter_map(move |row| row.get(at));
    let is_word = |cell: &String| cell.starts_with(|c: char| c.is_alphabetic());
    let widths: Vec<(usize, bool)> = (0..columns)
        .map(|at| {
            let width = cells(at).map(|cell| cell.chars().count()).max().unwrap_or(0);
            (width, at == 0 || cells(at).skip(1).all(is_word))
        })
        .collect();
    for row in rows {
        let mut line = indent.to_string();
        for (cell, (width, words)) in row.iter().zip(&widths) {
            let _ = match words {
                true => write!(line, "{cell:<width$}  "),
                false => write!(line, "{cell:>width$}  "),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{:.2}ms", us as f64 / 1e3),
        _ => format!("{:.2}s", us as f64 / 1e6),
    }
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}
