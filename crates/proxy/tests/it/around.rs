//! Stories of clients that go around a shared link on which a request takes long.

use proto::protocol;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::resp::{BUSY, FULL, HELLO, WELCOME, comes_up, refuses, request as resp};
use crate::stage::{SECOND, Stage};

/// A request that takes so much longer than a round trip keeps others waiting. Here, a round trip
/// takes no time.
const LONG: u64 = 10_000;

/// A pool of Redis servers, and the links that clients share.
fn redis(servers: &[&str], class_links: usize) -> (Stage, Vec<ConnId>) {
    let mut stage = Stage::new(servers, |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.preconnect, pool.class_links) = (true, class_links);
        (pool.databases, pool.allow) = (16, vec!["flushall".into()]);
    });
    let links = servers.iter().map(|_| comes_up(&mut stage)).collect();
    (stage, links)
}

/// Has a client send a script that takes long.
fn occupies(stage: &mut Stage, link: ConnId) -> ConnId {
    let client = stage.client();
    stage.says(client, "EVAL endless 1 a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL endless 1 a"));
    client
}

#[test]
fn a_client_that_is_owed_nothing_reads_what_a_busy_server_says_to_others() {
    let (mut stage, links) = redis(&["s0"], 4);
    let (script, waits, quiet) = (occupies(&mut stage, links[0]), stage.client(), stage.client());
    stage.says(waits, "GET b\r\n");
    assert_eq!(stage.turn(links[0]), resp("GET b"));
    stage.passes(LONG - 1);
    assert!(stage.connects.is_empty());
    stage.passes(1);
    let spare = comes_up(&mut stage);
    stage.says(quiet, "GET c\r\n");
    assert_eq!(stage.turn(spare), resp("GET c"));
    stage.says(spare, BUSY);
    assert_eq!(stage.received(quiet), BUSY);
    // One that is owed an answer stays, so that its requests keep their order.
    stage.says(waits, "GET d\r\n");
    assert_eq!((stage.turn(spare), stage.turn(links[0])), (String::new(), resp("GET d")));
    stage.says(links[0], ":1\r\n$1\r\nb\r\n$1\r\nd\r\n");
    assert_eq!(stage.received(script), ":1\r\n");
    assert_eq!(stage.received(waits), "$1\r\nb\r\n$1\r\nd\r\n");
    stage.says(quiet, "GET e\r\n");
    assert_eq!((stage.turn(spare), stage.turn(links[0])), (String::new(), resp("GET e")));
    stage.says(links[0], "$-1\r\n");
    assert_eq!(stage.received(quiet), "$-1\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_client_goes_back_when_it_is_owed_nothing_there() {
    let (mut stage, links) = redis(&["s0"], 4);
    let quiet = stage.client();
    occupies(&mut stage, links[0]);
    stage.passes(LONG);
    let spare = comes_up(&mut stage);
    stage.says(quiet, "GET c\r\n");
    assert_eq!(stage.turn(spare), resp("GET c"));
    stage.says(links[0], ":1\r\n");
    stage.says(quiet, "GET d\r\n");
    assert_eq!((stage.turn(spare), stage.turn(links[0])), (resp("GET d"), String::new()));
    stage.says(spare, "$1\r\nc\r\n$1\r\nd\r\n");
    stage.says(quiet, "GET e\r\n");
    assert_eq!((stage.turn(spare), stage.turn(links[0])), (String::new(), resp("GET e")));
}

#[test]
fn a_spare_link_is_closed_when_it_was_not_needed_for_a_while() {
    let (mut stage, links) = redis(&["s0"], 4);
    occupies(&mut stage, links[0]);
    stage.passes(LONG);
    let spare = comes_up(&mut stage);
    stage.passes(SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [], "the script goes on");
    stage.says(links[0], ":1\r\n");
    stage.passes(SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [spare]);
    // The next one has another.
    let client = stage.client();
    stage.says(client, "EVAL other 1 a\r\n");
    assert_eq!(stage.turn(links[0]), resp("EVAL other 1 a"));
    stage.passes(LONG);
    comes_up(&mut stage);
}

#[test]
fn a_spare_link_that_is_lost_is_made_again_for_the_same_request() {
    let (mut stage, links) = redis(&["s0"], 4);
    let quiet = stage.client();
    occupies(&mut stage, links[0]);
    stage.passes(LONG);
    let spare = comes_up(&mut stage);
    stage.says(quiet, "GET c\r\n");
    assert_eq!(stage.turn(spare), resp("GET c"));
    stage.says(spare, BUSY);
    stage.closes(spare, Closed::Reset);
    stage.passes(LONG);
    let other = comes_up(&mut stage);
    stage.says(quiet, "GET d\r\n");
    assert_eq!(stage.turn(other), resp("GET d"));
}

/// It brought nothing, so its place rests for a while.
#[test]
fn a_spare_link_that_could_not_be_made_is_made_later_for_the_same_request() {
    for comes_up_first in [false, true] {
        let (mut stage, links) = redis(&["s0"], 4);
        let quiet = stage.client();
        occupies(&mut stage, links[0]);
        stage.passes(LONG);
        let (spare, how) = match comes_up_first {
            true => (comes_up(&mut stage), Closed::Reset),
            false => (stage.connects.remove(0).0, Closed::Unmade(111)),
        };
        stage.closes(spare, how);
        stage.passes(1);
        assert!(stage.connects.is_empty(), "its place rests after {how:?}");
        stage.passes(SECOND / 10);
        let other = comes_up(&mut stage);
        stage.says(quiet, "GET d\r\n");
        assert_eq!(stage.turn(other), resp("GET d"), "after {how:?}");
    }
}

#[test]
fn nobody_goes_around_where_no_room_is_left_for_another_link() {
    let (mut stage, links) = redis(&["s0"], 3);
    let quiet = stage.client();
    occupies(&mut stage, links[0]);
    stage.passes(LONG);
    assert!(stage.connects.is_empty());
    stage.says(quiet, "GET c\r\n");
    assert_eq!(stage.turn(links[0]), resp("GET c"));
}

/// Two servers, their links, and a key of each.
fn two_servers() -> (Stage, Vec<ConnId>, [String; 2]) {
    let (mut stage, links) = redis(&["s0", "s1"], 4);
    let key_at = |stage: &mut Stage, at: usize| {
        let client = stage.client();
        let key = (0..).map(|nth| format!("key{nth}")).find(|key| {
            stage.says(client, &format!("GET {key}\r\n"));
            let asked = stage.turn(links[at]);
            let other = stage.turn(links[1 - at]);
            stage.says(if other.is_empty() { links[at] } else { links[1 - at] }, "$-1\r\n");
            stage.received(client);
            !asked.is_empty()
        });
        key.expect("there is one")
    };
    let keys = [key_at(&mut stage, 0), key_at(&mut stage, 1)];
    (stage, links, keys)
}

/// A client that goes around one link asks the other servers as before. When it is to go around a
/// second one, what it is owed there comes first.
#[test]
fn requests_keep_their_order_when_a_second_link_is_occupied() {
    let (mut stage, links, keys) = two_servers();
    let (first, second, quiet) = (stage.client(), stage.client(), stage.client());
    let script = |at: usize| format!("EVAL endless{at} 1 {}", keys[at]);
    let get = |at: usize| resp(&format!("GET {}", keys[at]));
    stage.says(first, &resp(&script(0)));
    assert_eq!(stage.turn(links[0]), resp(&script(0)));
    stage.passes(LONG);
    let spare = comes_up(&mut stage);
    stage.says(quiet, &get(0));
    assert_eq!(stage.turn(spare), get(0));
    stage.says(second, &resp(&script(1)));
    assert_eq!(stage.turn(links[1]), resp(&script(1)));
    stage.says(quiet, &get(1));
    assert_eq!(stage.turn(links[1]), get(1));
    stage.passes(LONG);
    let other = comes_up(&mut stage);
    stage.says(quiet, &get(1));
    stage.says(spare, "$1\r\n0\r\n");
    assert_eq!([stage.turn(links[1]), stage.turn(other)], ["", ""], "it is owed an answer there");
    stage.says(links[1], ":1\r\n$1\r\n1\r\n");
    assert_eq!(stage.received(quiet), "$1\r\n0\r\n$1\r\n1\r\n");
    stage.end_turn();
    assert_eq!([stage.turn(links[1]), stage.turn(other)], [String::new(), get(1)]);
}

#[test]
fn a_select_is_refused_while_the_only_server_says_that_it_is_busy() {
    let (mut stage, links) = redis(&["s0"], 3);
    let quiet = stage.client();
    occupies(&mut stage, links[0]);
    stage.passes(SECOND / 10);
    stage.says(quiet, "SELECT 1\r\n");
    stage.end_turn();
    let control = comes_up(&mut stage);
    assert_eq!((stage.turn(control), stage.received(quiet)), (resp("PING"), String::new()));
    stage.says(control, BUSY);
    stage.end_turn();
    assert_eq!(stage.received(quiet), BUSY);
    // It is asked each time: nobody else may have asked since.
    stage.passes(SECOND / 50);
    stage.says(quiet, "SELECT 1\r\n");
    assert_eq!((stage.turn(control), stage.received(quiet)), (resp("PING"), String::new()));
    stage.says(control, "+PONG\r\n");
    stage.end_turn();
    assert_eq!(stage.received(quiet), "+OK\r\n");
    // However long it takes the server to say so. The proxy waits as long as a request may.
    let late = stage.client();
    stage.passes(SECOND / 50);
    stage.says(late, "SELECT 2\r\n");
    assert_eq!(stage.turn(control), resp("PING"));
    stage.waits(SECOND - 1);
    stage.end_turn();
    assert_eq!(stage.received(late), "");
    stage.waits(1);
    stage.end_turn();
    assert_eq!(stage.received(late), "+OK\r\n");
    stage.says(control, "+PONG\r\n");
    stage.end_turn();
    assert_eq!(stage.received(late), "");
}

/// Somebody with a connection of their own would read it at once.
#[test]
fn what_waits_behind_a_slow_request_reads_what_a_busy_server_says() {
    let (mut stage, _) = redis(&["s0"], 4);
    let [first, second] = [stage.client(), stage.client()];
    stage.says(first, "KEYS *\r\n");
    stage.end_turn();
    let slow = comes_up(&mut stage);
    assert_eq!(stage.turn(slow), resp("KEYS *"));
    stage.says(second, "KEYS b*\r\n");
    assert_eq!(stage.turn(slow), "");
    stage.passes(LONG - 1);
    assert!(stage.connects.is_empty());
    stage.passes(1);
    let control = comes_up(&mut stage);
    for (says, hears) in [(BUSY, BUSY), ("+PONG\r\n", ""), (BUSY, BUSY)] {
        let mut asked = stage.turn(control);
        if asked == HELLO {
            // It has been silent for so long.
            stage.says(control, WELCOME);
            asked = stage.turn(control);
        }
        assert_eq!((asked, stage.received(second)), (resp("PING"), String::new()));
        stage.says(control, says);
        assert_eq!((stage.turn(slow), stage.received(second)), (String::new(), hears.to_string()));
        if !hears.is_empty() {
            stage.says(second, "KEYS c*\r\n");
            stage.end_turn();
        }
        stage.passes(50_000);
    }
    // The server has done it meanwhile.
    stage.says(slow, "*0\r\n");
    // The question that it was asked meanwhile has its turn first.
    assert_eq!((stage.turn(slow), stage.turn(control)), (String::new(), resp("PING")));
    stage.says(control, "+PONG\r\n");
    assert_eq!((stage.received(first), stage.turn(slow)), ("*0\r\n".to_string(), resp("KEYS c*")));
    stage.says(slow, "*0\r\n");
    assert_eq!(stage.received(second), "*0\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_spare_link_that_is_made_anew_is_closed_in_its_time_too() {
    let (mut stage, links) = redis(&["s0"], 4);
    let quiet = stage.client();
    occupies(&mut stage, links[0]);
    stage.passes(LONG);
    let spare = comes_up(&mut stage);
    stage.says(quiet, "GET c\r\n");
    assert_eq!(stage.turn(spare), resp("GET c"));
    stage.says(spare, "$-1\r\n");
    assert_eq!(stage.received(quiet), "$-1\r\n");
    // The end of its connection comes in the turn of the next request.
    stage.says(quiet, "GET d\r\n");
    stage.closes(spare, Closed::Eof);
    let other = comes_up(&mut stage);
    assert_eq!(stage.turn(other), resp("GET d"));
    stage.says(other, BUSY);
    assert_eq!(stage.received(quiet), BUSY);
    stage.says(links[0], ":1\r\n");
    stage.waits(2 * SECOND);
    stage.end_turn();
    assert_eq!(stage.closed, [other]);
}

/// It was behind a quick request when both left.
#[test]
fn a_script_behind_a_quick_request_is_gone_around_as_well() {
    let (mut stage, links) = redis(&["s0"], 4);
    let (reads, script) = (stage.client(), stage.client());
    stage.says(reads, "GET a\r\n");
    stage.says(script, "EVAL endless 1 a\r\n");
    assert_eq!(stage.turn(links[0]), resp("GET a") + &resp("EVAL endless 1 a"));
    stage.says(links[0], "$-1\r\n");
    stage.end_turn();
    stage.waits(LONG + 1);
    assert_eq!(stage.connects.len(), 1);
}

const SELECT: &str = "*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n";

/// Brings up the link of the first database but one that was ordered first.
fn comes_up_in_1(stage: &mut Stage) -> ConnId {
    stage.end_turn();
    let link = stage.establishes_with(&[SELECT, HELLO].concat());
    stage.says(link, &["+OK\r\n", WELCOME].concat());
    link
}

/// A server that is busy chooses no other database for a link.
#[test]
fn a_client_in_another_database_reads_what_a_busy_server_says_as_well() {
    let (mut stage, _) = redis(&["s0"], 4);
    let [script, quiet] = [stage.client(), stage.client()];
    for client in [script, quiet] {
        stage.says(client, "SELECT 1\r\n");
        assert_eq!(stage.received(client), "+OK\r\n");
    }
    stage.says(script, "EVAL endless 1 a\r\n");
    let link = comes_up_in_1(&mut stage);
    assert_eq!(stage.turn(link), resp("EVAL endless 1 a"));
    stage.passes(LONG);
    let spare = stage.establishes_with(&[SELECT, HELLO].concat());
    stage.says(spare, &[BUSY, WELCOME].concat());
    for _ in 0..2 {
        stage.says(quiet, "GET c\r\n");
        stage.end_turn();
        assert_eq!(stage.received(quiet), BUSY);
        stage.passes(SECOND / 20);
    }
    // It is asked again, and is not busy any more.
    stage.says(link, ":1\r\n");
    stage.passes(SECOND / 10);
    assert_eq!(stage.turn(spare), [SELECT, HELLO].concat());
    stage.says(script, "EVAL other 1 a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL other 1 a"));
    stage.says(spare, &["+OK\r\n", WELCOME].concat());
    stage.passes(LONG);
    stage.says(quiet, "GET d\r\n");
    assert_eq!(stage.turn(spare), resp("GET d"));
    stage.says(spare, "$-1\r\n");
    assert_eq!(stage.received(quiet), "$-1\r\n");
}

/// It has no deadline while it waits for its links.
#[test]
fn a_change_at_several_servers_does_not_wait_for_a_busy_one() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.databases, pool.distribution) = (16, Distribution::Modula);
    });
    let client = stage.client();
    let keys: String = (0..16).map(|nth| format!(" key{nth}")).collect();
    stage.says(client, &format!("SELECT 1\r\nDEL{keys}\r\n"));
    stage.end_turn();
    let free = comes_up_in_1(&mut stage);
    stage.end_turn();
    let busy = stage.establishes_with(&[SELECT, HELLO].concat());
    assert_eq!(stage.received(client), "+OK\r\n");
    stage.says(busy, &[BUSY, WELCOME].concat());
    stage.end_turn();
    assert_eq!(stage.received(client), BUSY);
    assert_eq!((stage.turn(free), stage.turn(busy)), (String::new(), String::new()));
    stage.expect_rows(0);
}

/// The other part of it has been made.
#[test]
fn a_part_of_a_change_of_several_servers_waits_for_the_busy_one() {
    let (mut stage, _) = redis(&["s0", "s1"], 4);
    let [first, second] = [stage.client(), stage.client()];
    stage.says(first, "KEYS *\r\n");
    stage.end_turn();
    let slow = [comes_up(&mut stage), comes_up(&mut stage)];
    stage.end_turn();
    assert_eq!(slow.map(|one| stage.turn(one)), [resp("KEYS *"), resp("KEYS *")]);
    stage.says(slow[0], "*0\r\n");
    stage.says(second, "FLUSHALL\r\n");
    assert_eq!(stage.turn(slow[0]), resp("FLUSHALL"));
    stage.says(slow[0], "+OK\r\n");
    stage.passes(LONG);
    let control = comes_up(&mut stage);
    assert_eq!(stage.turn(control), resp("PING"));
    stage.says(control, BUSY);
    assert_eq!((stage.turn(slow[1]), stage.received(second)), (String::new(), String::new()));
    stage.says(slow[1], "*0\r\n");
    assert_eq!(stage.turn(slow[1]), resp("FLUSHALL"));
    stage.says(slow[1], "+OK\r\n");
    assert_eq!(stage.received(second), "+OK\r\n");
}

/// The server is silent on the occupied link, so a link that was idle is tried before it is used.
#[test]
fn a_client_goes_around_while_the_spare_link_repeats_its_handshake() {
    let (mut stage, links) = redis(&["s0"], 4);
    let [first, second, third] = [stage.client(), stage.client(), stage.client()];
    occupies(&mut stage, links[0]);
    stage.passes(LONG);
    let spare = comes_up(&mut stage);
    stage.says(first, "GET c\r\n");
    assert_eq!(stage.turn(spare), resp("GET c"));
    stage.says(spare, BUSY);
    assert_eq!(stage.received(first), BUSY);
    stage.waits(SECOND / 10);
    stage.says(first, "GET d\r\n");
    assert_eq!(stage.turn(spare), HELLO);
    stage.says(second, "INCR e\r\n");
    assert_eq!([stage.turn(spare), stage.turn(links[0])], ["", ""]);
    stage.says(spare, WELCOME);
    assert_eq!(stage.turn(spare), resp("GET d") + &resp("INCR e"));
    stage.says(third, "GET f\r\n");
    assert_eq!(stage.turn(spare), resp("GET f"));
    stage.says(spare, &BUSY.repeat(3));
    assert_eq!([first, second, third].map(|one| stage.received(one)), [BUSY; 3]);
}

/// Nobody waits for a link that may not come, if another one is up.
#[test]
fn a_client_that_goes_around_one_server_waits_for_no_spare_link_of_another() {
    for is_full in [true, false] {
        let (mut stage, links, keys) = two_servers();
        let get = |at: usize| format!("GET {}", keys[at]);
        let quiet = stage.client();
        for at in [0, 1] {
            let (script, words) = (stage.client(), format!("EVAL endless{at} 1 {}", keys[at]));
            stage.says(script, &resp(&words));
            assert_eq!(stage.turn(links[at]), resp(&words));
            stage.passes(LONG);
            if at == 0 {
                let spare = comes_up(&mut stage);
                stage.says(quiet, &resp(&get(0)));
                assert_eq!(stage.turn(spare), resp(&get(0)));
                stage.says(spare, "$1\r\n0\r\n");
                assert_eq!(stage.received(quiet), "$1\r\n0\r\n");
            }
        }
        assert_eq!(stage.connects.len(), 1, "the spare link of the other");
        stage.says(quiet, &resp(&get(1)));
        assert_eq!(stage.turn(links[1]), resp(&get(1)));
        if is_full {
            refuses(&mut stage);
        }
        stage.says(links[1], ":1\r\n$1\r\n1\r\n");
        assert_eq!(stage.received(quiet), "$1\r\n1\r\n");
    }
}

/// The server has closed it, and takes no further connection.
#[test]
fn what_waits_for_a_spare_link_that_is_not_made_anew_goes_to_the_shared_one() {
    let (mut stage, links) = redis(&["s0"], 4);
    let [one, other] = [stage.client(), stage.client()];
    let script = occupies(&mut stage, links[0]);
    stage.passes(LONG);
    let spare = comes_up(&mut stage);
    for client in [one, other] {
        stage.says(client, "GET a\r\n");
        assert_eq!(stage.turn(spare), resp("GET a"));
        stage.says(spare, "$-1\r\n");
        assert_eq!(stage.received(client), "$-1\r\n");
    }
    // The end of its connection comes in the turn of the next request.
    stage.says(one, "INCR b\r\n");
    stage.closes(spare, Closed::Eof);
    stage.end_turn();
    let (anew, _) = stage.begins().expect("it is made anew");
    stage.says(other, "INCR b\r\n");
    stage.says(anew, FULL);
    stage.closes(anew, Closed::Eof);
    assert_eq!(stage.turn(links[0]), resp("INCR b").repeat(2));
    stage.says(one, "INCR d\r\n");
    assert_eq!(stage.turn(links[0]), "", "it goes back, owed nothing");
    stage.says(links[0], ":1\r\n:2\r\n:2\r\n");
    assert_eq!(stage.turn(links[0]), resp("INCR d"));
    stage.says(links[0], ":3\r\n");
    let received = [script, one, other].map(|client| stage.received(client));
    assert_eq!(received, [":1\r\n", ":2\r\n:3\r\n", ":2\r\n"]);
    // The next script has a spare link again.
    stage.passes(SECOND / 10);
    occupies(&mut stage, links[0]);
    stage.passes(LONG);
    comes_up(&mut stage);
    stage.expect_rows(1);
}

/// The text of an error is the script's own.
#[test]
fn a_script_that_says_that_its_server_is_busy_is_not_believed() {
    let (mut stage, links) = redis(&["s0"], 4);
    let [script, quiet] = [stage.client(), stage.client()];
    for is_true in [false, true] {
        stage.says(script, "EVAL lies 1 a\r\n");
        assert_eq!(stage.turn(links[0]), resp("EVAL lies 1 a"));
        stage.says(links[0], BUSY);
        assert_eq!(stage.received(script), BUSY);
        // It is asked.
        assert_eq!(stage.turn(links[0]), resp("PING"));
        stage.says(quiet, "PING\r\n");
        assert_eq!(stage.received(quiet), "+PONG\r\n");
        stage.says(links[0], if is_true { BUSY } else { "+PONG\r\n" });
        stage.end_turn();
    }
    // Now it has said so itself, and is asked each time.
    stage.says(quiet, "PING\r\n");
    assert_eq!(stage.turn(links[0]), resp("PING"));
    stage.says(links[0], BUSY);
    assert_eq!(stage.received(quiet), BUSY);
}
