//! The proxy's own table of commands, with the consequences for the test.

use proto::redis::commands::{self, Find, KeySpec};
use proto::{Class, Local, Refusal};

#[derive(Clone, Debug)]
pub struct Row {
    pub name: &'static str,
    pub fate: Fate,
    pub likeness: Likeness,
    /// The reason why its answers are not compared, if they are not.
    pub skip: Option<&'static str>,
    /// Number of words including the name; a negative number is a minimum.
    pub arity: i16,
    /// According to the table, a call may have several keys.
    pub many: bool,
    /// Its frequency relative to other rows.
    pub share: usize,
}

/// The proxy's treatment of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Forwarded to the servers.
    Forwarded,
    /// Forwarded in as many parts as its keys have servers.
    Split,
    /// Answered by the proxy.
    Own,
    /// Refused by name, whatever the arguments are.
    Refused,
    /// Valid only with a subcommand.
    Container,
}

/// The similarity required between the answer through the proxy and a server's own. An error must
/// always be the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    Exact,
    /// In any order.
    Sorted,
    /// Pairs in any order.
    Pairs,
    /// Numbers may differ by a short time.
    Near,
    /// The same structure, with any values.
    Shape,
    /// The same type of reply.
    Kind,
}

impl Row {
    /// Returns whether that number of words is valid.
    pub fn takes(&self, words: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= arity } else { words == arity }
    }
}

/// These are sent together, with the commands between them.
pub const TRANSACTIONS: &[&str] = &["multi", "exec", "discard"];

/// Commands that the pool allows, since other answers show no change of the servers.
pub const ALLOWED: &[&str] = &["flushall", "flushdb", "config|resetstat"];

pub fn rows() -> Vec<Row> {
    commands::rows().iter().map(read).collect()
}

fn read(row: &'static commands::Row) -> Row {
    let fate = match row.class {
        _ if row.container && !matches!(row.class, Class::Local(_)) => Fate::Container,
        Class::Refuse(Refusal::ByName(_)) => Fate::Refused,
        Class::Broadcast { gated: true, .. } if !ALLOWED.contains(&row.name) => Fate::Refused,
        Class::Local(_) => Fate::Own,
        Class::Split { .. } => Fate::Split,
        _ => Fate::Forwarded,
    };
    let skip = skip(row.name).filter(|_| fate != Fate::Refused && fate != Fate::Container);
    let share = match (row.name, fate) {
        // They would block, and later commands with them.
        _ if row.effort == commands::Effort::Wait => 0,
        // They have any number of answers; the tests of subscriptions compare them.
        _ if row.class == Class::Local(Local::Subscribe) => 0,
        // They are about the connections of one side, and have tests of their own.
        _ if row.class == Class::Local(Local::Clients) || row.name == "monitor" => 0,
        // What follows it has to be on one server; the tests of watches compare it.
        _ if row.effort == commands::Effort::Watch => 0,
        ("flushall" | "flushdb", _) => 1,
        ("multi" | "exec" | "discard", _) => 6,
        ("quit" | "reset" | "hello" | "client|reply", _) => 1,
        ("script|flush" | "function|flush" | "function|delete" | "function|restore", _) => 1,
        // Other rows need the data that these create.
        ("xgroup|create" | "xadd" | "rpush" | "sadd", _) => 20,
        ("function|load" | "script|load", _) => 20,
        // A row that is not compared proves nothing, and one without arguments little.
        _ if skip.is_some() => 1,
        ("module|list" | "function|stats", _) => 1,
        // Their keys are seldom apart.
        ("georadius" | "georadiusbymember", _) => 8,
        (_, Fate::Split) => 8,
        (_, Fate::Forwarded) => 5,
        (_, Fate::Own | Fate::Container | Fate::Refused) => 1,
    };
    let likeness = likeness(row.name);
    Row { name: row.name, fate, likeness, skip, arity: row.arity, many: has_many(row), share }
}

fn has_many(row: &commands::Row) -> bool {
    let known = || row.keys.iter().filter(|keys| keys.find != Find::Unknown);
    let several = |keys: &KeySpec| match keys.find {
        Find::Range { last, .. } => last != 0,
        Find::Number { .. } => true,
        Find::Unknown => false,
    };
    known().count() > 1 || known().any(several)
}

/// Returns the similarity that is required of a command's answers; `strict` demands less of some.
fn likeness(name: &str) -> Likeness {
    match name {
        "hgetall" => Likeness::Pairs,
        // Chance, or the server's internals, decide the content. Several numbers are times.
        "hrandfield" | "zrandmember" | "srandmember" | "spop" | "randomkey" => Likeness::Shape,
        "time" | "object|refcount" | "memory|usage" => Likeness::Shape,
        "function|list" | "hkeys" | "hvals" | "keys" | "module|list" => Likeness::Sorted,
        "sdiff" | "sinter" | "smembers" | "sort" | "sort_ro" | "sunion" => Likeness::Sorted,
        "ttl" | "pttl" | "expiretime" | "pexpiretime" | "object|idletime" => Likeness::Near,
        "httl" | "hpttl" | "hexpiretime" | "hpexpiretime" => Likeness::Near,
        "xautoclaim" | "xclaim" | "xinfo|consumers" | "xinfo|stream" | "xpending" => Likeness::Near,
        "client|id" | "dump" | "function|dump" | "hello" | "lolwut" | "object|freq" => {
            Likeness::Kind
        }
        "scan" | "hscan" | "sscan" | "zscan" => Likeness::Kind,
        _ if skip(name).is_some() => Likeness::Kind,
        _ => Likeness::Exact,
    }
}

/// Returns the reason why a command's answers are not compared, if they are not.
fn skip(name: &str) -> Option<&'static str> {
    Some(match name {
        "config|get" | "info" | "lastsave" => "it reports on the servers themselves",
        "auth" | "client|info" | "client|no-evict" | "client|no-touch" | "client|setinfo"
        | "command" | "command|count" | "command|docs" | "command|info" | "command|list"
        | "latency|help" | "latency|history" | "latency|latest" | "latency|reset" | "readonly"
        | "readwrite" | "role" | "slowlog|get" | "slowlog|help" | "slowlog|len" => {
            "the proxy answers from its own data"
        }
        _ => return None,
    })
}
