//! Places of links that could not be filled, although their server works on the links that it has:
//! it is full, wants another password by now, or a firewall lets nothing new through. A request
//! that needs such a place is told why at once, and the next attempt waits for a pause, which is as
//! long as that before a probe. Where what a client asked may have ended a link, only that client
//! waits.

use proto::ConnKey;

use super::link::{Link, State};
use super::lost_soon::LostSoon;
use super::open::place_of;
use super::state::{ServerState, pause_after};
use super::{LinkEvent, Servers};
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{LinkClass, Requester};
use crate::base::plan::{AdminState, PoolPlan};
use crate::base::pool::Health;
use crate::base::{Base, ServerAt, limits};
use crate::{Action, Event, Time};

/// The places of a server that are not filled for a while.
#[derive(Default)]
pub(super) struct Rests {
    all: Vec<Rest>,
    /// Until then, single clients get no link at places that serve others.
    bars_until: Time,
    pub(super) lost_soon: LostSoon,
}

struct Rest {
    place: Place,
    /// When it could first not be filled.
    since: Time,
    until: Time,
    why: Fault,
    /// When that was told last.
    told: Time,
}

/// A place for a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) conn_key: ConnKey,
    /// One of those that clients share, `PRIVATE` or `TRIAL`.
    pub(super) nth: usize,
    /// The client that asks there. As the place of a rest, `NONE` is that of every client.
    pub(super) owner: ConnId,
}

impl Place {
    /// Returns a place that is no one client's.
    pub(super) fn of_all(conn_key: ConnKey, nth: usize) -> Place {
        Place { conn_key, nth, owner: ConnId::NONE }
    }

    /// Whether both are the same but for the client.
    fn is_alike(&self, other: &Place) -> bool {
        (self.conn_key, self.nth) == (other.conn_key, other.nth)
    }
}

impl Rest {
    /// Whether a link for this place would be one that rests.
    fn has(&self, place: &Place) -> bool {
        let is_its = [ConnId::NONE, place.owner].contains(&self.place.owner);
        is_its && self.place.is_alike(place)
    }
}

/// A place that stays empty is told of so often.
const TELL_US: u64 = 1_000_000;
/// The links that serve one client each. They rest together if the server takes no further one.
pub(super) const PRIVATE: usize = usize::MAX;
/// The link that is to show whether a server executes blocks.
pub(super) const TRIAL: usize = usize::MAX - 1;

impl Rests {
    /// Notes that a place could not be filled; returns whether that is to be told.
    fn note(&mut self, place: Place, why: Fault, now: Time) -> bool {
        // It is told once of all clients.
        let its = self.all.iter().filter(|one| one.place.is_alike(&place));
        let told = its.map(|one| one.told).max();
        let told = told.filter(|told| now.since(*told) < TELL_US);
        let known = self.all.iter().position(|one| one.place == place);
        let known = known.map(|at| self.all.swap_remove(at));
        // After a while in which nobody wanted it, nothing is known of it.
        let known = known.filter(|one| now.since(one.until) < limits::BACKOFF_LAST_US);
        let since = known.map_or(now, |one| one.since);
        let pause = pause_after(now.since(since));
        if self.all.len() >= limits::RESTS_MAX {
            self.all.retain(|one| one.until > now);
        }
        if self.all.len() >= limits::RESTS_MAX {
            // A server that refuses everybody is not to be tried sooner because of one client.
            let order = |one: &Rest| (one.place.owner == ConnId::NONE, one.until);
            let soonest = (0..self.all.len()).min_by_key(|at| order(&self.all[*at]));
            self.all.swap_remove(soonest.unwrap_or(0));
        }
        let until = now.after(pause);
        if place.owner != ConnId::NONE && place.nth != PRIVATE {
            self.bars_until = self.bars_until.max(until);
        }
        self.all.push(Rest { place, since, until, why, told: told.unwrap_or(now) });
        told.is_none()
    }

    /// Whether single clients get no link now at places that serve others.
    #[inline]
    pub(super) fn bar_clients(&self, now: Time) -> bool {
        self.bars_until > now
    }

    /// Returns why one client gets no link now at a place that serves others.
    pub(super) fn why_barred(&self, place: Place, now: Time) -> Option<Fault> {
        let is_it = |one: &&Rest| one.place == place && one.until > now;
        self.all.iter().find(is_it).map(|one| one.why)
    }

    /// Returns why a place is not to be filled now.
    pub(super) fn why(&self, place: Place, now: Time) -> Option<Fault> {
        let is_it = |one: &&Rest| one.has(&place) && one.until > now;
        self.all.iter().find(is_it).map(|one| one.why)
    }

    /// Returns when the last rest of a place for all clients was over, and why it was.
    pub(super) fn last_of_all(&self, place: Place) -> Option<(Time, Fault)> {
        let mut all = self.all.iter();
        all.find(|one| one.place == place).map(|one| (one.until, one.why))
    }

    /// Notes that a link has come up at a place.
    pub(super) fn end(&mut self, place: Place) {
        self.all.retain(|one| !one.has(&place));
    }

    pub(super) fn clear(&mut self) {
        *self = Rests::default();
    }
}

impl Servers {
    /// Returns the place of a link, if it has one or would have.
    pub(super) fn place_of(&self, id: ConnId, link: &Link) -> Option<usize> {
        if link.class == LinkClass::Private {
            return Some(PRIVATE);
        }
        if self.is_trial_link(link.at, id) {
            return Some(TRIAL);
        }
        let state = &self.states[link.at.pool as usize][link.at.server as usize];
        let places = state.links.get(usize::from(link.conn_key))?;
        let stands_in = |nth: usize| {
            let mut all = state.stand_ins.iter();
            all.any(|one| one.link == id && one.conn_key == link.conn_key && one.nth == nth)
        };
        (0..places.len()).find(|nth| places[*nth] == Some(id) && !stands_in(*nth))
    }

    /// Has a place rest that could not be filled. If its clients can use another link, they do:
    /// that is returned.
    #[cold]
    pub(super) fn rest_place(
        &mut self,
        base: &mut Base,
        link: &Link,
        nth: usize,
        why: Fault,
    ) -> Option<ConnId> {
        let at = link.at;
        let conn_key = base.pool(at).conn_keys.of(link.conn_key);
        // A client's request may have ended the link. A link that could not be made can be made for
        // nobody.
        let owner = if link.was_up() { link.owner } else { ConnId::NONE };
        let place = Place { conn_key, nth, owner };
        let is_shared = link.was_up() && nth < TRIAL;
        if !is_shared || !self.rest_blamed(base, link, place, why) {
            self.note_rest(base, link, place, why);
        }
        if link.class == LinkClass::Spare && link.is_idle() {
            // Clients ask on their shared link anyway.
            return None;
        }
        self.stand_in_at(base, at, link.conn_key, (nth, why))
    }

    /// Has a place rest, and tells of it now and then.
    fn note_rest(&mut self, base: &mut Base, link: &Link, place: Place, why: Fault) {
        let at = link.at;
        if self.state(at).rests.note(place, why, base.now) {
            let server = base.server(at);
            let (id, said) = (server.plan.id, server.said_of(why).map(Box::from));
            let why = if why == Fault::Refused { "refused" } else { why.row().words };
            let serves = self.has_links_up(at);
            base.log(Event::LinkRefused { server: id, why, said, serves });
        }
    }

    /// Has the clients rest whose requests may have ended a link that they share with others;
    /// false if all are to.
    fn rest_blamed(&mut self, base: &mut Base, link: &Link, place: Place, why: Fault) -> bool {
        let clients = link.owed_clients();
        let has_any = !clients.is_empty();
        let lost_soon = &mut self.state(link.at).rests.lost_soon;
        let blamed = lost_soon.note(place, clients, base.now);
        let is_fruitless = lost_soon.is_fruitless(place);
        for owner in blamed {
            self.note_rest(base, link, Place { owner, ..place }, why);
        }
        has_any && !is_fruitless
    }

    /// Ends a link that is not up although what waits for it has waited half of its time, if that
    /// can have another; returns whether it did. This judges nobody.
    pub(super) fn gives_way(&mut self, base: &mut Base, id: ConnId) -> bool {
        let Some(link) = self.links.find(id) else { return false };
        let (at, server) = (link.at, base.server(link.at));
        let is_due = link.gives_way_at(base).is_some_and(|due| base.now >= due);
        let may_be_asked = server.health == Health::Ready && server.is_in_service();
        if !is_due || !may_be_asked || !self.has_shared_for(base, link) {
            return false;
        }
        let fault = match link.state {
            State::Connecting => Fault::ConnectTimeout,
            _ => Fault::ReplyTimeout,
        };
        let Some(nth) = self.place_of(id, link) else { return false };
        // The silence of a busy server says nothing of the link.
        if self.find_busy(base, at).is_some() {
            return false;
        }
        base.actions.push_back(Action::Close(id));
        let Some(mut link) = self.take_link(base, id, Some(fault.row().words)) else {
            return false;
        };
        self.state(at).forget(id, &link);
        self.count_fault(at, fault);
        // The others may be dead, too.
        self.ask_idle_links(base, at);
        let stand_in = self.rest_place(base, &link, nth, fault);
        self.clear_out(base, (id, &mut link), stand_in, fault);
        self.events.push_back(LinkEvent::Known(at, base.hold_after(at)));
        true
    }

    /// Whether a shared link is up that can take what waits for this one. For who goes around one
    /// that is occupied, that is no gain.
    fn has_shared_for(&self, base: &Base, link: &Link) -> bool {
        let is_occupied = |one: &Link| link.class == LinkClass::Spare && one.is_occupied(base);
        let mut shared = self.shared_links(link.at, link.conn_key);
        shared.any(|(_, one)| one.is_up() && !is_occupied(one))
    }

    /// Lists the links of a connection key that clients share, whether up or not.
    fn shared_links(&self, at: ServerAt, conn_key: u16) -> impl Iterator<Item = (ConnId, &Link)> {
        let links = &self.states[at.pool as usize][at.server as usize].links;
        let places = links.get(usize::from(conn_key)).into_iter().flatten();
        let shared = places.skip(LinkClass::SPECIAL).flatten();
        shared.filter_map(|id| Some((*id, self.links.find(*id)?)))
    }

    /// Has another shared link stand in at an empty place that rests for this reason, if it may and
    /// one is there; returns it.
    #[cold]
    pub(super) fn stand_in_at(
        &mut self,
        base: &Base,
        at: ServerAt,
        conn_key: u16,
        (nth, why): (usize, Fault),
    ) -> Option<ConnId> {
        if !may_be_stood_in_for(nth, why) {
            return None;
        }
        let up = self.shared_links(at, conn_key).filter(|(_, link)| link.was_up());
        let (other, _) = up.min_by_key(|(_, link)| link.is_occupied(base))?;
        let state = self.state(at);
        let place = state.links[usize::from(conn_key)].get_mut(nth)?;
        if place.is_some() {
            return None;
        }
        // Nothing is outstanding at an empty place, so no request changes places.
        *place = Some(other);
        state.stand_ins.push(StandIn { conn_key, nth, link: other });
        Some(other)
    }

    /// Has a link stand in wherever a dead one did whose requests it takes: those who ask there
    /// have theirs among them.
    pub(super) fn stand_in_as_well(&mut self, at: ServerAt, dead: ConnId, id: ConnId) {
        let ServerState { stand_ins, links, .. } = self.state(at);
        for one in stand_ins.iter_mut().filter(|one| one.link == dead) {
            let places = links.get_mut(usize::from(one.conn_key));
            let place = places.and_then(|places| places.get_mut(one.nth));
            if let Some(place) = place.filter(|place| place.is_none()) {
                *place = Some(id);
                one.link = id;
            }
        }
    }

    /// Has a link stand in wherever a dead one did whose place it takes.
    pub(super) fn replace_stand_in(&mut self, at: ServerAt, dead: ConnId, id: ConnId) {
        for one in self.state(at).stand_ins.iter_mut().filter(|one| one.link == dead) {
            one.link = id;
        }
    }

    /// Ends the rest of the place of a link that has come up.
    pub(super) fn end_rest(&mut self, base: &Base, id: ConnId) {
        let Some(link) = self.links.find(id) else { return };
        let (at, owner) = (link.at, link.owner);
        let conn_key = base.pool(at).conn_keys.of(link.conn_key);
        if let Some(nth) = self.place_of(id, link) {
            self.state(at).rests.end(Place { conn_key, nth, owner });
        }
    }

    /// Empties the places at which another link stands in, when their rest is over and nothing of
    /// those who use them is outstanding on that link: their next request opens one. A client that
    /// has left will not ask again.
    pub(crate) fn end_stand_ins(
        &mut self,
        base: &Base,
        requester: impl Fn(ConnId) -> Option<Requester>,
    ) {
        let Servers { states, links: all, .. } = self;
        for (pool, states) in base.pools.iter().zip(states) {
            for (server, state) in pool.servers.iter().zip(states) {
                // Nothing is opened where a server drains, and any place may serve any client.
                if state.stand_ins.is_empty() || server.plan.admin == AdminState::Drain {
                    continue;
                }
                let ServerState { stand_ins, links, rests, .. } = state;
                stand_ins.retain(|one| {
                    let places = links.get_mut(usize::from(one.conn_key));
                    let place = places.and_then(|places| places.get_mut(one.nth));
                    let Some(place) = place.filter(|place| **place == Some(one.link)) else {
                        return false;
                    };
                    let conn_key = pool.conn_keys.of(one.conn_key);
                    let is_its = |asks: Requester| {
                        asks.conn_key == one.conn_key && may_use(&asks, &pool.plan, one.nth)
                    };
                    let uses = |client: ConnId| requester(client).is_some_and(is_its);
                    let stays = rests.why(Place::of_all(conn_key, one.nth), base.now).is_some()
                        || all.find(one.link).is_some_and(|link| link.askers().any(uses));
                    if !stays {
                        *place = None;
                    }
                    stays
                });
            }
        }
    }
}

/// Whether a client may have something outstanding on the link of this place.
fn may_use(asks: &Requester, plan: &PoolPlan, nth: usize) -> bool {
    // A client that goes around one server's link uses those of the others.
    let is_around = asks.class == LinkClass::Spare;
    let shared = Requester { class: LinkClass::Shared, ..*asks };
    place_of(asks, plan) == nth || is_around && place_of(&shared, plan) == nth
}

impl ServerState {
    /// Empties the places at which another link stands in.
    pub(super) fn clear_stand_ins(&mut self) {
        for StandIn { conn_key, nth, link } in self.stand_ins.drain(..) {
            let places = self.links.get_mut(usize::from(conn_key));
            if let Some(place) = places.and_then(|places| places.get_mut(nth)) {
                place.take_if(|id| *id == link);
            }
        }
    }
}

/// Whether another link may stand in at a place that rests for this reason.
fn may_be_stood_in_for(nth: usize, why: Fault) -> bool {
    match LinkClass::OF_PLACES.get(nth) {
        // A request that ends what the server does must not wait behind it.
        Some(LinkClass::Control) => false,
        // A request that has ended its own link would end the one that others share.
        Some(_) => !matches!(why, Fault::LinkLost | Fault::Poisoned),
        None => true,
    }
}

/// A link at a place that could not be filled.
pub(super) struct StandIn {
    conn_key: u16,
    nth: usize,
    link: ConnId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_whose_rest_is_over_first_makes_room_for_another() {
        let mut rests = Rests::default();
        let conn_key = ConnKey::default();
        let now = |at: usize| Time(1_000_000 + at as u64);
        for nth in 0..=limits::RESTS_MAX {
            assert!(rests.note(Place::of_all(conn_key, nth), Fault::Refused, now(nth)));
        }
        let why = |nth| rests.why(Place::of_all(conn_key, nth), now(limits::RESTS_MAX));
        assert_eq!((rests.all.len(), why(0)), (limits::RESTS_MAX, None));
        let rest = (1..=limits::RESTS_MAX).map(why);
        assert!(rest.into_iter().all(|why| why == Some(Fault::Refused)));
    }
}
