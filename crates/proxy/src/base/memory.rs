//! The account of all bytes held in buffers, and the effect of its limit on a client.

use super::limits::{self, Limits};

/// The account of all bytes held in buffers.
pub(crate) struct Memory {
    pub(crate) used: usize,
    pub(crate) max: usize,
}

impl Memory {
    /// Whether `more` bytes are within the limit.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        let max = if bug!(HoardMemory) { self.max / 256 } else { self.max };
        self.used.saturating_add(more) <= max
    }

    /// Returns `limits` narrowed to the memory left: the nearer the limit, the sooner a client that
    /// does not read is paused.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        let outbox = limits.client_outbox;
        let client_outbox = match self.used {
            held if held < self.max / 2 => outbox,
            held if held < self.max => (outbox / 16).max(limits::CLIENT_OUTBOX_SHORT).min(outbox),
            _ => limits::CLIENT_OUTBOX_SHORT.min(outbox),
        };
        Limits { client_outbox, ..limits }
    }

    /// Updates the account for a holder that held `*told` and now holds `now`.
    pub(crate) fn change(&mut self, told: &mut usize, now: usize) {
        self.used = self.used + now - *told;
        *told = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_nearer_the_ceiling_the_less_a_client_may_leave_unread() {
        let narrowed = |held: usize, client_outbox: usize| {
            let limits = Limits { client_outbox, pipeline: 77, ..Limits::default() };
            let narrow = Memory { used: held, max: 8 * MIB }.narrow(limits);
            assert_eq!(narrow, Limits { client_outbox: narrow.client_outbox, ..limits });
            narrow.client_outbox
        };
        for (held, outbox, expected) in [
            (0, MIB, MIB),
            (4 * MIB - 1, MIB, MIB),
            (4 * MIB, MIB, MIB / 16),
            (8 * MIB - 1, MIB, MIB / 16),
            (8 * MIB, MIB, 4096),
            (9 * MIB, MIB, 4096),
            // Never less than a little, and never more than the plan allows.
            (4 * MIB, 8192, 4096),
            (4 * MIB, 1000, 1000),
            (9 * MIB, 1000, 1000),
        ] {
            assert_eq!(narrowed(held, outbox), expected, "{held} held, {outbox} allowed");
        }
    }

    #[test]
    fn the_account_is_the_sum_of_what_each_holder_told_last() {
        let mut memory = Memory { used: 0, max: 100 };
        let (mut first, mut second) = (0, 0);
        memory.change(&mut first, 60);
        memory.change(&mut second, 30);
        memory.change(&mut first, 10);
        assert_eq!((memory.used, first, second), (40, 10, 30));
        assert!(memory.has_room(60) && !memory.has_room(61) && !memory.has_room(usize::MAX));
    }
}
