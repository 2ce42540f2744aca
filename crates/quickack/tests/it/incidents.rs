//! Ten incidents. For each, a page or an answer that an operator looks at first names the cause:
//! `quickack info`, `top`, `slowlog` or `clients`. Each word that is looked for is one that
//! docs/guide/when-it-hurts.md sends an operator to.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use testkit::process::{Memcached, Quickack, free_address, listen, send, wait_until};

use super::harness::{self, workers};
use super::http::page;
use super::logins::private;

/// Waits until an answer has all of these words.
#[track_caller]
fn names(quickack: &Quickack, verb: &[&str], words: &[&str]) {
    let mut text = String::new();
    wait_until(&format!("{verb:?} has {words:?}"), || {
        text = quickack.admin_ok(verb);
        words.iter().all(|word| text.contains(word))
    });
}

/// Waits until all the answers that have it name a problem.
#[track_caller]
fn problem(quickack: &Quickack, words: &[&str]) {
    for verb in [&["info"][..], &["stats"], &["top", "--once"], &["top", "--once", "--json"]] {
        names(quickack, verb, words);
    }
}

#[test]
fn a_dead_server_is_named() {
    let dead = free_address();
    let quickack = harness::start(1, &[], &[dead], &[]);
    let mut client = quickack.client();
    client.send("get a\r\n");
    assert!(client.line().starts_with("SERVER_ERROR"));
    problem(&quickack, &[&format!("server {dead} of pool alpha is down"), "connect failed"]);
}

/// The slow log is off by default.
#[test]
fn a_slow_server_is_named() {
    let address = listen(|mut stream: TcpStream| {
        let mut chunk = [0; 1024];
        while let Ok(len) = stream.read(&mut chunk)
            && len > 0
        {
            let is_version = chunk.starts_with(b"version");
            if chunk.starts_with(b"get slow") {
                thread::sleep(LONG);
            }
            let answer: &[u8] = if is_version { b"VERSION 1.6.18\r\n" } else { b"END\r\n" };
            stream.write_all(answer).expect("the proxy is there");
        }
    });
    let quickack = harness::start(1, &[], &[address], &["slowlog_threshold: 300ms"]);
    // The slow one finds a link.
    let mut client = quickack.client();
    client.ask("get quick\r\n", "END\r\n");
    client.ask("get slow\r\n", "END\r\n");
    let server = address.to_string();
    names(&quickack, &["slowlog"], &["the server took long", &server]);
    names(&quickack, &["stats"], &["requests_slow 1"]);
}

#[test]
fn a_greedy_client_is_named() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let mut others: Vec<_> = (0..3).map(|_| quickack.client()).collect();
    let mut greedy = quickack.client();
    let address = greedy.stream.local_addr().expect("it is connected").to_string();
    for _ in 0..20 {
        others.iter_mut().for_each(|other| other.ask("get a\r\n", "END\r\n"));
        greedy.ask(&"get a\r\n".repeat(100), &"END\r\n".repeat(100));
    }
    let busiest = quickack.admin_ok(&["clients", "--busiest"]);
    assert!(busiest.lines().nth(1).is_some_and(|line| line.contains(&address)), "{busiest}");
    names(&quickack, &["top", "--once"], &["BUSIEST CLIENT", &address]);
}

#[test]
fn clients_that_split_their_requests_are_named() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let mut client = quickack.client();
    // A worker that does not run meanwhile finds both pieces at once.
    let is_named = || quickack.admin_ok(&["clients", "--in-pieces"]).contains("127.0.0.1 ");
    wait_until("it is named", || {
        client.send("set a 0 0 1\r\n");
        thread::sleep(Duration::from_millis(2));
        client.ask("1\r\n", "STORED\r\n");
        is_named()
    });
    names(&quickack, &["top", "--once"], &["IN PIECES"]);
}

#[test]
fn a_bad_reload_is_named() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let text = fs::read_to_string(quickack.file()).unwrap();
    quickack.rewrite(&format!("{text}  timeot: 1s\n"));
    send(quickack.process.id(), Signal::HUP);
    problem(&quickack, &["the last reload", "was refused: error: unknown directive `timeot`"]);
    quickack.rewrite(&text);
    quickack.admin_ok(&["reload"]);
    assert!(!quickack.admin_ok(&["info"]).contains("problem"), "it is over");
}

/// The log cannot tell of it.
#[test]
fn a_full_disk_is_named() {
    let memcached = Memcached::start();
    let folder = tempfile::tempdir().unwrap();
    let [log, access] = ["log", "access.log"].map(|name| folder.path().join(name));
    for path in [&log, &access] {
        symlink("/dev/full", path).unwrap();
    }
    let file = format!("access_log_file: {}", access.display());
    let global = [&*file, "http: 127.0.0.1:0"];
    let quickack = harness::start(1, &global, &[memcached.address], &["access_log: all"]);
    quickack.client().ask("get a\r\n", "END\r\n");
    quickack.admin_ok(&["set", &format!("log={}", log.display())]);
    let of_log = format!("lines of the log ({}) were lost", log.display());
    problem(&quickack, &[&of_log, "No space left on device", "lines of the access log were lost"]);
    let page = page(&quickack, "/metrics");
    let lost = page.lines().find_map(|line| line.strip_prefix("quickack_log_lines_lost_total "));
    assert!(lost.is_some_and(|count| count != "0"), "{lost:?}");
}

#[test]
fn a_name_that_does_not_resolve_is_named() {
    let text = "global:\n  workers: 1\nalpha:\n  listen: 127.0.0.1:0\n  servers:\n    - \
                cache.invalid:11211:1 one\n";
    let quickack = Quickack::start(super::QUICKACK, text);
    problem(&quickack, &["server one of pool alpha is down", "does not resolve"]);
}

#[test]
fn a_worker_that_dies_again_and_again_is_named() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    wait_until("it is missing for a while", || {
        if let Some(worker) = workers(&quickack).get(&0) {
            send(worker.pid, Signal::SEGV);
        }
        let info = quickack.admin_ok(&["info"]);
        info.contains("worker 0 is missing: it died ") && info.contains("(signal: 11 (SIGSEGV)")
    });
    let top = quickack.admin_ok(&["top", "--once"]);
    assert!(top.contains("worker 0 ") && top.contains("SIGSEGV"), "{top}");
    // Also when it is there again.
    harness::wait_for_workers(&quickack, 2);
    problem(&quickack, &["worker 0 died ", "SIGSEGV", "and was started again"]);
    names(&quickack, &["workers"], &["DEATHS", "worker 0 died "]);
}

#[test]
fn logins_that_fail_are_named() {
    let memcached = Memcached::start();
    let folder = private("users", "shop:correct\n");
    let users = format!("users: {}", folder.path().join("users").display());
    let quickack = harness::start(1, &[], &[memcached.address], &[&users]);
    let mut client = quickack.client();
    client.ask("set a 0 0 10\r\nshop wrong\r\n", "CLIENT_ERROR authentication failure\r\n");
    names(&quickack, &["top", "--once"], &["Logins with a wrong name or password"]);
    wait_until("the log names address and user", || {
        let log = quickack.process.stderr_text();
        log.contains("a login to pool alpha failed, from 127.0.0.1 as \"shop\" (wrong password)")
    });
}

#[test]
fn a_memory_that_is_full_is_named() {
    let memcached = Memcached::start();
    let servers: [SocketAddr; 1] = [memcached.address];
    let quickack = harness::start(1, &["memory_max: 16m"], &servers, &[]);
    let mut client = quickack.client();
    let value = "x".repeat(1_000_000);
    client.ask(&format!("set k 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    // Clients that do not read.
    let mut clients: Vec<_> = (0..40).map(|_| quickack.client()).collect();
    clients.iter_mut().for_each(|client| client.send("get k\r\n".repeat(20)));
    names(&quickack, &["clients", "--sort", "held"], &["KEPT", "shared"]);
    wait_until("the log says what is done about it", || {
        quickack.process.stderr_text().contains("that this worker may use (memory_max)")
    });
    names(&quickack, &["top", "--once"], &["Replies dropped because `memory_max` was reached"]);
}

/// Longer than the threshold of slow requests, and so long that nothing else is most of it on a
/// busy machine.
const LONG: Duration = Duration::from_millis(800);
