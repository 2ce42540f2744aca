//! The command table: one entry for each opcode. `docs/reference/commands.md` is made from it.

use super::super::commands::{
    FAMILY_ARITHMETIC, FAMILY_DELETE, FAMILY_GET, FAMILY_OTHER, FAMILY_SET, FAMILY_TOUCH,
    FLUSH_ALL, GATS, GETS, STATISTICS,
};
use crate::{Ask, Class, Command, Local, Quiet, Reach, Refusal, Work};

/// Asks for the login mechanisms.
pub(super) const SASL_LIST: u8 = 0x20;
/// Logs in.
pub(super) const SASL_AUTH: u8 = 0x21;

/// The layout of a packet, and the action of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Key. `key`: the answer contains it.
    Get { key: bool },
    /// Expiry; key. `value`: the answer contains one.
    Touch { key: bool, value: bool },
    /// Flags, expiry; key; value.
    Store(Mode),
    /// Key; value. `front`: the value goes before the present one.
    Concat { front: bool },
    /// Key.
    Delete,
    /// Delta, initial value, expiry; key.
    Delta { down: bool },
    /// An optional time.
    Flush,
    /// An optional key.
    Stat,
    /// Mechanism as key; credentials as value.
    Sasl,
    /// No fields.
    Bare,
    /// Any fields; they are skipped.
    Unknown,
}

/// The condition of a `Store`. With a cas number, all modes are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Always.
    Set,
    /// Only if the key has no item.
    Add,
    /// Only if the key has an item.
    Replace,
}

/// An entry: its opcode, and the other facts that the parser needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opcode {
    pub(super) code: u8,
    pub(super) shape: Shape,
    pub(super) quiet: Quiet,
    /// The command for the table of all protocols.
    command: Command,
}

const READ: Class = Class::Fetch { ask: Ask { command: GETS }, merge: true, idempotent: true };
const READ_TOUCH: Class =
    Class::Fetch { ask: Ask { command: GATS }, merge: false, idempotent: false };
const WRITE: Class = Class::Single { writes: true };
const FLUSH: Class = Class::Broadcast {
    ask: Ask { command: FLUSH_ALL },
    gated: true,
    writes: true,
    reach: Reach::All,
};
const UNKNOWN: Class = Class::Refuse(Refusal::Unknown);

const GET: Shape = Shape::Get { key: false };
const GETK: Shape = Shape::Get { key: true };
const GAT: Shape = Shape::Touch { key: false, value: true };
const GATK: Shape = Shape::Touch { key: true, value: true };
const TOUCH: Shape = Shape::Touch { key: false, value: false };

const SET: Shape = Shape::Store(Mode::Set);
const ADD: Shape = Shape::Store(Mode::Add);
const REPLACE: Shape = Shape::Store(Mode::Replace);
const APPEND: Shape = Shape::Concat { front: false };
const PREPEND: Shape = Shape::Concat { front: true };
const INCREMENT: Shape = Shape::Delta { down: false };
const DECREMENT: Shape = Shape::Delta { down: true };

const MERGED: &str = "merged with other reads";
const TOUCHES: &str = "as Get, and sets the expiry; never sent twice";
const SHOWS_CAS: &str = "only on servers with meta: its answer has a cas number, else 0x83";
const ADDS: &str = "as Set; above 523,776 bytes its answer has no cas number, and of less, what \
                    is too large for the server (`-I`) removes the old value";
const QUIET_CAS: &str = "with a cas number only on servers with meta, else 0x83";
const QUIET_DELTA: &str =
    "with a cas number or an initial value only on servers with meta, else 0x83";
const NOT_HERE: &str = "not in memcached either: 0x81";
const LOGIN: &str = "where the pool has `users`, else 0x81";

use Quiet::{Loud, Sparing};

const fn row(
    code: u8,
    name: &'static str,
    shape: Shape,
    quiet: Quiet,
    class: Class,
    note: &'static str,
) -> Opcode {
    // The commands that show or take a cas number. A quiet one shows none, and a quiet store has
    // the classic `cas`.
    let capable = match shape {
        Shape::Store(_) => matches!(quiet, Quiet::Loud),
        Shape::Concat { .. } | Shape::Delete | Shape::Delta { .. } => true,
        _ => false,
    };
    let command = Command { name, class, work: Work::Quick, family: family(shape), capable, note };
    Opcode { code, shape, quiet, command }
}

const fn family(shape: Shape) -> u8 {
    match shape {
        Shape::Get { .. } => FAMILY_GET,
        Shape::Touch { .. } => FAMILY_TOUCH,
        Shape::Store(_) | Shape::Concat { .. } => FAMILY_SET,
        Shape::Delete => FAMILY_DELETE,
        Shape::Delta { .. } => FAMILY_ARITHMETIC,
        Shape::Flush | Shape::Stat | Shape::Sasl | Shape::Bare | Shape::Unknown => FAMILY_OTHER,
    }
}

const fn unknown(code: u8, name: &'static str) -> Opcode {
    row(code, name, Shape::Unknown, Loud, UNKNOWN, NOT_HERE)
}

/// The entries. The last is for every unknown opcode.
const OPCODES: [Opcode; 50] = [
    row(0x00, "Get", GET, Loud, READ, MERGED),
    row(0x01, "Set", SET, Loud, WRITE, SHOWS_CAS),
    row(0x02, "Add", ADD, Loud, WRITE, ADDS),
    row(0x03, "Replace", REPLACE, Loud, WRITE, ADDS),
    row(0x04, "Delete", Shape::Delete, Loud, WRITE, QUIET_CAS),
    row(0x05, "Increment", INCREMENT, Loud, WRITE, SHOWS_CAS),
    row(0x06, "Decrement", DECREMENT, Loud, WRITE, SHOWS_CAS),
    row(0x07, "Quit", Shape::Bare, Loud, Class::Local(Local::Quit), ""),
    row(0x08, "Flush", Shape::Flush, Loud, FLUSH, "to all servers, only with `allow: [flush_all]`"),
    row(0x09, "GetQ", GET, Sparing, READ, MERGED),
    row(
        0x0a,
        "Noop",
        Shape::Bare,
        Loud,
        Class::Local(Local::Barrier),
        "answered when all requests before it are settled on all servers",
    ),
    row(0x0b, "Version", Shape::Bare, Loud, Class::Local(Local::Version), "the proxy's own"),
    row(0x0c, "GetK", GETK, Loud, READ, MERGED),
    row(0x0d, "GetKQ", GETK, Sparing, READ, MERGED),
    row(0x0e, "Append", APPEND, Loud, WRITE, ADDS),
    row(0x0f, "Prepend", PREPEND, Loud, WRITE, ADDS),
    row(
        0x10,
        "Stat",
        Shape::Stat,
        Loud,
        STATISTICS,
        "as `stats` in text, with its argument as key",
    ),
    row(0x11, "SetQ", SET, Sparing, WRITE, ""),
    row(0x12, "AddQ", ADD, Sparing, WRITE, ""),
    row(0x13, "ReplaceQ", REPLACE, Sparing, WRITE, ""),
    row(0x14, "DeleteQ", Shape::Delete, Sparing, WRITE, QUIET_CAS),
    row(0x15, "IncrementQ", INCREMENT, Sparing, WRITE, QUIET_DELTA),
    row(0x16, "DecrementQ", DECREMENT, Sparing, WRITE, QUIET_DELTA),
    row(0x17, "QuitQ", Shape::Bare, Sparing, Class::Local(Local::Quit), ""),
    row(0x18, "FlushQ", Shape::Flush, Sparing, FLUSH, "as Flush"),
    row(0x19, "AppendQ", APPEND, Sparing, WRITE, QUIET_CAS),
    row(0x1a, "PrependQ", PREPEND, Sparing, WRITE, QUIET_CAS),
    unknown(0x1b, "Verbosity"),
    row(0x1c, "Touch", TOUCH, Loud, WRITE, "sent as GAT: the server sends the value to the proxy"),
    row(0x1d, "GAT", GAT, Loud, READ_TOUCH, TOUCHES),
    row(0x1e, "GATQ", GAT, Sparing, READ_TOUCH, TOUCHES),
    row(SASL_LIST, "SASLList", Shape::Bare, Loud, UNKNOWN, LOGIN),
    row(SASL_AUTH, "SASLAuth", Shape::Sasl, Loud, UNKNOWN, LOGIN),
    row(0x22, "SASLStep", Shape::Sasl, Loud, UNKNOWN, LOGIN),
    row(0x23, "GATK", GATK, Loud, READ_TOUCH, TOUCHES),
    row(0x24, "GATKQ", GATK, Sparing, READ_TOUCH, TOUCHES),
    unknown(0x30, "RGet"),
    unknown(0x31, "RSet"),
    unknown(0x32, "RSetQ"),
    unknown(0x33, "RAppend"),
    unknown(0x34, "RAppendQ"),
    unknown(0x35, "RPrepend"),
    unknown(0x36, "RPrependQ"),
    unknown(0x37, "RDelete"),
    unknown(0x38, "RDeleteQ"),
    unknown(0x39, "RIncr"),
    unknown(0x3a, "RIncrQ"),
    unknown(0x3b, "RDecr"),
    unknown(0x3c, "RDecrQ"),
    unknown(0xff, "(others)"),
];

/// The entry for unknown opcodes.
const OTHERS: u8 = OPCODES.len() as u8 - 1;

/// The entries for the table of all protocols.
pub(super) static TABLE: [Command; OPCODES.len()] = {
    let mut table = [OPCODES[0].command; OPCODES.len()];
    let mut at = 0;
    while at < table.len() {
        table[at] = OPCODES[at].command;
        at += 1;
    }
    table
};

static BY_CODE: [u8; 256] = {
    let mut rows = [OTHERS; 256];
    let mut at = 0;
    while at < OPCODES.len() {
        rows[OPCODES[at].code as usize] = at as u8;
        at += 1;
    }
    rows
};

static ROWS: [Opcode; OPCODES.len()] = OPCODES;

/// Returns the entry of an opcode.
pub(super) fn of_code(code: u8) -> u16 {
    BY_CODE[usize::from(code)].into()
}

/// Returns the facts of an entry that the parser needs.
pub(super) fn opcode(command: u16) -> &'static Opcode {
    &ROWS[usize::from(command)]
}

/// Returns the class of an entry without regard to arguments.
pub(super) fn class(command: u16) -> Class {
    TABLE[usize::from(command)].class
}

/// Returns the family of an entry.
pub(super) fn family_of(command: u16) -> u8 {
    TABLE[usize::from(command)].family
}
