//! Any bytes as a key: hash, tag and ring accept them, and always select a live server.

use shard::{Distribution, Hash, Node, Ring, tagged};

use crate::mutate::Dice;

pub fn run(seed: u64, budget: usize) {
    let mut dice = Dice::new(seed);
    for round in 0..budget {
        if round % 100 == 0 {
            rings(&mut dice);
        }
        let key = key(&mut dice);
        let tag = dice.one_in(2).then(|| [dice.roll() as u8, dice.roll() as u8]);
        let part = tagged(&key, tag);
        assert!(part.len() <= key.len(), "a tag is a part of its key");
        for &hash in Hash::ALL {
            let _ = hash.hash(part);
        }
    }
}

fn key(dice: &mut Dice) -> Vec<u8> {
    let len = if dice.one_in(20) { dice.below(70_000) } else { dice.below(260) };
    let mut key: Vec<u8> = (0..len).map(|_| dice.roll() as u8).collect();
    if dice.one_in(2) {
        key.iter_mut().for_each(|byte| *byte = b"{}ab$:"[usize::from(*byte) % 6]);
    }
    key
}

/// Makes a ring of random servers, some of them removed.
fn rings(dice: &mut Dice) {
    let count = dice.below(12);
    let nodes: Vec<Node> = (0..count)
        .map(|number| Node { name: format!("server{number}"), weight: 1 + dice.below(5) as u32 })
        .collect();
    let alive: Vec<bool> = (0..count).map(|_| !dice.one_in(3)).collect();
    for &distribution in Distribution::ALL {
        let ring = Ring::build(distribution, &nodes, &alive);
        for hash in [0, 1, u32::MAX, u32::MAX - 1, dice.roll() as u32, dice.roll() as u32] {
            match ring.locate(hash) {
                Some(server) => assert!(alive[server], "{} names a dead one", distribution.name()),
                None => assert!(!alive.contains(&true), "{} names nobody", distribution.name()),
            }
        }
    }
}
