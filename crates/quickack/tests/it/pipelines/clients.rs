//! Libraries and a tool that write first, unmodified, each as its users call it.

use std::process::Command;

use testkit::process::{Client, Family, Redis};

use super::harness;
use crate::peers::{peer_script, root, run};

/// Runs a script with the port of a Redis pool before two servers.
fn check_redis(mut command: Command) {
    let servers = [(); 2].map(|()| Redis::start(Family::Redis70));
    let addresses = servers.each_ref().map(|server| server.address);
    let quickack = crate::redis::with_workers(1, &addresses, &["timeout: 20s"]);
    run(command.arg(quickack.address().port().to_string()));
}

#[test]
fn redis_py_has_the_answers_to_500_000_commands_of_one_pipeline() {
    let mut command = Command::new(root().join(".venv/bin/python"));
    command.arg(peer_script("deep_redis_py.py"));
    check_redis(command);
}

#[test]
fn ioredis_has_the_answers_to_200_000_commands_of_one_pipeline() {
    let mut command = Command::new("node");
    command.arg(peer_script("node/deep.js"));
    check_redis(command);
}

#[test]
fn go_redis_has_the_answers_to_200_000_commands_of_one_pipeline() {
    let mut command = Command::new("go");
    command.args(["run", ".", "deep"]).current_dir(peer_script("go_redis"));
    check_redis(command);
}

#[test]
fn php_memcached_gets_50_000_keys_at_once_in_text_and_in_binary() {
    let (_memcached, quickack) = harness::field(1, &[], &["timeout: 20s"]);
    let mut client = Client::connect(quickack.address());
    let set = |nth: u32| {
        let value = format!("v{nth}");
        format!("set k{nth} 0 0 {} noreply\r\n{value}\r\n", value.len())
    };
    client.send((1_000..50_000).map(set).collect::<String>());
    client.ask("mn\r\n", "MN\r\n");
    for is_binary in ["0", "1"] {
        let mut command = Command::new("php");
        command.arg(peer_script("deep_php.php")).arg(quickack.address().port().to_string());
        run(command.arg(is_binary));
    }
}

/// Its keys have control bytes.
#[test]
fn each_request_of_memcaslap_to_memcached_is_answered() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let to = format!("--servers={}", quickack.address());
    for more in [&[][..], &["--division=50"], &["--binary"]] {
        let mut command = Command::new("memcaslap");
        command.args([&to, "--threads=1", "--concurrency=16", "--execute_number=20000"]);
        let told = command.arg("--verify=1.0").args(more).output().expect("it is installed");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let figures = ["cmd_get: 18000", "cmd_set: 2000", "get_misses: 0", "verify_failed: 0"];
        for figure in figures {
            assert!(told.lines().any(|line| line == figure), "{more:?}: no {figure}:\n{told}");
        }
    }
}
