//! The part of the simulator that `cargo xtask mutants` runs for each mutant that its crate's own
//! tests have not noticed.

use testkit::sim;

/// As many steps as in the run of ten thousand seeds.
const STEPS: u32 = 2_000;

#[cfg(not(seeded_bugs))]
#[test]
#[ignore = "the ten thousand are more; the step of mutants asks for it"]
fn five_hundred_seeds_find_nothing() {
    let (sum, found) = sim::run_all(0..500, STEPS, 1, || {});
    assert!(found.is_empty(), "{}", found[0]);
    // A data plane that does nothing breaks no promise.
    let met = [sum.hits, sum.misses, sum.updates, sum.pauses, sum.refused_clients, sum.installs];
    assert!(met.iter().all(|count| *count > 500), "{sum:?}");
    assert!(sum.ejections > 50 && sum.orphans > 50 && sum.refused_forms > 500, "{sum:?}");
    assert!(sum.redis > 50_000 && sum.apart > 500, "{sum:?}");
}
