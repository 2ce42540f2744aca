//! Replies of servers to requests, as values for clients.

use metrics::Pool as Counter;
use proto::{Item, Shown};

use super::Pipelines;
use crate::buffer::{Outbox, Source};
use crate::request::{Question, RequestId};

/// A server's reply to a request: the value of a key, or the one item of a single request.
pub(crate) enum Value<'a> {
    /// The bytes for the client, in one piece.
    Flat(Source<'a>),
    /// In one piece, to be rendered.
    Foreign(&'a Item, Source<'a>),
    /// The bytes for the client, from several reads. Boxed, since it is rare and as large as all
    /// others together.
    Held(Box<Outbox>),
    /// The client has received it already.
    Streamed,
}

impl Pipelines {
    /// Counts the hit or miss of a read that is answered by one item.
    pub(crate) fn note_found(&mut self, id: RequestId, item: &Item, head: &[u8]) {
        let pending = &self.requests[id];
        if let Some(found) = pending.question.found(item, head) {
            let counters = &self.pools[pending.pool as usize].counters;
            counters.add(Counter::KeysAsked, 1);
            counters.add(if found { Counter::Hits } else { Counter::Misses }, 1);
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
            Value::Flat(source) | Value::Foreign(_, source) => source.bytes.len(),
            Value::Held(outbox) => outbox.len(),
            Value::Streamed => 0,
        }
    }

    pub(super) fn write(self, question: &Question, out: &mut Outbox) {
        match self {
            // Nearly always.
            Value::Flat(source) => out.push(source),
            other => other.put((question, 0), out, Outbox::push),
        }
    }

    /// As `write`, to a place where it may have to wait.
    pub(super) fn store(self, question: (&Question, u32), out: &mut Outbox) {
        self.put(question, out, Outbox::keep);
    }

    /// As `store`, in one piece.
    pub(crate) fn flatten(self, question: (&Question, u32), out: &mut Vec<u8>) {
        if let Value::Flat(source) = self {
            return out.extend_from_slice(source.bytes);
        }
        let mut held = Outbox::default();
        self.put(question, &mut held, Outbox::push);
        held.drain_into(out);
    }

    fn put(
        self,
        (question, slot): (&Question, u32),
        out: &mut Outbox,
        add: fn(&mut Outbox, Source<'_>),
    ) {
        match self {
            Value::Flat(source) => add(out, source),
            Value::Held(mut held) => out.append(&mut held),
            Value::Streamed => {}
            Value::Foreign(item, source) => {
                let (head, body) = (item.head as usize, item.body as usize);
                let shown = question.render(slot, item, &source.bytes[..head], out.copied());
                if let Shown::Body { trailer } = shown {
                    add(out, source.part(head, head + body));
                    out.copy(trailer);
                }
            }
        }
    }
}
