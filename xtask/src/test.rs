//! The steps of `cargo xtask test`. Every step runs, even after a failure; the end reports the
//! steps that ran, their times and the tests left out.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::cargo::{self, Count};
use crate::peers::{self, Peer};
use crate::{Outcome, commands, mutants, suites, tidy};

/// One step.
struct Step {
    name: &'static str,
    /// Describes what the step proves.
    about: &'static str,
    /// What it needs beside cargo; `PEERS` are looked for before the first step.
    needs: &'static str,
    run: fn(&Request) -> (Count, Outcome),
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
    let mut count = Count::default();
    let mut report = String::new();
    for step in STEPS.iter().filter(|step| request.takes(step)) {
        println!("\n== {}: {}", step.name, step.about);
        let start = Instant::now();
        let (ran, outcome) = (step.run)(&request);
        count.add(ran);
        // A step that failed before its tests could report has failed once.
        count.failed += u64::from(outcome.is_err() && ran.failed == 0);
        report.push_str(&summary(step, ran, &outcome, start.elapsed()));
    }
    println!("\n== summary\n{report}");
    let left_out = name_left_out(&request);
    println!("{} passed, {} failed, {} skipped", count.passed, count.failed, count.skipped);
    match (count.failed, left_out && !request.allow_missing) {
        (0, false) => Ok(()),
        (0, true) => {
            Err("tests were left out; install what is named above, or --allow-missing".into())
        }
        (failed, _) => Err(format!("{failed} failed; the summary above says where")),
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

fn summary(step: &Step, ran: Count, outcome: &Outcome, took: Duration) -> String {
    let verdict = match outcome {
        Ok(()) => "ok".to_string(),
        Err(why) => format!("FAILED: {why}"),
    };
    let tests = ran.passed + ran.failed;
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
fn one(outcome: Outcome) -> (Count, Outcome) {
    let passed = u64::from(outcome.is_ok());
    (Count { passed, ..Count::default() }, outcome)
}

fn fmt(_: &Request) -> (Count, Outcome) {
    one(cargo::run(&mut cargo::command(&["fmt", "--all", "--", "--check"])))
}

fn clippy(_: &Request) -> (Count, Outcome) {
    let arguments =
        ["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];
    one(cargo::run(&mut cargo::command(&arguments)))
}

fn house_rules(_: &Request) -> (Count, Outcome) {
    one(tidy::run(&[]))
}

/// Runs all tests without our own programs, which have a step of their own.
fn unit(_: &Request) -> (Count, Outcome) {
    let arguments =
        ["test", "--workspace", "--exclude", "quickack", "--locked", "--no-fail-fast", "--tests"];
    cargo::run_tests(&mut cargo::command(&arguments))
}

/// The bugs are compiled in, so this step has its own target folder.
fn bugs(_: &Request) -> (Count, Outcome) {
    let arguments = ["test", "--package", "testkit", "--package", "proxy", "--locked"];
    let mut command = cargo::command(&arguments);
    command.args(["--target-dir", "target/seeded", "--no-fail-fast"]);
    for test in ["simulator", "topics_at_random", "waits_at_random"] {
        command.args(["--test", test]);
    }
    command.args(["--", "seeded"]).env("RUSTFLAGS", "--cfg seeded_bugs");
    cargo::run_tests(&mut command)
}

/// Left out if its servers are missing; the report on the tests that need them includes it.
fn commands_table(request: &Request) -> (Count, Outcome) {
    let needs = |peer: &&&Peer| peer.tests.contains(&"redis");
    if request.missing.iter().any(|peer| needs(&peer)) {
        return (Count::default(), Ok(()));
    }
    one(commands::run(&["--check".to_string()]))
}

/// Runs all integration tests except those that measure milliseconds.
fn integration(request: &Request) -> (Count, Outcome) {
    let mut command = of_the_program(&["--bins", "--test", "it"]);
    cargo::run_tests(leave_out(&mut command, request).args(["--skip", "stall::"]))
}

/// Most tests run one worker; those of the modules below set their own number.
fn through_four_workers(request: &Request) -> (Count, Outcome) {
    const OF_THEIR_OWN: &[&str] = &[
        "admin::",
        "balance::",
        "cache::",
        "eject::",
        "metrics::",
        "proxy_protocol::",
        "queue::",
        "quiet_master::",
        "redis::clients::",
        "reload::",
        "stall::",
        "syscalls::",
        "verbs::",
        "whole_proxy::",
        "workers::",
    ];
    let mut command = of_the_program(&["--test", "it"]);
    leave_out(&mut command, request);
    for module in OF_THEIR_OWN {
        command.args(["--skip", module]);
    }
    cargo::run_tests(command.env("QUICKACK_WORKERS", "4"))
}

/// Run alone: with other tests on two cores a sample may be late without a fault.
fn stall(request: &Request) -> (Count, Outcome) {
    let mut command = of_the_program(&["--test", "it"]);
    cargo::run_tests(leave_out(&mut command, request).args(["--test-threads=1", "stall::"]))
}

fn of_the_program(targets: &[&str]) -> Command {
    let arguments = ["test", "--package", "quickack", "--locked", "--no-fail-fast"];
    let mut command = cargo::command(&arguments);
    command.args(targets).arg("--");
    command
}

/// Skips tests that need a missing peer.
fn leave_out<'a>(command: &'a mut Command, request: &Request) -> &'a mut Command {
    for fragment in request.missing.iter().flat_map(|peer| peer.tests) {
        command.args(["--skip", fragment]);
    }
    command
}

fn soak(_: &Request) -> (Count, Outcome) {
    let arguments = ["test", "--locked", "--release", "--package", "quickack", "--test", "it"];
    let mut command = cargo::command(&arguments);
    cargo::run_long_tests(command.args([
        "--",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
        "soak",
    ]))
}

fn other_projects(_: &Request) -> (Count, Outcome) {
    suites::step()
}

fn small_changes(_: &Request) -> (Count, Outcome) {
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
