//! The parts of all random requests: a key of the lane, a value, an expiry, a cas number.

use std::collections::BTreeMap;

use super::binary;
use super::book::Given;
use super::excuses::Skip;
use super::keys::{Key, LANES};
use super::request::{Mark, Request, Wire};
use super::{classic, meta};
use crate::random::Random;

pub struct Maker<'a> {
    pub random: &'a mut Random,
    pub keys: &'a [Key],
    pub given: &'a Given,
    /// The lane whose keys are used; None for all keys.
    pub lane: Option<usize>,
    /// Number of requests left out, by reason.
    pub skipped: &'a mut BTreeMap<Skip, usize>,
    /// The next opaque to use.
    pub opaque: &'a mut u32,
}

/// `item_size_max` of the pools: above memcached's limit, so that memcached's own refusals are
/// tested.
const ITEM_SIZE_MAX: usize = 2 << 20;

impl Maker<'_> {
    pub fn request(&mut self, wire: Wire) -> Request {
        match wire {
            Wire::Binary => binary::request(self),
            Wire::Text if self.random.below(5) < 2 => classic::request(self),
            Wire::Text => meta::request(self),
        }
    }

    /// Counts a request that is left out; always returns false.
    pub fn skips(&mut self, what: Skip) -> bool {
        *self.skipped.entry(what).or_default() += 1;
        false
    }

    /// Returns one of the lane's keys.
    pub fn key(&mut self, fits: impl Fn(&Key) -> bool) -> usize {
        loop {
            let at = match self.lane {
                Some(lane) => self.random.below(self.keys.len() / LANES) * LANES + lane,
                None => self.random.below(self.keys.len()),
            };
            if fits(&self.keys[at]) {
                return at;
            }
        }
    }

    /// Returns one of the words.
    pub fn word(&mut self, words: &[&'static str]) -> &'static str {
        let word: &&str = self.random.pick(words);
        word
    }

    pub fn exptime(&mut self) -> &'static str {
        self.word(&["0", "0", "0", "0", "2000", "9000", "-1", "2592001", "2000000000"])
    }

    /// A time as text may write it, but rarely does.
    pub fn exptime_text(&mut self) -> &'static str {
        match self.random.below(4) {
            0 => {
                self.word(&["+2000", "-0", "2147483648", "4294967296", "0000000000000000000002000"])
            }
            _ => self.exptime(),
        }
    }

    pub fn flags(&mut self) -> u32 {
        *self.random.pick(&[0, 0, 0, 1, 7, 65_536, u32::MAX])
    }

    pub fn delta(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.random.number() >> self.random.range(34, 63),
            _ => self.random.below(200) as u64,
        }
    }

    /// Returns the initial value of a counter.
    pub fn initial(&mut self) -> u64 {
        self.delta().max(1)
    }

    pub fn cas(&mut self, key: usize) -> u64 {
        self.given.pick(key, self.random)
    }

    pub fn next_opaque(&mut self) -> u32 {
        *self.opaque += 1;
        *self.opaque
    }

    /// Returns a value for a key, for a store or to be joined to the old value. A huge one marks
    /// its request.
    pub fn value(&mut self, key: usize, joined: bool, request: &mut Request) -> Vec<u8> {
        if !self.keys[key].counted {
            return self.any_value(request);
        }
        match self.random.below(10) {
            0 => {
                // If such a value arrives in several pieces, memcached first answers that it is not
                // a number.
                let mut value = self.bytes(20_000);
                value.insert(0, b'v');
                value
            }
            1 => self.word(&["word", "x1", "12x", "1000000x"]).into(),
            6.. if joined => self.word(&["x", "word"]).into(),
            // Numbers stay far below 2^63.
            2..6 if joined => self.random.range(1, 9).to_string().into(),
            // Not 0, which would become a leading zero once something is appended.
            _ => (self.random.number() >> self.random.range(34, 63)).max(1).to_string().into(),
        }
    }

    fn any_value(&mut self, request: &mut Request) -> Vec<u8> {
        match self.random.below(2_000) {
            0..300 => self.odd_number(),
            300..1_700 => self.bytes(120),
            1_700..1_940 => self.bytes(4_000),
            1_940..1_990 => self.bytes(20_000),
            1_990..1_998 => {
                let len = self.random.range(64 << 10, 300 << 10);
                self.bytes_of(len)
            }
            _ => {
                let len = match self.random.below(4) {
                    // A value that fits into one of memcached's pages, with its header, is a little
                    // shorter.
                    0 => self.random.range((1 << 20) - 400, 1 << 20),
                    1 => *self.random.pick(&[(1 << 20) + 1, ITEM_SIZE_MAX + 1]),
                    2 => self.random.range(1 << 20, 2 << 20),
                    _ => self.random.range(900_000, 1 << 20),
                };
                request.mark(Mark::Huge(len));
                self.bytes_of(len)
            }
        }
    }

    /// Returns a number, or text that is nearly one, below 2^63. For greater numbers memcached
    /// looks for a minus sign beyond their end too, where random bytes are left.
    pub fn odd_number(&mut self) -> Vec<u8> {
        let number = match self.random.below(6) {
            0 => self.random.number() >> self.random.range(1, 40),
            1 => (1 << 63) - 1 - self.random.below(300) as u64,
            _ => self.random.below(1 << 20) as u64,
        };
        let text = match self.random.below(3) {
            0 => format!("{}{number}", self.word(&[" ", "+", "0", "x", "000"])),
            1 => format!("{number}{}", self.word(&[" ", "  ", "x", "\n1", "\t", "\0"])),
            _ => number.to_string(),
        };
        text.into_bytes()
    }

    fn bytes(&mut self, len_max: usize) -> Vec<u8> {
        let len = self.random.below(len_max);
        self.bytes_of(len)
    }

    /// Returns bytes that look like text a parser expects.
    fn bytes_of(&mut self, len: usize) -> Vec<u8> {
        const SEEDS: &[&[u8]] = &[
            b"\r\nEND\r\n",
            b"\r\nVALUE k1 0 1\r\n",
            b"MN\r\nHD\r\n",
            b"\x81\x0a\0\0\0\0\0\0\0\0\0\0",
            b"\x80\0\0\0",
            b"\0",
            b"0123456789",
            b"\r",
            b"STORED\r\n",
        ];
        let mut bytes = Vec::with_capacity(len + 16);
        while bytes.len() < len {
            let seed = *self.random.pick(SEEDS);
            for _ in 0..1 + self.random.below(1 + len / 64) {
                bytes.extend_from_slice(seed);
            }
            bytes.push(self.random.number() as u8);
        }
        bytes.truncate(len);
        bytes
    }
}
