//! From bytes to frames: executes what has arrived request by request, in place where possible.

use proto::memcached::Text;
use proto::{Answer, Asked, Class, Parsed, Protocol, Quiet, Refusal, Request};

use super::execute::{Executor, Progress};
use super::reply::{OUT_OF_MEMORY, TOO_LARGE, refused};
use super::session::{Session, Swallow};

impl Executor {
    /// Executes as much as has arrived and the limit on unread replies allows. The rest is kept.
    pub(super) fn receive(&mut self, session: &mut Session, bytes: &[u8], now: u64) {
        if session.intake.is_empty() {
            let used = self.work(session, bytes, now);
            session.intake.extend_from_slice(&bytes[used..]);
        } else {
            session.intake.extend_from_slice(bytes);
            if session.intake.len() < session.frame_len {
                return self.account(session);
            }
            let mut intake = std::mem::take(&mut session.intake);
            let used = self.work(session, &intake, now);
            intake.drain(..used);
            session.intake = intake;
        }
        if session.intake.is_empty() {
            session.intake = Vec::new();
        }
        self.make_room(session);
        self.account(session);
    }

    /// Releases the accounting of a session that has ended.
    pub(super) fn forget(&mut self, session: &Session) {
        self.held -= session.accounted;
    }

    /// Executes requests at the start of `input`; returns the number of bytes consumed.
    fn work(&mut self, session: &mut Session, input: &[u8], now: u64) -> usize {
        let mut at = 0;
        while !session.is_full() {
            at += swallow(session, &input[at..]);
            let rest = &input[at..];
            if rest.is_empty() || session.swallow.is_some() || rest.len() < session.frame_len {
                break;
            }
            match Text.parse_request(rest, &mut session.resume, &mut self.keys) {
                Parsed::Incomplete if self.is_head_too_long(rest.len()) => {
                    return leave(session, "line too long", input);
                }
                Parsed::Incomplete => break,
                Parsed::Malformed(why) => return leave(session, why, input),
                Parsed::Complete(request) => match self.step(session, &request, rest, now) {
                    Step::Done(len) => at += len,
                    Step::Wait => break,
                    Step::Leave => return input.len(),
                },
            }
            session.resume = Default::default();
            session.frame_len = 0;
        }
        at
    }

    /// Long lines are accepted as long as all of them together do not hold too much memory.
    fn is_head_too_long(&self, len: usize) -> bool {
        len > HEAD_MAX || (len > HEAD_ALWAYS && self.held > HELD_MAX)
    }

    /// Executes one request whose head is at the start of `rest`.
    fn step(&mut self, session: &mut Session, request: &Request, rest: &[u8], now: u64) -> Step {
        let len = request.len();
        if len > rest.len() as u64 {
            if let Some(answer) = self.refuse_body(request, rest, now) {
                let answer = if request.quiet == Quiet::Silent { Vec::new() } else { answer };
                session.swallow = Some(Swallow { left: len - u64::from(request.head), answer });
                return Step::Done(request.head as usize);
            }
            session.frame_len = len as usize;
            return Step::Wait;
        }
        let frame = &rest[..len as usize];
        match self.execute(session, request, frame, now) {
            Progress::Done => Step::Done(len as usize),
            Progress::Full => Step::Wait,
            Progress::Quit => {
                session.is_leaving = true;
                Step::Leave
            }
        }
    }

    /// Returns the reason to refuse a data block that is still arriving, before it takes any
    /// memory.
    fn refuse_body(&mut self, request: &Request, head: &[u8], now: u64) -> Option<Vec<u8>> {
        match request.class {
            Class::Refuse(refusal) => Some(refused(refusal)),
            _ if self.is_too_large(request) => {
                self.drop_stale(request, head, now);
                Some(TOO_LARGE.to_vec())
            }
            _ if self.held.saturating_add(request.body as usize) > HELD_MAX => {
                self.drop_stale(request, head, now);
                Some(OUT_OF_MEMORY.to_vec())
            }
            _ => None,
        }
    }

    /// Reserves room for the whole arriving frame, so that it is copied once.
    fn make_room(&mut self, session: &mut Session) {
        let missing = session.frame_len.saturating_sub(session.intake.len());
        session.intake.reserve_exact(missing);
    }

    fn account(&mut self, session: &mut Session) {
        self.held = self.held + session.intake.capacity() - session.accounted;
        session.accounted = session.intake.capacity();
    }
}

/// The result of one step.
enum Step {
    /// That many bytes are consumed.
    Done(usize),
    /// The request stays in place until more bytes arrive or the client reads.
    Wait,
    /// The session ends; nothing after the request is read.
    Leave,
}

/// Discards the rest of an unwanted data block; returns the number of bytes discarded.
fn swallow(session: &mut Session, input: &[u8]) -> usize {
    let Some(swallow) = &mut session.swallow else { return 0 };
    let passing = swallow.left.min(input.len() as u64);
    swallow.left -= passing;
    if swallow.left == 0 {
        session.out.extend_from_slice(&swallow.answer);
        session.swallow = None;
    }
    passing as usize
}

/// Replies with the reason and reads no more, because later bytes cannot be parsed.
fn leave(session: &mut Session, why: &'static str, input: &[u8]) -> usize {
    Text.answer(&Asked::no_request(), &Answer::Refused(Refusal::Bad(why)), &mut session.out);
    session.is_leaving = true;
    input.len()
}

/// Longest line in bytes: 100,000 keys of 250 bytes, with a margin.
const HEAD_MAX: usize = proxy::limits::REQUEST_HEAD_MAX;
/// A line up to this length is accepted, whatever other clients hold.
const HEAD_ALWAYS: usize = 64 * 1024;
/// Limit on bytes held by unfinished requests of all clients; above it a value is refused.
const HELD_MAX: usize = 128 * 1024 * 1024;
