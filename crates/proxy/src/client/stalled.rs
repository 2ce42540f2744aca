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

    /// Returns how much it holds and does nothing about, and for how long nothing came if it is
    /// that.
    fn idle_part(&self, base: &Base) -> (usize, Option<u64>) {
        let (come, silent_us) = (self.come(), self.stalled_us(base));
        match come >= limits::STALLED_MIN && silent_us >= limits::STALLED_US {
            true => (come, Some(silent_us)),
            false => (self.unread(base), None),
        }
    }

    /// Returns how much it holds if it has taken nothing for `timeout_write`.
    fn unread(&self, base: &Base) -> usize {
        let write = base.pools[self.pool as usize].plan.timeouts.write;
        let takes = !self.lags || base.idle_since(self.took_last) < write;
        if takes { 0 } else { self.held() + self.partial.len() + self.kept_ahead() }
    }
}

impl Clients {
    /// Closes the clients that hold most and do nothing about it, until half of the memory is free.
    #[cold]
    pub(crate) fn close_stalled(&mut self, base: &mut Base) {
        if base.memory.is_little() {
            self.close_idle(base, None, |base, _| !base.memory.is_little());
        }
    }

    /// Closes those that hold most and take nothing, until more can be kept of this client.
    #[cold]
    pub(super) fn make_room(&mut self, base: &mut Base, id: ConnId) {
        let has_room = |base: &Base, client: &Clients| {
            client.table.find(id).is_none_or(|one| one.bound(base).is_none())
        };
        self.close_idle(base, Some(id), has_room);
    }

    /// Closes the clients that hold most and do nothing about it, but for one, until that one and
    /// the memory are as they should be. If all of them hold little, it is not their fault.
    fn close_idle(
        &mut self,
        base: &mut Base,
        spared: Option<ConnId>,
        is_enough: impl Fn(&Base, &Clients) -> bool,
    ) {
        let idle_part = |(id, client): (ConnId, &Client)| {
            let (part, _) = client.idle_part(base);
            (part >= limits::STALLED_MIN && Some(id) != spared).then_some((part, id))
        };
        let mut idle: Vec<_> = self.table.iter().filter_map(idle_part).collect();
        let total: usize = idle.iter().map(|(part, _)| part).sum();
        if total < base.memory.in_use() / limits::STALLED_PART {
            return;
        }
        idle.sort_unstable_by_key(|(part, _)| std::cmp::Reverse(*part));
        // One line of each kind for all: they are counted.
        let (mut stalled_told, mut unread_told) = (false, false);
        for (come, id) in idle.into_iter().take(limits::STALLED_CLOSED_MAX) {
            if is_enough(base, self) {
                return;
            }
            let Some(client) = self.table.find(id) else { continue };
            let (_, Some(silent_us)) = client.idle_part(base) else {
                let is_first = !std::mem::replace(&mut unread_told, true);
                self.close_unread(base, id, MEMORY, is_first);
                continue;
            };
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
}
