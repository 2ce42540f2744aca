//! One link that ends, or brings a reply that cannot be used: what that costs those who share it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use testkit::process::{
    Family, Firewall, Quickack, Redis, Speaker, connect, freeze, listen, send, wait_until,
};
use testkit::wire::resp::Reply;

use super::model::{Model, Turn};
use super::{EJECT, QUICKACK, config, quickack, with_workers};
use crate::harness::{self, stats, with_worker};
use crate::limits::told_while_it_writes;
use crate::logins::private;

const OK: &str = "OK";

/// The worker finds both in one turn, the request first or the end first.
#[test]
fn a_change_that_meets_the_end_of_an_idle_link_is_done_once() {
    let redis = Redis::start(Family::Redis70);
    let quickack = with_workers(1, &[redis.address], &[]);
    let mut client = Speaker::connect(quickack.address());
    let mut direct = Speaker::connect(redis.address);
    assert_eq!(client.say("INCR n"), Reply::Integer(1));
    let worker = harness::workers(&quickack)[&0].pid;
    for round in 0..100 {
        freeze(worker);
        if round % 2 == 0 {
            client.send(b"INCR n\r\n");
        }
        assert_eq!(direct.say("CLIENT KILL TYPE normal"), Reply::Integer(1), "the only link");
        if round % 2 == 1 {
            client.send(b"INCR n\r\n");
        }
        send(worker, Signal::CONT);
        assert_eq!(client.reply(), Ok(Reply::Integer(round + 2)));
    }
}

/// A proxy or a firewall on the way ends a connection. What has left may have been executed, and
/// what has not is another client's.
#[test]
fn a_connection_that_is_cut_costs_only_those_who_are_owed_something_there() {
    let redis = Redis::start(Family::Redis70);
    let firewall = Firewall::start(redis.address);
    let quickack = with_workers(1, &[firewall.address], &[]);
    let [mut owed, mut other] = [(); 2].map(|()| Speaker::connect(quickack.address()));
    assert_eq!(owed.say("INCR n"), Reply::Integer(1));
    let held = || harness::total(&quickack, "messages_held_total");
    redis.process.freeze();
    owed.send(b"INCR n\r\n");
    wait_until("it has left", || harness::total(&quickack, "inflight") > 0);
    // The server is silent after a while, and nothing more is sent.
    let mut asked = Vec::new();
    wait_until("a change is held", || {
        let mut one = Speaker::connect(quickack.address());
        one.send(b"INCR o\r\n");
        asked.push(one);
        held() > 0
    });
    other.send(b"INCR m\r\n");
    wait_until("all of them are read", || {
        let requests = harness::stats(&quickack)["pools"][0]["requests_total"].as_u64();
        requests == Some(asked.len() as u64 + 3)
    });
    firewall.cut_first();
    let told = owed.reply().expect("an answer");
    assert!(told.error().contains("connection lost, outcome unknown"), "{told:?}");
    redis.process.thaw();
    assert_eq!(other.reply(), Ok(Reply::Integer(1)));
}

/// Starts a relay to a server that ends a connection at this word.
fn ends_at(server: SocketAddr, word: &'static str) -> SocketAddr {
    listen(move |mut near| {
        let mut far = connect(server);
        let [from_far, to_near] = [&far, &near].map(|it| it.try_clone().expect("a second one"));
        thread::spawn(move || io::copy(&mut &from_far, &mut &to_near));
        let mut chunk = [0; 4096];
        while let Ok(len @ 1..) = near.read(&mut chunk) {
            let has_word = String::from_utf8_lossy(&chunk[..len]).contains(word);
            if has_word || far.write_all(&chunk[..len]).is_err() {
                break;
            }
        }
        for one in [near, far] {
            let _ = one.shutdown(Shutdown::Both);
        }
    })
}

/// A proxy on the way may end a connection at what one client asks, as often as it asks.
#[test]
fn a_wait_that_ends_its_connection_keeps_no_other_client_from_one() {
    let redis = Redis::start(Family::Redis70);
    let quickack = with_workers(1, &[ends_at(redis.address, "poison")], &[]);
    let mut direct = Speaker::connect(redis.address);
    let mut poison = Speaker::connect(quickack.address());
    assert_eq!(poison.say("GET k"), Reply::Null(b'$'));
    for _ in 0..20 {
        let told = poison.say("BLPOP poison 0");
        assert!(told.is_error(), "{told:?}");
        assert_eq!(direct.say("RPUSH l v"), Reply::Integer(1));
        let mut other = Speaker::connect(quickack.address());
        let popped = Reply::Array(["l", "v"].map(|one| Reply::Bulk(one.into())).to_vec());
        assert_eq!(other.say("BLPOP l 0"), popped);
    }
}

/// Kvrocks and ElastiCache Serverless give such cursors.
#[test]
fn a_cursor_of_any_form_passes_before_one_server_and_is_an_error_before_several() {
    const FORMS: [&str; 4] =
        ["18014398509481984", "18446744073709551615", "_key", "99999999999999999999"];
    let model = || {
        Model::start(|words| {
            let mut words = words.split(' ');
            match (words.next(), words.next()) {
                (Some("scan"), Some("0")) => list(FORMS[0]),
                (Some("scan"), Some(cursor)) => {
                    let at = FORMS.iter().position(|form| *form == cursor);
                    at.map_or_else(|| list("0"), |at| list(FORMS.get(at + 1).unwrap_or(&"0")))
                }
                _ => Turn::Say(b"+OK\r\n".to_vec()),
            }
        })
    };
    let models = [model(), model()];
    let alone = quickack(&[models[0].address], &[]);
    let mut client = Speaker::connect(alone.address());
    let mut cursor = "0".to_string();
    for next in FORMS.iter().chain(&["0"]) {
        let reply = client.say(&format!("SCAN {cursor}"));
        let key = Reply::Array(vec![Reply::Bulk("k".into())]);
        assert_eq!(reply, Reply::Array(vec![Reply::Bulk((*next).into()), key]));
        cursor = (*next).to_string();
    }
    let several = quickack(&[models[0].address, models[1].address], &[]);
    let (mut client, mut other) =
        (Speaker::connect(several.address()), Speaker::connect(several.address()));
    for _ in 0..20 {
        client.send(b"SCAN 0\r\nSET k 1\r\n");
        other.send(b"SET k 2\r\n");
        let refused = client.reply().expect("an answer");
        assert!(refused.error().contains("is no number below 2^54"), "{refused:?}");
        let done = Ok(Reply::Simple("OK".into()));
        assert_eq!((client.reply(), other.reply()), (done.clone(), done));
    }
}

fn list(cursor: &str) -> Turn {
    Turn::Say(format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n$1\r\nk\r\n", cursor.len()).into_bytes())
}

/// The reply may be another request's, so its link ends. The next link is believed.
#[test]
fn a_reply_of_another_shape_costs_no_other_client_its_server() {
    let model = Model::start(|words| match words.split(' ').next() {
        Some("scan") => Turn::Say(b":1\r\n".to_vec()),
        Some("mget") => Turn::Say(b"*-1\r\n".to_vec()),
        Some("get") => Turn::Say(b"$1\r\nv\r\n".to_vec()),
        _ => Turn::Say(b"+OK\r\n".to_vec()),
    });
    let other = Model::start(|_| Turn::Say(b"$1\r\nv\r\n".to_vec()));
    for servers in [vec![model.address], vec![model.address, other.address]] {
        let quickack = quickack(&servers, &EJECT);
        let mut quiet = Speaker::connect(quickack.address());
        let mut loud = Speaker::connect(quickack.address());
        for _ in 0..50 {
            loud.send(b"MGET a b\r\n");
            if servers.len() > 1 {
                loud.send(b"SCAN 0\r\n");
            }
            for key in ["a", "b", "c", "d"] {
                let reply = quiet.say(&format!("GET {key}"));
                assert_eq!(reply, Reply::Bulk("v".into()), "{key}");
            }
            for _ in 0..servers.len() {
                let reply = loud.reply().expect("an answer");
                assert!(reply.error().contains("unexpected reply"), "{reply:?}");
            }
        }
        let stats = quickack.admin_ok(&["servers"]);
        assert!(!stats.contains("ejected") && !stats.contains("down"), "{stats}");
    }
}

/// Checks that a client is served all the while another one, in another database, is told why it is
/// not.
fn check_others_are_served(quickack: &Quickack, quiet: &mut Speaker, why: &str) {
    let mut other = Speaker::connect(quickack.address());
    assert_eq!(other.say("SELECT 1"), Reply::Simple(OK.into()));
    for _ in 0..100 {
        other.send(b"GET k\r\n");
        for _ in 0..5 {
            assert_eq!(quiet.say("GET k"), Reply::Bulk("v".into()));
        }
        let told = other.reply().expect("an answer");
        assert!(told.error().contains(why), "{told:?}");
    }
    let servers = quickack.admin_ok(&["servers"]);
    assert!(!servers.contains("ejected") && !servers.contains("down"), "{servers}");
    let said = why.trim_end_matches("; not sent");
    wait_until("operators see why", || {
        [&["servers"], &["info"], &["stats"]].iter().all(|verb| {
            let text = quickack.admin_ok(*verb);
            text.contains("no further connection: ") && text.contains(said)
        })
    });
}

/// Clients compare the words, with `client_connections` and without descriptors alike.
#[test]
fn no_room_for_a_client_is_told_as_redis_tells_it() {
    let full = Redis::start_with(Family::Redis70, &["--maxclients", "1"]);
    let _first = Speaker::connect(full.address);
    let said = Speaker::connect(full.address).reply().expect("an answer");
    assert!(said.error().contains("max number of clients"), "{said:?}");
    let redis = Redis::start(Family::Redis70);
    let quickack = with_workers(1, &[redis.address], &["client_connections: 1"]);
    let mut served = Speaker::connect(quickack.address());
    assert_eq!(served.say("PING"), Reply::Simple("PONG".into()));
    assert_eq!(Speaker::connect(quickack.address()).reply(), Ok(said.clone()));
    drop(quickack);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", QUICKACK]);
    let quickack = Quickack::start_by(command, QUICKACK, &config(&[redis.address], &[]));
    let mut served = Vec::new();
    wait_until("a client is refused", || {
        let mut stream = testkit::process::connect(quickack.address());
        let _ = stream.write_all(b"PING\r\n");
        let mut text = [0; 64];
        let len = stream.read(&mut text).unwrap_or(0);
        served.push(stream);
        text[..len] == *b"-ERR max number of clients reached\r\n"
    });
}

#[test]
fn a_client_that_is_closed_for_a_mistake_while_it_writes_reads_why() {
    let redis = Redis::start(Family::Redis70);
    let quickack = with_workers(1, &[redis.address], &[]);
    for _ in 0..5 {
        let much = [&b"*1\r\n$x\r\n"[..], &b"PING\r\n".repeat(200_000)].concat();
        let told = told_while_it_writes(quickack.client(), much);
        assert_eq!(told, "-ERR Protocol error: invalid bulk length\r\n");
    }
}

fn full() -> (Redis, Quickack, Speaker, Vec<Speaker>) {
    let redis = Redis::start_with(Family::Redis70, &["--maxclients", "20"]);
    let (quickack, quiet, direct) = fill(&redis);
    (redis, quickack, quiet, direct)
}

/// A client before a Redis that then has as many clients as it may have: the others are direct.
fn fill(redis: &Redis) -> (Quickack, Speaker, Vec<Speaker>) {
    let quickack = with_workers(1, &[redis.address], &EJECT);
    let mut quiet = Speaker::connect(quickack.address());
    assert_eq!(quiet.say("SET k v"), Reply::Simple(OK.into()));
    let mut direct = Vec::new();
    loop {
        let mut one = Speaker::connect(redis.address);
        one.send(b"PING\r\n");
        match one.reply() {
            Ok(Reply::Simple(_)) => direct.push(one),
            _ => break,
        }
    }
    (quickack, quiet, direct)
}

#[test]
fn a_full_redis_costs_nobody_the_link_that_is_there() {
    let (_redis, quickack, mut quiet, direct) = full();
    check_others_are_served(&quickack, &mut quiet, "ERR max number of clients reached; not sent");
    drop(direct);
    let mut other = Speaker::connect(quickack.address());
    other.say("SELECT 1");
    wait_until("there is room again", || !other.say("SET k v").is_error());
}

/// Returns a number of a server's `INFO`.
fn info(direct: &mut Speaker, name: &str) -> u64 {
    let text =
        direct.say("INFO stats").bytes().map(|text| String::from_utf8_lossy(text).into_owned());
    let text = text.expect("a text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// Has a client increment `n` in a transaction; returns the answer to `EXEC`.
fn transacts(client: &mut Speaker) -> Reply {
    assert_eq!(client.say("MULTI"), Reply::Simple(OK.into()));
    client.say("INCR n");
    client.say("EXEC")
}

/// The first one has to show that the server executes transactions, on the link that is there.
#[test]
fn a_transaction_before_a_full_redis_takes_the_link_that_is_there() {
    let (_redis, quickack, mut quiet, mut direct) = full();
    let before = info(&mut direct[0], "rejected_connections");
    let mut other = Speaker::connect(quickack.address());
    for round in 1..=200 {
        other.send(b"INCR m\r\n");
        assert_eq!(transacts(&mut quiet), Reply::Array(vec![Reply::Integer(round)]));
        assert_eq!(other.reply(), Ok(Reply::Integer(round)));
    }
    let tries = info(&mut direct[0], "rejected_connections") - before;
    assert_eq!(tries, 1, "connections");
}

/// A worker without a link to try waits for no place, and connects no more often than the pauses
/// let it.
#[test]
fn a_transaction_before_a_full_redis_without_any_link_reads_why() {
    let (redis, _quickack, _quiet, mut direct) = full();
    let quickack = with_workers(1, &[redis.address], &EJECT);
    let before = info(&mut direct[0], "rejected_connections");
    let mut client = Speaker::connect(quickack.address());
    const ROUNDS: u64 = 200;
    for _ in 0..ROUNDS {
        let told = transacts(&mut client);
        assert!(told.error().contains("max number of clients reached"), "{told:?}");
    }
    let tries = info(&mut direct[0], "rejected_connections") - before;
    // The pauses grow from 10 ms on.
    assert!((1..ROUNDS / 2).contains(&tries), "{tries} connections");
    direct.truncate(1);
    let mut done = Reply::Null(b'$');
    wait_until("there is room again", || {
        done = transacts(&mut client);
        !done.is_error()
    });
    assert_eq!(done, Reply::Array(vec![Reply::Integer(1)]));
}

/// A client whose transactions cannot be executed takes nobody's link away.
#[test]
fn a_full_redis_without_transactions_keeps_the_link_that_is_there() {
    for names in [&["MULTI"][..], &["DISCARD"], &["EXEC"], &["DISCARD", "EXEC"]] {
        let renames = names.iter().flat_map(|name| ["--rename-command", name, ""]);
        let arguments: Vec<&str> = ["--maxclients", "20"].into_iter().chain(renames).collect();
        let redis = Redis::start_with(Family::Redis70, &arguments);
        let (quickack, mut quiet, direct) = fill(&redis);
        for _ in 0..3 {
            let told = transacts(&mut quiet);
            assert!(told.error().contains("s1: does not execute MULTI"), "{names:?}: {told:?}");
            assert_eq!(quiet.say("GET k"), Reply::Bulk("v".into()));
        }
        assert_eq!(harness::total(&quickack, "link_lost_total"), 0);
        drop(direct);
    }
}

#[test]
fn a_password_that_was_changed_costs_nobody_the_link_that_is_there() {
    let redis = Redis::start(Family::Redis70);
    let mut direct = Speaker::connect(redis.address);
    let may = |password: &str| format!("ACL SETUSER shop on resetpass >{password} ~* +@all");
    assert_eq!(direct.say(&may("one")), Reply::Simple(OK.into()));
    let folder = private("login", "shop:one\n");
    let login = format!("server_login: {}", folder.path().join("login").display());
    let quickack = with_workers(1, &[redis.address], &[&login, EJECT[0], EJECT[1]]);
    let mut quiet = Speaker::connect(quickack.address());
    assert_eq!(quiet.say("SET k v"), Reply::Simple(OK.into()));
    assert_eq!(direct.say(&may("two")), Reply::Simple(OK.into()));
    check_others_are_served(&quickack, &mut quiet, "login refused: WRONGPASS ");
}

/// The link of the other worker has no traffic, so nothing but the question shows that it works.
#[test]
fn a_firewall_that_drops_new_connections_costs_nobody_the_link_of_another_worker() {
    let redis = Redis::start(Family::Redis70);
    let mut firewall = Firewall::start(redis.address);
    let pool = [EJECT[0], EJECT[1], "timeout_connect: 50ms", "timeout: 200ms"];
    let quickack = with_workers(2, &[firewall.address], &pool);
    let speak = || Speaker::connect(quickack.address());
    let (mut quiet, first) = with_worker(&quickack, speak);
    assert_eq!(quiet.say("SET k v"), Reply::Simple(OK.into()));
    firewall.drop_new();
    let mut others = Vec::new();
    let mut other = loop {
        let (other, at) = with_worker(&quickack, speak);
        match at == first {
            true => others.push(other),
            false => break other,
        }
    };
    let failed = || {
        let json = stats(&quickack);
        json["pools"][0]["servers"][0]["connect_timeout_total"].as_u64().expect("a count")
    };
    let mut asks = 0;
    while failed() < 8 {
        let told = other.say("GET k");
        assert!(told.error().contains("connect timed out"), "{told:?} after {asks} requests");
        asks += 1;
    }
    let servers = quickack.admin_ok(&["servers"]);
    assert!(!servers.contains("ejected") && !servers.contains("down"), "{servers}");
    assert_eq!(quiet.say("GET k"), Reply::Bulk("v".into()));
    let log = quickack.process.stderr_text();
    assert!(!log.contains("is ejected") && !log.contains("is down"), "{log}");
    firewall.let_pass();
    wait_until("connections are made again", || !other.say("GET k").is_error());
}

#[test]
fn a_firewall_that_drops_new_connections_costs_nobody_the_link_that_is_there() {
    let redis = Redis::start(Family::Redis70);
    let mut firewall = Firewall::start(redis.address);
    let pool = [EJECT[0], EJECT[1], "timeout_connect: 200ms"];
    let quickack = with_workers(1, &[firewall.address], &pool);
    let mut quiet = Speaker::connect(quickack.address());
    assert_eq!(quiet.say("SET k v"), Reply::Simple(OK.into()));
    firewall.drop_new();
    let mut other = Speaker::connect(quickack.address());
    other.say("SELECT 1");
    for _ in 0..10 {
        // The quiet client's link has no traffic meanwhile.
        let told = other.say("GET k");
        assert!(told.error().contains("connect timed out"), "{told:?}");
        assert_eq!(quiet.say("GET k"), Reply::Bulk("v".into()));
    }
    check_others_are_served(&quickack, &mut quiet, "connect timed out");
    firewall.let_pass();
    let mut other = Speaker::connect(quickack.address());
    other.say("SELECT 1");
    wait_until("connections are made again", || !other.say("SET k v").is_error());
}
