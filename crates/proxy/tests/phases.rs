//! The phases of requests, on a clock of the test's own.

mod stage;

use metrics::{Latency, Phase, PoolCounter, Registry, ServerCounter};
use proxy::slow::Cause;
use proxy::{Closed, ConnId};
use stage::*;

/// The times of the four phases of the only request so far.
fn phases(registry: &Registry) -> [u64; 4] {
    Phase::ALL.map(|phase| {
        let one = registry.histogram(POOL, Latency::of_phase(phase));
        assert_eq!(one.count(), 1, "{phase:?}");
        one.sum()
    })
}

#[test]
fn the_phases_of_a_request_are_told_apart() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "get ");
    stage.passes(10);
    stage.says(client, "x\r\n");
    stage.passes(100);
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.passes(1_000);
    stage.says(link, "VALUE x 0 4\r\n");
    stage.passes(500);
    stage.says(link, "abcd\r\nEND\r\n");
    stage.passes(2_000);
    stage.received_some(client, 3);
    stage.passes(5_000);
    assert_eq!(stage.received(client), "UE x 0 4\r\nabcd\r\nEND\r\n");
    assert_eq!(phases(&stage.registry), [10, 100, 1_500, 7_000]);
}

#[test]
fn a_request_of_several_servers_has_the_phases_of_the_part_that_is_answered_last() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        (pool.preconnect, pool.distribution) = (true, shard::Distribution::Modula);
    });
    let links = [0, 1].map(|server| stage.connect(server));
    let client = stage.client();
    let keys = [stage.key_of(0), stage.key_of(1)];
    stage.says(client, &format!("get {} {}\r\n", keys[0], keys[1]));
    stage.passes(7);
    stage.turn(links[1]);
    stage.passes(20);
    stage.received(links[0]);
    stage.passes(300);
    stage.says(links[0], "END\r\n");
    stage.passes(4_000);
    stage.says(links[1], "END\r\n");
    assert_eq!(stage.received(client), "END\r\n");
    assert_eq!(phases(&stage.registry), [0, 7, 4_320, 0]);
}

#[test]
fn a_request_that_was_never_sent_has_waited_and_one_that_was_has_been_with_its_server() {
    for (is_sent, expected) in [(false, [0, 70, 0, 0]), (true, [0, 0, 70, 0])] {
        let (mut stage, link) = Stage::of_one();
        let client = stage.client();
        stage.says(client, "set x 0 0 1\r\nX\r\n");
        if is_sent {
            stage.turn(link);
        }
        stage.passes(70);
        stage.closes(link, Closed::Reset);
        stage.end_turn();
        assert!(stage.received(client).starts_with("SERVER_ERROR"));
        assert_eq!(phases(&stage.registry), expected, "sent: {is_sent}");
    }
}

/// Has a request take this long because of what `meanwhile` does, and returns its causes.
fn causes(
    stage: &mut Stage,
    request: &str,
    meanwhile: impl FnOnce(&mut Stage),
) -> Vec<&'static str> {
    let client = stage.client();
    stage.says(client, request);
    meanwhile(stage);
    stage.received(client);
    let [entry] = &stage.slow[..] else { panic!("one slow request, not {:?}", stage.slow) };
    Cause::of_bits(entry.causes).map(|(_, word, _)| *word).collect()
}

const SLOW_US: u64 = 200_000;

fn slow_stage() -> (Stage, ConnId) {
    let mut stage = Stage::new(&["s0"], |pool| {
        (pool.preconnect, pool.slow.after) = (true, SLOW_US / 2);
    });
    let link = stage.connect(0);
    (stage, link)
}

#[test]
fn a_long_turn_of_the_worker_is_named() {
    let (mut stage, link) = slow_stage();
    let found = causes(&mut stage, "get x\r\n", |stage| {
        stage.passes(SLOW_US);
        stage.turn(link);
        stage.note_work(SLOW_US);
        stage.passes(10);
        stage.says(link, "END\r\n");
    });
    assert_eq!(found, ["long_turn"]);
    stage.slow.clear();
    let found = causes(&mut stage, "get x\r\n", |stage| {
        stage.turn(link);
        stage.says(link, "END\r\n");
        stage.passes(SLOW_US);
    });
    assert_eq!(found, ["long_turn"], "its answer was not written before the turn was over");
}

#[test]
fn a_silent_server_that_requests_were_held_for_is_named() {
    let (mut stage, link) = slow_stage();
    let other = stage.client();
    stage.says(other, "get y\r\n");
    stage.turn(link);
    stage.passes(40_000);
    let found = causes(&mut stage, "get x\r\n", |stage| {
        stage.end_turn();
        stage.passes(SLOW_US);
        stage.says(link, "END\r\n");
        stage.turn(link);
        stage.says(link, "END\r\n");
        stage.slow.retain(|entry| entry.phases[1] > 0);
    });
    assert_eq!(found, ["held"]);
}

#[test]
fn a_stall_is_counted_as_cured_if_the_rest_comes_at_once_after_the_ack() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let mut ask = |pause: u64| {
        stage.says(client, "get ");
        stage.passes(pause);
        stage.says(client, "x\r\n");
        stage.turn(link);
        stage.says(link, "VALUE x 0 1\r\n");
        stage.passes(pause);
        stage.says(link, "1\r\nEND\r\n");
        stage.received(client);
        let registry = &stage.registry;
        [
            registry.total(POOL, PoolCounter::StallsCured),
            registry.total(S0, ServerCounter::StallsCured),
        ]
    };
    assert_eq!([5_000, 5_001, 1, 40_000].map(&mut ask), [[1, 1], [1, 1], [2, 2], [2, 2]]);
}
