//! The servers behind the proxies: Debian's memcached or Redis, or quickack's own cache process.
//! They are filled before the first window, and their own counters are read around each.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use testkit::process::free_address;

use crate::load::{Corpus, Wire};
use crate::process::{self, Cpus, Process};

/// The server program behind the proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Memcached,
    /// `quickack cache`: it answers pipelined gets in batches, as memcached 1.6.45 does.
    Embedded,
    Redis,
}

pub struct Servers {
    backend: Backend,
    processes: Vec<Process>,
    pub ports: Vec<u16>,
}

/// The servers' own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub get_keys: u64,
    pub sets: u64,
}

impl Servers {
    pub fn start(
        backend: Backend,
        count: usize,
        cpus: Cpus,
        quickack: &Path,
    ) -> Result<Self, String> {
        let mut servers = Servers { backend, processes: Vec::new(), ports: Vec::new() };
        for _ in 0..count {
            let port = free_address().port();
            let command =
                process::words(backend.command(), &[("PORT", &port.to_string())], quickack);
            let mut process = Process::start(backend.name(), &command, &cpus.of_load())?;
            process.wait_for_port(port)?;
            servers.processes.push(process);
            servers.ports.push(port);
        }
        Ok(servers)
    }

    pub fn ids(&self) -> Vec<u32> {
        self.processes.iter().flat_map(Process::tree).collect()
    }

    /// Stores every key on every server, so that gets hit wherever a ring routes them.
    pub fn fill(&self, corpus: &Corpus, key_count: u32) -> Result<(), String> {
        for &port in &self.ports {
            fill(port, self.backend.wire(), corpus, key_count)
                .map_err(|fault| format!("cannot fill {port}: {fault}"))?;
        }
        Ok(())
    }

    /// Returns the bytes that all servers together have written to clients.
    pub fn bytes_written(&self) -> Result<u64, String> {
        let of =
            |&port| self.backend.bytes_written(port).map_err(|fault| format!("{port}: {fault}"));
        self.ports.iter().map(of).sum()
    }

    /// Returns the counters of all servers together; None if a server has none.
    pub fn counts(&self) -> Result<Option<Counts>, String> {
        let mut sum = Counts::default();
        for &port in &self.ports {
            let counts = match self.backend {
                Backend::Redis => redis_counts(port).map(Some),
                Backend::Memcached | Backend::Embedded => counts(port),
            };
            let counts = counts.map_err(|error| format!("the counts of {port}: {error}"))?;
            let Some(counts) = counts else { return Ok(None) };
            sum.get_keys += counts.get_keys;
            sum.sets += counts.sets;
        }
        Ok(Some(sum))
    }
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Backend::Memcached => "memcached",
            Backend::Embedded => "quickack cache",
            Backend::Redis => "redis-server",
        }
    }

    /// Reads the count of a server, which answers when it has nothing older to do.
    fn bytes_written(self, port: u16) -> Result<u64, String> {
        let (request, name) = match self {
            Backend::Redis => ("INFO stats\r\n", "total_net_output_bytes:"),
            _ => ("stats\r\n", "STAT bytes_written "),
        };
        let mut stream = connect(port).map_err(|error| error.to_string())?;
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        for line in BufReader::new(stream).lines() {
            let line = line.map_err(|error| error.to_string())?;
            if let Some(count) = line.strip_prefix(name) {
                return count.parse().map_err(|_| format!("not a number: {line}"));
            }
        }
        Err(format!("{name} is missing"))
    }

    /// Returns the protocol of the server.
    pub fn wire(self) -> Wire {
        match self {
            Backend::Memcached | Backend::Embedded => Wire::Text,
            Backend::Redis => Wire::Resp,
        }
    }

    /// Returns the command line, with PORT as a placeholder for the port.
    pub fn command(self) -> &'static str {
        match self {
            Backend::Memcached => {
                "memcached -l 127.0.0.1 -p PORT -U 0 -t 1 -m 1024 -I 2m -c 8192 -b 4096 -u root"
            }
            Backend::Embedded => "quickack cache --listen 127.0.0.1:PORT --memory 512m",
            // Nothing is written to disk, and clients come from many addresses.
            Backend::Redis => {
                "redis-server --bind 127.0.0.1 --port PORT --save \"\" --appendonly no \
                 --protected-mode no --maxclients 8192 --tcp-backlog 4096"
            }
        }
    }
}

pub fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

fn fill(port: u16, wire: Wire, corpus: &Corpus, key_count: u32) -> Result<(), String> {
    let stored = wire.stored();
    let mut stream = connect(port).map_err(|error| error.to_string())?;
    let per_write = (16 * 1024 / corpus.value_len()).clamp(1, 64) as u32;
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for first in (0..key_count).step_by(per_write as usize) {
        let count = per_write.min(key_count - first);
        requests.clear();
        for index in first..first + count {
            wire.push_set(corpus, &mut requests, index, 0);
        }
        replies.resize(count as usize * stored.len(), 0);
        let exchange = stream.write_all(&requests).and_then(|()| stream.read_exact(&mut replies));
        exchange.map_err(|error| error.to_string())?;
        if replies.chunks(stored.len()).any(|reply| reply != stored) {
            return Err(format!("a set was answered {}", replies.escape_ascii()));
        }
    }
    Ok(())
}

/// Returns the number of keys looked up for reading, and of SET calls.
fn redis_counts(port: u16) -> std::io::Result<Counts> {
    let mut stream = connect(port)?;
    stream.write_all(b"INFO everything\r\nPING\r\n")?;
    let mut counts = Counts::default();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else {
            if line == "+PONG" {
                break;
            }
            continue;
        };
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        match name {
            "keyspace_hits" | "keyspace_misses" => counts.get_keys += number(value),
            "cmdstat_set" => {
                let calls = value.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
                counts.sets = number(calls.unwrap_or_default());
            }
            _ => {}
        }
    }
    Ok(counts)
}

fn counts(port: u16) -> std::io::Result<Option<Counts>> {
    let mut stream = connect(port)?;
    stream.write_all(b"stats\r\n")?;
    let (mut get_keys, mut sets) = (None, None);
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let mut words = line.split(' ').skip(1);
        match (words.next(), words.next().and_then(|value| value.parse::<u64>().ok())) {
            (Some("cmd_get"), value) => get_keys = value,
            (Some("cmd_set"), value) => sets = value,
            _ => {}
        }
        if !line.starts_with("STAT ") {
            break;
        }
    }
    Ok(get_keys.zip(sets).map(|(get_keys, sets)| Counts { get_keys, sets }))
}
