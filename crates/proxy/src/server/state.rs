//! The server half's knowledge of a server: its links, failures and probes, and how long it has
//! been silent. `base/pool.rs` has what both halves see of it.

use std::cell::Cell;

use metrics::{Counters, Recorder, WorkerMetrics};
use proto::ConnKey;

use super::link::Link;
use super::rest::{Rests, StandIn};
use super::topics::ServerTopics;
use super::trial::Blocks;
use super::verdict::FailedAttempt;
use super::work::WorkRecord;
use crate::base::ServerAt;
use crate::base::id::ConnId;
use crate::base::pool::{Health, Pool, Server};
use crate::{Time, limits};

/// The server half's state of a server.
pub(super) struct ServerState {
    /// Whether its replies have confirmed its capabilities.
    pub(super) proof: Proof,
    /// Failures since it last answered a request.
    pub(super) failures: u32,
    /// When its present series of failures began. The pause between probes follows from that.
    failing_since: Option<Time>,
    /// How many links have ended, one after the other, on which it had answered no request.
    pub(super) fruitless: u8,
    /// When the first of them was begun.
    pub(super) fruitless_since: Time,
    /// When a probe was last answered.
    pub(super) back_at: Time,
    /// From then on, a probe that fails counts as a further failure. Probes come often, and must
    /// not get a server ejected sooner.
    count_at: Time,
    /// The pause before `count_at` next time, in microseconds.
    pause: u64,
    /// By connection key, one entry for each link: first those of the special classes, then the
    /// shared ones. A client keeps to one shared entry of its connection key.
    pub(super) links: Vec<Vec<Option<ConnId>>>,
    /// The number of live links, including the probe and retiring links.
    pub(super) alive: usize,
    /// Whether it executes blocks of ours.
    pub(super) blocks: Blocks,
    /// Until then no link that clients share is tried, since one has not come back from that.
    pub(super) shares_no_trial_until: Time,
    /// How long that pause is.
    pub(super) trap_pause: u64,
    /// The link that probes whether it is back.
    pub(super) probe: Option<ConnId>,
    /// When the next probe is due. A timer set for another time is ignored.
    pub(super) probe_at: Option<Time>,
    /// When it was last found to be out.
    pub(super) out_since: Time,
    /// When it was last probed, since it is out. Links that were there were asked, too.
    pub(super) probed: Option<Time>,
    /// When we may try to connect again, after an attempt that lacked a resource of our own.
    pub(super) unable_until: Time,
    /// The length of that pause next time, in microseconds.
    pub(super) unable_pause: u64,
    /// The system's error of the last attempt to connect, until it is told.
    pub(super) connect_errno: Option<i32>,
    /// The places for links that could not be filled.
    pub(super) rests: Rests,
    /// The links that serve at such places instead.
    pub(super) stand_ins: Vec<StandIn>,
    /// The link that shows whether the server, which has fallen silent, still takes connections.
    pub(super) judge: Option<ConnId>,
    /// When a link for that was last begun.
    pub(super) judged: Time,
    /// The last attempt to make a link that has failed. If the links that are left are lost before
    /// they answer, the server is down.
    pub(super) failed_attempt: Option<FailedAttempt>,
    /// When the links were asked that it has at other workers and in other pools, since it answers
    /// no attempt to make one here.
    pub(super) asked_elsewhere: Option<Time>,
    /// Connection keys that it has refused, and when each may be tried again.
    refused: Vec<(ConnKey, Time)>,
    pub(super) silence: Silence,
    pub(super) topics: ServerTopics,
    /// The work that has turned out to be slow.
    pub(super) works: WorkRecord,
    /// The time of this worker's works that are outstanding there, as the others were told.
    pub(super) work_told: u64,
    /// As `work_told`, for works of microseconds, as far as they are much together.
    pub(super) quick_told: u64,
    /// A link that had a slow request outstanding when that was last looked for.
    pub(super) slow_at: Cell<Option<ConnId>>,
    /// The other workers are told that it is busy.
    pub(super) is_busy: bool,
    /// When it last answered the question whether it is busy.
    pub(super) pinged: Option<Time>,
    /// Its last answer says that it is busy, and its pool shows that.
    pub(super) said_busy: bool,
    pub(super) counters: Counters<metrics::ServerCounter>,
    /// Latencies from the queueing of a message to its reply.
    pub(super) latency: Recorder,
    /// When it was last told of that its replies come drop by drop.
    pub(super) drip_told: Option<Time>,
    /// Its gauges, as last summed up.
    pub(super) gauges: Gauges,
}

/// How long a server that owes answers has been silent on all links of this worker: see
/// `hold.rs`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    pub(super) hold: Hold,
    /// The number of links on which it owes a reply.
    pub(super) owing: u32,
    /// When bytes last came from it.
    pub(super) heard: Time,
    /// When it last answered: a request, or the handshake of a link that came up then.
    pub(super) life: Time,
    /// When the other workers were last told so.
    pub(super) told: Time,
    /// When they were last told that it has answered a request.
    pub(super) told_answer: Time,
    /// When it began to owe, after owing nothing.
    pub(super) asked: Time,
    /// It was silent for too long, and no byte has come since.
    pub(super) suspect: bool,
    /// When its silence is checked next. A timer set for another time is ignored.
    pub(super) look_at: Option<Time>,
}

/// Whether messages to a server are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hold {
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
pub(super) enum Proof {
    /// Not known: this many links were lost while such a command waited for its answer.
    Open(u8),
    /// It has answered such a command.
    Proven,
    /// It gets no such command any more, until the next plan.
    Disproved,
    /// Another plan has come. Its next link shows its capabilities again.
    Forgiven,
}

/// The gauges of a server, as they are summed up.
#[derive(Clone, Copy, Default)]
pub(super) struct Gauges {
    pub(super) links: u64,
    pub(super) pending: u64,
    pub(super) pending_bytes: u64,
    pub(super) inflight: u64,
    pub(super) inflight_bytes: u64,
    pub(super) blocked: u64,
    pub(super) private: u64,
}

impl ServerState {
    pub(super) fn new(id: u32, metrics: &WorkerMetrics) -> ServerState {
        ServerState {
            proof: Proof::Open(0),
            failures: 0,
            failing_since: None,
            fruitless: 0,
            fruitless_since: Time(0),
            back_at: Time(0),
            count_at: Time(0),
            pause: limits::BACKOFF_FIRST_US,
            links: Vec::new(),
            alive: 0,
            blocks: Blocks::Unknown,
            shares_no_trial_until: Time(0),
            trap_pause: 0,
            probe: None,
            probe_at: None,
            out_since: Time(0),
            unable_until: Time(0),
            unable_pause: limits::BACKOFF_FIRST_US,
            connect_errno: None,
            rests: Rests::default(),
            stand_ins: Vec::new(),
            judge: None,
            judged: Time(0),
            failed_attempt: None,
            probed: None,
            asked_elsewhere: None,
            refused: Vec::new(),
            silence: Silence::default(),
            drip_told: None,
            topics: ServerTopics::default(),
            works: WorkRecord::default(),
            work_told: 0,
            quick_told: 0,
            slow_at: Cell::new(None),
            is_busy: false,
            pinged: None,
            said_busy: false,
            counters: metrics.counters(id),
            latency: metrics.recorder(id),
            gauges: Gauges::default(),
        }
    }

    /// Resets a server that is back in the plan: nothing is known of it.
    pub(super) fn begin_anew(&mut self, server: &mut Server) {
        server.ejected = false;
        self.forget_health(server);
    }

    /// Forgets what is known of a server that was not asked for a while.
    pub(super) fn forget_health(&mut self, server: &mut Server) {
        self.failures = 0;
        if self.alive == 0 {
            // Messages that wait on a link were written for these capabilities.
            server.capabilities = None;
        }
        self.forgive(server);
    }

    /// Makes a server ready again; its next pause is a short one.
    pub(super) fn forgive(&mut self, server: &mut Server) {
        server.set_health(Health::Ready);
        self.end_failing();
        self.rests.clear();
        (self.failed_attempt, self.asked_elsewhere) = (None, None);
        (self.probe_at, self.probed) = (None, None);
    }

    /// Notes that it is out from now on, unless it was.
    pub(super) fn note_out(&mut self, health: Health, now: Time) {
        if health == Health::Ready {
            self.out_since = now;
        }
    }

    /// Ends the series of failures: the next failure is the first of a new one.
    pub(super) fn end_failing(&mut self) {
        self.failing_since = None;
        self.count_at = Time(0);
        self.pause = limits::BACKOFF_FIRST_US;
    }

    /// Notes a failure; returns whether it counts as a further one.
    pub(super) fn note_failure(&mut self, health: Health, now: Time) -> bool {
        // A server that stood for long after a probe was well, even if it got no request.
        let was_well = health == Health::Ready && now.since(self.back_at) >= limits::LINK_STOOD_US;
        if self.failing_since.is_none() || was_well {
            self.failing_since = Some(now);
        }
        let counts = health == Health::Ready || now >= self.count_at;
        if counts {
            self.failures = self.failures.saturating_add(1);
            self.count_at = now.after(self.pause);
            self.pause = (self.pause * 2).min(limits::BACKOFF_LAST_US);
        }
        counts
    }

    /// Whether a link on which it has answered no request may end without a sign that it is down.
    pub(super) fn may_be_well(&self) -> bool {
        self.failing_since.is_none() && self.fruitless < limits::FRUITLESS_MAX
    }

    /// Starts the pause before the next attempt, after one that lacked a resource of our own.
    pub(super) fn note_unable(&mut self, now: Time) {
        self.unable_until = now.after(self.unable_pause);
        self.unable_pause = (self.unable_pause * 2).min(limits::BACKOFF_LAST_US);
    }

    /// Notes that it refused a connection key, which is not tried again for a while.
    pub(super) fn note_refused(&mut self, conn_key: ConnKey, now: Time) {
        self.refused.retain(|(_, until)| *until > now);
        self.refused.push((conn_key, now.after(limits::CONN_KEY_PAUSE_US)));
    }

    pub(super) fn refuses(&self, conn_key: ConnKey, now: Time) -> bool {
        self.refused.iter().any(|(one, until)| *one == conn_key && *until > now)
    }

    /// Returns the places of the links of a connection key, of which there are `count`.
    pub(super) fn places(&mut self, conn_key: u16, count: usize) -> &mut [Option<ConnId>] {
        let at = usize::from(conn_key);
        if self.links.len() <= at {
            self.links.resize(at + 1, vec![None; count]);
        }
        &mut self.links[at]
    }

    /// Whether a link is on its way that shows whether it works.
    pub(super) fn is_being_judged(&self) -> bool {
        self.judge.is_some() || self.probe.is_some()
    }

    pub(super) fn has_place(&self, link: ConnId) -> bool {
        self.links.iter().flatten().any(|place| *place == Some(link))
    }

    /// Counts a link that has come up. At once: other workers and other pools judge the server by
    /// who has links.
    pub(super) fn note_link_up(&mut self) {
        self.gauges.links += 1;
        self.counters.set(metrics::ServerCounter::LinksNow, self.gauges.links);
    }

    /// Forgets a link that has died.
    pub(super) fn forget(&mut self, id: ConnId, link: &Link) {
        assert!(self.alive > 0, "a link dies once");
        self.alive -= 1;
        if link.was_up() {
            // At once, as well.
            self.gauges.links = self.gauges.links.saturating_sub(1);
            self.counters.set(metrics::ServerCounter::LinksNow, self.gauges.links);
        }
        for place in self.links.iter_mut().flatten() {
            if *place == Some(id) {
                *place = None;
            }
        }
        if self.probe == Some(id) {
            self.probe = None;
        }
        if self.judge == Some(id) {
            self.judge = None;
        }
    }

    /// Returns the pause before the next probe. `jitter` is a random number.
    pub(super) fn probe_pause(&self, pool: &Pool, at: ServerAt, jitter: u32, now: Time) -> u64 {
        let pause = if pool.servers[at.server as usize].ejected {
            pool.plan.server_retry_timeout.max(limits::BACKOFF_FIRST_US)
        } else {
            pause_after(self.failing_since.map_or(0, |since| now.since(since)))
        };
        // The pause is three quarters to the whole of it, so that workers do not probe in step.
        pause - pause / 4 * u64::from(jitter % 1024) / 1024
    }

    /// Writes its gauges to the metrics registry.
    pub(super) fn publish(&self) {
        use metrics::ServerCounter;
        let Gauges { links, pending, pending_bytes, inflight, inflight_bytes, blocked, private } =
            self.gauges;
        self.counters.set(ServerCounter::LinksNow, links);
        self.counters.set(ServerCounter::PendingNow, pending);
        self.counters.set(ServerCounter::PendingBytesNow, pending_bytes);
        self.counters.set(ServerCounter::InflightNow, inflight);
        self.counters.set(ServerCounter::InflightBytesNow, inflight_bytes);
        self.counters.set(ServerCounter::BlockedNow, blocked);
        self.counters.set(ServerCounter::PrivateLinksNow, private);
    }
}

/// Returns the pause before another attempt at what has failed for so long, in microseconds.
pub(super) fn pause_after(failing: u64) -> u64 {
    let part = failing / limits::PROBE_FRACTION;
    part.clamp(limits::PROBE_FIRST_US, limits::BACKOFF_LAST_US)
}
