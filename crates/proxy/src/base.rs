//! The ground of both halves: time, orders to the driver, the pools as both see them, buffers,
//! the memory account, limits and timers. Nothing here knows of a client or a link.

pub mod access;
pub(crate) mod block;
pub(crate) mod buffer;
pub(crate) mod busy;
pub(crate) mod conn_key;
pub mod connection;
pub(crate) mod definitions;
pub mod fault;
pub(crate) mod groups;
pub(crate) mod id;
pub mod limits;
pub(crate) mod memory;
pub mod outliers;
pub(crate) mod part;
pub(crate) mod phases;
pub mod plan;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod room;
pub(crate) mod share;
pub(crate) mod size;
pub mod slow;
pub mod tenants;
pub(crate) mod timers;
pub(crate) mod topics;
pub(crate) mod trips;
pub mod users;

use std::collections::VecDeque;

use metrics::{Counters, WorkerCounter, WorkerMetrics};
use proto::{Span, TopicKind, Upstream};

use crate::{Action, Event, Time};
use buffer::Spares;
use connection::Connection;
use groups::Groups;
use limits::Limits;
use memory::Memory;
use part::Requester;
use plan::{Plan, PoolPlan, PubSub};
use pool::{Pool, Server, Stage};
use random::Random;
use slow::{LongTurn, ReplyOf};
use tenants::Tenants;
use timers::Timers;

/// The place of a server: the indexes of its pool and of itself there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServerAt {
    pub(crate) pool: u32,
    pub(crate) server: u32,
}

/// One half's sums. Those of both halves must agree.
pub(crate) struct Sums {
    /// Bytes reported to the memory account.
    pub(crate) bytes: usize,
    /// Parts outstanding: in the client half by its requests, in the server half in its queues.
    pub(crate) parts: usize,
    /// Parts outstanding that stand in no queue.
    pub(crate) parts_kept: usize,
}

/// A server, as this worker sees it.
pub struct ServerView<'a> {
    pub id: u32,
    pub pool: &'a str,
    pub server: &'a str,
    /// One of "ready", "down" and "ejected".
    pub health: &'static str,
    pub upstream: &'static dyn Upstream,
}

/// The state that both halves use. Each of their methods gets it from `proxy.rs`.
pub(crate) struct Base {
    pub(crate) pools: Vec<Pool>,
    pub(crate) tenants: Tenants,
    pub(crate) spares: Spares,
    pub(crate) memory: Memory,
    pub(crate) limits: Limits,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) timers: Timers,
    pub(crate) random: Random,
    /// The metrics of this worker.
    pub(crate) metrics: WorkerMetrics,
    /// This worker's own counters.
    pub(crate) worker: Counters<WorkerCounter>,
    pub(crate) started: Time,
    /// The time, as the driver last gave it.
    pub(crate) now: Time,
    /// Counts loop turns; identifies the turn in which a shared batch was open.
    pub(crate) turn: u64,
    pub(crate) groups: Groups,
    /// When the turn before this one ended: every message of this turn was queued after it.
    pub(crate) turn_since: Time,
    /// The reply that is being read.
    pub(crate) reply: ReplyOf,
    /// The most private links, of all workers together.
    pub(crate) private_max: u64,
    /// How many plans have been installed.
    pub(crate) plans: u64,
    /// Some pool has a slow log or an access log. Without one, requests do not keep what only they
    /// need.
    pub(crate) is_watched: bool,
    /// Some pool has an access log.
    pub(crate) logs_access: bool,
    /// The last turn that took long.
    pub(crate) long_turn: LongTurn,
    /// How long the driver works in a turn, on the average, in microseconds.
    pub(crate) work_us: u64,
    /// Some pool or tenant may be paused, or looked at, or a client may go around a link.
    pub(crate) is_special: bool,
    /// Links with which clients go around others.
    pub(crate) spare_links: usize,
    /// Something has changed since the gauges were last written to the metrics registry.
    pub(crate) gauges_changed: bool,
    /// Positions of the keys in the request being read.
    pub(crate) keys: Vec<Span>,
    /// A key that had to be decoded.
    pub(crate) scratch: Vec<u8>,
}

impl Base {
    pub(crate) fn new(plan: Plan, seed: u64, now: Time, metrics: WorkerMetrics) -> Base {
        let mut tenants = Tenants::default();
        let of_pools = plan.tenant_ids();
        tenants.install(plan.tenants, plan.removed_users, &metrics, now);
        let mut base = Base {
            private_max: plan.private_max,
            plans: 0,
            is_watched: plan.pools.iter().any(PoolPlan::is_watched),
            logs_access: plan.pools.iter().any(PoolPlan::logs_access),
            tenants,
            pools: plan.pools.into_iter().map(|pool| Pool::new(pool, &metrics, now)).collect(),
            spares: Spares::default(),
            memory: Memory::new(plan.memory_max),
            limits: plan.limits,
            actions: VecDeque::new(),
            timers: Timers::default(),
            random: Random::new(seed),
            metrics,
            worker: metrics.counters(0),
            started: now,
            now,
            turn: 1,
            groups: Groups::new(plan.limits.turn_work),
            turn_since: now,
            reply: ReplyOf::NONE,
            long_turn: LongTurn::default(),
            work_us: 0,
            is_special: false,
            spare_links: 0,
            gauges_changed: false,
            keys: Vec::new(),
            scratch: Vec::new(),
        };
        base.set_tenants_of_pools(&of_pools);
        base
    }

    /// Microseconds since `moment` in which the worker was free for what comes, at most: what came
    /// in a long turn may have come at its beginning, and is read when it is over.
    pub(crate) fn idle_since(&self, moment: Time) -> u64 {
        if moment > self.turn_since {
            return 0;
        }
        let LongTurn { since, until } = self.long_turn;
        let is_in_long_turn = (since..=until).contains(&moment);
        self.now.since(if is_in_long_turn { until } else { moment })
    }

    /// Notes the tenants of pools: pairs of their ids.
    pub(crate) fn set_tenants_of_pools(&mut self, of_pools: &[(u32, u32)]) {
        for pool in &mut self.pools {
            let of_pool = of_pools.iter().find(|(id, _)| *id == pool.plan.id);
            let at = of_pool.and_then(|(_, tenant)| self.tenants.index_of(*tenant));
            pool.tenant = at.unwrap_or(tenants::NOBODY);
        }
        self.groups.renew();
        for (at, tenant) in self.tenants.iter() {
            self.groups.set_weight(at, tenant.plan.weight, self.limits.turn_work);
        }
    }

    /// Returns the group that a client of this tenant, or of this pool without one, belongs to.
    pub(crate) fn group_of(&self, tenant: u16, pool: usize) -> u16 {
        Groups::of(tenant, self.pools[pool].plan.protocol.place())
    }

    /// Whether a group holds more than its part of the memory, as of when that was last looked at,
    /// and there is still little.
    #[inline]
    fn is_over(&self, group: u16) -> bool {
        self.groups.is_over(group) && self.memory.is_little()
    }

    /// Whether there is room for so many more bytes of a client of this group.
    #[inline]
    pub(crate) fn has_room(&self, group: u16, more: usize) -> bool {
        self.memory.has_room(more) && !self.is_over(group)
    }

    /// The same for a request of which some has come. If its group holds more than its part, it is
    /// given up only where little is left for others.
    pub(crate) fn has_room_to_go_on(&self, group: u16, more: usize) -> bool {
        self.memory.has_room(more) && !(self.memory.is_short() && self.is_over(group))
    }

    /// Takes a buffer back. The kernel takes time for a large one, so that goes little by little.
    pub(crate) fn give_back(&mut self, buffer: Vec<u8>) {
        match buffer.len() > limits::FREED_PER_TURN {
            true => self.memory.free_later([buffer]),
            false => self.spares.give(buffer),
        }
    }

    /// As `has_room`, for the client that asks.
    #[inline]
    pub(crate) fn has_room_for(&self, asks: &Requester, more: usize) -> bool {
        let is_over = || self.is_over(self.group_of(asks.tenant, asks.pool()));
        self.memory.has_room(more) && !(self.groups.any_over() && is_over())
    }

    /// Returns the limits for a client of this group, narrowed to the memory that is left for it.
    #[inline]
    pub(crate) fn narrow(&self, group: u16) -> Limits {
        let limits = self.memory.narrow(self.limits);
        match self.is_over(group) {
            false => limits,
            true => Limits {
                client_outbox: limits.client_outbox.min(limits::CLIENT_OUTBOX_SHORT),
                ..limits
            },
        }
    }

    /// Whether the subscription to a topic is to stand at a server, once that can be reached.
    pub(crate) fn is_heard_at(&self, at: ServerAt, kind: TopicKind, topic: &[u8]) -> bool {
        let (pool, server) = (self.pool(at), at.server as usize);
        let is_its = match pool.plan.pubsub == PubSub::All || kind == TopicKind::Pattern {
            true => pool.servers[server].plan.twin_of.is_none(),
            false => pool.route(topic, || 0) == Some(server),
        };
        pool.servers[server].is_in_service() && is_its
    }

    pub(crate) fn pool(&self, at: ServerAt) -> &Pool {
        &self.pools[at.pool as usize]
    }

    pub(crate) fn server(&self, at: ServerAt) -> &Server {
        &self.pools[at.pool as usize].servers[at.server as usize]
    }

    pub(crate) fn server_mut(&mut self, at: ServerAt) -> &mut Server {
        &mut self.pools[at.pool as usize].servers[at.server as usize]
    }

    /// Returns how long a request waits for a link or a server before its client may ask for it
    /// again: longer on a distant path, but at most a quarter of the time for a reply.
    #[inline]
    pub(crate) fn hold_after(&self, at: ServerAt) -> Option<u64> {
        self.within_hold(at, |trips| trips.patience())
    }

    /// Returns how long a server that owes answers may be silent before it is held, if it ever is.
    #[inline]
    pub(crate) fn silence_after(&self, at: ServerAt) -> Option<u64> {
        self.within_hold(at, |trips| trips.patience().max(trips.patience_at_first()))
    }

    #[inline]
    fn within_hold(
        &self,
        at: ServerAt,
        patience: impl FnOnce(&trips::Trips) -> u64,
    ) -> Option<u64> {
        let plan = &self.pool(at).plan;
        let least = plan.hold_after?;
        let most = least.max(plan.timeouts.reply / 4);
        let patience = if bug!(HoldNear) { least } else { patience(&self.server(at).trips) };
        Some(patience.clamp(least, most))
    }

    /// Lists every server, in the order of the plan.
    pub(crate) fn servers(&self) -> impl Iterator<Item = ServerView<'_>> {
        let pools = self.pools.iter().filter(|pool| pool.stage == Stage::Planned);
        pools.flat_map(|pool| {
            let servers = pool.servers.iter().filter(|one| one.stage == Stage::Planned);
            servers.map(|server| ServerView {
                id: server.plan.id,
                pool: &pool.plan.name,
                server: &server.plan.label,
                health: server.health_name(),
                upstream: pool.upstream,
            })
        })
    }

    /// Returns the index of the pool with this id, unless it is vacant.
    pub(crate) fn pool_index_of(&self, id: u32) -> Option<usize> {
        let is_it = |pool: &Pool| pool.plan.id == id && pool.stage != Stage::Vacant;
        self.pools.iter().position(is_it)
    }

    /// Returns the place of the server with this id, unless a plan has removed it.
    pub(crate) fn find_server(&self, id: u32) -> Option<ServerAt> {
        let known = self.pools.iter().enumerate().filter(|(_, pool)| pool.stage != Stage::Vacant);
        let place = |(at, pool): (usize, &Pool)| {
            Some(ServerAt { pool: at as u32, server: pool.place_of(id)? as u32 })
        };
        known.filter_map(place).next()
    }

    /// Lists the places of a server in all the pools that it stands in.
    pub(crate) fn same_servers(&self, at: ServerAt) -> Vec<ServerAt> {
        self.server(at).plan.same_ids().filter_map(|id| self.find_server(id)).collect()
    }

    /// Reports what became of a connection, if somebody wants to know.
    #[inline]
    pub(crate) fn log_connection(&mut self, what: impl FnOnce(&Base) -> Connection) {
        if self.metrics.registry().is_debug() {
            let what = Box::new(what(self));
            self.log(Event::Connection(what));
        }
    }

    pub(crate) fn log(&mut self, event: Event) {
        self.actions.push_back(Action::Log(event));
    }

    /// Looks whether any pool or tenant may be paused, or looked at, or a client may go around a
    /// link.
    #[inline]
    pub(crate) fn note_special(&mut self) {
        let is_special = self.metrics.registry().is_special(self.now.0);
        self.is_special = is_special || self.spare_links > 0;
    }

    /// Sets the time before something changes.
    pub(crate) fn note_change(&mut self, now: Time) {
        self.now = now;
        self.gauges_changed = true;
    }
}
