//! The time of work that data decide: how long what was answered has kept its server (`work.rs`
//! keeps it). `outstanding.rs` bounds what is outstanding by it.
//!
//! ```text
//!   a read of a link brings n such answers ──▶ each took a part of the time since the server began
//!                                              to owe the first of them
//! ```

use proto::{ItemKind, WorkId};

use super::Servers;
use crate::Time;
use crate::base::id::ConnId;
use crate::base::part::Effort;
use crate::base::phases::UNSENT;
use crate::base::slow::SlowWork;
use crate::base::{Base, ServerAt, limits};

/// Works that were answered in the read of a link that is being handled.
#[derive(Default)]
pub(super) struct Answered {
    /// When the server began to owe what the read brought first, and when the first work was sent.
    owed: Time,
    sent: Time,
    count: u32,
    /// They; those that are as the one before them are counted there.
    works: Vec<(Work, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Work {
    effort: Effort,
    kind: ItemKind,
    command: u16,
}

impl Answered {
    /// Begins a read, when the server has owed something since then.
    #[inline]
    pub(super) fn begin(&mut self, owed: Time) {
        self.owed = owed;
    }

    /// Adds a work that is answered.
    #[inline]
    pub(super) fn add(&mut self, effort: Effort, kind: ItemKind, command: u16, sent: Time) {
        if self.count == 0 {
            self.sent = sent;
        }
        self.count += 1;
        let work = Work { effort, kind, command };
        match self.works.last_mut() {
            Some((last, times)) if *last == work => *times += 1,
            _ => self.works.push((work, 1)),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Servers {
    /// Returns how a work has turned out to be at a server, or at any of the pool if the server is
    /// not known.
    pub(crate) fn effort_of(
        &self,
        base: &Base,
        pool: usize,
        server: Option<usize>,
        id: WorkId,
    ) -> Effort {
        let states = &self.states[pool];
        if let Some(server) = server {
            return states[server].works.effort(id, base.now);
        }
        let efforts = || states.iter().map(|state| state.works.effort(id, base.now));
        let slow = efforts().find(|effort| effort.is_slow());
        let quick = || efforts().find(|effort| !effort.is_single());
        slow.or_else(quick).unwrap_or(Effort::Untried(id))
    }

    /// Ends a read that has brought answers to works: they share the time that it took.
    #[inline(never)]
    pub(super) fn note_works(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let (at, handshake, round_trip) = (link.at, link.trip, link.limit.round_trip());
        let Answered { owed, sent, count, mut works } = std::mem::take(&mut link.answered);
        // A server that has answered something meanwhile had the work by then.
        let trip = base.server(at).trips.shortest_of(handshake);
        let arrived = if sent == UNSENT { owed } else { sent.after(trip) };
        let began = owed.max(arrived);
        let all = base.now.since(began);
        let share = |time: u64| time / u64::from(count.max(1));
        let each = share(all);
        let mut own = Some(each);
        if all > limits::SLOW_US {
            let came = began.after(limits::WORK_LOOK_US);
            // Others that were sent before them, or with them, may have been done before them.
            let free = base.slow_work_end(at, came).max(began);
            let command = works[0].0.command;
            base.note_slow_work(at, SlowWork { command, since: owed, until: base.now });
            // Others that were sent when the server had begun with them are done after them.
            let other = self.find_busy(base, at);
            let is_behind = other.is_none_or(|with| with.since > came && with.since >= free);
            // If it is not known that they took long, it is not known that they were quick either.
            let is_own = is_behind && share(base.now.since(free)) > limits::SLOW_US;
            own = own.filter(|each| is_own || *each <= limits::SLOW_US);
        }
        let is_of_one = works.len() == 1;
        let rounds = (1 + trip.min(round_trip) / limits::DEPTH_TRIP_US) as u32;
        for (Work { effort, kind, .. }, times) in works.drain(..) {
            let state = self.state(at);
            let is_as_known = match effort {
                Effort::Unknown(id) => state.works.quick_us(id).is_some(),
                _ => false,
            };
            let is_quick = each < limits::WORK_TIMED_US;
            if let Some(id) = effort.counted() {
                let is_as_quick = is_quick || each <= 2 * effort.time();
                // A round of a long way takes as long as many of a short one.
                let credit = if is_as_quick { times.saturating_mul(rounds) } else { 0 };
                let is_sure = is_quick && is_of_one && kind != ItemKind::Error;
                state.works.note_answered(id, times, credit, is_sure.then_some(each));
            }
            if !is_as_known || state.is_busy || !is_quick {
                self.note_new_work(base, at, (effort, kind), (own, each));
            }
        }
        if let Some(link) = self.links.find_mut(id) {
            // The allocation is used again.
            link.answered.works = works;
        }
        if self.state(at).work_told > 0 {
            self.tell_work(at);
        }
        self.tell_quick(at);
    }

    /// Notes a work at a server that was busy, or one that was not known as quick or has taken
    /// long.
    #[cold]
    fn note_new_work(
        &mut self,
        base: &Base,
        at: ServerAt,
        (effort, kind): (Effort, ItemKind),
        (own, took): (Option<u64>, u64),
    ) {
        if self.state(at).is_busy {
            self.tell_busy(base, at);
        }
        if took > limits::SLOW_US {
            self.rest(base, at, took);
        }
        let first = base.pool(at).plan.untried_max as u16;
        let state = self.state(at);
        let Some(id) = effort.work() else { return };
        match own {
            None => state.works.note_doubt(id),
            // It may not have been done at all.
            Some(own) if own <= limits::SLOW_US && kind == ItemKind::Error => {}
            Some(own) => state.works.note(id, own, base.now, first),
        }
    }
}
