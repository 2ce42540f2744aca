//! Answers that have been released and are not wholly written to their clients yet, of the requests
//! that are measured. Each client has a list of its own, in the order of its answers.

use metrics::{Latency, Phase, Recorder};

use super::Clients;
use crate::Time;
use crate::base::Base;
use crate::base::id::ConnId;
use crate::base::phases::Moments;

/// One answer that is on its way to its client.
#[derive(Clone, Copy)]
pub(super) struct Unwritten {
    /// The offset of its end in the stream of bytes to its client.
    pub(super) end: u64,
    pub(super) moments: Moments,
    /// How many requests it stands for in the histograms.
    pub(super) weight: u32,
    next: u32,
}

/// A client's answers among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnwrittenList {
    first: u32,
    last: u32,
}

/// Those of all clients.
#[derive(Default)]
pub(super) struct UnwrittenTable {
    entries: Vec<Unwritten>,
    free: Vec<u32>,
}

impl UnwrittenList {
    pub(super) const EMPTY: UnwrittenList = UnwrittenList { first: NONE, last: NONE };

    pub(super) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

impl Unwritten {
    pub(super) fn new(end: u64, moments: Moments, weight: u32) -> Unwritten {
        Unwritten { end, moments, weight, next: NONE }
    }
}

impl UnwrittenTable {
    pub(super) fn push(&mut self, list: &mut UnwrittenList, entry: Unwritten) {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.entries[at as usize] = entry;
        match list.last {
            NONE => list.first = at,
            last => self.entries[last as usize].next = at,
        }
        list.last = at;
    }

    /// Takes the first entry, if it ends at this offset or before.
    fn take(&mut self, list: &mut UnwrittenList, written: u64) -> Option<Unwritten> {
        if list.is_empty() || self.entries[list.first as usize].end > written {
            return None;
        }
        let at = list.first;
        let entry = self.entries[at as usize];
        list.first = entry.next;
        if list.first == NONE {
            list.last = NONE;
        }
        self.free.push(at);
        Some(entry)
    }

    /// Forgets the answers of a client that is gone.
    pub(super) fn forget(&mut self, list: &mut UnwrittenList) {
        while self.take(list, u64::MAX).is_some() {}
    }

    /// Returns the number of entries in use.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the number of entries of a list.
    pub(super) fn len_of(&self, list: UnwrittenList) -> usize {
        let next = |at: u32| (at != NONE).then_some(at);
        let after = |at: &u32| next(self.entries[*at as usize].next);
        std::iter::successors(next(list.first), after).count()
    }
}

impl Clients {
    /// Records the answers of a client that have been written.
    #[cold]
    pub(super) fn note_written(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        let latencies = base.pools[client.pool as usize].latencies;
        while let Some(entry) = self.unwritten.take(&mut client.unwritten, client.written) {
            measure(latencies, base.now, &entry);
        }
    }
}

/// Records the phases of a request whose answer has been written.
#[cold]
pub(super) fn measure(latencies: Recorder, now: Time, entry: &Unwritten) {
    let phases = entry.moments.phases(now);
    for (phase, time) in Phase::ALL.into_iter().zip(phases) {
        latencies.record_many(Latency::of_phase(phase), time, entry.weight.into());
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_in_their_order_and_places_are_used_again() {
        let mut table = UnwrittenTable::default();
        let mut lists = [UnwrittenList::EMPTY; 2];
        let entry = |end| Unwritten::new(end, Moments::default(), 1);
        for end in [10, 20, 30] {
            table.push(&mut lists[0], entry(end));
            table.push(&mut lists[1], entry(end + 5));
        }
        let ends = |table: &mut UnwrittenTable, list: &mut UnwrittenList, written| {
            std::iter::from_fn(|| table.take(list, written))
                .map(|one| one.end)
                .collect::<Vec<u64>>()
        };
        assert_eq!(ends(&mut table, &mut lists[0], 29), [10, 20]);
        assert_eq!((table.len(), table.len_of(lists[0]), table.len_of(lists[1])), (4, 1, 3));
        table.push(&mut lists[0], entry(40));
        table.forget(&mut lists[1]);
        assert_eq!(ends(&mut table, &mut lists[0], 40), [30, 40]);
        assert!(lists.iter().all(|list| list.is_empty()) && table.len() == 0);
        assert_eq!(table.entries.len(), 6, "the places were used again");
    }
}
