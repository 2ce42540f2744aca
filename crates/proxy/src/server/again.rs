//! Keys that are asked for again: those of a get whose link was lost, or which its server has
//! refused.

use metrics::ServerCounter;

use super::Servers;
use super::batch::{Batch, Entry};
use super::waiting::Waiting;
use crate::base::Base;
use crate::base::id::ConnId;
use crate::base::part::Requester;

impl Servers {
    /// Sends a key of a lost batch once more; false if its server cannot be asked now.
    pub(crate) fn ask_again(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        batch: &Batch,
        entry: Entry,
    ) -> bool {
        let random = &mut base.random;
        let server = base.pools[asks.pool()].route(batch.key(entry), || random.next());
        let Some(server) = server else { return false };
        let Ok(id) = self.link_at(base, asks, server) else { return false };
        let one = Waiting::batch(self.one_of(base, asks.pool(), batch, entry), base.now);
        if self.goes_straight(base, id, asks, entry.cost) {
            self.send_waiting(base, id, asks.id, one);
            self.arm(base, id);
            return true;
        }
        self.wait(base, id, asks, one, true).is_ok()
    }

    /// Sends a key of a batch alone, on the link on which its server refused the batch; false if
    /// there is no room.
    pub(crate) fn ask_alone(
        &mut self,
        base: &mut Base,
        id: ConnId,
        batch: &Batch,
        entry: Entry,
    ) -> bool {
        let Some(link) = self.links.find(id) else { return false };
        if !link.has_room(&base.limits) {
            return false;
        }
        let at = link.at;
        self.state(at).counters.add(ServerCounter::AskedAlone, 1);
        let one = self.one_of(base, at.pool as usize, batch, entry);
        self.send_waiting(base, id, entry.client, Waiting::batch(one, base.now));
        true
    }

    /// Makes a batch of one key of another.
    fn one_of(&mut self, base: &Base, pool: usize, batch: &Batch, entry: Entry) -> Box<Batch> {
        let upstream = base.pools[pool].upstream;
        let mut one = self.spare_batches.pop().unwrap_or_else(Batch::blank);
        one.open_like(batch, base.turn, base.now);
        one.push(upstream, batch.key(entry), (entry.part, entry.client), entry.cost);
        one
    }
}
