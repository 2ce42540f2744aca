//! One item's bytes in the arena: a head of 32 bytes, the key, the value, up to 7 bytes of slack.
//!
//! A slot's length and marks come first. A dead slot and the padding before a ring's end have
//! nothing else, and must still be walked over. Places and lengths are in words of 8 bytes.

use crate::clock;

/// Bytes of a word.
pub const WORD: usize = 8;
/// Bytes before the key.
pub const HEAD_LEN: usize = 32;

/// The two low bits of the marks count requests for the item since it last moved.
const ASKED: u8 = 0b11;
/// The slot holds no item that can be found.
const DEAD: u8 = 0b100;

/// A client has read the item.
pub const FETCHED: u8 = 0b1000;
/// The item was invalidated, and is still returned until a client renews it.
pub const STALE: u8 = 0b1_0000;
/// A client was asked to renew the item.
pub const TOKEN: u8 = 0b10_0000;
/// The key was received as base64 and is sent as base64.
pub const BINARY: u8 = 0b100_0000;

/// The properties of an item besides its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Length of the whole slot in words.
    pub words: u32,
    mark: u8,
    /// Length of the key in bytes.
    pub key_len: u8,
    /// Length of the value in bytes.
    pub value_len: u32,
    /// The client's own 32 bits of flags.
    pub flags: u32,
    /// The second at which it expires, or `clock::NEVER`.
    pub expires: u32,
    /// The second in which it was last stored or read.
    pub accessed: u32,
    /// The store's epoch when it was stored. A flush begins another epoch, which makes the item
    /// invisible.
    pub epoch: u16,
    /// The cas number; it changes with every change of the item.
    pub cas: u64,
}

impl Head {
    /// Returns the head of an item of that size; the caller fills in the rest.
    pub fn new(key_len: usize, value_len: usize) -> Head {
        let words = words(key_len, value_len);
        Head { words, key_len: key_len as u8, value_len: value_len as u32, ..Head::default() }
    }

    /// Returns the head of the same item with a value of another length, in a slot that fits it.
    pub fn resized(&self, value_len: usize) -> Head {
        let words = words(usize::from(self.key_len), value_len);
        Head { words, value_len: value_len as u32, ..*self }
    }

    /// Returns whether one of the marks is set.
    pub fn has(&self, mark: u8) -> bool {
        self.mark & mark != 0
    }

    pub fn put(&mut self, mark: u8, on: bool) {
        self.mark = if on { self.mark | mark } else { self.mark & !mark };
    }

    /// Resets the marks to those of a new item: not read, and no client asked to renew it.
    pub fn clear_marks(&mut self) {
        self.mark &= ASKED;
    }

    /// Returns the number of requests for it since it last moved, at most three.
    pub fn asked(&self) -> u8 {
        self.mark & ASKED
    }

    pub fn set_asked(&mut self, asked: u8) {
        self.mark = (self.mark & !ASKED) | asked.min(ASKED);
    }

    pub fn is_expired(&self, now: u64) -> bool {
        clock::is_past(self.expires, now)
    }

    /// Returns the bytes of value that the slot has room for.
    pub fn value_room(&self) -> usize {
        self.words as usize * WORD - HEAD_LEN - usize::from(self.key_len)
    }
}

/// Returns the words that an item takes.
pub fn words(key_len: usize, value_len: usize) -> u32 {
    (HEAD_LEN + key_len + value_len).div_ceil(WORD) as u32
}

/// The bytes that hold all slots. It knows the layout of a slot, not the places of slots.
pub struct Arena {
    bytes: Vec<u8>,
}

impl Arena {
    /// Allocates zeroed memory, which the system backs only when it is first written.
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

    /// Returns length and liveness alone: padding has nothing else.
    pub fn outline(&self, at: u32) -> (u32, bool) {
        let bytes = &self.bytes[at as usize * WORD..][..WORD];
        let words = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        (words, bytes[4] & DEAD == 0)
    }

    /// Counts one request for the item in the second `now`, and sets further marks. It writes only
    /// bits that change, so most hits leave the cache line clean.
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

    /// Makes `words` words from `at` an empty slot.
    pub fn set_padding(&mut self, at: u32, words: u32) {
        let bytes = &mut self.bytes[at as usize * WORD..][..WORD];
        bytes[0..4].copy_from_slice(&words.to_le_bytes());
        bytes[4] = DEAD;
    }

    pub fn key(&self, at: u32, head: &Head) -> &[u8] {
        &self.bytes[at as usize * WORD + HEAD_LEN..][..usize::from(head.key_len)]
    }

    /// Returns whether the slot at `at` holds that key: the one comparison of every lookup.
    pub fn has_key(&self, at: u32, key: &[u8]) -> bool {
        let bytes = &self.bytes[at as usize * WORD..];
        usize::from(bytes[5]) == key.len()
            && bytes.get(HEAD_LEN..HEAD_LEN + key.len()).is_some_and(|stored| stored == key)
    }

    pub fn value(&self, at: u32, head: &Head) -> &[u8] {
        &self.bytes[value_start(at, head)..][..head.value_len as usize]
    }

    /// Returns the value and the room after it.
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

/// Returns the offset of a value in the arena's bytes.
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
