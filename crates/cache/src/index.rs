//! The index: maps a key's hash to a place in the arena through at most two adjacent cache lines.
//!
//! ```text
//!   pair    | tag x 12, spilled, guests, place x 12 | tag x 12, spilled, guests, place x 12 |
//!             64 bytes: half of the keys' home        64 bytes: the other half's
//! ```
//!
//! An entry lies in its home bucket or, as a guest, in the bucket beside it. `spilled` counts a
//! bucket's own entries in the other one, so most lookups read one line. An entry is an item's
//! place or a ghost. A ghost is the fingerprint of a key that was evicted before any request for
//! it; it occupies an entry that is free at the moment.

/// Entries in a bucket.
const LANES: usize = 12;
/// A tag that no entry has.
const FREE: u8 = 0;
/// Marks a ghost; the other bits are an age and a fingerprint.
const GHOST: u32 = 1 << 31;
const AGE_SHIFT: u32 = 23;
const FINGERPRINT: u32 = (1 << AGE_SHIFT) - 1;
/// Ghosts are dated by generation. This many generations make up the memory of one full `main`.
const GENERATIONS: u32 = 8;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; LANES],
    /// Number of entries at home here that lie in the other bucket.
    spilled: u16,
    /// One bit per lane, set if the entry's home is the other bucket.
    guests: u16,
    places: [u32; LANES],
}

const EMPTY: Bucket = Bucket { tags: [FREE; LANES], spilled: 0, guests: 0, places: [0; LANES] };

/// The whole table.
pub struct Index {
    buckets: Vec<Bucket>,
    generation: u8,
    /// Ghosts made in this generation.
    made: u32,
}

/// The position of an entry in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    bucket: u32,
    lane: u8,
}

impl Index {
    /// Bytes of a pair of buckets; the size of the index is a multiple of it.
    pub const PAIR_LEN: usize = 2 * size_of::<Bucket>();

    pub fn new(pairs: usize) -> Index {
        assert!(pairs > 0);
        Index { buckets: vec![EMPTY; pairs * 2], generation: 0, made: 0 }
    }

    /// Removes all entries, ghosts included.
    pub fn clear(&mut self) {
        self.buckets.fill(EMPTY);
    }

    /// Finds the item with that hash's tag whose place `is_it` accepts.
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<(Cursor, u32)> {
        self.search(hash, |place| place & GHOST == 0 && is_it(place))
    }

    /// Returns whether that hash has a ghost that is not too old, and removes the ghost.
    pub fn exorcise(&mut self, hash: u64) -> bool {
        let fingerprint = fingerprint(hash);
        let Some((cursor, ghost)) =
            self.search(hash, |place| place & GHOST != 0 && place & FINGERPRINT == fingerprint)
        else {
            return false;
        };
        self.remove(cursor);
        u32::from(self.age(ghost)) <= GENERATIONS
    }

    /// Inserts an item. If the pair of buckets is full of items, one of them is displaced and
    /// returned.
    pub fn insert(&mut self, hash: u64, at: u32) -> Option<u32> {
        debug_assert_eq!(at & GHOST, 0);
        let home = self.home(hash);
        let cursor = self
            .free_lane(home)
            .or_else(|| self.free_lane(home ^ 1))
            .or_else(|| self.oldest_ghost(home))
            .or_else(|| self.oldest_ghost(home ^ 1))
            .unwrap_or(Cursor { bucket: home, lane: ((hash >> 8) % LANES as u64) as u8 });
        let displaced = self.occupant(cursor);
        self.remove(cursor);
        let bucket = &mut self.buckets[cursor.bucket as usize];
        bucket.tags[usize::from(cursor.lane)] = tag(hash);
        bucket.places[usize::from(cursor.lane)] = at;
        if cursor.bucket != home {
            bucket.guests |= 1 << cursor.lane;
            self.buckets[home as usize].spilled += 1;
        }
        displaced
    }

    /// Records the new place of an item.
    pub fn relocate(&mut self, cursor: Cursor, at: u32) {
        debug_assert_eq!(at & GHOST, 0);
        self.buckets[cursor.bucket as usize].places[usize::from(cursor.lane)] = at;
    }

    /// Removes an entry.
    pub fn remove(&mut self, cursor: Cursor) {
        let bucket = &mut self.buckets[cursor.bucket as usize];
        bucket.tags[usize::from(cursor.lane)] = FREE;
        let guest = 1 << cursor.lane;
        if bucket.guests & guest != 0 {
            bucket.guests &= !guest;
            self.buckets[cursor.bucket as usize ^ 1].spilled -= 1;
        }
    }

    /// Turns an item's entry into its ghost. `remembered` is the number of ghosts that must remain
    /// distinguishable from older ones.
    pub fn haunt(&mut self, cursor: Cursor, hash: u64, remembered: u32) {
        self.made += 1;
        if self.made > remembered / GENERATIONS {
            self.made = 0;
            self.generation = self.generation.wrapping_add(1);
        }
        let age = u32::from(self.generation) << AGE_SHIFT;
        let ghost = GHOST | age | fingerprint(hash);
        self.buckets[cursor.bucket as usize].places[usize::from(cursor.lane)] = ghost;
    }

    fn search(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<(Cursor, u32)> {
        let home = self.home(hash);
        let found = self.search_bucket(home, hash, &is_it);
        if found.is_some() || self.buckets[home as usize].spilled == 0 {
            return found;
        }
        self.search_bucket(home ^ 1, hash, &is_it)
    }

    fn search_bucket(
        &self,
        number: u32,
        hash: u64,
        is_it: impl Fn(u32) -> bool,
    ) -> Option<(Cursor, u32)> {
        let bucket = &self.buckets[number as usize];
        let mut lanes = bucket.lanes_with(tag(hash));
        while lanes != 0 {
            let lane = lanes.trailing_zeros() / 8;
            let place = bucket.places[lane as usize];
            if is_it(place) {
                return Some((Cursor { bucket: number, lane: lane as u8 }, place));
            }
            lanes &= lanes - 1;
        }
        None
    }

    fn free_lane(&self, bucket: u32) -> Option<Cursor> {
        let lanes = self.buckets[bucket as usize].lanes_with(FREE);
        (lanes != 0).then(|| Cursor { bucket, lane: (lanes.trailing_zeros() / 8) as u8 })
    }

    fn oldest_ghost(&self, number: u32) -> Option<Cursor> {
        let places = &self.buckets[number as usize].places;
        let ghosts = places.iter().enumerate().filter(|(_, place)| **place & GHOST != 0);
        let (lane, _) = ghosts.max_by_key(|(_, ghost)| self.age(**ghost))?;
        Some(Cursor { bucket: number, lane: lane as u8 })
    }

    /// Returns the item at `cursor`, or None if the entry is free or a ghost.
    fn occupant(&self, cursor: Cursor) -> Option<u32> {
        let bucket = &self.buckets[cursor.bucket as usize];
        let place = bucket.places[usize::from(cursor.lane)];
        (bucket.tags[usize::from(cursor.lane)] != FREE && place & GHOST == 0).then_some(place)
    }

    fn age(&self, ghost: u32) -> u8 {
        self.generation.wrapping_sub((ghost >> AGE_SHIFT) as u8)
    }

    /// Returns the home bucket. The high half of the hash selects it; the low half gives tag and
    /// fingerprint.
    fn home(&self, hash: u64) -> u32 {
        (((hash >> 32) * self.buckets.len() as u64) >> 32) as u32
    }
}

impl Bucket {
    /// Returns the lanes with that tag, each as the top bit of its byte: twelve comparisons at
    /// once.
    fn lanes_with(&self, tag: u8) -> u128 {
        const ONES: u128 = u128::from_ne_bytes([1; 16]);
        const LOW: u128 = ONES * 0x7f;
        const REAL: u128 = (1 << (LANES * 8)) - 1;
        let mut bytes = [0; 16];
        bytes[..LANES].copy_from_slice(&self.tags);
        let differ = u128::from_le_bytes(bytes) ^ (ONES * u128::from(tag));
        !(((differ & LOW) + LOW) | differ | LOW) & REAL
    }
}

/// Eight bits of the hash that distinguish most keys of a bucket; never `FREE`.
fn tag(hash: u64) -> u8 {
    (hash as u8).max(1)
}

fn fingerprint(hash: u64) -> u32 {
    (hash >> 8) as u32 & FINGERPRINT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a hash whose home is bucket 0 and whose other bits are `low`.
    fn at_home(low: u32) -> u64 {
        u64::from(low)
    }

    #[test]
    fn a_full_bucket_spills_next_door_and_a_full_pair_displaces() {
        // The home is the pair's first bucket, then its second.
        for upper in [0, u64::MAX << 32] {
            let mut index = Index::new(1);
            let at_home = |low| upper | at_home(low);
            for number in 0..24 {
                assert_eq!(index.insert(at_home(number + 1), number), None);
            }
            for number in 0..24 {
                let found = index.find(at_home(number + 1), |at| at == number);
                assert_eq!(found.map(|(_, at)| at), Some(number));
            }
            let displaced = index.insert(at_home(100), 100).expect("the pair is full");
            assert!(index.find(at_home(displaced + 1), |at| at == displaced).is_none());
            assert!(index.find(at_home(100), |at| at == 100).is_some());
        }
    }

    #[test]
    fn a_fingerprint_leaves_the_other_bits_of_a_place_alone() {
        assert_eq!(fingerprint(0x1234_5678), 0x0012_3456 & FINGERPRINT);
        assert_eq!(fingerprint(u64::MAX), FINGERPRINT);
        assert_eq!(fingerprint(0xff), 0);
    }

    /// Lanes are used in turn, so that keys chosen to collide displace only each other.
    #[test]
    fn the_bits_above_the_tag_say_who_is_displaced() {
        for chosen in 0..LANES as u32 {
            let mut index = Index::new(1);
            (0..24).for_each(|number| assert_eq!(index.insert(at_home(number + 1), number), None));
            let hash = at_home((chosen + 2 * LANES as u32) << 8 | 77);
            assert_eq!(index.insert(hash, 99), Some(chosen));
        }
    }

    #[test]
    fn a_removed_guest_is_no_longer_looked_for() {
        let mut index = Index::new(1);
        for number in 0..13 {
            index.insert(at_home(number + 1), number);
        }
        let (cursor, _) = index.find(at_home(13), |at| at == 12).expect("it was entered");
        assert_eq!((cursor.bucket, index.buckets[0].spilled), (1, 1));
        index.remove(cursor);
        assert_eq!((index.buckets[0].spilled, index.buckets[1].guests), (0, 0));
    }

    #[test]
    fn a_ghost_is_found_once_and_makes_way_for_an_item() {
        let mut index = Index::new(1);
        for number in 0..24 {
            index.insert(at_home(number + 1), number);
        }
        for number in [3, 4] {
            let hash = at_home(number + 1);
            let (cursor, _) = index.find(hash, |at| at == number).expect("it was entered");
            index.haunt(cursor, hash, 100);
            assert!(index.find(hash, |_| true).is_none());
        }
        assert!(index.exorcise(at_home(4)) && !index.exorcise(at_home(4)));
        assert_eq!(index.insert(at_home(200), 200), None);
        assert_eq!(index.insert(at_home(201), 201), None);
        assert!(!index.exorcise(at_home(5)), "an item took the ghost's place");
    }

    /// Turns an item with that hash into a ghost.
    fn haunt(index: &mut Index, hash: u64, remembered: u32) {
        index.insert(hash, 7);
        let (cursor, _) = index.find(hash, |at| at == 7).expect("it was entered");
        index.haunt(cursor, hash, remembered);
    }

    #[test]
    fn a_ghost_is_another_keys_if_one_bit_of_its_hash_differs() {
        let key = at_home(0x0012_3456);
        for bit in 8..31 {
            let mut index = Index::new(1);
            haunt(&mut index, key, 100);
            assert!(!index.exorcise(key ^ 1 << bit), "bit {bit}");
            assert!(index.exorcise(key));
        }
    }

    #[test]
    fn as_many_ghosts_are_told_from_older_ones_as_was_asked_for() {
        for remembered in [80, 800, 8_000] {
            let fate = |younger: u32| {
                let mut index = Index::new(4096);
                haunt(&mut index, at_home(1), remembered);
                let spread = |number: u32| u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // In the upper half of the index, away from the first.
                (1..=younger).for_each(|number| {
                    haunt(&mut index, 1 << 63 | spread(number), remembered);
                });
                index.exorcise(at_home(1))
            };
            assert!(fate(remembered), "{remembered}");
            assert!(!fate(remembered * 3 / 2), "{remembered}");
        }
    }

    /// The oldest ghost is replaced, even after the generations have wrapped to zero.
    #[test]
    fn the_oldest_ghost_makes_way_for_an_item() {
        for begun in [0, 253, 255] {
            let mut index = Index::new(1);
            index.generation = begun;
            (1..=24).for_each(|number| haunt(&mut index, at_home(number), 0));
            // The home's lanes were used first, so they hold the oldest.
            for number in 1..=3 {
                assert_eq!(index.insert(at_home(100 + number), number), None);
                let ages = index.buckets[0].places.map(|place| place & GHOST != 0);
                assert_eq!(ages.iter().filter(|ghost| !**ghost).count(), number as usize);
                assert!(ages[..number as usize].iter().all(|ghost| !ghost), "{ages:?}");
            }
        }
    }

    #[test]
    fn an_old_ghost_is_forgotten() {
        let mut index = Index::new(64);
        index.insert(at_home(1), 1);
        let (cursor, _) = index.find(at_home(1), |_| true).expect("it was entered");
        index.haunt(cursor, at_home(1), 16);
        for number in 0..40 {
            let hash = u64::MAX - number;
            index.insert(hash, 7);
            let (cursor, _) = index.find(hash, |at| at == 7).expect("it was entered");
            index.haunt(cursor, hash, 16);
        }
        assert!(!index.exorcise(at_home(1)));
    }
}
