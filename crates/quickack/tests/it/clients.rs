//! `quickack clients`: the list of the clients of all workers, through deaths, stops and reloads,
//! and clients that are closed by an operator.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use testkit::process::{Client, Family, Quickack, Redis, freeze, send, wait_until};

use super::harness::{self, workers};

const MANY: usize = 300;

/// Returns the answer to `clients` with these words.
#[track_caller]
fn ask(quickack: &Quickack, words: &str) -> Value {
    let text = quickack.ask(&format!("clients {words} --json"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the clients of an answer by their numbers.
#[track_caller]
fn by_id(answer: &Value) -> BTreeMap<u64, Value> {
    let rows = answer["clients"].as_array().unwrap_or_else(|| panic!("no list: {answer}"));
    let all: BTreeMap<u64, Value> =
        rows.iter().map(|row| (row["id"].as_u64().expect("a number"), row.clone())).collect();
    assert_eq!(all.len(), rows.len(), "numbers differ");
    all
}

fn address(client: &Client) -> String {
    client.stream.local_addr().expect("it is connected").to_string()
}

fn addresses(all: &BTreeMap<u64, Value>) -> BTreeSet<String> {
    all.values().map(|row| row["address"].as_str().expect("a text").to_string()).collect()
}

/// Connects clients that have asked once each, so that a worker has them.
fn connect(quickack: &Quickack, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| quickack.client()).collect();
    clients.iter_mut().for_each(|client| client.ask("get k\r\n", "END\r\n"));
    clients
}

fn ids_of(quickack: &Quickack, client: &Client) -> u64 {
    let all = by_id(&ask(quickack, &format!("--address {}", address(client))));
    assert_eq!(all.len(), 1, "{all:?}");
    *all.keys().next().expect("there is one")
}

#[test]
fn every_client_of_every_worker_is_listed_once_with_what_it_did() {
    let (_memcached, quickack) = harness::field(4, &[], &[]);
    let mut clients = connect(&quickack, MANY);
    let loud = &mut clients[7];
    (0..20).for_each(|_| loud.ask("get k\r\n", "END\r\n"));
    let answer = ask(&quickack, "");
    let all = by_id(&answer);
    let wanted: BTreeSet<String> = clients.iter().map(address).collect();
    assert_eq!(addresses(&all), wanted);
    assert_eq!((&answer["missing"], &answer["left_out"]), (&Value::Array(vec![]), &0.into()));
    let slots: BTreeSet<u64> = all.values().filter_map(|row| row["worker"].as_u64()).collect();
    assert!(slots.len() > 1, "several workers have clients: {slots:?}");
    let row = all.values().find(|row| row["address"] == address(&clients[7])).expect("it is here");
    for (name, expected) in [("requests", 21), ("received_bytes", 147), ("sent_bytes", 105)] {
        assert_eq!(row[name], expected, "{name} of {row:#}");
    }
    let listener = quickack.address().to_string();
    assert_eq!((&row["pool"], &row["listener"]), (&"alpha".into(), &listener.into()));
    // Orders, filters, and the table for people.
    let first = ask(&quickack, "--sort requests --limit 1");
    assert_eq!(first["clients"][0]["address"], address(&clients[7]));
    for name in ["--pool", "--tenant"] {
        assert!(!quickack.admin(&["clients", name, "beta"]).ok, "there is none of this name");
    }
    assert_eq!(by_id(&ask(&quickack, "--address 127.0.0.1")).len(), MANY);
    assert_eq!(by_id(&ask(&quickack, "--sort age --limit 5")).len(), 5);
    let text = quickack.admin_ok(&["clients", "--address", &address(&clients[7])]);
    assert!(text.starts_with("ID ") && text.lines().count() == 2, "{text}");
    assert!(!quickack.admin(&["clients", "--address", "nowhere"]).ok);
}

#[test]
fn a_worker_that_dies_takes_its_clients_from_the_list_and_no_number_comes_twice() {
    let (_memcached, quickack) = harness::field(4, &[], &[]);
    let clients = connect(&quickack, 100);
    let before = by_id(&ask(&quickack, ""));
    let victim = before.values().next().expect("a client")["worker"].as_u64().expect("a number");
    send(workers(&quickack)[&(victim as usize)].pid, Signal::KILL);
    let left: BTreeSet<u64> =
        before.iter().filter(|(_, row)| row["worker"] != victim).map(|(id, _)| *id).collect();
    assert!(!left.is_empty() && left.len() < clients.len());
    wait_until("only its clients have gone", || {
        by_id(&ask(&quickack, "")).keys().copied().collect::<BTreeSet<u64>>() == left
    });
    harness::wait_for_workers(&quickack, 4);
    let _more = connect(&quickack, 100);
    let after = by_id(&ask(&quickack, ""));
    let new: BTreeSet<u64> = after.keys().copied().filter(|id| !left.contains(id)).collect();
    assert_eq!(new.len(), 100);
    assert!(new.iter().all(|id| !before.contains_key(id)), "a successor gives out other numbers");
}

#[test]
fn a_stopped_worker_is_named_after_the_deadline_and_the_others_are_shown() {
    let (_memcached, quickack) = harness::field(4, &[], &[]);
    let clients = connect(&quickack, MANY);
    let before = by_id(&ask(&quickack, ""));
    let stopped = workers(&quickack)[&2].pid;
    freeze(stopped);
    let start = Instant::now();
    let answer = ask(&quickack, "");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(answer["missing"][0]["worker"], 2, "{}", answer["missing"]);
    assert_eq!(answer["missing"].as_array().map(Vec::len), Some(1));
    let others = before.iter().filter(|(_, row)| row["worker"] != 2).map(|(id, _)| *id);
    assert_eq!(by_id(&answer).into_keys().collect::<Vec<u64>>(), others.collect::<Vec<u64>>());
    let text = quickack.admin_ok(&["clients"]);
    assert!(text.contains("worker 2 is missing: it did not answer in time"), "{text}");
    send(stopped, Signal::CONT);
    wait_until("all are shown again", || {
        let answer = ask(&quickack, "");
        answer["missing"].as_array().is_some_and(Vec::is_empty)
            && by_id(&answer).len() == clients.len()
    });
}

#[test]
fn of_more_questions_than_may_wait_for_a_stopped_worker_the_last_are_refused() {
    let (_memcached, quickack) = harness::field(1, &["hang_timeout: 0"], &[]);
    let stopped = workers(&quickack)[&0].pid;
    freeze(stopped);
    // All of them are there when the master goes on.
    quickack.process.freeze();
    let asked: Vec<UnixStream> = (0..40).map(|_| quickack.begin_to_ask("clients")).collect();
    quickack.process.thaw();
    let answers: Vec<String> = asked.into_iter().map(Quickack::read_answer).collect();
    send(stopped, Signal::CONT);
    let with = |words: &str| answers.iter().filter(|text| text.contains(words)).count();
    let refused = with("too many questions are being answered; ask again in a moment");
    assert!((1..=20).contains(&refused), "{refused} are refused: {answers:?}");
    assert_eq!(refused + with("worker 0 is missing: it "), 40, "{answers:?}");
}

/// The first is answered by one worker already when the second is asked.
#[test]
fn two_questions_at_once_have_an_answer_each() {
    let (_memcached, quickack) = harness::field(2, &["hang_timeout: 0"], &[]);
    let clients = connect(&quickack, 40);
    let stopped = workers(&quickack)[&0].pid;
    wait_until("both are answered before their time is over", || {
        freeze(stopped);
        let asked = ["clients", "clients --in-pieces"].map(|line| quickack.begin_to_ask(line));
        // The master has read both lines before it answers this one.
        quickack.ask("workers");
        send(stopped, Signal::CONT);
        let [list, pieces] = asked.map(Quickack::read_answer);
        let is_late = [&list, &pieces].iter().any(|text| text.contains("is missing"));
        let is_whole = clients.iter().all(|client| list.contains(&address(client)));
        let are_their_own = is_whole && pieces.contains("in pieces");
        assert!(is_late || are_their_own, "{list}{pieces}");
        !is_late
    });
}

#[test]
fn a_worker_that_dies_while_it_is_asked_is_named_at_once() {
    let (_memcached, quickack) = harness::field(4, &[], &[]);
    let _clients = connect(&quickack, 40);
    let victim = workers(&quickack)[&1].pid;
    freeze(victim);
    let answer = std::thread::scope(|scope| {
        let master = quickack.process.facts();
        let before = master.descriptors();
        let asked = scope.spawn(|| ask(&quickack, ""));
        // A connection to the admin socket is open while somebody waits for an answer.
        wait_until("it is being asked", || master.descriptors() > before);
        send(victim, Signal::KILL);
        asked.join().expect("it answers")
    });
    let missing = answer["missing"].as_array().expect("a list").clone();
    // It may have died before it was asked: then it is not there, and its clients neither.
    let named = missing.iter().all(|one| one["why"] == "it ended while it was asked");
    assert!(named && missing.len() <= 1, "{missing:?}");
    assert!(by_id(&answer).values().all(|row| row["worker"] != 1));
}

#[test]
fn clients_keep_their_numbers_and_counts_when_a_reload_gives_them_to_other_workers() {
    let (memcached, quickack) = harness::field(4, &[], &[]);
    let mut clients = connect(&quickack, 60);
    let before = by_id(&ask(&quickack, ""));
    quickack.rewrite(&harness::text(1, &[], &[memcached.address], &[]));
    quickack.admin_ok(&["reload"]);
    harness::wait_for_workers(&quickack, 1);
    harness::wait_for_clients(&quickack, 60);
    let after = by_id(&ask(&quickack, ""));
    let short = |all: &BTreeMap<u64, Value>| {
        let row = |(id, row): (&u64, &Value)| {
            (*id, row["address"].clone(), row["requests"].clone(), row["sent_bytes"].clone())
        };
        all.iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(short(&before), short(&after));
    assert!(after.values().all(|row| row["worker"] == 0));
    for (id, row) in &after {
        assert!(row["age_us"].as_u64() > before[id]["age_us"].as_u64(), "{row:#}");
    }
    clients.iter_mut().for_each(|client| client.ask("get k\r\n", "END\r\n"));
}

#[test]
fn a_client_killed_amid_its_requests_is_closed_and_nobody_else_is_harmed() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    let mut others = connect(&quickack, 20);
    let mut victim = connect(&quickack, 1).remove(0);
    let id = ids_of(&quickack, &victim);
    // A pipeline whose last request is half there.
    victim.send("set a 0 0 1\r\n1\r\nget a\r\nset b 0 0 1000\r\nxxx");
    let load = harness::load(&quickack, 8, testkit::load::Options::default());
    let text = quickack.admin_ok(&["clients", "kill", &id.to_string()]);
    assert!(text.starts_with(&format!("closed {id} ({}, pool alpha)", address(&victim))), "{text}");
    victim.rest();
    load.wait_for_requests(1_000);
    load.stop().assert_unharmed();
    others.iter_mut().for_each(|client| client.ask("get nobody\r\n", "END\r\n"));
    let stats = harness::stats(&quickack);
    assert_eq!(stats["pools"][0]["clients_killed_total"], 1);
    let log = quickack.process.stderr_text();
    assert!(log.contains(&format!("`clients kill` has closed 1 client: {id} (")), "{log}");
    let again = quickack.admin(&["clients", "kill", &id.to_string()]);
    assert!(!again.ok && again.text.contains("no client is like that"), "{}", again.text);
    let bare = quickack.admin(&["clients", "kill"]);
    assert!(!bare.ok && bare.text.contains("needs a number"), "{}", bare.text);
    // By address: the others are all from there.
    let answer = ask(&quickack, "kill --address 127.0.0.1");
    assert_eq!(answer["killed"].as_array().map(Vec::len), Some(20), "{answer}");
    others.iter_mut().for_each(|client| assert_eq!(client.rest(), ""));
}

#[test]
fn the_busiest_clients_are_those_of_the_last_seconds() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    let mut once = quickack.client();
    (0..20).for_each(|_| once.ask("get k\r\n", "END\r\n"));
    let load = harness::load(&quickack, 1, testkit::load::Options::default());
    load.wait_for_requests(1_000);
    // The first question begins the measurement, and is answered a second later.
    let answer = ask(&quickack, "--busiest");
    let busiest = answer["clients"][0].clone();
    let all = by_id(&ask(&quickack, ""));
    assert_ne!(busiest["address"], address(&once), "{answer}");
    assert!(busiest["recent_requests"].as_u64() > Some(0), "{busiest:#}");
    assert!(busiest["requests"].as_u64() >= busiest["recent_requests"].as_u64(), "{busiest:#}");
    assert_eq!(all.len(), 2);
    let text = quickack.admin_ok(&["clients", "--busiest"]);
    assert!(
        text.contains("REQ/S") && text.contains("no client sends requests in pieces"),
        "{text}"
    );
    load.stop().assert_unharmed();
}

#[test]
fn the_addresses_of_clients_that_send_in_pieces_are_listed() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    let mut clients = connect(&quickack, 32);
    // The rest must come within 5 ms, which is rare on a busy machine: one round in time is enough.
    let mut sent = 0;
    wait_until("some requests in pieces are counted", || {
        clients.iter_mut().for_each(|client| client.send("get "));
        std::thread::yield_now();
        clients.iter_mut().for_each(|client| client.send("k\r\n"));
        clients.iter_mut().for_each(|client| client.expect("END\r\n"));
        sent += clients.len() as u64;
        let stats = harness::stats(&quickack);
        stats["pools"][0]["stalls_cured_total"].as_u64() >= Some(20)
    });
    let cured = harness::stats(&quickack)["pools"][0]["stalls_cured_total"].as_u64();
    let answer = ask(&quickack, "--in-pieces");
    let row = &answer["in_pieces"][0];
    let number = |field: &str| row[field].as_u64().expect("a number");
    let in_time = number("count") - number("late");
    assert_eq!((&row["address"], Some(in_time)), (&"127.0.0.1".into(), cured), "{answer}");
    assert!(number("late") > 0 || number("latest_us") <= 5_000, "{answer}");
    assert!(number("count") <= sent, "{answer}");
    let text = quickack.admin_ok(&["clients", "--in-pieces"]);
    assert!(text.starts_with("ADDRESS ") && text.contains("127.0.0.1"), "{text}");
}

#[test]
fn a_client_of_redis_is_shown_with_its_name_number_database_and_version() {
    let redis = Redis::start(Family::Redis70);
    let quickack = super::redis::quickack(&[redis.address], &[]);
    let mut client = quickack.client();
    client.send("HELLO 3\r\nCLIENT SETNAME web-7\r\n");
    client.read_until("+OK\r\n");
    client.ask("SELECT 5\r\n", "+OK\r\n");
    client.send("CLIENT ID\r\n");
    let id: u64 = client.line().trim_start_matches(':').parse().expect("a number");
    let row = by_id(&ask(&quickack, &format!("--address {}", address(&client)))).remove(&id);
    let row = row.expect("its number is that of the list");
    assert_eq!((&row["name"], &row["protocol"]), (&"web-7".into(), &"redis".into()));
    assert_eq!((&row["database"], &row["protocol_version"]), (&5.into(), &3.into()), "{row:#}");
    assert_eq!(row["requests"], 4, "{row:#}");
}
