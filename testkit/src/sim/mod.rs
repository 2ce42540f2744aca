//! A seeded simulator around `proxy::Proxy`: model clients and servers, a fake clock, and faults of
//! every kind. After each step it checks every promise.
//!
//! ```text
//!   ask ─▶ client ─traffic─▶ ┌───────┐ ─turn─▶ conn ─▶ server ─▶ history, journal
//!                            │ Proxy │                              │
//!   judge ◀─ reply ◀─ client ◀─turn─ └───────┘ ◀─traffic─ conn ◀────┘
//! ```
//!
//! The same seed gives the same run on any machine. The servers' own past (`history.rs`) decides
//! which values may be read, not a second implementation of a proxy: a value must have been on its
//! key's server at some time between the arrival of the request and its answer, and after
//! everything that this client knew of the key.

mod advance;
mod answers;
mod arrival;
mod ask;
mod client;
mod conn;
mod faults;
mod finish;
mod forms;
mod frame;
mod full;
mod guesses;
mod history;
mod journal;
mod judge;
mod liveness;
mod master;
mod meta;
mod parting;
mod quotas;
mod read;
mod redis;
mod reply;
mod rest;
mod rings;
mod scene;
mod server;
mod silence;
mod summary;
mod told;
mod traffic;
mod turn;
mod world;

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, Once};

pub use summary::Summary;

use crate::random;
use world::World;

/// A run that found a fault.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub steps: u32,
    /// The message of the panic, and its place in the code.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { seed, steps, what } = self;
        write!(f, "seed {seed}: {what}\n    cargo xtask sim --seed {seed} --steps {steps}")
    }
}

/// One seed in so many plays logins as well, and another one tenants.
const GUESSES_EACH: u64 = 8;

/// Runs one seed.
pub fn run(seed: u64, steps: u32) -> Result<Summary, Failure> {
    play(seed, steps, false)
}

/// Runs one seed and prints every event.
pub fn replay(seed: u64, steps: u32) -> Result<Summary, Failure> {
    play(seed, steps, true)
}

fn play(seed: u64, steps: u32, trace: bool) -> Result<Summary, Failure> {
    listen_for_panics();
    PLAYING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, trace);
        world.run(steps);
        if seed.is_multiple_of(GUESSES_EACH) {
            guesses::play(seed, trace, &mut world.summary);
        }
        if seed % GUESSES_EACH == 1 {
            quotas::play(seed, trace, &mut world.summary);
        }
        world.summary
    }));
    PLAYING.set(false);
    outcome.map_err(|_| Failure { seed, steps, what: FOUND.take() })
}

thread_local! {
    /// This thread is running a seed, so a panic is a finding.
    static PLAYING: Cell<bool> = const { Cell::new(false) };
    static FOUND: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Installs a panic hook. A broken promise is a panic, in the proxy or in the model; here it
/// becomes a value.
fn listen_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if PLAYING.get() {
                FOUND.set(info.to_string());
            } else {
                usual(info);
            }
        }));
    });
}

/// Runs `seeds` on as many threads as there are processors, until `findings_max` of them have found
/// something. The findings are those of the first seeds, in their order, whatever thread was
/// faster.
pub fn run_all(
    seeds: std::ops::Range<u64>,
    steps: u32,
    findings_max: usize,
    prepare: impl Fn() + Sync,
) -> (Summary, Vec<Failure>) {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()) as u64;
    let found = Mutex::new(Vec::<Failure>::new());
    let are_enough_before = |seed: u64| {
        let found = found.lock().expect("a run does not panic");
        found.iter().filter(|failure| failure.seed < seed).count() >= findings_max
    };
    let play_every = |first: u64| {
        prepare();
        let mut sum = Summary::default();
        for seed in (seeds.start + first..seeds.end).step_by(threads as usize) {
            if are_enough_before(seed) {
                break;
            }
            match run(seed, steps) {
                Ok(summary) => sum.add(&summary),
                Err(failure) => found.lock().expect("a run does not panic").push(failure),
            }
        }
        sum
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || play_every(first))).collect();
        handles.into_iter().map(|one| one.join().expect("a run does not panic")).collect()
    });
    let mut sum = Summary::default();
    for part in parts {
        sum.add(&part);
    }
    let mut found = found.into_inner().expect("a run does not panic");
    found.sort_by_key(|failure| failure.seed);
    found.truncate(findings_max);
    (sum, found)
}
