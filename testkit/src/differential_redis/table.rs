//! What the proxy's own table promises of each command, and what that means for a test.

use proto::redis::commands::{self, Compare, Find, KeySpec};
use proto::{Class, Refusal};

#[derive(Clone, Debug)]
pub struct Row {
    pub name: &'static str,
    pub fate: Fate,
    pub likeness: Likeness,
    /// Why its answers are not compared, if they are not.
    pub skip: Option<&'static str>,
    /// Words, its name's included; negative: at least so many.
    pub arity: i16,
    /// A call of it may have several keys, says the table.
    pub many: bool,
    /// How often it is drawn beside the others.
    pub share: usize,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It reaches the servers.
    Forwarded,
    /// The same, in as many parts as its keys have servers.
    Split,
    /// The proxy answers.
    Own,
    /// Refused by name, whatever the arguments.
    Refused,
    /// Only with a subcommand.
    Container,
}

/// How much an answer through the proxy is to be like the server's own. An error is always to be
/// the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    Exact,
    /// In any order.
    Sorted,
    /// In any order, but two and two.
    Pairs,
    /// Numbers may differ by a moment.
    Near,
    /// As many of everything.
    Shape,
    /// A string is a string.
    Kind,
}

impl Row {
    /// Whether so many words are right.
    pub fn takes(&self, words: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= arity } else { words == arity }
    }
}

/// These are asked together: what stands in a transaction is refused with it.
pub const TRANSACTIONS: &[&str] = &["multi", "exec", "discard"];

/// What the pool allows, since it leaves the servers as they are, as far as other answers tell.
pub const ALLOWED: &[&str] = &["flushall", "flushdb", "config|resetstat", "slowlog|reset"];

pub fn rows() -> Vec<Row> {
    commands::rows().iter().map(read).collect()
}

fn read(row: &'static commands::Row) -> Row {
    let fate = match row.class {
        _ if row.container && !matches!(row.class, Class::Local(_)) => Fate::Container,
        Class::Refuse(Refusal::ByName(_)) => Fate::Refused,
        // The proxy has an answer of its own, which is that it does not do it.
        _ if TRANSACTIONS.contains(&row.name) => Fate::Refused,
        Class::Broadcast { gated: true, .. } if !ALLOWED.contains(&row.name) => Fate::Refused,
        Class::Local(_) => Fate::Own,
        Class::Split { .. } => Fate::Split,
        _ => Fate::Forwarded,
    };
    let skip = match row.compare {
        Compare::Skip(why) if fate != Fate::Refused && fate != Fate::Container => Some(why),
        _ => None,
    };
    let likeness = match (row.name, row.compare) {
        ("hgetall", _) => Likeness::Pairs,
        // Numbers of which more than one is a time.
        ("time" | "object|refcount" | "memory|usage", _) => Likeness::Shape,
        ("xinfo|stream", _) => Likeness::Near,
        ("hrandfield" | "zrandmember" | "srandmember" | "spop" | "randomkey", _) => Likeness::Shape,
        // Without an id of the server's own: see `strict`.
        ("xadd", _) => Likeness::Exact,
        (_, Compare::Exact) => Likeness::Exact,
        (_, Compare::Sorted) => Likeness::Sorted,
        (_, Compare::Near) => Likeness::Near,
        (_, Compare::Property | Compare::Skip(_)) => Likeness::Kind,
    };
    let share = match (row.name, fate) {
        ("flushall" | "flushdb", _) => 1,
        ("quit" | "reset" | "hello" | "client|reply", _) => 1,
        ("script|flush" | "function|flush" | "function|delete" | "function|restore", _) => 1,
        // What other rows live on.
        ("xgroup|create" | "xadd" | "rpush" | "sadd", _) => 20,
        ("function|load" | "script|load", _) => 20,
        // Nothing is learnt of what is not compared, and little of what has no arguments.
        _ if skip.is_some() => 1,
        ("module|list" | "function|stats", _) => 1,
        (_, Fate::Split) => 8,
        (_, Fate::Forwarded) => 5,
        (_, Fate::Own | Fate::Container | Fate::Refused) => 1,
    };
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
