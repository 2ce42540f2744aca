//! SCAN over many servers: the cursor contains the server's index.
//!
//! ```text
//!   client's cursor  =  server's cursor × 1024  +  the server's index
//!   SCAN 5121        ->  SCAN 5, to the server with index 1
//!   its reply 9      ->  9217: continue there       0  ->  2: begin at the next, if there is one
//! ```
//!
//! Servers are scanned one after the other, by index, each with its own cursors. So every key of a
//! data set at rest comes as often as its own server returns it.
//!
//! A scan of the only server of a pool passes as it is, both ways, whatever its cursors look like.

use super::{arguments, words};
use crate::scan::decimal;
use crate::{Asked, Item, Shown};

/// The number of bits of the index.
const PLACE_BITS: u32 = 10;
/// The most servers whose indexes a cursor can hold.
pub(super) const PLACES_MAX: u32 = 1 << PLACE_BITS;
/// The cursors of servers are below this. A cursor has as many bits as the size of its server's
/// table, so only a table with this many buckets would need a larger one.
pub(super) const CURSOR_END: u64 = 1 << (64 - PLACE_BITS);
/// A cursor that no server's cursor becomes. It stands for a position that a cursor cannot hold,
/// and is refused when it comes back.
const NOWHERE: u64 = u64::MAX;

const LONG_CURSOR: &str = "the cursor of this scan's server is no number below 2^54, so it cannot \
                           hold the server's place as well. Scan through a pool that has no other \
                           server";

/// Returns the server's cursor and the server's index from a cursor that a client sends back.
/// `None`: the cursor is not one of ours.
pub(super) fn split(cursor: &[u8]) -> Option<(u64, u32)> {
    let whole = decimal(cursor, u64::MAX).filter(|whole| *whole != NOWHERE)?;
    Some((whole >> PLACE_BITS, whole as u32 % PLACES_MAX))
}

/// Returns the client's cursor for a server's cursor.
fn join(cursor: u64, place: u32, next: Option<u32>) -> u64 {
    let (cursor, place) = match (cursor, next) {
        (0, None) => return 0,
        (0, Some(next)) => (0, next),
        _ => (cursor, place),
    };
    if place < PLACES_MAX { cursor << PLACE_BITS | u64::from(place) } else { NOWHERE }
}

/// Writes a scan for one of several servers: the cursor becomes the server's own.
pub(super) fn write_head(head: &[u8], out: &mut Vec<u8>) {
    let arguments = arguments::all(head);
    words::open_array(arguments.len(), out);
    for (nth, argument) in arguments.iter().enumerate() {
        match split(argument).filter(|_| nth == 1) {
            Some((cursor, _)) => words::bulk(cursor.to_string().as_bytes(), out),
            None => words::bulk(argument, out),
        }
    }
}

/// Renders the piece of a scan's reply that contains the cursor; all else passes. A cursor that
/// cannot be passed on becomes an error, and what follows it is left out.
pub(super) fn render(asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    if item.key.is_empty() {
        out.extend_from_slice(head);
        return Shown::Body { trailer: item.trailer };
    }
    let Some(cursor) = decimal(item.key.of(head), CURSOR_END - 1) else {
        words::error(&[b"ERR ", LONG_CURSOR.as_bytes()], out);
        return Shown::Head;
    };
    words::open_array(2, out);
    words::bulk(join(cursor, asked.at, asked.next).to_string().as_bytes(), out);
    Shown::Head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::commands::id;
    use crate::{Ask, Parsed, Place, Progress, Protocol, Quiet, Resume, Upstream};

    #[test]
    fn a_cursor_is_what_it_was() {
        for cursor in [1, 5, 1 << 20, CURSOR_END - 2, CURSOR_END - 1] {
            for place in [0, 1, 7, PLACES_MAX - 2, PLACES_MAX - 1] {
                let told = join(cursor, place, Some(place + 1));
                if told == NOWHERE {
                    assert_eq!((cursor, place), (CURSOR_END - 1, PLACES_MAX - 1));
                    continue;
                }
                assert_eq!(split(told.to_string().as_bytes()), Some((cursor, place)));
            }
        }
    }

    #[test]
    fn servers_come_one_after_the_other() {
        assert_eq!(split(b"0"), Some((0, 0)));
        assert_eq!(join(0, 0, None), 0);
        assert_eq!(split(join(0, 0, Some(3)).to_string().as_bytes()), Some((0, 3)));
        assert_eq!(join(0, 3, None), 0, "the last one has ended");
        // Beyond the range of cursors: refused when it comes back, and never another position.
        for nowhere in [join(0, 1023, Some(1024)), join(7, 1024, None)] {
            assert_eq!(nowhere, NOWHERE);
            assert_eq!(split(nowhere.to_string().as_bytes()), None);
        }
        for wrong in ["", "-1", "x", "1x", " 1", "18446744073709551616"] {
            assert_eq!(split(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// Checks the bytes sent to a server for a client's request, and the client's answer for its
    /// reply.
    fn check(asked: &str, next: Option<u32>, sent: &str, said: &str, expected: &str) {
        let head = asked.as_bytes();
        let parsed =
            crate::redis::Redis.parse_request(head, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{asked}: {parsed:?}") };
        let mut out = Vec::new();
        write_head(head, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), sent, "{asked}");
        let ask = Ask { command: id::SCAN };
        let (Place::Nth(at) | Place::From(at)) = request.place else { panic!("{request:?}") };
        let asked = Asked { command: id::SCAN, quiet: Quiet::Loud, ask, head, at, next };
        let (mut rest, mut progress) = (said.as_bytes(), Progress::default());
        out.clear();
        while !rest.is_empty() {
            let parsed = crate::redis::Servers.parse_reply(ask, &mut progress, rest);
            let Parsed::Complete(item) = parsed else { panic!("{said}: {parsed:?}") };
            let (head, body) = rest.split_at(item.head as usize);
            // The first piece is rendered, and later ones are shown or left out.
            let is_shown = rest.len() == said.len() || item.key.is_empty();
            if is_shown && let Shown::Body { trailer } = render(&asked, &item, head, &mut out) {
                out.extend_from_slice(&body[..item.body as usize]);
                out.extend_from_slice(trailer);
            }
            rest = &rest[item.len() as usize..];
        }
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn a_cursor_that_cannot_be_passed_on_is_an_error_and_nothing_of_its_reply_follows() {
        let begin = "*2\r\n$4\r\nscan\r\n$1\r\n0\r\n";
        let error = format!("-ERR {LONG_CURSOR}\r\n");
        let long = "k".repeat(5_000);
        for cursor in ["18014398509481984", "18446744073709551615", "99999999999999999999", "_k"] {
            let len = cursor.len();
            let said =
                format!("*2\r\n${len}\r\n{cursor}\r\n*3\r\n$1\r\n7\r\n$5000\r\n{long}\r\n:1\r\n");
            check(begin, Some(1), begin, &said, &error);
            check(begin, None, begin, &format!("*2\r\n${len}\r\n{cursor}\r\n*0\r\n"), &error);
        }
    }

    #[test]
    fn a_scan_goes_there_and_back() {
        check(
            "*4\r\n$4\r\nSCAN\r\n$4\r\n5121\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n",
            Some(2),
            "*4\r\n$4\r\nSCAN\r\n$1\r\n5\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n",
            "*2\r\n$1\r\n9\r\n*2\r\n$1\r\n1\r\n$1\r\nk\r\n",
            "*2\r\n$4\r\n9217\r\n*2\r\n$1\r\n1\r\n$1\r\nk\r\n",
        );
        let begin = "*2\r\n$4\r\nscan\r\n$1\r\n0\r\n";
        check(begin, Some(1), begin, "*2\r\n$1\r\n0\r\n*0\r\n", "*2\r\n$1\r\n1\r\n*0\r\n");
        check(begin, None, begin, "*2\r\n$1\r\n0\r\n*0\r\n", "*2\r\n$1\r\n0\r\n*0\r\n");
        check("scan 0\r\n", None, begin, "*2\r\n$1\r\n1\r\n*0\r\n", "*2\r\n$4\r\n1024\r\n*0\r\n");
        // Keys that look like a cursor are keys, in one item or as the stream is cut.
        let keys = "*2\r\n$1\r\n7\r\n$1\r\n8\r\n";
        check(
            begin,
            None,
            begin,
            &format!("*2\r\n$1\r\n0\r\n{keys}"),
            &format!("*2\r\n$1\r\n0\r\n{keys}"),
        );
    }
}
