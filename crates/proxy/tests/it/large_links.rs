//! Large requests and values: they have a link of their own, and no other request waits for them.

use proto::protocol;
use proxy::plan::Plan;
use proxy::{Closed, ConnId};

use crate::stage::{SECOND, Stage};

/// More than the least large request.
const LARGE: usize = 2_000_000;

/// A pool of one memcached server, and the link that clients share.
fn memcached(set: impl FnOnce(&mut Plan)) -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.memory_max = 1 << 26;
        plan.limits.inflight = 1 << 26;
        (plan.pools[0].item_size_max, plan.pools[0].preconnect) = (1 << 22, true);
        set(plan);
    });
    let link = stage.connect(0);
    (stage, link)
}

fn store(key: &str, options: &str) -> String {
    format!("set {key} 0 0 {LARGE}{options}\r\n{}\r\n", "v".repeat(LARGE))
}

/// The answer to a get of a large value.
fn value(key: &str) -> String {
    format!("VALUE {key} 0 {LARGE}\r\n{}\r\nEND\r\n", "v".repeat(LARGE))
}

/// Has a peer say this, in reads of a block, as far as it is read.
fn sends(stage: &mut Stage, conn: ConnId, text: &str) {
    for piece in text.as_bytes().chunks(1 << 16) {
        stage.says_bytes(conn, piece);
    }
    turns(stage);
}

/// Ends turns until nobody wants another.
fn turns(stage: &mut Stage) {
    stage.end_turn();
    while stage.wants_turn() {
        stage.end_turn();
    }
}

/// Ends turns as `turns`; returns what a server then receives.
fn gets(stage: &mut Stage, link: ConnId) -> String {
    turns(stage);
    stage.turn(link)
}

#[test]
fn a_large_set_leaves_on_a_link_of_its_own_and_no_small_get_waits_for_it() {
    let (mut stage, link) = memcached(|_| {});
    let (writer, reader) = (stage.client(), stage.client());
    let text = store("k", "");
    sends(&mut stage, writer, &text);
    let large = stage.connect(0);
    stage.end_turn();
    let mut sent = stage.received_some(large, 100_000);
    for _ in 0..3 {
        stage.says(reader, "get a\r\n");
        assert_eq!(stage.turn(link), "get a\r\n");
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(reader), "END\r\n");
        sent += &stage.received_some(large, 100_000);
        // Its server takes a little of it from time to time, and is not silent.
        stage.passes(SECOND / 50);
    }
    sent += &stage.turn(large);
    assert!(sent == text, "{} bytes", sent.len());
    stage.says(large, "STORED\r\n");
    assert_eq!((stage.received(writer).as_str(), &stage.closed), ("STORED\r\n", &vec![]));
    assert_eq!((stage.connects.len(), stage.memory()), (0, 0));
}

#[test]
fn a_client_whose_requests_are_large_and_small_has_them_done_in_order() {
    for options in ["", " noreply"] {
        let (mut stage, link) = memcached(|_| {});
        let client = stage.client();
        let text = store("k", options);
        sends(&mut stage, client, &format!("incr n 1{options}\r\n{text}get k\r\n"));
        assert!(gets(&mut stage, link).starts_with("incr n 1"));
        assert_eq!(stage.connects, [], "the large one waits");
        stage.says(link, "1\r\n");
        turns(&mut stage);
        // What stayed in the socket meanwhile.
        let large = stage.connect(0);
        assert!(gets(&mut stage, large).ends_with("v\r\n"));
        assert_eq!(gets(&mut stage, link), "", "the get waits");
        stage.says(large, "STORED\r\n");
        assert_eq!(gets(&mut stage, link), "get k\r\n");
        stage.says(link, "END\r\n");
        let told = if options.is_empty() { "1\r\nSTORED\r\nEND\r\n" } else { "END\r\n" };
        assert_eq!(stage.received(client), told);
        stage.expect_rows(0);
    }
}

#[test]
fn where_there_is_no_room_for_a_link_large_requests_share_one_and_go_one_by_one() {
    let (mut stage, link) = memcached(|plan| plan.pools[0].class_links = 2);
    let (one, other, reader) = (stage.client(), stage.client(), stage.client());
    let (first, second) = (store("a", ""), store("b", ""));
    sends(&mut stage, one, &first);
    sends(&mut stage, other, &second);
    assert!(gets(&mut stage, link) == first);
    stage.says(reader, "get c\r\n");
    assert_eq!(stage.turn(link), "get c\r\n", "it passes the second");
    stage.says(link, "STORED\r\nEND\r\n");
    assert!(gets(&mut stage, link) == second);
    stage.says(link, "STORED\r\n");
    for (client, told) in [(one, "STORED\r\n"), (other, "STORED\r\n"), (reader, "END\r\n")] {
        assert_eq!(stage.received(client), told);
    }
    assert_eq!((stage.connects.len(), stage.memory()), (0, 0));
}

#[test]
fn one_large_request_of_each_client_is_outstanding_and_a_few_of_all() {
    let (mut stage, _) = memcached(|_| {});
    let (one, other) = (stage.client(), stage.client());
    let (first, second) = (store("a", " noreply"), store("b", " noreply"));
    sends(&mut stage, one, &(first + &second));
    let large = stage.connect(0);
    sends(&mut stage, other, &store("c", ""));
    let sent = gets(&mut stage, large);
    let keys = |sent: &str| ["set a", "set b", "set c"].map(|set| sent.contains(set));
    assert_eq!(keys(&sent), [true, false, true]);
    stage.says(large, "STORED\r\n");
    assert_eq!(keys(&gets(&mut stage, large)), [false, true, false]);
    stage.says(large, "STORED\r\nSTORED\r\n");
    assert_eq!((stage.received(one).as_str(), stage.received(other).as_str()), ("", "STORED\r\n"));
    stage.expect_rows(0);
}

/// As long as the one before it goes on, it waits for longer than a small request may.
#[test]
fn a_large_request_is_not_refused_because_of_another() {
    let (mut stage, _) = memcached(|plan| plan.limits.inflight = 1000);
    let (one, other) = (stage.client(), stage.client());
    sends(&mut stage, one, &store("a", ""));
    let large = stage.connect(0);
    let second = store("b", "");
    sends(&mut stage, other, &second);
    stage.end_turn();
    for _ in 0..19 {
        assert_eq!(stage.received_some(large, 100_000).len(), 100_000);
        stage.passes(SECOND / 10 * 3);
    }
    stage.received(large);
    stage.says(large, "STORED\r\n");
    assert!(gets(&mut stage, large) == second);
    stage.says(large, "STORED\r\n");
    for client in [one, other] {
        assert_eq!(stage.received(client), "STORED\r\n");
    }
}

#[test]
fn a_large_link_that_dies_answers_those_on_it_only() {
    let (mut stage, link) = memcached(|_| {});
    let (writer, reader) = (stage.client(), stage.client());
    sends(&mut stage, writer, &store("k", ""));
    let large = stage.connect(0);
    stage.says(reader, "get a\r\n");
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.received_some(large, 100_000);
    stage.closes(large, Closed::Reset);
    let told = stage.received(writer);
    assert_eq!(told, "SERVER_ERROR s0: connection lost, outcome unknown\r\n");
    stage.says(link, "END\r\n");
    assert_eq!((stage.received(reader).as_str(), &stage.closed), ("END\r\n", &vec![]));
    assert_eq!(stage.memory(), 0);
}

#[test]
fn the_body_of_a_client_that_has_left_is_sent_to_its_end_and_its_answer_goes_nowhere() {
    let (mut stage, _) = memcached(|_| {});
    let (writer, next) = (stage.client(), stage.client());
    let (first, second) = (store("a", ""), store("b", ""));
    sends(&mut stage, writer, &first);
    let large = stage.connect(0);
    stage.end_turn();
    let mut sent = stage.received_some(large, 100_000);
    stage.closes(writer, Closed::Reset);
    sends(&mut stage, next, &second);
    while sent.len() < first.len() {
        sent += &stage.received_some(large, 100_000);
    }
    sent += &gets(&mut stage, large);
    assert!(sent == first + &second, "{} bytes", sent.len());
    stage.says(large, "STORED\r\nSTORED\r\n");
    assert_eq!((stage.received(next).as_str(), stage.memory()), ("STORED\r\n", 0));
    stage.expect_rows(0);
}

#[test]
fn a_value_that_is_expected_to_be_large_is_fetched_on_a_link_of_its_own() {
    let (mut stage, link) = memcached(|_| {});
    let (client, other) = (stage.client(), stage.client());
    let text = value("k");
    stage.says(client, "get k\r\n");
    assert_eq!(gets(&mut stage, link), "get k\r\n", "nothing is known of it");
    sends(&mut stage, link, &text);
    assert!(stage.received(client) == text);
    stage.says(client, "get k\r\n");
    turns(&mut stage);
    let large = stage.connect(0);
    assert_eq!(gets(&mut stage, large), "get k\r\n");
    stage.says_bytes(large, &text.as_bytes()[..1000]);
    stage.says(other, "get a\r\n");
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(other), "END\r\n");
    // Another command of its own waits, since requests of a client keep their order.
    stage.says(client, "incr n 1\r\n");
    assert_eq!(gets(&mut stage, link), "");
    let mut told = stage.received(client);
    sends(&mut stage, large, &text[1000..]);
    told += &stage.received(client);
    assert!(told == text, "{} bytes", told.len());
    assert_eq!(gets(&mut stage, link), "incr n 1\r\n");
    stage.says(link, "1\r\n");
    assert_eq!(stage.received(client), "1\r\n");
    // Its reads are small again, and soon share the link.
    let mut links = Vec::new();
    for _ in 0..5 {
        stage.says(client, "get a\r\n");
        turns(&mut stage);
        let takes = if stage.turn(link).is_empty() { large } else { link };
        links.push(takes);
        stage.received(takes);
        stage.says(takes, "VALUE a 0 1\r\n1\r\nEND\r\n");
        assert_eq!(stage.received(client), "VALUE a 0 1\r\n1\r\nEND\r\n");
    }
    assert_eq!((links[0], links[4]), (large, link));
    assert!(links.is_sorted_by_key(|takes| *takes == link), "one change is enough");
}

/// A pool of one Redis server.
fn redis(large_min: u64) -> Stage {
    Stage::of(&["s0"], |plan| {
        (plan.limits.large_min, plan.limits.unproven) = (large_min, 2 << 20);
        let pool = &mut plan.pools[0];
        pool.protocol = protocol("redis").expect("the table has it");
        pool.preconnect = true;
    })
}

/// Has a link of a Redis server come up.
fn comes_up(stage: &mut Stage) -> ConnId {
    let link = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
    stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
    link
}

/// They may be large, and one message cannot be taken back.
#[test]
fn a_first_read_of_many_values_takes_the_large_link_until_they_are_known_to_be_short() {
    let mut stage = redis(1 << 20);
    let link = comes_up(&mut stage);
    let mget = format!("mget{}\r\n", " k".repeat(100));
    let answer = format!("*100\r\n{}", "$1\r\nv\r\n".repeat(100));
    let first = stage.client();
    stage.says(first, &mget);
    turns(&mut stage);
    let large = comes_up(&mut stage);
    for takes in [large, link, link] {
        let client = if takes == large { first } else { stage.client() };
        if takes == link {
            stage.says(client, &mget);
        }
        assert!(gets(&mut stage, takes).to_lowercase().contains("mget"));
        stage.says(takes, &answer);
        assert_eq!(stage.received(client), answer);
    }
}

/// Its client may leave before its end, and others ask for the same.
#[test]
fn an_answer_of_many_values_is_known_to_be_large_while_it_comes() {
    let mut stage = redis(1 << 20);
    let link = comes_up(&mut stage);
    let clients = [stage.client(), stage.client(), stage.client(), stage.client()];
    for client in &clients[..3] {
        stage.says(*client, "lrange k 0 9\r\n");
        assert!(gets(&mut stage, link).contains("lrange"));
        if *client == clients[0] {
            stage.says(link, "*0\r\n");
        }
    }
    let value = format!("$400000\r\n{}\r\n", "v".repeat(400_000));
    sends(&mut stage, link, &format!("*10\r\n{}", value.repeat(4)));
    stage.closes(clients[1], Closed::Reset);
    stage.says(clients[3], "lrange k 0 9\r\n");
    assert_eq!(gets(&mut stage, link), "", "its answer may be as large, and one is enough");
    sends(&mut stage, link, &value.repeat(6));
    stage.says(link, "*0\r\n");
    assert!(gets(&mut stage, link).contains("lrange"));
}

#[test]
fn a_large_redis_request_takes_the_same_link_whatever_its_form() {
    let mut stage = redis(2000);
    let link = comes_up(&mut stage);
    let value = "v".repeat(2000);
    let texts = [
        format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000\r\n{value}\r\n"),
        format!("*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000\r\n{value}\r\n$2\r\nEX\r\n$1\r\n9\r\n"),
        format!("*3\r\n$4\r\nMSET\r\n$1\r\nk\r\n$2000\r\n{value}\r\n"),
    ];
    let client = stage.client();
    let mut large = None;
    for text in texts {
        for piece in [3000, 200] {
            text.as_bytes().chunks(piece).for_each(|piece| stage.says_bytes(client, piece));
            turns(&mut stage);
            let large = *large.get_or_insert_with(|| comes_up(&mut stage));
            assert_eq!(gets(&mut stage, large), text, "in pieces of {piece}");
            stage.says(client, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
            assert_eq!(gets(&mut stage, link), "");
            stage.says(large, "+OK\r\n");
            assert_eq!(gets(&mut stage, link), "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
            stage.says(link, "$-1\r\n");
            assert_eq!(stage.received(client), "+OK\r\n$-1\r\n");
        }
    }
}
