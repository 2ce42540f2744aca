//! `cargo xtask guard PROGRAM ARGUMENT...`: the process around each test.
//!
//! nextest runs one process a test and ends it at its deadline, but knows nothing about what the
//! test has started. So it runs each test through this one (cargo's target runner):
//!
//! ```text
//!   nextest ──▶ guard ──▶ test ──▶ quickack, memcached, a shell …
//!      TERM ──────▲ │        the test has a process group of its own: TERM reaches only the guard
//!                   └─ says what each process below waited for, then ends them all
//! ```
//!
//! The guard is the reaper of all that becomes an orphan below it. A process that outlives its test
//! is therefore still below the guard: it is named, ended, and fails the test.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use testkit::process::COPIES;
use testkit::process::facts::{below, children, describe};

/// How many seconds the processes of a test may take to end after it, unless `GUARD_GRACE_S` says
/// otherwise. Most have ended before; a worker whose master was killed notices at its next event.
const GRACE_S: u64 = 20;

fn grace() -> Duration {
    let told = std::env::var("GUARD_GRACE_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(GRACE_S))
}

/// The exit status of a test that was ended at its deadline, as `timeout` has it.
const ENDED: u8 = 124;

pub fn run(arguments: &[String]) -> ExitCode {
    let Some((program, rest)) = arguments.split_first() else {
        eprintln!("usage: cargo xtask guard PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(rest);
    if rest.iter().any(|argument| argument == "--list") {
        return cannot(program, &command.exec());
    }
    match guard(&mut command) {
        Ok(code) => code,
        Err(error) => cannot(program, &error),
    }
}

fn cannot(program: &str, error: &std::io::Error) -> ExitCode {
    eprintln!("guard: cannot run {program}: {error}");
    ExitCode::from(2)
}

fn guard(command: &mut Command) -> std::io::Result<ExitCode> {
    let signals = Signals::catch()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // It goes with the guard.
    let copies = tempfile::Builder::new().prefix("guard-").tempdir()?;
    command.env(COPIES, copies.path());
    let test = command.process_group(0).spawn()?.id();
    let Some(status) = wait_for(test, &signals) else {
        eprintln!(
            "guard: the test was ended at its deadline; it was doing this:\n{}",
            describe_below()
        );
        end_all(&signals);
        eprint!("{}", all_last_words(copies.path()));
        return Ok(ExitCode::from(ENDED));
    };
    if !all_end_within(grace(), &signals) {
        eprintln!("guard: the test left processes behind, which were ended:\n{}", describe_below());
        end_all(&signals);
        eprint!("{}", all_last_words(copies.path()));
        return Ok(ExitCode::FAILURE);
    }
    if let Some(signal) = status.terminating_signal() {
        eprintln!("guard: the test was killed by signal {signal}");
        eprint!("{}", all_last_words(copies.path()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::from(status.exit_status().map_or(1, |code| code as u8)))
}

/// Returns the end of each copy of what a process of the test said on stderr.
fn all_last_words(copies: &Path) -> String {
    let entries = fs::read_dir(copies).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files.iter().map(|file| last_words(file)).collect()
}

/// Lines of each process's output that are shown.
const LINES_MAX: usize = 100;

fn last_words(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES_MAX)..];
    let name = file.file_name().unwrap_or_default().display();
    match last {
        [] => String::new(),
        _ => format!("guard: the last lines of {name}:\n{}\n", last.join("\n")),
    }
}

/// Signals as bytes in a socket, so that waiting for one has a limit.
struct Signals {
    socket: UnixStream,
    /// Whether somebody asked for the end.
    end: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> std::io::Result<Signals> {
        let (socket, writer) = UnixStream::pair()?;
        let end = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
            signal_hook::flag::register(signal, Arc::clone(&end))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        signal_hook::low_level::pipe::register(SIGCHLD, writer)?;
        Ok(Signals { socket, end })
    }

    /// Waits for the next signal, or for `limit`.
    fn wait(&self, limit: Option<Duration>) {
        let limit = limit.map(|limit| limit.max(Duration::from_millis(1)));
        self.socket.set_read_timeout(limit).expect("a limit that is not zero");
        let _ = (&self.socket).read(&mut [0; 64]);
    }
}

/// Waits for the end of the test; None if its own end is asked for before.
fn wait_for(test: u32, signals: &Signals) -> Option<WaitStatus> {
    loop {
        while let Some((id, status)) = reap() {
            if id.as_raw_nonzero().get() as u32 == test {
                return Some(status);
            }
        }
        if signals.end.load(Ordering::Relaxed) {
            return None;
        }
        signals.wait(None);
    }
}

/// Returns true when nothing is left below.
fn all_end_within(limit: Duration, signals: &Signals) -> bool {
    let start = Instant::now();
    loop {
        while reap().is_some() {}
        if children(std::process::id()).is_empty() {
            return true;
        }
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() || signals.end.load(Ordering::Relaxed) {
            return false;
        }
        signals.wait(Some(left));
    }
}

/// How long what was killed may take to end. nextest kills the guard 30 s after it asked for its
/// end, and then nothing would be told.
const KILLED_MAX: Duration = Duration::from_secs(20);

/// Kills what is below until nothing is: a process may start another while it is killed.
fn end_all(signals: &Signals) {
    let start = Instant::now();
    loop {
        while reap().is_some() {}
        let all = below(std::process::id());
        if all.is_empty() {
            return;
        }
        if start.elapsed() > KILLED_MAX {
            eprintln!("guard: these were killed and do not end:\n{}", describe_below());
            return;
        }
        for id in all {
            let pid = Pid::from_raw(id as i32).expect("an id is not 0");
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        signals.wait(Some(Duration::from_millis(50)));
    }
}

/// Takes the status of one process that has ended.
fn reap() -> Option<(Pid, WaitStatus)> {
    match rustix::process::wait(WaitOptions::NOHANG) {
        Ok(ended) => ended,
        Err(Errno::INTR) => reap(),
        Err(_) => None,
    }
}

/// Says what each process below does, and what each of its threads waits for.
fn describe_below() -> String {
    children(std::process::id()).into_keys().map(describe).collect()
}
