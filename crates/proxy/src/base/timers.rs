//! Timers. A timer may fire too early, never too late: its owner checks its own deadline and sets
//! another timer if need be. So a deadline that moves with every reply costs nothing to move.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ServerAt;
use super::id::ConnId;
use super::part::RequestId;
use crate::Time;

/// The owner and the purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A link's deadlines.
    Link(ConnId),
    /// A link that its client has kept, or a spare one, may have had its time.
    Kept(ConnId),
    /// The probe of a server.
    Probe(ServerAt),
    /// A server that owes answers may have been silent for too long.
    Silence(ServerAt),
    /// Subscriptions may be made again at a server.
    Topics(ServerAt),
    /// A request is sent again after a retryable error.
    Again(RequestId),
    /// The clients of a pool that has left the plan have had their time; by pool id.
    Retire { id: u32 },
    /// Failed logins to a pool are to be reported; by pool id.
    Logins { id: u32 },
    /// A client may have waited for a server as long as its request may.
    Wait(ConnId),
    /// A client that was stopped may still take nothing.
    Ahead(ConnId),
    /// Clients of a tenant may find that they are within its limits again; by tenant id.
    Tenant { id: u32 },
    /// A login may have its turn, in the line of an address with this word.
    LoginLine { at: u32 },
    /// Clients may be held by a pause that has ended.
    Pause,
    /// Clients are to be shown what others ask.
    Monitor,
    /// Gauges are to be written to the metrics registry.
    Publish,
}

/// All timers.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Due)>>,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Time, due: Due) {
        self.heap.push(Reverse((at, due)));
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the next timer that is due, and the time for which it was set. If its owner has set
    /// another since then, the owner must ignore this one.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, Due)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(timer)| timer)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}
