//! The stall: Nagle on one side and delayed ACK on the other cost 40 ms. It occurs with `quickack:
//! off` and not with `partial`, and `partial` costs nothing where no stall occurs.
//!
//! A test judges the scripts' rows as follows: **cured** is at most 2 slow samples and a median
//! below 5 ms; **stalls** is at least 90 % slow. The scripts leave out the first sample of a
//! connection, which proves nothing.

mod capture;
mod clients;
mod phases;
mod segments;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{getpeername, getsockname, sockopt};
use rustix::process::Signal;
use testkit::process::{
    Client, DEADLINE, FakeMemcached, Family, Memcached, Quickack, Redis, script,
};

use super::{QUICKACK, config, quickack};

/// One line of a script's report.
#[derive(Debug)]
struct Row {
    name: String,
    median_ms: f64,
    slow: u32,
    samples: u32,
    /// php-memcached's result code.
    rc: Option<u32>,
}

impl Row {
    /// Parses `get: cmd|crlf first=0.20 med=0.10 max=41.0 slow=1/20`, with an optional `rc=16` at
    /// the end.
    fn parse(line: &str) -> Row {
        let figure = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            rest.split_whitespace().next()
        };
        let (slow, samples) = figure("slow(>30ms)=")
            .or_else(|| figure("slow="))
            .and_then(|slow| slow.split_once('/'))
            .unwrap_or_else(|| panic!("{line}"));
        let end =
            line.find("first=").or_else(|| line.find("med=")).unwrap_or_else(|| panic!("{line}"));
        Row {
            name: line[..end].trim().to_string(),
            median_ms: figure("med=").and_then(|n| n.parse().ok()).expect("a number"),
            slow: slow.parse().expect("a number"),
            samples: samples.parse().expect("a number"),
            rc: figure("rc=").and_then(|n| n.parse().ok()),
        }
    }

    fn is_cured(&self) -> bool {
        self.slow <= 2 && self.median_ms < 5.0
    }

    fn stalls(&self) -> bool {
        self.slow * 10 >= self.samples * 9
    }
}

fn run_script(name: &str, address: SocketAddr, arguments: &[&str]) -> Vec<Row> {
    let mut command = Command::new("python3");
    command.arg(script(name)).args(["127.0.0.1", &address.port().to_string()]).args(arguments);
    rows(name, &mut command)
}

/// Returns a script's report, after it has ended with success.
fn rows(name: &str, command: &mut Command) -> Vec<Row> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {said}{errors}");
    said.lines().map(Row::parse).collect()
}

fn split_requests(mode: &str) -> Vec<Row> {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[&format!("quickack: {mode}")]);
    quickack.client().ask("set a 0 0 10\r\n0123456789\r\n", "STORED\r\n");
    let rows = run_script("wwr_ascii.py", quickack.address(), &["mc", "21"]);
    assert_eq!(rows.len(), 5, "{rows:?}");
    rows
}

fn split_redis_requests(mode: &str) -> Vec<Row> {
    let redis = Redis::start(Family::Redis70);
    let quickack = crate::redis::quickack(&[redis.address], &[&format!("quickack: {mode}")]);
    let rows = run_script("wwr_ascii.py", quickack.address(), &["redis", "21"]);
    assert_eq!(rows.len(), 3, "{rows:?}");
    rows
}

fn split_replies(mode: &str) -> Vec<Row> {
    let fake = FakeMemcached::start();
    let quickack = quickack(&[fake.address], &[&format!("quickack: {mode}")]);
    let rows = run_script("mcget.py", quickack.address(), &["1500,4000,10000,60000", "31"]);
    assert_eq!(rows.len(), 4, "{rows:?}");
    rows
}

/// A stall of 40 ms occurs every time; a late sample on a busy machine does not. So one run of
/// three in which each row is as expected proves it.
fn check(run: fn(&str) -> Vec<Row>, cure: &str, expected: fn(&Row) -> bool) {
    let mut last = Vec::new();
    for _ in 0..3 {
        last = run(cure);
        assert!(!last.is_empty(), "nothing was asked");
        if last.iter().all(expected) {
            return;
        }
    }
    panic!("three times not as expected with `quickack: {cure}`; at last {last:#?}");
}

fn check_cured(run: fn(&str) -> Vec<Row>) {
    check(run, "partial", Row::is_cured);
}

/// The control: without it, a test that finds no stall proves nothing. What is sent in one piece
/// does not stall.
fn check_stalls(run: fn(&str) -> Vec<Row>) {
    check(run, "off", |row| match row.name.starts_with("pipeline") {
        true => row.is_cured(),
        false => row.stalls(),
    });
}

#[test]
fn scripts_that_split_a_request_over_memcached_are_cured() {
    check_cured(split_requests);
}

#[test]
fn scripts_that_split_a_request_over_memcached_stall_without_the_cure() {
    check_stalls(split_requests);
}

#[test]
fn scripts_that_split_a_request_over_redis_are_cured() {
    check_cured(split_redis_requests);
}

#[test]
fn scripts_that_split_a_request_over_redis_stall_without_the_cure() {
    check_stalls(split_redis_requests);
}

#[test]
fn scripts_behind_a_server_that_splits_its_replies_are_cured() {
    check_cured(split_replies);
}

#[test]
fn scripts_behind_a_server_that_splits_its_replies_stall_without_the_cure() {
    check_stalls(split_replies);
}

/// Returns its TCP sockets: listeners, and connected ones.
fn tcp_sockets(quickack: &Quickack) -> (Vec<rustix::fd::OwnedFd>, Vec<rustix::fd::OwnedFd>) {
    let is_tcp = |socket: &rustix::fd::OwnedFd| {
        getsockname(socket).is_ok_and(|name| SocketAddr::try_from(name).is_ok())
    };
    let sockets = quickack.worker_process().sockets().into_iter().filter(is_tcp);
    sockets.partition(|socket| sockopt::socket_acceptconn(socket).expect("the option exists"))
}

/// A client's socket may inherit the option from its listener. Here the listener has the opposite
/// value, so the value on the others was set on them.
fn check_nodelay(directive: &str, expected: bool) {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|memcached| memcached.address);
    let quickack = quickack(&addresses, &["preconnect: true", directive]);
    for listener in tcp_sockets(&quickack).0 {
        sockopt::set_tcp_nodelay(&listener, !expected).expect("the option exists");
    }
    let mut clients: Vec<Client> = (0..3).map(|_| quickack.client()).collect();
    for client in &mut clients {
        for n in 0..20 {
            client.ask(&format!("get key{n}\r\n"), "END\r\n");
        }
    }
    let (listeners, connected) = tcp_sockets(&quickack);
    assert!(!listeners.is_empty());
    let mut links = 0;
    for socket in &connected {
        let nodelay = sockopt::tcp_nodelay(socket).expect("the option exists");
        assert_eq!(nodelay, expected, "{directive}: {:?}", getpeername(socket));
        let peer = getpeername(socket).ok().and_then(|peer| SocketAddr::try_from(peer?).ok());
        links += usize::from(peer.is_some_and(|peer| addresses.contains(&peer)));
    }
    let each = 2 * quickack.workers().len();
    assert_eq!((connected.len(), links), (3 + each, each));
}

#[test]
fn nodelay_is_set_on_every_socket_by_itself_towards_memcached_and_clients() {
    check_nodelay("tcp_nodelay: on", true);
}

#[test]
fn nodelay_is_cleared_on_every_socket_towards_memcached_and_clients_if_asked() {
    check_nodelay("tcp_nodelay: off", false);
}

/// Returns every `setsockopt` from the first client to the end, as strace saw it.
fn traced(dialogue: impl Fn(&mut Client)) -> String {
    let memcached = Memcached::start();
    let folder = tempfile::tempdir().expect("a folder for the trace");
    let trace = folder.path().join("trace");
    let mut command = Command::new("strace");
    // With -D the tracer is the child, so the test's child is quickack itself; -f follows its
    // workers.
    command.args(["-D", "-f", "-e", "trace=setsockopt", "-o"]).arg(&trace).arg(QUICKACK);
    let mut quickack = Quickack::start_by(command, QUICKACK, &config(&[memcached.address], &[]));
    dialogue(&mut quickack.client());
    quickack.process.signal(Signal::TERM);
    assert!(quickack.process.wait_for_end().success());
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        // strace pads process ids to five digits.
        let end = format!("{:<5} +++ exited with 0 +++", quickack.process.id());
        if text.contains(&end) {
            assert!(text.contains("TCP_NODELAY"), "strace saw nothing:\n{text}");
            return text;
        }
        assert!(start.elapsed() < DEADLINE, "strace has not finished:\n{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn strace_sees_no_quickack_on_whole_requests() {
    let text = traced(|client| {
        for n in 0..200 {
            client.ask(&format!("set key{n} 0 0 4\r\nabcd\r\n"), "STORED\r\n");
            let value = format!("VALUE key{n} 0 4\r\nabcd\r\n");
            client.ask(&format!("get key{n}\r\n"), &format!("{value}END\r\n"));
            client.ask(
                &format!("get key{n} none\r\nget key{n}\r\n"),
                &format!("{value}END\r\n{value}END\r\n"),
            );
            client.ask(&format!("delete key{n}\r\n"), "DELETED\r\n");
        }
    });
    assert!(!text.contains("TCP_QUICKACK"), "{text}");
}

/// The control of the test above.
#[test]
fn strace_sees_quickack_on_requests_in_pieces() {
    let text = traced(|client| {
        // Nagle holds the second piece until the first has been acknowledged, so it arrives alone.
        client.stream.set_nodelay(false).expect("TCP has the option");
        for _ in 0..20 {
            client.send("set key 0 0 4\r\n");
            client.ask("abcd\r\n", "STORED\r\n");
        }
    });
    assert!(text.matches("TCP_QUICKACK").count() >= 15, "{text}");
}
