//! What waits for a link: a queue for each client, served by deficit round robin, in the order that
//! `order.rs` keeps.
//!
//! ```text
//!   client a  [m][m][m]      balance    0 ┐
//!   client b  [m]            balance 1200 ├ ring: each in its turn, as far as its balance goes
//!   client c  [k k k k][m]   balance -300 ┘
//! ```
//!
//! A client is served while its balance is positive, and its balance then falls by the cost of
//! what left. With each round it rises by a quantum. So clients that keep work waiting get equal
//! shares by cost, and the order of one client's requests never changes. A queue that empties stays
//! in the ring until its debt is paid: Shreedhar and Varghese, "Efficient fair queueing using
//! deficit round robin", 1995, with debts instead of savings.
//!
//! A client that had no queue is served before the ring, once in a round of it, as in RFC 8290: one
//! that asks for little has not to wait until all the others have had their turn.

mod check;

use std::collections::VecDeque;

use super::batch::{Batch, Entry};
use super::message::{MessageForm, Payload};
use super::order::{Order, Weighted};
use super::waiting::Waiting;
use crate::Time;
use crate::base::buffer::Outbox;
use crate::base::id::{ConnId, IdMap};
use crate::base::limits;
use crate::base::part::{Effort, Part, RequestId};
use crate::base::size::Cost;
use crate::base::tenants::NOBODY;

/// The queues of the clients that wait for one link.
#[derive(Default)]
pub(super) struct FairQueue {
    queues: Vec<ClientQueue>,
    /// The indexes of queues that are not in use.
    free: Vec<u32>,
    by_client: IdMap<u32>,
    /// The queues that are served, in order.
    order: Order,
    /// Messages, and keys of reads that may be merged.
    len: usize,
    /// Bytes held.
    bytes: usize,
    /// No message has waited since before then.
    oldest: Time,
    /// The number of the present pass over the clients, and how many were skipped in it.
    pass: u64,
    skipped: usize,
}

/// One client's queue.
struct ClientQueue {
    client: ConnId,
    of: Weighted,
    waiting: VecDeque<Waiting>,
    /// The cost that it may still have served in this round.
    balance: i64,
    len: usize,
    bytes: usize,
    /// Its client is not served until something changes for it.
    parked: Option<Time>,
    /// Its client is not read until there is room.
    is_full: bool,
    /// The cost that has been served, and how often the queue stood aside or was empty: for the
    /// check that shares are equal.
    served: u64,
    breaks: u32,
    /// The last pass in which it was skipped.
    skipped_in: u64,
}

/// What is to be served next.
pub(super) struct Next {
    pub(super) client: ConnId,
    pub(super) tenant: u16,
    pub(super) part: Part,
    pub(super) cost: Cost,
    pub(super) effort: Effort,
    /// Since when it waits.
    pub(super) since: Time,
}

/// What has been taken out of a queue.
pub(super) enum Taken {
    Message(Waiting),
    /// A key of a read, in a batch of its own.
    Key(Box<Batch>),
}

impl FairQueue {
    /// Whether nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of messages, and of keys that may be merged.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how much of one client waits: messages or keys, and bytes.
    pub(super) fn of_client(&self, client: ConnId) -> (usize, usize) {
        self.find(client).map_or((0, 0), |queue| (queue.len, queue.bytes))
    }

    /// Whether the last that waits of a client is a part of this request.
    pub(super) fn ends_with(&self, client: ConnId, request: RequestId) -> bool {
        let last = self.find(client).and_then(|queue| queue.waiting.back());
        last.is_some_and(|last| last.last().request == request)
    }

    fn find(&self, client: ConnId) -> Option<&ClientQueue> {
        self.by_client.get(&client).map(|at| &self.queues[*at as usize])
    }

    /// Adds a message to its client's queue.
    pub(super) fn push(&mut self, client: ConnId, of: Weighted, waiting: Waiting) {
        self.note_since(waiting.since);
        let at = self.queue_of(client, of);
        let (len, bytes) = (waiting.len(), waiting.bytes());
        let queue = &mut self.queues[at];
        queue.breaks += u32::from(queue.waiting.is_empty());
        queue.count(len as isize, bytes as isize);
        queue.waiting.push_back(waiting);
        self.len += len;
        self.bytes += bytes;
    }

    /// Adds a key to the batch at the end of its client's queue, if `fits` says that it may.
    pub(super) fn push_key(
        &mut self,
        client: ConnId,
        fits: impl FnOnce(&Waiting, &Batch) -> bool,
        push: impl FnOnce(&mut Batch),
    ) -> bool {
        let Some(at) = self.by_client.get(&client) else { return false };
        let queue = &mut self.queues[*at as usize];
        let Some(last) = queue.waiting.back_mut() else { return false };
        let may = match &last.payload {
            Payload::Fetch(batch) => last.merges && fits(last, batch),
            _ => false,
        };
        let (true, Payload::Fetch(batch)) = (may, &mut last.payload) else { return false };
        let before = batch.bytes();
        push(batch);
        let bytes = batch.bytes() - before;
        queue.count(1, bytes as isize);
        self.len += 1;
        self.bytes += bytes;
        true
    }

    /// Returns what is to be served next, if a client may be served.
    pub(super) fn next(&mut self) -> Option<Next> {
        loop {
            let at = self.order.next()?;
            let queue = &mut self.queues[at as usize];
            let is_empty = queue.waiting.is_empty();
            if is_empty && queue.balance > 0 && !self.order.is_first_new() {
                self.order.pop_first();
                self.free(at);
            } else if is_empty || queue.balance <= 0 {
                let is_due = queue.balance <= 0 || bug!(GatherCredit);
                queue.balance += if is_due { limits::QUANTUM } else { 0 };
                self.order.end_turn_of_first();
            } else {
                let first = &queue.waiting[0];
                let (part, cost) = first.first();
                let (client, effort, since) = (queue.client, first.effort, first.since);
                return Some(Next { client, tenant: queue.of.tenant, part, cost, effort, since });
            }
        }
    }

    /// Gives what `next` has returned another cost and effort.
    pub(super) fn renew(&mut self, cost: Cost, effort: Effort) {
        self.queues[self.order.first() as usize].waiting[0].renew(cost, effort);
    }

    /// Takes what `next` has returned. `key` makes the batch of a key that is taken alone.
    pub(super) fn take(
        &mut self,
        now: Time,
        key: impl FnOnce(&Batch, Entry) -> Box<Batch>,
    ) -> Taken {
        let at = self.order.first() as usize;
        let queue = &mut self.queues[at];
        let first = &mut queue.waiting[0];
        let cost = first.first().1;
        if !bug!(FreeOfCost) {
            queue.balance -= cost.bytes() as i64;
            self.order.charge(cost.bytes() as i64);
        }
        queue.served += cost.bytes();
        if let (true, Payload::Fetch(batch)) = (first.merges, &mut first.payload)
            && batch.entries.len() - batch.cursor > 1
        {
            let one = key(batch, batch.entries[batch.cursor]);
            batch.cursor += 1;
            first.since = now;
            queue.count(-1, 0);
            self.len -= 1;
            return Taken::Key(one);
        }
        let first = self.pop(at);
        Taken::Message(first)
    }

    /// Takes the first of a client's messages.
    fn pop(&mut self, at: usize) -> Waiting {
        let queue = &mut self.queues[at];
        let first = queue.waiting.pop_front().expect("the caller has seen it");
        let (len, bytes) = (first.len(), first.bytes());
        queue.count(-(len as isize), -(bytes as isize));
        self.len -= len;
        self.bytes -= bytes;
        first
    }

    /// Begins a pass over the clients, in which each may be skipped once.
    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        self.skipped = 0;
    }

    /// Lets the client that is next wait until the others have had their turn. Returns false if all
    /// of them were skipped in this pass. A client may be next several times in a pass, while
    /// others pay their debts.
    pub(super) fn skip(&mut self) -> bool {
        let queue = &mut self.queues[self.order.first() as usize];
        queue.breaks += 1;
        self.skipped += usize::from(queue.skipped_in != self.pass);
        queue.skipped_in = self.pass;
        self.skipped < self.order.skip_first()
    }

    /// Does not serve the client that is next, until it is unparked.
    pub(super) fn park(&mut self, now: Time) {
        let at = self.order.first();
        self.order.pop_first();
        let queue = &mut self.queues[at as usize];
        queue.parked = Some(now);
        queue.breaks += 1;
    }

    /// Serves a client again, if it was parked. The time in which it was does not count, except
    /// where its link was not up: it would have waited all the same.
    pub(super) fn unpark(&mut self, client: ConnId, up: Option<Time>, now: Time) -> bool {
        let Some(at) = self.by_client.get(&client) else { return false };
        let queue = &mut self.queues[*at as usize];
        let parked = queue.parked.take();
        if let Some(since) = parked {
            let parked = up.map_or(0, |up| now.since(since.max(up)));
            queue.waiting.iter_mut().for_each(|one| one.since = one.since.after(parked).min(now));
            self.order.push_back(queue.of, *at);
            // The first may have begun to wait later than those behind it: it has had a key served.
            if let Some(since) = queue.waiting.iter().map(|one| one.since).min() {
                self.note_since(since);
            }
        }
        parked.is_some()
    }

    /// Returns the clients that wait and are not read, and now have room for more.
    pub(super) fn with_room(&mut self, client: ConnId, share: (usize, usize)) -> bool {
        let Some(at) = self.by_client.get(&client) else { return false };
        let queue = &mut self.queues[*at as usize];
        let has_room = queue.len <= share.0 / 2 && queue.bytes <= share.1 / 2;
        let was_full = queue.is_full && has_room;
        queue.is_full &= !has_room;
        was_full
    }

    /// Whether a client has just filled its share.
    pub(super) fn fills(&mut self, client: ConnId, share: (usize, usize)) -> bool {
        let Some(at) = self.by_client.get(&client) else { return false };
        let queue = &mut self.queues[*at as usize];
        let fills = !queue.is_full && (queue.len >= share.0 || queue.bytes >= share.1);
        queue.is_full |= fills;
        fills
    }

    /// Takes out the messages and keys of all clients, or of one, that fit.
    pub(super) fn withdraw_where(
        &mut self,
        client: Option<ConnId>,
        mut fits: impl FnMut(&Waiting, RequestId) -> bool,
        mut split: impl FnMut(
            &Batch,
            &mut dyn FnMut(&Entry) -> bool,
        ) -> (Option<Box<Batch>>, Box<Batch>),
    ) -> Vec<(ConnId, Waiting)> {
        let mut out = Vec::new();
        let places: Vec<u32> = match client {
            Some(client) => self.by_client.get(&client).copied().into_iter().collect(),
            None => self.by_client.values().copied().collect(),
        };
        for at in places {
            let queue = &mut self.queues[at as usize];
            let client = queue.client;
            for mut waiting in std::mem::take(&mut queue.waiting) {
                let before = (waiting.len(), waiting.bytes());
                let rest = match &waiting.payload {
                    Payload::Fetch(batch) => {
                        let mut is_out = |entry: &Entry| fits(&waiting, entry.part.request);
                        let count = batch.outstanding().filter(|entry| is_out(entry)).count();
                        match count {
                            0 => Some(None),
                            // A message of several keys with one reply is taken whole.
                            _ if !waiting.merges || count == batch.outstanding().count() => None,
                            _ => Some(Some(split(batch, &mut is_out))),
                        }
                    }
                    Payload::Single(part) if fits(&waiting, part.request) => None,
                    Payload::Single(_) | Payload::Internal(_) => Some(None),
                };
                let (mut len, mut bytes) = (0, 0);
                match rest {
                    // It goes.
                    None => out.push((client, waiting)),
                    // It stays.
                    Some(None) => {
                        (len, bytes) = before;
                        queue.waiting.push_back(waiting);
                    }
                    Some(Some((kept, gone))) => {
                        let Waiting { ask, is_update, cost, effort, merges, since, held, .. } =
                            waiting;
                        let part = |batch| {
                            let form =
                                MessageForm { payload: Payload::Fetch(batch), ask, is_update };
                            let one =
                                Waiting::message(form, Outbox::default(), (cost, effort), since);
                            Waiting { merges, held, ..one }
                        };
                        out.push((client, part(gone)));
                        if let Some(kept) = kept {
                            waiting = part(kept);
                            (len, bytes) = (waiting.len(), waiting.bytes());
                            queue.waiting.push_back(waiting);
                        }
                    }
                }
                queue.count(len as isize - before.0 as isize, bytes as isize - before.1 as isize);
                self.len = self.len + len - before.0;
                self.bytes = self.bytes + bytes - before.1;
            }
            self.unpark_if_empty(at);
        }
        out
    }

    /// Takes out the messages that have waited too long.
    pub(super) fn expire(&mut self, is_late: impl Fn(Time) -> bool) -> Vec<(ConnId, Waiting)> {
        let mut late = Vec::new();
        self.oldest = Time(u64::MAX);
        for queue in self.queues.iter_mut().filter(|queue| queue.parked.is_none()) {
            let client = queue.client;
            for one in std::mem::take(&mut queue.waiting) {
                if is_late(one.since) {
                    let (len, bytes) = (one.len(), one.bytes());
                    queue.count(-(len as isize), -(bytes as isize));
                    (self.len, self.bytes) = (self.len - len, self.bytes - bytes);
                    late.push((client, one));
                } else {
                    self.oldest = self.oldest.min(one.since);
                    queue.waiting.push_back(one);
                }
            }
        }
        late
    }

    /// Returns a time before which nothing that waits has begun to wait; none if nothing waits.
    pub(super) fn oldest(&self) -> Option<Time> {
        (self.len > 0 && self.oldest < Time(u64::MAX)).then_some(self.oldest)
    }

    /// Takes everything, client by client in the order of their turns.
    pub(super) fn into_all(self) -> impl Iterator<Item = (ConnId, Waiting)> {
        self.into_queues().into_iter().map(|(client, _, waiting)| (client, waiting))
    }

    /// As `into_all`, with what decides about each client's turns.
    pub(super) fn into_queues(mut self) -> Vec<(ConnId, Weighted, Waiting)> {
        let parked =
            self.by_client.values().filter(|at| self.queues[**at as usize].parked.is_some());
        let mut parked: Vec<u32> = parked.copied().collect();
        parked.sort_unstable();
        let order: Vec<u32> = self.order.iter().chain(parked).collect();
        let mut all = Vec::new();
        for at in order {
            let queue = &mut self.queues[at as usize];
            let (client, of) = (queue.client, queue.of);
            all.extend(std::mem::take(&mut queue.waiting).into_iter().map(|one| (client, of, one)));
        }
        all
    }

    /// Marks everything that has waited long enough as held; returns how much was not.
    pub(super) fn hold(&mut self, is_late: impl Fn(Time) -> bool) -> usize {
        let waiting = self.queues.iter_mut().flat_map(|queue| &mut queue.waiting);
        let late = waiting.filter(|one| !one.held && is_late(one.since));
        late.map(|one| one.held = true).count()
    }

    /// Lists what waits, and since when; those that are parked have no deadline.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnId, &Waiting, bool)> {
        let queues = self.queues.iter();
        queues.flat_map(|queue| {
            let is_parked = queue.parked.is_some();
            queue.waiting.iter().map(move |one| (queue.client, one, is_parked))
        })
    }

    /// Lists what is next of each client, except of those that are parked.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &Waiting> {
        self.queues
            .iter()
            .filter(|queue| queue.parked.is_none())
            .filter_map(|queue| queue.waiting.front())
    }

    /// Lists the clients that are not read until there is room.
    pub(super) fn full_clients(&self) -> impl Iterator<Item = ConnId> {
        self.queues.iter().filter(|queue| queue.is_full).map(|queue| queue.client)
    }

    fn note_since(&mut self, since: Time) {
        self.oldest = if self.len == 0 { since } else { self.oldest.min(since) };
    }

    fn queue_of(&mut self, client: ConnId, of: Weighted) -> usize {
        if let Some(at) = self.by_client.get(&client) {
            return *at as usize;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.queues.push(ClientQueue::new());
            (self.queues.len() - 1) as u32
        });
        self.queues[at as usize].client = client;
        self.queues[at as usize].of = of;
        self.queues[at as usize].balance = limits::QUANTUM;
        self.by_client.insert(client, at);
        if !bug!(ForgetQueue) {
            self.order.insert(of, at);
        }
        at as usize
    }

    /// Puts a parked queue that has become empty back into the ring, where it is found and freed.
    fn unpark_if_empty(&mut self, at: u32) {
        let queue = &mut self.queues[at as usize];
        if queue.waiting.is_empty() && queue.parked.take().is_some() {
            self.order.push_back(queue.of, at);
        }
    }

    /// Frees an empty queue.
    fn free(&mut self, at: u32) {
        let queue = &mut self.queues[at as usize];
        assert_eq!((queue.len, queue.bytes), (0, 0), "an empty queue holds nothing");
        assert!(!queue.is_full, "a client with an empty queue is read");
        self.by_client.remove(&queue.client);
        self.free.push(at);
    }
}

impl ClientQueue {
    fn count(&mut self, len: isize, bytes: isize) {
        self.len = self.len.wrapping_add_signed(len);
        self.bytes = self.bytes.wrapping_add_signed(bytes);
    }

    fn new() -> ClientQueue {
        ClientQueue {
            client: ConnId::NONE,
            of: Weighted { tenant: NOBODY, weight: 1 },
            waiting: VecDeque::new(),
            balance: 0,
            len: 0,
            bytes: 0,
            parked: None,
            is_full: false,
            served: 0,
            breaks: 0,
            skipped_in: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::{PROTOCOLS, Upstream};

    use proto::Ask;

    use super::*;
    use crate::base::size::Expected;

    const ALONE: Weighted = Weighted { tenant: NOBODY, weight: 1 };

    fn upstream() -> &'static dyn Upstream {
        PROTOCOLS[0].upstream()
    }

    fn client(at: u32) -> ConnId {
        ConnId::from_u64(u64::from(at))
    }

    /// A message of one request, of this cost, that waits since then.
    fn message(request: RequestId, cost: usize, since: u64) -> Waiting {
        let fixed = limits::COST_OF_MESSAGE as usize;
        let cost = Cost::new(cost - fixed, Expected::default());
        let payload = Payload::Single(Part { request, slot: 0 });
        let form = MessageForm { payload, ask: Ask::default(), is_update: false };
        Waiting::message(form, Outbox::default(), (cost, Effort::Quick), Time(since))
    }

    /// Keys of one client that may be merged, one for each of these requests.
    fn keys(client: ConnId, requests: &[RequestId], cost: usize) -> Waiting {
        let mut batch = Batch::blank();
        batch.open(Ask::default(), true, 1, Time(0));
        batch.text.extend_from_slice(b"get");
        for request in requests {
            let part = Part { request: *request, slot: 0 };
            let cost = Cost::new(cost - limits::COST_OF_MESSAGE as usize, Expected::default());
            batch.push(upstream(), b"k", (part, client), cost);
        }
        Waiting { merges: true, ..Waiting::batch(batch, Time(0)) }
    }

    /// Takes what is next; returns its client and request.
    fn serve(queue: &mut FairQueue, now: u64) -> Option<(ConnId, RequestId)> {
        let Next { client, part: Part { request, .. }, .. } = queue.next()?;
        queue.take(Time(now), |batch, entry| {
            let mut one = Batch::blank();
            one.open_like(batch, 1, Time(now));
            one.push(upstream(), batch.key(entry), (entry.part, entry.client), entry.cost);
            one
        });
        Some((client, request))
    }

    fn serve_all(queue: &mut FairQueue) -> Vec<(ConnId, RequestId)> {
        std::iter::from_fn(|| serve(queue, 0)).collect()
    }

    #[track_caller]
    fn expect_empty(queue: &FairQueue) {
        assert_eq!((queue.len(), queue.bytes(), queue.oldest()), (0, 0, None));
        assert!(queue.is_empty() && queue.by_client.is_empty() && queue.order.iter().count() == 0);
        assert_eq!(queue.free.len(), queue.queues.len());
    }

    #[test]
    fn clients_that_keep_work_waiting_have_equal_shares_by_cost() {
        let mut queue = FairQueue::default();
        let costs = [300, 1_000, 5_000, 40_000];
        for (at, cost) in costs.into_iter().enumerate() {
            (0..400_000 / cost).for_each(|nth| {
                queue.push(client(at as u32), ALONE, message(nth as RequestId, cost, 0));
            });
        }
        let mut served = [0_i64; 4];
        while queue.by_client.len() == 4 && served[3] < 360_000 {
            let (one, _) = serve(&mut queue, 0).expect("much waits");
            served[one.index()] += costs[one.index()] as i64;
            // Within a message and a round.
            let (least, most) = (served.iter().min(), served.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least < 40_000 + 2 * 4_096));
        }
        assert!(served.iter().all(|served| *served > 300_000), "{served:?}");
        serve_all(&mut queue);
        expect_empty(&queue);
    }

    #[test]
    fn the_messages_of_one_client_leave_in_their_order() {
        let mut queue = FairQueue::default();
        for nth in 0..50 {
            queue.push(client(0), ALONE, message(nth, 300 + nth as usize * 100, 0));
            queue.push(client(1), ALONE, message(100 + nth, 700, 0));
        }
        let all = serve_all(&mut queue);
        for (at, first) in [(0, 0), (1, 100)] {
            let its = all.iter().filter(|(one, _)| *one == client(at)).map(|(_, request)| *request);
            assert!(its.eq(first..first + 50));
        }
    }

    /// Otherwise a client could ask for much, have its queue freed, and begin with a new balance.
    #[test]
    fn a_queue_that_is_empty_stays_until_its_debt_is_paid() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, message(0, 40_000, 0));
        (1..40).for_each(|nth| queue.push(client(1), ALONE, message(nth, 4_096, 0)));
        assert_eq!(serve(&mut queue, 0), Some((client(0), 0)));
        queue.push(client(0), ALONE, message(50, 300, 0));
        let before = std::iter::from_fn(|| serve(&mut queue, 0)).take_while(|(_, at)| *at != 50);
        let before = before.count();
        assert!((8..=10).contains(&before), "{before} messages of the other");
        serve_all(&mut queue);
        expect_empty(&queue);
    }

    /// Its queue is passed by while it is empty, and that is no turn which it has missed.
    #[test]
    fn a_client_that_did_not_wait_has_gathered_no_credit_when_it_comes_back() {
        let mut queue = FairQueue::default();
        let ask = |queue: &mut FairQueue, at: u32, requests: std::ops::Range<RequestId>| {
            requests.for_each(|nth| queue.push(client(at), ALONE, message(nth, 1_024, 0)));
        };
        ask(&mut queue, 1, 0..40);
        (0..5).for_each(|_| assert!(serve(&mut queue, 0).is_some(), "more than its first turn"));
        ask(&mut queue, 0, 50..51);
        assert_eq!(serve(&mut queue, 0), Some((client(0), 50)), "it is new");
        assert_eq!(serve(&mut queue, 0).map(|next| next.0), Some(client(1)), "it is not there");
        assert!(queue.largest_balance() <= limits::QUANTUM);
        ask(&mut queue, 0, 51..71);
        let order = serve_all(&mut queue);
        let its = order.iter().skip_while(|next| next.0 == client(1));
        let its = its.take_while(|next| next.0 == client(0)).count();
        assert_eq!(its, 3, "the rest of one quantum");
    }

    /// Those that come back as soon as they are served do not keep the others from their turns.
    #[test]
    fn a_client_that_had_no_queue_is_served_first_once_in_a_round() {
        let mut queue = FairQueue::default();
        let push =
            |queue: &mut FairQueue, at: u32| queue.push(client(at), ALONE, message(at, 4_096, 0));
        (0..30).for_each(|nth| push(&mut queue, nth % 3));
        let next = |queue: &mut FairQueue| serve(queue, 0).expect("much waits").1;
        (0..6).for_each(|_| assert!(next(&mut queue) < 3));
        for at in [7, 8] {
            push(&mut queue, at);
        }
        for at in [7, 8] {
            assert_eq!(next(&mut queue), at, "in the order in which they came");
            push(&mut queue, at);
        }
        let mut others = Vec::new();
        while others.len() < 20 {
            match next(&mut queue) {
                at @ 7..=8 => push(&mut queue, at),
                at => others.push(at),
            }
        }
        let served = |at| others.iter().filter(|one| **one == at).count();
        assert!((0..3).all(|at| (5..=8).contains(&served(at))), "{others:?}");
        serve_all(&mut queue);
        expect_empty(&queue);
    }

    #[test]
    fn keys_are_taken_one_by_one_and_in_turn() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, keys(client(0), &[0, 1, 2, 3], 2_048));
        queue.push(client(1), ALONE, keys(client(1), &[10, 11], 2_048));
        assert_eq!((queue.len(), queue.of_client(client(0)).0), (6, 4));
        let order: Vec<RequestId> =
            serve_all(&mut queue).into_iter().map(|(_, request)| request).collect();
        assert_eq!(order, [0, 1, 10, 11, 2, 3]);
        expect_empty(&queue);
    }

    #[test]
    fn a_parked_client_is_passed_over_and_its_time_stands_still() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, message(0, 300, 5));
        queue.push(client(0), ALONE, message(1, 300, 7));
        queue.push(client(1), ALONE, message(2, 300, 9));
        assert_eq!(queue.next().map(|next| next.client), Some(client(0)));
        queue.park(Time(10));
        assert_eq!(serve_all(&mut queue), [(client(1), 2)]);
        assert!(queue.expire(|_| true).is_empty(), "it has no deadline");
        assert_eq!(queue.oldest(), None);
        let up = Some(Time(2));
        assert!(queue.unpark(client(0), up, Time(110)) && !queue.unpark(client(0), up, Time(110)));
        assert_eq!(queue.oldest(), Some(Time(105)));
        let late = queue.expire(|since| since <= Time(105));
        assert_eq!((late.len(), queue.oldest()), (1, Some(Time(107))));
        assert_eq!(serve_all(&mut queue), [(client(0), 1)]);
        expect_empty(&queue);
    }

    /// The time of the first key begins anew with each key before it that is served.
    #[test]
    fn what_is_served_again_counts_from_the_one_that_has_waited_longest() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, keys(client(0), &[0, 1], 300));
        queue.push(client(0), ALONE, message(2, 300, 3));
        assert_eq!(serve(&mut queue, 50), Some((client(0), 0)));
        queue.next();
        queue.park(Time(60));
        queue.expire(|_| false);
        queue.unpark(client(0), Some(Time(0)), Time(61));
        assert_eq!(queue.oldest(), Some(Time(4)));
    }

    #[test]
    fn the_oldest_is_of_what_waits_now() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, message(0, 300, 5));
        assert_eq!(queue.oldest(), Some(Time(5)));
        assert_eq!(serve(&mut queue, 50), Some((client(0), 0)));
        for (nth, since, oldest) in [(1, 50, 50), (2, 40, 40), (3, 60, 40)] {
            queue.push(client(0), ALONE, message(nth, 300, since));
            assert_eq!(queue.oldest(), Some(Time(oldest)));
        }
    }

    #[test]
    fn the_time_in_which_a_client_stands_aside_counts_while_the_link_is_not_up() {
        for (up, since) in [(None, 5), (Some(Time(70)), 35), (Some(Time(2)), 95)] {
            let mut queue = FairQueue::default();
            queue.push(client(0), ALONE, message(0, 300, 5));
            queue.next();
            queue.park(Time(10));
            queue.unpark(client(0), up, Time(100));
            queue.expire(|_| false);
            assert_eq!(queue.oldest(), Some(Time(since)), "{up:?}");
        }
    }

    #[test]
    fn a_parked_client_of_which_nothing_is_left_is_served_when_it_asks_again() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, message(0, 300, 0));
        queue.next();
        queue.park(Time(1));
        let gone = queue.withdraw_where(Some(client(0)), |_, _| true, |_, _| unreachable!());
        assert_eq!(gone.len(), 1);
        queue.push(client(0), ALONE, message(1, 300, 2));
        assert_eq!(serve_all(&mut queue), [(client(0), 1)]);
        expect_empty(&queue);
    }

    #[test]
    fn one_that_is_skipped_waits_for_the_others_until_all_are() {
        let mut queue = FairQueue::default();
        (0..3).for_each(|at| queue.push(client(at), ALONE, message(at as RequestId, 300, 0)));
        queue.begin_pass();
        let asked = [(); 3].map(|()| {
            let next = queue.next().map(|next| next.client);
            (next, queue.skip())
        });
        let expected = [0, 1, 2].map(|at| (Some(client(at)), at < 2));
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_client_that_pays_its_debt_has_its_turn_though_another_is_skipped_meanwhile() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, message(0, 5 * limits::QUANTUM as usize, 0));
        queue.push(client(0), ALONE, message(1, 300, 0));
        assert_eq!(serve(&mut queue, 0), Some((client(0), 0)));
        queue.push(client(1), ALONE, message(2, 300, 0));
        queue.begin_pass();
        assert_eq!(queue.next().map(|next| next.client), Some(client(1)));
        while queue.skip() {
            match queue.next() {
                Some(Next { client: one, .. }) if one == client(1) => {}
                next => return assert_eq!(next.map(|next| next.client), Some(client(0))),
            }
        }
        panic!("client 0 had no turn");
    }

    #[test]
    fn keys_are_withdrawn_alone_and_what_has_one_reply_is_withdrawn_whole() {
        let mut queue = FairQueue::default();
        queue.push(client(0), ALONE, keys(client(0), &[0, 1, 2, 3], 300));
        queue.push(client(0), ALONE, Waiting { merges: false, ..keys(client(0), &[4, 5], 300) });
        queue.push(client(0), ALONE, message(6, 300, 0));
        queue.push(client(0), ALONE, message(7, 300, 0));
        queue.push(client(1), ALONE, message(1, 300, 0));
        let is_odd = |_: &Waiting, request: RequestId| request % 2 == 1;
        let gone = queue.withdraw_where(Some(client(0)), is_odd, |batch, is_out| {
            batch.part(upstream(), is_out)
        });
        let parts: Vec<usize> = gone.iter().map(|(_, waiting)| waiting.parts()).collect();
        assert_eq!(parts, [2, 2, 1]);
        assert_eq!(queue.of_client(client(0)).0, 3);
        let left: Vec<RequestId> =
            serve_all(&mut queue).into_iter().map(|(_, request)| request).collect();
        assert_eq!(left, [0, 2, 6, 1]);
        expect_empty(&queue);
    }

    #[test]
    fn a_share_is_full_once_and_has_room_again_at_half() {
        let mut queue = FairQueue::default();
        let share = (4, 1_000);
        let fills: Vec<bool> = (0..5)
            .map(|nth| {
                queue.push(client(0), ALONE, message(nth, 300, 0));
                queue.fills(client(0), share)
            })
            .collect();
        assert_eq!(fills, [false, false, false, true, false]);
        assert!(queue.full_clients().eq([client(0)]));
        let has_room: Vec<bool> = (0..5)
            .map(|_| {
                serve(&mut queue, 0);
                queue.with_room(client(0), share)
            })
            .collect();
        assert_eq!(has_room, [false, false, true, false, false]);
    }
}
