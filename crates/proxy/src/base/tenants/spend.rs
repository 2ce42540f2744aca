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
    /// Negative for a moment: it was spent in advance.
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
                format!("{} a second", count(rate(Rate::Requests), "request"))
            }
            Limit::Rate(Rate::Received, _) => {
                format!("{} of requests a second", count(rate(Rate::Received), "byte"))
            }
            Limit::Rate(Rate::Sent, _) => {
                format!("{} sent a second", count(rate(Rate::Sent), "byte"))
            }
            Limit::Inflight => format!("{} in flight", count(plan.inflight_max, "byte")),
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
        let per_second = per_worker(per_second);
        let piece = TenantRates::piece(per_second);
        let limit = |until| Limit::Rate(rate, Time(until));
        rates.take(rate, now.0, piece, per_second).map_err(limit)?;
        self.left += piece.min(i64::MAX as u64 / 2) as i64;
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
    pub(crate) fn charge_at_once(&mut self, requests: u64, bytes: u64, now: Time) -> bool {
        let [asked, received, sent] = &mut self.purses;
        let has_some = asked.left > 0 && received.left > 0 && sent.left > self.expected as i64;
        // The client may be one that waited, while any does.
        let is_usual = self.counts_only && self.limited == 0 && self.again.0 == 0;
        if !has_some || !is_usual {
            return false;
        }
        asked.left -= requests as i64;
        received.left -= bytes.min(i64::MAX as u64 / 4) as i64;
        let is_in_debt = (asked.left | received.left) < 0;
        self.counters.add(TenantCounter::Requests, requests);
        self.counters.add(TenantCounter::ReceivedBytes, bytes);
        if is_in_debt {
            self.pay_debts(now);
        }
        true
    }

    /// Charges a request that is read.
    #[inline]
    pub(crate) fn charge(&mut self, requests: u64, bytes: u64, now: Time) {
        let known = match self.again {
            (0, _) => (0, 0),
            again => (again.0.min(requests), again.1.min(bytes)),
        };
        self.again = (self.again.0 - known.0, self.again.1 - known.1);
        self.counters.add(TenantCounter::Requests, requests - known.0);
        self.counters.add(TenantCounter::ReceivedBytes, bytes - known.1);
        self.purses[Rate::Requests as usize].left -= requests as i64;
        self.purses[Rate::Received as usize].left -= bytes.min(i64::MAX as u64 / 4) as i64;
        self.pay_debts(now);
    }

    /// Pays for what was spent in advance, at once: time that passes without requests counts then.
    #[cold]
    fn pay_debts(&mut self, now: Time) {
        for rate in Rate::ALL {
            let left = &mut self.purses[rate as usize].left;
            if *left < 0 {
                let per_second = per_worker(self.plan.rates[rate as usize]);
                self.rates.charge(rate, now.0, left.unsigned_abs(), per_second);
                *left = 0;
            }
        }
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
    pub(crate) fn charge_sent(&mut self, bytes: u64, now: Time) {
        self.counters.add(TenantCounter::SentBytes, bytes);
        let left = &mut self.purses[Rate::Sent as usize].left;
        *left -= bytes as i64;
        if *left < 0 {
            self.pay_debts(now);
        }
    }

    /// Returns how many of those that wait are called at once, which is as many as may find
    /// something, and how many requests each of them may have read before it has to wait again.
    pub(crate) fn calls(&self) -> (usize, u32) {
        let in_time = self.plan.rates[Rate::Requests as usize] / CALLS_PER_SECOND;
        let in_time = usize::try_from(in_time).unwrap_or(usize::MAX);
        let called = in_time.max(CALLS_MIN).min(self.line.len());
        (called, (in_time / called.max(1)).clamp(1, TURNS_MAX) as u32)
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

/// Returns a number of things in words.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The rate that one worker sees of a tenant's.
fn per_worker(per_second: u64) -> u64 {
    // As if each of two workers had the whole rate.
    if bug!(LimitPerWorker) { per_second.saturating_mul(2) } else { per_second }
}

/// So many times in a second a line is looked at, at least.
const CALLS_PER_SECOND: u64 = 500;
/// As many are called in any case.
const CALLS_MIN: usize = 64;
/// One of those that are called has no more read while others wait.
const TURNS_MAX: usize = 64;
/// How soon a request is tried again that waits for answers which are on their way.
const EXPECTED_US: u64 = 1_000;

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use metrics::Registry;

    use super::*;

    const NOW: Time = Time(10_000_000);

    /// The same tenant as two workers see it, with a rate for the bytes of requests.
    fn two(registry: &Registry, received: u64) -> [Tenant; 2] {
        let plan = TenantPlan { id: 7, ..TenantPlan::new("shop") };
        let plan = Rc::new(TenantPlan { rates: [u64::MAX, received, u64::MAX], ..plan });
        [1, 2].map(|slot| Tenant::new(plan.clone(), &registry.metrics(slot)))
    }

    /// Otherwise another worker would take what is spent already.
    #[test]
    fn what_a_request_takes_in_advance_is_charged_to_all_workers_at_once() {
        let registry = Registry::private(3, 16);
        let [mut one, mut other] = two(&registry, 1_000);
        assert_eq!(one.admit(&registry.metrics(1), 0, NOW), Ok(()));
        assert!(one.charge_at_once(1, 100_000, NOW), "nothing else is to be looked at");
        let met = other.admit(&registry.metrics(2), 0, NOW);
        assert!(matches!(met, Err(Limit::Rate(Rate::Received, _))), "{met:?}");
    }

    /// It may be read in other pieces, or together with what comes behind it.
    #[test]
    fn a_request_that_is_read_again_is_counted_once() {
        let registry = Registry::private(3, 16);
        let [mut tenant, _] = two(&registry, u64::MAX);
        tenant.charge(3, 300, NOW);
        tenant.refund(2, 200);
        let mut charge = |requests, bytes| {
            tenant.charge(requests, bytes, NOW);
            let counters = [TenantCounter::Requests, TenantCounter::ReceivedBytes];
            counters.map(|counter| tenant.counters.value(counter))
        };
        assert_eq!(charge(1, 100), [3, 300]);
        assert_eq!(charge(4, 150), [6, 350]);
    }

    #[test]
    fn answers_that_are_expected_have_all_that_there_is() {
        let registry = Registry::private(2, 16);
        let rates = (registry.tenant_rates(7), Rate::Sent);
        let piece = TenantRates::piece(per_worker(1_000_000)) as i64;
        let filled = |reserved| Purse { left: 0 }.fill(reserved, rates, NOW, 1_000_000);
        assert_eq!(filled(piece - 1), Ok(()));
        assert_eq!(filled(piece), Err(Limit::Rate(Rate::Sent, NOW.after(EXPECTED_US))));
    }
}
