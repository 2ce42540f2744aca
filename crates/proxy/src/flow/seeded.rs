//! Seeded bugs that take more than a wrong condition. Only in builds with `--cfg seeded_bugs`.

use proto::{Ask, MarkUse, Request};

use crate::bug;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Message, Payload};
use crate::request::{NONE, PendingRequests, RequestId, State};
use crate::{Proxy, Time};

impl Proxy {
    /// `AnswerAfterTimeout`: gives up the request, but not its link.
    pub(super) fn give_up_first(&mut self, id: ConnId, now: Time) {
        let link = self.links.find_mut(id).expect("the caller found it");
        let server = link.server;
        let Some(message) = link.outstanding.pop_front() else { return };
        link.done = message.end.min(link.sent);
        link.since = now;
        self.note_owing(id, now);
        self.fail_message(message, server, Fault::ReplyTimeout, true);
        self.arm_link(id);
    }

    /// `CloseUnchanged`: closes a link of a server that is in both plans.
    pub(super) fn disturb(&mut self, pool: usize) {
        let links = self.links.iter().filter(|(_, link)| link.pool as usize == pool);
        let idle = links.filter(|(_, link)| link.is_idle()).map(|(id, _)| id).next();
        if let Some(id) = idle.filter(|_| bug!(CloseUnchanged)) {
            self.close_quietly(id);
        }
    }

    /// `ResendUpdate`, `WinTwice`: keeps the bytes for sending an update without data again.
    pub(super) fn remember(&self, pending: RequestId, request: &Request, head: &[u8], ask: Ask) {
        // The entry's last request may have left something.
        bug::recall(pending);
        let wins = bug!(WinTwice) && request.marks == MarkUse::Sets;
        if (bug!(ResendUpdate) || wins) && request.trailer.is_empty() {
            let protocol = self.pipelines.requests[pending].info.protocol;
            let mut text = Vec::new();
            protocol.write_head(request, head, &self.keys, ask, &mut text);
            bug::remember(pending, text);
        }
    }

    /// `ResendUpdate`: sends a dead link's message again on a new one.
    pub(super) fn resend(&mut self, message: &Message, server: u32) -> bool {
        let Payload::Single(pending, _) = message.payload else { return false };
        let Some(text) = bug::recall(pending) else { return false };
        let (client, pool) = (
            self.pipelines.requests[pending].client,
            self.pipelines.requests[pending].pool as usize,
        );
        let found = self.link_for(pool, server as usize, client, message.since);
        let Ok(id) = found else { return false };
        let link = self.links.find_mut(id).expect("the router found it");
        let before = link.out.len();
        link.out.copy(&text);
        link.launch(Payload::Single(pending, 0), message.ask, before, message.since);
        self.mark_dirty(id);
        true
    }
}

impl PendingRequests {
    /// `LoseOpaque`: renders a request's answer as that of the one before it, if they are alike.
    pub(crate) fn lose_opaque(&mut self, pending: RequestId, before: RequestId) {
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
    pub(crate) fn swap_replies(&mut self, first: RequestId) {
        let second = self[first].next;
        if !bug!(SwapReplies) || second == NONE || self[second].state != State::Done {
            return;
        }
        let reply = std::mem::take(&mut self[first].reply);
        let reply = std::mem::replace(&mut self[second].reply, reply);
        self[first].reply = reply;
    }
}
