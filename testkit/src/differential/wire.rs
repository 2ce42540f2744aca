//! Sends a burst of requests to one side in the segments that were drawn, and reads all answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::reply::{self, Reply};
use super::request::Wire;
use crate::process::DEADLINE;

pub struct Conn {
    stream: TcpStream,
    held: Vec<u8>,
}

/// The requests of one connection in a round, and its answers.
pub struct Lane<'a> {
    pub conn: &'a mut Conn,
    pub wire: Wire,
    pub bytes: Vec<u8>,
    /// The cuts between segments, as parts of 65,536.
    pub cuts: &'a [u16],
    pub end: End,
    pub replies: Vec<Reply>,
    written: usize,
    done: bool,
}

/// The way to recognise the last answer of a burst.
#[derive(Clone, Copy)]
pub enum End {
    /// The `MN` with this number.
    Barriers(usize),
    /// The answer to this opaque.
    Opaque(u32),
}

impl Conn {
    pub fn connect(address: SocketAddr) -> Conn {
        let stream = TcpStream::connect(address).expect("somebody accepts");
        stream.set_nodelay(true).expect("TCP has the option");
        stream.set_nonblocking(true).expect("a socket may be so");
        Conn { stream, held: Vec::new() }
    }
}

impl<'a> Lane<'a> {
    pub fn new(conn: &'a mut Conn, wire: Wire, bytes: Vec<u8>, cuts: &'a [u16], end: End) -> Self {
        Lane { conn, wire, bytes, cuts, end, replies: Vec::new(), written: 0, done: false }
    }

    /// Returns the end of the segment with this number.
    fn segment_end(&self, number: usize) -> usize {
        let cut = self.cuts.get(number).map(|cut| (self.bytes.len() * usize::from(*cut)) >> 16);
        cut.unwrap_or(self.bytes.len())
    }

    /// Writes up to `end`; returns false if the other side must be read first.
    fn write(&mut self, end: usize) -> bool {
        while self.written < end && !self.done {
            match self.conn.stream.write(&self.bytes[self.written..end]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => self.close(),
            }
        }
        true
    }

    fn read(&mut self) {
        let mut chunk = [0; 64 << 10];
        while !self.done {
            match self.conn.stream.read(&mut chunk) {
                Ok(0) => self.close(),
                Ok(n) => self.conn.held.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.close(),
            }
        }
        let mut gone = 0;
        while let Some((reply, len)) = reply::parse(self.wire, &self.conn.held[gone..]) {
            gone += len;
            self.replies.push(reply);
            self.done |= self.is_over();
        }
        self.conn.held.drain(..gone);
    }

    fn is_over(&self) -> bool {
        match self.end {
            End::Barriers(count) => {
                self.replies.iter().filter(|reply| reply.first() == b"MN").count() >= count
            }
            End::Opaque(opaque) => {
                self.replies.last().is_some_and(|reply| reply.opaque() == Some(opaque))
            }
        }
    }

    /// Answers before the close still count.
    fn close(&mut self) {
        self.done = true;
        let mut gone = 0;
        while let Some((reply, len)) = reply::parse(self.wire, &self.conn.held[gone..]) {
            gone += len;
            self.replies.push(reply);
        }
        self.conn.held.clear();
        self.replies.push(Reply::closed());
    }
}

/// Writes all lanes in turns, a segment each, and reads until every burst is answered. Returns
/// false if a side sends nothing more.
pub fn exchange(lanes: &mut [Lane<'_>]) -> bool {
    let most = lanes.iter().map(|lane| lane.cuts.len()).max().unwrap_or(0);
    for number in 0..=most {
        for at in 0..lanes.len() {
            let end = lanes[at].segment_end(number);
            while !lanes[at].write(end) {
                if !wait(lanes) {
                    return false;
                }
                lanes.iter_mut().for_each(Lane::read);
            }
        }
    }
    while lanes.iter().any(|lane| !lane.done) {
        if !wait(lanes) {
            return false;
        }
        lanes.iter_mut().for_each(Lane::read);
    }
    true
}

/// Waits until a lane can be read, or written if something is left.
fn wait(lanes: &[Lane<'_>]) -> bool {
    let start = Instant::now();
    let waiting = lanes.iter().filter(|lane| !lane.done);
    let mut fds: Vec<PollFd<'_>> = waiting
        .map(|lane| {
            let rest = lane.written < lane.bytes.len();
            let flags = if rest { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&lane.conn.stream, flags)
        })
        .collect();
    let limit = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut fds, Some(&limit)).is_ok_and(|count| count > 0);
    ready || start.elapsed() < DEADLINE
}
