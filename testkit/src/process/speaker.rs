//! A RESP connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::wire::resp::{self, Reply, push_command};
use crate::wire::{Unread, shown};

/// A RESP connection.
pub struct Speaker {
    pub stream: TcpStream,
    held: Vec<u8>,
    read: usize,
}

impl Speaker {
    pub fn connect(address: SocketAddr) -> Speaker {
        Speaker { stream: super::connect(address), held: Vec::new(), read: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the other side reads");
    }

    /// Reads the next reply; an error describes the end of the connection or invalid input.
    pub fn reply(&mut self) -> Result<Reply, String> {
        loop {
            match resp::reply(&self.held[self.read..]) {
                Ok((reply, len)) => {
                    self.read += len;
                    if self.read == self.held.len() {
                        self.held.clear();
                        self.read = 0;
                    }
                    return Ok(reply);
                }
                Err(Unread::Incomplete) => {}
                Err(Unread::Hopeless) => {
                    return Err(format!("no reply: {}", shown(&self.held[self.read..])));
                }
            }
            self.held.drain(..std::mem::take(&mut self.read));
            // A long reply is parsed from its start after each read, so each read is large.
            let mut chunk = [0; 64 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(format!("closed after {}", shown(&self.held))),
                Ok(n) => self.held.extend_from_slice(&chunk[..n]),
                // A read with a deadline is not begun anew by the system.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("{error} after {}", shown(&self.held))),
            }
        }
    }

    /// Sends one command and returns its reply.
    #[track_caller]
    pub fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        self.send(&resp::command(words));
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
