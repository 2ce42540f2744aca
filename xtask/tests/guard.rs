//! `xtask guard`, the process around each test, with shells in place of tests.
// A test that cannot continue panics, in its helper functions as well.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal};
use testkit::process::facts::describe;
use testkit::process::{Process, wait_until};

fn guard(script: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["guard", "sh", "-c", script]).stdin(Stdio::null()).env("GUARD_GRACE_S", "2");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Whether a line of a description is that of a process with this command line.
fn sleeps(line: &str, words: &str) -> bool {
    line.trim_start().split_once(' ').is_some_and(|(_, command)| command == words)
}

fn end_of(script: &str) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = guard(script).wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn the_exit_status_is_the_tests() {
    assert_eq!(end_of("exit 0"), (Some(0), String::new()));
    assert_eq!(end_of("exit 101"), (Some(101), String::new()));
    let (code, told) = end_of("kill -ABRT $$");
    assert_eq!(code, Some(1));
    assert!(told.contains("killed by signal 6"), "{told}");
}

#[test]
fn a_test_that_waits_for_ever_is_ended_with_all_below_it_and_says_what_they_waited_for() {
    // The second one has left its parent and its session, as a daemon does.
    let mut guard = guard("sleep 1001 & setsid sleep 1002 & wait");
    let is_there = |words| describe(guard.id()).lines().any(|line| sleeps(line, words));
    // Until then each is a copy of the shell.
    wait_until("both sleep", || is_there("sleep 1001") && is_there("sleep 1002"));
    let id = Pid::from_raw(guard.id() as i32).unwrap();
    rustix::process::kill_process(id, Signal::TERM).unwrap();
    let mut told = String::new();
    guard.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(guard.wait().unwrap().code(), Some(124));
    for words in ["ended at its deadline", "sleep 1001", "sleep 1002", "thread sleep: in "] {
        assert!(told.contains(words), "no {words:?} in {told}");
    }
    // The pipe is closed when nobody is left who could write to it.
    assert_eq!(guard.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap(), 0);
}

/// It cannot print that itself: nothing of it runs any more.
#[test]
fn what_the_processes_of_a_test_said_last_is_told_when_it_is_killed() {
    let script = r#"seq 1000 1200 >"$GUARD_COPIES/server-7"; echo "$GUARD_COPIES" >&2; kill $$"#;
    let (code, told) = end_of(script);
    assert_eq!(code, Some(1));
    assert!(told.contains("the last lines of server-7:\n1101\n"), "{told}");
    assert!(told.ends_with("\n1200\n"), "{told}");
    let folder = told.lines().next().unwrap();
    assert!(!std::path::Path::new(folder).exists(), "{folder} is left");
}

/// Starts a server that says something, and waits for ever. The test below runs it.
#[test]
#[ignore = "it never ends; another test runs it below the guard"]
fn a_test_whose_server_speaks() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo it stands here >&2; exec sleep 1008"]);
    let mut server = Process::start("server", &mut command);
    server.wait_for("where it stands", |said| said.contains("stands here").then_some(()));
    println!("it has spoken");
    loop {
        std::thread::park();
    }
}

/// The copies are of what testkit's processes say, and are told at the deadline.
#[test]
fn what_a_server_of_a_test_said_is_told_when_the_test_is_ended() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("guard").arg(std::env::current_exe().unwrap()).stdin(Stdio::null());
    command.args(["--exact", "a_test_whose_server_speaks", "--ignored", "--nocapture"]);
    let mut guard = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(guard.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!({ said }.any(|line| line.contains("it has spoken")), "it did not begin");
    let id = Pid::from_raw(guard.id() as i32).unwrap();
    rustix::process::kill_process(id, Signal::TERM).unwrap();
    let Output { status, stderr, .. } = guard.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(124));
    let told = String::from_utf8(stderr).unwrap();
    let told_last = told.contains("the last lines of server-") && told.contains("it stands here");
    assert!(told_last, "{told}");
}

#[test]
fn a_process_that_outlives_its_test_is_named_and_ended_and_fails_the_test() {
    let speaks = r#"(setsid sleep 1003 &); echo "it stays" >"$GUARD_COPIES/server-9""#;
    let (code, told) = end_of(speaks);
    assert_eq!(code, Some(1));
    assert!(told.contains("left processes behind") && told.contains("sleep 1003"), "{told}");
    assert!(told.ends_with("the last lines of server-9:\nit stays\n"), "{told}");
}

#[test]
fn a_process_that_ends_soon_after_its_test_does_no_harm() {
    assert_eq!(end_of("(setsid sleep 0.3 &) ; exit 0"), (Some(0), String::new()));
}
