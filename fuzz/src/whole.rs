//! The data plane between clients and servers that send anything, at any time, in any pieces. No
//! reply is judged here (the simulator does that). It must not panic, its invariants must hold
//! after every step, and no state may be left when all connections are gone. A server must be able
//! to parse its input as one command after the other.

use std::collections::HashMap;
use std::rc::Rc;

use metrics::Registry;
use proto::{Class, PROTOCOLS, Parsed, Resume};
use proxy::limits::Limits;
use proxy::plan::{MultiKey, OnFailure, Partial, Plan, PoolPlan, QuickAck, ServerPlan};
use proxy::{Action, Closed, ConnId, Proxy, Side, Slices, Time};
use shard::Distribution;
use testkit::wire::resp;

use crate::Shown;
use crate::mutate::{self, Dice};
use crate::redis::grammar;
use crate::redis::injection::honest;
use crate::server::Ear;

const STEPS: usize = 200;
const CLIENTS_MAX: usize = 8;
/// The id of the only pool.
const POOL: u32 = 1;

thread_local! {
    /// Reused by one scene after the other, since the memory of a registry is never freed.
    static REGISTRY: Registry = Registry::private(1, ROWS);
}
/// Ids of a pool and a few servers, and the worker's own.
const ROWS: usize = 8;

pub fn run(seed: u64, budget: usize) {
    let requests = ["request", "packet", "redis-request"].map(mutate::corpus);
    let replies = ["reply", "redis-reply"].map(mutate::corpus);
    for scene in 0..budget as u64 {
        let seed = seed.wrapping_add(scene);
        let shown = Shown { fuzzer: "whole", seed };
        let mut scene = Scene::new(seed, &requests, &replies);
        (0..STEPS).for_each(|_| scene.step());
        scene.everybody_goes();
        std::mem::forget(shown);
    }
}

/// A driver that follows the contract, with peers that do not.
struct Scene<'a> {
    proxy: Proxy,
    /// The plan with every server that may be in use.
    plan: Plan,
    now: Time,
    dice: Dice,
    /// The servers are Redis.
    is_redis: bool,
    /// Requests in lines, in packets, and in RESP.
    requests: &'a [Vec<Vec<u8>>; 3],
    replies: &'a [Vec<u8>],
    clients: Vec<Client>,
    /// Links that were requested and have neither connected nor failed.
    connecting: Vec<ConnId>,
    links: Vec<ConnId>,
    /// The input that each link's server has not answered yet.
    heard: HashMap<ConnId, Vec<u8>>,
    /// A real server's parser for each link, which checks the input whatever the server answers.
    ears: HashMap<ConnId, Ear>,
    /// Connections of which the kernel accepted only a part of the output.
    blocked: Vec<ConnId>,
}

struct Client {
    id: ConnId,
    /// It usually sends packets.
    binary: bool,
    paused: bool,
    ended: bool,
}

impl<'a> Scene<'a> {
    fn new(
        seed: u64,
        requests: &'a [Vec<Vec<u8>>; 3],
        replies: &'a [Vec<Vec<u8>>; 2],
    ) -> Scene<'a> {
        let mut dice = Dice::new(seed);
        let now = Time(dice.below(1000) as u64);
        let registry = REGISTRY.with(|registry| *registry);
        registry.clear();
        let is_redis = dice.one_in(2);
        let plan = plan(is_redis, &mut dice);
        let replies = &replies[usize::from(is_redis)];
        Scene {
            is_redis,
            proxy: Proxy::new(plan.clone(), seed, now, registry.metrics(0)),
            plan,
            now,
            dice,
            requests,
            replies,
            clients: Vec::new(),
            connecting: Vec::new(),
            links: Vec::new(),
            heard: HashMap::new(),
            ears: HashMap::new(),
            blocked: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.dice.below(20) {
            0 => self.accept(),
            1..=8 => self.client_speaks(),
            9..=12 => self.server_speaks(),
            13 | 14 => self.connect_settles(),
            15 => self.somebody_goes(),
            16 => self.time_passes(),
            17 => self.transmit_blocked(),
            18 if self.dice.one_in(4) => self.plan_changes(),
            _ => self.end_turn(),
        }
        self.carry_out();
        self.transmit(Side::Client);
        self.proxy.check();
    }

    fn accept(&mut self) {
        if self.clients.len() >= CLIENTS_MAX {
            return;
        }
        match self.proxy.handle_accept(POOL, self.now) {
            Ok(id) => {
                let binary = self.dice.one_in(3);
                self.clients.push(Client { id, binary, paused: false, ended: false });
            }
            Err(words) => assert!(words.ends_with(b"\r\n"), "a refusal is a line"),
        }
    }

    fn client_speaks(&mut self) {
        if self.clients.is_empty() {
            return self.accept();
        }
        let client = &self.clients[self.dice.below(self.clients.len())];
        if client.paused || client.ended {
            return;
        }
        let (id, corpus) = (client.id, usize::from(client.binary));
        let bytes = match self.is_redis {
            true => mutate::input_of(&self.requests[2], grammar::request, &mut self.dice),
            false => mutate::input(&self.requests[corpus], &mut self.dice),
        };
        self.receive(id, bytes);
    }

    fn server_speaks(&mut self) {
        if self.links.is_empty() {
            return;
        }
        let id = self.links[self.dice.below(self.links.len())];
        let bytes = match self.dice.below(20) {
            0 if self.is_redis => mutate::input_of(self.replies, grammar::reply, &mut self.dice),
            0 => mutate::input(self.replies, &mut self.dice),
            1 => self.replies[self.dice.below(self.replies.len())].clone(),
            _ if self.is_redis => {
                half_honest_redis(self.heard.entry(id).or_default(), &mut self.dice)
            }
            _ => half_honest(self.heard.entry(id).or_default(), &mut self.dice),
        };
        self.receive(id, bytes);
    }

    /// Receives the bytes in one read or in two.
    fn receive(&mut self, id: ConnId, bytes: Vec<u8>) {
        let cut = self.dice.below(bytes.len() + 1);
        let (first, second) = bytes.split_at(cut);
        for part in [first, second] {
            if part.is_empty() || !self.is_open(id) {
                continue;
            }
            let mut block = part.to_vec();
            block.resize(part.len() + self.dice.below(64), b'!');
            self.proxy.handle_received(id, &Rc::new(block.into()), part.len(), self.now);
            self.carry_out();
        }
    }

    /// Returns whether the driver may still read it.
    fn is_open(&self, id: ConnId) -> bool {
        self.links.contains(&id)
            || self.clients.iter().any(|client| client.id == id && !client.paused && !client.ended)
    }

    fn connect_settles(&mut self) {
        if self.connecting.is_empty() {
            return;
        }
        let id = self.connecting.swap_remove(self.dice.below(self.connecting.len()));
        if self.dice.one_in(4) {
            self.proxy.handle_closed(id, Closed::Reset, self.now);
        } else {
            self.links.push(id);
            self.proxy.handle_connected(id, self.now);
        }
    }

    fn somebody_goes(&mut self) {
        let how = if self.dice.one_in(2) { Closed::Eof } else { Closed::Reset };
        if self.dice.one_in(2) && !self.links.is_empty() {
            let id = self.links.swap_remove(self.dice.below(self.links.len()));
            self.proxy.handle_closed(id, how, self.now);
        } else if !self.clients.is_empty() {
            let at = self.dice.below(self.clients.len());
            let client = &mut self.clients[at];
            if how == Closed::Eof && client.ended {
                return;
            }
            client.ended = true;
            let id = client.id;
            if how == Closed::Reset {
                self.clients.swap_remove(at);
            }
            self.proxy.handle_closed(id, how, self.now);
        }
    }

    fn time_passes(&mut self) {
        let step = [1, 1_000, 100_000, 1_100_000, 40_000_000][self.dice.below(5)];
        self.now = self.now.after(step);
        if self.proxy.poll_timeout().is_some_and(|due| due <= self.now) {
            self.proxy.handle_timeout(self.now);
        }
    }

    /// Changes the plan: some of the servers, the number of links, a deadline; or ejects or returns
    /// a server.
    fn plan_changes(&mut self) {
        let count = self.plan.pools[0].servers.len();
        let server = self.dice.below(count);
        if self.dice.one_in(3) {
            let number = self.plan.pools[0].servers[server].id;
            return self.proxy.set_ejected(number, self.dice.one_in(2), self.now);
        }
        let mut plan = self.plan.clone();
        let pool = &mut plan.pools[0];
        if count > 1 && self.dice.one_in(2) {
            pool.servers.remove(server);
        }
        pool.server_connections = 1 + self.dice.below(3);
        pool.timeouts.reply = [1_000, 1_000_000][self.dice.below(2)];
        self.proxy.install(plan, self.now);
    }

    fn end_turn(&mut self) {
        self.proxy.end_turn(self.now);
        self.carry_out();
        self.transmit(Side::Link);
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.proxy.poll_action() {
            match action {
                Action::Connect { link, .. } => self.connecting.push(link),
                Action::Close(id) | Action::End(id) => {
                    self.clients.retain(|client| client.id != id);
                    self.links.retain(|&link| link != id);
                    self.connecting.retain(|&link| link != id);
                }
                Action::Pause(id) | Action::Resume(id) => {
                    let paused = matches!(action, Action::Pause(_));
                    self.clients
                        .iter_mut()
                        .filter(|client| client.id == id)
                        .for_each(|client| client.paused = paused);
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

    fn transmit(&mut self, side: Side) {
        while let Some(id) = self.proxy.poll_transmit(side) {
            self.write(id);
        }
        self.carry_out();
    }

    fn transmit_blocked(&mut self) {
        for id in std::mem::take(&mut self.blocked) {
            self.write(id);
        }
        self.carry_out();
    }

    /// Writes all output, or in one of eight cases a part; the rest waits until the socket is
    /// writable.
    fn write(&mut self, id: ConnId) {
        let mut slices = Slices::default();
        self.proxy.transmit(id, &mut slices);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let taken =
            if self.dice.one_in(8) { self.dice.below(bytes.len() + 1) } else { bytes.len() };
        if taken > 0 {
            if !id.is_client() {
                if !self.is_redis {
                    self.ears.entry(id).or_default().hear(&bytes[..taken]);
                }
                self.heard.entry(id).or_default().extend_from_slice(&bytes[..taken]);
            }
            self.proxy.handle_transmitted(id, taken, self.now);
        }
        if taken < bytes.len() {
            self.blocked.push(id);
        }
    }

    /// Closes everything: without clients and links, no request may be left.
    fn everybody_goes(&mut self) {
        for client in std::mem::take(&mut self.clients) {
            self.proxy.handle_closed(client.id, Closed::Reset, self.now);
        }
        self.carry_out();
        for _ in 0..4 {
            self.end_turn();
            for id in self.links.drain(..).chain(self.connecting.drain(..)).collect::<Vec<_>>() {
                self.proxy.handle_closed(id, Closed::Reset, self.now);
            }
            self.carry_out();
            self.now = self.now.after(100_000_000);
            self.proxy.handle_timeout(self.now);
            self.carry_out();
            self.proxy.check();
        }
        let (ids, clients, _) = self.proxy.census();
        assert_eq!((ids, clients), (0, 0), "requests and clients that nobody waits for");
    }
}

/// Makes possible answers to a part of a server's input: values that nobody stored, hits and
/// misses, sometimes an error or a short value.
fn half_honest(heard: &mut Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    let protocol = PROTOCOLS[0];
    let mut out = Vec::new();
    let mut keys = Vec::new();
    while let Parsed::Complete(request) =
        protocol.parse_request(heard, &mut Resume::default(), &mut keys)
        && request.len() <= heard.len() as u64
        && !dice.one_in(5)
    {
        let cas =
            if heard.starts_with(b"gats ") || heard.starts_with(b"gets ") { " 7" } else { "" };
        let fetch = matches!(request.class, Class::Fetch { .. }) && heard.starts_with(b"g");
        for key in keys.iter().filter(|_| fetch && dice.one_in(2)).collect::<Vec<_>>() {
            let len = if dice.one_in(10) { dice.below(100_000) } else { dice.below(20) };
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(key.of(heard));
            out.extend_from_slice(format!(" 0 {len}{cas}\r\n").as_bytes());
            out.resize(out.len() + len - dice.below(50).saturating_sub(48).min(len), b'v');
            out.extend_from_slice(b"\r\n");
        }
        let name = protocol.command_name(request.command);
        out.extend_from_slice(match name {
            _ if dice.one_in(20) => b"SERVER_ERROR busy\r\n",
            "get" | "gets" | "gat" | "gats" => b"END\r\n",
            "delete" => b"DELETED\r\n",
            "incr" | "decr" => b"5\r\n",
            "touch" => b"TOUCHED\r\n",
            "flush_all" => b"OK\r\n",
            "version" => dice.pick(&[&b"VERSION 1.6.18\r\n"[..], b"VERSION 1.4.0\r\n"]),
            "mg" => dice.pick(&[&b"EN\r\n"[..], b"HD f7 c1\r\n", b"VA 2 f7 c1 W\r\nab\r\n"]),
            "ms" | "md" => dice.pick(&[&b"HD c1\r\n"[..], b"NF\r\n", b"EX\r\n"]),
            "ma" => dice.pick(&[&b"HD c1\r\n"[..], b"NF\r\n", b"VA 2 c1\r\n42\r\n"]),
            "me" => b"EN\r\n",
            _ => b"STORED\r\n",
        });
        heard.drain(..request.len() as usize);
    }
    out
}

/// Makes answers of Redis: the input must be commands, one after the other.
fn half_honest_redis(heard: &mut Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((words, len)) = resp::read_command(heard) {
        heard.drain(..len);
        match dice.below(12) {
            0 => out.extend_from_slice(b"-LOADING Redis is loading the dataset in memory\r\n"),
            1 => out.extend(grammar::reply(dice)),
            2 => out.extend_from_slice(b"-NOSCRIPT No matching script. Please use EVAL.\r\n"),
            _ => honest(&words, &mut out),
        }
    }
    out
}

fn plan(is_redis: bool, dice: &mut Dice) -> Plan {
    let servers = (0..1 + dice.below(3))
        .map(|number| ServerPlan::new(&format!("s{number}"), &format!("127.0.0.1:{number}"), 1))
        .collect();
    let redis = proto::protocol("redis").expect("the table has the protocol");
    let protocol = if is_redis { redis } else { PROTOCOLS[0] };
    let mut pool = PoolPlan::new("pool", protocol, servers);
    pool.databases = 1 + dice.below(4) as u32;
    if dice.one_in(4) {
        pool.multi_key = MultiKey::Refuse;
    }
    pool.distribution = Distribution::ALL[dice.below(Distribution::ALL.len())];
    pool.server_connections = 1 + dice.below(2);
    pool.preconnect = dice.one_in(2);
    pool.merge_gets = !dice.one_in(4);
    pool.hash_tag = dice.one_in(3).then_some(*b"{}");
    pool.on_failure = if dice.one_in(2) { OnFailure::Eject } else { OnFailure::FailFast };
    pool.partial = if dice.one_in(2) { Partial::Error } else { Partial::Miss };
    pool.quickack = if dice.one_in(2) { QuickAck::Partial } else { QuickAck::Always };
    pool.item_size_max = [10, 1 << 20][dice.below(2)];
    if dice.one_in(2) {
        pool.allow = ["flush_all", "flushall", "flushdb"].map(str::to_string).to_vec();
    }
    let mut limits = Limits::default();
    if dice.one_in(2) {
        limits = Limits {
            pipeline: 1 + dice.below(4),
            client_outbox: 1 + dice.below(50),
            link_queue: 1 + dice.below(4),
            link_outbox: 1 + dice.below(100),
            inflight: 1 + dice.below(2000) as u64,
            unproven: (1 + dice.below(40) as u64) * 512 * 1024,
            depth: 1 + dice.below(9) as u32,
            request_head: 100 + dice.below(3000),
            stream_min: 1 + dice.below(300),
            turn_work: 1 + dice.below(60) as u32,
            large_min: 1 + dice.below(400) as u64,
            kept_least: 1 + dice.below(200),
        };
    }
    let mut plan = Plan::new(vec![pool]);
    plan.memory_max = [4096, 1 << 20, 1 << 30][dice.below(3)];
    (plan.clients_max, plan.limits) = (6, limits);
    plan
}
