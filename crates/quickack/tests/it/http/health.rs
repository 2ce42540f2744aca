//! `/healthz` and `/readyz`: 503 and what is missing, and 200 when it is there again.

use std::net::SocketAddr;

use rustix::process::Signal;
use testkit::process::{
    Client, Memcached, Quickack, free_address, freeze, send, silent, wait_until,
};

use super::client::try_get;
use super::*;
use crate::harness::workers;

#[test]
fn a_proxy_is_not_ready_while_a_pool_has_no_server_that_is_up_before_memcached() {
    let memcached = Memcached::start();
    let (mine, place) = (free_address(), free_address());
    let pool = |name: &str, server: SocketAddr, required: &str| {
        format!("{name}:\n  listen: 127.0.0.1:0\n  required: {required}\n  servers: [{server}:1]\n")
    };
    let config = |required: &str| {
        [
            "global:\n  http: 127.0.0.1:0\n".to_string(),
            pool("alpha", memcached.address, "yes"),
            pool("beta", mine, "yes"),
            pool("gamma", place, required),
        ]
        .concat()
    };
    let quickack = Quickack::start(QUICKACK, &config("yes"));
    let http = address(&quickack);
    wait_for_at(http, "/readyz", 200, "ready\n");
    let fail = |pool: &str| {
        let mut client = Client::connect(quickack.address_of(pool));
        client.send("get a\r\n");
        assert!(client.line().starts_with("SERVER_ERROR "));
    };
    fail("beta");
    fail("gamma");
    wait_for_at(
        http,
        "/readyz",
        503,
        "pool beta has no server that is up\npool gamma has no server",
    );
    wait_for_at(http, "/healthz", 200, "healthy\n");
    // Nobody asks it, and a probe finds it.
    let back = Memcached::start_on(mine).expect("its port is free");
    wait_for_at(http, "/readyz", 503, "not ready:\npool gamma has no server that is up\n");
    quickack.rewrite(&config("no"));
    quickack.admin_ok(&["reload"]);
    wait_for_at(http, "/readyz", 200, "ready\n");
    quickack.admin_ok(&["set", "gamma.required=yes"]);
    wait_for_at(http, "/readyz", 503, "pool gamma");
    drop(back);
}

#[test]
fn a_server_in_maintenance_is_not_up_and_shows_its_state_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(2, &[], &[memcached.address], &[]);
    let http = address(&quickack);
    wait_for_at(http, "/readyz", 200, "ready\n");
    let name = format!("alpha/{}", memcached.address);
    let state = |state: &str, up: u8| {
        let up = format!("quickack_server_up{{pool=\"alpha\",server=\"{}\"}} {up}\n", &name[6..]);
        wait_for_at(http, "/metrics", 200, &up);
        let is = format!("server=\"{}\",state=\"{state}\"}} 1\n", &name[6..]);
        wait_for_at(http, "/metrics", 200, &is);
    };
    state("ready", 1);
    quickack.admin_ok(&["server", &name, "maint"]);
    state("maint", 0);
    wait_for_at(http, "/readyz", 503, "pool alpha has no server that is up\n");
    quickack.admin_ok(&["server", &name, "drain"]);
    state("drain", 1);
    wait_for_at(http, "/readyz", 200, "ready\n");
}

#[test]
fn workers_and_a_master_that_do_not_move_are_named_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(2, &["hang_timeout: 0"], &[memcached.address], &[]);
    harness::wait_for_workers(&quickack, 2);
    let http = address(&quickack);
    let pids: Vec<u32> = workers(&quickack).values().map(|one| one.pid).collect();
    freeze(pids[1]);
    wait_for_at(http, "/readyz", 503, "worker 1 has not moved for ");
    wait_for_at(http, "/healthz", 200, "healthy");
    freeze(pids[0]);
    wait_for_at(http, "/healthz", 503, "no worker serves clients\n");
    pids.iter().for_each(|pid| send(*pid, Signal::CONT));
    wait_for_at(http, "/readyz", 200, "ready");
    quickack.process.freeze();
    wait_for_at(http, "/healthz", 503, "the master has not moved for ");
    quickack.process.thaw();
    wait_for_at(http, "/healthz", 200, "healthy");
}

/// The balancer is told before the last client is gone; then the process ends with the master.
#[test]
fn a_proxy_that_drains_says_so_to_its_end() {
    let (_listener, server) = silent();
    let quickack = start(1, &["shutdown_timeout: 30s"], &[server], &["timeout: 60000"]);
    let http = address(&quickack);
    wait_for_at(http, "/readyz", 200, "ready");
    let mut client = quickack.client();
    client.send("get a\r\n");
    wait_until("the request is there", || harness::stats(&quickack)["totals"]["requests"] == 1);
    let process = running(&quickack);
    quickack.process.signal(Signal::TERM);
    wait_for_at(http, "/readyz", 503, "the proxy is draining\n");
    quickack.process.signal(Signal::TERM);
    wait_until("it has ended with the master", || {
        std::fs::metadata(format!("/proc/{process}")).is_err()
    });
    assert!(try_get(http, "/readyz").is_none());
}

#[test]
fn a_proxy_without_workers_is_neither_ready_nor_healthy_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(1, &[], &[memcached.address], &[]);
    let http = address(&quickack);
    wait_for_at(http, "/readyz", 200, "ready");
    quickack.process.signal(Signal::WINCH);
    wait_for_at(http, "/healthz", 503, "no worker serves clients");
    quickack.admin_ok(&["reload"]);
    wait_for_at(http, "/readyz", 200, "ready");
}

#[test]
fn a_pool_whose_socket_was_removed_is_not_ready_before_memcached() {
    let memcached = Memcached::start();
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("pool.sock");
    let text = format!(
        "global:\n  http: 127.0.0.1:0\nalpha:\n  listen: {}\n  servers: [{}:1]\n",
        socket.display(),
        memcached.address
    );
    let quickack = Quickack::start(QUICKACK, &text);
    let mut http = None;
    wait_until("it says where it serves HTTP", || {
        http = quickack
            .process
            .stderr_text()
            .lines()
            .find_map(|line| line.split_once("HTTP on ")?.1.parse().ok());
        http.is_some()
    });
    let http = http.expect("it was waited for");
    wait_for_at(http, "/readyz", 200, "ready");
    std::fs::remove_file(&socket).expect("it is there");
    wait_for_at(http, "/readyz", 503, "pool alpha: its socket is not at ");
    quickack.admin_ok(&["reload"]);
    wait_for_at(http, "/readyz", 200, "ready");
}
