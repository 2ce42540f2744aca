//! Keys join the messages of their servers' links: those that may be merged the open batch of a
//! link, the others a message of their request.

use proto::{Ask, Span, Upstream};

use super::batch::Batch;
use super::link::Link;
use super::load::Load;
use super::send::close_shared;
use super::waiting::Waiting;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::buffer::Source;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Incoming, Part, RequestId, Requester};
use crate::base::size::Cost;
use crate::base::{Base, limits};

/// How the keys of a read are sent: see `Class::Fetch`.
#[derive(Clone, Copy)]
pub(crate) struct SendOptions {
    pub(crate) ask: Ask,
    pub(crate) merge: bool,
    pub(crate) idempotent: bool,
    /// One reply answers all keys of a message.
    pub(crate) single_reply: bool,
    /// The links are known to have room for all messages of the request.
    pub(crate) has_room: bool,
}

/// The same for all keys of a request, found once.
struct Form<'a> {
    options: SendOptions,
    upstream: &'a dyn Upstream,
    /// How long a message in this form may be.
    bytes_max: usize,
}

impl SendOptions {
    /// For the keys of a request that is split by its keys. The links of a change were found ready.
    pub(crate) fn split(ask: Ask, writes: bool, idempotent: bool) -> SendOptions {
        SendOptions { ask, merge: false, idempotent, single_reply: true, has_room: writes }
    }
}

impl Servers {
    /// Sends each key of a request to its server, in a message with others. `block` is the head, if
    /// parts of it may be kept by reference.
    #[inline]
    pub(crate) fn send_keys(
        &mut self,
        base: &mut Base,
        id: RequestId,
        incoming: &Incoming<'_>,
        options: &SendOptions,
        block: Option<Source<'_>>,
    ) {
        let Incoming { asks, request, head } = *incoming;
        let is_dropped = incoming.is_dropped();
        let upstream = base.pools[asks.pool()].upstream;
        let form = Form { options: *options, upstream, bytes_max: upstream.fetch_max(options.ask) };
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
                (None, Some(server)) => self.link_at(base, asks, server),
                (None, None) => Err(Fault::NoServer),
            };
            let found = if is_dropped { found.and(Err(Fault::Dropped)) } else { found };
            let pushed = found.and_then(|link| {
                let is_launched = self.push_key(base, link, incoming, (key, part), &form)?;
                Ok((link, is_launched))
            });
            match pushed {
                Ok((link, is_launched)) => {
                    last = server.filter(|_| !is_launched).map(|server| (server, link));
                    if options.single_reply {
                        self.push_rest(link, incoming, &keys, slot, block);
                    }
                }
                Err(fault) => {
                    let server = server.map(|at| at as u32);
                    self.events.push_back(LinkEvent::NotSent { part, server, fault });
                }
            }
        }
        while let Some(link) = self.touched_links.pop() {
            self.close_own(base, link, asks, !options.has_room);
        }
        base.scratch = scratch;
        if keys.capacity() <= limits::KEYS_KEEP_MAX {
            base.keys = keys;
        }
    }

    /// Adds a key to the right batch of a link, or to what waits for it. Returns whether a message
    /// left for the queue before it.
    fn push_key(
        &mut self,
        base: &mut Base,
        id: ConnId,
        incoming: &Incoming<'_>,
        (key, part): (&[u8], Part),
        form: &Form<'_>,
    ) -> Result<bool, Fault> {
        let Form { options, upstream, bytes_max } = *form;
        let SendOptions { ask, merge, idempotent, .. } = options;
        let Incoming { asks, request, head } = *incoming;
        let cost = Cost::new(key.len(), asks.expected);
        let Some(link) = self.links.find_mut(id) else { return Ok(false) };
        let load = self.loads.of(asks.id);
        if !merge {
            return self.push_unmerged(base, id, incoming, (key, part, cost), form);
        }
        if !link.takes_now(base, load, cost) {
            return self.push_waiting(base, id, incoming, (key, part, cost), &options);
        }
        let before = link.queued;
        let unfit = unfit_batch(&mut link.batch, (key.len(), ask), (upstream, bytes_max));
        if let Some(batch) = unfit {
            link.launch_batch(batch, upstream);
        }
        note_opening(link);
        let prefix = |out: &mut Vec<u8>| asks.protocol.open_fetch(request, head, out);
        let spare = &mut self.spare_batches;
        let batch = batch_of(&mut link.batch, spare, base, (ask, idempotent), prefix, upstream);
        batch.push(upstream, key, (part, asks.id), cost);
        batch.latest = base.now;
        load.batch_turn = base.turn;
        Servers::count_sent(link, Some(load), cost);
        link.out.open(&mut base.spares);
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(id);
        }
        Ok(link.queued != before)
    }

    /// Adds a key to what waits for a link.
    #[cold]
    fn push_waiting(
        &mut self,
        base: &mut Base,
        id: ConnId,
        incoming: &Incoming<'_>,
        (key, part, cost): (&[u8], Part, Cost),
        options: &SendOptions,
    ) -> Result<bool, Fault> {
        let Incoming { asks, request, head } = *incoming;
        let upstream = base.pools[asks.pool()].upstream;
        let mut one = self.spare_batches.pop().unwrap_or_else(Batch::blank);
        one.open(options.ask, options.idempotent, base.turn, base.now);
        asks.protocol.open_fetch(request, head, &mut one.text);
        one.push(upstream, key, (part, asks.id), cost);
        match self.wait_key(base, id, asks, one) {
            Ok(()) => Ok(false),
            Err((one, fault)) => {
                self.recycle(one);
                Err(fault)
            }
        }
    }

    /// Adds a key to the message that its request has on a link.
    fn push_unmerged(
        &mut self,
        base: &mut Base,
        id: ConnId,
        incoming: &Incoming<'_>,
        (key, part, cost): (&[u8], Part, Cost),
        form: &Form<'_>,
    ) -> Result<bool, Fault> {
        let Form { options, upstream, bytes_max } = *form;
        let SendOptions { ask, idempotent, single_reply, has_room, .. } = options;
        let Incoming { asks, request, head } = *incoming;
        let Some(link) = self.links.find_mut(id) else { return Ok(false) };
        let before = link.queued;
        let Load { batch_turn, shown, .. } = *self.loads.of(asks.id);
        let most = link.depth + shown;
        if link.unmerged_batch.is_none() {
            close_shared(link, (asks.id, batch_turn), upstream);
            self.touched_links.push(id);
        }
        let full = link.unmerged_batch.take_if(|batch| {
            let is_deep = batch.entries.len() >= most as usize;
            !single_reply && (is_deep || batch.is_dear(base, cost))
        });
        let place = &mut link.unmerged_batch;
        let unfit = || unfit_batch(place, (key.len(), ask), (upstream, bytes_max));
        if let Some(batch) = full.or_else(unfit) {
            self.launch_or_wait(base, id, asks, batch, !has_room);
        }
        let Some(link) = self.links.find_mut(id) else { return Ok(false) };
        let prefix = |out: &mut Vec<u8>| asks.protocol.open_fetch(request, head, out);
        let (place, spare) = (&mut link.unmerged_batch, &mut self.spare_batches);
        let batch = batch_of(place, spare, base, (ask, idempotent), prefix, upstream);
        batch.single_reply = single_reply;
        batch.push(upstream, key, (part, asks.id), cost);
        batch.latest = base.now;
        link.out.open(&mut base.spares);
        let is_launched = link.queued != before;
        self.mark_dirty(id);
        Ok(is_launched)
    }

    /// Adds a key that has waited since then, alone in a batch, to the open batch of a link. The
    /// time in which it waits for company there is a part of the time for which it may wait.
    pub(super) fn merge_key(&mut self, base: &mut Base, id: ConnId, one: Box<Batch>, since: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        let upstream = base.pools[link.at.pool as usize].upstream;
        let entry = one.entries[one.cursor];
        let key = one.key(entry);
        let room = (upstream, upstream.fetch_max(one.ask));
        if let Some(batch) = unfit_batch(&mut link.batch, (key.len(), one.ask), room) {
            link.launch_batch(batch, upstream);
        }
        note_opening(link);
        let (form, spare) = ((one.ask, one.idempotent), &mut self.spare_batches);
        let prefix = |out: &mut Vec<u8>| out.extend_from_slice(one.prefix());
        let batch = batch_of(&mut link.batch, spare, base, form, prefix, upstream);
        batch.since = batch.since.min(since);
        batch.push(upstream, key, (entry.part, entry.client), entry.cost);
        batch.latest = base.now;
        let mut load = self.loads.find(entry.client);
        if let Some(load) = &mut load {
            load.batch_turn = base.turn;
        }
        Servers::count_sent(link, load, entry.cost);
        link.out.open(&mut base.spares);
        self.mark_dirty(id);
        self.recycle(one);
    }

    /// Queues the keys of a request that leave as one message, or has them wait.
    fn launch_or_wait(
        &mut self,
        base: &mut Base,
        id: ConnId,
        asks: &Requester,
        batch: Box<Batch>,
        is_bounded: bool,
    ) {
        let Some(link) = self.links.find(id) else { return };
        // Each server has its own record.
        let at = link.at;
        let effort = self.state(at).works.effort_now(asks.effort);
        let asks = &Requester { effort, ..*asks };
        let waiting = Waiting { effort, ..Waiting::batch(batch, base.now) };
        if self.goes_straight(base, id, asks, waiting.cost) {
            return self.send_waiting(base, id, asks.id, waiting);
        }
        if let Err((waiting, fault)) = self.wait(base, id, asks, waiting, is_bounded) {
            let server = self.server_of(id).unwrap_or(0);
            let payload = waiting.payload;
            self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: false });
        }
    }

    /// Adds the bytes that belong to a key beyond the key itself, such as its value.
    fn push_rest(
        &mut self,
        link: ConnId,
        incoming: &Incoming<'_>,
        keys: &[Span],
        nth: usize,
        block: Option<Source<'_>>,
    ) {
        let link = self.links.find_mut(link);
        let Some(batch) = link.and_then(|link| link.unmerged_batch.as_mut()) else { return };
        let nth = if bug!(ShiftRests) { (nth + 1) % keys.len() } else { nth };
        let Incoming { asks, request, head } = *incoming;
        let rest = block.and_then(|block| {
            let span = asks.protocol.rest(request, head, keys, nth)?;
            block.part(span.start as usize, span.end as usize).slice()
        });
        if let Some(rest) = rest {
            return batch.rests.push((batch.text.len(), rest));
        }
        asks.protocol.push_rest(request, head, keys, nth, &mut batch.text);
    }

    fn close_own(&mut self, base: &mut Base, id: ConnId, asks: &Requester, is_bounded: bool) {
        let batch = self.links.find_mut(id).and_then(|link| link.unmerged_batch.take());
        if let Some(batch) = batch {
            self.launch_or_wait(base, id, asks, batch, is_bounded);
        }
    }
}

/// Notes that a key joins the open batch of a link, which begins with it if there is none.
#[inline]
fn note_opening(link: &mut Link) {
    if link.batch.is_none() {
        link.overtaken = 0;
    }
}

/// Takes the batch at a place, if a key of this length, asked in this form, cannot join it.
#[inline]
fn unfit_batch(
    place: &mut Option<Box<Batch>>,
    (key_len, ask): (usize, Ask),
    (upstream, bytes_max): (&dyn Upstream, usize),
) -> Option<Box<Batch>> {
    place.take_if(|batch| {
        let differs = batch.ask != ask && upstream.widen(batch.ask, ask).is_none();
        differs || !batch.has_room(key_len, bytes_max)
    })
}

/// Returns the batch at a place, opened or changed so that keys can be asked in this form.
#[inline]
#[allow(clippy::vec_box)]
fn batch_of<'a>(
    place: &'a mut Option<Box<Batch>>,
    spare: &mut Vec<Box<Batch>>,
    base: &mut Base,
    (ask, idempotent): (Ask, bool),
    prefix: impl Fn(&mut Vec<u8>),
    upstream: &dyn Upstream,
) -> &'a mut Batch {
    let batch = place.get_or_insert_with(|| {
        let mut batch = spare.pop().unwrap_or_else(Batch::blank);
        batch.open(ask, idempotent, base.turn, base.now);
        prefix(&mut batch.text);
        batch
    });
    if batch.ask != ask && upstream.widen(batch.ask, ask) == Some(ask) {
        let mut words = base.spares.take();
        prefix(&mut words);
        batch.widen(ask, &words);
        base.spares.give(words);
    }
    batch
}
