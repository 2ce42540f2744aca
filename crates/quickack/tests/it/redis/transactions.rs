//! Transactions before real servers: one block each, whole or not at all.

use std::sync::atomic::{AtomicBool, Ordering};

use testkit::process::{Family, Quickack, Redis, Speaker, wait_until};
use testkit::wire::resp::{Reply, push_command};

use super::model::{Model, Turn};
use super::{QUICKACK, addresses, as_servers_say, config, quickack, servers};
use crate::harness;
use crate::logins::private;

fn speak(quickack: &Quickack) -> Speaker {
    Speaker::connect(quickack.address())
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn queued() -> Reply {
    Reply::Simple("QUEUED".into())
}

/// Sends all lines in one write; returns a reply to each.
fn say_all(client: &mut Speaker, lines: &[&str]) -> Vec<Reply> {
    let commands = lines.iter().map(|line| line.split(' ').map(|word| word.into()).collect());
    client.ask_all(&commands.collect::<Vec<Vec<Vec<u8>>>>())
}

#[test]
fn a_transaction_before_one_redis_and_before_four_has_the_answers_of_a_server() {
    for (count, version) in [(1, 2), (1, 3), (4, 2), (4, 3)] {
        let backs = servers(Family::Redis70, count);
        let quickack = quickack(&addresses(&backs), &["timeout: 20s"]);
        let mut client = speak(&quickack);
        client.say(&format!("HELLO {version}"));
        // At once, and one by one.
        let lines = [
            "MULTI",
            "SET {t}a 1",
            "INCR {t}a",
            "HSET {t}h f v",
            "HGETALL {t}h",
            "PING",
            "LPOP {t}a",
            "BLPOP {t}none 0",
            "CLIENT ID",
            "EXEC",
        ];
        let at_once = say_all(&mut client, &lines);
        client.say("DEL {t}a {t}h");
        let one_by_one: Vec<Reply> = lines.iter().map(|line| client.say(line)).collect();
        assert_eq!(at_once, one_by_one);
        let count = |name: &str| harness::stats(&quickack)["pools"][0][name].clone();
        assert_eq!(count("transactions_total"), 2);
        let refused = say_all(&mut client, &["MULTI", "SET {t}a", "EXEC"]);
        assert!(refused[2].error().starts_with("EXECABORT "), "{refused:?}");
        let counts = ["transactions_total", "transactions_refused_total"].map(count);
        assert_eq!(counts, [2, 1]);
        assert_eq!(at_once[0], ok());
        assert!(at_once[1..9].iter().all(|reply| *reply == queued()), "{at_once:?}");
        let elements = at_once[9].list();
        assert_eq!(elements[..3], [ok(), Reply::Integer(2), Reply::Integer(1)]);
        assert_eq!(matches!(elements[3], Reply::Map(_)), version == 3, "{:?}", elements[3]);
        assert_eq!(elements[4], Reply::Simple("PONG".into()));
        assert!(elements[5].error().starts_with("WRONGTYPE "), "{:?}", elements[5]);
        assert!(matches!(elements[6], Reply::Null(_)), "{:?}", elements[6]);
        assert_eq!(elements[7], client.say("CLIENT ID"), "the proxy's own number");
        // Others see none of it, or all.
        assert_eq!(client.say("MULTI"), ok());
        assert_eq!(client.say("SET {t}a 9"), queued());
        let mut other = speak(&quickack);
        assert_eq!(other.say("GET {t}a"), Reply::Bulk("2".into()));
        assert_eq!(client.say("EXEC"), Reply::Array(vec![ok()]));
        assert_eq!(other.say("GET {t}a"), Reply::Bulk("9".into()));
        let after = say_all(&mut client, &["MULTI", "SET {t}a 0", "DISCARD", "GET {t}a"]);
        assert_eq!(after[2..], [ok(), Reply::Bulk("9".into())]);
    }
}

/// What a server says of a wrong transaction, the proxy says as well.
#[test]
fn mistakes_in_a_transaction_are_told_as_by_redis() {
    let redis = Redis::start(Family::Redis70);
    let quickack = quickack(&[redis.address], &["allow: [flushall]"]);
    let (mut direct, mut ours) = (Speaker::connect(redis.address), speak(&quickack));
    for lines in [
        &["MULTI", "MULTI", "SET a 1", "EXEC"][..],
        &["MULTI", "WATCH a", "GET a", "EXEC"],
        &["MULTI", "GET", "GET a", "EXEC", "EXEC", "DISCARD"],
        &["MULTI", "NOSUCH x", "EXEC"],
        &["MULTI", "EXEC"],
        &["MULTI", "UNWATCH", "ECHO x", "PING y", "EXEC"],
        &["MULTI", "DISCARD x", "EXEC"],
        // EXEC that is refused ends the transaction, and says why in the words of EXEC.
        &["MULTI", "SET a 1", "EXEC a", "GET a", "EXEC"],
        &["MULTI", "GET", "EXEC a", "EXEC"],
        &["WATCH a", "SET a 1", "MULTI", "EXEC a", "MULTI", "SET a 2", "EXEC", "GET a"],
        &["EXEC a", "DISCARD x", "MULTI x", "GET a", "EXEC"],
        &["MULTI", "MULTI x", "SET a 1", "EXEC", "GET a"],
        &["MULTI", "WATCH", "SET a 1", "EXEC", "GET a"],
        &["MULTI", "UNWATCH x", "SET a 1", "EXEC", "GET a"],
        &["MULTI", "SET a", "DISCARD"],
        &["MULTI", "SET a 2", "RESET", "GET a"],
        &["MULTI", "INCR text", "SET text x", "INCR text", "GET text", "EXEC"],
        &["MULTI", "XREAD BLOCK 0 STREAMS none $", "BLMOVE none other LEFT LEFT 0", "EXEC"],
        &["MULTI", "MSET a 1 b 2", "MGET a b none", "DBSIZE", "EVAL return(1) 0", "EXEC"],
        &["MULTI", "EVAL return(redis.status_reply('QUEUED')) 0", "EXEC", "PING"],
        &["MULTI", "FLUSHALL", "DBSIZE", "EXEC"],
        // One that selects a database has a link of its own, and its client is there afterwards.
        &["SET a 1", "MULTI", "SELECT 3", "PING", "SET a 2", "GET a", "EXEC", "GET a"],
        &["SET a 1", "MULTI", "SELECT 3", "SET a 2", "SELECT 0", "GET a", "EXEC", "GET a"],
        &["SET a 1", "MULTI", "SELECT 99", "SELECT x", "SELECT 03", "GET a", "EXEC", "GET a"],
        &["SET a 1", "MULTI", "SELECT 3", "SET a 2", "DISCARD", "GET a"],
        &["SET a 1", "MULTI", "SELECT 3", "SET a", "EXEC", "GET a"],
        &["SET a 1", "WATCH a", "SET a 2", "MULTI", "SELECT 3", "EXEC", "GET a"],
        &["SET a 1", "WATCH a", "MULTI", "SELECT 3", "GET a", "EXEC", "GET a"],
    ] {
        let told = [&mut direct, &mut ours].map(|one| {
            one.say("FLUSHALL");
            one.say("SELECT 0");
            say_all(one, lines)
        });
        let [expected, told] = told;
        let told: Vec<Reply> = told.into_iter().map(as_servers_say).collect();
        assert_eq!(told, expected, "{lines:?}");
    }
}

#[test]
fn a_transaction_of_keys_on_two_redises_is_refused_when_they_are_queued() {
    let backs = servers(Family::Redis70, 2);
    let quickack = quickack(&addresses(&backs), &[]);
    let mut client = speak(&quickack);
    let on = |at: usize| {
        let mut direct = Speaker::connect(backs[at].address);
        let keys = (0..1_000).map(|n| format!("key{n}"));
        let mut client = speak(&quickack);
        keys.into_iter().find(|key| {
            client.say(&format!("SET {key} before"));
            direct.say(&format!("EXISTS {key}")) == Reply::Integer(1)
        })
    };
    let [here, there] = [0, 1].map(|at| on(at).expect("each server owns one of them"));
    client.say("MULTI");
    assert_eq!(client.say(&format!("SET {here} after")), queued());
    let refused = client.say(&format!("SET {there} after"));
    assert!(refused.error().starts_with("CROSSSLOT "), "{refused:?}");
    assert!(client.say("DBSIZE").error().contains("inside MULTI"));
    let told = client.say("EXEC").error();
    assert!(told.starts_with("EXECABORT ") && told.contains("The first: "), "{told}");
    for key in [&here, &there] {
        assert_eq!(client.say(&format!("GET {key}")), Reply::Bulk("before".into()));
    }
}

/// Where a server has another name for one of the three, no command of a transaction reaches it.
#[test]
fn a_redis_without_one_of_the_three_commands_gets_no_transaction_and_harms_nobody() {
    for name in ["MULTI", "EXEC", "DISCARD"] {
        let redis = Redis::start_with(Family::Redis70, &["--rename-command", name, ""]);
        let quickack = quickack(&[redis.address], &["timeout: 20s"]);
        let (mut client, mut other) = (speak(&quickack), speak(&quickack));
        other.say("SET n 1");
        let refused = say_all(&mut client, &["MULTI", "SET n 2", "EXEC", "GET n"]);
        assert!(refused[2].error().contains("s1: does not execute MULTI"), "{name}: {refused:?}");
        assert_eq!(refused[3], Reply::Bulk("1".into()));
        assert_eq!(other.say("INCR n"), Reply::Integer(2));
    }
}

/// A user of the server that may not do one of the three is found out before a block is sent.
#[test]
fn a_login_that_may_not_use_transactions_gets_none_until_it_may() {
    for name in ["multi", "exec", "discard"] {
        let redis = Redis::start(Family::Redis70);
        let mut direct = Speaker::connect(redis.address);
        let may = |rule: &str| format!("ACL SETUSER shop on >secret ~* +@all {rule}{name}");
        assert_eq!(direct.say(&may("-")), ok());
        let folder = private("login", "shop:secret\n");
        let login = format!("server_login: {}", folder.path().join("login").display());
        let quickack = quickack(&[redis.address], &["timeout: 20s", &login]);
        let (mut client, mut other) = (speak(&quickack), speak(&quickack));
        other.say("SET n 1");
        let lines = ["MULTI", "SET n 2", "EXEC", "GET n"];
        let refused = say_all(&mut client, &lines);
        assert!(refused[2].error().contains("s1: does not execute MULTI"), "{name}: {refused:?}");
        assert_eq!(refused[3], Reply::Bulk("1".into()));
        assert_eq!(other.say("INCR n"), Reply::Integer(2));
        // A while after it may, transactions are executed.
        assert_eq!(direct.say(&may("+")), ok());
        wait_until("transactions are executed", || {
            say_all(&mut client, &lines)[3] == Reply::Bulk("2".into())
        });
    }
}

/// The server is killed while it executes transactions: each client is told an error or its answer,
/// and what was answered is there.
#[test]
fn a_server_that_is_killed_within_exec_leaves_no_client_without_an_answer() {
    let redis = Redis::start_with(Family::Redis70, &["--lua-time-limit", "20"]);
    let address = redis.address;
    let quickack = quickack(&[address], &["timeout: 20s", "server_retry_timeout: 100ms"]);
    let mut clients: Vec<Speaker> = (0..8).map(|_| speak(&quickack)).collect();
    let mut idle = speak(&quickack);
    // Its worker has had its trial, which does not meet the script below.
    let tried = say_all(&mut idle, &["MULTI", "GET n", "EXEC"]).pop();
    assert_eq!(tried, Some(Reply::Array(vec![Reply::Null(b'$')])));
    assert_eq!(idle.say("MULTI"), ok());
    assert_eq!(idle.say("INCR n"), queued());
    let spin = "EVAL while(true)do(function()end)()end 1 spins";
    for client in &mut clients {
        assert_eq!(client.say("MULTI"), ok());
        assert_eq!(client.say("INCR n"), queued());
        assert_eq!(client.say(spin), queued());
        assert_eq!(client.say("PING"), queued());
        let mut bytes = Vec::new();
        push_command(&["EXEC"], &mut bytes);
        client.send(&bytes);
    }
    wait_until("the server executes one", || redis_is_busy(address));
    drop(redis);
    let mut unknown = 0;
    for client in &mut clients {
        let told = client.reply().expect("an answer").error();
        // While its script runs too long, the server itself refuses what comes.
        let is_refused = told.starts_with("EXECABORT ") && told.contains("BUSY Redis is busy");
        // A worker's first link may not have been there yet, or its trial has met the script.
        // A worker that reads its client late knows already that the server is away.
        // Its kernel accepts connections until it is gone.
        let attempt = ["connect failed", "closed the connection before it answered"];
        let further = "takes no further connection (the last ";
        let is_lost = ["connection lost", attempt[0], attempt[1], further, "busy", "down, waiting"];
        let is_lost = is_lost.iter().any(|words| told.starts_with(&format!("ERR s1: {words}")));
        assert!(is_refused || is_lost, "{told:?}");
        unknown += usize::from(told.ends_with(", outcome unknown"));
        assert!(!client.say("GET n").error().is_empty(), "the server is away");
    }
    assert!(unknown > 0, "one was being executed");
    harness::until_each_worker_misses_them(&quickack);
    let _again = Redis::start_on(Family::Redis70, address, &[]).expect("its port is free");
    wait_until("the server is back", || matches!(speak(&quickack).say("GET n"), Reply::Null(_)));
    harness::until_each_worker_knows(&quickack);
    // It has lost nothing: its transaction was here.
    assert_eq!(idle.say("EXEC"), Reply::Array(vec![Reply::Integer(1)]));
    for client in &mut clients {
        // A worker whose trial has met the script tries again after a pause, and says so meanwhile.
        wait_until("it is executed", || {
            let told = say_all(client, &["MULTI", "INCR n", "EXEC"]).pop().expect("an answer");
            let is_refused = || told.error() == "ERR s1: busy, not sent";
            assert!(matches!(told, Reply::Array(_)) || is_refused(), "{told:?}");
            matches!(told, Reply::Array(_))
        });
    }
    assert_eq!(idle.say("GET n"), Reply::Bulk("9".into()));
}

/// A busy server takes `MULTI` and refuses `EXEC`: that does not mean that it has no transactions.
#[test]
fn a_first_transaction_that_meets_a_busy_server_is_told_so() {
    for family in Family::ALL {
        let redis = Redis::start_with(family, &["--lua-time-limit", "20"]);
        let quickack = quickack(&[redis.address], &["timeout: 20s"]);
        let mut direct = Speaker::connect(redis.address);
        let mut bytes = Vec::new();
        push_command(&["EVAL", "while(true)do(function()end)()end", "0"], &mut bytes);
        direct.send(&bytes);
        wait_until("the server executes it", || redis_is_busy(redis.address));
        let mut client = speak(&quickack);
        let told = say_all(&mut client, &["MULTI", "INCR n", "EXEC"])[2].error();
        assert!(told.to_lowercase().contains("busy"), "{}: {told}", family.name());
        assert_eq!(Speaker::connect(redis.address).say("SCRIPT KILL"), ok());
        wait_until("it executes transactions", || {
            say_all(&mut client, &["MULTI", "INCR n", "EXEC"])[2]
                == Reply::Array(vec![Reply::Integer(1)])
        });
    }
}

fn redis_is_busy(address: std::net::SocketAddr) -> bool {
    let told = Speaker::connect(address).say("PING");
    matches!(told, Reply::Error(line) if line.starts_with(b"BUSY "))
}

#[test]
fn a_transaction_that_was_sent_and_not_answered_is_not_sent_again_before_redis() {
    let say = |text: &str| Turn::Say(text.into());
    let in_block = AtomicBool::new(false);
    let model = Model::start(move |words| match words {
        "multi" => {
            in_block.store(true, Ordering::Relaxed);
            say("+OK\r\n")
        }
        "discard" if in_block.swap(false, Ordering::Relaxed) => say("+OK\r\n"),
        "discard" => say("-ERR DISCARD without MULTI\r\n"),
        // Only the trial of transactions has it outside of one.
        "exec" => say("-ERR EXEC without MULTI\r\n"),
        _ if words.starts_with("set") => Turn::Close(b"+QUEUED\r\n".to_vec()),
        _ => say("$-1\r\n"),
    });
    let quickack = quickack(&[model.address], &["timeout: 20s"]);
    let mut client = speak(&quickack);
    let replies = say_all(&mut client, &["MULTI", "SET k 1", "EXEC"]);
    assert!(replies[2].error().contains("connection lost, outcome unknown"), "{replies:?}");
    assert_eq!(model.count("set"), 1);
    wait_until("the server is back", || matches!(client.say("GET k"), Reply::Null(_)));
}

#[test]
fn a_transaction_may_have_large_values_and_a_large_answer_before_redis() {
    let redis = Redis::start(Family::Redis70);
    let quickack = quickack(&[redis.address], &["timeout: 20s"]);
    let mut client = speak(&quickack);
    let value = "v".repeat(3_000_000);
    let mut bytes = Vec::new();
    push_command(&["MULTI"], &mut bytes);
    for n in 0..4 {
        push_command(&["SET", &format!("k{n}"), &value], &mut bytes);
        push_command(&["GET", &format!("k{n}")], &mut bytes);
    }
    push_command(&["EXEC"], &mut bytes);
    client.send(&bytes);
    let replies: Vec<Reply> = (0..10).map(|_| client.reply().expect("a reply")).collect();
    let elements = replies[9].list();
    assert_eq!(elements.len(), 8);
    let is_value = |reply: &Reply| reply.bytes() == Some(value.as_bytes());
    assert!(elements.chunks(2).all(|pair| pair[0] == ok() && is_value(&pair[1])));
    // Ten thousand commands, in one block.
    let mut lines = vec!["MULTI"];
    lines.extend(["INCR n"; 10_000]);
    lines.push("EXEC");
    let replies = say_all(&mut client, &lines);
    assert_eq!(replies[10_001].list().last(), Some(&Reply::Integer(10_000)));
}

/// A worker that retires keeps a client until its transaction has ended, and then hands it over.
#[test]
fn a_client_in_a_transaction_outlives_its_worker_before_redis() {
    let redis = Redis::start(Family::Redis70);
    let text = |workers: usize| {
        format!("{}global:\n  workers: {workers}\n", config(&[redis.address], &["timeout: 20s"]))
    };
    let quickack = Quickack::start(QUICKACK, &text(3));
    harness::wait_for_workers(&quickack, 3);
    let mut clients: Vec<Speaker> = (0..12).map(|_| speak(&quickack)).collect();
    for client in &mut clients {
        assert_eq!(client.say("MULTI"), ok());
        assert_eq!(client.say("INCR n"), queued());
    }
    quickack.rewrite(&text(1));
    quickack.admin_ok(&["reload"]);
    for (nth, client) in clients.iter_mut().enumerate() {
        let count = Reply::Array(vec![Reply::Integer(nth as i64 + 1)]);
        assert_eq!(client.say("EXEC"), count, "its queue is where it was");
    }
    quickack.wait_for_workers(1);
    for client in &mut clients {
        assert_eq!(client.say("GET n"), Reply::Bulk("12".into()));
    }
}
