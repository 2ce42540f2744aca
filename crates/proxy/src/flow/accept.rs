//! Accept: a client comes through a listener, or from another worker.

use metrics::{PoolCounter, WorkerCounter};
use proto::{Answer, Asked, Refusal, ReplyMode, Request};

use crate::client::Client;
use crate::id::ConnId;
use crate::pool::Stage;
use crate::{Action, Event, Passed, Proxy};

/// How often refused clients are reported, in microseconds.
const REFUSED_TELL_US: u64 = 1_000_000;
const FOREIGN: &str = "one sent HTTP, as a browser does when a hostile page sends it here; it was \
                       closed, and nothing after that was read";

impl Proxy {
    /// Accepts a client. `new` says that no other worker has counted it already.
    pub(crate) fn accept(&mut self, id: u32, new: bool) -> Result<ConnId, Vec<u8>> {
        // A client's pool may be gone by the time the client arrives.
        let Some(pool_index) = self.pool_index_of(id) else { return Err(Vec::new()) };
        let is_leaving = self.draining || self.pipelines.pools[pool_index].stage != Stage::Planned;
        let is_full = self.is_full(pool_index);
        let (pool, worker) = (&mut self.pipelines.pools[pool_index], self.pipelines.worker);
        if is_leaving || is_full {
            pool.counters.add(PoolCounter::ClientsRefused, 1);
            worker.add(WorkerCounter::AcceptsRefused, 1);
            let mut refusal = Vec::new();
            let why = if is_leaving { "shutting down" } else { "too many client connections" };
            self.tell_refused(pool_index, why);
            let asked = Asked::no_request();
            self.pipelines.pools[pool_index].plan.protocol.answer(
                &asked,
                &Answer::Failed(why),
                &mut refusal,
            );
            return Err(refusal);
        }
        pool.clients += 1;
        worker.add(WorkerCounter::ClientsNow, 1);
        worker.add(WorkerCounter::Accepts, u64::from(new));
        pool.counters.add(PoolCounter::ClientsNow, 1);
        pool.counters.add(PoolCounter::ClientsTotal, u64::from(new));
        let home = pool.conn_keys.home;
        pool.conn_keys.enter(home);
        let conn_key = (home, pool.conn_keys.of(home));
        let (protocol, now) = (pool.plan.protocol, self.pipelines.now);
        let client =
            Client::new(pool_index as u32, protocol, conn_key, &self.pipelines.limits, now);
        Ok(self.pipelines.clients.insert(client))
    }

    /// Gives a client that has just come its state from another worker. `Err`: there is no room
    /// here for its connection key.
    pub(crate) fn take_over(&mut self, id: ConnId, passed: Passed) -> Result<(), Vec<u8>> {
        let client = self.pipelines.clients.find_mut(id).expect("it has just come");
        let at = client.pool as usize;
        let Some(conn_key) = self.conn_key_for(at, passed.session.conn_key) else {
            self.pipelines.drop_client(id);
            return Err(Vec::new());
        };
        let client = self.pipelines.clients.find_mut(id).expect("it has just come");
        let pool = &mut self.pipelines.pools[at];
        pool.conn_keys.leave(client.conn_key);
        pool.conn_keys.enter(conn_key);
        client.conn_key = conn_key;
        client.take_over(passed);
        Ok(())
    }

    /// Closes a client whose bytes can never become a request.
    pub(super) fn close_malformed(&mut self, id: ConnId, bytes: &[u8], why: &'static str) -> usize {
        let client = self.pipelines.clients.find(id).expect("the caller found it");
        let (pool, reply_mode) = (client.pool as usize, client.session.reply_mode);
        self.pipelines.pools[pool].counters.add(PoolCounter::Refused, 1);
        let answer = match self.must_log_in(id) {
            true => Answer::LoginFirst,
            false => Answer::Refused(Refusal::Bad(why)),
        };
        if why.is_empty() {
            self.tell_refused(pool, FOREIGN);
        } else if reply_mode == ReplyMode::On {
            self.pipelines.answer(id, &Request::placeholder(), bytes, &answer);
        }
        self.pipelines.leave(id);
        bytes.len()
    }

    /// Logs that clients are refused, but not each of them.
    pub(super) fn tell_refused(&mut self, pool_index: usize, why: &'static str) {
        let (pool, now) = (&mut self.pipelines.pools[pool_index], self.pipelines.now);
        if pool.refused_told.is_none_or(|told| now.since(told) >= REFUSED_TELL_US) {
            pool.refused_told = Some(now);
            let event = Event::ClientsRefused { pool: pool.plan.id, why };
            self.pipelines.actions.push_back(Action::Log(event));
        }
    }

    /// Whether one client more is too many. Two of the limits hold for all workers together, and
    /// workers that accept at the same moment may exceed them by one client each.
    fn is_full(&self, pool: usize) -> bool {
        let (metrics, plan) = (&self.pipelines.metrics, &self.pipelines.pools[pool].plan);
        let within =
            |limit: usize, now: &dyn Fn() -> u64| limit == usize::MAX || now() < limit as u64;
        self.pipelines.clients.len() >= self.clients_room
            || !within(self.clients_max, &|| metrics.total(0, WorkerCounter::ClientsNow))
            || !within(plan.client_connections, &|| metrics.total(plan.id, PoolCounter::ClientsNow))
    }
}
