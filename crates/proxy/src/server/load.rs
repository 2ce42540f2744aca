//! What each client has outstanding in the server half: parts that wait for a link, and parts that
//! wait for a reply. A part counts until nothing of it is left on any link, even if its client has
//! been answered with an error meanwhile.

use super::batch::Batch;
use super::link::Link;
use super::message::{Message, Payload};
use super::{LinkEvent, Servers};
use crate::base::id::ConnId;
use crate::base::limits;
use crate::base::part::{Depth, Sent};
use crate::base::size::Cost;

/// What one client has outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) client: ConnId,
    /// Parts that wait for a link.
    pub(super) waiting: u32,
    /// Parts that have left for a link's output, and have no reply.
    pub(super) sent: u32,
    /// The cost of those.
    pub(super) inflight: u64,
    /// How many more parts than `Link::depth` may be in flight: so many answers came, when it
    /// asked for more than it had before.
    pub(super) shown: u32,
    /// It has asked for more, and has not been idle since.
    pub(super) is_growing: bool,
    /// The turn in which it last added a key to a shared batch.
    pub(super) batch_turn: u64,
    /// One of its queues is not served until something of it is answered, or it reads.
    pub(super) is_parked: bool,
    /// The client half waits until nothing is outstanding.
    pub(super) is_awaited: bool,
}

impl Load {
    fn new(client: ConnId) -> Load {
        Load {
            client,
            waiting: 0,
            sent: 0,
            inflight: 0,
            shown: 0,
            is_growing: false,
            batch_turn: 0,
            is_parked: false,
            is_awaited: false,
        }
    }

    /// Returns what is sent, where another part is about to be.
    pub(super) fn as_sent(&mut self, depth: u32) -> Sent {
        let is_beyond = self.is_beyond(depth);
        self.is_growing |= is_beyond;
        let depth = match (is_beyond, self.is_growing) {
            (true, _) => Depth::Beyond,
            (_, true) => Depth::Growing,
            _ => Depth::Shown,
        };
        Sent { parts: self.sent, cost: self.inflight, depth }
    }

    /// Whether one more part is more than it has shown to be small, and than any client may have
    /// (`Link::depth`).
    #[inline(always)]
    pub(super) fn is_beyond(&self, depth: u32) -> bool {
        self.sent >= depth + self.shown
    }

    /// Notes that so many parts are answered, or are not any more.
    #[cold]
    fn grow(&mut self, parts: u32) {
        if self.is_growing {
            let more = parts.saturating_mul(limits::DEPTH_GROWTH);
            self.shown = self.shown.saturating_add(more).min(limits::DEPTH_SHOWN_MAX);
            // Until it has shown twice as much as it asks for.
            let asked = self.sent + self.waiting;
            self.is_growing = asked > 0 && asked >= self.shown / 2;
        }
    }

    /// Notes that its answers are large: what it has shown says nothing of them.
    #[cold]
    pub(super) fn forget_shown(&mut self) {
        self.shown = 0;
    }

    /// Whether nothing is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.sent == 0
    }
}

/// By the index of the client. A client that has gone may have something outstanding until another
/// client has its index; from then on it is not counted.
#[derive(Default)]
pub(super) struct Loads(Vec<Load>);

impl Loads {
    /// Returns the entry of a client that is there.
    #[inline]
    pub(super) fn of(&mut self, client: ConnId) -> &mut Load {
        let at = client.index();
        if self.0.get(at).is_none_or(|load| load.client != client) {
            self.enter(client);
        }
        &mut self.0[at]
    }

    #[cold]
    fn enter(&mut self, client: ConnId) {
        let at = client.index();
        if at >= self.0.len() {
            self.0.resize(at + 1, Load::new(ConnId::NONE));
        }
        self.0[at] = Load::new(client);
    }

    /// Returns a client's entry. A client that has gone may have none any more.
    #[inline]
    pub(super) fn find(&mut self, client: ConnId) -> Option<&mut Load> {
        self.0.get_mut(client.index()).filter(|load| load.client == client)
    }

    /// Counts parts that wait no more.
    pub(super) fn take_waiting(&mut self, client: ConnId, parts: usize) {
        if let Some(load) = self.find(client) {
            load.waiting -= parts as u32;
        }
    }

    /// Lists the entries of clients.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Load> {
        self.0.iter().filter(|load| load.client != ConnId::NONE)
    }
}

impl Servers {
    /// Counts a part that has left for a link's output.
    #[inline]
    pub(super) fn count_sent(link: &mut Link, load: Option<&mut Load>, cost: Cost) {
        link.inflight.add(cost);
        if let Some(load) = load {
            load.sent += 1;
            load.inflight += cost.bytes();
        }
    }

    /// Counts the parts of a message that is not on its link any more.
    #[inline(always)]
    pub(super) fn count_gone(&mut self, message: &Message) {
        match &message.payload {
            Payload::Single(_) => self.count_parts_gone(message.client, 1, message.cost.bytes()),
            Payload::Fetch(batch) => self.count_batch_gone(batch),
            Payload::Internal(_) => {}
        }
    }

    /// As `count_gone`, for a batch.
    pub(super) fn count_batch_gone(&mut self, batch: &Batch) {
        let Some(first) = batch.entries.first() else { return };
        let (mut client, mut count, mut cost) = (first.client, 0, 0);
        for entry in &batch.entries {
            // Most often, the next key is the same client's.
            if entry.client != client {
                self.count_parts_gone(client, count, cost);
                (client, count, cost) = (entry.client, 0, 0);
            }
            count += 1;
            cost += entry.cost.bytes();
        }
        self.count_parts_gone(client, count, cost);
    }

    #[inline]
    fn count_parts_gone(&mut self, client: ConnId, parts: u32, cost: u64) {
        let Some(load) = self.loads.find(client) else { return };
        load.sent -= parts;
        load.inflight -= if bug!(CostLeaks) { cost / 2 } else { cost };
        if load.is_parked | load.is_awaited | load.is_growing {
            load.grow(parts);
            self.note_settled(client);
        }
    }

    /// Notes that something of a client's is settled: what was parked for it may have its turn, and
    /// the client half may wait until all is.
    #[cold]
    pub(super) fn note_settled(&mut self, client: ConnId) {
        let Some(load) = self.loads.find(client) else { return };
        if std::mem::take(&mut load.is_parked) {
            self.unparked.push(client);
        }
        if load.is_awaited && load.is_idle() {
            load.is_awaited = false;
            self.events.push_back(LinkEvent::Idle(client));
        }
    }

    /// Whether what waits is to be served again, although nothing comes.
    pub(crate) fn must_serve(&self) -> bool {
        !self.unparked.is_empty() || self.has_room_since && !self.backlogs.is_empty()
    }

    /// Lets what waits for a client to read its answers have its turn again.
    pub(crate) fn unpark(&mut self, client: ConnId) {
        if let Some(load) = self.loads.find(client) {
            load.is_parked = false;
        }
        self.unparked.push(client);
    }

    /// Whether any link owes a client something, or something of its waits for one. If so, an
    /// `Idle` event follows.
    pub(crate) fn await_idle(&mut self, client: ConnId) -> bool {
        let load = self.loads.of(client);
        load.is_awaited = !load.is_idle();
        load.is_awaited
    }

    /// Whether anything of a client's is outstanding on a link.
    pub(crate) fn owes(&mut self, client: ConnId) -> bool {
        self.loads.find(client).is_some_and(|load| !load.is_idle())
    }
}

impl Link {
    /// Lists the gets among its messages, and the open batch.
    pub(super) fn batches(&self) -> impl Iterator<Item = &Batch> {
        let sent = self.outstanding.iter().filter_map(|message| match &message.payload {
            Payload::Fetch(batch) => Some(&**batch),
            Payload::Single(_) | Payload::Internal(_) => None,
        });
        sent.chain(self.batch.as_deref())
    }

    /// Lists the clients of which something is outstanding on it; some of them several times.
    pub(super) fn askers(&self) -> impl Iterator<Item = ConnId> {
        let asked = self.outstanding.iter().filter_map(|message| match message.payload {
            Payload::Single(_) => Some(message.client),
            Payload::Fetch(_) | Payload::Internal(_) => None,
        });
        let keys = self.batches().flat_map(|batch| &batch.entries).map(|entry| entry.client);
        let waiting = self.queue.iter().map(|(client, ..)| client);
        asked.chain(keys).chain(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_has_shown_to_be_small_says_nothing_once_its_answers_are_large() {
        let mut load = Load { sent: 4, waiting: 9, ..Load::new(ConnId::NONE) };
        assert_eq!(load.as_sent(4).depth, Depth::Beyond, "it asks for more than before");
        load.grow(1);
        assert!(!load.is_beyond(4), "an answer has come");
        load.forget_shown();
        assert!(load.is_beyond(4));
    }
}
