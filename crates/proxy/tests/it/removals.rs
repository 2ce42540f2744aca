//! Stories of values that are too large or have no memory: the old values of their keys are
//! removed, as memcached does.

use proxy::{Closed, ConnId};

use crate::stage::{SECOND, Stage};

const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const KEPT: &str = "SERVER_ERROR object too large for cache, old value kept\r\n";

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
        stage.says(client, "set k 0 0 1000\r\nx");
    }
    assert_eq!(stage.turn(link), "delete k\r\n");
    stage.says(link, "DELETED\r\n");
    let words = "SERVER_ERROR out of memory storing object\r\n";
    assert_eq!(clients.map(|client| stage.received(client)), ["", "", words]);
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
