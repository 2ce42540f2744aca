//! What a client has done: its number, its counts, and how much of that was in the last seconds.

use metrics::{PoolCounter, WorkerCounter};

use super::Clients;
use super::session::Client;
use crate::base::id::ConnId;
use crate::base::phases::UNSENT;
use crate::base::{Base, limits};
use crate::{Action, Tally, Time};

/// The counts of a client, and those of some seconds ago.
pub(super) struct Record {
    /// Its `active` is written only when it is handed over: meanwhile `Client::received` has it.
    pub(super) tally: Tally,
    /// Boxed, since nobody asks for it most of the time.
    pace: Option<Box<Pace>>,
}

/// The counts of a client at two moments: of those, the older is subtracted from the present ones.
struct Pace {
    older: Mark,
    newer: Mark,
}

/// The counts of a client at a moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Time,
    requests: u64,
    bytes: u64,
}

/// What a client has done in the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// The length of this time, in microseconds.
    pub us: u64,
    pub requests: u64,
    /// Bytes from and to it.
    pub bytes: u64,
}

impl Record {
    pub(super) fn new(now: Time) -> Record {
        Record { tally: Tally { came: now, active: now, ..Tally::default() }, pace: None }
    }

    /// Returns the number of the client that was accepted last. The counter stays when a worker
    /// dies, so its successor gives out other numbers.
    pub(super) fn new_id(base: &Base) -> u64 {
        base.worker.value(WorkerCounter::Accepts) << WORKER_BITS | base.metrics.slot() as u64
    }

    fn mark(&self, at: Time) -> Mark {
        let Tally { requests, received, sent, .. } = self.tally;
        Mark { at, requests, bytes: received + sent }
    }

    /// Begins to measure the last seconds now; those of a new client begin when it came.
    pub(super) fn begin_pace(&mut self, now: Time) {
        let came = Mark { at: self.tally.came, requests: 0, bytes: 0 };
        let is_new = now.since(came.at) < 2 * PACE_US;
        let mark = if is_new { came } else { self.mark(now) };
        self.pace = Some(Box::new(Pace { older: mark, newer: mark }));
    }

    /// Returns what it has done in the last seconds.
    pub(super) fn recent(&mut self, now: Time) -> Recent {
        // One that nobody has asked for yet came lately, or was handed over.
        if self.pace.is_none() {
            self.begin_pace(now);
        }
        let present = self.mark(now);
        let Some(pace) = &mut self.pace else { return Recent::default() };
        if now.since(pace.newer.at) >= PACE_US {
            (pace.older, pace.newer) = (pace.newer, present);
        }
        Recent {
            us: now.since(pace.older.at),
            requests: present.requests - pace.older.requests,
            bytes: present.bytes - pace.older.bytes,
        }
    }
}

impl Client {
    /// Returns what it has done so far.
    pub(super) fn tally(&self) -> Tally {
        Tally { active: self.received, ..self.record.tally }
    }

    /// Notes a stall that did not happen: the rest of a request came at once after its ACK.
    pub(super) fn note_rest(&mut self, base: &mut Base, id: ConnId) {
        let flushed = std::mem::replace(&mut self.flushed, UNSENT);
        if flushed == UNSENT {
            return;
        }
        let late_us = base.now.since(flushed);
        if late_us <= limits::STALL_CURED_US {
            base.pools[self.pool as usize].counters.add(PoolCounter::StallsCured, 1);
        }
        let is_late = late_us > limits::STALL_CURED_US;
        base.actions.push_back(Action::InPieces { client: id, late_us, is_late });
    }
}

impl Clients {
    /// Notes that the request that was read last stands for so many.
    pub(super) fn note_joined(&mut self, id: ConnId, requests: u64) {
        if let Some(client) = self.table.find_mut(id) {
            client.record.tally.requests += requests - 1;
        }
    }
}

/// The number of bits of a client's number that identify a worker.
const WORKER_BITS: u32 = 10;
/// The last seconds are one or two of these if they are asked for often, and three at most.
const PACE_US: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn the_last_seconds_are_between_five_and_ten_while_somebody_asks() {
        let mut record = Record::new(Time(0));
        record.tally.requests = 1_000;
        record.begin_pace(Time(100 * SECOND));
        for second in 1..=60 {
            record.tally.requests += 10;
            let Recent { us, requests, .. } = record.recent(Time((100 + second) * SECOND));
            assert_eq!(requests * SECOND, us * 10, "at {second} s");
            assert!(us <= 10 * SECOND && (us >= 5 * SECOND || second < 5), "{us} at {second} s");
        }
    }

    #[test]
    fn all_that_a_new_client_has_done_is_of_the_last_seconds() {
        let mut record = Record::new(Time(50 * SECOND));
        record.tally.received = 7;
        assert_eq!(record.recent(Time(51 * SECOND)), Recent { us: SECOND, requests: 0, bytes: 7 });
        let mut old = Record::new(Time(0));
        old.tally.requests = 7;
        assert_eq!(old.recent(Time(51 * SECOND)), Recent::default());
    }
}
