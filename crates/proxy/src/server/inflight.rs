//! The in-flight limit of a link: how much its server may be asked for before it has answered, in
//! cost. What is beyond it waits in the proxy, where it can be put in another order and cancelled.
//!
//! The limit follows the replies: it is the cost that was in flight when a message left, times the
//! delay that is wanted over the delay that was met. By Little's law that is the rate at which the
//! server works, times the wanted delay: the shortest round trip of late and 1 ms. So a near server
//! has little queued, and a distant one is kept busy. In each round the message with the shortest
//! delay counts, since other delays have other reasons than what is in flight. A worker reads a
//! reply late by as much as it has worked meanwhile, so that time is allowed as well.

use super::link::Link;
use crate::Time;
use crate::base::limits;

/// The limit of one link, and what it is derived from. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct InflightLimit {
    least: u64,
    bytes: u64,
    /// The shortest round trips of this window and of the one before it.
    shortest: [u64; 2],
    /// When this window began.
    window: Time,
    /// The round ends with the message that ends behind this offset of the sent stream.
    round_end: u64,
    /// The shortest delay in this round, and what was in flight when that message left.
    best: (u64, u64),
    /// Something had to wait in this round.
    is_short: bool,
    /// It doubles with each round in which nothing queues at the server.
    opens: bool,
    /// The number of rounds: for the check that the limit falls slowly.
    rounds: u32,
}

impl InflightLimit {
    /// Makes the limit of a new link, which is never less than half of what it is now.
    pub(super) fn new(least: u64, now: Time) -> InflightLimit {
        InflightLimit {
            least,
            bytes: 2 * least,
            shortest: [u64::MAX; 2],
            window: now,
            round_end: 0,
            best: (u64::MAX, 0),
            is_short: false,
            opens: true,
            rounds: 0,
        }
    }

    /// Returns the cost that may be in flight.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Returns the shortest round trip of late; 0 if there was none.
    pub(super) fn round_trip(&self) -> u64 {
        match self.shortest[0].min(self.shortest[1]) {
            u64::MAX => 0,
            shortest => shortest,
        }
    }

    /// Notes that something waits for room.
    pub(super) fn note_short(&mut self) {
        self.is_short = true;
    }

    /// Notes a reply: its delay, the cost that was in flight when its message left, where the
    /// message and all messages so far end in the stream, and how long this worker works in a turn.
    #[inline]
    pub(super) fn note_reply(
        &mut self,
        (delay, inflight): (u64, u64),
        (end, queued): (u64, u64),
        (work, now): (u64, Time),
    ) {
        if inflight < self.bytes / 4 && !self.is_short {
            // The limit is far away: nothing is to be learned but the shortest way.
            self.turn_window(now);
            self.shortest[0] = self.shortest[0].min(delay);
            return;
        }
        self.note_round((delay, inflight), (end, queued), (work, now));
    }

    fn note_round(
        &mut self,
        (delay, inflight): (u64, u64),
        (end, queued): (u64, u64),
        (work, now): (u64, Time),
    ) {
        if delay < self.best.0 {
            self.best = (delay, inflight);
        }
        if end > self.round_end {
            self.end_round(work, now);
            self.round_end = queued;
        }
    }

    /// Begins another window when one is over: the way may have become longer.
    #[inline]
    fn turn_window(&mut self, now: Time) {
        if now.since(self.window) >= WINDOW_US {
            self.shortest = [u64::MAX, self.shortest[0]];
            self.window = now;
            self.opens = true;
        }
    }

    fn end_round(&mut self, work: u64, now: Time) {
        let (delay, inflight) = std::mem::replace(&mut self.best, (u64::MAX, 0));
        self.rounds += 1;
        self.turn_window(now);
        self.shortest[0] = self.shortest[0].min(delay);
        let shortest = self.round_trip();
        let queueing = (delay - shortest).saturating_sub(work);
        let fit = inflight.saturating_mul(shortest + work + limits::QUEUEING_US) / delay.max(1);
        let is_short = std::mem::replace(&mut self.is_short, false);
        if queueing > limits::QUEUEING_US {
            self.opens = false;
            let least = if bug!(LimitFallsAtOnce) { 0 } else { self.bytes / 2 };
            self.bytes = fit.clamp(least, self.bytes);
        } else if is_short {
            let doubles = self.opens && queueing <= limits::QUEUEING_US / 2;
            let most = self.bytes * 2;
            self.bytes = if doubles { most } else { fit.clamp(self.bytes, most) };
        }
        self.bytes = self.bytes.clamp(self.least, limits::INFLIGHT_MAX);
    }
}

impl Link {
    /// Notes that a message that has waited joins the output now.
    pub(super) fn note_waited(&mut self, held: bool, now: Time) {
        if let Some(message) = self.outstanding.back_mut() {
            message.held = held;
            message.waited = u32::try_from(now.since(message.since)).unwrap_or(u32::MAX);
        }
    }

    /// Notes the delay of a message that is answered: when it joined the output, the cost that was
    /// in flight then, and where it ends.
    pub(super) fn note_delay(
        &mut self,
        (joined, inflight, end): (Time, u32, u64),
        (work, now): (u64, Time),
    ) {
        let Some(up_since) = self.up_since() else { return };
        if joined >= up_since && inflight > 0 {
            let delay = (now.since(joined), u64::from(inflight));
            self.limit.note_reply(delay, (end, self.queued), (work, now));
        }
    }
}

/// The length of a window in which the shortest round trip is sought.
const WINDOW_US: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    /// A server that does one thing after the other, at the end of a path, and a client that always
    /// has more to ask.
    struct Path {
        limit: InflightLimit,
        now: u64,
        offset: u64,
        /// The delay of the last round.
        delay: u64,
    }

    impl Path {
        fn new(limit: InflightLimit) -> Path {
            Path { limit, now: 1_000_000, offset: 0, delay: 0 }
        }

        /// Plays so many rounds, where the server does `rate` bytes in a microsecond and this is
        /// the round trip.
        fn play(&mut self, rate: u64, trip: u64, rounds: usize) {
            for _ in 0..rounds {
                let inflight = self.limit.bytes();
                self.delay = trip.max(inflight / rate).max(1);
                self.now += self.delay;
                self.limit.note_short();
                self.offset += inflight;
                let (delay, ends) = ((self.delay, inflight), (self.offset, self.offset));
                self.limit.note_reply(delay, ends, (0, Time(self.now)));
            }
        }
    }

    /// Returns the limit after so many rounds, and the delay at the end.
    fn settle(rate: u64, trip: u64, rounds: usize, first: InflightLimit) -> (InflightLimit, u64) {
        let mut path = Path::new(first);
        path.play(rate, trip, rounds);
        (path.limit, path.delay)
    }

    #[test]
    fn the_limit_is_the_servers_rate_times_the_wanted_delay() {
        for (rate, trip) in [(100, 50), (1_000, 100), (200, 50_000), (1_000, 1_000)] {
            // An unloaded round trip is met first.
            let mut first = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
            first.note_reply((trip, 1), (1, 1), (0, Time(1)));
            let (limit, _) = settle(rate, trip, 200, first);
            let wanted = rate * (trip + limits::QUEUEING_US);
            let wanted = wanted.clamp(limits::INFLIGHT_MIN, limits::INFLIGHT_MAX);
            let ratio = limit.bytes() as f64 / wanted as f64;
            assert!((0.45..=1.3).contains(&ratio), "rate {rate}, trip {trip}: {ratio}");
        }
    }

    #[test]
    fn a_distant_server_is_soon_kept_busy() {
        let mut first = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
        first.note_reply((50_000, 1), (1, 1), (0, Time(1)));
        let (limit, _) = settle(1_000, 50_000, 12, first);
        assert!(limit.bytes() >= 1_000 * 50_000 / 2, "{}", limit.bytes());
    }

    #[test]
    fn one_late_reply_among_others_changes_nothing() {
        let (mut limit, _) =
            settle(100, 50, 100, InflightLimit::new(limits::INFLIGHT_MIN, Time(0)));
        let before = limit.bytes();
        for (at, delay) in [(1, 100_000), (2, 60), (3, 90_000), (4, 60)] {
            let end = 1 << 40 | at;
            limit.note_reply((delay, 1_000), (end, 1 << 40 | 4), (0, Time(2_000_000)));
        }
        assert!(limit.bytes() >= before / 2, "{} of {before}", limit.bytes());
    }

    #[test]
    fn the_delays_that_a_worker_causes_are_not_its_servers() {
        let settled = |work: u64| {
            let mut limit = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
            limit.note_reply((50, 1), (1, 1), (0, Time(1)));
            for at in 2..20 {
                limit.note_short();
                let inflight = limit.bytes().min(1 << 20);
                limit.note_reply((30_000, inflight), (at, at), (work, Time(at * 30_000)));
            }
            limit.bytes()
        };
        assert_eq!(settled(0), limits::INFLIGHT_MIN);
        assert!(settled(30_000) >= 1 << 20);
    }

    #[test]
    fn a_slow_server_gets_little_but_never_nothing() {
        let mut limit = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
        limit.note_reply((50, 1), (1, 1), (0, Time(1)));
        for at in 2..40 {
            limit.note_reply((1_300_000, 100_000), (at, at), (0, Time(at * 1_300_000)));
            if at < 5 {
                assert!(limit.bytes() < 2 * limits::INFLIGHT_MIN);
            }
        }
        assert!(limit.bytes() >= limits::INFLIGHT_MIN);
    }

    /// One bad round says little of the server: a second one must confirm it.
    #[test]
    fn the_limit_falls_by_half_at_most_in_one_round() {
        let mut first = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
        first.note_reply((50, 1), (1, 1), (0, Time(1)));
        let mut path = Path::new(first);
        path.play(100_000, 50, 6);
        for _ in 0..3 {
            let before = path.limit.bytes();
            path.play(100_000, 1_000_000, 1);
            assert_eq!(path.limit.bytes(), before / 2);
        }
        assert!(path.limit.bytes() > limits::INFLIGHT_MIN);
    }

    #[test]
    fn a_round_without_queueing_at_most_doubles_the_limit_and_never_lowers_it() {
        let mut path = Path::new(InflightLimit::new(limits::INFLIGHT_MIN, Time(0)));
        for _ in 0..20 {
            let before = path.limit.bytes();
            path.play(1 << 30, 50, 1);
            assert_eq!(path.limit.bytes(), (2 * before).min(limits::INFLIGHT_MAX));
        }
    }

    /// The shortest round trip is 1 ms, and another millisecond is wanted.
    #[test]
    fn the_limit_doubles_only_while_little_queues_and_never_again_after_it_has_fallen() {
        let mut limit = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
        limit.note_reply((1_000, 1), (1, 1), (0, Time(1)));
        let mut round = |at: u64, delay: u64| {
            let before = limit.bytes();
            limit.note_short();
            limit.note_reply((delay, before), (at, at), (0, Time(at)));
            (before, limit.bytes())
        };
        let (before, after) = round(2, 1_500);
        assert_eq!(after, 2 * before, "half of what is wanted");
        for (at, delay) in [(3, 1_501), (4, 2_000), (5, 2_001), (6, 1_400)] {
            let (before, after) = round(at, delay);
            assert_eq!(after, before * 2_000 / delay, "{delay} us");
        }
    }

    /// The shortest round trip is of this window or of the one before it, so two windows after the
    /// way became longer nothing is left of the shorter one.
    #[test]
    fn the_limit_opens_again_after_the_way_has_become_longer() {
        const TRIP: u64 = 50_000;
        let mut path = Path::new(InflightLimit::new(limits::INFLIGHT_MIN, Time(0)));
        path.play(10_000, 100, 50);
        let rounds = 2 * (WINDOW_US / TRIP) as usize;
        path.play(10_000, TRIP, rounds / 2 - 5);
        assert_eq!(path.limit.round_trip(), 100, "it may have been chance");
        assert_eq!(path.limit.bytes(), limits::INFLIGHT_MIN, "the delay looks like queueing");
        path.play(10_000, TRIP, rounds / 2 + 5);
        assert_eq!(path.limit.round_trip(), TRIP);
        path.play(10_000, TRIP, 12);
        assert!(path.limit.bytes() >= limits::INFLIGHT_MAX / 2, "{}", path.limit.bytes());
    }

    /// Two windows after any change of the way, and as many rounds as it takes to double from the
    /// least, the limit is what the way needs, whatever the server's rate and all ways before.
    #[test]
    fn at_random_the_limit_opens_again_after_two_windows_and_a_few_rounds() {
        const ROUNDS: usize = 20;
        for seed in 1..=200 {
            let mut random = Random::new(seed);
            let mut range = |low: u64, high: u64| low + u64::from(random.next()) % (high - low);
            let rate = range(20, 5_000);
            let mut path = Path::new(InflightLimit::new(limits::INFLIGHT_MIN, Time(0)));
            for _ in 0..4 {
                let trip = range(50, 100_000);
                let until = path.now + 2 * WINDOW_US;
                while path.now < until {
                    path.play(rate, trip, 1);
                }
                path.play(rate, trip, ROUNDS);
                let wanted = rate * (trip + limits::QUEUEING_US);
                let least = wanted.min(limits::INFLIGHT_MAX) / 2;
                let bytes = path.limit.bytes();
                assert!(bytes >= least, "seed {seed}: {bytes} of {wanted}, {trip} us at {rate}");
            }
        }
    }

    /// A large message may wait although little is in flight.
    #[test]
    fn little_load_teaches_something_only_if_something_waits() {
        let mut limit = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
        let first = limit.bytes();
        limit.note_reply((100, first / 8), (1, 1), (0, Time(100)));
        assert_eq!((limit.rounds(), limit.bytes()), (0, first));
        limit.note_short();
        limit.note_reply((100, first / 8), (2, 2), (0, Time(200)));
        assert_eq!((limit.rounds(), limit.bytes()), (1, 2 * first));
    }

    /// Load that is far from the limit ends no round.
    #[test]
    fn a_longer_way_is_known_after_two_windows_of_little_load() {
        let mut limit = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
        let mut asks = |seconds: u64, delay: u64| {
            let now = Time(seconds * 1_000_000);
            limit.note_reply((delay, 1), (seconds, seconds), (0, now));
            limit.round_trip()
        };
        assert_eq!(asks(1, 100), 100);
        assert_eq!([asks(4, 900), asks(6, 900), asks(9, 900)], [100; 3], "of the window before");
        assert_eq!(asks(12, 900), 900);
    }

    #[test]
    fn a_shorter_way_is_known_with_the_first_reply() {
        let mut limit = InflightLimit::new(limits::INFLIGHT_MIN, Time(0));
        assert_eq!(limit.round_trip(), 0, "nothing is known");
        for (at, delay, shortest) in [(1, 900, 900), (2, 400, 400), (3, 700, 400)] {
            limit.note_reply((delay, 1), (at, at), (0, Time(at)));
            assert_eq!(limit.round_trip(), shortest);
        }
    }
}
