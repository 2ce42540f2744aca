//! The keys and their owners. There are few keys, so that commands meet the data of others; some
//! share a hash tag.

use shard::{Distribution, Hash, Node, Ring};

use crate::random::Random;

/// The usual types of keys, and the first letter of their names.
const KINDS: &[(&str, u8)] = &[
    ("string", b's'),
    ("list", b'l'),
    ("set", b't'),
    ("sorted-set", b'z'),
    ("sorted_set", b'z'),
    ("hash", b'h'),
    ("stream", b'x'),
    ("geo", b'g'),
    ("hyperloglog", b'p'),
    ("bitmap", b'b'),
];

/// The letter for numbers, which are strings as well.
pub const NUMBER: u8 = b'n';
const LETTERS: &[u8] = b"snltzhxgpb";
const TAGS: &[&str] = &["", "{a}", "{b}", "{c}"];
const EACH: usize = 2;

pub struct Keys {
    odd: Vec<Vec<u8>>,
}

impl Keys {
    pub fn new() -> Keys {
        let long = vec![b'k'; 300];
        Keys { odd: vec![b"".to_vec(), b"a b\r\n+OK\r\n".to_vec(), b"\0\xff{}{a}".to_vec(), long] }
    }

    pub fn letter_of(group: &str) -> Option<u8> {
        KINDS.iter().find(|(name, _)| *name == group).map(|(_, letter)| *letter)
    }

    /// Returns a tag for the keys of one call, or None for no common tag.
    pub fn tag(random: &mut Random) -> Option<&'static str> {
        random.permille(650).then(|| *random.pick(&TAGS[1..]))
    }

    /// Returns a key that usually has this letter and, if given, this tag.
    pub fn draw(&self, random: &mut Random, letter: Option<u8>, tag: Option<&str>) -> Vec<u8> {
        if tag.is_none() && random.permille(15) {
            return random.pick(&self.odd).clone();
        }
        let letter = match letter {
            Some(letter) if random.permille(870) => letter,
            _ => *random.pick(LETTERS),
        };
        let tag = match tag {
            Some(tag) => tag,
            None => *random.pick(TAGS),
        };
        format!("{tag}{}{}", char::from(letter), random.below(EACH)).into_bytes()
    }
}

/// Computes the owners of keys with the code that the proxy's tests compare with twemproxy.
pub struct Owners {
    pub names: Vec<String>,
    ring: Ring,
}

impl Owners {
    pub fn new(names: &[&str]) -> Owners {
        let nodes: Vec<Node> =
            names.iter().map(|name| Node { name: name.to_string(), weight: 1 }).collect();
        let ring = Ring::build(Distribution::Ketama, &nodes, &vec![true; nodes.len()]);
        Owners { names: names.iter().map(|name| name.to_string()).collect(), ring }
    }

    pub fn of(&self, key: &[u8]) -> usize {
        let tagged = shard::tagged(key, Some(*b"{}"));
        self.ring.locate(Hash::Md5.hash(tagged)).expect("everybody is alive")
    }

    /// Returns the number of servers that own at least one of the keys.
    pub fn spread<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> usize {
        let mut owners: Vec<usize> = keys.map(|key| self.of(key)).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.len()
    }
}
