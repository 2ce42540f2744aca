//! The keys of a run: short and long, plain, beyond ASCII, and some that text cannot carry.

use crate::random::Random;
use crate::wire::base64;

pub struct Key {
    pub raw: Vec<u8>,
    /// The key may be written in a line of text as it is.
    pub plain: bool,
    pub named: Named,
    /// The key is used for counts. Its value is then a plain number or nothing like one, and is
    /// deleted if a count may have made it shorter. memcached writes the new number into the old
    /// item, with spaces after it, unless an unsent answer still holds that item; so the stored
    /// value is random. In a value of spaces only, or an empty one, memcached looks for a number
    /// beyond its end.
    pub counted: bool,
    /// A binary read of it becomes an mg on the server, which takes the win of a stale item. So no
    /// request makes it stale.
    pub taken: bool,
}

/// The protocols that name a key. memcached marks an item that was stored under a base64 key, so
/// each key is stored in one way, except `Both`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// All protocols, as it is.
    Plainly,
    /// Meta, in base64.
    Encoded,
    /// Binary as it is, meta in base64.
    Both,
    /// Binary only.
    Raw,
}

impl Key {
    /// Returns whether `name` is one of the forms of that key.
    pub fn is_named(&self, name: &[u8]) -> bool {
        self.raw == name || base64::encode(&self.raw) == name
    }
}

/// Three lanes of a round may be active at once, so each has its own keys: those whose index has
/// the same remainder. Each lane has all kinds of keys.
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
    /// Contains spaces, line breaks and zeros.
    Bytes(Named),
    /// Such bytes, as long as a base64 key of a meta command may be.
    ManyBytes,
    /// Such bytes, too long for base64: only binary can carry them.
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
    let plain = !raw.iter().any(|byte| b" \0\r\n".contains(byte));
    let counted = !(at / LANES).is_multiple_of(3);
    let taken = matches!(named, Named::Both | Named::Raw);
    Key { raw, plain, named, counted, taken }
}

pub const KEY_MAX: usize = 250;
/// The key whose base64 form has 248 characters; the next length has 252.
pub const ENCODED_KEY_MAX: usize = 186;

#[cfg(test)]
mod tests {
    use super::*;

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
