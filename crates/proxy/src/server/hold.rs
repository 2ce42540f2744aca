//! Hold and drop. A server that owes answers and has been silent for `hold_after` gets nothing
//! more: messages to it wait, and those that no client waits for any more are dropped. So when a
//! client gives up, comes back and sends its update again, the update is executed only once when
//! the server answers again.
//!
//! ```text
//!           owes, and silent for `hold_after`           a byte of it, or it owes nothing
//!     Off ────────────────────────────────────▶ On ────────────────────────────────────▶ Ending
//!      ▲                                         │ every `hold_after`: drop                  │
//!      └──────────── the turn ends: drop, and send the rest ◀───────────────────────────────┘
//! ```
//!
//! * Silence is a state of the server, not of one link. So messages are held on all links that this
//!   worker has to it, and the metrics registry shows the other workers that the server is silent.
//!   A message of which a part is sent already is sent to its end.
//! * If a worker found the server silent, a link on which it owes nothing repeats the handshake
//!   before anything else is sent. The answer shows that the server is there after all.
//! * Two kinds of requests are dropped: a read whose client has left, and an update whose client
//!   waited for the answer and has left without a `quit`. A client that comes back sends such a
//!   request again. It does not repeat a request whose answer it never waited for (`noreply`, quiet
//!   requests without a loud one behind them), so these are sent.

use metrics::ServerCounter;

use super::batch::Batch;
use super::link::{Link, State};
use super::message::{Message, Payload};
use super::state::{Hold, ServerState};
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{LinkClass, RequestId};
use crate::base::timers::Due;
use crate::base::{Base, ServerAt};

impl Servers {
    /// Checks whether a server now owes something on a link, or no longer does.
    pub(super) fn note_owing(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let owes = link.is_waiting() && (!link.waits() || bug!(HoldWait));
        if link.owes == owes {
            return;
        }
        link.owes = owes;
        let at = link.at;
        if !owes {
            return self.count_link_settled(at);
        }
        let silence = &mut self.state(at).silence;
        silence.owing += 1;
        if silence.owing == 1 {
            silence.asked = base.now;
        }
        let look_at = silence.look_at;
        if let Some(patience) = base.silence_after(at) {
            let due = base.now.after(patience);
            if look_at.is_none_or(|look_at| look_at > due) {
                self.set_silence_timer(base, at, due);
            }
        }
    }

    /// Counts one link fewer on which a server owes, since the link died or has all its answers.
    /// After the last one, the server owes nothing and the hold ends; the next message or handshake
    /// shows whether the server answers.
    pub(super) fn count_link_settled(&mut self, at: ServerAt) {
        let silence = &mut self.state(at).silence;
        silence.owing -= 1;
        if silence.owing == 0 {
            self.end_hold(at);
        }
    }

    /// Notes that bytes came from a server.
    pub(super) fn note_heard(&mut self, at: ServerAt, now: Time) {
        let silence = &mut self.state(at).silence;
        silence.heard = now;
        silence.suspect = false;
        if silence.hold == Hold::On && !bug!(HoldForEver) {
            self.end_hold(at);
        }
    }

    /// Notes how long a connect to a server took that began then and ends now.
    pub(super) fn note_connect(&mut self, base: &mut Base, at: ServerAt, begun: Time) {
        let trip = base.now.since(begun);
        base.server_mut(at).trips.note_connect(trip);
        self.look_sooner(base, at);
    }

    /// Notes a round trip to a server that began then and ends now.
    pub(super) fn note_trip(&mut self, base: &mut Base, at: ServerAt, asked: Time) {
        let now = base.now;
        base.server_mut(at).trips.note(now.since(asked), now);
        self.look_sooner(base, at);
    }

    /// Looks sooner at a server's silence, if it may last less long than was known.
    pub(super) fn look_sooner(&mut self, base: &mut Base, at: ServerAt) {
        let Some(patience) = base.silence_after(at) else { return };
        let silence = self.state(at).silence;
        let due = silence.heard.max(silence.asked).after(patience);
        if silence.look_at.is_some_and(|look_at| look_at > due) {
            self.set_silence_timer(base, at, due);
        }
    }

    /// Handles a link that came up, or has got what waited for another: messages that waited longer
    /// than `hold_after` for it count as held.
    pub(super) fn note_up(&mut self, base: &Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let Some(hold_after) = base.hold_after(link.at) else { return };
        let late =
            |message: &&mut Message| base.now >= message.since.after(hold_after) && !message.held;
        let pending = link.first_pending()..;
        let pending = link.outstanding.range_mut(pending).filter(late);
        let count = pending.map(|message| message.held = true).count();
        let count = count + link.queue.hold(|since| base.now >= since.after(hold_after));
        let state = &mut self.states[link.at.pool as usize][link.at.server as usize];
        state.counters.add(ServerCounter::Held, count as u64);
        // Some may have been held before, when the server was silent on another link.
        let waits_held = link.queue.iter().any(|(_, one, _)| one.held);
        let mut pending = link.outstanding.range(link.first_pending()..);
        let is_held = waits_held || pending.any(|message| message.held);
        if is_held && state.silence.hold == Hold::Off {
            state.silence.hold = Hold::Ending;
            self.ending_holds.push(link.at);
        }
    }

    /// Marks the messages queued for a silent server as held.
    pub(super) fn note_held(link: &mut Link, state: &ServerState) {
        if state.silence.hold == Hold::On {
            let pending = link.outstanding.len() - link.first_pending();
            let fresh = link.outstanding.iter_mut().rev().take(pending);
            let fresh = fresh.filter(|message| !message.held);
            let count = fresh.map(|message| message.held = true).count();
            state.counters.add(ServerCounter::Held, count as u64);
        }
    }

    /// Whether a link has something that may be sent now.
    pub(super) fn may_write(&mut self, base: &mut Base, id: ConnId) -> bool {
        let Some(link) = self.links.find(id) else { return false };
        let state = &self.states[link.at.pool as usize][link.at.server as usize];
        let may_begin = state.silence.hold == Hold::Off || link.class.is_never_held();
        match &link.state {
            State::Connecting => false,
            State::Handshake(handshake) => !handshake.unsent.is_empty(),
            State::Up(_) if link.must_prove && !link.is_waiting() => {
                self.repeat_handshake(base, id);
                true
            }
            State::Up(_) if link.out.is_empty() => false,
            State::Up(_) if link.is_waiting() => may_begin || link.begun() > 0,
            // A handshake cannot be repeated where messages may come at any time.
            State::Up(_) if link.class == LinkClass::Subscribed => true,
            State::Up(_) if self.is_suspect(base, link) => {
                self.repeat_handshake(base, id);
                true
            }
            State::Up(_) => may_begin,
        }
    }

    /// Whether a server that owes nothing must answer a handshake before anything is sent: no byte
    /// has come from it of late, and this worker or another found it silent.
    pub(super) fn is_suspect(&self, base: &Base, link: &Link) -> bool {
        let Some(hold_after) = base.silence_after(link.at) else { return false };
        let silence = &self.states[link.at.pool as usize][link.at.server as usize].silence;
        if base.now < silence.heard.after(hold_after) || bug!(SendToSilent) {
            return false;
        }
        let id = base.server(link.at).plan.id;
        silence.suspect || base.metrics.total(id, ServerCounter::HoldingWorkersNow) > 0
    }

    /// Checks whether a server has been silent for too long, or still is. Returns whether held
    /// messages that no client waits for are to be dropped now.
    pub(crate) fn silence_timer(&mut self, base: &mut Base, at: ServerAt, due: Time) -> bool {
        // Another server may have the index by now, or a later timer may have replaced this one.
        let states = self.states.get_mut(at.pool as usize);
        let state = states.and_then(|states| states.get_mut(at.server as usize));
        let state = state.filter(|state| state.silence.look_at == Some(due));
        let Some(ServerState { silence, .. }) = state else { return false };
        silence.look_at = None;
        let Some(hold_after) = base.silence_after(at) else {
            self.end_hold(at);
            return false;
        };
        if silence.owing == 0 {
            return false;
        }
        let hold_due = silence.heard.max(silence.asked).after(hold_after);
        match silence.hold {
            Hold::On => {}
            _ if base.now < hold_due => {
                self.set_silence_timer(base, at, hold_due);
                return false;
            }
            Hold::Off | Hold::Ending => self.begin_hold(base, at),
        }
        self.set_silence_timer(base, at, base.now.after(hold_after));
        true
    }

    /// Returns the next server whose held messages are sent at the end of a turn, when all clients
    /// that left in the turn are known.
    pub(crate) fn next_to_release(&mut self) -> Option<ServerAt> {
        while let Some(at) = self.ending_holds.pop() {
            let hold = &mut self.state(at).silence.hold;
            // The server may have fallen silent again.
            if *hold == Hold::Ending {
                *hold = Hold::Off;
                return Some(at);
            }
        }
        None
    }

    /// Whether messages for this server are held now.
    pub(super) fn is_silent(&mut self, at: ServerAt) -> bool {
        self.state(at).silence.hold == Hold::On
    }

    /// Whether held messages are to be sent at the end of this turn.
    pub(crate) fn has_held_to_release(&self) -> bool {
        !self.ending_holds.is_empty()
    }

    /// Lets the links of a server send their held messages.
    pub(crate) fn release_held(&mut self, at: ServerAt) {
        for id in self.links_of(at) {
            if !bug!(LeaveHeld) {
                self.mark_dirty(id);
            }
        }
    }

    fn set_silence_timer(&mut self, base: &mut Base, at: ServerAt, due: Time) {
        self.state(at).silence.look_at = Some(due);
        base.timers.set(due, Due::Silence(at));
    }

    fn begin_hold(&mut self, base: &mut Base, at: ServerAt) {
        if bug!(NeverHold) {
            return;
        }
        let is_busy = self.find_busy(base, at).is_some();
        let state = self.state(at);
        state.silence.hold = Hold::On;
        state.silence.suspect = !is_busy;
        state.counters.set(ServerCounter::HoldingWorkersNow, 1);
        if !is_busy {
            self.begin_judge(base, at);
        }
        // A link that owes nothing repeats the handshake, to see whether the server is there.
        self.hold_queued(at).into_iter().for_each(|id| self.mark_dirty(id));
    }

    fn end_hold(&mut self, at: ServerAt) {
        if self.state(at).silence.hold != Hold::On {
            return;
        }
        // Messages queued in this turn were held as well.
        self.hold_queued(at);
        let state = self.state(at);
        state.silence.hold = Hold::Ending;
        state.counters.set(ServerCounter::HoldingWorkersNow, 0);
        self.ending_holds.push(at);
    }

    /// Marks the messages queued for a silent server as held on all links, and returns the links.
    fn hold_queued(&mut self, at: ServerAt) -> Vec<ConnId> {
        let links = self.links_of(at);
        for id in &links {
            if let Some(link) = self.links.find_mut(*id) {
                let state = &self.states[at.pool as usize][at.server as usize];
                Servers::note_held(link, state);
            }
            self.hold_waiting(at, *id);
        }
        links
    }

    /// Takes held messages that no client waits for any more out of a server's queues.
    pub(crate) fn drop_cancelled(
        &mut self,
        base: &mut Base,
        at: ServerAt,
        is_cancelled: impl Fn(RequestId) -> bool,
    ) {
        if bug!(KeepCancelled) {
            return;
        }
        let hold_after = base.hold_after(at);
        let may_drop = |request: RequestId| is_cancelled(request) || bug!(DropWaitedFor);
        let may_drop_all =
            |batch: &Batch| batch.outstanding().all(|entry| may_drop(entry.part.request));
        for id in self.links_of(at) {
            let Some(link) = self.links.find_mut(id) else { continue };
            let dropped = link.withdraw_where(|message| match &message.payload {
                Payload::Single(part) => message.held && may_drop(part.request),
                Payload::Fetch(batch) => message.held && may_drop_all(batch),
                Payload::Internal(_) => false,
            });
            let late =
                |batch: &Batch| hold_after.is_some_and(|time| base.now >= batch.since.after(time));
            let open_batch = link.batch.take_if(|batch| late(batch) && may_drop_all(batch));
            if let Some(batch) = &open_batch {
                link.forget_batch(batch);
                self.count_batch_gone(batch);
            }
            dropped.iter().for_each(|message| self.count_gone(message));
            let waiting =
                self.withdraw_waiting(base, id, None, Fault::Dropped, |_, one, request| {
                    one.held && may_drop(request)
                });
            let count = waiting + dropped.len() + usize::from(open_batch.is_some());
            if count == 0 {
                continue;
            }
            base.gauges_changed = true;
            let counters = self.state(at).counters;
            counters.add(ServerCounter::Dropped, (count - waiting) as u64);
            counters.add(ServerCounter::Held, u64::from(open_batch.is_some()));
            let payloads = dropped.into_iter().map(|message| message.payload);
            for payload in payloads.chain(open_batch.map(Payload::Fetch)) {
                let server = at.server;
                let fault = Fault::Dropped;
                self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: false });
            }
            self.mark_dirty(id);
            // They may have been all that the link waited for.
            self.end_link_retirement(base, id);
        }
    }
}
