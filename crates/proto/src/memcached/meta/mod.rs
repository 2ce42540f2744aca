//! memcached's meta protocol: `mg ms md ma mn me`, told apart from classic text per request.
//!
//! `flags.rs` reads the flags of a line · `base64.rs` is the `b` keys · `request.rs` says what a
//! line is to the proxy · `carry.rs` tells it to a server, in classic words where that has no
//! others · `reply.rs` reads what a server says · `answer.rs` tells that to the client.
//!
//! The line and its flags are read by two: here, and in the embedded cache that executes what the
//! request parser has let through.

pub(super) mod answer;
pub mod base64;
pub(super) mod carry;
mod flags;
pub(super) mod reply;
mod request;

pub use flags::{Flags, Verb};

use crate::scan::{self, Tokens};
use flags::option;

/// A meta request, read: `<verb> <key> [<length>] <flag>*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub verb: Verb,
    /// As it stands on the wire: base64 where the flag `b` is given. Empty for `mn`.
    pub key: &'a [u8],
    /// Length of the data block; 0 where there is none.
    pub body: u64,
    pub flags: Flags,
    /// The flags once more, as text and in the client's order, for what is sent back.
    options: &'a [u8],
}

impl<'a> Line<'a> {
    /// Reads a head that the request parser has taken and not refused; `None` for any other.
    pub fn read(head: &'a [u8]) -> Option<Line<'a>> {
        let mut tokens = Tokens::new(head);
        let word = tokens.next()?;
        let verb = Verb::named(tokens.text(word))?;
        let key = tokens.next().map_or(&b""[..], |key| tokens.text(key));
        let mut body = 0;
        if verb == Verb::Set {
            let length = tokens.next()?;
            body = scan::decimal(tokens.text(length), u64::MAX)?;
        }
        let options = tokens.rest();
        let flags = Flags::read(&mut tokens, verb, key).ok()?;
        Some(Line { verb, key, body, flags, options })
    }

    /// Each flag's letter and token, in the client's order.
    pub fn options(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let text = self.options;
        text.split(|&byte| byte == b' ').filter(|token| !token.is_empty()).map(option)
    }
}
