//! Tests the parser with input cut at every byte, and with answers that it must reject.

use testkit::wire::binary::{Packet, REPLY};

use super::*;

fn asked(kinds: &[Kind]) -> VecDeque<Asked> {
    kinds
        .iter()
        .map(|kind| Asked { kind: kind.clone(), opaque: 7, due_ns: 0, sent_ns: 0 })
        .collect()
}

fn value(corpus: &Corpus, index: u32) -> Vec<u8> {
    let mut set = Vec::new();
    let cut = corpus.push_set(&mut set, index);
    let mut text = format!("VALUE key:{index:08} 0 {}\r\n", corpus.value_len()).into_bytes();
    text.extend_from_slice(&set[cut..]);
    text
}

/// Feeds `pieces`; returns the tally, or the fault.
fn receive(corpus: &Corpus, kinds: &[Kind], pieces: &[&[u8]]) -> Result<Tally, String> {
    receive_as(Wire::Text, corpus, kinds, pieces)
}

fn receive_as(
    wire: Wire,
    corpus: &Corpus,
    kinds: &[Kind],
    pieces: &[&[u8]],
) -> Result<Tally, String> {
    let (mut reader, mut tally, mut asked) = (Reader::default(), Tally::new(), asked(kinds));
    let mut context = Context { corpus, tally: &mut tally, wire, verify: true, now_ns: 5 };
    let mut answered = 0;
    for piece in pieces {
        answered += reader.receive(piece, &mut asked, &mut context)?;
    }
    assert_eq!(answered + asked.len(), kinds.len());
    assert_eq!(tally.requests() as usize, answered);
    Ok(tally)
}

#[test]
fn any_cut_gives_the_same_counts() {
    let corpus = Corpus::new(10, 30);
    let kinds = [Kind::Get(3..4), Kind::Set, Kind::Get(2..5), Kind::Get(1..2), Kind::Set];
    let mut text = value(&corpus, 3);
    text.extend_from_slice(b"END\r\nSTORED\r\n");
    text.extend_from_slice(&value(&corpus, 2));
    text.extend_from_slice(&value(&corpus, 4));
    text.extend_from_slice(b"END\r\nEND\r\nSERVER_ERROR no\r\n");
    for cut in 0..text.len() {
        for second in [cut, (cut + 3).min(text.len())] {
            let pieces = [&text[..cut], &text[cut..second], &text[second..]];
            let tally = receive(&corpus, &kinds, &pieces).unwrap();
            assert_eq!((tally.gets, tally.get_keys, tally.sets), (3, 5, 1));
            assert_eq!((tally.misses, tally.errors), (2, 1));
            assert_eq!(tally.first_error.as_deref(), Some("SERVER_ERROR no"));
        }
    }
}

#[test]
fn answers_that_nobody_asked_for_end_the_window() {
    let corpus = Corpus::new(10, 30);
    let whole = |index: u32| [value(&corpus, index), b"END\r\n".to_vec()].concat();
    let fault = |kinds: &[Kind], text: &[u8]| receive(&corpus, kinds, &[text]).err();
    assert!(fault(&[], b"END\r\n").is_some());
    assert!(fault(&[Kind::Get(3..4)], &whole(4)).is_some(), "another key");
    let mut wrong = whole(3);
    wrong[50] ^= 1;
    assert!(fault(&[Kind::Get(3..4)], &wrong).is_some(), "another value");
    let mut long = whole(3);
    long.insert(50, b'x');
    assert!(fault(&[Kind::Get(3..4)], &long).is_some(), "a byte too many");
    assert!(fault(&[Kind::Get(3..4)], &whole(3)).is_none());
}

#[test]
fn a_set_answered_like_a_get_is_an_error_and_not_a_set() {
    let corpus = Corpus::new(10, 30);
    let tally = receive(&corpus, &[Kind::Set], &[b"END\r\n"]).unwrap();
    assert_eq!((tally.sets, tally.gets, tally.errors), (0, 0, 1));
}

fn value_of(corpus: &Corpus, index: u32) -> Vec<u8> {
    let mut value = Vec::new();
    corpus.push_value(&mut value, index);
    value
}

/// Makes a reply packet.
fn packet(
    code: u8,
    status: u16,
    opaque: u32,
    (extras, key, value): (&[u8], &[u8], &[u8]),
) -> Vec<u8> {
    let (magic, cas) = (REPLY, u64::MAX / 255);
    Packet { magic, status, cas, extras, key, value, ..Packet::new(code, opaque) }.bytes()
}

/// Checks that `text`, cut anywhere, answers `kinds`, and that a changed byte at `wrong` is an
/// error.
fn check(wire: Wire, kinds: &[Kind], text: &[u8], misses: u64, wrong: &[usize]) {
    let corpus = Corpus::new(10, 30);
    for cut in 0..text.len() {
        for second in [cut, (cut + 3).min(text.len())] {
            let pieces = [&text[..cut], &text[cut..second], &text[second..]];
            let tally = receive_as(wire, &corpus, kinds, &pieces).unwrap();
            assert_eq!(
                (tally.requests(), tally.misses, tally.errors),
                (kinds.len() as u64, misses, 0)
            );
        }
    }
    for at in wrong {
        let mut text = text.to_vec();
        text[*at] ^= 1;
        let outcome = receive_as(wire, &corpus, kinds, &[&text]);
        assert!(outcome.is_err() || outcome.is_ok_and(|tally| tally.errors == 1), "byte {at}");
    }
}

#[test]
fn meta_answers_are_known_by_key_and_opaque() {
    let corpus = Corpus::new(10, 30);
    let body = [value_of(&corpus, 3), b"\r\n".to_vec()].concat();
    let hit = [&b"VA 30 kkey:00000003 O00000007\r\n"[..], &body].concat();
    check(Wire::Meta, &[Kind::Get(3..4)], &hit, 0, &[3, 14, 28, 31, 45, 61]);
    let kinds = [Kind::Get(3..4), Kind::Set, Kind::Get(3..4)];
    let text = [&b"EN\r\nHD O00000007\r\n"[..], &hit].concat();
    check(Wire::Meta, &kinds, &text, 1, &[0, 4, 14]);
}

#[test]
fn binary_answers_are_known_by_their_opaques() {
    let corpus = Corpus::new(10, 30);
    let (three, five) = (value_of(&corpus, 3), value_of(&corpus, 5));
    let kinds = [Kind::Get(3..4), Kind::Set, Kind::Get(3..6), Kind::Get(3..4)];
    let text = [
        packet(0x00, 0, 7, (&[0; 4], b"", &three)),
        packet(0x01, 0, 7, (b"", b"", b"")),
        packet(0x0d, 0, 7, (&[0; 4], b"key:00000003", &three)),
        packet(0x0d, 0, 9, (&[0; 4], b"key:00000005", &five)),
        packet(0x0a, 0, 10, (b"", b"", b"")),
        packet(0x00, 1, 7, (b"", b"", b"Not found")),
    ]
    .concat();
    // Of the first packet: magic, code, opaque, flags, value.
    check(Wire::Binary, &kinds, &text, 2, &[0, 1, 15, 27, 28, 39]);
}

#[test]
fn resp_answers_are_known_by_their_place_and_what_values_begin_with() {
    let corpus = Corpus::new(10, 30);
    let bulk = |index| [&b"$30\r\n"[..], &value_of(&corpus, index), b"\r\n"].concat();
    let kinds = [Kind::Get(3..4), Kind::Set, Kind::Get(3..6), Kind::Get(3..4), Kind::Ping];
    let text = [
        &bulk(3)[..],
        b"+OK\r\n",
        b"*3\r\n",
        &bulk(3),
        b"$-1\r\n",
        &bulk(5),
        b"$-1\r\n",
        b"+PONG\r\n",
    ]
    .concat();
    // Of the first value: its head, its key, its end. Then the set's answer, and the count of keys.
    check(Wire::Resp, &kinds, &text, 2, &[0, 1, 5, 20, 35, 37, 38, 42, 43]);
    let fault = |kinds: &[Kind], text: &[u8]| receive_as(Wire::Resp, &corpus, kinds, &[text]);
    let swapped = [&b"*2\r\n"[..], &bulk(4), &bulk(3)].concat();
    assert!(fault(&[Kind::Get(3..5)], &swapped).is_err(), "values in the wrong order");
    let broken = [&b"*2\r\n"[..], &bulk(3), b"-ERR x\r\n"].concat();
    assert!(fault(&[Kind::Get(3..5)], &broken).is_err(), "an error among values");
    let tally = fault(&[Kind::Get(3..5), Kind::Get(1..2)], b"-ERR no\r\n-ERR too\r\n").unwrap();
    assert_eq!((tally.errors, tally.first_error.as_deref()), (2, Some("-ERR no")));
    assert!(fault(&[], b"+OK\r\n").is_err(), "an answer that nobody asked for");
}
