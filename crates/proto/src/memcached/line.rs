//! The reply of a server that is one line.

use crate::{Item, ItemKind, Parsed, Span};

pub(super) fn error_or_malformed(text: &[u8], len: usize) -> Parsed<Item> {
    let error = text == b"ERROR"
        || text.starts_with(b"CLIENT_ERROR ")
        || text.starts_with(b"SERVER_ERROR ");
    if error { item(ItemKind::Error, len) } else { Parsed::Malformed(NO_ANSWER) }
}

pub(super) fn item(kind: ItemKind, head: usize) -> Parsed<Item> {
    let key = Span::default();
    Parsed::Complete(Item { kind, head: head as u32, body: 0, trailer: b"", key })
}

pub(super) const NO_ANSWER: &str = "a reply that cannot answer what was asked";
