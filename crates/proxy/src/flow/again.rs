//! Requests that are sent again after a retryable error: their server did nothing, since it is
//! loading its data, has lost its master, or does not know a script.
//!
//! ```text
//!   retryable error ──▶ is the request its client's last, and is there time?
//!     yes ──▶ pause reading the client · recovery, if there is one · wait ──▶ routed, sent again
//!     no  ──▶ the client gets the error · recovery all the same, for the next client that asks
//! ```
//!
//! Only a client's last request is sent again. Its later requests would be executed before it, and
//! requests of one client must not change places.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};

use metrics::ServerCounter;
use proto::{Ask, Class, Parsed, Quiet, Resume, Retryable};

use super::receive::Data;
use crate::buffer::Outbox;
use crate::client::State as ClientState;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::Payload;
use crate::request::RequestId;
use crate::timers::Due;
use crate::{Proxy, Time, limits};

impl Proxy {
    /// Returns whether a request that its server answered with this error is sent again.
    pub(super) fn retries(
        &mut self,
        pending: RequestId,
        (link, server): (ConnId, u32),
        line: &[u8],
        now: Time,
    ) -> bool {
        let Some(times) = self.pipelines.requests[pending].info.repeats else { return false };
        let pool = self.pipelines.requests[pending].pool as usize;
        let retryable = self.pipelines.pools[pool].upstream.retryable(line);
        let retryable = retryable.or(bug!(RepeatExecuted).then_some(Retryable::TryAgain));
        let Some(retryable) = retryable else { return false };
        // After a recovery there is no need to wait.
        let pause = match retryable {
            Retryable::NoScript => 0,
            _ => limits::REPEAT_FIRST_US << times.min(6),
        };
        let info = &self.pipelines.requests[pending].info;
        let deadline = self.pipelines.requests[pending]
            .since
            .after(self.pipelines.pools[pool].plan.timeouts.reply);
        // The request would be sent with its client's present connection key.
        let conn_key = self.links.find(link).map(|link| link.conn_key);
        let is_last =
            self.pipelines.clients.find(self.pipelines.requests[pending].client).is_some_and(
                |client| {
                    client.tail == pending
                        && client.silent_count == 0
                        && Some(client.conn_key) == conn_key
                        && client.state == ClientState::Open
                },
            );
        let may = (is_last || bug!(RepeatPastOthers))
            && !info.gathers
            && info.quiet == Quiet::Loud
            && now.after(pause) < deadline;
        let is_recovered = self.has_recovery(pending, (link, retryable), now);
        if !may || !is_recovered {
            return false;
        }
        let owner = self.pipelines.requests[pending].client;
        let info = &mut self.pipelines.requests[pending].info;
        (info.repeats, info.awaits_retry) = (Some(times.saturating_add(1)), true);
        let counters = self.pipelines.pools[pool].servers[server as usize].counters;
        counters.add(counter(retryable), 1);
        info.recovered |= retryable == Retryable::NoScript;
        self.timers.set(now.after(pause), Due::Again { pending });
        self.pipelines.pause_until_idle(owner);
        true
    }

    /// Whether time alone is the recovery, or a recovery command can be sent, which happens here.
    fn has_recovery(
        &mut self,
        pending: RequestId,
        (link, retryable): (ConnId, Retryable),
        now: Time,
    ) -> bool {
        if retryable != Retryable::NoScript {
            return true;
        }
        let info = &self.pipelines.requests[pending].info;
        if info.recovered {
            return false;
        }
        let script_cache =
            &self.pipelines.pools[self.pipelines.requests[pending].pool as usize].script_cache;
        let internal = &self.links.find(link).expect("it has just answered").internal;
        // Many requests of a pipeline may need the same script, so the cheap lookup comes first.
        let (print, is_on_its_way) = (Cell::new(0), Cell::new(false));
        let known = |name: &[u8]| {
            print.set(fingerprint(name));
            is_on_its_way.set(internal.contains(&print.get()));
            if is_on_its_way.get() { None } else { script_cache.find(name) }
        };
        let mut words = Vec::new();
        let asked = info.asked();
        let recovery = info.protocol.recovery(&asked, retryable, &known, &mut words);
        let send = |ask| self.send_internal((link, pending), (ask, print.get()), &words, now);
        is_on_its_way.get() || recovery.is_some_and(send)
    }

    /// Sends a server an internal command, if its queue has room. Requests behind the command on
    /// this link find it done.
    fn send_internal(
        &mut self,
        (id, _request): (ConnId, RequestId),
        (ask, print): (Ask, u64),
        words: &[u8],
        now: Time,
    ) -> bool {
        let link = self.links.find_mut(id).expect("it has just answered");
        if !link.has_room(&self.pipelines.limits) || !self.pipelines.memory.has_room(words.len()) {
            return false;
        }
        let before = link.out.len();
        link.out.open(&mut self.pipelines.spares);
        link.out.copy(words);
        let to_client = bug!(InternalToClient);
        let payload =
            if to_client { Payload::Single(_request, 0) } else { Payload::Internal(print) };
        if let Payload::Internal(print) = payload {
            link.internal.push(print);
        }
        link.launch(payload, ask, before, now);
        let bytes = link.measure();
        self.pipelines.memory.change(&mut link.counted, bytes);
        self.mark_dirty(id);
        self.arm_link(id);
        true
    }

    /// Sends a request again when its pause is over.
    pub(super) fn ask_anew(&mut self, request_id: RequestId, now: Time) {
        let pending = &mut self.pipelines.requests[request_id];
        assert!(pending.info.awaits_retry, "it waits for nothing else");
        pending.info.awaits_retry = false;
        let owner = pending.client;
        if self.pipelines.clients.find(owner).is_none() {
            return self.pipelines.part_done(request_id);
        }
        let is_given_up = pending.cancelled && pending.writes;
        let pool = pending.pool as usize;
        let head = pending.info.head.clone();
        let protocol = pending.info.protocol;
        let parsed = protocol.parse_request(&head, &mut Resume::default(), &mut self.keys);
        let Parsed::Complete(mut request) = parsed else {
            unreachable!("the same bytes are the same request")
        };
        self.recognize(owner, &mut request, &head);
        if is_given_up {
            // Its client has left, and asks again on another connection.
            let server = self.server_for(owner, &request, &head);
            let server = server.or_else(|| self.pipelines.pools[pool].any_place(owner.index()));
            let server = server.map(|at| at as u32);
            return self.pipelines.fail_part((request_id, 0), server, Fault::Dropped, false);
        }
        // The keys of a split request belong to one server now.
        if let Class::Split { writes, .. } = request.class {
            request.class = Class::Single { writes };
        }
        let route = self.route(owner, &request, &head, now);
        let route = route.expect("only what one server answers is asked again");
        self.send_along(
            request_id,
            &request,
            &head,
            Data::Assembled(Outbox::default()),
            route,
            now,
        );
    }
}

/// Returns a fingerprint of a name. If two names collide, a client gets the error and nothing worse
/// happens.
fn fingerprint(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn counter(retryable: Retryable) -> ServerCounter {
    match retryable {
        Retryable::Loading => ServerCounter::AgainLoading,
        Retryable::MasterDown => ServerCounter::AgainMasterDown,
        Retryable::ClusterDown => ServerCounter::AgainClusterDown,
        Retryable::TryAgain => ServerCounter::AgainTryAgain,
        Retryable::NoScript => ServerCounter::AgainNoScript,
    }
}
