//! Where a request goes, or why it goes nowhere: before anything of it is sent.

use proto::{Extra, protocol};
use proxy::plan::{MultiKey, PoolPlan};
use proxy::{Closed, ConnId, Event};
use shard::Distribution;

use crate::stage::{SECOND, Stage};

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";

/// A pool of two Redis servers, and the links to them.
fn redis(set: impl FnOnce(&mut PoolPlan)) -> (Stage, ConnId, [ConnId; 2]) {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.distribution, pool.preconnect) = (Distribution::Modula, true);
        // All requests take the shared links.
        pool.class_links = 0;
        set(pool);
    });
    let links = [0, 1].map(|_| {
        let link = stage.establishes_with(HELLO);
        stage.says(link, WELCOME);
        link
    });
    let client = stage.client();
    (stage, client, links)
}

/// Returns a request as servers receive it.
fn resp(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

/// Returns what each server receives.
fn sent(stage: &mut Stage, links: [ConnId; 2]) -> [String; 2] {
    links.map(|link| stage.turn(link))
}

#[test]
fn all_keys_of_a_request_go_to_one_server_where_any_server_will_do() {
    let (mut stage, client, links) = redis(|pool| pool.distribution = Distribution::Random);
    let mut counts = [0, 0];
    for _ in 0..40 {
        stage.says(client, "MGET a b c d e\r\n");
        let heard = sent(&mut stage, links);
        let at = usize::from(heard[0].is_empty());
        assert_eq!(heard[at], resp("MGET a b c d e"), "unchanged");
        assert_eq!(heard[1 - at], "");
        counts[at] += 1;
        stage.says(links[at], &format!("*5\r\n{}", "$-1\r\n".repeat(5)));
        stage.received(client);
    }
    assert!(counts[0] > 5 && counts[1] > 5, "{counts:?}");
}

#[test]
fn keys_of_several_servers_are_split_or_refused_as_the_plan_says() {
    for multi_key in [MultiKey::Split, MultiKey::Refuse] {
        let (mut stage, client, links) = redis(|pool| pool.multi_key = multi_key);
        let [one, two] = [stage.key_of(0), stage.key_of(1)];
        stage.says(client, &format!("EXISTS {one} {one} {two}\r\n"));
        let heard = sent(&mut stage, links);
        match multi_key {
            MultiKey::Split => {
                assert!(heard.iter().all(|text| !text.is_empty()), "{heard:?}");
                links.iter().for_each(|link| stage.says(*link, ":1\r\n"));
                assert_eq!(stage.received(client), ":2\r\n");
            }
            MultiKey::Refuse => {
                assert_eq!(heard, ["", ""].map(String::from));
                let why = format!("'{one}' is on s0, '{two}' on s1; ");
                let told = stage.received(client);
                assert!(told.starts_with("-CROSSSLOT ") && told.contains(&why), "{told}");
                let refused = metrics::PoolCounter::Refused;
                assert_eq!(stage.registry.total(crate::stage::POOL, refused), 1);
            }
        }
        // Keys of one server are no matter.
        stage.says(client, &format!("EXISTS {two} {two}\r\n"));
        assert_eq!(sent(&mut stage, links), [String::new(), resp(&format!("EXISTS {two} {two}"))]);
    }
}

#[test]
fn a_database_that_a_request_names_is_one_of_the_pools() {
    let (mut stage, client, links) = redis(|pool| pool.databases = 4);
    let key = stage.key_of(0);
    for (database, is_sent) in [(0, true), (3, true), (4, false), (5, false)] {
        let text = format!("MOVE {key} {database}\r\n");
        stage.says(client, &text);
        let heard = sent(&mut stage, links);
        assert_eq!(!heard[0].is_empty(), is_sent, "{database}");
        if is_sent {
            stage.says(links[0], ":1\r\n");
        }
        let told = if is_sent { ":1\r\n" } else { "-ERR DB index is out of range\r\n" };
        assert_eq!(stage.received(client), told, "{database}");
    }
}

/// It would do it twice, or be counted twice.
#[test]
fn a_server_under_two_names_gets_once_what_goes_to_all() {
    let (mut stage, client, links) = redis(|pool| {
        pool.servers[1].twin_of = Some("s0".into());
        pool.allow = vec!["flushall".into()];
    });
    for (asked, said) in [("DBSIZE", ":7\r\n"), ("FLUSHALL", "+OK\r\n")] {
        stage.says(client, &format!("{asked}\r\n"));
        assert_eq!(sent(&mut stage, links), [resp(asked), String::new()]);
        stage.says(links[0], said);
        assert_eq!(stage.received(client), said);
    }
    stage.says(client, "SCAN 0\r\n");
    assert_eq!(sent(&mut stage, links), [resp("SCAN 0"), String::new()]);
    stage.says(links[0], "*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(stage.received(client), "*2\r\n$1\r\n0\r\n*0\r\n", "it was the last server");
}

/// Clients of libmemcached take the refusal for success, so an operator is told: of each command
/// once a minute, wherever it is refused.
#[test]
fn an_operator_is_told_of_a_command_that_is_not_allowed() {
    let (mut stage, client, _) = redis(|_| {});
    let told = |stage: &Stage| {
        let of = |event: &Event| match event {
            Event::NotAllowed { name, .. } => Some(*name),
            _ => None,
        };
        stage.events.iter().filter_map(of).collect::<Vec<_>>()
    };
    stage.says(client, "MULTI\r\nFLUSHALL\r\nDISCARD\r\nCLIENT LIST\r\n");
    assert_eq!(told(&stage), ["flushall", "client|list"]);
    for (pause, count) in [(0, 2), (SECOND, 2), (60 * SECOND, 3)] {
        stage.passes(pause);
        stage.received(client);
        stage.says(client, "FLUSHALL\r\n");
        assert!(stage.received(client).contains("`allow: [flushall]`"));
        assert_eq!(told(&stage).len(), count);
    }
}

#[test]
fn a_command_for_every_server_is_sent_where_the_plan_allows_that_very_command() {
    for (allowed, is_sent) in [("flushall", true), ("flushdb", false), ("", false)] {
        let (mut stage, client, links) = redis(|pool| pool.allow = vec![allowed.into()]);
        stage.says(client, "FLUSHALL\r\n");
        let heard = sent(&mut stage, links);
        assert!(heard.iter().all(|text| text.is_empty() != is_sent), "{allowed}: {heard:?}");
        if is_sent {
            stage.says(links[1], "+OK\r\n");
            assert_eq!(stage.received(client), "", "the other has not answered");
            stage.says(links[0], "+OK\r\n");
            assert_eq!(stage.received(client), "+OK\r\n");
        } else {
            assert!(stage.received(client).contains("`allow: [flushall]` in its pool"));
        }
    }
}

/// A cursor is the server's own times 1024, and the server's place.
#[test]
fn a_scan_walks_over_one_server_after_the_other() {
    let (mut stage, client, links) = redis(|_| {});
    let reply = |cursor: &str| format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.len());
    // The client's cursor, the server that is asked and its cursor, and the answers.
    for (cursor, at, asked, own, next) in
        [("0", 0, "0", "5", "5120"), ("5120", 0, "5", "0", "1"), ("1", 1, "0", "0", "0")]
    {
        stage.says(client, &format!("SCAN {cursor}\r\n"));
        let heard = sent(&mut stage, links);
        assert_eq!(heard[at], resp(&format!("SCAN {asked}")), "{cursor}");
        assert_eq!(heard[1 - at], "", "{cursor}");
        stage.says(links[at], &reply(own));
        assert_eq!(stage.received(client), reply(next), "{cursor}");
    }
}

/// A command of a module, say. Its keys are where the operator says.
#[test]
fn a_command_that_the_operator_has_named_goes_to_its_keys_server() {
    let extra =
        |name: &str, writes| Extra { name: name.into(), first: 1, last: 1, step: 1, writes };
    let (mut stage, client, links) =
        redis(|pool| pool.extras = vec![extra("json.get", false), extra("json.set", true)]);
    let keys = [stage.key_of(0), stage.key_of(1)];
    for (at, key) in keys.iter().enumerate() {
        let text = resp(&format!("JSON.GET {key} $"));
        stage.says(client, &text);
        assert_eq!(sent(&mut stage, links)[at], text);
        stage.says(links[at], "$1\r\nx\r\n");
        assert_eq!(stage.received(client), "$1\r\nx\r\n");
    }
    stage.says(client, "JSON.DEL a\r\n");
    assert!(stage.received(client).starts_with("-ERR unknown command"));
    assert_eq!(sent(&mut stage, links), ["", ""].map(String::from));
}

/// Its data is not taken for the next request.
#[test]
fn a_request_that_cannot_be_sent_takes_its_data_along() {
    let told = "SERVER_ERROR s0: down, waiting for it to come back\r\n";
    for asked in ["set x 0 0 4\r\nmn\r\n\r\n", "ms x 4\r\nmn\r\n\r\n", "ms x 4 MA\r\nmn\r\n\r\n"] {
        for cut in [asked.len(), asked.len() - 3] {
            let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
            let (link, _) = stage.connects.remove(0);
            stage.closes(link, Closed::Reset);
            let client = stage.client();
            stage.says(client, &asked[..cut]);
            stage.says(client, &asked[cut..]);
            stage.says(client, "mn\r\n");
            stage.end_turn();
            assert_eq!(stage.received(client), format!("{told}MN\r\n"), "{asked:?} at {cut}");
            stage.expect_rows(0);
        }
    }
}

/// HELLO waits until the servers' capabilities are known, unless none can be asked.
#[test]
fn a_hello_is_answered_when_it_is_known_what_the_servers_can_do() {
    let redis = |pool: &mut PoolPlan| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.distribution = Distribution::Modula;
    };
    let mut stage = Stage::new(&["s0", "s1"], redis);
    let client = stage.client();
    stage.says(client, "HELLO 3\r\n");
    assert_eq!(stage.received(client), "");
    for _ in 0..2 {
        let (link, _) = stage.connects.pop().expect("a server is asked");
        stage.closes(link, Closed::Reset);
        stage.end_turn();
    }
    let told = stage.received(client);
    assert!(told.contains(": down, waiting for it to come back"), "{told}");
    assert_eq!(stage.paused, []);
    stage.expect_rows(0);
    stage.passes(SECOND);
    stage.says(client, "PING\r\n");
    assert_eq!(stage.received(client), "+PONG\r\n");
}
