//! The last five minutes for the page: how many requests took how long, second by second.

use std::collections::VecDeque;

use metrics::{Latency, Windows};
use proxy::plan::Plan;
use serde_json::{Map, Value, json};

use crate::ipc::http_view::Reload;

/// The edges of the rows of the page's heat map, in microseconds. A stall by Nagle's algorithm and
/// a delayed ACK is one of 40 ms on Linux and of 200 ms on Windows: each has a row of its own.
const EDGES_US: &[u64] = &[
    50, 100, 150, 250, 400, 600, 1_000, 1_500, 2_500, 4_000, 6_000, 10_000, 16_000, 24_000, 36_000,
    48_000, 75_000, 120_000, 190_000, 230_000, 400_000, 700_000, 1_500_000, 4_000_000,
];

/// Returns for each second, and for each five seconds more than a minute ago, the number of
/// requests of each pool between two edges. The last number is of those above all edges. The last
/// reloads come with them.
pub fn history(windows: &Windows, plan: &Plan, reloads: &VecDeque<Reload>) -> String {
    let slices = windows.slices().map(|(seconds, window)| {
        let pools = plan.pools.iter().map(|pool| {
            let all = Latency::all(false).chain(Latency::all(true));
            let times = window.histograms(pool.id, all);
            let mut up_to = times.up_to(EDGES_US);
            up_to.push(times.count());
            let below = std::iter::once(0).chain(up_to.iter().copied());
            let counts: Vec<u64> = up_to.iter().zip(below).map(|(to, from)| to - from).collect();
            (pool.name.clone(), Value::from(counts))
        });
        let pools: Map<String, Value> = pools.collect();
        json!({"start": seconds.start, "end": seconds.end, "pools": pools})
    });
    let slices: Vec<Value> = slices.collect();
    json!({"edges_us": EDGES_US, "slices": slices, "reloads": reloads}).to_string()
}
