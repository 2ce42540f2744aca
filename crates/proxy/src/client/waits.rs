//! The reasons why clients wait before their next request is read, and their deadline where they
//! wait for a server.

use metrics::PoolCounter;

use super::Clients;
use super::leave::Departure;
use super::session::State;
use crate::Time;
use crate::base::id::ConnId;
use crate::base::timers::Due;
use crate::base::{Base, ServerAt};

/// The reasons why a paused client waits, beside room for its requests.
#[derive(Clone, Copy, Default)]
pub(super) struct Waits {
    /// Until nothing is outstanding: its next request may take another route.
    pub(super) idle: bool,
    /// Until the next turn: it has had its share of this one.
    pub(super) turn: bool,
    /// Until no link owes it anything: its next request takes links of another class.
    pub(super) owed: bool,
    /// For the addresses of its connection.
    pub(super) endpoints: bool,
    /// For what all workers have to tell.
    pub(super) workers: bool,
    /// Until a pause ends.
    pub(super) pause: bool,
    /// For its turn to log in.
    pub(super) login: bool,
    /// For a limit of its tenant.
    pub(super) tenant: bool,
    /// For room in this many queues of links.
    pub(super) queues: u32,
    /// Until a link to this server of its pool is up, or has failed. The form and the route of its
    /// next request depend on that.
    pub(super) server: Option<u32>,
    /// The server that it waited for last, and when it began to wait.
    pub(super) last_server: u32,
    pub(super) since: Time,
    /// It has waited for the link as long as a silent server is waited for: see `server/hold.rs`.
    pub(super) is_late: bool,
    /// The request that waits for a server, or was the last to, by its number among those of its
    /// client, the first of which is 1; until when it waits, and whether there is a timer for it.
    number: u64,
    until: Time,
    has_timer: bool,
}

impl Clients {
    /// Stops reading a client that waits for answers until it has them.
    pub(crate) fn pause_until_idle(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        if client.outstanding() == 0 || client.state == State::Leaving {
            return;
        }
        client.waits.idle = true;
        if !client.is_paused() {
            client.stop(base, id);
        }
    }

    /// Stops reading a client of which so much waits for a link that it has used up its share.
    pub(crate) fn await_queue(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.waits.queues += 1;
        if client.state != State::Leaving && !client.is_paused() {
            client.stop(base, id);
        }
    }

    /// Lets a client go on for which there is room again in a link's queue.
    pub(crate) fn end_queue_wait(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.waits.queues -= u32::from(!bug!(NeverRoom));
        if client.waits.queues == 0 {
            self.update_client(base, id);
        }
    }

    /// Pauses a client until the capabilities of a server are known, or a link to it is up. The
    /// request that was read last, and all that follows, wait.
    pub(crate) fn await_server(&mut self, base: &mut Base, id: ConnId, server: usize) {
        let Some(client) = self.table.find_mut(id) else { return };
        let pool = &mut base.pools[client.pool as usize];
        let waits = &mut client.waits;
        (waits.server, waits.last_server) = (Some(server as u32), server as u32);
        // It may have been read again and wait once more.
        let number = client.record.tally.requests;
        if std::mem::replace(&mut waits.number, number) != number {
            // A client that has left began to wait before it left.
            if client.departure != Departure::Left || waits.since == Time(0) {
                waits.since = base.now;
            }
            waits.until = base.now.after(pool.plan.timeouts.queue_of(client.class));
        }
        if !std::mem::replace(&mut waits.has_timer, true) {
            base.timers.set(waits.until, Due::Wait(id));
        }
        // Its socket is still read: a client that leaves must be noticed before its request is
        // sent.
        client.pause();
        pool.servers[server].awaited = true;
        pool.counters.add(PoolCounter::Paused, 1);
    }

    /// Lets a client go on whose request has waited for a server as long as it may: it fails.
    pub(crate) fn wait_timer(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.waits.has_timer = false;
        if client.waits.server.is_none() || bug!(AwaitForEver) {
            return;
        }
        if base.now < client.waits.until {
            client.waits.has_timer = true;
            return base.timers.set(client.waits.until, Due::Wait(id));
        }
        client.waits.server = None;
        self.update_client(base, id);
    }

    /// Whether the request of a client that was read last has waited for servers as long as it may.
    pub(crate) fn is_overdue(&self, base: &Base, id: ConnId) -> bool {
        self.table.find(id).is_some_and(|client| {
            let is_it = client.waits.number == client.record.tally.requests;
            is_it && base.now >= client.waits.until
        })
    }

    /// Lets clients go on that waited for a server, when its handshake has ended or its link has.
    pub(crate) fn end_awaiting(&mut self, base: &mut Base, at: ServerAt, hold_after: Option<u64>) {
        if !std::mem::take(&mut base.server_mut(at).awaited) {
            return;
        }
        for id in self.of_pool(at.pool as usize) {
            if let Some(client) = self.table.find_mut(id)
                && client.waits.server == Some(at.server)
            {
                if bug!(AwaitForEver) {
                    continue;
                }
                client.waits.server = None;
                let waited = base.now.since(client.waits.since);
                client.waits.is_late |= hold_after.is_some_and(|patience| waited >= patience);
                self.update_client(base, id);
            }
        }
    }

    /// Returns the server that a client waited for last.
    pub(crate) fn awaited(&self, id: ConnId) -> Option<usize> {
        self.table.find(id).map(|client| client.waits.last_server as usize)
    }
}
