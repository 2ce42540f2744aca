//! The command line of `cargo xtask bench`.

use std::path::{Path, PathBuf};

use crate::peers::{Added, PEERS, Peer};
use crate::trace::Counter;
use crate::window::Lengths;

pub const HELP: &str = "\
cargo xtask bench [options]    quickack beside nutcracker, HAProxy and nobody, on loopback

  --rows A,B       only these rows (see --list); `redis` is all of Redis's
  --peers A,B      only these: nutcracker, quickack, haproxy, direct
  --runs N         windows of each peer in each row (5), trials of each attack (3)
  --seconds S      measured seconds of each window (1.75)
  --quick          3 windows of 0.7 s: a look, not a result
  --attempts N     times a disturbed window is tried (4); 1 keeps whatever comes
  --verify         compare every byte of every value
  --write          write docs/benchmarks.md
  --date D         the date written there (today)
  --strace         instead: system calls per request of each proxy in each row
  --syscalls       the same by perf's tracepoints, which do not slow the proxy
  --callgrind ROW  instead: instructions per request of quickack in this row
  --seed           instead: 6,000 requests/s open loop, clean and split clients
  --balance        instead: how evenly 8 workers share connections
  --hits           instead: hits of the embedded cache beside memcached's, on several traces
  --master         instead: what the master does beside 8 busy workers
  --cores          instead: requests/s at 1 to 12 workers; wants a machine with 16 CPUs
  --php            instead: misses as php-memcached asks them in binary
  --memory         instead: bytes a client at rest, and one 1 MB value in flight
  --binding        instead: MULTI of ten, hand-offs of BLPOP, 1,000 subscribers, 2,000 that wait
  --fair           instead: a quiet client beside attackers, and the shares of greedy clients
  --pipelines      instead: a million requests that are written before an answer is read
  --tenants        instead: shares of two tenants, and one beside another that is at its limit
  --minutes M      minutes of each part of --seed (10), of --master (1)
  --batch          send a whole depth of requests only after all replies, as redis-benchmark does
  --global LINE    add this directive to quickack's `global:`, to measure what it costs
  --pool LINE      the same for its pool
  --quickack FILE  this binary instead of building one
  --list           the rows and their bars, and the attacks of --fair and --tenants
";

#[derive(Clone, Debug)]
pub struct Options {
    pub rows: Option<Vec<String>>,
    pub peers: Vec<Peer>,
    pub runs: usize,
    pub lengths: Lengths,
    pub attempts: usize,
    pub verify: bool,
    pub write: bool,
    pub date: Option<String>,
    pub batch: bool,
    pub minutes: Option<f64>,
    pub quickack: Option<PathBuf>,
    pub added: Added,
    pub verb: Verb,
    /// The arguments as typed, for the record.
    pub typed: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    Table,
    List,
    Help,
    Seed,
    Balance,
    Hits,
    Master,
    Php,
    Memory,
    Binding,
    Cores,
    Fair,
    Pipelines,
    Tenants,
    SystemCalls(Counter),
    Callgrind(String),
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            rows: None,
            peers: PEERS.to_vec(),
            runs: 0,
            lengths: Lengths::default(),
            attempts: 4,
            verify: false,
            write: false,
            date: None,
            batch: false,
            minutes: None,
            quickack: None,
            added: Added::default(),
            verb: Verb::Table,
            typed: arguments.join(" "),
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            options.parse_option(word, &mut words)?;
        }
        if options.runs == 0 {
            options.runs = if matches!(options.verb, Verb::Fair | Verb::Pipelines) { 3 } else { 5 };
        }
        Ok(options)
    }

    fn parse_option<'a>(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), String> {
        let mut value = || rest.next().cloned().ok_or(format!("{word} needs a value"));
        match word {
            "--rows" => self.rows = Some(value()?.split(',').map(str::to_string).collect()),
            "--peers" => {
                self.peers = value()?.split(',').map(Peer::parse).collect::<Result<_, _>>()?;
            }
            "--runs" => self.runs = number(word, &value()?, 1.0)? as usize,
            "--attempts" => self.attempts = number(word, &value()?, 1.0)? as usize,
            "--seconds" => self.lengths.measure_s = number(word, &value()?, 0.05)?,
            "--minutes" => self.minutes = Some(number(word, &value()?, 0.01)?),
            "--quick" => {
                self.runs = 3;
                self.lengths = Lengths { warm_up_s: 0.2, measure_s: 0.7 };
            }
            "--verify" => self.verify = true,
            "--write" => self.write = true,
            "--date" => self.date = Some(value()?),
            "--batch" => self.batch = true,
            "--global" => self.added.global.push(value()?),
            "--pool" => self.added.pool.push(value()?),
            "--quickack" => self.quickack = Some(value()?.into()),
            "--seed" => self.verb = Verb::Seed,
            "--balance" => self.verb = Verb::Balance,
            "--hits" => self.verb = Verb::Hits,
            "--master" => self.verb = Verb::Master,
            "--php" => self.verb = Verb::Php,
            "--binding" => self.verb = Verb::Binding,
            "--memory" => self.verb = Verb::Memory,
            "--cores" => self.verb = Verb::Cores,
            "--fair" => self.verb = Verb::Fair,
            "--pipelines" => self.verb = Verb::Pipelines,
            "--tenants" => self.verb = Verb::Tenants,
            "--strace" => self.verb = Verb::SystemCalls(Counter::Strace),
            "--syscalls" => self.verb = Verb::SystemCalls(Counter::Perf),
            "--callgrind" => self.verb = Verb::Callgrind(value()?),
            "--list" => self.verb = Verb::List,
            "--help" | "-h" | "help" => self.verb = Verb::Help,
            _ => return Err(format!("unknown option `{word}`; `cargo xtask bench --help`")),
        }
        Ok(())
    }

    /// Returns the path of quickack: the requested one, or this workspace's release build.
    pub fn quickack(&self) -> PathBuf {
        let built = || target_folder().join("release/quickack");
        self.quickack.clone().unwrap_or_else(built)
    }
}

fn number(word: &str, text: &str, least: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number >= least);
    number.ok_or_else(|| format!("{word}: `{text}` is not a number from {least} up"))
}

/// Returns the workspace from which this program was built.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in its workspace")
}

/// Returns cargo's target folder.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}
