//! SCAN's cursors (a stub until the reply side is here).

use super::request;
use crate::{Asked, Item, Request, Shown};

/// What a server is sent: the request as it came, but for a cursor, which is the server's own.
pub(super) fn write_head(request: &Request, head: &[u8], out: &mut Vec<u8>) {
    request::write_head(request, head, out);
}

pub(super) fn translate(_asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    out.extend_from_slice(head);
    Shown::Body { trailer: item.trailer }
}
