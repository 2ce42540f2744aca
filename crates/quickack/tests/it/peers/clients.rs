//! Clients in other languages, each with its usual setup, in text and in binary, with and without a
//! login: all their commands, with values and misses, in front of four memcacheds.

use std::path::Path;
use std::process::Command;

use testkit::process::{Memcached, Quickack, wait_until};

use super::{field, peer_script, root, run};
use crate::harness;
use crate::logins::private;

/// Runs a client's script with memcached itself, and then with four of them through quickack.
fn check(script: &Script, arguments: &[&str]) {
    let (memcacheds, quickack) = field(4, &[]);
    run(&mut script.command(memcacheds[0].address.port(), arguments));
    memcacheds[0].client().ask("flush_all\r\n", "OK\r\n");
    run(&mut script.command(quickack.address().port(), arguments));
}

/// Runs the script with a login.
fn check_with_login(script: &Script, arguments: &[&str]) {
    let (_memcacheds, quickack, _folder) = field_with_login();
    run(&mut script.command(quickack.address().port(), &[arguments, &[NAME, PASSWORD]].concat()));
}

const NAME: &str = "shop";
const PASSWORD: &str = "open, sesame";

fn field_with_login() -> (Vec<Memcached>, Quickack, tempfile::TempDir) {
    let folder = private("users", &format!("{NAME}:old one\n{NAME}:{PASSWORD}\n"));
    let users = folder.path().join("users");
    let (memcacheds, quickack) = field(4, &[&format!("users: {}", users.display())]);
    (memcacheds, quickack, folder)
}

/// The way to run a script.
enum Script {
    Python(&'static str),
    Php(&'static str),
    /// `testkit/peers/go`.
    Go,
    /// `testkit/peers/java`.
    Java,
}

impl Script {
    fn command(&self, port: u16, arguments: &[&str]) -> Command {
        let mut command = match self {
            Script::Python(name) => with(Command::new(root().join(".venv/bin/python")), name),
            Script::Php(name) => with(Command::new("php"), name),
            Script::Go => {
                let mut command = Command::new("go");
                command.args(["run", "."]).current_dir(peer_script("go"));
                command
            }
            Script::Java => {
                let mut command = Command::new("java");
                command.arg("-cp").arg(root().join(".java/*"));
                with(command, "java/ThroughSpymemcached.java")
            }
        };
        command.arg(port.to_string()).args(arguments);
        command
    }
}

fn with(mut command: Command, script: impl AsRef<Path>) -> Command {
    command.arg(peer_script("").join(script));
    command
}

const PYLIBMC: &Script = &Script::Python("through_pylibmc.py");
const BMEMCACHED: &Script = &Script::Python("through_bmemcached.py");
const PHP: &Script = &Script::Php("through_php.php");

#[test]
fn pylibmc_works_in_text_and_in_binary() {
    check(PYLIBMC, &["0"]);
    check(PYLIBMC, &["1"]);
}

#[test]
fn pylibmc_works_with_sasl() {
    check_with_login(PYLIBMC, &["1"]);
}

#[test]
fn bmemcached_works() {
    check(BMEMCACHED, &[]);
}

#[test]
fn bmemcached_works_with_sasl() {
    check_with_login(BMEMCACHED, &[]);
}

#[test]
fn gomemcache_works() {
    check(&Script::Go, &[]);
}

#[test]
fn spymemcached_works() {
    check(&Script::Java, &[]);
}

#[test]
fn spymemcached_works_with_sasl() {
    check_with_login(&Script::Java, &[]);
}

#[test]
fn php_memcached_works_in_binary_mode() {
    let (_memcacheds, quickack) = field(4, &[]);
    run(&mut PHP.command(quickack.address().port(), &["1"]));
}

#[test]
fn php_memcached_works_in_binary_mode_with_sasl() {
    check_with_login(PHP, &["1"]);
}

/// Runs a one-line script that prints statistics.
#[track_caller]
fn check_stats(mut command: Command, names: &[&str]) {
    let output = run(&mut command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in names {
        assert!(text.contains(name), "no {name} in {text}");
    }
}

const STATS: &[&str] = &["pid", "uptime", "version", "cmd_get", "get_hits", "curr_items"];

#[test]
fn php_memcached_reads_our_stats() {
    let (_memcacheds, quickack) = field(2, &[]);
    for binary in ["false", "true"] {
        let script = format!(
            "$m = new Memcached; $m->setOption(Memcached::OPT_BINARY_PROTOCOL, {binary}); \
             $m->addServer('127.0.0.1', {port}); echo json_encode($m->getStats()), \
             json_encode($m->getStats('settings')), $m->getResultCode();",
            port = quickack.address().port()
        );
        let mut command = Command::new("php");
        command.args(["-r", &script]);
        check_stats(command, &[STATS, &["maxbytes"]].concat());
    }
}

#[test]
fn pymemcache_reads_our_stats() {
    let (_memcacheds, quickack) = field(2, &[]);
    let mut command = Command::new(root().join(".venv/bin/python"));
    let script = "import sys; from pymemcache.client.base import Client\n\
                  c = Client(('127.0.0.1', int(sys.argv[1])))\n\
                  s = c.stats(); assert s[b'curr_items'] == 0 and s[b'threads'] >= 1, s\n\
                  print(s, c.stats('settings'))";
    command.args(["-c", script, &quickack.address().port().to_string()]);
    check_stats(command, &[STATS, &["maxbytes"]].concat());
}

#[test]
fn pylibmc_reads_our_stats() {
    let (_memcacheds, quickack) = field(2, &[]);
    for binary in ["False", "True"] {
        let mut command = Command::new(root().join(".venv/bin/python"));
        let script = format!(
            "import sys, pylibmc\n\
             c = pylibmc.Client(['127.0.0.1:' + sys.argv[1]], binary={binary})\n\
             print(c.get_stats(), c.get_stats('settings'))"
        );
        command.args(["-c", &script, &quickack.address().port().to_string()]);
        check_stats(command, &[STATS, &["maxbytes"]].concat());
    }
}

/// A client that gives up after 100 ms and retries has its write applied once: a request held for a
/// silent server is dropped when its client leaves. Directly, or without holding, every try is
/// applied.
#[test]
fn php_memcached_that_tries_a_write_again_has_it_applied_once() {
    let applied = |memcached: &Memcached, port: u16| {
        let mut command = Command::new("php");
        command.arg(testkit::process::script("retry.php"));
        let pid = memcached.process.id().to_string();
        let server = memcached.address.port().to_string();
        let output = run(command.args([&port.to_string(), "2", &pid, "append", &server]));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let count = text.split_once("applied ").and_then(|(_, rest)| rest.split(' ').next());
        count.and_then(|count| count.parse::<u32>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let direct = Memcached::start();
    assert_eq!(applied(&direct, direct.address.port()), 3);
    let (memcacheds, quickack) = field(1, &[]);
    assert_eq!(applied(&memcacheds[0], quickack.address().port()), 1);
    let (memcacheds, quickack) = field(1, &["hold_after: 0"]);
    assert_eq!(applied(&memcacheds[0], quickack.address().port()), 3);
}

/// Setting an option makes php-memcached reconnect; the servers do not notice.
#[test]
fn php_memcached_that_sets_its_options_again_opens_no_connection_to_a_server() {
    let reconnects = |client: u16, server: u16| {
        let mut command = Command::new("php");
        command.arg(testkit::process::script("optreset.php"));
        let output = run(command.args([client.to_string(), server.to_string()]));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let rows = text.lines().filter_map(|line| line.split_once("reconnects in 10 calls: "));
        let rows: Vec<(String, i64)> = rows
            .map(|(name, count)| (name.trim().to_string(), count.parse().expect("a number")))
            .collect();
        assert!(rows.len() > 20, "{text}");
        rows
    };
    let direct = Memcached::start();
    let server = direct.address.port();
    assert!(reconnects(server, server).iter().any(|(_, count)| *count > 0));
    // Every worker makes its link before the count begins; otherwise the first client of a worker
    // would make it.
    let (memcacheds, quickack) = field(1, &["preconnect: on"]);
    let workers = harness::stats(&quickack)["workers"].as_array().map_or(0, Vec::len) as u64;
    wait_until("each worker has its link", || harness::total(&quickack, "links") == workers);
    let ours = reconnects(quickack.address().port(), memcacheds[0].address.port());
    assert!(ours.iter().all(|(_, count)| *count == 0), "{ours:?}");
}
