//! The HTTP process as its clients meet it: pages, figures, health, hostile clients, reloads.

mod client;
mod figures;
mod health;
mod hostile;
mod lifecycle;
mod monitoring;
mod page;

use std::net::SocketAddr;

use testkit::process::Quickack;

use super::{QUICKACK, harness};
use client::{Page, get};

/// Starts quickack with an HTTP address; `more` are other directives of `global:` and of the pool.
fn start(workers: usize, global: &[&str], servers: &[SocketAddr], pool: &[&str]) -> Quickack {
    Quickack::start(QUICKACK, &text(workers, global, servers, pool))
}

fn text(workers: usize, global: &[&str], servers: &[SocketAddr], pool: &[&str]) -> String {
    harness::text(workers, &[&["http: 127.0.0.1:0"], global].concat(), servers, pool)
}

/// Returns the address that the log names.
fn address(quickack: &Quickack) -> SocketAddr {
    let mut found = None;
    testkit::process::wait_until("the log has an address of HTTP", || {
        let text = quickack.process.stderr_text();
        found = text.lines().find_map(|line| line.split_once("HTTP on ")?.1.parse().ok());
        found.is_some()
    });
    found.expect("it was waited for")
}

/// Waits until a page has this status, and says that.
#[track_caller]
pub fn wait_for(quickack: &Quickack, path: &str, status: u16, said: &str) {
    wait_for_at(address(quickack), path, status, said);
}

#[track_caller]
fn wait_for_at(http: SocketAddr, path: &str, status: u16, said: &str) {
    testkit::process::wait_until(&format!("{path} is {status} {said:?}"), || {
        let page = client::try_get(http, path);
        page.is_some_and(|page| page.status == status && page.body.contains(said))
    });
}

/// Returns a page that must be there.
#[track_caller]
pub fn page(quickack: &Quickack, path: &str) -> String {
    let Page { status, body, .. } = get(address(quickack), path);
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// Waits until the HTTP process runs, and returns its id.
#[track_caller]
fn running(quickack: &Quickack) -> u32 {
    let mut found = None;
    testkit::process::wait_until("the HTTP process runs", || {
        found = helper(quickack);
        found.is_some()
    });
    found.expect("it was waited for")
}

/// Returns the id of the HTTP process, if it runs now.
fn helper(quickack: &Quickack) -> Option<u32> {
    let children = testkit::process::children(quickack.process.id());
    children.into_iter().find(|(_, title)| title.starts_with("quickack: http")).map(|(id, _)| id)
}
