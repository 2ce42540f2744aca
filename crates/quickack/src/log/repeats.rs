//! Counts repeats of an entry within a second instead of writing them.
//!
//! A key's first entry is written, and its window of one second begins. When the window ends, one
//! line reports the number of repeats, and the next window begins. A window without repeats is the
//! last one. So a storm costs one line a second for each key, and the number of keys is bounded
//! too.

use std::collections::HashMap;

use super::{Entry, Level};

#[derive(Default)]
pub struct Repeats {
    windows: HashMap<String, Window>,
    /// The window of entries whose keys found no room.
    others: Option<Window>,
}

/// One key's window of one second.
struct Window {
    since_us: u64,
    /// Entries that were not written.
    count: u64,
    /// The last of them.
    last: Entry,
}

/// An entry that was counted instead of written, and how often.
pub struct Repeated {
    pub entry: Entry,
    pub count: u64,
}

/// The decision about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Say,
    Counted,
}

impl Repeats {
    pub fn note(&mut self, now_us: u64, entry: &Entry) -> Outcome {
        if entry.key.is_empty() {
            return Outcome::Say;
        }
        if let Some(window) = self.windows.get_mut(&entry.key) {
            window.count += 1;
            window.last = entry.clone();
            return Outcome::Counted;
        }
        if self.windows.len() >= KEYS_MAX {
            self.note_other(now_us);
            return Outcome::Counted;
        }
        let window = Window { since_us: now_us, count: 0, last: entry.clone() };
        self.windows.insert(entry.key.clone(), window);
        Outcome::Say
    }

    fn note_other(&mut self, now_us: u64) {
        let window = self.others.get_or_insert_with(|| {
            let last = Entry::new(Level::Warning, "log_other", "other log lines, not shown");
            Window { since_us: now_us, count: 0, last }
        });
        window.count += 1;
    }

    /// Returns the entries whose windows are over, each with its number of repeats.
    pub fn over(&mut self, now_us: u64) -> Vec<Repeated> {
        let mut told = Vec::new();
        self.windows.retain(|_, window| !window.is_over(now_us) || window.tell(now_us, &mut told));
        if self.others.as_ref().is_some_and(|window| window.is_over(now_us))
            && let Some(mut window) = self.others.take()
        {
            window.tell(now_us, &mut told);
        }
        told.sort_by(|a, b| a.entry.key.cmp(&b.entry.key));
        told
    }

    /// Returns the next time at which `over` has entries to report.
    pub fn due_us(&self) -> Option<u64> {
        let windows = self.windows.values().chain(&self.others);
        windows.filter(|window| window.count > 0).map(|window| window.since_us + WINDOW_US).min()
    }
}

impl Window {
    fn is_over(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.since_us) >= WINDOW_US
    }

    /// Begins the next window; returns false after one without repeats.
    fn tell(&mut self, now_us: u64, told: &mut Vec<Repeated>) -> bool {
        if self.count == 0 {
            return false;
        }
        told.push(Repeated { entry: self.last.clone(), count: self.count });
        (self.since_us, self.count) = (now_us, 0);
        true
    }
}

const WINDOW_US: u64 = 1_000_000;
/// Limit on keys known at a time.
pub const KEYS_MAX: usize = 256;
