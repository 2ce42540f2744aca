//! The account of all bytes held in buffers, and what its ceiling means for a client.

use crate::limits::{self, Limits};

/// The account of all bytes held in buffers.
pub(crate) struct Memory {
    pub(crate) held: usize,
    pub(crate) max: usize,
}

impl Memory {
    /// Whether `more` bytes are within the ceiling.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        let max = if bug!(HoardMemory) { self.max / 256 } else { self.max };
        self.held.saturating_add(more) <= max
    }

    /// `limits` as they are now: the nearer the ceiling, the sooner a client that does not read is
    /// paused.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        let outbox = limits.client_outbox;
        let client_outbox = match self.held {
            held if held < self.max / 2 => outbox,
            held if held < self.max => (outbox / 16).max(limits::CLIENT_OUTBOX_SHORT).min(outbox),
            _ => limits::CLIENT_OUTBOX_SHORT.min(outbox),
        };
        Limits { client_outbox, ..limits }
    }

    /// A holder that held `*told` now holds `now`.
    pub(crate) fn change(&mut self, told: &mut usize, now: usize) {
        self.held = self.held + now - *told;
        *told = now;
    }
}
