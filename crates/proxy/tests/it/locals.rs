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

const TOO_LARGE: &str = "-ERR the request is too large: an argument may have item_size_max \
    bytes, a request 4194304 arguments and 2 GB, and one to subscribe 1 MB\r\n";

#[test]
fn an_answer_of_our_own_is_for_a_request_of_any_length() {
    let mut stage = redis(&["s0"]);
    stage.install(|plan| plan.memory_max = 64 << 20);
    let word = "x".repeat(900_000);
    let no_integer = "-ERR value is not an integer or out of range\r\n";
    let cases: [(&[&str], &str); 12] = [
        (&["COMMAND", "DOCS"], "*0\r\n"),
        (&["COMMAND", "INFO"], "*1\r\n$-1\r\n"),
        (&["COMMAND", "LIST", "FILTERBY", "PATTERN"], "*0\r\n"),
        (&["COMMAND", "LIST", "FILTERBY"], "-ERR syntax error\r\n"),
        (
            &["COMMAND", "GETKEYSANDFLAGS", "SET", "k"],
            "*1\r\n*2\r\n$1\r\nk\r\n*2\r\n+OW\r\n+update\r\n",
        ),
        (&["SELECT"], no_integer),
        (&["SLOWLOG", "GET"], "-ERR count should be greater than or equal to -1\r\n"),
        (&["LATENCY", "HISTORY"], "*0\r\n"),
        (&["LATENCY", "RESET"], ":0\r\n"),
        (&["CLIENT", "REPLY"], "-ERR syntax error\r\n"),
        (&["CLIENT", "NO-EVICT"], "-ERR syntax error\r\n"),
        (&["QUIT"], "+OK\r\n"),
    ];
    for (asked, expected) in cases {
        let client = stage.client();
        let told = asks(&mut stage, client, &[asked, &[&word]].concat());
        assert_eq!(told, expected, "{asked:?}");
        if asked[0] != "QUIT" {
            stage.closes(client, Closed::Reset);
        }
    }
    let client = stage.client();
    let told = asks(&mut stage, client, &["COMMAND", "GETKEYS", "GET", &word]);
    assert_eq!(told, format!("*1\r\n{}", &resp(&[&word])[4..]));
}

#[test]
fn many_commands_are_told_of_at_once_within_a_bound() {
    let mut stage = redis(&["s0"]);
    let client = stage.client();
    // After a long answer it waits for some turns.
    let asks = |stage: &mut Stage, words: &[&str]| {
        let told = asks(stage, client, words);
        (0..999).for_each(|_| stage.end_turn());
        told + &stage.received(client)
    };
    // No answer is longer than memory is asked for.
    for command in protocol("redis").expect("the table has it").commands() {
        for asked in ["INFO", "DOCS"] {
            let told = asks(&mut stage, &["COMMAND", asked, command.name]);
            let said = resp(&[command.name]).len();
            assert!(told.len() <= 1_500 * said, "{}: {} bytes", command.name, told.len());
        }
    }
    // There has to be room for the longest.
    for (memory, is_told) in [(64 << 20, true), (4 << 20, false)] {
        stage.install(|plan| plan.memory_max = memory);
        let words = [&["COMMAND", "INFO"][..], &["nothing"; 300]].concat();
        assert_eq!(asks(&mut stage, &words).starts_with("*300\r\n"), is_told);
    }
    stage.install(|plan| plan.memory_max = 64 << 20);
    for (name, count, is_told) in [("get", 20_000, true), ("config", 20_000, false)] {
        let names = std::iter::repeat_n(name, count);
        let words: Vec<&str> = ["COMMAND", "INFO"].into_iter().chain(names).collect();
        let told = asks(&mut stage, &words);
        assert_eq!(told.starts_with("*20000\r\n"), is_told, "{name}: {} bytes", told.len());
        assert_eq!(told == "-ERR the answer is longer than 8 MiB\r\n", !is_told, "{name}");
    }
    for (name, is_told) in [("get", true), ("set", false)] {
        let words = [&["COMMAND", "DOCS"][..], &[name; 5_000]].concat();
        let told = asks(&mut stage, &words);
        assert_eq!(told.starts_with("*10000\r\n"), is_told, "{name}: {} bytes", told.len());
        assert_eq!(told == "-ERR the answer is longer than 8 MiB\r\n", !is_told, "{name}");
    }
    for asked in ["INFO", "DOCS"] {
        let words = [&["COMMAND", asked][..], &["x"; 150_001]].concat();
        let told = asks(&mut stage, &words);
        assert_eq!(told, "-ERR at most 150000 commands are told of at once\r\n");
    }
}

#[test]
fn an_answer_that_is_as_long_as_its_request_is_given_while_there_is_memory() {
    let mut stage = redis(&["s0"]);
    let client = stage.client();
    let word = "x".repeat(300_000);
    let bulk = format!("${}\r\n{word}\r\n", word.len());
    // After as long an answer it waits for some turns.
    let asks = |stage: &mut Stage, client, words: &[&str]| {
        let told = asks(stage, client, words);
        (0..99).for_each(|_| stage.end_turn());
        told + &stage.received(client)
    };
    for command in ["PING", "ECHO"] {
        assert_eq!(asks(&mut stage, client, &[command, &word]), bulk);
    }
    let told = asks(&mut stage, client, &["AUTH", &word]);
    assert!(told.starts_with("-ERR AUTH <password> called without any password"), "{told}");
    let told = asks(&mut stage, client, &["CLIENT", "SETNAME", &word]);
    assert!(told.starts_with("-ERR ") && told != TOO_LARGE, "{told}");
    stage.install(|plan| plan.memory_max = 1_000_000);
    assert_eq!(asks(&mut stage, client, &["ECHO", &word]), bulk);
    let word = "x".repeat(600_000);
    let told = asks(&mut stage, client, &["ECHO", &word]);
    assert!(told.starts_with("-ERR ") && told.contains("memory"), "{told}");
    assert_eq!(asks(&mut stage, client, &["PING"]), "+PONG\r\n");
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
