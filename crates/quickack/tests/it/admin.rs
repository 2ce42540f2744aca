//! The admin socket: access to it, its verbs, and misbehaving connections.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testkit::load::Options;
use testkit::process::{DEADLINE, Memcached, Quickack, freeze, send, wait_until};

use super::harness::{self, workers};

fn socket(quickack: &Quickack) -> std::path::PathBuf {
    quickack.folder().join("admin.sock")
}

fn connect(quickack: &Quickack) -> UnixStream {
    let stream = UnixStream::connect(socket(quickack)).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    stream
}

#[test]
fn only_the_owner_may_ask_a_proxy_before_memcached() {
    let (_memcached, mut quickack) = harness::field(1, &[], &[]);
    let mode = std::fs::metadata(socket(&quickack)).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    quickack.process.signal(rustix::process::Signal::TERM);
    assert_eq!(quickack.process.wait_for_end().code(), Some(0));
    assert!(!socket(&quickack).exists(), "it is removed at the end");
    let answer = quickack.admin(&["workers"]);
    assert!(!answer.ok && answer.text.contains("admin.sock"), "{answer:?}");
}

/// The file's mode is the first check, and may have been opened by mistake; the kernel's user id of
/// the peer is the second.
#[test]
fn another_user_whom_the_mode_lets_in_is_refused_before_memcached_as_root() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let program = quickack.folder().join("quickack");
    std::fs::copy(super::QUICKACK, &program).expect("the program can be copied");
    for (path, mode) in [(quickack.folder(), 0o755), (&socket(&quickack), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    }
    let ask = |user: &str, words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), "--regid=65534", "--clear-groups"]);
        command.arg(&program).args(words).arg("--admin").arg(socket(&quickack));
        let output = command.output().expect("setpriv is there");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).expect("it answers in text"))
    };
    for words in [&["workers"][..], &["stats"], &["config"], &["set", "log_level=debug"], &["quit"]]
    {
        let (ok, text) = ask("65534", words);
        let told = "quickack: only root and the user of this proxy may use this socket\n";
        assert!(!ok && text == told, "{words:?}: {text}");
    }
    // Any number of them: they take no other connection's place.
    let queue: Vec<_> = (0..64).map(|_| ask("65534", &["workers"]).0).collect();
    assert_eq!(queue, [false; 64]);
    let (ok, text) = ask("0", &["workers"]);
    assert!(ok && text.contains(&quickack.process.id().to_string()), "{text}");
    assert!(!quickack.admin_ok(&["config", "--diff"]).contains("debug"));
    assert_eq!(quickack.wait_for_workers(1).len(), 1);
}

/// A socket with another listener is never taken over: not at the start, and not by a reload, which
/// then changes nothing.
#[test]
fn a_socket_at_which_another_listens_is_left_to_it_before_memcached() {
    let (memcached, quickack) = harness::field(1, &[], &[]);
    let folder = tempfile::tempdir().expect("a folder for sockets");
    let path = folder.path().join("theirs.sock");
    let theirs = UnixListener::bind(&path).expect("nobody is there");
    let still_theirs = || {
        let mut client = UnixStream::connect(&path).expect("somebody listens");
        client.write_all(b"hello").expect("there is room");
        drop(client);
        // Earlier connections only checked for a listener, and send nothing.
        let heard = theirs.incoming().take(8).find_map(|stream| {
            let mut heard = String::new();
            stream.expect("it came").read_to_string(&mut heard).expect("it is text");
            (!heard.is_empty()).then_some(heard)
        });
        assert_eq!(heard.as_deref(), Some("hello"), "it is heard by whom it was meant for");
    };
    let place = path.display();
    let pool = format!("beta:\n  listen: {place}\n  servers:\n   - {}:1\n", memcached.address);
    let plain = harness::text(1, &[], &[memcached.address], &[]);
    let admin = harness::text(1, &[&format!("admin: {place}")], &[memcached.address], &[]);
    for (what, text) in [("listen", format!("{plain}{pool}")), ("admin", admin)] {
        let file = folder.path().join("quickack.yml");
        std::fs::write(&file, text).expect("a new file in an own folder");
        let mut command = Command::new(super::QUICKACK);
        command.args(["run", "-c"]).arg(&file).env("RUNTIME_DIRECTORY", folder.path());
        let mut process = testkit::process::Process::start(what, &mut command);
        assert_eq!(process.wait_for_end().code(), Some(1), "{what}");
        // Its last messages may be read after its end.
        wait_until(&format!("{what}: why it does not start"), || {
            let said = process.stderr_text();
            let line = said.lines().find(|line| line.contains("cannot start: "));
            line.is_some_and(|line| line.contains(&place.to_string()))
        });
        still_theirs();
    }
    let before = workers(&quickack);
    quickack.rewrite(&format!("{plain}{pool}"));
    let answer = quickack.admin(&["reload"]);
    assert!(!answer.ok && answer.text.contains(&place.to_string()), "{answer:?}");
    still_theirs();
    assert_eq!(workers(&quickack), before, "nothing changed");
    quickack.client().ask("get a\r\n", "END\r\n");
}

#[test]
fn every_verb_answers_in_text_and_those_that_can_in_json_before_memcached() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    for verb in ["config", "stats", "workers"] {
        let text = quickack.admin_ok(&[verb]);
        assert!(text.lines().count() > 2, "{verb}: {text}");
        let json: Value = serde_json::from_str(&quickack.admin_ok(&[verb, "--json"])).unwrap();
        assert!(json.is_object() || json.is_array(), "{verb}: {json}");
    }
    let pids: Vec<String> = workers(&quickack).values().map(|one| one.pid.to_string()).collect();
    let text = quickack.admin_ok(&["workers"]);
    assert!(pids.iter().all(|pid| text.contains(pid)), "{text}");
    assert!(text.contains(&quickack.process.id().to_string()), "{text}");
    quickack.admin_ok(&["log-level", "debug"]);
    assert!(quickack.admin_ok(&["config", "--diff"]).contains("debug"));
    assert!(!quickack.admin(&["log-level", "loud"]).ok);
    for line in ["dance", "", "workers --loud", "reload --now", "set", "log-level"] {
        let answer = quickack.ask(line);
        assert!(answer.starts_with("error: "), "{line:?}: {answer}");
    }
    let words = [
        ("config --running", "workers: 2"),
        ("config --diff --json", "log_level"),
        ("stats --diff", "error: `stats` does not take `--diff`"),
        ("workers --running", "error: `workers` does not take `--running`"),
        ("config --allow-remap", "error: `config` does not take `--allow-remap`"),
        ("reload --json", "error: `reload` does not take `--json`"),
        ("drain now", "error: `drain` does not take `now`"),
        ("quit --json", "error: `quit` does not take `--json`"),
        ("log-level debug info", "error: log-level takes one word"),
        ("set --json", "error: "),
        ("reload --allow-remap", "nothing changed"),
    ];
    for (line, told) in words {
        let answer = quickack.ask(line);
        let is_error = told.starts_with("error: ");
        assert!(answer.contains(told), "{line:?}: {answer}");
        assert_eq!(answer.starts_with("error: "), is_error, "{line:?}: {answer}");
    }
    let diff: Value = serde_json::from_str(&quickack.ask("config --diff --json")).unwrap();
    let all: Value = serde_json::from_str(&quickack.ask("config --json")).unwrap();
    assert!(diff.to_string().len() < all.to_string().len() / 2, "{diff}");
    let told = quickack.ask("");
    assert!(["reload", "stats", "quit"].iter().all(|verb| told.contains(verb)), "{told}");
}

/// More than a socket's buffer holds: it goes on as it is read, and nothing is done meanwhile.
#[test]
fn a_long_answer_waits_for_its_reader_before_memcached() {
    let memcached = Memcached::start();
    let mut text = harness::text(1, &[], &[memcached.address], &["preconnect: false"]);
    let port = memcached.address.port();
    (0..2_000).for_each(|n| text.push_str(&format!("   - 127.0.0.1:{port}:1 server-{n:04}\n")));
    let quickack = Quickack::start(super::QUICKACK, &text);
    harness::wait_for_workers(&quickack, 1);
    let ask = || {
        let mut stream = connect(&quickack);
        stream.write_all(b"stats --json\n").expect("it reads");
        stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
        stream
    };
    let mut answer = String::new();
    ask().read_to_string(&mut answer).expect("it answers in text");
    assert!(answer.len() > 400_000, "{} bytes fit a buffer", answer.len());
    assert!(serde_json::from_str::<Value>(&answer).is_ok(), "it is not whole: {answer}");
    let mut mute = ask();
    // The answer is made: what is measured is the wait for its reader.
    mute.read_exact(&mut [0]).expect("it has begun to answer");
    let before = quickack.process.facts().cpu_ticks();
    // A span to measure over, not a wait for anything.
    std::thread::sleep(Duration::from_secs(1));
    let ticks = quickack.process.facts().cpu_ticks() - before;
    assert!(ticks <= 20, "{ticks} ticks of CPU in a second in which nobody reads");
}

/// Connections that send nothing, send half a line, or do not read delay nobody.
#[test]
fn bad_admin_connections_keep_nobody_from_memcached() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    let load = harness::load(&quickack, 10, Options { rate: Some(1_000), ..Options::default() });
    let silent: Vec<UnixStream> = (0..20).map(|_| connect(&quickack)).collect();
    let mut half = connect(&quickack);
    half.write_all(b"work").expect("it reads");
    let mut gone = connect(&quickack);
    gone.write_all(b"stats --json\n").expect("it reads");
    drop(gone);
    let mut endless = connect(&quickack);
    let chunk = [b'x'; 16 * 1024];
    while endless.write_all(&chunk).is_ok() {}
    let mut rest = String::new();
    // The refusal may be overtaken by the reset that follows unread input.
    let _ = endless.read_to_string(&mut rest);
    assert!(rest.is_empty() || rest.starts_with("error: "), "{rest}");
    assert_eq!(workers(&quickack).len(), 2);
    half.write_all(b"ers --json\n").expect("it reads");
    let mut answer = String::new();
    half.read_to_string(&mut answer).expect("it answers and closes");
    assert!(answer.contains("\"pid\""), "{answer}");
    drop(silent);
    load.wait_for_everybody();
    load.stop().assert_unharmed();
}

#[test]
fn changes_asked_for_while_one_is_under_way_are_made_after_it_before_memcached() {
    let (memcached, quickack) = harness::field(2, &[], &[]);
    let old = workers(&quickack);
    let before = old[&0].epoch;
    // Nothing can be prepared while one of them stands.
    freeze(old[&0].pid);
    let mut asked = ["set log_level=debug\n", "set log_level=warning\n"].map(|words| {
        let mut stream = connect(&quickack);
        stream.write_all(words.as_bytes()).expect("it reads");
        stream
    });
    assert_eq!(workers(&quickack).len(), 2, "they have been read");
    // A connection has one question, whatever it says before it goes.
    let mut gone = connect(&quickack);
    gone.write_all(b"set log_level=notice\n").expect("it reads");
    assert_eq!(workers(&quickack).len(), 2, "it has been read");
    gone.write_all(b"quit\n").expect("it is connected");
    drop(gone);
    quickack.rewrite(&harness::text(2, &[], &[memcached.address], &["timeout: 60002"]));
    quickack.process.signal(Signal::HUP);
    assert_eq!(workers(&quickack).len(), 2, "it has been taken");
    send(old[&0].pid, Signal::CONT);
    for stream in &mut asked {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        assert!(answer.contains(" applied by 2/2"), "{answer}");
    }
    wait_until("all four hold", || {
        workers(&quickack).values().all(|worker| worker.epoch >= before + 4)
    });
}

/// One more waits in the queue until another leaves.
#[test]
fn so_many_visitors_and_no_more_are_let_in_before_memcached() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let before = quickack.process.facts().descriptors();
    let visitors: Vec<UnixStream> = (0..60).map(|_| connect(&quickack)).collect();
    let mut most = 0;
    wait_until("those who say nothing are shown out", || {
        let now = quickack.process.facts().descriptors().saturating_sub(before);
        most = most.max(now);
        most > 0 && now == 0
    });
    // Some may be the master's own for a moment.
    assert!(most <= 40, "{most} of {} were let in at once", visitors.len());
    assert_eq!(workers(&quickack).len(), 1);
}

#[test]
fn drain_and_quit_end_a_proxy_before_memcached() {
    for verb in ["drain", "quit"] {
        let (_memcached, mut quickack) = harness::field(2, &[], &[]);
        let mut client = quickack.client();
        client.ask("get a\r\n", "END\r\n");
        quickack.admin_ok(&[verb]);
        assert_eq!(quickack.process.wait_for_end().code(), Some(0), "{verb}");
        let mut rest = Vec::new();
        let heard = client.stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{verb}: {heard:?} {rest:?}");
    }
}

#[test]
fn a_question_is_one_line_of_64_kib_at_most_before_memcached() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let ask = |question: &str, is_over: bool| {
        let mut stream = connect(&quickack);
        stream.write_all(question.as_bytes()).expect("it reads");
        if is_over {
            stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        answer
    };
    let most = "x".repeat(64 * 1024);
    assert!(ask(&format!("{most}\n"), false).starts_with("error: unknown verb `xxx"));
    let told = "error: a request is one line of at most 64 KiB\n";
    assert_eq!(ask(&format!("{most}x"), false), told);
    let pid = quickack.process.id().to_string();
    // The end of all that it sends is an end of the line, too; and only the first line counts.
    for (question, is_over) in [("workers", true), ("  workers \r\nquit\n", false)] {
        assert!(ask(question, is_over).starts_with(&format!("master {pid},")), "{question:?}");
    }
    assert_eq!(ask("", true), "", "it has asked nothing");
    assert!(quickack.ask("workers").starts_with(&format!("master {pid},")));
}

/// Clients wait for their answers meanwhile; only `quit` ends a proxy that drains.
#[test]
fn a_proxy_that_drains_makes_no_change_and_is_not_hurried_by_another_drain() {
    for last in ["drain", "quit"] {
        let server = super::shutdown::Hesitant::start();
        let global = ["shutdown_timeout: 60s"];
        let text = harness::text(1, &global, &[server.address], &["timeout: 60000"]);
        let mut quickack = Quickack::start(super::QUICKACK, &text);
        harness::wait_for_workers(&quickack, 1);
        let mut client = quickack.client();
        client.send("get a\r\n");
        assert_eq!(server.asked.recv_timeout(DEADLINE).as_deref(), Ok("get a"));
        quickack.admin_ok(&["drain"]);
        for words in [&["reload"][..], &["set", "log_level=debug"], &["log-level", "debug"]] {
            let answer = quickack.admin(words);
            assert!(!answer.ok && answer.text.contains("shutting down"), "{answer:?}");
        }
        assert_eq!(quickack.admin_ok(&[last]).contains("ending now"), last == "quit");
        if last == "drain" {
            assert!(quickack.admin_ok(&["workers"]).contains("leaving"), "it waits");
            server.answer.send(()).expect("the server waits for it");
            assert_eq!(client.rest(), "END\r\n");
        }
        assert_eq!(quickack.process.wait_for_end().code(), Some(0), "{last}");
    }
}

/// Another file in its place is told of, and stays; when that is gone, the socket is made again.
#[test]
fn a_file_in_the_place_of_the_admin_socket_stays_before_memcached() {
    let (_memcached, mut quickack) = harness::field(1, &[], &[]);
    let path = socket(&quickack);
    let replace = || {
        std::fs::remove_file(&path).expect("it is ours");
        std::fs::write(&path, "precious").expect("it is ours");
    };
    replace();
    quickack.process.wait_for("that it cannot be opened", |said| {
        said.contains("cannot open the admin socket").then_some(())
    });
    std::fs::remove_file(&path).expect("it is ours");
    wait_until("it is there again", || UnixStream::connect(&path).is_ok());
    let created = "the admin socket was removed and is created again";
    quickack.process.wait_for(created, |said| said.contains(created).then_some(()));
    assert!(quickack.ask("workers").starts_with("master "));
    replace();
    quickack.process.signal(Signal::TERM);
    assert_eq!(quickack.process.wait_for_end().code(), Some(0));
    assert_eq!(std::fs::read_to_string(&path).expect("it is still there"), "precious");
}

/// Lines for programs are one object each; repeats of a fact are reported once, with a count.
#[test]
fn a_log_in_json_is_an_object_a_line_and_repeats_are_counted_before_memcached() {
    let folder = tempfile::tempdir().expect("a folder for the log");
    let log = folder.path().join("log");
    let nobody = testkit::process::free_address();
    let text = harness::text(2, &["log_format: json"], &[nobody], &["timeout: 200"]);
    let quickack = harness::start(2, &[], &[nobody], &["timeout: 200"]);
    let text = text.replace("  log_format", &format!("  log: {}\n  log_format", log.display()));
    quickack.rewrite(&text);
    quickack.admin_ok(&["reload"]);
    for _ in 0..200 {
        let mut client = quickack.client();
        client.send("get a\r\n");
        assert!(client.line().starts_with("SERVER_ERROR "));
    }
    wait_until("it is logged that the server is down", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("down"))
    });
    let text = std::fs::read_to_string(&log).expect("it is there");
    for line in text.lines() {
        let json: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(json.is_object(), "{line}");
    }
    assert!(text.lines().count() < 40, "200 failed requests are no 200 lines:\n{text}");
}
