//! Pair and settle: a server's bytes are matched with requests.
//!
//! A server answers in the order of its requests, so a reply belongs to the first outstanding
//! message. A reply that cannot answer that message, or that no message asked for, poisons the
//! link: the link is closed, and nothing after that reply is believed.

use metrics::ServerCounter;
use proto::{Item, ItemKind, Parsed, Progress, Upstream};

use super::pieces::begin_body;
use crate::batch::{Batch, Entry};
use crate::buffer::{Source, has_trailer};
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Message, Payload, State, Unit};
use crate::pipelines::Value;
use crate::plan::QuickAck;
use crate::request::{NONE, PendingRequests};
use crate::{Action, Event, Proxy, Time, limits};

/// The progress of one look at a link's bytes.
pub(super) enum Step {
    /// This many bytes were used; look again.
    Used(usize),
    /// The head of the next item is incomplete.
    Incomplete,
}

impl Proxy {
    pub(crate) fn receive_link(&mut self, id: ConnId, source: Source<'_>, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.heard(now);
        let (pool, server, state) = (link.pool as usize, link.server as usize, link.state);
        self.note_heard(pool, server, now);
        let outcome = match state {
            State::Handshake => self.handshake(id, source, now),
            _ => self.pair_received(id, source, now),
        };
        match outcome {
            Ok(()) => self.after_receive(id, source.bytes.len()),
            Err(why) => {
                let Some(link) = self.links.find(id) else { return };
                let server = self.pipelines.pools[link.pool as usize].server_id(link.server);
                let event = Event::Poisoned { server, why };
                self.pipelines.actions.push_back(Action::Log(event));
                self.close_link(id, Fault::Poisoned, now);
            }
        }
    }

    /// Pairs all bytes: first the buffered bytes of an unfinished head, then the new ones.
    fn pair_received(
        &mut self,
        id: ConnId,
        source: Source<'_>,
        now: Time,
    ) -> Result<(), &'static str> {
        let mut at = 0;
        let link = self.links.find_mut(id).expect("the caller found it");
        if !link.partial.is_empty() {
            let mut joined = std::mem::take(&mut link.partial);
            let (kept, mut more) = (joined.len(), 0);
            // Nearly every head is shorter than this, so this many more bytes finish the buffered
            // one.
            while at < kept && more < source.bytes.len() {
                let end = source.bytes.len().min(more + limits::REPLY_HEAD_MAX);
                joined.extend_from_slice(&source.bytes[more..end]);
                more = end;
                at = self.pair_items(id, Source::plain(&joined), now)?;
            }
            if at < kept {
                if let Some(link) = self.links.find_mut(id) {
                    link.partial = joined;
                }
                return Ok(());
            }
            at -= kept;
            self.pipelines.spares.give(joined);
        }
        at += self.pair_items(id, source.part(at, source.bytes.len()), now)?;
        let rest = &source.bytes[at..];
        if !rest.is_empty()
            && let Some(link) = self.links.find_mut(id)
        {
            link.partial = self.pipelines.spares.take();
            link.partial.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Pairs as many items as there are; returns how many bytes they took.
    fn pair_items(
        &mut self,
        id: ConnId,
        source: Source<'_>,
        now: Time,
    ) -> Result<usize, &'static str> {
        let len = source.bytes.len();
        let mut at = 0;
        while at < len {
            let rest = source.part(at, len);
            // A probe's answer may close the link. Nothing after it matters then.
            let Some(link) = self.links.find(id) else { return Ok(len) };
            let step = match &link.body {
                Some(body) if body.left > 0 => self.pair_body(id, rest, now)?,
                _ => self.pair_next_item(id, rest, now)?,
            };
            match step {
                Step::Used(used) => at += used,
                Step::Incomplete => break,
            }
        }
        Ok(at)
    }

    /// Pairs the next item, which belongs to the first outstanding message or to none.
    fn pair_next_item(
        &mut self,
        id: ConnId,
        rest: Source<'_>,
        now: Time,
    ) -> Result<Step, &'static str> {
        let link = self.links.find_mut(id).expect("the caller found it");
        let Some(message) = link.outstanding.front_mut() else {
            return Err("a reply that was not asked for");
        };
        if message.end > link.sent {
            return Err("a reply before its request was sent");
        }
        let upstream = self.pipelines.pools[link.pool as usize].upstream;
        let asked = message.ask;
        let item = match upstream.parse_reply(asked, &mut link.progress, rest.bytes) {
            Parsed::Incomplete => return Ok(Step::Incomplete),
            Parsed::Malformed(_) if bug!(BelievePoison) => return Ok(Step::Used(rest.bytes.len())),
            Parsed::Malformed(why) => return Err(why),
            Parsed::Complete(item) => item,
        };
        if item.kind.ends_reply() {
            link.progress = Progress::default();
        }
        if link.body.is_some() {
            return self.pair_next_part(id, item, rest, now);
        }
        let is_fetch = matches!(message.payload, Payload::Fetch(_));
        if item.kind == ItemKind::Error || item.kind == ItemKind::End && is_fetch {
            let line = &rest.bytes[..item.head as usize];
            self.end_reply(id, item.kind, line, now);
            return Ok(Step::Used(line.len()));
        }
        let (entry, unit) =
            match_item(message, &item, rest.bytes, &self.pipelines.requests, upstream)?;
        let is_rendered = unit != Unit::Internal
            && self.pipelines.requests[entry.pending].info.is_rendered(asked);
        if is_rendered && unit == Unit::Single {
            self.pipelines.note_found(entry.pending, &item, &rest.bytes[..item.head as usize]);
        }
        let len = usize::try_from(item.len()).map_err(|_| "a value larger than any memory")?;
        if len > rest.bytes.len() || item.kind == ItemKind::Part {
            begin_body(link, &mut self.pipelines, (item, asked), rest, (entry, unit));
            return Ok(Step::Used(item.head as usize));
        }
        if !has_trailer(&rest.bytes[..len], item.trailer) {
            // The cursor has passed this key, but the key has no value yet: it is outstanding
            // again.
            if let Payload::Fetch(batch) = &mut message.payload {
                batch.cursor = batch.cursor.saturating_sub(1);
            }
            return Err("a value that does not have the length that its head gives");
        }
        let whole = rest.part(0, len);
        let value = match is_rendered {
            false => Value::Ready(whole),
            true => Value::ToRender(&item, whole),
        };
        let has_body = item.body > 0 || len > limits::REPLY_HEAD_MAX;
        self.settle(id, (entry, unit), value, has_body, now);
        Ok(Step::Used(len))
    }

    /// Records that a key of a read has its value, or that a request or several keys have their
    /// answer.
    pub(super) fn settle(
        &mut self,
        id: ConnId,
        (entry, unit): (Entry, Unit),
        value: Value<'_>,
        has_body: bool,
        now: Time,
    ) {
        let link = self.links.find(id).expect("the caller found it");
        let server = link.server;
        match unit {
            Unit::Key => self.pipelines.hit(server, entry, value),
            Unit::Single => {
                self.end_message(id, ItemKind::Status, now);
                match self.pipelines.requests[entry.pending].info.gathers {
                    true => self.pipelines.keep_reply((entry.pending, entry.slot), server, value),
                    false => {
                        self.pipelines.answer_with_reply(entry.pending, server, value, has_body)
                    }
                }
            }
            Unit::Batch => {
                let message = self.end_message(id, ItemKind::Status, now);
                let Payload::Fetch(batch) = message.payload else {
                    unreachable!("the caller looked")
                };
                self.pipelines.keep_reply((entry.pending, entry.slot), server, value);
                self.pipelines.settle_rest_of_batch(&batch);
                self.recycle(batch);
            }
            Unit::Internal => drop(self.end_message(id, ItemKind::Status, now)),
        }
    }

    /// The one reply to several keys has settled the first of them: settles the others.
    fn settle_others(&mut self, batch: &Batch) {
        batch.entries.iter().skip(1).for_each(|entry| self.pipelines.part_done(entry.pending));
    }

    /// Fails a request whose answer could not be kept.
    pub(super) fn drop_answer(&mut self, id: ConnId, now: Time) {
        let server = self.links.find(id).expect("the caller found it").server;
        let message = self.end_message(id, ItemKind::Status, now);
        let (pending, slot) = match &message.payload {
            Payload::Single(pending, slot) => (*pending, *slot),
            Payload::Fetch(batch) => (batch.entries[0].pending, batch.entries[0].slot),
            Payload::Internal(_) => return,
        };
        let wrote = self.pipelines.requests[pending].writes;
        match self.pipelines.clients.find(self.pipelines.requests[pending].client).is_none() {
            true => self.pipelines.part_done(pending),
            false => {
                self.pipelines.fail_part((pending, slot), Some(server), Fault::OutOfMemory, wrote)
            }
        }
        if let Payload::Fetch(batch) = message.payload {
            self.settle_others(&batch);
            self.recycle(batch);
        }
    }

    /// Handles a line that ends a reply.
    pub(super) fn end_reply(&mut self, id: ConnId, kind: ItemKind, line: &[u8], now: Time) {
        let server = self.links.find(id).expect("the caller found it").server;
        let message = self.end_message(id, kind, now);
        match (message.payload, kind) {
            (Payload::Fetch(batch), ItemKind::Error) if batch.single_reply => {
                let part = (batch.entries[0].pending, batch.entries[0].slot);
                self.pipelines.server_error(part, server, line);
                self.settle_others(&batch);
                self.recycle(batch);
            }
            (Payload::Fetch(batch), ItemKind::Error) => self.ask_alone(id, batch, line, now),
            (Payload::Fetch(batch), _) => {
                for entry in batch.outstanding() {
                    self.pipelines.miss(*entry);
                }
                self.recycle(batch);
            }
            (Payload::Single(pending, slot), _) => {
                if !self.retries(pending, (id, server), line, now) {
                    self.pipelines.server_error((pending, slot), server, line);
                }
            }
            (Payload::Internal(_), _) => {}
        }
    }

    /// Takes the first outstanding message, whose reply is complete.
    fn end_message(&mut self, id: ConnId, kind: ItemKind, now: Time) -> Message {
        let link = self.links.find_mut(id).expect("the caller found it");
        let message = link.pop();
        link.note_reply_complete(message.end, now);
        let batch_waits = link.batch.is_some();
        let (pool, server_index) = (link.pool as usize, link.server);
        let server = &mut self.pipelines.pools[pool].servers[server_index as usize];
        server.counters.add(ServerCounter::Replies, 1);
        server.latency.record(now.since(message.since));
        let failed_before = server.failures > 0;
        if kind == ItemKind::Error {
            server.counters.add(ServerCounter::Errors, 1);
        }
        if failed_before {
            self.request_answered(pool, server_index as usize);
        }
        if kind == ItemKind::Status {
            self.prove(pool, server_index as usize, message.ask);
        }
        self.note_owing(id, now);
        if batch_waits && !bug!(LeaveGathered) {
            self.mark_dirty(id);
        }
        message
    }

    /// Sends each unanswered key of a get alone, after an error line answered the whole get: one of
    /// the keys may be to blame. A key that was alone gets the error. So does a key whose client
    /// has sent a change since, because the change must not be overtaken.
    fn ask_alone(&mut self, id: ConnId, batch: Box<Batch>, line: &[u8], now: Time) {
        let alone = batch.entries.len() == 1;
        for entry in batch.outstanding() {
            // A read that changes something is never sent twice.
            let again = Proxy::is_idempotent(&batch) && !self.has_changed_since(entry.pending);
            let link = self.links.find(id).expect("the caller found it");
            if alone || !again || !link.has_room(&self.pipelines.limits) {
                self.pipelines.server_error((entry.pending, entry.slot), link.server, line);
                continue;
            }
            let link = self.links.find_mut(id).expect("the caller found it");
            let pool = &mut self.pipelines.pools[link.pool as usize];
            let mut one = self.spare_batches.pop().unwrap_or_else(Batch::blank);
            one.open(batch.ask, batch.idempotent, self.turn, now);
            one.text.extend_from_slice(batch.prefix());
            one.push(pool.upstream, batch.key(*entry), entry.pending, entry.slot);
            link.out.open(&mut self.pipelines.spares);
            link.launch_batch(one, pool.upstream);
            let counters = &mut pool.servers[link.server as usize].counters;
            counters.add(ServerCounter::AskedAlone, 1);
            counters.add(ServerCounter::Messages, 1);
        }
        self.recycle(batch);
        self.mark_dirty(id);
    }

    /// Updates the memory account after a read and applies the QUICKACK rule on the server's side.
    fn after_receive(&mut self, id: ConnId, received: usize) {
        let Some(link) = self.links.find_mut(id) else { return };
        let bytes = link.measure();
        self.pipelines.memory.change(&mut link.counted, bytes);
        let pool = &mut self.pipelines.pools[link.pool as usize];
        let counters = pool.servers[link.server as usize].counters;
        counters.add(ServerCounter::ReplyBytes, received as u64);
        let flush = match pool.plan.server_quickack {
            QuickAck::Partial => link.is_mid_reply(),
            QuickAck::Always => true,
            QuickAck::Off => false,
        };
        if flush {
            counters.add(ServerCounter::AcksFlushed, 1);
            self.pipelines.actions.push_back(Action::FlushAck(id));
        }
        if link.retiring {
            self.end_link_retirement(id);
        }
    }

    /// Notes that the kernel took bytes of a link.
    pub(crate) fn transmitted_link(&mut self, id: ConnId, n: usize, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        let server = &self.pipelines.pools[link.pool as usize].servers[link.server as usize];
        server.counters.add(ServerCounter::MessageBytes, n as u64);
        if link.state == State::Handshake {
            link.handshake.drain(..n);
            if n > 0 {
                // While the kernel still takes the handshake, the server cannot answer it.
                link.since = now;
            }
            return;
        }
        link.advance(n, now);
        if link.out.is_empty() {
            link.out.close(&mut self.pipelines.spares);
        } else {
            link.out.settle();
        }
        let bytes = link.measure();
        self.pipelines.memory.change(&mut link.counted, bytes);
        self.note_owing(id, now);
        self.arm_link(id);
    }
}

/// Returns the entry and the unit that an item settles, and moves the message's cursor past a
/// value.
fn match_item(
    message: &mut Message,
    item: &Item,
    bytes: &[u8],
    requests: &PendingRequests,
    upstream: &dyn Upstream,
) -> Result<(Entry, Unit), &'static str> {
    let key = item.key.of(bytes);
    match (&mut message.payload, item.kind) {
        (Payload::Fetch(batch), ItemKind::Value) => {
            let found = batch.find(key).ok_or(UNREQUESTED_KEY)?;
            batch.skipped.extend_from_slice(&batch.entries[batch.cursor..found]);
            batch.cursor = found + 1;
            Ok((batch.entries[found], Unit::Key))
        }
        (Payload::Fetch(batch), ItemKind::Status | ItemKind::Part) if batch.single_reply => {
            let first = batch.entries[0];
            let elements = upstream.elements(&bytes[..item.head as usize]);
            let is_right = elements.is_some_and(|(_, count)| count == batch.entries.len() as u64);
            match is_right || !requests[first.pending].info.element_per_key || bug!(BelievePoison) {
                true => Ok((first, Unit::Batch)),
                false => Err(WRONG_NUMBER),
            }
        }
        (Payload::Single(pending, slot), ItemKind::Status | ItemKind::Part) => {
            let info = &requests[*pending].info;
            if let Some(expected) = info.elements {
                let elements = upstream.elements(&bytes[..item.head as usize]);
                let is_right = elements.is_some_and(|(_, count)| count == u64::from(expected));
                if !is_right && !bug!(BelievePoison) {
                    return Err(WRONG_NUMBER);
                }
            }
            match info.is_answer(item, &bytes[..item.head as usize]) {
                true => Ok((Entry::of_request(*pending, *slot), Unit::Single)),
                false => Err(WRONG_KEY_OR_OPAQUE),
            }
        }
        (Payload::Internal(_), ItemKind::Status | ItemKind::Part) => {
            Ok((Entry::of_request(NONE, 0), Unit::Internal))
        }
        _ => Err(IMPOSSIBLE_REPLY),
    }
}

const UNREQUESTED_KEY: &str = "the value of a key that was not asked for";
const WRONG_NUMBER: &str = "a different number of values than was asked for";
const WRONG_KEY_OR_OPAQUE: &str = "an answer with another key or opaque than was asked for";
const IMPOSSIBLE_REPLY: &str = "not a possible answer to what was asked";

impl Message {
    /// Returns how many parts of requests wait for its reply.
    pub(super) fn parts(&self) -> usize {
        match &self.payload {
            Payload::Fetch(batch) => batch.outstanding().count(),
            Payload::Single(..) => 1,
            Payload::Internal(_) => 0,
        }
    }
}
