//! The reader, cut at every byte, and the answers it must not believe.

use super::*;

fn asked(kinds: &[Kind]) -> VecDeque<Asked> {
    kinds.iter().map(|kind| Asked { kind: kind.clone(), due_ns: 0, sent_ns: 0 }).collect()
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
    let (mut reader, mut tally, mut asked) = (Reader::default(), Tally::new(), asked(kinds));
    let mut context = Context { corpus, tally: &mut tally, verify: true, now_ns: 5 };
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
