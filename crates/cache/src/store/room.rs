//! Making room: the two queues, second chances, eviction, and the sweep for expired items.

use super::Store;
use crate::clock::NEVER;
use crate::hash::hash;
use crate::index::Cursor;
use crate::ring::{Entry, Ring};
use crate::slot::Head;

/// Slots checked for expired items before an item that has not expired leaves `small`.
const SWEPT: usize = 4;
/// Words that one request may move besides four times its own size. It bounds the longest pause.
const MOVED_MAX: u32 = 2048;

impl Store {
    /// Writes an item, which must not be larger than half of `main`, into one of the queues.
    pub(super) fn insert(&mut self, head: Head, key: &[u8], value: &[u8], to_main: bool, now: u64) {
        let to_main = to_main || head.words > self.small.capacity() / 2;
        let at = if to_main {
            let entry = self.room_in_main(head.words, now);
            self.enter_main(entry, head.words)
        } else {
            let entry = self.room_in_small(head.words, now);
            self.enter_small(entry, head.words)
        };
        self.arena.write(at, &head, key, value);
        self.stats.items += 1;
        self.expiring += u64::from(head.expires != NEVER);
        if let Some(displaced) = self.index.insert(hash(key), at) {
            self.stats.evictions += 1;
            self.retire(displaced, self.arena.head(displaced));
        }
    }

    /// Performs one step of the search for expired items, in both queues.
    pub(super) fn sweep_step(&mut self, now: u64) {
        for in_main in [false, true] {
            let ring = if in_main { &self.main } else { &self.small };
            let Some(at) = ring.sweep_at() else { continue };
            let (words, live) = self.arena.outline(at);
            if live {
                let head = self.arena.head(at);
                if self.is_gone(&head, now) {
                    let cursor = self.cursor_of(at, &head);
                    self.index.remove(cursor);
                    self.reclaim(at, head);
                }
            }
            self.ring_of(at).sweep_on(words);
        }
    }

    /// Removes an item that is no longer in the index from the accounting. Its slot stays until the
    /// tail passes.
    pub(super) fn retire(&mut self, at: u32, head: Head) {
        self.arena.set_padding(at, head.words);
        if head.epoch != self.epoch {
            return; // The flush has taken it out already.
        }
        self.ring_of(at).bury(head.words);
        self.stats.items -= 1;
        self.expiring -= u64::from(head.expires != NEVER);
    }

    /// Like `retire`, for an item that was expired or flushed.
    pub(super) fn reclaim(&mut self, at: u32, head: Head) {
        self.stats.reclaimed += 1;
        self.retire(at, head);
    }

    fn room_in_small(&mut self, words: u32, now: u64) -> Entry {
        loop {
            if let Some(entry) = self.small.room(words) {
                return entry;
            }
            self.pop_small(now);
        }
    }

    fn room_in_main(&mut self, words: u32, now: u64) -> Entry {
        let mut moves = MOVED_MAX + 4 * words;
        loop {
            if let Some(entry) = self.main.room(words) {
                return entry;
            }
            moves -= self.pop_main(moves, now).min(moves);
            self.sweep(1, now);
        }
    }

    /// Moves the oldest item of `small` to `main`, or evicts it and leaves a ghost.
    fn pop_small(&mut self, now: u64) {
        let at = self.small.oldest().expect("an empty queue has room for half of itself");
        let Some(head) = self.clear_tail(at, now) else { return };
        self.sweep(SWEPT, now);
        let cursor = self.cursor_of(at, &head);
        let main_has_room = self.main.room(head.words).is_some() || self.main.has_slack();
        let heft = self.heft(head.words);
        if heft < 0 || is_worth(&head, heft) || main_has_room {
            let entry = self.room_in_main(head.words, now);
            self.small.bury(head.words);
            self.relocate(at, cursor, head, heft.min(0).unsigned_abs(), entry);
        } else {
            let remembered = u32::try_from(self.stats.items).unwrap_or(u32::MAX);
            self.index.haunt(cursor, hash(self.arena.key(at, &head)), remembered);
            self.stats.evictions += 1;
            self.retire(at, head);
        }
        self.small.pop(head.words);
    }

    /// Moves the oldest item of `main` to the head for another round, or evicts it. Returns the
    /// words moved.
    fn pop_main(&mut self, moves: u32, now: u64) -> u32 {
        let at = self.main.oldest().expect("an empty queue has room for half of itself");
        let Some(head) = self.clear_tail(at, now) else { return 0 };
        let cursor = self.cursor_of(at, &head);
        let is_worth = is_worth(&head, self.heft(head.words));
        let keep = (is_worth || self.main.has_slack()) && moves > 0;
        if !keep {
            self.index.remove(cursor);
            self.stats.evictions += 1;
            self.retire(at, head);
        }
        self.main.pop(head.words);
        if !keep {
            return 0;
        }
        // Its own slot is free now, so there is room at the head; source and target may even be the
        // same.
        let entry = self.main.room(head.words).expect("a slot was freed of the same length");
        self.main.bury(head.words);
        self.relocate(at, cursor, head, head.asked().saturating_sub(1), entry);
        head.words
    }

    /// Returns the item at a tail if it can still be found; frees anything else.
    fn clear_tail(&mut self, at: u32, now: u64) -> Option<Head> {
        let (words, live) = self.arena.outline(at);
        if live {
            let head = self.arena.head(at);
            if !self.is_gone(&head, now) {
                return Some(head);
            }
            let cursor = self.cursor_of(at, &head);
            self.index.remove(cursor);
            self.reclaim(at, head);
        }
        self.ring_of(at).pop(words);
        None
    }

    /// Moves an item, already removed from its ring's accounting, to the head of `main`.
    fn relocate(&mut self, from: u32, cursor: Cursor, mut head: Head, asked: u8, entry: Entry) {
        let to = self.enter_main(entry, head.words);
        self.arena.relocate(from, to, head.words);
        head.set_asked(asked);
        self.arena.set_head(to, &head);
        self.index.relocate(cursor, to);
    }

    fn enter_main(&mut self, entry: Entry, words: u32) -> u32 {
        if let Some((at, rest)) = entry.padding {
            self.arena.set_padding(at, rest);
        }
        self.main.push(entry, words);
        entry.at
    }

    fn enter_small(&mut self, entry: Entry, words: u32) -> u32 {
        if let Some((at, rest)) = entry.padding {
            self.arena.set_padding(at, rest);
        }
        self.small.push(entry, words);
        entry.at
    }

    /// Returns the index entry of the item in that slot.
    fn cursor_of(&self, at: u32, head: &Head) -> Cursor {
        let hash = hash(self.arena.key(at, head));
        let found = self.index.find(hash, |place| place == at);
        found.expect("a slot that is not dead is in the index").0
    }

    /// Returns an item's size relative to the mean, in steps of four. A small item costs other
    /// items next to nothing; a large one takes the place of many.
    fn heft(&self, words: u32) -> i8 {
        let live = u64::from(self.small.live()) + u64::from(self.main.live());
        let (words, mean) = (u64::from(words), live / self.stats.items.max(1));
        match () {
            () if words > 8 * mean => 2,
            () if words > 2 * mean => 1,
            () if words * 32 < mean => -3,
            () if words * 8 < mean => -2,
            () if words * 2 < mean => -1,
            () => 0,
        }
    }

    fn ring_of(&mut self, at: u32) -> &mut Ring {
        if self.main.contains(at) { &mut self.main } else { &mut self.small }
    }
}

/// Returns whether the item was requested often enough to stay: once, or more often if it is large.
fn is_worth(head: &Head, heft: i8) -> bool {
    head.asked() > heft.max(0).unsigned_abs()
}
