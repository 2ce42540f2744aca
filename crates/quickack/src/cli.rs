//! The command line: one table of verbs, and a match arm for each.

mod ask;
mod check;
mod clients;
mod examples;
mod files;
mod nutcracker;
mod pages;
mod reference;
mod route;
mod top;
mod wait;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::config::{self, Config};
use crate::log::Level;
use crate::{cache_server, http_server, log_writer, master, resolver, version, worker};

/// A cache proxy that finds and removes the stalls between cache clients and servers.
///
/// Without a verb it runs the proxy: in front of an embedded cache on 127.0.0.1:22121, or as FILE
/// says.
#[derive(Parser)]
#[command(version = version::LONG, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the proxy (the default without a verb).
    Run(RunArguments),
    /// Check a configuration, and print the resulting settings.
    ///
    /// The exit status is 0 if it is valid and 1 if it is not; with `--strict`, 2 after a warning.
    Check {
        /// The configuration to check; a nutcracker.yml is accepted.
        file: PathBuf,
        /// `json` prints an array with one object per error or warning.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        /// The exit status is 2 if there is a warning.
        #[arg(long)]
        strict: bool,
        /// Do not look up the names of hosts. By default there is a warning for each that does not
        /// resolve here.
        #[arg(long)]
        no_resolve: bool,
        /// Ask the running proxy what a reload of this file would change; nothing is changed.
        #[arg(long)]
        diff: bool,
        /// The admin socket of that proxy; by default it is the one that runs with this file, or
        /// the only one.
        #[arg(long, value_name = "PATH", requires = "diff")]
        admin: Option<PathBuf>,
    },
    /// Show the server that holds each key.
    Route {
        /// The configuration that defines the pools and servers; by default that of the running
        /// proxy.
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The admin socket of the running proxy; needed if several run.
        #[arg(long, value_name = "PATH", conflicts_with = "config")]
        admin: Option<PathBuf>,
        /// Only in this pool; by default in every pool.
        #[arg(long)]
        pool: Option<String>,
        /// The keys.
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
    },
    /// Print the native form of a nutcracker.yml.
    MigrateConfig {
        /// The configuration.
        file: PathBuf,
    },
    /// Show the share of keys that would have another server with the second file.
    ///
    /// The exit status is 0 if no key would move, 2 if any would, and 1 after an error.
    RingDiff {
        /// The configuration of now.
        old: PathBuf,
        /// The other one.
        new: PathBuf,
    },
    /// Read the configuration again, and apply it to all workers or to none.
    Reload {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// Apply it even if keys move to other servers.
        #[arg(long)]
        allow_remap: bool,
    },
    /// Override directives of the file while the proxy runs: `memory_max=2g`,
    /// `alpha.timeout_reply=200ms`; `KEY=` returns to the file's value.
    Set {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// Apply them even if keys move to other servers.
        #[arg(long)]
        allow_remap: bool,
        /// Directives to set. A list is written as in a file: `alpha.allow=[flush_all]`.
        #[arg(required = true, value_name = "KEY=VALUE")]
        words: Vec<String>,
    },
    /// Show every directive of the running proxy, its value, and the value's origin.
    Config {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// All directives (the default).
        #[arg(long, conflicts_with = "diff")]
        running: bool,
        /// Only the directives that were set at run time and differ from the file.
        #[arg(long)]
        diff: bool,
        /// Print an array with one object for each directive, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Show counters and percentiles, summed over all workers.
    Stats {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// Print one object, for programs: every counter by its name in the reference.
        #[arg(long)]
        json: bool,
    },
    /// Show release, build, uptime, epoch and limits, and whether the proxy is ready.
    Info {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// Print one object, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Show the pools: protocol, listener, clients, and how many servers are up.
    Pools {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// Print one object, for programs; it has the servers too.
        #[arg(long)]
        json: bool,
    },
    /// Show the servers: the state given by hand, health, links, and what waits or is in flight.
    Servers {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// Print one object, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Give a server a state by hand: `ready`, `drain` or `maint`.
    ///
    /// It holds for all workers, and stays over reloads and deaths of workers, until it is lifted
    /// with `ready`, the server leaves the file, or the proxy ends.
    Server {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// The server, as `quickack servers` lists it.
        #[arg(value_name = "POOL/NAME")]
        name: String,
        /// `drain`: no new requests while others can serve them, which they can where keys move
        /// (`on_failure: eject`); otherwise no further links. `maint`: no requests at all.
        #[arg(value_parser = ["ready", "drain", "maint"])]
        state: String,
    },
    /// Wait until something is so: `ready`, `epoch N`, or `server POOL/NAME up | idle`.
    ///
    /// `ready`: all workers serve with the configuration that holds, and each pool that is
    /// `required` has a server that is up. `idle`: the server has no link and nothing to answer, so
    /// that it can be restarted. The exit status is 1 if the time is over.
    Wait {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// How long; a bare number is seconds.
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = wait::duration)]
        timeout: Duration,
        /// What to wait for.
        #[arg(required = true, value_name = "CONDITION")]
        words: Vec<String>,
    },
    /// Show rates, percentiles, servers and workers in the terminal, anew each second.
    Top {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// The window of the figures.
        #[arg(long, value_enum, default_value_t = top::Over::Seconds)]
        over: top::Over,
        /// Print them once, as text, and exit.
        #[arg(long)]
        once: bool,
        /// Print them as JSON, one line each second.
        #[arg(long)]
        json: bool,
    },
    /// Show the last slow requests: their phases, and what is known of the cause.
    Slowlog {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// At most so many, the newest first.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
        /// Print one object, for programs.
        #[arg(long)]
        json: bool,
        /// Hide those so far.
        #[arg(long, conflicts_with = "json")]
        reset: bool,
    },
    /// Show the clients of the running proxy, or close some.
    Clients(clients::ClientsArguments),
    /// Show the processes of the running proxy.
    Workers {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// Print one object, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Set the level of the log: error, warning, notice or debug.
    LogLevel {
        #[command(flatten)]
        proxy: ask::Proxy,
        /// The least severe lines that the log has.
        #[arg(value_parser = PossibleValuesParser::new(Level::names()))]
        level: String,
    },
    /// Accept no more clients, answer outstanding requests, and exit.
    Drain {
        #[command(flatten)]
        proxy: ask::Proxy,
    },
    /// Exit now.
    Quit {
        #[command(flatten)]
        proxy: ask::Proxy,
    },
    /// Print a page of the reference, as in docs/reference.
    #[command(hide = true)]
    Docs {
        /// The page to print.
        #[arg(value_parser = reference::names())]
        page: String,
    },
    /// Print the completions for a shell.
    #[command(hide = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder.
    #[command(hide = true)]
    Man {
        /// The folder, which must be there.
        folder: PathBuf,
    },
    /// Run one worker, started by the master.
    #[command(hide = true)]
    Worker,
    /// Run the HTTP process, started for `http:`.
    #[command(hide = true)]
    Http,
    /// Write the access log, started for `access_log_file:`.
    #[command(hide = true)]
    LogWriter,
    /// Look up the names of servers, started if a server is written as a name.
    #[command(hide = true)]
    Resolver,
    /// Read a configuration for the master and resolve its hosts.
    #[command(hide = true)]
    Read {
        /// The configuration.
        file: PathBuf,
    },
    /// Run one cache process, started for `servers: [embedded]`.
    #[command(hide = true)]
    Cache {
        /// `host:port` or `/path/of/socket`.
        #[arg(long, value_name = "ADDRESS", value_parser = config::parse_address)]
        #[arg(required_unless_present = "inherited")]
        listen: Option<config::Address>,
        /// Listen on the socket that the master passes.
        #[arg(long, conflicts_with = "listen")]
        inherited: bool,
        /// Memory for items, such as `64m`.
        #[arg(long, value_name = "SIZE", value_parser = config::parse_memory)]
        memory: usize,
        /// The largest value that the proxy accepts.
        #[arg(long, value_name = "SIZE", default_value = "1m")]
        #[arg(value_parser = config::parse_item_size)]
        item_size_max: usize,
    },
}

#[derive(Args)]
struct RunArguments {
    /// The configuration; a nutcracker.yml works unchanged.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The format of a report.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match nutcracker::is_meant(&arguments) {
        true => nutcracker::main(&arguments),
        false => {
            let matches = examples::command().get_matches_from(arguments);
            run(Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
        }
    }
}

fn run(arguments: Arguments) -> ExitCode {
    match arguments.verb.unwrap_or(Verb::Run(arguments.run)) {
        Verb::Run(RunArguments { config: None }) => {
            master::run(config::default(), None, &mut || {})
        }
        Verb::Run(RunArguments { config: Some(file) }) => match load(&file) {
            Some(config) => master::run(config, Some(master::reader::absolute(&file)), &mut || {}),
            None => ExitCode::FAILURE,
        },
        Verb::Check { file, format, strict, no_resolve, diff, admin } => {
            let proxy = diff.then_some(ask::Proxy { config: None, admin });
            check::check(&file, format, (strict, !no_resolve), proxy.as_ref())
        }
        Verb::Route { config, admin, pool, keys } => match load_running(config, admin) {
            Some(config) => route::route(&config, pool.as_deref(), &keys),
            None => ExitCode::FAILURE,
        },
        Verb::MigrateConfig { file } => files::migrate(&file),
        Verb::RingDiff { old, new } => files::ring_diff(&old, &new),
        Verb::Docs { page } => {
            print(&reference::page(&page));
            ExitCode::SUCCESS
        }
        Verb::Completions { shell } => pages::completions(shell),
        Verb::Man { folder } => pages::man(&folder),
        Verb::Reload { proxy, allow_remap } => {
            proxy.ask("reload", &[flag(allow_remap, "--allow-remap")])
        }
        Verb::Set { proxy, allow_remap, words } => {
            proxy.ask("set", &[vec![flag(allow_remap, "--allow-remap")], words].concat())
        }
        Verb::Config { proxy, running: _, diff, json } => {
            proxy.ask("config", &[flag(diff, "--diff"), flag(json, "--json")])
        }
        Verb::Info { proxy, json } => proxy.ask("info", &[flag(json, "--json")]),
        Verb::Pools { proxy, json } => proxy.ask("pools", &[flag(json, "--json")]),
        Verb::Servers { proxy, json } => proxy.ask("servers", &[flag(json, "--json")]),
        Verb::Server { proxy, name, state } => proxy.ask("server", &[name, state]),
        Verb::Wait { proxy, timeout, words } => wait::wait(&proxy, &words, timeout),
        Verb::Stats { proxy, json } => proxy.ask("stats", &[flag(json, "--json")]),
        Verb::Top { proxy, over, once, json } => top::top(&proxy, over, once, json),
        Verb::Slowlog { proxy, limit, json, reset } => {
            let limit = ["--limit".to_string(), limit.to_string()];
            let [limit, number] = if reset { Default::default() } else { limit };
            proxy.ask("slowlog", &[flag(json, "--json"), flag(reset, "--reset"), limit, number])
        }
        Verb::Clients(arguments) => arguments.ask(),
        Verb::Workers { proxy, json } => proxy.ask("workers", &[flag(json, "--json")]),
        Verb::LogLevel { proxy, level } => proxy.ask("log-level", &[level]),
        Verb::Drain { proxy } => proxy.ask("drain", &[]),
        Verb::Quit { proxy } => proxy.ask("quit", &[]),
        Verb::Worker => worker::run(),
        Verb::Http => http_server::run(),
        Verb::LogWriter => log_writer::run(),
        Verb::Resolver => resolver::run(),
        Verb::Read { file } => master::reader::run(&file),
        Verb::Cache { listen, inherited: _, memory, item_size_max } => {
            cache_server::start(listen.as_ref(), memory, item_size_max)
        }
    }
}

/// Loads a file, or else the configuration of the running proxy with what was set over it.
fn load_running(file: Option<PathBuf>, admin: Option<PathBuf>) -> Option<Config> {
    if let Some(file) = file {
        return load_with_lists(&file);
    }
    match (ask::Proxy { config: None, admin }).running() {
        Ok(ask::Running { file: Some(file), overrides, lists }) => {
            let outcome = config::read_with(&file, &overrides, &config::Lists::default());
            // The proxy may have another list than there is by now.
            let lists = outcome.config.as_ref().map(|config| lists.of(config)).unwrap_or_default();
            let outcome = config::read_with(&file, &overrides, &lists);
            check::report(&outcome, "quickack: ");
            outcome.config
        }
        Ok(ask::Running { file: None, .. }) => Some(config::default()),
        Err(error) => {
            ask::fail(&error);
            None
        }
    }
}

/// The exit status if there is a difference, or a warning that counts: 1 is an error.
const DIFFERENT: u8 = 2;

fn flag(given: bool, word: &str) -> String {
    if given { word.to_string() } else { String::new() }
}

/// Prints to stdout. An error is ignored: a reader that has closed the pipe, such as `head`, needs
/// no more.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Loads a configuration from a file, with the lists of servers that it takes from elsewhere;
/// prints diagnostics to stderr.
fn load_with_lists(file: &std::path::Path) -> Option<Config> {
    let (mut outcome, lists) =
        master::reader::read_with_lists(file, master::reader::CHECK_PATIENCE, |_| true);
    if let Some(config) = &outcome.config {
        let doubts = master::reader::list_doubts(config, &lists);
        outcome.report.doubt(doubts);
    }
    check::report(&outcome, "quickack: ");
    outcome.config
}

/// Loads a configuration from a file; prints diagnostics to stderr. Pools that take their lists
/// from elsewhere have no servers.
fn load(file: &std::path::Path) -> Option<Config> {
    let outcome = config::read(file);
    check::report(&outcome, "quickack: ");
    outcome.config
}
