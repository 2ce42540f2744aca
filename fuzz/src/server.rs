//! The smuggling oracle: a model of memcached 1.6.18's parser. It must parse the forwarded bytes as
//! exactly the one command that the client meant.
//!
//! The model is as lenient as the server. A line ends at `\n`; one `\r` before it is removed; a NUL
//! ends it early. Only spaces separate tokens. Numbers are parsed as in the C library (blanks and a
//! sign before, any blank after). The model follows the server's behaviour and was compared with
//! the recorded answers in `crates/proto/testdata/memcached/words.txt`.

use proto::{
    Adapted, Ask, Capabilities, Class, PROTOCOLS, Parsed, Protocol, Request, Resume, Span,
};

use crate::meta;
use crate::mutate;
use crate::naive::{self, PlainRequest, Reading};

/// Bytes without a line break after which the server closes, unless they begin with `get ` or `gets
/// `. 1.4 has this limit; 1.6 allows 2048. The network determines how much of a line the server has
/// received when it checks.
const PATIENCE: usize = 1024;
/// The limit of a server that has the meta commands.
const META_PATIENCE: usize = 2048;

/// The capabilities of a server with the meta commands, or without.
pub fn capabilities(meta: bool) -> Capabilities {
    if meta { proto::memcached::META } else { Capabilities::default() }
}

pub fn run(seed: u64, budget: usize) {
    mutate::run("request", seed, budget, |bytes, _| check(bytes, &written));
}

/// Writes the head of the request to a server. The last argument is true if the server has the
/// meta commands.
pub type Write<'a> = &'a dyn Fn(&dyn Protocol, &Request, &[u8], &[Span], bool) -> Vec<u8>;

/// Writes a request as the data plane does; nothing if it is refused.
pub fn written(
    protocol: &dyn Protocol,
    request: &Request,
    head: &[u8],
    keys: &[Span],
    meta: bool,
) -> Vec<u8> {
    let mut out = Vec::new();
    let ask = match request.class {
        Class::Fetch { ask, .. } => {
            let upstream = protocol.upstream();
            let mut text = Vec::new();
            protocol.open_fetch(request, head, &mut text);
            for key in keys {
                upstream.push_fetch(key.of(head), &mut text);
            }
            upstream.seal_fetch(ask, keys.len(), &text, &mut out);
            return out;
        }
        Class::Broadcast { ask, .. } => ask,
        _ => match protocol.adapt(request, head, Some(capabilities(meta))) {
            Adapted::Ask(ask) => ask,
            Adapted::Refused(_) => return out,
            Adapted::Unknown => panic!("the capabilities were given"),
        },
    };
    protocol.write_head(request, head, keys, ask, &mut out);
    out
}

/// Checks that the server parses the output of `write` for an accepted request as the client's
/// request.
pub fn check(bytes: &[u8], write: Write<'_>) {
    let protocol = PROTOCOLS[0];
    let mut keys = Vec::new();
    let parsed = protocol.parse_request(bytes, &mut Resume::default(), &mut keys);
    let Parsed::Complete(request) = parsed else { return };
    if matches!(request.class, Class::Refuse(_) | Class::Local(_)) {
        return;
    }
    let said = match naive::read(bytes) {
        Reading::Forwarded(said) => said,
        Reading::Perhaps(said) => {
            return check_administrative(&said, (protocol, bytes, &request), write);
        }
        other => panic!("forwarded, and naively {other:?}"),
    };
    let head = &bytes[..request.head as usize];
    let bound = protocol.upstream().fetch_max(Ask { command: request.command });
    for meta in [true, false] {
        let written = write(protocol, &request, head, &keys, meta);
        // The form with an answer: completion must always be known.
        let meant = match said.word.as_bytes() {
            [b'm', _] => meta::expected(&said, meta),
            _ => Some(PlainRequest { quiet: false, ..said.clone() }),
        };
        let Some(meant) = meant else {
            assert_eq!(written, b"", "with meta: {meta}, it should be refused");
            continue;
        };
        let (read, used) = read(&written).expect("the server hangs up or answers an error");
        assert_eq!(used, written.len(), "the server sees another command in it");
        assert_eq!(read, meant, "the server was sent b\"{}\"", written.escape_ascii());
        assert_eq!(request.body, meant.body.unwrap_or(0));
        assert!(
            patience(&written) == usize::MAX || bound <= PATIENCE,
            "several lines, and each may be too long"
        );
        assert!(
            keys.len() > 1 || written.len() <= patience(&written),
            "no shorter message is to be had, and the server may hang up on it"
        );
    }
}

/// Checks that an administrative command passes unchanged, except for `noreply`. Arguments that
/// servers ignore may be left out.
pub fn check_administrative(
    said: &PlainRequest,
    (protocol, bytes, request): (&'static dyn Protocol, &[u8], &Request),
    write: Write<'_>,
) {
    let head = &bytes[..request.head as usize];
    let written = write(protocol, request, head, &[], true);
    let (read, used) = read(&written).expect("the server knows the word");
    assert_eq!(used, written.len(), "the server sees another command in it");
    assert_eq!((&read.word, read.quiet), (&said.word, false));
    assert!(said.options.starts_with(&read.options), "the server was sent {read:?}");
}

/// Returns the length up to which the server waits for this line's end.
fn patience(line: &[u8]) -> usize {
    match line {
        [b'm', b'g' | b's' | b'd' | b'a' | b'e', b' ', ..] => META_PATIENCE,
        _ if line.starts_with(b"get ") || line.starts_with(b"gets ") => usize::MAX,
        _ => PATIENCE,
    }
}

/// The server's side of one link. The data plane's output, in any pieces, must be one valid command
/// after the other, none of them longer than any server's limit.
#[derive(Default)]
pub struct Ear {
    /// Input that is not a whole message yet.
    rest: Vec<u8>,
}

impl Ear {
    pub fn hear(&mut self, sent: &[u8]) {
        self.rest.extend_from_slice(sent);
        let mut at = 0;
        while let Some(len) = message(&self.rest[at..]) {
            at += len;
        }
        self.rest.drain(..at);
    }
}

/// Returns the length of the message at the start, if it is whole.
fn message(sent: &[u8]) -> Option<usize> {
    let line = sent.iter().position(|&byte| byte == b'\n').map_or(sent.len(), |end| end + 1);
    let shown = sent[..line.min(300)].escape_ascii();
    assert!(line <= patience(sent), "the server may hang up on b\"{shown}\"…");
    if !sent[..line].ends_with(b"\n") {
        return None;
    }
    if sent.starts_with(b"version\r\n") {
        return Some(line);
    }
    let Some((said, used)) = read(sent) else { panic!("no command: b\"{shown}\"") };
    assert_eq!(used, line);
    assert!(!said.quiet, "the answering form is sent: b\"{shown}\"");
    let Some(body) = said.body else { return Some(line) };
    let end = line + usize::try_from(body).expect("a length that was allowed") + 2;
    let data = sent.get(line..end)?;
    assert!(data.ends_with(b"\r\n"), "data does not end where b\"{shown}\" says");
    Some(end)
}

/// Parses the first line as the server does, and returns its length. `None` if the server answers
/// with an error or closes.
pub fn read(sent: &[u8]) -> Option<(PlainRequest, usize)> {
    let end = sent.iter().position(|&byte| byte == b'\n')?;
    let cut = if end > 1 && sent[end - 1] == b'\r' { end - 1 } else { end };
    let text = sent[..cut].split(|&byte| byte == 0).next()?;
    let tokens: Vec<&[u8]> =
        text.split(|&byte| byte == b' ').filter(|token| !token.is_empty()).collect();
    let (word, rest) = tokens.split_first()?;
    let mut said = PlainRequest {
        word: String::from_utf8_lossy(word).into_owned(),
        ..PlainRequest::default()
    };
    // In any position, a last argument that equals `noreply` suppresses the answer.
    let last_is_noreply = rest.len() > 1 && rest.last() == Some(&&b"noreply"[..]);
    match *word {
        b"get" | b"gets" => said.keys = keys(rest)?,
        b"gat" | b"gats" => {
            said.numbers = vec![signed(rest.first()?)?];
            said.keys = keys(&rest[1..])?;
        }
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            let count = if *word == b"cas" { 5 } else { 4 };
            if rest.len() != count && rest.len() != count + 1 {
                return None;
            }
            said.quiet = last_is_noreply;
            said.keys = keys(&rest[..1])?;
            said.numbers = vec![unsigned(rest[1])?, signed(rest[2])?];
            said.body = Some(u64::try_from(signed(rest[3])?).ok()?);
            if count == 5 {
                said.numbers.push(unsigned(rest[4])?);
            }
        }
        b"delete" => {
            said.quiet = last_is_noreply;
            let hold = rest.get(1).is_some_and(|text| *text == b"0");
            let good = match rest.len() {
                1 => true,
                2 => hold || said.quiet,
                3 => hold && said.quiet,
                _ => false,
            };
            said.keys = keys(rest.get(..1).filter(|_| good)?)?;
        }
        b"incr" | b"decr" | b"touch" => {
            if rest.len() != 2 && rest.len() != 3 {
                return None;
            }
            said.quiet = last_is_noreply;
            said.keys = keys(&rest[..1])?;
            let number = if *word == b"touch" { signed } else { unsigned };
            said.numbers = vec![number(rest[1])?];
        }
        b"flush_all" => {
            said.quiet = rest.last() == Some(&&b"noreply"[..]);
            let count = rest.len() - usize::from(said.quiet);
            said.numbers =
                rest[..count.min(1)].iter().map(|text| signed(text)).collect::<Option<_>>()?;
        }
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => {
            said.keys = keys(rest.get(..1)?)?;
            let mut options = &rest[1..];
            if *word == b"ms" {
                said.body = Some(u64::try_from(signed(options.first()?)?).ok()?);
                options = &options[1..];
            }
            // The first letter decides; with `q` there may be no answer.
            said.quiet = *word != b"me" && options.iter().any(|option| option[0] == b'q');
            said.options = texts(options);
        }
        _ if is_administrative(word) => (said.quiet, said.options) = arguments(word, rest),
        _ => return None,
    }
    Some((said, end + 1))
}

/// Only the server interprets its arguments.
pub fn is_administrative(word: &[u8]) -> bool {
    const WORDS: &[&[u8]] =
        &[b"cache_memlimit", b"debugtime", b"extstore", b"lru", b"lru_crawler", b"slabs", b"stats"];
    WORDS.contains(&word)
}

/// Returns whether an administrative command suppresses its answer, and its other arguments.
pub fn arguments(word: &[u8], rest: &[&[u8]]) -> (bool, Vec<Vec<u8>>) {
    let silenced = word != b"stats" && rest.last() == Some(&&b"noreply"[..]);
    (silenced, texts(&rest[..rest.len() - usize::from(silenced)]))
}

fn texts(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

fn keys(tokens: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    let good = !tokens.is_empty() && tokens.iter().all(|token| token.len() <= 250);
    good.then(|| texts(tokens))
}

/// Parses as `strtol` does, with the bytes that the server accepts after it.
fn signed(text: &[u8]) -> Option<i128> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r');
    let start = text.iter().position(|byte| !blank(byte))?;
    let (minus, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if len == 0 || digits.get(len).is_some_and(|after| !blank(after)) {
        return None;
    }
    let number: i128 = std::str::from_utf8(&digits[..len]).ok()?.parse().ok()?;
    Some(if minus { -number } else { number })
}

/// Parses as `strtoull` does; the server refuses a negative number.
fn unsigned(text: &[u8]) -> Option<i128> {
    signed(text).filter(|number| (0..=i128::from(u64::MAX)).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_as_lenient_as_the_server() {
        for (line, keys, numbers) in [
            (&b"set k\t +1 \t-0 +1\r\n"[..], &[&b"k\t"[..]][..], &[1, 0][..]),
            (b"get k\r\r\n", &[b"k\r"], &[]),
            (b"get k\0x\r\n", &[b"k"], &[]),
            (b"touch k 0 x\n", &[b"k"], &[0]),
        ] {
            let (said, used) = read(line).expect("the server takes it");
            assert_eq!(
                (said.keys, said.numbers),
                (keys.iter().map(|key| key.to_vec()).collect(), numbers.to_vec())
            );
            assert_eq!(used, line.len());
        }
        for line in [&b"set k 0 0\r\n"[..], b"delete k 1\r\n", b"incr k -1\r\n", b"bogus\r\n"] {
            assert_eq!(read(line), None);
        }
    }

    #[test]
    fn the_server_waits_for_the_end_of_a_get_only() {
        let hears = |line: &[u8]| {
            let line = line.to_vec();
            std::panic::catch_unwind(|| Ear::default().hear(&line)).is_ok()
        };
        for (word, patient) in [("get", true), ("gets", true), ("gat 0", false)] {
            let line = format!("{word}{}\r\n", " key".repeat(300));
            assert_eq!(hears(line.as_bytes()), patient, "{word}");
            assert_eq!(hears(&line.as_bytes()[..PATIENCE + 1]), patient, "{word}");
            assert!(hears(&line.as_bytes()[..PATIENCE]), "{word}");
        }
        assert!(hears(b"set k 0 0 1\r\na\r\nversion\r\ndelete k\r\nset k 0 0 1\r\na"));
        assert!(!hears(b"set k 0 0 1\r\nab\r\n") && !hears(b"delete k noreply\r\n"));
    }
}
