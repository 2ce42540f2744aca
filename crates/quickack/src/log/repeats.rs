//! What has been said within this second is counted instead of said again.
//!
//! A key's first fact is said, and its second begins. When that is over, one line tells how many
//! more there were, and the next second is counted from its beginning; a silent second ends it. So
//! a storm costs a line a second for each key, and the keys are bounded too.

use std::collections::HashMap;

use super::{Fact, From, Level};

#[derive(Default)]
pub struct Repeats {
    windows: HashMap<String, Window>,
    /// Facts of more keys than there is room for, since when.
    others: Option<Window>,
}

/// A second of one key.
struct Window {
    since_us: u64,
    /// Facts that were not said.
    count: u64,
    /// The last of them.
    last: Fact,
}

/// Whether a fact is written now or only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Say,
    Counted,
}

impl Repeats {
    pub fn note(&mut self, now_us: u64, fact: &Fact) -> Outcome {
        if fact.key.is_empty() {
            return Outcome::Say;
        }
        if let Some(window) = self.windows.get_mut(&fact.key) {
            window.count += 1;
            window.last = fact.clone();
            return Outcome::Counted;
        }
        if self.windows.len() >= KEYS_MAX {
            self.note_other(now_us);
            return Outcome::Counted;
        }
        let window = Window { since_us: now_us, count: 0, last: fact.clone() };
        self.windows.insert(fact.key.clone(), window);
        Outcome::Say
    }

    fn note_other(&mut self, now_us: u64) {
        let window = self.others.get_or_insert_with(|| {
            let (level, text) = (Level::Warning, "lines of yet another kind".to_string());
            let last = Fact { level, key: "other-keys".to_string(), text, from: From::Master };
            Window { since_us: now_us, count: 0, last }
        });
        window.count += 1;
    }

    /// The facts whose second is over, and how often each was not said in it.
    pub fn over(&mut self, now_us: u64) -> Vec<(Fact, u64)> {
        let mut told = Vec::new();
        self.windows.retain(|_, window| !window.is_over(now_us) || window.tell(now_us, &mut told));
        if self.others.as_ref().is_some_and(|window| window.is_over(now_us))
            && let Some(mut window) = self.others.take()
        {
            window.tell(now_us, &mut told);
        }
        told.sort_by(|a, b| a.0.key.cmp(&b.0.key));
        told
    }

    /// When `over` has something to tell.
    pub fn due_us(&self) -> Option<u64> {
        let windows = self.windows.values().chain(&self.others);
        windows.filter(|window| window.count > 0).map(|window| window.since_us + WINDOW_US).min()
    }
}

impl Window {
    fn is_over(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.since_us) >= WINDOW_US
    }

    /// Begins the next second; false after a silent one.
    fn tell(&mut self, now_us: u64, told: &mut Vec<(Fact, u64)>) -> bool {
        if self.count == 0 {
            return false;
        }
        told.push((self.last.clone(), self.count));
        (self.since_us, self.count) = (now_us, 0);
        true
    }
}

const WINDOW_US: u64 = 1_000_000;
/// Keys that are known at a time.
pub const KEYS_MAX: usize = 256;
