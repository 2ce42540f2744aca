//! Stories of hold and drop: a silent server gets nothing more, requests that no client waits for
//! are dropped, and the rest is sent when the server wakes. `server/hold.rs` has the rule.

use metrics::ServerCounter;
use proxy::{Closed, ConnId, limits};

use crate::stage::{S0, SECOND, Stage};

const HOLD_AFTER: u64 = 30_000;

/// A server that owes an answer to another client's `incr n 1` and has been silent for too long.
fn silent() -> (Stage, ConnId) {
    let (mut stage, link) = Stage::of_one();
    let other = stage.client();
    stage.says(other, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    stage.passes(HOLD_AFTER);
    (stage, link)
}

impl Stage {
    #[track_caller]
    fn expect_count(&self, counter: ServerCounter, expected: u64) {
        assert_eq!(self.registry.total(S0, counter), expected, "{counter:?}");
    }
}

#[test]
fn what_comes_for_a_silent_server_waits_until_it_speaks() {
    let (mut stage, link) = silent();
    stage.expect_count(ServerCounter::HoldingWorkersNow, 1);
    let client = stage.client();
    stage.says(client, "append x 0 0 1\r\nX\r\nget x\r\n");
    assert_eq!(stage.turn(link), "");
    stage.passes(HOLD_AFTER);
    assert_eq!(stage.turn(link), "");
    stage.says(link, "5\r\n");
    assert_eq!(stage.received(link), "", "not before the end of the turn");
    assert_eq!(stage.turn(link), "append x 0 0 1\r\nX\r\nget x\r\n");
    stage.says(link, "STORED\r\nEND\r\n");
    assert_eq!(stage.received(client), "STORED\r\nEND\r\n");
    stage.expect_count(ServerCounter::HoldingWorkersNow, 0);
    stage.expect_count(ServerCounter::Held, 2);
    stage.expect_count(ServerCounter::Dropped, 0);
}

#[test]
fn a_server_that_speaks_or_owes_nothing_is_not_silent() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get x\r\n");
    assert_eq!(stage.turn(link), "get x\r\n");
    for piece in ["VAL", "UE x 0 1\r", "\nX"] {
        stage.passes(HOLD_AFTER - 1);
        stage.says(link, piece);
        stage.says(client, "delete x noreply\r\n");
        assert_eq!(stage.turn(link), "delete x\r\n", "after {piece:?}");
    }
    stage.says(link, "\r\nEND\r\nDELETED\r\nDELETED\r\nDELETED\r\n");
    stage.passes(SECOND);
    stage.says(client, "get y\r\n");
    assert_eq!(stage.turn(link), "get y\r\n");
    stage.expect_count(ServerCounter::Held, 0);
}

/// As in `retry.php`: the client gives up after 100 ms, comes back and asks again, and gives up
/// as the server wakes.
#[test]
fn what_a_client_asks_again_and_again_is_done_once() {
    for how in [Closed::Eof, Closed::Reset] {
        let (mut stage, link) = Stage::of_one();
        let append = "append x 0 0 1\r\nX\r\n";
        let first = stage.client();
        stage.says(first, append);
        assert_eq!(stage.turn(link), append);
        stage.passes(100_000);
        stage.gives_up(first, how);
        for _ in 0..2 {
            let again = stage.client();
            stage.says(again, append);
            assert_eq!(stage.turn(link), "");
            stage.passes(100_000);
            stage.gives_up(again, how);
        }
        let last = stage.client();
        stage.says(last, append);
        assert_eq!(stage.turn(link), "");
        // The answer and the last client's close come in one turn, in this order.
        stage.says(link, "STORED\r\n");
        stage.gives_up(last, how);
        assert_eq!(stage.turn(link), "");
        stage.expect_count(ServerCounter::Held, 3);
        stage.expect_count(ServerCounter::Dropped, 3);
        stage.expect_rows(0);
    }
}

/// Seed 2108: requests that came in the turn in which the hold ended were not marked as held.
#[test]
fn what_comes_and_is_given_up_in_the_turn_in_which_the_server_speaks_is_dropped() {
    let (mut stage, link) = silent();
    let client = stage.client();
    stage.says(client, "append x 0 0 1\r\nX\r\n");
    stage.closes(client, Closed::Reset);
    stage.says(link, "5\r\n");
    assert_eq!(stage.turn(link), "");
    stage.expect_count(ServerCounter::Dropped, 1);
}

#[test]
fn a_client_that_closes_its_half_right_behind_a_request_keeps_its_turn() {
    for wait in [0, limits::ENDS_WITHIN_US, limits::ENDS_WITHIN_US + 1] {
        let (mut stage, link) = silent();
        let client = stage.client();
        stage.says(client, "append x 0 0 1\r\nX\r\n");
        stage.end_turn();
        stage.passes(wait);
        stage.closes(client, Closed::Eof);
        stage.passes(2 * HOLD_AFTER);
        stage.says(link, "5\r\n");
        let keeps = wait <= limits::ENDS_WITHIN_US;
        let expected = if keeps { "append x 0 0 1\r\nX\r\n" } else { "" };
        assert_eq!(stage.turn(link), expected, "{wait} us after its request");
        if keeps {
            stage.says(link, "STORED\r\n");
            assert_eq!(stage.received(client), "STORED\r\n");
        }
        stage.expect_count(ServerCounter::Dropped, u64::from(!keeps));
    }
}

#[test]
fn a_worker_that_is_late_does_not_take_a_client_for_one_that_has_waited() {
    for [work, idle] in [[50_000, limits::ENDS_WITHIN_US], [50_000, 40_000]] {
        let (mut stage, link) = silent();
        let client = stage.client();
        stage.says(client, "append x 0 0 1\r\nX\r\n");
        stage.end_turn();
        stage.passes(work);
        stage.note_work(work);
        stage.passes(idle);
        stage.closes(client, Closed::Eof);
        stage.says(link, "5\r\n");
        let keeps = idle <= limits::ENDS_WITHIN_US;
        let expected = if keeps { "append x 0 0 1\r\nX\r\n" } else { "" };
        assert_eq!(stage.turn(link), expected, "{idle} us after a turn of {work} us");
    }
}

/// It has not given up by that, but it may be gone all the same.
#[test]
fn who_closes_its_half_and_is_reset_has_left() {
    let (mut stage, link) = silent();
    let client = stage.client();
    stage.says(client, "append x 0 0 1\r\nX\r\n");
    stage.closes(client, Closed::Eof);
    stage.passes(HOLD_AFTER);
    stage.closes(client, Closed::Reset);
    stage.says(link, "5\r\n");
    assert_eq!(stage.turn(link), "");
    stage.expect_count(ServerCounter::Dropped, 1);
}

/// A server at the end of a path that takes 80 ms.
#[test]
fn the_time_of_the_path_is_no_silence() {
    const TRIP: u64 = 80_000;
    let mut stage = Stage::new(&["s0"], |_| {});
    let clients = [stage.client(), stage.client(), stage.client()];
    stage.says(clients[0], "incr x 1\r\n");
    stage.passes(TRIP);
    let (link, _) = stage.begins().expect("it is connected to");
    assert_eq!(stage.turn(link), "version\r\n");
    stage.passes(TRIP / 2);
    stage.says(clients[1], "incr x 1\r\n");
    stage.passes(TRIP / 2);
    stage.says(link, "VERSION 1.6.18\r\n");
    assert_eq!(stage.turn(link), "incr x 1\r\nincr x 1\r\n");
    stage.passes(TRIP - 1);
    stage.says(clients[2], "incr x 1\r\n");
    assert_eq!(stage.turn(link), "incr x 1\r\n", "not held");
    // Two waited for the link.
    stage.expect_count(ServerCounter::Held, 2);
    // It is silent after three trips.
    stage.passes(2 * TRIP + 1);
    stage.says(clients[0], "incr x 1\r\n");
    assert_eq!(stage.turn(link), "");
    stage.expect_count(ServerCounter::HoldingWorkersNow, 1);
    stage.says(link, "1\r\n2\r\n3\r\n");
    assert_eq!(stage.turn(link), "incr x 1\r\n");
}

/// Asks a server every 7 ms, which answers after the time of its path; returns how many requests
/// were held in the last of these seconds.
fn held_of_asked(trips: impl Fn(u64) -> u64, seconds: u64) -> u64 {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get a\r\n");
    stage.turn(link);
    stage.says(link, "END\r\n");
    let (mut due, mut before) = (std::collections::VecDeque::new(), 0);
    for ms in 0..seconds * 1_000 {
        let now = stage.now().0;
        if ms == (seconds - 1) * 1_000 {
            before = stage.registry.total(S0, ServerCounter::Held);
        }
        if ms % 7 == 0 {
            stage.says(client, "get a\r\n");
        }
        let sent = stage.turn(link).matches("get").count();
        due.extend(std::iter::repeat_n(now + trips(ms), sent));
        while due.front().is_some_and(|at| *at <= now) {
            due.pop_front();
            stage.says(link, "END\r\n");
        }
        stage.passes(1_000);
    }
    stage.registry.total(S0, ServerCounter::Held) - before
}

/// Its jitter is a tenth of it.
#[test]
fn a_server_on_the_other_side_of_the_world_that_is_asked_all_the_time_is_not_held() {
    let jitter = |ms: u64| (ms.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) % 15_000;
    assert_eq!(held_of_asked(|ms| 150_000 + jitter(ms), 5), 0);
}

/// A route may move to another site. Until that is known, its answers look late.
#[test]
fn a_server_whose_path_has_become_longer_is_held_for_a_second_and_no_more() {
    let path = |ms: u64| if ms < 1_000 { 1_000 } else { 100_000 };
    assert_ne!(held_of_asked(path, 2), 0);
    assert_eq!(held_of_asked(path, 4), 0);
}

#[test]
fn a_client_that_has_closed_its_half_is_told_that_its_request_was_dropped() {
    let (mut stage, link) = silent();
    let client = stage.client();
    stage.says(client, "set x 0 0 1\r\nX\r\nget y\r\n");
    assert_eq!(stage.turn(link), "");
    stage.gives_up(client, Closed::Eof);
    stage.passes(HOLD_AFTER);
    let words = "SERVER_ERROR s0: dropped while it waited, not sent\r\n";
    assert_eq!(stage.received(client), [words, words].concat());
    assert_eq!(stage.closed, [client]);
    stage.says(link, "5\r\n");
    assert_eq!(stage.turn(link), "");
}

/// No client waits for the outcome of a `noreply`, so none sends it again: dropped, it would be
/// lost.
#[test]
fn a_noreply_of_a_client_that_has_left_is_sent() {
    for how in [Closed::Eof, Closed::Reset] {
        let (mut stage, link) = silent();
        let client = stage.client();
        stage.says(client, "set x 0 0 1\r\nX\r\nset y 0 0 1 noreply\r\nY\r\ndelete z noreply\r\n");
        assert_eq!(stage.turn(link), "");
        stage.gives_up(client, how);
        stage.passes(HOLD_AFTER);
        stage.says(link, "5\r\n");
        assert_eq!(stage.turn(link), "set y 0 0 1\r\nY\r\ndelete z\r\n");
        stage.expect_count(ServerCounter::Dropped, 1);
    }
}

/// Quiet changes behind the last loud request are sent as `noreply` is, since their client did not
/// wait for them.
#[test]
fn a_quiet_meta_change_behind_the_last_loud_request_is_sent() {
    for how in [Closed::Eof, Closed::Reset] {
        let (mut stage, link) = silent();
        let client = stage.client();
        stage.says(client, "ms x 1\r\nX\r\nms y 1 q\r\nY\r\n");
        assert_eq!(stage.turn(link), "");
        stage.gives_up(client, how);
        stage.passes(HOLD_AFTER);
        stage.says(link, "5\r\n");
        assert_eq!(stage.turn(link), "ms y 1\r\nY\r\n");
        stage.expect_count(ServerCounter::Dropped, 1);
    }
}

#[test]
fn a_client_that_says_quit_is_not_one_that_gives_up() {
    let (mut stage, link) = silent();
    let client = stage.client();
    stage.says(client, "set x 0 0 1\r\nX\r\nquit\r\n");
    stage.closes(client, Closed::Reset);
    assert_eq!(stage.turn(link), "");
    stage.says(link, "5\r\n");
    assert_eq!(stage.turn(link), "set x 0 0 1\r\nX\r\n");
    stage.expect_count(ServerCounter::Dropped, 0);
}

#[test]
fn a_message_that_has_begun_to_leave_is_finished() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get x\r\nset x 0 0 4\r\nabcd\r\ndelete x\r\n");
    stage.end_turn();
    let all = "get x\r\nset x 0 0 4\r\nabcd\r\ndelete x\r\n";
    assert_eq!(stage.received_some(link, 12), all[..12]);
    stage.passes(HOLD_AFTER);
    assert_eq!(stage.turn(link), all[12..26]);
    stage.closes(client, Closed::Reset);
    stage.says(link, "END\r\nSTORED\r\n");
    assert_eq!(stage.turn(link), "", "the rest was dropped");
    stage.expect_rows(0);
}

#[test]
fn a_held_message_has_its_time_in_the_queue_and_no_more() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.preconnect = true;
        pool.timeouts.queue = SECOND / 10;
    });
    let link = stage.connect(0);
    let (other, client) = (stage.client(), stage.client());
    // It may be silent still, or answer and read nothing more.
    for (silent, answer) in [("silent, ", ""), ("", "1\r\n")] {
        stage.says(other, "incr n 1\r\n");
        stage.turn(link);
        stage.passes(HOLD_AFTER);
        stage.says(client, "delete x\r\n");
        assert_eq!(stage.turn(link), "");
        stage.says(link, answer);
        stage.end_turn();
        stage.passes(SECOND / 10);
        let words = format!("SERVER_ERROR s0: {silent}timed out in the queue, not sent\r\n");
        assert_eq!(stage.received(client), words);
        stage.says(link, if answer.is_empty() { "1\r\n" } else { "" });
        stage.end_turn();
    }
    stage.expect_count(ServerCounter::QueueTimeout, 2);
}

#[test]
fn the_server_is_silent_not_the_link() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.preconnect = true;
        pool.server_connections = 2;
    });
    let links = [stage.connect(0), stage.connect(0)];
    let clients = [stage.client(), stage.client()];
    stage.says(clients[0], "incr n 1\r\n");
    let busy = links.into_iter().find(|link| stage.turn(*link) == "incr n 1\r\n");
    let busy = busy.expect("one of them carries it");
    let idle = links.into_iter().find(|link| *link != busy).expect("there are two");
    stage.passes(HOLD_AFTER);
    stage.says(clients[1], "incr n 2\r\n");
    assert_eq!(stage.turn(idle), "version\r\n", "it asks whether the server is there");
    assert_eq!(stage.turn(busy), "");
    // The server is there. So only one link is slow, and the message there is outstanding.
    stage.says(idle, "VERSION 1.6.18\r\n");
    assert_eq!(stage.turn(idle), "incr n 2\r\n");
    stage.says(idle, "7\r\n");
    assert_eq!(stage.received(clients[1]), "7\r\n");
}

#[test]
fn what_another_worker_holds_is_greeted_before_it_is_sent_anything() {
    let (mut stage, link) = Stage::of_one();
    let other = stage.registry.metrics(1).counters::<ServerCounter>(S0);
    let (client, retry) = (stage.client(), stage.client());
    // Bytes came just now: the other worker's trouble is not the server's.
    other.set(ServerCounter::HoldingWorkersNow, 1);
    stage.says(client, "get x\r\n");
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.says(link, "END\r\n");
    stage.passes(HOLD_AFTER);
    stage.says(retry, "append x 0 0 1\r\nX\r\n");
    assert_eq!(stage.turn(link), "version\r\n");
    stage.passes(100_000);
    stage.gives_up(retry, Closed::Eof);
    stage.says(client, "get x\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(link, "VERSION 1.6.18\r\n");
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.expect_count(ServerCounter::Dropped, 1);
}

#[test]
fn what_waited_for_a_link_and_was_given_up_is_not_sent() {
    let mut stage = Stage::new(&["s0"], |_| {});
    let (client, still_there) = (stage.client(), stage.client());
    stage.says(client, "append x 0 0 1\r\nX\r\n");
    stage.says(still_there, "append x 0 0 1\r\nX\r\n");
    stage.end_turn();
    let link = stage.connects[0].0;
    stage.establishes(link);
    stage.passes(100_000);
    stage.gives_up(client, Closed::Eof);
    stage.says(link, "VERSION 1.6.18\r\n");
    assert_eq!(stage.turn(link), "append x 0 0 1\r\nX\r\n");
    stage.expect_count(ServerCounter::Dropped, 1);
    // A script that closes its half while the link is being made has not given up.
    let mut stage = Stage::new(&["s0"], |_| {});
    let client = stage.client();
    stage.says(client, "append x 0 0 1\r\nX\r\n");
    stage.closes(client, Closed::Eof);
    stage.end_turn();
    stage.passes(HOLD_AFTER - 1);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "append x 0 0 1\r\nX\r\n");
}

/// It stands aside meanwhile, because its client has something outstanding elsewhere.
#[test]
fn what_stood_aside_while_its_link_was_made_and_was_given_up_is_not_sent() {
    let modula = shard::Distribution::Modula;
    let mut stage = Stage::of(&["s0", "s1"], |plan| {
        plan.limits.unproven = 1;
        plan.pools[0].distribution = modula;
    });
    let client = stage.client();
    let (near, far) = (stage.key_of(0), stage.key_of(1));
    stage.says(client, &format!("get {near}\r\n"));
    stage.end_turn();
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), format!("get {near}\r\n"));
    stage.says(client, &format!("get {far}\r\nget {far}\r\nappend {far} 0 0 1\r\nX\r\n"));
    stage.gives_up(client, Closed::Eof);
    stage.end_turn();
    stage.passes(HOLD_AFTER / 2);
    stage.says(link, "END\r\n");
    stage.end_turn();
    stage.passes(HOLD_AFTER / 2);
    let made = stage.connect(1);
    assert_eq!(stage.turn(made), "", "the client may have asked for it again");
    let dropped = "SERVER_ERROR s1: dropped while it waited, not sent\r\n";
    assert_eq!(stage.received(client), format!("END\r\n{}", dropped.repeat(3)));
    stage.expect_rows(0);
}

/// A meta request waits unread until the server's capabilities are known.
#[test]
fn what_waited_for_a_greeting_and_was_given_up_is_not_sent() {
    for how in [Closed::Eof, Closed::Reset] {
        let mut stage = Stage::new(&["s0"], |_| {});
        let append = "ms x 1 MA\r\nX\r\n";
        let (gone, still_there) = (stage.client(), stage.client());
        stage.says(gone, append);
        stage.says(still_there, append);
        stage.end_turn();
        let link = stage.connects[0].0;
        stage.establishes(link);
        stage.passes(100_000);
        stage.gives_up(gone, how);
        stage.says(link, "VERSION 1.6.18\r\n");
        assert_eq!(stage.turn(link), append);
        let words = "SERVER_ERROR s0: dropped while it waited, not sent\r\n";
        assert_eq!(stage.received(gone), if how == Closed::Eof { words } else { "" });
        stage.says(link, "HD\r\n");
        assert_eq!(stage.received(still_there), "HD\r\n");
    }
}

/// Seed 9053: a message held on a link that was not up yet lost its mark when the link came up.
#[test]
fn what_was_held_once_is_dropped_when_its_link_comes_up() {
    let mut stage = Stage::new(&["s0"], |pool| pool.server_connections = 2);
    let (other, gone) = (stage.client(), stage.client());
    stage.says(other, "incr n 1\r\n");
    stage.end_turn();
    let busy = stage.connect(0);
    assert_eq!(stage.turn(busy), "incr n 1\r\n");
    stage.says(gone, "incr n 2\r\n");
    stage.end_turn();
    let slow = stage.connects[0].0;
    stage.passes(HOLD_AFTER);
    stage.says(busy, "5\r\n");
    stage.end_turn();
    stage.closes(gone, Closed::Reset);
    stage.comes_up(slow);
    assert_eq!(stage.turn(slow), "");
    stage.expect_count(ServerCounter::Dropped, 1);
    stage.expect_rows(0);
}

/// Seed 1630: a link that had retired was not closed when its last message was dropped.
#[test]
fn a_retired_link_goes_when_its_last_message_is_dropped() {
    let modula = shard::Distribution::Modula;
    let mut stage = Stage::new(&["s0", "s1"], |pool| pool.distribution = modula);
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("incr {key} 1\r\n"));
    stage.end_turn();
    let link = stage.connects[0].0;
    stage.establishes(link);
    stage.passes(HOLD_AFTER);
    stage.closes(client, Closed::Reset);
    stage.install(|plan| drop(plan.pools[0].servers.pop()));
    stage.says(link, "VERSION 1.6.18\r\n");
    assert_eq!(stage.turn(link), "");
    assert!(stage.closed.contains(&link));
    stage.end_turn();
    assert_eq!(stage.retired(), []);
}

/// Some are messages already, some gather, and some wait for room in the in-flight limit: those are
/// dropped at once.
#[test]
fn reads_that_gather_are_dropped_with_their_clients() {
    // The limit is 16 gets. Those beyond half of it gather, and leave when they are a quarter.
    let get = limits::COST_OF_MESSAGE + 1 + u64::from(limits::ANSWER_UNKNOWN);
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.inflight = 8 * get;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    let other = stage.client();
    stage.says(other, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    stage.passes(HOLD_AFTER);
    let (gathers, waits) = (stage.client(), stage.client());
    for nth in 0..10 {
        stage.says(gathers, "get x\r\n");
        stage.end_turn();
        stage.expect_rows(2 + nth);
    }
    let keys = (0..5).map(|nth| format!(" {nth}")).collect::<String>();
    stage.says(waits, &format!("get{keys}\r\nget late\r\n"));
    stage.end_turn();
    stage.closes(waits, Closed::Reset);
    stage.end_turn();
    stage.expect_count(ServerCounter::Dropped, 2);
    stage.closes(gathers, Closed::Reset);
    let client = stage.client();
    stage.says(link, "5\r\n");
    stage.says(client, "get y\r\n");
    assert_eq!(stage.turn(link), "get y\r\n");
    // Seven of one key, and one of the keys that gathered.
    stage.expect_count(ServerCounter::Dropped, 2 + 7 + 1);
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(client), "END\r\n");
    stage.expect_rows(0);
}

/// One message of those that gather has not been closed yet.
#[test]
fn reads_that_have_gathered_for_long_are_dropped_with_their_client() {
    let get = limits::COST_OF_MESSAGE + 1 + u64::from(limits::ANSWER_UNKNOWN);
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.inflight = 8 * get;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    let (other, gathers) = (stage.client(), stage.client());
    stage.says(other, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    for _ in 0..10 {
        stage.says(gathers, "get x\r\n");
        stage.end_turn();
    }
    let sent = stage.turn(link).lines().count();
    stage.passes(HOLD_AFTER);
    stage.closes(gathers, Closed::Reset);
    stage.passes(HOLD_AFTER);
    stage.expect_count(ServerCounter::Dropped, 1);
    stage.says(link, &("5\r\n".to_string() + &"END\r\n".repeat(sent)));
    assert_eq!((sent, stage.turn(link)), (7, String::new()));
    stage.expect_rows(0);
}

/// They share a message that has not left, and each has its time.
#[test]
fn of_reads_that_gather_for_a_silent_server_each_has_its_own_time() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.preconnect = true;
        pool.timeouts.queue = SECOND / 10;
    });
    let link = stage.connect(0);
    let (other, first, second) = (stage.client(), stage.client(), stage.client());
    for _ in 0..4 {
        stage.says(other, "get z\r\n");
        assert_eq!(stage.turn(link), "get z\r\n");
    }
    stage.passes(HOLD_AFTER);
    stage.says(first, "get x\r\n");
    stage.end_turn();
    stage.passes(SECOND / 20);
    stage.says(second, "get y\r\n");
    stage.end_turn();
    stage.passes(SECOND / 20);
    let late = "SERVER_ERROR s0: silent, timed out in the queue, not sent\r\n";
    assert_eq!([stage.received(first), stage.received(second)], [late, ""]);
    stage.says(link, "END\r\n");
    assert_eq!(stage.turn(link), "get y\r\n");
    stage.says(link, &"END\r\n".repeat(4));
    assert_eq!(stage.received(second), "END\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_link_that_dies_ends_the_hold() {
    let (mut stage, link) = silent();
    let client = stage.client();
    stage.says(client, "delete x\r\n");
    assert_eq!(stage.turn(link), "");
    stage.closes(link, Closed::Reset);
    stage.expect_count(ServerCounter::HoldingWorkersNow, 0);
    let another = stage.connect(0);
    assert_eq!(stage.turn(another), "delete x\r\n");
    stage.says(another, "DELETED\r\n");
    assert_eq!(stage.received(client), "DELETED\r\n");
}

#[test]
fn without_hold_after_nothing_is_held() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.preconnect = true;
        pool.hold_after = None;
    });
    let link = stage.connect(0);
    let client = stage.client();
    stage.says(client, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    stage.passes(SECOND / 2);
    stage.says(client, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
}
