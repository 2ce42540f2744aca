//! Signals. After TERM, INT and QUIT no client is accepted, outstanding requests are answered, and
//! the exit status is 0. Other signals reopen the log or retire the workers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::load::Options;
use testkit::process::{
    DEADLINE, Memcached, Quickack, accept, answer_lines, freeze, listen, send, silent, wait_until,
};

use super::{QUICKACK, harness, quickack};

/// A server that answers a get only when the test tells it to, and reports when it has received
/// one.
pub struct Hesitant {
    pub address: SocketAddr,
    pub asked: mpsc::Receiver<String>,
    pub answer: mpsc::Sender<()>,
}

impl Hesitant {
    pub fn start() -> Hesitant {
        Hesitant::start_as("1.6.18")
    }

    /// Starts one that reports this version.
    pub fn start_as(version: &str) -> Hesitant {
        let greeting = format!("VERSION {version}\r\n");
        let (listener, address) = silent();
        let (say_asked, asked) = mpsc::channel();
        let (answer, may_answer) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut output = stream.try_clone().expect("a socket can be had twice");
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if line == "version" {
                        output.write_all(greeting.as_bytes()).expect("the proxy reads");
                        continue;
                    }
                    let told = say_asked.send(line).is_ok() && may_answer.recv().is_ok();
                    if !told || output.write_all(b"END\r\n").is_err() {
                        return;
                    }
                }
            }
        });
        Hesitant { address, asked, answer }
    }
}

fn wait_until_nobody_accepts(address: SocketAddr) {
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < DEADLINE, "it goes on accepting");
        thread::sleep(Duration::from_millis(2));
    }
}

fn check_answers_what_was_asked(signal: Signal) {
    let server = Hesitant::start();
    let mut quickack = quickack(&[server.address], &["timeout: 60000"]);
    let (mut busy, mut idle) = (quickack.client(), quickack.client());
    idle.send("version\r\n");
    assert!(idle.line().starts_with("VERSION "));
    busy.send("get a\r\n");
    assert_eq!(server.asked.recv_timeout(DEADLINE).as_deref(), Ok("get a"));
    quickack.process.signal(signal);
    wait_until_nobody_accepts(quickack.address());
    assert_eq!(idle.rest(), "");
    server.answer.send(()).expect("the server waits for it");
    assert_eq!(busy.rest(), "END\r\n");
    let status = quickack.process.wait_for_end();
    assert_eq!(status.code(), Some(0), "{}", quickack.process.stderr_text());
}

#[test]
fn term_answers_what_was_asked_and_exits_with_0() {
    check_answers_what_was_asked(Signal::TERM);
}

#[test]
fn int_answers_what_was_asked_and_exits_with_0() {
    check_answers_what_was_asked(Signal::INT);
}

#[test]
fn term_is_not_held_up_by_a_server_that_never_answers() {
    let (silent, address) = silent();
    let mut quickack = quickack(&[address], &["timeout: 300"]);
    let mut client = quickack.client();
    client.send("get a\r\nversion\r\n");
    // The worker has read the request once the link is opened.
    let _link = accept(&silent);
    quickack.process.signal(Signal::TERM);
    let reply = client.rest();
    assert!(reply.starts_with("SERVER_ERROR "), "{reply}");
    assert!(reply.contains("VERSION "), "{reply}");
    assert_eq!(quickack.process.wait_for_end().code(), Some(0));
}

/// A client that never reads its replies delays the end for as long as was set, 10 s by default.
#[test]
fn term_waits_for_a_client_that_does_not_read_no_longer_than_was_set() {
    let value = "x".repeat(1_000_000);
    let reply = format!("VALUE big 0 1000000\r\n{value}\r\nEND\r\n");
    let address = listen(move |stream| answer_lines(stream, |_| Some(reply.clone())));
    let text = super::config(&[address], &[]) + "global:\n  shutdown_timeout: 500ms\n";
    let mut quickack = Quickack::start(QUICKACK, &text);
    let mut client = quickack.client();
    client.ask("get big\r\n", "VALUE big 0 1000000\r\n");
    client.send("get big\r\n".repeat(200));
    let start = Instant::now();
    quickack.process.signal(Signal::TERM);
    assert_eq!(
        quickack.process.wait_for_end().code(),
        Some(0),
        "{}",
        quickack.process.stderr_text()
    );
    let took = start.elapsed();
    assert!(Duration::from_millis(450) < took && took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn quit_answers_what_was_asked_and_exits_with_0() {
    check_answers_what_was_asked(Signal::QUIT);
}

/// Outstanding requests are answered and idle clients are closed; no client gets an error.
#[test]
fn term_under_load_is_no_error_for_any_client_of_memcached() {
    for workers in [1, 4] {
        let (_memcached, mut quickack) = harness::field(workers, &[], &[]);
        let load = harness::load(&quickack, 50, Options::default());
        quickack.process.signal(Signal::TERM);
        let status = quickack.process.wait_for_end();
        assert_eq!(status.code(), Some(0), "{}", quickack.process.stderr_text());
        let tally = load.stop();
        println!("TERM with {workers} workers: {tally}");
        // A request may cross the close on its way; its client knows that it was not read. A client
        // that reconnects at once may still find the last listener open.
        tally.assert_lost_at_most(2);
    }
}

#[test]
fn a_second_term_ends_at_once_whoever_still_waits() {
    let server = Hesitant::start();
    let text = harness::text(2, &["shutdown_timeout: 60s"], &[server.address], &["timeout: 60000"]);
    let mut quickack = Quickack::start(QUICKACK, &text);
    let mut client = quickack.client();
    client.send("get a\r\n");
    assert_eq!(server.asked.recv_timeout(DEADLINE).as_deref(), Ok("get a"));
    quickack.process.signal(Signal::TERM);
    wait_until_nobody_accepts(quickack.address());
    assert!(!quickack.workers().is_empty(), "one waits for the server");
    let start = Instant::now();
    quickack.process.signal(Signal::TERM);
    quickack.process.wait_for_end();
    // Without the second signal it would take the shutdown_timeout.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    // Its worker is gone, and with it the connection.
    let mut rest = Vec::new();
    let heard = client.stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{heard:?} {rest:?}");
}

/// A worker that does not answer does not delay the master's end.
#[test]
fn term_is_not_held_up_by_a_stopped_worker_before_memcached() {
    let (_memcached, mut quickack) = harness::field(2, &["shutdown_timeout: 300ms"], &[]);
    freeze(harness::workers(&quickack)[&1].pid);
    let start = Instant::now();
    quickack.process.signal(Signal::TERM);
    quickack.process.wait_for_end();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn usr1_and_hup_write_on_in_a_new_file_after_the_log_of_memcached_was_moved() {
    let folder = tempfile::tempdir().expect("a folder for the log");
    let (log, old) = (folder.path().join("log"), folder.path().join("log.1"));
    let memcached = Memcached::start();
    let text = harness::text(2, &[], &[memcached.address], &[]);
    let quickack = Quickack::start(QUICKACK, &text);
    harness::wait_for_workers(&quickack, 2);
    quickack.rewrite(&harness::text(
        2,
        &[&format!("log: {}", log.display())],
        &[memcached.address],
        &[],
    ));
    quickack.admin_ok(&["reload"]);
    for signal in [Signal::USR1, Signal::HUP] {
        wait_until("the log is there", || log.exists());
        std::fs::rename(&log, &old).expect("it is there");
        let before = std::fs::read_to_string(&old).unwrap_or_default();
        quickack.process.signal(signal);
        wait_until("a new log is there", || log.exists());
        let worker = harness::workers(&quickack)[&0].pid;
        send(worker, Signal::KILL);
        wait_until("the death is in the new log", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains(&worker.to_string()))
        });
        let after = std::fs::read_to_string(&old).unwrap_or_default();
        assert!(!after.contains(&worker.to_string()), "{before}\n{after}");
        harness::wait_for_workers(&quickack, 2);
    }
}

/// They release their clients; new clients wait in the queue until a reload starts new workers.
#[test]
fn winch_retires_the_workers_before_memcached_and_keeps_the_listeners() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    let load = harness::load(&quickack, 20, Options { rate: Some(2_000), ..Options::default() });
    quickack.process.signal(Signal::WINCH);
    wait_until("the workers are gone", || quickack.workers().is_empty());
    let mut client = quickack.client();
    client.send("get nobody-has-this\r\n");
    quickack.process.signal(Signal::HUP);
    client.expect("END\r\n");
    load.wait_for_everybody();
    let tally = load.stop();
    println!("WINCH and HUP: {tally}");
    tally.assert_lost_at_most(1);
}

/// More words and fewer, as in twemproxy.
#[test]
fn ttin_and_ttou_turn_the_log_and_other_signals_are_ignored_before_memcached() {
    let (_memcached, mut quickack) = harness::field(1, &[], &[]);
    let worker = quickack.workers()[&0];
    let steps = [
        (Signal::TTIN, "the log level is now debug"),
        (Signal::TTOU, "the log level is now notice"),
        (Signal::TTOU, "the log level is now warning"),
        (Signal::TTIN, "the log level is now notice"),
        (Signal::USR2, "signal 12 has no meaning here and is ignored"),
        (Signal::ALARM, "signal 14 has no meaning here and is ignored"),
    ];
    for (at, (signal, told)) in steps.into_iter().enumerate() {
        quickack.process.signal(signal);
        let before = steps[..at].iter().filter(|(_, words)| *words == told).count();
        quickack.process.wait_for(told, |said| (said.matches(told).count() > before).then_some(()));
    }
    assert_eq!(quickack.workers()[&0], worker);
}

/// Somebody else than the master tells a worker to end: it answers first, and has a successor.
#[test]
fn a_worker_that_is_told_to_end_answers_what_it_was_asked_and_is_replaced() {
    let server = Hesitant::start();
    let global = ["shutdown_timeout: 60s"];
    let text = harness::text(1, &global, &[server.address], &["timeout: 60000"]);
    let mut quickack = Quickack::start(QUICKACK, &text);
    let before = harness::wait_for_workers(&quickack, 1)[&0].pid;
    let mut client = quickack.client();
    client.send("get a\r\n");
    assert_eq!(server.asked.recv_timeout(DEADLINE).as_deref(), Ok("get a"));
    send(before, Signal::TERM);
    wait_until("it leaves", || harness::workers(&quickack)[&0].state == "leaving");
    server.answer.send(()).expect("the server waits for it");
    assert_eq!(client.rest(), "END\r\n");
    wait_until("it has a successor", || {
        let workers = harness::workers(&quickack);
        workers.get(&0).is_some_and(|one| one.pid != before && one.is_serving())
    });
    for told in [
        format!("worker 0 (pid {before}) was told to exit and is draining"),
        "worker 0 has exited (exit status: 0)".to_string(),
    ] {
        quickack.process.wait_for(&told, |said| said.contains(&told).then_some(()));
    }
    quickack.client().ask("version\r\n", "VERSION ");
}

/// Workers notice the master's death: they must not serve without a master for ever.
#[test]
fn workers_before_memcached_end_when_their_master_is_killed() {
    let (_memcached, mut quickack) = harness::field(2, &[], &[]);
    let workers = quickack.workers();
    quickack.process.signal(Signal::KILL);
    quickack.process.wait_for_end();
    wait_until("its workers have ended", || {
        workers.values().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    });
}
