//! The room against what the real nutcracker 0.5 gave (`testdata/`), and its rules one by one.

use super::*;

fn node(name: &str, weight: u32) -> Node {
    Node { name: name.to_string(), weight }
}

fn nodes(rows: &[(&str, u32)]) -> Vec<Node> {
    rows.iter().map(|(name, weight)| node(name, *weight)).collect()
}

/// Data lines of a file in `testdata`, split at blanks; the first is its heading.
fn table(text: &'static str) -> Vec<Vec<&'static str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|l| l.split(' ').collect()).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[test]
fn hashes_equal_nutcracker() {
    let table = table(include_str!("../testdata/hashes.txt"));
    let (heading, rows) = table.split_first().unwrap();
    assert_eq!(heading[1..], Hash::ALL.iter().map(|hash| hash.name()).collect::<Vec<_>>());
    assert_eq!(rows.len(), 45);
    for row in rows {
        let key = from_hex(row[0]);
        for (hash, expected) in Hash::ALL.iter().zip(&row[1..]) {
            let found = format!("{:08x}", hash.hash(&key));
            assert_eq!(&found, expected, "{} of {}", hash.name(), row[0]);
        }
    }
}

/// All hashes, weights, tags, lines without names, 25 nodes, one to three nodes ejected.
#[test]
fn rings_equal_nutcracker() {
    let table = table(include_str!("../testdata/rings.txt"));
    let rows = &table[1..];
    assert_eq!(rows.len(), 70);
    for row in rows {
        let &[hash, distribution, tag, weights, alive, names, owners] = row.as_slice() else {
            panic!("a row has seven columns: {row:?}");
        };
        let weights = weights.split(',').map(|weight| weight.parse().unwrap());
        let nodes: Vec<Node> = names.split(',').zip(weights).map(|(n, w)| node(n, w)).collect();
        let alive: Vec<bool> = alive.bytes().map(|digit| digit == b'1').collect();
        let ring = Ring::build(Distribution::from_name(distribution).unwrap(), &nodes, &alive);
        let hash = Hash::from_name(hash).unwrap();
        for (index, expected) in owners.chars().enumerate() {
            let key = match index % 2 {
                0 => format!("key:{index}"),
                _ => format!("x:{{u{}}}:y{index}", index / 6),
            };
            let hash = hash.hash(tagged(key.as_bytes(), tag.as_bytes().try_into().ok()));
            let found = ring.locate(hash).and_then(|node| char::from_digit(node as u32, 36));
            assert_eq!(found, Some(expected), "{key} in {:?}", &row[..6]);
        }
    }
}

#[test]
fn an_empty_key_hashes_without_panic() {
    let start_values = [Hash::Fnv64, Hash::Fnv64a].map(|hash| hash.hash(b""));
    assert_eq!(start_values, [0x8422_2325; 2]);
    for hash in Hash::ALL {
        hash.hash(b"");
    }
}

#[test]
fn names_lead_back_to_their_rows() {
    for hash in Hash::ALL {
        assert_eq!(Hash::from_name(hash.name()), Some(*hash));
    }
    for distribution in Distribution::ALL {
        assert_eq!(Distribution::from_name(distribution.name()), Some(*distribution));
    }
    assert_eq!(Hash::from_name("sha1"), None);
    assert_eq!(Distribution::from_name("Ketama"), None);
}

#[test]
fn tags_follow_twemproxy() {
    let check = |key: &str, tag: &str, expected: &str| {
        let tag: [u8; 2] = tag.as_bytes().try_into().unwrap();
        let found = tagged(key.as_bytes(), Some(tag));
        assert_eq!(found, expected.as_bytes(), "{key} {tag:?}");
    };
    check("user:{42}:name", "{}", "42");
    check("{42}", "{}", "42");
    check("user:{42}:{43}", "{}", "42");
    check("user:{{42}}", "{}", "{42");
    check("}user{42}", "{}", "42");
    check("user:{}:{42}", "{}", "user:{}:{42}");
    check("user:{42", "{}", "user:{42");
    check("user:42}", "{}", "user:42}");
    check("user:42{", "{}", "user:42{");
    check("a$bc$d", "$$", "bc");
    check("a$$bc$", "$$", "a$$bc$");
    check("", "{}", "");
    assert_eq!(tagged(b"user:{42}", None), b"user:{42}");
}

#[test]
fn lines_without_a_name_are_named_as_libmemcached_did() {
    assert_eq!(default_node_name("10.0.0.1", 11211), "10.0.0.1");
    assert_eq!(default_node_name("10.0.0.1", 11212), "10.0.0.1:11212");
    assert_eq!(default_node_name("::1", 11212), "::1:11212");
    assert_eq!(default_node_name_unix("/run/cache.sock"), "/run/cache.sock:");
}

#[test]
fn a_ring_without_living_nodes_locates_nothing() {
    for distribution in Distribution::ALL {
        let empty = Ring::build(*distribution, &[], &[]);
        let ejected = Ring::build(*distribution, &nodes(&[("a", 1), ("b", 3)]), &[false; 2]);
        for hash in [0, 1, u32::MAX] {
            assert_eq!(empty.locate(hash), None);
            assert_eq!(ejected.locate(hash), None);
        }
    }
}

#[test]
fn a_single_node_owns_everything() {
    for distribution in Distribution::ALL {
        let ring = Ring::build(*distribution, &nodes(&[("a", 1), ("b", 3)]), &[false, true]);
        for hash in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            assert_eq!(ring.locate(hash), Some(1));
        }
    }
}

/// An ejection gives the ring that a pool without the node would have, indices aside.
#[test]
fn ejected_nodes_leave_the_ring_of_the_others() {
    let all = nodes(&[("b", 1), ("a", 7), ("cc", 2), ("d", 5)]);
    for distribution in Distribution::ALL {
        for ejected in 0..all.len() {
            let mut alive = [true; 4];
            alive[ejected] = false;
            let ring = Ring::build(*distribution, &all, &alive);
            let mut rest = all.clone();
            rest.remove(ejected);
            let ring_of_rest = Ring::build(*distribution, &rest, &[true; 3]);
            for step in 0..100_000u32 {
                let hash = step.wrapping_mul(0x9e37_79b9);
                let expected = ring_of_rest.locate(hash).unwrap();
                let expected = expected + usize::from(expected >= ejected);
                assert_eq!(ring.locate(hash), Some(expected));
            }
        }
    }
}

#[test]
fn modula_counts_along_names_shorter_first() {
    let all = nodes(&[("bb", 1), ("c", 2), ("aa", 1), ("b", 1)]);
    let ring = Ring::build(Distribution::Modula, &all, &[true; 4]);
    let found: Vec<_> = (0..6).map(|hash| ring.locate(hash).unwrap()).collect();
    assert_eq!(found, [3, 1, 1, 2, 0, 3]);
}

/// Random numbers that are even give even counts, whatever the weights.
#[test]
fn random_spreads_without_weights() {
    let all = nodes(&[("a", 1), ("b", 90), ("c", 1)]);
    let ring = Ring::build(Distribution::Random, &all, &[true; 3]);
    let mut counts = [0; 3];
    for number in 0..30_000 {
        counts[ring.locate(number).unwrap()] += 1;
    }
    assert_eq!(counts, [10_000; 3]);
}
