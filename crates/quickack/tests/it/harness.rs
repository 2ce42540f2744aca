//! The workers as `quickack workers --json` shows them, and helpers for several modules.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::Load;
use testkit::process::{Client, Memcached, Quickack, send, wait_until};

use super::QUICKACK;

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    pub pid: u32,
    pub state: String,
    /// Current number of clients.
    pub clients: u64,
    /// The configuration and the health state that it has installed.
    pub epoch: u64,
    pub health: u64,
}

impl Worker {
    pub fn is_serving(&self) -> bool {
        self.state == "serving"
    }
}

/// Returns all workers by number.
#[track_caller]
pub fn workers(quickack: &Quickack) -> BTreeMap<usize, Worker> {
    let text = quickack.ask("workers --json");
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let rows = json["workers"].as_array().unwrap_or_else(|| panic!("no workers in {text}"));
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap_or(0);
    let worker = |row: &Value| Worker {
        pid: number(row, "pid") as u32,
        state: row["state"].as_str().unwrap_or_default().to_string(),
        clients: number(row, "clients"),
        epoch: number(row, "config_epoch"),
        health: number(row, "health_epoch"),
    };
    rows.iter().map(|row| (number(row, "worker") as usize, worker(row))).collect()
}

/// Waits until exactly `count` workers serve.
#[track_caller]
pub fn wait_for_workers(quickack: &Quickack, count: usize) -> BTreeMap<usize, Worker> {
    let mut all = workers(quickack);
    wait_until(&format!("{count} workers serve; {}", quickack.process.stderr_text()), || {
        all = workers(quickack);
        all.len() == count && all.values().all(Worker::is_serving)
    });
    all
}

/// Kills a worker and waits until `count` serve again. The master says that it has another in its
/// place: before it does, what the dead one had counted still counts.
#[track_caller]
pub fn replace_worker(quickack: &Quickack, worker: u32, count: usize) {
    send(worker, Signal::KILL);
    wait_until("the master has another worker in its place", || {
        let now = workers(quickack);
        now.len() == count && now.values().all(|one| one.is_serving() && one.pid != worker)
    });
}

/// Returns the clients of each worker, once their sum is `count`.
#[track_caller]
pub fn wait_for_clients(quickack: &Quickack, count: u64) -> Vec<u64> {
    let mut clients = Vec::new();
    wait_until(&format!("the workers have {count} clients: {:?}", workers(quickack)), || {
        clients = workers(quickack).values().map(|worker| worker.clients).collect();
        clients.iter().sum::<u64>() == count
    });
    clients
}

/// Starts quickack with workers in front of one memcached; `global` and `pool` are further
/// directives.
pub fn field(workers: usize, global: &[&str], pool: &[&str]) -> (Memcached, Quickack) {
    let memcached = Memcached::start();
    let quickack = start(workers, global, &[memcached.address], pool);
    (memcached, quickack)
}

/// Starts quickack in front of running servers.
pub fn start(workers: usize, global: &[&str], servers: &[SocketAddr], pool: &[&str]) -> Quickack {
    let quickack = Quickack::start(QUICKACK, &text(workers, global, servers, pool));
    wait_for_workers(&quickack, workers);
    quickack
}

pub fn text(workers: usize, global: &[&str], servers: &[SocketAddr], pool: &[&str]) -> String {
    let mut text = format!("global:\n  workers: {workers}\n");
    global.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text + &super::config(servers, pool)
}

/// Starts a load whose connections are all served when it returns.
pub fn load(quickack: &Quickack, connections: usize, options: testkit::load::Options) -> Load {
    let load = Load::start(quickack.address(), connections, options);
    load.wait_for_everybody();
    load
}

/// Returns a client, and the number of the worker that serves it.
pub fn client_of(quickack: &Quickack) -> (Client, usize) {
    with_worker(quickack, || {
        let mut client = quickack.client();
        client.ask("get nobody-has-this\r\n", "END\r\n");
        client
    })
}

/// Connects a client; returns it and the number of the worker that serves it.
pub fn with_worker<T>(quickack: &Quickack, connect: impl FnOnce() -> T) -> (T, usize) {
    let before = workers(quickack);
    let client = connect();
    let mut found = None;
    wait_until("one worker has one client more", || {
        let after = workers(quickack);
        found = before.keys().copied().find(|n| after[n].clients > before[n].clients);
        found.is_some()
    });
    (client, found.expect("it was waited for"))
}

/// Returns the output of `quickack stats --json`.
#[track_caller]
pub fn stats(quickack: &Quickack) -> Value {
    let text = quickack.ask("stats --json");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Waits until no worker has a link: each has noticed that the servers are away. Before that, one
/// of them may take them for what they were when they are back.
#[track_caller]
pub fn until_each_worker_misses_them(quickack: &Quickack) {
    let all = ["links", "private_links"];
    wait_until("each worker has lost its links", || is_zero_everywhere(quickack, &all));
}

/// Waits until no worker takes a server for down: one may have seen it return, and a client of
/// another is still told that it is down.
#[track_caller]
pub fn until_each_worker_knows(quickack: &Quickack) {
    let what = "each worker knows that the servers are back";
    wait_until(what, || is_zero_everywhere(quickack, &["down_workers"]));
}

/// Whether these gauges of all servers are zero.
fn is_zero_everywhere(quickack: &Quickack, gauges: &[&str]) -> bool {
    let stats = stats(quickack);
    let pools = stats["pools"].as_array().expect("pools");
    let servers = pools.iter().flat_map(|pool| pool["servers"].as_array().expect("servers"));
    let is_zero = |server: &Value| gauges.iter().all(|name| server[*name].as_u64() == Some(0));
    servers.into_iter().all(is_zero)
}

/// Returns a counter of the only server, summed over all workers.
#[track_caller]
pub fn total(quickack: &Quickack, name: &str) -> u64 {
    let stats = stats(quickack);
    let server = &stats["pools"][0]["servers"][0];
    server[name].as_u64().unwrap_or_else(|| panic!("no {name} in {server}"))
}

/// Returns the number of clients of all workers.
#[track_caller]
pub fn clients(quickack: &Quickack) -> u64 {
    workers(quickack).values().map(|worker| worker.clients).sum()
}
