//! `quickack top`: the figures of a load, as text, as JSON and in a terminal.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::process::wait_until;

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
    let json = quickack.admin_ok(&["top", "--once", "--json", "--over", "start"]);
    let all: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!(json.lines().count(), 1, "{json}");
    let pool = &all["pools"][0];
    for kind in ["reads", "updates"] {
        assert_eq!(pool[kind]["count"], REQUESTS, "{json}");
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

/// `script` gives it a terminal.
#[test]
fn a_terminal_shows_the_figures_until_q_and_is_left_as_it_was() {
    let (_memcached, quickack) = harness::field(1, &[], &[]);
    let top = quickack.admin_command(&["top"]);
    let words = std::iter::once(top.get_program()).chain(top.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let line = format!("stty rows 30 cols 150; {}", words.join(" "));
    let mut script = Command::new("script");
    script.envs(top.get_envs().filter_map(|(name, value)| Some((name, value?))));
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script");
    let mut keys = script.stdin.take().expect("it is piped");
    keys.write_all(b"2pjq").expect("it reads keys");
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
