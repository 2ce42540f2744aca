//! The sum of the costs of parts: of what a link has in flight, and of the keys of a get.

use crate::base::size::Cost;

/// The costs of parts, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Costs {
    bytes: u64,
    /// Bytes that those answers may have that may be far larger than expected.
    unproven: u64,
    /// How many parts ask for statistics.
    statistics: u32,
}

impl Costs {
    #[inline(always)]
    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    #[inline(always)]
    pub(super) fn unproven(self) -> u64 {
        self.unproven
    }

    #[inline(always)]
    pub(super) fn statistics(self) -> u32 {
        self.statistics
    }

    #[inline(always)]
    pub(super) fn add(&mut self, cost: Cost) {
        self.bytes += cost.bytes();
        self.unproven += cost.unproven();
        self.statistics += u32::from(cost.is_statistics());
    }

    /// Takes out what was added before.
    #[inline(always)]
    pub(super) fn remove(&mut self, cost: Cost) {
        self.bytes -= cost.bytes();
        self.unproven -= cost.unproven();
        self.statistics -= u32::from(cost.is_statistics());
    }

    pub(super) fn add_all(&mut self, other: Costs) {
        self.bytes += other.bytes;
        self.unproven += other.unproven;
        self.statistics += other.statistics;
    }

    /// Takes out what was added before.
    pub(super) fn remove_all(&mut self, other: Costs) {
        self.bytes -= other.bytes;
        self.unproven -= other.unproven;
        self.statistics -= other.statistics;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::size::Expected;

    #[test]
    fn what_was_added_is_removed_whole() {
        let small = Cost::new(10, Expected::proven(100));
        let large = Cost::new(10, Expected::unproven(1, 100_000));
        let statistics = Cost::new(7, Expected::unproven(1, 1).of_statistics());
        let mut costs = Costs::default();
        [small, large, statistics].into_iter().for_each(|cost| costs.add(cost));
        assert_eq!(costs.bytes(), small.bytes() + large.bytes() + statistics.bytes());
        assert_eq!((costs.unproven(), costs.statistics()), (large.unproven(), 1));
        assert!(costs.unproven() > 0);

        let mut both = costs;
        both.add_all(costs);
        both.remove_all(costs);
        assert_eq!(both, costs);
        [large, statistics, small].into_iter().for_each(|cost| both.remove(cost));
        assert_eq!(both, Costs::default());
    }
}
