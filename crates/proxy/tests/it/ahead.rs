//! Stories of clients that write their whole pipeline before they read an answer.
//! `client/ahead.rs` has the rule.

use std::rc::Rc;

use metrics::PoolCounter;
use proxy::limits::{AHEAD_AFTER_US, BUFFER_KEEP_MAX};
use proxy::plan::Plan;
use proxy::users::Users;
use proxy::{Closed, ConnId, Event};

use crate::stage::{POOL, SECOND, Stage};

const VALUE: usize = 5_000;
/// Requests that fill a client's pipeline.
const FULL: usize = 8;

/// A client that is stopped, since it has read nothing of its first answers, and its link.
fn stopped(set: impl FnOnce(&mut Plan)) -> (Stage, ConnId, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        (plan.limits.pipeline, plan.limits.client_outbox) = (FULL, 4 * VALUE);
        plan.memory_max = 8 << 20;
        plan.pools[0].preconnect = true;
        set(plan);
    });
    let link = stage.connect(0);
    let client = stage.client();
    stop(&mut stage, link, client);
    (stage, link, client)
}

/// Has a client ask for so much that it is stopped, and take nothing of the answers.
fn stop(stage: &mut Stage, link: ConnId, client: ConnId) {
    stage.says(client, &gets(0, 2 * FULL));
    while answer(stage, link) > 0 {
        stage.received_some(client, 0);
    }
    stage.says(client, &gets(2 * FULL, 1_000));
    assert!(stage.paused.contains(&client));
}

fn gets(from: usize, count: usize) -> String {
    (from..from + count).map(|nth| format!("get key-{nth:05}\r\n")).collect()
}

fn hit(key: &str) -> String {
    format!("VALUE {key} 0 {VALUE}\r\n{}\r\nEND\r\n", key.repeat(VALUE).split_at(VALUE).0)
}

/// Has the server answer what it receives; returns how many requests that were.
fn answer(stage: &mut Stage, link: ConnId) -> usize {
    let received = stage.turn(link);
    received.lines().for_each(|line| reply(stage, link, line));
    received.lines().flat_map(|line| line.split(' ').skip(1)).count()
}

/// Has the server answer a get or a set.
fn reply(stage: &mut Stage, link: ConnId, line: &str) {
    match line.split(' ').next() {
        Some("get") => {
            let hits = line.split(' ').skip(1).map(|key| hit(key).replace("END\r\n", ""));
            stage.says(link, &(hits.collect::<String>() + "END\r\n"));
        }
        Some("set") => stage.says(link, "STORED\r\n"),
        _ => {}
    }
}

/// Has a client read all its answers, which must be these.
fn reads(stage: &mut Stage, link: ConnId, client: ConnId, count: usize) {
    let mut told = String::new();
    let mut quiet = 0;
    while quiet < 3 {
        let more = stage.received(client);
        quiet = if answer(stage, link) == 0 && more.is_empty() { quiet + 1 } else { 0 };
        told += &more;
    }
    let expected: String = (0..count).map(|nth| hit(&format!("key-{nth:05}"))).collect();
    assert!(told == expected, "{} bytes of {}", told.len(), expected.len());
}

#[test]
fn who_writes_a_pipeline_before_it_reads_has_all_its_answers() {
    let (mut stage, link, client) = stopped(|_| {});
    stage.waits(AHEAD_AFTER_US);
    assert!(stage.paused.is_empty(), "its socket is read on");
    let (mut count, asked) = (2 * FULL + 1_000, stage.memory());
    for _ in 0..10 {
        stage.says(client, &gets(count, 1_000));
        count += 1_000;
        assert_eq!(answer(&mut stage, link), 0, "nothing more is asked for it");
    }
    assert!(stage.paused.is_empty());
    assert!(stage.memory() >= asked + gets(0, 10_000).len(), "what is kept is counted");
    reads(&mut stage, link, client, count);
    assert_eq!(stage.memory(), 0);
    // It is read as any other.
    stage.says(client, "get a\r\n");
    assert_eq!(stage.turn(link), "get a\r\n");
}

#[test]
fn who_reads_a_little_all_the_time_is_not_read_ahead() {
    let (mut stage, _, client) = stopped(|_| {});
    for _ in 0..20 {
        stage.waits(AHEAD_AFTER_US / 2);
        assert_eq!(stage.received_some(client, 1).len(), 1);
        assert!(stage.paused.contains(&client));
    }
    stage.waits(AHEAD_AFTER_US);
    assert!(stage.paused.is_empty());
}

#[test]
fn what_ends_in_the_middle_of_a_block_is_read_on_in_the_next() {
    let (mut stage, link, client) = stopped(|plan| plan.limits.large_min = u64::MAX);
    stage.waits(AHEAD_AFTER_US);
    // Longer than a block, and cut at every place of one.
    let value = "v".repeat(BUFFER_KEEP_MAX + 77);
    let set = |key: &str| format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
    let mut expected = String::new();
    for nth in 0..20 {
        let text = set(&"k".repeat(nth + 1));
        let (one, other) = text.split_at(text.len() * nth / 20);
        [one, other].iter().filter(|part| !part.is_empty()).for_each(|part| {
            stage.says(client, part);
        });
        expected += &text;
    }
    let (mut received, mut told, mut quiet) = (String::new(), String::new(), 0);
    while quiet < 3 {
        let more = stage.received(client);
        let asked = stage.turn(link);
        quiet = if asked.is_empty() && more.is_empty() { quiet + 1 } else { 0 };
        asked.lines().for_each(|line| reply(&mut stage, link, line));
        received += &asked;
        told += &more;
    }
    let sets = received.find("set k ").expect("they were sent");
    assert!(received[sets..] == expected, "{} bytes", received.len() - sets);
    assert_eq!(told.matches("STORED\r\n").count(), 20);
    assert_eq!(stage.memory(), 0);
}

#[test]
fn who_writes_more_than_is_kept_and_reads_nothing_is_closed_in_time() {
    let (mut stage, link, client) = stopped(|plan| {
        plan.pools[0].client_buffer_max = 100_000;
        plan.pools[0].timeouts.write = 5 * SECOND;
    });
    stage.waits(AHEAD_AFTER_US);
    while stage.paused.is_empty() {
        stage.says(client, &gets(0, 1_000));
    }
    stage.waits(5 * SECOND - AHEAD_AFTER_US - 1);
    assert_eq!(stage.received_some(client, 1).len(), 1, "it reads once more");
    stage.waits(5 * SECOND - 1);
    assert!(stage.closed.is_empty());
    stage.waits(1);
    assert_eq!(stage.closed, [client]);
    assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsUnread), 1);
    let told = stage.events.iter().find_map(|event| match event {
        Event::ClientUnread { kept, bound, .. } => Some((*kept, *bound)),
        _ => None,
    });
    let (kept, bound) = told.expect("the log has a line");
    assert!((100_000..150_000).contains(&kept) && bound == "client_buffer_max", "{kept}, {bound}");
    while answer(&mut stage, link) > 0 {}
    stage.end_turn();
    assert_eq!(stage.memory(), 0, "all is given back");
}

/// All clients together have half of the memory at most.
#[test]
fn who_keeps_most_is_stopped_first_and_goes_on_when_there_is_room() {
    let (mut stage, link, most) = stopped(|_| {});
    let few = stage.client();
    stop(&mut stage, link, few);
    stage.waits(AHEAD_AFTER_US);
    assert!(stage.paused.is_empty());
    stage.says(few, &gets(0, 5_000));
    while stage.paused.is_empty() {
        stage.says(most, &gets(0, 1_000));
    }
    assert_eq!(stage.paused, [most]);
    assert!(stage.memory() <= 4 << 20);
    stage.says(few, &gets(0, 100));
    assert_eq!(stage.paused, [most], "the other has room");
    stage.closes(few, Closed::Reset);
    stage.end_turn();
    stage.waits(SECOND);
    assert!(stage.paused.is_empty(), "it has room again");
    assert!(stage.closed.is_empty());
}

#[test]
fn who_is_gone_or_closes_its_half_leaves_nothing_behind() {
    for how in [Closed::Reset, Closed::Eof] {
        let (mut stage, link, client) = stopped(|_| {});
        stage.waits(AHEAD_AFTER_US);
        stage.says(client, &gets(2 * FULL + 1_000, 5_000));
        stage.closes(client, how);
        if how == Closed::Eof {
            reads(&mut stage, link, client, 2 * FULL + 6_000);
            assert_eq!(stage.closed, [client]);
        }
        while answer(&mut stage, link) > 0 {}
        stage.end_turn();
        assert_eq!(stage.memory(), 0, "{how:?}");
    }
}

/// It has most of the half, although its own bound is far away.
#[test]
fn who_is_alone_keeps_most_of_half_of_the_memory_and_the_log_says_that_it_was_that() {
    let (mut stage, _, client) = stopped(|plan| plan.pools[0].timeouts.write = SECOND);
    stage.waits(AHEAD_AFTER_US);
    while stage.paused.is_empty() {
        stage.says(client, &gets(0, 1_000));
    }
    assert!((3 << 20..=4 << 20).contains(&stage.memory()), "{}", stage.memory());
    stage.waits(2 * SECOND);
    let is_it = |event: &Event| matches!(event, Event::ClientUnread { bound: "memory_max", .. });
    assert!(stage.events.iter().any(is_it), "{:?}", stage.events);
}

/// Nothing can be kept, and nothing is to be: it is as it was.
#[test]
fn who_does_not_read_and_writes_no_more_is_not_closed() {
    for how in [None, Some(Closed::Eof)] {
        let (mut stage, _, client) = stopped(|plan| {
            plan.pools[0].client_buffer_max = 0;
            plan.pools[0].timeouts.write = SECOND;
        });
        stage.waits(AHEAD_AFTER_US);
        if let Some(how) = how {
            stage.closes(client, how);
        }
        stage.waits(100 * SECOND);
        assert!(stage.closed.is_empty(), "{how:?}");
    }
}

/// No more than a block is kept of one that has not logged in.
#[test]
fn who_has_not_logged_in_and_reads_nothing_is_closed_in_time() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.client_outbox = 4 * VALUE;
        plan.pools[0].timeouts.write = 60 * SECOND;
        plan.pools[0].users = Users::new([("anna", "sesame")]).map(Rc::new);
    });
    let client = stage.client();
    while !stage.paused.contains(&client) {
        stage.says(client, &gets(0, 1_000));
        stage.received_some(client, 0);
    }
    stage.waits(AHEAD_AFTER_US);
    // A block of it shows that it writes on.
    stage.says(client, &gets(0, 2_000));
    assert!(stage.paused.contains(&client));
    stage.waits(59 * SECOND);
    assert!(stage.closed.is_empty());
    stage.waits(SECOND);
    assert_eq!(stage.closed, [client]);
    let is_it = |event: &Event| matches!(event, Event::ClientUnread { bound: "no login", .. });
    assert!(stage.events.iter().any(is_it), "{:?}", stage.events);
}

/// They are within their own bounds, and write no more: each could keep what it holds for ever.
#[test]
fn who_takes_nothing_for_long_makes_room_for_one_that_writes_on() {
    let (mut stage, link, first) = stopped(|plan| plan.pools[0].timeouts.write = 60 * SECOND);
    let second = stage.client();
    stop(&mut stage, link, second);
    stage.waits(AHEAD_AFTER_US);
    stage.says(first, &gets(0, 60_000));
    stage.says(second, &gets(0, 120_000));
    assert!(stage.paused.is_empty(), "each has room");
    stage.waits(70 * SECOND);
    assert!(stage.closed.is_empty(), "nobody needs it");
    let third = stage.client();
    stop(&mut stage, link, third);
    stage.waits(AHEAD_AFTER_US);
    while !stage.paused.contains(&third) {
        stage.says(third, &gets(0, 1_000));
    }
    stage.waits(2 * SECOND);
    assert_eq!((&stage.closed[..], stage.paused.contains(&third)), (&[second][..], false));
    let told = stage.events.iter().find_map(|event| match event {
        Event::ClientUnread { client, bound, .. } => Some((*client, *bound)),
        _ => None,
    });
    assert_eq!(told, Some((second, "memory_max")));
}

/// It is not for the one that keeps most that others are closed.
#[test]
fn who_keeps_most_has_no_room_made_by_those_that_hold_less() {
    let (mut stage, link, small) = stopped(|plan| plan.pools[0].timeouts.write = 60 * SECOND);
    stage.waits(AHEAD_AFTER_US);
    stage.says(small, &gets(0, 60_000));
    stage.waits(70 * SECOND);
    let most = stage.client();
    stop(&mut stage, link, most);
    stage.waits(AHEAD_AFTER_US);
    while !stage.paused.contains(&most) {
        stage.says(most, &gets(0, 1_000));
    }
    stage.waits(10 * SECOND);
    assert_eq!(stage.closed, []);
    stage.waits(60 * SECOND);
    assert_eq!(stage.closed, [most]);
}

/// The bound is reached when others take the memory, long after it took something.
#[test]
fn who_has_no_room_since_a_moment_is_given_some_seconds() {
    let (mut stage, link, first) = stopped(|plan| plan.pools[0].timeouts.write = 60 * SECOND);
    stage.waits(70 * SECOND);
    stage.says(first, &gets(0, 5_000));
    let other = stage.client();
    stop(&mut stage, link, other);
    stage.waits(AHEAD_AFTER_US);
    while !stage.paused.contains(&other) {
        stage.says(other, &gets(0, 1_000));
    }
    while !stage.paused.contains(&first) {
        stage.says(first, &gets(0, 1_000));
    }
    stage.waits(4 * SECOND);
    assert!(stage.closed.is_empty());
    stage.closes(other, Closed::Reset);
    stage.end_turn();
    stage.waits(SECOND);
    let (closed, paused) = (&stage.closed, &stage.paused);
    assert!(closed.is_empty() && !paused.contains(&first), "{closed:?}, {paused:?}: it has room");
}

/// A body costs no work, and is read in parts all the same.
#[test]
fn a_large_body_that_was_kept_is_read_in_several_turns() {
    let (mut stage, link, client) = stopped(|plan| {
        plan.pools[0].item_size_max = 3 << 20;
        plan.limits.large_min = u64::MAX;
        plan.memory_max = 64 << 20;
    });
    stage.waits(AHEAD_AFTER_US);
    let set = format!("set large 0 0 {}\r\n{}\r\n", 2 << 20, "v".repeat(2 << 20));
    for part in set.as_bytes().chunks(64 << 10) {
        stage.says_bytes(client, part);
    }
    let (mut turns, mut received) = (0, String::new());
    while !received.contains("set large") {
        stage.received(client);
        turns += 1;
        assert!(turns < 2_000, "it is never sent");
        received += &stage.turn(link);
        let gets = received.lines().filter(|line| line.starts_with("get "));
        gets.for_each(|line| reply(&mut stage, link, line));
        if !received.contains("set large") {
            received.clear();
        }
    }
    assert!(turns >= (2 << 20) / (16 * BUFFER_KEEP_MAX), "all in {turns} turns");
}

/// One that reads again is held up by its socket, as before.
#[test]
fn who_reads_again_is_not_read_ahead_any_more() {
    let (mut stage, link, client) = stopped(|_| {});
    stage.waits(AHEAD_AFTER_US);
    stage.says(client, &gets(2 * FULL + 1_000, 20_000));
    while !stage.received(client).is_empty() {
        stage.turn(link);
    }
    stage.says(client, &gets(0, 100));
    assert!(stage.paused.contains(&client), "what is kept is to be read first");
}
