//! Lists of servers that come from a file, which changes, is wrong and vanishes under load.

use std::fs;

use serde_json::Value;
use testkit::load::{Load, Options, Trust};
use testkit::process::{Family, Memcached, Quickack, Redis, Speaker, free_address, wait_until};
use testkit::wire::resp::Reply;

use super::changes::{at_both, epoch};
use super::{Place, server};
use crate::harness;

pub const FAST: &str = "resolve_every: 100ms";

/// A pool that takes its servers from there.
pub fn listed(source: &str, more: &[&str]) -> String {
    let mut text = format!("global:\n  workers: 4\n  {FAST}\nalpha:\n  listen: 127.0.0.1:0\n");
    more.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text + &format!("  servers: {source}\n")
}

pub fn from_file(place: &Place, more: &[&str]) -> String {
    listed(&format!("{{file: {}}}", place.path("servers").display()), more)
}

/// The pool in `quickack pools --json`.
pub fn shown(quickack: &Quickack) -> Value {
    let pools: Value = serde_json::from_str(&quickack.admin_ok(&["pools", "--json"])).unwrap();
    pools["pools"][0].clone()
}

pub fn labels(quickack: &Quickack) -> Vec<String> {
    let pool = shown(quickack);
    let servers = pool["servers"].as_array().unwrap().iter();
    servers.map(|server| server["label"].as_str().unwrap().to_string()).collect()
}

#[track_caller]
pub fn wait_for(quickack: &Quickack, wanted: &[&str]) {
    let told = || quickack.process.stderr_text();
    wait_until(&format!("the servers are {wanted:?}: {}", told()), || labels(quickack) == wanted);
}

pub fn count(quickack: &Quickack, name: &str) -> u64 {
    harness::stats(quickack)["names"][name].as_u64().unwrap()
}

/// Waits until tries to take the list have failed.
#[track_caller]
pub fn wait_for_failures(quickack: &Quickack) {
    let before = count(quickack, "lists_failed");
    wait_until("it is noticed", || count(quickack, "lists_failed") > before + 1);
}

pub fn load(quickack: &Quickack, trust: Trust) -> Load {
    let options = Options { depth: 4, keys: 16, trust, rate: Some(4_000), ..Options::default() };
    harness::load(quickack, 40, options)
}

/// A file gets other contents at one moment.
fn replace(place: &Place, text: &str) {
    place.write("servers.new", text);
    fs::rename(place.path("servers.new"), place.path("servers")).unwrap();
}

/// A list that is empty, wrong, half written or gone never applies, one that would move keys waits,
/// and one that moves none applies by itself: under load no answer is wrong and no key moves.
#[test]
fn a_file_that_changes_under_load_moves_no_key_before_memcached_as_root() {
    let (first, second, third) = (at_both(), at_both(), Memcached::start());
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let [one, two, three] = [&first, &second, &third].map(|it| it.address.port());
    let both = |ip: &str| format!("127.0.0.1:{one}:1 first\n{ip}:{two}:1 second\n");
    place.write("servers", &both("127.0.0.1"));
    let quickack = place.run(&from_file(&place, &["timeout: 60000"]));
    assert_eq!(labels(&quickack), ["first", "second"]);
    let load = load(&quickack, Trust::Whole);
    let at_first = epoch(&quickack);
    for text in ["", "# nothing\n", "\u{1}\u{2}", "127.0.0.1:1\n", "a:1:1 x\na:2:1 x\n"] {
        place.write("servers", text);
        wait_for_failures(&quickack);
        load.wait_for_requests(200);
        assert_eq!(labels(&quickack), ["first", "second"], "{text:?}");
    }
    fs::remove_file(place.path("servers")).unwrap();
    wait_for_failures(&quickack);
    let fault = shown(&quickack)["list"]["fault"].clone();
    assert!(fault.as_str().unwrap().contains("No such file"), "{fault}");
    // The same in another order, and with comments: nothing is new.
    replace(&place, &format!("# Ours.\n127.0.0.1:{two}:1 second\n127.0.0.1:{one}:1 first # old\n"));
    wait_until("it is taken", || shown(&quickack)["list"]["fault"].is_null());
    assert_eq!(epoch(&quickack), at_first);
    // A server at another address keeps its keys.
    replace(&place, &both("127.0.0.2"));
    wait_until("it has moved", || server(&quickack, 1)["address"] == format!("127.0.0.2:{two}"));
    wait_until("all workers have it", || epoch(&quickack) == at_first + 1);
    // One more would move keys.
    replace(&place, &format!("{}127.0.0.1:{three}:1 third\n", both("127.0.0.2")));
    wait_until("it waits", || count(&quickack, "lists_waiting") == 1);
    load.wait_for_requests(2000);
    load.wait_for_everybody();
    load.stop().assert_unharmed();
    assert_eq!(labels(&quickack), ["first", "second"]);
    assert_eq!(epoch(&quickack), at_first + 1);
    for verb in ["pools", "stats", "info"] {
        let said = quickack.admin_ok(&[verb]);
        assert!(said.contains("a new list from {file: ") && said.contains(" waits: "), "{said}");
    }
    let told = quickack.process.stderr_text();
    assert!(told.contains("of the keys would move"), "{told}");
    // A reload does it only if it is told to, and is not refused for it.
    quickack.rewrite(&from_file(&place, &["timeout: 50000"]));
    let said = quickack.admin_ok(&["reload"]);
    assert!(said.contains("applied by 4/4") && said.contains("waits: "), "{said}");
    assert_eq!(labels(&quickack), ["first", "second"]);
    let said = quickack.admin_ok(&["reload", "--allow-remap"]);
    assert!(said.contains("server third added"), "{said}");
    assert_eq!(labels(&quickack), ["first", "second", "third"]);
    assert_eq!(count(&quickack, "lists_waiting"), 0);
    assert!(!quickack.admin_ok(&["pools"]).contains("waits"));
}

/// By `discovery: apply` keys move by themselves, for all workers at one epoch.
#[test]
fn a_list_that_moves_keys_applies_by_itself_if_it_may_before_memcached_as_root() {
    let servers: [Memcached; 3] = std::array::from_fn(|_| Memcached::start());
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let lines: Vec<String> = servers
        .iter()
        .enumerate()
        .map(|(n, it)| format!("127.0.0.1:{}:1 s{n}\n", it.address.port()))
        .collect();
    place.write("servers", &lines[..2].concat());
    let quickack = place.run(&from_file(&place, &["discovery: apply", "timeout: 60000"]));
    let load = load(&quickack, Trust::Old);
    for round in 0..6 {
        let before = epoch(&quickack);
        let (text, wanted): (_, &[&str]) = match round % 3 {
            0 => (lines.concat(), &["s0", "s1", "s2"]),
            1 => (lines[1..].concat(), &["s1", "s2"]),
            _ => (lines[..2].concat(), &["s0", "s1"]),
        };
        replace(&place, &text);
        wait_for(&quickack, wanted);
        assert_eq!(epoch(&quickack), before + 1, "one change of configuration");
        load.wait_for_requests(500);
        // What is no list applies by no directive.
        if round == 3 {
            place.write("servers", "");
            wait_for_failures(&quickack);
            assert_eq!(labels(&quickack), wanted);
        }
    }
    load.wait_for_everybody();
    load.stop().assert_unharmed();
    assert_eq!(count(&quickack, "list_changes"), 6);
}

/// What waits applies when it may: `discovery` can be set at run time.
#[test]
fn discovery_can_be_set_before_memcached_as_root() {
    let (first, second) = (Memcached::start(), Memcached::start());
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    place.write("servers", &format!("{}:1 first\n", first.address));
    let quickack = place.run(&from_file(&place, &[]));
    place.write("servers", &format!("{}:1 first\n{}:1 second\n", first.address, second.address));
    wait_until("it waits", || count(&quickack, "lists_waiting") == 1);
    assert_eq!(labels(&quickack), ["first"]);
    quickack.admin_ok(&["set", "alpha.discovery=apply"]);
    wait_for(&quickack, &["first", "second"]);
}

/// The proxy starts without any list: the pool refuses requests, and the proxy is not ready.
#[test]
fn a_pool_without_a_list_refuses_requests_until_there_is_one_before_memcached_as_root() {
    let memcached = Memcached::start();
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let more = ["allow: [flush_all]"];
    let quickack = place.run(&from_file(&place, &more));
    let mut client = quickack.client();
    for request in
        ["get a\r\n", "get a b\r\n", "set a 0 0 1\r\n1\r\n", "mg a v\r\n", "flush_all\r\n"]
    {
        client.send(request);
        let line = client.line();
        assert!(line.starts_with("SERVER_ERROR alpha: no server"), "{request:?}: {line}");
    }
    let info: Value = serde_json::from_str(&quickack.admin_ok(&["info", "--json"])).unwrap();
    assert_eq!(info["ready"], false);
    let why = info["not_ready"].to_string();
    assert!(why.contains("pool alpha has no server that is up"), "{why}");
    let told = quickack.process.stderr_text();
    assert!(told.contains("pool alpha: no list from {file: "), "{told}");
    // A reload that brings nothing new is not refused.
    quickack.rewrite(&from_file(&place, &["timeout: 50000"]));
    let said = quickack.admin_ok(&["reload"]);
    assert!(said.contains("applied by 4/4") && said.contains("has no servers until"), "{said}");
    place.write("servers", &format!("{}:1 first\n", memcached.address));
    wait_for(&quickack, &["first"]);
    wait_until("it serves", || {
        client.send("set a 0 0 1\r\n1\r\n");
        client.line() == "STORED"
    });
    client.ask("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn a_redis_pool_without_a_list_refuses_requests_too_before_redis_as_root() {
    let redis = Redis::start(Family::Redis70);
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let quickack = place.run(&from_file(&place, &["protocol: redis", "discovery: apply"]));
    let mut speaker = Speaker::connect(quickack.address());
    assert_eq!(speaker.say("PING"), Reply::Simple(b"PONG".to_vec()));
    for words in
        ["GET a", "SET a 1", "MGET a b", "DBSIZE", "KEYS *", "SCAN 0", "PUBLISH c m", "SUBSCRIBE c"]
    {
        match speaker.say(words) {
            Reply::Error(text) => {
                let text = String::from_utf8(text).unwrap();
                assert!(text.contains("no server"), "{words}: {text}");
            }
            odd => panic!("{words}: {odd:?}"),
        }
    }
    place.write("servers", &format!("{}:1 first\n", redis.address));
    wait_for(&quickack, &["first"]);
    wait_until("it serves", || matches!(speaker.say("SET a 1"), Reply::Simple(_)));
    assert_eq!(speaker.say("DBSIZE"), Reply::Integer(1));
}

/// A pool that has servers does not lose them to a source that has no list.
#[test]
fn a_reload_to_a_source_without_a_list_is_refused_before_memcached_as_root() {
    let memcached = Memcached::start();
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let written = format!("['{}:1 first']", memcached.address);
    let quickack = place.run(&listed(&written, &[]));
    quickack.rewrite(&from_file(&place, &[]));
    let said = quickack.admin(&["reload", "--allow-remap"]).text;
    assert!(said.contains("pool alpha would lose its servers"), "{said}");
    let set = format!("alpha.servers={{file: {}}}", place.path("servers").display());
    let said = quickack.admin(&["set", "--allow-remap", &set]).text;
    assert!(said.contains("pool alpha would lose its servers"), "{said}");
    quickack.client().ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    // The same servers from there are no other keys.
    place.write("servers", &format!("{}:1 first\n", memcached.address));
    let said = quickack.admin_ok(&["reload"]);
    assert!(said.contains("its servers come from {file: "), "{said}");
    quickack.client().ask("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
}

/// `route` answers for the list that the proxy has, not for one that waits.
#[test]
fn the_verbs_know_lists_from_elsewhere_before_memcached_as_root() {
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let [one, two] = [free_address(), free_address()];
    place.write("servers", &format!("{one}:1 first\n"));
    let quickack = place.run(&from_file(&place, &[]));
    place.write("servers", &format!("{two}:1 second\n"));
    wait_until("it waits", || count(&quickack, "lists_waiting") == 1);
    let run = |words: &[&str]| {
        let output = std::process::Command::new(crate::QUICKACK).args(words).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), said + &String::from_utf8(output.stderr).unwrap())
    };
    let file = quickack.file().display().to_string();
    let socket = quickack.folder().join("admin.sock").display().to_string();
    let (_, said) = run(&["route", "--admin", &socket, "key"]);
    assert!(said.contains("first"), "{said}");
    let (_, said) = run(&["route", "-c", &file, "key"]);
    assert!(said.contains("second"), "{said}");
    let other = place.path("other.yml");
    fs::write(&other, listed(&format!("['{one}:1 first']"), &[])).unwrap();
    let (code, said) = run(&["ring-diff", &file, other.to_str().unwrap()]);
    assert!(code == Some(2) && said.contains("100.00 % of the keys would move"), "{said}");
    fs::remove_file(place.path("servers")).unwrap();
    let (_, said) = run(&["ring-diff", &file, other.to_str().unwrap()]);
    assert!(said.contains("its list of servers is not known"), "{said}");
    let (code, said) = run(&["route", "-c", &file, "key"]);
    assert!(code == Some(0) && said.contains("no server of this pool is known"), "{said}");
    let (code, said) = run(&["check", &file, "--strict"]);
    assert!(code == Some(2) && said.contains("it has no servers until there is one"), "{said}");
    place.write("servers", &format!("{one}:1 first\n{two}:1 second\n"));
    let (_, said) = run(&["check", &file, "--diff", "--admin", &socket]);
    assert!(said.contains("100") || said.contains("would move"), "{said}");
    let (_, said) = run(&["migrate-config", &file]);
    assert!(said.contains("servers: {file: "), "{said}");
}
