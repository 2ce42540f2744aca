//! Rules that every protocol must keep, checked for each entry of `PROTOCOLS` on the transcripts of
//! `testdata/` and on garbage. A new protocol is tested here from its first day; it brings its own
//! transcripts and no code.

// A test reads files and unwraps; the rules of `clippy.toml` are for the product.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod transcript;

use std::collections::{BTreeMap, BTreeSet};

use proto::memcached::{Binary, number};
use proto::redis::{self, commands::Row};
use proto::{
    Answer, Ask, Asked, Capabilities, Class, ItemKind, NAMED, PROTOCOLS, Parsed, Progress,
    Protocol, Quiet, Refusal, Request, Resume, Span,
};
use transcript::{
    ask, bytes, carried, escaped, frames, meaning, own_words, reply_story, rows, servers, story,
    way,
};

/// Streams above this length are not cut at every byte: that shows nothing new and takes minutes.
const CUT_MAX: usize = 4096;
/// The least that is compared for each protocol, a little less than there is. Bytes of requests at
/// which they were cut, …
const CUT: &[(&str, usize)] =
    &[("memcached", 33_000), ("memcached-binary", 16_000), ("redis", 24_000)];
/// … and of replies; servers of binary clients use text.
const CUT_REPLIES: &[(&str, usize)] = &[("memcached", 6_000), ("redis", 33_000)];
/// Frames, each with every frame that may follow it.
const FRAMES: &[(&str, usize)] =
    &[("memcached", 5_000), ("memcached-binary", 1_800), ("redis", 6_500)];
/// Messages to servers that were read again.
const WRITTEN: &[(&str, usize)] = &[("memcached", 700), ("memcached-binary", 380), ("redis", 540)];
/// The proxy's answers that were compared with the servers'.
const OWN_WORDS: &[(&str, usize)] = &[("memcached", 346), ("memcached-binary", 95), ("redis", 350)];
/// Packets that were refused for each reason.
const PACKETS: usize = 300;
/// Keys of requests that were split.
const PARTS: &[(&str, usize)] = &[("redis", 60)];

#[test]
fn a_transcript_means_what_it_says() {
    let mut wrong = Vec::new();
    for_each_row(|protocol, row| {
        let meaning = if row.capabilities.is_some() {
            let (sent, told) = way(protocol, row);
            if sent != row.sent {
                wrong.push(format!("{}\n  is  ~ {}", row.place, escaped(&sent)));
            }
            if told == bytes(&row.meaning) { row.meaning.clone() } else { escaped(&told) }
        } else if row.asked.is_empty() {
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
    let mut wrong = Vec::new();
    count_for_each_row(OWN_WORDS, |protocol, row| {
        let is_asked = row.asked.is_empty() && row.capabilities.is_none();
        let Some(theirs) = row.server.as_ref().filter(|_| is_asked) else { return 0 };
        let Some(ours) = own_words(protocol, row) else {
            assert!(row.reason.is_empty(), "{}: the server's words are passed on", row.place);
            return 0;
        };
        let differs = ours != *theirs;
        let show = |(said, closed): &(Vec<u8>, bool)| format!("{} {closed}", said.escape_ascii());
        let both = format!("{}, {}", show(&ours), show(theirs));
        if differs == row.reason.is_empty() {
            wrong.push(format!("{}: {both}", row.place));
        }
        1
    });
    assert!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
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
                    let name = protocol.command_name(request.command);
                    if row.capabilities.is_some() {
                        answered.insert(name.to_string());
                    }
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
                    // A malformed packet has no command.
                    let is_packet = protocol.name() == "memcached-binary";
                    let is_refused = refused.contains(name) || takes_all(protocol, name);
                    assert!(is_packet || is_refused, "{name} is never refused");
                    assert!(answered.contains(name), "{name} is never answered");
                }
            }
        }
    }
}

/// Whether it is valid with any arguments, as far as a proxy checks them.
fn takes_all(protocol: &dyn Protocol, name: &str) -> bool {
    let least = 1 + name.matches('|').count();
    let is_it = |row: &&Row| row.name == name && row.arity < 0 && row.takes(least);
    protocol.name() == "redis" && redis::commands::rows().iter().any(|row| is_it(&row))
}

#[test]
fn any_chunking_gives_the_same_parse() {
    count_for_each_row(CUT, |protocol, row| {
        let stream = &row.request[..];
        if stream.len() > CUT_MAX {
            return 0;
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
        stream.len()
    });
}

#[test]
fn nothing_is_read_past_the_end_of_a_frame() {
    count_for_each_row(FRAMES, |protocol, row| {
        let mut frames = 0;
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
                frames += 1;
            }
        }
        frames
    });
}

/// However a reply is cut, its bytes pass in order, and its end is the same.
#[test]
fn any_chunking_gives_the_same_reply() {
    count_for_each_row(CUT_REPLIES, |protocol, row| {
        let Some((said, _)) = row.server.as_ref().filter(|_| !row.asked.is_empty()) else {
            return 0;
        };
        if said.len() > CUT_MAX {
            return 0;
        }
        let ask = ask(protocol, &row.asked);
        let whole = pieces(protocol, ask, said, &[]);
        for cut in 1..said.len() {
            let cuts = [cut, cut + 1, (cut + said.len()) / 2];
            for cuts in [&cuts[..1], &cuts[..2], &cuts[1..]] {
                let again = pieces(protocol, ask, said, cuts);
                assert_eq!(again, whole, "{}: cut at {cuts:?}", row.place);
            }
        }
        let every: Vec<usize> = (1..said.len()).collect();
        assert_eq!(pieces(protocol, ask, said, &every), whole, "{}: byte by byte", row.place);
        said.len()
    });
}

/// Reads a stream of replies that arrives up to each of these positions; returns the bytes and the
/// end of each reply. An incomplete rest has no end.
fn pieces(
    protocol: &dyn Protocol,
    ask: Ask,
    said: &[u8],
    cuts: &[usize],
) -> Vec<(Vec<u8>, Option<ItemKind>)> {
    let mut replies = Vec::new();
    let mut bytes = Vec::new();
    let (mut progress, mut at) = (Progress::default(), 0);
    for end in cuts.iter().copied().chain([said.len()]) {
        while let Some(input) = said.get(at..end.min(said.len())).filter(|input| !input.is_empty())
        {
            match protocol.upstream().parse_reply(ask, &mut progress, input) {
                Parsed::Complete(item) => {
                    // A body that has not come is awaited: its bytes are not parsed.
                    let next = at + item.len() as usize;
                    bytes.extend_from_slice(&said[at..next.min(said.len())]);
                    at = next;
                    if item.kind.ends_reply() {
                        replies.push((std::mem::take(&mut bytes), Some(item.kind)));
                        progress = Progress::default();
                    }
                }
                Parsed::Incomplete => break,
                Parsed::Malformed(_) => {
                    replies.push((bytes, None));
                    return replies;
                }
            }
        }
    }
    replies
}

/// Messages to servers are read with the parser of the servers' protocol.
#[test]
fn what_is_written_reads_as_the_same_request() {
    count_for_each_row(WRITTEN, |protocol, row| {
        let mut compared = 0;
        let mut rest = &row.request[..];
        let mut keys = Vec::new();
        while let Parsed::Complete(request) =
            protocol.parse_request(rest, &mut Resume::default(), &mut keys)
        {
            let (head, after) = rest.split_at(request.head as usize);
            let Some(body) = after.get(..(request.len() - u64::from(request.head)) as usize) else {
                return compared;
            };
            rest = &after[body.len()..];
            if matches!(request.class, Class::Refuse(_) | Class::Local(_)) {
                continue;
            }
            for capabilities in [Capabilities::default(), proto::memcached::META] {
                let capabilities = Some(capabilities);
                if let Ok((sent, ask)) =
                    carried(protocol, &request, head, &keys, body, capabilities)
                {
                    let is_row = request.command == ask.command
                        || matches!(request.class, Class::Split { .. });
                    let same = is_row && protocol.name() == servers(protocol).name();
                    let place = &row.place;
                    reads_the_same(protocol, &request, (head, &keys, body), &sent, same, place);
                    compared += 1;
                }
            }
        }
        compared
    });
}

/// `same`: the message has exactly the form that the client gave it.
fn reads_the_same(
    protocol: &dyn Protocol,
    request: &Request,
    (head, keys, body): (&[u8], &[Span], &[u8]),
    sent: &[u8],
    same: bool,
    place: &str,
) {
    let servers = servers(protocol);
    let (outcome, spans) = first(servers, sent, &mut Resume::default());
    let Parsed::Complete(mut read) = outcome else { panic!("{place}: {outcome:?}") };
    // A cursor for a server does not contain the server's index.
    read.place = request.place;
    assert!(!matches!(read.class, Class::Refuse(_) | Class::Local(_)), "{place}: {read:?}");
    assert_eq!(read.len(), sent.len() as u64, "{place}: one message");
    assert_eq!(read.quiet, Quiet::Loud, "{place}");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    assert_eq!(keys.len(), spans.len(), "{place}");
    for (key, span) in keys.iter().zip(&spans) {
        let key = protocol.key(request, head, *key, &mut ours);
        assert_eq!(key, servers.key(&read, sent, *span, &mut theirs), "{place}: the same key");
    }
    let data = &body[..request.body as usize];
    assert_eq!(&sent[read.head as usize..][..read.body as usize], data, "{place}: the same data");
    if same {
        assert_eq!(read.class, request.class, "{place}");
        if head[0] != sent[0] {
            // A line that a person typed goes to a server in the form that programs write.
            return;
        }
        let loud = Request { quiet: Quiet::Loud, ..*request };
        let mut expected = meaning(protocol, &loud, head, keys);
        let said = request.arguments.of(head).escape_ascii().to_string();
        if let Some(time) = number::exptime(said.as_bytes()) {
            expected = expected.replace(&format!("({said})"), &format!("({time})"));
        }
        assert_eq!(meaning(servers, &read, sent, &spans), expected, "{place}");
    }
}

#[test]
fn garbage_never_panics() {
    for &protocol in PROTOCOLS {
        let rows = rows(protocol);
        let servers = servers(protocol);
        let replies = self::rows(servers);
        let asks: Vec<_> = replies.iter().filter(|row| !row.asked.is_empty()).collect();
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
            let (ask, mut progress) = (ask(servers, &asked.asked), Progress::default());
            let _ = protocol.upstream().parse_reply(ask, &mut progress, &bytes);
        }
    }
}

/// A refusal is an error to every client, even to another proxy of ours.
#[test]
fn our_errors_are_errors_to_our_own_reply_parser() {
    for &protocol in NAMED {
        for refusal in [
            Refusal::Unknown,
            Refusal::ByName("why"),
            Refusal::Bad("why"),
            Refusal::TooLarge,
            Refusal::TooLargeKept,
        ] {
            let why = "10.0.0.1:11211: why";
            let faults = [Answer::Failed(why), Answer::Uncertain(why)];
            for answer in [Answer::Refused(refusal)].into_iter().chain(faults) {
                let mut out = Vec::new();
                protocol.answer(&Asked::no_request(), &answer, &mut out);
                for row in protocol.commands() {
                    let is_asked = !matches!(row.class, Class::Local(_) | Class::Refuse(_));
                    if is_asked && !matches!(row.class, Class::Broadcast { gated: true, .. }) {
                        let told = reply_story(protocol, ask(protocol, row.name), &out);
                        assert_eq!(told, "error", "{answer:?} to {}", row.name);
                    }
                }
            }
        }
    }
}

/// Each error repeats its request's opaque and has a status, and quiet requests get it too.
#[test]
fn our_errors_are_errors_to_binary_clients() {
    let protocol: &dyn Protocol = &Binary;
    let refusals = [Refusal::Unknown, Refusal::ByName("why"), Refusal::Bad("why")];
    let mut answers: Vec<_> = refusals.into_iter().map(Answer::Refused).collect();
    answers.push(Answer::Refused(Refusal::TooLarge));
    answers.push(Answer::Refused(Refusal::TooLargeKept));
    answers.extend([Answer::Failed("why"), Answer::Uncertain("why")]);
    answers.extend([Answer::Error(b"SERVER_ERROR why\r\n"), Answer::Error(b"ERROR\r\n")]);
    answers.extend([Answer::LoginFailed, Answer::LoginFirst]);
    let mut packets = 0;
    for row in rows(protocol) {
        let (Parsed::Complete(request), _) = first(protocol, &row.request, &mut Resume::default())
        else {
            continue;
        };
        for answer in &answers {
            let mut out = Vec::new();
            let asked = transcript::asked(&request, &row.request[..request.head as usize]);
            protocol.answer(&asked, answer, &mut out);
            let place = &row.place;
            assert_eq!(out[..2], [0x81, row.request[1]], "{place}: the opcode, {answer:?}");
            assert_eq!(out[12..16], row.request[12..16], "{place}: the opaque, {answer:?}");
            assert_ne!(out[6..8], [0, 0], "{place}: a status, {answer:?}");
            let total = u32::from_be_bytes([out[8], out[9], out[10], out[11]]) as usize;
            assert_eq!(out.len(), 24 + total, "{place}: one packet, {answer:?}");
        }
        packets += 1;
    }
    println!("compared: {packets}");
    assert!(packets >= PACKETS, "{packets}");
}

/// Work is counted, not timed: each piece is searched once, and nothing before it again.
#[test]
fn a_long_get_in_pieces_is_read_in_linear_time() {
    read_a_get_in_pieces(PROTOCOLS[0], 100_000);
}

/// Reads a get of this many keys that arrives in pieces of 16 KiB.
fn read_a_get_in_pieces(protocol: &dyn Protocol, count: usize) {
    let (mut input, mut text) = (Vec::new(), Vec::new());
    let get = protocol.commands().iter().position(|row| row.name == "get").unwrap();
    let template = rows(protocol).into_iter().find(|row| row.request.starts_with(b"get ")).unwrap();
    let mut keys = Vec::new();
    let parsed = protocol.parse_request(&template.request, &mut Resume::default(), &mut keys);
    let Parsed::Complete(request) = parsed else { panic!("{}: {parsed:?}", template.place) };
    assert_eq!(usize::from(request.command), get);
    protocol.open_fetch(&request, &template.request, &mut text);
    for number in 0..count {
        protocol.upstream().push_fetch(format!("key:{number:08}").as_bytes(), &mut text);
    }
    let Class::Fetch { ask, .. } = request.class else { panic!("a get is a read") };
    protocol.upstream().seal_fetch(ask, count, &text, &mut input);

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

/// As above: the arguments of an array that have come are counted, and the rest is awaited.
#[test]
fn a_long_mget_in_pieces_is_read_in_linear_time() {
    let redis = proto::protocol("redis").unwrap();
    let (ask, count) = (ask(redis, "mget"), 100_000);
    let (mut text, mut input) = (Vec::new(), Vec::new());
    for number in 0..count {
        redis.upstream().push_fetch(format!("key:{number:08}").as_bytes(), &mut text);
    }
    redis.upstream().seal_fetch(ask, count, &text, &mut input);
    let (mut resume, mut keys) = (Resume::default(), Vec::new());
    for end in (16384..input.len()).step_by(16384) {
        let parsed = redis.parse_request(&input[..end], &mut resume, &mut keys);
        assert_eq!(parsed, Parsed::Incomplete);
        assert!(resume.scanned + 20 > end, "the next piece would be read together with old ones");
    }
    let parsed = redis.parse_request(&input, &mut resume, &mut keys);
    assert!(matches!(parsed, Parsed::Complete(_)), "{parsed:?}");
    assert_eq!(keys.len(), count);
}

/// In a split request, each server gets its own keys, in order, with the bytes that belong to them.
#[test]
fn the_parts_of_a_split_are_the_whole() {
    count_for_each_row(PARTS, |protocol, row| {
        let mut counted = 0;
        for (outcome, _) in frames(protocol, &row.request) {
            let Parsed::Complete(request) = outcome else { continue };
            let name = protocol.command_name(request.command);
            let Class::Split { .. } = request.class else { continue };
            if first(protocol, &row.request, &mut Resume::default()).0 == outcome {
                let head = &row.request[..request.head as usize];
                counted += parts_are_the_whole(protocol, head, &row.place);
            }
            // The same command with more keys.
            for count in 1..6 {
                let mut words = vec![name.to_string()];
                for nth in 0..count {
                    words.push(format!("key{}", "k".repeat(nth * nth)));
                    words.extend(name.starts_with("mset").then(|| "v\r\n".repeat(nth)));
                }
                let bulk = |word: &String| format!("${}\r\n{word}\r\n", word.len());
                let bulks: String = words.iter().map(bulk).collect();
                let whole = format!("*{}\r\n{bulks}", words.len());
                counted += parts_are_the_whole(protocol, whole.as_bytes(), &row.place);
            }
        }
        counted
    });
}

/// Splits a request for two servers and puts it together again; returns its number of keys.
fn parts_are_the_whole(protocol: &dyn Protocol, input: &[u8], place: &str) -> usize {
    let (outcome, keys) = first(protocol, input, &mut Resume::default());
    let Parsed::Complete(request) = outcome else { panic!("{place}: {outcome:?}") };
    let Class::Split { ask, .. } = request.class else { panic!("{place}: {request:?}") };
    let head = &input[..request.head as usize];
    let servers = servers(protocol);
    let mut found = vec![Vec::new(); keys.len()];
    for part in 0..2 {
        let (mut text, mut sent) = (Vec::new(), Vec::new());
        let nths: Vec<usize> = (part..keys.len()).step_by(2).collect();
        for &nth in &nths {
            let mut scratch = Vec::new();
            let key = protocol.key(&request, head, keys[nth], &mut scratch);
            let at = protocol.upstream().push_fetch(key, &mut text);
            assert_eq!(&text[at..at + key.len()], key, "{place}: where the key is");
            protocol.push_rest(&request, head, &keys, nth, &mut text);
        }
        if nths.is_empty() {
            continue;
        }
        protocol.upstream().seal_fetch(ask, nths.len(), &text, &mut sent);
        let (outcome, spans) = first(servers, &sent, &mut Resume::default());
        let Parsed::Complete(read) = outcome else { panic!("{place}: {outcome:?}") };
        assert_eq!((read.command, read.len()), (request.command, sent.len() as u64));
        assert_eq!(spans.len(), nths.len(), "{place}");
        // A key and the bytes after it, up to the next.
        for (at, nth) in nths.iter().enumerate() {
            let end = spans.get(at + 1).map_or(sent.len(), |next| start_of(&sent, *next));
            found[*nth] = sent[start_of(&sent, spans[at])..end].to_vec();
        }
    }
    let (mut whole, mut rejoined) = (Vec::new(), Vec::new());
    protocol.write_head(&request, head, &keys, ask, &mut whole);
    let (_, spans) = first(servers, &whole, &mut Resume::default());
    rejoined.extend_from_slice(&whole[..start_of(&whole, spans[0])]);
    rejoined.extend(found.concat());
    assert_eq!(escaped(&rejoined), escaped(&whole), "{place}");
    keys.len()
}

/// Returns the position of the line with a key's length.
fn start_of(message: &[u8], key: Span) -> usize {
    let before = &message[..key.start as usize];
    before.iter().rposition(|&byte| byte == b'$').expect("a length")
}

/// The proxy's answer is one value and no more, with any bytes in the request.
#[test]
fn no_argument_can_forge_an_answer() {
    const EVIL: &[&[u8]] = &[
        b"\r\n",
        b"\r\n-ERR forged\r\n",
        b"x\r\n$3\r\nabc\r\n",
        b"\n+OK\n",
        b"\r",
        b"\0",
        b"'\"\x1b[2J\xff\xfe",
        b"",
        b"*1\r\n$4\r\nPING\r\n",
        b"-1",
        b"99999999999999999999999",
        b"3",
        b"SETNAME",
        b"FILTERBY",
    ];
    let redis = proto::protocol("redis").unwrap();
    let long = vec![b'\n'; 2000];
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut answered = 0;
    for row in redis::commands::rows() {
        for _ in 0..200 {
            let mut words: Vec<&[u8]> = row.name.split('|').map(str::as_bytes).collect();
            for _ in 0..dice.below(6) {
                words.push(if dice.below(20) == 0 { &long } else { EVIL[dice.below(EVIL.len())] });
            }
            if dice.below(10) == 0 {
                let nth = dice.below(words.len());
                words[nth] = EVIL[dice.below(EVIL.len())];
            }
            let mut input = format!("*{}\r\n", words.len()).into_bytes();
            for word in &words {
                input.extend(format!("${}\r\n", word.len()).bytes());
                input.extend_from_slice(word);
                input.extend_from_slice(b"\r\n");
            }
            answered += usize::from(says_one_thing(redis, &input, 2 + dice.below(2) as u8));
        }
    }
    assert!(answered > 10_000, "{answered}");
    // The same with input that is no array at all.
    for evil in EVIL {
        for line in [&b"GET "[..], b"", b"*", b"$", b"*1\r\n", b"*1\r\n$", b"'"] {
            says_one_thing(redis, &[line, evil, b"\r\n"].concat(), 2);
        }
    }
}

/// Returns whether the proxy answers by itself; checks that its answer is one whole value, or
/// nothing.
fn says_one_thing(protocol: &dyn Protocol, input: &[u8], proto_version: u8) -> bool {
    let (outcome, _) = first(protocol, input, &mut Resume::default());
    let mut said = Vec::new();
    match outcome {
        Parsed::Incomplete => return false,
        Parsed::Malformed(why) => {
            let asked = Asked { head: input, ..Asked::no_request() };
            protocol.answer(&asked, &Answer::Refused(Refusal::Bad(why)), &mut said);
        }
        Parsed::Complete(request) => {
            let mut session = transcript::session(protocol, proto_version);
            let head = &input[..request.head as usize];
            if transcript::own_word(protocol, &request, head, &mut session, &mut said).is_none() {
                return false;
            }
        }
    }
    let found = pieces(protocol, ask(protocol, "get"), &said, &[]);
    let is_one = match &found[..] {
        [] => said.is_empty(),
        [(reply, kind)] => kind.is_some() && *reply == said,
        _ => false,
    };
    assert!(is_one, "{} is told {}", input.escape_ascii(), said.escape_ascii());
    true
}

/// Returns the outcome of a parse at the start of `input`, and the keys.
fn first(
    protocol: &dyn Protocol,
    input: &[u8],
    resume: &mut Resume,
) -> (Parsed<Request>, Vec<Span>) {
    let mut keys = vec![Span::new(7, 9)];
    let outcome = protocol.parse_request(input, resume, &mut keys);
    if !matches!(outcome, Parsed::Complete(_)) {
        // The keys mean nothing yet.
        keys.clear();
    }
    (outcome, keys)
}

fn for_each_row(mut check: impl FnMut(&dyn Protocol, &transcript::Row)) {
    for &protocol in PROTOCOLS {
        rows(protocol).iter().for_each(|row| check(protocol, row));
    }
}

/// As `for_each_row`, with a check that returns how many things it has compared. It may leave rows
/// out, but for each protocol the sum must reach `least`. (A protocol whose servers use another has
/// no replies of its own.)
fn count_for_each_row(
    least: &[(&str, usize)],
    mut check: impl FnMut(&dyn Protocol, &transcript::Row) -> usize,
) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for_each_row(|protocol, row| {
        *counts.entry(protocol.name()).or_default() += check(protocol, row);
    });
    println!("compared: {counts:?}");
    for (name, least) in least {
        assert!(counts[name] >= *least, "{} compared of {name}, not {least}", counts[name]);
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
