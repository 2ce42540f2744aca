//! Limits in the file apply to the whole proxy, for any number of workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::load::Options;
use testkit::process::{Client, Memcached, answer_lines, listen, wait_until};

use super::harness;

#[test]
fn memcached_sees_no_more_links_than_the_cap_whatever_the_number_of_workers() {
    let memcached = Memcached::start();
    let alone = memcached.stat("curr_connections");
    let caps = ["server_connections: 4", "server_connections_max: 8"];
    let quickack = harness::start(4, &[], &[memcached.address], &caps);
    let load = harness::load(&quickack, 64, Options { depth: 4, keys: 12, ..Options::default() });
    let until_eight = |who: &str| {
        wait_until(&format!("{who} workers share eight links"), || {
            load.wait_for_requests(500);
            let links = memcached.stat("curr_connections") - alone;
            println!("{links} links");
            links == 8
        });
    };
    load.wait_for_requests(5_000);
    until_eight("four");
    quickack.rewrite(&harness::text(8, &[], &[memcached.address], &caps));
    quickack.admin_ok(&["reload"]);
    load.wait_for_everybody();
    until_eight("eight");
    load.stop().assert_unharmed();
    // More workers than permitted links.
    quickack.rewrite(&harness::text(9, &[], &[memcached.address], &caps));
    let answer = quickack.admin(&["reload"]);
    assert!(!answer.ok && answer.text.contains("server_connections_max"), "{answer:?}");
}

#[test]
fn clients_of_a_pool_before_memcached_are_counted_over_all_workers() {
    let (_memcached, quickack) = harness::field(4, &[], &["client_connections: 10"]);
    let mut served: Vec<Client> = Vec::new();
    for _ in 0..10 {
        let mut client = quickack.client();
        client.ask("get a\r\n", "END\r\n");
        served.push(client);
    }
    for _ in 0..10 {
        assert!(quickack.client().rest().starts_with("SERVER_ERROR "));
    }
    for place in 0..10 {
        served.remove(place % 3);
        wait_until("its place is free", || harness::clients(&quickack) == 9);
        let mut client = quickack.client();
        client.ask("get a\r\n", "END\r\n");
        served.push(client);
        assert!(quickack.client().rest().starts_with("SERVER_ERROR "));
    }
}

/// A server accepts every connection, sends nothing and closes. Workers connect again and again,
/// together no faster than the limit in the file.
#[test]
fn a_storm_of_connects_is_shared_out_among_all_workers() {
    const PER_SECOND: u64 = 10;
    let count = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&count);
    let address = listen(move |stream| {
        theirs.fetch_add(1, Ordering::Relaxed);
        // A handshake succeeds, and requests follow.
        answer_lines(stream, |_| None);
    });
    let global = [format!("server_connects_max: {PER_SECOND}")];
    // From the first one on: those that are made in advance are limited as well.
    let start = Instant::now();
    let quickack = harness::start(
        4,
        &[&global[0]],
        &[address],
        &["server_retry_timeout: 1", "server_connections: 4", "timeout: 300"],
    );
    let mut clients: Vec<Client> = (0..32).map(|_| quickack.client()).collect();
    while start.elapsed() < Duration::from_secs(2) {
        for client in &mut clients {
            client.send("get a\r\n");
        }
        for client in &mut clients {
            client.line();
        }
    }
    let connects = count.load(Ordering::Relaxed);
    let seconds = start.elapsed().as_secs_f64();
    println!("{connects} connects in {seconds:.1} s, of {PER_SECOND} a second");
    // A burst of a tenth of a second's connects is permitted.
    let most = PER_SECOND as f64 * (seconds + 0.1) + 2.0;
    assert!(connects as f64 <= most, "{connects} connects in {seconds} s");
    assert!(connects > 4, "it was never asked");
}
