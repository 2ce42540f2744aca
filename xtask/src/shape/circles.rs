//! Circles in a graph: the sets of nodes that can each reach all others of their set.

use std::collections::BTreeMap;

/// The ways from one file to another, each with a name for every time that it is used.
pub type Graph = BTreeMap<(usize, usize), Vec<String>>;

/// Returns the circles of two nodes or more, the largest first.
pub fn circles(nodes: usize, graph: &Graph) -> Vec<Vec<usize>> {
    let reach: Vec<Vec<bool>> = (0..nodes).map(|from| reachable(nodes, graph, from)).collect();
    let mut circles = Vec::new();
    for (first, reached) in reach.iter().enumerate() {
        let circle: Vec<usize> =
            (0..nodes).filter(|other| reached[*other] && reach[*other][first]).collect();
        if circle.len() > 1 && circle[0] == first {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

fn reachable(nodes: usize, graph: &Graph, from: usize) -> Vec<bool> {
    let mut reached = vec![false; nodes];
    let mut next = vec![from];
    while let Some(node) = next.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            let ways = graph.range((node, 0)..(node + 1, 0));
            next.extend(ways.map(|((_, to), _)| *to));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_all_that_reach_each_other() {
        // 0 -> 1 -> 2 -> 0 is one circle, 4 <-> 5 another; 3 is on the way from one to the other.
        let ways = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 3), (3, 4), (4, 5), (5, 4), (6, 6)];
        let graph = ways.map(|way| (way, vec![String::new()])).into();
        assert_eq!(circles(7, &graph), [vec![0, 1, 2], vec![4, 5]]);
        let line = [(0, 1), (1, 2)].map(|way| (way, Vec::new())).into();
        assert!(circles(3, &line).is_empty());
    }
}
