//! Redis in the simulator: model clients, model servers and the judge of what is told.
//!
//! ```text
//!   {03alpha:kk}#17.2      the third key of wish 17, which is the fourth of its pool's
//! ```
//!
//! Pools of this kind hash only what stands in braces, so each key can carry the number of the
//! request that it stands in, its **wish**. A server knows whose every key is that it executes:
//! that its client is in this database and speaks this version of RESP, that nobody has been told
//! that it was not sent, that no write is executed twice and that a client's requests come in
//! their order. What it answers is written down for that wish, and what the client reads must be
//! exactly that. What bears no key carries its number elsewhere, or is known by what it answers.

mod bad;
mod client;
mod greet;
mod inline;
mod judge;
mod ledger;
mod resp;
mod server;
mod store;
mod together;
mod tree;

pub use client::Talk;
pub use greet::Greetings;
pub use ledger::{From, Ledger};
pub use store::Model;

/// The length of the first command, if it is whole.
pub fn frame_len(input: &[u8]) -> Option<usize> {
    resp::command(input).map(|(_, len)| len)
}
