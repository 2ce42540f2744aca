//! How long a server's answers take on their way: what is silence near by is the path of a distant
//! server.

use crate::{Time, limits};

/// Round trips to a server on all links of this worker, in microseconds: handshakes and some
/// replies.
#[derive(Default)]
pub(crate) struct Trips {
    /// That of the last connect, which may have ended at a relay near by.
    connect: u64,
    /// The shortest of this window and of the one before it.
    shortest: [Option<u64>; 2],
    /// When this window began.
    window: Time,
    /// When a trip was noted last.
    noted: Time,
    /// By how much a trip is longer than the shortest, on the average.
    deviation: u64,
    /// The trips of late, if each took longer than a server that is well may be silent.
    longer: Option<Longer>,
}

/// Trips, one after the other, that all took long.
struct Longer {
    first: Time,
    last: Time,
    count: u32,
    shortest: u64,
}

impl Trips {
    /// Notes the time that a connect took.
    pub(crate) fn note_connect(&mut self, trip: u64) {
        self.connect = trip;
    }

    /// Whether a reply is to tell of its trip: a few of each server are enough.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now.since(self.noted) >= limits::TRIPS_NOTED_US
    }

    /// Notes a round trip.
    pub(crate) fn note(&mut self, trip: u64, now: Time) {
        self.noted = now;
        if now.since(self.window) >= limits::TRIPS_WINDOW_US {
            self.shortest = [None, self.shortest[0].or(self.shortest[1])];
            self.window = now;
        }
        let is_first = self.shortest == [None; 2];
        self.shortest[0] = Some(self.shortest[0].map_or(trip, |shortest| shortest.min(trip)));
        let excess = trip.saturating_sub(self.shortest());
        if excess > self.patience().max(limits::HOLD_AFTER_DEFAULT_US) {
            return self.note_longer(trip, now);
        }
        self.longer = None;
        if !is_first {
            self.deviation = (7 * self.deviation + excess) / 8;
        }
    }

    /// Notes a trip that is much longer than the shortest: a pause of the server; or its path has
    /// become longer, if all of them are for a while.
    #[cold]
    fn note_longer(&mut self, trip: u64, now: Time) {
        let first = Longer { first: now, last: now, count: 1, shortest: trip };
        let known = self.longer.take();
        // Two pauses far from each other are no path.
        let known = known.filter(|one| now.since(one.last) <= limits::TRIPS_LONGER_US);
        let longer = self.longer.insert(known.unwrap_or(first));
        longer.shortest = longer.shortest.min(trip);
        // A pause ends for all links at once.
        if now.since(longer.last) >= limits::TRIPS_NOTED_US {
            (longer.last, longer.count) = (now, longer.count + 1);
        }
        let is_for_long = now.since(longer.first) >= limits::TRIPS_LONGER_US;
        if is_for_long && longer.count >= limits::TRIPS_LONGER_MIN {
            self.shortest = [Some(longer.shortest), None];
            (self.window, self.longer) = (now, None);
        }
    }

    fn shortest(&self) -> u64 {
        self.known_shortest().unwrap_or(0)
    }

    fn known_shortest(&self) -> Option<u64> {
        self.shortest.iter().flatten().copied().min()
    }

    /// Returns the shortest trip that is known, of this one and others.
    pub(crate) fn shortest_of(&self, trip: u64) -> u64 {
        self.known_shortest().map_or(trip, |shortest| shortest.min(trip))
    }

    /// Returns for how long a server that is well may be silent. A link that is made needs a trip
    /// to connect and one for the handshake.
    pub(crate) fn patience(&self) -> u64 {
        3 * self.shortest() + 2 * self.deviation
    }

    /// Returns how long a round trip takes, with what most of them take longer than the shortest.
    pub(crate) fn usual(&self) -> u64 {
        self.shortest() + 2 * self.deviation
    }

    /// As `patience`, for a handshake before anything was answered. It does not lengthen the time
    /// of what waits for the link: a server that is silent may also take a connection late.
    pub(crate) fn patience_at_first(&self) -> u64 {
        if self.shortest == [None; 2] { 3 * self.connect } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    fn noted(trips: &[u64]) -> Trips {
        let mut noted = Trips::default();
        for (at, trip) in trips.iter().enumerate() {
            noted.note(*trip, Time(1 + at as u64 * MS));
        }
        noted
    }

    #[test]
    fn a_distant_server_may_be_silent_for_its_path_and_the_jitter_on_it() {
        assert_eq!(Trips::default().patience(), 0);
        assert_eq!(noted(&[80 * MS]).patience(), 240 * MS);
        let jitters = noted(&[80 * MS, 120 * MS].repeat(50)).patience();
        assert!((260 * MS..290 * MS).contains(&jitters), "{jitters}");
    }

    #[test]
    fn one_reply_in_a_millisecond_tells_of_its_trip() {
        let mut trips = Trips::default();
        trips.note(100, Time(5 * MS));
        let next = 5 * MS + limits::TRIPS_NOTED_US;
        assert!(!trips.is_due(Time(next - 1)) && trips.is_due(Time(next)));
    }

    #[test]
    fn a_connect_counts_until_something_is_answered() {
        for connect in [100, 80 * MS] {
            let mut trips = Trips::default();
            trips.note_connect(connect);
            assert_eq!((trips.patience(), trips.patience_at_first()), (0, 3 * connect));
            trips.note(20 * MS, Time(1));
            assert_eq!((trips.patience(), trips.patience_at_first()), (60 * MS, 0));
        }
    }

    #[test]
    fn pauses_of_a_near_server_are_no_part_of_its_path() {
        let pauses = noted(&[100, 100, 100, 100, 100, 2_000 * MS, 60 * MS].repeat(20));
        assert_eq!(pauses.patience(), 300);
    }

    #[test]
    fn a_path_that_has_become_longer_or_shorter_is_known_after_two_windows() {
        for (first, second) in [(100, 80 * MS), (80 * MS, 100)] {
            let mut trips = noted(&[first; 10]);
            for at in 1..30 {
                trips.note(second, Time(at * limits::TRIPS_WINDOW_US / 10));
            }
            assert_eq!(trips.patience(), 3 * second);
        }
    }

    /// A route may move to another site: meanwhile, each answer would be taken for silence.
    #[test]
    fn a_path_that_has_become_longer_is_known_after_a_second() {
        let mut trips = noted(&[MS; 10]);
        for at in 1..=11 {
            assert_eq!(trips.patience(), 3 * MS, "{at}");
            trips.note(100 * MS, Time(at * 100 * MS));
        }
        assert_eq!(trips.patience(), 300 * MS);
        // A path that is shorter again is known at once.
        trips.note(2 * MS, Time(1_200 * MS));
        assert_eq!(trips.patience(), 6 * MS);
    }

    /// Many links are answered at the end of each.
    #[test]
    fn two_long_pauses_are_no_path() {
        let mut trips = noted(&[MS; 10]);
        for at in [1, 4] {
            for _ in 0..4 {
                trips.note(2_000 * MS, Time(at * 1_000 * MS));
            }
            assert_eq!(trips.patience(), 3 * MS);
        }
    }

    #[test]
    fn a_server_that_pauses_again_and_again_is_no_further_away() {
        let mut trips = noted(&[MS; 10]);
        for at in 1..=100 {
            // One of eight comes between two pauses.
            let trip = if at % 8 == 0 { MS } else { 60 * MS };
            trips.note(trip, Time(at * 60 * MS));
            assert_eq!(trips.patience(), 3 * MS, "{at}");
        }
    }
}
