//! The replies that several files write: errors, numbers and our version.

use proto::memcached::Text;
use proto::{Answer, Asked, Protocol, Refusal};

/// Returns the reply to a request that is not executed.
pub(super) fn refused(refusal: Refusal) -> Vec<u8> {
    let mut out = Vec::new();
    match refusal {
        Refusal::Bad(_) => Text.answer(&Asked::no_request(), &Answer::Refused(refusal), &mut out),
        _ => out.extend_from_slice(b"ERROR\r\n"),
    }
    out
}

pub(super) fn push_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(digits(number, &mut [0; 20]));
}

/// Returns the number in decimal, at the end of `room`.
pub(super) fn digits(mut number: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut start = room.len();
    loop {
        start -= 1;
        room[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[start..];
        }
    }
}

pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(super) const NON_NUMERIC: &[u8] =
    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
/// Our version; the protocol adds the part that its clients rely on.
pub(super) const VERSION: &str = concat!("quickack-", env!("CARGO_PKG_VERSION"));
