//! The page for browsers, driven in headless Chromium by `testkit/peers/node/page.js`.

use std::process::Command;

use rustix::process::Signal;
use testkit::process::{Memcached, Quickack, send, wait_until};

use super::{QUICKACK, address, harness};
use crate::peers::{peer_script, run};

const LABEL: &str = "<b>one</b>";

#[test]
fn the_page_shows_every_request_works_by_keyboard_and_loads_nothing_from_elsewhere() {
    let memcached = Memcached::start();
    let text = format!(
        "global:\n  workers: 2\n  http: 127.0.0.1:0\nalpha:\n  listen: 127.0.0.1:0\n\
         \u{20} slowlog_threshold: 1us\n  servers:\n    - {}:1 {LABEL}\n",
        memcached.address
    );
    let quickack = Quickack::start(QUICKACK, &text);
    let ask_150_times = || {
        let mut client = quickack.client();
        for _ in 0..150 {
            client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
            client.ask("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
        }
        client
    };
    // The requests of workers that have died since are on the page as well.
    ask_150_times();
    let old = harness::workers(&quickack);
    old.values().for_each(|worker| send(worker.pid, Signal::KILL));
    wait_until("successors serve", || {
        let all = harness::workers(&quickack);
        all.len() == 2 && all.iter().all(|(n, one)| one.is_serving() && one.pid != old[n].pid)
    });
    let _client = ask_150_times();
    quickack.rewrite("alpha: [");
    assert!(!quickack.admin(&["reload"]).ok);
    let port = address(&quickack).port().to_string();
    let mut browser = Command::new("node");
    browser.arg(peer_script("node/page.js")).args([&port, "600", LABEL]);
    // `PAGE_SHOTS=docs/images` writes the screenshots of the guide anew.
    if let Ok(folder) = std::env::var("PAGE_SHOTS") {
        browser.arg(crate::peers::root().join(folder));
    }
    run(&mut browser);
}
