//! The life of a client in the pipelines: written, paused, read again, closed.

use metrics::{PoolCounter, WorkerCounter};
use proto::Quiet;

use super::leave::Departure;
use super::request::State;
use super::session::State as ClientState;
use super::{Clients, tenant};
use crate::base::Base;
use crate::base::connection::Departed;
use crate::base::id::ConnId;
use crate::base::part::{Depth, LinkClass, NONE, Part, RequestId, Sent, Turn};
use crate::base::size::Cost;
use crate::base::tenants::NOBODY;
use crate::{Action, Closed, Time, limits};

impl Clients {
    /// Checks a client that has changed: it may have to be written, read again or closed. A client
    /// that is to be written already and waits for nothing is accounted for when it is written.
    pub(crate) fn update_client(&mut self, base: &mut Base, id: ConnId) {
        let client = self.table.find_mut(id).expect("the caller found it");
        let is_still = client.state.is_read() && !client.is_paused();
        let is_still = is_still && !client.must_read;
        if client.dirty && is_still {
            return;
        }
        let bytes = client.measure();
        base.memory.change(&mut client.counted, bytes);
        if !client.out.is_empty() && !client.dirty {
            client.dirty = true;
            self.dirty.push(id);
        }
        if !is_still {
            self.wake(base, id);
            self.close_if_settled(base, id);
        }
    }

    /// Lets a client go on for which there is room now, and what waits for it to read.
    fn wake(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        let limits = base.narrow(client.group);
        if client.must_read && client.out.len() <= limits.client_outbox / 2 {
            client.must_read = false;
            self.readers.push(id);
        }
        if client.is_paused() && client.may_resume(&limits) && !bug!(NeverResume) {
            client.let_go_on(base.now);
            client.waits.idle = false;
            return self.queue_resume(id);
        }
        client.look_later(base, id);
    }

    pub(crate) fn next_dirty(&mut self, base: &mut Base) -> Option<ConnId> {
        while let Some(id) = self.dirty.pop() {
            if let Some(client) = self.table.find_mut(id) {
                client.dirty = false;
                let bytes = client.measure();
                base.memory.change(&mut client.counted, bytes);
                return Some(id);
            }
        }
        None
    }

    /// Notes that the kernel took `n` bytes of a client's output.
    pub(crate) fn transmitted(&mut self, base: &mut Base, id: ConnId, n: usize) {
        let Some(client) = self.table.find_mut(id) else { return };
        if n == 0 {
            // The client is named again when the kernel takes more, not before.
            client.lags = !client.out.is_empty();
            client.look_later(base, id);
            client.out.settle();
            return client.account(&mut base.memory);
        }
        client.took_last = base.now;
        client.out.advance(n);
        client.record.tally.sent += n as u64;
        client.lags = !client.out.is_empty();
        if client.tenant != NOBODY {
            tenant::charge_sent(&mut base.tenants, client, n, base.now);
        }
        base.pools[client.pool as usize].counters.add(PoolCounter::SentBytes, n as u64);
        if client.out.is_empty() {
            client.out.close(&mut base.spares);
        } else {
            client.out.settle();
        }
        if !client.unwritten.is_empty() {
            self.note_written(base, id);
        }
        self.update_client(base, id);
    }

    /// Notes that a client has closed its half, or is gone.
    pub(crate) fn closed(&mut self, base: &mut Base, id: ConnId, how: Closed) {
        let Some(client) = self.table.find_mut(id) else { return };
        let counters = base.pools[client.pool as usize].counters;
        let is_soon = base.idle_since(client.received) <= limits::ENDS_WITHIN_US;
        match (how, client.departure) {
            (Closed::Eof, Departure::Here) if is_soon && !bug!(DropHalfClosed) => {
                client.departure = Departure::Ends;
            }
            _ => self.cancel(id),
        }
        match how {
            Closed::Eof => {
                counters.add(PoolCounter::ClientsEnded, 1);
                self.finish(base, id);
            }
            Closed::Reset | Closed::Unmade(_) | Closed::Own => {
                counters.add(PoolCounter::ClientsLost, 1);
                self.drop_client(base, id, Departed::Reset);
            }
        }
    }

    /// Cancels the requests of a client that goes without a `quit`: it does not wait for answers
    /// any more. Requests that need no answer stay.
    pub(super) fn cancel(&mut self, id: ConnId) {
        let Some(client) =
            self.table.find_mut(id).filter(|client| client.departure != Departure::Quits)
        else {
            return;
        };
        client.departure = Departure::Left;
        // A client that goes with input unread was waiting.
        let is_unread = !client.partial.is_empty();
        let (mut pending, mut last_loud) = (client.pipeline.head, NONE);
        while pending != NONE {
            if self.requests[pending].info.quiet == Quiet::Loud {
                last_loud = pending;
            }
            pending = self.requests[pending].next;
        }
        pending = client.pipeline.head;
        let mut is_waited_for = is_unread || last_loud != NONE;
        while pending != NONE {
            let entry = &mut self.requests[pending];
            entry.cancelled = is_waited_for || !entry.writes;
            is_waited_for &= is_unread || pending != last_loud || bug!(DropQuiet);
            pending = entry.next;
        }
    }

    /// Notes that nothing more arrives from a client. It is closed when it has all its answers.
    pub(crate) fn finish(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        if client.awaits_elements() {
            return self.end_wait(base, id);
        }
        if client.partial.is_empty() && !client.is_paused() {
            return self.leave(base, id);
        }
        // Whole requests may be waiting in its input: the end of the turn looks for them.
        client.state = ClientState::Ending;
        if client.waits.login {
            // Nearly always it has gone. It would keep others at its address waiting.
            return self.refuse_login(base, id);
        }
        if !client.is_paused() && !bug!(KeepHalfAsked) {
            self.queue_resume(id);
        }
    }

    /// Returns the next client that has read its answers, and for which something waits.
    pub(crate) fn next_reader(&mut self) -> Option<ConnId> {
        self.readers.pop()
    }

    /// Whether there is such a client.
    pub(crate) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Returns the next client that went with requests outstanding.
    pub(crate) fn next_gone(&mut self) -> Option<ConnId> {
        self.gone.pop()
    }

    /// Whether there is such a client.
    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Decides what becomes of a part of a request whose turn has come at a link, where it has
    /// waited since then. `sent` is what its client has outstanding at servers.
    pub(crate) fn turn_of(
        &mut self,
        base: &Base,
        Part { request: id, slot }: Part,
        sent: Sent,
        (cost, since): (Cost, Time),
    ) -> Turn {
        let pending = &self.requests[id];
        if self.is_unheard(base, id, since) {
            return Turn::Dropped;
        }
        let Some(client) = self.table.find_mut(pending.client) else { return Turn::Sent(cost) };
        let cost = match cost.is_unproven() || sent.depth != Depth::Shown {
            true => {
                let (command, is_idle) = (pending.info.command, || sent.parts == 0);
                let expected = client.expected(base, command, || pending.writes, is_idle);
                let is_deep = sent.depth == Depth::Beyond && !pending.writes;
                cost.renewed(if is_deep {
                    client.doubted(base, command, expected)
                } else {
                    expected
                })
            }
            false => cost,
        };
        if pending.info.quiet == Quiet::Silent {
            // Its client does not wait for it, and has one large request at a time all the same.
            let is_next = sent.parts > 0 && cost.is_of(base.limits.large_min);
            return if is_next { Turn::Later } else { Turn::Sent(cost) };
        }
        let ends = matches!(client.departure, Departure::Ends | Departure::Left);
        if ends && sent.parts > 0 && !pending.writes {
            return Turn::Later;
        }
        let bound = base.narrow(client.group).client_outbox as u64;
        if client.out.len() as u64 >= bound {
            client.must_read = true;
            return Turn::Later;
        }
        // Answers that cannot leave before that to this part must not hold it up.
        let (gathered, most) = match client.pipeline.head == id {
            true if pending.awaits(slot) => {
                // An answer to this makes room. To an MGET, only all answers do.
                let gathers = pending.info.gathers;
                let share = if gathers { bound } else { base.limits.client_outbox as u64 };
                (pending.gathered, share * limits::AWAITED_SHARES)
            }
            true => (pending.gathered, bound),
            false => (client.pipeline.gathered, bound),
        };
        let held = client.out.len() as u64 + sent.cost + cost.bytes();
        let is_much = held > bound || held + gathered as u64 > most;
        // One at a time goes in any case: the client may wait for it before it can read others.
        if sent.parts > 0 && is_much { Turn::Later } else { Turn::Sent(cost) }
    }

    /// Whether a request that waits since then is not wanted any more. A read is not when its
    /// client has gone. A change that has waited for so long that its client may send it again is
    /// dropped; any other is sent, since its client may never learn that it was not.
    pub(crate) fn is_unheard(&self, base: &Base, id: RequestId, since: Time) -> bool {
        let pending = &self.requests[id];
        let hold_after = base.pools[pending.pool as usize].plan.hold_after;
        let has_gone = self.table.find(pending.client).is_none();
        if !pending.writes {
            return has_gone;
        }
        // One that has closed its half may still listen. One that has gone may have given up while
        // it stood aside.
        let since = since.min(pending.since);
        let is_late = hold_after.is_some_and(|time| base.now >= since.after(time));
        has_gone && pending.cancelled && is_late && !bug!(KeepGivenUp)
    }

    fn queue_resume(&mut self, id: ConnId) {
        let client = self.table.find_mut(id).expect("the caller found it");
        if !client.resumable {
            client.resumable = true;
            self.resumable.push_back(id);
        }
    }

    /// Has the rest of a client's input wait for the next turn, in which it goes on behind the
    /// others that may go on.
    #[cold]
    pub(crate) fn await_turn(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        base.groups.note_reached(client.group);
        client.waits.turn = true;
        client.pause();
        if !bug!(ForgetShare) {
            self.queue_resume(id);
        }
    }

    /// Returns the work for a client that no turn has paid for yet.
    pub(crate) fn work(&self, id: ConnId) -> u32 {
        self.table.find(id).map_or(0, |client| client.work())
    }

    /// Returns whether there is a paused client that may go on.
    pub(crate) fn has_resumable(&self) -> bool {
        !self.resumable.is_empty()
    }

    /// Returns the next paused client that may go on in this turn.
    pub(crate) fn next_resumable(&mut self, base: &mut Base) -> Option<ConnId> {
        for _ in 0..self.resumable.len() {
            let id = self.resumable.pop_front()?;
            let Some(client) = self.table.find_mut(id) else { continue };
            client.enter_turn(base);
            if client.work() >= base.groups.work(client.group) {
                self.resumable.push_back(id);
                continue;
            }
            client.resumable = false;
            if std::mem::take(&mut client.waits.turn) {
                // It may have to wait for other things since.
                if !client.may_resume(&base.narrow(client.group)) {
                    client.look_later(base, id);
                    continue;
                }
                client.let_go_on(base.now);
                client.waits.idle = false;
            }
            return Some(id);
        }
        None
    }

    /// Takes nothing more from a client. It is closed when it has its answers.
    pub(crate) fn leave(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.state = ClientState::Leaving;
        client.forget_input(base);
        self.end_transaction(base, id);
        self.end_subscriptions(base, id);
        self.forget_login(base, id);
        self.update_client(base, id);
    }

    fn close_if_settled(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find(id) else { return };
        if client.state == ClientState::Leaving && client.is_settled() {
            let why = self.departed(base, client);
            self.drop_client(base, id, why);
            base.actions.push_back(Action::End(id));
        }
    }

    /// Closes a client and removes it.
    pub(super) fn close_client(&mut self, base: &mut Base, id: ConnId, why: Departed) {
        self.drop_client(base, id, why);
        base.actions.push_back(Action::Close(id));
    }

    /// Removes a client that is gone. Its requests are settled without it.
    pub(crate) fn drop_client(&mut self, base: &mut Base, id: ConnId, why: Departed) {
        self.tell_left(base, id, why);
        self.forget_login(base, id);
        self.leave_tenant(base, id);
        self.end_transaction(base, id);
        self.end_subscriptions(base, id);
        let Some(mut client) = self.table.remove(id) else { return };
        if client.outstanding() > 0 || client.class != LinkClass::Shared || client.has_own {
            self.gone.push(id);
        }
        client.forget_input(base);
        client.out.clear();
        client.out.close(&mut base.spares);
        self.unwritten.forget(&mut client.unwritten);
        if !bug!(LeakMemory) {
            base.memory.change(&mut client.counted, 0);
        }
        let pool = &mut base.pools[client.pool as usize];
        pool.clients -= 1;
        pool.conn_keys.leave(client.conn_key);
        pool.counters.subtract(PoolCounter::ClientsNow, 1);
        base.worker.subtract(WorkerCounter::ClientsNow, 1);
        pool.counters.add(PoolCounter::Cancelled, u64::from(client.pipeline.depth));
        self.forget_requests(base, client.pipeline.head, client.pipeline.barrier);
    }

    /// Forgets the requests of a pipeline that no client waits for any more. Their outstanding
    /// parts are settled without the client.
    pub(super) fn forget_requests(&mut self, base: &mut Base, head: RequestId, barrier: RequestId) {
        if barrier != NONE {
            // Nothing else would complete it.
            self.requests[barrier].parts_left = 0;
            self.requests[barrier].set_done();
        }
        let mut pending = head;
        while pending != NONE {
            let next = self.requests[pending].next;
            self.requests[pending].client = ConnId::NONE;
            self.requests[pending].inflight = 0;
            if self.requests[pending].state == State::Done {
                self.free(base, pending);
            }
            pending = next;
        }
    }
}
