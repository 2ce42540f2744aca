//! How much work a request is for a server, as far as a protocol can tell.

/// How much work a command is for a server, as far as its name tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// Little: its size, and that of its answer, say all about it.
    #[default]
    Quick,
    /// The data decide, and it is always taken for slow: it may keep a server from everything else
    /// for long.
    Slow,
    /// The data or its arguments decide: see [`crate::Protocol::expect`].
    Varies,
}

/// How long a request is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Quick,
    Slow,
    /// As long as it says, without keeping its server from anything else: it waits for elements.
    Waits,
    /// Little. Its client's requests take a link of its own, from this one to the end of the next
    /// transaction.
    Watches,
    /// As long as requests with the same id took before, at the same server; quick, if none is
    /// known.
    AsBefore(WorkId),
}

/// The identity of work that may turn out to be slow: a command, or a script or function. Two may
/// share an id by chance, and then count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u32);

impl WorkId {
    /// Makes the id of a command.
    pub const fn of_command(command: u16) -> WorkId {
        WorkId(command as u32)
    }

    /// Makes the id of a text, which is no command's id. Of a long text, the beginning and the end
    /// decide, so that it costs little. It is no secret which texts have the same id.
    pub fn of_text(text: &[u8]) -> WorkId {
        let first = text.len() as u64;
        let hash = match text.len() {
            ..=TEXT_READ_MAX => hash(first, text),
            len => {
                let (start, end) = (&text[..TEXT_READ_MAX / 2], &text[len - TEXT_READ_MAX / 2..]);
                hash(hash(first, start), end)
            }
        };
        WorkId((hash >> 32) as u32 | TEXT_BIT)
    }
}

/// Hashes a text, eight bytes at a time.
#[inline]
fn hash(first: u64, text: &[u8]) -> u64 {
    let add = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(HASH_FACTOR);
    let (words, rest) = text.as_chunks();
    let hash = words.iter().fold(first, |hash, word| add(hash, u64::from_le_bytes(*word)));
    // The last word may have bytes that were added already.
    let last = match text.last_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    add(hash, last)
}

/// Bytes of a text that are read for its id.
const TEXT_READ_MAX: usize = 1024;
/// An odd number with its bits spread.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Commands' ids are below this.
const TEXT_BIT: u32 = 1 << 31;
