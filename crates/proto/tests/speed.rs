//! Prints what one parse costs. The figures are for reading; the bounds asserted are wide, since a
//! busy machine must not fail a build. Run it as
//! `cargo test --release -p proto --test speed -- --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use proto::{Ask, Parsed, Protocol, Resume, Span};

const CALLS: u32 = 20_000;

/// Nanoseconds a call: the best of many short runs, so that a neighbour's work does not count.
fn cost(mut call: impl FnMut()) -> f64 {
    let mut run = || {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..20).map(|_| run()).fold(f64::MAX, f64::min)
}

fn request(protocol: &dyn Protocol, input: &[u8]) -> f64 {
    let mut keys: Vec<Span> = Vec::with_capacity(128);
    cost(|| {
        let parsed =
            protocol.parse_request(black_box(input), &mut Resume::default(), black_box(&mut keys));
        assert!(matches!(black_box(parsed), Parsed::Complete(_)));
    })
}

fn reply(protocol: &dyn Protocol, word: &str, input: &[u8]) -> f64 {
    let row = protocol.commands().iter().position(|row| row.name == word).expect("a command");
    let ask = Ask { command: row as u8 };
    cost(|| {
        let parsed = protocol.upstream().parse_reply(black_box(ask), black_box(input));
        assert!(matches!(black_box(parsed), Parsed::Complete(_)));
    })
}

#[test]
fn a_parse_is_cheap() {
    let text = proto::protocol("memcached").expect("a protocol");
    let many = format!("get {}\r\n", vec!["key:12345678"; 100].join(" "));
    let rows = [
        ("get, key of 12", request(text, b"get key:12345678\r\n")),
        (
            "get, with 1 KiB after it",
            request(text, &[&b"get key:12345678\r\n"[..], &[b'g'; 1024]].concat()),
        ),
        ("get, 100 keys of 12", request(text, many.as_bytes())),
        ("set, head of 30", request(text, b"set key:1234567890 0 3600 100\r\n")),
        ("incr", request(text, b"incr key:12345678 1\r\n")),
        ("VALUE", reply(text, "get", b"VALUE key:12345678 0 100\r\n")),
        ("END", reply(text, "get", b"END\r\n")),
        ("STORED", reply(text, "set", b"STORED\r\n")),
    ];
    for (what, ns) in rows {
        println!("{what:28} {ns:8.1} ns");
        assert!(ns < 100_000.0, "{what} takes {ns} ns");
    }
}
