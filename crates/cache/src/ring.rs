//! One queue: a window of the arena in which slots enter at the head and leave at the tail.
//!
//! ```text
//!   start      tail                 head      end         start   head        tail          end
//!     |  free   | slot slot ... slot | free    |     or     | slot |   free    | slot slot pad |
//! ```
//!
//! A slot never crosses the end: the words left there become a slot of padding. This file accounts
//! for words; the arena holds the slots themselves.

/// The accounting of one queue.
pub struct Ring {
    start: u32,
    end: u32,
    head: u32,
    tail: u32,
    /// Words between tail and head, dead slots and padding included.
    used: u32,
    /// Words of items that can be found.
    live: u32,
    /// The slot that the sweep examines next.
    sweep: u32,
}

/// The place found for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub at: u32,
    /// The padding needed before the end, as `(at, words)`.
    pub padding: Option<(u32, u32)>,
}

impl Ring {
    /// Returns an empty queue over the words `start..end`.
    pub fn new(start: u32, end: u32) -> Ring {
        assert!(start < end);
        Ring { start, end, head: start, tail: start, used: 0, live: 0, sweep: start }
    }

    pub fn capacity(&self) -> u32 {
        self.end - self.start
    }

    pub fn end(&self) -> u32 {
        self.end
    }

    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn contains(&self, at: u32) -> bool {
        (self.start..self.end).contains(&at)
    }

    /// Returns whether an eighth or more of it is dead or free.
    pub fn has_slack(&self) -> bool {
        self.live < self.capacity() - self.capacity() / 8
    }

    /// Returns the place for a slot of that length, if there is room.
    pub fn room(&self, words: u32) -> Option<Entry> {
        let here = Some(Entry { at: self.head, padding: None });
        if self.used > 0 && self.head <= self.tail {
            return if self.tail - self.head >= words { here } else { None };
        }
        let to_end = self.end - self.head;
        if to_end >= words {
            return here;
        }
        let padding = Some((self.head, to_end));
        (self.tail - self.start >= words).then_some(Entry { at: self.start, padding })
    }

    /// Takes the room that `room` found.
    pub fn push(&mut self, entry: Entry, words: u32) {
        let padding = entry.padding.map_or(0, |(_, words)| words);
        self.used += words + padding;
        self.live += words;
        self.head = self.wrapped(entry.at + words);
        assert!(self.used <= self.capacity(), "a ring holds more than it is long");
    }

    /// Returns the oldest slot.
    pub fn oldest(&self) -> Option<u32> {
        (self.used > 0).then_some(self.tail)
    }

    /// Returns the end of the newest slot.
    #[cfg(test)]
    pub fn head(&self) -> Option<u32> {
        (self.used > 0).then_some(self.head)
    }

    /// Frees the oldest slot, whose length is `words`.
    pub fn pop(&mut self, words: u32) {
        assert!(self.used >= words, "a ring gave back more than it held");
        let swept = self.sweep == self.tail;
        self.used -= words;
        self.tail = self.wrapped(self.tail + words);
        if self.used == 0 {
            // Restarting at the beginning gives the longest stretch without padding.
            (self.head, self.tail) = (self.start, self.start);
        }
        if swept || self.used == 0 {
            self.sweep = self.tail;
        }
    }

    /// Records that an item of `words` words can no longer be found.
    pub fn bury(&mut self, words: u32) {
        assert!(self.live >= words, "a ring buried more than lived");
        self.live -= words;
    }

    /// Records that none of its items can be found any more.
    pub fn bury_all(&mut self) {
        self.live = 0;
    }

    /// Returns the slot that the sweep has reached.
    pub fn sweep_at(&self) -> Option<u32> {
        (self.used > 0).then_some(self.sweep)
    }

    /// Moves the sweep past a slot of that length; from the head it wraps to the tail.
    pub fn sweep_on(&mut self, words: u32) {
        let next = self.wrapped(self.sweep + words);
        self.sweep = if next == self.head { self.tail } else { next };
    }

    fn wrapped(&self, at: u32) -> u32 {
        assert!(at <= self.end, "a slot lies across the end of its ring");
        if at == self.end { self.start } else { at }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn slots_leave_in_the_order_they_came_whatever_their_lengths() {
        let mut ring = Ring::new(10, 110);
        let mut model: VecDeque<(u32, u32)> = VecDeque::new();
        let mut seed = 1u32;
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let words = 1 + (seed >> 16) % 40;
            let entry = loop {
                if let Some(entry) = ring.room(words) {
                    break entry;
                }
                let (at, len) = model.pop_front().expect("an empty ring has room");
                assert_eq!(ring.oldest(), Some(at));
                ring.pop(len);
            };
            model.extend(entry.padding);
            model.push_back((entry.at, words));
            ring.push(entry, words);
            let total: u32 = model.iter().map(|(_, len)| len).sum();
            assert!(total <= 100 && model.iter().all(|(at, len)| *at >= 10 && at + len <= 110));
            let mut taken = [false; 110];
            for word in model.iter().flat_map(|(at, len)| *at..at + len) {
                assert!(!std::mem::replace(&mut taken[word as usize], true), "slots overlap");
            }
        }
    }
}
