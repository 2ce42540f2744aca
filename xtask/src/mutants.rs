//! `cargo xtask mutants`: measures the tests. cargo-mutants makes one change at a time, and the
//! tests of the changed crate must fail.
//!
//! ```text
//!   tree.rs        a copy of the project, in which one file at a time is changed
//!   play.rs        one shard through its stages: each runs for the survivors of the one before
//!   survivors.rs   testkit/mutants/survivors.txt: mutants that may survive, with reasons
//!   table.rs       the score, with its interval if only a sample was run
//! ```
//!
//! A shard's results are written when it is finished, below target/mutants/results. It does not run
//! again before something has changed, or before `--fresh`. With `--file` nothing is kept.

mod play;
mod survivors;
mod table;
mod tree;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::nextest::Ran;
use crate::{Outcome, git, root};

const USAGE: &str = "[--shard K/N] [--whole] [--fresh] [--survivors] [--file GLOB]... [CRATE...]";
const VERSION: &str = "27.1.0";

/// The mutants of one crate, and the tests that must notice them.
struct Target<'a> {
    name: &'static str,
    /// Globs; empty for every file.
    files: &'a [&'a str],
    /// Number of shards; the sample is the first one.
    shards: u32,
    stages: &'static [Stage],
    /// Percentage of the viable, non-equivalent mutants that must be noticed.
    bar: u64,
}

/// A run of `cargo test`.
#[derive(Clone, Copy)]
struct Stage {
    package: &'static str,
    /// Arguments for `cargo test`: targets, then `--` and arguments for the tests.
    arguments: &'static [&'static str],
    /// Optimised builds take longer, but for these tests they pay off.
    optimised: bool,
    timeout_s: u32,
}

/// The data plane's own tests, except two that take as long as all others.
const DATA_PLANE: Stage = Stage {
    package: "proxy",
    arguments: &["--lib", "--tests", "--", "--skip=any_cut_of_a_login", "--skip=any_advance"],
    optimised: false,
    timeout_s: 60,
};
const SIMULATOR: Stage = Stage {
    package: "testkit",
    arguments: &["--test", "mutants", "--", "--include-ignored"],
    optimised: true,
    timeout_s: 120,
};

const TARGETS: &[Target<'static>] = &[
    Target {
        name: "proto",
        files: &[],
        shards: 36,
        stages: &[
            // The skipped tests take most of the time, so they run only for the remaining mutants.
            Stage {
                package: "proto",
                arguments: &[
                    "--lib",
                    "--test=conformance",
                    "--",
                    "--skip=as_long_a_text_as",
                    "--skip=no_text_of_a_server_is",
                    "--skip=an_answer_is_always_one",
                    "--skip=garbage_never",
                    "--skip=no_argument_can_forge",
                    "--skip=any_chunking_gives_the_same_reply",
                ],
                optimised: false,
                timeout_s: 60,
            },
            Stage {
                package: "proto",
                arguments: &["--lib", "--test=conformance"],
                optimised: true,
                timeout_s: 60,
            },
            DATA_PLANE,
            SIMULATOR,
        ],
        bar: 90,
    },
    Target { name: "shard", files: &[], shards: 1, stages: &[own("shard", false)], bar: 90 },
    Target { name: "cache", files: &[], shards: 4, stages: &[own("cache", true)], bar: 90 },
    Target { name: "metrics", files: &[], shards: 1, stages: &[own("metrics", false)], bar: 90 },
    Target { name: "proxy", files: &[], shards: 24, stages: &[DATA_PLANE, SIMULATOR], bar: 90 },
    Target {
        name: "quickack",
        files: DECIDING,
        shards: 40,
        stages: &[
            Stage {
                package: "quickack",
                arguments: &[
                    "--bins",
                    "--",
                    "--skip=garbage_is_reported",
                    "--skip=no_two_writers",
                    "--skip=the_gate_keeps",
                    "--skip=cache_server::",
                    "--skip=ipc::",
                    "--skip=log::",
                ],
                optimised: false,
                timeout_s: 120,
            },
            Stage {
                package: "quickack",
                // As many at once as in the ladder: most of them wait. The skipped ones wait for
                // minutes. The others take 85 s with two processors, which compile beside.
                arguments: &[
                    "--test=it",
                    "--",
                    "--test-threads=8",
                    "--skip=differential::",
                    "--skip=outage::",
                    "--skip=peers::clients::",
                    "--skip=pipelines::clients::",
                    "--skip=quotas::",
                    "--skip=redis::",
                    "--skip=rings::",
                    "--skip=stall::",
                ],
                optimised: false,
                timeout_s: 600,
            },
        ],
        bar: 80,
    },
];

/// Returns the stage of a crate's own tests.
const fn own(package: &'static str, optimised: bool) -> Stage {
    Stage { package, arguments: &["--lib", "--tests"], optimised, timeout_s: 60 }
}

/// Files with decisions: the others print, or call the system.
const DECIDING: &[&str] = &[
    "crates/quickack/src/admin.rs",
    "crates/quickack/src/admin/**",
    "crates/quickack/src/config.rs",
    "crates/quickack/src/config/**",
    "crates/quickack/src/event/**",
    "crates/quickack/src/master/**",
];

/// The options of the command line.
#[derive(Debug, Default, PartialEq)]
struct Request {
    /// The number of a shard and the number of shards, instead of the sample.
    shard: Option<(u32, u32)>,
    whole: bool,
    /// Discards earlier results.
    fresh: bool,
    /// Prints each survivor in the format of the list.
    survivors: bool,
    /// Globs of files to change, instead of a crate's own; empty for those.
    files: Vec<String>,
    /// Names of targets; empty for all.
    names: Vec<String>,
}

pub fn run(arguments: &[String]) -> Outcome {
    play_all(&parse(arguments)?)
}

/// The step of `cargo xtask test`: it counts as one test.
pub fn step() -> (Ran, Outcome) {
    let outcome = play_all(&Request::default());
    (Ran { passed: u64::from(outcome.is_ok()), ..Ran::default() }, outcome)
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    let mut request = Request::default();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--whole" => request.whole = true,
            "--fresh" => request.fresh = true,
            "--survivors" => request.survivors = true,
            "--shard" => {
                let shard = rest.next().and_then(|text| shard(text));
                request.shard = Some(shard.ok_or("--shard K/N, where K is less than N")?);
            }
            "--file" => {
                let glob = rest.next().ok_or("--file GLOB, from the root of the project")?;
                request.files.push(glob.clone());
            }
            name if TARGETS.iter().any(|target| target.name == name) => {
                request.names.push(name.to_string());
            }
            other => {
                let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                return Err(format!("{other:?}? {USAGE}; crates: {}", names.join(" ")));
            }
        }
    }
    Ok(request)
}

fn shard(text: &str) -> Option<(u32, u32)> {
    let (number, of) = text.split_once('/')?;
    let (number, of) = (number.parse().ok()?, of.parse().ok()?);
    (number < of).then_some((number, of))
}

impl Request {
    fn takes(&self, target: &Target) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name == target.name)
    }

    /// Returns the shards of a crate to run, each with the number of shards.
    fn shards(&self, target: &Target) -> Vec<(u32, u32)> {
        match self.shard {
            Some(shard) => vec![shard],
            None if self.whole => (0..target.shards).map(|at| (at, target.shards)).collect(),
            None => vec![(0, target.shards)],
        }
    }
}

fn play_all(request: &Request) -> Outcome {
    find_tool()?;
    let list = survivors::read()?;
    let state = git::state()?;
    let tree = tree::copy()?;
    // A change in between is in the copy, but not in its name.
    if git::state()? != state {
        return Err("the project was changed while it was copied".to_string());
    }
    let files: Vec<&str> = request.files.iter().map(String::as_str).collect();
    let mut rows = String::from(table::HEAD);
    let (mut short, mut empty) = (Vec::new(), Vec::new());
    let mut unknown = 0;
    for target in TARGETS.iter().filter(|target| request.takes(target)) {
        let narrowed = Target { files: &files, ..*target };
        let mut mutants = Vec::new();
        for shard in request.shards(target) {
            mutants.extend(match files.is_empty() {
                true => play::shard(target, shard, &tree, &state, request.fresh)?,
                false => play::stages(&narrowed, shard, &tree)?,
            });
        }
        for mutant in mutants.iter().filter(|mutant| mutant.survived()) {
            let known = list.iter().find(|survivor| survivor.is(mutant));
            unknown += usize::from(known.is_none());
            if known.is_none() || request.survivors {
                println!("{}", survivors::entry(mutant, known));
            }
        }
        let score = table::Score::of(&mutants, &list);
        rows.push_str(&score.row(target.name, mutants.len()));
        match score.percent() {
            None => empty.push(target.name),
            Some(percent) if percent < target.bar as f64 => short.push(target.name),
            Some(_) => {}
        }
    }
    println!("{rows}");
    if !short.is_empty() {
        Err(format!("too many survive: {}", short.join(" ")))
    } else if unknown > 0 {
        Err(format!("{unknown} survived that {} does not name", survivors::FILE))
    } else if !empty.is_empty() {
        Err(format!(
            "no mutant was played that compiles, so no test was asked: {}",
            empty.join(" ")
        ))
    } else {
        Ok(())
    }
}

fn find_tool() -> Outcome {
    let mut asked = Command::new("cargo");
    asked.args(["mutants", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    match asked.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!(
            "cargo-mutants is not here: cargo install cargo-mutants --version {VERSION} --locked"
        )),
    }
}

/// Returns the folder of everything that the step writes.
fn folder() -> PathBuf {
    root().join("target/mutants")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Request, String> {
        parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_shard_is_one_of_so_many() {
        assert_eq!(asked("--shard 3/8 proxy").unwrap().shard, Some((3, 8)));
        for wrong in ["--shard 8/8", "--shard 3", "--shard", "--shard x/2", "proxies"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_named_after_their_option() {
        let request = asked("--file src/a.rs --file src/b/** proxy").unwrap();
        assert_eq!(request.files, ["src/a.rs", "src/b/**"]);
        assert!(asked("proxy --file").is_err());
    }

    #[test]
    fn without_a_word_the_sample_of_every_crate_is_played() {
        let request = asked("").unwrap();
        assert!(TARGETS.iter().all(|target| request.takes(target)));
        assert_eq!(request.shards(&TARGETS[0]), [(0, TARGETS[0].shards)]);
        let whole = asked("--whole shard proto").unwrap();
        assert_eq!(whole.shards(&TARGETS[0]).len(), TARGETS[0].shards as usize);
        assert!(!whole.takes(&TARGETS[2]));
    }
}
