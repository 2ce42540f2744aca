//! Reading a configuration and looking up the hosts it names, in a process of its own: a slow disk
//! or name server, or a file of a hundred megabytes, must not keep the master from its workers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::config::{self, Address, Attachments, Config, ServerAddress, Severity};
use crate::error::{Error, Peer};
use crate::log::{self, Level};

/// The result of the reading.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reading {
    pub text: String,
    /// The files that it names.
    pub attachments: Attachments,
    /// Errors and warnings, as `check` shows them.
    pub report: String,
    pub errors: usize,
    /// Where servers and our own listeners are: `host:port` to all addresses and ports it has.
    pub addresses: Addresses,
}

/// All that a name server says, by what was asked.
pub type Addresses = BTreeMap<String, Vec<String>>;

/// A reading that is under way.
pub struct Reader {
    child: Child,
    outcome: File,
    pub deadline: Instant,
}

impl Reader {
    pub fn start(file: &Path, now: Instant) -> io::Result<Reader> {
        let outcome =
            File::from(rustix::fs::memfd_create("quickack-reading", MemfdFlags::CLOEXEC)?);
        let mut command = Command::new(super::OWN_IMAGE);
        command.arg("read").arg(file);
        let passed = OwnedFd::from(outcome.try_clone()?);
        sys::process::prepare_child(&mut command, "quickack: reader", Some(passed));
        // It often shares a processor with a worker, and clients wait for that one.
        sys::process::give_way(&mut command);
        let child = command.spawn()?;
        Ok(Reader { child, outcome, deadline: now + PATIENCE })
    }

    /// Ends it. On a disk that does not answer it may take long to die: nobody waits for it.
    pub fn kill(mut self) -> Child {
        // Killed is what one that has ended cannot be any more.
        let _ = self.child.kill();
        self.child
    }

    /// Returns the result when the reader has ended; an error when it brought nothing.
    pub fn finish(&mut self) -> Option<Result<Reading, Error>> {
        let status = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status,
            Err(error) => return Some(Err(error.into())),
        };
        let read = || -> io::Result<Reading> {
            let mut bytes = vec![0; self.outcome.metadata()?.len() as usize];
            self.outcome.read_exact_at(&mut bytes, 0)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        Some(read().map_err(|error| Peer::Ended { status, why: error.to_string() }.into()))
    }
}

/// The reader's own side.
pub fn run(file: &Path) -> ExitCode {
    let reading = read(file);
    let written = sys::process::take_passed()
        .and_then(|fd| File::from(fd).write_all_at(&serde_json::to_vec(&reading)?, 0));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => {
            let text = "only quickack itself starts a reader; try: quickack check";
            log::line(Level::Error, text);
            ExitCode::FAILURE
        }
    }
}

/// Reads and compiles a file and looks up its servers.
pub fn read(file: &Path) -> Reading {
    let outcome = config::read(&absolute(file));
    let mut reading = Reading {
        report: outcome.report.render_text(),
        errors: outcome.report.count(Severity::Error),
        ..Reading::default()
    };
    if let Some(config) = outcome.config {
        match look_up(&config) {
            Ok(addresses) => reading.addresses = addresses,
            Err(error) => {
                reading.errors += 1;
                reading.report += &format!("{error}\n");
            }
        }
        (reading.text, reading.attachments) = (config.text, config.attachments);
    }
    reading
}

/// Where servers and our own listeners are.
pub fn look_up(config: &Config) -> Result<Addresses, Error> {
    let mut addresses = BTreeMap::new();
    for Place { written, host, port } in places(config) {
        note(&mut addresses, written, || Ok((host, port).to_socket_addrs()?.collect()))?;
    }
    Ok(addresses)
}

/// Adds what `addresses` lacks, without asking a name server: what is known already, and addresses
/// that are written as numbers.
pub fn complete(
    config: &Config,
    addresses: &mut Addresses,
    known: &Addresses,
) -> Result<(), Error> {
    for Place { written, host, port } in places(config) {
        let known = known.get(&written).cloned();
        let number = || host.parse::<IpAddr>().ok().map(|ip| vec![SocketAddr::from((ip, port))]);
        let found = |found: Vec<SocketAddr>| found.iter().map(ToString::to_string).collect();
        if addresses.contains_key(&written) {
            continue;
        }
        match known.or_else(|| number().map(found)) {
            Some(found) => drop(addresses.insert(written, found)),
            None => {
                return Err(Error::Config(format!(
                    "{written}: a host that is set at run time is not looked up; write its \
                     address, or change the file and reload"
                )));
            }
        }
    }
    Ok(())
}

/// A host and port that the configuration names.
struct Place<'c> {
    /// As the configuration shows it.
    written: String,
    host: &'c str,
    port: u16,
}

fn places(config: &Config) -> impl Iterator<Item = Place<'_>> {
    let servers = config.upstreams.iter().flat_map(|upstream| &upstream.servers);
    let servers = servers.filter_map(|address| match address {
        ServerAddress::Tcp { host, port } => {
            Some(Place { written: address.to_string(), host, port: *port })
        }
        ServerAddress::Unix(_) | ServerAddress::Embedded { .. } => None,
    });
    let ours = config.listeners.iter().map(|listener| &listener.address);
    let ours = ours.chain(&config.process.stats).chain(&config.process.http);
    let ours = ours.filter_map(|address| match address {
        Address::Tcp { host, port } => {
            Some(Place { written: address.to_string(), host, port: *port })
        }
        Address::Unix { .. } => None,
    });
    servers.chain(ours)
}

fn note(
    addresses: &mut Addresses,
    written: String,
    resolve: impl FnOnce() -> io::Result<Vec<SocketAddr>>,
) -> Result<(), Error> {
    if addresses.contains_key(&written) {
        return Ok(());
    }
    match resolve() {
        Ok(found) if !found.is_empty() => {
            let found = found.iter().map(ToString::to_string).collect();
            addresses.insert(written, found);
            Ok(())
        }
        Ok(_) => Err(Error::Config(format!("cannot resolve {written}: no address"))),
        Err(error) => Err(Error::Os(format!("cannot resolve {written}: {error}"))),
    }
}

/// One address for each name: the one it had before as long as it is among those it has. Many
/// name servers shuffle their answers.
pub fn choose(
    all: &Addresses,
    before: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let pick = |(written, found): (&String, &Vec<String>)| {
        let old = before.and_then(|before| before.get(written));
        let kept = old.filter(|old| found.contains(old)).or(found.first());
        Some((written.clone(), kept?.clone()))
    };
    all.iter().filter_map(pick).collect()
}

/// A path that means the same wherever a process stands.
pub fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf())
}

/// How long a file may take to be read and its hosts to be found.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address_while_it_has_it() {
        let all = |found: &[&str]| {
            let found = found.iter().map(ToString::to_string).collect();
            Addresses::from([("a:1".to_string(), found)])
        };
        let first = choose(&all(&["1.1.1.1:1", "2.2.2.2:1"]), None);
        assert_eq!(first["a:1"], "1.1.1.1:1");
        assert_eq!(choose(&all(&["2.2.2.2:1", "1.1.1.1:1"]), Some(&first)), first);
        assert_eq!(choose(&all(&["2.2.2.2:1"]), Some(&first))["a:1"], "2.2.2.2:1");
    }
}
