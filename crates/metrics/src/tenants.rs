//! The rates of tenants: what all workers together may do in a second.
//!
//! A tenant's row has a word for each rate. A word holds the time, in nanoseconds, from which the
//! tenant may take more: the generic cell rate algorithm, as for logins. A worker takes as much as
//! the rate gives in a fraction of a millisecond, and spends it alone; so a request costs no locked
//! instruction. A word is changed by compare and exchange, by any worker. A worker that dies loses
//! what it had taken and not spent, which is no more than one such piece.
//!
//! ```text
//!   word   now - burst ……… now ……… later
//!             └── free: taken at once ─┘└── taken: wait until then
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The words of a row: a cache line.
pub(crate) const WORDS: usize = 8;

/// What has a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Rate {
    /// Requests.
    Requests,
    /// Bytes received from clients.
    Received,
    /// Bytes sent to clients.
    Sent,
}

impl Rate {
    pub const ALL: [Rate; 3] = [Rate::Requests, Rate::Received, Rate::Sent];
}

/// A rate that was not used may be exceeded by as much as it gives in this time, in nanoseconds:
/// 2 %, seen over a second.
const BURST_NS: u64 = 20_000_000;
/// A worker takes as much as a rate gives in this time, in microseconds: 64 workers hold 2.6 % of
/// a second.
const PIECE_US: u64 = 400;

/// The rates of one tenant. A clone refers to the same memory.
#[derive(Clone, Copy)]
pub struct TenantRates {
    words: &'static [AtomicU64; WORDS],
}

impl TenantRates {
    pub(crate) fn new(words: &'static [AtomicU64; WORDS]) -> TenantRates {
        TenantRates { words }
    }

    /// Returns how much a worker takes at once of a rate of so much in a second.
    pub fn piece(per_second: u64) -> u64 {
        (per_second.saturating_mul(PIECE_US) / 1_000_000).max(1)
    }

    /// Takes `amount` of what a rate gives, at this time in microseconds. `Err`: the time from
    /// which it may be taken. Any amount may be taken at once; the time until more may be taken is
    /// then as much longer.
    pub fn take(&self, rate: Rate, now_us: u64, amount: u64, per_second: u64) -> Result<(), u64> {
        let now = now_us.saturating_mul(1_000);
        let cost = cost_ns(amount, per_second);
        let word = &self.words[rate as usize];
        let mut free_at = word.load(Relaxed);
        loop {
            if free_at > now {
                return Err(free_at.div_ceil(1_000));
            }
            let next = free_at.max(now.saturating_sub(BURST_NS)).saturating_add(cost);
            match word.compare_exchange_weak(free_at, next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(changed) => free_at = changed,
            }
        }
    }

    /// Takes `amount` whether or not it may be taken now: it has been spent.
    pub fn charge(&self, rate: Rate, now_us: u64, amount: u64, per_second: u64) {
        let now = now_us.saturating_mul(1_000);
        let cost = cost_ns(amount, per_second);
        let word = &self.words[rate as usize];
        let after = |free_at: u64| free_at.max(now.saturating_sub(BURST_NS)).saturating_add(cost);
        let _ = word.fetch_update(Relaxed, Relaxed, |free_at| Some(after(free_at)));
    }

    /// Forgets what was taken in advance, when a rate has changed: what a low rate could give only
    /// much later, a higher one gives soon.
    pub fn forgive(&self, rate: Rate, now_us: u64) {
        self.words[rate as usize].fetch_min(now_us.saturating_mul(1_000), Relaxed);
    }
}

/// Returns the time in which a rate gives so much.
fn cost_ns(amount: u64, per_second: u64) -> u64 {
    let cost = u128::from(amount) * 1_000_000_000 / u128::from(per_second.max(1));
    u64::try_from(cost).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    /// Takes as much as can be had in pieces, at these workers, for so long; returns how much.
    fn play(per_second: u64, workers: usize, seconds: u64) -> u64 {
        let rates = Registry::private(1, 2).tenant_rates(1);
        let (mut taken, piece) = (0, TenantRates::piece(per_second));
        // Workers come every millisecond, as their timers do.
        for ms in 5_000..5_000 + 1_000 * seconds {
            for _ in 0..workers {
                while rates.take(Rate::Sent, ms * 1_000, piece, per_second).is_ok() {
                    taken += piece;
                }
            }
        }
        taken
    }

    #[test]
    fn a_rate_is_held_within_five_percent_of_a_second() {
        for per_second in [40, 1_000, 50_000, 3_000_000, 10_000_000_000] {
            for workers in [1, 8] {
                let taken = play(per_second, workers, 1);
                let most = per_second + per_second / 20;
                assert!((per_second * 19 / 20..=most).contains(&taken), "{taken} of {per_second}");
            }
        }
        // Of a very low one, one is more than 5 %.
        assert!((10..=11).contains(&play(10, 4, 1)));
        assert_eq!(play(1_000, 3, 10) / 100, 100);
    }

    #[test]
    fn what_is_taken_in_advance_is_waited_for_unless_it_is_forgiven() {
        let rates = Registry::private(1, 2).tenant_rates(1);
        let now = 1_000_000;
        let take = |now, amount| rates.take(Rate::Received, now, amount, 1_000);
        assert_eq!(take(now, 2_000), Ok(()));
        let free_at = take(now, 1).unwrap_err();
        assert_eq!(free_at, now + 2_000_000 - BURST_NS / 1_000);
        assert_eq!(take(free_at - 1, 1), Err(free_at));
        rates.forgive(Rate::Received, now);
        assert_eq!(take(now, 1), Ok(()));
        assert_eq!(rates.take(Rate::Sent, now, 1, 0), Ok(()), "no division by zero");
    }
}
