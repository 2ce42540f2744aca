//! The store: memcached's verbs over index, arena and rings. How room is made is in `room.rs`.

mod room;

use crate::clock::{self, NEVER};
use crate::hash::hash;
use crate::index::{Cursor, Index};
use crate::ring::Ring;
use crate::slot::{self, Arena, Head, WORD};
use crate::{KEY_LEN_MAX, MEMORY_MAX, MEMORY_MIN, number};

/// Items with memcached's rules in bounded memory. `now` is in seconds since 1970 and never falls.
pub struct Store {
    arena: Arena,
    index: Index,
    /// New items, a tenth of the arena.
    small: Ring,
    /// Items that were asked for, the rest.
    main: Ring,
    item_size_max: usize,
    last_cas: u64,
    /// Items with a lower cas were flushed.
    flushed_cas: u64,
    /// The second of a delayed flush; `u64::MAX` when there is none.
    flush_due: u64,
    /// Items that can be found and have an expiry: without any, nothing is swept.
    expiring: u64,
    /// An appended value on its way to a larger slot. Empty between calls.
    joined: Vec<u8>,
    stats: Stats,
}

/// What a read hands out; the value stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub flags: u32,
    /// Changes with every store and count, not with a touch.
    pub cas: u64,
    pub value: &'a [u8],
}

/// What a storage command brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewItem<'a> {
    /// 1 to 250 bytes; the protocol has seen to that.
    pub key: &'a [u8],
    pub flags: u32,
    /// As on the wire: 0 never, up to 30 days from now, above a date, negative at once.
    pub exptime: i64,
    pub value: &'a [u8],
}

/// When a new item is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Always.
    Set,
    /// Where there is none.
    Add,
    /// Where there is one.
    Replace,
    /// Behind the value there is, whose flags and expiry stay.
    Append,
    /// Before the value there is, whose flags and expiry stay.
    Prepend,
    /// Where the item still has this cas.
    Cas(u64),
}

/// What became of a new item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored,
    /// The condition of `Add`, `Replace`, `Append` or `Prepend` did not hold.
    NotStored,
    /// `Cas`: somebody has changed it since.
    Exists,
    /// `Cas`: it is gone.
    NotFound,
    /// Above `item_size_max`. After a `Set` the old item is gone too: nobody reads stale data.
    TooLarge,
    /// Above what this little memory can hold at once; otherwise like `TooLarge`.
    NoMemory,
}

/// What became of an `incr` or `decr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The new number.
    Now(u64),
    NotFound,
    /// The value is not a number of 64 bits.
    NonNumeric,
    NoMemory,
}

/// What the store counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items that can be found, or have expired unnoticed.
    pub items: u64,
    /// Bytes they take, heads included.
    pub bytes: u64,
    /// Items stored since the start.
    pub items_total: u64,
    /// Items dropped for room while they could still be found.
    pub evictions: u64,
    /// Expired and flushed items whose memory was taken back.
    pub reclaimed: u64,
}

/// Where an item was found.
struct Found {
    cursor: Cursor,
    at: u32,
    head: Head,
}

impl Store {
    /// A store that takes `memory_max` bytes, no more however it is used, and items up to
    /// `item_size_max` bytes (counted like memcached's `-I`, its 56 bytes of head included).
    pub fn new(memory_max: usize, item_size_max: usize) -> Store {
        let memory = memory_max.clamp(MEMORY_MIN, MEMORY_MAX);
        let pairs = memory / 12 / Index::PAIR_LEN;
        let words = ((memory - pairs * Index::PAIR_LEN) / WORD) as u32;
        let border = words / 10;
        Store {
            arena: Arena::new(words),
            index: Index::new(pairs),
            small: Ring::new(0, border),
            main: Ring::new(border, words),
            item_size_max,
            last_cas: 0,
            flushed_cas: 0,
            flush_due: u64::MAX,
            expiring: 0,
            joined: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Reads an item.
    pub fn get(&mut self, key: &[u8], now: u64) -> Option<Item<'_>> {
        let found = self.find(key, hash(key), now)?;
        Some(self.hand_out(&found))
    }

    /// Reads an item and gives it another expiry.
    pub fn get_and_touch(&mut self, key: &[u8], exptime: i64, now: u64) -> Option<Item<'_>> {
        let mut found = self.find(key, hash(key), now)?;
        self.set_expiry(&mut found, clock::deadline(exptime, now));
        Some(self.hand_out(&found))
    }

    /// Gives an item another expiry; false if there is none. Its cas stays.
    pub fn touch(&mut self, key: &[u8], exptime: i64, now: u64) -> bool {
        self.get_and_touch(key, exptime, now).is_some()
    }

    /// Stores an item under a condition.
    pub fn store(&mut self, mode: Mode, item: &NewItem<'_>, now: u64) -> Outcome {
        assert!((1..=KEY_LEN_MAX).contains(&item.key.len()), "a key has 1 to 250 bytes");
        if let Some(refusal) = self.refusal(item.key.len(), item.value.len(), item.flags) {
            if mode == Mode::Set {
                self.delete(item.key, now);
            }
            return refusal;
        }
        let hash = hash(item.key);
        match (mode, self.find(item.key, hash, now)) {
            (Mode::Add, Some(found)) => {
                self.arena.ask(found.at);
                Outcome::NotStored
            }
            (Mode::Replace | Mode::Append | Mode::Prepend, None) => Outcome::NotStored,
            (Mode::Cas(_), None) => Outcome::NotFound,
            (Mode::Cas(cas), Some(found)) if found.head.cas != cas => Outcome::Exists,
            (Mode::Append | Mode::Prepend, Some(found)) => self.extend(mode, &found, item, now),
            (Mode::Set | Mode::Replace | Mode::Cas(_), Some(found)) => {
                let expires = clock::deadline(item.exptime, now);
                self.overwrite(&found, item, expires, now);
                Outcome::Stored
            }
            (Mode::Set | Mode::Add, None) => {
                let to_main = self.index.exorcise(hash);
                let expires = clock::deadline(item.exptime, now);
                self.insert(item, expires, to_main, 0, now);
                Outcome::Stored
            }
        }
    }

    /// Drops an item; false if there is none.
    pub fn delete(&mut self, key: &[u8], now: u64) -> bool {
        let Some(found) = self.find(key, hash(key), now) else { return false };
        self.index.remove(found.cursor);
        self.retire(found.at, found.head);
        true
    }

    /// Adds to a number; beyond 64 bits it begins again at 0.
    pub fn incr(&mut self, key: &[u8], delta: u64, now: u64) -> Counted {
        self.count(key, |number| number.wrapping_add(delta), now)
    }

    /// Subtracts from a number; it stops at 0.
    pub fn decr(&mut self, key: &[u8], delta: u64, now: u64) -> Counted {
        self.count(key, |number| number.saturating_sub(delta), now)
    }

    /// Drops all items that exist at the moment `delay` names: 0 or less now, otherwise like an
    /// exptime, one second earlier, as memcached does it. The last flush asked for counts.
    pub fn flush_all(&mut self, delay: i64, now: u64) {
        self.notice(now);
        self.flush_due = match delay {
            ..=0 => now,
            _ => u64::from(clock::deadline(delay, now)) - 1,
        };
        self.notice(now);
    }

    /// Looks at up to `slots` slots for expired items. For a caller with nothing better to do;
    /// under load the store does as much by itself.
    pub fn sweep(&mut self, slots: usize, now: u64) {
        self.notice(now);
        for _ in 0..slots {
            if self.expiring == 0 {
                break;
            }
            self.sweep_step(now);
        }
    }

    pub fn stats(&self) -> Stats {
        let words = u64::from(self.small.live()) + u64::from(self.main.live());
        Stats { bytes: words * WORD as u64, ..self.stats }
    }

    /// An item that can be found: one that is there, and neither expired nor flushed.
    fn find(&mut self, key: &[u8], hash: u64, now: u64) -> Option<Found> {
        self.notice(now);
        let (cursor, at) = self.index.find(hash, |at| self.arena.has_key(at, key))?;
        let head = self.arena.head(at);
        if self.is_gone(&head, now) {
            self.index.remove(cursor);
            self.reclaim(at, head);
            return None;
        }
        Some(Found { cursor, at, head })
    }

    fn hand_out(&mut self, found: &Found) -> Item<'_> {
        self.arena.ask(found.at);
        let Head { flags, cas, .. } = found.head;
        Item { flags, cas, value: self.arena.value(found.at, &found.head) }
    }

    fn set_expiry(&mut self, found: &mut Found, expires: u32) {
        self.expiring -= u64::from(found.head.expires != NEVER);
        self.expiring += u64::from(expires != NEVER);
        found.head.expires = expires;
        self.arena.set_head(found.at, &found.head);
    }

    /// Writes over an item: in its slot where that fits well, otherwise in a new one.
    fn overwrite(&mut self, found: &Found, item: &NewItem<'_>, expires: u32, now: u64) {
        let asked = found.head.asked() + 1;
        let words = slot::words(item.key.len(), item.value.len());
        let spare = found.head.words.checked_sub(words);
        if spare.is_none_or(|spare| spare > found.head.words / 8) {
            let in_main = self.main.contains(found.at);
            self.index.remove(found.cursor);
            self.retire(found.at, found.head);
            return self.insert(item, expires, in_main, asked, now);
        }
        self.expiring -= u64::from(found.head.expires != NEVER);
        self.expiring += u64::from(expires != NEVER);
        let mut head = self.new_head(item, expires);
        head.words = found.head.words;
        head.set_asked(asked);
        self.arena.write(found.at, &head, item.key, item.value);
    }

    /// Appends or prepends.
    fn extend(&mut self, mode: Mode, found: &Found, item: &NewItem<'_>, now: u64) -> Outcome {
        let mut head = found.head;
        let (old, new) = (head.value_len as usize, item.value.len());
        // memcached's word for a value that has grown too large: the condition did not hold.
        if self.refusal(item.key.len(), old + new, head.flags).is_some() {
            return Outcome::NotStored;
        }
        if old + new > head.value_room() {
            self.extend_elsewhere(mode, found, item, now);
            return Outcome::Stored;
        }
        head.value_len = (old + new) as u32;
        head.cas = self.next_cas();
        self.arena.set_head(found.at, &head);
        self.arena.ask(found.at);
        let room = self.arena.value_room_mut(found.at, &head);
        let (from, to) = if mode == Mode::Append { (0, old) } else { (new, 0) };
        room.copy_within(0..old, from);
        room[to..to + new].copy_from_slice(item.value);
        Outcome::Stored
    }

    /// The joined value needs a larger slot, and making room may move the old one: join first.
    fn extend_elsewhere(&mut self, mode: Mode, found: &Found, item: &NewItem<'_>, now: u64) {
        const KEEP: usize = 16 * 1024;
        let mut joined = std::mem::take(&mut self.joined);
        let old = self.arena.value(found.at, &found.head);
        let (first, second) =
            if mode == Mode::Append { (old, item.value) } else { (item.value, old) };
        joined.extend_from_slice(first);
        joined.extend_from_slice(second);
        let whole = NewItem { flags: found.head.flags, value: &joined, ..*item };
        self.overwrite(found, &whole, found.head.expires, now);
        joined.clear();
        joined.shrink_to(KEEP);
        self.joined = joined;
    }

    fn count(&mut self, key: &[u8], change: impl Fn(u64) -> u64, now: u64) -> Counted {
        let Some(found) = self.find(key, hash(key), now) else { return Counted::NotFound };
        let Some(old) = number::parse(self.arena.value(found.at, &found.head)) else {
            return Counted::NonNumeric;
        };
        let number = change(old);
        let mut digits = [0; number::DIGITS_MAX];
        let value = number::format(number, &mut digits);
        let mut head = found.head;
        if value.len() > head.value_len as usize {
            if self.refusal(key.len(), value.len(), head.flags).is_some() {
                return Counted::NoMemory;
            }
            let item = NewItem { key, flags: head.flags, exptime: 0, value };
            self.overwrite(&found, &item, head.expires, now);
            return Counted::Now(number);
        }
        // A number that has become shorter keeps its length, padded with spaces.
        head.cas = self.next_cas();
        self.arena.set_head(found.at, &head);
        self.arena.ask(found.at);
        let room = &mut self.arena.value_room_mut(found.at, &head)[..head.value_len as usize];
        room[..value.len()].copy_from_slice(value);
        room[value.len()..].fill(b' ');
        Counted::Now(number)
    }

    /// Why an item of that size cannot be stored.
    fn refusal(&self, key_len: usize, value_len: usize, flags: u32) -> Option<Outcome> {
        // memcached counts its head, a cas, the key's NUL, the value's line end, and flags other
        // than 0: counted alike, what fits there fits here and the other way round.
        let flags_len = if flags == 0 { 0 } else { 4 };
        if value_len > self.item_size_max
            || 48 + 8 + key_len + 1 + flags_len + value_len + 2 > self.item_size_max
        {
            return Some(Outcome::TooLarge);
        }
        let words_max = self.main.capacity() / 2;
        (slot::words(key_len, value_len) > words_max).then_some(Outcome::NoMemory)
    }

    fn new_head(&mut self, item: &NewItem<'_>, expires: u32) -> Head {
        self.stats.items_total += 1;
        let cas = self.next_cas();
        Head::new(item.key, item.value.len(), item.flags, expires, cas)
    }

    fn next_cas(&mut self) -> u64 {
        self.last_cas += 1;
        self.last_cas
    }

    /// Lets a flush happen whose time has come.
    fn notice(&mut self, now: u64) {
        if now < self.flush_due {
            return;
        }
        self.flush_due = u64::MAX;
        self.flushed_cas = self.next_cas();
        // Their slots are found dead one by one; the books forget them at once.
        self.small.bury_all();
        self.main.bury_all();
        self.expiring = 0;
        self.stats.items = 0;
    }

    fn is_gone(&self, head: &Head, now: u64) -> bool {
        head.cas < self.flushed_cas || head.is_expired(now)
    }
}
