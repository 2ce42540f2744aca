//! Logins, played by two workers that share a registry: guessers, a fleet with right passwords
//! behind one address, and a user of the name that is guessed at.
//!
//! The promises, and the seeded bugs that break them:
//!
//! * Of an address, ten wrong logins are evaluated in any second; of a name, a hundred:
//!   `LoginsPerWorker`.
//! * Right logins are answered at once while nobody makes a mistake with their address or name:
//!   `KeepLoginToken`.
//! * A right login from an address without mistakes waits for a name that others guess at, 0.2 s at
//!   most: `ForgetLogin`.
//! * Each login is answered in its order, rightly, and within ten seconds, or refused.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use metrics::{ADDRESS_PAUSE_US, NAME_PAUSE_US, PoolCounter, Registry};
use proto::Endpoints;
use proxy::plan::{Plan, PoolPlan, ServerPlan};
use proxy::users::Users;
use proxy::{Action, Closed, ConnId, Passed, Proxy, Side, Slices, Time, limits};

use super::random::Random;
use super::summary::Summary;

/// Plays one seed.
pub fn play(seed: u64, trace: bool, summary: &mut Summary) {
    let registry = REGISTRY.with(|registry| *registry);
    registry.clear();
    registry.set_secret(SECRET);
    let mut random = Random::new(seed);
    let start = Time(1_000_000);
    let workers = (0..WORKERS)
        .map(|slot| Proxy::new(plan(), random.number(), start, registry.metrics(slot)))
        .collect();
    let mut scene = Scene {
        registry,
        workers,
        clients: Vec::new(),
        now: start,
        random,
        mistakes: BTreeMap::new(),
        moved: Time(0),
        trace,
    };
    (0..STEPS).for_each(|_| scene.step());
    scene.calm();
    let total = |counter| registry.total(POOL, counter);
    summary.logins += total(PoolCounter::Logins) + total(PoolCounter::LoginsFailed);
    summary.logins_delayed += total(PoolCounter::LoginsDelayed);
}

struct Scene {
    registry: Registry,
    workers: Vec<Proxy>,
    clients: Vec<Client>,
    now: Time,
    random: Random,
    /// When wrong logins were evaluated, by address and by name.
    mistakes: BTreeMap<&'static str, VecDeque<u64>>,
    /// When a worker last handed its clients over.
    moved: Time,
    trace: bool,
}

struct Client {
    worker: usize,
    id: ConnId,
    role: &'static Role,
    /// Logins without an answer, oldest first.
    tries: VecDeque<Try>,
    input: Vec<u8>,
    has_gone: bool,
}

struct Try {
    is_right: bool,
    since: Time,
}

/// The clients of one address.
struct Role {
    address: &'static str,
    name: &'static str,
    /// How many of a thousand logins are wrong.
    wrong: usize,
    /// How long a right login may take.
    most_us: u64,
}

/// Logins that wait for ten seconds are refused when a timer of their line comes.
const LATEST_US: u64 = limits::LOGIN_WAIT_US + 2 * ADDRESS_PAUSE_US;

static ROLES: [Role; 5] = [
    Role { address: "guesser", name: "anna", wrong: 950, most_us: LATEST_US },
    Role { address: "another", name: "anna", wrong: 900, most_us: LATEST_US },
    Role { address: "third", name: "bob", wrong: 500, most_us: LATEST_US },
    Role { address: "friend", name: "anna", wrong: 0, most_us: 200_000 },
    Role { address: "fleet", name: "carl", wrong: 0, most_us: 0 },
];

impl Scene {
    fn step(&mut self) {
        match self.random.below(100) {
            0..10 if self.clients.len() < CLIENTS_MAX => self.comes(),
            10..45 => self.tries(),
            45..50 => self.leaves(),
            50 => self.worker_dies(),
            51..53 => self.moves(),
            53 => {
                let worker = self.random.below(WORKERS);
                self.workers[worker].install(plan(), self.now);
            }
            _ => {
                let time = self.random.range(100, 3_000);
                self.passes(time as u64);
            }
        }
        self.settle();
    }

    /// Nobody asks for more, and everything is answered.
    fn calm(&mut self) {
        for _ in 0..(LATEST_US / 2_000 + 1) {
            if self.clients.iter().all(|client| client.tries.is_empty()) {
                return;
            }
            self.passes(2_000);
            self.settle();
        }
        panic!("a login is never answered");
    }

    fn comes(&mut self) {
        let (worker, role) = (self.random.below(WORKERS), self.random.below(ROLES.len()));
        let id = self.workers[worker].handle_accept(POOL, self.now).expect("there is room");
        let (tries, input) = (VecDeque::new(), Vec::new());
        let role = &ROLES[role];
        self.clients.push(Client { worker, id, role, tries, input, has_gone: false });
    }

    /// A client logs in, several times in one packet if it guesses.
    fn tries(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let at = self.random.below(self.clients.len());
        let client = &mut self.clients[at];
        let count = if client.role.wrong > 0 { self.random.range(1, 4) } else { 1 };
        if client.tries.len() > 8 {
            return;
        }
        let mut text = String::new();
        for _ in 0..count {
            let is_right = !self.random.permille(client.role.wrong);
            let password = if is_right { "right" } else { "wrong" };
            text += &format!("AUTH {} {password}\r\n", client.role.name);
            client.tries.push_back(Try { is_right, since: self.now });
        }
        let block = Rc::new(text.into_bytes().into());
        self.workers[client.worker].handle_received(client.id, &block, block.len(), self.now);
    }

    fn leaves(&mut self) {
        if !self.clients.is_empty() {
            let at = self.random.below(self.clients.len());
            let client = self.clients.remove(at);
            self.workers[client.worker].handle_closed(client.id, Closed::Reset, self.now);
        }
    }

    fn worker_dies(&mut self) {
        let slot = self.random.below(WORKERS);
        self.clients.retain(|client| client.worker != slot);
        self.registry.clear_gauges(slot);
        let (seed, metrics) = (self.random.number(), self.registry.metrics(slot));
        self.workers[slot] = Proxy::new(plan(), seed, self.now, metrics);
    }

    /// A worker hands its clients to the other, as far as they wait for nothing.
    fn moves(&mut self) {
        self.moved = self.now;
        let from = self.random.below(WORKERS);
        let to = (from + 1) % WORKERS;
        let gone: Vec<(ConnId, Passed)> = self.workers[from].hand_over(usize::MAX);
        for (id, passed) in gone {
            let adopted = self.workers[to].handle_adopted(passed, self.now).expect("there is room");
            let is_it = |client: &&mut Client| client.worker == from && client.id == id;
            let client = self.clients.iter_mut().find(is_it).expect("it is a client of ours");
            (client.worker, client.id) = (to, adopted);
        }
    }

    fn passes(&mut self, time: u64) {
        self.now = self.now.after(time);
        for worker in &mut self.workers {
            worker.handle_timeout(self.now);
        }
    }

    /// Ends the turn of each worker, in any order, until nothing is left to do.
    fn settle(&mut self) {
        let first = self.random.below(WORKERS);
        for at in (0..WORKERS).map(|at| (first + at) % WORKERS) {
            loop {
                let is_asked = self.act(at);
                self.workers[at].end_turn(self.now);
                if !self.act(at) && !is_asked && !self.workers[at].wants_turn() {
                    break;
                }
            }
            self.receive(at);
            self.workers[at].check();
            self.workers[at].check_rest();
        }
        self.clients.retain(|client| !client.has_gone);
        for client in &self.clients {
            let Some(oldest) = client.tries.front().filter(|one| one.is_right) else { continue };
            let (waited, most) = (self.now.since(oldest.since), client.role.most_us);
            // A guesser's earlier tries of the same connection are before it.
            let is_alone = client.role.wrong == 0;
            let Role { address, .. } = client.role;
            assert!(!is_alone || waited <= most, "a right login from {address} waits {waited} us");
        }
    }

    /// Performs a worker's actions. Returns whether it has been given an address.
    fn act(&mut self, worker: usize) -> bool {
        let mut is_asked = false;
        while let Some(action) = self.workers[worker].poll_action() {
            match action {
                Action::LookUpEndpoints(id) => {
                    is_asked = true;
                    let role = self.client(worker, id).role;
                    let mut address = [0; 16];
                    address[..role.address.len()].copy_from_slice(role.address.as_bytes());
                    let ends = Endpoints { address: Some(address), ..Endpoints::default() };
                    self.workers[worker].handle_endpoints(id, ends, self.now);
                }
                Action::Close(id) | Action::End(id) => {
                    // Its last answers are in its output, which is taken when it is empty.
                    self.client(worker, id).has_gone = true;
                }
                _ => {}
            }
        }
        is_asked
    }

    fn client(&mut self, worker: usize, id: ConnId) -> &mut Client {
        let is_it = |client: &&mut Client| client.worker == worker && client.id == id;
        self.clients.iter_mut().find(is_it).expect("it is a client of ours")
    }

    /// Takes what a worker has for its clients.
    fn receive(&mut self, worker: usize) {
        while let Some(id) = self.workers[worker].poll_transmit(Side::Client) {
            let mut slices = Slices::default();
            self.workers[worker].transmit(id, &mut slices);
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            self.workers[worker].handle_transmitted(id, bytes.len(), self.now);
            let at = self.clients.iter().position(|one| one.worker == worker && one.id == id);
            let at = at.expect("it is a client of ours");
            self.clients[at].input.extend_from_slice(&bytes);
            self.judge(at);
        }
        self.act(worker);
    }

    fn judge(&mut self, at: usize) {
        let client = &mut self.clients[at];
        while let Some(end) = client.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = client.input.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let oldest = client.tries.pop_front().expect("an answer has a question");
            let Role { address, name, most_us, wrong } = *client.role;
            let waited = self.now.since(oldest.since);
            if self.trace {
                println!("{:>9} us  {address} after {waited} us: {}", self.now.0, line.trim_end());
            }
            if line.starts_with("-ERR too many") {
                // A worker that hands its clients over does not wait for guessers.
                let is_late = waited >= limits::LOGIN_WAIT_US || self.moved == self.now;
                assert!(is_late, "{address} is refused after {waited} us");
                assert!(wrong > 0, "{address} has made no mistake");
                continue;
            }
            assert_eq!(line.starts_with("+OK"), oldest.is_right, "{address} hears {line}");
            assert!(!oldest.is_right || wrong > 0 || waited <= most_us, "{address}: {waited} us");
            if oldest.is_right {
                continue;
            }
            assert!(line.starts_with("-WRONGPASS"), "{address} hears {line}");
            for (key, pause) in [(address, ADDRESS_PAUSE_US), (name, NAME_PAUSE_US)] {
                let times = self.mistakes.entry(key).or_default();
                times.push_back(self.now.0);
                if times.len() as u64 > SECOND / pause {
                    let first = times.pop_front().expect("there are as many");
                    let since = self.now.0 - first;
                    assert!(since >= SECOND, "{key} had its tries looked at in {since} us");
                }
            }
        }
    }
}

/// A pool with users, and a server that nobody asks.
fn plan() -> Plan {
    let server = ServerPlan::new("s0", "s0", 1);
    let redis = proto::protocol("redis").expect("the table has it");
    let mut pool = PoolPlan::new("pool", redis, vec![server]);
    let pairs = ["anna", "bob", "carl"].map(|name| (name, "right"));
    pool.users = Some(Rc::new(Users::new(pairs).expect("short ones")));
    Plan::new(vec![pool])
}

thread_local! {
    /// Reused by one run after the other, since the memory of a registry is never freed.
    static REGISTRY: Registry = Registry::private(WORKERS, 4);
}
const POOL: u32 = 1;
const WORKERS: usize = 2;
const CLIENTS_MAX: usize = 40;
const STEPS: usize = 1_500;
const SECOND: u64 = 1_000_000;
/// With it, the addresses and names have words of their own.
const SECRET: u64 = 1;
