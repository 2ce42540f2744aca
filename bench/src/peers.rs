//! The proxies that are compared, each started with its usual configuration for one worker.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use crate::process::{self, PROXY_CPU, Process};

/// Who stands between the load and the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Nutcracker,
    Quickack,
    /// HAProxy in `mode tcp`: it copies bytes and reads none, and has one server.
    Haproxy,
    /// Nobody: the first server itself.
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

    /// The command line, with FILE and PORT where a configuration and a spare port go.
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

/// A peer that is ready for clients.
pub struct Endpoint {
    pub peer: Peer,
    pub address: SocketAddrV4,
    process: Option<Process>,
}

/// Where peers are started, and the row's wishes for quickack.
pub struct Place<'a> {
    pub folder: &'a Path,
    pub quickack: &'a Path,
    pub servers: &'a [u16],
    pub merge_gets: bool,
    /// A command that the peer runs under, such as a tracer; mostly none.
    pub wrapper: &'a [String],
}

impl Endpoint {
    pub fn start(peer: Peer, place: &Place) -> Result<Endpoint, String> {
        if peer == Peer::Direct {
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, place.servers[0]);
            return Ok(Endpoint { peer, address, process: None });
        }
        let port = process::free_port()?;
        let command = place.prepare(peer, port)?;
        let command: Vec<String> = place.wrapper.iter().cloned().chain(command).collect();
        let log = place.folder.join(format!("{}.log", peer.name()));
        let mut process = Process::start(peer.name(), &command, PROXY_CPU, &log)?;
        process.wait_for_port(port, &log)?;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        Ok(Endpoint { peer, address, process: Some(process) })
    }

    /// The proxy's processes; none when there is no proxy.
    pub fn ids(&self) -> Vec<u32> {
        self.process.as_ref().map(Process::tree).unwrap_or_default()
    }
}

impl Place<'_> {
    /// Writes the peer's configuration and returns the command that runs it.
    fn prepare(&self, peer: Peer, port: u16) -> Result<Vec<String>, String> {
        let text = match peer {
            Peer::Nutcracker => self.pool(port),
            Peer::Quickack => self.pool(port) + &self.extensions(),
            Peer::Haproxy => self.listener(port),
            Peer::Direct => unreachable!("nobody needs no configuration"),
        };
        let file = self.folder.join(format!("{}.conf", peer.name()));
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let stats = process::free_port()?.to_string();
        let places = [("FILE", &*file.display().to_string()), ("PORT", &stats)];
        Ok(process::words(peer.command(), &places, self.quickack))
    }

    /// One pool in nutcracker's words, read unchanged by quickack.
    fn pool(&self, port: u16) -> String {
        let servers: String =
            self.servers.iter().map(|server| format!("    - 127.0.0.1:{server}:1\n")).collect();
        format!(
            "bench:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  \
             backlog: 4096\n  preconnect: true\n  auto_eject_hosts: false\n  servers:\n{servers}"
        )
    }

    /// What quickack knows beyond them.
    fn extensions(&self) -> String {
        let merge = if self.merge_gets { "on" } else { "off" };
        format!("  merge_gets: {merge}\n  item_size_max: 2m\n")
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
