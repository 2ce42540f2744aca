//! What operators ask of clients: the list, what each has done, and to close one.

use proxy::{Closed, Look, Tally, Time};

use crate::stage::{POOL, SECOND, Stage};

#[test]
fn every_client_is_listed_once_with_what_it_has_done() {
    let (mut stage, link) = Stage::of_one();
    let clients = [stage.client(), stage.client(), stage.client()];
    stage.passes(SECOND);
    stage.says(clients[1], "get a\r\nset b 0 0 1\r\n1\r\n");
    stage.turn(link);
    let rows =
        stage.list(Look::Plain, 2, |view| (view.conn, view.owed, view.state, view.pool.len()));
    assert_eq!(
        rows,
        [(clients[0], 0, "open", 4), (clients[1], 2, "open", 4), (clients[2], 0, "open", 4)]
    );
    stage.says(link, "END\r\nSTORED\r\n");
    let answer = stage.received(clients[1]);
    let tally = stage.list(Look::Plain, 9, |view| view.tally)[1];
    let wanted = Tally {
        came: Time(SECOND),
        active: Time(2 * SECOND),
        requests: 2,
        received: 23,
        sent: answer.len() as u64,
        ..tally
    };
    assert_eq!(tally, wanted);
    stage.closes(clients[0], Closed::Reset);
    assert_eq!(stage.list(Look::Plain, 1, |view| view.conn), clients[1..]);
}

/// A number is given once, also if the client's place is used again, and by the successor of a
/// worker that died.
#[test]
fn numbers_are_those_of_one_client_for_ever() {
    let (mut stage, _) = Stage::of_one();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let client = stage.client();
        seen.extend(stage.list(Look::Plain, 9, |view| view.tally.id));
        stage.closes(client, Closed::Reset);
    }
    assert_eq!(seen.len(), 5);
    let mut successor = Stage::in_slot(stage.registry, 0);
    successor.client();
    let mut other = Stage::in_slot(stage.registry, 1);
    other.client();
    seen.extend(successor.list(Look::Plain, 9, |view| view.tally.id));
    seen.extend(other.list(Look::Plain, 9, |view| view.tally.id));
    assert_eq!(seen.len(), 7);
}

#[test]
fn a_client_keeps_its_number_and_its_counts_at_another_worker() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.passes(SECOND);
    stage.says(client, "get a\r\n");
    stage.turn(link);
    stage.says(link, "END\r\n");
    stage.received(client);
    let before = stage.list(Look::Plain, 9, |view| view.tally);
    stage.passes(5 * SECOND);
    let passed = stage.passed().remove(0);
    let mut other = Stage::in_slot(stage.registry, 1);
    other.passes(60 * SECOND);
    other.adopt(passed);
    assert_eq!(other.list(Look::Plain, 9, |view| view.tally), before);
}

#[test]
fn a_client_that_is_killed_is_closed_at_once_and_nobody_else_is_harmed() {
    let (mut stage, link) = Stage::of_one();
    let (victim, other) = (stage.client(), stage.client());
    stage.says(victim, "set a 0 0 1\r\n1\r\nget b\r\nget c");
    stage.says(other, "get d\r\n");
    stage.turn(link);
    stage.kill(victim);
    assert_eq!(stage.closed, [victim]);
    stage.says(link, "STORED\r\nEND\r\n");
    assert_eq!(stage.received(other), "END\r\n");
    assert_eq!(stage.list(Look::Plain, 9, |view| view.conn), [other]);
    let killed = stage.registry.total(POOL, metrics::PoolCounter::ClientsKilled);
    let lost = stage.registry.total(POOL, metrics::PoolCounter::ClientsLost);
    assert_eq!((killed, lost), (1, 0));
    // An id that is nobody's any more.
    stage.kill(victim);
    assert_eq!(stage.closed, [victim]);
}

#[test]
fn what_was_done_before_the_last_seconds_is_not_of_them() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let ask = |stage: &mut Stage, times: usize| {
        for _ in 0..times {
            stage.says(client, "get a\r\n");
            stage.turn(link);
            stage.says(link, "END\r\n");
            stage.received(client);
        }
    };
    ask(&mut stage, 50);
    stage.passes(60 * SECOND);
    assert!(stage.list(Look::BeginRecent, 9, |_| ()).is_empty());
    ask(&mut stage, 3);
    stage.passes(SECOND);
    let recent = stage.list(Look::Recent, 9, |view| view.recent)[0];
    assert_eq!((recent.us, recent.requests, recent.bytes), (SECOND, 3, 36));
}

/// A rest that came late is told apart: an ACK has cured no stall there.
#[test]
fn a_client_that_sends_in_pieces_is_named_with_the_time_of_the_rest() {
    let (mut stage, _) = Stage::of_one();
    let client = stage.client();
    for (nth, (pause, is_late)) in
        [(2_000, false), (50_000, true), (4_000, false)].into_iter().enumerate()
    {
        stage.says(client, "get ");
        stage.passes(pause);
        stage.says(client, "a\r\n");
        assert_eq!(stage.in_pieces[nth], (client, pause, is_late));
    }
}
