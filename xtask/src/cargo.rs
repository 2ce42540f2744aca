//! Runs cargo as a child process, and counts the tests that it reports.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::watchdog::{self, Slow};
use crate::{Outcome, root};

/// Tests by outcome, summed over test binaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Count {
    pub fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Returns a command of the cargo that runs this program, in the workspace's folder.
pub fn command(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command to its end; its output goes to ours.
pub fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| cannot(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", line(command))) }
}

/// Runs tests: passes the output on and counts the reported results. A run that stops is ended,
/// unless it may be silent for long.
pub fn run_tests(command: &mut Command) -> (Count, Outcome) {
    watch_tests(command, Some(watchdog::LIMIT))
}

pub fn run_long_tests(command: &mut Command) -> (Count, Outcome) {
    watch_tests(command, None)
}

fn watch_tests(command: &mut Command, limit: Option<Duration>) -> (Count, Outcome) {
    let mut count = Count::default();
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return (count, Err(cannot(command, &error))),
    };
    let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        for line in lines.map(|line| String::from_utf8_lossy(&line).into_owned()) {
            // Nobody listens any more after the limit.
            let _ = sender.send(line);
        }
    });
    let (mut slow, mut has_begun, mut stopped) = (Slow::default(), false, None);
    loop {
        match watchdog::next(&lines, limit.filter(|_| has_begun)) {
            Ok(Some(text)) => {
                println!("{text}");
                count.add(parse_result(&text).unwrap_or_default());
                slow.note(&text);
                has_begun = true;
            }
            Ok(None) => break,
            Err(()) => {
                stopped = Some(watchdog::end(child.id(), &slow));
                break;
            }
        }
    }
    // A reader of the pipe may look at any moment, and should find whole lines.
    let _ = std::io::stdout().flush();
    let outcome = match (child.wait(), stopped) {
        (_, Some(report)) => {
            println!("{report}");
            Err(format!("{} stopped, see above, and was killed", line(command)))
        }
        (Ok(status), None) if status.success() => Ok(()),
        (Ok(status), None) => Err(format!("{} ended with {status}", line(command))),
        (Err(error), None) => Err(cannot(command, &error)),
    };
    (count, outcome)
}

/// Parses the counts of one `test result:` line.
fn parse_result(line: &str) -> Option<Count> {
    let rest = line.strip_prefix("test result: ")?;
    let mut count = Count::default();
    for part in rest.split_once(". ")?.1.split("; ") {
        let Some((number, word)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse() else { continue };
        match word {
            "passed" => count.passed = number,
            "failed" => count.failed = number,
            "ignored" => count.skipped = number,
            _ => {}
        }
    }
    Some(count)
}

fn cannot(command: &Command, error: &std::io::Error) -> String {
    format!("cannot run {}: {error}", line(command))
}

fn line(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    format!("cargo {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_closing_line_is_counted() {
        let line = "test result: FAILED. 7 passed; 2 failed; 1 ignored; 0 measured; \
                    3 filtered out; \
                    finished in 0.01s";
        let count = parse_result(line).expect("a closing line");
        assert_eq!(count, Count { passed: 7, failed: 2, skipped: 1 });
        assert_eq!(parse_result("test a::b ... ok"), None);
    }
}
