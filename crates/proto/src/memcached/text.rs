//! The text protocol of clients.

use super::commands::{MG, MS, SET, TABLE};
use super::meta::{self, base64};
use super::{Binary, Servers, answer, binary, gather, number, reach, reply, request};
use crate::scan::Tokens;
use crate::{
    Adapted, AfterLocal, Answer, Ask, Asked, Capabilities, Class, Command, Item, Keys, Login,
    Parsed, Part, Protocol, ProxyFacts, Request, Resume, Session, Shown, Span, Upstream,
};

const ABOUT: &str = "\
Classic and meta requests may be mixed on one connection. A meta request goes unchanged, but
without `q`, to a server with the meta commands (memcached 1.6.13 or newer, by its `version`). For
any other server it is written as a classic command if that means exactly the same. These are
accepted by memcached 1.6.18 but not here:

* NUL or CR within a line; another control character that is neither in a key nor in the last word
  of a classic command that servers ignore;
* text behind a flag that has no value; base64 that is not canonical;
* a storage command whose length cannot be read: the connection is closed, since data cannot be
  told from commands. One that names no length is an error, and the connection stays open;
* the data of a refused storage command: it is skipped and never read as commands.

`stats` has memcached's names, as if the pool were one memcached. Connections, bytes, logins, reads
(`cmd_get`, `get_hits`, `get_misses`), `cmd_set` and the figures of the process are the proxy's, of
all workers; `pid` and `uptime` are the master's. All other figures come from the servers, which are
asked each time. The figure of one server is passed on, those of several are added up. Exceptions
are `accepting_conns`, which is the minimum, `hash_power_level` and every figure that is 0 or 1,
which are the maximum, and `libevent`, which is given only if all servers agree.
`quickack_servers_missing` names servers that did not answer.

Every other `stats` command of 1.6.18 passes if the pool has one server. Those that change something
(`detail on` and `off`, `sizes_enable`, `sizes_disable`, `reset`) pass, with any number of servers,
only if `allow:` names them. `stats detail dump` and `stats cachedump` are not lists of figures.
With several servers they are refused with a `CLIENT_ERROR`, as memcached refuses a `cachedump` that
its operator has not allowed. A word that 1.6.18 does not know is an `ERROR`.

A line of HTTP is recognized by its last word and a first word that is not a command. It closes the
connection without an answer, as in memcached: a hostile page may have sent a browser here.

The numbers of commands about keys and of `flush_all` are read as 1.6.18 reads them, whatever the
server is, and sent in their plain form: `+5` is 5, a time of 2147483648 expires at once, and one of
4294967296 never. A length beyond 2147483645 is an error: 1.6.18 would read the data as commands.

Flags of newer versions (`E`, `S`, `x`) are passed on; an unknown flag is refused. If `k` asks for a
base64 key whose bytes a line cannot hold, the key is taken from the request, because the server
could send the raw bytes.
";

/// The text protocol.
pub struct Text;

impl Protocol for Text {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn about(&self) -> &'static str {
        ABOUT
    }

    fn spoken(&self, first: u8) -> &'static dyn Protocol {
        if first == binary::FIRST { &Binary } else { &Text }
    }

    fn upstream(&self) -> &'static dyn Upstream {
        &Servers
    }

    fn commands(&self) -> &'static [Command] {
        TABLE
    }

    fn place(&self) -> usize {
        0
    }

    fn categories(&self, command: u16) -> Vec<&'static str> {
        reach::categories(&TABLE[usize::from(command)])
    }

    fn reaches(&self, request: &Request, head: &[u8]) -> Keys {
        reach::keys(request, reach::second_word(head))
    }

    fn parse_request(
        &self,
        input: &[u8],
        resume: &mut Resume,
        keys: &mut Vec<Span>,
    ) -> Parsed<Request> {
        request::parse(input, resume, keys)
    }

    /// Joins nothing, since each read is a line of its own.
    fn join(&self, _: &mut Request, _: &[u8], _: &mut Vec<Span>, _: usize) {}

    fn key<'a>(
        &self,
        request: &Request,
        head: &'a [u8],
        span: Span,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let key = span.of(head);
        if request.arguments.of(head) == b"b" { base64::decode(key, scratch) } else { key }
    }

    fn adapt(&self, request: &Request, head: &[u8], capabilities: Option<Capabilities>) -> Adapted {
        match request.command {
            MG.. => meta::adapt::adapt(request, head, capabilities),
            command => Adapted::Ask(Ask { command }),
        }
    }

    fn write_head(
        &self,
        request: &Request,
        head: &[u8],
        keys: &[Span],
        ask: Ask,
        out: &mut Vec<u8>,
    ) {
        match request.command {
            MG.. => meta::adapt::write_head(request, head, keys[0], ask, out),
            _ => request::write_head(request, head, keys, out),
        }
    }

    fn write_tail(&self, _request: &Request, _ask: Ask, _out: &mut Vec<u8>) {}

    fn open_fetch(&self, request: &Request, head: &[u8], out: &mut Vec<u8>) {
        let Class::Fetch { ask, .. } = request.class else { unreachable!("it is a read") };
        out.extend_from_slice(TABLE[usize::from(ask.command)].name.as_bytes());
        if !request.arguments.is_empty() {
            out.push(b' ');
            number::push(number::Kind::Exptime, request.arguments.of(head), out);
        }
    }

    fn gather(
        &self,
        asked: &Asked<'_>,
        parts: &mut dyn Iterator<Item = Part<'_>>,
        proxy: &dyn ProxyFacts,
        out: &mut Vec<u8>,
    ) {
        let words = asked.head.split(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
        let argument = words.filter(|word| !word.is_empty()).nth(1).unwrap_or_default();
        let pass = |reply: &[u8], out: &mut Vec<u8>| out.extend_from_slice(reply);
        gather::gather(self, asked, parts, (proxy, argument), &pass, out);
    }

    /// Answers a `gat` or `gats` without keys.
    fn local(
        &self,
        _request: &Request,
        _head: &[u8],
        _session: &mut Session,
        _proxy: &dyn ProxyFacts,
        out: &mut Vec<u8>,
    ) -> AfterLocal {
        out.extend_from_slice(b"END\r\n");
        AfterLocal::Continue
    }

    /// As memcached 1.6.18 does: for a `set`, and for an `ms` in every mode, but not for `cas`.
    fn removal(&self, request: &Request, head: &[u8], out: &mut Vec<u8>) -> bool {
        let removes = matches!(request.command, SET | MS);
        if removes {
            let mut tokens = Tokens::new(head);
            let key = tokens.by_ref().nth(1).map_or(&b""[..], |key| tokens.text(key));
            meta::adapt::write_removal(key, request.arguments.of(head) == b"b", out);
        }
        removes
    }

    fn is_answer(&self, asked: &Asked<'_>, item: &Item, head: &[u8]) -> bool {
        meta::answer::is_answer(asked, item, head)
    }

    fn found(&self, asked: &Asked<'_>, item: &Item, head: &[u8]) -> Option<bool> {
        reply::found(asked.ask, item, head)
    }

    fn render(&self, asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
        match asked.command {
            MG.. => meta::answer::render(asked, item, head, out),
            command => reply::pass(command, item, head, out),
        }
    }

    fn answer(&self, asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
        answer::write(asked, answer, out);
    }

    /// As in memcached: a `set` of any key, whose value is a name, a space and a password.
    fn login<'a>(&self, request: &Request, _head: &'a [u8], body: &'a [u8]) -> Login<'a> {
        if request.command != SET || !matches!(request.class, Class::Single { .. }) {
            return Login::Other;
        }
        let space = body.iter().position(|byte| *byte == b' ').unwrap_or(body.len());
        let (name, rest) = body.split_at(space);
        let password = rest.get(1..).unwrap_or_default();
        Login::Attempt { name: name.into(), password: password.into(), goes_on: false }
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands;
    use super::*;
    use crate::Progress;

    fn check(stream: &str, expected: Option<(&str, &str)>) {
        let parsed = Text.parse_request(stream.as_bytes(), &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{stream}: {parsed:?}") };
        let (head, rest) = stream.as_bytes().split_at(request.head as usize);
        let found = Text.login(&request, head, &rest[..request.body as usize]);
        let expected = expected.map_or(Login::Other, |(name, password)| Login::Attempt {
            name: name.as_bytes().into(),
            password: password.as_bytes().into(),
            goes_on: false,
        });
        assert_eq!(found, expected, "{stream}");
    }

    /// Checks the rendering of a server's value. It may have been read together with requests for
    /// its cas number.
    fn check_told(stream: &str, said: &str, expected: &str) {
        let mut keys = Vec::new();
        let parsed = Text.parse_request(stream.as_bytes(), &mut Resume::default(), &mut keys);
        let Parsed::Complete(request) = parsed else { panic!("{stream}: {parsed:?}") };
        let Class::Fetch { ask, .. } = request.class else { panic!("{stream}: {request:?}") };
        let asked_together = Ask { command: commands::GETS };
        let parsed = Servers.parse_reply(asked_together, &mut Progress::default(), said.as_bytes());
        let Parsed::Complete(item) = parsed else { panic!("{said}: {parsed:?}") };
        let (command, quiet) = (request.command, request.quiet);
        let head = if request.keep { stream.as_bytes() } else { b"" };
        let mut out = Vec::new();
        let asked = Asked { command, quiet, ask, head, at: 0, next: None };
        let shown = Text.render(&asked, &item, &said.as_bytes()[..item.head as usize], &mut out);
        assert_eq!(shown, Shown::Body { trailer: b"\r\n" }, "{stream}");
        assert_eq!(String::from_utf8_lossy(&out), expected, "{stream}");
    }

    #[test]
    fn a_cas_number_is_told_to_whom_it_was_asked_for() {
        let said = "VALUE k 7 2 5504\r\nab\r\n";
        check_told("get k\r\n", said, "VALUE k 7 2\r\n");
        check_told("gets k\r\n", said, "VALUE k 7 2 5504\r\n");
        check_told("mg k v\r\n", said, "VA 2\r\n");
        check_told("mg k f k v q s O9\r\n", said, "VA 2 f7 kk s2 O9\r\n");
        check_told("mg k v c\r\n", said, "VA 2 c5504\r\n");
    }

    /// As with memcached's `-Y`, except that a password may contain spaces.
    #[test]
    fn a_login_is_a_set_of_name_and_password() {
        check("set a 0 0 10\r\njoe secret\r\n", Some(("joe", "secret")));
        check("set a 0 0 10 noreply\r\njoe secret\r\n", Some(("joe", "secret")));
        check("set a 0 0 12\r\njoe secret x\r\n", Some(("joe", "secret x")));
        check("set a 0 0 3\r\njoe\r\n", Some(("joe", "")));
        check("set a 0 0 0\r\n\r\n", Some(("", "")));
        for other in ["get a\r\n", "add a 0 0 10\r\njoe secret\r\n", "mg a\r\n"] {
            check(other, None);
        }
    }
}
