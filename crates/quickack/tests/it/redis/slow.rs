//! SLOWLOG and LATENCY for the clients of a pool: the shapes that real tools read, and who sees
//! which requests.

use std::process::Command;
use std::thread;
use std::time::Duration;

use testkit::process::{Quickack, Speaker, wait_until};
use testkit::wire::resp::Reply;

use super::model::{Model, Turn};
use super::{QUICKACK, config, quickack};
use crate::logins::private;
use crate::peers::{root, run};

/// Longer than the threshold, which nothing reaches by itself, even on a busy machine.
const LONG: Duration = Duration::from_millis(800);
const THRESHOLD: &str = "slowlog_threshold: 300ms";

/// A server that takes long to answer a GET.
fn slow_server() -> Model {
    Model::start(|words| {
        if words.starts_with("get") {
            thread::sleep(LONG);
        }
        Turn::Say(b"$1\r\nv\r\n".to_vec())
    })
}

fn redis_cli(quickack: &Quickack, words: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &quickack.address().port().to_string()]).args(words);
    String::from_utf8(command.output().expect("redis-cli is there").stdout).expect("text")
}

fn len(client: &mut Speaker) -> i64 {
    match client.say("SLOWLOG LEN") {
        Reply::Integer(len) => len,
        other => panic!("{other:?}"),
    }
}

/// Waits until a client sees so many. An entry is there when its answer has been written, which the
/// client may have read before that.
fn wait_for_len(client: &mut Speaker, expected: i64) {
    wait_until("the slow log has the entries", || len(client) == expected);
}

#[test]
fn redis_cli_and_redis_py_read_the_slow_log_of_all_workers() {
    let server = slow_server();
    let text = format!(
        "global:\n  workers: 2\n{}",
        config(&[server.address], &[THRESHOLD, "slowlog_keys: full",])
    );
    let quickack = Quickack::start(QUICKACK, &text);
    let mut clients: Vec<Speaker> = (0..4).map(|_| Speaker::connect(quickack.address())).collect();
    clients[0].say("CLIENT SETNAME batch-7");
    for client in &mut clients {
        assert_eq!(client.say("GET some-key"), Reply::Bulk("v".into()));
    }
    wait_for_len(&mut clients[1], 4);
    let text = redis_cli(&quickack, &["slowlog", "get", "-1"]);
    assert_eq!(text.matches("some-key").count(), 4, "{text}");
    assert_eq!(text.matches("batch-7").count(), 1, "{text}");
    let text = redis_cli(&quickack, &["-3", "slowlog", "get", "2"]);
    assert_eq!(text.matches("some-key").count(), 2, "{text}");
    let text = redis_cli(&quickack, &["latency", "latest"]);
    assert!(text.starts_with("server\n"), "{text}");
    let text = redis_cli(&quickack, &["latency", "history", "server"]);
    let numbers: Vec<u64> = text.lines().map(|line| line.parse().expect("a number")).collect();
    assert!(numbers.chunks(2).all(|pair| pair[0] > 1_600_000_000 && pair[1] >= 790), "{text}");
    assert!(redis_cli(&quickack, &["slowlog", "help"]).starts_with("SLOWLOG <subcommand>"));
    assert!(redis_cli(&quickack, &["latency", "help"]).starts_with("LATENCY <subcommand>"));
    let script = "import sys, time, redis\n\
        for version in (2, 3):\n    \
            r = redis.Redis(port=int(sys.argv[1]), protocol=version)\n    \
            entries = r.slowlog_get()\n    \
            assert len(entries) == 4 and r.slowlog_len() == 4, entries\n    \
            ids = [entry['id'] for entry in entries]\n    \
            assert ids == sorted(set(ids), reverse=True), ids\n    \
            for entry in entries:\n        \
                assert entry['command'] == b'get some-key', entry\n        \
                assert 790000 < entry['duration'] < 60000000, entry\n        \
                assert abs(entry['start_time'] - time.time()) < 3600, entry\n        \
                assert entry['client_address'].startswith(b'127.0.0.1:'), entry\n    \
            [[name, at, last, most]] = r.latency_latest()\n    \
            assert name == b'server' and 790 <= last <= most, (name, last, most)\n    \
            assert r.latency_history('server')[-1] == [at, last]\n    \
            assert r.latency_history('held') == []\n\
        assert r.latency_reset('held') == 0 and r.latency_reset('server') == 1\n\
        assert r.latency_latest() == [] and r.slowlog_len() == 4\n\
        assert r.slowlog_reset() and r.slowlog_get() == []\n";
    let python = root().join(".venv/bin/python");
    run(Command::new(python).args(["-c", script, &quickack.address().port().to_string()]));
    // The other worker's clients see the reset as well; the operator does not.
    assert!(clients.iter_mut().all(|client| len(client) == 0));
    assert_eq!(quickack.ask("slowlog").matches("some-key").count(), 4);
}

#[test]
fn while_the_slow_log_is_off_its_lists_are_empty() {
    let server = slow_server();
    let quickack = quickack(&[server.address], &[]);
    let mut client = Speaker::connect(quickack.address());
    client.say("GET k");
    let none = Reply::Array(Vec::new());
    for line in ["SLOWLOG GET", "SLOWLOG GET -1", "LATENCY LATEST", "LATENCY HISTORY server"] {
        assert_eq!(client.say(line), none, "{line}");
    }
    assert_eq!(client.say("LATENCY RESET"), Reply::Integer(0));
    assert_eq!(len(&mut client), 0);
}

#[test]
fn a_tenant_sees_its_own_slow_requests_and_resets_no_others() {
    let server = slow_server();
    let folder = private("users", "shop:one\nreports:two\nnobody:three\n");
    let users = format!("users: {}", folder.path().join("users").display());
    let tenants = "tenants: {shop: {users: [shop], key_prefix: 'a'}, reports: {users: [reports]}}";
    let pool = config(&[server.address], &[THRESHOLD, "slowlog_keys: full", &users]);
    let text = format!("global:\n  workers: 2\n  {tenants}\n{pool}");
    let quickack = Quickack::start(QUICKACK, &text);
    let mut clients = ["shop one", "reports two", "nobody three"].map(|login| {
        let mut client = Speaker::connect(quickack.address());
        assert_eq!(client.say(&format!("AUTH {login}")), Reply::Simple("OK".into()));
        client
    });
    for (client, times) in clients.iter_mut().zip([1, 2, 3]) {
        (0..times).for_each(|_| assert!(!client.say("GET a").is_error()));
        wait_for_len(client, times);
    }
    let lens = |clients: &mut [Speaker; 3]| clients.each_mut().map(len);
    assert_eq!(lens(&mut clients), [1, 2, 3]);
    assert_eq!(clients[1].say("SLOWLOG RESET"), Reply::Simple("OK".into()));
    assert_eq!(clients[0].say("LATENCY RESET"), Reply::Integer(1));
    assert_eq!(lens(&mut clients), [1, 0, 3]);
    let events = |client: &mut Speaker| match client.say("LATENCY LATEST") {
        Reply::Array(events) => events.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(clients.each_mut().map(events), [0, 1, 1]);
    assert!(quickack.ask("slowlog").contains("tenant reports"), "the operator sees whose they are");
    quickack.admin_ok(&["slowlog", "--reset"]);
    assert_eq!(lens(&mut clients), [0, 0, 0]);
}
