//! A message on a link: what is asked, of whom, and what its reply is to be.

use proto::{Ask, Item, Upstream};

use super::batch::Batch;
use super::trial::TrialMessage;
use crate::Time;
use crate::base::buffer::End;
use crate::base::id::ConnId;
use crate::base::part::{Arrival, Effort, Part};
use crate::base::size::Cost;

/// One message in the queue or on the wire.
pub(crate) struct Message {
    pub(super) payload: Payload,
    pub(super) ask: Ask,
    pub(super) is_update: bool,
    /// The end of the message in the stream.
    pub(super) end: u64,
    /// When it was queued.
    pub(super) since: Time,
    /// It waits, or has waited, because the server was silent.
    pub(super) held: bool,
    /// The client that asks, and the cost, if it is a request's.
    pub(super) client: ConnId,
    pub(super) cost: Cost,
    /// How long it may take.
    pub(super) effort: Effort,
    pub(super) late: Late,
    /// The cost in flight when it joined the link's output.
    pub(super) inflight: u32,
    /// How long it had waited before, in microseconds.
    pub(super) waited: u32,
}

/// What a message asks.
pub(super) struct MessageForm {
    pub(super) payload: Payload,
    pub(super) ask: Ask,
    /// It changes something, for the account of latencies.
    pub(super) is_update: bool,
}

impl MessageForm {
    /// Makes the form of keys that leave together.
    pub(super) fn batch(batch: Box<Batch>) -> MessageForm {
        let (ask, is_update) = (batch.ask, batch.single_reply && !batch.idempotent);
        MessageForm { payload: Payload::Fetch(batch), ask, is_update }
    }
}

/// Whether the request of a message has been answered with an error: the reply is then discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    No,
    /// No. The message is a block, and other replies come before its own.
    Block(Steps),
    Yes,
    /// It has, and the reply must be a list of this many elements.
    List(u32),
    /// It has, and the message is a block.
    AnsweredBlock(Steps),
    /// Its server has refused it before all of it was sent. The rest is still to leave, since the
    /// server passes over it, and no reply comes.
    Refused,
}

/// The replies to a block that come before the one to its request: how many are still to come, and
/// whether the first has come, in the lowest bit. Messages are many, so this is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps(u32);

impl Steps {
    pub(super) fn new(left: u32) -> Steps {
        Steps(left << 1)
    }

    pub(super) fn left(self) -> u32 {
        self.0 >> 1
    }

    pub(super) fn has_begun(self) -> bool {
        self.0 & 1 != 0
    }

    pub(super) fn next(self) -> Steps {
        Steps(self.left().saturating_sub(1) << 1 | 1)
    }
}

/// The payload of a message.
pub(crate) enum Payload {
    Fetch(Box<Batch>),
    /// A request, or a part of it.
    Single(Part),
    /// A command of the proxy's own: no client waits for the reply.
    // Measured: it is rare, and without the box a request of Redis costs 26 instructions more.
    Internal(Box<Internal>),
}

impl Payload {
    pub(crate) fn internal(command: Internal) -> Payload {
        Payload::Internal(Box::new(command))
    }
}

/// A command of the proxy's own, or what is left of a client's whose reply nobody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Internal {
    /// Nothing follows from its reply.
    Plain,
    /// Asks a server whether it is busy.
    Ping,
    /// Ends watches.
    Unwatch,
    /// Ends a wait on another link.
    Unblock,
    /// Has a server know again what it has lost, of which this is the number.
    Recovery(u64),
    /// Shows whether the server executes blocks.
    Trial(TrialMessage),
}

/// A value that is arriving.
pub(crate) struct Body {
    pub(super) item: Item,
    /// The unit that it settles when it is complete.
    pub(super) unit: Unit,
    /// Bytes to come, of the item's body and trailer.
    pub(super) left: u64,
    pub(super) end: End,
    /// The share that the request it answers has of it.
    pub(super) arrival: Arrival,
}

/// The unit that one or more items settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// One key of a read.
    Key,
    /// A single request.
    Single,
    /// All keys of a message, which have one reply.
    Batch,
    /// An internal command, which is no client's.
    Internal,
}

impl Message {
    /// Whether it is withdrawn when it could not be sent in time. A trial stays as long as its link
    /// does: it may be needed yet, and whoever waits for it has a deadline.
    pub(super) fn expires(&self) -> bool {
        !self.is_trial()
    }

    /// Returns the proxy's own command that it is, if it is one.
    #[inline]
    pub(super) fn internal(&self) -> Option<Internal> {
        match &self.payload {
            Payload::Internal(command) => Some(**command),
            Payload::Fetch(_) | Payload::Single(_) => None,
        }
    }

    #[inline]
    pub(super) fn is_trial(&self) -> bool {
        matches!(self.internal(), Some(Internal::Trial(_)))
    }

    /// Returns how many parts of requests wait for its reply.
    pub(super) fn parts(&self) -> usize {
        match &self.payload {
            _ if self.is_late() => 0,
            Payload::Fetch(batch) => batch.outstanding().count(),
            Payload::Single(_) => 1,
            Payload::Internal(_) => 0,
        }
    }

    /// Returns the parts of requests that wait for its reply, and marks it: they have their answer,
    /// and the reply is discarded when it comes.
    pub(super) fn give_up_waiting(&mut self) -> Vec<Part> {
        self.late = match self.late {
            Late::Block(steps) => Late::AnsweredBlock(steps),
            _ => Late::Yes,
        };
        match &self.payload {
            Payload::Fetch(batch) => batch.outstanding().map(|entry| entry.part).collect(),
            Payload::Single(part) => vec![*part],
            Payload::Internal(_) => Vec::new(),
        }
    }

    /// Returns the number of keys that its reply answers together, if that is more than a request.
    pub(super) fn keys(&self) -> Option<u32> {
        match &self.payload {
            Payload::Fetch(batch) if batch.single_reply => Some(batch.entries.len() as u32),
            _ => None,
        }
    }

    /// Returns the client whose request it is, or nobody if it is the proxy's own; `None` if it has
    /// reads of several requests, or its request has been answered.
    #[cold]
    pub(super) fn asker(&self) -> Option<ConnId> {
        match &self.payload {
            _ if self.is_late() => None,
            Payload::Fetch(batch) => batch.is_of_one_request().then(|| batch.entries[0].client),
            Payload::Single(_) | Payload::Internal(_) => Some(self.client),
        }
    }

    /// Whether its request has been answered with an error.
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        !matches!(self.late, Late::No | Late::Block(_))
    }

    /// Whether it is a block whose own reply has not begun.
    #[cold]
    pub(super) fn is_block(&self) -> bool {
        matches!(self.late, Late::Block(_) | Late::AnsweredBlock(_))
    }

    /// Whether these bytes may answer it before all of it is sent.
    #[cold]
    pub(super) fn may_be_answered_early(&self, upstream: &dyn Upstream, bytes: &[u8]) -> bool {
        match (self.late, &self.payload) {
            (Late::Block(_) | Late::AnsweredBlock(_), _) => self.is_in_steps(),
            (Late::No | Late::Yes, Payload::Single(_)) => upstream.passes_over(bytes),
            (Late::No | Late::Yes | Late::List(_) | Late::Refused, _) => false,
        }
    }

    /// Whether it is a block of which replies may come before all of it is sent.
    #[cold]
    pub(super) fn is_in_steps(&self) -> bool {
        matches!(self.late, Late::Block(steps) | Late::AnsweredBlock(steps) if steps.left() > 0)
    }
}
