//! WATCH before real servers.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::process::{Family, Quickack, Redis, Speaker, wait_until};
use testkit::wire::resp::Reply;

use super::{addresses, as_servers_say, quickack, servers, with_workers};
use crate::harness;
use crate::peers::{peer_script, root, run};

fn speak(quickack: &Quickack) -> Speaker {
    Speaker::connect(quickack.address())
}

/// Says each line by the client whose number it begins with.
fn play(clients: &mut [Speaker], story: &[&str]) -> Vec<Reply> {
    let say = |line: &&str| {
        let (who, words) = line.split_once(' ').expect("a number and a request");
        as_servers_say(clients[who.parse::<usize>().expect("a number")].say(words))
    };
    story.iter().map(say).collect()
}

const STORIES: &[&[&str]] = &[
    &["0 WATCH {t}a", "0 GET {t}a", "0 MULTI", "0 SET {t}a 1", "0 EXEC", "0 GET {t}a"],
    &["0 WATCH {t}a", "1 SET {t}a x", "0 GET {t}a", "0 MULTI", "0 SET {t}a 1", "0 EXEC"],
    &["0 WATCH {t}a {t}b", "1 DEL {t}b", "1 SET {t}b 2", "0 MULTI", "0 PING", "0 EXEC", "0 PING"],
    &["0 WATCH {t}a", "1 SET {t}a 3", "0 UNWATCH", "0 MULTI", "0 GET {t}a", "0 EXEC"],
    &["0 WATCH {t}a", "1 SET {t}a 4", "0 MULTI", "0 DISCARD", "0 MULTI", "0 GET {t}a", "0 EXEC"],
    &["0 WATCH {t}a", "0 SET {t}a own", "0 MULTI", "0 GET {t}a", "0 EXEC", "0 MULTI", "0 EXEC"],
    &["0 WATCH {t}a", "1 SET {t}a 5", "0 MULTI", "0 GET", "0 EXEC", "0 MULTI", "0 EXEC"],
    &["0 WATCH {t}a", "1 SET {t}a 6", "0 MULTI", "0 EXEC", "0 MULTI", "0 PING", "0 EXEC"],
    &["0 WATCH {t}a", "0 WATCH {t}b", "1 SET {t}a 7", "0 MULTI", "0 EXEC"],
    &["0 WATCH {t}a", "0 MULTI", "0 UNWATCH", "1 SET {t}a 8", "0 EXEC"],
    &["0 WATCH", "0 WATCH {t}none", "1 GET {t}none", "0 MULTI", "0 INCR {t}n", "0 EXEC"],
    &["0 SET {t}e 1 PX 1", "0 WATCH {t}l", "1 RPUSH {t}l v", "0 MULTI", "0 LLEN {t}l", "0 EXEC"],
];

/// Servers of other versions have other words for it.
const MISTAKE: &[&str] = &["0 WATCH {t}a", "0 MULTI", "0 WATCH {t}c", "0 EXEC"];

#[test]
fn what_is_watched_is_watched_as_by_a_server() {
    for family in [Family::Redis70, Family::Valkey91] {
        for (count, version, more) in
            [(1, 2, ""), (1, 3, ""), (4, 2, ""), (1, 2, "links: private"), (4, 3, "links: private")]
        {
            let direct = Redis::start(family);
            let backs = servers(family, count);
            let quickack = with_workers(2, &addresses(&backs), &["timeout: 20s", more]);
            let greet = |client: &mut Speaker| {
                client.say(&format!("HELLO {version}"));
            };
            let mut theirs: Vec<Speaker> =
                (0..2).map(|_| Speaker::connect(direct.address)).collect();
            let mut ours: Vec<Speaker> = (0..2).map(|_| speak(&quickack)).collect();
            theirs.iter_mut().chain(&mut ours).for_each(greet);
            let mistake = (family == Family::Redis70).then_some(&MISTAKE);
            for story in STORIES.iter().chain(mistake) {
                // A transaction may be left out for nothing, if a change may have been missed;
                // everything else is the same at once.
                let mut told = || (play(&mut ours, story), play(&mut theirs, story));
                let is_left_out = |(said, expected): &(Vec<Reply>, Vec<Reply>)| {
                    let mut pairs = said.iter().zip(expected);
                    said != expected && pairs.all(|(a, b)| a == b || matches!(a, Reply::Null(_)))
                };
                let mut both = told();
                for _ in 0..2 {
                    if is_left_out(&both) {
                        both = told();
                    }
                }
                let (said, expected) = both;
                assert_eq!(said, expected, "{story:?} {count} {version} {more}");
            }
        }
    }
}

#[test]
fn clients_that_count_with_watch_lose_no_count() {
    let backs = servers(Family::Redis70, 4);
    let quickack = with_workers(2, &addresses(&backs), &["timeout: 20s"]);
    let conflicts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = speak(&quickack);
                for _ in 0..100 {
                    loop {
                        client.say("WATCH {t}n");
                        let found = client.say("GET {t}n");
                        let text = String::from_utf8_lossy(found.bytes().unwrap_or(b"0"));
                        let next = text.parse::<u64>().expect("a number") + 1;
                        client.say("MULTI");
                        client.say(&format!("SET {{t}}n {next}"));
                        match client.say("EXEC") {
                            Reply::Null(_) => conflicts.fetch_add(1, Ordering::Relaxed),
                            Reply::Array(_) => break,
                            other => panic!("{other:?}"),
                        };
                    }
                }
            });
        }
    });
    assert_eq!(speak(&quickack).say("GET {t}n"), Reply::Bulk("800".into()));
    assert!(conflicts.load(Ordering::Relaxed) > 0, "they have met");
    let connects: u64 = backs.iter().map(|one| one.stat("total_connections_received")).sum();
    assert!(connects < 100, "a client that watches again uses its link again: {connects}");
}

#[test]
fn a_server_that_starts_again_has_forgotten_what_is_watched() {
    let mut backs = servers(Family::Redis70, 1);
    let quickack = quickack(&addresses(&backs), &["timeout: 20s"]);
    let mut client = speak(&quickack);
    assert_eq!(client.say("WATCH k"), Reply::Simple("OK".into()));
    let address = backs[0].address;
    drop(backs.remove(0));
    harness::until_each_worker_misses_them(&quickack);
    let again = Redis::start_on(Family::Redis70, address, &[]);
    let _again = again.expect("the port is free again");
    let mut other = speak(&quickack);
    wait_until("it is back", || other.say("SET k 1") == Reply::Simple("OK".into()));
    harness::until_each_worker_knows(&quickack);
    assert_eq!(client.say("MULTI"), Reply::Simple("OK".into()));
    assert_eq!(client.say("SET k 2"), Reply::Simple("QUEUED".into()));
    assert!(matches!(client.say("EXEC"), Reply::Null(_)));
    assert_eq!(client.say("GET k"), Reply::Bulk("1".into()));
}

#[test]
fn redis_py_watches_locks_and_repeats_transactions() {
    for count in [1, 4] {
        let backs = servers(Family::Redis70, count);
        let quickack = with_workers(2, &addresses(&backs), &["timeout: 20s"]);
        let port = quickack.address().port().to_string();
        let mut command = Command::new(root().join(".venv/bin/python"));
        run(command.arg(peer_script("redis_py_watch.py")).arg(port));
    }
}

#[test]
fn a_worker_of_jobs_needs_one_connection_for_a_thousand_jobs() {
    let backs = servers(Family::Redis70, 1);
    let quickack = quickack(&addresses(&backs), &["timeout: 20s"]);
    let (mut worker, mut pusher) = (speak(&quickack), speak(&quickack));
    let received = || backs[0].stat("total_connections_received");
    assert!(matches!(worker.say("LREM {q}done 1 x"), Reply::Integer(0)));
    let before = received();
    for job in 0..1_000 {
        assert_eq!(pusher.say(&format!("LPUSH {{q}}jobs {job}")), Reply::Integer(1));
        assert_eq!(worker.say("BRPOPLPUSH {q}jobs {q}done 0"), Reply::Bulk(job.to_string().into()));
        assert_eq!(worker.say(&format!("LREM {{q}}done 1 {job}")), Reply::Integer(1));
    }
    // One of them asks. On a busy machine a request may take long, and has a link of another class.
    let connects = received() - before;
    assert!(connects < 20, "{connects} connections for 1000 jobs");
}
