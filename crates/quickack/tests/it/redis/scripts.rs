//! Replies that a script can make a real server send, and scripts that a server has lost.

use testkit::process::{Family, Quickack, Redis, Speaker};
use testkit::wire::resp::Reply;

use super::super::harness;
use super::{addresses, config, quickack, servers};

/// Every kind of reply that servers make of a table: empty, with odd bytes, and large.
const SCRIPTS: &[&str] = &[
    "return {big_number='abc'}",
    "return {big_number=''}",
    "return {big_number='-'}",
    "return {big_number='1\\r\\n2'}",
    "return {big_number=string.rep('7', 100000)}",
    "return {big_number='\\1\\27[2J\\255'}",
    "return {double=1/0}",
    "return {double=-1/0}",
    "return {double=0/0}",
    "return {double=1e300}",
    "return {double=-0.0}",
    "return {ok=''}",
    "return {ok='\\255\\254\\1 $5'}",
    "return {ok='a\\r\\n:1'}",
    "return {ok=string.rep('x', 100000)}",
    "return {err='ODD \\255\\1'}",
    "return {err='MINE a\\r\\n+OK'}",
    "return redis.error_reply('ERR a\\nb')",
    "return redis.status_reply('a\\rb')",
    "return {verbatim_string={string='a\\r\\nb', format='txt'}}",
    "return {verbatim_string={string='', format='\\r\\n+'}}",
    "return {map={}}",
    "return {map={a={big_number='x'}, b={double=0/0}}}",
    "return {set={}}",
    "return {set={a=true, b=true}}",
    "return {}",
    "return nil",
    "return true",
    "return false",
    "return {1, {2, {3, {{big_number='deep'}}}}}",
    "return {{err='MINE in an array'}, {ok='yes'}, {err=''}}",
    "return {{map={k={set={v=true}}}}, {double=1.5}, false, true}",
    "return 3.99",
    "return -9007199254740993",
    "redis.setresp(3); return redis.call('hgetall', KEYS[1])",
    "redis.setresp(3); redis.call('zadd', KEYS[1]..'z', 1.5, 'm'); \
     return redis.call('zscore', KEYS[1]..'z', 'm')",
];

/// The servers have their own words for being busy, which must be known as such.
#[test]
fn a_script_is_killed_on_the_server_that_runs_it_and_where_none_runs_there_is_none_to_kill() {
    for family in Family::ALL {
        let backs = servers(family, 3);
        let quickack = quickack(&addresses(&backs), &[]);
        let mut direct = Speaker::connect(backs[1].address);
        let mut client = Speaker::connect(quickack.address());
        for line in ["SCRIPT KILL", "FUNCTION KILL"] {
            let expected = direct.say(line);
            assert!(expected.is_error());
            assert_eq!(client.say(line), expected, "{family:?}: {line}");
        }
        assert!(!direct.say("CONFIG SET lua-time-limit 1").is_error());
        let mut other = Speaker::connect(backs[1].address);
        other.send(&testkit::wire::resp::command(&["EVAL", "while true do end", "0"]));
        let words = loop {
            if let Reply::Error(words) = direct.say("GET k") {
                break words;
            }
        };
        let line = [b"-", &words[..], b"\r\n"].concat();
        let busy = proto::Errors::busy_line(&proto::redis::Servers, &line);
        assert!(busy.is_some(), "{family:?}: {words:?}");
        assert_eq!(client.say("SCRIPT KILL"), Reply::Simple("OK".into()), "{family:?}");
        assert!(other.reply().expect("it was killed").is_error());
    }
}

/// Many clients share the links: no script may end one, or make its server look faulty.
#[test]
fn no_line_that_a_script_writes_before_redis_or_valkey_ends_a_link() {
    for family in Family::ALL {
        let backs = servers(family, 1);
        let quickack = quickack(&addresses(&backs), &[]);
        for proto_version in [2, 3] {
            let mut direct = Speaker::connect(backs[0].address);
            let mut client = Speaker::connect(quickack.address());
            let mut canary = Speaker::connect(quickack.address());
            for one in [&mut direct, &mut client, &mut canary] {
                assert!(!one.say(&format!("HELLO {proto_version}")).is_error());
            }
            direct.say("HSET h a 1");
            for script in SCRIPTS {
                let words = ["EVAL", script, "1", "h"];
                let expected = direct.ask(&words);
                client.send(&testkit::wire::resp::command(&words));
                canary.send(&testkit::wire::resp::command(&["ECHO", "mine"]));
                canary.send(&testkit::wire::resp::command(&["EXISTS", "h"]));
                let found = client.reply().unwrap_or_else(|why| panic!("{script}: {why}"));
                let name = family.name();
                assert_eq!(found, expected, "{name}, RESP{proto_version}: {script}");
                assert_eq!(canary.reply(), Ok(Reply::Bulk("mine".into())), "{script}");
                assert_eq!(canary.reply(), Ok(Reply::Integer(1)), "{script}");
            }
        }
        let server = &harness::stats(&quickack)["pools"][0]["servers"][0];
        let count = |name: &str| server[name].as_u64().unwrap_or_else(|| panic!("no {name}"));
        assert_eq!((count("poisoned_total"), count("refused_down_total")), (0, 0), "{server}");
    }
}

/// In a pipeline the call itself gets an error, because a retry would be executed after later
/// requests.
#[test]
fn a_script_that_redis_misses_in_a_pipeline_is_there_for_the_next_call() {
    for family in Family::ALL {
        let backs = servers(family, 1);
        let text = format!("{}global:\n  workers: 1\n", config(&addresses(&backs), &[]));
        let quickack = Quickack::start(super::QUICKACK, &text);
        let mut client = Speaker::connect(quickack.address());
        let sha = client.ask(&["SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])"]);
        let sha = String::from_utf8_lossy(sha.bytes().expect("a sum")).into_owned();
        Speaker::connect(backs[0].address).say("SCRIPT FLUSH");
        let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let call = format!("EVALSHA {sha} 1 n");
        let replies = client.ask_all(&[words(&call), words(&call), words("SET other x")]);
        assert!(replies[0].error().starts_with("NOSCRIPT "), "{replies:?}");
        assert_eq!(replies[2], Reply::Simple("OK".into()));
        // A pipeline again: none of its requests can be sent again.
        let replies = client.ask_all(&[words(&call), words("SET other x")]);
        assert!(matches!(replies[0], Reply::Integer(_)), "{}: {replies:?}", family.name());
        let mut direct = Speaker::connect(backs[0].address);
        let known = direct.ask(&["SCRIPT", "EXISTS", &sha]);
        assert_eq!(known, Reply::Array(vec![Reply::Integer(1)]));
    }
}

#[test]
fn a_script_that_was_loaded_in_a_line_is_loaded_again_where_it_is_lost() {
    let backs = servers(Family::Redis70, 1);
    let text = format!("{}global:\n  workers: 1\n", config(&addresses(&backs), &[]));
    let quickack = Quickack::start(super::QUICKACK, &text);
    let mut client = Speaker::connect(quickack.address());
    client.send(b"SCRIPT LOAD \"return redis.call('INCR', KEYS[1])\"\r\n");
    let sha = client.reply().expect("a sum");
    let sha = String::from_utf8_lossy(sha.bytes().expect("a sum")).into_owned();
    Speaker::connect(backs[0].address).say("SCRIPT FLUSH");
    assert_eq!(client.say(&format!("EVALSHA {sha} 1 n")), Reply::Integer(1));
}

/// A reply of the wrong length is not believed, for a split request or a whole one.
#[test]
fn a_list_that_is_too_short_before_one_server_ends_the_link() {
    use super::model::{Model, Turn};
    let model = Model::start(|words| match words {
        "mget a b" => Turn::Say(b"*1\r\n$1\r\n1\r\n".to_vec()),
        _ => Turn::Say(b"$2\r\nok\r\n".to_vec()),
    });
    let quickack = quickack(&[model.address], &["server_retry_timeout: 50ms"]);
    let mut client = Speaker::connect(quickack.address());
    assert_eq!(client.say("GET a"), Reply::Bulk("ok".into()));
    let reply = client.say("MGET a b");
    assert!(reply.error().contains("unexpected reply, connection closed"), "{reply:?}");
}

/// Names and arguments of any byte: errors echo them exactly as Redis does.
#[test]
fn every_byte_that_a_client_sends_is_repeated_as_redis_repeats_it() {
    let redis = Redis::start(Family::Redis70);
    let quickack = quickack(&[redis.address], &[]);
    let mut direct = Speaker::connect(redis.address);
    let mut client = Speaker::connect(quickack.address());
    let mut check = |words: &[Vec<u8>]| {
        let (expected, found) = (direct.ask(words), client.ask(words));
        assert!(expected.is_error(), "{words:?}: {expected:?}");
        assert_eq!(found, expected, "{words:?}");
    };
    let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    for byte in 0..=255_u8 {
        let odd = [b'a', byte, b'b'];
        check(&words(&[&odd]));
        check(&words(&[&[byte, b'x']]));
        check(&words(&[&[b'x', byte]]));
        check(&words(&[b"nosuch", &odd, &[byte], b"", &odd]));
        check(&words(&[b"CLIENT", &odd]));
        check(&words(&[b"object", &[b'x', byte]]));
        check(&words(&[b"HELLO", b"2", &odd]));
        check(&words(&[b"HELLO", b"2", &[b'x', byte], b"y"]));
    }
    // The length of the echoed part.
    for len in [1, 40, 63, 64, 120, 126, 127, 128, 129, 130, 300] {
        let long = vec![b'l'; len];
        check(&words(&[&long]));
        check(&words(&[b"nosuch", &long]));
        check(&words(&[b"nosuch", b"x", &long, b"y"]));
        check(&words(&[b"nosuch", &long, &long, &long]));
        check(&words(&[b"CONFIG", &long]));
        check(&words(&[b"HELLO", b"3", &long]));
        check(&vec![b"n".to_vec(); len]);
    }
    // Bytes in place of an argument's type; the connection ends with it.
    for byte in (1..=255_u8).filter(|byte| *byte != b'$') {
        let text = [&b"*1\r\n"[..], &[byte], b"\r\n"].concat();
        let said = [redis.address, quickack.address()].map(|address| {
            let mut one = Speaker::connect(address);
            one.send(&text);
            one.reply()
        });
        assert_eq!(said[0], said[1], "{byte:#x}");
    }
}
