//! Every byte that a key may have, with real memcacheds and with the embedded cache.

use std::io::Read;

use proto::memcached::meta::base64;
use testkit::process::Client;
use testkit::wire::binary::{GET, Packet, REPLY};

use super::binary::everywhere;
use super::field;

/// The bytes at which a key or a line ends.
const ENDS: &[u8] = b" \0\r\n";

/// Keys with one byte in the first, a middle and the last place.
fn keys(byte: u8) -> [Vec<u8>; 3] {
    [0, 5, 9].map(|at| {
        let mut key = b"0123456789".to_vec();
        key[at] = byte;
        key
    })
}

fn coded(key: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    base64::push(key, &mut coded);
    coded
}

/// Sends a request in parts, and expects exactly this reply.
fn ask(client: &mut Client, request: &[&[u8]], reply: &[&[u8]]) {
    client.send(request.concat());
    expect(client, reply, request);
}

fn expect(client: &mut Client, reply: &[&[u8]], request: &[&[u8]]) {
    let expected = reply.concat();
    let mut heard = vec![0; expected.len()];
    client.stream.read_exact(&mut heard).expect("a reply in time");
    let (heard, expected) = (heard.escape_ascii(), expected.escape_ascii());
    let request = request.concat();
    assert_eq!(heard.to_string(), expected.to_string(), "{}", request.escape_ascii());
}

/// Each protocol finds whole under a key the value that text has stored there, and none under the
/// part of the key before the byte.
#[test]
fn every_byte_that_memcached_keeps_in_a_key_is_kept_in_each_protocol() {
    everywhere(|connect| {
        let (mut text, mut binary) = (connect(), connect());
        for byte in (0..=255u8).filter(|byte| !ENDS.contains(byte)) {
            for (at, key) in keys(byte).iter().enumerate() {
                let coded = &coded(key)[..];
                let value = format!("{byte:>6}{at:>6}").into_bytes();
                ask(&mut text, &[b"set ", key, b" 0 0 12\r\n", &value, b"\r\n"], &[b"STORED\r\n"]);
                let found = [&b"VALUE "[..], key, b" 0 12\r\n", &value, b"\r\nEND\r\n"];
                ask(&mut text, &[b"get ", key, b"\r\n"], &found);
                if at > 0 {
                    ask(&mut text, &[b"get ", &key[..5], b"\r\n"], &[b"END\r\n"]);
                }
                let request = Packet { key, ..Packet::new(GET, 7) }.bytes();
                binary.send(&request);
                let extras = &[0; 4];
                // Its cas is not known.
                let mut heard = vec![0; 24 + 4 + 12];
                binary.stream.read_exact(&mut heard).expect("a reply in time");
                let cas = u64::from_be_bytes(heard[16..24].try_into().expect("eight bytes"));
                let reply =
                    Packet { magic: REPLY, extras, value: &value, cas, ..Packet::new(GET, 7) };
                assert_eq!(heard, reply.bytes(), "{}", key.escape_ascii());
                let meta = [&b"VA 12 k"[..], key, b"\r\n", &value, b"\r\n"];
                ask(&mut text, &[b"mg ", key, b" k v\r\n"], &meta);
                ask(&mut text, &[b"mg ", coded, b" b v\r\n"], &[b"VA 12\r\n", &value, b"\r\n"]);
                ask(&mut text, &[b"md ", coded, b" b\r\n"], &[b"HD\r\n"]);
                ask(&mut text, &[b"gets ", key, b"\r\n"], &[b"END\r\n"]);
                each_verb_finds(&mut text, key);
            }
        }
    });
}

/// Begins and ends without the item.
fn each_verb_finds(text: &mut Client, key: &[u8]) {
    let verbs: [(&[u8], &[u8], &[u8]); 14] = [
        (b"add ", b" 0 0 1\r\n7\r\n", b"STORED\r\n"),
        (b"incr ", b" 1\r\n", b"8\r\n"),
        (b"decr ", b" 3\r\n", b"5\r\n"),
        (b"append ", b" 0 0 1\r\n0\r\n", b"STORED\r\n"),
        (b"prepend ", b" 0 0 1\r\n1\r\n", b"STORED\r\n"),
        (b"touch ", b" 0\r\n", b"TOUCHED\r\n"),
        (b"ma ", b" v\r\n", b"VA 3\r\n151\r\n"),
        (b"replace ", b" 0 0 1\r\n4\r\n", b"STORED\r\n"),
        (b"cas ", b" 0 0 1 0\r\n5\r\n", b"EXISTS\r\n"),
        (b"mg ", b" v\r\n", b"VA 1\r\n4\r\n"),
        (b"delete ", b"\r\n", b"DELETED\r\n"),
        (b"ms ", b" 1\r\n2\r\n", b"HD\r\n"),
        (b"md ", b"\r\n", b"HD\r\n"),
        (b"gat 0 ", b"\r\n", b"END\r\n"),
    ];
    for (verb, rest, reply) in verbs {
        ask(text, &[verb, key, rest], &[reply]);
    }
}

/// A key ends at a NUL, and memcached takes a CR anywhere: neither reaches a server.
#[test]
fn a_key_with_a_nul_or_a_line_end_is_refused_in_text_and_kept_in_base64() {
    let (memcacheds, quickack) = field(2, &[]);
    let mut client = quickack.client();
    for byte in [0, b'\r'] {
        for key in keys(byte) {
            const BAD: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
            ask(&mut client, &[b"get ", &key, b"\r\n"], &[BAD]);
            ask(&mut client, &[b"get a ", &key, b"x b\r\n"], &[BAD]);
            ask(&mut client, &[b"set ", &key, b" 0 0 4\r\nget \r\n"], &[BAD]);
            ask(&mut client, &[b"mg ", &key, b" v\r\n"], &[BAD]);
            let coded = &coded(&key)[..];
            ask(&mut client, &[b"ms ", coded, b" 1 b\r\nx\r\n"], &[b"HD\r\n"]);
            ask(&mut client, &[b"mg ", coded, b" b v\r\n"], &[b"VA 1\r\nx\r\n"]);
        }
    }
    assert_eq!(memcacheds.iter().map(|it| it.stat("cmd_get")).sum::<u64>(), 6);
}
