//! Odd requests, word for word: memcached's answers as recorded, its answers today, and the answers
//! through the proxy. The rows are those of `crates/proto`, where they test the parser; here they
//! test whole programs.
//!
//! After each request the same connection requests a missing key. The reply shows where the answer
//! ends, that nothing else follows, and that both sides agree on the start of the next request.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;

use testkit::process::{Client, Memcached, wait_until};

use super::quickack;

const ALLOW: &str = "allow: [flush_all, cache_memlimit, lru_crawler, lru, slabs, extstore, \
                     debugtime, stats reset, stats detail, stats sizes_enable, \
                     stats sizes_disable]";
const RECORDED: &str = "VERSION 1.6.18\r\n";
const NEXT: &str = "get nobody-has-this\r\n";
const NEXT_ANSWER: &str = "END\r\n";

/// An odd request and its answer.
struct Row {
    /// Line of the file, for messages.
    line: usize,
    request: Vec<u8>,
    recorded: Answer,
    /// The proxy's interpretation, message by message.
    meaning: String,
    /// The proxy's answer differs from the server's, for a reason.
    differs: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answer {
    text: String,
    closes: bool,
}

#[test]
fn odd_requests_are_answered_by_memcached_as_was_recorded() {
    let memcached = Memcached::start();
    let mut client = memcached.client();
    client.send("version\r\n");
    let version = client.read_until("\r\n");
    if version != RECORDED {
        // Another version has other answers, which the recording does not have.
        return eprintln!("not compared: the recording is another version's than {version}");
    }
    for row in rows() {
        clear(&memcached);
        // It turns the connection into one that only receives.
        let listens = row.request.starts_with(b"watch");
        check(memcached.client(), &row, &row.recorded, listens);
    }
}

#[test]
fn odd_requests_get_the_same_words_before_memcached_or_better_ones() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[ALLOW]);
    let mut client = quickack.client();
    client.send("version\r\n");
    let version = client.read_until("\r\n");
    for row in rows() {
        clear(&memcached);
        check(quickack.client(), &row, &row.expected(&version), false);
    }
}

/// Empties the server, because the recording is of an empty one. It still counts items that were
/// stored in an earlier second, until its crawler meets them.
fn clear(memcached: &Memcached) {
    let mut client = memcached.client();
    client.ask("flush_all\r\n", "OK\r\n");
    wait_until("no item is counted", || {
        let is_empty = client.stat("curr_items") == 0;
        if !is_empty {
            client.send("lru_crawler crawl all\r\n");
            client.line();
        }
        is_empty
    });
}

/// Sends the row's request, and expects exactly its answer.
fn check(mut client: Client, row: &Row, expected: &Answer, listens: bool) {
    let sent = row.request.escape_ascii().to_string();
    let shown = format!("words.txt:{}: {}", row.line, &sent[..sent.len().min(100)]);
    client.send(&row.request);
    if listens {
        return client.expect(&expected.text);
    }
    let mut whole = expected.text.clone();
    if !expected.closes {
        client.send(NEXT);
        client.stream.shutdown(Shutdown::Write).expect("nobody has closed it");
        whole += NEXT_ANSWER;
    }
    let mut heard = Vec::new();
    match client.stream.read_to_end(&mut heard) {
        Ok(_) => {}
        // A peer that closes with unread input resets the connection; its answer arrives before
        // that.
        Err(error) if expected.closes && error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{shown}: {error} after {:?}", String::from_utf8_lossy(&heard)),
    }
    assert_eq!(String::from_utf8_lossy(&heard), whole, "{shown}");
}

impl Row {
    /// Returns the proxy's answer: the server's own, unless it differs for a reason.
    fn expected(&self, version: &str) -> Answer {
        if !self.differs {
            let text = self.recorded.text.replace(RECORDED, version);
            return Answer { text, ..self.recorded };
        }
        let mut answer = Answer::default();
        for message in self.meaning.split(" | ") {
            if let Some(why) = message.strip_prefix("malformed: ") {
                answer.text += &format!("CLIENT_ERROR {why}\r\n");
                answer.closes = true;
            } else if let Some((said, words)) = message.split_once(" -> ") {
                if !said.ends_with(" quiet") {
                    answer.text += &format!("{words}\r\n");
                }
            } else {
                assert_eq!(message, "version", "words.txt:{}: its answer is unknown", self.line);
                answer.text += version;
            }
        }
        answer
    }
}

/// Returns the rows with requests; `crates/proto/tests/transcript/mod.rs` describes their format.
fn rows() -> Vec<Row> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/testdata/memcached/words.txt");
    let text = std::fs::read_to_string(file).expect("the recording is there");
    let mut rows: Vec<Row> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((sign, rest)) = line.split_at_checked(2) else { continue };
        match (sign, rows.last_mut()) {
            ("> ", _) => rows.push(Row {
                line: at + 1,
                request: bytes(rest),
                recorded: Answer::default(),
                meaning: String::new(),
                differs: false,
            }),
            ("< ", Some(row)) => {
                let closes = rest.ends_with("[close]");
                let said = bytes(rest.trim_end_matches("[close]"));
                let text = String::from_utf8(said).expect("answers are text");
                row.recorded = Answer { text, closes };
            }
            ("= ", Some(row)) => row.meaning = rest.to_string(),
            ("! ", Some(row)) => row.differs = true,
            ("# ", _) => {}
            _ => panic!("words.txt:{}: what is this line?", at + 1),
        }
    }
    assert!(rows.len() > 150, "{} rows", rows.len());
    rows
}

/// Returns the bytes that a row's text stands for.
pub(super) fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let len = match first {
            b'{' => {
                let end = rest.find('}').expect("a closing brace");
                let (what, times) = rest[1..end].rsplit_once('*').expect("{what*times}");
                let times = times.parse().expect("a number of times");
                out.extend_from_slice(&bytes(what).repeat(times));
                end + 1
            }
            b'\\' if rest[1..].starts_with('x') => {
                out.push(u8::from_str_radix(&rest[2..4], 16).expect("two hex digits"));
                4
            }
            b'\\' => {
                let sign = rest.as_bytes()[1];
                let known = [(b'r', b'\r'), (b'n', b'\n'), (b't', b'\t'), (b'0', 0)];
                let found = known.iter().find(|(name, _)| *name == sign);
                out.push(found.expect("an escape of the four").1);
                2
            }
            plain => {
                out.push(plain);
                1
            }
        };
        rest = &rest[len..];
    }
    out
}
