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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, NewItem, Outcome};

    const NOW: u64 = 1_000;

    fn set(store: &mut Store, number: u64, len: usize, exptime: i64, now: u64) {
        let (key, value) = (format!("key-{number}"), vec![b'v'; len]);
        let item = NewItem { key: key.as_bytes(), exptime, value: &value, ..NewItem::default() };
        assert_eq!(store.store(Mode::Set, &item, now), Outcome::Stored);
    }

    /// Walks along a ring from its oldest slot. Returns the number of items that can be found, the
    /// number of those that expire, and the words they take.
    fn walk(store: &Store, ring: &Ring) -> (u64, u64, u32) {
        let (mut items, mut expiring, mut live) = (0, 0, 0);
        let Some(first) = ring.oldest() else { return (0, 0, 0) };
        let mut at = first;
        for _ in 0..ring.capacity() {
            let (words, alive) = store.arena.outline(at);
            if alive && store.arena.head(at).epoch == store.epoch {
                items += 1;
                expiring += u64::from(store.arena.head(at).expires != NEVER);
                live += words;
            }
            at = if at + words == ring.end() { ring.end() - ring.capacity() } else { at + words };
            if Some(at) == ring.head() {
                break;
            }
        }
        (items, expiring, live)
    }

    /// After any step the store's accounting equals the contents of its slots.
    #[test]
    fn the_books_are_what_the_arena_holds() {
        for seed in 0..4u64 {
            let mut store = Store::new(64 * 1024, 1 << 20);
            let (mut chance, mut now) = (seed, NOW);
            let mut below = |bound: u64| {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                (chance >> 33) % bound
            };
            for step in 0..20_000 {
                let (number, exptime) = (below(400), below(3) as i64 * 20);
                let key = format!("key-{number}");
                let value = vec![b'1'; below(4) as usize * 30 + 1];
                let mode = [Mode::Append, Mode::Prepend][below(2) as usize];
                match below(16) {
                    0..=5 => set(&mut store, number, below(200) as usize, exptime, now),
                    6 => set(&mut store, number, below(4_000) as usize, exptime, now),
                    7..=9 => _ = store.get(key.as_bytes(), now),
                    10 => _ = store.touch(key.as_bytes(), exptime, now),
                    11 => _ = store.delete(key.as_bytes(), now),
                    12 | 13 => {
                        let item =
                            NewItem { key: key.as_bytes(), value: &value, ..NewItem::default() };
                        store.store(mode, &item, now);
                    }
                    14 => now += below(4),
                    _ if below(400) == 0 => store.flush_all(below(2) as i64 * 5, now),
                    _ => store.sweep(below(8) as usize, now),
                }
                if step % 16 == 0 {
                    let (small, main) = (walk(&store, &store.small), walk(&store, &store.main));
                    assert_eq!(store.stats.items, small.0 + main.0, "seed {seed}, step {step}");
                    assert_eq!(store.expiring, small.1 + main.1, "seed {seed}, step {step}");
                    assert_eq!((store.small.live(), store.main.live()), (small.2, main.2));
                }
            }
        }
    }

    #[test]
    fn what_is_appended_stays_in_its_slot_while_that_has_room() {
        let mut store = Store::new(64 * 1024, 1 << 20);
        set(&mut store, 1, 1, 0, NOW);
        let find = |store: &Store| store.lookup(b"key-1", hash(b"key-1")).expect("it is there");
        let found = find(&store);
        let room = found.head.value_room();
        let mut append = |len: usize| {
            let value = vec![b'v'; len];
            let item = NewItem { key: b"key-1", value: &value, ..NewItem::default() };
            assert_eq!(store.store(Mode::Append, &item, NOW), Outcome::Stored);
            find(&store).at
        };
        assert_eq!(append(room - 1), found.at, "it is full to the last byte");
        assert_ne!(append(1), found.at);
    }

    /// Steps of four, starting from the mean of all.
    #[test]
    fn an_item_is_weighed_against_the_mean_of_all() {
        let mut store = Store::new(16 << 20, 1 << 20);
        assert_eq!(store.heft(1), 2, "there is no mean yet");
        // 64 words each: 32 bytes of head, 5 to 7 of key.
        (0..100).for_each(|number| set(&mut store, number, 512 - 32 - 7, 0, NOW));
        assert_eq!(u64::from(store.small.live() + store.main.live()), 100 * 64);
        for (words, heft) in [
            (513, 2),
            (512, 1),
            (129, 1),
            (128, 0),
            (64, 0),
            (32, 0),
            (31, -1),
            (8, -1),
            (7, -2),
            (2, -2),
            (1, -3),
        ] {
            assert_eq!(store.heft(words), heft, "{words} words");
        }
    }

    #[test]
    fn a_large_item_must_have_been_asked_for_more_often_to_stay() {
        for asked in 0..=3 {
            let mut head = Head::new(1, 1);
            head.set_asked(asked);
            for (heft, least) in [(-3, 1), (-1, 1), (0, 1), (1, 2), (2, 3)] {
                assert_eq!(is_worth(&head, heft), asked >= least, "{asked} times, heft {heft}");
            }
        }
    }

    /// One request moves no more than its limit, however many items are worth keeping.
    #[test]
    fn one_request_moves_no_more_than_the_bound() {
        let mut store = Store::new(4 << 20, 1 << 20);
        (0..60_000).for_each(|number| set(&mut store, number, 40, 0, NOW));
        for _ in 0..4 {
            (0..60_000).for_each(|number| {
                store.get(format!("key-{number}").as_bytes(), NOW);
            });
        }
        let worth = |store: &mut Store, moves| {
            let at = store.main.oldest().expect("it is full");
            let head = store.arena.head(at);
            let moved = store.pop_main(moves, NOW);
            (moved, head.words, head.asked())
        };
        let (moved, words, asked) = worth(&mut store, 1);
        assert_eq!((moved, asked), (words, 3), "all of them are worth it");
        let evictions = store.stats.evictions;
        assert_eq!(worth(&mut store, 0).0, 0, "and nothing may be moved");
        assert_eq!(store.stats.evictions, evictions + 1);
        // A request moves that many words besides four times its own, and evicts after that.
        let before = store.main.live();
        let mut moves = MOVED_MAX + 4 * 8;
        let mut moved = 0;
        while moves > 0 {
            let words = store.pop_main(moves, NOW);
            moved += words;
            moves -= words.min(moves);
        }
        assert!((MOVED_MAX + 32..MOVED_MAX + 40).contains(&moved), "{moved}");
        assert_eq!(store.main.live(), before, "each went round once more");
    }

    #[test]
    fn an_item_of_half_of_small_enters_there_and_a_larger_one_does_not() {
        let mut store = Store::new(1 << 20, 1 << 20);
        let half = store.small.capacity() / 2;
        let longest = (1..).find(|len| crate::slot::words(5, len + 1) > half).expect("it ends");
        for (number, len, is_small) in [(1, longest, true), (2, longest + 1, false)] {
            set(&mut store, number, len, 0, NOW);
            let key = format!("key-{number}");
            let found = store.lookup(key.as_bytes(), hash(key.as_bytes())).expect("it is there");
            assert_eq!(found.head.words, half + u32::from(!is_small));
            assert_eq!(found.at < store.small.end(), is_small, "{len} bytes");
        }
    }

    #[test]
    fn what_joins_values_keeps_room_for_those_of_16_kib() {
        let mut store = Store::new(4 << 20, 1 << 20);
        for len in [10_000, 200_000] {
            set(&mut store, 1, len, 0, NOW);
            for _ in 0..100 {
                let item = NewItem { key: b"key-1", value: b"more", ..NewItem::default() };
                assert_eq!(store.store(Mode::Append, &item, NOW), Outcome::Stored);
            }
            let kept = store.joined.capacity();
            assert!((10_000..=16 << 10).contains(&kept), "{kept} bytes after one of {len}");
        }
    }
}
