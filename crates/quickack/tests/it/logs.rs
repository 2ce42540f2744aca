//! The log as its readers get it: systemd's journal, a syslog daemon, programs that read JSON.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::process::{Client, Memcached, Quickack, free_address, send, wait_until};

use super::QUICKACK;
use super::harness::{self, wait_for_workers, workers};

/// Has a request fail, so that the only server is down.
fn fail(address: SocketAddr) {
    let mut client = Client::connect(address);
    client.send("get a\r\n");
    assert!(client.line().starts_with("SERVER_ERROR "));
}

#[test]
fn the_journal_reads_the_level_before_each_line() {
    let server = free_address();
    let mut command = Command::new("sh");
    let script = "JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec \"$0\" \"$@\"";
    command.args(["-c", script, QUICKACK]);
    let text = harness::text(1, &[], &[server], &[]);
    let quickack = Quickack::start_by(command, QUICKACK, &text);
    wait_for_workers(&quickack, 1);
    fail(quickack.address());
    let worker = workers(&quickack)[&0].pid;
    let down = format!("<4>worker 0 ({worker}): server {server} of pool alpha is down (");
    wait_until("the failure is logged", || quickack.process.stderr_text().contains(&down));
    send(worker, Signal::KILL);
    let died = format!("<3>worker 0 (pid {worker}) died: signal: 9 (SIGKILL)");
    wait_until("the death is logged", || quickack.process.stderr_text().contains(&died));
    let said = quickack.process.stderr_text();
    let levels = ["<3>", "<4>", "<5>"];
    let bare = said.lines().find(|line| !levels.iter().any(|level| line.starts_with(level)));
    assert_eq!(bare, None, "{said}");
    assert!(said.contains(&format!("<5>listening on {} (pool alpha)\n", quickack.address())));
    // Whoever is no journal gets time and level.
    let quickack = super::quickack(&[server], &[]);
    let said = quickack.process.stderr_text();
    let line = said.lines().find(|line| line.contains("listening on")).expect("it is told");
    let (time, rest) = line.split_once(' ').expect("two words");
    assert!(time.ends_with('Z') && time.len() == "2026-01-31T12:00:00.000123Z".len(), "{line}");
    assert!(rest.starts_with("notice master ("), "{line}");
}

#[test]
fn a_syslog_daemon_gets_a_datagram_a_line() {
    let server = free_address();
    let quickack = harness::start(1, &[], &[server], &[]);
    let path = quickack.folder().join("syslog");
    let line = format!("log: syslog:{}", path.display());
    quickack.rewrite(&harness::text(1, &[&line], &[server], &[]));
    let answer = quickack.admin(&["reload"]);
    assert!(!answer.ok && answer.text.contains("is a syslog daemon running?"), "{answer:?}");
    let daemon = UnixDatagram::bind(&path).expect("a socket in an own folder");
    daemon.set_read_timeout(Some(Duration::from_secs(30))).expect("a deadline");
    quickack.admin_ok(&["reload"]);
    fail(quickack.address());
    let mut block = [0; 4096];
    let mut next = || {
        let len = daemon.recv(&mut block).expect("a line");
        String::from_utf8_lossy(&block[..len]).into_owned()
    };
    let master = quickack.process.id();
    let applied = next();
    assert!(applied.starts_with(&format!("<29>quickack[{master}]: epoch 2 applied")), "{applied}");
    let worker = workers(&quickack)[&0].pid;
    let down = next();
    let wanted = format!("<28>quickack[{worker}]: worker 0: server {server} of pool alpha is down");
    assert!(down.starts_with(&wanted) && !down.ends_with('\n'), "{down}");
}

#[test]
fn programs_read_who_is_meant_in_fields_of_their_own() {
    let server = free_address();
    let quickack = harness::start(2, &[], &[server], &["on_failure: eject"]);
    let path = quickack.folder().join("log.json");
    let place = format!("log: {}", path.display());
    let global = [&*place, "log_format: json"];
    quickack.rewrite(&harness::text(2, &global, &[server], &["on_failure: eject"]));
    quickack.admin_ok(&["reload"]);
    fail(quickack.address());
    let pid = workers(&quickack)[&1].pid;
    send(pid, Signal::KILL);
    assert!(!quickack.admin(&["set", "memory_max=1"]).ok);
    let mut records: Vec<Value> = Vec::new();
    let mut find = |event: &str| {
        let mut found = Value::Null;
        wait_until(&format!("{event} is logged"), || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let record = |line: &str| serde_json::from_str(line).expect("JSON");
            records = whole.lines().map(record).collect();
            let it = records.iter().find(|record| record["event"] == event);
            it.inspect(|it| found = (*it).clone()).is_some()
        });
        found
    };
    let down = find("server_down");
    let fields = ["level", "pool", "server"].map(|name| down[name].clone());
    assert_eq!(fields, ["warning", "alpha", &server.to_string()].map(Value::from), "{down}");
    let process = down["process"].as_str().expect("a name");
    assert_eq!(process, format!("worker {}", down["worker"]), "{down}");
    let died = find("worker_died");
    assert_eq!((&died["worker"], &died["process"]), (&1.into(), &"master".into()), "{died}");
    assert_eq!(find("change_refused")["pool"], Value::Null);
    assert_eq!(find("change_applied")["level"], "notice");
    for record in &records {
        let event = record["event"].as_str().expect("each has an event");
        let is_word = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(!event.is_empty() && event.chars().all(is_word), "{record}");
        assert_ne!(record["event"], record["message"]);
    }
}

/// Waits for a line with all of these words, and returns it.
#[track_caller]
fn wait_for_line(quickack: &Quickack, words: &[&str]) -> String {
    let mut found = None;
    wait_until(&format!("a line with {words:?}"), || {
        let text = quickack.process.stderr_text();
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        found = text.lines().find(has_all).map(str::to_string);
        found.is_some()
    });
    found.expect("it was waited for")
}

#[test]
fn at_debug_each_connection_has_a_line_when_it_is_made_and_when_it_is_lost() {
    let (memcached, quickack) = harness::field(1, &[], &[]);
    let before = quickack.client();
    quickack.admin_ok(&["log-level", "debug"]);
    let name = |client: &Client| client.stream.local_addr().expect("it is connected").to_string();
    let listener = quickack.address().to_string();
    // One that quits, one that closes, one that is reset, one that sends nonsense.
    let mut quits = quickack.client();
    quits.ask("get x\r\n", "END\r\n");
    quits.send("quit\r\n");
    let quitter = name(&quits);
    wait_for_line(
        &quickack,
        &["debug worker 0", &quitter, "connected to", &listener, "pool alpha"],
    );
    let line = wait_for_line(&quickack, &[&quitter, "left pool alpha after", "it quit"]);
    assert!(line.contains("2 requests, 13 bytes received, 5 sent"), "{line}");
    let closes = quickack.client();
    let closer = name(&closes);
    drop(closes);
    wait_for_line(&quickack, &[&closer, "left", "it closed the connection; 0 requests"]);
    let mut resets = quickack.client();
    resets.ask("get x\r\n", "END\r\n");
    let resetter = name(&resets);
    // What is closed with SO_LINGER 0 sends a reset.
    rustix::net::sockopt::set_socket_linger(&resets.stream, Some(Duration::ZERO)).expect("TCP");
    drop(resets);
    wait_for_line(&quickack, &[&resetter, "left", "the connection was reset"]);
    // The first request made a link, the loss of the server ends it.
    let server = memcached.address.to_string();
    let line = wait_for_line(&quickack, &["a link to server", &server, "is up, from 127.0.0.1:"]);
    assert!(line.ends_with(&format!("to {server}")), "{line}");
    drop(memcached);
    wait_for_line(&quickack, &["a link to server", &server, "is closed: connection lost"]);
    // Without debug there are none.
    quickack.admin_ok(&["log-level", "notice"]);
    let quiet = quickack.client();
    let (quiet_name, before_name) = (name(&quiet), name(&before));
    drop((quiet, before));
    harness::wait_for_clients(&quickack, 0);
    let text = quickack.process.stderr_text();
    assert!(!text.contains(&quiet_name) && !text.contains(&before_name), "{text}");
}

#[test]
fn connections_in_json_name_pool_server_and_worker() {
    let (_memcached, quickack) = harness::field(1, &["log_level: debug", "log_format: json"], &[]);
    quickack.client().ask("get x\r\n", "END\r\n");
    let line = wait_for_line(&quickack, &["\"client_left\""]);
    let json: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&json["pool"], &json["worker"]), (&"alpha".into(), &0.into()), "{json:#}");
    assert_eq!((&json["level"], json.get("server")), (&"debug".into(), None));
    let line = wait_for_line(&quickack, &["\"link_made\""]);
    let json: Value = serde_json::from_str(&line).expect("JSON");
    assert!(json["server"].is_string() && json["pool"] == "alpha", "{json:#}");
}

#[test]
fn the_end_of_a_proxy_and_a_worker_that_hands_over_are_reasons_of_their_own() {
    let (_memcached, mut quickack) = harness::field(2, &["log_level: debug"], &[]);
    let mut clients: Vec<Client> = (0..4).map(|_| quickack.client()).collect();
    clients.iter_mut().for_each(|client| client.ask("get x\r\n", "END\r\n"));
    let text = std::fs::read_to_string(quickack.file()).expect("the file");
    quickack.rewrite(&text.replace("workers: 2", "workers: 1"));
    quickack.admin_ok(&["reload"]);
    wait_for_line(&quickack, &["left pool alpha", "another worker takes it over; 1 requests"]);
    wait_for_line(&quickack, &["came from another worker (pool alpha)"]);
    send(quickack.process.id(), Signal::TERM);
    assert!(quickack.process.wait_for_end().success());
    wait_for_line(&quickack, &["left pool alpha", "the proxy, a worker or its pool ends"]);
}

#[test]
fn why_a_server_cannot_be_reached_is_told_with_the_systems_error() {
    let nobody = free_address();
    let quickack = harness::start(1, &[], &[nobody], &[]);
    quickack.client().ask("get a\r\n", &format!("SERVER_ERROR {nobody}: connect failed\r\n"));
    wait_for_line(&quickack, &["is down (connect failed: Connection refused (os error 111))"]);
}

/// Clients that read nothing: the log says that memory is short, and then that it is not.
#[test]
fn memory_that_is_used_up_is_told_once_and_its_end_too() {
    let memcached = Memcached::start();
    let quickack = harness::start(1, &["memory_max: 16m"], &[memcached.address], &[]);
    let value = "x".repeat(1_000_000);
    quickack.client().ask(&format!("set big 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    let clients: Vec<Client> = (0..40).map(|_| quickack.client()).collect();
    for client in &clients {
        (&client.stream).write_all("get big\r\n".repeat(30).as_bytes()).expect("it is read");
    }
    wait_for_line(&quickack, &["warning", "of the 16,777,216 bytes", "clients --sort held"]);
    drop(clients);
    wait_for_line(&quickack, &["notice", "of 16,777,216 bytes again"]);
    let text = quickack.process.stderr_text();
    assert!(text.matches("of the 16,777,216 bytes").count() < 5, "{text}");
}

#[test]
fn the_death_of_a_worker_says_how_many_clients_it_had_and_they_are_counted() {
    let memcached = Memcached::start();
    let quickack = harness::start(1, &[], &[memcached.address], &[]);
    wait_for_workers(&quickack, 1);
    let mut clients: Vec<Client> = (0..3).map(|_| quickack.client()).collect();
    clients.iter_mut().for_each(|client| client.ask("get a\r\n", "END\r\n"));
    let worker = workers(&quickack)[&0].pid;
    send(worker, Signal::KILL);
    let died = format!("worker 0 (pid {worker}) died: signal: 9 (SIGKILL), with 3 clients; ");
    wait_until("the death is logged", || quickack.process.stderr_text().contains(&died));
    assert_eq!(harness::stats(&quickack)["totals"]["clients_lost_total"], 3);
    let told = quickack.ask("stats");
    assert!(told.contains("3 clients were cut off"), "{told}");
}

#[test]
fn why_the_proxy_does_not_start_is_in_its_log_too() {
    let folder = tempfile::tempdir().expect("a folder of one's own");
    let (file, log) = (folder.path().join("quickack.yml"), folder.path().join("log"));
    let admin = folder.path().join("missing/admin.sock");
    let globals = [format!("log: {}", log.display()), format!("admin: {}", admin.display())];
    let globals: Vec<&str> = globals.iter().map(String::as_str).collect();
    let text = harness::text(1, &globals, &["127.0.0.1:1".parse().expect("it is one")], &[]);
    let text = text.replace("127.0.0.1:0", &format!("{}/missing/listen", folder.path().display()));
    std::fs::write(&file, text).expect("a new file in an own folder");
    let output = Command::new(QUICKACK).args(["run", "-c"]).arg(&file).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("quickack: cannot start: "), "{told}");
    let logged = std::fs::read_to_string(&log).expect("it has begun");
    assert!(logged.contains(" error master (") && logged.contains("cannot start: "), "{logged}");
}
