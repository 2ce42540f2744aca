//! memcached's protocols (source: memcached's `doc/protocol.txt`, and what 1.6.18 does).
//!
//! `text.rs` and `binary/` are what clients speak, `servers.rs` what servers speak. Under text,
//! `meta/` has the newer commands; of the classic words `commands.rs` is the table · `request.rs`
//! reads what a client says · `reply.rs` reads what a server says · `answer.rs` writes what the
//! proxy says.

mod answer;
mod binary;
mod commands;
pub mod meta;
mod reply;
mod request;
mod servers;
mod text;

pub use binary::Binary;
pub use servers::Servers;
pub use text::Text;

/// Whether a line can carry this key as it is: no space, control character or DEL. Bytes from 0x80
/// up are a key's own affair.
fn is_plain(key: &[u8]) -> bool {
    // No early end: so it is one pass of vectors.
    let unclean = key.iter().fold(false, |bad, &byte| bad | (byte <= b' ') | (byte == 0x7f));
    (1..=KEY_MAX).contains(&key.len()) && !unclean
}

/// Longest key, as in memcached.
const KEY_MAX: usize = 250;
