//! The rows of the table: the load, the servers, and the bar that quickack must meet.

use std::time::Duration;

use crate::acts::Act;
use crate::load::{Arrival, Mix, Wire, Workload, Writing};
use crate::peers::{Contestant, PEERS, Peer};
use crate::process::Cpus;
use crate::servers::Backend;
use crate::window::Window;

#[derive(Clone)]
pub struct Row {
    pub name: &'static str,
    pub what: String,
    pub work: Workload,
    pub servers: usize,
    pub backend: Backend,
    pub merge_gets: bool,
    pub cpus: Cpus,
    /// A delay between proxy and servers, both ways together; zero is none.
    pub round_trip: Duration,
    pub contestants: Vec<Contestant>,
    pub bars: Vec<Bar>,
    /// Open loop at this share of nutcracker's closed-loop rate, which the row measures first.
    pub load_share: Option<f64>,
    pub part: Part,
}

/// The place of a row on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// In the main table.
    Main,
    /// In the table of the rows with Redis.
    Redis,
    /// In its own section.
    Own,
}

/// One contestant's figure compared with another's in the same round.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    pub figure: Figure,
    pub of: Contestant,
    pub beside: Contestant,
    /// The limit; None if the comparison is only reported.
    pub limit: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Proxy CPU per request, a ratio.
    Cpu,
    /// Requests per second, a ratio.
    Requests,
    /// Resident memory, a ratio.
    Resident,
    /// 99th percentile of latency, a ratio.
    P99,
    /// Increase of the 99th percentile of latency, milliseconds.
    P99Added,
}

impl Figure {
    pub fn name(self) -> &'static str {
        match self {
            Figure::Cpu => "CPU per request",
            Figure::Requests => "requests/s",
            Figure::Resident => "resident memory",
            Figure::P99 => "p99",
            Figure::P99Added => "p99 added, ms",
        }
    }

    /// Returns whether less is better.
    pub fn is_cost(self) -> bool {
        self != Figure::Requests
    }

    pub fn compare(self, ours: &Window, theirs: &Window) -> f64 {
        let ratio = |figure: fn(&Window) -> f64| figure(ours) / figure(theirs);
        match self {
            Figure::Cpu => ratio(|window| window.proxy_us),
            Figure::Requests => ratio(|window| window.requests_per_s),
            Figure::Resident => ratio(|window| window.memory.resident_kb as f64),
            Figure::P99 => ratio(|window| window.latency.p99),
            Figure::P99Added => (ours.latency.p99 - theirs.latency.p99) / 1000.0,
        }
    }
}

const QUICKACK: Contestant = Contestant::one(Peer::Quickack);
const NUTCRACKER: Contestant = Contestant::one(Peer::Nutcracker);
const DIRECT: Contestant = Contestant::one(Peer::Direct);
const META: Contestant = QUICKACK.speaking(Wire::Meta);
const BINARY: Contestant = QUICKACK.speaking(Wire::Binary);
const TEN_TO_ONE: Mix = Mix::SetEvery(11);
/// Short connections a second in open loop.
const SHORT_RATE: f64 = 8_000.0;
const WORKER_COUNTS: [usize; 4] = [1, 2, 4, 8];
pub const ACCEPTS: [&str; 3] = ["gate", "reuseport", "mutex"];

/// A row with 50 connections, depth 1, gets and sets 10:1, 100-byte values, one memcached, merging
/// on.
pub fn plain(name: &'static str, what: impl Into<String>) -> Row {
    Row {
        name,
        what: what.into(),
        work: Workload {
            connections: 50,
            depth: 1,
            mix: TEN_TO_ONE,
            value_len: 100,
            key_count: 100_000,
            wire: Wire::Text,
            missing: false,
            keys_per_get: 1,
            arrival: Arrival::Closed,
            short: false,
            writing: Writing::Whole,
            verify: false,
        },
        servers: 1,
        backend: Backend::Memcached,
        merge_gets: true,
        cpus: Cpus::Split,
        round_trip: Duration::ZERO,
        contestants: PEERS.map(Contestant::one).to_vec(),
        bars: Vec::new(),
        load_share: None,
        part: Part::Main,
    }
}

/// A plain row with a bar on CPU per request compared with nutcracker.
fn row(name: &'static str, what: &str, cpu_bar: f64) -> Row {
    plain(name, what).bar(Figure::Cpu, cpu_bar)
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

    fn sets_only(mut self) -> Self {
        self.work.mix = Mix::Sets;
        self
    }

    fn pings_only(mut self) -> Self {
        self.work.mix = Mix::Pings;
        self
    }

    fn evals_only(mut self) -> Self {
        self.work.mix = Mix::Evals;
        self
    }

    /// Delays the servers by this much, half of it each way.
    fn far(mut self, round_trip: Duration) -> Self {
        self.round_trip = round_trip;
        self
    }

    fn missing(mut self) -> Self {
        self.work.missing = true;
        self
    }

    fn embedded(mut self) -> Self {
        self.backend = Backend::Embedded;
        self
    }

    fn without_merging(mut self) -> Self {
        self.merge_gets = false;
        self.contestants = vec![NUTCRACKER, QUICKACK];
        self
    }

    fn keys_per_get(mut self, keys: u32, servers: usize) -> Self {
        self.work.keys_per_get = keys;
        self.servers = servers;
        self.gets_only()
    }

    /// Larger values get fewer keys, so that all of them fit into the server.
    fn values(mut self, value_len: usize, key_count: u32) -> Self {
        self.work.value_len = value_len;
        self.work.key_count = key_count;
        self
    }

    fn short(mut self) -> Self {
        self.work.short = true;
        self.gets_only()
    }

    fn open_loop(mut self, rate: f64) -> Self {
        self.work.arrival = Arrival::Poisson(rate);
        self
    }

    fn open_loop_at(mut self, load_share: f64) -> Self {
        self.load_share = Some(load_share);
        self
    }

    /// Gives the row its own section, with these contestants.
    fn among(mut self, contestants: Vec<Contestant>) -> Self {
        self.contestants = contestants;
        self.part = Part::Own;
        self
    }

    /// Adds a bar: one worker of quickack compared with one nutcracker.
    fn bar(self, figure: Figure, limit: f64) -> Self {
        self.judge(figure, QUICKACK, NUTCRACKER, Some(limit))
    }

    /// Adds a bar where both use RESP.
    fn redis_bar(self, figure: Figure, limit: f64) -> Self {
        let [ours, theirs] = [QUICKACK, NUTCRACKER].map(|who| who.speaking(Wire::Resp));
        self.judge(figure, ours, theirs, Some(limit))
    }

    /// Reports CPU and requests a second beside nutcracker in RESP, without a bar.
    fn compared(self) -> Self {
        let [ours, theirs] = [QUICKACK, NUTCRACKER].map(|who| who.speaking(Wire::Resp));
        self.judge(Figure::Cpu, ours, theirs, None).judge(Figure::Requests, ours, theirs, None)
    }

    /// Adds a bar for quickack with this protocol, and a comparison with its own classic text.
    fn word(self, who: Contestant, limit: f64) -> Self {
        self.judge(Figure::Cpu, who, NUTCRACKER, Some(limit)).judge(
            Figure::Cpu,
            who,
            QUICKACK,
            None,
        )
    }

    fn judge(
        mut self,
        figure: Figure,
        of: Contestant,
        beside: Contestant,
        limit: Option<f64>,
    ) -> Self {
        self.bars.push(Bar { figure, of, beside, limit });
        self
    }
}

/// The seed experiment: 6,000 requests a second, half of them sets, open loop.
pub fn seed(writing: Writing) -> Row {
    let mut row = plain("seed", "6,000 requests/s open loop, 50 connections");
    row.work.mix = Mix::SetEvery(2);
    row.work.arrival = Arrival::Poisson(6000.0);
    row.work.writing = writing;
    row
}

/// A row without stored keys, for `php.rs`.
pub fn php() -> Row {
    let mut row = plain("php", "one connection, binary misses").missing();
    // Without pinning, as on an ordinary host, so that the scheduler places processes by their
    // waits.
    row.cpus = Cpus::All;
    row
}

/// Connections that have received one value of 10 KB each, and are then idle.
pub fn idle() -> Row {
    plain("idle", "10,000 connections, one get of 10 KB each").values(10_000, 100)
}

/// One Redis without keys, for `binding.rs`.
pub fn binding() -> Row {
    redis("binding", "transactions, waits and subscriptions").missing()
}

/// One large value in transit.
pub fn one_large() -> Row {
    plain("one", "one get of 1 MB in flight").values(1_000_000, 1)
}

/// The full load of eight workers.
pub fn busy() -> Row {
    plain("master", "closed loop, 64 connections, depth 4").connections(64).depth(4)
}

pub fn rows() -> Vec<Row> {
    use Figure::{P99, Requests, Resident};
    let mut rows = vec![
        row("p1", "50 connections, depth 1, GET:SET 10:1", 0.75),
        row("c500", "500 connections, depth 1", 0.75).connections(500).bar(Resident, 1.0),
        row("p4", "50 connections, depth 4", 0.45).depth(4),
        row("p16", "50 connections, depth 16", 0.25)
            .depth(16)
            .bar(Requests, 3.0)
            .bar(Resident, 1.0),
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
        row("mget20k", "20,000 keys a get, 4 servers, 4 connections", 0.70)
            .keys_per_get(20_000, 4)
            .connections(4),
        row("v10k", "values of 10 KB", 0.95).values(10_000, 20_000),
        row("v1m", "values of 1 MB", 0.90).values(1_000_000, 400),
        row("short", "connect, one get, close", 0.90).short(),
        plain("half", "open loop at half of nutcracker's p1 rate").open_loop_at(0.5).bar(P99, 1.0),
    ];
    rows.extend(redis_rows());
    rows.extend(worded());
    rows.extend(far_rows());
    rows.push(scaling("w2k", 2_000.0));
    rows.push(scaling("w10k", 10_000.0));
    rows.push(scaling("w20k", 20_000.0));
    rows.push(pairs("n2", 1));
    rows.push(pairs("n2p16", 16));
    rows.push(accepts("short8k").connections(1_000).open_loop(SHORT_RATE));
    rows.push(accepts("shortc"));
    rows.push(reload());
    rows
}

/// The newer protocols compared with nutcracker in classic text, its only protocol.
fn worded() -> [Row; 6] {
    let quiet = |name, what| {
        let who = vec![NUTCRACKER, QUICKACK, BINARY];
        plain(name, what).keys_per_get(100, 4).among(who).word(BINARY, 0.75)
    };
    [
        words("get1", "gets only, depth 1, by protocol")
            .gets_only()
            .word(META, 0.80)
            .word(BINARY, 0.85),
        words("get16", "gets only, depth 16, by protocol")
            .depth(16)
            .gets_only()
            .word(META, 0.30)
            .word(BINARY, 0.35),
        words("set16", "sets only, depth 16, by protocol")
            .depth(16)
            .sets_only()
            .word(META, 0.85)
            .word(BINARY, 0.85),
        quiet("quiet100", "100 keys a get (binary: GETKQ x 100 and NOOP), 4 servers, all hits"),
        quiet("quiet100m", "the same, all misses").missing(),
        words("large", "values of 1 MB, GET:SET 10:1, by protocol")
            .values(1_000_000, 400)
            .judge(Figure::Cpu, QUICKACK, NUTCRACKER, Some(0.90))
            .word(META, 0.90)
            .word(BINARY, 0.90),
    ]
}

/// The same loads in RESP, with Redis as the server.
fn redis_rows() -> Vec<Row> {
    let row = |name, what: &str, cpu_bar| redis(name, what).redis_bar(Figure::Cpu, cpu_bar);
    vec![
        row("r1", "Redis: 50 connections, depth 1, GET:SET 10:1", 0.81),
        row("rc500", "Redis: 500 connections, depth 1", 0.77).connections(500),
        row("r16", "Redis: 50 connections, depth 16", 0.40)
            .depth(16)
            .redis_bar(Figure::Requests, 1.9),
        redis("rget16", "Redis: gets only, depth 16").depth(16).gets_only(),
        row("rmget10", "Redis: MGET of 10 keys, 4 servers", 0.75).keys_per_get(10, 4),
        row("rmget100", "Redis: MGET of 100 keys, 4 servers", 0.70).keys_per_get(100, 4),
        row("rv10k", "Redis: values of 10 KB", 0.89).values(10_000, 20_000),
        row("rv1m", "Redis: values of 1 MB", 0.90).values(1_000_000, 400),
        row("rshort", "Redis: connect, one GET, close", 0.90).short(),
        redis("reval1", "Redis: EVAL of a short script, depth 1").evals_only().compared(),
        redis("reval16", "Redis: EVAL of a short script, depth 16")
            .depth(16)
            .evals_only()
            .compared(),
        row("rping16", "Redis: PING, depth 16", 0.30).depth(16).pings_only(),
    ]
}

/// Rows with servers at a distance, where a request is limited by the round trip.
fn far_rows() -> [Row; 2] {
    let far = Duration::from_millis(50);
    let three = |wire| [NUTCRACKER, QUICKACK, DIRECT].map(|who| who.speaking(wire)).to_vec();
    let p16 = plain("p16far", "p16, servers 50 ms away (25 ms each way)").depth(16).far(far);
    let r16 = redis("r16far", "r16, servers 50 ms away (25 ms each way)").depth(16).far(far);
    [
        p16.among(three(Wire::Text)).bar(Figure::Requests, 0.98),
        r16.among(three(Wire::Resp)).redis_bar(Figure::Requests, 0.98),
    ]
}

/// A plain row with RESP and one Redis.
fn redis(name: &'static str, what: &str) -> Row {
    let contestants = [NUTCRACKER, QUICKACK, Contestant::one(Peer::Direct)];
    let mut row = plain(name, what).among(contestants.map(|who| who.speaking(Wire::Resp)).to_vec());
    row.backend = Backend::Redis;
    row.part = Part::Redis;
    row
}

fn words(name: &'static str, what: &str) -> Row {
    plain(name, what).among(vec![NUTCRACKER, QUICKACK, META, BINARY])
}

/// The same load on an increasing number of workers, all of them on one CPU.
fn scaling(name: &'static str, rate: f64) -> Row {
    let what = format!("{rate} requests/s open loop, 64 connections, on 1 to 8 workers");
    let workers = WORKER_COUNTS.map(|count| Contestant::of(Peer::Quickack, count));
    let contestants = workers.into_iter().chain([NUTCRACKER]).collect();
    let mut row = plain(name, what).connections(64).open_loop(rate).among(contestants);
    for more in &workers[1..] {
        row = row.judge(Figure::Cpu, *more, workers[0], Some(1.05));
    }
    row.judge(Figure::Cpu, QUICKACK, NUTCRACKER, None)
}

/// Two workers compared with two processes of nutcracker, each on its own CPU.
fn pairs(name: &'static str, depth: usize) -> Row {
    let what = format!("closed loop, 100 connections, depth {depth}, two CPUs shared by all");
    let [ours, theirs] = [Peer::Quickack, Peer::Nutcracker].map(|peer| Contestant::of(peer, 2));
    let contestants = vec![ours, theirs, QUICKACK, NUTCRACKER];
    let mut row = plain(name, what).connections(100).depth(depth).among(contestants);
    row.cpus = Cpus::All;
    row.judge(Figure::Requests, ours, theirs, Some(1.3))
        .judge(Figure::Cpu, ours, theirs, None)
        .judge(Figure::Cpu, ours, QUICKACK, None)
}

/// Connect, one get, close, for each method of accepting.
fn accepts(name: &'static str) -> Row {
    let of = |accept| [1, 2, 4].map(|it| Contestant::of(Peer::Quickack, it).accepting(accept));
    let ours: Vec<Contestant> = ACCEPTS.into_iter().flat_map(of).collect();
    let all = ours.iter().copied().chain([NUTCRACKER]).collect();
    let what = match name {
        "short8k" => "connect, one get, close: 8,000 a second, open loop",
        _ => "connect, one get, close: 50 at a time, closed loop",
    };
    let mut row = plain(name, what).short().among(all);
    for who in ours {
        row =
            row.judge(Figure::Cpu, who, NUTCRACKER, None).judge(Figure::P99, who, NUTCRACKER, None);
    }
    row
}

/// Four workers without changes compared with four that are reloaded five times a second.
fn reload() -> Row {
    let quiet = Contestant::of(Peer::Quickack, 4);
    let acts = [Act::SameFile, Act::Timeout, Act::Workers].map(|act| quiet.under(act));
    let contestants = acts.into_iter().chain([quiet]).collect();
    let what = "10,000 requests/s open loop, 64 connections, reloads under load";
    let mut row = plain("reload", what).connections(64).open_loop(10_000.0).among(contestants);
    for changed in acts {
        row = row.judge(Figure::P99Added, changed, quiet, Some(1.0));
    }
    row
}
