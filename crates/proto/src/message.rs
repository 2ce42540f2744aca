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
}

/// The outcome of a parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// One message; its `head`, `body` and `trailer` say how long it is.
    Complete(T),
    /// The head is not whole yet.
    Incomplete,
    /// This can never become a message. For a request the text is the refusal; the connection
    /// cannot be read further. For a reply the text is the reason why the link is closed.
    Malformed(&'static str),
}

/// One row of a protocol's command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its word on the wire.
    pub name: &'static str,
    /// What is done with it.
    pub class: Class,
    /// What a reader of the reference should know.
    pub note: &'static str,
}

/// What the data plane does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads any number of keys, each answered by a value or by nothing. Split by server, gathered
    /// in the client's order. `merge`: may share a message with other clients' reads.
    /// `idempotent`: asking again changes nothing, so it may be asked once more on a new link.
    Fetch { merge: bool, idempotent: bool },
    /// One key, one status in answer. Never sent twice.
    Update,
    /// Goes to every server of the pool, where the pool allows it by the command's name.
    Broadcast,
    /// The proxy answers by itself.
    Local(Local),
    /// Never forwarded.
    Refuse(Refusal),
}

/// What the proxy answers by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The proxy's version.
    Version,
    /// Accepted and without effect, like `verbosity`.
    Nothing,
    /// The proxy's own counters.
    Stats,
    /// Close when everything before it has been answered.
    Quit,
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
}

/// A request whose head has been understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Row in [`crate::Protocol::commands`].
    pub command: u8,
    /// What to do with it; for a refusal this differs from the command's own class.
    pub class: Class,
    /// The client wants no answer.
    pub quiet: bool,
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
    /// Length of the whole frame.
    pub fn len(&self) -> u64 {
        u64::from(self.head) + self.body + self.trailer.len() as u64
    }

    /// A frame has at least a head; this exists beside `len` by custom.
    pub fn is_empty(&self) -> bool {
        self.head == 0
    }
}

/// What a reply is measured against: the command that was sent, by its row in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub command: u8,
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
    /// The one status that answers an update or a broadcast.
    Status,
    /// An error of the server's in place of the rest of the reply.
    Error,
}

/// What the proxy says to a client on its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Ends the values of a read.
    End,
    /// Done.
    Ok,
    /// The proxy's version.
    Version(&'a str),
    /// One counter; `End` follows the last.
    Stat(&'a str, &'a str),
    /// The request was refused.
    Refused(Refusal),
    /// A failure that is not the client's: a sentence with the server's name in it.
    Failed(&'a str),
}
