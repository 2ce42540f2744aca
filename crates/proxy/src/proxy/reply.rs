//! From a link's bytes to the answers of clients.

use metrics::ServerCounter;
use proto::{ItemKind, Shown};

use super::Proxy;
use crate::base::buffer::Source;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::limits;
use crate::base::part::{Arrival, Part, RequestId};
use crate::base::phases::UNSENT;
use crate::base::slow::ReplyOf;
use crate::client::{Recovery, ReplyTo, Value};
use crate::server::{
    Batch, Internal, LinkEvent, Lost, Matched, Payload, Received, Reply, Unit, WRONG_LENGTH,
};

/// A message of a dead link that may be sent once more.
enum Again {
    /// Keys of gets, each with which time that would be, if it may be, and whether they were sent
    /// before.
    Keys(Box<Batch>, Vec<Option<u8>>, bool),
    /// A read that is kept until it is answered.
    Read(RequestId, u8),
}

/// The part of a request that a whole item settles.
struct Settled {
    server: u32,
    part: Part,
    unit: Unit,
    /// It is gathered with others into one answer.
    gathers: bool,
}

impl Proxy {
    pub(super) fn receive_link(&mut self, id: ConnId, source: Source<'_>) {
        let handshake = self.servers.take_handshake(&mut self.base, id, source);
        let result = handshake.and_then(|received| match received {
            Received::Replies => self.pair_received(id, source),
            Received::Pushes => self.receive_pushes(id, source),
            Received::Handshake => Ok(()),
        });
        self.base.reply = ReplyOf::NONE;
        match result {
            Ok(()) => self.servers.after_receive(&mut self.base, id, source.bytes.len()),
            Err(why) => self.servers.poison(&mut self.base, id, why),
        }
        self.handle_link_events();
    }

    /// Pairs all bytes: first the kept bytes of an unfinished head, then the new ones.
    fn pair_received(&mut self, id: ConnId, source: Source<'_>) -> Result<(), &'static str> {
        let mut at = 0;
        let mut joined = self.servers.take_partial(id);
        if !joined.is_empty() {
            let (kept, mut more) = (joined.len(), 0);
            // Nearly every head is shorter than this, so this many more bytes finish the kept one.
            while at < kept && more < source.bytes.len() {
                let end = source.bytes.len().min(more + limits::REPLY_HEAD_MAX);
                joined.extend_from_slice(&source.bytes[more..end]);
                more = end;
                at = self.pair_items(id, Source::plain(&joined))?;
            }
            if at < kept {
                self.servers.keep_partial(id, joined);
                return Ok(());
            }
            at -= kept;
            self.base.spares.give(joined);
        }
        at += self.pair_items(id, source.part(at, source.bytes.len()))?;
        let rest = &source.bytes[at..];
        if !rest.is_empty() {
            let mut partial = self.base.spares.take();
            partial.extend_from_slice(rest);
            self.servers.keep_partial(id, partial);
        }
        Ok(())
    }

    /// Pairs as many items as there are; returns how many bytes they took.
    fn pair_items(&mut self, id: ConnId, source: Source<'_>) -> Result<usize, &'static str> {
        let len = source.bytes.len();
        let mut matched = None;
        let mut at = 0;
        while at < len {
            let rest = source.part(at, len);
            at += match self.servers.next_reply(&mut self.base, id, rest, &mut matched)? {
                Reply::Incomplete => break,
                Reply::Nothing(used) => used,
                Reply::Line(ItemKind::Error, line) => {
                    let told = self.servers.tell_aborted(&self.base, id, line);
                    self.end_reply(id, ItemKind::Error, told.as_deref().unwrap_or(line));
                    line.len()
                }
                Reply::Line(kind, line) => {
                    self.end_reply(id, kind, line);
                    line.len()
                }
                Reply::Whole(whole) => {
                    if let Some(matched) = &matched {
                        self.take_whole(id, matched, whole)?;
                    }
                    whole.bytes.len()
                }
                Reply::Begins(head) => {
                    if let Some(matched) = &matched {
                        self.begin(id, matched, head)?;
                    }
                    head.bytes.len()
                }
                Reply::Continues { head, len } => {
                    let is_shown = |arrival: &&mut Arrival| arrival.shown != Shown::Nothing;
                    if let Some(arrival) = self.servers.arrival(id).filter(is_shown) {
                        self.clients.continue_value(&mut self.base, arrival, len, head);
                    }
                    self.end_piece(id);
                    head.bytes.len()
                }
                Reply::More { used, shown, has_wrong_end } => {
                    if !shown.bytes.is_empty() {
                        self.add(id, shown);
                    }
                    if has_wrong_end {
                        return Err(WRONG_LENGTH);
                    }
                    self.end_piece(id);
                    used
                }
            };
        }
        Ok(at)
    }

    /// Settles what an item answers that has come whole.
    #[inline(always)]
    fn take_whole(
        &mut self,
        id: ConnId,
        matched: &Matched,
        whole: Source<'_>,
    ) -> Result<(), &'static str> {
        let to = self.check_item(matched, &whole.bytes[..matched.item.head as usize])?;
        let value = match to.is_rendered {
            false => Value::Ready(whole),
            true => Value::ToRender(&matched.item, whole),
        };
        let has_body = matched.item.body > 0 || whole.bytes.len() > limits::REPLY_HEAD_MAX;
        let Matched { server, part, unit, .. } = *matched;
        let settled = Settled { server, part, unit, gathers: to.gathers };
        self.settle(id, settled, value, has_body);
        Ok(())
    }

    /// Checks that an item can answer its request.
    #[inline(always)]
    fn check_item(&mut self, matched: &Matched, head: &[u8]) -> Result<ReplyTo, &'static str> {
        let Matched { part, unit, item, asked, keys, .. } = matched;
        match unit {
            Unit::Internal => return Ok(ReplyTo { is_rendered: false, gathers: false }),
            Unit::Key => {}
            Unit::Single | Unit::Batch => {
                self.clients.check_reply(&self.base, *part, *keys, (item, head))?;
            }
        }
        let to = self.clients.reply_to(*part, *asked);
        if to.is_rendered && *unit == Unit::Single {
            self.clients.note_found(&self.base, *part, item, head);
        }
        Ok(to)
    }

    /// Begins a body, or a reply in pieces.
    fn begin(
        &mut self,
        id: ConnId,
        matched: &Matched,
        head: Source<'_>,
    ) -> Result<(), &'static str> {
        self.check_item(matched, head.bytes)?;
        let Matched { part, unit, server, item, asked, .. } = matched;
        let part = (*part, *server, *unit == Unit::Key);
        let arrival = self.clients.begin_value(&mut self.base, part, (item, *asked), head);
        self.servers.begin_body(id, matched, arrival);
        Ok(())
    }

    fn add(&mut self, id: ConnId, piece: Source<'_>) {
        if let Some(arrival) = self.servers.arrival(id) {
            self.clients.add_to_value(&mut self.base, arrival, piece);
        }
    }

    /// Ends a piece that has come whole; the last piece settles its request.
    fn end_piece(&mut self, id: ConnId) {
        let Some(trailer) = self.servers.piece_end(id) else { return };
        if !trailer.is_empty() {
            self.add(id, Source::plain(trailer));
        }
        let Some((unit, arrival)) = self.servers.end_piece(&mut self.base, id) else { return };
        if let (true, Some(part)) = (arrival.streams, arrival.part) {
            self.clients.end_stream(part);
        }
        let value = match arrival.streams {
            true => Value::Streamed,
            false => Value::Assembled(Box::new(arrival.data)),
        };
        match (arrival.part, unit) {
            (Some(part), _) => {
                let Some(server) = self.servers.server_of(id) else { return };
                let gathers = unit == Unit::Single && self.clients.gathers(part);
                self.settle(id, Settled { server, part, unit, gathers }, value, true);
            }
            (None, Unit::Key) => {}
            (None, Unit::Single | Unit::Batch | Unit::Internal) => self.drop_answer(id),
        }
    }

    /// Records that a key of a read has its value, or that a request or several keys have their
    /// answer.
    #[inline(always)]
    fn settle(&mut self, id: ConnId, settled: Settled, value: Value<'_>, has_body: bool) {
        let Proxy { base, clients, servers, .. } = self;
        let Settled { server, part, unit, gathers } = settled;
        if unit == Unit::Key {
            return clients.hit(base, server, part, value);
        }
        match servers.end_message(base, id, ItemKind::Status) {
            Some(Payload::Single(_)) if gathers => clients.keep_reply(base, part, server, value),
            Some(Payload::Single(_)) => {
                clients.answer_with_reply(base, part, server, value, has_body);
            }
            Some(other) => self.settle_other(id, other, (part, server), value),
            None => {}
        }
        self.base.reply.sent = UNSENT;
    }

    /// As `settle`, for what is not one request.
    #[inline(never)]
    fn settle_other(
        &mut self,
        id: ConnId,
        payload: Payload,
        (part, server): (Part, u32),
        value: Value<'_>,
    ) {
        let Proxy { base, clients, servers, .. } = self;
        match payload {
            Payload::Fetch(batch) => {
                clients.keep_reply(base, part, server, value);
                clients.settle_others(base, batch.parts());
                servers.recycle(batch);
            }
            Payload::Internal(one) => servers.end_internal(base, id, *one),
            Payload::Single(_) => {}
        }
    }

    /// Fails a request whose answer could not be kept.
    fn drop_answer(&mut self, id: ConnId) {
        let Proxy { base, clients, servers, .. } = self;
        let server = servers.server_of(id);
        match servers.end_message(base, id, ItemKind::Status) {
            Some(Payload::Single(part)) => clients.fail_unless_gone(base, part, server),
            Some(Payload::Fetch(batch)) => {
                clients.fail_unless_gone(base, batch.entries[0].part, server);
                clients.settle_others(base, batch.parts());
                servers.recycle(batch);
            }
            Some(Payload::Internal(_)) | None => {}
        }
        base.reply.sent = UNSENT;
    }

    /// Handles a line that ends a reply.
    fn end_reply(&mut self, id: ConnId, kind: ItemKind, line: &[u8]) {
        let Proxy { base, clients, servers, .. } = self;
        let Some(server) = servers.server_of(id) else { return };
        if kind == ItemKind::Error {
            servers.note_error(base, id, line);
        }
        match (servers.end_message(base, id, kind), kind) {
            (Some(Payload::Fetch(batch)), ItemKind::Error) if batch.single_reply => {
                clients.server_error(base, batch.entries[0].part, server, line);
                clients.settle_others(base, batch.parts());
                servers.recycle(batch);
            }
            (Some(Payload::Fetch(batch)), ItemKind::Error) => {
                self.ask_alone(id, batch, server, line);
            }
            (Some(Payload::Fetch(batch)), _) => {
                batch.outstanding().for_each(|entry| clients.miss(base, entry.part));
                servers.recycle(batch);
            }
            (Some(Payload::Single(part)), _) => {
                if !self.repeats(part, (id, server), line) {
                    self.clients.server_error(&mut self.base, part, server, line);
                }
            }
            (Some(Payload::Internal(one)), ItemKind::Error) => {
                servers.end_internal(base, id, *one);
                servers.refuse_internal(base, id, *one);
            }
            (Some(Payload::Internal(one)), _) => servers.end_internal(base, id, *one),
            (None, _) => {}
        }
        self.base.reply.sent = UNSENT;
    }

    /// Sends each unanswered key of a get alone, after an error line answered the whole get: one of
    /// the keys may be to blame. A key that was alone gets the error. So does a key whose client
    /// has sent a change since, because the change must not be overtaken.
    fn ask_alone(&mut self, id: ConnId, batch: Box<Batch>, server: u32, line: &[u8]) {
        let Proxy { base, clients, servers, .. } = self;
        // A read that changes something is never sent twice.
        let again = batch.entries.len() > 1 && batch.is_idempotent();
        for entry in batch.outstanding() {
            let part = entry.part;
            let may = again && !clients.has_changed_since(part.request);
            if !may || !servers.ask_alone(base, id, &batch, *entry) {
                clients.server_error(base, part, server, line);
            }
        }
        servers.recycle(batch);
    }

    /// Returns whether a request that its server answered with this error is sent again.
    fn repeats(&mut self, part: Part, (link, server): (ConnId, u32), line: &[u8]) -> bool {
        let Proxy { base, clients, servers, .. } = self;
        let conn_key = servers.conn_key(link);
        let Some(repeat) = clients.repeat_after(base, part, conn_key, line) else { return false };
        let is_sent = |number| servers.is_on_its_way(link, Internal::Recovery(number));
        let is_recovered = match clients.recovery(base, part, repeat, is_sent) {
            Recovery::Done => true,
            Recovery::Impossible => false,
            Recovery::Send { ask, number, words } => {
                let payload = match bug!(InternalToClient) {
                    true => Payload::Single(part),
                    false => Payload::internal(Internal::Recovery(number)),
                };
                servers.send_internal(base, link, payload, ask, &words)
            }
        };
        if repeat.may && is_recovered {
            clients.repeat(base, part, server, repeat);
        }
        repeat.may && is_recovered
    }

    /// Settles what no reply will answer, and lets clients go on that waited for a server.
    #[inline]
    pub(super) fn handle_link_events(&mut self) {
        while let Some(outcome) = self.servers.next_event() {
            self.handle_link_event(outcome);
        }
    }

    #[cold]
    fn handle_link_event(&mut self, outcome: LinkEvent) {
        let Proxy { base, clients, servers, .. } = self;
        match outcome {
            LinkEvent::NotSent { part, server, fault } => {
                clients.fail(base, part, server, fault, false);
            }
            LinkEvent::Late(late) => {
                let first = late.parts.first();
                if let Some(elements) = first.and_then(|part| clients.elements(*part, late.keys)) {
                    servers.expect_late(&late, elements);
                }
                for part in late.parts {
                    clients.fail(base, part, Some(late.server), Fault::ReplyTimeout, true);
                }
            }
            LinkEvent::Failed { payload: Payload::Single(part), server, fault, sent } => {
                clients.fail(base, part, Some(server), fault, sent);
            }
            LinkEvent::Failed { payload: Payload::Fetch(batch), server, fault, sent } => {
                let parts = batch.outstanding().map(|entry| entry.part);
                parts.for_each(|part| clients.fail(base, part, Some(server), fault, sent));
                servers.recycle(batch);
            }
            LinkEvent::Failed { payload: Payload::Internal(_), .. } => {}
            LinkEvent::Lost(lost) => self.settle_lost(lost),
            LinkEvent::CutOff(request) => clients.cut_off(base, request),
            LinkEvent::Known(at, hold_after) => {
                clients.end_awaiting(base, at, hold_after);
                servers.tend_topics(base, at);
            }
            LinkEvent::TopicsLost(gone) => self.lose_topics(gone),
            LinkEvent::Around(pool) => clients.leave_spare_links(base, pool as usize),
            LinkEvent::QueueFull(id) => clients.await_queue(base, id),
            LinkEvent::QueueRoom(id) => clients.end_queue_wait(base, id),
            LinkEvent::Replaced { client, dead, link } => clients.follow_select(client, dead, link),
            LinkEvent::Idle(id) => {
                self.end_select(id);
                self.clients.end_owed(&mut self.base, id);
            }
        }
    }

    /// Settles the messages of a dead link: each is sent once more, where that changes nothing, or
    /// fails. A request that may have been executed is never sent again.
    fn settle_lost(&mut self, lost: Lost) {
        let Lost { server, conn_key, fault, blamed, messages } = lost;
        // Decide what may be sent again before anything is settled. An update that fails here
        // counts as a change of its client, and may have been executed.
        let (mut again, mut failed) = (Vec::new(), Vec::new());
        for (payload, sent) in messages {
            match payload {
                Payload::Fetch(batch) if batch.is_idempotent() => {
                    let requests = batch.outstanding().map(|entry| entry.part.request);
                    let may = |request| self.clients.may_ask_again(request, conn_key, blamed);
                    let may: Vec<Option<u8>> = requests.map(may).collect();
                    again.push(Again::Keys(batch, may, sent));
                }
                Payload::Single(part)
                    if let Some(nth) =
                        self.clients.may_read_again(part.request, conn_key, blamed) =>
                {
                    again.push(Again::Read(part.request, nth));
                }
                payload => failed.push((payload, sent)),
            }
        }
        for (payload, sent) in failed {
            #[cfg(seeded_bugs)]
            if sent && self.resend(&payload, server) {
                continue;
            }
            self.handle_link_event(LinkEvent::Failed { payload, server, fault, sent });
        }
        // In the order in which they were sent: a client's later read sees no earlier state.
        for message in again {
            match message {
                Again::Keys(batch, may, sent) => {
                    self.ask_again(batch, (&may, sent), (server, fault));
                }
                Again::Read(request, nth) => {
                    self.clients.note_read_again(request, nth);
                    let pool = self.clients.pool_of(request);
                    let counters = self.base.pools[pool].servers[server as usize].counters;
                    counters.add(ServerCounter::AskedAgain, 1);
                    self.ask_anew(request);
                }
            }
        }
    }

    /// Sends the keys of a lost get once more that `may` be.
    fn ask_again(
        &mut self,
        batch: Box<Batch>,
        (may, sent): (&[Option<u8>], bool),
        (server, fault): (u32, Fault),
    ) {
        let Proxy { base, clients, servers, .. } = self;
        for (entry, may) in batch.outstanding().zip(may) {
            let part = entry.part;
            let asks = may.and_then(|nth| Some((clients.requester_of(part.request)?, nth)));
            match asks {
                Some((asks, nth)) if servers.ask_again(base, &asks, &batch, *entry) => {
                    clients.note_again(part.request, nth);
                    let counters = base.pools[asks.pool()].servers[server as usize].counters;
                    counters.add(ServerCounter::AskedAgain, 1);
                }
                _ => clients.fail(base, part, Some(server), fault, sent),
            }
        }
        servers.recycle(batch);
    }
}
