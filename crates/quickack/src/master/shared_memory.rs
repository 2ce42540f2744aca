//! The memory that the master shares with its workers: how large it is made.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;

use crate::address_space;
use crate::config::{self, Config, WORKERS_MAX};
use crate::error::Error;
use crate::scoreboard::Scoreboard;

/// The scoreboard, with room for what the configuration may grow to.
pub fn make_scoreboard(config: &Config) -> Result<(OwnedFd, Scoreboard), Error> {
    let count = config.plan.pools.iter().map(|pool| pool.servers.len() + 1).sum::<usize>();
    let ids = (count * IDS_SPARE + 1).max(IDS_MIN);
    let words = Scoreboard::words(WORKERS_MAX, ids);
    let memory = sys::memory::shared("quickack-scoreboard", words)?;
    let mapped = sys::memory::map(&memory).map_err(|error| {
        let bytes = (words * size_of::<u64>()) as u64;
        let what = format!(
            "{} of address space for the counters of up to {ids} pools and servers and \
             {WORKERS_MAX} workers; only the used part takes memory",
            config::size_word(bytes)
        );
        address_space::no_room(&error, &what, address_space_needed(config, ids))
    })?;
    let scoreboard = Scoreboard::create(mapped, WORKERS_MAX, ids);
    // The keys of a new hasher come from the kernel.
    scoreboard.registry().set_secret(RandomState::new().hash_one(0));
    Ok((memory, scoreboard))
}

/// Bytes of address space that the largest of our processes is to use: a worker maps the scoreboard
/// and has `memory_max` of buffers, an embedded cache has its items.
pub fn address_space_needed(config: &Config, ids: usize) -> u64 {
    let scoreboard = Scoreboard::words(WORKERS_MAX, ids) * size_of::<u64>();
    let servers = config.upstreams.iter().flat_map(|upstream| &upstream.servers);
    let caches = servers.filter_map(|server| match server {
        config::ServerAddress::Embedded { memory } => Some(*memory),
        _ => None,
    });
    caches.chain([scoreboard + config.plan.memory_max]).max().unwrap_or(scoreboard) as u64
}

/// Ids reserved for each pool and server of the first configuration, so that it may grow …
const IDS_SPARE: usize = 4;
/// … and at least so many.
const IDS_MIN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_have_room_for_a_large_configuration_to_grow() {
        const POOLS: usize = 1_500;
        let pool = |n| format!("p{n}:\n  listen: 127.0.0.1:{n}\n  servers: [127.0.0.1:1:1]\n");
        let text: String = (1..=POOLS).map(pool).collect();
        let config = config::compile("test", &text, &[]).config.unwrap();
        let (_memory, scoreboard) = make_scoreboard(&config).unwrap();
        assert_eq!(scoreboard.ids_max(), 4 * 2 * POOLS + 1);
    }
}
