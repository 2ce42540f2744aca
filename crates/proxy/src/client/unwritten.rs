//! Answers that have been released and are not wholly written to their clients yet, of the requests
//! that are measured. Each client has a list of its own, in the order of its answers.

use metrics::{Latency, Phase, SlowEntry};
use proto::Asked;

use super::Clients;
use super::request::{PendingRequest, UNTIMED};
use super::session::Client;
use crate::base::access::{AccessLine, Outcome, Results};
use crate::base::id::ConnId;
use crate::base::phases::{Moments, UNSENT};
use crate::base::pool::Pool;
use crate::base::slow::{ReplyOf, SlowWork, Story};
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
    /// What the slow log says of it, if it may be slow.
    slow: Option<Box<SlowNote>>,
}

/// A request that may be slow, or has a line in the access log.
struct SlowNote {
    /// Its command, key and the like.
    entry: SlowEntry,
    reply: ReplyOf,
    may_be_slow: bool,
    /// What its line in the access log has beside that, if it has one.
    access: Option<Access>,
    /// Its client had not taken all of its answers when this one was released.
    lagged: bool,
    turn: u64,
}

struct Access {
    user: Option<String>,
    received: u64,
    sent: u64,
    outcome: Outcome,
}

/// A client's answers among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnwrittenList {
    first: u32,
    last: u32,
    /// The offset of the end of the client's last answer in the stream of bytes to it. It is kept
    /// while there is an access log.
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
            slow: None,
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
            match &mut entry.slow {
                Some(slow) if !slow.lagged => slow.lagged = true,
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

impl Clients {
    /// Requests have lines in the access log from now on: the bytes of answers before are none of
    /// theirs.
    pub(crate) fn begin_access_log(&mut self) {
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
            finish(base, id, entry);
        }
        // Most of what waits behind an answer that is not taken whole waits for the same reason.
        if client.lags && !client.unwritten.is_empty() {
            self.unwritten.note_lag(client.unwritten);
        }
    }
}

/// Whether it matters when a request's answer has been written, because the request has a line in
/// the access log, or is slow or may become so.
pub(super) fn is_kept(pool: &Pool, client: &Client, pending: &PendingRequest, now: Time) -> bool {
    let is_slow = now.since(pending.moments.begun) >= pool.plan.slow.after;
    let is_watched = pool.plan.logs_slow() && pending.since != UNTIMED;
    pending.access.is_logged
        || is_watched && (is_slow || client.lags || client.out.len() >= limits::BLOCK)
}

/// Notes an answer that has been released.
#[cold]
pub(super) fn note(
    base: &Base,
    client: &Client,
    pending: &PendingRequest,
    weight: u32,
) -> Unwritten {
    let pool = &base.pools[pending.pool as usize];
    let end = client.record.tally.sent + client.out.len() as u64;
    let PendingRequest { moments, info, key, reply_of, access, .. } = pending;
    let is_logged = access.is_logged && base.logs_access && info.command != Asked::NO_REQUEST;
    let may_be_slow = pool.plan.logs_slow() && pending.since != UNTIMED;
    let slow = (may_be_slow || is_logged).then(|| {
        let reply_of = match moments.sent {
            UNSENT => ReplyOf::NONE,
            _ => *reply_of,
        };
        let commands = info.protocol.commands();
        let command = commands.get(usize::from(info.command)).map_or("", |command| command.name);
        let server = pool.servers.get(reply_of.server as usize).map_or(0, |one| one.plan.id);
        let name = client.session.profile.as_ref().map(|profile| &profile.name[..]);
        let entry = SlowEntry {
            pool: pool.plan.id,
            tenant: base.tenants.find(client.tenant).map_or(0, |tenant| tenant.plan.id),
            server,
            name: String::from_utf8_lossy(name.unwrap_or_default()).into_owned(),
            asked_again: pending.asked_again || info.repeats.is_some_and(|times| times > 0),
            key_hash: key.hash,
            key_len: key.len,
            command: command.to_string(),
            key: key.text.clone(),
            ..SlowEntry::default()
        };
        let access = is_logged.then(|| {
            let has_error = !pending.error.is_empty();
            let results = if has_error { Results::ERROR } else { access.results };
            Access {
                user: client.user().map(|user| user.to_string()),
                received: access.received,
                sent: end.saturating_sub(client.unwritten.answered),
                outcome: results.outcome(),
            }
        });
        let (lagged, turn) = (client.lags, base.turn);
        Box::new(SlowNote { entry, reply: reply_of, may_be_slow, access, lagged, turn })
    });
    Unwritten { end, moments: *moments, weight, pool: pending.pool, next: NONE, slow }
}

/// Records a request whose answer has been written.
#[cold]
pub(super) fn finish(base: &mut Base, client: ConnId, entry: Unwritten) {
    let Unwritten { moments, weight, slow, pool: index, .. } = entry;
    let pool = &mut base.pools[index as usize];
    let phases = moments.phases(base.now);
    if weight > 0 {
        for (phase, time) in Phase::ALL.into_iter().zip(phases) {
            pool.latencies.record_many(Latency::of_phase(phase), time, weight.into());
        }
    }
    let Some(slow) = slow else { return };
    let SlowNote { mut entry, reply, may_be_slow, access, lagged, turn } = *slow;
    (entry.at_us, entry.phases) = (base.now.0, phases);
    if let Some(Access { user, received, sent, outcome }) = access {
        let line = AccessLine { entry: entry.clone(), user, received, sent, outcome };
        base.actions.push_back(Action::Access { client, line: Box::new(line) });
    }
    if !may_be_slow || phases.iter().sum::<u64>() < pool.plan.slow.after {
        return;
    }
    pool.slow_skipped = pool.slow_skipped.saturating_add(1);
    if pool.slow_skipped < pool.plan.slow.one_in {
        return;
    }
    pool.slow_skipped = 0;
    let server = pool.servers.get(reply.server as usize);
    let mut busy = server.and_then(|one| one.slow_work).filter(|_| !reply.is_work);
    let at = ServerAt { pool: index, server: reply.server };
    if server.is_some()
        && busy.is_none()
        && let Some(with) = base.busy(at).filter(|_| !reply.is_work)
    {
        let (command, since) = (with.ask.command, with.since);
        busy = Some(SlowWork { command, since, until: base.now });
    }
    // An answer that was written in the turn of its release waited for the worker alone.
    let lagged = lagged || turn != base.turn;
    let (written, turn) = (base.now, base.long_turn);
    let story = Story { moments, written, reply, busy, turn, lagged };
    (entry.causes, entry.busy_with) = story.causes();
    base.actions.push_back(Action::Slow { client, entry: Box::new(entry) });
}

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
            Unwritten { end, moments, weight: 1, pool: 0, next: NONE, slow: None }
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
