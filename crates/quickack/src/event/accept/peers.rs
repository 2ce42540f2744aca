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
    /// What wakes each of them, by slot; our own among them.
    pub pokes: Rc<RefCell<Vec<OwnedFd>>>,
}

impl Peers {
    /// The worker with the fewest clients of those that serve and that `counts` lets pass.
    pub fn fewest(&self, counts: impl Fn(usize, u32) -> bool) -> Option<(usize, u32)> {
        let serving = (0..self.scoreboard.slots()).filter(|slot| self.scoreboard.is_serving(*slot));
        let known = serving.map(|slot| (slot, self.scoreboard.connections(slot)));
        known.filter(|(slot, clients)| counts(*slot, *clients)).min_by_key(|(_, clients)| *clients)
    }

    /// Lets another worker look at the listeners.
    pub fn poke(&self, slot: usize) {
        if slot != self.slot
            && let Some(poke) = self.pokes.borrow().get(slot)
        {
            sys::poke::poke(poke);
        }
    }

    /// Lets all others look.
    pub fn poke_all(&self) {
        let serving = (0..self.scoreboard.slots()).filter(|slot| self.scoreboard.is_serving(*slot));
        serving.for_each(|slot| self.poke(slot));
    }
}
