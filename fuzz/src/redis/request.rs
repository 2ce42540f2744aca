//! Requests: any bytes in any pieces are parsed as the naive parser does, and the request sent to a
//! server is parsed by the same.

use proto::{Adapted, Ask, Class, Parsed, Place, Protocol, Refusal, Request, Resume, Span};
use testkit::wire::{Unread, resp};

use super::grammar;
use crate::mutate::{self, Dice};
use crate::request::pieces;

pub fn run(seed: u64, budget: usize) {
    let protocol = proto::protocol("redis").expect("the table has the protocol");
    mutate::run_of("redis-request", grammar::request, seed, budget, |bytes, dice| {
        check(protocol, bytes, dice)
    });
}

fn check(protocol: &dyn Protocol, bytes: &[u8], dice: &mut Dice) {
    let mut keys = Vec::new();
    let whole = protocol.parse_request(bytes, &mut Resume::default(), &mut keys);
    pieces(protocol, bytes, whole, &keys, dice);
    let naive = resp::request(bytes);
    match (whole, &naive) {
        (Parsed::Incomplete, Err(Unread::Incomplete))
        | (Parsed::Malformed(_), Err(Unread::Hopeless)) => {}
        (Parsed::Malformed(_), Err(Unread::Incomplete)) => never_is(bytes),
        (Parsed::Complete(request), Ok((words, len))) => {
            assert_eq!(request.len(), *len as u64, "the frame's length: {words:?}");
            outline(&request, bytes);
            arguments(protocol, &request, bytes, &keys, words);
        }
        // The last argument is forwarded as it arrives; its end is checked later.
        (Parsed::Complete(request), Err(Unread::Incomplete)) => {
            assert!(request.body > 0 && request.len() > bytes.len() as u64, "{request:?}");
        }
        (Parsed::Complete(request), Err(Unread::Hopeless)) => {
            let end = (u64::from(request.head) + request.body) as usize;
            let trailer = bytes.get(end..).unwrap_or_default();
            let len = trailer.len().min(request.trailer.len());
            assert!(request.body > 0, "{request:?}");
            assert_ne!(trailer[..len], request.trailer[..len], "{request:?}");
        }
        _ => panic!("{whole:?}, and naively {naive:?}"),
    }
}

/// Checks that no further bytes make it a request.
fn never_is(bytes: &[u8]) {
    for more in [&b"\r\n"[..], b"\n", b"0\r\n", b"a\r\n$1\r\na\r\n"] {
        let longer = [bytes, more].concat();
        let read = resp::request(&longer);
        assert!(read.is_err(), "refused too early: {read:?}");
    }
}

fn outline(request: &Request, bytes: &[u8]) {
    let head = request.head as usize;
    assert!(head > 0 && head <= bytes.len(), "the head is in the input");
    assert!(bytes[head - 1] == b'\n', "a head ends with a line");
    assert!(request.trailer.is_empty() || request.trailer == b"\r\n");
    assert!(request.body == 0 || request.body >= 4096, "a short argument is in the head");
    assert!(request.body == 0 || matches!(request.class, Class::Single { .. }), "{request:?}");
}

/// Checks that a server parses the client's arguments from the request it gets.
fn arguments(
    protocol: &dyn Protocol,
    request: &Request,
    bytes: &[u8],
    keys: &[Span],
    words: &[Vec<u8>],
) {
    let head = &bytes[..request.head as usize];
    for key in keys {
        let mut scratch = b"old".to_vec();
        let text = protocol.key(request, head, *key, &mut scratch);
        let is_one = words[1..].iter().any(|word| word == text);
        assert!(is_one, "the key b\"{}\" is none of {words:?}", text.escape_ascii());
    }
    match request.class {
        Class::Single { .. } | Class::Split { .. } | Class::Broadcast { .. } => {}
        Class::Refuse(why) => return refused(why, words),
        Class::Local(_) => return,
        Class::Fetch { .. } => panic!("no read is merged"),
    }
    assert!(!words.is_empty(), "an empty request is sent on");
    let adapt = protocol.adapt(request, head, Some(proto::redis::RESP3));
    let ask = match (request.class, adapt) {
        (Class::Broadcast { ask, .. }, _) | (_, Adapted::Ask(ask)) => ask,
        (_, adapt) => panic!("{adapt:?}"),
    };
    // It is sent to the only server of a pool.
    let is_alone = request.place == Place::Nowhere;
    let ask = if is_alone { ask.unchanged() } else { ask };
    let mut sent = Vec::new();
    protocol.write_head(request, head, keys, ask, &mut sent);
    sent.extend_from_slice(&bytes[request.head as usize..request.len() as usize]);
    protocol.write_tail(request, ask, &mut sent);
    let mut meant = words.to_vec();
    if words[0].eq_ignore_ascii_case(b"scan") && !is_alone {
        meant[1] = scan_cursor(&words[1]);
    }
    let read = resp::request(&sent);
    assert_eq!(read, Ok((meant, sent.len())), "sent b\"{}\"", sent.escape_ascii());
    if let Class::Split { ask, element_per_key, .. } = request.class {
        parts(protocol, request, head, keys, (ask, element_per_key), words);
    }
}

/// Checks that a split request's message for some of its keys contains only those.
fn parts(
    protocol: &dyn Protocol,
    request: &Request,
    head: &[u8],
    keys: &[Span],
    (ask, _each): (Ask, bool),
    words: &[Vec<u8>],
) {
    let upstream = protocol.upstream();
    let pair = usize::from(
        (words.len() - 1) / keys.len().max(1) == 2 && keys.len() * 2 + 1 == words.len(),
    );
    let mut text = Vec::new();
    let mut meant = vec![words[0].to_ascii_uppercase()];
    let mut count = 0;
    protocol.open_fetch(request, head, &mut text);
    for (nth, key) in keys.iter().enumerate().filter(|(nth, _)| nth % 2 == 0) {
        let mut scratch = Vec::new();
        let name = protocol.key(request, head, *key, &mut scratch);
        let _ = upstream.push_fetch(name, &mut text);
        protocol.push_rest(request, head, keys, nth, &mut text);
        let at = 1 + nth * (1 + pair);
        meant.extend(words[at..=at + pair].iter().cloned());
        count += 1;
    }
    let mut sent = Vec::new();
    upstream.seal_fetch(ask, count, &text, &mut sent);
    match resp::request(&sent) {
        Ok((mut read, len)) => {
            read[0].make_ascii_uppercase();
            assert_eq!((read, len), (meant, sent.len()), "sent b\"{}\"", sent.escape_ascii());
        }
        other => panic!("{other:?}: b\"{}\"", sent.escape_ascii()),
    }
}

/// Returns the server's cursor in place of a client's.
fn scan_cursor(cursor: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(cursor).expect("digits");
    let whole: u64 = text.parse().expect("a cursor that was taken");
    (whole >> 10).to_string().into_bytes()
}

/// Checks that a known command is not called unknown.
fn refused(why: Refusal, words: &[Vec<u8>]) {
    const KNOWN: &[&[u8]] = &[b"get", b"set", b"mget", b"del", b"ping", b"select", b"eval"];
    let name = words[0].to_ascii_lowercase();
    assert!(why != Refusal::Unknown || !KNOWN.contains(&&name[..]), "{words:?}");
}
