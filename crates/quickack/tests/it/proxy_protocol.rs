//! Behind a balancer: only permitted addresses may send a PROXY header, and a balancer's health
//! check adds no line to the log.

use std::io::{Read, Write};
use std::net::TcpStream;

use testkit::process::{Client, Quickack};
use testkit::wire::binary::{self, Head};

use super::harness;

const V1: &[u8] = b"PROXY TCP4 203.0.113.7 203.0.113.8 56324 11211\r\n";
const UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn v2(command: u8, addresses: &[u8]) -> Vec<u8> {
    let len = (addresses.len() as u16).to_be_bytes();
    [SIGNATURE, &[0x20 | command, 0x11], &len, addresses].concat()
}

fn headers() -> Vec<Vec<u8>> {
    let addresses = [203, 0, 113, 7, 203, 0, 113, 8, 0xdc, 4, 0x2b, 0xcb];
    vec![V1.to_vec(), UNKNOWN.to_vec(), v2(1, &addresses), v2(0, &[])]
}

fn field(from: &str) -> (testkit::process::Memcached, Quickack) {
    harness::field(2, &[], &[&format!("proxy_protocol: {from}")])
}

#[test]
fn a_header_is_read_whole_or_in_pieces_before_memcached() {
    let (_memcached, quickack) = field("from [127.0.0.0/8]");
    for header in headers() {
        for len in [1, 7, header.len()] {
            let mut client = quickack.client();
            for piece in header.chunks(len) {
                client.send(piece);
            }
            client.ask("get a\r\n", "END\r\n");
            client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
            client.ask("delete a\r\n", "DELETED\r\n");
        }
        // In one write with its first request.
        let mut client = quickack.client();
        client.send([&header[..], b"get a\r\n"].concat());
        client.expect("END\r\n");
    }
}

/// The bytes that tell in which protocol it reads were read with the header.
#[test]
fn a_client_too_many_reads_why_in_its_own_protocol_behind_a_balancer_of_memcached() {
    let pool = ["proxy_protocol: from [127.0.0.0/8]", "client_connections: 1"];
    let (_memcached, quickack) = harness::field(1, &[], &pool);
    let mut served = quickack.client();
    served.send([V1, b"get a\r\n"].concat());
    served.expect("END\r\n");
    let asks = Head { magic: binary::REQUEST, code: binary::NOOP, opaque: 7, ..Head::default() };
    let mut client = quickack.client();
    client.send([V1, &asks.bytes()].concat());
    let mut reply = Vec::new();
    client.stream.read_to_end(&mut reply).expect("no reset");
    let head = Head::read(&reply).expect("a packet");
    assert_eq!((head.magic, head.opaque), (binary::REPLY, 7));
}

#[test]
fn who_may_not_send_a_header_before_memcached_is_not_believed() {
    let (_memcached, quickack) = field("from [10.0.0.0/8]");
    quickack.client().ask("get a\r\n", "END\r\n");
    let mut client = quickack.client();
    client.send(V1);
    assert!(client.line().contains("ERROR"));
}

#[test]
fn what_is_no_header_where_one_must_be_is_not_served_before_memcached() {
    let (memcached, quickack) = field("from [127.0.0.0/8]");
    for wrong in ["get a\r\n", "PROXY TCP4 nonsense\r\n", "PROXY"] {
        let mut client = quickack.client();
        client.send(wrong);
        client.stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
        let answer = client.rest();
        assert!(!answer.contains("END"), "{wrong:?}: {answer}");
    }
    assert_eq!(memcached.stat("cmd_get"), 0);
}

/// With a header or without, cut off anywhere: a health check causes no log line.
#[test]
fn a_balancer_that_connects_and_leaves_costs_no_line_before_memcached() {
    let (_memcached, quickack) = field("from [127.0.0.0/8]");
    let (_other, plain) = harness::field(2, &[], &[]);
    let before = [quickack.process.stderr_text(), plain.process.stderr_text()];
    for _ in 0..20 {
        for quickack in [&quickack, &plain] {
            drop(TcpStream::connect(quickack.address()));
            // Closed with a reset, as some balancers do.
            let stream = TcpStream::connect(quickack.address()).expect("somebody accepts");
            rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO))
                .expect("the option exists");
        }
        for header in headers() {
            for len in [5, header.len()] {
                let mut stream = TcpStream::connect(quickack.address()).expect("somebody accepts");
                stream.write_all(&header[..len]).expect("it is connected");
            }
        }
    }
    let mut client = Client::connect(quickack.address());
    client.send([V1, b"get a\r\n"].concat());
    client.expect("END\r\n");
    plain.client().ask("get a\r\n", "END\r\n");
    for (quickack, before) in [&quickack, &plain].into_iter().zip(before) {
        testkit::process::wait_until("the balancer's connections are gone", || {
            harness::clients(quickack) <= 1
        });
        assert_eq!(quickack.process.stderr_text(), before);
    }
}
