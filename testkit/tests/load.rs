//! Tests the client load with small servers, right and faulty. Finding no wrong reply proves
//! something only if the load finds wrong replies that exist.

// A test that cannot continue panics, in its helper functions as well.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use testkit::load::{Load, Options, Trust};

/// A memcached with only the commands of the load. It becomes faulty at request number `fault_at`.
struct Server {
    address: SocketAddr,
    served: Arc<AtomicU64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// One get is answered with another client's value.
    Swap,
    /// One set is acknowledged and forgotten.
    Forget,
    /// One set is answered with an error line, and may have been executed.
    Refuse,
    /// Some requests are answered with a closed connection.
    Close,
    /// All data are removed.
    Flush,
    /// One answer is sent twice.
    Twice,
}

type Shelf = Arc<Mutex<HashMap<String, (String, Vec<u8>)>>>;

impl Server {
    fn start(fault: Fault, fault_at: u64) -> Server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::new(AtomicU64::new(0));
        let (shelf, count) = (Shelf::default(), Arc::clone(&served));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shelf, count) = (Arc::clone(&shelf), Arc::clone(&count));
                thread::spawn(move || serve(&stream, &shelf, &count, (fault, fault_at)));
            }
        });
        Server { address, served }
    }
}

fn serve(stream: &TcpStream, shelf: &Shelf, count: &AtomicU64, (fault, fault_at): (Fault, u64)) {
    stream.set_nodelay(true).unwrap();
    let mut input = BufReader::new(stream);
    let mut output = stream;
    let mut line = String::new();
    // The first request of the right kind from `fault_at` on, on this connection.
    let mut done = false;
    while matches!(input.read_line(&mut line), Ok(n) if n > 0) {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let now = number >= fault_at && !done;
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut reply = Vec::new();
        let (key, is_set) = (words[1].to_string(), words[0] == "set");
        match words[0] {
            "set" => {
                let mut data = vec![0; words[4].parse::<usize>().unwrap() + 2];
                input.read_exact(&mut data).unwrap();
                if !(now && fault == Fault::Forget) {
                    shelf.lock().unwrap().insert(key.clone(), (words[2].to_string(), data));
                }
                let refused = now && fault == Fault::Refuse;
                reply =
                    if refused { b"SERVER_ERROR no\r\n".to_vec() } else { b"STORED\r\n".to_vec() };
            }
            "get" => {
                for key in &words[1..] {
                    let shelf = shelf.lock().unwrap();
                    let other = shelf.iter().find(|(other, _)| other != key);
                    let item = match (now && fault == Fault::Swap, other) {
                        (true, Some((_, item))) => Some(item),
                        _ => shelf.get(*key),
                    };
                    let Some((flags, data)) = item else { continue };
                    write!(reply, "VALUE {key} {flags} {}\r\n", data.len() - 2).unwrap();
                    reply.extend_from_slice(data);
                }
                reply.extend_from_slice(b"END\r\n");
            }
            _ => {
                let was = shelf.lock().unwrap().remove(&key).is_some();
                reply = if was { b"DELETED\r\n".to_vec() } else { b"NOT_FOUND\r\n".to_vec() };
            }
        }
        match fault {
            Fault::Close if now && number.is_multiple_of(500) => {
                return stream.shutdown(Shutdown::Both).unwrap();
            }
            Fault::Flush if now => shelf.lock().unwrap().clear(),
            Fault::Twice if now => reply.extend_from_within(..),
            _ => {}
        }
        done |= now
            && fault != Fault::Close
            && (is_set || !matches!(fault, Fault::Forget | Fault::Refuse));
        if output.write_all(&reply).is_err() {
            return;
        }
        line.clear();
    }
}

fn options(trust: Trust) -> Options {
    Options { keys: 12, depth: 3, trust, ..Options::default() }
}

/// Returns the load's result with a faulty server, or its panic message.
fn check(fault: Fault, trust: Trust) -> Result<testkit::load::Tally, String> {
    let server = Server::start(fault, 2_000);
    let load = Load::start(server.address, 5, options(trust));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        load.wait_for_requests(8_000);
        load.stop()
    }));
    outcome.map_err(|why| why.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn an_honest_server_is_believed_and_the_counts_are_its_own() {
    let server = Server::start(Fault::None, 0);
    let load = Load::start(server.address, 20, options(Trust::Whole));
    load.wait_for_requests(5_000);
    load.wait_for_everybody();
    load.pause();
    let (tally, served) = (load.tally(), server.served.load(Ordering::Relaxed));
    assert_eq!(tally.total().requests, served, "{tally}");
    assert_eq!(tally.total().gets + tally.total().updates, served);
    load.resume();
    load.wait_for_requests(1_000);
    let latencies = load.take_latencies();
    assert!(latencies.quantile(0.5) <= latencies.quantile(0.99));
    assert!(latencies.quantile(0.99) <= latencies.max() && latencies.count() > 1_000);
    let tally = load.stop();
    tally.assert_unharmed();
    assert_eq!(tally.total().connected, 20);
}

#[test]
fn a_load_keeps_to_its_rate() {
    let server = Server::start(Fault::None, 0);
    let options = Options { rate: Some(2_000), ..Options::default() };
    let load = Load::start(server.address, 50, options);
    let start = std::time::Instant::now();
    load.wait_for_requests(1_000);
    assert!(start.elapsed().as_millis() > 300, "{:?} for 1,000 of 2,000/s", start.elapsed());
    load.stop().assert_unharmed();
}

#[test]
fn what_is_wrong_is_found() {
    for fault in [Fault::Swap, Fault::Forget, Fault::Twice, Fault::Flush] {
        let said = check(fault, Trust::Whole).map(|tally| tally.to_string()).unwrap_err();
        assert!(said.starts_with("WRONG REPLY: "), "{said}");
    }
}

#[test]
fn what_may_be_gone_may_be_gone_but_not_swapped() {
    for trust in [Trust::Misses, Trust::Old] {
        check(Fault::Flush, trust).unwrap().assert_unharmed();
        let said = check(Fault::Swap, trust).map(|tally| tally.to_string()).unwrap_err();
        assert!(said.starts_with("WRONG REPLY: "), "{said}");
    }
}

#[test]
fn what_failed_and_what_was_lost_is_counted_and_not_wrong() {
    let refused = check(Fault::Refuse, Trust::Whole).unwrap();
    let total = refused.total();
    assert_eq!((total.failed, total.lost), (5, 0), "{refused}");
    assert_eq!(refused.errors, [("SERVER_ERROR no".to_string(), 5)].into());
    let closed = check(Fault::Close, Trust::Whole).unwrap();
    assert_eq!(closed.total().failed, 0, "{closed}");
    assert!(closed.total().lost >= 10, "{closed}");
    assert_eq!(closed.total().connected, 5 + closed.total().lost, "{closed}");
}
