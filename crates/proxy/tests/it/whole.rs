//! Redis requests through the data plane, step by step: changes that go to several servers or to
//! none, a list as long as requested, and scripts that a server has lost.

use proto::protocol;
use proxy::{Closed, ConnId, limits};
use shard::Distribution;

use crate::stage::{SECOND, Stage};

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const GATED: [&str; 4] = ["flushall", "flushdb", "script|flush", "function|flush"];
const WELCOME: &str = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n\
    $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:5\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
    $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";

/// A pool of Redis servers.
fn redis(servers: &[&str], limit: impl FnOnce(&mut limits::Limits)) -> Stage {
    Stage::of(servers, |plan| {
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
        plan.pools[0].distribution = Distribution::Modula;
        plan.pools[0].allow = GATED.map(String::from).to_vec();
        limit(&mut plan.limits);
    })
}

/// Sends a request in one write.
fn asks(stage: &mut Stage, client: ConnId, words: &str) {
    let text = resp(words);
    stage.says(client, &text);
}

fn resp(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let mut text = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| text.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    text
}

/// Brings up the link to this server, for which a connect was ordered.
fn comes_up(stage: &mut Stage, server: usize) -> ConnId {
    stage.connects.sort_by_key(|(_, asked)| *asked != server);
    assert_eq!(stage.connects[0].1, server, "a link to it was asked for");
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    link
}

/// The keys of one server each, and the links that are up.
fn field(limit: impl FnOnce(&mut limits::Limits)) -> (Stage, ConnId, [String; 2], [ConnId; 2]) {
    let mut stage = redis(&["s0", "s1"], limit);
    let client = stage.client();
    let keys = [stage.key_of(0), stage.key_of(1)];
    let links = [0, 1].map(|server| {
        asks(&mut stage, client, &format!("GET {}", keys[server]));
        let link = comes_up(&mut stage, server);
        stage.turn(link);
        stage.says(link, "$-1\r\n");
        stage.received(client);
        link
    });
    (stage, client, keys, links)
}

/// Ends the second server's link, and fails its next connect in this manner.
fn loses(stage: &mut Stage, client: ConnId, keys: &[String; 2], link: ConnId, how: Closed) {
    stage.closes(link, Closed::Eof);
    asks(stage, client, &format!("GET {}", keys[1]));
    let (connect, server) = stage.connects.pop().expect("it is tried");
    assert_eq!(server, 1);
    stage.closes(connect, how);
    assert!(stage.received(client).starts_with("-ERR s1: "));
}

/// Checks that nothing of each change reaches the server that is well.
fn check_refused(stage: &mut Stage, client: ConnId, keys: &[String; 2], link: ConnId, why: &str) {
    let [one, two] = keys;
    let [by_key, by_all] = [
        vec![
            format!("MSET {one} 1 {two} 2"),
            format!("DEL {one} {two}"),
            format!("UNLINK {one} {two}"),
        ],
        ["FLUSHALL", "FLUSHDB", "SCRIPT LOAD x", "SCRIPT FLUSH", "FUNCTION FLUSH"]
            .map(String::from)
            .to_vec(),
    ];
    for words in by_key.iter().chain(&by_all) {
        asks(stage, client, words);
        assert_eq!(stage.turn(link), "", "{words}");
        assert_eq!(stage.received(client), format!("-ERR s1: {why}\r\n"), "{words}");
    }
    // The server that is well may get a link for slow requests.
    assert!(stage.connects.iter().all(|(_, server)| *server == 0), "{:?}", stage.connects);
}

#[test]
fn a_change_at_several_servers_is_sent_to_none_of_them_if_one_is_down() {
    let (mut stage, client, keys, [link, other]) = field(|_| {});
    loses(&mut stage, client, &keys, other, Closed::Reset);
    check_refused(&mut stage, client, &keys, link, "down, waiting for it to come back");
    // Reads go to the servers that can be asked.
    for words in
        [format!("MGET {} {}", keys[0], keys[1]), format!("EXISTS {} {}", keys[0], keys[1])]
    {
        asks(&mut stage, client, &words);
        let name = words.split(' ').next().unwrap_or_default();
        assert!(stage.turn(link).contains(&name.to_lowercase()), "{words}");
        stage.says(link, if name == "MGET" { "*1\r\n$-1\r\n" } else { ":0\r\n" });
        let told = "-ERR s1: down, waiting for it to come back\r\n";
        assert_eq!(stage.received(client), told, "{words}");
    }
    // So do changes for one server.
    asks(&mut stage, client, &format!("DEL {0} {0}", keys[0]));
    assert!(stage.turn(link).contains("DEL"));
}

#[test]
fn a_change_at_several_servers_is_sent_to_none_of_them_if_one_can_have_no_socket() {
    let (mut stage, client, keys, [link, other]) = field(|_| {});
    loses(&mut stage, client, &keys, other, Closed::Own);
    check_refused(&mut stage, client, &keys, link, "no connection could be made, not sent");
}

/// What waits of others is no reason to refuse it; what waits of its own client delays it whole.
#[test]
fn a_change_at_several_servers_is_sent_to_none_of_them_while_its_clients_share_is_full() {
    let narrow = |limits: &mut limits::Limits| (limits.link_queue, limits.inflight) = (2, 1);
    let (mut stage, client, keys, [link, other]) = field(narrow);
    let waiting = stage.client();
    for _ in 0..2 {
        asks(&mut stage, waiting, &format!("GET {}", keys[1]));
    }
    asks(&mut stage, client, &format!("MSET {} 1 {} 2", keys[0], keys[1]));
    assert!(stage.turn(link).contains("mset"));
    assert_eq!(stage.turn(other), resp(&format!("GET {}", keys[1])));
    assert_eq!(stage.paused, [waiting, client]);
    asks(&mut stage, client, &format!("MSET {} 3 {} 4", keys[0], keys[1]));
    stage.says(link, "+OK\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(other, "$-1\r\n");
    assert_eq!(stage.turn(other), resp(&format!("GET {}", keys[1])));
    stage.says(other, "$-1\r\n");
    assert_eq!(stage.turn(link), "");
    assert!(stage.turn(other).contains("mset"));
    stage.says(other, "+OK\r\n");
    // Now its share has room, and both servers get their part before either answers.
    assert!(stage.turn(link).contains("mset") && stage.turn(other).contains("mset"));
    stage.says(link, "+OK\r\n");
    stage.says(other, "+OK\r\n");
    assert_eq!(stage.received(client), "+OK\r\n".repeat(2));
    assert_eq!(stage.paused, []);
}

/// One request makes three messages: room for the first is not enough.
#[test]
fn a_change_that_would_fill_a_queue_by_itself_is_refused_whole_or_sent_whole() {
    for (room, is_sent) in [(2, false), (8, true)] {
        let (mut stage, client, keys, [link, other]) = field(|limits| limits.link_queue = room);
        let value = "v".repeat(9_000);
        let mine = format!("{} {value}", keys[1]);
        asks(&mut stage, client, &format!("MSET {} 1 {mine} {mine} {mine}", keys[0]));
        let (one, more) = (stage.turn(link), stage.turn(other));
        match is_sent {
            true => {
                assert_eq!((one.matches("mset").count(), more.matches("mset").count()), (1, 3));
                stage.says(link, "+OK\r\n");
                stage.says(other, "+OK\r\n+OK\r\n+OK\r\n");
                assert_eq!(stage.received(client), "+OK\r\n");
            }
            false => {
                assert_eq!((one.as_str(), more.as_str()), ("", ""));
                assert!(stage.received(client).ends_with(": queue full, not sent\r\n"));
            }
        }
        stage.expect_rows(0);
    }
}

/// The rule holds for memcached as well, even if no client waits for the answer.
#[test]
fn a_flush_all_is_sent_to_no_server_if_one_is_down() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.distribution = Distribution::Modula;
        pool.allow = vec!["flush_all".to_string()];
        pool.preconnect = true;
    });
    let client = stage.client();
    let link = stage.connect(0);
    let (other, _) = stage.connects.pop().expect("both are connected");
    stage.closes(other, Closed::Reset);
    let told = "SERVER_ERROR s1: down, waiting for it to come back\r\n";
    stage.says(client, "flush_all\r\nflush_all noreply\r\nflush_all 10\r\n");
    assert_eq!((stage.turn(link), stage.received(client)), (String::new(), told.repeat(2)));
    stage.passes(SECOND);
    let back = stage.connect(1);
    stage.says(client, "flush_all\r\n");
    assert_eq!([stage.turn(link), stage.turn(back)], ["flush_all\r\n"; 2]);
}

#[test]
fn a_list_of_another_length_than_was_asked_for_ends_the_link_of_one_server_as_well() {
    for wrong in
        ["*1\r\n$-1\r\n", "*3\r\n$-1\r\n$-1\r\n$-1\r\n", "*0\r\n", "$-1\r\n", ":2\r\n", "*3\r\n"]
    {
        let mut stage = redis(&["s0"], |_| {});
        let client = stage.client();
        asks(&mut stage, client, "MGET a b");
        let link = comes_up(&mut stage, 0);
        assert_eq!(stage.turn(link), resp("MGET a b"));
        stage.says(link, "*2\r\n$1\r\n1\r\n$-1\r\n");
        assert_eq!(stage.received(client), "*2\r\n$1\r\n1\r\n$-1\r\n");
        asks(&mut stage, client, "MGET a b");
        stage.turn(link);
        stage.says(link, wrong);
        let told = "-ERR s0: unexpected reply, connection closed\r\n";
        assert_eq!(
            (stage.received(client).as_str(), &stage.closed[..]),
            (told, &[link][..]),
            "{wrong}"
        );
    }
}

/// It may be the reply to another request, where the pool has one server as well.
#[test]
fn a_reply_of_another_type_than_a_command_can_have_ends_the_link() {
    for (asked, wrong) in [
        ("DEL a", "*1\r\n:1\r\n"),
        ("DEL a", "$1\r\n1\r\n"),
        ("EXISTS a b", "+OK\r\n"),
        ("INCR a", "$-1\r\n"),
        ("SCAN 0", ":7\r\n"),
        ("SCAN 0", "$1\r\n0\r\n"),
        ("KEYS *", ":0\r\n"),
    ] {
        let mut stage = redis(&["s0"], |_| {});
        let [asker, reader] = [stage.client(), stage.client()];
        asks(&mut stage, reader, "GET x");
        let link = comes_up(&mut stage, 0);
        assert_eq!(stage.turn(link), resp("GET x"));
        stage.says(link, "$1\r\n1\r\n");
        assert_eq!(stage.received(reader), "$1\r\n1\r\n");
        asks(&mut stage, asker, asked);
        asks(&mut stage, reader, "GET x");
        let own = if asked == "KEYS *" { comes_up(&mut stage, 0) } else { link };
        assert!(stage.turn(own).starts_with(&resp(asked)), "{asked}");
        stage.turn(link);
        stage.says(own, wrong);
        assert_eq!(stage.closed, [own], "{asked} {wrong}");
        assert!(stage.received(asker).contains("unexpected reply"), "{asked}");
        if own == link {
            let next = comes_up(&mut stage, 0);
            assert_eq!(stage.turn(next), resp("GET x"), "{asked}");
        }
    }
}

const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
const NO_SCRIPT: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// The lost script is not retried past a later request of its client; but the next call finds it.
#[test]
fn a_script_that_is_missed_in_a_pipeline_is_loaded_for_the_next_call() {
    let mut stage = redis(&["s0"], |_| {});
    let client = stage.client();
    asks(&mut stage, client, "SCRIPT LOAD 1");
    let link = comes_up(&mut stage, 0);
    stage.turn(link);
    let answer = format!("$40\r\n{DIGEST}\r\n");
    stage.says(link, &answer);
    assert_eq!(stage.received(client), answer);
    let call = resp(&format!("EVALSHA {DIGEST} 1 k"));
    let set = resp("SET k v");
    let load = resp("SCRIPT LOAD 1");
    // As long as nobody knows how long it takes, calls leave one at a time.
    stage.says(client, &call);
    assert_eq!(stage.turn(link), call);
    stage.says(link, ":1\r\n");
    assert_eq!(stage.received(client), ":1\r\n");
    stage.says(client, &[&call[..], &call, &set].concat());
    assert_eq!(stage.turn(link), [&call[..], &call, &set].concat());
    stage.says(link, NO_SCRIPT);
    stage.says(link, &format!("{NO_SCRIPT}+OK\r\n"));
    assert_eq!(stage.received(client), format!("{NO_SCRIPT}{NO_SCRIPT}+OK\r\n"));
    // It is loaded once, although two calls have missed it. A request that comes before the answer,
    // from this client or another, stands behind the load.
    let other = stage.client();
    stage.says(other, &call);
    assert_eq!(stage.turn(link), [&load[..], &call].concat());
    stage.says(link, &format!("{answer}:1\r\n"));
    assert_eq!(stage.received(other), ":1\r\n");
    // If it is lost again, it is loaded again.
    stage.says(client, &[&call[..], &set].concat());
    stage.turn(link);
    stage.says(link, &format!("{NO_SCRIPT}+OK\r\n"));
    assert_eq!(stage.turn(link), load);
    stage.says(link, &answer);
    assert_eq!(stage.received(client), format!("{NO_SCRIPT}+OK\r\n"));
    stage.expect_rows(0);
}

/// The second call finds the load on its way.
#[test]
fn a_script_that_two_clients_miss_is_loaded_once_and_both_are_answered() {
    let mut stage = redis(&["s0"], |_| {});
    let clients = [stage.client(), stage.client()];
    asks(&mut stage, clients[0], "SCRIPT LOAD 1");
    let link = comes_up(&mut stage, 0);
    stage.turn(link);
    let answer = format!("$40\r\n{DIGEST}\r\n");
    stage.says(link, &answer);
    stage.received(clients[0]);
    let (call, load) = (resp(&format!("EVALSHA {DIGEST} 1 k")), resp("SCRIPT LOAD 1"));
    clients.iter().for_each(|client| stage.says(*client, &call));
    assert_eq!(stage.turn(link), [&call[..], &call].concat());
    stage.says(link, &NO_SCRIPT.repeat(2));
    stage.passes(0);
    assert_eq!(stage.turn(link), [&load[..], &call, &call].concat());
    stage.says(link, &format!("{answer}:1\r\n:2\r\n"));
    let told = clients.map(|client| stage.received(client));
    assert!(told == [":1\r\n", ":2\r\n"] || told == [":2\r\n", ":1\r\n"], "{told:?}");
    stage.expect_rows(0);
}

/// A server that forgets the script at once does not get it for ever.
#[test]
fn a_script_is_loaded_once_for_each_call_that_misses_it() {
    let mut stage = redis(&["s0"], |_| {});
    let client = stage.client();
    asks(&mut stage, client, "SCRIPT LOAD 1");
    let link = comes_up(&mut stage, 0);
    stage.turn(link);
    let answer = format!("$40\r\n{DIGEST}\r\n");
    stage.says(link, &answer);
    stage.received(client);
    let (call, load) = (resp(&format!("EVALSHA {DIGEST} 1 k")), resp("SCRIPT LOAD 1"));
    stage.says(client, &call);
    assert_eq!(stage.turn(link), call);
    stage.says(link, NO_SCRIPT);
    stage.passes(0);
    assert_eq!(stage.turn(link), [&load[..], &call].concat());
    stage.says(link, &format!("{answer}{NO_SCRIPT}"));
    assert_eq!((stage.turn(link).as_str(), stage.received(client).as_str()), ("", NO_SCRIPT));
    stage.expect_rows(0);
}

#[test]
fn a_repeated_mget_goes_to_all_its_servers_when_the_ring_has_changed_meanwhile() {
    let (mut stage, client, keys, links) = field(|_| {});
    stage.set_ejected(crate::stage::S0 + 1, true);
    let words = format!("MGET {} {}", keys[0], keys[1]);
    asks(&mut stage, client, &words);
    assert_eq!(stage.turn(links[0]), resp(&words), "one server has all keys");
    stage.says(links[0], "-LOADING Redis is loading the dataset in memory\r\n");
    stage.set_ejected(crate::stage::S0 + 1, false);
    stage.passes(SECOND / 100);
    for (link, key) in links.iter().zip(&keys) {
        assert_eq!(stage.turn(*link), resp(&format!("mget {key}")));
        stage.says(*link, "*1\r\n$1\r\nv\r\n");
    }
    assert_eq!(stage.received(client), "*2\r\n$1\r\nv\r\n$1\r\nv\r\n");
    stage.expect_rows(0);
}

#[test]
fn reads_of_a_lost_link_are_asked_once_more_in_their_order() {
    let (mut stage, client, keys, links) = field(|_| {});
    let key = &keys[0];
    asks(&mut stage, client, &format!("GET {key}"));
    asks(&mut stage, client, &format!("MGET {key} {}", keys[1]));
    asks(&mut stage, client, &format!("STRLEN {key}"));
    let asked = stage.turn(links[0]);
    assert_eq!(asked, ["GET", "mget", "STRLEN"].map(|it| resp(&format!("{it} {key}"))).concat());
    stage.closes(links[0], Closed::Eof);
    let link = comes_up(&mut stage, 0);
    assert_eq!(stage.turn(link), asked);
}

#[test]
fn a_client_that_another_worker_hands_over_takes_the_place_of_a_database_that_nobody_uses() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
        plan.pools[0].databases = 100;
        plan.clients_max = 1000;
    });
    for database in 1..limits::CONN_KEYS_MAX {
        let client = stage.client();
        asks(&mut stage, client, &format!("SELECT {database}"));
        asks(&mut stage, client, "GET k");
        let hello = format!("{}{HELLO}", resp(&format!("SELECT {database}")));
        let link = stage.establishes_with(&hello);
        stage.says(link, &format!("+OK\r\n{WELCOME}"));
        stage.turn(link);
        stage.says(link, "$-1\r\n");
        stage.received(client);
        stage.closes(client, Closed::Eof);
    }
    let client = stage.client();
    asks(&mut stage, client, "PING");
    stage.received(client);
    let mut passed = stage.passed().pop().expect("it has nothing outstanding");
    passed.session.conn_key.database = 99;
    let client = stage.adopt(passed);
    asks(&mut stage, client, "GET k");
    stage.establishes_with(&format!("{}{HELLO}", resp("SELECT 99")));
    assert!(stage.closed.len() > limits::CONN_KEYS_MAX, "links that no client uses are closed");
}
