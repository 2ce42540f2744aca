//! The steps of `cargo xtask test`. Every step runs, even after a failure; the end reports the
//! steps that ran, their times, the tests that are unstable and the tests left out.

use std::time::{Duration, Instant, SystemTime};

use crate::nextest::{self, Ran, Tests};
use crate::peers::{self, Peer};
use crate::{
    Outcome, any_workers, cargo, commands, deny, dist, mutants, quick, step, suites, tidy, times,
};

/// One step.
struct Step {
    name: &'static str,
    /// Describes what the step proves.
    about: &'static str,
    /// What it needs beside cargo; `PEERS` are looked for before the first step.
    needs: &'static str,
    run: fn(&Request) -> (Ran, Outcome),
    /// Runs only with `--long`, or if it is named.
    long: bool,
}

const PEERS: &str = "real clients and servers";

const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        about: "rustfmt has nothing to change",
        needs: "rustfmt",
        run: fmt,
        long: false,
    },
    Step {
        name: "clippy",
        about: "no lint, warnings denied",
        needs: "clippy",
        run: clippy,
        long: false,
    },
    Step { name: "tidy", about: "the house rules", needs: "", run: house_rules, long: false },
    Step {
        name: "unit",
        about: "unit tests, the program's too; conformance, fuzz smoke, simulator",
        needs: "",
        run: unit,
        long: false,
    },
    Step {
        name: "bugs",
        about: "the simulator and the random stories find each seeded bug",
        needs: "",
        run: bugs,
        long: false,
    },
    Step {
        name: "commands",
        about: "the table of Redis's commands is what the servers say",
        needs: PEERS,
        run: commands_table,
        long: false,
    },
    Step {
        name: "it",
        about: "the program among real peers",
        needs: PEERS,
        run: integration,
        long: false,
    },
    Step {
        name: "four",
        about: "what one worker does, four do: the same tests again",
        needs: PEERS,
        run: through_four_workers,
        long: false,
    },
    Step {
        name: "stall",
        about: "the stall and its cure, one at a time",
        needs: PEERS,
        run: stall,
        long: false,
    },
    Step {
        name: "soak",
        about: "what takes long, one at a time",
        needs: PEERS,
        run: soak,
        long: true,
    },
    Step {
        name: "suites",
        about: "other projects' own tests, through quickack",
        needs: PEERS,
        run: other_projects,
        long: true,
    },
    Step {
        name: "dist",
        about: "the program of a release: its size, its man pages",
        needs: "",
        run: release,
        long: true,
    },
    Step {
        name: "deny",
        about: "dependencies: licenses, sources, duplicates",
        needs: "cargo-deny",
        run: dependencies,
        long: true,
    },
    Step {
        name: "mutants",
        about: "a sample of small changes, each of which a test must notice",
        needs: "",
        run: small_changes,
        long: true,
    },
];

const OPTIONS: &[(&str, &str)] = &[
    ("quick", "what a change needs before a commit: fmt, clippy, tidy, the unit tests of"),
    ("", "changed crates and of those above them, 500 seeds, a test of each module"),
    ("--long", "also run the steps that take long; a named step always runs"),
    ("--allow-missing", "succeed although tests were left out because a program is missing"),
    ("--write-times", "write tests and times of the steps into CONTRIBUTING.md if all passed;"),
    ("", "with `quick`, its own, as after a change to every crate"),
];

const QUICK: &[&str] = &["fmt", "clippy", "tidy", "unit", "it"];

/// The options of the command line.
#[derive(Default)]
struct Request {
    long: bool,
    allow_missing: bool,
    /// What a change needs before a commit: `QUICK`, and of the large ones a part.
    quick: bool,
    /// Writes the times of the steps into CONTRIBUTING.md.
    write_times: bool,
    /// Names of steps; empty for all.
    steps: Vec<String>,
    /// Peers that this machine lacks.
    missing: Vec<&'static Peer>,
}

pub fn run(arguments: &[String]) -> Outcome {
    if arguments.iter().any(|argument| argument == "--help") {
        print!("{}", help());
        return Ok(());
    }
    let (began, began_at) = (Instant::now(), SystemTime::now());
    let mut request = parse(arguments)?;
    // Asked before anything is built.
    let column = request.write_times.then(times::Column::now).transpose()?;
    if STEPS.iter().any(|step| step.needs == PEERS && request.takes(step)) {
        request.missing = peers::prepare();
    }
    let taken = STEPS.iter().filter(|step| request.takes(step));
    let (mut all, rows, report) = play(taken, &request);
    println!("\n== summary\n{report}");
    let left_out = name_left_out(&request);
    if !left_out && request.steps.is_empty() && rows.iter().all(|row| row.passed) {
        times::passed(began_at)?;
    }
    // Tests that were left out, or are not for `quick`, are not lost.
    if !left_out && !request.quick {
        let lost = times::compare(&rows)?;
        match column {
            None => all.failed.extend(lost),
            Some(_) => lost.iter().for_each(|line| println!("written: {line}")),
        }
    }
    let outcome = verdict(&all, left_out && !request.allow_missing);
    let write = if request.quick { times::write_quick } else { times::write };
    match column {
        Some(column) if !left_out && outcome.is_ok() => write(&rows, began.elapsed(), column)?,
        Some(_) => println!("no times are written: a step failed, or tests were left out"),
        None => {}
    }
    outcome
}

/// Runs steps, each whatever has become of those before. Returns the tests of all, the figures of
/// each, and the lines of the summary.
fn play<'a>(
    steps: impl Iterator<Item = &'a Step>,
    request: &Request,
) -> (Ran, Vec<times::Row>, String) {
    let (mut all, mut rows, mut report) = (Ran::default(), Vec::new(), String::new());
    for step in steps {
        println!("\n== {}: {}", step.name, step.about);
        let start = Instant::now();
        let (ran, outcome) = step::run(step.name, || (step.run)(request));
        let (tests, took) = (ran.passed + ran.failed.len() as u64, start.elapsed());
        rows.push(times::Row { step: step.name, passed: outcome.is_ok(), tests, took });
        report.push_str(&summary(step, &ran, &outcome, took));
        let of_step = |test: String| format!("{} {test}", step.name);
        all.passed += ran.passed;
        all.unstable.extend(ran.unstable.into_iter().map(of_step));
        // A step that failed before its tests could report has failed once.
        if outcome.is_err() && ran.failed.is_empty() {
            all.failed.push(of_step("(see above)".into()));
        }
        all.failed.extend(ran.failed.into_iter().map(of_step));
    }
    (all, rows, report)
}

/// Runs one step, for a loop over it; None if there is no step of that name. The error says that
/// tests would be left out: a loop over the others proves less than its name says.
pub fn run_step(name: &str) -> Result<Option<Ran>, String> {
    let Some(step) = STEPS.iter().find(|step| step.name == name) else { return Ok(None) };
    let mut request = Request { steps: vec![name.to_string()], ..Request::default() };
    if step.needs == PEERS {
        request.missing = peers::prepare();
    }
    if name_left_out(&request) {
        return Err(format!("tests of {name} would be left out; install what is named above"));
    }
    let (mut ran, outcome) = step::run(name, || (step.run)(&request));
    if let Err(why) = outcome
        && ran.failed.is_empty()
    {
        ran.failed.push(why);
    }
    Ok(Some(ran))
}

/// Prints the tests that failed and those that are unstable, and the closing line.
fn verdict(all: &Ran, left_out: bool) -> Outcome {
    for test in &all.failed {
        println!("failed: {test}");
    }
    for test in &all.unstable {
        println!("unstable: {test} (failed among others, passed alone; see target/unstable)");
    }
    println!("{} passed, {} failed", all.passed, all.failed.len());
    if !all.failed.is_empty() {
        Err(format!("{} failed; the summary above says where", all.failed.len()))
    } else if all.unstable.len() > nextest::UNSTABLE_MAX {
        let (count, max) = (all.unstable.len(), nextest::UNSTABLE_MAX);
        Err(format!("{count} tests are unstable, more than {max}; mend them"))
    } else if left_out {
        Err("tests were left out; install what is named above, or --allow-missing".into())
    } else {
        Ok(())
    }
}

fn help() -> String {
    let mut text = String::from(
        "usage: cargo xtask test [quick] [OPTION...] [STEP...]\n\n\
         Runs the named steps, or all of them, in this order. A step that fails does not stop the\n\
         later ones; the summary at the end lists each step with its time. A test has a process\n\
         and a deadline of its own. One of real programs that fails is run once more, alone: if\n\
         it passes then, its step passes, and the summary calls it unstable.\n\n",
    );
    text.push_str(&format!("  {:8} {:60} needs\n", "step", "proves"));
    for step in STEPS {
        let about = format!("{}{}", step.about, if step.long { " (--long)" } else { "" });
        text.push_str(format!("  {:8} {about:60} {}", step.name, step.needs).trim_end());
        text.push('\n');
    }
    text.push('\n');
    for (option, about) in OPTIONS {
        text.push_str(&format!("  {option:15} {about}\n"));
    }
    text.push_str(
        "\nReal clients and servers are installed before the first step: packages by apt-get if\n\
         you are root, the others in this folder. Without one of them its tests are left out and\n\
         named in the summary. CONTRIBUTING.md has the times of the steps. They are:\n\n",
    );
    for line in peers::list() {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    let mut request = Request::default();
    for argument in arguments {
        match argument.as_str() {
            "quick" => {
                request.quick = true;
                request.steps.extend(QUICK.iter().map(|step| step.to_string()));
            }
            "--write-times" => request.write_times = true,
            "--long" => request.long = true,
            "--allow-missing" => request.allow_missing = true,
            name if STEPS.iter().any(|step| step.name == name) => {
                request.steps.push(name.to_string());
            }
            other => {
                let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
                return Err(format!("no option or step {other:?}; steps: {}", names.join(" ")));
            }
        }
    }
    let is_quick = request.quick && request.steps.len() == QUICK.len();
    if request.write_times && (request.long || !(request.steps.is_empty() || is_quick)) {
        return Err("--write-times is for `quick` or for a run of all steps, without --long".into());
    }
    Ok(request)
}

impl Request {
    fn takes(&self, step: &Step) -> bool {
        if self.steps.is_empty() {
            self.long || !step.long
        } else {
            self.steps.iter().any(|name| name == step.name)
        }
    }
}

fn summary(step: &Step, ran: &Ran, outcome: &Outcome, took: Duration) -> String {
    let verdict = match outcome {
        Ok(()) if ran.unstable.is_empty() => "ok".to_string(),
        Ok(()) => format!("ok, {} unstable", ran.unstable.len()),
        Err(why) => format!("FAILED: {why}"),
    };
    let tests = ran.passed + ran.failed.len() as u64;
    format!("{:8} {:7.1} s {tests:5} tests  {verdict}\n", step.name, took.as_secs_f64())
}

/// Prints the tests that this machine could not run; returns true if there are any.
fn name_left_out(request: &Request) -> bool {
    for peer in &request.missing {
        println!("left out, {} is not here: tests named {}", peer.name, peer.tests.join(", "));
    }
    !request.missing.is_empty()
}

/// Counts a step without tests of its own as one.
fn one(outcome: Outcome) -> (Ran, Outcome) {
    let passed = u64::from(outcome.is_ok());
    (Ran { passed, ..Ran::default() }, outcome)
}

fn fmt(_: &Request) -> (Ran, Outcome) {
    one(cargo::run(&mut cargo::command(&["fmt", "--all", "--", "--check"])))
}

fn clippy(_: &Request) -> (Ran, Outcome) {
    let arguments =
        ["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];
    one(cargo::run(&mut cargo::command(&arguments)))
}

fn house_rules(_: &Request) -> (Ran, Outcome) {
    one(tidy::run(&[]))
}

/// Runs all tests but those of the program among real peers, which have steps of their own. The
/// whole workspace is built in each of these steps: with other packages, dependencies would have
/// other features, and be compiled again. One of the program's unit tests runs a real peer.
fn unit(request: &Request) -> (Ran, Outcome) {
    let mut others = format!("not {}", nextest::PROGRAM);
    for fragment in request.missing.iter().flat_map(|peer| peer.tests) {
        others.push_str(&format!(" and not (package(=quickack) and test({fragment}))"));
    }
    let (filter, environment) = match request.quick {
        true => match quick::unit(request.write_times) {
            Ok(changed) => (format!("({changed}) and {others}"), &[quick::SEEDS][..]),
            Err(why) => return (Ran::default(), Err(why)),
        },
        false => (others, &[][..]),
    };
    Tests { step: "unit", options: &["--workspace"], filter, environment, again: true }.run()
}

/// The bugs are compiled in, so this step has its own target folder.
fn bugs(_: &Request) -> (Ran, Outcome) {
    let tests = ["--test", "simulator", "--test", "it"];
    let options = ["--package", "testkit", "--package", "proxy", "--target-dir", "target/seeded"];
    Tests {
        step: "bugs",
        options: &[&options[..], &tests[..]].concat(),
        filter: "test(seeded)".into(),
        environment: &[("RUSTFLAGS", "--cfg seeded_bugs")],
        again: false,
    }
    .run()
}

/// Left out if its servers are missing; the report on the tests that need them includes it.
fn commands_table(request: &Request) -> (Ran, Outcome) {
    let needs = |peer: &&&Peer| peer.tests.contains(&"redis");
    if request.missing.iter().any(|peer| needs(&peer)) {
        return (Ran::default(), Ok(()));
    }
    one(commands::run(&["--check".to_string()]))
}

/// Runs all integration tests except those that measure milliseconds. On the way it learns which of
/// them run with any number of workers, and compares that with the list that `four` takes.
fn integration(request: &Request) -> (Ran, Outcome) {
    if request.quick {
        return match quick::integration() {
            Ok(filter) => of_the_program("it", &filter, request, &[]),
            Err(why) => (Ran::default(), Err(why)),
        };
    }
    let noted = match any_workers::begin() {
        Ok(noted) => noted,
        Err(why) => return (Ran::default(), Err(why)),
    };
    let environment = [(any_workers::VARIABLE, noted.as_str())];
    let filter = "not test(/^stall::/)";
    let (mut ran, outcome) = of_the_program("it", filter, request, &environment);
    if outcome.is_err() || !request.missing.is_empty() {
        return (ran, outcome);
    }
    let outcome = any_workers::compare(&noted);
    ran.passed += u64::from(outcome.is_ok());
    (ran, outcome)
}

/// Runs the tests that run with any number of workers once more, with four.
fn through_four_workers(request: &Request) -> (Ran, Outcome) {
    match any_workers::filter() {
        Ok(filter) => {
            let environment = [("QUICKACK_WORKERS", "4")];
            of_the_program("four", &filter, request, &environment)
        }
        Err(why) => (Ran::default(), Err(why)),
    }
}

/// Run alone: with other tests on two cores a sample may be late without a fault.
fn stall(request: &Request) -> (Ran, Outcome) {
    of_the_program("stall", "test(/^stall::/)", request, &[])
}

/// Leaves out the tests that need a missing peer.
fn of_the_program(
    step: &'static str,
    filter: &str,
    request: &Request,
    environment: &[(&str, &str)],
) -> (Ran, Outcome) {
    let mut filter = format!("{} and ({filter})", nextest::PROGRAM);
    for fragment in request.missing.iter().flat_map(|peer| peer.tests) {
        filter.push_str(&format!(" and not test({fragment})"));
    }
    let options = nextest::PROGRAM_OPTIONS;
    Tests { step, options, filter, environment, again: true }.run()
}

fn soak(_: &Request) -> (Ran, Outcome) {
    let options = ["--release", "--package", "quickack", "--test", "it", "--run-ignored", "only"];
    Tests {
        step: "soak",
        options: &[&options[..], &["--no-capture"]].concat(),
        filter: "test(soak)".into(),
        environment: &[],
        again: false,
    }
    .run()
}

fn other_projects(_: &Request) -> (Ran, Outcome) {
    suites::step()
}

fn release(_: &Request) -> (Ran, Outcome) {
    one(dist::run(&[]))
}

fn dependencies(_: &Request) -> (Ran, Outcome) {
    one(deny::step())
}

fn small_changes(_: &Request) -> (Ran, Outcome) {
    mutants::step()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_string).collect()
    }

    fn takes(line: &str, name: &str) -> bool {
        let request = parse(&words(line)).unwrap();
        STEPS.iter().any(|step| step.name == name && request.takes(step))
    }

    #[test]
    fn the_long_set_is_behind_its_switch() {
        assert!(!takes("", "soak"));
        assert!(takes("--long", "soak"));
        assert!(takes("soak", "soak"));
        assert!(takes("--long", "deny") && takes("deny", "deny") && !takes("", "deny"));
        assert!(!takes("soak", "fmt"));
        assert!(parse(&words("sok")).is_err());
        assert!(parse(&words("--write-times")).is_ok());
        assert!(parse(&words("it --write-times")).is_err(), "the sum would be that of one step");
    }

    #[test]
    fn a_step_that_panics_is_in_the_summary_and_the_next_one_runs() {
        let step = |name, run| Step { name, about: "", needs: "", run, long: false };
        let steps = [step("a", |_| panic!("no server")), step("b", |_| one(Ok(())))];
        let (all, rows, report) = play(steps.iter(), &Request::default());
        assert_eq!((all.passed, all.failed), (1, vec!["a (see above)".to_string()]));
        assert_eq!(rows.iter().map(|row| row.passed).collect::<Vec<_>>(), [false, true]);
        let lines: Vec<&str> = report.lines().collect();
        assert!(lines[0].ends_with("FAILED: it panicked: no server"), "{report}");
        assert!(lines[1].starts_with("b ") && lines[1].ends_with("ok"), "{report}");
    }

    #[test]
    fn the_help_names_each_step_and_each_peer() {
        let text = help();
        assert!(
            STEPS.iter().all(|step| text.contains(&format!("\n  {:8} {}", step.name, step.about)))
        );
        assert!(peers::PEERS.iter().all(|peer| text.contains(&format!("\n  {} ", peer.name))));
    }
}
