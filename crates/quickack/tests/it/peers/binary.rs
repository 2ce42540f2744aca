//! Scenarios of binary, together with text, with real memcacheds and with the embedded cache.

use std::io::Read;

use testkit::process::{Client, Memcached, Quickack};
use testkit::wire::binary::{GETKQ, NOOP, Packet, REPLY};

use super::super::QUICKACK;
use super::field;

fn packet(opcode: u8, opaque: u32, key: &[u8]) -> Vec<u8> {
    Packet { key, ..Packet::new(opcode, opaque) }.bytes()
}

const TOUCH: u8 = 0x1c;

/// One packet in one segment: the first read gets everything.
#[test]
fn five_hundred_silent_misses_over_four_memcacheds_are_one_packet() {
    let (memcacheds, quickack) = field(4, &[]);
    let mut client = quickack.client();
    for round in 0..20 {
        let mut request = Vec::new();
        for n in 0..500 {
            request.extend(packet(GETKQ, n, format!("missing{round}-{n}").as_bytes()));
        }
        request.extend(packet(NOOP, 0xfeed_0000 + round, b""));
        client.send(&request);
        let mut reply = [0; 1000];
        let len = client.stream.read(&mut reply).expect("an answer in time");
        let expected = Packet { magic: REPLY, ..Packet::new(NOOP, 0xfeed_0000 + round) };
        assert_eq!(reply[..len], expected.bytes());
    }
    for memcached in &memcacheds {
        assert!(memcached.stat("get_misses") > 1_000, "the ring leaves a server out");
    }
}

/// Runs a scenario with memcached itself, quickack in front of it, and quickack in front of the
/// embedded cache.
pub fn everywhere(story: impl Fn(&dyn Fn() -> Client)) {
    let memcached = Memcached::start();
    story(&|| memcached.client());
    memcached.client().ask("flush_all\r\n", "OK\r\n");
    let quickack = super::super::quickack(&[memcached.address], &[]);
    story(&|| quickack.client());
    let embedded = "alpha:\n  listen: 127.0.0.1:0\n  servers: [embedded]\n";
    let quickack = Quickack::start(QUICKACK, embedded);
    story(&|| quickack.client());
}

/// The right to renew a stale item goes to one meta client; a client that only touches it does not
/// take it.
#[test]
fn a_binary_touch_does_not_take_the_win_of_a_stale_item() {
    everywhere(|connect| {
        let (mut text, mut binary) = (connect(), connect());
        text.ask("ms k 1\r\nx\r\nmd k I\r\n", "HD\r\nHD\r\n");
        let extras = &100u32.to_be_bytes();
        binary.send(Packet { extras, key: b"k", ..Packet::new(TOUCH, 7) }.bytes());
        let mut reply = [0; 28];
        binary.stream.read_exact(&mut reply).expect("an answer in time");
        assert_eq!(&reply[..8], b"\x81\x1c\0\0\x04\0\0\0");
        text.ask("mg k v t\r\n", "VA 1 t100 X W\r\nx\r\n");
        connect().ask("mg k v t\r\n", "VA 1 t100 Z X\r\nx\r\n");
    });
}

/// The same for a key of arbitrary bytes, which text can name only in base64.
#[test]
fn a_stale_item_under_a_key_of_bytes_is_won_once() {
    everywhere(|connect| {
        let mut text = connect();
        // "a", a line break, "b".
        text.ask("ms YQ0KYg== 1 b\r\nx\r\nmd YQ0KYg== b I\r\n", "HD\r\nHD\r\n");
        text.ask("mg YQ0KYg== b v\r\n", "VA 1 X W\r\nx\r\n");
        connect().ask("mg YQ0KYg== b v\r\n", "VA 1 Z X\r\nx\r\n");
        text.ask("ms YQ0KYg== 1 b\r\ny\r\n", "HD\r\n");
        let mut binary = connect();
        binary.send(packet(0x00, 9, b"a\r\nb"));
        let mut reply = [0; 29];
        binary.stream.read_exact(&mut reply).expect("an answer in time");
        assert_eq!((&reply[6..8], reply[28]), (&b"\0\0"[..], b'y'));
    });
}
