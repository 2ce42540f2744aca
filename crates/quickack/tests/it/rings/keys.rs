//! The keys that are requested from every row.

const KEY_COUNT: usize = 100_000;

/// Returns distinct keys, the same in every run: counters, tags, and random bytes of all lengths.
/// Bytes above 0x7f matter, because some of the C hashes read them as negative numbers.
pub fn keys() -> Vec<Vec<u8>> {
    let mut random = SplitMix(1);
    (0..KEY_COUNT)
        .map(|index| match index % 4 {
            0 => format!("key:{index}").into_bytes(),
            1 => format!("item:{{user-{}}}:{index}", random.below(5_000)).into_bytes(),
            2 => format!("{index:x}{}", "-}{:{}::"[..random.below(9)].repeat(2)).into_bytes(),
            _ => {
                let len_max = if index % 100 == 3 { 240 } else { 40 };
                let mut key = index.to_string().into_bytes();
                let len = key.len() + random.below(len_max);
                key.resize_with(len, || printable(random.below(256) as u8));
                key
            }
        })
        .collect()
}

/// Returns a byte that a key may contain.
fn printable(byte: u8) -> u8 {
    if byte <= b' ' || byte == 0x7f { byte | 0x80 } else { byte }
}

struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
