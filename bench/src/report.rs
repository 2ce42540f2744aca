//! The results of a row, as text for the terminal and as lines for the page.

use std::fmt::Write as _;

use crate::contest::{ELSEWHERE_MAX, Outcome, median};
use crate::peers::{Contestant, Peer};
use crate::rows::{Bar, Figure};
use crate::window::Window;

/// One comparison of one row, and whether its bar was met.
pub struct Verdict {
    pub bar: Bar,
    pub value: f64,
    pub spread: (f64, f64),
}

impl Verdict {
    pub fn limit(&self) -> String {
        let sign = if self.bar.figure.is_cost() { "<=" } else { ">=" };
        self.bar.limit.map_or("-".to_string(), |limit| format!("{sign} {limit:.2}"))
    }

    pub fn met(&self) -> bool {
        match self.bar.limit {
            None => true,
            Some(limit) if self.bar.figure.is_cost() => self.value <= limit,
            Some(limit) => self.value >= limit,
        }
    }

    /// Returns the names of the compared contestants.
    pub fn pair(&self) -> String {
        let sign = if self.bar.figure == Figure::P99Added { "-" } else { "/" };
        format!("{} {sign} {}", self.bar.of.name(), self.bar.beside.name())
    }
}

/// The columns after the contestant's name.
pub const COLUMNS: &str = "req/s,CPU us,+ servers,p50 us,p99,p99.9,max,RSS MB,PSS MB,load,\
                           req/turn,master ms,reloads";

pub fn heading() -> String {
    line("row", "proxy", COLUMNS.split(','))
}

fn line<T: std::fmt::Display>(row: &str, who: &str, cells: impl Iterator<Item = T>) -> String {
    let mut out = format!("{row:<8} {who:<24}");
    for cell in cells {
        let _ = write!(out, " {cell:>9}");
    }
    out + "\n"
}

/// Renders a row as text: a line for each contestant, then a line for each comparison.
pub fn text(outcome: &Outcome) -> String {
    let mut out = String::new();
    let name = outcome.row.name;
    for (who, cells) in figures(outcome) {
        out.push_str(&line(name, &who.name(), cells.iter()));
    }
    for (who, fault) in &outcome.faults {
        let _ = writeln!(out, "{name:<8} {:<24} THROWN OUT: {fault}", who.name());
    }
    for verdict in verdicts(outcome) {
        let Verdict { bar, value, spread: (low, high), .. } = verdict;
        let figure = bar.figure.name();
        let _ = write!(out, "{name:<8} {}, {figure}: ", verdict.pair());
        let _ = write!(out, "{value:.3} ({low:.3} to {high:.3})");
        let met = if verdict.met() { "met" } else { "NOT MET" };
        let judged = bar.limit.map(|_| format!(", {}: {met}", verdict.limit()));
        let _ = writeln!(out, "{}", judged.unwrap_or_default());
    }
    for note in notes(outcome) {
        let _ = writeln!(out, "{name:<8} {note}");
    }
    out
}

/// Returns the contestants that have windows, with the cells of their columns.
pub fn figures(outcome: &Outcome) -> Vec<(Contestant, [String; 13])> {
    let shown = outcome.row.contestants.iter().filter(|who| !outcome.windows(**who).is_empty());
    shown.map(|who| (*who, cells(outcome, *who))).collect()
}

/// Returns medians of a contestant's windows; memory is that of the last window.
fn cells(outcome: &Outcome, who: Contestant) -> [String; 13] {
    let at = |figure: fn(&Window) -> f64| outcome.median(who, figure).unwrap_or(f64::NAN);
    let only = |shown: bool, text: String| if shown { text } else { "-".to_string() };
    let proxied = |text: String| only(who.peer != Peer::Direct, text);
    let ours = |text: String| only(who.peer == Peer::Quickack, text);
    let windows = outcome.windows(who);
    let memory = windows.last().map(|window| window.memory).unwrap_or_default();
    let megabytes = |kilobytes: u64| proxied(format!("{:.1}", kilobytes as f64 / 1024.0));
    let acts: usize = windows.iter().map(|window| window.acts).sum();
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
        ours(format!("{:.2}", at(|window| window.per_turn))),
        ours(format!("{:.2}", at(|window| window.master_ms))),
        only(acts > 0, acts.to_string()),
    ]
}

/// Returns each comparison of the row for which there are windows.
pub fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
    let judge = |bar: &Bar| {
        let values = outcome.compared(bar);
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Verdict { bar: *bar, value: median(values)?, spread: (low, high) })
    };
    outcome.row.bars.iter().filter_map(judge).collect()
}

pub fn notes(outcome: &Outcome) -> Vec<String> {
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
    if misses > 0 && !outcome.row.work.missing {
        notes.push(format!("{misses} gets missed: the keys did not fit"));
    }
    if windows().any(|window| !window.counts_checked) {
        notes.push("the servers keep no cmd_get and cmd_set: counts were not compared".into());
    }
    notes
}
