//! Going around a shared link whose server answers nothing behind a request that takes long.
//! Somebody with a connection of their own would learn at once what the server says to others: that
//! it is busy, or the answer.
//!
//! ```text
//!   the oldest request of a shared link may take long, and has taken 10 ms more than a round trip
//!     ──▶ a spare link is made: its handshake asks whether the server answers others
//!     ──▶ it is answered ──▶ clients to which nothing is owed ask there
//!     ──▶ the shared link is answered ──▶ they go back; the spare link is closed when it was not
//!         needed for a while
//! ```
//!
//! Each worker has one such link for a connection key and server, if there is room for it.

use super::link::Link;
use super::open::place_of;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass, Requester};
use crate::base::timers::Due;
use crate::base::{Base, ServerAt, limits};

/// The place of spare links, among those of a connection key.
const SPARE: usize = LinkClass::Spare as usize;

/// Whether others go around a link.
#[derive(Default)]
pub(super) struct Around {
    /// The end of the last message for which they were to.
    end: u64,
    /// When to look again whether they can.
    again: Time,
}

impl Servers {
    /// Makes a spare link beside a link whose oldest request has taken long, if it is time. If none
    /// can be made now, it looks again after a while.
    pub(super) fn go_around(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        if link.go_around_at(base).is_none_or(|at| base.now < at) {
            return;
        }
        let Some(first) = link.outstanding.front().map(|first| first.end) else { return };
        let (at, conn_key) = (link.at, link.conn_key);
        let has_spare = self.spare_of(at, conn_key).is_some();
        let is_able = has_spare || self.may_go_around(base, at, conn_key);
        let Some(link) = self.links.find_mut(id) else { return };
        if !is_able {
            link.around.again = base.now.after(limits::AROUND_AGAIN_US);
            return;
        }
        link.around.end = first;
        if !has_spare {
            self.connect(base, at, conn_key, SPARE);
            self.events.push_back(LinkEvent::Around(at.pool));
        }
    }

    /// Returns the spare link of a connection key, which may be on its way.
    pub(super) fn spare_of(&self, at: ServerAt, conn_key: u16) -> Option<ConnId> {
        let state = &self.states[at.pool as usize][at.server as usize];
        state.links.get(usize::from(conn_key))?[SPARE]
    }

    fn may_go_around(&self, base: &Base, at: ServerAt, conn_key: u16) -> bool {
        let state = &self.states[at.pool as usize][at.server as usize];
        let conn_key = base.pool(at).conn_keys.of(conn_key);
        base.server(at).can_be_asked()
            && state.unable_until <= base.now
            && !state.refuses(conn_key, base.now)
            && state.rests.why(conn_key, SPARE, base.now).is_none()
    }

    /// Returns the class that a client's request takes that needs no special one. It changes only
    /// where nothing is owed to the client: its requests keep their order.
    #[cold]
    pub(crate) fn shared_class(&mut self, base: &Base, asks: &Requester) -> LinkClass {
        let is_idle = self.loads.find(asks.id).is_none_or(|load| load.is_idle());
        let is_idle = is_idle || bug!(OvertakeAround);
        match asks.class {
            LinkClass::Spare if !is_idle => LinkClass::Spare,
            _ if is_idle && self.goes_around(base, asks) => LinkClass::Spare,
            _ => LinkClass::Shared,
        }
    }

    /// Whether a client finds a shared link of its own occupied, and a spare link beside it up; or
    /// the server said there, since it was occupied, that it is too busy even to choose a database.
    fn goes_around(&self, base: &Base, asks: &Requester) -> bool {
        let shared = Requester { class: LinkClass::Shared, ..*asks };
        let nth = place_of(&shared, &base.pools[asks.pool()].plan);
        self.states[asks.pool()].iter().any(|state| {
            let links = state.links.get(usize::from(asks.conn_key));
            let link = |nth: usize| links.and_then(|links| self.links.find((*links.get(nth)?)?));
            let (Some(spare), Some(shared)) = (link(SPARE), link(nth)) else { return false };
            let says_busy =
                || state.said_busy && spare.is_told_busy() && spare.since >= shared.owed;
            shared.is_occupied(base) && (spare.is_up() || says_busy())
        })
    }

    /// Closes a spare link that was not needed for a while, and looks at it again otherwise.
    pub(super) fn spare_timer(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find(id) else { return };
        let is_beside = |one: &Link| {
            (one.at, one.conn_key) == (link.at, link.conn_key) && one.is_occupied(base)
        };
        let is_used = !link.is_idle() || link.is_waiting() || link.owes;
        if is_used || self.links.iter().any(|(_, one)| is_beside(one)) {
            return base.timers.set(base.now.after(limits::SPARE_KEPT_US), Due::Kept(id));
        }
        self.close_quietly(base, id);
    }

    /// Counts a link that is begun, and looks after a while whether it is needed.
    pub(super) fn note_spare(base: &mut Base, id: ConnId, class: LinkClass) {
        if class == LinkClass::Spare {
            base.spare_links += 1;
            base.timers.set(base.now.after(limits::SPARE_KEPT_US), Due::Kept(id));
        }
    }

    /// Notes that a link is gone. If it was a spare one, what it went around may need another.
    pub(super) fn forget_spare(&mut self, base: &mut Base, link: &Link) {
        if link.class != LinkClass::Spare {
            return;
        }
        base.spare_links -= 1;
        for id in self.links_of(link.at) {
            if let Some(one) = self.links.find_mut(id).filter(|one| one.conn_key == link.conn_key) {
                one.around = Around::default();
                self.arm(base, id);
            }
        }
    }
}

impl Link {
    /// Returns when others are to go around it, if its oldest request may take long and they do not
    /// yet.
    #[inline]
    pub(super) fn go_around_at(&self, base: &Base) -> Option<Time> {
        let first = self.outstanding.front()?;
        if matches!(first.effort, Effort::Quick) || first.end == self.around.end {
            return None;
        }
        let is_able = base.pool(self.at).plan.class_links > SPARE;
        let at = if is_able { self.occupied_at(base) } else { None };
        at.map(|at| at.max(self.around.again))
    }

    /// Whether its oldest request takes so long that others are not to wait behind it.
    fn is_occupied(&self, base: &Base) -> bool {
        self.occupied_at(base).is_some_and(|at| base.now >= at)
    }

    fn occupied_at(&self, base: &Base) -> Option<Time> {
        let first = self.outstanding.front()?;
        let is_shared = self.class == LinkClass::Shared && self.is_up();
        let is_it = first.effort.may_be_long() && is_shared && first.end <= self.sent;
        let usual = base.server(self.at).trips.usual();
        is_it.then(|| self.owed.after(usual + limits::OCCUPIED_US))
    }
}
