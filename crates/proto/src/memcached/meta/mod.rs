//! memcached's meta protocol: `mg ms md ma mn me`. Each request is recognized by its command, so a
//! connection may mix them with classic text.
//!
//! `flags.rs` reads the flags of a line · `base64.rs` has the keys of `b` · `request.rs` classifies
//! a line · `adapt.rs` adapts it to a server, to classic commands if the server has no others ·
//! `reply.rs` reads a server's reply · `answer.rs` renders it for the client.
//!
//! Two readers use the line and its flags: this protocol, and the embedded cache, which executes
//! what the request parser has accepted.

pub(super) mod adapt;
pub(super) mod answer;
pub mod base64;
mod flags;
pub(super) mod reply;
mod request;

pub use flags::{Flags, Verb};

use super::number;
use crate::scan::Tokens;
use flags::option;

/// A parsed meta request: `<verb> <key> [<length>] <flag>*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub verb: Verb,
    /// The key on the wire: base64 if the flag `b` is given. Empty for `mn`.
    pub key: &'a [u8],
    /// Length of the data block; 0 if there is none.
    pub body: u64,
    pub flags: Flags,
    /// The flags as text, in the client's order, for the answer.
    options: &'a [u8],
}

impl<'a> Line<'a> {
    /// Reads a head that the request parser has accepted; `None` for any other.
    pub fn read(head: &'a [u8]) -> Option<Line<'a>> {
        let mut tokens = Tokens::new(head);
        let word = tokens.next()?;
        let verb = Verb::named(tokens.text(word))?;
        let key = tokens.next().map_or(&b""[..], |key| tokens.text(key));
        let mut body = 0;
        if verb == Verb::Set {
            let length = tokens.next()?;
            body = number::length(tokens.text(length))?;
        }
        let options = tokens.rest();
        let flags = Flags::read(&mut tokens, verb, key).ok()?;
        Some(Line { verb, key, body, flags, options })
    }

    /// Returns each flag's letter and token, in the client's order.
    pub fn options(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let text = self.options;
        text.split(|&byte| byte == b' ').filter(|token| !token.is_empty()).map(option)
    }
}
