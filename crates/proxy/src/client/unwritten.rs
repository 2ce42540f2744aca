//! Answers that have been released and are not wholly written to their clients yet, of the requests
//! that are measured. Each client has a list of its own, in the order of its answers.

use metrics::{Latency, Phase, PoolCounter, SlowEntry};
use proto::Asked;

use super::Clients;
use super::request::{PendingRequest, UNTIMED};
use super::session::Client;
use crate::base::access::{AccessLine, Outcome, Results};
use crate::base::id::ConnId;
use crate::base::phases::{Moments, UNSENT};
use crate::base::pool::Pool;
use crate::base::slow::{KeyNote, ReplyOf, Story};
use crate::base::{Base, ServerAt, limits};
use crate::{Action, Time};

/// One answer that is on its way to its client.
pub(super) struct Unwritten {
    /// The offset of its end in the stream of bytes to its client.
    end: u64,
    moments: Moments,
    /// How many requests it stands for in the histograms.
    weight: u32,
    pool: u32,
    next: u32,
    /// What a log says of it, if it may be in one. Words are made of it only then.
    facts: Option<Facts>,
}

/// What is known of a request that may be slow, or has a line in the access log.
struct Facts {
    reply: ReplyOf,
    key: KeyNote,
    command: u16,
    /// The ids of its server and of its client's tenant. Another may have their places by the time
    /// that the answer has been written.
    server: u32,
    tenant: u32,
    keys: u32,
    received: u64,
    sent: u64,
    asked_again: bool,
    may_be_slow: bool,
    /// What its line in the access log has beside that, if it has one.
    access: Option<Box<Access>>,
    /// Its client had not taken all of its answers when this one was released.
    lagged: bool,
    turn: u64,
}

struct Access {
    user: Option<String>,
    outcome: Outcome,
}

/// A client's answers among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnwrittenList {
    first: u32,
    last: u32,
    /// The offset of the end of the client's last answer in the stream of bytes to it. It is kept
    /// while requests may be logged.
    pub(super) answered: u64,
}

/// Those of all clients.
#[derive(Default)]
pub(super) struct UnwrittenTable {
    entries: Vec<Unwritten>,
    free: Vec<u32>,
}

impl UnwrittenList {
    pub(super) const EMPTY: UnwrittenList = UnwrittenList { first: NONE, last: NONE, answered: 0 };

    pub(super) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

impl UnwrittenTable {
    pub(super) fn push(&mut self, list: &mut UnwrittenList, entry: Unwritten) {
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        match list.last {
            NONE => list.first = at,
            last => self.entries[last as usize].next = at,
        }
        list.last = at;
    }

    /// Takes the first entry, if it ends at this offset or before.
    fn take(&mut self, list: &mut UnwrittenList, written: u64) -> Option<Unwritten> {
        if list.is_empty() || self.entries[list.first as usize].end > written {
            return None;
        }
        let at = list.first;
        let blank = Unwritten {
            end: 0,
            weight: 0,
            pool: 0,
            next: NONE,
            facts: None,
            moments: Moments::default(),
        };
        let entry = std::mem::replace(&mut self.entries[at as usize], blank);
        list.first = entry.next;
        if list.first == NONE {
            list.last = NONE;
        }
        self.free.push(at);
        Some(entry)
    }

    /// Notes that the client of these answers has not taken all that was to be written.
    fn note_lag(&mut self, list: UnwrittenList) {
        let mut at = list.first;
        while at != NONE {
            let entry = &mut self.entries[at as usize];
            match &mut entry.facts {
                Some(facts) if !facts.lagged => facts.lagged = true,
                _ => break,
            }
            at = entry.next;
        }
    }

    /// Forgets the answers of a client that is gone.
    pub(super) fn forget(&mut self, list: &mut UnwrittenList) {
        while self.take(list, u64::MAX).is_some() {}
    }

    /// Whether there are as many as may be.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= limits::UNWRITTEN_MAX
    }

    /// Returns the number of entries in use.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the number of entries of a list.
    pub(super) fn len_of(&self, list: UnwrittenList) -> usize {
        let next = |at: u32| (at != NONE).then_some(at);
        let after = |at: &u32| next(self.entries[*at as usize].next);
        std::iter::successors(next(list.first), after).count()
    }
}

impl Client {
    /// Notes that all output so far answers requests before the next.
    #[inline]
    pub(super) fn note_answered(&mut self, is_watched: bool) {
        if is_watched {
            self.unwritten.answered = self.record.tally.sent + self.out.len() as u64;
        }
    }
}

impl Clients {
    /// Requests may be logged from now on: the bytes of answers before are none of theirs.
    pub(crate) fn begin_watching(&mut self) {
        for client in self.table.values_mut() {
            client.unwritten.answered = client.record.tally.sent + client.out.len() as u64;
        }
    }

    /// Records the answers of a client that have been written.
    #[cold]
    pub(super) fn note_written(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        while let Some(entry) = self.unwritten.take(&mut client.unwritten, client.record.tally.sent)
        {
            finish(base, (id, client), entry);
        }
        // Most of what waits behind an answer that is not taken whole waits for the same reason.
        if client.lags && !client.unwritten.is_empty() {
            self.unwritten.note_lag(client.unwritten);
        }
    }
}

/// Whether it matters when a request's answer has been written, because the request has a line in
/// the access log, or is slow or may become so.
#[inline]
pub(super) fn is_kept(pool: &Pool, client: &Client, pending: &PendingRequest, now: Time) -> bool {
    let is_slow = now.since(pending.moments.begun) >= pool.plan.slow.after;
    let may_be_slow = is_slow || client.lags || client.out.len() >= limits::BLOCK;
    pending.access.is_logged || may_be_slow && is_noted(pool, pending, is_slow, now)
}

/// Whether a request that may be slow is followed. There may be far more than the log can keep.
#[cold]
fn is_noted(pool: &Pool, pending: &PendingRequest, is_slow: bool, now: Time) -> bool {
    if !pool.plan.logs_slow() || pending.since == UNTIMED {
        return false;
    }
    let has_room = pool.slow.has_room(now);
    if is_slow && !has_room {
        pool.counters.add(PoolCounter::Slow, 1);
    }
    has_room
}

/// Notes an answer that has been released. `is_kept`: see there.
#[cold]
pub(super) fn note(
    base: &Base,
    client: &Client,
    pending: &mut PendingRequest,
    (weight, is_kept): (u32, bool),
) -> Unwritten {
    let pool = &base.pools[pending.pool as usize];
    let end = client.record.tally.sent + client.out.len() as u64;
    let PendingRequest { moments, info, key, reply_of, access, .. } = pending;
    let is_logged = access.is_logged && base.logs_access && info.command != Asked::NO_REQUEST;
    // While there are few requests all are followed, so that none becomes slow unnoticed. One that
    // is slow already and is not kept has been counted.
    let is_one_of_few = weight == 1 && base.now.since(moments.begun) < pool.plan.slow.after;
    let may_be_slow =
        pool.plan.logs_slow() && pending.since != UNTIMED && (is_kept || is_one_of_few);
    let facts = (may_be_slow || is_logged).then(|| {
        let reply = match moments.sent {
            // A fault names a server that nothing was sent to.
            UNSENT if info.family != Latency::FAILED => ReplyOf::NONE,
            _ => *reply_of,
        };
        let access_of = is_logged.then(|| {
            let has_error = !pending.error.is_empty();
            let results = if has_error { Results::ERROR } else { access.results };
            let user = client.user().map(|user| user.to_string());
            Box::new(Access { user, outcome: results.outcome() })
        });
        Facts {
            reply,
            key: std::mem::take(key),
            command: info.command,
            server: pool.servers.get(reply.server as usize).map_or(0, |one| one.plan.id),
            tenant: base.tenants.find(client.tenant).map_or(0, |tenant| tenant.plan.id),
            keys: access.keys,
            received: access.received,
            sent: end.saturating_sub(client.unwritten.answered),
            asked_again: pending.asked_again > 0 || info.repeats.is_some_and(|times| times > 0),
            may_be_slow,
            access: access_of,
            lagged: client.lags,
            turn: base.turn,
        }
    });
    Unwritten { end, moments: *moments, weight, pool: pending.pool, next: NONE, facts }
}

/// Records a request whose answer has been written.
#[cold]
pub(super) fn finish(base: &mut Base, (id, client): (ConnId, &Client), entry: Unwritten) {
    let Unwritten { moments, weight, facts, pool: index, .. } = entry;
    let pool = &mut base.pools[index as usize];
    let phases = moments.phases(base.now);
    if weight > 0 {
        for (phase, time) in Phase::ALL.into_iter().zip(phases) {
            pool.latencies.record_many(Latency::of_phase(phase), time, weight.into());
        }
    }
    let Some(mut facts) = facts else { return };
    let is_slow = facts.may_be_slow && phases.iter().sum::<u64>() >= pool.plan.slow.after;
    if is_slow {
        pool.counters.add(PoolCounter::Slow, 1);
    }
    let is_recorded = is_slow && pool.slow.take(pool.plan.slow.one_in, base.now);
    if facts.access.is_none() && !is_recorded {
        return;
    }
    let access = facts.access.take();
    let (reply, lagged, turn) = (facts.reply, facts.lagged, facts.turn);
    let (received, sent) = (facts.received, facts.sent);
    let mut entry = entry_of(base, client, index, facts);
    (entry.at_us, entry.phases) = (base.now.0, phases);
    if let Some(access) = access {
        let Access { user, outcome } = *access;
        let line = AccessLine { entry: entry.clone(), user, received, sent, outcome };
        base.actions.push_back(Action::Access { client: id, line: Box::new(line) });
    }
    if !is_recorded {
        return;
    }
    let at = ServerAt { pool: index, server: reply.server };
    let is_there = base.pools[index as usize].servers.get(reply.server as usize).is_some();
    let busy = match is_there && !reply.is_work {
        true => base.slow_work(at, (moments.whole, moments.settled)),
        false => None,
    };
    // An answer that was written in the turn of its release waited for the worker alone.
    let lagged = lagged || turn != base.turn;
    let (written, turn) = (base.now, base.long_turn);
    let is_large = entry.keys >= LARGE_KEYS || entry.bytes >= LARGE_BYTES;
    let story = Story { moments, written, reply, busy, turn, lagged, is_large };
    (entry.causes, entry.busy_with) = story.causes();
    base.actions.push_back(Action::Slow { client: id, entry: Box::new(entry) });
}

/// Puts into words what is known of a request.
fn entry_of(base: &Base, client: &Client, pool: u32, facts: Facts) -> SlowEntry {
    let pool = &base.pools[pool as usize];
    let command = client.protocol.command_name(facts.command);
    let name = client.session.profile.as_ref().map(|profile| &profile.name[..]);
    SlowEntry {
        keys: facts.keys,
        bytes: facts.received + facts.sent,
        pool: pool.plan.id,
        tenant: facts.tenant,
        server: facts.server,
        name: String::from_utf8_lossy(name.unwrap_or_default()).into_owned(),
        asked_again: facts.asked_again,
        key_hash: facts.key.hash,
        key_len: facts.key.len,
        command: command.to_string(),
        key: facts.key.text,
        ..SlowEntry::default()
    }
}

/// A request of so many keys, or of so many bytes with its answer, may be slow because of that.
const LARGE_KEYS: u32 = 100;
const LARGE_BYTES: u64 = 256 << 10;

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_in_their_order_and_places_are_used_again() {
        let mut table = UnwrittenTable::default();
        let mut lists = [UnwrittenList::EMPTY; 2];
        let entry = |end| {
            let moments = Moments::default();
            Unwritten { end, moments, weight: 1, pool: 0, next: NONE, facts: None }
        };
        for end in [10, 20, 30] {
            table.push(&mut lists[0], entry(end));
            table.push(&mut lists[1], entry(end + 5));
        }
        let ends = |table: &mut UnwrittenTable, list: &mut UnwrittenList, written| {
            std::iter::from_fn(|| table.take(list, written))
                .map(|one| one.end)
                .collect::<Vec<u64>>()
        };
        assert_eq!(ends(&mut table, &mut lists[0], 29), [10, 20]);
        assert_eq!((table.len(), table.len_of(lists[0]), table.len_of(lists[1])), (4, 1, 3));
        table.push(&mut lists[0], entry(40));
        table.forget(&mut lists[1]);
        assert_eq!(ends(&mut table, &mut lists[0], 40), [30, 40]);
        assert!(lists.iter().all(|list| list.is_empty()) && table.len() == 0);
        assert_eq!(table.entries.len(), 6, "the places were used again");
    }
}
