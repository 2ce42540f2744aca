//! What is due when. A timer may come too early, never too late: whoever is called looks at its own
//! deadline and asks again. So a deadline that moves with every reply costs nothing to move.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Time;
use crate::id::ConnId;

/// Whom a timer wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A link's deadlines.
    Link(ConnId),
    /// The probe of a server, by pool and server.
    Probe { pool: u32, server: u32 },
    /// A server that owes answers may have been silent for too long; by pool and server.
    Silence { pool: u32, server: u32 },
    /// A request is asked again of which its server has excused itself.
    Again { row: u32 },
    /// The clients of a pool that has left the plan have had their time; by the pool's row.
    Retire { row: u32 },
    /// Failed logins to a pool are to be told of; by its row.
    Logins { row: u32 },
    /// What is "now" is to be written into the book.
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

    /// The next timer that is due, and for when it was set: whoever has set another since then
    /// must not take this one for it.
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
