//! Values that reach their client while they arrive, and what ends one that cannot be completed.

use metrics::Pool as Counter;
use proto::{Ask, Item, Shown};

use super::Pipelines;
use crate::batch::Entry;
use crate::buffer::{Outbox, Source};
use crate::client::{Client, State as ClientState};
use crate::limits;
use crate::request::{NONE, RequestId};

impl Pipelines {
    /// Takes the head of a value whose body is still to come: to the client at once, if it keeps up
    /// and awaits nothing else, and otherwise into `data`. Returns whether the client gets a
    /// stream.
    pub(crate) fn begin_value(
        &mut self,
        entry: Entry,
        (item, asked): (&Item, Ask),
        head: Source<'_>,
        data: &mut Outbox,
    ) -> (Shown, bool) {
        let pending = &self.requests[entry.pending];
        let owner = pending.client;
        data.open(&mut self.spares);
        let shown = match pending.question.is_rendered(asked) {
            true => pending.question.render(entry.slot, item, head.bytes, data.copied()),
            false => {
                data.keep(head);
                Shown::Body { trailer: item.trailer }
            }
        };
        let len = usize::try_from(item.body).unwrap_or(usize::MAX);
        let streams = matches!(shown, Shown::Body { .. }) && self.may_stream(entry, len);
        if streams {
            let client = self.clients.find_mut(owner).expect("the caller found it");
            client.learn(item.len() as usize);
            self.begin_stream(entry.pending, data);
        }
        (shown, streams)
    }

    /// Whether the client is to get this many bytes as a stream: it keeps up and awaits nothing
    /// else.
    pub(crate) fn may_stream(&self, entry: Entry, len: usize) -> bool {
        let pending = &self.requests[entry.pending];
        let is_next = |client: &&Client| client.head == entry.pending && pending.left == 1;
        let client = self.clients.find(pending.client).filter(is_next);
        len >= self.limits.stream_min
            && pending.slots.is_empty()
            && client.is_some_and(|client| client.out.len() < limits::BACKLOG_MIN)
    }

    /// Starts to stream the answer to the client of a request; `data` is the part that is there.
    pub(crate) fn begin_stream(&mut self, id: RequestId, data: &mut Outbox) {
        let owner = self.requests[id].client;
        let client = self.clients.find_mut(owner).expect("the caller found it");
        client.out.open(&mut self.spares);
        client.out.append(data);
        data.close(&mut self.spares);
        self.update_client(owner);
    }

    /// Passes on more of a value that is being streamed.
    pub(crate) fn stream(&mut self, id: RequestId, part: Source<'_>) {
        let owner = self.requests[id].client;
        if let Some(client) = self.clients.find_mut(owner) {
            client.out.open(&mut self.spares);
            client.out.push(part);
            self.update_client(owner);
        }
    }

    /// Gives up a streamed value whose rest will not come. The client would take any further byte
    /// for a part of the value. So it gets what it was owed before, and is closed.
    pub(crate) fn cut_off(&mut self, id: RequestId) {
        let owner = self.requests[id].client;
        let Some(client) = self.clients.find_mut(owner) else { return };
        client.state = ClientState::Leaving;
        client.forget_input(&mut self.spares);
        let counters = self.pools[client.pool as usize].counters;
        counters.add(Counter::CutOff, 1);
        counters.add(Counter::Cancelled, u64::from(client.depth));
        let (head, barrier) = (client.head, std::mem::replace(&mut client.barrier, NONE));
        (client.head, client.tail) = (NONE, NONE);
        (client.depth, client.loud) = (0, 0);
        // Silent requests stand in no pipeline: they still belong to the client. What it is owed
        // for the others matters no more: it is not read again.
        self.forget_requests(head, barrier);
        self.update_client(owner);
    }
}
