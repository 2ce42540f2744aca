//! The invariants, asserted all at once. For the simulator and the fuzzers, as it is too expensive
//! for every event.

use proto::Quiet;

use crate::client::{Client, State as ClientState};
use crate::id::ConnId;
use crate::link::{Body, State as LinkState, Unit};
use crate::pool::{Hold, Stage};
use crate::request::{NONE, State};
use crate::{Proxy, Time};

/// Far more timers than a link or server can have, and far fewer than a leak would make.
const TIMERS_EACH: usize = 64;

impl Proxy {
    /// Panics if an invariant is broken.
    pub fn check(&self) {
        self.check_pipelines();
        self.check_links();
        self.check_servers();
        self.check_silence();
        let timers_max = TIMERS_EACH * (self.links.len() + self.pipelines.pools.len() + 64);
        assert!(self.timers.len() <= timers_max, "timers do not pile up: {}", self.timers.len());
        let clients: usize = self.pipelines.clients.iter().map(|(_, client)| client.counted).sum();
        let links: usize = self.links.iter().map(|(_, link)| link.counted).sum();
        let requests: usize = self.pipelines.requests.iter().map(|pending| pending.counted).sum();
        assert_eq!(
            self.pipelines.memory.used,
            clients + links + requests,
            "the memory account adds up"
        );
    }

    /// Returns the number of pending requests, of clients and of links. All are zero when nothing
    /// is left behind.
    pub fn census(&self) -> (usize, usize, usize) {
        (self.pipelines.requests.len(), self.pipelines.clients.len(), self.links.len())
    }

    /// Whether a client's input waits although the client is read: the client waits, or has just
    /// waited, for the capabilities of a server.
    pub fn is_awaiting(&self, id: ConnId) -> bool {
        let is_unread =
            |client: &Client| client.resumable || client.paused && !client.reading_stopped;
        self.pipelines.clients.find(id).is_some_and(is_unread)
    }

    /// Returns the number of messages in the fullest queue of any link.
    pub fn longest_queue(&self) -> usize {
        self.links.iter().map(|(_, link)| link.outstanding.len()).max().unwrap_or(0)
    }

    /// Panics if something waits on longer than it may. For when the timers that are due have been
    /// heeded; what the world can see of deadlines is not looked at here.
    pub fn check_deadlines(&self, now: Time) {
        for (id, link) in self.links.iter() {
            let queue = self.pipelines.pools[link.pool as usize].plan.timeouts.queue;
            let oldest = link.outstanding.get(link.first_pending()).map(|message| message.since);
            let is_over = |since: Time| now >= since.after(queue);
            let at = id.index();
            assert!(!oldest.is_some_and(is_over), "link {at}: a message waits since {oldest:?}");
            let gathers = link.batch.as_ref().map(|batch| batch.since);
            assert!(!gathers.is_some_and(is_over), "link {at}: gets gather since {gathers:?}");
        }
    }

    /// Panics if something waits for nothing. For the end of a turn, when all has been written that
    /// may be.
    pub fn check_rest(&self) {
        for (_, link) in self.links.iter() {
            let gathers = link.state == LinkState::Up && link.batch.is_some();
            assert!(!gathers || !link.batch_may_leave(), "gets gather although they may leave");
        }
        for (_, client) in self.pipelines.clients.iter() {
            let has_all = client.outstanding() == 0 && client.out.is_empty();
            let is_held_up = client.awaits.is_some() || client.awaits_endpoints || client.resumable;
            let is_unread =
                (client.paused || client.reading_stopped) && client.state == ClientState::Open;
            assert!(!(is_unread && has_all) || is_held_up, "a client is paused for nothing");
            if let Some(server) = client.awaits {
                let server = &self.pipelines.pools[client.pool as usize].servers[server as usize];
                assert!(server.awaited, "a client waits for a server, and it is not known");
                assert!(server.alive > 0, "a client waits for a server that is not asked");
            }
        }
    }

    fn check_pipelines(&self) {
        for (id, client) in self.pipelines.clients.iter() {
            let (mut depth, mut loud) = (0, 0);
            let mut request_id = client.head;
            while request_id != NONE {
                let pending = &self.pipelines.requests[request_id];
                assert_eq!(pending.client, id, "a pipeline holds its own client's requests");
                let quiet = pending.info.quiet;
                assert_ne!(quiet, Quiet::Silent, "a silent request stands in no pipeline");
                loud += u32::from(quiet == Quiet::Loud);
                assert_ne!(pending.state, State::Free, "a pipeline holds requests in use");
                assert_eq!(pending.state == State::Done, pending.left == 0);
                assert!(
                    request_id != client.head || pending.state == State::Waiting,
                    "a done head leaves"
                );
                if pending.next == NONE {
                    assert_eq!(client.tail, request_id, "the tail is the last");
                }
                depth += 1;
                request_id = pending.next;
            }
            assert_eq!((depth, loud), (client.depth, client.loud_count));
            let settled = client.counted == client.measure();
            assert!(client.dirty || settled, "a client that waits for nothing is accounted for");
            let outstanding = (client.depth + client.silent_count) as usize;
            assert!(outstanding <= self.pipeline_ever, "the pipeline has a bound");
        }
        for pending in self.pipelines.requests.iter() {
            assert_eq!(pending.counted, pending.measure(), "a request's account is exact");
        }
    }

    fn check_servers(&self) {
        let alive: usize =
            self.pipelines.pools.iter().flat_map(|pool| &pool.servers).map(|one| one.alive).sum();
        assert_eq!(alive, self.links.len(), "each link is its server's");
        for server in self.pipelines.pools.iter().flat_map(|pool| &pool.servers) {
            let known = server.links.iter().flatten().flatten().chain(&server.probe);
            known.for_each(|id| {
                assert!(self.links.find(*id).is_some(), "a server knows living links only")
            });
            assert!(
                server.stage != Stage::Vacant || server.alive == 0,
                "a vacant place has no link"
            );
        }
    }

    /// Checks each server's silence record against its links.
    fn check_silence(&self) {
        for (at, pool) in self.pipelines.pools.iter().enumerate() {
            for (place, server) in pool.servers.iter().enumerate() {
                let links = self.links.iter().map(|(_, link)| link);
                let its =
                    links.filter(|one| (one.pool as usize, one.server as usize) == (at, place));
                let owing = its.filter(|one| one.owes).count();
                let silence = &server.silence;
                assert_eq!(silence.owing as usize, owing, "a server owes on so many links");
                assert!(silence.hold != Hold::On || owing > 0, "who owes nothing is not silent");
                let is_rendered =
                    server.counters.value(metrics::ServerCounter::HoldingWorkersNow) == 1;
                let is_known = server.stage != Stage::Vacant;
                assert!(!is_known || is_rendered == (silence.hold == Hold::On), "others are told");
                let is_woken = self.ending_holds.contains(&(at as u32, place as u32));
                assert!(silence.hold != Hold::Ending || is_woken, "a hold comes to its end");
            }
        }
    }

    fn check_links(&self) {
        let mut parts = 0;
        for (_, link) in self.links.iter() {
            assert!(link.done <= link.sent && link.sent <= link.queued);
            assert_eq!(link.owes, link.is_waiting(), "its server knows what it owes");
            assert_eq!(link.out.len() as u64, link.queued - link.sent, "unsent is what is queued");
            let mut end = link.done;
            for message in &link.outstanding {
                assert!(message.end > end, "messages follow each other");
                end = message.end;
                parts += message.parts();
            }
            assert_eq!(end, link.queued, "the queue ends with its last message");
            assert!(link.unmerged_batch.is_none(), "a request's own batch leaves with it");
            parts += link.batch.as_ref().map_or(0, |batch| batch.outstanding().count());
            let in_fetch = |body: &Body| body.entry.is_some() && body.unit == Unit::Key;
            parts += usize::from(link.body.as_ref().is_some_and(in_fetch));
        }
        let owed: usize = self.pipelines.requests.iter().map(|pending| pending.left as usize).sum();
        parts += self.pipelines.clients.iter().filter(|(_, one)| one.barrier != NONE).count();
        parts += self.pipelines.requests.iter().filter(|pending| pending.info.awaits_retry).count();
        assert_eq!(parts, owed, "each outstanding part is in exactly one queue");
    }
}
