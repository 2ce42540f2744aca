//! Stories of one read of many keys: how soon they leave, and how much is held of the answer.

use proto::protocol;
use proxy::ConnId;
use proxy::plan::{AdminState, Plan};
use shard::Distribution;

use crate::stage::{Stage, resp};

/// Bytes that a client may leave unread.
const UNREAD: usize = 600_000;

fn field(servers: &[&str], set: impl FnOnce(&mut Plan)) -> Stage {
    Stage::of(servers, |plan| {
        plan.limits.client_outbox = UNREAD;
        plan.memory_max = 256 << 20;
        plan.pools[0].preconnect = true;
        plan.pools[0].distribution = Distribution::Modula;
        set(plan);
    })
}

fn get(keys: usize) -> String {
    let keys: String = (0..keys).map(|nth| format!(" k{nth}")).collect();
    format!("get{keys}\r\n")
}

/// Lets a memcached answer what it is asked, with values of this length, or none. Returns whether
/// it was asked anything.
fn answer(stage: &mut Stage, link: ConnId, len: Option<usize>) -> bool {
    let asked = stage.turn(link);
    for line in asked.lines() {
        let hit = |key, len| format!("VALUE {key} 0 {len}\r\n{}\r\n", "v".repeat(len));
        let keys = line.split(' ').skip(1).filter(|_| len.is_some());
        let hits: String = keys.map(|key| hit(key, len.unwrap_or(0))).collect();
        stage.says(link, &(hits + "END\r\n"));
    }
    !asked.is_empty()
}

/// Returns the number of the key in a line of an answer that begins a value.
fn place(line: &str) -> Option<usize> {
    line.strip_prefix("VALUE k")?.split(' ').next()?.parse().ok()
}

/// Returns which of two servers has a key.
fn server(key: &str) -> u32 {
    shard::Hash::Fnv64a.hash(key.as_bytes()) % 2
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// It is slower than the others.
    Hits,
    /// It is slower, and has nothing.
    Misses,
    /// Nothing is asked of it.
    Maint,
}

/// The memory of a large get, and values that have come but cannot be read yet, leave as much room
/// for the rest of it as there was at its beginning.
#[test]
fn a_get_of_many_keys_does_not_slow_down() {
    for first in [First::Hits, First::Misses, First::Maint] {
        let mut stage = field(&["s0", "s1"], |plan| {
            if first == First::Maint {
                plan.pools[0].servers[0].admin = AdminState::Maint;
            }
        });
        let asked = if first == First::Maint { 1..2 } else { 0..2 };
        let links: Vec<(usize, ConnId)> = asked.map(|at| (at, stage.connect(at))).collect();
        let client = stage.client();
        stage.says(client, &get(20_000));
        let (mut turns, mut rounds, mut received) = (0, 0, String::new());
        let end = if first == First::Maint { "not sent\r\n" } else { "END\r\n" };
        while !received.ends_with(end) {
            rounds += 1;
            assert!(rounds < 1_000, "{first:?}: {turns} turns with few keys each");
            for (at, link) in links.iter().chain(&links[links.len() - 1..].repeat(2)) {
                stage.passes(100);
                let len = (*at > 0 || first == First::Hits).then_some(100);
                turns += usize::from(answer(&mut stage, *link, len));
                received += &stage.received(client);
            }
        }
        let places: Vec<usize> = received.lines().filter_map(place).collect();
        assert!(places.is_sorted(), "{first:?}");
        let second = (0..20_000).filter(|nth| server(&format!("k{nth}")) == 1).count();
        let values = if first == First::Hits { 20_000 } else { second };
        assert_eq!(places.len(), values, "{first:?}");
        assert!(turns < 1_000, "{first:?}: {turns} turns with few keys each");
        assert_eq!(stage.memory(), 0);
    }
}

/// Values that cannot leave before an earlier key is answered are asked for up to a bound: that
/// key's server may never answer.
#[test]
fn a_get_holds_a_part_of_its_answer_while_a_server_is_silent() {
    let mut stage = field(&["s0", "s1", "s2"], |plan| plan.pools[0].class_links = 0);
    let links = [0, 1, 2].map(|at| stage.connect(at));
    let client = stage.client();
    // The first key is the silent one's.
    stage.says(client, &get(9_000).replacen("get", "get k2000", 1));
    assert!((0..9).any(|_| stage.turn(links[0]).contains(" k2000 ")), "the silent one");
    // Small values come first, and large ones in places before them.
    for (at, len) in [(1, 20), (2, 15_000)] {
        while (0..9).any(|_| answer(&mut stage, links[at], Some(len))) {}
    }
    let held = stage.memory();
    assert!((10 * UNREAD..20 * UNREAD).contains(&held), "{held} bytes of some 45,000,000");
}

#[test]
fn an_mget_holds_a_part_of_its_answer_while_a_server_is_silent() {
    let mut stage = field(&["s0", "s1"], |plan| {
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
        plan.pools[0].class_links = 0;
    });
    let links = [(); 2].map(|()| resp::comes_up(&mut stage));
    let client = stage.client();
    let keys: Vec<String> = (0..9_000).map(|nth| format!("k{nth}")).collect();
    let words = [&["MGET"], &*keys.iter().map(String::as_str).collect::<Vec<_>>()].concat();
    stage.says(client, &resp::array(&words));
    assert!((0..9).any(|_| !stage.turn(links[0]).is_empty()), "the silent one");
    let value = resp::bulk(&"v".repeat(10_000));
    loop {
        let mut asked = stage.turn(links[1]);
        if asked.is_empty() {
            break;
        }
        while let Some((_, words)) = resp::cut(&mut asked) {
            let count = words.len() - 1;
            stage.says(links[1], &format!("*{count}\r\n{}", value.repeat(count)));
        }
    }
    let held = stage.memory();
    assert!((10 * UNREAD..20 * UNREAD).contains(&held), "{held} bytes of some 45,000,000");
}

/// The answers to requests behind it can leave only after its own.
#[test]
fn a_get_is_not_held_up_by_the_answers_to_those_behind_it() {
    let mut stage = field(&["s0", "s1"], |_| {});
    let links = [0, 1].map(|at| stage.connect(at));
    let client = stage.client();
    let of = |at| {
        let keys = (0..).map(|nth| format!("k{nth}")).filter(move |key| server(key) == at);
        keys.take(60).map(|key| format!(" {key}")).collect::<String>()
    };
    stage.says(client, &format!("get{}\r\nget{}\r\n", of(0), of(1)));
    while answer(&mut stage, links[1], Some(10_000)) {}
    let mut turns = 0;
    while answer(&mut stage, links[0], Some(10)) {
        turns += 1;
    }
    assert!(turns < 10, "{turns} turns for 60 keys");
    while answer(&mut stage, links[1], Some(10_000)) {}
    let received = stage.received(client);
    assert_eq!(received.matches("VALUE").count(), 120);
    assert!(received.ends_with("END\r\n"), "both are answered");
}
