//! What an operator asks a running proxy, by hand and in scripts: `info`, `pools`, `wait`,
//! `check --diff`, `set`, `route`; and what is told of a reload that was refused.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::Options;
use testkit::process::{Memcached, Quickack, facts, wait_until};

use super::QUICKACK;
use super::harness::{self, wait_for_workers};

/// Returns a command that finds the proxy without the name of its file.
fn unnamed(quickack: &Quickack) -> Command {
    let mut command = Command::new(QUICKACK);
    for (name, value) in quickack.admin_command(&["stats"]).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

fn json(quickack: &Quickack, verb: &str) -> Value {
    let text = quickack.ask(&format!("{verb} --json"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn info_says_what_runs_and_whether_it_is_ready() {
    let (_memcached, quickack) = harness::field(2, &["memory_max: 64m"], &["preconnect: true"]);
    quickack.admin_ok(&["wait", "ready"]);
    let info = json(&quickack, "info");
    assert_eq!(info["release"], env!("CARGO_PKG_VERSION"));
    assert_eq!(info["pid"], quickack.process.id());
    assert_eq!((&info["ready"], &info["applied"]), (&true.into(), &true.into()), "{info}");
    assert_eq!(info["limits"]["memory_max"], 64 << 20);
    assert_eq!((&info["workers"], &info["workers_serving"]), (&2.into(), &2.into()));
    assert!(info["file"].as_str().unwrap().ends_with("quickack.yml"), "{info}");
    let text = quickack.admin_ok(&["info"]);
    for line in
        ["ready              yes\n", "workers            2 of 2\n", "epoch              1\n"]
    {
        assert!(text.contains(line), "{text}");
    }
    let version = Command::new(QUICKACK).arg("--version").output().unwrap();
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let build = info["build"].as_str().unwrap();
    assert!(version.starts_with("quickack 0.") && version.contains(build), "{version}");
    assert!(version.contains(info["commit"].as_str().unwrap()), "{version}");
}

#[test]
fn pools_are_listed_with_their_listeners_and_servers() {
    let (memcached, quickack) = harness::field(1, &[], &[]);
    let pools = json(&quickack, "pools");
    let alpha = &pools["pools"][0];
    assert_eq!((&alpha["name"], &alpha["protocol"]), (&"alpha".into(), &"memcached".into()));
    assert_eq!(alpha["listen"][0], quickack.address().to_string());
    assert_eq!(alpha["servers"][0]["address"], memcached.address.to_string());
    let text = quickack.admin_ok(&["pools"]);
    assert!(text.starts_with("POOL   PROTOCOL"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

/// A server that is down, an epoch that comes, and a proxy that has not been started.
#[test]
fn wait_returns_when_it_is_so_and_says_what_is_missing_when_its_time_is_over() {
    let memcached = Memcached::start();
    let address = memcached.address;
    let quickack =
        harness::start(1, &[], &[address], &["server_failure_limit: 1", "timeout: 200ms"]);
    let place = format!("alpha/{address}");
    quickack.admin_ok(&["wait", "server", &place, "up"]);
    drop(memcached);
    let mut client = quickack.client();
    wait_until("the server is down", || {
        client.send("get a\r\n");
        client.read_until("\r\n");
        json(&quickack, "pools")["pools"][0]["servers"][0]["health"] == "down"
    });
    let late = quickack.admin(&["wait", "--timeout", "100ms", "server", &place, "up"]);
    let why = format!("server {address} of pool alpha is down");
    assert!(!late.ok && late.text.contains(&why), "{}", late.text);
    let late = quickack.admin(&["wait", "--timeout=0", "ready"]);
    assert!(!late.ok && late.text.contains("pool alpha has no server that is up"), "{}", late.text);
    let odd = quickack.admin(&["wait", "rady"]);
    assert!(!odd.ok && odd.text.contains("use one of: ready, epoch N, server"), "{}", odd.text);
    let mut waiting = quickack.admin_command(&["wait", "epoch", "2"]).spawn().unwrap();
    quickack.admin_ok(&["set", "alpha.timeout=300ms"]);
    assert!(waiting.wait().unwrap().success());
    let early = quickack.admin(&["wait", "--timeout", "10ms", "epoch", "9"]);
    assert!(!early.ok && early.text.contains("the epoch is 2"), "{}", early.text);
}

/// Nothing is changed, logged or counted.
#[test]
fn check_diff_says_what_a_reload_would_change() {
    let (_memcached, quickack) = harness::field(1, &[], &["timeout: 400ms"]);
    let file = quickack.file();
    let check = |extra: &[&str]| {
        let mut command = unnamed(&quickack);
        command.arg("check").arg("--diff").args(extra).arg(&file);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = check(&[]);
    assert!(code == Some(0) && text.ends_with("\nnothing would change\n"), "{text}");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, before.replace("400ms", "500ms")).unwrap();
    let (code, text) = check(&["--strict"]);
    assert!(code == Some(0) && text.contains("pool alpha: timeout: 400ms -> 500ms\n"), "{text}");
    fs::write(&file, before.replace(":1\n", ":1 other\n")).unwrap();
    let (code, text) = check(&[]);
    assert!(code == Some(0) && text.contains("100,000 of 100,000 sampled keys"), "{text}");
    // For programs, all of it is one array.
    let (code, text) = check(&["--format", "json"]);
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let changes = all.as_array().unwrap().iter();
    assert!(code == Some(0) && changes.clone().all(|one| one["severity"] == "change"), "{text}");
    let mut told = changes.filter_map(|one| one["message"].as_str());
    assert!(told.any(|line| line.contains("100,000 of 100,000 sampled keys")), "{text}");
    fs::write(&file, before.replace("timeout: 400ms", "protocol: redis")).unwrap();
    let (code, text) = check(&[]);
    assert!(code == Some(1) && text.contains("needs a restart"), "{text}");
    let (code, text) = check(&["--format", "json"]);
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(code == Some(1) && all[0]["severity"] == "error", "{text}");
    assert_eq!(json(&quickack, "info")["epoch"], 1);
    assert!(!quickack.process.stderr_text().contains("refused"), "nothing is logged");
    assert_eq!(json(&quickack, "stats")["reloads"]["refused"], 0);
}

#[test]
fn a_refused_reload_is_told_in_stats_with_its_reason() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let text = fs::read_to_string(quickack.file()).unwrap();
    fs::write(quickack.file(), text.replace("listen", "lisen")).unwrap();
    assert!(!quickack.admin(&["reload"]).ok);
    let reloads = &json(&quickack, "stats")["reloads"];
    assert_eq!((&reloads["applied"], &reloads["refused"]), (&0.into(), &1.into()));
    let why = reloads["last"]["text"].as_str().unwrap();
    assert!(why.contains("unknown directive `lisen`"), "{why}");
    assert!(reloads["last"]["unix_s"].as_u64().unwrap() > 1_600_000_000, "{reloads}");
    let stats = quickack.admin_ok(&["stats"]);
    assert!(stats.contains("reloads 0 applied, 1 refused; the last one, "), "{stats}");
    fs::write(quickack.file(), text).unwrap();
    quickack.admin_ok(&["reload"]);
    assert!(quickack.admin_ok(&["stats"]).contains("was applied: nothing changed"));
}

/// Numbers of workers, lists, listeners and sizes; and not what needs a restart or a file.
#[test]
fn set_changes_what_a_reload_can_change() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let mut client = quickack.client();
    let flush = "flush_all\r\n";
    client.send(flush);
    assert!(client.read_until("\r\n").contains("refused by the proxy"));
    let words = ["workers=2", "alpha.item_size_max=2k", "alpha.allow=[flush_all, stats reset]"];
    quickack.admin_ok(&[&["set"], &words[..]].concat());
    wait_for_workers(&quickack, 2);
    let mut client = quickack.client();
    client.ask(flush, "OK\r\n");
    client.send(format!("set big 0 0 4000\r\n{}\r\n", "x".repeat(4000)));
    assert!(client.read_until("\r\n").starts_with("SERVER_ERROR object too large"));
    let diff = quickack.admin_ok(&["config", "--diff"]);
    assert!(diff.contains("alpha.allow: nothing -> [flush_all, stats reset]\n"), "{diff}");
    // They outlast a reload, and end one by one.
    quickack.admin_ok(&["reload"]);
    wait_for_workers(&quickack, 2);
    quickack.admin_ok(&["set", "workers="]);
    wait_for_workers(&quickack, 1);
    quickack.admin_ok(&["set", "stats=127.0.0.1:0", "alpha.backlog=99"]);
    assert!(quickack.ask("info --json").contains("\"stats\": \"127.0.0.1:"));
    for (word, why) in [
        ("alpha.users=/some/file", "change the file and reload"),
        ("alpha.protocol=redis", "change the file and restart"),
        ("alpha.servers=[127.0.0.1:1:1]", "use --allow-remap to permit it"),
        ("stats=no.such.host.invalid:1", "is not looked up; write its address"),
        ("alpha.allow=[flush_all", "allow: "),
    ] {
        let answer = quickack.admin(&["set", word]);
        assert!(!answer.ok && answer.text.contains(why), "{word}: {}", answer.text);
    }
    let other = Memcached::start();
    let servers = format!("alpha.servers=[{}:1]", other.address);
    quickack.admin_ok(&["set", "--allow-remap", &servers]);
    quickack.client().ask("set moved 0 0 1\r\n1\r\n", "STORED\r\n");
    assert_eq!(other.stat("curr_items"), 1);
}

/// With what was set over its file, and without the name of that.
#[test]
fn route_asks_the_proxy_that_runs_for_its_configuration() {
    let (memcached, quickack) = harness::field(1, &[], &[]);
    let mut command = unnamed(&quickack);
    command.args(["route", "key"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&memcached.address.to_string()), "{text}");
    let other = Memcached::start();
    let servers = format!("alpha.servers=[{}:1]", other.address);
    quickack.admin_ok(&["set", "--allow-remap", &servers]);
    let text = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
    assert!(text.contains(&other.address.to_string()), "{text}");
}

/// A script that restarts a server: its keys are refused meanwhile, and nothing is asked of it.
#[test]
fn a_server_in_maintenance_is_waited_for_until_nothing_is_at_it_before_memcached() {
    let (memcached, quickack) = harness::field(2, &[], &["timeout: 60s", "preconnect: true"]);
    let place = format!("alpha/{}", memcached.address);
    let load = harness::load(&quickack, 8, Options::default());
    load.wait_for_everybody();
    let early = quickack.admin(&["wait", "--timeout", "10ms", "server", &place, "idle"]);
    // At one of its looks there may be nothing at the server.
    let why = ["whose state is ready, has", "for a moment only"];
    let is_why = why.iter().any(|words| early.text.contains(words));
    assert!(!early.ok && is_why, "{}", early.text);
    quickack.admin_ok(&["server", &place, "maint"]);
    quickack.admin_ok(&["wait", "server", &place, "idle"]);
    let ours = memcached.stat("curr_connections");
    quickack.admin_ok(&["server", &place, "ready"]);
    quickack.admin_ok(&["wait", "server", &place, "up"]);
    wait_until("links are opened again", || memcached.stat("curr_connections") > ours);
    load.stop();
}

#[test]
fn titles_of_processes_name_the_configuration() {
    let (_memcached, quickack) = harness::field(1, &["http: 127.0.0.1:0"], &[]);
    let titles = || facts::children(quickack.process.id()).into_values();
    let wanted = ["quickack: worker 0 (quickack.yml)", "quickack: http (quickack.yml)"];
    wait_until("the children have their titles", || {
        wanted.iter().all(|wanted| titles().any(|title| title == *wanted))
    });
    quickack.process.signal(Signal::TERM);
}

/// The command of the README that starts a Redis, as it stands there.
#[test]
fn the_command_of_the_readme_serves_from_a_real_redis() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let command = readme.lines().find(|line| line.starts_with("redis-server ")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(QUICKACK, folder.path().join("quickack")).unwrap();
    // In a process namespace of its own: everything ends with the shell.
    let script = format!(
        "ip link set lo up; mount -t tmpfs none /run; ({command}) >out 2>&1 & \
         until exec 3<>/dev/tcp/127.0.0.1/22121; do sleep 0.05; done 2>/dev/null; \
         printf 'SET a b\\r\\nGET a\\r\\n' >&3; \
         for line in 1 2 3; do read -r -t 20 said <&3; echo \"$said\"; done"
    );
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("unshare")
        .args(["-mnpf", "--mount-proc", "timeout", "60", "bash", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .env_remove("RUNTIME_DIRECTORY")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let log = fs::read_to_string(folder.path().join("out")).unwrap_or_default();
    assert_eq!(said, "+OK\n$1\nb\n", "{log}{}", String::from_utf8_lossy(&output.stderr));
}

/// Their text comes from the table of the command line.
#[test]
fn man_pages_and_completions_name_the_verbs() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let output = Command::new(QUICKACK).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["man", folder.path().to_str().unwrap()]);
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(page("quickack.1").contains("quickack\\-stats(1)"), "{}", page("quickack.1"));
    assert!(page("quickack-stats.1").contains("every counter by its name"));
    assert!(!folder.path().join("quickack-worker.1").exists(), "it is no verb of a person's");
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]);
        assert!(text.contains("migrate-config") && text.contains("ring-diff"), "{shell}");
        assert!(!text.contains("log-writer"), "{shell} offers what only the master starts");
    }
}
