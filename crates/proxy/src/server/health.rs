//! Health of servers. This worker's own observations decide whether a server is down for it.
//! Ejection from the ring is decided outside, for all workers at once: this file reports failures
//! and returns, and applies the decision.

use std::borrow::Cow;

use super::Servers;
use super::link::{Link, State};
use super::trial::Blocks;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;
use crate::base::plan::AdminState;
use crate::base::pool::{Health, Stage};
use crate::base::timers::Due;
use crate::base::{Base, ServerAt, limits};
use crate::{Action, Event, Report, Time};

impl Servers {
    /// Notes that a server failed: no request reaches it until a probe does.
    pub(super) fn server_failed(&mut self, base: &mut Base, at: ServerAt, fault: Fault) {
        let now = base.now;
        let server = base.server_mut(at);
        let id = server.plan.id;
        let words = fault.row().words;
        let own = server.said_of(fault).filter(|_| fault == Fault::LoginRefused);
        let why = own.map(|said| format!("{words}: {said}"));
        let state = self.state(at);
        let was_ready = server.health == Health::Ready && !server.ejected;
        state.probed = state.probed.filter(|_| !was_ready);
        state.note_out(server.health, now);
        let errno = state.connect_errno.take().filter(|_| fault == Fault::ConnectFailed);
        let counts = state.note_failure(server.health, base.now);
        state.rests.clear();
        (state.failed_attempt, state.asked_elsewhere) = (None, None);
        // It may come back as another one.
        if state.blocks == Blocks::Accepted {
            state.blocks = Blocks::Unknown;
        }
        let failures = state.failures;
        let server = base.server_mut(at);
        server.set_health(Health::Down);
        server.said_down = why.as_deref().map(Box::from);
        let why = why.map_or(Cow::Borrowed(words), Cow::Owned);
        if was_ready {
            base.log(Event::ServerDown { server: id, why: why.clone(), errno });
        }
        if counts {
            let report = Report::Failed { server: id, failures, why };
            base.actions.push_back(Action::Report(report));
        }
        self.await_probe(base, at);
        // Requests for links that are not made yet need not wait for their own deadlines.
        for id in self.links_of(at) {
            let is_probe = self.state(at).probe == Some(id);
            if self.links.find(id).is_some_and(|link| !link.was_up()) && !is_probe {
                self.close_link(base, id, fault);
            }
        }
    }

    /// Schedules a probe of a server, unless one is due already.
    pub(super) fn await_probe(&mut self, base: &mut Base, at: ServerAt) {
        if self.state(at).probe_at.is_some() {
            return;
        }
        let jitter = base.random.next();
        let state = self.state(at);
        let due = base.now.after(state.probe_pause(base.pool(at), at, jitter, base.now));
        // Without a socket the probe has to wait, as requests do.
        let due = due.max(state.unable_until);
        state.probe_at = Some(due);
        base.timers.set(due, Due::Probe(at));
    }

    /// Probes a server.
    pub(crate) fn probe(&mut self, base: &mut Base, at: ServerAt, set: Time) {
        // Another server may have the index by now, or a later timer may have replaced this one.
        let states = self.states.get_mut(at.pool as usize);
        let state = states.and_then(|states| states.get_mut(at.server as usize));
        let Some(state) = state.filter(|state| state.probe_at == Some(set)) else { return };
        state.probe_at = None;
        let server = base.server(at);
        let is_wanted = server.health == Health::Down || server.ejected;
        let is_probed = !server.is_in_service() || state.probe.is_some();
        if !is_wanted || is_probed || bug!(NeverProbe) {
            return;
        }
        let home = base.pool(at).conn_keys.home;
        let id = self.begin_connect(base, at, home, LinkClass::Shared);
        let state = self.state(at);
        (state.probe, state.probed) = (Some(id), Some(base.now));
        // A firewall may refuse whatever is new, and the links that are there work.
        match base.server(at).said_down {
            Some(_) => self.ask_idle_links(base, at),
            None => self.ask_everywhere(base, at),
        }
    }

    /// Notes that a probe was answered: the server is back, and the link that probed serves it.
    pub(super) fn probe_answered(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.proven = true;
        let at = link.at;
        self.state(at).probe = None;
        self.use_or_close(base, id);
        self.note_back(base, at);
    }

    /// Notes that a server has answered the handshake of a link, asked then. Where it is out it is
    /// back, if that was beside a probe, which may have failed meanwhile, or later; also in other
    /// pools, unless it refused the login there: another pool may have another.
    pub(super) fn note_beside_probe(
        &mut self,
        base: &mut Base,
        at: ServerAt,
        (asked, is_new): (Time, bool),
    ) {
        for one in base.same_servers(at) {
            let server = base.server(one);
            let counts = if one == at { !is_new } else { server.said_down.is_none() };
            let is_out = server.is_in_service() && server.health == Health::Down;
            let state = self.state(one);
            if !counts || !is_out || state.probed.is_none_or(|probed| asked < probed) {
                continue;
            }
            if let Some(probe) = state.probe.take() {
                self.close_quietly(base, probe);
            }
            self.note_back(base, one);
        }
    }

    /// Notes that a server is back that has answered a probe, if only to say that it is full.
    pub(super) fn note_back(&mut self, base: &mut Base, at: ServerAt) {
        // Its failures are forgotten when it answers a request: many a sick server answers a probe.
        self.state(at).back_at = base.now;
        let server = base.server_mut(at);
        let (server_id, ejected) = (server.plan.id, server.ejected);
        let was = server.health;
        server.set_health(Health::Ready);
        let report = Report::Answered { server: server_id, probe: true };
        base.actions.push_back(Action::Report(report));
        if ejected && !bug!(ProbeOnce) {
            // It is probed until it is back in the ring, in case a report was lost.
            self.await_probe(base, at);
        } else if was == Health::Down && !ejected {
            base.log(Event::ServerBack { server: server_id });
        }
    }

    /// Gives a link that has shown that its server is there a free place, or closes it.
    pub(super) fn use_or_close(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find(id) else { return };
        let (at, conn_key) = (link.at, link.conn_key);
        if link.retiring || self.state(at).has_place(id) {
            return;
        }
        let count = LinkClass::SPECIAL + base.pool(at).plan.server_connections;
        let is_draining = base.server(at).plan.admin == AdminState::Drain;
        let shared = &mut self.state(at).places(conn_key, count)[LinkClass::SPECIAL..];
        // Clients of a server that drains have requests on the links that stand in for theirs.
        let is_wanted = !is_draining || shared.iter().all(Option::is_none);
        match shared.iter_mut().find(|place| place.is_none() && is_wanted) {
            Some(place) => *place = Some(id),
            None => self.close_quietly(base, id),
        }
    }

    /// Notes that a server that had failed answered a request.
    #[cold]
    pub(super) fn request_answered(&mut self, base: &mut Base, at: ServerAt) {
        let state = self.state(at);
        state.failures = 0;
        if !bug!(KeepPause) {
            state.end_failing();
        }
        let is_down = base.server(at).health == Health::Down && !base.server(at).ejected;
        if let Some(due) = self.state(at).probe_at.take_if(|_| is_down) {
            // The pause was for a server that answers nothing.
            self.await_probe(base, at);
            let sooner = self.state(at).probe_at.map_or(due, |other| due.min(other));
            self.state(at).probe_at = Some(sooner);
        }
        let server = base.server(at);
        if server.is_in_service() {
            let report = Report::Answered { server: server.plan.id, probe: false };
            base.actions.push_back(Action::Report(report));
        }
    }

    /// Applies the decision that a server leaves the ring, or comes back.
    pub(crate) fn eject(&mut self, base: &mut Base, id: u32, ejected: bool) {
        // A new plan may have removed the server meanwhile.
        let Some(at) = base.find_server(id) else { return };
        let server = base.server_mut(at);
        if server.ejected == ejected || server.stage != Stage::Planned {
            return;
        }
        server.ejected = ejected;
        let said = server.said_down.take().filter(|_| ejected);
        server.ejected_for.take_if(|_| !ejected);
        // Some worker saw the server come back, and that is good enough for all.
        self.state(at).forgive(server);
        server.said_down = said;
        if !bug!(KeepRing) {
            base.pools[at.pool as usize].rebuild_ring(false);
        }
        self.tend_ejected(base, at);
    }

    /// Has a server that is out of the ring probed, until it is back.
    pub(super) fn tend_ejected(&mut self, base: &mut Base, at: ServerAt) {
        let server = base.server(at);
        if server.ejected && server.is_in_service() {
            self.state(at).note_out(server.health, base.now);
            base.server_mut(at).set_health(Health::Down);
            self.await_probe(base, at);
        }
    }

    /// Notes that we could not make a socket: nothing is known of the server, and the next attempt
    /// has to wait.
    pub(super) fn connect_unable(&mut self, base: &mut Base, at: ServerAt, probing: bool) {
        self.state(at).note_unable(base.now);
        if probing {
            self.await_probe(base, at);
        }
    }
}

impl Link {
    /// Whether it is up, or was before it had to repeat the handshake.
    pub(super) fn was_up(&self) -> bool {
        let has_come_up = self.proven || self.trip != u64::MAX;
        self.is_up() || has_come_up && matches!(self.state, State::Handshake(_))
    }

    /// Whether it ends with this fault because a reply fits no request. An answer to the first
    /// handshake is none: it says what the server is.
    pub(super) fn has_wrong_reply(&self, fault: Fault) -> bool {
        fault == Fault::Poisoned && self.was_up()
    }

    /// Whether requests were answered on it, or it has stood for long.
    pub(super) fn has_worked(&self, now: Time) -> bool {
        let has_stood = |since| now.since(since) >= limits::LINK_STOOD_US;
        self.proven || self.up_since().is_some_and(has_stood)
    }
}
