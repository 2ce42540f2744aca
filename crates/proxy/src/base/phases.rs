//! The phases of a request, and which requests are measured.
//!
//! ```text
//!   begun ─client read─ whole ─queue─ sent ─server─ settled ─client write─ written
//! ```
//!
//! A request of several parts follows the part that is answered last. The driver gives the times:
//! when the kernel said that something can be read, and when the work that followed was done. So
//! the proxy's own work counts as queue before a request is sent, and as client write after its
//! reply has come, however long a turn is.

use crate::Time;

/// The moments of a request that end its phases, but for the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moments {
    /// When its first byte came.
    pub(crate) begun: Time,
    /// When its last byte came.
    pub(crate) whole: Time,
    /// When the part that was answered last had been written to its server.
    pub(crate) sent: Time,
    /// When the last part was answered.
    pub(crate) settled: Time,
}

impl Moments {
    /// Those of a request that has come whole.
    #[inline]
    pub(crate) fn new(begun: Time, whole: Time) -> Moments {
        Moments { begun, whole, sent: UNSENT, settled: Time(0) }
    }

    /// Returns the length of each phase, in microseconds, in the order of `metrics::Phase`.
    pub(crate) fn phases(&self, written: Time) -> [u64; 4] {
        let Moments { begun, whole, sent, settled } = *self;
        // A failure may settle a request before its message was sent.
        let sent = sent.min(settled).max(whole);
        [whole.since(begun), sent.since(whole), settled.since(sent), written.since(settled)]
    }
}

/// Chooses the requests of a pool whose phases are measured: all while there are few. While there
/// are many, some hundreds a second are, and each stands for as many as it was chosen from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    every: u32,
    /// How many requests the next measured one stands for, and how many of them are still to come.
    each: u32,
    left: u32,
    /// The requests of the pool when the rate was last looked at, and when that was.
    requests: u64,
    since: Time,
}

impl Sampling {
    pub(crate) fn new(requests: u64, now: Time) -> Sampling {
        Sampling { every: 1, each: 1, left: 1, requests, since: now }
    }

    /// Returns how many requests the next one stands for; none if it is not measured.
    #[inline]
    pub(crate) fn weigh(&mut self) -> u32 {
        self.left -= 1;
        if self.left > 0 {
            return 0;
        }
        self.left = self.every;
        std::mem::replace(&mut self.each, self.every)
    }

    /// Looks at the rate of requests. This is called a few times a second while there are any.
    pub(crate) fn look(&mut self, requests: u64, now: Time) {
        let (new, time) = (requests.saturating_sub(self.requests), now.since(self.since));
        if time < LOOK_US {
            return;
        }
        let rate = new.saturating_mul(1_000_000) / time;
        self.every = (rate / MEASURED_A_SECOND + 1).next_power_of_two().min(EVERY_MAX) as u32;
        (self.requests, self.since) = (requests, now);
    }
}

/// The time of a message that was not sent, or is not known to have been.
pub(crate) const UNSENT: Time = Time(u64::MAX);

/// So many requests of one worker and pool tell as much as all.
const MEASURED_A_SECOND: u64 = 500;
const EVERY_MAX: u64 = 64;
/// The least time over which the rate is looked at.
const LOOK_US: u64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_one_another_and_none_is_negative() {
        let moments = |begun, whole, sent, settled| Moments {
            begun: Time(begun),
            whole: Time(whole),
            sent: Time(sent),
            settled: Time(settled),
        };
        assert_eq!(moments(1, 11, 111, 1_111).phases(Time(11_111)), [10, 100, 1_000, 10_000]);
        let unsent = Moments { sent: UNSENT, ..moments(0, 0, 0, 70) };
        assert_eq!(unsent.phases(Time(71)), [0, 70, 0, 1]);
        assert_eq!(moments(5, 9, 7, 20).phases(Time(20)), [4, 0, 11, 0]);
    }

    #[test]
    fn all_are_measured_while_there_are_few_and_some_while_there_are_many() {
        let mut sampling = Sampling::new(0, Time(0));
        let weights =
            |sampling: &mut Sampling, count: u32| (0..count).map(|_| sampling.weigh()).sum::<u32>();
        assert_eq!(weights(&mut sampling, 100), 100);
        sampling.look(49, Time(100_000));
        assert_eq!(weights(&mut sampling, 7), 7, "less than five hundred a second are few");
        sampling.look(49 + 350, Time(200_000));
        let picked: Vec<u32> = (0..24).map(|_| sampling.weigh()).filter(|one| *one > 0).collect();
        assert_eq!(picked, [1, 8, 8], "one was due already");
        sampling.look(400, Time(210_000));
        assert_eq!(sampling.every, 8, "too short a time tells nothing");
        sampling.look(400, Time(400_000));
        assert_eq!(weights(&mut sampling, 30), 7 + 30, "with the seven before that were skipped");
        sampling.look(1 << 40, Time(500_000));
        assert_eq!(u64::from(sampling.every), EVERY_MAX);
    }
}
