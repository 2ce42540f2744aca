//! The pools of the file, one row each, and the expectations of a row.

use std::fmt::Write as _;
use std::path::Path;

use shard::{Distribution, Hash, Node, Ring};

use super::field::Field;
use super::speech::Speech;

/// One pool of the file.
pub struct Row {
    pub name: String,
    pub hash: Hash,
    pub distribution: Distribution,
    pub tag: Option<&'static str>,
    pub servers: Vec<Server>,
    /// The path of the pool's socket: a path is surely free, unlike a port.
    pub socket: String,
}

/// One line under `servers:`.
#[derive(Clone)]
pub struct Server {
    /// The number in the server's answers.
    pub number: u16,
    /// `host:port`, or a path.
    pub address: String,
    /// The name that the ring must hash if the line has none.
    pub default_name: String,
    pub weight: u32,
    pub name: Option<String>,
    /// No process listens there, so the pool must eject it.
    pub dead: bool,
}

/// Unsorted, and of different lengths: twemproxy sorts a pool by name, shorter names first.
const NAMES: [&str; 5] = ["cache-b", "cache-10", "z", "cache-a", "Cache-a"];

/// Adds the 96 promised rows: each hash, ketama and modula, weights, names.
pub fn promised_rows(field: &mut Field) {
    for &hash in Hash::ALL {
        for distribution in [Distribution::Ketama, Distribution::Modula] {
            for (label, weights) in [("equal", [1; 5]), ("unequal", [3, 1, 70, 9, 2])] {
                let plain = field.tcp_servers(&weights);
                let named = with_names(&plain, &NAMES);
                let label = format!("{}-{}-{label}", hash.name(), distribution.name());
                field.add(format!("{label}-plain"), hash, distribution, None, plain);
                field.add(format!("{label}-names"), hash, distribution, None, named);
            }
        }
    }
}

/// Adds each hash with ketama and modula, with different weights and with names.
pub fn some_rows(field: &mut Field) {
    for &hash in Hash::ALL {
        for distribution in [Distribution::Ketama, Distribution::Modula] {
            let servers = with_names(&field.tcp_servers(&[3, 1, 70, 9, 2]), &NAMES);
            let label = format!("{}-{}", hash.name(), distribution.name());
            field.add(label, hash, distribution, None, servers);
        }
    }
}

/// Adds rows for rules of twemproxy that the promised rows do not cover.
pub fn odd_rows(field: &mut Field, distribution: Distribution) {
    let hash = Hash::Murmur;
    let label = |what: &str| format!("{}-{what}", distribution.name());
    let five = field.tcp_servers(&[1; 5]);
    for (what, tag) in [("braces", "{}"), ("colons", "::")] {
        field.add(label(what), hash, distribution, Some(tag), with_names(&five, &NAMES));
    }
    // Of 25 equal nodes each gets 39 digests, not 40: single precision.
    field.add(label("many"), hash, distribution, None, field.tcp_servers(&[1; 25]));
    // Names longer than twemproxy's buffer. The last two differ only after its end: all their
    // points tie.
    let long = |len: usize, end: &str| format!("{}{end}", "n".repeat(len));
    let names = [long(266, "a"), long(272, "b"), long(300, "d"), long(300, "c")];
    let servers = with_names(&five[..4], &names.each_ref().map(String::as_str));
    field.add(label("long"), hash, distribution, None, servers);
    field.add(label("unix"), hash, distribution, None, field.unix.clone());
    let mut servers = with_names(&five, &NAMES);
    servers[1] = Server { name: servers[1].name.clone(), weight: 4, ..field.nobody() };
    field.add(label("ejected"), hash, distribution, None, servers);
}

fn with_names(servers: &[Server], names: &[&str]) -> Vec<Server> {
    let pairs = servers.iter().zip(names);
    pairs.map(|(server, name)| Server { name: Some(name.to_string()), ..server.clone() }).collect()
}

impl Row {
    pub fn alive(&self) -> Vec<bool> {
        self.servers.iter().map(|server| !server.dead).collect()
    }

    pub fn ring(&self, alive: &[bool]) -> Ring {
        let name = |server: &Server| server.name.as_ref().unwrap_or(&server.default_name).clone();
        let nodes: Vec<Node> = self
            .servers
            .iter()
            .map(|server| Node { name: name(server), weight: server.weight })
            .collect();
        Ring::build(self.distribution, &nodes, alive)
    }

    pub fn locate(&self, ring: &Ring, key: &[u8]) -> &Server {
        let tag = self.tag.map(|tag| tag.as_bytes().try_into().unwrap());
        &self.servers[ring.locate(self.hash.hash(shard::tagged(key, tag))).unwrap()]
    }

    pub fn owners_in_process(&self, keys: &[Vec<u8>]) -> Vec<u16> {
        let ring = self.ring(&self.alive());
        keys.iter().map(|key| self.locate(&ring, key).number).collect()
    }

    pub fn compare(&self, found: (&str, &[u16]), expected: (&str, &[u16]), keys: &[Vec<u8>]) {
        let ((who, found), (other, expected)) = (found, expected);
        if self.distribution == Distribution::Random {
            self.check_spread(who, found);
            return self.check_spread(other, expected);
        }
        let moved: Vec<usize> = (0..keys.len()).filter(|&i| found[i] != expected[i]).collect();
        let Some(&first) = moved.first() else { return };
        panic!(
            "pool {}: {} of {} keys differ; {} is on server {} for {who}, on {} for {other}",
            self.name,
            moved.len(),
            keys.len(),
            keys[first].escape_ascii(),
            found[first],
            expected[first],
        );
    }

    /// Checks that each server has an even share, within a quarter: twemproxy draws once for each
    /// server of a request, not once for each key.
    fn check_spread(&self, who: &str, owners: &[u16]) {
        let even = owners.len() / self.servers.len();
        for server in &self.servers {
            let count = owners.iter().filter(|owner| **owner == server.number).count();
            let near = count.abs_diff(even) < even / 4;
            assert!(near, "{who}: server {} has {count} keys, even is {even}", server.number);
        }
    }

    pub fn write_yml(&self, speech: Speech, folder: &Path, yml: &mut String) {
        writeln!(yml, "{}:", self.name).unwrap();
        writeln!(yml, "  listen: {}", folder.join(&self.socket).display()).unwrap();
        if speech == Speech::Redis {
            writeln!(yml, "  redis: true").unwrap();
        }
        // A busy machine may take its time: no deadline is tested here.
        writeln!(yml, "  timeout: 20000").unwrap();
        writeln!(yml, "  hash: {}", self.hash.name()).unwrap();
        writeln!(yml, "  distribution: {}", self.distribution.name()).unwrap();
        if let Some(tag) = self.tag {
            writeln!(yml, "  hash_tag: \"{tag}\"").unwrap();
        }
        if self.servers.iter().any(|server| server.dead) {
            let once_and_for_all = "server_failure_limit: 1\n  server_retry_timeout: 3600000";
            writeln!(yml, "  auto_eject_hosts: true\n  {once_and_for_all}").unwrap();
        }
        writeln!(yml, "  servers:").unwrap();
        for Server { address, weight, name, .. } in &self.servers {
            let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            writeln!(yml, "   - {address}:{weight}{name}").unwrap();
        }
    }
}
