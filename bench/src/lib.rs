//! `cargo xtask bench`: compares quickack with nutcracker, HAProxy and direct servers, in one run.
//!
//! ```text
//!  options --> contest (a row: servers, peers, rounds) --> window --> load (the generator)
//!                 |                                           \-----> process, machine (readings)
//!                 v
//!              report (table, bars) --> page (docs/benchmarks.md)
//!  seed: the stall between Nagle and delayed ACK.   trace: system calls, instructions.
//!  balance, idle, cores: connections a worker, the master's work, many workers and CPUs.
//!  hits: the hit ratio of a full cache.
//!  php: misses as php-memcached requests them.
//!  resting: memory of idle clients, of a large value.
//!  binding: transactions, waits and subscriptions.
//!  fair: a quiet client beside attackers, the shares of greedy clients.
//!  relay: a network delay, or a limit, between proxy and servers.
//! ```

mod acts;
mod admin;
mod balance;
mod binding;
mod contest;
mod cores;
mod fair;
mod hits;
mod idle;
mod load;
mod machine;
mod options;
mod page;
mod peers;
mod php;
mod process;
mod relay;
mod report;
mod resting;
mod rows;
mod seed;
mod servers;
mod trace;
mod window;

use std::path::Path;
use std::process::{Command, ExitCode};

use machine::Description;
use options::{Options, Verb, workspace};
use peers::Peer;
use rows::{Part, Row};

/// Runs the benchmark. The exit code is 0 if all bars are met, 1 if a bar is missed or a row
/// discarded, 2 if it could not run.
pub fn run(arguments: &[String]) -> ExitCode {
    match Options::parse(arguments).and_then(|options| obey(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(fault) => {
            eprintln!("bench: {fault}");
            ExitCode::from(2)
        }
    }
}

fn obey(options: &Options) -> Result<bool, String> {
    match &options.verb {
        Verb::Help => print!("{}", options::HELP),
        Verb::List => list(),
        _ => {
            // For configurations, removed at the end.
            let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
            build_quickack(options)?;
            process::settle()?;
            return match &options.verb {
                Verb::Table => table(options, folder.path()),
                Verb::Seed => seed::run(options, folder.path()),
                Verb::Balance => balance::run(options, folder.path()),
                Verb::Hits => hits::run(options),
                Verb::Master => idle::run(options, folder.path()),
                Verb::Php => php::run(options, folder.path()),
                Verb::Binding => binding::run(options, folder.path()),
                Verb::Memory => resting::run(options, folder.path()),
                Verb::Fair => fair::run(options, folder.path()),
                Verb::Pipelines => fair::pipelines::run(options, folder.path()),
                Verb::Tenants => fair::tenants::run(options, folder.path()),
                Verb::Cores => cores::run(options, folder.path()),
                Verb::SystemCalls(counter) => {
                    trace::system_calls(*counter, &chosen(options)?, options, folder.path())
                }
                Verb::Callgrind(name) => trace::callgrind(&named(name)?, options, folder.path()),
                Verb::Help | Verb::List => unreachable!("handled above"),
            };
        }
    }
    Ok(true)
}

fn list() {
    for row in rows::rows() {
        let limits = row.bars.iter().filter_map(|bar| {
            let sign = if bar.figure.is_cost() { "<=" } else { ">=" };
            bar.limit.map(|limit| format!("{} {sign} {limit:.2}", bar.figure.name()))
        });
        let mut limits: Vec<String> = limits.collect();
        limits.dedup();
        println!("{:<8} {:<65} {}", row.name, row.what, limits.join(", "));
    }
    println!("\n--fair:");
    fair::list();
    println!("\n--tenants:");
    fair::tenants::list();
}

fn table(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    for line in &machine.lines {
        println!("{line}");
    }
    print!("\n{}", report::heading());
    let mut outcomes = Vec::new();
    for row in chosen(options)? {
        let outcome = contest::run(row, options, folder)?;
        print!("{}", report::text(&outcome));
        outcomes.push(outcome);
    }
    if options.write {
        page::write_rows(&outcomes, &machine, options)?;
    }
    let met = |outcome| report::verdicts(outcome).iter().all(report::Verdict::met);
    Ok(outcomes.iter().all(|outcome| outcome.faults.is_empty() && met(outcome)))
}

fn named(name: &str) -> Result<Row, String> {
    let row = rows::rows().into_iter().find(|row| row.name == name);
    row.ok_or_else(|| format!("unknown row `{name}`; `cargo xtask bench --list`"))
}

/// Returns the rows that a word of `--rows` stands for.
fn meant(name: &str) -> Result<Vec<Row>, String> {
    match name {
        "redis" => Ok(rows::rows().into_iter().filter(|row| row.part == Part::Redis).collect()),
        name => Ok(vec![named(name)?]),
    }
}

/// Returns the selected rows.
fn chosen(options: &Options) -> Result<Vec<Row>, String> {
    let mut rows = match &options.rows {
        Some(names) => {
            names.iter().map(|name| meant(name)).collect::<Result<Vec<_>, _>>()?.concat()
        }
        None => rows::rows(),
    };
    if options.batch {
        let closed = rows.iter_mut().filter(|row| row.work.arrival == load::Arrival::Closed);
        closed.for_each(|row| row.work.arrival = load::Arrival::Batch);
    }
    Ok(rows)
}

fn build_quickack(options: &Options) -> Result<(), String> {
    if options.quickack.is_some() || !options.peers.contains(&Peer::Quickack) {
        return Ok(());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package", "quickack"])
        .current_dir(workspace())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("quickack does not build (leave it out with --peers)".into()),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}
