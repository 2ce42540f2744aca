//! Large requests that have come in part, and of which nothing more comes. What has come takes
//! memory for as long as its client likes. While half of the memory is in use, the largest of them
//! is given up: otherwise others, who go on, are refused for it.

use metrics::PoolCounter;

use super::Clients;
use super::session::{Client, Intake};
use crate::Event;
use crate::base::connection::Departed;
use crate::base::id::ConnId;
use crate::base::{Base, limits};

impl Client {
    /// Returns how much has come of an unfinished request that is being read.
    fn come(&self) -> usize {
        match &self.intake {
            _ if self.is_paused() || !self.state.is_read() => 0,
            Intake::Body(body) => body.head.len() + body.data.len(),
            Intake::Head => self.partial.len(),
            Intake::Swallow(_) | Intake::Skip(_) => 0,
        }
    }
}

impl Clients {
    /// Closes the client with the largest unfinished request, of those from which nothing has come
    /// for long.
    #[cold]
    pub(crate) fn close_stalled(&mut self, base: &mut Base) {
        if !base.memory.is_little() {
            return;
        }
        let is_stalled = |(id, client): (ConnId, &Client)| {
            let come = client.come();
            let silent = base.now.since(client.received);
            let is_it = come > limits::BUFFER_KEEP_MAX && silent >= limits::STALLED_US;
            is_it.then_some((come, id))
        };
        let largest = self.table.iter().filter_map(is_stalled).max_by_key(|(come, _)| *come);
        let Some((come, id)) = largest else { return };
        let Some(client) = self.table.find(id) else { return };
        let pool = &base.pools[client.pool as usize];
        pool.counters.add(PoolCounter::ClientsStalled, 1);
        let silent_us = base.now.since(client.received);
        base.log(Event::ClientStalled { pool: pool.plan.id, client: id, come, silent_us });
        self.cancel(id);
        self.close_client(base, id, Departed::Stalled);
    }
}
