//! The store: memcached's commands over index, arena and rings. `room.rs` makes room; `entry.rs`
//! has the operations on an item that was found.

mod entry;
mod room;

use crate::clock::{self, NEVER};
use crate::hash::hash;
use crate::index::{Cursor, Index};
use crate::ring::Ring;
use crate::slot::{self, Arena, BINARY, FETCHED, Head, STALE, TOKEN, WORD};
use crate::{KEY_LEN_MAX, MEMORY_MAX, MEMORY_MIN};

pub use entry::{Entry, Standing};

/// Items with memcached's rules in bounded memory. `now` is in seconds since 1970 and never falls.
pub struct Store {
    arena: Arena,
    index: Index,
    /// New items, a tenth of the arena.
    small: Ring,
    /// Items that were requested again, the rest.
    main: Ring,
    item_size_max: usize,
    /// The cas number given last, and the last one from the sequence.
    last_cas: u64,
    last_number: u64,
    /// Epoch of the store. Items of another epoch were flushed.
    epoch: u16,
    /// The second of a delayed flush; `u64::MAX` if there is none.
    flush_due: u64,
    /// Number of items that can be found and have an expiry. The sweep runs only if there are any.
    expiring: u64,
    /// Buffer for an appended value that moves to a larger slot. Empty between calls.
    joined: Vec<u8>,
    stats: Stats,
}

/// An item as a read returns it; the value is not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub flags: u32,
    /// Changes with every store and count, not with a touch.
    pub cas: u64,
    /// The second since 1970 at which it expires, if it does.
    pub expires: Option<u32>,
    /// The second in which it was stored or, before this request, last read.
    pub accessed: u32,
    /// A client has read it before.
    pub fetched: bool,
    /// The key was received as base64 and is sent as base64.
    pub binary: bool,
    pub value: &'a [u8],
}

/// The arguments of a storage command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewItem<'a> {
    /// 1 to 250 bytes; the protocol's parser has checked this.
    pub key: &'a [u8],
    pub flags: u32,
    /// As on the wire: 0 never, up to 30 days from now, above that a date, negative at once.
    pub exptime: i64,
    pub value: &'a [u8],
    /// The key was received as base64.
    pub binary: bool,
    /// If given, only an item that still has this cas is changed.
    pub cas: Option<u64>,
    /// With `cas`: an item that has changed since is also overwritten, but is stale afterwards.
    pub even_stale: bool,
    /// The cas of the stored item, instead of the next number.
    pub new_cas: Option<u64>,
}

/// The condition for a store. A `cas` in the item is one more condition; `Add` ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Store always; with a `cas`, only if the item exists.
    Set,
    /// Store only if the key does not exist.
    Add,
    /// Store only if the key exists.
    Replace,
    /// Add after the existing value; flags and expiry stay.
    Append,
    /// Add before the existing value; flags and expiry stay.
    Prepend,
}

/// The result of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored,
    /// The condition of `Add`, `Replace`, `Append` or `Prepend` did not hold.
    NotStored,
    /// The item has another cas.
    Exists,
    /// `Set` or `Replace` with a cas: the item is gone.
    NotFound,
    /// Above `item_size_max`. After a `Set` the old item is gone too: nobody reads stale data.
    TooLarge,
    /// The item is larger than this small memory can hold at once; otherwise like `TooLarge`.
    NoMemory,
}

/// The result of an `incr` or `decr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The new number.
    Now(u64),
    NotFound,
    /// The item has another cas.
    Exists,
    /// The value is not a number of 64 bits.
    NonNumeric,
    NoMemory,
}

/// The arguments of an `incr` or `decr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// True increments, wrapping to 0 beyond 64 bits; false decrements, stopping at 0.
    pub up: bool,
    pub delta: u64,
    /// The cas that the item must still have; as in memcached, 0 means none.
    pub cas: u64,
    /// The cas of the changed item, instead of the next number.
    pub new_cas: Option<u64>,
}

/// Counters of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items that can be found, or that have expired and are not removed yet.
    pub items: u64,
    /// Bytes of those items, heads included.
    pub bytes: u64,
    /// Items stored since the start.
    pub items_total: u64,
    /// Items evicted while they could still be found.
    pub evictions: u64,
    /// Expired and flushed items whose memory was reclaimed.
    pub reclaimed: u64,
}

/// The place and head of an item that was found.
struct Found {
    cursor: Cursor,
    at: u32,
    head: Head,
}

impl Store {
    /// Makes a store that never takes more than `memory_max` bytes and accepts items up to
    /// `item_size_max` bytes (counted like memcached's `-I`, which includes 56 bytes of head).
    pub fn new(memory_max: usize, item_size_max: usize) -> Store {
        let memory = memory_max.clamp(MEMORY_MIN, MEMORY_MAX);
        let pairs = memory / 10 / Index::PAIR_LEN;
        let words = ((memory - pairs * Index::PAIR_LEN) / WORD) as u32;
        let border = words / 10;
        Store {
            arena: Arena::new(words),
            index: Index::new(pairs),
            small: Ring::new(0, border),
            main: Ring::new(border, words),
            item_size_max,
            last_cas: 0,
            last_number: 0,
            epoch: 0,
            flush_due: u64::MAX,
            expiring: 0,
            joined: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Reads an item.
    pub fn get(&mut self, key: &[u8], now: u64) -> Option<Item<'_>> {
        let found = self.find(key, hash(key), now)?;
        self.arena.ask(found.at, FETCHED, now as u32);
        Some(self.item(&found))
    }

    /// Reads an item and changes its expiry.
    pub fn get_and_touch(&mut self, key: &[u8], exptime: i64, now: u64) -> Option<Item<'_>> {
        let mut found = self.find(key, hash(key), now)?;
        self.set_expiry(&mut found, clock::deadline(exptime, now));
        self.arena.ask(found.at, FETCHED, now as u32);
        Some(self.item(&found))
    }

    /// Changes an item's expiry; returns false if there is none. Its cas stays.
    pub fn touch(&mut self, key: &[u8], exptime: i64, now: u64) -> bool {
        self.get_and_touch(key, exptime, now).is_some()
    }

    /// Finds an item for further operations. Finding alone does not count as a read.
    pub fn entry<'a>(&'a mut self, key: &'a [u8], now: u64) -> Option<Entry<'a>> {
        let found = self.find(key, hash(key), now)?;
        Some(Entry::new(self, key, found, now, false))
    }

    /// Finds an item, or creates it as described; the entry says which. None if there is no memory.
    pub fn entry_or_create<'a>(&'a mut self, item: &NewItem<'a>, now: u64) -> Option<Entry<'a>> {
        let hash = hash(item.key);
        if let Some(found) = self.find(item.key, hash, now) {
            return Some(Entry::new(self, item.key, found, now, false));
        }
        if self.store(Mode::Add, item, now) != Outcome::Stored {
            return None;
        }
        let found = self.lookup(item.key, hash).expect("it was just entered");
        Some(Entry::new(self, item.key, found, now, true))
    }

    /// Stores an item if the condition of `mode` holds.
    pub fn store(&mut self, mode: Mode, item: &NewItem<'_>, now: u64) -> Outcome {
        assert!((1..=KEY_LEN_MAX).contains(&item.key.len()), "a key has 1 to 250 bytes");
        if let Some(refusal) = self.refusal(item.key.len(), item.value.len(), item.flags) {
            if mode == Mode::Set && item.cas.is_none() {
                self.delete(item.key, now);
            }
            return refusal;
        }
        let hash = hash(item.key);
        match self.find(item.key, hash, now) {
            Some(found) => self.store_over(mode, &found, item, now),
            None if matches!(mode, Mode::Append | Mode::Prepend) => Outcome::NotStored,
            None if mode != Mode::Add && item.cas.is_some() => Outcome::NotFound,
            None if mode == Mode::Replace => Outcome::NotStored,
            None => {
                let to_main = self.index.exorcise(hash);
                let head = self.new_head(item, clock::deadline(item.exptime, now), now);
                self.insert(head, item.key, item.value, to_main, now);
                Outcome::Stored
            }
        }
    }

    /// Makes cas numbers begin above this one, and so above those of the store before a restart.
    pub fn number_from(&mut self, number: u64) {
        self.last_number = number;
    }

    /// Returns the cas given last: after a store or a count, that of the item.
    pub fn last_cas(&self) -> u64 {
        self.last_cas
    }

    /// Removes an item; returns false if there is none.
    pub fn delete(&mut self, key: &[u8], now: u64) -> bool {
        let Some(found) = self.find(key, hash(key), now) else { return false };
        self.remove(&found);
        true
    }

    /// Adds to a number or subtracts from it.
    pub fn count(&mut self, key: &[u8], count: &Count, now: u64) -> Counted {
        self.entry(key, now).map_or(Counted::NotFound, |mut entry| entry.count(count))
    }

    /// Removes all items that exist at the moment `delay` names: 0 or less is now, otherwise an
    /// exptime, one second earlier, as in memcached. A later call replaces an earlier one.
    pub fn flush_all(&mut self, delay: i64, now: u64) {
        // A flush that is due in this second is replaced; items that it has removed are gone.
        if now > self.flush_due {
            self.notice(now);
        }
        self.flush_due = u64::MAX;
        if delay <= 0 {
            return self.flush();
        }
        self.flush_due = u64::from(clock::deadline(delay, now)) - 1;
        self.notice(now);
    }

    /// Checks up to `slots` slots for expired items. A caller with nothing better to do may call
    /// it; under load the store sweeps by itself.
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

    /// Returns an item that exists and is neither expired nor flushed.
    fn find(&mut self, key: &[u8], hash: u64, now: u64) -> Option<Found> {
        self.notice(now);
        let found = self.lookup(key, hash)?;
        if self.is_gone(&found.head, now) {
            self.index.remove(found.cursor);
            self.reclaim(found.at, found.head);
            return None;
        }
        Some(found)
    }

    /// Returns an item that exists, even if it is expired or flushed.
    fn lookup(&self, key: &[u8], hash: u64) -> Option<Found> {
        let (cursor, at) = self.index.find(hash, |at| self.arena.has_key(at, key))?;
        Some(Found { cursor, at, head: self.arena.head(at) })
    }

    fn item(&self, found: &Found) -> Item<'_> {
        let head = &found.head;
        Item {
            flags: head.flags,
            cas: head.cas,
            expires: (head.expires != NEVER).then_some(head.expires),
            accessed: head.accessed,
            fetched: head.has(FETCHED),
            binary: head.has(BINARY),
            value: self.arena.value(found.at, head),
        }
    }

    fn remove(&mut self, found: &Found) {
        self.index.remove(found.cursor);
        self.retire(found.at, found.head);
    }

    fn set_expiry(&mut self, found: &mut Found, expires: u32) {
        self.expiring -= u64::from(found.head.expires != NEVER);
        self.expiring += u64::from(expires != NEVER);
        found.head.expires = expires;
        self.arena.set_head(found.at, &found.head);
    }

    /// Stores over an existing item.
    fn store_over(&mut self, mode: Mode, found: &Found, item: &NewItem<'_>, now: u64) -> Outcome {
        if mode == Mode::Add {
            self.arena.ask(found.at, 0, now as u32);
            return Outcome::NotStored;
        }
        let old = &found.head;
        let adds = matches!(mode, Mode::Append | Mode::Prepend);
        // memcached treats a cas of 0 as none when it appends or prepends.
        let differs = item.cas.is_some_and(|cas| cas != old.cas && !(adds && cas == 0));
        let is_older = item.cas.is_some_and(|cas| 0 < cas && cas < old.cas);
        if differs && !(item.even_stale && is_older && !adds) {
            return Outcome::Exists;
        }
        if adds {
            return self.extend(mode, found, item, now);
        }
        let mut head = self.new_head(item, clock::deadline(item.exptime, now), now);
        if differs {
            head.expires = old.expires;
            head.put(STALE, true);
            head.put(TOKEN, old.has(TOKEN));
        }
        self.overwrite(found, head, item.key, item.value, now);
        Outcome::Stored
    }

    /// Overwrites an item: in its slot if it fits well, otherwise in a new one.
    fn overwrite(&mut self, found: &Found, mut head: Head, key: &[u8], value: &[u8], now: u64) {
        head.set_asked(found.head.asked() + 1);
        let spare = found.head.words.checked_sub(head.words);
        if spare.is_none_or(|spare| spare > found.head.words / 8) {
            let in_main = self.main.contains(found.at);
            self.remove(found);
            return self.insert(head, key, value, in_main, now);
        }
        self.expiring -= u64::from(found.head.expires != NEVER);
        self.expiring += u64::from(head.expires != NEVER);
        head.words = found.head.words;
        self.arena.write(found.at, &head, key, value);
    }

    /// Appends or prepends.
    fn extend(&mut self, mode: Mode, found: &Found, item: &NewItem<'_>, now: u64) -> Outcome {
        let (old, new) = (found.head.value_len as usize, item.value.len());
        // memcached's reply for a value that has grown too large is that of a failed condition.
        if self.refusal(item.key.len(), old + new, found.head.flags).is_some() {
            return Outcome::NotStored;
        }
        let mut head = self.renewed(&found.head, item.new_cas, now);
        if old + new > head.value_room() {
            self.extend_elsewhere(mode, found, head, item, now);
            return Outcome::Stored;
        }
        head.value_len = (old + new) as u32;
        self.arena.set_head(found.at, &head);
        let room = self.arena.value_room_mut(found.at, &head);
        let (from, to) = if mode == Mode::Append { (0, old) } else { (new, 0) };
        room.copy_within(0..old, from);
        room[to..to + new].copy_from_slice(item.value);
        self.arena.ask(found.at, 0, now as u32);
        Outcome::Stored
    }

    /// Extends a value into a larger slot. Making room may move the old slot, so it joins first.
    fn extend_elsewhere(
        &mut self,
        mode: Mode,
        found: &Found,
        head: Head,
        item: &NewItem<'_>,
        now: u64,
    ) {
        const KEEP: usize = 16 * 1024;
        let mut joined = std::mem::take(&mut self.joined);
        let old = self.arena.value(found.at, &found.head);
        let (first, second) =
            if mode == Mode::Append { (old, item.value) } else { (item.value, old) };
        joined.extend_from_slice(first);
        joined.extend_from_slice(second);
        self.overwrite(found, head.resized(joined.len()), item.key, &joined, now);
        joined.clear();
        joined.shrink_to(KEEP);
        self.joined = joined;
    }

    /// Returns the reason why an item of that size cannot be stored.
    fn refusal(&self, key_len: usize, value_len: usize, flags: u32) -> Option<Outcome> {
        // memcached counts its head, a cas, the key's NUL, the value's line end, and flags other
        // than 0. Counting alike makes both accept exactly the same items.
        let flags_len = if flags == 0 { 0 } else { 4 };
        if 48 + 8 + key_len + 1 + flags_len + value_len + 2 > self.item_size_max {
            return Some(Outcome::TooLarge);
        }
        let words_max = self.main.capacity() / 2;
        (slot::words(key_len, value_len) > words_max).then_some(Outcome::NoMemory)
    }

    fn new_head(&mut self, item: &NewItem<'_>, expires: u32, now: u64) -> Head {
        self.stats.items_total += 1;
        let mut head = Head::new(item.key.len(), item.value.len());
        head.flags = item.flags;
        head.expires = expires;
        head.accessed = now as u32;
        head.epoch = self.epoch;
        head.cas = self.next_cas(item.new_cas);
        head.put(BINARY, item.binary);
        head
    }

    /// Returns the head for an item that is rewritten, with flags and expiry as they were.
    fn renewed(&mut self, old: &Head, new_cas: Option<u64>, now: u64) -> Head {
        self.stats.items_total += 1;
        let mut head = *old;
        head.accessed = now as u32;
        head.cas = self.next_cas(new_cas);
        head.clear_marks();
        head
    }

    fn next_cas(&mut self, asked: Option<u64>) -> u64 {
        self.last_number += u64::from(asked.is_none());
        self.last_cas = asked.unwrap_or(self.last_number);
        self.last_cas
    }

    /// Performs a delayed flush whose time has come.
    fn notice(&mut self, now: u64) {
        if now < self.flush_due {
            return;
        }
        // memcached's clock has whole seconds: items stored in that second are flushed too.
        if now > self.flush_due {
            self.flush_due = u64::MAX;
        }
        self.flush();
    }

    /// Forgets all items in the accounting at once; their slots are found dead one by one.
    fn flush(&mut self) {
        if self.stats.items == 0 {
            return;
        }
        self.small.bury_all();
        self.main.bury_all();
        self.expiring = 0;
        self.stats.items = 0;
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            // Items of the first epochs may still lie in the arena, and would become visible again.
            self.index.clear();
            self.small = Ring::new(0, self.small.capacity());
            self.main = Ring::new(self.small.capacity(), self.main.end());
        }
    }

    fn is_gone(&self, head: &Head, now: u64) -> bool {
        head.epoch != self.epoch || head.is_expired(now)
    }
}
