//! The commands: the servers' description of each, and the proxy's treatment.
//!
//! `cargo xtask commands` makes `table.rs` from the descriptions of the newest servers (`COMMAND`,
//! `COMMAND DOCS`) and from `review.txt`, in which a person has written down the proxy's treatment
//! of each command. It makes `arguments.txt` as well. `lookup.rs` finds a command by its name.
//! `docs/reference/commands.md` is made from the table.

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
    /// The proxy's treatment of it.
    pub class: Class,
    /// Its route, if it has no key.
    pub place: Place,
    /// How the conformance test compares an answer through the proxy with a server's own.
    pub compare: Compare,
    /// A note for readers of the reference.
    pub note: &'static str,
    /// It is only the container of its subcommands.
    pub container: bool,
    /// Among the servers that the table was made from, only Valkey has it.
    pub valkey: bool,
    /// The number of arguments, including its name; negative: at least that many.
    pub arity: i16,
    /// The first key, the last and the step between them, as far as these can describe it.
    pub legacy: [i16; 3],
    /// The positions of its keys.
    pub keys: &'static [KeySpec],
    pub flags: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub tips: &'static [&'static str],
    pub since: &'static str,
    pub group: &'static str,
    pub summary: &'static str,
    pub complexity: &'static str,
}

/// The positions of some of a command's keys, as servers describe them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub begin: Begin,
    pub find: Find,
    pub flags: &'static [&'static str],
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

/// How an answer through the proxy is compared with that of a server that has all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Byte by byte.
    Exact,
    /// Element by element, in any order; a map's pairs stay together.
    Sorted,
    /// Only shape and origin: chance, or the server's internals, decide the content.
    Property,
    /// Numbers may differ by the time that has passed.
    Near,
    /// No comparison, for this reason.
    Skip(&'static str),
}

impl Row {
    /// Returns the name of the container that it belongs to.
    pub fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    /// Whether this many arguments, including the name, are right.
    pub fn takes(&self, count: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { count >= arity } else { count == arity }
    }
}

/// Returns every command, in the order of [`crate::Protocol::commands`].
pub fn rows() -> &'static [Row] {
    table::ROWS
}

/// The number of commands.
pub(super) const COUNT: usize = table::ROWS.len();

/// Returns the command with this index.
pub(super) const fn row(command: u16) -> &'static Row {
    &table::ROWS[command as usize]
}

/// Returns the commands as the data plane knows them.
pub(super) fn list() -> &'static [Command] {
    &LIST
}

static LIST: [Command; COUNT] = {
    let none = Command { name: "", class: table::ROWS[0].class, capable: false, note: "" };
    let mut list = [none; COUNT];
    let mut at = 0;
    while at < list.len() {
        let Row { name, class, note, .. } = table::ROWS[at];
        list[at] = Command { name, class, capable: false, note };
        at += 1;
    }
    list
};

const fn split(command: u16, element_per_key: bool, writes: bool) -> Class {
    Class::Split { ask: Ask { command }, element_per_key, writes, idempotent: !writes }
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
