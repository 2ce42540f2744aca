//! A second reader of meta requests, and a second opinion on how they reach a server: written from
//! the protocol's text alone, slow and plain.

use crate::naive::{Reading, Said, clean, exptime, unsigned};

const LETTERS: &[u8] = b"bcfhklqstuvCDEFIJLMNOPRSTx";
const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Reads the rest of a line that begins with this word.
pub fn read(word: &[u8], rest: &[&[u8]]) -> Reading {
    if word == b"mn" {
        return Reading::Kept { body: None };
    }
    let Some((key, mut options)) = rest.split_first() else { return Reading::Kept { body: None } };
    let mut body = None;
    if word == b"ms" {
        let length = options.first().and_then(|text| unsigned(text, 2_147_483_645));
        let Some(length) = length else { return Reading::Hopeless };
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
    let decoded = if coded { decode(key) } else { Some(key.to_vec()) };
    if decoded.is_none() {
        return kept;
    }
    let mut said = Said {
        word: String::from_utf8_lossy(word).into_owned(),
        keys: vec![key.to_vec()],
        body,
        ..Said::default()
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
        b'F' => unsigned(text, u64::from(u32::MAX)).is_some(),
        b'C' | b'E' | b'D' | b'J' | b'S' => unsigned(text, u64::MAX).is_some(),
        b'M' if word == b"ms" => matches!(text, b"S" | b"E" | b"A" | b"P" | b"R"),
        b'M' if word == b"ma" => matches!(text, b"I" | b"+" | b"D" | b"-"),
        b'M' => text.len() == 1,
        b'O' => text.len() <= 31,
        b'P' | b'L' => true,
        _ => text.is_empty(),
    }
}

/// What a server is told, if it can be: `meta`: the server has the meta commands.
pub fn expected(said: &Said, meta: bool) -> Option<Said> {
    let given: Vec<u8> = said.options.iter().map(|option| option[0]).collect();
    let within = |letters: &[u8]| given.iter().all(|letter| letters.contains(letter));
    let value = |letter: u8| {
        let option = said.options.iter().find(|option| option[0] == letter);
        option.map(|option| option[1..].to_vec())
    };
    let number = |letter: u8, otherwise: i128| {
        value(letter).map_or(otherwise, |text| {
            String::from_utf8_lossy(&text).parse().expect("it was read as a number")
        })
    };
    let with_cas = given.contains(&b'c');
    let told = |word: &str, numbers: Vec<i128>| {
        let key = match given.contains(&b'b') {
            true => decode(&said.keys[0]).expect("it was decoded before"),
            false => said.keys[0].clone(),
        };
        let body = said.body;
        clean(&key).then(|| Said {
            word: word.to_string(),
            keys: vec![key],
            numbers,
            body,
            ..Said::default()
        })
    };
    let reads = said.word == "mg" && given.contains(&b'v') && within(b"vfcksOPLT");
    if reads && !given.contains(&b'T') {
        return told(if with_cas { "gets" } else { "get" }, vec![]);
    }
    if reads {
        return told(if with_cas { "gats" } else { "gat" }, vec![number(b'T', 0)]);
    }
    if meta {
        let mut same = Said { quiet: false, ..said.clone() };
        // A server may send such a key back as it is: it is not asked for it, which `me` cannot do.
        let hidden = given.contains(&b'b') && decode(&said.keys[0]).is_some_and(|key| !clean(&key));
        if hidden && said.word == "me" {
            return None;
        }
        same.options.retain(|option| !hidden || option[0] != b'k');
        return Some(same);
    }
    let mode = value(b'M').unwrap_or_default();
    match said.word.as_str() {
        "mg" if within(b"bvfcksOPLT") => match given.contains(&b'T') {
            true => told("gats", vec![number(b'T', 0)]),
            false => told("gets", vec![]),
        },
        "ms" if within(b"bkOPLTFM") => {
            let word = match &mode[..] {
                b"E" => "add",
                b"A" => "append",
                b"P" => "prepend",
                b"R" => "replace",
                _ => "set",
            };
            told(word, vec![number(b'F', 0), number(b'T', 0)])
        }
        "ms" if within(b"bkOPLTFMC") && matches!(&mode[..], b"" | b"S" | b"R") => {
            told("cas", vec![number(b'F', 0), number(b'T', 0), number(b'C', 0)])
        }
        "md" if within(b"bkOPL") => told("delete", vec![]),
        "ma" if within(b"bkOPLDMv") => {
            let down = matches!(&mode[..], b"D" | b"-");
            told(if down { "decr" } else { "incr" }, vec![number(b'D', 1)])
        }
        _ => None,
    }
}

/// The bytes of canonical base64; `None` for what is none, or nothing.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'=').collect();
    let mut bits = String::new();
    for digit in digits {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        bits += &format!("{value:06b}");
    }
    let whole = bits.len() / 8 * 8;
    let bytes: Vec<u8> = (0..whole)
        .step_by(8)
        .map(|at| u8::from_str_radix(&bits[at..at + 8], 2).expect("eight bits"))
        .collect();
    (!bytes.is_empty() && encode(&bytes) == text).then_some(bytes)
}

/// The base64 of some bytes.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    while !bits.len().is_multiple_of(6) {
        bits.push('0');
    }
    let mut text: Vec<u8> = (0..bits.len())
        .step_by(6)
        .map(|at| DIGITS[usize::from_str_radix(&bits[at..at + 6], 2).expect("six bits")])
        .collect();
    while !text.len().is_multiple_of(4) {
        text.push(b'=');
    }
    text
}
