//! The last command of each worker that kept a server busy for long and is over. Requests that
//! waited for it, of any worker, name it in the slow log.

use std::sync::atomic::Ordering::Relaxed;

use super::{RESET_AT, Registry, WorkerMetrics};
use crate::slow_log::SlowReset;

/// A command that kept a server busy for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// From when to when, in microseconds of a clock that all workers share.
    pub since_us: u64,
    pub until_us: u64,
    /// Its index in the table of the servers' protocol.
    pub command: u16,
}

impl Work {
    pub(super) const WORDS: usize = 2;

    /// Both words have the low bits of the beginning, so that a reader knows whether they belong
    /// together: each is read and written alone.
    fn to_words(self) -> [u64; Work::WORDS] {
        let took = self.until_us.saturating_sub(self.since_us);
        [self.since_us << 16 | u64::from(self.command), took << 16 | self.since_us & 0xffff]
    }

    fn of_words([begun, took]: [u64; Work::WORDS]) -> Option<Work> {
        let since_us = begun >> 16;
        let until_us = since_us + (took >> 16);
        let is_whole = begun != 0 && took & 0xffff == since_us & 0xffff;
        is_whole.then_some(Work { since_us, until_us, command: begun as u16 })
    }
}

impl Registry {
    /// Returns the last long work of each worker at a server. It reads two words of each slot that
    /// was ever used.
    pub fn works(&self, row: u32) -> impl Iterator<Item = Work> {
        let words = move |slot| self.row(slot, row)[WORK_AT..].first_chunk();
        let words = self.used().filter_map(words);
        words.filter_map(|words: &[_; _]| {
            Work::of_words(words.each_ref().map(|it| it.load(Relaxed)))
        })
    }
}

impl WorkerMetrics {
    /// Notes the last long work of this worker at a server.
    pub fn set_work(&self, row: u32, work: Work) {
        let words = &self.registry.row(self.slot, row)[WORK_AT..];
        words.iter().zip(work.to_words()).for_each(|(word, value)| word.store(value, Relaxed));
    }
}

/// Behind the resets of the slow log.
const WORK_AT: usize = RESET_AT + SlowReset::WORDS;
