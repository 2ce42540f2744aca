//! The list of a cluster, as its configuration endpoint gives it: a memcached with one command
//! more, `config get cluster`.
//!
//! ```text
//!   CONFIG cluster 0 <bytes>        the version of the list, on a line of its own;
//!   12                              then a word for each server, on one line
//!   a.example.com|10.0.0.1|11211 b.example.com|10.0.0.2|11211
//!
//!   END
//! ```
//!
//! The name of a host decides where keys live, so what it says of addresses is not used: the name
//! is looked up like any other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::system;

/// Asks an endpoint. Returns the lines of the list, and its version.
pub fn ask(host: &str, port: u16) -> Result<(String, u64), String> {
    let mut why = String::new();
    for mut address in system::ask(host).map_err(|why| format!("{host} does not resolve: {why}"))? {
        address.set_port(port);
        let reply = TcpStream::connect_timeout(&address, PATIENCE)
            .map_err(|error| error.to_string())
            .and_then(exchange);
        match reply {
            Ok(reply) => return read(&reply),
            Err(error) => why = format!("{address}: {error}"),
        }
    }
    Err(super::plain_words(&why))
}

/// Sends the command and receives the whole answer.
fn exchange(mut stream: TcpStream) -> Result<Vec<u8>, String> {
    let until = Instant::now() + PATIENCE;
    let told = |error: std::io::Error| error.to_string();
    stream.set_write_timeout(Some(PATIENCE)).map_err(told)?;
    stream.write_all(b"config get cluster\r\n").map_err(told)?;
    let (mut reply, mut block) = (Vec::new(), [0; 4096]);
    while !is_whole(&reply) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("no answer within {} s", PATIENCE.as_secs()));
        }
        stream.set_read_timeout(Some(left)).map_err(told)?;
        match stream.read(&mut block) {
            Ok(0) => return Err("it closed the connection before its answer was whole".into()),
            Ok(len) => reply.extend_from_slice(&block[..len]),
            // The time is looked at above.
            Err(error) if is_late(&error) => {}
            Err(error) => return Err(told(error)),
        }
        if reply.len() > REPLY_LEN_MAX {
            return Err("its answer is too long".to_string());
        }
    }
    Ok(reply)
}

fn is_late(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A list ends with a line of its own, an error with its first.
fn is_whole(reply: &[u8]) -> bool {
    let first = reply.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    first.ends_with(b"\n") && (!first.starts_with(b"CONFIG ") || reply.ends_with(b"\nEND\r\n"))
}

/// Reads an answer. Everything in it must fit: half a list would move keys.
fn read(reply: &[u8]) -> Result<(String, u64), String> {
    let reply = std::str::from_utf8(reply).map_err(|_| "its answer is not UTF-8".to_string())?;
    let odd = || format!("it answered `{}`", super::plain_words(reply));
    let (head, rest) = reply.split_once("\r\n").ok_or_else(odd)?;
    let len = head.strip_prefix("CONFIG cluster ").and_then(|words| words.split_once(' '));
    let len: usize = len.and_then(|(_, len)| len.parse().ok()).ok_or_else(odd)?;
    let (text, end) = rest.split_at_checked(len).ok_or_else(odd)?;
    if !end.strip_suffix("END\r\n").is_some_and(|end| end.trim().is_empty()) {
        return Err(odd());
    }
    let (version, nodes) = text.trim_end().split_once('\n').ok_or_else(odd)?;
    let version = version.trim_end().parse().map_err(|_| odd())?;
    let mut lines = String::new();
    for node in nodes.split_ascii_whitespace() {
        let words: Vec<&str> = node.split('|').collect();
        let [host, _, port] = words[..] else { return Err(odd()) };
        if host.is_empty() {
            return Err(format!("a server has no name: `{}`", super::plain_words(node)));
        }
        lines += &format!("{host}:{port}:1\n");
    }
    Ok((lines, version))
}

/// How long an endpoint may take for each step.
const PATIENCE: Duration = Duration::from_secs(3);
const REPLY_LEN_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> String {
        format!("CONFIG cluster 0 {}\r\n{text}\r\nEND\r\n", text.len())
    }

    #[test]
    fn a_list_has_a_version_and_the_names_of_its_servers() {
        let text = "12\na.test|10.0.0.1|11211 b.test||11212\n";
        let expected = ("a.test:11211:1\nb.test:11212:1\n".to_string(), 12);
        assert_eq!(read(reply(text).as_bytes()), Ok(expected));
        assert_eq!(read(reply("3\n\n").as_bytes()), Err(answered(&reply("3\n\n"))));
    }

    fn answered(reply: &str) -> String {
        format!("it answered `{}`", super::super::plain_words(reply))
    }

    #[test]
    fn an_answer_is_whole_or_none() {
        let whole = reply("12\na.test|10.0.0.1|11211 b.test|10.0.0.2|11211\n");
        for len in 0..whole.len() {
            let cut = &whole.as_bytes()[..len];
            assert!(!is_whole(cut), "{len}");
            assert!(read(cut).is_err(), "{len}");
        }
        assert!(is_whole(whole.as_bytes()));
        for odd in [
            "ERROR\r\n",
            "END\r\n",
            "CONFIG cluster 0 5\r\n12\n\r\nEND\r\n",
            "CONFIG cluster 0 x\r\n12\na|b|1\n\r\nEND\r\n",
            "CONFIG cluster 0 99999999999999\r\n12\na|b|1\n\r\nEND\r\n",
            &reply("x\na|b|1\n"),
            &reply("1\na|1\n"),
            &reply("1\n|10.0.0.1|1\n"),
        ] {
            assert!(read(odd.as_bytes()).is_err(), "{odd}");
        }
    }
}
