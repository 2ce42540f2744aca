//! Tenants: groups of users and pools with rules, limits and figures of their own.
//!
//! ```text
//!   a client's tenant:   its user's  ── none ──▶  its pool's  ── none ──▶  nobody's (`NOBODY`)
//! ```
//!
//! Clients that belong to nobody are not looked at any further: one comparison tells them apart.
//! `plan.rs` has what the operator says about a tenant, `rules.rs` what its requests may be. What
//! all workers together may do is kept in the metrics registry; what is here is this worker's part.

pub mod plan;
mod rules;
mod spend;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use metrics::{Counters, Latency, Rate, Recorder, TenantCounter, TenantRates, WorkerMetrics};

use super::id::ConnId;
use crate::Time;
use plan::{RemovedUsers, TenantPlan};
use spend::Purse;

pub(crate) use spend::{Limit, count};

/// The index of the tenant of clients that have none.
pub(crate) const NOBODY: u16 = 0;

/// All tenants of this worker.
#[derive(Default)]
pub(crate) struct Tenants {
    /// By index, from 1 on. A vacant place has no tenant, and no client refers to it.
    list: Vec<Option<Tenant>>,
    by_user: HashMap<String, u16>,
    /// The ticket that was given out last.
    tickets: u64,
    /// Answers that have not been recorded yet.
    run: Run,
    pub(crate) removed_users: RemovedUsers,
}

/// Answers of a tenant that follow each other in a turn and took the same time, as those of a
/// pipeline do. They are recorded at once, for the pool and for the tenant.
#[derive(Default)]
struct Run {
    /// The id of the pool, the histogram, and the index of the tenant.
    key: u64,
    time: u64,
    /// None: there is no run.
    count: u64,
    /// Bytes of these answers that were expected for the tenant.
    expected: u64,
    recorders: Option<(Recorder, Recorder, Latency)>,
}

/// A tenant, as this worker sees it.
pub(crate) struct Tenant {
    pub(crate) plan: Rc<TenantPlan>,
    pub(crate) counters: Counters<TenantCounter>,
    /// `Latency::REQUESTS` and `Latency::QUEUE`.
    pub(crate) latencies: Recorder,
    rates: TenantRates,
    /// What this worker has of each rate, and has not spent.
    purses: [Purse; 3],
    /// Requests, and their bytes, that were counted and are read again.
    again: (u64, u64),
    /// Bytes of the answers that its clients here are expected to get.
    pub(crate) expected: u64,
    /// Clients whose next request was held back and has not been read since.
    pub(crate) limited: u32,
    /// Its requests are only counted: they have no rules, and no limit for what is in flight.
    counts_only: bool,
    /// `expected` is kept, since there is a limit for what is sent.
    pub(crate) expects: bool,
    /// Clients that wait for a limit, by their tickets: first come first served.
    pub(crate) line: VecDeque<(u64, ConnId)>,
    /// When the timer of the line fires; no timer is set for `Time(0)`.
    pub(crate) timer: Time,
}

impl Tenants {
    /// Takes the tenants of another plan. No client refers to a tenant meanwhile.
    pub(crate) fn install(
        &mut self,
        plans: Vec<Rc<TenantPlan>>,
        removed_users: RemovedUsers,
        metrics: &WorkerMetrics,
        now: Time,
    ) {
        self.removed_users = removed_users;
        for place in &mut self.list {
            let stays = |one: &mut Tenant| plans.iter().any(|plan| plan.id == one.plan.id);
            if !place.as_mut().is_some_and(stays) {
                *place = None;
            }
        }
        self.by_user.clear();
        for plan in plans {
            let at = match self.index_of(plan.id) {
                Some(at) => at,
                None => self.vacant(),
            };
            for user in &plan.users {
                self.by_user.insert(user.clone(), at);
            }
            match &mut self.list[usize::from(at) - 1] {
                Some(tenant) => tenant.change(plan, now),
                place => *place = Some(Tenant::new(plan, metrics)),
            }
        }
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.list.iter().any(Option::is_some)
    }

    /// Returns the index of the tenant with this id, if the plan has it.
    pub(crate) fn index_of(&self, id: u32) -> Option<u16> {
        let is_it = |place: &Option<Tenant>| place.as_ref().is_some_and(|it| it.plan.id == id);
        self.list.iter().position(is_it).map(|at| at as u16 + 1)
    }

    /// Records how long a request of a tenant took, for its pool and for the tenant. So much of
    /// what was expected for the tenant has come.
    #[inline(always)]
    pub(crate) fn record(
        &mut self,
        pool: (u32, &Recorder),
        (at, expected): (u16, usize),
        which: Latency,
        time: u64,
    ) {
        let key = u64::from(pool.0) << 32 | (which.place() as u64) << 16 | u64::from(at);
        let run = &mut self.run;
        if (run.key, run.time) != (key, time) {
            return self.begin_run(key, (which, time), *pool.1, expected);
        }
        run.count += 1;
        run.expected += expected as u64;
    }

    #[inline(never)]
    fn begin_run(
        &mut self,
        key: u64,
        (which, time): (Latency, u64),
        pool: Recorder,
        expected: usize,
    ) {
        self.end_run();
        let Some(one) = self.find(key as u16) else { return pool.record(which, time) };
        let recorders = Some((pool, one.latencies, which));
        self.run = Run { key, time, count: 1, expected: expected as u64, recorders };
    }

    /// Records what has not been recorded yet: at the end of a turn, before a plan is installed,
    /// and before a request is judged by what is expected.
    #[inline]
    pub(crate) fn end_run(&mut self) {
        if self.run.count > 0 {
            self.settle_run();
        }
    }

    /// Returns what has come for a tenant and still counts as expected.
    pub(crate) fn unsettled(&self, at: u16) -> u64 {
        let is_its = self.run.key as u16 == at && self.find(at).is_some_and(|one| one.expects);
        if is_its { self.run.expected } else { 0 }
    }

    fn settle_run(&mut self) {
        let Run { key, time, count, expected, recorders } = std::mem::take(&mut self.run);
        if let Some((pool, tenant, which)) = recorders {
            pool.record_both(which, (&tenant, Latency::REQUESTS), time, count);
        }
        if let Some(tenant) = self.find_mut(key as u16).filter(|one| one.expects) {
            tenant.expected -= expected;
        }
    }

    /// Returns a ticket for the line of a tenant. Later ones are larger.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Returns the tenant of this user, if it has one of its own.
    pub(crate) fn of_user(&self, user: &str) -> Option<u16> {
        self.by_user.get(user).copied()
    }

    /// Returns a tenant; none for nobody's index.
    #[inline]
    pub(crate) fn find(&self, at: u16) -> Option<&Tenant> {
        self.list.get(usize::from(at).wrapping_sub(1))?.as_ref()
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, at: u16) -> Option<&mut Tenant> {
        self.list.get_mut(usize::from(at).wrapping_sub(1))?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Tenant)> {
        let places = self.list.iter().enumerate();
        places.filter_map(|(at, place)| Some((at as u16 + 1, place.as_ref()?)))
    }

    fn vacant(&mut self) -> u16 {
        let at = self.list.iter().position(Option::is_none).unwrap_or_else(|| {
            self.list.push(None);
            self.list.len() - 1
        });
        at as u16 + 1
    }
}

impl Tenant {
    fn new(plan: Rc<TenantPlan>, metrics: &WorkerMetrics) -> Tenant {
        assert_ne!(plan.id, 0, "a plan is numbered before it is played");
        Tenant {
            counters: metrics.counters(plan.id),
            latencies: metrics.recorder(plan.id),
            rates: metrics.tenant_rates(plan.id),
            purses: plan.rates.map(Purse::new),
            again: (0, 0),
            expected: 0,
            limited: 0,
            counts_only: plan.counts_only(),
            expects: plan.rates[Rate::Sent as usize] != u64::MAX,
            line: VecDeque::new(),
            timer: Time(0),
            plan,
        }
    }

    /// Counts one more of what a limit bounds, unless that is one too many. The limit holds for
    /// all workers together: of two that count at the same moment, both may see too many, never
    /// too few.
    pub(crate) fn count(&self, metrics: &WorkerMetrics, gauge: TenantCounter, most: u64) -> bool {
        self.counters.add(gauge, 1);
        if most == u64::MAX {
            return true;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let all = match bug!(LimitPerWorker) {
            false => metrics.total(self.plan.id, gauge),
            true => self.counters.value(gauge),
        };
        let has_room = all <= most;
        if !has_room {
            self.counters.subtract(gauge, 1);
        }
        has_room
    }
}
