//! Values that are too large, or that there is no memory for. The old value of the key is removed,
//! as memcached does, so that no client goes on reading a value that was to be replaced.
//!
//! ```text
//!   set k 0 0 9000000 ──▶ too large ──▶ delete k ──▶ DELETED ──▶ answer "too large"
//!   <its data>        ──▶ skipped          │
//!                                          └─ not sent ──▶ answer "too large, old value kept"
//! ```
//!
//! The removal is a change of that client like any other. It goes to its key's server in the
//! client's order and never twice, and the client gets the answer when the outcome is known.

use metrics::PoolCounter;
use proto::{Class, Parsed, Quiet, Request, Resume};

use super::receive::Data;
use super::route::Route;
use crate::buffer::Outbox;
use crate::client::Intake;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::room::NoRoom;
use crate::{Proxy, Time};

/// How a refused request affects its key.
pub(super) enum Removal {
    /// The key stays as it is.
    Nothing,
    /// The key is being removed. The request is answered when that is done.
    Asked,
    /// The form of the removal depends on the capabilities of this server, which are unknown.
    Waits(usize),
}

impl Proxy {
    /// Refuses a request whose data is not accepted, if that removes its key.
    #[cold]
    pub(super) fn remove(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        now: Time,
    ) -> Removal {
        let Class::Single { writes: true } = request.class else { return Removal::Nothing };
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let (protocol, gave_up) = (client.protocol, client.gave_up());
        let Some(no_room) = self.no_room(client.pool as usize, request) else {
            return Removal::Nothing;
        };
        let mut words = self.pipelines.spares.take();
        if !protocol.removal(request, head, &mut words) || bug!(ForgetRemoval) {
            self.pipelines.spares.give(words);
            return Removal::Nothing;
        }
        let parsed = protocol.parse_request(&words, &mut Resume::default(), &mut self.keys);
        let Parsed::Complete(removal) = parsed else { unreachable!("the protocol has written it") };
        let route =
            self.route(id, &removal, &words, now).expect("a request about one key has a route");
        if let Route::Wait(server) = route {
            self.pipelines.spares.give(words);
            return Removal::Waits(server);
        }
        self.skip_body(id, request);
        // The request is answered in its own form, not in that of the removal.
        let request_id = self.pipelines.enqueue(id, &Request { keep: true, ..*request }, head);
        let pending = &mut self.pipelines.requests[request_id];
        (pending.writes, pending.left) = (true, 1);
        pending.info.no_room = Some(no_room);
        match gave_up && request.quiet != Quiet::Silent {
            true => {
                let server = self.server_for(id, &removal, &words).map(|at| at as u32);
                self.pipelines.fail_part((request_id, 0), server, Fault::Dropped, false);
            }
            false => self.send_along(
                request_id,
                &removal,
                &words,
                Data::Assembled(Outbox::default()),
                route,
                now,
            ),
        }
        self.pipelines.spares.give(words);
        self.pause_if_full(id);
        Removal::Asked
    }

    /// Returns why a request's data is not accepted, if it is not.
    pub(super) fn no_room(&self, pool: usize, request: &Request) -> Option<NoRoom> {
        if request.body == 0 {
            return None;
        }
        if request.body > self.pipelines.pools[pool].plan.item_size_max as u64 {
            return Some(NoRoom::TooLarge);
        }
        let has_room = self.pipelines.memory.has_room(request.body as usize);
        (!has_room).then_some(NoRoom::NoMemory)
    }

    /// Skips the data of a request that is refused.
    pub(super) fn skip_body(&mut self, id: ConnId, request: &Request) {
        let client = self.pipelines.clients.find_mut(id).expect("the caller found it");
        let (pool, tail) = (client.pool as usize, request.len() - u64::from(request.head));
        if tail > 0 {
            client.intake = Intake::Swallow(tail);
        }
        self.pipelines.pools[pool].counters.add(PoolCounter::Refused, 1);
    }
}
