//! The neutral types between a protocol and the data plane: request, item, answer.

use crate::{Refusal, TopicKind, Work};

/// A position in a frame's head: `head[start..end]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// Makes the span `start..end`. A head is far below 4 GiB: `limits` in the data plane ensures
    /// it.
    pub fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    /// Whether it contains no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns its bytes.
    pub fn of(self, head: &[u8]) -> &[u8] {
        &head[self.start as usize..self.end as usize]
    }
}

/// The parser's state in an unfinished head, so that no input is read twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Bytes already searched for the end of the head.
    pub scanned: usize,
    /// Where a protocol counts the parts of a head: how long the input must be before more of it
    /// can be read, as far as is known.
    pub needs: usize,
    /// Parts of the head still to come after `scanned`, and `OWN`.
    pub left: u32,
    /// The length of the longest part whose length is known: 0 if none is long. A complete head
    /// leaves it, and nothing else here has a meaning then.
    pub longest: u32,
}

impl Resume {
    /// The bit of `left` that is for the protocol's own use.
    pub const OWN: u32 = 1 << 31;

    /// Returns how many parts of the head are still to come, where the protocol counts them.
    pub fn parts_left(&self) -> u32 {
        self.left & !Resume::OWN
    }
}

/// The parser's state in a reply of which some items have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Elements still to come, where a protocol counts them; 0 before the first item.
    pub left: u64,
}

/// The outcome of a parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// One message; its `head`, `body` and `trailer` give its length.
    Complete(T),
    /// The head is incomplete.
    Incomplete,
    /// These bytes can never become a message. For a reply, the text is the reason why the link is
    /// closed. For a request, the text is the refusal, and the connection cannot be read further.
    /// An empty text means that the client uses another protocol, perhaps against its user's will,
    /// and gets no answer.
    Malformed(&'static str),
}

/// One entry of a protocol's command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The command's name on the wire.
    pub name: &'static str,
    /// How the data plane handles it.
    pub class: Class,
    /// How much work it is for a server.
    pub work: Work,
    /// Its family: an index into [`crate::Upstream::families`].
    pub family: u8,
    /// Some forms of it need capabilities that not every server has, and are refused without them.
    pub capable: bool,
    /// A note for readers of the reference.
    pub note: &'static str,
}

/// How the data plane handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads any number of keys, each answered by a value or by nothing. It is split by server and
    /// gathered in the client's order. `ask` is the form for the server. `merge`: it may share a
    /// message with other clients' reads. `idempotent`: sending it again changes nothing, so it may
    /// be sent once more on a new link. A read whose reply is rendered has one key, or was joined
    /// from such reads.
    Fetch { ask: Ask, merge: bool, idempotent: bool },
    /// All its keys belong to one server, which gives one reply. Without keys, its [`Place`]
    /// decides the route. `writes`: it changes something, and is never sent twice.
    Single { writes: bool },
    /// Any number of keys, sent to their servers and gathered into one answer. If all keys belong
    /// to one server, it is handled as a `Single`. `element_per_key`: each reply has one element
    /// for each key, and so has the answer, in the client's order. Otherwise
    /// [`crate::Protocol::gather`] makes the answer.
    Split { ask: Ask, element_per_key: bool, writes: bool, idempotent: bool },
    /// Goes to every server of the pool, or to its keys' server; the replies are gathered. `gated`:
    /// only where the pool allows it by name. `reach`: the servers that it needs.
    Broadcast { ask: Ask, gated: bool, writes: bool, reach: Reach },
    /// The proxy answers by itself.
    Local(Local),
    /// Never forwarded.
    Refuse(Refusal),
}

impl Class {
    /// Whether such a request, sent to a server, changes something there.
    #[inline]
    pub fn is_update(&self) -> bool {
        match *self {
            // Nearly all requests of which that is asked.
            Class::Single { writes } => writes,
            _ => self.is_update_of_many(),
        }
    }

    #[inline(never)]
    fn is_update_of_many(&self) -> bool {
        match *self {
            Class::Single { writes }
            | Class::Split { writes, .. }
            | Class::Broadcast { writes, .. } => writes,
            Class::Fetch { .. } | Class::Local(_) | Class::Refuse(_) => false,
        }
    }
}

/// The servers that a broadcast needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every server: it is a change, or a question to which a partial answer would be wrong.
    All,
    /// The servers that are up. The answer names the others, and is an error only if no server
    /// answers.
    Survey,
    /// The one server that all its keys belong to.
    Keys,
    /// One server, by its key, a channel; any server where subscriptions stand on all of them.
    Channel(TopicKind),
    /// The only server of the pool, as several answers could not be merged.
    Sole,
    /// Every server. It ends what a server is busy with, so it must not wait for that: it needs a
    /// link on which the server owes nothing, and is neither held nor bounded. A server that cannot
    /// be asked keeps no other from it, and one success is success.
    Control,
}

/// A request that the proxy answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The proxy's version.
    Version,
    /// Accepted without effect.
    Nothing,
    /// The proxy's own counters.
    Stats,
    /// Answered when all earlier requests of its client, quiet ones included, are settled.
    Barrier,
    /// Closes the connection when everything before it has been answered.
    Quit,
    /// A local command of the protocol: [`crate::Protocol::local`].
    Own,
    /// The same about clients: of the caller's tenant, or else of a pool that allows it by name.
    Clients,
    /// Shows what clients ask, where the pool allows it by name.
    Monitor,
    /// The client watches no keys any more.
    Unwatch,
    /// Begins a transaction: the client's next requests are queued.
    Begin,
    /// Executes the requests that are queued.
    Execute,
    /// Forgets the requests that are queued.
    Discard,
    /// Listens to topics, or ends it: [`crate::Protocol::topics`].
    Subscribe,
}

/// What becomes of a request in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTransaction {
    /// It is queued, and its server executes it with the others.
    Queued,
    /// The proxy's own answer becomes an element of the answer to the transaction.
    Answered,
    /// It is queued, and its server executes it with the others. Afterwards its connection, and so
    /// its client, is in this database.
    Selects(u32),
    /// It is handled at once, as outside of transactions: it ends the connection, or all that the
    /// connection has.
    AtOnce,
    /// It is answered with this error at once, and does no harm to the transaction.
    Harmless(Refusal),
    /// It is refused, and the transaction with it.
    Refused(Refusal),
    /// It is no request, and has no answer.
    Nothing,
}

/// The route of a request that one server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// To its keys' server.
    #[default]
    Keys,
    /// To any server.
    Any,
    /// To the server with this index in the pool.
    Nth(u32),
    /// To the first server of the plan from this index on.
    From(u32),
    /// To the only server of the pool: where there are several, the request names none of them.
    Nowhere,
    /// To the only server of the pool: it may touch keys that cannot be found in it.
    Sole,
    /// To the only server of the pool, where each client has links of its own: it is about what was
    /// asked before on the same connection.
    Own,
}

/// A request whose head has been parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Index into [`crate::Protocol::commands`].
    pub command: u16,
    /// Its class; for a refusal it differs from the command's own class.
    pub class: Class,
    /// The family of its command.
    pub family: u8,
    /// The answers that the client wants.
    pub quiet: Quiet,
    /// Its relation to the marks of items.
    pub marks: MarkUse,
    /// Its head is needed for its answer, because the server's reply is rendered. Other replies
    /// pass unchanged.
    pub keep: bool,
    /// It is kept whole until it is answered, so that it can be sent again after a retryable error:
    /// see [`Retryable`].
    pub repeat: bool,
    /// It contains a value to be stored.
    pub stores: bool,
    /// It is known that servers are sent its head as it is.
    pub plain: bool,
    /// How much work it is for a server, as far as its command tells.
    pub work: Work,
    pub place: Place,
    /// A database other than the client's that it accesses, if that is not the first.
    pub database: u32,
    /// Length of the head.
    pub head: u32,
    /// Length of the body, without its trailer.
    pub body: u64,
    /// Bytes that must end the body; empty if there is no body.
    pub trailer: &'static [u8],
    /// The position of arguments in the head, for the protocol's own use.
    pub arguments: Span,
}

impl Request {
    /// Makes a stand-in for an answer that no request asked for.
    pub fn placeholder() -> Request {
        Request {
            command: Asked::NO_REQUEST,
            class: Class::Refuse(Refusal::Unknown),
            family: 0,
            quiet: Quiet::Loud,
            marks: MarkUse::None,
            keep: false,
            repeat: false,
            stores: false,
            plain: false,
            work: Work::Quick,
            place: Place::Keys,
            database: 0,
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

    /// A frame has at least a head; this exists beside `len` by convention.
    pub fn is_empty(&self) -> bool {
        self.head == 0
    }
}

/// The answers that a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quiet {
    /// All answers.
    #[default]
    Loud,
    /// The answers that its protocol does not hide from a quiet request: mostly errors.
    Sparing,
    /// No answer, not even an error.
    Silent,
}

/// The relation of a request to marks: notes on items that some forms of a read show and other
/// forms hide. A read that would show them may be sent in a form that hides them, which merges,
/// for as long as no client of the pool has asked for marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkUse {
    /// It has nothing to do with marks.
    #[default]
    None,
    /// Its answer would show them: once marks are in use, it is sent as a `Single` in its own form.
    Shows,
    /// It may set marks, or asks for them.
    Sets,
}

/// The form of a request for a server, as an index into the table of the servers' protocol. The
/// server's reply is checked against it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub command: u16,
}

impl Ask {
    /// A bit beside the index: the request and its reply pass as they are, although the command has
    /// a form of its own where there are several servers.
    const UNCHANGED: u16 = 1 << 15;

    /// Returns the form for the only server of a pool.
    pub fn unchanged(self) -> Ask {
        Ask { command: self.command | Ask::UNCHANGED }
    }

    pub fn is_unchanged(self) -> bool {
        self.command & Ask::UNCHANGED != 0
    }

    /// Returns the index into the table.
    pub fn index(self) -> u16 {
        self.command & !Ask::UNCHANGED
    }
}

/// A command that the operator has declared: the positions of its keys among its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra {
    /// The name, in lower case.
    pub name: String,
    /// The first key; the command's name is argument 0.
    pub first: u32,
    /// The last key; a negative number counts from the end, -1 being the last argument.
    pub last: i32,
    /// The distance from one key to the next.
    pub step: u32,
    pub writes: bool,
}

/// The form of a request for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapted {
    /// In this form.
    Ask(Ask),
    /// The form depends on capabilities that are unknown.
    Unknown,
    /// No form for the server means the same.
    Refused(Refusal),
}

/// The request that is being answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Index into the table of the client's protocol; `UNKNOWN` if its command is none of them, and
    /// `NO_REQUEST` if no request is answered.
    pub command: u16,
    pub quiet: Quiet,
    /// The form in which the server was asked, if one was.
    pub ask: Ask,
    /// Its head, if the request has `keep`, is a broadcast, or is being answered at once. If the
    /// bytes were no request, they are here. Otherwise empty. A broadcast's head that is too long
    /// to be kept for sending it again is kept only if the request has `repeat`.
    pub head: &'a [u8],
    /// The server's index, if no key decided it; of subscribers, how many it does not know of.
    pub at: u32,
    /// The index of the server after it, if there is one.
    pub next: Option<u32>,
}

impl Asked<'_> {
    /// The command of an answer that no request asked for.
    pub const NO_REQUEST: u16 = u16::MAX;
    /// The command of a request that is refused before its command is known. No table has it.
    pub const UNKNOWN: u16 = u16::MAX - 1;

    /// Makes a stand-in for an answer that no request asked for, before a connection is closed.
    pub fn no_request() -> Asked<'static> {
        let (command, quiet) = (Asked::NO_REQUEST, Quiet::Loud);
        Asked { command, quiet, ask: Ask::default(), head: b"", at: 0, next: None }
    }
}

/// The part of a server's item that the client gets after the head that `render` wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing, and no head was written either.
    Nothing,
    /// Nothing after the head.
    Head,
    /// The item's body, and then these bytes in place of its trailer.
    Body { trailer: &'static [u8] },
}

/// The keys that a request can reach at servers, as far as the request tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Those that it names, and no others.
    Named,
    /// None.
    Nothing,
    /// Those that begin like one of these patterns; a pattern has the form of the servers' own.
    Matching,
    /// Any: it does not name those that it reaches.
    Any,
}

/// A database that a request reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// That of its connection.
    Own,
    /// This one alone: it changes that of its connection.
    Only(u32),
    /// That of its connection, and this one.
    Also(u32),
    /// All of them.
    All,
    /// None.
    Nothing,
}
