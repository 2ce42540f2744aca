//! One answer from the replies of several servers, for clients of both memcached protocols.
//!
//! ```text
//!   OK  OK          ->  OK                                                   all replies are alike
//!   OK  ERROR       ->  SERVER_ERROR the servers do not agree: a says 'OK'; b says 'ERROR'
//!   OK  (no answer) ->  SERVER_ERROR the servers do not agree: a says 'OK'; b: down, …
//! ```

use super::commands::STATS;
use super::stats;
use crate::part::{self, Outcome, Part, ProxyFacts};
use crate::{Answer, Asked, Protocol};

/// Answers a request that every server got, with this argument if it is `stats`. `pass` renders the
/// reply that all of them gave.
pub(super) fn gather(
    protocol: &dyn Protocol,
    asked: &Asked<'_>,
    parts: &mut dyn Iterator<Item = Part<'_>>,
    (proxy, argument): (&dyn ProxyFacts, &[u8]),
    pass: &dyn Fn(&[u8], &mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    let parts: Vec<Part<'_>> = parts.collect();
    if asked.ask.command == STATS {
        if argument.is_empty() {
            return stats::gather(protocol, asked, &parts, proxy, out);
        }
        if stats::gather_lists(protocol, asked, &parts, out).is_some() {
            return;
        }
    }
    if let Some(reply) = part::agreed(&parts) {
        return pass(reply, out);
    }
    if let Some(line) = part::agreed_error(&parts) {
        return protocol.answer(asked, &Answer::Error(line), out);
    }
    let told = part::disagreement(&parts, &show);
    let may_be_done = |part: &Part<'_>| match part.outcome {
        Outcome::Reply(_) => true,
        Outcome::Error(_) => false,
        Outcome::Fault { uncertain, .. } => uncertain,
    };
    let answer = match parts.iter().any(may_be_done) {
        true => Answer::Uncertain(&told),
        false => Answer::Failed(&told),
    };
    protocol.answer(asked, &answer, out);
}

/// Returns the first line of a server's reply, which is all of it except for lists.
fn show(reply: &[u8]) -> String {
    let line = reply.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    line[..line.len().min(SHOWN_MAX)].escape_ascii().to_string()
}

/// The most bytes of a server's reply that an error repeats.
const SHOWN_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::super::commands::FLUSH_ALL;
    use super::super::{Binary, Text};
    use super::*;
    use crate::part::tests::{Nothing, fault, parts};
    use crate::{Ask, Quiet};

    fn told(
        protocol: &dyn Protocol,
        command: u16,
        head: &[u8],
        outcomes: &[Outcome<'_>],
    ) -> Vec<u8> {
        let ask = Ask { command: FLUSH_ALL };
        let asked = Asked { command, quiet: Quiet::Loud, ask, head, at: 0, next: None };
        let mut out = Vec::new();
        protocol.gather(&asked, &mut parts(outcomes), &Nothing, &mut out);
        out
    }

    fn check(outcomes: &[Outcome<'_>], expected: &str) {
        let told = told(&Text, FLUSH_ALL, b"", outcomes);
        assert_eq!(String::from_utf8_lossy(&told), expected, "{outcomes:?}");
    }

    const OK: Outcome<'_> = Outcome::Reply(b"OK\r\n");
    const ERROR: Outcome<'_> = Outcome::Error(b"ERROR\r\n");

    #[test]
    fn what_all_servers_say_is_the_answer() {
        check(&[OK], "OK\r\n");
        check(&[OK, OK, OK], "OK\r\n");
        check(&[ERROR, ERROR], "ERROR\r\n");
    }

    #[test]
    fn servers_that_do_not_agree_are_named_with_what_they_say() {
        check(
            &[OK, ERROR, fault("down", false)],
            "SERVER_ERROR the servers do not agree: s0 says 'OK'; s1 says 'ERROR'; s2: down\r\n",
        );
        check(
            &[Outcome::Reply(b"STAT a 1\r\nEND\r\n"), Outcome::Error(b"CLIENT_ERROR a\x01b\r\n")],
            "SERVER_ERROR the servers do not agree: s0 says 'STAT a 1'; \
             s1 says 'CLIENT_ERROR a\\x01b'\r\n",
        );
        check(&[fault("down", false), fault("no", true)], "SERVER_ERROR s0: down; s1: no\r\n");
    }

    #[test]
    fn a_line_that_names_many_servers_is_no_longer_than_clients_take() {
        let error = format!("CLIENT_ERROR {}\r\n", "\x01".repeat(1000));
        let mut outcomes = vec![Outcome::Error(error.as_bytes()); 500];
        outcomes.push(OK);
        let told = told(&Text, FLUSH_ALL, b"", &outcomes);
        assert!(told.len() < 2048, "{}", told.len());
        assert!(told.ends_with(b"; and 498 servers more\r\n"), "{}", told.escape_ascii());
    }

    #[test]
    fn binary_clients_read_the_same_as_packets() {
        let mut flush = [0; 24];
        (flush[0], flush[1], flush[15]) = (0x80, 0x08, 7);
        let row = Binary.commands().iter().position(|row| row.name == "Flush").unwrap() as u16;
        let good = told(&Binary, row, &flush, &[OK, OK]);
        assert_eq!((good.len(), &good[..8], good[15]), (24, &[0x81, 8, 0, 0, 0, 0, 0, 0][..], 7));
        let bad = told(&Binary, row, &flush, &[OK, fault("down", false)]);
        assert_eq!(bad[6..8], [0, 0x84], "a change that may have been made is never temporary");
        let words = "the servers do not agree: s0 says 'OK'; s1: down";
        assert_eq!(String::from_utf8_lossy(&bad[24..]), words);
        let none = told(&Binary, row, &flush, &[fault("down", false), fault("down", false)]);
        assert_eq!(none[6..8], [0, 0x86]);
    }
}
