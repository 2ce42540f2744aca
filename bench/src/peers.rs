//! The proxies that are compared, each started with its usual configuration for one worker.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

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
        let command = match peer {
            Peer::Nutcracker => place.nutcracker(port)?,
            Peer::Quickack => place.quickack(port)?,
            Peer::Haproxy => place.haproxy(port)?,
            Peer::Direct => unreachable!("handled above"),
        };
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
    fn nutcracker(&self, port: u16) -> Result<Vec<String>, String> {
        let file = self.write("nutcracker.yml", &self.pool(port))?;
        let stats = process::free_port()?;
        let words = format!("nutcracker -v 0 -a 127.0.0.1 -s {stats} -c {}", file.display());
        Ok(words.split(' ').map(str::to_string).collect())
    }

    fn quickack(&self, port: u16) -> Result<Vec<String>, String> {
        let merge = if self.merge_gets { "on" } else { "off" };
        let extra = format!("  merge_gets: {merge}\n  item_size_max: 2m\n");
        let file = self.write("quickack.yml", &(self.pool(port) + &extra))?;
        let words = [self.quickack.display().to_string(), "run".into(), "-c".into()];
        Ok(words.into_iter().chain([file.display().to_string()]).collect())
    }

    fn haproxy(&self, port: u16) -> Result<Vec<String>, String> {
        let server = self.servers[0];
        let text = format!(
            "global\n  nbthread 1\n  maxconn 8000\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
             timeout client 10m\n  timeout server 10m\nlisten bench\n  \
             bind 127.0.0.1:{port} backlog 4096\n  server s1 127.0.0.1:{server}\n"
        );
        let file = self.write("haproxy.cfg", &text)?;
        Ok(["haproxy", "-db", "-f"]
            .map(str::to_string)
            .into_iter()
            .chain([file.display().to_string()])
            .collect())
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

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }
}
