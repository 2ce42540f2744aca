//! Replies that come drop by drop: their server is slow, and yet never silent.

use metrics::ServerCounter;

use super::Servers;
use super::link::Link;
use crate::base::Base;
use crate::base::id::ConnId;
use crate::base::phases::UNSENT;
use crate::base::slow::DRIPS;
use crate::{Event, Time};

impl Servers {
    /// Counts a reply that came drop by drop, and says so once a minute: such a server is slow, and
    /// yet never silent.
    #[cold]
    pub(super) fn note_drips(&mut self, base: &mut Base, id: ConnId, began: Time) {
        let Some(link) = self.links.find(id) else { return };
        let Some((reads, us)) = link.dripped(base.now.since(began)) else { return };
        let at = link.at;
        let state = self.state(at);
        state.counters.add(ServerCounter::RepliesDripped, 1);
        if state.drip_told.is_none_or(|told| base.now.since(told) >= DRIP_TELL_US) {
            state.drip_told = Some(base.now);
            let server = base.server(at).plan.id;
            base.log(Event::ServerDrips { server, reads, us });
        }
    }
}

impl Link {
    /// Notes that a part of a reply has come.
    pub(super) fn note_part(&mut self, bytes: usize, now: Time) {
        if self.reply_began == UNSENT {
            (self.reply_began, self.reply_reads, self.reply_bytes) = (now, 0, 0);
        }
        self.reply_reads = self.reply_reads.saturating_add(1);
        self.reply_bytes += bytes as u64;
    }

    /// Whether the reply that is being read comes in many small parts.
    pub(super) fn drips(&self) -> bool {
        let is_small = self.reply_bytes < u64::from(self.reply_reads) * DROP_BYTES;
        self.reply_reads >= DRIPS && is_small
    }

    /// Returns in how many parts the reply that is complete now came, and how long that took, if
    /// its server sent it drop by drop.
    pub(super) fn dripped(&self, us: u64) -> Option<(u32, u64)> {
        (self.drips() && us >= DRIPPED_US).then_some((self.reply_reads, us))
    }
}

/// Parts of a reply that have fewer bytes on the average are drops.
const DROP_BYTES: u64 = 1_024;
/// A reply that took less time did not come drop by drop.
const DRIPPED_US: u64 = 50_000;
/// How often a server that drips is told of.
const DRIP_TELL_US: u64 = 60_000_000;
