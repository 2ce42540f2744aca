//! Redis's protocol, RESP 2 and 3, as in Redis 6.2 and 7.0 and Valkey 9.1.
//!
//! Requests: `commands/` is the table · `array.rs` and `inline.rs` cut a request, `arguments.rs`
//! reads either again · `request.rs` classifies it · `keys.rs` finds its keys · `work.rs` says how
//! much work it is · `reach.rs` says which keys and databases it reaches · `split.rs` writes
//! it, and the parts of a split one · `transaction.rs` has the rules of transactions, `pubsub.rs`
//! those of subscriptions · `refusal.rs` has the servers' texts for clients' mistakes.
//!
//! Answers: `reply.rs` reads a server's reply · `servers.rs` is the protocol of servers ·
//! `scan.rs`, `gather.rs` and `script.rs` merge the replies of several servers, `info.rs` and
//! `config.rs` their descriptions of themselves · `local/` answers local commands, and
//! `answer.rs` writes errors · `words.rs` writes all of these in RESP.

pub mod commands;

mod answer;
mod arguments;
mod array;
mod config;
mod gather;
mod info;
mod inline;
mod keys;
mod local;
mod pubsub;
mod reach;
mod refusal;
mod reply;
mod request;
mod scan;
mod script;
mod servers;
mod shape;
mod split;
mod transaction;
mod words;
mod work;

pub use servers::{RESP3, Servers};

use std::borrow::Cow;

use crate::{
    Adapted, AfterLocal, Answer, Ask, Asked, Capabilities, ClientFlags, ClientLine, Command,
    ConnKey, Database, Expected, Extra, InTransaction, Inquiry, Item, Keys, Login, Parsed, Part,
    Protocol, ProxyFacts, Request, Resume, Retryable, Session, Shown, Span, TopicAnswer,
    TopicRequest, Upstream, WhileSubscribed,
};

/// Redis.
pub struct Redis;

impl Protocol for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn about(&self) -> &'static str {
        commands::ABOUT
    }

    /// A connection uses it from its first byte to its last.
    fn spoken(&self, _: u8) -> &'static dyn Protocol {
        &Redis
    }

    fn upstream(&self) -> &'static dyn Upstream {
        &Servers
    }

    fn conn_key(&self, database: u32) -> ConnKey {
        ConnKey { proto_version: 2, database }
    }

    fn commands(&self) -> &'static [Command] {
        commands::list()
    }

    fn place(&self) -> usize {
        2
    }

    fn categories(&self, command: u16) -> Vec<&'static str> {
        commands::texts(command).words("categories").collect()
    }

    fn reaches(&self, request: &Request, _head: &[u8]) -> Keys {
        reach::keys(request)
    }

    fn matches_within(&self, request: &Request, head: &[u8], prefix: &[u8]) -> bool {
        reach::matches_within(request, head, prefix)
    }

    fn database(&self, request: &Request, head: &[u8]) -> Database {
        reach::database(request, head)
    }

    fn name_of<'a>(&self, _request: &Request, head: &'a [u8]) -> Cow<'a, [u8]> {
        arguments::first(head, 1).pop().unwrap_or_default()
    }

    fn parse_request(
        &self,
        input: &[u8],
        resume: &mut Resume,
        keys: &mut Vec<Span>,
    ) -> Parsed<Request> {
        request::parse(input, resume, keys)
    }

    fn skip_part(&self, input: &[u8], resume: &mut Resume) -> Parsed<u64> {
        array::skip(input, resume)
    }

    fn passes_head(&self, request: &Request, head: &[u8]) -> bool {
        head.first() == Some(&b'*') && request.command != commands::id::SCAN
    }

    /// Joins nothing, since each read has an answer of its own.
    fn join(&self, _: &mut Request, _: &[u8], _: &mut Vec<Span>, _: usize) {}

    fn key<'a>(
        &self,
        _request: &Request,
        head: &'a [u8],
        span: Span,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        inline::argument(head, span, scratch)
    }

    fn adapt(
        &self,
        request: &Request,
        _head: &[u8],
        capabilities: Option<Capabilities>,
    ) -> Adapted {
        local::adapt(request, capabilities)
    }

    fn write_head(&self, request: &Request, head: &[u8], _: &[Span], ask: Ask, out: &mut Vec<u8>) {
        match request.command == commands::id::SCAN && !ask.is_unchanged() {
            true => scan::write_head(head, out),
            false => split::write_head(head, out),
        }
    }

    fn write_tail(&self, _request: &Request, _ask: Ask, _out: &mut Vec<u8>) {}

    /// Writes nothing: the head contains the number of keys, so `seal_fetch` writes it.
    fn open_fetch(&self, _request: &Request, _head: &[u8], _out: &mut Vec<u8>) {}

    fn rest(&self, request: &Request, head: &[u8], keys: &[Span], nth: usize) -> Option<Span> {
        split::rest(request, head, keys[nth])
    }

    fn push_rest(
        &self,
        request: &Request,
        head: &[u8],
        keys: &[Span],
        nth: usize,
        out: &mut Vec<u8>,
    ) {
        split::push_rest(request, head, keys[nth], out);
    }

    fn gather(
        &self,
        asked: &Asked<'_>,
        parts: &mut dyn Iterator<Item = Part<'_>>,
        proxy: &dyn ProxyFacts,
        out: &mut Vec<u8>,
    ) {
        gather::gather(asked, parts, proxy, out);
    }

    fn local(
        &self,
        request: &Request,
        head: &[u8],
        session: &mut Session,
        proxy: &dyn ProxyFacts,
        out: &mut Vec<u8>,
    ) -> AfterLocal {
        local::local(request, head, session, proxy, out)
    }

    fn is_refused_by_busy(&self, request: &Request) -> bool {
        request.command == commands::id::SELECT
    }

    fn inquiry(&self, request: &Request, head: &[u8]) -> Option<Inquiry> {
        local::inquiry(request, head)
    }

    fn show(&self, request: &Request, head: &[u8], out: &mut Vec<u8>) -> bool {
        local::show(request, head, out)
    }

    fn client_flags(&self, flags: ClientFlags) -> String {
        local::client_flags(flags)
    }

    fn describe(&self, line: &ClientLine<'_>, out: &mut Vec<u8>) {
        local::describe(line, out);
    }

    fn is_constant(&self, request: &Request, head: &[u8]) -> bool {
        local::is_constant(request, head)
    }

    /// Redis has no limit but that of all requests.
    fn local_bounds(&self, request: &Request, _usual: usize) -> [usize; 2] {
        [usize::MAX, local::bytes_most(request)]
    }

    fn shows_endpoints(&self, request: &Request) -> bool {
        request.command == commands::id::CLIENT_INFO
    }

    fn recognize(
        &self,
        request: &mut Request,
        input: &[u8],
        keys: &mut Vec<Span>,
        extras: &[Extra],
    ) -> bool {
        request::recognize(request, input, keys, extras)
    }

    fn in_transaction(&self, request: &Request, input: &[u8]) -> InTransaction {
        transaction::in_transaction(request, input)
    }

    fn topics<'a>(&self, request: &Request, head: &'a [u8]) -> TopicRequest<'a> {
        pubsub::topics(request, head)
    }

    fn while_subscribed(&self, request: &Request, proto_version: u8) -> WhileSubscribed {
        pubsub::while_subscribed(request, proto_version)
    }

    fn watches(&self, command: u16) -> bool {
        let row = commands::rows().get(usize::from(command));
        row.is_some_and(|row| row.effort == commands::Effort::Watch)
    }

    fn write_unexecuted(&self, proto_version: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(if proto_version > 2 { b"_\r\n" } else { b"*-1\r\n" });
    }

    fn push_mark(&self, proto_version: u8) -> u8 {
        pubsub::push_mark(proto_version)
    }

    fn write_topic_answer(&self, proto_version: u8, answer: &TopicAnswer<'_>, out: &mut Vec<u8>) {
        pubsub::write_answer(proto_version, answer, out);
    }

    fn expect(&self, request: &Request, head: &[u8]) -> Expected {
        work::expect(request, head)
    }

    fn work_name(&self, ask: Ask) -> String {
        work::name(ask)
    }

    fn learn<'a>(&self, asked: &Asked<'a>, reply: &'a [u8]) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
        script::learn(asked, reply)
    }

    fn forgets(&self, asked: &Asked<'_>) -> bool {
        asked.command == commands::id::SCRIPT_FLUSH
    }

    fn recovery(
        &self,
        asked: &Asked<'_>,
        retryable: &Retryable,
        known: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
        out: &mut Vec<u8>,
    ) -> Option<Ask> {
        script::recovery(asked, retryable, known, out)
    }

    fn render(&self, asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
        scan::render(asked, item, head, out)
    }

    fn answer(&self, asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
        answer::write(asked, answer, out);
    }

    fn login<'a>(&self, request: &Request, head: &'a [u8], _body: &'a [u8]) -> Login<'a> {
        local::login(request, head)
    }
}
