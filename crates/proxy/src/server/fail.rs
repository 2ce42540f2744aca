//! Dead links and deadlines. Each message that nothing will answer any more becomes a
//! [`LinkEvent`], which says whether it may have been executed.

use metrics::ServerCounter;

use super::Servers;
use super::batch::{Batch, Entry};
use super::link::{Link, State};
use super::message::{Internal, Message, Payload, Unit};
use super::rest::TRIAL;
use super::state::Hold;
use super::topics::TopicsLost;
use crate::base::connection::Connection;
use crate::base::fault::{Blame, Fault};
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass, Part, RequestId};
use crate::base::pool::Health;
use crate::base::{Base, ServerAt};
use crate::{Action, Closed, Event, Time};

/// The outcome of a message without a reply, or news of a server that clients wait for.
pub(crate) enum LinkEvent {
    /// A part was not sent.
    NotSent { part: Part, server: Option<u32>, fault: Fault },
    /// A message was sent, and its reply has not come in time. It is discarded when it comes.
    Late(LateMessage),
    /// Nothing will answer the message. If it was `sent`, it may have been executed.
    Failed { payload: Payload, server: u32, fault: Fault, sent: bool },
    /// A link that was up has died. Some of its messages may be sent once more.
    Lost(Lost),
    /// The rest of a value that its client receives while it arrives will not come.
    CutOff(RequestId),
    /// The handshake of a link to this server has ended, or the link has: clients that wait for
    /// the server go on.
    Known(ServerAt, Option<u64>),
    /// So much of a client's waits for a link that the client is not read further.
    QueueFull(ConnId),
    /// A link for subscriptions is gone.
    TopicsLost(TopicsLost),
    /// There is room again for that client.
    QueueRoom(ConnId),
    /// Clients of this pool may go around a link: they are owed nothing before they take the
    /// other.
    Around(u32),
    /// A link of a client's own has another in its place, to which what waited there has moved.
    Replaced { client: ConnId, dead: ConnId, link: ConnId },
    /// Nothing of a client's is outstanding any more, as `await_idle` had asked.
    Idle(ConnId),
}

/// A message whose reply has not come in time.
pub(crate) struct LateMessage {
    pub(crate) link: ConnId,
    /// Where it ends in the stream of its link.
    pub(crate) end: u64,
    pub(crate) server: u32,
    pub(crate) parts: Vec<Part>,
    /// The number of keys that its reply answers together.
    pub(crate) keys: Option<u32>,
}

/// The messages of a dead link, in their order.
pub(crate) struct Lost {
    pub(crate) server: u32,
    pub(crate) conn_key: u16,
    /// Why the link is dead.
    pub(crate) fault: Fault,
    /// The client that asked what has brought a wrong reply. None of its requests is sent again,
    /// since they may bring another; others have to share the next link with them.
    pub(crate) blamed: Option<ConnId>,
    /// Each with whether it may have been executed.
    pub(crate) messages: Vec<(Payload, bool)>,
}

impl Servers {
    /// Checks the deadlines of a link. `since` tells when a request was read.
    pub(crate) fn link_timer(
        &mut self,
        base: &mut Base,
        id: ConnId,
        set: Time,
        since: impl Fn(RequestId) -> Time,
    ) {
        let Some(link) = self.links.find_mut(id) else { return };
        if link.armed != Some(set) {
            // Another timer has taken its place. If this one were handled, it would set another for
            // ever.
            return;
        }
        link.armed = None;
        // Whether its end is what this timer was set for or not, the end of the turn serves what
        // waits.
        link.rests_until = link.rests_until.filter(|until| base.now < *until);
        link.work_turn.note_look(base.now);
        let timeouts = base.pool(link.at).plan.timeouts;
        let look_at = link.look_at.into_iter().chain(link.gives_up_at(&timeouts)).min();
        let is_looked_at = look_at.is_some_and(|at| base.now >= at);
        if is_looked_at && matches!(link.state, State::Handshake(_)) {
            return self.ask_busy_again(base, id);
        }
        self.go_around(base, id);
        if self.gives_way(base, id) {
            return;
        }
        let Some(link) = self.links.find_mut(id) else { return };
        if is_looked_at || link.fault_at(&timeouts, base.now) == Some(Fault::ReplyTimeout) {
            self.excuse(base, id);
        }
        let Some(link) = self.links.find_mut(id) else { return };
        if let Some(fault) = link.fault_at(&timeouts, base.now) {
            let is_up = link.is_up();
            #[cfg(seeded_bugs)]
            if bug!(AnswerAfterTimeout) && is_up {
                return self.give_up_first(base, id);
            }
            // Another link shows whether the server is down: what was not sent waits for that. What
            // waits on an idle link has waited for it.
            if fault == Fault::ReplyTimeout && is_up {
                self.renew(base, id, fault);
            }
            return self.close_link(base, id, fault);
        }
        let Some(link) = self.links.find_mut(id) else { return };
        let queue = link.queue_timeout(&timeouts);
        if link.class == LinkClass::Subscribed && link.has_late(base.now, queue) {
            // None of it may be left out.
            return self.close_link(base, id, Fault::QueueTimeout);
        }
        self.expire_pending(base, id, queue);
        self.expire_waiting(base, id, queue);
        self.end_gathering(base, id, timeouts.queue, since);
        self.end_link_retirement(base, id);
        self.arm(base, id);
    }

    /// Takes requests that waited too long to be sent out of the queue.
    fn expire_pending(&mut self, base: &mut Base, id: ConnId, queue: u64) {
        let Some(link) = self.links.find_mut(id) else { return };
        let late = |one: &Message| one.expires() && base.now >= one.since.after(queue);
        if !link.outstanding.range(link.first_pending()..).any(late) {
            return;
        }
        let at = link.at;
        let late = link.withdraw_where(late);
        let is_busy = self.find_busy(base, at).is_some();
        let is_silent = self.is_silent(at);
        let fault = |message: &Message| unsent_fault(is_busy, message.held && is_silent);
        let watch = late.iter().find(|one| one.effort == Effort::Watches).map(fault);
        self.fail_pending(base, id, late, fault);
        if let Some(fault) = watch {
            self.fail_unwatched(base, id, fault);
        }
    }

    /// Fails what was taken off the end of a link.
    pub(super) fn fail_pending(
        &mut self,
        base: &mut Base,
        id: ConnId,
        pending: Vec<Message>,
        fault: impl Fn(&Message) -> Fault,
    ) {
        let Some(server) = self.server_of(id) else { return };
        base.gauges_changed = true;
        self.has_room_since = true;
        let is_unwatch = |message: &Message| message.internal() == Some(Internal::Unwatch);
        let stays_watched = pending.iter().any(is_unwatch);
        for message in pending {
            self.count_gone(&message);
            match message.internal() {
                Some(Internal::Trial(_)) => self.give_up_trial(base, id),
                Some(command) => self.end_internal(base, id, command),
                None => {}
            }
            let (fault, payload) = (fault(&message), message.payload);
            self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: false });
        }
        // The end of a watch has waited too long, and requests that come next must not depend on
        // that watch.
        if stays_watched {
            self.close_private(base, id, Fault::QueueTimeout);
        }
        // The batch that waited behind them may have room now.
        self.mark_dirty(id);
    }

    /// Sends an open batch that has waited for more keys as long as a request may wait.
    fn end_gathering(
        &mut self,
        base: &mut Base,
        id: ConnId,
        queue: u64,
        since: impl Fn(RequestId) -> Time,
    ) {
        let Some(link) = self.links.find_mut(id) else { return };
        let is_over = |batch: &Batch| base.now >= batch.since.after(queue);
        let is_late = link.batch.as_ref().is_some_and(|batch| is_over(batch));
        if !is_late || bug!(GatherForEver) {
            return;
        }
        if bug!(SpinTimer) {
            return;
        }
        let state = &self.states[link.at.pool as usize][link.at.server as usize];
        let hold = state.silence.hold;
        let at = link.at;
        let is_busy = hold == Hold::On && self.find_busy(base, at).is_some();
        let Some(link) = self.links.find_mut(id) else { return };
        let fault = match hold {
            Hold::On => Some(unsent_fault(is_busy, true)),
            _ if matches!(link.state, State::Handshake(_)) => Some(Fault::QueueTimeout),
            Hold::Off | Hold::Ending => None,
        };
        let Some(mut batch) = link.batch.take() else { return };
        let upstream = base.pool(link.at).upstream;
        match fault {
            // Keys that have waited in the batch of a held server as long as a message may wait.
            Some(fault) => {
                let since = |entry: &Entry| since(entry.part.request);
                let is_late = |entry: &Entry| base.now >= since(entry).after(queue);
                let (kept, late) = batch.part(upstream, is_late);
                link.batch = kept.map(|mut kept| {
                    kept.since = kept.entries.iter().map(since).min().unwrap_or(base.now);
                    kept
                });
                link.forget_batch(&late);
                let server = link.at.server;
                self.count_batch_gone(&late);
                let payload = Payload::Fetch(late);
                self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: false });
            }
            None => {
                // From here on it waits for the kernel. If the time of its last key counted, it
                // would be late at once and answered with an error.
                batch.latest = base.now;
                link.launch_batch(batch, upstream);
            }
        }
        self.mark_dirty(id);
    }

    /// Handles the end of a link's connection, or of an attempt to connect.
    pub(crate) fn closed(&mut self, base: &mut Base, id: ConnId, how: Closed) {
        let Some(link) = self.links.find(id) else { return };
        let was_up = link.was_up();
        let fault = match how {
            _ if was_up => Fault::LinkLost,
            _ if !base.server(link.at).plan.has_address => Fault::Unresolved,
            Closed::Own => Fault::Unable,
            Closed::Eof | Closed::Reset if matches!(link.state, State::Handshake(_)) => {
                Fault::ConnectClosed
            }
            Closed::Eof | Closed::Reset | Closed::Unmade(_) => Fault::ConnectFailed,
        };
        let state = &mut self.states[link.at.pool as usize][link.at.server as usize];
        if was_up && how == Closed::Eof {
            state.counters.add(ServerCounter::LinkEnded, 1);
        }
        if let Closed::Unmade(errno) = how {
            state.connect_errno = Some(errno);
        }
        if fault == Fault::LinkLost {
            self.doubt(base, id);
            self.renew(base, id, fault);
        }
        self.remove_dead_link(base, id, fault);
    }

    /// Closes a link whose server has sent something that cannot be an answer. It may be another
    /// request's, so nothing that follows on the link is believed. What the server sends elsewhere
    /// is.
    pub(crate) fn poison(&mut self, base: &mut Base, id: ConnId, why: &'static str) {
        let Some(link) = self.links.find(id) else { return };
        let server = base.server(link.at).plan.id;
        base.log(Event::Poisoned { server, why });
        self.renew(base, id, Fault::Poisoned);
        self.close_link(base, id, Fault::Poisoned);
    }

    /// Closes a link from our side.
    pub(super) fn close_link(&mut self, base: &mut Base, id: ConnId, fault: Fault) {
        base.actions.push_back(Action::Close(id));
        self.remove_dead_link(base, id, fault);
    }

    /// Takes a link out of the table that ends, and out of all that counts links but its server.
    /// Without `why` it was not needed any more.
    pub(super) fn take_link(
        &mut self,
        base: &mut Base,
        id: ConnId,
        why: Option<&'static str>,
    ) -> Option<Link> {
        let mut link = self.links.remove(id)?;
        let Link { at, conn_key, .. } = link;
        base.log_connection(|base| Connection::LinkLost {
            link: id,
            server: base.server(at).plan.id,
            why,
        });
        self.forget_private(base, id, &link);
        self.forget_spare(base, &link);
        base.memory.change(&mut link.counted, 0);
        base.pools[at.pool as usize].conn_keys.remove_link(conn_key);
        base.gauges_changed = true;
        Some(link)
    }

    /// Removes a dead link: its server's health is updated, and its messages are given up.
    fn remove_dead_link(&mut self, base: &mut Base, id: ConnId, fault: Fault) {
        let Some(mut link) = self.take_link(base, id, Some(fault.row().words)) else { return };
        let at = link.at;
        let state = self.state(at);
        let (probing, judges) = (state.probe == Some(id), state.judge == Some(id));
        let place = self.place_of(id, &link);
        let state = self.state(at);
        state.forget(id, &link);
        state.note_blocks_lost(id, &link, base.now);
        self.forget_last(base, at);
        if link.class == LinkClass::Subscribed {
            self.forget_topics(base, &link, fault);
        }
        self.count_fault(at, fault);
        if fault == Fault::SetupRefused {
            let conn_key = base.pools[at.pool as usize].conn_keys.of(link.conn_key);
            self.state(at).note_refused(conn_key, base.now);
        }
        let is_trial = place == Some(TRIAL) && link.was_up();
        if !is_trial {
            self.count_fruitless(base, (&link, place), fault);
        }
        let harmless = self.is_harmless(base, &link, fault);
        let mut stand_in = None;
        match fault.row().blame {
            _ if !base.server(at).is_in_service() => {}
            Blame::Own if !bug!(BlameServer) => self.connect_unable(base, at, probing),
            // It answers that it is full, or answers others.
            _ if probing && self.is_back(base, &link, fault) => self.note_back(base, at),
            // A server that was let back meanwhile is judged as any other.
            _ if probing && (base.server(at).ejected || base.server(at).health == Health::Down) => {
                self.server_failed(base, at, fault);
            }
            _ if base.server(at).health == Health::Down => {}
            Blame::Server if is_trial => self.rest_trial(base, &link, fault),
            Blame::Server if harmless => {}
            Blame::Server if !link.was_up() => {
                stand_in = self.judge(base, (&link, place, judges), fault);
            }
            // It was silent: another link shows whether the server is.
            Blame::Server if fault == Fault::ReplyTimeout => drop(self.begin_judge(base, at)),
            Blame::Server => stand_in = self.note_fruitless(base, (&link, place), fault),
            Blame::Own => self.server_failed(base, at, fault),
            Blame::Overload => {}
        }
        self.clear_out(base, (id, &mut link), stand_in, fault);
        if link.owes {
            self.count_link_settled(at);
        }
        if base.server(at).is_in_service() && fault.row().blame == Blame::Server {
            self.judge_again(base, at);
        }
        self.events.push_back(LinkEvent::Known(at, base.hold_after(at)));
    }

    /// Counts a link that ends with this fault.
    pub(super) fn count_fault(&mut self, at: ServerAt, fault: Fault) {
        let counters = &self.state(at).counters;
        if let Some(counter) = fault.row().counter {
            counters.add(counter, 1);
        }
        if fault == Fault::ConnectTimeout {
            counters.add(ServerCounter::ConnectTimeout, 1);
        }
    }

    /// Whether a link may end like this though its server is well: a server may close one that was
    /// idle, a restart ends links that worked, and a slow request may never end. If the server is
    /// down, the next connect will show it.
    fn is_harmless(&self, base: &Base, link: &Link, fault: Fault) -> bool {
        let state = &self.states[link.at.pool as usize][link.at.server as usize];
        let timeouts = &base.pool(link.at).plan.timeouts;
        match fault {
            Fault::LinkLost => link.has_worked(base.now),
            // It is a reply, perhaps to another request, and the next link may begin with it. But a
            // server that was down has to answer something rightly.
            _ if link.has_wrong_reply(fault) => link.has_answered() || state.may_be_well(),
            Fault::ReplyTimeout => link.is_alone_silent(state.silence.heard, timeouts),
            _ => false,
        }
    }

    /// Moves what waits on a dead link to the one that stands in for it, if there is one, and gives
    /// the rest up.
    pub(super) fn clear_out(
        &mut self,
        base: &mut Base,
        (id, link): (ConnId, &mut Link),
        stand_in: Option<ConnId>,
        fault: Fault,
    ) {
        if let Some(other) = stand_in {
            self.move_unsent(base, (id, link), other);
        }
        self.give_up(link, fault);
        self.tell_busy(base, link.at);
        self.tell_work(link.at);
        self.has_room_since = true;
    }

    /// Gives up the messages of a dead link.
    fn give_up(&mut self, link: &mut Link, fault: Fault) {
        if let Some(body) = link.body.take()
            && let Some(part) = body.arrival.part
        {
            if body.arrival.streams && !bug!(NeverCutOff) {
                self.events.push_back(LinkEvent::CutOff(part.request));
            }
            // A value that had begun to arrive is outstanding again.
            if body.unit == Unit::Key
                && let Some(Message { payload: Payload::Fetch(batch), .. }) =
                    link.outstanding.front_mut()
            {
                batch.cursor -= 1;
            }
        }
        let is_wrong = link.has_wrong_reply(fault);
        // The request that a wrong reply seems to answer is not asked again: that would end one
        // link after the other.
        let first = link.outstanding.front().filter(|_| is_wrong && link.is_waiting());
        let blamed = first.and_then(Message::asker);
        let mut messages = Vec::new();
        let mut start = link.done;
        for message in std::mem::take(&mut link.outstanding) {
            self.count_gone(&message);
            // A server executes a block when it has come whole.
            let is_cut = message.is_block() && (message.end > link.sent || bug!(BlockNeverSent));
            let sent = start < link.sent && !is_cut && !bug!(ForgetSent);
            start = message.end;
            if message.is_late() {
                continue;
            }
            messages.push((message.payload, sent));
        }
        messages.extend(link.unmerged_batch.take().map(|batch| (Payload::Fetch(batch), false)));
        if let Some(batch) = link.batch.take() {
            self.count_batch_gone(&batch);
            messages.push((Payload::Fetch(batch), false));
        }
        messages.extend(self.take_waiting(link).into_iter().map(|payload| (payload, false)));
        let server = link.at.server;
        if blamed.is_some() {
            let (payload, sent) = messages.remove(0);
            self.events.push_back(LinkEvent::Failed { payload, server, fault, sent });
        }
        if fault == Fault::LinkLost || is_wrong {
            let lost = Lost { server, conn_key: link.conn_key, fault, blamed, messages };
            return self.events.push_back(LinkEvent::Lost(lost));
        }
        for (payload, sent) in messages {
            self.events.push_back(LinkEvent::Failed { payload, server, fault, sent });
        }
    }

    /// `AnswerAfterTimeout`: gives up the request, but not its link.
    #[cfg(seeded_bugs)]
    fn give_up_first(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find(id) else { return };
        let server = link.at.server;
        let Some(message) = self.forget_first(base, id) else { return };
        let (payload, fault) = (message.payload, Fault::ReplyTimeout);
        self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: true });
        self.arm(base, id);
    }

    /// Takes the first message off its link, as if it had its reply.
    #[cfg(seeded_bugs)]
    pub(super) fn forget_first(&mut self, base: &mut Base, id: ConnId) -> Option<Message> {
        let link = self.links.find_mut(id).filter(|link| !link.outstanding.is_empty())?;
        let message = link.pop();
        link.done = message.end.min(link.sent);
        link.since = base.now;
        self.note_owing(base, id);
        self.count_gone(&message);
        Some(message)
    }
}

/// Returns why a request was not sent in time.
pub(super) fn unsent_fault(is_busy: bool, held: bool) -> Fault {
    match held {
        _ if is_busy => Fault::Busy,
        true => Fault::Held,
        false => Fault::QueueTimeout,
    }
}
