//! Stories of new plans amid traffic, and of ejections decided outside. As in `stories.rs`, they
//! are calls, step by step, without sockets.

use metrics::{PoolCounter, WorkerCounter};
use proxy::plan::{OnFailure, Plan, PoolPlan, ServerPlan};
use proxy::{Closed, Event, Report};
use shard::{Distribution, Hash, Node, Ring};

use crate::stage::{POOL, S0, SECOND, Stage};

const S1: u32 = S0 + 1;
const S2: u32 = S0 + 2;

/// Two servers, each with some of the keys.
fn two() -> Stage {
    Stage::new(&["s0", "s1"], |pool| pool.distribution = Distribution::Modula)
}

fn server(id: u32, name: &str) -> ServerPlan {
    ServerPlan { id, ..ServerPlan::new(name, name, 1) }
}

fn remove(id: u32) -> impl FnOnce(&mut Plan) {
    move |plan| plan.pools[0].servers.retain(|one| one.id != id)
}

#[test]
fn the_same_plan_again_does_nothing() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.distribution = Distribution::Modula;
        pool.preconnect = true;
        pool.server_connections = 2;
    });
    let client = stage.client();
    let (here, there) = (stage.key_of(0), stage.key_of(1));
    let link = stage.connect(0);
    stage.says(client, &format!("get {here} {there}\r\nget"));
    let asked = stage.connects.clone();
    for _ in 0..3 {
        stage.install(|_| {});
        assert_eq!((&stage.connects, &stage.closed), (&asked, &vec![]));
        assert_eq!((&stage.paused, &stage.events, &stage.reports), (&vec![], &vec![], &vec![]));
    }
    assert_eq!(stage.turn(link), format!("get {here}\r\n"));
    assert_eq!(stage.retired(), []);
}

#[test]
fn a_server_that_is_gone_gets_nothing_new_and_answers_what_it_was_asked() {
    let mut stage = two();
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("incr {key} 1\r\n"));
    let link = stage.connect(1);
    assert_eq!(stage.turn(link), format!("incr {key} 1\r\n"));
    // One request waits in the batch, and one in the queue.
    stage.says(client, &format!("get {key}\r\n"));
    let other = stage.client();
    stage.says(other, &format!("delete {key}\r\n"));
    stage.install(remove(S1));
    assert_eq!(stage.retired(), [S1]);
    stage.says(client, &format!("get {key}\r\n"));
    let heir = stage.connect(0);
    assert_eq!(stage.turn(heir), format!("get {key}\r\n"));
    assert_eq!(stage.turn(link), format!("delete {key}\r\nget {key}\r\n"));
    stage.says(link, "1\r\nDELETED\r\n");
    stage.end_turn();
    assert_eq!(stage.closed, [], "it owes one more answer");
    stage.says(link, "END\r\n");
    assert_eq!(stage.closed, [link]);
    stage.end_turn();
    assert_eq!((stage.retired(), stage.uses(S1)), (vec![], false));
    stage.says(heir, "END\r\n");
    assert_eq!(stage.received(client), "1\r\nEND\r\nEND\r\n");
    assert_eq!(stage.received(other), "DELETED\r\n");
    assert_eq!((&stage.events, &stage.reports), (&vec![], &vec![]), "no failure is counted");
    stage.expect_rows(0);
}

#[test]
fn what_waits_for_a_server_that_is_gone_keeps_its_deadlines() {
    let mut stage = two();
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("incr {key} 1\r\n"));
    let link = stage.connect(1);
    stage.turn(link);
    stage.install(remove(S1));
    stage.passes(SECOND);
    assert_eq!(stage.received(client), "SERVER_ERROR s1: no reply in time, outcome unknown\r\n");
    assert_eq!(stage.closed, [link]);
    stage.end_turn();
    assert!(!stage.uses(S1));
    assert_eq!(stage.events, [], "it is nobody's server any more");
    stage.passes(60 * SECOND);
    assert_eq!(stage.connects, [], "nor is it probed");
}

#[test]
fn idle_links_and_the_probe_of_a_server_that_is_gone_are_closed_at_once() {
    let mut stage = two();
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("get {key}\r\n"));
    let (link, _) = stage.connects.pop().expect("it is asked");
    stage.closes(link, Closed::Reset);
    stage.passes(SECOND);
    let (probe, _) = stage.connects.pop().expect("it is probed");
    stage.install(remove(S1));
    assert_eq!(stage.closed, [probe]);
    stage.end_turn();
    assert!(!stage.uses(S1));
    stage.received(client);
    stage.says(client, &format!("get {key}\r\n"));
    let heir = stage.connect(0);
    assert_eq!(stage.turn(heir), format!("get {key}\r\n"));
}

#[test]
fn a_server_that_is_back_before_its_link_has_gone_keeps_it() {
    let mut stage = two();
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("get {key}\r\n"));
    let link = stage.connect(1);
    stage.turn(link);
    stage.install(remove(S1));
    stage.install(|plan| plan.pools[0].servers.push(server(S1, "s1")));
    assert_eq!(stage.retired(), []);
    stage.says(client, &format!("get {key}\r\n"));
    assert_eq!(stage.turn(link), format!("get {key}\r\n"));
    stage.says(link, "END\r\nEND\r\n");
    assert_eq!(stage.received(client), "END\r\nEND\r\n");
    assert_eq!(stage.closed, []);
}

#[test]
fn a_new_server_is_connected_before_it_is_asked_where_the_pool_says_so() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.distribution = Distribution::Modula;
        pool.preconnect = true;
    });
    let first = stage.connect(0);
    stage.install(|plan| plan.pools[0].servers.push(server(S1, "s1")));
    assert_eq!(stage.connects.len(), 1);
    let second = stage.connect(1);
    let client = stage.client();
    for key in ["a", "b", "c", "d", "e", "f"] {
        stage.says(client, &format!("get {key}\r\n"));
    }
    let asked = [stage.turn(first), stage.turn(second)];
    assert!(asked.iter().all(|text| !text.is_empty()), "both have keys: {asked:?}");
    assert_eq!(stage.connects, []);
}

#[test]
fn the_clients_of_a_pool_that_is_gone_are_answered_and_let_go() {
    let (mut stage, link) = Stage::of_one();
    let (busy, idle, slow) = (stage.client(), stage.client(), stage.client());
    stage.says(busy, "get x\r\nget y\r\n");
    stage.says(slow, "get half");
    stage.turn(link);
    stage.install(|plan| plan.pools.clear());
    stage.end_turn();
    stage.end_turn();
    assert_eq!(stage.closed, [idle]);
    let refused = stage.accept().expect_err("its listener is about to go");
    assert_eq!(refused, b"SERVER_ERROR shutting down\r\n");
    assert!(stage.uses(POOL) && stage.uses(S0));
    stage.says(link, "VALUE x 0 1\r\nX\r\nEND\r\n");
    stage.says(busy, "get z\r\n");
    assert_eq!(stage.received(busy), "VALUE x 0 1\r\nX\r\nEND\r\nEND\r\n");
    stage.says(slow, "\r\n");
    assert_eq!(stage.turn(link), "get half\r\n");
    stage.says(link, "END\r\n");
    stage.end_turn();
    assert_eq!(stage.received(slow), "END\r\n", "half a request has begun");
    stage.end_turn();
    assert_eq!(stage.closed, [idle, busy, slow, link]);
    assert_eq!((stage.uses(POOL), stage.uses(S0), stage.retired()), (false, false, vec![]));
    assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsNow), 0);
}

#[test]
fn a_client_that_does_not_take_its_answers_holds_a_pool_that_is_gone_for_ten_seconds() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "version\r\n");
    let half = stage.client();
    stage.says(half, "get half");
    stage.install(|plan| plan.pools.clear());
    stage.passes(10 * SECOND - 1);
    stage.end_turn();
    assert_eq!(stage.closed, []);
    stage.passes(1);
    stage.end_turn();
    assert_eq!(stage.closed, [client, half, link]);
    assert_eq!(stage.events, [Event::CutOff { pool: POOL, clients: 2, half_asked: 1 }]);
    assert_eq!(stage.registry.total(0, WorkerCounter::ClientsUnfinished), 2);
    assert!(!stage.uses(POOL));
}

#[test]
fn pools_come_and_go_and_places_are_used_again() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let second = |name: &str, id: u32| {
        let mut pool = PoolPlan::new(name, proto::PROTOCOLS[0], vec![server(id + 1, "t0")]);
        pool.id = id;
        pool
    };
    for id in [5, 7, 5] {
        stage.install(|plan| plan.pools.push(second("second", id)));
        let other = stage.accept_at(id).expect("there is room");
        stage.says(other, "get x\r\n");
        let (far, server) = stage.connects.pop().expect("it is asked");
        assert_eq!(server, (id + 1 - S0) as usize);
        stage.comes_up(far);
        assert_eq!(stage.turn(far), "get x\r\n");
        stage.says(far, "END\r\n");
        assert_eq!(stage.received(other), "END\r\n");
        stage.install(|plan| drop(plan.pools.pop()));
        stage.end_turn();
        stage.end_turn();
        assert_eq!(stage.closed, [other, far]);
        stage.closed.clear();
        assert!(!stage.uses(id) && !stage.uses(id + 1));
    }
    stage.says(client, "get x\r\n");
    assert_eq!(stage.turn(link), "get x\r\n", "the first pool did not notice");
}

#[test]
fn a_nearer_deadline_is_kept_for_what_waits_already() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get x\r\n");
    stage.turn(link);
    stage.passes(SECOND / 10);
    stage.install(|plan| plan.pools[0].timeouts.reply = SECOND / 5);
    assert_eq!(stage.closed, []);
    stage.passes(SECOND / 10);
    assert_eq!(stage.closed, [link]);
    assert_eq!(stage.received(client), "SERVER_ERROR s0: no reply in time\r\n");
}

#[test]
fn bounds_change_in_place() {
    let mut stage = Stage::of(&["s0"], |_| {});
    let (first, second) = (stage.client(), stage.client());
    stage.install(|plan| plan.pools[0].client_connections = 2);
    assert!(stage.accept().is_err());
    stage.install(|plan| plan.clients_room = 3);
    stage.install(|plan| plan.pools[0].client_connections = 9);
    let third = stage.client();
    assert!(stage.accept().is_err());
    stage.install(|plan| plan.limits.pipeline = 1);
    stage.says(first, "get x\r\nget y\r\n");
    assert_eq!(stage.paused, [first]);
    assert_eq!(stage.closed, [], "nobody is sent away");
    // Each client is served. The first has sent two requests, one after the other.
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.turn(link), "get y\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(first), "END\r\nEND\r\n");
    for client in [second, third] {
        stage.says(client, "get z\r\n");
        assert_eq!(stage.turn(link), "get z\r\n");
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(client), "END\r\n");
    }
}

/// Only the weight changes: no server comes or goes, and no name changes.
#[test]
fn another_weight_is_another_ring() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        (pool.preconnect, pool.hash) = (true, Hash::Md5);
    });
    let links = [stage.connect(0), stage.connect(1)];
    let client = stage.client();
    let owners = |weights: [u32; 2]| -> Vec<usize> {
        let node = |(name, weight): (&str, u32)| Node { name: name.to_string(), weight };
        let nodes = [("s0", weights[0]), ("s1", weights[1])].map(node);
        let ring = Ring::build(Distribution::Ketama, &nodes, &[true; 2]);
        let hash = |key: usize| Hash::Md5.hash(format!("key{key}").as_bytes());
        (0..100).map(|key| ring.locate(hash(key)).expect("both live")).collect()
    };
    let mut shares = Vec::new();
    for weights in [[1, 1], [1, 9], [9, 1], [1, 1]] {
        stage.install(|plan| {
            let servers = plan.pools[0].servers.iter_mut();
            servers.zip(weights).for_each(|(server, weight)| server.weight = weight);
        });
        let expected = owners(weights);
        shares.push(expected.iter().sum::<usize>());
        for (key, owner) in expected.into_iter().enumerate() {
            stage.says(client, &format!("get key{key}\r\n"));
            assert_eq!(stage.turn(links[owner]), format!("get key{key}\r\n"), "{weights:?}");
            stage.says(links[owner], "END\r\n");
            assert_eq!(stage.received(client), "END\r\n");
        }
    }
    assert!(shares[2] + 20 < shares[0] && shares[0] + 20 < shares[1], "{shares:?}");
    assert_eq!((shares[0], &stage.closed), (shares[3], &vec![]));
}

/// Nothing else changes: the keys move all the same.
#[test]
fn another_distribution_and_another_name_are_another_ring() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        (pool.preconnect, pool.hash) = (true, Hash::Md5);
        pool.distribution = Distribution::Modula;
    });
    let links = [stage.connect(0), stage.connect(1)];
    let client = stage.client();
    for (distribution, names) in [
        (Distribution::Modula, ["s0", "s1"]),
        (Distribution::Ketama, ["s0", "s1"]),
        (Distribution::Ketama, ["s0", "other"]),
        (Distribution::Ketama, ["third", "fourth"]),
        (Distribution::Modula, ["s0", "other"]),
    ] {
        stage.install(|plan| {
            plan.pools[0].distribution = distribution;
            let servers = plan.pools[0].servers.iter_mut();
            servers.zip(names).for_each(|(server, name)| server.name = name.to_string());
        });
        let nodes = names.map(|name| Node { name: name.to_string(), weight: 1 });
        let ring = Ring::build(distribution, &nodes, &[true; 2]);
        for key in 0..50 {
            let owner = ring.locate(Hash::Md5.hash(format!("key{key}").as_bytes()));
            let link = links[owner.expect("both live")];
            stage.says(client, &format!("get key{key}\r\n"));
            assert_eq!(stage.turn(link), format!("get key{key}\r\n"), "{distribution:?}");
            stage.says(link, "END\r\n");
            assert_eq!(stage.received(client), "END\r\n");
        }
    }
}

/// Its last client has gone, but a server still owes an answer.
#[test]
fn a_pool_that_is_gone_is_needed_until_its_last_answer_has_come() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "delete x noreply\r\n");
    assert_eq!(stage.turn(link), "delete x\r\n");
    stage.closes(client, Closed::Reset);
    stage.install(|plan| plan.pools.clear());
    for _ in 0..2 {
        stage.end_turn();
        assert!(stage.uses(POOL) && stage.uses(S0));
        assert_eq!(stage.retired(), [POOL, S0]);
    }
    stage.says(link, "DELETED\r\n");
    stage.end_turn();
    assert!(!stage.uses(POOL) && !stage.uses(S0));
    assert_eq!((stage.retired(), &stage.closed), (vec![], &vec![link]));
}

/// One of its servers has gone meanwhile, and has another weight when it is back in its place.
#[test]
fn a_pool_that_is_back_before_its_last_answer_has_come_has_the_ring_of_its_new_plan() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        (pool.preconnect, pool.hash) = (true, Hash::Md5);
    });
    let links = [stage.connect(0), stage.connect(1)];
    let owners = |weights: [u32; 2]| -> Vec<usize> {
        let node = |(name, weight): (&str, u32)| Node { name: name.to_string(), weight };
        let nodes = [("s0", weights[0]), ("s1", weights[1])].map(node);
        let ring = Ring::build(Distribution::Ketama, &nodes, &[true; 2]);
        let hash = |key: usize| Hash::Md5.hash(format!("key{key}").as_bytes());
        (0..100).map(|key| ring.locate(hash(key)).expect("both live")).collect()
    };
    let (before, after) = (owners([1, 1]), owners([1, 9]));
    let first = before.iter().position(|owner| *owner == 0).expect("it has some keys");
    let client = stage.client();
    stage.says(client, &format!("delete key{first} noreply\r\n"));
    assert_eq!(stage.turn(links[0]), format!("delete key{first}\r\n"));
    stage.closes(client, Closed::Reset);
    let pools = stage.plan.pools.clone();
    stage.install(|plan| plan.pools.clear());
    stage.end_turn();
    assert_eq!((stage.retired(), &stage.closed), (vec![POOL, S0], &vec![links[1]]));
    stage.install(|plan| {
        plan.pools = pools;
        plan.pools[0].servers[1].weight = 9;
    });
    let links = [links[0], stage.connect(1)];
    stage.says(links[0], "DELETED\r\n");
    let client = stage.client();
    for (key, owner) in after.into_iter().enumerate() {
        stage.says(client, &format!("get key{key}\r\n"));
        assert_eq!(stage.turn(links[owner]), format!("get key{key}\r\n"));
        stage.says(links[owner], "END\r\n");
        assert_eq!(stage.received(client), "END\r\n");
    }
}

/// The client's next request takes another link, and must not overtake the one before.
#[test]
fn a_client_that_waits_is_not_read_while_the_number_of_links_changes() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.server_connections = 2;
        pool.preconnect = true;
    });
    let (links, idle) = ([stage.connect(0), stage.connect(0)], stage.client());
    let client = stage.client();
    stage.says(client, "set x 0 0 1\r\nX\r\n");
    let sent = links.map(|link| stage.turn(link));
    let busy = usize::from(sent[0].is_empty());
    stage.install(|plan| plan.pools[0].server_connections = 1);
    assert_eq!(stage.paused, [client], "only who waits is held");
    stage.says(client, "get x\r\n");
    let heard = links.map(|link| stage.turn(link));
    assert_eq!(heard, ["", ""].map(str::to_string));
    stage.says(links[busy], "STORED\r\n");
    assert_eq!(stage.received(client), "STORED\r\n");
    stage.end_turn();
    assert_eq!(stage.paused, []);
    let left = links[usize::from(stage.closed == [links[0]])];
    assert_eq!(stage.turn(left), "get x\r\n");
    assert_eq!(stage.closed.len(), 1);
    stage.says(idle, "get y\r\n");
    assert_eq!(stage.turn(left), "get y\r\n");
}

#[test]
fn links_that_are_too_many_are_closed_when_their_last_answer_is_there() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.server_connections = 3;
        pool.preconnect = true;
    });
    let links = [stage.connect(0), stage.connect(0), stage.connect(0)];
    let clients = [stage.client(), stage.client(), stage.client()];
    clients.iter().for_each(|client| stage.says(*client, "get x\r\n"));
    assert_eq!(links.map(|link| stage.turn(link)), ["get x\r\n"; 3].map(str::to_string));
    stage.install(|plan| plan.pools[0].server_connections = 1);
    assert_eq!(stage.closed, []);
    links.iter().for_each(|link| stage.says(*link, "END\r\n"));
    assert_eq!(clients.map(|client| stage.received(client)), ["END\r\n"; 3].map(str::to_string));
    assert_eq!(stage.closed, links[1..]);
}

#[test]
fn a_server_may_be_out_though_this_worker_saw_nothing_and_is_probed_from_then_on() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.distribution = Distribution::Modula;
        pool.on_failure = OnFailure::Eject;
        pool.server_retry_timeout = 10 * SECOND;
    });
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("get {key}\r\n"));
    let link = stage.connect(1);
    stage.turn(link);
    stage.set_ejected(S1, true);
    stage.set_ejected(S1, true);
    // Its outstanding request is answered, and that brings no server back.
    stage.says(link, "END\r\n");
    assert_eq!((stage.received(client), &stage.reports), ("END\r\n".to_string(), &vec![]));
    stage.says(client, &format!("get {key}\r\n"));
    let heir = stage.connect(0);
    assert_eq!(stage.turn(heir), format!("get {key}\r\n"));
    stage.says(heir, "END\r\n");
    stage.passes(7 * SECOND);
    assert_eq!(stage.connects, [], "its time is not up");
    stage.passes(3 * SECOND);
    stage.connect(1);
    assert_eq!(stage.reports, [Report::Answered { server: S1, probe: true }]);
    // The link that stands is asked as well: a probe may be what a firewall refuses.
    assert_eq!(stage.turn(link), "version\r\n");
    stage.says(link, "VERSION 1.6.40\r\n");
    stage.set_ejected(S1, false);
    stage.says(client, &format!("get {key}\r\n"));
    assert_eq!(stage.turn(link), format!("get {key}\r\n"));
    assert_eq!(stage.events, [], "whoever decides it tells it");
    stage.set_ejected(99, true);
}

#[test]
fn every_failure_in_a_request_is_reported_until_a_request_is_answered() {
    let mut stage = Stage::new(&["s0"], |pool| pool.on_failure = OnFailure::Eject);
    let client = stage.client();
    let why = "connect failed";
    stage.says(client, "get x\r\n");
    for failures in 1..4 {
        let (link, _) = stage.connects.pop().expect("it is asked, then probed");
        stage.closes(link, Closed::Reset);
        let report = Report::Failed { server: S0, failures, why: why.into() };
        assert_eq!(stage.reports.pop(), Some(report));
        stage.passes(SECOND);
    }
    let probe = stage.connect(0);
    assert_eq!(stage.reports.pop(), Some(Report::Answered { server: S0, probe: true }));
    assert_eq!(stage.events.last(), Some(&Event::ServerBack { server: S0 }));
    stage.says(client, "get x\r\n");
    stage.turn(probe);
    stage.says(probe, "END\r\n");
    assert_eq!(stage.reports.pop(), Some(Report::Answered { server: S0, probe: false }));
    stage.says(client, "get x\r\n");
    stage.turn(probe);
    stage.says(probe, "END\r\n");
    assert_eq!(stage.reports, [], "nothing to report of a server that is well");
}

#[test]
fn a_socket_that_we_cannot_make_is_no_servers_fault_and_starts_no_storm() {
    let mut stage = Stage::new(&["s0"], |pool| pool.on_failure = OnFailure::Eject);
    let (client, words) = (stage.client(), "no connection could be made, not sent");
    let refused = format!("SERVER_ERROR s0: {words}\r\n");
    for pause in [50_000, 100_000, 200_000] {
        stage.says(client, "set x 0 0 1\r\nX\r\n");
        let (link, _) = stage.connects.pop().expect("it is tried");
        stage.closes(link, Closed::Own);
        assert_eq!(stage.received(client), refused);
        stage.end_turn();
        for _ in 0..100 {
            stage.says(client, "get x\r\n");
        }
        stage.end_turn();
        stage.passes(pause - 1);
        stage.says(client, "get x\r\n");
        assert_eq!(stage.received(client), refused.repeat(101));
        assert_eq!(stage.connects, [], "it waits before it tries again");
        stage.passes(1);
    }
    assert_eq!((&stage.events, &stage.reports), (&vec![], &vec![]));
    stage.says(client, "get x\r\n");
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get x\r\n");
}

/// The last answers of the client were written after the end of the turn, and nothing else would
/// have woken the worker for the requests that it had already sent.
#[test]
fn a_client_that_goes_on_after_the_last_write_of_a_turn_has_another_turn() {
    let mut stage = Stage::of(&["s0"], |plan| plan.limits.client_outbox = 60);
    let client = stage.client();
    stage.says(client, &"version\r\n".repeat(50));
    let mut told = stage.received(client);
    for _ in 0..50 {
        if !stage.wants_turn() {
            break;
        }
        stage.end_turn();
        told += &stage.received(client);
    }
    assert_eq!(told.matches("VERSION ").count(), 50);
    assert!(stage.paused.is_empty() && !stage.wants_turn());
}

/// A client that was read again and closed its half in the same turn was listed twice.
#[test]
fn a_client_that_goes_on_and_ends_in_one_turn_is_answered_once() {
    let mut stage = Stage::of(&["s0"], |plan| plan.limits.pipeline = 2);
    let client = stage.client();
    stage.says(client, "delete x\r\ndelete y\r\ndelete z\r\n");
    let link = stage.connect(0);
    stage.turn(link);
    stage.says(link, "DELETED\r\nDELETED\r\n");
    stage.closes(client, Closed::Eof);
    assert_eq!(stage.turn(link), "delete z\r\n");
    stage.says(link, "NOT_FOUND\r\n");
    assert_eq!(stage.received(client), "DELETED\r\nDELETED\r\nNOT_FOUND\r\n");
    assert_eq!(stage.closed, [client]);
    stage.expect_rows(0);
}

#[test]
fn a_server_may_take_the_place_of_another_and_the_ring_knows_it() {
    let mut stage = two();
    let client = stage.client();
    let key = stage.key_of(1);
    stage.install(remove(S1));
    stage.end_turn();
    stage.install(|plan| plan.pools[0].servers.push(server(S2, "s1")));
    stage.says(client, &format!("get {key}\r\n"));
    assert_eq!(stage.connects.len(), 1);
    let link = stage.connect(2);
    assert_eq!(stage.turn(link), format!("get {key}\r\n"));
}

#[test]
fn a_link_that_stood_idle_is_lost_without_blame_and_one_that_has_just_come_up_is_followed() {
    for (stood, links) in [(SECOND, 0), (SECOND - 1, 1)] {
        let (mut stage, link) = Stage::of_one();
        stage.passes(stood);
        stage.closes(link, Closed::Eof);
        let down = stage.events.iter().any(|event| matches!(event, Event::ServerDown { .. }));
        assert!(!down, "one link is no verdict");
        assert_eq!(stage.connects.len(), links, "after {stood} us");
    }
}

/// Both addresses may be the same server's, so that the update must have been answered before the
/// read is sent.
#[test]
fn a_clients_next_request_waits_until_a_server_that_moves_has_answered_the_one_before() {
    let mut stage = two();
    let (client, idle) = (stage.client(), stage.client());
    let (key, other) = (stage.key_of(1), stage.key_of(0));
    stage.says(client, &format!("set {key} 0 0 1\r\nX\r\n"));
    let old = stage.connect(1);
    assert!(stage.turn(old).starts_with("set "));
    stage.install(|plan| plan.pools[0].servers[1] = server(S2, "s1"));
    assert_eq!(stage.paused, [client], "only who waits is held");
    stage.says(client, &format!("get {key}\r\n"));
    stage.says(idle, &format!("get {other}\r\n"));
    let first = stage.connect(0);
    assert_eq!(stage.turn(first), format!("get {other}\r\n"));
    assert_eq!(stage.connects, [], "nothing is asked of the new address yet");
    stage.says(old, "STORED\r\n");
    assert_eq!(stage.received(client), "STORED\r\n");
    stage.end_turn();
    assert_eq!((stage.paused.len(), &stage.closed), (0, &vec![old]));
    let (new, _) = stage.connects[0];
    stage.comes_up(new);
    assert_eq!(stage.turn(new), format!("get {key}\r\n"));
}

/// A server without an address is down before anybody asks for it, its keys are its own, and each
/// probe says so again. With an address it is another server, of the same name.
#[test]
fn a_server_without_an_address_is_down_until_a_plan_gives_it_one() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.distribution = Distribution::Modula;
        pool.preconnect = true;
        pool.servers[1].has_address = false;
    });
    assert_eq!(stage.healths(), ["s0 ready", "s1 down"]);
    let why = "its name does not resolve";
    assert_eq!(stage.events, [Event::ServerDown { server: S1, why: why.into(), errno: None }]);
    assert_eq!(stage.reports, [Report::Failed { server: S1, failures: 1, why: why.into() }]);
    stage.connect(0);
    let (client, key) = (stage.client(), stage.key_of(1));
    stage.says(client, &format!("get {key}\r\n"));
    assert!(stage.received(client).starts_with("SERVER_ERROR s1: down"));
    stage.passes(SECOND);
    let (probe, _) = *stage.connects.last().unwrap();
    stage.closes(probe, Closed::Reset);
    let last = stage.reports.last().cloned();
    assert_eq!(last, Some(Report::Failed { server: S1, failures: 2, why: why.into() }));
    stage.install(|plan| plan.pools[0].servers[1] = server(S2, "s1"));
    stage.says(client, &format!("get {key}\r\n"));
    let (link, _) = *stage.connects.last().unwrap();
    stage.comes_up(link);
    assert_eq!(stage.turn(link), format!("get {key}\r\n"));
}
