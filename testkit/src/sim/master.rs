//! The model master. It decides which servers are out of the ring, with a delay after the reports,
//! and gives the proxy other plans at any moment.

use proxy::Report;
use proxy::outliers::Decision;
use proxy::plan::{AdminState, OnFailure, PoolPlan, Timeouts};

use super::rings::View;
use super::scene;
use super::world::{World, say};

/// The change that another plan makes.
#[derive(Clone, Copy, Debug)]
enum Change {
    RemoveServer,
    AddServer,
    Weight,
    Timeouts,
    ServerConnections,
    Clients,
    Limits,
    Switches,
    Ejection,
    State,
    RemovePool,
    RestorePool,
}

const CHANGES: &[Change] = &[
    Change::RemoveServer,
    Change::RemoveServer,
    Change::AddServer,
    Change::AddServer,
    Change::Weight,
    Change::Timeouts,
    Change::Timeouts,
    Change::Timeouts,
    Change::ServerConnections,
    Change::Clients,
    Change::Limits,
    Change::Switches,
    Change::Ejection,
    Change::State,
    Change::State,
    Change::State,
    Change::RemovePool,
    Change::RestorePool,
    Change::RestorePool,
];

impl World {
    /// Takes a worker's report; its consequences apply some time later.
    pub fn hear(&mut self, worker: usize, report: &Report) {
        let (Report::Failed { server, .. } | Report::Answered { server, .. }) = report else {
            return;
        };
        let (pool, at) = self.place(*server);
        let entry = &mut self.pools[pool].servers[at];
        entry.progress = self.now;
        // It may have failed on an old link while it was down, after an answer on another link.
        if matches!(report, Report::Failed { .. }) {
            entry.sick_since.get_or_insert(self.now);
        }
        let decision = self.outliers.hear(worker, report);
        self.await_decisions(decision);
        self.look_at_health();
    }

    fn await_decisions(&mut self, decisions: impl IntoIterator<Item = Decision>) {
        for decision in decisions {
            // Sometimes the decision takes so long that the next one follows.
            let most = if self.random.permille(100) { 150_000 } else { 20_000 };
            let delay = if self.is_calm { 0 } else { self.random.below(most) as u64 };
            self.decisions.push((self.now.after(delay), decision));
        }
    }

    /// Applies decisions that have arrived, in their order, at the start of a turn.
    pub fn decide(&mut self) {
        while let Some((due, decision)) = self.decisions.first().copied() {
            if due > self.now && !self.is_calm {
                return;
            }
            self.decisions.remove(0);
            self.take_up(decision);
        }
    }

    fn take_up(&mut self, decision: Decision) {
        say!(self, "master: {decision:?}");
        let (number, ejected) = match decision {
            Decision::Eject(number) => (number, true),
            Decision::Return(number) => (number, false),
        };
        let (pool, at) = self.place(number);
        let was = std::mem::replace(&mut self.pools[pool].servers[at].is_ejected, ejected);
        self.summary.ejections += u64::from(ejected);
        self.turn_ring(pool);
        self.proxy.set_ejected(number, ejected, self.now);
        // A server that returns is healthy, and a server that leaves gets another pause. A repeated
        // decision changes nothing.
        if was != ejected {
            self.pools[pool].servers[at].sick_since = None;
            self.expect_probe(pool, at);
        }
        self.look_at_health();
        self.carry_out();
    }

    /// Derives the ring from the current servers and plan.
    fn turn_ring(&mut self, pool: usize) {
        let event = self.journal.event();
        let model = &mut self.pools[pool];
        let view = View::new(&model.plan, &model.servers, &model.keys);
        model.epoch += u32::from(model.rings.push(event, view));
        // A request that waits for a server just ejected from the ring keeps waiting.
        model.servers.iter_mut().for_each(|one| one.progress = self.now);
    }

    /// Reads the proxy's view of its servers' health.
    pub fn look_at_health(&mut self) {
        let down: Vec<(u32, bool)> =
            self.proxy.servers().map(|view| (view.id, is_down(view.health))).collect();
        for (number, is_down) in down {
            let (pool, at) = self.place(number);
            let server = &mut self.pools[pool].servers[at];
            if server.is_down && !is_down {
                server.trouble.back = self.journal.event();
                server.progress = self.now;
            }
            let has_failed = is_down && !server.is_down;
            server.is_down = is_down;
            if has_failed {
                self.expect_probe(pool, at);
            }
        }
    }

    /// Reports a fault that only another worker has met, or has this one ask the server since the
    /// other gets no answer.
    pub fn hearsay(&mut self, pool: usize, server: usize) {
        let server = self.pools[pool].servers[server].id;
        if self.random.permille(150) {
            self.proxy.ask_server(server, self.now);
            self.carry_out();
        }
        if self.random.permille(150) {
            let decision = self.outliers.failed(1, server, 9);
            self.await_decisions(decision);
        }
    }

    /// Installs another plan, or the same one again.
    pub fn reload(&mut self) {
        let changes = *self.random.pick(&[0, 0, 1, 1, 1, 2, 4]);
        let before: Vec<(bool, PoolPlan)> =
            self.pools.iter().map(|model| (model.is_planned, model.plan.clone())).collect();
        let done: Vec<Change> = (0..changes).filter_map(|_| self.change(&before)).collect();
        self.install(before, &done);
    }

    /// Makes all servers ready that are not, by another plan.
    pub fn lift_states(&mut self) {
        let before =
            self.pools.iter().map(|model| (model.is_planned, model.plan.clone())).collect();
        for server in self.pools.iter_mut().flat_map(|model| &mut model.plan.servers) {
            server.admin = AdminState::Ready;
        }
        self.install(before, &[Change::State]);
    }

    fn install(&mut self, before: Vec<(bool, PoolPlan)>, done: &[Change]) {
        say!(self, "RELOAD {done:?}");
        self.summary.installs += 1;
        for (pool, (was_planned, old)) in before.into_iter().enumerate() {
            self.compare(pool, was_planned, old);
            self.turn_ring(pool);
        }
        let mut plan = self.scene.plan.clone();
        let planned = self.pools.iter().filter(|model| model.is_planned);
        plan.pools = planned.map(|model| model.plan.clone()).collect();
        self.scene.plan = plan.clone();
        let returns = self.outliers.install(&plan);
        // A decision about a removed server no longer counts when the server returns.
        let outliers = &self.outliers;
        self.decisions.retain(|(_, decision)| match decision {
            Decision::Eject(number) => outliers.is_out(*number),
            Decision::Return(number) => plan_has(&plan.pools, *number),
        });
        self.await_decisions(returns);
        self.carry_out();
        self.proxy.install(plan, self.now);
        if done.is_empty() {
            let action = self.proxy.poll_action();
            assert_eq!(action, None, "the same plan again does something");
        }
        self.look_at_health();
        self.carry_out();
        self.check_rows();
        for pool in 0..self.pools.len() {
            (0..self.pools[pool].servers.len()).for_each(|at| self.expect_probe(pool, at));
        }
        // A shortened deadline may expire for requests that already wait, if nothing else happens.
        if done.iter().any(|one| matches!(one, Change::Timeouts)) && self.random.permille(500) {
            let until = self.now.after(30_000);
            for pool in 0..self.pools.len() {
                (0..self.pools[pool].servers.len()).for_each(|at| self.stall(pool, at, until));
            }
        }
    }

    /// Checks that ids of the plan are in use, and that others are as long as the proxy reports
    /// them.
    pub fn check_rows(&self) {
        let retired = self.proxy.retired_ids_in_use();
        for model in &self.pools {
            assert!(!model.is_planned || self.proxy.uses_id(model.plan.id));
            for server in &model.servers {
                let is_planned = model.is_planned && model.has(server.id);
                let is_retired = retired.contains(&server.id);
                assert_eq!(self.proxy.uses_id(server.id), is_planned || is_retired);
                assert!(!(is_planned && is_retired), "a server of the plan has retired");
            }
        }
    }

    /// Compares with a pool's earlier plan and applies the consequences of the change.
    fn compare(&mut self, pool: usize, was_planned: bool, old: PoolPlan) {
        if !self.pools[pool].is_planned {
            // Other changes of a removed pool have no observable effect.
            self.pools[pool].deadlines.push((self.now, old.timeouts));
            self.pools[pool].plan = old;
            if was_planned {
                self.pools[pool].gone_since = self.now;
                self.let_clients_go(pool);
            }
            return;
        }
        let event = self.journal.event();
        let model = &mut self.pools[pool];
        for at in 0..model.servers.len() {
            let number = model.servers[at].id;
            let find = |plan: &PoolPlan| plan.servers.iter().find(|one| one.id == number).cloned();
            let was = find(&old).filter(|_| was_planned);
            let is = find(&model.plan);
            let server = &mut model.servers[at];
            if let Some(is) = &is {
                let is_maint = is.admin == AdminState::Maint;
                if std::mem::replace(&mut server.is_maint, is_maint) != is_maint {
                    server.trouble.maint = event;
                    server.sick_since = None;
                }
            }
            if was.is_some() && is.is_some() {
                continue;
            }
            // A server that leaves or joins has no history.
            server.is_ejected = false;
            server.is_down = false;
            server.sick_since = None;
            server.trouble.back = event;
        }
    }

    /// Makes one change to the plan, if possible.
    fn change(&mut self, before: &[(bool, PoolPlan)]) -> Option<Change> {
        let change = *self.random.pick(CHANGES);
        let at = self.random.below(self.pools.len());
        if !self.pools[at].is_planned {
            let restores = matches!(change, Change::RestorePool) && !before[at].0;
            self.pools[at].is_planned = restores;
            return restores.then_some(change);
        }
        let random = &mut self.random;
        let plan = &mut self.pools[at].plan;
        let done = match change {
            Change::RemoveServer => self.remove_server(at),
            Change::AddServer => self.add_server(at),
            Change::Weight => {
                let server = random.below(plan.servers.len());
                let weight = random.range(1, 5) as u32;
                std::mem::replace(&mut plan.servers[server].weight, weight) != weight
            }
            Change::Timeouts => self.change_timeouts(at),
            Change::ServerConnections => {
                let count = random.range(1, 3);
                let before = std::mem::replace(&mut plan.server_connections, count);
                let changes_owner = plan.protocol.name() == "redis" && random.permille(200);
                plan.private ^= changes_owner;
                self.pools[at].has_shrunk |= count < before;
                count != before || changes_owner
            }
            Change::Clients => self.change_clients(at),
            Change::Limits => {
                let limits = &mut self.scene.plan.limits;
                limits.pipeline = random.range(1, 40);
                limits.client_outbox = random.range(100, 4_000);
                true
            }
            Change::Switches => {
                scene::switches(random, plan);
                true
            }
            Change::Ejection => {
                plan.on_failure = *random.pick(&[OnFailure::Eject, OnFailure::FailFast]);
                plan.server_failure_limit = random.range(1, 3) as u32;
                plan.server_retry_timeout = random.range(5_000, 60_000) as u64;
                plan.max_ejected = *random.pick(&[None, Some(0), Some(1), Some(3)]);
                true
            }
            Change::State => {
                let server = random.below(plan.servers.len());
                let state = *random.pick(&AdminState::ALL);
                std::mem::replace(&mut plan.servers[server].admin, state) != state
            }
            Change::RemovePool => {
                self.pools[at].is_planned = !before[at].0;
                before[at].0
            }
            Change::RestorePool => false,
        };
        done.then_some(change)
    }

    fn remove_server(&mut self, pool: usize) -> bool {
        let model = &mut self.pools[pool];
        if model.plan.servers.len() < 2 {
            return false;
        }
        let at = self.random.below(model.plan.servers.len());
        model.plan.servers.remove(at);
        true
    }

    fn add_server(&mut self, pool: usize) -> bool {
        let model = &mut self.pools[pool];
        let mut absent = self.scene.universe[pool].clone();
        absent.retain(|one| !model.has(one.id));
        if absent.is_empty() {
            return false;
        }
        let place = self.random.range(0, model.plan.servers.len());
        model.plan.servers.insert(place, self.random.pick(&absent).clone());
        true
    }

    fn change_timeouts(&mut self, pool: usize) -> bool {
        if self.scene.faults.is_empty() {
            return false;
        }
        let all = |us| Timeouts { connect: us, queue: us, reply: us, slow: us, write: us };
        // Often all of them, and much longer or shorter than before.
        let timeouts = match self.random.below(3) {
            0 => scene::timeouts(&mut self.random, false),
            1 => all(3_000),
            _ => all(90_000),
        };
        let model = &mut self.pools[pool];
        model.plan.timeouts = timeouts;
        model.deadlines.push((self.now, timeouts));
        true
    }

    fn change_clients(&mut self, pool: usize) -> bool {
        let random = &mut self.random;
        let mut some = || if random.permille(300) { random.range(1, 4) } else { usize::MAX };
        self.scene.plan.clients_max = some();
        self.pools[pool].plan.client_connections = some();
        true
    }

    /// Lets the clients of a removed pool go: their requests are answered, then they are closed.
    fn let_clients_go(&mut self, pool: usize) {
        for client in self.clients.iter_mut().flatten().filter(|one| one.pool == pool) {
            // A client that is paused may have sent requests that were never parsed.
            let is_awaiting = self.proxy.is_awaiting(client.id);
            if client.is_paused || is_awaiting {
                self.journal.retryable(client.number);
            }
            client.drain(&self.proxy, &self.journal);
        }
    }
}

/// Whether a server that is shown so waits for a probe.
fn is_down(health: &str) -> bool {
    matches!(health, "down" | "ejected")
}

fn plan_has(pools: &[PoolPlan], number: u32) -> bool {
    pools.iter().flat_map(|pool| &pool.servers).any(|server| server.id == number)
}
