//! When a server last answered each worker: anything, the handshake of a link too, and a request. A
//! worker that cannot make a link asks whether the server answers the others; one whose links bring
//! no answer to a request asks whether it answers the requests of others.

use std::sync::atomic::Ordering::Relaxed;

use super::work::Work;
use super::{RESET_AT, Registry, WorkerMetrics};
use crate::slow_log::SlowReset;

impl Registry {
    /// Returns when a server last answered any worker, in microseconds of a clock that all share;
    /// 0: it never did. It reads a word of each slot that was ever used.
    pub fn heard(&self, row: u32) -> u64 {
        self.last(row, HEARD_AT)
    }

    /// As [`Registry::heard`], of requests only.
    pub fn answered(&self, row: u32) -> u64 {
        self.last(row, ANSWERED_AT)
    }

    fn last(&self, row: u32, word: usize) -> u64 {
        let words = self.used().map(|slot| self.row(slot, row)[word].load(Relaxed));
        words.max().unwrap_or(0)
    }
}

impl WorkerMetrics {
    /// As [`Registry::heard`].
    pub fn heard(&self, row: u32) -> u64 {
        self.registry.heard(row)
    }

    /// As [`Registry::answered`].
    pub fn answered(&self, row: u32) -> u64 {
        self.registry.answered(row)
    }

    /// Says that a server has answered this worker.
    pub fn set_heard(&self, row: u32, now_us: u64) {
        self.registry.row(self.slot, row)[HEARD_AT].store(now_us, Relaxed);
    }

    /// Says that a server has answered a request of this worker.
    pub fn set_answered(&self, row: u32, now_us: u64) {
        self.registry.row(self.slot, row)[ANSWERED_AT].store(now_us, Relaxed);
    }
}

/// Behind the last long work.
const HEARD_AT: usize = RESET_AT + SlowReset::WORDS + Work::WORDS;
const ANSWERED_AT: usize = HEARD_AT + 1;

/// The words that both take.
pub(super) const WORDS: usize = 2;
