//! One item's bytes in the arena: a head of 32 bytes, the key, the value, up to 7 bytes of room.
//!
//! A slot's length and mark come first: a dead slot and the padding before a ring's end have no
//! more than those, and must still be walked over. Places and lengths are in words of 8 bytes.

use crate::clock;

/// Bytes of a word.
pub const WORD: usize = 8;
/// Bytes before the key.
pub const HEAD_LEN: usize = 32;

/// The mark's two low bits count requests for the item since it last moved.
const ASKED: u8 = 0b11;
/// The slot holds nothing that can be found.
const DEAD: u8 = 0b100;

/// Somebody has read the item.
pub const FETCHED: u8 = 0b1000;
/// It was invalidated, and is handed out until somebody renews it.
pub const STALE: u8 = 0b1_0000;
/// Somebody was told to renew it.
pub const TOKEN: u8 = 0b10_0000;
/// Its key came as base64 and goes out so.
pub const BINARY: u8 = 0b100_0000;

/// What is known of an item beside its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Length of the whole slot, words.
    pub words: u32,
    mark: u8,
    /// Bytes of the key.
    pub key_len: u8,
    /// Bytes of the value.
    pub value_len: u32,
    /// The client's own 32 bits.
    pub flags: u32,
    /// The second at which it expires, or `clock::NEVER`.
    pub expires: u32,
    /// The second in which it was last stored or read.
    pub accessed: u32,
    /// Which flushes it has seen: it is gone after the next.
    pub epoch: u16,
    /// Another with every change.
    pub cas: u64,
}

impl Head {
    /// The head of an item of that size; the rest is the caller's to fill in.
    pub fn new(key_len: usize, value_len: usize) -> Head {
        let words = words(key_len, value_len);
        Head { words, key_len: key_len as u8, value_len: value_len as u32, ..Head::default() }
    }

    /// The same item with a value of another length, in a slot that fits it.
    pub fn resized(&self, value_len: usize) -> Head {
        let words = words(usize::from(self.key_len), value_len);
        Head { words, value_len: value_len as u32, ..*self }
    }

    /// Whether one of the marks is set.
    pub fn has(&self, mark: u8) -> bool {
        self.mark & mark != 0
    }

    pub fn put(&mut self, mark: u8, on: bool) {
        self.mark = if on { self.mark | mark } else { self.mark & !mark };
    }

    /// As a new item: nobody has read it or was told to renew it.
    pub fn clear_marks(&mut self) {
        self.mark &= ASKED;
    }

    /// How often it was asked for since it last moved, up to three.
    pub fn asked(&self) -> u8 {
        self.mark & ASKED
    }

    pub fn set_asked(&mut self, asked: u8) {
        self.mark = (self.mark & !ASKED) | asked.min(ASKED);
    }

    pub fn is_expired(&self, now: u64) -> bool {
        clock::is_past(self.expires, now)
    }

    /// Bytes of value that the slot has room for.
    pub fn value_room(&self) -> usize {
        self.words as usize * WORD - HEAD_LEN - usize::from(self.key_len)
    }
}

/// Words that an item takes.
pub fn words(key_len: usize, value_len: usize) -> u32 {
    (HEAD_LEN + key_len + value_len).div_ceil(WORD) as u32
}

/// The bytes that hold all slots. It knows how a slot is laid out, not where slots are.
pub struct Arena {
    bytes: Vec<u8>,
}

impl Arena {
    /// Zeroed memory, which the system backs only when it is first written.
    pub fn new(words: u32) -> Arena {
        Arena { bytes: vec![0; words as usize * WORD] }
    }

    pub fn head(&self, at: u32) -> Head {
        let bytes = &self.bytes[at as usize * WORD..][..HEAD_LEN];
        let four =
            |at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Head {
            words: four(0),
            mark: bytes[4],
            key_len: bytes[5],
            epoch: u16::from_le_bytes([bytes[6], bytes[7]]),
            value_len: four(8),
            flags: four(12),
            expires: four(16),
            accessed: four(20),
            cas: u64::from(four(28)) << 32 | u64::from(four(24)),
        }
    }

    pub fn set_head(&mut self, at: u32, head: &Head) {
        let bytes = &mut self.bytes[at as usize * WORD..][..HEAD_LEN];
        bytes[0..4].copy_from_slice(&head.words.to_le_bytes());
        bytes[4] = head.mark;
        bytes[5] = head.key_len;
        bytes[6..8].copy_from_slice(&head.epoch.to_le_bytes());
        bytes[8..12].copy_from_slice(&head.value_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&head.flags.to_le_bytes());
        bytes[16..20].copy_from_slice(&head.expires.to_le_bytes());
        bytes[20..24].copy_from_slice(&head.accessed.to_le_bytes());
        bytes[24..32].copy_from_slice(&head.cas.to_le_bytes());
    }

    /// Length and liveness alone, which is all that padding has.
    pub fn outline(&self, at: u32) -> (u32, bool) {
        let bytes = &self.bytes[at as usize * WORD..][..WORD];
        let words = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        (words, bytes[4] & DEAD == 0)
    }

    /// Counts one request for the item in the second `now`, and sets further marks. What is so
    /// already is not written again: most hits leave the line clean.
    pub fn ask(&mut self, at: u32, marks: u8, now: u32) {
        let bytes = &mut self.bytes[at as usize * WORD..][..HEAD_LEN];
        let old = bytes[4];
        let new = (old | marks) + u8::from(old & ASKED != ASKED);
        if new != old {
            bytes[4] = new;
        }
        if bytes[20..24] != now.to_le_bytes() {
            bytes[20..24].copy_from_slice(&now.to_le_bytes());
        }
    }

    /// Makes `words` words from `at` a slot with nothing in it.
    pub fn set_padding(&mut self, at: u32, words: u32) {
        let bytes = &mut self.bytes[at as usize * WORD..][..WORD];
        bytes[0..4].copy_from_slice(&words.to_le_bytes());
        bytes[4] = DEAD;
    }

    pub fn key(&self, at: u32, head: &Head) -> &[u8] {
        &self.bytes[at as usize * WORD + HEAD_LEN..][..usize::from(head.key_len)]
    }

    /// Whether the slot at `at` carries that key: the one comparison of every lookup.
    pub fn has_key(&self, at: u32, key: &[u8]) -> bool {
        let bytes = &self.bytes[at as usize * WORD..];
        usize::from(bytes[5]) == key.len()
            && bytes.get(HEAD_LEN..HEAD_LEN + key.len()).is_some_and(|stored| stored == key)
    }

    pub fn value(&self, at: u32, head: &Head) -> &[u8] {
        &self.bytes[value_start(at, head)..][..head.value_len as usize]
    }

    /// The value and the room behind it.
    pub fn value_room_mut(&mut self, at: u32, head: &Head) -> &mut [u8] {
        &mut self.bytes[value_start(at, head)..][..head.value_room()]
    }

    /// Writes a whole slot.
    pub fn write(&mut self, at: u32, head: &Head, key: &[u8], value: &[u8]) {
        debug_assert_eq!(usize::from(head.key_len), key.len());
        debug_assert_eq!(head.value_len as usize, value.len());
        self.set_head(at, head);
        let start = at as usize * WORD + HEAD_LEN;
        self.bytes[start..start + key.len()].copy_from_slice(key);
        let start = start + key.len();
        self.bytes[start..start + value.len()].copy_from_slice(value);
    }

    /// Copies a whole slot; the places may overlap.
    pub fn relocate(&mut self, from: u32, to: u32, words: u32) {
        if from != to {
            let start = from as usize * WORD;
            self.bytes.copy_within(start..start + words as usize * WORD, to as usize * WORD);
        }
    }
}

/// Where a value begins in the arena's bytes.
fn value_start(at: u32, head: &Head) -> usize {
    at as usize * WORD + HEAD_LEN + usize::from(head.key_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_reads_back_as_written() {
        let mut arena = Arena::new(64);
        let (flags, expires, accessed, epoch, cas) = (7, 9, 11, 513, u64::MAX - 1);
        let mut head = Head { flags, expires, accessed, epoch, cas, ..Head::new(3, 5) };
        head.set_asked(2);
        head.put(STALE, true);
        arena.write(3, &head, b"key", b"value");
        assert_eq!(arena.head(3), head);
        assert_eq!((arena.key(3, &head), arena.value(3, &head)), (&b"key"[..], &b"value"[..]));
        assert!(arena.has_key(3, b"key") && !arena.has_key(3, b"kez") && !arena.has_key(3, b"ke"));
        assert_eq!(arena.outline(3), (5, true));
        arena.ask(3, FETCHED, 12);
        arena.ask(3, FETCHED, 12);
        let asked = arena.head(3);
        assert_eq!((asked.asked(), asked.accessed), (3, 12));
        assert!(asked.has(FETCHED) && asked.has(STALE) && !asked.has(TOKEN));
        assert_eq!(arena.outline(3), (5, true));
    }

    #[test]
    fn padding_of_one_word_is_a_slot() {
        let mut arena = Arena::new(2);
        arena.set_padding(1, 1);
        assert_eq!(arena.outline(1), (1, false));
    }
}
