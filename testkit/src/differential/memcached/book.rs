//! The known cas numbers: memcached's own by key, and each one's equivalent on another side.

use std::collections::HashMap;
use std::time::Instant;

use super::excuses::Behind;
use super::reply::{Reply, Word};
use crate::random::Random;

/// The numbers that memcached has given.
pub struct Given {
    by_key: Vec<Vec<u64>>,
}

impl Given {
    pub fn new(keys: usize) -> Given {
        Given { by_key: vec![Vec::new(); keys] }
    }

    pub fn note(&mut self, key: usize, cas: u64) {
        let numbers = &mut self.by_key[key];
        if numbers.last() != Some(&cas) {
            numbers.push(cas);
        }
        if numbers.len() > KEPT {
            numbers.remove(0);
        }
    }

    /// Returns usually the last number of a key, sometimes an earlier one or one that was never
    /// given.
    pub fn pick(&self, key: usize, random: &mut Random) -> u64 {
        let numbers = &self.by_key[key];
        match random.below(20) {
            0 | 1 => (1 << 62) + random.below(1 << 20) as u64,
            2..5 if !numbers.is_empty() => *random.pick(numbers),
            _ => numbers.last().copied().unwrap_or(1 << 61),
        }
    }
}

/// The numbers that another side has given in place of memcached's.
pub struct Translated {
    /// None for memcached itself, which needs no mapping.
    behind: Option<Behind>,
    theirs: HashMap<u64, u64>,
    /// The reverse mapping, if one server gives each number only once.
    ours: Option<HashMap<u64, u64>>,
    begun: Instant,
}

impl Translated {
    pub fn new(behind: Option<Behind>) -> Translated {
        let is_one_server = behind != Some(Behind::Four);
        Translated {
            behind,
            theirs: HashMap::new(),
            ours: is_one_server.then(HashMap::new),
            begun: Instant::now(),
        }
    }

    /// Returns this side's number for one of memcached's. A number without an equivalent, because
    /// this side has sent fewer answers, must not equal one of its own.
    pub fn own(&self, cas: u64) -> u64 {
        let unknown = if self.behind.is_some() { cas | NOBODYS } else { cas };
        self.theirs.get(&cas).copied().unwrap_or(unknown)
    }

    pub fn known(&self) -> usize {
        self.theirs.len()
    }

    /// Returns the index of the first different answer; learns new numbers.
    pub fn difference(&mut self, direct: &[Reply], ours: &[Reply]) -> Option<usize> {
        let both = direct.iter().zip(ours);
        let at = both.clone().position(|(direct, ours)| !self.same_reply(direct, ours));
        at.or_else(|| (direct.len() != ours.len()).then_some(both.len()))
    }

    fn same_reply(&mut self, direct: &Reply, ours: &Reply) -> bool {
        direct.body == ours.body
            && direct.words.len() == ours.words.len()
            && direct.words.iter().zip(&ours.words).all(|pair| self.same_word(pair))
    }

    fn same_word(&mut self, pair: (&Word, &Word)) -> bool {
        match pair {
            (Word::Cas(direct), Word::Cas(ours)) => self.same_cas(*direct, *ours),
            (Word::Time(direct), Word::Time(ours)) => self.same_time(*direct, *ours),
            (direct, ours) => direct == ours,
        }
    }

    fn same_cas(&mut self, direct: u64, ours: u64) -> bool {
        if direct == 0 || ours == 0 {
            return direct == ours;
        }
        let known = *self.theirs.entry(direct).or_insert(ours);
        let back = self.ours.as_mut().map_or(direct, |map| *map.entry(ours).or_insert(direct));
        known == ours && back == direct
    }

    /// All expiry times are far away, so a live item has more than a few seconds left; -1 is for
    /// ever. An expiry beyond 2038 exists only in binary; in text it is sent as 2038, and shown
    /// truncated to 32 bits. memcached does not note each access, so an item may have been idle for
    /// as long as it is there.
    fn same_time(&self, direct: i64, ours: i64) -> bool {
        let apart = SECONDS_APART + self.begun.elapsed().as_secs();
        let far = direct.unsigned_abs().min(ours.unsigned_abs()) > YEARS;
        let near = direct != -1 && ours != -1 && direct.abs_diff(ours) <= apart;
        direct == ours || far || near
    }
}

const NOBODYS: u64 = 1 << 60;

/// Numbers remembered for each key.
const KEPT: usize = 6;

const SECONDS_APART: u64 = 5;

/// About eight years, in seconds.
const YEARS: u64 = 250_000_000;
