//! Answers of the proxy, before a protocol has written them.

use crate::Refusal;

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
    /// As `Failed`, for a change that has been sent: it may have been made.
    Uncertain(&'a str),
    /// A server's own error line.
    Error(&'a [u8]),
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

impl Answer<'_> {
    /// Whether it says that the request was not carried out.
    pub fn is_error(&self) -> bool {
        match self {
            Answer::Refused(_)
            | Answer::Denied(_)
            | Answer::Failed(_)
            | Answer::Uncertain(_)
            | Answer::Error(_)
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
