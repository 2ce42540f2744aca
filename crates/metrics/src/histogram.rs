//! A histogram of times with log-linear buckets, 64 an octave. A quantile is within one per cent of
//! the exact one; the largest time since the start is exact.
//!
//! ```text
//!   microseconds   0 .. 63 | 64 .. 127 | 128 .. 255 | 256 .. 511 | ... | .. 2^32
//!   bucket width      1    |     1     |      2     |      4     | ... | 2^25
//!   chunk             0    |     1     |      2     |      3     | ... | 26
//! ```
//!
//! The buckets of an octave are a chunk. A chunk takes memory when the first time of its octave is
//! recorded: `chunks.rs`. One writer records with plain loads and stores; any number of readers
//! copy. A reader may see a time in its bucket before the sum contains it, but never half a number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::chunks::Chunks;
use crate::{HISTOGRAMS, Latency};

/// log2 of the buckets in an octave.
const GRAIN: u32 = 6;
/// Times of 2^32 and more share the last bucket.
const OCTAVES_END: u32 = 32;
/// Buckets of a chunk.
pub(crate) const CHUNK: usize = 1 << GRAIN;
/// Buckets of one histogram.
pub(crate) const BUCKETS: usize = ((OCTAVES_END - GRAIN + 1) as usize) << GRAIN;
/// Words of a histogram's head.
pub(crate) const HEAD: usize = 32;

/// Index of the sum of all times.
const SUM: usize = 0;
/// Index of the largest time.
const MAX: usize = 1;
/// Index of the words that say where the chunks are; zero: no time of this octave was recorded.
const PLACES: usize = 2;
const _: () = assert!(PLACES + BUCKETS / CHUNK <= HEAD);

/// The head of one histogram.
pub(crate) type Head = [AtomicU64; HEAD];

/// One process's writer of all histograms of a row.
#[derive(Clone, Copy)]
pub struct Recorder {
    pub(crate) heads: &'static [Head; HISTOGRAMS],
    pub(crate) chunks: Chunks,
}

impl Recorder {
    /// Records one time, in microseconds.
    #[inline(always)]
    pub fn record(&self, which: Latency, time: u64) {
        self.put(which, (time, bucket(time)), 1);
    }

    /// Records a time that stands for so many like it.
    #[inline(never)]
    pub fn record_many(&self, which: Latency, time: u64, count: u64) {
        self.put(which, (time, bucket(time)), count);
    }

    /// Records a time that stands for so many like it in two rows: its bucket is looked up once.
    #[inline(never)]
    pub fn record_both(
        &self,
        which: Latency,
        (other, its): (&Recorder, Latency),
        time: u64,
        count: u64,
    ) {
        let found = (time, bucket(time));
        self.put(which, found, count);
        other.put(its, found, count);
    }

    #[inline(always)]
    fn put(&self, which: Latency, (time, bucket): (u64, usize), count: u64) {
        let head = &self.heads[which.place()];
        // The mask changes nothing, and spares a check.
        let place = head[(PLACES + (bucket >> GRAIN)) % HEAD].load(Relaxed);
        if place == 0 {
            return self.record_first(which, time, count);
        }
        self.chunks.add(place as usize + bucket % CHUNK, count);
        bump(&head[SUM], time.wrapping_mul(count));
        if time > head[MAX].load(Relaxed) {
            head[MAX].store(time, Relaxed);
        }
    }

    /// Takes a chunk for an octave, and records the first time in it. There is none left if far
    /// more is measured than a configuration of this size should need: the time is then only
    /// counted as lost.
    #[cold]
    fn record_first(&self, which: Latency, time: u64, count: u64) {
        match self.chunks.take() {
            None => self.chunks.note_lost(count),
            Some(place) => {
                let octave = bucket(time) >> GRAIN;
                self.heads[which.place()][PLACES + octave].store(place, Relaxed);
                self.record_many(which, time, count);
            }
        }
    }
}

/// Forgets all times of a histogram. It keeps its chunks.
pub(crate) fn clear(head: &Head, chunks: Chunks) {
    for place in &head[PLACES..] {
        match place.load(Relaxed) {
            0 => {}
            place => chunks.clear(place as usize),
        }
    }
    head[..PLACES].iter().for_each(|word| word.store(0, Relaxed));
}

/// A copy for reading. Copies of several writers are merged by adding.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Counts, beginning with the bucket `first`.
    buckets: Vec<u64>,
    first: usize,
    count: u64,
    sum: u64,
    max: u64,
}

impl PartialEq for Histogram {
    fn eq(&self, other: &Histogram) -> bool {
        let same = (self.count, self.sum, self.max) == (other.count, other.sum, other.max);
        same && self.full().eq(other.full())
    }
}

impl Histogram {
    /// Adds the times that another process has recorded.
    pub(crate) fn read(&mut self, head: &Head, chunks: Chunks) {
        // The words looked at are on the first cache line.
        if head[SUM].load(Relaxed) == 0 && head[PLACES].load(Relaxed) == 0 {
            return;
        }
        for octave in 0..BUCKETS / CHUNK {
            let place = head[PLACES + octave].load(Relaxed);
            if place == 0 {
                continue;
            }
            for (step, word) in chunks.chunk(place as usize).iter().enumerate() {
                let count = word.load(Relaxed);
                if count != 0 {
                    self.insert(octave * CHUNK + step, count);
                }
            }
        }
        self.sum = self.sum.wrapping_add(head[SUM].load(Relaxed));
        self.max = self.max.max(head[MAX].load(Relaxed));
    }

    /// Adds times of one bucket, and nothing to the sum.
    fn insert(&mut self, bucket: usize, count: u64) {
        if self.buckets.is_empty() {
            self.first = bucket & !(CHUNK - 1);
        }
        if bucket < self.first {
            let first = bucket & !(CHUNK - 1);
            self.buckets.splice(0..0, std::iter::repeat_n(0, self.first - first));
            self.first = first;
        }
        let at = bucket - self.first;
        if at >= self.buckets.len() {
            self.buckets.resize((at + 1).next_multiple_of(CHUNK), 0);
        }
        self.buckets[at] += count;
        self.count += count;
    }

    /// Adds times of a bucket, of which no more is known: the sum and the maximum grow by the
    /// middle of the bucket.
    pub(crate) fn insert_middle(&mut self, bucket: usize, count: u64) {
        let middle = middle(bucket);
        self.insert(bucket, count);
        self.sum = self.sum.wrapping_add(middle.wrapping_mul(count));
        self.max = self.max.max(middle);
    }

    /// Adds the times of another copy.
    pub fn add(&mut self, other: &Histogram) {
        other.full().for_each(|(bucket, count)| self.insert(bucket, count));
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Lowers the maximum to this time, if it is known that none was longer.
    pub(crate) fn limit(&mut self, max: u64) {
        self.max = self.max.min(max);
    }

    /// Returns what was recorded since `earlier`, a copy of the same histogram: each bucket that
    /// has more now, with the difference.
    pub(crate) fn since<'a>(
        &'a self,
        earlier: &'a Histogram,
    ) -> impl Iterator<Item = (usize, u64)> + 'a {
        let before = |bucket: usize| match bucket.checked_sub(earlier.first) {
            Some(at) => earlier.buckets.get(at).copied().unwrap_or(0),
            None => 0,
        };
        let more = move |(bucket, count)| (bucket, u64::saturating_sub(count, before(bucket)));
        self.full().map(more).filter(|(_, more)| *more > 0)
    }

    /// Returns the number of times recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all times.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the largest time; 0 if there is none. It is exact for the time since the start.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean, rounded down; 0 if there is none.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// Returns the time that the given share of all times does not exceed, within one per cent: the
    /// middle of the bucket that holds the time of that rank. Returns 0 if there is none.
    pub fn quantile(&self, share: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count);
        if rank == self.count {
            return self.max;
        }
        let mut passed = 0;
        for (bucket, count) in self.full() {
            passed += count;
            if passed >= rank {
                return middle(bucket).min(self.max);
            }
        }
        self.max
    }

    /// Returns how many times do not exceed each edge; edges grow. A bucket that an edge divides
    /// counts by its middle, so a count is that of an edge within one per cent of the given one.
    pub fn up_to(&self, edges: &[u64]) -> Vec<u64> {
        let (mut at, mut passed) = (0, 0);
        let count = |edge: &u64| {
            while let Some(count) = self.buckets.get(at) {
                let (low, high) = bounds(self.first + at);
                if low + (high - low) / 2 > *edge {
                    break;
                }
                (at, passed) = (at + 1, passed + count);
            }
            passed
        };
        edges.iter().map(count).collect()
    }

    /// Returns each bucket's upper bound, inclusive, and the number of times in it, for tools that
    /// print the whole histogram. Empty buckets are left out.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.full().map(|(bucket, count)| (bounds(bucket).1, count))
    }

    /// Returns the bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Histogram>() + self.buckets.capacity() * size_of::<u64>()
    }

    /// Returns each bucket that has times, and their number.
    fn full(&self) -> impl Iterator<Item = (usize, u64)> {
        let all = self.buckets.iter().enumerate();
        all.filter(|(_, count)| **count > 0).map(|(at, count)| (self.first + at, *count))
    }
}

/// Returns the bucket of a time.
#[inline]
fn bucket(time: u64) -> usize {
    let time = time.min((1 << OCTAVES_END) - 1);
    let octave = (time | 1).ilog2().saturating_sub(GRAIN);
    ((octave as usize) << GRAIN) + (time >> octave) as usize
}

/// Returns the smallest and the largest time of a bucket.
fn bounds(bucket: usize) -> (u64, u64) {
    let octave = (bucket >> GRAIN).saturating_sub(1) as u32;
    let step = (bucket - ((octave as usize) << GRAIN)) as u64;
    (step << octave, ((step + 1) << octave) - 1)
}

/// Returns the time in the middle of a bucket. It is within one per cent of each of its times.
fn middle(bucket: usize) -> u64 {
    let (low, high) = bounds(bucket);
    low + (high - low) / 2
}

/// Adds without a locked instruction: the word has one writer.
#[inline]
pub(crate) fn bump(word: &AtomicU64, amount: u64) {
    word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
}

#[cfg(test)]
pub(crate) mod tests;
