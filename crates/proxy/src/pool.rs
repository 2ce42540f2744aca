//! A pool and its servers: which server a key belongs to, and which servers can be asked.
//!
//! ```text
//!                 a link fails                         what this worker knows by itself
//!      Ready ─────────────────────▶ Down
//!        ▲                           │ probe failed: a pause by how long it has been so
//!        └──────probe answered───────┘
//!
//!      in the ring ◀───decided outside, for all workers at once───▶ ejected
//!      in the plan ─────────────a plan without it─────────────────▶ retired ──idle──▶ vacant
//! ```
//!
//! While a server is down or ejected no client's request reaches it: one probe finds its return.
//! A retired one gets nothing more; what it was asked is still answered.

use metrics::{Counters, Latency, Recorder, Sheet};
use proto::{Lane, Skills, Upstream};
use shard::{Distribution, Node, Ring};

use crate::id::ConnId;
use crate::lane::Lanes;
use crate::lore::Lore;
use crate::plan::{PoolPlan, ServerPlan};
use crate::request::{Row, UNTIMED};
use crate::{Time, limits};

/// A pool at work.
pub(crate) struct Pool {
    /// As installed last; its servers stand in `servers`, in places of their own.
    pub(crate) plan: PoolPlan,
    pub(crate) upstream: &'static dyn Upstream,
    /// Marks on items are in use: see `proto::Marks`. Every worker must know at once, so it stands
    /// in the book as well.
    pub(crate) marked: bool,
    /// A server keeps its place; a vacant place is used again.
    pub(crate) servers: Vec<Server>,
    pub(crate) lanes: Lanes,
    pub(crate) lore: Lore,
    pub(crate) stage: Stage,
    /// When clients that do not take their last answers are given up, if it has retired.
    pub(crate) retire_at: Time,
    pub(crate) clients: usize,
    /// When it was last told that clients are refused.
    pub(crate) refused_told: Option<Time>,
    /// When it is told again how many logins have failed, if it was told within this second, …
    pub(crate) logins_due: Option<Time>,
    /// … and how many have failed since.
    pub(crate) logins_failed: u64,
    pub(crate) counters: Counters<metrics::Pool>,
    /// From the parse of a request to the release of its answer.
    pub(crate) reads: Recorder,
    pub(crate) updates: Recorder,
    ring: Ring,
    /// By place: the row of the server that stands there, if it is in the ring.
    members: Vec<Option<u32>>,
}

/// A server at work.
pub(crate) struct Server {
    pub(crate) plan: ServerPlan,
    pub(crate) stage: Stage,
    pub(crate) health: Health,
    /// What it can do, as its last link has learnt.
    pub(crate) skills: Option<Skills>,
    /// Whether what it was asked has borne out what it said of its skills.
    pub(crate) proof: Proof,
    /// Decided outside: not in the ring.
    pub(crate) ejected: bool,
    /// Failures since it last answered a request.
    pub(crate) failures: u32,
    /// Since when it has failed again and again: its return is probed by that.
    pub(crate) failing_since: Option<Time>,
    /// When a probe was last answered.
    pub(crate) back_at: Time,
    /// From then on a probe that fails is one failure more. Probes come often, and a server is not
    /// to be ejected sooner for that.
    pub(crate) count_at: Time,
    /// How long that lasts the next time, microseconds.
    pub(crate) pause: u64,
    /// By lane, one place for each link; a client keeps to one place of its lane.
    pub(crate) links: Vec<Vec<Option<ConnId>>>,
    /// All links that live, the probe and those that are retiring among them.
    pub(crate) alive: usize,
    /// The link that asks whether it is back.
    pub(crate) probe: Option<ConnId>,
    /// Clients wait for it to be known what it can do.
    pub(crate) awaited: bool,
    /// When the next probe is due. A timer set for another time is not heeded.
    pub(crate) probe_at: Option<Time>,
    /// Until then we do not try to connect: the last time we lacked something of our own.
    pub(crate) unable_until: Time,
    /// How long that lasts the next time, microseconds.
    pub(crate) unable_pause: u64,
    /// Lanes that it has refused, and until when it is not asked for them again.
    pub(crate) refused: Vec<(u16, Time)>,
    pub(crate) silence: Silence,
    pub(crate) counters: Counters<metrics::Server>,
    /// From the place of a message in a queue to its reply.
    pub(crate) latency: Recorder,
    /// What it has now, as last summed up.
    pub(crate) now: Now,
}

/// Whether a pool or server is part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is.
    Planned,
    /// Not any more; something still refers to it.
    Retired,
    /// Nothing refers to it: its place may be another's.
    Vacant,
}

/// Whether a server can be asked, as far as this worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Requests go to it; links are made when they are needed.
    Ready,
    /// Its keys fail at once; a probe is on its way or due.
    Down,
}

/// How long a server that owes answers has said nothing on any link of this worker: see
/// `flow/hold.rs`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    pub(crate) hold: Hold,
    /// Links on which it owes a reply.
    pub(crate) owing: u32,
    /// When it last said anything.
    pub(crate) heard: Time,
    /// When it began to owe, having owed nothing.
    pub(crate) asked: Time,
    /// It was silent for too long, and has not been heard since.
    pub(crate) suspect: bool,
    /// When it is looked at next. A timer set for another time is not heeded.
    pub(crate) look_at: Option<Time>,
}

/// Whether what is for a server is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It is sent.
    #[default]
    Off,
    /// No message begins to leave.
    On,
    /// Until the end of this turn; then what nobody waits for any more is dropped, and the rest is
    /// sent.
    Ending,
}

/// Whether a server can do what its greeting taught. A proxy of another kind may pass on what the
/// server behind it says, and close at the first word that needs the skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Not known: so many links were lost while such a word waited for its answer.
    Open(u8),
    /// It has answered one.
    Proven,
    /// It is not asked so any more, until the next plan.
    Disproved,
}

/// What a server has now, as it is summed up.
#[derive(Clone, Copy, Default)]
pub(crate) struct Now {
    pub(crate) links: u64,
    pub(crate) pending: u64,
    pub(crate) pending_bytes: u64,
    pub(crate) inflight: u64,
    pub(crate) inflight_bytes: u64,
}

impl Pool {
    pub(crate) fn new(plan: PoolPlan, sheet: &Sheet) -> Pool {
        assert_ne!(plan.row, 0, "a plan is numbered before it is played");
        let lanes = Lanes::new(home(&plan));
        let server =
            |one: &ServerPlan| Server::new(one.clone(), (1, plan.server_connections), sheet);
        let servers: Vec<Server> = plan.servers.iter().map(server).collect();
        let members = members(&servers);
        Pool {
            ring: ring(plan.distribution, &servers, &members),
            members,
            servers,
            lanes,
            lore: Lore::default(),
            stage: Stage::Planned,
            retire_at: Time(0),
            clients: 0,
            refused_told: None,
            logins_due: None,
            logins_failed: 0,
            counters: sheet.counters(plan.row),
            reads: sheet.recorder(plan.row, Latency::Reads),
            updates: sheet.recorder(plan.row, Latency::Updates),
            upstream: plan.protocol.upstream(),
            marked: false,
            plan,
        }
    }

    /// The server that a key belongs to. `random` is used where the distribution is.
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

    /// The place of a lane; made now, if nobody is in it. None: there are too many.
    pub(crate) fn lane(&mut self, lane: Lane) -> Option<u16> {
        if let Some(place) = self.lanes.find(lane) {
            return Some(place);
        }
        let is_unused = |place: u16| {
            let links = self.servers.iter().map(|one| one.links[usize::from(place)].iter());
            links.flatten().all(Option::is_none)
        };
        let place = self.lanes.make(lane, is_unused)?;
        self.widen();
        Some(place)
    }

    /// New clients begin in the lane that the plan says.
    pub(crate) fn settle_home(&mut self) {
        self.lanes.set_home(home(&self.plan));
        self.widen();
    }

    /// Each server has places for the links of each lane.
    fn widen(&mut self) {
        let places = vec![None; self.plan.server_connections];
        for server in &mut self.servers {
            server.links.resize(self.lanes.len(), places.clone());
        }
    }

    /// The place of a server to which a request without keys goes that names this one, or the first
    /// after it.
    pub(crate) fn place_from(&self, first: u32) -> Option<u32> {
        let is_asked = |at: &u32| self.servers[*at as usize].stage == Stage::Planned;
        (first..self.servers.len() as u32).find(is_asked)
    }

    /// Servers of the plan.
    pub(crate) fn planned(&self) -> usize {
        self.servers.iter().filter(|one| one.stage == Stage::Planned).count()
    }

    /// The place of some server that can be asked; for the same number always the same, as long as
    /// it can.
    pub(crate) fn any_place(&self, number: usize) -> Option<usize> {
        let count = self.servers.len();
        let can_be_asked = |at: &usize| {
            let one = &self.servers[*at];
            one.stage == Stage::Planned && !one.ejected && one.health == Health::Ready
        };
        let all = (0..count).map(|at| (number + at) % count);
        // If none can be asked, one of them says so.
        all.clone().find(can_be_asked).or_else(|| self.place_from(0).map(|at| at as usize))
    }

    /// A server that can be asked, and of which nobody knows what it can do.
    pub(crate) fn unknown(&self) -> Option<usize> {
        let is_unknown = |one: &Server| {
            let can_be_asked = one.stage == Stage::Planned && one.health == Health::Ready;
            can_be_asked && !one.ejected && one.skills.is_none()
        };
        self.servers.iter().position(is_unknown)
    }

    /// What all servers can of which that is known.
    pub(crate) fn skills(&self) -> Option<Skills> {
        let known = self.servers.iter().filter(|one| one.stage == Stage::Planned);
        known.filter_map(|one| one.skills).reduce(Skills::common)
    }

    /// What the driver and the operator know a server by.
    pub(crate) fn row_of(&self, server: u32) -> u32 {
        self.servers[server as usize].plan.row
    }

    /// The place of the server with this row, whatever its stage but vacant.
    pub(crate) fn place_of(&self, row: u32) -> Option<usize> {
        let is_it = |one: &Server| one.plan.row == row && one.stage != Stage::Vacant;
        self.servers.iter().position(is_it)
    }

    /// A request of this pool is answered: how long that took.
    pub(crate) fn record(&self, row: &Row, now: Time) {
        if row.since != UNTIMED {
            let which = if row.writes { &self.updates } else { &self.reads };
            which.record(now.since(row.since));
        }
    }

    /// The ring as servers and plan are now. `changed`: what the ring is made of beside the
    /// servers in it has changed.
    pub(crate) fn turn_ring(&mut self, changed: bool) {
        let members = members(&self.servers);
        if members != self.members || changed {
            self.ring = ring(self.plan.distribution, &self.servers, &members);
            self.members = members;
        }
    }

    /// How long to wait before the next probe of a server; `jitter` is a random number.
    pub(crate) fn probe_pause(&self, server: usize, jitter: u32, now: Time) -> u64 {
        let entry = &self.servers[server];
        let pause = if entry.ejected {
            self.plan.server_retry_timeout.max(limits::BACKOFF_FIRST_US)
        } else {
            let failing = entry.failing_since.map_or(0, |since| now.since(since));
            let part = failing / limits::PROBE_FRACTION;
            part.clamp(limits::PROBE_FIRST_US, limits::BACKOFF_LAST_US)
        };
        // Between three quarters and the whole of it, so that workers do not knock together.
        pause - pause / 4 * u64::from(jitter % 1024) / 1024
    }
}

impl Server {
    /// `links`: lanes, and the places of each.
    pub(crate) fn new(plan: ServerPlan, links: (usize, usize), sheet: &Sheet) -> Server {
        assert_ne!(plan.row, 0, "a plan is numbered before it is played");
        Server {
            stage: Stage::Planned,
            health: Health::Ready,
            skills: None,
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
            counters: sheet.counters(plan.row),
            latency: sheet.recorder(plan.row, Latency::REPLIES),
            now: Now::default(),
            plan,
        }
    }

    /// As people see it.
    pub(crate) fn health_name(&self) -> &'static str {
        match self.health {
            _ if self.ejected => "ejected",
            Health::Ready => "ready",
            Health::Down => "down",
        }
    }

    /// It is back in the plan, and nothing is known of it.
    pub(crate) fn begin_anew(&mut self) {
        self.ejected = false;
        self.failures = 0;
        if self.alive == 0 {
            // What waits on a link was written for these.
            self.skills = None;
        }
        self.forgive();
    }

    /// It can be asked, and its next pause is a short one.
    pub(crate) fn forgive(&mut self) {
        self.health = Health::Ready;
        self.end_failing();
        self.probe_at = None;
    }

    /// It is well: the next time it fails is the first.
    pub(crate) fn end_failing(&mut self) {
        self.failing_since = None;
        self.count_at = Time(0);
        self.pause = limits::BACKOFF_FIRST_US;
    }

    /// It has failed; whether that is one failure more.
    pub(crate) fn note_failure(&mut self, now: Time) -> bool {
        // One that has stood for long after a probe was well, though nobody has asked it anything.
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

    /// We could not connect for want of something of our own: the pause before the next try.
    pub(crate) fn note_unable(&mut self, now: Time) {
        self.unable_until = now.after(self.unable_pause);
        self.unable_pause = (self.unable_pause * 2).min(limits::BACKOFF_LAST_US);
    }

    /// It has no such lane: that is not tried again for a while.
    pub(crate) fn note_refused(&mut self, lane: u16, now: Time) {
        self.refused.retain(|(_, until)| *until > now);
        self.refused.push((lane, now.after(limits::LANE_PAUSE_US)));
    }

    pub(crate) fn refuses(&self, lane: u16, now: Time) -> bool {
        self.refused.iter().any(|(one, until)| *one == lane && *until > now)
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

    /// Writes what is "now" of it into the book.
    pub(crate) fn publish(&self) {
        use metrics::Server as Counter;
        let Now { links, pending, pending_bytes, inflight, inflight_bytes } = self.now;
        self.counters.set(Counter::LinksNow, links);
        self.counters.set(Counter::PendingNow, pending);
        self.counters.set(Counter::PendingBytesNow, pending_bytes);
        self.counters.set(Counter::InflightNow, inflight);
        self.counters.set(Counter::InflightBytesNow, inflight_bytes);
    }
}

/// Where a client of this pool begins.
fn home(plan: &PoolPlan) -> Lane {
    Lane { space: plan.space, ..plan.protocol.lane() }
}

fn members(servers: &[Server]) -> Vec<Option<u32>> {
    let is_in = |one: &Server| one.stage == Stage::Planned && !one.ejected;
    servers.iter().map(|one| is_in(one).then_some(one.plan.row)).collect()
}

fn ring(distribution: Distribution, servers: &[Server], members: &[Option<u32>]) -> Ring {
    let node = |one: &Server| Node { name: one.plan.name.clone(), weight: one.plan.weight };
    let nodes: Vec<Node> = servers.iter().map(node).collect();
    let alive: Vec<bool> = members.iter().map(Option::is_some).collect();
    Ring::build(distribution, &nodes, &alive)
}

#[cfg(test)]
mod tests;
