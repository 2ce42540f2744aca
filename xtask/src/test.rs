//! The steps of `cargo xtask test`. Every step runs, even after a failure; the end reports the
//! steps that ran, their times, the tests that are unstable and the tests left out.

use std::time::{Duration, Instant};

use crate::nextest::{self, Ran, Tests};
use crate::peers::{self, Peer};
use crate::{Outcome, cargo, commands, mutants, suites, tidy};

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
        about: "unit tests, conformance, fuzz smoke, simulator",
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
        about: "the program: its own tests, then among real peers",
        needs: PEERS,
        run: integration,
        long: false,
    },
    Step {
        name: "four",
        about: "what one worker does, four do: the earlier modules again",
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
        name: "mutants",
        about: "a sample of small changes, each of which a test must notice",
        needs: "",
        run: small_changes,
        long: true,
    },
];

/// The options of the command line.
#[derive(Default)]
struct Request {
    long: bool,
    allow_missing: bool,
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
    let mut request = parse(arguments)?;
    if STEPS.iter().any(|step| step.needs == PEERS && request.takes(step)) {
        request.missing = peers::prepare();
    }
    let mut all = Ran::default();
    let mut report = String::new();
    for step in STEPS.iter().filter(|step| request.takes(step)) {
        println!("\n== {}: {}", step.name, step.about);
        let start = Instant::now();
        let (ran, outcome) = (step.run)(&request);
        report.push_str(&summary(step, &ran, &outcome, start.elapsed()));
        let of_step = |test: String| format!("{} {test}", step.name);
        all.passed += ran.passed;
        all.unstable.extend(ran.unstable.into_iter().map(of_step));
        // A step that failed before its tests could report has failed once.
        if outcome.is_err() && ran.failed.is_empty() {
            all.failed.push(of_step("(see above)".into()));
        }
        all.failed.extend(ran.failed.into_iter().map(of_step));
    }
    println!("\n== summary\n{report}");
    let left_out = name_left_out(&request);
    verdict(&all, left_out && !request.allow_missing)
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
        "usage: cargo xtask test [--long] [--allow-missing] [STEP...]\n\n\
         Runs the named steps, or all of them, in this order. A step that fails does not stop the\n\
         later ones; the summary at the end lists each step with its time.\n\n",
    );
    text.push_str(&format!("  {:8} {:60} needs\n", "step", "proves"));
    for step in STEPS {
        let about = format!("{}{}", step.about, if step.long { " (--long)" } else { "" });
        text.push_str(format!("  {:8} {about:60} {}", step.name, step.needs).trim_end());
        text.push('\n');
    }
    text.push_str(
        "\n  --long           also run the steps that take long; a named step always runs\n  \
         --allow-missing  succeed although tests were left out because a program is missing\n\n\
         Real clients and servers are installed before the first step: packages by apt-get if\n\
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

/// Runs all tests without our own programs, which have a step of their own.
fn unit(_: &Request) -> (Ran, Outcome) {
    Tests {
        step: "unit",
        options: &["--workspace", "--exclude", "quickack"],
        filter: String::new(),
        environment: &[],
        again: false,
    }
    .run()
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

/// Runs all integration tests except those that measure milliseconds.
fn integration(request: &Request) -> (Ran, Outcome) {
    of_the_program("it", &["--bins", "--test", "it"], "not test(/^stall::/)", request, &[])
}

/// Most tests run one worker; those of the modules below set their own number.
fn through_four_workers(request: &Request) -> (Ran, Outcome) {
    const OF_THEIR_OWN: &[&str] = &[
        "admin",
        "balance",
        "cache",
        "eject",
        "metrics",
        "proxy_protocol",
        "queue",
        "quiet_master",
        "redis::clients",
        "reload",
        "stall",
        "syscalls",
        "verbs",
        "whole_proxy",
        "workers",
    ];
    let filter = format!("not test(/^({})::/)", OF_THEIR_OWN.join("|"));
    of_the_program("four", &["--test", "it"], &filter, request, &[("QUICKACK_WORKERS", "4")])
}

/// Run alone: with other tests on two cores a sample may be late without a fault.
fn stall(request: &Request) -> (Ran, Outcome) {
    of_the_program("stall", &["--test", "it"], "test(/^stall::/)", request, &[])
}

/// Leaves out the tests that need a missing peer.
fn of_the_program(
    step: &'static str,
    targets: &[&str],
    filter: &str,
    request: &Request,
    environment: &[(&str, &str)],
) -> (Ran, Outcome) {
    let mut filter = filter.to_string();
    for fragment in request.missing.iter().flat_map(|peer| peer.tests) {
        filter.push_str(&format!(" and not test({fragment})"));
    }
    let options = [&["--package", "quickack"], targets].concat();
    Tests { step, options: &options, filter, environment, again: true }.run()
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
        assert!(!takes("soak", "fmt"));
        assert!(parse(&words("sok")).is_err());
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
