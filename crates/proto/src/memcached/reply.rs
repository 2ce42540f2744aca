//! What a server says. Anything that cannot answer what was asked is `Malformed`, and the caller
//! believes nothing after it: one misread byte on a shared link would hand clients each other's
//! values.

use super::commands::{self, CAS, DECR, DELETE, FLUSH_ALL, GATS, GETS, INCR, SET, TOUCH, VERSION};
use crate::scan::{self, Tokens};
use crate::{Ask, Item, ItemKind, Parsed, Resume, Span};

/// Longest line that a server may send.
const LINE_MAX: usize = 2048;
/// Largest value that a server can be told to store (`-I 1g`).
const BODY_MAX: u64 = 1 << 30;

const NO_ANSWER: &str = "not a possible answer to what was asked";
const TOO_LONG: &str = "a line without end";
const BAD_VALUE: &str = "a malformed VALUE line";

pub(super) fn parse(ask: Ask, input: &[u8]) -> Parsed<Item> {
    let head = &input[..input.len().min(LINE_MAX)];
    let Some(len) = scan::line_len(head, &mut Resume::default()) else {
        return if input.len() >= LINE_MAX {
            Parsed::Malformed(TOO_LONG)
        } else {
            Parsed::Incomplete
        };
    };
    let line = &input[..len];
    if !line.ends_with(b"\r\n") {
        return Parsed::Malformed(NO_ANSWER);
    }
    let text = &line[..len - 2];
    if ask.command < SET {
        return fetched(ask, line, text);
    }
    if answers(ask.command, text) {
        return item(ItemKind::Status, len);
    }
    error_or_malformed(text, len)
}

/// A line of the reply to a read: a value, the end, or an error in place of the rest.
fn fetched(ask: Ask, line: &[u8], text: &[u8]) -> Parsed<Item> {
    if text == b"END" {
        return item(ItemKind::End, line.len());
    }
    if !text.starts_with(b"VALUE ") {
        return error_or_malformed(text, line.len());
    }
    match value(ask, line) {
        Some(item) => Parsed::Complete(item),
        None => Parsed::Malformed(BAD_VALUE),
    }
}

/// `VALUE key flags bytes [cas]`
fn value(ask: Ask, line: &[u8]) -> Option<Item> {
    let mut tokens = Tokens::new(line);
    tokens.next()?;
    let key = tokens.next()?;
    let flags = tokens.next()?;
    let bytes = tokens.next()?;
    scan::decimal(tokens.text(flags), u64::from(u32::MAX))?;
    let body = scan::decimal(tokens.text(bytes), BODY_MAX)?;
    if matches!(ask.command, GETS | GATS) {
        let cas = tokens.next()?;
        scan::decimal(tokens.text(cas), u64::MAX)?;
    }
    if tokens.next().is_some() {
        return None;
    }
    let head = line.len() as u32;
    Some(Item { kind: ItemKind::Value, head, body, trailer: b"\r\n", key })
}

/// Whether `text` is one of the statuses that `command` can have.
fn answers(command: u8, text: &[u8]) -> bool {
    match command {
        CAS => matches!(text, b"STORED" | b"EXISTS" | b"NOT_FOUND" | b"NOT_STORED"),
        SET..CAS => matches!(text, b"STORED" | b"NOT_STORED"),
        DELETE => matches!(text, b"DELETED" | b"NOT_FOUND"),
        INCR | DECR => text == b"NOT_FOUND" || scan::decimal(text, u64::MAX).is_some(),
        TOUCH => matches!(text, b"TOUCHED" | b"NOT_FOUND"),
        FLUSH_ALL => text == b"OK",
        VERSION => text.starts_with(b"VERSION "),
        _ => unreachable!("{} is never sent", commands::TABLE[usize::from(command)].name),
    }
}

fn error_or_malformed(text: &[u8], len: usize) -> Parsed<Item> {
    let error = text == b"ERROR"
        || text.starts_with(b"CLIENT_ERROR ")
        || text.starts_with(b"SERVER_ERROR ");
    if error { item(ItemKind::Error, len) } else { Parsed::Malformed(NO_ANSWER) }
}

fn item(kind: ItemKind, head: usize) -> Parsed<Item> {
    let key = Span::default();
    Parsed::Complete(Item { kind, head: head as u32, body: 0, trailer: b"", key })
}
