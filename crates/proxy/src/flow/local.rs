//! Local commands, which a protocol answers by itself: server information, the client's name, its
//! database. The protocol writes the answer and decides how the client goes on.

use proto::{
    Adapted, AfterLocal, Answer, Class, ConnKey, Endpoints, Facts, Local, ProxyFacts, Quiet,
    ReplyMode, Request, Session,
};

use super::route::Route;
use crate::id::ConnId;
use crate::pipelines::PoolFacts;
use crate::{Action, Proxy, Time, limits};

impl Proxy {
    /// Answers a local command.
    pub(super) fn local(&mut self, id: ConnId, request: &Request, head: &[u8]) {
        let client = self.pipelines.clients.find_mut(id).expect("it has just asked");
        if client.session.id == 0 {
            self.client_numbers += 1;
            client.session.id =
                self.client_numbers << WORKER_BITS | self.pipelines.metrics.slot() as u64;
        }
        let (protocol, pool) = (client.protocol, client.pool as usize);
        let before = client.session.clone();
        let mut session = std::mem::take(&mut client.session);
        let mut words = std::mem::take(&mut self.scratch);
        words.clear();
        if request.quiet == Quiet::Silent && session.reply_mode == ReplyMode::On {
            // The client turned off this one answer, unless the protocol now decides otherwise.
            session.reply_mode = ReplyMode::SkipThis;
        }
        let pool = &self.pipelines.pools[pool];
        let uptime = self.pipelines.now.since(self.pipelines.started);
        let pool_facts = PoolFacts { pool, metrics: self.pipelines.metrics, uptime };
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let facts = Facts {
            endpoints: client.endpoints.as_deref(),
            age_s: self.pipelines.now.since(client.since) / 1_000_000,
            ..pool_facts.facts()
        };
        let after = protocol.local(request, head, &mut session, &facts, &mut words);
        let is_silenced = request.quiet == Quiet::Silent && session.reply_mode != ReplyMode::On;
        if session.reply_mode == ReplyMode::SkipThis {
            session.reply_mode = ReplyMode::On;
        }
        if after == AfterLocal::Close
            && let Some(client) = self.pipelines.clients.find_mut(id)
        {
            client.quits = true;
        }
        let request = Request { quiet: Quiet::Loud, ..*request };
        let is_taken = self.take_session(id, session, before);
        if !is_taken {
            self.pipelines.answer(id, &request, head, &Answer::Failed(TOO_MANY_CONN_KEYS));
        } else if !is_silenced {
            self.pipelines.answer_encoded(id, &request, &words);
        }
        if words.capacity() <= limits::BUFFER_KEEP_MAX {
            self.scratch = words;
        }
        let Some(client) = self.pipelines.clients.find_mut(id) else { return };
        match after {
            AfterLocal::Continue => {}
            AfterLocal::Close => self.pipelines.leave(id),
            AfterLocal::LogOut => client.logged_in = false,
        }
    }

    /// Whether a local command has to wait for the capabilities of servers, or cannot be answered.
    pub(super) fn route_of_own(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        now: Time,
    ) -> Option<Route> {
        let Class::Local(Local::Own) = request.class else { return None };
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let (pool_index, protocol) = (client.pool as usize, client.protocol);
        if client.endpoints.is_none() && protocol.shows_endpoints(request) {
            return Some(Route::NeedsEndpoints);
        }
        let needs_capabilities = protocol.adapt(request, head, None) == Adapted::Unknown;
        if !needs_capabilities {
            return None;
        }
        let pool = &self.pipelines.pools[pool_index];
        // A server that cannot be asked now is not waited for, unless there is no other.
        let server = match pool.unknown() {
            Some(server) => server,
            None if pool.capabilities().is_some() => return None,
            None => pool.any_place(id.index())?,
        };
        match self.capabilities(pool_index, server, id, now) {
            Ok(_) => Some(Route::Wait(server)),
            Err(fault) => Some(Route::Fault(Some(server as u32), fault)),
        }
    }

    /// Applies a client's new session settings. If its connection key changes, its next request
    /// waits until all earlier ones have been answered. False: there are too many connection keys,
    /// and the session stays as it was `before`.
    fn take_session(&mut self, id: ConnId, session: Session, before: Session) -> bool {
        let client = self.pipelines.clients.find_mut(id).expect("it has just asked");
        let (pool, from) = (client.pool as usize, client.conn_key);
        let moved = session.conn_key != before.conn_key;
        let place = if moved { self.conn_key_for(pool, session.conn_key) } else { Some(from) };
        let client = self.pipelines.clients.find_mut(id).expect("it has just asked");
        let Some(place) = place else {
            client.session = before;
            return false;
        };
        client.session = session;
        if moved && !bug!(KeepConnKey) {
            client.conn_key = place;
            let conn_keys = &mut self.pipelines.pools[pool].conn_keys;
            conn_keys.leave(from);
            conn_keys.enter(place);
        }
        if moved && !bug!(OvertakeConnKey) {
            self.pipelines.pause_until_idle(id);
        }
        true
    }

    /// Returns the index of a connection key, which is added if it is new. If there is no room for
    /// it, links of connection keys that no client uses are closed.
    pub(crate) fn conn_key_for(&mut self, pool: usize, conn_key: ConnKey) -> Option<u16> {
        if let Some(place) = self.pipelines.pools[pool].conn_key(conn_key) {
            return Some(place);
        }
        for place in self.pipelines.pools[pool].conn_keys.left() {
            let servers = self.pipelines.pools[pool].servers.iter();
            let links = servers.flat_map(|one| &one.links[usize::from(place)]).flatten();
            let links: Vec<ConnId> = links.copied().collect();
            links.into_iter().for_each(|id| self.retire_link(id));
        }
        self.pipelines.pools[pool].conn_key(conn_key)
    }

    /// Pauses a client until the driver has given the addresses of its connection. Few clients ask
    /// for them, so they are looked up only then. Uses none of the request's bytes.
    pub(super) fn await_endpoints(&mut self, id: ConnId) -> usize {
        let client = self.pipelines.clients.find_mut(id).expect("it has just asked");
        (client.paused, client.awaits_endpoints) = (true, true);
        self.pipelines.actions.push_back(Action::LookUpEndpoints(id));
        0
    }

    pub(crate) fn set_endpoints(&mut self, id: ConnId, endpoints: Endpoints) {
        if let Some(client) = self.pipelines.clients.find_mut(id) {
            (client.endpoints, client.awaits_endpoints) = (Some(Box::new(endpoints)), false);
            self.pipelines.update_client(id);
        }
    }
}

const TOO_MANY_CONN_KEYS: &str = "too many databases are in use through this proxy";
/// The number of bits that identify a worker.
const WORKER_BITS: u32 = 10;
