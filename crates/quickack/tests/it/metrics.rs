//! The counters in shared memory beside what the load itself has counted.

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::{Counts, Options};
use testkit::process::{Memcached, Quickack, send, wait_until};

use super::crew::{self, crew};

/// One number of the first pool's.
#[track_caller]
fn number(json: &Value, path: &[&str]) -> u64 {
    let pool = &json["pools"][0];
    let found = path.iter().fold(pool, |value, name| &value[*name]);
    found.as_u64().unwrap_or_else(|| panic!("no number at {path:?} of {json:#}"))
}

/// Requests of clients that were answered, reads and updates apart.
fn answered(quickack: &Quickack) -> (u64, u64) {
    let json = crew::stats(quickack);
    let count = |name: &str| number(&json, &["latency_us", name, "count"]);
    let (reads, updates) = (count("reads"), count("updates"));
    assert_eq!(number(&json, &["requests_total"]), reads + updates);
    (reads, updates)
}

#[test]
fn the_counters_are_the_loads_own_through_deaths_and_reloads_before_memcached() {
    let memcached = Memcached::start();
    let quickack = crew::start(4, &[], &[memcached.address], &["timeout: 5000"]);
    let load = crew::load(&quickack, 40, Options { depth: 3, keys: 12, ..Options::default() });
    load.wait_for_requests(5_000);
    load.pause();
    let total = load.tally().total();
    assert_eq!(answered(&quickack), (total.gets, total.updates), "{total:?}");
    for n in 0..8 {
        load.resume();
        load.wait_for_requests(500);
        if n % 2 == 0 {
            let more = format!("timeout: {}", 5_001 + n);
            quickack.rewrite(&crew::text(4, &[], &[memcached.address], &[&more]));
            quickack.admin_ok(&["reload"]);
        } else {
            // Nothing is outstanding: what the dead one has counted is what its clients have heard.
            load.pause();
            let old = crew(&quickack)[&(n / 2)].pid;
            send(old, Signal::KILL);
            wait_until("a successor serves", || {
                let crew = crew(&quickack);
                crew.get(&(n / 2)).is_some_and(|one| one.pid != old && one.is_serving())
            });
            load.resume();
        }
        load.wait_for_everybody();
        load.pause();
        let total: Counts = load.tally().total();
        assert_eq!((total.failed, total.lost), (0, 0));
        assert_eq!(answered(&quickack), (total.gets, total.updates), "round {n}: {total:?}");
    }
    let clients = crew::clients(&quickack);
    assert_eq!(clients, 40, "those of the dead are gone from the gauges");
}
