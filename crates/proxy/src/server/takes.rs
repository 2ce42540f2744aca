//! The questions whether a link takes a part of a request now: its in-flight limit, and what a
//! client may have outstanding on it.

use super::link::Link;
use super::load::Load;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass, Requester};
use crate::base::size::Cost;
use crate::base::{Base, limits};

impl Link {
    /// Whether a part may go straight to its output.
    #[inline(always)]
    pub(super) fn goes_straight(
        &mut self,
        base: &Base,
        asks: &Requester,
        load: &Load,
        cost: Cost,
    ) -> bool {
        match asks.effort.is_single() {
            false => self.takes_now(base, load, cost),
            true => self.takes_single_now(base, asks, cost),
        }
    }

    /// As `goes_straight`, for a part that is quick: nothing waits, and there is room.
    #[inline(always)]
    pub(super) fn takes_now(&mut self, base: &Base, load: &Load, cost: Cost) -> bool {
        let bytes = cost.bytes();
        let is_usual = self.queue.is_empty()
            && self.inflight.bytes() + bytes <= self.limit.bytes()
            && load.inflight + bytes <= base.limits.client_outbox as u64
            && !load.is_beyond(self.depth)
            && !cost.is_special();
        is_usual || self.takes_unusual(base, load, cost)
    }

    /// As `takes_now`, for a part that may take long.
    #[cold]
    fn takes_single_now(&self, base: &Base, asks: &Requester, cost: Cost) -> bool {
        // Whether others wait is asked when its turn comes.
        let rests = self.rests_until.is_some() && self.class != LinkClass::Control;
        !rests && self.queue.is_empty() && self.takes_single(base, (asks.id, asks.effort), cost)
    }

    /// As `takes_now`, for a part that may have to wait.
    #[cold]
    fn takes_unusual(&mut self, base: &Base, load: &Load, cost: Cost) -> bool {
        if !self.queue.is_empty() || !self.takes(base, cost) {
            // More bytes would not help those.
            if !cost.is_statistics() {
                self.limit.note_short();
            }
            return bug!(PassWaiting);
        }
        // Its turn comes in this turn of the loop, and tells what the answer may be.
        if load.is_beyond(self.depth) {
            return false;
        }
        let is_little = load.inflight + cost.bytes() <= base.limits.client_outbox as u64;
        is_little || load.sent == 0 && self.takes_large(base, cost)
    }

    /// Whether it takes a part that may be large: a link that small requests share takes one at a
    /// time.
    #[cold]
    pub(super) fn takes_large(&self, base: &Base, cost: Cost) -> bool {
        let is_large = |cost: Cost| cost.is_of(base.limits.large_min);
        if self.class == LinkClass::Large || !is_large(cost) {
            return true;
        }
        let keys = || self.batches().flat_map(|batch| &batch.entries).map(|entry| entry.cost);
        let mut sent = self.outstanding.iter().map(|message| message.cost).chain(keys());
        !sent.any(is_large)
    }

    /// Whether its in-flight limit has room for a part of this cost.
    #[inline]
    pub(super) fn takes(&self, base: &Base, cost: Cost) -> bool {
        let is_free = self.inflight.bytes() == 0 && !bug!(LimitNeverOpens);
        let fits = is_free || self.inflight.bytes() + cost.bytes() <= self.limit.bytes();
        fits && (!cost.is_special() || self.takes_special(base, cost))
    }

    /// As `takes`, for a request that is slow or may turn out to be: a client has one outstanding,
    /// and the server a few.
    #[cold]
    pub(super) fn takes_single(
        &self,
        base: &Base,
        (client, effort): (ConnId, Effort),
        cost: Cost,
    ) -> bool {
        let most = match self.class {
            LinkClass::Control => return true,
            _ if bug!(SlowWithoutLimit) => return true,
            LinkClass::Slow => limits::SLOW_INFLIGHT_MAX,
            _ if !self.takes(base, cost) => return false,
            _ if effort.is_slow() => 1,
            _ => base.pool(self.at).plan.untried_max,
        };
        let single = || self.outstanding.iter().filter(|message| message.effort.is_single());
        single().count() < most && single().all(|message| message.client != client)
    }

    /// Whether it has slow requests only: their number is bounded, and not their cost.
    pub(super) fn is_for_slow(&self) -> bool {
        matches!(self.class, LinkClass::Slow | LinkClass::Control)
    }

    /// Whether it takes an answer of unknown length, or statistics: few, and more on a long way.
    fn takes_special(&self, base: &Base, cost: Cost) -> bool {
        if cost.is_statistics() {
            let more = self.limit.round_trip() / limits::DEPTH_TRIP_US;
            return u64::from(self.inflight.statistics()) < limits::STATISTICS_INFLIGHT + more;
        }
        let trips = 1 + self.limit.round_trip() / (2 * limits::QUEUEING_US);
        let most = base.limits.unproven.saturating_mul(trips);
        let unproven = self.inflight.unproven();
        unproven == 0 || unproven + cost.unproven() <= most
    }
}
