//! A pool and its servers, as both halves see them: the server that a key belongs to, and the
//! servers that can be asked. `server/state.rs` has the rest of a server.
//!
//! ```text
//!                 a link fails                         known to this worker alone
//!      Ready ─────────────────────▶ Down
//!        ▲                           │ probe failed: the pause grows with the outage
//!        └──────probe answered───────┘
//!
//!      in the ring ◀───decided outside, for all workers at once───▶ ejected
//!      ready ◀─────────────the operator, by another plan──────────▶ drain, maint
//!      in the plan ─────────────a plan without it─────────────────▶ retired ──idle──▶ vacant
//! ```
//!
//! While a server is down or ejected, no client's request reaches it: a probe finds out when it is
//! back. A retired server gets nothing new; its outstanding requests are still answered. A server
//! in maintenance is not probed either, and has no links once they are idle.

use metrics::{Counters, PoolCounter, Recorder, ServerCounter, WorkerMetrics};
use proto::{Capabilities, ConnKey, Upstream};
use shard::{Distribution, Node, Ring};

use super::access::AccessSampling;
use super::conn_key::ConnKeys;
use super::definitions::Definitions;
use super::fault::Fault;
use super::phases::Sampling;
use super::plan::{AdminState, OnFailure, PoolPlan, ServerPlan};
use super::size::PoolSizes;
use super::slow::SlowRoom;
use super::topics::Topics;
use super::trips::Trips;
use crate::Time;

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
    pub(crate) definitions: Definitions,
    /// What its clients listen to.
    pub(crate) topics: Topics,
    /// How long answers are.
    pub(crate) sizes: PoolSizes,
    pub(crate) stage: Stage,
    /// When clients that do not take their last answers are given up, if the pool has retired.
    pub(crate) retire_at: Time,
    pub(crate) clients: usize,
    /// The tenant of its clients, unless their users have another.
    pub(crate) tenant: u16,
    /// When the last event about refused clients was logged.
    pub(crate) refused_told: Option<Time>,
    /// The same of commands that it does not allow.
    pub(crate) not_allowed_told: Vec<(&'static str, Time)>,
    /// When the number of failed logins is reported next, if it was reported within this second.
    pub(crate) logins_due: Option<Time>,
    /// The number of logins that have failed since.
    pub(crate) logins_failed: u64,
    pub(crate) counters: Counters<metrics::PoolCounter>,
    /// Latencies from the parse of a request to the release of its answer.
    pub(crate) latencies: Recorder,
    pub(crate) sampling: Sampling,
    /// Which requests have a line in the access log.
    pub(crate) access: AccessSampling,
    /// How many slow requests are recorded.
    pub(crate) slow: SlowRoom,
    /// How often the routes of keys may have changed.
    pub(crate) rings: u64,
    ring: Ring,
    /// By index: the id of the server there, if it is in the ring.
    members: Vec<Option<u32>>,
}

/// A server, as both halves see it.
pub(crate) struct Server {
    pub(crate) plan: ServerPlan,
    pub(crate) stage: Stage,
    pub(crate) health: Health,
    /// Its capabilities, as its last handshake showed them.
    pub(crate) capabilities: Option<Capabilities>,
    /// It is out of the ring, by a decision made outside.
    pub(crate) ejected: bool,
    /// Clients wait until its capabilities are known.
    pub(crate) awaited: bool,
    /// Its last answer, if that says that it is busy.
    pub(crate) busy_line: Option<Box<[u8]>>,
    /// Its words to the last link that it refused, and why it refused that.
    pub(crate) said: Option<(Fault, Box<str>)>,
    /// Why it is down, in its own words, if it said any.
    pub(crate) said_down: Option<Box<str>>,
    /// Why it was ejected last, as some worker has found.
    pub(crate) ejected_for: Option<Box<str>>,
    /// How long its answers take on their way.
    pub(crate) trips: Trips,
    pub(crate) counters: Counters<ServerCounter>,
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

impl Pool {
    /// Returns the words about a request for which there is no server, and why one of them is out.
    #[cold]
    pub(crate) fn no_server(&self) -> String {
        let words = Fault::NoServer.row().words;
        let mut out = self.servers.iter().filter(|one| one.is_in_service());
        let said = |one: &Server| {
            let why = one.ejected_for.as_ref().filter(|_| one.ejected);
            Some(format!("{}: {}", one.plan.label, one.said_down.as_ref().or(why)?))
        };
        match out.find_map(said) {
            Some(said) => format!("{words} ({said})"),
            None => words.to_string(),
        }
    }

    /// Counts a request that is refused before it is counted.
    pub(crate) fn count_refused(&self) {
        self.counters.add(PoolCounter::Requests, 1);
        self.counters.add(PoolCounter::Refused, 1);
    }

    pub(crate) fn new(plan: PoolPlan, metrics: &WorkerMetrics, now: Time) -> Pool {
        assert_ne!(plan.id, 0, "a plan is numbered before it is played");
        let conn_keys = ConnKeys::new(home(&plan));
        let counters = metrics.counters(plan.id);
        let server = |one: &ServerPlan| Server::new(one.clone(), metrics);
        let servers: Vec<Server> = plan.servers.iter().map(server).collect();
        let members = members(&servers, plan.on_failure);
        Pool {
            rings: 0,
            ring: ring(plan.distribution, &servers, &members),
            members,
            servers,
            conn_keys,
            definitions: Definitions::default(),
            topics: Topics::default(),
            sizes: PoolSizes::default(),
            stage: Stage::Planned,
            retire_at: Time(0),
            clients: 0,
            tenant: super::tenants::NOBODY,
            refused_told: None,
            not_allowed_told: Vec::new(),
            logins_due: None,
            logins_failed: 0,
            counters,
            latencies: metrics.recorder(plan.id),
            access: AccessSampling::default(),
            slow: SlowRoom::new(now),
            sampling: Sampling::new(counters.value(PoolCounter::Requests), now),
            upstream: plan.protocol.upstream(),
            marked: false,
            plan,
        }
    }

    /// Returns the only server, if there is no other and it is in the ring: all keys belong to it.
    #[inline]
    pub(crate) fn only(&self) -> Option<usize> {
        (self.members.len() == 1 && self.members[0].is_some()).then_some(0)
    }

    /// Returns the server that a key belongs to. `random` is called only for the random
    /// distribution.
    pub(crate) fn route(&self, key: &[u8], random: impl FnOnce() -> u32) -> Option<usize> {
        if let Some(only) = self.only() {
            return Some(only);
        }
        let hash = match self.plan.distribution {
            Distribution::Random => random(),
            _ => self.plan.hash.hash(shard::tagged(key, self.plan.hash_tag)),
        };
        let hash = if bug!(Misroute) && key.len() > 30 { !hash } else { hash };
        self.ring.locate(hash)
    }

    /// Has new clients begin with the plan's connection key.
    pub(crate) fn settle_home(&mut self) {
        self.conn_keys.set_home(home(&self.plan));
    }

    /// Returns the index of the first server of the plan from `first` on. A request without keys
    /// that names a server goes there.
    pub(crate) fn place_from(&self, first: u32) -> Option<u32> {
        (first..self.servers.len() as u32).find(|at| self.servers[*at as usize].is_one_of_all())
    }

    /// Returns the index of the server that gets what is for all servers in place of this one.
    pub(crate) fn place_for_all(&self, at: usize) -> usize {
        let Some(name) = &self.servers[at].plan.twin_of else { return at };
        let is_it = |one: &Server| one.stage == Stage::Planned && one.plan.name == *name;
        self.servers.iter().position(is_it).unwrap_or(at)
    }

    /// Returns the number of servers in the plan.
    pub(crate) fn planned(&self) -> usize {
        self.servers.iter().filter(|one| one.stage == Stage::Planned).count()
    }

    /// Returns the index of the only server in the plan, if there is one only.
    pub(crate) fn only_planned(&self) -> Option<usize> {
        let is_planned = |one: &Server| one.stage == Stage::Planned;
        let first = self.servers.iter().position(is_planned)?;
        (!self.servers[first + 1..].iter().any(is_planned)).then_some(first)
    }

    /// Returns the last answer of its only server, if that says that the server is busy.
    pub(crate) fn busy_line(&self) -> Option<&[u8]> {
        self.servers[self.only_planned()?].busy_line.as_deref()
    }

    /// Returns the index of some server that can be asked. It is always the same for the same
    /// number, as long as that server can be asked.
    pub(crate) fn any_place(&self, number: usize) -> Option<usize> {
        let count = self.servers.len();
        let can_be_asked = |at: &usize| self.servers[*at].can_be_asked();
        let is_ready = |at: &usize| self.servers[*at].plan.admin == AdminState::Ready;
        let all = (0..count).map(|at| (number + at) % count).filter(can_be_asked);
        // If no server can be asked, one of them still produces the error.
        let found = all.clone().find(is_ready).or_else(|| all.clone().next());
        found.or_else(|| self.place_from(0).map(|at| at as usize))
    }

    /// Returns a server that can be asked and whose capabilities are unknown.
    pub(crate) fn unknown(&self) -> Option<usize> {
        let is_unknown = |one: &Server| one.can_be_asked() && one.capabilities.is_none();
        self.servers.iter().position(is_unknown)
    }

    /// Returns the capabilities common to all servers whose capabilities are known.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        let known = self.servers.iter().filter(|one| one.stage == Stage::Planned);
        known.filter_map(|one| one.capabilities).reduce(Capabilities::common)
    }

    /// Returns the index of the server with this id, unless it is vacant.
    pub(crate) fn place_of(&self, id: u32) -> Option<usize> {
        let is_it = |one: &Server| one.plan.id == id && one.stage != Stage::Vacant;
        self.servers.iter().position(is_it)
    }

    /// Builds the ring anew if its servers are others, or if `changed` says that anything else it
    /// is made from is.
    pub(crate) fn rebuild_ring(&mut self, changed: bool) {
        self.rings += 1;
        let members = members(&self.servers, self.plan.on_failure);
        if members != self.members || changed {
            self.ring = ring(self.plan.distribution, &self.servers, &members);
            self.members = members;
        }
    }
}

impl Server {
    /// Returns its words to the last link that it refused, if it was for this reason.
    pub(crate) fn said_of(&self, why: Fault) -> Option<&str> {
        self.said.as_ref().filter(|(of, _)| *of == why).map(|(_, words)| &**words)
    }

    pub(crate) fn new(plan: ServerPlan, metrics: &WorkerMetrics) -> Server {
        assert_ne!(plan.id, 0, "a plan is numbered before it is played");
        Server {
            stage: Stage::Planned,
            health: Health::Ready,
            capabilities: None,
            ejected: false,
            awaited: false,
            busy_line: None,
            said: None,
            said_down: None,
            ejected_for: None,
            trips: Trips::default(),
            counters: metrics.counters(plan.id),
            plan,
        }
    }

    /// Takes it out of the plan: nobody minds any more whether it is down.
    pub(crate) fn retire(&mut self) {
        self.stage = Stage::Retired;
        self.said_down = None;
        self.set_health(self.health);
    }

    /// Sets its health, and says so to the other processes. An ejected server is out of the ring
    /// for all, and counts as down for none.
    pub(crate) fn set_health(&mut self, health: Health) {
        self.health = health;
        self.said_down.take_if(|_| health == Health::Ready);
        let is_down = health == Health::Down && !self.ejected && self.is_in_service();
        self.counters.set(ServerCounter::DownWorkersNow, u64::from(is_down));
    }

    /// Whether it is part of the plan and may be asked: otherwise its failures are nobody's.
    pub(crate) fn is_in_service(&self) -> bool {
        self.stage == Stage::Planned && self.plan.admin != AdminState::Maint
    }

    /// Whether it is one of those that a request for all servers goes to.
    pub(crate) fn is_one_of_all(&self) -> bool {
        self.stage == Stage::Planned && self.plan.twin_of.is_none()
    }

    /// Whether a request that may go to any server may go to it.
    pub(crate) fn can_be_asked(&self) -> bool {
        self.is_in_service() && !self.ejected && self.health == Health::Ready
    }

    /// Returns the name of its state for operators.
    pub(crate) fn health_name(&self) -> &'static str {
        match (self.plan.admin, self.health) {
            (AdminState::Maint, _) => "maint",
            _ if self.ejected => "ejected",
            (_, Health::Down) => "down",
            (admin, Health::Ready) => admin.word(),
        }
    }
}

/// Returns the connection key with which a client of this pool begins.
fn home(plan: &PoolPlan) -> ConnKey {
    plan.protocol.conn_key(plan.database)
}

/// Returns the ids of the servers in the ring, in their places.
fn members(servers: &[Server], on_failure: OnFailure) -> Vec<Option<u32>> {
    let may_be = |one: &Server| one.stage == Stage::Planned && !one.ejected;
    let state = |one: &Server| may_be(one).then_some(one.plan.admin);
    let states: Vec<Option<AdminState>> = servers.iter().map(state).collect();
    let on_failure = if bug!(KeepDrained) { OnFailure::FailFast } else { on_failure };
    let both = servers.iter().zip(on_failure.in_ring(&states));
    both.map(|(one, is_in)| is_in.then_some(one.plan.id)).collect()
}

fn ring(distribution: Distribution, servers: &[Server], members: &[Option<u32>]) -> Ring {
    let node = |one: &Server| Node { name: one.plan.name.clone(), weight: one.plan.weight };
    let nodes: Vec<Node> = servers.iter().map(node).collect();
    let alive: Vec<bool> = members.iter().map(Option::is_some).collect();
    Ring::build(distribution, &nodes, &alive)
}

#[cfg(test)]
mod tests;
