//! Clients, their pending requests and the memory account; answers are assembled and released here.
//!
//! A request's parts are settled in any order; the request then waits for its turn in its client's
//! pipeline. This file alone guarantees that a reply reaches only the client that owns the request,
//! once and in its order. `value.rs` holds a server's reply, `session.rs` the rest of a client's
//! life.

mod gather;
mod ours;
mod session;
mod stream;
mod value;

use std::collections::VecDeque;

use metrics::{Counters, Pool as Counter, Sheet, Worker};
use proto::{Answer, Ask, Asked, Quiet, Refusal, Request};

use crate::batch::Entry;
use crate::buffer::{Outbox, Spares};
use crate::client::Client;
use crate::fault::Fault;
use crate::id::{ConnId, Side, Slab};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::request::{Kind, NONE, RowId, Rows, State, UNTIMED};
use crate::{Action, Time};

pub(crate) use ours::{VERSION, View};
pub(crate) use value::Value;

/// Clients, their requests, and the orders to the driver for them.
pub(crate) struct Pipelines {
    pub(crate) pools: Vec<Pool>,
    pub(crate) clients: Slab<Client>,
    pub(crate) rows: Rows,
    pub(crate) spares: Spares,
    pub(crate) memory: Memory,
    pub(crate) limits: Limits,
    pub(crate) actions: VecDeque<Action>,
    /// The metrics of this worker.
    pub(crate) sheet: Sheet,
    /// This worker's own counters.
    pub(crate) worker: Counters<Worker>,
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
        sheet: Sheet,
        now: Time,
    ) -> Pipelines {
        Pipelines {
            pools,
            clients: Slab::new(Side::Client),
            rows: Rows::default(),
            spares: Spares::default(),
            memory: Memory { held: 0, max: memory_max },
            limits,
            actions: VecDeque::new(),
            sheet,
            worker: sheet.counters(0),
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
    pub(crate) fn enqueue(&mut self, id: ConnId, request: &Request, head: &[u8]) -> RowId {
        let client = self.clients.find_mut(id).expect("requests are read from living clients only");
        let owner = (id, client.protocol);
        let row = self.rows.alloc(owner, client.pool, (request, head), self.now, &mut self.spares);
        if !self.rows[row].question.head.is_empty() {
            let held = self.rows[row].measure();
            client.rows_held += held;
            self.memory.change(&mut self.rows[row].held, held);
        }
        if request.quiet == Quiet::Silent {
            client.silent += 1;
            return row;
        }
        #[cfg(seeded_bugs)]
        self.rows.lose_opaque(row, client.tail);
        client.loud += u32::from(request.quiet == Quiet::Loud);
        match client.tail {
            NONE => client.head = row,
            tail => self.rows[tail].next = row,
        }
        client.tail = row;
        client.depth += 1;
        if client.has_left && request.quiet == Quiet::Loud {
            self.abandon(id);
        }
        row
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
    pub(crate) fn tell(&mut self, id: ConnId, request: &Request, words: &[u8]) {
        let client = self.clients.find_mut(id).expect("requests are read from living clients only");
        if client.head == NONE {
            client.out.open(&mut self.spares);
            client.out.copy(words);
            return self.spoke(id);
        }
        let row = self.enqueue(id, request, b"");
        self.rows[row].since = UNTIMED;
        self.rows[row].reply.copy(words);
        self.account_row(row);
        self.complete(row);
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
            self.spoke(id);
        } else {
            let row = self.enqueue(id, request, head);
            self.rows[row].since = UNTIMED;
            let out = self.rows[row].reply.copied();
            answers.iter().for_each(|answer| protocol.answer(&asked, answer, out));
            self.account_row(row);
            self.complete(row);
        }
    }

    /// Sends an answer that no request asked for, after the answers to all requests.
    pub(crate) fn say(&mut self, id: ConnId, answer: &Answer<'_>) {
        self.answer(id, &Request::nobody(), b"", answer);
    }

    /// Answers a request when all earlier requests of its client are settled. Those in the pipeline
    /// are, when its turn comes. For those outside of it, the client is not read further.
    pub(crate) fn barrier(&mut self, id: ConnId, request: &Request, head: &[u8]) {
        let client = self.clients.find(id).expect("requests are read from living clients only");
        if client.silent == 0 || bug!(EarlyBarrier) {
            return self.answer(id, request, head, &Answer::Barrier);
        }
        let row = self.enqueue(id, request, head);
        let entry = &mut self.rows[row];
        (entry.since, entry.left) = (UNTIMED, 1);
        let asked = Asked { head, ..entry.question.asked() };
        entry.question.protocol.answer(&asked, &Answer::Barrier, entry.reply.copied());
        self.account_row(row);
        self.clients.find_mut(id).expect("it has just asked").barrier = row;
        self.hold(id);
    }

    /// Records the value of a key of a read.
    pub(crate) fn hit(&mut self, server: u32, entry: Entry, value: Value<'_>) {
        let row = &mut self.rows[entry.row];
        let pool = row.pool;
        let Some(client) = self.clients.find_mut(row.client) else {
            return self.part_done(entry.row);
        };
        if !value.is_begun() && !self.memory.has_room(value.len()) {
            return self.fail_key((entry.row, entry.slot), Some(server), Fault::OutOfMemory);
        }
        let plan = &mut self.pools[pool as usize];
        plan.counters.add(Counter::Hits, 1);
        if !row.slots.is_empty() {
            let held = match value {
                Value::Flat(source) if row.is_small(source.bytes.len()) => {
                    row.keep_small(entry.slot, source.bytes)
                }
                Value::Foreign(item, source) if row.is_small(source.bytes.len()) => {
                    row.keep_translated(entry.slot, item, source.bytes)
                }
                large => {
                    let mut held = Outbox::default();
                    large.store((&row.question, entry.slot), &mut held);
                    row.keep_large(entry.slot, held)
                }
            };
            row.held += held;
            client.rows_held += held;
            self.memory.held += held;
        } else if client.head == entry.row || bug!(Overtake) {
            client.out.open(&mut self.spares);
            client.learn(value.len());
            value.write(&row.question, &mut client.out);
            row.question.answer(&Answer::End, client.out.copied());
        } else {
            value.store((&row.question, 0), &mut row.reply);
            row.question.answer(&Answer::End, row.reply.copied());
            self.account_row(entry.row);
        }
        self.part_done(entry.row);
    }

    /// Records that a key of a read has no value.
    pub(crate) fn miss(&mut self, entry: Entry) {
        let row = &mut self.rows[entry.row];
        self.pools[row.pool as usize].counters.add(Counter::Misses, 1);
        if row.slots.is_empty() {
            row.question.answer(&Answer::Miss, row.reply.copied());
            self.account_row(entry.row);
        }
        self.part_done(entry.row);
    }

    /// Answers a request with the server's own item; of a broadcast's, the last good one stays. A
    /// line is kept even above the memory limit: the client of a change must learn the outcome.
    pub(crate) fn status(&mut self, id: RowId, server: u32, value: Value<'_>, has_body: bool) {
        if has_body && !value.is_begun() && !self.memory.has_room(value.len()) {
            return self.fail_part((id, 0), Some(server), Fault::OutOfMemory, self.rows[id].writes);
        }
        let row = &mut self.rows[id];
        row.reply.clear();
        let next = self.clients.find_mut(row.client).filter(|one| one.head == id && row.left == 1);
        if let Some(client) = next.filter(|_| row.error.is_empty()) {
            // Nearly always, the answer need not be kept.
            client.out.open(&mut self.spares);
            client.learn(value.len());
            value.write(&row.question, &mut client.out);
        } else {
            value.store((&row.question, 0), &mut row.reply);
            self.account_row(id);
        }
        self.part_done(id);
    }

    /// Records that a key of a read met a fault.
    pub(crate) fn fail_key(&mut self, part: (RowId, u32), server: Option<u32>, fault: Fault) {
        self.fail_part(part, server, fault, false);
    }

    /// Records that a request, or one part of it, met a fault. `sent` says that it was an update
    /// that may have been executed.
    pub(crate) fn fail_part(
        &mut self,
        (id, slot): (RowId, u32),
        server: Option<u32>,
        fault: Fault,
        sent: bool,
    ) {
        let row = &mut self.rows[id];
        let pool = &mut self.pools[row.pool as usize];
        pool.counters.add(Counter::Failed, 1);
        let table = fault.row();
        if let (Some(server), Some(counter)) = (server, table.counter)
            && fault_is_counted_per_request(fault)
        {
            pool.servers[server as usize].counters.add(counter, 1);
        }
        let words = if sent { table.words_sent } else { table.words };
        let label = server.map_or(&pool.plan.name, |at| &pool.servers[at as usize].plan.label);
        if row.question.gathers {
            let kind = if sent { Kind::Uncertain } else { Kind::Fault };
            return self.gathered_bad((id, slot), server, kind, words.as_bytes());
        }
        let text = format!("{label}: {words}");
        let answer = if sent { Answer::Uncertain(&text) } else { Answer::Failed(&text) };
        row.fail(slot, &answer);
        self.settle_error(id);
    }

    /// Refuses a request that is enqueued already.
    pub(crate) fn refuse(&mut self, id: RowId, refusal: Refusal) {
        self.rows[id].fail(0, &Answer::Refused(refusal));
        self.settle_error(id);
    }

    pub(crate) fn settle_error(&mut self, id: RowId) {
        let row = &mut self.rows[id];
        // One error takes the place of the whole answer, except in a read of several keys.
        row.reply.clear();
        self.account_row(id);
        self.part_done(id);
    }

    /// Settles one part of a request; the last one completes it.
    pub(crate) fn part_done(&mut self, id: RowId) {
        let row = &mut self.rows[id];
        assert!(row.left > 0, "no more parts are settled than were asked");
        row.left -= 1;
        if row.left == 0 {
            self.complete(id);
        }
    }

    fn complete(&mut self, id: RowId) {
        self.rows.set_done(id);
        let row = &mut self.rows[id];
        let (owner, silent) = (row.client, row.question.quiet == Quiet::Silent);
        if !row.error.is_empty() && row.slots.is_empty() {
            row.reply.clear();
            self.account_row(id);
        }
        if bug!(LeakRow) && self.clients.find(owner).is_none() {
            return;
        }
        let Some(client) = self.clients.find_mut(owner) else { return self.free(id) };
        if silent {
            if bug!(AnswerNoreply) {
                client.out.append(&mut self.rows[id].reply);
                self.memory.change(&mut self.rows[id].held, 0);
            }
            client.silent -= 1;
            let over = client.silent == 0;
            let barrier = if over { std::mem::replace(&mut client.barrier, NONE) } else { NONE };
            let row = &self.rows[id];
            self.pools[row.pool as usize].record(row, self.now);
            self.free(id);
            if barrier != NONE {
                self.part_done(barrier);
            }
            // That may have been the last thing the client waited for.
            if self.clients.find(owner).is_some() {
                self.spoke(owner);
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
        self.rows.swap_replies(client.head);
        let mut before = client.out.len();
        while client.head != NONE && self.rows[client.head].state == State::Done {
            let row = client.head;
            assert_eq!(self.rows[row].client, id, "a reply goes to its owner only");
            pool.record(&self.rows[row], self.now);
            match self.rows[row].question.gathers {
                false => self.rows[row].emit(pool.plan.partial, &mut client.out),
                true => {
                    let ours = (self.sheet, self.now.since(self.started));
                    gather::gather(&mut self.rows[row], pool, ours, &mut client.out);
                }
            }
            client.learn(client.out.len() - before);
            before = client.out.len();
            client.head = self.rows[row].next;
            client.depth -= 1;
            client.loud -= u32::from(self.rows[row].question.quiet == Quiet::Loud);
            client.rows_held -= self.rows[row].held;
            self.memory.change(&mut self.rows[row].held, 0);
            self.rows.free(row, &mut self.spares);
        }
        if client.head == NONE {
            client.tail = NONE;
        }
        self.spoke(id);
    }

    fn free(&mut self, id: RowId) {
        self.row_holds(id, 0);
        self.rows.free(id, &mut self.spares);
    }

    pub(crate) fn account_row(&mut self, id: RowId) {
        let held = self.rows[id].measure();
        self.row_holds(id, held);
    }

    /// Reports the bytes that a request holds to the memory account and to its client's.
    fn row_holds(&mut self, id: RowId, held: usize) {
        let row = &mut self.rows[id];
        if let Some(client) = self.clients.find_mut(row.client) {
            client.rows_held = client.rows_held + held - row.held;
        }
        self.memory.change(&mut row.held, held);
    }
}

/// Faults of a link are counted once for the link, the others for each request.
fn fault_is_counted_per_request(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::QueueFull | Fault::QueueTimeout | Fault::Held | Fault::Down | Fault::OutOfMemory
    )
}
