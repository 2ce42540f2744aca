//! Links that were lost before they had answered anything, at places that serve several clients. A
//! relay, or the server, may have ended them at what one of the clients asked.
//!
//! ```text
//!   a link is lost and owed something to one client ──▶ that client rests (`rest.rs`)
//!                                    to several     ──▶ those that it was so with three times
//!   link after link is lost, of many clients        ──▶ all rest
//!   a link has answered something                   ──▶ all this is forgotten
//! ```

use std::collections::BTreeSet;

use proto::ConnKey;

use super::link::Link;
use super::renew::clients_of;
use super::rest::Place;
use crate::Time;
use crate::base::id::ConnId;
use crate::base::limits;

/// The links of a server that were lost so, by their places.
#[derive(Default)]
pub(super) struct LostSoon(Vec<Lost>);

struct Lost {
    place: Place,
    /// When the last one was.
    last: Time,
    /// How many were, one after the other.
    count: u8,
    /// The clients to which they owed something, each with how many did; so many that they are too
    /// many for each to rest by itself.
    clients: Vec<(ConnId, u8)>,
}

/// A client that had something on so many of them may have ended them. A read is asked again once,
/// and was on two of them if another's request has ended both.
const BLAMED: u8 = 3;
/// So many clients do not all ask what ends links: each would be connected for in vain.
const CLIENTS_MAX: usize = 32;
/// So many requests of a link that is lost are looked at.
const OWED_MAX: usize = 64;

impl LostSoon {
    /// Notes a link that owed something to these clients. Returns those whose requests may have
    /// ended it.
    pub(super) fn note(&mut self, place: Place, clients: Vec<ConnId>, now: Time) -> Vec<ConnId> {
        self.0.retain(|one| now.since(one.last) < limits::BACKOFF_LAST_US);
        let known = self.0.iter().position(|one| one.place == place);
        let at = known.unwrap_or_else(|| {
            self.0.push(Lost { place, last: now, count: 0, clients: Vec::new() });
            self.0.len() - 1
        });
        let lost = &mut self.0[at];
        (lost.last, lost.count) = (now, lost.count.saturating_add(1));
        let is_one = clients.len() == 1;
        let is_blamed = |client: &ConnId| lost.count_for(*client) >= BLAMED || is_one;
        clients.into_iter().filter(is_blamed).collect()
    }

    /// Whether link after link is lost at a place: no single request does that.
    pub(super) fn is_fruitless(&self, place: Place) -> bool {
        self.0.iter().any(|one| one.place == place && one.is_fruitless())
    }

    /// Notes that a link that ends at a place has answered something.
    pub(super) fn forget(&mut self, conn_key: ConnKey, nth: Option<usize>) {
        self.0.retain(|one| (one.place.conn_key, Some(one.place.nth)) != (conn_key, nth));
    }
}

impl Lost {
    fn is_fruitless(&self) -> bool {
        self.count >= limits::FRUITLESS_MAX && self.clients.len() >= CLIENTS_MAX
    }

    /// Counts a link for a client; returns how many that are.
    fn count_for(&mut self, client: ConnId) -> u8 {
        if let Some((_, count)) = self.clients.iter_mut().find(|one| one.0 == client) {
            *count = count.saturating_add(1);
            return *count;
        }
        if self.clients.len() < CLIENTS_MAX {
            self.clients.push((client, 1));
        }
        1
    }
}

impl Link {
    /// Returns clients to which it owes something.
    pub(super) fn owed_clients(&self) -> Vec<ConnId> {
        let sent = self.outstanding.iter().take(self.first_pending());
        let clients: BTreeSet<ConnId> = sent.flat_map(clients_of).take(OWED_MAX).collect();
        clients.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: usize = 0;

    fn place() -> Place {
        Place::of_all(ConnKey::default(), PLACE)
    }

    fn client(at: usize) -> ConnId {
        ConnId::from_u64(1 << 32 | at as u64)
    }

    #[test]
    fn all_rest_where_links_of_many_clients_are_lost_and_none_answers() {
        let mut lost = LostSoon::default();
        for at in 0..CLIENTS_MAX {
            assert!(!lost.is_fruitless(place()), "after {at}");
            assert_eq!(lost.note(place(), vec![client(at)], Time(1)), [client(at)]);
        }
        assert!(lost.is_fruitless(place()));
        let mut clients: Vec<ConnId> = (0..9).map(client).collect();
        lost.note(place(), clients.clone(), Time(2));
        // They are known, though too many to be counted further.
        clients.push(client(99));
        assert_eq!(lost.note(place(), clients.clone(), Time(3)), clients[..9]);
        lost.forget(ConnKey::default(), Some(PLACE));
        assert!(!lost.is_fruitless(place()));
        assert_eq!(lost.note(place(), clients, Time(4)), []);
    }

    #[test]
    fn what_was_lost_a_while_ago_says_nothing() {
        let mut lost = LostSoon::default();
        let both = || vec![client(1), client(2)];
        for at in 0..2 * u64::from(BLAMED) {
            assert_eq!(lost.note(place(), both(), Time(at * limits::BACKOFF_LAST_US)), []);
        }
    }
}
