//! What the operator decided about the process itself: how many workers, how they accept, what
//! is logged where. Words to values; nothing here has begun anything.

use std::path::PathBuf;

use super::Address;
use super::address::socket_path;
use super::report::nearest;
use super::value::{self, Fault};
use crate::log;

/// The `global:` block, but for what the data plane's plan holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub workers: Workers,
    /// What `workers: auto` comes to on this machine.
    pub processors: usize,
    pub affinity: Affinity,
    pub accept: Accept,
    /// How long a worker that did not get the accept mutex waits before it tries again.
    pub epoll_timeout_us: u64,
    pub admin: Admin,
    /// Where twemproxy's JSON is served.
    pub stats: Option<Address>,
    pub log: log::Target,
    pub log_format: log::Format,
    pub log_level: log::Level,
    /// How long clients may wait for their last answers when the process ends.
    pub shutdown_timeout_us: u64,
    /// How long a worker's heartbeat may stand still; 0 is forever.
    pub hang_timeout_us: u64,
    /// Connects to servers that all workers together may begin in a second; 0 is any number.
    pub server_connects_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One for each processor that we may use.
    Auto,
    Number(usize),
}

/// Which processors workers run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// The kernel decides.
    Off,
    /// Worker n on the n-th processor that we may use.
    Auto,
    /// Worker n on the n-th of these, from the first again after the last.
    List(Vec<usize>),
}

/// How workers share what connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// The best that the kernel can do.
    Auto,
    Gate,
    Reuseport,
    Mutex,
}

/// The admin socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Not written: at a path that follows from the configuration's.
    Default,
    Off,
    At(PathBuf),
}

impl Process {
    pub(super) fn new(processors: usize) -> Process {
        Process {
            workers: Workers::Auto,
            processors,
            affinity: Affinity::Off,
            accept: Accept::Auto,
            epoll_timeout_us: 50_000,
            admin: Admin::Default,
            stats: None,
            log: log::Target::Stderr,
            log_format: log::Format::Text,
            log_level: log::Level::Notice,
            shutdown_timeout_us: 10_000_000,
            hang_timeout_us: 2_000_000,
            server_connects_max: 1000,
        }
    }

    /// How many workers there are to be.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            Workers::Auto => self.processors.clamp(1, WORKERS_MAX),
            Workers::Number(count) => count,
        }
    }
}

/// The processors that this process may use: its affinity and its cgroup's quota count. Whoever
/// pins a process changes the answer in it, so a worker is told its master's.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// More would only wait for each other; the shared memory has room for so many.
pub const WORKERS_MAX: usize = 64;

impl Workers {
    pub(super) fn parse(word: &str) -> Result<Workers, Fault> {
        match word {
            "auto" => Ok(Workers::Auto),
            _ if word.bytes().all(|byte| byte.is_ascii_digit()) => {
                let count = value::number(word, &(1..=WORKERS_MAX as u64))?;
                Ok(Workers::Number(count as usize))
            }
            _ => Err(Fault::new(format!("`{word}` is neither a number nor `auto`"))
                .suggest(nearest(word, ["auto"]))),
        }
    }
}

impl Affinity {
    /// One more word of a list; one that stands alone may be `off` or `auto`.
    pub(super) fn add(&mut self, word: &str, first: bool) -> Result<(), Fault> {
        match (word, &mut *self) {
            ("off", _) if first => *self = Affinity::Off,
            ("auto", _) if first => *self = Affinity::Auto,
            ("off" | "auto", _) => {
                return Err(Fault::new(format!("`{word}` must be alone, not in a list")));
            }
            (_, Affinity::List(list)) if !first => list.push(processor(word)?),
            _ if first => *self = Affinity::List(vec![processor(word)?]),
            _ => return Err(Fault::new("expected processor numbers, or one word alone")),
        }
        Ok(())
    }
}

fn processor(word: &str) -> Result<usize, Fault> {
    /// What the kernel's set of processors has room for, as libc makes it.
    const PROCESSOR_MAX: u64 = 1023;
    let fault = |fault: Fault| fault.suggest(nearest(word, ["auto", "off"]));
    value::number(word, &(0..=PROCESSOR_MAX)).map(|number| number as usize).map_err(fault)
}

impl Accept {
    pub const ALL: &[Accept] = &[Accept::Auto, Accept::Gate, Accept::Reuseport, Accept::Mutex];

    pub fn name(self) -> &'static str {
        match self {
            Accept::Auto => "auto",
            Accept::Gate => "gate",
            Accept::Reuseport => "reuseport",
            Accept::Mutex => "mutex",
        }
    }
}

impl Admin {
    pub(super) fn parse(word: &str) -> Result<Admin, Fault> {
        match word {
            "off" => Ok(Admin::Off),
            _ if word.starts_with('/') => Ok(Admin::At(socket_path(word)?)),
            _ => Err(Fault::new(format!("`{word}` is neither `/path/of/socket` nor `off`"))),
        }
    }
}

/// Where twemproxy's JSON is served: its own is a TCP port too.
pub(super) fn stats_address(word: &str) -> Result<Address, Fault> {
    match Address::parse(word)? {
        address @ Address::Tcp { .. } => Ok(address),
        Address::Unix { .. } => {
            Err(Fault::new("statistics need a port, `host:port`; only the admin socket has a path"))
        }
    }
}

pub(super) fn log_target(word: &str) -> Result<log::Target, Fault> {
    match word {
        "stderr" => Ok(log::Target::Stderr),
        _ if word.starts_with('/') && !word.contains(char::is_control) => {
            Ok(log::Target::File(PathBuf::from(word)))
        }
        _ => Err(Fault::new(format!("`{word}` is neither `/path/of/file` nor `stderr`"))
            .suggest(nearest(word, ["stderr"]))),
    }
}
