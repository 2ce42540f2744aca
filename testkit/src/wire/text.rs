//! Lines of memcached's classic and meta commands, with the data that some of them announce.

use std::ops::Range;

use super::Reading;
use super::Unread::{Hopeless, Incomplete};

/// A line and its data.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The line without its end.
    pub text: &'a [u8],
    /// The place of the data, if it announces some.
    pub data: Option<Range<usize>>,
}

/// Reads a command with its data.
pub fn command(input: &[u8]) -> Reading<Line<'_>> {
    read(input, |word| match word {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => Some(4),
        b"ms" => Some(2),
        _ => None,
    })
}

/// Reads one line of a reply, with the value after it.
pub fn reply(input: &[u8]) -> Reading<Line<'_>> {
    read(input, |word| match word {
        b"VALUE" => Some(3),
        b"VA" => Some(1),
        _ => None,
    })
}

/// Reads a line; `place` tells which word of it is the length of its data.
fn read(input: &[u8], place: fn(&[u8]) -> Option<usize>) -> Reading<Line<'_>> {
    let len = input.iter().position(|byte| *byte == b'\n').ok_or(Incomplete)?;
    let text = input[..len].strip_suffix(b"\r").ok_or(Hopeless)?;
    let (mut line, start) = (Line { text, data: None }, len + 1);
    let Some(place) = line.words().next().and_then(place) else { return Ok((line, start)) };
    let len = line.number(place).filter(|len| *len <= DATA_MAX).ok_or(Hopeless)?;
    let end = start + len as usize;
    line.data = Some(start..end);
    match input.get(end..end + 2) {
        None => Err(Incomplete),
        Some(b"\r\n") => Ok((line, end + 2)),
        Some(_) => Err(Hopeless),
    }
}

impl<'a> Line<'a> {
    /// Returns its words: what stands between two spaces.
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.text.split(|byte| *byte == b' ')
    }

    /// Returns the number at that place.
    pub fn number(&self, at: usize) -> Option<u64> {
        std::str::from_utf8(self.words().nth(at)?).ok()?.parse().ok()
    }

    /// Returns the whole line for people.
    pub fn lossy(&self) -> String {
        String::from_utf8_lossy(self.text).into_owned()
    }
}

/// Appends a value as the reply to a classic read; `cas` is its number, if that was asked for.
pub fn put_value(out: &mut Vec<u8>, key: &[u8], flags: u32, cas: Option<u64>, data: &[u8]) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    put_number(out, u64::from(flags));
    put_number(out, data.len() as u64);
    cas.into_iter().for_each(|cas| put_number(out, cas));
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends a space and a number; `write!` costs several times as much, and this is the simulator's
/// hottest loop.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b' '; 21];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at - 1..]);
}

/// More than any test sends.
const DATA_MAX: u64 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_looks_like_an_end_is_a_value() {
        let mut input = Vec::new();
        put_value(&mut input, b"k", 0, Some(77), b"END\r\n");
        let len = input.len();
        assert_eq!(input, b"VALUE k 0 5 77\r\nEND\r\n\r\n");
        assert!((0..len).all(|cut| reply(&input[..cut]) == Err(Incomplete)));
        input.extend_from_slice(b"END\r\n");
        let (line, used) = reply(&input).expect("a whole value");
        assert_eq!((used, line.number(4), line.data), (len, Some(77), Some(16..21)));
        assert_eq!(reply(b"VALUE k 0 1\r\nab\r\n"), Err(Hopeless));
    }
}
