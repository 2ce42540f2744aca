//! A second request parser, written from the protocol's text alone: split by spaces, strict, slow
//! and plain. Where it and the product's differ, one of them is wrong.

use proto::{Class, PROTOCOLS, Parsed, Quiet, Request, Resume, Span};

use crate::{meta, mutate, server};

/// The meaning of a request, in plain values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainRequest {
    pub word: String,
    pub keys: Vec<Vec<u8>>,
    /// In the order of the line, without the length of the data.
    pub numbers: Vec<i128>,
    pub body: Option<u64>,
    pub quiet: bool,
    /// The flags of a meta request as in its line, without `q`.
    pub options: Vec<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    Incomplete,
    Hopeless,
    /// Not forwarded: refused, or answered by the proxy. The number is the length of its data
    /// block, if it has one.
    Kept {
        body: Option<u64>,
    },
    Forwarded(PlainRequest),
    /// An administrative command: forwarded unchanged, or refused. The servers decide whether they
    /// know it.
    Perhaps(PlainRequest),
}

pub fn run(seed: u64, budget: usize) {
    mutate::run("request", seed, budget, |bytes, _| {
        let mut keys = Vec::new();
        let parsed = PROTOCOLS[0].parse_request(bytes, &mut Resume::default(), &mut keys);
        agree(bytes, &parsed, &keys, &read(bytes));
    });
}

fn agree(bytes: &[u8], parsed: &Parsed<Request>, keys: &[Span], naive: &Reading) {
    match (parsed, naive) {
        (Parsed::Incomplete, Reading::Incomplete) | (Parsed::Malformed(_), Reading::Hopeless) => {}
        (Parsed::Complete(request), Reading::Kept { body }) => {
            let kept = matches!(request.class, Class::Refuse(_) | Class::Local(_));
            assert!(kept, "the naive parser keeps it: {request:?}");
            assert_eq!(request.body, body.unwrap_or(0));
            assert_eq!(request.trailer.is_empty(), body.is_none());
        }
        (Parsed::Complete(request), Reading::Forwarded(said)) => {
            let name = PROTOCOLS[0].commands()[usize::from(request.command)].name;
            assert_eq!(name, said.word);
            assert!(!matches!(request.class, Class::Refuse(_)), "{request:?}");
            assert_eq!(request.quiet != Quiet::Loud, said.quiet);
            assert_eq!(request.body, said.body.unwrap_or(0));
            assert_eq!(request.trailer.is_empty(), said.body.is_none());
            let texts: Vec<&[u8]> = keys.iter().map(|key| key.of(bytes)).collect();
            assert_eq!(texts, said.keys);
        }
        (Parsed::Complete(request), Reading::Perhaps(said)) => {
            let name = PROTOCOLS[0].commands()[usize::from(request.command)].name;
            assert_eq!(name.split(' ').next(), Some(&said.word[..]));
            if let Class::Broadcast { .. } = request.class {
                assert_eq!(request.quiet != Quiet::Loud, said.quiet);
            }
            assert!(request.body == 0 && keys.is_empty(), "{request:?}");
        }
        _ => panic!("{parsed:?} and naively {naive:?}"),
    }
}

/// The naive parser.
pub fn read(input: &[u8]) -> Reading {
    if input.starts_with(b"\x80") {
        return Reading::Hopeless;
    }
    let unbounded = [&b"get "[..], b"gets ", b"gat ", b"gats "];
    let bounded = !unbounded.iter().any(|word| input.starts_with(word));
    let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
        return if bounded && input.len() > 2048 { Reading::Hopeless } else { Reading::Incomplete };
    };
    if bounded && end + 1 > 2048 {
        return Reading::Hopeless;
    }
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let words: Vec<&[u8]> =
        line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let kept = Reading::Kept { body: None };
    let Some((word, rest)) = words.split_first() else { return kept };
    match *word {
        _ if server::is_administrative(word) => administrative(word, rest),
        b"get" | b"gets" => fetch(word, &[], rest),
        b"gat" | b"gats" => match rest.split_first() {
            Some((time, keys)) if exptime(time).is_some() => fetch(word, &[time], keys),
            _ => kept,
        },
        b"set" | b"add" | b"replace" | b"append" | b"prepend" => store(word, rest, 4),
        b"cas" => store(word, rest, 5),
        b"delete" => match rest {
            [key] | [key, b"0"] => update(word, key, &[], false),
            [key, b"noreply"] | [key, b"0", b"noreply"] => update(word, key, &[], true),
            _ => kept,
        },
        b"incr" | b"decr" => keyed_number(word, rest, unsigned),
        b"touch" => keyed_number(word, rest, exptime),
        b"flush_all" => flush(rest),
        b"mg" | b"ms" | b"md" | b"ma" | b"mn" | b"me" => meta::read(word, rest),
        _ => unknown(words[words.len() - 1], word),
    }
}

/// Words in no table and words that are never forwarded differ only for HTTP.
fn unknown(last: &[u8], word: &[u8]) -> Reading {
    let known = PROTOCOLS[0].commands().iter().any(|row| row.name.as_bytes() == word);
    match last.starts_with(b"HTTP/") && !known {
        true => Reading::Hopeless,
        false => Reading::Kept { body: None },
    }
}

fn fetch(word: &[u8], numbers: &[&[u8]], keys: &[&[u8]]) -> Reading {
    if keys.is_empty() || !keys.iter().all(|key| clean(key)) {
        return Reading::Kept { body: None };
    }
    Reading::Forwarded(PlainRequest {
        word: String::from_utf8_lossy(word).into_owned(),
        keys: keys.iter().map(|key| key.to_vec()).collect(),
        numbers: numbers.iter().filter_map(|text| exptime(text)).collect(),
        ..PlainRequest::default()
    })
}

/// Parses a word with any arguments. Statistics are always answered.
fn administrative(word: &[u8], rest: &[&[u8]]) -> Reading {
    let (quiet, options) = server::arguments(word, rest);
    let word = String::from_utf8_lossy(word).into_owned();
    Reading::Perhaps(PlainRequest { word, options, quiet, ..PlainRequest::default() })
}

/// Parses `count` arguments, of which the fourth is the length, and an optional last one, which has
/// a meaning only if it is `noreply`.
fn store(word: &[u8], rest: &[&[u8]], count: usize) -> Reading {
    if rest.len() != count && rest.len() != count + 1 {
        return Reading::Kept { body: None };
    }
    let Some(body) = length(rest[3]) else { return Reading::Hopeless };
    let body = Some(body as u64);
    let quiet = rest.len() == count + 1 && rest[count] == b"noreply";
    let numbers =
        [flags(rest[1]), exptime(rest[2]), if count == 5 { unsigned(rest[4]) } else { Some(0) }];
    let good = clean(rest[0]) && are_whole(rest) && numbers.iter().all(Option::is_some);
    if !good {
        return Reading::Kept { body };
    }
    let Reading::Forwarded(mut said) = update(word, rest[0], &[], quiet) else {
        return Reading::Kept { body };
    };
    said.numbers = numbers.into_iter().take(count - 2).flatten().collect();
    said.body = body;
    Reading::Forwarded(said)
}

fn keyed_number(word: &[u8], rest: &[&[u8]], number: fn(&[u8]) -> Option<i128>) -> Reading {
    let (key, text, quiet) = match rest {
        [key, text] => (key, text, false),
        [key, text, last] if are_whole(rest) => (key, text, *last == b"noreply"),
        _ => return Reading::Kept { body: None },
    };
    match number(text) {
        Some(number) => update(word, key, &[number], quiet),
        None => Reading::Kept { body: None },
    }
}

fn flush(rest: &[&[u8]]) -> Reading {
    let (delay, quiet) = match rest {
        [] => (None, false),
        [b"noreply"] => (None, true),
        [delay] => (Some(delay), false),
        [delay, last] => (Some(delay), *last == b"noreply"),
        _ => return Reading::Kept { body: None },
    };
    let number = delay.map(|text| exptime(text));
    if number == Some(None) || number.is_some() && !are_printable(rest) {
        return Reading::Kept { body: None };
    }
    // A time in the past means now.
    let numbers = number.flatten().into_iter().filter(|time| *time >= 0).collect();
    Reading::Forwarded(PlainRequest {
        word: "flush_all".into(),
        numbers,
        quiet,
        ..PlainRequest::default()
    })
}

fn update(word: &[u8], key: &[u8], numbers: &[i128], quiet: bool) -> Reading {
    if !clean(key) {
        return Reading::Kept { body: None };
    }
    Reading::Forwarded(PlainRequest {
        word: String::from_utf8_lossy(word).into_owned(),
        keys: vec![key.to_vec()],
        numbers: numbers.to_vec(),
        quiet,
        ..PlainRequest::default()
    })
}

/// Words that servers ignore must not hide anything from the proxy.
fn are_printable(words: &[&[u8]]) -> bool {
    words.iter().all(|text| text.iter().all(|byte| !matches!(byte, 0..=32 | 127)))
}

/// To some servers a word or a line ends at one of these.
fn are_whole(words: &[&[u8]]) -> bool {
    !words.concat().iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
}

pub fn clean(key: &[u8]) -> bool {
    (1..=250).contains(&key.len()) && are_whole(&[key]) && !key.contains(&b' ')
}

/// Parses a number with or without a sign, of any length.
fn whole(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.trim_start_matches('0');
    // A longer number is in no range, as one of thirty digits is in none.
    let number: i128 = number.get(..30).unwrap_or(number).parse().unwrap_or_default();
    Some(if text.starts_with('-') { -number } else { number })
}

/// Of a 64-bit number with a sign, servers keep the lower half.
pub fn exptime(text: &[u8]) -> Option<i128> {
    let number = whole(text).and_then(|number| i64::try_from(number).ok())?;
    // A number that is negative only to the server expires at once, as -1 does.
    let wraps = number > 0 && (number as i32) < 0;
    Some(if wraps { -1 } else { (number as i32).into() })
}

/// A negative number counts from 2^64 down, to the middle.
pub fn unsigned(text: &[u8]) -> Option<i128> {
    let number = whole(text)?;
    match number < 0 {
        true => Some(number + (1 << 64)).filter(|number| (0..1 << 63).contains(number)),
        false => Some(number).filter(|number| *number < 1 << 64),
    }
}

pub fn flags(text: &[u8]) -> Option<i128> {
    unsigned(text).map(|number| number % (1 << 32))
}

pub fn length(text: &[u8]) -> Option<i128> {
    whole(text).filter(|number| (0..=2_147_483_645).contains(number))
}
