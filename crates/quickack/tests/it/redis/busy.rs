//! Servers that are busy with something known: what it costs those that want something else.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::process::{Family, Firewall, Quickack, Redis, Speaker, wait_until, wait_until_within};
use testkit::wire::resp::{Reply, command};

use super::super::harness;
use super::{EJECT, QUICKACK, addresses, config, quickack, servers, with_workers};

/// Makes a script that takes so much of a server's processor time, and returns 7: at least as long
/// is the server busy, and several times as long on a busy machine. The script does not look at the
/// time, which stands still in some servers' scripts. So the server is measured first.
fn busy_for(time: Duration, server: &Redis) -> String {
    const PROBE: u32 = 5_000_000;
    let script = |rounds: u32| format!("local x = 0 for i = 1, {rounds} do x = x + i end return 7");
    let mut direct = Speaker::connect(server.address);
    let facts = server.process.facts();
    let before = facts.cpu_ns();
    assert_eq!(direct.ask(&["EVAL", &script(PROBE), "0"]), Reply::Integer(7));
    // The scheduler counts what has run when it stops.
    wait_until("the server is idle", || server.process.is_asleep());
    let took = Duration::from_nanos(facts.cpu_ns() - before);
    assert!(took > Duration::from_millis(1), "the script took no time: {took:?}");
    let rounds = f64::from(PROBE) * time.as_secs_f64() / took.as_secs_f64();
    script(rounds as u32)
}

/// Longer than `timeout: 1000`, also if the server was measured while a neighbour slowed its
/// processor down.
const LONG: Duration = Duration::from_millis(1_600);
/// How long a client waits for a script on a busy machine, beside others.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connects a client that waits for scripts.
fn patient(address: SocketAddr) -> Speaker {
    let speaker = Speaker::connect(address);
    speaker.stream.set_read_timeout(Some(PATIENCE)).expect("a deadline that is not zero");
    speaker
}

/// Checks that a client that reads and changes one key sees nothing but answers while another
/// does `work`, and that no server is found to have failed.
fn check_quiet(backs: &[Redis], work: impl FnOnce(&Quickack) + Send) {
    for back in backs {
        // However long it takes on this machine.
        let set = Speaker::connect(back.address).say("CONFIG SET lua-time-limit 600000");
        assert!(!set.is_error(), "{set:?}");
    }
    let quickack = quickack(&addresses(backs), &["timeout: 120s"]);
    let asked = AtomicUsize::new(0);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            wait_until("the quiet client is served", || asked.load(Ordering::Relaxed) > 10);
            work(&quickack);
        });
        let mut client = patient(quickack.address());
        let mut count = 0;
        while !worker.is_finished() || count < 20 {
            count += 1;
            assert_eq!(client.say("INCR quiet"), Reply::Integer(count));
            let value = Reply::Bulk(count.to_string().into());
            assert_eq!(client.say("GET quiet"), value);
            asked.store(count as usize, Ordering::Relaxed);
        }
        worker.join().expect("the others were served");
    });
    for back in harness::stats(&quickack)["pools"][0]["servers"].as_array().expect("servers") {
        assert_eq!(back["health"], "up");
        assert_eq!(back["reply_timeout_total"].as_u64().unwrap_or(0), 0);
    }
}

#[test]
fn a_script_of_more_than_a_second_costs_a_quiet_client_no_error() {
    for family in Family::ALL {
        let backs = servers(family, 1);
        let script = busy_for(LONG, &backs[0]);
        check_quiet(&backs, |quickack| {
            let mut client = patient(quickack.address());
            // The second time it is known to be slow.
            for _ in 0..2 {
                assert_eq!(client.ask(&["EVAL", &script, "1", "quiet"]), Reply::Integer(7));
            }
        });
    }
}

#[test]
fn a_pipeline_of_keys_costs_a_quiet_client_no_error() {
    const KEYS: usize = 200_000;
    let backs = servers(Family::Redis70, 2);
    let fill = format!("for i = 1, {KEYS} do redis.call('SET', 'k' .. i, 'v') end return 1");
    for back in &backs {
        let filled = Speaker::connect(back.address).ask(&["EVAL", &fill, "0"]);
        assert_eq!(filled, Reply::Integer(1));
    }
    check_quiet(&backs, |quickack| {
        let mut client = patient(quickack.address());
        client.send(&command(&["KEYS", "k*"]).repeat(8));
        for _ in 0..8 {
            match client.reply() {
                Ok(Reply::Array(keys)) => assert_eq!(keys.len(), 2 * KEYS),
                other => panic!("{:.200}", format!("{other:?}")),
            }
        }
    });
}

#[test]
fn the_slow_log_names_the_command_of_another_worker_that_a_server_was_busy_with() {
    let backs = servers(Family::Redis70, 1);
    let set = Speaker::connect(backs[0].address).say("CONFIG SET lua-time-limit 600000");
    assert!(!set.is_error(), "{set:?}");
    let directives = ["timeout: 120s", "slowlog_threshold: 100ms"];
    // There is time for many.
    let short = busy_for(LONG / 4, &backs[0]);
    let quickack = with_workers(2, &addresses(&backs), &directives);
    let mut slow = patient(quickack.address());
    let mut clients = Vec::new();
    wait_until("both workers have clients that wait", || {
        let mut client = patient(quickack.address());
        assert_eq!(client.say("GET a"), Reply::Null(b'$'));
        clients.push(client);
        let each = harness::wait_for_clients(&quickack, clients.len() as u64 + 1);
        each.iter().all(|count| *count > 1)
    });
    wait_until_within(PATIENCE, "a client of the other worker has waited for the script", || {
        slow.send(&command(&["EVAL", &short, "0"]));
        let script = thread::scope(|scope| {
            let script = scope.spawn(|| slow.reply());
            while !script.is_finished() {
                clients.iter_mut().for_each(|client| client.send(&command(&["GET", "a"])));
                let mut replies = clients.iter_mut().map(|client| client.reply());
                assert!(replies.all(|reply| reply == Ok(Reply::Null(b'$'))));
            }
            script.join().expect("it has its reply")
        });
        assert_eq!(script, Ok(Reply::Integer(7)));
        let text = quickack.ask("slowlog --json");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let all = all["slow"].as_array().expect("a list");
        let runs = all.iter().find(|one| one["command"] == "eval");
        runs.is_some_and(|runs| {
            let is_it = |one: &Value| one["busy_with"] == "EVAL" && one["worker"] != runs["worker"];
            all.iter().any(is_it)
        })
    });
    let text = quickack.admin_ok(&["slowlog"]);
    assert!(text.contains("the server was busy with EVAL"), "{text}");
}

#[test]
fn replies_that_come_late_since_a_server_was_busy_are_discarded_in_their_places() {
    let backs = servers(Family::Redis70, 1);
    let quickack = quickack(&addresses(&backs), &["timeout: 60s", "timeout_slow: 120s"]);
    let mut slow = patient(quickack.address());
    let mut client = patient(quickack.address());
    for key in ["a", "b"] {
        assert!(!client.say(&format!("SET {key} {key}")).is_error());
    }
    let script = busy_for(LONG, &backs[0]);
    quickack.admin_ok(&["set", "alpha.timeout_reply=200ms"]);
    slow.send(&command(&["EVAL", &script, "0"]));
    let mut told = String::new();
    wait_until("the server is busy", || {
        told = client.say("GET a").error();
        !told.is_empty()
    });
    let is_late = told == "ERR s1: no reply in time";
    let is_busy = told.starts_with("ERR s1: busy with EVAL for ") && told.ends_with(" s, not sent");
    assert!(is_late || is_busy, "{told}");
    assert_eq!(slow.reply(), Ok(Reply::Integer(7)));
    // Each answer belongs to its own request, and the server was never down.
    quickack.admin_ok(&["set", "alpha.timeout_reply=60s"]);
    for key in ["b", "a"].repeat(100) {
        assert_eq!(client.say(&format!("GET {key}")), Reply::Bulk(key.into()));
    }
}

#[test]
fn a_script_is_killed_through_the_proxy_and_clients_see_that_the_server_is_busy() {
    for family in Family::ALL {
        let backs = servers(family, 1);
        let quickack = quickack(&addresses(&backs), &["timeout: 60s"]);
        let mut direct = Speaker::connect(backs[0].address);
        assert!(!direct.say("CONFIG SET lua-time-limit 1").is_error());
        let mut runs = Speaker::connect(quickack.address());
        let mut client = Speaker::connect(quickack.address());
        assert_eq!(client.say("GET a"), Reply::Null(b'$'));
        let mut other = Speaker::connect(backs[0].address);
        other.send(&command(&["EVAL", "while true do end", "0"]));
        wait_until("it runs", || direct.say("GET a").is_error());
        let expected = direct.say("PING");
        for line in ["GET a", "PING"] {
            assert_eq!(client.say(line), expected, "{family:?}: {line}");
        }
        assert_eq!(client.say("SCRIPT KILL"), Reply::Simple("OK".into()), "{family:?}");
        assert!(other.reply().expect("it was killed").is_error());
        runs.send(&command(&["EVAL", "while true do end", "0"]));
        wait_until("it runs", || direct.say("GET a").is_error());
        // One who asks nothing else sees it, too, although the script has the link of all.
        let mut idle = Speaker::connect(quickack.address());
        wait_until("it is seen", || idle.say("PING") == expected);
        assert_eq!(idle.say("PING"), expected, "{family:?}");
        assert_eq!(client.say("SCRIPT KILL"), Reply::Simple("OK".into()), "{family:?}");
        assert!(runs.reply().expect("it was killed").is_error());
        assert_eq!(client.say("GET a"), Reply::Null(b'$'));
        assert_eq!(client.say("PING"), Reply::Simple("PONG".into()));
    }
}

/// The script has the link of all. Behind it, a request would wait for a minute.
#[test]
fn clients_go_around_a_script_and_read_what_its_server_says() {
    for family in Family::ALL {
        let backs = servers(family, 1);
        let quickack = with_workers(1, &addresses(&backs), &["timeout: 60s"]);
        let mut direct = Speaker::connect(backs[0].address);
        assert!(!direct.say("CONFIG SET lua-time-limit 1").is_error());
        let mut client = Speaker::connect(quickack.address());
        assert_eq!(client.say("GET a"), Reply::Null(b'$'));
        let mut runs = Speaker::connect(quickack.address());
        runs.send(&command(&["EVAL", "while true do end", "0"]));
        wait_until("it runs", || direct.say("GET a").is_error());
        let expected = direct.say("PING");
        wait_until("there is a link beside it", || harness::total(&quickack, "links") > 1);
        for line in ["GET a", "SET a 1", "SELECT 1", "PING", "MGET a b"] {
            assert_eq!(client.say(line), expected, "{family:?}: {line}");
        }
        assert_eq!(client.say("SCRIPT KILL"), Reply::Simple("OK".into()), "{family:?}");
        assert!(runs.reply().expect("it was killed").is_error());
        for (line, told) in [("SELECT 1", "OK"), ("SELECT 0", "OK"), ("PING", "PONG")] {
            assert_eq!(client.say(line), Reply::Simple(told.into()), "{family:?}: {line}");
        }
        assert_eq!(client.say("GET a"), Reply::Null(b'$'));
    }
}

/// The other one runs a script too, and a firewall lets nothing new through to it.
#[test]
fn who_goes_around_one_redis_waits_for_no_connection_to_another() {
    let backs = servers(Family::Redis70, 2);
    let mut firewall = Firewall::start(backs[1].address);
    let addresses = [backs[0].address, firewall.address];
    let quickack = with_workers(1, &addresses, &["timeout: 60s", "timeout_connect: 60s"]);
    let mut direct = [0, 1].map(|at: usize| Speaker::connect(backs[at].address));
    let mut client = Speaker::connect(quickack.address());
    let keys = direct.each_mut().map(|direct| {
        assert!(!direct.say("CONFIG SET lua-time-limit 1").is_error());
        let mut keys = (0..).map(|nth| format!("key{nth}"));
        let key = keys.find(|key| {
            assert_eq!(client.say(&format!("SET {key} 1")), Reply::Simple("OK".into()));
            direct.say(&format!("EXISTS {key}")) == Reply::Integer(1)
        });
        key.expect("there is one")
    });
    let connects = || harness::stats(&quickack)["workers"][0]["connects_total"].as_u64();
    let mut scripts = Vec::new();
    for at in [0, 1] {
        let before = connects();
        let mut runs = Speaker::connect(quickack.address());
        runs.send(&command(&["EVAL", "while true do end", "1", &keys[at]]));
        scripts.push(runs);
        wait_until("it runs", || direct[at].say("GET a").is_error());
        wait_until("a connection beside it is begun", || connects() > before);
        if at == 0 {
            wait_until("it is made", || harness::total(&quickack, "links") > 1);
            let told = client.say(&format!("GET {}", keys[0]));
            assert!(told.error().starts_with("BUSY "), "{told:?}");
            firewall.drop_new();
        }
    }
    client.send(format!("GET {}\r\n", keys[1]).as_bytes());
    let requests = || harness::stats(&quickack)["workers"][0]["requests"].as_u64();
    wait_until("it is read", || requests() == Some(3));
    assert_eq!(direct[1].say("SCRIPT KILL"), Reply::Simple("OK".into()));
    assert_eq!(client.reply(), Ok(Reply::Bulk("1".into())), "as soon as the script is over");
}

/// They come while the first link is made, so that all leave at once, the read first: servers do
/// what they read at once before they write a reply.
#[test]
fn scripts_behind_a_read_cost_no_client_an_error_before_its_own_deadline() {
    for family in Family::ALL {
        let backs = servers(family, 1);
        let mut direct = Speaker::connect(backs[0].address);
        assert!(!direct.say("CONFIG SET lua-time-limit 600000").is_error());
        let script = busy_for(LONG, &backs[0]);
        let more = ["timeout: 1000", "timeout_slow: 120s", "auto_eject_hosts: true"];
        let quickack = with_workers(1, &addresses(&backs), &more);
        backs[0].process.freeze();
        let mut quiet = patient(quickack.address());
        quiet.send(&command(&["GET", "quiet"]));
        wait_until("it waits", || harness::total(&quickack, "pending") == 1);
        let scripts: Vec<Speaker> = (0..3)
            .map(|nth| {
                let mut one = patient(quickack.address());
                one.send(&command(&["EVAL", &format!("{script} + {nth}"), "1", "quiet"]));
                one
            })
            .collect();
        wait_until("all wait", || harness::total(&quickack, "pending") == 4);
        backs[0].process.thaw();
        for mut script in scripts {
            let reply = script.reply().expect("an answer");
            assert!(matches!(reply, Reply::Integer(7..=9)), "{family:?}: {reply:?}");
        }
        let first = quiet.reply().expect("an answer");
        assert!(matches!(first, Reply::Null(_)) || first.error().contains("in time"), "{first:?}");
        assert_eq!(quiet.say("GET quiet"), Reply::Null(b'$'), "{family:?}");
        let back = &harness::stats(&quickack)["pools"][0]["servers"][0];
        for figure in ["refused_down_total", "ejections_total"] {
            assert_eq!(back[figure], 0, "{family:?}: {figure}");
        }
    }
}

/// Checks that a client of a pool with `timeout: 1000` reads no error before that deadline, until
/// all is over.
#[track_caller]
fn check_patience(quiet: &mut Speaker, is_over: impl Fn() -> bool) {
    while !is_over() {
        let since = Instant::now();
        let told = quiet.say("GET quiet");
        let is_early = told.is_error() && since.elapsed() < Duration::from_millis(900);
        assert!(!is_early, "{told:?} after {:?}", since.elapsed());
    }
}

/// Redis answers one script after the other, and is silent for several deadlines.
#[test]
fn ten_scripts_cost_a_quiet_client_no_error_before_its_own_deadline() {
    let redis = Redis::start(Family::Redis70);
    let mut direct = Speaker::connect(redis.address);
    assert!(!direct.say("CONFIG SET lua-time-limit 600000").is_error());
    let script = busy_for(Duration::from_millis(600), &redis);
    let more = ["timeout: 1000", "timeout_slow: 120s"];
    let quickack = with_workers(1, &[redis.address], &[&more[..], &EJECT].concat());
    let mut quiet = patient(quickack.address());
    assert_eq!(quiet.say("GET quiet"), Reply::Null(b'$'));
    let scripts: Vec<_> = (0..10)
        .map(|nth| {
            let mut one = patient(quickack.address());
            one.send(&command(&["EVAL", &format!("{script} + {nth}"), "1", "quiet"]));
            thread::spawn(move || one.reply())
        })
        .collect();
    check_patience(&mut quiet, || scripts.iter().all(|script| script.is_finished()));
    for (nth, script) in scripts.into_iter().enumerate() {
        let told = script.join().expect("it does not panic").expect("an answer");
        let is_done = told == Reply::Integer(7 + nth as i64);
        assert!(is_done || told.error().contains("not sent"), "{told:?}");
    }
    let back = &harness::stats(&quickack)["pools"][0]["servers"][0];
    for figure in ["refused_down_total", "ejections_total", "connect_failed_total"] {
        assert_eq!(back[figure], 0, "{figure}");
    }
}

/// A server may stand in two pools; what one of them has it do is no failure in the other.
#[test]
fn a_script_of_one_pool_is_no_failure_in_another_pool_of_its_server() {
    for family in Family::ALL {
        let backs = servers(family, 1);
        let mut direct = Speaker::connect(backs[0].address);
        assert!(!direct.say("CONFIG SET lua-time-limit 600000").is_error());
        // So long that a link that is made meanwhile has its time to fail.
        let script = busy_for(2 * LONG, &backs[0]);
        let pool = |more: &[&str]| config(&addresses(&backs), more);
        let text = format!(
            "global:\n  workers: 1\n{}{}",
            pool(&["timeout_slow: 120s"]),
            pool(&["timeout: 1000", "timeout_slow: 120s", "auto_eject_hosts: true"])
                .replace("alpha:", "beta:")
        );
        let quickack = Quickack::start(QUICKACK, &text);
        let mut quiet = patient(quickack.address_of("beta"));
        assert_eq!(quiet.say("GET quiet"), Reply::Null(b'$'));
        let mut busy = patient(quickack.address());
        busy.send(&command(&["EVAL", &script, "1", "k"]));
        let told = thread::scope(|scope| {
            let reply = scope.spawn(move || busy.reply());
            check_patience(&mut quiet, || reply.is_finished());
            reply.join().expect("it does not panic")
        });
        assert_eq!(told, Ok(Reply::Integer(7)), "{family:?}");
        let stats = harness::stats(&quickack);
        let back = &stats["pools"][1]["servers"][0];
        for figure in ["refused_down_total", "ejections_total", "connect_failed_total"] {
            assert_eq!(back[figure], 0, "{family:?}: {figure}");
        }
    }
}

/// FUNCTION STATS asks what the function does, and does not wait behind it.
#[test]
fn a_function_that_runs_is_shown_and_killed_through_the_proxy() {
    const LIBRARY: &str = "#!lua name=l\nredis.register_function('spin', function() \
                           while true do end end)";
    for family in Family::ALL {
        let backs = servers(family, 1);
        let quickack = quickack(&addresses(&backs), &["timeout: 60s"]);
        let mut direct = Speaker::connect(backs[0].address);
        assert!(!direct.say("CONFIG SET lua-time-limit 1").is_error());
        let loaded = direct.ask(&["FUNCTION", "LOAD", LIBRARY]);
        if loaded.is_error() {
            continue;
        }
        let mut runs = Speaker::connect(quickack.address());
        let mut client = Speaker::connect(quickack.address());
        // The second time it is known to be slow.
        for _ in 0..2 {
            runs.send(&command(&["FCALL", "spin", "0"]));
            wait_until("it runs", || direct.say("GET a").is_error());
            let shown = format!("{:?}", client.say("FUNCTION STATS"));
            assert!(shown.contains("running_script") && shown.contains("spin"), "{shown}");
            assert_eq!(client.say("FUNCTION KILL"), Reply::Simple("OK".into()), "{family:?}");
            assert!(runs.reply().expect("it was killed").is_error());
        }
    }
}

/// A busy server chooses no other database for a link: the answer to that is the client's.
#[test]
fn a_client_in_another_database_reads_at_once_that_redis_is_busy() {
    let backs = servers(Family::Redis70, 1);
    let quickack = with_workers(1, &addresses(&backs), &["timeout: 60s", "databases: 16"]);
    let mut direct = Speaker::connect(backs[0].address);
    assert!(!direct.say("CONFIG SET lua-time-limit 10").is_error());
    let mut runs = Speaker::connect(quickack.address());
    let mut clients: Vec<Speaker> = (0..20).map(|_| Speaker::connect(quickack.address())).collect();
    for one in clients.iter_mut().chain([&mut runs]) {
        assert_eq!(one.say("SELECT 1"), Reply::Simple("OK".into()));
        assert_eq!(one.say("GET a"), Reply::Null(b'$'));
    }
    runs.send(&command(&["EVAL", "while true do end", "0"]));
    wait_until("it runs", || direct.say("GET a").is_error());
    // The first ones may ask before that is known, and wait behind it.
    let mut waiting = Vec::new();
    wait_until("a client need not wait behind it", || {
        let mut one = clients.pop().expect("one of them reads it");
        one.stream.set_read_timeout(Some(Duration::from_secs(1))).expect("it is not zero");
        one.send(b"GET a\r\n");
        let told = one.reply();
        waiting.push(one);
        told.is_ok_and(|told| told.error().starts_with("BUSY "))
    });
    assert_eq!(direct.say("SCRIPT KILL"), Reply::Simple("OK".into()));
    assert!(runs.reply().expect("it was killed").is_error());
    wait_until("all is well again", || runs.say("SET a 1") == Reply::Simple("OK".into()));
}
