//! Requests join the queues of their servers' links.
//!
//! One client's requests never change places on a link. Requests of different clients may. Gets
//! wait in the link's open batch until the end of the turn; any other request goes ahead of them,
//! unless its own client has a get in the batch.

use metrics::ServerCounter;
use proto::{Ask, Class, Reach, Upstream};

use super::batch::Batch;
use super::link::Link;
use super::message::{Internal, MessageForm, Payload};
use super::waiting::Waiting;
use super::{LinkEvent, Servers};
use crate::base::buffer::Outbox;
use crate::base::id::ConnId;
#[cfg(seeded_bugs)]
use crate::base::part::Requester;
use crate::base::part::{Data, Effort, Incoming, LinkClass, Part};
use crate::base::size::Cost;
#[cfg(seeded_bugs)]
use crate::base::size::Expected;
use crate::base::{Base, limits};

impl Servers {
    /// Queues a message that has waited, or might have.
    pub(super) fn send_waiting(
        &mut self,
        base: &mut Base,
        id: ConnId,
        client: ConnId,
        waiting: Waiting,
    ) {
        let Some(link) = self.links.find_mut(id) else { return };
        let upstream = base.pools[link.at.pool as usize].upstream;
        let mut load = self.loads.find(client);
        // A client that has gone may have a get in the batch as well.
        let batch_turn = load.as_ref().map_or(u64::MAX, |load| load.batch_turn);
        close_shared(link, (client, batch_turn), upstream);
        let Waiting { payload, ask, is_update, mut out, cost, effort, since, held, steps, .. } =
            waiting;
        link.out.open(&mut base.spares);
        match payload {
            Payload::Fetch(batch) => {
                for entry in &batch.entries {
                    Servers::count_sent(link, load.as_deref_mut(), entry.cost);
                }
                link.launch_part(batch, effort, upstream);
            }
            payload => {
                Servers::count_sent(link, load, cost);
                let before = link.out.len();
                link.out.append(&mut out);
                out.close(&mut base.spares);
                let form = MessageForm { payload, ask, is_update };
                link.launch(form, (client, cost, effort), before, since);
                if steps > 0 {
                    link.expect_steps(steps);
                }
                link.counters.add(ServerCounter::Messages, 1);
            }
        }
        if since < base.now {
            link.note_waited(held, base.now);
        }
        let at = link.at;
        self.note_left(at, effort, base.now);
        self.mark_dirty(id);
    }

    /// Sends a part of a request that has one item in answer, ahead of the open batch, or has it
    /// wait.
    #[inline]
    pub(crate) fn send(
        &mut self,
        base: &mut Base,
        part: Part,
        incoming: &Incoming<'_>,
        (server, ask): (usize, Ask),
        data: Data<'_>,
    ) {
        let Incoming { asks, request, .. } = *incoming;
        let id = match self.link_at(base, asks, server) {
            Ok(id) => id,
            Err(fault) => {
                let server = Some(server as u32);
                return self.events.push_back(LinkEvent::NotSent { part, server, fault });
            }
        };
        let has_time = self.has_time(base, id, asks.effort);
        let Some(link) = self.links.find_mut(id) else { return };
        let load = self.loads.of(asks.id);
        let expected = match request.class {
            // Nobody else waits behind those on a private link.
            Class::Broadcast { reach: Reach::Survey | Reach::Sole, writes: false, .. }
                if link.class != LinkClass::Private =>
            {
                asks.expected.of_statistics()
            }
            _ => asks.expected,
        };
        let cost = Cost::new(request.len() as usize, expected);
        let cost = if cost.is_unproven() { cost.of_values(base.keys.len()) } else { cost };
        if !has_time || !link.goes_straight(base, asks, load, cost) {
            return self.wait_single(base, id, incoming, (part, ask), cost, data);
        }
        if link.batch.is_some() {
            let upstream = base.pools[link.at.pool as usize].upstream;
            close_shared(link, (asks.id, load.batch_turn), upstream);
        }
        Servers::count_sent(link, Some(load), cost);
        let before = link.out.len();
        link.out.open(&mut base.spares);
        let is_up = link.is_up();
        write_request(&mut link.out, base, incoming, ask, data, is_up);
        let form = form_of(part, incoming, ask);
        link.launch(form, (asks.id, cost, asks.effort), before, base.now);
        link.counters.add(ServerCounter::Messages, 1);
        let at = link.at;
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(id);
        }
        self.note_left(at, asks.effort, base.now);
    }

    /// Has a request wait that has one item in answer.
    #[cold]
    fn wait_single(
        &mut self,
        base: &mut Base,
        link: ConnId,
        incoming: &Incoming<'_>,
        (part, ask): (Part, Ask),
        cost: Cost,
        data: Data<'_>,
    ) {
        let mut out = Outbox::default();
        out.open(&mut base.spares);
        write_request(&mut out, base, incoming, ask, data, false);
        let effort = incoming.asks.effort;
        let form = form_of(part, incoming, ask);
        let waiting = Waiting::message(form, out, (cost, effort), base.now);
        if let Err((waiting, fault)) = self.wait(base, link, incoming.asks, waiting, true) {
            let Waiting { mut out, payload, .. } = waiting;
            out.clear();
            out.close(&mut base.spares);
            let server = self.server_of(link).unwrap_or(0);
            self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: false });
        }
    }

    /// Whether a server was sent this internal command on this link, and has not answered yet.
    pub(crate) fn is_on_its_way(&self, id: ConnId, command: Internal) -> bool {
        self.links.find(id).is_some_and(|link| link.internal.contains(&command))
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
        if let Payload::Internal(command) = &payload {
            link.internal.push(**command);
        }
        self.launch_internal(base, id, payload, ask, words);
        true
    }

    /// As `send_internal`, whether there is room or not.
    pub(super) fn launch_internal(
        &mut self,
        base: &mut Base,
        id: ConnId,
        payload: Payload,
        ask: Ask,
        words: &[u8],
    ) {
        let Some(link) = self.links.find_mut(id) else { return };
        let before = link.out.len();
        link.out.open(&mut base.spares);
        link.out.copy(words);
        let nobody = (ConnId::NONE, Cost::default(), Effort::Quick);
        link.launch(MessageForm { payload, ask, is_update: false }, nobody, before, base.now);
        link.account(&mut base.memory);
        self.mark_dirty(id);
        self.arm(base, id);
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
        let Ok(link) = self.link_at(base, asks, server) else { return false };
        let mut out = Outbox::default();
        out.copy(text);
        let cost = Cost::new(text.len(), Expected::default());
        let form = MessageForm { payload: Payload::Single(part), ask, is_update: true };
        let waiting = Waiting::message(form, out, (cost, asks.effort), base.now);
        self.send_waiting(base, link, asks.id, waiting);
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
                    link.launch_batch(batch, pool.upstream);
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

    /// Keeps a batch whose reply is complete for reuse.
    pub(crate) fn recycle(&mut self, batch: Box<Batch>) {
        // A batch that held values may be large.
        let is_small = batch.text.capacity() <= 2 * limits::BATCH_BYTES_MAX;
        // One that was never sent may still refer to a block.
        let is_small = is_small && batch.rests.is_empty();
        if is_small && self.spare_batches.len() < limits::BATCHES_MAX {
            self.spare_batches.push(batch);
        }
    }
}

/// Returns the form of a part of a request that has one item in answer.
#[inline]
fn form_of(part: Part, incoming: &Incoming<'_>, ask: Ask) -> MessageForm {
    let is_update = incoming.request.class.is_update();
    MessageForm { payload: Payload::Single(part), ask, is_update }
}

/// Writes a request in the form in which its server is asked. `is_soon` says that it leaves at the
/// end of this turn; otherwise its data has to wait.
#[inline(always)]
fn write_request(
    out: &mut Outbox,
    base: &mut Base,
    incoming: &Incoming<'_>,
    ask: Ask,
    data: Data<'_>,
    is_soon: bool,
) {
    let Incoming { asks, request, head } = *incoming;
    if let Data::Head(head) = data {
        return out.keep(head);
    }
    asks.protocol.write_head(request, head, &base.keys, ask, out.copied());
    match data {
        Data::OnePiece(source) if is_soon => out.push(source),
        Data::OnePiece(source) => out.keep(source),
        Data::Assembled(mut held) => {
            out.append(&mut held);
            held.close(&mut base.spares);
        }
        Data::Head(_) => unreachable!("it is all that is sent"),
    }
    asks.protocol.write_tail(request, ask, out.copied());
}

/// Queues the open batch of a link if it has a get of this client, which no other request of the
/// client may overtake. `batch_turn` is the turn in which the client last added one.
#[inline]
pub(super) fn close_shared(
    link: &mut Link,
    (client, batch_turn): (ConnId, u64),
    upstream: &dyn Upstream,
) {
    let is_its = |batch: &mut Box<Batch>| {
        batch.is_shared_by(client, batch_turn) && !bug!(MergeAcrossOwnWrite)
    };
    if let Some(batch) = link.batch.take_if(is_its) {
        link.launch_batch(batch, upstream);
    }
}
