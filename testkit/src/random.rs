//! A random generator with a seed (xorshift64*, Marsaglia 2003, Vigna 2016): the same seed gives
//! the same run.

#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not give neighbouring runs, and zero would stay zero.
        let mut random =
            Random((seed ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.number();
        }
        random
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0);
        (((self.number() >> 32) * bound as u64) >> 32) as usize
    }

    /// Returns a number of `low..=high`.
    pub fn range(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns true `part` times in a thousand.
    pub fn permille(&mut self, part: usize) -> bool {
        self.below(1000) < part
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns one of the rows, with a probability proportional to its share.
    pub fn weighted<T: Copy>(&mut self, ids: &[(usize, T)]) -> T {
        let sum = ids.iter().map(|number| number.0).sum();
        let mut at = self.below(sum);
        for (share, number) in ids {
            match at.checked_sub(*share) {
                Some(rest) => at = rest,
                None => return *number,
            }
        }
        unreachable!("the shares sum up to their sum")
    }
}
