//! The counters that `stats` shows.

use cache::{Counted, Outcome};

/// Counters since the start, each with its name in `stats`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub curr_connections: u64,
    pub total_connections: u64,
    pub rejected_connections: u64,
    pub cmd_get: u64,
    pub cmd_set: u64,
    pub cmd_flush: u64,
    pub cmd_touch: u64,
    pub get_hits: u64,
    pub get_misses: u64,
    pub delete_hits: u64,
    pub delete_misses: u64,
    pub incr_hits: u64,
    pub incr_misses: u64,
    pub decr_hits: u64,
    pub decr_misses: u64,
    pub cas_hits: u64,
    pub cas_misses: u64,
    pub cas_badval: u64,
    pub touch_hits: u64,
    pub touch_misses: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Counters {
    /// memcached counts a read with touch as both.
    pub fn count_fetch(&mut self, hit: bool, touch: bool) {
        self.cmd_get += 1;
        *if hit { &mut self.get_hits } else { &mut self.get_misses } += 1;
        if touch {
            self.count_touch(hit);
        }
    }

    /// A meta get that touches the item it finds is counted only as a touch.
    pub fn count_meta_get(&mut self, hit: bool, touch: bool) {
        if hit && touch { self.count_touch(hit) } else { self.count_fetch(hit, false) }
    }

    pub fn count_touch(&mut self, hit: bool) {
        self.cmd_touch += 1;
        *if hit { &mut self.touch_hits } else { &mut self.touch_misses } += 1;
    }

    /// Counts a store with a cas.
    pub fn count_cas(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Stored => self.cas_hits += 1,
            Outcome::NotFound => self.cas_misses += 1,
            Outcome::Exists => self.cas_badval += 1,
            _ => {}
        }
    }

    pub fn count_count(&mut self, up: bool, counted: Counted) {
        match (up, counted) {
            (true, Counted::Now(_)) => self.incr_hits += 1,
            (true, Counted::NotFound) => self.incr_misses += 1,
            (false, Counted::Now(_)) => self.decr_hits += 1,
            (false, Counted::NotFound) => self.decr_misses += 1,
            _ => {}
        }
    }
}
