//! Quantiles are compared with an exact sort of the same times, and merging with adding.

use super::*;
use crate::{Latency, Registry};

/// A random generator with a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number between zero and one, both excluded.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}

/// Draws a time from a distribution.
type Shape = fn(&mut Random) -> u64;

/// Typical distributions of latencies, in microseconds.
fn shapes() -> [(&'static str, Shape); 8] {
    [
        ("one value", |_| 777),
        ("uniform", |random| random.next() % 1_000_000),
        ("small", |random| random.next() % 70),
        ("exponential", |random| (-random.unit().ln() * 300.0) as u64),
        ("log-normal", |random| {
            let angle = random.unit() * std::f64::consts::TAU;
            let normal = (-2.0 * random.unit().ln()).sqrt() * angle.cos();
            (normal * 1.5 + 5.0).exp() as u64
        }),
        ("pareto", |random| (50.0 / random.unit().powf(0.8)) as u64),
        ("two hills", |random| match random.next() % 100 {
            0..95 => 80 + random.next() % 40,
            _ => 40_000 + random.next() % 3_000,
        }),
        ("powers of two", |random| 1 << (random.next() % 32)),
    ]
}

const SHARES: [f64; 9] = [0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.98, 0.99, 0.999];

#[test]
fn quantiles_are_within_one_per_cent_of_an_exact_sort() {
    for (name, shape) in shapes() {
        for (seed, count) in [(1, 1), (2, 2), (3, 10), (4, 1_000), (5, 20_000)] {
            let mut random = Random(seed);
            let mut times: Vec<u64> = (0..count).map(|_| shape(&mut random)).collect();
            let histogram = recorded(&times);
            times.sort_unstable();
            assert_eq!(histogram.count(), count);
            assert_eq!(histogram.sum(), times.iter().sum::<u64>());
            assert_eq!(histogram.max(), times[times.len() - 1]);
            assert_eq!(histogram.quantile(1.0), histogram.max(), "the largest is exact");
            for share in SHARES {
                let rank = ((share * count as f64).ceil() as usize).clamp(1, times.len());
                let (exact, found) = (times[rank - 1], histogram.quantile(share));
                let off = found.abs_diff(exact) as f64;
                assert!(off <= exact as f64 / 100.0, "{name} {share}: {found}, not {exact}");
            }
        }
    }
}

#[test]
fn merging_is_adding() {
    for (name, shape) in shapes() {
        let mut random = Random(9);
        let mut times = || (0..500).map(|_| shape(&mut random)).collect::<Vec<u64>>();
        let (first, second) = (times(), times());
        let registry = Registry::private(3, 2);
        for (slot, times) in [(0, &first), (2, &second)] {
            let recorder = registry.metrics(slot).recorder(1);
            times.iter().for_each(|time| recorder.record(Latency::UPDATES, *time));
        }
        let whole = recorded(&[first, second].concat());
        assert_eq!(registry.histogram(1, Latency::UPDATES), whole, "{name}");
        assert_eq!(registry.histogram(1, Latency::READS), Histogram::default());
        let mut sum = registry.histogram_of(0, 1, Latency::UPDATES);
        sum.add(&registry.histogram_of(1, 1, Latency::UPDATES));
        sum.add(&registry.histogram_of(2, 1, Latency::UPDATES));
        assert_eq!(sum, whole);
        let shown: u64 = sum.buckets().map(|(_, count)| count).sum();
        assert_eq!(shown, 1_000);
    }
}

#[test]
fn each_time_is_within_the_bounds_of_its_bucket_and_buckets_leave_no_gap() {
    let mut next = 0;
    for at in 0..BUCKETS {
        let (low, high) = bounds(at);
        assert_eq!(low, next, "bucket {at}");
        assert_eq!((bucket(low), bucket(high)), (at, at));
        next = high + 1;
    }
    assert_eq!(next, 1 << OCTAVES_END);
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
}

/// Beyond the last bucket the quantiles are lost, but the maximum stays exact.
#[test]
fn an_absurd_time_is_still_the_exact_maximum() {
    let histogram = recorded(&[1, 1 << 40]);
    assert_eq!((histogram.max(), histogram.count()), (1 << 40, 2));
    assert_eq!(histogram.quantile(0.5), 1);
}

#[test]
fn the_mean_is_rounded_down_and_empty_buckets_are_not_shown() {
    assert_eq!(Histogram::default().mean(), 0);
    assert_eq!(Histogram::default().quantile(0.5), 0);
    let histogram = recorded(&[2, 2, 700]);
    assert_eq!((histogram.mean(), histogram.sum(), histogram.count()), (234, 704, 3));
    // The bucket of 700 is eight wide.
    assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(2, 2), (703, 1)]);
}

fn recorded(times: &[u64]) -> Histogram {
    let registry = Registry::private(1, 1);
    let recorder = registry.metrics(0).recorder(0);
    times.iter().for_each(|time| recorder.record(Latency::READS, *time));
    registry.histogram(0, Latency::READS)
}

#[test]
fn times_are_counted_up_to_edges() {
    let registry = Registry::private(1, 2);
    let recorder = registry.metrics(0).recorder(1);
    let times: Vec<u64> = (0..10_000).map(|n| n * n % 250_000).collect();
    times.iter().for_each(|time| recorder.record(Latency::READS, *time));
    let histogram = registry.histogram(1, Latency::READS);
    let edges = [0, 63, 1_000, 36_000, 48_000, 190_000, 1_000_000];
    for (edge, count) in edges.iter().zip(histogram.up_to(&edges)) {
        let exact = |edge: u64| times.iter().filter(|time| **time <= edge).count() as u64;
        let (least, most) = (exact(edge - edge / 100), exact(edge + edge / 100));
        assert!((least..=most).contains(&count), "{edge}: {count}, not {least} to {most}");
    }
    assert_eq!(histogram.up_to(&[u64::MAX]), [10_000]);
    assert_eq!(Histogram::default().up_to(&[1, 2]), [0, 0]);
}
