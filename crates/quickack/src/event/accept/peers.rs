//! The other workers that take clients from the same listeners: how many clients each has, and how
//! to wake it.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::scoreboard::Scoreboard;

/// The workers, seen by one of them.
pub struct Peers {
    pub scoreboard: Scoreboard,
    /// Our own slot.
    pub slot: usize,
    /// The wakeup of each of them, by slot; our own among them.
    pub wakeups: Rc<RefCell<Vec<OwnedFd>>>,
}

impl Peers {
    /// The worker with the fewest clients of those that serve and that `counts` lets pass.
    pub fn fewest(&self, counts: impl Fn(usize, u32) -> bool) -> Option<(usize, u32)> {
        let serving = (0..self.scoreboard.slots()).filter(|slot| self.scoreboard.is_serving(*slot));
        let known = serving.map(|slot| (slot, self.scoreboard.connections(slot)));
        known.filter(|(slot, clients)| counts(*slot, *clients)).min_by_key(|(_, clients)| *clients)
    }

    /// Lets another worker look at the listeners.
    pub fn wake(&self, slot: usize) {
        if slot != self.slot
            && let Some(wakeup) = self.wakeups.borrow().get(slot)
        {
            sys::wakeup::wake(wakeup);
        }
    }

    /// Lets all others look.
    pub fn wake_all(&self) {
        let serving = (0..self.scoreboard.slots()).filter(|slot| self.scoreboard.is_serving(*slot));
        serving.for_each(|slot| self.wake(slot));
    }
}
