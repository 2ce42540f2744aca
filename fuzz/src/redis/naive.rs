//! A second RESP parser, written from the protocol's text and the servers' behaviour: strict, slow,
//! recursive and plain. Where it and the product's differ, one of them is wrong.

/// The result of parsing the start of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// A value, with its length in bytes.
    Is(T, usize),
    /// The input is not whole.
    Incomplete,
    /// The input cannot become valid.
    Hopeless,
}

/// Returns the arguments of a request; none if it is empty.
pub fn request(input: &[u8]) -> Reading<Vec<Vec<u8>>> {
    match input.first() {
        None => Reading::Incomplete,
        Some(b'*') => array(input),
        Some(_) => inline(input),
    }
}

fn array(input: &[u8]) -> Reading<Vec<Vec<u8>>> {
    let (count, mut at) = match counted(input, 0) {
        Reading::Is(count, at) => (count, at),
        Reading::Incomplete => return Reading::Incomplete,
        Reading::Hopeless => return Reading::Hopeless,
    };
    if count > i128::from(i32::MAX) {
        return Reading::Hopeless;
    }
    let mut arguments = Vec::new();
    for _ in 0..count {
        match input.get(at) {
            None => return Reading::Incomplete,
            Some(b'$') => {}
            Some(_) => return Reading::Hopeless,
        }
        let (len, start) = match counted(input, at) {
            Reading::Is(len, start) => (len, start),
            Reading::Incomplete => return Reading::Incomplete,
            Reading::Hopeless => return Reading::Hopeless,
        };
        if !(0..=512 << 20).contains(&len) {
            return Reading::Hopeless;
        }
        let end = start + len as usize;
        let Some(argument) = input.get(start..end + 2) else { return Reading::Incomplete };
        let Some(argument) = argument.strip_suffix(b"\r\n") else { return Reading::Hopeless };
        arguments.push(argument.to_vec());
        at = end + 2;
    }
    Reading::Is(arguments, at)
}

/// Returns the number after a type byte, and the end of its line.
fn counted(input: &[u8], at: usize) -> Reading<i128> {
    // As in servers, a line ends with the first CR.
    let Some(end) = input[at..].iter().position(|byte| *byte == b'\r') else {
        // No number is that long.
        let is_long = input.len() - at > 64 * 1024;
        return if is_long { Reading::Hopeless } else { Reading::Incomplete };
    };
    match (input.get(at + end + 1), number(&input[at + 1..at + end.max(1)])) {
        (None, _) => Reading::Incomplete,
        (Some(b'\n'), Some(number)) => Reading::Is(number, at + end + 2),
        _ => Reading::Hopeless,
    }
}

/// Parses a length as servers do: a minus, no plus, no leading zeros.
fn number(text: &[u8]) -> Option<i128> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_sound = !digits.is_empty()
        && digits.len() < 30
        && digits.iter().all(u8::is_ascii_digit)
        && (text == b"0" || digits[0] != b'0');
    let number: i64 = std::str::from_utf8(text).ok().filter(|_| is_sound)?.parse().ok()?;
    Some(i128::from(number))
}

fn inline(input: &[u8]) -> Reading<Vec<Vec<u8>>> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        let is_long = input.len() > 64 * 1024;
        return if is_long { Reading::Hopeless } else { Reading::Incomplete };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    match split(line) {
        // Servers treat these as a browser misused for an attack.
        Some(arguments) if arguments.first().is_some_and(|word| is_http(word)) => Reading::Hopeless,
        Some(arguments) => Reading::Is(arguments, end + 1),
        None => Reading::Hopeless,
    }
}

fn is_http(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"post") || word.eq_ignore_ascii_case(b"host:")
}

/// Splits a line into words, with quotes as in servers.
fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let is_blank = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let mut words = Vec::new();
    let mut rest = line;
    // To a server the line would end there, and the rest would be ignored.
    if rest.contains(&0) {
        return None;
    }
    loop {
        while rest.first().is_some_and(|byte| is_blank(*byte)) {
            rest = &rest[1..];
        }
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        let mut quote = None;
        loop {
            match (quote, rest) {
                (None, []) => break,
                // Fewer bytes end a word than may precede one.
                (None, [b' ' | b'\t' | b'\r' | b'\n', ..]) => break,
                (None, [byte @ (b'"' | b'\''), more @ ..]) => {
                    quote = Some(*byte);
                    rest = more;
                }
                (None, [byte, more @ ..]) => {
                    word.push(*byte);
                    rest = more;
                }
                (Some(_), []) => return None,
                (Some(b'"'), [b'\\', b'x', high, low, more @ ..])
                    if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    let digits = [*high, *low];
                    let text = std::str::from_utf8(&digits).ok()?;
                    word.push(u8::from_str_radix(text, 16).ok()?);
                    rest = more;
                }
                (Some(b'"'), [b'\\', byte, more @ ..]) => {
                    word.push(match byte {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => *other,
                    });
                    rest = more;
                }
                (Some(b'\''), [b'\\', b'\'', more @ ..]) => {
                    word.push(b'\'');
                    rest = more;
                }
                (Some(end), [byte, more @ ..]) if end == *byte => {
                    // A closing quote ends its word.
                    if more.first().is_some_and(|byte| !is_blank(*byte)) {
                        return None;
                    }
                    rest = more;
                    break;
                }
                (Some(_), [byte, more @ ..]) => {
                    word.push(*byte);
                    rest = more;
                }
            }
        }
        words.push(word);
    }
}

/// Parses one value of a reply; `depth` limits the parser, not the protocol.
pub fn value(input: &[u8], depth: usize) -> Reading<()> {
    let mut at = 0;
    value_at(input, &mut at, depth)
}

fn value_at(input: &[u8], at: &mut usize, depth: usize) -> Reading<()> {
    let Some(&kind) = input.get(*at) else { return Reading::Incomplete };
    if depth == 0 {
        return Reading::Hopeless;
    }
    match kind {
        // Scripts may write any text here, but only one line.
        b'+' | b'-' | b'(' | b',' => simple(input, at, |_| true),
        b':' => simple(input, at, is_integer),
        b'#' => simple(input, at, |text| text == b"t" || text == b"f"),
        b'_' => simple(input, at, <[u8]>::is_empty),
        b'$' | b'=' | b'!' => bulk(input, at, kind == b'$'),
        b'*' | b'~' | b'%' | b'|' => {
            let (count, end) = match counted(input, *at) {
                Reading::Is(count, end) => (count, end),
                Reading::Incomplete => return Reading::Incomplete,
                Reading::Hopeless => return Reading::Hopeless,
            };
            *at = end;
            let many = match (kind, count) {
                (b'*', -1) => return Reading::Is((), end),
                (_, i128::MIN..0) | (_, 0x1_0000_0000..) => return Reading::Hopeless,
                (b'%', count) => 2 * count,
                (b'|', count) => 2 * count + 1,
                (_, count) => count,
            };
            for _ in 0..many {
                match value_at(input, at, depth - 1) {
                    Reading::Is((), end) => *at = end,
                    other => return other,
                }
            }
            Reading::Is((), *at)
        }
        _ => Reading::Hopeless,
    }
}

fn simple(input: &[u8], at: &mut usize, is_sound: impl Fn(&[u8]) -> bool) -> Reading<()> {
    let rest = &input[*at + 1..];
    let Some(len) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return Reading::Incomplete;
    };
    match rest.get(len..len + 2) {
        None if rest[len] == b'\r' => Reading::Incomplete,
        Some(b"\r\n") if is_sound(&rest[..len]) => Reading::Is((), *at + 1 + len + 2),
        _ => Reading::Hopeless,
    }
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn bulk(input: &[u8], at: &mut usize, may_be_null: bool) -> Reading<()> {
    match counted(input, *at) {
        Reading::Is(-1, end) if may_be_null => Reading::Is((), end),
        Reading::Is(len @ 0..=0x2000_0000, start) => {
            let end = start + len as usize;
            match input.get(end..end + 2) {
                None => Reading::Incomplete,
                Some(b"\r\n") => Reading::Is((), end + 2),
                Some(_) => Reading::Hopeless,
            }
        }
        Reading::Incomplete => Reading::Incomplete,
        _ => Reading::Hopeless,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_as_servers_split_them() {
        for (line, words) in [
            (&b"set k v\r\n"[..], Some(&[&b"set"[..], b"k", b"v"][..])),
            (b"  echo \"a b\\x41\\n\" \n", Some(&[b"echo", b"a bA\n"])),
            (b"echo 'a\\'b' \"\"\r\n", Some(&[b"echo", b"a'b", b""])),
            (b"ec\"ho\" x\r\n", Some(&[b"echo", b"x"])),
            (b"\r\n", Some(&[])),
            (b"echo \"x\r\n", None),
            (b"echo \"x\"y\r\n", None),
        ] {
            let read = match request(line) {
                Reading::Is(words, _) => Some(words),
                _ => None,
            };
            let words = words.map(|words| words.iter().map(|one| one.to_vec()).collect());
            assert_eq!(read, words, "{}", line.escape_ascii());
        }
    }
}
