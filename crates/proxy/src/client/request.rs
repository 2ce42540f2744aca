//! The request table: one entry for each pending request. A pending request belongs to a client's
//! pipeline (unless it is silent) and stands in links' queues once for each part outstanding.
//!
//! ```text
//!   alloc ──▶ Waiting(parts left) ──last part settled──▶ Done ──head of its pipeline──▶ emit, free
//! ```

mod gather;
mod index;
mod info;
#[cfg(seeded_bugs)]
mod seeded;

use proto::{Answer, Ask, Asked, Item, Protocol, Quiet, Request, Shown};

use crate::Time;
use crate::base::access::AccessNote;
use crate::base::buffer::{Outbox, Spares};
use crate::base::id::ConnId;
use crate::base::limits;
use crate::base::part::{NONE, RequestId};
use crate::base::phases::Moments;
use crate::base::plan::Partial;
use crate::base::slow::{KeyNote, ReplyOf};

pub(super) use gather::{Kind, Origin};
pub(super) use info::RequestInfo;

/// The time of a request that the proxy answers by itself: its latency is not counted.
pub(super) const UNTIMED: Time = Time(u64::MAX);

/// One pending request.
pub(super) struct PendingRequest {
    pub(super) state: State,
    /// The client that sent it, which may have left.
    pub(super) client: ConnId,
    /// The next request in the same client's pipeline.
    pub(super) next: RequestId,
    pub(super) pool: u32,
    /// When its head was parsed; `UNTIMED` if it goes to no server.
    pub(super) since: Time,
    pub(super) moments: Moments,
    /// The reply that settled it.
    pub(super) reply_of: ReplyOf,
    /// Its first key, for the logs of requests.
    pub(super) key: KeyNote,
    pub(super) access: AccessNote,
    pub(super) info: RequestInfo,
    /// It is an update or broadcast that changes something.
    pub(super) writes: bool,
    /// Its client waited for the answer, has left without a `quit`, and may send it again.
    pub(super) cancelled: bool,
    /// How often it was sent again, in parts or whole.
    pub(super) asked_again: u8,
    /// The number of keys or servers that have not answered.
    pub(super) parts_left: u32,
    /// The error line for the client; in a read, in the place of the end.
    pub(super) error: Vec<u8>,
    /// The answer, where it could not go to the client at once.
    pub(super) reply: Outbox,
    /// The result of each key, in a read of several keys.
    pub(super) slots: Vec<Slot>,
    /// The number of slots whose results have left for the client already.
    emitted: u32,
    /// The slot after the last that has a value.
    furthest: u32,
    /// Small values of such a read, as they came.
    values: Vec<u8>,
    /// How many bytes of `values` have left.
    left: usize,
    /// Large values of such a read, and their bytes.
    large: Vec<Outbox>,
    large_bytes: usize,
    /// Bytes held, as reported to the memory account.
    pub(super) counted: usize,
    /// Those of its answer, as reported to its client's pipeline.
    pub(super) gathered: usize,
    /// Bytes of its answer that were expected when it was read.
    pub(super) expected: usize,
    /// Bytes in flight, where its client's tenant has a limit.
    pub(super) inflight: u32,
}

/// The states of a pending request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In the free list.
    Free,
    /// Parts are outstanding.
    Waiting,
    /// Every part is settled. The request waits for its turn in the pipeline.
    Done,
}

/// The result of one key of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// No result yet, or none where replies are gathered.
    Empty,
    /// The key has no value.
    Missed,
    /// The bytes `values[start..end]`.
    Small { start: u32, end: u32 },
    /// An error in `values[start..end]`, where replies are gathered.
    Failed { start: u32, end: u32 },
    /// The next element of the reply in slot `first`.
    With { first: u32 },
    /// The value `large[index]`.
    Large { index: u32 },
}

impl PendingRequest {
    /// Returns the bytes that this request holds, which must equal `counted`, and those of its
    /// answer among them, which must equal `gathered`.
    pub(super) fn measure(&self) -> (usize, usize) {
        let slots = self.slots.len() * size_of::<Slot>();
        let ends = self.info.ends.len() * size_of::<u32>();
        let gathered = self.reply.len() + self.values.len() - self.left + self.large_bytes;
        (self.info.head.len() + ends + slots + self.left + gathered, gathered)
    }

    /// Whether what has come of its answer cannot leave before the answer to a key has come.
    pub(super) fn awaits(&self, slot: u32) -> bool {
        self.info.gathers || slot < self.furthest
    }

    /// Whether a value of this length is copied among the small ones.
    pub(super) fn is_small(&self, len: usize) -> bool {
        len < limits::KEEP_REFERENCE_MIN && self.has_room(len)
    }

    /// Keeps the answer to a key; returns its length in bytes.
    pub(super) fn keep_small(&mut self, slot: u32, value: &[u8]) -> usize {
        let start = self.values.len();
        self.values.extend_from_slice(value);
        self.fill(slot, start)
    }

    /// Makes the bytes of `values` from `start` on the answer to a key.
    fn fill(&mut self, slot: u32, start: usize) -> usize {
        let end = self.values.len();
        self.slots[slot as usize] = Slot::Small { start: start as u32, end: end as u32 };
        self.furthest = self.furthest.max(slot + 1);
        end - start
    }

    /// As `keep_small`, rendered in the client's protocol.
    pub(super) fn keep_rendered(&mut self, slot: u32, item: &Item, value: &[u8]) -> usize {
        let (head, body) = (item.head as usize, item.body as usize);
        let start = self.values.len();
        let shown = self.info.render(slot, item, &value[..head], &mut self.values);
        if let Shown::Body { trailer } = shown {
            self.values.extend_from_slice(&value[head..head + body]);
            self.values.extend_from_slice(trailer);
        }
        self.fill(slot, start)
    }

    /// Puts an error in place of the whole answer, or of one key's where each key has its own.
    pub(super) fn fail(&mut self, slot: u32, answer: &Answer<'_>) {
        let mut text = String::new();
        let told = self.info.no_room.map(|no_room| no_room.answer_failed(answer, &mut text));
        let answer = told.as_ref().unwrap_or(answer);
        if self.info.is_joined() {
            let start = self.values.len();
            let asked = self.info.asked_for(slot);
            self.info.protocol.answer(&asked, answer, &mut self.values);
            self.fill(slot, start);
        } else {
            if self.error.is_empty() {
                self.info.answer(answer, &mut self.error);
            }
            if self.emits_early() {
                // The error comes at the end, so it holds no other key up.
                self.miss(slot);
            }
        }
    }

    pub(super) fn keep_large(&mut self, slot: u32, value: Outbox) -> usize {
        let len = value.len();
        self.slots[slot as usize] = Slot::Large { index: self.large.len() as u32 };
        self.furthest = self.furthest.max(slot + 1);
        self.large.push(value);
        self.large_bytes += len;
        len
    }

    /// Whether `len` more bytes fit among the small values.
    pub(super) fn has_room(&self, len: usize) -> bool {
        u32::try_from(self.values.len() + len).is_ok()
    }

    /// Makes it a read of several keys.
    pub(super) fn open_slots(&mut self, keys: usize, spares: &mut Spares) {
        self.slots.resize(keys, Slot::Empty);
        self.values = spares.take();
    }

    /// Whether its results may leave before the last of them has come.
    pub(super) fn emits_early(&self) -> bool {
        self.state == State::Waiting && !self.slots.is_empty() && !self.info.gathers
    }

    /// Notes that a key has no value.
    pub(super) fn miss(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Missed;
    }

    /// Moves the results that are next to the client's output, so that little memory holds them.
    pub(super) fn emit_ready(&mut self, out: &mut Outbox) {
        while let Some(slot) = self.slots.get(self.emitted as usize) {
            match *slot {
                Slot::Small { start, end } => {
                    out.copy(&self.values[start as usize..end as usize]);
                    self.left += (end - start) as usize;
                }
                Slot::Large { index } => {
                    let value = &mut self.large[index as usize];
                    self.large_bytes -= value.len();
                    out.append(value);
                }
                Slot::Missed => {}
                Slot::Empty | Slot::Failed { .. } | Slot::With { .. } => break,
            }
            self.emitted += 1;
        }
        if self.left == self.values.len() {
            // Its room is in nobody's account.
            if self.values.capacity() > VALUES_KEEP_MAX {
                self.values = Vec::new();
            }
            self.values.clear();
            self.left = 0;
        } else if self.left > self.slots.len() * size_of::<Slot>() + self.values.len() / 2 {
            self.compact();
        }
    }

    /// Gives up the values that have left. It is done so seldom that to look at all slots is
    /// nothing beside the bytes that have left since.
    #[cold]
    fn compact(&mut self) {
        let mut values = Vec::with_capacity(self.values.len() - self.left);
        for slot in &mut self.slots[self.emitted as usize..] {
            if let Slot::Small { start, end } = slot {
                let kept = values.len() as u32;
                values.extend_from_slice(&self.values[*start as usize..*end as usize]);
                (*start, *end) = (kept, values.len() as u32);
            }
        }
        self.values = values;
        self.left = 0;
    }

    /// Whether any of its answer is still here. Most often its client has it already.
    pub(super) fn holds_answer(&self) -> bool {
        let has_words = !self.reply.is_empty() || !self.error.is_empty();
        has_words || !self.slots.is_empty() || self.info.gathers
    }

    /// Writes the whole answer of a settled request.
    pub(super) fn emit(&mut self, partial: Partial, out: &mut Outbox) {
        assert_eq!(self.state, State::Done, "only a settled request has an answer");
        if self.slots.is_empty() {
            out.append(&mut self.reply);
            out.copy(&self.error);
            return;
        }
        for slot in &self.slots[self.emitted as usize..] {
            match *slot {
                Slot::Empty | Slot::Missed | Slot::With { .. } => {}
                Slot::Small { start, end } | Slot::Failed { start, end } => {
                    out.copy(&self.values[start as usize..end as usize]);
                }
                Slot::Large { index } => out.append(&mut self.large[index as usize]),
            }
        }
        if self.error.is_empty() || partial == Partial::Miss || bug!(SilentMiss) {
            self.info.answer(&Answer::End, out.copied());
        } else {
            out.copy(&self.error);
        }
    }
}

/// The table of pending requests.
#[derive(Default)]
pub(super) struct PendingRequests {
    requests: Vec<PendingRequest>,
    free: Vec<RequestId>,
}

impl PendingRequests {
    /// Allocates a request in the state `Waiting`, in no queue yet.
    pub(super) fn alloc(
        &mut self,
        (client, protocol): (ConnId, &'static dyn Protocol),
        pool: u32,
        (request, head): (&Request, &[u8]),
        now: Time,
        spares: &mut Spares,
    ) -> RequestId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.requests.push(PendingRequest::blank(client, protocol));
            (self.requests.len() - 1) as RequestId
        });
        let pending = &mut self.requests[id as usize];
        assert_eq!(pending.state, State::Free, "a free row is in nobody's queue");
        pending.state = State::Waiting;
        pending.client = client;
        pending.pool = pool;
        pending.since = now;
        pending.next = NONE;
        pending.info.set(protocol, (request, head), spares);
        pending.writes = false;
        pending.cancelled = false;
        pending.asked_again = 0;
        pending.parts_left = 0;
        pending.emitted = 0;
        pending.furthest = 0;
        id
    }

    pub(super) fn free(&mut self, id: RequestId, spares: &mut Spares) {
        self[id].clear(spares);
        self.give_back(id);
    }

    /// Takes an entry back that is clear.
    pub(super) fn give_back(&mut self, id: RequestId) {
        self.free.push(id);
    }

    /// Gives the table's memory back after a rush, when no request is left.
    pub(super) fn rest(&mut self) {
        if self.len() == 0 && self.requests.len() > limits::REQUESTS_REST_MAX {
            *self = PendingRequests::default();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingRequest> {
        self.requests.iter().filter(|pending| pending.state != State::Free)
    }
}

impl PendingRequest {
    /// Notes that its last part is settled.
    pub(super) fn set_done(&mut self) {
        assert_eq!(self.state, State::Waiting, "a request is settled once");
        assert_eq!(self.parts_left, 0, "a settled request has no part outstanding");
        self.state = State::Done;
    }

    /// Clears it for another request.
    pub(super) fn clear(&mut self, spares: &mut Spares) {
        assert_eq!(self.state, State::Done, "a request is freed once, after it was settled");
        self.state = State::Free;
        self.error.clear();
        self.info.clear(spares);
        self.reply.clear();
        (self.counted, self.gathered) = (0, 0);
        if !self.slots.is_empty() {
            self.slots.clear();
            self.large.clear();
            (self.left, self.large_bytes) = (0, 0);
            spares.give(std::mem::take(&mut self.values));
        }
        if self.reply.copied().capacity() > limits::REQUEST_KEEP_MAX
            || self.slots.capacity() * size_of::<Slot>() > SLOTS_KEEP_MAX
        {
            *self = PendingRequest::blank(self.client, self.info.protocol);
        }
    }

    fn blank(client: ConnId, protocol: &'static dyn Protocol) -> PendingRequest {
        let info = RequestInfo {
            protocol,
            command: Asked::NO_REQUEST,
            family: 0,
            quiet: Quiet::Loud,
            ask: Ask::default(),
            keep: false,
            gathers: false,
            element_per_key: false,
            elements: None,
            repeats: None,
            no_room: None,
            awaits_retry: false,
            recovered: false,
            watches_ended: 0,
            at: 0,
            next: None,
            head: Vec::new(),
            ends: Vec::new(),
        };
        PendingRequest {
            state: State::Free,
            client,
            next: NONE,
            pool: 0,
            since: UNTIMED,
            moments: Moments::default(),
            reply_of: ReplyOf::NONE,
            key: KeyNote::default(),
            access: AccessNote::default(),
            info,
            writes: false,
            cancelled: false,
            asked_again: 0,
            parts_left: 0,
            error: Vec::new(),
            reply: Outbox::default(),
            slots: Vec::new(),
            emitted: 0,
            furthest: 0,
            values: Vec::new(),
            left: 0,
            large: Vec::new(),
            large_bytes: 0,
            counted: 0,
            gathered: 0,
            expected: 0,
            inflight: 0,
        }
    }
}

/// Bytes for values that a request keeps when all of them have left.
const VALUES_KEEP_MAX: usize = 4 * limits::BLOCK;

/// Bytes of slots that a freed entry keeps.
const SLOTS_KEEP_MAX: usize = limits::JOINED_MAX * size_of::<Slot>();

#[cfg(test)]
mod tests;
