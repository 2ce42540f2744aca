//! A pool and its servers: which server a key belongs to, and which servers can be asked.
//!
//! ```text
//!                   a link fails
//!      Ready ──────────────────────────▶ Down ──probe answered──▶ Ready
//!        ▲                                │ ▲
//!        │                failures ≥ limit│ └──probe failed: longer pause──┐
//!        │                                ▼                                │
//!        └────────probe answered──── Ejected (not in the ring) ────────────┘
//! ```
//!
//! While a server is down or ejected no client's request reaches it: one probe finds its return.

use metrics::{Counters, Latency, Recorder, Sheet};
use shard::{Distribution, Node, Ring};

use crate::id::ConnId;
use crate::plan::{OnFailure, PoolPlan, ServerPlan};
use crate::request::{Row, UNTIMED};
use crate::{Time, limits};

/// A pool at work.
pub(crate) struct Pool {
    pub(crate) plan: PoolPlan,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: usize,
    pub(crate) counters: Counters<metrics::Pool>,
    /// From the parse of a request to the release of its answer.
    pub(crate) reads: Recorder,
    pub(crate) updates: Recorder,
    ring: Ring,
}

/// A server at work.
pub(crate) struct Server {
    pub(crate) plan: ServerPlan,
    pub(crate) health: Health,
    /// Failures since it last answered.
    pub(crate) failures: u32,
    /// How long the next pause before a probe is, microseconds.
    pub(crate) pause: u64,
    /// One place for each link; a client keeps to one place.
    pub(crate) links: Vec<Option<ConnId>>,
    /// The link that asks whether it is back.
    pub(crate) probe: Option<ConnId>,
    /// A timer for the next probe is set.
    pub(crate) probe_due: bool,
    pub(crate) counters: Counters<metrics::Server>,
    /// From the place of a message in a queue to its reply.
    pub(crate) latency: Recorder,
    /// What it has now, as last summed up.
    pub(crate) now: Now,
}

/// Whether a server can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Requests go to it; links are made when they are needed.
    Ready,
    /// Its keys fail at once; a probe is on its way or due.
    Down,
    /// As `Down`, and its keys belong to the others meanwhile.
    Ejected,
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

impl Health {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Health::Ready => "ready",
            Health::Down => "down",
            Health::Ejected => "ejected",
        }
    }
}

impl Pool {
    pub(crate) fn new(plan: PoolPlan, sheet: &Sheet) -> Pool {
        assert_ne!(plan.row, 0, "a plan is numbered before it is played");
        let server = |one: &ServerPlan| Server::new(one.clone(), plan.server_connections, sheet);
        let servers: Vec<Server> = plan.servers.iter().map(server).collect();
        Pool {
            ring: ring(&plan, &servers),
            servers,
            clients: 0,
            counters: sheet.counters(plan.row),
            reads: sheet.recorder(plan.row, Latency::Reads),
            updates: sheet.recorder(plan.row, Latency::Updates),
            plan,
        }
    }

    /// The server that a key belongs to. `random` is used where the distribution is.
    pub(crate) fn route(&self, key: &[u8], random: impl FnOnce() -> u32) -> Option<usize> {
        if self.servers.len() == 1 && self.servers[0].health != Health::Ejected {
            return Some(0);
        }
        let hash = match self.plan.distribution {
            Distribution::Random => random(),
            _ => self.plan.hash.hash(shard::tagged(key, self.plan.hash_tag)),
        };
        let hash = if bug!(Misroute) && key.len() > 30 { !hash } else { hash };
        self.ring.locate(hash)
    }

    /// What the driver and the operator know a server by.
    pub(crate) fn row_of(&self, server: u32) -> u32 {
        self.servers[server as usize].plan.row
    }

    /// A request of this pool is answered: how long that took.
    pub(crate) fn record(&self, row: &Row, now: Time) {
        if row.since != UNTIMED {
            let which = if row.writes { &self.updates } else { &self.reads };
            which.record(now.since(row.since));
        }
    }

    /// A link to a server failed. True when that takes the server out of the ring now.
    pub(crate) fn note_failure(&mut self, server: usize) -> bool {
        let eject = self.plan.on_failure == OnFailure::Eject;
        let limit = self.plan.server_failure_limit;
        let entry = &mut self.servers[server];
        entry.failures = entry.failures.saturating_add(1);
        let ejected = eject && entry.failures >= limit && entry.health != Health::Ejected;
        entry.set_health(if ejected || entry.health == Health::Ejected {
            Health::Ejected
        } else {
            Health::Down
        });
        if ejected {
            entry.counters.add(metrics::Server::Ejections, 1);
            self.ring = ring(&self.plan, &self.servers);
        }
        ejected
    }

    /// A server that was down answered its probe. True when it comes back into the ring.
    pub(crate) fn note_return(&mut self, server: usize) -> bool {
        let entry = &mut self.servers[server];
        let was_out = entry.health == Health::Ejected;
        // Its failures are forgotten when it answers a request: many a sick server answers a probe.
        entry.set_health(Health::Ready);
        if was_out {
            self.ring = ring(&self.plan, &self.servers);
        }
        was_out
    }

    /// How long to wait before the next probe of a server; `jitter` is a random number.
    pub(crate) fn probe_pause(&mut self, server: usize, jitter: u32) -> u64 {
        let retry = self.plan.server_retry_timeout;
        let entry = &mut self.servers[server];
        let pause = match entry.health {
            Health::Ejected => retry.max(limits::BACKOFF_FIRST_US),
            _ => entry.pause,
        };
        entry.pause = (entry.pause * 2).min(limits::BACKOFF_LAST_US);
        // Between three quarters and the whole of it, so that workers do not knock together.
        pause - pause / 4 * u64::from(jitter % 1024) / 1024
    }
}

impl Server {
    fn new(plan: ServerPlan, links: usize, sheet: &Sheet) -> Server {
        assert_ne!(plan.row, 0, "a plan is numbered before it is played");
        Server {
            health: Health::Ready,
            failures: 0,
            pause: limits::BACKOFF_FIRST_US,
            links: vec![None; links],
            probe: None,
            probe_due: false,
            counters: sheet.counters(plan.row),
            latency: sheet.recorder(plan.row, Latency::REPLIES),
            now: Now::default(),
            plan,
        }
    }

    fn set_health(&mut self, next: Health) {
        assert!(
            !(self.health == Health::Ejected && next == Health::Down),
            "an ejected server comes back through a probe only"
        );
        self.health = next;
    }

    /// Forgets a link that has died.
    pub(crate) fn forget(&mut self, link: ConnId) {
        for place in &mut self.links {
            if *place == Some(link) {
                *place = None;
            }
        }
        if self.probe == Some(link) {
            self.probe = None;
        }
    }
}

fn ring(plan: &PoolPlan, servers: &[Server]) -> Ring {
    let node = |one: &Server| Node { name: one.plan.name.clone(), weight: one.plan.weight };
    let nodes: Vec<Node> = servers.iter().map(node).collect();
    let alive: Vec<bool> = servers.iter().map(|one| one.health != Health::Ejected).collect();
    Ring::build(plan.distribution, &nodes, &alive)
}
