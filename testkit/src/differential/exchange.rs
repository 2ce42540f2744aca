//! Sends a burst of requests to one side in the segments that were drawn, and reads all answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::process::DEADLINE;
use crate::random::Random;

pub struct Conn {
    stream: TcpStream,
    held: Vec<u8>,
}

/// Returns whether these replies answer the whole burst.
type AreAll<R> = dyn Fn(&[R]) -> bool;

/// The requests of one connection in a round, and its answers.
pub struct Lane<'a, R> {
    pub conn: &'a mut Conn,
    pub bytes: Vec<u8>,
    /// The cuts between segments, as parts of 65,536.
    pub cuts: &'a [u16],
    /// Returns the first whole reply and its length.
    pub parse: fn(&[u8]) -> Option<(R, usize)>,
    pub is_over: Box<AreAll<R>>,
    pub replies: Vec<R>,
    /// The other side has closed the connection.
    pub closed: bool,
    written: usize,
    done: bool,
}

impl Conn {
    pub fn connect(address: SocketAddr) -> Conn {
        Conn::of(TcpStream::connect(address).expect("somebody accepts"))
    }

    pub fn of(stream: TcpStream) -> Conn {
        stream.set_nodelay(true).expect("TCP has the option");
        stream.set_nonblocking(true).expect("a socket may be so");
        Conn { stream, held: Vec::new() }
    }
}

/// Draws the cuts of a burst.
pub fn cuts(random: &mut Random) -> Vec<u16> {
    let mut cuts: Vec<u16> = match random.below(3) {
        0 => Vec::new(),
        1 => vec![random.number() as u16],
        _ => (0..random.below(8)).map(|_| random.number() as u16).collect(),
    };
    cuts.sort_unstable();
    cuts
}

impl<'a, R> Lane<'a, R> {
    pub fn new(
        conn: &'a mut Conn,
        bytes: Vec<u8>,
        cuts: &'a [u16],
        parse: fn(&[u8]) -> Option<(R, usize)>,
        is_over: impl Fn(&[R]) -> bool + 'static,
    ) -> Self {
        let (replies, is_over) = (Vec::new(), Box::new(is_over));
        let done = is_over(&replies);
        Lane { conn, bytes, cuts, parse, is_over, replies, closed: false, written: 0, done }
    }

    /// Returns the end of the segment with this number.
    fn segment_end(&self, number: usize) -> usize {
        let cut = self.cuts.get(number).map(|cut| (self.bytes.len() * usize::from(*cut)) >> 16);
        cut.unwrap_or(self.bytes.len())
    }

    /// Writes up to `end`; returns false if the other side must be read first.
    fn write(&mut self, end: usize) -> bool {
        while self.written < end && !self.closed {
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
        self.take();
    }

    /// Parses whole replies.
    fn take(&mut self) {
        let mut gone = 0;
        while let Some((reply, len)) = (self.parse)(&self.conn.held[gone..]) {
            gone += len;
            self.replies.push(reply);
            self.done |= (self.is_over)(&self.replies);
        }
        self.conn.held.drain(..gone);
    }

    /// Answers before the close still count.
    fn close(&mut self) {
        (self.done, self.closed) = (true, true);
        self.take();
        self.conn.held.clear();
    }
}

/// Writes all lanes in turns, a segment each, and reads until every burst is answered. Returns
/// false if a side sends nothing more.
pub fn exchange<R>(lanes: &mut [Lane<'_, R>]) -> bool {
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
fn wait<R>(lanes: &[Lane<'_, R>]) -> bool {
    let start = Instant::now();
    let has_rest = |lane: &&Lane<'_, R>| lane.written < lane.bytes.len();
    let waiting = lanes.iter().filter(|lane| !lane.closed && (!lane.done || has_rest(lane)));
    let mut fds: Vec<PollFd<'_>> = waiting
        .map(|lane| {
            let flags =
                if has_rest(&lane) { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&lane.conn.stream, flags)
        })
        .collect();
    let limit = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut fds, Some(&limit)).is_ok_and(|count| count > 0);
    ready || start.elapsed() < DEADLINE
}
