//! Retries against a frozen memcached, through one worker and several: a change is executed once.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use testkit::process::{Client, Quickack, wait_until};

use super::harness::{field, total, wait_for_workers};

/// The time that a client waits for a server: longer than that in which an end belongs to the
/// request before it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sends a request, waits until a worker has read it and then for `PATIENCE` without an answer, and
/// closes.
fn try_in_vain(quickack: &Quickack, request: &str) {
    let queued = || total(quickack, "messages_total");
    let before = queued();
    let mut client = quickack.client();
    client.send(request);
    wait_until("it waits for the server", || queued() > before);
    hang_up(client);
}

fn hang_up(mut client: Client) {
    client.stream.set_read_timeout(Some(PATIENCE)).expect("a deadline that is not zero");
    let error = client.stream.read(&mut [0; 64]).expect_err("the server is frozen");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

/// Tries in vain, and waits until the server was sent the request and counts as silent. On a busy
/// machine both take time.
fn try_first_in_vain(quickack: &Quickack, request: &str) {
    let mut client = quickack.client();
    client.send(request);
    wait_until("the server has it", || total(quickack, "inflight") > 0);
    wait_until("it is silent", || total(quickack, "holding_workers") > 0);
    hang_up(client);
}

/// Sends `tries` of the same append while the server is frozen: the first is sent to it, the others
/// are held and cancelled. Returns how often it was executed when the server is awake again.
fn check_retries(workers: usize, tries: usize, append: impl Fn(&str) -> String, done: &str) {
    let (memcached, quickack) = field(workers, &[], &[]);
    wait_for_workers(&quickack, workers);
    // Most workers have a link by now, and some may have none.
    let mut clients: Vec<Client> = (0..4 * workers).map(|_| quickack.client()).collect();
    clients.iter_mut().for_each(|client| client.ask("set k 0 0 1\r\n0\r\n", "STORED\r\n"));
    memcached.process.freeze();
    try_first_in_vain(&quickack, &append("x"));
    for _ in 1..tries {
        try_in_vain(&quickack, &append("x"));
    }
    // A client that waits is served when the server wakes.
    clients[0].send(append("y"));
    memcached.process.thaw();
    clients[0].expect(done);
    wait_until("what was given up is dropped", || {
        total(&quickack, "messages_dropped_total") == tries as u64 - 1
    });
    let mut direct = memcached.client();
    direct.ask("get k\r\n", "VALUE k 0 3\r\n0xy\r\nEND\r\n");
    let held = total(&quickack, "messages_held_total");
    assert!(held >= tries as u64 - 1, "{held} messages held");
    assert_eq!(memcached.stat("cmd_set"), 4 * workers as u64 + 2);
}

#[test]
fn a_retry_against_a_frozen_memcached_is_applied_once() {
    check_retries(1, 3, classic, "STORED\r\n");
}

#[test]
fn a_retry_at_another_worker_is_applied_once() {
    check_retries(4, 6, classic, "STORED\r\n");
}

/// A worker without a handshake does not know the server's capabilities yet.
#[test]
fn a_meta_retry_at_another_worker_is_applied_once() {
    check_retries(4, 6, |data| format!("ms k 1 MA\r\n{data}\r\n"), "HD\r\n");
}

fn classic(data: &str) -> String {
    format!("append k 0 0 1\r\n{data}\r\n")
}

/// A request without an answer is not retried: each copy is executed, although its client left.
#[test]
fn a_noreply_to_a_frozen_memcached_is_applied_though_its_client_left() {
    let (memcached, quickack) = field(1, &[], &[]);
    let mut client = quickack.client();
    client.ask("set k 0 0 1\r\n0\r\n", "STORED\r\n");
    memcached.process.freeze();
    try_first_in_vain(&quickack, "append k 0 0 1\r\nx\r\n");
    quickack.client().send("append k 0 0 1 noreply\r\ny\r\n");
    wait_until("it is held", || total(&quickack, "messages_held_total") == 1);
    client.send("get k\r\n");
    memcached.process.thaw();
    client.expect("VALUE k 0 3\r\n0xy\r\nEND\r\n");
}
