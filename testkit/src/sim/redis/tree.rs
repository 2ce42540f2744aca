//! Replies of every shape, for commands whose replies the proxy does not interpret: errors inside,
//! nested and long replies.

use crate::random::Random;
use crate::wire::resp::{put_array, put_bulk, put_null};

/// Makes a random reply that contains the number of its request, so that it fits no other.
pub fn grow(random: &mut Random, proto_version: u8, wish: u32, long: bool) -> Vec<u8> {
    let mut out = Vec::new();
    if proto_version == 3 && random.permille(50) {
        out.extend_from_slice(b"|1\r\n+ttl\r\n:3600\r\n");
    }
    let count = match random.below(12) {
        0 if long => random.range(200, 2_000),
        0..3 => random.range(10, 60),
        _ => random.range(0, 5),
    };
    put_array(&mut out, count + 1);
    put_bulk(&mut out, wish.to_string().as_bytes());
    for _ in 0..count {
        // Depth is cheap, but a long reply of long replies is not.
        let depth = if count > 60 { 0 } else { 3 };
        let long = long && count < 6;
        leaf_or_more(random, proto_version, depth, long, &mut out);
    }
    out
}

fn leaf_or_more(
    random: &mut Random,
    proto_version: u8,
    depth: usize,
    long: bool,
    out: &mut Vec<u8>,
) {
    if depth == 0 || random.permille(600) {
        return leaf(random, proto_version, long, out);
    }
    let count = random.range(0, 3);
    let kind = if proto_version == 3 { *random.pick(b"*~%") } else { b'*' };
    out.extend_from_slice(format!("{}{count}\r\n", char::from(kind)).as_bytes());
    let elements = if kind == b'%' { 2 * count } else { count };
    for _ in 0..elements {
        leaf_or_more(random, proto_version, depth - 1, long, out);
    }
}

fn leaf(random: &mut Random, proto_version: u8, long: bool, out: &mut Vec<u8>) {
    const TWO: &[&str] = &[
        ":-7\r\n",
        ":9223372036854775807\r\n",
        "+\r\n",
        "+fine words\r\n",
        "-ERR in the middle\r\n",
        "-WRONGTYPE Operation against a key\r\n",
        "$0\r\n\r\n",
        "$10\r\n\r\n-ERR x\r\n\r\n",
        "*-1\r\n",
        "*0\r\n",
    ];
    const THREE: &[&str] = &[
        "#t\r\n",
        "#f\r\n",
        ",1.5\r\n",
        ",inf\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "=9\r\ntxt:hello\r\n",
        "!5\r\nERR x\r\n",
        "~0\r\n",
        "%0\r\n",
        "|1\r\n+key\r\n+value\r\n:3\r\n",
    ];
    match random.below(6) {
        0 => put_null(out, proto_version),
        1 if long => put_bulk(out, &vec![b'b'; random.range(3_000, 9_000)]),
        1 => put_bulk(out, &vec![b'b'; random.below(80)]),
        2 | 3 if proto_version == 3 => out.extend_from_slice(random.pick(THREE).as_bytes()),
        _ => out.extend_from_slice(random.pick(TWO).as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::resp::{THREE, TWO, value};

    #[test]
    fn what_grows_is_one_value() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let proto_version = 2 + (seed % 2) as u8;
            let reply = grow(&mut random, proto_version, 7, seed % 3 == 0);
            let read = value(&reply, if proto_version == 3 { THREE } else { TWO });
            assert!(read == Ok(((), reply.len())), "{}", String::from_utf8_lossy(&reply));
        }
    }
}
