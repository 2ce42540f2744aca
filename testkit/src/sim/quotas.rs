//! Tenants, played by two workers that share a registry: users of two tenants with full pipelines,
//! hand-overs, deaths, and plans with other limits.
//!
//! The promises, and the seeded bugs that break them:
//!
//! * Over any second, a tenant has no more requests than its limit, at both workers together:
//!   `LimitPerWorker`.
//! * A client keeps its user, and so its tenant's keys, wherever it is: `LoseTenant`. No key of
//!   another tenant reaches a server.
//! * Each request is counted once, however often it is read: `ForgetRefund`.
//! * A request that is within the limits is served, whatever the limits were before, and whether
//!   what was above them was delayed or refused.
//! * What a dead worker held is given back; at rest nothing is in flight, and every client has been
//!   answered.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use metrics::{Registry, TenantCounter};
use proto::Endpoints;
use proxy::plan::{Plan, PoolPlan, ServerPlan};
use proxy::tenants::plan::{Over, TenantPlan, TenantRules};
use proxy::users::Users;
use proxy::{Action, Closed, ConnId, Passed, Proxy, Side, Slices, Time};

use super::random::Random;
use super::summary::Summary;
use crate::wire::resp;

/// Plays one seed.
pub fn play(seed: u64, trace: bool, summary: &mut Summary) {
    let registry = REGISTRY.with(|registry| *registry);
    registry.clear();
    let mut random = Random::new(seed);
    let limits = Limits::draw(&mut random);
    let is_rough = random.permille(500);
    let start = Time(1_000_000);
    let workers = (0..WORKERS)
        .map(|slot| Worker::new(limits.plan(), random.number(), start, registry.metrics(slot)))
        .collect();
    let mut scene = Scene {
        registry,
        workers,
        limits,
        clients: Vec::new(),
        now: start,
        random,
        reached: BTreeMap::new(),
        since: start,
        asked: [0; 2],
        is_rough,
        is_calm: false,
        trace,
    };
    (0..STEPS).for_each(|_| scene.step());
    scene.calm();
    let total = |counter| registry.total(TENANTS[0], counter) + registry.total(TENANTS[1], counter);
    summary.tenants += total(TenantCounter::Requests);
    summary.tenants_delayed += total(TenantCounter::Delayed);
}

struct Scene {
    registry: Registry,
    workers: Vec<Worker>,
    limits: Limits,
    clients: Vec<Client>,
    now: Time,
    random: Random,
    /// When requests of a tenant reached a server.
    reached: BTreeMap<usize, VecDeque<u64>>,
    /// Since when the present limits hold.
    since: Time,
    /// Requests that reached the server, by tenant.
    asked: [u64; 2],
    /// Workers die, and clients leave while they wait: not all requests reach the server.
    is_rough: bool,
    /// Nobody is above a limit any more.
    is_calm: bool,
    trace: bool,
}

/// The limits of the two tenants.
#[derive(Clone)]
struct Limits {
    requests: [u64; 2],
    inflight: u64,
    over: Over,
}

struct Worker {
    proxy: Proxy,
    /// Bytes that came for a server and are no whole request yet, by link.
    links: BTreeMap<ConnId, Vec<u8>>,
    seed: u64,
}

struct Client {
    worker: usize,
    id: ConnId,
    /// Its tenant's index.
    of: usize,
    /// Requests without an answer.
    owed: usize,
    input: Vec<u8>,
    is_in: bool,
}

impl Limits {
    fn draw(random: &mut Random) -> Limits {
        let requests = [random.range(200, 2_000) as u64, random.range(200, 2_000) as u64];
        let inflight = if random.permille(500) { u64::MAX } else { 4_000 };
        let over = if random.permille(300) { Over::Refuse } else { Over::Delay };
        Limits { requests, inflight, over }
    }

    /// A pool of the users of two tenants.
    fn plan(&self) -> Plan {
        let server = ServerPlan::new("s0", "s0", 1);
        let redis = proto::protocol("redis").expect("the table has it");
        let mut pool = PoolPlan::new("pool", redis, vec![server]);
        pool.users = Some(Rc::new(Users::new(USERS.map(|user| (user, "x"))).expect("short ones")));
        let tenant = |at: usize| {
            let mut tenant = TenantPlan::new(PREFIXES[at]);
            tenant.users = vec![USERS[at].to_string()];
            tenant.rates[0] = self.requests[at];
            (tenant.inflight_max, tenant.over) = (self.inflight, self.over);
            tenant.weight = 1 + 2 * at as u32;
            let prefix = format!("{}:", PREFIXES[at]).into_bytes();
            tenant.rules = Some(TenantRules::new(Vec::new(), Default::default(), prefix));
            Rc::new(tenant)
        };
        let mut plan = Plan::new(vec![pool]);
        plan.tenants = vec![tenant(0), tenant(1)];
        plan.number();
        plan
    }
}

impl Worker {
    fn new(plan: Plan, seed: u64, now: Time, metrics: metrics::WorkerMetrics) -> Worker {
        Worker { proxy: Proxy::new(plan, seed, now, metrics), links: BTreeMap::new(), seed }
    }
}

impl Scene {
    fn step(&mut self) {
        match self.random.below(100) {
            0..8 if self.clients.len() < CLIENTS_MAX => self.comes(),
            8..50 => self.asks(),
            50..53 => self.leaves(),
            53 if self.is_rough && self.random.permille(100) => self.worker_dies(),
            54..57 => self.moves(),
            57 if self.random.permille(200) => self.limits_change(),
            _ => {
                let time = self.random.range(100, 3_000);
                self.passes(time as u64);
            }
        }
        self.settle();
    }

    /// Nobody asks for more, and everything is answered.
    fn calm(&mut self) {
        for _ in 0..4_000 {
            if self.clients.iter().all(|client| client.owed == 0) {
                break;
            }
            self.passes(2_000);
            self.settle();
        }
        assert!(self.clients.iter().all(|client| client.owed == 0), "a request is never answered");
        self.is_calm = true;
        for at in 0..self.clients.len() {
            self.passes(SECOND / 20);
            self.settle();
            if self.clients[at].is_in {
                self.clients[at].owed += 1;
                let text = format!("GET {}:0\r\n", PREFIXES[self.clients[at].of]);
                self.says(at, &text);
                self.settle();
                assert_eq!(self.clients[at].owed, 0, "a request within the limits waits");
            }
        }
        for (at, tenant) in TENANTS.into_iter().enumerate() {
            let total = |counter| self.registry.total(tenant, counter);
            let here = self.clients.iter().filter(|client| client.is_in && client.of == at).count();
            assert_eq!(total(TenantCounter::ClientsNow), here as u64, "clients of {at}");
            assert_eq!(total(TenantCounter::InflightBytesNow), 0, "in flight of {at}");
            assert_eq!(total(TenantCounter::WaitingNow), 0, "waiting of {at}");
            let requests = total(TenantCounter::Requests);
            assert!(self.is_rough || requests == self.asked[at], "{requests} counted of {at}");
        }
    }

    fn comes(&mut self) {
        let (worker, of) = (self.random.below(WORKERS), self.random.below(USERS.len()));
        let id = self.workers[worker].proxy.handle_accept(POOL, self.now).expect("there is room");
        let (owed, input) = (1, Vec::new());
        self.clients.push(Client { worker, id, of, owed, input, is_in: false });
        let text = format!("AUTH {} x\r\n", USERS[of]);
        self.says(self.clients.len() - 1, &text);
    }

    /// A client sends a pipeline. A slow request waits until the answers before it have come, and
    /// is read again then.
    fn asks(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let at = self.random.below(self.clients.len());
        if !self.clients[at].is_in || self.clients[at].owed > 40 {
            return;
        }
        let prefix = PREFIXES[self.clients[at].of];
        let mut text = String::new();
        let count = self.random.range(1, 12);
        for nth in 0..count {
            text += &match self.random.below(4) {
                0 => format!("SORT {prefix}:{nth}\r\n"),
                _ => format!("GET {prefix}:{nth}\r\n"),
            };
        }
        self.clients[at].owed += count;
        self.says(at, &text);
    }

    fn says(&mut self, at: usize, text: &str) {
        let Client { worker, id, .. } = self.clients[at];
        let block = Rc::new(text.as_bytes().to_vec().into());
        self.workers[worker].proxy.handle_received(id, &block, block.len(), self.now);
    }

    fn leaves(&mut self) {
        if !self.clients.is_empty() {
            let at = self.random.below(self.clients.len());
            if self.clients[at].owed > 0 && !self.is_rough {
                return;
            }
            let client = self.clients.remove(at);
            let worker = &mut self.workers[client.worker].proxy;
            worker.handle_closed(client.id, Closed::Reset, self.now);
        }
    }

    fn worker_dies(&mut self) {
        let slot = self.random.below(WORKERS);
        self.clients.retain(|client| client.worker != slot);
        self.registry.clear_gauges(slot);
        let metrics = self.registry.metrics(slot);
        let seed = self.workers[slot].seed + 1;
        self.workers[slot] = Worker::new(self.limits.plan(), seed, self.now, metrics);
    }

    /// A worker hands its clients to the other, as far as they wait for nothing.
    fn moves(&mut self) {
        let from = self.random.below(WORKERS);
        let to = (from + 1) % WORKERS;
        let gone: Vec<(ConnId, Passed)> = self.workers[from].proxy.hand_over(usize::MAX);
        for (id, passed) in gone {
            let adopted = self.workers[to].proxy.handle_adopted(passed, self.now);
            let is_it = |client: &&mut Client| client.worker == from && client.id == id;
            let client = self.clients.iter_mut().find(is_it).expect("it is a client of ours");
            (client.worker, client.id) = (to, adopted.expect("there is room"));
        }
    }

    fn limits_change(&mut self) {
        self.limits = Limits::draw(&mut self.random);
        for worker in &mut self.workers {
            worker.proxy.install(self.limits.plan(), self.now);
        }
        self.reached.clear();
        self.since = self.now;
    }

    fn passes(&mut self, time: u64) {
        self.now = self.now.after(time);
        for worker in &mut self.workers {
            worker.proxy.handle_timeout(self.now);
        }
    }

    /// Ends the turn of each worker, in any order, until nothing is left to do.
    fn settle(&mut self) {
        let first = self.random.below(WORKERS);
        for at in (0..WORKERS).map(|at| (first + at) % WORKERS) {
            loop {
                let is_asked = self.act(at);
                self.workers[at].proxy.end_turn(self.now);
                let is_served = self.serve(at);
                self.receive(at);
                let is_done = !self.act(at) && !is_asked && !is_served;
                if is_done && !self.workers[at].proxy.wants_turn() {
                    break;
                }
            }
            self.workers[at].proxy.check();
        }
    }

    /// Performs a worker's actions. Returns whether it has been told something.
    fn act(&mut self, at: usize) -> bool {
        let mut is_asked = false;
        let Worker { proxy, links, .. } = &mut self.workers[at];
        while let Some(action) = proxy.poll_action() {
            match action {
                Action::Connect { link, .. } => {
                    is_asked = true;
                    links.insert(link, Vec::new());
                    proxy.handle_connected(link, self.now);
                }
                Action::LookUpEndpoints(id) => {
                    is_asked = true;
                    let address = Some([1; 16]);
                    proxy.handle_endpoints(
                        id,
                        Endpoints { address, ..Default::default() },
                        self.now,
                    );
                }
                Action::End(_) => panic!("a client is closed for nothing"),
                Action::Close(id) if id.is_client() => panic!("a client is closed for nothing"),
                Action::Close(id) => drop(links.remove(&id)),
                _ => {}
            }
        }
        is_asked
    }

    /// The server answers what it was sent.
    fn serve(&mut self, at: usize) -> bool {
        let mut is_served = false;
        while let Some(link) = self.workers[at].proxy.poll_transmit(Side::Link) {
            let bytes = take(&mut self.workers[at].proxy, link, self.now);
            let Some(mut input) = self.workers[at].links.remove(&link) else { continue };
            input.extend_from_slice(&bytes);
            let mut out = Vec::new();
            while let Some((words, len)) = resp::read_command(&input) {
                input.drain(..len);
                let text = |word: Vec<u8>| String::from_utf8_lossy(&word).into_owned();
                let words: Vec<String> = words.into_iter().map(text).collect();
                out.extend_from_slice(self.answer(&words));
            }
            self.workers[at].links.insert(link, input);
            if !out.is_empty() {
                is_served = true;
                let block = Rc::new(out.into());
                self.workers[at].proxy.handle_received(link, &block, block.len(), self.now);
            }
        }
        is_served
    }

    /// Returns the server's answer to a request, which must be one of a tenant for a key of its.
    fn answer(&mut self, words: &[String]) -> &'static [u8] {
        match words[0].as_str() {
            "HELLO" => WELCOME,
            "GET" | "SORT" => {
                let of =
                    PREFIXES.iter().position(|prefix| words[1].starts_with(&format!("{prefix}:")));
                self.note(of.unwrap_or_else(|| panic!("{words:?} reaches a server")));
                if words[0] == "GET" { b"$-1\r\n" } else { b"*0\r\n" }
            }
            _ => b"+OK\r\n",
        }
    }

    /// Notes that a request of a tenant reached a server: not more than the limit in any second.
    fn note(&mut self, of: usize) {
        self.asked[of] += 1;
        let limit = self.limits.requests[of];
        // 5 %, and the requests of a moment at each worker.
        let most = limit + limit / 20 + 4;
        let times = self.reached.entry(of).or_default();
        times.push_back(self.now.0);
        while times.front().is_some_and(|first| self.now.0 - first > SECOND) {
            times.pop_front();
        }
        // What came before the limits changed may still be on its way.
        let is_settled = self.now.since(self.since) > SECOND;
        let count = times.len() as u64;
        assert!(!is_settled || count <= most, "{count} requests in a second, of {limit}");
    }

    /// Takes what a worker has for its clients.
    fn receive(&mut self, worker: usize) {
        while let Some(id) = self.workers[worker].proxy.poll_transmit(Side::Client) {
            let bytes = take(&mut self.workers[worker].proxy, id, self.now);
            let at = self.clients.iter().position(|one| one.worker == worker && one.id == id);
            let at = at.expect("it is a client of ours");
            self.clients[at].input.extend_from_slice(&bytes);
            self.judge(at);
        }
    }

    fn judge(&mut self, at: usize) {
        let client = &mut self.clients[at];
        while let Some(end) = client.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = client.input.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if self.trace {
                println!("{:>9} us  {} hears {}", self.now.0, USERS[client.of], line.trim_end());
            }
            let is_over = line.starts_with("-ERR tenant '") && !self.is_calm;
            assert!(!line.starts_with('-') || is_over, "{} hears {line}", USERS[client.of]);
            client.owed = client.owed.checked_sub(1).expect("an answer has a question");
            client.is_in = true;
        }
    }
}

/// Takes the bytes for a connection.
fn take(proxy: &mut Proxy, id: ConnId, now: Time) -> Vec<u8> {
    let mut slices = Slices::default();
    proxy.transmit(id, &mut slices);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    if !bytes.is_empty() {
        proxy.handle_transmitted(id, bytes.len(), now);
    }
    bytes
}

thread_local! {
    /// Reused by one run after the other, since the memory of a registry is never freed.
    static REGISTRY: Registry = Registry::private(WORKERS, 6);
}
const POOL: u32 = 1;
/// After the pool and its server.
const TENANTS: [u32; 2] = [3, 4];
const USERS: [&str; 2] = ["anna", "bob"];
const PREFIXES: [&str; 2] = ["shop", "rest"];
const WORKERS: usize = 2;
const CLIENTS_MAX: usize = 12;
const STEPS: usize = 3_000;
const SECOND: u64 = 1_000_000;
const WELCOME: &[u8] = b"*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n\
    $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:5\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
    $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
