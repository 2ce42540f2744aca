//! The twelve hashes of `nutcracker.yml`: a table with one row for each, and the functions below
//! it.
//!
//! twemproxy took them from libmemcached, so several differ from their textbook forms. Two habits
//! are common to all and noted only here. A result is always 32 bits. Where the C code reads the
//! key through `char`, a byte of 0x80 or more is negative on x86-64 and is sign-extended
//! (`signed`).

use md5::{Digest, Md5};

/// The name of a hash in `nutcracker.yml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// Bob Jenkins' one-at-a-time.
    OneAtATime,
    /// The first four bytes of MD5.
    Md5,
    /// CRC-16/XMODEM, including the bits shifted out of its 16.
    Crc16,
    /// Fifteen bits of CRC-32: libmemcached's form.
    Crc32,
    /// CRC-32 as in zlib.
    Crc32a,
    /// The low half of 64-bit FNV-1.
    Fnv64,
    /// 64-bit FNV-1a computed in 32 bits. twemproxy's default.
    Fnv64a,
    /// 32-bit FNV-1.
    Fnv32,
    /// 32-bit FNV-1a.
    Fnv32a,
    /// Paul Hsieh's SuperFastHash.
    Hsieh,
    /// MurmurHash2 seeded by the length.
    Murmur,
    /// Bob Jenkins' lookup3.
    Jenkins,
}

struct Row {
    hash: Hash,
    name: &'static str,
    function: fn(&[u8]) -> u32,
}

/// In the order of the enum, so that a hash is the index of its row.
const TABLE: [Row; 12] = [
    Row { hash: Hash::OneAtATime, name: "one_at_a_time", function: one_at_a_time },
    Row { hash: Hash::Md5, name: "md5", function: md5 },
    Row { hash: Hash::Crc16, name: "crc16", function: crc16 },
    Row { hash: Hash::Crc32, name: "crc32", function: crc32 },
    Row { hash: Hash::Crc32a, name: "crc32a", function: crc32a },
    Row { hash: Hash::Fnv64, name: "fnv1_64", function: fnv1_64 },
    Row { hash: Hash::Fnv64a, name: "fnv1a_64", function: fnv1a_64 },
    Row { hash: Hash::Fnv32, name: "fnv1_32", function: fnv1_32 },
    Row { hash: Hash::Fnv32a, name: "fnv1a_32", function: fnv1a_32 },
    Row { hash: Hash::Hsieh, name: "hsieh", function: hsieh },
    Row { hash: Hash::Murmur, name: "murmur", function: murmur },
    Row { hash: Hash::Jenkins, name: "jenkins", function: jenkins },
];

impl Hash {
    pub const ALL: &[Hash] = &{
        let mut all = [Hash::OneAtATime; TABLE.len()];
        let mut row = 0;
        while row < TABLE.len() {
            all[row] = TABLE[row].hash;
            assert!(all[row] as usize == row, "the table follows the order of the enum");
            row += 1;
        }
        all
    };

    pub fn name(self) -> &'static str {
        TABLE[self as usize].name
    }

    pub fn from_name(name: &str) -> Option<Hash> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.hash)
    }

    #[inline]
    pub fn hash(self, key: &[u8]) -> u32 {
        (TABLE[self as usize].function)(key)
    }
}

/// Widens a byte as C's `char` on x86-64 does.
#[inline]
fn signed(byte: u8) -> u32 {
    byte as i8 as u32
}

#[inline]
fn word16(bytes: [u8; 2]) -> u32 {
    u32::from(u16::from_le_bytes(bytes))
}

fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = 0u32;
    for &byte in key {
        hash = hash.wrapping_add(signed(byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

fn md5(key: &[u8]) -> u32 {
    digest_words(key)[0]
}

/// Returns an MD5 digest as four little-endian numbers. Ketama makes four points of it.
pub(crate) fn digest_words(bytes: &[u8]) -> [u32; 4] {
    let digest: [u8; 16] = Md5::digest(bytes).into();
    let (words, _) = digest.as_chunks::<4>();
    [0, 1, 2, 3].map(|word| u32::from_le_bytes(words[word]))
}

/// CRC-16/XMODEM in a register of 32 bits that twemproxy never cuts to 16: bits shifted out of the
/// lower half stay in the upper one.
fn crc16(key: &[u8]) -> u32 {
    static TABLE: [u32; 256] = crc16_table();
    key.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[((crc >> 8) as u8 ^ byte) as usize])
}

/// CRC-32 as in zlib.
fn crc32a(key: &[u8]) -> u32 {
    static TABLE: [u32; 256] = crc32_table();
    !key.iter().fold(!0, |crc, &byte| (crc >> 8) ^ TABLE[(crc as u8 ^ byte) as usize])
}

/// Only bits 16 to 30 of the CRC, so hashes end at 32,767. On ketama's circle of 2^32 places they
/// all fall into a tiny arc, so all keys of a pool land on one node. twemproxy does the same.
fn crc32(key: &[u8]) -> u32 {
    (crc32a(key) >> 16) & 0x7fff
}

const fn crc16_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 };
            bit += 1;
        }
        table[byte] = crc as u32;
        byte += 1;
    }
    table
}

const fn crc32_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

const FNV_64_LOW_INIT: u32 = 0xcbf2_9ce4_8422_2325u64 as u32;
const FNV_64_LOW_PRIME: u32 = 0x100_0000_01b3u64 as u32;
const FNV_32_INIT: u32 = 0x811c_9dc5;
const FNV_32_PRIME: u32 = 0x0100_0193;

/// twemproxy computes 64 bits and drops the upper half at the end. In a product or an exclusive or,
/// no upper bit ever affects a lower one, so the lower half alone gives the same number.
fn fnv1_64(key: &[u8]) -> u32 {
    fnv1(key, FNV_64_LOW_INIT, FNV_64_LOW_PRIME)
}

/// twemproxy truncates the start value and the prime before it begins. By the same argument that
/// changes nothing: for keys of ASCII this is the lower half of true FNV-1a.
fn fnv1a_64(key: &[u8]) -> u32 {
    fnv1a(key, FNV_64_LOW_INIT, FNV_64_LOW_PRIME)
}

fn fnv1_32(key: &[u8]) -> u32 {
    fnv1(key, FNV_32_INIT, FNV_32_PRIME)
}

fn fnv1a_32(key: &[u8]) -> u32 {
    fnv1a(key, FNV_32_INIT, FNV_32_PRIME)
}

#[inline]
fn fnv1(key: &[u8], init: u32, prime: u32) -> u32 {
    key.iter().fold(init, |hash, &byte| hash.wrapping_mul(prime) ^ signed(byte))
}

#[inline]
fn fnv1a(key: &[u8], init: u32, prime: u32) -> u32 {
    key.iter().fold(init, |hash, &byte| (hash ^ signed(byte)).wrapping_mul(prime))
}

/// Starts from 0, where the published code starts from the length.
fn hsieh(key: &[u8]) -> u32 {
    let mut hash = 0u32;
    let (blocks, rest) = key.as_chunks::<4>();
    for &[b0, b1, b2, b3] in blocks {
        hash = hash.wrapping_add(word16([b0, b1]));
        hash = (hash << 16) ^ (word16([b2, b3]) << 11) ^ hash;
        hash = hash.wrapping_add(hash >> 11);
    }
    match *rest {
        [b0, b1, b2] => {
            hash = hash.wrapping_add(word16([b0, b1]));
            hash ^= hash << 16;
            hash ^= signed(b2) << 18; // The one byte of this hash that is read as a char.
            hash = hash.wrapping_add(hash >> 11);
        }
        [b0, b1] => {
            hash = hash.wrapping_add(word16([b0, b1]));
            hash ^= hash << 11;
            hash = hash.wrapping_add(hash >> 17);
        }
        [b0] => {
            hash = hash.wrapping_add(u32::from(b0));
            hash ^= hash << 10;
            hash = hash.wrapping_add(hash >> 1);
        }
        _ => {}
    }
    hash ^= hash << 3;
    hash = hash.wrapping_add(hash >> 5);
    hash ^= hash << 4;
    hash = hash.wrapping_add(hash >> 17);
    hash ^= hash << 25;
    hash.wrapping_add(hash >> 6)
}

/// libmemcached derived a seed from the length and then mixed the length in once more.
fn murmur(key: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    let len = key.len() as u32;
    let mut hash = len.wrapping_mul(0xdead_beef) ^ len;
    let (blocks, rest) = key.as_chunks::<4>();
    for block in blocks {
        let mut word = u32::from_le_bytes(*block).wrapping_mul(MULTIPLIER);
        word ^= word >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ word.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte));
        hash = (hash ^ tail).wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

/// lookup3 with the seed 13. The last block may be full: it is never mixed, only finished.
fn jenkins(key: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(key.len() as u32).wrapping_add(13);
    if key.is_empty() {
        return start;
    }
    let mut state = [start; 3];
    let (blocks, last) = key.split_at((key.len() - 1) / 12 * 12);
    for block in blocks.as_chunks::<12>().0 {
        jenkins_add(&mut state, block);
        jenkins_mix(&mut state);
    }
    let mut padded = [0; 12];
    padded[..last.len()].copy_from_slice(last);
    jenkins_add(&mut state, &padded);
    jenkins_finish(state)
}

#[inline]
fn jenkins_add(state: &mut [u32; 3], block: &[u8; 12]) {
    for (lane, word) in state.iter_mut().zip(block.as_chunks::<4>().0) {
        *lane = lane.wrapping_add(u32::from_le_bytes(*word));
    }
}

#[inline]
fn jenkins_mix([a, b, c]: &mut [u32; 3]) {
    *a = a.wrapping_sub(*c) ^ c.rotate_left(4);
    *c = c.wrapping_add(*b);
    *b = b.wrapping_sub(*a) ^ a.rotate_left(6);
    *a = a.wrapping_add(*c);
    *c = c.wrapping_sub(*b) ^ b.rotate_left(8);
    *b = b.wrapping_add(*a);
    *a = a.wrapping_sub(*c) ^ c.rotate_left(16);
    *c = c.wrapping_add(*b);
    *b = b.wrapping_sub(*a) ^ a.rotate_left(19);
    *a = a.wrapping_add(*c);
    *c = c.wrapping_sub(*b) ^ b.rotate_left(4);
    *b = b.wrapping_add(*a);
}

#[inline]
fn jenkins_finish([mut a, mut b, mut c]: [u32; 3]) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}
