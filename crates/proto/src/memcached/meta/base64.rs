//! The keys of flag `b`: bytes that a line cannot hold, as base64.
//!
//! Only the canonical form is accepted (padded, no stray bits). A key with two encodings would be
//! returned in the other one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::KEY_MAX;

/// Room for any key.
pub fn room() -> [u8; KEY_MAX] {
    [0; KEY_MAX]
}

/// Returns the key encoded in this base64, if it is one.
pub fn decoded<'a>(text: &[u8], room: &'a mut [u8; KEY_MAX]) -> Option<&'a [u8]> {
    if text.len() > KEY_MAX {
        return None;
    }
    let len = STANDARD.decode_slice(text, room).ok()?;
    room.get(..len).filter(|key| !key.is_empty())
}

/// Whether this is the base64 of a key.
pub fn is_valid(text: &[u8]) -> bool {
    decoded(text, &mut room()).is_some()
}

/// Returns the key of a `text` that [`is_valid`], and writes it to `key`.
pub fn decode<'a>(text: &[u8], key: &'a mut Vec<u8>) -> &'a [u8] {
    key.clear();
    let decoded = STANDARD.decode_vec(text, key);
    debug_assert!(decoded.is_ok());
    key
}

/// Appends the base64 of a key.
pub fn push(key: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len(key.len()), 0);
    let written = STANDARD.encode_slice(key, &mut out[start..]);
    debug_assert_eq!(written, Ok(out.len() - start));
}

/// Returns the length of the base64 of `len` bytes.
pub fn encoded_len(len: usize) -> usize {
    len.div_ceil(3) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for len in 1..=187 {
            let key: Vec<u8> = (0..len).map(|at| (at * 37) as u8).collect();
            let mut text = b"mg ".to_vec();
            push(&key, &mut text);
            assert_eq!(text.len() - 3, encoded_len(key.len()));
            assert_eq!(is_valid(&text[3..]), len <= 186, "{len}");
            assert_eq!(decode(&text[3..], &mut b"old".to_vec()), key);
        }
    }

    #[test]
    fn only_the_canonical_form_is_taken() {
        for good in ["YQ==", "YWI=", "YWJj", "/+8="] {
            assert!(is_valid(good.as_bytes()), "{good}");
        }
        for bad in ["", "=", "====", "YQ", "YQ=", "YR==", "YWJ=", "YW Jj", "YQ==YQ==", "a-_b"] {
            assert!(!is_valid(bad.as_bytes()), "{bad}");
        }
    }
}
