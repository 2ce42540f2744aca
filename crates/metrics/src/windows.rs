//! The times of the last seconds and minutes, derived from the histograms since the start.
//!
//! ```text
//!   once a second   sum over all slots, minus the sum before ──▶ a slice: changed buckets
//!   slices          [ 5 s | 5 s | ... | 5 s | 1 s | 1 s | ... | 1 s ]   the newest is last
//!                    └──────── 5 min ────────┴──────── 1 min ───────┘
//!   a window        the sum of the slices that lie in it
//! ```
//!
//! Workers do nothing for it. The sums are over all slots, dead workers' included, so a death of a
//! worker loses nothing. Slices are sparse and hold bytes, not words: see `write`. A window ends
//! where the newest slice ends, at a whole second, and begins with a slice; a slice that begins
//! before the window is left out.

use std::collections::{BTreeMap, VecDeque};

use crate::{HISTOGRAMS, Histogram, Latency, Registry};

/// One series: a histogram of a row.
type Series = (u32, Latency);

/// The slices of the last five minutes.
#[derive(Default)]
pub struct Windows {
    /// Each histogram as it was when the newest slice ended.
    before: BTreeMap<Series, Histogram>,
    /// The oldest is first.
    slices: VecDeque<Slice>,
    /// Bytes in the slices.
    bytes: usize,
    /// Rows that have got another meaning, and the second from which on they have it.
    renewed: BTreeMap<u32, u64>,
    /// The second at which the newest slice ended.
    end: u64,
}

/// A row that has histograms.
#[derive(Clone, Copy, Debug)]
pub enum Measured {
    Pool(u32),
    Server(u32),
}

impl Measured {
    fn series(self) -> impl Iterator<Item = Series> {
        let (row, places) = match self {
            Measured::Pool(row) => (row, 0..HISTOGRAMS),
            Measured::Server(row) => (row, Latency::READS.place()..Latency::UPDATES.place() + 1),
        };
        places.map(move |place| (row, Latency::of_place(place)))
    }
}

/// How far back a window goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub name: &'static str,
    pub seconds: u64,
}

impl Span {
    /// Every window, the shortest first.
    pub const ALL: [Span; 3] = [
        Span { name: "10s", seconds: 10 },
        Span { name: "1m", seconds: MINUTE },
        Span { name: "5m", seconds: LONGEST },
    ];
}

/// The times of one window.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The seconds that it covers: less than its span for the first minutes.
    pub seconds: u64,
    times: BTreeMap<Series, Histogram>,
}

impl Window {
    /// Returns several histograms of a row as one.
    pub fn histograms(&self, row: u32, which: impl Iterator<Item = Latency>) -> Histogram {
        let mut sum = Histogram::default();
        let found = which.filter_map(|which| self.times.get(&(row, which)));
        found.for_each(|one| sum.add(one));
        sum
    }
}

/// What was recorded from one second to another.
struct Slice {
    start: u64,
    end: u64,
    /// It is older than a minute, and is as long as such slices are.
    is_old: bool,
    bytes: Box<[u8]>,
}

impl Windows {
    /// Begins before anything is recorded, at this second.
    pub fn new(second: u64) -> Windows {
        Windows { end: second, ..Windows::default() }
    }

    /// Ends a slice at this second, which has just begun. `rows` are the pools and servers that are
    /// there.
    pub fn end_slice(
        &mut self,
        registry: &Registry,
        second: u64,
        rows: impl Iterator<Item = Measured>,
    ) {
        if second <= self.end {
            return;
        }
        let mut writer = Writer::default();
        for (row, which) in rows.flat_map(Measured::series) {
            let now = registry.histogram(row, which);
            if now.count() > 0 {
                let before = self.before.entry((row, which)).or_default();
                writer.write((row, which), now.since(before));
                *before = now;
            }
        }
        let bytes = writer.bytes.into_boxed_slice();
        self.bytes += bytes.len();
        self.slices.push_back(Slice { start: self.end, end: second, is_old: false, bytes });
        self.end = second;
        self.merge_old();
        while self.slices.front().is_some_and(|oldest| oldest.end + LONGEST <= second)
            || self.bytes > BYTES_MAX
        {
            let oldest = self.slices.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.bytes.len());
        }
        self.renewed.retain(|_, since| *since + LONGEST > second);
    }

    /// A row is cleared, to mean something else from now on.
    pub fn forget_row(&mut self, row: u32) {
        self.before.retain(|(other, _), _| *other != row);
        self.renewed.insert(row, self.end);
    }

    /// Returns the times of the last seconds.
    pub fn window(&self, span: Span) -> Window {
        let start = self.end.saturating_sub(span.seconds);
        let within = self.slices.iter().skip_while(|slice| slice.start < start);
        let mut window = Window::default();
        for slice in within {
            window.seconds += slice.end - slice.start;
            self.read(slice, &mut window.times);
        }
        // The middle of a bucket may lie above the largest time that was ever recorded.
        for (series, times) in &mut window.times {
            times.limit(self.before.get(series).map_or(u64::MAX, Histogram::max));
        }
        window
    }

    /// Returns the bytes that all of it takes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.before.values().map(Histogram::bytes).sum::<usize>()
    }

    /// Makes one slice of those of five seconds that no minute needs any more.
    fn merge_old(&mut self) {
        let Some(first) = self.slices.iter().position(|slice| !slice.is_old) else { return };
        // The end of the five seconds in which the first of them begins.
        let end = (self.slices[first].start / OLD_SLICE + 1) * OLD_SLICE;
        // One that the master was late to end may go beyond that.
        let end = end.max(self.slices[first].end);
        if end > self.end.saturating_sub(MINUTE) {
            return;
        }
        let count = self.slices.range(first..).take_while(|slice| slice.end <= end).count();
        let mut times = BTreeMap::new();
        for slice in self.slices.range(first..first + count) {
            self.read(slice, &mut times);
        }
        let mut writer = Writer::default();
        for (series, times) in &times {
            writer.write(*series, times.since(&Histogram::default()));
        }
        let merged: Vec<Slice> = self.slices.drain(first..first + count).collect();
        let bytes = writer.bytes.into_boxed_slice();
        self.bytes -= merged.iter().map(|slice| slice.bytes.len()).sum::<usize>();
        self.bytes += bytes.len();
        let (start, end) = (merged[0].start, merged[count - 1].end);
        let slice = Slice { start, end, is_old: true, bytes };
        self.slices.insert(first, slice);
    }

    /// Adds the times of a slice, without those of rows that have another meaning now.
    fn read(&self, slice: &Slice, times: &mut BTreeMap<Series, Histogram>) {
        let mut reader = Reader { bytes: &slice.bytes };
        while !reader.bytes.is_empty() {
            let row = reader.number() as u32;
            let which = Latency::of_place(reader.number() as usize);
            let is_old = self.renewed.get(&row).is_some_and(|since| slice.end <= *since);
            let mut into = (!is_old).then(|| times.entry((row, which)).or_default());
            let mut bucket = 0;
            for _ in 0..reader.number() {
                bucket += reader.number() as usize;
                let count = reader.number();
                if let Some(into) = &mut into {
                    into.insert_middle(bucket, count);
                }
            }
        }
    }
}

/// Writes series one after the other: row, histogram, number of buckets, and for each bucket its
/// distance from the one before it and its count. Each number takes as many bytes as it needs, most
/// take one.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    buckets: Vec<(usize, u64)>,
}

impl Writer {
    fn write(&mut self, (row, which): Series, buckets: impl Iterator<Item = (usize, u64)>) {
        self.buckets.clear();
        self.buckets.extend(buckets);
        if self.buckets.is_empty() {
            return;
        }
        self.number(row.into());
        self.number(which.place() as u64);
        self.number(self.buckets.len() as u64);
        let mut last = 0;
        for at in 0..self.buckets.len() {
            let (bucket, count) = self.buckets[at];
            self.number((bucket - last) as u64);
            self.number(count);
            last = bucket;
        }
    }

    /// Seven bits a byte, the lowest first; the high bit says that more follow.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        while let Some((byte, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }
}

const MINUTE: u64 = 60;
const LONGEST: u64 = 300;
/// Seconds of a slice that is older than a minute.
const OLD_SLICE: u64 = 5;
/// The slices of a hundred busy servers take a tenth of this. Above it the oldest are dropped, and
/// the long window says that it covers less.
const BYTES_MAX: usize = 48 << 20;

#[cfg(test)]
mod tests;
