//! The class of links that a request takes, and the change from one class to another.
//!
//! A client whose next request is of another class than what it has outstanding waits until no link
//! owes it anything: otherwise the request could overtake those before it.

use proto::{Class, Expected, Reach, Request, Work, WorkId};
use shard::Distribution;

use super::Proxy;
use crate::base::limits::Limits;
use crate::base::part::{Effort, Incoming, LinkClass, Requester};
use crate::base::size::Cost;
use crate::client::{BlockEffort, Frame, Queued};
use crate::route;

/// Whether a request of this length takes a shared link, as nearly all do, and those before it did.
#[inline(always)]
pub(super) fn is_usual(asks: &Requester, request: &Request, len: u64, limits: &Limits) -> bool {
    let is_quick = request.work == Work::Quick && !matches!(request.class, Class::Broadcast { .. });
    let is_small = asks.expected.is_below(limits.large_min, len);
    is_quick && is_small && asks.class == LinkClass::Shared
}

/// An answer that may have so many times the bytes of a large one is taken for large.
const UNPROVEN_PER_LARGE: u64 = 8;

/// Whether so much of a request is sent, or expected in answer, that others are not to wait for it.
/// A client of which nothing is known may ask for small values where others ask for large ones; for
/// an answer of several values, what is usual in the pool decides.
fn is_large(asks: &Requester, request: &Request, keys: usize, limits: &Limits) -> bool {
    let expected = match request.class {
        Class::Fetch { .. } | Class::Single { .. } if !asks.expected.is_unproven() => {
            u64::from(asks.expected.len())
        }
        Class::Split { writes: false, .. } => {
            let cost = Cost::new(0, asks.expected).of_values(keys);
            u64::from(asks.expected.len()).max(cost.unproven() / UNPROVEN_PER_LARGE)
        }
        _ => 0,
    };
    request.len() + expected >= limits.large_min
}

impl Proxy {
    /// Finds the class of a request that may be unusual, and has its client take links of that
    /// class. Returns false if the client has to wait.
    // Apart, but not cold: scripts are frequent.
    #[inline(never)]
    pub(super) fn take_class(&mut self, frame: &mut Frame, head: &[u8]) -> bool {
        let class = self.judge(frame, head);
        let is_new_watch =
            frame.asks.effort == Effort::Watches && self.clients.watched(frame.asks.id).is_none();
        if is_new_watch && !self.clear_watches(frame) {
            return false;
        }
        let is_same = class == frame.asks.class && !self.clients.is_blocked(frame.asks.id);
        if !is_same && !self.change_class(frame, class) {
            return false;
        }
        if frame.asks.effort == Effort::Waits && !bug!(SendBehindWait) {
            self.clients.set_blocked(frame.asks.id);
        }
        true
    }

    /// Returns the class of a request, and notes how long it may take.
    fn judge(&mut self, frame: &mut Frame, head: &[u8]) -> LinkClass {
        let Frame { asks, request, .. } = frame;
        if let Class::Broadcast { reach: Reach::Control, .. } = request.class {
            asks.effort = Effort::Slow;
            return self.class_in(asks, LinkClass::Control);
        }
        asks.effort = self.effort_of(asks, request, head);
        let is_private = self.base.pools[asks.pool()].plan.private;
        match asks.effort.is_slow() {
            _ if is_private || self.is_bound(asks) => LinkClass::Private,
            true => self.class_in(asks, LinkClass::Slow),
            false if is_large(asks, request, self.base.keys.len(), &self.base.limits) => {
                self.class_in(asks, LinkClass::Large)
            }
            false => self.shared_class(&frame.asks),
        }
    }

    /// Returns the class of a request that needs no special link.
    fn shared_class(&mut self, asks: &Requester) -> LinkClass {
        match self.base.spare_links {
            0 => LinkClass::Shared,
            _ => self.servers.shared_class(&self.base, asks),
        }
    }

    /// Has a client go around a link that is occupied, before the request that has been read.
    pub(super) fn go_around(&mut self, frame: &mut Frame) {
        let asks = &mut frame.asks;
        if asks.class == LinkClass::Shared && self.shared_class(asks) == LinkClass::Spare {
            self.clients.set_class(asks.id, LinkClass::Spare);
            asks.class = LinkClass::Spare;
        }
    }

    /// Returns the class of a transaction, and notes how long it may take.
    pub(super) fn judge_block(
        &mut self,
        frame: &mut Frame,
        queued: &Queued,
        server: usize,
    ) -> LinkClass {
        let asks = &mut frame.asks;
        asks.effort = match queued.effort {
            BlockEffort::Quick => Effort::Quick,
            BlockEffort::Slow => Effort::Slow,
            BlockEffort::Varies => {
                let exec = WorkId::of_command(frame.request.command);
                let work = queued.work.unwrap_or(exec);
                self.servers.effort_of(&self.base, asks.pool(), Some(server), work)
            }
        };
        let cost = queued.len as u64 + u64::from(asks.expected.len());
        let is_private = self.base.pools[asks.pool()].plan.private;
        match asks.effort.is_slow() {
            _ if is_private || queued.database.is_some() => LinkClass::Private,
            _ if self.clients.watched(asks.id).is_some() => LinkClass::Private,
            true => self.class_in(asks, LinkClass::Slow),
            false if cost >= self.base.limits.large_min => self.class_in(asks, LinkClass::Large),
            false => self.shared_class(&frame.asks),
        }
    }

    /// Whether a client's request binds it to a link of its own, or one before did.
    fn is_bound(&self, asks: &Requester) -> bool {
        let waits = asks.effort == Effort::Waits && !bug!(WaitOnShared);
        let binds = waits || asks.effort == Effort::Watches;
        // A client that watches does not take the shared links.
        binds || asks.class != LinkClass::Shared && self.clients.watched(asks.id).is_some()
    }

    /// Returns the class that a request takes in a client's pool: a class without a link of its own
    /// takes the shared links.
    pub(super) fn class_in(&self, asks: &Requester, class: LinkClass) -> LinkClass {
        let count = self.base.pools[asks.pool()].plan.class_links;
        if (class as usize) < count { class } else { LinkClass::Shared }
    }

    /// Returns how long a request may take that is not always quick.
    // Measured.
    #[inline(always)]
    pub(super) fn effort_of(&mut self, asks: &Requester, request: &Request, head: &[u8]) -> Effort {
        let id = match asks.protocol.expect(request, head) {
            Expected::Quick => return Effort::Quick,
            Expected::Slow => return Effort::Slow,
            Expected::Waits => return Effort::Waits,
            Expected::Watches => return Effort::Watches,
            Expected::AsBefore(id) => id,
        };
        let pool = asks.pool();
        // With the random distribution, its server is not known yet.
        let is_random = self.base.pools[pool].plan.distribution == Distribution::Random;
        let incoming = &Incoming { asks, request, head };
        let server = match is_random {
            true => None,
            false => route::server_for(&mut self.base, incoming),
        };
        self.servers.effort_of(&self.base, pool, server, id)
    }

    /// Has a client's next requests take links of another class. Returns false if it has to wait.
    fn change_class(&mut self, frame: &mut Frame, class: LinkClass) -> bool {
        if matches!(frame.request.class, Class::Local(_) | Class::Refuse(_)) {
            return true;
        }
        self.enter_class(frame, class)
    }

    /// As `change_class`, for a request of any kind.
    pub(super) fn enter_class(&mut self, frame: &mut Frame, class: LinkClass) -> bool {
        let id = frame.asks.id;
        // Behind a request that waits at its server, nothing is sent.
        if class == frame.asks.class && !self.clients.is_blocked(id) {
            return true;
        }
        #[cfg(seeded_bugs)]
        let at_once = bug!(ChangeClassAtOnce)
            || bug!(LargeWithoutPause) && [class, frame.asks.class].contains(&LinkClass::Large);
        #[cfg(not(seeded_bugs))]
        let at_once = false;
        if self.servers.await_idle(id) && !at_once {
            self.clients.await_owed(&mut self.base, id);
            self.clients.read_again(&mut self.base, frame);
            return false;
        }
        let stays = class == LinkClass::Private || self.clients.watched(id).is_some();
        if !stays && self.servers.has_private(id) {
            self.servers.keep_private(&mut self.base, id);
            self.handle_link_events();
        }
        self.clients.set_class(id, class);
        frame.asks.class = class;
        true
    }
}
