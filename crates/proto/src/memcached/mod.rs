//! memcached's protocols (source: memcached's `doc/protocol.txt`, and what 1.6.18 does).
//!
//! `text.rs` is what clients speak, `servers.rs` what servers speak. Under them, for the classic
//! words: `commands.rs` is the table · `request.rs` reads what a client says · `reply.rs` reads
//! what a server says · `answer.rs` writes what the proxy says.

mod answer;
mod commands;
pub mod meta;
mod reply;
mod request;
mod servers;
mod text;

pub use servers::Servers;
pub use text::Text;
