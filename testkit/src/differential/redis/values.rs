//! Values for arguments: mostly ones that fit the argument's name, and now and then invalid ones.
//!
//! No value may depend on the moment: a key lives for days or expires at once, and commands with
//! random results leave no data.

use std::collections::BTreeMap;

use super::scripts::{FUNCTIONS, LIBRARIES, LOADED, Payloads, SCRIPTS};
use crate::random::Random;

pub struct Values<'a> {
    pub random: &'a mut Random,
    pub payloads: &'a Payloads,
    /// The tables to draw from, by row and argument, and by argument alone.
    pub tables: &'a Tables,
}

/// The words to draw from, by the argument's name.
pub struct Tables {
    of_row: BTreeMap<(&'static str, &'static str), Vec<&'static str>>,
    of_name: BTreeMap<&'static str, Vec<&'static str>>,
}

impl Tables {
    pub fn new() -> Tables {
        let words = |list: &'static str| list.split(' ').collect::<Vec<_>>();
        Tables {
            of_row: OF_ROW.iter().map(|(row, name, list)| ((*row, *name), words(list))).collect(),
            of_name: OF_NAME
                .iter()
                .flat_map(|(names, list)| names.split(' ').map(move |name| (name, words(list))))
                .collect(),
        }
    }
}

impl Values<'_> {
    pub fn value(&mut self, row: &str, name: &str) -> Vec<u8> {
        match (row, name) {
            (_, "script") if row == "script|load" => return self.pick(LOADED),
            (_, "script") => return self.pick(SCRIPTS),
            // `GT` and `LT` compare with the remaining time, so no two values are so close that a
            // moment decides.
            ("expire" | "hexpire", "seconds") if self.random.permille(800) => {
                return (100_000 + 10 * self.random.below(100_000)).to_string().into_bytes();
            }
            ("pexpire" | "hpexpire", "milliseconds") if self.random.permille(800) => {
                return (100_000_000 + 10_000 * self.random.below(100_000)).to_string().into();
            }
            (_, "sha1") => return self.sha1(),
            (_, "function-code") => return self.pick(LIBRARIES),
            (_, "function") => return self.pick(FUNCTIONS),
            ("function|restore", "serialized-value") => {
                return self.random.pick(&self.payloads.functions).clone();
            }
            (_, "serialized-value") => return self.random.pick(&self.payloads.values).clone(),
            _ => {}
        }
        let tables = self.tables;
        let found = tables.of_row.iter().find(|((of, what), _)| *of == row && *what == name);
        let words = found.map(|(_, words)| words).or_else(|| tables.of_name.get(name));
        match words {
            Some(words) => self.random.pick(words).replace('_', " ").into_bytes(),
            None => self.string(),
        }
    }

    /// Returns a string to store: numbers, words, bytes of all sorts, and some large ones.
    pub fn string(&mut self) -> Vec<u8> {
        match self.random.below(1000) {
            0..300 => self.random.below(20).to_string().into_bytes(),
            300..340 => format!("{}.5", self.random.below(9)).into_bytes(),
            340..380 => Vec::new(),
            380..420 => b"\r\n$3\r\nfoo\r\n*1\r\n".to_vec(),
            420..440 => vec![0, 255, 13, 10, 0],
            440..500 => vec![b'v'; 70],
            500..520 => self.large(4_080, 40),
            520..530 => self.large(10_000, 10_000),
            530..533 => self.large(65_000, 80_000),
            533..560 => b"9223372036854775807".to_vec(),
            _ => format!("v{}", self.random.below(12)).into_bytes(),
        }
    }

    /// Returns bytes in which a missing piece would shift all others.
    fn large(&mut self, len: usize, more: usize) -> Vec<u8> {
        let (start, len) = (self.random.below(251), len + self.random.below(more));
        (0..len).map(|at| ((start + at) % 251) as u8).collect()
    }

    /// Returns a value that is invalid in most places.
    pub fn junk(&mut self) -> Vec<u8> {
        let junk: &[&[u8]] = &[
            b"",
            b"junk",
            b"-1",
            b"99999999999999999999",
            b"1.5",
            b"nan",
            b"\r\n-ERR x\r\n",
            b"(1",
            b"0x10",
            b" 1",
            b"+inf",
            b"-9223372036854775808",
            b"STREAMS",
            b"KEYS",
            b"\xff",
        ];
        self.random.pick(junk).to_vec()
    }

    fn pick(&mut self, from: &[&str]) -> Vec<u8> {
        self.random.pick(from).as_bytes().to_vec()
    }

    fn sha1(&mut self) -> Vec<u8> {
        if self.random.permille(100) {
            return b"0123456789012345678901234567890123456789".to_vec();
        }
        self.random.pick(&self.payloads.shas).clone()
    }
}

/// Row, argument, words; `_` is a space.
const OF_ROW: &[(&str, &str, &str)] = &[
    ("incrbyfloat", "increment", "1.5 -0.25 3 1e3 0"),
    ("hincrbyfloat", "increment", "1.5 -0.25 3 1e3 0"),
    ("zincrby", "increment", "1 -2 0.5 inf -inf"),
    ("bitfield", "offset", "0 1 7 #1 #3 100"),
    ("bitfield", "value", "0 1 -1 127 255 1000"),
    ("bitfield_ro", "offset", "0 1 7 #1 #3 100"),
    ("setbit", "value", "0 1 1 0 1 2"),
    ("setbit", "offset", "0 1 5 7 64 1000"),
    ("getbit", "offset", "0 1 5 7 64 1000"),
    ("bitpos", "start", "0 1 -2 5"),
    ("setrange", "offset", "0 1 5 60"),
    ("zrange", "start", "0 1 -2 0 0"),
    ("zrange", "stop", "-1 1 3 -1 -1"),
    ("zrangestore", "min", "0 1 -2 0 0"),
    ("zrangestore", "max", "-1 1 3 -1 -1"),
    ("linsert", "pivot", "v0 v1 v2 1 2 3"),
    ("lrem", "count", "0 1 -1 2"),
    ("lrem", "element", "v0 v1 v2 1 2 3"),
    ("lpos", "element", "v0 v1 v2 1 2 3"),
    ("lpos", "len", "0 1 100"),
    ("lpop", "count", "0 1 2 5"),
    ("rpop", "count", "0 1 2 5"),
    ("hscan", "cursor", "0"),
    ("xadd", "id", "1-1 2-1 3-5 5-* 7-* 0-1"),
    ("xadd", "threshold", "3 5 2-1"),
    ("xtrim", "threshold", "0 1 3 2-1"),
    ("xadd", "count", "1 10"),
    ("xreadgroup", "id", "> > > 0 1-1"),
    ("xread", "id", "0 0-0 1-1 $ 5"),
    ("xclaim", "min-idle-time", "0 0 100000000"),
    ("xautoclaim", "min-idle-time", "0 0 100000000"),
    ("xpending", "min-idle-time", "0 100000000"),
    ("xgroup|create", "id", "0 $ 1-1"),
    ("xgroup|setid", "id", "0 $ 1-1"),
    ("zlexcount", "min", "- [m1 (m3 ["),
    ("zlexcount", "max", "+ [m5 (m7 [m9"),
    ("zrangebylex", "min", "- [m1 (m3 ["),
    ("zrangebylex", "max", "+ [m5 (m7 [m9"),
    ("zremrangebylex", "min", "- [m1 (m3 ["),
    ("zremrangebylex", "max", "+ [m2 (m3 [m1"),
    ("zrevrangebylex", "min", "- [m1 (m3 ["),
    ("zrevrangebylex", "max", "+ [m5 (m7 [m9"),
    // After these commands an expired key stays until it is accessed, which is random.
    ("set", "unix-time-seconds", "4102444800 4102444801"),
    ("set", "unix-time-milliseconds", "4102444800000 4102444801000"),
    ("hsetex", "unix-time-seconds", "4102444800 4102444801"),
    ("hsetex", "unix-time-milliseconds", "4102444800000 4102444801000"),
    ("msetex", "unix-time-seconds", "4102444800 4102444801"),
    ("msetex", "unix-time-milliseconds", "4102444800000 4102444801000"),
    ("expire", "seconds", "0 -1"),
    ("hexpire", "seconds", "0 -1"),
    ("pexpire", "milliseconds", "0 -1"),
    ("hpexpire", "milliseconds", "0 -1"),
    ("select", "index", "0 1 2 3 0 99"),
    ("move", "db", "0 1 2 3"),
    ("copy", "destination-db", "0 1 2 3"),
    ("hello", "protover", "2 3 3 4"),
    ("restore", "ttl", "0 100000000"),
    ("command|getkeys", "command", "get mset"),
    ("command|getkeysandflags", "command", "get mset"),
    ("command|info", "command-name", "get set nosuch"),
    ("command|docs", "command-name", "get"),
    ("config|get", "parameter", "maxmemory save databases"),
    ("client|setname", "connection-name", "me you a-b"),
    ("client|setinfo", "libname", "lib"),
    ("client|setinfo", "libver", "1.2"),
    ("lolwut", "version", "5 6"),
    ("wait", "numreplicas", "0"),
    ("wait", "timeout", "1"),
    ("lcs", "min-match-len", "0 1 3"),
    ("sort", "offset", "0 1"),
    ("sort", "count", "100 -1"),
    ("sort_ro", "offset", "0 1"),
    ("sort_ro", "count", "100 -1"),
];

/// Arguments, words.
const OF_NAME: &[(&str, &str)] = &[
    ("member member1 member2", "m0 m1 m2 m3 m4 m5 m6 m7 m8 1 2 3"),
    ("field", "f0 f1 f2 f3 f4 f5 f6 f7"),
    ("element", "v0 v1 v2 v3 1 2 3 4 5 6 m1 m2"),
    ("score", "0 1 2 3 4.5 -1 100 inf 1e3"),
    ("min", "-inf 0 1 (1 2 -5"),
    ("max", "+inf 5 3 (4 100 2"),
    ("weight", "1 2 0.5 -1"),
    ("latitude", "38.11 37.5 0 10 -20 38.12"),
    ("longitude", "13.36 15.08 0 10 -20 13.37"),
    ("radius width height", "1 100 200 2000 20000"),
    ("num-vertices", "3"),
    ("start", "0 1 -2 -100 5"),
    ("end stop", "-1 1 3 -2 100 0"),
    ("index", "0 1 -1 5"),
    ("count", "1 2 5 100 -3"),
    ("limit", "0 1 2 100"),
    ("offset", "0 1 2"),
    ("rank", "1 -1 2"),
    ("num-matches", "0 1 2"),
    ("len", "0 10"),
    ("bit", "0 1"),
    ("encoding", "u8 i5 u16 u63 i64 u1"),
    ("operation", "AND OR XOR NOT"),
    ("decrement increment", "1 2 -3 10 0"),
    ("seconds", "100000 200000 1000000 0 -1"),
    ("milliseconds", "100000000 200000000 0 -1"),
    ("unix-time-seconds", "4102444800 4102444801 1"),
    ("unix-time-milliseconds", "4102444800000 4102444801000 1"),
    ("ms", "0 5000"),
    ("ttl", "0 100000000"),
    ("frequency", "0 10"),
    ("cursor", "0"),
    ("pattern match-pattern library-name-pattern", "* {a}* *1 f* m[1-3] [sl]? nothing *{*"),
    ("type", "string list hash zset set stream"),
    ("group groupname", "g1 g1 g1 g1 g2"),
    ("consumer consumername", "c1 c2"),
    ("id", "1-1 2-1 3-5 5-1 9-9"),
    ("lastid last-id", "9-9 5-1 1-1"),
    ("max-deleted-id max_deleted_entry_id", "0-0 1-1"),
    ("entries-added entries_added entries_read entriesread", "0 5 10"),
    ("db destination-db", "0 1"),
    ("library-name", "one two three"),
    ("message", "hello a_b PING"),
    ("args arg", "1 2 word a_b v1"),
    ("comparison-value", "v1 1 2"),
    ("by-pattern", "nosort"),
    ("get-pattern", "#"),
    ("username", "default nobody"),
    ("password", "secret"),
    ("clientname", "me"),
    ("channel shardchannel", "news"),
    ("section", "server"),
    ("numreplicas numlocal", "0"),
    ("timeout", "1"),
];
