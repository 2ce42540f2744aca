//! An HTTP client that sends what it is told, and reads whole answers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub struct Page {
    pub status: u16,
    /// By the names of the fields, in lower case.
    pub fields: BTreeMap<String, String>,
    pub body: String,
}

/// A connection.
pub struct Connection {
    pub reader: BufReader<TcpStream>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Connection {
        Connection { reader: BufReader::new(testkit::process::connect(address)) }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.reader.get_mut().write_all(bytes.as_ref()).expect("the other side reads");
    }

    /// Reads one answer; None if the connection ended before it. The answer to a HEAD has no body.
    pub fn answer(&mut self, to_head: bool) -> Option<Page> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
        let mut fields = BTreeMap::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("a head ends");
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            fields.insert(name.to_lowercase(), value.to_string());
        }
        let len: usize = fields["content-length"].parse().expect("a length");
        let mut body = vec![0; if to_head { 0 } else { len }];
        self.reader.read_exact(&mut body).expect("a body is as long as its head says");
        Some(Page { status, fields, body: String::from_utf8(body).expect("pages are text") })
    }

    /// Whether the other side has closed the connection, after so long at most.
    pub fn is_closed(&mut self) -> bool {
        let stream = self.reader.get_mut();
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a deadline");
        matches!(self.reader.read(&mut [0; 64]), Ok(0))
    }
}

/// Asks for one page over a connection of its own.
pub fn try_get(address: SocketAddr, path: &str) -> Option<Page> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a deadline");
    let mut connection = Connection { reader: BufReader::new(stream) };
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    connection.reader.get_mut().write_all(request.as_bytes()).ok()?;
    connection.answer(false)
}

#[track_caller]
pub fn get(address: SocketAddr, path: &str) -> Page {
    try_get(address, path).unwrap_or_else(|| panic!("no answer to {path}"))
}

/// Returns the samples of a page of metrics: the name with its labels, and the value.
pub fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        (name.to_string(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
    };
    lines.map(sample).collect()
}
