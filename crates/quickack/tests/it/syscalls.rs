//! The system calls of a worker under load are a committed list. A call outside the list is a
//! surprise: a wait for a lock, an opened file, a name lookup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use testkit::load::Options;
use testkit::process::{Client, Facts, Memcached, Process, Quickack, free_address, wait_until};

use super::QUICKACK;
use super::harness::{self, workers};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/syscalls.txt")
}

/// Returns strace's output about the workers while `busy` runs.
pub fn traced(workers: &[u32], busy: impl FnOnce()) -> String {
    let folder = tempfile::tempdir().expect("a folder for the trace");
    let trace = folder.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&trace);
    for pid in workers {
        command.args(["-p", &pid.to_string()]);
    }
    let mut strace = Process::start("strace", &mut command);
    strace.wait_for("that it is attached", |said| {
        (said.matches("attached").count() == workers.len()).then_some(())
    });
    busy();
    // strace detaches and ends.
    strace.signal(Signal::INT);
    strace.wait_for_end();
    fs::read_to_string(&trace).expect("strace has written")
}

/// Parses `1234 epoll_wait(…) = 1` and `<... epoll_wait resumed>…`.
fn names(trace: &str) -> BTreeSet<&str> {
    let calls = trace.lines().filter_map(|line| {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let (name, _) = call.split_once('(')?;
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        (is_name(name) && !name.is_empty()).then_some(name)
    });
    calls.collect()
}

/// Lets clients connect and leave, store and read small and large values, and a link die and
/// return.
fn check(accept: &str) {
    let memcached = Memcached::start();
    let mut text = harness::text(2, &[&format!("accept: {accept}")], &[memcached.address], &[]);
    // No process listens there, so links to it are opened again and again.
    let beta = format!("beta:\n  listen: 127.0.0.1:0\n  servers: [{}:1]\n", free_address());
    text.push_str(&beta);
    let quickack = Quickack::start(QUICKACK, &text);
    harness::wait_for_workers(&quickack, 2);
    let workers: Vec<u32> = workers(&quickack).values().map(|worker| worker.pid).collect();
    let options = Options { rate: Some(1_000), depth: 2, value_max: 20_000, ..Options::default() };
    let load = harness::load(&quickack, 20, options);
    let trace = traced(&workers, || {
        load.wait_for_requests(1_000);
        for _ in 0..20 {
            quickack.client().ask("get nobody-has-this\r\n", "END\r\n");
            let mut client = Client::connect(quickack.address_of("beta"));
            client.send("get a\r\n");
            assert!(client.line().starts_with("SERVER_ERROR "));
        }
    });
    load.stop().assert_unharmed();
    judge(accept, &trace);
    let threads = Facts::of(workers).status("Threads");
    assert_eq!(threads, 2, "one thread a worker");
}

fn judge(accept: &str, trace: &str) {
    let seen = names(trace);
    let written = fs::read_to_string(golden()).unwrap_or_default();
    let listed: BTreeSet<&str> = written.lines().filter(|line| !line.starts_with('#')).collect();
    let odd: Vec<_> = seen.difference(&listed).collect();
    let (file, lines) = (golden(), shown(trace, &odd));
    assert!(odd.is_empty(), "{accept}: not in {}: {odd:?}\n{lines}", file.display());
    for name in ["epoll_pwait", "accept4", "connect"] {
        assert!(seen.contains(name), "strace saw no {name}: {seen:?}");
    }
    for line in trace.lines().filter(|line| line.contains(" socket(")) {
        assert!(line.contains("SOCK_NONBLOCK"), "a socket that may block: {line}");
    }
    for line in trace.lines().filter(|line| line.contains(" ppoll(")) {
        assert!(line.contains("{tv_sec=0, tv_nsec=0}"), "it waits outside its loop: {line}");
    }
    for line in trace.lines().filter(|line| line.contains(" fcntl(")) {
        assert!(!line.contains("F_SETLKW"), "it waits for a lock: {line}");
    }
}

/// Returns a worker's calls in their order, each in one line: strace tells of one in two if another
/// process calls meanwhile, and the result is in the second.
fn calls_of(pid: u32, trace: &str) -> Vec<String> {
    let mut begun = None;
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some(call) = line.strip_prefix(&format!("{pid} ")).map(str::trim_start) else {
            continue;
        };
        if let Some(head) = call.strip_suffix("<unfinished ...>") {
            begun = Some(head.to_string());
            continue;
        }
        let rest = call.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>"));
        calls.push(match rest {
            // Of a call that was under way when strace came, the head is missing.
            Some((name, rest)) => begun.take().unwrap_or(format!("{name}(")) + rest,
            None => call.to_string(),
        });
    }
    calls
}

#[test]
fn a_call_of_which_strace_tells_in_two_lines_is_one_call() {
    let trace = "7 <... epoll_pwait resumed>[], 64, 20, NULL, 8) = 0\n\
                 7 fcntl(5, F_OFD_SETLK, {l_type=F_WRLCK} <unfinished ...>\n\
                 77 read(3, \"\", 1) = 0\n\
                 7 <... fcntl resumed>) = 0\n\
                 7 accept4(4, NULL, NULL, SOCK_CLOEXEC) = 6\n";
    let calls = [
        "epoll_pwait([], 64, 20, NULL, 8) = 0",
        "fcntl(5, F_OFD_SETLK, {l_type=F_WRLCK} ) = 0",
        "accept4(4, NULL, NULL, SOCK_CLOEXEC) = 6",
    ];
    assert_eq!(calls_of(7, trace), calls);
}

fn is_data(name: &str) -> bool {
    ["read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg"].contains(&name)
}

/// Renders a line for each unexpected call.
fn shown(trace: &str, odd: &[&&str]) -> String {
    let line = |name: &&&str| trace.lines().find(|line| line.contains(&format!("{name}(")));
    odd.iter().filter_map(line).map(|line| format!("{line}\n")).collect()
}

#[test]
fn strace_sees_only_the_listed_calls_of_a_worker_at_the_gate_before_memcached() {
    check("gate");
}

#[test]
fn strace_sees_only_the_listed_calls_of_a_worker_with_reuseport_before_memcached() {
    check("reuseport");
}

#[test]
fn strace_sees_only_the_listed_calls_of_a_worker_with_the_mutex_before_memcached() {
    check("mutex");
}

/// The worker read it for the header's sake; its sender may be waiting for the ACK all the same.
#[test]
fn strace_sees_the_ack_of_half_a_request_that_came_with_a_header_before_memcached() {
    let (_memcached, quickack) = harness::field(1, &[], &["proxy_protocol: from [127.0.0.0/8]"]);
    let workers: Vec<u32> = workers(&quickack).values().map(|worker| worker.pid).collect();
    let flushed = || harness::stats(&quickack)["pools"][0]["acks_flushed_total"].as_u64();
    let trace = traced(&workers, || {
        let mut client = quickack.client();
        client.send("PROXY UNKNOWN\r\nget nobody");
        wait_until("the half is read", || flushed() == Some(1));
        client.send("-has-this\r\n");
        client.expect("END\r\n");
    });
    assert_eq!(flushed(), Some(1));
    assert_eq!(trace.matches("TCP_QUICKACK, [2]").count(), 1, "{trace}");
}

/// A worker with the mutex accepts, and releases it before it serves any client.
#[test]
fn strace_sees_no_busy_worker_with_the_mutex_before_memcached() {
    let (_memcached, quickack) = harness::field(2, &["accept: mutex"], &[]);
    let workers: Vec<u32> = workers(&quickack).values().map(|worker| worker.pid).collect();
    let load = harness::load(&quickack, 20, Options { rate: Some(2_000), ..Options::default() });
    let trace = traced(&workers, || {
        // Until each of them has taken some: who takes one has had the mutex.
        let mut clients = Vec::new();
        let before = harness::workers(&quickack);
        wait_until("both workers have new clients", || {
            let mut client = quickack.client();
            client.ask("get nobody-has-this\r\n", "END\r\n");
            clients.push(client);
            let now = harness::workers(&quickack);
            clients.len() >= 50 && now.iter().all(|(at, one)| one.clients > before[at].clients)
        });
        load.wait_for_requests(500);
    });
    load.stop().assert_unharmed();
    for pid in &workers {
        let (mut holds, mut held) = (false, 0);
        for call in calls_of(*pid, &trace) {
            if call.contains("F_WRLCK") && call.ends_with("= 0") {
                holds = true;
                held += 1;
            } else if call.contains("F_UNLCK") {
                holds = false;
            }
            let name = call.split('(').next().unwrap_or_default();
            assert!(!(holds && is_data(name)), "worker {pid} serves with the mutex held: {call}");
        }
        assert!(
            held > 0,
            "worker {pid} never had the mutex:\n{}",
            &trace[..trace.len().min(2_000)]
        );
    }
}
