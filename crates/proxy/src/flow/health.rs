//! Health of servers. This worker's own observations decide whether a server is down for it.
//! Ejection from the ring is decided outside, for all workers at once: this file reports failures
//! and returns, and applies the decision.

use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::Link;
use crate::pool::{Health, Stage};
use crate::timers::Due;
use crate::{Action, Event, Proxy, Report, Time};

impl Proxy {
    /// Notes that a server failed: no request reaches it until a probe does.
    pub(super) fn server_failed(
        &mut self,
        pool: usize,
        server_index: usize,
        fault: Fault,
        now: Time,
    ) {
        let why = fault.row().words;
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        let id = server.plan.id;
        let counts = server.note_failure(now);
        let was = std::mem::replace(&mut server.health, Health::Down);
        let failures = server.failures;
        if was == Health::Ready && !server.ejected {
            self.pipelines.actions.push_back(Action::Log(Event::ServerDown { server: id, why }));
        }
        if counts {
            let report = Report::Failed { server: id, failures, why };
            self.pipelines.actions.push_back(Action::Report(report));
        }
        self.await_probe(pool, server_index, now);
    }

    /// Schedules a probe of a server, unless one is due already.
    pub(super) fn await_probe(&mut self, pool: usize, server: usize, now: Time) {
        if self.pipelines.pools[pool].servers[server].probe_at.is_some() {
            return;
        }
        let jitter = self.random.next();
        let at = now.after(self.pipelines.pools[pool].probe_pause(server, jitter, now));
        // Without a socket the probe has to wait, as requests do.
        let at = at.max(self.pipelines.pools[pool].servers[server].unable_until);
        self.pipelines.pools[pool].servers[server].probe_at = Some(at);
        self.timers.set(at, Due::Probe { pool: pool as u32, server: server as u32 });
    }

    /// Probes a server.
    pub(super) fn probe(&mut self, pool: usize, server_index: usize, set: Time, now: Time) {
        // Another server may have the index by now, or a later timer may have replaced this one.
        let home = self.pipelines.pools.get(pool).map_or(0, |pool| pool.conn_keys.home);
        let server =
            self.pipelines.pools.get_mut(pool).and_then(|pool| pool.servers.get_mut(server_index));
        let Some(server) = server.filter(|server| server.probe_at == Some(set)) else { return };
        server.probe_at = None;
        let wanted = server.health == Health::Down || server.ejected;
        if !wanted || server.stage != Stage::Planned || server.probe.is_some() || bug!(NeverProbe) {
            return;
        }
        let link = Link::new(pool as u32, (server_index as u32, home), now);
        let id = self.links.insert(link);
        server.probe = Some(id);
        server.alive += 1;
        let server_id = server.plan.id;
        self.begin_connect(id, server_id);
    }

    /// Notes that a probe was answered: the server is back, and the link that probed serves it.
    pub(super) fn probe_answered(&mut self, id: ConnId, now: Time) {
        let link = self.links.find(id).expect("the caller found it");
        let (pool, server_index) = (link.pool as usize, link.server as usize);
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        let (server_id, ejected) = (server.plan.id, server.ejected);
        (server.probe, server.back_at) = (None, now);
        // Its failures are forgotten when it answers a request: many a sick server answers a probe.
        let was = std::mem::replace(&mut server.health, Health::Ready);
        let conn_key = usize::from(link.conn_key);
        match server.links[conn_key].iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(id),
            None => self.close_quietly(id),
        }
        let report = Report::Answered { server: server_id, probe: true };
        self.pipelines.actions.push_back(Action::Report(report));
        if ejected && !bug!(ProbeOnce) {
            // It is probed until it is back in the ring, in case a report was lost.
            self.await_probe(pool, server_index, now);
        } else if was == Health::Down && !ejected {
            self.pipelines.actions.push_back(Action::Log(Event::ServerBack { server: server_id }));
        }
    }

    /// Notes that a server that had failed answered a request.
    #[cold]
    pub(super) fn request_answered(&mut self, pool: usize, server_index: usize) {
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        server.failures = 0;
        if !bug!(KeepPause) {
            server.end_failing();
        }
        if server.stage == Stage::Planned {
            let report = Report::Answered { server: server.plan.id, probe: false };
            self.pipelines.actions.push_back(Action::Report(report));
        }
    }

    /// Applies the decision that a server leaves the ring, or comes back.
    pub(crate) fn eject(&mut self, id: u32, ejected: bool, now: Time) {
        let pools = self.pipelines.pools.iter().enumerate();
        let found = pools.filter(|(_, pool)| pool.stage != Stage::Vacant);
        let found = found.filter_map(|(at, pool)| Some((at, pool.place_of(id)?))).next();
        // A new plan may have removed the server meanwhile.
        let Some((pool, server_index)) = found else { return };
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        if server.ejected == ejected || server.stage != Stage::Planned {
            return;
        }
        server.ejected = ejected;
        // Some worker saw the server come back, and that is good enough for all.
        server.forgive();
        if !bug!(KeepRing) {
            self.pipelines.pools[pool].rebuild_ring(false);
        }
        if ejected {
            self.pipelines.pools[pool].servers[server_index].health = Health::Down;
            self.await_probe(pool, server_index, now);
        }
    }

    /// Notes that we could not make a socket: nothing is known of the server, and the next attempt
    /// has to wait.
    pub(super) fn connect_unable(&mut self, pool: usize, server: usize, probing: bool, now: Time) {
        self.pipelines.pools[pool].servers[server].note_unable(now);
        if probing {
            self.await_probe(pool, server, now);
        }
    }
}
