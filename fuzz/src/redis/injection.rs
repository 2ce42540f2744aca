//! Three canaries beside clients that send anything: input meant to end another client's request,
//! to forge a reply, or to be parsed as a command by a server. The servers here are honest, and
//! answer a canary by its own request. So each canary must get its own bytes, all of them, and no
//! others.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use metrics::Registry;
use proxy::plan::{Plan, PoolPlan, ServerPlan};
use proxy::{Action, ConnId, Proxy, Side, Slices, Time};
use testkit::wire::resp::{self, bulk, command, put_array, put_bulk, put_number};

use super::grammar;
use crate::Shown;
use crate::mutate::{self, Dice};

const STEPS: usize = 150;
const CANARIES: usize = 3;
const ATTACKERS: usize = 3;
/// The id of the only pool.
const POOL: u32 = 1;

thread_local! {
    /// Reused by one scene after the other, since the memory of a registry is never freed.
    static REGISTRY: Registry = Registry::private(1, 8);
}

/// Inputs that have broken proxies: line breaks wherever something is echoed, invalid counts and
/// lengths, replies among requests.
const INJECTIONS: &[&[u8]] = &[
    b"*2\r\n$3\r\nGET\r\n$14\r\na\r\n$1\r\nb\r\n+OK\r\n\r\n",
    b"*1\r\n$10\r\nBOGUS\r\n+OK\r\n",
    b"*2\r\n$5\r\nBOGUS\r\n$7\r\n\r\n+OK\r\n\r\n",
    b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$8\r\na\r\n+OK\r\n\r\n",
    b"*2\r\n$4\r\nECHO\r\n$9\r\n\r\n-ERR x\r\n\r\n",
    b"*2\r\n$4\r\nPING\r\n$9\r\n\r\n-ERR x\r\n\r\n",
    b"*3\r\n$6\r\nRENAME\r\n$5\r\na\r\n'b\r\n$5\r\n'\r\n+c\r\n",
    b"*2\r\n$6\r\nSELECT\r\n$7\r\n0\r\n+OK\r\n\r\n",
    b"*2\r\n$5\r\nHELLO\r\n$6\r\n3\r\n:1\r\n\r\n",
    b"*3\r\n$8\r\nFUNCTION\r\n$4\r\nLIST\r\n$9\r\n\r\n-ERR x\r\n\r\n",
    b"*4\r\n$4\r\nEVAL\r\n$9\r\n\r\n-ERR x\r\n\r\n$3\r\n0\r\n\r\n$1\r\na\r\n",
    b"*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$5\r\n*\r\n+a\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*+1\r\n$4\r\nPING\r\n",
    b"*01\r\n$4\r\nPING\r\n",
    b"*1\r\n$04\r\nPING\r\n",
    b"*1\r\n$-1\r\n",
    b"*2\r\n$3\r\nGET\r\n$-1\r\n",
    b"*2147483648\r\n",
    b"*18446744073709551616\r\n",
    b"*4294967297\r\n$4\r\nPING\r\n",
    b"*1\r\n$4294967300\r\nPING\r\n",
    b"*1\r\n$18446744073709551620\r\nPING\r\n",
    b"*1000000\r\n$4\r\nMGET\r\n",
    b"*2\r\n$3\r\nGET\r\n$536870913\r\n",
    b"*1\n$4\nPING\n",
    b"*1\r$4\rPING\r",
    b"*1\r\n$4\r\nPINGXX",
    b"*1\r\n*1\r\n$4\r\nPING\r\n",
    b"*1\r\n:1\r\n",
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":1\r\n",
    b"$5\r\nhello\r\n",
    b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n",
    b"%1\r\n+a\r\n+b\r\n",
    b"GET \"a\\r\\n+OK\\r\\n\"\r\n",
    b"BOGUS \"\\r\\n+OK\\r\\n\"\r\n",
    b"SET a \"unbalanced\r\n",
    b"get a\0b\r\n",
    b"\r\n\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a b\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
];

pub fn run(seed: u64, budget: usize) {
    let corpus = mutate::corpus("redis-request");
    for scene in 0..budget as u64 {
        let seed = seed.wrapping_add(scene);
        let shown = Shown { fuzzer: "injection", seed };
        let mut scene = Scene::new(seed, &corpus);
        (0..STEPS).for_each(|_| scene.step());
        scene.everything_is_answered();
        std::mem::forget(shown);
    }
}

struct Scene<'a> {
    proxy: Proxy,
    now: Time,
    dice: Dice,
    corpus: &'a [Vec<u8>],
    clients: Vec<Client>,
    /// The input that each link's server has not answered, and whether the handshake is done.
    links: HashMap<ConnId, Vec<u8>>,
    /// Those that serve one client alone.
    private: HashSet<ConnId>,
    asked: usize,
}

struct Client {
    id: ConnId,
    paused: bool,
    /// The reply that a canary must get; an attacker may get any.
    expects: Option<Vec<u8>>,
}

impl<'a> Scene<'a> {
    fn new(seed: u64, corpus: &'a [Vec<u8>]) -> Scene<'a> {
        let mut dice = Dice::new(seed);
        let registry = REGISTRY.with(|registry| *registry);
        registry.clear();
        let servers = (0..1 + dice.below(3))
            .map(|number| ServerPlan::new(&format!("s{number}"), &format!("127.0.0.1:{number}"), 1))
            .collect();
        let protocol = proto::protocol("redis").expect("the table has the protocol");
        let mut pool = PoolPlan::new("pool", protocol, servers);
        pool.databases = 4;
        pool.server_connections = 1 + dice.below(2);
        if dice.one_in(2) {
            pool.allow = vec!["flushall".to_string(), "flushdb".to_string()];
        }
        let now = Time(1_000_000);
        let proxy = Proxy::new(Plan::new(vec![pool]), seed, now, registry.metrics(0));
        let (clients, links) = (Vec::new(), HashMap::new());
        let private = HashSet::new();
        let mut scene = Scene { proxy, now, dice, corpus, clients, links, private, asked: 0 };
        (0..CANARIES).for_each(|_| scene.accept(Some(Vec::new())));
        (0..ATTACKERS).for_each(|_| scene.accept(None));
        scene
    }

    fn accept(&mut self, expects: Option<Vec<u8>>) {
        let id = self.proxy.handle_accept(POOL, self.now).expect("there is room");
        self.clients.push(Client { id, paused: false, expects });
    }

    fn step(&mut self) {
        self.now = self.now.after(self.dice.below(200) as u64);
        match self.dice.below(10) {
            0..3 => self.canary_asks(),
            3..6 => self.attack(),
            6..9 => self.server_answers(),
            _ => self.end_turn(),
        }
        self.carry_out();
        self.flush_clients();
        self.proxy.check();
    }

    fn canary_asks(&mut self) {
        let at = self.dice.below(CANARIES);
        if self.clients[at].paused {
            return;
        }
        self.asked += 1;
        let key = format!("canary:{at}:{}", self.asked).into_bytes();
        let (name, count, answer): (&[u8], usize, Vec<u8>) = match self.dice.below(5) {
            0 => (b"ECHO", 1, bulk(&key)),
            1 => (b"MGET", 3, [&b"*3\r\n"[..], &bulk(&key).repeat(3)].concat()),
            2 => (b"SET", 2, b"+OK\r\n".to_vec()),
            3 => (b"DEL", 3, b":3\r\n".to_vec()),
            _ => (b"GET", 1, bulk(&key)),
        };
        let mut words = vec![name];
        words.resize(1 + count, &key);
        let text = command(&words);
        let expects = self.clients[at].expects.as_mut().expect("it is a canary");
        expects.extend_from_slice(&answer);
        let id = self.clients[at].id;
        self.receive(id, &text);
    }

    fn attack(&mut self) {
        if self.clients.len() <= CANARIES {
            return self.accept(None);
        }
        let at = CANARIES + self.dice.below(self.clients.len() - CANARIES);
        if self.clients[at].paused {
            return;
        }
        let text = match self.dice.below(3) {
            0 => self.dice.pick(INJECTIONS).to_vec(),
            _ => mutate::input_of(self.corpus, grammar::request, &mut self.dice),
        };
        let id = self.clients[at].id;
        self.receive(id, &text);
    }

    /// Receives the bytes in one read or in two.
    fn receive(&mut self, id: ConnId, bytes: &[u8]) {
        let cut = self.dice.below(bytes.len() + 1);
        let (first, second) = bytes.split_at(cut);
        for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
            let is_there = self.links.contains_key(&id)
                || self.clients.iter().any(|client| client.id == id && !client.paused);
            if is_there {
                self.proxy.handle_received(
                    id,
                    &Rc::new(part.to_vec().into()),
                    part.len(),
                    self.now,
                );
                self.carry_out();
            }
        }
    }

    /// Lets a server answer its input, honestly.
    fn server_answers(&mut self) {
        let mut ids: Vec<ConnId> = self.links.keys().copied().collect();
        ids.sort_by_key(|id| id.index());
        if ids.is_empty() {
            return;
        }
        let id = ids[self.dice.below(ids.len())];
        self.answer(id);
    }

    fn answer(&mut self, id: ConnId) {
        let heard = self.links.get_mut(&id).expect("the caller found it");
        let mut out = Vec::new();
        while let Some((words, len)) = resp::read_command(heard) {
            heard.drain(..len);
            honest(&words, &mut out);
        }
        if !out.is_empty() {
            self.receive(id, &out);
        }
    }

    fn end_turn(&mut self) {
        self.proxy.end_turn(self.now);
        self.carry_out();
        while let Some(id) = self.proxy.poll_transmit(Side::Link) {
            let bytes = self.take(id);
            self.links.get_mut(&id).expect("a link that stands").extend(bytes);
        }
        self.carry_out();
    }

    fn flush_clients(&mut self) {
        while let Some(id) = self.proxy.poll_transmit(Side::Client) {
            let bytes = self.take(id);
            let client = self.clients.iter_mut().find(|client| client.id == id);
            let Some(expects) = client.and_then(|client| client.expects.as_mut()) else { continue };
            let is_own = expects.starts_with(&bytes);
            assert!(
                is_own,
                "a canary is told b\"{}\", not b\"{}\"",
                bytes.escape_ascii(),
                expects.escape_ascii()
            );
            expects.drain(..bytes.len());
        }
        self.carry_out();
    }

    fn take(&mut self, id: ConnId) -> Vec<u8> {
        let mut slices = Slices::default();
        self.proxy.transmit(id, &mut slices);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.proxy.handle_transmitted(id, bytes.len(), self.now);
        bytes
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.proxy.poll_action() {
            match action {
                Action::Connect { link, .. } => {
                    self.links.insert(link, Vec::new());
                    if !self.proxy.is_shared(link) {
                        self.private.insert(link);
                    }
                    self.proxy.handle_connected(link, self.now);
                }
                Action::Close(id) | Action::End(id) => {
                    let at = self.clients.iter().position(|client| client.id == id);
                    assert!(at.is_none_or(|at| at >= CANARIES), "a canary is closed");
                    self.clients.retain(|client| client.id != id);
                    let link = self.links.remove(&id);
                    // One client's own link ends with what it was for.
                    let is_good = link.is_none() || self.private.remove(&id);
                    assert!(is_good, "what an honest server says is not believed");
                }
                Action::Pause(id) | Action::Resume(id) => {
                    let paused = matches!(action, Action::Pause(_));
                    let client = self.clients.iter_mut().find(|client| client.id == id);
                    client.expect("it is there").paused = paused;
                }
                Action::LookUpEndpoints(id) => {
                    self.proxy.handle_endpoints(id, Default::default(), self.now);
                }
                Action::Inquire { client, .. } => {
                    self.proxy.handle_told(client, Ok(Default::default()), self.now);
                }
                Action::FlushAck(_) | Action::Log(_) | Action::Report(_) => {}
                Action::Slow { .. } | Action::Access { .. } | Action::InPieces { .. } => {}
                Action::Tap { .. } => {}
            }
        }
    }

    fn everything_is_answered(&mut self) {
        for _ in 0..50 {
            self.end_turn();
            let ids: Vec<ConnId> = self.links.keys().copied().collect();
            ids.into_iter().for_each(|id| self.answer(id));
            self.carry_out();
            self.flush_clients();
        }
        for client in &self.clients[..CANARIES] {
            let left = client.expects.as_deref().unwrap_or_default();
            assert!(left.is_empty(), "a canary still waits for b\"{}\"", left.escape_ascii());
        }
    }
}

/// Writes a server's reply: for a canary the answer to its request, for others any reply of the
/// command's shape.
pub fn honest(words: &[Vec<u8>], out: &mut Vec<u8>) {
    let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
    match name.as_str() {
        "HELLO" => {
            let three = words.get(1).is_some_and(|version| version == b"3");
            out.extend_from_slice(if three { b"%3\r\n" } else { b"*6\r\n" });
            out.extend_from_slice(b"+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n");
            out.extend_from_slice(if three { b":3\r\n" } else { b":2\r\n" });
        }
        "GET" => put_bulk(out, &words[1]),
        "MGET" => {
            put_array(out, words.len() - 1);
            words[1..].iter().for_each(|key| put_bulk(out, key));
        }
        "DEL" | "UNLINK" | "EXISTS" | "TOUCH" => put_number(out, words.len() as i64 - 1),
        "DBSIZE" => out.extend_from_slice(b":1\r\n"),
        // Another type is no possible reply.
        "APPEND" | "BITCOUNT" | "BITOP" | "DECR" | "DECRBY" | "EXPIRE" | "EXPIREAT" | "GETBIT"
        | "HDEL" | "HEXISTS" | "HINCRBY" | "HLEN" | "HSETNX" | "HSTRLEN" | "INCR" | "INCRBY"
        | "LASTSAVE" | "LINSERT" | "LLEN" | "LPUSH" | "LPUSHX" | "LREM" | "PERSIST" | "PEXPIRE"
        | "PEXPIREAT" | "PFADD" | "PTTL" | "PUBLISH" | "RPUSH" | "RPUSHX" | "SADD" | "SCARD"
        | "SDIFFSTORE" | "SETBIT" | "SETNX" | "SETRANGE" | "SINTERSTORE" | "SISMEMBER"
        | "SMOVE" | "SREM" | "STRLEN" | "SUNIONSTORE" | "TTL" | "XDEL" | "XLEN" | "ZCARD"
        | "ZCOUNT" | "ZLEXCOUNT" | "ZREM" | "ZREMRANGEBYLEX" | "ZREMRANGEBYRANK"
        | "ZREMRANGEBYSCORE" => out.extend_from_slice(b":1\r\n"),
        "SCAN" => out.extend_from_slice(b"*2\r\n$1\r\n0\r\n*0\r\n"),
        "KEYS" | "LRANGE" => out.extend_from_slice(b"*0\r\n"),
        "RANDOMKEY" => out.extend_from_slice(b"$1\r\na\r\n"),
        "SCRIPT" if words.get(1).is_some_and(|sub| sub.eq_ignore_ascii_case(b"load")) => {
            put_bulk(out, &[b'f'; 40]);
        }
        "SCRIPT" if words.get(1).is_some_and(|sub| sub.eq_ignore_ascii_case(b"exists")) => {
            put_array(out, words.len() - 2);
            words[2..].iter().for_each(|_| out.extend_from_slice(b":0\r\n"));
        }
        // In RESP2, as on a link for subscriptions.
        "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE"
        | "SUNSUBSCRIBE" => {
            for topic in &words[1..] {
                put_array(out, 3);
                put_bulk(out, name.to_ascii_lowercase().as_bytes());
                put_bulk(out, topic);
                put_number(out, 1);
            }
        }
        "INFO" => put_bulk(out, b"# Server\r\nredis_version:7.0.15\r\n"),
        _ => out.extend_from_slice(b"+OK\r\n"),
    }
}
