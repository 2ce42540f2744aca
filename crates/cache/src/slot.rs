//! One item's bytes in the arena: a head of 26 bytes, the key, the value, up to 7 bytes of room.
//!
//! A slot's length and mark come first: a dead slot and the padding before a ring's end have no
//! more than those, and must still be walked over. Places and lengths are in words of 8 bytes.

use crate::clock;

/// Bytes of a word.
pub const WORD: usize = 8;
/// Bytes before the key.
pub const HEAD_LEN: usize = 26;

/// The mark's two low bits count requests for the item since it last moved.
const ASKED: u8 = 0b11;
/// The slot holds nothing that can be found.
const DEAD: u8 = 0b100;

/// What is known of an item beside its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Rises with every change.
    pub cas: u64,
}

impl Head {
    /// The head of a new item; its key and value stand ready to be counted.
    pub fn new(key: &[u8], value_len: usize, flags: u32, expires: u32, cas: u64) -> Head {
        let words = words(key.len(), value_len);
        let (key_len, value_len) = (key.len() as u8, value_len as u32);
        Head { words, mark: 0, key_len, value_len, flags, expires, cas }
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
        Head {
            words: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            mark: bytes[4],
            key_len: bytes[5],
            value_len: u32::from_le_bytes([bytes[6], bytes[7], bytes[8], bytes[9]]),
            flags: u32::from_le_bytes([bytes[10], bytes[11], bytes[12], bytes[13]]),
            expires: u32::from_le_bytes([bytes[14], bytes[15], bytes[16], bytes[17]]),
            cas: u64::from_le_bytes([
                bytes[18], bytes[19], bytes[20], bytes[21], bytes[22], bytes[23], bytes[24],
                bytes[25],
            ]),
        }
    }

    pub fn set_head(&mut self, at: u32, head: &Head) {
        let bytes = &mut self.bytes[at as usize * WORD..][..HEAD_LEN];
        bytes[0..4].copy_from_slice(&head.words.to_le_bytes());
        bytes[4] = head.mark;
        bytes[5] = head.key_len;
        bytes[6..10].copy_from_slice(&head.value_len.to_le_bytes());
        bytes[10..14].copy_from_slice(&head.flags.to_le_bytes());
        bytes[14..18].copy_from_slice(&head.expires.to_le_bytes());
        bytes[18..26].copy_from_slice(&head.cas.to_le_bytes());
    }

    /// Length and liveness alone, which is all that padding has.
    pub fn outline(&self, at: u32) -> (u32, bool) {
        let bytes = &self.bytes[at as usize * WORD..][..WORD];
        let words = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        (words, bytes[4] & DEAD == 0)
    }

    /// Counts one request for the item; the third and later ones change nothing.
    pub fn ask(&mut self, at: u32) {
        let mark = &mut self.bytes[at as usize * WORD + 4];
        if *mark & ASKED != ASKED {
            *mark += 1;
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
        let mut head = Head::new(b"key", 5, 7, 9, u64::MAX - 1);
        head.set_asked(2);
        arena.write(3, &head, b"key", b"value");
        assert_eq!(arena.head(3), head);
        assert_eq!((arena.key(3, &head), arena.value(3, &head)), (&b"key"[..], &b"value"[..]));
        assert!(arena.has_key(3, b"key") && !arena.has_key(3, b"kez") && !arena.has_key(3, b"ke"));
        assert_eq!(arena.outline(3), (5, true));
        arena.ask(3);
        arena.ask(3);
        assert_eq!(arena.head(3).asked(), 3);
        assert_eq!(arena.outline(3), (5, true));
    }

    #[test]
    fn padding_of_one_word_is_a_slot() {
        let mut arena = Arena::new(2);
        arena.set_padding(1, 1);
        assert_eq!(arena.outline(1), (1, false));
    }
}
