//! Pair and settle: a server's bytes are matched with what was asked.
//!
//! A server answers in the order asked, so a reply belongs to the first flight. A reply that cannot
//! be an answer to it, or that nobody asked for, poisons the link: it is closed, and nothing after
//! that reply is believed.

use metrics::Server as Counter;
use proto::{Item, ItemKind, Parsed};

use crate::buffer::{Outbox, Source};
use crate::client::End;
use crate::desk::{Desk, Value};
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Batch, Body, Cargo, Entry, Flight, Link, State};
use crate::plan::QuickAck;
use crate::{Action, Event, Proxy, Time, limits};

/// How far a look at a link's bytes came.
enum Step {
    /// So many bytes were used; look again.
    Used(usize),
    /// The head of the next item is not whole.
    Incomplete,
}

impl Proxy {
    pub(crate) fn receive_link(&mut self, id: ConnId, source: Source<'_>, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.heard(now);
        match self.pair_all(id, source, now) {
            Ok(()) => self.after_receive(id, source.bytes.len()),
            Err(why) => {
                let Some(link) = self.links.find(id) else { return };
                let server = self.desk.pools[link.pool as usize].row_of(link.server);
                let event = Event::Poisoned { server, why };
                self.desk.actions.push_back(Action::Log(event));
                self.close_link(id, Fault::Poisoned, now);
            }
        }
    }

    /// Takes all bytes: what was kept of an unfinished head, then the new ones.
    fn pair_all(&mut self, id: ConnId, source: Source<'_>, now: Time) -> Result<(), &'static str> {
        let mut at = 0;
        let link = self.links.find_mut(id).expect("the caller found it");
        if !link.partial.is_empty() {
            let mut joined = std::mem::take(&mut link.partial);
            let kept = joined.len();
            // A head is shorter than this, so that much more finishes the one that was kept.
            let more = source.bytes.len().min(limits::REPLY_HEAD_MAX);
            joined.extend_from_slice(&source.bytes[..more]);
            let used = self.pair(id, Source::plain(&joined), now)?;
            if used < kept {
                assert_eq!(more, source.bytes.len(), "the protocol bounds the length of a head");
                if let Some(link) = self.links.find_mut(id) {
                    link.partial = joined;
                }
                return Ok(());
            }
            at = used - kept;
            self.desk.spares.give(joined);
        }
        at += self.pair(id, source.part(at, source.bytes.len()), now)?;
        let rest = &source.bytes[at..];
        if !rest.is_empty()
            && let Some(link) = self.links.find_mut(id)
        {
            link.partial = self.desk.spares.take();
            link.partial.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Pairs as many items as there are; returns how many bytes they took.
    fn pair(&mut self, id: ConnId, source: Source<'_>, now: Time) -> Result<usize, &'static str> {
        let len = source.bytes.len();
        let mut at = 0;
        while at < len {
            let rest = source.part(at, len);
            // A probe's answer may close the link: then nothing after it matters.
            let Some(link) = self.links.find(id) else { return Ok(len) };
            let step = match link.body {
                Some(_) => self.pair_body(id, rest)?,
                None => self.pair_item(id, rest, now)?,
            };
            match step {
                Step::Used(used) => at += used,
                Step::Incomplete => break,
            }
        }
        Ok(at)
    }

    /// The next item, which belongs to the first flight or to nobody.
    fn pair_item(&mut self, id: ConnId, rest: Source<'_>, now: Time) -> Result<Step, &'static str> {
        let link = self.links.find_mut(id).expect("the caller found it");
        let Some(flight) = link.flights.front_mut() else {
            return Err("a reply that nobody asked for");
        };
        if flight.end > link.sent {
            return Err("a reply before its request was sent");
        }
        let protocol = self.desk.pools[link.pool as usize].plan.protocol;
        let item = match protocol.parse_reply(flight.ask, rest.bytes) {
            Parsed::Incomplete => return Ok(Step::Incomplete),
            Parsed::Malformed(_) if bug!(BelievePoison) => return Ok(Step::Used(rest.bytes.len())),
            Parsed::Malformed(why) => return Err(why),
            Parsed::Complete(item) => item,
        };
        if item.kind != ItemKind::Value {
            let line = &rest.bytes[..item.head as usize];
            self.end_reply(id, item.kind, line, now)?;
            return Ok(Step::Used(line.len()));
        }
        let Cargo::Fetch(batch) = &mut flight.cargo else {
            return Err("a value where none was asked for");
        };
        let Some(found) = batch.find(item.key.of(rest.bytes)) else {
            return Err("the value of a key that was not asked for");
        };
        batch.skipped.extend_from_slice(&batch.entries[batch.cursor..found]);
        batch.cursor = found + 1;
        let entry = batch.entries[found];
        match take_value(link, &mut self.desk, rest, item, entry)? {
            Some(used) => Ok(Step::Used(used)),
            None => self.pair_body(id, rest),
        }
    }

    /// More of a value.
    fn pair_body(&mut self, id: ConnId, rest: Source<'_>) -> Result<Step, &'static str> {
        let link = self.links.find_mut(id).expect("the caller found it");
        let body = link.body.as_mut().expect("the caller looked");
        let used = rest.bytes.len().min(usize::try_from(body.left).unwrap_or(usize::MAX));
        let part = rest.part(0, used);
        body.end.feed(part.bytes);
        body.left -= used as u64;
        if body.entry.is_some() {
            body.data.open(&mut self.desk.spares);
            body.data.keep(part);
        }
        if body.left == 0 {
            if !body.end.is(body.item.trailer) {
                return Err("a value that does not end where its head says");
            }
            let server = link.server;
            if let Some(Body { entry: Some(entry), data, .. }) = link.body.take() {
                self.desk.hit(server, entry, Value::Held(data));
            }
        }
        Ok(Step::Used(used))
    }

    /// The item that ends a reply.
    fn end_reply(
        &mut self,
        id: ConnId,
        kind: ItemKind,
        line: &[u8],
        now: Time,
    ) -> Result<(), &'static str> {
        let link = self.links.find_mut(id).expect("the caller found it");
        let fits = match link.flights.front().map(|flight| &flight.cargo) {
            Some(Cargo::Fetch(_)) => matches!(kind, ItemKind::End | ItemKind::Error),
            Some(_) => matches!(kind, ItemKind::Status | ItemKind::Error),
            None => false,
        };
        if !fits {
            return Err("not a possible answer to what was asked");
        }
        let flight = link.pop();
        link.land(flight.end, now);
        let batch_waits = link.batch.is_some();
        let (pool, server) = (link.pool as usize, link.server);
        let mut failed_before = false;
        let entry = &mut self.desk.pools[pool].servers[server as usize];
        entry.counters.add(Counter::Replies, 1);
        if !matches!(flight.cargo, Cargo::Probe) {
            entry.latency.record(now.since(flight.since));
            failed_before = entry.failures > 0;
        }
        if kind == ItemKind::Error {
            entry.counters.add(Counter::Errors, 1);
        }
        if failed_before {
            self.request_answered(pool, server as usize);
        }
        if batch_waits {
            self.mark_dirty(id);
        }
        match (flight.cargo, kind) {
            (Cargo::Fetch(batch), ItemKind::Error) => self.ask_alone(id, batch, line, now),
            (Cargo::Fetch(batch), _) => {
                for entry in batch.outstanding() {
                    self.desk.miss(*entry);
                }
                self.recycle(batch);
            }
            (Cargo::Update(row), ItemKind::Error) => self.desk.server_error(row, line),
            (Cargo::Update(row), _) => self.desk.status(row, line),
            // Whatever it says, it speaks: it is back.
            (Cargo::Probe, _) => self.probe_answered(id, now),
        }
        Ok(())
    }

    /// An error line answered a get of several keys: one of them may be to blame, so each that has
    /// no answer yet is asked alone. A key that was alone gets the error, and so does one whose
    /// client has asked for a change since, which must not be overtaken.
    fn ask_alone(&mut self, id: ConnId, batch: Box<Batch>, line: &[u8], now: Time) {
        let alone = batch.entries.len() == 1;
        for entry in batch.outstanding() {
            // A read that changes something is never asked twice.
            let again = Proxy::is_idempotent(&batch.request) && !self.has_changed_since(entry.row);
            let link = self.links.find(id).expect("the caller found it");
            if alone || !again || !link.has_room(&self.desk.limits) {
                self.desk.server_error(entry.row, line);
                continue;
            }
            let link = self.links.find_mut(id).expect("the caller found it");
            let pool = &mut self.desk.pools[link.pool as usize];
            let mut one = self.spare_batches.pop().unwrap_or_else(|| Batch::blank(batch.request));
            one.open(batch.request, self.turn, now);
            one.text.extend_from_slice(batch.prefix());
            one.push(pool.plan.protocol, batch.key(*entry), entry.row, entry.slot);
            link.out.open(&mut self.desk.spares);
            link.launch_batch(one, pool.plan.protocol);
            let counters = &mut pool.servers[link.server as usize].counters;
            counters.add(Counter::AskedAlone, 1);
            counters.add(Counter::Messages, 1);
        }
        self.recycle(batch);
        self.mark_dirty(id);
    }

    /// After a read: the account, and the QUICKACK rule on the server's side.
    fn after_receive(&mut self, id: ConnId, received: usize) {
        let Some(link) = self.links.find_mut(id) else { return };
        let held = link.measure();
        self.desk.memory.change(&mut link.held, held);
        let pool = &mut self.desk.pools[link.pool as usize];
        let counters = pool.servers[link.server as usize].counters;
        counters.add(Counter::ReplyBytes, received as u64);
        let flush = match pool.plan.server_quickack {
            QuickAck::Partial => link.is_mid_reply(),
            QuickAck::Always => true,
            QuickAck::Off => false,
        };
        if flush {
            counters.add(Counter::AcksFlushed, 1);
            self.desk.actions.push_back(Action::FlushAck(id));
        }
        if link.retiring {
            self.end_retiring(id);
        }
    }

    /// The kernel took bytes of a link.
    pub(crate) fn transmitted_link(&mut self, id: ConnId, n: usize, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.advance(n, now);
        let server = &self.desk.pools[link.pool as usize].servers[link.server as usize];
        server.counters.add(Counter::MessageBytes, n as u64);
        if link.out.is_empty() {
            link.out.close(&mut self.desk.spares);
        } else {
            link.out.settle();
        }
        let held = link.measure();
        self.desk.memory.change(&mut link.held, held);
        self.arm_link(id);
    }

    /// A connect succeeded: what waited can be sent.
    pub(crate) fn connected(&mut self, id: ConnId, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        let probing = link.state == State::Probing;
        link.set_state(State::Up);
        link.since = now;
        let pool = &mut self.desk.pools[link.pool as usize];
        let server = &mut pool.servers[link.server as usize];
        server.unable_pause = limits::BACKOFF_FIRST_US;
        let counters = server.counters;
        counters.add(Counter::Connects, 1);
        if probing {
            let (text, ask) = pool.plan.protocol.probe();
            let before = link.out.len();
            link.out.copy(text);
            link.launch(Cargo::Probe, ask, before, now);
            counters.add(Counter::Probes, 1);
        }
        self.mark_dirty(id);
    }
}

/// A value whose head is there: whole (its length is returned), or the
/// beginning of its body, which is kept to be continued.
fn take_value(
    link: &mut Link,
    desk: &mut Desk,
    rest: Source<'_>,
    item: Item,
    entry: Entry,
) -> Result<Option<usize>, &'static str> {
    let len = usize::try_from(item.len()).map_err(|_| "a value longer than any memory")?;
    if len <= rest.bytes.len() {
        if !rest.bytes[..len].ends_with(item.trailer) {
            // The batch is past this key, and nobody has it: it is outstanding again.
            if let Some(Flight { cargo: Cargo::Fetch(batch), .. }) = link.flights.front_mut() {
                batch.cursor -= 1;
            }
            return Err("a value that does not end where its head says");
        }
        desk.hit(link.server, entry, Value::Flat(rest.part(0, len)));
        return Ok(Some(len));
    }
    let mut body = Body {
        item,
        entry: Some(entry),
        data: Outbox::default(),
        left: item.len(),
        end: End::default(),
    };
    if !desk.memory.has_room(len) {
        desk.fail_part(entry.row, Some(link.server), Fault::OutOfMemory, false);
        body.entry = None;
    } else if desk.clients.find(desk.rows[entry.row].client).is_none() {
        desk.part_done(entry.row);
        body.entry = None;
    }
    link.body = Some(body);
    Ok(None)
}

impl Flight {
    pub(super) fn is_probe(&self) -> bool {
        matches!(self.cargo, Cargo::Probe)
    }

    /// Parts of requests that wait for its reply.
    pub(super) fn parts(&self) -> usize {
        match &self.cargo {
            Cargo::Fetch(batch) => batch.outstanding().count(),
            Cargo::Update(_) => 1,
            Cargo::Probe => 0,
        }
    }
}
