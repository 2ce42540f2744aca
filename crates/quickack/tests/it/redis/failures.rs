//! Servers that die, freeze, restart, send retryable errors and wrong replies, under load: the cost
//! to clients, the error texts, and that no request that may have been executed is sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testkit::process::{Family, Quickack, Redis, Speaker, free_address, wait_until};
use testkit::wire::resp::Reply;

use super::model::{Model, Turn, swallow};
use super::{addresses, quickack, servers};
use crate::harness;

fn speak(quickack: &Quickack) -> Speaker {
    Speaker::connect(quickack.address())
}

fn say(text: &str) -> Turn {
    Turn::Say(text.into())
}

/// Repeats a request until the server is back, and returns that reply.
fn until_back(client: &mut Speaker, line: &str) -> Reply {
    let mut reply = client.say(line);
    wait_until("the server is back", || {
        if reply.is_error() {
            reply = client.say(line);
        }
        !reply.is_error()
    });
    reply
}

/// Returns a key of the server with this index, so that each server has one.
fn key_of(quickack: &Quickack, backs: &[Redis], at: usize) -> String {
    let mut client = speak(quickack);
    let mut direct = Speaker::connect(backs[at].address);
    let mut keys = (0..1_000).map(|n| format!("key{n}"));
    let found = keys.find(|key| {
        client.say(&format!("SET {key} {key}"));
        direct.say(&format!("EXISTS {key}")) == Reply::Integer(1)
    });
    found.expect("each server owns one of a thousand keys")
}

#[test]
fn a_redis_that_is_killed_in_the_middle_of_split_mgets_gives_whole_answers_or_errors() {
    let mut backs = servers(Family::Redis70, 4);
    let quickack = quickack(&addresses(&backs), &["server_retry_timeout: 50ms", "timeout: 60s"]);
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let pairs: Vec<String> = keys.iter().map(|key| format!("{key} v-{key}")).collect();
    assert_eq!(
        speak(&quickack).say(&format!("MSET {}", pairs.join(" "))),
        Reply::Simple("OK".into())
    );
    let whole =
        Reply::Array(keys.iter().map(|key| Reply::Bulk(format!("v-{key}").into())).collect());
    let (stop, errors) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let asked = Arc::new(AtomicUsize::new(0));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let mut client = speak(&quickack);
            let (stop, errors) = (Arc::clone(&stop), Arc::clone(&errors));
            let (asked, whole, keys) = (Arc::clone(&asked), whole.clone(), keys.join(" "));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.say(&format!("MGET {keys}"));
                    asked.fetch_add(1, Ordering::Relaxed);
                    let failed = reply.error().starts_with("ERR s2: ");
                    assert!(failed || reply == whole, "{reply:?}");
                    errors.fetch_add(usize::from(failed), Ordering::Relaxed);
                    // The next request in the pipeline gets its own reply.
                    let echo = client.say("ECHO mine");
                    assert_eq!(echo, Reply::Bulk("mine".into()));
                }
            })
        })
        .collect();
    wait_until("they are served", || asked.load(Ordering::Relaxed) > 500);
    // All clients use this server, and it answers none: each has one request more, at most.
    backs[1].process.freeze();
    let mut seen = asked.load(Ordering::Relaxed);
    let mut stands = Instant::now();
    wait_until("all wait for it", || {
        let now = asked.load(Ordering::Relaxed);
        if now != seen {
            (seen, stands) = (now, Instant::now());
        }
        stands.elapsed() >= Duration::from_millis(100)
    });
    let address = backs[1].address;
    backs.remove(1);
    wait_until("it is missed", || errors.load(Ordering::Relaxed) >= 8);
    stop.store(true, Ordering::Relaxed);
    load.into_iter().for_each(|thread| thread.join().expect("every answer was whole or an error"));
    let _again = Redis::start_on(Family::Redis70, address, &[]).expect("its port is free again");
    let mut client = speak(&quickack);
    for pair in &pairs {
        until_back(&mut client, &format!("SET {pair}"));
    }
    assert_eq!(client.say(&format!("MGET {}", keys.join(" "))), whole);
}

#[test]
fn a_redis_that_sleeps_costs_those_of_the_others_nothing() {
    check_sleep(&[]);
}

#[test]
fn a_redis_that_sleeps_costs_those_of_the_others_nothing_where_nothing_is_held() {
    check_sleep(&["hold_after: 0"]);
}

/// Checks that a server's delay affects only its own requests.
fn check_sleep(pool: &[&str]) {
    let more = ["--enable-debug-command", "yes"];
    let backs: Vec<Redis> = (0..4).map(|_| Redis::start_with(Family::Redis70, &more)).collect();
    let quickack = quickack(&addresses(&backs), &[&["timeout: 60s"], pool].concat());
    let keys: Vec<String> = (0..4).map(|at| key_of(&quickack, &backs, at)).collect();
    let mut sleeper = Speaker::connect(backs[0].address);
    let mut waiting: Vec<Speaker> = (0..20).map(|_| speak(&quickack)).collect();
    let mut others: Vec<Speaker> = (0..3).map(|_| speak(&quickack)).collect();
    let before = measure(&mut others, &keys[1..]);
    let start = Instant::now();
    sleeper.send(&testkit::wire::resp::command(&["DEBUG", "SLEEP", "3"]));
    for client in &mut waiting {
        client.send(&testkit::wire::resp::command(&["GET", &keys[0]]));
    }
    let beside = measure(&mut others, &keys[1..]);
    println!("gets beside a sleeping server: {beside:?}; when nobody sleeps: {before:?}");
    // On a busy machine the other requests take time that is not due to the sleeping server. One
    // that waited for it would take seconds.
    let most = |time: Duration, least: u64| (5 * time).max(Duration::from_millis(least));
    assert!(beside.median < most(before.median, 50), "{beside:?}, {before:?}");
    assert!(beside.late < most(before.late, 1_000), "{beside:?}, {before:?}");
    for client in &mut waiting {
        assert_eq!(client.reply(), Ok(Reply::Bulk(keys[0].clone().into())));
    }
    assert_eq!(sleeper.reply(), Ok(Reply::Simple("OK".into())));
    assert!(start.elapsed() > Duration::from_millis(2_900), "it did not sleep");
}

/// Latencies of gets: the median and the 99th percentile.
#[derive(Debug)]
struct Times {
    median: Duration,
    late: Duration,
}

/// Sends gets of these keys, one after the other, for a second and a half.
fn measure(clients: &mut [Speaker], keys: &[String]) -> Times {
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_millis(1_500) {
        for (client, key) in clients.iter_mut().zip(keys) {
            let asked = Instant::now();
            assert_eq!(client.say(&format!("GET {key}")), Reply::Bulk(key.clone().into()));
            times.push(asked.elapsed());
        }
    }
    times.sort();
    assert!(times.len() >= 20, "{} gets in 1.5 s", times.len());
    Times { median: times[times.len() / 2], late: times[times.len() * 99 / 100] }
}

/// A reply that the client has not begun to receive becomes an error or is requested again; the
/// connection stays.
#[test]
fn a_redis_link_that_is_reset_inside_a_short_reply_is_an_error_or_asked_once_more() {
    let model = Model::start(|words| match words {
        "get poison" => Turn::Reset(b"$100\r\nabc".to_vec()),
        _ => say("$2\r\nok\r\n"),
    });
    let quickack = quickack(&[model.address], &["server_retry_timeout: 50ms"]);
    let mut client = speak(&quickack);
    assert_eq!(client.say("GET a"), Reply::Bulk("ok".into()));
    let reply = client.say("GET poison");
    assert!(reply.error().starts_with("ERR s1: "), "{reply:?}");
    assert!((1..=2).contains(&model.count("get poison")));
    assert_eq!(until_back(&mut client, "GET b"), Reply::Bulk("ok".into()));
}

/// The start of a long reply has already been sent to the client and cannot be taken back. Its
/// connection is closed, and it never gets bytes of another value.
#[test]
fn a_redis_link_that_is_reset_inside_a_long_reply_ends_the_client_and_no_other() {
    let model = Model::start(|words| match words {
        "get poison" => {
            let mut text = b"$1000000\r\n".to_vec();
            text.extend_from_slice(&vec![b'v'; 400_000]);
            Turn::Reset(text)
        }
        _ => say("$2\r\nok\r\n"),
    });
    let quickack = quickack(&[model.address], &["server_retry_timeout: 50ms"]);
    let (mut client, mut other) = (speak(&quickack), speak(&quickack));
    assert_eq!(client.say("GET a"), Reply::Bulk("ok".into()));
    client.send(&testkit::wire::resp::command(&["GET", "poison"]));
    let rest = client.rest();
    let value = rest.strip_prefix(b"$1000000\r\n").unwrap_or(&rest);
    let fine = value.iter().all(|byte| *byte == b'v') || rest.starts_with(b"-ERR s1: ");
    assert!(fine, "{}", testkit::wire::shown(&rest[rest.len().saturating_sub(100)..]));
    assert_eq!(until_back(&mut other, "GET b"), Reply::Bulk("ok".into()));
}

/// Executed, and never answered: the client is told that the outcome is unknown, and it happened
/// once.
#[test]
fn an_incr_that_redis_executed_is_never_sent_again() {
    for (word, line) in [("incr", "INCR n"), ("append", "APPEND n 1"), ("lpush", "LPUSH n 1")] {
        let redis = Redis::start(Family::Redis70);
        let between = swallow(redis.address, word);
        let quickack = quickack(&[between.address], &["server_retry_timeout: 50ms"]);
        let mut client = speak(&quickack);
        assert_eq!(client.say("EXISTS n"), Reply::Integer(0));
        let reply = client.say(line);
        assert_eq!(reply, Reply::Error("ERR s1: connection lost, outcome unknown".into()));
        assert_eq!(until_back(&mut client, "EXISTS n"), Reply::Integer(1));
        assert_eq!(between.count(word), 1);
        let mut direct = Speaker::connect(redis.address);
        let length = if word == "lpush" { direct.say("LLEN n") } else { direct.say("STRLEN n") };
        assert_eq!(length, Reply::Integer(1));
    }
}

/// One of two parts was executed and never answered: the error names its server, and its outcome is
/// unknown.
#[test]
fn an_mset_over_two_redises_of_which_one_never_answers_is_an_error_that_names_it() {
    let backs = servers(Family::Redis70, 2);
    let between = swallow(backs[1].address, "mset");
    let all = [backs[0].address, between.address];
    let quickack = quickack(&all, &["server_retry_timeout: 50ms"]);
    let (one, two) = (key_of(&quickack, &backs, 0), key_of(&quickack, &backs, 1));
    let mut client = speak(&quickack);
    let reply = client.say(&format!("MSET {one} new {two} new"));
    let text = reply.error();
    assert!(text.contains("s2") && text.contains("outcome unknown"), "{reply:?}");
    for (back, key) in backs.iter().zip([&one, &two]) {
        let held = Speaker::connect(back.address).say(&format!("GET {key}"));
        assert_eq!(held, Reply::Bulk("new".into()));
    }
    assert_eq!(between.count("mset"), 1);
}

/// A change cannot be undone on the other servers, so it goes to all of its servers or to none.
#[test]
fn a_change_at_several_redises_is_done_at_none_of_them_if_one_is_down() {
    let mut backs = servers(Family::Redis70, 2);
    let quickack = quickack(&addresses(&backs), &["allow: [flushall, flushdb]"]);
    let (one, two) = (key_of(&quickack, &backs, 0), key_of(&quickack, &backs, 1));
    let mut client = speak(&quickack);
    assert_eq!(client.say(&format!("MSET {one} old {two} old")), Reply::Simple("OK".into()));
    backs.remove(1);
    // The first request detects the failure.
    wait_until("it is missed", || {
        client.say(&format!("GET {two}")).error() == "ERR s2: down, waiting for it to come back"
    });
    for line in [
        format!("MSET {one} new {two} new"),
        format!("MSET {two} new {one} new"),
        format!("DEL {one} {two}"),
        format!("UNLINK {one} {two}"),
        "FLUSHALL".to_string(),
        "FLUSHDB".to_string(),
        "SCRIPT LOAD return".to_string(),
        "FUNCTION FLUSH".to_string(),
    ] {
        let told = client.say(&line);
        let refused = line == "FUNCTION FLUSH" && told.error().contains("not supported");
        let down = told.error() == "ERR s2: down, waiting for it to come back";
        assert!(down || refused, "{line}: {told:?}");
    }
    // Reads return the known values, and changes for one server are not affected.
    let read = client.say(&format!("MGET {one} {two}"));
    assert_eq!(read.error(), "ERR s2: down, waiting for it to come back");
    assert_eq!(client.say(&format!("GET {one}")), Reply::Bulk("old".into()));
    let mut direct = Speaker::connect(backs[0].address);
    assert_eq!(direct.say(&format!("GET {one}")), Reply::Bulk("old".into()));
    let scripts = direct.say("INFO memory");
    let scripts = String::from_utf8_lossy(scripts.bytes().unwrap_or_default()).into_owned();
    assert!(scripts.contains("number_of_cached_scripts:0"), "{scripts}");
    assert_eq!(client.say(&format!("DEL {one}")), Reply::Integer(1));
}

/// A worker that has not noticed the failure has no link to the dead server, or one that only
/// begins.
#[test]
fn a_change_on_new_connections_is_done_at_no_redis_if_one_was_killed() {
    let mut backs = servers(Family::Redis70, 3);
    let text = super::config(&addresses(&backs), &["allow: [flushall]"]);
    let quickack = Quickack::start(super::QUICKACK, &format!("global:\n  workers: 3\n{text}"));
    backs.remove(2);
    let pairs: Vec<String> = (0..40).map(|n| format!("k{n} v")).collect();
    let mset = format!("MSET {}", pairs.join(" "));
    let load: Vec<_> = (0..24)
        .map(|n| (speak(&quickack), if n % 3 == 2 { "FLUSHALL".into() } else { mset.clone() }))
        .map(|(mut client, line)| thread::spawn(move || client.say(&line)))
        .collect();
    for told in load.into_iter().map(|one| one.join().expect("it is answered")) {
        let text = told.error();
        assert!(text.starts_with("ERR s3: ") && !text.contains("carried out"), "{told:?}");
    }
    for back in &backs {
        let mut direct = Speaker::connect(back.address);
        assert_eq!(direct.say("DBSIZE"), Reply::Integer(0));
        let stats = direct.say("INFO commandstats");
        let stats = String::from_utf8_lossy(stats.bytes().unwrap_or_default()).into_owned();
        assert!(!stats.contains("flushall"), "{stats}");
    }
}

/// Checks that a request that a server refused without executing it is sent again, even a write,
/// and that each time is counted.
fn check_asked_again(excuse: &'static str, counter: &str) {
    const TIMES: usize = 3;
    for (line, word) in [("GET a", "get a"), ("SET a 1", "set a"), ("MGET a b", "mget a")] {
        let left = AtomicUsize::new(TIMES);
        let model = Model::start(move |words| match words {
            _ if words == "exists x" => say(":0\r\n"),
            _ if left.load(Ordering::Relaxed) > 0 => {
                left.fetch_sub(1, Ordering::Relaxed);
                say(&format!("-{excuse}\r\n"))
            }
            _ if words.starts_with("mget") => say("*2\r\n$1\r\n1\r\n$-1\r\n"),
            _ if words.starts_with("get") => say("$1\r\n1\r\n"),
            _ => say("+OK\r\n"),
        });
        let quickack = quickack(&[model.address], &["timeout: 60s"]);
        let mut client = speak(&quickack);
        assert_eq!(client.say("EXISTS x"), Reply::Integer(0));
        let reply = client.say(line);
        assert!(!reply.is_error(), "{line}: {reply:?}");
        assert_eq!(model.count(word), TIMES + 1, "{line}");
        assert_eq!(again(&quickack, counter), TIMES as u64, "{line}");
    }
}

/// Returns a counter of the first server.
fn again(quickack: &Quickack, counter: &str) -> u64 {
    let stats = harness::stats(quickack);
    let server = &stats["pools"][0]["servers"][0];
    server[counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {server}"))
}

#[test]
fn a_redis_that_is_loading_is_asked_again_within_the_deadline() {
    check_asked_again("LOADING Redis is loading the dataset in memory", "again_loading_total");
}

#[test]
fn a_redis_that_has_lost_its_master_or_its_cluster_is_asked_again() {
    let lost = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
    check_asked_again(lost, "again_master_down_total");
    check_asked_again("CLUSTERDOWN The cluster is down", "again_cluster_down_total");
    let keys = "TRYAGAIN Multiple keys request during rehashing of slot";
    check_asked_again(keys, "again_try_again_total");
}

/// The server never finishes loading: after the deadline the client gets the server's own error.
#[test]
fn a_redis_that_loads_for_ever_is_told_in_its_own_words() {
    let model = Model::start(|words| match words {
        "exists x" => say(":0\r\n"),
        _ => say("-LOADING Redis is loading the dataset in memory\r\n"),
    });
    let quickack = quickack(&[model.address], &["timeout: 2s"]);
    let mut client = speak(&quickack);
    assert_eq!(client.say("EXISTS x"), Reply::Integer(0));
    let start = Instant::now();
    let reply = client.say("GET a");
    let took = start.elapsed();
    assert!(reply.is_error(), "{reply:?}");
    assert!(took < Duration::from_secs(15), "{took:?}: {reply:?}");
    assert!(model.count("get a") < 200, "asked {} times", model.count("get a"));
    assert_eq!(client.say("EXISTS x"), Reply::Integer(0));
}

/// A script that was loaded through the proxy is loaded again on a server that has lost it.
#[test]
fn a_script_that_a_restarted_redis_has_lost_is_loaded_again() {
    let address = free_address();
    let first = Redis::start_on(Family::Redis70, address, &[]).expect("a port that was free");
    let mut backs = servers(Family::Redis70, 1);
    let all = [address, backs[0].address];
    let quickack = quickack(&all, &["server_retry_timeout: 50ms"]);
    backs.insert(0, first);
    let keys = [key_of(&quickack, &backs, 0), key_of(&quickack, &backs, 1)];
    let mut client = speak(&quickack);
    let text = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
    let sha = client.ask(&["SCRIPT", "LOAD", text]);
    let sha = String::from_utf8_lossy(sha.bytes().expect("a sum")).into_owned();
    let run = |client: &mut Speaker, key: &str| client.say(&format!("EVALSHA {sha} 1 {key} 5"));
    for key in &keys {
        client.say(&format!("DEL {key}"));
        assert_eq!(run(&mut client, key), Reply::Integer(5));
    }
    backs.remove(0);
    let again = Redis::start_on(Family::Redis70, address, &[]).expect("its port is free again");
    until_back(&mut client, &format!("EXISTS {}", keys[0]));
    assert_eq!(run(&mut client, &keys[0]), Reply::Integer(5), "its counter went with it");
    assert_eq!(run(&mut client, &keys[1]), Reply::Integer(10));
    // In a pipeline no request overtakes a later one, so the script may stay unknown there.
    Speaker::connect(again.address).say("SCRIPT FLUSH");
    let set = ["SET", "other", "x"].map(|word| word.as_bytes().to_vec()).to_vec();
    let call = ["EVALSHA", &sha, "1", &keys[0], "1"].map(|word| word.as_bytes().to_vec()).to_vec();
    let replies = client.ask_all(&[set.clone(), call.clone(), set, call]);
    let ok = Reply::Simple("OK".into());
    assert_eq!([&replies[0], &replies[2]], [&ok, &ok]);
    let first = &replies[1];
    let done = if first.error().starts_with("NOSCRIPT ") { 5 } else { 6 };
    assert!(done == 5 || *first == Reply::Integer(6), "{replies:?}");
    assert_eq!(replies[3], Reply::Integer(done + 1), "{replies:?}");
}

/// A script flushed by a client through the proxy is not loaded again.
#[test]
fn a_script_that_was_flushed_through_us_stays_unknown_to_redis() {
    let backs = servers(Family::Redis70, 2);
    let text = format!("{}global:\n  workers: 1\n", super::config(&addresses(&backs), &[]));
    let quickack = Quickack::start(super::QUICKACK, &text);
    let mut client = speak(&quickack);
    let sha = client.ask(&["SCRIPT", "LOAD", "return 42"]);
    let sha = String::from_utf8_lossy(sha.bytes().expect("a sum")).into_owned();
    let run = format!("EVALSHA {sha} 1 k");
    assert_eq!(client.say(&run), Reply::Integer(42));
    backs.iter().for_each(|back| drop(Speaker::connect(back.address).say("SCRIPT FLUSH")));
    assert_eq!(client.say(&run), Reply::Integer(42));
    let of_both = again(&quickack, "again_no_script_total")
        + harness::stats(&quickack)["pools"][0]["servers"][1]["again_no_script_total"]
            .as_u64()
            .unwrap_or(0);
    assert_eq!(of_both, 1);
    assert_eq!(client.say("SCRIPT FLUSH"), Reply::Simple("OK".into()));
    assert!(client.say(&run).error().starts_with("NOSCRIPT "));
    assert_eq!(client.say(&format!("SCRIPT EXISTS {sha}")), Reply::Array(vec![Reply::Integer(0)]));
}

/// One of the servers does not support it. So no connection may use RESP3, because replies would be
/// of two kinds.
#[test]
fn hello_3_before_redis_and_an_older_server_is_refused() {
    let redis = Redis::start(Family::Redis70);
    let old = Model::start_bare(|words| match words {
        _ if words.starts_with("hello") => say("-ERR unknown command `hello`\r\n"),
        "ping" => say("+PONG\r\n"),
        _ => say("$3\r\nold\r\n"),
    });
    let quickack = quickack(&[redis.address, old.address], &["timeout: 60s"]);
    let mut client = speak(&quickack);
    // Both servers have been used.
    for n in 0..20 {
        let reply = client.say(&format!("GET k{n}"));
        let fine = [Reply::Bulk("old".into()), Reply::Null(b'$')].contains(&reply);
        assert!(fine, "{reply:?}");
    }
    let refused = client.say("HELLO 3");
    assert!(refused.error().starts_with("NOPROTO"), "{refused:?}");
    assert_eq!(client.say("PING"), Reply::Simple("PONG".into()));
    assert!(!client.say("HELLO 2").is_error());
}
