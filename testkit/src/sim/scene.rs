//! The conditions of one seed's run: a random plan, and the frequency of faults.

use std::ops::RangeInclusive;

use proxy::limits::Limits;
use proxy::plan::{MultiKey, OnFailure, Partial, Plan, PoolPlan, QuickAck, ServerPlan, Timeouts};
use shard::{Distribution, Hash};

use super::random::Random;

/// A run's conditions.
pub struct Scene {
    /// The plan installed last.
    pub plan: Plan,
    /// By pool: every server that may ever be in a plan.
    pub universe: Vec<Vec<ServerPlan>>,
    /// Plans installed in a thousand steps.
    pub install_permille: usize,
    /// Model clients at the same time.
    pub clients: usize,
    /// Faults in a thousand steps.
    pub fault_permille: usize,
    /// The faults that may happen; empty in a calm run.
    pub faults: Vec<FaultKind>,
    /// Longest step of the clock, microseconds.
    pub tick_max: usize,
    /// How long a connect and an answer take on their way, microseconds.
    pub far: u64,
    /// Values longer than a few bytes, in a thousand.
    pub large_permille: usize,
    /// Clients that read late, in a thousand.
    pub slow_reader_permille: usize,
    /// Clients that use binary, in a thousand.
    pub binary_permille: usize,
    /// `memory_max` is so small that the run reaches it.
    pub tight_memory: bool,
    /// Queues are so short that they get full.
    pub tight_queues: bool,
    /// Clients that ask again, on a new connection, for what was not done for one that has gone, in
    /// a thousand.
    pub retry_permille: usize,
    /// Clients that ask much at once, in a thousand.
    pub greedy_permille: usize,
    /// The run ends by `drain` in the middle of traffic.
    pub drains: bool,
}

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It neither reads nor writes nor accepts for a while.
    Stall,
    /// It refuses to accept for a while.
    Refuse,
    /// It takes no further connection for a while, and says so.
    Full,
    /// A connection is reset; what it had received may be executed in part.
    Reset,
    /// It closes a connection after its answers.
    Close,
    /// It executes a command and closes before it answers.
    ExecuteThenReset,
    /// All connections end; it comes back with its data, or empty.
    Restart,
    /// It answers a command with a reply that is impossible for it.
    Poison,
    /// It sends a reply to no request.
    Unasked,
    /// It answers a command with an error line.
    ErrorLine,
    /// It writes one byte at a time for a while.
    Dribble,
    /// It answers that it is loading its data, for a while.
    Loading,
    /// Not a server's fault: the next socket to it cannot be made.
    NoSocket,
}

const ALL_FAULTS: &[FaultKind] = &[
    FaultKind::Stall,
    FaultKind::Refuse,
    FaultKind::Full,
    FaultKind::Reset,
    FaultKind::Close,
    FaultKind::ExecuteThenReset,
    FaultKind::Restart,
    FaultKind::Poison,
    FaultKind::Unasked,
    FaultKind::ErrorLine,
    FaultKind::Dribble,
    FaultKind::Loading,
    FaultKind::NoSocket,
];

/// One key of a pool; its first two bytes are its index in the list.
pub struct Key {
    pub text: String,
    /// Text cannot carry it: only clients that use binary request it.
    pub is_foreign: bool,
}

impl Scene {
    /// Whether there may be fewer private links than clients need.
    pub fn has_few_private(&self) -> bool {
        self.plan.private_max < proxy::limits::PRIVATE_LINKS_MAX
    }

    pub fn new(random: &mut Random) -> Scene {
        let calm = random.permille(250);
        let faults = if calm { Vec::new() } else { some_faults(random) };
        let tight_memory = random.permille(80);
        let large_permille = *random.pick(&[0, 0, 5, 30]);
        let pools = 1 + usize::from(random.permille(250));
        let pools = (0..pools).map(|at| pool(random, at, calm, large_permille > 0)).collect();
        let mut plan = Plan::new(pools);
        let universe = plan.pools.iter().map(|pool| pool.servers.clone()).collect();
        for pool in &mut plan.pools {
            // So that a reply may take longer than its limit.
            if faults.contains(&FaultKind::Dribble) && pool.timeouts.reply % 2 == 0 {
                pool.timeouts.reply = (pool.timeouts.reply / 8).max(3_000);
            }
            let count = random.range(1, pool.servers.len().min(5));
            pool.servers.truncate(count);
        }
        let memory_max = if tight_memory { random.range(2_000, 40_000) } else { usize::MAX };
        let clients = random.range(1, 7);
        let clients_max = if random.permille(100) { random.range(1, 4) } else { usize::MAX };
        let limits = limits(random);
        (plan.memory_max, plan.limits) = (memory_max, limits);
        if limits.kept_least < Limits::default().kept_least {
            let most = limits.kept_least * (limits.client_outbox % 3);
            plan.pools.iter_mut().for_each(|pool| pool.client_buffer_max = most);
        }
        if random.permille(200) {
            plan.private_max = random.range(1, 6) as u64;
        }
        if random.permille(500) {
            plan.clients_max = clients_max
        } else {
            plan.clients_room = clients_max
        }
        let tick_max = *random.pick(&[10, 100, 400]);
        let is_far = calm && random.permille(400);
        let far = if is_far { tick_max * random.range(5, 60) } else { 0 } as u64;
        Scene {
            plan,
            universe,
            install_permille: *random.pick(&[0, 0, 3, 15]),
            clients,
            fault_permille: *random.pick(&[3, 10, 30]),
            faults,
            tick_max,
            far,
            large_permille,
            binary_permille: *random.pick(&[0, 300, 300, 1_000]),
            slow_reader_permille: *random.pick(&[0, 0, 100, 500]),
            tight_memory,
            tight_queues: limits.link_queue < Limits::default().link_queue,
            retry_permille: *random.pick(&[0, 500, 900]),
            greedy_permille: *random.pick(&[0, 0, 200, 500]),
            drains: random.permille(300),
        }
    }
}

/// Share of pools of Redis servers.
const REDIS_PERMILLE: usize = 400;

/// Returns limits that are usually ample, and sometimes so narrow that each bound is reached.
fn limits(random: &mut Random) -> Limits {
    let mut limits = Limits::default();
    if random.permille(300) {
        limits.pipeline = random.range(1, 30);
        limits.client_outbox = random.range(100, 4_000);
        limits.turn_work = 3 + limits.client_outbox as u32 % 60;
        limits.unproven = (1 + limits.client_outbox as u64 % 32) * 512 * 1024;
        limits.depth = 1 + limits.client_outbox as u32 % 9;
        if limits.client_outbox.is_multiple_of(2) {
            limits.kept_least = limits.client_outbox / 8;
        }
    }
    if random.permille(500) {
        let most = *random.pick(&[40, 3_000]);
        limits.stream_min = random.range(20, most);
    }
    if random.permille(100) {
        limits.link_queue = random.range(1, 12);
        limits.link_outbox = random.range(30, 2_000);
    }
    if random.permille(400) {
        let most = *random.pick(&[300, 1_500, 6_000]);
        limits.inflight = random.range(1, most) as u64;
    }
    if random.permille(300) {
        let most = *random.pick(&[60, 300, 5_000]);
        limits.large_min = random.range(20, most) as u64;
    }
    limits
}

fn some_faults(random: &mut Random) -> Vec<FaultKind> {
    if random.permille(400) {
        return ALL_FAULTS.to_vec();
    }
    (0..random.range(1, 3)).map(|_| *random.pick(ALL_FAULTS)).collect()
}

fn pool(random: &mut Random, at: usize, calm: bool, large: bool) -> PoolPlan {
    let name = ["alpha", "beta"][at];
    let servers = (0..random.range(1, 7)).map(|server| server_plan(random, name, server)).collect();
    let word = if random.permille(REDIS_PERMILLE) { "redis" } else { "memcached" };
    let protocol = proto::protocol(word).expect("the table has the protocol");
    let mut plan = PoolPlan::new(name, protocol, servers);
    if word == "redis" {
        // The text outside the braces identifies the request of a key.
        plan.hash_tag = Some(*b"{}");
        plan.databases = random.range(1, 4) as u32;
        plan.database = random.below(plan.databases as usize) as u32;
        plan.private = random.permille(120);
        plan.multi_key = if random.permille(100) { MultiKey::Refuse } else { MultiKey::Split };
    }
    plan.hash = *random.pick(&[Hash::Fnv64a, Hash::Md5, Hash::Crc16, Hash::Murmur]);
    plan.distribution = random.weighted(&[
        (6, Distribution::Ketama),
        (3, Distribution::Modula),
        (1, Distribution::Random),
    ]);
    plan.server_connections = *random.pick(&[1, 1, 2, 3]);
    switches(random, &mut plan);
    plan.timeouts = timeouts(random, calm);
    plan.on_failure = *random.pick(&[OnFailure::FailFast, OnFailure::FailFast, OnFailure::Eject]);
    plan.server_failure_limit = random.range(1, 3) as u32;
    plan.server_retry_timeout = random.range(5_000, 60_000) as u64;
    if random.permille(50) {
        plan.client_connections = random.range(1, 3);
    }
    plan.partial = *random.pick(&[Partial::Error, Partial::Error, Partial::Miss]);
    if random.permille(500) {
        let words: &[&str] =
            if word == "redis" { &["flushall", "flushdb"] } else { &["flush_all"] };
        plan.allow.extend(words.iter().map(|word| word.to_string()));
    }
    plan.hold_after = match random.below(4) {
        0 => None,
        _ => Some(random.range(1_000, 20_000) as u64),
    };
    plan.item_size_max = if large { 50_000 } else { *random.pick(&[200, 2_000]) };
    plan
}

/// Sets switches that have no effect on answers.
pub fn switches(random: &mut Random, plan: &mut PoolPlan) {
    plan.preconnect = random.permille(300);
    plan.merge_gets = random.permille(750);
    plan.quickack = *random.pick(&[QuickAck::Partial, QuickAck::Always, QuickAck::Off]);
    plan.server_quickack = *random.pick(&[QuickAck::Partial, QuickAck::Always, QuickAck::Off]);
    // From what was drawn, so that known seeds play as before.
    let is_logged = plan.server_quickack == QuickAck::Off;
    plan.access_one_in = if is_logged { 1 + u32::from(plan.preconnect) } else { 0 };
    plan.slow.after = if is_logged { 1 } else { u64::MAX };
}

fn server_plan(random: &mut Random, pool: &str, server: usize) -> ServerPlan {
    let weight = *random.pick(&[1, 1, 1, 2, 5]);
    ServerPlan::new(&format!("{pool}-{server}"), &format!("{pool}.s{server}"), weight)
}

/// In a calm run nothing may time out, so that any failure is the proxy's.
pub fn timeouts(random: &mut Random, calm: bool) -> Timeouts {
    if calm {
        let long = 60_000_000;
        return Timeouts { connect: long, queue: long, reply: long, slow: long, write: long };
    }
    const RANGE: RangeInclusive<usize> = 3_000..=60_000;
    let mut one = || random.range(*RANGE.start(), *RANGE.end()) as u64;
    let (connect, queue, reply) = (one(), one(), one());
    Timeouts { connect, queue, reply, slow: 4 * reply, write: queue / 2 + 1_500 }
}

/// Makes the keys of a pool: short and long ones; a few dozen long ones fill a merged get.
pub fn keys(random: &mut Random, plan: &PoolPlan) -> Vec<Key> {
    let count = random.range(4, 40);
    let long = random.permille(200);
    let foreign_permille = *random.pick(&[0, 0, 300]);
    let pad = |random: &mut Random| match random.below(10) {
        0 if long => 200,
        0..5 if long => random.range(50, 240),
        _ => random.below(12),
    };
    let is_redis = plan.protocol.name() == "redis";
    let key = |at: usize| {
        let pad = pad(random);
        // All clients use the hot keys.
        let is_foreign = at > 3 && pad < 50 && random.permille(foreign_permille);
        let end = if is_foreign { " \r\n\u{7f}" } else { "" };
        let text = format!("{at:02}{}:{}{end}", &plan.name, "k".repeat(pad));
        match is_redis {
            // In Redis pools any bytes are a key.
            true => Key { text: format!("{{{text}}}"), is_foreign: false },
            false => Key { text, is_foreign },
        }
    };
    (0..count).map(key).collect()
}
