//! Stories of reads: quiet ones that are joined, and large values in transit.

use proxy::{Closed, ConnId, Event};

use crate::stage::{POOL, S0, Stage};

/// A packet of the binary protocol with this opaque; extras are zeros.
fn packet(opcode: u8, extras: u8, key: &str, opaque: u8) -> Vec<u8> {
    let len = key.len() as u8;
    let header = [0x80, opcode, 0, len, extras, 0, 0, 0, 0, 0, 0, extras + len, 0, 0, 0, opaque];
    [&header[..], &[0; 8], &vec![0; extras.into()], key.as_bytes()].concat()
}

fn getkq(key: &str, opaque: u8) -> Vec<u8> {
    packet(0x0d, 0, key, opaque)
}

fn noop(opaque: u8) -> Vec<u8> {
    packet(0x0a, 0, "", opaque)
}

/// A `Set` of an empty value.
fn set(key: &str, opaque: u8) -> Vec<u8> {
    packet(0x01, 8, key, opaque)
}

fn touch(key: &str, opaque: u8) -> Vec<u8> {
    packet(0x1c, 4, key, opaque)
}

/// Splits the answers: opcode, opaque, status, and the bytes after the header.
fn packets(mut bytes: &[u8]) -> Vec<(u8, u8, u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_at_checked(24) {
        let (body, rest) = rest.split_at(usize::from(header[11]));
        found.push((header[1], header[15], header[7], body.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    found
}

#[test]
fn quiet_reads_that_come_together_are_one_read_and_each_has_its_own_answer() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let asked = [getkq("x", 1), getkq("y", 2), getkq("x", 3), noop(4)].concat();
    stage.says_bytes(client, &asked);
    stage.expect_rows(2);
    assert_eq!(stage.turn(link), "gets x y x\r\n");
    stage.says(link, "VALUE x 0 1 7\r\n1\r\nVALUE x 0 1 7\r\n1\r\nEND\r\n");
    let hit = b"\0\0\0\0x1".to_vec();
    let answers = packets(&stage.received_bytes(client));
    assert_eq!(answers, [(0x0d, 1, 0, hit.clone()), (0x0d, 3, 0, hit), (0x0a, 4, 0, vec![])]);
    stage.expect_rows(0);
}

#[test]
fn an_error_for_joined_reads_is_told_to_each_that_has_no_answer() {
    let (mut stage, link) = Stage::of_one();
    stage.handshake(link);
    let client = stage.client();
    // The last packet is incomplete: it is another request.
    let asked = [getkq("x", 1), getkq("y", 2), getkq("z", 3)].concat();
    stage.says_bytes(client, &asked[..asked.len() - 1]);
    stage.expect_rows(1);
    stage.says_bytes(client, &asked[asked.len() - 1..]);
    stage.says_bytes(client, &noop(4));
    assert_eq!(stage.turn(link), "gets x y z\r\n");
    stage.says(link, "SERVER_ERROR no\r\n");
    assert_eq!(stage.turn(link), "gets x\r\ngets y\r\ngets z\r\n");
    stage.says(link, "VALUE x 0 1 7\r\n1\r\nEND\r\nSERVER_ERROR no\r\n");
    let answers = packets(&stage.received_bytes(client));
    let hit = b"\0\0\0\0x1".to_vec();
    assert_eq!(answers, [(0x0d, 1, 0, hit), (0x0d, 2, 0x84, b"no".to_vec())]);
    stage.says(link, "END\r\n");
    assert_eq!(packets(&stage.received_bytes(client)), [(0x0a, 4, 0, vec![])]);
    stage.says_bytes(client, &asked);
    assert_eq!(stage.turn(link), "gets x y z\r\n");
    stage.closes(link, Closed::Reset);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "gets x\r\ngets y\r\ngets z\r\n", "once more");
    stage.closes(link, Closed::Reset);
    stage.expect_rows(0);
    let answers = packets(&stage.received_bytes(client));
    let told: Vec<(u8, u8)> = answers.iter().map(|answer| (answer.1, answer.2)).collect();
    assert_eq!(told, [(1, 0x86), (2, 0x86), (3, 0x86)]);
}

#[test]
fn a_value_of_another_key_is_no_answer_to_a_single_read() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says_bytes(client, &touch("k", 1));
    assert_eq!(stage.turn(link), "gats 0 k\r\n");
    stage.says(link, "VALUE k 7 1 5\r\na\r\nEND\r\n");
    let told = packets(&stage.received_bytes(client));
    assert_eq!(told, [(0x1c, 1, 0, b"\0\0\0\x07".to_vec())]);
    stage.says_bytes(client, &touch("k", 2));
    assert_eq!(stage.turn(link), "gats 0 k\r\n");
    stage.says(link, "VALUE x 7 1 5\r\na\r\nEND\r\n");
    assert_eq!(stage.closed, [link]);
    let told = packets(&stage.received_bytes(client));
    assert_eq!((told.len(), told[0].1, told[0].2), (1, 2, 0x84), "{told:?}");
}

#[test]
fn a_fault_says_whether_a_change_may_have_been_made() {
    let (mut stage, link) = Stage::of_one();
    stage.handshake(link);
    let client = stage.client();
    stage.says_bytes(client, &set("k", 1));
    assert_eq!(stage.turn(link), "ms k 0 c\r\n\r\n");
    stage.says_bytes(client, &set("k", 2));
    stage.closes(link, Closed::Reset);
    let told: Vec<_> = packets(&stage.received_bytes(client));
    let statuses: Vec<(u8, u8)> = told.iter().map(|answer| (answer.1, answer.2)).collect();
    assert_eq!(statuses, [(1, 0x84), (2, 0x86)], "{told:?}");
}

#[test]
fn gets_that_want_the_cas_number_share_a_message_with_gets_that_do_not() {
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.says(a, "get x\r\n");
    stage.says(b, "gets y\r\n");
    stage.says(a, "get z x\r\nmg y v\r\n");
    assert_eq!(stage.turn(link), "gets x y z x y\r\n");
    let value = |key: &str| format!("VALUE {key} 0 1 7\r\n1\r\n");
    let said: String = ["x", "y", "z", "x", "y"].map(value).concat();
    stage.says(link, &format!("{said}END\r\n"));
    let x = "VALUE x 0 1\r\n1\r\n";
    let z = "VALUE z 0 1\r\n1\r\n";
    assert_eq!(stage.received(a), [x, "END\r\n", z, x, "END\r\n", "VA 1\r\n1\r\n"].concat());
    assert_eq!(stage.received(b), format!("{}END\r\n", value("y")));
}

#[test]
fn a_large_value_of_which_nothing_is_shown_does_not_go_to_its_client() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.stream_min = 10;
        plan.pools[0].preconnect = true;
    });
    let (link, _) = stage.connects.remove(0);
    stage.establishes(link);
    stage.says(link, "VERSION 1.4.13\r\n");
    let a = stage.client();
    // Touch, with a server without meta: a read shows whether the item is there.
    let touch = [&[0x80, 0x1c, 0, 1, 4, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1][..], &[0; 12], b"x"];
    stage.says_bytes(a, &touch.concat());
    assert_eq!(stage.turn(link), "gats 0 x\r\n");
    stage.says(link, "VALUE x 0 12 7\r\nabcde");
    assert!(stage.received_bytes(a).is_empty(), "it has no value to wait for");
    stage.closes(link, Closed::Reset);
    assert!(stage.closed.is_empty());
    assert_eq!(packets(&stage.received_bytes(a)).len(), 1, "it is told that the link was lost");
}

/// Two clients and a link; values of ten bytes or more are streamed.
fn streaming() -> (Stage, ConnId, ConnId, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.stream_min = 10;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    stage.handshake(link);
    let (a, b) = (stage.client(), stage.client());
    (stage, link, a, b)
}

#[test]
fn a_large_value_goes_to_its_client_as_it_comes() {
    let (mut stage, link, a, _) = streaming();
    stage.says(a, "get x\r\n");
    stage.turn(link);
    stage.says(link, "VALUE x 0 12\r\nabcde");
    assert_eq!(stage.received(a), "VALUE x 0 12\r\nabcde");
    stage.says(link, "fgh");
    assert_eq!(stage.received(a), "fgh");
    stage.says(link, "ijkl\r");
    assert_eq!(stage.received(a), "ijkl");
    stage.says(link, "\nEND\r\n");
    assert_eq!(stage.received(a), "\r\nEND\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_meta_value_goes_to_its_client_as_it_comes() {
    let (mut stage, link, a, _) = streaming();
    stage.says(a, "mg x v t O7\r\n");
    assert_eq!(stage.turn(link), "mg x v t O7\r\n");
    stage.says(link, "VA 12 t-1 O7\r\nabcde");
    assert_eq!(stage.received(a), "VA 12 t-1 O7\r\nabcde");
    stage.says(link, "fghijkl\r\n");
    assert_eq!(stage.received(a), "fghijkl\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_client_that_has_a_part_of_a_value_is_closed_with_its_link_and_no_other_is() {
    let (mut stage, link, a, b) = streaming();
    stage.says(a, "get x\r\nset y 0 0 1\r\n1\r\n");
    stage.says(b, "get z\r\n");
    stage.turn(link);
    stage.says(link, "VALUE x 0 12\r\nabcde");
    assert_eq!(stage.received(a), "VALUE x 0 12\r\nabcde");
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.closed, [a]);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get z\r\n", "asked once more");
    stage.says(link, "VALUE z 0 12\r\nabcdefghijkl\r\nEND\r\n");
    assert_eq!(stage.received(b), "VALUE z 0 12\r\nabcdefghijkl\r\nEND\r\n");
    stage.expect_rows(0);
}

#[test]
fn what_a_client_was_told_before_it_is_cut_off_reaches_it() {
    let (mut stage, link, a, b) = streaming();
    stage.says(a, "get y\r\nget x\r\nset y 0 0 1\r\n1\r\nset z 0 0 1 noreply\r\n1\r\n");
    stage.says(b, "get z\r\n");
    stage.turn(link);
    stage.says(link, "VALUE y 0 1\r\n1\r\nVALUE x 0 12\r\nabcde");
    stage.closes(link, Closed::Reset);
    assert!(stage.closed.is_empty());
    assert_eq!(stage.received(a), "VALUE y 0 1\r\n1\r\nEND\r\nVALUE x 0 12\r\nabcde");
    assert_eq!(stage.closed, [a]);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get z\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(b), "END\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_value_with_a_wrong_end_closes_whoever_has_a_part_of_it() {
    let (mut stage, link, a, _) = streaming();
    stage.says(a, "get x\r\n");
    stage.turn(link);
    stage.says(link, "VALUE x 0 12\r\nabcde");
    stage.says(link, "fghijklmn");
    assert_eq!(stage.closed, [link]);
    assert_eq!(stage.received(a), "VALUE x 0 12\r\nabcdefghijkl");
    assert_eq!(stage.closed, [link, a]);
    stage.expect_rows(0);
}

#[test]
fn a_value_whose_turn_has_not_come_gathers_and_its_client_can_be_told_an_error() {
    let (mut stage, link, a, _) = streaming();
    // The other server's answer is not there yet.
    stage.says(a, "incr n 1\r\nget x\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\nget x\r\n");
    stage.says(a, "get x y\r\n");
    stage.turn(link);
    stage.says(link, "1\r\nVALUE x 0 12\r\nabcdefghijkl\r\nEND\r\nVALUE x 0 12\r\nabc");
    assert_eq!(stage.received(a), "1\r\nVALUE x 0 12\r\nabcdefghijkl\r\nEND\r\n");
    stage.closes(link, Closed::Reset);
    assert!(stage.closed.is_empty());
}

#[test]
fn a_value_goes_on_for_the_others_when_its_client_has_left() {
    let (mut stage, link, a, b) = streaming();
    stage.says(a, "get x\r\n");
    stage.says(b, "get y\r\n");
    stage.turn(link);
    stage.says(link, "VALUE x 0 12\r\nabcde");
    stage.closes(a, Closed::Reset);
    stage.says(link, "fghijkl\r\nVALUE y 0 1\r\n1\r\nEND\r\n");
    assert_eq!(stage.received(b), "VALUE y 0 1\r\n1\r\nEND\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_client_that_does_not_read_its_megabyte_holds_up_nobody() {
    let (mut stage, link) = Stage::of_one();
    let (slow, other) = (stage.client(), stage.client());
    stage.install(|plan| plan.memory_max = 4 << 20);
    stage.says(slow, "get x\r\n");
    stage.says(other, "get y\r\n");
    stage.turn(link);
    let piece = "v".repeat(40_000);
    stage.says(link, "VALUE x 0 1000000\r\n");
    // Nothing is written to the client; each piece pins a block of its own.
    (0..25).for_each(|_| stage.says(link, &piece));
    stage.says(link, "\r\nVALUE y 0 1\r\n1\r\nEND\r\n");
    assert_eq!(stage.received(other), "VALUE y 0 1\r\n1\r\nEND\r\n");
    let held = stage.memory();
    assert!((1_000_000..1_100_000).contains(&held), "{held} bytes are held");
    assert_eq!(stage.received(slow).len(), "VALUE x 0 1000000\r\n\r\nEND\r\n".len() + 1_000_000);
    assert_eq!(stage.memory(), 0);
}

/// The value came whole, so only its client gets the error: the link goes on.
#[test]
fn a_single_value_that_comes_whole_and_passes_the_memory_ceiling_is_an_error() {
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.install(|plan| plan.memory_max = 64 << 10);
    let large = "v".repeat(40_000);
    stage.says(a, "get x\r\n");
    stage.turn(link);
    let kept = format!("VALUE x 0 40000\r\n{large}\r\nEND\r\n");
    stage.says(link, &kept);
    assert!(stage.memory() > 40_000, "{} bytes are held", stage.memory());
    stage.says(b, "mg y v t\r\n");
    assert_eq!(stage.turn(link), "mg y v t\r\n");
    stage.says(link, &format!("VA 40000 t-1\r\n{large}\r\n"));
    let told = stage.received(b);
    assert_eq!(told, "SERVER_ERROR s0: out of memory holding the reply\r\n");
    assert_eq!(stage.closed, []);
    assert_eq!(stage.received(a), kept);
    stage.says(b, "mg y v t\r\n");
    assert_eq!(stage.turn(link), "mg y v t\r\n");
    stage.says(link, "VA 1 t-1\r\ny\r\n");
    assert_eq!(stage.received(b), "VA 1 t-1\r\ny\r\n");
}

#[test]
fn a_server_that_closes_at_meta_commands_is_soon_asked_none() {
    let (mut stage, mut link) = Stage::of_one();
    let client = stage.client();
    for _ in 0..2 {
        // A command that it passes on without closing proves nothing about meta.
        stage.handshake(link);
        stage.says(client, "mg k t\r\n");
        assert_eq!(stage.turn(link), "mg k t\r\n");
        stage.closes(link, Closed::Eof);
        assert!(stage.received(client).starts_with("SERVER_ERROR s0: connection lost"));
        stage.says(client, "get k\r\n");
        link = stage.connect(0);
        assert_eq!(stage.turn(link), "get k\r\n");
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(client), "END\r\n");
    }
    assert_eq!(stage.events, [Event::CapabilityLost { server: S0 }]);
    stage.says(client, "mg k t\r\n");
    assert!(stage.received(client).starts_with("CLIENT_ERROR refused by the proxy"));
    assert_eq!(stage.turn(link), "");
    stage.install(|_| {});
    stage.says(client, "mg k t\r\n");
    let told = stage.received(client);
    assert!(told.starts_with("CLIENT_ERROR refused"), "a link that is up makes no handshake");
    stage.closes(link, Closed::Eof);
    stage.says(client, "mg k t\r\n");
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "mg k t\r\n", "another plan gives it another chance");
    stage.says(link, "HD t-1\r\n");
    assert_eq!(stage.received(client), "HD t-1\r\n");
}

#[test]
fn a_barrier_that_waits_is_answered_with_its_own_opaque() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    // A quiet set, and the barrier behind it.
    let quiet_set = packet(0x11, 8, "x", 8);
    stage.says_bytes(client, &[quiet_set, noop(9)].concat());
    assert!(stage.turn(link).contains(" x "));
    assert_eq!(stage.received_bytes(client), b"");
    stage.says(link, "STORED\r\n");
    assert_eq!(packets(&stage.received_bytes(client)), [(0x0a, 9, 0, vec![])]);
}

/// It reads all of them: nothing is owed to it.
#[test]
fn a_client_that_has_read_its_answers_is_never_paused_for_them() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let keys: Vec<String> = (0..50).map(|n| format!("key-{n}")).collect();
    let line = format!("get {}\r\n", keys.join(" "));
    let value = "x".repeat(100);
    let hit = |key: &str| format!("VALUE {key} 0 100\r\n{value}\r\n");
    let hits: String = keys.iter().map(|key| hit(key)).collect();
    for round in 0..1_000 {
        stage.says(client, &line);
        let mut asked = 0;
        // The first time, the lengths of the answers are not known, and some of the keys wait.
        while asked < keys.len() {
            let sent = stage.turn(link);
            for line in sent.lines() {
                let keys: Vec<&str> = line.split(' ').skip(1).collect();
                asked += keys.len();
                let hits: String = keys.into_iter().map(hit).collect();
                stage.says(link, &format!("{hits}END\r\n"));
            }
            assert!(!sent.is_empty() && (round == 0 || asked == keys.len()), "round {round}");
        }
        assert_eq!(stage.received(client), format!("{hits}END\r\n"));
        assert_eq!(stage.paused, [], "after {round} answers");
    }
}

#[test]
fn a_key_that_is_read_alone_is_counted_as_found_or_missed() {
    use metrics::PoolCounter;
    for (reply, hits, misses) in [("VA 1 t-1\r\nx\r\n", 1, 0), ("EN\r\n", 0, 1)] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, "mg k t v\r\n");
        assert_eq!(stage.turn(link), "mg k t v\r\n");
        stage.says(link, reply);
        assert_eq!(stage.received(client), reply);
        let total = |counter| stage.registry.total(POOL, counter);
        let counted =
            (total(PoolCounter::KeysAsked), total(PoolCounter::Hits), total(PoolCounter::Misses));
        assert_eq!(counted, (1, hits, misses), "{reply:?}");
    }
}

#[test]
fn the_first_mark_in_a_pool_is_told_of_and_no_other() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    for _ in 0..2 {
        stage.says(client, "md x I\r\n");
        stage.turn(link);
        stage.says(link, "HD\r\n");
        assert_eq!(stage.received(client), "HD\r\n");
        assert_eq!(stage.events, [Event::Marked { pool: POOL }]);
    }
}
