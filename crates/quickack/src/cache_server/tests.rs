//! Tests the server as a value: bytes in, bytes out, no socket.

use super::*;

const SINCE_EPOCH: Duration = Duration::from_secs(1_700_000_000);
const ITEM_SIZE_MAX: usize = 1 << 20;

/// A server with one client that reads everything unless a test says otherwise.
struct World {
    server: CacheServer,
    client: ConnId,
    now: Time,
    paused: bool,
    closed: bool,
}

impl World {
    fn new() -> World {
        let options =
            Options { memory_max: 64 << 20, item_size_max: ITEM_SIZE_MAX, clients_max: 2, pid: 42 };
        let mut server = CacheServer::new(options, SINCE_EPOCH);
        let client = server.handle_accept(0, Time(0)).expect("the first client is welcome");
        World { server, client, now: Time(0), paused: false, closed: false }
    }

    fn send(&mut self, bytes: &[u8]) {
        for block in bytes.chunks(64 * 1024) {
            let len = block.len();
            self.server.handle_received(
                self.client,
                &Rc::new(block.to_vec().into()),
                len,
                self.now,
            );
            self.act();
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Pause(id) => self.paused |= id == self.client,
                Action::Resume(id) => self.paused &= id != self.client,
                Action::Close(id) | Action::End(id) => self.closed |= id == self.client,
                _ => {}
            }
        }
    }

    /// Returns the number of bytes that wait for the client.
    fn waiting(&self) -> usize {
        let mut slices = Slices::default();
        self.server.transmit(self.client, &mut slices);
        slices.iter().map(|slice| slice.len()).sum()
    }

    /// Reads up to `max` bytes in one write.
    fn read(&mut self, max: usize) -> Vec<u8> {
        let mut slices = Slices::default();
        self.server.transmit(self.client, &mut slices);
        let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        bytes.truncate(max);
        if !bytes.is_empty() {
            self.server.handle_transmitted(self.client, bytes.len(), self.now);
            self.act();
        }
        bytes
    }

    fn read_all(&mut self) -> String {
        let mut all = Vec::new();
        while self.waiting() > 0 {
            all.extend(self.read(usize::MAX));
        }
        String::from_utf8(all).expect("these tests speak text")
    }

    #[track_caller]
    fn ask(&mut self, request: &str, reply: &str) {
        self.send(request.as_bytes());
        assert_eq!(self.read_all(), reply, "{request:?}");
    }
}

/// Requests and memcached's replies.
const DIALOGUE: &[(&str, &str)] = &[
    ("get a\r\n", "END\r\n"),
    ("set a 7 0 3\r\nabc\r\n", "STORED\r\n"),
    ("gets a b a\r\n", "VALUE a 7 3 1\r\nabc\r\nVALUE a 7 3 1\r\nabc\r\nEND\r\n"),
    ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
    ("cas a 8 0 1 9\r\nx\r\n", "EXISTS\r\n"),
    ("cas a 8 0 1 1\r\nx\r\n", "STORED\r\n"),
    ("cas none 8 0 1 1\r\nx\r\n", "NOT_FOUND\r\n"),
    ("append a 0 0 2\r\nyz\r\n", "STORED\r\n"),
    ("prepend a 0 0 1 noreply\r\nw\r\n", ""),
    ("get a\r\n", "VALUE a 8 4\r\nwxyz\r\nEND\r\n"),
    ("replace n 0 0 2\r\n10\r\n", "NOT_STORED\r\n"),
    ("set n 0 0 2\r\n10\r\n", "STORED\r\n"),
    ("incr n 90\r\n", "100\r\n"),
    ("decr n 1\r\n", "99\r\n"),
    ("incr n 1 noreply\r\n", ""),
    ("get n\r\n", "VALUE n 0 3\r\n100\r\nEND\r\n"),
    ("incr a 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    ("incr none 1\r\n", "NOT_FOUND\r\n"),
    ("touch n 100\r\n", "TOUCHED\r\n"),
    ("touch none 100\r\n", "NOT_FOUND\r\n"),
    ("gat 100 n none\r\n", "VALUE n 0 3\r\n100\r\nEND\r\n"),
    ("delete n\r\n", "DELETED\r\n"),
    ("delete n\r\n", "NOT_FOUND\r\n"),
    ("delete a noreply\r\n", ""),
    ("set e 0 0 0\r\n\r\n", "STORED\r\n"),
    ("get e\r\n", "VALUE e 0 0\r\n\r\nEND\r\n"),
    ("set gone 0 -1 1\r\nx\r\n", "STORED\r\n"),
    ("get gone\r\n", "END\r\n"),
    ("set bad x 0 5\r\nget e\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ("set e 0 0 1\r\nxyz\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    ("set e 0 0 1 noreply\r\nxyz", ""),
    ("get\r\n", "ERROR\r\n"),
    ("nonsense\r\n", "ERROR\r\n"),
    ("mg e v\r\n", "VA 0\r\n\r\n"),
    ("ms m 3 T100 F7 c O1 k\r\nabc\r\n", "HD c11 O1 km\r\n"),
    ("mg m s f v c t k O2 q h\r\n", "VA 3 s3 f7 c11 t100 km O2 h0\r\nabc\r\n"),
    ("mg m h t T30 t u\r\n", "CLIENT_ERROR duplicate flag\r\n"),
    ("mg m h t T30 u\r\n", "HD h1 t100\r\n"),
    ("mg m t R30\r\nmg m R31\r\nmg m R31 k\r\n", "HD t30\r\nHD W\r\nHD km Z\r\n"),
    ("ms m 1 MR C3 O3 c\r\nx\r\n", "EX O3 c0\r\n"),
    ("ms m 1 ME q\r\nx\r\n", "NS\r\n"),
    ("ms m 2 MA q\r\nde\r\nms m 1 MP\r\n_\r\nmn\r\n", "HD\r\nMN\r\n"),
    ("mg m v k\r\n", "VA 6 km\r\n_abcde\r\n"),
    ("mg none q v\r\nmg none O9 k\r\n", "EN O9 knone\r\n"),
    ("mg made N30 t v\r\nmg made t\r\n", "VA 0 t30 W\r\n\r\nHD t30 Z\r\n"),
    ("md m I T60 O4 k\r\nmg m v t\r\n", "HD O4 km\r\nVA 6 t60 X W\r\n_abcde\r\n"),
    ("mg m\r\nmd m C1\r\nmd m q\r\nmd m q\r\n", "HD Z X\r\nEX\r\nNF\r\n"),
    ("ma c N60 J5 q v t\r\nma c q\r\nma c MD D2 v O1\r\n", "VA 1 t60\r\n5\r\nVA 1 O1\r\n4\r\n"),
    ("ma none k O1\r\nma c C1 k\r\n", "NF knone O1\r\nEX kc\r\n"),
    ("ms YSBi 2 b k\r\n42\r\nmg YSBi b k v\r\n", "HD kYSBi b\r\nVA 2 kYSBi b\r\n42\r\n"),
    ("me YSBi b\r\n", "ME YSBi exp=-1 la=0 cas=19 fetch=yes cls=1 size=64\r\n"),
    ("ms a2V5 1 b\r\nv\r\nget key\r\n", "HD\r\nVALUE key 0 1\r\nv\r\nEND\r\n"),
    ("mg key k\r\nme none\r\nmn x y\r\n", "HD ka2V5 b\r\nEN\r\nMN\r\n"),
    ("ms key 1 E5 c\r\nv\r\nmd key x E7\r\nmg key c v\r\n", "HD c5\r\nHD\r\nVA 0 c7\r\n\r\n"),
    ("ms e 1\r\nxyz\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    ("verbosity 1\r\n", "OK\r\n"),
    ("flush_all\r\n", "OK\r\n"),
    ("get e\r\n", "END\r\n"),
];

#[test]
fn a_dialogue_in_memcacheds_words() {
    let mut world = World::new();
    for (request, reply) in DIALOGUE {
        world.ask(request, reply);
    }
    let version = format!("VERSION 1.6.18 quickack-{}\r\n", env!("CARGO_PKG_VERSION"));
    world.ask("version\r\n", &version);
}

#[test]
fn any_cut_gives_the_same_answers() {
    let requests: String = DIALOGUE.iter().map(|(request, _)| *request).collect();
    let replies: String = DIALOGUE.iter().map(|(_, reply)| *reply).collect();
    for cut in 0..=requests.len() {
        let mut world = World::new();
        world.send(&requests.as_bytes()[..cut]);
        world.send(&requests.as_bytes()[cut..]);
        assert_eq!(world.read_all(), replies, "cut at {cut}");
    }
    let mut world = World::new();
    requests.bytes().for_each(|byte| world.send(&[byte]));
    assert_eq!(world.read_all(), replies);
}

#[test]
fn what_one_read_asked_leaves_in_one_write() {
    let mut world = World::new();
    world.send("set k 0 0 1\r\nx\r\nget k\r\n".repeat(100).as_bytes());
    let expected = "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n".repeat(100);
    assert_eq!(world.read(usize::MAX), expected.as_bytes());
}

#[test]
fn a_client_that_does_not_read_is_not_read() {
    let mut world = World::new();
    let value = "v".repeat(500_000);
    world.ask(&format!("set k 0 0 500000\r\n{value}\r\n"), "STORED\r\n");
    let keys = " k".repeat(50);
    world.send(format!("get{keys}\r\nget k\r\n").as_bytes());
    assert!(world.paused);
    assert!(world.waiting() < 6 << 20, "{} bytes wait", world.waiting());
    let one = format!("VALUE k 0 500000\r\n{value}\r\n");
    let expected = format!("{}END\r\n{one}END\r\n", one.repeat(50));
    let mut got = Vec::new();
    while world.waiting() > 0 {
        got.extend(world.read(300_000));
        assert!(world.waiting() < 6 << 20, "{} bytes wait", world.waiting());
    }
    assert!(got == expected.as_bytes(), "{} bytes, not {}", got.len(), expected.len());
    assert!(!world.paused);
    world.ask("get none\r\n", "END\r\n");
}

#[test]
fn a_value_that_is_too_large_costs_nothing_and_leaves_no_stale_one() {
    let mut world = World::new();
    // As in memcached, an `ms` drops the old value in every mode.
    for (line, keeps) in [
        ("set k 0 0 LEN", false),
        ("add k 0 0 LEN", true),
        ("ms k LEN", false),
        ("ms aw== LEN b ME q", false),
    ] {
        world.ask("set k 0 0 1\r\nx\r\n", "STORED\r\n");
        let len = 50 << 20;
        let line = line.replace("LEN", &len.to_string());
        world.send(format!("{line}\r\n").as_bytes());
        let chunk = vec![b'v'; 1 << 20];
        for _ in 0..50 {
            world.send(&chunk);
            assert!(world.server.executor.held < 1 << 17);
            assert_eq!(world.waiting(), 0, "the answer comes when the data has passed");
        }
        world.ask("\r\n", "SERVER_ERROR object too large for cache\r\n");
        let left = if keeps { "VALUE k 0 1\r\nx\r\nEND\r\n" } else { "END\r\n" };
        world.ask("get k\r\n", left);
    }
}

#[test]
fn unfinished_values_are_bounded_together_and_given_back() {
    let mut world = World::new();
    world.send(b"set k 0 0 1000000\r\nx");
    assert!((1_000_000..1_100_000).contains(&world.server.executor.held));
    world.server.executor.held += 128 << 20;
    let other = world.server.handle_accept(0, Time(0)).expect("there is room for two");
    let first = std::mem::replace(&mut world.client, other);
    world.send(b"set k 0 0 1000000\r\n");
    world.send(&vec![b'v'; 1_000_000]);
    world.ask("\r\n", "SERVER_ERROR out of memory storing object\r\n");
    world.server.executor.held -= 128 << 20;
    world.server.handle_closed(first, Closed::Reset, Time(0));
    assert_eq!(world.server.executor.held, 0);
}

#[test]
fn quit_ends_the_talk_even_within_a_segment() {
    let mut world = World::new();
    world.send(b"get a\r\nquit\r\nset a 0 0 1\r\nx\r\n");
    assert!(!world.closed, "the first answer must leave before");
    assert_eq!(world.read_all(), "END\r\n");
    assert!(world.closed);
    assert_eq!(world.server.executor.store.stats().items, 0);
}

#[test]
fn what_cannot_be_understood_is_answered_once_and_closed() {
    let mut world = World::new();
    world.send(b"set a 0 0 -5\r\nget a\r\n");
    assert!(world.read_all().starts_with("CLIENT_ERROR "));
    assert!(world.closed);
}

#[test]
fn a_client_that_says_no_more_still_gets_its_answers() {
    let mut world = World::new();
    world.send(b"get a\r\nget");
    world.server.handle_closed(world.client, Closed::Eof, Time(0));
    world.act();
    assert!(!world.closed);
    assert_eq!(world.read_all(), "END\r\n");
    assert!(world.closed);
    assert_eq!(world.server.sessions.len(), 0);
}

#[test]
fn draining_answers_what_was_asked_and_then_is_over() {
    let mut world = World::new();
    world.send(b"get a\r\n");
    world.server.drain(Time(0));
    assert!(!world.server.is_drained());
    assert_eq!(world.read_all(), "END\r\n");
    assert!(world.closed && world.server.is_drained());
}

#[test]
fn one_client_too_many_reads_a_sentence() {
    let mut world = World::new();
    assert!(world.server.handle_accept(0, Time(0)).is_ok());
    let refusal = world.server.handle_accept(0, Time(0)).expect_err("two are enough");
    assert_eq!(refusal, b"ERROR Too many open connections\r\n");
    world.server.handle_closed(world.client, Closed::Reset, Time(0));
    let reused = world.server.handle_accept(0, Time(0)).expect("one has gone");
    assert_ne!(reused, world.client, "an old name names nobody");
}

#[test]
fn time_expires_items_and_an_idle_server_takes_their_memory_back() {
    let mut world = World::new();
    world.ask("set a 0 2 1\r\nx\r\nset b 0 0 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    world.now = Time(1_999_999);
    world.ask("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    let due = world.server.poll_timeout().expect("the sweep has its time");
    world.now = Time(due.0.max(2_000_000));
    world.server.handle_timeout(world.now);
    assert_eq!(world.server.executor.store.stats().items, 1);
    world.ask("get a\r\n", "END\r\n");
}

#[test]
fn stats_count_what_was_done() {
    let mut world = World::new();
    world.ask("set a 0 0 1\r\nx\r\nget a b\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    world.send(b"stats\r\n");
    let text = world.read_all();
    for row in [
        "pid 42",
        "cmd_get 2",
        "cmd_set 1",
        "get_hits 1",
        "get_misses 1",
        "curr_items 1",
        "total_items 1",
        "evictions 0",
        "limit_maxbytes 67108864",
        "curr_connections 1",
    ] {
        assert!(text.contains(&format!("STAT {row}\r\n")), "no {row} in {text}");
    }
    assert!(text.ends_with("END\r\n"));
    world.ask("stats nonsense\r\n", "ERROR\r\n");
}
