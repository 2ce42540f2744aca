//! `cargo xtask sim`: runs seeds of the simulator, or one seed with every event printed.

use std::process::ExitCode;
use std::time::Instant;

use testkit::sim;

const USAGE: &str = "usage: sim [--seed N] [--seeds COUNT] [--from N] [--steps N] [--quiet]";

/// The options of the command line.
struct Wish {
    /// One seed to trace.
    seed: Option<u64>,
    from: u64,
    seeds: u64,
    steps: u32,
    quiet: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Some(wish) => play(&wish),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Option<Wish> {
    let mut wish = Wish { seed: None, from: 0, seeds: 10_000, steps: 2_000, quiet: false };
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        if name == "--quiet" {
            wish.quiet = true;
            continue;
        }
        let value = rest.next()?.parse().ok()?;
        match name.as_str() {
            "--seed" => wish.seed = Some(value),
            "--from" => wish.from = value,
            "--seeds" => wish.seeds = value,
            "--steps" => wish.steps = u32::try_from(value).ok()?,
            _ => return None,
        }
    }
    Some(wish)
}

fn play(wish: &Wish) -> ExitCode {
    if let Some(seed) = wish.seed {
        let play = if wish.quiet { sim::run } else { sim::replay };
        return match play(seed, wish.steps) {
            Ok(summary) => {
                println!("{summary:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    let start = Instant::now();
    let (sum, found) = sim::run_all(wish.from..wish.from + wish.seeds, wish.steps, 10, || {});
    let seconds = start.elapsed().as_secs_f64();
    println!("{sum:?}\n{:.2} us a step, {seconds:.1} s", seconds * 1e6 / sum.steps.max(1) as f64);
    found.iter().for_each(|failure| println!("{failure}"));
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
