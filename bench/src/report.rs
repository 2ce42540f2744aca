//! The table, on the terminal and in `docs/benchmarks.md`.

use std::fmt::Write as _;
use std::fs;

use crate::contest::{ELSEWHERE_MAX, Outcome, median};
use crate::machine::Description;
use crate::options::{Options, workspace};
use crate::peers::{PEERS, Peer};
use crate::process::{LOAD_CPU, PROXY_CPU};
use crate::servers::Backend;
use crate::window::Window;

/// One bar of one row, and how it was met.
pub struct Verdict {
    pub row: &'static str,
    pub figure: &'static str,
    pub ratio: f64,
    pub spread: (f64, f64),
    pub bar: f64,
    pub at_most: bool,
}

impl Verdict {
    fn limit(&self) -> String {
        format!("{} {:.2}", if self.at_most { "<=" } else { ">=" }, self.bar)
    }

    pub fn met(&self) -> bool {
        if self.at_most { self.ratio <= self.bar } else { self.ratio >= self.bar }
    }
}

pub fn heading() -> String {
    let cells = "req/s,CPU us,+servers,p50 us,p99,p99.9,max,RSS MB,PSS MB,load".split(',');
    line("row", "peer", cells)
}

fn line<T: std::fmt::Display>(row: &str, peer: &str, cells: impl Iterator<Item = T>) -> String {
    let mut out = format!("{row:<8} {peer:<11}");
    for cell in cells {
        let _ = write!(out, " {cell:>9}");
    }
    out + "\n"
}

/// A row as text: a line a peer, then a line a bar.
pub fn text(outcome: &Outcome) -> String {
    let mut out = String::new();
    for peer in PEERS {
        if !outcome.windows(peer).is_empty() {
            let cells = cells(outcome, peer);
            out.push_str(&line(outcome.row.name, peer.name(), cells.iter()));
        }
    }
    for (peer, fault) in &outcome.faults {
        let _ = writeln!(out, "{:<8} {:<11} THROWN OUT: {fault}", outcome.row.name, peer.name());
    }
    for verdict in verdicts(outcome) {
        let _ = writeln!(out, "{}", sentence(&verdict));
    }
    for note in notes(outcome) {
        let _ = writeln!(out, "{:<8} {note}", outcome.row.name);
    }
    out
}

fn sentence(verdict: &Verdict) -> String {
    let Verdict { row, figure, ratio, spread: (low, high), .. } = verdict;
    let met = if verdict.met() { "met" } else { "NOT MET" };
    let limit = verdict.limit();
    format!(
        "{row:<8} quickack/nutcracker {figure}: {ratio:.3} ({low:.3}-{high:.3}), {limit}: {met}"
    )
}

/// Medians of one peer's windows; memory is that of the last window.
fn cells(outcome: &Outcome, peer: Peer) -> [String; 10] {
    let at = |figure: fn(&Window) -> f64| outcome.median(peer, figure).unwrap_or(f64::NAN);
    let proxied = |text: String| if peer == Peer::Direct { "-".to_string() } else { text };
    let windows = outcome.windows(peer);
    let memory = windows.last().map(|window| window.memory).unwrap_or_default();
    let megabytes = |kilobytes: u64| proxied(format!("{:.1}", kilobytes as f64 / 1024.0));
    [
        format!("{:.0}", at(|window| window.requests_per_s)),
        proxied(format!("{:.2}", at(|window| window.proxy_us))),
        format!("{:.2}", at(|window| window.proxy_us + window.servers_us)),
        format!("{:.0}", at(|window| window.latency.p50)),
        format!("{:.0}", at(|window| window.latency.p99)),
        format!("{:.0}", at(|window| window.latency.p999)),
        format!("{:.0}", at(|window| window.latency.max)),
        megabytes(memory.resident_kb),
        megabytes(memory.proportional_kb),
        format!("{:.2}", at(|window| window.load_us)),
    ]
}

/// Each bar of the row that can be judged from its windows.
pub fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
    let bar = outcome.row.bar;
    let mut verdicts = Vec::new();
    let mut judge = |figure: &'static str, bar: Option<f64>, at_most: bool, ratios: Vec<f64>| {
        if let Some((bar, ratio)) = bar.zip(median(ratios.clone())) {
            let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let high = ratios.iter().copied().fold(0.0, f64::max);
            let row = outcome.row.name;
            verdicts.push(Verdict { row, figure, ratio, spread: (low, high), bar, at_most });
        }
    };
    judge("CPU per request", bar.cpu, true, outcome.ratios(|window| window.proxy_us));
    judge("requests/s", bar.requests, false, outcome.ratios(|window| window.requests_per_s));
    let resident = outcome.ratios(|window| window.memory.resident_kb as f64);
    judge("resident memory", bar.resident, true, resident.last().copied().into_iter().collect());
    judge("p99", bar.p99, true, outcome.ratios(|window| window.latency.p99));
    verdicts
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let mut notes = Vec::new();
    let windows = || outcome.rounds.iter().flatten();
    if let Some(rate) = outcome.rate {
        notes.push(format!(
            "offered: {rate:.0} requests/s, Poisson, late requests counted from their due time"
        ));
    }
    if outcome.reruns > 0 {
        notes.push(format!("{} disturbed windows were run again", outcome.reruns));
    }
    let disturbed =
        windows().filter(|window| window.elsewhere.iter().any(|&s| s > ELSEWHERE_MAX)).count();
    if disturbed > 0 {
        let count = windows().count();
        notes.push(format!("{disturbed} of {count} windows stayed disturbed: take them with salt"));
    }
    let misses: u64 = windows().map(|window| window.misses).sum();
    if misses > 0 {
        notes.push(format!("{misses} gets missed: the keys did not fit"));
    }
    if windows().any(|window| !window.counts_checked) {
        notes.push("the servers keep no cmd_get and cmd_set: counts were not compared".into());
    }
    notes
}

/// The two halves of `docs/benchmarks.md`; writing one keeps the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Half {
    Table,
    Seed,
}

/// Stands between the halves.
const SEED_MARK: &str = "<!-- cargo xtask bench --seed -->\n";

/// Writes one half of the page.
pub fn write(half: Half, text: &str) -> Result<(), String> {
    let path = workspace().join("docs/benchmarks.md");
    let old = fs::read_to_string(&path).unwrap_or_default();
    let (table, seed) = old.split_once(SEED_MARK).unwrap_or((&old, ""));
    let (table, seed) = if half == Half::Table { (text, seed) } else { (table, text) };
    let page = format!("{}\n\n{SEED_MARK}{seed}", table.trim_end());
    fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))
}

/// The command and the machine, as the head of a half.
pub fn origin(machine: &Description, options: &Options) -> String {
    let typed = format!("cargo xtask bench {}", options.typed);
    let mut out = format!("Written by `{}` on {}.\n\n", typed.trim_end(), machine.date);
    for line in &machine.lines {
        let _ = writeln!(out, "- {line}");
    }
    out
}

/// The table's half of the page.
pub fn page(outcomes: &[Outcome], machine: &Description, options: &Options) -> String {
    let mut out = String::from("# Benchmarks\n\n");
    out.push_str(&origin(machine, options));
    out.push_str(METHOD);
    out.push_str(BAR_HEADING);
    for outcome in outcomes {
        for verdict in verdicts(outcome) {
            let Verdict { row, figure, ratio, spread: (low, high), .. } = verdict;
            let met = if verdict.met() { "met" } else { "**not met**" };
            let (what, bar) = (outcome.row.what, verdict.limit());
            let _ = writeln!(
                out,
                "| {row} | {what} | {figure} | {ratio:.3} | {low:.3}-{high:.3} | {bar} | {met} |"
            );
        }
    }
    out.push_str(FIGURES_HEADING);
    outcomes.iter().for_each(|outcome| push_figures(&mut out, outcome));
    out.push('\n');
    for outcome in outcomes {
        for note in notes(outcome) {
            let _ = writeln!(out, "- {}: {note}", outcome.row.name);
        }
    }
    push_commands(&mut out);
    out
}

fn push_commands(out: &mut String) {
    out.push_str("\n## Commands\n\n```\n");
    for peer in PEERS.into_iter().filter(|&peer| peer != Peer::Direct) {
        let _ = writeln!(out, "taskset -c {PROXY_CPU} {}", peer.command());
    }
    for backend in [Backend::Memcached, Backend::Embedded] {
        let _ = writeln!(out, "taskset -c {LOAD_CPU} {}", backend.command());
    }
    out.push_str("```\n");
}

fn push_figures(out: &mut String, outcome: &Outcome) {
    let name = outcome.row.name;
    for peer in PEERS {
        if !outcome.windows(peer).is_empty() {
            let cells = cells(outcome, peer).join(" | ");
            let _ = writeln!(out, "| {name} | {} | {cells} |", peer.name());
        }
    }
    for (peer, fault) in &outcome.faults {
        let _ = writeln!(out, "| {name} | {} | thrown out: {fault} |", peer.name());
    }
}

const BAR_HEADING: &str = "
## The bar

| row | what | quickack / nutcracker | median | windows from-to | bar | |
|---|---|---|---|---|---|---|
";
const FIGURES_HEADING: &str = "
## Figures

| row | peer | req/s | CPU us | + servers | p50 us | p99 | p99.9 | max | RSS MB | PSS MB | load |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

const METHOD: &str = "
## How it is measured

- Everything runs on 127.0.0.1. The proxy has one worker and is pinned to CPU 0; the load generator
  and the servers share CPU 1. Where that CPU is full, requests/s says little about the proxy:
  compare CPU per request.
- Each row starts all programs afresh and stores all keys first. Then windows of the peers take
  turns, in an order that rotates. A ratio is the median of the ratios of paired windows. A window
  in which others had more than 6 % of either CPU is run again.
- CPU: the scheduler's own count of the time the proxy's threads have run (user and system, with
  the network work done on their behalf) over the requests answered in the window; `+ servers` adds
  the servers' time.
- Closed loop: each connection sends its full depth in one write; each read of replies is followed
  by one write of as many new requests. Every reply is checked for kind, key, length and end.
- Open loop: Poisson arrivals at a fixed rate; latency counts from the time a request was due, sent
  or not.
- Counts: `cmd_get` and `cmd_set` of the servers must have grown by exactly what the generator had
  answered, or the row is thrown out.
- Memory: of the proxy's processes at the end of the last window, connections open and requests
  outstanding.
";
