//! Values that arrive in several reads. Each is kept until it is whole, or streamed to its client
//! if the client waits for nothing else.

use metrics::PoolCounter;
use proto::{Ask, Item, Shown};

use super::Clients;
use super::session::{Client, State as ClientState};
use crate::base::buffer::{Outbox, Source};
use crate::base::fault::Fault;
use crate::base::part::{Arrival, NONE, Part, RequestId};
use crate::base::{Base, limits};

/// Notes the length of an answer that nobody gets, as far as it has come. Otherwise clients that
/// leave soon enough could have large ones fetched for ever that are thought to be small.
fn note_unheard(base: &mut Base, arrival: &Arrival) {
    if let Some((pool, command)) = arrival.command {
        base.pools[pool as usize].sizes.note_unheard(command, arrival.len, base.now);
    }
}

/// Counts a piece of this length. A large answer is noted while it comes, with each time that it
/// has doubled: its client may leave before the end.
fn grow(base: &mut Base, arrival: &mut Arrival, len: usize) {
    let before = arrival.len;
    arrival.len += len;
    let has_doubled = arrival.len.checked_ilog2() != before.checked_ilog2();
    if has_doubled && arrival.len >= limits::LARGE_MIN as usize {
        note_unheard(base, arrival);
    }
}

impl Clients {
    /// Takes the head of a value whose body is still to come: to the client at once, if it keeps up
    /// and awaits nothing else, and otherwise into what is kept of it. `is_key` says that it is
    /// one of several that the message asks for; others are settled at the end of the reply.
    pub(crate) fn begin_value(
        &mut self,
        base: &mut Base,
        (part, server, is_key): (Part, u32, bool),
        (item, asked): (&Item, Ask),
        head: Source<'_>,
    ) -> Arrival {
        let (data, shown) = (Outbox::default(), Shown::Nothing);
        let len = item.len() as usize;
        let (is_known, streams) = (part.request != NONE, false);
        let command = is_known.then(|| {
            let pending = &self.requests[part.request];
            (pending.pool, pending.info.command)
        });
        let mut arrival = Arrival { part: Some(part), command, len, streams, data, shown };
        let is_there = is_known && self.table.find(self.requests[part.request].client).is_some();
        if !is_there || !base.memory.has_room(len) {
            arrival.part = None;
            note_unheard(base, &arrival);
            match is_there {
                true if is_key => self.fail(base, part, Some(server), Fault::OutOfMemory, false),
                false if is_key => self.settle_part(base, part.request),
                _ => {}
            }
            return arrival;
        }
        let pending = &self.requests[part.request];
        let owner = pending.client;
        arrival.data.open(&mut base.spares);
        arrival.shown = match pending.info.is_rendered(asked) {
            true => pending.info.render(part.slot, item, head.bytes, arrival.data.copied()),
            false => {
                arrival.data.keep(head);
                Shown::Body { trailer: item.trailer }
            }
        };
        let len = usize::try_from(item.body).unwrap_or(usize::MAX);
        if matches!(arrival.shown, Shown::Body { .. }) && self.may_stream(base, part, len) {
            if let Some(client) = self.table.find_mut(owner) {
                let command = self.requests[part.request].info.command;
                let sizes = &mut base.pools[client.pool as usize].sizes;
                client.sizes.note(command, item.len() as usize, sizes, base.now);
            }
            self.begin_stream(base, part.request, &mut arrival);
        }
        arrival
    }

    /// Takes the head of the next piece, of this length, of a reply that comes in several.
    pub(crate) fn continue_value(
        &mut self,
        base: &mut Base,
        arrival: &mut Arrival,
        len: usize,
        head: Source<'_>,
    ) {
        grow(base, arrival, len);
        let Some(part) = arrival.part else { return };
        let is_there = self.table.find(self.requests[part.request].client).is_some();
        if !is_there || !base.memory.has_room(len) {
            if arrival.streams && is_there {
                self.cut_off(base, part.request);
            }
            note_unheard(base, arrival);
            arrival.part = None;
            arrival.data.clear();
        } else if !arrival.streams && self.may_stream(base, part, arrival.data.len() + len) {
            self.begin_stream(base, part.request, arrival);
        }
        self.add_to_value(base, arrival, head);
    }

    /// Streams bytes of a value that is arriving to its client, or keeps them.
    pub(crate) fn add_to_value(
        &mut self,
        base: &mut Base,
        arrival: &mut Arrival,
        piece: Source<'_>,
    ) {
        let Some(part) = arrival.part else { return };
        if !arrival.streams {
            arrival.data.open(&mut base.spares);
            return arrival.data.keep(piece);
        }
        let owner = self.requests[part.request].client;
        if let Some(client) = self.table.find_mut(owner) {
            client.out.open(&mut base.spares);
            client.out.push(piece);
            self.update_client(base, owner);
        }
    }

    /// Whether the client is to get this many bytes as a stream: it keeps up and awaits nothing
    /// else.
    fn may_stream(&self, base: &Base, part: Part, len: usize) -> bool {
        let pending = &self.requests[part.request];
        let is_next =
            |client: &&Client| client.pipeline.head == part.request && pending.parts_left == 1;
        let client = self.table.find(pending.client).filter(is_next);
        len >= base.limits.stream_min
            && pending.slots.is_empty()
            && client.is_some_and(|client| client.out.len() < limits::BACKLOG_MIN)
    }

    /// Starts to stream the answer to the client of a request, with the part that is there.
    fn begin_stream(&mut self, base: &mut Base, id: RequestId, arrival: &mut Arrival) {
        arrival.streams = true;
        let owner = self.requests[id].client;
        let Some(client) = self.table.find_mut(owner) else { return };
        client.is_mid_answer = true;
        client.out.open(&mut base.spares);
        client.out.append(&mut arrival.data);
        arrival.data.close(&mut base.spares);
        self.update_client(base, owner);
    }

    /// Notes that a streamed value has come to its end.
    pub(crate) fn end_stream(&mut self, part: Part) {
        let owner = self.requests[part.request].client;
        if let Some(client) = self.table.find_mut(owner) {
            client.is_mid_answer = false;
        }
    }

    /// Gives up a streamed value whose rest will not come. The client would take any further byte
    /// for a part of the value. So it gets what it was owed before, and is closed.
    pub(crate) fn cut_off(&mut self, base: &mut Base, id: RequestId) {
        let owner = self.requests[id].client;
        let Some(client) = self.table.find_mut(owner) else { return };
        client.state = ClientState::Leaving;
        client.forget_input(base);
        let counters = base.pools[client.pool as usize].counters;
        counters.add(PoolCounter::CutOff, 1);
        counters.add(PoolCounter::Cancelled, u64::from(client.pipeline.depth));
        let (head, barrier) =
            (client.pipeline.head, std::mem::replace(&mut client.pipeline.barrier, NONE));
        (client.pipeline.head, client.pipeline.tail) = (NONE, NONE);
        (client.pipeline.depth, client.pipeline.loud_count) = (0, 0);
        let expected = std::mem::take(&mut client.pipeline.expected);
        if let Some(tenant) = base.tenants.find_mut(client.tenant).filter(|one| one.expects) {
            tenant.expected -= expected as u64;
        }
        // Silent requests stand in no pipeline: they still belong to the client. What it is owed
        // for the others matters no more: it is not read again.
        self.gone.push(owner);
        self.forget_requests(base, head, barrier);
        self.update_client(base, owner);
    }
}
