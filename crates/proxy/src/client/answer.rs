//! Requests join their client's pipeline, and the proxy's own answers with them.

use metrics::PoolCounter;
use proto::{Answer, Ask, Asked, Quiet, Refusal, Request};

use super::leave::Departure;
use super::request::UNTIMED;
use super::{Clients, inflight};
use crate::base::access::{AccessNote, Results};
use crate::base::buffer::Source;
use crate::base::id::ConnId;
use crate::base::part::{Effort, Incoming, NONE, RequestId, Requester};
use crate::base::phases::Moments;
use crate::base::room::NoRoom;
use crate::base::tenants::NOBODY;
use crate::base::{Base, limits};

impl Clients {
    /// Adds a client's request to the end of its pipeline.
    pub(crate) fn enqueue(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        head: &[u8],
    ) -> RequestId {
        let client = self.table.find_mut(id).expect("requests are read from living clients only");
        let owner = (id, client.protocol);
        let pending =
            self.requests.alloc(owner, client.pool, (request, head), base.now, &mut base.spares);
        let expected = client.expected.len() as usize;
        let entry = &mut self.requests[pending];
        entry.moments = Moments::new(client.begun, client.received);
        if base.is_watched {
            let pool = &mut base.pools[client.pool as usize];
            let slow = pool.plan.slow;
            entry.access = AccessNote {
                is_logged: pool.access.pick(pool.plan.access_one_in),
                received: request.len(),
                keys: base.keys.len() as u32,
                ..AccessNote::default()
            };
            let key = base.keys.first();
            let key = key.and_then(|key| head.get(key.start as usize..key.end as usize));
            entry.key.set(slow.keys, key);
        }
        // What came with its last byte began with it.
        client.begun = client.received;
        entry.expected = 0;
        if !self.requests[pending].info.head.is_empty() {
            let (bytes, _) = self.requests[pending].measure();
            client.pipeline.bytes += bytes;
            base.memory.change(&mut self.requests[pending].counted, bytes);
        }
        if request.quiet == Quiet::Silent {
            client.pipeline.silent_count += 1;
            client.pipeline.silent_at = base.now;
            if client.tenant != NOBODY {
                let entry = &mut self.requests[pending];
                Clients::note_inflight(base, client, entry, request.len());
            }
            return pending;
        }
        #[cfg(seeded_bugs)]
        self.requests.lose_opaque(pending, client.pipeline.tail);
        client.pipeline.loud_count += u32::from(request.quiet == Quiet::Loud);
        match client.pipeline.tail {
            NONE => client.pipeline.head = pending,
            tail => self.requests[tail].next = pending,
        }
        client.pipeline.tail = pending;
        client.pipeline.depth += 1;
        client.pipeline.expected += expected;
        self.requests[pending].expected = expected;
        if client.tenant != NOBODY || client.departure == Departure::Left {
            let is_gone = client.departure == Departure::Left && request.quiet == Quiet::Loud;
            Clients::note_inflight(base, client, &mut self.requests[pending], request.len());
            if is_gone {
                self.cancel(id);
            }
        }
        pending
    }

    /// Answers a request without a server. The answer still waits for its turn.
    pub(crate) fn answer(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        head: &[u8],
        answer: &Answer<'_>,
    ) {
        if answer.is_error() {
            self.note_error(base, id, (request, head), answer);
        }
        self.answer_all(base, id, request, head, std::slice::from_ref(answer));
    }

    /// As `answer`, for bytes that the protocol has written already.
    pub(crate) fn answer_encoded(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        words: Source<'_>,
    ) {
        let client = self.table.find_mut(id).expect("requests are read from living clients only");
        client.charge((words.bytes.len() / limits::ANSWER_WORK_BYTES) as u32);
        if client.pipeline.head == NONE && !base.logs_access {
            client.out.open(&mut base.spares);
            client.out.keep(words);
            client.note_answered(base.is_watched);
            return self.update_client(base, id);
        }
        let pending = self.enqueue(base, id, request, b"");
        self.requests[pending].since = UNTIMED;
        self.requests[pending].reply.keep(words);
        self.account_request(base, pending);
        self.complete(base, pending);
    }

    /// As `answer`, for an answer of several parts.
    pub(crate) fn answer_all(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        head: &[u8],
        answers: &[Answer<'_>],
    ) {
        if request.quiet == Quiet::Silent {
            return;
        }
        let client = self.table.find_mut(id).expect("requests are read from living clients only");
        let protocol = client.protocol;
        let (command, quiet) = (request.command, request.quiet);
        let asked = Asked { command, quiet, ask: Ask::default(), head, at: 0, next: None };
        let is_at_once = client.pipeline.head == NONE && !base.logs_access;
        if is_at_once || bug!(EarlyBarrier) && answers == [Answer::Barrier] {
            client.out.open(&mut base.spares);
            answers.iter().for_each(|answer| protocol.answer(&asked, answer, client.out.copied()));
            client.note_answered(base.is_watched);
            self.update_client(base, id);
        } else {
            let pending = self.enqueue(base, id, request, head);
            self.requests[pending].since = UNTIMED;
            if answers.iter().any(Answer::is_error) {
                self.requests[pending].access.results.add(Results::ERROR);
            }
            let client = self.table.find_mut(id).expect("it is the one above");
            if client.tenant != NOBODY {
                inflight::end_inflight(&base.tenants, client, &mut self.requests[pending]);
            }
            let out = self.requests[pending].reply.copied();
            answers.iter().for_each(|answer| protocol.answer(&asked, answer, out));
            self.account_request(base, pending);
            self.complete(base, pending);
        }
    }

    /// Sends an answer that no request asked for, after the answers to all requests.
    pub(crate) fn send_unrequested(&mut self, base: &mut Base, id: ConnId, answer: &Answer<'_>) {
        self.answer(base, id, &Request::placeholder(), b"", answer);
    }

    /// Answers a request when all earlier requests of its client are settled. Those in the pipeline
    /// are, when its turn comes. For those outside of it, the client is not read further.
    pub(crate) fn barrier(&mut self, base: &mut Base, id: ConnId, request: &Request, head: &[u8]) {
        let client = self.table.find(id).expect("requests are read from living clients only");
        if client.pipeline.silent_count == 0 || bug!(EarlyBarrier) {
            return self.answer(base, id, request, head, &Answer::Barrier);
        }
        let pending = self.enqueue(base, id, request, head);
        let entry = &mut self.requests[pending];
        (entry.since, entry.parts_left) = (UNTIMED, 1);
        let asked = Asked { head, ..entry.info.asked() };
        entry.info.protocol.answer(&asked, &Answer::Barrier, entry.reply.copied());
        self.account_request(base, pending);
        self.table.find_mut(id).expect("it has just asked").pipeline.barrier = pending;
        self.pause_until_idle(base, id);
    }

    /// Refuses a request that has come whole.
    pub(crate) fn refuse_whole(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        answer: &Answer<'_>,
    ) {
        let Incoming { asks, request, head } = *incoming;
        base.pools[asks.pool()].counters.add(PoolCounter::Refused, 1);
        if let Answer::Refused(Refusal::NotAllowed(name)) = answer {
            Clients::tell_not_allowed(base, asks.pool(), name);
        }
        self.answer(base, asks.id, request, head, answer);
    }

    /// Begins a request that goes to one server; returns its id.
    // Measured.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        writes: bool,
    ) -> RequestId {
        let Incoming { asks, request, head } = *incoming;
        let id = self.enqueue(base, asks.id, request, head);
        (self.requests[id].writes, self.requests[id].parts_left) = (writes, 1);
        if asks.effort == Effort::Waits {
            // How long it takes says nothing, and a second wait would not be the same one: it
            // would miss what came between them.
            let entry = &mut self.requests[id];
            (entry.since, entry.info.repeats) = (UNTIMED, None);
        }
        if asks.effort == Effort::Watches {
            // On another link it would not notice what has changed since the first.
            self.requests[id].info.repeats = None;
            self.mark_watch(id);
        }
        id
    }

    /// Notes how much answer is expected to a request of so many parts.
    fn expect(&mut self, base: &mut Base, asks: &Requester, id: RequestId, parts: usize) {
        let pending = &mut self.requests[id];
        if pending.info.quiet != Quiet::Silent
            && let Some(client) = self.table.find_mut(pending.client)
        {
            let expected = parts.saturating_mul(asks.expected.len() as usize);
            let others = client.pipeline.expected - pending.expected;
            client.pipeline.expected = others + expected;
            if client.tenant != NOBODY {
                Clients::note_expected(base, client, pending, expected);
            }
            pending.expected = expected;
        }
    }

    /// Notes that a list with one element for each key is the answer to a request.
    pub(crate) fn expect_elements(&mut self, id: RequestId, keys: usize) {
        self.requests[id].info.elements = Some(keys as u32);
    }

    /// Begins a removal of a key whose new value is not accepted, for which there is this reason.
    pub(crate) fn begin_removal(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        no_room: NoRoom,
    ) -> RequestId {
        let Incoming { asks, request, head } = *incoming;
        // The request is answered in its own form, not in that of the removal.
        let request = Request { keep: true, ..*request };
        let id = self.begin(base, &Incoming { asks, request: &request, head }, true);
        self.requests[id].info.no_room = Some(no_room);
        id
    }

    /// Begins a read of the keys that have just been read, or a request that is split by its keys.
    /// A further part keeps a fault from completing it before its last key is sent.
    #[inline]
    pub(crate) fn begin_keys(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        ask: Ask,
        split: Option<SplitRequest>,
    ) -> RequestId {
        let Incoming { asks, request, head } = *incoming;
        let id = self.enqueue(base, asks.id, request, head);
        self.open_keys(base, id, incoming, ask, split);
        id
    }

    /// As `begin_keys`, for a request that has begun.
    #[inline(always)]
    pub(crate) fn open_keys(
        &mut self,
        base: &mut Base,
        id: RequestId,
        incoming: &Incoming<'_>,
        ask: Ask,
        split: Option<SplitRequest>,
    ) {
        let Incoming { asks, request, .. } = *incoming;
        let count = base.keys.len();
        let pending = &mut self.requests[id];
        (pending.info.ask, pending.info.elements) = (ask, None);
        if let Some(SplitRequest { element_per_key, writes }) = split {
            (pending.info.gathers, pending.info.element_per_key) = (true, element_per_key);
            pending.writes = writes;
        }
        if count != 1 {
            self.expect(base, asks, id, count);
        }
        let counters = base.pools[asks.pool()].counters;
        counters.add(PoolCounter::KeysAsked, count as u64);
        let pending = &mut self.requests[id];
        pending.parts_left = count as u32 + 1 - u32::from(bug!(DropFragment) && count > 2);
        if count > 1 {
            counters.add(PoolCounter::Fragments, count as u64);
            pending.open_slots(count, &mut base.spares);
            if request.keep {
                pending.info.join(&base.keys);
            }
            self.account_request(base, id);
        }
    }

    /// Begins a request that goes to this many servers, whose replies are gathered. A further part
    /// keeps it from completing before it is sent to the last.
    pub(crate) fn begin_broadcast(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        (ask, writes): (Ask, bool),
        servers: usize,
    ) -> RequestId {
        let Incoming { asks, request, head } = *incoming;
        let id = self.enqueue(base, asks.id, request, head);
        let pending = &mut self.requests[id];
        (pending.info.ask, pending.info.gathers, pending.writes) = (ask, true, writes);
        if pending.info.protocol.forgets(&pending.info.asked()) {
            base.pools[asks.pool()].definitions.forget();
        }
        pending.parts_left = servers as u32 + 1;
        pending.open_slots(servers, &mut base.spares);
        self.account_request(base, id);
        self.expect(base, asks, id, servers);
        id
    }

    /// Notes how many subscribers there are that the server does not know of.
    pub(crate) fn set_uncounted(&mut self, id: RequestId, count: u32) {
        self.requests[id].info.at = count;
    }

    /// Notes the form in which a server is asked, and where a walk over the servers continues.
    #[inline]
    pub(crate) fn set_asked(&mut self, id: RequestId, ask: Ask, step: Option<(u32, Option<u32>)>) {
        let info = &mut self.requests[id].info;
        info.ask = ask;
        if let Some(step) = step {
            (info.at, info.next) = step;
        }
    }
}

/// A request that is split by its keys.
#[derive(Clone, Copy)]
pub(crate) struct SplitRequest {
    /// The replies are lists with one element for each key.
    pub(crate) element_per_key: bool,
    pub(crate) writes: bool,
}
