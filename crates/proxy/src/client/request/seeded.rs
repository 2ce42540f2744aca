//! Seeded bugs of the request table. Only in builds with `--cfg seeded_bugs`.

use super::{PendingRequests, State};
use crate::base::part::{NONE, RequestId};

impl PendingRequests {
    /// `LoseOpaque`: renders a request's answer as that of the one before it, if they are alike.
    pub(in crate::client) fn lose_opaque(&mut self, pending: RequestId, before: RequestId) {
        if !bug!(LoseOpaque) || before == NONE {
            return;
        }
        let head = self[before].info.head.clone();
        let (own, other) = (&self[pending].info, &self[before].info);
        if own.head.len() == head.len() && own.command == other.command {
            self[pending].info.head = head;
        }
    }

    /// `SwapReplies`: swaps the first two answers of a pipeline.
    pub(in crate::client) fn swap_replies(&mut self, first: RequestId) {
        let second = self[first].next;
        if !bug!(SwapReplies) || second == NONE || self[second].state != State::Done {
            return;
        }
        let reply = std::mem::take(&mut self[first].reply);
        let reply = std::mem::replace(&mut self[second].reply, reply);
        self[first].reply = reply;
    }
}
