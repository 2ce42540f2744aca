//! Parts of requests are settled, and answers released.
//!
//! A request's parts are settled in any order; the request then waits for its turn in its client's
//! pipeline. This file alone guarantees that a reply reaches only the client that owns the request,
//! once and in its order.

use metrics::{Latency, PoolCounter};
use proto::{Answer, Quiet, Refusal};

use super::request::{Kind, PendingRequest, State, UNTIMED};
use super::session::Client;
use super::unwritten::{self, is_kept};
use super::value::Value;
use super::{Clients, gather, inflight};
use crate::Time;
use crate::base::ServerAt;
use crate::base::access::Results;
use crate::base::buffer::Outbox;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{NONE, Part, RequestId};
use crate::base::pool::Pool;
use crate::base::slow::ReplyOf;
use crate::base::tenants::{NOBODY, Tenants, count};
use crate::base::{Base, limits};

impl Clients {
    /// Records the value of a key of a read.
    // Measured: a call costs as much as a quarter of what is done.
    #[inline(always)]
    pub(crate) fn hit(&mut self, base: &mut Base, server: u32, part: Part, value: Value<'_>) {
        let pending = &mut self.requests[part.request];
        let Some(client) = self.table.find_mut(pending.client) else {
            return self.settle_part(base, part.request);
        };
        let len = value.len();
        if !value.is_begun() && !base.memory.has_room(len) {
            return self.fail(base, part, Some(server), Fault::OutOfMemory, false);
        }
        base.pools[pending.pool as usize].counters.add(PoolCounter::Hits, 1);
        pending.access.results.add(Results::HIT);
        if !pending.slots.is_empty() {
            note_size(base, client, pending, len);
            let bytes = match value {
                Value::Ready(source) if pending.is_small(len) => {
                    pending.keep_small(part.slot, source.bytes)
                }
                Value::ToRender(item, source) if pending.is_small(len) => {
                    pending.keep_rendered(part.slot, item, source.bytes)
                }
                large => {
                    let mut bytes = Outbox::default();
                    large.store((&pending.info, part.slot), &mut bytes);
                    pending.keep_large(part.slot, bytes)
                }
            };
            pending.counted += bytes;
            pending.gathered += bytes;
            client.pipeline.bytes += bytes;
            client.pipeline.gathered += bytes;
            base.memory.used += bytes;
            self.emit_early(base, part.request);
        } else if client.pipeline.head == part.request || bug!(Overtake) {
            client.out.open(&mut base.spares);
            note_size(base, client, pending, len);
            value.write(&pending.info, &mut client.out);
            pending.info.answer(&Answer::End, client.out.copied());
        } else {
            value.store((&pending.info, 0), &mut pending.reply);
            pending.info.answer(&Answer::End, pending.reply.copied());
            self.account_request(base, part.request);
        }
        self.settle_part(base, part.request);
    }

    /// Moves what has come of an answer to its client, if that waits for nothing before it and it
    /// is much. Where little memory is left, all is: less of it may be gathered.
    // Measured.
    #[inline(always)]
    fn emit_early(&mut self, base: &mut Base, id: RequestId) {
        let gathered = self.requests[id].gathered;
        if gathered >= limits::BACKLOG_MIN || gathered > 0 && base.memory.is_little() {
            self.emit_gathered(base, id);
        }
    }

    fn emit_gathered(&mut self, base: &mut Base, id: RequestId) {
        let pending = &mut self.requests[id];
        let owner = pending.client;
        let Some(client) = self.table.find_mut(owner) else { return };
        if client.pipeline.head != id || !pending.emits_early() {
            return;
        }
        client.out.open(&mut base.spares);
        pending.emit_ready(&mut client.out);
        self.account_request(base, id);
        self.update_client(base, owner);
    }

    /// Records that a key of a read has no value.
    pub(crate) fn miss(&mut self, base: &mut Base, part: Part) {
        let pending = &mut self.requests[part.request];
        base.pools[pending.pool as usize].counters.add(PoolCounter::Misses, 1);
        pending.access.results.add(Results::MISS);
        self.note_miss(base, part.request);
        let pending = &mut self.requests[part.request];
        if pending.slots.is_empty() {
            pending.info.answer(&Answer::Miss, pending.reply.copied());
            self.account_request(base, part.request);
        } else if pending.emits_early() {
            pending.miss(part.slot);
            self.emit_early(base, part.request);
        }
        self.settle_part(base, part.request);
    }

    /// Answers a request with a server's reply. A line is kept even above the memory limit: the
    /// client of an update must learn its outcome.
    // Measured.
    #[inline(always)]
    pub(crate) fn answer_with_reply(
        &mut self,
        base: &mut Base,
        part: Part,
        server: u32,
        value: Value<'_>,
        has_body: bool,
    ) {
        let id = part.request;
        let len = value.len();
        if has_body && !value.is_begun() && !base.memory.has_room(len) {
            return self.fail(base, part, Some(server), Fault::OutOfMemory, true);
        }
        let pending = &mut self.requests[id];
        if base.logs_access && !pending.writes && pending.key.len > 0 {
            let upstream = base.pools[pending.pool as usize].upstream;
            let is_null = value.bytes().is_some_and(|bytes| upstream.is_null(bytes));
            pending.access.results.add(if is_null { Results::MISS } else { Results::HIT });
        }
        pending.reply.clear();
        let client_at_turn = self
            .table
            .find_mut(pending.client)
            .filter(|one| one.pipeline.head == id && pending.parts_left == 1);
        if let Some(client) = client_at_turn.filter(|_| pending.error.is_empty()) {
            // Nearly always, the answer need not be kept.
            client.out.open(&mut base.spares);
            note_size(base, client, pending, len);
            value.write(&pending.info, &mut client.out);
        } else {
            value.store((&pending.info, 0), &mut pending.reply);
            self.account_request(base, id);
        }
        self.settle_part(base, id);
    }

    /// Records that a request, or one part of it, met a fault. `sent` says that it was sent, so
    /// that an update may have been executed.
    pub(crate) fn fail(
        &mut self,
        base: &mut Base,
        part: Part,
        server: Option<u32>,
        fault: Fault,
        sent: bool,
    ) {
        let Part { request: id, slot } = part;
        let own = self.own_words(base, id, server, fault);
        let pool = &base.pools[self.requests[id].pool as usize];
        // It would have been refused in these words.
        let busy = server.filter(|_| fault == Fault::Busy && !sent);
        let busy = busy.and_then(|at| pool.servers[at as usize].busy_line.clone());
        let pending = &mut self.requests[id];
        let pool = &mut base.pools[pending.pool as usize];
        pool.counters.add(PoolCounter::Failed, 1);
        pending.info.family = Latency::FAILED;
        pending.reply_of = ReplyOf::none_of(server);
        if sent {
            // The server has had it, at some time after it was whole.
            pending.moments.sent = pending.moments.whole;
        }
        let row = fault.row();
        if let (Some(server), Some(counter)) = (server, row.counter)
            && fault_is_counted_per_request(fault)
        {
            pool.servers[server as usize].counters.add(counter, 1);
        }
        let (client, is_uncertain) = (pending.client, sent && pending.writes);
        let words = match sent {
            _ if is_uncertain => row.words_sent,
            true => row.words,
            false => row.words_unsent,
        };
        let words = own.as_deref().unwrap_or(words);
        let label = server.map_or(&pool.plan.name, |at| &pool.servers[at as usize].plan.label);
        if pending.info.gathers {
            let (kind, words) = match &busy {
                Some(line) => (Kind::Error, &line[..]),
                None if is_uncertain => (Kind::Uncertain, words.as_bytes()),
                None => (Kind::Fault, words.as_bytes()),
            };
            self.keep_error(base, part, server, kind, words);
        } else {
            let text = format!("{label}: {words}");
            let answer = match &busy {
                Some(line) => Answer::Error(line),
                None if is_uncertain => Answer::Uncertain(&text),
                None => Answer::Failed(&text),
            };
            pending.fail(slot, &answer);
            self.note_unwatched(base, id);
            self.settle_error(base, id);
        }
        if self.end_select(client).is_some() && is_uncertain {
            // Its next request could be one for the wrong database.
            self.leave(base, client);
        }
    }

    /// Returns the words about a fault that say more than the table of faults can.
    #[cold]
    fn own_words(
        &self,
        base: &Base,
        id: RequestId,
        server: Option<u32>,
        fault: Fault,
    ) -> Option<String> {
        let pool = &base.pools[self.requests[id].pool as usize];
        match fault {
            Fault::Busy => {
                let at = ServerAt { pool: self.requests[id].pool, server: server? };
                let came = self.requests[id].since;
                base.busy(at).map(|with| base.busy_words(at, with, came))
            }
            Fault::TenantFull => {
                let plan = &base.tenants.find(self.requester_of(id)?.tenant)?.plan;
                let most = count(plan.private_links_max, "private link");
                Some(format!("tenant '{}' has its limit of {most}, not sent", plan.name))
            }
            Fault::Down => {
                let said = pool.servers[server? as usize].said_down.as_ref()?;
                Some(format!("{} ({said})", fault.row().words))
            }
            Fault::NoServer => Some(pool.no_server()),
            Fault::Refused | Fault::LoginRefused => {
                let said = pool.servers[server? as usize].said_of(fault)?;
                Some(match fault {
                    Fault::Refused => format!("takes no further connection: {said}; not sent"),
                    _ => format!("{}: {said}", fault.row().words),
                })
            }
            _ => None,
        }
    }

    /// Fails a part whose answer could not be kept, unless its client has gone.
    pub(crate) fn fail_unless_gone(&mut self, base: &mut Base, part: Part, server: Option<u32>) {
        match self.requester_of(part.request) {
            Some(_) => self.fail(base, part, server, Fault::OutOfMemory, true),
            None => self.settle_part(base, part.request),
        }
    }

    /// Refuses a request that is enqueued already.
    pub(crate) fn refuse(&mut self, base: &mut Base, id: RequestId, refusal: Refusal) {
        let pending = &mut self.requests[id];
        (pending.info.family, pending.reply_of) = (Latency::FAILED, ReplyOf::NONE);
        pending.fail(0, &Answer::Refused(refusal));
        self.settle_error(base, id);
    }

    /// Refuses a request, because these two of its keys belong to different servers.
    pub(crate) fn refuse_apart(
        &mut self,
        base: &mut Base,
        id: RequestId,
        keys: [Vec<u8>; 2],
        servers: [usize; 2],
    ) {
        let pending = &mut self.requests[id];
        let pool = &base.pools[pending.pool as usize];
        let [one, other] = &keys;
        let servers = servers.map(|at| pool.servers[at].plan.label.as_str());
        let apart = Answer::Apart { keys: [one, other], servers, tag: pool.plan.hash_tag };
        (pending.info.family, pending.reply_of) = (Latency::FAILED, ReplyOf::NONE);
        pending.info.answer(&apart, &mut pending.error);
        pool.counters.add(PoolCounter::Refused, 1);
        self.note_unwatched(base, id);
        self.settle_error(base, id);
    }

    pub(super) fn settle_error(&mut self, base: &mut Base, id: RequestId) {
        let pending = &mut self.requests[id];
        // One error takes the place of the whole answer, except in a read of several keys.
        pending.reply.clear();
        self.account_request(base, id);
        self.emit_early(base, id);
        self.settle_part(base, id);
    }

    /// Settles one part of a request; the last one completes it.
    pub(crate) fn settle_part(&mut self, base: &mut Base, id: RequestId) {
        let pending = &mut self.requests[id];
        assert!(pending.parts_left > 0, "no more parts are settled than were asked");
        pending.parts_left -= 1;
        if pending.parts_left == 0 {
            self.complete(base, id);
        }
    }

    pub(super) fn complete(&mut self, base: &mut Base, id: RequestId) {
        let pending = &mut self.requests[id];
        pending.set_done();
        pending.moments.sent = pending.moments.sent.min(base.reply.sent);
        // A fault has named its server, and other parts may be answered after it.
        if base.is_watched && pending.info.family != Latency::FAILED {
            pending.reply_of = base.reply;
        }
        pending.moments.settled = base.now;
        let (owner, silent) = (pending.client, pending.info.quiet == Quiet::Silent);
        if !pending.error.is_empty() && pending.slots.is_empty() {
            pending.reply.clear();
            self.account_request(base, id);
        }
        if bug!(LeakRequest) && self.table.find(owner).is_none() {
            return;
        }
        let Some(client) = self.table.find_mut(owner) else { return self.free(base, id) };
        if silent {
            if bug!(AnswerNoreply) {
                client.out.append(&mut self.requests[id].reply);
                base.memory.change(&mut self.requests[id].counted, 0);
            }
            client.pipeline.silent_count -= 1;
            let is_last = client.pipeline.silent_count == 0;
            let barrier =
                if is_last { std::mem::replace(&mut client.pipeline.barrier, NONE) } else { NONE };
            let pending = &mut self.requests[id];
            let pool = &mut base.pools[pending.pool as usize];
            let weight = record(pool, (&mut base.tenants, client.tenant), pending, base.now);
            let pool = &base.pools[pending.pool as usize];
            let is_kept = base.is_watched && is_kept(pool, client, pending, base.now);
            if weight > 0 || is_kept {
                let entry = unwritten::note(base, client, pending, (weight, is_kept));
                unwritten::finish(base, (owner, client), entry);
            }
            if client.tenant != NOBODY && (pending.inflight > 0 || pending.since == UNTIMED) {
                inflight::settle(&mut base.tenants, &mut base.timers, client, pending, base.now);
            }
            self.free(base, id);
            if barrier != NONE {
                self.settle_part(base, barrier);
            }
            // It may have been the last request that the client waited for.
            if self.table.find(owner).is_some() {
                self.update_client(base, owner);
            }
        } else if client.pipeline.head == id {
            self.release(base, owner);
        }
    }

    /// Moves the answers at the head of a client's pipeline to its output.
    fn release(&mut self, base: &mut Base, id: ConnId) {
        let client = self.table.find_mut(id).expect("the caller found it");
        let mut pool = &mut base.pools[client.pool as usize];
        #[cfg(seeded_bugs)]
        self.requests.swap_replies(client.pipeline.head);
        while client.pipeline.head != NONE {
            let head = client.pipeline.head;
            let pending = &mut self.requests[head];
            if pending.state != State::Done {
                break;
            }
            assert_eq!(pending.client, id, "a reply goes to its owner only");
            let weight = record(pool, (&mut base.tenants, client.tenant), pending, base.now);
            if pending.holds_answer() {
                client.out.open(&mut base.spares);
                let before = client.out.len();
                match pending.info.gathers {
                    false => pending.emit(pool.plan.partial, &mut client.out),
                    true => {
                        let facts = (base.metrics, base.now.since(base.started));
                        gather::gather(pending, pool, facts, &mut client.out);
                        let bytes = client.out.len() - before;
                        client.charge((bytes / limits::ANSWER_WORK_BYTES) as u32);
                    }
                }
                let len = client.out.len() - before;
                let is_whole = pending.slots.is_empty() || pending.info.gathers;
                if len > 0 && is_whole && pending.since != UNTIMED {
                    let len = len / pending.slots.len().max(1);
                    if !client.sizes.fits(pending.info.command, len) {
                        client.sizes.note(pending.info.command, len, &mut pool.sizes, base.now);
                    }
                }
            }
            let is_kept = base.is_watched && is_kept(pool, client, pending, base.now);
            if weight > 0 || is_kept {
                let entry = unwritten::note(base, client, pending, (weight, is_kept));
                match client.out.is_empty() || self.unwritten.is_full() {
                    // An answer of no bytes, or one that was streamed, has been written. When there
                    // are very many, the time until this one is written is left out.
                    true => unwritten::finish(base, (id, client), entry),
                    false => self.unwritten.push(&mut client.unwritten, entry),
                }
                pool = &mut base.pools[client.pool as usize];
            }
            client.note_answered(base.is_watched);
            if client.tenant != NOBODY && (pending.inflight > 0 || pending.since == UNTIMED) {
                inflight::settle(&mut base.tenants, &mut base.timers, client, pending, base.now);
            }
            client.pipeline.expected -= pending.expected;
            client.pipeline.head = pending.next;
            client.pipeline.depth -= 1;
            client.pipeline.loud_count -= u32::from(pending.info.quiet == Quiet::Loud);
            client.pipeline.bytes -= pending.counted;
            client.pipeline.gathered -= pending.gathered;
            base.memory.change(&mut pending.counted, 0);
            pending.clear(&mut base.spares);
            self.requests.give_back(head);
        }
        let head = client.pipeline.head;
        if head == NONE {
            client.pipeline.tail = NONE;
        } else {
            self.emit_early(base, head);
        }
        self.update_client(base, id);
    }

    pub(super) fn free(&mut self, base: &mut Base, id: RequestId) {
        self.count_bytes(base, id, (0, 0));
        self.requests.free(id, &mut base.spares);
    }

    pub(crate) fn account_request(&mut self, base: &mut Base, id: RequestId) {
        let bytes = self.requests[id].measure();
        self.count_bytes(base, id, bytes);
    }

    /// Reports the bytes that a request holds to the memory account and to its client's.
    fn count_bytes(&mut self, base: &mut Base, id: RequestId, (bytes, gathered): (usize, usize)) {
        let pending = &mut self.requests[id];
        if let Some(client) = self.table.find_mut(pending.client) {
            client.pipeline.bytes = client.pipeline.bytes + bytes - pending.counted;
            client.pipeline.gathered = client.pipeline.gathered + gathered - pending.gathered;
        }
        pending.gathered = gathered;
        base.memory.change(&mut pending.counted, bytes);
    }
}

/// Notes the length of an answer that goes to its client at once, or of a value in it.
// Measured.
#[inline(always)]
fn note_size(base: &mut Base, client: &mut Client, pending: &PendingRequest, len: usize) {
    if !client.sizes.fits(pending.info.command, len) {
        let sizes = &mut base.pools[pending.pool as usize].sizes;
        client.sizes.note(pending.info.command, len, sizes, base.now);
    }
}

/// Records the latency of a request that is answered. Returns how many requests it stands for, if
/// its phases are measured as well.
#[inline(always)]
fn record(
    pool: &mut Pool,
    (tenants, tenant): (&mut Tenants, u16),
    pending: &PendingRequest,
    now: Time,
) -> u32 {
    if pending.since != UNTIMED {
        let which = Latency::of_family(pending.info.family, pending.writes);
        let time = now.since(pending.since);
        match tenant {
            NOBODY => pool.latencies.record(which, time),
            at => {
                let what = (at, pending.expected);
                tenants.record((pool.plan.id, &pool.latencies), what, which, time);
            }
        }
        return pool.sampling.weigh();
    }
    0
}

/// Faults of a link are counted once for the link, the others for each request.
fn fault_is_counted_per_request(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::QueueFull
            | Fault::QueueTimeout
            | Fault::Held
            | Fault::Busy
            | Fault::Down
            | Fault::OutOfMemory
    )
}
