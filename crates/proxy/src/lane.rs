//! The connection keys of a pool. The handshake on a link holds for everything that follows on it,
//! so requests that need another handshake have links of their own.

use proto::Lane;

use crate::limits;

/// The connection keys in use, each with its number of clients.
pub(crate) struct Lanes {
    lanes: Vec<(Lane, usize)>,
    /// The connection key with which new clients begin, and servers are probed.
    pub(crate) home: u16,
}

impl Lanes {
    pub(crate) fn new(home: Lane) -> Lanes {
        Lanes { lanes: vec![(home, 0)], home: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn of(&self, place: u16) -> Lane {
        self.lanes[usize::from(place)].0
    }

    pub(crate) fn find(&self, lane: Lane) -> Option<u16> {
        self.lanes.iter().position(|(one, _)| *one == lane).map(|at| at as u16)
    }

    /// Returns an index for a new connection key. When there are as many as there may be, it takes
    /// the index of one that no client uses and that has no link (`is_unused`).
    pub(crate) fn make(&mut self, lane: Lane, is_unused: impl Fn(u16) -> bool) -> Option<u16> {
        if self.lanes.len() < limits::LANES_MAX {
            self.lanes.push((lane, 0));
            return Some((self.lanes.len() - 1) as u16);
        }
        let is_free = |at: &usize| {
            *at != usize::from(self.home) && self.lanes[*at].1 == 0 && is_unused(*at as u16)
        };
        let at = (0..self.lanes.len()).find(is_free)?;
        self.lanes[at].0 = lane;
        Some(at as u16)
    }

    /// Returns the indexes of connection keys that no client uses.
    pub(crate) fn left(&self) -> Vec<u16> {
        let is_left = |at: &u16| *at != self.home && self.lanes[usize::from(*at)].1 == 0;
        (0..self.lanes.len() as u16).filter(is_left).collect()
    }

    /// Makes this the connection key that clients begin with, however many there are.
    pub(crate) fn set_home(&mut self, lane: Lane) {
        let place = self.find(lane).unwrap_or_else(|| {
            self.lanes.push((lane, 0));
            (self.lanes.len() - 1) as u16
        });
        self.home = place;
    }

    /// Counts a client that now uses this connection key.
    pub(crate) fn enter(&mut self, place: u16) {
        self.lanes[usize::from(place)].1 += 1;
    }

    /// Removes a client from this connection key; returns whether it was the last.
    pub(crate) fn leave(&mut self, place: u16) -> bool {
        let clients = &mut self.lanes[usize::from(place)].1;
        *clients -= 1;
        *clients == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(space: u32) -> Lane {
        Lane { dialect: 2, space }
    }

    #[test]
    fn there_are_so_many_lanes_and_an_unused_place_is_taken_again() {
        let mut lanes = Lanes::new(lane(0));
        for space in 1..limits::LANES_MAX as u32 {
            let place = lanes.make(lane(space), |_| false).unwrap();
            lanes.enter(place);
            assert_eq!((lanes.find(lane(space)), lanes.of(place)), (Some(place), lane(space)));
        }
        assert_eq!(lanes.make(lane(1000), |_| true), None, "all are in use");
        assert!(lanes.leave(7));
        assert_eq!(lanes.make(lane(1000), |_| false), None, "links are left in it");
        assert_eq!(lanes.make(lane(1000), |_| true), Some(7));
        assert_eq!((lanes.find(lane(7)), lanes.of(7)), (None, lane(1000)));
    }
}
