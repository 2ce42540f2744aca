//! The keys of a run: short and long, plain, beyond ASCII, and such as text cannot carry.

use crate::sim::random::Random;

pub struct Key {
    pub raw: Vec<u8>,
    /// Whether it may stand in a line of text as it is.
    pub plain: bool,
    pub named: Named,
    /// Whether it is ever counted up and down. Then its value is a plain number or nothing like
    /// one, and it is deleted where a count may have made it shorter: memcached writes the new
    /// number into the old item, with spaces behind it, unless an answer that has not been sent yet
    /// still holds that item; so what is then stored is chance. And a value of spaces only, or an
    /// empty one, is looked for a number behind its end.
    pub counted: bool,
    /// Whether binary asks for it by what is an mg to the server, and so takes the win of a stale
    /// item: then nobody makes it stale.
    pub taken: bool,
}

/// By whom a key is named. memcached notes with an item whether it was stored under a base64 key,
/// so each key is stored in one way, but for `Both`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// By everybody, as it is.
    Plainly,
    /// By meta, in base64.
    Encoded,
    /// By binary as it is, by meta in base64.
    Both,
    /// By binary.
    Raw,
}

impl Key {
    /// Whether that is this key, in one of its forms.
    pub fn is_named(&self, name: &[u8]) -> bool {
        self.raw == name || base64(&self.raw) == name
    }
}

/// Three lanes of a round may speak at once, so each has keys of its own: those whose number leaves
/// the same rest. All kinds of keys are in each lane.
pub const LANES: usize = 3;

pub fn all(random: &mut Random) -> Vec<Key> {
    (0..LANES * KINDS.len()).map(|at| key(at, KINDS[at / LANES], random)).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Short,
    ShortEncoded,
    Longest,
    BeyondAscii,
    /// With spaces, ends of lines and zeros.
    Bytes(Named),
    /// The same, and as long as a base64 key of a meta command may be.
    ManyBytes,
    /// The same, and longer: only binary can say it.
    TooManyBytes,
}

const KINDS: &[Kind] = &[
    Kind::Short,
    Kind::Short,
    Kind::Short,
    Kind::Short,
    Kind::Short,
    Kind::Short,
    Kind::ShortEncoded,
    Kind::Short,
    Kind::Longest,
    Kind::BeyondAscii,
    Kind::BeyondAscii,
    Kind::Bytes(Named::Encoded),
    Kind::Bytes(Named::Both),
    Kind::Bytes(Named::Both),
    Kind::ManyBytes,
    Kind::TooManyBytes,
];

fn key(at: usize, kind: Kind, random: &mut Random) -> Key {
    let mut raw = format!("k{at}").into_bytes();
    let bytes: &[u8] = b"\0\r\n \t\x7f\xff*a";
    let mut fill = |raw: &mut Vec<u8>, len: usize| {
        raw.insert(0, bytes[random.below(4)]);
        while raw.len() < len {
            raw.push(*random.pick(bytes));
        }
    };
    let mut named = Named::Plainly;
    match kind {
        Kind::Short => {}
        Kind::ShortEncoded => named = Named::Encoded,
        Kind::Longest => raw.resize(KEY_MAX, b'x'),
        Kind::BeyondAscii => raw.extend_from_slice("schlüssel".as_bytes()),
        Kind::Bytes(by) => {
            fill(&mut raw, 12);
            named = by;
        }
        Kind::ManyBytes => {
            fill(&mut raw, ENCODED_KEY_MAX);
            named = Named::Both;
        }
        Kind::TooManyBytes => {
            fill(&mut raw, ENCODED_KEY_MAX + 1 + at / LANES);
            named = Named::Raw;
        }
    }
    let plain = raw.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
    let counted = !(at / LANES).is_multiple_of(3);
    let taken = matches!(named, Named::Both | Named::Raw);
    Key { raw, plain, named, counted, taken }
}

pub const KEY_MAX: usize = 250;
/// What base64 makes 248 characters of; the next is 252.
pub const ENCODED_KEY_MAX: usize = 186;

pub fn base64(raw: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_usual_one() {
        assert_eq!(base64(b"foobar"), b"Zm9vYmFy");
        assert_eq!(base64(b"fooba"), b"Zm9vYmE=");
        assert_eq!(base64(b"foob"), b"Zm9vYg==");
    }

    #[test]
    fn every_lane_has_every_kind() {
        let keys = all(&mut Random::new(1));
        let plain = |lane: usize| {
            keys.iter().skip(lane).step_by(LANES).filter(|key| key.named == Named::Plainly)
        };
        assert!((0..LANES).all(|lane| plain(lane).count() == 10));
        assert!(keys.iter().all(|key| key.raw.len() <= KEY_MAX));
    }
}
