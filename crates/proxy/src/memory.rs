//! The account of all bytes held in buffers, and the effect of its limit on a client.

use crate::limits::{self, Limits};

/// The account of all bytes held in buffers.
pub(crate) struct Memory {
    pub(crate) held: usize,
    pub(crate) max: usize,
}

impl Memory {
    /// Whether `more` bytes are within the limit.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.held.saturating_add(more) <= self.max
    }

    /// Returns `limits` narrowed to the memory left: the nearer the limit, the sooner a client that
    /// does not read is paused.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        let outbox = limits.client_outbox;
        let client_outbox = match self.held {
            held if held < self.max / 2 => outbox,
            held if held < self.max => (outbox / 16).max(limits::CLIENT_OUTBOX_SHORT).min(outbox),
            _ => limits::CLIENT_OUTBOX_SHORT.min(outbox),
        };
        Limits { client_outbox, ..limits }
    }

    /// Updates the account for a holder that held `*told` and now holds `now`.
    pub(crate) fn change(&mut self, told: &mut usize, now: usize) {
        self.held = self.held + now - *told;
        *told = now;
    }
}
