//! The request itself, as far as its answer depends on it.

use proto::{Answer, Ask, Asked, Class, Item, Protocol, Quiet, Request, Shown, Span};

use crate::base::buffer::Spares;
use crate::base::limits;
use crate::base::room::NoRoom;

/// The request itself, as far as its answer depends on it.
pub(in crate::client) struct RequestInfo {
    /// The client's protocol.
    pub(in crate::client) protocol: &'static dyn Protocol,
    pub(in crate::client) command: u16,
    /// The family of its command.
    pub(in crate::client) family: u8,
    pub(in crate::client) quiet: Quiet,
    /// The form in which the server was asked.
    pub(in crate::client) ask: Ask,
    /// The server's reply is rendered for the client, which needs the request's head. The head is
    /// kept.
    pub(in crate::client) keep: bool,
    /// Its slots hold whole replies as they came, from which one answer is made.
    pub(in crate::client) gathers: bool,
    /// The replies that it gathers are lists with one element for each key.
    pub(in crate::client) element_per_key: bool,
    /// The number of elements in its answer, if it went to one server unchanged and the answer is a
    /// list.
    pub(in crate::client) elements: Option<u32>,
    /// How many times it was sent again after a retryable error; `None` if it may not be.
    pub(in crate::client) repeats: Option<u8>,
    /// Set when its data was refused. The outstanding message removes the old value of its key.
    pub(in crate::client) no_room: Option<NoRoom>,
    /// It waits to be sent again, and stands in no queue.
    pub(in crate::client) awaits_retry: bool,
    /// Its server has had the recovery command. That happens once: a server that forgets it at once
    /// does not get it again.
    pub(in crate::client) recovered: bool,
    /// How often its client had ended what it watches, if it is a request to watch keys.
    pub(in crate::client) watches_ended: u32,
    /// The index of the server that was asked.
    pub(in crate::client) at: u32,
    /// The index of the server where the walk over the servers continues, if this is a step of one.
    pub(in crate::client) next: Option<u32>,
    pub(in crate::client) head: Vec<u8>,
    /// Where each joined request's part of the head ends, if it was joined from several.
    pub(super) ends: Vec<u32>,
}

impl RequestInfo {
    pub(in crate::client) fn asked(&self) -> Asked<'_> {
        let RequestInfo { command, quiet, ask, at, next, .. } = *self;
        Asked { command, quiet, ask, head: &self.head, at, next }
    }

    /// Whether the reply to a request in form `asked` has to be rendered: its client uses another
    /// form, or the reply contains more than this client asked for.
    pub(in crate::client) fn is_rendered(&self, asked: Ask) -> bool {
        (self.keep || self.ask != asked) && !self.gathers
    }

    /// Returns the request for this key of a read. Of joined requests it is the one about this key.
    pub(super) fn asked_for(&self, slot: u32) -> Asked<'_> {
        let slot = slot as usize;
        let Some(end) = self.ends.get(slot) else { return self.asked() };
        let start = if slot == 0 { 0 } else { self.ends[slot - 1] };
        Asked { head: &self.head[start as usize..*end as usize], ..self.asked() }
    }

    /// Notes that it was joined from requests for these keys, each with an answer of its own.
    pub(in crate::client) fn join(&mut self, keys: &[Span]) {
        self.ends.extend(keys.iter().map(|key| key.end));
    }

    /// Whether each of its keys is answered by itself, errors included.
    pub(super) fn is_joined(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Writes an answer of our own.
    #[inline]
    pub(in crate::client) fn answer(&self, answer: &Answer<'_>, out: &mut Vec<u8>) {
        self.protocol.answer(&self.asked(), answer, out);
    }

    /// Whether this item, which begins with `head`, can be its one answer. If the head of the
    /// request was not kept, the answer repeats nothing of it.
    pub(in crate::client) fn is_answer(&self, item: &Item, head: &[u8]) -> bool {
        !self.keep || self.protocol.is_answer(&self.asked(), item, head)
    }

    /// Returns whether it found something, if it is a read that this one item answers.
    pub(in crate::client) fn found(&self, item: &Item, head: &[u8]) -> Option<bool> {
        if !self.keep || self.no_room.is_some() {
            return None;
        }
        self.protocol.found(&self.asked(), item, head)
    }

    /// Renders a server's item. `slot` is the index of the key in a read.
    pub(in crate::client) fn render(
        &self,
        slot: u32,
        item: &Item,
        head: &[u8],
        out: &mut Vec<u8>,
    ) -> Shown {
        if let Some(no_room) = self.no_room {
            self.answer(&no_room.answer(), out);
            return Shown::Head;
        }
        self.protocol.render(&self.asked_for(slot), item, head, out)
    }

    pub(super) fn set(
        &mut self,
        protocol: &'static dyn Protocol,
        (request, head): (&Request, &[u8]),
        spares: &mut Spares,
    ) {
        self.protocol = protocol;
        (self.command, self.family) = (request.command, request.family);
        self.quiet = request.quiet;
        self.keep = request.keep;
        (self.gathers, self.element_per_key, self.elements) = (false, false, None);
        (self.ask, self.at, self.next) = (Ask::default(), 0, None);
        self.no_room = None;
        self.recovered = false;
        self.repeats = None;
        // A broadcast's head is needed to make one answer and, whatever its length, to learn from
        // it.
        let is_asked_of_all = matches!(request.class, Class::Broadcast { .. });
        if !request.keep && !request.repeat && !is_asked_of_all {
            return;
        }
        let is_short = head.len() <= limits::REPEAT_MAX;
        if request.repeat && request.body == 0 && is_short {
            self.repeats = Some(0);
        }
        let is_needed = is_asked_of_all && (is_short || request.repeat);
        if request.keep || self.repeats.is_some() || is_needed {
            if head.len() > limits::REQUEST_KEEP_MAX {
                self.head = spares.take();
            }
            self.head.extend_from_slice(head);
        }
    }

    pub(super) fn clear(&mut self, spares: &mut Spares) {
        self.head.clear();
        self.ends.clear();
        if self.head.capacity() > limits::REQUEST_KEEP_MAX {
            spares.give(std::mem::take(&mut self.head));
        }
    }
}
