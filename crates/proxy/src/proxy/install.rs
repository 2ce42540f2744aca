//! Installs another plan between two events. Pools and servers are matched by their ids. Those that
//! stay the same keep links, clients, ring and health. The same plan again does nothing.
//!
//! ```text
//!   pool gone    ─▶ its clients get their answers and are closed ─▶ its servers retire
//!   server gone  ─▶ out of the ring; its links are closed as they become idle ─▶ vacant
//!   maintenance  ─▶ asked nothing;   its links are closed as they become idle ─▶ asked again
//! ```
//!
//! A request that was read before keeps its old route; a later one takes the new route. Nothing
//! fails because of a plan.

use super::Proxy;
use crate::base::plan::{AdminState, Plan, PoolPlan, ServerPlan};
use crate::base::pool::{Pool, Server, Stage};
use crate::base::tenants::NOBODY;
use crate::base::timers::Due;
use crate::base::{ServerAt, limits};

impl Proxy {
    pub(super) fn take_plan(&mut self, plan: Plan) {
        self.base.tenants.end_run();
        self.clients.set_limits(&plan);
        self.clients.leave_tenants(&mut self.base);
        self.servers.leave_tenants(&self.base);
        let of_pools = plan.tenant_ids();
        let (tenants, removed_users) = (plan.tenants, plan.removed_users);
        self.base.plans += 1;
        self.base.private_max = plan.private_max;
        self.base.memory.max = plan.memory_max;
        self.base.limits = plan.limits;
        let is_watched = plan.pools.iter().any(PoolPlan::is_watched);
        if is_watched && !self.base.is_watched {
            self.clients.begin_watching();
        }
        self.base.is_watched = is_watched;
        self.base.logs_access = plan.pools.iter().any(PoolPlan::logs_access);
        for at in 0..self.base.pools.len() {
            let id = self.base.pools[at].plan.id;
            let stays = plan.pools.iter().any(|pool| pool.id == id);
            if !stays && self.base.pools[at].stage == Stage::Planned {
                self.retire_pool(at);
            }
        }
        for pool in plan.pools {
            match self.base.pool_index_of(pool.id) {
                Some(at) => self.change_pool(at, pool),
                None => self.add_pool(pool),
            }
        }
        let Proxy { base, clients, servers, .. } = self;
        base.tenants.install(tenants, removed_users, &base.metrics, base.now);
        base.set_tenants_of_pools(&of_pools);
        clients.join_tenants(base);
        servers.join_tenants(base, |id| clients.requester(id).map_or(NOBODY, |one| one.tenant));
        self.follow_topics();
    }

    /// Whether the data plane still needs the id of a pool or server.
    pub fn uses_id(&self, id: u32) -> bool {
        let pools = self.base.pools.iter().filter(|pool| pool.stage != Stage::Vacant);
        pools.into_iter().any(|pool| pool.plan.id == id || pool.place_of(id).is_some())
    }

    /// Returns the ids of pools and servers that have left the plan and are still needed.
    pub fn retired_ids_in_use(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for pool in self.base.pools.iter().filter(|pool| pool.stage != Stage::Vacant) {
            let gone = pool.stage == Stage::Retired;
            ids.extend(gone.then_some(pool.plan.id));
            let servers = pool.servers.iter().filter(|one| one.stage != Stage::Vacant);
            let servers = servers.filter(|one| gone || one.stage == Stage::Retired);
            ids.extend(servers.map(|one| one.plan.id));
        }
        ids
    }

    fn add_pool(&mut self, plan: PoolPlan) {
        let pool = Pool::new(plan, &self.base.metrics, self.base.now);
        let pools = &mut self.base.pools;
        let at = match pools.iter().position(|one| one.stage == Stage::Vacant) {
            Some(at) => {
                pools[at] = pool;
                at
            }
            None => {
                pools.push(pool);
                pools.len() - 1
            }
        };
        self.servers.add_pool(&mut self.base, at);
    }

    /// Retires a pool: it accepts no client any more, and the clients it has still get their
    /// answers.
    fn retire_pool(&mut self, at: usize) {
        self.retired = true;
        let pool = &mut self.base.pools[at];
        pool.stage = Stage::Retired;
        pool.retire_at = self.base.now.after(limits::RETIRE_US);
        self.base.timers.set(pool.retire_at, Due::Retire { id: pool.plan.id });
        self.clients.finish_pool(&mut self.base, at);
    }

    /// Changes a pool that is in both plans, or had retired and is back.
    fn change_pool(&mut self, at: usize, plan: PoolPlan) {
        let pool = &mut self.base.pools[at];
        let is_same = pool.plan.protocol.name() == plan.protocol.name();
        assert!(is_same, "a pool with another protocol has another id");
        let wanted = plan.servers.clone();
        let old = std::mem::replace(&mut pool.plan, plan);
        let was_retired = std::mem::replace(&mut pool.stage, Stage::Planned) == Stage::Retired;
        let mut is_moved = false;
        for server in 0..self.base.pools[at].servers.len() {
            let place = ServerAt { pool: at as u32, server: server as u32 };
            self.servers.note_busy_line(&mut self.base, place, None);
            if was_retired {
                // Decisions about its servers were forgotten when the pool went.
                self.servers.begin_anew(&mut self.base, place);
            }
            let server = self.base.server(place);
            let stays = wanted.iter().any(|one| one.id == server.plan.id);
            if !stays && server.stage == Stage::Planned {
                is_moved |= wanted.iter().any(|one| one.name == server.plan.name);
                self.retire_server(place);
            }
        }
        // A client finds its link by the number of links, and a server at another address may be
        // the same one. So a client that waits for answers is not read until it has them: otherwise
        // its next request could overtake one before it.
        let changed = self.servers.change_links(&mut self.base, at, &old);
        let changed = changed || is_moved || self.ends_drain(at, &wanted);
        if changed && !bug!(SwitchConnKey) {
            self.clients.pause_pool(&mut self.base, at);
        }
        self.base.pools[at].settle_home();
        // While a pool was retired, servers may have gone, and the ring stood still. They may come
        // back to their places with other weights.
        let was_moved = old.distribution != self.base.pools[at].plan.distribution;
        let mut renamed = was_retired || was_moved;
        let mut fresh = Vec::new();
        for server in wanted {
            match self.base.pools[at].place_of(server.id) {
                Some(place) => renamed |= self.change_server(at, place, server, &mut fresh),
                None => fresh.push(self.add_server(at, server)),
            }
        }
        let pool = &mut self.base.pools[at];
        if !bug!(OldRing) {
            pool.rebuild_ring(renamed);
        }
        if pool.plan.preconnect {
            for place in fresh {
                self.servers.preconnect(&mut self.base, place);
            }
        }
        self.servers.shorten_deadlines(&mut self.base, at, &old);
        #[cfg(seeded_bugs)]
        self.servers.disturb(&mut self.base, at);
    }

    /// Changes a server that is in both plans, or had retired and is back. Returns whether the ring
    /// is affected.
    fn change_server(
        &mut self,
        pool: usize,
        place: usize,
        plan: ServerPlan,
        fresh: &mut Vec<ServerAt>,
    ) -> bool {
        let at = ServerAt { pool: pool as u32, server: place as u32 };
        let server = self.base.server_mut(at);
        let renamed = server.plan.name != plan.name || server.plan.weight != plan.weight;
        let (was, is) = (server.plan.admin, plan.admin);
        server.plan = plan;
        let was_retired = server.stage == Stage::Retired;
        server.stage = Stage::Planned;
        self.servers.believe(&mut self.base, at);
        if was_retired {
            self.servers.take_back(&mut self.base, at);
        }
        if was != is || was_retired {
            self.servers.follow_admin(&mut self.base, at, was);
            fresh.push(at);
        }
        renamed
    }

    /// Whether a server drains no more: clients whose own link to it was missing have used another.
    fn ends_drain(&self, pool: usize, wanted: &[ServerPlan]) -> bool {
        let pool = &self.base.pools[pool];
        wanted.iter().any(|new| {
            let old = pool.place_of(new.id).map(|at| pool.servers[at].plan.admin);
            old == Some(AdminState::Drain) && new.admin != AdminState::Drain
        })
    }

    fn add_server(&mut self, pool: usize, plan: ServerPlan) -> ServerAt {
        let servers = &mut self.base.pools[pool].servers;
        let server = Server::new(plan, &self.base.metrics);
        let place = match servers.iter().position(|one| one.stage == Stage::Vacant) {
            Some(place) => {
                servers[place] = server;
                place
            }
            None => {
                servers.push(server);
                servers.len() - 1
            }
        };
        let at = ServerAt { pool: pool as u32, server: place as u32 };
        self.servers.add_server(&mut self.base, at);
        at
    }

    /// Retires a server: it gets nothing new, and its outstanding requests are still answered.
    fn retire_server(&mut self, at: ServerAt) {
        self.retired = true;
        // Their ids may soon be those of others.
        self.base.server_mut(at).plan.others.clear();
        self.base.server_mut(at).retire();
        self.servers.retire_server(&mut self.base, at);
    }

    /// Frees retired pools and servers that are not needed any more, at the end of a turn. Their
    /// ids may then be given to others.
    pub(super) fn free_retired(&mut self) {
        if !self.retired || bug!(NeverVacate) {
            return;
        }
        self.retired = false;
        for pool in 0..self.base.pools.len() {
            let is_over =
                self.base.pools[pool].stage == Stage::Retired && self.base.pools[pool].clients == 0;
            for server in 0..self.base.pools[pool].servers.len() {
                let at = ServerAt { pool: pool as u32, server: server as u32 };
                if is_over && self.base.server(at).stage == Stage::Planned {
                    self.retire_server(at);
                }
                if self.base.server(at).stage == Stage::Retired && self.servers.vacate(at) {
                    self.base.server_mut(at).stage = Stage::Vacant;
                }
            }
            let pool = &mut self.base.pools[pool];
            if is_over && pool.servers.iter().all(|one| one.stage == Stage::Vacant) {
                pool.stage = Stage::Vacant;
            }
            let waits = pool.servers.iter().any(|one| one.stage == Stage::Retired);
            self.retired |= waits || pool.stage == Stage::Retired;
        }
        self.handle_link_events();
    }
}
