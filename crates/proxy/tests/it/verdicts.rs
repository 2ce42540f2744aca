//! When a server is down: what one link meets is not what the server is.

use metrics::ServerCounter;
use proto::protocol;
use proxy::plan::{OnFailure, PoolPlan};
use proxy::{Closed, ConnId, Event, Report};

use crate::stage::resp::{FULL, HELLO, TOLD_FULL, WELCOME};
use crate::stage::{S0, SECOND, Stage};

const SELECT: &str = "*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n";
const GET: &str = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

fn redis(set: impl FnOnce(&mut PoolPlan)) -> Stage {
    Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.on_failure, pool.server_failure_limit) = (OnFailure::Eject, 1);
        set(pool);
    })
}

/// A server that a client uses, and a client that needs another link to it.
fn field() -> (Stage, ConnId, [ConnId; 2]) {
    let mut stage = redis(|_| {});
    let [one, other] = [stage.client(), stage.client()];
    stage.says(one, GET);
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    serves(&mut stage, link, one);
    stage.says(other, "SELECT 1\r\n");
    assert_eq!(stage.received(other), "+OK\r\n");
    (stage, link, [one, other])
}

/// Two clients with a link each, on which nothing was asked for a minute.
fn two_idle() -> (Stage, [ConnId; 2], [ConnId; 2]) {
    let mut stage = redis(|pool| pool.server_connections = 2);
    let clients = [stage.client(), stage.client()];
    let links = clients.map(|client| {
        stage.says(client, GET);
        let link = stage.establishes_with(HELLO);
        stage.says(link, WELCOME);
        serves(&mut stage, link, client);
        link
    });
    stage.passes(60 * SECOND);
    (stage, links, clients)
}

fn serves(stage: &mut Stage, link: ConnId, client: ConnId) {
    if stage.turn(link).is_empty() {
        stage.says(client, GET);
        assert_eq!(stage.turn(link), GET);
    }
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(client), "$-1\r\n");
}

#[track_caller]
fn check_up(stage: &Stage) {
    let is_down = |event: &Event| matches!(event, Event::ServerDown { .. });
    assert!(!stage.events.iter().any(is_down), "{:?}", stage.events);
    assert_eq!((stage.healths(), &stage.reports), (vec!["s0 ready".to_string()], &vec![]));
}

#[test]
fn a_full_server_tells_those_who_need_a_further_link_and_serves_the_others() {
    let (mut stage, link, [one, other]) = field();
    stage.says(other, GET);
    let further = stage.establishes_with(&[SELECT, HELLO].concat());
    stage.says(further, FULL);
    stage.closes(further, Closed::Eof);
    assert_eq!(stage.received(other), TOLD_FULL);
    serves(&mut stage, link, one);
    check_up(&stage);
    let serving = |event: &Event| match event {
        Event::LinkRefused { serves, .. } => Some(*serves),
        _ => None,
    };
    assert_eq!(stage.events.iter().filter_map(serving).collect::<Vec<_>>(), [true]);
    // Nobody connects for each request.
    stage.says(other, GET);
    assert_eq!((stage.received(other).as_str(), &stage.connects), (TOLD_FULL, &vec![]));
    stage.passes(SECOND / 2);
    stage.says(other, GET);
    let further = stage.establishes_with(&[SELECT, HELLO].concat());
    stage.says(further, FULL);
    assert_eq!(stage.received(other), TOLD_FULL);
    stage.passes(SECOND / 50);
    stage.says(other, GET);
    assert_eq!(stage.connects, [], "the pauses become longer");
    stage.received(other);
    stage.passes(SECOND);
    stage.says(other, GET);
    let further = stage.establishes_with(&[SELECT, HELLO].concat());
    stage.says(further, &["+OK\r\n", WELCOME].concat());
    assert_eq!(stage.turn(further), GET);
    check_up(&stage);
}

/// Nothing serves on where there is no other link.
#[test]
fn a_server_that_is_full_from_the_start_has_no_link_that_serves() {
    let mut stage = redis(|_| {});
    let client = stage.client();
    stage.says(client, GET);
    let (only, _) = stage.begins().expect("it is tried");
    stage.says(only, FULL);
    assert_eq!(stage.received(client), TOLD_FULL);
    let is_it = |event: &Event| matches!(event, Event::LinkRefused { serves: false, .. });
    assert_eq!(stage.events.iter().filter(|event| is_it(event)).count(), 1);
    check_up(&stage);
}

/// It does not wait for a request, and its words may come in pieces.
#[test]
fn a_full_server_says_so_before_it_is_asked() {
    for cut in 0..FULL.len() {
        let (mut stage, link, [one, other]) = field();
        stage.says(other, GET);
        let (further, _) = stage.begins().expect("it is tried");
        let (first, second) = FULL.split_at(cut);
        stage.says(further, first);
        stage.says(further, second);
        assert_eq!(stage.received(other), TOLD_FULL);
        serves(&mut stage, link, one);
        check_up(&stage);
    }
    let (mut stage, ..) = field();
    stage.connects.clear();
    let poisoned =
        |stage: &Stage| stage.events.iter().any(|event| matches!(event, Event::Poisoned { .. }));
    let client = stage.client();
    stage.says(client, "SELECT 2\r\nGET k\r\n");
    let (further, _) = stage.begins().expect("it is tried");
    stage.says(further, "+OK\r\n");
    assert!(poisoned(&stage), "nothing else is an answer to no request");
}

/// Silence shows nothing, and idle links are silent: they are asked.
#[test]
fn a_further_link_that_cannot_be_made_has_the_idle_ones_asked() {
    for answers in [true, false] {
        let (mut stage, link, [one, other]) = field();
        stage.passes(SECOND);
        stage.says(other, GET);
        stage.end_turn();
        let (further, _) = stage.connects.pop().expect("it is tried");
        stage.passes(SECOND / 100);
        stage.closes(further, Closed::Reset);
        assert_eq!(stage.received(other), "-ERR s0: connect failed\r\n");
        check_up(&stage);
        assert_eq!(stage.turn(link), HELLO);
        if answers {
            stage.says(link, WELCOME);
            stage.waits(3 * SECOND);
            check_up(&stage);
            serves(&mut stage, link, one);
            continue;
        }
        stage.says(one, GET);
        stage.closes(link, Closed::Reset);
        assert_eq!(stage.healths(), ["s0 down"], "nothing of it works");
    }
}

#[test]
fn what_a_server_answers_meanwhile_is_proof_of_life() {
    for (is_own, is_late) in [(true, false), (false, false), (false, true)] {
        let (mut stage, link, [one, other]) = field();
        let elsewhere = stage.registry.metrics(1);
        stage.passes(SECOND);
        if is_late {
            elsewhere.set_heard(S0, stage.now().0);
        }
        stage.passes(SECOND / 100);
        stage.closes(link, Closed::Eof);
        stage.says(one, GET);
        stage.end_turn();
        let (first, _) = stage.connects.pop().expect("it is tried");
        stage.passes(SECOND / 100);
        if is_own {
            stage.says(other, GET);
            let second = stage.establishes_with(&[SELECT, HELLO].concat());
            stage.says(second, &["+OK\r\n", WELCOME].concat());
        } else if !is_late {
            elsewhere.set_heard(S0, stage.now().0);
        }
        stage.closes(first, Closed::Reset);
        assert_eq!(stage.received(one), "-ERR s0: connect failed\r\n");
        let health = if is_late { "s0 down" } else { "s0 ready" };
        assert_eq!(stage.healths(), [health]);
        assert_eq!(stage.reports.len(), usize::from(is_late));
    }
}

/// A firewall lets nothing new through, and another worker has its link.
#[test]
fn a_probe_that_fails_is_no_failure_while_another_worker_is_answered() {
    for is_late in [false, true] {
        let (mut stage, link, [one, _]) = field();
        let elsewhere = stage.registry.metrics(1);
        stage.passes(SECOND);
        stage.closes(link, Closed::Eof);
        stage.says(one, GET);
        stage.end_turn();
        let (first, _) = stage.connects.pop().expect("it is tried");
        stage.closes(first, Closed::Reset);
        assert_eq!((stage.healths(), stage.reports.len()), (vec!["s0 down".into()], 1));
        if is_late {
            elsewhere.set_heard(S0, stage.now().0);
        }
        while stage.connects.is_empty() {
            stage.waits(SECOND / 100);
        }
        let (probe, _) = stage.connects.pop().expect("a probe");
        stage.passes(SECOND / 100);
        if !is_late {
            elsewhere.set_heard(S0, stage.now().0);
        }
        stage.closes(probe, Closed::Reset);
        let health = if is_late { "s0 down" } else { "s0 ready" };
        assert_eq!(stage.healths(), [health]);
    }
}

/// A server to which another worker has a link, and a client of a worker that has none.
fn linked_elsewhere() -> (Stage, ConnId) {
    let mut stage = redis(|_| {});
    stage.registry.metrics(1).counters(S0).set(ServerCounter::LinksNow, 1);
    let client = stage.client();
    stage.passes(SECOND);
    (stage, client)
}

/// A client's request finds that a link cannot be made.
fn is_refused(stage: &mut Stage, client: ConnId) {
    stage.passes(SECOND / 50);
    stage.says(client, GET);
    stage.end_turn();
    let (link, _) = stage.connects.pop().expect("it is tried");
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.received(client), "-ERR s0: connect failed\r\n");
}

/// A firewall refuses whatever is new at once, before those who have links are answered.
#[test]
fn a_server_to_which_others_have_links_is_not_down_while_they_are_answered() {
    let (mut stage, client) = linked_elsewhere();
    let elsewhere = stage.registry.metrics(1);
    for _ in 0..4 {
        is_refused(&mut stage, client);
        assert_eq!(stage.reports, [Report::Doubted { server: S0 }], "they ask");
        assert_eq!(stage.healths(), ["s0 ready"], "their answers are not there yet");
        stage.passes(SECOND / 1000);
        elsewhere.set_heard(S0, stage.now().0);
        stage.passes(SECOND / 2);
        is_refused(&mut stage, client);
        assert_eq!(stage.reports.len(), 1, "once a second");
        stage.passes(SECOND);
        stage.reports.clear();
    }
}

#[test]
fn a_server_that_answers_nobody_is_down_when_others_have_had_time_to_ask() {
    let (mut stage, client) = linked_elsewhere();
    is_refused(&mut stage, client);
    stage.passes(SECOND - SECOND / 10);
    // This attempt is begun too early.
    stage.says(client, GET);
    stage.end_turn();
    let (early, _) = stage.connects.pop().expect("it is tried");
    stage.passes(SECOND / 2);
    stage.closes(early, Closed::Reset);
    assert_eq!(stage.healths(), ["s0 ready"]);
    assert_eq!(stage.reports, [Report::Doubted { server: S0 }]);
    stage.received(client);
    let (mut late, one) = linked_elsewhere();
    is_refused(&mut late, one);
    late.passes(60 * SECOND);
    is_refused(&mut late, one);
    let asked = Report::Doubted { server: S0 };
    assert_eq!(late.reports, [asked.clone(), asked], "who knows whether the others were asked");
    is_refused(&mut stage, client);
    assert_eq!(stage.healths(), ["s0 down"], "nobody was answered");
    let counts = |report: &Report| matches!(report, Report::Failed { failures: 1, .. });
    assert!(stage.reports.len() == 2 && counts(&stage.reports[1]), "{:?}", stage.reports);
}

/// Links that are known to have been lost need no question.
#[test]
fn a_server_to_which_nobody_has_a_link_any_more_is_down_at_once() {
    let (mut stage, client) = linked_elsewhere();
    is_refused(&mut stage, client);
    stage.registry.metrics(1).counters(S0).set(ServerCounter::LinksNow, 0);
    is_refused(&mut stage, client);
    assert_eq!(stage.healths(), ["s0 down"]);
    let (mut stage, link, _) = field();
    stage.waits(SECOND);
    assert_eq!(stage.registry.total(S0, ServerCounter::LinksNow), 1);
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.registry.total(S0, ServerCounter::LinksNow), 0, "at once");
}

/// The last link of a worker is lost before it has answered, and others have theirs.
#[test]
fn a_worker_that_has_lost_all_its_links_has_others_ask() {
    let (mut stage, link, [_, other]) = field();
    stage.passes(SECOND);
    stage.registry.metrics(1).counters(S0).set(ServerCounter::LinksNow, 1);
    stage.says(other, GET);
    let (further, _) = stage.begins().expect("it is tried");
    stage.closes(further, Closed::Reset);
    assert_eq!(stage.reports, []);
    stage.closes(link, Closed::Reset);
    assert_eq!((stage.healths(), stage.reports.len()), (vec!["s0 ready".into()], 1));
    assert_eq!(stage.reports, [Report::Doubted { server: S0 }]);
}

#[test]
fn a_worker_asks_on_its_idle_links_when_another_gets_no_answer() {
    let (mut stage, link, [one, _]) = field();
    stage.passes(60 * SECOND);
    for _ in 0..2 {
        stage.ask_server(S0);
    }
    assert_eq!(stage.turn(link), HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.registry.metrics(0).heard(S0), stage.now().0);
    serves(&mut stage, link, one);
    stage.ask_server(99);
    assert_eq!(stage.turn(link), "");
}

/// A server that stands in two pools of one worker, which has no link in the first.
fn in_two_pools() -> Stage {
    Stage::of(&["s0"], |plan| {
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
        let mut twin = plan.pools[0].clone();
        (plan.pools[0].servers[0].others, twin.servers[0].others) = (vec![4], vec![S0]);
        (twin.id, twin.servers[0].id) = (3, 4);
        twin.preconnect = true;
        plan.pools.push(twin);
    })
}

#[test]
fn a_link_of_another_pool_is_asked_before_a_server_is_down() {
    let mut stage = in_two_pools();
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    stage.waits(SECOND);
    let client = stage.client();
    is_refused(&mut stage, client);
    assert_eq!(stage.healths()[0], "s0 ready");
    assert_eq!(stage.turn(link), HELLO);
}

/// It lets nothing new through, and the link that stands gets no requests, since the server is out.
#[test]
fn a_server_that_is_out_comes_back_by_a_link_that_stands() {
    for is_refused in [true, false] {
        let (mut stage, link, _) = field();
        stage.set_ejected(S0, true);
        // A question of another worker does not shorten its time.
        stage.ask_server(S0);
        assert_eq!(stage.turn(link), HELLO);
        stage.says(link, WELCOME);
        assert_eq!(stage.reports, []);
        while stage.connects.is_empty() {
            stage.waits(SECOND);
        }
        let (probe, _) = stage.connects.pop().expect("a probe");
        if is_refused {
            stage.closes(probe, Closed::Reset);
        }
        stage.passes(SECOND / 1000);
        assert_eq!(stage.turn(link), HELLO);
        stage.says(link, WELCOME);
        assert_eq!(stage.reports.last(), Some(&Report::Answered { server: S0, probe: true }));
        let reports = stage.reports.len();
        stage.set_ejected(S0, false);
        assert_eq!(stage.healths(), ["s0 ready"]);
        assert_eq!(stage.closed.contains(&probe), !is_refused, "it is not needed any more");
        stage.ask_server(S0);
        assert_eq!(stage.turn(link), HELLO);
        stage.says(link, WELCOME);
        assert_eq!(stage.reports.len(), reports);
    }
}

#[test]
fn a_second_shared_link_that_cannot_be_made_is_stood_in_for_by_the_first() {
    let mut stage = redis(|pool| (pool.server_connections, pool.hold_after) = (2, None));
    let [one, other] = [stage.client(), stage.client()];
    stage.says(one, GET);
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    serves(&mut stage, link, one);
    stage.says(other, GET);
    let further = stage.establishes_with(HELLO);
    stage.says(further, FULL);
    assert_eq!(stage.turn(link), GET, "it waits for the link that is there");
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n");
    for client in [other, one, other] {
        stage.says(client, GET);
        assert_eq!(stage.turn(link), GET);
        stage.says(link, "$-1\r\n");
        assert_eq!(stage.received(client), "$-1\r\n");
    }
    check_up(&stage);
    // Its own place is tried again when the pause is over and nothing is outstanding.
    stage.says(other, GET);
    stage.turn(link);
    stage.passes(SECOND / 2);
    stage.end_turn();
    stage.says(other, GET);
    assert_eq!(stage.turn(link), GET, "behind the first");
    assert_eq!(stage.connects, []);
    stage.says(link, "$-1\r\n$-1\r\n");
    stage.end_turn();
    stage.passes(SECOND);
    stage.says(other, GET);
    let own = stage.establishes_with(HELLO);
    stage.says(own, WELCOME);
    assert_eq!(stage.turn(own), GET);
}

/// A firewall has forgotten both. The second shows nothing before it is asked.
#[test]
fn what_waits_on_a_link_that_is_dead_goes_to_another_when_the_server_is_found_well() {
    let (mut stage, links, [one, other]) = two_idle();
    stage.says(one, GET);
    assert_eq!(stage.turn(links[0]), GET);
    while stage.connects.is_empty() {
        stage.waits(SECOND / 100);
        stage.end_turn();
    }
    assert_eq!(stage.turn(links[1]), HELLO, "it is asked");
    stage.says(other, GET);
    assert_eq!(stage.turn(links[1]), "");
    stage.passes(SECOND / 100);
    let judge = stage.establishes_with(HELLO);
    stage.passes(SECOND / 100);
    stage.says(judge, WELCOME);
    assert!(stage.closed.contains(&links[1]));
    assert!(!stage.closed.contains(&links[0]), "it owes an answer");
    let anew = stage.establishes_with(HELLO);
    stage.says(anew, WELCOME);
    assert_eq!(stage.turn(anew), GET);
    stage.says(anew, "$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n");
    check_up(&stage);
}

/// A firewall may have forgotten them.
#[test]
fn links_that_are_silent_say_nothing_of_a_server_that_takes_another() {
    let (mut stage, links, [one, other]) = two_idle();
    stage.says(one, GET);
    assert_eq!(stage.turn(links[0]), GET);
    stage.says(other, GET);
    assert_eq!(stage.turn(links[1]), GET);
    for _ in 0..60 {
        stage.waits(SECOND / 20);
        stage.end_turn();
        while !stage.connects.is_empty() {
            let link = stage.establishes_with(HELLO);
            stage.says(link, WELCOME);
        }
    }
    assert!(links.iter().all(|link| stage.closed.contains(link)));
    check_up(&stage);
    let told = stage.received(one);
    assert!(told.is_empty() || told.contains("no reply in time"), "{told}");
    assert!(stage.registry.total(S0, ServerCounter::ReplyTimeout) >= 1);
}

/// The server cannot be asked, and its own words say why.
#[test]
fn a_pool_whose_only_server_is_ejected_tells_what_the_server_has_said() {
    const SAID: &str = "NOAUTH Authentication required.";
    let mut stage = redis(|_| {});
    let client = stage.client();
    stage.says(client, GET);
    let link = stage.establishes_with(HELLO);
    stage.says(link, &format!("-{SAID}\r\n"));
    assert!(stage.received(client).contains(SAID));
    stage.set_ejected(S0, true);
    for request in [GET, "MULTI\r\nGET k\r\nEXEC\r\n"] {
        stage.says(client, request);
        let told = stage.received(client);
        let expected = format!("no server in the ring (s0: login refused: {SAID})");
        assert!(told.contains(&expected), "{told}");
    }
}

/// Another worker has met its failure, and this one has not.
#[test]
fn a_pool_whose_only_server_is_ejected_tells_why_as_another_worker_has_found() {
    let mut stage = redis(|_| {});
    let client = stage.client();
    let told = |stage: &mut Stage, request: &str| {
        stage.says(client, request);
        stage.received(client)
    };
    assert_eq!(told(&mut stage, "MULTI\r\nSET k 1\r\n"), "+OK\r\n+QUEUED\r\n");
    stage.note_why_ejected(S0, "connect timed out");
    stage.set_ejected(S0, true);
    let why = "no server in the ring (s0: connect timed out)\r\n";
    for request in ["EXEC\r\n", GET, "MULTI\r\nGET k\r\nEXEC\r\n"] {
        let told = told(&mut stage, request);
        assert!(told.ends_with(why), "{told}");
    }
    stage.set_ejected(S0, false);
    assert_eq!(told(&mut stage, GET), "");
}

/// It answers requests in one pool. In the other, a relay ends each link at what is asked there.
#[test]
fn a_server_that_answers_in_one_pool_is_up_in_the_other() {
    for answers in [true, false] {
        let mut stage = in_two_pools();
        let link = stage.establishes_with(HELLO);
        stage.closes(link, Closed::Eof);
        let client = stage.client();
        let other = stage.registry.metrics(1);
        for _ in 0..2 * proxy::limits::FRUITLESS_MAX {
            stage.says(client, "SET k 1\r\n");
            stage.end_turn();
            while !stage.connects.is_empty() {
                let own = stage.establishes_with(HELLO);
                stage.says(own, WELCOME);
                stage.turn(own);
                stage.passes(SECOND / 100);
                if answers {
                    // Those of another worker, in the other pool.
                    other.set_answered(4, stage.now().0);
                }
                stage.closes(own, Closed::Eof);
                stage.end_turn();
            }
            stage.passes(SECOND);
        }
        let health = if answers { "s0 ready" } else { "s0 down" };
        assert_eq!(stage.healths()[0], health);
    }
}

/// Its link there has come up a moment ago, and its gauges are not published yet.
#[test]
fn a_server_that_has_a_link_in_one_pool_is_not_down_in_another_after_one_attempt() {
    let mut stage = in_two_pools();
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    let client = stage.client();
    stage.says(client, GET);
    stage.end_turn();
    let (attempt, _) = stage.connects.pop().expect("it is tried");
    stage.passes(1);
    stage.closes(attempt, Closed::Unmade(111));
    assert_eq!(stage.healths()[0], "s0 ready");
}

/// A server that is out in the first of two pools, when it was probed there in vain.
fn out_in_one_pool() -> (Stage, ConnId) {
    let mut stage = in_two_pools();
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    stage.set_ejected(S0, true);
    fails_probe(&mut stage);
    assert!(stage.reports.iter().all(|report| !matches!(report, Report::Answered { .. })));
    (stage, link)
}

/// Has a probe refused.
fn fails_probe(stage: &mut Stage) {
    while stage.connects.is_empty() {
        stage.waits(SECOND / 100);
    }
    let (probe, _) = stage.connects.pop().expect("it is probed");
    stage.closes(probe, Closed::Unmade(113));
}

/// A firewall lets nothing new through, and the link of the other pool answers.
#[test]
fn a_server_that_is_out_in_one_pool_is_back_when_it_answers_in_another() {
    let (mut stage, link) = out_in_one_pool();
    stage.passes(SECOND / 1000);
    assert_eq!(stage.turn(link), HELLO, "it is asked beside the probe");
    stage.says(link, WELCOME);
    assert_eq!(stage.reports.last(), Some(&Report::Answered { server: S0, probe: true }));
}

#[test]
fn a_server_that_is_out_in_one_pool_is_back_when_another_connects_to_it() {
    let (mut stage, link) = out_in_one_pool();
    stage.closes(link, Closed::Eof);
    let client = stage.accept_at(3).expect("there is room");
    stage.says(client, GET);
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.reports.last(), Some(&Report::Answered { server: S0, probe: true }));
}

/// Those of another worker, whose links are never idle and are not asked.
#[test]
fn a_server_that_answers_between_two_probes_is_back() {
    for (answers, before) in [(true, SECOND / 10), (false, 0), (true, 2 * SECOND)] {
        let (mut stage, link) = out_in_one_pool();
        stage.closes(link, Closed::Eof);
        let other = stage.registry.metrics(1);
        while stage.connects.is_empty() {
            stage.waits(SECOND / 100);
        }
        let (probe, _) = stage.connects.pop().expect("it is probed");
        if answers {
            other.set_heard(4, stage.now().0 - before);
        }
        stage.closes(probe, Closed::Unmade(113));
        let is_back = matches!(stage.reports.last(), Some(Report::Answered { .. }));
        assert_eq!(is_back, answers && before < SECOND);
    }
}

/// Its answers before its last failure do not count.
#[test]
fn a_probe_that_is_refused_right_after_a_return_lets_nobody_back() {
    let mut stage = redis(|_| {});
    let client = stage.client();
    is_refused(&mut stage, client);
    while stage.connects.is_empty() {
        stage.waits(SECOND / 100);
    }
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.healths(), ["s0 ready"]);
    stage.passes(SECOND / 1000);
    stage.closes(link, Closed::Eof);
    is_refused(&mut stage, client);
    assert_eq!(stage.healths(), ["s0 down"]);
    stage.reports.clear();
    fails_probe(&mut stage);
    assert_eq!(stage.healths(), ["s0 down"]);
    assert!(stage.reports.iter().all(|report| !matches!(report, Report::Answered { .. })));
}
