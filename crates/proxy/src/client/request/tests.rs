//! The bytes that a pending request holds, and those that its entry keeps for the next one.

use proto::Span;

use super::*;

fn client() -> ConnId {
    ConnId::NONE
}

fn request() -> PendingRequest {
    PendingRequest::blank(client(), proto::PROTOCOLS[0])
}

#[test]
fn a_request_holds_all_its_parts() {
    let mut pending = request();
    assert_eq!(pending.measure(), (0, 0));
    pending.info.head.extend_from_slice(b"get a b\r\n");
    assert_eq!(pending.measure(), (9, 0));
    pending.open_slots(3, &mut Spares::default());
    let slots = 3 * size_of::<Slot>();
    assert_eq!(pending.measure(), (9 + slots, 0));
    assert_eq!(pending.keep_small(0, b"seven b"), 7);
    assert_eq!(pending.measure(), (9 + slots + 7, 7));
    let mut large = Outbox::default();
    large.copy(&[b'v'; 100]);
    assert_eq!(pending.keep_large(1, large), 100);
    pending.reply.copy(b"reply");
    assert_eq!(pending.measure(), (9 + slots + 7 + 100 + 5, 112));
    pending.info.join(&[Span { start: 4, end: 5 }, Span { start: 6, end: 7 }]);
    assert_eq!(pending.measure(), (9 + slots + 7 + 100 + 5 + 2 * size_of::<u32>(), 112));
}

/// The read of many keys holds its whole answer otherwise.
#[test]
fn values_that_have_left_are_given_up() {
    let value = [b'v'; 100];
    let mut out = Outbox::default();
    // The first key of every two is another server's, and its answer comes much later.
    let mut pending = request();
    pending.open_slots(1_000, &mut Spares::default());
    let slots = 1_000 * size_of::<Slot>();
    for slot in 0..600 {
        if slot % 2 == 1 {
            pending.keep_small(slot, &value);
        }
    }
    pending.emit_ready(&mut out);
    assert_eq!((pending.measure(), out.len()), ((slots + 30_000, 30_000), 0));
    for slot in (0..500).step_by(2) {
        assert!(pending.awaits(slot), "what has come stands behind it");
        pending.keep_small(slot, &value);
        let (_, before) = pending.measure();
        let had = out.len();
        pending.emit_ready(&mut out);
        let (counted, gathered) = pending.measure();
        assert_eq!(gathered + out.len() - had, before);
        assert_eq!(gathered + out.len(), 30_000 + 100 * (slot as usize / 2 + 1));
        assert!(counted <= 3 * slots + 2 * gathered, "{counted} bytes for {gathered}");
    }
    assert!(!pending.awaits(600), "nothing stands behind it");
    for slot in 500..1_000 {
        pending.keep_small(slot, &value);
        pending.emit_ready(&mut out);
    }
    assert_eq!((pending.measure(), out.len()), ((slots, 0), 100_000), "nothing is left");
    assert!(out.copied().iter().all(|byte| *byte == b'v'));
}

#[test]
fn what_a_server_says_is_rendered_unless_it_is_gathered() {
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
        let mut pending = request();
        (pending.info.keep, pending.info.gathers) = (keep, gathers);
        assert_eq!(pending.info.is_rendered(asked), told, "{keep} {gathers} {asked:?}");
    }
}

#[test]
fn each_key_of_joined_requests_has_its_own_head() {
    let mut pending = request();
    pending.info.head.extend_from_slice(b"abcdefg");
    assert_eq!(pending.info.asked_for(1).head, b"abcdefg");
    let key = |end| Span { start: end - 1, end };
    pending.info.join(&[key(2), key(3), key(7)]);
    let heads = [0, 1, 2].map(|slot| pending.info.asked_for(slot).head.to_vec());
    assert_eq!(heads, [b"ab".to_vec(), b"c".to_vec(), b"defg".to_vec()]);
}

/// Returns the sizes that an entry keeps after it was freed with buffers of these sizes.
fn freed(reply: usize, slots: usize) -> (usize, usize) {
    let mut requests = PendingRequests::default();
    let mut spares = Spares::default();
    let asked = (&Request::placeholder(), &b""[..]);
    let id = requests.alloc((client(), proto::PROTOCOLS[0]), 0, asked, Time(0), &mut spares);
    *requests[id].reply.copied() = Vec::with_capacity(reply);
    requests[id].slots = Vec::with_capacity(slots);
    requests[id].counted = 7;
    assert_eq!((requests.len(), requests.iter().count()), (1, 1));
    requests[id].set_done();
    requests.free(id, &mut spares);
    assert_eq!((requests.len(), requests.iter().count(), requests[id].counted), (0, 0, 0));
    (requests[id].reply.copied().capacity(), requests[id].slots.capacity())
}

#[test]
fn a_freed_request_keeps_small_buffers_and_no_large_one() {
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
fn a_long_head_is_given_back_with_its_request() {
    let (mut requests, mut spares) = (PendingRequests::default(), Spares::default());
    for (len, keeps) in [(limits::REQUEST_KEEP_MAX, true), (limits::REQUEST_KEEP_MAX + 1, false)] {
        let request = Request { keep: true, ..Request::placeholder() };
        let head = vec![b'x'; len];
        let owner = (client(), proto::PROTOCOLS[0]);
        let id = requests.alloc(owner, 0, (&request, &head), Time(0), &mut spares);
        assert_eq!(requests[id].info.head, head);
        requests[id].set_done();
        requests.free(id, &mut spares);
        assert_eq!(requests[id].info.head.capacity() > 0, keeps, "{len} bytes");
    }
}

#[test]
fn a_value_that_is_worth_a_reference_is_not_copied() {
    assert!(request().is_small(limits::KEEP_REFERENCE_MIN - 1));
    assert!(!request().is_small(limits::KEEP_REFERENCE_MIN));
}

#[test]
fn after_a_rush_the_table_gives_its_memory_back_once_nobody_waits() {
    let (mut requests, mut spares) = (PendingRequests::default(), Spares::default());
    let mut rush = |requests: &mut PendingRequests, count: usize| {
        let asked = (&Request::placeholder(), &b""[..]);
        let ids: Vec<RequestId> = (0..count)
            .map(|_| {
                requests.alloc((client(), proto::PROTOCOLS[0]), 0, asked, Time(0), &mut spares)
            })
            .collect();
        requests.rest();
        assert_eq!((requests.len(), requests.requests.len() >= count), (count, true), "they wait");
        for id in ids {
            requests[id].set_done();
            requests.free(id, &mut spares);
        }
        requests.rest();
        requests.requests.len()
    };
    assert_eq!(rush(&mut requests, limits::REQUESTS_REST_MAX), limits::REQUESTS_REST_MAX);
    assert_eq!(rush(&mut requests, limits::REQUESTS_REST_MAX + 1), 0);
}
