//! Messages that are pushed to clients.
//!
//! ```text
//!   message ─▶ the output of each who listens, between two answers
//!         └──▶ its pipeline, if a request there is about topics, or its answer is being written
//! ```
//!
//! What is pushed is never before the answer to the request that asked for it, never behind the
//! answer to the request that ended it, and never within an answer.

use metrics::PoolCounter;
use proto::{Request, TopicKind};

use super::Clients;
use super::request::UNTIMED;
use super::session::{Client, State as ClientState};
use super::topics::TopicName;
use crate::base::buffer::{Outbox, Source};
use crate::base::connection::Departed;
use crate::base::id::ConnId;
use crate::base::part::{NONE, RequestId};
use crate::base::{Base, limits};

impl Clients {
    /// Closes all who listen to a topic, since messages may be missing. Returns how many.
    pub(crate) fn close_listeners(
        &mut self,
        base: &mut Base,
        pool: usize,
        (kind, name): &TopicName,
    ) -> usize {
        let Some(topic) = base.pools[pool].topics.find(*kind, name) else { return 0 };
        let clients: Vec<ConnId> = topic.clients.iter().copied().collect();
        base.pools[pool].counters.add(PoolCounter::SubscribersLost, clients.len() as u64);
        clients.iter().for_each(|id| self.close_subscriber(base, *id));
        clients.len()
    }

    pub(super) fn close_subscriber(&mut self, base: &mut Base, id: ConnId) {
        if self.table.find(id).is_some() {
            self.close_client(base, id, Departed::Closed);
        }
    }

    /// Pushes a message, as its server has sent it, to all who listen to its topic.
    pub(crate) fn push_message(
        &mut self,
        base: &mut Base,
        pool: usize,
        (kind, name): (TopicKind, &[u8]),
        message: Source<'_>,
    ) {
        let Some(topic) = base.pools[pool].topics.find_mut(kind, name) else { return };
        let clients = std::mem::take(&mut topic.clients);
        #[cfg(seeded_bugs)]
        if bug!(PushToOthers) {
            let all = self.table.iter().filter(|(_, client)| client.subscriber.is_some());
            let others: Vec<_> = all.map(|(id, _)| id).filter(|id| !clients.contains(id)).collect();
            others.into_iter().for_each(|id| drop(self.push(base, id, message)));
        }
        let mut slow = Vec::new();
        let mut count = 0;
        for id in &clients {
            if bug!(LosePush) && clients.len() > 1 && clients.last() == Some(id) {
                continue;
            }
            if bug!(PushTwice) {
                let _ = self.push(base, *id, message);
            }
            match self.push(base, *id, message) {
                Pushed::Taken => count += 1,
                Pushed::Over => slow.push(*id),
                Pushed::Gone => {}
            }
        }
        base.pools[pool].counters.add(PoolCounter::Messages, count);
        if let Some(topic) = base.pools[pool].topics.find_mut(kind, name) {
            topic.clients = clients;
        }
        if !slow.is_empty() {
            base.pools[pool].counters.add(PoolCounter::SubscribersSlow, slow.len() as u64);
            slow.into_iter().for_each(|id| self.close_subscriber(base, id));
        }
    }

    fn push(&mut self, base: &mut Base, id: ConnId, message: Source<'_>) -> Pushed {
        let Some(client) = self.table.find(id) else { return Pushed::Gone };
        if client.state == ClientState::Leaving {
            return Pushed::Gone;
        }
        if client.held() > bound(base, client) {
            return Pushed::Over;
        }
        let version = client.session.conn_key.proto_version;
        let mark = [client.protocol.push_mark(version)];
        let rest = message.part(1, message.bytes.len());
        let put = |out: &mut Outbox| {
            out.copy(&mark);
            out.keep(rest);
        };
        let last = client.subscriber.as_ref().map_or(NONE, |one| one.last);
        let is_behind = last != NONE && self.is_about_topics(id, last) && !bug!(PushEarly);
        let is_between = !client.is_mid_answer || bug!(SplitReply);
        if client.pipeline.head == NONE || !is_behind && is_between {
            let client = self.table.find_mut(id).expect("it is the one above");
            client.out.open(&mut base.spares);
            put(&mut client.out);
            // It belongs to no request.
            client.unwritten.answered += message.bytes.len() as u64;
            self.update_client(base, id);
            return Pushed::Taken;
        }
        let is_pushed = |pending: RequestId| {
            let command = self.requests[pending].info.command;
            client.protocol.commands().get(usize::from(command)).is_none()
        };
        if is_behind && client.pipeline.tail == last && is_pushed(last) {
            #[cfg(seeded_bugs)]
            let mut earlier = std::mem::take(&mut self.requests[last].reply);
            #[cfg(seeded_bugs)]
            if !bug!(ReversePushes) {
                self.requests[last].reply.append(&mut earlier);
            }
            put(&mut self.requests[last].reply);
            #[cfg(seeded_bugs)]
            self.requests[last].reply.append(&mut earlier);
            self.account_request(base, last);
            return Pushed::Taken;
        }
        let pending = self.enqueue(base, id, &Request::placeholder(), b"");
        self.requests[pending].since = UNTIMED;
        put(&mut self.requests[pending].reply);
        if let Some(one) = self.table.find_mut(id).and_then(|client| client.subscriber.as_mut()) {
            one.last = pending;
        }
        self.account_request(base, pending);
        self.complete(base, pending);
        Pushed::Taken
    }
}

/// What became of a push.
enum Pushed {
    Taken,
    /// So much waits for the client that it gets no more.
    Over,
    Gone,
}

/// Returns how much may wait for a client that is pushed more.
fn bound(base: &Base, client: &Client) -> usize {
    let narrow = base.narrow(client.group).client_outbox;
    match narrow < base.limits.client_outbox {
        true => narrow,
        false => limits::SUBSCRIBER_OUTBOX_MAX.max(narrow),
    }
}
