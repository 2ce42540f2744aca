//! The header of every packet of the binary protocol: 24 bytes.
//!
//! ```text
//!   0      1       2       4       5     6        8        12      16    24
//!   magic  opcode  key's   extras  type  status   length   opaque  cas   extras key value
//!                  length  length        (vbucket) of all
//!                                                 that follows
//! ```

/// Length of a header.
pub(super) const LEN: usize = 24;
/// The first byte of a request.
pub(super) const REQUEST: u8 = 0x80;
const DELETE: u8 = 0x04;
/// The first byte of an answer.
const RESPONSE: u8 = 0x81;

/// A request's header. As in memcached, type and vbucket are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) opcode: u8,
    pub(super) key: usize,
    pub(super) extras: usize,
    /// Length of extras, key and value together.
    pub(super) total: usize,
    /// Returned to the client unchanged.
    pub(super) opaque: [u8; 4],
    pub(super) cas: u64,
}

impl Header {
    /// Reads the header at the start of `input`, if it is complete.
    pub(super) fn read(input: &[u8]) -> Option<Header> {
        let bytes = input.first_chunk::<LEN>()?;
        let (tail, cas) = bytes.split_last_chunk::<8>()?;
        Some(Header {
            opcode: bytes[1],
            key: usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            extras: usize::from(bytes[4]),
            total: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize,
            opaque: *tail.last_chunk::<4>()?,
            cas: u64::from_be_bytes(*cas),
        })
    }

    /// Returns a request's extras.
    pub(super) fn extras<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[LEN..LEN + self.extras]
    }

    /// Returns a request's key.
    pub(super) fn key<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[LEN + self.extras..LEN + self.extras + self.key]
    }

    /// Returns a number of four bytes in the extras.
    pub(super) fn small(&self, head: &[u8], at: usize) -> u32 {
        let bytes = self.extras(head).get(at..).and_then(|rest| rest.first_chunk::<4>());
        u32::from_be_bytes(*bytes.unwrap_or(&[0; 4]))
    }

    /// Returns a number of eight bytes in the extras.
    pub(super) fn large(&self, head: &[u8], at: usize) -> u64 {
        let bytes = self.extras(head).get(at..).and_then(|rest| rest.first_chunk::<8>());
        u64::from_be_bytes(*bytes.unwrap_or(&[0; 8]))
    }
}

/// Appends the packet of a `Delete`.
pub(super) fn push_delete(key: &[u8], out: &mut Vec<u8>) {
    let mut bytes = [0u8; LEN];
    (bytes[0], bytes[1]) = (REQUEST, DELETE);
    bytes[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    bytes[8..12].copy_from_slice(&(key.len() as u32).to_be_bytes());
    out.extend_from_slice(&bytes);
    out.extend_from_slice(key);
}

/// The fields of an answer's header beyond those copied from the request's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) key: usize,
    pub(super) extras: usize,
    pub(super) total: usize,
    pub(super) cas: u64,
}

impl Reply {
    /// Appends the header.
    pub(super) fn push(&self, opcode: u8, opaque: [u8; 4], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes(opcode, opaque));
    }

    /// Returns the header's bytes.
    pub(super) fn bytes(&self, opcode: u8, opaque: [u8; 4]) -> [u8; LEN] {
        let mut bytes = [0u8; LEN];
        bytes[0] = RESPONSE;
        bytes[1] = opcode;
        bytes[2..4].copy_from_slice(&(self.key as u16).to_be_bytes());
        bytes[4] = self.extras as u8;
        bytes[6..8].copy_from_slice(&self.status.to_be_bytes());
        bytes[8..12].copy_from_slice(&(self.total as u32).to_be_bytes());
        bytes[12..16].copy_from_slice(&opaque);
        bytes[16..].copy_from_slice(&self.cas.to_be_bytes());
        bytes
    }
}
