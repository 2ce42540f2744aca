//! The phases of requests, on a clock of the test's own.

use crate::stage::*;
use metrics::{Latency, Phase, PoolCounter, Registry, ServerCounter};
use proxy::slow::Cause;
use proxy::{Closed, ConnId, Event};

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
        if !is_sent {
            // It moves once.
            let another = stage.connect(0);
            stage.closes(another, Closed::Reset);
            stage.end_turn();
        }
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

#[test]
fn a_server_whose_replies_drip_is_named_counted_and_told_of_once_a_minute() {
    let (mut stage, link) = slow_stage();
    let drip = |stage: &mut Stage, pause: u64| {
        stage.turn(link);
        for at in 0..21 {
            stage.passes(pause);
            stage.says(link, &"VALUE x 0 1\r\n1\r\nEND\r\n"[at..=at]);
        }
    };
    let found = causes(&mut stage, "get x\r\n", |stage| drip(stage, 10_000));
    assert_eq!(found, ["reply_drips"]);
    let drips = |stage: &Stage| stage.registry.total(S0, ServerCounter::RepliesDripped);
    assert_eq!(drips(&stage), 1);
    let told = |stage: &Stage| {
        let is_it = |event: &&Event| matches!(event, Event::ServerDrips { reads: 20, .. });
        stage.events.iter().filter(is_it).count()
    };
    assert_eq!(told(&stage), 1, "{:?}", stage.events);
    let client = stage.client();
    for (pause, dripped) in [(10_000, 2), (1_000, 2), (10_000, 3)] {
        stage.says(client, "get x\r\n");
        drip(&mut stage, pause);
        assert_eq!((drips(&stage), told(&stage)), (dripped, 1), "after {pause} us");
    }
    stage.passes(61_000_000);
    stage.says(client, "get x\r\n");
    drip(&mut stage, 10_000);
    assert_eq!((drips(&stage), told(&stage)), (4, 2));
}

#[test]
fn a_request_that_is_slow_because_it_is_large_is_named_with_its_size() {
    let (mut stage, link) = slow_stage();
    let keys: String = (0..150).map(|n| format!(" key{n}")).collect();
    let found = causes(&mut stage, &format!("get{keys}\r\n"), |stage| {
        let mut asked = stage.turn(link).matches("get ").count();
        stage.passes(SLOW_US);
        while asked > 0 {
            stage.says(link, &"END\r\n".repeat(asked));
            asked = stage.turn(link).matches("get ").count();
        }
    });
    assert_eq!(found, ["queue", "large"], "some keys waited behind the others");
    assert_eq!(stage.slow[0].keys, 150);
    // Large requests take no link of their own here.
    let mut stage = Stage::new(&["s0"], |pool| {
        (pool.preconnect, pool.slow.after, pool.class_links) = (true, SLOW_US / 2, 0);
    });
    let link = stage.connect(0);
    let value = "x".repeat(300_000);
    let found = causes(&mut stage, &format!("set k 0 0 300000\r\n{value}\r\n"), |stage| {
        let mut sent = 0;
        while sent < 300_000 {
            sent += stage.turn(link).len();
        }
        stage.passes(SLOW_US);
        stage.says(link, "STORED\r\n");
    });
    assert_eq!(found, ["large"], "{:?}", stage.slow[0]);
    assert!(stage.slow[0].bytes > 300_000, "{:?}", stage.slow[0]);
    stage.slow.clear();
    let found = causes(&mut stage, "get k\r\n", |stage| {
        stage.turn(link);
        stage.passes(SLOW_US);
        stage.says(link, "END\r\n");
    });
    assert_eq!(found, ["server"], "its own size, not that of those before it");
    assert!(stage.slow[0].bytes < 100, "{:?}", stage.slow[0]);
}

/// Each entry pushes out another, so more of them would tell less.
#[test]
fn of_a_flood_of_slow_requests_all_are_counted_and_some_are_recorded() {
    let (mut stage, link) = slow_stage();
    let client = stage.client();
    stage.says(client, &"set x 0 0 1\r\nX\r\n".repeat(300));
    stage.passes(SLOW_US);
    let mut answered = 0;
    while answered < 300 {
        let asked = stage.turn(link).matches("set x").count();
        assert!(asked > 0, "{answered} are answered");
        stage.says(link, &"STORED\r\n".repeat(asked));
        stage.received(client);
        answered += asked;
    }
    assert_eq!(stage.registry.total(POOL, PoolCounter::Slow), 300);
    assert!((128..140).contains(&stage.slow.len()), "{} are recorded", stage.slow.len());
    // After a while, others are.
    stage.slow.clear();
    stage.passes(10_000_000);
    assert_eq!(
        causes(&mut stage, "get x\r\n", |stage| {
            stage.turn(link);
            stage.passes(SLOW_US);
            stage.says(link, "END\r\n");
        }),
        ["server"]
    );
}
