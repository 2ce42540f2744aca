//! What every protocol must keep, checked for each row of `PROTOCOLS` on the transcripts of
//! `testdata/` and on garbage. A new protocol is tested here from its first day; it brings its own
//! transcripts and no code.

// A test reads files and unwraps; the wall of `clippy.toml` is about what ships.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod transcript;

use std::collections::BTreeSet;

use proto::{
    Answer, Ask, Asked, Class, PROTOCOLS, Parsed, Protocol, Quiet, Refusal, Request, Resume, Span,
};
use transcript::{ask, frames, meaning, own_words, reply_story, rows, story};

/// Streams above this length are not cut at every byte: they say nothing new and take minutes.
const CUT_MAX: usize = 4096;

#[test]
fn a_transcript_means_what_it_says() {
    let mut wrong = Vec::new();
    for_each_row(|protocol, row| {
        let meaning = if row.asked.is_empty() {
            story(protocol, &row.request)
        } else {
            let (said, _) = row.server.as_ref().expect("a reply");
            reply_story(protocol, ask(protocol, &row.asked), said)
        };
        if meaning != row.meaning {
            wrong.push(format!("{}\n  is  = {meaning}\n  not = {}", row.place, row.meaning));
        }
    });
    assert!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn our_own_words_are_the_servers_or_a_reason_is_given() {
    for_each_row(|protocol, row| {
        let Some((said, closed)) = row.server.as_ref().filter(|_| row.asked.is_empty()) else {
            return;
        };
        let Some(ours) = own_words(protocol, &row.request) else {
            assert!(row.reason.is_empty(), "{}: the server's words are passed on", row.place);
            return;
        };
        let theirs = (String::from_utf8_lossy(said).into_owned(), *closed);
        let differs = ours != theirs;
        assert_eq!(differs, !row.reason.is_empty(), "{}: {ours:?}, {theirs:?}", row.place);
    });
}

#[test]
fn every_command_is_in_the_transcripts() {
    for &protocol in PROTOCOLS {
        let mut taken = BTreeSet::new();
        let mut refused = BTreeSet::new();
        let mut answered = BTreeSet::new();
        for row in rows(protocol) {
            answered.insert(row.asked.clone());
            for (outcome, _) in frames(protocol, &row.request) {
                if let Parsed::Complete(request) = outcome {
                    let name = protocol.commands()[usize::from(request.command)].name;
                    let refusal = matches!(request.class, Class::Refuse(_));
                    if refusal {
                        refused.insert(name)
                    } else {
                        taken.insert(name)
                    };
                }
            }
        }
        for row in protocol.commands() {
            let name = row.name;
            match row.class {
                Class::Refuse(_) => assert!(refused.contains(name), "{name} is never refused"),
                Class::Local(_) => assert!(taken.contains(name), "{name} is missing"),
                _ => {
                    assert!(taken.contains(name), "{name} is missing");
                    assert!(refused.contains(name), "{name} is never refused");
                    assert!(answered.contains(name), "{name} is never answered");
                }
            }
        }
    }
}

#[test]
fn any_chunking_gives_the_same_parse() {
    for_each_row(|protocol, row| {
        let stream = &row.request[..];
        if stream.len() > CUT_MAX {
            return;
        }
        let whole = first(protocol, stream, &mut Resume::default());
        let mut growing = Resume::default();
        for cut in 0..=stream.len() {
            let mut resume = Resume::default();
            let early = first(protocol, &stream[..cut], &mut resume);
            let grown = first(protocol, &stream[..cut], &mut growing);
            assert_eq!(early, grown, "{}: {cut} bytes, in one piece and byte by byte", row.place);
            if early.0 == Parsed::Incomplete {
                assert!(resume.scanned <= cut, "{}: has searched what is not there", row.place);
                let late = first(protocol, stream, &mut resume);
                assert_eq!(late, whole, "{}: cut at {cut}", row.place);
            } else {
                assert_eq!(early, whole, "{}: settled after {cut} bytes", row.place);
                growing = Resume::default();
            }
        }
    });
}

#[test]
fn nothing_is_read_past_the_end_of_a_frame() {
    for_each_row(|protocol, row| {
        for after in
            [&b""[..], b"\n", b"\0", b" noreply\r\n", b"x", b"\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            let mut rest = &row.request[..];
            while let (Parsed::Complete(request), keys) =
                first(protocol, rest, &mut Resume::default())
            {
                let head = request.head as usize;
                let alone = [&rest[..head], after].concat();
                let again = first(protocol, &alone, &mut Resume::default());
                assert_eq!(again, (Parsed::Complete(request), keys), "{}: {after:?}", row.place);
                let cut = first(protocol, &rest[..head - 1], &mut Resume::default());
                assert_eq!(cut.0, Parsed::Incomplete, "{}: a head without its end", row.place);
                rest = rest.get(request.len() as usize..).unwrap_or(b"");
            }
        }
        for at in 0..row.server.as_ref().map_or(0, |(said, _)| said.len()) {
            let (said, _) = row.server.as_ref().unwrap();
            if row.asked.is_empty() {
                break;
            }
            let ask = ask(protocol, &row.asked);
            let whole = protocol.upstream().parse_reply(ask, said);
            let early = protocol.upstream().parse_reply(ask, &said[..at]);
            assert!(early == Parsed::Incomplete || early == whole, "{}: {at} bytes", row.place);
        }
    });
}

#[test]
fn what_is_written_reads_as_the_same_request() {
    for_each_row(|protocol, row| {
        let mut rest = &row.request[..];
        let mut keys = Vec::new();
        while let Parsed::Complete(request) =
            protocol.parse_request(rest, &mut Resume::default(), &mut keys)
        {
            let head = &rest[..request.head as usize];
            if let Some(written) = forwarded(protocol, request.class, &request, head, &keys) {
                let mut loud = request;
                loud.quiet = Quiet::Loud;
                let expected = meaning(protocol, &loud, head, &keys);
                let (again, spans) = first(protocol, &written, &mut Resume::default());
                let Parsed::Complete(read) = again else { panic!("{}: {again:?}", row.place) };
                assert_eq!(meaning(protocol, &read, &written, &spans), expected, "{}", row.place);
                assert!(
                    keys.iter()
                        .map(|key| key.of(head))
                        .eq(spans.iter().map(|key| key.of(&written))),
                    "{}: the same keys",
                    row.place
                );
                assert_eq!(read.class, request.class, "{}", row.place);
                assert_eq!(read.head as usize, written.len(), "{}: one message", row.place);
                assert!(written.len() <= head.len() + 1, "{}: it has grown", row.place);
            }
            rest = rest.get(request.len() as usize..).unwrap_or(b"");
        }
    });
}

#[test]
fn garbage_never_panics() {
    for &protocol in PROTOCOLS {
        let rows = rows(protocol);
        let asks: Vec<_> = rows.iter().filter(|row| !row.asked.is_empty()).collect();
        let mut keys = Vec::new();
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        for _ in 0..200_000 {
            let mut bytes: Vec<u8> = (0..dice.below(40)).map(|_| dice.below(256) as u8).collect();
            let row = &rows[dice.below(rows.len())];
            if row.request.len() < CUT_MAX {
                let cut = dice.below(row.request.len() + 1);
                bytes.splice(0..0, row.request[..cut].iter().copied());
            }
            let _ = protocol.parse_request(&bytes, &mut Resume::default(), &mut keys);
            let asked = asks[dice.below(asks.len())];
            let said = &asked.server.as_ref().unwrap().0;
            let from = dice.below(bytes.len() + 1);
            bytes.splice(0..from, said[..dice.below(said.len() + 1)].iter().copied());
            let _ = protocol.upstream().parse_reply(ask(protocol, &asked.asked), &bytes);
        }
    }
}

/// The words of a refusal are an error to whoever stands before us, be it a proxy of our kind.
#[test]
fn our_errors_are_errors_to_our_own_reply_parser() {
    for &protocol in PROTOCOLS {
        for refusal in
            [Refusal::Unknown, Refusal::ByName("why"), Refusal::Bad("why"), Refusal::TooLarge]
        {
            for answer in [Answer::Refused(refusal), Answer::Failed("10.0.0.1:11211: why")] {
                let mut out = Vec::new();
                protocol.answer(&Asked::nobody(), &answer, &mut out);
                for row in protocol.commands() {
                    if matches!(row.class, Class::Fetch { .. } | Class::Single { .. }) {
                        let told = reply_story(protocol, ask(protocol, row.name), &out);
                        assert_eq!(told, "error", "{answer:?} to {}", row.name);
                    }
                }
            }
        }
    }
}

/// Work is counted, not timed: each piece is searched once, and nothing before it again.
#[test]
fn a_long_get_in_pieces_is_read_in_linear_time() {
    for &protocol in PROTOCOLS {
        read_a_get_in_pieces(protocol, 100_000);
    }
}

/// Reads a get of so many keys that arrives in pieces of 16 KiB.
fn read_a_get_in_pieces(protocol: &dyn Protocol, count: usize) {
    let mut input = Vec::new();
    let get = protocol.commands().iter().position(|row| row.name == "get").unwrap();
    let template = rows(protocol).into_iter().find(|row| row.request.starts_with(b"get ")).unwrap();
    let mut keys = Vec::new();
    let parsed = protocol.parse_request(&template.request, &mut Resume::default(), &mut keys);
    let Parsed::Complete(request) = parsed else { panic!("{}: {parsed:?}", template.place) };
    assert_eq!(usize::from(request.command), get);
    protocol.open_fetch(&request, &template.request, &mut input);
    for number in 0..count {
        protocol.upstream().push_fetch(format!("key:{number:08}").as_bytes(), &mut input);
    }
    protocol.upstream().close_fetch(&mut input);

    let mut resume = Resume::default();
    for end in (16384..input.len()).step_by(16384) {
        let parsed = protocol.parse_request(&input[..end], &mut resume, &mut keys);
        assert_eq!(parsed, Parsed::Incomplete);
        assert_eq!(resume.scanned, end, "the next piece would be searched together with old ones");
    }
    let parsed = protocol.parse_request(&input, &mut resume, &mut keys);
    assert!(matches!(parsed, Parsed::Complete(_)), "{parsed:?}");
    assert_eq!(keys.len(), count);
}

/// The outcome of a parse at the start of `input`, and the keys.
fn first(
    protocol: &dyn Protocol,
    input: &[u8],
    resume: &mut Resume,
) -> (Parsed<Request>, Vec<Span>) {
    let mut keys = vec![Span::new(7, 9)];
    let outcome = protocol.parse_request(input, resume, &mut keys);
    (outcome, keys)
}

/// What a server is sent for this request; `None` if nothing is.
fn forwarded(
    protocol: &dyn Protocol,
    class: Class,
    request: &Request,
    head: &[u8],
    keys: &[Span],
) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match class {
        Class::Fetch { .. } => {
            protocol.open_fetch(request, head, &mut out);
            keys.iter().for_each(|key| protocol.upstream().push_fetch(key.of(head), &mut out));
            protocol.upstream().close_fetch(&mut out);
        }
        Class::Single { .. } | Class::Broadcast { .. } => {
            let ask = Ask { command: request.command };
            protocol.write_head(request, head, keys, ask, &mut out);
        }
        Class::Local(_) | Class::Refuse(_) => return None,
    }
    Some(out)
}

fn for_each_row(mut check: impl FnMut(&dyn Protocol, &transcript::Row)) {
    for &protocol in PROTOCOLS {
        rows(protocol).iter().for_each(|row| check(protocol, row));
    }
}

/// A small generator (xorshift), so that a failure repeats.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }
}
