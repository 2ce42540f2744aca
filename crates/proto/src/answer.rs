//! Answers of the proxy, before a protocol has written them.

use std::borrow::Cow;

use crate::memcached;

/// An answer of the proxy to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// This many values follow, in an order that identifies their keys.
    Open(u64),
    /// Ends the values of a read, or counters.
    End,
    /// A read of one key found nothing.
    Miss,
    /// The request was executed.
    Ok,
    /// The request is queued in a transaction.
    Queued,
    /// As `Ok` to a request that asks nothing, where the client takes every answer for a push.
    Alive,
    /// All earlier requests are settled.
    Barrier,
    /// The connection is about to be closed, as the client asked.
    Bye,
    /// The proxy's name and version. A protocol adds the version that its clients expect.
    Version(&'a str),
    /// One counter; `End` follows the last.
    Stat(&'a str, &'a str),
    /// The request was refused.
    Refused(Refusal),
    /// The client may not do this; a sentence says why.
    Denied(&'a str),
    /// A failure that is not the client's: a sentence that contains the server's name. Nothing has
    /// changed, and the request may be sent again.
    Failed(&'a str),
    /// There is no room for another client; a sentence says why.
    Full(&'a str),
    /// As `Failed`, for a change that has been sent: it may have been made.
    Uncertain(&'a str),
    /// A server's own error line.
    Error(&'a [u8]),
    /// A request of the transaction was refused with this error line, so nothing is executed.
    Aborted(&'a [u8]),
    /// The request's keys belong to different servers; two of the keys and their servers are named.
    /// `tag` holds the bytes that enclose the part of a key that decides its server.
    Apart { keys: [&'a [u8]; 2], servers: [&'a str; 2], tag: Option<[u8; 2]> },
    /// The login succeeded.
    LoggedIn,
    /// The name and password were refused.
    LoginFailed,
    /// The request needs a login first.
    LoginFirst,
}

/// The reason why a request is answered with an error and not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such command.
    Unknown,
    /// A known command that a proxy for many servers cannot forward.
    ByName(&'static str),
    /// As `ByName`, unless the operator allows the command; its name in `allow:`.
    NotAllowed(&'static str),
    /// A mistake of the client, in the protocol's wording.
    Bad(&'static str),
    /// The head has no end within the longest that there may be.
    TooLong,
    /// The body does not end where the head says.
    BadBody,
    /// Its [`Place`] is no server of the pool.
    NoPlace,
    /// It names a database beyond those of the pool.
    NoDatabase,
    /// The value is larger than any server accepts.
    TooLarge,
    /// The value is too large, and the old value of its key could not be removed.
    TooLargeKept,
    /// It begins a transaction within another, or ends one that has not begun.
    OutOfPlace,
}

impl Answer<'_> {
    /// Whether it says that the request was not carried out.
    pub fn is_error(&self) -> bool {
        match self {
            Answer::Refused(_)
            | Answer::Denied(_)
            | Answer::Failed(_)
            | Answer::Full(_)
            | Answer::Uncertain(_)
            | Answer::Error(_)
            | Answer::Aborted(_)
            | Answer::Apart { .. }
            | Answer::LoginFailed
            | Answer::LoginFirst => true,
            Answer::Open(_)
            | Answer::End
            | Answer::Miss
            | Answer::Ok
            | Answer::Queued
            | Answer::Alive
            | Answer::Barrier
            | Answer::Bye
            | Answer::Version(_)
            | Answer::Stat(..)
            | Answer::LoggedIn => false,
        }
    }
}

/// The length of what tells in which protocol a client reads a refusal.
pub const FIRST_LEN: usize = memcached::HEADER_LEN;

/// Returns a refusal, written for a pool's own protocol, in the protocol of a client that has begun
/// with `first`; `None` if that is not known yet and this is not the last chance.
pub fn refusal<'a>(words: &'a [u8], first: &[u8], is_last: bool) -> Option<Cow<'a, [u8]>> {
    match words.starts_with(b"SERVER_ERROR ") {
        true => memcached::refusal(words, first, is_last),
        false => Some(Cow::Borrowed(words)),
    }
}

/// Says how an operator allows a command of this name.
pub(crate) fn not_allowed(name: &str) -> String {
    format!("refused by the proxy: `allow: [{name}]` in its pool permits it")
}
