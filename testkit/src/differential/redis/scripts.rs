//! Scripts, functions and dumps, which random draws would never produce.

use crate::process::Speaker;
use crate::wire::resp::Reply;

/// Run as they are written. None of these is loaded, because the server that has one in its cache
/// would be random.
pub const SCRIPTS: &[&str] = &[
    "return {KEYS, ARGV}",
    "return redis.call('GET', KEYS[1])",
    "return redis.call('SET', KEYS[1], ARGV[1])",
    "return redis.pcall('INCR', KEYS[1])",
    "return redis.call('INCR', KEYS[1])",
    "return redis.error_reply('MY own error')",
    "return redis.status_reply('fine')",
    "return {1, 2, {3, 'four'}, false, 'five'}",
    "return nil",
    "local r = {} for i, k in ipairs(KEYS) do r[i] = redis.call('TYPE', k)['ok'] end return r",
    "for i, k in ipairs(KEYS) do redis.call('DEL', k) end return #KEYS",
    "redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('LRANGE', KEYS[1], 0, -1)",
    "this is no script",
    "return string.rep('x', 9000)",
];

/// Loaded on every server, and run by their sums.
pub const LOADED: &[&str] = &[
    "return {#KEYS, KEYS, ARGV}",
    "return redis.call('EXISTS', unpack(KEYS))",
    "return redis.call('APPEND', KEYS[1], 'x')",
    "return redis.pcall('HGETALL', KEYS[1])['err'] or 'no error'",
    "return tonumber(ARGV[1]) or -1",
];

pub const LIBRARIES: &[&str] = &[
    "#!lua name=one\nredis.register_function('first', function(keys, args) return #keys end)",
    "#!lua name=two\nredis.register_function('second', function(keys, args) \
     return redis.call('SET', keys[1], args[1] or 'none') end)",
    "#!lua name=three\nredis.register_function{function_name='third', \
     callback=function(keys, args) return redis.call('GET', keys[1]) end, flags={'no-writes'}}",
    "#!lua name=broken\nthis is no function",
];

pub const FUNCTIONS: &[&str] = &["first", "second", "third", "fourth"];

/// Data that only a server can make, made by one that is not part of the comparison.
pub struct Payloads {
    /// The sums of [`LOADED`].
    pub shas: Vec<Vec<u8>>,
    /// Values of each type in the format of `DUMP`, and an invalid one.
    pub values: Vec<Vec<u8>>,
    /// Libraries in the format of `FUNCTION DUMP`.
    pub functions: Vec<Vec<u8>>,
}

impl Payloads {
    pub fn make(scratch: &mut Speaker) -> Payloads {
        let bytes = |reply: Reply| reply.bytes().map_or(b"no dump".to_vec(), <[u8]>::to_vec);
        let shas = LOADED.iter().map(|text| bytes(scratch.ask(&["SCRIPT", "LOAD", text])));
        let shas = shas.collect();
        for line in VALUES {
            scratch.say(line);
        }
        let names = VALUES.iter().filter_map(|line| line.split(' ').nth(1));
        let mut values: Vec<Vec<u8>> =
            names.map(|name| bytes(scratch.ask(&["DUMP", name]))).collect();
        values.push(b"no dump".to_vec());
        let mut functions = vec![b"no dump".to_vec()];
        for library in &LIBRARIES[..2] {
            scratch.ask(&["FUNCTION", "LOAD", "REPLACE", library]);
            functions.push(bytes(scratch.say("FUNCTION DUMP")));
            scratch.say("FUNCTION FLUSH");
        }
        scratch.say("FLUSHALL");
        Payloads { shas, values, functions }
    }
}

const VALUES: &[&str] = &[
    "SET s restored",
    "SET n 17",
    "RPUSH l v1 v2 3",
    "SADD t 1 2 3",
    "ZADD z 1 m1 2 m2",
    "HSET h f1 v1 f2 2",
    "XADD x 1-1 f1 v1",
];
