//! For people: an overview, then each pool, then the other counters that are not 0.
//!
//! After the first lines, counters that are 0 are left out.

use std::fmt::Write;

use metrics::{Counter, PoolCounter, ServerCounter, Span, TenantCounter, WorkerCounter};
use proxy::plan::AdminState;

use super::{
    Counts, Figures, Health, PoolStats, QUANTILES, ServerStats, Snapshot, TenantStats, Times,
};
use crate::config::grouped;
use crate::ipc::http_view::NameCounts;

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
            "clients {} now, {} in total; links {} now; {} requests waiting, {} bytes held of {}",
            grouped(totals.value(WorkerCounter::ClientsNow)),
            grouped(totals.value(WorkerCounter::Accepts)),
            grouped(totals.value(WorkerCounter::LinksNow)),
            grouped(totals.value(WorkerCounter::RequestsNow)),
            grouped(totals.value(WorkerCounter::BufferBytesNow)),
            grouped(facts.memory_max),
        );
        if let Some(last) = facts.reloads.last.back() {
            let (applied, refused) = (facts.reloads.applied, facts.reloads.refused);
            let ago = duration(facts.unix_s.saturating_sub(last.unix_s));
            let how = if last.applied { "applied" } else { "refused" };
            let of = format!("{applied} applied, {refused} refused");
            let text = &last.text;
            let _ = writeln!(out, "reloads {of}; the last one, {ago} ago, was {how}: {text}");
        }
        let NameCounts { lookups_failed, address_changes, lists_failed, list_changes, .. } =
            facts.names;
        if lookups_failed + address_changes > 0 {
            let failed = format!("{lookups_failed} look-ups failed");
            let _ = writeln!(out, "names: {failed}, {address_changes} addresses changed");
        }
        if lists_failed + list_changes > 0 {
            let _ = writeln!(out, "lists: {lists_failed} failed, {list_changes} applied");
        }
        for trouble in &facts.lists {
            let _ = writeln!(out, "{trouble}");
        }
        let count = |counter| totals.value(counter);
        if count(WorkerCounter::AccessLinesLost) > 0 {
            let lines = grouped(count(WorkerCounter::AccessLines));
            let lost = grouped(count(WorkerCounter::AccessLinesLost));
            let _ = writeln!(out, "access log: {lost} lines of {lines} were lost");
        }
        if count(WorkerCounter::ClientsLost) > 0 {
            let lost = grouped(count(WorkerCounter::ClientsLost));
            let _ = writeln!(out, "deaths of workers: {lost} clients were cut off by them");
        }
        for problem in &facts.problems {
            let _ = writeln!(out, "problem: {problem}");
        }
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
        write_table("", &rows, out);
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
    latencies(pool, out);
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
    let mut rows = vec![heads(&["LATENCY", "OVER", "COUNT", "MEAN"])];
    for kind in &tenant.latencies {
        rows.extend(windows(kind.name, kind, &[0, 1, 2]));
        rows.push(row(kind.name, "start", &kind.since_start));
    }
    write_table("  ", &rows, out);
}

/// Renders the latencies of a pool: of reads and of updates, of each family where there are
/// several, and of the phases.
fn latencies(pool: &PoolStats, out: &mut String) {
    let mut rows = vec![heads(&["LATENCY", "OVER", "COUNT", "MEAN"])];
    let is_shown = |kind: &&Times| kind.name != "failed" || kind.since_start.count > 0;
    for kind in pool.latencies.iter().filter(is_shown) {
        rows.extend(windows(kind.name, kind, &[0, 1, 2]));
        rows.push(row(kind.name, "start", &kind.since_start));
        let of_kind = |(family, all): &(&'static str, Vec<Times>)| {
            let times = all.iter().find(|times| times.name == kind.name)?.clone();
            Some((format!("{family} {}", kind.name), times))
        };
        let families: Vec<(String, Times)> = pool.families.iter().filter_map(of_kind).collect();
        for (name, times) in families.iter().filter(|_| families.len() > 1) {
            rows.extend(windows(name, times, &[LAST_MINUTE]));
            rows.push(row(name, "start", &times.since_start));
        }
    }
    for phase in pool.phases.iter().filter(|phase| phase.since_start.count > 0) {
        let name = format!("phase {}", phase.name.replace('_', " "));
        rows.extend(windows(&name, phase, &[LAST_MINUTE]));
        rows.push(row(&name, "start", &phase.since_start));
    }
    write_table("  ", &rows, out);
}

/// Renders the windows at these places in which something was measured.
fn windows<'a>(
    name: &'a str,
    times: &'a Times,
    places: &'a [usize],
) -> impl Iterator<Item = Vec<String>> + 'a {
    let all = places.iter().map(|at| (&Span::ALL[*at], &times.windows[*at]));
    let full = all.filter(|(_, figures)| figures.count > 0);
    full.map(move |(span, figures)| row(name, span.name, figures))
}

fn row(name: &str, over: &str, figures: &Figures) -> Vec<String> {
    let mut row = [name, over].map(str::to_string).to_vec();
    row.extend([grouped(figures.count), time(figures.mean_us)]);
    row.extend(quantiles(figures));
    row
}

fn servers(all: &[ServerStats], now_s: u64, out: &mut String) {
    let mut rows =
        vec![heads(&["SERVER", "HEALTH", "LINKS", "WAITING", "SENT", "MESSAGES", "REPLIES"])];
    rows.extend(all.iter().map(|server| server_id(server, now_s)));
    write_table("  ", &rows, out);
    let shown = [
        ServerCounter::LinksNow,
        ServerCounter::PendingNow,
        ServerCounter::InflightNow,
        ServerCounter::EjectedAt,
        ServerCounter::Messages,
        ServerCounter::Replies,
    ];
    for server in all {
        if let Some(why) = &server.why {
            let _ = writeln!(out, "  {}: {why}", server.label);
        }
        others(&server.counts, &shown, &format!("  {}: ", server.label), out);
    }
    let mut rows = vec![heads(&["SERVER", "LATENCY", "OVER", "COUNT", "MEAN"])];
    for server in all {
        for kind in server.latencies.iter().filter(|kind| kind.name != "replies") {
            let minute = windows(kind.name, kind, &[LAST_MINUTE]);
            rows.extend(minute.map(|row| [vec![server.label.clone()], row].concat()));
        }
    }
    if rows.len() > 1 {
        write_table("  ", &rows, out);
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
        health(server, now_s),
        count(ServerCounter::LinksNow),
        count(ServerCounter::PendingNow),
        count(ServerCounter::InflightNow),
        count(ServerCounter::Messages),
        count(ServerCounter::Replies),
    ];
    let replies = server.latencies.first().map(|times| quantiles(&times.since_start));
    row.extend(replies.into_iter().flatten());
    row
}

fn health(server: &ServerStats, now_s: u64) -> String {
    let health = match server.health {
        Health::Ejected { since_us } => {
            let seconds = now_s.saturating_sub(since_us / 1_000_000);
            format!("ejected {} ago", duration(seconds))
        }
        health => health.word().to_string(),
    };
    match server.admin {
        AdminState::Drain => format!("drain, {health}"),
        AdminState::Ready | AdminState::Maint => health,
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
fn quantiles(figures: &Figures) -> Vec<String> {
    let all = figures.quantiles_us.into_iter().chain([figures.max_us]);
    all.map(|us| if figures.count == 0 { "-".to_string() } else { time(us) }).collect()
}

/// Renders rows in columns under the header: words aligned left, numbers right.
pub fn table(rows: &[Vec<String>]) -> String {
    let mut out = String::new();
    write_table("", rows, &mut out);
    out
}

fn write_table(indent: &str, rows: &[Vec<String>], out: &mut String) {
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

/// The place of the window of a minute in `Span::ALL`.
const LAST_MINUTE: usize = 1;

pub fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{:.2}ms", us as f64 / 1e3),
        _ => format!("{:.2}s", us as f64 / 1e6),
    }
}

pub fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}
