//! MONITOR: clients that are shown what the clients of their pool ask, at all workers.
//!
//! ```text
//!   a request is read ─▶ is its pool looked at? ─▶ Action::Tap ─▶ the ring of this slot
//!   MONITOR ─▶ a lease in shared memory, renewed every 5 ms with a look at all rings ─▶ lines
//! ```
//!
//! A worker that dies takes its leases with it: they end by themselves. A client of a tenant is
//! shown its tenant's requests, any other those of clients without one.

use proto::Request;

use super::Clients;
use super::input::Frame;
use crate::Action;
use crate::base::Base;
use crate::base::buffer::Source;
use crate::base::connection::Departed;
use crate::base::id::ConnId;
use crate::base::timers::Due;

/// Clients that look, and how far each ring has been read.
#[derive(Default)]
pub(super) struct Monitors {
    clients: Vec<ConnId>,
    places: Vec<u64>,
    /// A timer is set for the next look.
    is_timed: bool,
}

impl Clients {
    /// Has a client shown what others ask, from now on.
    pub(crate) fn begin_monitor(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.monitors = true;
        if self.monitors.clients.contains(&id) {
            return;
        }
        if self.monitors.clients.is_empty() {
            let registry = base.metrics.registry();
            let slots = 0..registry.used_slots();
            self.monitors.places = slots.map(|at| registry.tap(at).end()).collect();
        }
        if !std::mem::replace(&mut self.monitors.is_timed, true) {
            base.timers.set(base.now.after(LOOK_US), Due::Monitor);
        }
        self.monitors.clients.push(id);
        self.renew_leases(base);
        base.note_special();
    }

    /// Shows a request that was read to those who look, wherever they are.
    #[cold]
    pub(crate) fn tap(&mut self, base: &mut Base, frame: &Frame, head: &[u8]) {
        let Some(client) = self.table.find(frame.asks.id) else { return };
        let pool = base.pools[client.pool as usize].plan.id;
        if base.metrics.registry().pauses(pool).looked_at_until() <= base.now.0 {
            return;
        }
        let mut text = Vec::new();
        if client.protocol.show(&frame.request, head, &mut text) {
            let tenant = base.tenants.find(client.tenant).map_or(0, |tenant| tenant.plan.id);
            let database = client.session.conn_key.database;
            base.actions.push_back(Action::Tap {
                client: frame.asks.id,
                pool,
                tenant,
                database,
                text,
            });
        }
    }

    /// Shows what has been asked since the last look.
    pub(crate) fn look(&mut self, base: &mut Base) {
        let table = &self.table;
        let is_here = |id: &ConnId| table.find(*id).is_some_and(|client| client.monitors);
        self.monitors.clients.retain(is_here);
        self.monitors.is_timed = !self.monitors.clients.is_empty();
        if !self.monitors.is_timed {
            return;
        }
        self.renew_leases(base);
        base.timers.set(base.now.after(LOOK_US), Due::Monitor);
        let registry = base.metrics.registry();
        let mut places = std::mem::take(&mut self.monitors.places);
        // There may be more workers than before, who have shown nothing yet.
        places.resize(places.len().max(registry.used_slots()), 0);
        for (slot, place) in places.iter_mut().enumerate() {
            let tap = registry.tap(slot);
            loop {
                match tap.read(place) {
                    Ok(Some((pool, tenant, text))) => self.show(base, (pool, tenant), &text),
                    Ok(None) => break,
                    // A list with holes would be taken for a whole one.
                    Err(_) => {
                        *place = tap.end();
                        self.end_monitors(base);
                        break;
                    }
                }
            }
        }
        self.monitors.places = places;
    }

    fn show(&mut self, base: &mut Base, scope: (u32, u32), text: &[u8]) {
        let line = [b"+", text, b"\r\n"].concat();
        for at in 0..self.monitors.clients.len() {
            let id = self.monitors.clients[at];
            let Some(client) = self.table.find(id) else { continue };
            let tenant = base.tenants.find(client.tenant).map_or(0, |tenant| tenant.plan.id);
            if (base.pools[client.pool as usize].plan.id, tenant) != scope {
                continue;
            }
            if client.held() > base.limits.client_outbox {
                self.end_monitor(base, id);
            } else {
                self.answer_encoded(base, id, &Request::placeholder(), Source::plain(&line));
            }
        }
    }

    /// Closes those who look: some requests can be shown no more.
    #[cold]
    fn end_monitors(&mut self, base: &mut Base) {
        for id in std::mem::take(&mut self.monitors.clients) {
            self.end_monitor(base, id);
        }
    }

    /// Closes one that does not read what it is shown.
    fn end_monitor(&mut self, base: &mut Base, id: ConnId) {
        if self.table.find(id).is_some() {
            self.close_client(base, id, Departed::Behind);
        }
    }

    fn renew_leases(&self, base: &Base) {
        let until = base.now.after(LEASE_US).0;
        for client in self.monitors.clients.iter().filter_map(|id| self.table.find(*id)) {
            let pool = base.pools[client.pool as usize].plan.id;
            base.metrics.registry().pauses(pool).look_at(until);
        }
    }
}

/// How often the rings are looked at.
const LOOK_US: u64 = 5_000;
/// How long requests are shown to one who does not look any more.
const LEASE_US: u64 = 1_000_000;
