//! How work has turned out to be at one server: which commands and scripts were slow and which were
//! quick, of those that may be either.
//!
//! ```text
//!    untried ────────▶ quick        it took no more than SLOW_US
//!    untried, quick ─▶ slow         it took more
//!    slow ───────────▶ as before    QUICK_AGAIN times quick in a row, or not used for
//!                                   SLOW_FORGET_US
//! ```

use proto::WorkId;

use crate::Time;
use crate::base::limits::{
    QUICK_AGAIN, QUICK_MAX, SLOW_FORGET_US, SLOW_US, SLOW_WORKS_MAX, TRIED_MAX, WINDOW_KEPT_US,
    WINDOW_STEP, WORK_MAX_US, WORK_TIMED_US, WORK_UNIT_US,
};
use crate::base::part::Effort;

/// The record of one server. It allocates when it grows, and it grows to `SLOW_WORKS_MAX` entries.
#[derive(Default)]
pub(super) struct WorkRecord {
    /// Apart from what is known of each, so that a search reads little.
    ids: Vec<WorkId>,
    slow: Vec<Slow>,
    /// Works that were quick; each takes the place of another. Empty until one was.
    quick: Vec<Option<Quick>>,
    /// The time that those of microseconds take together that are outstanding.
    outstanding_us: u64,
}

/// A work that was quick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quick {
    id: WorkId,
    /// How long it took of late, in microseconds, and the effort that this makes.
    us: u32,
    effort: Effort,
    /// How many are outstanding, and how many may be.
    sent: u16,
    window: u16,
    /// One had to wait for the others, so the window grows.
    was_short: bool,
    /// The part of the next place of the window that quick answers have added, in `WINDOW_STEP`ths.
    credit: u32,
    /// The most that were outstanding since then.
    peak: u16,
    since: Time,
    /// The window when nothing else is known of it.
    first: u16,
}

/// A work that is slow.
#[derive(Clone, Copy)]
struct Slow {
    /// How many times in a row it was quick since.
    quick: u8,
    /// When its time was last noted.
    used: Time,
}

impl WorkRecord {
    /// Returns how long this work is expected to take.
    pub(super) fn effort(&self, id: WorkId, now: Time) -> Effort {
        // Nearly always.
        if let Some(effort) = self.effort_of_quick(id) {
            return effort;
        }
        let is_slow = self.find(id).is_some_and(|at| !self.slow[at].is_forgotten(now));
        if is_slow { Effort::Known(id) } else { Effort::Untried(id) }
    }

    #[inline]
    fn effort_of_quick(&self, id: WorkId) -> Option<Effort> {
        self.find_quick(id).map(|quick| quick.effort)
    }

    #[inline]
    fn find_quick(&self, id: WorkId) -> Option<&Quick> {
        let place = self.quick.get(id.0 as usize % TRIED_MAX)?.as_ref()?;
        (place.id == id).then_some(place)
    }

    #[inline]
    fn find_quick_mut(&mut self, id: WorkId) -> Option<&mut Quick> {
        let place = self.quick.get_mut(id.0 as usize % TRIED_MAX)?.as_mut()?;
        (place.id == id).then_some(place)
    }

    /// Returns the time that this work took of late, in microseconds, if it is known to have been
    /// quick, and was not slow since.
    #[inline]
    pub(super) fn quick_us(&self, id: WorkId) -> Option<u32> {
        self.find_quick(id).map(|quick| quick.us)
    }

    /// Returns what a request's effort is now: more may be known of its work than when it was read.
    /// It is not slow on a link for others.
    #[inline]
    pub(super) fn effort_now(&self, effort: Effort) -> Effort {
        match effort {
            Effort::Untried(id) | Effort::Unknown(id) | Effort::Timed(id, _) => {
                self.effort_of_quick(id).unwrap_or(Effort::Untried(id))
            }
            effort => effort,
        }
    }

    /// Returns how long what is outstanding takes together, of works that are not told to other
    /// workers one by one.
    #[inline]
    pub(super) fn outstanding_us(&self) -> u64 {
        self.outstanding_us
    }

    /// Changes what is known of a work that was quick.
    #[inline]
    fn change<T>(&mut self, id: WorkId, change: impl FnOnce(&mut Quick) -> T) -> Option<T> {
        let quick = self.find_quick_mut(id)?;
        let before = quick.outstanding_us();
        let changed = change(quick);
        let after = quick.outstanding_us();
        self.outstanding_us = self.outstanding_us - before + after;
        Some(changed)
    }

    /// Gives a work's place to what is known of it now, or of another.
    fn replace(&mut self, id: WorkId, quick: Option<Quick>) {
        let us = |quick: &Option<Quick>| quick.as_ref().map_or(0, Quick::outstanding_us);
        let place = &mut self.quick[id.0 as usize % TRIED_MAX];
        self.outstanding_us = self.outstanding_us - us(place) + us(&quick);
        *place = quick;
    }

    /// Whether one more may leave of a work that was quick. The data decide, and the next may be
    /// others: if all that waits left at once, the server would be deaf until it has done them.
    #[inline]
    pub(super) fn has_room(&self, id: WorkId) -> bool {
        self.find_quick(id).is_none_or(|quick| quick.sent < quick.window)
    }

    /// Notes that one waits, since there was no room for it.
    pub(super) fn note_short(&mut self, id: WorkId) {
        if let Some(quick) = self.find_quick_mut(id) {
            quick.was_short = true;
        }
    }

    /// Notes that a work which was quick may have taken long.
    pub(super) fn note_doubt(&mut self, id: WorkId) {
        if let Some(quick) = self.find_quick_mut(id) {
            (quick.window, quick.credit) = (quick.window.min(quick.first), 0);
        }
    }

    /// Notes that a work which was quick has left. Without room it has only if none is outstanding.
    /// Returns whether its window is to be reviewed.
    #[inline]
    pub(super) fn note_left(&mut self, id: WorkId, now: Time) -> bool {
        let is_due = self.change(id, |quick| {
            quick.note_left();
            now.since(quick.since) >= WINDOW_KEPT_US
        });
        is_due.unwrap_or(false)
    }

    /// Reviews the window of a work of which so many are outstanding.
    pub(super) fn review(&mut self, id: WorkId, sent: usize, now: Time) {
        self.change(id, |quick| {
            quick.recount(sent);
            quick.shrink(now);
        });
    }

    /// Counts anew what is outstanding: some may have been dropped.
    pub(super) fn recount(&mut self, sent: impl Fn(WorkId) -> usize) {
        for at in 0..self.quick.len() {
            if let Some(id) = self.quick[at].as_ref().map(|quick| quick.id) {
                self.change(id, |quick| quick.recount(sent(id)));
            }
        }
    }

    /// Notes that so many works of one kind were answered, and what this adds to the window if
    /// they were quick. `took_us` is the time of each, if they were, and the server is known to
    /// have done them, and no others meanwhile.
    #[inline]
    pub(super) fn note_answered(
        &mut self,
        id: WorkId,
        count: u32,
        credit: u32,
        took_us: Option<u64>,
    ) {
        self.change(id, |quick| {
            quick.sent = u32::from(quick.sent).saturating_sub(count) as u16;
            if let Some(took_us) = took_us {
                quick.note(count, took_us as u32);
            }
            quick.open(if quick.was_short { credit } else { 0 });
        });
    }

    /// Notes a time that is short. What is known grows fast, and falls slowly.
    fn note_quick(&mut self, id: WorkId, took_us: u64, now: Time, first: u16) {
        if self.quick.is_empty() {
            self.quick.resize(TRIED_MAX, None);
        }
        let known = self.find_quick(id);
        let (took, before) = (took_us as u32, known.map_or(took_us as u32, |quick| quick.us));
        let us = match took >= before {
            true => before + (took - before).div_ceil(2),
            false => before - (before - took).div_ceil(32),
        };
        let effort = match u64::from(us) < WORK_TIMED_US {
            true => Effort::Unknown(id),
            // It is no more than `SLOW_US`.
            false => Effort::Timed(id, (u64::from(us) / WORK_UNIT_US) as u8),
        };
        let mut quick = match known.copied() {
            Some(known) if us <= 2 * known.us || u64::from(us) < WORK_TIMED_US => {
                Quick { us, effort, first, ..known }
            }
            // One that takes longer than it did has to be trusted anew.
            known => {
                let sent = known.map_or(0, |known| known.sent);
                let (window, was_short, credit, since) = (first, false, 0, now);
                Quick { id, us, effort, sent, window, was_short, credit, peak: sent, since, first }
            }
        };
        quick.open(0);
        self.replace(id, Some(quick));
    }

    /// Notes how long the server has taken for this work, in microseconds. The time must be the
    /// server's own: it begins when the work was sent, or when the server sent its last answer
    /// before that one, and it is not to be noted at all if the server was busy with something
    /// else meanwhile. Otherwise whatever waits behind one slow command would be slow as well. Of
    /// one that is quick for the first time, `first` may leave.
    pub(super) fn note(&mut self, id: WorkId, took_us: u64, now: Time, first: u16) {
        match (self.find(id), took_us > SLOW_US) {
            (None, false) => self.note_quick(id, took_us, now, first),
            (None, true) => self.record(id, now),
            (Some(at), true) => self.slow[at] = Slow { quick: 0, used: now },
            (Some(at), false) => {
                let slow = &mut self.slow[at];
                let is_forgotten = slow.is_forgotten(now);
                *slow = Slow { quick: slow.quick + 1, used: now };
                if is_forgotten || slow.quick >= QUICK_AGAIN {
                    self.ids.swap_remove(at);
                    self.slow.swap_remove(at);
                }
            }
        }
    }

    fn find(&self, id: WorkId) -> Option<usize> {
        self.ids.iter().position(|one| *one == id)
    }

    /// Adds a work, in place of the one that was not used for longest if there is no room.
    fn record(&mut self, id: WorkId, now: Time) {
        if self.quick_us(id).is_some() {
            self.replace(id, None);
        }
        let slow = Slow { quick: 0, used: now };
        if self.ids.len() < SLOW_WORKS_MAX {
            self.ids.push(id);
            self.slow.push(slow);
            return;
        }
        let oldest = (0..self.slow.len()).min_by_key(|at| self.slow[*at].used);
        let oldest = oldest.expect("the record is full, and not of size 0");
        (self.ids[oldest], self.slow[oldest]) = (id, slow);
    }
}

impl Quick {
    /// Returns how long those that are outstanding take, if their time is not told one by one.
    #[inline]
    fn outstanding_us(&self) -> u64 {
        match self.effort {
            Effort::Unknown(_) => u64::from(self.sent) * u64::from(self.us),
            _ => 0,
        }
    }

    /// Notes how many are outstanding, as counted.
    fn recount(&mut self, sent: usize) {
        self.sent = sent.min(usize::from(u16::MAX)) as u16;
    }

    /// Notes the time of works that were as quick as known. Few that came together say little: the
    /// server, or this process, may have waited for a processor.
    fn note(&mut self, count: u32, took_us: u32) {
        if self.effort != Effort::Unknown(self.id) {
            return;
        }
        let weight = count.min(TOGETHER_MAX);
        let part = |more: u32| (more * weight).div_ceil(2 * TOGETHER_MAX);
        self.us = match took_us >= self.us {
            true => self.us + part(took_us - self.us),
            false => self.us - part(self.us - took_us),
        };
    }

    /// Notes that one has left. While there is room for another, nothing waits.
    #[inline]
    fn note_left(&mut self) {
        if self.sent >= self.window {
            // Those that had left were dropped.
            self.sent = 0;
        }
        self.sent += 1;
        self.peak = self.peak.max(self.sent);
        self.was_short &= self.sent >= self.window;
    }

    /// Gives half of the window up that nobody has needed, for each time that it was kept so long.
    /// Works that were quick a few at a time say nothing of hundreds that come at once.
    #[cold]
    fn shrink(&mut self, now: Time) {
        let times = now.since(self.since) / WINDOW_KEPT_US;
        let half = |window: u16, needed: u16| window - window.saturating_sub(needed) / 2;
        self.window = half(self.window, self.peak);
        // Nothing has left since the first time.
        for _ in 1..times.min(32) {
            self.window = half(self.window, self.sent);
        }
        self.window = self.window.max(self.first);
        (self.credit, self.peak, self.since) = (0, self.sent, now);
    }

    /// Opens the window by what quick answers have added, as far as it may. It does not double as
    /// TCP's does: a hundred quick answers say little of a hundred at once.
    fn open(&mut self, credit: u32) {
        let most = WORK_MAX_US as u32 / self.us.max(1);
        let most = most.clamp(1, u32::from(QUICK_MAX));
        self.credit = self.credit.saturating_add(credit);
        let more = self.credit / WINDOW_STEP;
        self.credit %= WINDOW_STEP;
        self.window = (u32::from(self.window) + more).min(most) as u16;
    }
}

impl Slow {
    fn is_forgotten(&self, now: Time) -> bool {
        now.since(self.used) >= SLOW_FORGET_US
    }
}

/// So many works that came together are as sure a measurement as any number.
const TOGETHER_MAX: u32 = 32;

const _: () = assert!(SLOW_WORKS_MAX > 0 && QUICK_AGAIN > 0 && SLOW_US / WORK_UNIT_US <= 255);

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: WorkId = WorkId(1);
    const OTHER: WorkId = WorkId(2);

    const FIRST: u16 = 4;
    /// The credit of an answer on a way so long that it makes room for one.
    const FAR: u32 = WINDOW_STEP;

    fn note(record: &mut WorkRecord, id: WorkId, took_us: u64, now: Time) {
        record.note(id, took_us, now, FIRST);
    }

    /// Returns how many of a work may be outstanding.
    fn window(record: &WorkRecord) -> Option<u16> {
        record.find_quick(ONE).map(|quick| quick.window)
    }

    /// Has one leave; as many are outstanding as were noted.
    fn leaves(record: &mut WorkRecord, now: Time) {
        if record.note_left(ONE, now) {
            let sent = record.find_quick(ONE).map_or(0, |quick| quick.sent);
            record.review(ONE, usize::from(sent), now);
        }
    }

    /// Has so many leave at once, and be answered; if there is room for no more, another waits.
    fn round(record: &mut WorkRecord, count: u16, took_us: u64, now: Time) {
        (0..count).for_each(|_| leaves(record, now));
        if !record.has_room(ONE) {
            record.note_short(ONE);
        }
        record.note_answered(ONE, u32::from(count), u32::from(count) * FAR, Some(took_us));
    }

    fn is_slow(record: &WorkRecord, id: WorkId, now: Time) -> bool {
        record.effort(id, now).is_slow()
    }

    #[test]
    fn a_work_that_took_long_is_slow_until_it_was_quick_for_some_time() {
        let mut record = WorkRecord::default();
        let now = Time(5);
        note(&mut record, ONE, SLOW_US, now);
        assert!(!is_slow(&record, ONE, now), "not longer than it may take");
        note(&mut record, ONE, SLOW_US + 1, now);
        assert!(is_slow(&record, ONE, now) && !is_slow(&record, OTHER, now));
        for _ in 1..QUICK_AGAIN {
            note(&mut record, ONE, 3, now);
            assert!(is_slow(&record, ONE, now));
        }
        // Not in a row: it begins again.
        note(&mut record, ONE, 2 * SLOW_US, now);
        for _ in 1..QUICK_AGAIN {
            note(&mut record, ONE, 3, now);
            note(&mut record, OTHER, 3, now);
        }
        assert!(is_slow(&record, ONE, now));
        note(&mut record, ONE, 3, now);
        assert!(!is_slow(&record, ONE, now));
        note(&mut record, ONE, SLOW_US + 1, now);
        assert!(is_slow(&record, ONE, now));
    }

    #[test]
    fn a_work_that_was_quick_is_known_until_another_takes_its_place() {
        let mut record = WorkRecord::default();
        assert!(record.quick_us(ONE).is_none());
        note(&mut record, ONE, SLOW_US, Time(5));
        assert!(record.quick_us(ONE).is_some() && record.quick_us(OTHER).is_none());
        let same_place = WorkId(1 + TRIED_MAX as u32);
        note(&mut record, same_place, 3, Time(5));
        assert!(record.quick_us(same_place).is_some() && record.quick_us(ONE).is_none());
        note(&mut record, OTHER, SLOW_US + 1, Time(5));
        assert!(record.quick_us(OTHER).is_none());
        note(&mut record, same_place, SLOW_US + 1, Time(5));
        assert!(record.quick_us(same_place).is_none() && is_slow(&record, same_place, Time(5)));
    }

    #[test]
    fn as_many_quick_works_may_leave_as_take_little_time_together() {
        let grown = |took: u64| {
            let mut record = WorkRecord::default();
            note(&mut record, ONE, 250, Time(5));
            for _ in 0..1_000 {
                let all = window(&record).expect("it was quick");
                round(&mut record, all, took, Time(5));
            }
            record.find_quick(ONE).map(|quick| (quick.us, u64::from(quick.window)))
        };
        assert_eq!(grown(200), Some((200, WORK_MAX_US / 200)));
        assert_eq!(grown(3), Some((3, u64::from(QUICK_MAX))));
    }

    /// A record of a work that was quick for long, many at a time.
    fn trusted() -> WorkRecord {
        let mut record = WorkRecord::default();
        note(&mut record, ONE, 3, Time(5));
        for _ in 0..10 {
            let all = window(&record).expect("it was quick");
            round(&mut record, all, 3, Time(5));
        }
        assert_eq!(window(&record), Some(QUICK_MAX));
        record
    }

    /// The data decide: one after the other says nothing of hundreds at once.
    #[test]
    fn a_work_that_is_quick_a_few_at_a_time_has_little_room() {
        let mut record = WorkRecord::default();
        note(&mut record, ONE, 3, Time(5));
        for nth in 0..50_000 {
            round(&mut record, 1 + nth % 3, 3, Time(5));
        }
        assert_eq!(window(&record), Some(FIRST));
    }

    /// Hundreds that were quick say little of hundreds at once.
    #[test]
    fn the_window_of_a_near_server_grows_by_one_for_many_quick_answers() {
        let mut record = WorkRecord::default();
        note(&mut record, ONE, 3, Time(5));
        for answers in 1..=2 * WINDOW_STEP {
            leaves(&mut record, Time(5));
            record.note_short(ONE);
            record.note_answered(ONE, 1, 1, Some(3));
            let grown = answers / WINDOW_STEP;
            assert_eq!(window(&record), Some(FIRST + grown as u16), "after {answers}");
        }
        // Some were as late as if they had taken long, and it is not known whether they did.
        record.note_doubt(ONE);
        assert_eq!(window(&record), Some(FIRST));
    }

    /// Two works whose answers come in turn, in one read, both count.
    #[test]
    fn each_answer_of_a_read_counts() {
        let mut record = WorkRecord::default();
        note(&mut record, ONE, 3, Time(5));
        (0..FIRST).for_each(|_| leaves(&mut record, Time(5)));
        record.note_short(ONE);
        (0..FIRST).for_each(|_| record.note_answered(ONE, 1, FAR, Some(3)));
        assert_eq!(window(&record), Some(2 * FIRST));
        leaves(&mut record, Time(5));
        record.note_answered(ONE, 1, FAR, Some(3));
        assert_eq!(window(&record), Some(2 * FIRST), "nothing waits any more");
    }

    /// A link that is lost takes some with it that nobody answers.
    #[test]
    fn what_was_dropped_is_outstanding_for_a_second_at_most() {
        let mut record = WorkRecord::default();
        note(&mut record, ONE, 3, Time(5));
        (0..FIRST).for_each(|_| leaves(&mut record, Time(5)));
        let late = Time(5).after(WINDOW_KEPT_US);
        record.note_answered(ONE, 1, 1, Some(3));
        assert!(record.note_left(ONE, late), "it is to be reviewed");
        record.review(ONE, 1, late);
        assert_eq!(record.find_quick(ONE).map(|quick| quick.sent), Some(1));
    }

    #[test]
    fn a_work_of_known_time_has_a_window_as_well() {
        let mut record = WorkRecord::default();
        note(&mut record, ONE, 2 * WORK_TIMED_US, Time(5));
        for _ in 0..10 {
            let all = window(&record).expect("it was quick");
            round(&mut record, all, 2 * WORK_TIMED_US, Time(5));
        }
        let most = (WORK_MAX_US / (2 * WORK_TIMED_US)) as u16;
        assert_eq!(window(&record), Some(most));
        note(&mut record, ONE, 3 * WORK_TIMED_US, Time(5));
        assert!(window(&record) > Some(FIRST), "a little more is no surprise");
        note(&mut record, ONE, 9 * WORK_TIMED_US, Time(5));
        assert_eq!(window(&record), Some(FIRST));
    }

    #[test]
    fn room_that_nobody_needs_goes_by_and_by() {
        let mut record = trusted();
        let mut now = Time(5);
        for expected in [1024, 624, 424, 324] {
            now = now.after(WINDOW_KEPT_US);
            // The first is of the time before.
            round(&mut record, 224, 3, now);
            assert_eq!(window(&record), Some(expected));
            // One that waited for something is as it was before.
            note(&mut record, ONE, 20, now);
            round(&mut record, 32, 3, now);
        }
        for _ in 0..20 {
            now = now.after(WINDOW_KEPT_US);
            round(&mut record, 220, 3, now);
        }
        assert_eq!(window(&record), Some(221), "what is needed stays");
        leaves(&mut record, now.after(100 * WINDOW_KEPT_US));
        assert_eq!(window(&record), Some(FIRST), "nothing was needed");
    }

    #[test]
    fn a_work_that_takes_longer_than_it_did_has_less_room_at_once() {
        let mut record = trusted();
        note(&mut record, ONE, 590, Time(5));
        let expected = Some((297, (WORK_MAX_US / 297) as u16));
        let found =
            |record: &WorkRecord| record.find_quick(ONE).map(|quick| (quick.us, quick.window));
        assert_eq!(found(&record), expected);
        // An error says nothing of its time.
        record.note_answered(ONE, 40, 40 * FAR, None);
        assert_eq!(found(&record), expected);
        leaves(&mut record, Time(5).after(WINDOW_KEPT_US));
        assert_eq!(found(&record), expected, "as many were outstanding");
        leaves(&mut record, Time(5).after(2 * WINDOW_KEPT_US));
        assert_eq!(window(&record), Some(35));
    }

    /// The time that this process waits for a processor is not the server's.
    #[test]
    fn one_quick_work_that_came_late_does_not_close_the_room_of_many() {
        let mut record = trusted();
        round(&mut record, 1, WORK_TIMED_US - 1, Time(5));
        round(&mut record, 40, 3, Time(5));
        assert_eq!(window(&record), Some(QUICK_MAX));
    }

    /// However long they took, and though the next are to be fewer.
    #[test]
    fn works_that_are_answered_are_outstanding_no_more() {
        let mut record = trusted();
        let room = |record: &mut WorkRecord| {
            let left = |record: &mut WorkRecord| {
                record.has_room(ONE) && {
                    leaves(record, Time(5));
                    true
                }
            };
            (0..2_000).take_while(|_| left(record)).count()
        };
        assert_eq!(room(&mut record), 1024);
        record.note_answered(ONE, 24, 0, None);
        assert_eq!(room(&mut record), 24);
        note(&mut record, ONE, 2 * WORK_TIMED_US, Time(5));
        note(&mut record, ONE, 3, Time(5));
        assert_eq!(room(&mut record), 0, "it is to be trusted anew");
        record.note_answered(ONE, 1024, 1024, Some(3));
        assert_eq!(room(&mut record), usize::from(FIRST));
        // Nothing is outstanding, whatever was noted: their link was lost.
        leaves(&mut record, Time(5));
        assert_eq!(room(&mut record), usize::from(FIRST) - 1);
    }

    #[test]
    fn a_work_that_nobody_asks_for_is_forgotten() {
        let mut record = WorkRecord::default();
        note(&mut record, ONE, SLOW_US + 1, Time(7));
        let last = Time(7).after(SLOW_FORGET_US - 1);
        assert!(is_slow(&record, ONE, last) && !is_slow(&record, ONE, last.after(1)));
        note(&mut record, ONE, SLOW_US + 1, last);
        assert!(is_slow(&record, ONE, last.after(SLOW_FORGET_US - 1)), "it was used");
        // It has been quick, and is not slow only because time has gone by.
        let late = last.after(SLOW_FORGET_US);
        note(&mut record, ONE, 3, late);
        assert!(!is_slow(&record, ONE, late) && record.ids.is_empty());
    }

    #[test]
    fn the_record_is_bounded_and_the_work_not_used_for_longest_goes() {
        let mut record = WorkRecord::default();
        let id = |nth: usize| WorkId(nth as u32);
        for nth in 0..SLOW_WORKS_MAX {
            note(&mut record, id(nth), SLOW_US + 1, Time(nth as u64));
        }
        let now = Time(SLOW_WORKS_MAX as u64);
        note(&mut record, id(0), 3, now);
        let capacities = (record.ids.capacity(), record.slow.capacity());
        for nth in 0..5 {
            note(&mut record, id(SLOW_WORKS_MAX + nth), SLOW_US + 1, now);
        }
        assert_eq!(record.ids.len(), SLOW_WORKS_MAX);
        assert_eq!((record.ids.capacity(), record.slow.capacity()), capacities);
        let gone: Vec<usize> =
            (0..SLOW_WORKS_MAX + 5).filter(|nth| !is_slow(&record, id(*nth), now)).collect();
        assert_eq!(gone, [1, 2, 3, 4, 5]);
    }
}
