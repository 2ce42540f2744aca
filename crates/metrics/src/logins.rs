//! How often logins are evaluated: the rates of addresses and names, for all workers together.
//!
//! Each address and each name has a word with the time from which its next login may be evaluated.
//! A login takes both words before its password is looked at, which moves them on, and a right one
//! puts them back. So mistakes are counted and right logins are not. A word is changed by compare
//! and exchange, by any worker. A worker that dies between the two leaves words that end by
//! themselves.
//!
//! ```text
//!   word   free ── take ──▶ now + pause ── the time comes ──▶ free
//!            ▲                   │
//!            └──── give_back ────┘
//! ```
//!
//! A keyed hash chooses the word. Two addresses may share one, and then they wait for each other;
//! nobody can tell which, since the key is a secret of the proxy.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Time between two logins of one address, in microseconds: ten a second.
pub const ADDRESS_PAUSE_US: u64 = 100_000;
/// Time between two logins for one name: a hundred a second.
pub const NAME_PAUSE_US: u64 = 10_000;

/// Words for addresses and for names. An attack from a thousand addresses meets another address in
/// one of 64 cases.
const ADDRESSES: usize = 1 << 16;
const NAMES: usize = 1 << 12;
pub(crate) const WORDS: usize = ADDRESSES + NAMES;

/// The rates of logins. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct LoginRates {
    words: &'static [AtomicU64],
    secret: u64,
}

/// The words of one login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginPlaces {
    pub address: u32,
    pub name: u32,
}

/// A login that may be evaluated now. Unless it is given back, it counts as a mistake.
#[must_use]
#[derive(Debug)]
pub struct LoginToken {
    address: Taken,
    name: Taken,
}

#[derive(Debug)]
struct Taken {
    place: u32,
    before: u64,
    until: u64,
}

impl LoginRates {
    pub(crate) fn new(words: &'static [AtomicU64], secret: u64) -> LoginRates {
        assert_eq!(words.len(), WORDS, "the registry has room for them");
        LoginRates { words, secret }
    }

    /// Returns the words of a login from this address for this name.
    pub fn places(&self, address: &[u8], name: &[u8]) -> LoginPlaces {
        let (address, name) = (self.hash(b'a', address), self.hash(b'n', name));
        let name = ADDRESSES + name as usize % NAMES;
        LoginPlaces { address: (address as usize % ADDRESSES) as u32, name: name as u32 }
    }

    fn hash(&self, kind: u8, bytes: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.secret);
        hasher.write_u8(kind);
        hasher.write(bytes);
        hasher.finish()
    }

    /// Takes the right to evaluate one login. The error is a time before which there is none.
    pub fn take(&self, places: LoginPlaces, now_us: u64) -> Result<LoginToken, u64> {
        let address = self.take_one(places.address, now_us, ADDRESS_PAUSE_US)?;
        match self.take_one(places.name, now_us, NAME_PAUSE_US) {
            Ok(name) => Ok(LoginToken { address, name }),
            Err(until) => {
                self.give_one_back(&address);
                Err(until)
            }
        }
    }

    /// Undoes a `take`, because the login was right or was not evaluated.
    pub fn give_back(&self, token: LoginToken) {
        self.give_one_back(&token.address);
        self.give_one_back(&token.name);
    }

    /// Returns the time before which `take` takes nothing.
    pub fn free_at(&self, places: LoginPlaces) -> u64 {
        self.word(places.address).load(Relaxed).max(self.word(places.name).load(Relaxed))
    }

    /// Returns the time from which this address may log in. It is far in the past if the address
    /// has made no mistakes for long.
    pub fn address_free_at(&self, places: LoginPlaces) -> u64 {
        self.word(places.address).load(Relaxed)
    }

    fn word(&self, place: u32) -> &'static AtomicU64 {
        &self.words[place as usize]
    }

    fn take_one(&self, place: u32, now_us: u64, pause_us: u64) -> Result<Taken, u64> {
        let until = now_us + pause_us;
        let mut before = self.word(place).load(Relaxed);
        loop {
            if before > now_us {
                return Err(before);
            }
            match self.word(place).compare_exchange_weak(before, until, Relaxed, Relaxed) {
                Ok(_) => return Ok(Taken { place, before, until }),
                Err(changed) => before = changed,
            }
        }
    }

    /// Leaves the word alone if it has been taken again since: then its time was over anyway.
    fn give_one_back(&self, taken: &Taken) {
        let word = self.word(taken.place);
        let _ = word.compare_exchange(taken.until, taken.before, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    const SECOND: u64 = 1_000_000;

    fn rates() -> (LoginRates, LoginRates) {
        let registry = Registry::private(3, 2);
        registry.set_secret(77);
        (registry.metrics(1).logins(), registry.metrics(2).logins())
    }

    /// Two workers, each asking every millisecond: returns the times at which one might evaluate.
    fn granted(places: LoginPlaces, rates: (LoginRates, LoginRates)) -> Vec<u64> {
        let times = (5 * SECOND..15 * SECOND).step_by(1_000);
        let one = |now: &u64| match now % 2_000 {
            0 => rates.0.take(places, *now).is_ok() || rates.1.take(places, *now).is_ok(),
            _ => rates.1.take(places, *now).is_ok() || rates.0.take(places, *now).is_ok(),
        };
        times.filter(one).collect()
    }

    #[test]
    fn an_address_makes_ten_mistakes_a_second_and_a_name_meets_a_hundred_whoever_asks() {
        let (one, other) = rates();
        let times = granted(one.places(b"192.0.2.1", b"anna"), (one, other));
        assert_eq!(times.len(), 100, "ten seconds");
        assert!(times.windows(11).all(|ten| ten[10] - ten[0] >= SECOND));
        // From a hundred addresses, for one name.
        let (one, other) = rates();
        let mut count = 0;
        for now in (5 * SECOND..15 * SECOND).step_by(1_000) {
            let address = (now / 1_000 % 100) as u8;
            let places = one.places(&[address], b"anna");
            count += usize::from(one.take(places, now).is_ok());
            count += usize::from(other.take(places, now).is_ok());
        }
        assert_eq!(count, 1_000);
    }

    #[test]
    fn a_right_login_costs_nothing_and_a_late_one_takes_nothing_from_others() {
        let (one, other) = rates();
        let places = one.places(b"192.0.2.1", b"anna");
        for _ in 0..1_000 {
            let token = one.take(places, SECOND).expect("nobody has made a mistake");
            assert_eq!(other.take(places, SECOND).err(), Some(SECOND + ADDRESS_PAUSE_US));
            one.give_back(token);
        }
        assert_eq!(one.free_at(places), 0);
        let late = one.take(places, SECOND).expect("it is free");
        let _mistake = other.take(places, 2 * SECOND).expect("the time of the first is over");
        one.give_back(late);
        assert_eq!(one.free_at(places), 2 * SECOND + ADDRESS_PAUSE_US);
        // Another address is not concerned, but for the name.
        let elsewhere = one.places(b"192.0.2.2", b"anna");
        assert_eq!(one.take(elsewhere, 2 * SECOND).err(), Some(2 * SECOND + NAME_PAUSE_US));
        assert_eq!(one.address_free_at(elsewhere), 0, "what it took was given back");
        assert!(one.take(one.places(b"192.0.2.2", b"bob"), 2 * SECOND).is_ok());
    }

    #[test]
    fn another_secret_puts_addresses_elsewhere() {
        let registry = Registry::private(1, 1);
        let places = |secret| {
            registry.set_secret(secret);
            registry.metrics(0).logins().places(b"192.0.2.1", b"anna")
        };
        assert_ne!(places(1), places(2));
        assert_eq!(places(1), places(1));
    }
}
