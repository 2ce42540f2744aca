//! Requests as MONITOR shows them, on their way from the worker that reads them to the one whose
//! client looks: a ring of bytes for each slot in the shared memory.
//!
//! ```text
//!   [ begun | done ][ ... record | record | record ... ]     record: length, pool and tenant, text
//!        └── a writer goes on to here ──┘
//! ```
//!
//! A reader has a place of its own. One that is overtaken has lost records, and is told. Nobody
//! writes while nobody looks, so the memory is not even there then.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The ring of one slot. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct Tap {
    pub(crate) words: &'static [AtomicU64],
}

/// Records were overwritten before they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken;

impl Tap {
    /// Adds a request of a client of this pool and tenant. Only the slot's own process calls this.
    pub fn push(&self, pool: u32, tenant: u32, text: &[u8]) {
        let text = &text[..text.len().min(TAP_LEN_MAX)];
        let begin = self.words[DONE].load(Ordering::Relaxed);
        let end = begin + 2 + text.len().div_ceil(8) as u64;
        self.words[BEGUN].store(end, Ordering::Relaxed);
        fence(Ordering::Release);
        let ids = u64::from(pool) << 32 | u64::from(tenant);
        for (at, word) in [text.len() as u64, ids].into_iter().enumerate() {
            self.word(begin + at as u64).store(word, Ordering::Relaxed);
        }
        for (at, bytes) in text.chunks(8).enumerate() {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            let word = u64::from_le_bytes(eight);
            self.word(begin + 2 + at as u64).store(word, Ordering::Relaxed);
        }
        self.words[DONE].store(end, Ordering::Release);
    }

    /// Returns the place behind all that is there.
    pub fn end(&self) -> u64 {
        self.words[DONE].load(Ordering::Acquire)
    }

    /// Reads the record at this place, and moves on. None: there is no more.
    pub fn read(&self, place: &mut u64) -> Result<Option<(u32, u32, Vec<u8>)>, Overtaken> {
        if *place >= self.end() {
            return Ok(None);
        }
        let load = |at: u64| self.word(at).load(Ordering::Relaxed);
        let (len, ids) = (load(*place) as usize, load(*place + 1));
        // A length that is being overwritten is found out below.
        let len = len.min(TAP_LEN_MAX);
        let words = (0..len.div_ceil(8) as u64).map(|at| load(*place + 2 + at));
        let mut text: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        text.truncate(len);
        fence(Ordering::Acquire);
        if self.words[BEGUN].load(Ordering::Relaxed) - *place > RING {
            return Err(Overtaken);
        }
        *place += 2 + len.div_ceil(8) as u64;
        Ok(Some(((ids >> 32) as u32, ids as u32, text)))
    }

    fn word(&self, at: u64) -> &'static AtomicU64 {
        &self.words[HEAD + (at % RING) as usize]
    }
}

/// The most bytes of a text.
pub const TAP_LEN_MAX: usize = 4096;

const BEGUN: usize = 0;
const DONE: usize = 1;
const HEAD: usize = 8;
/// Words of the ring: what a busy worker fills in a few milliseconds.
const RING: u64 = 64 * 1024 / 8;
/// Words of a slot: whole pages.
pub(crate) const WORDS: usize = (HEAD + RING as usize).next_multiple_of(4096 / 8);

#[cfg(test)]
mod tests {
    use crate::Registry;

    use super::*;

    #[test]
    fn records_come_in_their_order_and_a_reader_that_is_overtaken_is_told() {
        let registry = Registry::private(2, 2);
        let tap = registry.tap(1);
        let mut place = tap.end();
        assert_eq!(tap.read(&mut place), Ok(None));
        // Several times around the ring, with texts of every length.
        for n in 0..5_000u32 {
            let text: Vec<u8> = (0..n % 300).map(|at| at as u8).collect();
            tap.push(n, n / 2, &text);
            assert_eq!(tap.read(&mut place), Ok(Some((n, n / 2, text))));
        }
        assert_eq!(tap.read(&mut place), Ok(None));
        for n in 0..100 {
            tap.push(n, 0, &[7; 5_000]);
        }
        assert_eq!(tap.read(&mut place), Err(Overtaken));
        let mut place = tap.end();
        tap.push(1, 0, &[7; 5_000]);
        let (.., text) = tap.read(&mut place).unwrap().unwrap();
        assert_eq!(text, [7; TAP_LEN_MAX]);
        assert_eq!(registry.tap(0).read(&mut 0), Ok(None), "each slot has its own");
    }
}
