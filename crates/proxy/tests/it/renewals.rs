//! Requests that were queued for a link when its server closed it, and their new connection.

use proxy::plan::PoolPlan;
use proxy::{Closed, ConnId};

use crate::stage::{SECOND, Stage};

const LOST: &str = "SERVER_ERROR s0: connection lost, not sent\r\n";
const UNKNOWN: &str = "SERVER_ERROR s0: connection lost, outcome unknown\r\n";

/// A server whose link has been used, and is idle.
fn idle(set: impl FnOnce(&mut PoolPlan)) -> (Stage, ConnId) {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.preconnect = true;
        set(pool);
    });
    let link = stage.connect(0);
    stage.handshake(link);
    (stage, link)
}

#[test]
fn a_change_that_meets_the_end_of_an_idle_link_moves_to_another() {
    for how in [Closed::Eof, Closed::Reset] {
        let (mut stage, link) = idle(|_| {});
        let client = stage.client();
        stage.says(client, "incr n 1\r\n");
        stage.closes(link, how);
        assert_eq!(stage.received(client), "");
        let another = stage.connect(0);
        assert_eq!(stage.turn(another), "incr n 1\r\n", "{how:?}");
        stage.says(another, "1\r\n");
        assert_eq!(stage.received(client), "1\r\n");
        stage.expect_rows(0);
    }
}

/// It has been up for no second, and has answered nothing. A second one shows what its server is.
#[test]
fn a_change_that_meets_the_end_of_a_young_link_moves_once() {
    for is_lost_again in [false, true] {
        let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
        let (link, client) = (stage.connect(0), stage.client());
        stage.says(client, "incr n 1\r\n");
        stage.closes(link, Closed::Reset);
        assert_eq!(
            (stage.received(client), stage.healths()),
            (String::new(), vec!["s0 ready".into()])
        );
        let another = stage.connect(0);
        if is_lost_again {
            stage.closes(another, Closed::Reset);
            assert_eq!(stage.received(client), LOST);
            assert!(stage.connects.len() <= 1, "one more shows whether the server works");
            continue;
        }
        assert_eq!(stage.turn(another), "incr n 1\r\n");
        stage.says(another, "1\r\n");
        assert_eq!(stage.received(client), "1\r\n");
        stage.expect_rows(0);
    }
}

#[test]
fn requests_that_move_keep_their_order_and_leave_once() {
    let (mut stage, link) = idle(|_| {});
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, "get x\r\n");
    stage.says(one, "delete x noreply\r\nset x 0 0 1\r\na\r\n");
    stage.says(other, "get y\r\n");
    stage.says(one, "get x\r\n");
    stage.closes(link, Closed::Eof);
    let another = stage.connect(0);
    let sent = "get x\r\ndelete x\r\nset x 0 0 1\r\na\r\nget y x\r\n";
    assert_eq!(stage.turn(another), sent);
    stage.says(
        another,
        "END\r\nDELETED\r\nSTORED\r\nVALUE y 0 1\r\nb\r\nVALUE x 0 1\r\na\r\nEND\r\n",
    );
    assert_eq!(stage.received(one), "END\r\nSTORED\r\nVALUE x 0 1\r\na\r\nEND\r\n");
    assert_eq!(stage.received(other), "VALUE y 0 1\r\nb\r\nEND\r\n");
    assert_eq!(stage.turn(another), "");
    stage.expect_rows(0);
}

/// They stand in their client's queue and not in the link's output.
#[test]
fn requests_that_wait_for_room_on_the_link_move_as_well() {
    let mut stage = Stage::of(&["s0"], |plan| {
        (plan.limits.inflight, plan.pools[0].preconnect) = (30_000, true);
    });
    let link = stage.connect(0);
    stage.handshake(link);
    let client = stage.client();
    let value = "v".repeat(40_000);
    let set = |key| format!("set {key} 0 0 40000\r\n{value}\r\n");
    stage.says(client, &["a", "b", "c"].map(set).concat());
    stage.closes(link, Closed::Eof);
    let another = stage.connect(0);
    let first = stage.turn(another);
    assert!(first.starts_with(&set("a")) && !first.contains("set c "), "the limit is in force");
    stage.says(another, "STORED\r\n");
    let mut rest = stage.turn(another);
    stage.says(another, "STORED\r\n");
    rest += &stage.turn(another);
    stage.says(another, "STORED\r\n");
    assert_eq!(first + &rest, ["a", "b", "c"].map(set).concat());
    assert_eq!(stage.received(client), "STORED\r\n".repeat(3));
    stage.expect_rows(0);
    assert_eq!(stage.memory(), 0);
}

/// The server would be asked for connections without end.
#[test]
fn a_connection_that_ends_with_its_handshake_is_not_followed_by_another() {
    let (mut stage, link) = idle(|_| {});
    let client = stage.client();
    stage.says(client, "incr n 1\r\n");
    stage.closes(link, Closed::Eof);
    for _ in 0..2 {
        assert_eq!(stage.received(client), "");
        let another = stage.connect(0);
        stage.closes(another, Closed::Eof);
    }
    assert_eq!(stage.received(client), LOST);
    // One shows whether the server is there, and no others at once.
    let judge = stage.connect(0);
    stage.closes(judge, Closed::Eof);
    assert_eq!(stage.connects, []);
    stage.expect_rows(0);
}

#[test]
fn a_server_that_is_gone_is_told_as_one_that_refuses_connections() {
    let (mut stage, link) = idle(|_| {});
    let client = stage.client();
    stage.says(client, "incr n 1\r\n");
    stage.closes(link, Closed::Eof);
    let (another, _) = stage.connects[0];
    stage.closes(another, Closed::Reset);
    assert_eq!(stage.received(client), "SERVER_ERROR s0: connect failed\r\n");
    stage.expect_rows(0);
}

#[test]
fn what_moves_keeps_its_deadline() {
    let (mut stage, link) = idle(|pool| {
        (pool.timeouts.queue, pool.timeouts.connect) = (SECOND, 10 * SECOND);
    });
    let client = stage.client();
    stage.says(client, "incr n 1\r\n");
    stage.closes(link, Closed::Eof);
    stage.end_turn();
    let (another, _) = stage.connects[0];
    stage.connecting(another, 0);
    stage.passes(SECOND + SECOND / 10);
    let told = stage.received(client);
    assert!(told.ends_with("not sent\r\n"), "{told:?}");
    assert!(!stage.turn(another).contains("incr"));
    stage.expect_rows(0);
}

/// Nothing of theirs was sent, whatever the server owes to another client.
#[test]
fn a_link_that_ends_costs_only_those_who_are_owed_something_there() {
    let (mut stage, link) = idle(|_| {});
    let [owed, changes, reads] = [(); 3].map(|()| stage.client());
    stage.says(owed, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    stage.says(owed, "incr n 2\r\n");
    stage.says(changes, "incr m 3\r\nincr m 4\r\n");
    stage.says(reads, "get x\r\n");
    stage.closes(link, Closed::Eof);
    assert_eq!(stage.received(owed), [UNKNOWN, LOST].concat());
    let another = stage.connect(0);
    assert_eq!(stage.turn(another), "incr m 3\r\nincr m 4\r\nget x\r\n");
    stage.says(another, "3\r\n7\r\nEND\r\n");
    assert_eq!([stage.received(changes), stage.received(reads)], ["3\r\n7\r\n", "END\r\n"]);
    stage.expect_rows(0);
    assert_eq!(stage.memory(), 0);
}

#[test]
fn a_message_that_has_begun_to_leave_stays_and_the_next_one_moves_whole() {
    let (mut stage, link) = idle(|_| {});
    let (begun, other) = (stage.client(), stage.client());
    stage.says(begun, "set k 0 0 5\r\nhello\r\n");
    stage.says(other, "incr n 1\r\n");
    stage.end_turn();
    assert_eq!(stage.received_some(link, 7), "set k 0");
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.received(begun), UNKNOWN);
    let another = stage.connect(0);
    assert_eq!(stage.turn(another), "incr n 1\r\n");
    stage.says(another, "1\r\n");
    assert_eq!(stage.received(other), "1\r\n");
    stage.expect_rows(0);
}

/// A key of theirs leaves together with one of a client that is owed something: what follows it
/// must not overtake it.
#[test]
fn who_shares_a_get_with_one_that_is_owed_something_stays_as_well() {
    let (mut stage, link) = idle(|_| {});
    let [owed, shares, other] = [(); 3].map(|()| stage.client());
    stage.says(owed, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    stage.says(owed, "get x\r\n");
    stage.says(shares, "get y\r\ndelete y\r\n");
    stage.says(other, "delete z\r\n");
    stage.closes(link, Closed::Eof);
    assert_eq!(stage.received(shares), [LOST, LOST].concat());
    let another = stage.connect(0);
    let sent = stage.turn(another);
    assert!(sent.starts_with("delete z\r\n") && !sent.contains("delete y"), "{sent:?}");
    stage.says(another, "DELETED\r\n");
    assert_eq!(stage.received(other), "DELETED\r\n");
}

/// They stand in their clients' queues and not in the link's output.
#[test]
fn what_waits_for_room_moves_though_the_server_owes_others() {
    let mut stage = Stage::of(&["s0"], |plan| {
        (plan.limits.inflight, plan.pools[0].preconnect) = (30_000, true);
    });
    let link = stage.connect(0);
    stage.handshake(link);
    let (owed, other) = (stage.client(), stage.client());
    let value = "v".repeat(40_000);
    let set = |key| format!("set {key} 0 0 40000\r\n{value}\r\n");
    stage.says(owed, &["a", "b"].map(set).concat());
    assert_eq!(stage.turn(link), set("a"));
    stage.says(other, &["c", "d"].map(set).concat());
    stage.end_turn();
    stage.closes(link, Closed::Eof);
    assert_eq!(stage.received(owed), [UNKNOWN, LOST].concat());
    let another = stage.connect(0);
    let mut sent = stage.turn(another);
    stage.says(another, "STORED\r\n");
    sent += &stage.turn(another);
    stage.says(another, "STORED\r\n");
    assert_eq!(sent, ["c", "d"].map(set).concat());
    assert_eq!(stage.received(other), "STORED\r\n".repeat(2));
    stage.expect_rows(0);
    assert_eq!(stage.memory(), 0);
}

/// As long as much is in flight, the get gathers keys, and what comes later waits behind others.
#[test]
fn what_waits_does_not_pass_the_key_of_its_client_in_an_open_get_that_stays() {
    let mut stage = Stage::of(&["s0"], |plan| {
        (plan.limits.inflight, plan.pools[0].preconnect) = (30_000, true);
    });
    let link = stage.connect(0);
    stage.handshake(link);
    let [owed, shares, other] = [(); 3].map(|()| stage.client());
    let set = |key, len| format!("set {key} 0 0 {len}\r\n{}\r\n", "v".repeat(len));
    stage.says(owed, &set("a", 50_000));
    assert_eq!(stage.turn(link), set("a", 50_000));
    stage.says(owed, "get b\r\n");
    stage.says(shares, "get x\r\n");
    stage.says(other, &set("c", 40_000));
    stage.says(shares, "get y\r\n");
    stage.end_turn();
    stage.closes(link, Closed::Eof);
    let another = stage.connect(0);
    let mut sent = stage.turn(another);
    stage.says(another, "STORED\r\n");
    sent += &stage.turn(another);
    let places = ["set c ", " x", " y"].map(|words| sent.find(words).expect("it is sent"));
    assert!(places.is_sorted(), "{places:?}");
    stage.says(another, &"END\r\n".repeat(sent.matches("get ").count()));
    assert_eq!(stage.received(shares), "END\r\n".repeat(2));
    assert_eq!(stage.received(other), "STORED\r\n");
}

/// A request that was sent and is not answered in time, and one of another client that is held
/// because the server is silent. Returns the clients.
fn late() -> (Stage, ConnId, [ConnId; 2]) {
    let (mut stage, link) = idle(|pool| {
        (pool.timeouts.reply, pool.timeouts.queue) = (SECOND, 5 * SECOND);
        pool.timeouts.connect = 5 * SECOND;
    });
    let clients = [stage.client(), stage.client()];
    stage.says(clients[0], "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    while stage.connects.is_empty() {
        stage.waits(SECOND / 100);
        stage.end_turn();
    }
    stage.says(clients[1], "incr m 2\r\n");
    stage.says(clients[0], "incr n 3\r\n");
    (stage, link, clients)
}

/// The one link says nothing of the server. Another one is on its way, which does.
#[test]
fn a_reply_that_does_not_come_in_time_costs_only_those_who_are_owed_something_there() {
    const LATE: &str = "SERVER_ERROR s0: no reply in time";
    let (mut stage, link, [owed, other]) = late();
    assert_eq!(stage.turn(link), "", "it is held");
    stage.waits(SECOND);
    assert!(stage.closed.contains(&link));
    assert_eq!(stage.received(owed), format!("{LATE}, outcome unknown\r\n{LATE}, not sent\r\n"));
    assert_eq!(stage.received(other), "");
    let another = stage.connect(0);
    assert!(stage.connects.is_empty(), "the one that judges serves");
    assert_eq!(stage.turn(another), "incr m 2\r\n");
    stage.says(another, "2\r\n");
    assert_eq!(stage.received(other), "2\r\n");
    stage.expect_rows(0);
    assert_eq!((stage.healths(), stage.memory()), (vec!["s0 ready".to_string()], 0));
}

#[test]
fn what_waits_behind_a_reply_that_does_not_come_fails_when_the_server_is_found_down() {
    let (mut stage, link, [_, other]) = late();
    let (judge, _) = stage.connects.remove(0);
    stage.waits(SECOND);
    assert!(stage.closed.contains(&link));
    assert_eq!(stage.received(other), "", "nobody has decided");
    stage.closes(judge, Closed::Unmade(111));
    assert_eq!(stage.healths(), ["s0 down"]);
    assert_eq!(stage.received(other), "SERVER_ERROR s0: connect failed\r\n");
    stage.expect_rows(0);
}
