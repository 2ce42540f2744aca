//! Accept: a client comes through a listener, or from another worker.

use std::rc::Rc;

use metrics::{PoolCounter, WorkerCounter};
use proto::{Answer, Asked, Refusal, Request};

use super::Clients;
use super::session::Client;
use super::tally::Record;
use super::tenant::Member;
use crate::base::Base;
use crate::base::connection::{Connection, Departed};
use crate::base::id::ConnId;
use crate::base::part::LinkClass;
use crate::base::pool::Stage;
use crate::{Action, Event, Passed};

/// How often refused clients are reported, in microseconds.
const REFUSED_TELL_US: u64 = 1_000_000;
/// The same for commands that a pool does not allow.
const NOT_ALLOWED_TELL_US: u64 = 60_000_000;
const FOREIGN: &str = "one sent HTTP, as a browser does when a hostile page sends it here; it was \
                       closed, and nothing after that was read";

impl Clients {
    /// Accepts a client. `new` says that no other worker has counted it already.
    pub(crate) fn accept(
        &mut self,
        base: &mut Base,
        id: u32,
        new: bool,
    ) -> Result<ConnId, Vec<u8>> {
        // A client's pool may be gone by the time the client arrives.
        let Some(pool) = base.pool_index_of(id) else { return Err(Vec::new()) };
        let is_leaving = self.draining || base.pools[pool].stage != Stage::Planned;
        let is_full = self.is_full(base, pool);
        let (entry, worker) = (&mut base.pools[pool], base.worker);
        if is_leaving || is_full {
            entry.counters.add(PoolCounter::ClientsRefused, 1);
            worker.add(WorkerCounter::AcceptsRefused, 1);
            let mut refusal = Vec::new();
            let why = if is_leaving { "shutting down" } else { "too many client connections" };
            self.tell_refused(base, pool, why);
            let answer = if is_leaving { Answer::Failed(why) } else { Answer::Full(why) };
            base.pools[pool].plan.protocol.answer(&Asked::no_request(), &answer, &mut refusal);
            return Err(refusal);
        }
        entry.clients += 1;
        worker.add(WorkerCounter::ClientsNow, 1);
        worker.add(WorkerCounter::Accepts, u64::from(new));
        entry.counters.add(PoolCounter::ClientsNow, 1);
        entry.counters.add(PoolCounter::ClientsTotal, u64::from(new));
        let home = entry.conn_keys.home;
        entry.conn_keys.enter(home);
        let conn_key = (home, entry.conn_keys.of(home));
        let (protocol, now) = (entry.plan.protocol, base.now);
        let is_private = entry.plan.private;
        let mut client = Client::new(pool as u32, protocol, conn_key, now);
        if new {
            client.record.tally.id = Record::new_id(base);
        }
        if is_private {
            (client.class, client.has_own) = (LinkClass::Private, true);
        }
        let client = self.table.insert(client);
        base.log_connection(|_| Connection::Came { client, pool: id, is_new: new });
        let id = client;
        if base.tenants.any()
            && let Err(why) = self.join_tenant(base, id, new)
        {
            return Err(self.refuse_accepted(base, id, &why));
        }
        Ok(id)
    }

    /// Accepts a client although all are to end, and has it end with them.
    pub(crate) fn accept_begun(&mut self, base: &mut Base, id: u32) -> Result<ConnId, Vec<u8>> {
        let draining = std::mem::take(&mut self.draining);
        let accepted = self.accept(base, id, true);
        self.draining = draining;
        if let (true, Ok(client)) = (draining, &accepted) {
            self.ask_to_finish(base, *client);
        }
        accepted
    }

    /// Refuses a client that its tenant has no room for; returns the words for it.
    #[cold]
    fn refuse_accepted(&mut self, base: &mut Base, id: ConnId, why: &str) -> Vec<u8> {
        let mut refusal = Vec::new();
        let Some(client) = self.table.find(id) else { return refusal };
        let pool = client.pool as usize;
        base.pools[pool].counters.add(PoolCounter::ClientsRefused, 1);
        base.worker.add(WorkerCounter::AcceptsRefused, 1);
        self.drop_client(base, id, Departed::Refused);
        self.tell_refused(base, pool, "a tenant has as many clients as it may have");
        let protocol = base.pools[pool].plan.protocol;
        protocol.answer(&Asked::no_request(), &Answer::Full(why), &mut refusal);
        refusal
    }

    /// Gives a client that has just come its state from another worker. `Err`: there is no room
    /// here for its connection key.
    pub(crate) fn take_over(
        &mut self,
        base: &mut Base,
        id: ConnId,
        passed: Passed,
    ) -> Result<(), Vec<u8>> {
        let Some(client) = self.table.find_mut(id) else { return Err(Vec::new()) };
        let conn_keys = &mut base.pools[client.pool as usize].conn_keys;
        let Some(conn_key) = conn_keys.find_or_add(passed.session.conn_key) else {
            self.drop_client(base, id, Departed::Refused);
            return Err(Vec::new());
        };
        conn_keys.leave(client.conn_key);
        conn_keys.enter(conn_key);
        client.conn_key = conn_key;
        let users = base.pools[client.pool as usize].plan.users.as_ref();
        let user = passed.user.as_ref().map(|name| {
            users.and_then(|users| users.find(name.as_bytes())).unwrap_or_else(|| Rc::from(&**name))
        });
        client.take_over(passed);
        client.member =
            user.map(|user| Box::new(Member { user: Some(user), ..Default::default() }));
        self.leave_tenant(base, id);
        let _ = self.join_tenant(base, id, false);
        self.end_removed_user(base, id);
        Ok(())
    }

    /// Closes a client whose bytes can never become a request.
    pub(super) fn close_malformed(
        &mut self,
        base: &mut Base,
        id: ConnId,
        bytes: &[u8],
        why: &'static str,
    ) -> usize {
        let Some(client) = self.table.find(id) else { return bytes.len() };
        let (pool, reply_mode) = (client.pool as usize, client.session.reply_mode);
        base.pools[pool].count_refused();
        let answer = match client.must_log_in(base) {
            true => Answer::LoginFirst,
            false => Answer::Refused(Refusal::Bad(why)),
        };
        if why.is_empty() {
            self.tell_refused(base, pool, FOREIGN);
        } else if reply_mode.is_on() {
            self.answer(base, id, &Request::placeholder(), bytes, &answer);
        }
        self.leave(base, id);
        bytes.len()
    }

    /// Logs that clients are refused, but not each of them.
    pub(super) fn tell_refused(&mut self, base: &mut Base, pool: usize, why: &'static str) {
        let (entry, now) = (&mut base.pools[pool], base.now);
        if entry.refused_told.is_none_or(|told| now.since(told) >= REFUSED_TELL_US) {
            entry.refused_told = Some(now);
            let event = Event::ClientsRefused { pool: entry.plan.id, why };
            base.actions.push_back(Action::Log(event));
        }
    }

    /// Logs that a command is not allowed, but not each time.
    pub(super) fn tell_not_allowed(base: &mut Base, pool: usize, name: &'static str) {
        let (entry, now) = (&mut base.pools[pool], base.now);
        let all = &mut entry.not_allowed_told;
        all.retain(|(_, told)| now.since(*told) < NOT_ALLOWED_TELL_US);
        if all.iter().all(|(one, _)| *one != name) {
            all.push((name, now));
            let event = Event::NotAllowed { pool: entry.plan.id, name };
            base.actions.push_back(Action::Log(event));
        }
    }

    /// Whether one client more is too many. Two of the limits hold for all workers together, and
    /// workers that accept at the same moment may exceed them by one client each.
    fn is_full(&self, base: &Base, pool: usize) -> bool {
        let (metrics, plan) = (&base.metrics, &base.pools[pool].plan);
        let within =
            |limit: usize, now: &dyn Fn() -> u64| limit == usize::MAX || now() < limit as u64;
        self.table.len() >= self.clients_room
            || !within(self.clients_max, &|| metrics.total(0, WorkerCounter::ClientsNow))
            || !within(plan.client_connections, &|| metrics.total(plan.id, PoolCounter::ClientsNow))
    }
}
