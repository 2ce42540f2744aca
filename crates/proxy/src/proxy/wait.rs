//! Requests that cannot take their route now: they wait for a server, for as long as a request may,
//! or for what else their client has outstanding, and are read again.

use proto::{Answer, Class, Local};

use super::Proxy;
use crate::base::ServerAt;
use crate::base::fault::Fault;
use crate::base::part::{Incoming, Requester};
use crate::client::Frame;
use crate::route::{self, Route};

impl Proxy {
    /// Returns the route of a request, as far as its servers can be asked now.
    pub(super) fn route(&mut self, incoming: &Incoming<'_>) -> Option<Route> {
        let Incoming { asks, request, .. } = *incoming;
        let Proxy { base, clients, servers, .. } = self;
        let is_located = || clients.has_endpoints(asks.id);
        match route::route(base, incoming, is_located)? {
            Route::NeedsWorkers if clients.has_been_told(asks.id) => None,
            Route::Wait(server) => Some(match servers.reach(base, asks, server) {
                // It says more when it has done what it is busy with.
                Ok(id) if servers.says_busy(id) => Route::Fault(Some(server as u32), Fault::Busy),
                Ok(_) => Route::Wait(server),
                Err(fault) => Route::Fault(Some(server as u32), fault),
            }),
            Route::Spread => {
                let ready = match request.class {
                    Class::Split { writes: true, .. } => servers.are_ready_for_keys(base, incoming),
                    Class::Broadcast { .. } => servers.are_ready(base, asks),
                    _ => Ok(None),
                };
                Some(match ready {
                    // A client that has left after waiting for long has given up, and its change
                    // waits no more.
                    Ok(Some(server)) if !incoming.is_dropped() => Route::Wait(server),
                    Ok(_) => Route::Spread,
                    Err((server, fault)) => Route::Fault(server, fault),
                })
            }
            Route::AfterAll if clients.may_subscribe(asks.id) => None,
            Route::UnlessBusy => self.route_unless_busy(asks),
            route => Some(route),
        }
    }

    /// Returns the route of the request that was read last of its client: one that has waited for
    /// servers as long as it may waits no more.
    #[cold]
    pub(super) fn in_time(&mut self, asks: &Requester, route: Route) -> Route {
        match route {
            Route::Wait(server) if self.clients.is_overdue(&self.base, asks.id) => {
                let at = ServerAt { pool: asks.pool, server: server as u32 };
                Route::Fault(Some(at.server), self.servers.unsent_fault(&self.base, at))
            }
            route => route,
        }
    }

    /// Delays or refuses a request that cannot take its route now. `None`: it fails when enqueued.
    #[cold]
    pub(super) fn put_off(&mut self, frame: &Frame, head: &[u8], route: Route) -> Option<usize> {
        let Frame { asks, request, .. } = frame;
        match route {
            Route::Wait(server) => self.clients.await_server(&mut self.base, asks.id, server),
            Route::NeedsEndpoints => self.clients.await_endpoints(&mut self.base, asks.id),
            Route::NeedsWorkers => {
                let inquiry = asks.protocol.inquiry(request, head)?;
                self.clients.await_workers(&mut self.base, asks.id, inquiry);
            }
            Route::AfterAll => self.clients.pause_until_idle(&mut self.base, asks.id),
            Route::Busy => return Some(self.refuse_as_busy(&frame.incoming(head))),
            Route::Refused(refusal) => {
                return Some(self.refuse_or_remove(frame, head, &Answer::Refused(refusal)));
            }
            Route::Fault(server, fault) if matches!(request.class, Class::Local(Local::Own)) => {
                self.count(&frame.incoming(head));
                self.clients.refuse_unasked(&mut self.base, &frame.incoming(head), (server, fault));
                return Some(head.len());
            }
            _ => return None,
        }
        self.clients.read_again(&mut self.base, frame);
        Some(0)
    }
}
