//! Memory that was let go is given back. The allocator keeps what lies between pieces in use, so
//! after a flood of large values it would hold the flood's memory for the rest of its life.

use proxy::Time;

/// Watches how much is held, and says when much less of it is.
#[derive(Default)]
pub struct Ebb {
    high: u64,
    last: Time,
}

impl Ebb {
    /// Whether the tide has fallen so far that it is worth a walk through the heap. `held`: bytes
    /// in buffers, as last summed up.
    pub fn has_fallen(&mut self, held: u64, now: Time) -> bool {
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
    fn a_tide_that_falls_far_is_told_once_and_not_too_often() {
        let mut ebb = Ebb::default();
        let second = |at: u64| Time(at * 1_000_000);
        assert!(!ebb.has_fallen(100 << 20, second(1)));
        assert!(!ebb.has_fallen(60 << 20, second(2)), "most of it is still there");
        assert!(ebb.has_fallen(10 << 20, second(3)));
        assert!(!ebb.has_fallen(0, second(4)), "the rest is not worth it");
        assert!(!ebb.has_fallen(50 << 20, second(5)));
        assert!(ebb.has_fallen(0, second(6)));
        assert!(!ebb.has_fallen(50 << 20, second(6)) && !ebb.has_fallen(0, second(6)));
        assert!(ebb.has_fallen(0, second(7)));
    }
}
