//! RESP as clients and servers read it: from the protocol's text and the servers' behaviour.

use std::fmt;
use std::ops::Range;

use super::Unread::{Hopeless, Incomplete};
use super::{Reading, shown, whole};

/// One reply. Different forms of the two versions stay different, because the proxy converts
/// nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` and `_`.
    Null(u8),
    Array(Vec<Reply>),
    /// RESP3's `%`.
    Map(Vec<(Reply, Reply)>),
    Set(Vec<Reply>),
    Push(Vec<Reply>),
    /// `,` `#` `(` `=` and `!`, with their text unchanged.
    Other(u8, Vec<u8>),
}

/// The types of RESP2.
pub const TWO: &[u8] = b"+-:$*";
/// The types of RESP3 in the reply to a command.
pub const THREE: &[u8] = b"+-:$*_#,(=!~%|";
/// All types, that of a message which no command asked for included.
const ALL: &[u8] = b"+-:$*_#,(=!~%|>";

/// Returns the arguments of a request; none if it is empty.
pub fn request(input: &[u8]) -> Reading<Vec<Vec<u8>>> {
    match input.first() {
        None => Err(Incomplete),
        Some(b'*') => array(input),
        Some(_) => inline(input),
    }
}

/// Returns the arguments of a command, if it is whole, in the only form that the proxy may write.
#[track_caller]
pub fn read_command(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (words, len) = whole(input, request(input))?;
    assert!(input[0] == b'*' && !words.is_empty(), "no command: {words:?}");
    Some((words, len))
}

/// Reads one reply of these types.
pub fn value(input: &[u8], kinds: &[u8]) -> Reading<()> {
    let (mut at, mut left) = (0, 1);
    while left > 0 {
        let (item, end) = item(input, at, kinds)?;
        at = end;
        left += item.below - 1;
    }
    Ok(((), at))
}

/// Reads one reply of any type.
pub fn reply(input: &[u8]) -> Reading<Reply> {
    let ((), len) = value(input, ALL)?;
    Ok((tree(input, &mut 0), len))
}

/// Returns the places of the elements of an array that is whole.
pub fn elements(reply: &[u8]) -> Option<Vec<Range<usize>>> {
    let (array, mut at) = item(reply, 0, b"*").ok()?;
    let places = (0..array.below).map(|_| {
        let start = at;
        at += value(&reply[start..], ALL).expect("the whole is whole").1;
        start..at
    });
    (!array.is_null).then(|| places.collect())
}

/// Returns the number in `:n`.
pub fn number(reply: &[u8]) -> Option<i64> {
    let text = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The start of a value: its line, and the bytes of a string.
struct Item {
    kind: u8,
    /// The rest of the line, or the string.
    text: Range<usize>,
    is_null: bool,
    /// The number of values after it that belong to it.
    below: i64,
}

fn item(input: &[u8], at: usize, kinds: &[u8]) -> Reading<Item> {
    let kind = *input.get(at).ok_or(Incomplete)?;
    if !kinds.contains(&kind) {
        return Err(Hopeless);
    }
    let of = |text, is_null, below| Item { kind, text, is_null, below };
    match kind {
        b'$' | b'=' | b'!' => {
            let null = counted(input, at)?;
            if kind == b'$' && null.0 == -1 {
                return Ok((of(at..at, true, 0), null.1));
            }
            let (text, end) = string(input, at)?;
            Ok((of(text, false, 0), end))
        }
        b'*' | b'~' | b'%' | b'|' | b'>' => {
            let (count, end) = counted(input, at)?;
            let below = match (kind, count) {
                (b'*', -1) => 0,
                (_, i64::MIN..0) | (_, 0x1_0000_0000..) => return Err(Hopeless),
                (b'%', count) => 2 * count,
                // The value that an attribute belongs to follows it.
                (b'|', count) => 2 * count + 1,
                (_, count) => count,
            };
            Ok((of(at..at, count == -1, below), end))
        }
        _ => {
            let (text, end) = line(input, at + 1)?;
            let bytes = &input[text.clone()];
            let is_sound = match kind {
                b':' => is_integer(bytes),
                b'#' => matches!(bytes, b"t" | b"f"),
                b'_' => bytes.is_empty(),
                // Scripts may write any text here, but only one line.
                _ => true,
            };
            if is_sound { Ok((of(text, kind == b'_', 0), end)) } else { Err(Hopeless) }
        }
    }
}

/// Returns the tree of a value that is whole.
fn tree(input: &[u8], at: &mut usize) -> Reply {
    let (Item { kind, text, is_null, below }, end) =
        item(input, *at, ALL).expect("the whole is whole");
    *at = end;
    let text = input[text].to_vec();
    let mut all = || (0..below).map(|_| tree(input, at)).collect::<Vec<_>>();
    match kind {
        _ if is_null => Reply::Null(kind),
        b'+' => Reply::Simple(text),
        b'-' => Reply::Error(text),
        b':' => Reply::Integer(String::from_utf8_lossy(&text).parse().expect("64 bits")),
        b'$' => Reply::Bulk(text),
        b'*' => Reply::Array(all()),
        b'~' => Reply::Set(all()),
        b'>' => Reply::Push(all()),
        b'%' => Reply::Map((0..below / 2).map(|_| (tree(input, at), tree(input, at))).collect()),
        b'|' => all().pop().expect("a value follows an attribute"),
        _ => Reply::Other(kind, text),
    }
}

fn array(input: &[u8]) -> Reading<Vec<Vec<u8>>> {
    let (count, mut at) = counted(input, 0)?;
    if count > i64::from(i32::MAX) {
        return Err(Hopeless);
    }
    let mut arguments = Vec::new();
    for _ in 0..count {
        if *input.get(at).ok_or(Incomplete)? != b'$' {
            return Err(Hopeless);
        }
        let (argument, end) = string(input, at)?;
        arguments.push(input[argument].to_vec());
        at = end;
    }
    Ok((arguments, at))
}

fn string(input: &[u8], at: usize) -> Reading<Range<usize>> {
    let (len, start) = counted(input, at)?;
    if !(0..=512 << 20).contains(&len) {
        return Err(Hopeless);
    }
    let end = start + len as usize;
    match input.get(end..end + 2) {
        None => Err(Incomplete),
        Some(b"\r\n") => Ok((start..end, end + 2)),
        Some(_) => Err(Hopeless),
    }
}

fn line(input: &[u8], at: usize) -> Reading<Range<usize>> {
    let len = input[at..].iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let end = at + len.ok_or(Incomplete)?;
    match &input[end..] {
        [b'\r'] => Err(Incomplete),
        [b'\r', b'\n', ..] => Ok((at..end, end + 2)),
        _ => Err(Hopeless),
    }
}

/// Returns the number after a type byte, and the end of its line.
fn counted(input: &[u8], at: usize) -> Reading<i64> {
    // As in servers, a line ends with the first CR.
    let Some(end) = input[at..].iter().position(|byte| *byte == b'\r') else {
        // No number is that long.
        return Err(if input.len() - at > 64 * 1024 { Hopeless } else { Incomplete });
    };
    match (input.get(at + end + 1), length(&input[at + 1..at + end.max(1)])) {
        (None, _) => Err(Incomplete),
        (Some(b'\n'), Some(number)) => Ok((number, at + end + 2)),
        _ => Err(Hopeless),
    }
}

/// Parses a length as servers do: a minus, no plus, no leading zeros.
fn length(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_sound = !digits.is_empty()
        && digits.len() < 30
        && digits.iter().all(u8::is_ascii_digit)
        && (text == b"0" || digits[0] != b'0');
    std::str::from_utf8(text).ok().filter(|_| is_sound)?.parse().ok()
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn inline(input: &[u8]) -> Reading<Vec<Vec<u8>>> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return Err(if input.len() > 64 * 1024 { Hopeless } else { Incomplete });
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    match split(line) {
        // Servers treat these as a browser misused for an attack.
        Some(arguments) if arguments.first().is_some_and(|word| is_http(word)) => Err(Hopeless),
        Some(arguments) => Ok((arguments, end + 1)),
        None => Err(Hopeless),
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

/// Renders a command as an array of bulk strings.
pub fn command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_command(words, &mut bytes);
    bytes
}

pub fn push_command<W: AsRef<[u8]>>(words: &[W], out: &mut Vec<u8>) {
    put_array(out, words.len());
    words.iter().for_each(|word| put_bulk(out, word.as_ref()));
}

pub fn put_array(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(format!("*{len}\r\n").as_bytes());
}

pub fn put_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Renders a bulk string.
pub fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bulk(&mut out, bytes);
    out
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

impl Reply {
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_) | Reply::Other(b'!', _))
    }

    /// Returns the text of an error; empty for other replies.
    pub fn error(&self) -> String {
        match self {
            Reply::Error(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        }
    }

    /// Returns the bytes of a string of either kind.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Bulk(bytes) | Reply::Simple(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the elements of an aggregate; for a map, keys and values alternate.
    pub fn elements(&self) -> Vec<&Reply> {
        match self {
            Reply::Array(all) | Reply::Set(all) | Reply::Push(all) => all.iter().collect(),
            Reply::Map(all) => all.iter().flat_map(|(key, value)| [key, value]).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the value of a map's field, even if RESP2 writes the map as an array.
    pub fn field(&self, name: &str) -> Option<&Reply> {
        let all = self.elements();
        let found = all.chunks(2).find(|pair| pair[0].bytes() == Some(name.as_bytes()))?;
        found.get(1).copied()
    }

    /// Returns its text; empty for a value without text.
    pub fn text(&self) -> &str {
        self.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// Returns its number; 0 for a value that is none.
    pub fn number(&self) -> i64 {
        if let Reply::Integer(number) = self { *number } else { 0 }
    }

    /// Returns the elements of an array; none for another value.
    pub fn list(&self) -> &[Reply] {
        if let Reply::Array(all) = self { all } else { &[] }
    }

    /// Returns the texts of an array's elements.
    pub fn texts(&self) -> Vec<String> {
        self.list().iter().map(|one| one.text().to_string()).collect()
    }

    /// Returns the value of a map's field, or a null if there is none.
    pub fn of(&self, name: &str) -> &Reply {
        self.field(name).unwrap_or(&Reply::Null(b'_'))
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Simple(text) => write!(to, "+{}", shown(text)),
            Reply::Error(text) => write!(to, "-{}", shown(text)),
            Reply::Integer(number) => write!(to, ":{number}"),
            Reply::Bulk(text) => write!(to, "\"{}\"", shown(text)),
            Reply::Null(kind) => write!(to, "null({})", char::from(*kind)),
            Reply::Array(all) => to.debug_list().entries(all).finish(),
            Reply::Map(all) => {
                to.debug_map().entries(all.iter().map(|(key, value)| (key, value))).finish()
            }
            Reply::Set(all) => write!(to, "~").and_then(|()| to.debug_list().entries(all).finish()),
            Reply::Push(all) => {
                write!(to, ">").and_then(|()| to.debug_list().entries(all).finish())
            }
            Reply::Other(kind, text) => write!(to, "{}{}", char::from(*kind), shown(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expected: &str) {
        let (read, len) = reply(input.as_bytes()).unwrap();
        assert_eq!((format!("{read:?}").as_str(), len), (expected, input.len()));
        for cut in 0..input.len() {
            assert_eq!(reply(&input.as_bytes()[..cut]), Err(Incomplete), "{cut}");
        }
    }

    #[test]
    fn a_value_ends_where_it_ends() {
        let text =
            b"*3\r\n$4\r\n\r\n+x\r\n%1\r\n+a\r\n*1\r\n_\r\n|1\r\n+k\r\n#t\r\n,1.5\r\n+next\r\n";
        let end = text.len() - 7;
        for len in 0..end {
            assert_eq!(value(&text[..len], THREE), Err(Incomplete), "{len}");
        }
        assert_eq!(value(text, THREE), Ok(((), end)));
        assert_eq!(value(text, TWO), Err(Hopeless));
        assert_eq!(elements(text).map(|all| all.len()), Some(3));
    }

    #[test]
    fn every_kind_of_reply_is_read_when_it_is_whole() {
        check("+OK\r\n", "+OK");
        check("-ERR no\r\n", "-ERR no");
        check(":-5\r\n", ":-5");
        check("$2\r\n\r\n\r\n", "\"\\r\\n\"");
        check("*3\r\n$-1\r\n*-1\r\n_\r\n", "[null($), null(*), null(_)]");
        check("%1\r\n+a\r\n~1\r\n,1.5\r\n", "{+a: ~[,1.5]}");
        check("|1\r\n+ttl\r\n:3\r\n+OK\r\n", "+OK");
    }

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
            let read = request(line).ok().map(|(words, _)| words);
            let words = words.map(|words| words.iter().map(|one| one.to_vec()).collect());
            assert_eq!(read, words, "{}", line.escape_ascii());
        }
    }
}
