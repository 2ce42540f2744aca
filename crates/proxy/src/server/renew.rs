//! A link that its server has closed, or on which a reply has not come in time. Nobody has seen the
//! requests that wait to be sent, so they move to a new connection, in their order; to the one that
//! is to show whether the server works, if that is on its way.
//!
//! ```text
//!   sent       set a (one)                   fails: its outcome is not known
//!   unsent     get a (one)                   fails as well, or is asked again behind that
//!              set b (other)  get c (third)  move
//! ```
//!
//! Servers close connections that were idle, and requests that are read in the same turn as the end
//! of such a connection have been queued for it. A link that never worked is renewed once: a server
//! that accepts connections and closes them would be asked for ever.

use std::collections::{BTreeSet, VecDeque};
use std::mem::{replace, take};

use proto::Upstream;

use super::batch::{Batch, Entry};
use super::costs::Costs;
use super::link::Link;
use super::message::{Internal, Message, Payload};
use super::open::is_out;
use super::order::Weighted;
use super::queue::FairQueue;
use super::trial::Blocks;
use super::{LinkEvent, Servers};
use crate::base::buffer::Outbox;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;
use crate::base::tenants::NOBODY;
use crate::base::{Base, ServerAt};

impl Servers {
    /// Opens a link that takes the place of a dead one, with all that waits on that, if nothing
    /// speaks against it, such as why it is dead. Returns whether it did. The dead one has left
    /// what its server owes, and what waits of the clients that this is owed to: their requests
    /// would change places.
    pub(super) fn renew(&mut self, base: &mut Base, dead: ConnId, why: Fault) -> bool {
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
        let is_needed = state.probe != Some(dead) && state.blocks != Blocks::Tried(dead);
        let is_first = why == Fault::LinkLost && state.fruitless == 0;
        let has_worked = link.has_worked(base.now) || is_first;
        if !may_connect || !has_worked || !link.may_be_renewed() || !is_needed {
            return false;
        }
        self.drop_bound(base, dead);
        let Some(unsent) = self.take_unsent(base, dead) else { return false };
        let judge = self.judge_for(dead, at, (conn_key, class));
        let id = judge.unwrap_or_else(|| self.begin_connect(base, at, conn_key, class));
        for place in self.state(at).links.iter_mut().flatten() {
            if *place == Some(dead) {
                *place = Some(id);
            }
        }
        self.replace_stand_in(at, dead, id);
        self.replace_private(dead, id);
        let Some(link) = self.links.find_mut(id) else { return false };
        unsent.queue_on(link);
        link.account(&mut base.memory);
        if !link.queue.is_empty() {
            link.has_backlog = true;
            self.backlogs.push(id);
        }
        self.mark_dirty(id);
        self.arm(base, id);
        if class == LinkClass::Private {
            self.set_kept_timer(base, id);
        }
        true
    }

    /// Returns the link that is to show whether a server works, if it may take the place of a dead
    /// one of that kind.
    fn judge_for(&self, dead: ConnId, at: ServerAt, kind: (u16, LinkClass)) -> Option<ConnId> {
        let state = &self.states[at.pool as usize][at.server as usize];
        let is_free = |id: &ConnId| {
            let link = self.links.find(*id);
            link.is_some_and(|link| (link.conn_key, link.class) == kind && link.is_idle())
                && !state.has_place(*id)
        };
        state.judge.filter(is_free).filter(|_| state.has_place(dead))
    }

    /// Takes what may move off a dead link, which is closed then; none, if there is nothing.
    fn take_unsent(&mut self, base: &Base, dead: ConnId) -> Option<Unsent> {
        let link = self.links.find_mut(dead)?;
        if !link.is_waiting() {
            return Some(Unsent::take(link));
        }
        let is_internal = |message: &Message| message.internal().is_some() && !message.is_trial();
        if link.outstanding.range(..link.first_pending()).any(is_internal) {
            // Others may rely on its effect.
            return None;
        }
        let owed = Owed::take(link, base.pool(link.at).upstream);
        let unsent = Unsent::take(link);
        let full = owed.give_back(link);
        self.events.extend(full.into_iter().map(LinkEvent::QueueRoom));
        unsent.has_any().then_some(unsent)
    }

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
        dead.withdraw_bound();
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
    fn may_be_renewed(&self) -> bool {
        let has_unsent = !self.is_idle();
        let is_kept = self.own.kept_until.is_some();
        // A block would be executed whatever has become of what was watched.
        let is_guarded = self.own.guarded_until > self.sent;
        let has_state = self.own.watched || is_guarded || self.class == LinkClass::Subscribed;
        has_unsent && !has_state && !is_kept && !self.retiring
    }
}

/// All that waits on a link that owes nothing.
struct Unsent {
    out: Outbox,
    outstanding: VecDeque<Message>,
    batch: Option<Box<Batch>>,
    overtaken: u64,
    internal: Vec<Internal>,
    queue: FairQueue,
    inflight: Costs,
    fetch_bytes: usize,
    queued: u64,
}

/// The messages that a server owes an answer to on a link, and all that waits there of the clients
/// that this is owed to, or that share a get with one of them.
struct Owed {
    messages: VecDeque<Message>,
    /// The offsets of the link.
    done: u64,
    sent: u64,
    batch: Option<Box<Batch>>,
    queue: FairQueue,
    /// The clients that had filled their share of the queue.
    full: Vec<ConnId>,
}

impl Owed {
    /// Takes it off a link, which owes nothing then.
    fn take(link: &mut Link, upstream: &dyn Upstream) -> Owed {
        let first = link.first_pending();
        let mut clients = BTreeSet::new();
        if !bug!(MoveOwed) {
            link.outstanding.range(..first).for_each(|message| clients.extend(clients_of(message)));
        }
        // A get that stays has others' keys as well, and theirs that follow stay, too.
        let mut ends = BTreeSet::new();
        for message in link.outstanding.range(first..) {
            if clients_of(message).any(|client| clients.contains(&client)) {
                clients.extend(clients_of(message));
                ends.insert(message.end);
            }
        }
        let stay = link.withdraw_where(|message| ends.contains(&message.end));
        let begun = link.begun();
        let unsent = link.outstanding.split_off(first);
        let mut messages = replace(&mut link.outstanding, unsent);
        messages.iter().for_each(|message| link.forget_payload(message));
        let (done, sent) = (link.done, link.sent);
        link.out.advance(begun);
        link.sent += begun as u64;
        link.done = link.sent;
        // They have not been sent: none of them ends before that.
        messages.extend(stay.into_iter().map(|message| Message { end: link.sent, ..message }));
        let is_shared =
            |batch: &mut Box<Batch>| batch.entries.iter().any(|one| clients.contains(&one.client));
        let batch = link.batch.take_if(is_shared);
        if let Some(batch) = &batch {
            link.forget_batch(batch);
            clients.extend(batch.entries.iter().map(|one| one.client));
        }
        let (queue, full) = set_apart(&mut link.queue, clients, upstream);
        Owed { messages, done, sent, batch, queue, full }
    }

    /// Gives it back to its link, which has nothing else. Returns the clients that had filled their
    /// share of the queue: theirs fails, and they may go on.
    fn give_back(self, link: &mut Link) -> Vec<ConnId> {
        (link.done, link.sent) = (self.done, self.sent);
        (link.outstanding, link.batch, link.queue) = (self.messages, self.batch, self.queue);
        self.full
    }
}

/// Returns the clients whose requests a message has.
pub(super) fn clients_of(message: &Message) -> impl Iterator<Item = ConnId> {
    let entries = match &message.payload {
        Payload::Fetch(batch) => &batch.entries[..],
        Payload::Single(_) | Payload::Internal(_) => &[],
    };
    let clients = entries.iter().map(|entry| entry.client).chain([message.client]);
    clients.filter(|client| *client != ConnId::NONE)
}

/// Takes what waits of these clients out of a queue, for a queue of its own. Returns with it those
/// of them that had filled their share.
fn set_apart(
    queue: &mut FairQueue,
    clients: BTreeSet<ConnId>,
    upstream: &dyn Upstream,
) -> (FairQueue, Vec<ConnId>) {
    const ANY: (usize, usize) = (usize::MAX, usize::MAX);
    let (mut apart, mut full) = (FairQueue::default(), Vec::new());
    // It is not served any more.
    let of = Weighted { tenant: NOBODY, weight: 1 };
    for client in clients {
        let split =
            |batch: &Batch, is_out: &mut dyn FnMut(&Entry) -> bool| batch.part(upstream, is_out);
        let all = queue.withdraw_where(Some(client), |_, _| true, split);
        all.into_iter().for_each(|(client, waiting)| apart.push(client, of, waiting));
        full.extend(queue.with_room(client, ANY).then_some(client));
    }
    (apart, full)
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

    fn has_any(&self) -> bool {
        !self.outstanding.is_empty() || self.batch.is_some() || !self.queue.is_empty()
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
