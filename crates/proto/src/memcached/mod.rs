//! memcached's protocols (source: memcached's `doc/protocol.txt`, and the behaviour of 1.6.18).
//!
//! `text.rs` and `binary/` are protocols of clients, `servers.rs` is the protocol of servers. Under
//! text, `meta/` has the newer commands. For the classic commands, `commands.rs` is the table ·
//! `request.rs` reads a client's request, `number.rs` the numbers in it · `reply.rs` reads a
//! server's reply, `line.rs` one of a single line · `answer.rs` writes the proxy's answers ·
//! `reach.rs` says which keys a request reaches · `gather.rs` makes one answer from several
//! servers' replies.

use std::borrow::Cow;

use crate::{Answer, Asked, Protocol as _};

mod answer;
mod binary;
mod commands;
mod gather;
mod line;
pub mod meta;
pub mod number;
mod reach;
mod reply;
mod request;
mod servers;
mod stats;
mod text;

pub use binary::Binary;
pub use servers::{META, Servers};
pub use text::Text;

/// The length of a binary request's header.
pub(crate) const HEADER_LEN: usize = binary::HEADER_LEN;

/// As [`crate::refusal`], of a line of text.
pub(crate) fn refusal<'a>(line: &'a [u8], first: &[u8], is_last: bool) -> Option<Cow<'a, [u8]>> {
    match first {
        [] if !is_last => None,
        [binary::FIRST, ..] if first.len() < HEADER_LEN && !is_last => None,
        [binary::FIRST, ..] => {
            let mut packet = Vec::new();
            let asked = Asked { head: first, ..Asked::no_request() };
            let why = line.trim_ascii_end().strip_prefix(b"SERVER_ERROR ").unwrap_or(line);
            let why = String::from_utf8_lossy(why);
            Binary.answer(&asked, &Answer::Full(&why), &mut packet);
            Some(Cow::Owned(packet))
        }
        _ => Some(Cow::Borrowed(line)),
    }
}

/// Whether a line can hold this key unencoded. memcached keeps every byte but those at which a key
/// or a line ends: space, NUL, CR and LF.
pub fn is_plain(key: &[u8]) -> bool {
    // Without an early end, the compiler makes one pass of vector instructions.
    let ends = key.iter().fold(false, |ends, &byte| {
        ends | (byte == b' ') | (byte == 0) | (byte == b'\r') | (byte == b'\n')
    });
    (1..=KEY_MAX).contains(&key.len()) && !ends
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
