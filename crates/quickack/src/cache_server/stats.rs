//! `stats`: the counters under memcached's names.

use proto::memcached::{Text, version};
use proto::{Answer, Asked, Protocol};

use super::execute::Executor;
use super::reply::VERSION;

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
