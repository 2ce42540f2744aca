//! The permitted differences between memcached's answers and quickack's, each with its reason. Such
//! a request is sent alone, and its answer must match the row. Then its key is deleted on all
//! sides, so that later answers are compared again.

use super::reply::Reply;
use super::request::{Mark, Request};

pub struct Excuse {
    pub name: &'static str,
    pub reason: &'static str,
    /// Returns whether a request to such a side may be answered in this way.
    applies: fn(&Request, Behind) -> bool,
    accepts: fn(direct: &[Reply], ours: &[Reply]) -> bool,
}

/// The servers behind quickack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    One,
    Four,
    Embedded,
}

pub const EXCUSES: &[Excuse] = &[
    Excuse {
        name: "a key of more bytes than base64 has room for",
        reason: "text cannot carry it, and a meta command's key may have 250 characters",
        applies: |request, _| request.has(Mark::LongBytesKey),
        accepts: |direct, ours| refused(0x04, direct, ours),
    },
    Excuse {
        name: "a quiet ma that creates its item",
        reason: "memcached answers it as if it were not quiet; through us it is quiet",
        applies: |request, _| request.has(Mark::QuietCreation),
        accepts: |direct, ours| direct.len() == 2 && direct[1..] == *ours,
    },
    Excuse {
        name: "a value of more than what memcached takes",
        reason: "the embedded cache takes what item_size_max allows",
        applies: |request, behind| {
            behind == Behind::Embedded && request.len().is_some_and(|len| len > PAGE - 600)
        },
        accepts: |direct, ours| {
            let words: &[&[u8]] = &[b"SERVER_ERROR", b"NOT_STORED", b"NS"];
            let refused = |reply: &Reply| {
                matches!(reply.status(), Some(0x03 | 0x05)) || words.contains(&reply.first())
            };
            direct.first().is_some_and(refused) && direct.last() == ours.last()
        },
    },
    Excuse {
        name: "flags newer than memcached 1.6.18",
        reason: "the embedded cache does what newer ones do",
        applies: |request, behind| behind == Behind::Embedded && request.has(Mark::NewerFlag),
        accepts: |direct, ours| {
            let known: &[&[u8]] = &[b"HD", b"VA", b"EN", b"NF", b"NS", b"EX", b"CLIENT_ERROR"];
            let refused = direct.first().is_some_and(|reply| reply.first() == b"CLIENT_ERROR");
            let (last, others) = ours.split_last().expect("a barrier is answered");
            let answers = others.iter().all(|reply| known.contains(&reply.first()));
            refused && answers && others.len() < 3 && direct.last() == Some(last)
        },
    },
];

const PAGE: usize = 1 << 20;

/// Returns whether one packet has this status, followed by the barrier's answer.
fn refused(status: u16, direct: &[Reply], ours: &[Reply]) -> bool {
    let [first, barrier] = ours else { return false };
    first.status() == Some(status) && direct.last() == Some(barrier)
}

/// Requests that are never sent, because memcached's answer is random, or is not worth imitating.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Skip {
    EncodedKeyTold,
    BlankCounter,
    CounterHit,
    CounterExpiry,
    StaleAndBinary,
}

/// The names of the skipped kinds, and the reasons.
pub const SKIPS: &[(Skip, &str, &str)] = &[
    (
        Skip::EncodedKeyTold,
        "k with b of a key that is no text",
        "memcached forgets that a key is base64 when an item is changed or made by N, and then \
         writes the bytes into the line",
    ),
    (
        Skip::BlankCounter,
        "N of a counter's key in mg",
        "it makes an empty value, behind whose end memcached looks for the number",
    ),
    (
        Skip::CounterHit,
        "h, R and I of a counter",
        "a count makes a new item, without marks, if an unsent answer holds the old one",
    ),
    (
        Skip::CounterExpiry,
        "t with T in ma",
        "if a count makes a new item, memcached gives the expiry to the old one",
    ),
    (
        Skip::StaleAndBinary,
        "I of a key that binary reads in base64",
        "that is an mg to the server, which takes the win of a stale item; binary itself does not",
    ),
];

/// Returns the rows for a request to such a side.
pub fn of(request: &Request, behind: Behind) -> impl Iterator<Item = &'static Excuse> {
    EXCUSES.iter().filter(move |row| (row.applies)(request, behind))
}

/// Returns whether a request must be sent alone: a side has a row for it, or memcached closes the
/// connection upon it, which loses outstanding answers.
pub fn is_odd(request: &Request) -> bool {
    let sides = [Behind::One, Behind::Four, Behind::Embedded];
    request.closes() || sides.iter().any(|behind| of(request, *behind).next().is_some())
}

impl Excuse {
    pub fn accepts(&self, direct: &[Reply], ours: &[Reply]) -> bool {
        (self.accepts)(direct, ours)
    }
}
