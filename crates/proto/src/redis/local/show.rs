//! A request as MONITOR shows it: its words in quotes, as Redis writes them. Logins are not shown.

use super::super::arguments;
use super::super::commands::id;
use crate::{Quiet, Request};

/// Bytes of one word, and words, that are shown.
const WORD_MAX: usize = 1024;
const WORDS_MAX: usize = 64;

pub(in crate::redis) fn show(request: &Request, head: &[u8], out: &mut Vec<u8>) -> bool {
    if matches!(request.command, id::AUTH | id::HELLO | id::MONITOR) {
        return false;
    }
    let words = arguments::first(head, WORDS_MAX);
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            out.push(b' ');
        }
        quote(&word[..word.len().min(WORD_MAX)], out);
    }
    // An empty line is no request.
    !words.is_empty() || request.quiet != Quiet::Silent && !out.is_empty()
}

fn quote(word: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in word {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(*byte),
            _ => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use crate::{Parsed, Protocol, Resume};

    fn shown(bytes: &[u8]) -> Option<String> {
        let redis = crate::redis::Redis;
        let parsed = redis.parse_request(bytes, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{parsed:?}") };
        let mut out = Vec::new();
        let is_shown = redis.show(&request, &bytes[..request.head as usize], &mut out);
        is_shown.then(|| String::from_utf8(out).expect("it is text"))
    }

    #[test]
    fn words_are_quoted_and_logins_are_not_shown() {
        assert_eq!(shown(b"set k v\r\n").as_deref(), Some(r#""set" "k" "v""#));
        let odd = b"*2\r\n$3\r\nGET\r\n$8\r\na\"\\\r\n\t\x07\xff\r\n";
        assert_eq!(shown(odd).as_deref(), Some(r#""GET" "a\"\\\r\n\t\a\xff""#));
        for line in ["auth pw", "hello 3 auth anna pw", "monitor"] {
            assert_eq!(shown(format!("{line}\r\n").as_bytes()), None, "{line}");
        }
    }
}
