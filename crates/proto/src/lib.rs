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
pub mod scan;

pub use message::{
    Answer, Ask, Class, Command, Item, ItemKind, Local, Parsed, Refusal, Request, Resume, Span,
};

/// Every protocol a listener or a server can speak.
pub static PROTOCOLS: &[&dyn Protocol] = &[&memcached::Text];

/// The protocol of that name in a configuration.
pub fn protocol(name: &str) -> Option<&'static dyn Protocol> {
    PROTOCOLS.iter().copied().find(|protocol| protocol.name() == name)
}

/// One wire protocol. Stateless: what a half-read frame needs is in [`Resume`].
pub trait Protocol: Sync {
    /// The name used in configurations and reports.
    fn name(&self) -> &'static str;

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

    /// Writes the head that goes to a server for a request that is forwarded whole: canonical, in
    /// the answering form (a `noreply` is left out), so that completion is always known.
    fn write_head(&self, request: &Request, head: &[u8], keys: &[Span], out: &mut Vec<u8>);

    /// The longest message of a read of this command that every server takes, bytes.
    fn fetch_max(&self, command: u8) -> usize;

    /// Starts a read of several keys; `head` is the request's own and may hold arguments.
    fn open_fetch(&self, request: &Request, head: &[u8], out: &mut Vec<u8>);

    /// Adds one key to a read that `open_fetch` began.
    fn push_fetch(&self, key: &[u8], out: &mut Vec<u8>);

    /// Ends a read that `open_fetch` began.
    fn close_fetch(&self, out: &mut Vec<u8>);

    /// Reads one item of a server's reply at the start of `input`, its head only. What cannot be
    /// a reply to `ask` is `Malformed`: the caller must not believe anything after it.
    fn parse_reply(&self, ask: Ask, input: &[u8]) -> Parsed<Item>;

    /// Writes an answer of the proxy's own to a client.
    fn answer(&self, answer: &Answer<'_>, out: &mut Vec<u8>);

    /// The request by which a server is asked whether it is back, and whose reply proves it.
    fn probe(&self) -> (&'static [u8], Ask);
}
