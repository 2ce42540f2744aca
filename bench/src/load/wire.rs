//! The protocols of requests and replies: memcached's classic text, its meta commands, its binary
//! packets; Redis's RESP.
//!
//! ```text
//!  text     get KEY …             VALUE KEY 0 LEN … END         a reply is known by its place
//!  meta     mg KEY k v O7         VA LEN kKEY O7                and by its opaque
//!  binary   GET, or many GETKQ    a packet a value, and a       and by its opaque: each key has
//!           and a NOOP            NOOP at the end of many       one of its own
//!  resp     GET KEY, or           $LEN value, or *N and a       by its place; a value begins
//!           MGET KEY KEY …        value or $-1 for each         with its key
//! ```

use std::ops::Range;

use testkit::wire::binary::{GET, GETKQ, Head, NOOP, REQUEST, SET};

use super::corpus::Corpus;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    #[default]
    Text,
    Meta,
    Binary,
    /// RESP2, requests as arrays.
    Resp,
}

impl Wire {
    /// Returns the suffix of a peer's name for this protocol.
    pub fn suffix(self) -> &'static str {
        match self {
            Wire::Text | Wire::Resp => "",
            Wire::Meta => " meta",
            Wire::Binary => " binary",
        }
    }

    /// Returns the bytes that end a value.
    pub fn value_end(self) -> &'static [u8] {
        match self {
            Wire::Text | Wire::Meta | Wire::Resp => b"\r\n",
            Wire::Binary => b"",
        }
    }

    /// Returns the number of opaques that one request uses.
    pub fn opaques(self, keys: u32) -> u32 {
        match self {
            Wire::Text | Wire::Resp => 0,
            Wire::Meta => 1,
            // The last opaque belongs to the NOOP.
            Wire::Binary => keys + 1,
        }
    }

    /// Appends a read of a run of keys; returns the end of its first piece if it is sent split.
    pub fn push_get(
        self,
        corpus: &Corpus,
        out: &mut Vec<u8>,
        run: Range<u32>,
        opaque: u32,
    ) -> usize {
        match self {
            Wire::Text => return corpus.push_get(out, run),
            Wire::Meta => {
                assert_eq!(run.len(), 1, "a meta read has one key");
                out.extend_from_slice(b"mg ");
                out.extend_from_slice(corpus.key(run.start));
                out.extend_from_slice(b" k v O");
                push_hex(out, opaque);
                out.extend_from_slice(b"\r\n");
            }
            Wire::Binary if run.len() == 1 => {
                push_packet(GET, opaque, 0, 0, corpus.key(run.start), out);
            }
            Wire::Binary => {
                for (at, index) in (0..).zip(run.clone()) {
                    push_quiet_get(corpus, out, index, opaque + at);
                }
                push_noop(out, opaque + run.len() as u32);
            }
            Wire::Resp if run.len() == 1 => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
                out.extend_from_slice(corpus.resp_keys(run));
            }
            Wire::Resp => {
                let head = format!("*{}\r\n$4\r\nMGET\r\n", run.len() + 1);
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(corpus.resp_keys(run));
            }
        }
        out.len()
    }

    /// Appends a set; returns the end of its first piece if it is sent split.
    pub fn push_set(self, corpus: &Corpus, out: &mut Vec<u8>, index: u32, opaque: u32) -> usize {
        match self {
            Wire::Text => return corpus.push_set(out, index),
            Wire::Meta => {
                out.extend_from_slice(b"ms ");
                out.extend_from_slice(corpus.key(index));
                out.extend_from_slice(format!(" {} O", corpus.value_len()).as_bytes());
                push_hex(out, opaque);
                out.extend_from_slice(b"\r\n");
                corpus.push_value(out, index);
                out.extend_from_slice(b"\r\n");
            }
            Wire::Binary => {
                push_packet(SET, opaque, 8, corpus.value_len(), corpus.key(index), out);
                corpus.push_value(out, index);
            }
            Wire::Resp => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
                out.extend_from_slice(corpus.resp_keys(index..index + 1));
                out.extend_from_slice(corpus.resp_head());
                corpus.push_value(out, index);
                out.extend_from_slice(b"\r\n");
            }
        }
        out.len()
    }

    /// Appends a request without effect that only gets an answer.
    pub fn push_ping(self, out: &mut Vec<u8>) -> usize {
        assert_eq!(self, Wire::Resp, "memcached knows none");
        out.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
        out.len()
    }

    /// Appends a script that gets one value. Its answer is that of the get.
    pub fn push_eval(self, corpus: &Corpus, out: &mut Vec<u8>, index: u32) -> usize {
        assert_eq!(self, Wire::Resp, "memcached knows none");
        out.extend_from_slice(
            b"*4\r\n$4\r\nEVAL\r\n$33\r\nreturn redis.call('GET', KEYS[1])\r\n$1\r\n1\r\n",
        );
        out.extend_from_slice(corpus.resp_keys(index..index + 1));
        out.len()
    }

    /// Returns a server's answer to a successful set.
    pub fn stored(self) -> &'static [u8] {
        match self {
            Wire::Resp => b"+OK\r\n",
            Wire::Text => b"STORED\r\n",
            Wire::Meta | Wire::Binary => unreachable!("servers are filled in text or in RESP"),
        }
    }
}

/// Appends a binary read that is not answered if the key is missing.
pub fn push_quiet_get(corpus: &Corpus, out: &mut Vec<u8>, index: u32, opaque: u32) {
    push_packet(GETKQ, opaque, 0, 0, corpus.key(index), out);
}

/// Appends a request that is answered after everything before it.
pub fn push_noop(out: &mut Vec<u8>, opaque: u32) {
    push_packet(NOOP, opaque, 0, 0, b"", out);
}

/// Appends the head of a request with a key, its extras, which are zeros, and the key.
fn push_packet(code: u8, opaque: u32, extras: usize, value: usize, key: &[u8], out: &mut Vec<u8>) {
    let body_len = extras + key.len() + value;
    let (key_len, extras_len) = (key.len(), extras);
    let head =
        Head { magic: REQUEST, code, key_len, extras_len, body_len, opaque, ..Head::default() };
    out.extend_from_slice(&head.bytes());
    out.extend_from_slice(&[0; 8][..extras]);
    out.extend_from_slice(key);
}

/// Appends an opaque of the meta protocol: eight digits.
fn push_hex(out: &mut Vec<u8>, opaque: u32) {
    for at in (0..8).rev() {
        let digit = (opaque >> (4 * at) & 15) as usize;
        out.push(b"0123456789abcdef"[digit]);
    }
}

/// Writes the answer to a meta request: the line before a value, or a single line.
pub fn meta_value(corpus: &Corpus, index: u32, opaque: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("VA {} k", corpus.value_len()).as_bytes());
    out.extend_from_slice(corpus.key(index));
    out.extend_from_slice(b" O");
    push_hex(out, opaque);
    out.extend_from_slice(b"\r\n");
}

pub fn meta_stored(opaque: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HD O");
    push_hex(out, opaque);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_requests_are_lines() {
        let corpus = Corpus::new(3, 14);
        let mut out = Vec::new();
        Wire::Meta.push_get(&corpus, &mut out, 2..3, 0xab);
        Wire::Meta.push_set(&corpus, &mut out, 1, 0xac);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[0], "mg key:00000002 k v O000000ab");
        assert_eq!(lines[1], "ms key:00000001 14 O000000ac");
        assert!(lines[2].starts_with("key:00000001") && lines[2].len() == 14);
    }

    #[test]
    fn resp_requests_are_arrays_of_bulk_strings() {
        let corpus = Corpus::new(3, 14);
        let mut out = Vec::new();
        Wire::Resp.push_get(&corpus, &mut out, 2..3, 0);
        Wire::Resp.push_get(&corpus, &mut out, 0..2, 0);
        Wire::Resp.push_set(&corpus, &mut out, 1, 0);
        Wire::Resp.push_ping(&mut out);
        let text = String::from_utf8(out).unwrap().replace("\r\n", " ");
        let (reads, rest) = text.split_once("SET ").unwrap();
        assert_eq!(
            reads,
            "*2 $3 GET $12 key:00000002 *3 $4 MGET $12 key:00000000 $12 key:00000001 *3 $3 "
        );
        assert!(rest.starts_with("$12 key:00000001 $14 key:00000001"), "{rest}");
        assert!(rest.ends_with(" *1 $4 PING "), "{rest}");
    }

    #[test]
    fn binary_requests_are_packets() {
        let corpus = Corpus::new(3, 14);
        let mut out = Vec::new();
        Wire::Binary.push_get(&corpus, &mut out, 0..2, 7);
        assert_eq!(out.len(), 2 * (24 + 12) + 24);
        assert_eq!(out[..24], *b"\x80\x0d\0\x0c\0\0\0\0\0\0\0\x0c\0\0\0\x07\0\0\0\0\0\0\0\0");
        assert_eq!((out[24 + 12 + 15], out[72 + 1], out[72 + 15]), (8, NOOP, 9));
        out.clear();
        Wire::Binary.push_set(&corpus, &mut out, 2, 1);
        assert_eq!(out.len(), 24 + 8 + 12 + 14);
        assert_eq!((out[1], out[4], out[11]), (SET, 8, 34));
        assert_eq!(&out[32..56], b"key:00000002key:00000002");
    }
}
