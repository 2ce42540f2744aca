//! `quickack top`: the figures of a load, as text, as JSON and in a terminal.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use testkit::process::{Quickack, free_address, wait_until};

use super::harness;

const REQUESTS: u64 = 300;

#[test]
fn the_figures_are_those_of_a_load_as_text_and_as_json() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    let mut client = quickack.client();
    for _ in 0..REQUESTS {
        client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
        client.ask("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
    }
    let mut json = String::new();
    let mut all = Value::Null;
    // A client may have its last answer before the worker has counted it.
    wait_until("each request is counted", || {
        json = quickack.admin_ok(&["top", "--once", "--json", "--over", "start"]);
        all = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        ["reads", "updates"].iter().all(|kind| all["pools"][0][kind]["count"] == REQUESTS)
    });
    assert_eq!(json.lines().count(), 1, "{json}");
    let pool = &all["pools"][0];
    for kind in ["reads", "updates"] {
        let (p50, max) = (&pool[kind]["p50_us"], &pool[kind]["max_us"]);
        assert!(p50.as_u64() > Some(0) && p50.as_u64() <= max.as_u64(), "{json}");
    }
    assert_eq!((&pool["clients"], &pool["servers"][0]["state"]), (&1.into(), &"up".into()));
    assert_eq!(all["workers"].as_array().map(Vec::len), Some(2));
    // A window ends at a whole second.
    let minute = || quickack.admin_ok(&["top", "--once", "--json", "--over", "1m"]);
    wait_until("the last minute has every request", || {
        let all: Value = serde_json::from_str(&minute()).expect("JSON");
        all["pools"][0]["reads"]["count"] == REQUESTS
    });
    let text = quickack.admin_ok(&["top", "--once", "--over", "5m"]);
    let line = |of: &str| text.lines().find(|line| line.contains(of)).map(str::to_string);
    assert!(
        text.starts_with("quickack ") && text.contains("2 of 2 workers serve 1 clients"),
        "{text}"
    );
    assert!(text.contains("[5m]") && !text.contains('\x1b'), "{text}");
    assert!(line("alpha/").is_some_and(|line| line.contains(" up ")), "{text}");
    assert!(
        line("updates").is_some_and(|line| line.ends_with("us") || line.ends_with("ms")),
        "{text}"
    );
}

/// Requests that fail are no part of the times of those that do not.
#[test]
fn what_goes_wrong_is_shown_with_its_reason_and_how_long_it_took() {
    let nobody = free_address();
    let quickack = harness::start(1, &[], &[nobody], &[]);
    let mut client = quickack.client();
    wait_until("requests are refused at once", || {
        client.send("get a\r\n");
        client.line() == format!("SERVER_ERROR {nobody}: down, waiting for it to come back")
    });
    let file = std::fs::read_to_string(quickack.file()).unwrap();
    std::fs::write(quickack.file(), format!("{file}  timeout: soon\n")).unwrap();
    assert!(!quickack.admin(&["reload"]).ok);
    let all = quickack.admin_ok(&["top", "--once", "--json", "--over", "start"]);
    let all: Value = serde_json::from_str(&all).expect("JSON");
    let pool = &all["pools"][0];
    assert_eq!(
        (&pool["reads"]["count"], &pool["failed"]["count"]),
        (&0.into(), &pool["failed_total"])
    );
    let named = |name: &str| {
        let all = all["troubles"].as_array().expect("a list").iter();
        all.filter(|one| one["name"] == name).map(|one| one["of"].clone()).collect::<Vec<_>>()
    };
    let place = Value::from(format!("alpha/{nobody}"));
    assert_eq!(named("refused_down_total"), std::slice::from_ref(&place));
    assert_eq!(named("connect_failed_total"), [place]);
    let text = quickack.admin_ok(&["top", "--once"]);
    assert!(text.contains("ago, was refused: "), "{text}");
    assert!(text.contains("Requests refused at once because the server was down"), "{text}");
}

/// Starts it with a terminal of this size, which `script` gives it.
fn in_terminal(quickack: &Quickack, size: &str) -> Child {
    let top = quickack.admin_command(&["top"]);
    let words = std::iter::once(top.get_program()).chain(top.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let line = format!("stty {size}; {}", words.join(" "));
    // It ends by itself if it is not ended by its keys.
    let mut script = Command::new("timeout");
    script.args(["--foreground", "--kill-after=5", "40", "script"]);
    script.envs(top.get_envs().filter_map(|(name, value)| Some((name, value?))));
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script")
}

#[test]
fn a_terminal_shows_the_figures_until_q_and_is_left_as_it_was() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let mut script = in_terminal(&quickack, "rows 30 cols 150");
    let mut keys = script.stdin.take().expect("it is piped");
    keys.write_all(b"2pjllhq").expect("it reads keys");
    let output = script.wait_with_output().expect("it ends by q");
    let screen = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{screen}");
    let [enter, leave] = ["\x1b[?1049h", "\x1b[?1049l"].map(|code| screen.find(code));
    assert!(enter.is_some() && enter < leave, "the screen comes back: {screen}");
    assert!(screen.contains("quickack") && screen.contains("workers serve"), "{screen}");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let answer = quickack.admin(&["top"]);
    assert!(!answer.ok && answer.text.contains("--once prints the figures"), "{}", answer.text);
}
