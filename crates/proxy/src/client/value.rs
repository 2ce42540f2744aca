//! Replies of servers to requests, as values for clients.

use metrics::PoolCounter;
use proto::{Ask, Item, Quiet, Shown};

use super::Clients;
use super::request::{PendingRequest, RequestInfo};
use crate::base::Base;
use crate::base::access::Results;
use crate::base::buffer::{Outbox, Source};
use crate::base::part::{Part, RequestId};

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

/// How a reply answers a part of a request.
#[derive(Clone, Copy)]
pub(crate) struct ReplyTo {
    /// It has to be rendered for the client.
    pub(crate) is_rendered: bool,
    /// It is gathered with others into one answer.
    pub(crate) gathers: bool,
}

impl Clients {
    /// Returns how a reply answers a part, for which the server was asked in this form.
    #[inline]
    pub(crate) fn reply_to(&self, part: Part, asked: Ask) -> ReplyTo {
        let info = &self.requests[part.request].info;
        ReplyTo { is_rendered: info.is_rendered(asked), gathers: info.gathers }
    }

    /// Checks that the reply to a request, or to this many of its keys together, can be its answer.
    /// `head` is how the reply begins.
    #[inline]
    pub(crate) fn check_reply(
        &self,
        base: &Base,
        part: Part,
        keys: Option<u32>,
        (item, head): (&Item, &[u8]),
    ) -> Result<(), &'static str> {
        let PendingRequest { info, pool, .. } = &self.requests[part.request];
        if let Some(expected) = self.elements(part, keys) {
            let elements = base.pools[*pool as usize].upstream.elements(head);
            if elements.is_none_or(|(_, count)| count != u64::from(expected))
                && !bug!(BelievePoison)
            {
                return Err(WRONG_NUMBER);
            }
        }
        match keys.is_some() || info.is_answer(item, head) {
            true => Ok(()),
            false => Err(WRONG_ANSWER),
        }
    }

    /// Returns the number of elements that the reply to a part must have, of which `keys` keys are
    /// answered together.
    #[inline]
    pub(crate) fn elements(&self, part: Part, keys: Option<u32>) -> Option<u32> {
        let info = &self.requests[part.request].info;
        match keys {
            Some(keys) => info.element_per_key.then_some(keys),
            None => info.elements,
        }
    }

    /// Whether the replies to a request are gathered into one answer.
    pub(crate) fn gathers(&self, part: Part) -> bool {
        self.requests[part.request].info.gathers
    }

    /// Counts the hit or miss of a read that is answered by one item.
    pub(crate) fn note_found(&mut self, base: &Base, part: Part, item: &Item, head: &[u8]) {
        let pending = &mut self.requests[part.request];
        if let Some(found) = pending.info.found(item, head) {
            pending.access.results.add(if found { Results::HIT } else { Results::MISS });
            let counters = &base.pools[pending.pool as usize].counters;
            counters.add(PoolCounter::KeysAsked, 1);
            counters.add(if found { PoolCounter::Hits } else { PoolCounter::Misses }, 1);
        }
    }

    /// Notes a miss that leaves no answer of its own, whose length would be noted.
    pub(super) fn note_miss(&mut self, base: &Base, id: RequestId) {
        let pending = &self.requests[id];
        if pending.slots.is_empty() && pending.info.quiet == Quiet::Loud {
            return;
        }
        let command = pending.info.command;
        if let Some(client) = self.table.find_mut(pending.client) {
            client.sizes.note_miss(command, base.now);
        }
    }
}

const WRONG_NUMBER: &str = "a different number of values than was asked for";
const WRONG_ANSWER: &str = "an answer with another key or identifier than was asked for";

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

    /// Returns its bytes, if they are here in one piece.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Ready(source) | Value::ToRender(_, source) => Some(source.bytes),
            Value::Assembled(_) | Value::Streamed => None,
        }
    }

    // Measured.
    #[inline(always)]
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
    pub(super) fn flatten(self, info: (&RequestInfo, u32), out: &mut Vec<u8>) {
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
