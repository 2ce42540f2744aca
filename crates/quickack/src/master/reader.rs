//! Reading a configuration and looking up the hosts it names, in a process of its own: a slow disk
//! or name server, or a file of a hundred megabytes, must not keep the master from its workers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::config::{self, Config, ServerAddress, Severity};

/// What reading brought.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reading {
    pub text: String,
    /// Errors and warnings, as `check` shows them.
    pub report: String,
    pub errors: usize,
    /// Where named servers are: `host:port` to address and port.
    pub addresses: BTreeMap<String, String>,
}

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
        let child = command.spawn()?;
        Ok(Reader { child, outcome, deadline: now + PATIENCE })
    }

    /// What was read, when the reader has ended; an error when it brought nothing.
    pub fn finish(&mut self) -> Option<Result<Reading, String>> {
        let status = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status,
            Err(error) => return Some(Err(error.to_string())),
        };
        let read = || -> io::Result<Reading> {
            let mut bytes = vec![0; self.outcome.metadata()?.len() as usize];
            self.outcome.read_exact_at(&mut bytes, 0)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        Some(read().map_err(|error| format!("the reader ended ({status}): {error}")))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Killed is what one that has ended cannot be any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
            crate::log::line("a reader is started by quickack itself; try: quickack check");
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
            Err(why) => {
                reading.errors += 1;
                reading.report += &format!("quickack: {why}\n");
            }
        }
        reading.text = config.text;
    }
    reading
}

/// Where the servers are whose hosts have names.
pub fn look_up(config: &Config) -> Result<BTreeMap<String, String>, String> {
    let mut addresses = BTreeMap::new();
    for address in config.upstreams.iter().flat_map(|upstream| &upstream.servers) {
        let ServerAddress::Tcp { host, .. } = address else { continue };
        let written = address.to_string();
        if addresses.contains_key(&written) {
            continue;
        }
        let found = address.resolve().map_err(|error| error.to_string());
        let found = found.and_then(|all| all.first().copied().ok_or("no address".to_string()));
        let found = found.map_err(|why| format!("cannot resolve the server {host}: {why}"))?;
        addresses.insert(written, found.to_string());
    }
    Ok(addresses)
}

/// A path that means the same wherever a process stands.
pub fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf())
}

/// How long a file may take to be read and its hosts to be found.
const PATIENCE: Duration = Duration::from_secs(10);
