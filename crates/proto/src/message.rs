//! The neutral words between a protocol and the data plane: request, item, answer.

/// A place in a frame's head: `head[start..end]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// The span `start..end`; a head is far below 4 GiB (`limits` in the data plane see to it).
    pub fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    /// Whether it names no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The bytes it names.
    pub fn of(self, head: &[u8]) -> &[u8] {
        &head[self.start as usize..self.end as usize]
    }
}

/// What a protocol remembers of an unfinished head, so that more input is not read twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Bytes already searched for the end of the head.
    pub scanned: usize,
    /// Parts of the head that are still to come after those, where a protocol counts them.
    pub left: u32,
}

/// What is remembered of a reply of which some items have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Elements still to come, where a protocol counts them; 0 before the first item.
    pub left: u64,
}

/// The outcome of a parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// One message; its `head`, `body` and `trailer` say how long it is.
    Complete(T),
    /// The head is not whole yet.
    Incomplete,
    /// This can never become a message. For a request the text is the refusal; the connection
    /// cannot be read further; without a text it speaks another protocol, perhaps against its
    /// user's will, and is told nothing. For a reply the text is the reason why the link is closed.
    Malformed(&'static str),
}

/// One row of a protocol's command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its word on the wire.
    pub name: &'static str,
    /// What is done with it.
    pub class: Class,
    /// Some forms of it need skills that not every server has, and are refused without them.
    pub skilled: bool,
    /// What a reader of the reference should know.
    pub note: &'static str,
}

/// What the data plane does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads any number of keys, each answered by a value or by nothing. Split by server, gathered
    /// in the client's order. `ask`: what the server is asked. `merge`: may share a message with
    /// other clients' reads. `idempotent`: asking again changes nothing, so it may be asked once
    /// more on a new link. One that is translated has one key, or was joined from such.
    Fetch { ask: Ask, merge: bool, idempotent: bool },
    /// All its keys belong to one server, which gives one reply; without keys it goes where its
    /// [`Place`] says. `writes`: it changes something, and is never sent twice.
    Single { writes: bool },
    /// Any number of keys, asked of their servers and gathered into one answer. Where all belong to
    /// one server it is a `Single`. `each`: a reply has an element for each key asked, and so has
    /// the answer, in the client's order; otherwise [`crate::Protocol::gather`] makes it.
    Split { ask: Ask, each: bool, writes: bool, idempotent: bool },
    /// Goes to every server of the pool, or to that of its keys; the replies are gathered. `gated`:
    /// only where the pool allows it by the name of what is asked. `reach`: which servers it needs.
    Broadcast { ask: Ask, gated: bool, writes: bool, reach: Reach },
    /// The proxy answers by itself.
    Local(Local),
    /// Never forwarded.
    Refuse(Refusal),
}

/// What a broadcast needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every server: it is a change, or a question to which a part would be a wrong answer.
    All,
    /// Those that are up. The answer names the others, and is an error only if there is no other
    /// answer.
    Survey,
    /// The one server that all its keys belong to.
    Keys,
    /// The only server of the pool: several answers could not be made one.
    Sole,
}

/// What the proxy answers by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The proxy's version.
    Version,
    /// Accepted and without effect, like `verbosity`.
    Nothing,
    /// A read that names no key: nothing is found.
    NoKeys,
    /// The proxy's own counters.
    Stats,
    /// Answered when everything that its client asked before, quiet requests too, is settled.
    Barrier,
    /// Close when everything before it has been answered.
    Quit,
    /// The protocol's own affair: [`crate::Protocol::converse`].
    Own,
}

/// Where a request goes that one server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Where its keys belong.
    #[default]
    Keys,
    /// To any server.
    Any,
    /// To the server in this place of the pool.
    Nth(u32),
    /// To the first server in this place or behind it.
    From(u32),
    /// To the only server of the pool: it may touch keys that cannot be told from it.
    Sole,
}

/// Why a request is answered with an error and not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such command.
    Unknown,
    /// A known command that a proxy in front of many servers cannot pass on.
    ByName(&'static str),
    /// The client's mistake, in the protocol's words.
    Bad(&'static str),
    /// The value is larger than any server would take.
    TooLarge,
    /// The same, and what is stored under its key could not be removed.
    TooLargeKept,
}

/// A request whose head has been understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Row in [`crate::Protocol::commands`].
    pub command: u16,
    /// What to do with it; for a refusal this differs from the command's own class.
    pub class: Class,
    /// Which answers the client wants.
    pub quiet: Quiet,
    /// What it has to do with the marks that items can bear.
    pub marks: Marks,
    /// Its head is needed when it is answered: what the server says is translated. Otherwise that
    /// passes as it came.
    pub keep: bool,
    /// It is kept whole until it is answered, so that it can be asked again if its server says that
    /// it did nothing: see [`Excuse`].
    pub repeat: bool,
    /// It brings a value to be stored.
    pub stores: bool,
    pub place: Place,
    /// A database other than the client's that it reaches into, if that is not the first.
    pub space: u32,
    /// Length of the head.
    pub head: u32,
    /// Length of the body, without its trailer.
    pub body: u64,
    /// Bytes that must end the body; empty where there is no body.
    pub trailer: &'static [u8],
    /// Where the head's arguments after the key stand (the protocol's own use).
    pub arguments: Span,
}

impl Request {
    /// What nobody asked, to which something is said all the same.
    pub fn nobody() -> Request {
        Request {
            command: Asked::NOBODY,
            class: Class::Refuse(Refusal::Unknown),
            quiet: Quiet::Loud,
            marks: Marks::None,
            keep: false,
            repeat: false,
            stores: false,
            place: Place::Keys,
            space: 0,
            head: 0,
            body: 0,
            trailer: b"",
            arguments: Span::default(),
        }
    }

    /// Length of the whole frame.
    pub fn len(&self) -> u64 {
        u64::from(self.head) + self.body + self.trailer.len() as u64
    }

    /// A frame has at least a head; this exists beside `len` by custom.
    pub fn is_empty(&self) -> bool {
        self.head == 0
    }
}

/// Which answers a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quiet {
    /// All.
    #[default]
    Loud,
    /// Those that its protocol does not hide from a quiet request: mostly bad news.
    Sparing,
    /// None, not even an error.
    Silent,
}

/// Some servers mark items: stale, or being refilled by the client that was told to. The newer
/// forms of a read tell of the marks and move them, the classic ones do neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marks {
    /// Has nothing to do with them.
    #[default]
    None,
    /// Its answer would tell of them: once marks are in use it cannot be asked in a classic form.
    Shows,
    /// May leave marks, or asks for them.
    Makes,
}

/// What a server is asked, by its row in the table of the servers' protocol. Its reply is measured
/// against it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub command: u16,
}

/// What a server can do beyond what every server can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skills {
    /// memcached's meta commands.
    pub meta: bool,
    /// Redis's third protocol.
    pub resp3: bool,
    pub make: Make,
}

/// What a server says that it is, where clients are told so. Versions: major, minor, patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Make {
    /// The program; empty where servers are different ones.
    pub name: &'static str,
    pub version: [u16; 3],
    /// The version of the program that it says it is like: of its own, if it is like no other.
    pub like: [u16; 3],
}

impl Make {
    /// What both are, and the older version.
    fn common(self, other: Make) -> Make {
        Make {
            name: if self.name == other.name { self.name } else { "" },
            version: self.version.min(other.version),
            like: self.like.min(other.like),
        }
    }
}

impl Skills {
    /// Whether whoever has these can do all that whoever has `others` can.
    pub fn include(self, others: Skills) -> bool {
        (self.meta || !others.meta) && (self.resp3 || !others.resp3)
    }

    /// What both can.
    pub fn common(self, other: Skills) -> Skills {
        Skills {
            meta: self.meta && other.meta,
            resp3: self.resp3 && other.resp3,
            make: self.make.common(other.make),
        }
    }
}

/// Links are shared by requests of the same lane only: what a server is told first on a link holds
/// for everything that follows on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// Which version of the servers' protocol; 0 where there is one.
    pub dialect: u8,
    /// Which of a server's databases.
    pub space: u32,
}

/// Why a server says that it did nothing of what it was asked, so that it can be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excuse {
    /// It is reading its data.
    Loading,
    /// It is a replica that has lost its master.
    MasterDown,
    ClusterDown,
    TryAgain,
    /// It does not know the script that is named.
    NoScript,
}

/// A command that the operator has told of: which of its arguments are keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra {
    /// In lower case.
    pub name: String,
    /// The first key; the command's name is argument 0.
    pub first: u32,
    /// The last one; negative: counted from the end, -1 is the last argument.
    pub last: i32,
    /// From one key to the next.
    pub step: u32,
    pub writes: bool,
}

/// How a request can be carried to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// In this form.
    Ask(Ask),
    /// That depends on skills which are not known.
    Unknown,
    /// Not at all, without changing what it means.
    Refused(Refusal),
}

/// The request that something answers.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Row in the table of the client's protocol; `NOBODY` where nothing was asked.
    pub command: u16,
    pub quiet: Quiet,
    /// What the server was asked, if one was.
    pub ask: Ask,
    /// Its head, if the request has `keep`, is a broadcast, or is being answered at once; what was
    /// sent, where that is no request; otherwise empty. A broadcast's head that is longer than what
    /// is kept to be asked again is kept only if the request has `repeat`.
    pub head: &'a [u8],
    /// The place of the server that was asked, where that was not found by a key; and that of the
    /// server after it, if there is one.
    pub at: u32,
    pub next: Option<u32>,
}

impl Asked<'_> {
    /// The command of what nobody asked.
    pub const NOBODY: u16 = u16::MAX;

    /// What is said unasked, before a connection is closed.
    pub fn nobody() -> Asked<'static> {
        let (command, quiet) = (Asked::NOBODY, Quiet::Loud);
        Asked { command, quiet, ask: Ask::default(), head: b"", at: 0, next: None }
    }
}

/// What of a server's item a client is shown after the head that `translate` wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing at all: no head was written.
    Nothing,
    /// No more.
    Head,
    /// The item's body, and then these bytes in place of its trailer.
    Body { trailer: &'static [u8] },
}

/// What came of the first words on a new link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The server's answer, of so many bytes, told what it can do.
    Welcome { len: usize, skills: Skills },
    /// It does not know who we say we are, or wants a login that we did not try.
    LoginRefused,
    /// It has no such lane; otherwise it is well.
    LaneRefused,
}

/// One item of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub kind: ItemKind,
    /// Length of the head.
    pub head: u32,
    /// Length of the body, without its trailer.
    pub body: u64,
    /// Bytes that must end the body.
    pub trailer: &'static [u8],
    /// A value's key, in the head.
    pub key: Span,
}

impl Item {
    /// Length of the whole item.
    pub fn len(&self) -> u64 {
        u64::from(self.head) + self.body + self.trailer.len() as u64
    }

    /// An item has at least a head; this exists beside `len` by custom.
    pub fn is_empty(&self) -> bool {
        self.head == 0
    }
}

/// What an item is to the request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// The value of one of the keys that were asked; more items follow.
    Value,
    /// No more values.
    End,
    /// The one item that answers a single request or a broadcast. It may have a body.
    Status,
    /// An error of the server's in place of the rest of the reply.
    Error,
    /// A piece of the reply to a single request or a broadcast; the last one is a `Status`.
    Part,
}

impl ItemKind {
    /// Whether a reply ends with it.
    pub fn ends(self) -> bool {
        !matches!(self, ItemKind::Value | ItemKind::Part)
    }
}

/// What the proxy says to a client on its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// So many values follow, in an order that tells whose they are.
    Open(u64),
    /// Ends the values of a read, or counters.
    End,
    /// A read of one key found nothing.
    Miss,
    /// Done.
    Ok,
    /// Everything before is settled.
    Barrier,
    /// The connection is about to be closed, as the client asked.
    Bye,
    /// Our name and version. A protocol adds what its clients go by.
    Version(&'a str),
    /// One counter; `End` follows the last.
    Stat(&'a str, &'a str),
    /// The request was refused.
    Refused(Refusal),
    /// A failure that is not the client's: a sentence with the server's name in it. Nothing has
    /// changed, and it may be asked again.
    Failed(&'a str),
    /// As `Failed`, of a change that has been sent: it may have been made.
    Uncertain(&'a str),
    /// A server's own error line.
    Error(&'a [u8]),
    /// The request's keys, of which these are two, belong to different servers, which are named.
    /// `tag`: between these bytes the pool finds what alone decides where a key lives.
    Apart { keys: [&'a [u8]; 2], servers: [&'a str; 2], tag: Option<[u8; 2]> },
    /// How to log in.
    Mechanisms,
    /// Welcome.
    LoggedIn,
    /// Not with this name and password.
    LoginFailed,
    /// Not before a login.
    LoginFirst,
}
