//! Keys, requests and values as bytes, made once so that a request costs a copy.

use std::ops::Range;

/// `key:` and eight digits.
pub const KEY_LEN: usize = 12;
/// Length of a key as a bulk string.
const RESP_KEY_LEN: usize = b"$12\r\n".len() + KEY_LEN + b"\r\n".len();

/// The bytes of every request and of every correct reply.
pub struct Corpus {
    /// ` key:00000000 key:00000001 …`: any run of keys is one slice of it.
    keys: Vec<u8>,
    /// The keys as bulk strings: `$12\r\nkey:00000000\r\n…`.
    resp_keys: Vec<u8>,
    /// The head of every value in RESP.
    resp_head: Vec<u8>,
    /// The rest of a set's header after the key.
    set_rest: Vec<u8>,
    /// The rest of a value's header after the key.
    value_rest: Vec<u8>,
    /// The content of every value, with the key written over the first bytes.
    value: Vec<u8>,
}

impl Corpus {
    pub fn new(key_count: u32, value_len: usize) -> Self {
        assert!(value_len >= KEY_LEN, "a value carries its key");
        let keys = (0..key_count).flat_map(|index| format!(" key:{index:08}").into_bytes());
        let resp_keys =
            (0..key_count).flat_map(|index| format!("$12\r\nkey:{index:08}\r\n").into_bytes());
        // Printable and not periodic in a power of two, so that a shifted value is detected.
        let value = (0..value_len).map(|at| b'a' + (at * 7 % 23) as u8).collect();
        Corpus {
            keys: keys.collect(),
            resp_keys: resp_keys.collect(),
            resp_head: format!("${value_len}\r\n").into_bytes(),
            set_rest: format!(" 0 0 {value_len}\r\n").into_bytes(),
            value_rest: format!(" 0 {value_len}\r\n").into_bytes(),
            value,
        }
    }

    pub fn key(&self, index: u32) -> &[u8] {
        let start = index as usize * (KEY_LEN + 1) + 1;
        &self.keys[start..start + KEY_LEN]
    }

    pub fn value_len(&self) -> usize {
        self.value.len()
    }

    /// Returns the length of `VALUE … CRLF`.
    pub fn header_len(&self) -> usize {
        b"VALUE ".len() + KEY_LEN + self.value_rest.len()
    }

    /// Appends a get of a run of keys; returns the end of its first piece when it is sent split.
    pub fn push_get(&self, out: &mut Vec<u8>, run: Range<u32>) -> usize {
        let stride = KEY_LEN + 1;
        out.extend_from_slice(b"get");
        out.extend_from_slice(&self.keys[run.start as usize * stride..run.end as usize * stride]);
        let cut = out.len();
        out.extend_from_slice(b"\r\n");
        cut
    }

    /// Appends a set; returns the end of its first piece when it is sent split.
    pub fn push_set(&self, out: &mut Vec<u8>, index: u32) -> usize {
        out.extend_from_slice(b"set ");
        out.extend_from_slice(self.key(index));
        out.extend_from_slice(&self.set_rest);
        let cut = out.len();
        self.push_value(out, index);
        out.extend_from_slice(b"\r\n");
        cut
    }

    /// Returns the head of every value in RESP.
    pub fn resp_head(&self) -> &[u8] {
        &self.resp_head
    }

    /// Returns a run of keys as bulk strings.
    pub fn resp_keys(&self, run: Range<u32>) -> &[u8] {
        &self.resp_keys[run.start as usize * RESP_KEY_LEN..run.end as usize * RESP_KEY_LEN]
    }

    /// Appends the value of a key.
    pub fn push_value(&self, out: &mut Vec<u8>, index: u32) {
        out.extend_from_slice(self.key(index));
        out.extend_from_slice(&self.value[KEY_LEN..]);
    }

    /// Returns whether `header` is the first line of this key's value.
    #[inline]
    pub fn is_header(&self, header: &[u8], index: u32) -> bool {
        let (word, rest) = header.split_at(6);
        word == b"VALUE "
            && &rest[..KEY_LEN] == self.key(index)
            && rest[KEY_LEN..] == self.value_rest
    }

    /// Returns the key in a value's header, if the header is one of ours.
    pub fn header_index(&self, header: &[u8]) -> Option<u32> {
        let digits = header.get(10..6 + KEY_LEN)?;
        let index = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let known = (index as usize) < self.keys.len() / (KEY_LEN + 1);
        (header.len() == self.header_len() && known && self.is_header(header, index))
            .then_some(index)
    }

    /// Returns whether this key's value has `bytes` at `offset`.
    pub fn is_value(&self, bytes: &[u8], offset: usize, index: u32) -> bool {
        let key_part = KEY_LEN.saturating_sub(offset).min(bytes.len());
        let (front, back) = bytes.split_at(key_part);
        let start = offset + key_part;
        front == &self.key(index)[KEY_LEN.min(offset)..KEY_LEN.min(offset) + key_part]
            && back == &self.value[start..start + back.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_memcached_text() {
        let corpus = Corpus::new(3, 14);
        let mut out = Vec::new();
        assert_eq!(corpus.push_get(&mut out, 1..3), 29);
        corpus.push_set(&mut out, 2);
        let text = String::from_utf8(out).unwrap();
        let (get, set) = text.split_once("\r\n").unwrap();
        assert_eq!(get, "get key:00000001 key:00000002");
        assert!(set.starts_with("set key:00000002 0 0 14\r\nkey:00000002"), "{set}");
        assert_eq!(set.len(), "set key:00000002 0 0 14\r\n".len() + 16);
    }

    #[test]
    fn a_value_is_known_piece_by_piece_and_a_wrong_byte_is_seen() {
        let corpus = Corpus::new(3, 40);
        let mut out = Vec::new();
        let cut = corpus.push_set(&mut out, 1);
        let value = &out[cut..cut + 40];
        for at in 0..=40 {
            assert!(corpus.is_value(&value[..at], 0, 1));
            assert!(corpus.is_value(&value[at..], at, 1));
        }
        assert!(!corpus.is_value(value, 0, 2));
        let mut wrong = value.to_vec();
        wrong[30] ^= 1;
        assert!(!corpus.is_value(&wrong[20..], 20, 1));
    }
}
