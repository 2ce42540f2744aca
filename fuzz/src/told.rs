//! Replies to clients: any bytes from a server in reply to any request, and any reply of the
//! proxy's own, become whole lines, or whole packets with the opcode and the opaque of the request.

use proto::{
    Adapted, Answer, Ask, Asked, Class, PROTOCOLS, Parsed, Progress, Protocol, Refusal, Request,
    Resume, Shown,
};

use testkit::wire::binary::{self, Head, Packet};

use crate::{mutate, server};

/// Longer values test nothing new.
const BODY_MAX: u64 = 1 << 16;

pub fn run(seed: u64, budget: usize) {
    let corpora = [mutate::corpus("request"), mutate::corpus("packet")];
    mutate::run("reply", seed, budget, |said, dice| {
        let bytes = mutate::input(&corpora[dice.below(2)], dice);
        let Some(&first) = bytes.first() else { return };
        let protocol = PROTOCOLS[0].spoken(first);
        let parsed = protocol.parse_request(&bytes, &mut Resume::default(), &mut Vec::new());
        let head = match parsed {
            Parsed::Complete(request) => {
                let head = &bytes[..request.head as usize];
                tell(protocol, &request, head, said);
                let asked = asked(&request, Ask::default(), head);
                answers().iter().for_each(|answer| say(protocol, &asked, answer));
                return;
            }
            Parsed::Malformed(_) => &bytes[..],
            Parsed::Incomplete => return,
        };
        let asked = Asked { head, ..Asked::no_request() };
        say(protocol, &asked, &Answer::Refused(Refusal::Bad("why")));
    });
}

fn asked<'a>(request: &Request, ask: Ask, head: &'a [u8]) -> Asked<'a> {
    Asked { command: request.command, quiet: request.quiet, ask, head, at: 0, next: None }
}

/// Renders the first item of a reply, if some server could send it in reply to this request.
fn tell(protocol: &dyn Protocol, request: &Request, head: &[u8], said: &[u8]) {
    for meta in [false, true].into_iter().filter(|_| request.keep) {
        let adapt = match request.class {
            Class::Fetch { ask, .. } | Class::Broadcast { ask, .. } => Adapted::Ask(ask),
            Class::Single { .. } => protocol.adapt(request, head, Some(server::capabilities(meta))),
            Class::Split { .. } | Class::Local(_) | Class::Refuse(_) => return,
        };
        let Adapted::Ask(ask) = adapt else { continue };
        let Parsed::Complete(item) =
            protocol.upstream().parse_reply(ask, &mut Progress::default(), said)
        else {
            continue;
        };
        let asked = asked(request, ask, head);
        let mut out = Vec::new();
        match protocol.render(&asked, &item, &said[..item.head as usize], &mut out) {
            Shown::Nothing => assert_eq!(out, b"", "nothing is shown"),
            Shown::Head => is_whole(protocol, &asked, &out),
            Shown::Body { trailer } if item.body <= BODY_MAX => {
                out.resize(out.len() + item.body as usize, b'v');
                out.extend_from_slice(trailer);
                is_whole(protocol, &asked, &out);
            }
            Shown::Body { .. } => {}
        }
    }
}

fn answers() -> [Answer<'static>; 13] {
    [
        Answer::End,
        Answer::Miss,
        Answer::Ok,
        Answer::Barrier,
        Answer::Bye,
        Answer::Version("1"),
        Answer::Stat("name", "value"),
        Answer::Refused(Refusal::Unknown),
        Answer::Refused(Refusal::ByName("why")),
        Answer::Refused(Refusal::TooLarge),
        Answer::Failed("10.0.0.1:11211: why"),
        Answer::Error(b"SERVER_ERROR busy\r\n"),
        Answer::LoginFirst,
    ]
}

fn say(protocol: &dyn Protocol, asked: &Asked<'_>, answer: &Answer<'_>) {
    let mut out = Vec::new();
    protocol.answer(asked, answer, &mut out);
    if !out.is_empty() {
        is_whole(protocol, asked, &out);
    }
}

/// Checks for whole lines, or whole packets that identify their request.
fn is_whole(protocol: &dyn Protocol, asked: &Asked<'_>, out: &[u8]) {
    if std::ptr::eq(protocol.commands(), PROTOCOLS[0].commands()) {
        assert!(out.ends_with(b"\r\n"), "a whole line: b\"{}\"", out.escape_ascii());
        return;
    }
    let head = asked.head;
    let known = head.first() == Some(&binary::REQUEST);
    let asked = Head::read(head).filter(|_| known).unwrap_or_default();
    let mut rest = out;
    while !rest.is_empty() {
        let (packet, len) = Packet::read(rest).expect("a whole packet");
        assert_eq!(packet.magic, binary::REPLY);
        assert_eq!(packet.code, asked.code, "the opcode");
        assert_eq!(packet.opaque, asked.opaque, "the opaque");
        rest = &rest[len..];
    }
}
