//! The slow log in the shared memory: a ring of slow requests for each slot, so that every process
//! can read all of it, and the entries of a dead worker stay.
//!
//! ```text
//!   [ count ][ entry 0 | entry 1 | ... ]     entry: number, or 0 while it is written; then fields
//! ```
//!
//! An entry is written in place over the oldest. A reader that meets the writer sees another number
//! before and after, and skips the entry.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// One slow request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowEntry {
    /// When its answer had been written, in microseconds of the clock that all workers share.
    pub at_us: u64,
    /// The ids of its pool, and of the server whose reply came last; 0 if there was none.
    pub pool: u32,
    pub server: u32,
    /// The number of its worker, which the log itself knows.
    pub worker: u32,
    /// The lengths of its phases, in microseconds, in the order of `Phase`.
    pub phases: [u64; 4],
    /// The bits of its causes, as the writer numbers them.
    pub causes: u16,
    /// It was sent again.
    pub asked_again: bool,
    /// What its server was busy with, as an index into the table of the servers' protocol;
    /// `NO_COMMAND` if that is not known.
    pub busy_with: u16,
    /// The hash of its first key; 0 if it is not to be known.
    pub key_hash: u64,
    /// The length of that key.
    pub key_len: u32,
    pub command: String,
    /// The client's address.
    pub client: String,
    /// The beginning of the key, if it may be known.
    pub key: Vec<u8>,
}

pub const NO_COMMAND: u16 = u16::MAX;

/// The ring of one slot. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct SlowLog {
    pub(crate) words: &'static [AtomicU64],
    pub(crate) slot: usize,
}

impl SlowLog {
    /// Adds an entry in place of the oldest. Only the slot's own process calls this.
    pub fn push(&self, entry: &SlowEntry) {
        let number = self.words[0].load(Ordering::Relaxed) + 1;
        let words = self.entry((number - 1) as usize % ENTRIES);
        words[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let SlowEntry { at_us, pool, server, phases, causes, busy_with, .. } = entry;
        let flags =
            u64::from(*causes) << 32 | u64::from(*busy_with) << 16 | u64::from(entry.asked_again);
        let (command, client) = (entry.command.as_bytes(), entry.client.as_bytes());
        let texts = [(command, COMMAND), (client, CLIENT), (&entry.key[..], KEY)];
        let lens = texts.map(|(text, (_, most))| text.len().min(most) as u64);
        let numbers = [
            *at_us,
            u64::from(*pool) << 32 | u64::from(*server),
            flags,
            phases[0],
            phases[1],
            phases[2],
            phases[3],
            entry.key_hash,
            u64::from(entry.key_len) << 32 | lens[0] << 16 | lens[1] << 8 | lens[2],
        ];
        words[1..]
            .iter()
            .zip(numbers)
            .for_each(|(word, number)| word.store(number, Ordering::Relaxed));
        for (text, (at, most)) in texts {
            let chunks = text[..text.len().min(most)].chunks(8);
            for (word, bytes) in words[at..].iter().zip(chunks) {
                let mut eight = [0; 8];
                eight[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
            }
        }
        words[0].store(number, Ordering::Release);
        self.words[0].store(number, Ordering::Relaxed);
    }

    /// Returns the entries that are there, in no order.
    pub(crate) fn entries(self) -> impl Iterator<Item = SlowEntry> {
        let used = (self.words[0].load(Ordering::Relaxed) as usize).min(ENTRIES);
        (0..used).filter_map(move |at| self.read(at))
    }

    fn read(&self, at: usize) -> Option<SlowEntry> {
        let words = self.entry(at);
        let number = words[0].load(Ordering::Acquire);
        let copy: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        fence(Ordering::Acquire);
        if number == 0 || words[0].load(Ordering::Relaxed) != number {
            return None;
        }
        let bytes = |at: usize, len: u64, most: usize| {
            let all = copy[at..].iter().flat_map(|word| word.to_le_bytes());
            all.take((len as usize).min(most)).collect::<Vec<u8>>()
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (flags, lens) = (copy[3], copy[9]);
        Some(SlowEntry {
            at_us: copy[1],
            pool: (copy[2] >> 32) as u32,
            server: copy[2] as u32,
            // The first slot is the master's.
            worker: (self.slot as u32).saturating_sub(1),
            causes: (flags >> 32) as u16,
            busy_with: (flags >> 16) as u16,
            asked_again: flags & 1 != 0,
            phases: [copy[4], copy[5], copy[6], copy[7]],
            key_hash: copy[8],
            key_len: (lens >> 32) as u32,
            command: text(bytes(COMMAND.0, lens >> 16 & 0xff, COMMAND.1)),
            client: text(bytes(CLIENT.0, lens >> 8 & 0xff, CLIENT.1)),
            key: bytes(KEY.0, lens & 0xff, KEY.1),
        })
    }

    fn entry(&self, at: usize) -> &'static [AtomicU64] {
        &self.words[HEAD + at * ENTRY..][..ENTRY]
    }
}

/// The most bytes of a key that an entry has.
pub const SLOW_KEY_MAX: usize = KEY.1;

/// Entries of one slot.
const ENTRIES: usize = 256;
/// Words of an entry, and of what stands before the first.
const ENTRY: usize = 38;
const HEAD: usize = 8;
/// Where texts begin in an entry, and their most bytes.
const COMMAND: (usize, usize) = (10, 40);
const CLIENT: (usize, usize) = (15, 56);
const KEY: (usize, usize) = (22, 128);
const _: () = assert!(KEY.0 + KEY.1 / 8 <= ENTRY);
/// Words of a ring: whole pages.
pub(crate) const WORDS: usize = (HEAD + ENTRIES * ENTRY).next_multiple_of(4096 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    fn entry(n: u64) -> SlowEntry {
        SlowEntry {
            at_us: n,
            pool: 7,
            server: 9,
            worker: 0,
            phases: [1, 2, 3, n],
            causes: 0x8001,
            asked_again: n.is_multiple_of(2),
            busy_with: NO_COMMAND,
            key_hash: u64::MAX - n,
            key_len: 250,
            command: "config|set".to_string(),
            client: "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535".to_string(),
            key: vec![n as u8; 128],
        }
    }

    #[test]
    fn every_process_reads_the_newest_entries_of_all_slots_and_a_reset_hides_those_before_it() {
        let registry = Registry::private(3, 16);
        for n in 1..=300 {
            registry.metrics(1).slow_log().push(&entry(n));
        }
        registry.metrics(2).slow_log().push(&SlowEntry { pool: 8, ..entry(301) });
        let times =
            |pool| registry.slow_entries(pool).iter().map(|one| one.at_us).collect::<Vec<u64>>();
        assert_eq!(times(None), (45..=301).rev().collect::<Vec<u64>>(), "the newest is first");
        assert_eq!((times(Some(8)), times(Some(7)).len()), (vec![301], 256));
        assert_eq!(registry.slow_entries(Some(7))[0], entry(300));
        registry.metrics(2).reset_slow_log(7, 298);
        assert_eq!((times(Some(7)), times(None).len()), (vec![300, 299], 3));
    }

    #[test]
    fn texts_are_cut_to_their_bounds() {
        let registry = Registry::private(1, 16);
        let long = "x".repeat(1_000);
        let one = SlowEntry {
            command: long.clone(),
            client: long.clone(),
            key: long.clone().into(),
            ..entry(1)
        };
        registry.metrics(0).slow_log().push(&one);
        let found = &registry.slow_entries(None)[0];
        assert_eq!([found.command.len(), found.client.len(), found.key.len()], [40, 56, 128]);
        assert_eq!(
            SlowEntry {
                command: long.clone(),
                client: long.clone(),
                key: long.into(),
                ..found.clone()
            },
            one
        );
    }
}
