//! The commands: the servers' description of each, and the proxy's treatment.
//!
//! ```text
//!   servers ──▶ cargo xtask commands ──▶ table.rs    what the proxy decides by: one line a command
//!   review.txt ──┘        ▲        └───▶ texts.txt   what it only repeats: COMMAND, COMMAND DOCS,
//!                   key_specs.rs                     the notes of docs/reference/commands.md
//! ```
//!
//! In `review.txt` a person has written down the proxy's treatment of each command. `key_specs.rs`
//! names the positions of keys, and `id.rs` the commands that other files speak of. `lookup.rs`
//! finds a command by its name.

pub(super) mod id;
mod key_specs;
mod lookup;
mod table;
mod texts;

use crate::{Ask, Class, Command, Local, Place, Reach, Refusal, TopicKind, Work};
use key_specs::Keys;

pub use key_specs::{Begin, Find, KeySpec};
pub(super) use lookup::{lookup, lookup_at, lookup_sub, row_of};
pub(super) use texts::{Arguments, texts};

/// One command, or one subcommand, whose name is `container|sub`.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its index in the table.
    pub id: u16,
    /// In lower case.
    pub name: &'static str,
    /// The number of arguments, including its name; negative: at least that many.
    pub arity: i16,
    /// The positions of its keys.
    pub keys: Keys,
    /// The proxy's treatment of it.
    pub class: Class,
    /// Its route, if it has no key.
    pub place: Place,
    /// How much work it is for a server.
    pub effort: Effort,
    /// It has subcommands.
    pub container: bool,
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
    &ROWS
}

/// The number of commands.
pub(super) const COUNT: usize = table::LINES.len();

/// Returns the command with this index.
pub(super) const fn row(command: u16) -> &'static Row {
    &ROWS[command as usize]
}

/// Returns the commands as the data plane knows them.
pub(super) fn list() -> &'static [Command] {
    &LIST
}

static ROWS: [Row; COUNT] = {
    let mut rows = [table::LINES[0].row(0); COUNT];
    let mut at = 0;
    while at < rows.len() {
        rows[at] = table::LINES[at].row(at as u16);
        at += 1;
    }
    rows
};

/// The families of commands.
pub(super) const FAMILIES: &[&str] =
    &["string", "hash", "list", "set", "sorted-set", "stream", "key", "script", "other"];

/// The family of commands that have no other, and of those that only the operator knows.
pub(super) const FAMILY_OTHER: u8 = 8;

/// Returns the family of a command by its group: what its keys hold, as far as a command tells.
pub(super) const fn family(command: u16) -> u8 {
    match texts::group(command) {
        b"string" | b"bitmap" | b"hyperloglog" => 0,
        b"hash" => 1,
        b"list" => 2,
        b"set" => 3,
        b"sorted-set" | b"geo" => 4,
        b"stream" => 5,
        b"generic" => 6,
        b"scripting" => 7,
        _ => FAMILY_OTHER,
    }
}

static LIST: [Command; COUNT] = {
    let none = Command {
        name: "",
        class: ROWS[0].class,
        work: Work::Quick,
        family: 0,
        capable: false,
        note: "",
    };
    let mut list = [none; COUNT];
    let mut at = 0;
    while at < list.len() {
        let Row { id, name, class, effort, .. } = ROWS[at];
        let (family, note) = (family(id), texts::note(id));
        list[at] = Command { name, class, work: effort.work(), family, capable: false, note };
        at += 1;
    }
    list
};

/// One line of the table.
#[derive(Clone, Copy)]
struct Line {
    name: &'static str,
    arity: i16,
    /// `READ` or `WRITE`.
    writes: bool,
    keys: Keys,
    effort: Effort,
    treatment: Treatment,
}

const READ: bool = false;
const WRITE: bool = true;

const fn cmd(
    name: &'static str,
    arity: i16,
    writes: bool,
    keys: Keys,
    effort: Effort,
    treatment: Treatment,
) -> Line {
    Line { name, arity, writes, keys, effort, treatment }
}

/// How much work a command is for a server, in the words of `review.txt`. `work.rs` reads the
/// arguments that decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Little.
    Quick,
    /// The data decide, and it is always taken for slow.
    Slow,
    /// As much as the same command was before.
    Varies,
    /// As much as the script or function was before that the first argument names.
    Script,
    /// `range` in `review.txt`: little if the indexes behind the key name few elements.
    Span,
    /// Little if the numbers behind the word LIMIT are small.
    Limit,
    /// Little if the number behind the word COUNT is small.
    Count,
    /// Little if the number behind the key is small, or missing.
    Amount,
    /// Little if the number behind the key is not large: the value may be made as long.
    Offset,
    /// Little if the number behind the key is positive: else the value goes at once.
    Lifetime,
    /// Little if it does not cut off exactly what is too much.
    Trim,
    /// Slow if the number behind the word COUNT is large.
    Scan,
    /// It may wait for elements.
    Wait,
    /// The same if it has the word BLOCK; else as `Count`.
    Stream,
    /// Little, and its client takes a link of its own from then on.
    Watch,
}

impl Effort {
    pub const fn work(self) -> Work {
        match self {
            Effort::Quick => Work::Quick,
            Effort::Slow => Work::Slow,
            _ => Work::Varies,
        }
    }
}

/// The proxy's treatment of a command, in the words of `review.txt`.
#[derive(Clone, Copy)]
enum Treatment {
    /// All its keys are on one server, which answers.
    One,
    /// It has no keys: any server answers.
    Any,
    /// It has no keys: the only server answers, on the link that its client alone has.
    Alone,
    /// It has no keys: the server that the cursor names answers.
    Cursor,
    /// Its keys go to their servers; the replies are gathered.
    Split,
    /// The same, and each key has an element of the reply.
    Each,
    /// It goes to every server; the replies are gathered.
    All,
    /// It goes to the servers that are up; the replies are gathered.
    Survey,
    /// As `All`, if the pool allows it.
    Gated,
    /// As `One`, if the pool allows it.
    GatedOne,
    /// It goes to the servers that are up, if the pool allows it; the answer has an entry for each.
    Report,
    /// It asks what the servers are busy with.
    Status,
    /// It ends what the servers are busy with.
    Kill,
    /// The proxy answers.
    Own,
    /// The proxy answers, and its client watches no keys any more.
    Unwatch,
    /// It begins a transaction.
    Begin,
    /// It executes a transaction.
    Execute,
    /// It forgets a transaction.
    Discard,
    /// The proxy answers: it is about the clients of a tenant, or of a pool that allows it.
    Clients,
    /// The proxy shows what clients ask, if the pool allows it.
    Monitor,
    /// Its first argument is a channel, and one server sends the second to those who listen.
    Channel,
    /// As `Channel`, for shard channels.
    Shard,
    /// Its client listens to topics, or ends it.
    Subscribe,
    /// The proxy answers, and there are subcommands.
    OwnContainer,
    /// It is valid only with a subcommand.
    Container,
    /// It is refused, for this reason.
    No(&'static str),
}

impl Line {
    const fn row(self, id: u16) -> Row {
        use Treatment::*;

        let Line { name, arity, writes, keys, effort, treatment } = self;
        let (ask, idempotent) = (Ask { command: id }, !writes);
        let class = match treatment {
            One | Any | Alone | Cursor => Class::Single { writes },
            Split => Class::Split { ask, element_per_key: false, writes, idempotent },
            Each => Class::Split { ask, element_per_key: true, writes, idempotent },
            All => Class::Broadcast { ask, gated: false, writes, reach: Reach::All },
            Survey => Class::Broadcast { ask, gated: false, writes, reach: Reach::Survey },
            Gated => Class::Broadcast { ask, gated: true, writes, reach: Reach::All },
            GatedOne => Class::Broadcast { ask, gated: true, writes, reach: Reach::Keys },
            Report => Class::Broadcast { ask, gated: true, writes, reach: Reach::Survey },
            Status => Class::Broadcast { ask, gated: false, writes, reach: Reach::Control },
            Kill => Class::Broadcast { ask, gated: false, writes: true, reach: Reach::Control },
            Own | OwnContainer => Class::Local(Local::Own),
            Clients => Class::Local(Local::Clients),
            Monitor => Class::Local(Local::Monitor),
            Unwatch => Class::Local(Local::Unwatch),
            Begin => Class::Local(Local::Begin),
            Execute => Class::Local(Local::Execute),
            Discard => Class::Local(Local::Discard),
            Channel | Shard => {
                let kind = match treatment {
                    Shard => TopicKind::Shard,
                    _ => TopicKind::Channel,
                };
                Class::Broadcast { ask, gated: false, writes: true, reach: Reach::Channel(kind) }
            }
            Subscribe => Class::Local(Local::Subscribe),
            Container => Class::Refuse(Refusal::Unknown),
            No(why) => Class::Refuse(Refusal::ByName(why)),
        };
        let place = match treatment {
            One | Split | Each | GatedOne | Channel | Shard => Place::Keys,
            Cursor => Place::Nth(0),
            Alone => Place::Own,
            _ => Place::Any,
        };
        let container = matches!(treatment, Container | OwnContainer);
        Row { id, name, arity, keys, class, place, effort, container }
    }
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
* a cursor for `SCAN` that is not a number.

The column *work* says how much a command may keep a server from everything else. `slow`: the data
decide, and it is always taken for slow. `varies`: the data or the arguments decide. Such a command
is quick until one of the same name has taken more than 10 ms at that server; a script or a function
has a name of its own, which is its text, its digest or its name. The arguments show that some are
quick: at most 1000 elements between two indexes, behind `LIMIT` or `COUNT`, or popped. A `SCAN` of
any kind is slow if its `COUNT` is above 1000, and quick otherwise. All other commands are quick.

A request without keys goes to one server or to all. If a script or a function reads keys that were
not declared, it reads those of one server, and the proxy cannot detect it.
";
