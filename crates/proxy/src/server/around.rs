//! Going around a shared link whose server answers nothing behind a request that takes long.
//! Somebody with a connection of their own would learn at once what the server says to others: that
//! it is busy, or the answer.
//!
//! ```text
//!   the oldest request of a shared link may take long, and has taken 10 ms more than a round trip
//!     ──▶ a spare link is made: its handshake asks whether the server answers others
//!     ──▶ it is answered ──▶ clients to which nothing is owed ask there
//!     ──▶ it cannot be made ──▶ they wait behind the request, as others do; and so does what has
//!         moved there from a spare link that was lost
//!     ──▶ the shared link is answered ──▶ they go back; the spare link is closed when it was not
//!         needed for a while
//! ```
//!
//! Each worker has one such link for a connection key and server, if there is room for it.
//!
//! Slow requests have a link of their own, where one waits for the other. Behind one that takes
//! long, the server is asked whether it is busy on the control link. If it is, those that wait are
//! refused in its words.

use proto::{Ask, Class};

use super::link::Link;
use super::open::place_of;
use super::rest::Place;
use super::waiting::Waiting;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass, Requester};
use crate::base::timers::Due;
use crate::base::{Base, ServerAt, limits};

/// The places of spare links and of control links, among those of a connection key.
pub(super) const SPARE: usize = LinkClass::Spare as usize;
const CONTROL: usize = LinkClass::Control as usize;

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
        let Some(first) = link.outstanding.front() else { return };
        let (at, conn_key, end) = (link.at, link.conn_key, first.end);
        if link.class == LinkClass::Slow {
            // One that has had its time excuses no silence.
            let excuses = !first.is_late();
            link.around.again = base.now.after(limits::AROUND_AGAIN_US);
            if excuses {
                self.ask_beside(base, at, conn_key);
            }
            return;
        }
        let has_spare = self.spare_of(at, conn_key).is_some();
        let is_free = self.special_of(at, conn_key, SPARE).is_none();
        let is_able = has_spare || is_free && self.may_connect(base, at, conn_key, SPARE);
        let Some(link) = self.links.find_mut(id) else { return };
        if !is_able {
            link.around.again = base.now.after(limits::AROUND_AGAIN_US);
            return;
        }
        link.around.end = end;
        if !has_spare {
            self.connect(base, at, conn_key, SPARE);
        }
    }

    /// Handles a spare link that has come up. Clients that go around another link take this one
    /// from now on, when nothing is owed to them.
    pub(super) fn note_spare_up(&mut self, id: ConnId) {
        if let Some(link) = self.links.find(id)
            && link.class == LinkClass::Spare
            && link.is_idle()
        {
            self.events.push_back(LinkEvent::Around(link.at.pool));
        }
    }

    /// Whether clients that go around ask on this link. Nobody waits for one that has not been up,
    /// since it may not come; unless what waited for the one before it has moved there.
    pub(super) fn takes_requests(&self, id: ConnId) -> bool {
        self.links.find(id).is_some_and(|link| link.was_up() || !link.is_idle())
    }

    /// Returns the link at a special place of a connection key, which may be on its way.
    pub(super) fn special_of(&self, at: ServerAt, conn_key: u16, nth: usize) -> Option<ConnId> {
        let state = &self.states[at.pool as usize][at.server as usize];
        state.links.get(usize::from(conn_key))?[nth]
    }

    /// Returns the spare link of a connection key, which may be on its way.
    fn spare_of(&self, at: ServerAt, conn_key: u16) -> Option<ConnId> {
        let is_it =
            |id: &ConnId| self.links.find(*id).is_some_and(|one| one.class == LinkClass::Spare);
        self.special_of(at, conn_key, SPARE).filter(is_it)
    }

    /// Asks a server whether it is busy, on the control link of a connection key.
    pub(super) fn ask_beside(&mut self, base: &mut Base, at: ServerAt, conn_key: u16) {
        let id = match self.special_of(at, conn_key, CONTROL) {
            Some(id) => id,
            None if self.may_connect(base, at, conn_key, CONTROL) => {
                self.connect(base, at, conn_key, CONTROL)
            }
            None => return,
        };
        self.ask_there(base, id);
    }

    /// Refuses what waits behind requests that keep a server busy, now that it has said so: it
    /// would refuse them as well, in these words. A part of a change of several servers waits on,
    /// since the other parts may have been made.
    pub(super) fn refuse_behind(&mut self, base: &mut Base, at: ServerAt) {
        let protocol = base.pool(at).plan.protocol;
        let is_part = |ask: Ask| {
            let class = protocol.commands()[usize::from(ask.command)].class;
            matches!(
                class,
                Class::Broadcast { writes: true, .. } | Class::Split { writes: true, .. }
            )
        };
        for id in self.links_of(at) {
            let Some(link) = self.links.find_mut(id) else { continue };
            if link.class == LinkClass::Slow && link.is_occupied(base) {
                let pending = link.withdraw_where(|message| !is_part(message.ask));
                self.fail_pending(base, id, pending, |_| Fault::Busy);
                let fits = |_: &Base, one: &Waiting, _| !is_part(one.ask);
                self.withdraw_waiting(base, id, None, Fault::Busy, fits);
            }
        }
    }

    fn may_connect(&self, base: &Base, at: ServerAt, conn_key: u16, nth: usize) -> bool {
        let state = &self.states[at.pool as usize][at.server as usize];
        let conn_key = base.pool(at).conn_keys.of(conn_key);
        base.server(at).can_be_asked()
            && state.unable_until <= base.now
            && !state.refuses(conn_key, base.now)
            && state.rests.why(Place::of_all(conn_key, nth), base.now).is_none()
    }

    /// Returns the class that a client's request takes that needs no special one. It changes only
    /// where nothing is owed to the client: its requests keep their order.
    #[cold]
    pub(crate) fn shared_class(&mut self, base: &Base, asks: &Requester) -> LinkClass {
        let is_idle = !self.owes(asks.id) || bug!(OvertakeAround);
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
            let spare = link(SPARE).filter(|one| one.class == LinkClass::Spare);
            let (Some(spare), Some(shared)) = (spare, link(nth)) else { return false };
            let says_busy =
                || state.said_busy && spare.is_told_busy() && spare.since >= shared.owed;
            // One that only repeats its handshake has shown that the server answers others.
            shared.is_occupied(base) && (spare.was_up() || says_busy())
        })
    }

    /// Closes a spare link that was not needed for a while, and looks at it again otherwise.
    pub(super) fn spare_timer(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find(id) else { return };
        let is_beside = |one: &Link| {
            let is_shared = one.class == LinkClass::Shared;
            (one.at, one.conn_key) == (link.at, link.conn_key) && is_shared && one.is_occupied(base)
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
    /// yet; or when its server is to be asked whether it is busy.
    #[inline]
    pub(super) fn go_around_at(&self, base: &Base) -> Option<Time> {
        let first = self.outstanding.front()?;
        if matches!(first.effort, Effort::Quick) || first.end == self.around.end {
            return None;
        }
        let beside = if self.class == LinkClass::Slow { CONTROL } else { SPARE };
        let is_able = base.pool(self.at).plan.class_links > beside;
        let at = if is_able { self.occupied_at(base) } else { None };
        at.map(|at| at.max(self.around.again))
    }

    /// Whether its oldest request takes so long that others are not to wait behind it.
    pub(super) fn is_occupied(&self, base: &Base) -> bool {
        self.occupied_at(base).is_some_and(|at| base.now >= at)
    }

    fn occupied_at(&self, base: &Base) -> Option<Time> {
        let first = self.outstanding.front()?;
        let keeps_others = match self.class {
            LinkClass::Shared => first.effort.may_be_long(),
            LinkClass::Slow => !self.queue.is_empty(),
            _ => false,
        };
        let is_it = keeps_others && self.is_up() && first.end <= self.sent;
        let usual = base.server(self.at).trips.usual();
        is_it.then(|| self.owed.after(usual + limits::OCCUPIED_US))
    }
}
