//! What a tenant's requests take of its limits.
//!
//! A request is charged when it is read: one of the requests in a second, and its bytes. Bytes that
//! are sent are charged when they are sent, and until then the answers that are expected count. A
//! request is let through while there is something left, whatever its own size; what it takes in
//! advance is waited for by those behind it. A request that is put back and read again is given
//! back what it took.

use metrics::{Rate, TenantCounter, TenantRates, WorkerMetrics};

use super::Tenant;
use super::plan::TenantPlan;
use crate::Time;

/// What this worker has of a rate.
#[derive(Clone, Copy)]
pub(super) struct Purse {
    /// Negative: it was spent in advance.
    left: i64,
}

/// A limit that a request has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// So much is there from this time on.
    Rate(Rate, Time),
    /// Too much is in flight.
    Inflight,
    /// Others have waited for a limit before.
    Line,
}

impl Limit {
    /// Returns the limit in words, for the client and the operator.
    pub(crate) fn words(self, plan: &TenantPlan) -> String {
        let rate = |rate: Rate| plan.rates[rate as usize];
        match self {
            Limit::Rate(Rate::Requests, _) => {
                format!("{} requests a second", rate(Rate::Requests))
            }
            Limit::Rate(Rate::Received, _) => {
                format!("{} bytes of requests a second", rate(Rate::Received))
            }
            Limit::Rate(Rate::Sent, _) => format!("{} bytes sent a second", rate(Rate::Sent)),
            Limit::Inflight => format!("{} bytes in flight", plan.inflight_max),
            Limit::Line => "requests".to_string(),
        }
    }
}

impl Purse {
    /// Returns what there is of a rate before any is taken; of none that is limited, enough for
    /// ever.
    pub(super) fn new(per_second: u64) -> Purse {
        Purse { left: if per_second == u64::MAX { i64::MAX / 2 } else { 0 } }
    }

    /// Fills it, if there is no more than `reserved` in it.
    #[inline]
    fn fill(
        &mut self,
        reserved: i64,
        (rates, rate): (TenantRates, Rate),
        now: Time,
        per_second: u64,
    ) -> Result<(), Limit> {
        if self.left > reserved {
            return Ok(());
        }
        self.fill_from(reserved, (rates, rate), now, per_second)
    }

    #[cold]
    fn fill_from(
        &mut self,
        reserved: i64,
        (rates, rate): (TenantRates, Rate),
        now: Time,
        per_second: u64,
    ) -> Result<(), Limit> {
        // As if each of two workers had the whole rate.
        let per_second = if bug!(LimitPerWorker) { 2 * per_second } else { per_second };
        let piece = TenantRates::piece(per_second);
        // What was spent in advance is paid for by the next piece.
        let debt = self.left.min(0).unsigned_abs();
        let limit = |until| Limit::Rate(rate, Time(until));
        rates.take(rate, now.0, piece + debt, per_second).map_err(limit)?;
        self.left += (piece + debt).min(i64::MAX as u64 / 2) as i64;
        if self.left > reserved {
            return Ok(());
        }
        // Answers that are expected have what there is.
        Err(Limit::Rate(rate, now.after(EXPECTED_US)))
    }
}

impl Tenant {
    /// Whether a request may be read now; otherwise the first limit that it meets. `inflight`: what
    /// it adds to the bytes in flight.
    pub(crate) fn admit(
        &mut self,
        metrics: &WorkerMetrics,
        inflight: u64,
        now: Time,
    ) -> Result<(), Limit> {
        for rate in Rate::ALL {
            let per_second = self.plan.rates[rate as usize];
            if per_second != u64::MAX {
                let reserved = if rate == Rate::Sent { self.expected as i64 } else { 0 };
                self.purses[rate as usize].fill(reserved, (self.rates, rate), now, per_second)?;
            }
        }
        if self.plan.inflight_max != u64::MAX && self.is_too_much(metrics, inflight) {
            return Err(Limit::Inflight);
        }
        Ok(())
    }

    /// Whether so much more would be too much in flight. One request may always be.
    fn is_too_much(&self, metrics: &WorkerMetrics, more: u64) -> bool {
        let now = match bug!(LimitPerWorker) {
            false => metrics.total(self.plan.id, TenantCounter::InflightBytesNow),
            true => self.counters.value(TenantCounter::InflightBytesNow),
        };
        now > 0 && now.saturating_add(more) > self.plan.inflight_max
    }

    /// Charges a request, if nothing but its number and bytes is to be looked at, and this worker
    /// has some of each rate. Otherwise nothing has changed, and `admit` and `charge` decide.
    #[inline(always)]
    pub(crate) fn charge_at_once(&mut self, requests: u64, bytes: u64) -> bool {
        let [asked, received, sent] = &mut self.purses;
        let has_some = asked.left > 0 && received.left > 0 && sent.left > self.expected as i64;
        // The client may be one that waited, while any does.
        let is_usual = self.counts_only && self.limited == 0 && self.again.0 == 0;
        if !has_some || !is_usual {
            return false;
        }
        asked.left -= requests as i64;
        received.left -= bytes.min(i64::MAX as u64 / 4) as i64;
        self.counters.add(TenantCounter::Requests, requests);
        self.counters.add(TenantCounter::ReceivedBytes, bytes);
        true
    }

    /// Charges a request that is read.
    #[inline]
    pub(crate) fn charge(&mut self, requests: u64, bytes: u64) {
        let known = match self.again {
            (0, _) => (0, 0),
            again => (again.0.min(requests), again.1.min(bytes)),
        };
        self.again = (self.again.0 - known.0, self.again.1 - known.1);
        self.counters.add(TenantCounter::Requests, requests - known.0);
        self.counters.add(TenantCounter::ReceivedBytes, bytes - known.1);
        self.purses[Rate::Requests as usize].left -= requests as i64;
        self.purses[Rate::Received as usize].left -= bytes.min(i64::MAX as u64 / 4) as i64;
    }

    /// Gives back what a request took that will be read again.
    pub(crate) fn refund(&mut self, requests: u64, bytes: u64) {
        if bug!(ForgetRefund) {
            return;
        }
        self.again = (self.again.0 + requests, self.again.1 + bytes);
        self.purses[Rate::Requests as usize].left += requests as i64;
        self.purses[Rate::Received as usize].left += bytes.min(i64::MAX as u64 / 4) as i64;
    }

    /// Charges bytes that were sent to a client.
    #[inline]
    pub(crate) fn charge_sent(&mut self, bytes: u64) {
        self.counters.add(TenantCounter::SentBytes, bytes);
        self.purses[Rate::Sent as usize].left -= bytes as i64;
    }

    /// Returns how many of those that wait are called at once: as many as may find something.
    pub(crate) fn calls(&self) -> usize {
        let in_time = self.plan.rates[Rate::Requests as usize] / CALLS_PER_SECOND;
        (in_time as usize).clamp(CALLS_MIN, self.line.len().max(CALLS_MIN)).min(self.line.len())
    }

    /// Takes another plan of the same tenant. What was taken of a rate that has changed is worth
    /// something else now.
    pub(super) fn change(&mut self, plan: std::rc::Rc<TenantPlan>, now: Time) {
        for rate in Rate::ALL {
            let at = rate as usize;
            if self.plan.rates[at] != plan.rates[at] {
                self.purses[at] = Purse::new(plan.rates[at]);
                self.rates.forgive(rate, now.0);
            }
        }
        self.counts_only = plan.counts_only();
        self.expects = plan.rates[Rate::Sent as usize] != u64::MAX;
        self.plan = plan;
    }
}

/// So many times in a second a line is looked at, at least.
const CALLS_PER_SECOND: u64 = 500;
/// As many are called in any case.
const CALLS_MIN: usize = 64;
/// How soon a request is tried again that waits for answers which are on their way.
const EXPECTED_US: u64 = 1_000;
