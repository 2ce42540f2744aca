//! Clients that wait until no link owes them anything.

use metrics::PoolCounter;

use super::Clients;
use super::session::Client;
use crate::base::Base;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;

impl Clients {
    /// Pauses a client until nothing is owed to it on any link. Its next request takes links of
    /// another class, and must not overtake those before it.
    #[cold]
    pub(crate) fn await_owed(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.waits.owed = true;
        client.pause();
        base.pools[client.pool as usize].counters.add(PoolCounter::Paused, 1);
    }

    /// Lets a client go on that is owed nothing any more.
    pub(crate) fn end_owed(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        if std::mem::take(&mut client.waits.owed) {
            self.update_client(base, id);
        }
    }

    /// Notes the class of the links that a client's next requests take.
    #[cold]
    pub(crate) fn set_class(&mut self, id: ConnId, class: LinkClass) {
        if let Some(client) = self.table.find_mut(id) {
            (client.class, client.is_blocked) = (class, false);
            client.has_own |= class == LinkClass::Private;
        }
    }

    /// Notes that a client's next request waits at its server.
    #[cold]
    pub(crate) fn set_blocked(&mut self, id: ConnId) {
        if let Some(client) = self.table.find_mut(id) {
            client.is_blocked = true;
        }
    }

    /// Closes a client that is to end and waits for elements. They may never come, and a server
    /// would not wait for them either.
    #[cold]
    pub(super) fn end_wait(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find(id) else { return };
        let why = self.departed(base, client);
        self.close_client(base, id, why);
    }

    /// Whether a client has had a request that waits at its server, since it was owed nothing.
    pub(crate) fn is_blocked(&self, id: ConnId) -> bool {
        self.table.find(id).is_some_and(|client| client.is_blocked)
    }
}

impl Client {
    /// Whether it waits at a server for elements, or may do so.
    pub(super) fn awaits_elements(&self) -> bool {
        self.is_blocked && self.outstanding() > 0
    }
}
