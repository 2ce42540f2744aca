//! The workers that have to prepare a change, and how long they have.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The workers that have not prepared yet.
pub struct Preparing {
    waiting: BTreeSet<usize>,
    /// Workers that hung meanwhile and were replaced.
    replaced: BTreeSet<usize>,
    deadline: Instant,
}

impl Preparing {
    pub fn begin(now: Instant) -> Preparing {
        let (waiting, replaced) = (BTreeSet::new(), BTreeSet::new());
        Preparing { waiting, replaced, deadline: now + PREPARE_LIMIT }
    }

    pub fn wait_for(&mut self, number: usize) {
        self.waiting.insert(number);
    }

    /// A worker has prepared, or nobody waits for it any more.
    pub fn forget(&mut self, number: usize) {
        self.waiting.remove(&number);
    }

    /// A worker hung and has ended. Waits for its successor, also if it had prepared itself. The
    /// first one that is replaced begins the time anew. Returns false for one that was replaced
    /// before: it is the change that it hangs in.
    #[must_use]
    pub fn replace(&mut self, number: usize, now: Instant) -> bool {
        if self.replaced.is_empty() {
            self.deadline = now + PREPARE_LIMIT;
        }
        self.waiting.insert(number);
        self.replaced.insert(number)
    }

    pub fn waiting(&self) -> &BTreeSet<usize> {
        &self.waiting
    }

    pub fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline
    }
}

/// The time that workers have to prepare. It protects the operator, and the changes behind this
/// one, from a worker that never answers. One that stands still is replaced before, 2 s later by
/// default, and its successor is asked; but `hang_timeout` may be off, or the worker goes on
/// turning, or its successor stands still as well. To wait costs no client anything, because the
/// older configuration serves meanwhile. So a machine that is merely busy does not reach it.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_of_a_worker_that_has_prepared_and_hung_is_waited_for() {
        let now = Instant::now();
        let mut preparing = Preparing::begin(now);
        preparing.wait_for(0);
        preparing.wait_for(1);
        preparing.forget(1);
        assert!(preparing.replace(1, now));
        preparing.forget(0);
        assert!(preparing.waiting().contains(&1));
        preparing.forget(1);
        assert!(preparing.waiting().is_empty());
    }

    #[test]
    fn a_worker_is_replaced_once_and_the_time_begins_anew_once() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut preparing = Preparing::begin(start);
        assert!(!preparing.is_late(after(9)) && preparing.is_late(after(10)));
        assert!(preparing.replace(1, after(7)));
        assert!(!preparing.is_late(after(16)) && preparing.is_late(after(17)));
        assert!(preparing.replace(0, after(9)), "another one");
        assert!(preparing.is_late(after(17)));
        assert!(!preparing.replace(1, after(12)), "the change is what it hangs in");
    }
}
