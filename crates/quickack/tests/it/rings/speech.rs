//! The protocols of the rows: requests for keys, the parsing of answers, and the part of a server
//! that gets need. Every key exists and holds the server's number.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Speech {
    /// Classic text: an answer contains its key.
    Memcached,
    /// RESP: answers are in the order of the keys.
    Redis,
}

impl Speech {
    /// Requests all keys, one slice of them per request.
    pub fn send<'k>(self, stream: &UnixStream, requests: impl Iterator<Item = &'k [Vec<u8>]>) {
        let mut output = BufWriter::with_capacity(16_384, stream);
        for keys in requests {
            output.write_all(&self.request(keys)).unwrap();
        }
        output.flush().unwrap();
    }

    /// Makes a get of these keys.
    pub fn request(self, keys: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Speech::Memcached => {
                out.extend_from_slice(b"get");
                keys.iter().for_each(|key| out.extend_from_slice(&[b" ", &key[..]].concat()));
                out.extend_from_slice(b"\r\n");
            }
            Speech::Redis => {
                let name: &[u8] = if keys.len() == 1 { b"GET" } else { b"MGET" };
                write!(out, "*{}\r\n", keys.len() + 1).unwrap();
                push_bulk(&mut out, name);
                keys.iter().for_each(|key| push_bulk(&mut out, key));
            }
        }
        out
    }

    /// Reads the answer to a get of these keys, and calls `found` with each key's index and the
    /// number that it holds; or returns the error line that came instead.
    pub fn receive(
        self,
        replies: &mut BufReader<&UnixStream>,
        keys: &[Vec<u8>],
        mut found: impl FnMut(usize, u16),
    ) -> Result<(), String> {
        match self {
            Speech::Memcached => loop {
                let line = next_line(replies);
                if line == b"END" {
                    return Ok(());
                }
                let key = line.strip_prefix(b"VALUE ").and_then(|rest| rest.split(is_space).next());
                let Some(at) = keys.iter().position(|asked| Some(&asked[..]) == key) else {
                    return Err(line.escape_ascii().to_string());
                };
                found(at, number(&next_line(replies)));
            },
            Speech::Redis => {
                if keys.len() > 1 {
                    let line = next_line(replies);
                    if line != format!("*{}", keys.len()).as_bytes() {
                        return Err(line.escape_ascii().to_string());
                    }
                }
                for at in 0..keys.len() {
                    let head = next_line(replies);
                    if !head.starts_with(b"$") {
                        return Err(head.escape_ascii().to_string());
                    }
                    found(at, number(&next_line(replies)));
                }
                Ok(())
            }
        }
    }

    /// Answers requests until the proxy closes the link in any way.
    pub fn serve(self, input: impl Read, mut output: impl Write, number: u16) {
        let mut input = BufReader::with_capacity(65_536, input);
        let value = number.to_string();
        let mut replies = Vec::new();
        loop {
            let answered = match self {
                Speech::Memcached => answer_text(&mut input, &value, &mut replies),
                Speech::Redis => answer_resp(&mut input, &value, &mut replies),
            };
            if answered.is_none() {
                return;
            }
            if input.buffer().is_empty() {
                if output.write_all(&replies).is_err() {
                    return;
                }
                replies.clear();
            }
        }
    }
}

/// Answers one line; None at the end of input.
fn answer_text(input: &mut impl BufRead, value: &str, out: &mut Vec<u8>) -> Option<()> {
    let line = line(input)?;
    match line.strip_prefix(b"get ") {
        Some(keys) => {
            for key in keys.split(is_space).filter(|key| !key.is_empty()) {
                out.extend_from_slice(b"VALUE ");
                out.extend_from_slice(key);
                write!(out, " 0 {}\r\n{value}\r\n", value.len()).unwrap();
            }
            out.extend_from_slice(b"END\r\n");
        }
        None if line.starts_with(b"version") => out.extend_from_slice(b"VERSION 1.6\r\n"),
        None => out.extend_from_slice(b"ERROR\r\n"),
    }
    Some(())
}

/// Answers one array of bulk strings; None at the end of input.
fn answer_resp(input: &mut impl BufRead, value: &str, out: &mut Vec<u8>) -> Option<()> {
    let count: usize = counted(&line(input)?, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; counted(&line(input)?, b'$')? + 2];
        input.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    match &*words[0].to_ascii_uppercase() {
        b"GET" => push_bulk(out, value.as_bytes()),
        b"MGET" => {
            write!(out, "*{}\r\n", words.len() - 1).unwrap();
            (1..words.len()).for_each(|_| push_bulk(out, value.as_bytes()));
        }
        b"PING" => out.extend_from_slice(b"+PONG\r\n"),
        b"INFO" => push_bulk(out, b"# Server\r\nredis_version:7.0.15\r\n"),
        b"SELECT" => out.extend_from_slice(b"+OK\r\n"),
        name => write!(out, "-ERR unknown command '{}'\r\n", name.escape_ascii()).unwrap(),
    }
    Some(())
}

fn line(input: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let len = input.read_until(b'\n', &mut line).ok()?;
    line.truncate(line.trim_ascii_end().len());
    (len > 0).then_some(line)
}

fn next_line(replies: &mut impl BufRead) -> Vec<u8> {
    line(replies).expect("the proxy answers everything")
}

fn counted(line: &[u8], sign: u8) -> Option<usize> {
    let (first, digits) = line.split_first()?;
    (*first == sign).then(|| str::from_utf8(digits).unwrap().parse().unwrap())
}

fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    write!(out, "${}\r\n", bytes.len()).unwrap();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn number(line: &[u8]) -> u16 {
    str::from_utf8(line).unwrap().parse().unwrap()
}

fn is_space(byte: &u8) -> bool {
    *byte == b' '
}
