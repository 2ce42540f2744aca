//! Requests join the queues of their servers' links.
//!
//! One client's requests never change places on a link. Requests of different clients may. Gets
//! wait in the link's open batch until the end of the turn; any other request goes ahead of them,
//! unless its own client has a get in the batch.

use metrics::{Counters, ServerCounter};
use proto::{Ask, Span, Upstream};

use super::batch::Batch;
use super::link::{Link, Payload};
use super::{LinkEvent, Servers};
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Data, Incoming, Part, RequestId, Requester};
use crate::base::{Base, limits};

/// How the keys of a read are sent: see `Class::Fetch`.
#[derive(Clone, Copy)]
pub(crate) struct SendOptions {
    pub(crate) ask: Ask,
    pub(crate) merge: bool,
    pub(crate) idempotent: bool,
    /// One reply answers all keys of a message.
    pub(crate) single_reply: bool,
    /// Each link is known to have room for all keys that it gets.
    pub(crate) has_room: bool,
}

impl SendOptions {
    /// For the keys of a request that is split by its keys. The links of a change were found ready.
    pub(crate) fn split(ask: Ask, writes: bool, idempotent: bool) -> SendOptions {
        SendOptions { ask, merge: false, idempotent, single_reply: true, has_room: writes }
    }
}

impl Servers {
    /// Sends each key of a request to its server, in a message with others.
    #[inline]
    pub(crate) fn send_keys(
        &mut self,
        base: &mut Base,
        id: RequestId,
        incoming: &Incoming<'_>,
        options: &SendOptions,
    ) {
        let Incoming { asks, request, head } = *incoming;
        let is_dropped = incoming.is_dropped();
        let keys = std::mem::take(&mut base.keys);
        let mut scratch = std::mem::take(&mut base.scratch);
        // The link of the key before, as long as nothing has changed on it.
        let mut last = None;
        for (slot, span) in keys.iter().enumerate() {
            if bug!(DropFragment) && slot > 1 && slot + 1 == keys.len() {
                continue;
            }
            let part = Part { request: id, slot: slot as u32 };
            let key = asks.protocol.key(request, head, *span, &mut scratch);
            let random = &mut base.random;
            let server = base.pools[asks.pool()].route(key, || random.next());
            let same: Option<ConnId> =
                last.filter(|(one, _)| Some(*one) == server).map(|(_, link)| link);
            let found = match (same, server) {
                (Some(link), _) => Ok(link),
                // Then only this request itself can fill the queue.
                (None, Some(server)) if options.has_room => self.link_at(base, asks, server),
                (None, Some(server)) => self.link_for(base, asks, server),
                (None, None) => Err(Fault::NoServer),
            };
            let found = if is_dropped { found.and(Err(Fault::Dropped)) } else { found };
            match found {
                Ok(link) => {
                    let is_launched = self.push_key(base, link, incoming, (key, part), options);
                    last = server.filter(|_| !is_launched).map(|server| (server, link));
                    if options.single_reply {
                        self.push_rest(link, incoming, &keys, slot);
                    }
                }
                Err(fault) => {
                    let server = server.map(|at| at as u32);
                    self.events.push_back(LinkEvent::NotSent { part, server, fault });
                }
            }
        }
        while let Some(link) = self.touched_links.pop() {
            self.close_own(base, link);
        }
        base.scratch = scratch;
        if keys.capacity() <= limits::KEYS_KEEP_MAX {
            base.keys = keys;
        }
    }

    /// Adds a key to the right batch of a link. Returns whether a message left for the queue before
    /// it.
    fn push_key(
        &mut self,
        base: &mut Base,
        id: ConnId,
        incoming: &Incoming<'_>,
        (key, part): (&[u8], Part),
        options: &SendOptions,
    ) -> bool {
        let SendOptions { ask, merge, idempotent, single_reply, .. } = *options;
        let Incoming { asks, request, head } = *incoming;
        let client = asks.id.index() as u32;
        let spare = &mut self.spare_batches;
        let Some(link) = self.links.find_mut(id) else { return false };
        let before = link.queued;
        let counters = self.states[link.at.pool as usize][link.at.server as usize].counters;
        let upstream = base.pools[link.at.pool as usize].upstream;
        let is_first_unmerged = !merge && link.unmerged_batch.is_none();
        if is_first_unmerged {
            close_shared(link, asks, upstream, counters);
            self.touched_links.push(id);
        }
        let bytes_max = upstream.fetch_max(ask);
        let place = if merge { &mut link.batch } else { &mut link.unmerged_batch };
        let widened = |batch: &Batch| upstream.widen(batch.ask, ask);
        if let Some(batch) = place.take_if(|batch| {
            !batch.has_room(key.len(), bytes_max) || batch.ask != ask && widened(batch).is_none()
        }) {
            link.launch_batch(batch, upstream, counters);
        }
        let place = if merge { &mut link.batch } else { &mut link.unmerged_batch };
        let batch = place.get_or_insert_with(|| {
            let mut batch = spare.pop().unwrap_or_else(Batch::blank);
            batch.open(ask, idempotent, base.turn, base.now);
            batch.single_reply = single_reply;
            asks.protocol.open_fetch(request, head, &mut batch.text);
            batch
        });
        if batch.ask != ask && widened(batch) == Some(ask) {
            let mut prefix = base.spares.take();
            asks.protocol.open_fetch(request, head, &mut prefix);
            batch.widen(ask, &prefix);
            base.spares.give(prefix);
        }
        batch.push(upstream, key, part, client);
        batch.latest = base.now;
        link.out.open(&mut base.spares);
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(id);
        }
        link.queued != before
    }

    /// Adds the bytes that belong to a key beyond the key itself, such as its value.
    fn push_rest(&mut self, link: ConnId, incoming: &Incoming<'_>, keys: &[Span], nth: usize) {
        let link = self.links.find_mut(link);
        let Some(batch) = link.and_then(|link| link.unmerged_batch.as_mut()) else { return };
        let nth = if bug!(ShiftRests) { (nth + 1) % keys.len() } else { nth };
        let Incoming { asks, request, head } = *incoming;
        asks.protocol.push_rest(request, head, keys, nth, &mut batch.text);
    }

    /// Sends a part of a request that has one item in answer, ahead of the open batch.
    pub(crate) fn send(
        &mut self,
        base: &mut Base,
        part: Part,
        incoming: &Incoming<'_>,
        (server, ask): (usize, Ask),
        data: Data<'_>,
    ) {
        let Incoming { asks, request, head } = *incoming;
        let link = match self.link_for(base, asks, server) {
            Ok(link) => link,
            Err(fault) => {
                let server = Some(server as u32);
                return self.events.push_back(LinkEvent::NotSent { part, server, fault });
            }
        };
        let protocol = asks.protocol;
        self.queue(base, link, asks, Payload::Single(part), ask, |link, base| {
            if let Data::Head(head) = data {
                return link.out.keep(head);
            }
            protocol.write_head(request, head, &base.keys, ask, link.out.copied());
            match data {
                // A link that is up is written at the end of this turn. On others the data has to
                // wait.
                Data::OnePiece(source) if link.is_up() => link.out.push(source),
                Data::OnePiece(source) => link.out.keep(source),
                Data::Assembled(mut held) => {
                    link.out.append(&mut held);
                    held.close(&mut base.spares);
                }
                Data::Head(_) => unreachable!("it is all that is sent"),
            }
            protocol.write_tail(request, ask, link.out.copied());
        });
    }

    /// Queues a message of one request, whose bytes `write` appends.
    #[inline(always)]
    fn queue(
        &mut self,
        base: &mut Base,
        id: ConnId,
        asks: &Requester,
        payload: Payload,
        ask: Ask,
        write: impl FnOnce(&mut Link, &mut Base),
    ) {
        let Some(link) = self.links.find_mut(id) else { return };
        let counters = self.states[link.at.pool as usize][link.at.server as usize].counters;
        close_shared(link, asks, base.pools[link.at.pool as usize].upstream, counters);
        let before = link.out.len();
        link.out.open(&mut base.spares);
        write(link, base);
        link.launch(payload, ask, before, base.now);
        counters.add(ServerCounter::Messages, 1);
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Whether a server was sent the internal command with this number on this link, and has not
    /// answered yet.
    pub(crate) fn is_on_its_way(&self, id: ConnId, number: u64) -> bool {
        self.links.find(id).is_some_and(|link| link.internal.contains(&number))
    }

    /// Sends a server an internal command, if its queue has room. Requests behind the command on
    /// this link find it done.
    pub(crate) fn send_internal(
        &mut self,
        base: &mut Base,
        id: ConnId,
        payload: Payload,
        ask: Ask,
        words: &[u8],
    ) -> bool {
        let Some(link) = self.links.find_mut(id) else { return false };
        if !link.has_room(&base.limits) || !base.memory.has_room(words.len()) {
            return false;
        }
        let before = link.out.len();
        link.out.open(&mut base.spares);
        link.out.copy(words);
        if let Payload::Internal(number) = payload {
            link.internal.push(number);
        }
        link.launch(payload, ask, before, base.now);
        link.account(&mut base.memory);
        self.mark_dirty(id);
        self.arm(base, id);
        true
    }

    /// `ResendUpdate`: sends bytes for a part again.
    #[cfg(seeded_bugs)]
    pub(crate) fn resend(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        part: Part,
        server: usize,
        ask: Ask,
        text: &[u8],
    ) -> bool {
        let Ok(link) = self.link_for(base, asks, server) else { return false };
        self.queue(base, link, asks, Payload::Single(part), ask, |link, _| link.out.copy(text));
        true
    }

    /// Returns the connection key of a link.
    pub(crate) fn conn_key(&self, id: ConnId) -> Option<u16> {
        self.links.find(id).map(|link| link.conn_key)
    }

    /// Ends a turn: the open batches leave.
    pub(crate) fn close_batches(&mut self, base: &mut Base) {
        for at in 0..self.dirty.len() {
            let id = self.dirty[at];
            if let Some(link) = self.links.find_mut(id) {
                let pool = &base.pools[link.at.pool as usize];
                let state = &self.states[link.at.pool as usize][link.at.server as usize];
                if link.batch_may_leave()
                    && let Some(batch) = link.batch.take()
                {
                    link.out.open(&mut base.spares);
                    link.launch_batch(batch, pool.upstream, state.counters);
                }
                Servers::note_held(link, state);
                link.account(&mut base.memory);
                // Messages that could not be sent yet have a deadline as well, counted from when
                // they were queued. Most often a timer is already set before it.
                let queue_end = base.turn_since.after(pool.plan.timeouts.queue);
                if link.armed.is_none_or(|armed| armed > queue_end) {
                    self.arm(base, id);
                }
            }
        }
    }

    fn close_own(&mut self, base: &Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        if let Some(batch) = link.unmerged_batch.take() {
            let counters = self.states[link.at.pool as usize][link.at.server as usize].counters;
            link.launch_batch(batch, base.pool(link.at).upstream, counters);
        }
    }

    /// Keeps a batch whose reply is complete for reuse.
    pub(crate) fn recycle(&mut self, batch: Box<Batch>) {
        // A batch that held values may be large.
        let is_small = batch.text.capacity() <= 2 * limits::BATCH_BYTES_MAX;
        if is_small && self.spare_batches.len() < limits::BATCHES_MAX {
            self.spare_batches.push(batch);
        }
    }
}

/// Queues the open batch of a link if it has a get of this client, which no other request of the
/// client may overtake.
fn close_shared(
    link: &mut Link,
    asks: &Requester,
    upstream: &dyn Upstream,
    counters: Counters<ServerCounter>,
) {
    let client = asks.id.index() as u32;
    let is_its = |batch: &mut Box<Batch>| {
        batch.is_shared_by(client, asks.batch_turn) && !bug!(MergeAcrossOwnWrite)
    };
    if let Some(batch) = link.batch.take_if(is_its) {
        link.launch_batch(batch, upstream, counters);
    }
}
