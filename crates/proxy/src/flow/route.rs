//! The route of a single request and its form, which may depend on its server's capabilities.
//!
//! ```text
//!   adapt(request) ── Ask ────────────────────────────────────────────────▶ go
//!        └─ Unknown ── route ── capabilities known ── adapt again ── Ask ─▶ go, to that server
//!                         │                                └─ Refused ────▶ answered, nothing sent
//!                         └─ unknown ── the client is paused until a handshake has shown them
//! ```

use metrics::PoolCounter;
use proto::{
    Adapted, Answer, Ask, Capabilities, Class, MarkUse, Place, Reach, Refusal, Request, Span,
};
use shard::Distribution;

use crate::fault::Fault;
use crate::id::ConnId;
use crate::request::RequestId;
use crate::{Action, Event, Proxy, Time};

/// The route of a single request.
#[derive(Clone, Copy)]
pub(super) enum Route {
    /// It is sent in this form; to this server, if the server is known already.
    Go { ask: Ask, server: Option<usize> },
    /// It fails before anything is sent, as it could not arrive.
    Fault(Option<u32>, Fault),
    /// It waits for this server: for its capabilities, which are unknown, or until it is known
    /// whether the server can be asked at all.
    Wait(usize),
    /// It goes to several servers.
    Spread,
    /// It waits for the driver to give the addresses of its client's connection.
    NeedsEndpoints,
    /// No form for the server means the same.
    Refused(Refusal),
    /// Its keys belong to different servers.
    Apart(Apart),
}

/// Two keys of a request, by their positions in it, and their servers.
#[derive(Clone, Copy)]
pub(super) struct Apart {
    keys: [Span; 2],
    servers: [usize; 2],
}

/// A request whose keys cannot be found in it, in a pool where they may be on any server.
const NOT_SOLE: &str = "its keys cannot be read from the request: only in a pool of one server";
const NOT_ONE: &str = "refused by the proxy: each server has its own; ask the server itself";
const NOT_ALLOWED: &str = "refused by the proxy: the pool's `allow:` does not name it";
const NO_PLACE: &str = "invalid cursor";
const NO_DATABASE: &str = "DB index is out of range";

impl Proxy {
    /// Returns the route of a request, if it depends on servers and is not a read of single keys.
    pub(super) fn route(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        now: Time,
    ) -> Option<Route> {
        let Class::Single { .. } = request.class else {
            return match request.class {
                Class::Split { .. } => Some(self.route_of_split(id, request, head, now)),
                Class::Broadcast { .. } => self.route_to_all(id, request, now),
                _ => self.route_of_own(id, request, head, now),
            };
        };
        if request.database > 0 && !self.has_database(id, request.database) {
            return Some(Route::Refused(Refusal::Bad(NO_DATABASE)));
        }
        if self.keys.len() > 1 || request.place != Place::Keys {
            return Some(self.route_of_many(id, request, head));
        }
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let (pool, protocol) = (client.pool as usize, client.protocol);
        Some(match protocol.adapt(request, head, None) {
            Adapted::Ask(ask) => Route::Go { ask, server: None },
            Adapted::Refused(refusal) => Route::Refused(refusal),
            Adapted::Unknown => {
                let Some(server) = self.server_for(id, request, head) else {
                    return Some(Route::Fault(None, Fault::NoServer));
                };
                match self.capabilities(pool, server, id, now) {
                    Err(fault) => Route::Fault(Some(server as u32), fault),
                    Ok(None) => Route::Wait(server),
                    Ok(capabilities) => match protocol.adapt(request, head, capabilities) {
                        Adapted::Ask(ask) => Route::Go { ask, server: Some(server) },
                        Adapted::Refused(refusal) => Route::Refused(refusal),
                        Adapted::Unknown => unreachable!("the capabilities were given"),
                    },
                }
            }
        })
    }

    /// Whether a client's pool has this database.
    fn has_database(&self, id: ConnId, database: u32) -> bool {
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        database < self.pipelines.pools[client.pool as usize].plan.databases
    }

    /// Returns the route of a request whose keys must be on one server, or which has none.
    fn route_of_many(&mut self, id: ConnId, request: &Request, head: &[u8]) -> Route {
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let (pool_index, protocol) = (client.pool as usize, client.protocol);
        let ask = match protocol.adapt(request, head, Some(Capabilities::default())) {
            Adapted::Ask(ask) => ask,
            Adapted::Refused(refusal) => return Route::Refused(refusal),
            Adapted::Unknown => unreachable!("the capabilities were given"),
        };
        let pool = &self.pipelines.pools[pool_index];
        let server = match request.place {
            Place::Keys => match self.common_server(id, request, head) {
                Ok(server) => server,
                Err(apart) => return Route::Apart(apart),
            },
            Place::Any => pool.any_place(id.index()),
            Place::Nth(at) if pool.place_from(at) != Some(at) => {
                return Route::Refused(Refusal::Bad(NO_PLACE));
            }
            Place::From(at) if pool.place_from(at).is_none() => {
                return Route::Refused(Refusal::Bad(NO_PLACE));
            }
            Place::Nth(at) | Place::From(at) => {
                pool.place_from(at + u32::from(bug!(ScanElsewhere))).map(|at| at as usize)
            }
            Place::Sole => match (pool.place_from(0), pool.planned()) {
                (Some(at), 1) => Some(at as usize),
                _ => return Route::Refused(Refusal::ByName(NOT_SOLE)),
            },
        };
        match server {
            Some(server) => Route::Go { ask, server: Some(server) },
            None => Route::Fault(None, Fault::NoServer),
        }
    }

    /// Returns why a request for every server is refused in this pool, if it is.
    pub(super) fn why_not_of_all(&self, pool_index: usize, class: &Class) -> Option<&'static str> {
        let Class::Broadcast { ask, gated, reach, .. } = *class else { return None };
        let pool = &self.pipelines.pools[pool_index];
        let plan = &pool.plan;
        let name = plan.protocol.commands()[usize::from(ask.command)].name;
        if gated && !plan.allow.iter().any(|allowed| allowed == name) {
            return Some(NOT_ALLOWED);
        }
        (reach == Reach::Sole && pool.planned() > 1).then_some(NOT_ONE)
    }

    /// Returns the one server that all keys of a request belong to; none if the ring is empty.
    pub(super) fn common_server(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
    ) -> Result<Option<usize>, Apart> {
        let first = self.server_of(id, request, head, self.keys[0]);
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let plan = &self.pipelines.pools[client.pool as usize].plan;
        // With the random distribution, all keys of a request go to the same random server.
        let goes_anywhere = plan.distribution == Distribution::Random;
        for at in 1..if goes_anywhere { 0 } else { self.keys.len() } {
            let key = self.keys[at];
            let server = self.server_of(id, request, head, key);
            if let (Some(one), Some(other)) = (first, server)
                && one != other
                && !bug!(SendApart)
            {
                let (keys, servers) = ([self.keys[0], key], [one, other]);
                return Err(Apart { keys, servers });
            }
        }
        Ok(first)
    }

    /// Returns the server that the only key of a request belongs to, if it has one.
    pub(super) fn server_for(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
    ) -> Option<usize> {
        let key = *self.keys.first()?;
        self.server_of(id, request, head, key)
    }

    /// Looks up an unknown command among those that the operator has named.
    pub(super) fn recognize(&mut self, id: ConnId, request: &mut Request, input: &[u8]) {
        let Some(client) = self.pipelines.clients.find(id) else { return };
        let extras = &self.pipelines.pools[client.pool as usize].plan.extras;
        if !extras.is_empty() && request.class == Class::Refuse(Refusal::Unknown) {
            client.protocol.recognize(request, input, &mut self.keys, extras);
        }
    }

    pub(super) fn server_of(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        key: Span,
    ) -> Option<usize> {
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let key = client.protocol.key(request, head, key, &mut self.scratch);
        let random = &mut self.random;
        self.pipelines.pools[client.pool as usize].route(key, || random.next())
    }

    /// Refuses a request whose keys belong to different servers; nothing was sent.
    pub(super) fn refuse_apart(
        &mut self,
        request_id: RequestId,
        request: &Request,
        head: &[u8],
        apart: Apart,
    ) {
        let pending = &mut self.pipelines.requests[request_id];
        let protocol = pending.info.protocol;
        let mut decoded = [Vec::new(), Vec::new()];
        let [one, other] = &mut decoded;
        let keys = [
            protocol.key(request, head, apart.keys[0], one),
            protocol.key(request, head, apart.keys[1], other),
        ];
        let pool = &self.pipelines.pools[pending.pool as usize];
        let servers = apart.servers.map(|at| pool.servers[at].plan.label.as_str());
        let apart = Answer::Apart { keys, servers, tag: pool.plan.hash_tag };
        pending.info.answer(&apart, &mut pending.error);
        pool.counters.add(PoolCounter::Refused, 1);
        self.pipelines.settle_error(request_id);
    }

    /// Returns the capabilities of a server. If they are unknown, a link to it is opened for the
    /// handshake.
    pub(super) fn capabilities(
        &mut self,
        pool: usize,
        server: usize,
        client: ConnId,
        now: Time,
    ) -> Result<Option<Capabilities>, Fault> {
        let capabilities = self.pipelines.pools[pool].servers[server].capabilities;
        if capabilities.is_none() {
            self.link_for(pool, server, client, now)?;
        }
        Ok(capabilities)
    }

    /// Pauses a client until the capabilities of a server are known, or a link to it is up. Its
    /// next request and all that follows wait. Uses none of the request's bytes.
    pub(super) fn await_capabilities(&mut self, id: ConnId, server: usize) -> usize {
        let client = self.pipelines.clients.find_mut(id).expect("the caller found it");
        (client.awaits, client.awaited) = (Some(server as u32), server as u32);
        // A client that has left began to wait before it left.
        if !client.has_left || client.awaits_since == Time(0) {
            client.awaits_since = self.pipelines.now;
        }
        // Its socket is still read: a client that leaves must be noticed before its request is
        // sent.
        client.paused = true;
        let pool = &mut self.pipelines.pools[client.pool as usize];
        pool.servers[server].awaited = true;
        pool.counters.add(PoolCounter::Paused, 1);
        0
    }

    /// Lets clients go on that waited for a link's handshake, or for its end.
    pub(super) fn end_awaiting(&mut self, pool: usize, server: usize) {
        if !std::mem::take(&mut self.pipelines.pools[pool].servers[server].awaited) {
            return;
        }
        let hold_after = self.pipelines.pools[pool].plan.hold_after;
        for id in self.pipelines.client_ids() {
            if let Some(client) = self.pipelines.clients.find_mut(id)
                && client.pool as usize == pool
                && client.awaits == Some(server as u32)
            {
                if bug!(AwaitForEver) {
                    continue;
                }
                client.awaits = None;
                let waited = self.pipelines.now.since(client.awaits_since);
                client.is_late |= hold_after.is_some_and(|patience| waited >= patience);
                self.pipelines.update_client(id);
            }
        }
    }

    /// Requests marks once they are in use in a pool, by any worker: a read that would show marks
    /// is sent in the form that does. A read that would not be merged anyway always takes that
    /// form.
    pub(super) fn apply_marks(&mut self, pool_index: usize, request: &mut Request) {
        let pool = &mut self.pipelines.pools[pool_index];
        match request.marks {
            MarkUse::None => {}
            MarkUse::Sets => {
                let id = pool.plan.id;
                if !pool.marked
                    && self.pipelines.metrics.total(id, PoolCounter::MarkingRequests) == 0
                {
                    self.pipelines.actions.push_back(Action::Log(Event::Marked { pool: id }));
                }
                pool.marked = true;
                pool.counters.add(PoolCounter::MarkingRequests, 1);
            }
            MarkUse::Shows => {
                if !pool.marked
                    && self.pipelines.metrics.total(pool.plan.id, PoolCounter::MarkingRequests) > 0
                {
                    pool.marked = true;
                }
                let as_it_is = pool.marked || !pool.plan.merge_gets;
                if as_it_is && !bug!(HideMarks) {
                    request.class = Class::Single { writes: false };
                }
            }
        }
    }
}
