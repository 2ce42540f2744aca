//! Stories of work that data decide: how much of it may be outstanding at a server.

use metrics::ServerCounter;
use proto::{WorkId, protocol};
use proxy::plan::PoolPlan;
use proxy::{Closed, ConnId, limits};

use crate::stage::resp::{HELLO, WELCOME, comes_up};
use crate::stage::{S0, SECOND, Stage};

const MS: u64 = SECOND / 1_000;
const SCRIPT: &str = "EVAL script 1 a\r\n";

/// A pool of one Redis server, which is never held.
fn pool(set: impl FnOnce(&mut PoolPlan)) -> Stage {
    pool_of(&["s0"], set)
}

fn pool_of(servers: &[&str], set: impl FnOnce(&mut PoolPlan)) -> Stage {
    Stage::new(servers, |pool| {
        pool.distribution = shard::Distribution::Modula;
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.preconnect, pool.class_links, pool.hold_after) = (true, 3, None);
        pool.databases = 16;
        set(pool);
    })
}

/// Such a pool, the link that clients share, and a client whose script took so long.
fn redis(took: u64) -> (Stage, ConnId, ConnId) {
    let mut stage = pool(|_| {});
    let link = comes_up(&mut stage);
    let client = stage.client();
    stage.says(client, SCRIPT);
    assert_eq!(asked(&mut stage, link), 1);
    stage.passes(took);
    stage.says(link, ":1\r\n");
    (stage, link, client)
}

/// Ends a turn; returns how many scripts a server receives then.
fn asked(stage: &mut Stage, link: ConnId) -> usize {
    stage.turn(link).matches("EVAL").count()
}

#[test]
fn scripts_of_several_milliseconds_are_few_at_a_server() {
    let (mut stage, link, client) = redis(7 * MS);
    let other = stage.client();
    stage.says(client, &SCRIPT.repeat(4));
    stage.says(other, &SCRIPT.repeat(4));
    assert_eq!(asked(&mut stage, link), 2, "three are more than 20 ms");
    // A quick request goes between them.
    let quick = stage.client();
    stage.says(quick, "GET a\r\n");
    assert_eq!(stage.turn(link), "*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
    stage.passes(7 * MS);
    stage.says(link, ":1\r\n");
    assert_eq!(asked(&mut stage, link), 1);
    for reply in [":1\r\n", "$-1\r\n"].into_iter().chain([":1\r\n"; 6]) {
        stage.passes(7 * MS);
        stage.says(link, reply);
        stage.end_turn();
        stage.turn(link);
    }
    assert_eq!(stage.received(client), ":1\r\n".repeat(5));
    assert_eq!(stage.received(other), ":1\r\n".repeat(4));
    stage.expect_rows(0);
}

/// Has a script take so long, and more of it wait, until so many may leave.
fn trust(stage: &mut Stage, link: ConnId, client: ConnId, (took, most): (u64, usize)) {
    let clients = [client, stage.client(), stage.client()];
    let (mut waits, mut answered) = (0, 0);
    loop {
        if waits <= most {
            clients.iter().for_each(|client| stage.says(*client, &SCRIPT.repeat(most)));
            waits += 3 * most;
        }
        let left = asked(stage, link);
        let grown = 4 + answered / 256;
        assert!(left <= grown && left + 8 >= grown, "a place more for 256: {left}, {grown}");
        stage.passes(took * left as u64);
        stage.says(link, &":1\r\n".repeat(left));
        (waits, answered) = (waits - left, answered + left);
        if left == most {
            break;
        }
    }
    while waits > 0 {
        let left = asked(stage, link);
        stage.passes(took * left as u64);
        stage.says(link, &":1\r\n".repeat(left));
        waits -= left;
    }
    clients.iter().for_each(|client| drop(stage.received(*client)));
}

#[test]
fn scripts_of_microseconds_are_as_many_as_they_come_when_they_were_so_for_some_time() {
    let (mut stage, link, client) = redis(MS / 10);
    trust(&mut stage, link, client, (MS / 10, 128));
    stage.says(client, &SCRIPT.repeat(128));
    assert_eq!(asked(&mut stage, link), 128);
    let told = stage.registry.total(S0, ServerCounter::WorkNow);
    assert_eq!(told, 12 * MS, "it is told in whole milliseconds, if it is much");
    stage.passes(MS / 10);
    stage.says(link, &":1\r\n".repeat(128));
    for client in [client, stage.client(), stage.client()] {
        stage.says(client, &SCRIPT.repeat(100));
    }
    assert_eq!(asked(&mut stage, link), 128, "no more were needed so far");
}

/// Returns so many scripts, of which a worker can keep in mind that they were quick.
fn scripts(count: usize) -> Vec<String> {
    let mut places = std::collections::BTreeSet::new();
    let texts = (0..).map(|nth| format!("script{nth}"));
    let place = |text: &str| WorkId::of_text(text.as_bytes()).0 as usize % limits::TRIED_MAX;
    let apart = texts.filter(|text| places.insert(place(text)));
    apart.take(count).map(|text| format!("EVAL {text} 1 a\r\n")).collect()
}

/// A link, a client, and so many scripts of it that took 0.25 ms each.
fn short_scripts(count: usize) -> (Stage, ConnId, (ConnId, Vec<String>)) {
    let mut stage = pool(|_| {});
    let (link, client) = (comes_up(&mut stage), stage.client());
    let scripts = scripts(count);
    for script in &scripts {
        stage.says(client, script);
        assert_eq!(asked(&mut stage, link), 1);
        stage.passes(MS / 4);
        stage.says(link, ":1\r\n");
        stage.received(client);
    }
    (stage, link, (client, scripts))
}

/// Has each of these clients ask for scripts of its own, four times each.
fn ask_four_times(stage: &mut Stage, clients: &[ConnId], scripts: &[String]) {
    for (nth, script) in scripts.iter().enumerate() {
        stage.says(clients[nth % clients.len()], &script.repeat(4));
    }
}

/// Each of them has a window of its own, and all of them one server.
#[test]
fn works_of_microseconds_take_little_time_together_however_many_there_are() {
    let (mut stage, link, (client, scripts)) = short_scripts(40);
    let clients = [client, stage.client(), stage.client(), stage.client()];
    ask_four_times(&mut stage, &clients, &scripts);
    let mut left = asked(&mut stage, link);
    assert!((80..=84).contains(&left), "20 ms, and one of those that are next: {left}");
    let told = stage.registry.total(S0, ServerCounter::WorkNow);
    assert!((20 * MS..=21 * MS).contains(&told), "{told}");
    let mut count = 0;
    while left > 0 {
        stage.passes(MS / 4);
        stage.says(link, ":1\r\n");
        count += 1;
        left = left - 1 + asked(&mut stage, link);
        assert!(left <= 84);
    }
    assert_eq!((count, stage.registry.total(S0, ServerCounter::WorkNow)), (4 * 40, 0));
    stage.expect_rows(0);
}

#[test]
fn works_of_microseconds_leave_room_for_those_of_other_workers() {
    let (mut stage, link, (client, scripts)) = short_scripts(10);
    let others = stage.registry.metrics(1).counters(S0);
    others.set(ServerCounter::WorkNow, 18 * MS);
    ask_four_times(&mut stage, &[client], &scripts);
    assert_eq!(asked(&mut stage, link), 21, "each worker may have 5 ms, and one of each");
    stage.passes(MS);
    assert_eq!(asked(&mut stage, link), 0);
    others.set(ServerCounter::WorkNow, 0);
    stage.passes(MS);
    assert_eq!(asked(&mut stage, link), 19, "it looks again every millisecond");
}

/// A link that is lost takes some with it. Others are told so, though nothing leaves any more.
#[test]
fn works_of_microseconds_that_were_dropped_are_told_to_nobody_for_long() {
    let (mut stage, link, (client, scripts)) = short_scripts(10);
    ask_four_times(&mut stage, &[client], &scripts);
    assert_eq!(asked(&mut stage, link), 40);
    assert_eq!(stage.registry.total(S0, ServerCounter::WorkNow), 10 * MS);
    stage.passes(SECOND);
    stage.closes(link, Closed::Reset);
    stage.end_turn();
    stage.waits(SECOND / 4);
    stage.end_turn();
    assert_eq!(stage.registry.total(S0, ServerCounter::WorkNow), 0);
}

/// A small set says nothing of a large one: the same command takes a thousand times as long, and
/// nobody has had many of them at once.
#[test]
fn a_command_that_was_quick_all_day_and_is_not_is_in_flight_a_few_times_only() {
    let mut stage = pool(|_| {});
    let link = comes_up(&mut stage);
    let unions = "SUNIONSTORE d s\r\n";
    let [small, large] = [stage.client(), stage.client()];
    let asked = |stage: &mut Stage| stage.turn(link).matches("SUNIONSTORE").count();
    for _ in 0..2_000 {
        stage.says(small, unions);
        assert_eq!(asked(&mut stage), 1);
        stage.passes(MS / 10);
        stage.says(link, ":1\r\n");
    }
    stage.says(large, &unions.repeat(400));
    let few = asked(&mut stage);
    assert!((1..=4).contains(&few), "{few}");
    for _ in 0..few {
        stage.passes(6 * MS);
        stage.says(link, ":1\r\n");
    }
    assert_eq!(stage.received(large).matches(":1").count(), few);
    let few = asked(&mut stage);
    assert!((1..=6).contains(&few), "it is known now: {few}");
}

/// Each of its parts is as much work for its server as the whole would be.
#[test]
fn the_parts_of_a_command_that_is_split_are_few_at_each_server() {
    let mut stage = pool_of(&["s0", "s1"], |_| {});
    let links = [comes_up(&mut stage), comes_up(&mut stage)];
    let del = format!("DEL {} {}\r\n", stage.key_of(0), stage.key_of(1));
    let clients: [ConnId; 4] = std::array::from_fn(|_| stage.client());
    let mut waits = 0;
    // Returns how many each server is sent, and has it take so long for each.
    let mut plays = |times: [u64; 2]| {
        if waits < 400 {
            clients.iter().for_each(|client| stage.says(*client, &del.repeat(400)));
            waits += 1_600;
        }
        let asked = links.map(|link| stage.turn(link).matches("del\r").count());
        for at in [1, 0] {
            stage.passes(asked[at] as u64 * times[at]);
            stage.says(links[at], &":1\r\n".repeat(asked[at]));
        }
        waits -= asked[0].min(asked[1]);
        asked
    };
    assert_eq!(plays([10; 2]), [4; 2], "they are untried");
    let grown = (0..1_000).map(|_| plays([10; 2])).find(|most| most.iter().all(|one| *one >= 32));
    assert!(grown.is_some(), "they are quick");
    let mut rest = (0..8).map(|_| plays([5 * MS, 10])[0]).skip(1);
    assert!(rest.all(|asked| (1..=8).contains(&asked)), "they are known to take long there");
}

/// A link that is lost takes works with it that are never answered.
#[test]
fn works_whose_link_is_lost_keep_nobody_waiting() {
    let (mut stage, link, client) = redis(MS / 10);
    stage.says(client, &SCRIPT.repeat(4));
    assert_eq!(asked(&mut stage, link), 4);
    stage.closes(link, proxy::Closed::Reset);
    stage.received(client);
    stage.says(client, SCRIPT);
    stage.end_turn();
    let link = comes_up(&mut stage);
    for expected in [1, 2, 4] {
        if expected > 1 {
            stage.says(client, &SCRIPT.repeat(expected));
        }
        assert_eq!(asked(&mut stage, link), expected);
        stage.passes(MS / 10);
        stage.says(link, &":1\r\n".repeat(expected));
        stage.received(client);
    }
}

/// A server answers all that it has read in one write. None of it has taken the time of all.
#[test]
fn answers_that_come_together_share_their_time() {
    let (mut stage, link, client) = redis(MS / 10);
    trust(&mut stage, link, client, (MS / 10, 128));
    stage.says(client, &SCRIPT.repeat(100));
    assert_eq!(asked(&mut stage, link), 100);
    stage.passes(25 * MS);
    stage.says(link, &":1\r\n".repeat(100));
    assert_eq!(stage.received(client), ":1\r\n".repeat(100));
    stage.says(client, &SCRIPT.repeat(100));
    assert_eq!((asked(&mut stage, link), stage.connects.len()), (100, 0), "it is not slow");
    stage.passes(100 * MS);
    stage.says(link, &":1\r\n".repeat(100));
    stage.received(client);
    // It took 1 ms each now.
    stage.says(client, &SCRIPT.repeat(100));
    assert_eq!(asked(&mut stage, link), 4, "it has to be trusted anew");
}

#[test]
fn the_work_of_other_workers_counts_and_each_may_have_one() {
    let (mut stage, link, client) = redis(7 * MS);
    let others = stage.registry.metrics(1).counters(S0);
    others.set(ServerCounter::WorkNow, 18 * MS);
    stage.says(client, &SCRIPT.repeat(3));
    assert_eq!(asked(&mut stage, link), 1);
    assert_eq!(stage.registry.total(S0, ServerCounter::WorkNow), 25 * MS);
    stage.passes(MS);
    assert_eq!(asked(&mut stage, link), 0);
    others.set(ServerCounter::WorkNow, 0);
    stage.passes(MS);
    assert_eq!(asked(&mut stage, link), 1, "it looks again every millisecond");
    stage.passes(5 * MS);
    stage.says(link, ":1\r\n:1\r\n");
    assert_eq!(asked(&mut stage, link), 1);
    stage.says(link, ":1\r\n");
    stage.end_turn();
    assert_eq!(stage.registry.total(S0, ServerCounter::WorkNow), 0);
}

#[test]
fn a_longer_work_is_not_passed_for_ever_by_shorter_ones() {
    const LONG: &str = "EVAL long 1 a\r\n";
    let (mut stage, link, client) = redis(MS);
    let long = stage.client();
    stage.says(long, LONG);
    assert_eq!(asked(&mut stage, link), 1);
    stage.passes(9 * MS);
    stage.says(link, ":1\r\n");
    trust(&mut stage, link, client, (MS, 20));
    stage.says(client, &SCRIPT.repeat(60));
    let mut sent = asked(&mut stage, link);
    assert_eq!(sent, 20);
    stage.says(long, LONG);
    for nth in 0.. {
        stage.passes(MS);
        stage.says(link, ":1\r\n");
        let received = stage.turn(link);
        if received.contains("long") {
            assert!((8..12).contains(&nth), "{nth}");
            break;
        }
        sent += received.matches("EVAL").count();
        assert!(sent <= 21, "it is not passed");
    }
}

/// They are few as it is, and have a link of their own.
#[test]
fn slow_commands_do_not_wait_for_work() {
    let (mut stage, _, client) = redis(7 * MS);
    stage.registry.metrics(1).counters(S0).set(ServerCounter::WorkNow, 100 * MS);
    let slow = stage.client();
    stage.says(client, SCRIPT);
    stage.end_turn();
    stage.says(slow, "KEYS *\r\n");
    stage.end_turn();
    let link = comes_up(&mut stage);
    assert_eq!(stage.turn(link), "*2\r\n$4\r\nKEYS\r\n$1\r\n*\r\n");
}

#[test]
fn work_that_was_never_sent_is_told_to_nobody_for_long() {
    let mut stage = pool(|pool| {
        (pool.preconnect, pool.timeouts.queue) = (false, SECOND / 4);
    });
    let client = stage.client();
    stage.says(client, SCRIPT);
    stage.end_turn();
    stage.establishes_with(HELLO);
    stage.waits(SECOND / 4 + 1);
    assert!(stage.received(client).contains("timed out in the queue"));
    stage.end_turn();
    stage.waits(SECOND / 4);
    assert_eq!(stage.registry.total(S0, ServerCounter::WorkNow), 0);
}

/// The requests of the second database have a link of their own, to the same server.
#[test]
fn longer_work_on_another_link_is_not_passed_for_ever() {
    const LONG: &str = "EVAL long 1 a\r\n";
    let mut stage = pool(|_| {});
    let link = comes_up(&mut stage);
    let (short, long) = (stage.client(), stage.client());
    stage.says(long, &format!("SELECT 1\r\n{LONG}"));
    stage.end_turn();
    let select = "*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n";
    let other = stage.establishes_with(&format!("{select}{HELLO}"));
    stage.says(other, &format!("+OK\r\n{WELCOME}"));
    for (client, link, text, took) in [(long, other, "", 9), (short, link, SCRIPT, 1)] {
        stage.says(client, text);
        assert_eq!(asked(&mut stage, link), 1);
        stage.passes(took * MS);
        stage.says(link, ":1\r\n");
    }
    trust(&mut stage, link, short, (MS, 20));
    stage.says(short, &SCRIPT.repeat(100));
    assert_eq!(asked(&mut stage, link), 20);
    stage.says(long, LONG);
    let mut answered = 0;
    while asked(&mut stage, other) == 0 {
        answered += 1;
        assert!(answered <= 21, "it is passed");
        stage.passes(MS);
        stage.says(link, ":1\r\n");
    }
}

/// It was sent to nobody, so it is no reason to wait.
#[test]
fn work_for_a_link_that_is_not_up_keeps_no_other_waiting() {
    let mut stage = pool(|_| {});
    let link = comes_up(&mut stage);
    for nth in 0..4 {
        let client = stage.client();
        stage.says(client, &format!("SELECT 1\r\nEVAL script{nth} 1 a\r\n"));
    }
    stage.end_turn();
    let client = stage.client();
    stage.says(client, SCRIPT);
    assert_eq!(asked(&mut stage, link), 1);
    assert_eq!(stage.registry.total(S0, ServerCounter::WorkNow), 5 * MS);
}

#[test]
fn the_path_to_a_server_is_no_part_of_the_time_of_what_follows() {
    const TRIP: u64 = 15 * MS;
    let mut stage = pool(|_| {});
    let link = stage.establishes_with(HELLO);
    stage.passes(TRIP);
    stage.says(link, WELCOME);
    let clients = [stage.client(), stage.client()];
    stage.says(clients[0], SCRIPT);
    assert_eq!(asked(&mut stage, link), 1);
    stage.passes(TRIP + 7 * MS);
    stage.says(link, ":1\r\n");
    clients.iter().for_each(|client| stage.says(*client, &SCRIPT.repeat(50)));
    assert_eq!(asked(&mut stage, link), 2);
    // The server does one after the other.
    let (mut sent, mut free) = (vec![stage.now(); 2], stage.now());
    for _ in 0..60 {
        let arrived = sent.remove(0).after(TRIP);
        free = arrived.max(free).after(7 * MS);
        stage.passes(free.since(stage.now()));
        stage.says(link, ":1\r\n");
        assert_eq!(asked(&mut stage, link), 1, "two are always outstanding");
        sent.push(stage.now());
    }
}

/// Nothing makes room but an answer, and there may be none: one is let go then.
#[test]
fn a_work_that_is_nowhere_outstanding_waits_for_nothing_whatever_else_is() {
    let (mut stage, link, client) = redis(MS / 10);
    let waits = stage.client();
    stage.says(waits, "BLPOP q 0\r\n");
    stage.end_turn();
    let other = comes_up(&mut stage);
    assert!(stage.turn(other).contains("BLPOP"));
    // They are as slow as quick ones may be, and make no room.
    stage.says(client, &SCRIPT.repeat(4));
    assert_eq!(asked(&mut stage, link), 4);
    stage.passes(MS * 16 / 10);
    stage.says(link, &":1\r\n".repeat(4));
    stage.says(client, SCRIPT);
    assert_eq!(asked(&mut stage, link), 1);
}

/// Has each of these clients ask, on a link of its own that is still on its way; returns the links.
fn private_links(stage: &mut Stage, request: &str) -> Vec<ConnId> {
    for _ in 0..8 {
        let client = stage.client();
        stage.says(client, request);
    }
    stage.end_turn();
    (0..8).map(|_| comes_up(stage)).collect()
}

/// Returns the links on which requests leave at the end of the turn.
fn leave(stage: &mut Stage, links: &[ConnId]) -> Vec<ConnId> {
    stage.end_turn();
    links.iter().copied().filter(|link| !stage.turn(*link).is_empty()).collect()
}

/// Clients come back all at once when a network does.
#[test]
fn work_that_waits_for_private_links_leaves_by_and_by_when_they_come_up() {
    for (request, most) in [("SUNIONSTORE d a b\r\n", 4), ("KEYS *\r\n", 1)] {
        let mut stage = pool(|pool| (pool.preconnect, pool.private) = (false, true));
        let links = private_links(&mut stage, request);
        let mut at_once = leave(&mut stage, &links);
        assert_eq!(at_once.len(), most, "{request}");
        let mut count = 0;
        while let Some(link) = at_once.pop() {
            count += 1;
            stage.passes(5 * MS);
            stage.says(link, if most == 1 { "*0\r\n" } else { ":1\r\n" });
            at_once.extend(leave(&mut stage, &links));
            assert!(at_once.len() <= most, "{request}");
        }
        assert_eq!(count, 8, "each in its turn");
        stage.expect_rows(0);
    }
}

/// The work waits for the link, and the others only for the link too.
#[test]
fn quick_requests_pass_work_that_waits_for_a_link() {
    let mut stage = pool(|pool| pool.preconnect = false);
    let [one, other, quick] = [stage.client(), stage.client(), stage.client()];
    stage.says(one, &SCRIPT.repeat(2));
    stage.says(other, &SCRIPT.repeat(2));
    stage.end_turn();
    stage.says(quick, "GET a\r\n");
    stage.end_turn();
    let link = comes_up(&mut stage);
    let sent = stage.turn(link);
    assert!(sent.contains("GET"), "{sent}");
    assert_eq!(sent.matches("EVAL").count(), 2, "one of each client");
}

/// Two workers whose scripts the server does in turn.
#[test]
fn a_slow_script_is_known_though_another_worker_has_the_server_do_slow_ones_as_well() {
    let ask = metrics::Busy { since_us: 0, command: 1 };
    let began = |stage: &Stage| stage.now().0;
    // When the other's script was sent, and when the one before it was over, in milliseconds
    // since this one was sent; and whether the 100 ms are this one's.
    let cases = [
        (None, None, true),
        (Some(-2_i64), None, false),
        (Some(0), None, false),
        (Some(5), None, true),
        (None, Some(50_i64), true),
        (Some(51), Some(50), true),
        (None, Some(99), false),
        // Both were there when the server had ended another.
        (Some(5), Some(50), false),
    ];
    for (busy, over, is_own) in cases {
        // This worker tells others what the server is busy with.
        let mut stage = pool(|pool| pool.hold_after = Some(30 * MS));
        let (link, client) = (comes_up(&mut stage), stage.client());
        let other = stage.registry.metrics(1);
        let sent = began(&stage);
        let at = |ms: i64| sent.saturating_add_signed(ms * MS as i64);
        stage.says(client, SCRIPT);
        assert_eq!(asked(&mut stage, link), 1);
        stage.waits(100 * MS);
        if let Some(busy) = busy {
            other
                .counters::<ServerCounter>(S0)
                .set_busy(Some(metrics::Busy { since_us: at(busy), ..ask }));
        }
        if let Some(over) = over {
            let work = metrics::Work { since_us: at(-2), until_us: at(over), command: 1 };
            other.set_work(S0, work);
        }
        stage.says(link, ":1\r\n");
        assert_eq!(stage.received(client), ":1\r\n");
        stage.connects.clear();
        stage.says(client, SCRIPT);
        stage.end_turn();
        assert_eq!(stage.connects.len(), usize::from(is_own), "{busy:?} {over:?}");
    }
}
