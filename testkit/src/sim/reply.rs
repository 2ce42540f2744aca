//! Replies to classic requests, as a client reads them.

use std::ops::Range;

use super::client::Asked;
use crate::wire::text::{self, Line};
use crate::wire::whole;

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
        let (line, len) = whole(input, text::reply(&input[at..]))?;
        match asked {
            Asked::Read { with_cas, .. } if line.data.is_some() => {
                values.push(value(&line, at, *with_cas));
            }
            Asked::Stats if line.text.starts_with(b"STAT ") => {}
            _ => return Some(Reply { values, line: at..at + line.text.len(), len: at + len }),
        }
        at += len;
    }
}

/// `VALUE key flags bytes [cas]`
fn value(line: &Line<'_>, at: usize, with_cas: bool) -> Hit {
    assert_eq!(line.words().count(), if with_cas { 5 } else { 4 }, "words in {:?}", line.lossy());
    let number = |word| line.number(word).expect("a number in a VALUE line");
    let key = line.words().nth(1).expect("four words or more");
    let data = line.data.clone().expect("the caller looked");
    let flags = u32::try_from(number(2)).expect("flags have 32 bits");
    let cas = with_cas.then(|| number(4));
    Hit { key: at + 6..at + 6 + key.len(), flags, cas, bytes: at + data.start..at + data.end }
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
