//! The channel between the master and one worker: typed messages, in order, each with its number
//! and the number of the last one received from the other side.
//!
//! ```text
//!   send ─▶ queue (bounded) ─▶ socket ═══════▶ socket ─▶ receive
//!            │ full: an error,                            │ a number that does not follow:
//!            ▼ nobody waits                               ▼ the channel is broken
//! ```
//!
//! An envelope is `{"v":1,"seq":12,"ack":7,"body":{"commit":{"epoch":3}}}`: text, so that a trace
//! of system calls can be read. Configurations are too long for it and travel as sealed memfds.

pub mod client_state;
pub mod installation;
pub mod message;
#[cfg(test)]
mod two_processes;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sys::channel;

pub use message::Message;

/// One end.
pub struct Channel {
    fd: OwnedFd,
    /// Messages that the kernel has not taken yet.
    queue: VecDeque<Outgoing>,
    /// Number of the last message that was queued.
    sent: u64,
    /// Number of the last message that came.
    received: u64,
    /// The count of received messages that the other side was last told.
    told: u64,
    /// Number of the last message of ours that the other side has received.
    acked: u64,
    /// Messages that must be acknowledged by a certain time.
    due: VecDeque<(u64, Instant)>,
    buffer: Vec<u8>,
}

struct Outgoing {
    seq: u64,
    body: Message,
    fds: Vec<Rc<OwnedFd>>,
}

#[derive(Serialize, Deserialize)]
struct Envelope<B> {
    v: u32,
    seq: u64,
    ack: u64,
    body: B,
}

/// A message that came.
#[derive(Debug)]
pub struct Received {
    pub message: Message,
    pub fds: Vec<OwnedFd>,
}

/// Why a channel cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other side has not taken [`QUEUE_MAX`] messages; this one was not queued.
    Full,
    /// A message of so many bytes; it was not queued.
    TooLong(usize),
    /// The other side is gone.
    Closed,
    /// The bytes are not a message of ours, or not the next one.
    Broken(String),
}

impl Channel {
    pub fn new(fd: OwnedFd) -> Channel {
        Channel {
            fd,
            queue: VecDeque::new(),
            sent: 0,
            received: 0,
            told: 0,
            acked: 0,
            due: VecDeque::new(),
            buffer: vec![0; MESSAGE_LEN_MAX],
        }
    }

    /// Queues a message and sends what the kernel takes. Its number is the answer.
    pub fn send(&mut self, message: Message, fds: &[Rc<OwnedFd>]) -> Result<u64, Fault> {
        if !self.has_room() {
            return Err(Fault::Full);
        }
        let len = serde_json::to_vec(&message).map_err(broken)?.len();
        if len > MESSAGE_LEN_MAX - ENVELOPE_LEN_MAX {
            return Err(Fault::TooLong(len));
        }
        self.sent += 1;
        self.queue.push_back(Outgoing { seq: self.sent, body: message, fds: fds.to_vec() });
        self.flush()?;
        Ok(self.sent)
    }

    /// The same, and the other side must have received it by `deadline`.
    pub fn send_by(
        &mut self,
        message: Message,
        fds: &[Rc<OwnedFd>],
        deadline: Instant,
    ) -> Result<u64, Fault> {
        let seq = self.send(message, fds)?;
        self.due.push_back((seq, deadline));
        Ok(seq)
    }

    /// Sends what is queued as far as the kernel takes it.
    pub fn flush(&mut self) -> Result<(), Fault> {
        while let Some(next) = self.queue.front() {
            let envelope =
                Envelope { v: VERSION, seq: next.seq, ack: self.received, body: &next.body };
            let bytes = serde_json::to_vec(&envelope).map_err(broken)?;
            let fds: Vec<BorrowedFd<'_>> = next.fds.iter().map(|fd| fd.as_fd()).collect();
            match channel::send(&self.fd, &bytes, &fds) {
                Ok(()) => {
                    self.told = self.received;
                    self.queue.pop_front();
                }
                // Too much is on its way already, of bytes or of descriptors, or memory is short:
                // all of that passes.
                Err(
                    Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS,
                ) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err(Fault::Closed);
                }
                Err(error) => return Err(Fault::Broken(error.to_string())),
            }
        }
        Ok(())
    }

    /// Whether one more message can be queued.
    pub fn has_room(&self) -> bool {
        self.queue.len() < QUEUE_MAX
    }

    /// Whether many more can: then what can wait need not.
    pub fn has_room_to_spare(&self) -> bool {
        self.queue.len() < QUEUE_MAX / 4
    }

    /// Whether to wait until the kernel takes more.
    pub fn has_unsent(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next message; `None` when nothing more has come.
    pub fn receive(&mut self) -> Result<Option<Received>, Fault> {
        loop {
            let mut fds = Vec::new();
            let len = match channel::receive(&self.fd, &mut self.buffer, &mut fds) {
                Ok(0) => return Err(Fault::Closed),
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(None),
                // The other side left something unread when it closed; said once, and what it had
                // said itself is still there.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(error) => return Err(Fault::Broken(error.to_string())),
            };
            let message = self.open(len)?;
            if message != (Message::Ack {}) {
                return Ok(Some(Received { message, fds }));
            }
        }
    }

    fn open(&mut self, len: usize) -> Result<Message, Fault> {
        let envelope: Envelope<Message> =
            serde_json::from_slice(&self.buffer[..len]).map_err(broken)?;
        if envelope.v != VERSION {
            return Err(Fault::Broken(format!("version {}, not {VERSION}", envelope.v)));
        }
        if envelope.seq != self.received + 1 || envelope.ack > self.sent {
            let (seq, received) = (envelope.seq, self.received);
            return Err(Fault::Broken(format!("message {seq} came after message {received}")));
        }
        self.received = envelope.seq;
        self.acked = self.acked.max(envelope.ack);
        while self.due.front().is_some_and(|(seq, _)| *seq <= self.acked) {
            self.due.pop_front();
        }
        // An acknowledgement alone asks for none.
        if envelope.body == (Message::Ack {}) && self.told + 1 == self.received {
            self.told = self.received;
        }
        Ok(envelope.body)
    }

    /// Tells the other side what has been received, if nothing else has.
    pub fn acknowledge(&mut self) -> Result<(), Fault> {
        if self.told < self.received && self.queue.is_empty() {
            self.send(Message::Ack {}, &[])?;
        }
        Ok(())
    }

    /// Since when the oldest message that had to be received has been late.
    pub fn overdue(&self, now: Instant) -> bool {
        self.due.front().is_some_and(|(_, due)| *due <= now)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Full => write!(f, "{QUEUE_MAX} messages wait and are not read"),
            Fault::TooLong(len) => write!(f, "a message of {len} bytes is too long"),
            Fault::Closed => write!(f, "the other side is gone"),
            Fault::Broken(why) => write!(f, "the channel is broken: {why}"),
        }
    }
}

fn broken(error: serde_json::Error) -> Fault {
    Fault::Broken(error.to_string())
}

/// Of the envelope and the table of messages.
pub const VERSION: u32 = 2;
/// Messages that may wait for the other side, beside those in the socket.
pub const QUEUE_MAX: usize = 1024;
/// Bytes of one message.
const MESSAGE_LEN_MAX: usize = 64 * 1024;
/// Bytes of the envelope around a body.
const ENVELOPE_LEN_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = sys::channel::pair().unwrap();
        (Channel::new(one), Channel::new(other))
    }

    fn word(number: u64) -> Message {
        Message::Refused { epoch: 0, why: number.to_string() }
    }

    #[test]
    fn messages_arrive_in_order_and_are_acknowledged() {
        let (mut master, mut worker) = pair();
        let late = Instant::now() - std::time::Duration::from_secs(1);
        master.send_by(Message::Commit { epoch: 3 }, &[], late).unwrap();
        assert!(master.overdue(Instant::now()));
        let received = worker.receive().unwrap().unwrap();
        assert_eq!(received.message, Message::Commit { epoch: 3 });
        worker.acknowledge().unwrap();
        assert!(master.receive().unwrap().is_none());
        assert!(!master.overdue(Instant::now()));
        // And the acknowledgement is not acknowledged, for ever.
        master.acknowledge().unwrap();
        assert!(worker.receive().unwrap().is_none());
    }

    #[test]
    fn a_side_that_does_not_read_is_an_error_and_loses_nothing() {
        let (mut master, mut worker) = pair();
        let mut sent = 0;
        while master.send(word(sent), &[]).is_ok() {
            sent += 1;
        }
        assert_eq!(master.send(word(sent), &[]), Err(Fault::Full));
        for number in 0..sent {
            master.flush().unwrap();
            assert_eq!(worker.receive().unwrap().unwrap().message, word(number));
        }
        assert!(worker.receive().unwrap().is_none() && !master.has_unsent());
    }

    #[test]
    fn what_is_no_message_or_not_the_next_one_breaks_the_channel() {
        let wrong = [
            "hello",
            r#"{"v":3,"seq":1,"ack":0,"body":{"ack":{}}}"#,
            r#"{"v":2,"seq":2,"ack":0,"body":{"ack":{}}}"#,
            r#"{"v":2,"seq":1,"ack":9,"body":{"ack":{}}}"#,
            r#"{"v":2,"seq":1,"ack":0,"body":{"dance":{}}}"#,
        ];
        for text in wrong {
            let (one, mut worker) = pair();
            sys::channel::send(&one, text.as_bytes(), &[]).unwrap();
            assert!(matches!(worker.receive(), Err(Fault::Broken(_))), "{text}");
        }
    }

    #[test]
    fn the_end_of_the_other_side_is_noticed_by_both_verbs() {
        let (mut master, worker) = pair();
        drop(worker);
        assert_eq!(master.send(word(1), &[]), Err(Fault::Closed));
        assert!(matches!(master.receive(), Err(Fault::Closed)));
    }
}
