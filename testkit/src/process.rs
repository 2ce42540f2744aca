//! Real processes on loopback: quickack, and the programs in front of it and behind it.
//!
//! Each is started by its test. The test waits until it can connect, and the process is killed by
//! its own id when the value is dropped, also during a panic. Its stderr is kept, and is shown when
//! a wait fails.
//!
//! ```text
//!   test ──▶ Client ──▶ Quickack ──▶ Memcached | FakeMemcached | Redis | a thread of the test's
//! ```

mod client;
pub mod facts;
mod firewall;
mod model;
mod peers;
mod quickack;
mod redis;
mod speaker;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

pub use client::Client;
pub use facts::{Facts, children};
pub use firewall::Firewall;
pub use model::{answer_lines, listen, silent};
pub use peers::{FakeMemcached, Memcached, free_address, on_free_port, script};
pub use quickack::{Answer, Quickack};
pub use redis::{Family, Redis};
pub use speaker::Speaker;

/// The limit of every wait; long, because tests run on busy machines.
pub const DEADLINE: Duration = Duration::from_secs(20);
/// The limit for the output of a process that has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A child process, and its stderr output.
pub struct Process {
    name: String,
    child: Child,
    stderr_text: Arc<Stderr>,
}

#[derive(Default)]
struct Stderr {
    text: Mutex<String>,
    more: Condvar,
    /// Whether everybody who could write to it has gone.
    ended: AtomicBool,
}

/// Names the folder for copies of what the processes of a test say. A test that is ended at its
/// deadline cannot print its own: `xtask guard`, which ends it, prints these.
pub const COPIES: &str = "GUARD_COPIES";
/// A copy that has become longer than this begins anew: its end counts.
const COPY_MAX: u64 = 1 << 20;

/// A file for a copy of stderr.
struct StderrCopy {
    file: File,
    len: u64,
}

impl StderrCopy {
    fn open(name: &str, id: u32) -> Option<StderrCopy> {
        let folder = PathBuf::from(std::env::var_os(COPIES)?);
        let name = format!("{}-{id}", name.replace('/', "-"));
        let file = File::create(folder.join(name)).ok()?;
        Some(StderrCopy { file, len: 0 })
    }

    /// Returns itself, or None if the file cannot be written.
    fn write(mut self, line: &[u8]) -> Option<StderrCopy> {
        if self.len > COPY_MAX {
            self.len = 0;
            self.file.set_len(0).and_then(|()| self.file.rewind()).ok()?;
        }
        let line = [line, b"\n"].concat();
        self.len += line.len() as u64;
        self.file.write_all(&line).ok()?;
        Some(self)
    }
}

impl Process {
    /// Starts it, with stdin and stdout connected to `/dev/null`.
    pub fn start(name: &str, command: &mut Command) -> Process {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{name}: {error}; `cargo xtask test` installs the peers"),
        };
        let stderr_text = Arc::new(Stderr::default());
        let stderr = child.stderr.take().expect("stderr was asked to be a pipe");
        let listener = Arc::clone(&stderr_text);
        let copy = StderrCopy::open(name, child.id());
        thread::spawn(move || listener.hear(stderr, copy));
        Process { name: name.to_string(), child, stderr_text }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its stderr output so far.
    pub fn stderr_text(&self) -> String {
        self.stderr_text.lock().clone()
    }

    /// Waits until `find` returns a result for its output, and returns that.
    pub fn wait_for<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let start = Instant::now();
        let mut text = self.stderr_text.lock();
        loop {
            if let Some(found) = find(&text) {
                return found;
            }
            let ended = self.child.try_wait().expect("our own child can be asked");
            // Its last words may still be on their way here.
            let is_over = ended.is_some() && self.stderr_text.ended.load(Ordering::Acquire);
            if is_over || start.elapsed() > DEADLINE {
                panic!("{} never said {what}; ended: {ended:?}; it said:\n{text}", self.name);
            }
            // The wait has a limit because the end of the process sends no notification.
            let waited = self.stderr_text.more.wait_timeout(text, Duration::from_millis(20));
            text = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until it accepts connections there; returns false if it ended instead. A port that was
    /// free a moment ago may belong to another process by now, which also accepts; that case is not
    /// a success.
    pub fn wait_to_accept(&mut self, address: SocketAddr) -> bool {
        let start = Instant::now();
        loop {
            // First what is cheap.
            if TcpStream::connect(address).is_ok() && facts::listens(self.id(), address.port()) {
                return true;
            }
            if self.child.try_wait().expect("our own child can be asked").is_some() {
                return false;
            }
            let stderr_text = self.stderr_text();
            assert!(
                start.elapsed() < DEADLINE,
                "{}: nobody on {address}: {stderr_text}\n{}",
                self.name,
                facts::describe(self.id())
            );
            // The pause is only between attempts; the loop waits for the accepted connection.
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the kernel's data about it.
    pub fn facts(&self) -> Facts {
        Facts::of([self.id()])
    }

    pub fn signal(&self, signal: Signal) {
        send(self.id(), signal);
    }

    /// Whether it waits, and does not run.
    pub fn is_asleep(&self) -> bool {
        facts::state_of(self.id()) == Some('S')
    }

    /// Stops it with SIGSTOP, and returns when it has stopped.
    pub fn freeze(&self) {
        freeze(self.id());
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end, and waits for that, but no longer than `limit`.
    pub fn end_within(&mut self, limit: Duration) {
        let start = Instant::now();
        let mut asked = false;
        while start.elapsed() < limit && matches!(self.child.try_wait(), Ok(None)) {
            if !std::mem::replace(&mut asked, true) {
                self.signal(Signal::TERM);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end, and for the last line of its stderr output.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child can be asked") {
                self.stderr_text.wait_for_end();
                return status;
            }
            let stderr_text = self.stderr_text();
            assert!(
                start.elapsed() < DEADLINE,
                "{} does not end; it said:\n{stderr_text}\n{}",
                self.name,
                facts::describe(self.id())
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends a signal to a child of this process, or to a child's child.
#[track_caller]
pub fn send(id: u32, signal: Signal) {
    let pid = Pid::from_raw(id as i32).expect("an id is not 0");
    rustix::process::kill_process(pid, signal).expect("it is there and ours");
}

/// Stops a process with SIGSTOP, and returns when all its threads have stopped: until then, one of
/// them may still answer.
#[track_caller]
pub fn freeze(id: u32) {
    send(id, Signal::STOP);
    wait_until(&format!("process {id} stops"), || facts::is_stopped(id));
}

/// Connects to somebody who accepts, with a deadline for each read and write.
#[track_caller]
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("somebody accepts");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    stream.set_write_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    stream.set_nodelay(true).expect("TCP has the option");
    stream
}

/// Accepts a connection, with a deadline for that and for each read and write.
#[track_caller]
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("a socket has the option");
    let mut found = None;
    wait_until("somebody connects", || {
        found = listener.accept().ok();
        found.is_some()
    });
    let (stream, _) = found.expect("it was waited for");
    stream.set_nonblocking(false).expect("a socket has the option");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    stream.set_write_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    stream
}

/// Waits for a fact without a notification.
#[track_caller]
pub fn wait_until(what: &str, fact: impl FnMut() -> bool) {
    wait_until_within(DEADLINE, what, fact);
}

#[track_caller]
pub fn wait_until_within(limit: Duration, what: &str, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        // The pause is only between checks; the loop waits for the fact. Many tests wait at once,
        // so one that waits for long looks less often.
        let pause = start.elapsed() / 32;
        thread::sleep(pause.clamp(Duration::from_millis(1), Duration::from_millis(20)));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then the error is expected.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("---- {} said:\n{}", self.name, self.stderr_text());
        }
    }
}

impl Stderr {
    fn lock(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, stderr: impl Read, mut copy: Option<StderrCopy>) {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            copy = copy.take().and_then(|copy| copy.write(&line));
            let mut text = self.lock();
            text.push_str(&String::from_utf8_lossy(&line));
            text.push('\n');
            self.more.notify_all();
        }
        self.ended.store(true, Ordering::Release);
        self.more.notify_all();
    }

    /// Waits for the end of the output. The wait is short, since a child of the process that was
    /// killed may live and hold the pipe open.
    fn wait_for_end(&self) {
        let start = Instant::now();
        let mut text = self.lock();
        while !self.ended.load(Ordering::Acquire) && start.elapsed() < LAST_WORDS {
            let waited = self.more.wait_timeout(text, Duration::from_millis(20));
            text = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
