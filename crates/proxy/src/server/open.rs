//! The link that a client uses for a server, opened if there is none.

use metrics::WorkerCounter;

use super::Servers;
use super::around::SPARE;
use super::link::{Link, State};
use super::rest::Place;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Incoming, LinkClass, Requester};
use crate::base::plan::{AdminState, PoolPlan};
use crate::base::pool::{Health, Server};
use crate::base::{Base, ServerAt};
use crate::{Action, Time, route};

impl Servers {
    /// Returns the link that a client uses for a server. Makes the link if there is none.
    #[inline(always)]
    pub(super) fn link_at(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        server: usize,
    ) -> Result<ConnId, Fault> {
        let pool = &base.pools[asks.pool()];
        let one = &pool.servers[server];
        if is_out(one) {
            return Err(fault_of(one));
        }
        if matches!(asks.class, LinkClass::Private | LinkClass::Spare) {
            let at = ServerAt { pool: asks.pool, server: server as u32 };
            return match asks.class {
                LinkClass::Private => self.private_link_at(base, asks, at),
                _ => self.spare_link_at(base, asks, at),
            };
        }
        let nth = place_of(asks, &pool.plan);
        let state = &self.states[asks.pool()][server];
        if state.rests.bar_clients(base.now) {
            self.check_barred(base, asks, (server, nth))?;
        }
        let links = state.links.get(usize::from(asks.conn_key));
        match links.and_then(|links| links[nth].or_else(|| stand_in(one, links, nth))) {
            Some(id) => Ok(id),
            None if state.unable_until > base.now => Err(Fault::Unable),
            None if state.refuses(pool.conn_keys.of(asks.conn_key), base.now) => {
                Err(Fault::SetupRefused)
            }
            None => {
                let conn_key = pool.conn_keys.of(asks.conn_key);
                let at = ServerAt { pool: asks.pool, server: server as u32 };
                if let Some(why) = state.rests.why(Place::of_all(conn_key, nth), base.now) {
                    let stand_in = self.stand_in_at(base, at, asks.conn_key, (nth, why));
                    return stand_in.ok_or(why.of_further());
                }
                Ok(self.connect(base, at, asks.conn_key, nth))
            }
        }
    }

    /// Returns why this client gets no link at a place, if it does not though others may.
    #[cold]
    #[inline(never)]
    fn check_barred(
        &self,
        base: &Base,
        asks: &Requester,
        (server, nth): (usize, usize),
    ) -> Result<(), Fault> {
        let conn_key = base.pools[asks.pool()].conn_keys.of(asks.conn_key);
        let place = Place { conn_key, nth, owner: asks.id };
        let why = self.states[asks.pool()][server].rests.why_barred(place, base.now);
        why.map_or(Ok(()), |why| Err(why.of_further()))
    }

    /// Returns the link of a client that goes around this server's shared link, or another's.
    #[cold]
    #[inline(never)]
    fn spare_link_at(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        at: ServerAt,
    ) -> Result<ConnId, Fault> {
        let shared = Requester { class: LinkClass::Shared, ..*asks };
        let spare = self.special_of(at, asks.conn_key, SPARE);
        if let Some(id) = spare.filter(|id| self.takes_requests(*id)) {
            return Ok(id);
        }
        if spare.is_some_and(|id| self.says_busy(id)) {
            // A request that the client has on the shared link may still be done.
            let waits = |link: &Link| link.askers().any(|one| one == asks.id);
            let is_first = !self.find_link(base, &shared, at.server as usize).is_some_and(waits);
            if is_first {
                return Err(Fault::Busy);
            }
        }
        self.link_at(base, &shared, at.server as usize)
    }

    /// Returns the link that a client uses for a server, if there is one.
    pub(super) fn find_link(&self, base: &Base, asks: &Requester, server: usize) -> Option<&Link> {
        let links = self.states[asks.pool()][server].links.get(usize::from(asks.conn_key))?;
        let pool = &base.pools[asks.pool()];
        let nth = place_of(asks, &pool.plan);
        let is_there = || links[nth].is_some_and(|id| self.takes_requests(id));
        if asks.class == LinkClass::Spare && !is_there() {
            let shared = Requester { class: LinkClass::Shared, ..*asks };
            return self.find_link(base, &shared, server);
        }
        self.links.find(links[nth].or_else(|| stand_in(&pool.servers[server], links, nth))?)
    }

    /// Returns a link to a server that is there or on its way, so that its handshake tells the
    /// server's capabilities.
    pub(crate) fn reach(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        server: usize,
    ) -> Result<ConnId, Fault> {
        self.link_at(base, asks, server)
    }

    /// Whether the links that the keys of a change may take are up, each with room for all messages
    /// that it may get, so that no queue is found full when others have taken theirs. Returns a
    /// server that is to be waited for, if there is one.
    pub(crate) fn are_ready_for_keys(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
    ) -> Result<Option<usize>, (Option<u32>, Fault)> {
        let Incoming { asks, head, .. } = *incoming;
        let messages = route::messages_max(base, head);
        let mut waits = None;
        for at in 0..base.keys.len() {
            let key = base.keys[at];
            let server = route::server_of(base, incoming, key);
            let server = server.ok_or((None, Fault::NoServer))?;
            if !self.is_ready(base, asks, server, messages)? {
                waits = waits.or(Some(server));
            }
        }
        Ok(waits)
    }

    /// As `are_ready_for_keys`, for a change that goes to every server.
    pub(crate) fn are_ready(
        &mut self,
        base: &mut Base,
        asks: &Requester,
    ) -> Result<Option<usize>, (Option<u32>, Fault)> {
        let mut waits = None;
        for server in 0..base.pools[asks.pool()].servers.len() {
            let is_asked = base.pools[asks.pool()].servers[server].is_one_of_all();
            if is_asked && !self.is_ready(base, asks, server, 1)? {
                waits = waits.or(Some(server));
            }
        }
        Ok(waits)
    }

    /// Whether a client's link to a server is up, so that a part of a change can be sent there now.
    /// If one of the servers cannot be asked, none is, since nothing would undo the change on the
    /// others. A link that is connecting may still fail, so it is waited for.
    fn is_ready(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        server: usize,
        messages: usize,
    ) -> Result<bool, (Option<u32>, Fault)> {
        if bug!(SendToSome) {
            return Ok(true);
        }
        let failed = |fault| (Some(server as u32), fault);
        let id = self.link_at(base, asks, server).map_err(failed)?;
        let Some(link) = self.links.find(id) else { return Err(failed(Fault::Down)) };
        let (len, bytes) = link.queue.of_client(asks.id);
        let fits = len + messages <= base.limits.link_queue && bytes < base.limits.link_outbox;
        if !fits && !bug!(NoQueueBound) {
            return Err(failed(Fault::QueueFull));
        }
        if self.says_busy(id) {
            // Each request that waits for it is refused in these words.
            return Err(failed(Fault::Busy));
        }
        let is_up = link.is_up() && !link.must_prove;
        if is_up && !link.is_waiting() && self.is_suspect(base, link) {
            // The link has to repeat the handshake before anything is sent on it.
            self.repeat_handshake(base, id);
            self.mark_dirty(id);
            return Ok(false);
        }
        Ok(is_up)
    }

    /// Opens the first links to a server, where the operator wants them before the first request.
    pub(crate) fn preconnect(&mut self, base: &mut Base, at: ServerAt) {
        let server = base.server(at);
        if server.plan.admin != AdminState::Ready || server.health != Health::Ready {
            return;
        }
        let conn_key = base.pool(at).conn_keys.home;
        let count = base.pool(at).plan.server_connections;
        for nth in LinkClass::SPECIAL..LinkClass::SPECIAL + count {
            let links = self.state(at).links.get(usize::from(conn_key));
            if links.is_none_or(|links| links[nth].is_none()) {
                self.connect(base, at, conn_key, nth);
            }
        }
    }

    /// Opens the link with this number, of a connection key, to a server.
    pub(super) fn connect(
        &mut self,
        base: &mut Base,
        at: ServerAt,
        conn_key: u16,
        nth: usize,
    ) -> ConnId {
        let class = LinkClass::OF_PLACES.get(nth);
        let id = self.begin_connect(base, at, conn_key, class.copied().unwrap_or_default());
        let count = LinkClass::SPECIAL + base.pool(at).plan.server_connections;
        let place = &mut self.state(at).places(conn_key, count)[nth];
        assert!(place.is_none(), "a place holds one link");
        *place = Some(id);
        id
    }

    /// Orders the driver to open a link to a server.
    pub(super) fn begin_connect(
        &mut self,
        base: &mut Base,
        at: ServerAt,
        conn_key: u16,
        class: LinkClass,
    ) -> ConnId {
        let state = self.state(at);
        state.alive += 1;
        let server = (at, state.counters);
        let id = self.links.insert(Link::new(server, (conn_key, class), &base.limits, base.now));
        Servers::note_spare(base, id, class);
        base.pools[at.pool as usize].conn_keys.add_link(conn_key);
        base.worker.add(WorkerCounter::Connects, 1);
        base.actions.push_back(Action::Connect { link: id, server: base.server(at).plan.id });
        self.arm(base, id);
        id
    }

    /// Notes when a link's attempt to connect begins.
    pub(crate) fn connecting(&mut self, base: &mut Base, id: ConnId, begins: Time) {
        if let Some(link) = self.links.find_mut(id)
            && matches!(link.state, State::Connecting)
        {
            link.since = begins;
            self.arm(base, id);
        }
    }
}

/// Whether a server gets no request: it is down, or the operator wants it so.
#[inline(always)]
pub(super) fn is_out(server: &Server) -> bool {
    let is_maint = server.plan.admin == AdminState::Maint && !bug!(ServeMaint);
    server.health != Health::Ready || is_maint
}

/// Returns why a server gets no request.
#[cold]
pub(super) fn fault_of(server: &Server) -> Fault {
    match server.plan.admin {
        AdminState::Maint => Fault::Maint,
        AdminState::Ready | AdminState::Drain => Fault::Down,
    }
}

/// Returns the link that is used where a client's own is not there, if the server drains: no
/// further link to it is opened while one is left. No client has anything outstanding on a link
/// that is not there, so none of its requests changes places. Slow and large requests get links of
/// their own all the same, since on a shared one they would hold up all other clients.
pub(super) fn stand_in(server: &Server, links: &[Option<ConnId>], nth: usize) -> Option<ConnId> {
    match server.plan.admin {
        AdminState::Drain if nth >= LinkClass::SPECIAL => {
            links[LinkClass::SPECIAL..].iter().copied().flatten().next()
        }
        _ => None,
    }
}

/// Returns the place of the link that a client uses, among those of its connection key.
#[inline(always)]
pub(super) fn place_of(asks: &Requester, plan: &PoolPlan) -> usize {
    match asks.class as usize {
        class if class < plan.class_links => class,
        _ if plan.server_connections == 1 => LinkClass::SPECIAL,
        _ => LinkClass::SPECIAL + asks.id.index() % plan.server_connections,
    }
}
