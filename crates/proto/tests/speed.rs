//! Prints the cost of one parse. The figures are for reading; the asserted bounds are wide, since a
//! busy machine must not fail a build. Run it as
//! `cargo test --release -p proto --test speed -- --nocapture`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use proto::{Adapted, Ask, Asked, Class, Parsed, Progress, Protocol, Resume, Span};

const CALLS: u32 = 20_000;

/// Returns nanoseconds a call: the best of many short runs, so that other load does not count.
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
    let ask = Ask { command: row as u16 };
    cost(|| {
        let parsed = protocol.upstream().parse_reply(
            black_box(ask),
            &mut Progress::default(),
            black_box(input),
        );
        assert!(matches!(black_box(parsed), Parsed::Complete(_)));
    })
}

/// Returns the cost of adapting a request to a server that has meta, and of rendering its reply.
fn way(protocol: &dyn Protocol, input: &[u8], said: &[u8]) -> (f64, f64) {
    let mut keys = Vec::new();
    let parsed = protocol.parse_request(input, &mut Resume::default(), &mut keys);
    let Parsed::Complete(request) = parsed else { panic!("{parsed:?}") };
    let head = &input[..request.head as usize];
    let mut ask = Ask::default();
    let mut out = Vec::with_capacity(4096);
    let there = cost(|| {
        out.clear();
        match request.class {
            Class::Fetch { ask: asked, .. } => {
                ask = asked;
                protocol.upstream().push_fetch(black_box(keys[0]).of(head), &mut out);
            }
            _ => {
                let capabilities = Some(proto::memcached::META);
                let Adapted::Ask(asked) = protocol.adapt(black_box(&request), head, capabilities)
                else {
                    panic!("it can be carried");
                };
                ask = asked;
                protocol.write_head(&request, head, &keys, ask, &mut out);
            }
        }
    });
    let parsed = protocol.upstream().parse_reply(ask, &mut Progress::default(), said);
    let Parsed::Complete(item) = parsed else { panic!("{parsed:?}") };
    let (command, quiet) = (request.command, request.quiet);
    let asked = Asked { command, quiet, ask, head, at: 0, next: None };
    let back = cost(|| {
        out.clear();
        black_box(protocol.render(&asked, black_box(&item), said, &mut out));
    });
    (there, back)
}

/// A packet with a key of twelve bytes.
fn packet(opcode: u8, extras: &[u8], body: &[u8]) -> Vec<u8> {
    let total = (extras.len() + 12 + body.len()) as u32;
    let mut out = vec![0x80, opcode, 0, 12, extras.len() as u8, 0, 0, 0];
    out.extend_from_slice(&total.to_be_bytes());
    out.extend_from_slice(&[0; 12]);
    [&out[..], extras, b"key:12345678", body].concat()
}

/// Makes a Redis request.
fn array(words: &[&str]) -> Vec<u8> {
    let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    let bulks: String = words.iter().map(bulk).collect();
    format!("*{}\r\n{bulks}", words.len()).into_bytes()
}

/// Makes an array of this many Redis values.
fn values(count: usize) -> Vec<u8> {
    let value = format!("$100\r\n{}\r\n", "v".repeat(100));
    format!("*{count}\r\n{}", value.repeat(count)).into_bytes()
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
    let binary = text.spoken(0x80);
    let (get, set) =
        (packet(0x00, b"", b""), packet(0x01, &[0, 0, 0, 7, 0, 0, 14, 16], &[b'v'; 100]));
    let mg = b"mg key:12345678 v f c k O1234\r\n";
    let ms = b"ms key:12345678 100 T3600 F7 c\r\n";
    let newer = [
        ("mg", request(text, mg)),
        ("mg, v alone", request(text, b"mg key:12345678 v\r\n")),
        ("ms", request(text, ms)),
        ("binary Get", request(binary, &get)),
        ("binary Set", request(binary, &set)),
        ("VA", reply(text, "mg", b"VA 100 f7 c123456 kkey:12345678 O1234\r\n")),
        ("HD", reply(text, "ms", b"HD c123456\r\n")),
    ];
    let value = b"VALUE key:12345678 7 100 123456\r\n";
    let redis = proto::protocol("redis").expect("a protocol");
    let one = array(&["GET", "key:12345678"]);
    let words: Vec<String> = (0..100).map(|number| format!("key:{number:08}")).collect();
    let mget: Vec<&str> = ["MGET"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let resp = [
        ("GET, key of 12", request(redis, &one)),
        ("GET, with 1 KiB after it", request(redis, &one.repeat(32))),
        ("SET, 100 bytes", request(redis, &array(&["SET", "key:12345678", &"v".repeat(100)]))),
        ("SET, 100 KB", request(redis, &array(&["SET", "key:12345678", &"v".repeat(100_000)]))),
        ("MGET, 100 keys of 12", request(redis, &array(&mget))),
        ("ZUNIONSTORE, 3 keys", request(redis, &array(&["ZUNIONSTORE", "d", "2", "a", "b"]))),
        ("PING, inline", request(redis, b"PING\r\n")),
        ("bulk", reply(redis, "get", b"$5\r\nhello\r\n")),
        ("bulk, 100 bytes", reply(redis, "get", &values(1)[4..])),
        ("100 values, 100 bytes", reply(redis, "mget", &values(100))),
        ("OK", reply(redis, "set", b"+OK\r\n")),
    ];
    let ways = [
        ("mg, merged", way(text, mg, value)),
        ("ms", way(text, ms, b"HD c123456\r\n")),
        ("binary Get, merged", way(binary, &get, value)),
        ("binary Set", way(binary, &set, b"HD c123456\r\n")),
    ];
    for (what, ns) in rows.into_iter().chain(newer).chain(resp) {
        println!("{what:28} {ns:8.1} ns");
        assert!(ns < 100_000.0, "{what} takes {ns} ns");
    }
    check_ratios(&rows.into_iter().chain(newer).chain(resp).collect(), &ways);
}

/// The speed of a machine varies, but both sides of a ratio vary alike.
fn check_ratios(rows: &BTreeMap<&str, f64>, ways: &[(&str, (f64, f64))]) {
    let at_most = |what: &str, ns: f64, times: f64, of: &str| {
        let most = times * rows[of] + 20.0;
        assert!(ns <= most, "{what} takes {ns:.1} ns, more than {times} times {of}: {most:.1} ns");
    };
    for &(what, (there, back)) in ways {
        println!("{what:28} {there:8.1} ns there, {back:8.1} ns back");
        let parsed = what.split(',').next().expect("a name");
        at_most(&format!("{what}, there"), there, 9.0, parsed);
        at_most(&format!("{what}, back"), back, 9.0, parsed);
    }
    // The bytes after a request, or after its head, are not read …
    for (what, times, of) in [
        ("get, with 1 KiB after it", 4.0, "get, key of 12"),
        ("GET, with 1 KiB after it", 4.0, "GET, key of 12"),
        ("SET, 100 KB", 20.0, "SET, 100 bytes"),
        // … and a hundred keys cost as much as a hundred of one.
        ("get, 100 keys of 12", 300.0, "get, key of 12"),
        ("MGET, 100 keys of 12", 300.0, "GET, key of 12"),
        ("100 values, 100 bytes", 300.0, "bulk, 100 bytes"),
    ] {
        at_most(what, rows[what], times, of);
    }
}
