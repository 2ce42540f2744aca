//! Reading a configuration and looking up the hosts it names, in a process of its own: a slow disk
//! or name server, or a file of a hundred megabytes, must not keep the master from its workers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use proxy::plan::PoolPlan;
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::config::{
    self, Address, Attachments, Config, ListSource, Lists, Outcome, ServerAddress, Severity,
};
use crate::error::{Error, Peer};
use crate::log::{self, About, Level};
use crate::resolver::{self, Found};

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
    /// The lists of servers that come from elsewhere, or why they do not.
    pub lists: Vec<(ListSource, Result<String, String>)>,
}

/// Lists of servers as they are found, or why they are not.
pub type FoundLists = BTreeMap<ListSource, Result<String, String>>;

impl Reading {
    /// Adds a warning for each server whose name does not resolve. `chosen`: see `unresolved`.
    pub fn warn_of_names(&mut self, config: &Config, chosen: &BTreeMap<String, String>) {
        for (_, text) in unresolved(config, &self.addresses, chosen) {
            self.report += &format!("warning: {text}\n");
        }
    }
}

/// All that a name server says, by what was asked; or why it says nothing.
pub type Addresses = BTreeMap<String, Result<Vec<String>, String>>;

/// A reading that is under way.
pub struct Reader {
    child: Child,
    outcome: File,
    pub deadline: Instant,
}

impl Reader {
    /// `known`: names that need not be looked up.
    pub fn start(file: &Path, known: &BTreeSet<&String>, now: Instant) -> io::Result<Reader> {
        let outcome =
            File::from(rustix::fs::memfd_create("quickack-reading", MemfdFlags::CLOEXEC)?);
        outcome.write_all_at(&serde_json::to_vec(known)?, 0)?;
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
    let written = sys::process::take_passed().and_then(|fd| {
        let outcome = File::from(fd);
        let mut known = vec![0; outcome.metadata()?.len() as usize];
        outcome.read_exact_at(&mut known, 0)?;
        let reading = read(file, &serde_json::from_slice(&known)?);
        outcome.set_len(0)?;
        outcome.write_all_at(&serde_json::to_vec(&reading)?, 0)
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => {
            let text = "only quickack itself starts a reader; try: quickack check";
            log::line(Level::Error, text);
            ExitCode::FAILURE
        }
    }
}

/// Reads and compiles a file and looks up its servers, but for what is known.
pub fn read(file: &Path, known: &BTreeSet<String>) -> Reading {
    let (outcome, lists) = read_with_lists(&absolute(file), NAMES_PATIENCE, |_| true);
    let mut reading = Reading {
        lists: lists.into_iter().collect(),
        report: outcome.report.render_text(),
        errors: outcome.report.count(Severity::Error),
        ..Reading::default()
    };
    if let Some(config) = outcome.config {
        let ours: BTreeSet<&str> = listeners(&config).map(|place| place.host).collect();
        let is_new = |host: &String| !known.contains(host) || ours.contains(&**host);
        reading.addresses = look_up(&config, |hosts| {
            resolver::look_up(hosts.into_iter().filter(is_new).collect(), NAMES_PATIENCE)
        });
        (reading.text, reading.attachments) = (config.text, config.attachments);
    }
    reading
}

/// Reads and compiles a file with the lists of servers that it takes from elsewhere, if `takes`
/// allows that.
pub fn read_with_lists(
    file: &Path,
    patience: Duration,
    takes: impl Fn(&ListSource) -> bool,
) -> (Outcome, FoundLists) {
    let outcome = config::read(file);
    let Some(config) = &outcome.config else { return (outcome, FoundLists::new()) };
    let sources = config.lists().map(|(_, list)| list.source.clone());
    let sources: BTreeSet<ListSource> = sources.filter(|source| takes(source)).collect();
    if sources.is_empty() {
        return (outcome, FoundLists::new());
    }
    let folder = folder(Some(file));
    let found = resolver::take_lists(sources, &folder, patience);
    (config::read_with(file, &[], &good_lists(config, &found)), found)
}

/// Returns the lists that could be taken, by the pools that take them.
pub fn good_lists(config: &Config, found: &FoundLists) -> Lists {
    let mut lists = Lists::default();
    for (pool, list) in config.lists() {
        if let Some(Ok(text)) = found.get(&list.source) {
            lists.set(pool, &list.source, text);
        }
    }
    lists
}

/// Where the relative paths of a configuration's files begin.
pub fn folder(file: Option<&Path>) -> PathBuf {
    let file = file.map(absolute);
    file.as_deref().and_then(Path::parent).unwrap_or(Path::new("/")).to_path_buf()
}

/// Returns a sentence for each list that could not be taken.
pub fn list_doubts(config: &Config, found: &FoundLists) -> Vec<String> {
    let told = config.lists().filter_map(|(pool, list)| {
        let Some(Err(why)) = found.get(&list.source) else { return None };
        let source = &list.source;
        let is_pool = |plan: &&PoolPlan| plan.name == pool;
        let has_none = config.plan.pools.iter().find(is_pool)?.servers.is_empty();
        let effect = match has_none {
            true => "it has no servers until there is one",
            false => "it keeps the list that it has",
        };
        Some(format!("pool {pool}: no list from {source}: {why}; {effect}"))
    });
    told.collect()
}

/// Looks up what has a name among servers and our own listeners, with `ask`. A name that it has no
/// answer for is left out.
pub fn look_up(
    config: &Config,
    ask: impl FnOnce(BTreeSet<String>) -> BTreeMap<String, Found>,
) -> Addresses {
    let named = places(config).filter(|place| resolver::is_name(place.host));
    let answers = ask(named.map(|place| place.host.to_string()).collect());
    let mut addresses = Addresses::new();
    for Place { written, host, port } in places(config) {
        let found = match answers.get(host) {
            Some(found) => found.clone(),
            None if resolver::is_name(host) => continue,
            None => resolver::ask(host),
        };
        addresses.insert(written, with_port(found, port));
    }
    addresses
}

/// A host's addresses, as servers and listeners on this port have them.
pub fn with_port(found: Found, port: u16) -> Result<Vec<String>, String> {
    let at = |mut address: SocketAddr| {
        address.set_port(port);
        address.to_string()
    };
    found.map(|all| all.into_iter().map(at).collect())
}

/// Adds what `addresses` lacks, without asking a name server: what is known already, and addresses
/// that are written as numbers. A server's name is looked up later.
pub fn complete(
    config: &Config,
    addresses: &mut Addresses,
    known: &Addresses,
) -> Result<(), Error> {
    let of_servers = servers(config).map(|place| (place, true));
    let ours = listeners(config).map(|place| (place, false));
    for (Place { written, host, port }, is_server) in of_servers.chain(ours) {
        if addresses.contains_key(&written) {
            continue;
        }
        let found = match known.get(&written) {
            Some(found) => found.clone(),
            None if !resolver::is_name(host) => with_port(resolver::ask(host), port),
            None if is_server => Err(NOT_YET.to_string()),
            None => {
                return Err(Error::Config(format!(
                    "{written}: a host that is set at run time is not looked up; write its \
                     address, or change the file and reload"
                )));
            }
        };
        addresses.insert(written, found);
    }
    Ok(())
}

/// Without an address to listen on the proxy can do nothing. `chosen`: see `unresolved`.
pub fn require_listeners(
    config: &Config,
    addresses: &Addresses,
    chosen: &BTreeMap<String, String>,
) -> Result<(), Error> {
    for Place { written, .. } in listeners(config) {
        if let Some(Err(why)) = addresses.get(&written).filter(|_| !chosen.contains_key(&written)) {
            return Err(Error::Os(format!("cannot resolve {written}: {why}")));
        }
    }
    Ok(())
}

/// Returns a sentence for each server whose name does not resolve. `chosen`: the addresses that
/// servers have all the same, since they had them before.
pub fn unresolved(
    config: &Config,
    addresses: &Addresses,
    chosen: &BTreeMap<String, String>,
) -> Vec<(About, String)> {
    let mut said = Vec::new();
    for (pool, upstream) in config.plan.pools.iter().zip(&config.upstreams) {
        for (server, address) in pool.servers.iter().zip(&upstream.servers) {
            let written = address.to_string();
            let Some(Err(why)) = addresses.get(&written) else { continue };
            let about = About::server(&server.label, &pool.name);
            let name = if server.label == written { "its name" } else { &*written };
            let effect = match chosen.get(&written) {
                Some(last) => format!("it stays at {last}"),
                None => "it is down until it does".to_string(),
            };
            let text = format!("{about}: {name} does not resolve: {why}; {effect}");
            said.push((about, text));
        }
    }
    said
}

/// Returns a sentence for each name that does not resolve here and now.
pub fn doubts(config: &Config) -> Vec<String> {
    let addresses = look_up(config, |hosts| resolver::look_up(hosts, CHECK_PATIENCE));
    let mut said: Vec<String> = require_listeners(config, &addresses, &BTreeMap::new())
        .err()
        .map(|error| format!("{error}; the proxy does not start without an address to listen on"))
        .into_iter()
        .collect();
    let servers = unresolved(config, &addresses, &BTreeMap::new());
    said.extend(servers.into_iter().map(|(_, text)| text));
    said
}

/// A host and port that the configuration names.
pub struct Place<'c> {
    /// As the configuration shows it.
    pub written: String,
    pub host: &'c str,
    pub port: u16,
}

fn places(config: &Config) -> impl Iterator<Item = Place<'_>> {
    servers(config).chain(listeners(config))
}

/// The names of hosts that servers are written with.
pub fn server_names(config: &Config) -> BTreeSet<String> {
    let named = servers(config).filter(|place| resolver::is_name(place.host));
    named.map(|place| place.host.to_string()).collect()
}

/// The places where servers are.
pub fn servers(config: &Config) -> impl Iterator<Item = Place<'_>> {
    let servers = config.upstreams.iter().flat_map(|upstream| &upstream.servers);
    servers.filter_map(|address| match address {
        ServerAddress::Tcp { host, port } => {
            Some(Place { written: address.to_string(), host, port: *port })
        }
        ServerAddress::Unix(_) | ServerAddress::Embedded { .. } => None,
    })
}

/// The places where the proxy itself listens.
fn listeners(config: &Config) -> impl Iterator<Item = Place<'_>> {
    let ours = config.listeners.iter().map(|listener| &listener.address);
    let ours = ours.chain(&config.process.stats).chain(&config.process.http);
    ours.filter_map(|address| match address {
        Address::Tcp { host, port } => {
            Some(Place { written: address.to_string(), host, port: *port })
        }
        Address::Unix { .. } => None,
    })
}

/// One address for each name: the one it had before as long as it is among those it has, or as
/// nobody knows. Many name servers shuffle their answers.
pub fn choose(
    all: &Addresses,
    before: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let pick = |(written, found): (&String, &Result<Vec<String>, String>)| {
        let old = before.and_then(|before| before.get(written));
        let chosen = match found {
            Ok(found) => old.filter(|old| found.contains(old)).or(found.first()).or(old),
            Err(_) => old,
        };
        Some((written.clone(), chosen?.clone()))
    };
    all.iter().filter_map(pick).collect()
}

/// A path that means the same wherever a process stands.
pub fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf())
}

/// How long a file may take to be read and its hosts to be found. It protects the changes behind
/// this one from a disk or a name server that never answers, and the wait costs no client anything.
/// A disk that others keep busy has held up a reading for ten seconds.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a change waits for its names, before servers are down that could be up.
pub const NAMES_PATIENCE: Duration = Duration::from_secs(2);
/// How long `check` waits for them.
pub const CHECK_PATIENCE: Duration = Duration::from_secs(5);
const NOT_YET: &str = "it has not been looked up yet";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address_while_it_has_it_or_nobody_knows() {
        let all = |found: &[&str]| {
            let found = found.iter().map(ToString::to_string).collect();
            Addresses::from([("a:1".to_string(), Ok(found))])
        };
        let first = choose(&all(&["1.1.1.1:1", "2.2.2.2:1"]), None);
        assert_eq!(first["a:1"], "1.1.1.1:1");
        assert_eq!(choose(&all(&["2.2.2.2:1", "1.1.1.1:1"]), Some(&first)), first);
        assert_eq!(choose(&all(&["2.2.2.2:1"]), Some(&first))["a:1"], "2.2.2.2:1");
        let failed = Addresses::from([("a:1".to_string(), Err("no answer".to_string()))]);
        assert_eq!(choose(&failed, Some(&first)), first);
        assert_eq!(choose(&all(&[]), Some(&first)), first);
        assert_eq!(choose(&failed, None), BTreeMap::new());
    }
}
