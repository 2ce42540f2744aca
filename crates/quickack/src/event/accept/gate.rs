//! `accept: gate`: the listeners are shared, and a worker takes a client only while its own are not
//! many more than the fewest that a worker has.
//!
//! ```text
//!   a client waits ──▶ the kernel wakes one worker (EPOLLEXCLUSIVE)
//!                          │ within the gate          │ over it
//!                          ▼                          ▼
//!                       accept        stop watching, wake the least loaded worker:
//!                                     it looks at the listeners itself
//! ```
//!
//! Nobody waits for ever in a queue, because:
//! * a worker that declines a client wakes the one with the fewest, which is then within the gate;
//! * a worker that is woken and is over the gate by then passes the wakeup on;
//! * a worker with the fewest clients watches: it begins to again at the end of the turn in which
//!   it has lost one, or when it is woken;
//! * the master wakes all when a worker dies, since it may have been about to take a client;
//! * a worker that was woken and does not take what waits, because it is stopped or hangs, is left
//!   out of the count after a moment.
//!
//! Short connections are cheap: a worker with at most [`SLACK`] clients asks nobody, and one that
//! is over the gate learns of it only when a client comes.

use proxy::Time;

use super::peers::{Load, Peers};

/// The state of the other workers, by slot, as this one knows it.
pub struct Gate {
    states: Vec<PeerState>,
    /// When the first of those that were asked should have answered. It is kept here because it is
    /// needed twice a turn, and there are many peers.
    due: Option<Time>,
}

/// The state of another worker, as its answers to wakeups show it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerState {
    /// It takes what it is asked to take, or was not asked.
    Fine,
    /// It was woken when it had so many clients, and should have taken what waits by then.
    Asked { clients: u32, until: Time },
    /// It did not take it. It does not count until it has another number of clients, or until then.
    Silent { clients: u32, until: Time },
}

/// Whether a worker with `mine` clients may take one more, when the least loaded one has `least`.
pub fn is_open(mine: u32, least: u32) -> bool {
    mine <= least.saturating_add(SLACK + least / LEAST_SHARE)
}

impl Gate {
    pub fn new(slots: usize) -> Gate {
        Gate { states: vec![PeerState::Fine; slots], due: None }
    }

    /// Whether we may take one more client.
    pub fn may_take(&self, peers: &Peers, mine: u32, now: Time) -> bool {
        mine <= SLACK || self.fewest(peers, now).is_none_or(|least| is_open(mine, least.clients))
    }

    /// Whether nobody has fewer clients than we.
    pub fn is_least(&self, peers: &Peers, mine: u32, now: Time) -> bool {
        self.fewest(peers, now).is_none_or(|least| mine <= least.clients)
    }

    /// A client waits that is not for us: the worker with the fewest is to look.
    pub fn decline(&mut self, peers: &Peers, now: Time) {
        let Some(Load { slot, clients }) = self.fewest(peers, now) else { return };
        peers.wake(slot);
        let is_asked =
            matches!(self.states[slot], PeerState::Asked { clients: then, .. } if then == clients);
        if !is_asked && slot != peers.slot {
            self.states[slot] = PeerState::Asked { clients, until: now.after(ANSWER_US) };
            self.due = self.first_due();
        }
    }

    /// Makes sure that somebody watches when we do not.
    pub fn pass_on(&mut self, peers: &Peers, now: Time) {
        if self.fewest(peers, now).is_some_and(|it| !peers.scoreboard.watching(it.slot)) {
            self.decline(peers, now);
        }
    }

    /// When to look whether the workers that were woken have done something.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    fn first_due(&self) -> Option<Time> {
        let asked = self.states.iter().filter_map(|state| match state {
            PeerState::Asked { until, .. } => Some(*until),
            PeerState::Fine | PeerState::Silent { .. } => None,
        });
        asked.min()
    }

    /// Decides about those whose time is over. `is_waiting`: a client waits now.
    pub fn judge(&mut self, peers: &Peers, is_waiting: bool, now: Time) {
        for (slot, state) in self.states.iter_mut().enumerate() {
            let PeerState::Asked { clients, until } = *state else { continue };
            if until > now {
                continue;
            }
            let idle = is_waiting && peers.scoreboard.connections(slot) == clients;
            *state = match idle {
                true => PeerState::Silent { clients, until: now.after(SILENCE_US) },
                false => PeerState::Fine,
            };
        }
        self.due = self.first_due();
    }

    fn fewest(&self, peers: &Peers, now: Time) -> Option<Load> {
        peers.fewest(|Load { slot, clients }| match self.states.get(slot) {
            Some(PeerState::Silent { clients: then, until }) => *then != clients || *until <= now,
            _ => true,
        })
    }
}

/// Clients that a worker may have more than the least loaded one and still take another …
const SLACK: u32 = 1;
/// … and for every so many of these, one more: where there are many, exactness is not worth a
/// wakeup.
const LEAST_SHARE: u32 = 32;
/// A worker that is woken looks at the listeners within this time, microseconds.
const ANSWER_US: u64 = 100_000;
/// One that does not is left out of the count for so long.
const SILENCE_US: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::super::tests::peers;
    use super::*;

    /// Deals `clients` one by one to whichever worker within the gate comes last, as a kernel does
    /// that always wakes the same one.
    fn deal(workers: usize, clients: u32) -> Vec<u32> {
        let mut counts = vec![0u32; workers];
        for _ in 0..clients {
            let least = *counts.iter().min().unwrap();
            let taker = counts.iter_mut().rev().find(|count| is_open(**count, least));
            *taker.expect("the least loaded worker is within the gate") += 1;
        }
        counts
    }

    #[test]
    fn the_gate_keeps_to_its_bars_with_the_most_unfair_kernel() {
        for clients in 1..=64 {
            let counts = deal(8, clients);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 2, "{counts:?}");
        }
        for clients in [400, 4_000] {
            let max = *deal(8, clients).iter().max().unwrap();
            assert!(f64::from(max) / f64::from(clients / 8) <= 1.1, "{max} of {clients}");
        }
    }

    #[test]
    fn the_least_loaded_worker_is_always_within_the_gate() {
        for least in [0, 1, 2, 31, 32, 1_000, u32::MAX] {
            assert!(is_open(least, least));
        }
        assert!(!is_open(2, 0) && is_open(1, 0) && !is_open(u32::MAX, 0));
    }

    #[test]
    fn a_worker_that_does_not_answer_a_wakeup_holds_the_gate_no_longer() {
        let everyone = peers(3);
        let (us, scoreboard) = (&everyone[0], &everyone[0].scoreboard);
        for (slot, clients) in [(0, 9), (1, 3), (2, 8)] {
            scoreboard.set_connections(slot, clients);
        }
        let mut gate = Gate::new(3);
        let mut now = Time(0);
        assert!(!gate.may_take(us, 9, now));
        gate.decline(us, now);
        now = gate.due().expect("slot 1 was asked");
        gate.judge(us, true, now);
        assert_eq!(gate.due(), None);
        assert!(gate.may_take(us, 9, now), "only slot 2 counts, with 8");
        // It is given another chance after a while, or when its clients change.
        assert!(!gate.may_take(us, 9, now.after(SILENCE_US)));
        scoreboard.set_connections(1, 4);
        assert!(!gate.may_take(us, 9, now));
    }

    #[test]
    fn a_worker_that_took_the_client_is_not_blamed() {
        let everyone = peers(2);
        let (us, scoreboard) = (&everyone[0], &everyone[0].scoreboard);
        let mut gate = Gate::new(2);
        scoreboard.set_connections(0, 5);
        for (is_waiting, clients_then) in [(true, 1), (false, 0)] {
            scoreboard.set_connections(1, 0);
            gate.decline(us, Time(0));
            scoreboard.set_connections(1, clients_then);
            gate.judge(us, is_waiting, Time(ANSWER_US));
            assert!(!gate.may_take(us, 5, Time(ANSWER_US)));
        }
    }

    #[test]
    fn who_does_not_serve_does_not_count() {
        let everyone = peers(2);
        let (us, scoreboard) = (&everyone[0], &everyone[0].scoreboard);
        scoreboard.set_connections(0, 5);
        let gate = Gate::new(2);
        assert!(!gate.may_take(us, 5, Time(0)));
        scoreboard.set_serving(1, false);
        assert!(gate.may_take(us, 5, Time(0)));
        scoreboard.set_serving(0, false);
        assert!(gate.may_take(us, 5, Time(0)), "somebody must");
    }
}
