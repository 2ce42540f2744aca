//! Large requests of Redis clients: what one of them may take, and what becomes of one that is
//! refused.

use std::rc::Rc;

use proto::protocol;
use proxy::limits::BLOCK;
use proxy::users::Users;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::Stage;

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
/// The largest argument. Those of less than 4 KiB are not compared with it.
const MOST: usize = 10_000;

fn resp(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| text.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    text
}

/// A pool of Redis servers that are up, with one client.
fn redis(servers: &[&str], memory: usize) -> (Stage, Vec<ConnId>, ConnId) {
    let mut stage = Stage::of(servers, |plan| {
        plan.memory_max = memory;
        let pool = &mut plan.pools[0];
        (pool.item_size_max, pool.preconnect) = (MOST, true);
        pool.distribution = Distribution::Modula;
        pool.protocol = protocol("redis").expect("the table has it");
    });
    let mut links = Vec::new();
    for _ in servers {
        let link = stage.establishes_with(HELLO);
        stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
        links.push(link);
    }
    let client = stage.client();
    (stage, links, client)
}

/// Sends in pieces of this length; returns what a link has received.
#[track_caller]
fn sends(stage: &mut Stage, client: ConnId, text: &str, piece: usize, link: ConnId) -> String {
    for piece in text.as_bytes().chunks(piece) {
        stage.says_bytes(client, piece);
    }
    let mut sent = stage.turn(link);
    while stage.wants_turn() {
        sent += &stage.turn(link);
    }
    sent
}

/// Ends the turn; returns what a server then receives, and answers it.
fn serve(stage: &mut Stage, link: ConnId) -> String {
    let sent = stage.turn(link);
    for word in sent.split("\r\n").filter(|word| ["SET", "mset", "rpush"].contains(word)) {
        stage.says(link, if word == "rpush" { ":20\r\n" } else { "+OK\r\n" });
    }
    sent
}

const TOO_LARGE: &str = "-ERR the request is too large: an argument may have item_size_max \
    bytes, a request 4194304 arguments and 2 GB, and one to subscribe 1 MB\r\n";

#[test]
fn an_argument_too_large_is_refused_and_the_next_request_is_answered() {
    let (large, fits) = ("x".repeat(MOST + 1), "y".repeat(MOST));
    for words in [
        ["set", "k", &large, "EX", "100"],
        ["mset", "k", &fits, "l", &large],
        ["mset", "k", &large, &large, &large],
        ["rpush", &large, "a", "b", "c"],
        ["eval", "return 1", "1", "k", &large],
    ] {
        let text = "GET a\r\n".to_string() + &resp(&words) + &resp(&["get", "b"]);
        for piece in [1000, 4097, 9_999, 20_011, 1 << 20] {
            let (mut stage, links, client) = redis(&["s0"], 1 << 20);
            let sent = sends(&mut stage, client, &text, piece, links[0]);
            let expected = resp(&["GET", "a"]) + &resp(&["get", "b"]);
            assert_eq!(sent, expected, "{} in pieces of {piece}", words[0]);
            stage.says(links[0], "$1\r\n1\r\n$1\r\n2\r\n");
            let told = format!("$1\r\n1\r\n{TOO_LARGE}$1\r\n2\r\n");
            assert_eq!(stage.received(client), told, "{} in pieces of {piece}", words[0]);
            assert_eq!((&stage.closed, stage.memory()), (&vec![], 0));
            stage.expect_rows(0);
        }
    }
}

/// Nothing of it is executed: the rest without it is not what its client wanted.
#[test]
fn an_argument_too_large_spoils_its_transaction_in_whatever_pieces_it_comes() {
    let large = "x".repeat(MOST + 1);
    let requests =
        [&["MULTI"][..], &["SET", "a", &large], &["SET", "b", "1"], &["EXEC"], &["PING"]];
    let text: String = requests.iter().map(|words| resp(words)).collect();
    for piece in [1000, 4097, 9_999, 20_011, 1 << 20] {
        let (mut stage, links, client) = redis(&["s0"], 1 << 20);
        assert_eq!(sends(&mut stage, client, &text, piece, links[0]), "", "in pieces of {piece}");
        let aborted = "-EXECABORT Transaction discarded because of previous errors. The first: ";
        let expected =
            format!("+OK\r\n{TOO_LARGE}+QUEUED\r\n{aborted}{}+PONG\r\n", &TOO_LARGE[1..]);
        assert_eq!(stage.received(client), expected, "in pieces of {piece}");
        assert_eq!((&stage.closed, stage.memory()), (&vec![], 0));
    }
}

/// All of it is refused as soon as the line before the argument has come.
#[test]
fn a_request_that_is_refused_takes_no_memory() {
    let (mut stage, links, client) = redis(&["s0"], 1 << 20);
    stage.says(client, "*9\r\n$4\r\nmset\r\n$1\r\nk\r\n$400000000\r\nabc");
    assert_eq!((stage.received(client).as_str(), stage.memory()), (TOO_LARGE, 0));
    // It may leave in the middle of that.
    stage.closes(client, Closed::Eof);
    assert_eq!((stage.turn(links[0]).as_str(), &stage.closed), ("", &vec![client]));
}

#[test]
fn a_refused_request_that_goes_on_wrongly_closes_its_client() {
    let large = "x".repeat(MOST + 1);
    for (end, told) in [
        ("$1\r\nab\r\n", "-ERR Protocol error: expected CR LF\r\n"),
        ("$1\r\na\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
        ("+1\r\n", "-ERR Protocol error: expected '$', got '+'\r\n"),
        ("$-1\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
    ] {
        let (mut stage, links, client) = redis(&["s0"], 1 << 20);
        stage.says(client, &format!("*5\r\n$4\r\nmset\r\n$1\r\nk\r\n${}\r\n", large.len()));
        stage.says(client, &format!("{large}\r\n{end}"));
        assert_eq!(stage.received(client), format!("{TOO_LARGE}{told}"), "{end}");
        assert_eq!((stage.turn(links[0]), &stage.closed), (String::new(), &vec![client]));
    }
}

/// The answer to it is unwanted, as that to any other request.
#[test]
fn a_refused_request_of_a_client_that_wants_no_answers_is_silent() {
    let (mut stage, links, client) = redis(&["s0"], 1 << 20);
    let large = "x".repeat(MOST + 1);
    for piece in [5000, 1 << 20] {
        let text = "CLIENT REPLY SKIP\r\n".to_string() + &resp(&["set", "k", &large, "NX"]);
        let sent = sends(&mut stage, client, &(text + "PING\r\n"), piece, links[0]);
        assert_eq!((sent.as_str(), stage.received(client).as_str()), ("", "+PONG\r\n"), "{piece}");
    }
}

const NO_MEMORY: &str = "-ERR out of memory storing object\r\n";

/// A part of a request takes memory as it comes: who announces much keeps none. Where there is none
/// for more, the request is refused, and the client stays connected.
#[test]
fn a_request_takes_memory_as_it_comes() {
    let (mut stage, links, client) = redis(&["s0"], 40_000);
    let others = [stage.client(), stage.client(), stage.client()];
    let begin = "*6\r\n$4\r\nmset\r\n$1\r\nk\r\n$30000\r\nabc";
    stage.install(|plan| plan.pools[0].item_size_max = 1 << 20);
    for (nth, other) in others.into_iter().enumerate() {
        stage.says(other, begin);
        let held = (nth + 1) * begin.len();
        assert_eq!((stage.memory(), stage.received(other)), (held, String::new()));
    }
    let value = "v".repeat(17_000);
    let text = resp(&["set", "k", &value, "EX", "1"]) + &resp(&["get", "b"]);
    // Lengths that are announced keep nobody's memory; but a request that can never fit is refused.
    let hopeless = stage.client();
    stage.says(hopeless, &begin.replace("30000", "50000"));
    assert_eq!(stage.received(hopeless), NO_MEMORY);
    let sent = sends(&mut stage, client, &text, 3000, links[0]);
    assert_eq!(sent, text);
    stage.says(links[0], "+OK\r\n$-1\r\n");
    assert_eq!(stage.received(client), "+OK\r\n$-1\r\n");
    for other in others {
        stage.says(other, &"v".repeat(10_000));
    }
    assert_eq!(sends(&mut stage, client, &text, 3000, links[0]), resp(&["get", "b"]));
    assert_eq!(stage.received(client), NO_MEMORY);
    stage.says(links[0], "$-1\r\n");
    assert_eq!((stage.received(client).as_str(), &stage.closed), ("$-1\r\n", &vec![]));
    // One that is short is never refused for that.
    stage.says(client, &resp(&["set", "k", "v", "EX", "1"])[..20]);
    assert_eq!(stage.received(client), "");
    stage.closes(others[0], Closed::Reset);
    stage.closes(others[1], Closed::Reset);
    stage.says(client, &resp(&["set", "k", "v", "EX", "1"])[20..]);
    let sent = sends(&mut stage, client, &text, 3000, links[0]);
    assert_eq!(sent, resp(&["set", "k", "v", "EX", "1"]) + &text);
}

/// Its head is larger than any that is refused where the end of a request is not known.
#[test]
fn a_request_has_as_much_as_there_is_memory() {
    let value = "v".repeat(MOST);
    let mut words = vec!["rpush", "k"];
    words.extend(std::iter::repeat_n(value.as_str(), 60));
    let text = resp(&words);
    for (memory, is_told) in [(1_000_000, true), (500_000, false)] {
        let (mut stage, links, client) = redis(&["s0"], memory);
        stage.install(|plan| plan.limits.request_head = 20_000);
        let sent = sends(&mut stage, client, &text, BLOCK, links[0]);
        assert!(sent == if is_told { text.as_str() } else { "" }, "{} bytes", sent.len());
        match is_told {
            true => stage.says(links[0], ":60\r\n"),
            false => stage.says(client, "PING\r\n"),
        }
        let told =
            if is_told { ":60\r\n" } else { "-ERR out of memory storing object\r\n+PONG\r\n" };
        assert_eq!(stage.received(client).as_str(), told);
        stage.end_turn();
        assert_eq!(stage.memory(), 0);
    }
}

/// The pieces that come do not fill their blocks, and there is no room for what else these hold.
#[test]
fn a_value_of_nearly_all_memory_is_stored_in_whatever_pieces_it_comes() {
    let text = resp(&["set", "k", &"v".repeat(15 << 18)]);
    for piece in [1_000, 45_000, 59_000, BLOCK] {
        let (mut stage, links, client) = redis(&["s0"], 4 << 20);
        stage.install(|plan| {
            plan.pools[0].item_size_max = 4 << 20;
            plan.limits.large_min = u64::MAX;
        });
        let sent = sends(&mut stage, client, &text, piece, links[0]);
        let told = stage.received(client);
        assert!(sent == text, "{} bytes in pieces of {piece}: {told:?}", sent.len());
        stage.says(links[0], "+OK\r\n");
        assert_eq!(stage.received(client), "+OK\r\n");
        stage.end_turn();
        assert_eq!(stage.memory(), 0);
    }
}

/// As long as it is short, it waits for more, as at a server.
#[test]
fn a_request_of_too_many_arguments_is_refused() {
    for (count, is_refused) in [(4_194_304, false), (4_200_000, true), (i32::MAX, true)] {
        let (mut stage, _, client) = redis(&["s0"], 1 << 30);
        stage.says(client, &format!("*{count}\r\n$4\r\nmget\r\n"));
        assert_eq!(stage.received(client), "", "{count}");
        stage.says(client, &"$1\r\na\r\n".repeat(3000));
        let told = if is_refused { TOO_LARGE } else { "" };
        assert_eq!((stage.received(client).as_str(), &stage.closed), (told, &vec![]), "{count}");
    }
}

/// A large request and those around it reach their servers unchanged, whether the large one passes
/// by reference or is split, and its memory is given back.
#[test]
fn a_large_request_in_a_pipeline_reaches_its_servers_unchanged() {
    let value: String = (0..9_000).map(|nth| (b'a' + (nth % 23) as u8) as char).collect();
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut mset = vec!["mset"];
    keys.iter().for_each(|key| mset.extend([key, value.as_str()]));
    let mut rpush = vec!["rpush", "k"];
    rpush.extend(std::iter::repeat_n(value.as_str(), 20));
    for (servers, words) in
        [(&["s0"][..], &rpush), (&["s0"], &mset), (&["s0", "s1"], &rpush), (&["s0", "s1"], &mset)]
    {
        for piece in [30_000, BLOCK, 1 << 20] {
            let (mut stage, links, client) = redis(servers, 1 << 20);
            let text = "SET a 1\r\n".to_string() + &resp(words) + "SET a 2\r\nSET b 3\r\n";
            for piece in text.as_bytes().chunks(piece) {
                stage.says_bytes(client, piece);
            }
            // A request behind a large one waits until that is answered.
            let mut all = String::new();
            while let sent = links.iter().map(|link| serve(&mut stage, *link)).collect::<String>()
                && !sent.is_empty()
            {
                all += &sent;
            }
            let is_split = servers.len() > 1 && words[0] == "mset";
            assert!(all.contains(&resp(words)) != is_split, "{} in {piece}", words[0]);
            assert_eq!(all.matches(&value).count(), resp(words).matches(&value).count());
            let told = if words[0] == "mset" { "+OK\r\n" } else { ":20\r\n" };
            let told = ["+OK\r\n", told, "+OK\r\n+OK\r\n"].concat();
            assert_eq!(stage.received(client), told, "in pieces of {piece}");
            assert_eq!(stage.memory(), 0);
            stage.expect_rows(0);
        }
    }
}

/// A block that is being sent is held until all of it is sent.
#[test]
fn what_is_held_of_a_large_request_is_accounted_until_it_is_sent() {
    let (mut stage, links, client) = redis(&["s0"], 1 << 20);
    let value = "v".repeat(MOST);
    let mut words = vec!["rpush", "k"];
    words.extend(std::iter::repeat_n(value.as_str(), 20));
    let text = resp(&words);
    for piece in text.as_bytes().chunks(BLOCK) {
        stage.says_bytes(client, piece);
    }
    stage.end_turn();
    assert_eq!(stage.memory(), text.len());
    stage.received_some(links[0], 150_000);
    assert_eq!(stage.memory(), text.len());
    stage.received_some(links[0], text.len());
    assert!(stage.wants_turn());
    stage.end_turn();
    assert_eq!(stage.memory(), 0);
}

/// Its large values are not copied, and their block is held until the last of them is sent, on
/// whatever link.
#[test]
fn a_large_request_that_is_split_is_held_once_until_all_of_it_is_sent() {
    let value = "v".repeat(9_000);
    let memory = 300_000;
    let (mut stage, links, client) = redis(&["s0", "s1"], memory);
    let names: Vec<String> = (0..20).map(|nth| format!("key{nth}")).collect();
    let mut words = vec!["mset"];
    names.iter().for_each(|name| words.extend([name.as_str(), value.as_str()]));
    let text = resp(&words);
    assert!(text.len() > memory / 2, "a copy of it is more than the room");
    for piece in text.as_bytes().chunks(BLOCK) {
        stage.says_bytes(client, piece);
    }
    stage.end_turn();
    let is_about = |held: usize| (text.len()..text.len() + 10_000).contains(&held);
    assert!(is_about(stage.memory()), "{}", stage.memory());
    let mut values = 0;
    for (nth, link) in links.into_iter().enumerate() {
        let mut sent = stage.turn(link);
        while !sent.is_empty() {
            values += sent.matches(&value).count();
            for _ in sent.matches("$4\r\nmset\r\n") {
                stage.says(link, "+OK\r\n");
            }
            sent = stage.turn(link);
        }
        let held = stage.memory();
        assert!(if nth == 0 { is_about(held) } else { held < 10 }, "{held} after {nth}");
    }
    assert_eq!((values, stage.received(client).as_str()), (20, "+OK\r\n"));
    assert_eq!(stage.memory(), 0);
    stage.expect_rows(0);
}

/// Before the login a client has a small bound.
#[test]
fn a_client_that_has_not_logged_in_takes_no_memory_in_advance() {
    let (mut stage, _, _) = redis(&["s0"], 1 << 20);
    stage.install(|plan| {
        plan.pools[0].users = Users::new([("anna", "sesame")]).map(Rc::new);
    });
    let client = stage.client();
    stage.says(client, "*3\r\n$4\r\nAUTH\r\n$500000\r\nabc");
    assert!(stage.memory() < 100, "{}", stage.memory());
    stage.says(client, &"x".repeat(40_000));
    assert!(stage.received(client).starts_with("-NOAUTH"), "as it was");
    assert_eq!(stage.closed, [client]);
}

/// Its messages are kept beside the bytes that are sent, until they are answered.
#[test]
fn a_request_that_is_split_has_room_for_its_copies() {
    let value = "x".repeat(9_000);
    for (memory, answer) in
        [(60_000, "+OK\r\n"), (50_000, "-ERR out of memory for so many keys\r\n")]
    {
        let (mut stage, links, client) = redis(&["s0", "s1"], memory);
        let (one, two) = (stage.key_of(0), stage.key_of(1));
        for piece in resp(&["MSET", &one, &value, &two, &value]).as_bytes().chunks(5_000) {
            stage.says_bytes(client, piece);
        }
        for link in links {
            if !stage.turn(link).is_empty() {
                assert!(stage.memory() <= memory);
                stage.says(link, "+OK\r\n");
            }
        }
        assert_eq!((stage.received(client).as_str(), stage.memory()), (answer, 0), "{memory}");
    }
}

/// Its request was there all the time, and was not read.
#[test]
fn a_client_that_was_held_back_is_not_closed_where_memory_is_short() {
    let (mut stage, links, client) = redis(&["s0"], 100_000);
    stage.install(|plan| plan.pools[0].allow = vec!["client|pause".to_string()]);
    let pauses = stage.client();
    stage.says(pauses, "CLIENT PAUSE 15000\r\n");
    assert_eq!(stage.received(pauses), "+OK\r\n");
    let value = "v".repeat(MOST);
    let text = resp(&[["rpush", "k"].as_slice(), &[value.as_str(); 7]].concat());
    stage.says(client, &text[..65_000]);
    stage.waits(15_100_000);
    stage.end_turn();
    stage.passes(9_000_000);
    stage.end_turn();
    assert_eq!(stage.closed, [], "it may go on now");
    assert_eq!(sends(&mut stage, client, &text[65_000..], BLOCK, links[0]), text);
    // Here it could have gone on.
    stage.says(links[0], ":7\r\n");
    assert_eq!(stage.received(client), ":7\r\n");
    stage.says(client, &text[..65_000]);
    stage.passes(10_000_000);
    stage.end_turn();
    assert_eq!(stage.closed, [client]);
}

/// Queued commands take memory, as a request does that has come in part.
#[test]
fn a_transaction_that_is_not_ended_is_closed_where_memory_is_short() {
    let (mut stage, _, client) = redis(&["s0"], 100_000);
    let value = "v".repeat(5_000);
    stage.says(client, "MULTI\r\n");
    for _ in 0..12 {
        stage.says(client, &resp(&["set", "k", &value]));
    }
    assert_eq!(stage.received(client), "+OK\r\n".to_string() + &"+QUEUED\r\n".repeat(12));
    stage.passes(9_000_000);
    stage.end_turn();
    assert_eq!(stage.closed, []);
    stage.passes(1_000_000);
    stage.end_turn();
    assert_eq!((&stage.closed, stage.memory()), (&vec![client], 0));
}

/// A client that asks once more is refused at the same place.
#[test]
fn what_can_never_fit_is_refused_when_its_length_comes_each_time() {
    let (mut stage, links, client) = redis(&["s0"], 50_000);
    stage.install(|plan| plan.pools[0].item_size_max = 1 << 20);
    let value = "v".repeat(20_000);
    let text = resp(&["mset", "a", &value, "b", &value, "c", &value]);
    let third = text.rfind(&value).expect("it has three");
    for _ in 0..3 {
        stage.says(client, &text[..third]);
        assert_eq!((stage.received(client).as_str(), stage.memory()), (NO_MEMORY, 0));
        stage.says(client, &text[third..]);
        // One that fits, behind it.
        let set = resp(&["set", "k", &value, "EX", "1"]);
        assert_eq!(sends(&mut stage, client, &set, BLOCK, links[0]), set);
        stage.says(links[0], "+OK\r\n");
        assert_eq!(stage.received(client), "+OK\r\n");
    }
}
