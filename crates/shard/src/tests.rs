//! The crate is compared with results of the real nutcracker 0.5 (`testdata/`); then each rule is
//! tested.

use super::*;

fn node(name: &str, weight: u32) -> Node {
    Node { name: name.to_string(), weight }
}

fn nodes(rows: &[(&str, u32)]) -> Vec<Node> {
    rows.iter().map(|(name, weight)| node(name, *weight)).collect()
}

/// Returns the data lines of a file in `testdata`, split at blanks; the first line is its heading.
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

/// Covers all hashes, weights, tags, lines without names, 25 nodes, one to three nodes ejected.
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

/// An ejection gives the ring of a pool without the node, indices aside.
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

/// `n81-38` and `n975-14` share some of their digests. twemproxy sorts its servers by name, shorter
/// names first, and glibc's qsort of the points keeps equal points in that order.
#[test]
fn of_two_nodes_at_one_point_the_earlier_name_has_it() {
    const POINT: u32 = 607_858_066;
    let shared = |name: &str, index: u32| {
        hash::digest_words(format!("{name}-{index}").as_bytes()).contains(&POINT)
    };
    assert!(shared("n81", 38) && shared("n975", 14));
    let check = |names: &[&str], ejected: &str, expected: &str| {
        let all: Vec<Node> = names.iter().map(|name| node(name, 1)).collect();
        let alive: Vec<bool> = names.iter().map(|name| *name != ejected).collect();
        let owner = Ring::build(Distribution::Ketama, &all, &alive).locate(POINT);
        assert_eq!(owner.map(|owner| names[owner]), Some(expected), "{names:?}");
    };
    for names in [&["n81", "n975"][..], &["n975", "n81"], &["n975", "m0", "n81"]] {
        check(names, "", "n81");
        check(names, "n81", "n975");
    }
}

/// A point's name is cut to 272 bytes, as in twemproxy's buffer. If the name leaves no room for its
/// number, all digests are equal.
#[test]
fn the_points_of_a_long_name_are_those_of_its_first_272_bytes() {
    // Returns how many of the points made from the whole names belong to the node.
    let owned = |len: usize, digests: std::ops::Range<u32>| {
        let long = "n".repeat(len);
        let both = [node(&long, 1), node("other", 1)];
        let ring = Ring::build(Distribution::Ketama, &both, &[true; 2]);
        let points = digests
            .flat_map(|index| hash::digest_words(format!("{long}-{index}").as_bytes()))
            .collect::<Vec<u32>>();
        let mine = points.iter().filter(|point| ring.locate(**point) == Some(0)).count();
        (mine, points.len())
    };
    // A number of two digits just fits; with one byte more, only a number of one digit does.
    assert_eq!(owned(269, 0..40), (160, 160));
    assert_eq!(owned(270, 0..10), (40, 40));
    for (len, digests) in [(270, 10..40), (271, 0..40), (272, 0..40), (300, 0..40)] {
        let (mine, all) = owned(len, digests);
        assert!(mine < all / 2, "{mine} of {all} points of a name of {len} bytes");
    }
    // All digests are equal, so four points are left.
    let long = "n".repeat(300);
    let both = [node(&long, 1), node("other", 1)];
    let ring = Ring::build(Distribution::Ketama, &both, &[true; 2]);
    for point in hash::digest_words(&long.as_bytes()[..272]) {
        assert_eq!(ring.locate(point), Some(0));
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
