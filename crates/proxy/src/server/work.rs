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
    QUICK_AGAIN, QUICK_FIRST, QUICK_MAX, SLOW_FORGET_US, SLOW_US, SLOW_WORKS_MAX, TRIED_MAX,
    WORK_MAX_US, WORK_TIMED_US, WORK_UNIT_US,
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
}

/// A work that was quick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quick {
    id: WorkId,
    /// How long it took of late, in microseconds, and the effort that this makes.
    us: u32,
    effort: Effort,
    /// How many more may leave before one of them is answered.
    room: u16,
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

    /// Returns the effort of a work that was untried when its request was read. It is not slow on a
    /// link for others.
    pub(super) fn effort_now(&self, id: WorkId) -> Effort {
        self.effort_of_quick(id).unwrap_or(Effort::Untried(id))
    }

    /// Whether one more may leave of a work that was quick. The data decide, and the next may be
    /// others: if all that waits left at once, the server would be deaf until it has done them.
    #[inline]
    pub(super) fn has_room(&self, id: WorkId) -> bool {
        self.find_quick(id).is_none_or(|quick| quick.room > 0)
    }

    /// Notes that a work which was quick has left.
    #[inline]
    pub(super) fn take_room(&mut self, id: WorkId) {
        if let Some(quick) = self.find_quick_mut(id) {
            quick.room = quick.room.saturating_sub(1);
        }
    }

    /// Notes that so many works of one kind were answered, and were quick. `took_us` is the time of
    /// each, if the server is known to have done them, and no others meanwhile.
    #[inline]
    pub(super) fn make_room(&mut self, id: WorkId, count: u32, took_us: Option<u64>) {
        if let Some(quick) = self.find_quick_mut(id) {
            if let Some(took_us) = took_us {
                quick.note(count, took_us as u32);
            }
            let room = u32::from(quick.room) + 2 * count;
            quick.room = room.min(quick.room_max()) as u16;
        }
    }

    /// Notes a time that is short. What is known grows fast, and falls slowly.
    fn note_quick(&mut self, id: WorkId, took_us: u64) {
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
        // One that took long has to be trusted anew.
        let room =
            known.filter(|quick| quick.effort == Effort::Unknown(id) && quick.effort == effort);
        let room = room.map_or(QUICK_FIRST, |quick| quick.room);
        let mut quick = Quick { id, us, effort, room };
        quick.room = u32::from(room).min(quick.room_max()) as u16;
        self.quick[id.0 as usize % TRIED_MAX] = Some(quick);
    }

    /// Notes how long the server has taken for this work, in microseconds. The time must be the
    /// server's own: it begins when the work was sent, or when the server sent its last answer
    /// before that one, and it is not to be noted at all if the server was busy with something
    /// else meanwhile. Otherwise whatever waits behind one slow command would be slow as well.
    pub(super) fn note(&mut self, id: WorkId, took_us: u64, now: Time) {
        match (self.find(id), took_us > SLOW_US) {
            (None, false) => self.note_quick(id, took_us),
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
            self.quick[id.0 as usize % TRIED_MAX] = None;
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

    /// Returns how many may leave before one is answered.
    fn room_max(&self) -> u32 {
        let most = WORK_MAX_US as u32 / self.us.max(1);
        most.clamp(u32::from(QUICK_FIRST), u32::from(QUICK_MAX))
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

    fn is_slow(record: &WorkRecord, id: WorkId, now: Time) -> bool {
        record.effort(id, now).is_slow()
    }

    #[test]
    fn a_work_that_took_long_is_slow_until_it_was_quick_for_some_time() {
        let mut record = WorkRecord::default();
        let now = Time(5);
        record.note(ONE, SLOW_US, now);
        assert!(!is_slow(&record, ONE, now), "not longer than it may take");
        record.note(ONE, SLOW_US + 1, now);
        assert!(is_slow(&record, ONE, now) && !is_slow(&record, OTHER, now));
        for _ in 1..QUICK_AGAIN {
            record.note(ONE, 3, now);
            assert!(is_slow(&record, ONE, now));
        }
        // Not in a row: it begins again.
        record.note(ONE, 2 * SLOW_US, now);
        for _ in 1..QUICK_AGAIN {
            record.note(ONE, 3, now);
            record.note(OTHER, 3, now);
        }
        assert!(is_slow(&record, ONE, now));
        record.note(ONE, 3, now);
        assert!(!is_slow(&record, ONE, now));
        record.note(ONE, SLOW_US + 1, now);
        assert!(is_slow(&record, ONE, now));
    }

    #[test]
    fn a_work_that_was_quick_is_known_until_another_takes_its_place() {
        let mut record = WorkRecord::default();
        assert!(record.quick_us(ONE).is_none());
        record.note(ONE, SLOW_US, Time(5));
        assert!(record.quick_us(ONE).is_some() && record.quick_us(OTHER).is_none());
        let same_place = WorkId(1 + TRIED_MAX as u32);
        record.note(same_place, 3, Time(5));
        assert!(record.quick_us(same_place).is_some() && record.quick_us(ONE).is_none());
        record.note(OTHER, SLOW_US + 1, Time(5));
        assert!(record.quick_us(OTHER).is_none());
        record.note(same_place, SLOW_US + 1, Time(5));
        assert!(record.quick_us(same_place).is_none() && is_slow(&record, same_place, Time(5)));
    }

    #[test]
    fn as_many_quick_works_may_leave_as_take_little_time_together() {
        let room = |took: u64, count: u32| {
            let mut record = WorkRecord::default();
            record.note(ONE, 250, Time(5));
            assert!(record.has_room(ONE));
            for _ in 0..1_000 {
                record.make_room(ONE, count, Some(took));
            }
            record.find_quick(ONE).map(|quick| (quick.us, u64::from(quick.room)))
        };
        for count in [1, 40] {
            assert_eq!(room(200, count), Some((200, WORK_MAX_US / 200)));
            assert_eq!(room(3, count), Some((3, u64::from(QUICK_MAX))));
        }
    }

    /// A record of a work that was quick for long.
    fn trusted() -> WorkRecord {
        let mut record = WorkRecord::default();
        record.note(ONE, 3, Time(5));
        for _ in 0..100 {
            record.make_room(ONE, 40, Some(3));
        }
        assert_eq!(record.find_quick(ONE).map(|quick| quick.room), Some(QUICK_MAX));
        record
    }

    #[test]
    fn a_work_that_takes_longer_than_it_did_has_less_room_at_once() {
        let mut record = trusted();
        record.note(ONE, 590, Time(5));
        let (us, most) = (297, (WORK_MAX_US / 297) as u16);
        assert_eq!(record.find_quick(ONE).map(|quick| (quick.us, quick.room)), Some((us, most)));
        // An error says nothing of its time.
        record.make_room(ONE, 40, None);
        assert_eq!(record.find_quick(ONE).map(|quick| (quick.us, quick.room)), Some((us, most)));
    }

    /// The time that this process waits for a processor is not the server's.
    #[test]
    fn one_quick_work_that_came_late_does_not_close_the_room_of_many() {
        let mut record = trusted();
        record.make_room(ONE, 1, Some(WORK_TIMED_US - 1));
        record.make_room(ONE, 40, Some(3));
        assert_eq!(record.find_quick(ONE).map(|quick| quick.room), Some(QUICK_MAX));
    }

    #[test]
    fn a_work_that_nobody_asks_for_is_forgotten() {
        let mut record = WorkRecord::default();
        record.note(ONE, SLOW_US + 1, Time(7));
        let last = Time(7).after(SLOW_FORGET_US - 1);
        assert!(is_slow(&record, ONE, last) && !is_slow(&record, ONE, last.after(1)));
        record.note(ONE, SLOW_US + 1, last);
        assert!(is_slow(&record, ONE, last.after(SLOW_FORGET_US - 1)), "it was used");
        // It has been quick, and is not slow only because time has gone by.
        let late = last.after(SLOW_FORGET_US);
        record.note(ONE, 3, late);
        assert!(!is_slow(&record, ONE, late) && record.ids.is_empty());
    }

    #[test]
    fn the_record_is_bounded_and_the_work_not_used_for_longest_goes() {
        let mut record = WorkRecord::default();
        let id = |nth: usize| WorkId(nth as u32);
        for nth in 0..SLOW_WORKS_MAX {
            record.note(id(nth), SLOW_US + 1, Time(nth as u64));
        }
        let now = Time(SLOW_WORKS_MAX as u64);
        record.note(id(0), 3, now);
        let capacities = (record.ids.capacity(), record.slow.capacity());
        for nth in 0..5 {
            record.note(id(SLOW_WORKS_MAX + nth), SLOW_US + 1, now);
        }
        assert_eq!(record.ids.len(), SLOW_WORKS_MAX);
        assert_eq!((record.ids.capacity(), record.slow.capacity()), capacities);
        let gone: Vec<usize> =
            (0..SLOW_WORKS_MAX + 5).filter(|nth| !is_slow(&record, id(*nth), now)).collect();
        assert_eq!(gone, [1, 2, 3, 4, 5]);
    }
}
