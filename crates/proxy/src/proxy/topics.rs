//! Subscriptions: from clients' requests to the servers, and from servers' messages to clients.

use proto::{Ask, TopicKind};

use super::Proxy;
use crate::Event;
use crate::base::ServerAt;
use crate::base::buffer::Source;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::limits;
use crate::base::part::{Data, Incoming, Part};
use crate::base::plan::OnSubscriptionLost;
use crate::route::{self, Route};
use crate::server::{Settled, ToSubscribers, TopicName, TopicsLost};

impl Proxy {
    /// Has a client listen to topics, or end it. It is answered when the servers have carried that
    /// out.
    #[cold]
    pub(super) fn subscribe(&mut self, incoming: &Incoming<'_>) {
        let pool = incoming.asks.pool();
        let Some((id, joins, named)) = self.clients.subscribe(&mut self.base, incoming) else {
            return;
        };
        self.follow_changes();
        let mut failed = None;
        for topic in &named {
            match self.servers.settled(&self.base, pool, topic, joins) {
                Settled::Not | Settled::Later(_) => {
                    self.clients.await_topic(&mut self.base, id, joins, topic)
                }
                Settled::Everywhere => self.base.pools[pool].topics.tidy(topic.0, &topic.1),
                Settled::Nowhere(server, fault) => failed = Some((server, fault)),
            }
        }
        match failed {
            None => self.clients.settle_topic_part(&mut self.base, id),
            Some((server, fault)) => {
                self.clients.end_begun(&mut self.base, id);
                // It may have been sent.
                self.clients.fail(&mut self.base, Part::whole(id), server, fault, true);
                self.follow_changes();
            }
        }
    }

    /// Tells the servers of topics that begin or end to be listened to.
    pub(super) fn follow_changes(&mut self) {
        while let Some((pool, topic)) = self.clients.next_topic_change() {
            self.servers.follow_topic(&mut self.base, pool, &topic);
            self.settle_topic(pool, &topic);
        }
    }

    /// Tells the servers what has changed for all topics, after the pools or their rings have.
    pub(super) fn follow_topics(&mut self) {
        for pool in 0..self.base.pools.len() {
            for topic in self.base.pools[pool].topics.names() {
                self.servers.follow_topic(&mut self.base, pool, &topic);
                self.settle_topic(pool, &topic);
            }
        }
    }

    /// Lets those go on who wait for topics of a pool that are settled.
    pub(super) fn settle_topics(&mut self, pool: usize) {
        for topic in self.base.pools[pool].topics.names() {
            self.settle_topic(pool, &topic);
        }
        self.follow_changes();
    }

    /// Lets those go on who wait for a topic, if it is settled.
    fn settle_topic(&mut self, pool: usize, topic: &TopicName) {
        let Proxy { base, clients, servers, .. } = self;
        let is_wanted = base.pools[pool].topics.is_wanted(topic.0, &topic.1);
        match servers.settled(base, pool, topic, is_wanted) {
            Settled::Not | Settled::Later(_) => {}
            Settled::Everywhere => clients.settle_topic(base, pool, topic),
            Settled::Nowhere(server, fault) => {
                clients.fail_topic(base, pool, topic, Ok((server, fault)));
            }
        }
    }

    /// Takes what a server has sent on a link for subscriptions.
    #[cold]
    pub(super) fn receive_pushes(
        &mut self,
        id: ConnId,
        source: Source<'_>,
    ) -> Result<(), &'static str> {
        let mut joined = self.servers.take_partial(id);
        if joined.is_empty() {
            self.base.spares.give(joined);
            let used = self.read_pushes(id, source)?;
            return self.keep_pushes(id, source.bytes[used..].to_vec());
        }
        joined.extend_from_slice(source.bytes);
        let used = self.read_pushes(id, Source::plain(&joined))?;
        joined.drain(..used);
        self.keep_pushes(id, joined)
    }

    /// Keeps the beginning of a message, unless it is longer than any may be.
    fn keep_pushes(&mut self, id: ConnId, rest: Vec<u8>) -> Result<(), &'static str> {
        let Some(at) = self.servers.at(id) else { return Ok(()) };
        let most = self.base.pool(at).plan.item_size_max.saturating_add(limits::TOPICS_LEN_MAX);
        if rest.len() > most {
            return Err(TOO_LONG);
        }
        self.servers.keep_partial(id, rest);
        Ok(())
    }

    fn read_pushes(&mut self, id: ConnId, source: Source<'_>) -> Result<usize, &'static str> {
        let len = source.bytes.len();
        let Some(ServerAt { pool, .. }) = self.servers.at(id) else { return Ok(len) };
        let (pool, mut at) = (pool as usize, 0);
        while at < len {
            let rest = source.part(at, len);
            at += match self.servers.next_push(&mut self.base, id, rest.bytes)? {
                ToSubscribers::Incomplete => break,
                ToSubscribers::Nothing(used) => used,
                ToSubscribers::Message(used, kind, topic) => {
                    let topic = (kind, topic.of(rest.bytes));
                    let message = rest.part(0, used);
                    self.clients.push_message(&mut self.base, pool, topic, message);
                    used
                }
                ToSubscribers::Done(used, topic) => {
                    self.settle_topic(pool, &topic);
                    used
                }
                ToSubscribers::Refused(used, topic) => {
                    let Proxy { base, clients, .. } = self;
                    clients.fail_topic(base, pool, &topic, Err(&rest.bytes[..used]));
                    // Who has listened before hears no more of it.
                    clients.close_listeners(base, pool, &topic);
                    used
                }
            };
            self.follow_changes();
        }
        Ok(at)
    }

    /// Closes the clients whose subscriptions were lost with a link, or keeps them.
    #[cold]
    pub(super) fn lose_topics(&mut self, gone: TopicsLost) {
        let TopicsLost { at, lost, unanswered } = gone;
        let pool = at.pool as usize;
        if !lost.is_empty() {
            let closes = self.base.pool(at).plan.on_subscription_lost == OnSubscriptionLost::Close
                && !bug!(KeepLostSubscribers);
            let close = |topic| self.clients.close_listeners(&mut self.base, pool, topic);
            let closed = if closes { lost.iter().map(close).sum() } else { 0 };
            let server = self.base.server(at).plan.id;
            let subscriptions = lost.len();
            self.base.log(Event::SubscriptionsLost { server, subscriptions, closed });
        }
        self.servers.tend_topics(&mut self.base, at);
        self.follow_changes();
        for topic in unanswered.iter().chain(&lost) {
            let Proxy { base, clients, servers, .. } = self;
            match servers.settled(base, pool, topic, true) {
                // This topic may have ended the link, and the server is not told of it again.
                Settled::Later(server) => {
                    let why = (Some(server), Fault::LinkLost);
                    clients.fail_topic(base, pool, topic, Ok(why));
                }
                _ => self.settle_topic(pool, topic),
            }
        }
        self.follow_changes();
    }

    /// Sends a message to one server, by its channel.
    pub(super) fn publish_message(
        &mut self,
        incoming: &Incoming<'_>,
        data: &Data<'_>,
        (ask, kind): (Ask, TopicKind),
    ) {
        let Incoming { asks, request, head } = *incoming;
        let server = route::server_for(&mut self.base, incoming);
        let id = self.clients.begin_broadcast(&mut self.base, incoming, (ask, true), 1);
        if let (Some(server), Some(channel)) = (server, self.base.keys.first()) {
            let at = ServerAt { pool: asks.pool, server: server as u32 };
            let mut scratch = Vec::new();
            let channel = asks.protocol.key(request, head, *channel, &mut scratch);
            let count = self.uncounted(at, kind, channel);
            self.clients.set_uncounted(id, count);
        }
        match server {
            Some(server) if incoming.is_dropped() => {
                let part = Part::whole(id);
                let server = Some(server as u32);
                self.clients.fail(&mut self.base, part, server, Fault::Dropped, false);
            }
            _ => self.send_along(id, incoming, data.again(), Route::Go { ask, server }),
        }
        self.clients.settle_part(&mut self.base, id);
    }

    /// Counts the subscribers of this worker that a server does not know of, for the answer to a
    /// message.
    fn uncounted(&self, at: ServerAt, kind: TopicKind, channel: &[u8]) -> u32 {
        let count = self.servers.uncounted(&self.base, at, kind, channel);
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

const TOO_LONG: &str = "a message longer than `item_size_max`";
