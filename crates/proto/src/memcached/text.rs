//! What clients speak: lines of text.

use super::{Servers, answer, commands, request};
use crate::{
    Answer, Ask, Asked, Carry, Command, Item, Login, Parsed, Protocol, Request, Resume, Shown,
    Skills, Span, Upstream,
};

/// Text.
pub struct Text;

impl Protocol for Text {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn spoken(&self, _first: u8) -> &'static dyn Protocol {
        &Text
    }

    fn upstream(&self) -> &'static dyn Upstream {
        &Servers
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

    fn key<'a>(
        &self,
        _request: &Request,
        head: &'a [u8],
        span: Span,
        _scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        span.of(head)
    }

    fn carry(&self, request: &Request, _head: &[u8], _skills: Option<Skills>) -> Carry {
        Carry::Ask(Ask { command: request.command })
    }

    fn write_head(
        &self,
        request: &Request,
        head: &[u8],
        keys: &[Span],
        _ask: Ask,
        out: &mut Vec<u8>,
    ) {
        request::write_head(request, head, keys, out);
    }

    fn write_tail(&self, _request: &Request, _ask: Ask, _out: &mut Vec<u8>) {}

    fn open_fetch(&self, request: &Request, head: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(commands::TABLE[usize::from(request.command)].name.as_bytes());
        if request.arguments != Span::default() {
            out.push(b' ');
            out.extend_from_slice(request.arguments.of(head));
        }
    }

    fn translate(&self, _asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
        out.extend_from_slice(head);
        Shown::Body { trailer: item.trailer }
    }

    fn answer(&self, _asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
        answer::write(answer, out);
    }

    fn login<'a>(&self, _request: &Request, _head: &'a [u8], _body: &'a [u8]) -> Login<'a> {
        Login::Other
    }
}
