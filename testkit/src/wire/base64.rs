//! Base64 in its canonical form, for keys of meta commands.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(raw: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for chunk in raw.chunks(3) {
        let three = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let bits = three[0] << 16 | three[1] << 8 | three[2];
        for digit in 0..4 {
            let shift = 18 - 6 * digit;
            let there = digit <= chunk.len();
            text.push(if there { DIGITS[(bits >> shift) as usize & 63] } else { b'=' });
        }
    }
    text
}

/// Returns the bytes; `None` for invalid or empty text.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (mut raw, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for digit in text.iter().filter(|digit| **digit != b'=') {
        let value = DIGITS.iter().position(|known| known == digit)?;
        bits = bits << 6 | value as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            raw.push((bits >> held) as u8);
        }
    }
    (!raw.is_empty() && encode(&raw) == text).then_some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_usual_one() {
        for (raw, text) in [("foobar", "Zm9vYmFy"), ("fooba", "Zm9vYmE="), ("foob", "Zm9vYg==")] {
            assert_eq!(encode(raw.as_bytes()), text.as_bytes());
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(raw.as_bytes()));
        }
        for text in ["", "YQ=", "YR==", "a", "YQ==="] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
