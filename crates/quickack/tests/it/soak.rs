//! Memory over many requests, with changing keys, sizes and connections. The short run is part of
//! every test run; the long one is in `cargo xtask test --long`, and `docs/long-tests.md` has its
//! last results.

use std::io::Read;
use std::time::Instant;

use testkit::process::{Client, Memcached, Quickack};
use testkit::random::Random;
use testkit::wire::{text, whole};

use super::quickack;

#[test]
fn memory_does_not_grow_in_front_of_memcached() {
    check(200_000, 600_000);
}

#[test]
#[ignore = "takes many minutes; `cargo xtask test --long` runs it"]
fn soak_memory_does_not_grow_in_front_of_memcached() {
    check(1_000_000, 100_000_000);
}

/// Checks that memory after `all` requests is at most 1 MiB a worker above that after `first`.
fn check(first: u64, all: u64) {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|memcached| memcached.address);
    let quickack = quickack(&addresses, &[]);
    let mut load = Load::new(&quickack);
    let start = Instant::now();
    load.run(first);
    let before = quickack.worker_process().status("VmRSS");
    load.run(all);
    let after = quickack.worker_process().status("VmRSS");
    let rate = load.asked as f64 / start.elapsed().as_secs_f64();
    println!(
        "soak: {} requests, {rate:.0} a second, {} connections; resident {before} KiB after \
         {first}, {after} KiB at the end",
        load.asked, load.connected
    );
    let more = 1024 * quickack.workers().len() as u64;
    assert!(after <= before + more, "{before} KiB after {first}, {after} KiB after {all}");
}

/// Ten clients with pipelines, each replaced now and then.
struct Load<'a> {
    quickack: &'a Quickack,
    clients: Vec<Client>,
    random: Random,
    asked: u64,
    connected: u64,
    request: Vec<u8>,
    reply: Vec<u8>,
}

const CLIENTS: usize = 10;
const DEPTH: u64 = 50;
/// Keys in use at a time; this window moves with the requests.
const KEYS: u64 = 20_000;
/// Rounds of all clients between two replacements.
const TURNS_OF_A_CLIENT: u64 = 100;

impl<'a> Load<'a> {
    fn new(quickack: &'a Quickack) -> Load<'a> {
        let clients: Vec<Client> = (0..CLIENTS).map(|_| quickack.client()).collect();
        let (request, reply) = (Vec::new(), vec![0; 1 << 16]);
        let connected = CLIENTS as u64;
        Load { quickack, clients, random: Random::new(88), asked: 0, connected, request, reply }
    }

    /// Runs until `total` requests have been sent and answered.
    fn run(&mut self, total: u64) {
        let mut turns = 0;
        while self.asked < total {
            turns += 1;
            if turns % TURNS_OF_A_CLIENT == 0 {
                let at = self.chance(CLIENTS as u64) as usize;
                self.clients[at] = self.quickack.client();
                self.connected += 1;
            }
            for at in 0..CLIENTS {
                self.request.clear();
                (0..DEPTH).for_each(|_| self.push_request());
                self.clients[at].send(&self.request);
            }
            for at in 0..CLIENTS {
                self.read_replies(at);
            }
            self.asked += DEPTH * CLIENTS as u64;
        }
    }

    fn push_request(&mut self) {
        let key = self.asked / 50 + self.chance(KEYS);
        let text = match self.chance(100) {
            0..70 => format!("get key{key}\r\n"),
            70..74 => format!("get key{key} key{} key{}\r\n", key + 1, key + 2),
            74..96 => {
                let len = match self.chance(2_000) {
                    0 => self.chance(200_000),
                    1..200 => self.chance(8_000),
                    _ => self.chance(300),
                } as usize;
                format!("set key{key} 0 0 {len}\r\n{}\r\n", "x".repeat(len))
            }
            96..98 => format!("incr key{key} 1\r\n"),
            _ => format!("delete key{key}\r\n"),
        };
        self.request.extend_from_slice(text.as_bytes());
    }

    /// Reads `DEPTH` replies.
    fn read_replies(&mut self, at: usize) {
        let (mut held, mut replies) = (Vec::new(), 0);
        while replies < DEPTH {
            let n = self.clients[at].stream.read(&mut self.reply).expect("a reply in time");
            assert!(n > 0, "closed with {replies} of {DEPTH} replies");
            held.extend_from_slice(&self.reply[..n]);
            let mut gone = 0;
            while let Some((line, len)) = whole(&held[gone..], text::reply(&held[gone..])) {
                assert!(!line.text.starts_with(b"SERVER_ERROR"), "{}", line.lossy());
                replies += u64::from(line.data.is_none());
                gone += len;
            }
            held.drain(..gone);
        }
        assert!(held.is_empty() && replies == DEPTH, "more replies than requests");
    }

    fn chance(&mut self, bound: u64) -> u64 {
        self.random.below(bound as usize) as u64
    }
}
