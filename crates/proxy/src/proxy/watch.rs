//! Keys that clients watch. The server notes on a connection that they change, so the client's
//! requests take a link of its own, from the first watch to the end of the next transaction.
//!
//! ```text
//!   WATCH k   GET k   MULTI   SET k 1   EXEC       one link, which nobody else uses
//!                                        │ the link is lost, or the key may be elsewhere by now
//!                                        └──▶ answered as if k had changed; nothing is sent
//! ```

use shard::Distribution;

use super::Proxy;
use crate::base::id::ConnId;
use crate::base::part::{Data, Incoming, Part, Requester};
use crate::client::{Frame, Watch};
use crate::route::{self, Route};

impl Proxy {
    /// Sends a request to watch keys, from which on its client has a link of its own.
    #[cold]
    pub(super) fn watch(&mut self, incoming: &Incoming<'_>, data: Data<'_>, route: Route) {
        let Incoming { asks, request, head } = *incoming;
        let id = self.clients.begin(&mut self.base, incoming, false);
        let Route::Go { ask, server: found } = route else {
            return self.send_along(id, incoming, data, route);
        };
        let server = found.or_else(|| route::server_for(&mut self.base, incoming));
        let Some(mut server) = server else {
            return self.send_along(id, incoming, data, route);
        };
        let Proxy { base, clients, .. } = self;
        let pool = &base.pools[asks.pool()];
        let mut scratch = Vec::new();
        let key = base.keys.first().copied();
        let key = key.map(|key| asks.protocol.key(request, head, key, &mut scratch));
        let key = Watch::beginning(key.unwrap_or_default());
        let epoch = (base.plans, pool.rings);
        let is_random = pool.plan.distribution == Distribution::Random;
        let before = clients.watched(asks.id).map(|one| (one.server, one.key.clone(), one.epoch));
        let is_lost = before.is_some() && self.standing_watch(asks).is_none();
        let Proxy { base, clients, servers, .. } = self;
        let (key, epoch) = match before {
            Some((at, first, _)) if at != server && !is_lost && !is_random => {
                return clients.refuse_apart(base, id, [first, key], [at, server]);
            }
            Some((at, first, epoch)) => {
                server = if is_random { at } else { server };
                (first, epoch)
            }
            None => (key, epoch),
        };
        match servers.begin_watch(base, asks, server) {
            Err(fault) => clients.fail(base, Part::whole(id), Some(server as u32), fault, false),
            Ok(link) => {
                clients.watch(asks.id, Watch { server, link, key, epoch, is_lost });
                self.send_along(id, incoming, data, Route::Go { ask, server: Some(server) });
            }
        }
    }

    /// Returns what a client watches, if its server still notes changes of all of it.
    pub(super) fn standing_watch(&self, asks: &Requester) -> Option<&Watch> {
        let one = self.clients.watched(asks.id)?;
        let epoch = (self.base.plans, self.base.pools[asks.pool()].rings);
        let is_kept = self.servers.keeps_watch(one.link, asks.conn_key);
        let stands = is_kept && !one.is_lost && one.epoch == epoch;
        (stands || bug!(ForgetLostWatch)).then_some(one)
    }

    /// Makes sure that nothing is watched on a client's links that it does not watch any more.
    /// Returns false if the client has to wait: what it has asked before may still need the watch.
    #[cold]
    pub(super) fn clear_watches(&mut self, frame: &Frame) -> bool {
        let id = frame.asks.id;
        if !self.servers.is_watched(id) {
            return true;
        }
        if self.servers.await_idle(id) {
            self.clients.await_owed(&mut self.base, id);
            self.clients.read_again(&mut self.base, frame);
            return false;
        }
        self.servers.end_watches(&mut self.base, id);
        self.handle_link_events();
        true
    }

    /// Forgets a client's transaction, and what it has watched for it.
    pub(super) fn end_bound(&mut self, id: ConnId) {
        self.clients.end_transaction(&mut self.base, id);
        self.clients.end_watch(id);
    }
}
