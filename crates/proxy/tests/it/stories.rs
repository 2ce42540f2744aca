//! Stories of the data plane. Each test is named for a bug that existed or a rule that holds, and
//! shows it as calls, step by step, without sockets. The simulator (`testkit/src/sim`) runs
//! millions of others; these are the ones to read. The invariants are checked after every step.

use proxy::plan::{OnFailure, Partial, PoolPlan, QuickAck};
use proxy::{Closed, ConnId, Event, Report, limits};
use shard::Distribution;

use crate::stage::{POOL, S0, SECOND, Stage};

/// The cost of a get of a key of one letter, as long as its answer is not known.
const GET: u64 = limits::COST_OF_MESSAGE + 1 + limits::ANSWER_UNKNOWN as u64;
/// Gets that are in flight before the next ones gather, at a link that `gathering` makes.
const FILLS_HALF: usize = 9;

/// One server, and a link to it whose in-flight limit is that many gets of this cost twice.
fn gathering(set: impl FnOnce(&mut PoolPlan)) -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.inflight = (FILLS_HALF - 1) as u64 * GET;
        plan.pools[0].preconnect = true;
        set(&mut plan.pools[0]);
    });
    let link = stage.connect(0);
    (stage, link)
}

/// Has a client ask until the next gets wait for company.
fn fill_half(stage: &mut Stage, link: ConnId, client: ConnId) {
    for _ in 0..FILLS_HALF {
        stage.says(client, "get x\r\n");
        assert_eq!(stage.turn(link), "get x\r\n");
    }
}

#[test]
fn gets_of_a_turn_leave_as_one_and_a_key_asked_twice_is_answered_twice() {
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.says(a, "get x y\r\n");
    stage.says(b, "get y\r\n");
    stage.says(a, "get x x\r\n");
    assert_eq!(stage.received(link), "", "they wait for the end of the turn");
    assert_eq!(stage.turn(link), "get x y y x x\r\n");
    stage.says(link, &[X, Y, Y, X, X, "END\r\n"].concat());
    assert_eq!(stage.received(a), [X, Y, "END\r\n", X, X, "END\r\n"].concat());
    assert_eq!(stage.received(b), [Y, "END\r\n"].concat());
    stage.expect_rows(0);
}

#[test]
fn a_get_waits_for_company_while_enough_gets_are_on_their_way() {
    let (mut stage, link) = gathering(|_| {});
    let (a, b) = (stage.client(), stage.client());
    fill_half(&mut stage, link, a);
    stage.says(a, "get x\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(b, "get y\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(link, "END\r\n");
    assert_eq!(stage.turn(link), "get x y\r\n");
    // Even a batch that waits over several turns is not overtaken by a request of its own client.
    stage.says(a, "get x\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(b, "delete y\r\n");
    assert_eq!(stage.turn(link), "delete y\r\n");
    stage.says(a, "delete x\r\n");
    assert_eq!(stage.turn(link), "get x\r\ndelete x\r\n");
}

/// It is the answers that take their time.
#[test]
fn a_get_that_waits_for_company_is_overtaken_by_few_that_are_answered_at_length() {
    let (mut stage, link) = gathering(|_| {});
    let (a, b) = (stage.client(), stage.client());
    let figures: String = (0..300).map(|nth| format!("STAT figure{nth} 5\r\n")).collect();
    stage.says(b, "stats\r\n");
    assert_eq!(stage.turn(link), "stats\r\n");
    stage.says(link, &format!("{figures}END\r\n"));
    fill_half(&mut stage, link, a);
    stage.says(a, "get x\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(b, "stats\r\n");
    assert_eq!(stage.turn(link), "stats\r\nget x\r\n");
}

#[test]
fn only_a_client_with_nothing_outstanding_goes_to_another_worker() {
    let (mut stage, link) = Stage::of_one();
    let (idle, asks, half, quiet) =
        (stage.client(), stage.client(), stage.client(), stage.client());
    stage.says(asks, "get x\r\n");
    stage.says(half, "get ");
    stage.says(quiet, "delete x noreply\r\n");
    assert_eq!(stage.hand_over(), [idle]);
    assert_eq!(stage.turn(link), "delete x\r\nget x\r\n");
    assert_eq!(stage.hand_over(), []);
    stage.says(link, "DELETED\r\n");
    assert_eq!(stage.hand_over(), [quiet]);
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(asks), "END\r\n");
    assert_eq!(stage.hand_over(), [asks]);
    stage.says(half, "x\r\n");
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.expect_rows(1);
}

#[test]
fn an_update_passes_the_open_batch_unless_its_own_client_has_a_get_in_it() {
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.says(a, "get x\r\n");
    stage.says(b, "set y 0 0 1\r\nY\r\n");
    assert_eq!(stage.turn(link), "set y 0 0 1\r\nY\r\nget x\r\n");
    stage.says(link, "STORED\r\nEND\r\n");
    stage.says(a, "get x\r\n");
    stage.says(b, "get x\r\n");
    stage.says(a, "delete x\r\n");
    stage.says(b, "get y\r\n");
    assert_eq!(stage.turn(link), "get x x\r\ndelete x\r\nget y\r\n");
    stage.says(link, &["END\r\nDELETED\r\n", Y, "END\r\n"].concat());
    assert_eq!(stage.received(a), "END\r\nEND\r\nDELETED\r\n");
    assert_eq!(stage.received(b), ["STORED\r\nEND\r\n", Y, "END\r\n"].concat());
}

/// Its own get is on its way to another server.
#[test]
fn an_update_passes_the_open_batch_of_others_whatever_its_client_asks_elsewhere() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        (pool.distribution, pool.preconnect) = (Distribution::Modula, true);
    });
    let links = [stage.connect(0), stage.connect(1)];
    let (a, b) = (stage.client(), stage.client());
    let (here, there) = (stage.key_of(0), stage.key_of(1));
    stage.says(b, &format!("get {there}\r\n"));
    stage.says(a, &format!("get {here}\r\ndelete {there}\r\n"));
    assert_eq!(stage.turn(links[1]), format!("delete {there}\r\nget {there}\r\n"));
}

/// A server closes the link on a longer line that is no get, and all its clients lose their
/// requests.
#[test]
fn a_line_of_a_gat_is_never_longer_than_1000_bytes() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let keys: Vec<String> = (0..200).map(|n| format!("{n:0width$}", width = 1 + n % 250)).collect();
    for command in ["gat -1", "gats 4000"] {
        stage.says(client, &format!("{command} {}\r\n", keys.join(" ")));
        let mut asked = Vec::new();
        while asked.len() < keys.len() {
            let sent = stage.turn(link);
            assert!(!sent.is_empty(), "{} keys are asked", asked.len());
            for line in sent.split_inclusive("\r\n") {
                assert!(line.len() <= 1000, "{} bytes", line.len());
                let rest = line.strip_prefix(command).expect("each has its time").trim_end();
                asked.extend(rest.split_whitespace().map(str::to_string));
            }
            stage.says(link, &"END\r\n".repeat(sent.lines().count()));
        }
        assert_eq!(asked, keys);
        assert_eq!(stage.received(client), "END\r\n");
    }
}

#[test]
fn an_error_line_for_a_batch_makes_each_key_be_asked_alone() {
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.says(a, "get x\r\n");
    stage.says(b, "get y\r\n");
    assert_eq!(stage.turn(link), "get x y\r\n");
    stage.says(link, "SERVER_ERROR busy\r\n");
    assert_eq!(stage.received(a), "");
    assert_eq!(stage.turn(link), "get x\r\nget y\r\n");
    stage.says(link, &["SERVER_ERROR busy\r\n", Y, "END\r\n"].concat());
    assert_eq!(stage.received(a), "SERVER_ERROR busy\r\n");
    assert_eq!(stage.received(b), [Y, "END\r\n"].concat());
    stage.expect_rows(0);
}

/// Seed 91: a get sent alone went behind a later update of its own client.
#[test]
fn a_key_is_not_asked_alone_behind_its_own_clients_update() {
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.says(a, "get x\r\n");
    stage.says(b, "get y\r\n");
    assert_eq!(stage.turn(link), "get x y\r\n");
    stage.says(a, "set x 0 0 1\r\nN\r\n");
    assert_eq!(stage.turn(link), "set x 0 0 1\r\nN\r\n");
    stage.says(link, "SERVER_ERROR busy\r\nSTORED\r\n");
    assert_eq!(stage.received(a), "SERVER_ERROR busy\r\nSTORED\r\n");
    assert_eq!(stage.turn(link), "get y\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(b), "END\r\n");
}

#[test]
fn a_noreply_is_sent_in_the_answering_form_and_answers_nothing() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "set x 0 0 1 noreply\r\nX\r\ndelete y noreply\r\n");
    assert_eq!(stage.turn(link), "set x 0 0 1\r\nX\r\ndelete y\r\n");
    stage.expect_rows(2);
    stage.says(link, "STORED\r\n");
    stage.expect_rows(1);
    stage.says(link, "SERVER_ERROR out of memory\r\n");
    stage.expect_rows(0);
    assert_eq!(stage.received(client), "");
    // A client that is about to leave is closed only when its updates are done.
    stage.says(client, "delete x noreply\r\n");
    assert_eq!(stage.turn(link), "delete x\r\n");
    stage.closes(client, Closed::Eof);
    assert_eq!(stage.closed, []);
    stage.says(link, "DELETED\r\n");
    assert_eq!(stage.closed, [client]);
}

#[test]
fn an_update_on_a_lost_link_is_not_sent_again_and_its_outcome_is_unknown() {
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.handshake(link);
    stage.says(a, "incr n 1\r\n");
    assert_eq!(stage.turn(link), "incr n 1\r\n");
    // Nothing of this request has been sent yet.
    stage.says(b, "incr n 2\r\n");
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.received(a), "SERVER_ERROR s0: connection lost, outcome unknown\r\n");
    assert_eq!(stage.received(b), "");
    stage.says(a, "get n\r\n");
    let again = stage.connect(0);
    assert_eq!(stage.turn(again), "incr n 2\r\nget n\r\n");
    stage.says(again, "7\r\nEND\r\n");
    assert_eq!([stage.received(a), stage.received(b)], ["END\r\n", "7\r\n"]);
    stage.expect_rows(0);
}

#[test]
fn a_get_on_a_lost_link_is_asked_once_more_and_only_once() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.handshake(link);
    stage.says(client, "get x y\r\n");
    assert_eq!(stage.turn(link), "get x y\r\n");
    stage.says(client, "get z\r\n");
    assert_eq!(stage.turn(link), "get z\r\n");
    // The values that have come stay; a value that had begun does not.
    stage.says(link, &[X, "VALUE y 0 1\r\n"].concat());
    stage.closes(link, Closed::Eof);
    let second = stage.connect(0);
    assert_eq!(stage.turn(second), "get y\r\nget z\r\n");
    // The link has received a reply, so its end is no sign that the server is down, and a third
    // link would be made.
    stage.says(second, "END\r\n");
    stage.closes(second, Closed::Eof);
    let lost = "SERVER_ERROR s0: connection lost\r\n";
    assert_eq!(stage.received(client), [X, "END\r\n", lost].concat());
    assert_eq!(stage.connects, []);
    stage.expect_rows(0);
}

/// It sets the expiry: a second time may set another.
#[test]
fn a_gat_on_a_lost_link_is_not_asked_again() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.handshake(link);
    stage.says(client, "gat 60 x y\r\n");
    assert_eq!(stage.turn(link), "gat 60 x y\r\n");
    stage.closes(link, Closed::Eof);
    assert_eq!(stage.received(client), "SERVER_ERROR s0: connection lost\r\n");
    assert_eq!(stage.connects, []);
    stage.expect_rows(0);
}

#[test]
fn a_get_on_a_lost_link_is_not_asked_behind_a_write_of_its_own_client() {
    for write in ["delete x\r\n", "delete x noreply\r\n"] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.handshake(link);
        stage.says(client, &format!("get x\r\n{write}"));
        assert_eq!(stage.turn(link), "get x\r\ndelete x\r\n");
        stage.closes(link, Closed::Reset);
        let unknown = "SERVER_ERROR s0: connection lost, outcome unknown\r\n";
        let unknown = if write.contains("noreply") { "" } else { unknown };
        assert_eq!(
            stage.received(client),
            ["SERVER_ERROR s0: connection lost\r\n", unknown].concat(),
            "{write}"
        );
        assert_eq!(stage.connects, []);
        stage.expect_rows(0);
    }
}

/// A change whose answer nobody waits for leaves no trace in the client's pipeline.
#[test]
fn a_get_on_a_lost_link_is_not_asked_behind_a_noreply_that_another_server_has_done() {
    for does_write in [false, true] {
        let mut stage = Stage::new(&["s0", "s1"], |pool| {
            (pool.preconnect, pool.distribution) = (true, Distribution::Modula);
            pool.hold_after = None;
        });
        let links = [stage.connect(0), stage.connect(1)];
        let [here, there] = [0, 1].map(|server| stage.key_of(server));
        let client = stage.client();
        // The link has received a reply, so its end is no sign that the server is down.
        stage.says(client, &format!("get {here}\r\n"));
        assert_eq!(stage.turn(links[0]), format!("get {here}\r\n"));
        stage.says(links[0], "END\r\n");
        assert_eq!(stage.received(client), "END\r\n");
        stage.says(client, &format!("get {here}\r\n"));
        assert_eq!(stage.turn(links[0]), format!("get {here}\r\n"));
        stage.passes(SECOND / 10);
        if does_write {
            stage.says(client, &format!("delete {there} noreply\r\n"));
            assert_eq!(stage.turn(links[1]), format!("delete {there}\r\n"));
            stage.says(links[1], "DELETED\r\n");
        }
        stage.passes(3 * SECOND / 10);
        stage.closes(links[0], Closed::Eof);
        let lost = if does_write { "SERVER_ERROR s0: connection lost\r\n" } else { "" };
        assert_eq!(stage.received(client), lost);
        assert_eq!(stage.connects.len(), usize::from(!does_write));
    }
}

#[test]
fn time_spent_in_a_queue_is_not_the_servers() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.timeouts.connect = 5 * SECOND;
        pool.timeouts.queue = 5 * SECOND;
        pool.timeouts.reply = SECOND;
    });
    let client = stage.client();
    stage.says(client, "delete x\r\ndelete y\r\n");
    stage.end_turn();
    stage.passes(3 * SECOND);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "delete x\r\ndelete y\r\n");
    stage.passes(SECOND - 1);
    assert_eq!(stage.received(client), "");
    // Each answer starts the deadline of the next.
    stage.says(link, "DELETED\r\n");
    assert_eq!(stage.received(client), "DELETED\r\n");
    stage.passes(SECOND - 1);
    assert_eq!(stage.received(client), "");
    stage.passes(1);
    assert_eq!(stage.received(client), "SERVER_ERROR s0: no reply in time, outcome unknown\r\n");
    assert_eq!(stage.closed, [link]);
}

/// Its deadline counted from the end of the turn, and was not set if a timer was due before that.
#[test]
fn a_message_of_a_long_turn_waits_no_longer_than_its_deadline() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.timeouts.connect = SECOND + 5;
        pool.timeouts.queue = SECOND;
    });
    let client = stage.client();
    stage.says(client, "delete x\r\n");
    stage.passes(10);
    stage.end_turn();
    stage.passes(SECOND - 11);
    assert_eq!(stage.received(client), "");
    stage.passes(1);
    let late = "SERVER_ERROR s0: timed out in the queue, not sent\r\n";
    assert_eq!(stage.received(client), late);
    assert_eq!(stage.closed, [], "the connect has its time");
}

/// Later messages are sent and answered as if the other had never been.
#[test]
fn a_message_that_has_waited_too_long_leaves_the_queue_alone() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.timeouts.connect = 5 * SECOND;
        pool.timeouts.queue = SECOND;
    });
    let clients = [stage.client(), stage.client()];
    stage.says(clients[0], "delete early\r\n");
    stage.end_turn();
    stage.passes(SECOND / 2);
    stage.says(clients[1], "delete x\r\ndelete y\r\n");
    stage.end_turn();
    stage.passes(SECOND / 2);
    let late = "SERVER_ERROR s0: timed out in the queue, not sent\r\n";
    assert_eq!(stage.received(clients[0]), late);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "delete x\r\ndelete y\r\n");
    stage.says(link, "DELETED\r\nNOT_FOUND\r\n");
    assert_eq!(stage.received(clients[1]), "DELETED\r\nNOT_FOUND\r\n");
    assert_eq!(stage.closed, []);
    stage.expect_rows(0);
}

#[test]
fn a_connect_that_is_late_is_counted_and_one_that_is_refused_is_not() {
    use metrics::ServerCounter;
    for (how, late) in [(None, 1), (Some(Closed::Reset), 0)] {
        let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
        match how {
            None => stage.passes(10 * SECOND),
            Some(how) => stage.closes(stage.connects[0].0, how),
        }
        assert_eq!(stage.registry.total(S0, ServerCounter::ConnectTimeout), late, "{how:?}");
    }
}

#[test]
fn a_connect_that_waits_for_its_turn_is_not_late() {
    let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
    let (link, _) = stage.connects[0];
    stage.connecting(link, 1_000 * SECOND);
    stage.passes(10 * SECOND);
    assert_eq!(stage.closed, [], "it has not begun");
    // A request does not wait that long, and the server is not to blame either.
    let client = stage.client();
    stage.says(client, "get x\r\n");
    stage.end_turn();
    stage.passes(SECOND);
    assert!(stage.received(client).starts_with("SERVER_ERROR "));
    assert_eq!((&stage.closed[..], &stage.events[..]), (&[][..], &[][..]));
    stage.connecting(link, 0);
    stage.passes(SECOND - 1);
    assert_eq!(stage.closed, []);
    stage.passes(1);
    assert_eq!(stage.closed, [link], "from here on it has a second");
}

/// The reply clock measures a server's silence. While the kernel still takes the request, the
/// server cannot answer yet.
#[test]
fn a_long_set_that_the_kernel_takes_slowly_is_not_a_silent_server() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let set = format!("set x 0 0 100000\r\n{}\r\n", "x".repeat(100_000));
    stage.says(client, &set);
    stage.end_turn();
    let mut taken = 0;
    while taken < set.len() {
        taken += stage.received_some(link, 10_000).len();
        stage.passes(SECOND - 1);
        assert!(!stage.closed.contains(&link), "after {taken} bytes");
    }
    stage.passes(1);
    assert!(stage.closed.contains(&link), "from the last byte on, the server owes an answer");
    let unknown = "SERVER_ERROR s0: no reply in time, outcome unknown\r\n";
    assert_eq!(stage.received(client), unknown);
}

/// Gets that wait for others to share a message with are sent when the queue deadline has come,
/// whatever else is outstanding.
#[test]
fn gets_that_wait_for_company_wait_no_longer_than_the_queue_deadline() {
    let (mut stage, link) = gathering(|pool| {
        pool.hold_after = None;
        pool.timeouts.reply = 10 * SECOND;
    });
    let client = stage.client();
    fill_half(&mut stage, link, client);
    // Later, so that no deadline of theirs is its own.
    stage.passes(SECOND / 3);
    stage.says(client, "get late\r\n");
    assert_eq!(stage.turn(link), "");
    stage.passes(SECOND - 1);
    assert_eq!(stage.turn(link), "");
    stage.passes(1);
    assert_eq!(stage.turn(link), "get late\r\n");
}

/// The report of an answered probe may get lost before it reaches outlier detection, so an ejected
/// server is probed until it is back in the ring.
#[test]
fn an_ejected_server_that_answers_its_probe_is_probed_again() {
    let mut stage = Stage::new(&["s0", "s1"], |_| {});
    stage.set_ejected(S0, true);
    for nth in 0..3 {
        stage.passes(60 * SECOND);
        let (probe, _) = stage.connects.pop().unwrap_or_else(|| panic!("no probe {nth}"));
        stage.comes_up(probe);
        assert_eq!(stage.reports.last(), Some(&Report::Answered { server: S0, probe: true }));
    }
}

#[test]
fn a_server_that_is_back_before_its_probe_is_not_probed() {
    let mut stage = Stage::new(&["s0", "s1"], |_| {});
    stage.set_ejected(S0, true);
    stage.set_ejected(S0, false);
    stage.passes(60 * SECOND);
    assert_eq!(stage.connects, []);
}

#[test]
fn a_server_that_falls_silent_is_down_until_a_probe_is_answered() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.handshake(link);
    stage.says(client, "get x\r\n");
    assert_eq!(stage.turn(link), "get x\r\n");
    // A connection that was begun when the server fell silent judges it.
    stage.waits(SECOND / 10);
    let (judge, _) = stage.connects.pop().expect("it is begun");
    stage.establishes(judge);
    stage.waits(SECOND - SECOND / 10);
    assert_eq!(stage.received(client), "SERVER_ERROR s0: no reply in time\r\n");
    assert_eq!(stage.healths(), ["s0 ready"], "one link alone says little");
    stage.waits(SECOND / 10);
    stage.expect_refused(client);
    stage.passes(SECOND);
    let (probe, _) = stage.connects.pop().expect("a probe is due");
    stage.establishes(probe);
    stage.expect_refused(client);
    stage.says(probe, "VERSION 1.6.18\r\n");
    let down = Event::ServerDown { server: S0, why: "no reply in time".into(), errno: None };
    assert_eq!(stage.events, [down, Event::ServerBack { server: S0 }]);
    stage.says(client, "get x\r\n");
    assert_eq!(stage.turn(probe), "get x\r\n", "the link that asked serves");
    assert_eq!(stage.connects, []);
}

#[test]
fn an_ejected_server_gives_its_keys_to_the_others_until_a_probe_is_answered() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.distribution = Distribution::Modula;
        pool.on_failure = OnFailure::Eject;
        pool.server_failure_limit = 1;
        pool.server_retry_timeout = 10 * SECOND;
    });
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("get {key}\r\n"));
    let (link, _) = stage.connects.pop().expect("a link is made when it is needed");
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.received(client), "SERVER_ERROR s1: connect failed\r\n");
    let server = S0 + 1;
    let why = "connect failed";
    assert_eq!(stage.events, [Event::ServerDown { server, why: why.into(), errno: None }]);
    assert_eq!(stage.reports, [Report::Failed { server, failures: 1, why: why.into() }]);
    // The ring stays as it is until the decision.
    stage.says(client, &format!("get {key}\r\n"));
    assert_eq!(stage.received(client), "SERVER_ERROR s1: down, waiting for it to come back\r\n");
    stage.set_ejected(server, true);
    stage.says(client, &format!("get {key}\r\n"));
    let other = stage.connect(0);
    assert_eq!(stage.turn(other), format!("get {key}\r\n"));
    stage.says(other, "END\r\n");
    stage.passes(10 * SECOND);
    let probe = stage.connect(1);
    assert_eq!(stage.reports[1..], [Report::Answered { server, probe: true }]);
    assert_eq!(stage.events.len(), 1, "its return is told by whoever decides it");
    stage.says(client, &format!("get {key}\r\n"));
    assert_eq!(stage.turn(other), format!("get {key}\r\n"), "it is out until it is let back");
    stage.says(other, "END\r\n");
    stage.set_ejected(server, false);
    stage.says(client, &format!("get {key}\r\n"));
    assert_eq!(stage.turn(probe), format!("get {key}\r\n"));
}

#[test]
fn a_reply_that_nobody_asked_for_poisons_the_link() {
    // No request; another request; one answer too many; another key.
    for (asked, reply, heard) in [
        ("", "STORED\r\n", ""),
        ("delete x\r\n", "END\r\n", "outcome unknown"),
        ("get x\r\n", "VALUE y 0 1\r\nY\r\nEND\r\n", "unexpected reply"),
        ("get x\r\n", "STORED\r\n", "unexpected reply"),
        ("get x\r\n", "END\r\nEND\r\n", "END"),
        ("delete x\r\n", "NO\r\nDELETED\r\n", "outcome unknown"),
    ] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, asked);
        assert_eq!(stage.turn(link), asked);
        stage.says(link, reply);
        assert_eq!(stage.closed, [link], "{reply:?} for {asked:?}");
        assert!(matches!(stage.events[0], Event::Poisoned { server: S0, .. }));
        let words = stage.received(client);
        assert!(words.contains(heard), "{words:?} for {reply:?}");
        assert_eq!(words.lines().count(), asked.lines().count());
        stage.expect_rows(0);
    }
}

/// It may be another request's reply, so nothing else on the link is believed. But the server is
/// well, and says so on the next link.
#[test]
fn a_wrong_reply_costs_only_the_request_that_it_seems_to_answer() {
    let (mut stage, link) = Stage::of_one();
    let [one, reader, writer, waiter] = [(); 4].map(|()| stage.client());
    stage.handshake(link);
    stage.says(one, "delete x\r\n");
    stage.says(writer, "delete y\r\n");
    stage.says(reader, "get z\r\n");
    assert_eq!(stage.turn(link), "delete x\r\ndelete y\r\nget z\r\n");
    stage.says(waiter, "delete w\r\n");
    stage.says(link, "END\r\n");
    let unknown = "SERVER_ERROR s0: unexpected reply, connection closed, outcome unknown\r\n";
    assert_eq!([stage.received(one), stage.received(writer)], [unknown, unknown]);
    let told = "SERVER_ERROR s0: unexpected reply, connection closed\r\n";
    assert_eq!(stage.received(reader), "");
    let next = stage.connect(0);
    assert_eq!(stage.turn(next), "delete w\r\nget z\r\n", "one was not sent");
    stage.says(next, "DELETED\r\n");
    assert_eq!(stage.received(waiter), "DELETED\r\n");
    // The same mistake may be the first reply on the next link.
    stage.says(writer, "delete y\r\n");
    assert_eq!(stage.turn(next), "delete y\r\n");
    stage.says(next, "STORED\r\n");
    assert_eq!(stage.received(reader), told, "it seems to be the answer to this");
    assert_eq!(stage.received(writer), unknown);
    let is_down = |event: &Event| matches!(event, Event::ServerDown { .. });
    assert!(!stage.events.iter().any(is_down), "{:?}", stage.events);
    stage.says(reader, "get z\r\n");
    let third = stage.connect(0);
    assert_eq!(stage.turn(third), "get z\r\n");
    stage.says(third, "END\r\n");
    assert_eq!(stage.received(reader), "END\r\n");
    stage.expect_rows(0);
}

/// Clients that each ask for what is answered wrongly end one link after the other. A read of
/// several keys that was on them is one read.
#[test]
fn a_read_outlasts_wrong_replies_to_others_one_after_the_other() {
    let (mut stage, first) = Stage::of_one();
    let [one, other, reader] = [(); 3].map(|()| stage.client());
    stage.handshake(first);
    const DELETES: &str = "delete y\r\ndelete x\r\n";
    stage.says(one, DELETES);
    stage.says(reader, "get a b\r\n");
    let mut link = first;
    for nth in 0..=limits::ASKED_AGAIN_MAX {
        let reads = if nth == 0 { "get a b\r\n" } else { "get a\r\nget b\r\n" };
        assert_eq!(stage.turn(link), format!("{DELETES}{reads}"), "{nth}");
        assert_eq!(stage.received(reader), "", "{nth}");
        let (asks, told) = if nth % 2 == 0 { (other, one) } else { (one, other) };
        stage.says(asks, DELETES);
        stage.says(link, "DELETED\r\nEND\r\n");
        assert!(stage.received(told).contains("unexpected reply"));
        link = stage.connect(0);
    }
    assert_eq!(stage.turn(link), DELETES);
    assert!(stage.received(reader).contains("unexpected reply"), "there is an end");
    stage.expect_rows(2);
}

/// Nobody can tell what it was an answer to, but somebody answers.
#[test]
fn a_server_whose_every_first_reply_is_wrong_is_not_down() {
    let mut stage = Stage::new(&["s0"], |_| {});
    let [asks, waits] = [stage.client(), stage.client()];
    for _ in 0..3 * limits::FRUITLESS_MAX {
        stage.says(asks, "delete x\r\n");
        let link = stage.connect(0);
        assert_eq!(stage.turn(link), "delete x\r\n");
        stage.says(link, "END\r\n");
        assert!(stage.received(asks).contains("unexpected reply"));
    }
    stage.says(waits, "get x\r\n");
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(waits), "END\r\n");
    assert_eq!(stage.healths(), ["s0 ready"]);
}

/// A server answers handshakes, and ends each link at the first request; it answers the clients of
/// another worker. A handshake there is no such answer.
#[test]
fn links_that_bring_nothing_are_no_failure_while_another_worker_is_answered() {
    for is_request in [true, false] {
        let mut stage = Stage::new(&["s0"], |_| {});
        let client = stage.client();
        let elsewhere = stage.registry.metrics(1);
        for _ in 0..3 * limits::FRUITLESS_MAX {
            stage.says(client, "delete x\r\n");
            if stage.connects.is_empty() {
                break;
            }
            let (link, _) = *stage.connects.last().expect("it is asked");
            while stage.connects.len() > 1 {
                stage.connect(0);
            }
            assert_eq!(stage.connect(0), link);
            assert_eq!(stage.turn(link), "delete x\r\n");
            stage.passes(1_000);
            match is_request {
                true => elsewhere.set_answered(S0, stage.now().0),
                false => elsewhere.set_heard(S0, stage.now().0),
            }
            stage.passes(1_000);
            stage.closes(link, Closed::Eof);
            assert!(stage.received(client).contains("connection lost"));
        }
        let is_down = |event: &Event| matches!(event, Event::ServerDown { .. });
        assert_eq!(stage.events.iter().any(is_down), !is_request);
    }
}

/// At most once in 1 ms, and of the first reply of a link, too: it may have no other.
#[test]
fn the_other_workers_learn_that_requests_are_answered() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    for nth in 0..3 {
        stage.passes(1_000);
        stage.says(client, "get x\r\n");
        assert_eq!(stage.turn(link), "get x\r\n");
        stage.passes(1);
        assert!(stage.registry.answered(S0) < stage.now().0 - 1, "{nth}");
        stage.says(link, "END\r\n");
        assert_eq!(stage.registry.answered(S0), stage.now().0, "{nth}");
    }
}

/// Nobody has asked anything, so no request is to blame, and none was seen by the server.
#[test]
fn what_waits_on_a_link_whose_server_speaks_unasked_moves_to_another() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.handshake(link);
    stage.says(client, "incr n 1\r\n");
    stage.says(link, "ERROR idle for too long\r\n");
    assert_eq!(stage.closed, [link]);
    let next = stage.connect(0);
    assert_eq!(stage.turn(next), "incr n 1\r\n");
    stage.says(next, "1\r\n");
    assert_eq!(stage.received(client), "1\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_meta_answer_with_another_key_or_opaque_ends_its_link() {
    let ms = "ms x 1 T0 O12 k\r\nX\r\n";
    let check = |asked: &str, reply: &str, heard: &str| {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, asked);
        assert_eq!(stage.turn(link), asked);
        stage.says(link, reply);
        let is_ended = heard.starts_with("SERVER_ERROR");
        assert_eq!(stage.closed, if is_ended { vec![link] } else { vec![] }, "{reply:?}");
        assert_eq!(stage.received(client), heard, "{reply:?}");
        stage.expect_rows(0);
    };
    let lost = "SERVER_ERROR s0: unexpected reply, connection closed\r\n";
    let unknown = "SERVER_ERROR s0: unexpected reply, connection closed, outcome unknown\r\n";
    for (asked, reply) in [
        ("mg x k t\r\n", "HD ky t-1\r\n"),
        ("mg x t O1\r\n", "HD t-1 O2\r\n"),
        ("mg x t O1\r\n", "EN O11\r\n"),
        ("mg x t\r\n", "HD t-1 O1\r\n"),
        ("mg x s O1 v h\r\n", "VA 3 s3 O2 h0\r\nX"),
        ("mg eA== t b k\r\n", "HD t-1 keQ== b\r\n"),
        ("mg eA== t b k\r\n", "HD t-1 keA==\r\n"),
        ("me x\r\n", "ME y exp=-1 la=0 cas=2 fetch=no cls=1 size=63\r\n"),
    ] {
        check(asked, reply, lost);
    }
    for (asked, reply) in [
        (ms, "HD O12 ky\r\n"),
        (ms, "HD O1 kx\r\n"),
        (ms, "NS kx O\r\n"),
        ("md x O5 k\r\n", "NF O4 kx\r\n"),
        ("ma x v O5\r\n", "VA 1 O6\r\n7\r\n"),
        ("mg x t T0 O1\r\n", "HD t0 O2\r\n"),
    ] {
        check(asked, reply, unknown);
    }
    // Real servers leave fields out, and return a key as the item has it.
    for (asked, reply) in [
        (ms, "HD O12 kx\r\n"),
        (ms, "HD\r\n"),
        ("mg x k t\r\n", "HD keA== b t-1\r\n"),
        ("mg eA== t b k\r\n", "HD t-1 kx\r\n"),
        ("mg eA== t b k\r\n", "HD t-1 keA== b\r\n"),
        ("ma x v O5\r\n", "VA 1 O5\r\n7\r\n"),
        ("me x\r\n", "ME eA== exp=-1 la=0 cas=2 fetch=no cls=1 size=63\r\n"),
    ] {
        check(asked, reply, reply);
    }
}

/// Commit 7ae4607: the key was never settled, and its entry stayed for ever.
#[test]
fn a_value_with_a_wrong_end_is_answered_with_an_error_and_leaks_no_request() {
    for pieces in [&["VALUE x 0 1\r\nXYZ"][..], &["VALUE x 0 1\r\n", "XY", "Z"]] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, "get x\r\n");
        assert_eq!(stage.turn(link), "get x\r\n");
        pieces.iter().for_each(|piece| stage.says(link, piece));
        let words = "SERVER_ERROR s0: unexpected reply, connection closed\r\n";
        assert_eq!(stage.received(client), words);
        assert_eq!(stage.closed, [link]);
        stage.expect_rows(0);
    }
}

#[test]
fn a_missing_server_is_told_unless_the_pool_says_partial_miss() {
    for partial in [Partial::Error, Partial::Miss] {
        let mut stage = Stage::new(&["s0", "s1"], |pool| {
            pool.distribution = Distribution::Modula;
            pool.partial = partial;
        });
        let client = stage.client();
        let (here, gone) = (stage.key_of(0), stage.key_of(1));
        stage.says(client, &format!("get {gone} {here}\r\n"));
        let link = stage.connect(0);
        assert_eq!(stage.turn(link), format!("get {here}\r\n"));
        let (dead, _) = stage.connects.pop().expect("both servers are asked");
        stage.closes(dead, Closed::Reset);
        stage.says(link, &format!("VALUE {here} 0 1\r\nH\r\nEND\r\n"));
        let end = match partial {
            Partial::Error => "SERVER_ERROR s1: connect failed",
            Partial::Miss => "END",
        };
        assert_eq!(stage.received(client), format!("VALUE {here} 0 1\r\nH\r\n{end}\r\n"));
        // A read of one key has no other keys that could hit, so it always gets the fault.
        stage.says(client, &format!("get {gone}\r\n"));
        let words = "SERVER_ERROR s1: down, waiting for it to come back\r\n";
        assert_eq!(stage.received(client), words, "{partial:?}");
    }
}

#[test]
fn a_get_of_more_keys_than_the_memory_can_account_for_is_refused_and_the_client_stays() {
    // Each key takes its place in the request, in its slot and in a queue.
    for (memory, is_sent) in [(100 * 48 + 1_000, true), (100 * 48, false)] {
        let mut stage = Stage::of(&["s0"], |plan| plan.memory_max = memory);
        let client = stage.client();
        let keys: String = (0..100).map(|nth| format!(" k{nth}")).collect();
        stage.says(client, &format!("get{keys}\r\n"));
        let refused = "SERVER_ERROR out of memory for so many keys\r\n";
        assert_eq!(stage.received(client), if is_sent { "" } else { refused }, "{memory} bytes");
        stage.says(client, "version\r\n");
    }
}

#[test]
fn a_reply_above_the_memory_ceiling_is_dropped_and_the_link_goes_on() {
    let value = format!("VALUE x 0 3000\r\n{}\r\nEND\r\n", "x".repeat(3000));
    for cut in [value.len(), 100] {
        let mut stage = Stage::of(&["s0"], |plan| plan.memory_max = 1000);
        let client = stage.client();
        stage.says(client, "get x\r\n");
        let link = stage.connect(0);
        assert_eq!(stage.turn(link), "get x\r\n");
        stage.says(link, &value[..cut]);
        if cut < value.len() {
            stage.says(link, &value[cut..]);
        }
        assert_eq!(stage.received(client), "SERVER_ERROR s0: out of memory holding the reply\r\n");
        stage.says(client, "get x\r\n");
        assert_eq!(stage.turn(link), "get x\r\n");
        stage.says(link, &[X, "END\r\n"].concat());
        assert_eq!(stage.received(client), [X, "END\r\n"].concat());
        assert_eq!(stage.closed, []);
    }
}

#[test]
fn a_paused_client_goes_on_where_it_stopped() {
    let mut stage = Stage::of(&["s0"], |plan| plan.limits.pipeline = 2);
    let client = stage.client();
    stage.says(client, "delete x\r\ndelete y\r\ndelete z\r\ndele");
    assert_eq!(stage.paused, [client]);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "delete x\r\ndelete y\r\n");
    stage.says(link, "DELETED\r\n");
    // Its buffered input fills the pipeline again, so its socket is not read yet.
    assert_eq!(stage.turn(link), "delete z\r\n");
    assert_eq!(stage.paused, [client]);
    stage.says(link, "DELETED\r\nNOT_FOUND\r\n");
    stage.end_turn();
    assert_eq!(stage.paused, []);
    stage.says(client, "te w\r\n");
    assert_eq!(stage.turn(link), "delete w\r\n");
    stage.says(link, "DELETED\r\n");
    assert_eq!(stage.received(client), "DELETED\r\nDELETED\r\nNOT_FOUND\r\nDELETED\r\n");
}

/// Commit 7ae4607: the requests were answered without a check of how much waited for the client.
#[test]
fn a_reply_in_another_order_than_asked_makes_no_miss() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get a b\r\n");
    stage.turn(link);
    stage.says(link, "VALUE b 0 1\r\nB\r\nVALUE a 0 1\r\nA\r\nEND\r\n");
    let heard = stage.received(client);
    assert!(heard.starts_with("VALUE b 0 1\r\nB\r\nSERVER_ERROR s0: unexpected reply"), "{heard}");
    stage.expect_rows(0);
}

#[test]
fn a_server_that_keeps_speaking_is_not_silent_but_not_for_ever() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get k\r\n");
    stage.turn(link);
    stage.says(link, "VALUE k 0 1000\r\n");
    for _ in 0..15 {
        stage.passes(SECOND - 1);
        stage.says(link, "x");
        assert!(!stage.closed.contains(&link), "its deadline is for silence");
    }
    stage.passes(SECOND - 1);
    stage.says(link, "x");
    stage.passes(SECOND - 1);
    assert!(stage.closed.contains(&link));
    assert!(stage.received(client).contains("no reply in time"));
}

#[test]
fn values_that_begin_at_once_never_exceed_the_memory() {
    let mut stage = Stage::of(&["s0"], |plan| plan.memory_max = 2_500);
    let clients: [_; 5] = std::array::from_fn(|_| stage.client());
    for client in clients {
        stage.says(client, "add k 0 0 1000\r\nx");
    }
    for _ in 0..9 {
        for client in clients {
            stage.says(client, &"x".repeat(100));
            assert!(stage.memory() <= 2_500, "{}", stage.memory());
        }
    }
    let refused = "SERVER_ERROR out of memory storing object\r\n".to_string();
    let told = clients.map(|client| stage.received(client));
    assert!(told.iter().all(|told| told.is_empty() || *told == refused), "{told:?}");
    assert_eq!(told.iter().filter(|told| **told == refused).count(), 3, "two have room");
}

#[test]
fn a_value_of_a_server_that_has_begun_to_arrive_is_counted_whole() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get x\r\n");
    stage.turn(link);
    let before = stage.memory();
    stage.says(link, "VALUE x 0 20000\r\n");
    stage.says(link, &"x".repeat(5_000));
    assert!(stage.memory() >= before + 20_000, "{} bytes", stage.memory() - before);
    stage.says(link, &format!("{}\r\nEND\r\n", "x".repeat(15_000)));
    stage.received(client);
    assert!(stage.memory() <= before, "{} bytes", stage.memory());
}

#[test]
fn what_a_paused_client_had_sent_is_answered_before_it_is_let_go() {
    for drained in [false, true] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, &"get k\r\n".repeat(200));
        assert_eq!(stage.paused, [client], "it has more outstanding than is known to be small");
        match drained {
            true => stage.drain(),
            false => stage.closes(client, Closed::Eof),
        }
        let mut answers = String::new();
        while !stage.closed.contains(&client) {
            let asked = stage.turn(link);
            assert!(!asked.is_empty(), "nothing more is asked, and it is not let go: {drained}");
            stage.says(link, &"END\r\n".repeat(asked.lines().count()));
            answers += &stage.received(client);
            stage.end_turn();
        }
        assert_eq!(answers, "END\r\n".repeat(200), "drained: {drained}");
        stage.expect_rows(0);
    }
}

#[test]
fn a_client_that_sends_only_bad_data_blocks_is_paused() {
    let bound = 200;
    let mut stage = Stage::of(&["s0"], |plan| plan.limits.client_outbox = bound);
    let client = stage.client();
    let words = "CLIENT_ERROR bad data chunk\r\n";
    stage.says(client, &"set x 0 0 1\r\nXYZ".repeat(100));
    let mut heard = String::new();
    assert_eq!(stage.paused, [client]);
    while stage.paused == [client] {
        let part = stage.received(client);
        assert!(!part.is_empty() && part.len() <= bound + words.len(), "{} bytes", part.len());
        heard += &part;
        stage.end_turn();
    }
    heard += &stage.received(client);
    assert_eq!(heard, words.repeat(100));
}

/// The counts of other workers count, too.
#[test]
fn limits_mean_all_workers_together_and_room_means_this_one() {
    use metrics::{PoolCounter, WorkerCounter};
    let bounds: [fn(&mut proxy::plan::Plan); 3] = [
        |plan| plan.clients_max = 3,
        |plan| plan.pools[0].client_connections = 3,
        |plan| plan.clients_room = 1,
    ];
    for bound in bounds {
        let mut stage = Stage::of(&["s0"], bound);
        let other = stage.registry.metrics(1);
        other.counters::<WorkerCounter>(0).add(WorkerCounter::ClientsNow, 2);
        other.counters::<PoolCounter>(POOL).add(PoolCounter::ClientsNow, 2);
        let client = stage.client();
        let refused = stage.accept().expect_err("one too many");
        assert_eq!(refused, b"SERVER_ERROR too many client connections\r\n");
        stage.closes(client, Closed::Reset);
        assert!(stage.accept().is_ok(), "there is room again");
        assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsNow), 3);
        assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsRefused), 1);
    }
}

#[test]
fn stats_are_of_all_workers_together() {
    use metrics::{PoolCounter, ServerCounter};
    let (mut stage, link) = Stage::of_one();
    let other = stage.registry.metrics(1);
    other.counters::<PoolCounter>(POOL).add(PoolCounter::Requests, 40);
    other.counters::<ServerCounter>(S0).add(ServerCounter::PendingNow, 3);
    let client = stage.client();
    stage.says(client, "get x\r\n");
    stage.turn(link);
    stage.says(client, "set y 0 0 1\r\nY\r\nstats proxy\r\n");
    stage.passes(SECOND);
    stage.turn(link);
    stage.says(link, "END\r\nSTORED\r\n");
    let heard = stage.received(client);
    for line in ["pool.requests_total 43", "pool.s0.pending 4", "pool.s0.inflight 1"] {
        assert!(heard.contains(&format!("STAT {line}\r\n")), "{line} is not in {heard}");
    }
}

#[test]
fn times_are_measured_from_the_parse_to_the_release() {
    use metrics::Latency;
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get x\r\n");
    stage.turn(link);
    stage.passes(300);
    stage.says(client, "set y 0 0 1\r\nY\r\ndelete z noreply\r\n");
    stage.turn(link);
    stage.passes(200);
    stage.says(link, "END\r\nSTORED\r\n");
    stage.passes(100);
    stage.says(link, "DELETED\r\n");
    let registry = stage.registry;
    let times = |id, which| {
        let one = registry.histogram(id, which);
        (one.count(), one.sum(), one.max())
    };
    let families = proto::PROTOCOLS[0].upstream().families();
    let family = |name: &str| families.iter().position(|one| *one == name).unwrap_or(0) as u8;
    assert_eq!(times(POOL, Latency::of_family(family("get"), false)), (1, 500, 500));
    assert_eq!(times(POOL, Latency::of_family(family("set"), true)), (1, 200, 200));
    assert_eq!(times(POOL, Latency::of_family(family("delete"), true)), (1, 300, 300));
    assert_eq!(registry.histograms(POOL, Latency::all(true)).sum(), 500);
    assert_eq!(times(S0, Latency::READS), (1, 500, 500));
    let updates = registry.histogram(S0, Latency::UPDATES);
    assert_eq!((updates.count(), updates.sum(), updates.max()), (2, 500, 300));
}

/// The gauges are right when nothing changes any more, and then no timer is set for them.
#[test]
fn what_is_now_is_published_until_nothing_moves() {
    use metrics::{ServerCounter, WorkerCounter};
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get x\r\n");
    stage.turn(link);
    stage.passes(SECOND / 10);
    assert_eq!(stage.registry.total(S0, ServerCounter::InflightNow), 1);
    assert_eq!(stage.registry.total(0, WorkerCounter::RequestsNow), 1);
    stage.passes(1);
    stage.says(link, "END\r\n");
    assert_eq!(stage.turn(client), "END\r\n");
    stage.passes(SECOND / 10);
    assert_eq!(stage.registry.total(S0, ServerCounter::InflightNow), 0);
    assert_eq!(stage.registry.total(S0, ServerCounter::LinksNow), 1);
    assert_eq!(stage.registry.total(0, WorkerCounter::RequestsNow), 0);
    stage.passes(10 * SECOND);
    stage.end_turn();
    stage.passes(SECOND / 10);
    stage.end_turn();
    assert_eq!(stage.next_timeout(), None);
}

#[test]
fn an_ack_is_flushed_when_what_has_come_cannot_be_answered_and_never_otherwise() {
    for (input, flushes) in [
        ("get x\r\n", false),
        ("get x\r\nget y\r\n", false),
        ("set x 0 0 1\r\nX\r\n", false),
        ("version\r\n", false),
        ("bogus\r\n", false),
        ("get x\r\ndelete y noreply\r\n", false),
        ("get x", true),
        ("get x\r\nget", true),
        ("set x 0 0 1\r\n", true),
        ("set x 0 0 1\r\nX", true),
        ("set x 0 0 1 noreply\r\nX\r\n", true),
        ("delete x noreply\r\ndelete y noreply\r\n", true),
    ] {
        for (switch, expected) in
            [(QuickAck::Partial, flushes), (QuickAck::Always, true), (QuickAck::Off, false)]
        {
            let mut stage = Stage::new(&["s0"], |pool| pool.quickack = switch);
            let client = stage.client();
            stage.says(client, input);
            let count = usize::from(expected);
            assert_eq!(stage.flushes, vec![client; count], "{switch:?} after {input:?}");
        }
    }
}

#[test]
fn a_servers_ack_is_flushed_while_its_reply_is_incomplete_and_never_otherwise() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get x y\r\nget x\r\n");
    assert_eq!(stage.turn(link), "get x y x\r\n");
    for (piece, flushes) in [
        ("VALUE x", 1),
        (" 0 1\r\n", 2),
        ("X\r", 3),
        ("\n", 4),
        ("VALUE y 0 1\r\nY\r\n", 5),
        ("VALUE x 0 1\r\nX\r\nEND\r\n", 5),
    ] {
        stage.says(link, piece);
        assert_eq!(stage.flushes, vec![link; flushes], "after {piece:?}");
    }
    assert_eq!(stage.received(client), [X, Y, "END\r\n", X, "END\r\n"].concat());
}

const X: &str = "VALUE x 0 1\r\nX\r\n";
const Y: &str = "VALUE y 0 1\r\nY\r\n";
