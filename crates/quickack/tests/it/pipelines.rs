//! Clients that write a whole pipeline before they read an answer: blocking libraries do, and a
//! server that stands alone serves them.

mod clients;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use testkit::process::{DEADLINE, Family, Redis, Speaker, wait_until};
use testkit::wire::binary::{GETK, GETKQ, NOOP, Packet, REPLY};
use testkit::wire::resp::{Reply, command};

use super::harness;

/// More requests than the buffers of all sockets on the way hold, and more answers.
const MANY: usize = 200_000;
const BYTES_MIN: usize = 20_000_000;

fn key() -> String {
    "k".repeat(100)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time");
    stream.set_write_timeout(Some(DEADLINE)).expect("a time");
    stream
}

/// Writes a request so many times, and reads as many answers then.
#[track_caller]
fn writes_first(address: SocketAddr, request: &[u8], answer: &[u8]) {
    assert!(request.len() * MANY > BYTES_MIN && answer.len() * MANY > BYTES_MIN);
    let mut stream = connect(address);
    stream.write_all(&request.repeat(MANY)).expect("it is read although it does not read");
    reads(&mut stream, answer);
}

/// As `writes_first`, with one request behind them that is answered otherwise: quiet ones are not
/// answered before it is.
#[track_caller]
fn floods_first(address: SocketAddr, [request, last]: [&[u8]; 2], [answer, end]: [&[u8]; 2]) {
    let mut stream = connect(address);
    stream.write_all(&[&request.repeat(MANY), last].concat()).expect("it is read");
    reads(&mut stream, answer);
    let mut told = vec![0; end.len()];
    stream.read_exact(&mut told).expect("the last answer");
    assert!(told == end, "{told:?}");
}

#[track_caller]
fn reads(stream: &mut TcpStream, answer: &[u8]) {
    let (mut buffer, expected) = (vec![0; answer.len() * 1_000], answer.repeat(1_000));
    for _ in 0..MANY / 1_000 {
        stream.read_exact(&mut buffer).expect("an answer to each");
        assert!(buffer == expected, "each is its own");
    }
}

#[test]
fn a_client_of_memcached_that_writes_before_it_reads_has_its_answers() {
    let (_memcached, quickack) = harness::field(1, &[], &["timeout: 20s"]);
    let (key, value) = (key(), "v".repeat(100));
    quickack.client().ask(&format!("set {key} 0 0 100\r\n{value}\r\n"), "STORED\r\n");
    let classic = format!("VALUE {key} 0 100\r\n{value}\r\nEND\r\n");
    writes_first(quickack.address(), format!("get {key}\r\n").as_bytes(), classic.as_bytes());
    let meta = format!("VA 100\r\n{value}\r\n");
    writes_first(quickack.address(), format!("mg {key} v\r\n").as_bytes(), meta.as_bytes());
    // Only the cas number, which is a part of each answer, is not known.
    let request = Packet { key: key.as_bytes(), ..Packet::new(GETK, 0) };
    let extras: &[u8] = &[0; 4];
    let shape = Packet { magic: REPLY, extras, value: value.as_bytes(), ..request };
    let mut stream = connect(quickack.address());
    stream.write_all(&request.bytes()).expect("it reads");
    let mut answer = shape.bytes();
    stream.read_exact(&mut answer).expect("it answers");
    writes_first(quickack.address(), &request.bytes(), &answer);
    // Quiet floods: `getkq` and `noop`, `mg` with `q` and `mn`.
    let (answer, _) = Packet::read(&answer).expect("it is whole");
    let quiet = [request, answer].map(|packet| Packet { code: GETKQ, ..packet }.bytes());
    let noop = Packet::new(NOOP, 0);
    let noop = [noop, Packet { magic: REPLY, ..noop }].map(|packet| packet.bytes());
    floods_first(quickack.address(), [&quiet[0], &noop[0]], [&quiet[1], &noop[1]]);
    let request = format!("mg {key} v q\r\n");
    let meta = [meta.as_bytes(), b"MN\r\n"];
    floods_first(quickack.address(), [request.as_bytes(), b"mn\r\n"], meta);
}

#[test]
fn a_client_of_redis_that_writes_before_it_reads_has_its_answers() {
    let redis = Redis::start(Family::Redis70);
    let quickack = super::redis::with_workers(1, &[redis.address], &["timeout: 20s"]);
    let (key, value) = (key(), "v".repeat(100));
    let set = Speaker::connect(redis.address).ask(&["SET", &key, &value]);
    assert_eq!(set, Reply::Simple("OK".into()));
    let answer = format!("$100\r\n{value}\r\n");
    let request = command(&["GET", &key]);
    writes_first(quickack.address(), &request, answer.as_bytes());
}

#[test]
fn who_writes_and_never_reads_is_closed_with_a_line_in_the_log_before_memcached() {
    let pool = ["client_buffer_max: 1m", "timeout_write: 1s"];
    let (_memcached, quickack) = harness::field(1, &[], &pool);
    let value = "v".repeat(100);
    quickack.client().ask(&format!("set k 0 0 100\r\n{value}\r\n"), "STORED\r\n");
    let mut stream = connect(quickack.address());
    let requests = "get k\r\n".repeat(10_000).into_bytes();
    let error = loop {
        match stream.write_all(&requests) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    let is_closed = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind());
    assert!(is_closed, "{error}: nobody has ended it");
    wait_until("the log says why", || {
        let text = quickack.process.stderr_text();
        text.contains("(client_buffer_max)") && text.contains(", 127.0.0.1, is closed: ")
    });
    assert_eq!(harness::stats(&quickack)["pools"][0]["clients_unread_total"], 1);
    quickack.client().ask("get k\r\n", &format!("VALUE k 0 100\r\n{value}\r\nEND\r\n"));
}

/// The proxy's own answers are no others.
#[test]
fn a_client_that_pings_before_it_reads_has_its_answers_from_redis_and_from_quickack() {
    let redis = Redis::start(Family::Redis70);
    let quickack = super::redis::with_workers(2, &[redis.address], &["timeout: 20s"]);
    for address in [redis.address, quickack.address()] {
        let mut stream = connect(address);
        stream.write_all(&command(&["PING"]).repeat(500_000)).expect("it is read");
        let mut told = vec![0; 7 * 500_000];
        stream.read_exact(&mut told).expect("an answer to each");
        assert!(told == b"+PONG\r\n".repeat(500_000));
    }
}
