//! How long answers are expected to be. A request's cost is not known before its answer has come,
//! so it is estimated from the answers before it: by client and command, since one client's large
//! values must not make another's small ones look large.

use crate::Time;
use crate::base::limits;

/// The cost of a part of a request to its server and to the network, in bytes: what is sent, what
/// is expected in answer, and a fixed part for each message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost(u32);

const UNPROVEN: u32 = 1 << 31;

impl Cost {
    /// Returns the cost of a part of which so many bytes are sent and expected. It is `unproven` if
    /// the answer may be far larger than expected.
    pub(crate) fn new(sent: usize, expected: u32, unproven: bool) -> Cost {
        let bytes = sent as u64 + u64::from(expected) + limits::COST_OF_MESSAGE;
        let bytes = bytes.min(u64::from(UNPROVEN - 1)) as u32;
        Cost(if unproven { bytes | UNPROVEN } else { bytes })
    }

    /// Returns the same cost for an answer of known length.
    pub(crate) fn proven(self) -> Cost {
        Cost(self.0 & !UNPROVEN)
    }

    /// Returns the cost of both together.
    pub(crate) fn plus(self, other: Cost) -> Cost {
        let bytes = (self.bytes() + other.bytes()).min(u64::from(UNPROVEN - 1)) as u32;
        Cost(bytes | (self.0 | other.0) & UNPROVEN)
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.0 & !UNPROVEN)
    }

    pub(crate) fn is_unproven(self) -> bool {
        self.0 & UNPROVEN != 0
    }
}

/// The largest length of late: it halves with each second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Largest {
    len: u32,
    since: Time,
}

impl Largest {
    fn note(&mut self, len: u32, now: Time) {
        if len >= self.len {
            *self = Largest { len, since: now };
            return;
        }
        let halvings = now.since(self.since) / HALVING_US;
        if halvings > 0 {
            self.since = now;
            self.len = (self.len >> halvings.min(31)).max(len);
        }
    }

    /// Returns the largest length of late, as it was when a length was last noted.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
}

/// What a client's next request of a command may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Bytes of the answer, of each key if it has several.
    pub(crate) len: u32,
    /// The answer may be far larger: nothing is known of this client's, or large ones have come of
    /// late.
    pub(crate) unproven: bool,
}

/// The lengths of the answers in a pool.
#[derive(Default)]
pub(crate) struct PoolSizes {
    medians: [Line; 16],
    pub(crate) largest: Largest,
}

#[derive(Clone, Copy, Default)]
struct Line {
    command: u16,
    len: u32,
}

impl PoolSizes {
    /// Notes the length of an answer, or of one of its values.
    #[inline]
    pub(crate) fn note(&mut self, command: u16, len: usize, now: Time) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let line = &mut self.medians[usize::from(command) % 16];
        if line.command != command || line.len == 0 {
            *line = Line { command, len };
        } else if len > line.len {
            line.len += line.len / 16 + 1;
        } else if len < line.len {
            line.len -= line.len / 16 + u32::from(line.len < 16);
        }
        self.largest.note(len, now);
    }

    /// Returns about the median of the answers to a command.
    #[inline]
    pub(crate) fn median(&self, command: u16) -> u32 {
        let line = &self.medians[usize::from(command) % 16];
        let is_known = line.command == command && line.len > 0;
        if is_known { line.len } else { limits::ANSWER_UNKNOWN }
    }
}

/// The lengths of the answers to one client.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClientSizes {
    lines: [Line; 4],
    largest: Largest,
}

impl ClientSizes {
    /// Notes the length of an answer, or of one of its values.
    #[inline]
    pub(crate) fn note(&mut self, command: u16, len: usize, now: Time) {
        let len = u32::try_from(len).unwrap_or(u32::MAX).max(1);
        let line = &mut self.lines[usize::from(command) % 4];
        if line.command != command {
            *line = Line { command, len };
        }
        // Up at once, and down slowly.
        line.len = len.max(line.len - line.len / 4);
        self.largest.note(len, now);
    }

    /// Returns what an answer to the next request of this command may be. `age` tells how long the
    /// client has been here, in microseconds.
    #[inline]
    pub(crate) fn expected(
        &self,
        command: u16,
        pool: &PoolSizes,
        age: impl FnOnce() -> u64,
    ) -> Expected {
        let line = &self.lines[usize::from(command) % 4];
        if line.command != command || line.len == 0 {
            return Expected { len: pool.median(command), unproven: true };
        }
        // In a pool of large values, a client that has shown small ones for a moment proves little.
        let unproven = pool.largest.len() >= limits::LARGE_MIN
            && line.len < limits::LARGE_MIN
            && (age() < PROOF_US || self.largest.len() >= limits::LARGE_MIN);
        Expected { len: line.len, unproven }
    }
}

/// How long it takes until the memory of a large answer is half as large.
const HALVING_US: u64 = 1_000_000;
/// How long a client is young: its small answers prove little.
const PROOF_US: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_cost_is_the_bytes_of_both_ways_and_a_fixed_part() {
        let cost = Cost::new(40, 100, false);
        assert_eq!((cost.bytes(), cost.is_unproven()), (140 + limits::COST_OF_MESSAGE, false));
        let unproven = Cost::new(40, 100, true);
        assert_eq!((unproven.bytes(), unproven.is_unproven()), (cost.bytes(), true));
        assert_eq!(Cost::new(usize::MAX >> 1, u32::MAX, true).bytes(), u64::from(UNPROVEN - 1));
    }

    #[test]
    fn a_median_comes_near_what_most_answers_are() {
        let mut sizes = PoolSizes::default();
        for command in [0, 7] {
            assert_eq!(sizes.median(command), limits::ANSWER_UNKNOWN, "command {command}");
        }
        for at in 0..1_000 {
            sizes.note(7, if at % 3 == 0 { 1_000_000 } else { 100 }, Time(at));
        }
        assert!((60..400).contains(&sizes.median(7)), "{}", sizes.median(7));
        assert_eq!(sizes.median(8), limits::ANSWER_UNKNOWN);
        assert_eq!(sizes.largest.len(), 1_000_000);
    }

    #[test]
    fn the_largest_of_late_halves_each_second() {
        let mut largest = Largest::default();
        largest.note(1_000_000, Time(0));
        for (seconds, expected) in [(0, 1_000_000), (1, 500_000), (3, 125_000), (10, 976)] {
            largest.note(10, Time(seconds * SECOND));
            assert_eq!(largest.len(), expected, "after {seconds} s");
        }
        largest.note(10, Time(100 * SECOND));
        assert_eq!(largest.len(), 10);
    }

    #[test]
    fn a_client_is_expected_to_ask_for_what_it_asked_for_before() {
        let (mut pool, mut client) = (PoolSizes::default(), ClientSizes::default());
        pool.note(1, 50, Time(0));
        assert_eq!(client.expected(1, &pool, || 0), Expected { len: 50, unproven: true });
        client.note(1, 90, Time(0));
        assert_eq!(client.expected(1, &pool, || 0), Expected { len: 90, unproven: false });
        // Another command, of the same line too, is unknown.
        assert!(
            client.expected(2, &pool, || 0).unproven && client.expected(5, &pool, || 0).unproven
        );
        // Up at once, down by a quarter.
        client.note(1, 4_000, Time(0));
        client.note(1, 10, Time(0));
        assert_eq!(client.expected(1, &pool, || 0).len, 3_000);
    }

    #[test]
    fn small_answers_prove_little_where_large_ones_come() {
        let (mut pool, mut client) = (PoolSizes::default(), ClientSizes::default());
        client.note(1, 90, Time(0));
        pool.note(1, limits::LARGE_MIN as usize, Time(0));
        assert!(client.expected(1, &pool, || PROOF_US - 1).unproven, "a young client");
        assert!(!client.expected(1, &pool, || PROOF_US).unproven, "an old one");
        client.note(1, limits::LARGE_MIN as usize, Time(0));
        assert!(!client.expected(1, &pool, || 0).unproven, "its cost is known: it is large");
        for _ in 0..40 {
            client.note(1, 90, Time(0));
        }
        assert!(client.expected(1, &pool, || PROOF_US).unproven, "it had a large one of late");
    }
}
