//! The items of which a server's reply consists.

use crate::Span;

/// One item of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub kind: ItemKind,
    /// Length of the head.
    pub head: u32,
    /// Length of the body, without its trailer.
    pub body: u64,
    /// Bytes that must end the body.
    pub trailer: &'static [u8],
    /// A value's key, in the head. A later piece of a reply that has one is not for the client.
    pub key: Span,
}

impl Item {
    /// Length of the whole item.
    pub fn len(&self) -> u64 {
        u64::from(self.head) + self.body + self.trailer.len() as u64
    }

    /// An item has at least a head; this exists beside `len` by convention.
    pub fn is_empty(&self) -> bool {
        self.head == 0
    }
}

/// The meaning of an item for the pending request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// The value of one of the keys; more items follow.
    Value,
    /// The end of the values.
    End,
    /// The one item that answers a single request or a broadcast. It may have a body.
    Status,
    /// A server's error in place of the rest of the reply.
    Error,
    /// A piece of the reply to a single request or a broadcast; the last one is a `Status`.
    Part,
}

impl ItemKind {
    /// Whether a reply ends with it.
    pub fn ends_reply(self) -> bool {
        !matches!(self, ItemKind::Value | ItemKind::Part)
    }
}
