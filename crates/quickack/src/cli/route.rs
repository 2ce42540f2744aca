//! `quickack route -c FILE KEY...`: computes the server of each key, without asking any server.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use proxy::plan::{AdminState, PoolPlan};
use shard::{Distribution, Node, Ring};

use super::print;
use crate::config::{Config, Upstream, nearest};

/// Key, pool, hash, server.
type Row = [String; 4];

pub fn route(config: &Config, pool_name: Option<&str>, keys: &[OsString]) -> ExitCode {
    let asked = |pool: &PoolPlan| pool_name.is_none_or(|name| name == pool.name);
    let text = config.plan.pools.iter().any(|pool| asked(pool) && keys_are_words(pool));
    if let Some(key) = keys.iter().find(|key| text && !is_word(key.as_bytes())) {
        let key = key.as_bytes().escape_ascii();
        eprintln!("quickack: `{key}` is not a key: 1 to 250 bytes without space, NUL and line end");
        return ExitCode::FAILURE;
    }
    let mut rows: Vec<Row> = vec![["KEY", "POOL", "HASH", "SERVER"].map(str::to_string)];
    for (pool, upstream) in config.plan.pools.iter().zip(&config.upstreams) {
        if asked(pool) {
            rows.extend(pool_rows(pool, upstream, keys));
        }
    }
    match pool_name {
        Some(name) if rows.len() == 1 => {
            let names = config.plan.pools.iter().map(|pool| pool.name.as_str());
            let hint = match nearest(name, names) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => String::new(),
            };
            eprintln!("quickack: no pool is called `{name}`{hint}");
            ExitCode::FAILURE
        }
        _ => {
            print(&align(&rows));
            ExitCode::SUCCESS
        }
    }
}

/// Returns whether keys must be words, as in memcached pools; in other pools any bytes are a key.
fn keys_are_words(pool: &PoolPlan) -> bool {
    pool.protocol.name() == proto::PROTOCOLS[0].name()
}

/// Returns whether a client could request the key in text, according to the proxy's own parser.
fn is_word(key: &[u8]) -> bool {
    let protocol = proto::PROTOCOLS[0];
    let line = [b"get ", key, b"\r\n"].concat();
    let mut keys = Vec::new();
    protocol.parse_request(&line, &mut proto::Resume::default(), &mut keys);
    keys.len() == 1 && keys[0].of(&line) == key
}

fn pool_rows(pool: &PoolPlan, upstream: &Upstream, keys: &[OsString]) -> Vec<Row> {
    let nodes: Vec<Node> = pool
        .servers
        .iter()
        .map(|server| Node { name: server.name.clone(), weight: server.weight })
        .collect();
    let states: Vec<Option<AdminState>> = pool.servers.iter().map(|one| Some(one.admin)).collect();
    let ring = Ring::build(pool.distribution, &nodes, &pool.on_failure.in_ring(&states));
    keys.iter()
        .map(|key| {
            let hash = pool.hash.hash(shard::tagged(key.as_bytes(), pool.hash_tag));
            let server = server(pool, upstream, &ring, hash);
            let key = key.as_bytes().escape_ascii().to_string();
            [key, pool.name.clone(), format!("{hash:#010x}"), server]
        })
        .collect()
}

/// Returns the owner's name, with its address if the name is not the address.
fn server(pool: &PoolPlan, upstream: &Upstream, ring: &Ring, hash: u32) -> String {
    if pool.distribution == Distribution::Random {
        return "any of them, a random one for each request".to_string();
    }
    // A list from elsewhere may not be known.
    let Some(index) = ring.locate(hash) else {
        return "none: no server of this pool is known".to_string();
    };
    let label = &pool.servers[index].label;
    let address = upstream.servers[index].to_string();
    if *label == address { address } else { format!("{label} {address}") }
}

/// Aligns the columns; the last one has no padding.
fn align(rows: &[Row]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (key_width, pool_width, hash_width) = (width(0), width(1), width(2));
    rows.iter()
        .map(|[key, pool, hash, server]| {
            format!("{key:key_width$}  {pool:pool_width$}  {hash:hash_width$}  {server}\n")
        })
        .collect()
}
