//! Installs another plan between two events. Pools and servers are matched by their ids. Those that
//! stay the same keep links, clients, ring and health. The same plan again does nothing.
//!
//! ```text
//!   pool gone    ─▶ its clients get their answers and are closed ─▶ its servers retire
//!   server gone  ─▶ out of the ring; its links are closed as they become idle ─▶ vacant
//! ```
//!
//! A request that was read before keeps its old route; a later one takes the new route. Nothing
//! fails because of a plan.

use crate::client::State;
use crate::id::ConnId;
use crate::link::Link;
use crate::plan::{Plan, PoolPlan, ServerPlan};
use crate::pool::{Gauges, Pool, Proof, Server, Stage};
use crate::timers::Due;
use crate::{Action, Proxy, Time, limits};

impl Proxy {
    pub(crate) fn install_plan(&mut self, plan: Plan, now: Time) {
        self.clients_max = plan.clients_max;
        self.clients_room = plan.clients_room;
        self.pipelines.memory.max = plan.memory_max;
        self.pipelines.limits = plan.limits;
        self.pipeline_ever = self.pipeline_ever.max(plan.limits.pipeline);
        for at in 0..self.pipelines.pools.len() {
            let id = self.pipelines.pools[at].plan.id;
            let stays = plan.pools.iter().any(|pool| pool.id == id);
            if !stays && self.pipelines.pools[at].stage == Stage::Planned {
                self.retire_pool(at, now);
            }
        }
        for pool in plan.pools {
            match self.pool_index_of(pool.id) {
                Some(at) => self.change_pool(at, pool, now),
                None => self.add_pool(pool, now),
            }
        }
    }

    /// Whether the data plane still needs the id of a pool or server.
    pub fn uses_id(&self, id: u32) -> bool {
        let pools = self.pipelines.pools.iter().filter(|pool| pool.stage != Stage::Vacant);
        pools.into_iter().any(|pool| pool.plan.id == id || pool.place_of(id).is_some())
    }

    /// Returns the ids of pools and servers that have left the plan and are still needed.
    pub fn retired_ids_in_use(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for pool in self.pipelines.pools.iter().filter(|pool| pool.stage != Stage::Vacant) {
            let gone = pool.stage == Stage::Retired;
            ids.extend(gone.then_some(pool.plan.id));
            let servers = pool.servers.iter().filter(|one| one.stage != Stage::Vacant);
            let servers = servers.filter(|one| gone || one.stage == Stage::Retired);
            ids.extend(servers.map(|one| one.plan.id));
        }
        ids
    }

    /// Returns the index of the pool with this id, unless it is vacant.
    pub(crate) fn pool_index_of(&self, id: u32) -> Option<usize> {
        let is_it = |pool: &Pool| pool.plan.id == id && pool.stage != Stage::Vacant;
        self.pipelines.pools.iter().position(is_it)
    }

    /// Frees retired pools and servers that are not needed any more, at the end of a turn.
    pub(crate) fn free_retired(&mut self) {
        if self.retired && !bug!(NeverVacate) {
            self.vacate_retired();
        }
    }

    fn add_pool(&mut self, plan: PoolPlan, now: Time) {
        let preconnect = plan.preconnect;
        let pool = Pool::new(plan, &self.pipelines.metrics);
        let pools = &mut self.pipelines.pools;
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
        if preconnect {
            (0..self.pipelines.pools[at].servers.len())
                .for_each(|one| self.preconnect(at, one, now));
        }
    }

    /// Retires a pool: it accepts no client any more, and the clients it has still get their
    /// answers.
    fn retire_pool(&mut self, at: usize, now: Time) {
        self.retired = true;
        let pool = &mut self.pipelines.pools[at];
        pool.stage = Stage::Retired;
        pool.retire_at = now.after(limits::RETIRE_US);
        self.timers.set(pool.retire_at, Due::Retire { id: pool.plan.id });
        for id in self.clients_of(at) {
            self.pipelines.finish(id);
        }
    }

    /// Closes the clients of a retired pool, which have had long enough to take their answers.
    pub(super) fn end_retirement(&mut self, id: u32, set: Time) {
        let Some(at) = self.pool_index_of(id) else { return };
        if self.pipelines.pools[at].retire_at != set {
            return;
        }
        for id in self.clients_of(at) {
            let client = self.pipelines.clients.find(id).expect("it has just been listed");
            if client.state != State::Open {
                self.pipelines.actions.push_back(Action::Close(id));
                self.pipelines.drop_client(id);
            }
        }
    }

    fn clients_of(&self, pool: usize) -> Vec<ConnId> {
        let clients = self.pipelines.clients.iter().filter(|(_, one)| one.pool as usize == pool);
        clients.map(|(id, _)| id).collect()
    }

    /// Changes a pool that is in both plans, or had retired and is back.
    fn change_pool(&mut self, at: usize, plan: PoolPlan, now: Time) {
        let pool = &mut self.pipelines.pools[at];
        let is_same = pool.plan.protocol.name() == plan.protocol.name();
        assert!(is_same, "a pool with another protocol has another row");
        let servers = plan.servers.clone();
        let old = std::mem::replace(&mut pool.plan, plan);
        if std::mem::replace(&mut pool.stage, Stage::Planned) == Stage::Retired {
            // Decisions about its servers were forgotten when the pool went.
            pool.servers.iter_mut().for_each(Server::begin_anew);
        }
        for place in 0..pool.servers.len() {
            let server = &self.pipelines.pools[at].servers[place];
            let stays = servers.iter().any(|one| one.id == server.plan.id);
            if !stays && server.stage == Stage::Planned {
                self.retire_server(at, place);
            }
        }
        self.change_links(at);
        self.pipelines.pools[at].settle_home();
        let mut ring_changed = old.distribution != self.pipelines.pools[at].plan.distribution;
        let mut fresh = Vec::new();
        for server in servers {
            match self.pipelines.pools[at].place_of(server.id) {
                Some(place) => ring_changed |= self.change_server(at, place, server, &mut fresh),
                None => fresh.push(self.add_server(at, server)),
            }
        }
        let pool = &mut self.pipelines.pools[at];
        if !bug!(OldRing) {
            pool.rebuild_ring(ring_changed);
        }
        if pool.plan.preconnect {
            fresh.into_iter().for_each(|place| self.preconnect(at, place, now));
        }
        self.shorten_deadlines(at, &old, now);
        #[cfg(seeded_bugs)]
        self.disturb(at);
    }

    /// Changes a server that is in both plans, or had retired and is back. Returns whether the ring
    /// is affected.
    fn change_server(
        &mut self,
        pool: usize,
        place: usize,
        plan: ServerPlan,
        fresh: &mut Vec<usize>,
    ) -> bool {
        let server = &mut self.pipelines.pools[pool].servers[place];
        let ring_changed = server.plan.name != plan.name || server.plan.weight != plan.weight;
        server.plan = plan;
        if server.proof == Proof::Disproved {
            (server.proof, server.capabilities) = (Proof::Open(0), None);
        }
        if server.stage == Stage::Retired {
            server.stage = Stage::Planned;
            server.begin_anew();
            fresh.push(place);
            for id in server.links.iter().flatten().flatten() {
                let link = self.links.find_mut(*id).expect("a server knows living links only");
                link.retiring = false;
            }
        }
        ring_changed
    }

    fn add_server(&mut self, pool: usize, plan: ServerPlan) -> usize {
        let pool = &mut self.pipelines.pools[pool];
        let links = (pool.conn_keys.len(), pool.plan.server_connections);
        let server = Server::new(plan, links, &self.pipelines.metrics);
        match pool.servers.iter().position(|one| one.stage == Stage::Vacant) {
            Some(place) => {
                pool.servers[place] = server;
                place
            }
            None => {
                pool.servers.push(server);
                pool.servers.len() - 1
            }
        }
    }

    /// Retires a server: it gets nothing new, and its outstanding requests are still answered.
    fn retire_server(&mut self, pool: usize, place: usize) {
        self.retired = true;
        let server = &mut self.pipelines.pools[pool].servers[place];
        server.stage = Stage::Retired;
        server.probe_at = None;
        let (probe, links) = (server.probe, server.links.clone());
        if let Some(probe) = probe {
            self.close_quietly(probe);
        }
        links.into_iter().flatten().flatten().for_each(|id| self.retire_link(id));
    }

    pub(super) fn retire_link(&mut self, id: ConnId) {
        let link = self.links.find_mut(id).expect("a server knows living links only");
        link.retiring = true;
        #[cfg(seeded_bugs)]
        if bug!(DropQueue) {
            let now = self.pipelines.now;
            return self.close_link(id, crate::fault::Fault::LinkLost, now);
        }
        self.end_link_retirement(id);
    }

    /// Closes a retiring link once nothing waits on it. That counts as no failure.
    pub(super) fn end_link_retirement(&mut self, id: ConnId) {
        let over = |link: &Link| link.retiring && link.is_idle() && !bug!(KeepRetired);
        if self.links.find(id).is_some_and(over) {
            self.close_quietly(id);
        }
    }

    /// Closes an idle link.
    pub(super) fn close_quietly(&mut self, id: ConnId) {
        let mut link = self.links.remove(id).expect("the caller found it");
        self.pipelines.memory.change(&mut link.counted, 0);
        self.pipelines.actions.push_back(Action::Close(id));
        self.pipelines.pools[link.pool as usize].servers[link.server as usize].forget(id);
        self.gauges_changed = true;
        assert!(!link.owes, "a link that carries nothing is owed nothing");
        self.end_awaiting(link.pool as usize, link.server as usize);
    }

    /// Gives each server as many links as the plan says. A client finds its link by their number.
    /// So a client that waits for answers is not read until it has them: otherwise its next request
    /// could overtake one before it.
    fn change_links(&mut self, at: usize) {
        let pool = &mut self.pipelines.pools[at];
        let count = pool.plan.server_connections;
        let mut extra = Vec::new();
        let mut changed = false;
        for server in pool.servers.iter_mut().filter(|one| one.stage != Stage::Vacant) {
            for links in &mut server.links {
                changed |= links.len() != count;
                if links.len() > count {
                    extra.extend(links.split_off(count).into_iter().flatten());
                }
                links.resize(count, None);
            }
        }
        extra.into_iter().for_each(|id| self.retire_link(id));
        if changed && !bug!(SwitchConnKey) {
            self.clients_of(at).into_iter().for_each(|id| self.pipelines.pause_until_idle(id));
        }
    }

    /// Sets timers for deadlines that have come nearer.
    fn shorten_deadlines(&mut self, at: usize, old: &PoolPlan, now: Time) {
        let plan = &self.pipelines.pools[at].plan;
        let retry_sooner = plan.server_retry_timeout < old.server_retry_timeout;
        if plan.timeouts != old.timeouts && !bug!(ForgetRearm) {
            let links = self.links.iter().filter(|(_, link)| link.pool as usize == at);
            let links: Vec<ConnId> = links.map(|(id, _)| id).collect();
            links.into_iter().for_each(|id| self.arm_link(id));
        }
        for place in 0..self.pipelines.pools[at].servers.len() {
            let server = &mut self.pipelines.pools[at].servers[place];
            if retry_sooner && server.ejected && server.probe_at.take().is_some() {
                self.await_probe(at, place, now);
            }
        }
    }

    /// Forgets retired pools and servers that nothing needs. Their ids may then be given to others.
    fn vacate_retired(&mut self) {
        self.retired = false;
        for at in 0..self.pipelines.pools.len() {
            let pool = &self.pipelines.pools[at];
            let is_over = pool.stage == Stage::Retired && pool.clients == 0;
            for place in 0..pool.servers.len() {
                if is_over && self.pipelines.pools[at].servers[place].stage == Stage::Planned {
                    self.retire_server(at, place);
                }
            }
            let pool = &mut self.pipelines.pools[at];
            for server in pool.servers.iter_mut().filter(|one| one.stage == Stage::Retired) {
                if server.alive > 0 {
                    continue;
                }
                server.stage = Stage::Vacant;
                server.gauges = Gauges::default();
                server.publish();
            }
            if is_over && pool.servers.iter().all(|one| one.stage == Stage::Vacant) {
                pool.stage = Stage::Vacant;
            }
            let waits = pool.servers.iter().any(|one| one.stage == Stage::Retired);
            self.retired |= waits || pool.stage == Stage::Retired;
        }
    }
}
