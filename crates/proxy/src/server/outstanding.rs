//! How much of the work that data decide may be outstanding at a server, of all workers.
//!
//! ```text
//!   a request whose time is known, or was never tried ──▶ it leaves if all of them at that server,
//!                                              of all workers, take little time; or else it waits
//!   works of microseconds ──▶ as above; but as long as this worker's take little time together,
//!                                              they are told to nobody, and look at no others
//! ```
//!
//! Nearly all of it takes microseconds; but as the data decide, what was quick may be slow with
//! others. So its number is bounded until it has been quick for some time, as a TCP connection
//! begins slowly.

use std::collections::HashMap;

use metrics::ServerCounter;
use proto::WorkId;

use super::Servers;
use super::link::Link;
use super::queue::FairQueue;
use super::state::ServerState;
use crate::Time;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass};
use crate::base::{Base, ServerAt, limits};

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
    /// As `tell_work` and `tell_quick`, for all servers of which the others were told any: what was
    /// outstanding there may have been dropped.
    pub(super) fn tell_all_work(&mut self) {
        for pool in 0..self.states.len() {
            for server in 0..self.states[pool].len() {
                let at = ServerAt { pool: pool as u32, server: server as u32 };
                let ServerState { work_told, quick_told, .. } = self.states[pool][server];
                if work_told > 0 {
                    self.tell_work(at);
                }
                if quick_told > 0 {
                    self.recount_works(at);
                    self.tell_quick(at);
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
        self.has_place(base, id, effort)
            && (!effort.is_bounded() || self.finds_time(base, id, effort))
    }

    /// As `has_room_for`, for one that is to leave now.
    #[inline]
    fn has_place(&mut self, base: &Base, id: ConnId, effort: Effort) -> bool {
        let has_room = self.has_room_for(base, id, effort);
        if !has_room {
            self.note_short(base, id, effort);
        }
        has_room
    }

    /// Notes that there is no room for one, of what is bounded in number.
    #[cold]
    fn note_short(&mut self, base: &Base, id: ConnId, effort: Effort) {
        let (Some(work), Some(at)) = (effort.counted(), self.at(id)) else { return };
        self.state(at).works.note_short(work);
        if self.work_of_others(base, at) > 0 {
            self.look_again(base, id);
        }
    }

    /// Has what waits for a link looked at again soon: nobody says when others have been answered.
    fn look_again(&mut self, base: &Base, id: ConnId) {
        if let Some(link) = self.links.find_mut(id) {
            link.work_turn.look_at = Some(base.now.after(limits::WORK_LOOK_US));
        }
    }

    /// Returns the time of the works that other workers have told of, at a server.
    fn work_of_others(&self, base: &Base, at: ServerAt) -> u64 {
        let total = |id| base.metrics.total(id, ServerCounter::WorkNow);
        let all: u64 = base.server(at).plan.same_ids().map(total).sum();
        let state = &self.states[at.pool as usize][at.server as usize];
        all.saturating_sub(state.work_told + state.quick_told)
    }

    /// Whether a server may be sent one more, of what is bounded in number.
    pub(super) fn has_room_for(&self, base: &Base, id: ConnId, effort: Effort) -> bool {
        match effort {
            Effort::Unknown(work) | Effort::Timed(work, _) => {
                self.has_room_for_quick(base, id, work)
            }
            Effort::Known(_) | Effort::Slow => self.has_room_for_slow(id),
            _ => true,
        }
    }

    #[inline]
    fn has_room_for_quick(&self, base: &Base, id: ConnId, work: WorkId) -> bool {
        let Some(link) = self.links.find(id) else { return true };
        let works = &self.states[link.at.pool as usize][link.at.server as usize].works;
        works.has_room(work) && self.has_time_for_quick(base, link.at, works.outstanding_us())
            || self.has_none_of(link, work)
            || self.is_first_on_spare(id, link)
            || bug!(WorkWithoutBound)
    }

    /// Whether a server may be sent more works of microseconds, when this worker's take so long
    /// together.
    #[inline]
    fn has_time_for_quick(&self, base: &Base, at: ServerAt, own: u64) -> bool {
        // Nearly always: each worker may have so much, whatever others have.
        own < limits::WORK_SHARE_US || self.shares_time(base, at, own)
    }

    #[cold]
    fn shares_time(&self, base: &Base, at: ServerAt, own: u64) -> bool {
        let told = self.states[at.pool as usize][at.server as usize].work_told;
        own + told + self.work_of_others(base, at) < limits::WORK_MAX_US
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
        let others = self.work_of_others(base, at);
        let own = own + self.state(at).works.outstanding_us();
        let is_elsewhere = |(other, link): (ConnId, &Link)| {
            other != id && link.at == at && link.is_up() && link.work_turn.is_taken(&link.queue)
        };
        // Longer work on another link would never find time, if shorter work took each bit of it.
        let has_time =
            own + others + more <= limits::WORK_MAX_US && !self.links.iter().any(is_elsewhere);
        if !has_time && others > 0 {
            self.look_again(base, id);
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
        let has_place = self.has_place(base, id, effort);
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
        } else {
            self.tell_quick(at);
        }
    }

    /// Counts what is outstanding of a work that was quick: some may have been dropped.
    #[cold]
    fn count_works(&mut self, at: ServerAt, id: WorkId, now: Time) {
        let count = self.quick_works(at).filter(|work| *work == id).count();
        self.state(at).works.review(id, count, now);
    }

    /// As `count_works`, for all of them.
    #[cold]
    fn recount_works(&mut self, at: ServerAt) {
        let mut counts = HashMap::new();
        for id in self.quick_works(at) {
            *counts.entry(id).or_insert(0) += 1;
        }
        self.state(at).works.recount(|id| counts.get(&id).copied().unwrap_or(0));
    }

    /// Returns the works that were quick before and are outstanding at a server, each as often as
    /// it is.
    fn quick_works(&self, at: ServerAt) -> impl Iterator<Item = WorkId> {
        let its = self.links.iter().filter(move |(_, link)| link.at == at);
        let sent = its.flat_map(|(_, link)| &link.outstanding);
        sent.filter_map(|message| message.effort.counted())
    }

    /// Tells all workers how much time this one's works of microseconds take that are outstanding
    /// at a server, in whole milliseconds, if they are more than it may have anyway.
    #[inline]
    pub(super) fn tell_quick(&mut self, at: ServerAt) {
        let state = &mut self.states[at.pool as usize][at.server as usize];
        let us = state.works.outstanding_us();
        if us >= limits::WORK_SHARE_US || state.quick_told > 0 {
            tell_quick(state, us);
        }
    }

    /// Tells all workers how much work of this one is outstanding at a server.
    #[cold]
    pub(super) fn tell_work(&mut self, at: ServerAt) {
        let work = self.work_at(at);
        let state = self.state(at);
        if state.work_told != work {
            state.work_told = work;
            state.counters.set(ServerCounter::WorkNow, work + state.quick_told);
        }
    }
}

#[cold]
fn tell_quick(state: &mut ServerState, us: u64) {
    let is_much = us >= limits::WORK_SHARE_US;
    let told = if is_much { us - us % limits::WORK_LOOK_US } else { 0 };
    if told != state.quick_told {
        state.quick_told = told;
        state.counters.set(ServerCounter::WorkNow, state.work_told + told);
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
