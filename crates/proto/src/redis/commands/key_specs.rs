//! The positions of keys, as servers describe them, under the names that the table uses.
//!
//! `cargo xtask commands` reads this file: a position of keys that no command had before needs a
//! name here, on one line.

use Begin::{After, At};
use Find::{Number, Range};

/// The positions of some of a command's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub begin: Begin,
    pub find: Find,
}

/// The beginning of these keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At this argument; the command's name is argument 0.
    At(u8),
    /// After this word, which is searched from this argument on; backwards from the end, if
    /// negative.
    After { word: &'static str, from: i8 },
    /// The servers do not describe it.
    Unknown,
}

/// The keys among the arguments from the beginning on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// To this many arguments behind the first, or counted from the end if negative; each `step`. A
    /// `limit` of 2 or more takes only that part of the rest: half, a third.
    Range { last: i16, step: u8, limit: u8 },
    /// An argument has their number. `at` is its position and `first` that of the first key, both
    /// behind the beginning.
    Number { at: u8, first: u8, step: u8 },
    /// The servers do not describe it.
    Unknown,
}

/// All keys of a command.
pub type Keys = &'static [KeySpec];

pub const NO_KEYS: Keys = &[];
pub const FIRST_KEY: Keys = &[at(1)];
pub const SECOND_KEY: Keys = &[at(2)];
/// Two keys with two uses, such as a source and a destination.
pub const KEY_AND_KEY: Keys = &[at(1), at(2)];
/// Two keys with the same use.
pub const TWO_KEYS: Keys = &[range(1, 1, 1)];
pub const ALL_KEYS: Keys = &[range(1, -1, 1)];
pub const ALL_BUT_LAST: Keys = &[range(1, -2, 1)];
pub const ALL_FROM_2: Keys = &[range(2, -1, 1)];
pub const EVERY_OTHER_KEY: Keys = &[range(1, -1, 2)];
pub const NUMKEYS_AT_1: Keys = &[number(1, 1)];
pub const NUMKEYS_AT_2: Keys = &[number(2, 1)];
/// The number of pairs, each a key and its value.
pub const NUMPAIRS_AT_1: Keys = &[number(1, 2)];
pub const DEST_ALL: Keys = &[at(1), range(2, -1, 1)];
pub const DEST_AT_2_ALL: Keys = &[at(2), range(3, -1, 1)];
pub const DEST_NUMKEYS: Keys = &[at(1), number(2, 1)];
pub const GEORADIUS: Keys = &[at(1), after("STORE", 6), after("STOREDIST", 6)];
pub const GEORADIUS_MEMBER: Keys = &[at(1), after("STORE", 5), after("STOREDIST", 5)];
pub const MIGRATE: Keys = &[at(3), all_after("KEYS", -2)];
pub const SORT: Keys = &[at(1), UNKNOWN, UNKNOWN];
pub const SORT_RO: Keys = &[at(1), UNKNOWN];
pub const STREAMS_FROM_1: Keys = &[half_after("STREAMS", 1)];
pub const STREAMS_FROM_4: Keys = &[half_after("STREAMS", 4)];

const ONE: Find = Range { last: 0, step: 1, limit: 0 };
const UNKNOWN: KeySpec = KeySpec { begin: Begin::Unknown, find: Find::Unknown };

const fn at(begin: u8) -> KeySpec {
    KeySpec { begin: At(begin), find: ONE }
}

const fn range(begin: u8, last: i16, step: u8) -> KeySpec {
    KeySpec { begin: At(begin), find: Range { last, step, limit: 0 } }
}

/// The argument is the number of keys, which follow it.
const fn number(begin: u8, step: u8) -> KeySpec {
    KeySpec { begin: At(begin), find: Number { at: 0, first: 1, step } }
}

const fn after(word: &'static str, from: i8) -> KeySpec {
    KeySpec { begin: After { word, from }, find: ONE }
}

const fn all_after(word: &'static str, from: i8) -> KeySpec {
    KeySpec { begin: After { word, from }, find: Range { last: -1, step: 1, limit: 0 } }
}

const fn half_after(word: &'static str, from: i8) -> KeySpec {
    KeySpec { begin: After { word, from }, find: Range { last: -1, step: 1, limit: 2 } }
}
