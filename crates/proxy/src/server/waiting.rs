//! A message that waits for a link.

use proto::Ask;

use super::batch::{Batch, Entry};
use super::message::{MessageForm, Payload};
use crate::Time;
use crate::base::buffer::Outbox;
use crate::base::part::{Effort, Part, RequestId};
use crate::base::size::Cost;

/// A message that waits, or keys of one client that may be merged with others'.
pub(super) struct Waiting {
    pub(super) payload: Payload,
    pub(super) ask: Ask,
    pub(super) is_update: bool,
    /// Its bytes; empty if it is a batch.
    pub(super) out: Outbox,
    /// The cost of the message. Keys that may be merged have their own.
    pub(super) cost: Cost,
    pub(super) effort: Effort,
    /// The keys may be merged with those of others.
    pub(super) merges: bool,
    /// Since when it waits, or since its last key was served.
    pub(super) since: Time,
    /// It waits, or has waited, because the server was silent.
    pub(super) held: bool,
    /// The number of replies before its own, if it is a block.
    pub(super) steps: u32,
}

impl Waiting {
    /// Returns the last part of a request in it.
    pub(super) fn last(&self) -> Part {
        match &self.payload {
            Payload::Fetch(batch) => batch.entries[batch.entries.len() - 1].part,
            Payload::Single(part) => *part,
            Payload::Internal(_) => {
                unreachable!("the proxy's own commands do not wait")
            }
        }
    }

    /// Returns the first part of a request in it.
    pub(super) fn first(&self) -> (Part, Cost) {
        match &self.payload {
            Payload::Fetch(batch) => {
                let Entry { part, cost, .. } = batch.entries[batch.cursor];
                (part, if self.merges { cost } else { self.cost })
            }
            Payload::Single(part) => (*part, self.cost),
            Payload::Internal(_) => {
                unreachable!("the proxy's own commands do not wait")
            }
        }
    }

    /// Gives its first part another cost and effort. Keys that leave together keep their cost; if
    /// their answers are unproven, they count as one.
    pub(super) fn renew(&mut self, cost: Cost, effort: Effort) {
        self.effort = effort;
        match &mut self.payload {
            Payload::Fetch(batch) if self.merges => batch.renew(batch.cursor, cost),
            Payload::Fetch(batch) => {
                let first = batch.entries[0].cost;
                if cost.is_unproven() && !first.is_unproven() {
                    batch.renew(0, first.unproven_as(cost));
                }
            }
            _ => self.cost = cost,
        }
    }

    /// Returns the number of messages, or of keys that may be merged.
    pub(super) fn len(&self) -> usize {
        match &self.payload {
            Payload::Fetch(batch) if self.merges => batch.entries.len() - batch.cursor,
            _ => 1,
        }
    }

    /// As `len`, without what is of this request.
    pub(super) fn len_without(&self, request: Option<RequestId>) -> usize {
        match &self.payload {
            Payload::Fetch(batch) if self.merges => {
                let waiting = &batch.entries[batch.cursor..];
                waiting.iter().filter(|entry| Some(entry.part.request) != request).count()
            }
            _ => usize::from(Some(self.last().request) != request),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.payload {
            Payload::Fetch(batch) => batch.bytes(),
            _ => self.out.held(),
        }
    }

    /// Returns the number of parts that wait in it.
    pub(super) fn parts(&self) -> usize {
        match &self.payload {
            Payload::Fetch(batch) => batch.outstanding().count(),
            _ => 1,
        }
    }

    /// Makes a message that waits from a request's bytes.
    pub(super) fn message(
        form: MessageForm,
        out: Outbox,
        (cost, effort): (Cost, Effort),
        now: Time,
    ) -> Waiting {
        let MessageForm { payload, ask, is_update } = form;
        let (merges, held) = (false, false);
        let (since, steps) = (now, 0);
        Waiting { payload, ask, is_update, out, cost, effort, merges, since, held, steps }
    }

    /// Makes keys that wait and may be merged with others'. Each has its own cost.
    pub(super) fn merging(batch: Box<Batch>, now: Time) -> Waiting {
        let effort = (Cost::default(), Effort::Quick);
        let form = MessageForm::batch(batch);
        Waiting { merges: true, ..Waiting::message(form, Outbox::default(), effort, now) }
    }

    /// Makes a message that waits from keys that leave together.
    pub(super) fn batch(batch: Box<Batch>, now: Time) -> Waiting {
        let cost =
            batch.entries.iter().fold(Cost::default(), |sum, entry: &Entry| sum.plus(entry.cost));
        let effort = (cost, Effort::Quick);
        Waiting::message(MessageForm::batch(batch), Outbox::default(), effort, now)
    }
}
