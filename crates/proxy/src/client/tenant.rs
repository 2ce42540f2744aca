//! Clients and their tenants: who a client belongs to, and whether its next request may be read.
//!
//! ```text
//!   request ─▶ judge ── denied by a rule ─────▶ refused
//!                │ above a limit ── `refuse` ──▶ refused
//!                │       └───────── `delay` ───▶ its client is paused, in the tenant's line
//!                ▼                                       │ timer
//!              charged, and read  ◀──────────────────────┘
//! ```
//!
//! Clients of no tenant come here only when they come, go, or log in.

use std::rc::Rc;

use metrics::{Latency, TenantCounter};
use proto::{Answer, Class, Local, Parsed, Request, Resume, TopicKind};

use super::Clients;
use super::input::Frame;
use super::session::Client;
use crate::Time;
use crate::base::Base;
use crate::base::id::ConnId;
use crate::base::part::{Incoming, Requester};
use crate::base::pool::Stage;
use crate::base::tenants::plan::{Over, RemovedUsers};
use crate::base::tenants::{Limit, NOBODY, Tenants, count};
use crate::base::timers::Due;

/// A client's user, and what it has of its tenant's.
#[derive(Default)]
pub(super) struct Member {
    /// The user that it is logged in as.
    pub(super) user: Option<Rc<str>>,
    /// Bytes that it has in flight, where its tenant has a limit for them.
    pub(super) inflight: u64,
    /// The part of it that is a request whose body is still arriving.
    pub(super) arriving: u64,
    /// Since when its next request waits for a limit; `Time(0)` if none does.
    pub(super) limited: Time,
    /// Its place in the line of its tenant, as long as its next request waits for a limit.
    pub(super) ticket: u64,
    /// When it was last called from its tenant's line, and how many requests it may have read
    /// since.
    pub(super) called: Time,
    pub(super) turns: u32,
}

impl Clients {
    /// Has a client join the tenant of its user, or else of its pool. `is_new`: it is counted as
    /// one more, and refused if it is one too many; the error names the tenant and the limit.
    pub(super) fn join_tenant(
        &mut self,
        base: &mut Base,
        id: ConnId,
        is_new: bool,
    ) -> Result<(), String> {
        let Some(client) = self.table.find_mut(id) else { return Ok(()) };
        debug_assert_eq!(client.tenant, NOBODY, "a client has one tenant");
        let at = tenant_of(base, client);
        client.group = base.group_of(at, client.pool as usize);
        let metrics = base.metrics;
        let delays = base.tenants.find(at).is_some_and(|one| one.plan.over == Over::Delay);
        if let Some(member) = client.member.as_mut().filter(|_| !delays) {
            // Its next request waits for nothing there.
            member.limited = Time(0);
        }
        let Some(tenant) = base.tenants.find_mut(at) else { return Ok(()) };
        let most = if is_new { tenant.plan.clients_max } else { u64::MAX };
        if !tenant.count(&metrics, TenantCounter::ClientsNow, most) {
            tenant.counters.add(TenantCounter::ClientsRefused, 1);
            let name = &tenant.plan.name;
            return Err(format!("tenant '{name}' has its limit of {}", count(most, "client")));
        }
        tenant.counters.add(TenantCounter::ClientsTotal, u64::from(is_new));
        tenant.counters.add(TenantCounter::InflightBytesNow, client.inflight());
        if tenant.expects {
            tenant.expected += client.pipeline.expected as u64;
        }
        tenant.limited += u32::from(client.is_limited());
        client.tenant = at;
        Ok(())
    }

    /// Has a client leave its tenant, with what it has in flight.
    pub(super) fn leave_tenant(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        let at = std::mem::replace(&mut client.tenant, NOBODY);
        let Some(tenant) = base.tenants.find_mut(at) else { return };
        tenant.counters.subtract(TenantCounter::ClientsNow, 1);
        tenant.counters.subtract(TenantCounter::InflightBytesNow, client.inflight());
        if tenant.expects {
            tenant.expected -= client.pipeline.expected as u64;
        }
        tenant.limited -= u32::from(client.is_limited());
        if std::mem::take(&mut client.waits.tenant) {
            tenant.counters.subtract(TenantCounter::WaitingNow, 1);
            tenant.line.retain(|(_, one)| *one != id);
        }
    }

    /// Notes whose login it is, or that there is none any more. `Err`: the user's tenant has too
    /// many clients, and nothing has changed.
    pub(super) fn set_user(
        &mut self,
        base: &mut Base,
        id: ConnId,
        user: Option<Rc<str>>,
    ) -> Result<(), String> {
        let Some(client) = self.table.find_mut(id) else { return Ok(()) };
        if client.user() == user.as_ref() {
            return Ok(());
        }
        let before = std::mem::replace(&mut client.member().user, user);
        let moves = tenant_of(base, client) != client.tenant;
        if !moves {
            return Ok(());
        }
        self.leave_tenant(base, id);
        let joined = self.join_tenant(base, id, true);
        if joined.is_err() {
            if let Some(client) = self.table.find_mut(id) {
                client.member().user = before;
            }
            let _ = self.join_tenant(base, id, false);
        }
        joined
    }

    /// Has all clients leave their tenants, before a plan with others is installed.
    pub(crate) fn leave_tenants(&mut self, base: &mut Base) {
        if base.tenants.any() {
            for id in self.ids() {
                self.leave_tenant(base, id);
                // It looks at the new limits.
                self.update_client(base, id);
            }
        }
    }

    /// Has all clients join the tenants of the plan that has just been installed, and closes those
    /// whose users it does not have any more.
    pub(crate) fn join_tenants(&mut self, base: &mut Base) {
        for id in self.ids() {
            if base.tenants.any() {
                let _ = self.join_tenant(base, id, false);
            }
            self.end_removed_user(base, id);
            self.end_forbidden_topics(base, id);
        }
    }

    /// Closes a client that listens to a topic which its tenant's rules do not allow any more.
    fn end_forbidden_topics(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find(id) else { return };
        let Some(subscriber) = &client.subscriber else { return };
        let Some(Some(rules)) = base.tenants.find(client.tenant).map(|one| one.plan.rules.clone())
        else {
            return;
        };
        let (protocol, current) = (client.protocol, client.session.conn_key.database);
        let upstream = base.pools[client.pool as usize].upstream;
        let (mut text, mut keys) = (Vec::new(), Vec::new());
        let mut is_allowed = |(kind, name): (TopicKind, &[u8])| {
            text.clear();
            upstream.write_topic_request(kind, true, name, &mut text);
            let parsed = protocol.parse_request(&text, &mut Resume::default(), &mut keys);
            let Parsed::Complete(request) = parsed else { unreachable!("it is a whole request") };
            let judged = (&request, &text[..request.head as usize]);
            rules.judge(protocol, judged, &keys, (current, false), &mut base.scratch).is_none()
        };
        if !subscriber.topics().all(&mut is_allowed) {
            self.close_subscriber(base, id);
        }
    }

    /// Closes a client at the end of its request if its user has been removed.
    pub(super) fn end_removed_user(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find(id) else { return };
        let plan = &base.pools[client.pool as usize].plan;
        if let (Some(user), Some(users)) = (client.user(), &plan.users)
            && users.find(user.as_bytes()).is_none()
            && base.tenants.removed_users == RemovedUsers::Close
        {
            // What it has sent and was not read must not be done.
            self.leave_tenant(base, id);
            if let Some(client) = self.table.find_mut(id) {
                client.forget_input(base);
            }
            self.finish(base, id);
        }
    }

    /// Decides about a request of a client that has a tenant. None: it is served. Otherwise it is
    /// refused, or its client waits; returns how many bytes are used.
    #[inline(always)]
    pub(crate) fn judge(&mut self, base: &mut Base, frame: &Frame, bytes: &[u8]) -> Option<usize> {
        let tenant = base.tenants.find_mut(frame.asks.tenant)?;
        let request = &frame.request;
        let requests = requests_of(request, base.keys.len());
        match tenant.charge_at_once(requests, request.len(), base.now) {
            true => None,
            false => self.judge_closely(base, frame, bytes),
        }
    }

    #[inline(never)]
    fn judge_closely(&mut self, base: &mut Base, frame: &Frame, bytes: &[u8]) -> Option<usize> {
        let Frame { asks, request, .. } = frame;
        base.tenants.end_run();
        let client = self.table.find_mut(asks.id)?;
        let head = &bytes[..request.head as usize];
        let tenant = base.tenants.find_mut(client.tenant)?;
        let parts = base.keys.len().max(1) as u64;
        let requests = requests_of(request, base.keys.len());
        // What a transaction has queued is in flight from its end on.
        let queued =
            client.transaction.as_ref().filter(|_| request.class == Class::Local(Local::Execute));
        let queued = queued.map_or(0, |one| one.block_len());
        let inflight = queued + request.len() + parts * u64::from(client.expected.len());
        let is_called = client.is_called(base.now);
        let limit = if tenant.limited == 0 || is_called {
            tenant.admit(&base.metrics, inflight, base.now)
        } else {
            // Others were here before.
            Err(Limit::Line)
        };
        if let Err(limit) = limit {
            return self.hold_back(base, frame, head, limit);
        }
        if let Some(member) = client.member.as_mut() {
            member.turns = member.turns.saturating_sub(1);
            if member.limited != Time(0) {
                let since = std::mem::take(&mut member.limited);
                tenant.limited -= 1;
                tenant.latencies.record(Latency::QUEUE, base.now.since(since));
            }
        }
        tenant.charge(requests, request.len(), base.now);
        let words = self.denied(base, asks, (request, head))?;
        self.refuse_read(base, &frame.incoming(head), &Answer::Denied(&words));
        Some(head.len())
    }

    /// Returns why the rules of a client's tenant forbid a request, if they do.
    pub(crate) fn denied(
        &self,
        base: &mut Base,
        asks: &Requester,
        (request, head): (&Request, &[u8]),
    ) -> Option<String> {
        let client = self.table.find(asks.id)?;
        let tenant = base.tenants.find_mut(client.tenant)?;
        let rules = tenant.plan.rules.as_ref()?;
        let extras = &base.pools[asks.pool()].plan.extras;
        let is_extra = !extras.is_empty() && {
            let name = asks.protocol.name_of(request, head);
            extras.iter().any(|extra| name.eq_ignore_ascii_case(extra.name.as_bytes()))
        };
        let current = client.session.conn_key.database;
        let judged = (request, head);
        let scratch = &mut base.scratch;
        let denied =
            rules.judge(asks.protocol, judged, &base.keys, (current, is_extra), scratch)?;
        tenant.counters.add(TenantCounter::Denied, 1);
        let name = match is_extra {
            true => String::from_utf8_lossy(&asks.protocol.name_of(request, head)).into_owned(),
            false => asks.protocol.command_name(request.command).to_string(),
        };
        Some(denied.words(&tenant.plan.name, &name))
    }

    /// Has a request wait, or refuses it, because of a limit.
    #[cold]
    fn hold_back(
        &mut self,
        base: &mut Base,
        frame: &Frame,
        head: &[u8],
        limit: Limit,
    ) -> Option<usize> {
        let id = frame.asks.id;
        let client = self.table.find_mut(id)?;
        let at = client.tenant;
        let ticket = base.tenants.ticket();
        let tenant = base.tenants.find_mut(at)?;
        if tenant.plan.over == Over::Refuse {
            tenant.counters.add(TenantCounter::Over, 1);
            let (name, limit) = (&tenant.plan.name, limit.words(&tenant.plan));
            let words = format!("tenant '{name}' is over its limit of {limit}");
            let incoming = Incoming { asks: &frame.asks, request: &frame.request, head };
            self.refuse_read(base, &incoming, &Answer::Failed(&words));
            return Some(head.len());
        }
        let member = client.member();
        if member.limited == Time(0) {
            (member.limited, member.ticket) = (base.now, ticket);
            tenant.limited += 1;
            tenant.counters.add(TenantCounter::Delayed, 1);
        }
        // One that was called and got nothing keeps its place.
        let ticket = member.ticket;
        let place = tenant.line.partition_point(|(other, _)| *other < ticket);
        tenant.line.insert(place, (ticket, id));
        client.waits.tenant = true;
        // Its socket is still read, so that we notice when it leaves.
        client.pause();
        tenant.counters.add(TenantCounter::WaitingNow, 1);
        let at_time = when_to_call(base, limit);
        set_timer(base, at, at_time);
        self.unread(frame, requests_of(&frame.request, base.keys.len()));
        Some(0)
    }

    /// Calls clients of a tenant that wait for a limit, when its timer comes.
    pub(crate) fn tenant_timer(&mut self, base: &mut Base, tenant_id: u32, set: Time) {
        let Some(at) = base.tenants.index_of(tenant_id) else { return };
        let now = base.now;
        let tenant = base.tenants.find_mut(at).filter(|one| one.timer == set);
        let Some(tenant) = tenant else { return };
        tenant.timer = Time(0);
        if let Err(limit) = tenant.admit(&base.metrics, 0, now) {
            let at_time = when_to_call(base, limit);
            return set_timer(base, at, at_time);
        }
        let (called, turns) = tenant.calls();
        for _ in 0..called {
            let Some(tenant) = base.tenants.find_mut(at) else { return };
            let Some((_, id)) = tenant.line.pop_front() else { return };
            tenant.counters.subtract(TenantCounter::WaitingNow, 1);
            if let Some(client) = self.table.find_mut(id) {
                client.waits.tenant = false;
                let member = client.member();
                (member.called, member.turns) = (now, turns);
                self.update_client(base, id);
            }
        }
        if base.tenants.find(at).is_some_and(|tenant| !tenant.line.is_empty()) {
            set_timer(base, at, base.now.after(CALL_US));
        }
    }
}

/// Returns how many requests a request is: a joined read is several.
pub(super) fn requests_of(request: &Request, keys: usize) -> u64 {
    if request.keep { keys.max(1) as u64 } else { 1 }
}

/// Charges a client's tenant for bytes that were sent.
#[inline]
pub(super) fn charge_sent(tenants: &mut Tenants, client: &Client, bytes: usize, now: Time) {
    if let Some(tenant) = tenants.find_mut(client.tenant) {
        tenant.charge_sent(bytes as u64, now);
    }
}

impl Client {
    /// Returns its user.
    pub(super) fn user(&self) -> Option<&Rc<str>> {
        self.member.as_ref()?.user.as_ref()
    }

    /// Returns its user and what it has of its tenant's, to be changed.
    pub(super) fn member(&mut self) -> &mut Member {
        self.member.get_or_insert_default()
    }

    /// Returns the bytes that it has in flight, where its tenant has a limit for them.
    pub(super) fn inflight(&self) -> u64 {
        self.member.as_ref().map_or(0, |member| member.inflight)
    }

    /// Whether its next request was held back.
    pub(super) fn is_limited(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.limited != Time(0))
    }

    /// Whether it was called from its tenant's line a moment ago: it does not wait behind others.
    fn is_called(&self, now: Time) -> bool {
        let Some(Member { called, turns, .. }) = self.member.as_deref() else { return false };
        *turns > 0 && now < called.after(2 * CALL_US)
    }
}

/// Returns the tenant that a client belongs to.
fn tenant_of(base: &Base, client: &Client) -> u16 {
    let of_user = client.user().and_then(|user| base.tenants.of_user(user));
    let pool = &base.pools[client.pool as usize];
    let of_pool = if pool.stage == Stage::Planned { pool.tenant } else { NOBODY };
    of_user.unwrap_or(of_pool)
}

/// Returns when clients that met this limit are called.
fn when_to_call(base: &mut Base, limit: Limit) -> Time {
    match limit {
        Limit::Rate(_, until) => until.after(u64::from(base.random.next()) % SPREAD_US),
        Limit::Inflight => base.now.after(INFLIGHT_US),
        Limit::Line => base.now.after(SPREAD_US),
    }
}

/// Has a tenant's line looked at no later than at this time.
fn set_timer(base: &mut Base, at: u16, time: Time) {
    let now = base.now;
    let Some(tenant) = base.tenants.find_mut(at) else { return };
    if tenant.timer <= now || tenant.timer > time {
        tenant.timer = time;
        base.timers.set(time, Due::Tenant { id: tenant.plan.id });
    }
}

/// Workers that wait for the same rate come within this time, so that none is always the first.
const SPREAD_US: u64 = 400;
/// How often a line is looked at while there is something to be had.
const CALL_US: u64 = 1_000;
/// How often it is looked at while too much is in flight; this worker's own answers end that at
/// once.
const INFLIGHT_US: u64 = 5_000;
