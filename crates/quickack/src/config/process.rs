//! Settings of the process itself: the number of workers, how they accept, the targets of logs.
//! This file only parses them; nothing is started here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Address;
use super::address::socket_path;
use super::report::nearest;
use super::value::{self, Fault};
use crate::log;

/// The `global:` block, except the parts that the data plane's plan holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub workers: Workers,
    /// The number of workers for `workers: auto` on this machine.
    pub processors: usize,
    pub affinity: Affinity,
    /// None: the best that the kernel has.
    pub accept: Option<AcceptMode>,
    /// The time for which a worker without the accept mutex waits before it tries again.
    pub epoll_timeout_us: u64,
    pub admin: Admin,
    /// The address that serves twemproxy's JSON.
    pub stats: Option<Address>,
    /// The address that serves metrics and health over HTTP.
    pub http: Option<Address>,
    pub log: log::Target,
    pub log_format: log::Format,
    pub log_level: log::Level,
    /// The file of the access log.
    pub access_log: Option<String>,
    pub access_log_format: log::Format,
    /// The time for which clients may wait for their last replies when the process ends.
    /// How long the proxy goes on before it drains, while it says that it is not ready.
    pub shutdown_delay_us: u64,
    pub shutdown_timeout_us: u64,
    /// The time for which a worker's heartbeat may stand still; 0 means no limit.
    pub hang_timeout_us: u64,
    /// The time between two look-ups of a server's name.
    pub resolve_every_us: u64,
    /// Limit on connects to servers in a second, by all workers together; 0 means no limit.
    pub server_connects_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One worker for each processor that the process may use.
    Auto,
    Number(usize),
}

/// The processors that workers run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// The kernel decides.
    Off,
    /// Worker n on the n-th processor that the process may use.
    Auto,
    /// Worker n on the n-th of these; after the last, from the first again.
    List(Vec<usize>),
}

/// How clients are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptMode {
    /// A shared listener; the worker with the fewest clients takes the next.
    Gate,
    /// A listener for each worker; the kernel deals.
    Reuseport,
    /// A shared listener; whoever holds the lock takes.
    Mutex,
}

/// The admin socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Not written: a path derived from the configuration's.
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
            accept: None,
            epoll_timeout_us: 50_000,
            admin: Admin::Default,
            stats: None,
            http: None,
            log: log::Target::Stderr,
            log_format: log::Format::Text,
            log_level: log::Level::Notice,
            access_log: None,
            access_log_format: log::Format::Text,
            shutdown_delay_us: 0,
            shutdown_timeout_us: 10_000_000,
            hang_timeout_us: 2_000_000,
            resolve_every_us: 30_000_000,
            server_connects_max: 1000,
        }
    }

    /// Returns the configured number of workers.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            Workers::Auto => self.processors.clamp(1, WORKERS_MAX),
            Workers::Number(count) => count,
        }
    }
}

/// Returns the number of processors that this process may use; its affinity and its cgroup's quota
/// count. Pinning a process changes the result in it, so a worker gets its master's number.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// More workers would only wait for each other. The shared memory has room for this many.
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
    /// Adds one more word of a list; a word that stands alone may be `off` or `auto`.
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
    /// The largest processor in the kernel's set, as libc defines it.
    const PROCESSOR_MAX: u64 = 1023;
    let fault = |fault: Fault| fault.suggest(nearest(word, ["auto", "off"]));
    value::number(word, &(0..=PROCESSOR_MAX)).map(|number| number as usize).map_err(fault)
}

impl AcceptMode {
    /// The best first.
    pub const ALL: [AcceptMode; 3] = [AcceptMode::Gate, AcceptMode::Reuseport, AcceptMode::Mutex];

    /// As the directive calls it.
    pub fn name(self) -> &'static str {
        match self {
            AcceptMode::Gate => "gate",
            AcceptMode::Reuseport => "reuseport",
            AcceptMode::Mutex => "mutex",
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

/// Parses the address that serves twemproxy's JSON; twemproxy also uses a TCP port.
pub(super) fn stats_address(word: &str) -> Result<Address, Fault> {
    match Address::parse(word)? {
        address @ Address::Tcp { .. } => Ok(address),
        Address::Unix { .. } => {
            Err(Fault::new("statistics need a port, `host:port`; only the admin socket has a path"))
        }
    }
}

/// Parses the path of the access log.
pub(super) fn access_log_file(word: &str) -> Result<String, Fault> {
    match word.starts_with('/') && !word.contains(char::is_control) {
        true => Ok(word.to_string()),
        false => Err(Fault::new(format!("`{word}` is no `/path/of/file`"))),
    }
}

pub(super) fn log_target(word: &str) -> Result<log::Target, Fault> {
    match word {
        "stderr" => Ok(log::Target::Stderr),
        "syslog" => Ok(log::Target::Syslog(PathBuf::from("/dev/log"))),
        _ if word.starts_with("syslog:/") => {
            Ok(log::Target::Syslog(socket_path(&word["syslog:".len()..])?))
        }
        _ if word.starts_with('/') && !word.contains(char::is_control) => {
            Ok(log::Target::File(PathBuf::from(word)))
        }
        _ => Err(Fault::new(format!("`{word}` is none of `/path/of/file`, `stderr` and `syslog`"))
            .suggest(nearest(word, ["stderr", "syslog"]))),
    }
}
