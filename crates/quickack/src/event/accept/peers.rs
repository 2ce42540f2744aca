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

/// A worker and the number of its clients.
#[derive(Clone, Copy)]
pub struct Load {
    pub slot: usize,
    pub clients: u32,
}

impl Peers {
    /// The worker with the fewest clients of those that serve and that `counts` lets pass.
    pub fn fewest(&self, counts: impl Fn(Load) -> bool) -> Option<Load> {
        let serving = (0..self.scoreboard.slots()).filter(|slot| self.scoreboard.is_serving(*slot));
        let loads = serving.map(|slot| Load { slot, clients: self.scoreboard.connections(slot) });
        loads.filter(|load| counts(*load)).min_by_key(|load| load.clients)
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
