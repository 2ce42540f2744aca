//! How long answers are expected to be. A request's cost is not known before its answer has come,
//! so it is estimated from the answers before it: by client and command, since one client's large
//! values must not make another's small ones look large.

use crate::Time;
use crate::base::limits;

/// The cost of a part of a request to its server and to the network, in bytes: what is sent, what
/// is expected in answer, and a fixed part for each message. With it goes how long the answer may
/// be if the expectation is unproven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost(u32);

/// The lower bits of a cost or an expectation are bytes. The upper ones are 0 if it is proven, and
/// `STATISTICS` if it is of statistics; otherwise the answer may have `LEVEL_LEN << level` bytes.
const LEVEL_SHIFT: u32 = 28;
const BYTES: u32 = (1 << LEVEL_SHIFT) - 1;
const LEVEL_LEN: u32 = 64 * 1024;
const LEVEL_MAX: u32 = 14;
const STATISTICS: u32 = (LEVEL_MAX + 1) << LEVEL_SHIFT;
/// How long an answer may be to a command of which nothing is known.
const UNKNOWN_LEN: u32 = 512 * 1024;

/// Returns the upper bits for an unproven answer, in a place where answers of this length were seen
/// of late.
fn level(largest: u32) -> u32 {
    let doublings = largest.div_ceil(LEVEL_LEN).next_power_of_two().trailing_zeros();
    doublings.clamp(1, LEVEL_MAX) << LEVEL_SHIFT
}

impl Cost {
    /// Returns the cost of a part of which so many bytes are sent.
    #[inline]
    pub(crate) fn new(sent: usize, expected: Expected) -> Cost {
        let bytes = sent as u64 + u64::from(expected.len()) + limits::COST_OF_MESSAGE;
        let bytes = bytes.min(u64::from(BYTES)) as u32;
        Cost(bytes | expected.0 & !BYTES)
    }

    /// Returns the same cost for an answer of known length.
    pub(crate) fn proven(self) -> Cost {
        Cost(self.0 & BYTES)
    }

    /// Returns the cost if this is expected in answer instead. It is not less than it was.
    pub(crate) fn renewed(self, expected: Expected) -> Cost {
        let expected = if self.is_statistics() { expected.of_statistics() } else { expected };
        let Cost(now) = Cost::new(0, expected);
        Cost(self.bytes().max(Cost(now).bytes()) as u32 | now & !BYTES)
    }

    /// Returns the same cost for an answer that may be as long as another's.
    pub(crate) fn unproven_as(self, other: Cost) -> Cost {
        Cost(self.0 & BYTES | other.0 & !BYTES)
    }

    /// Returns the cost if the answer has so many values. Where answers are short, they are so with
    /// all their values.
    pub(crate) fn of_values(self, count: usize) -> Cost {
        if self.unproven() < u64::from(UNKNOWN_LEN) {
            return self;
        }
        let all = self.unproven().saturating_mul(count.max(1) as u64);
        Cost(self.0 & BYTES | level(u32::try_from(all).unwrap_or(u32::MAX)))
    }

    /// Returns the cost of both together, at the same place: all of it may be far larger.
    pub(crate) fn plus(self, other: Cost) -> Cost {
        let bytes = (self.bytes() + other.bytes()).min(u64::from(BYTES)) as u32;
        let level = match self.unproven() + other.unproven() {
            0 => 0,
            unproven => level(u32::try_from(unproven).unwrap_or(u32::MAX)),
        };
        Cost(bytes | level)
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.0 & BYTES)
    }

    /// Returns how many bytes an unproven answer may have; 0 if it is proven, as nearly all are.
    #[inline]
    pub(crate) fn unproven(self) -> u64 {
        if self.is_unproven() { u64::from(LEVEL_LEN) << (self.0 >> LEVEL_SHIFT) } else { 0 }
    }

    /// Whether it is of statistics.
    #[inline]
    pub(crate) fn is_statistics(self) -> bool {
        self.0 >= STATISTICS
    }

    /// Whether it is bounded by more than its bytes, as few are.
    #[inline]
    pub(crate) fn is_special(self) -> bool {
        self.0 > BYTES
    }

    /// Whether so many bytes are sent, or expected in answer.
    pub(crate) fn is_of(self, bytes: u64) -> bool {
        self.bytes() >= bytes.saturating_add(limits::COST_OF_MESSAGE)
    }

    pub(crate) fn is_unproven(self) -> bool {
        (BYTES + 1..STATISTICS).contains(&self.0)
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
    pub(crate) fn proven(len: u32) -> Expected {
        Expected(len.min(BYTES))
    }

    /// Returns what is expected if answers as long as `largest` have come of late.
    pub(crate) fn unproven(len: u32, largest: u32) -> Expected {
        Expected(len.min(BYTES) | level(largest))
    }

    /// As `unproven`, where answers of a middling length are no surprise either.
    pub(crate) fn unknown(len: u32, largest: u32) -> Expected {
        Expected::unproven(len, largest.max(UNKNOWN_LEN))
    }

    /// Returns what is expected of statistics. They take a server some ten times as long as a value
    /// of as many bytes, and nobody needs many, so their number in flight is bounded.
    pub(crate) fn of_statistics(self) -> Expected {
        Expected(self.len() | STATISTICS)
    }

    pub(crate) fn len(self) -> u32 {
        self.0 & BYTES
    }

    /// Whether it is proven, and shorter than so many bytes with these.
    #[inline]
    pub(crate) fn is_below(self, bytes: u64, with: u64) -> bool {
        // The bits of what is unproven are above any number of bytes.
        with + u64::from(self.0) < bytes.min(u64::from(BYTES))
    }

    pub(crate) fn is_unproven(self) -> bool {
        self.0 > BYTES
    }
}

/// The lengths of the answers in a pool.
pub(crate) struct PoolSizes {
    lines: [PoolLine; POOL_LINES],
}

/// Few of a protocol's commands have the same line.
const POOL_LINES: usize = 256;

impl Default for PoolSizes {
    fn default() -> PoolSizes {
        PoolSizes { lines: [PoolLine::default(); POOL_LINES] }
    }
}

/// The lengths of the answers to one command, or to a few.
#[derive(Clone, Copy, Default)]
struct PoolLine {
    median: Line,
    /// Of all commands that have this line: one of them must not hide another's large answers.
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
        let PoolLine { median: line, largest } = &mut self.lines[usize::from(command) % POOL_LINES];
        if line.command != command || line.len == 0 {
            *line = Line { command, len };
        } else if len > line.len {
            line.len += line.len / 16 + 1;
        } else if len < line.len {
            line.len -= line.len / 16 + u32::from(line.len < 16);
        }
        largest.note(len, now);
    }

    /// Notes the length of an answer that belongs to no client any more.
    #[cold]
    pub(crate) fn note_unheard(&mut self, command: u16, len: usize, now: Time) {
        self.note(command, counted(len), now);
    }

    /// Returns about the median of the answers to a command.
    fn median(&self, command: u16) -> u32 {
        self.known(command).unwrap_or(limits::ANSWER_UNKNOWN)
    }

    fn known(&self, command: u16) -> Option<u32> {
        let line = &self.line(command).median;
        (line.command == command && line.len > 0).then_some(line.len)
    }

    /// Returns the length of the largest answer to a command of late.
    pub(crate) fn largest(&self, command: u16, now: Time) -> u32 {
        self.line(command).largest.len(now)
    }

    #[inline]
    fn line(&self, command: u16) -> &PoolLine {
        &self.lines[usize::from(command) % POOL_LINES]
    }
}

/// The lengths of the answers to one client.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClientSizes {
    lines: [ClientLine; 8],
    largest: Largest,
    miss: LastMiss,
}

/// The last miss that left no length to note: its command, and for how long the next reads are
/// expected to miss as well.
#[derive(Clone, Copy, Default)]
struct LastMiss {
    command: u16,
    until: Time,
}

#[derive(Clone, Copy, Default)]
struct ClientLine {
    command: u16,
    len: u32,
    /// The lengths that are about the same: from the least on, so many more. None if they are
    /// large.
    least: u32,
    more: u32,
}

impl ClientLine {
    fn new(command: u16, len: u32) -> ClientLine {
        let least = len - len / 4;
        match len.min(limits::LARGE_MIN - 1).checked_sub(least) {
            Some(more) => ClientLine { command, len, least, more },
            // No answer is as long as this.
            None => ClientLine { command, len, least: u32::MAX, more: 0 },
        }
    }
}

impl ClientSizes {
    /// Whether an answer, or one of its values, is about as long as those before it, so that there
    /// is nothing to note.
    #[inline]
    pub(crate) fn fits(&self, command: u16, len: usize) -> bool {
        let line = &self.lines[usize::from(command) % 8];
        line.command == command && len.wrapping_sub(line.least as usize) <= line.more as usize
    }

    /// Notes a length that differs from those before it.
    #[cold]
    pub(crate) fn note(&mut self, command: u16, len: usize, pool: &mut PoolSizes, now: Time) {
        let len = counted(len);
        let line = &mut self.lines[usize::from(command) % 8];
        // Up at once, and down slowly.
        let before = if line.command == command { line.len - line.len / 4 } else { 0 };
        *line = ClientLine::new(command, len.max(before));
        self.largest.note(len, now);
        pool.note(command, len, now);
    }

    /// Notes that a key had no value. That proves something for a moment only: the key may be given
    /// one at any time.
    #[inline]
    pub(crate) fn note_miss(&mut self, command: u16, now: Time) {
        self.miss = LastMiss { command, until: now.after(MISS_US) };
    }

    /// Forgets the last miss, since the client gives a key a value.
    #[inline]
    pub(crate) fn forget_miss(&mut self) {
        self.miss.until = Time::default();
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
        if is_known && pool.line(command).largest.len < limits::LARGE_MIN {
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
        let largest = pool.largest(command, now);
        let has_large = self.largest.len(now) >= limits::LARGE_MIN;
        let misses = self.miss.command == command && now < self.miss.until;
        if known.is_none() && misses && !has_large && largest < limits::LARGE_MIN {
            return Expected::proven(pool.known(command).unwrap_or(1));
        }
        // In a pool of large values, a client that has shown small ones for a moment proves little.
        let is_old = age >= PROOF_US && !has_large;
        let is_proven = match known {
            Some(len) => largest < limits::LARGE_MIN || len >= limits::LARGE_MIN || is_old,
            // It may use more commands than it has lines.
            None => is_old && largest < limits::LARGE_MIN && pool.known(command).is_some(),
        };
        let len = known.unwrap_or_else(|| pool.median(command));
        match is_short || is_proven {
            true => Expected::proven(len),
            false if pool.known(command).is_none() => Expected::unknown(len, largest),
            false => Expected::unproven(len, largest),
        }
    }
}

/// Returns a length as it is noted: 0 is for what is not known.
fn counted(len: usize) -> u32 {
    len.clamp(1, BYTES as usize) as u32
}

/// How long it takes until the memory of a large answer is half as large.
const HALVING_US: u64 = 1_000_000;
/// How long a client that has missed is expected to go on missing.
const MISS_US: u64 = 100_000;
/// How long a client is young: its small answers prove little.
const PROOF_US: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_cost_is_the_bytes_of_both_ways_and_a_fixed_part() {
        let answer = Expected::proven(100);
        let cost = Cost::new(40, answer);
        assert_eq!((cost.bytes(), cost.is_unproven()), (140 + limits::COST_OF_MESSAGE, false));
        let unproven = Cost::new(40, Expected::unproven(100, 0));
        assert_eq!((unproven.bytes(), unproven.is_unproven()), (cost.bytes(), true));
        assert_eq!((cost.unproven(), unproven.unproven()), (0, 128 * 1024));
        let most = Cost::new(usize::MAX >> 1, answer);
        assert_eq!((most.bytes(), most.is_unproven()), (u64::from(BYTES), false));
        assert!(!Expected::proven(u32::MAX).is_unproven());
    }

    #[test]
    fn a_client_that_has_just_missed_is_expected_to_miss() {
        let missed = |command, at| {
            let mut sizes = Sizes::default();
            sizes.client.note_miss(command, Time(at));
            sizes
        };
        let expected = |sizes: &Sizes, command, now| {
            sizes.client.expected(command, &sizes.pool, (|| false, || 0, Time(now)))
        };
        let mut sizes = missed(1, 0);
        assert_eq!(expected(&sizes, 1, MISS_US - 1), Expected::proven(1));
        assert!(expected(&sizes, 1, MISS_US).is_unproven(), "keys may have values by now");
        assert!(expected(&sizes, 2, 0).is_unproven(), "another command");
        sizes.pool.note(1, 1000, Time(0));
        assert_eq!(expected(&sizes, 1, 0), Expected::proven(1000), "as long as others'");
        sizes.pool.note(1, limits::LARGE_MIN, Time(0));
        assert!(expected(&sizes, 1, 0).is_unproven(), "others find large values");

        let mut sizes = missed(1, 0);
        sizes.client.forget_miss();
        assert!(expected(&sizes, 1, 0).is_unproven(), "the client has set a key");

        let mut sizes = missed(1, 4_000_000);
        sizes.client.note(2, limits::LARGE_MIN as usize, &mut sizes.pool, Time(4_000_000));
        assert!(expected(&sizes, 1, 4_000_000).is_unproven(), "it has large values");

        let mut sizes = missed(1, 4_000_000);
        sizes.client.note(1, limits::LARGE_MIN as usize, &mut sizes.pool, Time(0));
        let shown = expected(&sizes, 1, 4_000_000);
        assert_eq!(shown, Expected::proven(limits::LARGE_MIN), "a value says more than a miss");
    }

    #[test]
    fn a_cost_may_be_as_unproven_as_another_and_keeps_its_bytes() {
        let own = Cost::new(40, Expected::proven(100));
        let other = Cost::new(9_000, Expected::unproven(1, 0));
        let both = own.unproven_as(other);
        assert_eq!((both.bytes(), both.unproven()), (own.bytes(), other.unproven()));
    }

    #[test]
    fn an_answer_is_below_a_bound_if_it_is_proven_and_fits_with_what_goes_before() {
        let below = |len, with| Expected::proven(len).is_below(200, with);
        assert_eq!([below(100, 99), below(100, 100), below(0, 200)], [true, false, false]);
        assert!(!Expected::unproven(1, 0).is_below(u64::MAX, 0), "it may be far longer");
    }

    #[test]
    fn statistics_stay_what_they_are_whatever_is_learned() {
        let statistics = Cost::new(7, Expected::unproven(100, u32::MAX).of_statistics());
        assert_eq!(statistics.bytes(), Cost::new(7, Expected::proven(100)).bytes());
        assert!(statistics.is_statistics() && statistics.unproven() == 0);
        for cost in [statistics.renewed(Expected::proven(10)), statistics.of_values(50)] {
            assert_eq!(cost, statistics);
        }
        let longer = statistics.renewed(Expected::unproven(5_000, u32::MAX));
        assert!(longer.is_statistics() && longer.bytes() > 5_000);
        let largest = Cost::new(0, Expected::unproven(0, u32::MAX)).of_values(usize::MAX);
        assert!(largest.is_unproven() && !largest.is_statistics());
    }

    #[test]
    fn an_unproven_answer_may_be_as_long_as_others_were() {
        let may_have = |largest| Cost::new(1, Expected::unproven(7, largest)).unproven() / 1024;
        let lens =
            [0, 512, 513, 1024, 1025, 5_000, 16_384, 100_000].map(|kib| may_have(kib * 1024));
        assert_eq!(lens, [128, 512, 1024, 1024, 2048, 8192, 16_384, 131_072]);
        let small = Cost::new(1, Expected::unknown(7, 0));
        let large = Cost::new(1, Expected::unproven(7, 9 << 20));
        let known = Cost::new(1, Expected::proven(9));
        let sums = [small, known, large].map(|one| one.plus(large).unproven() >> 20);
        assert_eq!(sums, [32, 16, 32]);
        assert_eq!([small.plus(small), known.plus(known)].map(Cost::unproven), [1 << 20, 0]);
        assert_eq!([1, 3, 100].map(|count| small.of_values(count).unproven() >> 19), [1, 4, 128]);
        let short = Cost::new(1, Expected::unproven(7, 100));
        assert_eq!((known.of_values(9), short.of_values(9)), (known, short));
        assert_eq!(large.renewed(Expected::proven(9)).unproven(), 0);
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
        assert_eq!([7, 8].map(|of| sizes.largest(of, Time(1_000))), [1_000_000, 0]);
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
        assert_eq!(sizes.expected(1, 0), Expected::unproven(50, 50));
        sizes.note(90);
        assert_eq!(sizes.expected(1, 0), Expected::proven(90));
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
    fn each_large_answer_is_noted_and_a_small_one_like_those_before_it_is_not() {
        let mut sizes = Sizes::default();
        let large = limits::LARGE_MIN as usize;
        for len in [large - 1, large] {
            sizes.client.note(1, len, &mut sizes.pool, Time(0));
            let fits = [large - 1, large].map(|len| sizes.client.fits(1, len));
            assert_eq!(fits, [true, false], "after {len}");
        }
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
    fn a_client_that_alternates_two_commands_of_one_line_proves_both() {
        let mut sizes = Sizes::default();
        for _ in 0..9 {
            for command in [181, 149] {
                sizes.client.note(command, 90, &mut sizes.pool, Time(0));
            }
        }
        let expected = |age| sizes.expected(181, age);
        assert_eq!((expected(PROOF_US), expected(PROOF_US).len()), (Expected::proven(90), 90));
        assert!(expected(PROOF_US - 1).is_unproven(), "a young client");
        assert!(sizes.expected(7, PROOF_US).is_unproven(), "nobody knows it");
        sizes.pool.note(181, limits::LARGE_MIN, Time(0));
        assert!(sizes.expected(181, PROOF_US).is_unproven(), "large ones have come of late");
    }

    #[test]
    fn large_answers_to_one_command_say_nothing_of_another() {
        let mut sizes = Sizes::default();
        sizes.note(90);
        sizes.pool.note(2, limits::LARGE_MIN, Time(0));
        assert_eq!(sizes.expected(1, 0), Expected::proven(90));
        // Where two commands have the same line, caution wins.
        sizes.pool.note(1 + POOL_LINES as u16, limits::LARGE_MIN, Time(0));
        sizes.pool.note(1, 90, Time(0));
        assert!(sizes.expected(1, 0).is_unproven());
    }

    #[test]
    fn the_answer_to_a_change_is_as_short_as_others() {
        let mut sizes = Sizes::default();
        sizes.pool.note(1, limits::LARGE_MIN, Time(0));
        let change = sizes.client.expected(1, &sizes.pool, (|| true, || 0, Time(0)));
        assert_eq!(change, Expected::proven(limits::LARGE_MIN));
    }
}
