//! Servers that have as many connections as they take.

use std::io::{Read, Write};
use std::net::TcpStream;

use testkit::process::{Memcached, on_free_port, wait_until};

use super::harness;

const FULL: &str = "ERROR Too many open connections";

/// Fills a server with connections of our own.
fn fill(memcached: &Memcached) -> Vec<TcpStream> {
    let mut all = Vec::new();
    loop {
        let mut one = testkit::process::connect(memcached.address);
        let mut said = [0; 7];
        // One that is refused may end before it is written to or read.
        let is_asked = one.write_all(b"version\r\n").is_ok();
        if !is_asked || one.read_exact(&mut said).is_err() || said != *b"VERSION" {
            return all;
        }
        all.push(one);
    }
}

/// A worker has its link, and the other one comes too late.
#[test]
fn a_full_memcached_is_not_down_for_the_worker_without_a_link() {
    let start = |address| Memcached::start_with(address, &["-c", "16", "-o", "maxconns_fast"]);
    let memcached = on_free_port(start);
    let eject = ["auto_eject_hosts: true", "server_failure_limit: 1"];
    let quickack = harness::start(2, &[], &[memcached.address], &eject);
    let (mut first, worker) = harness::client_of(&quickack);
    let direct = fill(&memcached);
    // A client of the other worker needs the link that cannot be made.
    let mut clients = Vec::new();
    let mut before = harness::workers(&quickack);
    let mut late = loop {
        let client = quickack.client();
        let mut at = worker;
        wait_until("a worker has it", || {
            let now = harness::workers(&quickack);
            let more = before.keys().copied().find(|n| now[n].clients > before[n].clients);
            at = more.unwrap_or(worker);
            more.is_some()
        });
        before = harness::workers(&quickack);
        if at != worker {
            break client;
        }
        clients.push(client);
    };
    for _ in 0..30 {
        late.send("get a\r\n");
        let line = late.line();
        assert!(line.contains(FULL) && line.contains("no further connection"), "{line}");
        first.ask("get a\r\n", "END\r\n");
    }
    let servers = quickack.admin_ok(&["servers"]);
    assert!(!servers.contains("ejected") && !servers.contains("down"), "{servers}");
    assert!(servers.contains(FULL), "{servers}");
    drop(direct);
    wait_until("there is room again", || {
        late.send("set a 0 0 1\r\nx\r\n");
        late.line().starts_with("STORED")
    });
}
