//! Stories of servers that an operator drains or has in maintenance.

use proxy::plan::{AdminState, OnFailure, Plan};
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::{S0, SECOND, Stage};

const DOWN: &str = "SERVER_ERROR s1: in maintenance, not sent\r\n";

/// Two servers, each with some of the keys.
fn two(on_failure: OnFailure) -> Stage {
    Stage::new(&["s0", "s1"], |pool| {
        (pool.distribution, pool.on_failure) = (Distribution::Modula, on_failure);
        pool.allow = vec!["flush_all".to_string()];
    })
}

fn state(server: usize, state: AdminState) -> impl FnOnce(&mut Plan) {
    move |plan| plan.pools[0].servers[server].admin = state
}

/// A client, and a key of the second server that it has asked for.
fn asking(stage: &mut Stage) -> (ConnId, String, ConnId) {
    let client = stage.client();
    let key = stage.key_of(1);
    stage.says(client, &format!("incr {key} 1\r\n"));
    let link = stage.connect(1);
    assert_eq!(stage.turn(link), format!("incr {key} 1\r\n"));
    (client, key, link)
}

#[test]
fn a_server_in_maintenance_ends_what_it_was_asked_and_is_asked_nothing() {
    let mut stage = two(OnFailure::FailFast);
    let (client, key, link) = asking(&mut stage);
    stage.install(state(1, AdminState::Maint));
    assert_eq!(stage.closed, [], "it owes an answer");
    stage.says(client, &format!("incr {key} 1\r\nget {key}\r\n"));
    stage.says(link, "1\r\n");
    assert_eq!(stage.received(client), format!("1\r\n{DOWN}{DOWN}"));
    stage.end_turn();
    assert_eq!(stage.closed, [link]);
    stage.passes(60 * SECOND);
    assert_eq!((&stage.connects, &stage.events), (&vec![], &vec![]), "nor is it probed");
    assert_eq!(stage.healths(), ["s0 ready", "s1 maint"]);
    stage.install(state(1, AdminState::Ready));
    stage.says(client, &format!("get {key}\r\n"));
    let link = stage.connect(1);
    assert_eq!(stage.turn(link), format!("get {key}\r\n"));
}

#[test]
fn what_fails_in_maintenance_is_blamed_on_nobody_and_forgotten() {
    let mut stage = two(OnFailure::Eject);
    let (client, key, link) = asking(&mut stage);
    stage.install(state(1, AdminState::Maint));
    stage.closes(link, Closed::Reset);
    let lost = "SERVER_ERROR s1: connection lost, outcome unknown\r\n";
    assert_eq!(stage.received(client), lost);
    assert_eq!((&stage.reports, &stage.events), (&vec![], &vec![]));
    stage.install(state(1, AdminState::Ready));
    stage.says(client, &format!("get {key}\r\n"));
    stage.connect(1);
    assert_eq!(stage.healths(), ["s0 ready", "s1 ready"]);
}

#[test]
fn a_server_that_is_down_is_probed_no_more_in_maintenance_and_is_asked_at_once_afterwards() {
    let mut stage = two(OnFailure::FailFast);
    let (client, key, link) = asking(&mut stage);
    stage.closes(link, Closed::Reset);
    stage.received(client);
    let (judge, _) = stage.connects.pop().expect("another shows what it is");
    stage.closes(judge, Closed::Reset);
    assert_eq!(stage.healths()[1], "s1 down");
    stage.passes(SECOND);
    let (probe, _) = stage.connects.pop().expect("it is probed");
    stage.install(state(1, AdminState::Maint));
    assert_eq!(stage.closed, [probe]);
    stage.passes(60 * SECOND);
    assert_eq!(stage.connects, []);
    stage.received(client);
    stage.install(state(1, AdminState::Ready));
    stage.says(client, &format!("get {key}\r\n"));
    let link = stage.connect(1);
    assert_eq!(stage.turn(link), format!("get {key}\r\n"));
}

#[test]
fn where_keys_may_move_they_leave_a_server_that_drains_and_come_back() {
    for gone in [AdminState::Drain, AdminState::Maint] {
        let mut stage = two(OnFailure::Eject);
        let (client, key, link) = asking(&mut stage);
        stage.install(state(1, gone));
        stage.says(client, &format!("get {key}\r\n"));
        let heir = stage.connect(0);
        assert_eq!(stage.turn(heir), format!("get {key}\r\n"));
        stage.says(heir, "END\r\n");
        assert_eq!(stage.received(client), "", "the first answer comes first");
        stage.says(link, "1\r\n");
        assert_eq!(stage.received(client), "1\r\nEND\r\n");
        stage.end_turn();
        assert_eq!(stage.closed.contains(&link), gone == AdminState::Maint);
        stage.install(state(1, AdminState::Ready));
        stage.says(client, &format!("get {key}\r\n"));
        let link = if gone == AdminState::Maint { stage.connect(1) } else { link };
        assert_eq!(stage.turn(link), format!("get {key}\r\n"));
    }
}

#[test]
fn servers_that_drain_serve_while_there_is_no_other() {
    let mut stage = two(OnFailure::Eject);
    stage.install(state(0, AdminState::Maint));
    stage.install(state(1, AdminState::Drain));
    let client = stage.client();
    stage.says(client, "get a\r\n");
    let link = stage.connect(1);
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(client), "END\r\n");
    // The other one comes back, and takes all.
    stage.install(state(0, AdminState::Ready));
    stage.says(client, "get a\r\n");
    stage.connect(0);
    stage.set_ejected(S0, true);
    stage.says(client, "get b\r\n");
    assert_eq!(stage.turn(link), "get b\r\n", "the only one left");
}

#[test]
fn all_servers_in_maintenance_are_errors() {
    for on_failure in [OnFailure::Eject, OnFailure::FailFast] {
        let mut stage = two(on_failure);
        let (client, key) = (stage.client(), stage.key_of(1));
        stage.install(|plan| {
            plan.pools[0].servers.iter_mut().for_each(|one| one.admin = AdminState::Maint);
        });
        stage.says(client, &format!("get {key}\r\nset {key} 0 0 1\r\nx\r\n"));
        assert_eq!(stage.received(client), format!("{DOWN}{DOWN}"));
        stage.says(client, "flush_all\r\n");
        assert!(stage.received(client).ends_with(": in maintenance, not sent\r\n"));
        assert_eq!(stage.connects, []);
    }
}

#[test]
fn a_change_for_all_servers_goes_to_none_if_one_is_in_maintenance() {
    let mut stage = two(OnFailure::FailFast);
    let client = stage.client();
    stage.install(state(1, AdminState::Maint));
    stage.says(client, "flush_all\r\n");
    let connects: Vec<usize> = stage.connects.drain(..).map(|(_, at)| at).collect();
    assert!(connects.iter().all(|at| *at == 0), "{connects:?}");
    assert_eq!(stage.received(client), DOWN);
}

#[test]
fn no_further_link_is_opened_to_a_server_that_drains_and_keeps_its_keys() {
    let mut stage = Stage::new(&["s0"], |pool| pool.server_connections = 2);
    let (first, second) = (stage.client(), stage.client());
    stage.says(first, "get a\r\n");
    let link = stage.connect(0);
    stage.install(state(0, AdminState::Drain));
    stage.says(second, "get b\r\n");
    assert_eq!((stage.turn(link), &stage.connects), ("get a b\r\n".to_string(), &vec![]));
    // The second client's own link is opened when nothing of it is left on the other.
    stage.install(state(0, AdminState::Ready));
    stage.says(second, "get c\r\n");
    assert_eq!(stage.connects, [], "an answer is owed to it");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(second), "END\r\n");
    stage.end_turn();
    let own = stage.connect(0);
    assert_eq!(stage.turn(own), "get c\r\n");
}

#[test]
fn slow_requests_and_those_that_end_them_share_no_link_even_while_the_server_drains() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = proto::protocol("redis").expect("the table has it");
        pool.preconnect = true;
    });
    let comes_up = |stage: &mut Stage| {
        let link = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
        stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
        link
    };
    let (shared, client, other) = (comes_up(&mut stage), stage.client(), stage.client());
    stage.install(state(0, AdminState::Drain));
    stage.says(client, "KEYS *\r\n");
    stage.end_turn();
    let slow = comes_up(&mut stage);
    assert_ne!(slow, shared, "it would hold up all others");
    assert_eq!(stage.turn(slow), "*2\r\n$4\r\nKEYS\r\n$1\r\n*\r\n");
    stage.says(other, "SCRIPT KILL\r\n");
    let control = comes_up(&mut stage);
    assert_eq!(stage.turn(control), "*2\r\n$6\r\nSCRIPT\r\n$4\r\nKILL\r\n");
    stage.says(control, "+OK\r\n");
    stage.says(slow, "*0\r\n");
    assert_eq!(
        (stage.received(other), stage.received(client)),
        ("+OK\r\n".into(), "*0\r\n".into())
    );
}

#[test]
fn one_link_is_opened_to_a_server_that_drains_if_its_keys_need_it() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.pools[0].preconnect = true;
        plan.pools[0].servers[0].admin = AdminState::Drain;
    });
    assert_eq!(stage.connects, [], "none in advance");
    let client = stage.client();
    stage.says(client, "get a\r\n");
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(client), "END\r\n");
}

#[test]
fn a_server_that_comes_back_from_maintenance_keeps_its_link_and_order() {
    let mut stage = two(OnFailure::FailFast);
    let (client, key, link) = asking(&mut stage);
    stage.install(state(1, AdminState::Maint));
    stage.install(state(1, AdminState::Ready));
    stage.says(client, &format!("get {key}\r\n"));
    assert_eq!(stage.turn(link), format!("get {key}\r\n"));
    stage.says(link, "1\r\nEND\r\n");
    assert_eq!(stage.received(client), "1\r\nEND\r\n");
    assert_eq!(stage.closed, []);
}
