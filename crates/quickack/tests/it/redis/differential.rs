//! Random commands of the whole table. quickack must answer as one real server does, in front of
//! four of its kind, and in front of one with a twemproxy file; or it must refuse as the table
//! predicts.
//!
//! A failure prints its seed. `QUICKACK_SEED=N cargo test -p quickack --test it
//! redis::differential` repeats it, `QUICKACK_DEPTH=1` with one command at a time,
//! `QUICKACK_COMMANDS=N` for a longer run.

use std::net::SocketAddr;

use testkit::differential::redis::{Settings, Tally, rows, run};
use testkit::process::{Family, Quickack};

use super::{QUICKACK, addresses, config, servers};

/// On a busy machine any answer may be late, and deadlines are not tested here.
const PATIENT: [&str; 2] = [ALLOW, "timeout: 20s"];
/// The list of `differential::redis::ALLOWED`.
const ALLOW: &str = "allow: [flushall, flushdb, config|resetstat]";

/// Number of commands that CI sends through four servers; they take seconds.
const THROUGH_FOUR: usize = 200_000;
const THROUGH_ONE: usize = 60_000;
const NEWEST: usize = 100_000;

/// The servers behind.
enum Behind {
    Four,
    One,
    /// Four servers, and no command is split.
    Unsplit,
    /// The test of the test: no proxy in between.
    Bare,
}

#[test]
fn random_commands_are_answered_as_by_one_redis() {
    let tally = check(Family::Redis70, Behind::Four, 1, THROUGH_FOUR);
    let lacking = tally.lacking(&rows(), 50, 25);
    assert!(lacking.is_empty(), "met too seldom: {lacking:#?}");
    assert!(tally.skipped * 20 < tally.commands, "{} are not compared", tally.skipped);
    assert!(tally.waits > 500, "{} commands waited", tally.waits);
    assert!(tally.states.1 > 500 && tally.scans.1 > 200, "{:?} {:?}", tally.states, tally.scans);
}

#[test]
fn random_commands_are_answered_as_by_one_redis_through_a_file_of_nutcrackers() {
    let tally = check(Family::Redis70, Behind::One, 2, THROUGH_ONE);
    assert!(tally.rows.iter().all(|row| row.apart == 0), "one server has all keys");
}

#[test]
fn random_commands_are_answered_as_by_one_redis_or_refused_where_nothing_is_split() {
    let tally = check(Family::Redis70, Behind::Unsplit, 8, 12_000);
    let mgets = tally.rows.iter().find(|row| row.name == "mget").expect("every server has it");
    assert!(mgets.apart > 10 && mgets.apart == mgets.spread, "{mgets:?}");
}

#[test]
fn random_commands_are_answered_as_by_one_valkey() {
    check(Family::Valkey91, Behind::Four, 3, NEWEST);
}

/// The oldest supported version. The server itself reports commands that it lacks.
#[test]
fn random_commands_are_answered_as_by_one_redis_6() {
    check(Family::Redis62, Behind::Four, 9, 10_000);
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn soak_random_commands_are_answered_as_by_one_redis_and_one_valkey() {
    check(Family::Valkey91, Behind::Four, 4, 200_000);
    check(Family::Redis70, Behind::Four, 5, 1_000_000);
    check(Family::Redis70, Behind::One, 10, 200_000);
}

#[test]
fn random_commands_are_answered_alike_by_two_redises() {
    check(Family::Redis70, Behind::Bare, 6, 10_000);
    check(Family::Valkey91, Behind::Bare, 7, 10_000);
}

#[track_caller]
fn check(family: Family, behind: Behind, seed: u64, commands: usize) -> Tally {
    let from = |name: &str| {
        std::env::var(name).ok().map(|value| value.parse::<usize>().expect("a number"))
    };
    let documented = servers(Family::Valkey91, 1);
    let backs =
        servers(family, if matches!(behind, Behind::Four | Behind::Unsplit) { 6 } else { 3 });
    let all = addresses(&backs);
    let (quickack, name) = match behind {
        Behind::Four => (Some(by_one_worker(&all[2..], &PATIENT)), "four"),
        Behind::Unsplit => {
            let more = [&PATIENT[..], &["multi_key: refuse"]].concat();
            (Some(by_one_worker(&all[2..], &more)), "four, unsplit")
        }
        Behind::One => (Some(as_nutcracker(all[2])), "one"),
        Behind::Bare => (None, "nobody"),
    };
    let named = |(at, address): (usize, &SocketAddr)| (format!("s{}", at + 1), *address);
    let settings = Settings {
        seed: from("QUICKACK_SEED").map_or(seed, |seed| seed as u64),
        commands: from("QUICKACK_COMMANDS").unwrap_or(commands),
        depth: from("QUICKACK_DEPTH").unwrap_or(100),
        direct: all[0],
        quickack: quickack.as_ref().map_or(all[2], Quickack::address),
        servers: all[2..].iter().enumerate().map(named).collect(),
        splits: !matches!(behind, Behind::Unsplit),
        scratch: all[1],
        documented: Some(documented[0].address),
    };
    let tally = run(&settings).unwrap_or_else(|difference| {
        panic!("{} and {name} behind quickack: {difference}", family.name())
    });
    println!("seed {} of {} through {name}\n{tally}", settings.seed, family.name());
    tally
}

/// The script cache is per worker, so one worker must see both the flush and the loads.
fn by_one_worker(servers: &[SocketAddr], more: &[&str]) -> Quickack {
    Quickack::start(QUICKACK, &format!("{}global:\n  workers: 1\n", config(servers, more)))
}

/// Starts quickack with a typical nutcracker file.
fn as_nutcracker(server: SocketAddr) -> Quickack {
    let text = format!(
        "alpha:\n  listen: 127.0.0.1:0\n  hash: fnv1a_64\n  distribution: ketama\n  \
         auto_eject_hosts: false\n  redis: true\n  timeout: 20000\n  server_retry_timeout: 2000\n  \
         {ALLOW}\n  servers:\n   - {server}:1\n\
         global:\n  workers: 1\n"
    );
    Quickack::start(QUICKACK, &text)
}
