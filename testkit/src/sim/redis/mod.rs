//! Redis in the simulator: model clients, model servers and the judge of replies.
//!
//! ```text
//!   {03alpha:kk}#17.2      the third key of wish 17, which is the fourth of its pool's
//! ```
//!
//! These pools hash only the text in braces, so each key can carry the number of its request, its
//! **wish**. For every key in a command, a server finds the request. It checks that the client has
//! selected this database and this version of RESP, that the client was not told that the request
//! was not sent, that no write is executed twice, and that a client's requests come in their order.
//! The server's answer is recorded for that wish, and the client must read exactly that answer. A
//! command without a key carries its number elsewhere, or is identified by its answer.

mod bad;
mod client;
mod handshake;
mod inline;
mod judge;
mod ledger;
mod server;
mod store;
mod together;
mod transaction;
mod tree;

pub use client::Talk;
pub use handshake::Handshakes;
pub use ledger::{From, Kind, Ledger};
pub use store::Model;
pub use transaction::Queue;

/// Returns the length of the first command, if it is whole, and notes whether a block is open
/// behind it.
pub fn frame_len(input: &[u8], is_in_block: &mut bool) -> Option<usize> {
    let (words, len) = crate::wire::resp::read_command(input)?;
    *is_in_block = match &words[0][..] {
        // A trial ends the block that it has begun, or asks for both ends outside of one.
        b"MULTI" => true,
        b"DISCARD" => !*is_in_block,
        b"EXEC" => false,
        _ => *is_in_block,
    };
    Some(len)
}
