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
    /// Returns the cost of a part of which so many bytes are sent.
    #[inline]
    pub(crate) fn new(sent: usize, expected: Expected) -> Cost {
        let bytes = sent as u64 + u64::from(expected.len()) + limits::COST_OF_MESSAGE;
        let bytes = bytes.min(u64::from(UNPROVEN - 1)) as u32;
        Cost(bytes | expected.0 & UNPROVEN)
    }

    /// Returns the same cost for an answer of known length.
    pub(crate) fn proven(self) -> Cost {
        Cost(self.0 & !UNPROVEN)
    }

    /// Returns the cost if this is expected in answer instead. It is not less than it was.
    pub(crate) fn renewed(self, expected: Expected) -> Cost {
        let Cost(now) = Cost::new(0, expected);
        Cost(self.bytes().max(Cost(now).bytes()) as u32 | now & UNPROVEN)
    }

    /// Returns the cost of both together.
    pub(crate) fn plus(self, other: Cost) -> Cost {
        let bytes = (self.bytes() + other.bytes()).min(u64::from(UNPROVEN - 1)) as u32;
        Cost(bytes | (self.0 | other.0) & UNPROVEN)
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.0 & !UNPROVEN)
    }

    /// Whether so many bytes are sent, or expected in answer.
    pub(crate) fn is_of(self, bytes: u64) -> bool {
        self.bytes() >= bytes.saturating_add(limits::COST_OF_MESSAGE)
    }

    pub(crate) fn is_unproven(self) -> bool {
        self.0 & UNPROVEN != 0
    }
}

/// The largest length of late: it halves with each second.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    len: u32,
    since: Time,
}

impl Largest {
    fn note(&mut self, len: u32, now: Time) {
        if len >= self.len(now) {
            *self = Largest { len, since: now };
        }
    }

    fn len(&self, now: Time) -> u32 {
        let halvings = now.since(self.since) / HALVING_US;
        self.len >> halvings.min(31)
    }
}

/// The length of an answer that is still to come, in bytes, of each key if it has several. It is
/// unproven if it may be far longer: nothing is known of this client's answers, or long ones have
/// come of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected(u32);

impl Expected {
    pub(crate) fn new(len: u32, unproven: bool) -> Expected {
        Expected(len.min(UNPROVEN - 1) | (u32::from(unproven) * UNPROVEN))
    }

    pub(crate) fn len(self) -> u32 {
        self.0 & !UNPROVEN
    }

    pub(crate) fn is_unproven(self) -> bool {
        self.0 & UNPROVEN != 0
    }
}

/// The lengths of the answers in a pool.
#[derive(Default)]
pub(crate) struct PoolSizes {
    medians: [Line; 16],
    largest: Largest,
}

#[derive(Clone, Copy, Default)]
struct Line {
    command: u16,
    len: u32,
}

impl PoolSizes {
    /// Notes a length that differs from those before it.
    fn note(&mut self, command: u16, len: u32, now: Time) {
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
    fn median(&self, command: u16) -> u32 {
        let line = &self.medians[usize::from(command) % 16];
        let is_known = line.command == command && line.len > 0;
        if is_known { line.len } else { limits::ANSWER_UNKNOWN }
    }

    /// Returns the length of the largest answer of late.
    pub(crate) fn largest(&self, now: Time) -> u32 {
        self.largest.len(now)
    }
}

/// The lengths of the answers to one client.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClientSizes {
    lines: [ClientLine; 8],
    largest: Largest,
}

#[derive(Clone, Copy, Default)]
struct ClientLine {
    command: u16,
    len: u32,
    /// The lengths that are about the same; none if they are large.
    least: u32,
    most: u32,
}

impl ClientLine {
    fn new(command: u16, len: u32) -> ClientLine {
        ClientLine { command, len, least: len - len / 4, most: len.min(limits::LARGE_MIN - 1) }
    }
}

impl ClientSizes {
    /// Whether an answer, or one of its values, is about as long as those before it, so that there
    /// is nothing to note.
    #[inline]
    pub(crate) fn fits(&self, command: u16, len: usize) -> bool {
        let line = &self.lines[usize::from(command) % 8];
        line.command == command && len <= line.most as usize && len >= line.least as usize
    }

    /// Notes a length that differs from those before it.
    #[cold]
    pub(crate) fn note(&mut self, command: u16, len: usize, pool: &mut PoolSizes, now: Time) {
        let len = (len as u64).clamp(1, u64::from(UNPROVEN - 1)) as u32;
        let line = &mut self.lines[usize::from(command) % 8];
        // Up at once, and down slowly.
        let before = if line.command == command { line.least } else { 0 };
        *line = ClientLine::new(command, len.max(before));
        self.largest.note(len, now);
        pool.note(command, len, now);
    }

    /// Returns what an answer to the next request of this command may be. `is_short` says that it
    /// is as short as others', and `age` how long the client has been here, in microseconds.
    #[inline]
    pub(crate) fn expected(
        &self,
        command: u16,
        pool: &PoolSizes,
        (is_short, age, now): (impl FnOnce() -> bool, impl FnOnce() -> u64, Time),
    ) -> Expected {
        let ClientLine { command: of, len, .. } = self.lines[usize::from(command) % 8];
        let is_known = of == command && len > 0;
        if is_known && pool.largest.len < limits::LARGE_MIN {
            return Expected(len);
        }
        let known = is_known.then_some(len);
        self.expected_of(known, command, pool, (is_short(), age(), now))
    }

    #[cold]
    fn expected_of(
        &self,
        known: Option<u32>,
        command: u16,
        pool: &PoolSizes,
        (is_short, age, now): (bool, u64, Time),
    ) -> Expected {
        let Some(len) = known else {
            return Expected::new(pool.median(command), !is_short);
        };
        // In a pool of large values, a client that has shown small ones for a moment proves little.
        let unproven = pool.largest.len(now) >= limits::LARGE_MIN
            && len < limits::LARGE_MIN
            && (age < PROOF_US || self.largest.len(now) >= limits::LARGE_MIN);
        Expected::new(len, unproven && !is_short)
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
        let answer = Expected::new(100, false);
        let cost = Cost::new(40, answer);
        assert_eq!((cost.bytes(), cost.is_unproven()), (140 + limits::COST_OF_MESSAGE, false));
        let unproven = Cost::new(40, Expected::new(100, true));
        assert_eq!((unproven.bytes(), unproven.is_unproven()), (cost.bytes(), true));
        assert_eq!(Cost::new(usize::MAX >> 1, answer).bytes(), u64::from(UNPROVEN - 1));
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
        assert_eq!(sizes.largest(Time(1_000)), 1_000_000);
    }

    #[test]
    fn the_largest_of_late_halves_each_second() {
        let mut largest = Largest::default();
        largest.note(1_000_000, Time(0));
        for (seconds, expected) in [(0, 1_000_000), (1, 500_000), (3, 125_000), (10, 976)] {
            let now = Time(seconds * SECOND);
            largest.note(10, now);
            assert_eq!(largest.len(now), expected, "after {seconds} s");
        }
        let now = Time(100 * SECOND);
        largest.note(10, now);
        assert_eq!(largest.len(now), 10);
    }

    /// The lengths of a pool and of one of its clients.
    #[derive(Default)]
    struct Sizes {
        pool: PoolSizes,
        client: ClientSizes,
    }

    impl Sizes {
        fn note(&mut self, len: usize) {
            if !self.client.fits(1, len) {
                self.client.note(1, len, &mut self.pool, Time(0));
            }
        }

        /// Returns what a read is expected to bring, of a client that came so long ago.
        fn expected(&self, command: u16, age: u64) -> Expected {
            self.client.expected(command, &self.pool, (|| false, || age, Time(0)))
        }
    }

    #[test]
    fn a_client_is_expected_to_ask_for_what_it_asked_for_before() {
        let mut sizes = Sizes::default();
        sizes.pool.note(1, 50, Time(0));
        assert_eq!(sizes.expected(1, 0), Expected::new(50, true));
        sizes.note(90);
        assert_eq!(sizes.expected(1, 0), Expected::new(90, false));
        // Another command, of the same line too, is unknown.
        assert!(sizes.expected(2, 0).is_unproven() && sizes.expected(9, 0).is_unproven());
        // Up at once, down by a quarter, and less than that is no change.
        sizes.note(4_000);
        sizes.note(3_001);
        assert_eq!(sizes.expected(1, 0).len(), 4_000);
        sizes.note(10);
        assert_eq!(sizes.expected(1, 0).len(), 3_000);
    }

    #[test]
    fn small_answers_prove_little_where_large_ones_come() {
        let mut sizes = Sizes::default();
        sizes.note(90);
        sizes.pool.note(1, limits::LARGE_MIN, Time(0));
        assert!(sizes.expected(1, PROOF_US - 1).is_unproven(), "a young client");
        assert!(!sizes.expected(1, PROOF_US).is_unproven(), "an old one");
        sizes.note(limits::LARGE_MIN as usize);
        assert!(!sizes.expected(1, 0).is_unproven(), "its cost is known: it is large");
        for _ in 0..40 {
            sizes.note(90);
        }
        assert!(sizes.expected(1, PROOF_US).is_unproven(), "it had a large one of late");
    }

    #[test]
    fn the_answer_to_a_change_is_as_short_as_others() {
        let mut sizes = Sizes::default();
        sizes.pool.note(1, limits::LARGE_MIN, Time(0));
        let change = sizes.client.expected(1, &sizes.pool, (|| true, || 0, Time(0)));
        assert_eq!(change, Expected::new(limits::LARGE_MIN, false));
    }
}
