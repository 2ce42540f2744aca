//! RESP for the model's clients and servers: a small parser of its own, so that a mistake in
//! `proto` cannot hide itself.

use std::ops::Range;

/// Returns the end of the first value, if it is whole. Panics on a value that a client of that
/// version must never receive.
pub fn value(input: &[u8], proto_version: u8) -> Option<usize> {
    let mut left = 1usize;
    let mut at = 0;
    while left > 0 {
        let line = line(input, at)?;
        left -= 1;
        let (kind, text) = (input[at], &input[at + 1..line]);
        at = line + 2;
        assert!(proto_version == 3 || b"+-:$*".contains(&kind), "{:?} in RESP2", char::from(kind));
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'=' | b'!' if text == b"-1" => {}
            b'$' | b'=' | b'!' => {
                let end = at + count(text);
                let last = input.get(end..end + 2)?;
                assert_eq!(last, b"\r\n", "a bulk without its end");
                at = end + 2;
            }
            b'*' if text == b"-1" => {}
            b'*' | b'~' => left += count(text),
            b'%' => left += 2 * count(text),
            // The value that an attribute belongs to follows it.
            b'|' => left += 2 * count(text) + 1,
            other => panic!("no type of RESP: {:?}", char::from(other)),
        }
    }
    Some(at)
}

/// Returns the elements of an array.
pub fn elements(reply: &[u8], proto_version: u8) -> Option<Vec<Range<usize>>> {
    let head = line(reply, 0)?;
    if reply[0] != b'*' || reply[1..head] == *b"-1" {
        return None;
    }
    let mut at = head + 2;
    let places = (0..count(&reply[1..head])).map(|_| {
        let start = at;
        at += value(&reply[start..], proto_version).expect("the whole is whole");
        start..at
    });
    Some(places.collect())
}

/// Returns the arguments of the first command, in the only form the proxy may write, and its
/// length.
pub fn command(input: &[u8]) -> Option<(Vec<Range<usize>>, usize)> {
    let head = line(input, 0)?;
    assert_eq!(input[0], b'*', "no array: {:?}", String::from_utf8_lossy(&input[..head]));
    let mut at = head + 2;
    let mut arguments = Vec::new();
    for _ in 0..count(&input[1..head]) {
        let line = line(input, at)?;
        assert_eq!(input[at], b'$', "no bulk");
        let start = line + 2;
        let end = start + count(&input[at + 1..line]);
        assert_eq!(input.get(end..end + 2)?, b"\r\n", "a bulk does not end where it says");
        arguments.push(start..end);
        at = end + 2;
    }
    assert!(!arguments.is_empty(), "a command without a word");
    Some((arguments, at))
}

fn line(input: &[u8], at: usize) -> Option<usize> {
    let rest = input.get(at..)?;
    let len = rest.iter().position(|byte| *byte == b'\n')?;
    assert!(len > 1 && rest[len - 1] == b'\r', "a line without CR LF, or an empty one");
    Some(at + len - 1)
}

/// Parses a length in its only form.
fn count(text: &[u8]) -> usize {
    let text = std::str::from_utf8(text).expect("digits");
    let number: usize = text.parse().unwrap_or_else(|_| panic!("no length: {text:?}"));
    assert_eq!(number.to_string(), text, "a length in a form of its own");
    number
}

/// Returns the number in `:n`.
pub fn number(reply: &[u8]) -> Option<i64> {
    let text = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

pub fn put_array(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(format!("*{len}\r\n").as_bytes());
}

pub fn put_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub fn put_null(out: &mut Vec<u8>, proto_version: u8) {
    out.extend_from_slice(if proto_version == 3 { b"_\r\n" } else { b"$-1\r\n" });
}

pub fn put_number(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(format!(":{number}\r\n").as_bytes());
}

pub fn put_line(out: &mut Vec<u8>, line: &str) {
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_where_it_ends() {
        let text =
            b"*3\r\n$4\r\n\r\n+x\r\n%1\r\n+a\r\n*1\r\n_\r\n|1\r\n+k\r\n#t\r\n,1.5\r\n+next\r\n";
        let end = text.len() - 7;
        for len in 0..end {
            assert_eq!(value(&text[..len], 3), None, "{len}");
        }
        assert_eq!(value(text, 3), Some(end));
        assert_eq!(elements(text, 3).map(|all| all.len()), Some(3));
    }
}
