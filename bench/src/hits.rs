//! The hit ratio of a full cache: quickack's embedded cache compared with stock memcached, with the
//! same trace and the same memory, through sockets.
//!
//! Each trace reads keys and stores those that missed, as an application does. Both servers get
//! requests in turn, batch by batch, at a rate that leaves time for memcached's background thread.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use testkit::process::free_address;

use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::process::{self, Process};

/// The keys of a trace and the sizes of their values.
struct Trace {
    name: &'static str,
    values: &'static str,
    /// Ranks are drawn with probability proportional to rank^-alpha.
    alpha: f64,
    /// Returns the length of the value of a key with these random bits.
    size: fn(u64) -> usize,
    mean: usize,
    habit: Habit,
}

/// The readers' behaviour besides drawing ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    Steady,
    /// Every fourth read is for a key that was never read before.
    Scan,
    /// A key's rank falls by one for every 20 reads: the most popular one dies, others rise.
    Drift,
    /// At each eighth of the trace a quarter of all ranks gets new keys.
    Shift,
}

const TRACES: &[Trace] = &[
    Trace { name: "zipf 0.7", alpha: 0.7, ..SMALL },
    Trace { name: "zipf 0.9", alpha: 0.9, ..SMALL },
    Trace { name: "zipf 1.0", ..SMALL },
    Trace { name: "zipf 1.1", alpha: 1.1, ..SMALL },
    Trace { name: "zipf 0.9, a quarter scanned", alpha: 0.9, habit: Habit::Scan, ..SMALL },
    Trace { name: "zipf 1.0, drifting", habit: Habit::Drift, ..SMALL },
    Trace { name: "zipf 1.0, shifting", habit: Habit::Shift, ..SMALL },
    Trace { values: "10 B", size: |_| 10, mean: 10, ..SMALL },
    Trace { values: "1 KB", size: |_| 1000, mean: 1000, ..SMALL },
    Trace { values: "100 KB", size: |_| 100_000, mean: 100_000, ..SMALL },
    Trace {
        values: "20 B to 1.5 KB",
        size: |bits| 20 + (bits % 1500) as usize,
        mean: 770,
        ..SMALL
    },
    Trace { values: "10 B to 10 KB", size: |bits| spread(bits, 10.0, 3.0), mean: 1446, ..SMALL },
    Trace {
        name: "zipf 0.9, a quarter scanned",
        values: "10 B to 10 KB",
        alpha: 0.9,
        size: |bits| spread(bits, 10.0, 3.0),
        mean: 1446,
        habit: Habit::Scan,
    },
    Trace {
        values: "100 B to 100 KB",
        size: |bits| spread(bits, 100.0, 3.0),
        mean: 14_460,
        habit: Habit::Shift,
        ..SMALL
    },
];

const SMALL: Trace = Trace {
    name: "zipf 1.0",
    values: "100 B",
    alpha: 1.0,
    size: |_| 100,
    mean: 100,
    habit: Habit::Steady,
};

/// Returns a length: each order of magnitude from `least` on has equally many values.
fn spread(bits: u64, least: f64, orders: f64) -> usize {
    (least * 10f64.powf(unit(bits) * orders)) as usize
}

/// The results of one side.
struct Shown {
    hits: u64,
    grown_mb: f64,
}

/// Runs every trace; returns true if quickack's hit ratio is nowhere below memcached's.
pub fn run(options: &Options) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = String::from("## Hits of the embedded cache\n\n");
    text.push_str(&page::short_origin(&machine, options));
    text.push_str(METHOD);
    print!("{METHOD}");
    let mut all_met = true;
    for trace in TRACES {
        let (asks, [ours, theirs]) = run_trace(trace, options)?;
        let percent = |shown: &Shown| shown.hits as f64 * 100.0 / asks as f64;
        let gain = percent(&ours) - percent(&theirs);
        all_met &= gain >= 0.0;
        let line = format!(
            "| {} | {} | {asks} | {:.2} | {:.2} | {gain:+.2} | {:.1} | {:.1} |\n",
            trace.name,
            trace.values,
            percent(&ours),
            percent(&theirs),
            ours.grown_mb,
            theirs.grown_mb,
        );
        print!("{line}");
        text.push_str(&line);
    }
    let _ = write!(text, "\n```\n{OURS}\n{THEIRS}\n```\n");
    if options.write {
        page::write(Some("--hits"), &text)?;
    }
    Ok(all_met)
}

/// Returns the number of reads counted, and the results of each side.
fn run_trace(trace: &Trace, options: &Options) -> Result<(u64, [Shown; 2]), String> {
    let mut sides = [OURS, THEIRS].map(|command| Side::start(command, options));
    let [Ok(ours), Ok(theirs)] = &mut sides else {
        return Err(sides.into_iter().find_map(Result::err).expect("one of them failed"));
    };
    let room = MEMORY_MB * (1 << 20) / (trace.mean + ITEM_HEAD);
    let asks = (room * 12).max(ASKS_MIN);
    let mut source = Source::new(trace, room * 5, asks);
    let (mut counted, start) = (0, Instant::now());
    while let Some(batch) = source.batch() {
        let counts = source.drawn > asks / 2;
        counted += if counts { batch.asks } else { 0 };
        for side in [&mut *ours, &mut *theirs] {
            side.send(&batch).map_err(|error| format!("{}: {error}", side.name))?;
        }
        for side in [&mut *ours, &mut *theirs] {
            let misses = side.receive(&batch).map_err(|error| format!("{}: {error}", side.name))?;
            side.hits += if counts { batch.asks - misses } else { 0 };
        }
        let due = Duration::from_secs_f64(source.drawn as f64 / ASKS_PER_SECOND);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    Ok((counted, [ours.shown(), theirs.shown()]))
}

/// Keys read together. A key occurs only once in a batch, since the second read would be a hit.
struct Batch {
    keys: Vec<(u64, usize)>,
    asks: u64,
}

/// Draws a trace.
struct Source<'a> {
    trace: &'a Trace,
    ranks: Vec<f64>,
    asks: usize,
    drawn: usize,
    random: u64,
    scanned: u64,
}

impl Source<'_> {
    fn new(trace: &Trace, keys: usize, asks: usize) -> Source<'_> {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| (rank as f64).powf(-trace.alpha));
        let mut ranks: Vec<f64> = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        ranks.iter_mut().for_each(|step| *step /= sum);
        Source { trace, ranks, asks, drawn: 0, random: 7, scanned: 1 << 40 }
    }

    fn batch(&mut self) -> Option<Batch> {
        let mut batch = Batch { keys: Vec::with_capacity(BATCH), asks: 0 };
        let mut seen = HashSet::new();
        while self.drawn < self.asks && batch.keys.len() < BATCH {
            self.drawn += 1;
            batch.asks += 1;
            let key = self.draw();
            if seen.insert(key) {
                batch.keys.push((key, (self.trace.size)(mixed(key))));
            }
        }
        (batch.asks > 0).then_some(batch)
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        if self.trace.habit == Habit::Scan && self.drawn.is_multiple_of(4) {
            self.scanned += 1;
            return self.scanned;
        }
        let unit = unit(mixed(self.random));
        let rank = self.ranks.partition_point(|step| *step < unit) as u64;
        match self.trace.habit {
            Habit::Steady | Habit::Scan => rank,
            Habit::Drift => rank + self.drawn as u64 / 20,
            Habit::Shift if rank.is_multiple_of(4) => {
                let phase = self.drawn * 8 / self.asks;
                (phase as u64) << 41 | rank
            }
            Habit::Shift => rank,
        }
    }
}

/// The last step of SplitMix64.
fn mixed(bits: u64) -> u64 {
    let mut z = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a number from 0 up to 1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// One of the two servers.
struct Side {
    name: &'static str,
    process: Process,
    stream: BufReader<TcpStream>,
    /// Sets of the keys that missed last.
    pending: Vec<u8>,
    value: Vec<u8>,
    hits: u64,
    idle_kb: u64,
}

impl Side {
    fn start(command: &'static str, options: &Options) -> Result<Side, String> {
        let name = command.split(' ').next().unwrap_or(command);
        let port = free_address().port();
        let memory = MEMORY_MB.to_string();
        let places = [("PORT", &*port.to_string()), ("MB", &*memory)];
        let words = process::words(command, &places, &options.quickack());
        let mut process = Process::start(name, &words, &process::all_cpus())?;
        process.wait_for_port(port)?;
        let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).and_then(|stream| {
            stream.set_nodelay(true)?;
            Ok(BufReader::new(stream))
        });
        let stream = connected.map_err(|error| format!("{name}: {error}"))?;
        let idle_kb = EMPTY_KB;
        let value = vec![b'v'; 1 << 20];
        Ok(Side { name, process, stream, pending: Vec::new(), value, hits: 0, idle_kb })
    }

    /// Stores the keys that missed last, and reads the batch.
    fn send(&mut self, batch: &Batch) -> std::io::Result<()> {
        let mut text = std::mem::take(&mut self.pending);
        text.extend_from_slice(b"get");
        for (key, _) in &batch.keys {
            let _ = write!(text, " {}", name(*key));
        }
        text.extend_from_slice(b"\r\n");
        let sent = self.stream.get_mut().write_all(&text);
        text.clear();
        self.pending = text;
        sent
    }

    /// Reads the replies, prepares sets for the misses, and returns the number of misses.
    fn receive(&mut self, batch: &Batch) -> std::io::Result<u64> {
        let mut missed = batch.keys.iter();
        let mut misses = 0;
        let mut line = String::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let found = line.strip_prefix("VALUE ").and_then(|rest| rest.split(' ').next());
            for (key, len) in missed.by_ref() {
                if Some(&*name(*key)) == found {
                    let rest = &mut self.value[..len + 2];
                    self.stream.read_exact(rest)?;
                    break;
                }
                misses += 1;
                let _ = write!(self.pending, "set {} 0 0 {len} noreply\r\n", name(*key));
                self.pending.extend(std::iter::repeat_n(b'v', *len));
                self.pending.extend_from_slice(b"\r\n");
            }
            if found.is_none() {
                return Ok(misses);
            }
        }
    }

    fn shown(&self) -> Shown {
        let memory = process::memory(&self.process.tree());
        let grown_mb = memory.resident_kb.saturating_sub(self.idle_kb) as f64 / 1024.0;
        Shown { hits: self.hits, grown_mb }
    }
}

fn name(key: u64) -> String {
    format!("key:{key:016}")
}

/// Memory of each side.
const MEMORY_MB: usize = 64;
const OURS: &str = "quickack cache --listen 127.0.0.1:PORT --memory MBm";
const THEIRS: &str = "memcached -l 127.0.0.1 -p PORT -U 0 -m MB -u root";
/// Approximate memory of both programs when empty.
const EMPTY_KB: u64 = 4 * 1024;
/// Approximate memory of an item besides its value.
const ITEM_HEAD: usize = 80;
const ASKS_MIN: usize = 100_000;
const ASKS_PER_SECOND: f64 = 150_000.0;
const BATCH: usize = 32;

const METHOD: &str = "\
Both have 64 MB and are asked for the same keys, of 20 bytes; what a side misses is stored there.
The keys would need five times the memory. Hits are those of the second half of the asks. Memory is
what each process holds at the end beyond the 4 MB that it takes with nothing in it: memcached gives
each size class a first page and has its hash table outside the limit.

| asks for | values | asks counted | quickack % | memcached % | gain | MB | MB |
|---|---|---|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_as_long_and_as_large_as_they_say() {
        for trace in TRACES {
            let mut source = Source::new(trace, 10_000, 20_000);
            let (mut asks, mut bytes, mut keys) = (0, 0, 0);
            while let Some(batch) = source.batch() {
                asks += batch.asks;
                keys += batch.keys.len();
                bytes += batch.keys.iter().map(|(_, len)| len).sum::<usize>();
            }
            assert_eq!(asks, 20_000, "{} {}", trace.name, trace.values);
            let mean = bytes as f64 / keys as f64;
            let ratio = mean / trace.mean as f64;
            assert!((0.5..2.0).contains(&ratio), "{} {}: {mean}", trace.name, trace.values);
        }
    }
}
