//! One connection: its input up to one request, its answer, and the time that each may take.
//!
//! ```text
//!        first byte           whole head            answer            written
//!   Idle ─────────▶ Reading ───────────▶ Waiting ─────────▶ Answering ────────▶ Idle, or
//!     ▲                                                                 │       Lingering ─▶ Over
//!     └─────────────────────────────────────────────────────────────────┘
//! ```
//!
//! After the last answer the connection lingers: what the client still sends is discarded, because
//! unread bytes would make the kernel reset the connection and throw the answer away.

use std::rc::Rc;

use crate::request::{Parsed, Request, parse};
use crate::response::{Response, Status};

/// A client's connection. Time is in microseconds of any clock.
pub struct Connection {
    input: Vec<u8>,
    stage: Stage,
    /// When the stage began.
    since: u64,
    /// The request that is being answered.
    request: Option<Request>,
    head: Vec<u8>,
    body: Rc<[u8]>,
    /// Bytes of head and body that have been sent.
    sent: usize,
    /// The client sends nothing more.
    has_ended: bool,
    /// Bytes discarded after the last answer.
    discarded: usize,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing of a request has come.
    Idle,
    /// A part of a request has come.
    Reading,
    /// The request is whole; its answer is being made.
    Waiting,
    Answering,
    /// The last answer is written; what comes in is discarded.
    Lingering,
    /// It is to be closed.
    Over,
}

impl Connection {
    pub fn new(now: u64) -> Connection {
        Connection {
            input: Vec::new(),
            stage: Stage::Idle,
            since: now,
            request: None,
            head: Vec::new(),
            body: Rc::default(),
            sent: 0,
            has_ended: false,
            discarded: 0,
        }
    }

    /// Takes bytes of the client. The caller pauses it as long as `wants_input` is false, so no
    /// more than a read is kept beyond the request that is being answered.
    pub fn receive(&mut self, bytes: &[u8], now: u64) {
        if self.stage == Stage::Lingering {
            self.discarded += bytes.len();
            if self.discarded > DISCARD_MAX {
                self.set_stage(Stage::Over, now);
            }
            return;
        }
        self.input.extend_from_slice(bytes);
        if self.stage == Stage::Idle {
            self.set_stage(Stage::Reading, now);
        }
    }

    /// The client sends nothing more; what it has asked is still answered.
    pub fn end(&mut self, now: u64) {
        self.has_ended = true;
        if matches!(self.stage, Stage::Idle | Stage::Reading | Stage::Lingering) {
            self.set_stage(Stage::Over, now);
        }
    }

    /// Returns the next whole request; the caller answers it. A request that cannot be read is
    /// answered here.
    pub fn next_request(&mut self, now: u64) -> Option<Request> {
        if self.stage != Stage::Reading {
            return None;
        }
        match parse(&self.input) {
            Parsed::Partial => {
                if self.has_ended {
                    self.set_stage(Stage::Over, now);
                }
                None
            }
            Parsed::Refused(status) => {
                self.answer_last(status, now);
                None
            }
            Parsed::Request(request) => {
                self.input.drain(..request.len);
                self.request = Some(request.clone());
                self.set_stage(Stage::Waiting, now);
                Some(request)
            }
        }
    }

    /// Answers the request that `next_request` returned.
    pub fn answer(&mut self, response: &Response, now: u64) {
        assert_eq!(self.stage, Stage::Waiting, "one answer for one request");
        let mut request = self.request.clone();
        if let Some(request) = &mut request
            && self.has_ended
            && self.input.is_empty()
        {
            request.keep_alive = false;
        }
        self.write(response, request, now);
    }

    /// Writes an answer after which the connection is closed, to no request that could be read.
    fn answer_last(&mut self, status: Status, now: u64) {
        self.input = Vec::new();
        self.write(&Response::refusal(status), None, now);
    }

    fn write(&mut self, response: &Response, request: Option<Request>, now: u64) {
        self.head = response.head(request.as_ref());
        self.body = match Response::has_body(request.as_ref()) {
            true => Rc::clone(&response.body),
            false => Rc::default(),
        };
        self.sent = 0;
        self.request = request;
        self.set_stage(Stage::Answering, now);
    }

    /// The rest of the answer, in two pieces.
    pub fn unsent(&self) -> [&[u8]; 2] {
        if self.stage != Stage::Answering {
            return [&[], &[]];
        }
        let head = &self.head[self.sent.min(self.head.len())..];
        let body = &self.body[self.sent.saturating_sub(self.head.len())..];
        [head, body]
    }

    /// The body of the answer that is being written.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Notes that so many bytes of the answer were sent.
    pub fn advance(&mut self, bytes: usize, now: u64) {
        self.sent += bytes;
        if self.stage != Stage::Answering || self.sent < self.head.len() + self.body.len() {
            return;
        }
        (self.head, self.body) = (Vec::new(), Rc::default());
        let stays = self.request.take().is_some_and(|request| request.keep_alive);
        self.set_stage(
            match (stays, self.input.is_empty()) {
                (true, false) => Stage::Reading,
                (true, true) if !self.has_ended => Stage::Idle,
                (false, _) if !self.has_ended => Stage::Lingering,
                _ => Stage::Over,
            },
            now,
        );
        if self.stage == Stage::Lingering {
            self.input = Vec::new();
        }
    }

    /// Whether bytes of the client are to be read.
    pub fn wants_input(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Reading | Stage::Lingering)
    }

    /// When the present stage has taken too long.
    pub fn deadline(&self) -> u64 {
        let patience = match self.stage {
            Stage::Idle => IDLE_US,
            Stage::Reading => READING_US,
            Stage::Waiting => WAITING_US,
            Stage::Answering => ANSWERING_US,
            Stage::Lingering => LINGERING_US,
            Stage::Over => 0,
        };
        self.since.saturating_add(patience)
    }

    /// The deadline has passed. A client that began a request is told so; others are closed.
    pub fn time_out(&mut self, now: u64) {
        match self.stage {
            Stage::Reading => self.answer_last(Status::RequestTimeout, now),
            Stage::Waiting => self.answer(&Response::refusal(Status::ServiceUnavailable), now),
            _ => self.set_stage(Stage::Over, now),
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// When the stage began.
    pub fn since(&self) -> u64 {
        self.since
    }

    fn set_stage(&mut self, stage: Stage, now: u64) {
        assert_ne!(self.stage, Stage::Over, "nothing comes after the end");
        (self.stage, self.since) = (stage, now);
    }
}

/// How long a connection may wait for its next request. Prometheus asks every minute by default.
const IDLE_US: u64 = 120_000_000;
/// How long a request may take to come.
const READING_US: u64 = 5_000_000;
/// How long an answer may take to be made.
const WAITING_US: u64 = 5_000_000;
/// How long a client may take to read its answer.
const ANSWERING_US: u64 = 30_000_000;
/// How long bytes are discarded after the last answer, …
const LINGERING_US: u64 = 1_000_000;
/// … and how many.
const DISCARD_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every request with its path, as one who writes `step` bytes at a time; returns all
    /// that was written. The input is read as the caller would: not while an answer is unsent.
    fn converse(input: &[u8], cut: usize, step: usize) -> (String, Connection) {
        let mut connection = Connection::new(0);
        let mut out = Vec::new();
        let mut pieces = input.chunks(cut.max(1));
        loop {
            while let Some(request) = connection.next_request(0) {
                connection.answer(&Response::text(Status::Ok, &request.path), 0);
                let [head, body] = connection.unsent();
                let all = [head, body].concat();
                for piece in all.chunks(step) {
                    let [head, body] = connection.unsent();
                    assert!([head, body].concat().starts_with(piece));
                    connection.advance(piece.len(), 0);
                }
                out.extend_from_slice(&all);
            }
            if connection.stage() == Stage::Answering {
                let all = connection.unsent().concat();
                connection.advance(all.len(), 0);
                out.extend_from_slice(&all);
            }
            if connection.stage() == Stage::Over || !connection.wants_input() {
                break;
            }
            match pieces.next() {
                Some(piece) => connection.receive(piece, 0),
                None => break,
            }
        }
        (String::from_utf8(out).unwrap(), connection)
    }

    const TWO: &str = "GET /a HTTP/1.1\r\nHost: x\r\n\r\nHEAD /bc HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
        let (whole, connection) = converse(TWO.as_bytes(), TWO.len(), 1000);
        assert_eq!(connection.stage(), Stage::Idle);
        assert_eq!(whole.matches("HTTP/1.1 200 OK\r\n").count(), 2);
        assert!(whole.contains("\r\n\r\n/aHTTP/1.1") && whole.ends_with("\r\n\r\n"), "{whole}");
        assert!(whole.contains("Content-Length: 3\r\n"), "{whole}");
        for cut in 1..TWO.len() {
            assert_eq!(converse(TWO.as_bytes(), cut, 7).0, whole, "{cut}");
        }
    }

    #[test]
    fn the_last_answer_says_so_and_what_comes_after_it_is_discarded() {
        let input = format!("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n{TWO}");
        let (out, mut connection) = converse(input.as_bytes(), 10_000, 1000);
        assert_eq!(out.matches("HTTP/1.1").count(), 1);
        assert!(out.contains("Connection: close\r\n"), "{out}");
        assert_eq!(connection.stage(), Stage::Lingering);
        connection.receive(&[b'x'; DISCARD_MAX], 1);
        assert_eq!(connection.stage(), Stage::Lingering);
        connection.receive(b"x", 1);
        assert_eq!(connection.stage(), Stage::Over);
    }

    #[test]
    fn an_old_client_is_told_that_the_connection_stays() {
        let (out, connection) =
            converse(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 100, 1000);
        assert!(out.contains("Connection: keep-alive\r\n"), "{out}");
        assert_eq!(connection.stage(), Stage::Idle);
        let (out, connection) = converse(b"GET / HTTP/1.0\r\n\r\n", 100, 1000);
        assert!(out.contains("Connection: close\r\n"), "{out}");
        assert_eq!(connection.stage(), Stage::Lingering);
    }

    #[test]
    fn a_request_that_cannot_be_read_is_the_last() {
        let (out, connection) = converse(format!("nonsense\r\n\r\n{TWO}").as_bytes(), 1000, 1000);
        assert!(out.starts_with("HTTP/1.1 400 ") && out.matches("HTTP/1.1").count() == 1, "{out}");
        assert_eq!(connection.stage(), Stage::Lingering);
    }

    #[test]
    fn a_client_that_ends_its_side_is_answered_and_then_closed() {
        let mut connection = Connection::new(0);
        connection.receive(&TWO.as_bytes()[..TWO.len() - 1], 0);
        assert!(connection.next_request(0).is_some());
        connection.end(0);
        assert_eq!(connection.stage(), Stage::Waiting);
        connection.answer(&Response::text(Status::Ok, "a"), 0);
        connection.advance(connection.unsent().concat().len(), 0);
        // The part of another request that it has sent never becomes whole.
        assert_eq!((connection.stage(), connection.next_request(0)), (Stage::Reading, None));
        assert_eq!(connection.stage(), Stage::Over);
        let mut idle = Connection::new(0);
        idle.end(0);
        assert_eq!(idle.stage(), Stage::Over);
    }

    #[test]
    fn each_stage_has_its_time() {
        let mut connection = Connection::new(7);
        assert_eq!(connection.deadline(), 7 + IDLE_US);
        connection.receive(b"GET / HT", 10);
        connection.receive(b"TP/1.1\r\n", 4_000_000);
        assert_eq!(connection.deadline(), 10 + READING_US, "bytes win no time");
        connection.time_out(10 + READING_US);
        assert!(connection.unsent().concat().starts_with(b"HTTP/1.1 408 "));
        assert_eq!(connection.deadline(), 10 + READING_US + ANSWERING_US);
        connection.advance(1, 20_000_000);
        assert_eq!(connection.deadline(), 10 + READING_US + ANSWERING_US, "a byte read wins none");
        connection.time_out(60_000_000);
        assert_eq!(connection.stage(), Stage::Over);
    }

    #[test]
    fn an_answer_that_cannot_be_made_is_an_error_and_not_the_end() {
        let mut connection = Connection::new(0);
        connection.receive(TWO.as_bytes(), 0);
        assert!(connection.next_request(0).is_some());
        assert_eq!(connection.deadline(), WAITING_US);
        connection.time_out(WAITING_US);
        let out = connection.unsent().concat();
        assert!(out.starts_with(b"HTTP/1.1 503 "));
        connection.advance(out.len(), WAITING_US);
        assert_eq!(connection.next_request(WAITING_US).map(|it| it.path), Some("/bc".to_string()));
    }
}
