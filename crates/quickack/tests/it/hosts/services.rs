//! Lists of servers that come from SRV records and from a configuration endpoint, and that change,
//! lie and vanish under load.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::Trust;
use testkit::process::{Memcached, send, wait_until};

use super::Place;
use super::changes::{at_both, epoch, resolver};
use super::endpoint::{self, Cluster, Endpoint};
use super::lists::{
    FAST, count, from_file, labels, listed, load, shown, wait_for, wait_for_failures,
};
use super::name_server::{Answer, NameServer, Service};

const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SERVICE: &str = "_memcached._tcp.test";

/// Targets decide where keys live; only the lowest priority counts, and no weight. Every lie leaves
/// all as it was.
#[test]
fn srv_records_that_change_and_lie_move_no_key_before_memcached_as_root() {
    let (first, second) = (Memcached::start(), Memcached::start());
    let [one, two] = [&first, &second].map(|it| Service::new("b.test", it.address.port()));
    let one = Service { target: "A.test".to_string(), ..one };
    let spare = Service { priority: 2, ..Service::new("spare.test", 1) };
    let services = vec![two.clone(), spare, one.clone()];
    let mut dns = NameServer::start(&[
        (SERVICE, Answer::Services(1, services.clone())),
        ("a.test", Answer::Addresses(vec![ONE])),
        ("b.test", Answer::Addresses(vec![ONE])),
        ("c.test", Answer::Addresses(vec![ONE])),
    ]);
    let place = Place::with_name_server(&dns);
    let quickack = place.run(&listed(&format!("{{srv: {SERVICE}}}"), &["timeout: 60000"]));
    let wanted = [format!("a.test:{}", one.port), format!("b.test:{}", two.port)];
    assert_eq!(labels(&quickack), wanted);
    let before = epoch(&quickack);
    let load = load(&quickack, Trust::Whole);
    // Other weights, another order and another case are the same servers.
    let again = Service { weight: 70, target: "a.TEST".to_string(), ..one.clone() };
    let asked = dns.questions();
    dns.set(SERVICE, Answer::Services(0, vec![again, two.clone()]));
    wait_until("it is asked again", || dns.questions() > asked + 10);
    for lie in [
        Answer::Empty,
        Answer::NoSuchName,
        Answer::Failure,
        Answer::Garbage,
        Answer::Silence,
        Answer::WrongNumber(vec![two.clone()]),
        Answer::WrongQuestion(vec![two.clone()]),
        Answer::Cut { over_tcp: false, services: vec![two.clone(), one.clone()] },
    ] {
        dns.set(SERVICE, lie.clone());
        wait_for_failures(&quickack);
        assert_eq!(labels(&quickack), wanted, "{lie:?}");
    }
    // An answer that does not fit is asked for over TCP; half of it never counts.
    dns.set(SERVICE, Answer::Cut { over_tcp: true, services: vec![two.clone(), one.clone()] });
    wait_until("it is whole", || shown(&quickack)["list"]["fault"].is_null());
    assert_eq!(epoch(&quickack), before);
    let three = Service::new("c.test", 1);
    dns.set(SERVICE, Answer::Services(0, vec![two.clone(), one.clone(), three]));
    wait_until("it waits", || count(&quickack, "lists_waiting") == 1);
    dns.die();
    wait_for_failures(&quickack);
    load.wait_for_requests(500);
    load.wait_for_everybody();
    load.stop().assert_unharmed();
    assert_eq!(labels(&quickack), wanted);
    assert_eq!(epoch(&quickack), before);
}

/// SRV records are asked for again when they do not hold any more, and so are addresses that DNS
/// has too; nothing else would look within an hour.
#[test]
fn what_dns_says_is_asked_for_again_when_it_holds_no_more_before_memcached_as_root() {
    let memcached = at_both();
    let port = memcached.address.port();
    let two = Ipv4Addr::new(127, 0, 0, 2);
    let dns = NameServer::start(&[
        (SERVICE, Answer::Services(1, vec![Service::new("a.test", port)])),
        ("a.test", Answer::Holding(1, vec![ONE])),
        ("b.test", Answer::Holding(1, vec![two])),
    ]);
    let place = Place::with_name_server(&dns);
    place.write("hosts", "127.0.0.1 localhost b.test\n");
    let text = listed(&format!("{{srv: {SERVICE}}}"), &["discovery: apply"]);
    let text = text.replace(FAST, "resolve_every: 1h");
    let beta = format!("beta:\n  listen: 127.0.0.1:0\n  servers: ['b.test:{port}:1 fixed']\n");
    let quickack = place.run(&(text + &beta));
    let at = |pool: usize| {
        let pools: Value = serde_json::from_str(&quickack.admin_ok(&["pools", "--json"])).unwrap();
        pools["pools"][pool]["servers"][0]["at"].as_str().map(str::to_string)
    };
    wait_until("it has an address", || at(0) == Some(format!("127.0.0.1:{port}")));
    dns.set("a.test", Answer::Holding(1, vec![two]));
    wait_until("it has moved", || at(0) == Some(format!("127.0.0.2:{port}")));
    dns.set("c.test", Answer::Holding(1, vec![ONE]));
    dns.set(SERVICE, Answer::Services(1, vec![Service::new("c.test", port)]));
    wait_for(&quickack, &[&format!("c.test:{port}")]);
    // The system decides what a name means, whatever DNS says of it.
    assert_eq!(at(1), Some(format!("127.0.0.1:{port}")));
}

/// A new list under load: its names decide, not what the endpoint says of addresses. Half an
/// answer, none, an error and a list of the past change nothing.
#[test]
fn an_endpoint_that_changes_and_lies_is_followed_rightly_before_memcached_as_root() {
    let servers: [Memcached; 3] = std::array::from_fn(|_| Memcached::start());
    let place = Place::with_hosts("127.0.0.1 localhost a.test b.test c.test\n");
    let nodes: Vec<String> = ["a.test", "b.test", "c.test"]
        .iter()
        .zip(&servers)
        .map(|(name, it)| format!("{name}|10.9.9.9|{}", it.address.port()))
        .collect();
    let wanted: Vec<String> = nodes.iter().map(|node| node.replace("|10.9.9.9|", ":")).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let endpoint = Endpoint::start(Cluster::Nodes(5, nodes[..2].to_vec()));
    let source = format!("{{elasticache: '{}'}}", endpoint.address);
    let quickack = place.run(&listed(&source, &["discovery: apply", "timeout: 60000"]));
    assert_eq!(labels(&quickack), wanted[..2]);
    let load = load(&quickack, Trust::Old);
    let before = epoch(&quickack);
    let whole = endpoint::whole(6, &nodes[..1]);
    for lie in [
        Cluster::Bytes(b"ERROR\r\n".to_vec()),
        Cluster::Bytes(Vec::new()),
        Cluster::Bytes(whole[..whole.len() / 2].to_vec()),
        Cluster::Bytes(whole[..whole.len() - 1].to_vec()),
        Cluster::Bytes(endpoint::whole(6, &[])),
        Cluster::Bytes(endpoint::whole(6, &["|10.0.0.1|1".to_string()])),
        Cluster::Bytes(vec![0xff; 1 << 20]),
        Cluster::Silence,
    ] {
        endpoint.set(lie.clone());
        wait_for_failures(&quickack);
        assert_eq!((labels(&quickack), epoch(&quickack)), (owned(&wanted[..2]), before), "{lie:?}");
    }
    endpoint.set(Cluster::Nodes(6, nodes.clone()));
    wait_for(&quickack, &wanted);
    wait_until("all workers have it", || epoch(&quickack) == before + 1);
    load.wait_for_requests(500);
    load.wait_for_everybody();
    // An answer of a server that has not heard of it yet.
    let (asked, before) = (endpoint.questions(), epoch(&quickack));
    endpoint.set(Cluster::Nodes(5, nodes[..2].to_vec()));
    wait_until("it is asked", || endpoint.questions() > asked);
    endpoint.set(Cluster::Nodes(6, nodes.clone()));
    let asked = endpoint.questions();
    wait_until("it is asked again", || endpoint.questions() > asked + 5);
    assert_eq!((labels(&quickack), epoch(&quickack)), (owned(&wanted), before));
    // A cluster that was made anew begins with 1, and stays at it.
    endpoint.set(Cluster::Nodes(1, nodes[1..].to_vec()));
    wait_for(&quickack, &wanted[1..]);
    load.wait_for_requests(500);
    load.stop().assert_unharmed();
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// The process that takes lists may die at any time: what holds goes on, and it is started again.
#[test]
fn the_death_of_the_resolver_harms_no_list_before_memcached_as_root() {
    let (first, second) = (Memcached::start(), Memcached::start());
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let both = [&first, &second].map(|it| format!("{}:1 n{}\n", it.address, it.address.port()));
    place.write("servers", &both[0]);
    let quickack = place.run(&from_file(&place, &["discovery: apply"]));
    let load = load(&quickack, Trust::Old);
    let mut last = resolver(&quickack).expect("a list comes from elsewhere");
    for round in 0..3 {
        send(last, Signal::KILL);
        wait_until("another has begun", || {
            let now = resolver(&quickack).filter(|id| *id != last);
            now.inspect(|id| last = *id).is_some()
        });
        assert_eq!(labels(&quickack).len(), 1 + round % 2);
        place.write("servers", &if round % 2 == 0 { both.concat() } else { both[0].clone() });
        wait_until("the list is taken", || labels(&quickack).len() == 2 - round % 2);
        load.wait_for_requests(100);
    }
    load.stop().assert_unharmed();
}

/// An endpoint or a name server that does not answer delays neither start nor requests nor reloads.
#[test]
fn a_list_that_never_comes_delays_nothing_before_memcached_as_root() {
    let memcached = Memcached::start();
    let dns = NameServer::start(&[(SERVICE, Answer::Silence)]);
    let place = Place::with_name_server(&dns);
    let endpoint = Endpoint::start(Cluster::Silence);
    let text = |timeout: u32| {
        let mut text = format!("global:\n  workers: 2\n  {FAST}\n");
        for (name, source) in [
            ("alpha", format!("['{}:1 first']", memcached.address)),
            ("beta", format!("{{srv: {SERVICE}}}")),
            ("gamma", format!("{{elasticache: '{}'}}", endpoint.address)),
        ] {
            let listen = format!("{name}:\n  listen: 127.0.0.1:0\n  timeout: {timeout}\n");
            text += &format!("{listen}  servers: {source}\n");
        }
        text
    };
    let start = std::time::Instant::now();
    let quickack = place.run(&text(60_000));
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    let mut client = quickack.client();
    for n in 0..3 {
        client.ask(&format!("set a 0 0 1\r\n{n}\r\n"), "STORED\r\n");
        quickack.rewrite(&text(50_000 + n));
        let start = std::time::Instant::now();
        let said = quickack.admin_ok(&["reload"]);
        assert!(said.contains("applied by 2/2"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

/// `check` asks for SRV records too.
#[test]
fn check_shows_the_servers_of_srv_records_as_root() {
    let dns = NameServer::start(&[
        (SERVICE, Answer::Services(1, vec![Service::new("a.test", 7)])),
        ("a.test", Answer::Addresses(vec![ONE])),
    ]);
    let place = Place::with_name_server(&dns);
    let file = place.path("quickack.yml");
    let check = |source: &str| {
        let text = listed(source, &[]).replace("127.0.0.1:0", "127.0.0.1:1");
        fs::write(&file, text).unwrap();
        let mut command = place.command();
        let output = command.args([crate::QUICKACK, "check"]).arg(&file).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        said + &String::from_utf8(output.stderr).unwrap()
    };
    let said = check(&format!("{{srv: {SERVICE}}}"));
    assert!(said.contains("server at a.test:7, weight 1") && !said.contains("warning"), "{said}");
    let said = check("{srv: _none._tcp.test}");
    assert!(said.contains("warning: pool alpha: no list from {srv: _none._tcp.test}: "), "{said}");
}
