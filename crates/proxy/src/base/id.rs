//! Ids that cannot go stale: a slot and the generation of its content.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A connection of a client or of a link. It is safe to keep the id when the connection has gone:
/// it then refers to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    /// The slot; the top bit marks a link.
    slot: u32,
    generation: u32,
}

const LINK_BIT: u32 = 1 << 31;

/// A table by id. Nobody outside chooses ids, so a plain hash is enough, and a run with the same
/// seed stays the same.
pub(crate) type IdMap<T> = HashMap<ConnId, T, BuildHasherDefault<IdHasher>>;

#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(32) ^ u64::from(number)).wrapping_mul(HASH_FACTOR);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// An odd number with its bits spread.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl ConnId {
    /// The id of a client that never exists.
    pub(crate) const NONE: ConnId = ConnId { slot: LINK_BIT - 1, generation: u32::MAX };

    pub fn is_client(self) -> bool {
        self.slot & LINK_BIT == 0
    }

    /// Returns the side that it belongs to.
    pub fn side(self) -> Side {
        if self.is_client() { Side::Client } else { Side::Link }
    }

    /// Returns the index among the clients or among the links, which is reused after the connection
    /// has gone.
    pub fn index(self) -> usize {
        (self.slot & !LINK_BIT) as usize
    }

    /// Returns the id as one number, for a kernel's event.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Returns the id from a number that `to_u64` made.
    pub fn from_u64(number: u64) -> ConnId {
        ConnId { slot: number as u32, generation: (number >> 32) as u32 }
    }
}

/// The side of the proxy that a connection is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Link,
}

/// Connections by id.
pub(crate) struct Slab<T> {
    side: Side,
    places: Vec<Place<T>>,
    free: Vec<u32>,
    len: usize,
}

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(side: Side) -> Slab<T> {
        Slab { side, places: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(crate) fn insert(&mut self, value: T) -> ConnId {
        self.len += 1;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                assert!(self.places.len() < LINK_BIT as usize, "ids are exhausted");
                self.places.push(Place { generation: 0, value: None });
                (self.places.len() - 1) as u32
            }
        };
        let place = &mut self.places[slot as usize];
        assert!(place.value.is_none(), "a free slot is empty");
        place.value = Some(value);
        let bit = if self.side == Side::Link { LINK_BIT } else { 0 };
        ConnId { slot: slot | bit, generation: place.generation }
    }

    pub(crate) fn remove(&mut self, id: ConnId) -> Option<T> {
        let place = self.places.get_mut(id.index())?;
        if place.generation != id.generation {
            return None;
        }
        let value = place.value.take()?;
        // Only half of all numbers: the driver has other uses for the rest.
        place.generation = (place.generation + 1) & (u32::MAX >> 1);
        self.free.push(id.index() as u32);
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn find(&self, id: ConnId) -> Option<&T> {
        let place = self.places.get(id.index())?;
        if place.generation == id.generation { place.value.as_ref() } else { None }
    }

    pub(crate) fn find_mut(&mut self, id: ConnId) -> Option<&mut T> {
        let place = self.places.get_mut(id.index())?;
        if place.generation == id.generation { place.value.as_mut() } else { None }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of places, most of which are taken.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns what has this place.
    pub(crate) fn at_mut(&mut self, slot: usize) -> Option<(ConnId, &mut T)> {
        let bit = if self.side == Side::Link { LINK_BIT } else { 0 };
        let place = self.places.get_mut(slot)?;
        let id = ConnId { slot: slot as u32 | bit, generation: place.generation };
        place.value.as_mut().map(|value| (id, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnId, &T)> {
        let bit = if self.side == Side::Link { LINK_BIT } else { 0 };
        self.places.iter().enumerate().filter_map(move |(slot, place)| {
            let id = ConnId { slot: slot as u32 | bit, generation: place.generation };
            place.value.as_ref().map(|value| (id, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_does_not_answer_to_its_old_name() {
        let mut slab = Slab::new(Side::Link);
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(first.index(), second.index());
        assert_eq!(slab.find(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.find(second), Some(&'b'));
        assert_eq!(ConnId::from_u64(second.to_u64()), second);
        assert!(!second.is_client());
    }
}
