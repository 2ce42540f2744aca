//! Random requests of memcached's binary protocol.

use super::keys::Named;
use super::maker::Maker;
use super::request::{Mark, Part, Request, Wire};
use crate::wire::binary::{HEAD_LEN, Packet};

/// An opcode with its name and its frequency.
struct Opcode {
    code: u8,
    name: &'static str,
    share: usize,
    shape: Shape,
}

/// The fields of a request besides its key.
#[derive(Clone, Copy)]
enum Shape {
    Key,
    /// Flags, expiry, value.
    Store,
    /// Only a value.
    Extend,
    /// Delta, initial value, expiry.
    Count,
    /// An expiry.
    Touch,
    /// A key and a cas number.
    Delete,
    /// No other field.
    Bare,
    /// A flush, which goes to all servers.
    Flush,
    /// An invalid request.
    Wrong,
}

const fn row(code: u8, name: &'static str, share: usize, shape: Shape) -> Opcode {
    Opcode { code, name, share, shape }
}

const OPCODES: &[Opcode] = &[
    row(0x00, "Get", 100, Shape::Key),
    row(0x09, "GetQ", 60, Shape::Key),
    row(0x0c, "GetK", 60, Shape::Key),
    row(0x0d, "GetKQ", 80, Shape::Key),
    row(0x01, "Set", 100, Shape::Store),
    row(0x11, "SetQ", 50, Shape::Store),
    row(0x02, "Add", 30, Shape::Store),
    row(0x12, "AddQ", 20, Shape::Store),
    row(0x03, "Replace", 30, Shape::Store),
    row(0x13, "ReplaceQ", 20, Shape::Store),
    row(0x0e, "Append", 30, Shape::Extend),
    row(0x19, "AppendQ", 20, Shape::Extend),
    row(0x0f, "Prepend", 30, Shape::Extend),
    row(0x1a, "PrependQ", 20, Shape::Extend),
    row(0x05, "Increment", 40, Shape::Count),
    row(0x15, "IncrementQ", 25, Shape::Count),
    row(0x06, "Decrement", 40, Shape::Count),
    row(0x16, "DecrementQ", 25, Shape::Count),
    row(0x04, "Delete", 40, Shape::Delete),
    row(0x14, "DeleteQ", 25, Shape::Delete),
    row(0x1c, "Touch", 25, Shape::Touch),
    row(0x1d, "Gat", 25, Shape::Touch),
    row(0x1e, "GatQ", 20, Shape::Touch),
    row(0x23, "GatK", 15, Shape::Touch),
    row(0x24, "GatKQ", 15, Shape::Touch),
    row(0x0a, "Noop", 25, Shape::Bare),
    row(0x08, "Flush", 1, Shape::Flush),
    row(0x18, "FlushQ", 1, Shape::Flush),
    row(0x1b, "Verbosity", 1, Shape::Bare),
    row(0x3c, "RDecrQ", 1, Shape::Bare),
    row(0x77, "unknown", 1, Shape::Bare),
    row(0x00, "wrong", 3, Shape::Wrong),
];

pub fn request(maker: &mut Maker<'_>) -> Request {
    let rows: Vec<_> = OPCODES.iter().map(|row| (row.share, row)).collect();
    let row = maker.random.weighted(&rows);
    match row.shape {
        Shape::Key | Shape::Delete | Shape::Store | Shape::Extend | Shape::Count | Shape::Touch => {
            keyed(maker, row)
        }
        Shape::Flush if maker.lane.is_some() => bare(maker, &row_of_noop(), Vec::new()),
        Shape::Flush => {
            let extras = if maker.random.below(2) == 0 { Vec::new() } else { vec![0; 4] };
            bare(maker, row, extras)
        }
        Shape::Bare => bare(maker, row, Vec::new()),
        Shape::Wrong => wrong(maker, row),
    }
}

fn row_of_noop() -> Opcode {
    row(0x0a, "Noop", 0, Shape::Bare)
}

fn keyed(maker: &mut Maker<'_>, row: &Opcode) -> Request {
    let counts = matches!(row.shape, Shape::Count);
    // One refused request now and then is enough.
    let raw = maker.random.below(4) == 0;
    let key = maker.key(|key| match key.named {
        Named::Encoded => false,
        Named::Raw => raw && !counts,
        Named::Plainly | Named::Both => key.counted || !counts,
    });
    let mut request = Request::new(Wire::Binary, row.name, Some(key));
    if maker.keys[key].named == Named::Raw {
        request.mark(Mark::LongBytesKey);
    }
    let mut extras = Vec::new();
    let mut value = Vec::new();
    match row.shape {
        Shape::Store => {
            extras.extend_from_slice(&maker.flags().to_be_bytes());
            extras.extend_from_slice(&expiry(maker));
            value = maker.value(key, false, &mut request);
        }
        Shape::Extend => value = maker.value(key, true, &mut request),
        Shape::Count => {
            extras.extend_from_slice(&maker.delta().to_be_bytes());
            extras.extend_from_slice(&maker.initial().to_be_bytes());
            let expiry = if maker.random.below(2) == 0 { [0xff; 4] } else { expiry(maker) };
            extras.extend_from_slice(&expiry);
        }
        Shape::Touch => extras.extend_from_slice(&expiry(maker)),
        _ => {}
    }
    let writes = matches!(row.shape, Shape::Store | Shape::Extend | Shape::Count | Shape::Delete);
    let cas = if writes && maker.random.below(5) == 0 { Some(maker.cas(key)) } else { None };
    let raw = maker.keys[key].raw.clone();
    packet(maker, row.code, &raw, &extras, &value, cas, &mut request);
    if row.name.starts_with("Decrement") {
        // The item may now hold a number with spaces after it, or one without.
        let opaque = request.opaque;
        packet(maker, 0x14, &raw, b"", b"", None, &mut request);
        request.opaque = opaque;
    }
    request
}

fn bare(maker: &mut Maker<'_>, row: &Opcode, extras: Vec<u8>) -> Request {
    let mut request = Request::new(Wire::Binary, row.name, None);
    packet(maker, row.code, b"", &extras, b"", None, &mut request);
    request
}

fn wrong(maker: &mut Maker<'_>, row: &Opcode) -> Request {
    let mut request = Request::new(Wire::Binary, row.name, None);
    request.mark(Mark::BadFrame);
    let (code, key, extras): (u8, &[u8], &[u8]) = *maker.random.pick(&[
        (0x00, &b""[..], &b""[..]),
        (0x00, b"k1", b"1234"),
        (0x00, &[b'k'; 251], b""),
        (0x01, b"k1", b""),
        (0x0a, b"", b"1234"),
        (0x05, b"k1", b"12345678"),
        (0x1c, b"k1", b""),
    ]);
    packet(maker, code, key, extras, b"", None, &mut request);
    request
}

fn expiry(maker: &mut Maker<'_>) -> [u8; 4] {
    let text = maker.exptime();
    text.parse::<i64>().expect("a number of ours").to_be_bytes()[4..].try_into().expect("4 bytes")
}

fn packet(
    maker: &mut Maker<'_>,
    code: u8,
    key: &[u8],
    extras: &[u8],
    value: &[u8],
    cas: Option<u64>,
    request: &mut Request,
) {
    let opaque = maker.next_opaque();
    request.opaque = Some(opaque);
    let bytes = Packet { key, extras, value, ..Packet::new(code, opaque) }.bytes();
    // A cas number is the last field of the head.
    let (before, rest) = bytes.split_at(HEAD_LEN - 8);
    request.push(before);
    match cas {
        Some(cas) => request.parts.push(Part::CasBinary(cas)),
        None => request.push([0; 8]),
    }
    request.push(&rest[8..]);
}
