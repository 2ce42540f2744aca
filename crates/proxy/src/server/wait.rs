//! Requests that wait for a link: who must wait, whose turn it is, and what is taken out again.
//!
//! A request goes straight to its link's output if nothing waits for the link and the in-flight
//! limit has room for it. Otherwise it stands in its client's queue (`queue.rs`), and is served in
//! turn at the end of the turns in which replies have made room.

use metrics::{Latency, ServerCounter};

use super::batch::Batch;
use super::fail::unsent_fault;
use super::link::Link;
use super::message::Payload;
use super::order::Weighted;
use super::queue::{Next, Taken};
use super::state::Hold;
use super::waiting::Waiting;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::limits::{self, Limits};
use crate::base::part::{Effort, Part, RequestId, Requester, Sent, Turn};
use crate::base::size::Cost;
use crate::base::{Base, ServerAt};

impl Servers {
    /// Whether a part may go straight to the output of a link.
    #[inline]
    pub(super) fn goes_straight(
        &mut self,
        base: &Base,
        id: ConnId,
        asks: &Requester,
        cost: Cost,
    ) -> bool {
        if !self.has_time(base, id, asks.effort) {
            return false;
        }
        let Some(link) = self.links.find_mut(id) else { return true };
        link.goes_straight(base, asks, self.loads.of(asks.id), cost)
    }

    /// Adds a message to its client's queue of a link. It is refused if the client alone has filled
    /// the queue.
    // A message that is refused is given back as it came, seldom.
    #[allow(clippy::result_large_err)]
    pub(super) fn wait(
        &mut self,
        base: &mut Base,
        id: ConnId,
        asks: &Requester,
        mut waiting: Waiting,
        is_bounded: bool,
    ) -> Result<(), (Waiting, Fault)> {
        let client = asks.id;
        let Some(link) = self.links.find_mut(id) else { return Err((waiting, Fault::Down)) };
        if is_bounded && !has_place(&base.limits, link, client, waiting.last().request) {
            return Err((waiting, Fault::QueueFull));
        }
        let state = &self.states[link.at.pool as usize][link.at.server as usize];
        if state.silence.hold == Hold::On {
            waiting.held = true;
            state.counters.add(ServerCounter::Held, 1);
        }
        self.loads.of(client).waiting += waiting.parts() as u32;
        link.queue.push(client, weighted(base, asks.tenant), waiting);
        self.note_waiting(base, id, client);
        Ok(())
    }

    /// Adds a key of a read that may be merged to its client's queue of a link.
    #[cold]
    pub(super) fn wait_key(
        &mut self,
        base: &mut Base,
        id: ConnId,
        asks: &Requester,
        mut one: Box<Batch>,
    ) -> Result<(), (Box<Batch>, Fault)> {
        let client = asks.id;
        let Some(link) = self.links.find_mut(id) else { return Err((one, Fault::Down)) };
        let upstream = base.pool(link.at).upstream;
        let bytes_max = upstream.fetch_max(one.ask);
        let entry = one.entries[0];
        if !has_place(&base.limits, link, client, entry.part.request) {
            return Err((one, Fault::QueueFull));
        }
        let is_pushed = link.queue.push_key(
            client,
            |waiting, batch| {
                let same = batch.ask == one.ask && batch.idempotent == one.idempotent;
                same && batch.prefix() == one.prefix()
                    && waiting.since == base.now
                    && !waiting.held
                    && batch.has_room(one.key(entry).len(), bytes_max)
            },
            |batch| batch.push(upstream, one.key(entry), (entry.part, entry.client), entry.cost),
        );
        if is_pushed {
            self.recycle(one);
            self.loads.of(client).waiting += 1;
            self.note_waiting(base, id, client);
            return Ok(());
        }
        one.latest = base.now;
        let waiting = Waiting::merging(one, base.now);
        self.wait(base, id, asks, waiting, true).map_err(|(waiting, fault)| match waiting.payload {
            Payload::Fetch(batch) => (batch, fault),
            _ => unreachable!("it was made of a batch"),
        })
    }

    /// Notes that something waits: the end of a turn serves it, and a client that has filled its
    /// share is not read.
    pub(super) fn note_waiting(&mut self, base: &mut Base, id: ConnId, client: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        base.gauges_changed = true;
        if link.queue.fills(client, share(&base.limits)) {
            self.events.push_back(LinkEvent::QueueFull(client));
        }
        link.account(&mut base.memory);
        if !link.has_backlog {
            link.has_backlog = true;
            self.backlogs.push(id);
        }
        self.arm(base, id);
    }

    /// Serves what waits, as far as the limits of the links have room. `turn` says what becomes of
    /// a part of this cost that has waited since then, whose client has so much outstanding.
    pub(crate) fn serve_waiting(
        &mut self,
        base: &mut Base,
        mut turn: impl FnMut(&Base, Part, Sent, (Cost, Time)) -> Turn,
    ) {
        let now = base.now;
        self.has_room_since = false;
        while let Some(client) = self.unparked.pop() {
            for at in 0..self.backlogs.len() {
                let id = self.backlogs[at];
                let Some(link) = self.links.find_mut(id) else { continue };
                if link.queue.unpark(client, link.up_since(), now) {
                    // It has a deadline again.
                    self.arm(base, id);
                }
            }
        }
        // Links to one server share the time of its work: none is always the first, whatever the
        // rhythm of its answers.
        if self.backlogs.len() > 1 {
            let chance = (base.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
            let by = chance % self.backlogs.len();
            self.backlogs.rotate_left(by);
        }
        let mut at = 0;
        while at < self.backlogs.len() {
            let id = self.backlogs[at];
            self.serve_link(base, id, &mut turn);
            match self.links.find_mut(id) {
                Some(link) if !link.queue.is_empty() => at += 1,
                link => {
                    if let Some(link) = link {
                        link.has_backlog = false;
                    }
                    self.backlogs.swap_remove(at);
                }
            }
        }
    }

    fn serve_link(
        &mut self,
        base: &mut Base,
        id: ConnId,
        turn: &mut impl FnMut(&Base, Part, Sent, (Cost, Time)) -> Turn,
    ) {
        let Some(link) = self.links.find_mut(id) else { return };
        // A few larger messages cost less than many small ones.
        if link.inflight.bytes() > link.limit.bytes() / 4 * 3 && !link.is_for_slow() {
            return;
        }
        link.queue.begin_pass();
        link.work_turn.forget_gone(&link.queue);
        while let Some(next) = self.links.find_mut(id).and_then(|link| link.queue.next()) {
            let Some(link) = self.links.find_mut(id) else { return };
            let Next { client, tenant, part, cost, effort, since } = next;
            let mut load = self.loads.find(client);
            let sent = load.as_mut().map_or(Sent::default(), |load| load.as_sent(link.depth));
            let cost = match turn(base, part, sent, (cost, since)) {
                Turn::Sent(cost) => cost,
                Turn::Later => {
                    if let Some(load) = &mut load {
                        load.is_parked = true;
                    }
                    link.queue.park(base.now);
                    self.give_turn_up(id, client);
                    continue;
                }
                Turn::Dropped => {
                    self.drop_next(base, id, client);
                    self.give_turn_up(id, client);
                    continue;
                }
            };
            if let Some(load) = load.filter(|_| cost.is_of(u64::from(limits::LARGE_MIN))) {
                load.forget_shown();
            }
            let state = &self.states[link.at.pool as usize][link.at.server as usize];
            let effort = state.works.effort_now(effort);
            link.queue.renew(cost, effort);
            let room = self.room_for(base, id, (client, effort), cost);
            let Some(link) = self.links.find_mut(id) else { return };
            match room {
                Room::Yes => {}
                Room::Others { .. } if link.queue.skip() => continue,
                Room::Others { is_short: false } => break,
                Room::Others { is_short: true } | Room::No => {
                    link.limit.note_short();
                    break;
                }
            }
            if let Some(tenant) = base.tenants.find(tenant) {
                tenant.latencies.record(Latency::QUEUE, base.now.since(since));
            }
            self.send_next(base, id, client, since);
            if let Some(link) = self.links.find_mut(id) {
                link.queue.begin_pass();
            }
        }
        if let Some(link) = self.links.find_mut(id) {
            link.account(&mut base.memory);
        }
        self.mark_dirty(id);
        self.arm(base, id);
        self.end_link_retirement(base, id);
    }

    /// Whether a link and its server have room for what is next.
    #[inline]
    fn room_for(
        &mut self,
        base: &Base,
        id: ConnId,
        (client, effort): (ConnId, Effort),
        cost: Cost,
    ) -> Room {
        const OTHERS: Room = Room::Others { is_short: false };
        let Some(link) = self.links.find_mut(id) else { return Room::No };
        let room = if effort.is_single() {
            let takes = link.takes_single(base, (client, effort), cost);
            if takes && !self.must_rest(base, id) { Room::Yes } else { OTHERS }
        } else if !link.takes_large(base, cost) {
            OTHERS
        } else if link.takes(base, cost) {
            Room::Yes
        } else if cost.is_special() && link.takes(base, cost.proven()) {
            Room::Others { is_short: cost.is_unproven() }
        } else {
            Room::No
        };
        match room {
            Room::Yes if !self.takes_work(base, id, client, effort) => OTHERS,
            Room::Yes => Room::Yes,
            room => {
                self.give_turn_up(id, client);
                room
            }
        }
    }

    /// Sends what is next in the queues of a link, and has waited since then.
    fn send_next(&mut self, base: &mut Base, id: ConnId, client: ConnId, since: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        let upstream = base.pool(link.at).upstream;
        let spare = &mut self.spare_batches;
        let (turn, now) = (base.turn, base.now);
        let taken = link.queue.take(now, |batch, entry| {
            let mut one = spare.pop().unwrap_or_else(Batch::blank);
            one.open_like(batch, turn, now);
            one.push(upstream, batch.key(entry), (entry.part, entry.client), entry.cost);
            one
        });
        if link.queue.with_room(client, share(&base.limits)) {
            self.events.push_back(LinkEvent::QueueRoom(client));
        }
        match taken {
            Taken::Key(one) => {
                self.loads.take_waiting(client, 1);
                self.merge_key(base, id, one, since);
            }
            Taken::Message(waiting) => {
                self.loads.take_waiting(client, waiting.parts());
                match waiting.payload {
                    Payload::Fetch(one) if waiting.merges => self.merge_key(base, id, one, since),
                    _ => self.send_waiting(base, id, client, waiting),
                }
            }
        }
    }

    fn drop_next(&mut self, base: &mut Base, id: ConnId, client: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let upstream = base.pool(link.at).upstream;
        let (turn, now) = (base.turn, base.now);
        let taken = link.queue.take(now, |batch, entry| {
            let mut one = Batch::blank();
            one.open_like(batch, turn, now);
            one.push(upstream, batch.key(entry), (entry.part, entry.client), entry.cost);
            one
        });
        let waiting = match taken {
            Taken::Message(waiting) => waiting,
            Taken::Key(one) => Waiting::merging(one, now),
        };
        self.forget_waiting(base, id, client, &waiting);
        self.drop_waiting(base, id, waiting);
    }

    fn drop_waiting(&mut self, base: &mut Base, id: ConnId, waiting: Waiting) {
        let Some(at) = self.links.find(id).map(|link| link.at) else { return };
        self.state(at).counters.add(ServerCounter::Dropped, 1);
        self.fail_waiting(base, id, waiting, Fault::Dropped);
    }

    /// Gives up what has been taken out of the queues of a link.
    fn fail_waiting(&mut self, base: &mut Base, id: ConnId, waiting: Waiting, fault: Fault) {
        base.gauges_changed = true;
        let server = self.links.find(id).map_or(0, |link| link.at.server);
        let Waiting { payload, .. } = waiting;
        self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: false });
    }

    /// Takes what a client's reads, and the changes that have waited for long, out of the queues,
    /// when nobody listens any more. `is_over` says which of its requests are not wanted.
    pub(crate) fn drop_unheard(
        &mut self,
        base: &mut Base,
        client: ConnId,
        is_over: impl Fn(&Base, RequestId, Time) -> bool,
    ) {
        if bug!(SendCancelled) {
            return;
        }
        for at in 0..self.backlogs.len() {
            let id = self.backlogs[at];
            self.withdraw_waiting(base, id, Some(client), Fault::Dropped, |base, one, request| {
                is_over(base, request, one.since)
            });
        }
        self.unparked.push(client);
    }

    /// Takes what fits out of the queues of a link, and gives it up.
    pub(super) fn withdraw_waiting(
        &mut self,
        base: &mut Base,
        id: ConnId,
        client: Option<ConnId>,
        fault: Fault,
        fits: impl Fn(&Base, &Waiting, RequestId) -> bool,
    ) -> usize {
        let Some(link) = self.links.find_mut(id) else { return 0 };
        let upstream = base.pool(link.at).upstream;
        let gone = link.queue.withdraw_where(
            client,
            |one, request| fits(base, one, request),
            |batch, is_out| batch.part(upstream, is_out),
        );
        let count = gone.len();
        for (client, waiting) in gone {
            self.forget_waiting(base, id, client, &waiting);
            if fault == Fault::Dropped {
                self.drop_waiting(base, id, waiting);
            } else {
                self.fail_waiting(base, id, waiting, fault);
            }
        }
        if let Some(link) = self.links.find_mut(id) {
            link.account(&mut base.memory);
        }
        if count > 0 {
            self.end_link_retirement(base, id);
        }
        count
    }

    /// Takes requests that have waited too long out of the queues of a link.
    pub(super) fn expire_waiting(&mut self, base: &mut Base, id: ConnId, queue: u64) {
        let Some(link) = self.links.find_mut(id) else { return };
        let now = base.now;
        let at = link.at;
        let late = link.queue.expire(|since| now >= since.after(queue));
        let is_busy = !late.is_empty() && self.find_busy(base, at).is_some();
        let is_silent = self.is_silent(at);
        let mut watch = None;
        for (client, waiting) in late {
            let fault = unsent_fault(is_busy, waiting.held && is_silent);
            watch = Some(fault).filter(|_| waiting.effort == Effort::Watches).or(watch);
            self.forget_waiting(base, id, client, &waiting);
            self.fail_waiting(base, id, waiting, fault);
        }
        if let Some(fault) = watch {
            self.fail_unwatched(base, id, fault);
        }
        if let Some(link) = self.links.find_mut(id) {
            link.account(&mut base.memory);
        }
    }

    /// Counts what has left a client's queue unsent.
    fn forget_waiting(&mut self, base: &Base, id: ConnId, client: ConnId, waiting: &Waiting) {
        self.loads.take_waiting(client, waiting.parts());
        self.note_settled(client);
        if let Some(link) = self.links.find_mut(id)
            && link.queue.with_room(client, share(&base.limits))
        {
            self.events.push_back(LinkEvent::QueueRoom(client));
        }
    }

    /// Takes everything that waits for a dead link.
    pub(super) fn take_waiting(&mut self, link: &mut Link) -> Vec<Payload> {
        let full: Vec<ConnId> = link.queue.full_clients().collect();
        self.events.extend(full.into_iter().map(LinkEvent::QueueRoom));
        let all = std::mem::take(&mut link.queue).into_all();
        let mut payloads = Vec::new();
        for (client, waiting) in all {
            self.loads.take_waiting(client, waiting.parts());
            self.note_settled(client);
            payloads.push(waiting.payload);
        }
        payloads
    }

    /// Marks what waits for the links of a silent server as held.
    pub(super) fn hold_waiting(&mut self, at: ServerAt, id: ConnId) {
        if let Some(link) = self.links.find_mut(id) {
            let count = link.queue.hold(|_| true);
            self.state(at).counters.add(ServerCounter::Held, count as u64);
        }
    }
}

/// Whether there is room for what is next in the queues of a link.
enum Room {
    Yes,
    /// There may be for what others ask. If there is not, the in-flight limit may be too small.
    Others {
        is_short: bool,
    },
    /// The in-flight limit has none.
    No,
}

/// Returns the weight of a tenant, for the order in which what waits is served.
fn weighted(base: &Base, tenant: u16) -> Weighted {
    Weighted { tenant, weight: base.tenants.find(tenant).map_or(1, |one| one.plan.weight) }
}

/// Returns how much of one client may wait for one link before the client is not read further:
/// messages or keys, and bytes.
fn share(limits: &Limits) -> (usize, usize) {
    let len = limits::SHARE_LEN.min(limits.link_queue / 2).max(1);
    (len, limits::SHARE_BYTES.min(limits.link_outbox / 2).max(1))
}

/// Whether a part of a request may wait in its client's queue of a link. The number of parts bounds
/// what a client pipelines. A request of many keys is bounded by bytes alone, once the first of
/// them waits.
fn has_place(limits: &Limits, link: &Link, client: ConnId, request: RequestId) -> bool {
    let (len, bytes) = link.queue.of_client(client);
    let is_in = || len < limits.link_queue || link.queue.ends_with(client, request);
    bytes < limits.link_outbox && is_in() || bug!(NoQueueBound)
}
