//! Stories of values that are too large or have no memory: the old values of their keys are
//! removed, as memcached does.

use metrics::PoolCounter;
use proxy::{Closed, ConnId, Event};

use crate::stage::{POOL, SECOND, Stage};

const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object\r\n";
const KEPT: &str = "SERVER_ERROR object too large for cache, old value kept\r\n";

/// A pool of which clients fill the memory soon.
fn narrow() -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.memory_max = 100_000;
        plan.limits.client_outbox = 80_000;
        plan.pools[0].preconnect = true;
        plan.pools[0].timeouts.write = 60 * SECOND;
    });
    let link = stage.connect(0);
    stage.handshake(link);
    (stage, link)
}

/// A pool whose values have at most 100 bytes.
fn small() -> (Stage, ConnId) {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.preconnect = true;
        pool.item_size_max = 100;
    });
    let link = stage.connect(0);
    stage.handshake(link);
    (stage, link)
}

fn data() -> String {
    format!("{}\r\n", "d".repeat(101))
}

/// A packet with a value of 101 bytes.
fn packet(opcode: u8, extras: u8, key: &[u8]) -> Vec<u8> {
    let (key_len, total) = (key.len() as u8, extras + key.len() as u8 + 101);
    let header = [0x80, opcode, 0, key_len, extras, 0, 0, 0, 0, 0, 0, total, 0, 0, 0, 7];
    [&header[..], &[0; 8], &vec![0; extras.into()], key, &[b'd'; 101]].concat()
}

#[test]
fn a_value_too_large_removes_the_old_one() {
    let (mut stage, link) = small();
    let client = stage.client();
    stage.says(client, "get k\r\nset k 0 0 101\r\n");
    assert_eq!(stage.turn(link), "get k\r\ndelete k\r\n", "at once, in its client's order");
    stage.says(client, &data());
    stage.says(client, "get k\r\n");
    assert_eq!(stage.turn(link), "get k\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(client), "END\r\n", "it is told when the old value is gone");
    stage.says(link, "DELETED\r\nEND\r\n");
    assert_eq!(stage.received(client), [TOO_LARGE, "END\r\n"].concat());
    stage.expect_rows(0);
}

#[test]
fn a_value_too_large_removes_the_old_one_where_memcached_does() {
    for (head, sent, said) in [
        ("set k 0 0 101", "delete k\r\n", "NOT_FOUND\r\n"),
        ("set k 0 0 101 noreply", "delete k\r\n", "DELETED\r\n"),
        ("ms k 101", "delete k\r\n", "DELETED\r\n"),
        ("ms k 101 ME q", "delete k\r\n", "DELETED\r\n"),
        ("ms k 101 C5 T9 O1", "delete k\r\n", "DELETED\r\n"),
        ("ms aw== 101 b MA", "delete k\r\n", "DELETED\r\n"),
        ("ms IA== 101 b", "md IA== b\r\n", "HD\r\n"),
        ("add k 0 0 101", "", ""),
        ("add k 0 0 101 noreply", "", ""),
        ("replace k 0 0 101", "", ""),
        ("append k 0 0 101", "", ""),
        ("prepend k 0 0 101", "", ""),
        ("cas k 0 0 101 7", "", ""),
    ] {
        let (mut stage, link) = small();
        let client = stage.client();
        stage.says(client, &format!("{head}\r\n{}", data()));
        assert_eq!(stage.turn(link), sent, "{head}");
        stage.says(link, said);
        let told = if head.ends_with("noreply") { "" } else { TOO_LARGE };
        assert_eq!(stage.received(client), told, "{head}");
        stage.expect_rows(0);
    }
}

#[test]
fn a_binary_value_too_large_removes_the_old_one_where_memcached_does() {
    for (opcode, extras, key, sent, said) in [
        (0x01, 8, &b"k"[..], "delete k\r\n", "DELETED\r\n"),
        (0x11, 8, b"k", "delete k\r\n", "NOT_FOUND\r\n"),
        (0x01, 8, b" ", "md IA== b\r\n", "HD\r\n"),
        (0x02, 8, b"k", "", ""),
        (0x12, 8, b"k", "", ""),
        (0x03, 8, b"k", "", ""),
        (0x0e, 0, b"k", "", ""),
        (0x1a, 0, b"k", "", ""),
    ] {
        let (mut stage, link) = small();
        let client = stage.client();
        stage.says_bytes(client, &packet(opcode, extras, key));
        assert_eq!(stage.turn(link), sent, "{opcode:#x}");
        stage.says(link, said);
        let told = stage.received_bytes(client);
        assert_eq!((told[1], told[7], told[15]), (opcode, 3, 7), "{opcode:#x}");
        assert_eq!(&told[24..], b"Too large.", "{opcode:#x}");
        stage.expect_rows(0);
    }
}

#[test]
fn a_value_refused_for_want_of_memory_removes_the_old_one() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.memory_max = 2_500;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    let clients = [stage.client(), stage.client(), stage.client()];
    for client in clients {
        stage.says(client, &format!("set k 0 0 1000\r\n{}", "x".repeat(900)));
    }
    assert_eq!(stage.turn(link), "delete k\r\n");
    stage.says(link, "DELETED\r\n");
    assert_eq!(clients.map(|client| stage.received(client)), ["", "", NO_MEMORY]);
}

/// There was memory when its head came, and there is none for what comes now.
#[test]
fn a_value_that_has_come_in_part_is_refused_for_want_of_memory_and_its_rest_is_skipped() {
    for (command, removal) in [("set k 0 0", "delete k\r\n"), ("add k 0 0", "")] {
        let mut stage = Stage::of(&["s0"], |plan| {
            plan.memory_max = 2_500;
            plan.pools[0].preconnect = true;
        });
        let link = stage.connect(0);
        stage.handshake(link);
        let [first, second] = [stage.client(), stage.client()];
        for client in [first, second] {
            stage.says(client, &format!("{command} 2000\r\n{}", "x".repeat(400)));
        }
        stage.says(second, &"x".repeat(1_500));
        assert_eq!((stage.turn(link), stage.received(first)), (String::new(), String::new()));
        stage.says(first, &"x".repeat(700));
        assert_eq!(stage.turn(link), removal, "there is no room for all of it");
        if !removal.is_empty() {
            stage.says(link, "DELETED\r\n");
        }
        assert_eq!(stage.received(first), NO_MEMORY);
        assert!(stage.memory() < 2_000, "what had come is dropped: {}", stage.memory());
        // The rest of it is no request, and what follows is one.
        stage.says(first, &format!("{}\r\n", "x".repeat(900)));
        stage.says(first, "get k\r\n");
        assert_eq!(stage.turn(link), "get k\r\n");
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(first), "END\r\n");
        // The other has its room.
        stage.says(second, &format!("{}\r\n", "x".repeat(100)));
        assert!(stage.turn(link).starts_with(command));
        stage.says(link, "STORED\r\n");
        assert_eq!((stage.received(second).as_str(), stage.memory()), ("STORED\r\n", 0));
    }
}

/// A client that announces much and sends little keeps nobody's memory.
#[test]
fn heads_of_large_values_take_no_memory_from_others() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.memory_max = 50_000;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    stage.handshake(link);
    for _ in 0..5 {
        let client = stage.client();
        stage.says(client, "set k 0 0 40000\r\nx");
        assert_eq!(stage.received(client), "");
    }
    let client = stage.client();
    let set = format!("set k 0 0 30000\r\n{}\r\n", "x".repeat(30_000));
    stage.says(client, &set[..20_000]);
    stage.says(client, &set[20_000..]);
    assert_eq!(stage.turn(link), set);
    stage.says(link, "STORED\r\n");
    assert_eq!(stage.received(client), "STORED\r\n");
}

#[test]
fn a_value_too_large_tells_that_the_old_one_is_kept() {
    // The server refuses the removal.
    let (mut stage, link) = small();
    let client = stage.client();
    let set = format!("set k 0 0 101\r\n{}", data());
    stage.says(client, &set);
    assert_eq!(stage.turn(link), "delete k\r\n");
    stage.says(link, "SERVER_ERROR busy\r\n");
    assert_eq!(stage.received(client), KEPT);
    // The server is down.
    stage.says(client, "get k\r\n");
    stage.turn(link);
    stage.waits(3 * SECOND);
    stage.received(client);
    stage.says(client, &set);
    stage.says_bytes(client, b"version\r\n");
    stage.end_turn();
    let told = stage.received(client);
    assert!(told.starts_with(KEPT), "{told}");
    assert_eq!(told.lines().count(), 2);
    let binary = stage.client();
    stage.says_bytes(binary, &packet(0x01, 8, b"k"));
    let told = stage.received_bytes(binary);
    assert_eq!((told[7], &told[24..]), (3, &b"Too large, old value kept."[..]));
    stage.expect_rows(0);
}

#[test]
fn a_removal_that_may_have_been_done_is_not_sent_again() {
    let (mut stage, link) = small();
    let client = stage.client();
    stage.says(client, &format!("set k 0 0 101\r\n{}", data()));
    assert_eq!(stage.turn(link), "delete k\r\n");
    stage.closes(link, Closed::Reset);
    let unknown =
        "SERVER_ERROR object too large for cache; s0: connection lost, outcome unknown\r\n";
    assert_eq!(stage.received(client), unknown);
    stage.says(client, "get other\r\n");
    stage.end_turn();
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get other\r\n");
}

/// The form of the removal depends on the server's capabilities, which are not known yet.
#[test]
fn a_value_too_large_waits_for_what_its_server_can_do() {
    for (version, sent, told) in
        [("VERSION 1.6.18\r\n", "md IA== b\r\n", TOO_LARGE), ("VERSION 1.4.15\r\n", "", KEPT)]
    {
        let mut stage = Stage::new(&["s0"], |pool| pool.item_size_max = 100);
        let client = stage.client();
        stage.says(client, &format!("ms IA== 101 b\r\n{}mn\r\n", data()));
        stage.end_turn();
        assert_eq!(stage.received(client), "");
        let link = stage.connects.remove(0).0;
        stage.establishes(link);
        stage.says(link, version);
        stage.end_turn();
        assert_eq!(stage.turn(link), sent, "{version}");
        stage.says(link, if sent.is_empty() { "" } else { "NF\r\n" });
        assert_eq!(stage.received(client), format!("{told}MN\r\n"), "{version}");
        stage.expect_rows(0);
    }
}

/// Sends a set of 100,000 bytes, of which the kernel takes the first 10,000; returns the length of
/// all of it.
fn set_of_which_some_is_sent(stage: &mut Stage, client: ConnId, link: ConnId) -> usize {
    let set = format!("set x 0 0 100000\r\n{}\r\n", "x".repeat(100_000));
    stage.says(client, &set);
    stage.end_turn();
    assert_eq!(stage.received_some(link, 10_000).len(), 10_000);
    set.len()
}

/// A server of which the limit is smaller than ours: it passes over the value as it comes.
#[test]
fn a_server_may_refuse_a_value_by_its_head_and_its_link_goes_on() {
    let (mut stage, link) = Stage::of_one();
    let [client, other] = [stage.client(), stage.client()];
    let len = set_of_which_some_is_sent(&mut stage, client, link);
    stage.says(client, "get x\r\n");
    stage.says(other, "get y\r\n");
    stage.end_turn();
    stage.says(link, TOO_LARGE);
    assert_eq!(stage.received(client), TOO_LARGE);
    let rest = stage.received_some(link, len - 10_000);
    assert_eq!(rest.trim_start_matches('x'), "\r\n", "the rest of the value");
    assert_eq!(stage.turn(link), "get x y\r\n");
    stage.says(link, "VALUE y 0 1\r\n2\r\nEND\r\n");
    assert_eq!(stage.received(client), "END\r\n");
    assert_eq!(stage.received(other), "VALUE y 0 1\r\n2\r\nEND\r\n");
    assert_eq!(stage.closed, []);
}

/// After any other line the server may read what is left as requests, so none of that is sent.
#[test]
fn any_other_early_answer_is_not_believed() {
    for early in [
        "STORED\r\n",
        "S",
        "STOR",
        "ERROR\r\n",
        "CLIENT_ERROR bad data chunk\r\n",
        "SERVER_ERROR out of memory reading request\r\n",
        "SERVER_ERROR object too large for cache\r\nEND\r\n",
        "SERVER_ERROR object too large for cache\r\nSERVER_ERROR object too large for cache\r\n",
        "SERVER_ERROR object too large for cache\r\nE",
    ] {
        let (mut stage, link) = Stage::of_one();
        let [client, other] = [stage.client(), stage.client()];
        set_of_which_some_is_sent(&mut stage, client, link);
        stage.says(other, "get y\r\n");
        stage.says(link, early);
        if early == "S" {
            assert_eq!(stage.closed, [], "it may become one that is believed");
            stage.says(link, "TORED\r\n");
        }
        assert_eq!(stage.closed, [link], "{early:?}");
        let told = stage.received(client);
        assert_eq!(told.matches("\r\n").count(), 1, "{told:?} for {early:?}");
        let next = stage.connect(0);
        stage.comes_up(next);
        assert_eq!(stage.turn(next), "get y\r\n", "it was not sent");
    }
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    // Nothing of it is sent, or it has no value that could be passed over.
    for asked in ["set x 0 0 1\r\n1\r\n", "get x y z\r\n"] {
        stage.says(client, asked);
        stage.end_turn();
        let link = match asked.starts_with("set") {
            true => link,
            false => {
                let next = stage.connect(0);
                stage.comes_up(next);
                stage.end_turn();
                stage.received_some(next, 5);
                next
            }
        };
        stage.closed.clear();
        stage.says(link, TOO_LARGE);
        assert_eq!(stage.closed, [link], "{asked:?}");
        stage.received(client);
    }
}

/// A reload may take the server away meanwhile.
#[test]
fn a_link_that_retires_waits_for_the_rest_of_a_refused_value_and_no_longer() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let len = set_of_which_some_is_sent(&mut stage, client, link);
    stage.install(|plan| plan.pools[0].servers.clear());
    stage.says(link, TOO_LARGE);
    assert_eq!((stage.received(client).as_str(), &stage.closed), (TOO_LARGE, &vec![]));
    assert_eq!(stage.received_some(link, len - 10_001).len(), len - 10_001);
    assert_eq!(stage.closed, []);
    assert_eq!(stage.received_some(link, 1), "\n");
    assert_eq!(stage.closed, [link]);
}

/// The rest of the value is still owed to the server: if the kernel takes no more of it, nobody
/// else waits behind it for ever.
#[test]
fn a_server_that_refuses_a_value_and_reads_no_more_loses_its_link() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    set_of_which_some_is_sent(&mut stage, client, link);
    stage.says(link, TOO_LARGE);
    assert_eq!(stage.received(client), TOO_LARGE);
    stage.passes(SECOND - 1);
    assert_eq!(stage.closed, []);
    stage.passes(1);
    assert_eq!(stage.closed, [link]);
    assert_eq!(stage.received(client), "", "it has its answer");
}

/// Of what waits behind the rest, nothing was sent.
#[test]
fn a_link_that_ends_after_an_early_refusal_takes_nothing_from_others() {
    let (mut stage, link) = Stage::of_one();
    let [client, other] = [stage.client(), stage.client()];
    set_of_which_some_is_sent(&mut stage, client, link);
    stage.says(other, "incr n 1\r\n");
    stage.end_turn();
    stage.says(link, TOO_LARGE);
    stage.closes(link, Closed::Eof);
    assert_eq!(stage.received(client), TOO_LARGE);
    let next = stage.connect(0);
    stage.comes_up(next);
    assert_eq!(stage.turn(next), "incr n 1\r\n", "none of it was sent");
    stage.says(next, "5\r\n");
    assert_eq!(stage.received(other), "5\r\n");
    assert_eq!(stage.received(client), "");
}

/// The bytes of a large value that have come take memory until its client goes on.
#[test]
fn a_client_that_stops_in_a_large_value_is_closed_where_memory_is_short() {
    let (mut stage, link) = narrow();
    let [large, larger, slow] = [stage.client(), stage.client(), stage.client()];
    stage.says(large, &format!("set a 0 0 30000\r\n{}", "x".repeat(20_000)));
    stage.passes(10 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [], "there is enough");
    stage.says(larger, &format!("set b 0 0 40000\r\n{}", "x".repeat(30_000)));
    stage.passes(10 * SECOND - 1);
    stage.says(slow, &format!("set c 0 0 40000\r\n{}", "x".repeat(39_000)));
    stage.end_turn();
    assert_eq!(stage.closed, [large], "of the two that are there for long");
    stage.passes(SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [large, larger]);
    stage.passes(20 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [large, larger], "there is enough again");
    stage.says(slow, &format!("{}\r\n", "x".repeat(1_000)));
    assert!(stage.turn(link).starts_with("set c 0 0 40000\r\n"));
    assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsStalled), 2);
}

/// They are given up in one look, and the log has one line for them.
#[test]
fn all_clients_that_stop_in_a_value_are_closed_at_once_until_there_is_memory() {
    let (mut stage, _) = narrow();
    let clients: Vec<_> = (0..8).map(|_| stage.client()).collect();
    for (nth, client) in clients.iter().enumerate() {
        stage.says(*client, &format!("set a 0 0 20000\r\n{}", "x".repeat(8_000 + 500 * nth)));
    }
    stage.events.clear();
    stage.passes(10 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [clients[7], clients[6], clients[5]], "the largest");
    assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsStalled), 3);
    let lines = stage.events.iter().filter(|event| matches!(event, Event::ClientStalled { .. }));
    assert_eq!(lines.count(), 1);
}

/// The memory is with clients that read slowly; to close the small ones would give nothing back.
#[test]
fn nobody_is_closed_for_the_memory_that_others_hold() {
    let (mut stage, link) = narrow();
    let [small, reader] = [stage.client(), stage.client()];
    stage.says(small, &format!("set a 0 0 3000\r\n{}", "x".repeat(2_000)));
    stage.says(reader, "get a\r\n");
    stage.turn(link);
    stage.says(link, &format!("VALUE a 0 70000\r\n{}\r\nEND\r\n", "x".repeat(70_000)));
    for _ in 0..10 {
        stage.passes(10 * SECOND);
        assert_eq!(stage.received_some(reader, 10).len(), 10);
        stage.end_turn();
        assert_eq!(stage.closed, []);
    }
    // It takes nothing any more.
    stage.passes(60 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [reader]);
    assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsUnread), 1);
    stage.says(small, &format!("{}\r\n", "x".repeat(1_000)));
    assert!(stage.turn(link).starts_with("set a 0 0 3000\r\n"));
}

/// The beginning of a small request hides nothing.
#[test]
fn one_that_reads_nothing_and_stops_in_a_request_is_closed_for_what_it_holds() {
    let (mut stage, link) = narrow();
    let client = stage.client();
    stage.says(client, "get a\r\n");
    stage.turn(link);
    stage.says(link, &format!("VALUE a 0 70000\r\n{}\r\nEND\r\n", "x".repeat(70_000)));
    stage.received_some(client, 10);
    stage.says(client, &format!("set a 0 0 3000\r\n{}", "x".repeat(2_000)));
    stage.passes(59 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, []);
    stage.passes(SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [client]);
    assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsUnread), 1);
}

/// A worker that was stopped has not read what has come.
#[test]
fn nobody_is_closed_for_a_time_in_which_the_worker_read_nothing() {
    let (mut stage, _) = narrow();
    let client = stage.client();
    stage.end_turn();
    stage.says(client, &format!("set a 0 0 90000\r\n{}", "x".repeat(60_000)));
    stage.passes(15 * SECOND);
    stage.note_work(15 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, []);
    stage.passes(10 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [client]);
}

/// A tenant that has more than its part gets no more requests; what has come of one goes on as long
/// as others have room.
#[test]
fn a_value_of_a_group_that_is_over_its_part_goes_on_while_there_is_room() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.memory_max = 100_000;
        plan.pools[0].preconnect = true;
        let mut other = plan.pools[0].clone();
        other.protocol = proto::protocol("redis").expect("the table has it");
        other.preconnect = false;
        plan.pools.push(other);
        plan.number();
    });
    let link = stage.connect(0);
    stage.handshake(link);
    let other = stage.plan.pools[1].id;
    let other = stage.accept_at(other).expect("there is room");
    stage.says(other, "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$5\r\nab");
    let [holder, small, whole] = [stage.client(), stage.client(), stage.client()];
    let set = format!("set k 0 0 10000\r\n{}\r\n", "v".repeat(10_000));
    stage.says(whole, &set[..9_000]);
    stage.says(small, &set[..5_000]);
    stage.says(holder, &format!("set k 0 0 70000\r\n{}", "x".repeat(50_000)));
    stage.passes(SECOND);
    stage.end_turn();
    let new = stage.client();
    stage.says(new, &set[..5_000]);
    assert_eq!(stage.turn(link), "delete k\r\n");
    stage.says(link, "DELETED\r\n");
    assert_eq!(stage.received(new), NO_MEMORY);
    stage.says(small, &set[5_000..7_000]);
    stage.says(small, &set[7_000..]);
    assert_eq!(stage.turn(link), set);
    assert_eq!([holder, small, whole].map(|client| stage.received(client)), ["", "", ""]);
}
