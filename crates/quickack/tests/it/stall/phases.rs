//! The phases that the proxy measures, compared with a packet capture of both its sides: a client
//! that sends requests in pieces, and a server that thinks and then sends replies in pieces; and a
//! request that waits because its server is silent.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use testkit::process::listen;

use super::capture::{Capture, Segment};
use crate::harness;

const REQUESTS: usize = 20;
const REQUEST_PAUSE: Duration = Duration::from_millis(12);
const THOUGHT: Duration = Duration::from_millis(20);
const REPLY_PAUSE: Duration = Duration::from_millis(7);

/// A server that answers each read late, and in two pieces.
fn serve(mut stream: TcpStream) {
    stream.set_nodelay(true).expect("it is TCP");
    let mut chunk = [0; 1024];
    while let Ok(len) = stream.read(&mut chunk)
        && len > 0
    {
        if chunk.starts_with(b"version") {
            stream.write_all(b"VERSION 1.6.18\r\n").expect("the proxy is there");
            continue;
        }
        thread::sleep(THOUGHT);
        stream.write_all(b"VALUE k 0 4\r\nab").expect("the proxy is there");
        thread::sleep(REPLY_PAUSE);
        stream.write_all(b"cd\r\nEND\r\n").expect("the proxy is there");
    }
}

/// Returns the last segments with data in one direction, so many for each request.
fn of_requests(segments: &[Segment], to_proxy: bool, each: usize) -> Vec<Vec<f64>> {
    let found = segments.iter().filter(|one| one.to_proxy == to_proxy && one.len > 0);
    let times: Vec<f64> = found.map(|one| one.time).collect();
    assert!(times.len() >= REQUESTS * each, "{} segments of {REQUESTS} requests", times.len());
    times[times.len() - REQUESTS * each..].chunks(each).map(<[f64]>::to_vec).collect()
}

/// Returns the medians of the four phases on the wire, in milliseconds.
fn on_the_wire(clients: &[Segment], servers: &[Segment]) -> [f64; 4] {
    let (asked, answered) = (of_requests(clients, true, 2), of_requests(clients, false, 1));
    let (sent, replied) = (of_requests(servers, true, 1), of_requests(servers, false, 2));
    let phases = [0, 1, 2, 3].map(|phase| {
        let mut times: Vec<f64> = (0..REQUESTS)
            .map(|n| match phase {
                0 => asked[n][1] - asked[n][0],
                1 => sent[n][0] - asked[n][1],
                2 => replied[n][1] - sent[n][0],
                _ => answered[n][0] - replied[n][1],
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[REQUESTS / 2] * 1e3
    });
    assert!(phases[0] >= 12.0 && phases[2] >= 27.0, "the pauses are on the wire: {phases:?}");
    phases
}

/// A busy machine may delay what tcpdump sees; so one run of three must agree.
#[test]
fn the_phases_agree_with_tcpdump_on_both_sides() {
    let mut last = String::new();
    for _ in 0..3 {
        let server = listen(serve);
        let quickack = harness::start(1, &[], &[server], &[]);
        let folder = tempfile::tempdir().expect("a folder for the captures");
        let captures =
            [quickack.address(), server].map(|address| Capture::start(address, folder.path()));
        let mut client = quickack.client();
        for _ in 0..=REQUESTS {
            client.send("get ");
            thread::sleep(REQUEST_PAUSE);
            client.ask("k\r\n", "VALUE k 0 4\r\nabcd\r\nEND\r\n");
        }
        let [clients, servers] = captures.map(Capture::segments);
        let wire = on_the_wire(&clients, &servers);
        let stats = harness::stats(&quickack);
        let phases = &stats["pools"][0]["phase_us"];
        let proxy = ["client_read", "queue", "server", "client_write"]
            .map(|name| phases[name]["p50"].as_f64().expect("a number") / 1e3);
        last = format!("on the wire {wire:.3?} ms, in the proxy {proxy:.3?} ms");
        println!("medians of {REQUESTS}: {last}");
        if wire.iter().zip(proxy).all(|(wire, proxy)| (wire - proxy).abs() < 1.0) {
            return;
        }
    }
    panic!("three times: {last}");
}

/// How long the server is silent for, and when the request comes that waits for it.
const SILENCE: Duration = Duration::from_millis(70);
const BEHIND: Duration = Duration::from_millis(45);

/// A server that thinks about the key `a`, and about no other.
fn think_about_a(mut stream: TcpStream) {
    stream.set_nodelay(true).expect("it is TCP");
    let mut chunk = [0; 1024];
    while let Ok(len) = stream.read(&mut chunk)
        && len > 0
    {
        if chunk.starts_with(b"get a") {
            thread::sleep(SILENCE);
        }
        let is_version = chunk.starts_with(b"version");
        let answer: &[u8] = if is_version { b"VERSION 1.6.18\r\n" } else { b"END\r\n" };
        stream.write_all(answer).expect("the proxy is there");
    }
}

#[test]
fn the_queue_of_a_held_request_agrees_with_tcpdump_on_both_sides() {
    let mut last = String::new();
    for _ in 0..3 {
        let server = listen(think_about_a);
        let quickack = harness::start(1, &[], &[server], &["slowlog_threshold: 1us"]);
        let folder = tempfile::tempdir().expect("a folder for the captures");
        let captures =
            [quickack.address(), server].map(|address| Capture::start(address, folder.path()));
        let (mut first, mut second) = (quickack.client(), quickack.client());
        for _ in 0..=REQUESTS {
            first.send("get a\r\n");
            thread::sleep(BEHIND);
            second.send("get b\r\n");
            first.ask("", "END\r\n");
            second.ask("", "END\r\n");
        }
        let [clients, servers] = captures.map(Capture::segments);
        let asked = of_requests(&clients, true, 2);
        let sent = of_requests(&servers, true, 2);
        let mut wire: Vec<f64> = (0..REQUESTS).map(|n| (sent[n][1] - asked[n][1]) * 1e3).collect();
        wire.sort_by(f64::total_cmp);
        let wire = wire[REQUESTS / 2];
        assert!(wire > 5.0, "it waits on the wire: {wire} ms");
        let from = second.stream.local_addr().expect("it is connected").to_string();
        let slow: serde_json::Value =
            serde_json::from_str(&quickack.ask("slowlog --json --limit 200")).expect("it is JSON");
        let all = slow["slow"].as_array().expect("a list").iter();
        let own = all.filter(|one| one["client"] == *from).take(REQUESTS);
        let mut proxy: Vec<f64> =
            own.map(|one| one["phase_us"]["queue"].as_f64().expect("a number") / 1e3).collect();
        assert_eq!(proxy.len(), REQUESTS, "each is in the slow log");
        proxy.sort_by(f64::total_cmp);
        let proxy = proxy[REQUESTS / 2];
        last = format!("on the wire {wire:.3} ms, in the proxy {proxy:.3} ms");
        println!("medians of {REQUESTS}: {last}");
        if (wire - proxy).abs() < 1.0 {
            return;
        }
    }
    panic!("three times: {last}");
}
