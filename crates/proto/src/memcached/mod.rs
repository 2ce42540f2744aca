//! memcached's classic text protocol (source: memcached's `doc/protocol.txt`, and what 1.6.18
//! does).
//!
//! `commands.rs` is the table · `request.rs` reads what a client says · `reply.rs` reads what a
//! server says · `answer.rs` writes what the proxy says.

mod answer;
mod commands;
pub mod meta;
mod reply;
mod request;

use crate::{Answer, Ask, Command, Item, Parsed, Protocol, Request, Resume, Span};

/// Longest line of a `gat` or `gats` that we send.
const OTHER_LINE_MAX: usize = 1000;

/// Classic text.
pub struct Text;

impl Protocol for Text {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn commands(&self) -> &'static [Command] {
        commands::TABLE
    }

    fn parse_request(
        &self,
        input: &[u8],
        resume: &mut Resume,
        keys: &mut Vec<Span>,
    ) -> Parsed<Request> {
        request::parse(input, resume, keys)
    }

    fn write_head(&self, request: &Request, head: &[u8], keys: &[Span], out: &mut Vec<u8>) {
        request::write_head(request, head, keys, out);
    }

    fn fetch_max(&self, command: u8) -> usize {
        // memcached hangs up on a line that has no end yet after 1024 bytes (1.4) or 2048 (1.6),
        // unless it begins with `get ` or `gets `.
        if command <= commands::GETS { usize::MAX } else { OTHER_LINE_MAX }
    }

    fn open_fetch(&self, request: &Request, head: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(commands::TABLE[usize::from(request.command)].name.as_bytes());
        if request.arguments != Span::default() {
            out.push(b' ');
            out.extend_from_slice(request.arguments.of(head));
        }
    }

    fn push_fetch(&self, key: &[u8], out: &mut Vec<u8>) {
        out.push(b' ');
        out.extend_from_slice(key);
    }

    fn close_fetch(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n");
    }

    fn parse_reply(&self, ask: Ask, input: &[u8]) -> Parsed<Item> {
        reply::parse(ask, input)
    }

    fn answer(&self, answer: &Answer<'_>, out: &mut Vec<u8>) {
        answer::write(answer, out);
    }

    fn probe(&self) -> (&'static [u8], Ask) {
        (b"version\r\n", Ask { command: commands::VERSION })
    }
}
