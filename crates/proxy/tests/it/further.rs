//! Stories of links that a server refuses or ends while it serves on those that it has.

use proto::protocol;
use proxy::plan::PoolPlan;
use proxy::{Closed, ConnId, Event};

use crate::stage::resp::{
    HELLO, TOLD_FULL, WELCOME, all, comes_up, is_tried, refuses, request as resp,
};
use crate::stage::{S0, SECOND, Stage};

fn redis(set: impl FnOnce(&mut PoolPlan)) -> Stage {
    Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.preconnect, pool.databases) = (true, 16);
        set(pool);
    })
}

/// A server with the link that clients share, on which it has answered.
fn served(set: impl FnOnce(&mut PoolPlan)) -> (Stage, ConnId, ConnId) {
    let mut stage = redis(set);
    let (link, client) = (comes_up(&mut stage), stage.client());
    serves(&mut stage, link, client);
    (stage, link, client)
}

#[track_caller]
fn serves(stage: &mut Stage, link: ConnId, client: ConnId) {
    stage.says(client, "GET k\r\n");
    assert_eq!(stage.turn(link), resp("GET k"));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(client), "$-1\r\n");
}

/// The link of one client, which stands in for that of another.
fn stood_in() -> (Stage, ConnId, [ConnId; 2]) {
    stood_in_of(2)
}

fn stood_in_of(server_connections: usize) -> (Stage, ConnId, [ConnId; 2]) {
    let mut stage = redis(|pool| {
        pool.server_connections = server_connections;
        (pool.preconnect, pool.hold_after) = (false, None);
    });
    let [one, other] = [stage.client(), stage.client()];
    stage.says(one, "GET k\r\n");
    stage.end_turn();
    let link = comes_up(&mut stage);
    assert_eq!(stage.turn(link), resp("GET k"));
    stage.says(link, "$-1\r\n");
    stage.received(one);
    stage.says(other, "GET k\r\n");
    refuses(&mut stage);
    assert_eq!(stage.turn(link), resp("GET k"));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n");
    (stage, link, [one, other])
}

/// Its links do not tell of another server.
#[test]
fn a_link_that_is_refused_makes_nobody_try_transactions_anew() {
    let (mut stage, link, client) = served(|pool| pool.hold_after = None);
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    is_tried(&mut stage);
    for round in 0..3 {
        if round > 0 {
            let other = stage.client();
            stage.says(other, "SELECT 1\r\nGET k\r\n");
            refuses(&mut stage);
            let told = stage.received(other);
            assert!(told.ends_with(TOLD_FULL), "{told}");
            stage.closes(other, Closed::Eof);
            stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
        }
        assert_eq!(stage.turn(link), all(&["MULTI", "GET k", "EXEC"]));
        assert_eq!(stage.connects, []);
        stage.says(link, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
        assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
        stage.passes(SECOND);
    }
}

/// A firewall, or a `CLIENT KILL`, may have ended it. Another link shows what the server is.
#[test]
fn one_link_that_is_lost_in_its_first_second_is_no_verdict() {
    for comes_up_again in [true, false] {
        let mut stage = redis(|_| {});
        let (link, client) = (comes_up(&mut stage), stage.client());
        stage.says(client, "SET k 1\r\n");
        assert_eq!(stage.turn(link), resp("SET k 1"));
        stage.closes(link, Closed::Reset);
        assert_eq!(stage.healths(), ["s0 ready"]);
        assert!(stage.received(client).contains("connection lost"));
        stage.end_turn();
        if comes_up_again {
            let link = comes_up(&mut stage);
            serves(&mut stage, link, client);
            continue;
        }
        let (judge, _) = stage.connects[0];
        stage.closes(judge, Closed::Reset);
        assert_eq!(stage.healths(), ["s0 down"]);
    }
}

/// Its words are an answer: clients read them, and its keys are its own again.
#[test]
fn a_server_that_is_back_and_full_is_not_down() {
    let mut stage = redis(|_| {});
    let (link, _) = stage.connects.pop().expect("a link is ordered");
    stage.closes(link, Closed::Unmade(111));
    assert_eq!(stage.healths(), ["s0 down"]);
    stage.waits(SECOND);
    refuses(&mut stage);
    assert_eq!(stage.healths(), ["s0 ready"]);
    let client = stage.client();
    stage.says(client, "GET k\r\n");
    refuses(&mut stage);
    assert_eq!(
        (stage.received(client).as_str(), stage.healths()),
        (TOLD_FULL, vec!["s0 ready".into()])
    );
}

/// The link that stands in has a place of its own, and that stays.
#[test]
fn a_reload_with_fewer_links_keeps_the_one_that_stood_in_for_another() {
    let (mut stage, link, [one, other]) = stood_in();
    stage.install(|plan| plan.pools[0].server_connections = 1);
    stage.passes(SECOND);
    stage.end_turn();
    serves(&mut stage, link, one);
    serves(&mut stage, link, other);
    assert_eq!(stage.connects, []);
}

/// Nobody asks where a client waits, so another attempt decides; a subscription is asked.
#[test]
fn links_that_owe_nothing_soon_are_no_sign_that_a_server_works() {
    for request in ["BLPOP l 0\r\n", "SUBSCRIBE c\r\n"] {
        let mut stage = redis(|pool| pool.preconnect = false);
        let (waits, client) = (stage.client(), stage.client());
        stage.says(waits, request);
        stage.end_turn();
        let link = comes_up(&mut stage);
        assert_eq!(stage.turn(link), resp(request.trim()));
        if request.starts_with('S') {
            stage.says(link, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        }
        stage.passes(SECOND);
        stage.says(client, "GET k\r\n");
        stage.end_turn();
        let (further, _) = stage.connects.pop().expect("it is tried");
        stage.passes(SECOND / 100);
        stage.closes(further, Closed::Unmade(113));
        if request.starts_with('S') {
            // It is asked, and does not answer.
            assert_eq!(stage.turn(link), resp("PING"));
            stage.waits(10 * SECOND);
        } else {
            assert_eq!(stage.healths(), ["s0 ready"], "one attempt may be lost");
            let (judge, _) = stage.connects.pop().expect("another is begun");
            stage.passes(SECOND / 100);
            stage.closes(judge, Closed::Unmade(113));
        }
        assert_eq!(stage.healths(), ["s0 down"], "{request}");
    }
}

/// Another attempt decides, however long ago the server has shown that it lives.
#[test]
fn a_server_that_was_judged_a_moment_ago_is_not_down_after_one_attempt_either() {
    let mut stage = redis(|pool| pool.preconnect = false);
    let (waits, client) = (stage.client(), stage.client());
    stage.says(waits, "BLPOP l 0\r\n");
    stage.end_turn();
    let link = comes_up(&mut stage);
    assert_eq!(stage.turn(link), resp("BLPOP l 0"));
    stage.says(client, "GET k\r\n");
    stage.end_turn();
    let shared = comes_up(&mut stage);
    assert_eq!(stage.turn(shared), resp("GET k"));
    stage.says(shared, "$-1\r\n");
    stage.says(client, "GET k\r\n");
    assert_eq!(stage.turn(shared), resp("GET k"));
    while stage.connects.is_empty() {
        stage.waits(SECOND / 100);
        stage.end_turn();
    }
    comes_up(&mut stage);
    stage.passes(SECOND / 100);
    stage.closes(shared, Closed::Reset);
    stage.end_turn();
    for left in [1, 0] {
        let (attempt, _) = stage.connects.pop().expect("it is tried");
        assert_eq!(stage.healths(), ["s0 ready"]);
        stage.passes(SECOND / 100);
        stage.closes(attempt, Closed::Unmade(113));
        assert_eq!(stage.connects.len(), left, "one attempt may be lost");
    }
    assert_eq!(stage.healths(), ["s0 down"]);
}

/// Private links that are idle are asked as others are.
#[test]
fn idle_private_links_are_asked_when_another_cannot_be_made() {
    for answers in [true, false] {
        let mut stage = redis(|pool| (pool.preconnect, pool.private) = (false, true));
        let (one, other) = (stage.client(), stage.client());
        stage.says(one, "GET k\r\n");
        stage.end_turn();
        let link = comes_up(&mut stage);
        assert_eq!(stage.turn(link), resp("GET k"));
        stage.says(link, "$-1\r\n");
        assert_eq!(stage.received(one), "$-1\r\n");
        stage.passes(SECOND);
        stage.says(other, "GET k\r\n");
        stage.end_turn();
        let (further, _) = stage.connects.pop().expect("it is tried");
        stage.passes(SECOND / 100);
        stage.closes(further, Closed::Unmade(113));
        assert_eq!(stage.healths(), ["s0 ready"]);
        assert_eq!(stage.turn(link), HELLO);
        if answers {
            stage.says(link, WELCOME);
            serves(&mut stage, link, one);
        }
        stage.waits(20 * SECOND);
        let health = if answers { "s0 ready" } else { "s0 down" };
        assert_eq!(stage.healths(), [health]);
    }
}

#[test]
fn a_stand_in_that_is_made_anew_leaves_the_place_when_its_rest_is_over() {
    let (mut stage, link, [one, other]) = stood_in();
    // The end of an idle connection comes in the turn of a request.
    stage.says(one, "GET k\r\n");
    stage.closes(link, Closed::Eof);
    let anew = comes_up(&mut stage);
    assert_eq!(stage.turn(anew), resp("GET k"));
    stage.says(anew, "$-1\r\n");
    assert_eq!(stage.received(one), "$-1\r\n");
    stage.passes(2 * SECOND);
    stage.end_turn();
    stage.says(other, "GET k\r\n");
    stage.end_turn();
    assert_eq!(stage.connects.len(), 1, "its place is tried again");
}

/// Found by the simulator: its next request opened a link of its own, and overtook those before it.
#[test]
fn a_stand_in_that_cannot_be_made_anew_is_stood_in_for_at_every_place() {
    let (mut stage, link, [one, other]) = stood_in_of(3);
    let third = stage.client();
    stage.says(third, "GET k\r\n");
    stage.end_turn();
    let last = comes_up(&mut stage);
    assert_eq!(stage.turn(last), resp("GET k"));
    stage.says(last, "$-1\r\n");
    stage.says(one, "GET k\r\n");
    stage.says(other, "GET l\r\n");
    stage.closes(link, Closed::Eof);
    refuses(&mut stage);
    assert_eq!(stage.turn(last), all(&["GET k", "GET l"]));
    stage.passes(SECOND / 2);
    stage.says(other, "GET m\r\n");
    assert_eq!(stage.turn(last), resp("GET m"));
    assert_eq!(stage.connects, []);
}

/// The other client has something outstanding whenever the proxy looks.
#[test]
fn a_place_is_filled_again_while_the_link_that_stood_in_is_in_use() {
    for is_asking in [false, true] {
        let (mut stage, link, [one, other]) = stood_in();
        stage.says(one, "GET k\r\n");
        if is_asking {
            stage.says(other, "GET l\r\n");
        }
        assert!(stage.turn(link).starts_with(&resp("GET k")));
        stage.passes(SECOND / 2);
        stage.end_turn();
        let before = stage.connects.len();
        stage.says(other, "GET m\r\n");
        // Requests of one client keep their order.
        let sent = if is_asking { resp("GET m") } else { String::new() };
        assert_eq!(stage.turn(link), sent);
        let more = if is_asking { 0 } else { 1 };
        assert_eq!(stage.connects.len() - before, more, "its place is tried again");
    }
}

/// Requests that end what a server does must not wait behind it.
#[test]
fn a_script_is_not_ended_behind_itself_at_a_full_server() {
    for verb in ["SCRIPT KILL\r\n", "FUNCTION KILL\r\n", "FUNCTION STATS\r\n"] {
        let (mut stage, link, script) = served(|_| {});
        stage.says(script, "EVAL endless 1 a\r\n");
        assert_eq!(stage.turn(link), resp("EVAL endless 1 a"));
        let other = stage.client();
        for _ in 0..2 {
            stage.says(other, verb);
            stage.end_turn();
            if !stage.connects.is_empty() {
                refuses(&mut stage);
            }
            assert_eq!(stage.turn(link), "", "{verb}");
            assert!(stage.received(other).contains("max number of clients"), "{verb}");
        }
    }
}

/// It has waited for its own link, and goes on there.
#[test]
fn a_slow_request_takes_the_shared_link_of_a_full_server() {
    let (mut stage, link, _) = served(|_| {});
    let other = stage.client();
    stage.says(other, "KEYS *\r\nKEYS a*\r\n");
    refuses(&mut stage);
    for request in ["KEYS *", "KEYS a*"] {
        assert_eq!(stage.turn(link), resp(request));
        stage.says(link, "*0\r\n");
    }
    assert_eq!(stage.received(other), "*0\r\n*0\r\n");
    stage.expect_rows(0);
    assert_eq!(stage.memory(), 0);
}

/// A firewall lets nothing new through, or a relay swallows all that is sent.
#[test]
fn a_slow_request_waits_half_of_its_time_for_a_link_of_its_own() {
    for is_accepted in [false, true] {
        let (mut stage, link, client) = served(|pool| pool.hold_after = None);
        stage.passes(SECOND);
        let other = stage.client();
        stage.says(other, "KEYS *\r\n");
        stage.end_turn();
        let slow = match is_accepted {
            true => stage.establishes_with(HELLO),
            false => stage.connects.remove(0).0,
        };
        stage.connecting(slow, 0);
        stage.waits(SECOND / 2 - 1);
        assert_eq!((stage.turn(link), stage.received(other)), (String::new(), String::new()));
        stage.waits(1);
        assert!(stage.closed.contains(&slow));
        // The link that is idle is asked, since another could not be made.
        assert_eq!(stage.turn(link), HELLO);
        stage.says(link, WELCOME);
        assert_eq!(stage.turn(link), resp("KEYS *"));
        stage.says(link, "*0\r\n");
        assert_eq!(stage.received(other), "*0\r\n");
        serves(&mut stage, link, client);
        stage.expect_rows(0);
    }
}

/// The shared link is lost, and is there again when half of the time is over.
#[test]
fn a_slow_request_takes_a_shared_link_that_comes_up_later() {
    let (mut stage, link, client) = served(|pool| pool.hold_after = None);
    let other = stage.client();
    stage.says(other, "KEYS *\r\n");
    stage.end_turn();
    let (slow, _) = stage.connects.remove(0);
    stage.closes(link, Closed::Eof);
    stage.waits(SECOND / 10 * 6);
    assert!(!stage.closed.contains(&slow));
    stage.says(client, "GET k\r\n");
    stage.end_turn();
    let link = comes_up(&mut stage);
    assert_eq!(stage.turn(link), resp("GET k"));
    stage.waits(SECOND / 20);
    assert!(stage.closed.contains(&slow));
    assert_eq!(stage.turn(link), resp("KEYS *"));
    stage.says(link, "$-1\r\n*0\r\n");
    assert_eq!(stage.received(client) + &stage.received(other), "$-1\r\n*0\r\n");
}

/// Nobody knows yet how far it is: nothing is given up in less time than its path takes.
#[test]
fn a_link_to_a_distant_server_does_not_give_way_too_soon() {
    let mut stage = redis(|pool| pool.hold_after = None);
    let link = stage.establishes_with(HELLO);
    stage.passes(SECOND / 10 * 4);
    stage.says(link, WELCOME);
    let other = stage.client();
    stage.says(other, "KEYS *\r\n");
    stage.end_turn();
    let (slow, _) = stage.connects.remove(0);
    stage.connecting(slow, 0);
    stage.waits(SECOND / 10 * 8 - 1);
    assert!(!stage.closed.contains(&slow));
    stage.waits(1);
    assert!(stage.closed.contains(&slow));
}

/// Each of them would wait for as long as it may.
#[test]
fn one_client_shows_whether_private_links_can_be_made() {
    let (mut stage, link, one) = served(|pool| pool.hold_after = None);
    let [first, second, third] = [stage.client(), stage.client(), stage.client()];
    for round in 0..3 {
        let asks = if round == 0 { first } else { second };
        stage.says(asks, "BLPOP l 0\r\n");
        stage.end_turn();
        let (own, _) = stage.connects.pop().expect("it is tried");
        stage.connecting(own, 0);
        stage.passes(SECOND / 20);
        if round > 0 {
            stage.says(third, "BLPOP l 0\r\n");
            stage.end_turn();
            assert!(stage.received(third).contains("takes no further connection"));
            assert_eq!(stage.connects, []);
        }
        serves(&mut stage, link, one);
        stage.waits(SECOND);
        assert!(stage.received(asks).contains("timed out"));
        stage.passes(SECOND / 4);
    }
    // The rest is long over: another one may try beside this.
    stage.passes(5 * SECOND);
    stage.says(first, "BLPOP l 0\r\n");
    stage.end_turn();
    stage.passes(SECOND / 20);
    stage.says(third, "BLPOP l 0\r\n");
    stage.end_turn();
    assert_eq!(stage.connects.len(), 2);
}

/// Its answer is larger than what the server keeps for a client.
#[test]
fn a_request_that_ends_its_link_does_not_end_the_one_that_others_share() {
    let (mut stage, link, _) = served(|_| {});
    let other = stage.client();
    for round in 0..3 {
        stage.says(other, "KEYS *\r\n");
        stage.end_turn();
        while !stage.connects.is_empty() {
            let slow = comes_up(&mut stage);
            assert_eq!(stage.turn(slow), resp("KEYS *"));
            stage.closes(slow, Closed::Eof);
            stage.end_turn();
        }
        assert_eq!(stage.turn(link), "");
        let why = if round == 0 { "s0: connection lost" } else { "(the last one was lost or " };
        assert!(stage.received(other).contains(why));
    }
    let is_down = |event: &Event| matches!(event, Event::ServerDown { .. });
    assert!(!stage.events.iter().any(is_down));
}

#[test]
fn a_subscriber_reads_why_no_link_can_be_made_to_a_server_that_is_up() {
    for (how, why) in [(Some(Closed::Unmade(113)), "connect failed"), (None, "connect timed out")] {
        let (mut stage, link, one) = served(|pool| pool.hold_after = None);
        let client = stage.client();
        stage.says(client, "SUBSCRIBE c\r\n");
        stage.end_turn();
        let (further, _) = stage.connects.pop().expect("it is tried");
        stage.connecting(further, 0);
        stage.passes(SECOND / 100);
        serves(&mut stage, link, one);
        match how {
            Some(how) => stage.closes(further, how),
            None => stage.waits(stage.plan.pools[0].timeouts.connect),
        }
        assert_eq!(stage.received(client), format!("-ERR s0: {why}\r\n"));
        assert_eq!(stage.healths(), ["s0 ready"]);
    }
}

/// As a load balancer does that has no server.
#[test]
fn a_connection_that_is_accepted_and_closed_is_told_as_such() {
    for how in [Closed::Eof, Closed::Reset] {
        let (mut stage, link, one) = served(|pool| pool.hold_after = None);
        let client = stage.client();
        stage.says(client, "SUBSCRIBE c\r\n");
        stage.end_turn();
        let further = stage.establishes_with(HELLO);
        stage.passes(SECOND / 100);
        serves(&mut stage, link, one);
        stage.closes(further, how);
        let words = "closed the connection before it answered";
        assert_eq!(stage.received(client), format!("-ERR s0: {words}\r\n"));
        // Without another link, the server is down.
        stage.closes(link, Closed::Eof);
        stage.says(one, "GET a\r\n");
        stage.end_turn();
        let last = stage.establishes_with(HELLO);
        stage.closes(last, how);
        assert_eq!(stage.received(one), format!("-ERR s0: {words}\r\n"));
    }
}

/// A relay lets all pass but one request, at which it closes.
#[test]
fn only_the_client_rests_whose_request_ends_a_link_for_slow_ones() {
    let (mut stage, link, client) = served(|_| {});
    let [evil, other] = [stage.client(), stage.client()];
    let slow = asks_anew(&mut stage, evil, "KEYS evil*");
    stage.closes(slow, Closed::Eof);
    stage.end_turn();
    assert!(stage.received(evil).contains("connection lost"));
    let slow = asks_anew(&mut stage, other, "KEYS *");
    // Though there is a link again.
    rests(&mut stage, evil, "KEYS evil*");
    assert_eq!(stage.turn(slow), "");
    stage.says(slow, "*0\r\n");
    assert_eq!(stage.received(other), "*0\r\n");
    serves(&mut stage, link, client);
    stage.passes(SECOND / 10);
    stage.says(evil, "KEYS evil*\r\n");
    assert_eq!(stage.turn(slow), resp("KEYS evil*"));
}

/// Has a client ask on a link that is made for that; returns it.
#[track_caller]
fn asks_anew(stage: &mut Stage, client: ConnId, request: &str) -> ConnId {
    stage.says(client, &format!("{request}\r\n"));
    stage.end_turn();
    let link = comes_up(stage);
    assert_eq!(stage.turn(link), resp(request));
    link
}

/// Has a client ask that gets no link.
#[track_caller]
fn rests(stage: &mut Stage, client: ConnId, request: &str) {
    stage.says(client, &format!("{request}\r\n"));
    assert!(stage.received(client).contains("takes no further connection (the last one was lost"));
}

/// It is asked on the link that all share, before that has brought an answer.
#[test]
fn a_script_that_ends_the_shared_link_keeps_no_other_client_waiting() {
    let mut stage = redis(|pool| pool.hold_after = None);
    let (link, evil, other) = (comes_up(&mut stage), stage.client(), stage.client());
    stage.says(evil, "EVAL evil 0\r\n");
    assert_eq!(stage.turn(link), resp("EVAL evil 0"));
    // Another worker is answered.
    stage.passes(1);
    stage.registry.metrics(1).set_answered(S0, stage.now().0);
    stage.closes(link, Closed::Eof);
    assert!(stage.received(evil).contains("connection lost"));
    let link = asks_anew(&mut stage, other, "GET k");
    rests(&mut stage, evil, "EVAL evil 0");
    assert_eq!(stage.turn(link), "");
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n");
}

/// Requests of two clients are on the link each time, and only one of them is always there.
#[test]
fn who_has_something_on_each_link_that_ends_rests() {
    let mut stage = redis(|pool| (pool.hold_after, pool.preconnect) = (None, false));
    let [evil, one, two] = [stage.client(), stage.client(), stage.client()];
    for other in [one, two, one] {
        for client in [other, evil] {
            stage.says(client, "SET k 1\r\n");
        }
        stage.end_turn();
        let link = comes_up(&mut stage);
        assert_eq!(stage.turn(link), all(&["SET k 1", "SET k 1"]));
        stage.passes(1);
        // Another worker is answered.
        stage.registry.metrics(1).set_answered(S0, stage.now().0);
        stage.closes(link, Closed::Eof);
        for client in [evil, other] {
            assert!(stage.received(client).contains("connection lost"));
        }
    }
    rests(&mut stage, evil, "SET k 1");
    assert_eq!(stage.connects, []);
    let link = asks_anew(&mut stage, one, "GET k");
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(one), "$-1\r\n");
    serves(&mut stage, link, two);
}
