//! The counters in shared memory, compared with the load's own counts.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::{Counts, Options};
use testkit::process::{
    Client, DEADLINE, Memcached, Process, Quickack, free_address, send, wait_until,
};

use super::QUICKACK;
use super::harness::{self, workers};

/// Returns one number of the first pool.
#[track_caller]
fn number(json: &Value, path: &[&str]) -> u64 {
    let pool = &json["pools"][0];
    let found = path.iter().fold(pool, |value, name| &value[*name]);
    found.as_u64().unwrap_or_else(|| panic!("no number at {path:?} of {json:#}"))
}

/// Waits until the answered requests of clients, reads and updates, are those of a load. A client
/// may have its last answer before the worker has counted it.
#[track_caller]
fn wait_for_answered(quickack: &Quickack, total: &Counts, when: &str) {
    let mut found = [0; 3];
    let expected = [total.gets, total.updates, total.gets + total.updates];
    wait_until(&format!("{when}: reads, updates and requests are {expected:?}"), || {
        let json = harness::stats(quickack);
        let count = |name: &str| number(&json, &["latency_us", name, "count"]);
        let now = [count("reads"), count("updates"), number(&json, &["requests_total"])];
        if std::mem::replace(&mut found, now) != now {
            println!("{when}: {now:?}");
        }
        now == expected
    });
}

#[test]
fn the_counters_are_the_loads_own_through_deaths_and_reloads_before_memcached() {
    let memcached = Memcached::start();
    let quickack = harness::start(4, &[], &[memcached.address], &["timeout: 60000"]);
    let load = harness::load(&quickack, 40, Options { depth: 3, keys: 12, ..Options::default() });
    load.wait_for_requests(5_000);
    load.pause();
    wait_for_answered(&quickack, &load.tally().total(), "at first");
    for n in 0..8 {
        load.resume();
        load.wait_for_requests(500);
        if n % 2 == 0 {
            let more = format!("timeout: {}", 60_001 + n);
            quickack.rewrite(&harness::text(4, &[], &[memcached.address], &[&more]));
            quickack.admin_ok(&["reload"]);
        } else {
            // Nothing is outstanding: the dead worker's count equals the answers that its clients
            // received.
            load.pause();
            wait_for_answered(&quickack, &load.tally().total(), "before a death");
            let old = workers(&quickack)[&(n / 2)].pid;
            send(old, Signal::KILL);
            wait_until("a successor serves", || {
                let workers = workers(&quickack);
                workers.get(&(n / 2)).is_some_and(|one| one.pid != old && one.is_serving())
            });
            load.resume();
        }
        load.wait_for_everybody();
        load.pause();
        let total: Counts = load.tally().total();
        assert_eq!((total.failed, total.lost), (0, 0));
        wait_for_answered(&quickack, &total, &format!("round {n}"));
    }
    let what = "those of the dead are gone from the gauges";
    wait_until(what, || harness::clients(&quickack) == 40);
    let total = load.tally().total();
    wait_until("the second has ended, and the windows have what the clients counted", || {
        let json = harness::stats(&quickack);
        let counts = ["reads", "updates"]
            .map(|name| number(&json, &["latency_us", name, "windows", "5m", "count"]));
        let servers = ["reads", "updates"].map(|name| {
            let server = &json["pools"][0]["servers"][0]["latency_us"][name];
            server["windows"]["5m"]["count"].as_u64()
        });
        let families = ["get", "set", "delete", "arithmetic", "touch", "other"]
            .map(|name| json["pools"][0]["family_latency_us"][name]["updates"]["count"].as_u64());
        assert_eq!(families.into_iter().flatten().sum::<u64>(), total.updates);
        counts == [total.gets, total.updates] && servers.iter().all(Option::is_some)
    });
}

/// The names in twemproxy's statistics are those in ours, with the same kinds of values.
#[test]
fn the_stats_port_speaks_as_nutcrackers_does_before_memcached() {
    let memcached = Memcached::start();
    let port = free_address();
    let text = harness::text(2, &[&format!("stats: {port}")], &[memcached.address], &[]);
    let other =
        |listen: SocketAddr| format!("beta:\n  listen: {listen}\n  servers:\n   - /tmp/x.sock:1\n");
    let quickack = Quickack::start(QUICKACK, &(text + &other(free_address())));
    let client = || {
        let mut client = quickack.client();
        client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        client.ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    };
    (0..5).for_each(|_| client());
    let ours: Value = serde_json::from_str(&read_all(port)).expect("it is JSON");
    let theirs = nutcrackers(&memcached, &other(free_address()));
    let mut different = Vec::new();
    compare(&theirs, &ours, String::new(), &mut different);
    compare(&ours, &theirs, String::new(), &mut different);
    assert!(different.is_empty(), "{different:?} in {ours:#}");
    let server = &ours["alpha"][memcached.address.to_string()];
    assert_eq!(server["requests"], 10, "{ours:#}");
    assert_eq!(server["responses"], 10, "{ours:#}");
}

/// Returns the answer of a port to these pieces. A client that says nothing for 100 ms is taken for
/// a collector. Where the machine is so busy that this test needs nearly as long, it asks again.
#[track_caller]
fn told_to(port: SocketAddr, pieces: &[&str]) -> String {
    let start = Instant::now();
    loop {
        let begun = Instant::now();
        let mut client = Client::connect(port);
        for piece in pieces {
            client.stream.write_all(piece.as_bytes()).expect("there is room");
        }
        let is_in_time = begun.elapsed() < Duration::from_millis(60);
        let mut text = String::new();
        client.stream.read_to_string(&mut text).expect("all of it, and no reset");
        if is_in_time {
            return text;
        }
        assert!(start.elapsed() < DEADLINE, "no question is fast enough");
    }
}

/// `curl` and probes of load balancers ask in HTTP; collectors for nutcracker say nothing.
#[test]
fn the_stats_port_answers_those_that_ask_and_loses_no_byte_before_memcached() {
    let port = free_address();
    let (_memcached, _quickack) = harness::field(1, &[&format!("stats: {port}")], &[]);
    let json = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let cases: [(&[&str], &str, bool); 18] = [
        (&["GET / HTTP/1.1\r\nHost: a\r\n\r\n"], json, true),
        (&["GET /stats HTTP/1.1\r\nHo", "st: a\r\n\r\n"], json, true),
        (&["GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\n\r\n"], json, true),
        (&["HEAD / HTTP/1.0\r\n\r\n"], json, false),
        (&["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"], json, true),
        (&["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na=b"], json, true),
        (&["PUT / HTTP/1.1\r\n\r\n"], json, true),
        (&["OPTIONS / HTTP/1.0\r\n\r\n"], json, true),
        (&["GET /\r\n"], json, true),
        (&["HEAD / HTTP/1.1\r\n\r\n"], json, false),
        (&["GET  /\u{1} HTTP/1.1\r\n\r\n"], json, true),
        (&["PROPFIND / HTTP/1.1\r\n\r\n"], json, true),
        (&["get / http/1.1\r\n\r\n"], json, true),
        (&["G"], json, true),
        (&["Post"], json, true),
        (&["stats\r\n"], "{", true),
        (&["stats"], "{", true),
        (&[], "{", true),
    ];
    for (pieces, start, has_json) in cases.into_iter().cycle().take(90) {
        let text = told_to(port, pieces);
        assert!(text.starts_with(start), "{pieces:?}: {text}");
        let body =
            if start == "{" { &text } else { text.split_once("\r\n\r\n").expect("a head").1 };
        let parsed =
            serde_json::from_str::<Value>(body).is_ok_and(|json| json["alpha"].is_object());
        assert_eq!(parsed, has_json, "{pieces:?}: {text}");
        let has_body = pieces.first().is_none_or(|piece| !piece.starts_with("HEAD"));
        assert_eq!(!body.is_empty(), has_body, "{pieces:?}: {text}");
    }
}

/// The master that serves the port has more to do.
#[test]
fn who_sends_to_the_stats_port_without_end_keeps_nobody_waiting_before_memcached() {
    let port = free_address();
    let (_memcached, quickack) = harness::field(1, &[&format!("stats: {port}")], &[]);
    let sends = move || {
        let mut stream = Client::connect(port).stream;
        while stream.write_all(&[b'x'; 256 * 1024]).is_ok() {}
    };
    let senders: Vec<_> = (0..4).map(|_| thread::spawn(sends)).collect();
    for _ in 0..10 {
        assert!(read_all(port).starts_with('{'));
        quickack.admin_ok(&["servers"]);
    }
    senders.into_iter().for_each(|sender| sender.join().expect("it was closed"));
}

#[test]
fn the_stats_port_follows_the_file_before_memcached() {
    let (memcached, quickack) = harness::field(1, &[], &[]);
    let ports = [free_address(), free_address()];
    let mut old: Option<SocketAddr> = None;
    for port in [Some(ports[0]), Some(ports[1]), None] {
        let stats: Vec<String> = port.iter().map(|port| format!("stats: {port}")).collect();
        let stats: Vec<&str> = stats.iter().map(String::as_str).collect();
        quickack.rewrite(&harness::text(1, &stats, &[memcached.address], &[]));
        quickack.admin_ok(&["reload"]);
        if let Some(port) = port {
            let json: Value = serde_json::from_str(&read_all(port)).expect("it is JSON");
            assert!(json["alpha"].is_object(), "{json:#}");
        }
        let is_closed = |old: SocketAddr| std::net::TcpStream::connect(old).is_err();
        assert!(old.is_none_or(is_closed), "{old:?} is still served");
        old = port;
    }
}

/// The id of a removed server is reused for the next new server, whose counters must begin at zero:
/// in the statistics for people and programs, in twemproxy's, and in those sent to clients.
#[test]
fn a_server_that_comes_begins_at_nothing_whoever_had_its_id_before_memcached() {
    let memcacheds: Vec<Memcached> = (0..4).map(|_| Memcached::start()).collect();
    let addresses: Vec<SocketAddr> = memcacheds.iter().map(|memcached| memcached.address).collect();
    let port = free_address();
    let stats = format!("stats: {port}");
    // With modula, keys that differ by one reach both servers.
    let text = |second: SocketAddr| {
        let pool = ["distribution: modula", "hash: one_at_a_time"];
        harness::text(2, &[&stats], &[addresses[0], second], &pool)
    };
    let quickack = Quickack::start(QUICKACK, &text(addresses[1]));
    harness::wait_for_workers(&quickack, 2);
    for round in 0..9 {
        let old = addresses[1 + round % 3];
        let mut client = quickack.client();
        (0..20).for_each(|key| client.ask(&format!("get key{key}\r\n"), "END\r\n"));
        // The old server must have counts; otherwise the test proves nothing.
        let done = of_server(&quickack, port, old);
        assert!(done.iter().any(|(name, count)| name == "requests" && *count > 0), "{done:?}");
        // The id is free when the old server is gone, and is reused when the new one is added.
        quickack.rewrite(&harness::text(2, &[&stats], &addresses[..1], &[]));
        quickack.admin_ok(&["reload", "--allow-remap"]);
        let new = addresses[1 + (round + 1) % 3];
        quickack.rewrite(&text(new));
        quickack.admin_ok(&["reload", "--allow-remap"]);
        let begun = of_server(&quickack, port, new);
        assert!(begun.len() > 20, "{begun:?}");
        let wrong: Vec<_> = begun.iter().filter(|(_, count)| *count != 0).collect();
        assert!(wrong.is_empty(), "round {round}: {wrong:?}");
    }
}

/// Returns each number shown about a server of the pool, from both sources.
fn of_server(quickack: &Quickack, port: SocketAddr, address: SocketAddr) -> Vec<(String, u64)> {
    fn numbers(name: &str, value: &Value, found: &mut Vec<(String, u64)>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(name, value)| numbers(name, value, found)),
            Value::Number(number) => found.push((name.to_string(), number.as_u64().unwrap())),
            _ => {}
        }
    }
    let json = harness::stats(quickack);
    let servers = json["pools"][0]["servers"].as_array().expect("a list of servers");
    let label = Value::from(address.to_string());
    let ours = servers.iter().find(|server| server["label"] == label);
    let theirs: Value = serde_json::from_str(&read_all(port)).expect("it is JSON");
    let mut found = Vec::new();
    numbers("", ours.unwrap_or_else(|| panic!("no {label} in {json:#}")), &mut found);
    numbers("", &theirs["alpha"][address.to_string()], &mut found);
    found
}

fn read_all(address: SocketAddr) -> String {
    let mut text = String::new();
    Client::connect(address).stream.read_to_string(&mut text).expect("it answers and closes");
    text
}

/// Returns nutcracker's statistics of a pool `alpha` in front of the same server.
fn nutcrackers(memcached: &Memcached, other_pool: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder for its configuration");
    let file = folder.path().join("nutcracker.yml");
    let (listen, stats) = (free_address(), free_address());
    let text = format!("alpha:\n  listen: {listen}\n  servers:\n   - {}:1\n", memcached.address);
    std::fs::write(&file, text + other_pool).expect("a new file in an own folder");
    let mut command = Command::new("nutcracker");
    command.env("PATH", "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin");
    command.arg("-c").arg(&file).args(["-a", "127.0.0.1", "-s", &stats.port().to_string()]);
    let mut nutcracker = Process::start("nutcracker", &mut command);
    assert!(nutcracker.wait_to_accept(stats), "{}", nutcracker.stderr_text());
    serde_json::from_str(&read_all(stats)).expect("it is JSON")
}

/// Collects the paths of `one` that are missing in `other`, or have another kind of value.
fn compare(one: &Value, other: &Value, path: String, missing: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(all)) => {
            for (name, value) in one {
                let path = format!("{path}/{name}");
                match all.get(name) {
                    Some(other) => compare(value, other, path, missing),
                    None => missing.push(path),
                }
            }
        }
        (Value::Number(_), Value::Number(_)) | (Value::String(_), Value::String(_)) => {}
        _ => missing.push(path),
    }
}
