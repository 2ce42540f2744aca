//! Answers of the proxy, in RESP: each is exactly one value, whatever text it contains.

use super::commands::id;
use super::{arguments, pubsub, refusal, words};
use crate::{Answer, Asked};

const NO_LOGIN: &[u8] = b"NOAUTH Authentication required.";
const NO_LOGIN_FOR_HELLO: &[u8] = b"NOAUTH HELLO must be called with the client already \
    authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to \
    authenticate the client and select the RESP protocol version at the same time";
const WRONG_LOGIN: &[u8] = b"WRONGPASS invalid username-password pair or user is disabled.";

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PING_LOW: &[u8] = b"*1\r\n$4\r\nping\r\n";

pub(super) fn write(asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
    match answer {
        Answer::Open(count) => words::open(*count, out),
        // The count at the beginning has shown where the list ends.
        Answer::End => {}
        Answer::Miss => words::null(2, out),
        Answer::Ok if asked.command == id::PING => pong(asked.head, out),
        Answer::Ok | Answer::Barrier | Answer::Bye | Answer::LoggedIn => words::simple("OK", out),
        Answer::Queued => words::simple("QUEUED", out),
        Answer::Alive => pubsub::write_alive(asked.head, out),
        Answer::Version(proxy) => words::bulk(proxy.as_bytes(), out),
        Answer::Stat(name, value) => words::bulk(format!("{name}:{value}").as_bytes(), out),
        Answer::Refused(why) => refusal::write(asked, *why, out),
        Answer::Denied(why) => words::error(&[b"NOPERM ", why.as_bytes()], out),
        Answer::Failed(why) | Answer::Uncertain(why) => fault(why, out),
        // Clients compare the words.
        Answer::Full(_) => words::error(&[b"ERR max number of clients reached"], out),
        Answer::Error(line) => pass(line, out),
        Answer::Aborted(first) => aborted(first, out),
        Answer::Apart { keys, servers, tag } => apart(*keys, *servers, *tag, out),
        Answer::LoginFailed => words::error(&[WRONG_LOGIN], out),
        Answer::LoginFirst if asked.command == id::HELLO => {
            words::error(&[NO_LOGIN_FOR_HELLO], out);
        }
        Answer::LoginFirst => words::error(&[NO_LOGIN], out),
    }
}

fn pong(head: &[u8], out: &mut Vec<u8>) {
    if matches!(head, PING | PING_LOW | b"PING\r\n" | b"ping\r\n") {
        return out.extend_from_slice(b"+PONG\r\n");
    }
    match arguments::all(head).get(1) {
        Some(word) => words::bulk(word, out),
        None => words::simple("PONG", out),
    }
}

fn fault(why: &str, out: &mut Vec<u8>) {
    words::error(&[b"ERR ", why.as_bytes()], out);
}

const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

/// Adds the first error to a server's reply that says no more than that there was one.
pub(super) fn tell_aborted(first: &[u8], last: &[u8]) -> Option<Vec<u8>> {
    let text = last.strip_prefix(b"-")?.strip_suffix(b"\r\n")?;
    // Some servers write no full stop.
    let words = ABORTED.as_bytes();
    (text == words || words.strip_suffix(b".") == Some(text)).then(|| {
        let mut out = Vec::new();
        aborted(first, &mut out);
        out
    })
}

/// Says in Redis' words that a transaction was discarded, and the first error, for many libraries
/// show this reply and no other.
fn aborted(first: &[u8], out: &mut Vec<u8>) {
    const WORDS: &[u8] = ABORTED.as_bytes();
    let text = first.strip_suffix(b"\r\n").unwrap_or(first);
    match text.strip_prefix(b"-") {
        Some(text) => words::error(&[WORDS, b" The first: ", text], out),
        None => words::error(&[WORDS], out),
    }
}

/// Passes a server's error line. A line that did not end where it should would swallow the answers
/// after it.
fn pass(line: &[u8], out: &mut Vec<u8>) {
    let text = line.strip_suffix(b"\r\n").unwrap_or(line);
    match text.strip_prefix(b"-") {
        Some(text) => words::error(&[text], out),
        // A bulk error, which has been read to its end.
        None if text.first() == Some(&b'!') => out.extend_from_slice(line),
        None => words::error(&[b"ERR ", text], out),
    }
}

/// Writes two keys and their servers, and how the keys could be on one server. A tag alone achieves
/// that only where the pool looks for tags.
fn apart(keys: [&[u8]; 2], servers: [&str; 2], tag: Option<[u8; 2]>, out: &mut Vec<u8>) {
    let [one, other] = keys.map(words::beginning);
    let [here, there] = servers.map(str::as_bytes);
    let why: &[u8] = b"CROSSSLOT Keys in request don't hash to the same server: '";
    let places = [why, one, b"' is on ", here, b", '", other, b"' on ", there].concat();
    let advice: &[u8] = match tag {
        Some(_) => b"; a hash tag in both brings them together",
        None => {
            b"; the pool has no `hash_tag`: with `hash_tag: \"{}\"` a hash tag in both would bring \
              them together"
        }
    };
    let [open, close] = tag.unwrap_or(*b"{}");
    words::error(&[&places, advice, b", as in ", &[open], b"user:1", &[close], b":name"], out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::reply::parse;
    use crate::{Ask, Parsed, Progress, Quiet, Refusal};

    fn said(command: u16, head: &[u8], answer: &Answer<'_>) -> Vec<u8> {
        let ask = Ask { command };
        let asked = Asked { command, quiet: Quiet::Loud, ask, head, at: 0, next: None };
        let mut out = Vec::new();
        write(&asked, answer, &mut out);
        out
    }

    fn check(answer: &Answer<'_>, expected: &str) {
        let found = said(id::GET, b"", answer);
        assert_eq!(String::from_utf8_lossy(&found), expected, "{answer:?}");
    }

    #[test]
    fn answers_are_a_servers_words() {
        check(&Answer::Open(12), "*12\r\n");
        check(&Answer::End, "");
        check(&Answer::Ok, "+OK\r\n");
        check(&Answer::Failed("s1: connect timed out"), "-ERR s1: connect timed out\r\n");
        check(&Answer::Error(b"-WRONGTYPE no\r\n"), "-WRONGTYPE no\r\n");
        check(&Answer::Error(b"!3\r\nERR\r\n"), "!3\r\nERR\r\n");
        let aborted = "-EXECABORT Transaction discarded because of previous errors.";
        check(&Answer::Aborted(b""), &format!("{aborted}\r\n"));
        let first = Answer::Aborted(b"-NOPERM no\r\nfor you");
        check(&first, &format!("{aborted} The first: NOPERM no  for you\r\n"));
        check(&Answer::LoginFirst, "-NOAUTH Authentication required.\r\n");
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
        check(&Answer::LoginFailed, wrong);
        let hello = said(id::HELLO, b"", &Answer::LoginFirst);
        assert!(hello.starts_with(b"-NOAUTH HELLO must be called"));
    }

    /// A tag has no effect where the pool looks for none.
    #[test]
    fn keys_that_live_apart_are_told_what_would_bring_them_together() {
        let apart = |tag| Answer::Apart { keys: [b"a", b"b\r\n"], servers: ["s1", "s2"], tag };
        let where_they_are = "-CROSSSLOT Keys in request don't hash to the same server: 'a' is on \
             s1, 'b  ' on s2; ";
        for (tag, advice) in [
            (Some(*b"{}"), "a hash tag in both brings them together, as in {user:1}:name\r\n"),
            (Some(*b"$$"), "a hash tag in both brings them together, as in $user:1$:name\r\n"),
            (
                None,
                "the pool has no `hash_tag`: with `hash_tag: \"{}\"` a hash tag in both would \
                 bring them together, as in {user:1}:name\r\n",
            ),
        ] {
            check(&apart(tag), &format!("{where_they_are}{advice}"));
        }
    }

    /// A small generator (xorshift), so that a failure repeats.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % end.max(1)
        }

        /// Returns bytes of which most could end a line, or begin another reply.
        fn bytes(&mut self) -> Vec<u8> {
            const EVIL: &[u8] = b"\r\n\r\n$5\r\n*1+-:_%\0\x1b[ '\"{}\xff\x80A";
            let len = self.below(300);
            (0..len)
                .map(|_| match self.below(4) {
                    0 => self.below(256) as u8,
                    _ => EVIL[self.below(EVIL.len())],
                })
                .collect()
        }
    }

    /// No input of a client or a server can cut an answer in two.
    #[test]
    fn an_answer_is_always_one_value() {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        for _ in 0..20_000 {
            let (one, other, head) = (dice.bytes(), dice.bytes(), dice.bytes());
            let text = String::from_utf8_lossy(&other).into_owned();
            let line = [b"-", &one[..], b"\r\n"].concat();
            let answers = [
                Answer::Failed(&text),
                Answer::Uncertain(&text),
                Answer::Error(&line),
                Answer::Aborted(&line),
                Answer::Error(if one.starts_with(b"!") { b"x" } else { &one }),
                Answer::Apart { keys: [&one, &other], servers: [&text, "s"], tag: None },
                Answer::Refused(Refusal::Unknown),
                Answer::Refused(Refusal::ByName("why")),
                Answer::Refused(Refusal::Bad("why")),
                Answer::Refused(Refusal::TooLarge),
                Answer::Version(&text),
                Answer::Stat(&text, &text),
                Answer::LoginFirst,
                Answer::LoginFailed,
            ];
            // The text is sent as RESP, so that its arguments are found and repeated.
            let head = [
                &b"*2\r\n$3\r\nfoo\r\n$"[..],
                head.len().to_string().as_bytes(),
                b"\r\n",
                &head,
                b"\r\n",
            ]
            .concat();
            for answer in answers {
                let out = said(id::GET, &head, &answer);
                let parsed = parse(Ask { command: id::GET }, &mut Progress::default(), &out);
                let Parsed::Complete(item) = parsed else { panic!("{answer:?}: {parsed:?}") };
                assert!(item.kind.ends_reply(), "{answer:?}");
                assert_eq!(item.len(), out.len() as u64, "{answer:?}: {}", out.escape_ascii());
            }
        }
    }
}
