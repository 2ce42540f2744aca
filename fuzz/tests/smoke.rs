//! Each fuzzer for a moment, from a fixed seed: a change that breaks what they guard is seen in CI.
//! Longer: `cargo xtask fuzz --seed N --budget N`.

use std::panic::catch_unwind;

use fuzz::{CANARY, FUZZERS};

/// One thread a fuzzer would be noise where a run is to be repeated: they run in turn.
#[test]
fn no_fuzzer_finds_anything() {
    for fuzzer in FUZZERS {
        println!("fuzz {} --seed 1 --budget {}", fuzzer.name, fuzzer.smoke);
        (fuzzer.run)(1, fuzzer.smoke);
    }
}

#[test]
fn the_canary_is_caught() {
    let caught = catch_unwind(|| (CANARY.run)(1, CANARY.smoke)).is_err();
    assert!(caught, "the fault in `canary.rs` was not found: the oracles are blind");
}

/// The corpus as it stands does not give the canary away: it takes the mutations to find it.
#[test]
fn the_canary_is_not_in_the_corpus() {
    (CANARY.run)(1, fuzz::mutate::corpus("request").len());
}

#[test]
fn the_same_seed_is_the_same_run() {
    let corpus = fuzz::mutate::corpus("request");
    let run = || {
        let mut dice = fuzz::mutate::Dice::new(7);
        (0..100).map(|_| fuzz::mutate::input(&corpus, &mut dice)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}
