//! A client's transaction: what it has queued, until it is sent as one block or forgotten.
//!
//! ```text
//!   begin ──▶ queue, queue_answer … ──▶ take_transaction   sent to one server
//!                  │ refused              end_transaction    forgotten
//!                  └──▶ aborted: nothing is kept any more
//! ```

use proto::{Answer, Request, WorkId, block};

use super::{Clients, watch};
use crate::base::buffer::{Outbox, Source};
use crate::base::fault::kept_of_error;
use crate::base::id::ConnId;
use crate::base::part::{Effort, Incoming};
use crate::base::{Base, limits};

/// A transaction that has begun.
#[derive(Default)]
pub(super) struct Transaction {
    /// What goes to the server: the beginning of a block, and the requests.
    block: Outbox,
    /// The number of requests in it.
    requests: u32,
    /// The proxy's own answers, as `proto::block` writes them, and how many they are.
    answers: Vec<u8>,
    answered: u32,
    /// The server of the keys so far, and the first of them.
    server: Option<usize>,
    key: Vec<u8>,
    /// What it was checked by: the plan, and the routes of keys. If another is in force at
    /// EXEC, it is checked again.
    epoch: (u64, u64),
    writes: bool,
    effort: BlockEffort,
    /// The number of its requests that vary, and the first works among them, each once, in their
    /// order as numbers.
    vary: u32,
    works: Vec<WorkId>,
    /// The database in which its connection is at the end, if it selects any.
    database: Option<u32>,
    /// A request of it was refused, so nothing is executed.
    aborted: bool,
    /// The last error of its requests; if it is aborted, the one that did it.
    why: Vec<u8>,
    /// Bytes held, as reported to the memory account.
    pub(super) counted: usize,
}

impl Transaction {
    /// Returns how many requests are queued.
    pub(super) fn len(&self) -> u32 {
        self.requests + self.answered
    }
}

/// A transaction on its way that selects a database.
pub(crate) struct Select {
    pub(crate) link: ConnId,
    pub(crate) database: u32,
}

/// How long the requests of a block may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockEffort {
    #[default]
    Quick,
    /// As long as other blocks of the same works.
    Varies,
    Slow,
}

impl BlockEffort {
    fn of(effort: Effort) -> BlockEffort {
        match effort {
            // Inside a transaction nothing waits.
            Effort::Quick | Effort::Waits | Effort::Watches => BlockEffort::Quick,
            Effort::Slow | Effort::Known(_) => BlockEffort::Slow,
            Effort::Untried(_) | Effort::Unknown(_) | Effort::Timed(..) => BlockEffort::Varies,
        }
    }
}

/// A request that joins a transaction.
pub(crate) struct QueuedRequest<'a> {
    /// The server of its keys, and the first of them.
    pub(crate) server: Option<usize>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) effort: Effort,
    /// Its bytes behind the head.
    pub(crate) body: QueuedBody<'a>,
}

/// The bytes of a queued request behind its head.
pub(crate) enum QueuedBody<'a> {
    OnePiece(Source<'a>),
    Assembled(Outbox),
}

/// What is queued, as far as the end of the transaction depends on it.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) requests: u32,
    pub(crate) server: Option<usize>,
    pub(crate) epoch: (u64, u64),
    pub(crate) writes: bool,
    pub(crate) effort: BlockEffort,
    /// Its works that vary, if it has any.
    pub(crate) work: Option<WorkId>,
    pub(crate) database: Option<u32>,
    pub(crate) len: usize,
    pub(crate) aborted: bool,
}

impl Transaction {
    /// Returns the bytes that go to the server at its end.
    pub(super) fn block_len(&self) -> u64 {
        self.block.len() as u64
    }

    fn note_effort(&mut self, effort: Effort) {
        let of_block = BlockEffort::of(effort);
        self.effort = self.effort.max(of_block);
        if of_block != BlockEffort::Varies {
            return;
        }
        self.vary += 1;
        let has_room = self.works.len() < limits::TRANSACTION_WORKS_MAX;
        if let Some(work) = effort.work().filter(|_| has_room)
            && let Err(at) = self.works.binary_search(&work)
        {
            self.works.insert(at, work);
        }
    }

    /// Returns the id of all works that vary. Twice as many may take twice as long.
    fn work(&self) -> Option<WorkId> {
        let number = self.vary.checked_ilog2()?;
        let words = self.works.iter().map(|work| work.0).chain([number]);
        let words: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        Some(WorkId::of_text(&words))
    }

    fn bytes(&self) -> usize {
        self.block.len() + self.answers.len() + self.key.len()
    }

    /// Panics if its account is wrong; returns the bytes in it.
    pub(super) fn checked(&self) -> usize {
        assert_eq!(self.counted, self.bytes(), "the account of a transaction is exact");
        assert!(self.counted == 0 || !self.aborted, "an aborted transaction holds nothing");
        self.counted
    }
}

impl Clients {
    /// Begins a client's transaction.
    #[cold]
    pub(super) fn begin_transaction(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        head: &[u8],
    ) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.transaction = Some(Box::default());
        self.answer(base, id, request, head, &Answer::Ok);
    }

    pub(crate) fn is_in_transaction(&self, id: ConnId) -> bool {
        self.table.find(id).is_some_and(|client| client.transaction.is_some())
    }

    /// Returns what a client has queued.
    pub(crate) fn queued(&self, id: ConnId) -> Option<Queued> {
        let one = self.table.find(id)?.transaction.as_ref()?;
        let Transaction { requests, server, epoch, writes, effort, database, aborted, .. } = **one;
        let effort = match effort {
            BlockEffort::Quick if requests > limits::TRANSACTION_QUICK_MAX => BlockEffort::Varies,
            effort => effort,
        };
        let len = one.block.len();
        let work = one.work();
        Some(Queued { requests, server, epoch, writes, effort, work, database, len, aborted })
    }

    /// Returns the server of a transaction's keys, and the first of them.
    pub(crate) fn queued_key(&self, id: ConnId) -> Option<(usize, &[u8])> {
        let one = self.table.find(id)?.transaction.as_ref()?;
        Some((one.server?, &one.key))
    }

    /// Returns why a transaction has no room for so many bytes more, if it has none.
    pub(crate) fn no_room_to_queue(&self, id: ConnId, more: u64) -> Option<String> {
        let one = self.table.find(id)?.transaction.as_ref()?;
        let (most, bytes) = (limits::TRANSACTION_REQUESTS_MAX, limits::TRANSACTION_BYTES_MAX);
        if one.requests + one.answered >= most {
            return Some(format!("a transaction has at most {most} commands here"));
        }
        let fits = one.bytes() as u64 + more <= bytes as u64;
        (!fits).then(|| format!("a transaction has at most {bytes} bytes here"))
    }

    /// Adds a request to its client's transaction.
    pub(crate) fn queue(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        queued: QueuedRequest<'_>,
    ) {
        let Incoming { asks, request, head } = *incoming;
        let Some(client) = self.table.find_mut(asks.id) else { return };
        let Some(one) = &mut client.transaction else { return };
        let QueuedRequest { server, key, effort, body } = queued;
        if one.aborted {
            return;
        }
        let pool = &base.pools[asks.pool()];
        one.block.open(&mut base.spares);
        if one.requests == 0 {
            pool.upstream.open_block(one.block.copied());
            one.epoch = (base.plans, pool.rings);
        }
        if one.server.is_none() && server.is_some() {
            one.server = server;
            let key = key.unwrap_or_default();
            one.key.extend_from_slice(&key[..key.len().min(limits::TRANSACTION_KEY_MAX)]);
        }
        let ask = proto::Ask { command: request.command };
        asks.protocol.write_head(request, head, &base.keys, ask, one.block.copied());
        match body {
            QueuedBody::OnePiece(source) => one.block.keep(source),
            QueuedBody::Assembled(mut held) => {
                one.block.append(&mut held);
                held.close(&mut base.spares);
            }
        }
        one.requests += 1;
        one.writes |= request.class.is_update();
        one.note_effort(effort);
        let bytes = one.bytes();
        base.memory.change(&mut one.counted, bytes);
    }

    /// Notes that a client's transaction ends in this database.
    pub(crate) fn queue_select(&mut self, id: ConnId, database: u32) {
        if let Some(client) = self.table.find_mut(id)
            && let Some(one) = client.transaction.as_mut().filter(|one| !one.aborted)
        {
            // If its end is not known, that is told as of a change.
            (one.database, one.writes) = (Some(database), true);
        }
    }

    /// Notes that a transaction which selects this database has been sent on this link of its
    /// client.
    pub(crate) fn begin_select(&mut self, id: ConnId, link: ConnId, database: u32) {
        if let Some(client) = self.table.find_mut(id) {
            client.selects = Some(Box::new(Select { link, database }));
        }
    }

    /// Notes that such a transaction has moved from its link to another, unsent.
    #[cold]
    pub(crate) fn follow_select(&mut self, id: ConnId, dead: ConnId, link: ConnId) {
        let selects = self.table.find_mut(id).and_then(|client| client.selects.as_deref_mut());
        if let Some(one) = selects.filter(|one| one.link == dead) {
            one.link = link;
        }
    }

    /// Returns the transaction of a client that selects a database.
    pub(crate) fn selects(&self, id: ConnId) -> Option<&Select> {
        self.table.find(id)?.selects.as_deref()
    }

    /// Notes that such a transaction has ended, and returns it.
    pub(crate) fn end_select(&mut self, id: ConnId) -> Option<Box<Select>> {
        self.table.find_mut(id)?.selects.take()
    }

    /// Adds the proxy's own answer to a client's transaction.
    pub(crate) fn queue_answer(&mut self, base: &mut Base, id: ConnId, words: &[u8]) {
        let Some(client) = self.table.find_mut(id) else { return };
        let Some(one) = client.transaction.as_mut().filter(|one| !one.aborted) else { return };
        block::push(one.requests + one.answered, words, &mut one.answers);
        one.answered += 1;
        let bytes = one.bytes();
        base.memory.change(&mut one.counted, bytes);
    }

    /// Notes an error that is told within a client's transaction, or to a request to watch keys.
    #[cold]
    pub(super) fn note_error(
        &mut self,
        base: &Base,
        id: ConnId,
        (request, head): (&Request, &[u8]),
        answer: &Answer<'_>,
    ) {
        let Some(client) = self.table.find_mut(id) else { return };
        let asked = proto::Asked { command: request.command, head, ..proto::Asked::no_request() };
        let is_watch = client.protocol.watches(request.command) && watch::is_of_proxy(answer);
        if is_watch && client.transaction.is_none() {
            let mut line = Vec::new();
            client.protocol.answer(&asked, answer, &mut line);
            return client.set_unwatched(&line, base.now);
        }
        let Some(one) = client.transaction.as_mut().filter(|one| !one.aborted) else { return };
        one.why.clear();
        client.protocol.answer(&asked, answer, &mut one.why);
        one.why.truncate(kept_of_error(&one.why));
        one.why.shrink_to_fit();
    }

    /// Notes that the error that was told last aborts a client's transaction. What is queued is
    /// forgotten.
    pub(crate) fn abort_transaction(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        let why = client.transaction.as_mut().map(|one| std::mem::take(&mut one.why));
        self.end_transaction(base, id);
        if let Some(client) = self.table.find_mut(id) {
            let (aborted, why) = (!bug!(ForgetAbort), why.unwrap_or_default());
            let one = Transaction { aborted, why, ..Transaction::default() };
            client.transaction = Some(Box::new(one));
        }
    }

    /// Returns the error that has aborted a client's transaction.
    pub(crate) fn aborted_for(&self, id: ConnId) -> &[u8] {
        let one = self.table.find(id).and_then(|client| client.transaction.as_deref());
        one.map_or(b"", |one| &one.why)
    }

    /// Forgets a client's transaction, if it has one.
    pub(crate) fn end_transaction(&mut self, base: &mut Base, id: ConnId) {
        if let Some((mut block, _)) = self.take_transaction(base, id) {
            block.clear();
            block.close(&mut base.spares);
        }
    }

    /// Ends a client's transaction; returns its block, and the proxy's own answers.
    pub(crate) fn take_transaction(
        &mut self,
        base: &mut Base,
        id: ConnId,
    ) -> Option<(Outbox, Vec<u8>)> {
        let mut one = self.table.find_mut(id)?.transaction.take()?;
        base.memory.change(&mut one.counted, 0);
        Some((one.block, one.answers))
    }

    /// Answers a transaction of which no server executes anything.
    pub(crate) fn answer_queued(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        head: &[u8],
    ) {
        let Some((_, answers)) = self.take_transaction(base, id) else { return };
        if request.quiet == proto::Quiet::Silent {
            return;
        }
        let asked = proto::Asked { command: request.command, head, ..proto::Asked::no_request() };
        let Some(client) = self.table.find(id) else { return };
        let count = block::iter(&answers).count() as u64;
        let mut words = Vec::new();
        client.protocol.answer(&asked, &Answer::Open(count), &mut words);
        block::iter(&answers).for_each(|(_, answer)| words.extend_from_slice(answer));
        self.answer_encoded(base, id, request, Source::plain(&words));
    }

    /// Returns the bytes of a client's block, to be routed anew. `give_back` gives them back.
    pub(crate) fn block_bytes(&mut self, id: ConnId) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(client) = self.table.find_mut(id)
            && let Some(one) = &mut client.transaction
        {
            one.block.drain_into(&mut bytes);
        }
        bytes
    }

    /// Gives a client's block back, which may go to this server.
    pub(crate) fn give_back(
        &mut self,
        id: ConnId,
        bytes: &[u8],
        (server, epoch): (Option<usize>, (u64, u64)),
    ) {
        if let Some(client) = self.table.find_mut(id)
            && let Some(one) = &mut client.transaction
        {
            one.block.copy(bytes);
            (one.server, one.epoch) = (server, epoch);
        }
    }

    /// Notes what the answer to a transaction may be.
    pub(crate) fn expected_of_block(
        &self,
        base: &Base,
        incoming: &Incoming<'_>,
        writes: bool,
    ) -> Option<crate::base::size::Expected> {
        let client = self.table.find(incoming.asks.id)?;
        let is_idle = || client.outstanding() == 0;
        Some(client.expected(base, incoming.request.command, || writes, is_idle))
    }
}
