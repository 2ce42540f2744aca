//! Odd requests, word for word: Redis 7.0's answers as recorded, its answers today, and the answers
//! through the proxy. The rows are those of `crates/proto`, where they test the parser; here they
//! test whole programs.
//!
//! After each whole request the same connection sends an echo. Its reply shows where the answer
//! ends, and that both sides agree on the start of the next request.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;

use proto::{Answer, Asked, Class, Local, Parsed, Protocol, Refusal, Resume};
use testkit::process::{Client, Family, Redis};

use super::super::words;
use super::quickack;

const NEXT: &[u8] = b"*2\r\n$4\r\nECHO\r\n$4\r\nnext\r\n";
const NEXT_ANSWER: &[u8] = b"$4\r\nnext\r\n";

/// An odd request and its answer.
struct Row {
    /// Line of the file, for messages.
    line: usize,
    request: Vec<u8>,
    /// Redis's answer, and whether it closed; None if the proxy answers differently.
    recorded: Option<(Vec<u8>, bool)>,
    /// It ends in the middle of a request.
    is_half: bool,
    /// The proxy's answer differs from the server's, for a reason.
    differs: bool,
}

#[test]
fn odd_requests_are_answered_by_redis_as_was_recorded() {
    let redis = Redis::start(Family::Redis70);
    for row in rows() {
        redis.client().ask("FLUSHALL\r\n", "+OK\r\n");
        // Servers ignore the bytes after an argument, and a line with a NUL. Nothing can be sent
        // after rows that leave them waiting.
        if let Some(recorded) = &row.recorded {
            let is_heard = !recorded.0.is_empty() || recorded.1;
            check(redis.client(), &row, recorded, is_heard && !row.is_half);
        }
    }
}

#[test]
fn odd_requests_get_the_same_words_before_redis_or_better_ones() {
    let redis = Redis::start(Family::Redis70);
    let quickack = quickack(&[redis.address], &[]);
    for row in rows() {
        redis.client().ask("FLUSHALL\r\n", "+OK\r\n");
        let expected = match &row.recorded {
            Some(recorded) if !row.differs => recorded.clone(),
            _ => ours(&row.request),
        };
        check(quickack.client(), &row, &expected, !row.is_half);
    }
}

/// Sends the row's request, and expects exactly its answer; `goes_on` means that another request
/// can follow.
fn check(mut client: Client, row: &Row, (said, closes): &(Vec<u8>, bool), goes_on: bool) {
    let sent = row.request.escape_ascii().to_string();
    let shown = format!("words.txt:{}: {}", row.line, &sent[..sent.len().min(100)]);
    client.send(&row.request);
    let mut whole = said.clone();
    if !closes {
        if goes_on {
            client.send(NEXT);
            whole.extend_from_slice(NEXT_ANSWER);
        }
        client.stream.shutdown(Shutdown::Write).expect("nobody has closed it");
    }
    let mut heard = Vec::new();
    match client.stream.read_to_end(&mut heard) {
        Ok(_) => {}
        // A peer that closes with unread input resets the connection; its answer arrives before
        // that.
        Err(error) if *closes && error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{shown}: {error} after {:?}", String::from_utf8_lossy(&heard)),
    }
    assert_eq!(heard.escape_ascii().to_string(), whole.escape_ascii().to_string(), "{shown}");
}

/// Returns the protocol's own answers to these requests, all of which it refuses.
fn ours(stream: &[u8]) -> (Vec<u8>, bool) {
    let redis = proto::protocol("redis").expect("a protocol");
    let (mut said, mut keys, mut rest) = (Vec::new(), Vec::new(), stream);
    loop {
        match redis.parse_request(rest, &mut Resume::default(), &mut keys) {
            Parsed::Incomplete => return (said, false),
            Parsed::Malformed("") => return (said, true),
            Parsed::Malformed(why) => {
                refuse(
                    redis,
                    &Asked { head: rest, ..Asked::no_request() },
                    Refusal::Bad(why),
                    &mut said,
                );
                return (said, true);
            }
            Parsed::Complete(request) => {
                let why = match request.class {
                    Class::Refuse(why) => why,
                    Class::Local(Local::Clients | Local::Monitor) => {
                        Refusal::NotAllowed(redis.commands()[usize::from(request.command)].name)
                    }
                    _ => panic!("{request:?}"),
                };
                let (head, after) = rest.split_at(request.head as usize);
                let asked = Asked { command: request.command, head, ..Asked::no_request() };
                refuse(redis, &asked, why, &mut said);
                rest = after;
            }
        }
    }
}

fn refuse(protocol: &dyn Protocol, asked: &Asked<'_>, why: Refusal, out: &mut Vec<u8>) {
    protocol.answer(asked, &Answer::Refused(why), out);
}

/// Returns the rows; `crates/proto/tests/transcript/mod.rs` describes their format.
fn rows() -> Vec<Row> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/testdata/redis/words.txt");
    let text = std::fs::read_to_string(file).expect("the recording is there");
    let mut rows: Vec<Row> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let (sign, rest) = (line.get(..1).unwrap_or("#"), line.get(2..).unwrap_or(""));
        match (sign, rows.last_mut()) {
            (">", _) => rows.push(Row {
                line: at + 1,
                request: words::bytes(rest),
                recorded: None,
                is_half: false,
                differs: false,
            }),
            ("<", Some(row)) => {
                let said = words::bytes(rest.trim_end_matches("[close]").trim_end_matches(' '));
                row.recorded = Some((said, rest.ends_with("[close]")));
            }
            ("=", Some(row)) => row.is_half = rest.ends_with("incomplete"),
            ("!", Some(row)) => row.differs = true,
            ("#", _) => {}
            _ => panic!("words.txt:{}: what is this line?", at + 1),
        }
    }
    assert!(rows.len() > 150, "{} rows", rows.len());
    rows
}
