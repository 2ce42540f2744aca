//! The servers that may own a key at a given time: every ring that a pool has had, and its start.
//!
//! A request is routed by the ring at the time when it is parsed. So its keys may be on any server
//! that owned them between its arrival and now, and on no other.

use proxy::plan::{OnFailure, PoolPlan};
use shard::{Distribution, Node, Ring, tagged};

use super::scene::Key;
use super::server::Server;

/// One ring.
#[derive(Clone, PartialEq, Eq)]
pub struct View {
    /// By key: a bit for each server that may own it; several bits if the ring is random.
    owners: Vec<u64>,
    /// The servers of the plan, including ejected ones.
    members: u64,
    /// The servers that own any key.
    alive: u64,
}

/// All rings of a pool, the newest last, each with the event that began it.
pub struct Rings {
    views: Vec<(u64, View)>,
}

impl View {
    pub fn new(plan: &PoolPlan, servers: &[Server], keys: &[Key]) -> View {
        let planned = |server: &Server| plan.servers.iter().find(|one| one.id == server.id);
        let weight = |server: &Server| planned(server).map_or(1, |one| one.weight);
        let node = |one: &Server| Node { name: one.name.clone(), weight: weight(one) };
        let nodes: Vec<Node> = servers.iter().map(node).collect();
        let is_member: Vec<bool> = servers.iter().map(|one| planned(one).is_some()).collect();
        // Where keys may move, only the servers in the best state that there is have any.
        let state = |one| planned(one).filter(|_| !one.is_ejected).map(|planned| planned.admin);
        let best = servers.iter().filter_map(state).min();
        let is_alive = |one| match plan.on_failure {
            OnFailure::Eject => best.is_some() && state(one) == best,
            OnFailure::FailFast => state(one).is_some(),
        };
        let is_alive: Vec<bool> = servers.iter().map(is_alive).collect();
        let ring = Ring::build(plan.distribution, &nodes, &is_alive);
        let alive = bits(&is_alive);
        let owners = keys.iter().map(|key| match plan.distribution {
            Distribution::Random => alive,
            _ => ring
                .locate(plan.hash.hash(tagged(key.text.as_bytes(), plan.hash_tag)))
                .map_or(0, |at| 1 << at),
        });
        View { owners: owners.collect(), members: bits(&is_member), alive }
    }
}

impl Rings {
    pub fn new(first: View) -> Rings {
        Rings { views: vec![(0, first)] }
    }

    /// Adds a ring from that event on. Returns whether any key has moved.
    pub fn push(&mut self, event: u64, next: View) -> bool {
        let (_, last) = self.views.last().expect("there is always a ring");
        if *last == next {
            return false;
        }
        let moved = last.owners != next.owners;
        self.views.push((event, next));
        moved
    }

    /// Returns the servers that have owned a key at any time since that event, one bit each.
    pub fn owners(&self, key: usize, since: u64) -> u64 {
        self.since(since).fold(0, |sum, view| sum | view.owners[key])
    }

    /// Returns whether the plan had exactly these servers at some time since that event.
    pub fn had_members(&self, members: u64, since: u64) -> bool {
        self.since(since).any(|view| view.members == members)
    }

    /// Returns whether all servers of the plan were among these at some time since that event.
    pub fn had_members_among(&self, many: u64, since: u64) -> bool {
        self.since(since).any(|view| view.members & !many == 0)
    }

    /// Returns whether the ring has changed since that event.
    pub fn has_turned(&self, since: u64) -> bool {
        self.since(since).nth(1).is_some()
    }

    /// Returns whether no server was left at some time since that event.
    pub fn was_empty(&self, since: u64) -> bool {
        self.since(since).any(|view| view.alive == 0)
    }

    /// Returns the rings that were in effect at that event or later, the newest first.
    fn since(&self, event: u64) -> impl Iterator<Item = &View> {
        let mut end = u64::MAX;
        let views = self.views.iter().rev().take_while(move |(from, _)| {
            let lasted = end > event;
            end = *from;
            lasted
        });
        views.map(|(_, view)| view)
    }
}

fn bits(flags: &[bool]) -> u64 {
    flags.iter().rev().fold(0, |sum, flag| sum << 1 | u64::from(*flag))
}
