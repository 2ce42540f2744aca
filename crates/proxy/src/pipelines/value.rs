//! Replies of servers to requests, as values for clients.

use metrics::PoolCounter;
use proto::{Item, Shown};

use super::Pipelines;
use crate::buffer::{Outbox, Source};
use crate::request::{RequestId, RequestInfo};

/// A server's reply to a request: the value of a key, or the one item of a single request.
pub(crate) enum Value<'a> {
    /// The bytes for the client, in one piece.
    Ready(Source<'a>),
    /// In one piece, to be rendered.
    ToRender(&'a Item, Source<'a>),
    /// The bytes for the client, from several reads. Boxed, since it is rare and as large as all
    /// others together.
    Assembled(Box<Outbox>),
    /// The client has received it already.
    Streamed,
}

impl Pipelines {
    /// Counts the hit or miss of a read that is answered by one item.
    pub(crate) fn note_found(&mut self, id: RequestId, item: &Item, head: &[u8]) {
        let pending = &self.requests[id];
        if let Some(found) = pending.info.found(item, head) {
            let counters = &self.pools[pending.pool as usize].counters;
            counters.add(PoolCounter::KeysAsked, 1);
            counters.add(if found { PoolCounter::Hits } else { PoolCounter::Misses }, 1);
        }
    }
}

impl Value<'_> {
    /// Whether the client has received a part of it, so that no other answer is possible.
    pub(super) fn is_begun(&self) -> bool {
        matches!(self, Value::Streamed)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Value::Ready(source) | Value::ToRender(_, source) => source.bytes.len(),
            Value::Assembled(outbox) => outbox.len(),
            Value::Streamed => 0,
        }
    }

    pub(super) fn write(self, info: &RequestInfo, out: &mut Outbox) {
        match self {
            // Nearly always.
            Value::Ready(source) => out.push(source),
            other => other.put((info, 0), out, Outbox::push),
        }
    }

    /// As `write`, to a place where it may have to wait.
    pub(super) fn store(self, info: (&RequestInfo, u32), out: &mut Outbox) {
        self.put(info, out, Outbox::keep);
    }

    /// As `store`, in one piece.
    pub(crate) fn flatten(self, info: (&RequestInfo, u32), out: &mut Vec<u8>) {
        if let Value::Ready(source) = self {
            return out.extend_from_slice(source.bytes);
        }
        let mut held = Outbox::default();
        self.put(info, &mut held, Outbox::push);
        held.drain_into(out);
    }

    fn put(
        self,
        (info, slot): (&RequestInfo, u32),
        out: &mut Outbox,
        add: fn(&mut Outbox, Source<'_>),
    ) {
        match self {
            Value::Ready(source) => add(out, source),
            Value::Assembled(mut held) => out.append(&mut held),
            Value::Streamed => {}
            Value::ToRender(item, source) => {
                let (head, body) = (item.head as usize, item.body as usize);
                let shown = info.render(slot, item, &source.bytes[..head], out.copied());
                if let Shown::Body { trailer } = shown {
                    add(out, source.part(head, head + body));
                    out.copy(trailer);
                }
            }
        }
    }
}
