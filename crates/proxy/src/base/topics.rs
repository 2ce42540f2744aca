//! The topics that the clients of a pool listen to: channels, patterns and shard channels.
//!
//! A topic is here while a client listens to it, or waits until the servers have carried out a
//! change of it. `client/topics.rs` has what is about clients, `server/topics.rs` what the servers
//! were told.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proto::TopicKind;

use super::id::ConnId;
use super::limits;
use super::part::Part;

/// The topics of a pool.
#[derive(Default)]
pub(crate) struct Topics {
    of: [BTreeMap<Rc<[u8]>, Topic>; 3],
    /// Bytes of their names, and a place for each.
    bytes: usize,
}

/// A topic.
#[derive(Default)]
pub(crate) struct Topic {
    /// Those who listen.
    pub(crate) clients: BTreeSet<ConnId>,
    /// Requests that are answered when the servers have carried out what they were told last.
    pub(crate) waiting: Vec<WaitingTopic>,
}

/// A part of a request that waits for a topic.
#[derive(Clone, Copy)]
pub(crate) struct WaitingTopic {
    pub(crate) part: Part,
    /// Its client begins to listen.
    pub(crate) joins: bool,
}

impl Topics {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.iter().all(BTreeMap::is_empty)
    }

    /// Whether there is room for so many more, with so many bytes of names.
    pub(crate) fn has_room(&self, count: usize, bytes: usize) -> bool {
        let more = bytes.saturating_add(count.saturating_mul(limits::TOPIC_PLACE_LEN));
        self.bytes.saturating_add(more) <= limits::TOPICS_BYTES_MAX
    }

    pub(crate) fn find(&self, kind: TopicKind, name: &[u8]) -> Option<&Topic> {
        self.of[kind as usize].get(name)
    }

    pub(crate) fn find_mut(&mut self, kind: TopicKind, name: &[u8]) -> Option<&mut Topic> {
        self.of[kind as usize].get_mut(name)
    }

    /// Returns a topic, which is added if it is new, and its name as it is kept.
    pub(crate) fn find_or_add(&mut self, kind: TopicKind, name: &[u8]) -> (Rc<[u8]>, &mut Topic) {
        let of = &mut self.of[kind as usize];
        let kept = match of.get_key_value(name) {
            Some((kept, _)) => Rc::clone(kept),
            None => {
                self.bytes += name.len() + limits::TOPIC_PLACE_LEN;
                Rc::from(name)
            }
        };
        let topic = of.entry(Rc::clone(&kept)).or_default();
        (kept, topic)
    }

    /// Whether a client listens to a topic.
    pub(crate) fn is_wanted(&self, kind: TopicKind, name: &[u8]) -> bool {
        self.listeners(kind, name) > 0
    }

    /// Returns how many clients listen to exactly this topic.
    pub(crate) fn listeners(&self, kind: TopicKind, name: &[u8]) -> usize {
        self.find(kind, name).map_or(0, |topic| topic.clients.len())
    }

    /// Forgets a topic that nobody listens to and nothing waits for.
    pub(crate) fn tidy(&mut self, kind: TopicKind, name: &[u8]) {
        let is_over = |topic: &Topic| topic.clients.is_empty() && topic.waiting.is_empty();
        if self.find(kind, name).is_some_and(is_over) {
            self.of[kind as usize].remove(name);
            self.bytes -= name.len() + limits::TOPIC_PLACE_LEN;
        }
    }

    /// Lists the topics of a kind.
    pub(crate) fn of(&self, kind: TopicKind) -> impl Iterator<Item = (&Rc<[u8]>, &Topic)> {
        self.of[kind as usize].iter()
    }

    /// Returns the names of all topics, with their kinds.
    pub(crate) fn names(&self) -> Vec<(TopicKind, Rc<[u8]>)> {
        let of = |kind| self.of(kind).map(move |(name, _)| (kind, Rc::clone(name)));
        TopicKind::ALL.into_iter().flat_map(of).collect()
    }

    /// Returns how many parts of requests wait.
    pub(crate) fn waiting(&self) -> usize {
        let topics = self.of.iter().flat_map(BTreeMap::values);
        topics.map(|topic| topic.waiting.len()).sum()
    }

    /// Lists who listens to what.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (ConnId, TopicKind, &Rc<[u8]>)> {
        let of = |kind| {
            let pair = move |name| move |client: &ConnId| (*client, kind, name);
            self.of(kind).flat_map(move |(name, topic)| topic.clients.iter().map(pair(name)))
        };
        TopicKind::ALL.into_iter().flat_map(of)
    }
}
