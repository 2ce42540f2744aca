//! The access log with real files: rotated, full, slow, and with workers and writers that die.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::Signal;
use serde_json::Value;
use testkit::process::{DEADLINE, Quickack, send, wait_until};

use super::harness;

/// A proxy in front of memcached whose lines go to this path.
fn field(
    workers: usize,
    path: &Path,
    global: &[&str],
    pool: &[&str],
) -> (testkit::process::Memcached, Quickack) {
    let file = format!("access_log_file: {}", path.display());
    let global: Vec<&str> = [&[file.as_str()][..], global].concat();
    harness::field(workers, &global, pool)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("access.log");
    (folder, path)
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_string).collect()
}

#[track_caller]
fn wait_for_lines(path: &Path, count: usize) -> Vec<String> {
    let since = Instant::now();
    while lines(path).len() < count {
        if since.elapsed() > DEADLINE {
            let folder = path.parent().expect("it is in one");
            let files = fs::read_dir(folder).expect("it is there").flatten();
            let all: Vec<_> = files.map(|file| (file.path(), lines(&file.path()))).collect();
            panic!("never {count} lines in {}: {all:#?}", path.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    lines(path)
}

fn writer(quickack: &Quickack) -> u64 {
    let text = quickack.ask("workers --json");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    json["master"]["log_writer"].as_u64().unwrap_or(0)
}

fn total(quickack: &Quickack, name: &str) -> u64 {
    harness::stats(quickack)["totals"][name].as_u64().unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn every_request_has_a_line_in_text_and_in_json() {
    let (_folder, path) = folder();
    let (_memcached, quickack) = field(2, &path, &[], &["access_log: all", "slowlog_keys: full"]);
    let mut client = quickack.client();
    client.ask("set greeting 0 0 5\r\nhello\r\n", "STORED\r\n");
    client.ask("get greeting\r\n", "VALUE greeting 0 5\r\nhello\r\nEND\r\n");
    client.ask("get nothing\r\n", "END\r\n");
    let lines = wait_for_lines(&path, 3);
    let from = client.stream.local_addr().expect("it is connected").to_string();
    let hit = &lines[1];
    for part in [
        "pool=alpha",
        &format!("client={from}"),
        "tenant=- user=-",
        "command=get key=greeting key_len=8 received=14 sent=32",
        "result=hit",
    ] {
        assert!(hit.contains(part), "{part:?} in {hit}");
    }
    assert!(lines[0].ends_with("result=ok") && lines[2].ends_with("result=miss"), "{lines:?}");
    let shown = Command::new("date").args(["-d", &hit[..27], "+%s"]).output().expect("date");
    let at: u64 = String::from_utf8_lossy(&shown.stdout).trim().parse().expect("a time");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    assert!(now.as_secs().abs_diff(at) < 3600, "{hit}");
    // The format changes with a reload, and so does the file.
    let other = path.with_extension("json");
    let text = fs::read_to_string(quickack.file()).expect("the file");
    let text = text.replace("access.log", "access.json");
    quickack.rewrite(&text.replace("global:\n", "global:\n  access_log_format: json\n"));
    quickack.admin_ok(&["reload"]);
    client.ask("get greeting\r\n", "VALUE greeting 0 5\r\nhello\r\nEND\r\n");
    let json = wait_for_lines(&other, 1);
    let json: Value = serde_json::from_str(&json[0]).expect("JSON");
    let expected = [("pool", "alpha"), ("key", "greeting"), ("result", "hit"), ("client", &from)];
    assert!(expected.iter().all(|(name, value)| json[name] == *value), "{json:#}");
    assert!(json["server_us"].is_u64() && json.get("tenant").is_none(), "{json:#}");
    assert_eq!((total(&quickack, "access_lines_lost_total"), lines.len()), (0, 3));
}

#[test]
fn it_is_turned_on_and_off_at_run_time_and_samples() {
    let (_folder, path) = folder();
    let (_memcached, quickack) = field(1, &path, &[], &[]);
    let mut client = quickack.client();
    let mut ask = |count: usize| (0..count).for_each(|_| client.ask("get x\r\n", "END\r\n"));
    ask(50);
    quickack.admin_ok(&["set", "alpha.access_log=1/10"]);
    ask(100);
    wait_for_lines(&path, 10);
    quickack.admin_ok(&["set", "alpha.access_log=off"]);
    ask(50);
    quickack.admin_ok(&["set", "alpha.access_log=all"]);
    ask(5);
    assert_eq!(wait_for_lines(&path, 15).len(), 15);
    assert_eq!(total(&quickack, "access_lines_total"), 15);
}

#[test]
fn without_a_file_no_pool_can_have_one() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let answer = quickack.admin(&["set", "alpha.access_log=all"]);
    assert!(!answer.ok && answer.text.contains("access_log_file"), "{}", answer.text);
}

/// As logrotate does it: the file is moved, and the proxy is told.
#[test]
fn a_rotated_file_loses_no_line_under_load() {
    let (_folder, path) = folder();
    let (_memcached, quickack) = field(2, &path, &[], &["access_log: all"]);
    let mut client = quickack.client();
    let rotated = path.with_extension("1");
    let mut asked = 0;
    for round in 0..3 {
        client.send("get x\r\n".repeat(500));
        client.ask("", &"END\r\n".repeat(500));
        asked += 500;
        if round == 1 {
            wait_for_lines(&path, 1);
            fs::rename(&path, &rotated).expect("it is there");
            send(quickack.process.id(), Signal::USR1);
            wait_until("the file is there again", || path.exists());
        }
    }
    wait_until("each request has a line", || lines(&path).len() + lines(&rotated).len() == asked);
    let all = [lines(&path), lines(&rotated)].concat();
    assert!(all.iter().all(|line| line.contains("result=miss")), "each line is whole");
    assert!(!lines(&path).is_empty(), "the new file is written");
}

#[test]
fn a_full_disk_costs_lines_that_are_counted_and_nothing_else() {
    let (_memcached, quickack) =
        field(1, Path::new("/dev/full"), &["log_level: debug"], &["access_log: all"]);
    let mut client = quickack.client();
    (0..100).for_each(|_| client.ask("get x\r\n", "END\r\n"));
    wait_until("the lost lines are counted", || total(&quickack, "access_lines_lost_total") == 100);
    client.ask("get x\r\n", "END\r\n");
}

/// A reader that takes nothing: requests are answered all the same, and what is lost is counted.
#[test]
fn a_pipe_that_nobody_empties_delays_no_request() {
    let (_folder, path) = folder();
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let (_memcached, quickack) = field(1, &path, &[], &["access_log: all"]);
    let mut options = fs::OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let mut reader = options.open(&path).expect("a pipe");
    let mut client = quickack.client();
    let mut asked = 0;
    while total(&quickack, "access_lines_lost_total") == 0 {
        client.send("get x\r\n".repeat(1_000));
        client.ask("", &"END\r\n".repeat(1_000));
        asked += 1_000;
        assert!(asked < 100_000, "a pipe has an end");
    }
    // Everything that is not counted as lost can be read, each line whole. The counts are late.
    let mut text = Vec::new();
    wait_until("each request has a line or is counted", || {
        let mut chunk = vec![0; 1 << 16];
        while let Ok(len) = reader.read(&mut chunk) {
            text.extend_from_slice(&chunk[..len]);
        }
        let read = text.iter().filter(|byte| **byte == b'\n').count() as u64;
        read + total(&quickack, "access_lines_lost_total") == asked
    });
    let text = String::from_utf8(text).expect("text");
    assert!(text.lines().all(|line| line.ends_with("result=miss")));
    assert_eq!(total(&quickack, "access_lines_total"), asked);
}

#[test]
fn the_writer_is_started_again_and_lines_outlive_it() {
    let (_folder, path) = folder();
    let (_memcached, quickack) = field(1, &path, &[], &["access_log: all"]);
    let mut client = quickack.client();
    client.ask("get x\r\n", "END\r\n");
    wait_for_lines(&path, 1);
    let old = writer(&quickack);
    send(old as u32, Signal::KILL);
    client.ask("get x\r\n", "END\r\n");
    wait_until("another writes", || ![0, old].contains(&writer(&quickack)));
    client.ask("get x\r\n", "END\r\n");
    wait_for_lines(&path, 3);
    assert_eq!(lines(&path).len(), 3);
}

#[test]
fn the_last_lines_are_written_when_the_proxy_ends() {
    let (_folder, path) = folder();
    let (_memcached, mut quickack) = field(2, &path, &[], &["access_log: all"]);
    let mut client = quickack.client();
    client.send("get x\r\n".repeat(300));
    client.ask("", &"END\r\n".repeat(300));
    drop(client);
    send(quickack.process.id(), Signal::TERM);
    assert!(quickack.process.wait_for_end().success());
    assert_eq!(lines(&path).len(), 300);
}
