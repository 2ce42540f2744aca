//! The bytes that a pending request holds, and those that its entry keeps for the next one.

use super::*;

fn client() -> ConnId {
    ConnId::NOBODY
}

fn row() -> Row {
    Row::blank(client(), proto::PROTOCOLS[0])
}

#[test]
fn a_row_holds_all_its_parts() {
    let mut row = row();
    assert_eq!(row.measure(), 0);
    row.question.head.extend_from_slice(b"get a b\r\n");
    assert_eq!(row.measure(), 9);
    row.open_slots(3, &mut Spares::default());
    let slots = 3 * size_of::<Slot>();
    assert_eq!(row.measure(), 9 + slots);
    assert_eq!(row.keep_small(0, b"seven b"), 7);
    assert_eq!(row.measure(), 9 + slots + 7);
    let mut large = Outbox::default();
    large.copy(&[b'v'; 100]);
    assert_eq!(row.keep_large(1, large), 100);
    row.reply.copy(b"reply");
    assert_eq!(row.measure(), 9 + slots + 7 + 100 + 5);
    row.question.join(&[Span { start: 4, end: 5 }, Span { start: 6, end: 7 }]);
    assert_eq!(row.measure(), 9 + slots + 7 + 100 + 5 + 2 * size_of::<u32>());
}

#[test]
fn what_a_server_says_is_translated_unless_it_is_gathered() {
    let wider = Ask { command: 3 };
    for (keep, gathers, asked, told) in [
        (false, false, Ask::default(), false),
        (true, false, Ask::default(), true),
        (false, false, wider, true),
        (true, false, wider, true),
        (true, true, Ask::default(), false),
        (true, true, wider, false),
        (false, true, wider, false),
    ] {
        let mut row = row();
        (row.question.keep, row.question.gathers) = (keep, gathers);
        assert_eq!(row.question.is_told(asked), told, "{keep} {gathers} {asked:?}");
    }
}

#[test]
fn each_key_of_joined_requests_has_its_own_head() {
    let mut row = row();
    row.question.head.extend_from_slice(b"abcdefg");
    assert_eq!(row.question.asked_for(1).head, b"abcdefg");
    let key = |end| Span { start: end - 1, end };
    row.question.join(&[key(2), key(3), key(7)]);
    let heads = [0, 1, 2].map(|slot| row.question.asked_for(slot).head.to_vec());
    assert_eq!(heads, [b"ab".to_vec(), b"c".to_vec(), b"defg".to_vec()]);
}

/// Returns the sizes that an entry keeps after it was freed with buffers of these sizes.
fn freed(reply: usize, slots: usize) -> (usize, usize) {
    let mut rows = Rows::default();
    let mut spares = Spares::default();
    let asked = (&Request::nobody(), &b""[..]);
    let id = rows.alloc((client(), proto::PROTOCOLS[0]), 0, asked, Time(0), &mut spares);
    *rows[id].reply.copied() = Vec::with_capacity(reply);
    rows[id].slots = Vec::with_capacity(slots);
    rows[id].held = 7;
    assert_eq!((rows.len(), rows.iter().count()), (1, 1));
    rows.set_done(id);
    rows.free(id, &mut spares);
    assert_eq!((rows.len(), rows.iter().count(), rows[id].held), (0, 0, 0));
    (rows[id].reply.copied().capacity(), rows[id].slots.capacity())
}

#[test]
fn a_freed_row_keeps_small_buffers_and_no_large_one() {
    for (reply, slots, keeps) in [
        (1024, 128, true),
        (1025, 1, false),
        (1, 129, false),
        (0, 128, true),
        (1024, 0, true),
        (9_000, 9_000, false),
    ] {
        let expected = if keeps { (reply, slots) } else { (0, 0) };
        assert_eq!(freed(reply, slots), expected, "{reply} bytes, {slots} slots");
    }
}

#[test]
fn after_a_rush_the_table_gives_its_memory_back_once_nobody_waits() {
    let (mut rows, mut spares) = (Rows::default(), Spares::default());
    let mut rush = |rows: &mut Rows, count: usize| {
        let asked = (&Request::nobody(), &b""[..]);
        let ids: Vec<RowId> = (0..count)
            .map(|_| rows.alloc((client(), proto::PROTOCOLS[0]), 0, asked, Time(0), &mut spares))
            .collect();
        rows.rest();
        assert_eq!((rows.len(), rows.rows.len() >= count), (count, true), "they wait");
        for id in ids {
            rows.set_done(id);
            rows.free(id, &mut spares);
        }
        rows.rest();
        rows.rows.len()
    };
    assert_eq!(rush(&mut rows, limits::ROWS_REST_MAX), limits::ROWS_REST_MAX);
    assert_eq!(rush(&mut rows, limits::ROWS_REST_MAX + 1), 0);
}
