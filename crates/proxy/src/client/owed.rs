//! Clients that wait until no link owes them anything.

use metrics::PoolCounter;

use super::Clients;
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
            client.class = class;
        }
    }
}
