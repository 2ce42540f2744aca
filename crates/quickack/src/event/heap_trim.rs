//! Heap trim: memory that was freed is given back to the kernel. The allocator keeps what lies
//! between pieces in use, so after many large values it would hold their memory for the rest of its
//! life.

use proxy::Time;

/// Watches how much is held, and says when so much less of it is that a trim is worth it.
#[derive(Default)]
pub struct HeapTrim {
    high: u64,
    last: Time,
}

impl HeapTrim {
    /// Whether to walk through the heap now. `held`: bytes in buffers, as last summed up.
    pub fn is_due(&mut self, held: u64, now: Time) -> bool {
        self.high = self.high.max(held);
        let fallen = self.high - held >= WORTH && held <= self.high / 2;
        if !fallen || now.since(self.last) < PAUSE_US {
            return false;
        }
        (self.high, self.last) = (held, now);
        true
    }
}

/// Bytes for which the walk is worth its milliseconds.
const WORTH: u64 = 16 * 1024 * 1024;
/// The shortest time between two walks, microseconds.
const PAUSE_US: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_great_fall_is_worth_one_trim_and_not_too_often() {
        let mut heap_trim = HeapTrim::default();
        let second = |at: u64| Time(at * 1_000_000);
        assert!(!heap_trim.is_due(100 << 20, second(1)));
        assert!(!heap_trim.is_due(60 << 20, second(2)), "most of it is still there");
        assert!(heap_trim.is_due(10 << 20, second(3)));
        assert!(!heap_trim.is_due(0, second(4)), "the rest is not worth it");
        assert!(!heap_trim.is_due(50 << 20, second(5)));
        assert!(heap_trim.is_due(0, second(6)));
        assert!(!heap_trim.is_due(50 << 20, second(6)) && !heap_trim.is_due(0, second(6)));
        assert!(heap_trim.is_due(0, second(7)));
        // Just enough, and just half.
        let mut heap_trim = HeapTrim::default();
        assert!(!heap_trim.is_due(32 << 20, second(1)));
        assert!(
            !heap_trim.is_due((16 << 20) + 1, second(2)) && heap_trim.is_due(16 << 20, second(2))
        );
        assert!(!heap_trim.is_due(16 << 20, Time(3_500_000)));
        assert!(!heap_trim.is_due(0, Time(2_999_999)) && heap_trim.is_due(0, Time(3_500_000)));
    }
}
