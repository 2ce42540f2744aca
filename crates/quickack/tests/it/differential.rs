//! Random requests of classic text, meta and binary: quickack must answer as a real memcached does,
//! in front of one memcached, of four, and of the embedded cache.
//!
//! A failure prints its seed. `QUICKACK_SEED=N cargo test -p quickack --test it differential`
//! repeats it, `QUICKACK_DEPTH=1` with one request at a time. `docs/long-tests.md` has the last
//! result of the long run.

use testkit::differential::memcached::{Behind, Settings, Tally, run};
use testkit::process::{Memcached, Quickack};

use super::{QUICKACK, config};

#[test]
fn random_requests_are_answered_as_by_memcached() {
    check(from_environment("QUICKACK_SEED").unwrap_or(1), 20_000);
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn soak_random_requests_are_answered_as_by_memcached() {
    check(from_environment("QUICKACK_SEED").unwrap_or(2), 200_000);
}

/// The test of the test: two memcacheds give the same answers.
#[test]
fn random_requests_are_answered_alike_by_two_memcacheds() {
    let memcacheds = [Memcached::quiet(), Memcached::quiet()];
    let settings = Settings {
        seed: 3,
        requests: 5_000,
        depth: 60,
        memcached: memcacheds[0].address,
        sides: vec![(Behind::One, memcacheds[1].address)],
    };
    judge(run(&settings), 5_000);
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn check(seed: u64, requests: usize) {
    let memcacheds: Vec<Memcached> = (0..6).map(|_| Memcached::quiet()).collect();
    let addresses: Vec<_> = memcacheds.iter().map(|memcached| memcached.address).collect();
    // On a busy machine any answer may be late, and deadlines are not tested here.
    let allow = ["hash: md5", "allow: [flush_all]", "item_size_max: 2m", "timeout: 20s"];
    let one = Quickack::start(QUICKACK, &config(&addresses[1..2], &allow));
    let four = Quickack::start(QUICKACK, &config(&addresses[2..6], &allow));
    let embedded = Quickack::start(
        QUICKACK,
        "alpha:\n  listen: 127.0.0.1:0\n  allow: [flush_all]\n  memory: 512m\n  \
         item_size_max: 2m\n  timeout: 20s\n  servers: [embedded]\n",
    );
    let settings = Settings {
        seed,
        requests,
        depth: from_environment("QUICKACK_DEPTH").unwrap_or(60) as usize,
        memcached: addresses[0],
        sides: vec![
            (Behind::One, one.address()),
            (Behind::Four, four.address()),
            (Behind::Embedded, embedded.address()),
        ],
    };
    judge(run(&settings), requests);
}

/// A run that meets too few kinds of answers proves nothing.
#[track_caller]
fn judge(outcome: Result<Tally, String>, requests: usize) {
    let tally = outcome.unwrap_or_else(|difference| panic!("{difference}"));
    println!("{tally}");
    assert!(tally.requests >= requests);
    let met = ["HD", "VA", "EN", "NF", "EX", "STORED", "EXISTS", "VALUE", "00", "01", "02", "05"];
    for word in met {
        let count = tally.answered(word);
        assert!(count * 1_000 > requests, "memcached answered {word} only {count} times");
    }
    assert!(tally.translated.iter().all(|count| count * 20 > requests), "few cas numbers");
}
