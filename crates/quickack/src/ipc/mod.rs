//! The channel between the master and one worker: typed messages, in order, each with its number
//! and the number of the last one received from the other side.
//!
//! ```text
//!   send ─▶ queue (bounded) ─▶ socket ═══════▶ socket ─▶ receive
//!            │ full: an error,                            │ a number that does not follow:
//!            ▼ nobody waits                               ▼ the channel is broken
//! ```
//!
//! Each end sends the messages of one direction and receives those of the other. Configurations are
//! too long for a message and travel as sealed memfds.

pub mod client_state;
pub mod http_view;
pub mod installation;
pub mod message;
pub mod query;
#[cfg(test)]
mod two_processes;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::io::Errno;
use sys::channel;

use crate::error::{Error, Peer};
use message::{Envelope, Message};

pub use message::{
    FromHttp, FromLogWriter, FromResolver, Question, ToHttp, ToLogWriter, ToMaster, ToResolver,
    ToWorker,
};

/// One end, which sends messages `Out` and receives messages `In`.
pub struct Channel<Out, In> {
    fd: OwnedFd,
    /// Messages that the kernel has not taken yet.
    queue: VecDeque<Outgoing<Out>>,
    /// Number of the last message that was queued.
    sent: u64,
    /// Number of the last message that came.
    received: u64,
    /// The count of received messages that the other side was last told.
    told: u64,
    /// Number of the last message of ours that the other side has received.
    acked: u64,
    /// Messages that must be acknowledged by a certain time.
    due: VecDeque<Due>,
    buffer: Vec<u8>,
    incoming: PhantomData<In>,
}

struct Outgoing<Out> {
    seq: u64,
    /// None: only the number of the last message that was received.
    body: Option<Out>,
    fds: Vec<Rc<OwnedFd>>,
}

struct Due {
    seq: u64,
    deadline: Instant,
}

/// A message that came, with the descriptors that its row announces.
#[derive(Debug)]
pub struct Received<In> {
    pub message: In,
    pub fds: Vec<OwnedFd>,
}

impl<Out: Message, In: Message> Channel<Out, In> {
    pub fn new(fd: OwnedFd) -> Channel<Out, In> {
        Channel {
            fd,
            queue: VecDeque::new(),
            sent: 0,
            received: 0,
            told: 0,
            acked: 0,
            due: VecDeque::new(),
            buffer: vec![0; MESSAGE_LEN_MAX],
            incoming: PhantomData,
        }
    }

    /// Queues a message and sends what the kernel takes. Its number is the answer.
    pub fn send(&mut self, message: Out, fds: &[Rc<OwnedFd>]) -> Result<u64, Error> {
        if !message.descriptors().allow(fds.len()) {
            return Err(Error::Bug(format!("a message with {} descriptors", fds.len())));
        }
        self.queue_up(Some(message), fds)
    }

    /// The same, and the other side must have received it by `deadline`.
    pub fn send_by(
        &mut self,
        message: Out,
        fds: &[Rc<OwnedFd>],
        deadline: Instant,
    ) -> Result<(), Error> {
        let seq = self.send(message, fds)?;
        self.due.push_back(Due { seq, deadline });
        Ok(())
    }

    fn queue_up(&mut self, body: Option<Out>, fds: &[Rc<OwnedFd>]) -> Result<u64, Error> {
        if !self.has_room() {
            return Err(Peer::Full(QUEUE_MAX).into());
        }
        let len = Envelope::encode(u64::MAX, u64::MAX, body.as_ref())?.len();
        if len > MESSAGE_LEN_MAX {
            return Err(Error::Bug(format!("a message of {len} bytes is too long")));
        }
        self.sent += 1;
        self.queue.push_back(Outgoing { seq: self.sent, body, fds: fds.to_vec() });
        self.flush()?;
        Ok(self.sent)
    }

    /// Sends what is queued as far as the kernel takes it.
    pub fn flush(&mut self) -> Result<(), Error> {
        while let Some(next) = self.queue.front() {
            let bytes = Envelope::encode(next.seq, self.received, next.body.as_ref())?;
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
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Peer::Closed.into()),
                Err(error) => return Err(Error::os("the channel is broken")(error)),
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
    pub fn receive(&mut self) -> Result<Option<Received<In>>, Error> {
        loop {
            let mut fds = Vec::new();
            let len = match channel::receive(&self.fd, &mut self.buffer, &mut fds) {
                Ok(0) => return Err(Peer::Closed.into()),
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(None),
                // The other side left something unread when it closed; said once, and what it had
                // said itself is still there.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(error) => return Err(Error::os("the channel is broken")(error)),
            };
            if let Some(message) = self.open(len, fds.len())? {
                return Ok(Some(Received { message, fds }));
            }
        }
    }

    fn open(&mut self, len: usize, descriptors: usize) -> Result<Option<In>, Peer> {
        let Envelope { seq, ack, body, .. } = Envelope::decode(&self.buffer[..len], descriptors)?;
        let received = self.received;
        if seq != received + 1 || ack > self.sent {
            return Err(Peer::Broken(format!("message {seq} came after message {received}")));
        }
        self.received = seq;
        self.acked = self.acked.max(ack);
        while self.due.front().is_some_and(|due| due.seq <= self.acked) {
            self.due.pop_front();
        }
        // An acknowledgement alone asks for none.
        if body.is_none() && self.told + 1 == self.received {
            self.told = self.received;
        }
        Ok(body)
    }

    /// Tells the other side what has been received, if nothing else has.
    pub fn acknowledge(&mut self) -> Result<(), Error> {
        if self.told < self.received && self.queue.is_empty() {
            self.queue_up(None, &[])?;
        }
        Ok(())
    }

    /// Since when the oldest message that had to be received has been late.
    pub fn overdue(&self, now: Instant) -> bool {
        self.due.front().is_some_and(|due| due.deadline <= now)
    }
}

impl<Out, In> AsFd for Channel<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Messages that may wait for the other side, beside those in the socket.
pub const QUEUE_MAX: usize = 1024;
/// Bytes of one message, with its envelope.
const MESSAGE_LEN_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel<ToWorker, ToMaster>, Channel<ToMaster, ToWorker>) {
        let (one, other) = sys::channel::pair().unwrap();
        (Channel::new(one), Channel::new(other))
    }

    fn word(number: u64) -> ToWorker {
        ToWorker::Commit { epoch: number }
    }

    #[test]
    fn messages_arrive_in_order_and_are_acknowledged() {
        let (mut master, mut worker) = pair();
        let late = Instant::now() - std::time::Duration::from_secs(1);
        master.send_by(word(3), &[], late).unwrap();
        assert!(master.overdue(Instant::now()));
        let received = worker.receive().unwrap().unwrap();
        assert_eq!(received.message, word(3));
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
        assert_eq!(master.send(word(sent), &[]), Err(Peer::Full(QUEUE_MAX).into()));
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
            r#"{"v":8,"seq":2,"ack":0}"#,
            r#"{"v":8,"seq":1,"ack":9}"#,
            r#"{"v":8,"seq":1,"ack":0,"body":{"leaving":{}}}"#,
        ];
        for text in wrong {
            let (one, mut worker) = pair();
            sys::channel::send(&one, text.as_bytes(), &[]).unwrap();
            assert!(matches!(worker.receive(), Err(Error::Peer(Peer::Broken(_)))), "{text}");
        }
    }

    #[test]
    fn the_end_of_the_other_side_is_noticed_by_both_verbs() {
        let (mut master, worker) = pair();
        drop(worker);
        assert_eq!(master.send(word(1), &[]), Err(Peer::Closed.into()));
        assert!(matches!(master.receive(), Err(Error::Peer(Peer::Closed))));
    }
}
