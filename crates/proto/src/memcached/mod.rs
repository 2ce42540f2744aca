//! memcached's protocols (source: memcached's `doc/protocol.txt`, and what 1.6.18 does).
//!
//! `text.rs` and `binary/` are what clients speak, `servers.rs` what servers speak. Under text,
//! `meta/` has the newer commands; of the classic words `commands.rs` is the table · `request.rs`
//! reads what a client says · `reply.rs` reads what a server says · `answer.rs` writes what the
//! proxy says · `gather.rs` makes one answer of several servers'.

mod answer;
mod binary;
mod commands;
mod gather;
pub mod meta;
mod reply;
mod request;
mod servers;
mod stats;
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

/// How a version is told. Clients, the proxy among them, choose what they dare to ask by the number
/// that comes first, so that is of the memcached whose words these are; who we are follows.
pub fn version(ours: &str) -> String {
    format!("1.6.18 {ours}").trim_end().to_string()
}

/// Longest key, as in memcached.
const KEY_MAX: usize = 250;
