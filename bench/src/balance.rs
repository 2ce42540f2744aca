//! The distribution of long connections over eight workers, for each method of accepting.
//!
//! Connections are opened as fast as possible, or one by one, each after the answer to the previous
//! one. They stay open, and the workers report the numbers of their connections.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::admin::{Admin, Worker};
use crate::contest::Stage;
use crate::load::{Generator, Workload, now_ns};
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Endpoint, Peer};
use crate::rows::{self, ACCEPTS};

const WORKERS: usize = 8;
const CONNECTIONS: [usize; 3] = [64, 400, 4_000];

/// Prints the table; returns true if all bars are met.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = format!("## Balance: long connections over {WORKERS} workers\n\n");
    text.push_str(&page::short_origin(&machine, options));
    text.push_str(METHOD);
    text.push_str(HEADING);
    print!("{text}");
    let row = rows::plain("balance", "long connections");
    let stage = Stage::build(&row, options)?;
    let mut met = true;
    for accept in ACCEPTS {
        for connections in CONNECTIONS {
            for pace in [Pace::Burst, Pace::OneByOne] {
                let who = Contestant::of(Peer::Quickack, WORKERS).accepting(accept);
                let endpoint = stage.endpoint(who, &row, options, folder, &[])?;
                let counts = deal(&stage, &endpoint, connections, pace)?;
                let (line, is_met) = line(accept, pace, &counts);
                met &= is_met;
                print!("{line}");
                text.push_str(&line);
            }
        }
    }
    if options.write {
        page::write(Some("--balance"), &text)?;
    }
    Ok(met)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Burst,
    OneByOne,
}

/// Opens connections; returns each worker's number when all are served.
fn deal(
    stage: &Stage,
    endpoint: &Endpoint,
    connections: usize,
    pace: Pace,
) -> Result<Vec<u64>, String> {
    let admin = endpoint.admin.as_ref().ok_or("only quickack has workers")?;
    let together = match pace {
        Pace::Burst => connections,
        Pace::OneByOne => 1,
    };
    let work = Workload { connections: together, ..stage.work.clone() };
    let mut generators = Vec::new();
    for seed in 0..connections / together {
        let addresses = &endpoint.addresses;
        let mut generator = Generator::start(&work, &stage.corpus, addresses, seed as u64)?;
        generator.run_until(now_ns())?;
        generator.drain()?;
        generators.push(generator);
    }
    settled(admin, connections as u64)
}

/// Returns the workers' numbers of clients, as soon as their sum is reached.
fn settled(admin: &Admin, connections: u64) -> Result<Vec<u64>, String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let workers: Vec<Worker> = admin.workers()?;
        let counts: Vec<u64> = workers.iter().map(|worker| worker.clients).collect();
        if counts.iter().sum::<u64>() == connections {
            return Ok(counts);
        }
        if Instant::now() > deadline {
            return Err(format!("{connections} connections are open, the workers have {counts:?}"));
        }
        // The pause is only between checks.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a line of the table, and whether it meets its bar.
fn line(accept: &str, pace: Pace, counts: &[u64]) -> (String, bool) {
    let (max, min) = (counts.iter().max().copied(), counts.iter().min().copied());
    let (max, min) = (max.unwrap_or(0), min.unwrap_or(0));
    let connections: u64 = counts.iter().sum();
    let over = max as f64 * counts.len() as f64 / connections as f64;
    let (bar, met) = match (accept, connections) {
        ("gate", 64) => ("max - min <= 2", max - min <= 2),
        ("gate", _) => ("max / avg <= 1.1", over <= 1.1),
        ("reuseport", 400) => ("max / avg <= 1.35", over <= 1.35),
        ("mutex", _) => ("min > 0, max / avg <= 1.5", min > 0 && over <= 1.5),
        _ => ("-", true),
    };
    let pace = if pace == Pace::Burst { "at once" } else { "one by one" };
    let mut out = format!("| {accept} | {connections} | {pace} | {max} | {min} | {} |", max - min);
    let judged = match (bar, met) {
        ("-", _) => "",
        (_, true) => "met",
        (_, false) => "**not met**",
    };
    let _ = writeln!(out, " {over:.3} | {bar} | {judged} |");
    (out, met)
}

const METHOD: &str = "\
Each line is a proxy started afresh. `at once`: all connections are opened by one thread as fast as
it can, each with one request in it. `one by one`: each after the answer to the one before.

";
const HEADING: &str = "\
| accept | connections | opened | max | min | max - min | max / avg | bar | |
|---|---|---|---|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::{Pace, line};

    #[test]
    fn bars_differ_by_the_way_of_accepting() {
        let check = |accept: &str, counts: &[u64], met: bool| {
            assert_eq!(line(accept, Pace::Burst, counts).1, met, "{accept} {counts:?}");
        };
        check("gate", &[9, 7, 8, 8, 8, 8, 8, 8], true);
        check("gate", &[10, 7, 8, 8, 8, 8, 8, 7], false);
        check("gate", &[55, 45, 50, 50, 50, 50, 50, 50], true);
        check("reuseport", &[30, 2, 2, 6, 6, 6, 6, 6], true);
        check("reuseport", &[70, 50, 50, 50, 50, 50, 50, 30], false);
        check("mutex", &[0, 8, 8, 8, 10, 10, 10, 10], false);
    }
}
