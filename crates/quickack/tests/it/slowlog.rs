//! The slow log: requests that are slow for a known reason, and whether it names the reason.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::Options;
use testkit::process::{Quickack, answer_lines, facts, listen, wait_until};

use super::harness;
use super::redis::model::{Model, Turn};

/// Longer than the threshold of these tests, which nothing reaches by itself. A cause is a
/// phase of a quarter of this at least, and no machine is so busy that it adds one.
const LONG: Duration = Duration::from_millis(800);
const THRESHOLD: &str = "slowlog_threshold: 300ms";

fn entries(quickack: &Quickack) -> Vec<Value> {
    let text = quickack.ask("slowlog --json");
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    json["slow"].as_array().expect("a list").clone()
}

/// Waits for an entry with this cause, and returns it.
#[track_caller]
fn wait_for(quickack: &Quickack, cause: &str) -> Value {
    let mut found = None;
    let has_it = |entry: &Value| {
        entry["causes"].as_array().is_some_and(|causes| causes.contains(&cause.into()))
    };
    wait_until(&format!("{cause} in the slow log: {:?}", entries(quickack)), || {
        found = entries(quickack).into_iter().find(has_it);
        found.is_some()
    });
    found.expect("it was waited for")
}

/// A server that answers each read of a key as the test says.
fn server(answer: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    listen(move |mut stream| {
        stream.set_nodelay(true).expect("it is TCP");
        let mut chunk = [0; 1024];
        while let Ok(len) = stream.read(&mut chunk)
            && len > 0
        {
            match chunk.starts_with(b"version") {
                true => stream.write_all(b"VERSION 1.6.18\r\n").expect("the proxy is there"),
                false => answer(&mut stream),
            }
        }
    })
}

fn causes(entry: &Value) -> Vec<&str> {
    let causes = entry["causes"].as_array().expect("a list");
    causes.iter().map(|cause| cause.as_str().expect("a word")).collect()
}

#[test]
fn a_slow_server_is_named_with_the_client_the_command_and_the_key() {
    let address = server(|stream| {
        thread::sleep(LONG);
        stream.write_all(b"END\r\n").expect("the proxy is there");
    });
    let quickack = harness::start(1, &[], &[address], &[THRESHOLD, "slowlog_keys: full"]);
    let mut client = quickack.client();
    client.ask("get some-key\r\n", "END\r\n");
    let entry = wait_for(&quickack, "server");
    assert_eq!(causes(&entry), ["server"], "{entry:#}");
    let from = client.stream.local_addr().expect("it is connected").to_string();
    for (name, expected) in [
        ("client", from.as_str()),
        ("command", "get"),
        ("key", "some-key"),
        ("pool", "alpha"),
        ("server", &address.to_string()),
    ] {
        assert_eq!(entry[name], expected, "{name} of {entry:#}");
    }
    let server_us = entry["phase_us"]["server"].as_u64().expect("a number");
    assert!(server_us >= LONG.as_micros() as u64 - 10_000, "{entry:#}");
    assert_eq!((&entry["worker"], &entry["asked_again"]), (&0.into(), &false.into()));
    let text = quickack.ask("slowlog --limit 1");
    assert!(text.contains("the server took long") && text.contains("get some-key"), "{text}");
    // The directives are live, and a reset hides what there was.
    quickack.admin_ok(&["slowlog", "--reset"]);
    assert_eq!(entries(&quickack), [Value::Null; 0]);
    quickack.admin_ok(&["set", "alpha.slowlog_keys=hash"]);
    client.ask("get some-key\r\n", "END\r\n");
    let entry = wait_for(&quickack, "server");
    assert!(entry["key"].as_str().is_some_and(|key| key.starts_with('#')), "{entry:#}");
    quickack.admin_ok(&["slowlog", "--reset"]);
    quickack.admin_ok(&["set", "alpha.slowlog_threshold=off"]);
    client.ask("get some-key\r\n", "END\r\n");
    // If it had been noted, it would be there before the next one.
    quickack.admin_ok(&["set", "alpha.slowlog_threshold=300ms"]);
    client.ask("get other-key\r\n", "END\r\n");
    wait_for(&quickack, "server");
    assert_eq!(entries(&quickack).len(), 1, "off: none was noted");
}

#[test]
fn a_request_in_pieces_is_named() {
    let (_memcached, quickack) = harness::field(1, &[], &[THRESHOLD]);
    let mut client = quickack.client();
    client.send("get ");
    thread::sleep(LONG);
    client.ask("k\r\n", "END\r\n");
    let entry = wait_for(&quickack, "request_in_pieces");
    assert_eq!(causes(&entry), ["request_in_pieces"], "{entry:#}");
}

#[test]
fn a_reply_in_pieces_is_named() {
    let address = server(|stream| {
        stream.write_all(b"VALUE k 0 4\r\nab").expect("the proxy is there");
        thread::sleep(LONG);
        stream.write_all(b"cd\r\nEND\r\n").expect("the proxy is there");
    });
    let quickack = harness::start(1, &[], &[address], &[THRESHOLD]);
    quickack.client().ask("get k\r\n", "VALUE k 0 4\r\nabcd\r\nEND\r\n");
    let entry = wait_for(&quickack, "reply_in_pieces");
    assert_eq!(causes(&entry), ["reply_in_pieces"], "{entry:#}");
}

#[test]
fn a_client_that_reads_slowly_is_named() {
    let (_memcached, quickack) = harness::field(1, &[], &[THRESHOLD]);
    let mut client = quickack.client();
    let value = "x".repeat(900_000);
    client.ask(&format!("set k 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    client.send("get k\r\n".repeat(20));
    thread::sleep(LONG);
    let answer = format!("VALUE k 0 {}\r\n{value}\r\nEND\r\n", value.len());
    (0..20).for_each(|_| client.ask("", &answer));
    wait_for(&quickack, "client_reads_slowly");
}

#[test]
fn a_full_queue_is_named() {
    let address = listen(|stream| {
        answer_lines(stream, |line| match line.starts_with("set") {
            true => Some(String::new()),
            false => {
                thread::sleep(Duration::from_millis(15));
                Some("STORED\r\n".to_string())
            }
        });
    });
    let quickack = harness::start(1, &[], &[address], &[THRESHOLD, "hold_after: off"]);
    let mut client = quickack.client();
    let one = format!("set k 0 0 20000\r\n{}\r\n", "x".repeat(20_000));
    client.send(one.repeat(60));
    client.ask("", &"STORED\r\n".repeat(60));
    wait_for(&quickack, "queue");
}

/// A worker that is stopped while it works has a turn that is as long as that.
#[test]
fn a_long_turn_is_named_before_memcached() {
    let (_memcached, quickack) = harness::field(1, &[], &["slowlog_threshold: 50ms"]);
    let load = harness::load(&quickack, 16, Options { depth: 3, keys: 12, ..Options::default() });
    let worker = harness::workers(&quickack)[&0].pid;
    wait_until("a request waited for a long turn", || {
        // It works, or is about to.
        wait_until("it has work", || facts::state_of(worker) == Some('R'));
        testkit::process::send(worker, Signal::STOP);
        // Short, because it has to be stopped in the midst of a turn: that takes many tries.
        thread::sleep(Duration::from_millis(80));
        testkit::process::send(worker, Signal::CONT);
        entries(&quickack).iter().any(|one| causes(one).contains(&"long_turn"))
    });
    load.stop();
}

#[test]
fn a_slow_command_is_named() {
    let model = Model::start(|words| {
        if words.starts_with("sort") {
            thread::sleep(LONG);
        }
        Turn::Say(b"*0\r\n".to_vec())
    });
    let quickack = super::redis::quickack(&[model.address], &[THRESHOLD]);
    let mut client = quickack.client();
    client.ask("SORT k\r\n", "*0\r\n");
    let entry = wait_for(&quickack, "slow_command");
    assert_eq!((causes(&entry), &entry["command"]), (vec!["slow_command"], &"sort".into()));
}

#[test]
fn the_slow_log_outlives_a_worker() {
    let (_memcached, quickack) = harness::field(1, &[], &[THRESHOLD, "slowlog_keys: none"]);
    let mut client = quickack.client();
    client.send("get ");
    thread::sleep(LONG);
    client.ask("k\r\n", "END\r\n");
    let before = wait_for(&quickack, "request_in_pieces");
    assert_eq!((&before["key"], &before["key_len"]), (&Value::Null, &1.into()));
    let old = harness::workers(&quickack)[&0].pid;
    testkit::process::send(old, Signal::KILL);
    wait_until("a successor serves", || {
        let workers = harness::workers(&quickack);
        workers.get(&0).is_some_and(|one| one.pid != old && one.is_serving())
    });
    let after = entries(&quickack);
    assert_eq!((after.len(), &after[0]["command"]), (1, &before["command"]));
}
