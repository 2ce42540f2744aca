//! Key to server: finds the node of a pool that owns a key.
//!
//! ```text
//!   key ──tagged──> the part that counts ──Hash──> u32 ──Ring──> node index
//! ```
//!
//! A pool that moves from twemproxy to quickack must find every key on the server that already
//! holds it. So everything here equals twemproxy 0.5 bit for bit, including its mistakes: they
//! determine the place of every key that was ever stored through it. A comment marks each mistake.
//! Nothing here opens a socket, reads a clock or draws a random number.

mod hash;
mod ketama;
mod modula;
mod random;

use ketama::Ketama;
use modula::Modula;
use random::Random;

pub use hash::Hash;

/// The way in which a pool's nodes share the space of hashes. Names are those of `nutcracker.yml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Consistent hashing: 160 points for each node on a circle, so that a lost node moves few
    /// keys.
    Ketama,
    /// The hash modulo the sum of weights.
    Modula,
    /// Any living node, independent of the key.
    Random,
}

impl Distribution {
    pub const ALL: &[Distribution] =
        &[Distribution::Ketama, Distribution::Modula, Distribution::Random];

    pub fn name(self) -> &'static str {
        match self {
            Distribution::Ketama => "ketama",
            Distribution::Modula => "modula",
            Distribution::Random => "random",
        }
    }

    pub fn from_name(name: &str) -> Option<Distribution> {
        Distribution::ALL.iter().copied().find(|distribution| distribution.name() == name)
    }
}

/// One server of a pool, as the ring sees it.
#[derive(Clone, Debug)]
pub struct Node {
    /// The name that the ring hashes: the server's own name, else `default_node_name`.
    pub name: String,
    /// Its weight relative to the other nodes; at least 1.
    pub weight: u32,
}

/// A pool's nodes, arranged so that a hash finds its owner in a few nanoseconds.
pub struct Ring {
    kind: Kind,
}

enum Kind {
    Ketama(Ketama),
    Modula(Modula),
    Random(Random),
}

impl Ring {
    /// Arranges the nodes whose `alive` is true and leaves the others out. The keys move exactly as
    /// when twemproxy rebuilds a pool after an ejection.
    pub fn build(distribution: Distribution, nodes: &[Node], alive: &[bool]) -> Ring {
        assert_eq!(nodes.len(), alive.len(), "each node is either alive or ejected");
        let members = members(nodes, alive);
        let kind = match distribution {
            Distribution::Ketama => Kind::Ketama(Ketama::build(&members)),
            Distribution::Modula => Kind::Modula(Modula::build(&members)),
            Distribution::Random => Kind::Random(Random::build(&members)),
        };
        Ring { kind }
    }

    /// Returns the index (in the `nodes` given to `build`) of the node that owns `hash`, or None if
    /// no node is alive. For `Random`, `hash` is a random number drawn by the caller.
    #[inline]
    pub fn locate(&self, hash: u32) -> Option<usize> {
        match &self.kind {
            Kind::Ketama(ring) => ring.locate(hash),
            Kind::Modula(ring) => ring.locate(hash),
            Kind::Random(ring) => ring.locate(hash),
        }
    }
}

/// A living node with its index in the caller's list.
struct Member<'n> {
    index: u32,
    name: &'n str,
    weight: u32,
}

/// Returns the living nodes in twemproxy's order, which is not the file's. To find duplicates,
/// twemproxy sorts a pool's servers by name, a shorter name before a longer one, and keeps that
/// order. Modula counts along that order, and ketama lets the earlier of two equal points win.
fn members<'n>(nodes: &'n [Node], alive: &[bool]) -> Vec<Member<'n>> {
    let mut members: Vec<Member<'n>> = (0u32..)
        .zip(nodes)
        .zip(alive)
        .filter(|(_, alive)| **alive)
        .map(|((index, node), _)| Member { index, name: &node.name, weight: node.weight })
        .collect();
    members.sort_by_key(|member| (member.name.len(), member.name));
    members
}

/// Returns the part of the key that is hashed: the bytes between the first opening byte of the tag
/// and the next closing byte after it. The whole key counts if either byte is missing or nothing is
/// between them. Later pairs are ignored, so `{}{a}` has no tag.
#[inline]
pub fn tagged(key: &[u8], tag: Option<[u8; 2]>) -> &[u8] {
    let Some([open, close]) = tag else { return key };
    let Some(start) = key.iter().position(|byte| *byte == open) else { return key };
    let inside = &key[start + 1..];
    match inside.iter().position(|byte| *byte == close) {
        None | Some(0) => key,
        Some(len) => &inside[..len],
    }
}

/// Returns the name of a server line without one, `host:port:weight`. libmemcached left out
/// memcached's default port when it hashed a server, and twemproxy follows it. Any other port is
/// hashed as the line writes it, so a line with zeros before its port has another name than this
/// one.
pub fn default_node_name(host: &str, port: u16) -> String {
    const MEMCACHED_PORT: u16 = 11211;
    match port {
        MEMCACHED_PORT => host.to_string(),
        _ => format!("{host}:{port}"),
    }
}

/// Returns the name of a server line without one, `/path/of/socket:weight`. It ends in the colon
/// before the weight: twemproxy adds one colon and a port, and the port of a path is empty.
pub fn default_node_name_unix(path: &str) -> String {
    format!("{path}:")
}

#[cfg(test)]
mod tests;
