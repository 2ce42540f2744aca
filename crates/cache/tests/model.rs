//! Random histories compared with a naive map: every answer of the store must be an answer of the
//! map. With ample memory they agree exactly. In tight memory the store may have forgotten items,
//! but the items it still has are right, and its own accounting is consistent.

use std::collections::HashMap;

use cache::{Count, Counted, Mode, NewItem, Outcome, Standing, Store};

const ITEM_SIZE_MAX: usize = 20_000;
const HEAD: usize = 48 + 8 + 1 + 2;

/// SplitMix64: enough randomness for a test, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Clone)]
struct Entry {
    flags: u32,
    cas: Option<u64>,
    expires: u64,
    stale: bool,
    sent: bool,
    value: Vec<u8>,
}

#[derive(Default)]
struct Model {
    entries: HashMap<Vec<u8>, Entry>,
    flush_due: Option<u64>,
}

impl Model {
    fn settle(&mut self, now: u64) {
        if let Some(due) = self.flush_due.filter(|due| *due <= now) {
            self.entries.clear();
            // Items stored in the second of the flush are flushed too.
            self.flush_due = Some(due).filter(|due| *due == now);
        }
        self.entries.retain(|_, entry| entry.expires == 0 || entry.expires > now);
    }

    fn expires(exptime: i64, now: u64) -> u64 {
        match exptime {
            0 => 0,
            e if e < 0 => 1,
            e if e <= 2_592_000 => now + e as u64,
            e => e as u64,
        }
    }

    fn fits(key: &[u8], flags: u32, len: usize) -> bool {
        HEAD + key.len() + len + if flags == 0 { 0 } else { 4 } <= ITEM_SIZE_MAX
    }

    fn store(&mut self, mode: Mode, item: &NewItem<'_>, now: u64) -> Outcome {
        if !Model::fits(item.key, item.flags, item.value.len()) {
            if mode == Mode::Set && item.cas.is_none() {
                self.entries.remove(item.key);
            }
            return Outcome::TooLarge;
        }
        let old = self.entries.get(item.key).cloned();
        let mut new = Entry {
            flags: item.flags,
            cas: None,
            expires: Model::expires(item.exptime, now),
            stale: false,
            sent: false,
            value: item.value.to_vec(),
        };
        match (mode, old) {
            (Mode::Add, Some(_)) => return Outcome::NotStored,
            (Mode::Set | Mode::Replace, None) if item.cas.is_some() => return Outcome::NotFound,
            (Mode::Set | Mode::Replace, Some(old)) if item.cas.is_some() && old.cas != item.cas => {
                return Outcome::Exists;
            }
            (Mode::Replace | Mode::Append | Mode::Prepend, None) => return Outcome::NotStored,
            (Mode::Append | Mode::Prepend, Some(old)) => {
                let parts = [old.value.as_slice(), item.value];
                let order = if mode == Mode::Append { [0, 1] } else { [1, 0] };
                let value = order.map(|part| parts[part]).concat();
                if !Model::fits(item.key, old.flags, value.len()) {
                    return Outcome::NotStored;
                }
                new = Entry { value, cas: None, stale: false, sent: false, ..old };
            }
            _ => {}
        }
        self.entries.insert(item.key.to_vec(), new);
        Outcome::Stored
    }

    fn count(&mut self, key: &[u8], up: bool, delta: u64) -> Counted {
        let Some(entry) = self.entries.get_mut(key) else { return Counted::NotFound };
        let text = String::from_utf8_lossy(&entry.value).into_owned();
        let ends = |char: char| char.is_whitespace() || char == '\0';
        let word = text.trim_start().split(ends).next().unwrap_or_default();
        let Ok(old) = word.parse::<u64>() else { return Counted::NonNumeric };
        let new = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
        let digits = new.to_string();
        if digits.len() > entry.value.len() {
            (entry.stale, entry.sent) = (false, false);
        }
        entry.value = format!("{digits:width$}", width = entry.value.len()).into_bytes();
        entry.cas = None;
        Counted::Now(new)
    }
}

/// The store and the model.
struct Pair {
    store: Store,
    model: Model,
    random: Random,
    keys: u64,
    value_len_max: u64,
    forgets: bool,
    now: u64,
    forgotten: u64,
}

impl Pair {
    fn new(seed: u64, memory: usize, keys: u64, value_len_max: u64, forgets: bool) -> Pair {
        Pair {
            store: Store::new(memory, ITEM_SIZE_MAX),
            model: Model::default(),
            random: Random(seed),
            keys,
            value_len_max,
            forgets,
            now: 1_700_000_000,
            forgotten: 0,
        }
    }

    /// Reads a key on both sides. In tight memory a miss is allowed; then the model forgets the key
    /// too.
    fn compare(&mut self, key: &[u8]) {
        let seen = self.store.get(key, self.now);
        match (seen, self.model.entries.get_mut(key)) {
            (None, None) => {}
            (None, Some(_)) => {
                assert!(self.forgets, "lost {:?}", String::from_utf8_lossy(key));
                self.model.entries.remove(key);
                self.forgotten += 1;
            }
            (Some(item), None) => panic!("{item:?} came from nowhere"),
            (Some(item), Some(entry)) => {
                assert_eq!((item.flags, item.value), (entry.flags, entry.value.as_slice()));
                assert_eq!(*entry.cas.get_or_insert(item.cas), item.cas, "cas changed unasked");
            }
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.random.below(self.keys);
        self.numbered(number)
    }

    /// Returns keys of all lengths, unless the items are to be tiny.
    fn numbered(&self, number: u64) -> Vec<u8> {
        let mut key = format!("k{number}").into_bytes();
        if self.value_len_max > 10 {
            key.resize(key.len() + (number * 7 % 13) as usize * 10, b'x');
        }
        key
    }

    fn value(&mut self) -> Vec<u8> {
        if self.value_len_max > 10 && self.random.below(4) == 0 {
            return (self.random.next() >> self.random.below(64)).to_string().into_bytes();
        }
        let len = match self.random.below(200) {
            0 if self.value_len_max > 10 => ITEM_SIZE_MAX as u64 - 100 + self.random.below(60),
            _ => self.random.below(self.value_len_max),
        };
        let first = self.random.next();
        (0..len).map(|place| (first.wrapping_add(place * 31) >> 2) as u8).collect()
    }

    fn exptime(&mut self) -> i64 {
        match self.random.below(12) {
            0 => -1,
            1..4 => self.random.below(30) as i64 + 1,
            4 => self.now as i64 + self.random.below(60) as i64 - 20,
            5 => 2_592_000 + self.random.below(2) as i64,
            _ => 0,
        }
    }

    fn step(&mut self) {
        if self.random.below(20) == 0 {
            self.now += self.random.below(4);
        }
        self.model.settle(self.now);
        let key = self.key();
        self.compare(&key);
        match self.random.below(100) {
            0..50 => self.storage(&key),
            50..60 => self.counting(&key),
            60..70 => {
                let exptime = self.exptime();
                let touched = self.store.touch(&key, exptime, self.now);
                assert_eq!(touched, self.model.entries.contains_key(&key));
                if let Some(entry) = self.model.entries.get_mut(&key) {
                    entry.expires = Model::expires(exptime, self.now);
                }
            }
            70..80 => {
                let deleted = self.store.delete(&key, self.now);
                assert_eq!(deleted, self.model.entries.remove(&key).is_some());
            }
            80 if self.random.below(200) == 0 => {
                let delay = self.random.below(8) as i64 - 1;
                self.store.flush_all(delay, self.now);
                self.model.flush_due =
                    Some(if delay <= 0 { 0 } else { self.now + delay as u64 - 1 });
            }
            81 => self.store.sweep(10, self.now),
            82..86 => self.invalidate(&key),
            86..90 => self.renew(&key),
            _ => {}
        }
        self.model.settle(self.now);
        self.compare(&key);
    }

    fn storage(&mut self, key: &[u8]) {
        let (value, exptime) = (self.value(), self.exptime());
        let flags = self.random.below(2) as u32 * 77;
        let cas = self.model.entries.get(key).and_then(|entry| entry.cas).unwrap_or(1);
        let mode = match self.random.below(10) {
            0 => Mode::Add,
            1 => Mode::Replace,
            2 => Mode::Append,
            3 => Mode::Prepend,
            _ => Mode::Set,
        };
        let cas = match self.random.below(10) {
            0 if mode == Mode::Set => Some(cas),
            1 if mode == Mode::Set => Some(cas.wrapping_add(1)),
            _ => None,
        };
        let item = NewItem { key, flags, exptime, value: &value, cas, ..NewItem::default() };
        let expected = self.model.store(mode, &item, self.now);
        assert_eq!(self.store.store(mode, &item, self.now), expected, "{mode:?} {cas:?}");
    }

    fn invalidate(&mut self, key: &[u8]) {
        let entry = self.store.entry(key, self.now);
        assert_eq!(entry.is_some(), self.model.entries.contains_key(key));
        if let Some(mut entry) = entry {
            entry.invalidate(None, None);
        }
        if let Some(entry) = self.model.entries.get_mut(key) {
            (entry.stale, entry.sent, entry.cas) = (true, false, None);
        }
    }

    fn renew(&mut self, key: &[u8]) {
        let standing = self.store.entry(key, self.now).map(|mut entry| entry.settle());
        let expected = self.model.entries.get_mut(key).map(|entry| {
            let (stale, sent) = (entry.stale, entry.sent);
            entry.sent |= stale;
            Standing { stale, sent, won: stale && !sent }
        });
        assert_eq!(standing, expected);
    }

    fn counting(&mut self, key: &[u8]) {
        let up = self.random.below(2) == 0;
        let delta = self.random.next() >> self.random.below(64);
        let counted = self.store.count(key, &Count { up, delta, cas: 0, new_cas: None }, self.now);
        assert_eq!(counted, self.model.count(key, up, delta));
    }

    /// Checks that after a full sweep the store's count equals the number of keys that can be read.
    fn check_books(&mut self) {
        self.store.sweep(100_000, self.now);
        self.model.settle(self.now);
        let counted = self.store.stats().items;
        let mut found = 0;
        for number in 0..self.keys {
            let key = self.numbered(number);
            found += u64::from(self.store.get(&key, self.now).is_some());
            self.compare(&key);
        }
        assert_eq!(counted, found);
    }
}

fn check(seed: u64, memory: usize, keys: u64, value_len_max: u64, forgets: bool) -> u64 {
    let mut pair = Pair::new(seed, memory, keys, value_len_max, forgets);
    for round in 0..20 {
        for _ in 0..4000 {
            pair.step();
        }
        pair.check_books();
        let stats = pair.store.stats();
        assert!(stats.bytes <= memory as u64, "round {round}");
        // Every forgotten item is counted.
        assert!(pair.forgotten <= stats.evictions, "round {round}: {} gone", pair.forgotten);
    }
    pair.forgotten
}

#[test]
fn with_ample_memory_nothing_is_forgotten() {
    for seed in 0..4 {
        check(seed, 16 << 20, 300, 600, false);
    }
}

#[test]
fn in_tight_memory_what_is_known_is_right() {
    for seed in 10..14 {
        assert!(check(seed, 256 << 10, 2000, 600, true) > 1000, "memory was not tight");
    }
}

#[test]
fn in_the_smallest_memory_large_values_push_out_small_ones() {
    for seed in 20..24 {
        assert!(check(seed, 64 << 10, 500, 5000, true) > 1000, "memory was not tight");
    }
}

#[test]
fn with_tiny_items_a_full_index_displaces() {
    for seed in 30..34 {
        assert!(check(seed, 64 << 10, 4000, 4, true) > 500, "the index was not full");
    }
}
