//! A second parser of meta requests, and an independent translation of them for a server: written
//! from the protocol's text alone, slow and plain.

use testkit::wire::base64;

use crate::naive::{self, PlainRequest, Reading, clean, exptime, flags, unsigned};

const LETTERS: &[u8] = b"bcfhklqstuvCDEFIJLMNOPRSTx";

/// Parses the rest of a line that begins with this word.
pub fn read(word: &[u8], rest: &[&[u8]]) -> Reading {
    if word == b"mn" {
        return Reading::Kept { body: None };
    }
    let Some((key, mut options)) = rest.split_first() else { return Reading::Kept { body: None } };
    let mut body = None;
    if word == b"ms" {
        let Some(length) = options.first() else { return Reading::Kept { body: None } };
        let Some(length) = naive::length(length) else { return Reading::Hopeless };
        body = Some(length as u64);
        options = &options[1..];
    }
    let kept = Reading::Kept { body };
    let printable =
        options.iter().all(|text| text.iter().all(|byte| !matches!(byte, 0..=32 | 127)));
    if !clean(key) || !printable {
        return kept;
    }
    let coded = match word {
        b"me" => options.first() == Some(&&b"b"[..]),
        _ => options.contains(&&b"b"[..]),
    };
    let decoded = if coded { base64::decode(key) } else { Some(key.to_vec()) };
    if decoded.is_none() {
        return kept;
    }
    let mut said = PlainRequest {
        word: String::from_utf8_lossy(word).into_owned(),
        keys: vec![key.to_vec()],
        body,
        ..PlainRequest::default()
    };
    if word == b"me" {
        said.options = if coded { vec![b"b".to_vec()] } else { Vec::new() };
        return Reading::Forwarded(said);
    }
    if !are_flags(word, options) {
        return kept;
    }
    said.quiet = options.contains(&&b"q"[..]);
    said.options = options.iter().filter(|text| **text != b"q").map(|text| text.to_vec()).collect();
    Reading::Forwarded(said)
}

fn are_flags(word: &[u8], options: &[&[u8]]) -> bool {
    let most = if word == b"ms" { 16 } else { 17 };
    let mut seen = Vec::new();
    for option in options {
        let (letter, text) = (option[0], &option[1..]);
        if !LETTERS.contains(&letter) || seen.contains(&letter) || !is_value(word, letter, text) {
            return false;
        }
        seen.push(letter);
    }
    options.len() <= most
}

fn is_value(word: &[u8], letter: u8, text: &[u8]) -> bool {
    match letter {
        b'T' | b'N' | b'R' => exptime(text).is_some(),
        b'F' => flags(text).is_some(),
        b'C' | b'E' | b'D' | b'J' => unsigned(text).is_some(),
        b'S' => text.first().is_some_and(u8::is_ascii_digit) && unsigned(text).is_some(),
        b'M' if word == b"ms" => matches!(text, b"S" | b"E" | b"A" | b"P" | b"R"),
        b'M' if word == b"ma" => matches!(text, b"I" | b"+" | b"D" | b"-"),
        b'M' => text.len() == 1,
        b'O' => text.len() <= 31,
        b'P' | b'L' => true,
        _ => text.is_empty(),
    }
}

/// Returns the request to a server, if there is one. `meta` means that the server has the meta
/// commands.
pub fn expected(said: &PlainRequest, meta: bool) -> Option<PlainRequest> {
    if said.word == "mg" && has(said, b'v') && within(said, b"vfcksOPLT") {
        let with_cas = has(said, b'c');
        return match has(said, b'T') {
            false => told(said, if with_cas { "gets" } else { "get" }, vec![]),
            true => told(said, if with_cas { "gats" } else { "gat" }, vec![number(said, b'T', 0)]),
        };
    }
    if !meta {
        return in_classic_words(said);
    }
    let mut same = PlainRequest { quiet: false, ..said.clone() };
    // A server may return such a key unencoded, so it is not asked for the key; `me` cannot do
    // without.
    let hidden = has(said, b'b') && base64::decode(&said.keys[0]).is_some_and(|key| !clean(&key));
    if hidden && said.word == "me" {
        return None;
    }
    same.options.retain(|option| !hidden || option[0] != b'k');
    same.options.iter_mut().for_each(|option| *option = plain(option));
    Some(same)
}

/// Returns a flag with its number in digits. A few digits are left as they are.
fn plain(option: &[u8]) -> Vec<u8> {
    let (letter, text) = (option[0], &option[1..]);
    let number = match letter {
        b'T' | b'N' | b'R' => exptime(text),
        b'F' => flags(text),
        b'C' | b'E' | b'D' | b'J' => unsigned(text),
        _ => None,
    };
    let is_short = text.len() < 10 && text.first().is_some_and(u8::is_ascii_digit);
    match number.filter(|_| !is_short) {
        Some(number) => format!("{}{number}", char::from(letter)).into_bytes(),
        None => option.to_vec(),
    }
}

/// Returns the request to a server without the meta commands.
fn in_classic_words(said: &PlainRequest) -> Option<PlainRequest> {
    let mode = value(said, b'M').unwrap_or_default();
    let stored = || vec![number(said, b'F', 0), number(said, b'T', 0)];
    match said.word.as_str() {
        "mg" if within(said, b"bvfcksOPLT") => match has(said, b'T') {
            true => told(said, "gats", vec![number(said, b'T', 0)]),
            false => told(said, "gets", vec![]),
        },
        "ms" if within(said, b"bkOPLTFM") => {
            let word = match &mode[..] {
                b"E" => "add",
                b"A" => "append",
                b"P" => "prepend",
                b"R" => "replace",
                _ => "set",
            };
            told(said, word, stored())
        }
        "ms" if within(said, b"bkOPLTFMC") && matches!(&mode[..], b"" | b"S" | b"R") => {
            told(said, "cas", [stored(), vec![number(said, b'C', 0)]].concat())
        }
        "md" if within(said, b"bkOPL") => told(said, "delete", vec![]),
        "ma" if within(said, b"bkOPLDMv") => {
            let down = matches!(&mode[..], b"D" | b"-");
            told(said, if down { "decr" } else { "incr" }, vec![number(said, b'D', 1)])
        }
        _ => None,
    }
}

fn has(said: &PlainRequest, letter: u8) -> bool {
    said.options.iter().any(|option| option[0] == letter)
}

/// Returns whether it has no flags but these.
fn within(said: &PlainRequest, letters: &[u8]) -> bool {
    said.options.iter().all(|option| letters.contains(&option[0]))
}

fn value(said: &PlainRequest, letter: u8) -> Option<Vec<u8>> {
    let option = said.options.iter().find(|option| option[0] == letter);
    option.map(|option| option[1..].to_vec())
}

fn number(said: &PlainRequest, letter: u8, otherwise: i128) -> i128 {
    let read = |text: Vec<u8>| match letter {
        b'T' => exptime(&text),
        b'F' => flags(&text),
        _ => unsigned(&text),
    };
    value(said, letter).map_or(otherwise, |text| read(text).expect("it was read as a number"))
}

/// Returns the classic form, if it can contain the key.
fn told(said: &PlainRequest, word: &str, numbers: Vec<i128>) -> Option<PlainRequest> {
    let key = match has(said, b'b') {
        true => base64::decode(&said.keys[0]).expect("it was decoded before"),
        false => said.keys[0].clone(),
    };
    let (word, body) = (word.to_string(), said.body);
    clean(&key).then(|| PlainRequest {
        word,
        keys: vec![key],
        numbers,
        body,
        ..PlainRequest::default()
    })
}
