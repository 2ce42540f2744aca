//! Bytes that come in pieces, bytes that have to wait, and how many may: a client's input, and the
//! replies of servers.

use proto::protocol;
use proxy::limits::{BUFFER_KEEP_MAX, REPLY_HEAD_MAX};
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::Stage;

/// A pool whose values go to their clients as they come, from ten bytes on; a client with a get, a
/// set, two meta requests and a `gat` outstanding; and the answers of the server.
fn outstanding() -> (Stage, ConnId, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.stream_min = 10;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    let client = stage.client();
    stage.says(client, ASKED);
    assert_eq!(stage.turn(link), SENT);
    (stage, link, client)
}

const ASKED: &str = "get x y\r\nset z 0 0 1\r\nZ\r\nmg k t v\r\nmd k q\r\nmn\r\ngat 0 x y\r\n";
/// As a server is asked: a quiet request is not quiet there.
const SENT: &str = "get x y\r\nset z 0 0 1\r\nZ\r\nmg k t v\r\nmd k\r\ngat 0 x y\r\n";
const REPLIES: &str = "VALUE x 0 12\r\nabcdefghijkl\r\nEND\r\nSTORED\r\nVA 11 t-1\r\n\
    abcdefghijk\r\nHD\r\nVALUE x 0 1\r\nX\r\nVALUE y 0 0\r\n\r\nEND\r\n";
const ANSWERS: &str = "VALUE x 0 12\r\nabcdefghijkl\r\nEND\r\nSTORED\r\nVA 11 t-1\r\n\
    abcdefghijk\r\nMN\r\nVALUE x 0 1\r\nX\r\nVALUE y 0 0\r\n\r\nEND\r\n";

/// A server of another version may read the other forms differently.
#[test]
fn a_server_is_sent_numbers_in_their_plain_form() {
    let cas = "18446744073709551615";
    for (said, sent) in [
        ("set k +1 +60 +1\r\nX\r\n".to_string(), "set k 1 60 1\r\nX\r\n".to_string()),
        ("set k 4294967297 2147483648 01\r\nX\r\n".into(), "set k 1 -1 01\r\nX\r\n".into()),
        (format!("cas k 0 -0 1 +{cas}\r\nX\r\n"), format!("cas k 0 0 1 {cas}\r\nX\r\n")),
        ("incr k +5\r\n".into(), "incr k 5\r\n".into()),
        ("touch k 4294967296 noreply\r\n".into(), "touch k 0\r\n".into()),
        ("gat 00000000005 k\r\n".into(), "gat 5 k\r\n".into()),
        ("gats -1 k\r\n".into(), "gats -1 k\r\n".into()),
        ("flush_all +5\r\n".into(), "flush_all 5\r\n".into()),
        (" ms k +1 T+5 F+7\r\nX\r\n".into(), "ms k 1 T5 F7\r\nX\r\n".into()),
        ("mg k T2147483648 N-0 q\r\n".into(), "mg k T-1 N0\r\n".into()),
    ] {
        let mut stage = Stage::new(&["s0"], |pool| {
            (pool.preconnect, pool.allow) = (true, vec!["flush_all".to_string()]);
        });
        let link = stage.connect(0);
        stage.handshake(link);
        let client = stage.client();
        stage.says(client, &said);
        assert_eq!(stage.turn(link), sent, "{said}");
    }
}

#[test]
fn replies_that_come_in_any_pieces_are_the_same_answers() {
    for first in 0..REPLIES.len() {
        for len in [0, 1, 7] {
            let second = (first + len).min(REPLIES.len());
            let (mut stage, link, client) = outstanding();
            let mut told = String::new();
            for piece in [&REPLIES[..first], &REPLIES[first..second], &REPLIES[second..]] {
                stage.says(link, piece);
                told += &stage.received(client);
            }
            assert_eq!(told, ANSWERS, "cut at {first} and {second}");
            assert_eq!((&stage.closed, stage.memory()), (&vec![], 0), "cut at {first}");
            stage.expect_rows(0);
        }
    }
}

#[test]
fn requests_that_come_in_any_pieces_are_the_same_requests() {
    for first in 0..ASKED.len() {
        for len in [0, 1, 7] {
            let second = (first + len).min(ASKED.len());
            let (mut stage, link) = Stage::of_one();
            let client = stage.client();
            for piece in [&ASKED[..first], &ASKED[first..second], &ASKED[second..]] {
                stage.says(client, piece);
            }
            assert_eq!(stage.turn(link), SENT, "cut at {first} and {second}");
            stage.says(link, REPLIES);
            assert_eq!(stage.received(client), ANSWERS, "cut at {first} and {second}");
            assert_eq!(stage.memory(), 0, "cut at {first} and {second}");
        }
    }
}

/// Its client gets it as it comes, or when it is whole, or not at all; the next reply is another's.
#[test]
fn a_list_that_comes_in_pieces_is_one_answer() {
    let items: String = (0..6).map(|nth| format!("$5\r\nitem{nth}\r\n")).collect();
    let list = format!("*7\r\n{items}*1\r\n$3\r\nend\r\n");
    for stream_min in [10, 1 << 20] {
        for first in 0..list.len() {
            for len in [0, 1, 9] {
                let second = (first + len).min(list.len());
                let (mut stage, link, client) = redis();
                stage.install(|plan| plan.limits.stream_min = stream_min);
                let other = stage.client();
                stage.says(client, "LRANGE k 0 -1\r\n");
                stage.says(other, "LLEN k\r\n");
                stage.turn(link);
                let mut told = String::new();
                for piece in [&list[..first], &list[first..second], &list[second..]] {
                    stage.says(link, piece);
                    told += &stage.received(client);
                }
                assert_eq!(told, list, "cut at {first} and {second}");
                stage.says(link, ":7\r\n");
                assert_eq!(stage.received(other), ":7\r\n");
                assert_eq!((&stage.closed, stage.memory()), (&vec![], 0));
                stage.expect_rows(0);
            }
        }
    }
}

#[test]
fn a_list_whose_client_leaves_or_that_passes_the_memory_limit_is_read_to_its_end() {
    const NO_MEMORY: &str = "-ERR s0: out of memory holding the reply\r\n";
    let items: String = (0..60).map(|nth| format!("$7\r\nitem-{nth:02}\r\n")).collect();
    let list = format!("*60\r\n{items}");
    for (stream_min, leaves) in [(10, true), (1 << 20, true), (10, false), (1 << 20, false)] {
        let (mut stage, link, client) = redis();
        stage.install(|plan| plan.limits.stream_min = stream_min);
        let other = stage.client();
        stage.says(client, "LRANGE k 0 -1\r\n");
        stage.says(other, "LLEN k\r\n");
        stage.turn(link);
        stage.says(link, &list[..100]);
        stage.says(link, &list[100..200]);
        let begun = stage.received(client);
        assert_eq!(begun.is_empty(), stream_min > 10, "{begun}");
        match leaves {
            true => stage.closes(client, Closed::Reset),
            false => stage.install(|plan| plan.memory_max = 1),
        }
        for piece in [&list[200..300], &list[300..]] {
            stage.says(link, piece);
        }
        stage.says(link, ":60\r\n");
        assert_eq!(stage.received(other), ":60\r\n", "{stream_min} {leaves}");
        // A client that has a part of it can be told nothing but the end.
        let told = stage.received(client);
        let is_error = !leaves && stream_min > 10;
        assert_eq!(told, if is_error { NO_MEMORY } else { "" }, "{stream_min} {leaves}");
        assert_eq!(stage.closed.contains(&client), !leaves && stream_min == 10);
        assert!(!stage.closed.contains(&link));
        assert_eq!(stage.memory(), 0);
        stage.expect_rows(0);
    }
}

/// A part of the long line came before.
#[test]
fn a_head_longer_than_most_is_read_to_its_end_and_so_is_what_follows_it() {
    for len in [REPLY_HEAD_MAX - 100, REPLY_HEAD_MAX, 2 * REPLY_HEAD_MAX, 5 * REPLY_HEAD_MAX] {
        for first in [1, 15, 100] {
            let (mut stage, link, client) = redis();
            let follow = 20;
            stage.says(client, &"TYPE k\r\n".repeat(1 + follow));
            stage.turn(link);
            let replies = format!("-ERR {}\r\n{}", "e".repeat(len), "+set\r\n".repeat(follow));
            stage.says(link, &replies[..first]);
            stage.says(link, &replies[first..]);
            let told = stage.received(client);
            assert!(told == replies, "{len} bytes after {first}: {} are told", told.len());
            assert_eq!((&stage.closed, stage.memory()), (&vec![], 0));
        }
    }
}

#[test]
fn a_reply_before_its_request_has_left_ends_the_link() {
    for (taken, is_closed) in [(9, true), (10, false)] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, "delete x\r\n");
        stage.end_turn();
        assert_eq!(stage.received_some(link, taken).len(), taken);
        stage.says(link, "DELETED\r\n");
        assert_eq!(stage.closed == [link], is_closed, "{taken} bytes have left");
        assert_eq!(stage.received(client) == "DELETED\r\n", !is_closed);
    }
}

/// Its socket is read so that it is noticed if it leaves, but not without bound.
#[test]
fn a_client_that_waits_for_a_server_may_send_so_much_and_no_more() {
    for more in [0, 1] {
        let mut stage = Stage::new(&["s0"], |_| {});
        let client = stage.client();
        let mut asked = String::from("mg k t\r\n");
        stage.says(client, &asked);
        while asked.len() + 7 <= BUFFER_KEEP_MAX {
            stage.says(client, "get x\r\n");
            asked += "get x\r\n";
        }
        assert_eq!(stage.paused, [], "{} bytes", asked.len());
        let rest = BUFFER_KEEP_MAX - asked.len() + more;
        stage.says(client, &"version\r\n"[..rest]);
        assert_eq!(stage.paused.len(), more, "{more} byte more than may wait");
        stage.says(client, &"version\r\n"[rest..]);
        assert_eq!(stage.paused, [client]);
        let gets = asked.lines().count() - 1;
        let link = stage.connect(0);
        let mut told = String::new();
        for _ in 0..100 {
            let sent = stage.turn(link);
            let reply = |line: &str| if line.starts_with("mg") { "HD t-1\r\n" } else { "END\r\n" };
            stage.says(link, &sent.lines().map(reply).collect::<String>());
            told += &stage.received(client);
        }
        assert!(told.starts_with("HD t-1\r\nEND\r\n"), "{told}");
        assert_eq!((told.matches("END\r\n").count(), told.matches("VERSION").count()), (gets, 1));
        assert_eq!(stage.paused, [], "it is read again");
        stage.expect_rows(0);
    }
}

#[test]
fn a_client_is_paused_at_its_limit_and_goes_on_at_half_of_it() {
    let mut stage = Stage::of(&["s0"], |plan| plan.limits.pipeline = 4);
    let client = stage.client();
    stage.says(client, &"delete x\r\n".repeat(3));
    let link = stage.connect(0);
    assert_eq!((stage.turn(link).lines().count(), &stage.paused), (3, &vec![]));
    stage.says(client, "delete x noreply\r\ndelete y\r\n");
    assert_eq!((stage.turn(link), &stage.paused), ("delete x\r\n".into(), &vec![client]));
    for left in [3, 2] {
        assert_eq!(stage.paused, [client]);
        stage.says(link, "DELETED\r\n");
        assert_eq!(stage.turn(link), if left == 2 { "delete y\r\n" } else { "" });
    }
    assert_eq!(stage.paused, [], "three are outstanding, of four");
}

/// It is paused for its pipeline, then for a server, then for its pipeline again. Its socket is
/// read when all of that is over, and not before.
#[test]
fn a_client_that_is_paused_for_another_reason_as_it_goes_on_stays_paused() {
    let mut stage = Stage::of(&["s0", "s1"], |plan| {
        plan.limits.pipeline = 1;
        plan.pools[0].distribution = Distribution::Modula;
    });
    let (client, keys) = (stage.client(), [stage.key_of(0), stage.key_of(1)]);
    stage.says(client, &format!("delete {}\r\nmg {} t\r\nversion\r\n", keys[0], keys[1]));
    assert_eq!(stage.paused, [client]);
    let link = stage.connect(0);
    stage.turn(link);
    stage.says(link, "DELETED\r\n");
    stage.end_turn();
    assert_eq!(stage.paused, [client], "now it waits for the other server");
    let other = stage.connect(1);
    assert_eq!(stage.turn(other), format!("mg {} t\r\n", keys[1]));
    assert_eq!(stage.received(client), "DELETED\r\n");
    assert_eq!(stage.paused, [client]);
    stage.says(other, "EN\r\n");
    stage.end_turn();
    assert_eq!(stage.paused, []);
    assert!(stage.received(client).starts_with("EN\r\nVERSION "));
    // A client that is read all the time is never said to be.
    let mut stage = Stage::new(&["s0"], |_| {});
    let client = stage.client();
    stage.says(client, "mg k t\r\n");
    let link = stage.connect(0);
    assert_eq!((stage.turn(link), &stage.paused), ("mg k t\r\n".into(), &vec![]));
}

#[test]
fn a_head_has_its_bound_and_a_long_one_needs_memory() {
    let long = BUFFER_KEEP_MAX + 1;
    for (bound, memory, len, is_closed) in [
        (100, 1 << 20, 100, false),
        (100, 1 << 20, 101, true),
        (2 * long, 1 << 20, 2 * long, false),
        (2 * long, 1 << 20, 2 * long + 1, true),
        // A short one is never refused for want of memory.
        (2 * long, 0, long - 1, false),
        (2 * long, 0, long, true),
    ] {
        let mut stage = Stage::of(&["s0"], |plan| {
            (plan.limits.request_head, plan.memory_max) = (bound, memory);
        });
        let client = stage.client();
        let head = format!("get {}", "k ".repeat(len));
        stage.says(client, &head[..len - 1]);
        assert_eq!(stage.received(client), "", "{len}");
        assert_eq!(stage.closed, [], "{len}");
        stage.says(client, &head[len - 1..len]);
        let told = stage.received(client);
        assert_eq!(stage.closed == [client], is_closed, "{len} of {bound}: {told}");
        assert_eq!(told, if is_closed { "CLIENT_ERROR line too long\r\n" } else { "" });
    }
}

#[test]
fn a_value_of_the_largest_size_is_stored() {
    for (len, is_stored) in [(100, true), (101, false)] {
        let mut stage = Stage::new(&["s0"], |pool| {
            (pool.item_size_max, pool.preconnect) = (100, true);
        });
        let (link, client) = (stage.connect(0), stage.client());
        let add = format!("add k 0 0 {len}\r\n{}\r\n", "v".repeat(len));
        stage.says(client, &add);
        assert_eq!(stage.turn(link), if is_stored { add } else { String::new() });
    }
}

/// A client must learn what has become of its change. A value can be asked for again.
#[test]
fn a_line_is_told_however_full_the_memory_is_and_a_value_is_not() {
    const NO_MEMORY: &str = "SERVER_ERROR s0: out of memory holding the reply";
    let full = |stage: &mut Stage| stage.install(|plan| plan.memory_max = 1);
    for (asked, reply, told) in [
        ("delete x\r\n", "DELETED\r\n", "DELETED\r\n".to_string()),
        ("md x\r\n", "NF\r\n", "NF\r\n".to_string()),
        ("mg x t v\r\n", "VA 1 t-1\r\nX\r\n", format!("{NO_MEMORY}\r\n")),
        ("get x\r\n", "VALUE x 0 1\r\nX\r\nEND\r\n", format!("{NO_MEMORY}\r\n")),
        ("get x\r\n", "END\r\n", "END\r\n".to_string()),
    ] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, asked);
        assert_eq!(stage.turn(link), asked);
        full(&mut stage);
        stage.says(link, reply);
        assert_eq!((stage.received(client), &stage.closed), (told, &vec![]), "{asked:?}");
    }
    // A line as long as a value is one.
    for (len, is_told) in [(REPLY_HEAD_MAX, true), (REPLY_HEAD_MAX + 1, false)] {
        let (mut stage, link, client) = redis();
        stage.says(client, "TYPE k\r\n");
        stage.turn(link);
        full(&mut stage);
        let line = format!("+{}\r\n", "t".repeat(len - 3));
        stage.says(link, &line);
        let told = stage.received(client);
        assert_eq!(told == line, is_told, "{len} bytes");
        assert_eq!(told == "-ERR s0: out of memory holding the reply\r\n", !is_told, "{told}");
    }
}

/// One Redis server, the link to it and a client.
fn redis() -> (Stage, ConnId, ConnId) {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.preconnect = true;
    });
    let link = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
    stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
    let client = stage.client();
    (stage, link, client)
}

#[test]
fn replies_of_several_servers_are_merged_only_if_there_is_memory() {
    for (memory, is_told) in [(1 << 20, true), (1, false)] {
        let mut stage = Stage::new(&["s0", "s1"], |pool| {
            pool.distribution = Distribution::Modula;
            pool.preconnect = true;
        });
        let links = [stage.connect(0), stage.connect(1)];
        let client = stage.client();
        stage.says(client, "stats settings\r\n");
        assert_eq!(links.map(|link| stage.turn(link)), ["stats settings\r\n"; 2].map(String::from));
        stage.install(|plan| plan.memory_max = memory);
        links.iter().for_each(|link| stage.says(*link, "STAT maxconns 10\r\nEND\r\n"));
        let told = stage.received(client);
        assert_eq!(told.contains("maxconns 10"), is_told, "{told}");
        assert_eq!(told.contains("out of memory holding the reply"), !is_told, "{told}");
    }
}

/// Its answer is no list of facts: several could not be merged.
#[test]
fn what_only_one_server_can_be_asked_is_refused_in_a_pool_of_several() {
    for (servers, is_asked) in [(&["s0"][..], true), (&["s0", "s1"][..], false)] {
        let mut stage = Stage::new(servers, |pool| pool.preconnect = true);
        let (link, client) = (stage.connect(0), stage.client());
        stage.says(client, "stats cachedump 1 10\r\n");
        assert_eq!(stage.turn(link), if is_asked { "stats cachedump 1 10\r\n" } else { "" });
        let told = stage.received(client);
        assert_eq!(told.contains("each server has its own"), !is_asked, "{told}");
    }
}

/// The link is either asked for all parts of a change or for none, and holds no more than it may.
#[test]
fn a_change_of_many_messages_is_within_the_queue_or_not_sent_at_all() {
    let mut outcomes = [0, 0];
    // Two keys of this length do not fit into one message.
    let long = |nth: usize| format!("{nth}{}", "k".repeat(4_090));
    let is_others = |key: &String| shard::Hash::Fnv64a.hash(key.as_bytes()) % 2 == 1;
    let long = (0..9).map(long).find(is_others).expect("one of them is the other server's");
    for room in (395..425).step_by(2) {
        let mut stage = Stage::of(&["s0", "s1"], |plan| {
            plan.limits.link_queue = room;
            plan.memory_max = 64 << 20;
            // All of it is a large request.
            plan.pools[0].class_links = 0;
            plan.pools[0].protocol = protocol("redis").expect("the table has it");
            plan.pools[0].distribution = Distribution::Modula;
            plan.pools[0].preconnect = true;
        });
        let links = [0, 1].map(|_| {
            let link = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
            stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
            link
        });
        let client = stage.client();
        let word = |word: &str| format!("${}\r\n{word}\r\n", word.len());
        let many = [word(&long), word("1")].concat().repeat(400);
        let first = ["MSET", &stage.key_of(0), "1"].map(word).concat();
        stage.says(client, &format!("*803\r\n{first}{many}"));
        let sent = links.map(|link| stage.turn(link).matches("mset").count());
        let is_sent = sent[0] > 0;
        outcomes[usize::from(is_sent)] += 1;
        assert!(sent[1] <= room, "{} messages where {room} may wait", sent[1]);
        assert_eq!(sent[1] > 0, is_sent, "all of it or nothing");
        assert_eq!(stage.received(client).ends_with("queue full, not sent\r\n"), !is_sent);
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// A client may leave while its input waits. The time for which it waited decides what is sent.
#[test]
fn a_client_that_leaves_while_it_waits_has_waited_since_it_began() {
    const HOLD_AFTER: u64 = 30_000;
    for (waited, then, is_sent) in
        [(HOLD_AFTER, 0, false), (HOLD_AFTER / 2, HOLD_AFTER / 2, false), (HOLD_AFTER - 2, 1, true)]
    {
        let mut stage = Stage::new(&["s0"], |_| {});
        let client = stage.client();
        stage.says(client, "ms x 1 MA\r\nX\r\n");
        stage.end_turn();
        stage.passes(waited);
        stage.closes(client, Closed::Eof);
        stage.passes(then);
        let link = stage.connect(0);
        assert_eq!(!stage.turn(link).is_empty(), is_sent, "{waited} and {then} us");
    }
}

/// Its input waits for one server after the other: the time counts from the first.
#[test]
fn a_client_that_has_left_has_waited_since_it_began_and_not_before() {
    const APPEND: &str = "1 MA\r\nX\r\n";
    let two = |pipeline: usize| {
        Stage::of(&["s0", "s1"], |plan| {
            plan.limits.pipeline = pipeline;
            plan.pools[0].distribution = Distribution::Modula;
        })
    };
    for (first, then, is_sent) in [(14_999, 15_000, false), (14_999, 9_999, true)] {
        let mut stage = two(9);
        let (client, keys) = (stage.client(), [stage.key_of(0), stage.key_of(1)]);
        stage.says(client, &format!("ms {} {APPEND}ms {} {APPEND}", keys[0], keys[1]));
        stage.gives_up(client, Closed::Eof);
        stage.passes(first);
        let link = stage.connect(0);
        assert_eq!(stage.turn(link), format!("ms {} {APPEND}", keys[0]));
        stage.passes(then);
        let other = stage.connect(1);
        assert_eq!(!stage.turn(other).is_empty(), is_sent, "{first} and {then} us");
    }
    // It was paused for its pipeline before.
    let mut stage = two(1);
    let (client, keys) = (stage.client(), [stage.key_of(0), stage.key_of(1)]);
    stage.says(client, &format!("delete {}\r\nms {} {APPEND}", keys[0], keys[1]));
    let link = stage.connect(0);
    stage.turn(link);
    stage.closes(client, Closed::Eof);
    stage.says(link, "DELETED\r\n");
    stage.end_turn();
    stage.passes(10_000);
    let other = stage.connect(1);
    assert_eq!(stage.turn(other), format!("ms {} {APPEND}", keys[1]));
}

/// Each key of several takes memory until it is answered. One key is no matter.
#[test]
fn a_read_of_one_key_needs_no_memory_to_be_asked() {
    for (keys, is_asked) in [("x", true), ("x y", false)] {
        let mut stage = Stage::of(&["s0"], |plan| plan.memory_max = 1);
        let client = stage.client();
        stage.says(client, &format!("get {keys}\r\n"));
        assert_eq!(stage.received(client).is_empty(), is_asked);
        assert_eq!(stage.connects.len(), usize::from(is_asked));
    }
}

/// A link's queue is bounded by its messages and by its bytes.
/// A request that its client makes at once may exceed the bound, and is refused if it does. What
/// another client asks is not. (What a client pipelines is not read while so much waits.)
/// Keys that may be merged wait in one message. They are as many as their request has, within the
/// bytes.
#[test]
fn a_get_of_more_keys_than_a_queue_takes_requests_is_answered() {
    for (bytes, told) in [(1 << 20, "END\r\n"), (4_096, FULL)] {
        let mut stage = Stage::of(&["s0"], |plan| {
            (plan.limits.link_queue, plan.limits.link_outbox) = (2, bytes);
            plan.limits.inflight = 1;
            plan.pools[0].preconnect = true;
        });
        let (link, client, other) = (stage.connect(0), stage.client(), stage.client());
        stage.says(other, "delete x\r\n");
        let keys: String = (0..300).map(|nth| format!(" k{nth}")).collect();
        stage.says(client, &format!("get{keys}\r\n"));
        assert_eq!(stage.turn(link), "delete x\r\n");
        stage.says(link, "DELETED\r\n");
        while let more @ 1.. = stage.turn(link).lines().count() {
            (0..more).for_each(|_| stage.says(link, "END\r\n"));
        }
        assert_eq!(stage.received(client), told, "{bytes} bytes");
        stage.expect_rows(0);
    }
}

const FULL: &str = "SERVER_ERROR s0: queue full, not sent\r\n";

#[test]
fn a_queue_is_full_at_its_bound() {
    // Unmerged, 250 keys are three messages, each of more than 1,000 bytes.
    let keys: Vec<String> = (0..250).map(|nth| format!("k{nth}")).collect();
    for (messages, bytes, fits) in
        [(1, 1 << 20, 3), (3, 1 << 20, 3), (9, 1, 1), (9, 1_000, 1), (9, 20_000, 3)]
    {
        let mut stage = Stage::of(&["s0"], |plan| {
            (plan.limits.link_queue, plan.limits.link_outbox) = (messages, bytes);
            (plan.limits.inflight, plan.limits.unproven) = (1, 1 << 30);
            plan.pools[0].merge_gets = false;
            plan.pools[0].preconnect = true;
        });
        let (link, client, other) = (stage.connect(0), stage.client(), stage.client());
        stage.says(other, "delete x\r\n");
        stage.says(client, &format!("get {}\r\n", keys.join(" ")));
        stage.says(other, "delete y\r\n");
        let mut sent = Vec::new();
        for _ in 0..5 {
            let more = stage.turn(link);
            let reply = if more.starts_with("get") { "END\r\n" } else { "DELETED\r\n" };
            sent.extend(more.lines().map(str::to_string));
            if !more.is_empty() {
                stage.says(link, reply);
            }
        }
        let gets = sent.iter().filter(|line| line.starts_with("get")).count();
        assert_eq!(gets, fits, "{messages} messages, {bytes} bytes");
        let told = if fits == 3 { "END\r\n" } else { FULL };
        assert_eq!(stage.received(client), told, "{messages} messages, {bytes} bytes");
        assert_eq!(stage.received(other), "DELETED\r\n".repeat(2));
        stage.expect_rows(0);
    }
}

#[test]
fn a_client_that_does_not_read_is_paused_above_its_bound_and_goes_on_at_half_of_it() {
    let answer = {
        let (mut stage, _) = Stage::of_one();
        let client = stage.client();
        stage.says(client, "version\r\n");
        stage.received(client).len()
    };
    let mut stage = Stage::of(&["s0"], |plan| plan.limits.client_outbox = 2 * answer);
    let client = stage.client();
    stage.says(client, &"version\r\n".repeat(2));
    assert_eq!(stage.paused, [], "so much may wait");
    stage.says(client, "version\r\n");
    assert_eq!(stage.paused, [client]);
    for (taken, is_read) in [(2 * answer - 1, false), (1, true)] {
        assert_eq!(stage.received_some(client, taken).len(), taken);
        stage.end_turn();
        assert_eq!(stage.paused.is_empty(), is_read, "{taken} bytes more are taken");
    }
}

#[test]
fn a_value_from_its_bound_on_goes_to_its_client_as_it_comes() {
    for (len, streams) in [(10, true), (9, false)] {
        let mut stage = Stage::of(&["s0"], |plan| {
            plan.limits.stream_min = 10;
            plan.pools[0].preconnect = true;
        });
        let (link, client) = (stage.connect(0), stage.client());
        stage.says(client, "get x\r\n");
        stage.turn(link);
        let head = format!("VALUE x 0 {len}\r\n");
        stage.says(link, &format!("{head}abc"));
        assert_eq!(stage.received(client), if streams { head + "abc" } else { String::new() });
    }
}
