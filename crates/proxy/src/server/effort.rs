//! The time of work that data decide: how long what was answered has kept its server, and how much
//! of what is outstanding there may keep it.
//!
//! ```text
//!   a read of a link brings n such answers ──▶ each took a part of the time since the server began
//!                                              to owe the first of them (`work.rs` keeps it)
//!   a request whose time is known, or was never tried ──▶ it leaves if all of them at that server,
//!                                              of all workers, take little time; or else it waits
//! ```
//!
//! Nearly all of it takes microseconds. Its time is not told to other workers; but as the data
//! decide, what was quick may be slow with others. So its number is bounded until it has been quick
//! for some time, as a TCP connection begins slowly.

use metrics::ServerCounter;
use proto::{ItemKind, WorkId};

use super::Servers;
use super::link::Link;
use super::queue::FairQueue;
use crate::Time;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass};
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

/// Whose work leaves next of what waits for a link.
#[derive(Default)]
pub(super) struct WorkTurn {
    /// The client whose work is the next to leave: it may need more time than has been free.
    next: Option<ConnId>,
    /// The client whose work was the last to leave.
    last: Option<ConnId>,
    /// When what waits for other workers' work is looked at again.
    pub(super) look_at: Option<Time>,
}

impl WorkTurn {
    /// Forgets a client of which nothing waits any more.
    pub(super) fn forget_gone(&mut self, queue: &FairQueue) {
        self.next.take_if(|next| queue.of_client(*next).0 == 0);
    }

    /// Whether the work of a client that waits is the next to leave.
    fn is_taken(&self, queue: &FairQueue) -> bool {
        self.next.is_some_and(|next| queue.of_client(next).0 > 0)
    }

    /// Notes that what waits is looked at.
    pub(super) fn note_look(&mut self, now: Time) {
        self.look_at = self.look_at.filter(|at| now < *at);
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

    /// As `tell_work`, for all servers of which the others were told any: what was outstanding
    /// there may have been dropped.
    pub(super) fn tell_all_work(&mut self) {
        for pool in 0..self.states.len() {
            for server in 0..self.states[pool].len() {
                if self.states[pool][server].work_told > 0 {
                    self.tell_work(ServerAt { pool: pool as u32, server: server as u32 });
                }
            }
        }
    }

    /// Whether a server may be sent this as well. If it is work whose time is bounded, all that is
    /// outstanding there, of all workers, must take little time, or nothing of this worker's be.
    // Measured.
    #[inline(always)]
    pub(super) fn has_time(&mut self, base: &Base, id: ConnId, effort: Effort) -> bool {
        // Nearly always.
        if effort == Effort::Quick {
            return true;
        }
        self.has_place(id, effort) && (!effort.is_bounded() || self.finds_time(base, id, effort))
    }

    /// As `has_room_for`, for one that is to leave now.
    #[inline]
    fn has_place(&mut self, id: ConnId, effort: Effort) -> bool {
        let has_room = self.has_room_for(id, effort);
        if !has_room {
            self.note_short(id, effort);
        }
        has_room
    }

    /// Notes that there is no room for one, of what is bounded in number.
    #[cold]
    fn note_short(&mut self, id: ConnId, effort: Effort) {
        if let (Some(work), Some(link)) = (effort.counted(), self.links.find(id)) {
            let at = link.at;
            self.state(at).works.note_short(work);
        }
    }

    /// Whether a server may be sent one more, of what is bounded in number.
    pub(super) fn has_room_for(&self, id: ConnId, effort: Effort) -> bool {
        match effort {
            Effort::Unknown(work) | Effort::Timed(work, _) => self.has_room_for_quick(id, work),
            Effort::Known(_) | Effort::Slow => self.has_room_for_slow(id),
            _ => true,
        }
    }

    #[inline]
    fn has_room_for_quick(&self, id: ConnId, work: WorkId) -> bool {
        let Some(link) = self.links.find(id) else { return true };
        let works = &self.states[link.at.pool as usize][link.at.server as usize].works;
        works.has_room(work)
            || self.has_none_of(link, work)
            || self.is_first_on_spare(id, link)
            || bug!(WorkWithoutBound)
    }

    /// Whether nothing of what is bounded is outstanding on the spare links of a server, of which
    /// this is one. There it says what it does, whatever it owes elsewhere.
    #[cold]
    fn is_first_on_spare(&self, id: ConnId, link: &Link) -> bool {
        let is_other_spare = |(other, one): (ConnId, &Link)| {
            other != id && one.at == link.at && one.class == LinkClass::Spare && one.work() > 0
        };
        link.work() == 0 && link.class == LinkClass::Spare && !self.links.iter().any(is_other_spare)
    }

    /// Whether no other link of this worker's to the server has a slow request outstanding: the
    /// server does one after the other, and is deaf for as long. If it has said that it is busy, it
    /// refuses them at once.
    #[cold]
    fn has_room_for_slow(&self, id: ConnId) -> bool {
        let Some(link) = self.links.find(id) else { return true };
        let at = link.at;
        let is_never = |link: &Link| matches!(link.class, LinkClass::Control | LinkClass::Spare);
        let state = &self.states[at.pool as usize][at.server as usize];
        if is_never(link) || bug!(SlowWithoutLimit) {
            return true;
        }
        if !link.is_up() {
            // Many links may come up at once: what waits for them leaves by and by.
            return false;
        }
        if state.said_busy {
            return true;
        }
        let has_slow = |(other, link): (ConnId, &Link)| {
            let is_it = other != id && link.at == at && link.was_up() && !is_never(link);
            // Messages that were queued in this turn are sent at its end.
            let is_it = is_it && link.work_end > link.done;
            is_it && link.outstanding.iter().any(|message| message.effort.is_slow())
        };
        // Many may wait for the same one.
        let last = state.slow_at.get().and_then(|last| Some((last, self.links.find(last)?)));
        if last.is_some_and(has_slow) {
            return false;
        }
        let found = self.links.iter().find(|(other, link)| has_slow((*other, *link)));
        state.slow_at.set(found.map(|(other, _)| other));
        found.is_none()
    }

    /// Whether this work is nowhere outstanding at the server of a link: what had left may have
    /// been dropped, or was answered late, and then nothing else makes room.
    #[cold]
    fn has_none_of(&self, link: &Link, work: WorkId) -> bool {
        let has_it = |link: &Link| {
            let mut works = link.outstanding.iter().map(|message| message.effort.work());
            link.work_end > link.done && works.any(|one| one == Some(work))
        };
        // Nearly always it is on this one.
        let mut its = self.links.iter().filter(|(_, one)| one.at == link.at);
        !has_it(link) && !its.any(|(_, link)| has_it(link))
    }

    #[cold]
    fn finds_time(&mut self, base: &Base, id: ConnId, effort: Effort) -> bool {
        let Some(link) = self.links.find(id) else { return true };
        let (at, more) = (link.at, effort.time());
        if self.is_first_on_spare(id, link) || bug!(WorkWithoutBound) {
            return true;
        }
        if !link.is_up() {
            return false;
        }
        let own = self.work_at(at);
        if own == 0 {
            return true;
        }
        let total = |id| base.metrics.total(id, ServerCounter::WorkNow);
        let all: u64 = base.server(at).plan.same_ids().map(total).sum();
        let others = all.saturating_sub(self.state(at).work_told);
        let is_elsewhere = |(other, link): (ConnId, &Link)| {
            other != id && link.at == at && link.is_up() && link.work_turn.is_taken(&link.queue)
        };
        // Longer work on another link would never find time, if shorter work took each bit of it.
        let has_time =
            own + others + more <= limits::WORK_MAX_US && !self.links.iter().any(is_elsewhere);
        if !has_time
            && others > 0
            && let Some(link) = self.links.find_mut(id)
        {
            // Nobody says when others have been answered.
            link.work_turn.look_at = Some(base.now.after(limits::WORK_LOOK_US));
        }
        has_time
    }

    /// Whether a server may be sent what is next of a client, as far as it is work. The first that
    /// finds no time is the next to leave, or else shorter works could pass it for ever. It is not
    /// the one whose work was the last to leave.
    #[inline]
    pub(super) fn takes_work(
        &mut self,
        base: &Base,
        id: ConnId,
        client: ConnId,
        effort: Effort,
    ) -> bool {
        let Some(link) = self.links.find_mut(id) else { return true };
        let next = link.work_turn.next;
        let has_place = self.has_place(id, effort);
        if !effort.is_bounded() || !has_place {
            self.give_turn_up(id, client);
            return has_place;
        }
        let is_its_turn = next.is_none_or(|next| next == client);
        let takes = is_its_turn && self.finds_time(base, id, effort);
        let Some(link) = self.links.find_mut(id) else { return takes };
        if takes {
            (link.work_turn.next, link.work_turn.last) = (None, Some(client));
        } else if link.work_turn.last != Some(client) {
            link.work_turn.next = next.or(Some(client));
        }
        takes
    }

    /// Lets others have the turn of a client whose work was the next to leave, and does not.
    #[inline]
    pub(super) fn give_turn_up(&mut self, id: ConnId, client: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        if link.work_turn.next.take_if(|next| *next == client).is_some() {
            // Some were skipped for it.
            link.queue.begin_pass();
        }
    }

    /// Returns the time that this worker's works take that are outstanding at a server, on links
    /// that are up.
    pub(super) fn work_at(&self, at: ServerAt) -> u64 {
        let its = self.links.iter().filter(|(_, link)| link.at == at && link.is_up());
        its.map(|(_, link)| link.work()).sum()
    }

    /// Notes that a work has left for a server.
    #[inline]
    pub(super) fn note_left(&mut self, at: ServerAt, effort: Effort, now: Time) {
        if effort == Effort::Quick {
            return;
        }
        if let Some(id) = effort.counted()
            && self.state(at).works.note_left(id, now)
        {
            self.count_works(at, id, now);
        }
        if effort.is_bounded() {
            self.tell_work(at);
        }
    }

    /// Counts what is outstanding of a work that was quick: some may have been dropped.
    #[cold]
    fn count_works(&mut self, at: ServerAt, id: WorkId, now: Time) {
        let its = self.links.iter().filter(|(_, link)| link.at == at);
        let sent = its.flat_map(|(_, link)| &link.outstanding);
        let count = sent.filter(|message| message.effort.counted() == Some(id)).count();
        self.state(at).works.review(id, count, now);
    }

    /// Tells all workers how much work of this one is outstanding at a server.
    #[cold]
    pub(super) fn tell_work(&mut self, at: ServerAt) {
        let work = self.work_at(at);
        let state = self.state(at);
        if state.work_told != work {
            state.work_told = work;
            state.counters.set(ServerCounter::WorkNow, work);
        }
    }
}

impl Link {
    /// Returns the time that the works take that are outstanding on it.
    pub(super) fn work(&self) -> u64 {
        if self.work_end <= self.done {
            return 0;
        }
        self.outstanding.iter().map(|message| message.effort.time()).sum()
    }
}
