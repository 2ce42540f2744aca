//! The chunks of buckets of all histograms of one slot. They are handed out when they are first
//! needed, because most histograms have times of few octaves, and many have none.
//!
//! ```text
//!   [ taken, lost ][ chunk 1 ][ chunk 2 ] ...
//! ```
//!
//! The slot's process alone takes chunks and writes them. A chunk stays with its histogram for
//! ever: a row that is cleared keeps its chunks for the pool or server that gets the row next.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::histogram::{CHUNK, bump};

/// The chunks of one slot. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct Chunks {
    pub(crate) words: &'static [AtomicU64],
}

impl Chunks {
    /// Returns the size in words for a registry with so many rows.
    pub(crate) const fn words(rows: usize) -> usize {
        let chunks = rows * CHUNKS_A_ROW;
        (if chunks < CHUNKS_MIN { CHUNKS_MIN } else { chunks }) * CHUNK
    }

    /// Takes a chunk that nobody has; returns the index of its first word.
    pub(crate) fn take(self) -> Option<u64> {
        // The first place has the number of chunks taken, and so is itself never one of them.
        let next = self.words[TAKEN].load(Relaxed) + 1;
        if (next as usize + 1) * CHUNK > self.words.len() {
            return None;
        }
        // A process that dies here loses one chunk.
        self.words[TAKEN].store(next, Relaxed);
        Some(next * CHUNK as u64)
    }

    /// Counts times in the bucket at this index.
    #[inline]
    pub(crate) fn add(self, at: usize, count: u64) {
        bump(&self.words[at], count);
    }

    /// Counts times for which there was no chunk.
    #[cold]
    pub(crate) fn note_lost(self, count: u64) {
        bump(&self.words[LOST], count);
    }

    /// Returns the buckets of the chunk that begins at this index.
    pub(crate) fn chunk(self, place: usize) -> &'static [AtomicU64] {
        &self.words[place..place + CHUNK]
    }

    pub(crate) fn clear(self, place: usize) {
        let full = self.chunk(place).iter().filter(|word| word.load(Relaxed) != 0);
        full.for_each(|word| word.store(0, Relaxed));
    }

    /// Returns the bytes of the chunks that were taken.
    pub(crate) fn bytes_taken(self) -> usize {
        (self.words[TAKEN].load(Relaxed) as usize + 1) * CHUNK * size_of::<u64>()
    }

    /// Returns how many times were not recorded because no chunk was left.
    pub(crate) fn lost(self) -> u64 {
        self.words[LOST].load(Relaxed)
    }
}

/// The words before the first chunk.
const TAKEN: usize = 0;
const LOST: usize = 1;
/// Chunks for each row. A histogram of a server has ten or so, a pool's families have more, and
/// the registry has room for several times the rows in use. 4,096 rows get 8 MiB.
const CHUNKS_A_ROW: usize = 4;
/// Chunks of a small registry.
const CHUNKS_MIN: usize = 512;
