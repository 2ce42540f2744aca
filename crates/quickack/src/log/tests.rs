//! Tests lines as they are read, on real files, pipes and sockets; time is an argument.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use super::*;

/// 2024-02-29 23:59:59.000007, and a clock of its own.
fn at(clock_us: u64) -> Clocks {
    Clocks { unix_us: 1_709_251_199_000_007, clock_us }
}

fn entry(key: &str, text: &str) -> Entry {
    let origin = Origin::Worker { slot: 3, pid: 4711 };
    let about = About::server("one", "alpha");
    let (level, event) = (Level::Warning, "server_down".to_string());
    Entry { level, event, key: key.to_string(), text: text.to_string(), about, origin }
}

struct Scene {
    _folder: tempfile::TempDir,
    path: PathBuf,
    log: Log,
}

fn scene(format: Format) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let log = Log::open(&Target::File(path.clone()), format, Level::Notice).unwrap();
    Scene { _folder: folder, path, log }
}

impl Scene {
    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }
}

/// Makes a log that writes to a file another process has opened.
fn shared(fd: impl AsFd) -> Log {
    Log {
        target: Target::Stderr,
        format: Format::Text,
        style: Style::Stamped,
        level: Level::Notice,
        sink: Sink::share(fd.as_fd()).unwrap(),
        repeats: Repeats::default(),
        lost: 0,
        why_lost: String::new(),
        losses: Losses::default(),
    }
}

#[test]
fn a_file_has_stamped_lines() {
    let mut scene = scene(Format::Text);
    scene.log.write(at(0), entry("down", "server one is down"));
    let line = "2024-02-29T23:59:59.000007Z warning worker 3 (4711): server one is down\n";
    assert_eq!(scene.text(), line);
}

#[test]
fn json_is_one_object_a_line() {
    let mut scene = scene(Format::Json);
    scene.log.write(at(0), entry("down", "a \"quoted\"\nword"));
    scene.log.write(at(1), entry("down", "again"));
    scene.log.tick(at(1_000_000));
    let text = scene.text();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = serde_json::json!({
        "time": "2024-02-29T23:59:59.000007Z", "level": "warning", "process": "worker 3",
        "pid": 4711, "worker": 3, "event": "server_down", "pool": "alpha", "server": "one",
        "message": "a \"quoted\"\\nword"
    });
    assert_eq!(lines[0], first);
    assert_eq!((&lines[1]["message"], &lines[1]["repeated"]), (&"again".into(), &1.into()));
    assert_eq!(lines.len(), 2);
}

#[test]
fn less_than_the_level_is_not_written() {
    let mut scene = scene(Format::Text);
    scene.log.write(at(0), Entry::new(Level::Debug, "", "hush"));
    let target = Target::File(scene.path.clone());
    scene.log.change(&target, Format::Text, Level::Debug).unwrap();
    scene.log.write(at(0), Entry::new(Level::Debug, "", "told"));
    assert!(scene.text().ends_with("told\n") && !scene.text().contains("hush"));
}

/// The journal and syslog read the level; both have their own time.
#[test]
fn the_journal_and_syslog_have_the_level_before_each_line() {
    let line = |format, style, level, origin| {
        let entry = Entry { level, origin, ..entry("", "it is down") };
        String::from_utf8(render(format, style, 1, &entry, Some(2))).unwrap()
    };
    let worker = Origin::Worker { slot: 3, pid: 4711 };
    let text = Format::Text;
    let journal = line(text, Style::Journal, Level::Warning, worker);
    assert_eq!(journal, "<4>worker 3 (4711): it is down (repeated 2 times in 1 s)\n");
    let journal = line(text, Style::Journal, Level::Error, Origin::Master);
    assert_eq!(journal, "<3>it is down (repeated 2 times in 1 s)\n");
    let syslog = line(text, Style::Syslog, Level::Notice, worker);
    assert_eq!(syslog, "<29>quickack[4711]: worker 3: it is down (repeated 2 times in 1 s)");
    let syslog = line(Format::Json, Style::Syslog, Level::Debug, worker);
    assert!(syslog.starts_with("<31>quickack[4711]: {\"time\":\"1970-"), "{syslog}");
}

#[test]
fn syslog_gets_whole_lines_also_after_it_was_started_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let target = Target::Syslog(path.clone());
    let refused = Log::open(&target, Format::Text, Level::Notice).err().unwrap().to_string();
    assert!(refused.ends_with("; is a syslog daemon running?"), "{refused}");
    let received = |daemon: &UnixDatagram| {
        let mut block = [0; 4096];
        let len = daemon.recv(&mut block).unwrap();
        String::from_utf8_lossy(&block[..len]).into_owned()
    };
    let daemon = UnixDatagram::bind(&path).unwrap();
    let mut log = Log::open(&target, Format::Text, Level::Notice).unwrap();
    log.write(at(0), entry("", "first"));
    assert_eq!(received(&daemon), "<28>quickack[4711]: worker 3: first");
    drop(daemon);
    log.write(at(1), entry("", "nobody hears this"));
    std::fs::remove_file(&path).unwrap();
    let daemon = UnixDatagram::bind(&path).unwrap();
    log.write(at(2), entry("", "second"));
    let lost = received(&daemon);
    assert!(lost.contains(": 1 lines were lost: they could not be written: "), "{lost}");
    assert_eq!(received(&daemon), "<28>quickack[4711]: worker 3: second");
    // A daemon that does not read keeps nobody waiting.
    for n in 0..10_000 {
        log.write(at(n), entry("", "too much"));
    }
    assert!(log.lost > 0 && log.why_lost == "the log's reader was too slow", "{}", log.why_lost);
    let stream = folder.path().join("stream");
    let _listener = std::os::unix::net::UnixListener::bind(&stream).unwrap();
    let refused = Log::open(&Target::Syslog(stream), Format::Text, Level::Notice).err().unwrap();
    assert!(refused.to_string().ends_with("; it takes no datagrams"), "{refused}");
}

#[test]
fn a_storm_is_a_line_a_second() {
    let mut scene = scene(Format::Text);
    for ms in 0..3000 {
        scene.log.write(at(ms * 1000), entry("down", "it is down"));
        scene.log.write(at(ms * 1000), entry("", "no key"));
    }
    assert_eq!(scene.log.due_us(), Some(3_000_000));
    scene.log.tick(at(3_000_000));
    let text = scene.text();
    let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with("no key")).collect();
    let ends =
        ["is down", "(repeated 999 times in 1 s)", "1000 times in 1 s)", "1000 times in 1 s)"];
    assert!(
        lines.len() == 4 && lines.iter().zip(ends).all(|(l, end)| l.ends_with(end)),
        "{lines:?}"
    );
    assert_eq!(text.lines().count() - lines.len(), 3000);
    assert_eq!(scene.log.due_us(), None, "nothing is to be told, nobody is to be woken");
    scene.log.tick(at(4_000_000));
    scene.log.write(at(4_000_000), entry("down", "it is down"));
    assert_eq!(scene.text().lines().last(), text.lines().next(), "after a silent second");
}

#[test]
fn what_was_counted_is_told_before_the_end() {
    let mut scene = scene(Format::Text);
    scene.log.write(at(0), entry("down", "it is down"));
    scene.log.write(at(1), entry("down", "it is down"));
    scene.log.finish(at(2));
    assert!(scene.text().ends_with("it is down (repeated 1 times in 1 s)\n"));
}

#[test]
fn the_kinds_of_lines_are_bounded_too() {
    let mut scene = scene(Format::Text);
    for key in 0..repeats::KEYS_MAX + 50 {
        scene.log.write(at(0), entry(&format!("key-{key}"), "words"));
    }
    assert_eq!(scene.text().lines().count(), repeats::KEYS_MAX);
    scene.log.tick(at(1_000_000));
    let told = scene.text();
    let last = told.lines().last().unwrap();
    assert!(last.ends_with("other log lines, not shown (repeated 50 times in 1 s)"), "{last}");
    scene.log.write(at(1_000_000), entry("key-300", "room again"));
    assert!(scene.text().ends_with("room again\n"));
}

#[test]
fn a_file_that_was_moved_away_is_opened_anew() {
    let mut scene = scene(Format::Text);
    let old = scene.path.with_extension("old");
    fs::rename(&scene.path, &old).unwrap();
    scene.log.write(at(0), entry("", "before"));
    scene.log.reopen().unwrap();
    scene.log.write(at(0), entry("", "after"));
    assert!(fs::read_to_string(&old).unwrap().ends_with("before\n"));
    assert!(scene.text().ends_with("after\n"));
}

#[test]
fn a_file_that_cannot_be_opened_leaves_the_old_one() {
    let mut scene = scene(Format::Text);
    let nowhere = Target::File(scene.path.join("under/a/file"));
    let error = scene.log.change(&nowhere, Format::Json, Level::Error).unwrap_err();
    assert!(error.to_string().contains("under/a/file"), "{error}");
    scene.log.write(at(0), entry("", "still here"));
    assert!(scene.text().ends_with("worker 3 (4711): still here\n"));
}

#[test]
fn nobody_waits_for_a_pipe_that_is_not_read() {
    let (mut reader, writer) = io::pipe().unwrap();
    check_full(&mut reader, OwnedFd::from(writer));
}

#[test]
fn nobody_waits_for_a_socket_that_is_not_read() {
    let (mut reader, writer) = UnixStream::pair().unwrap();
    check_full(&mut reader, OwnedFd::from(writer));
}

/// Fills the target, makes room, and checks that every line is whole and every loss is reported.
fn check_full(reader: &mut impl Read, writer: OwnedFd) {
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    let mut log = shared(&writer);
    let mut said = 0;
    while log.lost < 5 {
        said += 1;
        log.write(at(0), entry("", &format!("{said} {}", "x".repeat(1000))));
    }
    assert_eq!(rustix::fs::fcntl_getfl(&writer).unwrap(), flags, "others' writes still wait");
    let mut bytes = vec![0; 64 << 10];
    let mut text = Vec::new();
    // Reads enough to make room; the last line may be there in part.
    let len = reader.read(&mut bytes).unwrap();
    text.extend_from_slice(&bytes[..len]);
    let end = |log: &mut Log| {
        log.write(at(0), entry("", "the end"));
        log.lost == 0
    };
    while !end(&mut log) {
        let len = reader.read(&mut bytes).unwrap();
        text.extend_from_slice(&bytes[..len]);
    }
    drop((log, writer));
    reader.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // Room for a short line may be left when there is none for a long one.
    let (mut told, mut lost) = (0, 0);
    for line in &lines {
        let (_, text) = line.split_once("): ").expect("a line begins with its origin");
        match text.split_once(" lines were lost: the log's reader was too slow") {
            Some((count, _)) => lost += count.parse::<usize>().unwrap(),
            None if text == "the end" => assert!(std::ptr::eq(line, lines.last().unwrap())),
            None => {
                assert!(text.ends_with("xxx") && text.len() > 1000, "{text}");
                told += 1;
            }
        }
    }
    assert!(lost > 0 && told + lost >= said, "{told} + {lost} of {said}");
}

#[test]
fn a_full_disk_is_named_when_there_is_room_again() {
    let mut scene = scene(Format::Text);
    let full = Target::File(PathBuf::from("/dev/full"));
    scene.log.change(&full, Format::Text, Level::Notice).unwrap();
    for n in 0..3 {
        scene.log.write(at(n), entry("", "nobody reads this"));
    }
    let target = Target::File(scene.path.clone());
    scene.log.change(&target, Format::Text, Level::Notice).unwrap();
    scene.log.write(at(9), entry("", "after"));
    let text = scene.text();
    let why = "3 lines were lost: they could not be written: No space left on device";
    assert!(text.lines().next().is_some_and(|line| line.contains(why)), "{text}");
    assert!(text.ends_with("after\n") && text.lines().count() == 2, "{text}");
}

#[test]
fn words_cannot_end_a_line_or_fill_a_disk() {
    let mut scene = scene(Format::Text);
    scene.log.write(at(0), entry("", &format!("a\nb\u{1b}[2J{}", "\u{0}".repeat(100_000))));
    let text = scene.text();
    assert!(text.contains("a\\nb\\u{1b}[2J\\0") && text.lines().count() == 1);
    assert!(text.len() < 4096);
}

#[test]
fn days_have_their_dates() {
    let days = [
        (0, "1970-01-01T00:00:00.000000Z"),
        (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
        (951_868_800_000_001, "2000-03-01T00:00:00.000001Z"),
        (4_107_542_399_000_000, "2100-02-28T23:59:59.000000Z"),
        (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        (1_767_225_599_999_999, "2025-12-31T23:59:59.999999Z"),
    ];
    for (unix_us, text) in days {
        assert_eq!(render::timestamp(unix_us), text);
    }
}
