//! A key's hash: two multiplications for each sixteen bytes.
//!
//! It need not withstand an attacker, because the index bounds the cost of colliding keys.

const SEED: u64 = 0x2d35_8dcc_aa6c_78a5;
const FIRST: u64 = 0x8bb8_4b93_962e_acc9;
const SECOND: u64 = 0x4b33_a62e_d433_d4a3;

/// Returns 64 well mixed bits of `key`.
pub fn hash(key: &[u8]) -> u64 {
    let mut state = SEED ^ (key.len() as u64).wrapping_mul(FIRST);
    let mut rest = key;
    while let Some((chunk, after)) = rest.split_first_chunk::<16>() {
        let both = u128::from_le_bytes(*chunk);
        state = fold(state ^ both as u64 ^ FIRST, (both >> 64) as u64 ^ SECOND);
        rest = after;
    }
    let (low, high) = tail(rest);
    fold(fold(low ^ state ^ SECOND, high ^ FIRST), SEED)
}

/// Returns the last 0 to 15 bytes as two words. The reads overlap, so there is no loop over bytes.
fn tail(rest: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (rest.first_chunk::<8>(), rest.last_chunk::<8>()) {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else if let (Some(first), Some(last)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        (u64::from(u32::from_le_bytes(*first)), u64::from(u32::from_le_bytes(*last)))
    } else {
        (rest.iter().fold(0, |word, &byte| (word << 8) | u64::from(byte)), rest.len() as u64)
    }
}

/// Returns the exclusive or of the halves of the 128-bit product.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_byte_and_the_length_count() {
        let mut seen = HashSet::new();
        for len in 1..=250 {
            let mut key = vec![b'a'; len];
            assert!(seen.insert(hash(&key)), "length {len}");
            for place in 0..len {
                key[place] = b'b';
                assert!(seen.insert(hash(&key)), "length {len}, byte {place}");
                key[place] = b'a';
            }
        }
    }

    /// The hits in docs/benchmarks.md were counted with this hash, so this test detects a change of
    /// any bit. It covers a key of every length up to three blocks, with the top bit set in some.
    #[test]
    fn the_hash_is_the_one_that_was_measured() {
        let keys = (0..=48u8).map(|len| (0..len).map(|at| at.wrapping_mul(151) ^ len).collect());
        let all = keys.fold(0, |all: u64, key: Vec<u8>| all.rotate_left(1) ^ hash(&key));
        assert_eq!(all, 0x12b9_a8f7_5f79_1465, "{all:#x}");
        assert_eq!(tail(&[0x80, 1, 2]), (0x80_01_02, 3));
    }

    #[test]
    fn numbered_keys_spread_over_high_and_low_bits() {
        let (mut high, mut low) = (vec![0u32; 1024], vec![0u32; 1024]);
        for number in 0..1024 * 100 {
            let hash = hash(format!("key:{number:09}").as_bytes());
            high[(hash >> 54) as usize] += 1;
            low[(hash & 1023) as usize] += 1;
        }
        let bound = 50..=160; // mean 100, five standard deviations
        assert!(high.iter().chain(&low).all(|count| bound.contains(count)));
    }
}
