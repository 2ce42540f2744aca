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
    /// The id of its client's tenant; 0 if it has none.
    pub tenant: u32,
    /// The number of its worker, and its own among those of all workers. The log itself knows them.
    pub worker: u32,
    pub number: u64,
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
    /// The client's address, and the name that it gave itself.
    pub client: String,
    pub name: String,
    /// The beginning of the key, if it may be known.
    pub key: Vec<u8>,
    /// How many keys it has, and how many bytes it has together with its answer.
    pub keys: u32,
    pub bytes: u64,
}

pub const NO_COMMAND: u16 = u16::MAX;

/// The numbers of an entry, without its texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowHead {
    pub at_us: u64,
    pub pool: u32,
    pub tenant: u32,
    pub phases: [u64; 4],
    pub causes: u16,
    /// Its slot, and its place in the ring.
    pub(crate) slot: usize,
    pub(crate) place: usize,
}

/// A time before which slow requests are not shown, or one cause of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowReset {
    /// To nobody.
    All,
    /// To clients.
    Clients,
    /// To clients, for this cause.
    Cause(u8),
}

impl SlowReset {
    /// The most causes.
    pub const CAUSES: usize = 16;
    pub(crate) const WORDS: usize = 2 + SlowReset::CAUSES;

    pub(crate) fn place(self) -> usize {
        match self {
            SlowReset::All => 0,
            SlowReset::Clients => 1,
            SlowReset::Cause(cause) => 2 + usize::from(cause),
        }
    }
}

/// The ring of one slot. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct SlowLog {
    pub(crate) words: &'static [AtomicU64],
    pub(crate) slot: usize,
    /// How many entries all processes have made. Each of them may write it.
    pub(crate) made: &'static AtomicU64,
}

impl SlowLog {
    /// Adds an entry in place of the oldest. Only the slot's own process calls this.
    pub fn push(&self, entry: &SlowEntry) {
        let number = self.words[0].load(Ordering::Relaxed) + 1;
        let words = self.entry((number - 1) as usize % ENTRIES);
        words[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let SlowEntry { at_us, pool, tenant, server, phases, causes, busy_with, .. } = entry;
        let flags =
            u64::from(*causes) << 32 | u64::from(*busy_with) << 16 | u64::from(entry.asked_again);
        let (command, client) = (entry.command.as_bytes(), entry.client.as_bytes());
        let name = entry.name.as_bytes();
        let texts = [(command, COMMAND), (client, CLIENT), (&entry.key[..], KEY), (name, NAME)];
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
            u64::from(entry.key_len) << 32 | lens[3] << 24 | lens[0] << 16 | lens[1] << 8 | lens[2],
            u64::from(*tenant),
            made,
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
        words[KEYS].store(u64::from(entry.keys), Ordering::Relaxed);
        words[BYTES].store(entry.bytes, Ordering::Relaxed);
        words[0].store(number, Ordering::Release);
        self.words[0].store(number, Ordering::Relaxed);
    }

    /// Returns the numbers of the entries that are there, in no order.
    pub(crate) fn heads(self) -> impl Iterator<Item = SlowHead> {
        let used = (self.words[0].load(Ordering::Relaxed) as usize).min(ENTRIES);
        (0..used).filter_map(move |at| self.head(at))
    }

    fn head(&self, place: usize) -> Option<SlowHead> {
        let words = self.entry(place);
        let number = words[0].load(Ordering::Acquire);
        let [at_us, ids, flags, one, two, three, four, tenant] =
            [1, 2, 3, 4, 5, 6, 7, 10].map(|at: usize| words[at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (number != 0 && words[0].load(Ordering::Relaxed) == number).then_some(SlowHead {
            at_us,
            pool: (ids >> 32) as u32,
            tenant: tenant as u32,
            phases: [one, two, three, four],
            causes: (flags >> 32) as u16,
            slot: self.slot,
            place,
        })
    }

    pub(crate) fn read(&self, at: usize) -> Option<SlowEntry> {
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
            tenant: copy[10] as u32,
            number: copy[11],
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
            name: text(bytes(NAME.0, lens >> 24 & 0xff, NAME.1)),
            keys: copy[KEYS] as u32,
            bytes: copy[BYTES],
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
const ENTRY: usize = 46;
const HEAD: usize = 8;
/// Where texts begin in an entry, and their most bytes.
const COMMAND: (usize, usize) = (12, 40);
const CLIENT: (usize, usize) = (17, 56);
const KEY: (usize, usize) = (24, 128);
const NAME: (usize, usize) = (40, 32);
/// Where its size is.
const KEYS: usize = 44;
const BYTES: usize = 45;
const _: () = assert!(NAME.0 + NAME.1 / 8 <= KEYS);
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
            tenant: n as u32 % 2,
            worker: 0,
            number: n,
            phases: [1, 2, 3, n],
            causes: 0x8001,
            asked_again: n.is_multiple_of(2),
            busy_with: NO_COMMAND,
            key_hash: u64::MAX - n,
            key_len: 250,
            command: "config|set".to_string(),
            client: "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535".to_string(),
            key: vec![n as u8; 128],
            name: "batch-7".to_string(),
            keys: 3,
            bytes: 1 << 40,
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
        registry.metrics(2).reset_slow_log(7, SlowReset::All, 298);
        assert_eq!((times(Some(7)), times(None).len()), (vec![300, 299], 3));
    }

    /// A client may reset what it sees, and nothing else.
    #[test]
    fn clients_see_those_of_their_pool_and_tenant_and_have_resets_of_their_own() {
        let registry = Registry::private(3, 16);
        for n in 1..=10 {
            registry.metrics(n as usize % 2 + 1).slow_log().push(&entry(n));
        }
        let times = |tenant| {
            let heads = registry.slow_heads(7, tenant, SlowReset::Clients);
            heads.iter().map(|one| one.at_us).collect::<Vec<u64>>()
        };
        assert_eq!((times(0), times(1)), (vec![2, 4, 6, 8, 10], vec![1, 3, 5, 7, 9]));
        let heads = registry.slow_heads(7, 1, SlowReset::Clients);
        assert_eq!(registry.slow_entry(&heads[4]), Some(SlowEntry { worker: 1, ..entry(9) }));
        registry.metrics(1).reset_slow_log(1, SlowReset::Clients, 5);
        assert_eq!((times(0), times(1)), (vec![2, 4, 6, 8, 10], vec![7, 9]));
        registry.metrics(2).reset_slow_log(7, SlowReset::Clients, 8);
        assert_eq!((times(0), times(1)), (vec![10], vec![7, 9]));
        let of_cause = |cause| registry.slow_heads(7, 0, SlowReset::Cause(cause)).len();
        registry.metrics(1).reset_slow_log(7, SlowReset::Cause(15), 6);
        assert_eq!((of_cause(0), of_cause(15)), (5, 2));
        assert_eq!(registry.slow_entries(Some(7)).len(), 10, "the operator sees them all");
        registry.metrics(0).reset_slow_log(7, SlowReset::All, 9);
        assert_eq!((times(0), times(1)), (vec![10], vec![]));
        registry.clear_row(7);
        assert_eq!(times(0), [2, 4, 6, 8, 10]);
    }

    #[test]
    fn texts_are_cut_to_their_bounds() {
        let registry = Registry::private(1, 16);
        let long = "x".repeat(1_000);
        let one = SlowEntry {
            command: long.clone(),
            client: long.clone(),
            key: long.clone().into(),
            name: long.clone(),
            ..entry(1)
        };
        registry.metrics(0).slow_log().push(&one);
        let found = &registry.slow_entries(None)[0];
        let lens = [found.command.len(), found.client.len(), found.key.len(), found.name.len()];
        assert_eq!(lens, [40, 56, 128, 32]);
        assert_eq!(
            SlowEntry {
                command: long.clone(),
                client: long.clone(),
                key: long.clone().into(),
                name: long,
                ..found.clone()
            },
            one
        );
    }
}
