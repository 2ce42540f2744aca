//! Administrative commands that the operator allows, in front of real memcacheds: they reach every
//! server, and a client gets one answer, or an error that names each server.

use testkit::process::{Memcached, Quickack, free_address, wait_until};

use super::QUICKACK;

const ALL: &str = "[cache_memlimit, lru_crawler, lru, slabs, extstore, debugtime, stats reset]";

/// Starts quickack in front of `servers`, named `s1`, `s2` and so on.
fn start(servers: &[&Memcached], allow: &str) -> Quickack {
    let mut text = format!("alpha:\n  listen: 127.0.0.1:0\n  allow: {allow}\n  servers:\n");
    for (at, server) in servers.iter().enumerate() {
        text.push_str(&format!("   - {}:1 s{}\n", server.address, at + 1));
    }
    Quickack::start(QUICKACK, &text)
}

fn limits(servers: &[&Memcached]) -> Vec<u64> {
    servers.iter().map(|server| server.stat("limit_maxbytes") >> 20).collect()
}

#[test]
fn an_allowed_command_reaches_every_memcached_and_is_answered_once() {
    let backs = [Memcached::start(), Memcached::start()];
    let backs: Vec<&Memcached> = backs.iter().collect();
    let quickack = start(&backs, ALL);
    let mut client = quickack.client();
    client.ask("cache_memlimit 128\r\n", "OK\r\n");
    assert_eq!(limits(&backs), [128, 128]);
    client.ask("cache_memlimit 96 noreply\r\nget a\r\n", "END\r\n");
    wait_until("both have heard it", || limits(&backs) == [96, 96]);
    // All servers send the same error, and none executes the command.
    client
        .ask("cache_memlimit 1\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n");
    client.ask("slabs reassign x y\r\n", "CLIENT_ERROR bad command line format\r\n");
    client.ask("slabs automove 0\r\n", "OK\r\n");
    client.ask("lru tune 10 20 0.5 2.0\r\n", "OK\r\n");
    client.ask("extstore item_size 100\r\n", "OK\r\n");
    client.ask("debugtime p\r\n", "ERROR\r\n");
    client.ask("lru_crawler crawl all\r\n", "OK\r\n");
    client.ask("lru_crawler sleep 0\r\nlru_crawler tocrawl 100\r\n", "OK\r\nOK\r\n");
    for back in &backs {
        back.client().ask("get a\r\n", "END\r\n");
        assert!(back.stat("cmd_get") > 0);
    }
    client.ask("stats reset\r\n", "RESET\r\n");
    assert_eq!(backs.iter().map(|back| back.stat("cmd_get")).sum::<u64>(), 0);
    let refused = "CLIENT_ERROR refused by the proxy: it is a stream; ask the server itself\r\n";
    for stream in ["lru_crawler metadump all\r\n", "lru_crawler mgdump all\r\n", "watch\r\n"] {
        client.ask(stream, refused);
    }
}

#[test]
fn memcacheds_that_do_not_agree_are_named_with_what_they_say() {
    let with = Memcached::start();
    let without = Memcached::quiet();
    let quickack = start(&[&with, &without], ALL);
    quickack.client().ask(
        "lru_crawler crawl all\r\n",
        "SERVER_ERROR the servers do not agree: s1 says 'OK'; \
         s2 says 'CLIENT_ERROR lru crawler disabled'\r\n",
    );
    // The link is intact: later requests are answered.
    quickack.client().ask("lru_crawler sleep 100\r\nget a\r\n", "OK\r\nEND\r\n");
}

#[test]
fn an_allowed_command_names_the_memcached_that_did_not_hear_it() {
    let back = Memcached::start();
    let nobody = free_address();
    let text = format!(
        "alpha:\n  listen: 127.0.0.1:0\n  allow: [cache_memlimit]\n  servers:\n   - {}:1 s1\n   \
         - {nobody}:1 s2\n",
        back.address
    );
    let quickack = Quickack::start(QUICKACK, &text);
    let mut client = quickack.client();
    client.send("cache_memlimit 128\r\n");
    let line = client.line();
    assert!(line.starts_with("SERVER_ERROR ") && line.contains("s2: "), "{line}");
}

#[test]
fn a_command_that_is_not_allowed_reaches_no_memcached() {
    let back = Memcached::start();
    let quickack = start(&[&back], "[stats reset]");
    let mut client = quickack.client();
    for (line, name) in [
        ("cache_memlimit 128", "cache_memlimit"),
        ("flush_all", "flush_all"),
        ("slabs automove 1", "slabs"),
        ("stats detail on", "stats detail"),
    ] {
        let why = format!("refused by the proxy: `allow: [{name}]` in its pool permits it");
        client.ask(&format!("{line}\r\n"), &format!("CLIENT_ERROR {why}\r\n"));
    }
    assert_eq!((limits(&[&back]), back.stat("cmd_flush")), (vec![64], 0));
    client.ask("stats reset\r\n", "RESET\r\n");
}
