//! memcached's binary protocol, for clients only: servers are sent text.
//!
//! `header.rs` has the 24 bytes before every packet · `opcodes.rs` is the table · `request.rs`
//! reads a client's request · `adapt.rs` adapts it to a server · `answer.rs` writes answers:
//! rendered replies and the proxy's own.
//!
//! ```text
//!   Get GetQ GetK GetKQ   gets, merged        Delete         delete, or md with a cas number
//!   GAT GATQ GATK GATKQ   gats                Touch          gats
//!   SetQ AddQ …           set add …           Increment      ma; quiet: incr
//!   Set Add Append …      ms                  a key that text cannot hold:  mg ms md ma with b
//! ```

mod adapt;
mod answer;
mod header;
mod opcodes;
mod request;

use super::meta::answer::Repeated;
use super::{Servers, gather, reach, reply};
use crate::{
    Adapted, Answer, Ask, Asked, Capabilities, Command, Item, Keys, Login, Parsed, Part, Protocol,
    ProxyFacts, Request, Resume, Shown, Span, Upstream,
};
use header::Header;
use opcodes::Shape;

/// The first byte of every request.
pub(super) const FIRST: u8 = header::REQUEST;
pub(super) const HEADER_LEN: usize = header::LEN;

const ABOUT: &str = "\
A connection to the same listener speaks binary if its first byte is 0x80. The proxy speaks text to
the servers. The answers differ from those of memcached 1.6.18 in these points:

* a key with a space, NUL, CR or LF in it may have at most 186 bytes, else 0x04. It is sent as
  base64, and only to servers with the meta commands, else 0x83;
* a read that finds such a key stale takes the right to renew it, which this protocol cannot show:
  do not use stale marks with such keys;
* an expiry past 2147483647 (the year 2038) becomes that second: text has no later one;
* a request that the proxy refuses by name is answered 0x83 with the reason. A fault is answered
  0x86 with the server's name, but 0x84 if a change had been sent and may have been made.
  libmemcached takes these for a broken connection; none of them aborts a program, as 0x20 and 0x82
  do in its `increment`;
* the whole body of an unknown opcode is skipped, while memcached takes a part of it for the next
  packet. A `GAT` with a value is malformed. Bytes that are not a packet get one answer, 0x04,
  before the connection is closed.

A cas number belongs to the server that gave it.
";

/// The binary protocol.
pub struct Binary;

impl Protocol for Binary {
    fn name(&self) -> &'static str {
        "memcached-binary"
    }

    fn about(&self) -> &'static str {
        ABOUT
    }

    /// A connection is taken for text until its first byte shows otherwise.
    fn spoken(&self, _: u8) -> &'static dyn Protocol {
        &Binary
    }

    fn upstream(&self) -> &'static dyn Upstream {
        &Servers
    }

    fn commands(&self) -> &'static [Command] {
        &opcodes::TABLE
    }

    fn place(&self) -> usize {
        1
    }

    fn categories(&self, command: u16) -> Vec<&'static str> {
        reach::categories(&opcodes::TABLE[usize::from(command)])
    }

    fn reaches(&self, request: &Request, head: &[u8]) -> Keys {
        // The head of a request that is skipped ends before its key.
        let argument = match (opcodes::opcode(request.command).shape, Header::read(head)) {
            (Shape::Stat, Some(header)) => header.key(head),
            _ => b"",
        };
        reach::keys(request, argument)
    }

    fn parse_request(
        &self,
        input: &[u8],
        _resume: &mut Resume,
        keys: &mut Vec<Span>,
    ) -> Parsed<Request> {
        request::parse(input, keys)
    }

    fn join(&self, request: &mut Request, input: &[u8], keys: &mut Vec<Span>, most: usize) {
        request::join(request, input, keys, most);
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

    fn adapt(&self, request: &Request, head: &[u8], capabilities: Option<Capabilities>) -> Adapted {
        adapt::adapt(request, head, capabilities)
    }

    fn write_head(
        &self,
        request: &Request,
        head: &[u8],
        _keys: &[Span],
        ask: Ask,
        out: &mut Vec<u8>,
    ) {
        adapt::write_head(request, head, ask, out);
    }

    fn write_tail(&self, request: &Request, _ask: Ask, out: &mut Vec<u8>) {
        adapt::write_tail(request, out);
    }

    fn open_fetch(&self, request: &Request, head: &[u8], out: &mut Vec<u8>) {
        adapt::open_fetch(request, head, out);
    }

    fn gather(
        &self,
        asked: &Asked<'_>,
        parts: &mut dyn Iterator<Item = Part<'_>>,
        proxy: &dyn ProxyFacts,
        out: &mut Vec<u8>,
    ) {
        let argument = Header::read(asked.head).map_or(&b""[..], |one| one.key(asked.head));
        // Servers answered in text.
        let pass = |reply: &[u8], out: &mut Vec<u8>| answer::pass(asked, reply, out);
        gather::gather(self, asked, parts, (proxy, argument), &pass, out);
    }

    fn removal(&self, request: &Request, head: &[u8], out: &mut Vec<u8>) -> bool {
        adapt::write_removal(request, head, out)
    }

    fn is_answer(&self, asked: &Asked<'_>, item: &Item, head: &[u8]) -> bool {
        let Some(header) = Header::read(asked.head) else { return false };
        Repeated::read(asked.ask.command, item, head).is_of(header.key(asked.head), None)
    }

    fn found(&self, asked: &Asked<'_>, item: &Item, head: &[u8]) -> Option<bool> {
        reply::found(asked.ask, item, head)
    }

    fn render(&self, asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
        answer::render(asked, item, head, out)
    }

    fn answer(&self, asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
        answer::answer(asked, answer, out);
    }

    fn login<'a>(&self, request: &Request, head: &'a [u8], body: &'a [u8]) -> Login<'a> {
        let row = opcodes::opcode(request.command);
        match (row.shape, row.code) {
            (Shape::Sasl, opcodes::SASL_AUTH) => request::plain(head, body),
            (_, opcodes::SASL_LIST) => Login::Answered(answer::mechanisms(request, head)),
            _ => Login::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(opcode: u8, mechanism: &[u8], body: &[u8], expected: Login<'_>) {
        let total = (mechanism.len() + body.len()) as u8;
        let mut packet = [0u8; header::LEN].to_vec();
        packet[..2].copy_from_slice(&[FIRST, opcode]);
        (packet[3], packet[11]) = (mechanism.len() as u8, total);
        packet.extend_from_slice(mechanism);
        packet.extend_from_slice(body);
        let parsed = Binary.parse_request(&packet, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{packet:?}: {parsed:?}") };
        let (head, rest) = packet.split_at(request.head as usize);
        assert_eq!(Binary.login(&request, head, rest), expected, "{packet:?}");
    }

    #[test]
    fn a_login_is_plain_or_none() {
        let attempt = |name: &'static [u8], password: &'static [u8]| Login::Attempt {
            name: name.into(),
            password: password.into(),
            goes_on: false,
        };
        let joe = attempt(b"joe", b"secret");
        let nobody = attempt(b"", b"");
        check(0x21, b"PLAIN", b"\0joe\0secret", joe.clone());
        check(0x21, b"PLAIN", b"root\0joe\0secret", joe);
        check(0x21, b"PLAIN", b"\0joe\0a\0b", attempt(b"joe", b"a\0b"));
        for body in [&b""[..], b"joe", b"\0joe"] {
            check(0x21, b"PLAIN", body, nobody.clone());
        }
        check(0x21, b"CRAM-MD5", b"\0joe\0secret", nobody);
        check(0x22, b"PLAIN", b"\0joe\0secret", Login::Other);
        let mut list = vec![0; header::LEN];
        (list[0], list[11]) = (0x81, 5);
        list[1] = 0x20;
        list.extend_from_slice(b"PLAIN");
        check(0x20, b"", b"", Login::Answered(list));
        check(0x00, b"key", b"", Login::Other);
        check(0x0a, b"", b"", Login::Other);
    }
}
