//! What a tenant's clients have in flight: from the head of a request to its answer, with what is
//! expected of that.
//!
//! ```text
//!   head ─▶ begin_arriving ─ body ─▶ end_arriving, note_inflight ─▶ note_expected ─▶ settle
//! ```

use metrics::TenantCounter;

use super::Clients;
use super::request::{PendingRequest, UNTIMED};
use super::session::Client;
use crate::Time;
use crate::base::Base;
use crate::base::tenants::Tenants;
use crate::base::timers::{Due, Timers};

impl Clients {
    /// Notes that a request of a client with a tenant is in flight.
    #[inline(always)]
    pub(super) fn note_inflight(
        base: &mut Base,
        client: &mut Client,
        pending: &mut PendingRequest,
        len: u64,
    ) {
        let Some(tenant) = base.tenants.find_mut(client.tenant) else { return };
        if tenant.expects {
            tenant.expected += pending.expected as u64;
        }
        if tenant.plan.inflight_max != u64::MAX {
            let bytes = len + u64::from(client.expected.len());
            pending.inflight = u32::try_from(bytes).unwrap_or(u32::MAX);
            let bytes = u64::from(pending.inflight);
            client.member().inflight += bytes;
            tenant.counters.add(TenantCounter::InflightBytesNow, bytes);
        }
    }

    /// Notes that more or less than `pending.expected` is expected in answer to a request of a
    /// client with a tenant.
    pub(super) fn note_expected(
        base: &mut Base,
        client: &mut Client,
        pending: &mut PendingRequest,
        expected: usize,
    ) {
        let Some(tenant) = base.tenants.find_mut(client.tenant) else { return };
        let before = pending.expected as u64;
        if tenant.expects {
            tenant.expected = tenant.expected + expected as u64 - before;
        }
        if pending.inflight > 0 {
            let was = u64::from(pending.inflight);
            let bytes = (was + expected as u64).saturating_sub(before).max(1);
            pending.inflight = u32::try_from(bytes).unwrap_or(u32::MAX);
            let bytes = u64::from(pending.inflight);
            let member = client.member();
            member.inflight = member.inflight + bytes - was;
            tenant.counters.subtract(TenantCounter::InflightBytesNow, was);
            tenant.counters.add(TenantCounter::InflightBytesNow, bytes);
        }
    }
}

/// Counts a request as in flight while its body arrives: others could be let through meanwhile.
#[cold]
pub(super) fn begin_arriving(tenants: &Tenants, client: &mut Client, bytes: u64) {
    let tenant = tenants.find(client.tenant);
    if let Some(tenant) = tenant.filter(|one| one.plan.inflight_max != u64::MAX) {
        let member = client.member();
        (member.arriving, member.inflight) = (bytes, member.inflight + bytes);
        tenant.counters.add(TenantCounter::InflightBytesNow, bytes);
    }
}

/// The body has come, and the request counts by itself.
#[cold]
pub(super) fn end_arriving(tenants: &Tenants, client: &mut Client) {
    let Some(member) = client.member.as_mut() else { return };
    let bytes = std::mem::take(&mut member.arriving);
    member.inflight -= bytes;
    if let Some(tenant) = tenants.find(client.tenant) {
        tenant.counters.subtract(TenantCounter::InflightBytesNow, bytes);
    }
}

/// A request was answered without a server: it has nothing in flight.
#[cold]
pub(super) fn end_inflight(tenants: &Tenants, client: &mut Client, pending: &mut PendingRequest) {
    let bytes = u64::from(std::mem::take(&mut pending.inflight));
    if let Some(tenant) = tenants.find(client.tenant).filter(|_| bytes > 0) {
        client.member().inflight -= bytes;
        tenant.counters.subtract(TenantCounter::InflightBytesNow, bytes);
    }
}

/// Settles with its tenant a request that is answered.
#[inline]
pub(super) fn settle(
    tenants: &mut Tenants,
    timers: &mut Timers,
    client: &mut Client,
    pending: &mut PendingRequest,
    now: Time,
) {
    let Some(tenant) = tenants.find_mut(client.tenant) else { return };
    // The others are settled with their latencies.
    if tenant.expects && pending.since == UNTIMED {
        tenant.expected -= pending.expected as u64;
    }
    let bytes = u64::from(std::mem::take(&mut pending.inflight));
    if bytes > 0 {
        client.member().inflight -= bytes;
        tenant.counters.subtract(TenantCounter::InflightBytesNow, bytes);
        if !tenant.line.is_empty() && (tenant.timer > now || tenant.timer == Time(0)) {
            tenant.timer = now;
            timers.set(now, Due::Tenant { id: tenant.plan.id });
        }
    }
}
