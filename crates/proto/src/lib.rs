//! Wire protocols: bytes to requests and replies, and back. Pure: no socket, clock or state.
//!
//! A protocol is one value in [`PROTOCOLS`]. The data plane knows only the [`Protocol`] trait and
//! the neutral types of `message.rs`; it never asks which protocol it is using. The conformance
//! suite (`tests/conformance.rs`) and the fuzzers loop over the table, so a new entry is tested
//! from its first day.
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
//! So `parse_*` reads heads only and is linear. Of a body, only the end is checked.

mod answer;
pub mod block;
mod bound;
mod clients;
mod errors;
mod item;
pub mod memcached;
mod message;
mod part;
pub mod redis;
pub mod scan;
mod server;
mod session;
mod topic;
mod work;

use std::borrow::Cow;

pub use answer::{Answer, FIRST_LEN, Refusal, refusal};
pub use bound::{BlockReply, Bound, Trial, TrialReply};
pub use clients::{ClientFilter, ClientFlags, ClientLine, Inquiry, Told};
pub use errors::{Errors, Retryable};
pub use item::{Item, ItemKind};
pub use message::{
    Adapted, Ask, Asked, Class, Command, Database, Extra, InTransaction, Keys, Local, MarkUse,
    Parsed, Place, Progress, Quiet, Reach, Request, Resume, Shown, Span,
};
pub use part::{Outcome, Part, Process, ProxyFacts, Totals};
pub use server::{Capabilities, ConnKey, HandshakeReply, Make};
pub use session::{
    AfterLocal, Credentials, Endpoints, Facts, Login, Profile, ReplyMode, Session, SlowRequest,
    SlowSample,
};
pub use topic::{Push, Pushed, TopicAnswer, TopicKind, TopicRequest, WhileSubscribed};
pub use work::{Expected, Work, WorkId};

/// Every protocol of clients.
pub static PROTOCOLS: &[&dyn Protocol] = &[&memcached::Text, &memcached::Binary, &redis::Redis];

/// The protocols that a configuration names. A connection's first byte may select another.
pub static NAMED: &[&dyn Protocol] = &[&memcached::Text, &redis::Redis];

/// Returns the protocol of this name in a configuration.
pub fn protocol(name: &str) -> Option<&'static dyn Protocol> {
    NAMED.iter().copied().find(|protocol| protocol.name() == name)
}

/// A protocol of clients. It is stateless: [`Resume`] holds the state of an unfinished frame.
///
/// A client's protocol adapts requests to the servers behind it, and renders their replies for the
/// client.
pub trait Protocol: Sync {
    /// The name used in configurations and reports.
    fn name(&self) -> &'static str;

    /// Returns the protocol's description for the reference, in Markdown.
    fn about(&self) -> &'static str {
        ""
    }

    /// Returns the protocol of a connection to a listener of this protocol, by the connection's
    /// first byte.
    fn spoken(&self, first: u8) -> &'static dyn Protocol;

    /// Returns the protocol of the servers.
    fn upstream(&self) -> &'static dyn Upstream;

    /// Returns the connection key with which a connection begins, in the database of its pool.
    fn conn_key(&self, database: u32) -> ConnKey {
        ConnKey { database, ..ConnKey::default() }
    }

    /// Returns every command that it knows, including those that are refused. [`Request::command`]
    /// is an index into this table.
    fn commands(&self) -> &'static [Command];

    /// Returns the name of a command of [`Request::command`]; empty if its table has none.
    fn command_name(&self, command: u16) -> &'static str {
        self.commands().get(usize::from(command)).map_or("", |command| command.name)
    }

    /// Returns its index in [`PROTOCOLS`], if it is one of them.
    fn place(&self) -> usize {
        usize::MAX
    }

    /// Returns the categories of a command: words that begin with `@`.
    fn categories(&self, _command: u16) -> Vec<&'static str> {
        Vec::new()
    }

    /// Returns the keys that a request can reach.
    fn reaches(&self, _request: &Request, _head: &[u8]) -> Keys {
        Keys::Any
    }

    /// Whether all keys that match the patterns of a request begin with `prefix`, where it reaches
    /// `Keys::Matching`.
    fn matches_within(&self, _request: &Request, _head: &[u8], _prefix: &[u8]) -> bool {
        false
    }

    /// Returns the database that a request reaches beside, or instead of, its connection's.
    fn database(&self, _request: &Request, _head: &[u8]) -> Database {
        Database::Own
    }

    /// Returns the name of a request's command as the client wrote it, for a command that only the
    /// operator knows.
    fn name_of<'a>(&self, _request: &Request, _head: &'a [u8]) -> Cow<'a, [u8]> {
        Cow::Borrowed(b"")
    }

    /// Reads the head of one request at the start of `input`. `keys` is cleared and then holds the
    /// position of each key in the head. `resume` must be `default()` at the start of each frame.
    /// After `Incomplete`, the caller passes it unchanged, with the same input made longer.
    fn parse_request(
        &self,
        input: &[u8],
        resume: &mut Resume,
        keys: &mut Vec<Span>,
    ) -> Parsed<Request>;

    /// Reads where the next part of a refused request ends, if its parts are counted: returns how
    /// many bytes to skip before it is called again. Nothing is left when `resume.left` is 0.
    /// `input` begins where `resume.scanned` was; at first, `left` is `parts_left()`.
    fn skip_part(&self, _input: &[u8], _resume: &mut Resume) -> Parsed<u64> {
        unreachable!("no request of this protocol has parts that are counted")
    }

    /// Whether `write_head` and `write_tail` write these bytes, and no others.
    fn passes_head(&self, _request: &Request, _head: &[u8]) -> bool {
        false
    }

    /// Joins the quiet reads of one key that follow the request, which `input` begins with, if they
    /// can be sent and answered as one with it. The head grows by theirs, which stand one after the
    /// other and each end with their key. `keys` grows by their keys, to at most `most`. The answer
    /// to a key is rendered with that key's part of the head.
    fn join(&self, request: &mut Request, input: &[u8], keys: &mut Vec<Span>, most: usize);

    /// Returns a key as a server knows it, which decides its route: decoded, if the head has it
    /// encoded. `scratch` may be used to hold it.
    fn key<'a>(
        &self,
        request: &Request,
        head: &'a [u8],
        span: Span,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8];

    /// Returns the form of a single request for a server with these capabilities, if they are
    /// known. For a local command it is `Unknown` if the answer depends on the servers'
    /// capabilities.
    fn adapt(&self, request: &Request, head: &[u8], capabilities: Option<Capabilities>) -> Adapted;

    /// Writes the head for the server of a request that is forwarded whole. It is canonical and in
    /// the form of `ask`, which always has a reply, so that completion is always known.
    fn write_head(
        &self,
        request: &Request,
        head: &[u8],
        keys: &[Span],
        ask: Ask,
        out: &mut Vec<u8>,
    );

    /// Writes the bytes that a server needs after the body, beyond the client's trailer.
    fn write_tail(&self, request: &Request, ask: Ask, out: &mut Vec<u8>);

    /// Starts a read of several keys. `head` is the head of the request and may hold arguments.
    fn open_fetch(&self, request: &Request, head: &[u8], out: &mut Vec<u8>);

    /// Returns where the head of a split request has the bytes that a server needs after the key
    /// `nth`, if they stand there as `push_rest` writes them.
    fn rest(&self, _request: &Request, _head: &[u8], _keys: &[Span], _nth: usize) -> Option<Span> {
        None
    }

    /// Writes the bytes that a server needs after the key `nth` of a split request.
    fn push_rest(
        &self,
        _request: &Request,
        _head: &[u8],
        _keys: &[Span],
        _nth: usize,
        _out: &mut Vec<u8>,
    ) {
    }

    /// Makes one answer from the replies of several servers, in the order of the requests, and from
    /// the proxy's own facts. Writes the answer in the client's protocol.
    fn gather(
        &self,
        asked: &Asked<'_>,
        parts: &mut dyn Iterator<Item = Part<'_>>,
        proxy: &dyn ProxyFacts,
        out: &mut Vec<u8>,
    );

    /// Answers a local command. This may change the client's session.
    fn local(
        &self,
        _request: &Request,
        _head: &[u8],
        _session: &mut Session,
        _proxy: &dyn ProxyFacts,
        _out: &mut Vec<u8>,
    ) -> AfterLocal {
        unreachable!("no request of this protocol is its own affair")
    }

    /// Whether the answer to this local command depends on the protocol version alone. Such an
    /// answer is rendered once.
    fn is_constant(&self, _request: &Request, _head: &[u8]) -> bool {
        false
    }

    /// Returns how long a local command and its answer may be; `usual` is the bound of most.
    fn local_bounds(&self, request: &Request, usual: usize) -> [usize; 2] {
        [usual, request.head as usize]
    }

    /// Whether the answer to this local command shows the addresses of the connection.
    fn shows_endpoints(&self, _request: &Request) -> bool {
        false
    }

    /// Whether a server that is busy refuses a request that the proxy answers.
    fn is_refused_by_busy(&self, _request: &Request) -> bool {
        false
    }

    /// Returns what all workers are to be asked before a request of the class [`Local::Clients`] is
    /// answered; none if nothing is, since it is wrong or has another effect.
    fn inquiry(&self, _request: &Request, _head: &[u8]) -> Option<Inquiry> {
        None
    }

    /// Writes a request as MONITOR shows it; returns whether it may be shown.
    fn show(&self, _request: &Request, _head: &[u8], _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Returns a client's flags in this protocol's way.
    fn client_flags(&self, _flags: ClientFlags) -> String {
        String::new()
    }

    /// Writes the line about a client in a list of clients.
    fn describe(&self, _line: &ClientLine<'_>, _out: &mut Vec<u8>) {}

    /// Makes a routable request from one whose command only the operator knows.
    fn recognize(
        &self,
        _request: &mut Request,
        _input: &[u8],
        _keys: &mut Vec<Span>,
        _extras: &[Extra],
    ) -> bool {
        false
    }

    /// Returns what becomes of a request, which `input` begins with, in a transaction.
    fn in_transaction(&self, _request: &Request, _input: &[u8]) -> InTransaction {
        unreachable!("this protocol has no transactions")
    }

    /// Whether this command has servers watch keys for its client.
    fn watches(&self, _command: u16) -> bool {
        false
    }

    /// Writes the answer to a transaction of which nothing was executed, because what its client
    /// watched has changed, or may have.
    fn write_unexecuted(&self, _proto_version: u8, _out: &mut Vec<u8>) {
        unreachable!("this protocol has no transactions")
    }

    /// Returns what a request to listen to topics, or to end it, is about.
    fn topics<'a>(&self, _request: &Request, _head: &'a [u8]) -> TopicRequest<'a> {
        unreachable!("this protocol has no subscriptions")
    }

    /// Returns what becomes of a request of a client that listens to topics.
    fn while_subscribed(&self, _request: &Request, _proto_version: u8) -> WhileSubscribed {
        WhileSubscribed::AsUsual
    }

    /// Returns the first byte of a push; the rest of it is as the server sent it.
    fn push_mark(&self, _proto_version: u8) -> u8 {
        unreachable!("this protocol has no subscriptions")
    }

    /// Writes the answer about one topic.
    fn write_topic_answer(
        &self,
        _proto_version: u8,
        _answer: &TopicAnswer<'_>,
        _out: &mut Vec<u8>,
    ) {
        unreachable!("this protocol has no subscriptions")
    }

    /// Returns how long a request is expected to take. This reads its arguments if they decide; so
    /// it is called only for requests whose [`Work`] is not quick.
    fn expect(&self, request: &Request, _head: &[u8]) -> Expected {
        match request.work {
            Work::Quick => Expected::Quick,
            Work::Slow => Expected::Slow,
            Work::Varies => Expected::AsBefore(WorkId::of_command(request.command)),
        }
    }

    /// Returns the name of what a server is busy with, for messages to clients.
    fn work_name(&self, ask: Ask) -> String {
        self.commands()[usize::from(ask.command)].name.to_string()
    }

    /// Returns a definition that the answer to a broadcast has shown to be in force: its name and
    /// its text. A definition is what clients give the servers to refer to by name, like a script.
    fn learn<'a>(&self, _asked: &Asked<'a>, _reply: &'a [u8]) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
        None
    }

    /// Whether a broadcast means that no learned definition is in force any more.
    fn forgets(&self, _asked: &Asked<'_>) -> bool {
        false
    }

    /// Writes the recovery command to send to a server first, so that the same retryable error does
    /// not come again; for an error that needs one. `known` finds the text of a learned name. No
    /// client gets the reply.
    fn recovery(
        &self,
        _asked: &Asked<'_>,
        _retryable: &Retryable,
        _known: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
        _out: &mut Vec<u8>,
    ) -> Option<Ask> {
        None
    }

    /// Writes the request, in this protocol, that removes the old value of a key, for a request
    /// whose data is not accepted. Returns whether servers do so for such a request: otherwise its
    /// client would go on reading the value that it meant to replace.
    fn removal(&self, _request: &Request, _head: &[u8], _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Whether this item, which begins with `head`, can answer a single request with `keep`. If the
    /// item repeats the request's key or the client's identifier of the request, they must be those
    /// of the request.
    fn is_answer(&self, _asked: &Asked<'_>, _item: &Item, _head: &[u8]) -> bool {
        true
    }

    /// Returns whether a single read with `keep` found something, according to the item that
    /// answers it; none if it was no read.
    fn found(&self, _asked: &Asked<'_>, _item: &Item, _head: &[u8]) -> Option<bool> {
        None
    }

    /// Renders an item of a server's reply for the client: writes its head, and returns which part
    /// of the body follows. For requests with `keep`, and for reads that were sent together with
    /// others in a form whose reply contains more. Other replies pass unchanged.
    fn render(&self, asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown;

    /// Writes an answer of the proxy to a client, or nothing if a quiet request hides it.
    fn answer(&self, asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>);

    /// Classifies a whole request of a client that has to log in first.
    fn login<'a>(&self, request: &Request, head: &'a [u8], body: &'a [u8]) -> Login<'a>;
}

/// A protocol of servers.
pub trait Upstream: Bound + Errors {
    /// Reads the head of one item of a server's reply, at the start of `input`. Input that cannot
    /// be a reply to `ask` is `Malformed`: the caller must not believe anything after it.
    /// `progress` must be `default()` at the start of each reply, and be passed on as it was left.
    fn parse_reply(&self, ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item>;

    /// Returns the names of the families of commands, by which latencies are told apart. The
    /// protocols of the clients of these servers share them.
    fn families(&self) -> &'static [&'static str];

    /// Returns the capabilities that a server needs for this form.
    fn needs(&self, ask: Ask) -> Capabilities;

    /// Whether there is a form that needs a capability.
    fn has_needs(&self) -> bool {
        true
    }

    /// Returns the name, for the operator, of a capability that a server lacks, if clients are
    /// refused some requests for lack of it.
    fn lacks(&self, _capabilities: Capabilities) -> Option<&'static str> {
        None
    }

    /// Returns the longest message of such a read that every server accepts, in bytes.
    fn fetch_max(&self, ask: Ask) -> usize;

    /// Returns the read whose values contain all that the values of either read do, if the two can
    /// share a message. A value with more than the request asked for is rendered.
    fn widen(&self, ask: Ask, other: Ask) -> Option<Ask>;

    /// Adds one key to a read that `open_fetch` began; returns the offset of the key in `out`.
    fn push_fetch(&self, key: &[u8], out: &mut Vec<u8>) -> usize;

    /// Writes the whole message of a read of `keys` keys, whose text `text` holds so far.
    fn seal_fetch(&self, ask: Ask, keys: usize, text: &[u8], out: &mut Vec<u8>);

    /// Writes the handshake for a new link. Its answer proves that the server is there, and shows
    /// the server's capabilities.
    fn write_handshake(
        &self,
        credentials: Option<&Credentials>,
        conn_key: ConnKey,
        out: &mut Vec<u8>,
    );

    /// Reads the answer to the handshake. `credentials` says that the handshake had some.
    /// `Malformed` gives the reason why the link is useless.
    fn read_handshake(
        &self,
        credentials: bool,
        conn_key: ConnKey,
        input: &[u8],
    ) -> Parsed<HandshakeReply>;

    /// Returns where the elements of a whole reply that is a list begin, and how many they are.
    fn elements(&self, _reply: &[u8]) -> Option<(usize, u64)> {
        None
    }

    /// Returns the length of the element at the start of `elements`.
    fn element_len(&self, _elements: &[u8]) -> Option<usize> {
        None
    }

    /// Writes the request to be sent the messages of a topic, or no more of them.
    fn write_topic_request(
        &self,
        _kind: TopicKind,
        _joins: bool,
        _topic: &[u8],
        _out: &mut Vec<u8>,
    ) {
        unreachable!("these servers know no subscriptions")
    }

    /// Writes a request whose answer, on a link for subscriptions, shows that the server is there.
    fn write_topic_ping(&self, _out: &mut Vec<u8>) {
        unreachable!("these servers know no subscriptions")
    }

    /// Reads what a server has sent on a link for subscriptions.
    fn read_push(&self, _input: &[u8]) -> Parsed<Push> {
        unreachable!("these servers know no subscriptions")
    }

    /// Whether a pattern of channels matches this one.
    fn topic_matches(&self, _pattern: &[u8], _channel: &[u8]) -> bool {
        false
    }

    /// Whether this whole reply to a read says that there is no value, where it looks like others.
    fn is_null(&self, _reply: &[u8]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
