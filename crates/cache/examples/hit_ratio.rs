//! Compares hit ratios of bounded stores: this crate, a plain LRU list with the same number of
//! bytes (each item charged this crate's slot), and, if a port is given, a real memcached.
//!
//! `cargo run --release -p cache --example hit_ratio -- [MEGABYTES] [PORT of memcached -m]`
//!
//! Each trace reads keys and sets those that missed, as an application does.

// The crate has no socket; this example opens one to ask a real server.
#![allow(clippy::disallowed_types)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use cache::{Mode, NewItem, Store};

const NOW: u64 = 1_700_000_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws ranks with probability proportional to rank^-s.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: usize, s: f64) -> Zipf {
        let mut sum = 0.0;
        let mut steps: Vec<f64> = Vec::with_capacity(keys);
        for rank in 1..=keys {
            sum += (rank as f64).powf(-s);
            steps.push(sum);
        }
        steps.iter_mut().for_each(|step| *step /= sum);
        Zipf(steps)
    }

    fn draw(&self, random: &mut Random) -> usize {
        let unit = random.unit();
        self.0.partition_point(|step| *step < unit)
    }
}

trait Cache {
    fn ask(&mut self, key: u64, len: usize) -> bool;
}

struct Ours(Store);

impl Cache for Ours {
    fn ask(&mut self, key: u64, len: usize) -> bool {
        let name = format!("key:{key:016}");
        if self.0.get(name.as_bytes(), NOW).is_some() {
            return true;
        }
        let value = vec![b'v'; len];
        let item = NewItem { key: name.as_bytes(), value: &value, ..NewItem::default() };
        self.0.store(Mode::Set, &item, NOW);
        false
    }
}

/// A perfect LRU list: stamps in a queue, stale ones skipped.
struct Lru {
    room: usize,
    clock: u64,
    items: HashMap<u64, (u64, usize)>,
    queue: std::collections::VecDeque<(u64, u64)>,
}

impl Cache for Lru {
    fn ask(&mut self, key: u64, len: usize) -> bool {
        self.clock += 1;
        self.queue.push_back((key, self.clock));
        if let Some((stamp, _)) = self.items.get_mut(&key) {
            *stamp = self.clock;
            return true;
        }
        let size = (26 + 20 + len).div_ceil(8) * 8;
        while self.room < size {
            let (old, stamp) = self.queue.pop_front().expect("an empty list has room");
            if self.items.get(&old).is_some_and(|(last, _)| *last == stamp) {
                let (_, freed) = self.items.remove(&old).expect("it was just found");
                self.room += freed;
            }
        }
        self.room -= size;
        self.items.insert(key, (self.clock, size));
        false
    }
}

struct Memcached(BufReader<TcpStream>);

impl Cache for Memcached {
    fn ask(&mut self, key: u64, len: usize) -> bool {
        let request = format!("get key:{key:016}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).expect("write to memcached");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("read from memcached");
        if line.starts_with("VALUE") {
            let mut rest = vec![0; len + 2 + 5];
            self.0.read_exact(&mut rest).expect("read from memcached");
            return true;
        }
        let mut set = format!("set key:{key:016} 0 0 {len} noreply\r\n").into_bytes();
        set.resize(set.len() + len, b'v');
        set.extend_from_slice(b"\r\n");
        self.0.get_mut().write_all(&set).expect("write to memcached");
        false
    }
}

/// Calls `visit` for each read of a trace with a key and the length of its value, which depends
/// only on the key.
fn trace(name: &str, asks: usize, keys: usize, visit: &mut dyn FnMut(u64, usize)) {
    let zipf = Zipf::new(keys, if name.contains("0.8") { 0.8 } else { 1.0 });
    let mut random = Random(7);
    let mut scanned = 1u64 << 40;
    let sized = |key: u64| {
        if name.contains("mixed") { 20 + (Random(key).next() % 1500) as usize } else { 100 }
    };
    for ask in 0..asks {
        // The ranks drift, so that popular keys do not stay popular for ever.
        let drift = if name.contains("drift") { ask / 20 } else { 0 };
        let key = (zipf.draw(&mut random) + drift) as u64;
        visit(key, sized(key));
        if name.contains("scan") && ask % 3 == 0 {
            scanned += 1;
            visit(scanned, sized(scanned));
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let megabytes: usize = args.next().map_or(16, |arg| arg.parse().expect("MEGABYTES"));
    let port: Option<u16> = args.next().map(|arg| arg.parse().expect("PORT"));
    let memory = megabytes << 20;
    let keys = memory / 40;
    println!("{megabytes} MiB, {keys} keys; hits of all asks in the second half, percent");
    for name in [
        "zipf 1.0",
        "zipf 0.8",
        "zipf 1.0 scan",
        "zipf 0.8 scan",
        "zipf 1.0 drift",
        "zipf 1.0 mixed",
    ] {
        let mut caches: Vec<(&str, Box<dyn Cache>)> = vec![
            ("ours", Box::new(Ours(Store::new(memory, 1 << 20)))),
            (
                "lru",
                Box::new(Lru {
                    // A list needs two more pointers for each item, and a hash table entry as this
                    // crate does.
                    room: memory - memory / 12,
                    clock: 0,
                    items: HashMap::new(),
                    queue: Default::default(),
                }),
            ),
        ];
        if let Some(port) = port {
            let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect to memcached");
            stream.set_nodelay(true).expect("TCP_NODELAY");
            let mut memcached = BufReader::new(stream);
            memcached.get_mut().write_all(b"flush_all\r\n").expect("write to memcached");
            memcached.read_line(&mut String::new()).expect("read from memcached");
            caches.push(("memcached", Box::new(Memcached(memcached))));
        }
        let asks = keys * 8;
        print!("{name:16}");
        for (label, cache) in &mut caches {
            let (mut seen, mut hits) = (0u64, 0u64);
            trace(name, asks, keys, &mut |key, len| {
                seen += 1;
                let hit = cache.ask(key, len);
                hits += u64::from(hit && seen > asks as u64 / 2);
            });
            let counted = seen - asks as u64 / 2;
            print!("  {label} {:.2}", hits as f64 * 100.0 / counted as f64);
        }
        println!();
    }
}
