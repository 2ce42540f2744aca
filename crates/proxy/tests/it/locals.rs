//! Commands that the data plane answers by itself, or refuses.

use proto::protocol;
use proxy::{Closed, ConnId};

use crate::stage::{SECOND, Stage};

fn redis(servers: &[&str]) -> Stage {
    Stage::new(servers, |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.distribution = shard::Distribution::Modula;
    })
}

fn resp(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| text.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    text
}

/// Returns the answer to a request that no server is asked.
fn asks(stage: &mut Stage, client: ConnId, words: &[&str]) -> String {
    stage.says(client, &resp(words));
    stage.end_turn();
    assert_eq!(stage.connects, [], "no server is asked");
    stage.received(client)
}

#[test]
fn a_client_is_told_its_own_number_addresses_and_age() {
    let mut stage = redis(&["s0"]);
    let clients = [stage.client(), stage.client()];
    let ids = clients.map(|client| asks(&mut stage, client, &["CLIENT", "ID"]));
    assert_ne!(ids[0], ids[1]);
    assert_eq!(asks(&mut stage, clients[0], &["CLIENT", "ID"]), ids[0]);
    stage.passes(5 * SECOND);
    stage.passes(SECOND / 2);
    let told = asks(&mut stage, clients[1], &["CLIENT", "INFO"]);
    let id = ids[1].trim_start_matches(':').trim_end();
    let wanted = format!("id={id} addr=192.0.2.1:5001 laddr=192.0.2.9:6379 fd=7 name= age=5 ");
    assert!(told.contains(&wanted), "{told}");
    assert_eq!(stage.uptime(), 5);
}

#[test]
fn an_answer_of_our_own_is_for_a_request_of_64_kib_at_most() {
    let mut stage = redis(&["s0"]);
    let client = stage.client();
    let of_length = |len: usize| {
        let frame = resp(&["PING", &"x".repeat(60_000)]).len() - 60_000;
        "x".repeat(len - frame)
    };
    let word = of_length(64 * 1024);
    assert_eq!(resp(&["PING", &word]).len(), 64 * 1024);
    let pong = format!("${}\r\n{word}\r\n", word.len());
    assert_eq!(asks(&mut stage, client, &["PING", &word]), pong);
    for more in [1, 100] {
        let word = of_length(64 * 1024 + more);
        let told = asks(&mut stage, client, &["PING", &word]);
        assert_eq!(told, "-ERR the request is too large\r\n", "{more} bytes more");
    }
}

/// A cursor is the server's own times 1024, and the server's place.
#[test]
fn a_cursor_of_a_server_that_has_gone_is_refused() {
    let mut stage = redis(&["s0", "s1"]);
    let client = stage.client();
    stage.install(|plan| drop(plan.pools[0].servers.remove(0)));
    let refused = asks(&mut stage, client, &["SCAN", "5120"]);
    assert!(refused.starts_with("-ERR "), "{refused}");
    stage.says(client, &resp(&["SCAN", "5121"]));
    assert_eq!(stage.connects.len(), 1, "that of the other one is not");
}

/// Its keys are in the values that the pattern leads to.
#[test]
fn a_sort_by_other_keys_is_for_a_pool_of_one_server() {
    let words = ["SORT", "k", "BY", "weight_*"];
    let mut stage = redis(&["s0", "s1"]);
    let client = stage.client();
    let refused = asks(&mut stage, client, &words);
    assert!(refused.contains("only in a pool of one server"), "{refused}");
    let mut stage = redis(&["s0"]);
    let client = stage.client();
    stage.says(client, &resp(&words));
    assert_eq!(stage.connects.len(), 1, "{}", stage.received(client));
}

/// Its change may be asked for again on another connection.
#[test]
fn a_client_that_leaves_without_quit_gives_up_whatever_it_was_told_before() {
    let (set, quit, name) = (resp(&["SET", "k", "v"]), resp(&["QUIT"]), "CLIENT SETNAME x\r\n");
    for (before, after, is_sent) in [("", "", false), (name, "", false), ("", &quit[..], true)] {
        let mut stage = redis(&["s0"]);
        let (other, client) = (stage.client(), stage.client());
        stage.says(other, &resp(&["INCR", "n"]));
        let link = stage.establishes_with(&resp(&["HELLO", "2"]));
        stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
        assert_eq!(stage.turn(link), resp(&["INCR", "n"]));
        stage.passes(30_000);
        stage.says(client, &[before, &set, after].concat());
        assert_eq!(stage.turn(link), "", "the server is silent");
        stage.closes(client, Closed::Reset);
        stage.says(link, ":1\r\n");
        assert_eq!(stage.turn(link), if is_sent { &set } else { "" }, "{before}{after}");
    }
}

#[test]
fn one_answer_is_skipped_or_all_until_they_are_turned_on() {
    let (set, ping) = (resp(&["SET", "k", "v"]), resp(&["PING"]));
    let reply = |how: &str| resp(&["CLIENT", "REPLY", how]);
    for (asked, told) in [
        ([reply("SKIP"), ping.clone(), ping.clone()].concat(), "+PONG\r\n"),
        ([reply("SKIP"), set.clone(), set.clone()].concat(), "+OK\r\n"),
        ([reply("OFF"), set.clone(), ping.clone(), set.clone()].concat(), ""),
        ([reply("OFF"), set.clone(), reply("ON"), ping.clone()].concat(), "+OK\r\n+PONG\r\n"),
    ] {
        let mut stage = redis(&["s0"]);
        let client = stage.client();
        stage.says(client, &resp(&["GET", "k"]));
        let link = stage.establishes_with(&resp(&["HELLO", "2"]));
        stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
        stage.turn(link);
        stage.says(link, "$-1\r\n");
        stage.received(client);
        stage.says(client, &asked);
        let sets = stage.turn(link).matches("SET").count();
        assert_eq!(sets, asked.matches("SET").count(), "{asked}");
        stage.says(link, &"+OK\r\n".repeat(sets));
        assert_eq!(stage.received(client), told, "{asked}");
        stage.expect_rows(0);
    }
}
