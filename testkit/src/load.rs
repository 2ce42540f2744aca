//! A client load with checks: many connections, each with its own keys, compare every reply with
//! their client's knowledge.
//!
//! A value contains its owner and its age, so the load recognises an answer to another client, an
//! old one and a mangled one. Such a reply is **wrong**, and ends the test with its details. A
//! request answered with an error line has **failed**. A request whose connection is lost while it
//! waits is **lost**; then its client connects again and continues.
//!
//! ```text
//!   Load ──── thread: one epoll ──┬── Conn: socket, requests ── Keys: known values
//!     ▲                           ├── Conn
//!     └───────── Book ◀───────────┴── …      counts, error lines, latencies
//! ```

mod conn;
mod driver;
mod keys;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process::DEADLINE;

/// The requests of the load, and its assumptions.
#[derive(Clone)]
pub struct Options {
    /// Keys of each connection; at least three for each request of a batch.
    pub keys: usize,
    /// Limit on requests that a connection sends at once.
    pub depth: usize,
    /// Approximate length of the longest value in bytes.
    pub value_max: usize,
    /// Batches a second of all connections together; None for no limit.
    pub rate: Option<u32>,
    pub trust: Trust,
}

impl Default for Options {
    fn default() -> Options {
        Options { keys: 8, depth: 1, value_max: 200, rate: None, trust: Trust::Whole }
    }
}

/// The servers' promise about stored values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// A stored value stays until it is changed.
    Whole,
    /// A stored value may be lost at any time, as when a cache is killed. It does not come back.
    Misses,
    /// Keys move between servers: a stored value may be lost, and older values may come back.
    Old,
}

/// Counters of one connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Requests that were answered, including with an error line.
    pub requests: u64,
    /// Gets among them; a get of several keys is one.
    pub gets: u64,
    /// Sets and deletes among them.
    pub updates: u64,
    /// Requests answered with an error line.
    pub failed: u64,
    /// Times that the connection was lost while a request waited for its answer.
    pub lost: u64,
    /// Times that the connection was closed while no request was outstanding.
    pub closed: u64,
    /// Times that the connection was made, including the first.
    pub connected: u64,
    /// Connects that were refused.
    pub refused: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.requests += other.requests;
        self.gets += other.gets;
        self.updates += other.updates;
        self.failed += other.failed;
        self.lost += other.lost;
        self.closed += other.closed;
        self.connected += other.connected;
        self.refused += other.refused;
    }

    /// Returns whether its client has noticed a disturbance.
    pub fn noticed(self) -> bool {
        self.failed + self.lost + self.closed + self.refused > 0
    }
}

/// The results of a load, in all or since an earlier moment.
#[derive(Clone, Default)]
pub struct Tally {
    /// Counters of each connection.
    pub connections: Vec<Counts>,
    /// Error lines, with their numbers.
    pub errors: BTreeMap<String, u64>,
}

impl Tally {
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.connections.iter().for_each(|counts| total.add(*counts));
        total
    }

    /// Returns the number of connections that noticed a disturbance.
    pub fn noticed(&self) -> usize {
        self.connections.iter().filter(|counts| counts.noticed()).count()
    }

    /// Asserts that no connection noticed a disturbance.
    #[track_caller]
    pub fn assert_unharmed(&self) {
        assert_eq!(self.noticed(), 0, "{self}");
    }

    /// Asserts that there was no error line, and no connection lost more than `each` requests.
    #[track_caller]
    pub fn assert_lost_at_most(&self, each: u64) {
        assert_eq!(self.total().failed, 0, "{self}");
        assert!(self.connections.iter().all(|counts| counts.lost <= each), "{self}");
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let total = self.total();
        let (all, noticed) = (self.connections.len(), self.noticed());
        let most = self.connections.iter().map(|counts| counts.failed + counts.lost).max();
        let most = most.unwrap_or(0);
        write!(f, "{noticed} of {all} connections noticed, {most} requests of one at most: ")?;
        write!(f, "{total:?}, errors {:?}", self.errors)
    }
}

/// A running load. Dropping it stops it; call `stop` to check its results.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    journal: Mutex<Journal>,
    /// Notified after changes of the journal.
    more: Condvar,
}

/// The journal: written by the thread, read by the test.
#[derive(Default)]
struct Journal {
    tally: Tally,
    /// Microseconds from a batch's first byte to its last answer.
    latencies: Vec<u32>,
    /// Requests that wait for their answers.
    outstanding: usize,
    /// Answers in all.
    requests: u64,
    /// Details of the first wrong reply, which ends the load.
    wrong: Option<String>,
    wish: Wish,
}

/// The test's request to the thread.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    Run,
    /// Send no new requests.
    Pause,
    /// Wait for outstanding answers, then end.
    Stop,
}

impl Load {
    pub fn start(address: SocketAddr, connections: usize, options: Options) -> Load {
        assert!(options.keys >= 3 * options.depth, "a batch asks for a key only once");
        let mut journal = Journal::default();
        journal.tally.connections = vec![Counts::default(); connections];
        let shared = Arc::new(Shared { journal: Mutex::new(journal), more: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn(move || driver::run(address, &options, &theirs));
        Load { shared, thread: Some(thread) }
    }

    /// Returns when that many more requests have been answered.
    #[track_caller]
    pub fn wait_for_requests(&self, more: u64) {
        let goal = self.shared.lock().requests + more;
        self.wait("enough requests", |journal| journal.requests >= goal);
    }

    /// Returns when every connection has had one more answer.
    #[track_caller]
    pub fn wait_for_everybody(&self) {
        let before = self.shared.lock().tally.connections.clone();
        self.wait("an answer to everybody", |journal| {
            let now = journal.tally.connections.iter();
            now.zip(&before).all(|(now, before)| now.requests > before.requests)
        });
    }

    /// Stops new requests, and returns when all outstanding ones are answered or lost.
    #[track_caller]
    pub fn pause(&self) {
        self.shared.lock().wish = Wish::Pause;
        self.wait("all answers", |journal| journal.outstanding == 0);
    }

    pub fn resume(&self) {
        self.shared.lock().wish = Wish::Run;
    }

    /// Returns the results so far.
    #[track_caller]
    pub fn tally(&self) -> Tally {
        let journal = self.shared.lock();
        journal.check();
        journal.tally.clone()
    }

    /// Returns the latencies since the last call.
    pub fn take_latencies(&self) -> Latencies {
        let mut sorted = std::mem::take(&mut self.shared.lock().latencies);
        sorted.sort_unstable();
        Latencies { sorted }
    }

    /// Waits for the last answers and returns the results.
    #[track_caller]
    pub fn stop(mut self) -> Tally {
        self.shared.lock().wish = Wish::Stop;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load says what is wrong in its book");
        }
        self.tally()
    }

    #[track_caller]
    fn wait(&self, what: &str, done: impl Fn(&Journal) -> bool) {
        let mut journal = self.shared.lock();
        let (mut last, mut since) = (journal.requests, Instant::now());
        loop {
            journal.check();
            if done(&journal) {
                return;
            }
            if journal.requests != last {
                (last, since) = (journal.requests, Instant::now());
            }
            // The deadline starts again whenever a request is answered.
            assert!(since.elapsed() < DEADLINE, "the load waits for {what}: {}", journal.tally);
            let waited = self.shared.more.wait_timeout(journal, Duration::from_millis(50));
            journal = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.lock().wish = Wish::Stop;
        if let Some(thread) = self.thread.take() {
            // An error is ignored, because the test is ending anyway.
            let _ = thread.join();
        }
        if thread::panicking() {
            eprintln!("---- the load: {}", self.shared.lock().tally);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal {
    #[track_caller]
    fn check(&self) {
        if let Some(wrong) = &self.wrong {
            panic!("WRONG REPLY: {wrong}; {}", self.tally);
        }
    }
}

/// Sorted latencies of batches.
pub struct Latencies {
    sorted: Vec<u32>,
}

impl Latencies {
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the exact quantile in microseconds; 0 if there are no latencies.
    pub fn quantile(&self, share: f64) -> u32 {
        let rank = (share * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }

    pub fn max(&self) -> u32 {
        self.sorted.last().copied().unwrap_or(0)
    }
}
