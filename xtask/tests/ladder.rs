//! The whole way of a test that fails: nextest, its deadline, `xtask guard` and the report.
// A test that cannot continue panics, in its helper functions as well.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use quick_junit::{Report, TestCaseStatus};
use testkit::process::facts::below;

/// Returns each test with None if it passed, or else with its output.
fn outcomes(report: &Path) -> BTreeMap<String, Option<String>> {
    let report = Report::deserialize(BufReader::new(File::open(report).unwrap())).unwrap();
    let cases = report.test_suites.iter().flat_map(|suite| &suite.test_cases);
    let outcome = |status: &TestCaseStatus, said: String| match status {
        TestCaseStatus::Success { .. } => None,
        TestCaseStatus::NonSuccess { .. } => Some(said),
        TestCaseStatus::Skipped { .. } => panic!("a test was not run"),
    };
    cases
        .map(|case| {
            let said = [&case.system_out, &case.system_err];
            let said = said.map(|text| text.as_ref().map_or("", |text| text.as_str())).concat();
            (case.name.to_string(), outcome(&case.status, said))
        })
        .collect()
}

/// Copies the package to where things may be built, as a new one.
fn copy(package: &Path) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ladder");
    let _ = fs::remove_dir_all(&copy);
    for folder in ["", "src", "tests"] {
        fs::create_dir_all(copy.join(folder)).unwrap();
        for entry in fs::read_dir(package.join(folder)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), copy.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    copy
}

/// With the settings of the ladder's own steps; only the deadline of one test is short.
#[test]
fn each_test_that_fails_is_named_with_its_cause_and_every_other_one_runs() {
    // It is the parent of what is left behind.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let nextest = [root.join(".venv/bin/cargo-nextest"), "cargo-nextest".into()];
    let nextest = nextest.iter().find(|it| it.components().count() == 1 || it.exists()).unwrap();
    let package = copy(&root.join("xtask/testdata/ladder"));
    let report = package.join("target/nextest/ladder/junit.xml");
    let runner =
        format!("target.'cfg(unix)'.runner = [{:?}, \"guard\"]", env!("CARGO_BIN_EXE_xtask"));
    let mut command = Command::new(nextest);
    command.args(["nextest", "run", "--profile", "ladder", "--locked", "--offline"]);
    command.args(["--manifest-path".into(), package.join("Cargo.toml")]);
    command.args(["--config-file".into(), root.join(".config/nextest.toml")]);
    command.args(["--config", &runner]).stdin(Stdio::null());
    // The outer run's own settings are not this one's.
    command.env("CARGO_TARGET_DIR", package.join("target")).env("GUARD_GRACE_S", "2");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("NEXTEST")) {
            command.env_remove(name);
        }
    }
    let output = command.output();
    let output = output.expect("`cargo xtask test` fetches cargo-nextest");
    let Output { status, stderr, .. } = output;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && report.exists(), "{stderr}");
    let outcomes = outcomes(&report);
    let causes = [
        ("a_passes", None),
        ("b_waits_for_ever", Some(&["ended at its deadline", "sleep 1005"][..])),
        ("c_aborts", Some(&["killed by signal 6"])),
        ("d_leaves_a_process_behind", Some(&["left processes behind", "sleep 1006"])),
        ("e_fails", Some(&["as it is meant to"])),
        ("f_passes", None),
    ];
    assert_eq!(outcomes.len(), causes.len(), "{stderr}");
    for (name, causes) in causes {
        let said = outcomes[name].as_deref();
        assert_eq!(said.is_some(), causes.is_some(), "{name}: {stderr}");
        for cause in causes.into_iter().flatten() {
            assert!(said.unwrap_or_default().contains(cause), "{name}: {said:?}");
        }
    }
    assert!(below(std::process::id()).is_empty(), "all that they started has ended");
}
