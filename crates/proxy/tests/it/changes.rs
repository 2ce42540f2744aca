//! Changes at several servers, step by step. They wait until the links to all servers are up, and
//! are sent to all or to none.

use proto::protocol;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::Stage;

const WELCOME: &str = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n\
    $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:5\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
    $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
const DOWN: &str = "-ERR s1: down, waiting for it to come back\r\n";
const LOGIN_REFUSED: &str = "-ERR s1: down, waiting for it to come back (login refused: NOAUTH \
                             Authentication required.)\r\n";
const UNABLE: &str = "-ERR s1: no connection could be made, not sent\r\n";
/// Longer than a client waits before its request counts as held.
const WHILE: u64 = 50_000;

fn hello(version: u8) -> String {
    resp(&format!("HELLO {version}"))
}

fn resp(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let mut text = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| text.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    text
}

/// Makes the connect to this server the next to end.
fn next(stage: &mut Stage, server: usize) {
    stage.connects.sort_by_key(|(_, asked)| *asked != server);
    assert_eq!(stage.connects[0].1, server, "a link to it was asked for");
}

fn comes_up(stage: &mut Stage, server: usize) -> ConnId {
    next(stage, server);
    let link = stage.establishes_with(&hello(2));
    stage.says(link, WELCOME);
    link
}

/// Two servers, and a link to the first only.
fn field() -> (Stage, ConnId, [String; 2], ConnId) {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.distribution = Distribution::Modula;
        pool.allow = vec!["flushall".into(), "script|flush".into()];
        // All requests take the shared links.
        pool.class_links = 0;
    });
    let client = stage.client();
    let keys = [stage.key_of(0), stage.key_of(1)];
    stage.says(client, &resp(&format!("GET {}", keys[0])));
    let link = comes_up(&mut stage, 0);
    stage.turn(link);
    stage.says(link, "$-1\r\n");
    stage.received(client);
    (stage, client, keys, link)
}

fn changes(keys: &[String; 2]) -> Vec<String> {
    let [one, two] = keys;
    let by_key = [format!("MSET {one} 1 {two} 2"), format!("DEL {one} {two}")];
    let by_all = ["FLUSHALL", "SCRIPT LOAD x", "SCRIPT FLUSH"].map(String::from);
    by_key.into_iter().chain(by_all).collect()
}

/// The end of the connect to the second server, and the client's error.
type Failure = (fn(&mut Stage), &'static str);

const FAILURES: [Failure; 5] = [
    (|stage| closes(stage, Closed::Reset), DOWN),
    (|stage| closes(stage, Closed::Own), UNABLE),
    (
        |stage| {
            let timeouts = stage.plan.pools[0].timeouts;
            stage.passes(timeouts.connect);
            stage.connects.clear();
        },
        DOWN,
    ),
    (
        |stage| {
            let link = stage.establishes_with(&hello(2));
            stage.says(link, "-NOAUTH Authentication required.\r\n");
        },
        LOGIN_REFUSED,
    ),
    (
        |stage| {
            stage.establishes_with(&hello(2));
            let timeouts = stage.plan.pools[0].timeouts;
            stage.passes(timeouts.reply);
        },
        DOWN,
    ),
];

fn closes(stage: &mut Stage, how: Closed) {
    let (link, _) = stage.connects.remove(0);
    stage.closes(link, how);
}

#[test]
fn a_change_is_sent_to_no_server_if_the_link_to_one_does_not_come_to_be() {
    for change in 0..5 {
        for (fails, told) in FAILURES {
            let (mut stage, client, keys, link) = field();
            let words = &changes(&keys)[change];
            let get = resp(&format!("GET {}", keys[0]));
            stage.says(client, &[&resp(words)[..], &get].concat());
            assert_eq!(stage.turn(link), "", "{words}: it waits, and so does what follows it");
            assert_eq!(stage.received(client), "", "{words}");
            fails(&mut stage);
            stage.end_turn();
            assert_eq!(stage.turn(link), get, "{words}");
            stage.says(link, "$-1\r\n");
            assert_eq!(stage.received(client), format!("{told}$-1\r\n"), "{words}");
            stage.expect_rows(0);
        }
    }
}

#[test]
fn a_change_is_sent_to_all_servers_once_the_links_to_all_stand() {
    for change in 0..5 {
        let (mut stage, client, keys, link) = field();
        let words = &changes(&keys)[change];
        let get = resp(&format!("GET {}", keys[1]));
        stage.says(client, &[&resp(words)[..], &get].concat());
        assert_eq!(stage.turn(link), "");
        let other = comes_up(&mut stage, 1);
        stage.end_turn();
        let name = &words.split(' ').next().unwrap_or_default().to_lowercase();
        assert!(stage.turn(link).to_lowercase().contains(name), "{words}");
        let heard = stage.turn(other);
        assert!(heard.to_lowercase().contains(name) && heard.ends_with(&get), "{heard:?}");
    }
}

/// A proxy or worker that has just begun has no links at all.
#[test]
fn a_first_change_asks_for_all_links_at_once_and_waits_for_the_last() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| pool.allow = vec!["flush_all".into()]);
    let (client, quiet) = (stage.client(), stage.client());
    stage.says(client, "flush_all\r\n");
    stage.says(quiet, "flush_all noreply\r\nmn\r\n");
    stage.end_turn();
    assert_eq!(stage.connects.len(), 2);
    let link = stage.connect(0);
    stage.end_turn();
    assert_eq!([stage.turn(link), stage.received(quiet)], ["", ""]);
    let (other, _) = stage.connects.remove(0);
    stage.closes(other, Closed::Reset);
    stage.end_turn();
    let told = "SERVER_ERROR s1: down, waiting for it to come back\r\n";
    assert_eq!([stage.turn(link), stage.received(client)], ["", told]);
    assert_eq!(stage.received(quiet), "MN\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_change_that_waits_is_dropped_with_who_waits_for_its_answer() {
    let allow = |pool: &mut proxy::plan::PoolPlan| pool.allow = vec!["flush_all".into()];
    for (words, sent) in [("flush_all\r\n", ""), ("flush_all noreply\r\n", "flush_all noreply\r\n")]
    {
        let mut stage = Stage::new(&["s0", "s1"], allow);
        let client = stage.client();
        stage.says(client, words);
        stage.end_turn();
        let link = stage.connect(0);
        stage.end_turn();
        stage.gives_up(client, Closed::Eof);
        stage.passes(WHILE);
        let other = stage.connect(1);
        stage.end_turn();
        let heard = [stage.turn(link), stage.turn(other)];
        let is_it = |heard: &String| heard.is_empty() == sent.is_empty();
        assert!(heard.iter().all(is_it), "{words:?}: {heard:?}");
        if !sent.is_empty() {
            stage.says(link, "OK\r\n");
            stage.says(other, "OK\r\n");
        }
        stage.expect_rows(0);
    }
}

#[test]
fn a_change_does_not_wait_for_a_server_that_leaves_the_plan() {
    let (mut stage, client, _, link) = field();
    stage.says(client, &resp("FLUSHALL"));
    assert_eq!(stage.turn(link), "");
    stage.install(|plan| drop(plan.pools[0].servers.pop()));
    stage.end_turn();
    assert_eq!(stage.turn(link), resp("FLUSHALL"));
    stage.says(link, "+OK\r\n");
    assert_eq!(stage.received(client), "+OK\r\n");
}

/// The change waits for links of its own RESP version, not for those of other clients.
#[test]
fn a_change_waits_for_the_links_of_its_clients_own_lane() {
    let (mut stage, client, keys, link) = field();
    stage.says(client, &resp(&format!("GET {}", keys[1])));
    let other = comes_up(&mut stage, 1);
    stage.turn(other);
    stage.says(other, "$-1\r\n");
    stage.says(client, &hello(3));
    stage.end_turn();
    stage.received(client);
    stage.says(client, &resp(&format!("MSET {} 1 {} 2", keys[0], keys[1])));
    stage.end_turn();
    next(&mut stage, 0);
    let mine = stage.establishes_with(&hello(3));
    stage.says(mine, &WELCOME.replace("*14", "%7").replace(":2", ":3"));
    next(&mut stage, 1);
    let refused = stage.establishes_with(&hello(3));
    stage.says(refused, "-NOPROTO unsupported protocol version\r\n");
    stage.end_turn();
    for link in [link, other, mine] {
        assert_eq!(stage.turn(link), "");
    }
    let told = "-ERR s1: refuses this database, or this version of the protocol: not sent\r\n";
    assert_eq!(stage.received(client), told);
    stage.expect_rows(0);
}

#[test]
fn a_read_on_a_lost_link_is_asked_once_more_and_a_change_is_not() {
    let (mut stage, client, keys, link) = field();
    let get = resp(&format!("GET {}", keys[0]));
    stage.says(client, &get);
    assert_eq!(stage.turn(link), get);
    stage.closes(link, Closed::Eof);
    let link = comes_up(&mut stage, 0);
    assert_eq!(stage.turn(link), get);
    stage.says(link, "$1\r\nx\r\n");
    assert_eq!(stage.received(client), "$1\r\nx\r\n");
    let incr = resp(&format!("INCR {}", keys[0]));
    stage.says(client, &incr);
    assert_eq!(stage.turn(link), incr);
    stage.closes(link, Closed::Eof);
    let told = stage.received(client);
    assert!(told.starts_with("-") && told.contains("outcome unknown"), "{told}");
}
