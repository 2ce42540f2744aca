//! Servers that are written as names of hosts: what becomes of them when a name does not resolve.
//! The proxy runs in a mount namespace with files of the test's own in place of `/etc/hosts`,
//! `/etc/nsswitch.conf` and `/etc/resolv.conf`.

mod changes;
mod endpoint;
mod lists;
mod name_server;
mod services;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testkit::process::{Memcached, Quickack, wait_until};

use super::{QUICKACK, harness};

/// What a proxy's resolver reads.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// Only `/etc/hosts` is asked, which has these lines.
    fn with_hosts(hosts: &str) -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        place.write("hosts", hosts);
        place.write("nsswitch.conf", "hosts: files\n");
        place.write("resolv.conf", "");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// A command whose words are run in the namespace.
    fn command(&self) -> Command {
        let files = ["hosts", "nsswitch.conf", "resolv.conf"];
        let mounts =
            files.map(|file| format!("mount --bind {} /etc/{file}", self.path(file).display()));
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &format!("{} && exec \"$@\"", mounts.join(" && ")), "sh"]);
        command
    }

    fn run(&self, config: &str) -> Quickack {
        let mut command = self.command();
        command.arg(QUICKACK);
        let quickack = Quickack::start_by(command, QUICKACK, config);
        wait_until("all workers serve", || {
            harness::workers(&quickack).values().all(harness::Worker::is_serving)
        });
        quickack
    }
}

/// A pool of servers as the file writes them, modula over two so that keys are easy to find.
fn pool(servers: &[String], more: &[&str]) -> String {
    let mut text = String::from("global:\n  workers: 2\nalpha:\n  listen: 127.0.0.1:0\n");
    more.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str("  servers:\n");
    servers.iter().for_each(|server| text.push_str(&format!("   - {server}\n")));
    text
}

fn number(address: SocketAddr) -> String {
    format!("{address}:1 first")
}

/// The server at this place in `quickack pools --json`.
fn server(quickack: &Quickack, at: usize) -> Value {
    let pools: Value = serde_json::from_str(&quickack.admin_ok(&["pools", "--json"])).unwrap();
    pools["pools"][0]["servers"][at].clone()
}

/// Returns a key of each of the two servers, by the names that they have in the ring.
fn keys(quickack: &Quickack) -> [String; 2] {
    let key_of = |label: &str| {
        (0..).map(|n| format!("key{n}")).find(|key| {
            let mut command = Command::new(QUICKACK);
            let said = command.args(["route", "-c"]).arg(quickack.file()).arg(key);
            String::from_utf8(said.output().unwrap().stdout).unwrap().contains(label)
        })
    };
    ["first", "second"].map(|label| key_of(label).unwrap())
}

/// The proxy starts, its other server serves, and the keys of the one that is nowhere stay its own.
#[test]
fn a_server_whose_name_does_not_resolve_is_down_and_nothing_else_before_memcached_as_root() {
    let (first, second) = (Memcached::start(), Memcached::start());
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let servers =
        [number(first.address), format!("second.test:{}:1 second", second.address.port())];
    let quickack = place.run(&pool(&servers, &[]));
    let [mine, lost] = keys(&quickack);
    let mut client = quickack.client();
    for _ in 0..3 {
        client.ask(&format!("set {mine} 0 0 1\r\n1\r\n"), "STORED\r\n");
        client.send(format!("set {lost} 0 0 1\r\n1\r\n"));
        let line = client.line();
        assert!(line.starts_with("SERVER_ERROR second: down"), "{line}");
    }
    let told = quickack.process.stderr_text();
    assert!(told.contains("server second of pool alpha: second.test"), "{told}");
    assert!(told.contains("does not resolve: "), "{told}");
    let it = server(&quickack, 1);
    assert_eq!((&it["health"], &it["at"]), (&"down".into(), &Value::Null), "{it}");
    assert!(it["why"].as_str().unwrap().starts_with("name does not resolve: "), "{it}");
    for verb in ["pools", "stats"] {
        let said = quickack.admin_ok(&[verb]);
        assert!(said.contains("name does not resolve: "), "{said}");
    }
    // A reload finds it, and none of the keys has moved.
    place.write("hosts", "127.0.0.1 localhost second.test\n");
    quickack.admin_ok(&["reload"]);
    wait_until("the name has an address", || server(&quickack, 1)["health"] == "up");
    client.ask(&format!("set {lost} 0 0 1\r\n2\r\n"), "STORED\r\n");
    client.ask(&format!("get {mine}\r\n"), &format!("VALUE {mine} 0 1\r\n1\r\nEND\r\n"));
    second.client().ask(&format!("get {lost}\r\n"), &format!("VALUE {lost} 0 1\r\n2\r\nEND\r\n"));
}

/// One bad name among good ones is a warning of the reload, which is applied.
#[test]
fn one_bad_name_never_refuses_a_reload_before_memcached_as_root() {
    let (first, second) = (Memcached::start(), Memcached::start());
    let place = Place::with_hosts("127.0.0.1 good.test\n");
    let good = |server: &Memcached| format!("good.test:{}:1", server.address.port());
    let quickack = place.run(&pool(&[good(&first)], &[]));
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    quickack.rewrite(&pool(&[good(&first), good(&second), "bad.test:1:1 bad".into()], &[]));
    let said = quickack.admin_ok(&["reload", "--allow-remap"]);
    assert!(said.contains("applied by 2/2"), "{said}");
    assert!(said.contains("warning: server bad of pool alpha: bad.test:1 does not"), "{said}");
    assert_eq!(server(&quickack, 1)["health"], "up");
    assert_eq!(server(&quickack, 2)["health"], "down");
    // A name that is lost later keeps the last address.
    place.write("hosts", "127.0.0.1 localhost\n");
    let said = quickack.admin_ok(&["reload"]);
    assert!(said.contains("nothing changed"), "{said}");
    assert_eq!(server(&quickack, 0)["health"], "up");
}

/// As for a server that refuses connections.
#[test]
fn an_unresolved_server_is_ejected_where_that_is_configured_before_memcached_as_root() {
    let first = Memcached::start();
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let servers = [number(first.address), "second.test:1:1 second".to_string()];
    let quickack = place.run(&pool(&servers, &["on_failure: eject"]));
    wait_until("it is ejected", || server(&quickack, 1)["health"] == "ejected");
    let [_, lost] = keys(&quickack);
    quickack.client().ask(&format!("set {lost} 0 0 1\r\n1\r\n"), "STORED\r\n");
}

#[test]
fn check_warns_of_names_that_do_not_resolve_as_root() {
    let place = Place::with_hosts("127.0.0.1 good.test\n");
    let file = place.path("quickack.yml");
    let check = |text: &str, more: &[&str]| {
        fs::write(&file, text).unwrap();
        let mut command = place.command();
        let output = command.args([QUICKACK, "check"]).arg(&file).args(more).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let good = pool(&["good.test:1:1".into(), "127.0.0.1:2:1".into()], &[]);
    assert_eq!(check(&good, &["--strict"]), (0, String::new()));
    let bad = pool(&["good.test:1:1".into(), "bad.test:2:1".into()], &[]);
    let (code, told) = check(&bad, &[]);
    assert!(code == 0 && told.contains("warning: server bad.test:2 of pool alpha: "), "{told}");
    assert_eq!(check(&bad, &["--strict"]).0, 2);
    assert_eq!(check(&bad, &["--strict", "--no-resolve"]), (0, String::new()));
    let (code, told) = check(&good.replace("127.0.0.1:0", "bad.test:0"), &[]);
    assert!(code == 0 && told.contains("cannot resolve bad.test:0"), "{told}");
}

/// Without an address to listen on there is nothing that could be served.
#[test]
fn a_listener_whose_name_does_not_resolve_stops_the_start_as_root() {
    let place = Place::with_hosts("127.0.0.1 localhost\n");
    let file = place.path("quickack.yml");
    fs::write(&file, pool(&["127.0.0.1:2:1".into()], &[]).replace("127.0.0.1:0", "bad.test:0"))
        .unwrap();
    let mut command = place.command();
    let output = command.args([QUICKACK, "run", "-c"]).arg(&file).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("cannot start: cannot resolve bad.test:0: "), "{told}");
}
