//! The worker: one loop around one `Proxy`. It never forks, blocks, or opens a file once it runs.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::Book;
use proxy::plan::Plan;
use proxy::{Event, Proxy, Time};
use sys::signal::{self, Signals};

use crate::config::{Address, Config, ServerAddress, Upstream};
use crate::event::{Listener, Loop, Target, TargetAddress};
use crate::log;

/// Serves `config` until TERM or INT. `embedded` are the sockets of the cache processes, in the
/// order in which `servers: [embedded]` stands in the file.
pub fn run(config: Config, embedded: &[PathBuf]) -> ExitCode {
    match serve(config, embedded) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn serve(config: Config, embedded: &[PathBuf]) -> io::Result<()> {
    let signals = Signals::new(&[signal::TERM, signal::INT])?;
    let targets = targets(&config, embedded)?;
    let (listeners, addresses) = listen(&config)?;
    let mut plan = config.plan.clone();
    let room = clients_within_descriptors(&plan);
    if room == 0 {
        return Err(io::Error::other(
            "the descriptor limit (ulimit -n) leaves no room for clients",
        ));
    }
    if room < ROOM_EXPECTED && room < plan.clients_max {
        log::line(&format!(
            "room for {room} clients only: the descriptor limit (ulimit -n) is low"
        ));
    }
    plan.clients_room = room;
    let names = Names::new(&plan);
    for (address, listener) in addresses.iter().zip(&config.listeners) {
        let pool = &config.plan.pools[listener.pool].name;
        log::line(&format!("listening on {address} (pool {pool})"));
    }
    if config.text == crate::config::DEFAULT_TEXT {
        log::line(&welcome(&addresses[0]));
    }
    let mut report = |event| log::line(&names.sentence(event));
    let sheet = Book::private(1, plan.rows()).sheet(0);
    let mut mind = Proxy::new(plan, seed(), Time(0), sheet);
    let ended =
        Loop::new(&mut mind, listeners, targets, signals, &mut report, SHUTDOWN_TIMEOUT)?.run();
    remove_sockets(&config.listeners);
    ended
}

/// Leaves no socket file behind that nobody listens on.
fn remove_sockets(listeners: &[crate::config::Listener]) {
    for listener in listeners {
        if let Address::Unix { path, .. } = &listener.address {
            // Whoever has removed or replaced it meanwhile knows what they are doing.
            let _ = sys::listen::remove_unix(path);
        }
    }
}

/// How to try what runs without a configuration.
fn welcome(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    format!(
        "an embedded cache stands behind it; try it from another terminal:\n\n    \
         printf 'set greeting 0 0 5\\r\\nhello\\r\\nget greeting\\r\\nquit\\r\\n' \
         | nc {host} {port}\n\n\
         quickack: in front of your own servers: quickack run -c nutcracker.yml; to end: Ctrl-C"
    )
}

/// The listening sockets, and the addresses they are bound to.
fn listen(config: &Config) -> io::Result<(Vec<Listener>, Vec<String>)> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for listener in &config.listeners {
        let (fd, address) = bind(listener).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => "; something else is bound there",
                io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
                _ => "",
            };
            io::Error::other(format!("cannot listen on {}: {error}{hint}", listener.address))
        })?;
        addresses.push(address);
        listeners.push(Listener {
            fd,
            index: config.plan.pools[listener.pool].row as usize,
            tcp: matches!(listener.address, Address::Tcp { .. }),
            nodelay: listener.tcp.nodelay,
            keepalive: listener.tcp.keepalive,
            resting_until: None,
        });
    }
    Ok((listeners, addresses))
}

fn bind(listener: &crate::config::Listener) -> io::Result<(std::os::fd::OwnedFd, String)> {
    match &listener.address {
        Address::Unix { path, mode } => {
            let fd = sys::listen::unix(path, *mode, listener.backlog)?;
            Ok((fd, path.display().to_string()))
        }
        address @ Address::Tcp { .. } => {
            let resolved = first(address.resolve()?)?;
            let fd = sys::listen::tcp(resolved, listener.backlog, listener.reuseport)?;
            let bound = sys::listen::local_address(&fd)?;
            Ok((fd, bound.to_string()))
        }
    }
}

/// Where each server is. Names are resolved here, once, before anything is served.
fn targets(config: &Config, embedded: &[PathBuf]) -> io::Result<BTreeMap<u32, Target>> {
    let mut sockets = embedded.iter();
    let mut resolve = |address: &ServerAddress| match address {
        ServerAddress::Embedded { .. } => {
            let path = sockets.next().expect("the launcher made a socket for each embedded cache");
            Ok(TargetAddress::Unix(path.clone()))
        }
        ServerAddress::Unix(path) => Ok(TargetAddress::Unix(path.clone())),
        ServerAddress::Tcp { host, .. } => match address.resolve().and_then(first) {
            Ok(address) => Ok(TargetAddress::Tcp(address)),
            Err(error) => {
                Err(io::Error::other(format!("cannot resolve the server {host}: {error}")))
            }
        },
    };
    let mut targets = BTreeMap::new();
    for (pool, Upstream { tcp, servers, .. }) in config.plan.pools.iter().zip(&config.upstreams) {
        for (plan, server) in pool.servers.iter().zip(servers) {
            let (nodelay, keepalive) = (tcp.nodelay, tcp.keepalive);
            targets.insert(plan.row, Target { address: resolve(server)?, nodelay, keepalive });
        }
    }
    Ok(targets)
}

fn first(addresses: Vec<std::net::SocketAddr>) -> io::Result<std::net::SocketAddr> {
    addresses.into_iter().next().ok_or_else(|| io::Error::other("no address"))
}

/// How many clients the descriptor limit leaves room for, after the links and our own.
fn clients_within_descriptors(plan: &Plan) -> usize {
    let links: usize =
        plan.pools.iter().map(|pool| pool.servers.len() * (pool.server_connections + 1) + 1).sum();
    sys::process::descriptors_max().saturating_sub(links + DESCRIPTORS_OWN)
}

/// What events call things: a server and its pool, by the server's row.
struct Names {
    servers: BTreeMap<u32, String>,
}

impl Names {
    fn new(plan: &Plan) -> Names {
        let mut servers = BTreeMap::new();
        for pool in &plan.pools {
            for server in &pool.servers {
                let name = format!("server {} of pool {}", server.label, pool.name);
                servers.insert(server.row, name);
            }
        }
        Names { servers }
    }

    fn sentence(&self, event: Event) -> String {
        let name = |server: u32| &self.servers[&server];
        match event {
            Event::ServerDown { server, why } => {
                format!("{} is down ({why}); it is probed until it answers", name(server))
            }
            Event::ServerEjected { server, why } => {
                format!("{} is ejected ({why}); its keys go to the others", name(server))
            }
            Event::ServerBack { server } => format!("{} is back", name(server)),
            Event::Poisoned { server, why } => {
                format!("{} sent {why}; its connection is closed", name(server))
            }
        }
    }
}

/// Chance for jitter and the random distribution; nothing secret hangs on it.
fn seed() -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    clock.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

/// Fewer clients than this are worth a word at the start.
const ROOM_EXPECTED: usize = 512;
/// How long clients may wait for their last answers after TERM.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Descriptors of ours beside listeners, links and clients: the loop, signals, the log, a reserve.
const DESCRIPTORS_OWN: usize = 16;
