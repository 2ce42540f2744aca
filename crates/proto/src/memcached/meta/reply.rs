//! A server's reply to a meta request. As with classic replies, a line that cannot answer the
//! request is `Malformed`.

use super::super::BODY_MAX;
use super::super::commands::{MA, MD, ME, MG, MS};
use super::super::line::{error_or_malformed, item};
use crate::scan;
use crate::{ItemKind, Parsed};

/// The most digits of a number that `ma` returns.
const NUMBER_MAX: u64 = 20;
const BAD_VALUE: &str = "a malformed VA line";

/// Reads the line of `len` bytes at the start of `input`, which answers this command.
pub(in super::super) fn parse(command: u16, input: &[u8], len: usize) -> Parsed<crate::Item> {
    let text = &input[..len - 2];
    let (code, rest) = text.split_at(text.len().min(2));
    let ends = matches!(rest.first(), None | Some(b' '));
    let known = match command {
        MG => matches!(code, b"HD" | b"EN"),
        MS => matches!(code, b"HD" | b"NS" | b"EX" | b"NF"),
        MD => matches!(code, b"HD" | b"EX" | b"NF"),
        MA => matches!(code, b"HD" | b"NS" | b"EX" | b"NF"),
        ME => matches!(code, b"EN" | b"ME"),
        _ => false,
    };
    match code {
        b"VA" if ends && command == MG => value(rest, len),
        b"VA" if ends && command == MA => number(input, rest, len),
        _ if ends && known => item(ItemKind::Status, len),
        _ => error_or_malformed(text, len),
    }
}

fn value(rest: &[u8], len: usize) -> Parsed<crate::Item> {
    let Some(body) = size(rest, BODY_MAX) else { return Parsed::Malformed(BAD_VALUE) };
    let Parsed::Complete(item) = item(ItemKind::Status, len) else {
        return Parsed::Malformed(BAD_VALUE);
    };
    Parsed::Complete(crate::Item { body, trailer: b"\r\n", ..item })
}

/// Reads the number of an `ma`, which is short enough to belong to the head.
fn number(input: &[u8], rest: &[u8], len: usize) -> Parsed<crate::Item> {
    let Some(digits) = size(rest, NUMBER_MAX) else { return Parsed::Malformed(BAD_VALUE) };
    let end = len + digits as usize;
    let Some(text) = input.get(len..end + 2) else { return Parsed::Incomplete };
    if scan::decimal(&text[..digits as usize], u64::MAX).is_none() || !text.ends_with(b"\r\n") {
        return Parsed::Malformed(BAD_VALUE);
    }
    item(ItemKind::Status, end + 2)
}

/// Returns the length that follows `VA`.
fn size(rest: &[u8], max: u64) -> Option<u64> {
    let text = rest.strip_prefix(b" ")?;
    let end = memchr::memchr(b' ', text).unwrap_or(text.len());
    scan::decimal(&text[..end], max)
}
