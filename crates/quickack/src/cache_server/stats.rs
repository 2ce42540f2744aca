//! Counters under memcached's names.

use cache::{Counted, Outcome};
use proto::memcached::{Text, version};
use proto::{Answer, Asked, Protocol};

use super::execute::{Executor, VERSION};

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

impl Executor {
    /// Answers `stats` or one of its arguments. Slab statistics are empty: there are no slabs.
    pub(super) fn tell(&self, argument: &[u8], out: &mut Vec<u8>, now: u64) {
        match argument {
            b"" => self.tell_all(out, now),
            b"settings" => {
                let (memory, item) = (self.options.memory_max, self.options.item_size_max);
                for (name, value) in [("maxbytes", memory), ("item_size_max", item)] {
                    let value = value.to_string();
                    Text.answer(&Asked::no_request(), &Answer::Stat(name, &value), out);
                }
                Text.answer(&Asked::no_request(), &Answer::Stat("evictions", "on"), out);
            }
            _ => {}
        }
        Text.answer(&Asked::no_request(), &Answer::End, out);
    }

    fn tell_all(&self, out: &mut Vec<u8>, now: u64) {
        let (counters, store) = (&self.counters, self.store.stats());
        Text.answer(&Asked::no_request(), &Answer::Stat("version", &version(VERSION)), out);
        for (name, value) in [
            ("pid", u64::from(self.options.pid)),
            ("uptime", now.saturating_sub(self.started)),
            ("time", now),
            ("pointer_size", u64::from(usize::BITS)),
            ("curr_connections", counters.curr_connections),
            ("total_connections", counters.total_connections),
            ("rejected_connections", counters.rejected_connections),
            ("cmd_get", counters.cmd_get),
            ("cmd_set", counters.cmd_set),
            ("cmd_flush", counters.cmd_flush),
            ("cmd_touch", counters.cmd_touch),
            ("get_hits", counters.get_hits),
            ("get_misses", counters.get_misses),
            ("delete_misses", counters.delete_misses),
            ("delete_hits", counters.delete_hits),
            ("incr_misses", counters.incr_misses),
            ("incr_hits", counters.incr_hits),
            ("decr_misses", counters.decr_misses),
            ("decr_hits", counters.decr_hits),
            ("cas_misses", counters.cas_misses),
            ("cas_hits", counters.cas_hits),
            ("cas_badval", counters.cas_badval),
            ("touch_hits", counters.touch_hits),
            ("touch_misses", counters.touch_misses),
            ("bytes_read", counters.bytes_read),
            ("bytes_written", counters.bytes_written),
            ("limit_maxbytes", self.options.memory_max as u64),
            ("threads", 1),
            ("bytes", store.bytes),
            ("curr_items", store.items),
            ("total_items", store.items_total),
            ("evictions", store.evictions),
            ("reclaimed", store.reclaimed),
        ] {
            Text.answer(&Asked::no_request(), &Answer::Stat(name, &value.to_string()), out);
        }
    }
}
