//! A client with which a test sends and expects exact bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A client that sends exactly the test's bytes, and waits for exactly the expected reply.
pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        Client { stream: super::connect(address) }
    }

    pub fn send(&mut self, request: impl AsRef<[u8]>) {
        self.stream.write_all(request.as_ref()).expect("the other side reads");
    }

    /// Sends a request and expects a reply: the usual line of a test.
    #[track_caller]
    pub fn ask(&mut self, request: &str, reply: &str) {
        self.send(request);
        self.expect(reply);
    }

    /// Reads as many bytes as `reply` has, and asserts that they are equal.
    #[track_caller]
    pub fn expect(&mut self, reply: &str) {
        let mut bytes = vec![0; reply.len()];
        let mut len = 0;
        while len < bytes.len() {
            match self.stream.read(&mut bytes[len..]) {
                Ok(0) => panic!("closed after {:?}, expected {reply:?}", lossy(&bytes[..len])),
                Ok(n) => len += n,
                Err(error) => panic!("{error} after {:?}, not {reply:?}", lossy(&bytes[..len])),
            }
            if !reply.as_bytes().starts_with(&bytes[..len]) {
                break;
            }
        }
        assert_eq!(lossy(&bytes[..len]), reply);
    }

    /// Reads until the text so far ends with `end`.
    #[track_caller]
    pub fn read_until(&mut self, end: &str) -> String {
        let mut bytes = Vec::new();
        let mut chunk = [0; 16 * 1024];
        while !bytes.ends_with(end.as_bytes()) {
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("closed after {:?}, expected {end:?}", lossy(&bytes)),
                Ok(n) => bytes.extend_from_slice(&chunk[..n]),
                Err(error) => panic!("{error} after {:?}, expected {end:?}", lossy(&bytes)),
            }
        }
        lossy(&bytes)
    }

    /// Reads one line, without its line break; later bytes stay unread.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n") {
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(0) => panic!("closed after {:?}, expected a line", lossy(&bytes)),
                Ok(_) => bytes.extend_from_slice(&byte),
                Err(error) => panic!("{error} after {:?}, expected a line", lossy(&bytes)),
            }
        }
        lossy(&bytes).trim_end().to_string()
    }

    /// Asks memcached for one number of its `stats`.
    #[track_caller]
    pub fn stat(&mut self, name: &str) -> u64 {
        self.send("stats\r\n");
        let text = self.read_until("END\r\n");
        let row = text.lines().find_map(|line| {
            line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()
        });
        row.unwrap_or_else(|| panic!("no {name} in the stats:\n{text}"))
    }

    /// Reads everything until the other side closes.
    #[track_caller]
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => lossy(&bytes),
            Err(error) => panic!("{error} after {:?}", lossy(&bytes)),
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
