//! Renders known counters in each form.

use metrics::{Measured, WorkerMetrics};
use proxy::plan::ServerPlan;
use serde_json::Value;

use super::*;
use crate::ipc::http_view::Reloads;

const SECOND: u64 = 1_700_000_000;

fn plan() -> Plan {
    let server = |name: &str, label: &str| ServerPlan::new(name, label, 1);
    let servers = vec![server("one", "one"), server("127.0.0.1:11212", "127.0.0.1:11212")];
    let protocol = proto::PROTOCOLS[0];
    let alpha = PoolPlan::new("alpha", protocol, servers);
    let beta = PoolPlan::new("beta", protocol, vec![server("/tmp/x.sock:", "/tmp/x.sock")]);
    let mut plan = Plan::new(vec![alpha, beta]);
    plan.number();
    plan
}

fn facts() -> Facts {
    let worker =
        |slot, pid, state: &str| WorkerFacts { slot, pid, state: state.to_string(), restarts: 0 };
    Facts {
        reloads: Reloads::default(),
        release: "1.2.3".to_string(),
        host: "here".to_string(),
        unix_s: SECOND,
        uptime_s: 3725,
        epoch: 7,
        memory_max: 1 << 30,
        workers: vec![worker(0, Some(101), "serving"), worker(1, None, "respawning")],
        names: NameCounts::default(),
        lists: Vec::new(),
        unresolved: BTreeMap::new(),
        failures: BTreeMap::new(),
        problems: Vec::new(),
    }
}

/// Takes a snapshot of two workers, a pool with traffic, and a pool without.
fn snapshot() -> Snapshot {
    // The first slot is the master's.
    let (registry, plan) = (Registry::private(3, 8), plan());
    fill(&registry.metrics(1), &plan, 1);
    fill(&registry.metrics(2), &plan, 1000);
    let ejected = plan.pools[0].servers[1].id;
    let health = |id| match id == ejected {
        true => Health::Ejected { since_us: (SECOND - 90) * 1_000_000 },
        false => Health::Up,
    };
    take((&registry, &windows(&registry, &plan)), &plan, facts(), &health)
}

/// Returns the windows of the last ten seconds, in which everything happened.
fn windows(registry: &Registry, plan: &Plan) -> Windows {
    let mut windows = Windows::default();
    let pool = &plan.pools[0];
    for second in 1..=10 {
        let rows = [Measured::Pool(pool.id), Measured::Server(pool.servers[0].id)];
        windows.end_slice(registry, second, rows.into_iter());
    }
    windows
}

fn fill(metrics: &WorkerMetrics, plan: &Plan, factor: u64) {
    let worker = metrics.counters::<WorkerCounter>(WHOLE_WORKER);
    worker.set(WorkerCounter::ClientsNow, 3 * factor);
    worker.add(WorkerCounter::Accepts, 5 * factor);
    worker.add(WorkerCounter::Turns, 100 * factor);
    let [pool, server] = [plan.pools[0].id, plan.pools[0].servers[0].id];
    let counts = metrics.counters::<PoolCounter>(pool);
    counts.set(PoolCounter::ClientsNow, 3 * factor);
    counts.add(PoolCounter::Requests, 10 * factor);
    counts.add(PoolCounter::KeysAsked, 9 * factor);
    counts.add(PoolCounter::Hits, 8 * factor);
    counts.add(PoolCounter::ClientsEnded, 2 * factor);
    let reads = Latency::of_family(0, false);
    (1..=100).for_each(|time| metrics.recorder(pool).record(reads, time * factor));
    let counts = metrics.counters::<ServerCounter>(server);
    counts.set(ServerCounter::LinksNow, 1);
    counts.add(ServerCounter::Messages, 7 * factor);
    counts.add(ServerCounter::LinkLost, 5);
    counts.add(ServerCounter::LinkEnded, 3);
    metrics.recorder(server).record(Latency::READS, 40 * factor);
    let ejected = metrics.counters::<ServerCounter>(plan.pools[0].servers[1].id);
    ejected.add(ServerCounter::Ejections, 1);
}

#[test]
fn people_read_what_has_happened() {
    let text = snapshot().text();
    let expected = "\
quickack 1.2.3 on here, up 1h 2m, epoch 7
clients 3,003 now, 5,005 in total; links 0 now; 0 requests waiting, 0 bytes held of 1,073,741,824

WORKER  PID  STATE       CLIENTS  LINKS  WAITING  ACCEPTS    TURNS  BUSY
0       101  serving           3      0        0        5      100   0us
1         -  respawning    3,000      0        0    5,000  100,000   0us

pool alpha: clients 3,003, requests 10,010, hits 8,008 of 9,009 keys, failed 0, refused 0
  also: clients_ended 2,002
";
    assert!(text.starts_with(expected), "{text}");
    for line in [
        "  SERVER           HEALTH              LINKS  WAITING  SENT  MESSAGES  REPLIES",
        "  127.0.0.1:11212  ejected 1m 30s ago",
        "  one: link_lost 10, link_ended 6\n",
        "  127.0.0.1:11212: ejections 2\n",
        "pool beta: clients 0, requests 0, hits 0 of 0 keys, failed 0, refused 0\n  LATENCY",
        "100.00ms\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn programs_read_every_counter() {
    let json: Value = serde_json::from_str(&snapshot().json()).unwrap();
    assert_eq!((&json["epoch"], &json["totals"]["clients"]), (&7.into(), &3003.into()));
    assert_eq!(json["workers"][1]["pid"], Value::Null);
    assert_eq!(json["workers"][1]["turns_total"], 100_000);
    let alpha = &json["pools"][0];
    assert_eq!((&alpha["name"], &alpha["hits_total"]), (&"alpha".into(), &8008.into()));
    let reads = &alpha["latency_us"]["reads"];
    assert_eq!((&reads["count"], &reads["max"]), (&200.into(), &100_000.into()));
    let near = |value: &Value, exact: f64| (value.as_f64().unwrap() / exact - 1.0).abs() < 0.01;
    assert!(near(&reads["p50"], 100.0) && near(&reads["p90"], 80_000.0), "{reads}");
    let minute = &reads["windows"]["1m"];
    assert_eq!((&minute["count"], &json["window_seconds"]["1m"]), (&200.into(), &10.into()));
    assert!(near(&minute["p98"], 96_000.0) && near(&minute["max"], 100_000.0), "{minute}");
    assert_eq!(&alpha["family_latency_us"]["get"]["reads"], reads);
    let replies = &alpha["servers"][0]["latency_us"];
    assert_eq!((&replies["replies"]["count"], &replies["reads"]["count"]), (&2.into(), &2.into()));
    assert_eq!(replies["updates"]["windows"]["5m"]["count"], 0);
    let server = &alpha["servers"][1];
    assert_eq!((&server["health"], &server["ejections_total"]), (&"ejected".into(), &2.into()));
    for (row, object) in [(metrics::POOL, alpha), (metrics::SERVER, server)] {
        assert!(row.iter().all(|row| object[row.name].is_u64()));
    }
}

/// A protocol's own counters stand among those of its servers, under names of their own.
#[test]
fn a_server_shows_the_counters_of_its_protocol_and_no_others() {
    let (registry, mut plan) = (Registry::private(3, 8), plan());
    plan.pools[0].protocol = proto::protocol("redis").expect("a protocol");
    let server = plan.pools[0].servers[0].id;
    for slot in 0..2 {
        registry.metrics(slot).counters::<ServerCounter>(server).add_own(4, 3);
    }
    let measured = (&registry, &Windows::default());
    let snapshot = take(measured, &plan, facts(), &|_| Health::Up);
    assert!(snapshot.text().contains("  one: again_no_script 6\n"), "{}", snapshot.text());
    let json: Value = serde_json::from_str(&snapshot.json()).unwrap();
    let [redis, memcached] = [0, 1].map(|pool| &json["pools"][pool]["servers"][0]);
    assert_eq!(
        (&redis["again_no_script_total"], &redis["again_loading_total"]),
        (&6.into(), &0.into())
    );
    assert_eq!(memcached["again_no_script_total"], Value::Null);
    for protocol in proto::NAMED {
        let errors = protocol.upstream().retryable_errors();
        assert!(errors.len() <= metrics::OWN_COUNTERS, "there are places for all of them");
        for (at, error) in errors.iter().enumerate() {
            assert_eq!(error.place, at, "{}", error.counter);
            assert!(error.counter.ends_with("_total") && error.help.ends_with('.'));
            let others = metrics::SERVER.iter().map(|row| row.name);
            let mut others = others.chain(errors[..at].iter().map(|other| other.counter));
            assert!(others.all(|name| name != error.counter), "{}", error.counter);
        }
    }
}

#[test]
fn collectors_read_twemproxys_names() {
    let text = snapshot().twemproxy_json();
    let start = "{\"service\":\"quickack\", \"source\":\"here\", \"version\":\"1.2.3\", \
                 \"uptime\":3725, \"timestamp\":1700000000, \"total_connections\":5007, \
                 \"curr_connections\":3005, \"alpha\": {\"client_eof\":2002, ";
    assert!(text.starts_with(start) && text.ends_with("}}}\n"), "{text}");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["alpha"]["server_ejects"], 2);
    assert_eq!(json["alpha"]["one"]["server_err"], 4);
    let since = &json["alpha"]["127.0.0.1:11212"]["server_ejected_at"];
    assert_eq!(*since, (SECOND - 90) * 1_000_000);
}
