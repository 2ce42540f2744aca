//! A link that its server has closed while it owed nothing there. Nobody has seen the requests that
//! wait to be sent, so they move to a new connection, in their order.
//!
//! Servers close connections that were idle, and requests that are read in the same turn as the end
//! of such a connection have been queued for it. A link that never worked is not renewed: a server
//! that accepts connections and closes them would be asked for ever.

use std::collections::VecDeque;
use std::mem::take;

use super::batch::Batch;
use super::costs::Costs;
use super::link::Link;
use super::message::Message;
use super::open::is_out;
use super::queue::FairQueue;
use super::{LinkEvent, Servers};
use crate::base::Base;
use crate::base::buffer::Outbox;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;

impl Servers {
    /// Opens a link that takes the place of a dead one, with all that waits on that, if nothing
    /// speaks against it. Returns whether it did; the dead one has nothing left then.
    pub(super) fn renew(&mut self, base: &mut Base, dead: ConnId) -> bool {
        let Some(link) = self.links.find_mut(dead) else { return false };
        // Nothing is owed for it.
        link.drop_refused();
        let link = &*link;
        let (at, conn_key, class) = (link.at, link.conn_key, link.class);
        let state = &self.states[at.pool as usize][at.server as usize];
        let may_connect = state.unable_until <= base.now
            && !state.refuses(base.pool(at).conn_keys.of(conn_key), base.now)
            && base.server(at).is_in_service()
            && !is_out(base.server(at));
        if !may_connect || !link.may_be_renewed(base) || state.probe == Some(dead) {
            return false;
        }
        let id = self.begin_connect(base, at, conn_key, class);
        for place in self.state(at).links.iter_mut().flatten() {
            if *place == Some(dead) {
                *place = Some(id);
            }
        }
        self.drop_unblocks(base, dead);
        self.replace_stand_in(at, dead, id);
        self.replace_private(dead, id);
        let Some(unsent) = self.links.find_mut(dead).map(Unsent::take) else { return false };
        let Some(link) = self.links.find_mut(id) else { return false };
        unsent.queue_on(link);
        link.account(&mut base.memory);
        if !link.queue.is_empty() {
            link.has_backlog = true;
            self.backlogs.push(id);
        }
        self.mark_dirty(id);
        self.arm(base, id);
        true
    }
}

impl Servers {
    /// Moves what waits on a link that could not be made to the one that stands in for it. The
    /// clients of the one have nothing on the other, so no request changes places.
    pub(super) fn move_unsent(
        &mut self,
        base: &mut Base,
        (dead_id, dead): (ConnId, &mut Link),
        id: ConnId,
    ) {
        let upstream = base.pool(dead.at).upstream;
        if dead.is_waiting() || dead.class == LinkClass::Subscribed {
            return;
        }
        self.stand_in_as_well(dead.at, dead_id, id);
        if let Some(batch) = dead.batch.take() {
            dead.launch_batch(batch, upstream);
        }
        let full: Vec<ConnId> = dead.queue.full_clients().collect();
        self.events.extend(full.into_iter().map(LinkEvent::QueueRoom));
        let queue = take(&mut dead.queue).into_queues();
        let unsent = Unsent::take(dead);
        let Some(link) = self.links.find_mut(id) else { return };
        unsent.append_to(link);
        for (client, of, waiting) in queue {
            let Some(link) = self.links.find_mut(id) else { return };
            link.queue.push(client, of, waiting);
            self.note_waiting(base, id, client);
        }
        let Some(link) = self.links.find_mut(id) else { return };
        link.account(&mut base.memory);
        self.note_up(base, id);
        self.mark_dirty(id);
        self.arm(base, id);
    }
}

impl Link {
    /// Whether something waits on it of which its server has seen nothing, and which means the same
    /// on another connection.
    fn may_be_renewed(&self, base: &Base) -> bool {
        let has_unsent = !self.is_idle() && !self.is_waiting();
        let is_kept = self.own.kept_until.is_some();
        // A block would be executed whatever has become of what was watched.
        let is_guarded = self.own.guarded_until > self.sent;
        let has_state = self.own.watched || is_guarded || self.class == LinkClass::Subscribed;
        has_unsent && !has_state && !is_kept && !self.retiring && self.has_worked(base.now)
    }
}

/// All that waits on a link that owes nothing.
struct Unsent {
    out: Outbox,
    outstanding: VecDeque<Message>,
    batch: Option<Box<Batch>>,
    overtaken: u64,
    internal: Vec<u64>,
    queue: FairQueue,
    inflight: Costs,
    fetch_bytes: usize,
    queued: u64,
}

impl Unsent {
    /// Takes it off a link. Its offsets begin at 0.
    fn take(link: &mut Link) -> Unsent {
        assert!(link.done == link.sent, "nothing of it has been sent");
        let start = link.sent;
        let mut outstanding = take(&mut link.outstanding);
        outstanding.iter_mut().for_each(|message| message.end -= start);
        Unsent {
            out: take(&mut link.out),
            outstanding,
            batch: link.batch.take(),
            overtaken: link.overtaken,
            internal: take(&mut link.internal),
            queue: take(&mut link.queue),
            inflight: take(&mut link.inflight),
            fetch_bytes: take(&mut link.fetch_bytes),
            queued: link.queued - start,
        }
    }

    /// Queues all but the batch and the fair queue behind what a link has.
    fn append_to(mut self, link: &mut Link) {
        link.out.append(&mut self.out);
        let before = link.queued;
        self.outstanding.iter_mut().for_each(|message| message.end += before);
        link.outstanding.extend(self.outstanding);
        link.internal.extend(self.internal);
        link.inflight.add_all(self.inflight);
        link.fetch_bytes += self.fetch_bytes;
        link.queued += self.queued;
        // Any of them may not be quick.
        link.work_end = link.queued;
    }

    /// Queues it on a link that has nothing yet.
    fn queue_on(self, link: &mut Link) {
        link.out = self.out;
        link.outstanding = self.outstanding;
        link.batch = self.batch;
        link.overtaken = self.overtaken;
        link.internal = self.internal;
        link.queue = self.queue;
        link.inflight = self.inflight;
        link.fetch_bytes = self.fetch_bytes;
        link.queued = self.queued;
        // Any of them may not be quick.
        link.work_end = link.queued;
    }
}
