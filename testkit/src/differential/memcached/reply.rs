//! Answers as words that can be compared: cas numbers and times are separated from bytes that must
//! be equal.

use super::request::shorten;
use crate::wire::binary::{Packet, REPLY};
use crate::wire::{Unread, text};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    pub words: Vec<Word>,
    pub body: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    Text(Vec<u8>),
    Cas(u64),
    /// Seconds: may differ by the time between the two sides' requests.
    Time(i64),
    /// The memory cost of an item in a store, which is not compared.
    Cost,
}

impl Reply {
    /// The reply for a connection closed by the other side.
    pub fn closed() -> Reply {
        Reply { words: vec![Word::Text(b"(closed)".to_vec())], body: Vec::new() }
    }

    pub fn first(&self) -> &[u8] {
        match self.words.first() {
            Some(Word::Text(word)) => word,
            _ => b"",
        }
    }

    /// Returns the whole text of a one-line reply.
    pub fn line(&self) -> Vec<u8> {
        let words = self.words.iter().map(|word| match word {
            Word::Text(text) => text.clone(),
            Word::Cas(number) => format!("(cas {number})").into_bytes(),
            Word::Time(seconds) => format!("(time {seconds})").into_bytes(),
            Word::Cost => b"(cost)".to_vec(),
        });
        words.collect::<Vec<_>>().join(&b' ')
    }

    /// Returns its cas number, if it has one.
    pub fn cas(&self) -> Option<u64> {
        self.words.iter().find_map(|word| match word {
            Word::Cas(number) if *number > 0 => Some(*number),
            _ => None,
        })
    }

    /// Returns the status of a binary answer.
    pub fn status(&self) -> Option<u16> {
        match (self.words.first(), self.words.get(2)) {
            (Some(Word::Text(first)), Some(Word::Text(status))) if first == b"packet" => {
                Some(u16::from_be_bytes(status[..].try_into().ok()?))
            }
            _ => None,
        }
    }

    /// Returns the opaque of a binary answer, or of a meta answer that has one.
    pub fn opaque(&self) -> Option<u32> {
        let Some(Word::Text(first)) = self.words.first() else { return None };
        if first == b"packet" {
            let Some(Word::Text(opaque)) = self.words.get(3) else { return None };
            return Some(u32::from_be_bytes(opaque[..].try_into().ok()?));
        }
        self.words.iter().skip(1).find_map(|word| match word {
            Word::Text(text) => std::str::from_utf8(text).ok()?.strip_prefix('O')?.parse().ok(),
            _ => None,
        })
    }

    /// Returns the key in it, in the form of the answer.
    pub fn key(&self) -> Option<Vec<u8>> {
        let text = |at: usize| match self.words.get(at) {
            Some(Word::Text(text)) => Some(text.clone()),
            _ => None,
        };
        match self.first() {
            b"VALUE" | b"ME" => text(1),
            b"packet" => text(7).filter(|key| !key.is_empty()),
            _ => (1..self.words.len()).find_map(|at| Some(text(at)?.strip_prefix(b"k")?.to_vec())),
        }
    }

    pub fn shown(&self) -> String {
        let mut line = self.line();
        shorten(&mut line);
        let shown = line.escape_ascii().to_string();
        let body = self.body[..self.body.len().min(60)].escape_ascii().to_string();
        match self.body.len() {
            0 => shown,
            len => format!("{shown} + {len} bytes: {body}"),
        }
    }
}

/// Reads the first whole line of text, with a value after it.
pub fn text(input: &[u8]) -> Option<(Reply, usize)> {
    match text::reply(input) {
        Err(Unread::Incomplete) => None,
        Err(Unread::Hopeless) => Some(unknown("no line", input)),
        Ok((line, len)) => {
            let first = line.words().next().unwrap_or_default();
            let words = line.words().enumerate().map(|(at, word)| kind(first, at, word)).collect();
            let body = line.data.map_or(Vec::new(), |data| input[data].to_vec());
            Some((Reply { words, body }, len))
        }
    }
}

/// Returns a reply for input after which nothing else can be read.
fn unknown(what: &str, input: &[u8]) -> (Reply, usize) {
    let words = [what.as_bytes(), input].map(|word| Word::Text(word.to_vec())).to_vec();
    (Reply { words, body: Vec::new() }, input.len())
}

fn kind(first: &[u8], at: usize, word: &[u8]) -> Word {
    let number = |from: usize| std::str::from_utf8(word.get(from..)?).ok();
    let cas = |from| number(from).and_then(|word| word.parse().ok()).map(Word::Cas);
    let time = |from| number(from).and_then(|word| word.parse().ok()).map(Word::Time);
    let special = match (first, at, word) {
        (b"VALUE", 4, _) => cas(0),
        (b"HD" | b"VA" | b"NS" | b"EX" | b"NF" | b"EN", 1.., [b'c', ..]) => cas(1),
        (b"HD" | b"VA", 1.., [b't' | b'l', ..]) => time(1),
        (b"ME", 2.., [b'c', b'a', b's', b'=', ..]) => cas(4),
        (b"ME", 2.., [b'e', b'x', b'p', b'=', ..]) => time(4),
        (b"ME", 2.., [b'l', b'a', b'=', ..]) => time(3),
        (b"ME", 2.., [b'c', b'l', b's', b'=', ..] | [b's', b'i', b'z', b'e', b'=', ..]) => {
            Some(Word::Cost)
        }
        _ => None,
    };
    special.unwrap_or_else(|| Word::Text(word.to_vec()))
}

/// `packet opcode status opaque datatype cas extras key`, and the value.
pub fn packet(input: &[u8]) -> Option<(Reply, usize)> {
    let text = |bytes: &[u8]| Word::Text(bytes.to_vec());
    match Packet::read(input) {
        Err(Unread::Incomplete) => None,
        Ok((packet, len)) if packet.magic == REPLY => {
            let words = vec![
                text(b"packet"),
                text(&[packet.code]),
                text(&packet.status.to_be_bytes()),
                text(&packet.opaque.to_be_bytes()),
                text(&[packet.datatype]),
                Word::Cas(packet.cas),
                text(packet.extras),
                text(packet.key),
            ];
            Some((Reply { words, body: packet.value.to_vec() }, len))
        }
        _ => Some(unknown("no packet", input)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_looks_like_an_end_is_a_value() {
        let input = b"VALUE k 0 5 77\r\nEND\r\n\r\nEND\r\n";
        let (reply, len) = text(input).expect("a whole value");
        assert_eq!((len, reply.cas(), &reply.body[..]), (23, Some(77), &b"END\r\n"[..]));
        assert_eq!(text(&input[..22]), None);
    }

    #[test]
    fn times_and_numbers_of_a_meta_reply_are_known_as_such() {
        let (reply, _) = text(b"HD t-1 c5 l3 kc5 Ot1\r\n").expect("a whole line");
        let word = |word: &[u8]| Word::Text(word.to_vec());
        let words = [word(b"HD"), Word::Time(-1), Word::Cas(5), Word::Time(3)];
        assert_eq!(reply.words, [&words[..], &[word(b"kc5"), word(b"Ot1")]].concat());
    }
}
