//! Writing RESP: the shapes of the proxy's own answers.

use crate::scan::push_decimal;

/// Writes `*n`: this many elements follow.
pub(super) fn open_array(count: usize, out: &mut Vec<u8>) {
    open(count as u64, out);
}

pub(super) fn open(count: u64, out: &mut Vec<u8>) {
    sized(b'*', count, out);
}

/// Opens a map of this many pairs in RESP3, and in RESP2 an array of twice as many.
pub(super) fn open_map(pairs: usize, proto_version: u8, out: &mut Vec<u8>) {
    match proto_version {
        3.. => sized(b'%', pairs as u64, out),
        _ => sized(b'*', 2 * pairs as u64, out),
    }
}

/// Opens a set in RESP3, and in RESP2 an array.
pub(super) fn open_set(count: usize, proto_version: u8, out: &mut Vec<u8>) {
    sized(if proto_version > 2 { b'~' } else { b'*' }, count as u64, out);
}

/// Writes a set of names of our own.
pub(super) fn simple_set<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
    proto_version: u8,
    out: &mut Vec<u8>,
) {
    open_set(names.clone().count(), proto_version, out);
    names.for_each(|name| simple(name, out));
}

pub(super) fn bulk(text: &[u8], out: &mut Vec<u8>) {
    sized(b'$', text.len() as u64, out);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Writes a text for people: `=` in RESP3, a bulk string in RESP2.
pub(super) fn verbatim(text: &[u8], proto_version: u8, out: &mut Vec<u8>) {
    if proto_version < 3 {
        return bulk(text, out);
    }
    sized(b'=', text.len() as u64 + 4, out);
    out.extend_from_slice(b"txt:");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn number(value: u64, out: &mut Vec<u8>) {
    sized(b':', value, out);
}

pub(super) fn signed(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.extend_from_slice(b":-");
        push_decimal(value.unsigned_abs(), out);
        out.extend_from_slice(b"\r\n");
    } else {
        number(value as u64, out);
    }
}

/// Writes a null, in place of a string.
pub(super) fn null(proto_version: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(if proto_version > 2 { b"_\r\n" } else { b"$-1\r\n" });
}

/// Writes a line of our own text.
pub(super) fn simple(text: &str, out: &mut Vec<u8>) {
    line(b'+', &[text.as_bytes()], out);
}

/// Writes an error from these parts. It is one line, whatever they contain.
pub(super) fn error(parts: &[&[u8]], out: &mut Vec<u8>) {
    line(b'-', parts, out);
}

fn line(first: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    out.push(first);
    for part in parts {
        // Text from outside is escaped before it comes here. Line ends are replaced all the same.
        out.extend(
            part.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }),
        );
    }
    out.extend_from_slice(b"\r\n");
}

fn sized(first: u8, count: u64, out: &mut Vec<u8>) {
    // Nearly every count has one digit or two.
    let (tens, ones) = ((count / 10) as u8, (count % 10) as u8);
    match count {
        0..=9 => out.extend_from_slice(&[first, b'0' + ones, b'\r', b'\n']),
        10..=99 => out.extend_from_slice(&[first, b'0' + tens, b'0' + ones, b'\r', b'\n']),
        _ => {
            out.push(first);
            push_decimal(count, out);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Returns a client's text as servers repeat it in an error: up to its first NUL, unchanged. Bytes
/// that would end the line become spaces where the error is written.
pub(super) fn shown(text: &[u8]) -> &[u8] {
    &text[..memchr::memchr(0, text).unwrap_or(text.len())]
}

/// Returns as many bytes of a text as servers usually repeat.
pub(super) fn beginning(text: &[u8]) -> &[u8] {
    &text[..text.len().min(ECHO_MAX)]
}

/// Returns foreign text for a line that is not an error: cut, and without bytes that could end the
/// line or control a terminal.
pub(super) fn echo(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len().min(ECHO_MAX));
    for &byte in text.iter().take(ECHO_MAX) {
        match byte {
            b' '..=b'~' => out.push(byte),
            _ => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    out
}

/// The most bytes of a client's text that are repeated.
pub(super) const ECHO_MAX: usize = 128;
