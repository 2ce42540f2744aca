//! Subscriptions at the servers: a link to each server that carries nothing else, for all clients
//! of a pool at this worker.
//!
//! ```text
//!   a client listens to what nobody did ──▶ SUBSCRIBE to each server ──▶ carried out ──▶ answered
//!   nobody listens any more ──────────────▶ UNSUBSCRIBE                                  by proxy/
//!   a link is there (again) ──────────────▶ SUBSCRIBE to all that clients listen to
//! ```
//!
//! Each request is about one topic, and servers answer in the order asked. A topic is settled at a
//! server when nothing that it was told of the topic is unanswered: the newest is then in force,
//! whatever has crossed on the way. A server that cannot be reached is left out, and joined later.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use metrics::ServerCounter;
use proto::{Ask, ItemKind, Parsed, Pushed, TopicKind};

use super::link::Link;
use super::message::{Internal, MessageForm, Payload};
use super::open::is_out;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass};
use crate::base::pool::Health;
use crate::base::size::Cost;
use crate::base::timers::Due;
use crate::base::{Base, ServerAt, limits};

/// A topic: its kind and its name.
pub(crate) type TopicName = (TopicKind, Rc<[u8]>);

/// The subscriptions at a server.
#[derive(Default)]
pub(super) struct ServerTopics {
    /// The link, which may still be on its way.
    pub(super) link: Option<ConnId>,
    of: [BTreeMap<Rc<[u8]>, Standing>; 3],
    /// What it was told and has not answered, oldest first.
    asked: VecDeque<Told>,
    /// When the link may be opened again, after it was lost soon.
    retry_at: Option<Time>,
    /// Why the last link did not come up, or that it was lost.
    missing: Option<Fault>,
    /// When it is asked next whether it is there: it owes nothing as long as nothing changes.
    ping_at: Option<Time>,
}

/// What a server was told.
#[derive(Clone)]
enum Told {
    /// To send the messages of a topic, or no more of them.
    Topic(TopicName, bool),
    /// To answer.
    Ping,
}

/// A topic at a server.
#[derive(Clone, Copy, Default)]
struct Standing {
    /// What it was told last is to send messages.
    joined: bool,
    /// It has answered that it does.
    confirmed: bool,
    /// How much that it was told is unanswered.
    unanswered: u32,
}

/// The state of a topic at all servers.
pub(crate) enum Settled {
    /// A server has not answered.
    Not,
    /// All that can be reached have.
    Everywhere,
    /// The link to this server was lost soon, and is opened again after a pause. No other server
    /// has been told.
    Later(u32),
    /// No server can be reached: this one, for this reason.
    Nowhere(Option<u32>, Fault),
}

/// What a server has sent to subscribers.
pub(crate) enum ToSubscribers {
    /// More has to come.
    Incomplete,
    /// So many bytes: a message for those who listen to the topic at this position.
    Message(usize, TopicKind, proto::Span),
    /// So many bytes: what was told of a topic is carried out.
    Done(usize, TopicName),
    /// So many bytes, an error line: the server does not send the messages of a topic.
    Refused(usize, TopicName),
    /// So many bytes that change nothing.
    Nothing(usize),
}

/// A link for subscriptions that is gone.
pub(crate) struct TopicsLost {
    pub(crate) at: ServerAt,
    /// The subscriptions that stood on it, if messages may be missing.
    pub(crate) lost: Vec<TopicName>,
    /// The topics of which something was unanswered.
    pub(crate) unanswered: Vec<TopicName>,
}

impl Servers {
    /// Tells the servers of a topic what has changed: whether clients listen to it, or where it
    /// belongs.
    pub(crate) fn follow_topic(&mut self, base: &mut Base, pool: usize, topic: &TopicName) {
        let (kind, name) = topic;
        let is_wanted = base.pools[pool].topics.is_wanted(*kind, name);
        for server in 0..base.pools[pool].servers.len() {
            let at = ServerAt { pool: pool as u32, server: server as u32 };
            let is_heard = is_wanted && base.is_heard_at(at, *kind, name);
            if is_heard && self.state(at).topics.link.is_none() {
                self.open_topics(base, at);
                continue;
            }
            let topics = &self.state(at).topics;
            let joined = topics.of[*kind as usize].get(name).is_some_and(|one| one.joined);
            if topics.link.is_some() && joined != is_heard && !(bug!(KeepTopic) && joined) {
                self.tell_topic(base, at, topic, is_heard);
            }
        }
    }

    /// Opens the link for the subscriptions of a pool to a server, if there are any and none is
    /// there.
    #[cold]
    pub(crate) fn tend_topics(&mut self, base: &mut Base, at: ServerAt) {
        if base.pool(at).topics.is_empty() || self.state(at).topics.link.is_some() {
            return;
        }
        let count = self.open_topics(base, at);
        self.state(at).counters.add(ServerCounter::SubscriptionsJoined, count as u64);
    }

    /// As `tend_topics`, when the pause after a loss is over; or asks whether the server is there.
    /// Returns whether it was the pause, for which clients may have waited.
    pub(crate) fn topics_timer(&mut self, base: &mut Base, at: ServerAt, set: Time) -> bool {
        let states = self.states.get_mut(at.pool as usize);
        let state = states.and_then(|states| states.get_mut(at.server as usize));
        let Some(state) = state else { return false };
        let is_over = state.topics.retry_at.take_if(|at| *at == set).is_some();
        if is_over {
            self.tend_topics(base, at);
        } else if state.topics.ping_at == Some(set) {
            self.ping_topics(base, at);
        }
        is_over
    }

    /// Opens the link, if the server can be reached, and tells it all that clients listen to.
    /// Returns how many topics that are.
    fn open_topics(&mut self, base: &mut Base, at: ServerAt) -> usize {
        let server = base.server(at);
        let home = base.pool(at).conn_keys.home;
        let conn_key = base.pool(at).conn_keys.of(home);
        let is_closed = is_out(server) || !server.is_in_service();
        let now = base.now;
        let state = self.state(at);
        let is_refused = state.unable_until > now || state.refuses(conn_key, now);
        if is_closed || state.topics.retry_at.is_some() {
            return 0;
        }
        if is_refused {
            self.state(at).topics.missing = None;
            self.retry_topics(base, at);
            return 0;
        }
        let wanted = base.pool(at).topics.names().into_iter();
        let is_wanted = |(kind, name): &TopicName| {
            base.pool(at).topics.is_wanted(*kind, name) && base.is_heard_at(at, *kind, name)
        };
        let wanted: Vec<TopicName> = wanted.filter(is_wanted).collect();
        if wanted.is_empty() {
            return 0;
        }
        let id = self.begin_connect(base, at, home, LinkClass::Subscribed);
        self.state(at).topics.link = Some(id);
        self.await_ping(base, at);
        #[cfg(seeded_bugs)]
        let wanted = if bug!(ForgetTopics) { wanted[..1].to_vec() } else { wanted };
        wanted.iter().for_each(|topic| self.tell_topic(base, at, topic, true));
        wanted.len()
    }

    /// Asks whether a server is there, unless it owes an answer anyway, and has it asked again.
    pub(super) fn ping_topics(&mut self, base: &mut Base, at: ServerAt) {
        self.await_ping(base, at);
        let Some(id) = self.state(at).topics.link else { return };
        let is_still = |link: &Link| link.is_up() && link.outstanding.is_empty();
        if self.links.find(id).is_some_and(is_still) {
            self.tell(base, at, Told::Ping);
        }
    }

    fn await_ping(&mut self, base: &mut Base, at: ServerAt) {
        let ping_at = base.now.after(limits::TOPICS_PING_US);
        self.state(at).topics.ping_at = Some(ping_at);
        base.timers.set(ping_at, Due::Topics(at));
    }

    fn retry_topics(&mut self, base: &mut Base, at: ServerAt) {
        let retry_at = base.now.after(limits::TOPICS_PAUSE_US);
        self.state(at).topics.retry_at = Some(retry_at);
        base.timers.set(retry_at, Due::Topics(at));
    }

    /// Tells a server to send the messages of a topic, or no more of them.
    fn tell_topic(&mut self, base: &mut Base, at: ServerAt, topic: &TopicName, joins: bool) {
        let (kind, name) = topic;
        let of = &mut self.state(at).topics.of[*kind as usize];
        let one = of.entry(Rc::clone(name)).or_default();
        one.joined = joins;
        one.unanswered += 1;
        self.tell(base, at, Told::Topic(topic.clone(), joins));
    }

    fn tell(&mut self, base: &mut Base, at: ServerAt, told: Told) {
        let upstream = base.pool(at).upstream;
        let state = &mut self.states[at.pool as usize][at.server as usize];
        let Some(id) = state.topics.link else { return };
        let Some(link) = self.links.find_mut(id) else { return };
        let before = link.out.len();
        link.out.open(&mut base.spares);
        match &told {
            Told::Topic((kind, name), joins) => {
                upstream.write_topic_request(*kind, *joins, name, link.out.copied());
            }
            Told::Ping => upstream.write_topic_ping(link.out.copied()),
        }
        let payload = Payload::internal(Internal::Plain);
        let form = MessageForm { payload, ask: Ask::default(), is_update: false };
        link.launch(form, (ConnId::NONE, Cost::default(), Effort::Quick), before, base.now);
        link.account(&mut base.memory);
        state.topics.asked.push_back(told);
        self.mark_dirty(id);
        self.arm(base, id);
    }

    /// Whether the servers have carried out what they were told of a topic. `joins`: it is to
    /// stand somewhere.
    pub(crate) fn settled(
        &self,
        base: &Base,
        pool: usize,
        (kind, name): &TopicName,
        joins: bool,
    ) -> Settled {
        if bug!(AcknowledgeEarly) {
            return Settled::Everywhere;
        }
        let (mut stands, mut missing) = (false, None);
        for (server, state) in self.states[pool].iter().enumerate() {
            let at = ServerAt { pool: pool as u32, server: server as u32 };
            match state.topics.of[*kind as usize].get(name) {
                Some(one) if one.unanswered > 0 => return Settled::Not,
                Some(one) => stands |= one.joined,
                None if base.is_heard_at(at, *kind, name) => missing = missing.or(Some(server)),
                None => {}
            }
        }
        match missing {
            _ if stands || !joins => Settled::Everywhere,
            Some(server) => {
                let at = ServerAt { pool: pool as u32, server: server as u32 };
                let is_up = base.server(at).health == Health::Ready;
                let topics = &self.states[pool][server].topics;
                match topics.missing.filter(|_| is_up) {
                    Some(Fault::LinkLost) if topics.retry_at.is_some() => {
                        Settled::Later(server as u32)
                    }
                    why => Settled::Nowhere(Some(server as u32), why.unwrap_or(Fault::Down)),
                }
            }
            None => Settled::Nowhere(None, Fault::NoServer),
        }
    }

    /// Returns how many subscribers of this worker a server does not know of, of those to whom it
    /// sends a message on this channel: it counts all of them as one.
    pub(crate) fn uncounted(
        &self,
        base: &Base,
        at: ServerAt,
        kind: TopicKind,
        channel: &[u8],
    ) -> usize {
        let topics = &base.pool(at).topics;
        if topics.is_empty() {
            return 0;
        }
        let states = &self.states[at.pool as usize];
        let own = &states[at.server as usize].topics;
        // Where a server has several names, subscriptions may stand under another one.
        let other = &states[base.pool(at).place_for_all(at.server as usize)].topics;
        let of = |kind: TopicKind, name: &[u8]| {
            let mut all =
                [own, other].into_iter().filter_map(|one| one.of[kind as usize].get(name));
            let stands = all.any(|one| one.confirmed);
            if stands { topics.listeners(kind, name).saturating_sub(1) } else { 0 }
        };
        let upstream = base.pool(at).upstream;
        let patterns = topics.of(TopicKind::Pattern).filter(|(pattern, _)| {
            kind == TopicKind::Channel && upstream.topic_matches(pattern, channel)
        });
        of(kind, channel) + patterns.map(|(name, _)| of(TopicKind::Pattern, name)).sum::<usize>()
    }

    /// Reads what a server has sent at the start of `input`.
    pub(crate) fn next_push(
        &mut self,
        base: &mut Base,
        id: ConnId,
        input: &[u8],
    ) -> Result<ToSubscribers, &'static str> {
        let Some(link) = self.links.find(id) else {
            return Ok(ToSubscribers::Nothing(input.len()));
        };
        let at = link.at;
        let push = match base.pool(at).upstream.read_push(input) {
            Parsed::Incomplete => return Ok(ToSubscribers::Incomplete),
            Parsed::Malformed(why) => return Err(why),
            Parsed::Complete(push) => push,
        };
        if let Pushed::Message { kind, topic } = push.what {
            return Ok(ToSubscribers::Message(push.len, kind, topic));
        }
        if link.outstanding.front().is_none_or(|first| first.end > link.sent) {
            return Err(UNASKED);
        }
        let told = self.state(at).topics.asked.pop_front();
        let (topic, joins) = match (told, push.what) {
            (Some(Told::Ping), Pushed::Alive | Pushed::Refused) => {
                self.end_message(base, id, ItemKind::Status);
                return Ok(ToSubscribers::Nothing(push.len));
            }
            (Some(Told::Topic(topic, joins)), _) => (topic, joins),
            _ => return Err(UNASKED),
        };
        let is_refused = match push.what {
            Pushed::Done { kind, joins: done, topic: name } => {
                if (kind, name.of(input), done) != (topic.0, &topic.1[..], joins) {
                    return Err(UNASKED);
                }
                false
            }
            Pushed::Refused if joins => true,
            Pushed::Refused => return Err(STAYS),
            Pushed::Message { .. } | Pushed::Alive => return Err(UNASKED),
        };
        let kind = if is_refused { ItemKind::Error } else { ItemKind::Status };
        self.end_message(base, id, kind);
        let is_newest = self.note_told(at, &topic, is_refused)?;
        Ok(match is_refused {
            true if is_newest => ToSubscribers::Refused(push.len, topic),
            true => ToSubscribers::Nothing(push.len),
            false => ToSubscribers::Done(push.len, topic),
        })
    }

    /// Notes a server's answer about a topic. Returns whether it is the newest.
    fn note_told(
        &mut self,
        at: ServerAt,
        (kind, name): &TopicName,
        is_refused: bool,
    ) -> Result<bool, &'static str> {
        let of = &mut self.state(at).topics.of[*kind as usize];
        let Some(one) = of.get_mut(name) else { return Err(UNASKED) };
        one.unanswered -= 1;
        let is_newest = one.unanswered == 0;
        one.confirmed = is_newest && one.joined;
        if is_newest && (is_refused || !one.joined) {
            of.remove(name);
        }
        Ok(is_newest)
    }

    /// Closes the link for subscriptions to a server that leaves the plan, or its service.
    pub(super) fn end_topics(&mut self, base: &mut Base, at: ServerAt) {
        self.state(at).topics.retry_at = None;
        if let Some(id) = self.state(at).topics.link {
            self.close_link(base, id, Fault::Dropped);
        }
    }

    /// Notes that a link for subscriptions is gone, with what stood on it.
    #[cold]
    pub(super) fn forget_topics(&mut self, base: &mut Base, link: &Link, fault: Fault) {
        let at = link.at;
        let has_stood =
            link.up_since().is_some_and(|since| base.now.since(since) >= limits::LINK_STOOD_US);
        let is_dropped = fault == Fault::Dropped;
        let topics = std::mem::take(&mut self.state(at).topics);
        let (mut lost, mut unanswered) = (Vec::new(), Vec::new());
        for kind in TopicKind::ALL {
            for (name, one) in &topics.of[kind as usize] {
                if one.confirmed && !is_dropped {
                    lost.push((kind, Rc::clone(name)));
                }
                if one.unanswered > 0 || is_dropped {
                    unanswered.push((kind, Rc::clone(name)));
                }
            }
        }
        self.state(at).counters.add(ServerCounter::SubscriptionsLost, lost.len() as u64);
        if !has_stood && !is_dropped {
            self.retry_topics(base, at);
        }
        let fault = if link.was_up() { Fault::LinkLost } else { fault };
        self.state(at).topics.missing = (!is_dropped).then_some(fault);
        self.events.push_back(LinkEvent::TopicsLost(TopicsLost { at, lost, unanswered }));
    }
}

const UNASKED: &str = "a change of subscriptions that was not asked for";
const STAYS: &str = "a subscription that cannot be ended";
