//! The protocols on the wire, for all tests: readers and writers that are strict, slow and plain.
//!
//! ```text
//!   base64.rs   keys of meta commands
//!   binary.rs   packets of memcached's binary protocol
//!   resp.rs     Redis, versions 2 and 3
//!   text.rs     lines of memcached's classic and meta commands, with their data
//! ```
//!
//! Nothing here uses `proto`: a mistake in shared code would be made on both sides and stay hidden.

pub mod base64;
pub mod binary;
pub mod resp;
pub mod text;

/// A value with its length in bytes, or the reason why there is none.
pub type Reading<T> = Result<(T, usize), Unread>;

/// The reason why the start of some bytes is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// More bytes may make it one.
    Incomplete,
    /// No more bytes can make it one.
    Hopeless,
}

/// Returns the value if it is whole; panics if it cannot become one.
#[track_caller]
pub fn whole<T>(input: &[u8], reading: Reading<T>) -> Option<(T, usize)> {
    match reading {
        Ok(whole) => Some(whole),
        Err(Unread::Incomplete) => None,
        Err(Unread::Hopeless) => panic!("nobody may send this: {}", shown(input)),
    }
}

/// Renders bytes for people, shortened if there are many.
pub fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 200;
    let text = bytes[..bytes.len().min(MOST)].escape_ascii().to_string();
    if bytes.len() > MOST { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}

/// Returns the line of an EXECABORT up to the first error of its transaction, which the proxy
/// repeats there and no server does.
pub fn without_first_error(line: &[u8]) -> &[u8] {
    const FIRST: &[u8] = b" The first: ";
    let at = line.windows(FIRST.len()).position(|part| part == FIRST);
    &line[..at.unwrap_or(line.len())]
}
