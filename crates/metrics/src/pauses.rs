//! Pauses: until when no client of a pool or of a tenant is served. A row has a word for all
//! requests, and one for those that change something, behind the words of its rates; and one until
//! when its requests are shown to MONITOR. One more for the whole proxy says whether any may be in
//! force. Any worker writes them, and all see them at once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::tenants::WORDS;

/// The words of a row, behind those of its rates.
const ALL: usize = 4;
const WRITES: usize = 5;
const LOOKED_AT: usize = 6;

/// The pauses of one row. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct Pauses {
    words: &'static [AtomicU64; WORDS],
    /// When the last pause of any row ends.
    last: &'static AtomicU64,
}

impl Pauses {
    pub(crate) fn new(words: &'static [AtomicU64; WORDS], last: &'static AtomicU64) -> Pauses {
        Pauses { words, last }
    }

    /// Pauses all requests, or those that change something, until then; or longer, if there is a
    /// longer pause already.
    pub fn begin(&self, until_us: u64, writes_only: bool) {
        self.words[if writes_only { WRITES } else { ALL }].fetch_max(until_us, Relaxed);
        self.last.fetch_max(until_us, Relaxed);
    }

    /// Has requests shown until then.
    pub fn look_at(&self, until_us: u64) {
        self.words[LOOKED_AT].fetch_max(until_us, Relaxed);
        self.last.fetch_max(until_us, Relaxed);
    }

    /// Returns until when requests are shown.
    pub fn looked_at_until(&self) -> u64 {
        self.words[LOOKED_AT].load(Relaxed)
    }

    pub fn end(&self) {
        self.words[ALL].store(0, Relaxed);
        self.words[WRITES].store(0, Relaxed);
    }

    /// Returns until when a request is paused, if it is. `writes`: it may change something.
    pub fn until(&self, now_us: u64, writes: bool) -> Option<u64> {
        let word = |at: usize| self.words[at].load(Relaxed);
        let until = if writes { word(ALL).max(word(WRITES)) } else { word(ALL) };
        (until > now_us).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use crate::Registry;

    #[test]
    fn a_pause_ends_by_its_time_or_by_order_and_is_its_rows_alone() {
        let registry = Registry::private(1, 3);
        let (one, other) = (registry.pauses(1), registry.pauses(2));
        assert!(!registry.is_special(0) && one.until(0, true).is_none());
        one.begin(100, true);
        assert_eq!((one.until(50, true), one.until(50, false)), (Some(100), None));
        one.begin(80, false);
        assert_eq!((one.until(50, true), one.until(50, false)), (Some(100), Some(80)));
        assert!(other.until(50, true).is_none() && registry.is_special(99));
        assert!(!registry.is_special(100) && one.until(100, true).is_none());
        one.end();
        assert!(one.until(50, true).is_none());
        other.begin(70, false);
        registry.clear_row(2);
        assert!(other.until(50, true).is_none(), "another pool begins without");
    }
}
