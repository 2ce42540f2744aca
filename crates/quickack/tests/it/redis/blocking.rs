//! Commands that wait for elements, before real servers.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use testkit::process::{Family, Quickack, Redis, Speaker, wait_until};
use testkit::wire::resp::{Reply, push_command};

use super::{QUICKACK, addresses, config, servers};
use crate::harness;

fn start(backs: &[Redis], workers: usize, more: &[&str]) -> Quickack {
    let text = config(&addresses(backs), more);
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

/// Speaks to the server at which a client waits. None of the deadlines of these tests is its own.
fn speak_where_one_waits(backs: &[Redis]) -> Speaker {
    let mut found = None;
    wait_until("one waits", || {
        found = backs.iter().find(|back| blocked(back) == 1);
        all_blocked(backs) == 1 && found.is_some()
    });
    Speaker::connect(found.expect("it was waited for").address)
}

/// Returns how many clients of a server wait for elements.
fn blocked(server: &Redis) -> usize {
    let told = Speaker::connect(server.address).say("INFO clients");
    let text = String::from_utf8_lossy(told.bytes().unwrap_or_default()).into_owned();
    let count = text.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn all_blocked(backs: &[Redis]) -> usize {
    backs.iter().map(blocked).sum()
}

#[test]
fn what_waits_gets_its_element_whatever_the_deadlines_before_one_redis_and_four() {
    for (count, workers) in [(1, 1), (4, 2)] {
        let backs = servers(Family::Redis70, count);
        let hurried = [
            "timeout_reply: 500ms",
            "timeout_slow: 500ms",
            "hold_after: 100ms",
            "slowlog_threshold: 400ms",
        ];
        let quickack = start(&backs, workers, &hurried);
        let mut other = Speaker::connect(quickack.address());
        let element = |key: &str, value: &str| Reply::Array(vec![bulk(key), bulk(value)]);
        for (wait, push, told) in [
            ("BLPOP {t}l {t}m 0", "RPUSH {t}m v", element("{t}m", "v")),
            ("BRPOP {t}l 0", "RPUSH {t}l v", element("{t}l", "v")),
            ("BLMOVE {t}l {t}d LEFT LEFT 0", "RPUSH {t}l v", bulk("v")),
            ("BRPOPLPUSH {t}l {t}d 0", "RPUSH {t}l v", bulk("v")),
            (
                "BLMPOP 0 2 {t}l {t}m LEFT",
                "RPUSH {t}m v",
                Reply::Array(vec![bulk("{t}m"), Reply::Array(vec![bulk("v")])]),
            ),
            (
                "BZPOPMIN {t}z 0",
                "ZADD {t}z 1 v",
                Reply::Array(vec![bulk("{t}z"), bulk("v"), bulk("1")]),
            ),
        ] {
            let mut client = Speaker::connect(quickack.address());
            send(&mut client, wait);
            send(&mut client, "PING");
            let mut pusher = speak_where_one_waits(&backs);
            // Far longer than any deadline.
            std::thread::sleep(Duration::from_millis(1_200));
            assert_eq!(all_blocked(&backs), 1, "{wait}");
            // On a busy machine one of them may be late.
            wait_until("others are served", || other.say("GET {t}none") == Reply::Null(b'$'));
            assert_eq!(pusher.say(push), Reply::Integer(1), "{push}");
            assert_eq!(client.reply().expect("the element"), told, "{wait}");
            assert_eq!(client.reply().expect("the next"), Reply::Simple("PONG".into()));
            pusher.say("DEL {t}l {t}m {t}d {t}z");
        }
        let mut client = Speaker::connect(quickack.address());
        // These, too, may be late.
        for line in ["BLPOP {t}l 0.05", "XREAD BLOCK 20 STREAMS {t}x $"] {
            wait_until("it waits in vain", || client.say(line) == Reply::Null(b'*'));
        }
        let wrong = "timeout is not a float";
        wait_until(wrong, || client.say("BLPOP {t}l x").error().contains(wrong));
        send(&mut client, "XREAD BLOCK 0 STREAMS {t}x $");
        let mut pusher = speak_where_one_waits(&backs);
        assert_eq!(pusher.say("XADD {t}x 1-1 f v"), bulk("1-1"));
        assert_eq!(client.reply().expect("the entry").list().len(), 1);
        // A wait says nothing of how long the proxy takes.
        let slow = quickack.ask("slowlog --json");
        assert!(!slow.contains("blpop") && !slow.contains("xread"), "{slow}");
    }
}

#[test]
fn a_client_that_leaves_takes_no_element_before_redis() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, 2, &["timeout: 20s"]);
    let mut clients: Vec<Speaker> = (0..20).map(|_| Speaker::connect(quickack.address())).collect();
    clients.iter_mut().for_each(|client| send(client, "BLPOP l 0"));
    wait_until("all wait", || blocked(&backs[0]) == 20);
    let gauge = |name: &str| {
        harness::stats(&quickack)["pools"][0]["servers"][0][name].as_u64().expect("a gauge")
    };
    let gauges = || ["clients_blocked", "private_links"].map(gauge);
    wait_until("the proxy counts them", || gauges() == [20, 20]);
    drop(clients);
    wait_until("none waits", || blocked(&backs[0]) == 0);
    wait_until("the proxy counts none", || gauges() == [0, 0]);
    let mut pusher = Speaker::connect(quickack.address());
    assert_eq!(pusher.say("RPUSH l v"), Reply::Integer(1));
    assert_eq!(pusher.say("LLEN l"), Reply::Integer(1));
    // Those who stay get them in their order.
    let mut clients: Vec<Speaker> = (0..5).map(|_| Speaker::connect(quickack.address())).collect();
    assert_eq!(pusher.say("DEL l"), Reply::Integer(1));
    for (nth, client) in clients.iter_mut().enumerate() {
        send(client, "BLPOP l 0");
        wait_until("one more waits", || blocked(&backs[0]) == nth + 1);
    }
    assert_eq!(pusher.say("RPUSH l 0 1 2 3 4"), Reply::Integer(5));
    for (nth, client) in clients.iter_mut().enumerate() {
        let told = client.reply().expect("an element");
        assert_eq!(told, Reply::Array(vec![bulk("l"), bulk(&nth.to_string())]));
    }
}

/// An element goes to nobody who has left, however often, and whatever waits behind the wait.
#[test]
fn elements_stay_when_clients_leave_again_and_again_before_redis() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, 2, &["timeout: 20s", "databases: 4"]);
    let mut pusher = Speaker::connect(quickack.address());
    let mut direct = Speaker::connect(backs[0].address);
    for round in 0..150 {
        let mut client = Speaker::connect(quickack.address());
        if round % 2 == 1 {
            assert!(matches!(client.say("HELLO 3"), Reply::Map(_)));
        }
        if round % 3 == 1 {
            // It has had links of several classes before.
            assert_eq!(client.say("KEYS none"), Reply::Array(Vec::new()));
        }
        send(&mut client, "BLPOP l 0");
        // These wait here, and are never sent.
        match round % 4 {
            1 => send(&mut client, "RPUSH l mine"),
            2 => (0..50).for_each(|_| send(&mut client, "BRPOP l 0")),
            3 => ["MULTI", "BLPOP l 0", "EXEC"].iter().for_each(|line| send(&mut client, line)),
            _ => {}
        }
        wait_until("it waits", || blocked(&backs[0]) == 1);
        match round % 5 {
            0 => client.stream.shutdown(Shutdown::Write).expect("it is open"),
            _ => drop(client),
        }
        wait_until("its wait has ended", || blocked(&backs[0]) == 0);
        let by = if round % 2 == 0 { &mut pusher } else { &mut direct };
        assert_eq!(by.say("LPUSH l v"), Reply::Integer(1), "round {round}");
        assert_eq!(pusher.say("LRANGE l 0 -1"), Reply::Array(vec![bulk("v")]), "round {round}");
        assert_eq!(pusher.say("DEL l"), Reply::Integer(1));
    }
}

/// Returns whether the element is still there that is pushed as soon as a client has left.
fn stays(at: SocketAddr, back: &Redis, pusher: &mut Speaker) -> bool {
    let mut client = Speaker::connect(at);
    send(&mut client, "BLPOP l 0");
    wait_until("it waits", || blocked(back) == 1);
    drop(client);
    assert_eq!(pusher.say("LPUSH l v"), Reply::Integer(1));
    wait_until("its wait has ended", || blocked(back) == 0);
    pusher.say("DEL l") == Reply::Integer(1)
}

/// An element that crosses with the end of its client is lost at a server as well: its connection
/// has not told it yet. Through the proxy the end has one more way to go, and so has the element.
#[test]
fn an_element_that_crosses_with_the_end_of_its_client_is_lost_no_more_than_before_redis_alone() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, 1, &["timeout: 20s"]);
    let mut through = Speaker::connect(quickack.address());
    let mut direct = Speaker::connect(backs[0].address);
    let count =
        |at, pusher: &mut Speaker| (0..100).filter(|_| !stays(at, &backs[0], pusher)).count();
    let alone = count(backs[0].address, &mut direct);
    let lost = count(quickack.address(), &mut through);
    assert!(lost <= alone + 10, "{lost} of 100, and {alone} before Redis alone");
}

#[test]
fn both_protocol_versions_have_the_answers_of_redis_itself() {
    let mut backs = servers(Family::Redis70, 2);
    let alone = backs.pop().expect("there are two");
    let quickack = start(&backs, 1, &["timeout: 20s"]);
    for version in [2, 3] {
        let mut direct = Speaker::connect(alone.address);
        let mut client = Speaker::connect(quickack.address());
        direct.say(&format!("HELLO {version}"));
        client.say(&format!("HELLO {version}"));
        for line in [
            "BLPOP l 0.05",
            "BLMPOP 0.05 1 l LEFT",
            "BZMPOP 0.05 1 l MAX",
            "BZPOPMIN l 0.05",
            "BLMOVE l m LEFT LEFT 0.05",
            "XREAD BLOCK 10 STREAMS x $",
            "BLPOP l -1",
            "BLPOP l",
            "XREAD BLOCK x STREAMS x $",
            "XREADGROUP GROUP none me BLOCK 10 STREAMS x >",
            "ZADD z 1.5 v",
            "BZPOPMAX z 0",
            "ZADD z 1.5 v",
            "BZMPOP 0 1 z MIN",
            "XADD x 1-1 f v",
            "XREAD COUNT 1 BLOCK 0 STREAMS x 0",
            "XGROUP CREATE x block 0",
            "XREADGROUP GROUP block block STREAMS x >",
            "BRPOP x 0",
            "SET l 1",
            "BLPOP none l 0",
            "MULTI",
            "BLPOP none 0",
            "XREAD BLOCK 0 STREAMS x $",
            "EXEC",
            "DEL l z x",
        ] {
            assert_eq!(client.say(line), direct.say(line), "{version}: {line}");
        }
        // A line with quotes, and one with other letters.
        client.send(b"bLpOp \"l\" '0.05'\r\nxread bLoCk 10 streams \"x\" $\r\n");
        let null = Reply::Null(if version == 2 { b'*' } else { b'_' });
        assert_eq!(client.reply().expect("nothing"), null);
        assert_eq!(client.reply().expect("nothing"), null);
    }
}

#[test]
fn no_more_clients_wait_than_the_bound_says_before_redis() {
    let backs = servers(Family::Redis70, 1);
    let text = config(&addresses(&backs), &["timeout: 20s"]);
    let global = "global:\n  workers: 1\n  private_connections_max: 3\n";
    let quickack = Quickack::start(QUICKACK, &format!("{text}{global}"));
    let mut clients: Vec<Speaker> = (0..3).map(|_| Speaker::connect(quickack.address())).collect();
    // Redis serves the first that waits.
    for (before, client) in clients.iter_mut().enumerate() {
        send(client, "BLPOP l 0");
        wait_until("one more waits", || blocked(&backs[0]) == before + 1);
    }
    let mut late = Speaker::connect(quickack.address());
    let told = late.say("BLPOP l 0").error();
    assert!(told.contains("`private_connections_max`"), "{told}");
    assert_eq!(late.say("RPUSH l v"), Reply::Integer(1), "it is served otherwise");
    assert_eq!(clients[0].reply().expect("an element").list().len(), 2);
    // One that has its element, and asks for something else, makes room.
    assert_eq!(clients[0].say("EXISTS l"), Reply::Integer(0));
    send(&mut late, "BLPOP l 0");
    wait_until("all wait", || blocked(&backs[0]) == 3);
}

/// Workers that retire let their clients wait, and a proxy that ends does not wait for them.
#[test]
fn a_wait_outlives_a_reload_and_no_wait_keeps_the_proxy_before_redis() {
    let backs = servers(Family::Redis70, 1);
    let text = |workers: usize| {
        format!("{}global:\n  workers: {workers}\n", config(&addresses(&backs), &["timeout: 20s"]))
    };
    let mut quickack = Quickack::start(QUICKACK, &text(3));
    harness::wait_for_workers(&quickack, 3);
    let mut clients: Vec<Speaker> = (0..9).map(|_| Speaker::connect(quickack.address())).collect();
    clients.iter_mut().for_each(|client| send(client, "BLPOP l 0"));
    wait_until("all wait", || blocked(&backs[0]) == 9);
    quickack.rewrite(&text(1));
    quickack.admin_ok(&["reload"]);
    let mut pusher = Speaker::connect(quickack.address());
    assert_eq!(pusher.say("RPUSH l 1 2 3 4 5 6 7 8 9"), Reply::Integer(9));
    for client in &mut clients {
        assert_eq!(client.reply().expect("an element").list().len(), 2);
    }
    quickack.wait_for_workers(1);
    send(&mut clients[0], "BLPOP l 0");
    wait_until("it waits", || blocked(&backs[0]) == 1);
    quickack.process.end_within(Duration::from_secs(10));
    wait_until("nobody waits", || blocked(&backs[0]) == 0);
}
