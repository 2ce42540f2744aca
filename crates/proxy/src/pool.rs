//! A pool and its servers: the server that a key belongs to, and the servers that can be asked.
//!
//! ```text
//!                 a link fails                         known to this worker alone
//!      Ready ─────────────────────▶ Down
//!        ▲                           │ probe failed: the pause grows with the outage
//!        └──────probe answered───────┘
//!
//!      in the ring ◀───decided outside, for all workers at once───▶ ejected
//!      in the plan ─────────────a plan without it─────────────────▶ retired ──idle──▶ vacant
//! ```
//!
//! While a server is down or ejected, no client's request reaches it: a probe finds out when it is
//! back. A retired server gets nothing new; its outstanding requests are still answered.

use metrics::{Counters, Latency, Recorder, WorkerMetrics};
use proto::{Capabilities, ConnKey, Upstream};
use shard::{Distribution, Node, Ring};

use crate::conn_key::ConnKeys;
use crate::id::ConnId;
use crate::plan::{PoolPlan, ServerPlan};
use crate::request::{PendingRequest, UNTIMED};
use crate::script_cache::ScriptCache;
use crate::{Time, limits};

/// A pool at work.
pub(crate) struct Pool {
    /// The plan installed last. Its servers stand in `servers`, in an order of their own.
    pub(crate) plan: PoolPlan,
    pub(crate) upstream: &'static dyn Upstream,
    /// Marks on items are in use: see `proto::MarkUse`. Every worker must know at once, so the
    /// metrics registry holds it as well.
    pub(crate) marked: bool,
    /// A server keeps its index; the index of a vacant one is used again.
    pub(crate) servers: Vec<Server>,
    pub(crate) conn_keys: ConnKeys,
    pub(crate) script_cache: ScriptCache,
    pub(crate) stage: Stage,
    /// When clients that do not take their last answers are given up, if the pool has retired.
    pub(crate) retire_at: Time,
    pub(crate) clients: usize,
    /// When the last event about refused clients was logged.
    pub(crate) refused_told: Option<Time>,
    /// When the number of failed logins is reported next, if it was reported within this second.
    pub(crate) logins_due: Option<Time>,
    /// The number of logins that have failed since.
    pub(crate) logins_failed: u64,
    pub(crate) counters: Counters<metrics::PoolCounter>,
    /// Latency from the parse of a request to the release of its answer.
    pub(crate) reads: Recorder,
    pub(crate) updates: Recorder,
    ring: Ring,
    /// By index: the id of the server there, if it is in the ring.
    members: Vec<Option<u32>>,
}

/// A server at work.
pub(crate) struct Server {
    pub(crate) plan: ServerPlan,
    pub(crate) stage: Stage,
    pub(crate) health: Health,
    /// Its capabilities, as its last handshake showed them.
    pub(crate) capabilities: Option<Capabilities>,
    /// Whether its replies have confirmed its capabilities.
    pub(crate) proof: Proof,
    /// It is out of the ring, by a decision made outside.
    pub(crate) ejected: bool,
    /// Failures since it last answered a request.
    pub(crate) failures: u32,
    /// When its present series of failures began. The pause between probes follows from that.
    pub(crate) failing_since: Option<Time>,
    /// When a probe was last answered.
    pub(crate) back_at: Time,
    /// From then on, a probe that fails counts as a further failure. Probes come often, and must
    /// not get a server ejected sooner.
    pub(crate) count_at: Time,
    /// The pause before `count_at` next time, in microseconds.
    pub(crate) pause: u64,
    /// By connection key, one entry for each link. A client keeps to one entry of its connection
    /// key.
    pub(crate) links: Vec<Vec<Option<ConnId>>>,
    /// The number of live links, including the probe and retiring links.
    pub(crate) alive: usize,
    /// The link that probes whether it is back.
    pub(crate) probe: Option<ConnId>,
    /// Clients wait until its capabilities are known.
    pub(crate) awaited: bool,
    /// When the next probe is due. A timer set for another time is ignored.
    pub(crate) probe_at: Option<Time>,
    /// When we may try to connect again, after an attempt that lacked a resource of our own.
    pub(crate) unable_until: Time,
    /// The length of that pause next time, in microseconds.
    pub(crate) unable_pause: u64,
    /// Connection keys that it has refused, and when each may be tried again.
    pub(crate) refused: Vec<(u16, Time)>,
    pub(crate) silence: Silence,
    pub(crate) counters: Counters<metrics::ServerCounter>,
    /// Latency from the queueing of a message to its reply.
    pub(crate) latency: Recorder,
    /// Its gauges, as last summed up.
    pub(crate) gauges: Gauges,
}

/// Whether a pool or server is part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Part of the plan.
    Planned,
    /// No longer part of the plan; something still refers to it.
    Retired,
    /// Nothing refers to it: its index may be given to another.
    Vacant,
}

/// Whether a server can be asked, as far as this worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Requests go to it; links are made when they are needed.
    Ready,
    /// Its keys fail at once; a probe is outstanding or due.
    Down,
}

/// How long a server that owes answers has been silent on all links of this worker: see
/// `flow/hold.rs`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    pub(crate) hold: Hold,
    /// The number of links on which it owes a reply.
    pub(crate) owing: u32,
    /// When bytes last came from it.
    pub(crate) heard: Time,
    /// When it began to owe, after owing nothing.
    pub(crate) asked: Time,
    /// It was silent for too long, and no byte has come since.
    pub(crate) suspect: bool,
    /// When its silence is checked next. A timer set for another time is ignored.
    pub(crate) look_at: Option<Time>,
}

/// Whether messages to a server are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Messages are sent.
    #[default]
    Off,
    /// No message begins to leave.
    On,
    /// Messages are held until the end of this turn. Then those that no client waits for are
    /// dropped, and the rest are sent.
    Ending,
}

/// Whether a server has the capabilities that its handshake showed. A proxy of another kind may
/// pass on the handshake of the server behind it, and close at the first command that needs the
/// capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Not known: this many links were lost while such a command waited for its answer.
    Open(u8),
    /// It has answered such a command.
    Proven,
    /// It gets no such command any more, until the next plan.
    Disproved,
}

/// The gauges of a server, as they are summed up.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gauges {
    pub(crate) links: u64,
    pub(crate) pending: u64,
    pub(crate) pending_bytes: u64,
    pub(crate) inflight: u64,
    pub(crate) inflight_bytes: u64,
}

impl Pool {
    pub(crate) fn new(plan: PoolPlan, metrics: &WorkerMetrics) -> Pool {
        assert_ne!(plan.id, 0, "a plan is numbered before it is played");
        let conn_keys = ConnKeys::new(home(&plan));
        let server =
            |one: &ServerPlan| Server::new(one.clone(), (1, plan.server_connections), metrics);
        let servers: Vec<Server> = plan.servers.iter().map(server).collect();
        let members = members(&servers);
        Pool {
            ring: ring(plan.distribution, &servers, &members),
            members,
            servers,
            conn_keys,
            script_cache: ScriptCache::default(),
            stage: Stage::Planned,
            retire_at: Time(0),
            clients: 0,
            refused_told: None,
            logins_due: None,
            logins_failed: 0,
            counters: metrics.counters(plan.id),
            reads: metrics.recorder(plan.id, Latency::Reads),
            updates: metrics.recorder(plan.id, Latency::Updates),
            upstream: plan.protocol.upstream(),
            marked: false,
            plan,
        }
    }

    /// Returns the server that a key belongs to. `random` is called only for the random
    /// distribution.
    pub(crate) fn route(&self, key: &[u8], random: impl FnOnce() -> u32) -> Option<usize> {
        if self.servers.len() == 1 && self.members[0].is_some() {
            return Some(0);
        }
        let hash = match self.plan.distribution {
            Distribution::Random => random(),
            _ => self.plan.hash.hash(shard::tagged(key, self.plan.hash_tag)),
        };
        let hash = if bug!(Misroute) && key.len() > 30 { !hash } else { hash };
        self.ring.locate(hash)
    }

    /// Returns the index of a connection key, which is added if no client uses it. None: there are
    /// too many.
    pub(crate) fn conn_key(&mut self, conn_key: ConnKey) -> Option<u16> {
        if let Some(place) = self.conn_keys.find(conn_key) {
            return Some(place);
        }
        let is_unused = |place: u16| {
            let links = self.servers.iter().map(|one| one.links[usize::from(place)].iter());
            links.flatten().all(Option::is_none)
        };
        let place = self.conn_keys.make(conn_key, is_unused)?;
        self.widen();
        Some(place)
    }

    /// Has new clients begin with the plan's connection key.
    pub(crate) fn settle_home(&mut self) {
        self.conn_keys.set_home(home(&self.plan));
        self.widen();
    }

    /// Makes room in each server for the links of each connection key.
    fn widen(&mut self) {
        let places = vec![None; self.plan.server_connections];
        for server in &mut self.servers {
            server.links.resize(self.conn_keys.len(), places.clone());
        }
    }

    /// Returns the index of the first server of the plan from `first` on. A request without keys
    /// that names a server goes there.
    pub(crate) fn place_from(&self, first: u32) -> Option<u32> {
        let is_asked = |at: &u32| self.servers[*at as usize].stage == Stage::Planned;
        (first..self.servers.len() as u32).find(is_asked)
    }

    /// Returns the number of servers in the plan.
    pub(crate) fn planned(&self) -> usize {
        self.servers.iter().filter(|one| one.stage == Stage::Planned).count()
    }

    /// Returns the index of some server that can be asked. It is always the same for the same
    /// number, as long as that server can be asked.
    pub(crate) fn any_place(&self, number: usize) -> Option<usize> {
        let count = self.servers.len();
        let can_be_asked = |at: &usize| {
            let one = &self.servers[*at];
            one.stage == Stage::Planned && !one.ejected && one.health == Health::Ready
        };
        let all = (0..count).map(|at| (number + at) % count);
        // If no server can be asked, one of them still produces the error.
        all.clone().find(can_be_asked).or_else(|| self.place_from(0).map(|at| at as usize))
    }

    /// Returns a server that can be asked and whose capabilities are unknown.
    pub(crate) fn unknown(&self) -> Option<usize> {
        let is_unknown = |one: &Server| {
            let can_be_asked = one.stage == Stage::Planned && one.health == Health::Ready;
            can_be_asked && !one.ejected && one.capabilities.is_none()
        };
        self.servers.iter().position(is_unknown)
    }

    /// Returns the capabilities common to all servers whose capabilities are known.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        let known = self.servers.iter().filter(|one| one.stage == Stage::Planned);
        known.filter_map(|one| one.capabilities).reduce(Capabilities::common)
    }

    /// Returns the id by which the driver and the operator know a server.
    pub(crate) fn server_id(&self, server: u32) -> u32 {
        self.servers[server as usize].plan.id
    }

    /// Returns the index of the server with this id, unless it is vacant.
    pub(crate) fn place_of(&self, pending: u32) -> Option<usize> {
        let is_it = |one: &Server| one.plan.id == pending && one.stage != Stage::Vacant;
        self.servers.iter().position(is_it)
    }

    /// Records the latency of a request of this pool that is answered.
    pub(crate) fn record(&self, pending: &PendingRequest, now: Time) {
        if pending.since != UNTIMED {
            let which = if pending.writes { &self.updates } else { &self.reads };
            which.record(now.since(pending.since));
        }
    }

    /// Builds the ring anew if its servers are others, or if `changed` says that anything else it
    /// is made from is.
    pub(crate) fn rebuild_ring(&mut self, changed: bool) {
        let members = members(&self.servers);
        if members != self.members || changed {
            self.ring = ring(self.plan.distribution, &self.servers, &members);
            self.members = members;
        }
    }

    /// Returns the pause before the next probe of a server. `jitter` is a random number.
    pub(crate) fn probe_pause(&self, server_index: usize, jitter: u32, now: Time) -> u64 {
        let server = &self.servers[server_index];
        let pause = if server.ejected {
            self.plan.server_retry_timeout.max(limits::BACKOFF_FIRST_US)
        } else {
            let failing = server.failing_since.map_or(0, |since| now.since(since));
            let part = failing / limits::PROBE_FRACTION;
            part.clamp(limits::PROBE_FIRST_US, limits::BACKOFF_LAST_US)
        };
        // The pause is three quarters to the whole of it, so that workers do not probe in step.
        pause - pause / 4 * u64::from(jitter % 1024) / 1024
    }
}

impl Server {
    /// Makes a server. `links` holds the number of connection keys, and of links for each.
    pub(crate) fn new(plan: ServerPlan, links: (usize, usize), metrics: &WorkerMetrics) -> Server {
        assert_ne!(plan.id, 0, "a plan is numbered before it is played");
        Server {
            stage: Stage::Planned,
            health: Health::Ready,
            capabilities: None,
            proof: Proof::Open(0),
            ejected: false,
            failures: 0,
            failing_since: None,
            back_at: Time(0),
            count_at: Time(0),
            pause: limits::BACKOFF_FIRST_US,
            links: vec![vec![None; links.1]; links.0],
            alive: 0,
            probe: None,
            awaited: false,
            probe_at: None,
            unable_until: Time(0),
            unable_pause: limits::BACKOFF_FIRST_US,
            refused: Vec::new(),
            silence: Silence::default(),
            counters: metrics.counters(plan.id),
            latency: metrics.recorder(plan.id, Latency::REPLIES),
            gauges: Gauges::default(),
            plan,
        }
    }

    /// Returns the name of its health for operators.
    pub(crate) fn health_name(&self) -> &'static str {
        match self.health {
            _ if self.ejected => "ejected",
            Health::Ready => "ready",
            Health::Down => "down",
        }
    }

    /// Resets a server that is back in the plan: nothing is known of it.
    pub(crate) fn begin_anew(&mut self) {
        self.ejected = false;
        self.failures = 0;
        if self.alive == 0 {
            // Messages that wait on a link were written for these capabilities.
            self.capabilities = None;
        }
        self.forgive();
    }

    /// Makes a server ready again; its next pause is a short one.
    pub(crate) fn forgive(&mut self) {
        self.health = Health::Ready;
        self.end_failing();
        self.probe_at = None;
    }

    /// Ends the series of failures: the next failure is the first of a new one.
    pub(crate) fn end_failing(&mut self) {
        self.failing_since = None;
        self.count_at = Time(0);
        self.pause = limits::BACKOFF_FIRST_US;
    }

    /// Notes a failure; returns whether it counts as a further one.
    pub(crate) fn note_failure(&mut self, now: Time) -> bool {
        // A server that stood for long after a probe was well, even if it got no request.
        let was_well =
            self.health == Health::Ready && now.since(self.back_at) >= limits::LINK_STOOD_US;
        if self.failing_since.is_none() || was_well {
            self.failing_since = Some(now);
        }
        let counts = self.health == Health::Ready || now >= self.count_at;
        if counts {
            self.failures = self.failures.saturating_add(1);
            self.count_at = now.after(self.pause);
            self.pause = (self.pause * 2).min(limits::BACKOFF_LAST_US);
        }
        counts
    }

    /// Starts the pause before the next attempt, after one that lacked a resource of our own.
    pub(crate) fn note_unable(&mut self, now: Time) {
        self.unable_until = now.after(self.unable_pause);
        self.unable_pause = (self.unable_pause * 2).min(limits::BACKOFF_LAST_US);
    }

    /// Notes that it refused a connection key, which is not tried again for a while.
    pub(crate) fn note_refused(&mut self, conn_key: u16, now: Time) {
        self.refused.retain(|(_, until)| *until > now);
        self.refused.push((conn_key, now.after(limits::CONN_KEY_PAUSE_US)));
    }

    pub(crate) fn refuses(&self, conn_key: u16, now: Time) -> bool {
        self.refused.iter().any(|(one, until)| *one == conn_key && *until > now)
    }

    /// Forgets a link that has died.
    pub(crate) fn forget(&mut self, link: ConnId) {
        assert!(self.alive > 0, "a link dies once");
        self.alive -= 1;
        for place in self.links.iter_mut().flatten() {
            if *place == Some(link) {
                *place = None;
            }
        }
        if self.probe == Some(link) {
            self.probe = None;
        }
    }

    /// Writes its gauges to the metrics registry.
    pub(crate) fn publish(&self) {
        use metrics::ServerCounter;
        let Gauges { links, pending, pending_bytes, inflight, inflight_bytes } = self.gauges;
        self.counters.set(ServerCounter::LinksNow, links);
        self.counters.set(ServerCounter::PendingNow, pending);
        self.counters.set(ServerCounter::PendingBytesNow, pending_bytes);
        self.counters.set(ServerCounter::InflightNow, inflight);
        self.counters.set(ServerCounter::InflightBytesNow, inflight_bytes);
    }
}

/// Returns the connection key with which a client of this pool begins.
fn home(plan: &PoolPlan) -> ConnKey {
    ConnKey { database: plan.database, ..plan.protocol.conn_key() }
}

fn members(servers: &[Server]) -> Vec<Option<u32>> {
    let is_in = |one: &Server| one.stage == Stage::Planned && !one.ejected;
    servers.iter().map(|one| is_in(one).then_some(one.plan.id)).collect()
}

fn ring(distribution: Distribution, servers: &[Server], members: &[Option<u32>]) -> Ring {
    let node = |one: &Server| Node { name: one.plan.name.clone(), weight: one.plan.weight };
    let nodes: Vec<Node> = servers.iter().map(node).collect();
    let alive: Vec<bool> = members.iter().map(Option::is_some).collect();
    Ring::build(distribution, &nodes, &alive)
}

#[cfg(test)]
mod tests;
