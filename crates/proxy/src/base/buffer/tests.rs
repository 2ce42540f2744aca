//! The order of copied and shared bytes, and the bytes held and pinned meanwhile.

use super::*;

fn flat(outbox: &Outbox) -> Vec<u8> {
    let mut slices = Slices::default();
    outbox.slices(&mut slices);
    slices.iter().flat_map(|slice| slice.to_vec()).collect()
}

fn sample() -> (Outbox, Vec<u8>) {
    let block = Rc::new(Block::from((0..20_000).map(|n| n as u8).collect::<Vec<u8>>()));
    let mut outbox = Outbox::default();
    let mut expected = Vec::new();
    for start in [0, 5_000, 10_000] {
        outbox.push(Source::plain(b"head"));
        outbox.push(Source::block(&block, 20_000).part(start, start + 5_000));
        expected.extend_from_slice(b"head");
        expected.extend_from_slice(&block[start..start + 5_000]);
    }
    outbox.push(Source::plain(b"END"));
    expected.extend_from_slice(b"END");
    (outbox, expected)
}

#[test]
fn any_advance_leaves_the_rest_in_order() {
    let len = sample().1.len();
    for step in [1, 3, 4, 5, 999, 5_004, 7_000, len] {
        let (mut outbox, expected) = sample();
        let mut gone = 0;
        while gone < len {
            assert_eq!(outbox.len(), len - gone);
            assert_eq!(flat(&outbox), expected[gone..]);
            let n = step.min(len - gone);
            outbox.advance(n);
            gone += n;
        }
        assert!(outbox.is_empty());
    }
}

#[test]
fn what_was_copied_and_is_much_is_appended_without_a_copy() {
    let (mut outbox, expected) = sample();
    let (mut other, _) = sample();
    let much = vec![b'm'; limits::KEEP_REFERENCE_MIN];
    other.copy(&much);
    other.push(Source::block(&Rc::new(Block::from(much.clone())), much.len()));
    other.advance(6_000);
    let copied = other.bytes.as_ptr();
    outbox.append(&mut other);
    outbox.copy(b"tail");
    let whole = [&expected[..], &expected[6_000..], &much, &much, b"tail"].concat();
    assert_eq!(flat(&outbox), whole);
    assert!(other.is_empty());
    assert!(outbox.shared.iter().any(|shared| shared.slice.block.as_ptr() == copied));
    // A write holds so many slices: none of them is empty.
    assert!(outbox.shared.iter().all(|shared| !shared.slice.bytes().is_empty()));
}

#[test]
fn an_outbox_without_a_buffer_takes_a_spare_one() {
    let mut spares = Spares::default();
    for capacity in [300, 400] {
        spares.give(Vec::with_capacity(capacity));
    }
    let mut outbox = Outbox::default();
    for _ in 0..2 {
        outbox.open(&mut spares);
        assert_eq!(outbox.bytes.capacity(), 400, "one, and no other");
    }
    outbox.close(&mut spares);
    assert_eq!((outbox.bytes.capacity(), spares.bytes), (0, 700));
}

#[test]
fn append_and_cut_keep_the_order() {
    let (mut outbox, expected) = sample();
    let (mut other, _) = sample();
    other.advance(6_000);
    outbox.append(&mut other);
    let whole = [&expected[..], &expected[6_000..]].concat();
    assert_eq!(flat(&outbox), whole);
    assert!(other.is_empty());
    outbox.cut(&[(100, 7_100), (7_200, 7_300)]);
    let rest = [&whole[..100], &whole[7_100..7_200], &whole[7_300..]].concat();
    assert_eq!(flat(&outbox), rest);
}

/// Returns `len` bytes of a block of its own.
fn part(len: usize) -> Slice {
    Slice::new(&Rc::new(Block::from(vec![b's'; limits::BLOCK])), 0, len)
}

fn shared(parts: usize, len: usize) -> Outbox {
    let mut outbox = Outbox::default();
    for _ in 0..parts {
        outbox.shared.push_back(Shared { at: 0, slice: part(len) });
        outbox.shared_len += len;
    }
    outbox
}

/// A queue with a slow reader may pin only little more than it holds.
#[test]
fn who_waits_does_not_pin_far_more_than_it_holds() {
    const LEAST: usize = limits::KEEP_REFERENCE_MIN;
    for (parts, len, kept) in [
        (1, LEAST, true),
        (1, LEAST - 1, false),
        (2, LEAST, false),
        // Four fifths of each block but one are held.
        (4, 39_311, false),
        (4, 39_312, true),
        (10, 47_174, false),
        (10, 47_175, true),
        (3, limits::BLOCK, true),
    ] {
        let mut outbox = shared(parts, len);
        outbox.settle();
        let expected = if kept { parts } else { 0 };
        assert_eq!((outbox.shared.len(), outbox.len()), (expected, parts * len), "{parts} x {len}");
        assert_eq!(outbox.shared_len, expected * len);
    }
    let mut copied = Outbox::default();
    copied.copy(b"bytes");
    copied.settle();
    assert_eq!((copied.len(), flat(&copied)), (5, b"bytes".to_vec()));
}

#[test]
fn the_rest_of_the_blocks_that_it_keeps_is_held_too() {
    for (parts, len, rest) in [
        (0, 0, 0),
        // One block more than is held may be pinned.
        (1, limits::KEEP_REFERENCE_MIN, 0),
        (9, limits::BLOCK, 0),
        (17, limits::BLOCK / 16 * 15, limits::BLOCK / 16),
        (41, limits::BLOCK / 8 * 7, 41 * limits::BLOCK / 8 - limits::BLOCK),
        // They share blocks.
        (64, limits::REFERENCE_MIN, 64 * limits::REFERENCE_MIN / 8),
    ] {
        let outbox = shared(parts, len);
        assert_eq!(outbox.held(), parts * len + rest, "{parts} x {len}");
    }
    let mut copied = shared(0, 0);
    copied.copy(b"bytes");
    assert_eq!(copied.held(), 5);
}

#[test]
fn what_may_wait_is_kept_by_reference_only_where_it_fills_its_block() {
    let block = Rc::new(Block::from(vec![b'v'; limits::BLOCK]));
    let keep = |outbox: &mut Outbox, len: usize| {
        let before = outbox.shared.len();
        outbox.keep(Source::block(&block, len));
        outbox.shared.len() > before
    };
    assert!(!keep(&mut Outbox::default(), limits::KEEP_REFERENCE_MIN - 1));
    let mut outbox = Outbox::default();
    assert!(keep(&mut outbox, limits::KEEP_REFERENCE_MIN), "one block may be pinned for little");
    // Of two blocks, this holds a little less than eight ninths of one.
    let enough = (limits::BLOCK * 8).div_ceil(9) - limits::KEEP_REFERENCE_MIN;
    assert!(!keep(&mut outbox, enough - 1));
    assert!(keep(&mut outbox, enough));
    assert_eq!(outbox.len(), limits::KEEP_REFERENCE_MIN + 2 * enough - 1);
}

#[test]
fn what_leaves_soon_is_referred_to_and_what_stands_behind_much_is_not() {
    let block = Rc::new(Block::from(vec![b'v'; limits::BLOCK]));
    for (waiting, len, referred) in [
        (0, limits::REFERENCE_MIN - 1, false),
        (0, limits::REFERENCE_MIN, true),
        (limits::BACKLOG_MIN - 1, limits::REFERENCE_MIN, true),
        (limits::BACKLOG_MIN, limits::REFERENCE_MIN, false),
        (limits::BACKLOG_MIN, limits::KEEP_REFERENCE_MIN, true),
    ] {
        let mut outbox = Outbox::default();
        outbox.copy(&vec![b'w'; waiting]);
        outbox.push(Source::block(&block, len));
        assert_eq!(outbox.shared.len(), usize::from(referred), "{len} behind {waiting}");
        assert_eq!(outbox.len(), waiting + len);
    }
}

/// A slow reader's buffer is as long as its unread bytes, not as all bytes it ever got.
#[test]
fn what_has_gone_is_dropped_when_it_is_most_of_a_buffer() {
    let most = limits::BUFFER_KEEP_MAX;
    for (gone, left, dropped) in [
        (most, 1, false),
        (most + 1, 1, true),
        (most + 1, most, true),
        (most + 1, most + 1, false),
        (4 * most, 5 * most, false),
        (7, 0, true),
    ] {
        let mut outbox = Outbox::default();
        outbox.copy(&vec![b'g'; gone]);
        outbox.copy(&vec![b'l'; left]);
        outbox.advance(gone);
        let expected = if dropped { (0, left) } else { (gone, gone + left) };
        assert_eq!((outbox.gone, outbox.bytes.len()), expected, "{gone} gone, {left} left");
        assert_eq!(flat(&outbox), vec![b'l'; left]);
    }
    // The offsets of shared blocks move with the bytes before them.
    let mut outbox = Outbox::default();
    outbox.copy(&vec![b'g'; most + 10]);
    outbox.copy(b"head");
    outbox.push(Source::block(&Rc::new(Block::from(vec![b'v'; limits::BLOCK])), limits::BLOCK));
    outbox.copy(b"tail");
    outbox.advance(most + 9);
    outbox.advance(1);
    let whole = [&b"head"[..], &vec![b'v'; limits::BLOCK], b"tail"].concat();
    assert_eq!(flat(&outbox), whole);
    outbox.advance(4 + limits::BLOCK);
    assert_eq!(flat(&outbox), b"tail");
}

fn buffer(capacity: usize) -> Vec<u8> {
    Vec::with_capacity(capacity)
}

/// Returns the capacity that the spares have recorded, which must equal their real one.
fn booked(spares: &Spares) -> usize {
    let held: usize = spares.buffers.iter().map(Vec::capacity).sum();
    assert_eq!(spares.bytes, held);
    held
}

#[test]
fn spares_hold_no_more_than_they_may_and_know_how_much() {
    let mut spares = Spares::default();
    spares.give(buffer(0));
    spares.give(buffer(limits::BUFFER_KEEP_MAX + 1));
    assert_eq!(booked(&spares), 0, "none, and one too large");
    let most = limits::SPARES_BYTES_MAX / limits::BUFFER_KEEP_MAX;
    (0..most + 5).for_each(|_| spares.give(buffer(limits::BUFFER_KEEP_MAX)));
    assert_eq!((spares.buffers.len(), booked(&spares)), (most, limits::SPARES_BYTES_MAX));
    assert_eq!(spares.take().capacity(), limits::BUFFER_KEEP_MAX);
    assert_eq!(booked(&spares), limits::SPARES_BYTES_MAX - limits::BUFFER_KEEP_MAX);
    spares.give(b"used".to_vec());
    let given = booked(&spares);
    assert!(spares.take().is_empty() && booked(&spares) < given);
    spares.rest();
    assert_eq!(booked(&spares), limits::SPARES_REST_MAX);
    spares.rest();
    assert_eq!(booked(&spares), limits::SPARES_REST_MAX, "so much is kept for long");
    assert_eq!(Spares::default().take().capacity(), 0);
}

#[test]
fn the_end_is_told_from_any_pieces() {
    let mut end = End::default();
    for piece in [&b"abcdefgh\r"[..], b"", b"\n", b"END", b"\r\n"] {
        end.feed(piece);
    }
    assert!(end.is(b"\r\n") && end.is(b"") && !end.is(b"c\r"));
    assert!(end.is(b"\r\nEND\r\n") && !end.is(b"\n\nEND\r\n"));
}
