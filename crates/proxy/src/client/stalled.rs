//! Clients that hold memory and do nothing about it: nothing more comes of a large request, or of a
//! transaction; or answers wait of which nothing is taken. They hold it for as long as they like.
//! While half of the memory is in use, those that hold most are closed: otherwise others, who go
//! on, are refused for it.

use metrics::PoolCounter;

use super::Clients;
use super::ahead::MEMORY;
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

    /// Returns how much has come if nothing more comes.
    fn stalled(&self, base: &Base) -> usize {
        let come = self.come();
        let is_it = come >= limits::STALLED_MIN && self.stalled_us(base) >= limits::STALLED_US;
        if is_it { come } else { 0 }
    }

    /// Returns how much is kept for it, and of it, if it has taken nothing for `timeout_write`.
    fn unread(&self, base: &Base) -> usize {
        let write = base.pools[self.pool as usize].plan.timeouts.write;
        let takes = !self.lags || base.idle_since(self.took_last) < write;
        if takes { 0 } else { self.held() + self.kept_ahead() }
    }
}

impl Clients {
    /// Closes the clients that hold most and do nothing about it, until half of the memory is free.
    /// If all of them hold little, it is not their fault.
    #[cold]
    pub(crate) fn close_stalled(&mut self, base: &mut Base) {
        if !base.memory.is_little() {
            return;
        }
        let idle = self.idle(|client| client.stalled(base) + client.unread(base));
        let total: usize = idle.iter().map(|(part, _)| part).sum();
        if total < base.memory.in_use() / limits::STALLED_PART {
            return;
        }
        // One line of each kind for all: they are counted.
        let (mut stalled_told, mut unread_told) = (false, false);
        for (_, id) in idle.into_iter().take(limits::STALLED_CLOSED_MAX) {
            let Some(client) = self.table.find(id).filter(|_| base.memory.is_little()) else {
                return;
            };
            let (come, silent_us) = (client.stalled(base), client.stalled_us(base));
            if client.unread(base) >= come {
                let is_first = !std::mem::replace(&mut unread_told, true);
                self.close_unread(base, id, MEMORY, is_first);
                continue;
            }
            let pool = &base.pools[client.pool as usize];
            pool.counters.add(PoolCounter::ClientsStalled, 1);
            if !std::mem::replace(&mut stalled_told, true) {
                let pool = pool.plan.id;
                base.log(Event::ClientStalled { pool, client: id, come, silent_us });
            }
            self.cancel(id);
            self.close_client(base, id, Departed::Stalled);
        }
    }

    /// Closes clients that take nothing and hold more than this one, the largest first, until more
    /// can be kept of it.
    #[cold]
    pub(super) fn make_room(&mut self, base: &mut Base, id: ConnId) {
        let Some(kept) = self.table.find(id).map(Client::kept_ahead) else { return };
        let idle = self.idle(|client| client.unread(base));
        let larger = idle.into_iter().take_while(|(part, _)| *part > kept);
        let others = larger.map(|(_, other)| other).filter(|other| *other != id);
        for (nth, other) in others.take(limits::STALLED_CLOSED_MAX).enumerate() {
            if self.table.find(id).is_none_or(|client| client.bound(base).is_none()) {
                return;
            }
            self.close_unread(base, other, MEMORY, nth == 0);
        }
    }

    /// Returns the clients of which this part is not small, the largest first.
    fn idle(&self, part: impl Fn(&Client) -> usize) -> Vec<(usize, ConnId)> {
        let all = self.table.iter().map(|(id, client)| (part(client), id));
        let mut idle: Vec<_> = all.filter(|(part, _)| *part >= limits::STALLED_MIN).collect();
        idle.sort_unstable_by_key(|(part, _)| std::cmp::Reverse(*part));
        idle
    }
}
