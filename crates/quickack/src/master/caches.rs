//! The embedded caches: a process for each `servers: [embedded]`, behind a private unix socket on
//! which the master listens. A cache outlives workers and reloads; one that dies is started again,
//! empty.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::address_space;
use crate::config::{Config, ServerAddress};
use crate::ipc::installation::PoolIds;

/// The caches that run, by the id of their server.
pub struct Caches {
    /// Removed with everything in it at the end.
    folder: Option<tempfile::TempDir>,
    running: BTreeMap<u32, Cache>,
}

/// One cache process and what it takes to start it again.
struct Cache {
    listener: OwnedFd,
    size: Size,
    child: Option<Child>,
    not_before: Instant,
}

/// The limits of a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Size {
    memory: usize,
    item_size_max: usize,
}

impl Caches {
    pub fn new() -> Caches {
        Caches { folder: None, running: BTreeMap::new() }
    }

    /// Starts the caches that `config` needs and that do not run.
    pub fn start(&mut self, config: &Config, ids: &[PoolIds]) -> io::Result<()> {
        for (id, size) in wanted(config, ids) {
            if self.running.contains_key(&id) {
                continue;
            }
            let path = self.path(id)?;
            let listener = sys::listen::unix(&path, Some(0o600), BACKLOG)?;
            let mut cache = Cache { listener, size, child: None, not_before: Instant::now() };
            cache.start()?;
            self.running.insert(id, cache);
        }
        Ok(())
    }

    /// Ends the caches that `config` does not need and that no worker uses any more.
    /// They are killed and not waited for: to give back gigabytes takes its time.
    pub fn keep(
        &mut self,
        config: &Config,
        ids: &[PoolIds],
        in_use: impl Fn(u32) -> bool,
    ) -> Vec<Child> {
        let wanted = wanted(config, ids);
        let mut gone = Vec::new();
        let all: Vec<u32> = self.running.keys().copied().collect();
        for id in all {
            if !wanted.contains_key(&id)
                && !in_use(id)
                && let Some(cache) = self.running.remove(&id)
            {
                gone.extend(cache.kill());
                let _ = self.path(id).and_then(std::fs::remove_file);
            }
        }
        gone
    }

    /// Whether a change would give a running cache another size, which it cannot take.
    pub fn is_resized(&self, config: &Config, ids: &[PoolIds]) -> bool {
        let differs = |(id, size)| self.running.get(&id).is_some_and(|cache| cache.size != size);
        wanted(config, ids).into_iter().any(differs)
    }

    /// Where a cache listens. Nobody but us may enter the folder: its sockets ask for no password.
    pub fn path(&mut self, id: u32) -> io::Result<PathBuf> {
        if self.folder.is_none() {
            self.folder = Some(tempfile::Builder::new().prefix("quickack-").tempdir()?);
        }
        let folder = self.folder.as_ref().map_or(Path::new("/"), |folder| folder.path());
        Ok(folder.join(format!("cache-{id}.sock")))
    }

    /// Starts caches that have ended; one that ended at once is given a moment. The sentences are
    /// for the log.
    pub fn restart_due(&mut self, now: Instant) -> Vec<String> {
        let mut said = Vec::new();
        for cache in self.running.values_mut() {
            if let Some(child) = &mut cache.child
                && let Ok(Some(status)) = child.try_wait()
            {
                let hint = address_space::hint(status, cache.size.memory as u64);
                said.push(format!(
                    "the embedded cache ended ({status}); starting it again, empty{hint}"
                ));
                cache.child = None;
            }
            if cache.child.is_none()
                && now >= cache.not_before
                && let Err(error) = cache.start()
            {
                said.push(format!("cannot start the embedded cache: {error}; trying again"));
            }
        }
        said
    }

    pub fn pids(&self) -> Vec<u32> {
        self.running.values().filter_map(|cache| cache.child.as_ref()).map(Child::id).collect()
    }

    /// Ends all.
    pub fn end(&mut self) {
        for (_, cache) in std::mem::take(&mut self.running) {
            if let Some(mut child) = cache.kill() {
                let _ = child.wait();
            }
        }
    }
}

impl Cache {
    fn start(&mut self) -> io::Result<()> {
        self.not_before = Instant::now() + RESTART_PAUSE;
        let mut command = Command::new(super::OWN_IMAGE);
        command.args(["cache", "--inherited", "--memory"]).arg(self.size.memory.to_string());
        command.arg("--item-size-max").arg(self.size.item_size_max.to_string());
        let listener = self.listener.try_clone()?;
        sys::process::prepare_child(&mut command, "quickack: cache", Some(listener));
        self.child = Some(command.spawn()?);
        Ok(())
    }

    /// It has nothing to answer any more, and nothing to save.
    fn kill(self) -> Option<Child> {
        let child = self.child?;
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        Some(child)
    }
}

fn wanted(config: &Config, ids: &[PoolIds]) -> BTreeMap<u32, Size> {
    let mut wanted = BTreeMap::new();
    for (at, upstream) in config.upstreams.iter().enumerate() {
        for (server, id) in upstream.servers.iter().zip(&ids[at].servers) {
            if let ServerAddress::Embedded { memory } = server {
                let item_size_max = config.plan.pools[at].item_size_max;
                wanted.insert(*id, Size { memory: *memory, item_size_max });
            }
        }
    }
    wanted
}

/// Connections that may wait for a cache while it starts.
const BACKLOG: i32 = 512;
/// A cache that ended sooner than this after its start waits so long.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
