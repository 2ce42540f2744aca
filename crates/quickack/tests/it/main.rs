//! The program among real processes: one binary, one module for each question.
//!
//! `testkit::process` starts the peers, always on loopback, always on ports that were free. A test
//! whose path names a peer (`php`, `pymemcache`, …) is left out, by that name, on a machine without
//! it: `xtask/src/peers.rs` has the table.
// A test that cannot continue panics, in its helper functions as well.
#![allow(clippy::unwrap_used)]

mod access_log;
mod admin;
mod alloc;
mod allow;
mod balance;
mod cache;
mod cache_words;
mod chaos;
mod clients;
mod differential;
mod distance;
mod eject;
mod endings;
mod faults;
mod full;
mod guesses;
mod guide;
mod harness;
mod hold;
mod hosts;
mod http;
mod incidents;
mod large;
mod limits;
mod logins;
mod logs;
mod metrics;
mod names;
mod nutcracker;
mod operate;
mod outage;
mod peers;
mod pipelines;
mod places;
mod proxy_protocol;
mod queue;
mod quiet_master;
mod quotas;
mod redis;
mod reload;
mod rings;
mod running;
mod shutdown;
mod slowlog;
mod soak;
mod stall;
mod states;
mod statistics;
mod syscalls;
mod tenants;
mod top;
mod verbs;
mod whole_proxy;
mod words;
mod workers;

use std::net::SocketAddr;

use testkit::process::Quickack;

const QUICKACK: &str = env!("CARGO_BIN_EXE_quickack");

/// Starts quickack with one pool, `alpha`, in front of `servers`; `more` are directives of the
/// pool.
fn quickack(servers: &[SocketAddr], more: &[&str]) -> Quickack {
    Quickack::start(QUICKACK, &config(servers, more))
}

fn config(servers: &[SocketAddr], more: &[&str]) -> String {
    let mut text = String::from("alpha:\n  listen: 127.0.0.1:0\n");
    for directive in more {
        text.push_str(&format!("  {directive}\n"));
    }
    text.push_str("  servers:\n");
    for server in servers {
        text.push_str(&format!("   - {server}:1\n"));
    }
    text
}
