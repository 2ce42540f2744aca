//! The figures: those of the statistics, those of the load, and nothing that idle workers notice.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::Options;
use testkit::process::{DEADLINE, Memcached, send, wait_until};

use super::client::{Connection, samples};
use super::*;
use crate::harness::workers;
use crate::syscalls::traced;

/// Requests of clients that were answered: reads and updates, as a page of metrics has them.
fn answered(page: &str) -> (u64, u64) {
    let all = samples(page);
    let count = |name: &str| {
        let family = format!("quickack_pool_{name}_seconds_count{{pool=\"alpha\",");
        let of_it = all.iter().filter(|(name, _)| name.starts_with(&family));
        of_it.map(|(_, value)| *value as u64).sum()
    };
    (count("reads"), count("updates"))
}

/// Checks that no counter of `after` is less than it was.
#[track_caller]
fn check_growth(before: &str, after: &str) {
    let (before, after) = (samples(before), samples(after));
    let is_counter = |name: &str| {
        let bare = name.split('{').next().unwrap_or_default();
        ["_total", "_count", "_bucket", "_sum"].iter().any(|end| bare.ends_with(end))
    };
    for (name, value) in before.iter().filter(|(name, _)| is_counter(name)) {
        let now = after.get(name).unwrap_or_else(|| panic!("{name} is gone"));
        assert!(now >= value, "{name} fell from {value} to {now}");
    }
}

#[test]
fn the_figures_are_the_loads_own_through_deaths_and_reloads_before_memcached() {
    let memcached = Memcached::start();
    let servers = [memcached.address];
    let quickack = start(4, &[], &servers, &["timeout: 60000"]);
    harness::wait_for_workers(&quickack, 4);
    let load = harness::load(&quickack, 40, Options { depth: 3, keys: 12, ..Options::default() });
    let mut last = page(&quickack, "/metrics");
    let started = samples(&last)["process_start_time_seconds"];
    for n in 0..6 {
        load.wait_for_requests(500);
        match n % 3 {
            0 => {
                let more = format!("timeout: {}", 60_001 + n);
                quickack.rewrite(&text(4, &[], &servers, &[&more]));
                quickack.admin_ok(&["reload"]);
            }
            kind => {
                // Nothing is outstanding: the dead process's counts are those that clients had.
                load.pause();
                let old = match kind {
                    1 => workers(&quickack)[&(n % 4)].pid,
                    _ => running(&quickack),
                };
                send(old, Signal::KILL);
                wait_until("a successor serves", || {
                    let all = workers(&quickack);
                    let fine = all.len() == 4 && all.values().all(|one| one.is_serving());
                    fine && all.values().all(|one| one.pid != old)
                        && helper(&quickack).is_some_and(|pid| pid != old)
                });
                load.resume();
            }
        }
        load.wait_for_everybody();
        load.pause();
        let total = load.tally().total();
        let mut now = String::new();
        wait_until(&format!("the page shows {total:?}"), || {
            now = page(&quickack, "/metrics");
            answered(&now) == (total.gets, total.updates)
        });
        check_growth(&last, &now);
        // The windows of both end at whole seconds, and both are asked within one now and then.
        wait_until("/stats.json shows the same, and so does `quickack stats --json`", || {
            let json = page(&quickack, "/stats.json");
            let json: Value = serde_json::from_str(&json).expect("it is JSON");
            let times = &json["pools"][0]["latency_us"];
            let is_all =
                times["reads"]["count"] == total.gets && times["updates"]["count"] == total.updates;
            is_all && json["pools"] == harness::stats(&quickack)["pools"]
        });
        let top = quickack.admin_ok(&["top", "--once", "--json", "--over", "start"]);
        let top: Value = serde_json::from_str(&top).expect("it is JSON");
        let counts = ["reads", "updates"].map(|name| top["pools"][0][name]["count"].as_u64());
        assert_eq!(counts, [Some(total.gets), Some(total.updates)], "`quickack top`");
        assert_eq!(samples(&now)["process_start_time_seconds"], started);
        last = now;
        load.resume();
    }
    let all = samples(&last);
    assert_eq!(all["quickack_config_reloads_total"], 2.0);
    assert_eq!(all["quickack_http_restarts_total"], 2.0);
    let restarts: f64 =
        (0..4).map(|n| all[&format!("quickack_worker_restarts_total{{worker=\"{n}\"}}")]).sum();
    assert_eq!(restarts, 2.0);
    assert_eq!(all["quickack_config_epoch"], 3.0);
    let server = memcached.address;
    assert_eq!(all[&format!("quickack_server_up{{pool=\"alpha\",server=\"{server}\"}}")], 1.0);
}

#[test]
fn both_formats_have_the_same_figures_and_a_histogram_is_whole_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(1, &[], &[memcached.address], &[]);
    let mut client = quickack.client();
    (0..50).for_each(|_| client.ask("get nobody-has-this\r\n", "END\r\n"));
    wait_until("50 reads are counted", || answered(&page(&quickack, "/metrics")).0 == 50);
    let mut connection = Connection::open(address(&quickack));
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    connection.send(format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"));
    let open = connection.answer(false).expect("an answer");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.fields["content-type"], kind);
    assert!(open.body.ends_with("# EOF\n") && open.body.contains("\n# UNIT "), "{}", open.body);
    let text = get(address(&quickack), "/metrics");
    assert_eq!(text.fields["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let [open, text] = [&open.body, &text.body].map(|page| samples(page));
    assert_eq!(open.keys().collect::<Vec<_>>(), text.keys().collect::<Vec<_>>());
    let buckets = |edge: &str| {
        let family = "quickack_pool_reads_seconds_bucket{pool=\"alpha\",family=\"get\"";
        text[&format!("{family},le=\"{edge}\"}}")]
    };
    let edges = ["0.0001", "0.036", "0.048", "0.19", "0.23", "10.0", "+Inf"];
    let counts: Vec<f64> = edges.iter().map(|edge| buckets(edge)).collect();
    assert!(counts.is_sorted() && counts[6] == 50.0, "{counts:?}");
    let labels: BTreeMap<&str, ()> = text
        .keys()
        .flat_map(|name| name.split(['{', ',']).skip(1))
        .filter_map(|label| Some((label.split_once("=\"")?.0, ())))
        .collect();
    let labels: Vec<&str> = labels.into_keys().collect();
    assert_eq!(labels, ["family", "le", "phase", "pool", "server", "state", "version", "worker"]);
}

/// Scraping as fast as it goes: an idle worker's turns are as far apart as without it, and have as
/// many system calls.
#[test]
fn strace_sees_no_call_of_an_idle_worker_more_while_it_is_scraped() {
    let quickack = Quickack::start(
        QUICKACK,
        "global:\n  http: 127.0.0.1:0\n  workers: 1\nalpha:\n  listen: 127.0.0.1:0\n  servers: \
         [embedded]\n",
    );
    harness::wait_for_workers(&quickack, 1);
    let worker = workers(&quickack)[&0].pid;
    let turns = || {
        let json: Value = serde_json::from_str(&quickack.ask("workers --json")).expect("JSON");
        json["workers"][0]["turns"].as_u64().expect("a number")
    };
    let watch = |scrape: bool| {
        let (mut calls, mut took, mut pages) = (0.0, 0.0, 0);
        let trace = traced(&[worker], || {
            let (first, start) = (turns(), Instant::now());
            let mut seen = first;
            while seen < first + 4 {
                assert!(start.elapsed() < 2 * DEADLINE, "turn {seen}, {first} at the start");
                seen = turns();
                if scrape {
                    page(&quickack, "/metrics");
                    page(&quickack, "/readyz");
                    page(&quickack, "/stats.json");
                    pages += 3;
                }
            }
            took = start.elapsed().as_secs_f64() / (seen - first) as f64;
        });
        let waits = trace.lines().filter(|line| line.contains("epoll_pwait")).count();
        let all = trace.lines().filter(|line| line.contains('(')).count();
        calls += all as f64 / waits as f64;
        println!("a turn: {calls:.2} calls for each wait, {took:.2} s; {pages} pages");
        (calls, took)
    };
    let (alone, scraped) = (watch(false), watch(true));
    assert!(scraped.0 <= alone.0 + 0.5, "{scraped:?}, alone {alone:?}");
    assert!(scraped.1 >= 0.5 * alone.1, "it woke up more often: {scraped:?}, alone {alone:?}");
}

/// However often it is asked for, a page is rendered once a second.
#[test]
fn a_page_is_rendered_once_a_second_however_often_it_is_asked_for_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(1, &[], &[memcached.address], &[]);
    let (start, mut bodies, mut asked) = (Instant::now(), Vec::new(), 0);
    while bodies.len() < 4 {
        let body = page(&quickack, "/metrics");
        asked += 1;
        if bodies.last() != Some(&body) {
            bodies.push(body);
        }
    }
    let took = start.elapsed().as_secs_f64();
    println!("{asked} requests, {} pages in {took:.1} s", bodies.len());
    assert!(took >= 2.9, "four pages in {took} s");
}

/// Names are escaped, and the page is one that Prometheus's own checker has nothing to say about.
#[test]
fn promtool_has_nothing_to_say_about_the_page_before_memcached() {
    let memcached = Memcached::start();
    let pool = |name: &str| {
        format!(
            "{name}:\n  listen: 127.0.0.1:0\n  servers: [{}:1 se\"rver\\one]\n",
            memcached.address
        )
    };
    let text = format!(
        "global:\n  http: 127.0.0.1:0\n{}{}redis:\n  listen: 127.0.0.1:0\n  redis: true\n  \
         servers: [127.0.0.1:1:1]\n",
        pool("alpha"),
        pool("'a \"quoted\" {pool}\\'")
    );
    let quickack = Quickack::start(QUICKACK, &text);
    let page = page(&quickack, "/metrics");
    assert!(page.contains(r#"{pool="a \"quoted\" {pool}\\",server="se\"rver\\one"}"#), "{page}");
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("promtool is a peer");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}
