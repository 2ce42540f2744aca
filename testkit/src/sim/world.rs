//! The world around one `Proxy`: clients, servers, bytes on the wire, and the clock. A step is one
//! event; then the proxy's actions are performed and everything is checked.
//!
//! `turn.rs` is the driver, `traffic.rs` has the actions of clients and servers, `faults.rs` the
//! faults, `finish.rs` the end of a run.

use std::collections::BTreeMap;
use std::rc::Rc;

use proxy::outliers::{Decision, OutlierDetector};
use proxy::plan::{Plan, PoolPlan, ServerPlan, Timeouts};
use proxy::{Block, ConnId, Proxy, Time};
use shard::Distribution;

use super::client::Client;
use super::conn::Conn;
use super::journal::Journal;
use super::liveness::SLOW_IN_A_ROW;
use super::random::Random;
use super::redis::{Handshakes, Model};
use super::rings::{Rings, View};
use super::scene::{FaultKind, Key, Scene, keys};
use super::server::Server;
use super::summary::Summary;

pub struct World {
    pub proxy: Proxy,
    pub counters: metrics::Registry,
    pub outliers: OutlierDetector,
    /// Decisions on their way to the proxy.
    pub decisions: Vec<(Time, Decision)>,
    pub scene: Scene,
    pub random: Random,
    pub now: Time,
    pub pools: Vec<PoolModel>,
    /// By the index of their id.
    pub clients: Vec<Option<Client>>,
    pub conns: Vec<Option<Conn>>,
    /// The links for which there was no socket.
    pub unmade: Vec<ConnId>,
    /// The server a link of which is ending now.
    pub ending: Option<(usize, usize)>,
    /// When a client was closed last for the memory that it held.
    pub unread_at: Time,
    /// Links that the proxy has closed and whose last bytes the server has not read yet.
    pub orphans: Vec<Conn>,
    pub journal: Journal,
    pub summary: Summary,
    pub trace: bool,
    /// By link and pair of clients that have waited there since: how often each has stood aside,
    /// and by how much more the first was granted.
    pub grants: BTreeMap<[ConnId; 3], ([u32; 2], i64)>,
    /// The rounds and the in-flight limit of each link when the last turn ended.
    pub inflight_limits: BTreeMap<ConnId, (u32, u64)>,
    /// Steps since the start of the loop turn.
    pub turn_age: usize,
    /// Connections whose pending ACK the proxy wanted flushed since the list was cleared.
    pub flushed: Vec<ConnId>,
    /// The block that reads fill, as in the program.
    pub block: Rc<Block>,
    pub clients_ever: u32,
    /// The event by which faults were over: later ones cannot explain an error.
    pub over: u64,
    /// The end of the run: nothing is slow or small any more.
    pub is_calm: bool,
    pub is_draining: bool,
}

/// One pool's keys and servers.
pub struct PoolModel {
    /// The plan installed last.
    pub plan: PoolPlan,
    /// It is in the plan.
    pub is_planned: bool,
    pub keys: Vec<Key>,
    /// All servers that may ever be in the plan.
    pub servers: Vec<Server>,
    pub rings: Rings,
    /// The handshakes of links.
    pub handshakes: Handshakes,
    /// Its servers are Redis.
    pub is_redis: bool,
    /// Number of times that keys have moved.
    pub epoch: u32,
    /// All deadlines so far, each with the time from which it applied.
    pub deadlines: Vec<(Time, Timeouts)>,
    /// A plan has removed links of its servers.
    pub has_shrunk: bool,
    /// The time at which it left the plan.
    pub gone_since: Time,
}

impl PoolModel {
    fn new(plan: &PoolPlan, universe: &[ServerPlan], random: &mut Random) -> PoolModel {
        let keys = keys(random, plan);
        let servers: Vec<Server> =
            universe.iter().map(|one| Server::new(one, keys.len())).collect();
        PoolModel {
            rings: Rings::new(View::new(plan, &servers, &keys)),
            handshakes: Handshakes::new(plan),
            is_redis: plan.protocol.name() == "redis",
            deadlines: vec![(Time(0), plan.timeouts)],
            plan: plan.clone(),
            is_planned: true,
            keys,
            servers,
            epoch: 0,
            has_shrunk: false,
            gone_since: Time(u64::MAX),
        }
    }

    /// Returns whether a server is in the pool's plan.
    pub fn has(&self, number: u32) -> bool {
        self.plan.servers.iter().any(|one| one.id == number)
    }

    /// Returns the servers that have owned a key at any time since that event.
    pub fn owners(&self, key: usize, since: u64) -> impl Iterator<Item = usize> {
        let owners = self.rings.owners(key, since);
        (0..self.servers.len()).filter(move |at| owners & 1 << at != 0)
    }

    /// Lists the deadlines that applied at any time since then.
    fn deadlines_applied_since(&self, time: Time) -> impl Iterator<Item = &Timeouts> {
        let ends_since =
            move |at: &usize| self.deadlines.get(at + 1).is_none_or(|(next, _)| *next >= time);
        let applied = (0..self.deadlines.len()).rev().take_while(ends_since);
        applied.map(|at| &self.deadlines[at].1).chain([&self.plan.timeouts])
    }

    /// Returns the shortest value of each deadline since then.
    pub fn deadlines_since(&self, time: Time) -> Timeouts {
        let mut shortest = self.plan.timeouts;
        for one in self.deadlines_applied_since(time) {
            shortest.connect = shortest.connect.min(one.connect);
            shortest.queue = shortest.queue.min(one.queue);
            shortest.reply = shortest.reply.min(one.reply);
            shortest.slow = shortest.slow.min(one.slow);
            shortest.write = shortest.write.min(one.write);
        }
        shortest
    }

    /// Returns the longest time since then that a client had to take its answers.
    pub fn longest_write_since(&self, time: Time) -> u64 {
        self.deadlines_applied_since(time).map(|one| one.write).max().unwrap_or(0)
    }

    /// Returns whether a client's requests for a key go to one server in order: while the ring
    /// stays the same.
    pub fn is_ordered(&self) -> bool {
        self.plan.distribution != Distribution::Random
    }
}

/// Prints one line of a replayed run.
macro_rules! say {
    ($world:expr, $($text:tt)*) => {
        if $world.trace {
            println!("{:>9} us  {}", $world.now.0, format_args!($($text)*));
        }
    };
}
pub(super) use say;

impl World {
    pub fn new(seed: u64, trace: bool) -> World {
        let mut random = Random::new(seed);
        let scene = Scene::new(&mut random);
        let plan: Plan = scene.plan.clone();
        let mut pools: Vec<PoolModel> = plan
            .pools
            .iter()
            .zip(&scene.universe)
            .map(|(pool, universe)| PoolModel::new(pool, universe, &mut random))
            .collect();
        for server in pools.iter_mut().flat_map(|pool| &mut pool.servers) {
            server.has_meta = random.permille(850);
            server.ever_lacked = !server.has_meta;
        }
        for pool in pools.iter_mut().filter(|pool| pool.is_redis) {
            let databases = pool.plan.databases as usize;
            // An old server supports neither RESP3 nor `HELLO`.
            let is_old = random.permille(150);
            for server in &mut pool.servers {
                let is_old = is_old && random.permille(500);
                server.has_meta = !is_old;
                server.ever_lacked = is_old;
                let mut model = Model::new(pool.keys.len(), databases, !is_old);
                model.lacks =
                    random.permille(100).then(|| *random.pick(&["MULTI", "EXEC", "DISCARD"]));
                server.redis = Some(Box::new(model));
            }
        }
        let journal = Journal::new(pools.iter().map(|pool| pool.keys.len()));
        let start = Time(1_000_000);
        let outliers = OutlierDetector::new(&plan);
        let counters = COUNTERS.with(|counters| *counters);
        counters.clear();
        World {
            proxy: Proxy::new(plan, random.number(), start, counters.metrics(0)),
            counters,
            outliers,
            decisions: Vec::new(),
            scene,
            random,
            now: start,
            pools,
            clients: Vec::new(),
            conns: Vec::new(),
            unmade: Vec::new(),
            ending: None,
            unread_at: Time(0),
            orphans: Vec::new(),
            journal,
            summary: Summary::default(),
            trace,
            grants: BTreeMap::new(),
            inflight_limits: BTreeMap::new(),
            turn_age: 0,
            flushed: Vec::new(),
            block: Rc::new(vec![0; BLOCK_LEN].into()),
            clients_ever: 0,
            over: u64::MAX,
            is_calm: false,
            is_draining: false,
        }
    }

    pub fn run(&mut self, steps: u32) {
        say!(self, "{:?} faults {:?}", self.scene.plan, self.scene.faults);
        self.settle();
        for step in 0..steps {
            say!(self, "step {step}");
            self.step();
            self.settle();
            self.check();
        }
        self.summary.steps = u64::from(steps);
        self.finish();
    }

    pub fn step(&mut self) {
        self.pass_time();
        self.decide();
        if self.random.permille(self.scene.install_permille) {
            return self.reload();
        }
        if self.random.permille(self.scene.fault_permille) && !self.scene.faults.is_empty() {
            return self.fault();
        }
        match self.random.below(100) {
            0..50 => self.client_event(),
            50..97 => self.server_event(),
            _ => self.orphan_event(),
        }
    }

    /// Lets a little time pass; sometimes enough for a deadline to expire.
    fn pass_time(&mut self) {
        self.now = self.now.after(self.random.below(self.scene.tick_max) as u64);
        if !self.scene.faults.is_empty() && self.random.permille(15) {
            // An event loop that waits has ended its turn.
            self.end_turn();
            if self.random.permille(700) {
                self.lull();
            }
            let most = match self.proxy.wants_turn() {
                true => 1_000,
                // A reply that dribbles must take long.
                false if self.is_dribbling() && self.random.permille(700) => 3_000,
                false => 60_000,
            };
            let then = self.now.after(self.random.range(1_000, most) as u64);
            let due = self.proxy.poll_timeout().unwrap_or(then);
            self.now = self.now.max(due.min(then));
        }
        self.fire_timers();
    }

    fn is_dribbling(&self) -> bool {
        let mut servers = self.pools.iter().flat_map(|pool| &pool.servers);
        servers.any(|one| one.dribbles_until > self.now)
    }

    /// Returns the indexes of the pool and the server with this id.
    pub fn place(&self, number: u32) -> (usize, usize) {
        let servers =
            |pool: usize| self.pools[pool].servers.iter().position(|one| one.id == number);
        let found = (0..self.pools.len()).find_map(|pool| Some((pool, servers(pool)?)));
        found.expect("the proxy names servers of its plan")
    }

    pub fn fire_timers(&mut self) {
        if self.proxy.poll_timeout().is_some_and(|due| due <= self.now) {
            self.proxy.handle_timeout(self.now);
            let due = self.proxy.poll_timeout();
            assert!(due.is_none_or(|due| due > self.now), "a timer stays due at {due:?}");
            self.carry_out();
        }
        self.note_holds();
        // Time passes only between turns.
        if self.turn_age == 0 {
            self.check_deadlines();
        }
    }

    /// Checks the invariants after each step.
    pub fn check(&self) {
        self.proxy.check();
        if self.summary.installs > 0 && self.turn_age == 0 {
            self.check_rows();
        }
        let plan = &self.scene.plan;
        let holders = self.clients.len() + self.conns.len();
        let most = plan.memory_max.saturating_add(holders * HELD_UNASKED_MAX);
        let held = self.proxy.memory_held();
        assert!(held <= most, "{held} bytes held, {} allowed", plan.memory_max);
        // Keys that are requested alone after an error line are not new requests, so a full queue
        // does not refuse them.
        if self.scene.tight_queues && !self.scene.faults.contains(&FaultKind::ErrorLine) {
            let (longest, bytes) = self.proxy.longest_queue();
            // A client's own batch and the shared one are queued after the last check.
            assert!(longest <= plan.limits.link_queue + 2, "{longest} messages before the last");
            assert!(bytes <= plan.limits.link_outbox, "{bytes} bytes before the last messages");
        }
        for client in self.clients.iter().flatten() {
            assert!(!client.is_given_up, "a client stays of which the log says that it is closed");
            self.check_patience(client);
        }
    }

    /// Checks that no client waits longer for an answer than the longest deadline, counted from the
    /// arrival of the request or from its server's last progress.
    fn check_patience(&self, client: &Client) {
        let Some(expect) = client.expects.iter().find(|one| one.is_owed()) else { return };
        let is_first = client.expects.front().is_some_and(|first| first.index == expect.index);
        let waits = expect.arrived != 0 && !client.is_paused && !self.proxy.is_awaiting(client.id);
        if !waits || client.is_full || !client.socket.is_empty() || !client.inbox.is_empty() {
            return;
        }
        let model = &self.pools[client.pool];
        let progress = |server: usize| model.servers[server].progress;
        // Of a client that has closed its half one message is in flight at a time, at any server.
        let is_one_by_one = client.is_half_closed;
        // And a request that takes another class of links waits for all that is owed to its client.
        let has_large = self.scene.plan.limits.large_min < proxy::limits::LARGE_REQUEST_MIN;
        let last = match expect.key(&self.journal) {
            Some(key) if is_first && model.is_ordered() && !is_one_by_one && !has_large => {
                model.owners(key, expect.arrived).map(progress).max()
            }
            _ => (0..model.servers.len()).map(progress).max(),
        };
        let (changed, _) = model.deadlines.last().expect("there are always deadlines");
        let arrived_at = expect.arrived_at.max(client.resumed_at);
        let since = last.unwrap_or(self.now).max(arrived_at).max(*changed);
        let Timeouts { connect, queue, reply, slow, .. } = model.plan.timeouts;
        let queue = if has_large { queue.max(slow) } else { queue };
        let slow = if model.is_redis { SLOW_IN_A_ROW * slow + reply } else { reply };
        let most = connect.max(queue).max(slow) + 10 * self.scene.tick_max as u64;
        let waited = self.now.since(since);
        assert!(
            waited <= most,
            "client {} has waited {waited} us for request {}, {most} allowed",
            client.number,
            expect.index
        );
    }

    /// Makes a block with `bytes` as the part that was read.
    pub fn fill_block(&mut self, bytes: &[u8]) {
        match Rc::get_mut(&mut self.block) {
            Some(block) => block[..bytes.len()].copy_from_slice(bytes),
            None => {
                let mut block = vec![0; BLOCK_LEN];
                block[..bytes.len()].copy_from_slice(bytes);
                self.block = Rc::new(block.into());
            }
        }
    }
}

thread_local! {
    /// Counters, reused by one run after the other, since the memory of a registry is never freed.
    static COUNTERS: metrics::Registry = metrics::Registry::private(2, ROWS);
}

/// More than the pools and servers of any run.
const ROWS: usize = 32;

/// Length of a block that reads fill, smaller than the program's so that few bytes fill it.
pub const BLOCK_LEN: usize = 20 * 1024;

/// Bytes that one connection may hold regardless of the ceiling: heads, lines, a piece of a
/// request.
const HELD_UNASKED_MAX: usize = 2 * BLOCK_LEN;
