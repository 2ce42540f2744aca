//! Ends a run of tests that has stopped, and says where it stands.
//!
//! libtest has no limit for a test: one that waits for ever holds up every later step. So a run
//! that prints nothing for `LIMIT` is killed with all its descendants, and the report names the
//! tests that had not ended, the processes below them, and what each thread waits for.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use testkit::process::facts::command_line;

/// The longest test takes about a minute, on a busy machine three.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Tests that libtest called slow and that have not ended since.
#[derive(Default)]
pub struct Slow(BTreeSet<String>);

impl Slow {
    /// Takes in one line of libtest's output.
    pub fn note(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.0.insert(name.to_string());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.0.remove(name);
        }
    }
}

/// Returns the next line, or None after the last. The first line may take as long as a build.
pub fn next(lines: &Receiver<String>, limit: Option<Duration>) -> Result<Option<String>, ()> {
    let Some(limit) = limit else { return Ok(lines.recv().ok()) };
    match lines.recv_timeout(limit) {
        Ok(line) => Ok(Some(line)),
        Err(RecvTimeoutError::Disconnected) => Ok(None),
        Err(RecvTimeoutError::Timeout) => Err(()),
    }
}

/// Kills `child` and its descendants; returns what they were doing.
pub fn end(child: u32, slow: &Slow) -> String {
    let mut report = format!("no line of output for {LIMIT:?}; not ended: {:?}\n", slow.0);
    let mut all = Vec::new();
    describe(child, 0, &mut all, &mut report);
    let ids = all.iter().map(u32::to_string);
    // Parents first, so that nobody starts a successor of a killed child.
    if let Err(error) = Command::new("kill").arg("-KILL").args(ids).status() {
        let _ = writeln!(report, "cannot run kill: {error}");
    }
    report
}

fn describe(id: u32, depth: usize, all: &mut Vec<u32>, report: &mut String) {
    all.push(id);
    let indent = "  ".repeat(depth);
    let _ = writeln!(report, "{indent}{id} {}", command_line(id));
    let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let mut children = Vec::new();
    for task in tasks {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, place) = (read("comm"), read("wchan"));
        let _ = writeln!(report, "{indent}  thread {}: in {place}", name.trim());
        children
            .extend(read("children").split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    children.into_iter().for_each(|child| describe(child, depth + 1, all, report));
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_test_that_has_not_ended_is_named() {
        let mut slow = Slow::default();
        slow.note("test a::b has been running for over 60 seconds");
        slow.note("test a::c has been running for over 60 seconds");
        slow.note("test a::b ... ok");
        assert_eq!(slow.0.into_iter().collect::<Vec<_>>(), ["a::c"]);
    }

    #[test]
    fn silence_ends_the_wait_only_with_a_limit() {
        let (sender, lines) = mpsc::channel();
        sender.send("one".to_string()).unwrap();
        let limit = Some(Duration::from_millis(1));
        assert_eq!(next(&lines, limit), Ok(Some("one".to_string())));
        assert_eq!(next(&lines, limit), Err(()));
        drop(sender);
        assert_eq!(next(&lines, limit), Ok(None));
        assert_eq!(next(&lines, None), Ok(None));
    }

    #[test]
    fn children_of_children_are_reported_and_killed() {
        let script = "sleep 1000 & echo; wait";
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut byte).unwrap();
        let report = end(shell.id(), &Slow::default());
        assert!(report.contains("sleep 1000"), "{report}");
        assert!(!shell.wait().unwrap().success());
        // The pipe is closed when nobody is left to write to it.
        let mut rest = Vec::new();
        std::io::Read::read_to_end(shell.stdout.as_mut().unwrap(), &mut rest).unwrap();
    }
}
