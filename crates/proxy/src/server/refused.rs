//! A server may refuse a message before all of it is sent, by the head of its value. If it then
//! passes over the rest as it comes (`Bound::passes_over`), the rest must leave; but the client has
//! its answer, and no other reply comes.
//!
//! ```text
//!   sent      set k 0 0 9000000  xxxxxxxxxx│
//!   received  SERVER_ERROR object too large│
//!   left                                   │xxxxxxxxxxx  get a      a rest, and the next message
//! ```

use proto::Ask;

use super::link::Link;
use super::message::{Internal, Late, Message, Payload};
use crate::Time;
use crate::base::id::ConnId;
use crate::base::part::Effort;
use crate::base::phases::UNSENT;
use crate::base::size::Cost;

impl Link {
    /// Notes that the first message, which has been taken, has its whole reply, although not all of
    /// it is sent. What is left of it keeps its place.
    #[cold]
    pub(super) fn note_refused_early(&mut self, end: u64, now: Time) {
        assert!(self.done < self.sent && self.sent < end, "a part of it is sent");
        self.outstanding.push_front(rest_of(end, now));
        self.reply_began = UNSENT;
        self.since = now;
        self.owed = now;
        self.proven = true;
    }

    /// Forgets the rest of a refused message once all of it is sent.
    pub(super) fn forget_refused(&mut self) {
        if let Some(end) = self.refused_until().filter(|end| *end <= self.sent) {
            self.outstanding.pop_front();
            self.done = end;
        }
    }

    /// Drops the rest of a refused message, since the link is dead. Nothing is owed on it then.
    pub(super) fn drop_refused(&mut self) {
        if let Some(end) = self.refused_until() {
            self.out.advance((end - self.sent) as usize);
            self.sent = end;
            self.forget_refused();
        }
    }

    /// Whether its server has answered a request on it.
    pub(super) fn has_answered(&self) -> bool {
        self.done > 0 || self.refused_until().is_some()
    }

    /// Returns where the rest of a refused message ends, if one is to leave next.
    fn refused_until(&self) -> Option<u64> {
        let first = self.outstanding.front()?;
        (first.late == Late::Refused).then_some(first.end)
    }
}

/// Makes a message of what is left of a refused one.
fn rest_of(end: u64, now: Time) -> Message {
    Message {
        payload: Payload::internal(Internal::Plain),
        ask: Ask::default(),
        is_update: false,
        end,
        since: now,
        held: false,
        client: ConnId::NONE,
        cost: Cost::default(),
        effort: Effort::Quick,
        late: Late::Refused,
        inflight: 0,
        waited: 0,
    }
}
