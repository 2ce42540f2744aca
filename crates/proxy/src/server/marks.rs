//! When the bytes of a link were handed to the kernel: a mark for each write.

use std::collections::VecDeque;

use crate::Time;
use crate::base::phases::UNSENT;

/// The writes of which a reply is still to come.
#[derive(Default)]
pub(super) struct SentMarks {
    /// The oldest mark. It lies apart, since most replies belong to the write that it stands for.
    first: Mark,
    /// Those after it. The oldest is first.
    others: VecDeque<Mark>,
}

/// The offset up to which bytes had been sent, and when.
#[derive(Clone, Copy, Default)]
struct Mark {
    end: u64,
    time: Time,
}

impl SentMarks {
    /// Notes that bytes up to this offset have been sent.
    pub(super) fn note(&mut self, end: u64, now: Time) {
        let is_full = self.others.len() >= MARKS_MAX;
        match self.others.back_mut() {
            // Beyond the bound, the last mark stands for several writes, and has the first's time.
            Some(last) if last.time == now || is_full => last.end = end,
            _ => self.others.push_back(Mark { end, time: now }),
        }
    }

    /// Returns when the message that ends at this offset had been sent. Those before it are
    /// forgotten.
    #[inline]
    pub(super) fn time_of(&mut self, end: u64) -> Time {
        if self.first.end >= end { self.first.time } else { self.next_of(end) }
    }

    #[inline(never)]
    fn next_of(&mut self, end: u64) -> Time {
        while let Some(mark) = self.others.pop_front() {
            self.first = mark;
            if mark.end >= end {
                return mark.time;
            }
        }
        UNSENT
    }
}

/// Writes of one link that are told apart while their replies are to come.
const MARKS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_was_sent_with_the_write_that_has_its_last_byte() {
        let mut marks = SentMarks::default();
        assert_eq!(marks.time_of(1), UNSENT);
        for (end, now) in [(10, 1), (15, 2), (30, 2), (40, 9)] {
            marks.note(end, Time(now));
        }
        let times = [5, 10, 12, 30, 31, 40].map(|end| marks.time_of(end));
        assert_eq!(times, [1, 1, 2, 2, 9, 9].map(Time));
        assert_eq!(marks.time_of(41), UNSENT);
        (0..1_000).for_each(|n| marks.note(50 + n, Time(n)));
        assert_eq!(marks.others.len(), MARKS_MAX);
        assert_eq!([60, 113, 900].map(|end| marks.time_of(end)), [10, 63, 63].map(Time));
    }
}
