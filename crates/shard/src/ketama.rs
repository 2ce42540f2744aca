//! Ketama: each node has many points on a circle of 2^32 places. A hash belongs to the first point
//! at or after it; a hash past the last point belongs to the first point.
//!
//! ```text
//!   starts:   [ 0 | 0 | 2 | 3 | 3 | … ]     one entry a slice of the circle: the first point
//!                   │   └──┐                at or after the slice's begin
//!   points:   [ p0  p1     p2  p3 … pn | end of circle = p0's node ]
//! ```
//!
//! The upper bits of a hash pick a slice, and a step or two along the points ends the search. The
//! points are MD5 digests, so no slice holds many, whichever hash the keys use.

use crate::Member;
use crate::hash::digest_words;

pub(crate) struct Ketama {
    /// Sorted by value, with a sentinel at the circle's end. Empty if no node is alive.
    points: Vec<Point>,
    /// For each slice of the circle, the index of the first point at or after its start.
    starts: Vec<u32>,
    /// Number of bits by which a hash is shifted right to give its slice.
    shift: u32,
}

#[derive(Clone, Copy)]
struct Point {
    value: u32,
    node: u32,
}

impl Ketama {
    pub(crate) fn build(members: &[Member]) -> Ketama {
        let mut points = Vec::new();
        for member in members {
            let digests = digests_per_node(member.weight, total_weight(members), members.len());
            for index in 0..digests {
                let values = digest_words(&point_name(member.name, index));
                points.extend(values.map(|value| Point { value, node: member.index }));
            }
        }
        // twemproxy calls glibc's qsort, a merge sort: of two equal points the earlier node wins.
        points.sort_by_key(|point| point.value);
        match points.first() {
            None => Ketama { points, starts: Vec::new(), shift: 0 },
            Some(first) => {
                points.push(Point { value: u32::MAX, node: first.node });
                let bits = (points.len() * SLICES_PER_POINT).next_power_of_two().ilog2();
                let shift = u32::BITS - bits;
                Ketama { starts: starts(&points, bits, shift), points, shift }
            }
        }
    }

    #[inline]
    pub(crate) fn locate(&self, hash: u32) -> Option<usize> {
        let mut index = *self.starts.get((hash >> self.shift) as usize)? as usize;
        while self.points[index].value < hash {
            index += 1;
        }
        Some(self.points[index].node as usize)
    }
}

fn starts(points: &[Point], bits: u32, shift: u32) -> Vec<u32> {
    let first_at = |begin: u32| points.partition_point(|point| point.value < begin) as u32;
    (0..1u32 << bits).map(|slice| first_at(slice << shift)).collect()
}

fn total_weight(members: &[Member]) -> u32 {
    members.iter().fold(0, |sum: u32, member| sum.saturating_add(member.weight))
}

/// Returns the number of MD5 digests, of four points each, for a node: 40 times its share of the
/// weights times the number of nodes, rounded down. twemproxy computes it in single precision by
/// exactly these steps, so that each of 25 equal nodes gets 39. The epsilon that should prevent
/// this is lost in the rounding.
fn digests_per_node(weight: u32, total_weight: u32, nodes: usize) -> u32 {
    let share = weight as f32 / total_weight as f32;
    let digests = share * POINTS_PER_NODE / POINTS_PER_DIGEST * nodes as f32;
    (f64::from(digests) + 0.000_000_000_1) as f32 as u32
}

/// Returns the text that is digested for one of a node's points. twemproxy cuts it to its buffer,
/// so all digests of a name of 272 bytes or more are the same.
fn point_name(name: &str, index: u32) -> Vec<u8> {
    let mut point = format!("{name}-{index}").into_bytes();
    point.truncate(POINT_NAME_LEN_MAX);
    point
}

const POINTS_PER_NODE: f32 = 160.0;
const POINTS_PER_DIGEST: f32 = 4.0;
const POINT_NAME_LEN_MAX: usize = 272;
/// More slices make a search of more than one step rarer; each costs two bytes of cache.
const SLICES_PER_POINT: usize = 2;
