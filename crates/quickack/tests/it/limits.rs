//! Limits seen from outside: one clear refusal, no busy loop, no unbounded memory.

use std::io::{self, Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::process::{Client, DEADLINE, Memcached, Quickack, free_address};
use testkit::wire::binary::{self, Head, Packet};

use super::{QUICKACK, config, quickack};

/// Connects, and returns the client if it is served.
fn try_client(quickack: &Quickack) -> Result<Client, String> {
    let mut client = quickack.client();
    client.send("version\r\n");
    let mut text = Vec::new();
    let mut chunk = [0; 256];
    while !text.ends_with(b"\r\n") {
        match client.stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(&chunk[..n]),
            // Where no descriptor is left, a refusal may be overtaken by the reset that follows
            // our unread request.
            Err(error) if text.is_empty() => return Err(error.to_string()),
            Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    if text.starts_with("VERSION ") { Ok(client) } else { Err(text) }
}

#[test]
fn one_client_too_many_is_refused_with_a_sentence_before_memcached_sees_it() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &["client_connections: 2"]);
    let mut clients: Vec<Client> =
        (0..2).map(|_| try_client(&quickack).expect("within the limit")).collect();
    let mut refused = quickack.client();
    let words = refused.rest();
    assert!(words.starts_with("SERVER_ERROR ") && words.ends_with("\r\n"), "{words:?}");
    assert_eq!(words.lines().count(), 1, "{words:?}");
    clients[0].ask("get a\r\n", "END\r\n");
    clients.remove(0);
    let start = Instant::now();
    while try_client(&quickack).is_err() {
        assert!(start.elapsed() < DEADLINE, "a place that was left is never given again");
    }
    clients[0].ask("get a\r\n", "END\r\n");
}

/// Lets so many clients connect, and ask when all of them are there and `pause` is over; returns
/// their replies. A client that is refused has 200 ms to ask. Where the machine is so busy that
/// this test needs nearly as long, its replies say nothing of the proxy, and others are asked for.
#[track_caller]
fn replies_of_refused(
    quickack: &Quickack,
    count: usize,
    pause: Duration,
    request: impl Fn(u32) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    let start = Instant::now();
    loop {
        let begun = Instant::now();
        let mut clients: Vec<Client> = (0..count).map(|_| quickack.client()).collect();
        std::thread::sleep(pause);
        let ask = |(at, client): (u32, &mut Client)| client.stream.write_all(&request(at));
        let asked: io::Result<Vec<()>> = (0..).zip(&mut clients).map(ask).collect();
        let is_in_time = begun.elapsed() < Duration::from_millis(150);
        let read = |client: &mut Client| {
            let mut reply = Vec::new();
            client.stream.read_to_end(&mut reply).map(|_| reply)
        };
        let replies: io::Result<Vec<Vec<u8>>> = clients.iter_mut().map(read).collect();
        if is_in_time {
            asked.expect("none is closed yet");
            return replies.expect("no reset");
        }
        assert!(start.elapsed() < DEADLINE, "no round is fast enough");
    }
}

fn noop(opaque: u32) -> Vec<u8> {
    Head { magic: binary::REQUEST, code: binary::NOOP, opaque, ..Head::default() }.bytes().to_vec()
}

#[track_caller]
fn expect_refusal(reply: &[u8], opaque: u32) {
    let head = Head::read(reply).expect("a packet");
    assert_eq!((head.magic, head.code, head.opaque), (binary::REPLY, binary::NOOP, opaque));
    assert!(head.status == 0x86 && reply.len() == binary::HEAD_LEN + head.body_len, "{head:?}");
}

/// A client of the binary protocol cannot read a line of text. Its first bytes may come after the
/// worker has accepted it.
#[test]
fn a_client_too_many_reads_why_in_its_own_protocol_before_memcached() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &["client_connections: 1"]);
    let _served = try_client(&quickack).expect("within the limit");
    let line = "SERVER_ERROR too many client connections\r\n";
    for pause in [0, 2, 50].into_iter().cycle().take(21).map(Duration::from_millis) {
        expect_refusal(&replies_of_refused(&quickack, 1, pause, |_| noop(7))[0], 7);
        let replies = replies_of_refused(&quickack, 1, pause, |_| b"get a\r\n".to_vec());
        assert_eq!(String::from_utf8_lossy(&replies[0]), line);
    }
    assert_eq!(quickack.client().rest(), line, "it says nothing");
}

/// When a proxy comes back, so do all the clients of a host.
#[test]
fn thirty_clients_too_many_at_once_read_why_in_their_own_protocol_before_memcached() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &["client_connections: 1"]);
    let _served = try_client(&quickack).expect("within the limit");
    for _ in 0..5 {
        let replies = replies_of_refused(&quickack, 30, Duration::ZERO, noop);
        (0..).zip(&replies).for_each(|(at, reply)| expect_refusal(reply, at));
    }
}

/// Bytes that come for a closed socket make the client's kernel throw away what it has not read.
#[test]
fn a_client_too_many_that_writes_megabytes_at_once_reads_why_before_memcached() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &["client_connections: 1"]);
    let _served = try_client(&quickack).expect("within the limit");
    for _ in 0..5 {
        let told = told_while_it_writes(quickack.client(), b"get a\r\n".repeat(200_000));
        assert_eq!(told, "SERVER_ERROR too many client connections\r\n");
    }
}

/// Returns what a client reads that writes all of this first.
pub fn told_while_it_writes(client: Client, much: Vec<u8>) -> String {
    let mut stream = client.stream;
    stream.write_all(&much).expect("all of it is taken");
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("the end, and no reset");
    told
}

#[test]
fn the_descriptor_limit_refuses_and_does_not_spin_before_memcached() {
    let memcached = Memcached::start();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", QUICKACK]);
    let quickack = Quickack::start_by(command, QUICKACK, &config(&[memcached.address], &[]));
    let mut served = Vec::new();
    let mut refusals = Vec::new();
    // Each worker has that limit.
    for _ in 0..80 * quickack.workers().len() {
        match try_client(&quickack) {
            Ok(client) => served.push(client),
            Err(words) => refusals.push(words),
        }
    }
    assert!(served.len() >= 16, "{} clients with 64 descriptors", served.len());
    assert!(!refusals.is_empty(), "80 clients with 64 descriptors");
    assert!(refusals.iter().any(|words| words.starts_with("SERVER_ERROR ")), "{refusals:?}");
    // The link was made after the clients and still has its descriptor.
    for client in &mut served {
        client.ask("get a\r\n", "END\r\n");
    }
    let before = quickack.worker_process().cpu_ticks();
    // The span of a measurement, not a wait for a fact.
    std::thread::sleep(Duration::from_secs(1));
    let ticks = quickack.worker_process().cpu_ticks() - before;
    assert!(ticks <= 10, "{ticks} ticks of CPU in a second of rest");
    served.clear();
    let start = Instant::now();
    while try_client(&quickack).is_err() {
        assert!(start.elapsed() < DEADLINE, "it never recovers");
    }
}

/// A client requests 200 MB and does not read: the data wait in memcached, not in the proxy.
#[test]
fn a_client_that_does_not_read_is_paused_while_memcached_waits() {
    const LEN: usize = 500_000;
    const COUNT: usize = 400;
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[]);
    let mut slow = quickack.client();
    let value = "x".repeat(LEN);
    slow.ask(&format!("set big 0 0 {LEN}\r\n{value}\r\n"), "STORED\r\n");
    let before = quickack.worker_process().status("VmHWM");
    slow.send("get big\r\n".repeat(COUNT));
    // Another client is served all the time, many times.
    let mut other = quickack.client();
    for n in 0..300 {
        other.ask(&format!("set a 0 0 3\r\n{n:03}\r\n"), "STORED\r\n");
        other.ask("get a\r\n", &format!("VALUE a 0 3\r\n{n:03}\r\nEND\r\n"));
    }
    let held = quickack.worker_process().status("VmHWM") - before;
    assert!(held < 32 * 1024, "{held} KiB are held for a client that does not read");
    let reply = format!("VALUE big 0 {LEN}\r\n{value}\r\nEND\r\n");
    for _ in 0..COUNT {
        slow.expect(&reply);
    }
    let held = quickack.worker_process().status("VmHWM") - before;
    assert!(held < 32 * 1024, "{held} KiB were held for a client that does not read");
}

#[test]
fn a_value_that_is_too_large_gets_the_words_of_memcached_and_costs_no_memory() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &["item_size_max: 1m"]);
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    let before = quickack.worker_process().status("VmHWM");
    let chunk = vec![b'x'; 1_000_000];
    for command in ["set", "append"] {
        client.send(format!("{command} a 0 0 {}\r\n", 100 * chunk.len()));
        for _ in 0..100 {
            client.send(&chunk);
        }
        client.ask("\r\n", "SERVER_ERROR object too large for cache\r\n");
    }
    client.ask("set b 0 0 1\r\n1\r\n", "STORED\r\n");
    let grown = quickack.worker_process().status("VmHWM") - before;
    // A process that has just started still touches pages of its own, its program's among them.
    assert!(grown < 32 * 1024, "{grown} KiB for values of 100 MB that are refused");
    // Nothing of it was sent upstream: neither the values nor the refused clients' requests.
    assert_eq!(memcached.stat("cmd_set"), 2);
}

/// The file of nutcracker has no word for it.
#[test]
fn a_value_as_large_as_its_memcached_allows_passes_with_a_file_of_nutcrackers() {
    let start = || Memcached::start_with(free_address(), &["-m", "64", "-I", "8m"]);
    let memcached = start().expect("nobody has its port");
    let quickack = quickack(&[memcached.address], &[]);
    let value = "v".repeat(2_000_000);
    let mut client = quickack.client();
    client.ask(&format!("set k 0 0 2000000\r\n{value}\r\n"), "STORED\r\n");
    client.ask("get k\r\n", &format!("VALUE k 0 2000000\r\n{value}\r\nEND\r\n"));
    // Another client shares the link on which the server refuses a value and skips it.
    let mut other = quickack.client();
    let value = "v".repeat(9_000_000);
    client.send(format!("set k 0 0 9000000\r\n{value}\r\nget k\r\n"));
    other.ask("set a 0 0 1\r\n1\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    client.expect("SERVER_ERROR object too large for cache\r\nEND\r\n");
    other.ask("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
    assert_eq!(memcached.stat("store_too_large"), 1, "the server has refused it");
}

/// A value that is refused by the server, or by the proxy before, has the same effect as in
/// memcached itself, in all protocols.
#[test]
fn a_value_too_large_leaves_under_its_key_what_memcached_leaves() {
    leaves_the_same(&[], 1 << 20);
    leaves_the_same(&["item_size_max: 1m"], 1 << 20);
    // The least that a server takes without another option.
    leaves_the_same(&[], 512 << 10);
}

fn leaves_the_same(directives: &[&str], most: usize) {
    let start = || {
        let started = Memcached::start_with(free_address(), &["-I", &most.to_string()]);
        started.expect("nobody has its port")
    };
    let (memcached, behind) = (start(), start());
    let quickack = quickack(&[behind.address], directives);
    let sides = [memcached.address, quickack.address()];
    let data = "d".repeat(most + 1);
    let mut kept = 0;
    let lines = [
        "set k 0 0 LEN",
        "set k 0 0 LEN noreply",
        "add k 0 0 LEN",
        "replace k 0 0 LEN",
        "append k 0 0 LEN",
        "prepend k 0 0 LEN",
        "cas k 0 0 LEN 1",
        "ms k LEN",
        "ms k LEN q",
        "ms k LEN ME",
        "ms k LEN MR q",
        "ms k LEN MA",
        "ms k LEN MP",
        "ms k LEN C1",
        "ms aw== LEN b I T9",
    ];
    let lines = lines.map(|line| line.replace("LEN", &data.len().to_string()));
    for line in lines {
        let found = sides.map(|address| {
            let mut client = Client::connect(address);
            client.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
            client.send(format!("{line}\r\n{data}\r\nmn\r\n"));
            let answer = client.read_until("MN\r\n");
            client.send("get k\r\n");
            (answer, client.read_until("END\r\n"))
        });
        assert_eq!(found[0], found[1], "{line}");
        kept += usize::from(found[1].1.contains("old"));
    }
    assert_eq!(kept, 5, "add, replace, append, prepend and cas");
    for (opcode, extras) in [
        (0x01, 8),
        (0x02, 8),
        (0x03, 8),
        (0x0e, 0),
        (0x0f, 0),
        (0x11, 8),
        (0x12, 8),
        (0x13, 8),
        (0x19, 0),
        (0x1a, 0),
    ] {
        let found = sides.map(|address| {
            let mut text = Client::connect(address);
            text.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
            let (extras, value) = (&[0; 8][..extras], data.as_bytes());
            let packet = Packet { extras, key: b"k", value, ..Packet::new(opcode, 7) };
            let mut client = Client::connect(address);
            client.send(packet.bytes());
            let answer = client.read_until("Too large.");
            text.send("get k\r\n");
            (answer, text.read_until("END\r\n"))
        });
        assert_eq!(found[0], found[1], "{opcode:#x}");
        assert_eq!(found[1].1.contains("old"), !matches!(opcode, 0x01 | 0x11), "{opcode:#x}");
    }
}

/// It delays no other client, and nothing of it is sent before it is whole.
#[test]
fn a_slow_sender_holds_up_nobody_before_memcached() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[]);
    let (mut slow, mut other) = (quickack.client(), quickack.client());
    for piece in ["se", "t a 0 ", "0 10\r\n", "01234", "56"] {
        slow.send(piece);
        other.ask("set b 0 0 1\r\n1\r\n", "STORED\r\n");
        other.ask("get b a\r\n", "VALUE b 0 1\r\n1\r\nEND\r\n");
    }
    slow.ask("789\r\n", "STORED\r\n");
    other.ask("get a\r\n", "VALUE a 0 10\r\n0123456789\r\nEND\r\n");
}

/// A request that memcached might parse differently is refused before a byte is sent.
#[test]
fn what_memcached_might_read_otherwise_never_leaves_us() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[]);
    let long = "k".repeat(251);
    for request in [
        format!("get {long}\r\n"),
        "get a\0b\r\n".into(),
        "get a\rb\r\n".into(),
        "set a -1 0 1\r\n".into(),
        "set a 0 0 -1\r\n".into(),
        "set a 0 0 ++1\r\n".into(),
        "set a 0 0 18446744073709551617\r\n".into(),
        "set a 18446744073709551616 0 1\r\n".into(),
        "incr a -1\r\n".into(),
        "incr a 18446744073709551616\r\n".into(),
        "touch a 1x\r\n".into(),
        "delete a 5\r\n".into(),
        "flush_all\r\n".into(),
        "shutdown\r\n".into(),
        "slabs reassign 1 2\r\n".into(),
        "lru_crawler metadump all\r\n".into(),
        "watch mutations\r\n".into(),
        "cache_memlimit 1\r\n".into(),
    ] {
        let mut client = quickack.client();
        client.send(&request);
        let line = client.line();
        let word = line.split(' ').next().unwrap_or_default();
        let is_refusal = ["ERROR", "CLIENT_ERROR", "SERVER_ERROR"].contains(&word);
        assert!(is_refusal, "{request:?}: {line}");
    }
    let asked = ["cmd_get", "cmd_set", "cmd_flush", "cmd_touch", "incr_misses", "delete_misses"];
    for counter in asked {
        assert_eq!(memcached.stat(counter), 0, "{counter}");
    }
}

/// A hostile page may have sent a browser here, whose body would be commands.
#[test]
fn a_line_of_http_is_hung_up_on_and_nothing_after_it_reaches_memcached() {
    let memcached = Memcached::start();
    let mut quickack = quickack(&[memcached.address], &[]);
    let hung_up_on = |mut client: Client, line: &str| {
        client.send(format!("get a\r\n{line}\r\nHost: x\r\n\r\nset a 0 0 1\r\n1\r\n"));
        let mut heard = Vec::new();
        // A peer that closes with unread input resets the connection.
        let _ = client.stream.read_to_end(&mut heard);
        assert_eq!(String::from_utf8_lossy(&heard), "END\r\n", "{line}");
    };
    for line in ["GET / HTTP/1.0", "PUT /asdf HTTP/1.1", "POST / HTTP/1.1", "DELETE HTTP/1.1"] {
        hung_up_on(memcached.client(), line);
        hung_up_on(quickack.client(), line);
    }
    assert_eq!(memcached.stat("cmd_set"), 0);
    quickack.process.wait_for("HTTP", |said| said.contains("one sent HTTP").then_some(()));
}
