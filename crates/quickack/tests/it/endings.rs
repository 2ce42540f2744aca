//! The end of the proxy and of a worker: nothing that a client has begun is cut off. Under load,
//! with half-sent requests of every protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;
use testkit::load::{Load, Options};
use testkit::process::{DEADLINE, Family, Memcached, Quickack, Redis, send, wait_until};

use super::harness::{self, workers};
use super::{QUICKACK, http};

/// A client that has sent the first part of a request.
struct Half {
    stream: TcpStream,
    request: &'static [u8],
    rest: &'static [u8],
    /// The beginning of the answer.
    answer: &'static [u8],
}

/// A request, the length of its first part, and the beginning of the answer.
type Begun = (&'static [u8], usize, &'static [u8]);

const MEMCACHED: [Begun; 5] = [
    (b"get nobody-has-this\r\n", 8, b"END\r\n"),
    (b"set classic 0 0 10\r\n0123456789\r\n", 25, b"STORED\r\n"),
    (b"mg nobody-has-this v\r\n", 5, b"EN\r\n"),
    (b"ms meta 10\r\n0123456789\r\n", 15, b"HD\r\n"),
    (BINARY_SET, 40, &[0x81, 1]),
];
const REDIS: [Begun; 4] = [
    (b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n", 30, b"+OK\r\n"),
    (b"*2\r\n$3\r\nGET\r\n$11\r\nnobody-asks\r\n", 15, b"$-1\r\n"),
    (b"PING\r\n", 2, b"+PONG\r\n"),
    // Whole requests, and half a transaction.
    (b"MULTI\r\nSET in-a-block x\r\nEXEC\r\n", 25, b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n"),
];
/// Behind a header. One that has not come as a whole is waited for by seconds, which a busy machine
/// may need for other things: `event/tests.rs` has it.
const PROXIED: [Begun; 1] =
    [(b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 1\r\nget nobody-has-this\r\n", 45, b"END\r\n")];
/// A key and a value of eight bytes each, and eight bytes of extras.
const BINARY_SET: &[u8] = b"\x80\x01\0\x08\x08\0\0\0\0\0\0\x18\0\0\0\0\0\0\0\0\0\0\0\0\
                            \0\0\0\0\0\0\0\0binary-kbinary-v";

impl Half {
    /// Sends the rest; the answer must come.
    fn finish(&mut self) {
        self.ask(self.rest);
    }

    fn ask(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it is still read");
        let mut answer = vec![0; self.answer.len()];
        self.stream.read_exact(&mut answer).expect("an answer, and not the end");
        assert_eq!(answer, self.answer, "{:?}", String::from_utf8_lossy(self.request));
        if self.request == BINARY_SET {
            self.stream.read_exact(&mut [0; 22]).expect("the rest of a packet");
        }
    }

    /// Asks the same again. A header is sent once.
    fn ask_again(&mut self) {
        let header = if self.request.starts_with(b"PROXY") { PROXIED[0].0.len() - 21 } else { 0 };
        self.ask(&self.request[header..]);
    }

    /// Whether the proxy has read what was sent, by the kernel's table of sockets.
    fn is_read(&self, sockets: &str) -> bool {
        let end = |address: SocketAddr| format!(":{:04X}", address.port());
        let ours = end(self.stream.local_addr().expect("it is open"));
        let theirs = end(self.stream.peer_addr().expect("it is connected"));
        sockets.lines().filter(|line| line.contains(&ours)).any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Its own address, the other's, the state, and the lengths of both queues.
            words[1].ends_with(&theirs)
                && words[2].ends_with(&ours)
                && words[4].ends_with(":00000000")
        })
    }

    fn is_closed(&mut self) -> bool {
        self.stream.read_to_end(&mut Vec::new()).is_ok()
    }
}

/// A proxy before real servers of both kinds, and clients that are in the middle of a request.
struct Field {
    _servers: (Memcached, Redis),
    quickack: Quickack,
    halves: Vec<Half>,
}

impl Field {
    /// `rounds`: how many clients there are of each request.
    fn new(workers: usize, global: &[&str], rounds: usize) -> Field {
        let servers = (Memcached::start(), Redis::start(Family::ALL[0]));
        let more = format!(
            "beta:\n  listen: 127.0.0.1:0\n  protocol: redis\n  servers: [{}:1]\n\
             gamma:\n  listen: 127.0.0.1:0\n  proxy_protocol: [127.0.0.1]\n  servers: [{}:1]\n",
            servers.1.address, servers.0.address
        );
        let text = harness::text(workers, global, &[servers.0.address], &[]) + &more;
        let quickack = Quickack::start(QUICKACK, &text);
        harness::wait_for_workers(&quickack, workers);
        let begin = |pool: &str, all: &[Begun]| -> Vec<Half> {
            let address = quickack.address_of(pool);
            all.iter().map(|one| begin(address, one)).collect()
        };
        let mut halves = Vec::new();
        for _ in 0..rounds {
            halves.extend(begin("alpha", &MEMCACHED));
            halves.extend(begin("beta", &REDIS));
            halves.extend(begin("gamma", &PROXIED));
        }
        wait_until("what was sent has been read", || {
            let sockets = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
            halves.iter().all(|half| half.is_read(&sockets))
        });
        let sent = |all: &[Begun]| -> u64 {
            all.iter().map(|one| one.1 as u64).sum::<u64>() * rounds as u64
        };
        wait_until("all halves have been read", || {
            let pools = harness::stats(&quickack)["pools"].clone();
            let read = |at: usize| pools[at]["received_bytes_total"].as_u64().expect("a counter");
            [read(0), read(1)] == [sent(&MEMCACHED), sent(&REDIS)]
        });
        Field { _servers: servers, quickack, halves }
    }

    fn load(&self) -> Load {
        harness::load(&self.quickack, 40, Options::default())
    }
}

fn begin(address: SocketAddr, (request, len, answer): &Begun) -> Half {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    stream.write_all(&request[..*len]).expect("it reads");
    Half { stream, request, rest: &request[*len..], answer }
}

fn wait_until_nobody_accepts(address: SocketAddr) {
    wait_until("it accepts nobody", || TcpStream::connect(address).is_err());
}

/// What tells the proxy to end.
type End = fn(&Quickack);

#[test]
fn term_and_drain_cut_off_nothing_that_has_begun_before_memcached_and_redis() {
    let ends: [End; 2] = [
        |quickack| quickack.process.signal(Signal::TERM),
        |quickack| drop(quickack.admin_ok(&["drain"])),
    ];
    for end in ends {
        let mut field = Field::new(4, &["shutdown_timeout: 60s"], 3);
        let load = field.load();
        end(&field.quickack);
        wait_until_nobody_accepts(field.quickack.address());
        // Those that are at rest leave, and the load's clients with them.
        wait_until("only the halves are left", || {
            workers(&field.quickack).values().map(|one| one.clients).sum::<u64>()
                == field.halves.len() as u64
        });
        for half in &mut field.halves {
            half.finish();
            assert!(half.is_closed(), "it is closed at the boundary of the request");
        }
        let status = field.quickack.process.wait_for_end();
        let told = field.quickack.process.stderr_text();
        assert_eq!(status.code(), Some(0), "{told}");
        assert!(!told.contains("in the middle of a request"), "{told}");
        let tally = load.stop();
        println!("the end: {tally}");
        tally.assert_lost_at_most(2);
    }
}

#[test]
fn a_worker_that_retires_cuts_off_nothing_that_has_begun_before_memcached_and_redis() {
    let mut field = Field::new(4, &["shutdown_timeout: 60s"], 4);
    let load = field.load();
    field.quickack.admin_ok(&["set", "workers=1"]);
    load.wait_for_everybody();
    let leaving = |all: &std::collections::BTreeMap<usize, harness::Worker>| {
        all.values().filter(|one| one.state == "leaving").count()
    };
    assert!(leaving(&workers(&field.quickack)) > 0, "some wait for the rest of a request");
    for half in &mut field.halves {
        half.finish();
    }
    harness::wait_for_workers(&field.quickack, 1);
    // Their clients are at the one that stays, and go on there.
    field.halves.iter_mut().for_each(Half::ask_again);
    let total = field.halves.len() as u64 + 40;
    assert_eq!(harness::wait_for_clients(&field.quickack, total), [total]);
    load.wait_for_everybody();
    load.stop().assert_unharmed();
}

/// The time is `shutdown_timeout`, for the end of the proxy and of a worker.
#[test]
fn a_request_whose_rest_never_comes_is_cut_off_and_counted_before_memcached_and_redis() {
    let mut field = Field::new(1, &["shutdown_timeout: 300ms"], 1);
    field.quickack.process.signal(Signal::TERM);
    assert_eq!(field.quickack.process.wait_for_end().code(), Some(0));
    let told = "10 clients with something outstanding are closed, 10 of them in the middle of a \
                request";
    let said = field.quickack.process.stderr_text();
    assert!(said.contains(told), "{said}");
    assert!(field.halves.iter_mut().all(Half::is_closed));
    let mut field = Field::new(2, &["shutdown_timeout: 300ms"], 2);
    field.quickack.admin_ok(&["set", "workers=1"]);
    harness::wait_for_workers(&field.quickack, 1);
    wait_until("the log says what was cut off", || {
        field.quickack.process.stderr_text().contains("in the middle of a request")
    });
    let left = workers(&field.quickack)[&0].clients as usize;
    let (mut open, mut closed) = (0, 0);
    for half in &mut field.halves {
        match half.stream.write_all(half.rest).is_ok() && answers(half) {
            true => open += 1,
            false => closed += 1,
        }
    }
    let all = field.halves.len();
    assert_eq!((open, open + closed), (left, all), "only those of the worker that has gone");
}

fn answers(half: &mut Half) -> bool {
    let mut answer = vec![0; half.answer.len()];
    half.stream.read_exact(&mut answer).is_ok()
}

#[test]
fn shutdown_delay_serves_on_while_the_proxy_is_not_ready_before_memcached() {
    let global = ["shutdown_delay: 60s", "http: 127.0.0.1:0"];
    let (_memcached, mut quickack) = harness::field(2, &global, &[]);
    http::wait_for(&quickack, "/readyz", 200, "ready\n");
    let load = harness::load(&quickack, 20, Options { rate: Some(2_000), ..Options::default() });
    quickack.process.signal(Signal::TERM);
    http::wait_for(&quickack, "/readyz", 503, "the proxy is draining");
    http::wait_for(&quickack, "/healthz", 200, "healthy\n");
    quickack.client().ask("version\r\n", "VERSION ");
    load.wait_for_everybody();
    load.tally().assert_unharmed();
    let info: serde_json::Value = serde_json::from_str(&quickack.ask("info --json")).unwrap();
    assert_eq!((&info["draining"], &info["ready"]), (&true.into(), &false.into()));
    let answer = quickack.admin(&["reload"]);
    assert!(!answer.ok && answer.text.contains("the proxy is shutting down"), "{answer:?}");
    // A worker that dies meanwhile is replaced.
    load.pause();
    let old = workers(&quickack)[&0].pid;
    send(old, Signal::KILL);
    wait_until("worker 0 is there again", || {
        workers(&quickack).get(&0).is_some_and(|one| one.pid != old && one.is_serving())
    });
    // A second signal ends the delay.
    quickack.process.signal(Signal::TERM);
    assert_eq!(quickack.process.wait_for_end().code(), Some(0));
    let said = quickack.process.stderr_text();
    for told in ["ending in 1m: still serving", "draining for up to 10s"] {
        assert!(said.contains(told), "{said}");
    }
    drop(load);
    let (_memcached, mut quickack) = harness::field(1, &["shutdown_delay: 100ms"], &[]);
    quickack.process.signal(Signal::TERM);
    assert_eq!(quickack.process.wait_for_end().code(), Some(0));
}
