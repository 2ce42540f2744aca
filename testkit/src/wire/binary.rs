//! Packets of memcached's binary protocol.

use super::Reading;
use super::Unread::{Hopeless, Incomplete};

/// The first byte of a request and of a reply.
pub const REQUEST: u8 = 0x80;
pub const REPLY: u8 = 0x81;
pub const HEAD_LEN: usize = 24;

pub const GET: u8 = 0x00;
pub const SET: u8 = 0x01;
pub const NOOP: u8 = 0x0a;
pub const GETK: u8 = 0x0c;
pub const GETKQ: u8 = 0x0d;
pub const NOT_FOUND: u16 = 1;

/// The head of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub magic: u8,
    pub code: u8,
    pub key_len: usize,
    pub extras_len: usize,
    pub datatype: u8,
    /// Always 0 in a request of ours.
    pub status: u16,
    /// The length of extras, key and value.
    pub body_len: usize,
    pub opaque: u32,
    pub cas: u64,
}

impl Head {
    /// Reads the first bytes of a packet; its lengths may be wrong.
    pub fn read(input: &[u8]) -> Option<Head> {
        let head = input.first_chunk::<HEAD_LEN>()?;
        let number = |at: usize, len: usize| {
            head[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Some(Head {
            magic: head[0],
            code: head[1],
            key_len: number(2, 2) as usize,
            extras_len: usize::from(head[4]),
            datatype: head[5],
            status: number(6, 2) as u16,
            body_len: number(8, 4) as usize,
            opaque: number(12, 4) as u32,
            cas: number(16, 8),
        })
    }

    pub fn bytes(&self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        (bytes[0], bytes[1]) = (self.magic, self.code);
        bytes[2..4].copy_from_slice(&(self.key_len as u16).to_be_bytes());
        (bytes[4], bytes[5]) = (self.extras_len as u8, self.datatype);
        bytes[6..8].copy_from_slice(&self.status.to_be_bytes());
        bytes[8..12].copy_from_slice(&(self.body_len as u32).to_be_bytes());
        bytes[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        bytes[16..].copy_from_slice(&self.cas.to_be_bytes());
        bytes
    }

    /// Returns the length of the value; None if the others leave no room for it.
    pub fn value_len(&self) -> Option<usize> {
        self.body_len.checked_sub(self.extras_len + self.key_len)
    }
}

/// A whole packet. A new one is a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub magic: u8,
    pub code: u8,
    pub datatype: u8,
    pub status: u16,
    pub opaque: u32,
    pub cas: u64,
    pub extras: &'a [u8],
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Makes a request; its other fields are empty.
    pub fn new(code: u8, opaque: u32) -> Packet<'a> {
        let (magic, datatype, status, cas) = (REQUEST, 0, 0, 0);
        Packet { magic, code, datatype, status, opaque, cas, extras: b"", key: b"", value: b"" }
    }

    /// Reads a packet in which the lengths are possible.
    pub fn read(input: &'a [u8]) -> Reading<Packet<'a>> {
        let head = Head::read(input).ok_or(Incomplete)?;
        head.value_len().ok_or(Hopeless)?;
        let len = HEAD_LEN + head.body_len;
        let body = input.get(HEAD_LEN..len).ok_or(Incomplete)?;
        let (extras, rest) = body.split_at(head.extras_len);
        let (key, value) = rest.split_at(head.key_len);
        let Head { magic, code, datatype, status, opaque, cas, .. } = head;
        Ok((Packet { magic, code, datatype, status, opaque, cas, extras, key, value }, len))
    }

    pub fn head(&self) -> Head {
        let Packet { magic, code, datatype, status, opaque, cas, extras, key, value } = *self;
        let (key_len, extras_len) = (key.len(), extras.len());
        let body_len = extras_len + key_len + value.len();
        Head { magic, code, key_len, extras_len, datatype, status, body_len, opaque, cas }
    }

    pub fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head().bytes());
        [self.extras, self.key, self.value].iter().for_each(|part| out.extend_from_slice(part));
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.push(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_read_as_it_is_written() {
        let packet = Packet {
            magic: REPLY,
            status: 0x0102,
            cas: 1 << 40,
            extras: b"flag",
            key: b"k",
            value: b"value",
            ..Packet::new(0x0d, 0xfeed)
        };
        let bytes = packet.bytes();
        assert_eq!(bytes[..16], *b"\x81\x0d\0\x01\x04\0\x01\x02\0\0\0\x0a\0\0\xfe\xed");
        assert_eq!(Packet::read(&bytes), Ok((packet, 34)));
        assert!((0..34).all(|cut| Packet::read(&bytes[..cut]) == Err(Incomplete)));
        let mut short = bytes;
        short[11] = 4;
        assert_eq!(Packet::read(&short), Err(Hopeless));
    }
}
