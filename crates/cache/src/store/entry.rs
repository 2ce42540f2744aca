//! Operations on one item within one request of a meta command, in the command's order.
//!
//! # Stale items and their renewal
//!
//! A reader that *wins* is asked to renew the item. A token in the item records it, so that the
//! others need not.
//!
//! ```text
//!   made by a read that missed ──▶ that reader wins ──────────┐
//!   close to its end ──▶ the next reader that asks wins ──────┼──▶ token sent: nobody wins
//!   invalidated: stale, no token ──▶ the next reader wins ────┘         │
//!                    ▲                                                  │
//!                    └────────────── invalidated again ─────────────────┘
//! ```
//!
//! Any store makes the item fresh and removes the token.

use super::{Count, Counted, Found, Item, Outcome, Store};
use crate::clock::{self, NEVER};
use crate::hash::hash;
use crate::number;
use crate::slot::{FETCHED, STALE, TOKEN};

/// An item that was found or created.
pub struct Entry<'a> {
    store: &'a mut Store,
    key: &'a [u8],
    found: Found,
    now: u64,
    created: bool,
    won: bool,
}

/// The renewal state of an item, as sent to a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Another reader was asked to renew it.
    pub sent: bool,
    /// It was invalidated.
    pub stale: bool,
    /// This reader has to renew it.
    pub won: bool,
}

impl<'a> Entry<'a> {
    pub(super) fn new(
        store: &'a mut Store,
        key: &'a [u8],
        found: Found,
        now: u64,
        created: bool,
    ) -> Entry<'a> {
        Entry { store, key, found, now, created, won: false }
    }

    /// Returns the item as it is. This does not count as a read; see `read`.
    pub fn item(&self) -> Item<'_> {
        self.store.item(&self.found)
    }

    /// Returns whether this request has created it.
    pub fn is_created(&self) -> bool {
        self.created
    }

    /// Changes its expiry.
    pub fn touch(&mut self, exptime: i64) {
        self.store.set_expiry(&mut self.found, clock::deadline(exptime, self.now));
    }

    /// Lets this reader win if it has created the item; the item then lasts `exptime`.
    pub fn win_created(&mut self, exptime: i64) {
        if self.created {
            self.touch(exptime);
            self.won = true;
        }
    }

    /// Lets this reader win if the item expires within so many seconds and nobody has won.
    pub fn win_expiring(&mut self, seconds: i64) {
        let expires = self.found.head.expires;
        let ends = expires != NEVER && expires < clock::deadline(seconds, self.now);
        self.won |= ends && !self.created && !self.found.head.has(TOKEN);
    }

    /// Returns the renewal state and records a win. A later call therefore returns another state.
    pub fn settle(&mut self) -> Standing {
        let head = &mut self.found.head;
        let (sent, stale) = (head.has(TOKEN), head.has(STALE));
        let won = self.won || (stale && !sent);
        if won && !sent {
            head.put(TOKEN, true);
            self.store.arena.set_head(self.found.at, head);
        }
        Standing { sent, stale, won }
    }

    /// Counts as a read: the item lives longer and is marked as fetched.
    pub fn read(self) {
        self.store.arena.ask(self.found.at, FETCHED, self.now as u32);
    }

    /// Marks the item as stale but readable: the next reader has to renew it.
    pub fn invalidate(&mut self, exptime: Option<i64>, new_cas: Option<u64>) {
        if let Some(exptime) = exptime {
            self.touch(exptime);
        }
        let head = &mut self.found.head;
        head.put(STALE, true);
        head.put(TOKEN, false);
        head.cas = self.store.next_cas(new_cas);
        self.store.arena.set_head(self.found.at, head);
    }

    /// Removes it.
    pub fn remove(self) {
        self.store.remove(&self.found);
    }

    /// Adds to its number or subtracts from it.
    pub fn count(&mut self, count: &Count) -> Counted {
        let value = self.store.arena.value(self.found.at, &self.found.head);
        if value.is_empty() {
            return Counted::NonNumeric;
        }
        if count.cas != 0 && count.cas != self.found.head.cas {
            return Counted::Exists;
        }
        let Some(old) = number::parse(value) else { return Counted::NonNumeric };
        let number =
            if count.up { old.wrapping_add(count.delta) } else { old.saturating_sub(count.delta) };
        let mut digits = [0; number::DIGITS_MAX];
        let digits = number::format(number, &mut digits);
        if digits.len() > value.len() {
            return self.grow(digits, number, count.new_cas);
        }
        self.overwrite_digits(digits, count.new_cas);
        Counted::Now(number)
    }

    /// Overwrites the number in place. A shorter number keeps its length, padded with spaces.
    fn overwrite_digits(&mut self, digits: &[u8], new_cas: Option<u64>) {
        let Found { at, head, .. } = &mut self.found;
        head.cas = self.store.next_cas(new_cas);
        let arena = &mut self.store.arena;
        arena.set_head(*at, head);
        arena.ask(*at, 0, self.now as u32);
        let room = &mut arena.value_room_mut(*at, head)[..head.value_len as usize];
        room[..digits.len()].copy_from_slice(digits);
        room[digits.len()..].fill(b' ');
    }

    /// Stores a longer number as a new item, as memcached does.
    fn grow(&mut self, digits: &[u8], number: u64, new_cas: Option<u64>) -> Counted {
        let store = &mut *self.store;
        let refusal: Option<Outcome> =
            store.refusal(self.key.len(), digits.len(), self.found.head.flags);
        if refusal.is_some() {
            return Counted::NoMemory;
        }
        let head = store.renewed(&self.found.head, new_cas, self.now);
        store.overwrite(&self.found, head.resized(digits.len()), self.key, digits, self.now);
        self.found = store.lookup(self.key, hash(self.key)).expect("it was just entered");
        Counted::Now(number)
    }
}
