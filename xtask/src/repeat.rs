//! `cargo xtask repeat COUNT STEP|TEST|MODULE::[,MODULE::]...`: runs steps of the ladder, or tests
//! with real programs or of a crate, again and again on a machine that is busy with something else.
//!
//! Each run leaves a line in a file, so a loop that was stopped goes on where it stood. A line has
//! the commit and says whether something ran beside: runs of another commit, or without a load, do
//! not count. A test that is named is run without a second try: here one failure is a finding.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::nextest::{self, Ran, Tests};
use crate::{Outcome, git, peers, root, test};

const USAGE: &str =
    "use: cargo xtask repeat [--quiet-machine] [--fresh] COUNT STEP|TEST|MODULE::[,MODULE::]...";
/// Twice as much work as two processors do, and a disk that has to write.
const BESIDE: &[&str] = &["--cpu", "4", "--io", "2", "--quiet"];
/// No test may be unstable in as many runs at the end.
const LAST: usize = 3;

struct Request {
    /// Nothing runs beside.
    quiet: bool,
    fresh: bool,
    count: usize,
    names: Vec<String>,
}

pub fn run(arguments: &[String]) -> Outcome {
    let request = parse(arguments)?;
    let file = root().join("target/repeat.txt");
    if request.fresh {
        let _ = fs::remove_file(&file);
    }
    let done = fs::read_to_string(&file).unwrap_or_default();
    // Those that cannot be had fail the tests that need them.
    peers::prepare();
    // What is built now is not built beside the load.
    let listed = nextest::list()?;
    let mut beside = (!request.quiet).then(Beside::start).transpose()?;
    let state = git::state()?;
    for run in 1..=request.count {
        for name in &request.names {
            let mark = format!("{}{run}: ", mark(&state, request.quiet, name));
            if done.lines().any(|line| line.starts_with(&mark)) {
                continue;
            }
            beside.as_mut().map_or(Ok(()), Beside::check)?;
            let (ran, step) = run_one(name, &listed)?;
            keep_outputs(&ran, step, &mark)?;
            let line = format!("{mark}{}", say(ran));
            // A run whose load has ended, or whose tree was changed, is no run of this mark.
            beside.as_mut().map_or(Ok(()), Beside::check)?;
            if git::state()? != state {
                return Err(format!("the tree is no longer {state}; this run does not count"));
            }
            println!("\n== repeat: {line}");
            note(&file, &line)?;
        }
    }
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    report(&text, &state, &request)
}

/// Returns how the lines of a name begin, before the number of the run.
fn mark(state: &str, quiet: bool, name: &str) -> String {
    format!("{state} {} {name} ", if quiet { "quiet" } else { "loaded" })
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    let (mut quiet, mut fresh, mut rest) = (false, false, Vec::new());
    for argument in arguments {
        match argument.as_str() {
            "--quiet-machine" => quiet = true,
            "--fresh" => fresh = true,
            _ => rest.push(argument.clone()),
        }
    }
    match rest.split_first().map(|(count, names)| (count.parse(), names)) {
        Some((Ok(count), names)) if !names.is_empty() => {
            Ok(Request { quiet, fresh, count, names: names.to_vec() })
        }
        _ => Err(USAGE.to_string()),
    }
}

/// Moves the outputs of tests that failed away: the next run would remove them.
fn keep_outputs(ran: &Ran, step: &str, mark: &str) -> Outcome {
    let from = nextest::kept(step);
    if ran.failed.is_empty() && ran.unstable.is_empty() || !from.exists() {
        return Ok(());
    }
    let name = mark.trim_end_matches(": ").replace(' ', "-").replace("::", ".");
    let to = root().join("target/repeat").join(name);
    let _ = fs::remove_dir_all(&to);
    let moved =
        fs::create_dir_all(root().join("target/repeat")).and_then(|()| fs::rename(&from, &to));
    moved.map_err(|error| format!("{}: {error}", to.display()))?;
    println!("\nits outputs are in {}", to.display());
    Ok(())
}

/// Runs a step, or tests of these names: of the program among real peers, which are listed, or of a
/// crate. Returns the name of the step, too.
fn run_one<'a>(name: &'a str, listed: &BTreeSet<String>) -> Result<(Ran, &'a str), String> {
    if let Some(ran) = test::run_step(name)? {
        return Ok((ran, name));
    }
    let is_it =
        |test: &String, name: &str| test == name || name.ends_with("::") && test.starts_with(name);
    let is_listed = |name: &str| listed.iter().any(|test| is_it(test, name));
    let (step, options, which) = match name.split(',').all(is_listed) {
        true => ("it", nextest::PROGRAM_OPTIONS, format!("{} and ", nextest::PROGRAM)),
        false => ("unit", &["--workspace"][..], String::new()),
    };
    let filter = which + &filter(name);
    let tests = Tests { step, options, filter, environment: &[], again: false };
    match tests.run() {
        (ran, Err(why)) if ran.passed == 0 && ran.failed.is_empty() => Err(why),
        (ran, _) => Ok((ran, step)),
    }
}

/// Returns nextest's expression for a test, or for all tests of a module, `module::`, or for those
/// of several names with commas between them. They run at once.
fn filter(names: &str) -> String {
    let one = |name: &str| match name.ends_with("::") {
        true => format!("test(/^{name}/)"),
        false => format!("test(={name})"),
    };
    format!("({})", names.split(',').map(one).collect::<Vec<_>>().join(" or "))
}

fn say(ran: Ran) -> String {
    let names = |what: &str, tests: &[String]| match tests {
        [] => String::new(),
        tests => format!("; {what}: {}", tests.join(", ")),
    };
    let mut line = format!("{} passed", ran.passed);
    line.push_str(&names("failed", &ran.failed));
    line + &names("unstable", &ran.unstable)
}

fn note(file: &PathBuf, line: &str) -> Outcome {
    let opened = fs::File::options().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// Prints how often each name was run, and each run that was not clean. A failed run is an error.
/// So is a test that is unstable in one of the last runs, for then it was not mended.
fn report(text: &str, state: &str, request: &Request) -> Outcome {
    let (mut failed, mut unstable) = (0, Vec::new());
    println!();
    for name in &request.names {
        let mark = mark(state, request.quiet, name);
        let runs: Vec<&str> = text.lines().filter(|line| line.starts_with(&mark)).collect();
        let (bad, shaky) = (count(&runs, "; failed: "), count(&runs, "; unstable: "));
        failed += bad;
        println!("{name}: {} runs, {bad} failed, {shaky} unstable", runs.len());
        runs.iter().filter(|line| line.contains("; ")).for_each(|line| println!("  {line}"));
        let last = &runs[runs.len().saturating_sub(LAST)..];
        if count(last, "; unstable: ") > 0 {
            println!("  a test is unstable in one of the last {} runs", last.len());
            unstable.push(name.as_str());
        }
    }
    match (failed, unstable.is_empty()) {
        (0, true) => Ok(()),
        (0, false) => Err(format!("unstable in the last runs: {}", unstable.join(" "))),
        (failed, _) => Err(format!("{failed} runs failed")),
    }
}

fn count(runs: &[&str], what: &str) -> usize {
    runs.iter().filter(|line| line.contains(what)).count()
}

/// A load beside the tests, which ends with this value.
struct Beside(Child);

impl Beside {
    fn start() -> Result<Beside, String> {
        peers::need_package("stress-ng", &["stress-ng", "--version"])?;
        // It ends also if this process is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "stress-ng"]);
        let child = command.args(BESIDE).stdin(Stdio::null()).spawn();
        child.map(Beside).map_err(|error| format!("stress-ng: {error}"))
    }

    fn check(&mut self) -> Outcome {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("stress-ng ended with {status}: no load is beside")),
            Err(error) => Err(format!("stress-ng: {error}")),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // One that has ended may have left its number to another process.
        if self.check().is_err() {
            return;
        }
        let id = rustix::process::Pid::from_child(&self.0);
        // It ends its own workers when it is asked to.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_failed_and_what_is_unstable() {
        let ran = |failed: &[&str], unstable: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
            Ran { passed: 7, failed: names(failed), unstable: names(unstable) }
        };
        assert_eq!(say(ran(&[], &[])), "7 passed");
        assert_eq!(say(ran(&["a"], &["b", "c"])), "7 passed; failed: a; unstable: b, c");
        let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
        assert!(parse(&words("6 it four")).is_ok_and(|request| request.names.len() == 2));
        assert!(parse(&words("it four")).is_err());
        assert_eq!(filter("a::b"), "(test(=a::b))");
        assert_eq!(filter("a::,b::c"), "(test(/^a::/) or test(=b::c))");
    }

    #[test]
    fn a_report_counts_the_runs_of_its_commit_and_load_and_refuses_what_is_not_clean() {
        let request = |quiet| Request { quiet, fresh: false, count: 4, names: vec!["it".into()] };
        let said = |text: &str| report(text, "abc", &request(false));
        assert!(said("abc loaded it 1: 7 passed\nabc loaded four 1: 1; failed: a\n").is_ok());
        let failed = "abc loaded it 1: 6 passed; failed: a\n";
        assert!(said(failed).is_err());
        assert!(report(failed, "abc", &request(true)).is_ok(), "it was loaded");
        assert!(report(failed, "abc+", &request(false)).is_ok(), "it was another tree");
        let clean = "abc loaded it 2: 7 passed\n";
        let unstable = "abc loaded it 1: 7 passed; unstable: a\n".to_string();
        assert!(said(&(unstable.clone() + &clean.repeat(2))).is_err());
        assert!(said(&(unstable + &clean.repeat(3))).is_ok(), "it was mended since");
    }

    #[test]
    fn a_load_that_has_ended_is_noticed() {
        let mut beside = Beside(Command::new("sleep").arg("60").spawn().unwrap());
        assert_eq!(beside.check(), Ok(()));
        beside.0.kill().unwrap();
        beside.0.wait().unwrap();
        assert!(beside.check().is_err());
    }
}
