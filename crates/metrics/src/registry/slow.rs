//! Slow requests of all slots: who sees which, and since when; and what MONITOR shows.

use std::sync::atomic::Ordering::Relaxed;

use super::{RESET_AT, ROW, Registry, SLOW_MADE, WorkerMetrics};
use crate::chunks::Chunks;
use crate::slow_log::{self, SlowEntry, SlowHead, SlowLog, SlowReset};
use crate::tap::{self, Tap};

impl Registry {
    /// Returns the slow requests of one pool or of all, the newest first.
    pub fn slow_entries(&self, pool: Option<u32>) -> Vec<SlowEntry> {
        let is_shown = |head: &SlowHead| {
            let is_it = pool.is_none_or(|pool| pool == head.pool);
            let is_row = (head.pool as usize) < self.rows;
            is_it && is_row && self.slow_reset_us(head.pool, SlowReset::All) < head.at_us
        };
        let all = self.used().flat_map(|slot| self.slow_log(slot).heads());
        let mut shown: Vec<SlowHead> = all.filter(is_shown).collect();
        shown.sort_by_key(|head| std::cmp::Reverse(head.at_us));
        shown.iter().filter_map(|head| self.slow_entry(head)).collect()
    }

    /// Returns the slow requests of a pool that clients of a tenant may see, or of none with id 0,
    /// the oldest first. A tenant's resets are in its row, those of the others in the pool's.
    pub fn slow_heads(&self, pool: u32, tenant: u32, reset: SlowReset) -> Vec<SlowHead> {
        let row = if tenant == 0 { pool } else { tenant };
        // The row's id may have been another tenant's.
        let resets = [(pool, SlowReset::All), (row, SlowReset::All), (row, reset)];
        let shown_from = resets.map(|(row, reset)| self.slow_reset_us(row, reset));
        let shown_from = shown_from.into_iter().max().unwrap_or(0);
        let is_shown =
            |head: &SlowHead| (head.pool, head.tenant) == (pool, tenant) && head.at_us > shown_from;
        let all = self.used().flat_map(|slot| self.slow_log(slot).heads());
        let mut shown: Vec<SlowHead> = all.filter(is_shown).collect();
        shown.sort_by_key(|head| head.at_us);
        shown
    }

    /// Returns the whole entry, if it is there still.
    pub fn slow_entry(&self, head: &SlowHead) -> Option<SlowEntry> {
        let entry = self.slow_log(head.slot).read(head.place)?;
        (entry.at_us == head.at_us && entry.pool == head.pool && entry.tenant == head.tenant)
            .then_some(entry)
    }

    /// Returns the time before which the slow requests of a pool or tenant are hidden.
    pub fn slow_reset_us(&self, row: u32, reset: SlowReset) -> u64 {
        let word = |slot| self.row(slot, row)[RESET_AT + reset.place()].load(Relaxed);
        self.used().map(word).max().unwrap_or(0)
    }

    /// Returns how many slots have ever been used: the memory of the others is not there.
    pub fn used_slots(&self) -> usize {
        self.used().end
    }

    /// Returns the requests of a slot that MONITOR shows.
    pub fn tap(&self, slot: usize) -> Tap {
        let start = self.slot_start(slot) + self.rows * ROW + Chunks::words(self.rows);
        Tap { words: &self.memory[start + slow_log::WORDS..][..tap::WORDS] }
    }

    fn slow_log(&self, slot: usize) -> SlowLog {
        let start = self.slot_start(slot) + self.rows * ROW + Chunks::words(self.rows);
        let made = &self.memory[SLOW_MADE];
        SlowLog { words: &self.memory[start..][..slow_log::WORDS], slot, made }
    }
}

impl WorkerMetrics {
    /// Returns the slow log that this process writes.
    pub fn slow_log(&self) -> SlowLog {
        self.registry.slow_log(self.slot)
    }

    /// Hides the slow requests of a pool or tenant up to this time.
    pub fn reset_slow_log(&self, row: u32, reset: SlowReset, now_us: u64) {
        self.registry.row(self.slot, row)[RESET_AT + reset.place()].store(now_us, Relaxed);
    }
}
