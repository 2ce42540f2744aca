//! Checks that the steady state allocates nothing: the data plane runs in this process, with a
//! model server and a counting allocator.

use std::collections::HashMap;
use std::rc::Rc;

use metrics::Registry;
use proxy::plan::{Plan, PoolPlan, ServerPlan};
use proxy::{Action, Block, ConnId, Proxy, Side, Slices, Time};
use testkit::wire::binary::Packet;

/// A proxy, its clients, and one server that answers each request with its share of `REPLIES`.
struct Field {
    proxy: Proxy,
    clients: Vec<ConnId>,
    link: Option<ConnId>,
    block: Rc<Block>,
    now: Time,
    redis: bool,
}

impl Field {
    fn new(redis: bool, merge_gets: bool) -> Field {
        let server = ServerPlan::new("a:11211", "a:11211", 1);
        let protocol = proto::protocol(if redis { "redis" } else { "memcached" });
        let mut pool = PoolPlan::new("alpha", protocol.expect("it is one"), vec![server]);
        pool.merge_gets = merge_gets;
        let plan = Plan::new(vec![pool]);
        let row = plan.pools[0].id;
        let metrics = Registry::private(1, plan.rows()).metrics(0);
        let now = Time(1);
        let mut proxy = Proxy::new(plan, 7, now, metrics);
        let clients: Vec<ConnId> =
            (0..10).map(|_| proxy.handle_accept(row, now).expect("there is room")).collect();
        Field { proxy, clients, link: None, block: Rc::new(vec![0; 16 * 1024].into()), now, redis }
    }

    /// Passes bytes on as the event loop does: from one block, reused if nothing holds it.
    fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        let block = Rc::get_mut(&mut self.block).expect("small values are copied, not kept");
        block[..bytes.len()].copy_from_slice(bytes);
        self.proxy.handle_received(conn, &self.block, bytes.len(), self.now);
    }

    fn act(&mut self) {
        while let Some(action) = self.proxy.poll_action() {
            match action {
                Action::Connect { link, .. } => {
                    self.link = Some(link);
                    self.greet(link);
                }
                Action::FlushAck(_) | Action::LookUpEndpoints(_) => {}
                other => panic!("{other:?} in the steady state"),
            }
        }
    }

    /// Completes a connect, and answers the handshake.
    fn greet(&mut self, link: ConnId) {
        self.proxy.handle_connected(link, self.now);
        let len = {
            let mut slices = Slices::default();
            self.proxy.transmit(link, &mut slices);
            slices.iter().map(|slice| slice.len()).sum()
        };
        self.proxy.handle_transmitted(link, len, self.now);
        match self.redis {
            true => self.receive(link, b"-ERR unknown command 'HELLO'\r\n"),
            false => self.receive(link, b"VERSION 1.6.18\r\n"),
        }
    }

    /// Writes one side and returns the bytes written, in the order of the connections.
    fn write(&mut self, side: Side) -> Vec<(ConnId, Vec<u8>)> {
        let mut written = Vec::new();
        while let Some(conn) = self.proxy.poll_transmit(side) {
            let bytes = uncounted(|| {
                let mut slices = Slices::default();
                self.proxy.transmit(conn, &mut slices);
                slices.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>()
            });
            self.proxy.handle_transmitted(conn, bytes.len(), self.now);
            uncounted(|| written.push((conn, bytes)));
        }
        written
    }

    /// Every client sends a request, the server answers, every client gets its answer: in one loop
    /// turn once the server is known.
    fn turn(&mut self, request: &[u8], answered: &[u8]) {
        self.now = self.now.after(100);
        for at in 0..self.clients.len() {
            self.receive(self.clients[at], request);
        }
        let mut received = uncounted(HashMap::<ConnId, Vec<u8>>::new);
        loop {
            self.act();
            self.proxy.end_turn(self.now);
            self.act();
            let asked = self.write(Side::Link);
            let is_done = asked.is_empty();
            for (link, bytes) in asked {
                let redis = self.redis;
                let replies = uncounted(|| if redis { serve_redis(&bytes) } else { serve(&bytes) });
                self.receive(link, &replies);
                uncounted(|| drop((bytes, replies)));
            }
            self.act();
            let written = self.write(Side::Client);
            uncounted(|| {
                written.into_iter().for_each(|(id, bytes)| {
                    received.entry(id).or_default().extend(bytes);
                });
            });
            if is_done {
                break;
            }
        }
        uncounted(|| {
            assert_eq!(received.len(), self.clients.len());
            for bytes in received.values() {
                assert_eq!(bytes.escape_ascii().to_string(), answered.escape_ascii().to_string());
            }
            drop(received);
        });
    }
}

/// Runs work of the test without counting its allocations.
fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let mut result = None;
    allocation_counter::opt_out(|| result = Some(work()));
    result.expect("it was run")
}

/// The part of memcached that the dialogue below needs: every key exists and holds `v`.
fn serve(bytes: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).expect("the requests below are text");
    let mut replies = String::new();
    let mut lines = text.split_terminator("\r\n");
    while let Some(line) = lines.next() {
        let mut words = line.split(' ');
        match words.next() {
            Some("get") => {
                words.for_each(|key| replies.push_str(&format!("VALUE {key} 0 1\r\nv\r\n")));
                replies.push_str("END\r\n");
            }
            Some("gets") => {
                words.for_each(|key| replies.push_str(&format!("VALUE {key} 0 1 7\r\nv\r\n")));
                replies.push_str("END\r\n");
            }
            Some("set") => {
                lines.next();
                replies.push_str("STORED\r\n");
            }
            Some("ms") => {
                lines.next();
                let told = words.filter(|word| word.starts_with('O') || *word == "c");
                let told =
                    told.map(|word| if word == "c" { " c7".into() } else { format!(" {word}") });
                replies.push_str(&format!("HD{}\r\n", told.collect::<String>()));
            }
            Some("incr") => replies.push_str("42\r\n"),
            other => panic!("{other:?} is not asked below"),
        }
    }
    replies.into_bytes()
}

/// The part of Redis that the dialogue needs: no argument in the requests below equals a command's
/// name.
fn serve_redis(bytes: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).expect("the requests below are text");
    let replies = text.split("\r\n").filter_map(|word| match word {
        "GET" => Some("$1\r\nv\r\n"),
        "SET" => Some("+OK\r\n"),
        "MGET" => Some("*2\r\n$1\r\nv\r\n$-1\r\n"),
        "INCR" => Some(":42\r\n"),
        _ => None,
    });
    replies.collect::<String>().into_bytes()
}

fn check(merge_gets: bool, request: impl AsRef<[u8]>, answered: impl AsRef<[u8]>) {
    let (request, answered) = (request.as_ref(), answered.as_ref());
    let mut field = Field::new(request[0] == b'*', merge_gets);
    // Lets buffers, queues and tables reach their size.
    for _ in 0..2_000 {
        field.turn(request, answered);
    }
    let info = allocation_counter::measure(|| {
        for _ in 0..2_000 {
            field.turn(request, answered);
        }
    });
    assert_eq!(info.count_total, 0, "in 2,000 turns of 10 clients: {info:?}");
    field.proxy.check();
}

#[test]
fn a_get_allocates_nothing() {
    check(true, "get key\r\n", "VALUE key 0 1\r\nv\r\nEND\r\n");
    check(false, "get key\r\n", "VALUE key 0 1\r\nv\r\nEND\r\n");
}

#[test]
fn a_set_allocates_nothing() {
    check(true, "set key 0 0 1\r\nv\r\n", "STORED\r\n");
    check(true, "set key 0 0 1 noreply\r\nv\r\nincr key 1\r\n", "42\r\n");
}

#[test]
fn a_pipeline_allocates_nothing() {
    let request = "get a\r\nset b 0 0 1\r\nv\r\nget b\r\nincr c 1\r\n".repeat(4);
    let answered =
        "VALUE a 0 1\r\nv\r\nEND\r\nSTORED\r\nVALUE b 0 1\r\nv\r\nEND\r\n42\r\n".repeat(4);
    check(true, &request, &answered);
}

#[test]
fn a_get_of_many_keys_allocates_nothing() {
    let keys: Vec<String> = (0..20).map(|n| format!("key{n}")).collect();
    let values: String = keys.iter().map(|key| format!("VALUE {key} 0 1\r\nv\r\n")).collect();
    check(true, format!("get {}\r\n", keys.join(" ")), format!("{values}END\r\n"));
}

#[test]
fn meta_requests_allocate_nothing() {
    check(true, "mg key v k O1\r\n", "VA 1 kkey O1\r\nv\r\n");
    check(true, "mg key v c\r\nget key\r\n", "VA 1 c7\r\nv\r\nVALUE key 0 1\r\nv\r\nEND\r\n");
    check(true, "ms key 1 O2\r\nv\r\n", "HD O2\r\n");
}

#[test]
fn requests_of_redis_allocate_nothing() {
    let get = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
    let set = "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\nv\r\n";
    let incr = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
    let mget = "*3\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n";
    let ping = "*1\r\n$4\r\nPING\r\n";
    check(true, get, "$1\r\nv\r\n");
    check(true, set, "+OK\r\n");
    let all = [get, set, incr, mget, ping].concat().repeat(4);
    let told = "$1\r\nv\r\n+OK\r\n:42\r\n*2\r\n$1\r\nv\r\n$-1\r\n+PONG\r\n".repeat(4);
    check(true, all, told);
}

/// Makes a packet: magic, opcode, cas number; extras, key and value.
fn packet([magic, code]: [u8; 2], cas: u64, [extras, key, value]: [&[u8]; 3]) -> Vec<u8> {
    Packet { magic, cas, extras, key, value, ..Packet::new(code, 9) }.bytes()
}

#[test]
fn packets_allocate_nothing() {
    let get = packet([0x80, 0x00], 0, [b"", b"key", b""]);
    check(true, &get, packet([0x81, 0x00], 7, [&[0; 4], b"", b"v"]));
    let set = packet([0x80, 0x01], 0, [&[0; 8], b"key", b"v"]);
    check(true, &set, packet([0x81, 0x01], 7, [b"", b"", b""]));
    let quiet = packet([0x80, 0x0d], 0, [b"", b"key", b""]).repeat(20);
    let noop = packet([0x80, 0x0a], 0, [b"", b"", b""]);
    let hits = packet([0x81, 0x0d], 7, [&[0; 4], b"key", b"v"]).repeat(20);
    let done = packet([0x81, 0x0a], 0, [b"", b"", b""]);
    check(true, [quiet, noop].concat(), [hits, done].concat());
}
