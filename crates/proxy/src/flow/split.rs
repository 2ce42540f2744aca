//! Requests whose keys may belong to several servers. Each server gets its own keys, and the
//! replies are gathered into one answer. A request whose keys belong to one server goes there
//! unchanged.

use proto::{Adapted, Ask, Capabilities, Class, Reach, Request, Span};

use super::ask::SendOptions;
use super::receive::Data;
use super::route::Route;
use crate::buffer::Outbox;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::State;
use crate::plan::MultiKey;
use crate::pool::Stage;
use crate::{Proxy, Time, limits};

/// Bytes that a key, with its value if any, may take in a message beyond those in a line.
const KEY_FRAME_LEN: usize = 8;

impl Proxy {
    /// Routes to one server if one has all keys, and otherwise to each server with its keys.
    pub(super) fn route_of_split(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        now: Time,
    ) -> Route {
        let Class::Split { writes, .. } = request.class else {
            unreachable!("judged by its class")
        };
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let (pool, protocol) = (client.pool as usize, client.protocol);
        match self.common_server(id, request, head) {
            Ok(None) => Route::Fault(None, Fault::NoServer),
            Ok(server) => match protocol.adapt(request, head, Some(Capabilities::default())) {
                Adapted::Ask(ask) => Route::Go { ask, server },
                Adapted::Refused(refusal) => Route::Refused(refusal),
                Adapted::Unknown => unreachable!("the capabilities were given"),
            },
            Err(apart) if self.pipelines.pools[pool].plan.multi_key == MultiKey::Refuse => {
                Route::Apart(apart)
            }
            Err(_) if writes => self.route_of_parts(id, request, head, now),
            Err(_) => Route::Spread,
        }
    }

    /// Sends a split request.
    pub(super) fn ask_split(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        route: Route,
        now: Time,
    ) {
        let Class::Split { ask, element_per_key, writes, idempotent } = request.class else {
            unreachable!("judged by its class")
        };
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        if client.drops(request.quiet) && matches!(route, Route::Go { .. } | Route::Refused(_)) {
            return self.drop_unasked(id, request, head);
        }
        let request_id = self.pipelines.enqueue(id, request, head);
        let pending = &mut self.pipelines.requests[request_id];
        pending.writes = writes;
        if let Route::Spread = route {
            (pending.info.gathers, pending.info.element_per_key) = (true, element_per_key);
            let options =
                SendOptions { ask, merge: false, idempotent, single_reply: true, has_room: writes };
            return self.ask_keys(id, (request, head), request_id, options, now);
        }
        pending.left = 1;
        pending.info.elements = element_per_key.then_some(self.keys.len() as u32);
        self.send_along(request_id, request, head, Data::Assembled(Outbox::default()), route, now);
    }

    /// Returns the route of a change whose keys belong to several servers. Each link must have room
    /// for all messages that it may get, so that no queue is found full when others have taken
    /// theirs.
    fn route_of_parts(&mut self, id: ConnId, request: &Request, head: &[u8], now: Time) -> Route {
        // A message ends at this many keys, or when it and the next together reach this many bytes.
        let bytes = head.len() + self.keys.len() * KEY_FRAME_LEN;
        let by_bytes = bytes / (limits::BATCH_BYTES_MAX / 2 - limits::BATCH_KEYS_MAX);
        let messages = 1 + self.keys.len() / limits::BATCH_KEYS_MAX + by_bytes;
        let mut waits = None;
        for at in 0..self.keys.len() {
            let key = self.keys[at];
            let Some(server) = self.server_of(id, request, head, key) else {
                return Route::Fault(None, Fault::NoServer);
            };
            match self.reaches(id, server, messages, now) {
                Ok(true) => {}
                Ok(false) => waits = waits.or(Some(server)),
                Err(fault) => return Route::Fault(Some(server as u32), fault),
            }
        }
        self.spread_or_wait(id, request, waits)
    }

    /// Returns the route of a change that goes to every server.
    pub(super) fn route_to_all(
        &mut self,
        id: ConnId,
        request: &Request,
        now: Time,
    ) -> Option<Route> {
        let Class::Broadcast { writes: true, reach: Reach::All | Reach::Survey, .. } =
            request.class
        else {
            return None;
        };
        let pool = self.pipelines.clients.find(id).expect("it has just asked").pool as usize;
        if self.why_not_of_all(pool, &request.class).is_some() {
            return None;
        }
        let mut waits = None;
        for server in 0..self.pipelines.pools[pool].servers.len() {
            if self.pipelines.pools[pool].servers[server].stage != Stage::Planned {
                continue;
            }
            match self.reaches(id, server, 1, now) {
                Ok(true) => {}
                Ok(false) => waits = waits.or(Some(server)),
                Err(fault) => return Some(Route::Fault(Some(server as u32), fault)),
            }
        }
        Some(self.spread_or_wait(id, request, waits))
    }

    /// Whether a client's link to a server is up, so that a part of a change can be sent there now.
    /// If one of the servers cannot be asked, none is, since nothing would undo the change on the
    /// others. A link that is connecting may still fail, so it is waited for.
    fn reaches(
        &mut self,
        id: ConnId,
        server: usize,
        messages: usize,
        now: Time,
    ) -> Result<bool, Fault> {
        if bug!(SendToSome) {
            return Ok(true);
        }
        let pool = self.pipelines.clients.find(id).expect("it has just asked").pool as usize;
        let id = self.link_for(pool, server, id, now)?;
        let link = self.links.find(id).expect("the router found it");
        if !link.has_room_for(messages, &self.pipelines.limits) {
            return Err(Fault::QueueFull);
        }
        let stands = link.state == State::Up;
        if stands && !link.is_waiting() && self.is_suspect(link) {
            // The link has to repeat the handshake before anything is sent on it.
            self.repeat_handshake(id);
            self.mark_dirty(id);
            return Ok(false);
        }
        Ok(stands)
    }

    /// Returns the route of a change to several servers. A client that has left after waiting for
    /// long has given up, and its change waits no more.
    fn spread_or_wait(&self, id: ConnId, request: &Request, waits: Option<usize>) -> Route {
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        match waits {
            Some(server) if !client.drops(request.quiet) => Route::Wait(server),
            _ => Route::Spread,
        }
    }

    /// Sends a request that the operator allows to the server that all its keys belong to.
    pub(super) fn ask_of_keys(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        (ask, writes): (Ask, bool),
        now: Time,
    ) {
        let has_left =
            self.pipelines.clients.find(id).is_some_and(|client| client.drops(request.quiet));
        let route = match self.common_server(id, request, head) {
            Ok(None) => Route::Fault(None, Fault::NoServer),
            Ok(_) if has_left => return self.drop_unasked(id, request, head),
            Ok(server) => Route::Go { ask, server },
            Err(apart) => Route::Apart(apart),
        };
        let none = Data::Assembled(Outbox::default());
        self.ask_single(id, request, head, none, (route, writes), now);
    }

    /// Adds the bytes that belong to a key beyond the key itself, such as its value.
    pub(super) fn push_rest(
        &mut self,
        link: ConnId,
        (request, head): (&Request, &[u8]),
        keys: &[Span],
        nth: usize,
    ) {
        let link = self.links.find_mut(link).expect("the router found it");
        let batch = link.unmerged_batch.as_mut().expect("a key has just been added");
        let pending = batch.entries.last().expect("a key has just been added").pending;
        let protocol = self.pipelines.requests[pending].info.protocol;
        let nth = if bug!(ShiftRests) { (nth + 1) % keys.len() } else { nth };
        protocol.push_rest(request, head, keys, nth, &mut batch.text);
    }
}
