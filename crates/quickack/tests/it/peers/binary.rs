//! What binary is good for, over four memcacheds: misses that say nothing.

use std::io::Read;

use super::field;

fn packet(opcode: u8, opaque: u32, key: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(key);
    bytes
}

const GETKQ: u8 = 0x0d;
const NOOP: u8 = 0x0a;

/// One packet, and one segment: what is there at the first look is all there is.
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
        let mut expected = packet(NOOP, 0xfeed_0000 + round, b"");
        expected[0] = 0x81;
        assert_eq!(reply[..len], expected);
    }
    for memcached in &memcacheds {
        assert!(memcached.stat("get_misses") > 1_000, "the ring leaves a server out");
    }
}
