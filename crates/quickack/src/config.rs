//! Configuration: compiles a file's text to a plan, or reports everything that is wrong with it.
//!
//! ```text
//!   text ──file──> tree with places ──compile──> Config { plan, process, listeners, servers, … }
//!                        overrides ───┘ │  └─ directives: the table; value, address: its values
//!                                       └──> Report: errors and warnings, line by line
//! ```
//!
//! Pure but for [`read`], which opens the file and those that it names, and [`processors`]. The
//! same text and files always give the same result, so the process that checks a file and the one
//! that runs it cannot differ.

mod address;
mod allow;
mod apply;
mod attachments;
mod commands;
mod compile;
mod difference;
mod directives;
mod draft;
mod family;
mod file;
mod findings;
mod foreign;
pub mod list;
mod logins;
mod migrate;
mod network;
mod overrides;
mod process;
mod pubsub;
mod reference;
mod report;
mod rules;
mod running;
mod tenancy;
mod tenants;
mod unread;
mod value;
mod words;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use proxy::plan::{Plan, QuickAck};

use crate::error::Error;
use ipnet::IpNet;
use report::{Diagnostic, Place, Spot};

pub use address::{Address, ServerAddress};
pub use attachments::{Attachments, Source};
pub use compile::{compile, compile_for};
pub use difference::{NO_CHANGE, RingDifference, difference, moved, ring_difference};
pub use list::{ListSource, Lists};
pub use migrate::native;
pub use overrides::{NO_STATE, Override, set, set_server};
pub use process::{AcceptMode, Admin, Affinity, Process, WORKERS_MAX, Workers, processors};
pub use reference::directives_page;
pub use report::{Report, Severity, nearest};
pub use running::Block;
pub use value::{duration_word, grouped, size_word};

/// Everything the operator configured, checked and complete.
pub struct Config {
    /// Settings of the data plane. Its limits apply to the whole proxy, except
    /// `server_connections`, which applies to each worker. `clients_max` is `usize::MAX` unless the
    /// file sets a number; the process that knows the descriptor limit lowers it.
    pub plan: Plan,
    /// Settings of the process.
    pub process: Process,
    /// One listener for each pool, in the order of the plan's pools.
    pub listeners: Vec<Listener>,
    /// One entry for each pool, in the order of the plan's pools.
    pub upstreams: Vec<Upstream>,
    /// The source text. A child process gets it and compiles it with the same code.
    pub text: String,
    /// The contents of the files that the text names; a child gets them too.
    pub attachments: Attachments,
    /// Directives set at run time over the text; a child gets them too.
    pub overrides: Vec<Override>,
    /// The directives of both sources: the `global:` block, then the pools in their order, then the
    /// tenants.
    pub blocks: Vec<Block>,
}

/// The address and options with which a pool accepts clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// An index into the plan's pools.
    pub pool: usize,
    pub address: Address,
    pub backlog: i32,
    /// `SO_REUSEPORT` on the listening socket.
    pub reuseport: bool,
    /// Options of each accepted connection.
    pub tcp: TcpOptions,
    /// When to flush a client's pending ACK; the plan has the same setting.
    pub quickack: QuickAck,
    /// Networks whose connections begin with a PROXY header.
    pub proxy_protocol: Vec<IpNet>,
}

/// The addresses of a pool's servers, and the options of connections to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// In the order of the pool's servers in the plan.
    pub servers: Vec<ServerAddress>,
    /// Options of each link.
    pub tcp: TcpOptions,
    /// The proxy is not ready while none of them is up.
    pub required: bool,
    /// They come from elsewhere, if the file does not have them.
    pub list: Option<list::Listed>,
}

/// Options of a TCP connection that are set once, when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    pub nodelay: bool,
    pub keepalive: bool,
}

impl Config {
    /// Compiles the same configuration with other lists of servers.
    pub fn with_lists(&self, name: &str, lists: Lists) -> Outcome {
        let attachments = self.attachments.with(lists);
        let source = Source::Attached(&attachments);
        compile_for(name, &self.text, &self.overrides, self.process.processors, source)
    }
}

/// The result of compiling a file.
pub struct Outcome {
    /// None if the report holds an error.
    pub config: Option<Config>,
    pub report: Report,
    /// The admin socket of a proxy that runs with an earlier version of the file, as far as it can
    /// be read.
    pub admin: Admin,
}

/// Reads a file and compiles it. Pools that take their lists from elsewhere have no servers.
pub fn read(path: &Path) -> Outcome {
    read_with(path, &[], &Lists::default())
}

/// Reads and compiles a file, with the directives set at run time over it, and with these lists of
/// servers.
pub fn read_with(path: &Path, overrides: &[Override], lists: &Lists) -> Outcome {
    let name = path.display().to_string();
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut doubts = Vec::new();
    match read_bytes(path, &mut doubts).map(String::from_utf8) {
        Ok(Ok(text)) => {
            let source = Source::Folder(folder, lists);
            let mut outcome = compile_for(&name, &text, overrides, processors(), source);
            outcome.report.doubt(doubts);
            outcome
        }
        Ok(Err(fault)) => {
            let start = fault.utf8_error().valid_up_to();
            let place = Place { start, end: start + char::REPLACEMENT_CHARACTER.len_utf8() };
            let text = String::from_utf8_lossy(fault.as_bytes());
            unreadable(&name, &text, place.into(), "this is not UTF-8 text".to_string())
        }
        Err(error) => unreadable(&name, "", Spot::File, format!("cannot read the file: {error}")),
    }
}

/// Reads the file. Adds a warning to `doubts` if other users may change the file.
fn read_bytes(path: &Path, doubts: &mut Vec<String>) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        doubts.extend(attachments::writers(&metadata));
        doubts.extend(attachments::stranger(&metadata));
    }
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > FILE_LEN_MAX {
        true => {
            let text = "longer than 16 MiB, so it is not a configuration";
            Err(Error::Config(text.into()))
        }
        false => Ok(bytes),
    }
}

const FILE_LEN_MAX: u64 = 16 << 20;
/// The longest value of a directive set at run time; a list of servers is long.
const VALUE_LEN_MAX: usize = 16 << 10;

fn unreadable(name: &str, text: &str, spot: Spot, message: String) -> Outcome {
    let diagnostic = Diagnostic {
        severity: Severity::Error,
        spot,
        message,
        suggestion: None,
        help: None,
        first: None,
    };
    let report = Report::new(name, text, vec![diagnostic]);
    Outcome { config: None, report, admin: Admin::Default }
}

/// Parses the memory of a cache process from the command line.
pub fn parse_memory(word: &str) -> Result<usize, Error> {
    Ok(value::size(word, &MEMORY_RANGE)? as usize)
}

/// Parses the largest value from the command line.
pub fn parse_item_size(word: &str) -> Result<usize, Error> {
    let range = 1..=proxy::limits::ITEM_SIZE_MAX as u64;
    Ok(value::size(word, &range)? as usize)
}

/// Parses a duration from the command line to microseconds.
pub fn parse_duration(word: &str) -> Result<u64, Error> {
    Ok(value::duration(word)?)
}

/// Parses an address to listen on from the command line.
pub fn parse_address(word: &str) -> Result<Address, Error> {
    Ok(Address::parse(word)?)
}

/// Memory of an embedded cache: from a megabyte to the maximum of its store.
const MEMORY_RANGE: std::ops::RangeInclusive<u64> = 1 << 20..=cache::MEMORY_MAX as u64;

/// The configuration without a file: an embedded cache behind twemproxy's usual port.
pub const DEFAULT_TEXT: &str = "\
default:
  listen: 127.0.0.1:22121
  memory: 64m
  servers: [embedded]
";

/// The configuration of [`DEFAULT_TEXT`].
pub fn default() -> Config {
    compile("(built in)", DEFAULT_TEXT, &[]).config.expect("a test compiles the built-in text")
}
