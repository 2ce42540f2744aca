//! Liveness: promises with a bound in time. The other oracles find wrong answers; this one finds
//! missing answers and actions. A bound is a time of the simulated clock, or the end of a turn.
//!
//! Each promise, its bound, and the seeded bugs that break it:
//!
//! * A connect, a handshake or a reply ends in a timeout: `connect`, `reply`; a reply that keeps
//!   coming, `reply` times 16: `NoReplyDeadline`, `SpeakForEver`.
//! * A server has `reply` for its answer, not counting bytes that the kernel has not accepted yet:
//!   no earlier (`turn.rs`): `HurryReply`, `BlameEarly`. For a slow one on a link of its own it has
//!   twice `slow`: `EndSlow`.
//! * A message is sent or times out, including gets that gather: `queue`: `GatherForEver`.
//! * A message that may be sent is sent: the end of the turn: `LeaveHeld`, `LeaveGathered`.
//! * A hold ends when its server sends anything: the end of the turn: `HoldForEver`.
//! * A quiet change that is not cancelled is executed: the end of the turn in which its server
//!   comes to rest: `ForgetNoreply`, `DropQuiet`.
//! * A failure is followed by a probe, and each probe by another until the server is back: a
//!   sixteenth of the outage, 10 ms to 1 s; if ejected, `server_retry_timeout`: `NeverProbe`,
//!   `KeepPause`, `ProbeOnce`.
//! * A healthy server is found to be back: such a pause, then a connect and a handshake
//!   (`finish.rs`): `NeverProbe`.
//! * A paused client is read again: the end of the turn in which it has all its answers:
//!   `NeverResume`, `AwaitForEver`.
//! * A client that takes nothing is read on, since it may write before it reads: 10 ms:
//!   `AheadNeverOpens`. What it has sent is read in its order, and whole: `AheadOvertaken`,
//!   `ForgetAhead`. If it sends too much, it is closed: `write`, and no earlier: `KeepUnread`,
//!   `HurryUnread`. What was kept of it is given back: the end of the run: `KeepFreed`.
//! * A client that has had its share of a turn is read again: the turns that pay for what it asked:
//!   `ForgetShare`.
//! * What waits for a link is served while there is room within the in-flight limit: the end of
//!   the turn: `ForgetQueue`, `LimitNeverOpens`.
//! * A client that waits for a link is served as much as any other that waits there, by cost:
//!   two quanta: `FreeOfCost`. One that does not wait gathers no credit (`check.rs` of the server
//!   half): `GatherCredit`.
//! * An in-flight limit falls by half at most: each round: `LimitFallsAtOnce`.
//! * What waits for a link belongs to a client that may listen, or changes something: the end of
//!   the turn: `SendCancelled`.
//! * A change that was given up after `hold_after` and is asked for again is not sent: the time of
//!   the new request (`silence.rs`): `KeepGivenUp`.
//! * A client that has filled its share of a queue is read again: the end of the turn in which
//!   there is room: `NeverRoom`.
//! * A request is answered: the longest deadline since its server's last progress (`world.rs`):
//!   `NoReplyDeadline`.
//! * A drain ends: the deadlines of a request (`finish.rs`): `KeepHalfAsked`. It cuts no request
//!   and no transaction in two: `CutHalfAsked`.
//! * A plan is installed, and removed parts go: links at rest, the end of the turn; clients, ten
//!   seconds: `OldRing`, `ForgetRearm`, `KeepRetired`, `NeverVacate`. The same for what an operator
//!   does to servers by hand: `ServeMaint`, `KeepDrained`.
//! * Free memory is available to requests: the end of the run (`finish.rs`): `HoardMemory`.
//! * `handle_timeout` ends, and nothing is due then: at once (`Proxy::handle_timeout`, `world.rs`):
//!   `SpinTimer`.
//!
//! No client waits for memory: without memory, a request is refused at once.

use proxy::{Slices, limits};

use super::client::Client;
use super::conn::Conn;
use super::journal::{Update, UpdateKind};
use super::rest::longest_pause;
use super::world::World;

/// How many slow requests may excuse one silence, each sent before the time of the last is over.
pub const SLOW_IN_A_ROW: u64 = 8;

impl World {
    /// Checks that nothing is late, after the due timers have fired.
    pub fn check_deadlines(&self) {
        self.proxy.check_deadlines(self.now);
        self.conns.iter().flatten().for_each(|conn| self.check_conn(conn));
        self.clients.iter().flatten().for_each(|client| self.check_stuck(client));
        for (at, pool) in self.pools.iter().enumerate().filter(|(_, pool)| pool.is_planned) {
            for (place, server) in pool.servers.iter().enumerate() {
                if server.is_down && pool.has(server.id) && !self.is_probed(at, place) {
                    let (since, by) = (server.unasked_since, server.probe_by);
                    assert!(self.now < by, "a server that is down is not asked since {since:?}");
                }
            }
        }
    }

    /// Checks that a client is read on that takes nothing and may not read before it has written,
    /// and is closed in time if it has written too much.
    fn check_stuck(&self, client: &Client) {
        let ends = client.is_half_closed || self.proxy.is_leaving(client.id);
        let is_stopped = client.is_paused && !self.proxy.is_awaiting(client.id);
        if !is_stopped || !client.is_full || ends || self.scene.tight_memory {
            return;
        }
        let since = client.taken_at.after(limits::AHEAD_AFTER_US).max(client.paused_at.after(1));
        let mut most = since.after(self.scene.tick_max as u64);
        let pool = &self.pools[client.pool];
        let bound = pool.plan.client_buffer_max.max(self.scene.plan.limits.kept_least);
        if self.proxy.kept_ahead(client.id) >= bound {
            most = most.after(pool.longest_write_since(client.taken_at));
        }
        assert!(self.now <= most, "client {} is stuck since {since:?}", client.number);
    }

    fn check_conn(&self, conn: &Conn) {
        let mut timeouts = self.pools[conn.pool].plan.timeouts;
        if self.pools[conn.pool].is_redis {
            // A slow request on any of its links excuses a server's silence on all of them; and
            // others like it may be sent meanwhile, where nothing is held. The excuse is made under
            // the deadlines of its time.
            let deadlines = self.pools[conn.pool].deadlines.iter();
            let slow = deadlines.map(|(_, one)| one.slow).max().unwrap_or(0);
            timeouts.reply += slow * SLOW_IN_A_ROW;
        }
        let (since, most, what) = match conn {
            _ if !conn.is_up() => (conn.since, timeouts.connect, "to connect"),
            _ if !conn.is_established => (conn.owed_since, timeouts.reply, "to be greeted"),
            _ if conn.is_idle() => return,
            _ => (conn.owed_since.max(conn.heard_at), timeouts.reply, "to answer"),
        };
        assert!(self.now < since.after(most), "a server has had since {since:?} {what}");
        let longest = timeouts.reply * limits::REPLY_STRETCH;
        let speaks_on = conn.is_established && self.now >= conn.owed_since.after(longest);
        assert!(!speaks_on, "a server speaks on and on since {:?}", conn.owed_since);
    }

    fn is_probed(&self, pool: usize, server: usize) -> bool {
        let is_its = |conn: &Conn| (conn.pool, conn.server) == (pool, server);
        let asks = |conn: &Conn| conn.is_probe || !conn.is_established;
        self.conns.iter().flatten().any(|conn| is_its(conn) && asks(conn))
    }

    /// Sets the time of the next probe. Call it when a server considered down has just failed, or
    /// has answered without being accepted as back.
    pub fn expect_probe(&mut self, pool: usize, server: usize) {
        let retry = self.pools[pool].plan.server_retry_timeout;
        let entry = &mut self.pools[pool].servers[server];
        let sick_since = *entry.sick_since.get_or_insert(self.now);
        let pause = match entry.is_ejected {
            true => retry.max(limits::BACKOFF_FIRST_US),
            false => longest_pause(self.now.since(sick_since)),
        };
        // If no socket can be made, a probe waits for that, as requests do.
        let able = match entry.trouble.unable {
            0 => self.now,
            _ => entry.trouble.unable_time.after(limits::BACKOFF_LAST_US),
        };
        entry.unasked_since = self.now;
        entry.probe_by = self.now.after(pause).max(able);
    }

    /// Checks after a turn, when the links have accepted their output, that nothing waits without a
    /// reason. `vacant` has the pools that were not needed when the turn ended.
    pub fn check_rest(&self, vacant: u32) {
        self.proxy.check_rest();
        let mut slices = Slices::default();
        for conn in self.conns.iter().flatten().filter(|conn| conn.is_up()) {
            if !conn.is_full {
                self.proxy.transmit(conn.id, &mut slices);
                assert!(slices.is_empty(), "what may be sent stays");
            }
            let is_waited_for = self.proxy.is_waited_for(conn.id);
            let is_at_rest = conn.owes_nothing() && !conn.is_full && !is_waited_for;
            assert!(
                !is_at_rest || self.is_wanted(conn, vacant),
                "the link of a server that is gone or in maintenance stays"
            );
        }
        for pool in &self.pools {
            for server in &pool.servers {
                let counters = self.counters.metrics(0).counters(server.id);
                let is_held = counters.value(metrics::ServerCounter::HoldingWorkersNow) == 1;
                let (silence, since) = (&server.silence, server.silence.since);
                let may_be = silence.may_be_held(self.now);
                assert!(!is_held || may_be, "a server is held that owes since {since:?}");
            }
        }
    }

    /// Checks that clients that keep work waiting at a link get equal shares, by cost.
    pub fn check_grants(&mut self) {
        let all: Vec<_> = self.proxy.grants().collect();
        let before = std::mem::take(&mut self.grants);
        for (at, (link, first, breaks, granted)) in all.iter().enumerate() {
            let others = all[at + 1..].iter().chain(&all[..at]);
            for (_, second, others_breaks, others) in others.filter(|one| one.0 == *link) {
                let (key, breaks) = ([*link, *first, *second], [*breaks, *others_breaks]);
                let more = granted - others;
                let since = before.get(&key).filter(|one| one.0 == breaks).map(|one| one.1);
                let since = since.unwrap_or(more);
                let most = 2 * limits::QUANTUM;
                assert!(more - since <= most, "a client is served {} more", more - since);
                self.grants.insert(key, (breaks, since));
            }
        }
    }

    /// Checks that no in-flight limit falls by more than half in a round.
    pub fn check_inflight_limits(&mut self) {
        let before = std::mem::take(&mut self.inflight_limits);
        for (link, rounds, bytes) in self.proxy.inflight_limits() {
            if let Some((rounds_before, bytes_before)) = before.get(&link) {
                let halvings = (rounds - rounds_before).min(u64::BITS - 1);
                let least = bytes_before >> halvings;
                assert!(bytes >= least, "a limit falls from {bytes_before} to {bytes}");
            }
            self.inflight_limits.insert(link, (rounds, bytes));
        }
    }

    /// Returns whether the links of an update's server are at rest, with nothing left to send.
    fn is_at_rest_for(&self, update: &Update) -> bool {
        let model = &self.pools[update.pool];
        let Some(key) = update.key else { return false };
        model.owners(key, update.arrived).all(|at| {
            let its = |conn: &&Conn| (conn.pool, conn.server) == (update.pool, at);
            let mut conns = self.conns.iter().flatten().filter(its);
            let is_at_rest = |conn: &Conn| conn.owes_nothing() && !conn.is_full;
            conns.all(|conn| conn.is_up() && is_at_rest(conn) && !self.proxy.is_waited_for(conn.id))
        })
    }

    /// Checks that a change of a client that left without waiting is executed once its server is at
    /// rest, if no message can have been lost since.
    pub fn check_unheard(&mut self) {
        let mut open = std::mem::take(&mut self.journal.unheard);
        open.retain(|number| {
            let update = &self.journal.updates[*number as usize];
            let model = &self.pools[update.pool];
            let in_trouble = |at: usize| {
                let server = &model.servers[at];
                server.ever_lacked || server.may_have_lost(update.arrived, update.arrived_at)
            };
            let is_one = matches!(update.kind, UpdateKind::Store | UpdateKind::Delta);
            let is_excused = update.retries
                || update.executed != 0
                || !is_one
                || self.scene.tight_memory
                || self.scene.tight_queues
                || model.rings.was_empty(update.arrived)
                || self.queue_timeouts(update.pool) > update.queue_timeouts
                || update.key.is_none_or(|key| model.owners(key, update.arrived).any(in_trouble));
            assert!(is_excused || !self.is_at_rest_for(update), "update {number} is forgotten");
            !is_excused
        });
        self.journal.unheard = open;
    }

    /// Returns one bit for each pool that is not in the plan and has no clients.
    pub fn vacant_pools(&self) -> u32 {
        let is_vacant = |at: usize| {
            let mut clients = self.clients.iter().flatten();
            !self.pools[at].is_planned && clients.all(|client| client.pool != at)
        };
        (0..self.pools.len()).filter(|at| is_vacant(*at)).fold(0, |bits, at| bits | 1 << at)
    }

    /// Returns whether a link's server is in the plan, or its pool has clients that may send
    /// requests.
    fn is_wanted(&self, conn: &Conn, vacant: u32) -> bool {
        let pool = &self.pools[conn.pool];
        match pool.is_planned {
            true => {
                let server = &pool.servers[conn.server];
                pool.has(server.id) && !server.is_maint
            }
            false => vacant & 1 << conn.pool == 0,
        }
    }
}
