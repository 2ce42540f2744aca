//! Large requests to real servers: they pass whole, wherever their large arguments stand, and one
//! that is refused costs its client nothing but an error.

use testkit::process::{Facts, Family, Quickack, Redis, Speaker};
use testkit::wire::resp::{Reply, command};

use super::{QUICKACK, addresses, config, servers};

const MB: usize = 1_000_000;
const PATIENT: [&str; 2] = ["timeout_reply: 60s", "timeout_queue: 60s"];
const TOO_LARGE: &[u8] = b"ERR the request is too large: an argument may have item_size_max \
    bytes, a request 4194304 arguments and 2 GB, and one to subscribe 1 MB";
const NO_MEMORY: &[u8] = b"ERR out of memory storing object";

/// Returns bytes of which a missing or doubled piece is noticed.
fn value(len: usize) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    (0..len).map(|at| (at % PERIOD % 251) as u8).collect()
}

fn start(servers: &[Redis], global: &str, more: &[&str]) -> Quickack {
    let text = config(&addresses(servers), &[&PATIENT[..], more].concat());
    Quickack::start(QUICKACK, &format!("global:\n  {global}\n{text}"))
}

fn speaker(quickack: &Quickack, version: &str) -> Speaker {
    let mut client = Speaker::connect(quickack.address());
    let hello = client.ask(&["HELLO", version]);
    assert!(!matches!(hello, Reply::Error(_)), "{hello:?}");
    client
}

/// Sends a request and a short one behind it, and returns the reply to the first.
#[track_caller]
fn asks(client: &mut Speaker, words: &[&[u8]]) -> Reply {
    let mut bytes = command(words);
    bytes.extend_from_slice(&command(&["ECHO", "next"]));
    client.send(&bytes);
    let told = client.reply().expect("a reply");
    assert_eq!(client.reply(), Ok(Reply::Bulk(b"next".to_vec())), "the connection goes on");
    told
}

fn ok() -> Reply {
    Reply::Simple(b"OK".to_vec())
}

#[test]
fn large_requests_pass_and_refused_ones_keep_their_clients() {
    let (v33, v20, v1) = (value(33 * MB), value(20 * MB), value(MB));
    for (family, count) in [(Family::Redis70, 1), (Family::Redis70, 2), (Family::Valkey91, 2)] {
        let servers = servers(family, count);
        let quickack = start(&servers, "workers: 1", &["item_size_max: 64m"]);
        for version in ["2", "3"] {
            let mut client = speaker(&quickack, version);
            assert_eq!(asks(&mut client, &[b"SET", b"k", &v33, b"EX", b"100"]), ok());
            let told = client.ask(&["GET", "k"]);
            assert!(told == Reply::Bulk(v33.clone()), "every byte is right");
            // With two servers, the keys are divided among them.
            let keys: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
            for pair in [[0, 1], [1, 2], [2, 3]] {
                let [one, other] = pair.map(|at| keys[at]);
                assert_eq!(asks(&mut client, &[b"MSET", one, &v20, other, &v20]), ok());
            }
            for key in keys {
                let len = client.ask(&[&b"STRLEN"[..], key]);
                assert_eq!(len, Reply::Integer(v20.len() as i64));
            }
            let mut words: Vec<&[u8]> = vec![b"RPUSH", b"list"];
            words.extend(std::iter::repeat_n(&v1[..], 100));
            assert_eq!(asks(&mut client, &words), Reply::Integer(100));
            for nth in ["0", "57", "99"] {
                let told = client.ask(&["LINDEX", "list", nth]);
                assert!(told == Reply::Bulk(v1.clone()), "every byte is right");
            }
            for key in ["list", "k"] {
                assert_eq!(client.ask(&["DEL", key]), Reply::Integer(1));
            }
        }
        // It holds a request once, and twice where it is divided.
        let peak = peak_kb(&quickack);
        assert!(peak < 2 * 105_000 + 24 * 1024, "a worker held {peak} KB");
    }
}

#[test]
fn a_large_set_has_a_link_of_its_own_if_there_is_room() {
    let large = value(2 * MB);
    for (most, links) in [(1, 1), (3, 1), (4, 2)] {
        let servers = servers(Family::Redis70, 1);
        let most = format!("server_connections_max: {most}");
        let quickack = start(&servers, "workers: 1", &[&most]);
        let mut client = speaker(&quickack, "2");
        assert_eq!(asks(&mut client, &[b"SET", b"a", b"1"]), ok());
        assert_eq!(asks(&mut client, &[b"SET", b"k", &large]), ok());
        assert_eq!(client.ask(&["STRLEN", "k"]), Reply::Integer(large.len() as i64));
        // Beside this one.
        let Reply::Bulk(list) = Speaker::connect(servers[0].address).ask(&["CLIENT", "LIST"])
        else {
            panic!("it lists its clients")
        };
        let count = list.iter().filter(|byte| **byte == b'\n').count() - 1;
        assert_eq!(count, links, "{most}");
    }
}

fn peak_kb(quickack: &Quickack) -> u64 {
    let peaks = quickack.workers().into_values().map(|id| Facts::of([id]).status("VmHWM"));
    peaks.max().expect("there is a worker")
}

#[test]
fn a_refused_large_request_is_sent_to_nobody_and_the_next_is_answered() {
    let servers = servers(Family::Redis70, 2);
    let (v2, v1) = (value(2 * MB + 97_153), value(MB));
    let quickack = start(&servers, "workers: 1\n  memory_max: 64m", &["item_size_max: 2m"]);
    for version in ["2", "3"] {
        let mut client = speaker(&quickack, version);
        let mut other = speaker(&quickack, version);
        let too_large = Reply::Error(TOO_LARGE.to_vec());
        let requests: [&[&[u8]]; 6] = [
            &[b"SET", b"k", &v2, b"EX", b"100"],
            &[b"SET", b"k", &v2],
            &[b"MSET", b"k", &v1, b"l", &v2, b"m", &v1],
            &[b"RPUSH", b"k", &v1, &v2, &v1],
            &[b"SET", &v2, b"k"],
            &[b"EVAL", &v2, b"1", b"k"],
        ];
        for words in requests {
            assert_eq!(asks(&mut client, words), too_large);
            assert_eq!(other.ask(&["EXISTS", "k", "l", "m"]), Reply::Integer(0));
        }
        let mut words: Vec<&[u8]> = vec![b"RPUSH", b"k"];
        words.extend(std::iter::repeat_n(&v1[..], 100));
        assert_eq!(asks(&mut client, &words), Reply::Error(NO_MEMORY.to_vec()));
        assert_eq!(other.ask(&["EXISTS", "k"]), Reply::Integer(0));
        // There is room again at once.
        assert_eq!(asks(&mut client, &words[..40]), Reply::Integer(38));
        assert_eq!(other.ask(&["DEL", "k"]), Reply::Integer(1));
    }
    let peak = peak_kb(&quickack);
    assert!(peak < 2 * 64 * 1024 + 24 * 1024, "a worker held {peak} KB of 64 MB");
}

/// The proxy's own answers do not depend on the length of what is asked.
#[test]
fn large_arguments_of_commands_that_the_proxy_answers_read_what_redis_says() {
    let servers = servers(Family::Redis70, 1);
    let quickack = start(&servers, "workers: 1", &["allow: [client|kill, client|pause]"]);
    let no_names = [&[&b"COMMAND"[..], b"DOCS"][..], &[&b"nope"[..]; 10_000]].concat();
    for len in [65_530, 65_536, MB] {
        let large = vec![b'x'; len];
        let requests: [&[&[u8]]; 16] = [
            &no_names,
            &[b"COMMAND", b"DOCS", &large],
            &[b"COMMAND", b"INFO", &large],
            &[b"COMMAND", b"GETKEYS", b"GET", &large],
            &[b"COMMAND", b"GETKEYSANDFLAGS", b"MSET", b"k", &large],
            &[b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", &large],
            &[b"COMMAND", b"LIST", b"FILTERBY", b"ACLCAT", &large],
            &[b"HELLO", &large],
            &[b"SELECT", &large],
            &[b"CLIENT", b"REPLY", &large],
            &[b"CLIENT", b"KILL", &large],
            &[b"CLIENT", b"KILL", b"TYPE", &large],
            &[b"CLIENT", b"NO-EVICT", &large],
            &[b"CLIENT", b"PAUSE", &large],
            &[b"LATENCY", b"HISTORY", &large],
            &[b"SLOWLOG", b"GET", &large],
        ];
        let (mut ours, mut its) = (speaker(&quickack, "2"), Speaker::connect(servers[0].address));
        for words in requests {
            let [told, expected] = [&mut ours, &mut its].map(|client| asks(client, words));
            let shown: Vec<_> =
                words.iter().take(4).map(|word| &word[..word.len().min(9)]).collect();
            assert!(told == expected, "{shown:?}: {}", format!("{told:?}").len());
        }
        for client in [&mut ours, &mut its] {
            let words: [&[u8]; 5] = [b"HELLO", b"2", b"AUTH", b"default", &large];
            assert!(matches!(asks(client, &words), Reply::Array(_)), "it is let in");
            client.send(&command(&[b"QUIT", &large[..]]));
            assert_eq!(client.reply(), Ok(ok()));
            assert!(client.reply().is_err(), "it is closed");
        }
    }
}
