//! The layout of counters in the shared memory, and the rules for writing it.
//!
//! ```text
//!   memory   [ header ][ slot 0 ][ slot 1 ] ... [ logins ][ tenants ]
//!   slot     [ row 0 | row 1 | ... | chunks | slow log | tap ]
//!   row      [ counters | heads of histograms | resets of the slow log | last work | to its end ]
//! ```
//!
//! A slot belongs to one process. A row belongs to one counted thing: row 0 is the process itself,
//! every other row is a pool, a server or a tenant, by the id that it keeps for life. The header
//! and the rows are whole pages, so no two writers share a cache line, and a page that nobody
//! writes costs nothing. All loads and stores are relaxed: each word has one writer, and no word
//! depends on another. The words of `logins.rs` and of `tenants.rs` have several writers, and so
//! has the number of slow requests. They are used when a client logs in, when a worker takes a
//! piece of a tenant's rate, and when a request was slow.

mod heard;
mod layout;
mod slow;
mod work;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use layout::LAYOUT;
pub use layout::{NO_NAMES, digest};
pub use work::Work;

use crate::chunks::Chunks;
use crate::histogram::{self, HEAD, Head, Histogram, Recorder, bump};
use crate::logins::{self, LoginRates};
use crate::pauses::Pauses;
use crate::slow_log::{self, SlowReset};
use crate::tap;
use crate::tenants::{self, TenantRates};
use crate::{Counter, GAUGES, HISTOGRAMS, Latency, OWN_COUNTERS, ServerCounter};

/// Places for counters in a row.
pub(crate) const COUNTERS: usize = 64;
/// Where a worker says what a server is busy with.
pub(crate) const BUSY_AT: usize = GAUGES - 1;
/// Where those begin that a server's protocol defines.
pub(crate) const OWN_AT: usize = COUNTERS - OWN_COUNTERS;
const PAGE: usize = 4096 / 8;
const HEADS_AT: usize = COUNTERS;
/// Where a process says that the slow log of a pool or a tenant begins anew.
const RESET_AT: usize = HEADS_AT + HISTOGRAMS * HEAD;
const ROW: usize =
    (RESET_AT + SlowReset::WORDS + Work::WORDS + heard::WORDS).next_multiple_of(PAGE);
const HEADER: usize = PAGE;

/// The words of the header, in order.
const MAGIC: u64 = u64::from_le_bytes(*b"qa-book\0");
const HEADER_WORDS: usize = 5;
/// The number of slots, and of rows, that have ever been used.
const USED_SLOTS: usize = 5;
const USED_ROWS: usize = 6;
/// The key of the hash that finds the words of logins.
const SECRET: usize = 7;

/// The master's data about the whole proxy, on a cache line of its own.
const PROCESS: usize = 8;
/// Whether connections are logged, behind it.
const DEBUG: usize = PROCESS + 6;
/// How many slow requests there were, on another.
const SLOW_MADE: usize = 16;
/// When the last pause ends, and MONITOR's last lease, on one more.
const PAUSED_UNTIL: usize = 24;

/// The proxy as one process, as the master reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id of the master.
    pub pid: u64,
    /// Times at which the master started and last wrote this record, in seconds of Unix time.
    pub started_s: u64,
    pub told_s: u64,
    /// Number of workers configured.
    pub workers: u64,
    /// Limit on clients, over all pools.
    pub clients_max: u64,
    /// Unix time less the clock that all processes share, in microseconds.
    pub unix_ahead_us: u64,
}

/// A command that a server is busy with, as one worker knows. It is one word in memory, so that
/// time and command belong together, and it is cleared with the gauges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Busy {
    /// When it was sent, in microseconds of a clock that all workers share.
    pub since_us: u64,
    /// Its index in the table of the servers' protocol.
    pub command: u16,
}

impl Busy {
    fn to_word(self) -> u64 {
        // Not zero, which means that a server is not busy. 48 bits of microseconds are 8 years.
        self.since_us.max(1) << 16 | u64::from(self.command)
    }

    fn of_word(word: u64) -> Option<Busy> {
        (word != 0).then_some(Busy { since_us: word >> 16, command: word as u16 })
    }
}

/// All counters of all processes. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct Registry {
    memory: &'static [AtomicU64],
    slots: usize,
    rows: usize,
}

/// The reasons for not opening a memory as a metrics registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The memory does not begin with the registry's magic number.
    Foreign,
    /// A build with other tables or another layout made it.
    Layout { found: u64, ours: u64 },
    /// The memory is shorter than its header says.
    Short,
}

/// One process's part of the registry: it writes its own slot and can read all of them.
#[derive(Clone, Copy)]
pub struct WorkerMetrics {
    registry: Registry,
    slot: usize,
}

/// The counters of one table in one row, held by their only writer.
#[derive(Clone, Copy)]
pub struct Counters<C> {
    words: &'static [AtomicU64; COUNTERS],
    table: PhantomData<C>,
}

impl Registry {
    /// Returns the size in words of a registry with `slots` and `rows`. Its memory must begin at a
    /// page.
    pub fn words(slots: usize, rows: usize) -> usize {
        HEADER + slots * slot_words(rows) + logins::WORDS + rows * tenants::WORDS
    }

    /// Makes a registry of zeroed memory.
    pub fn create(memory: &'static [AtomicU64], slots: usize, rows: usize) -> Registry {
        assert!(slots > 0 && rows > 0, "a book has at least one page");
        assert!(
            memory.len() >= Registry::words(slots, rows),
            "the memory is too short for the book"
        );
        assert!(is_aligned(memory), "a book begins at a cache line");
        let header = [MAGIC, LAYOUT, slots as u64, rows as u64, ROW as u64];
        memory.iter().zip(header).for_each(|(word, value)| word.store(value, Relaxed));
        memory[USED_SLOTS].store(slots as u64, Relaxed);
        memory[USED_ROWS].store(rows as u64, Relaxed);
        Registry { memory, slots, rows }
    }

    /// Opens a registry that another process has made.
    pub fn open(memory: &'static [AtomicU64]) -> Result<Registry, Refused> {
        let header: Vec<u64> =
            memory.iter().take(HEADER_WORDS).map(|word| word.load(Relaxed)).collect();
        let &[MAGIC, layout, slots, rows, row] = header.as_slice() else {
            return Err(Refused::Foreign);
        };
        if layout != LAYOUT || row != ROW as u64 {
            return Err(Refused::Layout { found: layout, ours: LAYOUT });
        }
        // A row and a slot take more words than one.
        let is_sane = |count: u64| count <= memory.len() as u64;
        let (slots, rows) = match is_sane(slots) && is_sane(rows) && is_sane(slots * rows) {
            true => (slots as usize, rows as usize),
            false => return Err(Refused::Short),
        };
        if Registry::words(slots, rows) > memory.len() || !is_aligned(memory) {
            return Err(Refused::Short);
        }
        Ok(Registry { memory, slots, rows })
    }

    /// Makes a registry for this process alone, for tests and tools. Its memory is never freed.
    pub fn private(slots: usize, rows: usize) -> Registry {
        let words = Registry::words(slots, rows);
        let mut memory = Vec::new();
        memory.resize_with(words + LINE, || AtomicU64::new(0));
        let memory: &'static [AtomicU64] = Vec::leak(memory);
        let skip = memory.as_ptr().align_offset(LINE * 8).min(LINE);
        Registry::create(&memory[skip..skip + words], slots, rows)
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Records that only the first `slots` and `rows` have ever been used. Readers skip the others,
    /// because reading an untouched page would allocate it.
    pub fn set_used(&self, slots: usize, rows: usize) {
        assert!(slots <= self.slots, "slot {slots} of {}", self.slots);
        assert!(rows <= self.rows, "row {rows} of {}", self.rows);
        self.memory[USED_SLOTS].store(slots as u64, Relaxed);
        self.memory[USED_ROWS].store(rows as u64, Relaxed);
    }

    /// Records the proxy's process data. Only the master calls this.
    pub fn tell_process(&self, process: Process) {
        let Process { pid, started_s, told_s, workers, clients_max, unix_ahead_us } = process;
        let words = [pid, started_s, told_s, workers, clients_max, unix_ahead_us];
        let line = &self.memory[PROCESS..];
        line.iter().zip(words).for_each(|(word, value)| word.store(value, Relaxed));
    }

    /// Returns the data last recorded; all zeros before that.
    pub fn process(&self) -> Process {
        let word = |at: usize| self.memory[PROCESS + at].load(Relaxed);
        let [pid, started_s, told_s, workers, clients_max, unix_ahead_us] =
            [0, 1, 2, 3, 4, 5].map(word);
        Process { pid, started_s, told_s, workers, clients_max, unix_ahead_us }
    }

    /// Records whether lines at level debug are wanted. Only the master calls this.
    pub fn set_debug(&self, is_debug: bool) {
        self.memory[DEBUG].store(u64::from(is_debug), Relaxed);
    }

    /// Whether lines at level debug are wanted.
    pub fn is_debug(&self) -> bool {
        self.memory[DEBUG].load(Relaxed) != 0
    }

    /// Sets the secret of the login rates, which nobody outside the proxy may know.
    pub fn set_secret(&self, secret: u64) {
        self.memory[SECRET].store(secret, Relaxed);
    }

    /// Returns the rates of logins, which all processes share.
    pub fn logins(&self) -> LoginRates {
        let words = &self.memory[self.slot_start(self.slots)..][..logins::WORDS];
        LoginRates::new(words, self.memory[SECRET].load(Relaxed))
    }

    /// Returns the rates of a tenant, which all processes share.
    pub fn tenant_rates(&self, row: u32) -> TenantRates {
        TenantRates::new(self.rates(row))
    }

    /// Returns the pauses of a pool or a tenant, which all processes share.
    pub fn pauses(&self, row: u32) -> Pauses {
        Pauses::new(self.rates(row), &self.memory[PAUSED_UNTIL])
    }

    /// Whether any pool or tenant may be paused, or looked at.
    #[inline]
    pub fn is_special(&self, now_us: u64) -> bool {
        self.memory[PAUSED_UNTIL].load(Relaxed) > now_us
    }

    fn rates(&self, row: u32) -> &'static [AtomicU64; tenants::WORDS] {
        assert!((row as usize) < self.rows, "row {row} of {}", self.rows);
        let at = self.slot_start(self.slots) + logins::WORDS;
        let words = self.memory[at + row as usize * tenants::WORDS..].first_chunk();
        words.expect("each row has words for rates")
    }

    /// Returns the slots that have ever been used.
    fn used(&self) -> std::ops::Range<usize> {
        0..(self.memory[USED_SLOTS].load(Relaxed) as usize).min(self.slots)
    }

    /// Returns the part that the process in `slot` writes. Only one process may use it.
    pub fn metrics(&self, slot: usize) -> WorkerMetrics {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        WorkerMetrics { registry: *self, slot }
    }

    /// Returns a counter, summed over all slots.
    pub fn total<C: Counter>(&self, row: u32, counter: C) -> u64 {
        let values = self.used().map(|slot| self.value(slot, row, counter));
        values.fold(0, u64::wrapping_add)
    }

    /// Returns a server's counter that its protocol defines, by its place, summed over all slots.
    pub fn total_own(&self, row: u32, place: usize) -> u64 {
        assert!(place < OWN_COUNTERS, "a protocol defines no more counters than there are places");
        let values = self.used().map(|slot| self.row(slot, row)[OWN_AT + place].load(Relaxed));
        values.fold(0, u64::wrapping_add)
    }

    /// Returns a counter of one slot.
    pub fn value<C: Counter>(&self, slot: usize, row: u32, counter: C) -> u64 {
        self.row(slot, row)[counter.place()].load(Relaxed)
    }

    /// Returns what a server has been busy with for longest, as any worker knows; what began before
    /// that moment does not count. It reads one word of each slot that was ever used.
    pub fn busy(&self, row: u32, not_before_us: u64) -> Option<Busy> {
        let words = self.used().map(|slot| self.row(slot, row)[BUSY_AT].load(Relaxed));
        words.filter_map(Busy::of_word).filter(|busy| busy.since_us >= not_before_us).min()
    }

    /// Returns a histogram, merged over all slots.
    pub fn histogram(&self, row: u32, which: Latency) -> Histogram {
        self.histograms(row, std::iter::once(which))
    }

    /// Returns several histograms of a row as one, merged over all slots.
    pub fn histograms(&self, row: u32, which: impl Iterator<Item = Latency>) -> Histogram {
        let mut sum = Histogram::default();
        for which in which {
            self.used().for_each(|slot| sum.read(self.head(slot, row, which), self.chunks(slot)));
        }
        sum
    }

    /// Returns a histogram of one slot.
    pub fn histogram_of(&self, slot: usize, row: u32, which: Latency) -> Histogram {
        let mut one = Histogram::default();
        one.read(self.head(slot, row, which), self.chunks(slot));
        one
    }

    /// Returns the number of times that were not recorded because no memory for them was left.
    pub fn times_lost(&self) -> u64 {
        self.used().map(|slot| self.chunks(slot).lost()).sum()
    }

    /// Returns the bytes that a slot's histograms take, without their heads.
    pub fn histogram_bytes(&self, slot: usize) -> usize {
        self.chunks(slot).bytes_taken()
    }

    /// Resets everything, for tools that reuse one registry. Nobody may be writing.
    pub fn clear(&self) {
        (0..self.rows as u32).for_each(|row| self.clear_row(row));
        zero(&self.memory[self.slot_start(self.slots)..][..logins::WORDS]);
    }

    /// Resets a row before it gets another meaning. Nobody may be writing it.
    pub fn clear_row(&self, row: u32) {
        zero(self.rates(row));
        for slot in self.used() {
            // Words that are zero stay untouched: writing to an untouched page would allocate it.
            zero(&self.row(slot, row)[..COUNTERS]);
            zero(&self.row(slot, row)[RESET_AT..][..SlowReset::WORDS + Work::WORDS + heard::WORDS]);
            let chunks = self.chunks(slot);
            self.heads(slot, row).iter().for_each(|head| histogram::clear(head, chunks));
        }
    }

    /// Clears the gauges of a slot whose process has died.
    pub fn clear_gauges(&self, slot: usize) {
        let rows = self.memory[USED_ROWS].load(Relaxed).min(self.rows as u64) as u32;
        (0..rows).for_each(|row| zero(&self.row(slot, row)[..GAUGES]));
    }

    fn row(&self, slot: usize, row: u32) -> &'static [AtomicU64] {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        assert!((row as usize) < self.rows, "row {row} of {}", self.rows);
        &self.memory[self.slot_start(slot) + row as usize * ROW..][..ROW]
    }

    /// Returns where the words of a slot begin; those of the logins follow the last slot.
    fn slot_start(&self, slot: usize) -> usize {
        HEADER + slot * slot_words(self.rows)
    }

    fn chunks(&self, slot: usize) -> Chunks {
        let start = self.slot_start(slot) + self.rows * ROW;
        Chunks { words: &self.memory[start..][..Chunks::words(self.rows)] }
    }

    fn heads(&self, slot: usize, row: u32) -> &'static [Head; HISTOGRAMS] {
        let (heads, _) = self.row(slot, row)[HEADS_AT..].as_chunks();
        heads.first_chunk().expect("a row has room for its heads")
    }

    fn head(&self, slot: usize, row: u32, which: Latency) -> &'static Head {
        &self.heads(slot, row)[which.place()]
    }
}

impl WorkerMetrics {
    /// Returns the counters of a row. The row must be of the kind that the table describes.
    pub fn counters<C: Counter>(&self, row: u32) -> Counters<C> {
        let words = self.registry.row(self.slot, row).first_chunk();
        Counters { words: words.expect("a row has room for its counters"), table: PhantomData }
    }

    /// Returns the writer of the histograms of a row.
    pub fn recorder(&self, row: u32) -> Recorder {
        let registry = &self.registry;
        Recorder { heads: registry.heads(self.slot, row), chunks: registry.chunks(self.slot) }
    }

    /// Returns a counter, summed over all slots.
    pub fn total<C: Counter>(&self, row: u32, counter: C) -> u64 {
        self.registry.total(row, counter)
    }

    /// As [`Registry::busy`].
    pub fn busy(&self, row: u32, not_before_us: u64) -> Option<Busy> {
        self.registry.busy(row, not_before_us)
    }

    /// As [`Registry::tenant_rates`].
    pub fn tenant_rates(&self, row: u32) -> TenantRates {
        self.registry.tenant_rates(row)
    }

    /// As [`Registry::logins`].
    pub fn logins(&self) -> LoginRates {
        self.registry.logins()
    }

    pub fn slot(&self) -> usize {
        self.slot
    }

    pub fn registry(&self) -> Registry {
        self.registry
    }
}

impl<C: Counter> Counters<C> {
    #[inline]
    pub fn add(&self, counter: C, amount: u64) {
        bump(&self.words[counter.place()], amount);
    }

    /// Lowers a gauge.
    pub fn subtract(&self, counter: C, amount: u64) {
        let word = &self.words[counter.place()];
        let value = word.load(Relaxed);
        assert!(value >= amount, "a count of things that exist cannot fall below zero");
        word.store(value - amount, Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, counter: C, value: u64) {
        self.words[counter.place()].store(value, Relaxed);
    }

    /// Returns the value that this writer has written.
    pub fn value(&self, counter: C) -> u64 {
        self.words[counter.place()].load(Relaxed)
    }
}

impl Counters<ServerCounter> {
    /// Says for this worker what the server is busy with, or that this worker knows of nothing.
    pub fn set_busy(&self, busy: Option<Busy>) {
        self.words[BUSY_AT].store(busy.map_or(0, Busy::to_word), Relaxed);
    }

    /// Returns what this worker has said.
    pub fn busy(&self) -> Option<Busy> {
        Busy::of_word(self.words[BUSY_AT].load(Relaxed))
    }

    /// Adds to a counter that the server's protocol defines, by its place.
    pub fn add_own(&self, place: usize, amount: u64) {
        assert!(place < OWN_COUNTERS, "a protocol defines no more counters than there are places");
        bump(&self.words[OWN_AT + place], amount);
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Foreign => write!(f, "this memory is no registry of counters"),
            Refused::Layout { found, ours } => {
                write!(f, "the counters are laid out as {found:x}, and this program as {ours:x}")
            }
            Refused::Short => write!(f, "the memory of the counters is cut short"),
        }
    }
}

fn zero(words: &[AtomicU64]) {
    words.iter().filter(|word| word.load(Relaxed) != 0).for_each(|word| word.store(0, Relaxed));
}

/// Returns the words of a slot with so many rows.
fn slot_words(rows: usize) -> usize {
    rows * ROW + Chunks::words(rows) + slow_log::WORDS + tap::WORDS
}

/// A cache line, in words.
const LINE: usize = 8;

fn is_aligned(memory: &[AtomicU64]) -> bool {
    memory.as_ptr().addr().is_multiple_of(LINE * 8)
}

#[cfg(test)]
mod tests;
