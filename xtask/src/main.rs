//! `cargo xtask VERB`: all tasks that a developer or a CI machine runs on this project.
//!
//! Each verb is one row in [`VERBS`], from which the help is printed. The steps of `test` are in
//! `test.rs`, the project's rules in `tidy.rs`, the programs that tests need in `peers.rs`.

mod any_workers;
mod bench;
mod cargo;
mod commands;
mod deny;
mod dist;
mod git;
mod guard;
mod mutants;
mod nextest;
mod peers;
mod quick;
mod repeat;
mod shape;
mod source;
mod step;
mod suites;
mod test;
mod tidy;
mod times;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The result of a verb; the error is a sentence that explains the failure.
type Outcome = Result<(), String>;

/// One verb of the command line.
struct Verb {
    name: &'static str,
    usage: &'static str,
    run: fn(&[String]) -> Outcome,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "test",
        usage: "[--help] [quick] [--long] [--allow-missing] [--write-times] [STEP...]  tests",
        run: test::run,
    },
    Verb {
        name: "repeat",
        usage: "[--quiet-machine] [--fresh] COUNT STEP|TEST...  steps or tests beside a load",
        run: repeat::run,
    },
    Verb { name: "tidy", usage: "the house rules that no compiler checks", run: tidy::run },
    Verb {
        name: "shape",
        usage: "[PATH]  how the code hangs together: calls, circles, sizes; of another checkout",
        run: shape::run,
    },
    Verb { name: "docs", usage: "write docs/reference/ anew from the tables", run: docs },
    Verb {
        name: "bench",
        usage: "[--help] [OPTION...]  quickack beside its peers on loopback",
        run: bench::run,
    },
    Verb {
        name: "commands",
        usage: "[--check] [--redis PROGRAM] [--valkey PROGRAM]  the table of Redis's commands",
        run: commands::run,
    },
    Verb {
        name: "suites",
        usage: "[--write] [--program QUICKACK] [SUITE...]  other projects' tests, through quickack",
        run: suites::run,
    },
    Verb {
        name: "mutants",
        usage: "[--shard K/N] [--whole] [--fresh] [--survivors] [--file GLOB]... [CRATE...]",
        run: mutants::run,
    },
    Verb {
        name: "dist",
        usage: "[--zig]  the program of a release, its man pages and completions",
        run: dist::run,
    },
    Verb { name: "fuzz", usage: "[ARGUMENT...]  the fuzzers, in release mode", run: fuzz },
    Verb { name: "sim", usage: "[ARGUMENT...]  the simulator, in release mode", run: sim },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        print!("{}", help());
        return ExitCode::from(2);
    };
    if ["help", "--help", "-h"].contains(&name.as_str()) {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    // nextest calls it, nobody else: its exit status is the test's.
    if name == "guard" {
        return guard::run(rest);
    }
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        eprint!("xtask: there is no verb {name:?}\n\n{}", help());
        return ExitCode::from(2);
    };
    match (verb.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> String {
    let mut text = String::from("usage: cargo xtask VERB [ARGUMENT...]\n\n");
    for verb in VERBS {
        text.push_str(&format!("  {:8} {}\n", verb.name, verb.usage));
    }
    text
}

/// The folder that holds the workspace.
fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask stands in the workspace").to_path_buf()
}

/// The tests that compare a table with its page write the page if this variable is set.
fn docs(_: &[String]) -> Outcome {
    let arguments = ["test", "--quiet", "--package", "quickack", "--bins", "reference"];
    cargo::run(cargo::command(&arguments).env("UPDATE_GOLDEN", "1"))
}

fn fuzz(arguments: &[String]) -> Outcome {
    let program = ["run", "--quiet", "--release", "--package", "fuzz", "--"];
    cargo::run(cargo::command(&program).args(arguments))
}

fn sim(arguments: &[String]) -> Outcome {
    let program = ["run", "--quiet", "--release", "--package", "testkit", "--bin", "sim", "--"];
    cargo::run(cargo::command(&program).args(arguments))
}
