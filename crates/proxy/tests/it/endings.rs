//! Stories of the end of a worker or a pool: whatever a client has begun to ask is answered.

use proto::PROTOCOLS;
use proxy::ConnId;

use crate::stage::{POOL, SECOND, Stage};

/// The place in `PROTOCOLS`.
const REDIS: usize = 2;
const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";

/// A worker that ends while a client has sent the first part of what it asks. Each part is sent in
/// a turn of its own. The server's answers are `hear`, and the client's `answer`.
fn check(protocol: usize, parts: [&[u8]; 3], hear: &str, answer: &[u8]) {
    for (at, retires) in [(1, false), (2, false), (1, true), (2, true)] {
        let mut stage = Stage::of(&["s0"], |plan| plan.pools[0].protocol = PROTOCOLS[protocol]);
        let (idle, client) = (stage.client(), stage.client());
        let begun = parts[..at].concat();
        stage.says_bytes(client, &begun);
        match retires {
            true => stage.install(|plan| plan.pools.clear()),
            false => stage.drain(),
        }
        (0..3).for_each(|_| stage.end_turn());
        assert_eq!(stage.closed, [idle], "{parts:?} has begun");
        for part in &parts[at..] {
            stage.says_bytes(client, part);
            stage.end_turn();
        }
        if !hear.is_empty() {
            let link = match protocol {
                REDIS => stage.establishes_with(HELLO),
                _ => stage.connect(0),
            };
            if protocol == REDIS {
                stage.says(link, WELCOME);
            }
            assert_ne!(stage.turn(link), "", "it is asked");
            stage.says(link, hear);
        }
        (0..3).for_each(|_| stage.end_turn());
        assert_eq!(stage.received_bytes(client), answer, "{parts:?}");
        assert_eq!(stage.closed.first_chunk(), Some(&[idle, client]));
        // Nothing more is read of it.
        stage.says(client, "get more\r\n");
        assert_eq!(stage.received_bytes(client), b"");
    }
}

#[test]
fn half_a_request_of_memcached_is_read_to_its_end() {
    check(0, [b"ge", b"t a", b"\r\n"], "END\r\n", b"END\r\n");
    check(0, [b"set a 0 0 10\r\nabc", b"defg", b"hij\r\n"], "STORED\r\n", b"STORED\r\n");
    check(0, [b"ms a 5\r\nab", b"cde", b"\r\n"], "HD\r\n", b"HD\r\n");
    check(0, [b"mg", b" a", b" v\r\n"], "END\r\n", b"EN\r\n");
    // One that is refused has its value skipped.
    check(
        0,
        [b"set a b 0 5\r\nab", b"cde", b"\r\n"],
        "",
        b"CLIENT_ERROR bad command line format\r\n",
    );
}

#[test]
fn half_a_packet_is_read_to_its_end() {
    let get = [&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 12], b"a"].concat();
    let miss = [&[0x81, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9][..], &[0; 12], b"Not found"].concat();
    check(0, [&get[..7], &get[7..24], &get[24..]], "END\r\n", &miss);
}

#[test]
fn half_a_command_of_redis_is_read_to_its_end() {
    let set: [&[u8]; 3] = [b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n", b"$5\r\nhe", b"llo\r\n"];
    check(REDIS, set, "+OK\r\n", b"+OK\r\n");
    check(REDIS, [b"GE", b"T ", b"a\r\n"], "$-1\r\n", b"$-1\r\n");
}

/// The pipeline of a client that has several requests is answered whole.
#[test]
fn what_has_come_behind_the_half_is_answered_too() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get a\r\nget b\r\nget");
    assert_eq!(stage.turn(link), "get a b\r\n");
    stage.drain();
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(client), "END\r\nEND\r\n");
    stage.says(client, " c\r\nget d\r\nge");
    assert_eq!(stage.turn(link), "get c d\r\n");
    stage.says(link, "END\r\n");
    (0..3).for_each(|_| stage.end_turn());
    assert_eq!((stage.received(client), &stage.closed), ("END\r\nEND\r\n".to_string(), &vec![]));
    stage.says(client, "t e\r\n");
    assert_eq!(stage.turn(link), "get e\r\n");
    stage.says(link, "END\r\n");
    stage.end_turn();
    assert_eq!(
        (stage.received(client), stage.closed.clone()),
        ("END\r\n".to_string(), vec![client])
    );
    assert!(stage.is_drained());
}

/// A client that asks on and on is let go at a boundary, not when it stops.
#[test]
fn a_client_that_never_stops_is_let_go_between_two_requests() {
    let (mut stage, link) = Stage::of_one();
    let client: ConnId = stage.client();
    stage.drain_only();
    for turn in 0.. {
        assert!(turn < 100, "it is let go");
        stage.passes(SECOND / 100);
        if stage.closed == [client] {
            break;
        }
        stage.says(client, "get a\r\n");
        if stage.turn(link).is_empty() {
            break;
        }
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(client), "END\r\n");
    }
    stage.end_turn();
    assert!(stage.is_drained());
}

#[test]
fn the_half_of_a_client_whose_pool_has_gone_is_waited_for_a_while_only() {
    let mut stage = Stage::new(&["s0"], |_| ());
    let client = stage.client();
    stage.says(client, "get");
    stage.install(|plan| plan.pools.clear());
    assert_eq!((stage.closed.clone(), stage.uses(POOL)), (vec![], true));
    stage.passes(11 * SECOND);
    stage.end_turn();
    assert_eq!((stage.closed.clone(), stage.uses(POOL)), (vec![client], false));
}
