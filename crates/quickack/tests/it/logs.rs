//! The log as its readers get it: systemd's journal, a syslog daemon, programs that read JSON.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::process::{Client, Quickack, free_address, send, wait_until};

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
