//! Lines of the access log, on a clock of the test's own.

use crate::stage::*;
use proxy::access::{AccessLine, Outcome};
use proxy::plan::SlowKeys;
use proxy::{Closed, ConnId};

fn logging(one_in: u32) -> (Stage, ConnId) {
    let mut stage = Stage::new(&["s0"], |pool| {
        (pool.preconnect, pool.access_one_in, pool.slow.keys) = (true, one_in, SlowKeys::Full);
    });
    let link = stage.connect(0);
    (stage, link)
}

/// Returns the command, key and outcome of each line, and its bytes in and out.
fn told(lines: &[AccessLine]) -> Vec<(String, Outcome, u64, u64)> {
    let of = |line: &AccessLine| {
        let key = String::from_utf8_lossy(&line.entry.key);
        let text = format!("{} {key}", line.entry.command);
        (text.trim_end().to_string(), line.outcome, line.received, line.sent)
    };
    lines.iter().map(of).collect()
}

fn row(text: &str, outcome: Outcome, received: u64, sent: u64) -> (String, Outcome, u64, u64) {
    (text.to_string(), outcome, received, sent)
}

#[test]
fn each_request_has_a_line_with_its_bytes_and_what_came_of_it() {
    let (mut stage, link) = logging(1);
    let client = stage.client();
    stage.says(client, "get a\r\nget b c\r\nset d 0 0 1\r\nX\r\nversion\r\nnonsense\r\n");
    stage.turn(link);
    stage.says(link, "VALUE a 0 2\r\nAA\r\nVALUE c 0 1\r\nC\r\nEND\r\nSTORED\r\n");
    stage.turn(link);
    let answer = stage.received(client);
    let lines = told(&stage.access);
    assert_eq!(lines[0], row("get a", Outcome::Hit, 7, 22), "{answer}");
    assert_eq!(lines[1], row("get b", Outcome::Partial, 9, 21));
    assert_eq!(lines[2], row("set d", Outcome::Ok, 16, 8));
    assert_eq!((&*lines[3].0, lines[3].1), ("version", Outcome::Ok));
    assert_eq!((&*lines[4].0, lines[4].1), ("", Outcome::Error), "no command is known");
    assert_eq!(lines.iter().map(|line| line.3).sum::<u64>(), answer.len() as u64);
    assert_eq!(lines.len(), 5);
}

#[test]
fn a_line_has_the_phases_and_a_miss_and_an_error_are_told() {
    let (mut stage, link) = logging(1);
    let client = stage.client();
    stage.says(client, "get ");
    stage.passes(10);
    stage.says(client, "x\r\n");
    stage.passes(100);
    stage.turn(link);
    stage.passes(1_000);
    stage.says(link, "END\r\n");
    stage.passes(2_000);
    stage.received(client);
    let [line] = &stage.access[..] else { panic!("{:?}", stage.access) };
    assert_eq!((line.entry.phases, line.outcome), ([10, 100, 1_000, 2_000], Outcome::Miss));
    stage.says(client, "set y 0 0 1\r\nY\r\n");
    stage.turn(link);
    stage.closes(link, Closed::Reset);
    stage.end_turn();
    stage.received(client);
    let last = stage.access.last().expect("a second line");
    assert!(stage.access.len() == 2 && last.outcome == Outcome::Error, "{last:?}");
}

#[test]
fn one_in_so_many_has_a_line_and_the_number_changes_at_once() {
    let (mut stage, _) = logging(4);
    let client = stage.client();
    let lines = |stage: &mut Stage, count: usize| {
        stage.says(client, &"version\r\n".repeat(count));
        stage.received(client);
        std::mem::take(&mut stage.access).len()
    };
    assert_eq!(lines(&mut stage, 40), 10);
    stage.install(|plan| plan.pools[0].access_one_in = 0);
    assert_eq!(lines(&mut stage, 40), 0);
    stage.install(|plan| plan.pools[0].access_one_in = 1);
    assert_eq!(lines(&mut stage, 3), 3);
}

/// The bytes before the log was turned on belong to no line.
#[test]
fn a_log_that_is_turned_on_begins_with_the_next_answer() {
    let (mut stage, _) = logging(0);
    let client = stage.client();
    stage.says(client, "version\r\nversion\r\n");
    stage.received(client);
    stage.install(|plan| plan.pools[0].access_one_in = 1);
    stage.says(client, "version\r\n");
    let answer = stage.received(client);
    assert_eq!(stage.access[0].sent, answer.len() as u64);
}

#[test]
fn keys_are_as_secret_as_the_operator_wants() {
    for (keys, text, has_hash) in
        [(SlowKeys::Full, "secret", false), (SlowKeys::Hash, "", true), (SlowKeys::None, "", false)]
    {
        let (mut stage, link) = logging(1);
        stage.install(|plan| plan.pools[0].slow.keys = keys);
        let client = stage.client();
        stage.says(client, "get secret\r\n");
        stage.turn(link);
        stage.says(link, "END\r\n");
        stage.received(client);
        let entry = &stage.access[0].entry;
        assert_eq!((&entry.key[..], entry.key_hash != 0), (text.as_bytes(), has_hash));
        assert_eq!(entry.key_len, 6);
    }
}

/// Two servers, of which the first has just answered its key.
struct Setting {
    stage: Stage,
    client: ConnId,
    keys: [String; 2],
    links: Vec<ConnId>,
}

fn first_answered(second_is_up: bool) -> Setting {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        (pool.preconnect, pool.distribution) = (true, shard::Distribution::Modula);
        (pool.access_one_in, pool.slow.after, pool.timeouts.reply) = (1, 1_000, 300_000);
    });
    let links: Vec<ConnId> =
        (0..1 + usize::from(second_is_up)).map(|server| stage.connect(server)).collect();
    let client = stage.client();
    let keys = [0, 1].map(|server| stage.key_of(server));
    stage.says(client, &format!("get {}\r\n", keys[0]));
    stage.turn(links[0]);
    stage.says(links[0], "END\r\n");
    assert_eq!(stage.received(client), "END\r\n");
    assert_eq!(stage.access[0].entry.server, S0);
    Setting { stage, client, keys, links }
}

#[test]
fn the_logs_name_the_server_that_did_not_reply_and_not_the_one_that_replied_last() {
    let Setting { mut stage, client, keys, links } = first_answered(true);
    stage.says(client, &format!("get {}\r\n", keys[1]));
    stage.turn(links[1]);
    stage.passes(300_000);
    assert!(stage.received(client).contains("s1: no reply in time"));
    let [_, line] = &stage.access[..] else { panic!("{:?}", stage.access) };
    assert_eq!((line.entry.server, line.outcome), (S0 + 1, Outcome::Error));
    let [slow] = &stage.slow[..] else { panic!("{:?}", stage.slow) };
    assert_eq!(slow.server, S0 + 1);
}

#[test]
fn the_logs_name_the_server_that_failed_though_another_answered_a_part_after_it() {
    let Setting { mut stage, client, keys: [one, other], links } = first_answered(true);
    stage.says(client, &format!("get {other} {one}\r\n"));
    stage.turn(links[1]);
    stage.received(links[0]);
    stage.passes(200_000);
    stage.says(links[0], "VALUE");
    stage.passes(100_000);
    stage.says(links[0], &format!(" {one} 0 1\r\nX\r\nEND\r\n"));
    assert!(stage.received(client).contains("s1: no reply in time"));
    assert_eq!(stage.access.last().expect("a second line").entry.server, S0 + 1);
}

#[test]
fn the_access_log_names_a_server_that_nothing_was_sent_to() {
    let Setting { mut stage, client, keys: [_, key], .. } = first_answered(false);
    stage.says(client, &format!("set {key} 0 0 1\r\nX\r\n"));
    let (link, _) = stage.connects.remove(0);
    stage.closes(link, Closed::Unmade(111));
    stage.end_turn();
    assert!(stage.received(client).contains("s1: "));
    let line = stage.access.last().expect("a second line");
    assert_eq!((line.entry.server, line.outcome), (S0 + 1, Outcome::Error));
    stage.says(client, &format!("set {key} 0 0 1\r\nX\r\n"));
    let answer = stage.received(client);
    assert!(answer.contains("s1: "), "{answer}");
    assert_eq!(stage.access.last().expect("a third line").entry.server, S0 + 1, "it is down");
    stage.says(client, "version\r\nnonsense\r\n");
    stage.received(client);
    let local = stage.access[3..].iter().map(|line| line.entry.server);
    assert_eq!(local.collect::<Vec<u32>>(), [0, 0]);
}

#[test]
fn a_command_that_a_redis_pool_does_not_know_has_no_name() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = proto::protocol("redis").expect("the table has it");
        pool.access_one_in = 1;
    });
    let client = stage.client();
    stage.says(client, "frobnicate x\r\nconfig frobnicate\r\nget\r\n");
    assert_eq!(stage.received(client).matches("-ERR ").count(), 3);
    let named: Vec<&str> = stage.access.iter().map(|line| &*line.entry.command).collect();
    assert_eq!(named, ["", "config", "get"]);
}

/// In its place the removal of its key is sent, in which that stands elsewhere.
#[test]
fn a_value_that_is_refused_is_told_of_by_its_own_key() {
    let (mut stage, link) = logging(1);
    stage.install(|plan| plan.pools[0].item_size_max = 10);
    let client = stage.client();
    stage.says(client, "set first 0 0 20\r\n01234567890123456789\r\n");
    assert_eq!(stage.turn(link), "delete first\r\n");
    stage.says(link, "DELETED\r\n");
    stage.received(client);
    assert_eq!(told(&stage.access)[0].0, "set first");
}
