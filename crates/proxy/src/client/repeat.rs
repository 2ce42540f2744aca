//! Requests that are sent once more: after a retryable error, when their server did nothing, since
//! it cannot serve yet or has forgotten a definition; and reads whose link has died.
//!
//! ```text
//!   retryable error ──▶ is the request its client's last, and is there time?
//!     yes ──▶ pause reading the client · recovery, if there is one · wait ──▶ routed, sent again
//!     no  ──▶ the client gets the error · recovery all the same, for the next client that asks
//! ```
//!
//! Only a client's last request is sent again after an error. Its later requests would be executed
//! before it, and requests of one client must not change places.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};

use proto::{Ask, Parsed, Quiet, Request, Resume, Retryable};

use super::Clients;
use super::session::{Client, State};
use crate::base::id::ConnId;
use crate::base::part::{LinkClass, NONE, Part, RequestId, Requester};
use crate::base::timers::Due;
use crate::base::{Base, limits};

/// A retryable error, and whether its request may be sent again.
#[derive(Clone, Copy)]
pub(crate) struct Repeat {
    retryable: &'static Retryable,
    /// How often the request has been sent again already.
    times: u8,
    /// How long it waits, in microseconds.
    pause: u64,
    pub(crate) may: bool,
}

/// The command that must go before a request that is sent again.
pub(crate) enum Recovery {
    /// Nothing, or it is on its way.
    Done,
    /// There is none.
    Impossible,
    /// This internal command, and the number by which it is known.
    Send { ask: Ask, number: u64, words: Vec<u8> },
}

/// A request that is sent again.
pub(crate) struct Again {
    pub(crate) asks: Requester,
    pub(crate) request: Request,
    pub(crate) head: Vec<u8>,
    /// Its client has left, and asks again on another connection.
    pub(crate) is_given_up: bool,
}

impl Clients {
    /// Returns how a request goes on that a server answered with this error line, on a link with
    /// this connection key; `None` if the client gets the error.
    pub(crate) fn repeat_after(
        &self,
        base: &Base,
        part: Part,
        conn_key: Option<u16>,
        line: &[u8],
    ) -> Option<Repeat> {
        let pending = &self.requests[part.request];
        let times = pending.info.repeats?;
        let pool = &base.pools[pending.pool as usize];
        let retryable = pool.upstream.retryable(line).or_else(|| {
            let mut all = pool.upstream.retryable_errors().iter();
            all.find(|error| bug!(RepeatExecuted) && !error.needs_recovery)
        })?;
        // After a recovery there is no need to wait.
        let pause = match retryable.needs_recovery {
            true => 0,
            false => limits::REPEAT_FIRST_US << times.min(6),
        };
        let deadline = pending.since.after(pool.plan.timeouts.reply);
        // The request would be sent with its client's present connection key.
        let is_last = self.table.find(pending.client).is_some_and(|client| {
            client.pipeline.tail == part.request
                && client.pipeline.silent_count == 0
                && Some(client.conn_key) == conn_key
                && client.state == State::Open
        });
        let may = (is_last || bug!(RepeatPastOthers))
            && !pending.info.gathers
            && pending.info.quiet == Quiet::Loud
            && base.now.after(pause) < deadline;
        Some(Repeat { retryable, times, pause, may })
    }

    /// Returns what has to be sent before a request is sent again.
    pub(crate) fn recovery(
        &self,
        base: &Base,
        part: Part,
        repeat: Repeat,
        is_sent: impl Fn(u64) -> bool,
    ) -> Recovery {
        if !repeat.retryable.needs_recovery {
            return Recovery::Done;
        }
        let pending = &self.requests[part.request];
        let info = &pending.info;
        if info.recovered {
            return Recovery::Impossible;
        }
        let definitions = &base.pools[pending.pool as usize].definitions;
        // Many requests of a pipeline may need the same one, so the cheap lookup comes first.
        let (number, is_on_its_way) = (Cell::new(0), Cell::new(false));
        let known = |name: &[u8]| {
            number.set(fingerprint(name));
            is_on_its_way.set(is_sent(number.get()));
            if is_on_its_way.get() { None } else { definitions.find(name) }
        };
        let mut words = Vec::new();
        let asked = info.asked();
        match info.protocol.recovery(&asked, repeat.retryable, &known, &mut words) {
            _ if is_on_its_way.get() => Recovery::Done,
            Some(ask) => Recovery::Send { ask, number: number.get(), words },
            None => Recovery::Impossible,
        }
    }

    /// Has a request sent again when its pause is over.
    pub(crate) fn repeat(&mut self, base: &mut Base, part: Part, server: u32, repeat: Repeat) {
        let pending = &mut self.requests[part.request];
        let info = &mut pending.info;
        (info.repeats, info.awaits_retry) = (Some(repeat.times.saturating_add(1)), true);
        info.recovered |= repeat.retryable.needs_recovery;
        let server = &base.pools[pending.pool as usize].servers[server as usize];
        server.counters.add_own(repeat.retryable.place, 1);
        base.timers.set(base.now.after(repeat.pause), Due::Again(part.request));
        let owner = pending.client;
        self.pause_until_idle(base, owner);
    }

    /// Has a request wait for another pause. Returns false if there is no time for it, or if its
    /// client's later requests do not wait for it.
    #[cold]
    pub(crate) fn rest_again(&mut self, base: &mut Base, id: RequestId) -> bool {
        self.requests[id].asked_again == 0 && self.pause_again(base, id)
    }

    /// Has a request wait for another pause. Returns false if there is no time for it.
    #[cold]
    pub(crate) fn pause_again(&mut self, base: &mut Base, id: RequestId) -> bool {
        let pending = &mut self.requests[id];
        let reply = base.pools[pending.pool as usize].plan.timeouts.reply;
        let due = base.now.after(limits::REPEAT_FIRST_US);
        if due >= pending.since.after(reply) {
            return false;
        }
        pending.info.awaits_retry = true;
        base.timers.set(due, Due::Again(id));
        true
    }

    /// Takes up a request whose pause is over; `None` if its client is gone.
    pub(crate) fn take_up(&mut self, base: &mut Base, id: RequestId) -> Option<Again> {
        let pending = &mut self.requests[id];
        assert!(pending.info.awaits_retry, "it waits for nothing else");
        pending.info.awaits_retry = false;
        let is_given_up = pending.cancelled && pending.writes;
        let Some(client) = self.table.find(pending.client) else {
            self.settle_part(base, id);
            return None;
        };
        let asks = client.requester(pending.client);
        let head = pending.info.head.clone();
        let protocol = pending.info.protocol;
        let parsed = protocol.parse_request(&head, &mut Resume::default(), &mut base.keys);
        let Parsed::Complete(request) = parsed else {
            unreachable!("the same bytes are the same request")
        };
        Some(Again { asks, request, head, is_given_up })
    }

    /// Whether a get may be sent once more that was lost with a link of this connection key. Its
    /// client must be there with the same connection key, and must have sent no change after it:
    /// the second attempt must not see a state that the first could not have seen. A client that
    /// takes other links since may still be owed the answer to an earlier change on those that it
    /// took before. It must not have been sent again before, since it may be what ends the links;
    /// where another client is `blamed` for that, a few times are allowed. None of the client that
    /// is blamed is. Returns which time it would be.
    pub(crate) fn may_ask_again(
        &self,
        id: RequestId,
        conn_key: u16,
        blamed: Option<ConnId>,
    ) -> Option<u8> {
        let pending = &self.requests[id];
        if Some(pending.client) == blamed {
            return None;
        }
        let client = self.table.find(pending.client);
        let takes_the_same =
            |client: &Client| client.conn_key == conn_key && client.class != LinkClass::Moved;
        let is_there =
            client.is_some_and(|client| takes_the_same(client) || bug!(AskWithOtherConnKey));
        let most = if blamed.is_some() { limits::ASKED_AGAIN_MAX } else { 1 };
        let may = is_there && pending.asked_again < most && !self.has_changed_since(id);
        may.then(|| pending.asked_again + 1)
    }

    /// As `may_ask_again`, for a read that is kept until it is answered.
    pub(crate) fn may_read_again(
        &self,
        id: RequestId,
        conn_key: u16,
        blamed: Option<ConnId>,
    ) -> Option<u8> {
        let pending = &self.requests[id];
        let is_read = !pending.writes && !pending.info.gathers && pending.info.repeats.is_some();
        if is_read { self.may_ask_again(id, conn_key, blamed) } else { None }
    }

    /// Notes that a part of a request is sent once more, for this time.
    pub(crate) fn note_again(&mut self, id: RequestId, nth: u8) {
        self.requests[id].asked_again = nth;
    }

    /// Notes that a read is to be taken up and sent once more.
    pub(crate) fn note_read_again(&mut self, id: RequestId, nth: u8) {
        let pending = &mut self.requests[id];
        (pending.asked_again, pending.info.awaits_retry) = (nth, true);
    }

    /// Whether the client of a request has sent a change after it that no answer has followed yet,
    /// or may have.
    pub(crate) fn has_changed_since(&self, id: RequestId) -> bool {
        let pending = &self.requests[id];
        // A client that has left sees nothing, and the entries behind its own may belong to others
        // by now.
        let client = self.table.find(pending.client).filter(|_| !bug!(AskAgainPastWrite));
        let Some(client) = client else { return false };
        // A change that needs no answer may have been carried out meanwhile, on another server.
        let came_since = pending.since <= client.pipeline.silent_at;
        if client.pipeline.silent_count > 0 || came_since {
            return true;
        }
        let mut later = pending.next;
        while later != NONE {
            if self.requests[later].writes {
                return true;
            }
            later = self.requests[later].next;
        }
        false
    }
}

/// Returns a fingerprint of a name. If two names collide, a client gets the error and nothing worse
/// happens.
fn fingerprint(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}
