//! Logins that wait for their turn, because others were wrong before them.
//!
//! ```text
//!   login ─▶ enter ── free ──────────────▶ evaluated ── right: given back ─┐
//!              │ others wait, or not free               wrong: it counts   │
//!              ▼                                                           │
//!            line of the address ── its time comes: called ◀───────────────┘
//!              └── `LOGIN_WAIT_US` is over: refused, and not evaluated
//! ```
//!
//! Each address that has made a mistake has a line. The first of it is called when both its address
//! and its name are free, is read again, and then takes what it needs from the rates that all
//! workers share. If another worker was faster, it goes back to its place. A login that is right
//! frees the line at once, so that right ones do not wait for each other.
//!
//! Each worker has its own lines. Workers that wait for the same word come a short random time
//! after it is free, so none of them is always the first. For a name, an address that has made no
//! mistake in the last second comes before those that have.

use std::collections::BTreeMap;

use metrics::{LoginPlaces, LoginToken, NAME_PAUSE_US, PoolCounter};

use crate::Time;
use crate::base::id::ConnId;
use crate::base::timers::Due;
use crate::base::{Base, limits};

/// All lines of this worker.
#[derive(Default)]
pub(super) struct Attempts {
    /// By the address's word.
    lines: BTreeMap<u32, Line>,
    /// The clients in these lines, and those that are called.
    waiting: BTreeMap<ConnId, Waiter>,
    /// The number of logins that have waited so far.
    count: u64,
}

/// The logins from one address.
#[derive(Default)]
struct Line {
    waiting: BTreeMap<Rank, ConnId>,
    /// The client whose turn it is, until its password is looked at.
    called: Option<ConnId>,
    /// When the next one is called.
    wakes: Time,
    /// When its timer fires: no later.
    timer: Time,
    /// How often one has found a word taken since a login of this line was evaluated.
    losses: u32,
}

/// A place in a line: clients with fewer mistakes come first, then those that have waited longer.
type Rank = (u8, u64);

#[derive(Clone, Copy)]
struct Waiter {
    places: LoginPlaces,
    rank: Rank,
    since: Time,
}

impl Attempts {
    /// Returns the words of a login.
    pub(super) fn places(base: &Base, address: Option<[u8; 16]>, name: &[u8]) -> LoginPlaces {
        let address = site(address);
        if bug!(LoginsPerWorker) {
            let own = [&address[..], &[base.metrics.slot() as u8]].concat();
            return base.metrics.logins().places(&own, &[name, &own].concat());
        }
        base.metrics.logins().places(&address, name)
    }

    /// Takes the right to evaluate a login. None: the client waits in its line until it is called.
    pub(super) fn enter(
        &mut self,
        base: &mut Base,
        (id, pool): (ConnId, usize),
        places: LoginPlaces,
        mistakes: u8,
    ) -> Option<LoginToken> {
        let line = self.lines.entry(places.address).or_default();
        let is_first = line.called == Some(id);
        if is_first || line.is_empty() {
            match base.metrics.logins().take(places, base.now.0) {
                Ok(token) => {
                    self.waiting.remove(&id);
                    line.called = Some(id);
                    return Some(token);
                }
                Err(until) => line.rest(base, places, until),
            }
        }
        if is_first {
            line.called = None;
        }
        let waiter = self.waiting.entry(id).or_insert_with(|| {
            self.count += 1;
            base.pools[pool].counters.add(PoolCounter::LoginsDelayed, 1);
            Waiter { places, rank: (mistakes, self.count), since: base.now }
        });
        // It may have another name than before, if it was called and asked for something else.
        waiter.places = places;
        line.waiting.insert(waiter.rank, id);
        None
    }

    /// Notes that a login was evaluated. Returns the client whose turn it is now.
    pub(super) fn leave(
        &mut self,
        base: &mut Base,
        places: LoginPlaces,
        right: Option<LoginToken>,
    ) -> Option<ConnId> {
        if let Some(token) = right
            && !bug!(KeepLoginToken)
        {
            base.metrics.logins().give_back(token);
        }
        let line = self.lines.get_mut(&places.address)?;
        (line.called, line.losses) = (None, 0);
        self.call(base, places.address)
    }

    /// Takes a client out of its line. Returns the one whose turn it is then.
    pub(super) fn forget(&mut self, base: &mut Base, id: ConnId) -> Option<ConnId> {
        let waiter = self.waiting.remove(&id)?;
        let line = self.lines.get_mut(&waiter.places.address)?;
        line.waiting.remove(&waiter.rank);
        if line.called == Some(id) {
            line.called = None;
            return self.call(base, waiter.places.address);
        }
        if line.is_empty() {
            self.lines.remove(&waiter.places.address);
        }
        None
    }

    /// Returns the client whose turn it is when the timer of a line comes.
    pub(super) fn line_timer(&mut self, base: &mut Base, at: u32, set: Time) -> Option<ConnId> {
        let line = self.lines.get_mut(&at).filter(|line| line.timer == set)?;
        line.timer = Time(0);
        if base.now < line.wakes {
            line.wake(base, at, line.wakes);
            return None;
        }
        if let Some(late) = line.called.take() {
            // It was called, and cannot be read. It comes back as a new one.
            self.waiting.remove(&late);
        }
        self.call(base, at)
    }

    /// Returns the clients of a line that have waited as long as they may.
    pub(super) fn overdue(&self, at: u32, now: Time) -> Vec<ConnId> {
        let Some(line) = self.lines.get(&at) else { return Vec::new() };
        let is_overdue = |id: &ConnId| now >= self.waiting[id].since.after(limits::LOGIN_WAIT_US);
        // Those with as many mistakes have come one after the other.
        let of = |mistakes: u8| line.waiting.range((mistakes, 0)..(mistakes + 1, 0));
        let oldest = |mistakes| of(mistakes).map(|(_, id)| *id).take_while(is_overdue);
        (0..=limits::MISTAKES_MAX).flat_map(oldest).collect()
    }

    /// Returns the first of a line, if it may come. Otherwise the line rests.
    fn call(&mut self, base: &mut Base, at: u32) -> Option<ConnId> {
        let line = self.lines.get_mut(&at)?;
        let Some((_, id)) = line.waiting.first_key_value() else {
            self.lines.remove(&at);
            return None;
        };
        let (id, places) = (*id, self.waiting[id].places);
        let free_at = base.metrics.logins().free_at(places);
        if free_at > base.now.0 {
            line.rest(base, places, free_at);
            return None;
        }
        if bug!(ForgetLogin) {
            return None;
        }
        line.waiting.pop_first();
        line.called = Some(id);
        line.wake(base, at, base.now.after(CALL_US));
        Some(id)
    }

    /// Returns the number of lines.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Panics if an invariant is broken. Returns the number of clients in lines.
    pub(super) fn check(&self) -> usize {
        let in_lines: usize = self.lines.values().map(|line| line.waiting.len()).sum();
        let called = self.lines.values().filter_map(|line| line.called);
        let called = called.filter(|id| self.waiting.contains_key(id)).count();
        assert_eq!(in_lines + called, self.waiting.len(), "a client waits in one line");
        assert!(self.lines.values().all(|line| !line.is_empty()), "an empty line is forgotten");
        in_lines
    }
}

impl Line {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.called.is_none()
    }

    /// Sets the timer for the next call, a random time after the word is free.
    fn rest(&mut self, base: &mut Base, places: LoginPlaces, until: u64) {
        let own = base.metrics.logins().address_free_at(places);
        // Another worker may be looking at a login that is right. Then it is free much sooner.
        let soon = base.now.after(SOON_US << self.losses.min(SOON_MAX));
        if self.losses < SOON_MAX && soon < Time(until) {
            self.losses += 1;
            return self.wake(base, places.address, soon);
        }
        let (first, spread) = if own == until {
            (0, ADDRESS_SPREAD_US)
        } else {
            // Many addresses that wait for one name must not all try each time.
            let losses = self.losses.saturating_sub(SOON_MAX).min(LOSSES_MAX);
            self.losses += 1;
            match base.now.0.saturating_sub(own) < RECENT_US {
                true => (NAME_LATE_US, NAME_PAUSE_US << losses),
                false => (0, NAME_LATE_US << losses),
            }
        };
        let later = first + u64::from(base.random.next()) % spread;
        self.wake(base, places.address, Time(until).after(later));
    }

    fn wake(&mut self, base: &mut Base, at: u32, wakes: Time) {
        self.wakes = wakes;
        if self.timer <= base.now || self.timer > wakes {
            self.timer = wakes;
            base.timers.set(wakes, Due::LoginLine { at });
        }
    }
}

/// Returns the address that a client's mistakes count for. An IPv6 address counts with its /64, all
/// of which one person has. Clients of unix sockets have no address, and count as one.
fn site(address: Option<[u8; 16]>) -> [u8; 16] {
    let mut site = address.unwrap_or_default();
    if site[..12] != IPV4_PREFIX {
        site[8..].fill(0);
    }
    site
}

/// The first bytes of an IPv4 address in an IPv6 one.
const IPV4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// A client that is called and does not come for so long loses its turn.
const CALL_US: u64 = 100_000;
/// Workers that wait for the same address come within this time.
const ADDRESS_SPREAD_US: u64 = 4_000;
/// The first times are tried sooner: after one, two and four milliseconds.
const SOON_US: u64 = 1_000;
const SOON_MAX: u32 = 3;
/// How much later an address comes for a name if it has made a mistake in the last second.
const NAME_LATE_US: u64 = 1_000;
const RECENT_US: u64 = 1_000_000;
/// The longest time between two tries for a name is 0.64 s.
const LOSSES_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_counts_with_its_network_and_an_ipv4_one_alone() {
        let ipv6 = |network, host| {
            let mut address = [0x20; 16];
            (address[7], address[15]) = (network, host);
            site(Some(address))
        };
        assert_eq!(ipv6(1, 1), ipv6(1, 2));
        assert_ne!(ipv6(1, 1), ipv6(2, 1));
        let ipv4 = |last| {
            let mut address = [0; 16];
            address[..12].copy_from_slice(&IPV4_PREFIX);
            address[12..].copy_from_slice(&[192, 0, 2, last]);
            site(Some(address))
        };
        assert_ne!(ipv4(1), ipv4(2));
        assert_ne!(ipv4(1), site(None));
        assert_eq!(site(None), site(None));
    }
}
