//! The master sleeps: its processor time and its wake-ups while its workers are under full load.

use std::time::{Duration, Instant};

use testkit::load::Options;

use super::harness;

#[test]
fn the_master_is_quiet_while_eight_workers_serve_memcached() {
    check(Duration::from_secs(3));
}

#[test]
#[ignore = "takes a minute; `cargo xtask test --long` runs it"]
fn soak_the_master_is_quiet_for_a_minute_while_eight_workers_serve_memcached() {
    check(Duration::from_secs(60));
}

/// At most 5 ms of CPU and 20 wake-ups a second.
fn check(span: Duration) {
    let (_memcached, quickack) = harness::field(8, &[], &[]);
    let load = harness::load(&quickack, 64, Options { depth: 4, keys: 12, ..Options::default() });
    let master = quickack.process.facts();
    let (cpu, wakeups, start) = (master.cpu_ns(), master.wakeups(), Instant::now());
    let requests = load.tally().total().requests;
    while start.elapsed() < span {
        load.wait_for_requests(2_000);
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_ms = (master.cpu_ns() - cpu) as f64 / 1e6;
    let woken = (master.wakeups() - wakeups) as f64 / seconds;
    let rate = (load.tally().total().requests - requests) as f64 / seconds;
    println!(
        "master over {seconds:.1} s at {rate:.0} requests a second: {cpu_ms:.1} ms of CPU, \
         {woken:.1} wake-ups a second"
    );
    load.stop().assert_unharmed();
    assert!(cpu_ms <= 5.0 * seconds, "{cpu_ms} ms of CPU in {seconds} s");
    assert!(woken <= 20.0, "{woken} wake-ups a second");
}
