//! The protocols of the rows: requests for keys, the parsing of answers, and the part of a server
//! that gets need. Every key exists and holds the server's number.

use std::io::{BufWriter, Read, Write};
use std::os::unix::net::UnixStream;

use testkit::wire::resp::{self, Reply, push_command, put_array, put_bulk, put_line, read_command};
use testkit::wire::text::{self, put_value};
use testkit::wire::whole;

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
                let words: Vec<&[u8]> =
                    [name].into_iter().chain(keys.iter().map(|key| &key[..])).collect();
                push_command(&words, &mut out);
            }
        }
        out
    }

    /// Reads the answer to a get of these keys, and calls `found` with each key's index and the
    /// number that it holds; or returns the error line that came instead.
    pub fn receive(
        self,
        replies: &mut Replies<'_>,
        keys: &[Vec<u8>],
        mut found: impl FnMut(usize, u16),
    ) -> Result<(), String> {
        match self {
            Speech::Memcached => loop {
                let reply = replies.next(|input| Some(whole(input, text::reply(input))?.1));
                let (line, _) = text::reply(&reply).expect("it is whole");
                let Some(data) = line.data.clone() else {
                    return if line.text == b"END" { Ok(()) } else { Err(line.lossy()) };
                };
                let key = line.words().nth(1);
                let at = keys.iter().position(|asked| Some(&asked[..]) == key);
                found(at.ok_or_else(|| line.lossy())?, number(&reply[data]));
            },
            Speech::Redis => {
                let reply = replies.next(|input| Some(whole(input, resp::reply(input))?.1));
                let (reply, _) = resp::reply(&reply).expect("it is whole");
                let one = std::slice::from_ref(&reply);
                let values = if keys.len() == 1 { one } else { reply.list() };
                if values.len() != keys.len() {
                    return Err(format!("{reply:?}"));
                }
                for (at, value) in values.iter().enumerate() {
                    let Reply::Bulk(value) = value else { return Err(format!("{value:?}")) };
                    found(at, number(value));
                }
                Ok(())
            }
        }
    }

    /// Answers requests until the proxy closes the link in any way.
    pub fn serve(self, mut input: impl Read, mut output: impl Write, number: u16) {
        let value = number.to_string().into_bytes();
        let (mut held, mut chunk) = (Vec::new(), vec![0; 65_536]);
        while let Ok(n @ 1..) = input.read(&mut chunk) {
            held.extend_from_slice(&chunk[..n]);
            let (mut gone, mut replies) = (0, Vec::new());
            while let Some(len) = self.answer(&held[gone..], &value, &mut replies) {
                gone += len;
            }
            held.drain(..gone);
            if output.write_all(&replies).is_err() {
                return;
            }
        }
    }

    /// Answers the first request, if it is whole, and returns its length.
    fn answer(self, input: &[u8], value: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        match self {
            Speech::Memcached => {
                let (line, len) = whole(input, text::command(input))?;
                let mut words = line.words();
                match words.next() {
                    Some(b"get") => {
                        let keys = words.filter(|key| !key.is_empty());
                        keys.for_each(|key| put_value(out, key, 0, None, value));
                        out.extend_from_slice(b"END\r\n");
                    }
                    Some(b"version") => out.extend_from_slice(b"VERSION 1.6\r\n"),
                    _ => out.extend_from_slice(b"ERROR\r\n"),
                }
                Some(len)
            }
            Speech::Redis => {
                let (words, len) = read_command(input)?;
                match &*words[0].to_ascii_uppercase() {
                    b"GET" => put_bulk(out, value),
                    b"MGET" => {
                        put_array(out, words.len() - 1);
                        (1..words.len()).for_each(|_| put_bulk(out, value));
                    }
                    b"PING" => put_line(out, "+PONG"),
                    b"INFO" => put_bulk(out, b"# Server\r\nredis_version:7.0.15\r\n"),
                    b"SELECT" => put_line(out, "+OK"),
                    name => {
                        put_line(out, &format!("-ERR unknown command '{}'", name.escape_ascii()))
                    }
                }
                Some(len)
            }
        }
    }
}

/// The replies of a proxy.
pub struct Replies<'s> {
    stream: &'s UnixStream,
    held: Vec<u8>,
    at: usize,
}

impl Replies<'_> {
    pub fn new(stream: &UnixStream) -> Replies<'_> {
        Replies { stream, held: Vec::new(), at: 0 }
    }

    /// Waits for the next reply; `len` returns its length once it is whole.
    fn next(&mut self, len: impl Fn(&[u8]) -> Option<usize>) -> Vec<u8> {
        loop {
            let rest = &self.held[self.at..];
            if let Some(len) = len(rest) {
                self.at += len;
                return rest[..len].to_vec();
            }
            self.held.drain(..std::mem::take(&mut self.at));
            let mut chunk = [0; 65_536];
            let n = self.stream.read(&mut chunk).expect("an answer in time");
            assert!(n > 0, "the proxy answers everything");
            self.held.extend_from_slice(&chunk[..n]);
        }
    }
}

fn number(bytes: &[u8]) -> u16 {
    str::from_utf8(bytes).unwrap().parse().unwrap()
}
