//! States that an operator gives servers by hand, under load: `drain` and `maint` of each server in
//! turn, for all workers at once; kept over reloads and deaths of workers.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::{Options, Trust};
use testkit::process::{Client, DEADLINE, Family, Memcached, Quickack, Redis, send, wait_until};

use super::harness::{self, workers};
use super::redis;

const WORKERS: usize = 4;
const REFUSED: &str = "in maintenance, not sent";

/// Returns what `quickack servers --json` says of each server, by its name.
fn listed(quickack: &Quickack) -> BTreeMap<String, Value> {
    let text = quickack.ask("servers --json");
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let servers = json["servers"].as_array().unwrap_or_else(|| panic!("{text}")).iter();
    servers.map(|one| (one["name"].as_str().unwrap().to_string(), one.clone())).collect()
}

/// Gives a server a state; all workers have it when this returns.
#[track_caller]
fn set(quickack: &Quickack, server: &str, state: &str) {
    let told = quickack.admin_ok(&["server", &format!("alpha/{server}"), state]);
    assert!(told.contains("applied by 4/4"), "{told}");
    let epochs: Vec<u64> = workers(quickack).values().map(|worker| worker.epoch).collect();
    assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
    assert_eq!(listed(quickack)[server]["state"], state);
}

/// Waits until no worker has a link to a server.
#[track_caller]
fn wait_for_no_link(quickack: &Quickack, server: &str) {
    wait_until("nobody has a link to it", || {
        let one = &listed(quickack)[server];
        ["links", "waiting", "in_flight"].iter().all(|name| one[name] == 0)
    });
}

/// Kills a worker, and waits for its successor.
fn kill_a_worker(quickack: &Quickack) {
    let old = workers(quickack)[&1].pid;
    send(old, Signal::KILL);
    wait_until("worker 1 is there again", || {
        workers(quickack).get(&1).is_some_and(|one| one.pid != old && one.is_serving())
    });
}

fn addresses(memcacheds: &[Memcached]) -> Vec<SocketAddr> {
    memcacheds.iter().map(|memcached| memcached.address).collect()
}

/// Its keys stay, so they are answered with an error while it is in maintenance, and the values are
/// those of before when it is back.
#[test]
fn memcacheds_that_keep_their_keys_go_on_as_they_drain_and_are_refused_in_maintenance() {
    let memcacheds: Vec<Memcached> = (0..3).map(|_| Memcached::start()).collect();
    let text = |timeout| {
        let rules = ["hash: md5", timeout];
        harness::text(WORKERS, &[], &addresses(&memcacheds), &rules)
    };
    let rules = ["hash: md5", "timeout: 60000"];
    let quickack = harness::start(WORKERS, &[], &addresses(&memcacheds), &rules);
    let load = harness::load(&quickack, 40, Options::default());
    for (at, memcached) in memcacheds.iter().enumerate() {
        let name = memcached.address.to_string();
        let before = load.tally().total();
        set(&quickack, &name, "drain");
        let asked = memcached.stat("cmd_get");
        load.wait_for_everybody();
        load.wait_for_requests(2_000);
        assert!(memcached.stat("cmd_get") > asked, "it goes on serving its keys");
        assert_eq!(load.tally().total().failed, before.failed, "{}", load.tally());
        set(&quickack, &name, "maint");
        wait_for_no_link(&quickack, &name);
        let asked = memcached.stat("cmd_get") + memcached.stat("cmd_set");
        load.wait_for_requests(2_000);
        let failed = load.tally().total().failed;
        assert!(failed > before.failed, "its keys are refused");
        quickack.rewrite(&text(["timeout: 61000", "timeout: 62000", "timeout: 63000"][at]));
        quickack.admin_ok(&["reload"]);
        kill_a_worker(&quickack);
        load.wait_for_everybody();
        load.wait_for_requests(2_000);
        assert_eq!(listed(&quickack)[&name]["state"], "maint");
        let now = memcached.stat("cmd_get") + memcached.stat("cmd_set");
        assert_eq!(now, asked, "nobody asks it, whoever starts");
        set(&quickack, &name, "ready");
        load.pause();
        let failed = load.tally().total().failed;
        load.resume();
        load.wait_for_everybody();
        load.wait_for_requests(2_000);
        assert_eq!(load.tally().total().failed, failed, "{}", load.tally());
    }
    let tally = load.stop();
    println!("three memcacheds in turn: {tally}");
    assert!(tally.errors.keys().all(|line| line.ends_with(REFUSED)), "{tally}");
    assert!(tally.total().lost <= 3 * 40, "only those of the killed workers: {tally}");
}

/// Its keys move, so that no client has an error.
#[test]
fn memcacheds_whose_keys_may_move_get_no_more_requests_as_they_drain() {
    let memcacheds: Vec<Memcached> = (0..3).map(|_| Memcached::start()).collect();
    let rules = ["hash: md5", "on_failure: eject"];
    let quickack = harness::start(WORKERS, &[], &addresses(&memcacheds), &rules);
    let options = Options { trust: Trust::Old, ..Options::default() };
    let load = harness::load(&quickack, 40, options);
    for (at, memcached) in memcacheds.iter().enumerate() {
        let name = memcached.address.to_string();
        for state in ["drain", "maint"] {
            set(&quickack, &name, state);
            // What was read before the change is answered by it.
            wait_until("it has answered what it was asked", || {
                let one = &listed(&quickack)[&name];
                one["waiting"] == 0 && one["in_flight"] == 0
            });
            if state == "maint" {
                wait_for_no_link(&quickack, &name);
            }
            load.wait_for_everybody();
            let asked = memcached.stat("cmd_get") + memcached.stat("cmd_set");
            if at == 0 {
                kill_a_worker(&quickack);
            }
            load.wait_for_everybody();
            load.wait_for_requests(2_000);
            let now = memcached.stat("cmd_get") + memcached.stat("cmd_set");
            assert_eq!(now, asked, "{state}: its keys are on the others");
        }
        let asked = memcached.stat("cmd_get");
        set(&quickack, &name, "ready");
        load.wait_for_requests(2_000);
        assert!(memcached.stat("cmd_get") > asked, "its keys are back");
    }
    let tally = load.stop();
    println!("three memcacheds in turn: {tally}");
    assert_eq!(tally.total().failed, 0, "{tally}");
    assert!(tally.total().lost <= 2 * 40, "only those of the killed workers: {tally}");
}

/// Increments its keys until it is to stop, and returns how often each was incremented. An error
/// says that nothing was sent, or that the outcome is not known.
fn increment(address: SocketAddr, number: usize, stop: &AtomicBool) -> BTreeMap<String, u64> {
    let mut client = Client::connect(address);
    let mut done = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        for at in 0..12 {
            let key = format!("counter-{number}-{at}");
            client.send(format!("*2\r\n$4\r\nINCR\r\n${}\r\n{key}\r\n", key.len()));
            let line = client.line();
            match line.strip_prefix(':') {
                Some(_) => *done.entry(key).or_default() += 1,
                None => assert!(line.ends_with(REFUSED), "{line}"),
            }
        }
    }
    done
}

/// Every increment that was confirmed was executed once, wherever; and no other was.
#[test]
fn redis_servers_that_drain_or_are_in_maintenance_execute_nothing_twice() {
    for rule in ["on_failure: fail_fast", "on_failure: eject"] {
        let servers: Vec<Redis> = (0..3).map(|_| Redis::start(Family::ALL[0])).collect();
        let all: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
        let quickack = redis::with_workers(WORKERS, &all, &[rule]);
        harness::wait_for_workers(&quickack, WORKERS);
        let stop = AtomicBool::new(false);
        let done: BTreeMap<String, u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..12)
                .map(|number| {
                    let (address, stop) = (quickack.address(), &stop);
                    scope.spawn(move || increment(address, number, stop))
                })
                .collect();
            for name in ["s1", "s2", "s3"] {
                for state in ["drain", "maint", "ready"] {
                    set(&quickack, name, state);
                    if state == "maint" {
                        wait_for_no_link(&quickack, name);
                    }
                    let before = requests(&quickack);
                    wait_until("clients go on", || requests(&quickack) > before + 500);
                }
            }
            stop.store(true, Ordering::Relaxed);
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("nothing is wrong"))
                .collect()
        });
        assert_eq!(done.len(), 12 * 12);
        let mut clients: Vec<Client> = servers.iter().map(Redis::client).collect();
        for (key, count) in done {
            let executed: u64 = clients.iter_mut().map(|client| counter(client, &key)).sum();
            assert_eq!(executed, count, "{rule}: {key}");
        }
    }
}

fn requests(quickack: &Quickack) -> u64 {
    harness::stats(quickack)["pools"][0]["requests_total"].as_u64().expect("a counter")
}

/// Returns the value of a counter on a server; 0 if it has none.
fn counter(client: &mut Client, key: &str) -> u64 {
    client.send(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()));
    match client.line().as_str() {
        "$-1" => 0,
        _ => client.line().parse().expect("a number"),
    }
}

#[test]
fn every_protocol_is_told_that_a_server_is_in_maintenance() {
    let memcached = Memcached::start();
    let quickack = harness::start(1, &[], &[memcached.address], &[]);
    let name = memcached.address.to_string();
    let told = quickack.admin_ok(&["server", &format!("alpha/{name}"), "maint"]);
    assert!(told.contains(&format!("pool alpha: server {name}: ready -> maint")), "{told}");
    let mut client = quickack.client();
    let line = format!("SERVER_ERROR {name}: {REFUSED}\r\n");
    client.ask("get a\r\n", &line);
    client.ask("set a 0 0 1\r\nx\r\n", &line);
    client.ask("mg a v\r\n", &line);
    let mut binary = TcpStream::connect(quickack.address()).expect("it listens");
    binary.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    let get = [&[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 12], b"a"].concat();
    binary.write_all(&get).expect("it reads");
    let mut answer = [0; 24];
    binary.read_exact(&mut answer).expect("a header");
    assert_ne!(answer[6..8], [0, 0], "a status that is an error: {answer:?}");
    let redis = Redis::start(Family::ALL[0]);
    let quickack = redis::with_workers(1, &[redis.address], &[]);
    quickack.admin_ok(&["server", "alpha/s1", "maint"]);
    let mut client = quickack.client();
    client.ask("*2\r\n$3\r\nGET\r\n$1\r\na\r\n", &format!("-ERR s1: {REFUSED}\r\n"));
    client.ask("GET a\r\n", &format!("-ERR s1: {REFUSED}\r\n"));
    client.ask("PING\r\n", "+PONG\r\n");
    quickack.admin_ok(&["server", "alpha/s1", "ready"]);
    client.ask("GET a\r\n", "$-1\r\n");
}

/// The state is a server's, and goes with it.
#[test]
fn a_state_is_listed_and_stays_until_it_is_lifted_or_its_server_leaves_before_memcached() {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let [one, two] = memcacheds.each_ref().map(|memcached| memcached.address);
    let text = |servers: &str| {
        format!("global:\n  workers: 4\nalpha:\n  listen: 127.0.0.1:0\n  servers: [{servers}]\n")
    };
    let both = format!("'{one}:1 one', '{two}:1 two'");
    let quickack = Quickack::start(super::QUICKACK, &text(&both));
    harness::wait_for_workers(&quickack, 4);
    set(&quickack, "one", "drain");
    quickack.admin_ok(&["server", &format!("alpha/{two}"), "maint"]);
    let list = quickack.admin_ok(&["servers"]);
    for (name, address, state) in [("alpha/one", one, "drain"), ("alpha/two", two, "maint")] {
        let row = list.lines().find(|line| line.starts_with(name)).expect(&list);
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[1..3], [&address.to_string(), state], "{list}");
        assert!(row.ends_with("set by hand"), "{list}");
    }
    let told = quickack.admin_ok(&["server", "alpha/one", "drain"]);
    assert!(told.contains("nothing changed"), "{told}");
    let stats = harness::stats(&quickack);
    let servers = &stats["pools"][0]["servers"];
    assert_eq!((&servers[0]["admin"], &servers[0]["health"]), (&"drain".into(), &"up".into()));
    assert_eq!((&servers[1]["admin"], &servers[1]["health"]), (&"maint".into(), &"maint".into()));
    assert!(quickack.admin_ok(&["stats"]).contains("drain, up"));
    let info = quickack.admin_ok(&["info"]);
    assert!(info.contains("servers.alpha/one=drain, servers.alpha/two=maint"), "{info}");
    // A reload keeps both; a server that leaves takes its state with it.
    quickack.rewrite(&text(&both).replace("  servers:", "  timeout: 9s\n  servers:"));
    quickack.admin_ok(&["reload"]);
    let states = |quickack: &Quickack| -> Vec<String> {
        listed(quickack).values().map(|one| one["state"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(states(&quickack), ["drain", "maint"]);
    quickack.rewrite(&text(&format!("'{one}:1 one'")));
    let told = quickack.admin_ok(&["reload", "--allow-remap"]);
    assert!(told.contains("server two removed, and its state: maint"), "{told}");
    assert_eq!(states(&quickack), ["drain"]);
    quickack.rewrite(&text(&both));
    quickack.admin_ok(&["reload", "--allow-remap"]);
    assert_eq!(states(&quickack), ["drain", "ready"], "it is another server that has come");
    quickack.rewrite(&text(&both.replace(" one'", " uno'")));
    let told = quickack.admin_ok(&["reload", "--allow-remap"]);
    assert!(told.contains("server one removed, and its state: drain"), "{told}");
    assert_eq!(states(&quickack), ["ready", "ready"]);
    for (name, state, why) in [
        ("alpha/two", "off", "invalid value 'off'"),
        ("alpha/tow", "drain", "no server is called `alpha/tow`; did you mean `alpha/two`?"),
        ("two", "drain", "no server is called `two`"),
    ] {
        let answer = quickack.admin(&["server", name, state]);
        assert!(!answer.ok && answer.text.contains(why), "{answer:?}");
    }
    let answer = quickack.ask("server alpha/two off");
    assert!(answer.contains("`off`: a server is `ready`, `drain` or `maint`"), "{answer}");
}

#[test]
fn a_proxy_whose_memcacheds_are_all_in_maintenance_is_not_ready_and_answers_errors() {
    for rule in ["on_failure: fail_fast", "on_failure: eject"] {
        let memcacheds = [Memcached::start(), Memcached::start()];
        let global = ["http: 127.0.0.1:0"];
        let quickack = harness::start(4, &global, &addresses(&memcacheds), &[rule]);
        let load = harness::load(&quickack, 8, Options { trust: Trust::Old, ..Options::default() });
        let names = memcacheds.each_ref().map(|memcached| memcached.address.to_string());
        names.iter().for_each(|name| set(&quickack, name, "maint"));
        load.pause();
        let failed = load.tally().total().failed;
        load.resume();
        load.wait_for_everybody();
        load.wait_for_requests(1_000);
        assert!(load.tally().total().failed >= failed + 1_000, "{}", load.tally());
        let info: Value = serde_json::from_str(&quickack.ask("info --json")).unwrap();
        assert_eq!(info["not_ready"][0], "pool alpha has no server that is up");
        set(&quickack, &names[0], "drain");
        load.wait_for_everybody();
        set(&quickack, &names[0], "ready");
        set(&quickack, &names[1], "ready");
        load.pause();
        let failed = load.tally().total().failed;
        load.resume();
        load.wait_for_requests(1_000);
        let tally = load.stop();
        assert_eq!(tally.total().failed, failed, "{tally}");
        assert!(tally.errors.keys().all(|line| line.ends_with(REFUSED)), "{tally}");
        assert_eq!((tally.total().lost, tally.total().closed), (0, 0), "{tally}");
    }
}
