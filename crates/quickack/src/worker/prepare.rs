//! A configuration on its way into this worker: the master's text, compiled again with the code
//! that the master checked it with, and this worker's part of it.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::{Answer, Asked};
use proxy::limits;
use proxy::plan::{Plan, PoolPlan};

use crate::config::{self, AcceptMode, Affinity, Config, Override, Severity, Source};
use crate::error::Error;
use crate::event::{self, Install, Listener, Target, TargetAddress};
use crate::ipc::installation::{Installation, assign_ids};
use crate::log::{About, Format};

/// A configuration that can be installed.
pub struct Prepared {
    pub epoch: u64,
    pub install: Install,
    /// The names of pools and servers, by id.
    pub names: HashMap<u32, About>,
    /// The same of tenants.
    pub tenants: HashMap<u32, String>,
    /// The format of the access log, if there is one.
    pub access_log: Option<Format>,
    pub affinity: Affinity,
    pub mode: AcceptMode,
}

/// Compiles an installation for the worker in `slot`, which was passed these sockets.
pub fn compile(
    installation: &Installation,
    slot: usize,
    passed: &BTreeMap<u32, OwnedFd>,
) -> Result<Prepared, Error> {
    let overrides = installation.overrides.iter().map(|word| Override::parse(word));
    let overrides = overrides.collect::<Result<Vec<Override>, Error>>()?;
    let name = &installation.name;
    let (text, source) = (&installation.text, Source::Attached(&installation.attachments));
    let outcome = config::compile_for(name, text, &overrides, installation.processors, source);
    let Some(mut config) = outcome.config else {
        let errors = outcome.report.count(Severity::Error);
        return Err(Error::Config(format!("it has {errors} errors here")));
    };
    assign_ids(&mut config.plan, &installation.pools, &installation.tenants);
    config.plan.note_addresses(&installation.addresses);
    let targets = targets(&config, installation)?;
    let listeners = listeners(&config, installation, slot, passed)?;
    let names = names(&config.plan);
    let process = &config.process;
    let (connects_per_second, epoll_timeout) =
        (process.server_connects_max, Duration::from_micros(process.epoll_timeout_us));
    let affinity = process.affinity.clone();
    let access_log = process.access_log.is_some().then_some(process.access_log_format);
    let tenants = config.plan.tenants.iter().map(|tenant| (tenant.id, tenant.name.clone()));
    let tenants = tenants.collect();
    let plan = share(config.plan, installation.workers, listeners.len())?;
    let install = Install { plan, listeners, targets, connects_per_second, epoll_timeout };
    let (epoch, mode) = (installation.epoch, installation.accept);
    Ok(Prepared { epoch, install, names, tenants, access_log, affinity, mode })
}

/// The listeners that this worker looks at. One that it has already comes without a descriptor.
fn listeners(
    config: &Config,
    installation: &Installation,
    slot: usize,
    passed: &BTreeMap<u32, OwnedFd>,
) -> Result<Vec<Listener>, Error> {
    let entries = installation.listeners.iter().filter(|entry| entry.is_of(slot));
    let mut listeners = Vec::new();
    for entry in entries {
        let written = &config.listeners[entry.pool];
        let fd = passed.get(&entry.id).map(OwnedFd::try_clone).transpose();
        listeners.push(Listener {
            id: entry.id,
            fd: fd?,
            pool: config.plan.pools[entry.pool].id,
            tcp: matches!(written.address, config::Address::Tcp { .. }),
            nodelay: written.tcp.nodelay,
            keepalive: written.tcp.keepalive,
            shared: entry.slot.is_none(),
            proxy_protocol: written.proxy_protocol.clone(),
            no_room: no_room(&config.plan.pools[entry.pool]),
        });
    }
    Ok(listeners)
}

/// Returns what a client reads for which there is no descriptor.
fn no_room(pool: &PoolPlan) -> Vec<u8> {
    let mut words = Vec::new();
    pool.protocol.answer(
        &Asked::no_request(),
        &Answer::Full("too many open connections"),
        &mut words,
    );
    words
}

/// Where each server is.
fn targets(config: &Config, installation: &Installation) -> Result<BTreeMap<u32, Target>, Error> {
    let odd = || Error::Bug("a server's address is none".into());
    let mut targets = BTreeMap::new();
    for (pool, upstream) in config.plan.pools.iter().zip(&config.upstreams) {
        for server in &pool.servers {
            let address = match installation.addresses.get(&server.id) {
                Some(path) if path.starts_with('/') => TargetAddress::Unix(PathBuf::from(path)),
                Some(text) => TargetAddress::Tcp(text.parse().map_err(|_| odd())?),
                None => TargetAddress::None,
            };
            let (nodelay, keepalive) = (upstream.tcp.nodelay, upstream.tcp.keepalive);
            targets.insert(server.id, Target { address, nodelay, keepalive });
        }
    }
    Ok(targets)
}

/// This worker's part of what is limited for the whole proxy or by its own descriptors.
fn share(mut plan: Plan, workers: usize, listeners: usize) -> Result<Plan, Error> {
    plan.memory_max /= workers;
    let descriptors = sys::process::descriptors_max();
    let own = links_kept(&plan, descriptors) + event::refused_max(descriptors);
    let own = own + listeners + workers + DESCRIPTORS_OWN;
    plan.clients_room = descriptors.saturating_sub(own);
    match plan.clients_room {
        0 => Err(Error::Config(
            "the descriptor limit (ulimit -n) leaves no room for clients".to_string(),
        )),
        _ => Ok(plan),
    }
}

/// Descriptors that are kept for links: those that every pool needs, and those of special classes
/// and of further connection keys as far as they leave half of all to clients. A link that finds
/// none is tried again after a pause.
fn links_kept(plan: &Plan, descriptors: usize) -> usize {
    let links = |pool: &PoolPlan| pool.servers.len() * pool.server_connections;
    let needed: usize = plan.pools.iter().map(|pool| links(pool) + pool.servers.len()).sum();
    // Few clients need the classes with another connection key than the first.
    let classes = |pool: &PoolPlan| pool.servers.len() * pool.class_links;
    let others = |pool: &PoolPlan| links(pool) * (conn_keys_max(pool) - 1) + classes(pool);
    let further: usize = plan.pools.iter().map(others).sum();
    needed + further.min((descriptors / 2).saturating_sub(needed))
}

/// Connection keys that clients of a pool can be in: each has links of its own.
fn conn_keys_max(pool: &PoolPlan) -> usize {
    const PROTO_VERSIONS: usize = 2;
    match pool.protocol.conn_key(pool.database).proto_version {
        0 => 1,
        _ => (PROTO_VERSIONS * pool.databases as usize).min(limits::CONN_KEYS_MAX),
    }
}

fn names(plan: &Plan) -> HashMap<u32, About> {
    let mut names = HashMap::new();
    for pool in &plan.pools {
        names.insert(pool.id, About::pool(&pool.name));
        for server in &pool.servers {
            names.insert(server.id, About::server(&server.label, &pool.name));
        }
    }
    names
}

/// Descriptors beside listeners, links, wakeups and clients, also those that are refused: the loop,
/// signals, the channel, the lock, the log, those that are being handed over, a reserve.
const DESCRIPTORS_OWN: usize = 16;

/// Chance for jitter and the random distribution; nothing secret hangs on it.
pub fn seed() -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    clock.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the descriptors kept for the links of four servers, of so many in all.
    fn check(pool: &str, descriptors: usize) -> usize {
        let servers = "'a:1:1', 'b:1:1', 'c:1:1', 'd:1:1'";
        let text = format!("p: {{listen: h:1, {pool}, servers: [{servers}]}}\n");
        let config = config::compile("test.yml", &text, &[]).config.unwrap();
        links_kept(&config.plan, descriptors)
    }

    #[test]
    fn no_room_is_told_in_the_words_of_the_pool() {
        let pool = |name: &str| PoolPlan::new("p", proto::protocol(name).unwrap(), Vec::new());
        let words = |name: &str| String::from_utf8(no_room(&pool(name))).unwrap();
        assert_eq!(words("redis"), "-ERR max number of clients reached\r\n");
        assert_eq!(words("memcached"), "SERVER_ERROR too many open connections\r\n");
    }

    #[test]
    fn descriptors_are_kept_for_links_of_every_lane_but_never_more_than_half() {
        assert_eq!(check("server_connections: 2", 1024), 4 * 2 + 4 + 4 * 4);
        // 16 databases in two versions of RESP.
        assert_eq!(check("redis: true", 1024), 4 + 4 + 4 * 31 + 4 * 4);
        assert_eq!(check("redis: true, databases: 1", 1024), 4 + 4 + 4 + 4 * 4);
        assert_eq!(check("redis: true, databases: 1000", 100_000), 4 + 4 + 4 * 63 + 4 * 4);
        assert_eq!(check("redis: true, databases: 1000", 100), 50);
        assert_eq!(check("redis: true", 10), 8, "what is needed is kept whatever there is");
    }
}
