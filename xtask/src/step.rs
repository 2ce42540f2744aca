//! Runs one step of the ladder. A panic fails that step alone, and a line each minute says that it
//! still runs and with which tests: a step that prints nothing looks like one that hangs.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use testkit::process::facts::below;

use crate::Outcome;
use crate::nextest::Ran;

const PERIOD: Duration = Duration::from_secs(60);

pub fn run(name: &str, step: impl FnOnce() -> (Ran, Outcome)) -> (Ran, Outcome) {
    let tell = |took: Duration| println!("-- {}", line(name, took, &tests_below()));
    meanwhile(PERIOD, tell, || caught(step))
}

/// Turns a panic into a failure: of a step's own, or of what it uses, such as testkit's programs.
fn caught(step: impl FnOnce() -> (Ran, Outcome)) -> (Ran, Outcome) {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let why = format!("it panicked: {}", words(panic.as_ref()));
        (Ran::default(), Err(why))
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

/// Tells, after each period, how long it has run.
fn meanwhile<T>(
    period: Duration,
    mut tell: impl FnMut(Duration) + Send,
    run: impl FnOnce() -> T,
) -> T {
    let start = Instant::now();
    let (running, ended) = mpsc::channel::<()>();
    thread::scope(move |scope| {
        scope.spawn(move || {
            while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                tell(start.elapsed());
            }
        });
        let result = run();
        drop(running);
        result
    })
}

fn line(name: &str, took: Duration, tests: &BTreeSet<String>) -> String {
    let mut line = format!("{name} has run for {} s", took.as_secs());
    if !tests.is_empty() {
        let names: Vec<&str> = tests.iter().map(String::as_str).collect();
        line.push_str(&format!("; now: {}", names.join(", ")));
    }
    line
}

/// Returns the names of the tests that run below this process, each with its guard around it.
fn tests_below() -> BTreeSet<String> {
    let lines = below(std::process::id()).into_iter().map(|id| format!("/proc/{id}/cmdline"));
    // One that has ended meanwhile has no line.
    lines.filter_map(|file| test_of(&fs::read(file).unwrap_or_default())).collect()
}

/// Returns the test that a guard was started for: `xtask guard PROGRAM --exact TEST …`.
fn test_of(command_line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(command_line);
    let mut words = text.split('\0').skip(1);
    let is_guard = words.next() == Some("guard");
    let mut rest = words.skip_while(|word| *word != "--exact").skip(1);
    is_guard.then(|| rest.next().map(str::to_string)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_fails_the_step_and_is_named() {
        let said = |step: fn() -> (Ran, Outcome)| caught(step).1.unwrap_err();
        assert_eq!(said(|| panic!("no server")), "it panicked: no server");
        let port = std::hint::black_box(11211);
        assert_eq!(
            caught(|| panic!("no server on {port}")).1.unwrap_err(),
            "it panicked: no server on 11211"
        );
        assert_eq!(said(|| std::panic::panic_any(7)), "it panicked: without a word");
        assert!(caught(|| (Ran::default(), Ok(()))).1.is_ok());
    }

    #[test]
    fn a_step_that_takes_long_says_so_until_it_ends() {
        let (told, heard) = mpsc::channel();
        let tell = move |took| told.send(took).unwrap();
        let heard = meanwhile(Duration::from_millis(1), tell, move || {
            let first = heard.recv().unwrap();
            assert!(heard.recv().unwrap() > first);
            heard
        });
        // Nobody is left who could tell.
        while heard.try_recv().is_ok() {}
        assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn the_tests_that_run_are_named_by_their_guards() {
        let test = |line: &str| test_of(line.replace(' ', "\0").as_bytes());
        let of_a_guard = "/w/target/guard/xtask guard /w/it-1f --exact a::b --nocapture ";
        assert_eq!(test(of_a_guard).as_deref(), Some("a::b"));
        assert_eq!(test("/w/it-1f --exact a::b --nocapture "), None, "it is below its guard");
        assert_eq!(test("/w/target/guard/xtask guard sh -c true "), None);
        assert_eq!(test(""), None);
        let tests = ["a::b", "c"].map(str::to_string).into();
        let took = Duration::from_secs(120);
        assert_eq!(line("it", took, &tests), "it has run for 120 s; now: a::b, c");
        assert_eq!(line("clippy", took, &BTreeSet::new()), "clippy has run for 120 s");
    }
}
