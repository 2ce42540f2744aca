//! Hold and drop, as the world sees them: the silent servers that owe answers, the bytes that may
//! be sent to them, and the requests that may be executed when they wake.

use proxy::Time;

use super::client::{Asked, Expect};
use super::conn::Conn;
use super::frame::frame_len;
use super::journal::UpdateKind;
use super::judge::Judge;
use super::redis;
use super::server::{Place, Server};
use super::world::World;

/// The time for which a server has owed answers and sent nothing.
#[derive(Clone, Copy, Default)]
pub struct Silence {
    /// The start of the silence, if it owes any.
    pub since: Option<Time>,
    /// How long it may be silent, at least and at most: the paths to it are measured meanwhile.
    patience: Option<(u64, u64)>,
    /// The last time at which it sent anything.
    pub heard_at: Time,
    /// It is silent for so long that nothing may be sent to it.
    pub must_hold: bool,
    /// The last event at which the proxy had to hold messages for it.
    pub held_event: u64,
    pub held_at: Time,
    /// The last time at which it answered a handshake.
    pub established_at: Time,
    /// Another worker reports it silent until then.
    pub rumour_until: Option<Time>,
}

impl Silence {
    /// Whether it must be held.
    fn is_held(&self, now: Time) -> bool {
        self.since.zip(self.patience).is_some_and(|(since, (_, most))| now >= since.after(most))
    }

    /// Whether it may be held.
    pub fn may_be_held(&self, now: Time) -> bool {
        self.since.zip(self.patience).is_some_and(|(since, (least, _))| now >= since.after(least))
    }
}

impl World {
    /// Records that a server's link has moved; `heard` means that the server has sent something.
    pub fn note_silence(&mut self, (pool, server): (usize, usize), heard: bool) {
        let conns = self.conns.iter().flatten();
        let owes = conns.filter(|conn| (conn.pool, conn.server) == (pool, server)).any(Conn::owes);
        let silence = &mut self.pools[pool].servers[server].silence;
        if heard {
            silence.heard_at = self.now;
        }
        silence.must_hold &= owes && !heard;
        let is_new = owes && (heard || silence.since.is_none());
        silence.since = match silence.since {
            _ if !owes => None,
            Some(since) if !heard => Some(since),
            _ => Some(self.now),
        };
        if is_new || !owes {
            silence.patience = None;
        }
        self.note_patience((pool, server));
    }

    /// Records how long a server may be silent now.
    pub fn note_patience(&mut self, (pool, server): (usize, usize)) {
        let model = &mut self.pools[pool];
        let server = &mut model.servers[server];
        let Some((patience, _)) = self.proxy.hold_after(server.id) else { return };
        let least = model.plan.hold_after.unwrap_or(patience);
        let most = least.max(model.plan.timeouts.reply / 4);
        assert!((least..=most).contains(&patience), "{patience} us, not {least} to {most}");
        let path = 3 * self.scene.far;
        let is_known = server.silence.since.is_some() && !self.is_calm;
        assert!(!is_known || patience >= path.min(most), "{patience} us, on a path of {path} us");
        let known = server.silence.patience.unwrap_or((patience, patience));
        server.silence.patience = Some((known.0.min(patience), known.1.max(patience)));
    }

    /// Updates the set of held servers. Call it after timers have fired, and before a hold may end.
    pub fn note_holds(&mut self) {
        for pool in 0..self.pools.len() {
            for server in 0..self.pools[pool].servers.len() {
                self.note_hold(pool, server);
            }
        }
    }

    fn note_hold(&mut self, pool: usize, server: usize) {
        self.note_patience((pool, server));
        let server_model = &mut self.pools[pool].servers[server];
        if server_model.silence.is_held(self.now) {
            server_model.silence.must_hold = true;
            server_model.silence.held_event = self.journal.event();
            server_model.silence.held_at = self.now;
        }
        if server_model.silence.rumour_until.is_some_and(|until| until <= self.now) {
            server_model.silence.rumour_until = None;
            self.tell_rumour(pool, server, 0);
        }
    }

    /// Records that a hold was in effect until now, because it may be about to end.
    pub fn note_hold_before(&mut self, pool: usize, server: usize) {
        let silence = &mut self.pools[pool].servers[server].silence;
        if silence.must_hold {
            silence.held_event = self.journal.event();
            silence.held_at = self.now;
        }
    }

    /// Lets another worker report a server as silent in the shared memory, truly or not.
    pub fn begin_rumour(&mut self, pool: usize, server: usize, until: Time) {
        self.pools[pool].servers[server].silence.rumour_until = Some(until);
        self.tell_rumour(pool, server, 1);
    }

    fn tell_rumour(&self, pool: usize, server: usize, value: u64) {
        let number = self.pools[pool].servers[server].id;
        self.counters
            .metrics(1)
            .counters(number)
            .set(metrics::ServerCounter::HoldingWorkersNow, value);
    }

    /// Checks the bytes of `conn`'s input from `before` on: a silent server may get only the rest
    /// of a message, or a handshake.
    pub fn check_hold(&self, conn: &Conn, before: usize, was_idle: bool) {
        let model = &self.pools[conn.pool];
        let silence = &model.servers[conn.server].silence;
        let server = model.servers[conn.server].id;
        let Some((patience, _)) = self.proxy.hold_after(server) else { return };
        let fresh = &conn.input[before..];
        // The kernel may accept only a part of it.
        let is_in_handshake = model.handshakes.begin(if was_idle { fresh } else { &conn.input });
        if was_idle && silence.rumour_until.is_some() {
            let is_fresh = self.now < silence.heard_at.after(patience);
            assert!(is_fresh || is_in_handshake, "another worker holds this server");
        }
        if is_in_handshake || !silence.must_hold {
            return;
        }
        let mut at = 0;
        // A block is one message.
        let mut is_in_block = conn.queue.is_some() || conn.is_mid_trial;
        while at < before || is_in_block {
            let rest = conn.input.get(at..).unwrap_or_default();
            let len = match model.is_redis {
                true => redis::frame_len(rest, &mut is_in_block),
                false => frame_len(rest),
            };
            at += len.unwrap_or(usize::MAX - at);
            is_in_block &= at < usize::MAX;
        }
        let most = if at > before { at } else { before };
        assert!(
            conn.input.len() <= most,
            "link {} sends a message to a server that is silent since {:?}: {}",
            conn.id.index(),
            silence.since,
            String::from_utf8_lossy(&conn.input).escape_debug()
        );
    }
}

/// Checks that requests whose clients had left before the server woke are not executed.
pub fn check_cancelled(place: &Place<'_>, number: u64, silence: &Silence, conn: &mut Conn) {
    let Some(patience) = place.hold_after else { return };
    let update = &place.journal.updates[number as usize];
    let (sent, sent_at) = conn.sent_event();
    let has_left = update.left != 0 && !update.quiet && update.kind != UpdateKind::Flush;
    if !has_left || update.left > sent {
        return;
    }
    // Its link was up, and took at once what left the queue of the link.
    // The time before does not count: it may have waited in its client's input.
    let was_queued = conn.is_wide && conn.up.1 <= update.arrived_at && !update.is_unread;
    // It had waited long enough to be asked for again, and that had come before it was sent.
    let waited = update.left_at.since(update.arrived_at);
    let is_repeated = update.repeated != 0 && update.repeated < sent;
    assert!(
        !is_repeated || update.gone == 0 || !was_queued || waited < patience + TURN_US,
        "update {number} of client {}, which has asked for it again, is executed",
        update.client
    );
    let waited = sent_at.since(update.left_at);
    let has_gone = update.gone != 0 && update.gone < sent && was_queued;
    assert!(
        !has_gone || waited < patience + TURN_US,
        "update {number} of client {}, which has gone, is executed after {waited} us",
        update.client
    );
    let was_dropped = |end: u64| update.arrived < end && update.left < end && end < sent;
    assert!(
        !was_dropped(silence.held_event),
        "update {number} of client {}, held and abandoned, is executed",
        update.client
    );
    let (up, up_at) = conn.up;
    let waited = up_at.since(update.left_at);
    // A request that has moved there may have waited for its client to read.
    assert!(
        conn.is_renewal || !was_dropped(up) || waited < conn.patience,
        "update {number} of client {}, abandoned at a greeting at {up_at:?}, is executed",
        update.client
    );
}

/// More than a turn takes.
pub const TURN_US: u64 = 5_000;

impl Judge<'_> {
    /// Returns whether a request may be dropped: a client that has closed its half counts as gone
    /// if a server was silent.
    pub fn may_be_dropped(&self, server: &Server, expect: &Expect) -> bool {
        let patience = self.plan.hold_after.unwrap_or(u64::MAX);
        let established = server.silence.established_at.since(expect.arrived_at) >= patience;
        let held = server.silence.held_at >= expect.arrived_at;
        // The request may have waited for another server's capabilities, with all later input; or
        // for the links of a change to several servers.
        let is_spread = self.client.talk.is_some() || !self.plan.allow.is_empty();
        let waited = (self.client.has_forms || is_spread) && self.plan.hold_after.is_some();
        // Or for its turn at a link.
        let is_read = matches!(expect.asked, Asked::Read { .. });
        let waited = waited || !is_read && self.now.since(expect.arrived_at) >= patience;
        // Or it may have waited to be sent again after a retryable error.
        let rested = self.client.talk.is_some();
        let has_given_up = self.client.is_half_closed && !self.client.listens;
        has_given_up && (held || established || waited || rested)
    }
}
