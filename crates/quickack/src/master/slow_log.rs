//! `quickack slowlog`: the slow requests that the workers have written to the shared memory.

use metrics::{NO_COMMAND, Phase, SlowEntry, SlowReset};
use proxy::plan::{Plan, PoolPlan};
use proxy::slow::{Cause, key_text};
use serde_json::{Map, Value, json};

use super::Master;
use crate::config::grouped;
use crate::log::Clocks;

/// The names that a slow request is shown with.
struct Names<'a> {
    pool: &'a PoolPlan,
    server: Option<&'a str>,
    tenant: Option<&'a str>,
    busy_with: Option<String>,
}

impl Master {
    pub(super) fn slow_log_answer(&self, words: &[String]) -> String {
        let says = |word: &str| words.iter().any(|given| given == word);
        match says("--reset") {
            true => self.reset_slow_log(),
            false => {
                let limit = words.iter().find_map(|word| word.parse().ok());
                self.slow_log_text(says("--json"), limit)
            }
        }
    }

    /// Returns the last slow requests, the newest first.
    pub(super) fn slow_log_text(&self, as_json: bool, limit: Option<usize>) -> String {
        let (plan, clocks) = (self.running.plan(), Clocks::read());
        let entries = self.scoreboard.registry().slow_entries(None);
        let shown = entries.iter().filter_map(|entry| Some((entry, names(&plan, entry)?)));
        let shown = shown.take(limit.unwrap_or(SHOWN));
        let unix_us = |entry: &SlowEntry| {
            clocks.unix_us.saturating_sub(clocks.clock_us.saturating_sub(entry.at_us))
        };
        if as_json {
            let all: Vec<Value> =
                shown.map(|(entry, names)| to_json(entry, &names, unix_us(entry))).collect();
            return json!({ "slow": all }).to_string();
        }
        let now_us = clocks.unix_us;
        let lines: Vec<String> =
            shown.map(|(entry, names)| to_text(entry, &names, now_us - unix_us(entry))).collect();
        match lines.is_empty() {
            true => "no slow requests\n".to_string(),
            false => lines.concat(),
        }
    }

    /// Hides the slow requests so far.
    fn reset_slow_log(&self) -> String {
        let (metrics, now_us) = (self.scoreboard.master_metrics(), Clocks::read().clock_us);
        let reset = |pool| metrics.reset_slow_log(pool, SlowReset::All, now_us);
        self.running.ids.iter().for_each(|pool| reset(pool.pool));
        "the slow log is empty\n".to_string()
    }
}

/// Returns none for a pool that is not there any more.
fn names<'a>(plan: &'a Plan, entry: &SlowEntry) -> Option<Names<'a>> {
    let pool = plan.pools.iter().find(|pool| pool.id == entry.pool)?;
    let server = pool.servers.iter().find(|server| server.id == entry.server);
    let tenant = plan.tenants.iter().find(|tenant| tenant.id == entry.tenant);
    let tenant = tenant.map(|tenant| tenant.name.as_str());
    let busy_with = (entry.busy_with != NO_COMMAND)
        .then(|| pool.protocol.work_name(proto::Ask { command: entry.busy_with }));
    Some(Names { pool, server: server.map(|server| server.label.as_str()), tenant, busy_with })
}

fn to_json(entry: &SlowEntry, names: &Names<'_>, unix_us: u64) -> Value {
    let phases: Map<String, Value> = Phase::ALL
        .into_iter()
        .zip(entry.phases)
        .map(|(phase, us)| (phase.name().to_string(), us.into()))
        .collect();
    let causes: Vec<&str> = Cause::of_bits(entry.causes).map(|(_, word, _)| *word).collect();
    json!({
        "time_us": unix_us,
        "pool": names.pool.name,
        "server": names.server,
        "client": entry.client,
        "client_name": entry.name,
        "tenant": names.tenant,
        "command": entry.command,
        "key": key(entry),
        "key_len": entry.key_len,
        "keys": entry.keys,
        "bytes": entry.bytes,
        "total_us": entry.phases.iter().sum::<u64>(),
        "phase_us": phases,
        "causes": causes,
        "busy_with": names.busy_with,
        "asked_again": entry.asked_again,
        "worker": entry.worker,
    })
}

fn to_text(entry: &SlowEntry, names: &Names<'_>, ago_us: u64) -> String {
    let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
    let [read, queue, server, write] = entry.phases.map(ms);
    let tenant = names.tenant.map_or(String::new(), |name| format!(", tenant {name}"));
    let size = |entry: &SlowEntry| match entry.keys {
        0 | 1 => format!("{} bytes with its answer", grouped(entry.bytes)),
        keys => {
            format!("{} keys, {} bytes with its answer", grouped(keys.into()), grouped(entry.bytes))
        }
    };
    let causes =
        Cause::of_bits(entry.causes).map(|(cause, _, text)| match (cause, &names.busy_with) {
            (Cause::Large, _) => format!("{text}: {}", size(entry)),
            (Cause::ServerBusy, Some(name)) => format!("the server was busy with {name}"),
            _ => text.to_string(),
        });
    let again = entry.asked_again.then(|| "it was sent again".to_string());
    let causes: Vec<String> = causes.chain(again).collect();
    format!(
        "{} s ago, {} ms: {} {} of {}, pool {}{tenant}, server {}, worker {}\n  \
         client read {read}, queue {queue}, server {server}, client write {write} ms\n  \
         {}\n",
        ago_us / 1_000_000,
        ms(entry.phases.iter().sum()),
        entry.command,
        key(entry).unwrap_or_else(|| "-".to_string()),
        if entry.client.is_empty() { "a client that has left" } else { &entry.client },
        names.pool.name,
        names.server.unwrap_or("-"),
        entry.worker,
        if causes.is_empty() { "no cause is known".to_string() } else { causes.join("; ") },
    )
}

/// Returns the key as the directive wants it: its bytes, or its hash behind a `#`.
fn key(entry: &SlowEntry) -> Option<String> {
    let (key, cut) = key_text(entry);
    let text = String::from_utf8_lossy(&key);
    let dots = if cut > 0 { "…" } else { "" };
    (!key.is_empty()).then(|| format!("{text}{dots}"))
}

/// Requests that are shown if no number is given.
const SHOWN: usize = 100;
