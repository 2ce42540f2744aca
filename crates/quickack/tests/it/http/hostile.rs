//! Clients that ask wrongly, slowly, too much, or do not read. The others are served.

use std::io::{Read, Write};
use std::net::TcpStream;

use testkit::process::{Facts, wait_until};

use super::client::{Connection, try_get};
use super::*;

fn embedded(servers: usize) -> Quickack {
    let mut text = String::from("global:\n  http: 127.0.0.1:0\nalpha:\n  listen: 127.0.0.1:0\n");
    text.push_str("  servers:\n");
    // Nobody is asked for anything.
    (0..servers).for_each(|n| text.push_str(&format!("  - 127.0.0.1:1:1 server-{n}\n")));
    Quickack::start(QUICKACK, &text)
}

const GET: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn requests_are_answered_by_the_rules() {
    let quickack = embedded(1);
    let http = address(&quickack);
    let ask = |request: &str| {
        let mut connection = Connection::open(http);
        connection.send(request);
        connection.answer(request.starts_with("HEAD")).expect("an answer")
    };
    wait_until("a worker serves", || ask(GET).body == "healthy\n");
    let head = ask(&GET.replace("GET", "HEAD"));
    assert_eq!((head.status, &*head.fields["content-length"]), (200, "8"));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
        let page = ask(&GET.replace("GET", method));
        assert_eq!((page.status, &*page.fields["allow"]), (405, "GET, HEAD"), "{method}");
    }
    assert_eq!(ask(&GET.replace("/healthz", "/admin/reload")).status, 404);
    assert_eq!(ask(&GET.replace("/healthz", "/healthz?x=y")).status, 200);
    assert!(ask(&GET.replace("/healthz", "/")).body.contains("<title>quickack</title>"));
    assert!(ask(&GET.replace("/healthz", "/no-such-page")).body.contains("/metrics"));
    let get = |field: &str| format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n");
    for (request, status) in [
        (get("Content-Length: 5") + "hello", 413),
        (get("Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n", 413),
        (get(&format!("X: {}", "x".repeat(10_000))), 431),
        ("GET / HTTP/1.1\r\n\r\n".to_string(), 400),
        ("get a\r\n\r\n".to_string(), 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_string(), 505),
        ("\u{16}\u{3}\u{1}\r\n\r\n".to_string(), 400),
    ] {
        let mut connection = Connection::open(http);
        connection.send(&request);
        let page = connection.answer(false).expect("an answer");
        assert_eq!((page.status, &*page.fields["connection"]), (status, "close"), "{request}");
        connection.reader.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
        assert!(connection.is_closed(), "{request}");
    }
}

#[test]
fn a_connection_is_kept_and_its_requests_are_answered_in_order() {
    let quickack = embedded(1);
    let http = address(&quickack);
    let mut connection = Connection::open(http);
    // It is not healthy before its worker has answered once.
    wait_until("a worker serves", || {
        connection.send(GET);
        connection.answer(false).expect("an answer").status == 200
    });
    let paths = ["/healthz", "/no-such-page", "/", "/stats.json"];
    for _ in 0..100 {
        let all: Vec<String> = paths.iter().map(|path| GET.replace("/healthz", path)).collect();
        connection.send(all.concat());
        let pages: Vec<_> = paths.iter().map(|_| connection.answer(false).unwrap()).collect();
        let statuses: Vec<u16> = pages.iter().map(|page| page.status).collect();
        assert_eq!(statuses, [200, 404, 200, 200]);
        assert!(pages[3].body.starts_with('{') && pages[0].body == "healthy\n");
    }
    let old = "GET /healthz HTTP/1.0\r\n\r\n";
    let kept = "GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    connection.send([kept, old].concat());
    assert_eq!(connection.answer(false).unwrap().fields["connection"], "keep-alive");
    assert_eq!(connection.answer(false).unwrap().fields["connection"], "close");
    connection.reader.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    assert!(connection.is_closed());
    // One that sends nothing more is answered.
    let mut half = Connection::open(http);
    half.send(GET);
    half.reader.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(half.answer(false).unwrap().body, "healthy\n");
    assert!(half.is_closed());
}

/// Of 64 clients, of as many that were told that there is no place, and the process's own.
const DESCRIPTORS_MAX: usize = 64 + 64 + 16;

/// Whoever keeps a place with half a request, or with none, gives way.
#[test]
fn clients_that_send_nothing_or_half_a_request_keep_nobody_out() {
    let quickack = embedded(1);
    let http = address(&quickack);
    for first in ["", "GET /metrics HTTP/1.1\r\nHo"] {
        let mut slow: Vec<TcpStream> = Vec::new();
        for _ in 0..300 {
            let mut stream = testkit::process::connect(http);
            stream.write_all(first.as_bytes()).unwrap();
            slow.push(stream);
        }
        wait_until("a client is served", || {
            try_get(http, "/healthz").is_some_and(|page| page.status == 200)
        });
        let process = Facts::of([running(&quickack)]);
        let descriptors = process.descriptors();
        assert!(descriptors <= DESCRIPTORS_MAX, "{descriptors} descriptors");
    }
}

/// Each takes a page of a megabyte and does not read it.
#[test]
fn clients_that_do_not_read_keep_nobody_out_and_hold_no_more_than_a_bound() {
    let quickack = embedded(400);
    let http = address(&quickack);
    let len = page(&quickack, "/metrics").len();
    assert!(len > 1 << 20, "{len}");
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..300 {
        let mut stream = testkit::process::connect(http);
        stream.write_all(GET.replace("/healthz", "/metrics").as_bytes()).unwrap();
        slow.push(stream);
    }
    wait_until("a client is served", || {
        try_get(http, "/healthz").is_some_and(|page| page.status == 200)
    });
    let process = Facts::of([running(&quickack)]);
    let descriptors = process.descriptors();
    assert!(descriptors <= DESCRIPTORS_MAX, "{descriptors} descriptors");
    let resident = process.status("VmRSS");
    println!("{} pages of {len} bytes: {resident} KiB resident", slow.len());
    assert!(resident < 64 * 1024, "{resident} KiB");
}

/// What comes in without end is read no further than it is answered.
#[test]
fn a_client_that_pipelines_without_reading_takes_no_memory() {
    let quickack = embedded(1);
    let http = address(&quickack);
    let stream = testkit::process::connect(http);
    stream.set_nonblocking(true).unwrap();
    let block = GET.replace("/healthz", "/metrics").repeat(1000);
    let mut sent = 0;
    let mut writer = &stream;
    wait_until("it takes no more", || match writer.write(block.as_bytes()) {
        Ok(n) => {
            sent += n;
            false
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    });
    assert_eq!(page(&quickack, "/healthz"), "healthy\n");
    let resident = Facts::of([running(&quickack)]).status("VmRSS");
    println!("{sent} bytes sent: {resident} KiB resident");
    assert!(resident < 64 * 1024, "{resident} KiB");
    // What it reads is answers and nothing else.
    let mut some = vec![0; 1 << 20];
    stream.set_nonblocking(false).unwrap();
    (&stream).read_exact(&mut some).unwrap();
    assert!(some.starts_with(b"HTTP/1.1 200 OK\r\n"));
}
