//! The invariants of the client half.

use std::collections::BTreeMap;

use metrics::TenantCounter;
use proto::Quiet;

use super::Clients;
use super::request::State;
use super::session::Client;
use crate::Time;
use crate::base::id::ConnId;
use crate::base::part::{NONE, RequestId};
use crate::base::{Base, ServerAt, Sums};

impl Clients {
    /// Whether a client is there, or its end is still to be told.
    pub(crate) fn is_here(&self, id: ConnId) -> bool {
        self.table.find(id).is_some() || self.gone.contains(&id)
    }

    /// Panics if an invariant is broken.
    pub(crate) fn check(&self) -> Sums {
        for (id, client) in self.table.iter() {
            self.check_pipeline(id, client);
        }
        let lists = self.table.iter().map(|(_, client)| self.unwritten.len_of(client.unwritten));
        assert_eq!(self.unwritten.len(), lists.sum::<usize>(), "each entry is in one list");
        let waiting = self.table.iter().filter(|(_, client)| client.waits.login).count();
        assert_eq!(self.attempts.check(), waiting, "a client waits while it is in a line");
        for pending in self.requests.iter() {
            let counted = (pending.counted, pending.gathered);
            assert_eq!(counted, pending.measure(), "a request's account is exact");
        }
        let clients: usize = self.table.iter().map(|(_, client)| client.counted).sum();
        let queued = self.table.iter().filter_map(|(_, client)| client.transaction.as_ref());
        let queued: usize = queued.map(|one| one.checked()).sum();
        let requests: usize = self.requests.iter().map(|pending| pending.counted).sum();
        let barriers = self.table.iter().filter(|(_, one)| one.pipeline.barrier != NONE).count();
        let resting = self.requests.iter().filter(|pending| pending.info.awaits_retry).count();
        Sums {
            bytes: clients + queued + requests,
            parts: self.requests.iter().map(|pending| pending.parts_left as usize).sum(),
            parts_kept: barriers + resting,
        }
    }

    /// Panics if what is counted of a tenant is not the sum over its clients.
    pub(crate) fn check_tenants(&self, base: &Base) {
        for (at, tenant) in base.tenants.iter() {
            let clients = || self.table.iter().map(|(_, one)| one).filter(|one| one.tenant == at);
            let now = |counter| tenant.counters.value(counter);
            assert_eq!(now(TenantCounter::ClientsNow), clients().count() as u64, "its clients");
            let inflight: u64 = clients().map(Client::inflight).sum();
            assert_eq!(now(TenantCounter::InflightBytesNow), inflight, "its bytes in flight");
            let expected: usize = clients().map(|one| one.pipeline.expected).sum();
            let expected = if tenant.expects { expected as u64 } else { 0 };
            let expected = expected + base.tenants.unsettled(at);
            assert_eq!(tenant.expected, expected, "what is expected for it");
            let limited = clients().filter(|one| one.is_limited()).count();
            assert_eq!(tenant.limited as usize, limited, "those that were held back");
            let waiting = clients().filter(|one| one.waits.tenant).count();
            assert_eq!(tenant.line.len(), waiting, "those that wait are in its line");
            assert_eq!(now(TenantCounter::WaitingNow), waiting as u64, "and are counted");
            assert!(waiting == 0 || tenant.timer != Time(0), "a line is looked at");
        }
    }

    fn check_pipeline(&self, id: ConnId, client: &Client) {
        let (mut depth, mut loud) = (0, 0);
        let mut at = client.pipeline.head;
        while at != NONE {
            let pending = &self.requests[at];
            assert_eq!(pending.client, id, "a pipeline holds its own client's requests");
            let quiet = pending.info.quiet;
            assert_ne!(quiet, Quiet::Silent, "a silent request stands in no pipeline");
            loud += u32::from(quiet == Quiet::Loud);
            assert_ne!(pending.state, State::Free, "a pipeline holds requests in use");
            assert_eq!(pending.state == State::Done, pending.parts_left == 0);
            assert!(
                at != client.pipeline.head || pending.state == State::Waiting,
                "a done head leaves"
            );
            if pending.next == NONE {
                assert_eq!(client.pipeline.tail, at, "the tail is the last");
            }
            depth += 1;
            at = pending.next;
        }
        assert!(!client.out.is_empty() || client.unwritten.is_empty(), "all is written");
        assert_eq!((depth, loud), (client.pipeline.depth, client.pipeline.loud_count));
        let settled = client.counted == client.measure();
        assert!(client.dirty || settled, "a client that waits for nothing is accounted for");
        let outstanding = (client.pipeline.depth + client.pipeline.silent_count) as usize;
        // What is pushed behind the last request has one entry.
        assert!(outstanding <= self.pipeline_ever + 1, "the pipeline has a bound");
    }

    /// Returns the number of addresses whose logins wait.
    pub(crate) fn login_lines(&self) -> usize {
        self.attempts.len()
    }

    /// Panics if a client waits for room in a queue where it has not filled its share.
    pub(crate) fn check_shares(&self, full: &BTreeMap<ConnId, u32>) {
        for (id, client) in self.table.iter() {
            let full = full.get(&id).copied().unwrap_or(0);
            assert_eq!(client.waits.queues, full, "a client waits for as many queues as are full");
        }
    }

    /// Whether a request that waits for a link may still do some good.
    pub(crate) fn is_wanted(&self, id: RequestId) -> bool {
        let pending = &self.requests[id];
        pending.writes || self.table.find(pending.client).is_some()
    }

    /// Whether a client's input waits although the client is read.
    pub(crate) fn is_awaiting(&self, id: ConnId) -> bool {
        let is_unread =
            |client: &Client| client.resumable || client.is_paused() && !client.is_stopped();
        self.table.find(id).is_some_and(is_unread)
    }

    /// Returns how many bytes are kept of a client that writes before it reads.
    pub(crate) fn kept_ahead(&self, id: ConnId) -> usize {
        self.table.find(id).map_or(0, |client| client.kept_ahead())
    }

    /// Whether nothing more is read from a client.
    pub(crate) fn is_leaving(&self, id: ConnId) -> bool {
        self.table.find(id).is_none_or(|client| !client.state.is_read())
    }

    /// Panics if a client is paused for nothing. Returns the servers that clients wait for.
    pub(crate) fn check_rest(&self) -> Vec<ServerAt> {
        for (_, client) in self.table.iter() {
            let has_all = client.outstanding() == 0 && client.out.is_empty();
            let is_held_up =
                client.waits.server.is_some() || client.waits.endpoints || client.resumable;
            let is_held_up = is_held_up || client.waits.queues > 0 || client.waits.owed;
            let is_held_up = is_held_up || client.waits.login || client.waits.tenant;
            let is_held_up = is_held_up || client.waits.workers || client.waits.pause;
            let is_unread = (client.is_paused() || client.is_stopped()) && client.state.is_read();
            assert!(!(is_unread && has_all) || is_held_up, "a client is paused for nothing");
        }
        let awaited =
            |client: &Client| Some(ServerAt { pool: client.pool, server: client.waits.server? });
        self.table.iter().filter_map(|(_, client)| awaited(client)).collect()
    }
}
