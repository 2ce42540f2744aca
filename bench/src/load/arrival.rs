//! Seeded random choices: the key, the kind of request, the connection, and the next due time.

/// xorshift64*: good enough to spread keys, at a cost of a nanosecond.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `bound`, evenly distributed.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Returns the nanoseconds to the next event of a Poisson process of `rate` events a second.
    pub fn poisson_gap_ns(&mut self, rate: f64) -> u64 {
        // 53 random bits in (0, 1]: the logarithm is finite.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-uniform.ln() / rate * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_gaps_have_the_mean_and_spread_of_their_rate() {
        let mut random = Random::new(7);
        let gaps: Vec<f64> = (0..200_000).map(|_| random.poisson_gap_ns(1e6) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1000.0).abs() < 15.0, "mean {mean}");
        assert!((variance.sqrt() - 1000.0).abs() < 25.0, "deviation {}", variance.sqrt());
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut random = Random::new(1);
        let mut seen = [0_u32; 11];
        for _ in 0..11_000 {
            seen[random.below(11) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 800), "{seen:?}");
    }
}
