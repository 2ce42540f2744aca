//! Compares an answer through the proxy with a server's own, as strictly as a row permits.

use super::table::Likeness;
use crate::wire::resp::Reply;

/// The permitted difference of a time: two servers are asked one after the other.
const NEAR_MS: i64 = 5_000;

pub fn is_like(likeness: Likeness, direct: &Reply, ours: &Reply) -> bool {
    match likeness {
        Likeness::Exact => direct == ours,
        Likeness::Sorted => sorted(direct) == sorted(ours),
        Likeness::Pairs => pairs(direct) == pairs(ours),
        Likeness::Near => near(direct, ours),
        Likeness::Shape => shape(direct, ours),
        Likeness::Kind => kind(direct) == kind(ours) && direct.error() == ours.error(),
    }
}

/// Sorts the elements, recursively.
pub fn sorted(reply: &Reply) -> Reply {
    let all = |all: &[Reply]| {
        let mut all: Vec<Reply> = all.iter().map(sorted).collect();
        all.sort();
        all
    };
    match reply {
        Reply::Array(elements) => Reply::Array(all(elements)),
        Reply::Set(elements) => Reply::Set(all(elements)),
        Reply::Map(elements) => {
            let mut elements: Vec<_> =
                elements.iter().map(|(key, value)| (sorted(key), sorted(value))).collect();
            elements.sort();
            Reply::Map(elements)
        }
        other => other.clone(),
    }
}

/// Sorts pairs of elements in the innermost array.
pub fn pairs(reply: &Reply) -> Reply {
    match reply {
        Reply::Array(all) if all.iter().any(|one| matches!(one, Reply::Array(_))) => {
            Reply::Array(all.iter().map(pairs).collect())
        }
        Reply::Array(all) => {
            let mut two: Vec<Reply> =
                all.chunks(2).map(|pair| Reply::Array(pair.to_vec())).collect();
            two.sort();
            Reply::Array(two)
        }
        other => sorted(other),
    }
}

fn near(direct: &Reply, ours: &Reply) -> bool {
    match (direct, ours) {
        (Reply::Integer(one), Reply::Integer(two)) => {
            // -1 and -2 are not times.
            one == two
                || *one > 0 && *two > 0 && one.abs_diff(*two) <= NEAR_MS as u64
                || one.min(two) == &0 && one.max(two) <= &NEAR_MS
        }
        (Reply::Bulk(_), Reply::Bulk(_)) => direct == ours,
        _ => alike(direct, ours, near),
    }
}

/// Returns whether both have the same kinds in the same places, whatever the values are.
fn shape(direct: &Reply, ours: &Reply) -> bool {
    match (direct, ours) {
        (Reply::Integer(_), Reply::Integer(_)) | (Reply::Bulk(_), Reply::Bulk(_)) => true,
        (Reply::Other(one, _), Reply::Other(two, _)) => one == two,
        _ => alike(direct, ours, shape),
    }
}

/// Compares aggregates of one kind and length by their elements; other replies must be equal.
fn alike(direct: &Reply, ours: &Reply, elements: fn(&Reply, &Reply) -> bool) -> bool {
    use Reply::{Array, Map, Push, Set};
    if direct.is_error() || ours.is_error() {
        return direct == ours;
    }
    match (direct, ours) {
        (Array(_), Array(_)) | (Set(_), Set(_)) | (Push(_), Push(_)) | (Map(_), Map(_)) => {
            let (one, two) = (direct.elements(), ours.elements());
            one.len() == two.len() && one.iter().zip(two).all(|(one, two)| elements(one, two))
        }
        _ => direct == ours,
    }
}

fn kind(reply: &Reply) -> u8 {
    match reply {
        Reply::Simple(_) => b'+',
        Reply::Error(_) => b'-',
        Reply::Integer(_) => b':',
        Reply::Bulk(_) => b'$',
        Reply::Null(_) => b'_',
        Reply::Array(_) => b'*',
        Reply::Map(_) => b'%',
        Reply::Set(_) => b'~',
        Reply::Push(_) => b'>',
        Reply::Other(kind, _) => *kind,
    }
}
