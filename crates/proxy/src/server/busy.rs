//! Busy servers. A server does one thing at a time, so a slow request keeps it silent on all links,
//! of all workers. That silence is no failure.

use super::fail::{LateMessage, unsent_fault};
use super::link::{Link, State};
use super::message::{Internal, Late, Message, Payload};
use super::state::Hold;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::busy::BusyWith;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass, Requester};
use crate::base::plan::Timeouts;
use crate::base::{Base, ServerAt, limits};

impl Servers {
    /// Tells all workers what a server is busy with, of what this worker has asked.
    pub(super) fn tell_busy(&mut self, base: &Base, at: ServerAt) {
        let its = self.links.iter().filter(|(_, link)| link.at == at);
        let first = its.filter_map(|(_, link)| link.busy_with()).min_by_key(|with| with.since);
        let state = self.state(at);
        if first.is_some() || state.is_busy {
            state.is_busy = first.is_some();
            base.set_busy(at, first);
        }
    }

    /// Returns what a server is busy with, as far as any worker knows.
    pub(super) fn find_busy(&mut self, base: &Base, at: ServerAt) -> Option<BusyWith> {
        self.tell_busy(base, at);
        base.busy(at)
    }

    /// Excuses the silence of a server on a link, if it is busy with something known. The requests
    /// that have waited for a reply as long as they may are answered; their replies are discarded
    /// when they come.
    pub(super) fn excuse(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let at = link.at;
        link.look_at = None;
        let is_busy = self.find_busy(base, at).is_some();
        let Some(link) = self.links.find_mut(id) else { return };
        if is_busy {
            link.excused = base.now;
        }
        let is_behind = link.first_work().is_some();
        if let State::Up(_) = link.state
            && (is_busy || is_behind)
        {
            let late = link.give_up_late(id, &base.pool(at).plan.timeouts, base.now);
            self.events.extend(late.into_iter().map(LinkEvent::Late));
            #[cfg(seeded_bugs)]
            self.forget_slow(base, id);
            // A slow request among them is no excuse any more, and others may be.
            self.tell_busy(base, at);
        }
    }

    /// `ForgetSlow`: takes a slow request that has had its time off its link.
    #[cfg(seeded_bugs)]
    fn forget_slow(&mut self, base: &mut Base, id: ConnId) {
        let Some(first) = self.links.find(id).and_then(|link| link.outstanding.front()) else {
            return;
        };
        if bug!(ForgetSlow) && first.is_late() && first.effort != Effort::Quick {
            self.forget_first(base, id);
        }
    }

    /// Notes a line with which a server says that it is busy, or that it is not any more. Clients
    /// are to see it whose requests it would refuse in the same way; and in a pool of one server,
    /// those that only ask whether the server is there.
    #[cold]
    pub(crate) fn note_busy_line(&mut self, base: &mut Base, at: ServerAt, line: Option<&[u8]>) {
        if line.is_some() || self.state(at).said_busy {
            base.server_mut(at).busy_line = line.map(Box::from);
        }
        self.state(at).said_busy = line.is_some();
        if line.is_some() {
            self.refuse_behind(base, at);
        }
    }

    /// Whether a server has answered the handshake of a link that it is busy, and says nothing else
    /// of late.
    pub(crate) fn says_busy(&self, id: ConnId) -> bool {
        self.links.find(id).is_some_and(|link| {
            link.is_told_busy()
                && self.states[link.at.pool as usize][link.at.server as usize].said_busy
        })
    }

    /// Fails all that waits for a link whose server has said in its handshake that it is busy.
    pub(super) fn refuse_as_busy(&mut self, base: &mut Base, id: ConnId) {
        self.withdraw_waiting(base, id, None, Fault::Busy, |_, _, _| true);
        let Some(link) = self.links.find_mut(id) else { return };
        let pending = link.withdraw_where(|_| true);
        self.fail_pending(base, id, pending, |_| Fault::Busy);
    }

    /// Asks a server whether it is busy, on the link of this client's class. Returns whether a
    /// `Known` event will follow; otherwise it has just said so, or cannot be asked.
    #[cold]
    pub(crate) fn ask_whether_busy(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        server: usize,
    ) -> bool {
        let state = &self.states[asks.pool()][server];
        if state.pinged.is_some_and(|at| base.now.since(at) < limits::BUSY_FRESH_US) {
            return false;
        }
        let Ok(id) = self.link_at(base, asks, server) else { return false };
        self.ask_there(base, id)
    }

    /// Asks a server on this link whether it is busy, unless it has been asked there already.
    /// Returns whether its answer is to come.
    pub(super) fn ask_there(&mut self, base: &mut Base, id: ConnId) -> bool {
        let Some(at) = self.links.find(id).map(|link| link.at) else { return false };
        if self.is_on_its_way(id, Internal::Ping) {
            return true;
        }
        let mut words = Vec::new();
        let ask = base.pool(at).upstream.write_ping(&mut words);
        self.send_internal(base, id, Payload::internal(Internal::Ping), ask, &words)
    }

    /// Returns why a request was not sent that has waited for a server as long as it may.
    #[cold]
    pub(crate) fn unsent_fault(&mut self, base: &Base, at: ServerAt) -> Fault {
        let is_busy = self.find_busy(base, at).is_some();
        unsent_fault(is_busy, self.is_silent(at))
    }

    /// Notes that a server has answered an internal command.
    #[cold]
    pub(crate) fn end_internal(&mut self, base: &mut Base, id: ConnId, command: Internal) {
        match command {
            Internal::Ping => {
                let Some(at) = self.at(id) else { return };
                self.state(at).pinged = Some(base.now);
                self.events.push_back(LinkEvent::Known(at, base.hold_after(at)));
            }
            Internal::Trial(message) => self.note_trial(base, id, message),
            Internal::Plain | Internal::Unwatch | Internal::Unblock | Internal::Recovery(_) => {}
        }
    }

    /// Notes an error that a server has answered with.
    #[cold]
    pub(crate) fn note_error(&mut self, base: &mut Base, id: ConnId, line: &[u8]) {
        let Some(link) = self.links.find(id) else { return };
        let (at, conn_key, class) = (link.at, link.conn_key, link.class);
        let upstream = base.pool(at).upstream;
        let line = upstream.busy_line(line);
        let first = link.outstanding.front();
        // A script may have written the line itself.
        let is_of_script = first.is_some_and(|one| upstream.runs_script(one.ask));
        if line.is_some() && is_of_script {
            // If it cannot be asked now, another request learns what it says.
            match class {
                _ if self.state(at).said_busy => {}
                LinkClass::Private => self.ask_beside(base, at, conn_key),
                _ => drop(self.ask_there(base, id)),
            }
            return;
        }
        // A busy server answers parts of a trial as any other does.
        let is_trial = first.is_some_and(Message::is_trial);
        if line.is_some() || self.state(at).said_busy && !is_trial {
            self.note_busy_line(base, at, line.as_deref());
        }
    }

    /// Whether a client's link to a server is up, the server owes nothing on it, and what is sent
    /// there is not held.
    pub(crate) fn is_free(&self, base: &Base, asks: &Requester, server: usize) -> bool {
        let is_held = self.states[asks.pool()][server].silence.hold == Hold::On;
        let is_held = is_held && asks.class != LinkClass::Control;
        let is_free = |link: &Link| {
            link.is_up() && !link.must_prove && link.outstanding.is_empty() && !is_held
        };
        self.find_link(base, asks, server).is_some_and(is_free)
    }

    /// Lets what waits for a server go before the next request that may take long: for as long as
    /// the last one took, and no longer than half of the time that a request may wait.
    pub(super) fn rest(&mut self, base: &Base, at: ServerAt, took: u64) {
        let until = base.now.after(took.min(base.pool(at).plan.timeouts.queue / 2));
        for id in self.links_of(at) {
            if let Some(link) = self.links.find_mut(id) {
                link.rests_until = Some(until);
            }
        }
    }

    /// Whether requests that may take long have to let others go first: one of them has just ended,
    /// and quick requests wait for their server.
    #[cold]
    pub(super) fn must_rest(&self, base: &Base, id: ConnId) -> bool {
        let Some(link) = self.links.find(id) else { return false };
        let rests = link.rests_until.is_some_and(|until| base.now < until);
        let its = || self.links.iter().filter(|(_, one)| one.at == link.at);
        rests && link.class != LinkClass::Control && its().any(|(_, one)| one.has_quick())
    }

    /// Notes that the reply to a message whose request has been answered must be a list of this
    /// many elements.
    pub(crate) fn expect_late(&mut self, late: &LateMessage, elements: u32) {
        let Some(link) = self.links.find_mut(late.link) else { return };
        let message = link.outstanding.iter_mut().find(|message| message.end == late.end);
        if let Some(message) = message {
            message.late = Late::List(elements);
        }
    }
}

impl Link {
    /// Returns when the first of the requests has waited for a reply as long as it may that may
    /// take longer, or were sent behind one that may.
    pub(super) fn gives_up_at(&self, timeouts: &Timeouts) -> Option<Time> {
        if self.first_work().is_none() || self.waits() {
            return None;
        }
        let sent = self.outstanding.iter().take_while(|message| message.end <= self.sent);
        let all = sent.skip(usize::from(self.is_mid_reply()));
        all.filter_map(|message| self.time_of(message, timeouts)).min()
    }

    /// Whether a quick request on it is not answered.
    fn has_quick(&self) -> bool {
        // Nobody is kept waiting by what waits at its server itself.
        let is_quick = |effort: Effort| !effort.is_single() && effort != Effort::Waits;
        let mut sent = self.outstanding.iter().filter(|message| !message.is_late());
        self.is_up()
            && (self.batch.is_some()
                || sent.any(|message| is_quick(message.effort))
                || self.queue.firsts().any(|one| is_quick(one.effort)))
    }

    /// Returns until when a request that was sent waits for its reply. It then gets an error, and
    /// its reply is discarded when it comes. A slow request on a link that has others has the time
    /// that its link has: they could not be answered while its reply is waited for.
    fn time_of(&self, message: &Message, timeouts: &Timeouts) -> Option<Time> {
        match message.effort {
            _ if message.is_late() => None,
            // No client waits for it.
            _ if matches!(message.payload, Payload::Internal(_)) => None,
            Effort::Waits | Effort::Watches => None,
            Effort::Quick => Some(message.since.after(timeouts.reply)),
            // Not before the server has had its time for the first one.
            _ if self.class == LinkClass::Slow => {
                Some(message.since.max(self.owed).after(timeouts.slow))
            }
            _ => None,
        }
    }

    /// Returns the first request that was sent and may take long; to watch a key does not. It keeps
    /// those before it waiting too: servers that read several requests at once do them all before
    /// they write any reply.
    #[inline]
    pub(super) fn first_work(&self) -> Option<&Message> {
        if self.work_end <= self.done {
            return None;
        }
        let mut sent = self.outstanding.iter().take_while(|message| message.end <= self.sent);
        sent.find(|message| !matches!(message.effort, Effort::Quick | Effort::Watches))
    }

    /// Returns what its server is busy with, if a request that it owes may take long and has not
    /// had its time.
    pub(super) fn busy_with(&self) -> Option<BusyWith> {
        let first = self.first_work()?;
        let is_it =
            !first.is_late() && self.is_up() && self.class != LinkClass::Control && !self.waits();
        is_it.then_some(BusyWith { ask: first.ask, since: self.owed })
    }

    /// Gives up the requests that were sent and have had their time, and returns them.
    fn give_up_late(&mut self, id: ConnId, timeouts: &Timeouts, now: Time) -> Vec<LateMessage> {
        // A reply that has begun to come goes on.
        let first = usize::from(self.is_mid_reply());
        let sent = self.outstanding.partition_point(|message| message.end <= self.sent);
        let mut late = Vec::new();
        for at in first..sent {
            let Some(over) = self.time_of(&self.outstanding[at], timeouts) else { continue };
            if now < over {
                self.look_at = Some(self.look_at.map_or(over, |at| at.min(over)));
                continue;
            }
            let (server, message) = (self.at.server, &mut self.outstanding[at]);
            let (parts, keys) = (message.give_up_waiting(), message.keys());
            late.push(LateMessage { link: id, end: message.end, server, parts, keys });
        }
        late
    }

    /// Whether only a slow request keeps this link silent, and not the server: that has sent
    /// something on another link when this one had been silent for longer than a quick request may
    /// take.
    pub(super) fn is_alone_silent(&self, heard: Time, timeouts: &Timeouts) -> bool {
        self.first_work().is_some() && heard >= self.since.after(timeouts.reply)
    }
}
