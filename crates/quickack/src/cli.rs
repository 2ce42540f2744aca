//! The command line: one table of verbs, and an arm for each.

mod check;
mod reference;
mod route;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{self, Config, Severity};
use crate::{cache_server, launcher};

/// A cache proxy that finds and cures the stalls between cache clients and servers.
///
/// Without a verb it runs: in front of an embedded cache on 127.0.0.1:22121, or as FILE says.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the proxy (what happens without a verb).
    Run(RunArguments),
    /// Say whether a configuration is valid, and what it comes to.
    ///
    /// Exit status 0 if it is valid, 1 if it is not.
    Check {
        /// The configuration to check; a nutcracker.yml is one.
        file: PathBuf,
        /// `json` gives an array with one object an error or warning.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Show the server that each key lives on.
    Route {
        /// The configuration to route by.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Only in this pool; without it, in each.
        #[arg(long)]
        pool: Option<String>,
        /// The keys.
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
    },
    /// Print a page of the reference, as it stands in docs/reference.
    #[command(hide = true)]
    Docs {
        /// Which one.
        #[arg(value_parser = reference::names())]
        page: String,
    },
    /// Run one worker: what the launcher starts.
    #[command(hide = true)]
    Worker {
        /// The folder of the caches' sockets.
        #[arg(long, value_name = "FOLDER")]
        sockets: PathBuf,
    },
    /// Run one cache process: what `servers: [embedded]` starts.
    #[command(hide = true)]
    Cache {
        /// `host:port` or `/path/of/socket`.
        #[arg(long, value_name = "ADDRESS", value_parser = config::parse_address)]
        #[arg(required_unless_present = "inherited")]
        listen: Option<config::Address>,
        /// On the socket that the launcher passes.
        #[arg(long, conflicts_with = "listen")]
        inherited: bool,
        /// What it may hold, such as `64m`.
        #[arg(long, value_name = "SIZE", value_parser = config::parse_memory)]
        memory: usize,
        /// The largest value that the proxy in front lets pass.
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

/// What a report looks like.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.verb.unwrap_or(Verb::Run(arguments.run)) {
        Verb::Run(RunArguments { config: None }) => launcher::run(config::default()),
        Verb::Run(RunArguments { config: Some(file) }) => match load(&file) {
            Some(config) => launcher::run(config),
            None => ExitCode::FAILURE,
        },
        Verb::Check { file, format } => check::check(&file, format),
        Verb::Route { config: file, pool, keys } => match load(&file) {
            Some(config) => route::route(&config, pool.as_deref(), &keys),
            None => ExitCode::FAILURE,
        },
        Verb::Docs { page } => {
            print(&reference::page(&page));
            ExitCode::SUCCESS
        }
        Verb::Worker { sockets } => launcher::run_worker(&sockets),
        Verb::Cache { listen, inherited: _, memory, item_size_max } => {
            cache_server::start(listen.as_ref(), memory, item_size_max)
        }
    }
}

/// To stdout. A reader that has gone, as `head` does, has seen what it wanted.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The configuration in a file; what is to be told about it goes to stderr.
fn load(file: &std::path::Path) -> Option<Config> {
    let outcome = config::read(file);
    eprint!("{}", outcome.report.render_text());
    let errors = outcome.report.count(Severity::Error);
    if errors > 0 {
        eprintln!("quickack: {}: {}", outcome.report.name, check::invalid(errors));
    }
    outcome.config
}
