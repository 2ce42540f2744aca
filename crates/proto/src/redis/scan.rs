//! SCAN over many servers: the cursor says whose it is.
//!
//! ```text
//!   client's cursor  =  server's cursor × 1024  +  the server's place
//!   SCAN 5121        ->  SCAN 5, at the server in place 1
//!   its reply 9      ->  9217: go on there           0  ->  2: begin at the next, if there is one
//! ```
//!
//! Servers are asked one after the other, by place, and each is asked as it asks to be; so every
//! key of a still data set comes as often as its own server gives it.

use super::commands::id;
use super::{request, words};
use crate::scan::decimal;
use crate::{Asked, Item, Request, Shown};

/// Bits of the place.
const PLACE_BITS: u32 = 10;
/// Most servers whose places a cursor can hold.
pub(super) const PLACES_MAX: u32 = 1 << PLACE_BITS;
/// A server's cursors are below this. They are as long as its table's size is, so those beyond
/// would be of one with so many buckets.
pub(super) const CURSOR_END: u64 = 1 << (64 - PLACE_BITS);
/// What no server's cursor becomes: it stands for a place that a cursor cannot hold, and is refused
/// when it comes back.
const NOWHERE: u64 = u64::MAX;

/// The server's cursor and the place of that server, of a cursor that a client gives back. `None`:
/// it is none of ours.
pub(super) fn split(cursor: &[u8]) -> Option<(u64, u32)> {
    let whole = decimal(cursor, u64::MAX).filter(|whole| *whole != NOWHERE)?;
    Some((whole >> PLACE_BITS, whole as u32 % PLACES_MAX))
}

/// What a client is given for a server's cursor.
fn join(cursor: u64, place: u32, next: Option<u32>) -> u64 {
    let (cursor, place) = match (cursor, next) {
        (0, None) => return 0,
        (0, Some(next)) => (0, next),
        _ => (cursor, place),
    };
    if place < PLACES_MAX && cursor < CURSOR_END {
        cursor << PLACE_BITS | u64::from(place)
    } else {
        NOWHERE
    }
}

/// What a server is sent: the request as it came, but for a cursor, which is the server's own.
pub(super) fn write_head(request: &Request, head: &[u8], out: &mut Vec<u8>) {
    if request.command != id::SCAN {
        return request::write_head(head, out);
    }
    let arguments = request::arguments(head);
    words::open_array(arguments.len(), out);
    for (nth, argument) in arguments.iter().enumerate() {
        match split(argument).filter(|_| nth == 1) {
            Some((cursor, _)) => words::bulk(cursor.to_string().as_bytes(), out),
            None => words::bulk(argument, out),
        }
    }
}

/// Of a scan's reply the piece with the cursor is told in our words; all else passes.
pub(super) fn translate(asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    if item.key.is_empty() {
        out.extend_from_slice(head);
        return Shown::Body { trailer: item.trailer };
    }
    let cursor = decimal(item.key.of(head), u64::MAX).unwrap_or(NOWHERE);
    let asked_for = request::arguments(asked.head).get(1).and_then(|cursor| split(cursor));
    let place = asked_for.map_or(0, |(_, place)| place);
    words::open_array(2, out);
    words::bulk(join(cursor, place, asked.next).to_string().as_bytes(), out);
    Shown::Head
}
