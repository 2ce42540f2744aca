//! Wire protocols: bytes to requests and replies, and back. Pure: no socket, clock or state.
//!
//! A protocol is one value in [`PROTOCOLS`]. The data plane knows only the [`Protocol`] trait and
//! the neutral words of `message.rs`; it never asks which protocol it is speaking. The conformance
//! suite (`tests/conformance.rs`) and the fuzzers loop over the table, so a new row is tested from
//! its first day.
//!
//! Every frame has the same outline, whatever the protocol:
//!
//! ```text
//!   head (short, needed whole)      body (any length, passed by reference)   trailer
//!   set k 0 0 1000000\r\n           <one million bytes>                      \r\n
//!   VALUE k 0 1000000\r\n           <one million bytes>                      \r\n
//!   get a b c\r\n                   -                                        -
//! ```
//!
//! So `parse_*` looks at heads only, is linear, and a body is never looked at but for its end.

pub mod memcached;
mod message;
mod part;
pub mod redis;
pub mod scan;
mod session;

use std::borrow::Cow;

pub use message::{
    Answer, Ask, Asked, Carry, Class, Command, Excuse, Extra, Heard, Item, ItemKind, Lane, Local,
    Make, Marks, Parsed, Place, Progress, Quiet, Reach, Refusal, Request, Resume, Shown, Skills,
    Span,
};
pub use part::{Ours, Part, Process, Said, Totals};
pub use session::{Credentials, Ends, Facts, Login, Muted, Profile, Session, Turn};

/// Every protocol that clients speak.
pub static PROTOCOLS: &[&dyn Protocol] = &[&memcached::Text, &memcached::Binary, &redis::Redis];

/// Those that a configuration names; a connection's first byte may tell of another.
pub static NAMED: &[&dyn Protocol] = &[&memcached::Text, &redis::Redis];

/// The protocol of that name in a configuration.
pub fn protocol(name: &str) -> Option<&'static dyn Protocol> {
    NAMED.iter().copied().find(|protocol| protocol.name() == name)
}

/// What clients speak. Stateless: what a half-read frame needs is in [`Resume`].
///
/// A client's protocol knows how its requests are carried to the servers that stand behind it, and
/// how what these say is told to the client.
pub trait Protocol: Sync {
    /// The name used in configurations and reports.
    fn name(&self) -> &'static str;

    /// What a reader of the reference should know of it as a whole, in Markdown.
    fn about(&self) -> &'static str {
        ""
    }

    /// What a connection to a listener of this protocol speaks whose first byte this is.
    fn spoken(&self, first: u8) -> &'static dyn Protocol;

    /// What the servers speak.
    fn upstream(&self) -> &'static dyn Upstream;

    /// Where a connection begins: without a database of its own.
    fn lane(&self) -> Lane {
        Lane::default()
    }

    /// Every command it knows, also those that are refused. [`Request::command`] is an index here.
    fn commands(&self) -> &'static [Command];

    /// Reads one request at the start of `input`, its head only. `keys` is cleared and then holds
    /// the place of each key in the head. `resume` must be `default()` at the start of each frame
    /// and be given back unchanged with the same, longer input after `Incomplete`.
    fn parse_request(
        &self,
        input: &[u8],
        resume: &mut Resume,
        keys: &mut Vec<Span>,
    ) -> Parsed<Request>;

    /// What follows a quiet read of one key in `input`, which begins with it, and can be asked and
    /// answered as one with it: more of the same. The head grows by theirs, which stand one after
    /// the other and end each with its key; `keys` grows by their keys, to `most` at most. What
    /// answers a key is told with the part of the head that is its own.
    fn join(&self, request: &mut Request, input: &[u8], keys: &mut Vec<Span>, most: usize);

    /// A key as a server knows it, by which it is routed: decoded, where it stands encoded in the
    /// head. `scratch` may be used to hold it.
    fn key<'a>(
        &self,
        request: &Request,
        head: &'a [u8],
        span: Span,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8];

    /// How a single request can be carried to a server with these skills, if they are known. Of
    /// what the protocol answers by itself: `Unknown` if it needs to know what servers can do.
    fn carry(&self, request: &Request, head: &[u8], skills: Option<Skills>) -> Carry;

    /// Writes the head that goes to a server for a request that is forwarded whole: canonical, in
    /// the form of `ask`, which answers always, so that completion is always known.
    fn write_head(
        &self,
        request: &Request,
        head: &[u8],
        keys: &[Span],
        ask: Ask,
        out: &mut Vec<u8>,
    );

    /// Writes what a server needs after the body, beyond the trailer that the client sent.
    fn write_tail(&self, request: &Request, ask: Ask, out: &mut Vec<u8>);

    /// Starts a read of several keys; `head` is the request's own and may hold arguments.
    fn open_fetch(&self, request: &Request, head: &[u8], out: &mut Vec<u8>);

    /// What a server needs after the key `nth` of a request that is split, beyond the key.
    fn push_rest(
        &self,
        _request: &Request,
        _head: &[u8],
        _keys: &[Span],
        _nth: usize,
        _out: &mut Vec<u8>,
    ) {
    }

    /// Makes one answer of what several servers said, in the order asked, and of what the proxy
    /// knows itself. It writes the answer in the client's words.
    fn gather(
        &self,
        asked: &Asked<'_>,
        parts: &mut dyn Iterator<Item = Part<'_>>,
        ours: &dyn Ours,
        out: &mut Vec<u8>,
    );

    /// Answers what is the protocol's own affair; may change what is known of the client.
    fn converse(
        &self,
        _request: &Request,
        _head: &[u8],
        _session: &mut Session,
        _facts: &Facts<'_>,
        _out: &mut Vec<u8>,
    ) -> Turn {
        unreachable!("no request of this protocol is its own affair")
    }

    /// Whether its own answer to this tells where the connection begins and ends.
    fn tells_ends(&self, _request: &Request) -> bool {
        false
    }

    /// Makes a request that can be routed of one whose command only the operator knows.
    fn adopt(
        &self,
        _request: &mut Request,
        _input: &[u8],
        _keys: &mut Vec<Span>,
        _extras: &[Extra],
    ) -> bool {
        false
    }

    /// What the answer to a broadcast teaches: a name, and the text that it stands for.
    fn learn<'a>(&self, _asked: &Asked<'a>, _reply: &'a [u8]) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
        None
    }

    /// Whether a broadcast means that no name that was learnt stands for anything any more.
    fn forgets(&self, _asked: &Asked<'_>) -> bool {
        false
    }

    /// Writes what to ask a server first, so that it does not excuse itself so again. `known` finds
    /// the text of a name that was learnt. The reply to it is nobody's.
    fn remedy(
        &self,
        _asked: &Asked<'_>,
        _excuse: Excuse,
        _known: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
        _out: &mut Vec<u8>,
    ) -> Option<Ask> {
        None
    }

    /// Writes the request, in this protocol, that removes what is stored under the key of one whose
    /// data there is no room for, if that is what servers do with such a request: else its client
    /// would go on reading what it meant to replace.
    fn removal(&self, _request: &Request, _head: &[u8], _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Whether this item, which begins with `head`, can answer a single request with `keep`: what
    /// it repeats of the request, a key or what the client tells its requests by, is what was
    /// asked.
    fn is_answer(&self, _asked: &Asked<'_>, _item: &Item, _head: &[u8]) -> bool {
        true
    }

    /// Whether a single read with `keep` found something, by the item that answers it; none if it
    /// was no read.
    fn found(&self, _asked: &Asked<'_>, _item: &Item, _head: &[u8]) -> Option<bool> {
        None
    }

    /// Tells an item of a server's reply in the client's words: writes its head, and says what of
    /// the body follows. For requests with `keep`, and for reads that were asked together with
    /// others in a form that tells more; whatever answers others passes as it came.
    fn translate(&self, asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown;

    /// Writes an answer of the proxy's own to a client; nothing, where a quiet request hides it.
    fn answer(&self, asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>);

    /// What a whole request is where a login comes first.
    fn login<'a>(&self, request: &Request, head: &'a [u8], body: &'a [u8]) -> Login<'a>;
}

/// What servers speak.
pub trait Upstream: Sync {
    /// Reads one item of a server's reply at the start of `input`, its head only. What cannot be
    /// a reply to `ask` is `Malformed`: the caller must not believe anything after it. `progress`
    /// must be `default()` at the start of each reply and be given back as it was left.
    fn parse_reply(&self, ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item>;

    /// What a server must be able to do to be asked so.
    fn needs(&self, ask: Ask) -> Skills;

    /// What a server with these skills lacks, so that clients are refused some of what they may
    /// ask, in words for the operator.
    fn lacks(&self, _skills: Skills) -> Option<&'static str> {
        None
    }

    /// The longest message of such a read that every server takes, bytes.
    fn fetch_max(&self, ask: Ask) -> usize;

    /// The read whose values tell all that those of either tell, if the two can share a message. A
    /// value that tells more than was asked for is translated.
    fn widen(&self, ask: Ask, other: Ask) -> Option<Ask>;

    /// Adds one key to a read that `open_fetch` began; where in `out` the key begins.
    fn push_fetch(&self, key: &[u8], out: &mut Vec<u8>) -> usize;

    /// Writes the whole message of a read of so many keys, of which `text` has been written.
    fn seal_fetch(&self, ask: Ask, keys: usize, text: &[u8], out: &mut Vec<u8>);

    /// What is said first on a new link. Its answer proves that the server is there, and teaches
    /// what it can do.
    fn hello(&self, credentials: Option<&Credentials>, lane: Lane, out: &mut Vec<u8>);

    /// Reads that answer; `credentials`: they were given. `Malformed` says why the link is useless.
    fn hear(&self, credentials: bool, lane: Lane, input: &[u8]) -> Parsed<Heard>;

    /// Of a whole reply that is a list: where its elements begin, and how many they are.
    fn elements(&self, _reply: &[u8]) -> Option<(usize, u64)> {
        None
    }

    /// The length of the element that begins here.
    fn element_len(&self, _elements: &[u8]) -> Option<usize> {
        None
    }

    /// Whether this error line says that nothing was done, and why.
    fn excuse(&self, _line: &[u8]) -> Option<Excuse> {
        None
    }
}

#[cfg(test)]
mod tests;
