//! The classes of links: slow requests, and those that end them, keep no other request waiting.

use proto::protocol;
use proxy::{Closed, ConnId};

use crate::stage::resp::{BUSY, HELLO, WELCOME, comes_up, request as resp};
use crate::stage::{SECOND, Stage};

/// A pool of one Redis server, and the link that clients share. Nobody goes around it.
fn redis() -> (Stage, ConnId) {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.preconnect, pool.class_links) = (true, 3);
    });
    let link = comes_up(&mut stage);
    (stage, link)
}

/// Has a client send KEYS, on a link of its own that is up now.
fn busy(stage: &mut Stage, client: ConnId) -> ConnId {
    stage.says(client, "KEYS *\r\n");
    stage.end_turn();
    let slow = comes_up(stage);
    assert_eq!(stage.turn(slow), resp("KEYS *"));
    slow
}

#[test]
fn what_a_server_is_busy_with_is_no_failure_and_late_replies_go_nowhere() {
    let (mut stage, link) = redis();
    let (slow_one, reads, writes, later) =
        (stage.client(), stage.client(), stage.client(), stage.client());
    stage.says(reads, "GET a\r\n");
    stage.says(writes, "INCR b\r\n");
    let slow = busy(&mut stage, slow_one);
    assert_eq!(stage.turn(link), resp("GET a") + &resp("INCR b"));
    stage.passes(SECOND / 10);
    stage.says(later, "GET c\r\n");
    stage.end_turn();
    stage.passes(SECOND * 9 / 10);
    assert_eq!(stage.received(reads), "-ERR s0: no reply in time\r\n");
    assert_eq!(stage.received(writes), "-ERR s0: no reply in time, outcome unknown\r\n");
    stage.passes(SECOND / 10);
    let told = "-ERR s0: busy with KEYS for 1.1 s, not sent\r\n";
    assert_eq!((stage.received(later).as_str(), &stage.closed), (told, &vec![]));
    stage.passes(SECOND);
    assert_eq!((stage.healths(), &stage.closed), (vec!["s0 ready".to_string()], &vec![]));
    stage.says(slow, "*1\r\n$1\r\na\r\n");
    assert_eq!(stage.received(slow_one), "*1\r\n$1\r\na\r\n");
    // The late replies belong to nobody; the next one does.
    stage.says(reads, "GET d\r\n");
    stage.end_turn();
    stage.says(link, "$4\r\nlate\r\n:1\r\n");
    assert_eq!(stage.turn(link), resp("GET d"));
    stage.says(link, "$3\r\nnew\r\n");
    assert_eq!(
        (stage.received(reads).as_str(), stage.received(writes).as_str()),
        ("$3\r\nnew\r\n", "")
    );
    stage.expect_rows(0);
}

#[test]
fn a_request_behind_a_slow_one_on_its_link_waits_no_longer_than_it_may() {
    let (mut stage, link) = redis();
    let (slow_one, reads) = (stage.client(), stage.client());
    stage.says(slow_one, "EVAL script 1 a\r\n");
    stage.says(reads, "GET a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL script 1 a") + &resp("GET a"));
    stage.passes(SECOND);
    assert_eq!(stage.received(reads), "-ERR s0: no reply in time\r\n");
    assert_eq!((stage.received(slow_one).as_str(), &stage.closed), ("", &vec![]));
    stage.says(reads, "GET b\r\n");
    stage.end_turn();
    stage.says(link, ":1\r\n$4\r\nlate\r\n");
    assert_eq!(stage.received(slow_one), ":1\r\n");
    assert_eq!(stage.turn(link), resp("GET b"));
    stage.says(link, "$3\r\nnew\r\n");
    assert_eq!(stage.received(reads), "$3\r\nnew\r\n");
    stage.expect_rows(0);
}

#[test]
fn scripts_that_were_never_tried_leave_one_at_a_time_and_others_go_between() {
    let (mut stage, link) = redis();
    let (jobs, reads) = (stage.client(), stage.client());
    let script = |nth: u32| resp(&format!("EVAL script{nth} 1 a"));
    stage.says(jobs, &[1, 2, 2, 2, 2].map(script).concat());
    assert_eq!(stage.turn(link), script(1));
    stage.says(reads, "GET b\r\n");
    assert_eq!(stage.turn(link), resp("GET b"));
    stage.says(link, ":1\r\n$1\r\nb\r\n");
    assert_eq!(stage.turn(link), script(2));
    // An error says nothing: the script may not have run.
    stage.says(link, "-NOSCRIPT\r\n");
    assert_eq!(stage.turn(link), script(2));
    // It was quick: what is like it need not wait.
    stage.says(link, ":2\r\n");
    assert_eq!(stage.turn(link), script(2).repeat(2));
    stage.says(jobs, &script(1).repeat(3));
    assert_eq!(stage.turn(link), script(1).repeat(3));
    stage.says(link, &":3\r\n".repeat(5));
    assert_eq!(stage.received(jobs), ":1\r\n-NOSCRIPT\r\n:2\r\n".to_string() + &":3\r\n".repeat(5));
    assert_eq!(stage.received(reads), "$1\r\nb\r\n");
    stage.expect_rows(0);
}

#[test]
fn only_a_few_untried_scripts_of_all_clients_are_outstanding_on_a_link() {
    let (mut stage, link) = redis();
    let clients: Vec<_> = (0..6).map(|_| stage.client()).collect();
    for (nth, client) in clients.iter().enumerate() {
        stage.says(*client, &format!("EVAL script{nth} 1 a\r\n"));
    }
    assert_eq!(stage.turn(link).matches("EVAL").count(), 4);
    stage.says(link, ":0\r\n");
    assert_eq!(stage.turn(link), resp("EVAL script4 1 a"));
}

/// A client that sends one script of a second after the other would leave others one request for
/// each of them.
#[test]
fn after_a_request_that_took_long_the_next_lets_those_that_wait_go_first() {
    let (mut stage, link) = redis();
    let (jobs, reads) = (stage.client(), stage.client());
    let script = |nth: u32| resp(&format!("EVAL script{nth} 1 a"));
    stage.says(jobs, &[1, 2, 3, 4].map(script).concat());
    assert_eq!(stage.turn(link), script(1));
    stage.says(reads, "GET b\r\n");
    assert_eq!(stage.turn(link), resp("GET b"));
    stage.passes(SECOND / 50);
    stage.says(link, ":1\r\n");
    assert_eq!(stage.turn(link), "", "it waits for the read");
    stage.says(link, "$1\r\nb\r\n");
    assert_eq!(stage.turn(link), script(2), "and no longer");
    // Nobody else waits.
    stage.passes(SECOND / 50);
    stage.says(link, ":2\r\n");
    assert_eq!(stage.turn(link), script(3));
    // It waits as long as the last one took, even if the read is not answered.
    stage.says(reads, "GET c\r\n");
    assert_eq!(stage.turn(link), resp("GET c"));
    stage.passes(SECOND / 50);
    stage.says(link, ":3\r\n");
    stage.passes(SECOND / 50 - 1);
    assert_eq!(stage.turn(link), "");
    stage.passes(1);
    assert_eq!(stage.turn(link), script(4));
    stage.says(link, "$1\r\nc\r\n:4\r\n");
    stage.expect_rows(0);
}

#[test]
fn one_that_comes_after_a_request_that_took_long_lets_those_that_wait_go_first() {
    let (mut stage, link) = redis();
    let [jobs, reads, late] = [stage.client(), stage.client(), stage.client()];
    let script = |nth: u32| resp(&format!("EVAL script{nth} 1 a"));
    stage.says(jobs, &script(1));
    assert_eq!(stage.turn(link), script(1));
    stage.says(reads, "GET b\r\n");
    assert_eq!(stage.turn(link), resp("GET b"));
    stage.passes(SECOND / 50);
    stage.says(link, ":1\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(late, &script(2));
    assert_eq!(stage.turn(link), "", "the read has not been answered");
    stage.says(link, "$1\r\nb\r\n");
    assert_eq!(stage.turn(link), script(2));
}

#[test]
fn none_lets_others_go_first_for_longer_than_half_of_the_time_that_it_may_wait() {
    const TOOK: u64 = SECOND / 50;
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.preconnect = true;
        pool.timeouts.queue = TOOK;
    });
    let link = comes_up(&mut stage);
    let [jobs, reads] = [stage.client(), stage.client()];
    let script = |nth: u32| resp(&format!("EVAL script{nth} 1 a"));
    stage.says(jobs, &script(1));
    assert_eq!(stage.turn(link), script(1));
    stage.passes(TOOK);
    stage.says(reads, "GET b\r\n");
    assert_eq!(stage.turn(link), resp("GET b"));
    stage.says(link, ":1\r\n");
    stage.says(jobs, &script(2));
    stage.passes(TOOK / 2 - 1);
    assert_eq!(stage.turn(link), "");
    stage.passes(1);
    assert_eq!(stage.turn(link), script(2));
}

/// Their number is bounded, and not what their answers may cost.
#[test]
fn a_link_of_slow_requests_has_one_whatever_it_costs() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.inflight = 1;
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
        plan.pools[0].preconnect = true;
    });
    comes_up(&mut stage);
    let [first, second] = [stage.client(), stage.client()];
    let slow = busy(&mut stage, first);
    stage.says(second, "KEYS *\r\n");
    assert_eq!(stage.turn(slow), "");
    stage.says(slow, "*0\r\n");
    assert_eq!(stage.turn(slow), resp("KEYS *"));
}

#[test]
fn a_late_reply_with_another_number_of_values_closes_its_link() {
    let (mut stage, link) = redis();
    let (slow_one, reads) = (stage.client(), stage.client());
    stage.says(reads, "MGET a b\r\n");
    busy(&mut stage, slow_one);
    assert_eq!(stage.turn(link), resp("MGET a b"));
    stage.passes(SECOND);
    assert_eq!(stage.received(reads), "-ERR s0: no reply in time\r\n");
    stage.says(link, "*3\r\n");
    assert_eq!(stage.closed, [link]);
}

const LATE: &str = "-ERR s0: no reply in time\r\n";

/// Has a server that was silent answer a request on the shared link.
fn answers(stage: &mut Stage, link: ConnId) {
    let client = stage.client();
    stage.says(client, "GET a\r\n");
    assert_eq!(stage.turn(link), HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(client), "$-1\r\n");
    stage.closes(client, Closed::Reset);
}

#[test]
fn the_late_reply_to_a_slow_request_that_has_had_its_time_is_discarded_in_its_place() {
    let (mut stage, link) = redis();
    let [reads, writes] = [stage.client(), stage.client()];
    let slow = busy(&mut stage, reads);
    stage.passes(10 * SECOND - 1);
    assert_eq!(stage.received(reads), "");
    stage.passes(1);
    assert_eq!(stage.received(reads), LATE);
    // The next one waits for its turn on the same link, and gets its own reply.
    answers(&mut stage, link);
    stage.passes(5 * SECOND);
    stage.says(writes, "SORT a STORE b\r\n");
    assert_eq!(stage.turn(slow), "", "one is outstanding");
    stage.says(slow, "*1\r\n$4\r\nlate\r\n");
    assert_eq!(stage.turn(slow), resp("SORT a STORE b"));
    stage.says(slow, ":3\r\n");
    assert_eq!((stage.received(reads).as_str(), stage.received(writes).as_str()), ("", ":3\r\n"));
    assert_eq!((stage.healths(), &stage.closed), (vec!["s0 ready".to_string()], &vec![]));
    stage.expect_rows(0);
}

#[test]
fn a_slow_request_that_waited_for_another_has_the_time_since_it_was_sent() {
    let (mut stage, link) = redis();
    let [first, second] = [stage.client(), stage.client()];
    let slow = busy(&mut stage, first);
    stage.passes(SECOND);
    answers(&mut stage, link);
    stage.says(second, "KEYS b*\r\n");
    assert_eq!(stage.turn(slow), "", "the server does one at a time");
    stage.says(slow, "*0\r\n");
    assert_eq!(stage.received(first), "*0\r\n");
    assert_eq!(stage.turn(slow), resp("KEYS b*"));
    stage.passes(10 * SECOND - 1);
    assert_eq!(stage.received(second), "");
    stage.passes(1);
    assert_eq!(stage.received(second), LATE);
}

/// Lets so much time pass, in many turns.
fn lasts(stage: &mut Stage, time: u64) {
    for _ in 0..time / (SECOND / 20) {
        stage.waits(SECOND / 20);
        stage.end_turn();
    }
}

/// A server that reads several requests at once does them all before it writes a reply. So the
/// first of them is quick, and is answered late all the same.
#[test]
fn a_quick_request_in_front_of_a_script_waits_with_it_and_its_server_is_well() {
    let (mut stage, link) = redis();
    let [quick, slow, later] = [stage.client(), stage.client(), stage.client()];
    stage.says(quick, "GET a\r\n");
    stage.says(slow, "EVAL script 1 a\r\n");
    assert_eq!(stage.turn(link), [resp("GET a"), resp("EVAL script 1 a")].concat());
    lasts(&mut stage, SECOND - SECOND / 20);
    assert_eq!(stage.received(quick), "", "it has its time");
    lasts(&mut stage, SECOND / 20);
    assert_eq!(stage.received(quick), LATE);
    lasts(&mut stage, 3 * SECOND);
    assert_eq!((stage.healths(), &stage.closed), (vec!["s0 ready".to_string()], &vec![]));
    stage.says(link, "$1\r\nx\r\n:7\r\n");
    assert_eq!(stage.received(slow), ":7\r\n");
    stage.says(later, "GET a\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(link), resp("GET a"));
    assert_eq!((stage.received(quick).as_str(), stage.reports.as_slice()), ("", &[][..]));
}

/// The server has failed if it answers nobody.
#[test]
fn a_slow_request_that_has_twice_its_time_ends_its_link_and_not_its_server() {
    for answers_others in [true, false] {
        let (mut stage, link) = redis();
        let client = stage.client();
        let slow = busy(&mut stage, client);
        stage.passes(10 * SECOND);
        assert_eq!((stage.received(client).as_str(), &stage.closed), (LATE, &vec![]));
        stage.passes(10 * SECOND - 1);
        if answers_others {
            answers(&mut stage, link);
        }
        assert!(!stage.closed.contains(&slow));
        stage.passes(1);
        assert!(stage.closed.contains(&slow));
        // If it was silent everywhere, another connection shows whether it is there.
        lasts(&mut stage, 3 * SECOND);
        let health = if answers_others { "s0 ready" } else { "s0 down" };
        assert_eq!(stage.healths(), [health]);
        assert_eq!(stage.reports.is_empty(), answers_others);
        assert_eq!(stage.received(client), "");
        stage.expect_rows(0);
    }
}

/// Others wait for the link, and may be answered on another one.
#[test]
fn a_slow_request_that_has_had_its_time_ends_a_shared_link_and_not_its_server() {
    for (class_links, request) in [(3, "EVAL script 1 a"), (0, "KEYS *")] {
        for speaks_at in [None, Some(SECOND - 1), Some(SECOND)] {
            let mut stage = Stage::new(&["s0"], |pool| {
                pool.protocol = protocol("redis").expect("the table has it");
                (pool.preconnect, pool.server_connections) = (true, 2);
                pool.class_links = class_links;
            });
            let links = [comes_up(&mut stage), comes_up(&mut stage)];
            let [slow_one, later] = [stage.client(), stage.client()];
            stage.says(slow_one, &format!("{request}\r\n"));
            let sent = links.map(|link| stage.turn(link));
            let at = sent.iter().position(|sent| *sent == resp(request)).expect("it is sent");
            let (link, other) = (links[at], links[1 - at]);
            let speaks_at = speaks_at.inspect(|at| {
                stage.passes(*at);
                stage.says(later, "GET a\r\n");
                assert_eq!(stage.turn(other), HELLO);
                stage.says(other, BUSY);
            });
            stage.passes(10 * SECOND - 1 - speaks_at.unwrap_or(0));
            assert_eq!((stage.received(slow_one).as_str(), &stage.closed), ("", &vec![]));
            stage.passes(1);
            let unknown = "-ERR s0: no reply in time, outcome unknown\r\n";
            let told = if class_links == 0 { LATE } else { unknown };
            assert_eq!((stage.received(slow_one).as_str(), &stage.closed), (told, &vec![link]));
            let is_well = speaks_at == Some(SECOND);
            lasts(&mut stage, if is_well { 0 } else { 3 * SECOND });
            let health = if is_well { "s0 ready" } else { "s0 down" };
            assert_eq!(stage.healths(), [health], "{request} {speaks_at:?}");
            assert_eq!(stage.reports.is_empty(), is_well);
        }
    }
}

#[test]
fn a_client_that_changes_the_class_waits_until_nothing_is_owed() {
    let (mut stage, link) = redis();
    let client = stage.client();
    stage.says(client, "SET a 1\r\nKEYS *\r\nGET a\r\n");
    assert_eq!(stage.turn(link), resp("SET a 1"));
    assert_eq!(stage.connects, [], "KEYS waits");
    stage.says(link, "+OK\r\n");
    stage.end_turn();
    let slow = comes_up(&mut stage);
    assert_eq!(stage.turn(slow), resp("KEYS *"));
    assert_eq!(stage.turn(link), "");
    stage.says(slow, "*0\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.says(link, "$1\r\n1\r\n");
    assert_eq!(stage.received(client), "+OK\r\n*0\r\n$1\r\n1\r\n");
}

#[test]
fn one_slow_request_is_outstanding_of_all_clients() {
    let (mut stage, _) = redis();
    let clients = [stage.client(), stage.client(), stage.client()];
    stage.says(clients[0], "KEYS a\r\nKEYS b\r\n");
    stage.end_turn();
    let slow = comes_up(&mut stage);
    assert_eq!(stage.turn(slow), resp("KEYS a"));
    stage.says(clients[1], "KEYS c\r\n");
    stage.says(clients[2], "KEYS d\r\n");
    assert_eq!(stage.turn(slow), "", "one is enough");
    for _ in 0..3 {
        stage.says(slow, "*0\r\n");
        assert_eq!(stage.turn(slow).matches("KEYS").count(), 1);
    }
    stage.says(slow, "*0\r\n");
    assert_eq!(stage.received(clients[0]), "*0\r\n".repeat(2));
}

/// It keeps nobody waiting, and waits for nobody's work to end.
#[test]
fn a_slow_request_lets_those_go_first_who_wait_and_not_one_that_waits_at_its_server() {
    let (mut stage, link) = redis();
    let [waits, quick, slow_one, next] = [(); 4].map(|()| stage.client());
    stage.says(waits, "BLPOP l 0\r\n");
    stage.end_turn();
    let own = comes_up(&mut stage);
    assert_eq!(stage.turn(own), resp("BLPOP l 0"));
    let slow = busy(&mut stage, slow_one);
    stage.says(next, "KEYS a\r\n");
    stage.says(quick, "GET b\r\n");
    assert_eq!(stage.turn(link), resp("GET b"));
    stage.passes(SECOND / 10);
    stage.says(slow, "*0\r\n");
    assert_eq!(stage.turn(slow), "", "a get waits");
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.turn(slow), resp("KEYS a"));
}

#[test]
fn a_script_that_took_long_is_slow_the_next_time() {
    let (mut stage, link) = redis();
    let client = stage.client();
    for is_slow in [false, true] {
        stage.says(client, "EVAL script 1 a\r\n");
        stage.end_turn();
        let takes = if is_slow { comes_up(&mut stage) } else { link };
        assert_eq!(stage.turn(takes), resp("EVAL script 1 a"));
        stage.passes(SECOND / 50);
        stage.says(takes, ":1\r\n");
        assert_eq!(stage.received(client), ":1\r\n");
    }
    // Another script is not.
    stage.says(client, "EVAL other 1 a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL other 1 a"));
}

#[test]
fn a_script_is_killed_over_a_free_link_past_the_hold() {
    let (mut stage, link) = redis();
    let (client, killer) = (stage.client(), stage.client());
    stage.says(client, "EVAL endless 1 a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL endless 1 a"));
    stage.passes(5 * SECOND);
    stage.says(killer, "SCRIPT KILL\r\n");
    stage.end_turn();
    let control = comes_up(&mut stage);
    assert_eq!(stage.turn(control), resp("SCRIPT KILL"));
    stage.says(control, "+OK\r\n");
    assert_eq!(stage.received(killer), "+OK\r\n");
    stage.says(link, "-ERR killed\r\n");
    assert_eq!(stage.received(client), "-ERR killed\r\n");
}

#[test]
fn a_ping_shows_what_the_only_server_says() {
    let (mut stage, link) = redis();
    let (client, other) = (stage.client(), stage.client());
    stage.says(client, "PING\r\n");
    assert_eq!(stage.received(client), "+PONG\r\n");
    stage.says(client, "GET a\r\n");
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.says(link, BUSY);
    assert_eq!(stage.received(client), BUSY);
    for (answer, shown) in [(BUSY, BUSY), ("+PONG\r\n", "+PONG\r\n")] {
        stage.says(other, "PING\r\n");
        assert_eq!(stage.turn(link), resp("PING"), "it asks the server");
        stage.says(link, answer);
        assert_eq!(stage.received(other), shown);
    }
    stage.says(other, "PING\r\n");
    assert_eq!((stage.turn(link).as_str(), stage.received(other).as_str()), ("", "+PONG\r\n"));
}

#[test]
fn a_ping_is_asked_of_the_only_server_when_that_has_been_silent_for_a_while() {
    let (mut stage, link) = redis();
    let (client, other) = (stage.client(), stage.client());
    stage.says(client, "EVAL endless 1 a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL endless 1 a"));
    stage.passes(SECOND / 20);
    stage.says(other, "PING\r\n");
    assert_eq!(stage.received(other), "+PONG\r\n");
    stage.passes(SECOND / 10);
    stage.says(other, "PING\r\n");
    stage.end_turn();
    let control = comes_up(&mut stage);
    assert_eq!(stage.turn(control), resp("PING"), "the script is not before it");
    stage.says(control, BUSY);
    assert_eq!(stage.received(other), BUSY);
    // One that waits for its own script is told as well, in its turn.
    stage.says(client, "PING\r\n");
    assert_eq!(stage.turn(control), resp("PING"));
    stage.says(control, BUSY);
    assert_eq!(stage.received(client), "");
    stage.says(link, ":1\r\n");
    assert_eq!(stage.received(client), format!(":1\r\n{BUSY}"));
}

#[test]
fn a_ping_passes_what_is_held_since_its_only_server_is_silent() {
    let (mut stage, link) = redis();
    let (client, other) = (stage.client(), stage.client());
    stage.says(client, "EVAL script 1 a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL script 1 a"));
    stage.passes(SECOND / 50);
    stage.says(link, ":1\r\n");
    stage.says(client, "EVAL script 1 a\r\n");
    stage.end_turn();
    let slow = comes_up(&mut stage);
    assert_eq!(stage.turn(slow), resp("EVAL script 1 a"));
    stage.passes(SECOND / 5);
    stage.says(other, "PING\r\n");
    stage.end_turn();
    let control = comes_up(&mut stage);
    assert_eq!((stage.turn(control), stage.turn(link)), (resp("PING"), String::new()));
    stage.says(control, BUSY);
    assert_eq!(stage.received(other), BUSY);
}

#[test]
fn a_ping_shows_that_a_server_is_too_busy_for_a_handshake() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.preconnect = true;
    });
    let link = stage.establishes_with(HELLO);
    stage.says(link, BUSY);
    let client = stage.client();
    stage.says(client, "PING\r\n");
    assert_eq!(stage.received(client), BUSY);
    stage.passes(SECOND / 10);
    assert_eq!(stage.turn(link), HELLO, "it is asked again");
    stage.says(link, WELCOME);
    stage.says(client, "PING\r\n");
    assert_eq!(stage.received(client), "+PONG\r\n");
}

/// A client that asks the server itself has a connection, and is refused at once.
#[test]
fn what_waits_for_a_link_to_a_busy_server_reads_what_that_says() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.preconnect, pool.databases) = (true, 16);
    });
    let link = comes_up(&mut stage);
    let selects = resp("SELECT 1") + HELLO;
    let client = stage.client();
    stage.says(client, "SELECT 1\r\nGET a\r\nINCR b\r\n");
    stage.end_turn();
    let other = stage.establishes_with(&selects);
    stage.says(other, &format!("{BUSY}{BUSY}"));
    assert_eq!(stage.received(client), format!("+OK\r\n{BUSY}{BUSY}"));
    // The next one asks again, as well.
    stage.says(client, "INCR b\r\n");
    stage.end_turn();
    assert_eq!(stage.received(client), "");
    stage.passes(SECOND / 10);
    assert_eq!(stage.turn(other), selects);
    stage.says(other, &format!("{BUSY}{BUSY}"));
    assert_eq!(stage.received(client), BUSY);
    stage.passes(SECOND / 10);
    stage.turn(other);
    stage.says(client, "INCR b\r\n");
    stage.says(other, &format!("+OK\r\n{WELCOME}"));
    assert_eq!(stage.turn(other), resp("INCR b"));
    assert_eq!((stage.turn(link).as_str(), &stage.closed), ("", &vec![]));
}

/// Otherwise a script that a server works on for too long could not be ended.
#[test]
fn a_server_that_answers_its_probe_with_busy_is_back_and_its_script_can_be_killed() {
    let (mut stage, link) = redis();
    let (client, other) = (stage.client(), stage.client());
    stage.says(client, "GET a\r\n");
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.waits(SECOND);
    assert_eq!(stage.received(client), LATE);
    stage.waits(SECOND / 10);
    assert_eq!(stage.healths(), ["s0 down"]);
    stage.passes(SECOND / 10);
    let probes = stage.connects.len() - 1..;
    stage.connects = stage.connects.drain(probes).collect();
    let probe = stage.establishes_with(HELLO);
    stage.says(probe, BUSY);
    assert_eq!(stage.healths(), ["s0 ready"]);
    stage.says(other, "SCRIPT KILL\r\n");
    let control = stage.establishes_with(HELLO);
    stage.says(control, WELCOME);
    assert_eq!(stage.turn(control), resp("SCRIPT KILL"));
    stage.says(control, "+OK\r\n");
    assert_eq!(stage.received(other), "+OK\r\n");
    stage.passes(SECOND / 10);
    assert_eq!(stage.turn(probe), HELLO, "it is asked again");
    stage.says(probe, WELCOME);
    stage.says(client, "GET a\r\n");
    assert_eq!(stage.turn(probe), resp("GET a"));
}

/// Nobody would learn that it is busy no more, as long as clients ask for nothing but PING.
#[test]
fn what_a_busy_server_has_said_is_forgotten_with_its_last_link() {
    let (mut stage, link) = redis();
    let client = stage.client();
    stage.says(client, "GET a\r\n");
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.says(link, BUSY);
    assert_eq!(stage.received(client), BUSY);
    stage.closes(link, Closed::Reset);
    for _ in 0..2 {
        stage.says(client, "PING\r\n");
        stage.end_turn();
        assert_eq!(stage.received(client), "+PONG\r\n");
    }
}
