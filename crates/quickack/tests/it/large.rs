//! Values of 100 MB, stored and read through the proxy and through its own cache: every byte is
//! right, memory is bounded, and other clients are not delayed.

use std::io::{Read, Write};

use testkit::process::{Client, Memcached, Quickack, free_address};

use super::{QUICKACK, config};

const LEN: usize = 100 * 1000 * 1000;
/// A prime: a piece that is missing or duplicated shifts all later bytes.
const PERIOD: usize = 65_521;
/// Memory besides the value: a worker by itself, and its blocks beyond the counted part.
const BESIDE_KB: u64 = LEN as u64 / 4 / 1024 + 24 * 1024;
const SETTINGS: [&str; 4] =
    ["item_size_max: 128m", "timeout_reply: 60s", "timeout_queue: 60s", "merge_gets: on"];

fn byte(at: usize) -> u8 {
    (at % PERIOD % 251) as u8
}

fn piece(start: usize, len: usize) -> Vec<u8> {
    (start..start + len).map(byte).collect()
}

fn store(client: &mut Client, head: &str) {
    client.send(head);
    for start in (0..LEN).step_by(PERIOD) {
        let piece = piece(start, PERIOD.min(LEN - start));
        client.stream.write_all(&piece).expect("the proxy reads");
    }
}

/// Reads a value whose head was read before.
fn read_value(client: &mut Client) {
    let mut buffer = vec![0; PERIOD];
    for start in (0..LEN).step_by(PERIOD) {
        let buffer = &mut buffer[..PERIOD.min(LEN - start)];
        client.stream.read_exact(buffer).expect("the whole value comes");
        assert!(*buffer == *piece(start, buffer.len()), "a wrong byte after {start}");
    }
}

fn check(quickack: &Quickack) {
    let workers = || {
        let peaks = quickack.workers().into_values().map(peak_kb);
        peaks.max().expect("there is a worker")
    };
    let mut client = quickack.client();
    store(&mut client, &format!("set big 7 0 {LEN}\r\n"));
    client.send("\r\n");
    client.expect("STORED\r\n");
    client.send("get big\r\n");
    client.expect(&format!("VALUE big 7 {LEN}\r\n"));
    // Its client stops reading for now.
    let mut other = quickack.client();
    other.ask("set small 0 0 1\r\n1\r\n", "STORED\r\n");
    other.ask("get small\r\n", "VALUE small 0 1\r\n1\r\nEND\r\n");
    read_value(&mut client);
    client.expect("\r\nEND\r\n");
    client.send("mg big v\r\n");
    client.expect(&format!("VA {LEN}\r\n"));
    read_value(&mut client);
    client.expect("\r\n");
    let peak = workers();
    // Twice, because a busy machine reads in pieces of half a block, each of which holds a whole
    // block.
    let most = 2 * LEN as u64 / 1024 + BESIDE_KB;
    assert!(peak <= most, "a worker held {peak} KB, more than {most}");
}

fn peak_kb(id: u32) -> u64 {
    testkit::process::Facts::of([id]).status("VmHWM")
}

#[test]
fn a_value_of_100_mb_passes_before_memcached() {
    let start = || Memcached::start_with(free_address(), &["-m", "512", "-I", "128m"]);
    let memcached = (0..20).find_map(|_| start()).expect("memcached finds a port");
    check(&Quickack::start(QUICKACK, &config(&[memcached.address], &SETTINGS)));
}

#[test]
fn a_value_of_100_mb_passes_before_the_embedded_cache() {
    let mut text = config(&[], &SETTINGS);
    text.truncate(text.rfind("  servers:").expect("it ends with them"));
    text.push_str("  memory: 400m\n  servers: [embedded]\n");
    check(&Quickack::start(QUICKACK, &text));
}
