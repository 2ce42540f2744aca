//! Clients, their pending requests and the memory account; answers are assembled and released here.
//!
//! A request's parts are settled in any order; the request then waits for its turn in its client's
//! pipeline. This file alone guarantees that a reply reaches only the client that owns the request,
//! once and in its order. `value.rs` holds a server's reply, `session.rs` the rest of a client's
//! life.

mod facts;
mod gather;
mod session;
mod stream;
mod value;

use std::collections::VecDeque;

use metrics::{Counters, PoolCounter, WorkerCounter, WorkerMetrics};
use proto::{Answer, Ask, Asked, Quiet, Refusal, Request};

use crate::batch::Entry;
use crate::buffer::{Outbox, Spares};
use crate::client::Client;
use crate::fault::Fault;
use crate::id::{ConnId, Side, Slab};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::request::{Kind, NONE, PendingRequests, RequestId, State, UNTIMED};
use crate::{Action, Time};

pub(crate) use facts::{PoolFacts, VERSION};
pub(crate) use value::Value;

/// Clients, their requests, and the orders to the driver for them.
pub(crate) struct Pipelines {
    pub(crate) pools: Vec<Pool>,
    pub(crate) clients: Slab<Client>,
    pub(crate) requests: PendingRequests,
    pub(crate) spares: Spares,
    pub(crate) memory: Memory,
    pub(crate) limits: Limits,
    pub(crate) actions: VecDeque<Action>,
    /// The metrics of this worker.
    pub(crate) metrics: WorkerMetrics,
    /// This worker's own counters.
    pub(crate) worker: Counters<WorkerCounter>,
    pub(crate) started: Time,
    /// The time, as the driver last gave it.
    pub(crate) now: Time,
    dirty: Vec<ConnId>,
    /// Paused clients that may go on, each once.
    resumable: Vec<ConnId>,
}

impl Pipelines {
    pub(crate) fn new(
        pools: Vec<Pool>,
        memory_max: usize,
        limits: Limits,
        metrics: WorkerMetrics,
        now: Time,
    ) -> Pipelines {
        Pipelines {
            pools,
            clients: Slab::new(Side::Client),
            requests: PendingRequests::default(),
            spares: Spares::default(),
            memory: Memory { used: 0, max: memory_max },
            limits,
            actions: VecDeque::new(),
            metrics,
            worker: metrics.counters(0),
            started: now,
            now,
            dirty: Vec::new(),
            resumable: Vec::new(),
        }
    }

    pub(crate) fn client_ids(&self) -> Vec<ConnId> {
        self.clients.iter().map(|(id, _)| id).collect()
    }

    /// Adds a client's request to the end of its pipeline.
    pub(crate) fn enqueue(&mut self, id: ConnId, request: &Request, head: &[u8]) -> RequestId {
        let client = self.clients.find_mut(id).expect("requests are read from living clients only");
        let owner = (id, client.protocol);
        let pending =
            self.requests.alloc(owner, client.pool, (request, head), self.now, &mut self.spares);
        if !self.requests[pending].info.head.is_empty() {
            let bytes = self.requests[pending].measure();
            client.request_bytes += bytes;
            self.memory.change(&mut self.requests[pending].counted, bytes);
        }
        if request.quiet == Quiet::Silent {
            client.silent_count += 1;
            return pending;
        }
        #[cfg(seeded_bugs)]
        self.requests.lose_opaque(pending, client.tail);
        client.loud_count += u32::from(request.quiet == Quiet::Loud);
        match client.tail {
            NONE => client.head = pending,
            tail => self.requests[tail].next = pending,
        }
        client.tail = pending;
        client.depth += 1;
        if client.has_left && request.quiet == Quiet::Loud {
            self.cancel(id);
        }
        pending
    }

    /// Answers a request without a server. The answer still waits for its turn.
    pub(crate) fn answer(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        answer: &Answer<'_>,
    ) {
        self.answer_all(id, request, head, std::slice::from_ref(answer));
    }

    /// As `answer`, for bytes that the protocol has written already.
    pub(crate) fn answer_encoded(&mut self, id: ConnId, request: &Request, words: &[u8]) {
        let client = self.clients.find_mut(id).expect("requests are read from living clients only");
        if client.head == NONE {
            client.out.open(&mut self.spares);
            client.out.copy(words);
            return self.update_client(id);
        }
        let pending = self.enqueue(id, request, b"");
        self.requests[pending].since = UNTIMED;
        self.requests[pending].reply.copy(words);
        self.account_request(pending);
        self.complete(pending);
    }

    /// As `answer`, for an answer of several parts.
    pub(crate) fn answer_all(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        answers: &[Answer<'_>],
    ) {
        if request.quiet == Quiet::Silent {
            return;
        }
        let client = self.clients.find_mut(id).expect("requests are read from living clients only");
        let protocol = client.protocol;
        let (command, quiet) = (request.command, request.quiet);
        let asked = Asked { command, quiet, ask: Ask::default(), head, at: 0, next: None };
        if client.head == NONE || bug!(EarlyBarrier) && answers == [Answer::Barrier] {
            client.out.open(&mut self.spares);
            answers.iter().for_each(|answer| protocol.answer(&asked, answer, client.out.copied()));
            self.update_client(id);
        } else {
            let pending = self.enqueue(id, request, head);
            self.requests[pending].since = UNTIMED;
            let out = self.requests[pending].reply.copied();
            answers.iter().for_each(|answer| protocol.answer(&asked, answer, out));
            self.account_request(pending);
            self.complete(pending);
        }
    }

    /// Sends an answer that no request asked for, after the answers to all requests.
    pub(crate) fn send_unrequested(&mut self, id: ConnId, answer: &Answer<'_>) {
        self.answer(id, &Request::placeholder(), b"", answer);
    }

    /// Answers a request when all earlier requests of its client are settled. Those in the pipeline
    /// are, when its turn comes. For those outside of it, the client is not read further.
    pub(crate) fn barrier(&mut self, id: ConnId, request: &Request, head: &[u8]) {
        let client = self.clients.find(id).expect("requests are read from living clients only");
        if client.silent_count == 0 || bug!(EarlyBarrier) {
            return self.answer(id, request, head, &Answer::Barrier);
        }
        let request_id = self.enqueue(id, request, head);
        let pending = &mut self.requests[request_id];
        (pending.since, pending.left) = (UNTIMED, 1);
        let asked = Asked { head, ..pending.info.asked() };
        pending.info.protocol.answer(&asked, &Answer::Barrier, pending.reply.copied());
        self.account_request(request_id);
        self.clients.find_mut(id).expect("it has just asked").barrier = request_id;
        self.pause_until_idle(id);
    }

    /// Records the value of a key of a read.
    pub(crate) fn hit(&mut self, server: u32, entry: Entry, value: Value<'_>) {
        let pending = &mut self.requests[entry.pending];
        let pool_index = pending.pool;
        let Some(client) = self.clients.find_mut(pending.client) else {
            return self.part_done(entry.pending);
        };
        if !value.is_begun() && !self.memory.has_room(value.len()) {
            return self.fail_key((entry.pending, entry.slot), Some(server), Fault::OutOfMemory);
        }
        let pool = &mut self.pools[pool_index as usize];
        pool.counters.add(PoolCounter::Hits, 1);
        if !pending.slots.is_empty() {
            let bytes = match value {
                Value::Ready(source) if pending.is_small(source.bytes.len()) => {
                    pending.keep_small(entry.slot, source.bytes)
                }
                Value::ToRender(item, source) if pending.is_small(source.bytes.len()) => {
                    pending.keep_rendered(entry.slot, item, source.bytes)
                }
                large => {
                    let mut bytes = Outbox::default();
                    large.store((&pending.info, entry.slot), &mut bytes);
                    pending.keep_large(entry.slot, bytes)
                }
            };
            pending.counted += bytes;
            client.request_bytes += bytes;
            self.memory.used += bytes;
        } else if client.head == entry.pending || bug!(Overtake) {
            client.out.open(&mut self.spares);
            client.note_answer_len(value.len());
            value.write(&pending.info, &mut client.out);
            pending.info.answer(&Answer::End, client.out.copied());
        } else {
            value.store((&pending.info, 0), &mut pending.reply);
            pending.info.answer(&Answer::End, pending.reply.copied());
            self.account_request(entry.pending);
        }
        self.part_done(entry.pending);
    }

    /// Records that a key of a read has no value.
    pub(crate) fn miss(&mut self, entry: Entry) {
        let pending = &mut self.requests[entry.pending];
        self.pools[pending.pool as usize].counters.add(PoolCounter::Misses, 1);
        if pending.slots.is_empty() {
            pending.info.answer(&Answer::Miss, pending.reply.copied());
            self.account_request(entry.pending);
        }
        self.part_done(entry.pending);
    }

    /// Answers a request with the server's own item; of a broadcast's, the last good one stays. A
    /// line is kept even above the memory limit: the client of a change must learn the outcome.
    pub(crate) fn answer_with_reply(
        &mut self,
        id: RequestId,
        server: u32,
        value: Value<'_>,
        has_body: bool,
    ) {
        if has_body && !value.is_begun() && !self.memory.has_room(value.len()) {
            return self.fail_part(
                (id, 0),
                Some(server),
                Fault::OutOfMemory,
                self.requests[id].writes,
            );
        }
        let pending = &mut self.requests[id];
        pending.reply.clear();
        let next =
            self.clients.find_mut(pending.client).filter(|one| one.head == id && pending.left == 1);
        if let Some(client) = next.filter(|_| pending.error.is_empty()) {
            // Nearly always, the answer need not be kept.
            client.out.open(&mut self.spares);
            client.note_answer_len(value.len());
            value.write(&pending.info, &mut client.out);
        } else {
            value.store((&pending.info, 0), &mut pending.reply);
            self.account_request(id);
        }
        self.part_done(id);
    }

    /// Records that a key of a read met a fault.
    pub(crate) fn fail_key(&mut self, part: (RequestId, u32), server: Option<u32>, fault: Fault) {
        self.fail_part(part, server, fault, false);
    }

    /// Records that a request, or one part of it, met a fault. `sent` says that it was an update
    /// that may have been executed.
    pub(crate) fn fail_part(
        &mut self,
        (id, slot): (RequestId, u32),
        server: Option<u32>,
        fault: Fault,
        sent: bool,
    ) {
        let pending = &mut self.requests[id];
        let pool = &mut self.pools[pending.pool as usize];
        pool.counters.add(PoolCounter::Failed, 1);
        let row = fault.row();
        if let (Some(server), Some(counter)) = (server, row.counter)
            && fault_is_counted_per_request(fault)
        {
            pool.servers[server as usize].counters.add(counter, 1);
        }
        let words = if sent { row.words_sent } else { row.words };
        let label = server.map_or(&pool.plan.name, |at| &pool.servers[at as usize].plan.label);
        if pending.info.gathers {
            let kind = if sent { Kind::Uncertain } else { Kind::Fault };
            return self.keep_error((id, slot), server, kind, words.as_bytes());
        }
        let text = format!("{label}: {words}");
        let answer = if sent { Answer::Uncertain(&text) } else { Answer::Failed(&text) };
        pending.fail(slot, &answer);
        self.settle_error(id);
    }

    /// Refuses a request that is enqueued already.
    pub(crate) fn refuse(&mut self, id: RequestId, refusal: Refusal) {
        self.requests[id].fail(0, &Answer::Refused(refusal));
        self.settle_error(id);
    }

    pub(crate) fn settle_error(&mut self, id: RequestId) {
        let pending = &mut self.requests[id];
        // One error takes the place of the whole answer, except in a read of several keys.
        pending.reply.clear();
        self.account_request(id);
        self.part_done(id);
    }

    /// Settles one part of a request; the last one completes it.
    pub(crate) fn part_done(&mut self, id: RequestId) {
        let pending = &mut self.requests[id];
        assert!(pending.left > 0, "no more parts are settled than were asked");
        pending.left -= 1;
        if pending.left == 0 {
            self.complete(id);
        }
    }

    fn complete(&mut self, id: RequestId) {
        self.requests.set_done(id);
        let pending = &mut self.requests[id];
        let (owner, silent) = (pending.client, pending.info.quiet == Quiet::Silent);
        if !pending.error.is_empty() && pending.slots.is_empty() {
            pending.reply.clear();
            self.account_request(id);
        }
        if bug!(LeakRequest) && self.clients.find(owner).is_none() {
            return;
        }
        let Some(client) = self.clients.find_mut(owner) else { return self.free(id) };
        if silent {
            if bug!(AnswerNoreply) {
                client.out.append(&mut self.requests[id].reply);
                self.memory.change(&mut self.requests[id].counted, 0);
            }
            client.silent_count -= 1;
            let over = client.silent_count == 0;
            let barrier = if over { std::mem::replace(&mut client.barrier, NONE) } else { NONE };
            let pending = &self.requests[id];
            self.pools[pending.pool as usize].record(pending, self.now);
            self.free(id);
            if barrier != NONE {
                self.part_done(barrier);
            }
            // That may have been the last thing the client waited for.
            if self.clients.find(owner).is_some() {
                self.update_client(owner);
            }
        } else if client.head == id {
            self.release(owner);
        }
    }

    /// Moves the answers at the head of a client's pipeline to its output.
    fn release(&mut self, id: ConnId) {
        let client = self.clients.find_mut(id).expect("the caller found it");
        let pool = &mut self.pools[client.pool as usize];
        client.out.open(&mut self.spares);
        #[cfg(seeded_bugs)]
        self.requests.swap_replies(client.head);
        let mut before = client.out.len();
        while client.head != NONE && self.requests[client.head].state == State::Done {
            let pending = client.head;
            assert_eq!(self.requests[pending].client, id, "a reply goes to its owner only");
            pool.record(&self.requests[pending], self.now);
            match self.requests[pending].info.gathers {
                false => self.requests[pending].emit(pool.plan.partial, &mut client.out),
                true => {
                    let facts = (self.metrics, self.now.since(self.started));
                    gather::gather(&mut self.requests[pending], pool, facts, &mut client.out);
                }
            }
            client.note_answer_len(client.out.len() - before);
            before = client.out.len();
            client.head = self.requests[pending].next;
            client.depth -= 1;
            client.loud_count -= u32::from(self.requests[pending].info.quiet == Quiet::Loud);
            client.request_bytes -= self.requests[pending].counted;
            self.memory.change(&mut self.requests[pending].counted, 0);
            self.requests.free(pending, &mut self.spares);
        }
        if client.head == NONE {
            client.tail = NONE;
        }
        self.update_client(id);
    }

    fn free(&mut self, id: RequestId) {
        self.count_bytes(id, 0);
        self.requests.free(id, &mut self.spares);
    }

    pub(crate) fn account_request(&mut self, id: RequestId) {
        let bytes = self.requests[id].measure();
        self.count_bytes(id, bytes);
    }

    /// Reports the bytes that a request holds to the memory account and to its client's.
    fn count_bytes(&mut self, id: RequestId, bytes: usize) {
        let pending = &mut self.requests[id];
        if let Some(client) = self.clients.find_mut(pending.client) {
            client.request_bytes = client.request_bytes + bytes - pending.counted;
        }
        self.memory.change(&mut pending.counted, bytes);
    }
}

/// Faults of a link are counted once for the link, the others for each request.
fn fault_is_counted_per_request(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::QueueFull | Fault::QueueTimeout | Fault::Held | Fault::Down | Fault::OutOfMemory
    )
}
