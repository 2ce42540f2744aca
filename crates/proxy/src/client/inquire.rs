//! What clients ask about clients: all workers are asked, and the client waits until they have
//! told; and pauses, which hold the clients of a pool or a tenant until a time, or until their end.
//!
//! ```text
//!   CLIENT LIST ─▶ await_workers ─▶ Action::Inquire … set_told ─▶ the request is read again
//!   CLIENT PAUSE ─▶ a word in shared memory ─▶ hold ─▶ a look each 10 ms ─▶ end_pauses
//! ```

use metrics::WorkerMetrics;
use proto::{Inquiry, Told};

use super::Clients;
use super::input::Frame;
use super::tenant;
use crate::base::Base;
use crate::base::id::ConnId;
use crate::base::timers::Due;
use crate::{Action, Asking};

/// A client that is not read because of a pause.
pub(super) struct Held {
    client: ConnId,
    /// The id of the pool or tenant that is paused.
    row: u32,
    writes: bool,
}

impl Clients {
    /// Whether all workers have told what a client has asked for.
    pub(crate) fn has_been_told(&self, id: ConnId) -> bool {
        self.table.find(id).is_some_and(|client| client.told.is_some())
    }

    /// Pauses a client until all workers have told what it asks for.
    pub(crate) fn await_workers(&mut self, base: &mut Base, id: ConnId, inquiry: Inquiry) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.pause();
        client.waits.workers = true;
        let tenant = base.tenants.find(client.tenant).map(|one| one.plan.name.clone());
        let pool = base.pools[client.pool as usize].plan.name.clone();
        let asking = Asking { inquiry, asker: client.record.tally.id, pool, tenant };
        base.actions.push_back(Action::Inquire { client: id, asking: Box::new(asking) });
    }

    /// Takes what all workers have told.
    pub(crate) fn set_told(&mut self, base: &mut Base, id: ConnId, told: Result<Told, String>) {
        if let Some(client) = self.table.find_mut(id).filter(|client| client.waits.workers) {
            (client.told, client.waits.workers) = (Some(Box::new(told)), false);
            self.update_client(base, id);
        }
    }

    /// Holds a request that is paused: its client is not read until that has ended. Returns false
    /// if it is not. Its tenant has not been charged for it.
    #[cold]
    pub(crate) fn hold(&mut self, base: &mut Base, frame: &Frame, writes: bool) -> bool {
        let id = frame.asks.id;
        let Some(client) = self.table.find_mut(id) else { return false };
        let row = row_of(base, client.pool, client.tenant);
        let now = base.now;
        let Some(until) = base.metrics.registry().pauses(row).until(now.0, writes) else {
            return false;
        };
        client.waits.pause = true;
        // Its socket is still read, so that we notice when it leaves.
        client.pause();
        if self.held.is_empty() {
            base.timers.set(now.after(LOOK_US.min(until - now.0)), Due::Pause);
        }
        self.held.push(Held { client: id, row, writes });
        self.unread(frame, tenant::requests_of(&frame.request, base.keys.len()));
        true
    }

    /// Lets clients go on whose pause has ended, and looks again later for the others.
    pub(crate) fn end_pauses(&mut self, base: &mut Base) {
        let (metrics, now) = (base.metrics, base.now);
        let mut ended = Vec::new();
        self.held.retain(|held| {
            let is_held = self.table.find(held.client).is_some_and(|one| one.waits.pause);
            let lasts = is_held && lasts(metrics, held, now.0);
            if is_held && !lasts {
                ended.push(held.client);
            }
            lasts
        });
        if !self.held.is_empty() {
            base.timers.set(now.after(LOOK_US), Due::Pause);
        }
        for id in ended {
            if let Some(client) = self.table.find_mut(id) {
                client.waits.pause = false;
                self.update_client(base, id);
            }
        }
    }
}

fn lasts(metrics: WorkerMetrics, held: &Held, now_us: u64) -> bool {
    metrics.registry().pauses(held.row).until(now_us, held.writes).is_some()
}

/// Returns the id of what a client may pause, and is paused with: its tenant, or else its pool.
pub(super) fn row_of(base: &Base, pool: u32, tenant: u16) -> u32 {
    let of_tenant = base.tenants.find(tenant).map(|tenant| tenant.plan.id);
    of_tenant.unwrap_or(base.pools[pool as usize].plan.id)
}

/// How often held clients are looked at: another worker may have ended their pause.
const LOOK_US: u64 = 10_000;
