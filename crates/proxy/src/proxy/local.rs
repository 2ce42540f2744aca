//! Requests that the proxy answers itself, and what a busy server says to some of them.

use proto::{Answer, Class, Local, Request};

use super::Proxy;
use crate::base::part::{Data, Effort, Incoming, LinkClass, Requester};
use crate::base::{ServerAt, limits};
use crate::route::{self, Route};

impl Proxy {
    /// Has the protocol answer a request, unless a busy server does.
    pub(super) fn answer_local(&mut self, incoming: &Incoming<'_>, local: Local) {
        let Incoming { asks, request, head } = *incoming;
        match local {
            Local::Nothing if self.is_server_busy(asks.pool()) && self.answer_as_busy(incoming) => {
                return;
            }
            Local::Stats => self.publish(),
            Local::Own => self.make_room_for_conn_key(asks.pool()),
            Local::Clients | Local::Monitor
                if let Some(why) = route::why_not_of_clients(&self.base, incoming) =>
            {
                let answer = Answer::Refused(why);
                return self.clients.refuse_whole(&mut self.base, incoming, &answer);
            }
            Local::Subscribe => return self.subscribe(incoming),
            _ => {}
        }
        self.clients.answer_local(&mut self.base, asks.id, (request, local), head);
    }

    /// Whether the only server of a pool has said that it is busy, or has been silent for a while
    /// over something that any worker has asked of it.
    #[inline]
    fn is_server_busy(&self, pool: usize) -> bool {
        let its = &self.base.pools[pool];
        let is_silent = || {
            let Some(server) = its.only_planned() else { return false };
            let at = ServerAt { pool: pool as u32, server: server as u32 };
            let can_be_asked = self.base.server(at).can_be_asked();
            let busy = if can_be_asked { self.base.busy(at) } else { None };
            busy.is_some_and(|busy| self.base.now.since(busy.since) >= limits::BUSY_ASKED_US)
        };
        its.busy_line().is_some() || is_silent()
    }

    /// Returns the route of a request that the proxy answers unless the only server of its pool is
    /// busy: that says so itself.
    #[cold]
    pub(super) fn route_unless_busy(&mut self, asks: &Requester) -> Option<Route> {
        let control = self.class_in(asks, LinkClass::Control);
        let server = self.base.pools[asks.pool()].only_planned()?;
        if control != LinkClass::Control || !self.is_server_busy(asks.pool()) {
            return None;
        }
        let others = Requester { class: control, effort: Effort::Slow, ..*asks };
        // One that does not say so in the time that a request may wait leaves it to the proxy.
        if self.clients.is_overdue(&self.base, asks.id) {
            return None;
        }
        match self.servers.ask_whether_busy(&mut self.base, &others, server) {
            true => Some(Route::Wait(server)),
            false => self.base.pools[asks.pool()].busy_line().is_some().then_some(Route::Busy),
        }
    }

    /// Answers a request as the only server of its pool has answered just now; returns its length.
    #[cold]
    pub(super) fn refuse_as_busy(&mut self, incoming: &Incoming<'_>) -> usize {
        self.count(incoming);
        self.clients.answer_busy(&mut self.base, incoming.asks.id, incoming.request);
        self.clients.pause_if_full(&mut self.base, incoming.asks.id);
        incoming.head.len()
    }

    /// Answers a request that asks only whether the server is there, in a pool whose only server
    /// is busy: as the server does, or as it did last. It may overtake what its client has asked
    /// before, since it changes nothing, and takes a link where it waits behind nothing slow.
    /// False: it is not answered.
    #[cold]
    fn answer_as_busy(&mut self, incoming: &Incoming<'_>) -> bool {
        let request = &Request { class: Class::Single { writes: false }, ..*incoming.request };
        self.base.keys.clear();
        let route = self.route(&Incoming { request, ..*incoming });
        let server = match route {
            Some(Route::Go { server, .. }) => server,
            _ => None,
        };
        let control = self.class_in(incoming.asks, LinkClass::Control);
        let others = Requester { class: control, effort: Effort::Slow, ..*incoming.asks };
        let is_free = |asks| server.is_some_and(|at| self.servers.is_free(&self.base, asks, at));
        let asks = if is_free(incoming.asks) { incoming.asks } else { &others };
        let has_said = self.base.pools[asks.pool()].busy_line().is_some();
        // A server that takes no further link cannot be asked there.
        let can_be_asked = match server {
            Some(_) if has_said => is_free(asks),
            Some(server) => self.servers.reach(&mut self.base, asks, server).is_ok(),
            None => false,
        };
        let Some(route) = route.filter(|_| can_be_asked) else {
            if has_said {
                self.clients.answer_busy(&mut self.base, asks.id, request);
            }
            return has_said;
        };
        let asked = &Incoming { asks, request, ..*incoming };
        let id = self.clients.begin(&mut self.base, asked, false);
        self.send_along(id, asked, Data::none(), route);
        true
    }
}
