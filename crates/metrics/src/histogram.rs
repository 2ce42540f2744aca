//! Times in buckets: log-linear, 64 buckets an octave, so that a quantile is within one per cent
//! of the exact one, and the largest and smallest times exact.
//!
//! ```text
//!   microseconds   0 .. 63 | 64 .. 127 | 128 .. 255 | 256 .. 511 | ... | .. 2^32
//!   bucket width      1    |     1     |      2     |      4     | ... | 2^25
//! ```
//!
//! One writer records with plain loads and stores, any number of readers copy. A reader may see a
//! time in its bucket that is not in the sum yet, never half a number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::book::bump;

/// log2 of the buckets in an octave.
const GRAIN: u32 = 6;
/// Times from here on share the last bucket.
const OCTAVES_END: u32 = 32;
/// Buckets of one histogram.
pub(crate) const BUCKETS: usize = ((OCTAVES_END - GRAIN + 1) as usize) << GRAIN;
/// Words of a histogram that are no bucket: one cache line.
pub(crate) const HEAD: usize = 8;

/// Sum of all times.
const SUM: usize = 0;
/// The largest.
const MAX: usize = 1;
/// The smallest, with every bit turned, so that nothing recorded is zero.
const MIN: usize = 2;

/// Where one process puts its times.
#[derive(Clone, Copy)]
pub struct Recorder {
    pub(crate) head: &'static [AtomicU64; HEAD],
    pub(crate) buckets: &'static [AtomicU64; BUCKETS],
}

impl Recorder {
    /// One more time, in microseconds.
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

/// A copy, to be asked. Copies of several writers are merged by adding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// From the bucket `first` on.
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
    /// Adds what another process has recorded. Only buckets that were ever written are looked at:
    /// to read a page that nobody wrote would make it.
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

    /// Adds another's times.
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

    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest, exactly; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The smallest, exactly; 0 if there is none.
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The mean, rounded down; 0 if there is none.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// The time that this share of all times does not exceed, within one per cent: the middle of
    /// the bucket in which the time of that rank is. 0 if there is none.
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

    /// Times up to and including each bucket's largest, for whoever shows the whole: the bound, and
    /// how many times are in that bucket; empty ones are left out.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let full = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        full.map(|(at, count)| (bounds(self.first + at).1, *count))
    }
}

/// Where a time belongs.
#[inline]
fn bucket(time: u64) -> usize {
    let time = time.min((1 << OCTAVES_END) - 1);
    let octave = (time | 1).ilog2().saturating_sub(GRAIN);
    ((octave as usize) << GRAIN) + (time >> octave) as usize
}

/// The smallest and the largest time of a bucket.
fn bounds(bucket: usize) -> (u64, u64) {
    let octave = (bucket >> GRAIN).saturating_sub(1) as u32;
    let step = (bucket - ((octave as usize) << GRAIN)) as u64;
    (step << octave, ((step + 1) << octave) - 1)
}

#[cfg(test)]
mod tests;
