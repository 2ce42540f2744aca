//! The class of links that a request takes, and the change from one class to another.
//!
//! A client whose next request is of another class than what it has outstanding waits until no link
//! owes it anything: otherwise the request could overtake those before it.

use proto::{Class, Expected, Reach, Request, Work};
use shard::Distribution;

use super::Proxy;
use crate::base::limits::Limits;
use crate::base::part::{Data, Effort, Incoming, LinkClass, Requester};
use crate::base::size::Cost;
use crate::client::Frame;
use crate::route::{self, Route};

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
        class == frame.asks.class || self.change_class(frame, class)
    }

    /// Returns the class of a request, and notes how long it may take.
    fn judge(&mut self, frame: &mut Frame, head: &[u8]) -> LinkClass {
        let Frame { asks, request, .. } = frame;
        if let Class::Broadcast { reach: Reach::Control, .. } = request.class {
            asks.effort = Effort::Slow;
            return self.class_in(asks, LinkClass::Control);
        }
        asks.effort = self.effort_of(asks, request, head);
        match asks.effort.is_slow() {
            true => self.class_in(asks, LinkClass::Slow),
            false if is_large(asks, request, self.base.keys.len(), &self.base.limits) => {
                self.class_in(asks, LinkClass::Large)
            }
            false => LinkClass::Shared,
        }
    }

    /// Returns the class that a request takes in a client's pool: a class without a link of its own
    /// takes the shared links.
    fn class_in(&self, asks: &Requester, class: LinkClass) -> LinkClass {
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

    /// Answers a request that asks only whether the server is there, in a pool whose only server
    /// has said that it is busy: as the server does, or as it did last.
    #[cold]
    pub(super) fn answer_as_busy(&mut self, incoming: &Incoming<'_>) {
        let Incoming { asks, request, .. } = *incoming;
        let request = &Request { class: Class::Single { writes: false }, ..*request };
        let asked = &Incoming { request, ..*incoming };
        self.base.keys.clear();
        let route = self.route(asked);
        match route {
            Some(route @ Route::Go { server: Some(server), .. })
                if self.servers.can_answer(&self.base, asks, server) =>
            {
                let id = self.clients.begin(&mut self.base, asked, false);
                self.send_along(id, asked, Data::none(), route);
            }
            _ => self.clients.answer_busy(&mut self.base, asks.id, request),
        }
    }

    /// Has a client's next requests take links of another class. Returns false if it has to wait.
    fn change_class(&mut self, frame: &mut Frame, class: LinkClass) -> bool {
        let id = frame.asks.id;
        if matches!(frame.request.class, Class::Local(_) | Class::Refuse(_)) {
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
        self.clients.set_class(id, class);
        frame.asks.class = class;
        true
    }
}
