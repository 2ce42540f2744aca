//! The types of reply that a command can have, as far as every server agrees. Another type is
//! perhaps another request's reply.
//!
//! ```text
//!   INCR n    :1        -ERR …                   a number, or an error
//!   KEYS *    *2 …  ~2 …                         a list
//!   GET k     any: it stands for the operator's own commands, too
//! ```

use super::commands::{self, COUNT};
use crate::Ask;

/// Always a number. Commands are left out that answer null or a list with some of their options.
const NUMBERS: &[&str] = &[
    "append",
    "bitcount",
    "bitop",
    "dbsize",
    "decr",
    "decrby",
    "del",
    "exists",
    "expire",
    "expireat",
    "getbit",
    "hdel",
    "hexists",
    "hincrby",
    "hlen",
    "hsetnx",
    "hstrlen",
    "incr",
    "incrby",
    "lastsave",
    "linsert",
    "llen",
    "lpush",
    "lpushx",
    "lrem",
    "persist",
    "pexpire",
    "pexpireat",
    "pfadd",
    "pttl",
    "publish",
    "rpush",
    "rpushx",
    "sadd",
    "scard",
    "sdiffstore",
    "setbit",
    "setnx",
    "setrange",
    "sinterstore",
    "sismember",
    "smove",
    "srem",
    "strlen",
    "sunionstore",
    "touch",
    "ttl",
    "unlink",
    "xdel",
    "xlen",
    "zcard",
    "zcount",
    "zlexcount",
    "zrem",
    "zremrangebylex",
    "zremrangebyrank",
    "zremrangebyscore",
];

/// Always a list, or a set. `scan` is one, too, and its first elements are read elsewhere.
const LISTS: &[&str] = &["keys", "mget", "scan", "script|exists"];

/// The first bytes of replies, each as a bit.
#[derive(Clone, Copy)]
struct Types(u32);

impl Types {
    const ANY: Types = Types(u32::MAX);

    /// Errors, and attributes of a reply, can precede any. A push is refused elsewhere.
    const fn of(bytes: &[u8]) -> Types {
        let (mut types, mut at) = (Types::bit(b'-') | Types::bit(b'!') | Types::bit(b'|'), 0);
        while at < bytes.len() {
            types |= Types::bit(bytes[at]);
            at += 1;
        }
        Types(types)
    }

    /// No two types of reply differ in the other bits alone, but `>` and `~`.
    #[inline(always)]
    const fn bit(first: u8) -> u32 {
        1 << (first & 31)
    }
}

static TYPES: [Types; COUNT] = {
    let mut types = [Types::ANY; COUNT];
    let mut at = 0;
    while at < NUMBERS.len() {
        types[commands::row_of(NUMBERS[at].as_bytes()) as usize] = Types::of(b":");
        at += 1;
    }
    at = 0;
    while at < LISTS.len() {
        types[commands::row_of(LISTS[at].as_bytes()) as usize] = Types::of(b"*~");
        at += 1;
    }
    types
};

/// Whether the reply to a command can begin with this byte.
#[inline(always)]
pub(super) fn may_begin(ask: Ask, first: u8) -> bool {
    let types = TYPES.get(usize::from(ask.index()));
    types.is_none_or(|types| types.0 & Types::bit(first) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::commands::id;

    #[test]
    fn a_number_is_no_list_and_either_may_be_an_error() {
        for (command, right, wrong) in [
            (id::DEL, &b":-!|"[..], &b"*$+_~%#,(="[..]),
            (id::DBSIZE, b":-!", b"*$+_"),
            (id::SCAN, b"*~-!", b":$+_"),
            (id::GET, b"$_-!*:+", b""),
        ] {
            for ask in [Ask { command }, Ask { command }.unchanged()] {
                assert!(right.iter().all(|first| may_begin(ask, *first)), "{command}");
                assert!(!wrong.iter().any(|first| may_begin(ask, *first)), "{command}");
            }
        }
        assert!(may_begin(Ask { command: COUNT as u16 }, b':'));
    }
}
