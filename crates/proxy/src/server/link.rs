//! One connection to a server, shared by many clients: the messages to send, the messages that wait
//! for a reply, and the pairing of the two streams.
//!
//! ```text
//!             batch (open get, leaves last)
//!               │ end of turn
//!               ▼
//!   messages: [ outstanding ......... | pending ...... ]     oldest first
//!              ^ done      ^ sent                        ^ queued      offsets in the sent stream
//!              │
//!              └── the next reply belongs to the first message, and to no other
//! ```
//!
//! A message is a get of one or many keys, or another request. `end` is its end in the stream of
//! sent bytes. Comparing two numbers therefore shows whether a message was handed to the kernel,
//! and so may have been executed, or not.

use std::collections::VecDeque;

use metrics::{Counters, ServerCounter};
use proto::{Progress, Upstream};

use super::around::Around;
use super::batch::Batch;
use super::costs::Costs;
use super::effort::Answered;
use super::inflight::InflightLimit;
use super::marks::SentMarks;
use super::message::{Body, Internal, Late, Message, MessageForm, Payload};
use super::outstanding::WorkTurn;
use super::private::Own;
use super::queue::FairQueue;
use crate::Time;
use crate::base::buffer::Outbox;
use crate::base::id::ConnId;
use crate::base::limits::{self, Limits};
use crate::base::memory::Memory;
use crate::base::part::{Effort, LinkClass};
use crate::base::phases::UNSENT;
use crate::base::size::Cost;
use crate::base::{Base, ServerAt};

/// One link.
pub(super) struct Link {
    pub(super) at: ServerAt,
    /// Its server's.
    pub(super) counters: Counters<ServerCounter>,
    /// The index of its connection key.
    pub(super) conn_key: u16,
    pub(super) class: LinkClass,
    /// The only client that it serves, or `ConnId::NONE`.
    pub(super) owner: ConnId,
    /// What is known of it if it has one.
    pub(super) own: Own,
    pub(super) state: State,
    pub(super) out: Outbox,
    pub(super) outstanding: VecDeque<Message>,
    /// The open batch: gets of this turn that leave as one message.
    pub(super) batch: Option<Box<Batch>>,
    /// Bytes of the messages that went ahead of the open batch, and of the answers to them.
    pub(super) overtaken: u64,
    /// A read that is not merged, while its keys are being added.
    pub(super) unmerged_batch: Option<Box<Batch>>,
    /// The internal commands among its messages that are not to be sent twice.
    pub(super) internal: Vec<Internal>,
    /// What waits until there is room within the in-flight limit.
    pub(super) queue: FairQueue,
    pub(super) limit: InflightLimit,
    /// The costs of its messages and of the open batch.
    pub(super) inflight: Costs,
    /// It is in the list of links for which something waits.
    pub(super) has_backlog: bool,
    /// Bytes that its gets hold until they are answered.
    pub(super) fetch_bytes: usize,
    /// Counts replies, to take some of them as samples.
    pub(super) replies: u8,
    /// The end of the last message that may not be quick, or a later offset.
    pub(super) work_end: u64,
    /// Offset up to which replies are complete.
    pub(super) done: u64,
    /// Offset up to which bytes were handed to the kernel.
    pub(super) sent: u64,
    /// When that was, for what is not answered.
    pub(super) marks: SentMarks,
    /// Offset up to which bytes were queued.
    pub(super) queued: u64,
    /// Bytes of an unfinished reply head.
    pub(super) partial: Vec<u8>,
    /// The progress of the reply whose items are being read.
    pub(super) progress: Progress,
    /// When its ACK was flushed last, until something came.
    pub(super) flushed: Time,
    /// When the first bytes came of the reply that is being read, if it comes in several reads.
    pub(super) reply_began: Time,
    /// In how many reads it has come so far, and how many bytes these had.
    pub(super) reply_reads: u32,
    pub(super) reply_bytes: u64,
    /// A value or reply that is still arriving.
    pub(super) body: Option<Body>,
    /// When it began to connect, or to repeat the handshake: since then its server answers that.
    pub(super) begun: Time,
    /// When it began to connect, or when the server last made progress on the next reply it owes.
    pub(super) since: Time,
    /// When the server began to owe the next reply.
    pub(super) owed: Time,
    /// When its silence was last found to be no failure, since its server was busy.
    pub(super) excused: Time,
    /// When the next of the requests that were sent meanwhile has waited for as long as it may.
    pub(super) look_at: Option<Time>,
    /// Works that the read has answered that is being handled.
    pub(super) answered: Answered,
    pub(super) work_turn: WorkTurn,
    /// Until when requests that may take long let others go first.
    pub(super) rests_until: Option<Time>,
    /// How long the handshake took, at least.
    pub(super) trip: u64,
    /// Parts of a client that may be in flight before it has shown more: a few on a near link, and
    /// more on a distant one, where each round takes its time.
    pub(super) depth: u32,
    /// The earliest timer set for this link.
    pub(super) armed: Option<Time>,
    /// It is closed as soon as nothing waits on it.
    pub(super) retiring: bool,
    /// It is in the list of links to be written.
    pub(super) dirty: bool,
    pub(super) around: Around,
    /// It is counted among the links on which its server owes a reply.
    pub(super) owes: bool,
    /// It repeats the handshake before anything else is sent.
    pub(super) must_prove: bool,
    /// It has received a reply, so its loss is not a failure to connect.
    pub(super) proven: bool,
    /// Bytes held, as last reported to the memory account.
    pub(super) counted: usize,
}

/// The states of a link. A link that has died is not in the table any more.
pub(super) enum State {
    /// Requests may queue; nothing can be sent.
    Connecting,
    /// Established; the handshake, which goes ahead of everything, waits for its answer.
    Handshake(Handshake),
    /// The server has answered the handshake, at this time.
    Up(Time),
}

/// A handshake that is under way.
pub(super) struct Handshake {
    /// Its bytes that are not sent yet.
    pub(super) unsent: Vec<u8>,
    /// It contains a login; and a busy server has refused it before.
    pub(super) login: bool,
    pub(super) was_busy: bool,
}

impl Link {
    pub(super) fn new(
        (at, counters): (ServerAt, Counters<ServerCounter>),
        (conn_key, class): (u16, LinkClass),
        limits: &Limits,
        now: Time,
    ) -> Link {
        Link {
            at,
            counters,
            conn_key,
            class,
            owner: ConnId::NONE,
            own: Own::default(),
            state: State::Connecting,
            out: Outbox::default(),
            outstanding: VecDeque::new(),
            batch: None,
            overtaken: 0,
            unmerged_batch: None,
            internal: Vec::new(),
            queue: FairQueue::default(),
            limit: InflightLimit::new(limits.inflight, now),
            inflight: Costs::default(),
            has_backlog: false,
            fetch_bytes: 0,
            replies: 0,
            work_end: 0,
            done: 0,
            sent: 0,
            marks: SentMarks::default(),
            queued: 0,
            partial: Vec::new(),
            progress: Progress::default(),
            body: None,
            flushed: UNSENT,
            reply_began: UNSENT,
            reply_reads: 0,
            reply_bytes: 0,
            begun: now,
            since: now,
            owed: now,
            excused: Time(0),
            look_at: None,
            answered: Answered::default(),
            work_turn: WorkTurn::default(),
            rests_until: None,
            trip: u64::MAX,
            depth: limits.depth,
            armed: None,
            retiring: false,
            dirty: false,
            around: Around::default(),
            owes: false,
            must_prove: false,
            proven: false,
            counted: 0,
        }
    }

    /// Moves to the next state. A link that is up repeats the handshake when its server has fallen
    /// silent.
    pub(super) fn set_state(&mut self, next: State) {
        let follows = match self.state {
            State::Connecting | State::Up(_) => matches!(next, State::Handshake(_)),
            // A busy server is asked again.
            State::Handshake(_) => matches!(next, State::Up(_) | State::Handshake(_)),
        };
        assert!(follows, "a link connects, does its handshake and is up");
        self.state = next;
        self.look_at = None;
    }

    /// Whether its server has answered the handshake.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Returns when its server answered the handshake, if it has.
    pub(super) fn up_since(&self) -> Option<Time> {
        match self.state {
            State::Up(since) => Some(since),
            State::Connecting | State::Handshake(_) => None,
        }
    }

    /// Whether the number of messages, and the bytes not handed over yet, are within bounds.
    pub(super) fn has_room(&self, limits: &Limits) -> bool {
        let fits =
            self.outstanding.len() < limits.link_queue && self.out.len() < limits.link_outbox;
        fits || bug!(NoQueueBound)
    }

    /// Queues the bytes just written to the end of `out` as a message. `before` is the length of
    /// `out` before them.
    #[inline(always)]
    pub(super) fn launch(
        &mut self,
        form: MessageForm,
        (client, cost, effort): (ConnId, Cost, Effort),
        before: usize,
        since: Time,
    ) {
        let len = self.out.len() - before;
        assert!(len > 0, "a message has bytes");
        self.queued += len as u64;
        self.overtaken += cost.bytes().saturating_sub(limits::COST_OF_MESSAGE).max(len as u64);
        let inflight = u32::try_from(self.inflight.bytes()).unwrap_or(u32::MAX);
        if effort != Effort::Quick {
            self.work_end = self.queued;
        }
        let MessageForm { payload, ask, is_update } = form;
        self.outstanding.push_back(Message {
            payload,
            ask,
            is_update,
            end: self.queued,
            since,
            held: false,
            client,
            cost,
            effort,
            late: Late::No,
            inflight,
            waited: 0,
        });
    }

    /// Queues a whole get, whose keys are counted already.
    pub(super) fn launch_batch(&mut self, batch: Box<Batch>, upstream: &dyn Upstream) {
        self.launch_part(batch, Effort::Quick, upstream);
    }

    /// As `launch_batch`, for the part of a split request that may take long.
    pub(super) fn launch_part(
        &mut self,
        mut batch: Box<Batch>,
        effort: Effort,
        upstream: &dyn Upstream,
    ) {
        self.counters.add(ServerCounter::Messages, 1);
        let first = batch.entries[0].part.request;
        if batch.entries.iter().any(|entry| entry.part.request != first) {
            self.counters.add(ServerCounter::Merged, batch.entries.len() as u64);
        }
        let before = self.out.len();
        upstream.seal_fetch(batch.ask, batch.entries.len(), &batch.text, self.out.copied());
        if !batch.rests.is_empty() {
            self.out.insert(batch.text.len(), batch.rests.drain(..));
        }
        self.fetch_bytes += batch.bytes();
        self.overtaken += batch.bytes_asked();
        let since = batch.latest;
        // The costs are its keys'. Only one of a single client's takes long.
        let of = (batch.entries[0].client, Cost::default(), effort);
        self.launch(MessageForm::batch(batch), of, before, since);
    }

    /// Whether the open batch is to leave at the end of a turn. While much is in flight, it waits
    /// and grows: a server takes one connection's requests one after the other, and keys that leave
    /// together cost once. But other messages go ahead, and a few of those are enough.
    pub(super) fn batch_may_leave(&self) -> bool {
        let cost = self.batch.as_ref().map_or(0, |batch| batch.costs.bytes());
        let (others, limit) = (self.inflight.bytes() - cost, self.limit.bytes());
        others <= limit / 2 || cost >= limit / 4 || self.overtaken >= limits::OVERTAKEN_MAX
    }

    /// Counts keys or a message out of what is in flight.
    #[inline]
    pub(super) fn forget_cost(&mut self, cost: Cost) {
        self.inflight.remove(cost);
    }

    /// As `forget_cost`, for all keys of a batch.
    pub(super) fn forget_batch(&mut self, batch: &Batch) {
        self.inflight.remove_all(batch.costs);
    }

    /// Removes the first message, whose reply is complete.
    // Measured: if inlined, most of the message is never copied.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Message {
        let message = self.outstanding.pop_front().expect("a reply belongs to a message");
        self.forget_payload(&message);
        message
    }

    #[cold]
    fn forget_internal(&mut self, command: Internal) {
        self.internal.retain(|one| *one != command);
    }

    #[inline(always)]
    pub(super) fn forget_payload(&mut self, message: &Message) {
        match &message.payload {
            Payload::Fetch(batch) => {
                self.fetch_bytes -= batch.bytes();
                self.forget_batch(batch);
            }
            Payload::Internal(command) => self.forget_internal(**command),
            Payload::Single(_) => self.forget_cost(message.cost),
        }
    }

    /// Whether the server owes a reply, or a message of which a part is sent has still to leave.
    pub(super) fn is_waiting(&self) -> bool {
        self.sent > self.done
    }

    /// Notes what the requests that the next reply answers are to know of it.
    #[inline]
    pub(super) fn note_next_reply(&mut self, base: &mut Base) {
        let Some(first) = self.outstanding.front() else { return };
        base.reply.sent = self.marks.time_of(first.end.min(self.sent));
        if base.is_watched {
            base.reply.began = self.reply_began;
            let drips = self.reply_began != UNSENT && self.drips();
            base.reply.reads = if drips { self.reply_reads } else { 0 };
            base.reply.server = self.at.server;
            base.reply.held = first.held;
            base.reply.is_work = first.effort != Effort::Quick;
        }
    }

    /// Notes that the kernel took `n` bytes.
    pub(super) fn advance(&mut self, n: usize, now: Time) {
        if n == 0 {
            return;
        }
        let first_was_whole = self.outstanding.front().is_some_and(|first| first.end <= self.sent);
        if !self.is_waiting() || !first_was_whole && !bug!(BlameEarly) {
            self.since = now;
            self.owed = now;
        }
        self.sent += n as u64;
        self.marks.note(self.sent, now);
        self.out.advance(n);
        assert!(self.sent <= self.queued, "only queued bytes are sent");
        self.forget_refused();
    }

    /// Notes that the first message has its whole reply.
    pub(super) fn note_reply_complete(&mut self, end: u64, now: Time) {
        assert!(self.done < end && end <= self.sent, "a reply follows its request");
        self.done = end;
        self.reply_began = UNSENT;
        self.since = now;
        self.owed = now;
        self.proven = true;
    }

    /// Notes that bytes have come: a server that sends is not silent.
    pub(super) fn heard(&mut self, now: Time) {
        // The pieces of a quick answer that came before are no work's time.
        let is_mid_reply = self.body.is_some() || !self.partial.is_empty();
        let is_quick = || self.outstanding.front().is_none_or(|one| one.effort == Effort::Quick);
        let owed = if is_mid_reply && is_quick() { self.since.max(self.owed) } else { self.owed };
        self.answered.begin(owed);
        if self.is_waiting() {
            self.since = now;
        }
    }

    /// Returns the index of the first message of which nothing was sent.
    pub(super) fn first_pending(&self) -> usize {
        // The message in which `sent` falls has begun to leave; it starts where the one before
        // ends.
        let whole = self.outstanding.partition_point(|message| message.end <= self.sent);
        let start = if whole == 0 { self.done } else { self.outstanding[whole - 1].end };
        if start < self.sent { whole + 1 } else { whole }
    }

    /// Returns the number of unsent bytes of a message that has begun to leave.
    pub(super) fn begun(&self) -> usize {
        match self.first_pending() {
            0 => 0,
            at => self.outstanding[at - 1].end.saturating_sub(self.sent) as usize,
        }
    }

    /// Takes the unsent messages that fit out of the queue, in their order.
    pub(super) fn withdraw_where(&mut self, fits: impl Fn(&Message) -> bool) -> Vec<Message> {
        let first = self.first_pending();
        let mut start = if first == 0 { self.done } else { self.outstanding[first - 1].end };
        let (mut cuts, mut taken, mut gone) = (Vec::new(), Vec::new(), 0);
        for mut message in self.outstanding.split_off(first) {
            let len = message.end - start;
            if fits(&message) {
                cuts.push(((start - self.sent) as usize, (message.end - self.sent) as usize));
                gone += len;
                self.forget_payload(&message);
                self.keep_watch_of(&message);
                taken.push(message);
            } else {
                message.end -= gone;
                self.outstanding.push_back(message);
            }
            start += len;
        }
        self.queued -= gone;
        if !cuts.is_empty() {
            self.out.cut(&cuts);
        }
        taken
    }

    /// Whether nothing waits on it to be sent or to be answered.
    pub(super) fn is_idle(&self) -> bool {
        let is_still = self.outstanding.is_empty() && self.batch.is_none() && self.out.is_empty();
        is_still && self.queue.is_empty()
    }

    /// Whether a reply has begun and is not complete.
    pub(super) fn is_mid_reply(&self) -> bool {
        let begun = match self.outstanding.front() {
            Some(Message { payload: Payload::Fetch(batch), .. }) => batch.cursor > 0,
            _ => false,
        };
        let has_begun = self.progress != Progress::default() || self.body.is_some();
        begun || has_begun || !self.partial.is_empty()
    }

    /// Reports the bytes held now to the memory account.
    pub(super) fn account(&mut self, memory: &mut Memory) {
        let bytes = self.measure();
        memory.change(&mut self.counted, bytes);
    }

    /// Returns the bytes held now.
    pub(super) fn measure(&self) -> usize {
        // A value that has begun to arrive is counted whole. Otherwise many could begin at once.
        let body = self.body.as_ref().map_or(0, |body| match body.arrival.part {
            Some(_) => body.arrival.data.held() + body.left as usize,
            None => 0,
        });
        let gathering = self.batch.as_ref().map_or(0, |batch| batch.bytes());
        let queued = self.fetch_bytes + gathering + self.queue.bytes();
        self.out.held() + self.partial.len() + body + queued
    }
}
