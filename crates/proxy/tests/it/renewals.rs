//! Requests that were queued for a link when its server closed it, and their new connection.

use proxy::plan::PoolPlan;
use proxy::{Closed, ConnId};

use crate::stage::{SECOND, Stage};

const LOST: &str = "SERVER_ERROR s0: connection lost\r\n";

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
    let another = stage.connect(0);
    stage.closes(another, Closed::Eof);
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
