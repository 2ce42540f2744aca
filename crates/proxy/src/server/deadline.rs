//! When a link must be looked at: what its server owes, and what waits on it, has so much time.

use super::Servers;
use super::link::{Link, State};
use crate::Time;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass};
use crate::base::plan::Timeouts;
use crate::base::timers::Due;
use crate::base::{Base, limits};

impl Servers {
    /// Makes sure that a timer checks a link no later than its next deadline.
    pub(super) fn arm(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let timeouts = &base.pool(link.at).plan.timeouts;
        // Where it could not when it was due, it may a moment later.
        let again = base.now.after(limits::AROUND_AGAIN_US);
        let gives_way = link.gives_way_at(base).map(|at| if at > base.now { at } else { again });
        let others = link.go_around_at(base).into_iter().chain(gives_way);
        let Some(deadline) = link.deadline(timeouts).into_iter().chain(others).min() else {
            return;
        };
        if link.armed.is_none_or(|armed| deadline < armed) {
            link.armed = Some(deadline);
            base.timers.set(deadline, Due::Link(id));
        }
    }
}

impl Link {
    /// Returns when this link must be looked at, if nothing happens before.
    pub(super) fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        let owed = self.owed_deadline(timeouts).map(|(deadline, _)| deadline);
        // Not in the order of their times, since some have waited for their turn.
        let queue = self.queue_timeout(timeouts);
        let pending = self.outstanding.range(self.first_pending()..);
        let queued = pending.filter(|message| message.expires());
        let queued = queued.map(|message| message.since.after(queue)).min();
        let gathering = self.batch.as_ref().filter(|_| !bug!(GatherForEver));
        let gathering = gathering.map(|batch| batch.since.after(timeouts.queue));
        let waiting = self.queue.oldest().map(|since| since.after(queue));
        let look_at = self.look_at.into_iter().chain(self.gives_up_at(timeouts));
        let rest = self.rests_until.into_iter().chain(self.work_turn.look_at);
        let rest = rest.filter(|_| !self.queue.is_empty());
        owed.into_iter()
            .chain(queued)
            .chain(gathering)
            .chain(waiting)
            .chain(look_at)
            .chain(rest)
            .min()
    }

    /// Returns when what waits for a link that is not up is to have another, if one is there: it
    /// has half of its time left then. A distant server has the time of its path.
    pub(super) fn gives_way_at(&self, base: &Base) -> Option<Time> {
        if !self.is_beside() || self.was_up() || self.is_told_busy() || self.retiring {
            return None;
        }
        let message = self.outstanding.iter().map(|message| message.since);
        let batch = self.batch.iter().map(|batch| batch.since);
        let oldest = message.chain(batch).chain(self.queue.oldest()).min()?;
        let half = self.queue_timeout(&base.pool(self.at).plan.timeouts) / 2;
        // One to connect, and one for the handshake.
        let trips = 2 * base.server(self.at).trips.usual();
        Some(oldest.max(self.begun).after(half.max(trips)))
    }

    /// Whether it carries what others are not to wait behind.
    pub(super) fn is_beside(&self) -> bool {
        matches!(self.class, LinkClass::Slow | LinkClass::Large | LinkClass::Spare)
    }

    /// Whether its server owes nothing but what it waits for itself.
    pub(super) fn waits(&self) -> bool {
        self.class == LinkClass::Private
            && self.outstanding.front().is_some_and(|first| first.effort == Effort::Waits)
    }

    /// Whether a message waits for as long as it may to be sent.
    pub(super) fn has_late(&self, now: Time, queue: u64) -> bool {
        let mut pending = self.outstanding.range(self.first_pending()..);
        pending.any(|message| message.expires() && now >= message.since.after(queue))
    }

    /// Returns how long a request may wait until it is sent.
    pub(super) fn queue_timeout(&self, timeouts: &Timeouts) -> u64 {
        timeouts.queue_of(self.class)
    }

    /// Returns when a server has been silent for too long to a handshake.
    pub(super) fn handshake_deadline(&self, timeouts: &Timeouts) -> Time {
        self.since.max(self.excused).after(timeouts.reply)
    }

    /// Returns when the server has not done in time what it owes, and the fault that this is.
    pub(super) fn owed_deadline(&self, timeouts: &Timeouts) -> Option<(Time, Fault)> {
        match self.state {
            State::Connecting => Some((self.since.after(timeouts.connect), Fault::ConnectTimeout)),
            State::Handshake(_) => Some((self.handshake_deadline(timeouts), Fault::ReplyTimeout)),
            State::Up(_) if self.is_waiting() && !bug!(NoReplyDeadline) => {
                Some((self.reply_deadline(timeouts), Fault::ReplyTimeout))
            }
            State::Up(_) => None,
        }
    }

    /// Returns the fault of a server that has not done in time what it owes.
    pub(super) fn fault_at(&self, timeouts: &Timeouts, now: Time) -> Option<Fault> {
        self.owed_deadline(timeouts).filter(|(deadline, _)| now >= *deadline).map(|owed| owed.1)
    }

    /// Returns when a server that owes a reply has been silent for too long, or has taken too long
    /// over the reply.
    fn reply_deadline(&self, timeouts: &Timeouts) -> Time {
        let patience = if bug!(HurryReply) { timeouts.reply / 2 } else { timeouts.reply };
        let at_most = self.owed.after(timeouts.reply * limits::REPLY_STRETCH);
        let at_most = if bug!(SpeakForEver) { Time(u64::MAX) } else { at_most };
        let deadline = self.since.after(patience).min(at_most);
        if self.waits() && !bug!(TimeWait) {
            return Time(u64::MAX);
        }
        let first = self.first_work();
        if first.is_none() && self.excused == Time(0) {
            return deadline;
        }
        let slow = match first {
            None => deadline,
            // Its client has its answer, and the server as much time again.
            Some(first) if first.is_late() && !bug!(EndSlow) => {
                self.owed.after(timeouts.slow.saturating_mul(2))
            }
            Some(_) => self.owed.after(timeouts.slow),
        };
        let excused = match self.excused {
            Time(0) => deadline,
            excused => excused.after(patience),
        };
        deadline.max(slow).max(excused)
    }
}
