//! The compared programs: proxies in one or several processes, each with its usual configuration.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use testkit::process::free_address;

use crate::acts::Act;
use crate::admin::Admin;
use crate::load::Wire;
use crate::process::{self, Cpus, Process};
use crate::servers::Backend;

/// The program between the load and the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Nutcracker,
    Quickack,
    /// HAProxy in `mode tcp`: it copies bytes without parsing, and has one server.
    Haproxy,
    /// No proxy: the load connects to the first server.
    Direct,
}

pub const PEERS: [Peer; 4] = [Peer::Nutcracker, Peer::Quickack, Peer::Haproxy, Peer::Direct];

impl Peer {
    pub fn name(self) -> &'static str {
        match self {
            Peer::Nutcracker => "nutcracker",
            Peer::Quickack => "quickack",
            Peer::Haproxy => "haproxy",
            Peer::Direct => "direct",
        }
    }

    /// Returns the command line, with FILE and PORT as placeholders for a configuration and a spare
    /// port.
    pub fn command(self) -> &'static str {
        match self {
            Peer::Nutcracker => "nutcracker -v 0 -a 127.0.0.1 -s PORT -c FILE",
            Peer::Quickack => "quickack run -c FILE",
            Peer::Haproxy => "haproxy -db -f FILE",
            Peer::Direct => "",
        }
    }

    pub fn parse(name: &str) -> Result<Peer, String> {
        let known = PEERS.into_iter().find(|peer| peer.name() == name);
        known.ok_or_else(|| format!("unknown peer `{name}`: nutcracker, quickack, haproxy, direct"))
    }
}

/// A program with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contestant {
    pub peer: Peer,
    /// Number of quickack's workers. For other programs, the number of processes; each has its own
    /// port, and they share the clients.
    pub count: usize,
    /// The way in which quickack's workers share new connections.
    pub accept: &'static str,
    /// The operator's action during its windows.
    pub act: Act,
    /// The protocol of its requests.
    pub wire: Wire,
}

impl Contestant {
    /// Returns a contestant with one serving process.
    pub const fn one(peer: Peer) -> Contestant {
        Contestant::of(peer, 1)
    }

    pub const fn of(peer: Peer, count: usize) -> Contestant {
        Contestant { peer, count, accept: "auto", act: Act::Nothing, wire: Wire::Text }
    }

    pub const fn accepting(self, accept: &'static str) -> Contestant {
        Contestant { accept, ..self }
    }

    pub const fn under(self, act: Act) -> Contestant {
        Contestant { act, ..self }
    }

    pub const fn speaking(self, wire: Wire) -> Contestant {
        Contestant { wire, ..self }
    }

    pub fn name(self) -> String {
        let name = self.peer.name();
        let shape = match (self.peer, self.count) {
            (Peer::Quickack, count) if count > 1 || self.accept != "auto" => format!(" w{count}"),
            (_, 1) => String::new(),
            (_, count) => format!(" x{count}"),
        };
        let accept = if self.accept == "auto" { "" } else { self.accept };
        let space = if accept.is_empty() { "" } else { " " };
        let (wire, act) = (self.wire.suffix(), self.act.suffix());
        format!("{name}{space}{accept}{shape}{wire}{act}")
    }
}

/// A contestant that is ready for clients.
pub struct Endpoint {
    pub who: Contestant,
    /// The addresses over which clients are distributed.
    pub addresses: Vec<SocketAddrV4>,
    processes: Vec<Process>,
    /// quickack's admin socket.
    pub admin: Option<Admin>,
}

/// The folder and the settings with which contestants are started.
pub struct Place<'a> {
    pub folder: &'a Path,
    pub quickack: &'a Path,
    pub servers: &'a [u16],
    /// The kind of servers, which determines the pool's protocol.
    pub backend: Backend,
    pub merge_gets: bool,
    pub cpus: Cpus,
    /// A command that runs the program, such as a tracer; usually empty.
    pub wrapper: &'a [String],
    pub limits: Limits,
    pub added: &'a Added,
}

/// Directives that are added to quickack's file, to measure what they cost.
#[derive(Clone, Debug, Default)]
pub struct Added {
    pub global: Vec<String>,
    pub pool: Vec<String>,
}

/// Renders directives as lines of a section.
fn section(directives: &[String]) -> String {
    directives.iter().map(|directive| format!("  {directive}\n")).collect()
}

/// The limits in the proxies' configurations.
#[derive(Clone, Copy)]
pub struct Limits {
    /// All deadlines of a pool; None if only quickack's `timeout_reply` is set.
    pub timeout_ms: Option<u32>,
    pub item_size_max: &'static str,
    pub memory_max: &'static str,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { timeout_ms: None, item_size_max: "2m", memory_max: "1g" }
    }
}

impl Endpoint {
    pub fn start(who: Contestant, place: &Place) -> Result<Endpoint, String> {
        let mut endpoint = Endpoint { who, addresses: vec![], processes: vec![], admin: None };
        if who.peer == Peer::Direct {
            endpoint.addresses = vec![SocketAddrV4::new(Ipv4Addr::LOCALHOST, place.servers[0])];
            return Ok(endpoint);
        }
        let processes = if who.peer == Peer::Quickack { 1 } else { who.count };
        for index in 0..processes {
            let port = free_address().port();
            let name = format!("{}-{index}", who.name().replace([' ', ','], "-"));
            let command = place.prepare(who, port, &name)?;
            let command: Vec<String> = place.wrapper.iter().cloned().chain(command).collect();
            let cpus = place.cpus.of_proxy(who.peer, index);
            let mut process = Process::start(&who.name(), &command, &cpus)?;
            process.wait_for_port(port)?;
            endpoint.addresses.push(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
            endpoint.processes.push(process);
            if who.peer == Peer::Quickack {
                let admin = Admin::new(place.socket(&name), place.file(&name));
                admin.wait_for_workers(who.count)?;
                endpoint.admin = Some(admin);
            }
        }
        Ok(endpoint)
    }

    /// Returns all its processes; none if there is no proxy.
    pub fn ids(&self) -> Vec<u32> {
        self.processes.iter().flat_map(Process::tree).collect()
    }

    /// Returns the processes that serve clients.
    pub fn serving_ids(&self) -> Vec<u32> {
        let master = self.master_id();
        self.ids().into_iter().filter(|id| Some(*id) != master).collect()
    }

    /// Returns the id of quickack's master.
    pub fn master_id(&self) -> Option<u32> {
        let leads = self.who.peer == Peer::Quickack;
        self.processes.first().filter(|_| leads).map(Process::id)
    }
}

impl Place<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.conf"))
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.sock"))
    }

    /// Writes the configuration and returns the command that runs it.
    fn prepare(&self, who: Contestant, port: u16, name: &str) -> Result<Vec<String>, String> {
        let text = match who.peer {
            Peer::Nutcracker => self.pool(port),
            Peer::Quickack => self.process(who, name) + &self.pool(port) + &self.extensions(),
            Peer::Haproxy => self.listener(port),
            Peer::Direct => unreachable!("nobody needs no configuration"),
        };
        let file = self.file(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let stats = free_address().port().to_string();
        let places = [("FILE", &*file.display().to_string()), ("PORT", &stats)];
        Ok(process::words(who.peer.command(), &places, self.quickack))
    }

    /// Returns one pool in nutcracker's directives; quickack reads it unchanged.
    fn pool(&self, port: u16) -> String {
        let servers: String =
            self.servers.iter().map(|server| format!("    - 127.0.0.1:{server}:1\n")).collect();
        let redis = if self.backend == Backend::Redis { "  redis: true\n" } else { "" };
        let timeout = self.limits.timeout_ms.map(|ms| format!("  timeout: {ms}\n"));
        let timeout = timeout.unwrap_or_default();
        format!(
            "bench:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  \
             backlog: 4096\n  preconnect: true\n  auto_eject_hosts: false\n{redis}{timeout}  \
             servers:\n{servers}"
        )
    }

    /// Returns directives that only quickack has. A traced worker is slow: it has other deadlines.
    fn extensions(&self) -> String {
        let merge = match (self.backend, self.merge_gets) {
            (Backend::Redis, _) => "",
            (_, true) => "  merge_gets: on\n",
            (_, false) => "  merge_gets: off\n",
        };
        let Limits { timeout_ms, item_size_max, .. } = self.limits;
        let reply = match (timeout_ms, self.wrapper.is_empty()) {
            (Some(_), _) => "",
            (None, true) => "  timeout_reply: 1000\n",
            (None, false) => "  timeout_reply: 60000\n  timeout_queue: 60000\n",
        };
        let added = section(&self.added.pool);
        format!("{merge}  item_size_max: {item_size_max}\n{reply}{added}")
    }

    /// Returns settings of quickack's processes. A traced worker is slow, and must not be ended for
    /// that.
    fn process(&self, who: Contestant, name: &str) -> String {
        let Contestant { count, accept, .. } = who;
        let affinity = if self.cpus == Cpus::Split { "off" } else { "auto" };
        let hang = if self.wrapper.is_empty() { "" } else { "  hang_timeout: 0\n" };
        let (socket, memory_max) = (self.socket(name), self.limits.memory_max);
        let added = section(&self.added.global);
        format!(
            "global:\n  workers: {count}\n  accept: {accept}\n  worker_cpu_affinity: {affinity}\n  \
             memory_max: {memory_max}\n  admin: {}\n{hang}{added}",
            socket.display()
        )
    }

    fn listener(&self, port: u16) -> String {
        let server = self.servers[0];
        format!(
            "global\n  nbthread 1\n  maxconn 8000\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
             timeout client 10m\n  timeout server 10m\nlisten bench\n  \
             bind 127.0.0.1:{port} backlog 4096\n  server s1 127.0.0.1:{server}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_differs() {
        let quickack = |count| Contestant::of(Peer::Quickack, count);
        let check = |who: Contestant, name: &str| assert_eq!(who.name(), name);
        check(quickack(1), "quickack");
        check(quickack(8), "quickack w8");
        check(quickack(1).accepting("mutex"), "quickack mutex w1");
        check(quickack(4).under(Act::Timeout), "quickack w4, timeout changed");
        check(Contestant::of(Peer::Nutcracker, 2), "nutcracker x2");
        check(Contestant::one(Peer::Direct), "direct");
        check(quickack(1).speaking(Wire::Binary), "quickack binary");
    }
}
