//! What another plan means for links: servers come and go, and each gets as many links as the plan
//! says.

use super::LinkEvent;
use super::Servers;
use super::link::Link;
use super::state::{Gauges, Proof, ServerState};
use super::trial::Blocks;
use crate::Action;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;
use crate::base::plan::{AdminState, PoolPlan};
use crate::base::pool::Stage;
use crate::base::{Base, ServerAt};

impl Servers {
    /// Makes the state of a new pool, in the place that it has in `base`.
    pub(crate) fn add_pool(&mut self, base: &mut Base, pool: usize) {
        let servers = base.pools[pool].servers.iter();
        let states = servers.map(|one| ServerState::new(one.plan.id, &base.metrics)).collect();
        match self.states.get_mut(pool) {
            Some(place) => *place = states,
            None => self.states.push(states),
        }
        for server in 0..base.pools[pool].servers.len() as u32 {
            let at = ServerAt { pool: pool as u32, server };
            self.note_address(base, at);
            if base.pools[pool].plan.preconnect {
                self.preconnect(base, at);
            }
        }
    }

    /// Makes the state of a server that is new in its pool.
    pub(crate) fn add_server(&mut self, base: &mut Base, at: ServerAt) {
        let state = ServerState::new(base.server(at).plan.id, &base.metrics);
        let states = &mut self.states[at.pool as usize];
        match states.get_mut(at.server as usize) {
            Some(place) => *place = state,
            None => states.push(state),
        }
        self.note_address(base, at);
    }

    /// A server that is nowhere is down before anybody asks for it.
    fn note_address(&mut self, base: &mut Base, at: ServerAt) {
        if !base.server(at).plan.has_address {
            self.server_failed(base, at, Fault::Unresolved);
        }
    }

    /// Lets a server prove itself anew under another plan.
    pub(crate) fn believe(&mut self, base: &mut Base, at: ServerAt) {
        let state = self.state(at);
        // The login may be another one.
        if !matches!(state.blocks, Blocks::Tried(_) | Blocks::TriedShared(_)) {
            state.blocks = Blocks::Unknown;
        }
        if state.proof == Proof::Disproved {
            // Whoever waited for unknown capabilities would wait for a handshake, and a link that
            // is up makes none.
            state.proof = Proof::Forgiven;
            self.forget_last(base, at);
        }
    }

    /// Forgets what links have shown of a server that has none any more. A forgiven one shows its
    /// capabilities again.
    pub(super) fn forget_last(&mut self, base: &mut Base, at: ServerAt) {
        let state = self.state(at);
        if state.alive > 0 {
            return;
        }
        if state.proof == Proof::Forgiven {
            state.proof = Proof::Open(0);
            base.server_mut(at).capabilities = None;
        }
        // Nobody would learn that it is busy no more.
        self.note_busy_line(base, at, None);
    }

    /// Takes a server back that had left the plan, with the links that are left.
    pub(crate) fn take_back(&mut self, base: &mut Base, at: ServerAt) {
        self.begin_anew(base, at);
        self.keep_links(at);
    }

    fn keep_links(&mut self, at: ServerAt) {
        for id in self.links_in_use(at) {
            if let Some(link) = self.links.find_mut(id) {
                link.retiring = false;
            }
        }
    }

    /// Lists the links of a server that its clients use, their own among them.
    fn links_in_use(&self, at: ServerAt) -> Vec<ConnId> {
        let state = &self.states[at.pool as usize][at.server as usize];
        let is_private = |link: &Link| link.at == at && link.class == LinkClass::Private;
        let private = self.links.iter().filter(|(_, link)| is_private(link)).map(|(id, _)| id);
        state.links.iter().flatten().flatten().copied().chain(private).collect()
    }

    /// Resets what is known of a server whose pool is back in the plan.
    pub(crate) fn begin_anew(&mut self, base: &mut Base, at: ServerAt) {
        self.state(at).begin_anew(base.server_mut(at));
    }

    /// Follows the state that a server has by hand; it had another. What is queued for it or in
    /// flight is answered, and then a link of a server in maintenance is closed.
    pub(crate) fn follow_admin(&mut self, base: &mut Base, at: ServerAt, was: AdminState) {
        let is = base.server(at).plan.admin;
        if is == AdminState::Maint {
            self.retire_server(base, at);
        } else if was == AdminState::Maint {
            self.keep_links(at);
        } else {
            return;
        }
        self.state(at).forget_health(base.server_mut(at));
        self.tend_ejected(base, at);
    }

    /// Retires the links of a server that has left the plan, or its service.
    pub(crate) fn retire_server(&mut self, base: &mut Base, at: ServerAt) {
        let state = self.state(at);
        state.probe_at = None;
        let (probe, judge) = (state.probe, state.judge.take());
        // One that has taken a place retires as the others do.
        let judge = judge.filter(|id| !state.has_place(*id));
        if let Blocks::Tried(trial) = state.blocks {
            self.retire_link(base, trial);
        }
        for id in probe.into_iter().chain(judge) {
            self.close_quietly(base, id);
        }
        self.end_topics(base, at);
        for id in self.links_in_use(at) {
            match self.links.find(id).is_some_and(Link::waits) {
                // It may never end by itself.
                true => self.close_link(base, id, Fault::LinkLost),
                false => self.retire_link(base, id),
            }
        }
    }

    /// Whether a server that has left the plan has no link left. Its gauges are cleared then.
    pub(crate) fn vacate(&mut self, at: ServerAt) -> bool {
        let state = self.state(at);
        if state.alive > 0 {
            return false;
        }
        state.gauges = Gauges::default();
        state.publish();
        state.counters.set_busy(None);
        true
    }

    /// Retires the links of connection keys that no client uses.
    pub(crate) fn retire_unused(&mut self, base: &mut Base, pool: usize) {
        for conn_key in base.pools[pool].conn_keys.unused() {
            let links =
                self.states[pool].iter().filter_map(|state| state.links.get(usize::from(conn_key)));
            let links: Vec<ConnId> = links.flatten().flatten().copied().collect();
            links.into_iter().for_each(|id| self.retire_link(base, id));
        }
    }

    fn retire_link(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.retiring = true;
        #[cfg(seeded_bugs)]
        if bug!(DropQueue) {
            return self.close_link(base, id, crate::base::fault::Fault::LinkLost);
        }
        self.end_link_retirement(base, id);
    }

    /// Closes a retiring link once nothing waits on it. That counts as no failure.
    pub(super) fn end_link_retirement(&mut self, base: &mut Base, id: ConnId) {
        let over = |link: &Link| link.retiring && link.is_idle() && !bug!(KeepRetired);
        if self.links.find(id).is_some_and(over) {
            self.close_quietly(base, id);
        }
    }

    /// Closes an idle link.
    pub(super) fn close_quietly(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.take_link(base, id, None) else { return };
        assert!(!link.owes, "a link that carries nothing is owed nothing");
        base.actions.push_back(Action::Close(id));
        let state = self.state(link.at);
        state.forget(id, &link);
        state.blocks = state.blocks.after_loss(id, false);
        self.forget_last(base, link.at);
        self.events.push_back(LinkEvent::Known(link.at, base.hold_after(link.at)));
    }

    /// Gives each server of a pool as many links as the plan says; returns whether that changes
    /// anything.
    pub(crate) fn change_links(&mut self, base: &mut Base, pool: usize, old: &PoolPlan) -> bool {
        let plan = &base.pools[pool].plan;
        let (count, classes) = (LinkClass::SPECIAL + plan.server_connections, plan.class_links);
        let mut extra = Vec::new();
        let mut changed = classes != old.class_links || plan.private != old.private;
        let servers = base.pools[pool].servers.iter().zip(&mut self.states[pool]);
        for (_, state) in servers.filter(|(server, _)| server.stage != Stage::Vacant) {
            changed |= state.links.iter().any(|links| links.len() != count);
            if changed {
                // A link that stands in keeps its own place, if that stays.
                state.clear_stand_ins();
            }
            for links in &mut state.links {
                if links.len() > count {
                    extra.extend(links.split_off(count).into_iter().flatten());
                }
                links.resize(count, None);
                let special = &mut links[classes..LinkClass::SPECIAL];
                extra.extend(special.iter_mut().filter_map(Option::take));
            }
        }
        extra.into_iter().for_each(|id| self.retire_link(base, id));
        changed
    }

    /// Sets timers for deadlines that have come nearer with another plan.
    pub(crate) fn shorten_deadlines(&mut self, base: &mut Base, pool: usize, old: &PoolPlan) {
        let plan = &base.pools[pool].plan;
        let retry_sooner = plan.server_retry_timeout < old.server_retry_timeout;
        if plan.timeouts != old.timeouts && !bug!(ForgetRearm) {
            let links = self.links.iter().filter(|(_, link)| link.at.pool as usize == pool);
            let links: Vec<ConnId> = links.map(|(id, _)| id).collect();
            links.into_iter().for_each(|id| self.arm(base, id));
        }
        for server in 0..base.pools[pool].servers.len() {
            let at = ServerAt { pool: pool as u32, server: server as u32 };
            self.look_sooner(base, at);
            let ejected = base.server(at).ejected;
            if retry_sooner && ejected && self.state(at).probe_at.take().is_some() {
                self.await_probe(base, at);
            }
        }
    }

    /// `CloseUnchanged`: closes a link of a server that is in both plans.
    #[cfg(seeded_bugs)]
    pub(crate) fn disturb(&mut self, base: &mut Base, pool: usize) {
        let links = self.links.iter().filter(|(_, link)| link.at.pool as usize == pool);
        let idle = links.filter(|(_, link)| link.is_idle()).map(|(id, _)| id).next();
        if let Some(id) = idle.filter(|_| bug!(CloseUnchanged)) {
            self.close_quietly(base, id);
        }
    }
}
