//! A server's bytes are matched with messages.
//!
//! A server answers in the order of its requests, so a reply belongs to the first outstanding
//! message. A reply that cannot answer that message, or that no message asked for, poisons the
//! link: the link is closed, and nothing after that reply is believed.
//!
//! ```text
//!   value    head [ body ........ trailer ]
//!   reply    piece, piece [ body .. trailer ], piece, … last piece
//! ```

use std::ops::ControlFlow;

use metrics::{Latency, ServerCounter};
use proto::{Ask, Item, ItemKind, Parsed, Progress, Shown, Upstream};

use super::Servers;
use super::link::{Link, State};
use super::message::{Body, Internal, Late, Message, Payload, Unit};
use super::state::Proof;
use crate::base::buffer::{End, Source, has_trailer};
use crate::base::id::ConnId;
use crate::base::part::{Arrival, Effort, LinkClass, NONE, Part};
use crate::base::phases::UNSENT;
use crate::base::plan::QuickAck;
use crate::base::{Base, limits};
use crate::{Action, Time};

/// The meaning of bytes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The answer to the handshake, which has been taken.
    Handshake,
    /// Replies to what was asked.
    Replies,
    /// Messages to subscribers, and answers about subscriptions.
    Pushes,
}

/// The meaning of the next bytes of a link.
pub(crate) enum Reply<'a> {
    /// The head of the next item is incomplete.
    Incomplete,
    /// Bytes that answer nothing.
    Nothing(usize),
    /// A line that ends the reply to the first message: an error, or the end of a read.
    Line(ItemKind, &'a [u8]),
    /// An item that has come whole, with its body, and is matched now.
    Whole(Source<'a>),
    /// The head of an item whose body is still to come, or which comes in pieces. It is matched
    /// now.
    Begins(Source<'a>),
    /// The head of the next piece of a reply, and the length of the piece.
    Continues { head: Source<'a>, len: usize },
    /// More of a body, of which the client sees `shown`. Its end may not be what its head says.
    More { used: usize, shown: Source<'a>, has_wrong_end: bool },
}

/// An item of a reply, and what it answers.
pub(crate) struct Matched {
    pub(crate) server: u32,
    pub(crate) part: Part,
    pub(crate) unit: Unit,
    pub(crate) item: Item,
    /// The form in which the server was asked.
    pub(crate) asked: Ask,
    /// How many keys it answers together.
    pub(crate) keys: Option<u32>,
}

impl Servers {
    /// Takes bytes of a link that is not up: its handshake. Returns what the bytes are.
    pub(crate) fn take_handshake(
        &mut self,
        base: &mut Base,
        id: ConnId,
        source: Source<'_>,
    ) -> Result<Received, &'static str> {
        let Some(link) = self.links.find_mut(id) else { return Ok(Received::Handshake) };
        link.heard(base.now);
        let (at, in_handshake) = (link.at, matches!(link.state, State::Handshake(_)));
        let is_pushed = link.class == LinkClass::Subscribed;
        self.note_heard(at, base.now);
        if !in_handshake {
            self.note_bytes(base, at);
            return Ok(if is_pushed { Received::Pushes } else { Received::Replies });
        }
        self.handshake(base, id, source)?;
        Ok(Received::Handshake)
    }

    /// Takes the bytes of an unfinished head, if there are any.
    pub(crate) fn take_partial(&mut self, id: ConnId) -> Vec<u8> {
        self.links.find_mut(id).map_or(Vec::new(), |link| std::mem::take(&mut link.partial))
    }

    /// Keeps the bytes of an unfinished head.
    pub(crate) fn keep_partial(&mut self, id: ConnId, partial: Vec<u8>) {
        if let Some(link) = self.links.find_mut(id) {
            link.partial = partial;
        }
    }

    /// Returns what the next bytes are: they belong to the first outstanding message or to none. An
    /// item that answers a part is put into `matched`.
    #[inline(always)]
    pub(crate) fn next_reply<'a>(
        &mut self,
        base: &mut Base,
        id: ConnId,
        rest: Source<'a>,
        matched: &mut Option<Matched>,
    ) -> Result<Reply<'a>, &'static str> {
        // A probe's answer may close the link. Nothing after it matters then.
        let Some(link) = self.links.find_mut(id) else {
            return Ok(Reply::Nothing(rest.bytes.len()));
        };
        if base.reply.sent == UNSENT {
            link.note_next_reply(base);
        }
        if let Some(body) = link.body.as_mut().filter(|body| body.left > 0) {
            return Ok(body.take(rest));
        }
        let Some(message) = link.outstanding.front_mut() else {
            return Err(UNASKED);
        };
        let upstream = base.pool(link.at).upstream;
        if message.end > link.sent {
            let has_begun = link.sent > link.done;
            if !has_begun || !message.may_be_answered_early(upstream, rest.bytes) {
                return Err(EARLY_REPLY);
            }
        }
        let asked = message.ask;
        let item = match upstream.parse_reply(asked, &mut link.progress, rest.bytes) {
            Parsed::Incomplete => return Ok(Reply::Incomplete),
            Parsed::Malformed(_) if bug!(BelievePoison) => {
                return Ok(Reply::Nothing(rest.bytes.len()));
            }
            Parsed::Malformed(why) => return Err(why),
            Parsed::Complete(item) => item,
        };
        if item.kind.ends_reply() {
            link.progress = Progress::default();
        }
        let head = rest.part(0, item.head as usize);
        let len = usize::try_from(item.len()).map_err(|_| "a value larger than any memory")?;
        if let Some(body) = &mut link.body {
            body.next_piece(item)?;
            return Ok(Reply::Continues { head, len });
        }
        let is_fetch = matches!(message.payload, Payload::Fetch(_));
        if item.kind == ItemKind::Error {
            let is_step = message.is_block() && message.take_step(upstream, item, head.bytes)?;
            if is_step {
                // Each reply within a block has its time.
                link.owed = link.since;
                if !message.is_trial() {
                    link.own.note_block_error(head.bytes);
                }
                return Ok(Reply::Nothing(head.bytes.len()));
            }
            return Ok(Reply::Line(item.kind, head.bytes));
        }
        if item.kind == ItemKind::End && is_fetch {
            return Ok(Reply::Line(item.kind, head.bytes));
        }
        let is_whole = len <= rest.bytes.len() && item.kind != ItemKind::Part;
        if is_whole && !has_trailer(&rest.bytes[..len], item.trailer) {
            return Err(WRONG_LENGTH);
        }
        let (part, unit, keys) = match message.late {
            Late::No => match_item(message, &item, rest.bytes)?,
            _ => match link.match_late(upstream, item, (head.bytes, rest.bytes), is_whole)? {
                ControlFlow::Continue(found) => found,
                ControlFlow::Break(used) => return Ok(Reply::Nothing(used)),
            },
        };
        let server = link.at.server;
        *matched = Some(Matched { server, part, unit, item, asked, keys });
        Ok(match is_whole {
            true => Reply::Whole(rest.part(0, len)),
            false => Reply::Begins(head),
        })
    }

    /// Takes an item whose body is still to come.
    pub(crate) fn begin_body(&mut self, id: ConnId, matched: &Matched, arrival: Arrival) {
        let Matched { item, unit, .. } = *matched;
        let left = item.body + item.trailer.len() as u64;
        if let Some(link) = self.links.find_mut(id) {
            link.body = Some(Body { item, unit, left, end: End::default(), arrival });
        }
    }

    /// Returns what the request has of the value that is arriving on a link.
    pub(crate) fn arrival(&mut self, id: ConnId) -> Option<&mut Arrival> {
        let body = self.links.find_mut(id)?.body.as_mut();
        body.map(|body| &mut body.arrival)
    }

    /// Whether a piece has come whole, and its trailer, which is shown with it.
    pub(crate) fn piece_end(&mut self, id: ConnId) -> Option<&'static [u8]> {
        let body = self.links.find_mut(id)?.body.as_mut()?;
        match body.arrival.shown {
            _ if body.left > 0 => None,
            Shown::Body { trailer } => Some(trailer),
            Shown::Head | Shown::Nothing => Some(b""),
        }
    }

    /// Ends a piece that has come whole; returns the whole value with the last one.
    pub(crate) fn end_piece(&mut self, base: &mut Base, id: ConnId) -> Option<(Unit, Arrival)> {
        let link = self.links.find_mut(id)?;
        let is_last = |body: &mut Body| body.item.kind != ItemKind::Part || bug!(PieceForWhole);
        let body = link.body.take_if(is_last);
        if body.is_none() {
            // The account must be right even if the reply never ends.
            link.account(&mut base.memory);
        }
        body.map(|body| (body.unit, body.arrival))
    }

    /// Takes the first outstanding message, whose reply is complete.
    pub(crate) fn end_message(
        &mut self,
        base: &mut Base,
        id: ConnId,
        kind: ItemKind,
    ) -> Option<Payload> {
        let link = self.links.find_mut(id)?;
        let message = link.pop();
        let began = link.reply_began;
        match message.end <= link.sent {
            true => link.note_reply_complete(message.end, base.now),
            false => link.note_refused_early(message.end, base.now),
        }
        if message.effort.may_be_long() {
            link.answered.add(message.effort, kind, message.ask.command, base.reply.sent);
        }
        let (at, batch_waits) = (link.at, link.batch.is_some());
        link.replies = link.replies.wrapping_add(1);
        // One in eight tells enough, and the first tells of a link of which nothing is known.
        let is_sample = link.replies.is_multiple_of(8) || link.replies == 1;
        let owes_nothing = !link.is_waiting() || link.waits();
        if is_sample && !message.held {
            // A reference to the message would have it copied each time.
            let Message { since, waited, inflight, end, effort, .. } = message;
            let joined = since.after(u64::from(waited));
            self.note_sample(base, id, (joined, effort), (inflight, end));
        }
        self.count_gone(&message);
        let state = self.state(at);
        state.counters.add(ServerCounter::Replies, 1);
        if message.effort != Effort::Waits {
            let latency = base.now.since(message.since);
            state.latency.record(Latency::of_family(0, message.is_update), latency);
        }
        let (failed_before, said_busy) = (state.failures > 0, state.said_busy);
        let is_unproven = state.proof != Proof::Proven;
        // A trial is refused where all is well.
        if kind == ItemKind::Error && !message.is_trial() {
            state.counters.add(ServerCounter::Errors, 1);
        }
        if began != UNSENT {
            self.note_drips(base, id, began);
        }
        if failed_before {
            self.request_answered(base, at);
        }
        // A busy server takes an empty block.
        if said_busy && kind != ItemKind::Error && !message.is_trial() {
            self.note_busy_line(base, at, None);
        }
        if is_unproven && kind == ItemKind::Status {
            self.prove(base, at, message.ask);
        }
        if owes_nothing {
            self.note_owing(base, id);
        }
        if batch_waits && !bug!(LeaveGathered) {
            self.mark_dirty(id);
        }
        if message.is_late() {
            // Its request has been answered.
            return Some(Payload::internal(Internal::Plain));
        }
        Some(message.payload)
    }

    /// Notes how long the answer took to a message that joined its link then.
    #[inline(never)]
    fn note_sample(
        &mut self,
        base: &mut Base,
        id: ConnId,
        (joined, effort): (Time, Effort),
        (inflight, end): (u32, u64),
    ) {
        let Some(link) = self.links.find_mut(id) else { return };
        let (at, up_since) = (link.at, link.up_since());
        // The first may have taken long for other reasons.
        if link.replies != 1 {
            link.note_delay((joined, inflight, end), (base.work_us, base.now));
        }
        // The time of work is no part of the path.
        if let Some(up_since) = up_since
            && effort == Effort::Quick
            && base.server(at).trips.is_due(base.now)
        {
            self.note_trip(base, at, up_since.max(joined));
        }
    }

    /// Updates the memory account after a read and applies the QUICKACK rule on the server's side.
    pub(crate) fn after_receive(&mut self, base: &mut Base, id: ConnId, received: usize) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.account(&mut base.memory);
        let has_works = !link.answered.is_empty();
        // The oldest request may be another now, and one that takes long.
        let is_behind = link.work_end > link.done;
        let counters = link.counters;
        counters.add(ServerCounter::ReplyBytes, received as u64);
        let is_mid_reply = link.is_mid_reply();
        if is_mid_reply {
            link.note_part(received, base.now);
        }
        let flush = match base.pool(link.at).plan.server_quickack {
            QuickAck::Partial => is_mid_reply,
            QuickAck::Always => true,
            QuickAck::Off => false,
        };
        let flushed = std::mem::replace(&mut link.flushed, UNSENT);
        if flushed != UNSENT && base.now.since(flushed) <= limits::STALL_CURED_US {
            counters.add(ServerCounter::StallsCured, 1);
        }
        if flush {
            link.flushed = base.now;
            counters.add(ServerCounter::AcksFlushed, 1);
            base.actions.push_back(Action::FlushAck(id));
        }
        let is_retiring = link.retiring;
        if link.has_answered() {
            let at = link.at;
            self.note_answer(base, at);
        }
        if has_works {
            self.note_works(base, id);
        }
        if is_behind {
            self.arm(base, id);
        }
        if is_retiring {
            self.end_link_retirement(base, id);
        }
    }
}

impl Body {
    /// Takes more of a body.
    fn take<'a>(&mut self, rest: Source<'a>) -> Reply<'a> {
        let used = rest.len_within(self.left);
        self.end.feed(&rest.bytes[..used]);
        let before_trailer = self.left.saturating_sub(self.item.trailer.len() as u64);
        let shown = match self.arrival.shown {
            Shown::Body { .. } => rest.len_within(before_trailer),
            Shown::Head | Shown::Nothing => 0,
        };
        self.left -= used as u64;
        let has_wrong_end = self.left == 0 && !self.end.is(self.item.trailer);
        Reply::More { used, shown: rest.part(0, shown), has_wrong_end }
    }

    /// Begins the next piece of a reply that comes in several.
    fn next_piece(&mut self, item: Item) -> Result<(), &'static str> {
        if !matches!(item.kind, ItemKind::Part | ItemKind::Status) {
            return Err("not a possible end of the reply that had begun");
        }
        self.item = item;
        self.left = item.body + item.trailer.len() as u64;
        self.end = End::default();
        self.arrival.shown = match item.key.is_empty() {
            true => Shown::Body { trailer: item.trailer },
            false => Shown::Nothing,
        };
        Ok(())
    }
}

impl Link {
    /// Matches an item with the first message, which is a block or has its answer already. Breaks
    /// with the bytes of an item that answers nothing.
    #[cold]
    fn match_late(
        &mut self,
        upstream: &dyn Upstream,
        item: Item,
        (head, rest): (&[u8], &[u8]),
        is_whole: bool,
    ) -> Result<ControlFlow<usize, Found>, &'static str> {
        let Some(message) = self.outstanding.front_mut() else { return Err(IMPOSSIBLE_REPLY) };
        let nothing = (Part::whole(NONE), Unit::Internal, None);
        if message.is_block() {
            let is_step = message.take_step(upstream, item, head)?;
            self.own.executed = !is_step && upstream.has_executed(head);
            if !is_step {
                self.own.block_error.clear();
            }
            if is_step {
                self.owed = self.since;
            }
            return Ok(match is_step {
                true => ControlFlow::Break(head.len()),
                false if message.is_late() => ControlFlow::Continue(nothing),
                false => ControlFlow::Continue(match_item(message, &item, rest)?),
            });
        }
        check_late(message.late, &item, upstream, head)?;
        if item.kind != ItemKind::Value {
            return Ok(ControlFlow::Continue(nothing));
        }
        // A value of a read that has been answered.
        if is_whole {
            return Ok(ControlFlow::Break(item.len() as usize));
        }
        let left = item.body + item.trailer.len() as u64;
        let (unit, arrival) = (Unit::Key, Arrival::nowhere());
        self.body = Some(Body { item, unit, left, end: End::default(), arrival });
        Ok(ControlFlow::Break(head.len()))
    }
}

/// The part and the unit that an item settles, and how many keys it answers, if it answers several
/// together.
type Found = (Part, Unit, Option<u32>);

/// Returns what an item settles. Moves the message's cursor past a value.
#[inline(always)]
fn match_item(message: &mut Message, item: &Item, bytes: &[u8]) -> Result<Found, &'static str> {
    match (&mut message.payload, item.kind) {
        (Payload::Fetch(batch), ItemKind::Value) => {
            let found = batch.find(item.key.of(bytes)).ok_or(UNREQUESTED_KEY)?;
            batch.skipped.extend_from_slice(&batch.entries[batch.cursor..found]);
            batch.cursor = found + 1;
            Ok((batch.entries[found].part, Unit::Key, None))
        }
        (Payload::Fetch(batch), ItemKind::Status | ItemKind::Part) if batch.single_reply => {
            Ok((batch.entries[0].part, Unit::Batch, Some(batch.entries.len() as u32)))
        }
        (Payload::Single(part), ItemKind::Status | ItemKind::Part) => {
            Ok((*part, Unit::Single, None))
        }
        (Payload::Internal(_), ItemKind::Status | ItemKind::Part) => {
            Ok((Part::whole(NONE), Unit::Internal, None))
        }
        _ => Err(IMPOSSIBLE_REPLY),
    }
}

/// Checks that an item can answer a request that has its answer already.
#[cold]
fn check_late(
    late: Late,
    item: &Item,
    upstream: &dyn Upstream,
    head: &[u8],
) -> Result<(), &'static str> {
    match (late, item.kind) {
        (Late::List(count), _)
            if upstream.elements(head).is_none_or(|(_, len)| len != u64::from(count)) =>
        {
            Err(WRONG_NUMBER)
        }
        (_, ItemKind::Value | ItemKind::Status | ItemKind::Part) => Ok(()),
        _ => Err(IMPOSSIBLE_REPLY),
    }
}

pub(crate) const WRONG_LENGTH: &str = "a value that does not have the length that its head gives";
pub(super) const EARLY_REPLY: &str = "a reply before its request was sent";
pub(super) const UNASKED: &str = "a reply that was not asked for";
const WRONG_NUMBER: &str = "a different number of values than was asked for";
const UNREQUESTED_KEY: &str = "the value of a key that was not asked for";
const IMPOSSIBLE_REPLY: &str = "a reply that cannot answer what was asked";
