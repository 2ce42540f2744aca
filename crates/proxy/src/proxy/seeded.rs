//! Seeded bugs that take more than a wrong condition. Only in builds with `--cfg seeded_bugs`.

use proto::{Ask, MarkUse};

use super::Proxy;
use crate::base::part::{Incoming, RequestId};
use crate::bug;
use crate::server::Payload;

impl Proxy {
    /// `ResendUpdate`, `WinTwice`: keeps the bytes for sending an update without data again.
    pub(super) fn remember(&self, id: RequestId, incoming: &Incoming<'_>, ask: Ask) {
        let Incoming { asks, request, head } = *incoming;
        // The entry's last request may have left something.
        bug::recall(id);
        let wins = bug!(WinTwice) && request.marks == MarkUse::Sets;
        if (bug!(ResendUpdate) || wins) && request.trailer.is_empty() {
            let mut text = Vec::new();
            asks.protocol.write_head(request, head, &self.base.keys, ask, &mut text);
            bug::remember(id, text);
        }
    }

    /// `ResendUpdate`: sends a dead link's message again on a new one.
    pub(super) fn resend(&mut self, payload: &Payload, server: u32) -> bool {
        let Payload::Single(part) = *payload else { return false };
        let Some(text) = bug::recall(part.request) else { return false };
        let Some(asks) = self.clients.requester_of(part.request) else { return false };
        let ask = self.clients.asked(part.request);
        self.servers.resend(&mut self.base, &asks, part, server as usize, ask, &text)
    }
}
