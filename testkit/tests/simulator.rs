//! Runs the simulator over the data plane. To repeat one seed with every event: `cargo xtask sim
//! --seed N`, or `QUICKACK_SEED=N cargo test -p testkit --test simulator -- --nocapture`.
//! `QUICKACK_SEEDS=500` plays only so many of them.

use testkit::sim;

const STEPS: u32 = 2_000;

/// Renders the details of a few failing seeds.
#[cfg(not(seeded_bugs))]
fn report(found: &[sim::Failure]) -> String {
    found.iter().map(|failure| format!("\n{failure}")).collect()
}

#[cfg(not(seeded_bugs))]
#[test]
fn ten_thousand_seeds_find_nothing() {
    if let Ok(seed) = std::env::var("QUICKACK_SEED") {
        let seed = seed.parse().expect("QUICKACK_SEED is a number");
        sim::replay(seed, STEPS).unwrap_or_else(|failure| panic!("{failure}"));
        return;
    }
    if let Ok(count) = std::env::var("QUICKACK_SEEDS") {
        let count = count.parse().expect("QUICKACK_SEEDS is a number");
        let (_, found) = sim::run_all(0..count, STEPS, 3, || {});
        assert!(found.is_empty(), "{}", report(&found));
        return;
    }
    let (sum, found) = sim::run_all(0..10_000, STEPS, 3, || {});
    assert!(found.is_empty(), "{}", report(&found));
    // A run that meets no fault proves nothing.
    let met = [sum.hits, sum.misses, sum.updates, sum.pauses, sum.refused_clients];
    assert!(met.iter().all(|count| *count > 10_000), "{sum:?}");
    assert!(sum.installs > 10_000 && sum.repeats > 10_000, "{sum:?}");
    assert!(sum.half_waiting > 1_000 && sum.left_waiting > 10_000, "{sum:?}");
    assert!(sum.full_shares > 300 && sum.unread.iter().all(|count| *count > 50), "{sum:?}");
    assert!(sum.ejections > 1_000 && sum.orphans > 1_000, "{sum:?}");
    assert!(sum.refused_forms > 10_000, "{sum:?}");
    assert!(sum.tenants > 100_000 && sum.tenants_delayed > 10_000, "{sum:?}");
    assert!(sum.logins > 10_000 && sum.logins_delayed > 10_000, "{sum:?}");
    assert!(sum.redis > 1_000_000 && sum.apart > 10_000, "{sum:?}");
    assert!(sum.transactions > 10_000, "{sum:?}");
    // Servers without a login never refuse one, all have an address, and no tenant has links.
    const NEVER: &[&str] = &["LoginRefused", "Unresolved", "TenantFull"];
    for (fault, count) in sum.by_fault().filter(|(fault, _)| !NEVER.contains(&fault.as_str())) {
        assert!(count > 100, "{fault} was met {count} times");
    }
}

#[cfg(not(seeded_bugs))]
#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [1, 77, 4_416] {
        let first = sim::run(seed, STEPS).expect("a seed that finds nothing");
        let second = sim::run(seed, STEPS).expect("a seed that finds nothing");
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}

/// Each mistake that can be switched on is found within a thousand seeds; without one nothing is
/// found. `QUICKACK_BUG=Name` tests only that mistake.
#[cfg(seeded_bugs)]
#[test]
fn seeded_bugs_are_found() {
    use proxy::bug::{self, BUGS};

    let (_, found) = sim::run_all(0..1_000, STEPS, 1, || bug::switch(None));
    assert!(found.is_empty(), "without a bug: {}", found[0]);
    let mut survived = Vec::new();
    let only = std::env::var("QUICKACK_BUG").ok();
    for bug in BUGS.iter().filter(|bug| only.as_ref().is_none_or(|one| *one == format!("{bug:?}")))
    {
        let (_, found) = sim::run_all(0..1_000, STEPS, 1, || bug::switch(Some(*bug)));
        match found.first() {
            Some(first) => println!("{bug:?}: seed {}: {}", first.seed, first.what),
            None => survived.push(bug),
        }
    }
    assert!(survived.is_empty(), "not found: {survived:?}");
}
