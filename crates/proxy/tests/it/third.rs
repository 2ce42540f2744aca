//! Stories of a protocol that is defined here: the data plane serves it by the traits of `proto`
//! alone.
//!
//! ```text
//!   G key          V value, or N            a read
//!   S key value    K                        a change
//!   D name text    K                        a definition, given to every server
//!   R name key     V value, or !lost        a request that refers to a definition
//!   X key          V value                  only newer servers know it
//!   P              K                        answered by the proxy
//!   H              H 1, or H 2              the greeting; 2 is a newer server
//! ```
//!
//! Each is a line. An error begins with `!`; after `!busy` and `!lost` the server has done nothing.

use std::borrow::Cow;

use proto::{
    Adapted, Answer, Ask, Asked, Capabilities, Class, Command, ConnKey, Credentials, Errors,
    HandshakeReply, Item, ItemKind, Local, Login, Parsed, Part, Place, Progress, Protocol,
    ProxyFacts, Reach, Refusal, Request, Resume, Retryable, Shown, Span, Upstream, Work,
};
use proxy::{Closed, ConnId, Event};

use crate::stage::{S0, SECOND, Stage};

struct Lines;

static COMMANDS: [Command; 6] = [
    command("G", Class::Single { writes: false }),
    command("S", Class::Single { writes: true }),
    command("D", Class::Broadcast { ask: DEFINE, gated: false, writes: true, reach: Reach::All }),
    command("R", Class::Single { writes: false }),
    command("X", Class::Single { writes: false }),
    command("P", Class::Local(Local::Nothing)),
];
const DEFINE: Ask = Ask { command: 2 };
const REFER: Ask = Ask { command: 3 };
const NEWER: Ask = Ask { command: 4 };
/// A newer server.
const NEW: Capabilities = Capabilities::one(7);

static ERRORS: [Retryable; 2] = [
    Retryable {
        place: 0,
        counter: "again_busy_total",
        help: "Requests retried because the server was busy.",
        needs_recovery: false,
    },
    Retryable {
        place: 1,
        counter: "again_lost_total",
        help: "Requests retried after a definition had been given again.",
        needs_recovery: true,
    },
];

const fn command(name: &'static str, class: Class) -> Command {
    Command { name, class, work: Work::Quick, family: 0, capable: false, note: "" }
}

/// Returns the words of a line.
fn words(line: &[u8]) -> Vec<&[u8]> {
    line.strip_suffix(b"\n").unwrap_or(line).split(|byte| *byte == b' ').collect()
}

fn line_len(input: &[u8]) -> Option<usize> {
    input.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}

impl Protocol for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn spoken(&self, _: u8) -> &'static dyn Protocol {
        &Lines
    }

    fn upstream(&self) -> &'static dyn Upstream {
        &Lines
    }

    fn commands(&self) -> &'static [Command] {
        &COMMANDS
    }

    fn parse_request(&self, input: &[u8], _: &mut Resume, keys: &mut Vec<Span>) -> Parsed<Request> {
        keys.clear();
        let Some(len) = line_len(input) else { return Parsed::Incomplete };
        let words = words(&input[..len]);
        let request = Request { head: len as u32, ..Request::placeholder() };
        let is_it = |one: &Command| one.name.as_bytes() == words[0];
        let Some(command) = COMMANDS.iter().position(is_it) else {
            return Parsed::Complete(request);
        };
        let key = match words[0] {
            b"G" | b"S" | b"X" => words.get(1),
            b"R" => words.get(2),
            _ => None,
        };
        if let Some(key) = key {
            let start = key.as_ptr().addr() - input.as_ptr().addr();
            keys.push(Span::new(start, start + key.len()));
        }
        let place = if keys.is_empty() { Place::Any } else { Place::Keys };
        let class = COMMANDS[command].class;
        let command = command as u16;
        Parsed::Complete(Request { command, class, repeat: true, place, ..request })
    }

    fn join(&self, _: &mut Request, _: &[u8], _: &mut Vec<Span>, _: usize) {}

    fn key<'a>(&self, _: &Request, head: &'a [u8], span: Span, _: &'a mut Vec<u8>) -> &'a [u8] {
        span.of(head)
    }

    fn adapt(&self, request: &Request, _: &[u8], capabilities: Option<Capabilities>) -> Adapted {
        let ask = Ask { command: request.command };
        match capabilities {
            _ if ask != NEWER => Adapted::Ask(ask),
            None => Adapted::Unknown,
            Some(known) if known.include(NEW) => Adapted::Ask(ask),
            Some(_) => Adapted::Refused(Refusal::ByName("an older server")),
        }
    }

    fn write_head(&self, _: &Request, head: &[u8], _: &[Span], _: Ask, out: &mut Vec<u8>) {
        out.extend_from_slice(head);
    }

    fn write_tail(&self, _: &Request, _: Ask, _: &mut Vec<u8>) {}

    fn open_fetch(&self, _: &Request, _: &[u8], _: &mut Vec<u8>) {}

    fn gather(
        &self,
        _: &Asked<'_>,
        parts: &mut dyn Iterator<Item = Part<'_>>,
        _: &dyn ProxyFacts,
        out: &mut Vec<u8>,
    ) {
        let bad = parts.filter(|part| part.reply() != Some(b"K\n"));
        out.extend_from_slice(if bad.count() == 0 { b"K\n" } else { b"!not everywhere\n" });
    }

    fn learn<'a>(&self, asked: &Asked<'a>, _: &'a [u8]) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
        let words = words(asked.head);
        (asked.command == DEFINE.command).then(|| (words[1], words[2].into()))
    }

    fn recovery(
        &self,
        asked: &Asked<'_>,
        error: &Retryable,
        known: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
        out: &mut Vec<u8>,
    ) -> Option<Ask> {
        assert_eq!((error, asked.command), (&ERRORS[1], REFER.command));
        let name = words(asked.head)[1];
        out.extend_from_slice(&[&b"D "[..], name, b" ", &known(name)?[..], b"\n"].concat());
        Some(DEFINE)
    }

    fn render(&self, _: &Asked<'_>, _: &Item, _: &[u8], _: &mut Vec<u8>) -> Shown {
        unreachable!("replies pass unchanged")
    }

    fn answer(&self, _: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
        let text = match answer {
            Answer::Ok => "K".to_string(),
            Answer::Refused(Refusal::Unknown) => "!unknown".to_string(),
            Answer::Refused(Refusal::ByName(why)) => format!("!{why}"),
            Answer::Failed(why) | Answer::Uncertain(why) => format!("!{why}"),
            Answer::Error(line) => return out.extend_from_slice(line),
            other => format!("!{other:?}"),
        };
        out.extend_from_slice(format!("{text}\n").as_bytes());
    }

    fn login<'a>(&self, _: &Request, _: &'a [u8], _: &'a [u8]) -> Login<'a> {
        Login::Other
    }
}

impl proto::Bound for Lines {}

impl Upstream for Lines {
    fn families(&self) -> &'static [&'static str] {
        &["all"]
    }

    fn parse_reply(&self, ask: Ask, _: &mut Progress, input: &[u8]) -> Parsed<Item> {
        let Some(len) = line_len(input) else { return Parsed::Incomplete };
        let is_change = matches!(ask.command, 1 | 2);
        let kind = match input[0] {
            b'!' => ItemKind::Error,
            b'K' if is_change => ItemKind::Status,
            b'V' | b'N' if !is_change => ItemKind::Status,
            _ => return Parsed::Malformed("not a possible answer"),
        };
        let (head, key) = (len as u32, Span::default());
        Parsed::Complete(Item { kind, head, body: 0, trailer: b"", key })
    }

    fn needs(&self, ask: Ask) -> Capabilities {
        if ask == NEWER { NEW } else { Capabilities::default() }
    }

    fn lacks(&self, capabilities: Capabilities) -> Option<&'static str> {
        (!capabilities.include(NEW)).then_some("has no X")
    }

    fn fetch_max(&self, _: Ask) -> usize {
        usize::MAX
    }

    fn widen(&self, _: Ask, _: Ask) -> Option<Ask> {
        None
    }

    fn push_fetch(&self, _: &[u8], _: &mut Vec<u8>) -> usize {
        unreachable!("no read is merged")
    }

    fn seal_fetch(&self, _: Ask, _: usize, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("no read is merged")
    }

    fn write_handshake(&self, _: Option<&Credentials>, _: ConnKey, out: &mut Vec<u8>) {
        out.extend_from_slice(b"H\n");
    }

    fn read_handshake(&self, _: bool, _: ConnKey, input: &[u8]) -> Parsed<HandshakeReply> {
        let capabilities = match input {
            b"H 1\n" => Capabilities::default(),
            b"H 2\n" => NEW,
            _ if !input.ends_with(b"\n") => return Parsed::Incomplete,
            _ => return Parsed::Malformed("not a greeting"),
        };
        Parsed::Complete(HandshakeReply::Welcome { len: input.len(), capabilities })
    }
}

impl Errors for Lines {
    fn retryable_errors(&self) -> &'static [Retryable] {
        &ERRORS
    }

    fn retryable(&self, line: &[u8]) -> Option<&'static Retryable> {
        match line {
            b"!busy\n" => Some(&ERRORS[0]),
            b"!lost\n" => Some(&ERRORS[1]),
            _ => None,
        }
    }
}

/// One server that greets with this line, and the link to it.
fn stage(greeting: &str) -> (Stage, ConnId) {
    let mut stage = Stage::new(&["s0"], |pool| (pool.protocol, pool.preconnect) = (&Lines, true));
    let link = connect(&mut stage, greeting);
    (stage, link)
}

fn connect(stage: &mut Stage, greeting: &str) -> ConnId {
    let link = stage.establishes_with("H\n");
    stage.says(link, greeting);
    link
}

/// A client asks, the server is asked the same and answers, and the client is told.
#[track_caller]
fn check(stage: &mut Stage, link: ConnId, asked: &str, said: &str) {
    let client = stage.client();
    stage.says(client, asked);
    assert_eq!(stage.turn(link), asked);
    stage.says(link, said);
    assert_eq!(stage.received(client), said);
}

#[test]
fn a_protocol_from_elsewhere_is_served() {
    let (mut stage, link) = stage("H 2\n");
    check(&mut stage, link, "S a 1\n", "K\n");
    check(&mut stage, link, "G a\n", "V 1\n");
    check(&mut stage, link, "G b\n", "N\n");
    check(&mut stage, link, "X a\n", "V 1\n");
    check(&mut stage, link, "G c\n", "!no such luck\n");
    let client = stage.client();
    stage.says(client, "P\nY z\nG a\nG ");
    assert_eq!(stage.turn(link), "G a\n");
    stage.says(client, "b\n");
    assert_eq!(stage.turn(link), "G b\n");
    stage.says(link, "V 1\nN\n");
    assert_eq!(stage.received(client), "K\n!unknown\nV 1\nN\n");
    stage.expect_rows(0);
}

#[test]
fn its_own_retryable_error_is_not_told_but_counted() {
    let (mut stage, link) = stage("H 2\n");
    let client = stage.client();
    stage.says(client, "S a 1\n");
    assert_eq!(stage.turn(link), "S a 1\n");
    stage.says(link, "!busy\n");
    assert_eq!((stage.turn(link), stage.received(client)), (String::new(), String::new()));
    stage.passes(SECOND);
    assert_eq!(stage.turn(link), "S a 1\n");
    stage.says(link, "K\n");
    assert_eq!(stage.received(client), "K\n");
    assert_eq!([0, 1].map(|place| stage.registry.total_own(S0, place)), [1, 0]);
}

#[test]
fn its_definitions_are_given_again_to_a_server_that_has_lost_them() {
    let (mut stage, link) = stage("H 2\n");
    check(&mut stage, link, "D twice 2*x\n", "K\n");
    let client = stage.client();
    stage.says(client, "R twice a\n");
    assert_eq!(stage.turn(link), "R twice a\n");
    stage.says(link, "!lost\n");
    stage.passes(0);
    assert_eq!(stage.turn(link), "D twice 2*x\nR twice a\n");
    stage.says(link, "K\nV 2\n");
    assert_eq!(stage.received(client), "V 2\n");
    assert_eq!([0, 1].map(|place| stage.registry.total_own(S0, place)), [0, 1]);
    check(&mut stage, link, "R thrice a\n", "!lost\n");
}

#[test]
fn its_reads_survive_a_lost_link_and_its_changes_do_not() {
    let (mut stage, link) = stage("H 2\n");
    // A link that has carried a reply may be lost without a doubt about its server.
    check(&mut stage, link, "G a\n", "V 0\n");
    let [reader, writer] = [stage.client(), stage.client()];
    stage.says(reader, "G a\n");
    stage.says(writer, "S a 1\n");
    assert_eq!(stage.turn(link), "G a\nS a 1\n");
    stage.closes(link, Closed::Reset);
    stage.end_turn();
    assert_eq!(stage.received(writer), "!s0: connection lost, outcome unknown\n");
    let link = connect(&mut stage, "H 2\n");
    assert_eq!(stage.turn(link), "G a\n");
    stage.says(link, "V 0\n");
    assert_eq!(stage.received(reader), "V 0\n");
}

#[test]
fn a_reply_that_it_does_not_allow_ends_the_link() {
    let (mut stage, link) = stage("H 2\n");
    let client = stage.client();
    stage.says(client, "S a 1\n");
    assert_eq!(stage.turn(link), "S a 1\n");
    stage.says(link, "V 1\n");
    assert_eq!(stage.closed, [link]);
    let words = "!s0: unexpected reply, connection closed, outcome unknown\n";
    assert_eq!(stage.received(client), words);
}

#[test]
fn a_server_is_sent_no_more_than_its_greeting_allows() {
    let (mut stage, link) = stage("H 1\n");
    assert_eq!(stage.events, [Event::Lacks { server: S0, what: "has no X" }]);
    let client = stage.client();
    stage.says(client, "X a\nG a\n");
    assert_eq!(stage.turn(link), "G a\n");
    stage.says(link, "V 1\n");
    assert_eq!(stage.received(client), "!an older server\nV 1\n");
}

#[test]
fn a_client_of_it_is_handed_over() {
    let (mut stage, link) = stage("H 2\n");
    let client = stage.client();
    stage.says(client, "P\n");
    assert_eq!(stage.received(client), "K\n");
    let passed = stage.passed().remove(0);
    let client = stage.adopt(passed);
    stage.says(client, "G a\n");
    assert_eq!(stage.turn(link), "G a\n");
    stage.says(link, "V 1\n");
    assert_eq!(stage.received(client), "V 1\n");
}
