//! Publish and subscribe, before real servers.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::Value;
use testkit::process::{Family, Quickack, Redis, Speaker, wait_until};
use testkit::wire::resp::{Reply, push_command};

use super::{QUICKACK, addresses, config, servers};
use crate::harness;

fn start(backs: &[SocketAddr], workers: usize, more: &[&str]) -> Quickack {
    let text = config(backs, more);
    Quickack::start(QUICKACK, &format!("{text}global:\n  workers: {workers}\n"))
}

fn send(client: &mut Speaker, line: &str) {
    let mut bytes = Vec::new();
    push_command(&line.split(' ').collect::<Vec<&str>>(), &mut bytes);
    client.send(&bytes);
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.into())
}

/// Returns an answer about a topic, or a message, as a client of RESP2 gets it.
fn pushed(words: &[&str], last: Reply) -> Reply {
    Reply::Array(words.iter().map(|word| bulk(word)).chain([last]).collect())
}

/// Asks a server itself.
fn direct(back: &Redis, line: &str) -> Reply {
    Speaker::connect(back.address).say(line)
}

/// Returns the next reply, which is a list or a push.
#[track_caller]
fn words(client: &mut Speaker) -> Vec<Reply> {
    match client.reply().expect("a reply") {
        Reply::Array(words) | Reply::Push(words) => words,
        other => panic!("{other:?} is no list"),
    }
}

/// Subscribes, and waits for the answer.
#[track_caller]
fn subscribe(client: &mut Speaker, channel: &str) {
    send(client, &format!("SUBSCRIBE {channel}"));
    let told = words(client);
    assert_eq!(told[..2], [bulk("subscribe"), bulk(channel)], "{told:?}");
}

/// Returns a number of the statistics, of all pools and servers together.
fn stat(quickack: &Quickack, name: &str) -> u64 {
    fn sum(value: &Value, name: &str) -> u64 {
        match value {
            Value::Object(fields) => {
                let of = |(field, value): (&String, &Value)| match value.as_u64() {
                    Some(number) if field == name => number,
                    _ => sum(value, name),
                };
                fields.iter().map(of).sum()
            }
            Value::Array(all) => all.iter().map(|one| sum(one, name)).sum(),
            _ => 0,
        }
    }
    sum(&harness::stats(quickack), name)
}

/// What clients `a`, `b` and `p` say in turn, and how many replies each of them then gets.
const STORY: &[(&str, &str)] = &[
    ("a UNSUBSCRIBE", "a1"),
    ("a PUNSUBSCRIBE", "a1"),
    ("a SUNSUBSCRIBE", "a1"),
    ("a UNSUBSCRIBE x y", "a2"),
    ("p PUBLISH c nobody", "p1"),
    ("a SUBSCRIBE c", "a1"),
    ("a SUBSCRIBE c", "a1"),
    ("a SUBSCRIBE c d c", "a3"),
    ("p PUBLISH c one", "p1 a1"),
    ("b SUBSCRIBE c", "b1"),
    ("p PUBLISH c both", "p1 a1 b1"),
    ("a PSUBSCRIBE c* [a-d]", "a2"),
    ("p PUBLISH c three", "p1 a3 b1"),
    ("p PUBLISH C none", "p1"),
    ("p PUBLISH cc pattern", "p1 a1"),
    ("p PUBSUB NUMSUB c d e", "p1"),
    ("p PUBSUB NUMSUB", "p1"),
    ("p PUBSUB NUMPAT", "p1"),
    ("p PUBSUB CHANNELS c*", "p1"),
    ("p PUBSUB CHANNELS none*", "p1"),
    ("p PUBSUB SHARDCHANNELS", "p1"),
    ("p PUBSUB SHARDNUMSUB s", "p1"),
    ("p PUBSUB NONSENSE", "p1"),
    ("p PUBLISH c", "p1"),
    ("a SUBSCRIBE", "a1"),
    ("a PSUBSCRIBE", "a1"),
    ("a PING", "a1"),
    ("a PING hello", "a1"),
    ("a GET k", "a1"),
    ("a SELECT 0", "a1"),
    ("a CLIENT ID x", "a1"),
    ("a NOSUCH", "a1"),
    ("a UNSUBSCRIBE c", "a1"),
    ("p PUBLISH c after", "p1 a2 b1"),
    ("a SSUBSCRIBE s t", "a2"),
    ("p SPUBLISH s shard", "p1 a1"),
    ("p PUBLISH s not", "p1"),
    ("p PUBSUB SHARDCHANNELS s*", "p1"),
    ("p PUBSUB SHARDNUMSUB s t u", "p1"),
    ("a SUNSUBSCRIBE t s", "a2"),
    ("a PUNSUBSCRIBE [a-d]", "a1"),
    ("a PUNSUBSCRIBE nothing", "a1"),
    ("p PUBLISH cat meow", "p1 a1"),
    ("a PUNSUBSCRIBE", "a1"),
    ("a UNSUBSCRIBE", "a1"),
    ("a GET k", "a1"),
    ("p PUBLISH d none", "p1"),
    ("a SUBSCRIBE again", "a1"),
    ("a RESET", "a1"),
    ("a GET k", "a1"),
    ("b QUIT", "b1"),
];

/// Plays the story, and returns what everybody got.
fn play(address: SocketAddr, hello: &[&str]) -> Vec<String> {
    let names = ["a", "b", "p"];
    let mut clients: Vec<Speaker> = names.iter().map(|_| Speaker::connect(address)).collect();
    let place = |name: &str| names.iter().position(|one| *one == name).expect("one of them");
    for line in hello {
        for client in &mut clients {
            client.say(line);
        }
    }
    let mut told = Vec::new();
    for (step, replies) in STORY {
        let (who, line) = step.split_once(' ').expect("a client and its line");
        send(&mut clients[place(who)], line);
        for (name, count) in replies.split(' ').map(|one| one.split_at(1)) {
            let mut all = Vec::new();
            for nth in 0..count.parse().expect("a number") {
                let reply = clients[place(name)].reply();
                let reply = reply.unwrap_or_else(|error| panic!("{step}: {name} {nth}: {error}"));
                all.push(format!("{step}: {name}: {reply:?}"));
            }
            // Servers tell of several topics in no order of their own.
            all.sort();
            told.extend(all);
        }
        if line.starts_with("RESET") {
            for line in hello {
                clients[place(who)].say(line);
            }
        }
    }
    told
}

#[test]
fn one_redis_and_one_behind_the_proxy_tell_subscribers_the_same() {
    for family in [Family::Redis70, Family::Valkey91] {
        let backs = servers(family, 2);
        let quickack = start(&addresses(&backs[..1]), 1, &[]);
        for hello in [&[][..], &["HELLO 3"]] {
            let expected = play(backs[1].address, hello);
            let found = play(quickack.address(), hello);
            for (expected, found) in expected.iter().zip(&found) {
                assert_eq!(found, expected, "{family:?} {hello:?}");
            }
            assert_eq!(expected.len(), found.len());
        }
        wait_until("nobody subscribes", || stat(&quickack, "subscriptions") == 0);
    }
}

#[test]
fn a_message_is_heard_once_wherever_it_is_published_before_four() {
    let backs = servers(Family::Redis70, 4);
    let quickack = start(&addresses(&backs), 2, &["timeout: 20s"]);
    harness::wait_for_workers(&quickack, 2);
    let mut clients: Vec<Speaker> = (0..8).map(|_| Speaker::connect(quickack.address())).collect();
    clients.iter_mut().for_each(|client| subscribe(client, "c"));
    let mut pattern = Speaker::connect(quickack.address());
    assert_eq!(pattern.say("PSUBSCRIBE __keyspace@0__:*"), {
        pushed(&["psubscribe", "__keyspace@0__:*"], Reply::Integer(1))
    });
    let mut publisher = Speaker::connect(quickack.address());
    let mut texts = Vec::new();
    for (at, back) in backs.iter().enumerate() {
        let text = format!("direct-{at}");
        let told = direct(back, &format!("PUBLISH c {text}"));
        assert_eq!(told, Reply::Integer(2), "{:?}", harness::workers(&quickack));
        texts.push(text);
        direct(back, "CONFIG SET notify-keyspace-events KA");
    }
    for nth in 0..4 {
        let text = format!("through-{nth}");
        let count = publisher.say(&format!("PUBLISH c {text}"));
        assert!(matches!(count, Reply::Integer(2..=8)), "{count:?}");
        texts.push(text);
        let script = publisher.ask(&[
            "EVAL",
            "return redis.call('PUBLISH', 'c', ARGV[1])",
            "1",
            &format!("key-{nth}"),
            &format!("script-{nth}"),
        ]);
        assert_eq!(script, Reply::Integer(2));
        texts.push(format!("script-{nth}"));
    }
    publisher.say("MULTI");
    publisher.say("SET k v");
    publisher.say("PUBLISH c transaction");
    let told = publisher.say("EXEC");
    assert_eq!(told.list(), [Reply::Simple("OK".into()), Reply::Integer(2)]);
    texts.push("transaction".to_string());
    for client in &mut clients {
        let mut found: Vec<Reply> = Vec::new();
        for _ in &texts {
            let told = words(client);
            assert_eq!(told[..2], [bulk("message"), bulk("c")]);
            found.push(told[2].clone());
        }
        let mut expected: Vec<Reply> = texts.iter().map(|text| bulk(text)).collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        assert_eq!(client.say("PING"), Reply::Array(vec![bulk("pong"), bulk("")]), "no more");
    }
    // The events of scripts' keys, which no script has set, are none; that of `k` is one.
    let event = pushed(&["pmessage", "__keyspace@0__:*", "__keyspace@0__:k"], bulk("set"));
    assert_eq!(pattern.reply().expect("an event"), event);
    publisher.say("SET far-{1} v");
    publisher.say("SET far-{2} v");
    publisher.say("SET far-{3} v");
    for _ in 0..3 {
        assert_eq!(words(&mut pattern)[3], bulk("set"));
    }
}

/// 1,000 subscribers, 100 channels and 10 patterns, 4 workers, 4 servers; publishers through the
/// proxy, in scripts and direct. Every message comes once, and in the order of its publisher.
#[test]
fn a_thousand_subscribers_hear_each_message_once_and_in_order() {
    let backs = servers(Family::Redis70, 4);
    let quickack = start(&addresses(&backs), 4, &["timeout: 60s"]);
    let (channels, each) = (100, 20);
    let mut clients: Vec<(Speaker, String)> = Vec::new();
    for nth in 0..1_000 {
        let mut client = Speaker::connect(quickack.address());
        let topic = match nth % 10 {
            9 => format!("c{}?", nth / 10 % 10),
            _ => format!("c{:02}", nth % channels),
        };
        let verb = if topic.ends_with('?') { "PSUBSCRIBE" } else { "SUBSCRIBE" };
        send(&mut client, &format!("{verb} {topic}"));
        clients.push((client, topic));
    }
    for (client, topic) in &mut clients {
        assert_eq!(words(client)[1], bulk(topic));
    }
    let mut publishers: Vec<(&str, Speaker)> = vec![
        ("proxy", Speaker::connect(quickack.address())),
        ("script", Speaker::connect(quickack.address())),
        ("direct", Speaker::connect(backs[2].address)),
    ];
    for (name, publisher) in &mut publishers {
        for nth in 0..each {
            let mut bytes = Vec::new();
            for channel in 0..channels {
                let (channel, text) = (format!("c{channel:02}"), format!("{name} {nth:04}"));
                let script = "return redis.call('PUBLISH', ARGV[1], ARGV[2])";
                match *name {
                    // Each channel's script on one server, so that its messages have an order.
                    "script" => push_command(
                        &["EVAL", script, "1", &channel.clone(), &channel, &text],
                        &mut bytes,
                    ),
                    _ => push_command(&["PUBLISH", &channel, &text], &mut bytes),
                }
            }
            publisher.send(&bytes);
            for _ in 0..channels {
                let told = publisher.reply().expect("a count");
                assert!(matches!(told, Reply::Integer(1..)), "{told:?}");
            }
        }
    }
    for (client, topic) in &mut clients {
        let heard = if topic.ends_with('?') { 10 } else { 1 };
        let mut last = std::collections::BTreeMap::new();
        for _ in 0..heard * each * publishers.len() {
            let told = words(client);
            let [channel, text] = [&told[told.len() - 2], &told[told.len() - 1]];
            let text = String::from_utf8_lossy(text.bytes().expect("a text")).into_owned();
            let (publisher, number) = text.split_once(' ').expect("two words");
            let key = (format!("{channel:?}"), publisher.to_string());
            let number: i32 = number.parse().expect("a number");
            let before = last.insert(key, number).unwrap_or(-1);
            assert_eq!(number, before + 1, "{topic}: {publisher} {channel:?}");
        }
        assert_eq!(client.say("PING"), Reply::Array(vec![bulk("pong"), bulk("")]), "no more");
    }
}

#[test]
fn the_newest_of_requests_that_cross_holds() {
    let backs = servers(Family::Redis70, 2);
    let quickack = start(&addresses(&backs), 1, &[]);
    let mut publisher = Speaker::connect(quickack.address());
    let (mut one, mut other) =
        (Speaker::connect(quickack.address()), Speaker::connect(quickack.address()));
    for round in 0..200 {
        let mut bytes = Vec::new();
        for line in ["SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c", "UNSUBSCRIBE", "SUBSCRIBE c"] {
            push_command(&line.split(' ').collect::<Vec<&str>>(), &mut bytes);
        }
        one.send(&bytes);
        send(&mut other, "SUBSCRIBE c");
        send(&mut other, "UNSUBSCRIBE c");
        for count in [1, 0, 1, 0, 1] {
            let told = words(&mut one);
            assert_eq!(told[2], Reply::Integer(count), "{round}");
        }
        for _ in 0..2 {
            other.reply().expect("an answer");
        }
        let text = format!("{round}");
        assert_eq!(publisher.say(&format!("PUBLISH c {text}")), Reply::Integer(1));
        assert_eq!(one.reply().expect("it"), pushed(&["message", "c"], bulk(&text)));
        assert_eq!(one.say("UNSUBSCRIBE c").list()[2], Reply::Integer(0));
        assert_eq!(publisher.say("PUBLISH c none"), Reply::Integer(0));
    }
}

#[test]
fn a_push_splits_no_reply_and_is_no_reply_before_redis() {
    let backs = servers(Family::Redis70, 2);
    let quickack = start(&addresses(&backs), 1, &["timeout: 20s"]);
    let mut publisher = Speaker::connect(quickack.address());
    let value = "v".repeat(3 << 20);
    publisher.ask(&["SET", "large", &value]);
    let mut client = Speaker::connect(quickack.address());
    client.say("HELLO 3");
    send(&mut client, "SUBSCRIBE c");
    let told = client.reply().expect("acknowledged");
    assert!(matches!(told, Reply::Push(_)), "{told:?}");
    let (rounds, mut sent) = (40, 0);
    let mut pushes = Vec::new();
    for _ in 0..rounds {
        send(&mut client, "GET large");
        for _ in 0..3 {
            send(&mut client, "ECHO x");
        }
        for _ in 0..5 {
            send(&mut publisher, &format!("PUBLISH c {sent}"));
            sent += 1;
        }
        let mut replies = Vec::new();
        while replies.len() < 4 {
            match client.reply().expect("a reply or a push") {
                Reply::Push(words) => pushes.push(words[2].clone()),
                reply => replies.push(reply),
            }
        }
        assert_eq!(replies[0].bytes().map(<[u8]>::len), Some(value.len()));
        assert!(replies[1..].iter().all(|reply| *reply == bulk("x")));
    }
    while pushes.len() < sent {
        match client.reply().expect("a push") {
            Reply::Push(words) => pushes.push(words[2].clone()),
            reply => panic!("{reply:?}"),
        }
    }
    let expected: Vec<Reply> = (0..sent).map(|nth| bulk(&nth.to_string())).collect();
    assert_eq!(pushes, expected);
    // Its messages follow the answer to HELLO in the form of that version.
    assert!(!client.say("HELLO 2").list().is_empty());
    let told = client.say("GET k");
    assert!(told.error().contains("only (P|S)SUBSCRIBE"), "{told:?}");
    for _ in 0..sent {
        publisher.reply().expect("a count");
    }
    publisher.say("PUBLISH c end");
    assert_eq!(client.reply().expect("it"), pushed(&["message", "c"], bulk("end")));
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_and_others_hear_everything() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&addresses(&backs), 1, &["timeout: 20s"]);
    let mut slow = Speaker::connect(quickack.address());
    subscribe(&mut slow, "c");
    let mut quick = Speaker::connect(quickack.address());
    subscribe(&mut quick, "c");
    let mut publisher = Speaker::connect(quickack.address());
    let text = "x".repeat(1 << 20);
    let mut count = 0;
    while stat(&quickack, "subscribers_slow_total") == 0 {
        assert!(count < 200, "it is closed");
        let told = publisher.ask(&["PUBLISH", "c", &text]);
        assert!(matches!(told, Reply::Integer(1..=2)), "{told:?}");
        let told = words(&mut quick);
        assert_eq!(told[2].bytes().map(<[u8]>::len), Some(text.len()));
        count += 1;
    }
    wait_until("one subscribes", || stat(&quickack, "subscriptions") == 1);
    let end = slow.rest();
    assert!(end.len() < count << 20, "not all was kept for it");
    assert_eq!(publisher.say("PUBLISH c end"), Reply::Integer(1));
    assert_eq!(quick.reply().expect("it"), pushed(&["message", "c"], bulk("end")));
}

#[test]
fn a_lost_subscription_closes_its_clients_or_is_made_again() {
    for keeps in [false, true] {
        let mut backs = servers(Family::Redis70, 2);
        let lost = if keeps { "keep" } else { "close" };
        let quickack = start(
            &addresses(&backs),
            1,
            &["timeout: 5s", &format!("on_subscription_lost: {lost}")],
        );
        let mut client = Speaker::connect(quickack.address());
        subscribe(&mut client, "c");
        let mut other = Speaker::connect(quickack.address());
        assert_eq!(other.say("SET k v"), Reply::Simple("OK".into()));
        let address = backs[1].address;
        backs.pop();
        wait_until("it is noticed", || stat(&quickack, "subscriptions_lost_total") == 1);
        if !keeps {
            assert!(client.reply().is_err(), "it is closed");
            wait_until("it is counted", || stat(&quickack, "subscribers_lost_total") == 1);
            client = Speaker::connect(quickack.address());
            // The server that is left has acknowledged it.
            subscribe(&mut client, "c");
        }
        assert_eq!(direct(&backs[0], "PUBLISH c one"), Reply::Integer(1));
        assert_eq!(client.reply().expect("it"), pushed(&["message", "c"], bulk("one")));
        backs.push(Redis::start_on(Family::Redis70, address, &[]).expect("its port is free"));
        wait_until("the server is joined", || {
            direct(&backs[1], "PUBLISH c two") == Reply::Integer(1)
        });
        assert_eq!(client.reply().expect("it"), pushed(&["message", "c"], bulk("two")));
        wait_until("it is counted", || stat(&quickack, "subscriptions_joined_total") >= 1);
        assert!(quickack.process.stderr_text().contains("on_subscription_lost"));
    }
}

#[test]
fn what_the_servers_refuse_is_told_and_what_no_server_can_do_as_well() {
    let user = "--user default on nopass ~* +@all resetchannels &open:*";
    let user: Vec<&str> = user.split(' ').collect();
    let backs: Vec<Redis> = (0..2).map(|_| Redis::start_with(Family::Redis70, &user)).collect();
    let quickack = start(&addresses(&backs), 1, &["timeout: 5s"]);
    let mut client = Speaker::connect(quickack.address());
    let told = client.say("SUBSCRIBE open:a closed");
    assert!(told.error().starts_with("NOPERM"), "{told:?}");
    assert_eq!(client.say("GET k"), Reply::Null(b'$'), "it listens to nothing");
    subscribe(&mut client, "open:a");
    let mut publisher = Speaker::connect(quickack.address());
    assert_eq!(publisher.say("PUBLISH open:a x"), Reply::Integer(1));
    assert_eq!(client.reply().expect("it"), pushed(&["message", "open:a"], bulk("x")));
    drop(backs);
    let mut client = Speaker::connect(quickack.address());
    wait_until("it is told that no server is there", || {
        let told = client.say("SUBSCRIBE open:a");
        matches!(told, Reply::Error(_))
    });
}

#[test]
fn hashed_channels_stand_on_one_server_and_there_are_no_patterns() {
    let backs = servers(Family::Redis70, 4);
    let quickack = start(&addresses(&backs), 1, &["pubsub: hashed", "timeout: 20s"]);
    let mut client = Speaker::connect(quickack.address());
    let mut publisher = Speaker::connect(quickack.address());
    for nth in 0..20 {
        let channel = format!("c{nth}");
        subscribe(&mut client, &channel);
        let standing = backs
            .iter()
            .filter(|back| direct(back, &format!("PUBLISH {channel} x")) == Reply::Integer(1));
        assert_eq!(standing.count(), 1);
        client.reply().expect("the message");
        assert_eq!(publisher.say(&format!("PUBLISH {channel} y")), Reply::Integer(1));
        assert_eq!(client.reply().expect("it"), pushed(&["message", &channel], bulk("y")));
    }
    let told = client.say("PSUBSCRIBE c*");
    assert!(told.error().contains("pubsub: hashed"), "{told:?}");
}

#[test]
fn subscribers_stay_where_they_are_and_are_closed_when_the_proxy_ends() {
    let backs = servers(Family::Redis70, 2);
    let text = config(&addresses(&backs), &["timeout: 20s"]);
    let with =
        |workers: usize| format!("{text}global:\n  workers: {workers}\n  shutdown_timeout: 60s\n");
    let quickack = Quickack::start(QUICKACK, &with(4));
    let mut clients: Vec<Speaker> = (0..40).map(|_| Speaker::connect(quickack.address())).collect();
    clients.iter_mut().for_each(|client| subscribe(client, "c"));
    for (nth, workers) in [8, 1].into_iter().enumerate() {
        quickack.rewrite(&with(workers));
        quickack.admin_ok(&["reload"]);
        direct(&backs[1], &format!("PUBLISH c {nth}"));
        for client in &mut clients {
            let told = client.reply().expect("it stays");
            assert_eq!(told, pushed(&["message", "c"], bulk(&nth.to_string())));
        }
        let mut new = Speaker::connect(quickack.address());
        subscribe(&mut new, "c");
        clients.push(new);
    }
    quickack.process.signal(Signal::TERM);
    for client in &mut clients {
        assert!(client.reply().is_err(), "it is closed");
    }
}

#[test]
fn a_worker_that_dies_takes_its_own_subscribers_with_it_and_no_others() {
    let backs = servers(Family::Redis70, 2);
    let quickack = start(&addresses(&backs), 4, &["timeout: 20s"]);
    harness::wait_for_workers(&quickack, 4);
    let mut clients: Vec<Speaker> = (0..40).map(|_| Speaker::connect(quickack.address())).collect();
    clients.iter_mut().for_each(|client| subscribe(client, "c"));
    let before = harness::workers(&quickack);
    let (victim, worker) = before.iter().max_by_key(|(_, one)| one.clients).expect("a worker");
    let (lost, pid) = (worker.clients as usize, worker.pid);
    let mut publisher = Speaker::connect(backs[0].address);
    let mut sent = 0;
    let mut publish = |count: usize| {
        for _ in 0..count {
            publisher.say(&format!("PUBLISH c {sent}"));
            sent += 1;
        }
        sent
    };
    publish(100);
    testkit::process::send(pid, Signal::KILL);
    publish(100);
    wait_until("another has its place", || {
        let now = harness::workers(&quickack);
        now.len() == 4 && now[victim].pid != pid && now.values().all(|one| one.is_serving())
    });
    let sent = publish(100);
    let mut gone = 0;
    for client in &mut clients {
        for nth in 0..sent {
            match client.reply() {
                Ok(told) => assert_eq!(told, pushed(&["message", "c"], bulk(&nth.to_string()))),
                Err(_) => {
                    gone += 1;
                    break;
                }
            }
        }
    }
    assert_eq!(gone, lost, "those of the worker that died");
    let mut new = Speaker::connect(quickack.address());
    subscribe(&mut new, "c");
}
