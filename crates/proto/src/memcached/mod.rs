//! memcached's protocols (source: memcached's `doc/protocol.txt`, and the behaviour of 1.6.18).
//!
//! `text.rs` and `binary/` are protocols of clients, `servers.rs` is the protocol of servers. Under
//! text, `meta/` has the newer commands. For the classic commands, `commands.rs` is the table ·
//! `request.rs` reads a client's request · `reply.rs` reads a server's reply, `line.rs` one of a
//! single line · `answer.rs` writes the proxy's answers ·
//! `reach.rs` says which keys a request reaches · `gather.rs` makes one answer from several
//! servers' replies.

mod answer;
mod binary;
mod commands;
mod gather;
mod line;
pub mod meta;
mod reach;
mod reply;
mod request;
mod servers;
mod stats;
mod text;

pub use binary::Binary;
pub use servers::{META, Servers};
pub use text::Text;

/// Whether a line can hold this key unencoded: no space, control character or DEL. Bytes from 0x80
/// up are allowed.
fn is_plain(key: &[u8]) -> bool {
    // Without an early end, the compiler makes one pass of vector instructions.
    let unclean = key.iter().fold(false, |bad, &byte| bad | (byte <= b' ') | (byte == 0x7f));
    (1..=KEY_MAX).contains(&key.len()) && !unclean
}

/// Returns the version for clients. Clients, other proxies among them, choose their commands by the
/// number that comes first. So it is the version of the memcached whose protocol this is; our name
/// and version follow.
pub fn version(proxy: &str) -> String {
    format!("1.6.18 {proxy}").trim_end().to_string()
}

/// The longest key, as in memcached.
const KEY_MAX: usize = 250;
/// The largest value that a server can be configured to store (`-I 1g`).
const BODY_MAX: u64 = 1 << 30;
