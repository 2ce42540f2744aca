//! Clients that listen to topics: what each listens to, and the answers to its requests about that.
//! `push.rs` has the messages that are pushed to it.
//!
//! ```text
//!   SUBSCRIBE ─▶ a pending request ─▶ the servers are told ─▶ all topics are settled ─▶ answered
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use metrics::PoolCounter;
use proto::{
    Answer, Class, Local, Quiet, Request, TopicAnswer, TopicKind, TopicRequest, WhileSubscribed,
};

use super::Clients;
use super::input::Frame;
use super::request::State;
use super::session::Client;
use crate::base::buffer::Source;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Incoming, NONE, Part, RequestId};
use crate::base::topics::WaitingTopic;
use crate::base::{Base, limits};

/// A topic: its kind and its name.
pub(super) type TopicName = (TopicKind, Rc<[u8]>);

/// A client that listens to topics, or did a moment ago.
pub(super) struct Subscriber {
    topics: [BTreeSet<Rc<[u8]>>; 3],
    /// The last entry of its pipeline that is about topics or was pushed, as long as it is there.
    pub(super) last: RequestId,
}

/// What clients have changed, and what they wait for.
#[derive(Default)]
pub(super) struct TopicChanges {
    /// Topics that begin or end to be listened to, with the index of their pool, until the servers
    /// are told.
    changed: VecDeque<(usize, TopicName)>,
    /// What a request that waits has begun to listen to: it ends if a server refuses it.
    begun: BTreeMap<RequestId, Vec<TopicName>>,
}

impl Subscriber {
    fn new() -> Subscriber {
        Subscriber { topics: Default::default(), last: NONE }
    }

    /// Lists the topics that it listens to.
    pub(super) fn topics(&self) -> impl Iterator<Item = (TopicKind, &[u8])> {
        let of = |kind: TopicKind| self.topics[kind as usize].iter().map(move |one| (kind, &**one));
        TopicKind::ALL.into_iter().flat_map(of)
    }

    /// Returns how many topics it listens to.
    fn count(&self) -> usize {
        self.topics.iter().map(BTreeSet::len).sum()
    }

    /// Returns how many topics an answer about this kind counts.
    fn count_of(&self, kind: TopicKind) -> usize {
        let [channels, patterns, shards] = [0, 1, 2].map(|at: usize| self.topics[at].len());
        if kind == TopicKind::Shard { shards } else { channels + patterns }
    }
}

impl Client {
    /// Whether it listens to a topic.
    pub(super) fn listens(&self) -> bool {
        self.subscriber.as_ref().is_some_and(|one| one.count() > 0)
    }

    /// Returns how many channels, patterns and shard channels it listens to.
    pub(super) fn topics(&self) -> [u32; 3] {
        let of = |one: &Subscriber| one.topics.each_ref().map(|topics| topics.len() as u32);
        self.subscriber.as_deref().map_or([0; 3], of)
    }
}

impl Clients {
    /// Decides about a request of a client that listens to topics, or did a moment ago. None: it
    /// is handled as any other client's.
    #[cold]
    pub(crate) fn serve_subscriber(
        &mut self,
        base: &mut Base,
        frame: &Frame,
        head: &[u8],
    ) -> Option<usize> {
        let id = frame.asks.id;
        let request = &frame.request;
        let is_about_topics = self.requests_topics(id);
        let client = self.table.find_mut(id)?;
        let count = client.subscriber.as_ref()?.count();
        if request.class == Class::Local(Local::Subscribe) {
            return None;
        }
        if count == 0 && !is_about_topics {
            client.subscriber = None;
            return None;
        }
        // What the servers are told comes first. What changes the form of a push waits for all
        // answers before it.
        let is_own = request.class == Class::Local(Local::Own);
        if is_about_topics || client.outstanding() > 0 && is_own {
            self.pause_until_idle(base, id);
            self.unread(frame, 1);
            return Some(0);
        }
        let client = self.table.find(id)?;
        let version = client.session.conn_key.proto_version;
        let answer = match client.protocol.while_subscribed(request, version) {
            WhileSubscribed::AsUsual => return None,
            WhileSubscribed::Alive => Answer::Alive,
            WhileSubscribed::Refused(refusal) => Answer::Refused(refusal),
        };
        if let Some(used) = self.judge(base, frame, head) {
            return Some(used);
        }
        if answer == Answer::Alive {
            let counters = base.pools[frame.asks.pool()].counters;
            counters.add(PoolCounter::Requests, 1);
            counters.add(PoolCounter::Local, 1);
            self.answer(base, id, request, head, &answer);
            self.pause_if_full(base, id);
        } else {
            self.refuse_read(base, &frame.incoming(head), &answer);
        }
        Some(head.len())
    }

    /// Whether something about topics is in a client's pipeline.
    fn requests_topics(&self, id: ConnId) -> bool {
        let Some(client) = self.table.find(id) else { return false };
        client.subscriber.as_ref().is_some_and(|one| self.is_about_topics(id, one.last))
    }

    /// Whether this is such an entry of a client's pipeline. Another request may have its place by
    /// now.
    pub(super) fn is_about_topics(&self, id: ConnId, at: RequestId) -> bool {
        if at == NONE {
            return false;
        }
        let pending = &self.requests[at];
        let command = usize::from(pending.info.command);
        let row = pending.info.protocol.commands().get(command);
        let is_it = row.is_none_or(|row| row.class == Class::Local(Local::Subscribe));
        pending.state != State::Free && pending.client == id && is_it
    }

    /// Whether a request about topics may be carried out now: all before it in its client's
    /// pipeline are about topics, too.
    pub(crate) fn may_subscribe(&self, id: ConnId) -> bool {
        let Some(client) = self.table.find(id) else { return true };
        let pipeline = &client.pipeline;
        let last = client.subscriber.as_ref().map_or(NONE, |one| one.last);
        let is_next =
            pipeline.head == NONE || pipeline.tail == last && self.is_about_topics(id, last);
        is_next && pipeline.silent_count == 0
    }

    /// Has a client listen to topics, or end it. Returns the request, and the topics that it is
    /// about; it is completed when all of them are settled and `settle_part` was called once more.
    pub(crate) fn subscribe(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
    ) -> Option<(RequestId, bool, Vec<TopicName>)> {
        let Incoming { asks, request, head } = *incoming;
        let id = asks.id;
        let mut wish = asks.protocol.topics(request, head);
        if let Some(why) = self.why_not_subscribe(base, asks.pool(), id, &wish) {
            let answer = Answer::Failed(&why);
            self.refuse_whole(base, incoming, &answer);
            return None;
        }
        base.pools[asks.pool()].counters.add(PoolCounter::Local, 1);
        // Its answers are pushes, which a client that wants no answers gets all the same.
        let request = &Request { quiet: Quiet::Loud, ..*request };
        let pending = self.enqueue(base, id, request, b"");
        self.requests[pending].parts_left = 1;
        let client = self.table.find_mut(id)?;
        let version = client.session.conn_key.proto_version;
        let subscriber = client.subscriber.get_or_insert_with(|| Box::new(Subscriber::new()));
        subscriber.last = pending;
        let TopicRequest { kind, joins, .. } = wish;
        if wish.topics.is_empty() {
            let all = subscriber.topics[kind as usize].iter();
            wish.topics = all.map(|name| name.to_vec().into()).collect();
        }
        let mut named = Vec::new();
        let mut begun = Vec::new();
        let mut words = Vec::new();
        let mut answer = TopicAnswer { kind, joins, topic: None, count: 0 };
        for name in &wish.topics {
            let pool = &mut base.pools[asks.pool()];
            let topic = match joins {
                true => join(pool, subscriber, id, kind, name),
                false => part(pool, subscriber, id, kind, name),
            };
            if let Some((topic, is_changed)) = topic {
                if joins && is_changed.is_some() {
                    begun.push((kind, Rc::clone(&topic)));
                }
                if is_changed == Some(true) {
                    self.topics.changed.push_back((asks.pool(), (kind, Rc::clone(&topic))));
                }
                named.push((kind, topic));
            }
            (answer.topic, answer.count) = (Some(&name[..]), subscriber.count_of(kind));
            asks.protocol.write_topic_answer(version, &answer, &mut words);
        }
        if wish.topics.is_empty() {
            answer.count = subscriber.count_of(kind);
            asks.protocol.write_topic_answer(version, &answer, &mut words);
        }
        self.requests[pending].reply.keep(Source::plain(&words));
        if !begun.is_empty() {
            self.topics.begun.insert(pending, begun);
        }
        self.account_request(base, pending);
        Some((pending, joins, named))
    }

    /// Returns why a client may not listen to topics, if it may not.
    fn why_not_subscribe(
        &self,
        base: &Base,
        pool: usize,
        id: ConnId,
        wish: &TopicRequest<'_>,
    ) -> Option<String> {
        if !wish.joins {
            return None;
        }
        let client = self.table.find(id)?;
        let pool = &base.pools[pool];
        let most = limits::CLIENT_TOPICS_MAX;
        if client.subscriber.as_ref().map_or(0, |one| one.count()) + wish.topics.len() > most {
            return Some(format!("a client has at most {most} subscriptions here"));
        }
        let bytes = wish.topics.iter().map(|name| name.len()).sum();
        if !pool.topics.has_room(wish.topics.len(), bytes) {
            return Some("there is no room for more subscriptions in this pool".to_string());
        }
        let is_hashed = pool.plan.pubsub == crate::base::plan::PubSub::Hashed;
        if is_hashed && wish.kind == TopicKind::Pattern && pool.planned() > 1 {
            return Some(NO_PATTERNS.to_string());
        }
        None
    }

    /// Returns the next topic that begins or ends to be listened to, with the index of its pool.
    pub(crate) fn next_topic_change(&mut self) -> Option<(usize, TopicName)> {
        self.topics.changed.pop_front()
    }

    /// Whether there is one.
    pub(crate) fn has_topic_changes(&self) -> bool {
        !self.topics.changed.is_empty()
    }

    /// Has a request wait until a topic is settled.
    pub(crate) fn await_topic(
        &mut self,
        base: &mut Base,
        id: RequestId,
        joins: bool,
        (kind, name): &TopicName,
    ) {
        let pool = self.requests[id].pool as usize;
        let (_, topic) = base.pools[pool].topics.find_or_add(*kind, name);
        topic.waiting.push(WaitingTopic { part: Part::whole(id), joins });
        self.requests[id].parts_left += 1;
    }

    /// A topic is settled: those who wait for it go on.
    pub(crate) fn settle_topic(&mut self, base: &mut Base, pool: usize, (kind, name): &TopicName) {
        let topics = &mut base.pools[pool].topics;
        let Some(topic) = topics.find_mut(*kind, name) else { return };
        let waiting = std::mem::take(&mut topic.waiting);
        topics.tidy(*kind, name);
        waiting.into_iter().for_each(|one| self.settle_topic_part(base, one.part.request));
    }

    /// Settles one part of a request about topics.
    pub(crate) fn settle_topic_part(&mut self, base: &mut Base, id: RequestId) {
        if self.requests[id].parts_left == 1 {
            self.topics.begun.remove(&id);
        }
        self.settle_part(base, id);
    }

    /// No server can send the messages of a topic: who waits for it is told why. What a request
    /// has begun ends.
    pub(crate) fn fail_topic(
        &mut self,
        base: &mut Base,
        pool: usize,
        (kind, name): &TopicName,
        why: Result<(Option<u32>, Fault), &[u8]>,
    ) {
        let Some(topic) = base.pools[pool].topics.find_mut(*kind, name) else { return };
        let waiting = std::mem::take(&mut topic.waiting);
        for WaitingTopic { part, joins } in waiting {
            if joins {
                self.end_begun(base, part.request);
            }
            match (joins, why) {
                (false, _) => self.settle_topic_part(base, part.request),
                // It may have been sent.
                (true, Ok((server, fault))) => self.fail(base, part, server, fault, true),
                (true, Err(line)) => {
                    self.requests[part.request].fail(0, &Answer::Error(line));
                    self.settle_error(base, part.request);
                }
            }
        }
        base.pools[pool].topics.tidy(*kind, name);
    }

    /// Ends what a request has begun that has failed.
    pub(crate) fn end_begun(&mut self, base: &mut Base, id: RequestId) {
        let begun = self.topics.begun.remove(&id).unwrap_or_default();
        let owner = self.requests[id].client;
        let Some(client) = self.table.find_mut(owner) else { return };
        let Some(subscriber) = &mut client.subscriber else { return };
        let at = client.pool as usize;
        for (kind, name) in begun {
            if let Some((name, Some(true))) =
                part(&mut base.pools[at], subscriber, owner, kind, &name)
            {
                self.topics.changed.push_back((at, (kind, name)));
            }
        }
    }

    /// Ends all subscriptions of a client.
    pub(super) fn end_subscriptions(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        let Some(mut subscriber) = client.subscriber.take() else { return };
        let at = client.pool as usize;
        for kind in TopicKind::ALL {
            for name in subscriber.topics[kind as usize].clone() {
                if let Some((name, Some(true))) =
                    part(&mut base.pools[at], &mut subscriber, id, kind, &name)
                {
                    self.topics.changed.push_back((at, (kind, name)));
                }
            }
        }
    }

    /// Panics if those who listen and what they listen to do not agree.
    pub(crate) fn check_topics(&self, base: &Base) {
        let mut pairs = 0;
        for pool in &base.pools {
            for (id, kind, name) in pool.topics.pairs() {
                let client = self.table.find(id).expect("who listens is there");
                let subscriber = client.subscriber.as_ref().expect("who listens is a subscriber");
                assert!(subscriber.topics[kind as usize].contains(name), "both sides agree");
                pairs += 1;
            }
        }
        let all = self.table.iter().filter_map(|(_, client)| client.subscriber.as_ref());
        let listed: usize = all.map(|one| one.count()).sum();
        assert_eq!(listed, pairs, "each subscription is on both sides");
    }
}

/// Has a client listen to a topic. Returns its name as it is kept, and whether it is new: to the
/// client (`Some`), and to all (`Some(true)`).
fn join(
    pool: &mut crate::base::pool::Pool,
    subscriber: &mut Subscriber,
    id: ConnId,
    kind: TopicKind,
    name: &[u8],
) -> Option<(Rc<[u8]>, Option<bool>)> {
    let (name, topic) = pool.topics.find_or_add(kind, name);
    let is_first = topic.clients.is_empty();
    let is_new = topic.clients.insert(id);
    if is_new {
        subscriber.topics[kind as usize].insert(Rc::clone(&name));
        pool.counters.add(PoolCounter::SubscriptionsNow, 1);
    }
    Some((name, is_new.then_some(is_first)))
}

/// Has a client listen to a topic no more. Returns its name, and whether that changes anything: for
/// the client (`Some`), and for all (`Some(true)`). None: it did not listen.
fn part(
    pool: &mut crate::base::pool::Pool,
    subscriber: &mut Subscriber,
    id: ConnId,
    kind: TopicKind,
    name: &[u8],
) -> Option<(Rc<[u8]>, Option<bool>)> {
    let name = subscriber.topics[kind as usize].take(name)?;
    let topic = pool.topics.find_mut(kind, &name)?;
    topic.clients.remove(&id);
    let is_last = topic.clients.is_empty();
    pool.counters.subtract(PoolCounter::SubscriptionsNow, 1);
    Some((name, Some(is_last)))
}

const NO_PATTERNS: &str = "PSUBSCRIBE is refused: with `pubsub: hashed` each channel is \
    subscribed to on one server, and a pattern may match channels of several";
