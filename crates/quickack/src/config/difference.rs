//! The effects of a reload, determined before it is done.
//!
//! Pools are identified by their names and servers by their names in the ring, so moving lines in
//! the file changes nothing. To count keys that would move, both rings are asked for the owners of
//! the same samples. The count thus includes the order of servers, the weights, the hash and the
//! tag without a rule for any of them.

use std::collections::HashMap;

use proxy::plan::{AdminState, PoolPlan, ServerPlan};
use shard::{Distribution, Node, Ring};

use super::running::{self, Block};
use super::value::grouped;
use super::{Config, ListSource, ServerAddress};

/// What is told of a file that a reload would not change anything by.
pub const NO_CHANGE: &str = "nothing would change";

/// The differences of a newer configuration.
#[derive(Debug, Default)]
pub struct Difference {
    /// One change each, for people.
    pub lines: Vec<String>,
    /// Pools in both configurations in which keys change their server.
    pub moved: Vec<Moved>,
    /// Changes that need a restart, as sentences.
    pub impossible: Vec<String>,
}

/// The number of keys of a pool that would move to another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub pool: String,
    pub keys: usize,
    /// Number of samples.
    pub samples: usize,
}

/// Compares `new` with `old`.
pub fn difference(old: &Config, new: &Config) -> Difference {
    let mut difference = Difference::default();
    difference.directives("global", &old.blocks[0], &new.blocks[0]);
    difference.workers(old, new);
    difference.tenants(old, new);
    let before: HashMap<&str, Side> = sides(old).map(|side| (&*side.plan.name, side)).collect();
    let after: HashMap<&str, Side> = sides(new).map(|side| (&*side.plan.name, side)).collect();
    for side in sides(old).filter(|side| !after.contains_key(&*side.plan.name)) {
        let states = side.servers().filter(|server| server.0.admin != AdminState::Ready);
        let states: String = states
            .map(|(server, _)| {
                format!(", and of {} its state: {}", server.label, server.admin.word())
            })
            .collect();
        let line = format!("pool {} removed from {}{states}", side.plan.name, side.listen());
        difference.lines.push(line);
    }
    for side in sides(new) {
        match before.get(&*side.plan.name) {
            Some(earlier) => difference.pool(earlier, &side),
            None => difference.lines.push(side.added()),
        }
    }
    let changed: Vec<(&Side, Side)> = sides(new)
        .filter_map(|side| Some((before.get(&*side.plan.name)?, side)))
        .filter(|(earlier, side)| !same_ring(earlier.plan, side.plan))
        .collect();
    let samples = (SAMPLES_ALL_MAX / changed.len().max(1)).min(SAMPLES);
    for (earlier, side) in changed {
        difference.moved(earlier.plan, side.plan, samples);
    }
    difference
}

/// What becomes of the keys of one pool.
pub struct RingDifference {
    pub pool: String,
    /// Keys that would move; or, if the pool is in one configuration only, in which.
    pub moved: Result<Moved, &'static str>,
}

/// Compares the rings of pools with the same name. Where one pool is left on each side, these are
/// compared too: a pool is often given another name when its file is written anew.
pub fn ring_difference(old: &Config, new: &Config) -> Vec<RingDifference> {
    let left = |one: &Config, other: &Config| -> Vec<PoolPlan> {
        let has = |name: &str| other.plan.pools.iter().any(|pool| pool.name == name);
        one.plan.pools.iter().filter(|pool| !has(&pool.name)).cloned().collect()
    };
    let moved = |old: &PoolPlan, new: &PoolPlan| {
        let pool = match old.name == new.name {
            true => new.name.clone(),
            false => format!("{} -> {}", old.name, new.name),
        };
        if old.servers.is_empty() || new.servers.is_empty() {
            return RingDifference { pool, moved: Err("its list of servers is not known") };
        }
        let keys = if same_ring(old, new) { 0 } else { keys_moved(old, new, SAMPLES) };
        let moved = Moved { pool: pool.clone(), keys, samples: SAMPLES };
        RingDifference { pool, moved: Ok(moved) }
    };
    let pairs = new.plan.pools.iter().filter_map(|pool| {
        let earlier = old.plan.pools.iter().find(|earlier| earlier.name == pool.name)?;
        Some(moved(earlier, pool))
    });
    let mut all: Vec<RingDifference> = pairs.collect();
    match (left(old, new).as_slice(), left(new, old).as_slice()) {
        ([before], [after]) => all.push(moved(before, after)),
        (before, after) => {
            let only = |pools: &[PoolPlan], moved: &'static str| -> Vec<RingDifference> {
                let one =
                    |pool: &PoolPlan| RingDifference { pool: pool.name.clone(), moved: Err(moved) };
                pools.iter().map(one).collect()
            };
            all.extend(only(before, "only in the first file"));
            all.extend(only(after, "only in the second file"));
        }
    }
    all
}

/// Returns what becomes of the keys of the pools of `old` in `new`.
pub fn moved(old: &Config, new: &Config) -> Vec<Moved> {
    let all = ring_difference(old, new).into_iter().filter_map(|it| it.moved.ok());
    all.filter(|moved| moved.keys > 0).collect()
}

impl Difference {
    /// Returns the reason why the reload needs `--allow-remap`; None if no key moves.
    pub fn remap(&self) -> Option<String> {
        let told: Vec<String> = self.moved.iter().map(Moved::sentence).collect();
        (!told.is_empty()).then(|| format!("{}; use --allow-remap to permit it", told.join("; ")))
    }

    fn pool(&mut self, old: &Side, new: &Side) {
        let name = &new.plan.name;
        let (from, to) = (old.listen(), new.listen());
        if from != to {
            self.lines.push(format!("pool {name}: listens on {to} and no longer on {from}"));
        }
        self.protocol(old, new);
        self.servers(old, new);
        self.logins(old, new);
        self.directives(&format!("pool {name}"), old.block, new.block);
    }

    /// Clients and links already use the old protocol, so its change needs a restart.
    fn protocol(&mut self, old: &Side, new: &Side) {
        let [from, to] = [old, new].map(|side| side.plan.protocol.name());
        if from != to {
            let name = &new.plan.name;
            self.impossible.push(format!(
                "pool {name}: protocol: {from} -> {to} needs a restart, or a pool with another name"
            ));
        }
    }

    fn servers(&mut self, old: &Side, new: &Side) {
        let pool = &new.plan.name;
        if old.list() != new.list() {
            let from = new.list().map_or("the configuration".to_string(), |it| it.to_string());
            self.lines.push(format!("pool {pool}: its servers come from {from} now"));
        }
        let [before, after] = [old, new].map(|side| {
            side.servers().map(|server| (&*server.0.name, server)).collect::<HashMap<_, _>>()
        });
        for (server, _) in old.servers().filter(|(server, _)| !after.contains_key(&*server.name)) {
            let state = match server.admin {
                AdminState::Ready => String::new(),
                state => format!(", and its state: {}", state.word()),
            };
            self.lines.push(format!("pool {pool}: server {} removed{state}", server.label));
        }
        for (server, address) in new.servers() {
            let (label, weight) = (&server.label, server.weight);
            let Some((earlier, was)) = before.get(&*server.name) else {
                let line =
                    format!("pool {pool}: server {label} added at {address}, weight {weight}");
                self.lines.push(line);
                continue;
            };
            let start = format!("pool {pool}: server {label}");
            if was.to_string() != address.to_string() {
                self.lines.push(format!("{start}: {was} -> {address}"));
            } else if earlier.label != *label {
                self.lines.push(format!("{start}: was called {}", earlier.label));
            }
            if earlier.weight != weight {
                self.lines.push(format!("{start}: weight {} -> {weight}", earlier.weight));
            }
            let [from, to] = [earlier, server].map(|one| one.admin.word());
            if from != to {
                self.lines.push(format!("{start}: {from} -> {to}"));
            }
        }
    }

    /// Compares logins: a password file's contents may change without a change in the text.
    fn logins(&mut self, old: &Side, new: &Side) {
        let name = &new.plan.name;
        if let (Some(before), Some(now)) = (&old.plan.users, &new.plan.users)
            && before != now
        {
            let line = format!("pool {name}: other users or passwords: {before}, now {now}");
            self.lines.push(line);
        }
        if let (Some(before), Some(now)) = (&old.plan.server_login, &new.plan.server_login)
            && before != now
        {
            self.lines.push(format!("pool {name}: another login to its servers"));
        }
    }

    fn directives(&mut self, of: &str, old: &Block, new: &Block) {
        let told_apart = ["listen", "servers", "tenants"];
        for (old, new) in old.values().iter().zip(new.values()) {
            let word = |value: Option<&str>, note: Option<&'static str>| match value {
                Some(word) => word.to_string(),
                None => format!("({})", note.unwrap_or_default()),
            };
            let [from, to] = [word(old.value, old.note), word(new.value, new.note)];
            // A deadline that follows `timeout` is told with it.
            let is_unwritten = [old.from, new.from] == [running::Source::Default; 2];
            if from == to || is_unwritten || told_apart.contains(&new.name) {
                continue;
            }
            let line = format!("{of}: {}: {from} -> {to}", new.name);
            let only_at_start = match of {
                "global" => ONLY_AT_START,
                _ => ONLY_AT_START_OF_A_POOL,
            };
            if only_at_start.contains(&new.name) {
                self.impossible.push(format!("{line} needs a restart"));
            }
            self.lines.push(line);
        }
    }

    fn tenants(&mut self, old: &Config, new: &Config) {
        let blocks = |config: &'_ Config, name: &str| {
            config.blocks.iter().position(|block| block.tenant() == Some(name))
        };
        for block in &old.blocks {
            if let Some(name) = block.tenant().filter(|name| blocks(new, name).is_none()) {
                self.lines.push(format!("tenant {name} removed"));
            }
        }
        for block in &new.blocks {
            let Some(name) = block.tenant() else { continue };
            match blocks(old, name) {
                Some(at) => self.directives(&format!("tenant {name}"), &old.blocks[at], block),
                None => self.lines.push(format!("tenant {name} added")),
            }
        }
    }

    /// Compares numbers of workers: `auto` may give another number without a change in the text.
    fn workers(&mut self, old: &Config, new: &Config) {
        let [from, to] = [old, new].map(|config| config.process.worker_count());
        if from != to {
            self.lines.push(format!("{from} -> {to} workers"));
        }
    }

    fn moved(&mut self, old: &PoolPlan, new: &PoolPlan, samples: usize) {
        let keys = keys_moved(old, new, samples);
        if keys > 0 {
            let moved = Moved { pool: new.name.clone(), keys, samples };
            self.lines.push(moved.sentence());
            self.moved.push(moved);
        }
    }
}

impl Moved {
    /// Returns the share of the keys that would move.
    pub fn share(&self) -> String {
        let (keys, samples) = (grouped(self.keys as u64), grouped(self.samples as u64));
        let percent = self.keys as f64 * 100.0 / self.samples as f64;
        format!("{percent:.2} % of the keys would move ({keys} of {samples} samples)")
    }

    fn sentence(&self) -> String {
        let (keys, samples) = (grouped(self.keys as u64), grouped(self.samples as u64));
        format!("pool {}: {keys} of {samples} sampled keys would move", self.pool)
    }
}

/// One pool of the old or the new configuration.
struct Side<'c> {
    plan: &'c PoolPlan,
    addresses: &'c [ServerAddress],
    block: &'c Block,
    config: &'c Config,
    at: usize,
}

fn sides(config: &Config) -> impl Iterator<Item = Side<'_>> {
    config.plan.pools.iter().enumerate().map(|(at, plan)| Side {
        plan,
        addresses: &config.upstreams[at].servers,
        block: &config.blocks[1 + at],
        config,
        at,
    })
}

impl<'c> Side<'c> {
    fn listen(&self) -> String {
        self.config.listeners[self.at].address.to_string()
    }

    /// Where the servers come from, if not from the configuration.
    fn list(&self) -> Option<&'c ListSource> {
        self.config.upstreams[self.at].list.as_ref().map(|list| &list.source)
    }

    fn servers(&self) -> impl Iterator<Item = (&'c ServerPlan, &'c ServerAddress)> + use<'c> {
        self.plan.servers.iter().zip(self.addresses)
    }

    fn added(&self) -> String {
        let servers = match self.plan.servers.len() {
            0 => "no server yet".to_string(),
            1 => "1 server".to_string(),
            count => format!("{count} servers"),
        };
        format!("pool {} added on {}, {servers}", self.plan.name, self.listen())
    }
}

/// Returns whether everything that determines a key's owner is the same.
fn same_ring(old: &PoolPlan, new: &PoolPlan) -> bool {
    let inputs = |pool: &PoolPlan| (pool.distribution, pool.hash, pool.hash_tag);
    let shares = |pool: &PoolPlan| {
        let mut shares: Vec<(String, u32)> =
            pool.servers.iter().map(|server| (server.name.clone(), server.weight)).collect();
        shares.sort();
        shares
    };
    inputs(old) == inputs(new) && shares(old) == shares(new)
}

fn keys_moved(old: &PoolPlan, new: &PoolPlan, samples: usize) -> usize {
    if old.servers.is_empty() {
        // It has no keys.
        return 0;
    }
    let random = [old, new].map(|pool| pool.distribution == Distribution::Random);
    match random {
        // No key has an owner in either ring.
        [true, true] => return 0,
        [true, false] | [false, true] => return samples,
        [false, false] => {}
    }
    let rings = [old, new].map(ring);
    let tag = new.hash_tag.or(old.hash_tag);
    let moves = |number: &usize| {
        let key = sample(*number, tag);
        owner(old, &rings[0], &key) != owner(new, &rings[1], &key)
    };
    (0..samples).filter(moves).count()
}

fn owner<'p>(pool: &'p PoolPlan, ring: &Ring, key: &[u8]) -> Option<&'p str> {
    let at = ring.locate(pool.hash.hash(shard::tagged(key, pool.hash_tag)))?;
    Some(&pool.servers[at].name)
}

fn ring(pool: &PoolPlan) -> Ring {
    let node = |server: &ServerPlan| Node { name: server.name.clone(), weight: server.weight };
    let nodes: Vec<Node> = pool.servers.iter().map(node).collect();
    Ring::build(pool.distribution, &nodes, &vec![true; nodes.len()])
}

/// Returns a sample key. If tags count, every second key has one.
fn sample(number: usize, tag: Option<[u8; 2]>) -> Vec<u8> {
    match tag {
        Some([open, close]) if number % 2 == 1 => {
            let (group, rest) = (number / 8, number % 8);
            [&[open], format!("{group}").as_bytes(), &[close], format!(":{rest}").as_bytes()]
                .concat()
        }
        _ => format!("sample:{number}").into_bytes(),
    }
}

/// Samples for each pool whose ring changes.
const SAMPLES: usize = 100_000;
/// Samples for all pools: the master must not block for more than a second or two.
const SAMPLES_ALL_MAX: usize = 2_000_000;
/// Directives fixed at start: the place of the master's socket, and how workers share listeners.
const ONLY_AT_START: &[&str] = &["accept", "admin"];
/// Directives of a pool fixed at start: an option of the bound socket.
const ONLY_AT_START_OF_A_POOL: &[&str] = &["reuseport"];

#[cfg(test)]
mod tests {
    use super::super::{Source, compile_for};
    use super::*;

    const OLD: &str = "\
alpha:
  listen: 127.0.0.1:1
  hash_tag: '{}'
  servers:
  - 10.0.0.1:11211:1 one
  - 10.0.0.2:11211:1 two
  - 10.0.0.3:11211:1 three
beta:
  listen: 127.0.0.1:2
  timeout: 400
  servers: [10.0.0.9:11211:1]
";

    fn config(text: &str) -> Config {
        let outcome = compile_for("test.yml", text, &[], 2, Source::Nowhere);
        outcome.config.unwrap_or_else(|| panic!("{text}{}", outcome.report.render_text()))
    }

    /// Returns the difference after `from` became `to` in the file.
    fn after(changes: &[(&str, &str)]) -> Difference {
        let mut text = OLD.to_string();
        for (from, to) in changes {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        difference(&config(OLD), &config(&text))
    }

    #[test]
    fn what_means_the_same_is_no_difference() {
        let other = "# A comment.\nbeta: {listen: '127.0.0.1:2', timeout: 400ms, servers: \
                     ['10.0.0.9:11211:1']}\nalpha:\n  servers: ['10.0.0.3:11211:1 three', \
                     '10.0.0.1:11211:1 one', '10.0.0.2:11211:1 two']\n  hash_tag: '{}'\n  \
                     hash: fnv1a_64\n  listen: 127.0.0.1:1\nglobal: {workers: auto}\n";
        let difference = difference(&config(OLD), &config(other));
        assert!(difference.lines.is_empty(), "{:?}", difference.lines);
        assert_eq!(difference.remap(), None);
    }

    #[test]
    fn each_change_is_a_line() {
        let changes = [
            ("127.0.0.1:1", "127.0.0.1:7"),
            ("10.0.0.1:11211:1 one", "10.0.0.7:11211:1 one"),
            ("beta:\n", "global: {workers: 3, log_level: debug, clients_max: 9}\ngamma:\n"),
            ("timeout: 400", "timeout: 1s"),
        ];
        let difference = after(&changes);
        let lines = [
            "global: workers: auto -> 3",
            "global: clients_max: (as many as the limit of open files allows) -> 9",
            "global: log_level: notice -> debug",
            "2 -> 3 workers",
            "pool beta removed from 127.0.0.1:2",
            "pool alpha: listens on 127.0.0.1:7 and no longer on 127.0.0.1:1",
            "pool alpha: server one: 10.0.0.1:11211 -> 10.0.0.7:11211",
            "pool gamma added on 127.0.0.1:2, 1 server",
        ];
        assert_eq!(difference.lines, lines);
        assert_eq!(difference.remap(), None);
        assert!(difference.impossible.is_empty());
    }

    #[test]
    fn a_directive_is_told_with_both_values() {
        let difference = after(&[("timeout: 400", "timeout: 1s")]);
        assert_eq!(difference.lines, ["pool beta: timeout: 400ms -> 1s"]);
        // What holds without a line of its own is the value of before.
        let difference = after(&[("timeout: 400", "timeout: 400\n  timeout_reply: 200")]);
        assert_eq!(difference.lines, ["pool beta: timeout_reply: 400ms -> 200ms"]);
        let difference = after(&[("timeout: 400", "timeout_reply: 200")]);
        let told =
            ["timeout: 400ms -> (the three `timeout_…` apply)", "timeout_reply: 400ms -> 200ms"];
        assert_eq!(difference.lines, told.map(|line| format!("pool beta: {line}")));
    }

    #[test]
    fn the_keys_of_a_lost_server_are_counted() {
        let difference = after(&[("  - 10.0.0.3:11211:1 three\n", "")]);
        let [moved] = difference.moved.as_slice() else { panic!("{difference:?}") };
        assert_eq!((&*moved.pool, moved.samples), ("alpha", 100_000));
        // Only the removed server's keys move, and it had a third.
        assert!((28_000..39_000).contains(&moved.keys), "{moved:?}");
        let keys = grouped(moved.keys as u64);
        let told = format!("pool alpha: {keys} of 100,000 sampled keys would move");
        assert_eq!(difference.lines, ["pool alpha: server three removed", &told]);
        assert_eq!(difference.remap().unwrap(), format!("{told}; use --allow-remap to permit it"));
    }

    #[test]
    fn every_input_of_the_ring_moves_keys() {
        let changes = [
            ("11211:1 one", "11211:2 one"),
            ("11211:1 one", "11211:1 uno"),
            ("hash_tag: '{}'", "hash_tag: '[]'"),
            ("hash_tag: '{}'", "hash: md5"),
            ("hash_tag: '{}'", "distribution: modula"),
            ("hash_tag: '{}'", "distribution: random"),
        ];
        for change in changes {
            let difference = after(&[change]);
            assert!(difference.remap().is_some(), "{change:?}: {difference:?}");
        }
    }

    #[test]
    fn what_needs_a_restart_is_told() {
        let difference = after(&[("alpha:", "global: {admin: off, accept: mutex}\nalpha:")]);
        let told = [
            "global: accept: auto -> mutex needs a restart",
            "global: admin: (a path derived from the file's) -> off needs a restart",
        ];
        assert_eq!(difference.impossible, told);
    }

    #[test]
    fn many_pools_are_sampled_in_bounded_time() {
        let pool = |at: usize, weight: usize| {
            format!(
                "p{at}:\n  listen: 127.0.0.1:{}\n  servers:\n  - h:1:1\n  - h:2:{weight}\n",
                at + 1
            )
        };
        let text = |weight| (0..100).map(|at| pool(at, weight)).collect::<String>();
        let difference = difference(&config(&text(1)), &config(&text(2)));
        assert_eq!(difference.moved.len(), 100);
        assert!(difference.moved.iter().all(|moved| moved.samples == 20_000));
    }
}
