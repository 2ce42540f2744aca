//! The launcher: starts the worker, and beside it one cache process for each `servers: [embedded]`.
//!
//! ```text
//!   launcher ──┬── cache   (private unix socket, listened on by the launcher: survives the cache)
//!              └── worker  (the configuration as text in a sealed memfd)
//! ```
//!
//! Without an embedded cache there is nothing to start and the process is the worker itself.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Pid, Signal, kill_process};
use sys::signal::{self, Signals};

use crate::config::{Config, ServerAddress};
use crate::{log, worker};

/// Serves `config` until TERM or INT.
pub fn run(config: Config) -> ExitCode {
    let memories = embedded(&config);
    if memories.is_empty() {
        return worker::run(config, &[]);
    }
    match Launcher::start(&config, &memories).and_then(Launcher::watch) {
        Ok(code) => code,
        Err(error) => {
            log::line(&format!("cannot start: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The worker's side: what the launcher passed, compiled again.
pub fn run_worker(sockets: &Path) -> ExitCode {
    let text = sys::process::take_passed().and_then(|fd| {
        let mut file = std::fs::File::from(fd);
        let mut text = String::new();
        io::Seek::rewind(&mut file)?;
        io::Read::read_to_string(&mut file, &mut text)?;
        Ok(text)
    });
    let config = match text {
        Ok(text) => crate::config::compile("(from the launcher)", &text, &[]).config,
        Err(_) => None,
    };
    let Some(config) = config else {
        log::line("a worker is started by quickack itself, not by hand; try: quickack run");
        return ExitCode::FAILURE;
    };
    let paths: Vec<PathBuf> = (0..embedded(&config).len()).map(|at| socket(sockets, at)).collect();
    worker::run(config, &paths)
}

struct Launcher {
    signals: Signals,
    /// Removed with everything in it at the end.
    _folder: tempfile::TempDir,
    caches: Vec<Cache>,
    worker: Child,
    asked_to_end: bool,
}

/// One cache process and what it takes to start it again.
struct Cache {
    listener: OwnedFd,
    memory: usize,
    item_size_max: usize,
    child: Option<Child>,
    started: Instant,
}

impl Launcher {
    fn start(config: &Config, memories: &[(usize, usize)]) -> io::Result<Launcher> {
        let signals = Signals::new(&[signal::TERM, signal::INT, signal::CHLD])?;
        // Nobody but us may enter this folder: the sockets in it ask for no password.
        let folder = tempfile::Builder::new().prefix("quickack-").tempdir()?;
        let mut caches = Vec::new();
        for (at, (memory, item_size_max)) in memories.iter().enumerate() {
            let path = socket(folder.path(), at);
            let listener = sys::listen::unix(&path, Some(0o600), BACKLOG)?;
            let mut cache = Cache {
                listener,
                memory: *memory,
                item_size_max: *item_size_max,
                child: None,
                started: Instant::now(),
            };
            cache.start()?;
            caches.push(cache);
        }
        let text = sealed(&config.text)?;
        let mut command = Command::new(OWN_IMAGE);
        command.arg("worker").arg("--sockets").arg(folder.path());
        sys::process::prepare_child(&mut command, "quickack", Some(text));
        let worker = command.spawn()?;
        Ok(Launcher { signals, _folder: folder, caches, worker, asked_to_end: false })
    }

    /// Waits for signals; ends with the worker.
    fn watch(mut self) -> io::Result<ExitCode> {
        loop {
            let mut wait = [PollFd::new(self.signals.fd(), PollFlags::IN)];
            let due = self.caches.iter().any(|cache| cache.child.is_none());
            let timeout = Timespec { tv_sec: 0, tv_nsec: RETRY_NS };
            match poll(&mut wait, due.then_some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(signal) = self.signals.take() {
                if signal != signal::CHLD {
                    self.asked_to_end = true;
                    send_term(&self.worker);
                }
            }
            if let Some(status) = self.worker.try_wait()? {
                self.end_caches();
                let code = status.code().unwrap_or(1);
                if !self.asked_to_end {
                    log::line(&format!("the worker ended by itself: {status}"));
                }
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            self.revive_caches()?;
        }
    }

    /// Starts caches that have ended; one that ends at once is given a moment.
    fn revive_caches(&mut self) -> io::Result<()> {
        for cache in &mut self.caches {
            if let Some(child) = &mut cache.child
                && let Some(status) = child.try_wait()?
            {
                log::line(&format!(
                    "the embedded cache ended ({status}); starting it again, empty"
                ));
                cache.child = None;
            }
            if cache.child.is_none() && cache.started.elapsed() > RESTART_PAUSE {
                cache.start()?;
            }
        }
        Ok(())
    }

    fn end_caches(&mut self) {
        for cache in &mut self.caches {
            if let Some(mut child) = cache.child.take() {
                send_term(&child);
                // It has nothing to answer any more: the worker has gone.
                let _ = child.wait();
            }
        }
    }
}

impl Cache {
    fn start(&mut self) -> io::Result<()> {
        let mut command = Command::new(OWN_IMAGE);
        command.args(["cache", "--inherited", "--memory"]).arg(self.memory.to_string());
        command.arg("--item-size-max").arg(self.item_size_max.to_string());
        sys::process::prepare_child(&mut command, "quickack", Some(self.listener.try_clone()?));
        self.started = Instant::now();
        self.child = Some(command.spawn()?);
        Ok(())
    }
}

/// Memory and largest value of each embedded cache, in the order of the file.
fn embedded(config: &Config) -> Vec<(usize, usize)> {
    let pools = config.upstreams.iter().zip(&config.plan.pools);
    let caches = pools.flat_map(|(upstream, plan)| {
        upstream.servers.iter().filter_map(|server| match server {
            ServerAddress::Embedded { memory } => Some((*memory, plan.item_size_max)),
            _ => None,
        })
    });
    caches.collect()
}

fn socket(folder: &Path, at: usize) -> PathBuf {
    folder.join(format!("cache-{at}.sock"))
}

/// Text that nobody can change any more.
fn sealed(text: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("quickack-configuration", flags)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(text.as_bytes())?;
    let fd = OwnedFd::from(file);
    rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

fn send_term(child: &Child) {
    // A child that has ended already needs no signal.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

/// The running image: a replaced file on disk never mixes versions.
const OWN_IMAGE: &str = "/proc/self/exe";
/// Connections that may wait for a cache while it starts.
const BACKLOG: i32 = 512;
/// A cache that ended sooner than this after its start waits so long.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// How often a cache that waits is looked at.
const RETRY_NS: i64 = 100_000_000;
