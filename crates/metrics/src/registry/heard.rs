//! When a server last answered each worker. A worker that cannot make a link asks whether the
//! server answers the others.

use std::sync::atomic::Ordering::Relaxed;

use super::work::Work;
use super::{RESET_AT, Registry, WorkerMetrics};
use crate::slow_log::SlowReset;

impl Registry {
    /// Returns when a server last answered any worker, in microseconds of a clock that all share;
    /// 0: it never did. It reads a word of each slot that was ever used.
    pub fn heard(&self, row: u32) -> u64 {
        let words = self.used().map(|slot| self.row(slot, row)[HEARD_AT].load(Relaxed));
        words.max().unwrap_or(0)
    }
}

impl WorkerMetrics {
    /// As [`Registry::heard`].
    pub fn heard(&self, row: u32) -> u64 {
        self.registry.heard(row)
    }

    /// Says that a server has answered this worker.
    pub fn set_heard(&self, row: u32, now_us: u64) {
        self.registry.row(self.slot, row)[HEARD_AT].store(now_us, Relaxed);
    }
}

/// Behind the last long work.
const HEARD_AT: usize = RESET_AT + SlowReset::WORDS + Work::WORDS;

/// The words that it takes.
pub(super) const WORDS: usize = 1;
