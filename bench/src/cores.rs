//! Requests a second with an increasing number of workers, each on its own CPU, if a machine has
//! enough CPUs for them, the load and the servers.
//!
//! The workers have the first CPUs, one each. The other CPUs are shared by as many generators and
//! servers as there are of those; their utilisation shows when they are the limit.

use std::fmt::Write as _;
use std::path::Path;

use crate::contest::{Stage, median};
use crate::load::{Generator, now_ns};
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Endpoint, Peer};
use crate::process::{self, Cpus};
use crate::rows::{self, Row};

const WORKER_COUNTS: [usize; 5] = [1, 2, 4, 8, 12];
/// Minimum throughput, relative to one worker's times the number of workers.
const LINEAR_MIN: f64 = 0.8;
/// Above this utilisation, load and servers are the limit.
const LIMIT: f64 = 0.9;
/// Number of CPUs for the whole table.
const CPUS_WANTED: usize = 16;

/// Prints the table; returns true if the bar is met, as far as the machine has CPUs.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let cpus = process::all_cpus().len();
    let mut text = String::from("## Workers and CPUs\n\n");
    text.push_str(&page::short_origin(&machine, options));
    if cpus < CPUS_WANTED {
        let _ = writeln!(text, "This machine has {cpus} CPUs; the table wants {CPUS_WANTED}.\n");
    }
    text.push_str(METHOD);
    text.push_str(HEADING);
    print!("{text}");
    let mut met = true;
    let mut one = None;
    for workers in WORKER_COUNTS.into_iter().filter(|workers| *workers < cpus) {
        let shown = measure(workers, cpus - workers, options, folder)?;
        let one = *one.get_or_insert(shown.requests_per_s);
        let linear = shown.requests_per_s / one / workers as f64;
        let (judged, is_met) = match linear >= LINEAR_MIN {
            true => ("met", true),
            false if shown.rest_busy > LIMIT => ("load and servers are the limit", true),
            false => ("**not met**", false),
        };
        met &= is_met;
        let line = shown.line(workers, linear, judged);
        print!("{line}");
        text.push_str(&line);
    }
    if options.write {
        page::write(Some("--cores"), &text)?;
    }
    Ok(met)
}

/// The results of one number of workers.
struct Shown {
    requests_per_s: f64,
    worker_us: f64,
    workers_busy: f64,
    /// The utilisation of the CPUs of load and servers.
    rest_busy: f64,
    p99_us: f64,
}

impl Shown {
    fn line(&self, workers: usize, linear: f64, judged: &str) -> String {
        let Shown { requests_per_s, worker_us, workers_busy, rest_busy, p99_us } = self;
        format!(
            "| {workers} | {requests_per_s:.0} | {linear:.2} | {worker_us:.2} | {workers_busy:.2} \
             | {rest_busy:.2} | {p99_us:.0} | {judged} |\n"
        )
    }
}

fn row(workers: usize, rest: usize) -> Row {
    let mut row = rows::plain("cores", "closed loop, depth 4");
    row.cpus = Cpus::First(workers);
    row.servers = rest.div_ceil(2);
    row.work.connections = CONNECTIONS_EACH;
    row.work.depth = 4;
    row
}

/// Returns the median of a few windows.
fn measure(workers: usize, rest: usize, options: &Options, folder: &Path) -> Result<Shown, String> {
    let row = row(workers, rest);
    let stage = Stage::build(&row, options)?;
    let who = Contestant::of(Peer::Quickack, workers);
    let endpoint = stage.endpoint(who, &row, options, folder, &[])?;
    let windows: Result<Vec<Shown>, String> =
        (0..options.runs).map(|_| window(&stage, &endpoint, workers, rest, options)).collect();
    let windows = windows?;
    let at = |figure: fn(&Shown) -> f64| median(windows.iter().map(figure).collect());
    let at = |figure| at(figure).ok_or("no window".to_string());
    Ok(Shown {
        requests_per_s: at(|shown| shown.requests_per_s)?,
        worker_us: at(|shown| shown.worker_us)?,
        workers_busy: at(|shown| shown.workers_busy)?,
        rest_busy: at(|shown| shown.rest_busy)?,
        p99_us: at(|shown| shown.p99_us)?,
    })
}

/// Runs all generators at once, each in a thread.
fn window(
    stage: &Stage,
    endpoint: &Endpoint,
    workers: usize,
    rest: usize,
    options: &Options,
) -> Result<Shown, String> {
    let from = now_ns() + (options.lengths.warm_up_s * 1e9) as u64;
    let until = from + (options.lengths.measure_s * 1e9) as u64;
    let threads = rest.div_ceil(2);
    let busy = || {
        let rest = [stage.servers.ids(), vec![std::process::id()]].concat();
        (process::cpu_ns(&endpoint.serving_ids()), process::cpu_ns(&rest))
    };
    let (begin, end, tallies) = std::thread::scope(|scope| {
        let load = |seed: u64| {
            let addresses = &endpoint.addresses;
            let mut generator = Generator::start(&stage.work, &stage.corpus, addresses, seed)?;
            generator.run_until(from)?;
            generator.tally.recording = true;
            generator.run_until(until)?;
            generator.tally.recording = false;
            generator.drain()?;
            Ok::<_, String>(generator.tally)
        };
        let all: Vec<_> =
            (0..threads as u64).map(|seed| scope.spawn(move || load(seed + 1))).collect();
        let at = |time: u64| {
            std::thread::sleep(std::time::Duration::from_nanos(time.saturating_sub(now_ns())));
            busy()
        };
        let (begin, end) = (at(from), at(until));
        let join = |thread: std::thread::ScopedJoinHandle<_>| {
            thread.join().unwrap_or_else(|_| Err("a generator panicked".to_string()))
        };
        (begin, end, all.into_iter().map(join).collect::<Result<Vec<_>, String>>())
    });
    let tallies = tallies?;
    let recorded: u64 = tallies.iter().map(|tally| tally.recorded).sum();
    let elapsed = (until - from) as f64;
    let p99 = tallies.iter().map(|tally| tally.latency_ns.value_at_quantile(0.99)).max();
    let worker_ns = (end.0 - begin.0) as f64;
    Ok(Shown {
        requests_per_s: recorded as f64 / (elapsed / 1e9),
        worker_us: worker_ns / 1e3 / recorded.max(1) as f64,
        workers_busy: worker_ns / elapsed / workers as f64,
        rest_busy: (end.1 - begin.1) as f64 / elapsed / rest as f64,
        p99_us: p99.unwrap_or(0) as f64 / 1e3,
    })
}

const CONNECTIONS_EACH: usize = 64;
const METHOD: &str = "\
Closed loop, depth 4, 64 connections a generator. Each worker has a CPU of its own; generators and
servers, as many as there are CPUs left, float on the others. `busy` are shares of those CPUs; p99
is that of the slowest generator.

";
const HEADING: &str = "\
| workers | req/s | of linear | CPU us | workers busy | load and servers busy | p99 us | >= 0.80 |
|---|---|---|---|---|---|---|---|
";
