//! A histogram of times with log-linear buckets, 64 an octave. A quantile is within one per cent of
//! the exact one; the largest and the smallest time are exact.
//!
//! ```text
//!   microseconds   0 .. 63 | 64 .. 127 | 128 .. 255 | 256 .. 511 | ... | .. 2^32
//!   bucket width      1    |     1     |      2     |      4     | ... | 2^25
//! ```
//!
//! One writer records with plain loads and stores; any number of readers copy. A reader may see a
//! time in its bucket before the sum contains it, but never half a number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// log2 of the buckets in an octave.
const GRAIN: u32 = 6;
/// Times of 2^32 and more share the last bucket.
const OCTAVES_END: u32 = 32;
/// Buckets of one histogram.
pub(crate) const BUCKETS: usize = ((OCTAVES_END - GRAIN + 1) as usize) << GRAIN;
/// Words of a histogram that are not buckets: one cache line.
pub(crate) const HEAD: usize = 8;

/// Index of the sum of all times.
const SUM: usize = 0;
/// Index of the largest time.
const MAX: usize = 1;
/// Index of the smallest time, stored with every bit inverted so that zero means "nothing
/// recorded".
const MIN: usize = 2;

/// One process's writer of a histogram.
#[derive(Clone, Copy)]
pub struct Recorder {
    pub(crate) head: &'static [AtomicU64; HEAD],
    pub(crate) buckets: &'static [AtomicU64; BUCKETS],
}

impl Recorder {
    /// Records one time, in microseconds.
    #[inline]
    pub fn record(&self, time: u64) {
        bump(&self.buckets[bucket(time)], 1);
        bump(&self.head[SUM], time);
        if time > self.head[MAX].load(Relaxed) {
            self.head[MAX].store(time, Relaxed);
        }
        if !time > self.head[MIN].load(Relaxed) {
            self.head[MIN].store(!time, Relaxed);
        }
    }
}

/// A copy for reading. Copies of several writers are merged by adding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Counts, beginning with the bucket `first`.
    buckets: Vec<u64>,
    first: usize,
    count: u64,
    sum: u64,
    max: u64,
    min: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: Vec::new(), first: 0, count: 0, sum: 0, max: 0, min: u64::MAX }
    }
}

impl Histogram {
    /// Adds the times that another process has recorded. It reads only buckets that were ever
    /// written, because reading an untouched page would allocate it.
    pub(crate) fn read(&mut self, from: &Recorder) {
        let low = from.head[MIN].load(Relaxed);
        if low == 0 {
            return;
        }
        let mut other = Histogram {
            min: !low,
            max: from.head[MAX].load(Relaxed),
            sum: from.head[SUM].load(Relaxed),
            ..Histogram::default()
        };
        other.first = bucket(other.min);
        let last = bucket(other.max).max(other.first);
        other.buckets =
            from.buckets[other.first..=last].iter().map(|one| one.load(Relaxed)).collect();
        other.count = other.buckets.iter().sum();
        self.add(&other);
    }

    /// Adds the times of another copy.
    pub fn add(&mut self, other: &Histogram) {
        if other.buckets.is_empty() {
            return;
        }
        if self.buckets.is_empty() {
            self.first = other.first;
        }
        let first = self.first.min(other.first);
        let end = (self.first + self.buckets.len()).max(other.first + other.buckets.len());
        let mut sum = vec![0; end - first];
        for one in [&*self, other] {
            let at = one.first - first;
            sum[at..].iter_mut().zip(&one.buckets).for_each(|(sum, count)| *sum += count);
        }
        self.buckets = sum;
        self.first = first;
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
        self.min = self.min.min(other.min);
    }

    /// Returns the number of times recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all times.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the largest time, exactly; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the smallest time, exactly; 0 if there is none.
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
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
        for (at, count) in self.buckets.iter().enumerate() {
            passed += count;
            if passed >= rank {
                let (low, high) = bounds(self.first + at);
                return (low + (high - low) / 2).clamp(self.min, self.max);
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
        let full = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        full.map(|(at, count)| (bounds(self.first + at).1, *count))
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

/// Adds without a locked instruction: the word has one writer.
#[inline]
pub(crate) fn bump(word: &AtomicU64, amount: u64) {
    word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
}

#[cfg(test)]
mod tests;
