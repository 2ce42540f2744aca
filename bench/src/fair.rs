//! Fairness: a quiet client beside attackers, and the shares of clients that always want more.
//!
//! ```text
//!  attacks (data), crowd (the loop) ----------\
//!  quiet (one client at a fixed pace) --------+--> trial (alone, attacked, after) --> here: bars
//!  shares (40 clients, one server) ----------------------------------------------> Jain's index
//!  pipelines (written before an answer is read, beside a quiet client)
//!  tenants (two of them, by weight and beside a limit)
//! ```

mod attacks;
mod crowd;
pub mod pipelines;
mod quiet;
mod shares;
pub mod tenants;
mod trial;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::Path;

use crate::contest::median;
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::Peer;
use crate::process::Cpus;
use crate::servers::{self, Backend, Servers};

use attacks::{Attack, Stock, attacks};
use trial::{MEMORY_MAX_MB, Trial};

const PEERS: [Peer; 3] = [Peer::Direct, Peer::Nutcracker, Peer::Quickack];
/// The percentiles may grow by this factor.
const GROWTH_MAX: f64 = 3.0;
/// Bytes that servers may still write for attackers that have left. An in-flight limit is the rate
/// of a server, about 4 GB/s on loopback, times the round trip and 2 ms; one message may exceed it.
const LATE_MAX_MB: f64 = 16.0;

/// Plays the attacks and measures the shares; returns true if all bars are met.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    crate::process::stay_on(&Cpus::Split.of_load())?;
    let attacks: Vec<Attack> =
        attacks().into_iter().filter(|it| wanted(options, it.name)).collect();
    let shares: Vec<_> =
        shares::shares().into_iter().filter(|it| wanted(options, it.name)).collect();
    if attacks.is_empty() && shares.is_empty() {
        return Err("no such attack; `cargo xtask bench --list`".into());
    }
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = String::from("## Fairness\n\n");
    text.push_str(&page::short_origin(&machine, options));
    let mut met = true;
    if !attacks.is_empty() {
        print!("{HEADING}");
        let (mut figures, mut bars, mut notes) = (String::new(), String::new(), String::new());
        for attack in &attacks {
            let results = play(attack, options, folder)?;
            figures.push_str(&results.figures());
            met &= results.faults.is_empty();
            for bar in results.bars() {
                met &= bar.met();
                bars.push_str(&bar.line(attack.name));
            }
            notes.push_str(&results.notes());
        }
        print!("\n{BAR_HEADING}{bars}\n{notes}");
        let _ = write!(text, "{METHOD}{HEADING}{figures}\n{BAR_HEADING}{bars}\n{notes}");
    }
    if !shares.is_empty() {
        print!("\n{}", shares::HEADING);
        let mut lines = String::new();
        for share in &shares {
            met &= shares::measure(share, options, folder, &mut lines)?;
        }
        let _ = write!(text, "{}{}{lines}", shares::METHOD, shares::HEADING);
    }
    if options.write {
        page::write(Some("--fair"), &text)?;
    }
    Ok(met)
}

/// Prints the names for `--list`.
pub fn list() {
    let attacks = attacks().into_iter().map(|it| (it.name, it.what));
    for (name, what) in attacks.chain(shares::shares().into_iter().map(|it| (it.name, it.what))) {
        println!("{name:<10} {what}");
    }
}

fn wanted(options: &Options, name: &str) -> bool {
    options.rows.as_ref().is_none_or(|rows| rows.iter().any(|row| row == name))
}

/// The trials of one attack.
struct Results<'a> {
    attack: &'a Attack,
    trials: Vec<(Peer, Trial)>,
    /// Trials that could not be finished, with the reason.
    faults: Vec<(Peer, String)>,
}

/// Plays one attack; the peers take turns.
fn play<'a>(attack: &'a Attack, options: &Options, folder: &Path) -> Result<Results<'a>, String> {
    let servers = Servers::start(attack.backend, attack.servers, Cpus::Split, &options.quickack())?;
    for &port in &servers.ports {
        fill(attack, port).map_err(|error| format!("cannot fill {port}: {error}"))?;
    }
    let mut results = Results { attack, trials: Vec::new(), faults: Vec::new() };
    for _ in 0..options.runs {
        for peer in PEERS.into_iter().filter(|it| attack.admits(*it, options)) {
            match trial::run(attack, peer, &servers, options, folder) {
                Ok(trial) => results.trials.push((peer, trial)),
                Err(fault) => results.faults.push((peer, fault)),
            }
        }
    }
    print!("{}", results.figures());
    Ok(results)
}

impl Attack {
    fn admits(&self, peer: Peer, options: &Options) -> bool {
        options.peers.contains(&peer) && !self.refused_by.contains(&peer)
    }
}

impl Results<'_> {
    fn of(&self, peer: Peer) -> Vec<&Trial> {
        self.trials.iter().filter(|(who, _)| *who == peer).map(|(_, trial)| trial).collect()
    }

    fn spread(&self, peer: Peer, figure: impl Fn(&Trial) -> f64) -> Spread {
        Spread::of(self.of(peer).into_iter().map(figure).collect())
    }

    /// Returns a line of the table for each peer.
    fn figures(&self) -> String {
        let mut out = String::new();
        for peer in PEERS {
            let trials = self.of(peer);
            if trials.is_empty() {
                continue;
            }
            let at = |figure: fn(&Trial) -> f64| self.spread(peer, figure);
            let served: usize = trials.iter().map(|trial| trial.attacked.served).sum();
            let asked: usize = trials.iter().map(|trial| trial.attacked.asked).sum();
            let errors: usize = trials.iter().map(|trial| trial.errors).sum();
            let resident = match peer {
                Peer::Direct => "-".to_string(),
                _ => format!("{:.0}", at(|trial| trial.grown_kb as f64 / 1024.0).high),
            };
            let _ = writeln!(
                out,
                "| {} | {} | {:.2} | {} | {:.2} | {} | {:.0} | {served} of {asked} | {errors} | {} \
                 | {:.1} | {resident} | {:.0} | {:.2} |",
                self.attack.name,
                peer.name(),
                at(|trial| trial.alone.p50_ms).median,
                at(|trial| trial.alone.p99_ms),
                at(|trial| trial.attacked.p50_ms).median,
                at(|trial| trial.attacked.p99_ms),
                at(|trial| trial.attacked.max_ms).high,
                at(|trial| trial.after.p99_ms),
                at(|trial| trial.late_bytes as f64 / 1e6).median,
                at(|trial| trial.crowd_bytes_per_s / 1e6).median,
                at(|trial| trial.elsewhere).high,
            );
        }
        out
    }

    /// Returns quickack's bars.
    fn bars(&self) -> Vec<Bar> {
        let ours = self.of(Peer::Quickack);
        if ours.is_empty() {
            return Vec::new();
        }
        let at = |figure: fn(&Trial) -> f64| self.spread(Peer::Quickack, figure);
        let median = at(|trial| trial.attacked.p50_ms);
        let attacked = at(|trial| trial.attacked.p99_ms);
        let after = at(|trial| trial.after.p99_ms);
        let tripled_p50 = GROWTH_MAX * at(|trial| trial.alone.p50_ms).median;
        let tripled_p99 = GROWTH_MAX * at(|trial| trial.alone.p99_ms).median;
        let direct = self.spread(Peer::Direct, |trial| trial.attacked.p99_ms).median;
        let errors = ours.iter().map(|trial| trial.errors as f64).collect();
        let grown = ours.iter().map(|it| it.grown_kb as f64 / 1024.0).collect();
        let late = at(|trial| trial.late_bytes as f64 / 1e6);
        let bar = |what, value, limit| Bar { what, value, limit };
        let mut bars = vec![
            bar("errors of the quiet client", Spread::most(errors), 0.0),
            // No direct trial is NaN, which `max` passes over.
            bar("p99 in the attack, ms", attacked, tripled_p99.max(direct)),
            bar("p99 after it, ms", after, tripled_p99),
            bar("MB fetched after it", late, LATE_MAX_MB),
            bar("growth of RSS, MB", Spread::most(grown), MEMORY_MAX_MB),
        ];
        if self.attack.median_barred {
            bars.push(bar("p50 in the attack, ms", median, tripled_p50));
        }
        bars
    }

    fn notes(&self) -> String {
        let Attack { name, what, refused_by, .. } = self.attack;
        let mut out = format!("- {name}: {what}\n");
        for peer in *refused_by {
            let _ = writeln!(out, "- {name}: {} refuses the command", peer.name());
        }
        for (peer, fault) in &self.faults {
            let _ = writeln!(out, "- {name}: a trial through {} failed: {fault}", peer.name());
        }
        for peer in PEERS {
            let first = self.of(peer).into_iter().find_map(|trial| trial.first_error.clone());
            if let Some(error) = first {
                let _ = writeln!(out, "- {name}: the first error through {}: {error}", peer.name());
            }
        }
        out
    }
}

/// A figure over several rounds.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    fn of(values: Vec<f64>) -> Spread {
        let low = values.iter().copied().fold(f64::NAN, f64::min);
        let high = values.iter().copied().fold(f64::NAN, f64::max);
        Spread { median: median(values).unwrap_or(f64::NAN), low, high }
    }

    /// Returns a spread that is judged by its largest value.
    fn most(values: Vec<f64>) -> Spread {
        let spread = Spread::of(values);
        Spread { median: spread.high, ..spread }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Spread { median, low, high } = self;
        write!(out, "{median:.2} ({low:.2} to {high:.2})")
    }
}

/// One bar of one attack.
struct Bar {
    what: &'static str,
    value: Spread,
    limit: f64,
}

impl Bar {
    fn met(&self) -> bool {
        self.value.median <= self.limit
    }

    fn line(&self, attack: &str) -> String {
        let Bar { what, value, limit } = self;
        let judged = if self.met() { "met" } else { "**not met**" };
        format!("| {attack} | {what} | {value} | <= {limit:.2} | {judged} |\n")
    }
}

/// Stores the quiet client's keys and the attack's on one server.
fn fill(attack: &Attack, port: u16) -> std::io::Result<()> {
    let quiet = (0..quiet::KEYS).map(|at| (quiet::key(at), quiet::value(at)));
    store(attack.backend, port, quiet)?;
    match attack.stock {
        Stock::Nothing => Ok(()),
        Stock::Big => {
            let numbered = (0..100).map(|at| format!("big:{at:03}"));
            let names = std::iter::once("big".to_string()).chain(numbered);
            store(attack.backend, port, names.map(|name| (name, "v".repeat(1_000_000))))
        }
        Stock::Keys(count) => {
            let numbered = (0..count).map(|at| (format!("key:{at:07}"), "x".to_string()));
            store(attack.backend, port, numbered)
        }
    }
}

/// Stores pairs, many in a write.
fn store(
    backend: Backend,
    port: u16,
    pairs: impl Iterator<Item = (String, String)>,
) -> std::io::Result<()> {
    let mut stream = servers::connect(port)?;
    let stored = backend.wire().stored();
    let mut pairs = pairs.peekable();
    while pairs.peek().is_some() {
        let (mut requests, mut count) = (Vec::new(), 0);
        while requests.len() < STORE_LEN
            && let Some((key, value)) = pairs.next()
        {
            match backend {
                Backend::Redis => {
                    requests.extend_from_slice(&attacks::command(&["SET", &key, &value]));
                }
                _ => requests.extend_from_slice(
                    format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(),
                ),
            }
            count += 1;
        }
        stream.write_all(&requests)?;
        let mut answers = vec![0; count * stored.len()];
        stream.read_exact(&mut answers)?;
        if answers.chunks(stored.len()).any(|answer| answer != stored) {
            return Err(std::io::Error::other(answers.escape_ascii().to_string()));
        }
    }
    Ok(())
}

/// Bytes in one write of [`store`].
const STORE_LEN: usize = 16 * 1024;

/// Lets this thread run before the other programs on its CPU, where the system allows it.
fn prefer_this_thread() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -15);
}

const METHOD: &str = "\
One quiet client sends a get of 100 bytes every 5 ms on one connection; its latency counts from the
time the request was due. It is alone for 1.5 s, beside the attackers for 4 s, and then, after a
reset of their connections (or the end of their slow commands) and 50 ms, alone again for 2 s. Each
trial starts its proxy afresh, with deadlines of 5 s and `memory_max: 512m`; peers take turns.
Figures are milliseconds, medians of the trials with the smallest and the largest, but errors are
sums, and max and memory are the largest. Memory is the peak of all the proxy's processes above what
they had without clients. `elsewhere` is the larger of the shares of the two CPUs that other
programs used.

";
const HEADING: &str = "\
| attack | through | alone p50 | p99 | attacked p50 | p99 | max | served in time | errors \
| after p99 | fetched after, MB | RSS grew MB | attackers MB/s | elsewhere |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";
const BAR_HEADING: &str = "\
| attack | quickack's | value | bar | |
|---|---|---|---|---|
";
