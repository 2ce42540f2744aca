//! Requests that have come in part, and of which nothing more comes; and transactions that are not
//! ended. What has come takes memory for as long as its client likes. While half of the memory is
//! in use, the largest of them are given up: otherwise others, who go on, are refused for it.

use metrics::PoolCounter;

use super::Clients;
use super::session::{Client, Intake};
use crate::Event;
use crate::base::connection::Departed;
use crate::base::id::ConnId;
use crate::base::{Base, limits};

impl Client {
    /// Returns how much has come of an unfinished request, or transaction, that is being read.
    fn come(&self) -> usize {
        if self.is_paused() || !self.state.is_read() {
            return 0;
        }
        let part = match &self.intake {
            Intake::Body(body) => body.head.len() + body.data.len(),
            Intake::Head => self.partial.len(),
            Intake::Swallow(_) | Intake::Skip(_) => 0,
        };
        part + self.transaction.as_ref().map_or(0, |queued| queued.counted)
    }

    /// Returns for how long it could have sent more, and has not.
    fn stalled_us(&self, base: &Base) -> u64 {
        base.idle_since(self.received.max(self.resumed))
    }
}

impl Clients {
    /// Closes the clients with the largest unfinished requests, of those from which nothing has
    /// come for long, until half of the memory is free.
    #[cold]
    pub(crate) fn close_stalled(&mut self, base: &mut Base) {
        if !base.memory.is_little() {
            return;
        }
        let is_stalled = |(id, client): (ConnId, &Client)| {
            let come = client.come();
            let is_it =
                come >= limits::STALLED_MIN && client.stalled_us(base) >= limits::STALLED_US;
            is_it.then_some((come, id))
        };
        let mut stalled: Vec<_> = self.table.iter().filter_map(is_stalled).collect();
        stalled.sort_unstable_by_key(|(come, _)| std::cmp::Reverse(*come));
        for (nth, (come, id)) in stalled.into_iter().take(limits::STALLED_CLOSED_MAX).enumerate() {
            let Some(client) = self.table.find(id).filter(|_| base.memory.is_little()) else {
                return;
            };
            let pool = &base.pools[client.pool as usize];
            pool.counters.add(PoolCounter::ClientsStalled, 1);
            // One line for all: they are counted.
            if nth == 0 {
                let (pool, silent_us) = (pool.plan.id, client.stalled_us(base));
                base.log(Event::ClientStalled { pool, client: id, come, silent_us });
            }
            self.cancel(id);
            self.close_client(base, id, Departed::Stalled);
        }
    }
}
