//! The store: memcached's verbs over index, arena and rings. How room is made is in `room.rs`; what
//! is done to an item that was found is in `entry.rs`.

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
    /// Items that were asked for, the rest.
    main: Ring,
    item_size_max: usize,
    /// The cas that an item was given last, and the last one that was a number in order.
    last_cas: u64,
    last_number: u64,
    /// Items of another epoch were flushed.
    epoch: u16,
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
    /// The second since 1970 from which on it is gone, if there is one.
    pub expires: Option<u32>,
    /// The second in which it was stored or, until now, last read.
    pub accessed: u32,
    /// Somebody has read it before.
    pub fetched: bool,
    /// Its key came as base64 and goes out so.
    pub binary: bool,
    pub value: &'a [u8],
}

/// What a storage command brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewItem<'a> {
    /// 1 to 250 bytes; the protocol has seen to that.
    pub key: &'a [u8],
    pub flags: u32,
    /// As on the wire: 0 never, up to 30 days from now, above a date, negative at once.
    pub exptime: i64,
    pub value: &'a [u8],
    /// The key came as base64 and goes out so.
    pub binary: bool,
    /// Only an item that still has this cas is changed.
    pub cas: Option<u64>,
    /// With `cas`: an item that has changed since is overwritten too, but is stale afterwards.
    pub even_stale: bool,
    /// The cas it is to have, instead of the next number.
    pub new_cas: Option<u64>,
}

/// When a new item is taken. A `cas` in the item is one more condition; `Add` knows none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Always; with a `cas` where there is one.
    Set,
    /// Where there is none.
    Add,
    /// Where there is one.
    Replace,
    /// Behind the value there is, whose flags and expiry stay.
    Append,
    /// Before the value there is, whose flags and expiry stay.
    Prepend,
}

/// What became of a new item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored,
    /// The condition of `Add`, `Replace`, `Append` or `Prepend` did not hold.
    NotStored,
    /// It has another cas.
    Exists,
    /// `Set` or `Replace` with a cas: it is gone.
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
    /// It has another cas.
    Exists,
    /// The value is not a number of 64 bits.
    NonNumeric,
    NoMemory,
}

/// What an `incr` or `decr` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Upwards, beyond 64 bits beginning again at 0; otherwise downwards, stopping at 0.
    pub up: bool,
    pub delta: u64,
    /// The cas it must still have; memcached takes a 0 for none.
    pub cas: u64,
    /// The cas it is to have, instead of the next number.
    pub new_cas: Option<u64>,
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

    /// Reads an item and gives it another expiry.
    pub fn get_and_touch(&mut self, key: &[u8], exptime: i64, now: u64) -> Option<Item<'_>> {
        let mut found = self.find(key, hash(key), now)?;
        self.set_expiry(&mut found, clock::deadline(exptime, now));
        self.arena.ask(found.at, FETCHED, now as u32);
        Some(self.item(&found))
    }

    /// Gives an item another expiry; false if there is none. Its cas stays.
    pub fn touch(&mut self, key: &[u8], exptime: i64, now: u64) -> bool {
        self.get_and_touch(key, exptime, now).is_some()
    }

    /// Finds an item for whatever is done to it; by itself that is no read of it.
    pub fn entry<'a>(&'a mut self, key: &'a [u8], now: u64) -> Option<Entry<'a>> {
        let found = self.find(key, hash(key), now)?;
        Some(Entry::new(self, key, found, now, false))
    }

    /// Finds an item, or makes it as described: the entry knows. None without memory for it.
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

    /// Stores an item under a condition.
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

    /// Lets cas numbers begin above this one, and so above those of a store that was here before.
    pub fn number_from(&mut self, number: u64) {
        self.last_number = number;
    }

    /// The cas that was given last: after a store or a count, that item's.
    pub fn last_cas(&self) -> u64 {
        self.last_cas
    }

    /// Drops an item; false if there is none.
    pub fn delete(&mut self, key: &[u8], now: u64) -> bool {
        let Some(found) = self.find(key, hash(key), now) else { return false };
        self.remove(&found);
        true
    }

    /// Adds to a number or subtracts from it.
    pub fn count(&mut self, key: &[u8], count: &Count, now: u64) -> Counted {
        self.entry(key, now).map_or(Counted::NotFound, |mut entry| entry.count(count))
    }

    /// Drops all items that exist at the moment `delay` names: 0 or less now, otherwise like an
    /// exptime, one second earlier, as memcached does it. The last flush asked for counts.
    pub fn flush_all(&mut self, delay: i64, now: u64) {
        // In its own second an earlier flush is replaced; what that has dropped is gone.
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
        let found = self.lookup(key, hash)?;
        if self.is_gone(&found.head, now) {
            self.index.remove(found.cursor);
            self.reclaim(found.at, found.head);
            return None;
        }
        Some(found)
    }

    /// An item that is there, perhaps for the last time.
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

    /// Stores an item where there is one already.
    fn store_over(&mut self, mode: Mode, found: &Found, item: &NewItem<'_>, now: u64) -> Outcome {
        if mode == Mode::Add {
            self.arena.ask(found.at, 0, now as u32);
            return Outcome::NotStored;
        }
        let old = &found.head;
        let adds = matches!(mode, Mode::Append | Mode::Prepend);
        // memcached takes a cas of 0 for none where something is added to a value.
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

    /// Writes over an item: in its slot where that fits well, otherwise in a new one.
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
        // memcached's word for a value that has grown too large: the condition did not hold.
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

    /// The joined value needs a larger slot, and making room may move the old one: join first.
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

    /// Why an item of that size cannot be stored.
    fn refusal(&self, key_len: usize, value_len: usize, flags: u32) -> Option<Outcome> {
        // memcached counts its head, a cas, the key's NUL, the value's line end, and flags other
        // than 0: counted alike, what fits there fits here and the other way round.
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

    /// The head of an item that is written anew, with flags and expiry as they were.
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

    /// Lets a flush happen whose time has come.
    fn notice(&mut self, now: u64) {
        if now < self.flush_due {
            return;
        }
        // memcached's clock has whole seconds: what is stored in that second goes, too.
        if now > self.flush_due {
            self.flush_due = u64::MAX;
        }
        self.flush();
    }

    /// Their slots are found dead one by one; the books forget them at once.
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
            // Items of the first epochs may still lie somewhere, and would come to life.
            self.index.clear();
            self.small = Ring::new(0, self.small.capacity());
            self.main = Ring::new(self.small.capacity(), self.main.end());
        }
    }

    fn is_gone(&self, head: &Head, now: u64) -> bool {
        head.epoch != self.epoch || head.is_expired(now)
    }
}
