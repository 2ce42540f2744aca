//! Dead links and deadlines. A request that may have been executed is never sent again: an update
//! that was sent and not answered gets an error that says so. Only a get whose link died may be
//! sent once more, and only if its client has sent no change since.

use metrics::ServerCounter;

use super::ask::close;
use crate::batch::{Batch, Entry};
use crate::fault::{Blame, Fault};
use crate::id::ConnId;
use crate::link::{Body, Link, Message, Payload, State, Unit};
use crate::pool::{Hold, Stage};
use crate::request::{NONE, RequestId};
use crate::timers::Due;
use crate::{Action, Closed, Proxy, Time, limits};

impl Proxy {
    /// Makes sure that a timer checks a link no later than its next deadline.
    pub(crate) fn arm_link(&mut self, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let timeouts = &self.pipelines.pools[link.pool as usize].plan.timeouts;
        let Some(deadline) = link.deadline(timeouts) else { return };
        if link.armed.is_none_or(|armed| deadline < armed) {
            link.armed = Some(deadline);
            self.timers.set(deadline, Due::Link(id));
        }
    }

    pub(crate) fn timer(&mut self, set: Time, due: Due, now: Time) {
        match due {
            Due::Link(id) => self.link_timer(id, set, now),
            Due::Silence { pool, server } => {
                self.silence_timer(pool as usize, server as usize, set, now);
            }
            Due::Probe { pool, server } => self.probe(pool as usize, server as usize, set, now),
            Due::Again { pending } => self.ask_anew(pending, now),
            Due::Retire { id } => self.end_retirement(id, set),
            Due::Logins { id } => self.logins_timer(id, set),
            Due::Publish => {
                self.publish_due = false;
                self.publish();
            }
        }
    }

    fn link_timer(&mut self, id: ConnId, set: Time, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        if link.armed != Some(set) {
            // Another timer has taken its place. If this one were handled, it would set another for
            // ever.
            return;
        }
        link.armed = None;
        let timeouts = self.pipelines.pools[link.pool as usize].plan.timeouts;
        let stands = link.state == State::Up;
        let (connecting, handshake) =
            (link.state == State::Connecting, link.state == State::Handshake);
        if connecting && now >= link.since.after(timeouts.connect) {
            return self.close_link(id, Fault::ConnectTimeout, now);
        }
        if handshake && now >= link.since.after(timeouts.reply) {
            return self.close_link(id, Fault::ReplyTimeout, now);
        }
        if stands && link.is_waiting() && now >= link.reply_deadline(&timeouts) {
            #[cfg(seeded_bugs)]
            if bug!(AnswerAfterTimeout) {
                return self.give_up_first(id, now);
            }
            return self.close_link(id, Fault::ReplyTimeout, now);
        }
        self.expire_pending(id, timeouts.queue, now);
        self.end_gathering(id, timeouts.queue, now);
        self.end_link_retirement(id);
        self.arm_link(id);
    }

    /// Takes requests that waited too long to be sent out of the queue.
    fn expire_pending(&mut self, id: ConnId, queue: u64, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        let first = link.first_pending();
        let late = |message: &&Message| now >= message.since.after(queue);
        let count = link.outstanding.iter().skip(first).take_while(late).count();
        if count == 0 {
            return;
        }
        let server = link.server;
        self.gauges_changed = true;
        for message in link.withdraw(first, count) {
            let fault = if message.held { Fault::Held } else { Fault::QueueTimeout };
            self.fail_message(message, server, fault, false);
        }
        // The batch that waited behind them may have room now.
        self.mark_dirty(id);
    }

    /// Sends an open batch that has waited for more keys as long as a request may wait.
    fn end_gathering(&mut self, id: ConnId, queue: u64, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        let is_over = |batch: &Batch| now >= batch.since.after(queue);
        let is_late = link.batch.as_ref().is_some_and(|batch| is_over(batch));
        if !is_late || bug!(GatherForEver) {
            return;
        }
        if bug!(SpinTimer) {
            return;
        }
        let pool = &mut self.pipelines.pools[link.pool as usize];
        let server = &pool.servers[link.server as usize];
        match server.silence.hold {
            Hold::On => return self.expire_batch(id, queue, Fault::Held, now),
            _ if link.state == State::Handshake => {
                return self.expire_batch(id, queue, Fault::QueueTimeout, now);
            }
            Hold::Off | Hold::Ending => {}
        }
        if let Some(batch) = &mut link.batch {
            // From here on it waits for the kernel. If the time of its last key counted, it would
            // be late at once and answered with an error.
            batch.latest = now;
        }
        close(link, pool);
        self.mark_dirty(id);
    }

    /// Fails keys that have waited in the batch of a held server as long as a message may wait.
    fn expire_batch(&mut self, id: ConnId, queue: u64, fault: Fault, now: Time) {
        let link = self.links.find_mut(id).expect("the caller found it");
        let (server, batch) = (link.server, link.batch.take().expect("the caller looked"));
        let upstream = self.pipelines.pools[link.pool as usize].upstream;
        let requests = &self.pipelines.requests;
        let is_late = |entry: &Entry| now >= requests[entry.pending].since.after(queue);
        let (kept, late) = batch.part(upstream, is_late);
        link.batch = kept.map(|mut kept| {
            let oldest = kept.entries.iter().map(|entry| requests[entry.pending].since).min();
            kept.since = oldest.expect("an empty batch is none");
            kept
        });
        self.fail_batch(late, server, fault, false);
        self.mark_dirty(id);
    }

    /// Handles the end of a link's connection, or of an attempt to connect.
    pub(crate) fn link_closed(&mut self, id: ConnId, how: Closed, now: Time) {
        let Some(link) = self.links.find(id) else { return };
        let stands = link.state == State::Up || link.state == State::Handshake && link.proven;
        let fault = match how {
            _ if stands => Fault::LinkLost,
            Closed::Own => Fault::Unable,
            Closed::Eof | Closed::Reset => Fault::ConnectFailed,
        };
        if stands && how == Closed::Eof {
            let server = &self.pipelines.pools[link.pool as usize].servers[link.server as usize];
            server.counters.add(ServerCounter::LinkEnded, 1);
        }
        if fault == Fault::LinkLost {
            self.doubt(id);
        }
        self.remove_dead_link(id, fault, now);
    }

    /// Closes a link from our side.
    pub(super) fn close_link(&mut self, id: ConnId, fault: Fault, now: Time) {
        self.pipelines.actions.push_back(Action::Close(id));
        self.remove_dead_link(id, fault, now);
    }

    /// Removes a dead link: its server's health is updated, and its messages are settled.
    fn remove_dead_link(&mut self, id: ConnId, fault: Fault, now: Time) {
        let mut link = self.links.remove(id).expect("the caller found it");
        self.gauges_changed = true;
        self.pipelines.memory.change(&mut link.counted, 0);
        let (pool, server_index) = (link.pool as usize, link.server as usize);
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        let probing = server.probe == Some(id);
        server.forget(id);
        if let Some(counter) = fault.row().counter {
            server.counters.add(counter, 1);
        }
        if fault == Fault::SetupRefused {
            server.note_refused(link.conn_key, now);
        }
        if fault == Fault::ConnectTimeout {
            server.counters.add(ServerCounter::ConnectTimeout, 1);
        }
        // A server may close a link that was idle, and a restart ends links that worked. Neither is
        // a reason to believe the server down. If it is, the next connect will show it.
        let has_stood = link.state == State::Up && now.since(link.up_at) >= limits::LINK_STOOD_US;
        let harmless = fault == Fault::LinkLost && (link.proven || has_stood);
        let is_planned = server.stage == Stage::Planned;
        match fault.row().blame {
            _ if !is_planned => {}
            Blame::Own if !bug!(BlameServer) => {
                self.connect_unable(pool, server_index, probing, now)
            }
            Blame::Server if !harmless || probing => {
                self.server_failed(pool, server_index, fault, now)
            }
            Blame::Own => self.server_failed(pool, server_index, fault, now),
            _ if probing => self.server_failed(pool, server_index, fault, now),
            Blame::Server | Blame::Overload => {}
        }
        let body = link.body.take();
        if let Some(Body { entry: Some(entry), streams: true, .. }) = &body
            && !bug!(NeverCutOff)
        {
            self.pipelines.cut_off(entry.pending);
        }
        // A value that had begun to arrive is outstanding again.
        if let Some(Body { entry: Some(_), unit: Unit::Key, .. }) = body
            && let Some(Message { payload: Payload::Fetch(batch), .. }) =
                link.outstanding.front_mut()
        {
            batch.cursor -= 1;
        }
        self.settle_carried(&mut link, fault, now);
        if link.owes {
            self.count_link_settled(pool, server_index);
        }
        self.end_awaiting(pool, server_index);
    }

    /// Settles the messages of a dead link: each is sent once more, where that changes nothing, or
    /// fails.
    fn settle_carried(&mut self, link: &mut Link, fault: Fault, now: Time) {
        // Decide what may be sent again before anything is settled. An update that fails here
        // counts as a change of its client, and may have been executed.
        let is_asked_again =
            |batch: &Batch| fault == Fault::LinkLost && Proxy::is_idempotent(batch);
        let (mut again, mut reads, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = link.done;
        for message in std::mem::take(&mut link.outstanding) {
            let touched = start < link.sent && !bug!(ForgetSent);
            start = message.end;
            match message.payload {
                Payload::Fetch(batch) if is_asked_again(&batch) => {
                    again.push(self.judge(batch, link.conn_key));
                }
                Payload::Single(pending, _)
                    if fault == Fault::LinkLost && self.may_read_again(pending, link.conn_key) =>
                {
                    reads.push(pending);
                }
                _ => lost.push((message, touched)),
            }
        }
        for batch in [link.unmerged_batch.take(), link.batch.take()].into_iter().flatten() {
            if is_asked_again(&batch) {
                again.push(self.judge(batch, link.conn_key));
            } else {
                self.fail_batch(batch, link.server, fault, false);
            }
        }
        for (message, touched) in lost {
            self.fail_message(message, link.server, fault, touched);
        }
        self.ask_again(again, link.server, fault, now);
        self.read_again(reads, link.server, now);
    }

    /// Decides which outstanding keys of a batch may be sent once more.
    fn judge(&self, batch: Box<Batch>, conn_key: u16) -> (Box<Batch>, Vec<bool>) {
        let may =
            batch.outstanding().map(|entry| self.may_ask_again(entry.pending, conn_key)).collect();
        (batch, may)
    }

    /// Fails every request in a message.
    pub(super) fn fail_message(&mut self, message: Message, server: u32, fault: Fault, sent: bool) {
        #[cfg(seeded_bugs)]
        if fault == Fault::LinkLost && sent && self.resend(&message, server) {
            return;
        }
        match message.payload {
            Payload::Fetch(batch) => self.fail_batch(batch, server, fault, sent),
            Payload::Single(pending, slot) => {
                let executed = sent && self.pipelines.requests[pending].writes;
                self.pipelines.fail_part((pending, slot), Some(server), fault, executed);
            }
            Payload::Internal(_) => {}
        }
    }

    pub(super) fn fail_batch(&mut self, batch: Box<Batch>, server: u32, fault: Fault, sent: bool) {
        for entry in batch.outstanding() {
            let executed = sent && self.pipelines.requests[entry.pending].writes;
            self.pipelines.fail_part((entry.pending, entry.slot), Some(server), fault, executed);
        }
        self.recycle(batch);
    }

    /// Sends gets whose link died once more, where that cannot change their client's results.
    fn ask_again(
        &mut self,
        again: Vec<(Box<Batch>, Vec<bool>)>,
        server: u32,
        fault: Fault,
        now: Time,
    ) {
        for (batch, may) in again {
            let prefix = batch.prefix().to_vec();
            for (entry, may) in batch.outstanding().zip(may) {
                let owner = self.pipelines.requests[entry.pending].client;
                let pool = self.pipelines.requests[entry.pending].pool as usize;
                let key = batch.key(*entry);
                let link = if may { self.link_for_key(pool, key, owner, now).ok() } else { None };
                let Some(link) = link else {
                    self.pipelines.fail_key((entry.pending, entry.slot), Some(server), fault);
                    continue;
                };
                self.pipelines.requests[entry.pending].asked_again = true;
                let entry_of = &mut self.pipelines.pools[pool].servers[server as usize];
                entry_of.counters.add(ServerCounter::AskedAgain, 1);
                self.ask_once_more(link, &batch, &prefix, (entry.pending, entry.slot), key, now);
            }
            self.recycle(batch);
        }
    }

    fn ask_once_more(
        &mut self,
        id: ConnId,
        batch: &Batch,
        prefix: &[u8],
        part: (RequestId, u32),
        key: &[u8],
        now: Time,
    ) {
        let link = self.links.find_mut(id).expect("the router found it");
        let pool = &mut self.pipelines.pools[link.pool as usize];
        let mut one = Batch::blank();
        one.open(batch.ask, batch.idempotent, self.turn, now);
        one.single_reply = batch.single_reply;
        one.text.extend_from_slice(prefix);
        one.push(pool.upstream, key, part.0, part.1);
        pool.servers[link.server as usize].counters.add(ServerCounter::Messages, 1);
        link.launch_batch(one, pool.upstream);
        self.mark_dirty(id);
        self.arm_link(id);
    }

    /// As `may_ask_again`, for a read that is kept until it is answered.
    fn may_read_again(&self, id: RequestId, conn_key: u16) -> bool {
        let pending = &self.pipelines.requests[id];
        let is_read = !pending.writes && !pending.info.gathers && pending.info.repeats.is_some();
        is_read && self.may_ask_again(id, conn_key)
    }

    /// Sends reads whose link died once more.
    fn read_again(&mut self, reads: Vec<RequestId>, server: u32, now: Time) {
        for id in reads {
            let pending = &mut self.pipelines.requests[id];
            (pending.asked_again, pending.info.awaits_retry) = (true, true);
            let pool = &self.pipelines.pools[pending.pool as usize];
            pool.servers[server as usize].counters.add(ServerCounter::AskedAgain, 1);
            self.ask_anew(id, now);
        }
    }

    /// Whether a get may be sent once more. It must not have been sent again before, its client
    /// must be there with the same connection key, and that client must have sent no change after
    /// it: the second attempt must not see a state that the first could not have seen.
    fn may_ask_again(&self, id: RequestId, conn_key: u16) -> bool {
        let pending = &self.pipelines.requests[id];
        let client = self.pipelines.clients.find(pending.client);
        let is_there =
            client.is_some_and(|client| client.conn_key == conn_key || bug!(AskWithOtherConnKey));
        is_there && !pending.asked_again && !self.has_changed_since(id)
    }

    /// Whether the client of a request has sent a change that is outstanding and may stand behind
    /// the request in a queue.
    pub(super) fn has_changed_since(&self, id: RequestId) -> bool {
        let pending = &self.pipelines.requests[id];
        // A client that has left sees nothing, and the entries behind its own may belong to others
        // by now.
        let client =
            self.pipelines.clients.find(pending.client).filter(|_| !bug!(AskAgainPastWrite));
        let Some(client) = client else { return false };
        if client.silent_count > 0 {
            return true;
        }
        let mut later = pending.next;
        while later != NONE {
            if self.pipelines.requests[later].writes {
                return true;
            }
            later = self.pipelines.requests[later].next;
        }
        false
    }
}
