//! TERM and INT: nobody new is accepted, what was asked is answered, and the exit status is 0.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::DEADLINE;

use super::quickack;

/// A server that answers a get when it is told to, and says when it has been asked.
struct Hesitant {
    address: SocketAddr,
    asked: mpsc::Receiver<String>,
    answer: mpsc::Sender<()>,
}

impl Hesitant {
    fn start() -> Hesitant {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (say_asked, asked) = mpsc::channel();
        let (answer, may_answer) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut output = stream.try_clone().expect("a socket can be had twice");
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if line == "version" {
                        output.write_all(b"VERSION 1.6.18\r\n").expect("the proxy reads");
                        continue;
                    }
                    let told = say_asked.send(line).is_ok() && may_answer.recv().is_ok();
                    if !told || output.write_all(b"END\r\n").is_err() {
                        return;
                    }
                }
            }
        });
        Hesitant { address, asked, answer }
    }
}

fn wait_until_nobody_accepts(address: SocketAddr) {
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < DEADLINE, "it goes on accepting");
        thread::sleep(Duration::from_millis(2));
    }
}

fn check_answers_what_was_asked(signal: Signal) {
    let server = Hesitant::start();
    let mut quickack = quickack(&[server.address], &["timeout: 10000"]);
    let (mut busy, mut idle) = (quickack.client(), quickack.client());
    idle.send("version\r\n");
    assert!(idle.line().starts_with("VERSION "));
    busy.send("get a\r\n");
    assert_eq!(server.asked.recv_timeout(DEADLINE).as_deref(), Ok("get a"));
    quickack.process.signal(signal);
    wait_until_nobody_accepts(quickack.address());
    assert_eq!(idle.rest(), "");
    server.answer.send(()).expect("the server waits for it");
    assert_eq!(busy.rest(), "END\r\n");
    let status = quickack.process.wait_for_end();
    assert_eq!(status.code(), Some(0), "{}", quickack.process.said());
}

#[test]
fn term_answers_what_was_asked_and_exits_with_0() {
    check_answers_what_was_asked(Signal::TERM);
}

#[test]
fn int_answers_what_was_asked_and_exits_with_0() {
    check_answers_what_was_asked(Signal::INT);
}

#[test]
fn term_is_not_held_up_by_a_server_that_never_answers() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
    let address = silent.local_addr().expect("a bound listener has an address");
    let mut quickack = quickack(&[address], &["timeout: 300"]);
    let mut client = quickack.client();
    client.send("get a\r\nversion\r\n");
    // It has been read when the link has been asked for.
    let (_link, _) = silent.accept().expect("the proxy connects");
    quickack.process.signal(Signal::TERM);
    let reply = client.rest();
    assert!(reply.starts_with("SERVER_ERROR "), "{reply}");
    assert!(reply.contains("VERSION "), "{reply}");
    assert_eq!(quickack.process.wait_for_end().code(), Some(0));
}

/// Nor by a client that never reads what it asked for.
#[test]
fn term_is_not_held_up_by_a_client_that_does_not_read() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
    let address = listener.local_addr().expect("a bound listener has an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut output = stream.try_clone().expect("a socket can be had twice");
            let value = "x".repeat(1_000_000);
            let reply = format!("VALUE big 0 1000000\r\n{value}\r\nEND\r\n");
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let reply = if line == "version" { "VERSION 1.6.18\r\n" } else { &reply };
                if output.write_all(reply.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    let mut quickack = quickack(&[address], &["timeout: 300"]);
    let mut client = quickack.client();
    client.ask("get big\r\n", "VALUE big 0 1000000\r\n");
    client.send("get big\r\n".repeat(200));
    quickack.process.signal(Signal::TERM);
    assert_eq!(quickack.process.wait_for_end().code(), Some(0), "{}", quickack.process.said());
}
