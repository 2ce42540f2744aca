//! Route and enqueue: a request finds its servers and joins their queues.
//!
//! One client's requests never change places on a link. Requests of different clients may. Gets
//! wait in the link's open batch until the end of the turn; any other request goes ahead of them,
//! unless its own client has a get in the batch.

use metrics::{PoolCounter, ServerCounter};
use proto::{Answer, Ask, Class, Local, Place, Quiet, Reach, Refusal, Request};

use super::receive::Data;
use super::route::Route;
use crate::batch::Batch;
use crate::buffer::Outbox;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Link, Payload, State};
use crate::pipelines::VERSION;
use crate::pool::Stage;
use crate::request::RequestId;
use crate::{Proxy, Time, limits};

/// How the keys of a read are sent: see `Class::Fetch`.
#[derive(Clone, Copy)]
pub(super) struct SendOptions {
    pub(super) ask: Ask,
    pub(super) merge: bool,
    pub(super) idempotent: bool,
    /// One reply answers all keys of a message.
    pub(super) single_reply: bool,
    /// Each link is known to have room for all keys that it gets.
    pub(super) has_room: bool,
}

impl Proxy {
    /// Sends a read: each key goes to its server's open batch, or to a message of its own request.
    pub(super) fn ask_fetch(&mut self, id: ConnId, request: &Request, head: &[u8], now: Time) {
        let Class::Fetch { ask, merge, idempotent } = request.class else {
            unreachable!("judged by its class")
        };
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let merge = merge && self.pipelines.pools[client.pool as usize].plan.merge_gets;
        let pending = self.pipelines.enqueue(id, request, head);
        let options = SendOptions { ask, merge, idempotent, single_reply: false, has_room: false };
        self.ask_keys(id, (request, head), pending, options, now);
    }

    /// Sends each key of a request to its server, in a message with others.
    pub(super) fn ask_keys(
        &mut self,
        id: ConnId,
        (request, head): (&Request, &[u8]),
        pending: RequestId,
        options: SendOptions,
        now: Time,
    ) {
        self.pipelines.requests[pending].info.ask = options.ask;
        let client = self.pipelines.clients.find_mut(id).expect("it has just asked");
        let pool = client.pool as usize;
        let gave_up = client.drops(request.quiet);
        if options.merge {
            client.batch_turn = self.turn;
        }
        let keys = std::mem::take(&mut self.keys);
        self.pipelines.pools[pool].counters.add(PoolCounter::KeysAsked, keys.len() as u64);
        if keys.len() > 1 {
            self.pipelines.pools[pool].counters.add(PoolCounter::Fragments, keys.len() as u64);
            self.pipelines.requests[pending].open_slots(keys.len(), &mut self.pipelines.spares);
            if request.keep {
                self.pipelines.requests[pending].info.join(&keys);
            }
            self.pipelines.account_request(pending);
        }
        // The extra part keeps a fault from completing the request before its last key is sent.
        self.pipelines.requests[pending].left = keys.len() as u32 + 1;
        for (slot, span) in keys.iter().enumerate() {
            if bug!(DropFragment) && slot > 1 && slot + 1 == keys.len() {
                self.pipelines.part_done(pending);
                continue;
            }
            let protocol = self.pipelines.requests[pending].info.protocol;
            let mut scratch = std::mem::take(&mut self.scratch);
            let key = protocol.key(request, head, *span, &mut scratch);
            let found = match self.link_for_key(pool, key, id, now) {
                // This request itself fills the queue.
                Err((Some(server), Fault::QueueFull)) if options.has_room => {
                    let link = self.link_at(pool, server as usize, id, now);
                    link.map_err(|fault| (Some(server), fault))
                }
                found => found,
            };
            match found {
                Ok(link) if gave_up => {
                    let server = self.links.find(link).map(|link| link.server);
                    self.pipelines.fail_key((pending, slot as u32), server, Fault::Dropped);
                }
                Ok(link) => {
                    self.ask_key(link, request, head, key, (pending, slot as u32), options, now);
                    if options.single_reply {
                        self.push_rest(link, (request, head), &keys, slot);
                    }
                }
                Err((server, fault)) => {
                    self.pipelines.fail_key((pending, slot as u32), server, fault)
                }
            }
            self.scratch = scratch;
        }
        while let Some(link) = self.touched_links.pop() {
            self.close_own(link);
        }
        self.keys = keys;
        if self.keys.capacity() > limits::KEYS_KEEP_MAX {
            self.keys = Vec::new();
        }
        self.pipelines.part_done(pending);
    }

    /// Adds a key to the right batch of a link.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn ask_key(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        key: &[u8],
        part: (RequestId, u32),
        options: SendOptions,
        now: Time,
    ) {
        let SendOptions { ask, merge, idempotent, single_reply, .. } = options;
        let turn = self.turn;
        let protocol = self.pipelines.requests[part.0].info.protocol;
        let spare = &mut self.spare_batches;
        let link = self.links.find_mut(id).expect("the router found it");
        let own_begins = !merge && link.unmerged_batch.is_none();
        let close_shared = own_begins && self.pipelines.shares_batch(link, part.0);
        let pool = &mut self.pipelines.pools[link.pool as usize];
        let upstream = pool.upstream;
        if close_shared {
            close(link, pool);
        }
        if own_begins {
            self.touched_links.push(id);
        }
        let bytes_max = upstream.fetch_max(ask);
        let place = if merge { &mut link.batch } else { &mut link.unmerged_batch };
        let shared = |batch: &Batch| upstream.widen(batch.ask, ask);
        if let Some(batch) = place.take_if(|batch| {
            !batch.has_room(key.len(), bytes_max) || batch.ask != ask && shared(batch).is_none()
        }) {
            launch(link, batch, pool);
        }
        let place = if merge { &mut link.batch } else { &mut link.unmerged_batch };
        let batch = place.get_or_insert_with(|| {
            let mut batch = spare.pop().unwrap_or_else(Batch::blank);
            batch.open(ask, idempotent, turn, now);
            batch.single_reply = single_reply;
            protocol.open_fetch(request, head, &mut batch.text);
            batch
        });
        if batch.ask != ask && shared(batch) == Some(ask) {
            let mut prefix = self.pipelines.spares.take();
            protocol.open_fetch(request, head, &mut prefix);
            batch.widen(ask, &prefix);
            self.pipelines.spares.give(prefix);
        }
        batch.push(upstream, key, part.0, part.1);
        batch.latest = now;
        link.out.open(&mut self.pipelines.spares);
        self.mark_dirty(id);
    }

    /// Sends a request with one key and one item in answer, ahead of the open batch.
    pub(super) fn ask_single(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        data: Data<'_>,
        (route, writes): (Route, bool),
        now: Time,
    ) {
        let pending = self.pipelines.enqueue(id, request, head);
        self.pipelines.requests[pending].writes = writes;
        self.pipelines.requests[pending].left = 1;
        self.send_along(pending, request, head, data, route, now);
    }

    /// Sends a request along its route, for the first time or once more.
    pub(super) fn send_along(
        &mut self,
        pending: RequestId,
        request: &Request,
        head: &[u8],
        data: Data<'_>,
        route: Route,
        now: Time,
    ) {
        let (id, pool) = (
            self.pipelines.requests[pending].client,
            self.pipelines.requests[pending].pool as usize,
        );
        let (ask, server) = match route {
            Route::Go { ask, server: Some(server) } => (ask, Some(server)),
            Route::Go { ask, server: None } => (ask, self.server_for(id, request, head)),
            Route::Fault(server, fault) => {
                return self.pipelines.fail_part((pending, 0), server, fault, false);
            }
            // This happens only on a resend: a first attempt is read again, or put back.
            Route::Wait(server) => {
                return self.pipelines.fail_part(
                    (pending, 0),
                    Some(server as u32),
                    Fault::Down,
                    false,
                );
            }
            Route::NeedsEndpoints | Route::Spread => unreachable!("it is asked of one server"),
            Route::Refused(refusal) => return self.pipelines.refuse(pending, refusal),
            Route::Apart(apart) => return self.refuse_apart(pending, request, head, apart),
        };
        self.pipelines.requests[pending].info.ask = ask;
        let Some(server) = server else {
            return self.pipelines.fail_part((pending, 0), None, Fault::NoServer, false);
        };
        if let Place::Nth(_) | Place::From(_) = request.place {
            let next = self.pipelines.pools[pool].place_from(server as u32 + 1);
            let info = &mut self.pipelines.requests[pending].info;
            (info.at, info.next) = (server as u32, next);
        }
        match self.link_for(pool, server, id, now) {
            Ok(_) if bug!(ForgetNoreply) && request.quiet == Quiet::Silent => {
                self.pipelines.part_done(pending);
            }
            Ok(link) => self.send(link, (pending, 0), request, head, data, ask, now),
            Err(fault) => self.pipelines.fail_part((pending, 0), Some(server as u32), fault, false),
        }
    }

    /// Sends a request to every server of the pool, or to its keys' server; some requests only
    /// where the operator allows it. If one server cannot be asked now, a change goes to none of
    /// them, since nothing would undo it on the others.
    pub(super) fn ask_broadcast(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        route: Option<Route>,
        now: Time,
    ) {
        let Class::Broadcast { ask, writes, reach, .. } = request.class else {
            unreachable!("judged by its class")
        };
        let client = self.pipelines.clients.find(id).expect("it has just asked");
        let (pool, is_dropped) = (client.pool as usize, client.drops(request.quiet));
        if let Some(why) = self.why_not_of_all(pool, &request.class) {
            self.pipelines.pools[pool].counters.add(PoolCounter::Refused, 1);
            let answer = Answer::Refused(Refusal::ByName(why));
            return self.pipelines.answer(id, request, head, &answer);
        }
        if reach == Reach::Keys {
            return self.ask_of_keys(id, request, head, (ask, writes), now);
        }
        if writes && is_dropped {
            return self.drop_unasked(id, request, head);
        }
        if let Some(Route::Fault(server, fault)) = route {
            return self.refuse_unasked(id, request, head, (server, fault));
        }
        let servers = &self.pipelines.pools[pool].servers;
        let is_asked = |at: &usize| servers[*at].stage == Stage::Planned;
        let servers: Vec<usize> = (0..servers.len()).filter(is_asked).collect();
        let request_id = self.pipelines.enqueue(id, request, head);
        let pending = &mut self.pipelines.requests[request_id];
        (pending.info.ask, pending.info.gathers, pending.writes) = (ask, true, writes);
        if pending.info.protocol.forgets(&pending.info.asked()) {
            self.pipelines.pools[pool].script_cache.forget();
        }
        pending.left = servers.len() as u32 + 1;
        pending.open_slots(servers.len(), &mut self.pipelines.spares);
        self.pipelines.account_request(request_id);
        for (nth, server) in servers.into_iter().enumerate() {
            let part = (request_id, nth as u32);
            match self.link_for(pool, server, id, now) {
                Ok(_) if bug!(FlushOneServer) && nth > 0 => self.pipelines.part_done(request_id),
                Ok(link) => {
                    let none = Data::Assembled(Outbox::default());
                    self.send(link, part, request, head, none, ask, now);
                }
                Err(fault) => self.pipelines.fail_part(part, Some(server as u32), fault, false),
            }
        }
        self.pipelines.part_done(request_id);
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn send(
        &mut self,
        id: ConnId,
        (pending, slot): (RequestId, u32),
        request: &Request,
        head: &[u8],
        data: Data<'_>,
        ask: Ask,
        now: Time,
    ) {
        #[cfg(seeded_bugs)]
        self.remember(pending, request, head, ask);
        let protocol = self.pipelines.requests[pending].info.protocol;
        let link = self.links.find_mut(id).expect("the router found it");
        let close_shared = self.pipelines.shares_batch(link, pending);
        let pool = &mut self.pipelines.pools[link.pool as usize];
        if close_shared {
            close(link, pool);
        }
        let before = link.out.len();
        link.out.open(&mut self.pipelines.spares);
        protocol.write_head(request, head, &self.keys, ask, link.out.copied());
        match data {
            // A link that is up is written at the end of this turn. On others the data has to wait.
            Data::OnePiece(source) if link.state == State::Up => link.out.push(source),
            Data::OnePiece(source) => link.out.keep(source),
            Data::Assembled(mut held) => {
                link.out.append(&mut held);
                held.close(&mut self.pipelines.spares);
            }
        }
        protocol.write_tail(request, ask, link.out.copied());
        link.launch(Payload::Single(pending, slot), ask, before, now);
        pool.servers[link.server as usize].counters.add(ServerCounter::Messages, 1);
        self.mark_dirty(id);
    }

    /// Answers a request from the proxy's own knowledge.
    pub(super) fn answer_local(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        local: Local,
    ) {
        let pool = self.pipelines.clients.find(id).expect("it has just asked").pool as usize;
        self.pipelines.pools[pool].counters.add(PoolCounter::Local, 1);
        match local {
            Local::Version => self.pipelines.answer(id, request, head, &Answer::Version(VERSION)),
            Local::Nothing => self.pipelines.answer(id, request, head, &Answer::Ok),
            Local::NoKeys => self.pipelines.answer(id, request, head, &Answer::End),
            Local::Barrier => self.pipelines.barrier(id, request, head),
            Local::Stats => self.answer_stats(id, request, head),
            Local::Own => self.local(id, request, head),
            Local::Quit => {
                self.pipelines.answer(id, request, head, &Answer::Bye);
                if let Some(client) = self.pipelines.clients.find_mut(id) {
                    client.quits = true;
                }
                self.pipelines.leave(id);
            }
        }
    }

    /// Ends a turn: the open batches leave.
    pub(crate) fn close_batches(&mut self) {
        for at in 0..self.dirty_links.len() {
            let id = self.dirty_links[at];
            if let Some(link) = self.links.find_mut(id) {
                let pool = &mut self.pipelines.pools[link.pool as usize];
                if link.batch.is_some() && link.batch_may_leave() {
                    link.out.open(&mut self.pipelines.spares);
                    close(link, pool);
                }
                Proxy::note_held(link, &pool.servers[link.server as usize]);
                let bytes = link.measure();
                self.pipelines.memory.change(&mut link.counted, bytes);
                // Messages that could not be sent yet have a deadline as well, counted from when
                // they were queued. Most often a timer is already set before it.
                let queue_end = self.turn_since.after(pool.plan.timeouts.queue);
                if link.armed.is_none_or(|armed| armed > queue_end) {
                    self.arm_link(id);
                }
            }
        }
    }

    pub(super) fn close_own(&mut self, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        if let Some(batch) = link.unmerged_batch.take() {
            launch(link, batch, &mut self.pipelines.pools[link.pool as usize]);
        }
    }

    /// Keeps a batch whose reply is complete for reuse.
    pub(super) fn recycle(&mut self, batch: Box<Batch>) {
        // A batch that held values may be large.
        let is_small = batch.text.capacity() <= 2 * limits::BATCH_BYTES_MAX;
        if is_small && self.spare_batches.len() < limits::BATCHES_MAX {
            self.spare_batches.push(batch);
        }
    }

    pub(crate) fn mark_dirty(&mut self, id: ConnId) {
        let link = self.links.find_mut(id).expect("the caller found it");
        if !link.dirty {
            link.dirty = true;
            self.dirty_links.push(id);
        }
    }

    /// Returns the next link that has something to send and can send it.
    pub(crate) fn next_dirty_link(&mut self) -> Option<ConnId> {
        while let Some(id) = self.dirty_links.pop() {
            if let Some(link) = self.links.find_mut(id) {
                link.dirty = false;
                if self.may_write(id) {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Whether sending the batch again would change nothing.
    pub(super) fn is_idempotent(batch: &Batch) -> bool {
        batch.idempotent || bug!(ResendTouch)
    }
}

impl crate::pipelines::Pipelines {
    /// Whether the client of a request has a get in a link's open batch.
    fn shares_batch(&self, link: &Link, pending: RequestId) -> bool {
        let Some(batch) = link.batch.as_ref().filter(|_| !bug!(MergeAcrossOwnWrite)) else {
            return false;
        };
        let client = self.requests[pending].client;
        self.clients.find(client).is_some_and(|client| client.batch_turn >= batch.turn)
            && batch.entries.iter().any(|entry| self.requests[entry.pending].client == client)
    }
}

/// Queues the open batch of a link, if it has one.
pub(super) fn close(link: &mut Link, pool: &mut crate::pool::Pool) {
    if let Some(batch) = link.batch.take() {
        launch(link, batch, pool);
    }
}

fn launch(link: &mut Link, batch: Box<Batch>, pool: &mut crate::pool::Pool) {
    let counters = &mut pool.servers[link.server as usize].counters;
    counters.add(ServerCounter::Messages, 1);
    let first = batch.entries[0].pending;
    if batch.entries.iter().any(|entry| entry.pending != first) {
        counters.add(ServerCounter::Merged, batch.entries.len() as u64);
    }
    link.launch_batch(batch, pool.upstream);
}
