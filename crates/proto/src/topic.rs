//! Subscriptions: what clients listen to, and the messages that servers push.

use std::borrow::Cow;

use crate::{Refusal, Span};

/// What a topic stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopicKind {
    /// The name of a channel.
    Channel,
    /// A pattern of names of channels.
    Pattern,
    /// The name of a shard channel. These are apart from the other channels.
    Shard,
}

impl TopicKind {
    pub const ALL: [TopicKind; 3] = [TopicKind::Channel, TopicKind::Pattern, TopicKind::Shard];
}

/// A client's request to listen to topics, or not to listen to them any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRequest<'a> {
    pub kind: TopicKind,
    /// It begins to listen; otherwise it ends.
    pub joins: bool,
    /// Without any, it ends to listen to all topics of this kind.
    pub topics: Vec<Cow<'a, [u8]>>,
}

/// The answer about one topic of such a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicAnswer<'a> {
    pub kind: TopicKind,
    pub joins: bool,
    /// None: it listened to none of this kind.
    pub topic: Option<&'a [u8]>,
    /// The number of topics that it listens to now: channels and patterns together, or shard
    /// channels.
    pub count: usize,
}

/// What becomes of another request of a client that listens to topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileSubscribed {
    /// The same as of any other client's.
    AsUsual,
    /// It has the answer that is a push as well.
    Alive,
    Refused(Refusal),
}

/// What a server has sent on a link for subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// Length of the whole.
    pub len: usize,
    pub what: Pushed,
}

/// The meaning of what a server has sent on a link for subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// A message, for those who listen to this topic.
    Message { kind: TopicKind, topic: Span },
    /// The oldest request is carried out.
    Done { kind: TopicKind, joins: bool, topic: Span },
    /// The oldest request is refused: this is an error line.
    Refused,
    /// The oldest request only asked whether the server is there.
    Alive,
}
