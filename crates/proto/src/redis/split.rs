//! The parts of a split request, one message for each server; and the writing of requests.

use std::borrow::Cow;

use super::commands::{self, id};
use super::{arguments, inline, words};
use crate::{Ask, Request, Span};

/// Adds one key.
pub(super) fn push_key(key: &[u8], out: &mut Vec<u8>) {
    words::bulk(key, out);
}

/// Writes the bytes that belong to a key beyond the key itself: its value, if it has one.
pub(super) fn push_rest(request: &Request, head: &[u8], key: Span, out: &mut Vec<u8>) {
    if let Some(rest) = rest(request, head, key) {
        out.extend_from_slice(rest.of(head));
    } else if request.command == id::MSET
        && let Some(value) = inline::after(head, key)
    {
        words::bulk(inline::argument(head, value, &mut Vec::new()), out);
    }
}

/// Returns where these bytes stand in a request that is an array: they are the next argument.
pub(super) fn rest(request: &Request, head: &[u8], key: Span) -> Option<Span> {
    if request.command != id::MSET || head.first() != Some(&b'*') {
        return None;
    }
    let start = key.end as usize + 2;
    let line = memchr::memchr(b'\n', &head[start..]).map_or(0, |at| at + 1);
    let digits = head[start..start + line].iter().filter(|byte| byte.is_ascii_digit());
    let len = digits.fold(0, |len, digit| len * 10 + usize::from(digit - b'0'));
    Some(Span::new(start, start + line + len + 2))
}

/// Writes the whole message of `keys` keys, whose text `text` holds so far.
pub(super) fn seal(ask: Ask, keys: usize, text: &[u8], out: &mut Vec<u8>) {
    let each = if ask.command == id::MSET { 2 } else { 1 };
    words::open_array(keys * each + 1, out);
    words::bulk(commands::row(ask.command).name.as_bytes(), out);
    out.extend_from_slice(text);
}

/// Writes the request for a server: the client's bytes, or an array made from its line.
pub(super) fn write_head(head: &[u8], out: &mut Vec<u8>) {
    if head.first() == Some(&b'*') {
        out.extend_from_slice(head);
    } else {
        push_request(&arguments::all(head), out);
    }
}

/// Writes a request with these arguments.
pub(super) fn push_request(arguments: &[Cow<'_, [u8]>], out: &mut Vec<u8>) {
    words::open_array(arguments.len(), out);
    arguments.iter().for_each(|argument| words::bulk(argument, out));
}
