//! The rows of the table: what is asked, what stands behind, and the bar that quickack must meet.

use crate::load::{Arrival, Mix, Workload, Writing};
use crate::peers::{PEERS, Peer};
use crate::servers::Backend;

pub struct Row {
    pub name: &'static str,
    pub what: &'static str,
    pub work: Workload,
    pub servers: usize,
    pub backend: Backend,
    pub merge_gets: bool,
    pub peers: &'static [Peer],
    pub bar: Bar,
    /// Open loop at this share of nutcracker's closed-loop rate, which the row measures first.
    pub load_share: Option<f64>,
}

/// Limits of the ratio quickack / nutcracker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bar {
    /// Proxy CPU per request, at most.
    pub cpu: Option<f64>,
    /// Requests per second, at least.
    pub requests: Option<f64>,
    /// Resident memory, at most.
    pub resident: Option<f64>,
    /// 99th percentile of latency, at most.
    pub p99: Option<f64>,
}

const PROXIES: &[Peer] = &[Peer::Nutcracker, Peer::Quickack];
const TEN_TO_ONE: Mix = Mix::SetEvery(11);

/// 50 connections, depth 1, gets and sets 10:1, 100-byte values, one memcached, merging on.
fn row(name: &'static str, what: &'static str, cpu_bar: f64) -> Row {
    Row {
        name,
        what,
        work: Workload {
            connections: 50,
            depth: 1,
            mix: TEN_TO_ONE,
            value_len: 100,
            key_count: 100_000,
            keys_per_get: 1,
            arrival: Arrival::Closed,
            short: false,
            writing: Writing::Whole,
            verify: false,
        },
        servers: 1,
        backend: Backend::Memcached,
        merge_gets: true,
        peers: &PEERS,
        bar: Bar { cpu: Some(cpu_bar), ..Bar::default() },
        load_share: None,
    }
}

impl Row {
    fn connections(mut self, connections: usize) -> Self {
        self.work.connections = connections;
        self
    }

    fn depth(mut self, depth: usize) -> Self {
        self.work.depth = depth;
        self
    }

    fn gets_only(mut self) -> Self {
        self.work.mix = Mix::Gets;
        self
    }

    fn embedded(mut self) -> Self {
        self.backend = Backend::Embedded;
        self
    }

    fn without_merging(mut self) -> Self {
        self.merge_gets = false;
        self.peers = PROXIES;
        self
    }

    fn keys_per_get(mut self, keys: u32, servers: usize) -> Self {
        self.work.keys_per_get = keys;
        self.servers = servers;
        self.gets_only()
    }

    /// Fewer keys for larger values: all of them fit into the server.
    fn values(mut self, value_len: usize, key_count: u32) -> Self {
        self.work.value_len = value_len;
        self.work.key_count = key_count;
        self
    }

    fn short(mut self) -> Self {
        self.work.short = true;
        self.gets_only()
    }

    fn requests_bar(mut self, bar: f64) -> Self {
        self.bar.requests = Some(bar);
        self
    }

    fn resident_bar(mut self, bar: f64) -> Self {
        self.bar.resident = Some(bar);
        self
    }

    fn open_loop(mut self, load_share: f64, p99_bar: f64) -> Self {
        self.load_share = Some(load_share);
        self.bar = Bar { p99: Some(p99_bar), ..Bar::default() };
        self
    }
}

/// The seed experiment: 6,000 requests a second, half of them sets, open loop.
pub fn seed(writing: Writing) -> Row {
    let mut row = row("seed", "6,000 requests/s open loop, 50 connections", 1.0);
    row.work.mix = Mix::SetEvery(2);
    row.work.arrival = Arrival::Poisson(6000.0);
    row.work.writing = writing;
    row
}

pub fn rows() -> Vec<Row> {
    vec![
        row("p1", "50 connections, depth 1, GET:SET 10:1", 0.75),
        row("c500", "500 connections, depth 1", 0.75).connections(500).resident_bar(1.0),
        row("p4", "50 connections, depth 4", 0.45).depth(4),
        row("p16", "50 connections, depth 16", 0.25).depth(16).requests_bar(3.0).resident_bar(1.0),
        row("g16", "gets only, depth 16", 0.16).depth(16).gets_only(),
        row("e16", "depth 16, embedded cache behind", 0.60).depth(16).embedded(),
        row("eg16", "gets only, depth 16, embedded cache behind", 0.60)
            .depth(16)
            .gets_only()
            .embedded(),
        row("m1", "depth 1, merge_gets: off", 1.00).without_merging(),
        row("m16", "depth 16, merge_gets: off", 0.85).depth(16).without_merging(),
        row("mget10", "10 keys a get, 4 servers", 0.60).keys_per_get(10, 4),
        row("mget100", "100 keys a get, 4 servers", 0.70).keys_per_get(100, 4),
        row("v10k", "values of 10 KB", 0.95).values(10_000, 20_000),
        row("v1m", "values of 1 MB", 0.90).values(1_000_000, 400),
        row("short", "connect, one get, close", 0.90).short(),
        row("half", "open loop at half of nutcracker's p1 rate", 1.0).open_loop(0.5, 1.0),
    ]
}
