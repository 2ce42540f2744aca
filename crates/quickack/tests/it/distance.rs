//! Servers that are far away: the time of the path is no silence.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{iter, thread};

use rustix::net::sockopt;
use testkit::process::{Client, DEADLINE, Memcached, Quickack, connect, listen, wait_until};

use super::harness::{field, start, total};

/// Starts a relay to a server that passes on all bytes late, by half of `trip` in each direction.
fn far(server: SocketAddr, trip: Duration) -> SocketAddr {
    listen(move |near| {
        let far = connect(server);
        let [from_near, from_far] = [&near, &far].map(|it| it.try_clone().expect("a second one"));
        thread::spawn(move || carry(from_far, near, trip / 2));
        carry(from_near, far, trip / 2);
    })
}

/// Carries bytes late, and the end behind them.
fn carry(mut from: TcpStream, mut to: TcpStream, late: Duration) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut chunk = [0; 16 * 1024];
    while let Ok(len @ 1..) = from.read(&mut chunk) {
        if sender.send((Instant::now() + late, chunk[..len].to_vec())).is_err() {
            return;
        }
    }
}

/// As `printf 'get a\r\n' | nc -N` asks; on a busy machine too, the end comes with the request.
fn ask_and_close(quickack: &Quickack, request: &str) -> Client {
    let mut client = quickack.client();
    sockopt::set_tcp_cork(&client.stream, true).expect("it is TCP");
    client.send(request);
    client.stream.shutdown(Shutdown::Write).expect("it is connected");
    client
}

#[test]
fn who_closes_the_half_behind_a_request_is_answered_by_a_far_memcached() {
    for trip in [15, 80, 150].map(Duration::from_millis) {
        let memcached = Memcached::start();
        let quickack = start(1, &[], &[far(memcached.address, trip)], &[]);
        // The first finds no link.
        for _ in 0..4 {
            let all: Vec<Client> =
                iter::repeat_with(|| ask_and_close(&quickack, "get a\r\n")).take(100).collect();
            for mut client in all {
                assert_eq!(client.rest(), "END\r\n");
            }
        }
        assert_eq!(total(&quickack, "messages_dropped_total"), 0);
    }
}

#[test]
fn who_closes_the_half_behind_a_change_keeps_its_turn_at_a_memcached_that_pauses() {
    let (memcached, quickack) = field(1, &[], &[]);
    quickack.client().ask("set k 0 0 1\r\n0\r\n", "STORED\r\n");
    memcached.process.freeze();
    let mut first = quickack.client();
    first.send("get k\r\n");
    wait_until("the server has it", || total(&quickack, "inflight") > 0);
    let changes: Vec<Client> =
        iter::repeat_with(|| ask_and_close(&quickack, "append k 0 0 1\r\nx\r\n"))
            .take(10)
            .collect();
    wait_until("they are held", || total(&quickack, "messages_held_total") >= 10);
    memcached.process.thaw();
    first.expect("VALUE k 0 1\r\n0\r\nEND\r\n");
    for mut client in changes {
        assert_eq!(client.rest(), "STORED\r\n");
    }
    memcached.client().ask("get k\r\n", "VALUE k 0 11\r\n0xxxxxxxxxx\r\nEND\r\n");
}

/// Answers come as often as requests, and each is as late as the path is long.
#[test]
fn a_far_memcached_that_is_asked_all_the_time_is_not_held() {
    check_held(Duration::from_millis(100), 100, 0);
}

#[test]
fn a_memcached_on_the_other_side_of_the_world_that_is_asked_all_the_time_is_not_held() {
    check_held(Duration::from_millis(150), 400, 10);
}

/// Asks so many times, one get every 7 ms, and checks that no more than `most` are held.
#[track_caller]
fn check_held(trip: Duration, count: usize, most: u64) {
    let memcached = Memcached::start();
    let quickack = start(1, &[], &[far(memcached.address, trip)], &["timeout: 4000"]);
    quickack.client().ask("get a\r\n", "END\r\n");
    let held = || {
        let before = total(&quickack, "messages_held_total");
        let mut client = quickack.client();
        let mut reader = Client { stream: client.stream.try_clone().expect("a second one") };
        let reads = thread::spawn(move || reader.expect(&"END\r\n".repeat(count)));
        for _ in 0..count {
            client.send("get a\r\n");
            thread::sleep(Duration::from_millis(7));
        }
        reads.join().expect("all are answered");
        total(&quickack, "messages_held_total") - before
    };
    // The path is a thread of this test. On a busy machine it may be silent itself.
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.last().is_none_or(|held| *held > most) {
        assert!(start.elapsed() < DEADLINE, "held of {count} on a path of {trip:?}: {all:?}");
        all.push(held());
    }
}
