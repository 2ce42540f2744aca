//! The link that a client uses for a server, opened if there is none.

use metrics::WorkerCounter;

use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Link, State};
use crate::pool::Health;
use crate::{Action, Proxy, Time};

impl Proxy {
    /// Returns the link that a client uses for a key.
    pub(super) fn link_for_key(
        &mut self,
        pool: usize,
        key: &[u8],
        client: ConnId,
        now: Time,
    ) -> Result<ConnId, (Option<u32>, Fault)> {
        let random = &mut self.random;
        let server = self.pipelines.pools[pool].route(key, || random.next());
        let server = server.ok_or((None, Fault::NoServer))?;
        self.link_for(pool, server, client, now).map_err(|fault| (Some(server as u32), fault))
    }

    /// Returns the link that a client uses for a server, if its queue has room. Makes the link if
    /// there is none.
    pub(super) fn link_for(
        &mut self,
        pool: usize,
        server: usize,
        client: ConnId,
        now: Time,
    ) -> Result<ConnId, Fault> {
        let id = self.link_at(pool, server, client, now)?;
        let link = self.links.find(id).expect("a server knows living links only");
        if link.has_room(&self.pipelines.limits) { Ok(id) } else { Err(Fault::QueueFull) }
    }

    /// As `link_for`, however full the queue is.
    #[inline(always)]
    pub(super) fn link_at(
        &mut self,
        pool_index: usize,
        server_index: usize,
        client: ConnId,
        now: Time,
    ) -> Result<ConnId, Fault> {
        let pool = &self.pipelines.pools[pool_index];
        let server = &pool.servers[server_index];
        if server.health != Health::Ready {
            return Err(Fault::Down);
        }
        let conn_key = match pool.conn_keys.len() {
            1 => 0,
            _ => {
                self.pipelines.clients.find(client).map_or(pool.conn_keys.home, |one| one.conn_key)
            }
        };
        let links = &server.links[usize::from(conn_key)];
        let place = if links.len() == 1 { 0 } else { client.index() % links.len() };
        match links[place] {
            None if server.unable_until > now => Err(Fault::Unable),
            None if server.refuses(conn_key, now) => Err(Fault::SetupRefused),
            None => Ok(self.connect(pool_index, server_index, (conn_key, place), now)),
            Some(id) => Ok(id),
        }
    }

    /// Opens the first links to a server, where the operator wants them before the first request.
    pub(crate) fn preconnect(&mut self, pool: usize, server: usize, now: Time) {
        let conn_key = self.pipelines.pools[pool].conn_keys.home;
        let places = self.pipelines.pools[pool].plan.server_connections;
        for place in 0..places {
            if self.pipelines.pools[pool].servers[server].links[usize::from(conn_key)][place]
                .is_none()
            {
                self.connect(pool, server, (conn_key, place), now);
            }
        }
    }

    /// Opens a link to a server, in one entry of a connection key.
    pub(super) fn connect(
        &mut self,
        pool: usize,
        server_index: usize,
        (conn_key, place): (u16, usize),
        now: Time,
    ) -> ConnId {
        let link = Link::new(pool as u32, (server_index as u32, conn_key), now);
        let id = self.links.insert(link);
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        let place = &mut server.links[usize::from(conn_key)][place];
        assert!(place.is_none(), "a place holds one link");
        *place = Some(id);
        server.alive += 1;
        let server_id = server.plan.id;
        self.begin_connect(id, server_id);
        id
    }

    pub(super) fn begin_connect(&mut self, link: ConnId, server: u32) {
        self.pipelines.worker.add(WorkerCounter::Connects, 1);
        self.pipelines.actions.push_back(Action::Connect { link, server });
        self.arm_link(link);
    }

    /// Notes when a link's attempt to connect begins.
    pub(crate) fn connecting(&mut self, id: ConnId, begins: Time) {
        if let Some(link) = self.links.find_mut(id)
            && link.state == State::Connecting
        {
            link.since = begins;
            self.arm_link(id);
        }
    }
}
