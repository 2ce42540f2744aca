//! `quickack check FILE`: the report, and a summary of a valid file.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use proto::Work;
use proxy::plan::{PoolPlan, Timeouts};
use proxy::tenants::plan::{Over, TenantPlan, TenantRules};

use super::{Format, ask, print};
use crate::admin;
use crate::config::{self, Config, ListSource, Listener, Outcome, Severity, Upstream, Workers};
use crate::error::Error;
use crate::master::reader;

/// Prints diagnostics to stderr and the summary of a valid file to stdout. With `json` the report
/// goes to stdout in every case.
///
/// `strict`: a warning gives the exit status 2. `resolves`: names are looked up. `running`: the
/// proxy that says what would change.
pub fn check(
    file: &Path,
    format: Format,
    (strict, resolves): (bool, bool),
    running: Option<&ask::Proxy>,
) -> ExitCode {
    // A file is at hand even where nobody is to be asked.
    let takes = |source: &ListSource| resolves || matches!(source, ListSource::File(_));
    let (mut outcome, lists) = reader::read_with_lists(file, reader::CHECK_PATIENCE, takes);
    if let Some(config) = &outcome.config {
        let mut doubts = reader::list_doubts(config, &lists);
        if resolves {
            doubts.extend(reader::doubts(config));
        }
        outcome.report.doubt(doubts);
    }
    let running = running.filter(|_| outcome.config.is_some());
    let changes = running.map(|proxy| difference(file, proxy)).transpose();
    match (format, &outcome.config) {
        (Format::Json, _) => {
            match &changes {
                Ok(None) => {}
                Ok(Some(text)) => {
                    let changes = text.lines().filter(|line| *line != config::NO_CHANGE);
                    outcome.report.add(Severity::Change, &changes.collect::<Vec<_>>());
                }
                Err(error) => outcome.report.add(Severity::Error, &[&error.to_string()]),
            }
            print(&outcome.report.render_json());
        }
        (Format::Text, config) => {
            report(&outcome, "");
            if let Some(config) = config {
                print(&summary(&outcome, config));
            }
            match &changes {
                Ok(None) => {}
                Ok(Some(text)) => print(&format!("\n{text}")),
                Err(error) => return ask::fail(error),
            }
        }
    }
    if outcome.config.is_none() || changes.is_err() {
        return ExitCode::FAILURE;
    }
    match strict && outcome.report.count(Severity::Warning) > 0 {
        true => ExitCode::from(super::DIFFERENT),
        false => ExitCode::SUCCESS,
    }
}

/// Returns what a reload would change, a line each. Without the choice of a proxy it is the one
/// that runs with this file, or else the only one.
fn difference(file: &Path, proxy: &ask::Proxy) -> Result<String, Error> {
    let file = reader::absolute(file);
    let line = format!("difference {}", file.display());
    let of_file = ask::Proxy { config: Some(file), admin: None };
    let is_chosen = proxy.config.is_some() || proxy.admin.is_some();
    match of_file.find() {
        Ok(found) if !is_chosen => admin::ask(found, &line),
        _ => proxy.answer(&line),
    }
}

/// Prints the diagnostics of a file, if there are any; `who` begins the last line.
pub fn report(outcome: &Outcome, who: &str) {
    let report = &outcome.report;
    let errors = report.count(Severity::Error);
    let mut text = report.render_text();
    if errors > 0 {
        let _ = writeln!(text, "{who}{}: invalid, {}", report.name, count(errors, "error"));
    }
    // An error is ignored: a reader that has closed the pipe needs no more.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn summary(outcome: &Outcome, config: &Config) -> String {
    let name = &outcome.report.name;
    let pools = &config.plan.pools;
    let servers = pools.iter().map(|pool| pool.servers.len()).sum();
    let mut out =
        format!("{name}: valid, {}, {}", count(pools.len(), "pool"), count(servers, "server"));
    let warnings = outcome.report.count(Severity::Warning);
    if warnings > 0 {
        let _ = write!(out, ", {}", count(warnings, "warning"));
    }
    out.push('\n');
    process_summary(config, &mut out);
    for (index, pool) in pools.iter().enumerate() {
        pool_summary(pool, &config.listeners[index], &config.upstreams[index], &mut out);
        links(config, pool, &mut out);
        if let Some(users) = &pool.users {
            let _ = writeln!(out, "  logins: {users}");
        }
        databases(config, pool, &mut out);
        lines(&config.blocks[1 + index].told(), &mut out);
    }
    for (at, tenant) in config.plan.tenants.iter().enumerate() {
        tenant_summary(config, (at, tenant), &mut out);
    }
    out
}

/// Summarizes what a tenant may use.
fn tenant_summary(config: &Config, (at, tenant): (usize, &TenantPlan), out: &mut String) {
    let _ = writeln!(out, "\ntenant {}, weight {}", tenant.name, tenant.weight);
    let of_pools = config.plan.pools.iter().filter(|pool| pool.tenant == Some(at));
    let pools: Vec<&str> = of_pools.map(|pool| pool.name.as_str()).collect();
    let listed = |kind: &str, names: &[&str]| match names.len() {
        0 => String::new(),
        _ => format!("; {kind}: {}", names.join(", ")),
    };
    let users: Vec<&str> = tenant.users.iter().map(String::as_str).collect();
    let clients = match tenant.clients_max {
        u64::MAX => "no limit of its own".to_string(),
        most => format!("at most {most}"),
    };
    let members = listed("users", &users) + &listed("pools", &pools);
    let _ = writeln!(out, "  clients: {clients}{members}");
    let bytes = |bytes: u64| match config::size_word(bytes) {
        word if word.ends_with(|last: char| last.is_ascii_digit()) => count(bytes as usize, "byte"),
        word => word,
    };
    let [requests, received, sent] = tenant.rates;
    let limits = [
        (requests, format!("{} a second", count(requests as usize, "request"))),
        (received, format!("{} received a second", bytes(received))),
        (sent, format!("{} sent a second", bytes(sent))),
        (tenant.inflight_max, format!("{} in flight", bytes(tenant.inflight_max))),
    ];
    let limits = limits.into_iter().filter(|(limit, _)| *limit != u64::MAX);
    let limits: Vec<String> = limits.map(|(_, words)| words).collect();
    if !limits.is_empty() {
        let over = match tenant.over {
            Over::Delay => "read later",
            Over::Refuse => "refused",
        };
        let _ = writeln!(out, "  limits: {}; requests above them are {over}", limits.join(", "));
    }
    if tenant.private_links_max != u64::MAX {
        let _ = writeln!(out, "  private links: at most {}", tenant.private_links_max);
    }
    if let Some(rules) = &tenant.rules {
        rules_summary(rules, out);
    }
}

fn rules_summary(rules: &TenantRules, out: &mut String) {
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    if !rules.databases.is_empty() {
        let ranges: Vec<String> = rules.databases.iter().map(range).collect();
        let _ = writeln!(out, "  databases: {}", ranges.join(", "));
    }
    let commands = proto::PROTOCOLS.iter().map(|protocol| {
        let (allowed, all) = rules.allowed_of(*protocol);
        (allowed < all, format!("{allowed} of {all} of {}", protocol.name()))
    });
    let commands: Vec<(bool, String)> = commands.collect();
    if commands.iter().any(|(is_less, _)| *is_less) {
        let words: Vec<String> = commands.into_iter().map(|(_, words)| words).collect();
        let _ = writeln!(out, "  commands: {}", words.join(", "));
    }
    if !rules.key_prefix.is_empty() {
        let prefix = String::from_utf8_lossy(&rules.key_prefix);
        let _ = writeln!(out, "  keys: those that begin with `{prefix}`");
    }
}

/// Summarizes the process, and each worker's share of the limits in the file.
fn process_summary(config: &Config, out: &mut String) {
    let workers = config.process.worker_count();
    let auto = config.process.workers == Workers::Auto;
    let here = here(config);
    out.push_str("\nglobal\n");
    if auto {
        let _ = writeln!(out, "  workers: auto, {workers}{here}");
    }
    if workers > 1 || auto {
        let memory = config::size_word(config.plan.memory_max as u64);
        let part = config::size_word((config.plan.memory_max / workers) as u64);
        let _ = writeln!(out, "  memory: {memory}, {part} for each worker{here}");
    }
    lines(&config.blocks[0].told(), out);
}

/// Shows the connections that a server sees from all workers together.
fn links(config: &Config, pool: &PoolPlan, out: &mut String) {
    let (workers, each) = (config.process.worker_count(), pool.server_connections);
    let (all, here) = (workers * each, here(config));
    let conn_keys = match pool.databases {
        1 => "",
        _ => " for each database and version of RESP in use",
    };
    let _ = writeln!(
        out,
        "  workers x links: {workers} x {each} = {all} to each server{conn_keys}{here}"
    );
}

/// Shows the first database of clients, in a pool with databases, and the largest value.
fn databases(config: &Config, pool: &PoolPlan, out: &mut String) {
    if pool.databases > 1 {
        let (begin, last) = (pool.database, pool.databases - 1);
        let _ = writeln!(out, "  databases: 0 to {last}, clients start in {begin}");
    }
    let (size, here) = (config::size_word(pool.item_size_max as u64), here(config));
    let _ = writeln!(out, "  values: up to {size}{here}");
}

/// Returns a last word for lines that depend on this machine.
fn here(config: &Config) -> &'static str {
    match config.process.workers {
        Workers::Auto => " here",
        Workers::Number(_) => "",
    }
}

/// Summarizes a pool's name, servers and deadlines in effect; twemproxy has no such deadlines.
fn pool_summary(pool: &PoolPlan, listener: &Listener, upstream: &Upstream, out: &mut String) {
    let _ = writeln!(out, "\npool {} on {}", pool.name, listener.address);
    if let Some(list) = &upstream.list {
        let none = if pool.servers.is_empty() { "; no server is known" } else { "" };
        let _ = writeln!(out, "  servers: from {}{none}", list.source);
    }
    for (server, address) in pool.servers.iter().zip(&upstream.servers) {
        let name = match server.label == address.to_string() {
            true => String::new(),
            false => format!(" {}", server.label),
        };
        let _ = writeln!(out, "  server{name} at {address}, weight {}", server.weight);
    }
    let Timeouts { connect, queue, reply, slow, write } = pool.timeouts;
    let all = [connect, queue, reply, slow, write].map(config::duration_word);
    let [connect, queue, reply, slow, write] = all;
    let _ =
        write!(out, "  deadlines: connect {connect}, queue {queue}, reply {reply}, write {write}");
    let has_slow = pool.protocol.commands().iter().any(|command| command.work != Work::Quick);
    let _ = if has_slow { writeln!(out, ", slow {slow}") } else { writeln!(out) };
    flushes(pool, out);
}

/// Shows the commands that empty servers, unless the pool allows them: most who come from a single
/// server expect that they do.
fn flushes(pool: &PoolPlan, out: &mut String) {
    let is_refused = |name: &&str| !pool.allow.iter().any(|allowed| allowed == name);
    let here = |name: &&str| pool.protocol.commands().iter().any(|command| command.name == *name);
    let names = ["flush_all", "flushall", "flushdb"].into_iter().filter(here).filter(is_refused);
    let names = names.collect::<Vec<_>>().join(", ");
    if !names.is_empty() {
        let _ = writeln!(out, "  refused: {names}; `allow: [{names}]` permits it");
    }
}

fn lines(settings: &[String], out: &mut String) {
    for setting in settings {
        let _ = writeln!(out, "  {setting}");
    }
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
