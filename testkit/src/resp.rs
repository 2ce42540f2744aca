//! RESP for tests: a parser that distinguishes all kinds of replies, and a connection.
//!
//! Nothing here uses quickack's code: a mistake in shared code would be made on both sides and stay
//! hidden.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::process::DEADLINE;

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

impl Reply {
    /// Returns the first reply and its length, if it is whole; an error for input that is not RESP.
    pub fn parse(input: &[u8]) -> Result<Option<(Reply, usize)>, String> {
        let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        if end == 0 {
            return Err(format!("no reply is empty: {}", shown(input)));
        }
        let (kind, text, after) = (input[0], &input[1..end], end + 2);
        let number = || {
            let text = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
            text.ok_or_else(|| format!("no number: {}", shown(&input[..end])))
        };
        let reply = match kind {
            b'+' => Reply::Simple(text.to_vec()),
            b'-' => Reply::Error(text.to_vec()),
            b':' => Reply::Integer(number()?),
            b'_' => Reply::Null(kind),
            b',' | b'#' | b'(' => Reply::Other(kind, text.to_vec()),
            b'$' | b'*' if text == b"-1" => Reply::Null(kind),
            b'$' | b'=' | b'!' => return bulk(kind, number()?, &input[after..], after),
            b'*' | b'%' | b'~' | b'>' | b'|' => return aggregate(kind, number()?, input, after),
            _ => return Err(format!("no reply begins so: {}", shown(&input[..end]))),
        };
        Ok(Some((reply, after)))
    }

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
}

fn bulk(kind: u8, len: i64, body: &[u8], before: usize) -> Result<Option<(Reply, usize)>, String> {
    let len = usize::try_from(len).map_err(|_| format!("a bulk of {len}"))?;
    if body.len() < len + 2 {
        return Ok(None);
    }
    if &body[len..len + 2] != b"\r\n" {
        return Err(format!("after a bulk: {}", shown(&body[len..len + 2])));
    }
    let bytes = body[..len].to_vec();
    let reply = if kind == b'$' { Reply::Bulk(bytes) } else { Reply::Other(kind, bytes) };
    Ok(Some((reply, before + len + 2)))
}

fn aggregate(
    kind: u8,
    count: i64,
    input: &[u8],
    mut at: usize,
) -> Result<Option<(Reply, usize)>, String> {
    let count = usize::try_from(count).map_err(|_| format!("an aggregate of {count}"))?;
    let count = if matches!(kind, b'%' | b'|') { 2 * count } else { count };
    let mut all = Vec::new();
    for _ in 0..count {
        let Some((element, len)) = Reply::parse(&input[at..])? else { return Ok(None) };
        all.push(element);
        at += len;
    }
    let reply = match kind {
        b'*' => Reply::Array(all),
        b'~' => Reply::Set(all),
        b'>' => Reply::Push(all),
        b'%' => Reply::Map(pairs(all)),
        // An attribute precedes the reply that the caller wants.
        _ => match Reply::parse(&input[at..])? {
            Some((reply, len)) => return Ok(Some((reply, at + len))),
            None => return Ok(None),
        },
    };
    Ok(Some((reply, at)))
}

fn pairs(all: Vec<Reply>) -> Vec<(Reply, Reply)> {
    let mut all = all.into_iter();
    let mut pairs = Vec::new();
    while let (Some(key), Some(value)) = (all.next(), all.next()) {
        pairs.push((key, value));
    }
    pairs
}

/// Renders a command as an array of bulk strings.
pub fn command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_command(words, &mut bytes);
    bytes
}

pub fn push_command<W: AsRef<[u8]>>(words: &[W], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
        out.extend_from_slice(word.as_ref());
        out.extend_from_slice(b"\r\n");
    }
}

/// A RESP connection.
pub struct Speaker {
    pub stream: TcpStream,
    held: Vec<u8>,
    read: usize,
}

impl Speaker {
    pub fn connect(address: SocketAddr) -> Speaker {
        let stream = TcpStream::connect(address).expect("somebody accepts");
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
        stream.set_write_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
        stream.set_nodelay(true).expect("TCP has the option");
        Speaker { stream, held: Vec::new(), read: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the other side reads");
    }

    /// Reads the next reply; an error describes the end of the connection or invalid input.
    pub fn reply(&mut self) -> Result<Reply, String> {
        loop {
            if let Some((reply, len)) = Reply::parse(&self.held[self.read..])? {
                self.read += len;
                if self.read == self.held.len() {
                    self.held.clear();
                    self.read = 0;
                }
                return Ok(reply);
            }
            self.held.drain(..std::mem::take(&mut self.read));
            // A long reply is parsed from its start after each read, so each read is large.
            let mut chunk = [0; 64 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(format!("closed after {}", shown(&self.held))),
                Ok(n) => self.held.extend_from_slice(&chunk[..n]),
                Err(error) => return Err(format!("{error} after {}", shown(&self.held))),
            }
        }
    }

    /// Sends one command and returns its reply.
    #[track_caller]
    pub fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        self.send(&command(words));
        self.reply().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sends one command, given as words with spaces between them, and returns its reply.
    #[track_caller]
    pub fn say(&mut self, line: &str) -> Reply {
        self.ask(&line.split(' ').collect::<Vec<_>>())
    }

    /// Sends many commands at once, and returns the reply to each.
    #[track_caller]
    pub fn ask_all(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|words| push_command(words, &mut bytes));
        self.send(&bytes);
        let replies = commands.iter().map(|_| self.reply());
        replies.map(|reply| reply.unwrap_or_else(|error| panic!("{error}"))).collect()
    }

    /// Reads everything until the other side closes.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = self.held.split_off(self.read);
        // A reset after the last byte also counts as an end.
        let _ = self.stream.read_to_end(&mut bytes);
        bytes
    }
}

/// Renders bytes for people, shortened if there are many.
pub fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 200;
    let text = bytes[..bytes.len().min(MOST)].escape_ascii().to_string();
    if bytes.len() > MOST { format!("{text}… ({} bytes)", bytes.len()) } else { text }
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
        let (reply, len) = Reply::parse(input.as_bytes()).unwrap().unwrap();
        assert_eq!((format!("{reply:?}").as_str(), len), (expected, input.len()));
        for cut in 0..input.len() {
            assert_eq!(Reply::parse(&input.as_bytes()[..cut]).unwrap(), None, "{cut}");
        }
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
}
