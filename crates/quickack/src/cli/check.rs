//! `quickack check FILE`: the report, and what a valid file comes to.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use proxy::plan::PoolPlan;

use super::{Format, print};
use crate::config::{self, Config, Listener, Outcome, ServerAddress, Severity, Upstream, Workers};

/// The report is what was asked for, so it goes to stdout whatever it says.
pub fn check(file: &Path, format: Format) -> ExitCode {
    let outcome = config::read(file);
    match format {
        Format::Text => print(&format!("{}{}", outcome.report.render_text(), summary(&outcome))),
        Format::Json => print(&outcome.report.render_json()),
    }
    match outcome.config {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

/// The last words about an invalid file.
pub fn invalid(errors: usize) -> String {
    format!("invalid, {}", count(errors, "error"))
}

fn summary(outcome: &Outcome) -> String {
    let name = &outcome.report.name;
    let Some(config) = &outcome.config else {
        let errors = outcome.report.count(Severity::Error);
        return format!("{name}: {}\n", invalid(errors));
    };
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
        spaces(config, pool, &mut out);
        lines(&config.blocks[1 + index].told(), &mut out);
    }
    skilled(config, &mut out);
    out
}

/// What servers decide that are not asked now: which commands are refused in some of their forms.
fn skilled(config: &Config, out: &mut String) {
    let is_theirs = |server: &ServerAddress| !matches!(server, ServerAddress::Embedded { .. });
    let has_skilled = |pool: &PoolPlan| pool.protocol.commands().iter().any(|row| row.skilled);
    let pools = config.plan.pools.iter().zip(&config.upstreams);
    if !pools.clone().any(|(pool, it)| has_skilled(pool) && it.servers.iter().any(is_theirs)) {
        return;
    }
    out.push_str("\nservers without meta commands (memcached before 1.6.13)\n");
    for protocol in proto::PROTOCOLS {
        let names = protocol.commands().iter().filter(|row| row.skilled).map(|row| row.name);
        let names = names.collect::<Vec<&str>>().join(" ");
        if names.is_empty() {
            continue;
        }
        let _ = writeln!(out, "  {}: in part refused are {names}", protocol.name());
    }
}

/// The process, and what each of its workers has of what the file gives to all.
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

/// What a server sees of all workers together.
fn links(config: &Config, pool: &PoolPlan, out: &mut String) {
    let (workers, each) = (config.process.worker_count(), pool.server_connections);
    let (all, here) = (workers * each, here(config));
    let lanes = match pool.spaces {
        1 => "",
        _ => " for each database and version of RESP in use",
    };
    let _ =
        writeln!(out, "  workers x links: {workers} x {each} = {all} to each server{lanes}{here}");
}

/// Where clients begin, and how large a value may be, in a pool with databases.
fn spaces(config: &Config, pool: &PoolPlan, out: &mut String) {
    if pool.spaces > 1 {
        let (begin, last) = (pool.space, pool.spaces - 1);
        let size = config::size_word(pool.item_size_max as u64);
        let here = here(config);
        let _ = writeln!(out, "  databases: 0 to {last}, clients begin in {begin}");
        let _ = writeln!(out, "  values: up to {size}{here}");
    }
}

/// What follows from this machine says so, as its last word.
fn here(config: &Config) -> &'static str {
    match config.process.workers {
        Workers::Auto => " here",
        Workers::Number(_) => "",
    }
}

/// The name and servers of a pool, and the deadlines that hold, of which twemproxy has none.
fn pool_summary(pool: &PoolPlan, listener: &Listener, upstream: &Upstream, out: &mut String) {
    let _ = writeln!(out, "\npool {} on {}", pool.name, listener.address);
    for (server, address) in pool.servers.iter().zip(&upstream.servers) {
        let name = match server.label == address.to_string() {
            true => String::new(),
            false => format!(" {}", server.label),
        };
        let _ = writeln!(out, "  server{name} at {address}, weight {}", server.weight);
    }
    let [connect, queue, reply] = [pool.timeouts.connect, pool.timeouts.queue, pool.timeouts.reply]
        .map(config::duration_word);
    let _ = writeln!(out, "  deadlines: connect {connect}, queue {queue}, reply {reply}");
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
