//! Clients in six languages and Redis's own tools, each with its usual setup: their requests at
//! connect, pipelines, scripts that a server has lost, whole SCANs, RESP3, large values and logins,
//! in front of four servers, with one worker and with four; and what binds a connection.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use testkit::process::{Family, Quickack, Redis};

use super::{QUICKACK, addresses, config, servers};
use crate::logins::private;
use crate::peers::{peer_script, root, run};

const NAME: &str = "shop";
const PASSWORD: &str = "open, sesame";

/// The way to run a client's script.
enum Script {
    Python,
    /// `testkit/peers/node`, with this client.
    Node(&'static str),
    /// `testkit/peers/go_redis`.
    Go,
    /// `testkit/peers/java_redis`, with this client.
    Java(&'static str),
}

/// Its subject.
#[derive(Clone, Copy)]
enum About {
    /// Requests of all kinds.
    Requests,
    /// Transactions, subscriptions, waits and locks.
    Binding,
}

impl Script {
    fn command(&self, about: About, arguments: &[&str]) -> Command {
        let mut command = match self {
            Script::Python => Command::new(root().join(".venv/bin/python")),
            Script::Node(_) => Command::new("node"),
            Script::Go => Command::new("go"),
            Script::Java(_) => Command::new("java"),
        };
        let name = |requests, binding| match about {
            About::Requests => requests,
            About::Binding => binding,
        };
        match self {
            Script::Python => {
                command.arg(peer_script(name("through_redis_py.py", "redis_py_waits.py")))
            }
            Script::Node(client) => {
                command.arg(peer_script(name("node/through.js", "node/binding.js"))).arg(client)
            }
            Script::Go => command
                .args(["run", "."])
                .args(matches!(about, About::Binding).then_some("binding"))
                .current_dir(peer_script("go_redis")),
            Script::Java(client) => {
                let jars = root().join(".java/*").display().to_string();
                let compiled = java_classes(&jars);
                command.args(["-cp", &format!("{}:{jars}", compiled.display())]);
                command.arg(name("ThroughRedis", "BindingRedis")).arg(client)
            }
        };
        command.args(arguments);
        command
    }
}

/// Compiles the Java scripts below `target`, if no other test has: each test is a process of its
/// own, and several need them at once.
fn java_classes(jars: &str) -> PathBuf {
    let scripts = ["ThroughRedis", "BindingRedis"];
    let scripts = scripts.map(|name| peer_script(&format!("java_redis/{name}.java")));
    let sources = scripts.each_ref().map(|file| fs::read_to_string(file).expect("a script"));
    let classes = root().join("target/java_redis");
    fs::create_dir_all(&classes).expect("a folder for the classes");
    let lock = File::create(classes.join("lock")).expect("a file of ours");
    lock.lock().expect("whoever compiles comes to an end");
    // Written last, so that it says that all classes are whole.
    let compiled = classes.join("compiled");
    if fs::read_to_string(&compiled).ok() != Some(sources.concat()) {
        let _ = fs::remove_file(&compiled);
        let mut command = Command::new("javac");
        command.args(["-nowarn", "-Xlint:-options", "-cp", jars, "-d"]).arg(&classes);
        run(command.args(scripts));
        fs::write(&compiled, sources.concat()).expect("a file of ours");
    }
    classes
}

/// Runs a script about what binds a connection in these versions of RESP: in front of one server
/// and of four, with one worker and with two.
fn check_binding(script: &Script, family: Family, versions: &[&str]) {
    for (count, workers) in [(1, 1), (4, 2)] {
        for version in versions {
            let servers = servers(family, count);
            let text = config(&addresses(&servers), &["timeout: 20s"]);
            let text = format!("{text}global:\n  workers: {workers}\n");
            let quickack = Quickack::start(QUICKACK, &text);
            let port = quickack.address().port().to_string();
            run(&mut script.command(About::Binding, &[&port, version]));
        }
    }
}

/// Runs a script in these versions of RESP: with one worker, and with four and a login.
fn check(script: &Script, family: Family, versions: &[&str]) {
    for version in versions {
        let (_servers, quickack) = field(family, 1, &[]);
        let port = quickack.address().port().to_string();
        run(&mut script.command(About::Requests, &[&port, version]));
    }
    for version in versions {
        let folder = private("users", &format!("{NAME}:{PASSWORD}\n"));
        let users = format!("users: {}", folder.path().join("users").display());
        let (_servers, quickack) = field(family, 4, &[&users]);
        let port = quickack.address().port().to_string();
        run(&mut script.command(About::Requests, &[&port, version, NAME, PASSWORD]));
    }
}

fn field(family: Family, workers: usize, more: &[&str]) -> (Vec<Redis>, Quickack) {
    let servers = servers(family, 4);
    let text = format!("{}global:\n  workers: {workers}\n", config(&addresses(&servers), more));
    (servers, Quickack::start(QUICKACK, &text))
}

#[test]
fn redis_py_works_in_resp2_and_resp3() {
    check(&Script::Python, Family::Redis70, &["2", "3"]);
}

#[test]
fn redis_py_works_before_valkey() {
    check(&Script::Python, Family::Valkey91, &["2", "3"]);
}

/// Redis 6.2 has no functions and no `EVALSHA_RO`; SCAN and the rest work as usual.
#[test]
fn redis_py_works_before_redis_6() {
    check(&Script::Python, Family::Redis62, &["2", "3"]);
}

#[test]
fn redis_py_has_the_transactions_of_one_server_before_one_and_before_four() {
    for (count, version) in [(1, "2"), (1, "3"), (4, "2"), (4, "3")] {
        let servers = servers(Family::Redis70, count);
        let text = config(&addresses(&servers), &["timeout: 20s"]);
        let quickack = Quickack::start(QUICKACK, &text);
        let direct = Redis::start(Family::Redis70);
        let mut command = Command::new(root().join(".venv/bin/python"));
        command.arg(peer_script("redis_py_transactions.py"));
        command.args([&quickack.address().port().to_string(), version]);
        run(command.arg(direct.address.port().to_string()));
    }
}

#[test]
fn redis_py_publishes_and_subscribes_before_one_and_before_four() {
    for (count, version) in [(1, "2"), (1, "3"), (4, "2"), (4, "3")] {
        let servers = servers(Family::Redis70, count);
        let text = config(&addresses(&servers), &["timeout: 20s"]);
        let text = format!("{text}global:\n  workers: 1\n");
        let quickack = Quickack::start(QUICKACK, &text);
        let mut command = Command::new(root().join(".venv/bin/python"));
        command.arg(peer_script("redis_py_pubsub.py"));
        run(command.args([&quickack.address().port().to_string(), version]));
    }
}

#[test]
fn ioredis_works() {
    check(&Script::Node("ioredis"), Family::Redis70, &["2"]);
}

#[test]
fn node_redis_works_in_resp2_and_resp3() {
    check(&Script::Node("node-redis"), Family::Valkey91, &["2", "3"]);
}

#[test]
fn go_redis_works_in_resp2_and_resp3() {
    check(&Script::Go, Family::Redis70, &["2", "3"]);
}

#[test]
fn jedis_works_in_resp2_and_resp3() {
    check(&Script::Java("jedis"), Family::Redis70, &["2", "3"]);
}

#[test]
fn lettuce_works_in_resp2_and_resp3() {
    check(&Script::Java("lettuce"), Family::Redis70, &["2", "3"]);
}

#[test]
fn redis_py_waits_and_locks_before_one_and_before_four() {
    check_binding(&Script::Python, Family::Redis70, &["2", "3"]);
}

#[test]
fn ioredis_has_transactions_subscriptions_waits_and_locks() {
    check_binding(&Script::Node("ioredis"), Family::Redis70, &["2"]);
}

#[test]
fn node_redis_has_transactions_subscriptions_waits_and_locks() {
    check_binding(&Script::Node("node-redis"), Family::Valkey91, &["2", "3"]);
}

#[test]
fn go_redis_has_transactions_subscriptions_waits_and_locks() {
    check_binding(&Script::Go, Family::Redis70, &["2", "3"]);
}

#[test]
fn jedis_has_transactions_subscriptions_waits_and_locks() {
    check_binding(&Script::Java("jedis"), Family::Redis70, &["2", "3"]);
}

#[test]
fn lettuce_has_transactions_subscriptions_waits_and_locks() {
    check_binding(&Script::Java("lettuce"), Family::Redis70, &["2", "3"]);
}

/// hiredis as its own tool uses it: typed commands, and a file of commands on stdin.
#[test]
fn redis_cli_shows_through_us_what_it_shows_of_a_server() {
    let direct = Redis::start(Family::Redis70);
    let (_servers, quickack) = field(Family::Redis70, 1, &[]);
    for version in ["-2", "-3"] {
        for line in LINES {
            let ask = |port: u16| {
                let mut command = Command::new("redis-cli");
                command.args([version, "-p", &port.to_string()]).args(line.split(' '));
                String::from_utf8_lossy(&run(&mut command).stdout).into_owned()
            };
            let ours = ask(quickack.address().port());
            assert_eq!(ours, ask(direct.address.port()), "{line}");
        }
    }
    let pour = |port: u16| {
        let mut command = Command::new("redis-cli");
        command.args(["--pipe", "-p", &port.to_string()]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("redis-cli is there");
        let mut stdin = child.stdin.take().expect("it was asked to be a pipe");
        for n in 0..20_000 {
            let bytes = testkit::wire::resp::command(&["SET", &format!("poured{n}"), "value"]);
            std::io::Write::write_all(&mut stdin, &bytes).expect("it reads");
        }
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = pour(quickack.address().port());
    assert!(said.contains("errors: 0, replies: 20000"), "{said}");
}

const LINES: &[&str] = &[
    "PING",
    "SET a 1",
    "GET a",
    "GET none",
    "INCR a",
    "MSET b 2 c 3 d 4",
    "MGET a b c d none",
    "LPUSH {t}l x y z",
    "LRANGE {t}l 0 -1",
    "SADD {t}s one",
    "SMEMBERS {t}s",
    "HSET h f v",
    "HGETALL h",
    "ZADD z 1.5 m",
    "ZRANGE z 0 -1 WITHSCORES",
    "LPUSH a x",
    "SET a",
    "NOSUCH a b",
    "EVAL return{1,{2,ARGV[1]},KEYS[1]} 1 k v",
    "DEL a b c d none",
    "OBJECT ENCODING h",
    "XADD x 1-1 f v",
    "XRANGE x - +",
    "EXISTS h z x none",
];

/// Covers every kind of request that it measures and that is forwarded.
#[test]
fn redis_benchmark_runs_to_its_end() {
    for workers in [1, 4] {
        let (_servers, quickack) = field(Family::Redis70, workers, &[]);
        let port = quickack.address().port().to_string();
        for pipeline in ["1", "16"] {
            let mut command = Command::new("redis-benchmark");
            command
                .args(["-p", &port, "-n", "3000", "-c", "50", "-P", pipeline, "-r", "1000", "-q"]);
            let tests = "ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,\
                         lrange_100,mset";
            let output = run(command.args(["-t", tests]));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let done = text.matches("requests per second").count();
            assert!(done >= 16 && !text.contains("rror"), "{text}");
        }
    }
}
