//! `accept: mutex`: for kernels that wake every worker for each client. The listeners are shared,
//! and only who holds a lock watches them.
//!
//! ```text
//!   try the lock ─┬─ ours ─────▶ watch, wait ─▶ accept first ─▶ unlock ─▶ then everything else
//!                 └─ another's ▶ do not watch, wait for at most `epoll_timeout`
//! ```
//!
//! So one client wakes one worker, and a worker that is busy with requests never holds the lock.
//! The kernel frees the lock when its holder dies; the next one to try has it.
//!
//! **The threshold**: a worker that has taken more than its share does not try for as many turns as
//! it has clients too many, one less each time; and it wakes the worker with the fewest, so that no
//! client waits for a whole `epoll_timeout`. When the turns are over it tries whatever its share
//! is: a worker that is stopped cannot keep the others from accepting.

use std::os::fd::OwnedFd;

use proxy::Time;

use super::peers::Peers;

pub struct Mutex {
    lock: OwnedFd,
    state: State,
    /// How long a worker without the lock may sleep, microseconds.
    epoll_timeout_us: u64,
    /// Turns in which the lock is not tried.
    skips: u32,
    /// Taken since the lock was last ours.
    taken: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The lock is ours: clients that wait are for us.
    Held,
    /// It was ours; we still watch, which has no effect while we do not wait.
    Released,
    /// It is another's.
    Without,
}

/// Clients that a worker has too many, when the least loaded one has `least`.
pub fn excess(mine: u32, least: u32) -> u32 {
    let share = least.saturating_add(SLACK + least / LEAST_SHARE);
    if mine <= share { 0 } else { mine - least }
}

impl Mutex {
    pub fn new(lock: OwnedFd) -> Mutex {
        let epoll_timeout_us = EPOLL_TIMEOUT_US;
        Mutex { lock, state: State::Without, epoll_timeout_us, skips: 0, taken: 0 }
    }

    pub fn set_epoll_timeout(&mut self, us: u64) {
        self.epoll_timeout_us = us;
    }

    /// Before a wait: whether to watch the listeners.
    pub fn begin(&mut self, peers: &Peers, mine: u32) -> bool {
        assert!(self.state != State::Held, "the lock is given up before everything else");
        self.taken = 0;
        // With no more than our share again, we need not wait for the worker that we have woken.
        let is_over = self.skips > 0 && self.excess(peers, mine) > 0;
        self.skips = if is_over { self.skips - 1 } else { 0 };
        // An error is like another's lock: the next turn tries again.
        let ours = self.skips == 0 && sys::lock::try_lock(&self.lock).unwrap_or(false);
        self.state = if ours { State::Held } else { State::Without };
        ours
    }

    /// Whether a client that waits is for us: one in any case, more within our share.
    pub fn may_take(&self, peers: &Peers, mine: u32) -> bool {
        self.state == State::Held && (self.taken == 0 || self.excess(peers, mine) == 0)
    }

    pub fn took(&mut self) {
        self.taken += 1;
    }

    /// All clients that waited have been taken: gives up the lock, if it was ours.
    pub fn end(&mut self, peers: &Peers, mine: u32) {
        if self.state != State::Held {
            return;
        }
        self.state = State::Released;
        // It cannot fail for a lock that is ours.
        let _ = sys::lock::unlock(&self.lock);
        let excess = self.excess(peers, mine);
        if self.taken > 0 && excess > 0 {
            self.skips = excess.min(SKIPS_MAX) + 1;
            if let Some(least) = peers.fewest(|_| true) {
                peers.wake(least.slot);
            }
        }
    }

    /// Until when we may sleep at most.
    pub fn wake_by(&self, now: Time) -> Option<Time> {
        (self.state == State::Without).then(|| now.after(self.epoll_timeout_us))
    }

    fn excess(&self, peers: &Peers, mine: u32) -> u32 {
        peers.fewest(|_| true).map_or(0, |least| excess(mine, least.clients))
    }
}

/// How long a worker without the lock sleeps, until it is told otherwise, microseconds.
const EPOLL_TIMEOUT_US: u64 = 50_000;
/// Clients that a worker may have more than the least loaded one: handing the lock on wakes one,
/// and one client is to wake one worker …
const SLACK: u32 = 4;
/// … and for every so many of these, one more.
const LEAST_SHARE: u32 = 8;
/// Turns without trying for the lock, at most: a stopped worker has the fewest clients for ever.
const SKIPS_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::super::tests::peers;
    use super::*;

    fn mutex() -> Mutex {
        // Locks are between processes: in one, everybody gets it.
        Mutex::new(sys::lock::new().unwrap())
    }

    #[test]
    fn who_has_too_many_skips_and_the_skips_decay() {
        let everyone = peers(2);
        let (us, scoreboard) = (&everyone[0], &everyone[0].scoreboard);
        let mut mutex = mutex();
        assert!(mutex.begin(us, 0) && mutex.may_take(us, 0));
        mutex.took();
        scoreboard.set_connections(0, 7);
        assert!(!mutex.may_take(us, 7), "one client more than our share, once");
        mutex.end(us, 7);
        let skipped =
            std::iter::repeat_with(|| mutex.begin(us, 7)).take_while(|tried| !tried).count();
        assert_eq!(skipped, 7);
        assert!(mutex.may_take(us, 7), "whatever the share: the other one may be stopped");
    }

    #[test]
    fn who_has_its_share_again_tries_at_once() {
        let everyone = peers(2);
        let (us, scoreboard) = (&everyone[0], &everyone[0].scoreboard);
        let mut mutex = mutex();
        assert!(mutex.begin(us, 0));
        mutex.took();
        scoreboard.set_connections(0, 9);
        mutex.end(us, 9);
        assert!(!mutex.begin(us, 9));
        assert_eq!(mutex.wake_by(Time(0)), Some(Time(50_000)));
        // Its own have left, or the other one has taken some.
        scoreboard.set_connections(1, 9);
        assert!(mutex.begin(us, 9));
        assert_eq!(mutex.wake_by(Time(0)), None);
    }

    #[test]
    fn nobody_stays_at_nothing_and_shares_stay_within_a_half() {
        for clients in [64u32, 400, 4_000] {
            let mut counts = [0u32; 8];
            for _ in 0..clients {
                let least = *counts.iter().min().unwrap();
                // The first who may: the most unfair order.
                let taker = counts.iter_mut().find(|count| excess(**count, least) == 0);
                *taker.expect("the least loaded one may") += 1;
            }
            let (max, min) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
            assert!(*min > 0 && f64::from(*max) <= 1.5 * f64::from(clients / 8), "{counts:?}");
        }
    }
}
