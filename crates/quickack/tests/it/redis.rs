//! Redis and Valkey: real servers behind, real and hostile clients in front.

mod allow;
mod blocking;
mod busy;
mod clients;
mod databases;
mod differential;
mod facts;
mod failures;
mod hostile;
mod large;
mod links;
pub mod model;
mod own_clients;
mod pools;
mod private;
mod pubsub;
mod queues;
mod scripts;
mod slow;
mod transactions;
mod watching;
mod words;
mod works;

use std::net::SocketAddr;

use testkit::process::{Family, Quickack, Redis};
use testkit::wire::resp::Reply;
use testkit::wire::without_first_error;

use super::QUICKACK;

/// A pool that would eject its server at the first failure.
const EJECT: [&str; 2] = ["auto_eject_hosts: true", "server_failure_limit: 1"];

/// Starts that many real servers.
fn servers(family: Family, count: usize) -> Vec<Redis> {
    (0..count).map(|_| Redis::start(family)).collect()
}

/// Starts quickack with one Redis pool. The servers are named `s1`, `s2` and so on, so that a key
/// has the same owner in every run.
pub fn quickack(servers: &[SocketAddr], more: &[&str]) -> Quickack {
    Quickack::start(QUICKACK, &config(servers, more))
}

/// The same with that many workers.
pub fn with_workers(workers: usize, servers: &[SocketAddr], more: &[&str]) -> Quickack {
    let text = format!("global:\n  workers: {workers}\n{}", config(servers, more));
    Quickack::start(QUICKACK, &text)
}

fn config(servers: &[SocketAddr], more: &[&str]) -> String {
    let mut text = String::from(
        "alpha:\n  listen: 127.0.0.1:0\n  protocol: redis\n  hash: md5\n  hash_tag: \"{}\"\n  \
         distribution: ketama\n",
    );
    more.iter().for_each(|directive| text.push_str(&format!("  {directive}\n")));
    text.push_str("  servers:\n");
    for (at, server) in servers.iter().enumerate() {
        text.push_str(&format!("   - {server}:1 s{}\n", at + 1));
    }
    text
}

/// Returns a reply as a server gives it, which repeats no error at the end of a transaction.
fn as_servers_say(reply: Reply) -> Reply {
    match reply {
        Reply::Error(text) if text.starts_with(b"EXECABORT ") => {
            Reply::Error(without_first_error(&text).into())
        }
        other => other,
    }
}

fn addresses(servers: &[Redis]) -> Vec<SocketAddr> {
    servers.iter().map(|server| server.address).collect()
}
