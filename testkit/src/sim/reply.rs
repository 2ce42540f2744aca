//! Parses replies as a client does: a small parser of its own, so that a mistake in `proto` cannot
//! hide itself.

use std::ops::Range;

use super::client::Asked;

/// A whole reply.
pub struct Reply {
    /// The values, in their order.
    pub values: Vec<Hit>,
    /// The line that ends it, or its only line; without the line break.
    pub line: Range<usize>,
    /// Its length.
    pub len: usize,
}

/// One value.
pub struct Hit {
    pub key: Range<usize>,
    pub flags: u32,
    pub cas: Option<u64>,
    pub bytes: Range<usize>,
}

/// Returns the first reply in `input`, if it is whole.
pub fn parse(asked: &Asked, input: &[u8]) -> Option<Reply> {
    let mut values = Vec::new();
    let mut at = 0;
    loop {
        let line = line(input, at)?;
        let text = &input[line.clone()];
        let next = line.end + 2;
        match asked {
            Asked::Read { with_cas, .. } if text.starts_with(b"VALUE ") => {
                let hit = value(input, line, *with_cas);
                at = hit.bytes.end + 2;
                if input.len() < at {
                    return None;
                }
                assert_eq!(&input[hit.bytes.end..at], b"\r\n", "a value without its end");
                values.push(hit);
            }
            Asked::Stats if text.starts_with(b"STAT ") => at = next,
            _ => return Some(Reply { values, line, len: next }),
        }
    }
}

fn line(input: &[u8], at: usize) -> Option<Range<usize>> {
    let len = input[at..].iter().position(|byte| *byte == b'\n')?;
    assert!(len > 0 && input[at + len - 1] == b'\r', "a line without CR LF");
    Some(at..at + len - 1)
}

/// `VALUE key flags bytes [cas]`
fn value(input: &[u8], line: Range<usize>, with_cas: bool) -> Hit {
    let text = std::str::from_utf8(&input[line.clone()]).expect("an ASCII line");
    let words: Vec<&str> = text.split(' ').collect();
    assert_eq!(words.len(), if with_cas { 5 } else { 4 }, "words in {text:?}");
    let number = |at: usize| words[at].parse::<u64>().expect("a number in a VALUE line");
    let key = line.start + 6..line.start + 6 + words[1].len();
    let start = line.end + 2;
    let bytes = start..start + number(3) as usize;
    let flags = u32::try_from(number(2)).expect("flags have 32 bits");
    Hit { key, flags, cas: with_cas.then(|| number(4)), bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_ends_where_it_ends() {
        let asked = Asked::Read { keys: vec![0], with_cas: false };
        let text = b"VALUE k 1 5\r\nE\r\nND\r\nEND\r\nEND\r\n";
        for len in 0..25 {
            assert!(parse(&asked, &text[..len]).is_none(), "{len}");
        }
        let reply = parse(&asked, text).unwrap();
        assert_eq!(reply.len, 25);
        assert_eq!(&text[reply.values[0].bytes.clone()], b"E\r\nND");
    }
}
