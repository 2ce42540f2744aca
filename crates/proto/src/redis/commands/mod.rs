//! The commands: what servers say of them, and what a proxy makes of each.
//!
//! `table.rs` is made by `cargo xtask commands` of what the newest servers say (`COMMAND`,
//! `COMMAND DOCS`) and of `review.txt`, where a person has written down, row by row, what the proxy
//! does with it; `arguments.txt` is made with it. `lookup.rs` finds a row by its name.
//! `docs/reference/commands.md` is made of it.

mod arguments;
mod lookup;
mod table;

use crate::{Ask, Class, Command, Place, Reach};

pub(super) use arguments::{Arguments, arguments};
pub(super) use lookup::{lookup, lookup_at, lookup_sub};
pub use table::id;

/// One command, or one subcommand, whose name is `container|sub`.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// In lower case.
    pub name: &'static str,
    /// What the proxy does with it.
    pub class: Class,
    /// Where it goes, if it has no key.
    pub place: Place,
    /// How an answer through the proxy is compared with one that a server gave.
    pub compare: Compare,
    /// What a reader of the reference should know.
    pub note: &'static str,
    /// It stands for its subcommands only.
    pub container: bool,
    /// Only Valkey has it, of the servers that the table was made of.
    pub valkey: bool,
    /// Arguments, its name included; negative: at least so many.
    pub arity: i16,
    /// The first key, the last and the step between them, as far as these can say it.
    pub legacy: [i16; 3],
    /// Where its keys are.
    pub keys: &'static [KeySpec],
    pub flags: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub tips: &'static [&'static str],
    pub since: &'static str,
    pub group: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
}

/// Where some of the keys of a command are, as servers say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub begin: Begin,
    pub find: Find,
    pub flags: &'static [&'static str],
}

/// Where they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At this argument; the command's name is argument 0.
    At(u8),
    /// After this word, which is searched from this argument on; from the end backwards, if
    /// negative.
    After { word: &'static str, from: i8 },
    /// The servers do not say.
    Unknown,
}

/// Which arguments they are from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// To the one so far behind the first, if negative counted from the end; each `step`. With a
    /// `limit` of 2 or more only that part of what follows: half, a third.
    Range { last: i16, step: u8, limit: u8 },
    /// An argument says how many: where that is, and where the first is, behind the beginning.
    Number { at: u8, first: u8, step: u8 },
    /// The servers do not say.
    Unknown,
}

/// How the answer that came through the proxy is compared with one of a server that has all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Byte by byte.
    Exact,
    /// Element by element, in any order; a map's pairs stay together.
    Sorted,
    /// Chance or the server's inside decides: of the same shape, and of what is there.
    Property,
    /// Numbers may differ by the time that has passed.
    Near,
    /// Not at all, for this reason.
    Skip(&'static str),
}

impl Row {
    /// The name of the container that it belongs to.
    pub fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    /// Whether so many arguments, the name included, are right.
    pub fn takes(&self, count: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { count >= arity } else { count == arity }
    }
}

/// Every row, in the order of [`crate::Protocol::commands`].
pub fn rows() -> &'static [Row] {
    table::ROWS
}

/// How many there are.
pub(super) const COUNT: usize = table::ROWS.len();

/// The row in this place.
pub(super) const fn row(command: u16) -> &'static Row {
    &table::ROWS[command as usize]
}

/// The same, as the data plane knows them.
pub(super) fn list() -> &'static [Command] {
    &LIST
}

static LIST: [Command; COUNT] = {
    let none = Command { name: "", class: table::ROWS[0].class, skilled: false, note: "" };
    let mut list = [none; COUNT];
    let mut at = 0;
    while at < list.len() {
        let Row { name, class, note, .. } = table::ROWS[at];
        list[at] = Command { name, class, skilled: false, note };
        at += 1;
    }
    list
};

const fn split(command: u16, each: bool, writes: bool) -> Class {
    Class::Split { ask: Ask { command }, each, writes, idempotent: !writes }
}

const fn all(command: u16, writes: bool) -> Class {
    Class::Broadcast { ask: Ask { command }, gated: false, writes, reach: Reach::All }
}

const fn gated(command: u16, writes: bool, reach: Reach) -> Class {
    Class::Broadcast { ask: Ask { command }, gated: true, writes, reach }
}

const fn survey(command: u16) -> Class {
    let reach = Reach::Survey;
    Class::Broadcast { ask: Ask { command }, gated: false, writes: false, reach }
}

pub(super) const ABOUT: &str = "\
RESP 2, RESP 3 (`HELLO 3`) and inline commands. `container|sub` is a subcommand. The table is made
from the descriptions that Redis 7.0 and Valkey 9.1 give of their commands. A request whose form
they refuse (the number of arguments, or of keys) is refused in their words without asking them.
Commands that are not in the table are unknown, unless `commands:` says where their keys are.

Servers accept these, but quickack does not:

* bytes other than CR LF where a length or an argument ends, and a NUL in an inline command: the
  connection is closed;
* an inline command of more than 64 KiB, no matter in how many pieces it arrives;
* more than 32 MiB in one request; a long last argument of a command for one server does not
  count, unless it is a key;
* a cursor for `SCAN` that is not a number;
* `XREAD` and `XREADGROUP` with `BLOCK`, since clients share the link.

A request without keys goes to one server or to all. If a script or a function reads keys that were
not declared, it reads those of one server, and the proxy cannot detect it.
";
