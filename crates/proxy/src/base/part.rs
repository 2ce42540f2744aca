//! What passes between the halves: the client that asks, and the parts of its request.

use std::rc::Rc;

use proto::{Protocol, Quiet, Request, Shown, WorkId};

use super::block::Block;
use super::buffer::{Outbox, Source};
use super::id::ConnId;
use super::limits;
use super::size::{Cost, Expected};

/// The index of a pending request. An entry is freed only when no queue refers to it any more.
pub(crate) type RequestId = u32;

/// No request.
pub(crate) const NONE: RequestId = u32::MAX;

/// A part of a request, which goes to one server: a key of a read, or what one server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) request: RequestId,
    /// The number of the part.
    pub(crate) slot: u32,
}

impl Part {
    /// The only part of a request that goes to one server.
    pub(crate) fn whole(request: RequestId) -> Part {
        Part { request, slot: 0 }
    }
}

/// The classes of links. Each class but the shared one has one link for each connection key and
/// server, if there is room for it: see `PoolPlan::class_links`. What is outstanding of one client
/// is always of one class, so that its requests keep their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkClass {
    /// For requests that may take long.
    Slow,
    /// For requests that end what a server is busy with.
    Control,
    /// For large requests and values.
    Large,
    /// For requests that go around a shared link on which one takes long.
    Spare,
    /// For all others.
    #[default]
    Shared,
    /// No class of links: its client takes other links than before.
    Moved,
    /// For the requests of one client alone.
    Private,
    /// For subscriptions, of all clients of a pool; no client's requests take it.
    Subscribed,
}

impl LinkClass {
    /// The number of classes beside the shared one. Their links have the first places.
    pub(crate) const SPECIAL: usize = 4;
    pub(crate) const OF_PLACES: [LinkClass; LinkClass::SPECIAL] =
        [LinkClass::Slow, LinkClass::Control, LinkClass::Large, LinkClass::Spare];

    /// Whether its links are written even to a server that is silent.
    pub(crate) fn is_never_held(self) -> bool {
        matches!(self, LinkClass::Control | LinkClass::Subscribed)
    }
}

/// How long a request may take its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effort {
    /// No longer than its size and that of its answer explain.
    #[default]
    Quick,
    /// The data decide, and no request like this is known.
    Untried(WorkId),
    /// The data decide. Requests like this were quick before.
    Unknown(WorkId),
    /// The data decide. Requests like this took so many tenths of a millisecond.
    Timed(WorkId, u8),
    /// It is expected to take long: the data decide, and requests like this took long before.
    Known(WorkId),
    /// It is always expected to take long.
    Slow,
    /// It waits at its server until there is something for it, and keeps nobody else waiting.
    Waits,
    /// As `Quick`; what its client asks from then on takes links of its own.
    Watches,
}

impl Effort {
    /// Whether a client may have only one such request outstanding at a server.
    #[inline]
    pub(crate) fn is_single(self) -> bool {
        matches!(self, Effort::Untried(_) | Effort::Known(_) | Effort::Slow)
    }

    /// Whether it may keep its server for long.
    #[inline]
    pub(crate) fn may_be_long(self) -> bool {
        !matches!(self, Effort::Quick | Effort::Waits | Effort::Watches)
    }

    /// Whether the time of such requests that are outstanding at a server is bounded.
    #[inline]
    pub(crate) fn is_bounded(self) -> bool {
        matches!(self, Effort::Untried(_) | Effort::Timed(..))
    }

    /// Returns the work, if requests like this were quick before: the number of those that are
    /// outstanding at a server is bounded.
    #[inline]
    pub(crate) fn counted(self) -> Option<WorkId> {
        match self {
            Effort::Unknown(id) | Effort::Timed(id, _) => Some(id),
            _ => None,
        }
    }

    /// Returns how long it is expected to keep its server, in microseconds, of what is bounded.
    pub(crate) fn time(self) -> u64 {
        match self {
            Effort::Timed(_, tenths) => u64::from(tenths) * limits::WORK_UNIT_US,
            Effort::Untried(_) => limits::WORK_UNTRIED_US,
            _ => 0,
        }
    }

    /// Whether it takes a link for slow requests.
    #[inline]
    pub(crate) fn is_slow(self) -> bool {
        matches!(self, Effort::Known(_) | Effort::Slow)
    }

    /// Returns the work whose time is noted.
    pub(crate) fn work(self) -> Option<WorkId> {
        match self {
            Effort::Untried(id)
            | Effort::Unknown(id)
            | Effort::Timed(id, _)
            | Effort::Known(id) => Some(id),
            Effort::Quick | Effort::Slow | Effort::Waits | Effort::Watches => None,
        }
    }
}

/// The client that asks, as far as its requests' routes and links depend on it.
#[derive(Clone, Copy)]
pub(crate) struct Requester {
    pub(crate) id: ConnId,
    pub(crate) pool: u32,
    /// The index of its connection key.
    pub(crate) conn_key: u16,
    /// The index of its tenant.
    pub(crate) tenant: u16,
    pub(crate) protocol: &'static dyn Protocol,
    /// What the answer to the request being read may be.
    pub(crate) expected: Expected,
    /// The class of its links for the request being read, and how long that may take.
    pub(crate) class: LinkClass,
    pub(crate) effort: Effort,
    /// It left while nothing could be sent: its requests are dropped.
    pub(crate) gave_up: bool,
}

impl Requester {
    pub(crate) fn pool(&self) -> usize {
        self.pool as usize
    }
}

/// A request as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Incoming<'a> {
    pub(crate) asks: &'a Requester,
    pub(crate) request: &'a Request,
    pub(crate) head: &'a [u8],
}

impl Incoming<'_> {
    /// Whether it is dropped: its client has given up, and had waited for the answer.
    pub(crate) fn is_dropped(&self) -> bool {
        self.asks.gave_up && self.request.quiet != Quiet::Silent
    }
}

/// The parts of a client's requests that were sent and have no reply, and their cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) parts: u32,
    pub(crate) cost: u64,
    /// How deep they are among what this client has shown.
    pub(crate) depth: Depth,
}

/// Whether a client asks for more at once than it has shown to be small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Depth {
    /// It does not.
    #[default]
    Shown,
    /// It has, a short while ago, so its answers may have changed.
    Growing,
    /// It does.
    Beyond,
}

/// What becomes of a part that has waited for a link, when its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is sent, at this cost: more may be known than when it was read.
    Sent(Cost),
    /// Its client waits, until a part of it is answered or it has read its answers.
    Later,
    /// It is dropped: nobody waits for the answer.
    Dropped,
}

/// What a request has of a value that is arriving. It lies with the link until the value is whole.
pub(crate) struct Arrival {
    /// The part that it answers; `None` if it is dropped.
    pub(crate) part: Option<Part>,
    /// The pool and the command that it answers, if known, and how much of the answer has begun.
    pub(crate) command: Option<(u32, u16)>,
    pub(crate) len: usize,
    /// The client receives it while it arrives.
    pub(crate) streams: bool,
    /// If it is not streamed: the bytes for the client, which are its head and the part of the rest
    /// that has come.
    pub(crate) data: Outbox,
    pub(crate) shown: Shown,
}

impl Arrival {
    /// For a value that nothing waits for.
    pub(crate) fn nowhere() -> Arrival {
        Arrival {
            part: None,
            command: None,
            len: 0,
            streams: false,
            data: Outbox::default(),
            shown: Shown::Nothing,
        }
    }
}

/// The bytes of a request beside its head.
pub(crate) enum Data<'a> {
    /// Its body, including the trailer, which arrived in one piece.
    OnePiece(Source<'a>),
    /// The same, which arrived in several.
    Assembled(Outbox),
    /// There is no body, and the head is large and passes unchanged: this is the head.
    Head(Source<'a>),
}

impl<'a> Data<'a> {
    /// Returns a request without a body as what passes by reference to the block in which it begins
    /// there, if it is larger than a read and most of what the reference would keep.
    #[cold]
    pub(crate) fn large_head(
        incoming: &Incoming<'_>,
        (block, at): (&'a Rc<Block>, usize),
    ) -> Option<Data<'a>> {
        let Incoming { asks, request, head } = *incoming;
        let is_most = head.len() > limits::BLOCK && head.len() > (block.len() - at) / 2;
        let passes = is_most && request.body == 0 && asks.protocol.passes_head(request, head);
        passes.then(|| Data::Head(Source::block(block, block.len()).part(at, at + head.len())))
    }

    pub(crate) fn none() -> Self {
        Data::Assembled(Outbox::default())
    }

    /// Returns the same for another server, where there is no body.
    pub(crate) fn again(&self) -> Self {
        match self {
            Data::Head(head) => Data::Head(*head),
            Data::OnePiece(_) | Data::Assembled(_) => Data::none(),
        }
    }
}
