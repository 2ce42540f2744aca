//! The embedded cache compared with the real memcached: the same requests to both, equal answers.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use testkit::process::{Client, DEADLINE, Memcached, Process, Quickack, facts, send, wait_until};

use super::QUICKACK;

/// A separate cache process, on a port of its choice.
pub struct Cache {
    process: Process,
    address: SocketAddr,
}

impl Cache {
    pub fn start(memory: &str) -> Cache {
        let mut command = Command::new(QUICKACK);
        command.args(["cache", "--listen", "127.0.0.1:0", "--memory", memory]);
        let mut process = Process::start("cache", &mut command);
        let address = process.wait_for("where it listens", |text| {
            let (_, rest) = text.split_once("cache: listening on ")?;
            rest.lines().next()?.parse().ok()
        });
        Cache { process, address }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    fn stat(&self, name: &str) -> u64 {
        self.client().stat(name)
    }
}

/// Draws requests.
#[derive(Clone)]
pub struct Random(testkit::random::Random);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(testkit::random::Random::new(seed))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound as usize) as u64
    }

    pub fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        self.0.pick::<&str>(words)
    }

    pub fn value(&mut self) -> String {
        match self.below(8) {
            0..3 => (self.0.number() >> self.below(64)).to_string(),
            3 => format!("{}{}", self.pick(&["", " ", "+", "0", "x"]), self.below(1000)),
            4 => format!("{}{}", self.below(1000), self.pick(&[" ", " x", "x", "\n1", "\t"])),
            _ => "v".repeat(self.below(300) as usize),
        }
    }

    /// Makes one request. `cas` is a number that the key `k0` may have on that side.
    fn request(&mut self, cas: &str) -> String {
        let key = format!("k{}", self.below(12));
        let exptime = ["0", "0", "0", "100", "-1", "2592001", "2000000000", "+100", "4294967296"];
        let exptime = self.pick(&exptime);
        let flags = self.pick(&["0", "0", "7", "4294967295", "+7", "4294967303"]);
        let value = self.value();
        let quiet = self.pick(&["", "", "", " noreply"]);
        let data = format!("{}{quiet}\r\n{value}\r\n", value.len());
        match self.below(24) {
            0..6 => format!("set {key} {flags} {exptime} {data}"),
            6 => format!("add {key} {flags} {exptime} {data}"),
            7 => format!("replace {key} {flags} {exptime} {data}"),
            8 => format!("append {key} {flags} {exptime} {data}"),
            9 => format!("prepend {key} {flags} {exptime} {data}"),
            10 => format!("cas k0 {flags} {exptime} {} {cas}\r\n{value}\r\n", value.len()),
            11 => format!("cas {key} 0 0 1 1\r\nx\r\n"),
            12..14 => format!("incr {key} {}{quiet}\r\n", self.0.number() >> self.below(64)),
            14..16 => format!("decr {key} {}{quiet}\r\n", self.0.number() >> self.below(64)),
            16 => format!("touch {key} {exptime}{quiet}\r\n"),
            17 => format!("gat {exptime} {key} k1 k2\r\n"),
            18 => format!("delete {key}{quiet}\r\n"),
            19 => format!("get {key} k3 {key} none\r\n"),
            20 if self.below(10) == 0 => format!("flush_all{quiet}\r\n"),
            _ => format!("get {key}\r\n"),
        }
    }
}

/// Returns the current cas number of `k0`; the two sides agree only on when it changes.
fn cas_of_k0(client: &mut Client) -> String {
    client.send("gets k0\r\n");
    let text = client.read_until("END\r\n");
    let line = text.lines().next().unwrap_or_default();
    line.split(' ').nth(4).unwrap_or("999999").to_string()
}

/// Returns all answers, up to that of a request with a unique answer.
fn answers(client: &mut Client, request: &str) -> String {
    client.send(format!("{request}get the-end\r\nmn\r\n"));
    client.read_until("END\r\nMN\r\n")
}

#[test]
fn random_histories_have_the_same_answers_as_memcacheds() {
    let (memcached, cache) = (Memcached::quiet(), Cache::start("64m"));
    let (mut theirs, mut ours) = (memcached.client(), cache.client());
    let mut random = Random::new(1);
    for step in 0..6_000 {
        let (their_cas, our_cas) = (cas_of_k0(&mut theirs), cas_of_k0(&mut ours));
        assert_eq!(their_cas == "999999", our_cas == "999999", "step {step}");
        let their_request = random.clone().request(&their_cas);
        let our_request = random.request(&our_cas);
        let expected = answers(&mut theirs, &their_request);
        assert_eq!(answers(&mut ours, &our_request), expected, "{step}: {our_request:?}");
    }
}

#[test]
fn edges_are_where_memcacheds_are() {
    let (memcached, cache) = (Memcached::quiet(), Cache::start("64m"));
    let (mut theirs, mut ours) = (memcached.client(), cache.client());
    let long = "k".repeat(250);
    for request in [
        format!("set {long} 0 0 1\r\nx\r\nget {long}\r\n"),
        format!("get {long}k\r\n"),
        "set n 0 0 20\r\n18446744073709551615\r\nincr n 1\r\nget n\r\nincr n 5\r\nget n\r\n".into(),
        "set n 0 0 20\r\n18446744073709551616\r\nincr n 1\r\n".into(),
        "set n 0 0 24\r\n000000000000000000000007\r\nincr n 1\r\nget n\r\n".into(),
        "set n 0 0 1\r\n9\r\nincr n 1\r\ndecr n 1\r\nget n\r\ndecr n 100\r\nget n\r\n".into(),
        "set n 0 0 0\r\n\r\nincr n 1\r\n".into(),
        "incr none abc\r\n".into(),
        "set a 0 0 1\r\nx\r\nflush_all 1\r\nget a\r\n".into(),
        "set a 0 0 1\r\nx\r\nflush_all 1000\r\nget a\r\nflush_all\r\nget a\r\n".into(),
        "touch a -1\r\nset a 0 0 1\r\nx\r\ntouch a -1\r\nget a\r\n".into(),
        "set a 5 0 1\r\nx\r\nappend a 9 -1 1\r\ny\r\nget a\r\n".into(),
        "set a 0 0 1\r\nxyz\r\n".into(),
        "delete a 1\r\ndelete a 0\r\n".into(),
        "verbosity 1\r\nverbosity\r\n".into(),
        "get\r\ntouch a\r\nincr a\r\nset a\r\n".into(),
    ] {
        let expected = answers(&mut theirs, &request);
        assert_eq!(answers(&mut ours, &request), expected, "{request:?}");
    }
}

#[test]
fn a_store_command_that_memcached_refuses_for_its_size_is_not_silently_kept() {
    let (memcached, cache) = (Memcached::quiet(), Cache::start("64m"));
    let (mut theirs, mut ours) = (memcached.client(), cache.client());
    let value = "v".repeat(1_100_000);
    for line in
        ["set k 0 0 LEN", "add k 0 0 LEN", "append k 0 0 LEN", "ms k LEN q", "ms k LEN ME O1 k"]
    {
        let line = line.replace("LEN", &value.len().to_string());
        let request = format!("set k 0 0 1\r\nx\r\n{line}\r\n{value}\r\nget k\r\n");
        let expected = answers(&mut theirs, &request);
        assert_eq!(answers(&mut ours, &request), expected, "{line}");
    }
}

/// Measures all memory of the process, not only its own count.
#[test]
fn a_full_cache_takes_its_memory_and_no_more_whatever_the_sizes() {
    for sizes in [&[10][..], &[100], &[1_000], &[100_000], &[10, 100, 1_000, 10_000, 40_000]] {
        let cache = Cache::start("32m");
        let mut client = cache.client();
        let mut random = Random::new(2);
        // Each size has its turn, and all of them fill it more than once.
        for round in 0..sizes.len().max(2) * 8 {
            fill(&mut client, &mut random, sizes[round % sizes.len()], 4 << 20);
        }
        assert!(cache.stat("evictions") > 100, "{sizes:?}");
        assert!(cache.stat("bytes") <= 32 << 20);
        let taken = cache.process.facts().status("RssAnon") * 1024;
        let bounds = (32 << 20) * 95 / 100..=(32 << 20) * 105 / 100;
        assert!(bounds.contains(&taken), "{taken} bytes for a memory of 32m and {sizes:?}");
    }
}

/// Stores that many bytes in values of up to twice `size`.
fn fill(client: &mut Client, random: &mut Random, size: u64, bytes: usize) {
    let mut requests = String::new();
    while requests.len() < bytes {
        let len = size / 2 + random.below(size);
        let key = random.below(1 << 20);
        requests.push_str(&format!("set key-{key:07} 0 0 {len} noreply\r\n"));
        requests.push_str(&"v".repeat(len as usize));
        requests.push_str("\r\n");
    }
    client.ask(&(requests + "get none\r\n"), "END\r\n");
}

#[test]
fn a_cache_that_is_killed_is_started_again_empty() {
    let config = "alpha:\n  listen: 127.0.0.1:0\n  memory: 8m\n  servers: [embedded]\n";
    let quickack = Quickack::start(QUICKACK, config);
    let mut client = quickack.client();
    client.ask("set k 3 0 5\r\nhello\r\n", "STORED\r\n");
    client.ask("get k\r\n", "VALUE k 3 5\r\nhello\r\nEND\r\n");
    let cas = cas_of(&mut client, "k");
    let caches = quickack.caches();
    assert_eq!(caches.len(), 1);
    send(caches[0], Signal::KILL);
    let start = Instant::now();
    loop {
        client.send("get k\r\n");
        match client.line().as_str() {
            "END" => break,
            "VALUE k 3 5" => client.expect("hello\r\nEND\r\n"),
            error => assert!(error.starts_with("SERVER_ERROR "), "{error}"),
        }
        assert!(start.elapsed() < DEADLINE, "no new cache: {}", quickack.process.stderr_text());
    }
    assert_ne!(quickack.caches(), caches);
    client.ask("set k 3 0 5\r\nagain\r\n", "STORED\r\n");
    // A client that still has the removed item's number must not overwrite this one.
    assert!(cas_of(&mut client, "k") > cas);
}

fn cas_of(client: &mut Client, key: &str) -> u64 {
    client.send(format!("gets {key}\r\n"));
    let text = client.read_until("END\r\n");
    let line = text.lines().next().expect("it is there");
    line.rsplit(' ').next().and_then(|cas| cas.parse().ok()).expect("a number")
}

#[test]
fn term_ends_it_with_status_0_and_its_answers_given() {
    let mut cache = Cache::start("8m");
    let mut client = cache.client();
    client.ask("set k 0 0 1\r\nx\r\n", "STORED\r\n");
    cache.process.signal(Signal::TERM);
    assert!(cache.process.wait_for_end().success());
    assert_eq!(client.rest(), "");
}

#[test]
fn an_embedded_cache_stays_through_a_refused_reload_and_ends_with_its_pool() {
    let pool = |name: &str, listen: SocketAddr| {
        format!("{name}:\n  listen: {listen}\n  memory: 8m\n  servers: [embedded]\n")
    };
    let memcached = Memcached::start();
    let [any, theirs] = ["127.0.0.1:0".parse().expect("an address"), memcached.address];
    let both = pool("alpha", any) + &pool("beta", any);
    let quickack = Quickack::start(QUICKACK, &both);
    let caches = || -> Vec<u32> {
        let children = facts::children(quickack.process.id()).into_iter();
        children.filter(|(_, name)| name.contains("cache")).map(|(id, _)| id).collect()
    };
    wait_until("each has its cache", || caches().len() == 2);
    let before = caches();
    quickack.rewrite(&(both + &pool("gamma", theirs)));
    assert!(!quickack.admin(&["reload"]).ok, "somebody else listens there");
    assert_eq!(caches()[..2], before);
    wait_until("that of the pool that did not come is gone", || caches() == before);
    quickack.rewrite(&pool("alpha", any));
    quickack.admin_ok(&["reload"]);
    wait_until("that of the pool that went is gone", || caches() == before[..1]);
}

#[test]
fn an_embedded_cache_that_holds_items_keeps_its_size() {
    let text = |memory: &str, more: &str| {
        format!("alpha:\n  listen: 127.0.0.1:0\n  memory: {memory}\n{more}  servers: [embedded]\n")
    };
    let quickack = Quickack::start(QUICKACK, &text("8m", ""));
    let mut client = quickack.client();
    client.ask("set k 0 0 1\r\nx\r\n", "STORED\r\n");
    let before = quickack.caches();
    for (memory, more) in [("16m", ""), ("8m", "  item_size_max: 2m\n")] {
        quickack.rewrite(&text(memory, more));
        let answer = quickack.admin(&["reload"]);
        let told = "of a running embedded cache cannot be changed";
        assert!(!answer.ok && answer.text.contains(told), "{memory} {more}: {answer:?}");
    }
    quickack.rewrite(&text("8m", "  timeout: 50000\n"));
    assert!(quickack.admin_ok(&["reload"]).contains("epoch 2 applied by "));
    assert_eq!(quickack.caches(), before);
    client.ask("get k\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n");
}
