//! The answers of meta and binary, as a client reads them.

use std::ops::Range;

use super::forms::Form;
use super::reply::Hit;
use crate::wire::binary::{HEAD_LEN, Packet, REPLY};
use crate::wire::{text, whole};

/// One answer.
pub struct Told {
    /// The opaque of its request, if it has one.
    pub opaque: Option<u32>,
    pub outcome: Outcome,
    /// The equivalent answer in the classic protocol.
    pub line: String,
    pub key: Option<Range<usize>>,
    pub hit: Option<Hit>,
    pub cas: u64,
    pub marks: Marks,
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Good,
    Miss,
    NotStored,
    Exists,
    NotFound,
    Barrier,
    Error,
}

/// The properties of an item in a meta answer, besides its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// This client is to fill the item.
    pub wins: bool,
    pub stale: bool,
    /// Another client is to fill the item.
    pub won: bool,
}

/// Returns the first answer in `input`, if it is whole.
pub fn parse(form: &Form, client: u32, input: &[u8]) -> Option<Told> {
    match form.opcode {
        Some(_) => packet(input),
        None => line(client, input),
    }
}

fn told(outcome: Outcome, line: &str, len: usize) -> Told {
    let marks = Marks::default();
    let line = line.to_string();
    Told { opaque: None, outcome, line, key: None, hit: None, cas: 0, marks, len }
}

fn line(client: u32, input: &[u8]) -> Option<Told> {
    let (line, len) = whole(input, text::reply(input))?;
    let text = std::str::from_utf8(line.text).expect("an ASCII line");
    let words: Vec<&str> = text.split(' ').collect();
    let mut told = match words[0] {
        "HD" => told(Outcome::Good, "", len),
        "EN" => told(Outcome::Miss, "END", len),
        "NS" => told(Outcome::NotStored, "NOT_STORED", len),
        "EX" => told(Outcome::Exists, "EXISTS", len),
        "NF" => told(Outcome::NotFound, "NOT_FOUND", len),
        "MN" => return Some(told(Outcome::Barrier, "MN", len)),
        "VA" => {
            let bytes = line.data.expect("a value announces its data");
            let mut told = told(Outcome::Good, "", len);
            told.line = String::from_utf8_lossy(&input[bytes.clone()]).into_owned();
            told.hit = Some(Hit { key: 0..0, flags: 0, cas: None, bytes });
            told
        }
        _ => return Some(told(Outcome::Error, text, len)),
    };
    let mut at = words[0].len();
    for word in &words[1..] {
        at += 1;
        let place = at..at + word.len();
        at += word.len();
        let rest = &word[1..];
        match word.as_bytes()[0] {
            b'O' => {
                let own = rest.strip_prefix(&format!("{client}x"));
                let own = own.unwrap_or_else(|| panic!("another client's opaque in {text:?}"));
                told.opaque = Some(own.parse().expect("a number"));
            }
            b'k' => told.key = Some(place.start + 1..place.end),
            b'f' => {
                let hit = told.hit.as_mut().expect("flags of a value");
                hit.flags = rest.parse().expect("flags");
            }
            b'c' => {
                told.cas = rest.parse().expect("a cas number");
                if let Some(hit) = &mut told.hit {
                    hit.cas = Some(told.cas);
                }
            }
            b'W' => told.marks.wins = true,
            b'X' => told.marks.stale = true,
            b'Z' => told.marks.won = true,
            b'0'..=b'9' => {}
            _ => panic!("{word:?} in {text:?}"),
        }
    }
    Some(told)
}

fn packet(input: &[u8]) -> Option<Told> {
    let (packet, len) = whole(input, Packet::read(input))?;
    assert_eq!(packet.magic, REPLY, "no reply: {packet:?}");
    let (key_len, extras) = (packet.key.len(), packet.extras.len());
    let words = String::from_utf8_lossy(packet.value).into_owned();
    let (outcome, line) = match packet.status {
        0x00 => (Outcome::Good, words.clone()),
        0x01 => (Outcome::NotFound, "NOT_FOUND".to_string()),
        0x02 => (Outcome::Exists, "EXISTS".to_string()),
        0x05 => (Outcome::NotStored, "NOT_STORED".to_string()),
        0x04 => (Outcome::Error, format!("CLIENT_ERROR {words}")),
        0x06 => (Outcome::Error, NON_NUMERIC.to_string()),
        0x82 => (Outcome::Error, "SERVER_ERROR out of memory storing object".to_string()),
        0x83 => (Outcome::Error, format!("CLIENT_ERROR {words}")),
        0x84 | 0x86 => (Outcome::Error, format!("SERVER_ERROR {words}")),
        status => panic!("status {status:#x}: {words}"),
    };
    let mut told = told(outcome, &line, len);
    told.opaque = Some(packet.opaque);
    told.cas = packet.cas;
    if key_len > 0 {
        told.key = Some(HEAD_LEN + extras..HEAD_LEN + extras + key_len);
    }
    if let (Outcome::Good, [one, two, three, four]) = (outcome, packet.extras) {
        let flags = u32::from_be_bytes([*one, *two, *three, *four]);
        let bytes = HEAD_LEN + extras + key_len..len;
        told.hit = Some(Hit { key: 0..0, flags, cas: Some(told.cas), bytes });
    } else if let (Outcome::Good, Ok(number)) = (outcome, packet.value.try_into()) {
        told.line = u64::from_be_bytes(number).to_string();
    }
    Some(told)
}

pub const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
