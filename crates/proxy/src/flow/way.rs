//! Where a single request goes, and in which form: that may depend on what its server can do.
//!
//! ```text
//!   carry(request) ── Ask ─────────────────────────────────────────▶ go
//!        └─ Unknown ── route ── skills known ── carry again ── Ask ─▶ go, to that server
//!                         │                          └─ Refused ────▶ answered, nothing is sent
//!                         └─ not known ── its client is not read until a link has greeted it
//! ```

use metrics::Pool as Counter;
use proto::{Ask, Carry, Class, Marks, Refusal, Request, Skills};

use crate::fault::Fault;
use crate::id::ConnId;
use crate::{Action, Event, Proxy, Time};

/// What becomes of a single request.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// It is asked so; of this server, if that was found out already.
    Go { ask: Ask, server: Option<usize> },
    /// It is told before it has started that it cannot arrive.
    Fault(Option<u32>, Fault),
    /// That depends on what this server can do, which is not known yet.
    Wait(usize),
    /// No form means the same.
    Refused(Refusal),
}

impl Proxy {
    /// The way of a request that one server answers with one item; others have none.
    pub(super) fn way(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        now: Time,
    ) -> Option<Way> {
        let Class::Single { .. } = request.class else { return None };
        let client = self.desk.clients.find(id).expect("it has just asked");
        let (pool, protocol) = (client.pool as usize, client.protocol);
        Some(match protocol.carry(request, head, None) {
            Carry::Ask(ask) => Way::Go { ask, server: None },
            Carry::Refused(refusal) => Way::Refused(refusal),
            Carry::Unknown => {
                let Some(server) = self.server_for(id, request, head) else {
                    return Some(Way::Fault(None, Fault::NoServer));
                };
                match self.skills(pool, server, id, now) {
                    Err(fault) => Way::Fault(Some(server as u32), fault),
                    Ok(None) => Way::Wait(server),
                    Ok(skills) => match protocol.carry(request, head, skills) {
                        Carry::Ask(ask) => Way::Go { ask, server: Some(server) },
                        Carry::Refused(refusal) => Way::Refused(refusal),
                        Carry::Unknown => unreachable!("the skills were told"),
                    },
                }
            }
        })
    }

    /// What a server can do. If that is not known, a link is on its way to ask.
    fn skills(
        &mut self,
        pool: usize,
        server: usize,
        client: ConnId,
        now: Time,
    ) -> Result<Option<Skills>, Fault> {
        let skills = self.desk.pools[pool].servers[server].skills;
        if skills.is_none() {
            self.link_for(pool, server, client, now)?;
        }
        Ok(skills)
    }

    /// A client's next request waits for what a server can do, and so does what follows it: the
    /// client is not read. None of its bytes are used.
    pub(super) fn await_skills(&mut self, id: ConnId, server: usize) -> usize {
        let client = self.desk.clients.find_mut(id).expect("the caller found it");
        client.awaits = Some(server as u32);
        // Who has left has waited since before that.
        if !client.has_left || client.awaits_since == Time(0) {
            client.awaits_since = self.desk.now;
        }
        // Its socket is read further: whether it leaves must be seen before its request is sent.
        client.paused = true;
        let pool = &mut self.desk.pools[client.pool as usize];
        pool.servers[server].awaited = true;
        pool.counters.add(Counter::Paused, 1);
        0
    }

    /// What a server can do is known, or will not be known soon: who waited for it is read again.
    pub(super) fn end_awaiting(&mut self, pool: usize, server: usize) {
        if !std::mem::take(&mut self.desk.pools[pool].servers[server].awaited) {
            return;
        }
        let hold_after = self.desk.pools[pool].plan.hold_after;
        for id in self.desk.client_ids() {
            if let Some(client) = self.desk.clients.find_mut(id)
                && client.pool as usize == pool
                && client.awaits == Some(server as u32)
            {
                client.awaits = None;
                let waited = self.desk.now.since(client.awaits_since);
                client.is_late |= hold_after.is_some_and(|patience| waited >= patience);
                self.desk.spoke(id);
            }
        }
    }

    /// Once marks are in use in a pool, through whichever worker, a read that would tell of them is
    /// asked in the form that does; and always where it would not be merged anyway.
    pub(super) fn heed_marks(&mut self, pool: usize, request: &mut Request) {
        let entry = &mut self.desk.pools[pool];
        match request.marks {
            Marks::None => {}
            Marks::Makes => {
                let row = entry.plan.row;
                if !entry.marked && self.desk.sheet.total(row, Counter::Marks) == 0 {
                    self.desk.actions.push_back(Action::Log(Event::Marked { pool: row }));
                }
                entry.marked = true;
                entry.counters.add(Counter::Marks, 1);
            }
            Marks::Shows => {
                if !entry.marked && self.desk.sheet.total(entry.plan.row, Counter::Marks) > 0 {
                    entry.marked = true;
                }
                let as_it_is = entry.marked || !entry.plan.merge_gets;
                if as_it_is && !bug!(HideMarks) {
                    request.class = Class::Single { writes: false };
                }
            }
        }
    }
}
