//! Private links: links that serve one client, because what it asks binds its connection, or
//! because its pool gives every client links of its own.
//!
//! ```text
//!   the client's class becomes Private ──▶ a link to each server that it asks, up to a bound
//!   another class ──▶ they are kept for a while, without any state ──▶ Private again, or closed
//!   the client leaves ──▶ they are closed, with their state at the server
//! ```
//!
//! No link goes from one client to another: what a client has left on it would be the next one's.

use metrics::{TenantCounter, WorkerCounter};
use proto::Upstream;

use super::link::Link;
use super::message::{Internal, Message, Payload};
use super::rest::{PRIVATE, Place};
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::fault::{Fault, kept_of_error};
use crate::base::id::ConnId;
use crate::base::part::{LinkClass, Requester};
use crate::base::plan::Timeouts;
use crate::base::tenants::{NOBODY, Tenant};
use crate::base::timers::Due;
use crate::base::{Base, ServerAt, limits};

/// What is known of a link that serves one client.
#[derive(Default)]
pub(super) struct Own {
    /// The number that its server has given it; 0: none.
    server_id: u64,
    /// The index of the tenant for which it is counted.
    tenant: u16,
    /// Keys may be watched on it.
    pub(super) watched: bool,
    /// The offset at which the last block ends that depends on what was watched before it.
    pub(super) guarded_until: u64,
    /// A block was executed on it.
    pub(super) executed: bool,
    /// The first error in the block that is being answered; empty: none so far.
    pub(super) block_error: Vec<u8>,
    /// Its client does not need it now, and keeps it until then.
    pub(super) kept_until: Option<Time>,
    /// There is a timer for that.
    has_kept_timer: bool,
}

impl Own {
    /// Notes the number in a server's answer to the handshake.
    pub(super) fn note_welcome(&mut self, upstream: &dyn Upstream, welcome: &[u8]) {
        self.server_id = upstream.connection_id(welcome);
    }
}

impl Own {
    /// Notes an error of a command within a block.
    #[cold]
    pub(super) fn note_block_error(&mut self, line: &[u8]) {
        if self.block_error.is_empty() {
            self.block_error.extend_from_slice(&line[..kept_of_error(line)]);
        }
    }
}

/// For so long after a link could not be made, attempts may show that none can.
const LATELY_US: u64 = 2 * limits::BACKOFF_LAST_US;
/// The pause before the next attempt then, since the one before may be lost by itself.
const NEXT_US: u64 = 250_000;

impl Servers {
    /// Returns the link that only this client has to a server, and opens it if there is none.
    #[cold]
    pub(super) fn private_link_at(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        at: ServerAt,
    ) -> Result<ConnId, Fault> {
        let own = self.private.get(&asks.id).into_iter().flatten().copied();
        let its = |id: &ConnId| self.links.find(*id).is_some_and(|link| link.at == at);
        let found = own.into_iter().find(its);
        #[cfg(seeded_bugs)]
        let found = found.or_else(|| {
            let mut others = self.private.values().flatten().copied();
            others.find(|id| bug!(SharePrivate) && its(id))
        });
        if let Some(id) = found {
            let link = self.links.find(id);
            if link.is_some_and(|link| link.conn_key == asks.conn_key && !link.retiring) {
                return self.use_again(base, id, asks.tenant).map(|()| id);
            }
            // Nothing is outstanding on it: the client has waited for that.
            self.close_private(base, id, Fault::Dropped);
        }
        let state = self.state(at);
        if state.unable_until > base.now {
            return Err(Fault::Unable);
        }
        let conn_key = base.pool(at).conn_keys.of(asks.conn_key);
        if self.state(at).refuses(conn_key, base.now) {
            return Err(Fault::SetupRefused);
        }
        let place = Place { conn_key, nth: PRIVATE, owner: asks.id };
        if let Some(why) = self.state(at).rests.why(place, base.now) {
            return Err(why.of_further());
        }
        if let Some(why) = self.why_not_beside(base, at, place) {
            return Err(why.of_further());
        }
        if !has_place(base) {
            return Err(Fault::PrivateFull);
        }
        if !counts(base, asks.tenant) {
            base.worker.subtract(WorkerCounter::PrivateLinksNow, 1);
            return Err(Fault::TenantFull);
        }
        if links_open(base) > base.private_max {
            self.close_oldest_kept(base);
        }
        let id = self.begin_connect(base, at, asks.conn_key, LinkClass::Private);
        if let Some(link) = self.links.find_mut(id) {
            (link.owner, link.own.tenant) = (asks.id, asks.tenant);
        }
        self.private.entry(asks.id).or_default().push(id);
        self.set_kept_timer(base, id);
        Ok(id)
    }

    /// Has a private link looked at when its client has not used it for a while, if there is no
    /// timer for that yet. A pool may have all clients keep theirs.
    pub(super) fn set_kept_timer(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let stays = link.own.kept_until.is_none() && base.pool(link.at).plan.private;
        if !stays && !std::mem::replace(&mut link.own.has_kept_timer, true) {
            base.timers.set(base.now.after(limits::PRIVATE_KEPT_US), Due::Kept(id));
        }
    }

    /// Returns why a client gets no link as long as others' are on their way: the last could not be
    /// made, and these take longer than those that can. One attempt after the other shows whether
    /// links can be made; each client would wait in vain for as long as it may.
    fn why_not_beside(&mut self, base: &Base, at: ServerAt, place: Place) -> Option<Fault> {
        let all = Place { owner: ConnId::NONE, ..place };
        let (over, why) = self.state(at).rests.last_of_all(all)?;
        let Timeouts { connect, reply, .. } = base.pool(at).plan.timeouts;
        if base.now.since(over) >= LATELY_US + connect + reply {
            return None;
        }
        let trips = &base.server(at).trips;
        let patience = trips.patience().max(trips.patience_at_first());
        let patience = patience.max(limits::HOLD_AFTER_DEFAULT_US);
        let is_alike = |link: &&Link| {
            link.class == LinkClass::Private
                && link.at == at
                && base.pool(at).conn_keys.of(link.conn_key) == place.conn_key
                && !link.was_up()
                && link.begun >= over
                && link.begun.since(over) < LATELY_US
        };
        let begun = self.links.iter().map(|(_, link)| link).filter(is_alike).map(|link| link.begun);
        let (first, last) = begun
            .fold((base.now, Time(0)), |(first, last), begun| (first.min(begun), last.max(begun)));
        let is_soon = base.now.since(first) >= patience && base.now.since(last) < NEXT_US;
        // The silence of a busy server says nothing of the links.
        (is_soon && self.find_busy(base, at).is_none()).then_some(why)
    }

    /// Takes a client's link into use, which it may have kept.
    fn use_again(&mut self, base: &mut Base, id: ConnId, tenant: u16) -> Result<(), Fault> {
        let is_kept = self.links.find(id).is_some_and(|link| link.own.kept_until.is_some());
        if is_kept && !has_place(base) {
            return Err(Fault::PrivateFull);
        }
        let moved = self.move_to_tenant(base, id, tenant);
        match self.links.find_mut(id) {
            Some(link) if is_kept && moved.is_ok() => {
                base.worker.subtract(WorkerCounter::KeptLinksNow, 1);
                link.own.kept_until = None;
            }
            _ if is_kept => base.worker.subtract(WorkerCounter::PrivateLinksNow, 1),
            _ => {}
        }
        moved
    }

    /// Has a client keep its private links for a while, when it is owed nothing and its next
    /// requests take others. Nothing but the client's own requests was ever on them.
    #[cold]
    pub(crate) fn keep_private(&mut self, base: &mut Base, client: ConnId) {
        if bug!(KeepPrivate) {
            return;
        }
        self.end_watches(base, client);
        for id in self.private.get(&client).cloned().unwrap_or_default() {
            let may_keep = links_open(base) <= base.private_max;
            let Some(link) = self.links.find_mut(id) else { continue };
            if !may_keep || !link.may_be_kept() {
                self.close_private(base, id, Fault::Dropped);
                continue;
            }
            if link.own.kept_until.is_some() {
                continue;
            }
            link.own.kept_until = Some(base.now.after(limits::PRIVATE_KEPT_US));
            uncount(base, std::mem::replace(&mut link.own.tenant, NOBODY));
            base.worker.subtract(WorkerCounter::PrivateLinksNow, 1);
            base.worker.add(WorkerCounter::KeptLinksNow, 1);
            self.set_kept_timer(base, id);
        }
    }

    /// Closes a link that its client has kept for as long as it may, or a spare one.
    pub(crate) fn kept_timer(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        if link.class == LinkClass::Spare {
            return self.spare_timer(base, id);
        }
        match link.own.kept_until {
            Some(until) if until <= base.now => self.close_private(base, id, Fault::Dropped),
            Some(until) => base.timers.set(until, Due::Kept(id)),
            None => {
                link.own.has_kept_timer = false;
                self.set_kept_timer(base, id);
            }
        }
    }

    /// Returns the client that has asked nothing on its own link for so long that it does not keep
    /// it, unless all clients of its pool do.
    pub(crate) fn idle_owner(&mut self, base: &Base, id: ConnId) -> Option<ConnId> {
        let link = self.links.find(id).filter(|link| link.class == LinkClass::Private)?;
        let is_used = link.own.kept_until.is_none() && !base.pool(link.at).plan.private;
        let is_over = base.now.since(link.since) >= limits::PRIVATE_KEPT_US;
        let owner = link.owner;
        (is_used && is_over && !self.owes(owner)).then_some(owner)
    }

    /// Closes the link that has been kept for the longest time, since another is needed.
    fn close_oldest_kept(&mut self, base: &mut Base) {
        let kept = self.links.iter().filter_map(|(id, link)| Some((link.own.kept_until?, id)));
        if let Some((_, id)) = kept.min() {
            self.close_private(base, id, Fault::Dropped);
        }
    }

    /// Closes the private links of a client that is gone. What a server still does for it there
    /// ends with the connection.
    #[cold]
    pub(crate) fn end_private(&mut self, base: &mut Base, client: ConnId) {
        if bug!(KeepPrivate) {
            return;
        }
        for id in self.private.remove(&client).unwrap_or_default() {
            self.close_private(base, id, Fault::Dropped);
        }
    }

    /// Has a client's own link to a server ready for keys to be watched there; returns it.
    #[cold]
    pub(crate) fn begin_watch(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        server: usize,
    ) -> Result<ConnId, Fault> {
        let id = self.link_at(base, asks, server)?;
        if let Some(link) = self.links.find_mut(id) {
            assert!(link.owner == asks.id, "keys are watched on a client's own link");
            link.own.watched = true;
        }
        Ok(id)
    }

    /// Whether what was watched on a link is watched still, and requests with this connection key
    /// go there.
    pub(crate) fn keeps_watch(&self, id: ConnId, conn_key: u16) -> bool {
        let link = self.links.find(id);
        link.is_some_and(|link| link.own.watched && link.conn_key == conn_key && !link.retiring)
    }

    /// Whether keys may be watched on links of a client's own.
    pub(crate) fn is_watched(&self, client: ConnId) -> bool {
        let mut own = self.private.get(&client).into_iter().flatten();
        own.any(|id| self.links.find(*id).is_some_and(|link| link.own.watched))
    }

    /// Has the servers watch nothing any more on the links of a client to which nothing is owed.
    #[cold]
    pub(crate) fn end_watches(&mut self, base: &mut Base, client: ConnId) {
        for id in self.private.get(&client).cloned().unwrap_or_default() {
            let Some(link) = self.links.find_mut(id) else { continue };
            if !std::mem::take(&mut link.own.watched) || bug!(KeepWatch) {
                continue;
            }
            let mut words = Vec::new();
            let ask = base.pool(link.at).upstream.write_unwatch(&mut words);
            // A link that is not up has nothing on it.
            let is_up = link.is_up() && !link.retiring;
            let payload = Payload::internal(Internal::Unwatch);
            if !is_up || !self.send_internal(base, id, payload, ask, &words) {
                self.close_private(base, id, Fault::Dropped);
            }
        }
    }

    /// Has a server end what a client waits for there; false if it waits for nothing that a server
    /// knows of. The server answers the wait in its own words, so that no element is lost.
    #[cold]
    pub(crate) fn unblock(&mut self, base: &mut Base, asks: &Requester, with_error: bool) -> bool {
        let own = self.private.get(&asks.id).into_iter().flatten();
        let waiting = own.filter_map(|id| self.links.find(*id)).find(|link| {
            let is_sent = link.outstanding.front().is_some_and(|wait| wait.end <= link.sent);
            link.is_up() && link.own.server_id > 0 && is_sent && link.waits()
        });
        let Some(link) = waiting else { return false };
        let (server, number) = (link.at.server as usize, link.own.server_id);
        let mut words = Vec::new();
        let upstream = base.pools[asks.pool()].upstream;
        let ask = upstream.write_unblock(number, with_error, &mut words);
        let others = Requester { class: LinkClass::Shared, ..*asks };
        let Ok(link) = self.link_at(base, &others, server) else { return false };
        self.send_internal(base, link, Payload::internal(Internal::Unblock), ask, &words)
    }

    /// Drops from a dead link what means nothing on another.
    pub(super) fn drop_bound(&mut self, base: &mut Base, dead: ConnId) {
        let Some(link) = self.links.find_mut(dead) else { return };
        let dropped = link.withdraw_bound();
        self.fail_pending(base, dead, dropped, |_| Fault::Dropped);
    }

    /// Handles the error of a server to an internal command. If it was to watch
    /// nothing any more, nobody knows what it watches.
    pub(crate) fn refuse_internal(&mut self, base: &mut Base, id: ConnId, command: Internal) {
        if command == Internal::Unwatch {
            self.close_link(base, id, Fault::LinkLost);
        }
    }

    /// Counts a link for the tenant that its client has now: it may have logged in meanwhile.
    fn move_to_tenant(&mut self, base: &Base, id: ConnId, tenant: u16) -> Result<(), Fault> {
        let Some(link) = self.links.find_mut(id).filter(|link| link.own.tenant != tenant) else {
            return Ok(());
        };
        if !counts(base, tenant) {
            return Err(Fault::TenantFull);
        }
        uncount(base, std::mem::replace(&mut link.own.tenant, tenant));
        Ok(())
    }

    /// Counts no link for any tenant, before a plan with others is installed.
    pub(crate) fn leave_tenants(&mut self, base: &Base) {
        for id in self.private.values().flatten() {
            if let Some(link) = self.links.find_mut(*id) {
                uncount(base, std::mem::replace(&mut link.own.tenant, NOBODY));
            }
        }
    }

    /// Counts each link for the tenant that its client has by the plan that was just installed. A
    /// limit that is lower now closes none.
    pub(crate) fn join_tenants(&mut self, base: &Base, tenant_of: impl Fn(ConnId) -> u16) {
        for (owner, links) in &self.private {
            let at = tenant_of(*owner);
            for id in links {
                let link = self.links.find_mut(*id).filter(|link| link.own.kept_until.is_none());
                if let (Some(link), Some(tenant)) = (link, base.tenants.find(at)) {
                    tenant.counters.add(TenantCounter::PrivateLinksNow, 1);
                    link.own.tenant = at;
                }
            }
        }
    }

    /// Whether a client has links of its own.
    pub(crate) fn has_private(&self, client: ConnId) -> bool {
        self.private.contains_key(&client)
    }

    /// Closes a client's own link. What is left on it ends with this fault.
    pub(super) fn close_private(&mut self, base: &mut Base, id: ConnId, fault: Fault) {
        let Some(link) = self.links.find(id) else { return };
        match link.is_idle() && !link.is_waiting() && !link.owes {
            true => self.close_quietly(base, id),
            false => self.close_link(base, id, fault),
        }
    }

    /// Has a link take the place of a dead one, if that served one client.
    pub(super) fn replace_private(&mut self, dead: ConnId, id: ConnId) {
        let Some(old) = self.links.find_mut(dead) else { return };
        if old.owner == ConnId::NONE {
            return;
        }
        let owner = std::mem::replace(&mut old.owner, ConnId::NONE);
        let tenant = std::mem::replace(&mut old.own.tenant, NOBODY);
        if let Some(link) = self.links.find_mut(id) {
            (link.owner, link.own.tenant) = (owner, tenant);
        }
        for one in self.private.get_mut(&owner).into_iter().flatten() {
            if *one == dead {
                *one = id;
            }
        }
        self.events.push_back(LinkEvent::Replaced { client: owner, dead, link: id });
    }

    /// Notes that a private link is gone.
    pub(super) fn forget_private(&mut self, base: &Base, id: ConnId, link: &Link) {
        let owner = link.owner;
        if owner == ConnId::NONE {
            return;
        }
        let counter = match link.own.kept_until {
            Some(_) => WorkerCounter::KeptLinksNow,
            None => WorkerCounter::PrivateLinksNow,
        };
        base.worker.subtract(counter, 1);
        uncount(base, link.own.tenant);
        if let Some(links) = self.private.get_mut(&owner) {
            links.retain(|one| *one != id);
            if links.is_empty() {
                self.private.remove(&owner);
            }
        }
    }
}

impl Link {
    /// Withdraws what means nothing on another link: a trial, and what was to end waits, since the
    /// numbers may be those of others.
    pub(super) fn withdraw_bound(&mut self) -> Vec<Message> {
        self.withdraw_where(|message| {
            matches!(message.internal(), Some(Internal::Trial(_) | Internal::Unblock))
        })
    }

    /// Notes that a message is taken out of the queue. If its server was to watch nothing any more
    /// behind it, what it watches still has to be ended.
    pub(super) fn keep_watch_of(&mut self, message: &Message) {
        let is_guarded = message.is_block() && message.end <= self.own.guarded_until;
        if is_guarded || message.internal() == Some(Internal::Unwatch) {
            (self.own.watched, self.own.guarded_until) = (true, 0);
        }
    }

    /// Whether nothing but the proxy's own commands is on it, and it has no state. The late reply
    /// to a request that was given up may still come.
    fn may_be_kept(&self) -> bool {
        let is_own = |message: &Message| matches!(message.payload, Payload::Internal(_));
        let is_usable = self.is_up() && !self.retiring && !self.own.watched;
        is_usable && self.queue.is_empty() && self.outstanding.iter().all(is_own)
    }
}

/// Counts one more private link, unless there are as many as there may be. Other workers count
/// theirs in the same place, so all of them may find it full at once.
fn has_place(base: &Base) -> bool {
    base.worker.add(WorkerCounter::PrivateLinksNow, 1);
    let fits = base.metrics.total(0, WorkerCounter::PrivateLinksNow) <= base.private_max;
    if !fits {
        base.worker.subtract(WorkerCounter::PrivateLinksNow, 1);
    }
    fits
}

/// Returns the number of private links of all workers, with those that are kept.
fn links_open(base: &Base) -> u64 {
    let count = |counter| base.metrics.total(0, counter);
    count(WorkerCounter::PrivateLinksNow) + count(WorkerCounter::KeptLinksNow)
}

/// Counts one more link for a tenant, unless it has as many as it may.
fn counts(base: &Base, tenant: u16) -> bool {
    let count = |one: &Tenant| {
        one.count(&base.metrics, TenantCounter::PrivateLinksNow, one.plan.private_links_max)
    };
    base.tenants.find(tenant).is_none_or(count)
}

fn uncount(base: &Base, tenant: u16) {
    if let Some(tenant) = base.tenants.find(tenant) {
        tenant.counters.subtract(TenantCounter::PrivateLinksNow, 1);
    }
}
