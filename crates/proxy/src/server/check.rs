//! The invariants of the server half.

use super::Servers;
use std::collections::BTreeMap;

use super::costs::Costs;
use super::link::Link;
use super::message::{Body, Payload, Unit};
use super::queue::FairQueue;
use super::state::Hold;
use super::waiting::Waiting;
use crate::Time;
use crate::base::id::ConnId;
use crate::base::part::{LinkClass, RequestId};
use crate::base::pool::{Health, Stage};
use crate::base::size::Cost;
use crate::base::{Base, ServerAt, Sums, limits};

impl Servers {
    /// Panics if an invariant is broken.
    pub(crate) fn check(&self, base: &Base) -> Sums {
        assert!(self.events.is_empty(), "every outcome is settled at once");
        let alive: usize = self.states.iter().flatten().map(|one| one.alive).sum();
        assert_eq!(alive, self.links.len(), "each link is its server's");
        for (pool, states) in self.states.iter().enumerate() {
            assert_eq!(states.len(), base.pools[pool].servers.len(), "each server has its state");
            for server in 0..states.len() {
                let at = ServerAt { pool: pool as u32, server: server as u32 };
                self.check_server(base, at);
            }
        }
        self.check_loads();
        self.check_private();
        self.check_spare(base);
        self.check_order();
        self.check_slow();
        self.check_work();
        Sums {
            bytes: self.links.iter().map(|(_, link)| link.counted).sum(),
            parts: self.links.iter().map(|(_, link)| check_link(link)).sum(),
            parts_kept: 0,
        }
    }

    /// Panics if a private link is not its client's, or carries what another has asked.
    fn check_private(&self) {
        let mut count = 0;
        for (id, link) in self.links.iter().filter(|(_, link)| link.class == LinkClass::Private) {
            count += 1;
            let its = self.private.get(&link.owner).is_some_and(|links| links.contains(&id));
            assert!(its, "a private link is its client's");
            assert!(
                !link.own.watched || link.own.kept_until.is_none(),
                "a link is kept without its watch"
            );
            let mut all = link.askers().peekable();
            let is_used = link.own.kept_until.is_none() || all.peek().is_none();
            assert!(is_used, "a link that is kept carries nothing");
            assert!(all.all(|one| one == link.owner), "a private link serves one client");
        }
        let listed: usize = self.private.values().map(Vec::len).sum();
        assert_eq!(listed, count, "each private link is listed once");
    }

    /// Panics if a spare link is not counted.
    fn check_spare(&self, base: &Base) {
        let spare = self.links.iter().filter(|(_, link)| link.class == LinkClass::Spare);
        assert_eq!(spare.count(), base.spare_links, "each spare link is counted");
    }

    /// Panics if a client has something outstanding on two links of a server and connection key:
    /// its requests would change places. Those that are to pass others may.
    fn check_order(&self) {
        let mut seen = BTreeMap::new();
        for (id, link) in self.links.iter().filter(|(_, link)| link.class != LinkClass::Control) {
            for client in link.askers() {
                let at = (link.at.pool, link.at.server, link.conn_key, client);
                let first = *seen.entry(at).or_insert(id);
                assert_eq!(first, id, "requests of {client:?} are on two links of a server");
            }
        }
    }

    /// Panics if more work is outstanding at a server than may be, of this worker.
    fn check_work(&self) {
        // Each link that comes up may bring as much, and what a dead one has not sent moves.
        let mut works: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
        for (_, link) in self.links.iter() {
            let (links, sum) = works.entry((link.at.pool, link.at.server)).or_default();
            let its: u64 = link.outstanding.iter().map(|message| message.effort.time()).sum();
            *links += u64::from(its > 0);
            *sum += its;
        }
        for ((pool, server), (links, sum)) in works {
            let state = &self.states[pool as usize][server as usize];
            let links = links + state.stand_ins.len() as u64;
            assert!(sum <= links * limits::WORK_MAX_US, "work of {sum} us on {links} links");
        }
    }

    pub(crate) fn is_shared(&self, link: ConnId) -> bool {
        self.links.find(link).is_some_and(|link| link.owner == ConnId::NONE)
    }

    pub(crate) fn is_spare(&self, link: ConnId) -> bool {
        self.links.find(link).is_some_and(|link| link.class == LinkClass::Spare)
    }

    pub(crate) fn is_beside(&self, link: ConnId) -> bool {
        self.links.find(link).is_some_and(Link::is_beside)
    }

    /// Whether something waits on a client's own links to be sent or to be answered.
    pub(crate) fn uses_private(&self, client: ConnId) -> bool {
        let mut own = self.private.get(&client).into_iter().flatten();
        own.any(|id| self.links.find(*id).is_some_and(|link| !link.is_idle()))
    }

    /// Lists the clients that have links of their own.
    pub(crate) fn owners(&self) -> impl Iterator<Item = ConnId> {
        self.private.keys().copied()
    }

    /// Panics if a link for slow requests has more of them than it may.
    fn check_slow(&self) {
        for (_, link) in self.links.iter().filter(|(_, link)| link.class == LinkClass::Slow) {
            let slow = link.outstanding.iter().filter(|message| message.effort.is_slow());
            let clients: Vec<ConnId> = slow.map(|message| message.client).collect();
            let mut each = clients.clone();
            each.sort_unstable();
            each.dedup();
            assert!(clients.len() <= limits::SLOW_INFLIGHT_MAX, "few slow requests are sent");
            assert_eq!(each.len(), clients.len(), "a client has one slow request outstanding");
        }
    }

    /// Panics if what clients have outstanding is not what stands on links.
    fn check_loads(&self) {
        let mut found: BTreeMap<ConnId, (u32, u32, u64)> = BTreeMap::new();
        for (_, link) in self.links.iter() {
            for (client, waiting, _) in link.queue.iter() {
                found.entry(client).or_default().0 += waiting.parts() as u32;
            }
            let mut sent = |client, cost: Cost| {
                let load = found.entry(client).or_default();
                (load.1, load.2) = (load.1 + 1, load.2 + cost.bytes());
            };
            for message in &link.outstanding {
                if let Payload::Single(_) = message.payload {
                    sent(message.client, message.cost);
                }
            }
            for entry in link.batches().flat_map(|batch| &batch.entries) {
                sent(entry.client, entry.cost);
            }
        }
        for load in self.loads.iter() {
            let of_links = found.remove(&load.client).unwrap_or_default();
            let counted = (load.waiting, load.sent, load.inflight);
            assert_eq!(counted, of_links, "a client has so much outstanding");
        }
    }

    fn check_server(&self, base: &Base, at: ServerAt) {
        let (server, state) = (base.server(at), &self.states[at.pool as usize][at.server as usize]);
        for id in state.links.iter().flatten().flatten().chain(&state.probe).chain(&state.judge) {
            assert!(self.links.find(*id).is_some(), "a server knows living links only");
        }
        let is_vacant = server.stage == Stage::Vacant;
        assert!(!is_vacant || state.alive == 0, "a vacant place has no link");
        // Its silence agrees with its links.
        let its = self.links.iter().filter(|(_, link)| link.at == at);
        let owing = its.filter(|(_, link)| link.owes).count();
        let silence = &state.silence;
        assert_eq!(silence.owing as usize, owing, "a server owes on so many links");
        let is_held = silence.hold == Hold::On;
        assert!(!is_held || owing > 0, "a server that owes nothing is not silent");
        let is_told = state.counters.value(metrics::ServerCounter::HoldingWorkersNow) == 1;
        assert!(is_vacant || is_told == is_held, "others are told");
        let is_down = server.health == Health::Down && !server.ejected;
        let is_told = state.counters.value(metrics::ServerCounter::DownWorkersNow) == 1;
        assert!(!server.is_in_service() || is_told == is_down, "operators are told");
        let is_watched =
            server.is_in_service() || state.probe.is_none() && state.probe_at.is_none();
        assert!(is_watched, "a server that is out of service is not probed");
        let is_woken = self.ending_holds.contains(&at);
        assert!(silence.hold != Hold::Ending || is_woken, "a hold comes to its end");
    }

    /// Returns the most of one client that waits for one link: messages and keys, but for those of
    /// its last request, and bytes of reads, but for its last two messages.
    pub(crate) fn longest_queue(&self) -> (usize, usize) {
        let queues = || self.links.iter().map(|(_, link)| &link.queue);
        let longest = queues().map(FairQueue::longest).max().unwrap_or(0);
        (longest, queues().map(FairQueue::largest).max().unwrap_or(0))
    }

    /// Whether something waits for a link.
    pub(crate) fn is_waited_for(&self, id: ConnId) -> bool {
        self.links.find(id).is_some_and(|link| !link.queue.is_empty())
    }

    /// Returns how many parts of a client's requests wait for links.
    pub(crate) fn waiting_of(&self, client: ConnId) -> usize {
        self.loads.iter().find(|load| load.client == client).map_or(0, |load| load.waiting as usize)
    }

    /// Lists the requests that wait for links.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = RequestId> {
        let all = self.links.iter().flat_map(|(_, link)| link.queue.iter());
        all.flat_map(|(_, waiting, _)| {
            let requests: Vec<RequestId> = match &waiting.payload {
                Payload::Fetch(batch) => batch.outstanding().map(|one| one.part.request).collect(),
                Payload::Single(part) => vec![part.request],
                Payload::Internal(_) => {
                    unreachable!("the proxy's own do not wait")
                }
            };
            requests
        })
    }

    /// Lists the clients that wait for their turn at a link: how often each stood aside, and the
    /// cost that it was granted so far.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (ConnId, ConnId, u32, i64)> {
        let links = self.links.iter();
        links.flat_map(|(id, link)| {
            let grants = link.queue.grants();
            grants.map(move |(client, breaks, granted)| (id, client, breaks, granted))
        })
    }

    /// Lists the in-flight limits of links, each with the number of its rounds so far.
    pub(crate) fn inflight_limits(&self) -> impl Iterator<Item = (ConnId, u32, u64)> {
        self.links.iter().map(|(id, link)| (id, link.limit.rounds(), link.limit.bytes()))
    }

    /// Counts the links at which each client has filled its share.
    pub(crate) fn full_clients(&self) -> BTreeMap<ConnId, u32> {
        let mut full = BTreeMap::new();
        for client in self.links.iter().flat_map(|(_, link)| link.queue.full_clients()) {
            *full.entry(client).or_default() += 1;
        }
        full
    }

    /// Whether a server has a link, or one on its way.
    pub(crate) fn has_link(&self, at: ServerAt) -> bool {
        self.states[at.pool as usize][at.server as usize].alive > 0
    }

    /// Panics if a message waits on longer than it may.
    pub(crate) fn check_deadlines(&self, base: &Base, now: Time) {
        for (id, link) in self.links.iter() {
            let queue = link.queue_timeout(&base.pool(link.at).plan.timeouts);
            let pending = link.outstanding.range(link.first_pending()..);
            let pending = pending.filter(|message| message.expires());
            let oldest = pending.map(|message| message.since).min();
            let is_over = |since: Time| now >= since.after(queue);
            let at = id.index();
            assert!(!oldest.is_some_and(is_over), "link {at}: a message waits since {oldest:?}");
            let gathers = link.batch.as_ref().map(|batch| batch.since);
            assert!(!gathers.is_some_and(is_over), "link {at}: gets gather since {gathers:?}");
            for (_, waiting, is_parked) in link.queue.iter() {
                let since = waiting.since;
                assert!(is_parked || !is_over(since), "link {at}: one waits since {since:?}");
            }
        }
    }

    /// Panics if a batch or a client waits for nothing.
    pub(crate) fn check_rest(&self, base: &Base) {
        for (id, link) in self.links.iter() {
            // A timer ends a rest, and so does the end of a turn in which the others have gone.
            let rests = |one: &Waiting| {
                one.effort.is_single() && link.rests_until.is_some()
                    || one.effort.is_bounded() && (self.work_at(link.at) > 0 || !link.is_up())
                    || !self.has_room_for(base, id, one.effort)
            };
            let is_due = link.queue.firsts().any(|one| !rests(one));
            let is_due = is_due && link.inflight.bytes() == 0 && !self.has_room_since;
            assert!(!is_due, "a client waits although nothing is in flight");
            assert!(link.queue.is_empty() || self.backlogs.contains(&id), "what waits is served");
            let gathers = link.is_up() && link.batch.is_some();
            assert!(!gathers || !link.batch_may_leave(), "gets gather although they may leave");
        }
    }
}

/// Panics if an invariant of a link is broken. Returns how many parts stand in its queue.
fn check_link(link: &Link) -> usize {
    assert!(link.done <= link.sent && link.sent <= link.queued);
    assert_eq!(link.owes, link.is_waiting() && !link.waits(), "its server knows what it owes");
    assert_eq!(link.out.len() as u64, link.queued - link.sent, "unsent is what is queued");
    let (mut parts, mut end) = (0, link.done);
    for message in &link.outstanding {
        assert!(message.end > end, "messages follow each other");
        end = message.end;
        parts += message.parts();
    }
    assert_eq!(end, link.queued, "the queue ends with its last message");
    assert!(link.unmerged_batch.is_none(), "a request's own batch leaves with it");
    parts += link.batch.as_ref().map_or(0, |batch| batch.outstanding().count());
    parts += link.queue.iter().map(|(_, waiting, _)| waiting.parts()).sum::<usize>();
    let mut costs = Costs::default();
    link.outstanding.iter().for_each(|message| costs.add(message.cost));
    link.batches().for_each(|batch| costs.add_all(batch.costs));
    assert_eq!(link.inflight, costs, "the costs in flight add up");
    assert!(link.queue.largest_balance() <= limits::QUANTUM, "a client gathers credit");
    let in_fetch = |body: &Body| body.arrival.part.is_some() && body.unit == Unit::Key;
    parts + usize::from(link.body.as_ref().is_some_and(in_fetch))
}
