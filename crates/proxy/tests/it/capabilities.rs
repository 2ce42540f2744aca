//! Stories of capabilities: the form of a request depends on them, and they may change.

use proxy::plan::ServerPlan;
use proxy::{Closed, Event};
use shard::Distribution;

use crate::stage::{S0, Stage};

const APPEND: &str = "ms x 1 MA\r\nX\r\n";
const NO_META: &str = "VERSION 1.4.15\r\n";

/// Seed 198: the second link was up when the first learned that the server is an older one by now.
/// The messages that waited on the second were sent all the same.
#[test]
fn what_waits_on_another_link_is_not_sent_to_a_server_that_lost_meta() {
    let mut stage = Stage::new(&["s0"], |pool| pool.server_connections = 2);
    let clients = [stage.client(), stage.client()];
    stage.says(clients[0], APPEND);
    stage.end_turn();
    let first = stage.connect(0);
    assert_eq!(stage.turn(first), APPEND);
    stage.says(first, "HD\r\n");
    stage.says(clients[1], APPEND);
    stage.end_turn();
    let second = stage.connects[0].0;
    stage.closes(first, Closed::Eof);
    stage.says(clients[0], "get x\r\n");
    stage.end_turn();
    let third = stage.connects[1].0;
    stage.establishes(third);
    stage.says(third, NO_META);
    assert_eq!(stage.closed, [second]);
    assert_eq!(stage.received(clients[1]), "SERVER_ERROR s0: connection lost, not sent\r\n");
    assert_eq!(stage.turn(third), "get x\r\n");
    let is_down = |event: &Event| matches!(event, Event::ServerDown { .. });
    assert!(!stage.events.iter().any(is_down), "it is well: {:?}", stage.events);
}

/// Seed 5: a server that was back in the plan had unknown capabilities, and its link, which was up,
/// did not repeat the handshake.
#[test]
fn a_server_that_is_back_in_the_plan_can_do_what_its_standing_link_has_learnt() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| pool.distribution = Distribution::Modula);
    let key = stage.key_of(1);
    let client = stage.client();
    let append = format!("ms {key} 1 MA\r\nX\r\n");
    stage.says(client, &append);
    stage.end_turn();
    let link = stage.connect(1);
    assert_eq!(stage.turn(link), append);
    stage.install(|plan| drop(plan.pools[0].servers.pop()));
    let back = ServerPlan { id: S0 + 1, ..ServerPlan::new("s1", "s1", 1) };
    stage.install(|plan| plan.pools[0].servers.push(back));
    stage.says(client, &append);
    assert_eq!(stage.turn(link), append);
    stage.says(link, "HD\r\nHD\r\n");
    assert_eq!(stage.received(client), "HD\r\nHD\r\n");
}

/// Seed 3930: a request whose data came while its key moved to a server with unknown capabilities
/// was answered that this server is down.
#[test]
fn data_that_comes_while_its_key_moves_waits_for_the_greeting_of_the_new_server() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| pool.distribution = Distribution::Modula);
    let key = stage.key_of(1);
    let client = stage.client();
    stage.says(client, &format!("mg {key} t\r\n"));
    stage.end_turn();
    let old = stage.connect(1);
    assert_eq!(stage.turn(old), format!("mg {key} t\r\n"));
    stage.says(old, "EN\r\n");
    stage.says(client, &format!("ms {key} 4 MA\r\nab"));
    stage.install(|plan| drop(plan.pools[0].servers.pop()));
    stage.says(client, "cd\r\nget other\r\n");
    stage.end_turn();
    assert_eq!(stage.received(client), "EN\r\n");
    let new = stage.connect(0);
    assert_eq!(stage.turn(new), format!("ms {key} 4 MA\r\nabcd\r\nget other\r\n"));
    stage.says(new, "HD\r\nEND\r\n");
    assert_eq!(stage.received(client), "HD\r\nEND\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_server_without_meta_is_told_of_when_that_is_learned() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let is_lack = |event: &&Event| matches!(event, Event::Lacks { server: S0, .. });
    let lacks = |stage: &Stage| stage.events.iter().filter(is_lack).count();
    stage.handshake(link);
    stage.closes(link, Closed::Eof);
    assert_eq!(lacks(&stage), 0, "{:?}", stage.events);
    // The server is an older one when it is back. The link after that shows nothing new.
    for _ in 0..2 {
        stage.says(client, "get k\r\n");
        stage.end_turn();
        let link = stage.connects[stage.connects.len() - 1].0;
        stage.establishes(link);
        stage.says(link, NO_META);
        assert_eq!(stage.turn(link), "get k\r\n");
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(client), "END\r\n");
        stage.closes(link, Closed::Eof);
    }
    assert_eq!(lacks(&stage), 1, "{:?}", stage.events);
}
