//! The page `docs/benchmarks.md`: the main table, then sections that are written one by one, so
//! that a row can be measured again without the others.
//!
//! ```text
//!   main table            cargo xtask bench --write
//!   <!-- … --rows redis -->   one table for the rows with Redis
//!   <!-- … --rows NAME -->    a section for each other row
//!   <!-- … --seed -->         and for each other measurement
//! ```

use std::fmt::Write as _;
use std::fs;

use crate::contest::Outcome;
use crate::machine::Description;
use crate::options::{Options, workspace};
use crate::peers::{PEERS, Peer};
use crate::process::{LOAD_CPU, PROXY_CPU};
use crate::report::{self, Verdict};
use crate::rows::Part;
use crate::servers::Backend;

/// Writes the results of rows.
pub fn write_rows(
    outcomes: &[Outcome],
    machine: &Description,
    options: &Options,
) -> Result<(), String> {
    let of = |part| outcomes.iter().filter(move |outcome| outcome.row.part == part);
    let [main, redis]: [Vec<&Outcome>; 2] =
        [Part::Main, Part::Redis].map(|part| of(part).collect());
    if !main.is_empty() {
        write(None, &main_part(&main, machine, options))?;
    }
    if !redis.is_empty() {
        write(Some("--rows redis"), &redis_part(&redis, machine, options))?;
    }
    for outcome in of(Part::Own) {
        write(Some(&format!("--rows {}", outcome.row.name)), &section(outcome, machine, options))?;
    }
    Ok(())
}

/// Writes the section of this command, or the main part, and keeps the others.
pub fn write(command: Option<&str>, text: &str) -> Result<(), String> {
    let path = workspace().join("docs/benchmarks.md");
    let old = fs::read_to_string(&path).unwrap_or_default();
    let page = with_section(&old, command, text);
    fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))
}

fn with_section(old: &str, command: Option<&str>, text: &str) -> String {
    let mut sections = old.split(MARK_START);
    let mut page = sections.next().unwrap_or("").trim_end().to_string();
    let mark = command.map(|command| format!("{command}{MARK_END}"));
    let mut parts: Vec<String> = sections.map(str::to_string).collect();
    match mark {
        None => page = text.trim_end().to_string(),
        Some(mark) => {
            let part = format!("{mark}{text}");
            match parts.iter_mut().find(|part| part.starts_with(&mark)) {
                Some(old) => *old = part,
                None => parts.push(part),
            }
        }
    }
    for part in parts {
        page += "\n\n";
        page += MARK_START;
        page += part.trim_end();
    }
    page + "\n"
}

const MARK_START: &str = "<!-- cargo xtask bench ";
const MARK_END: &str = " -->\n";

/// Renders the command and the machine, as the head of a part.
pub fn origin(machine: &Description, options: &Options) -> String {
    let mut out = written_by(machine, options) + ".\n\n";
    for line in machine.lines.iter().chain([&machine.circumstances]) {
        let _ = writeln!(out, "- {line}");
    }
    out
}

fn written_by(machine: &Description, options: &Options) -> String {
    let typed = format!("cargo xtask bench {}", options.typed);
    format!("Written by `{}` on {}", typed.trim_end(), machine.date)
}

/// Renders the command and the machine in one sentence.
pub fn short_origin(machine: &Description, options: &Options) -> String {
    let machine_line = machine.lines.iter().take(2).cloned().collect::<Vec<_>>().join("; ");
    let circumstances = &machine.circumstances;
    format!("{}; {machine_line}; {circumstances}.\n\n", written_by(machine, options))
}

fn main_part(outcomes: &[&Outcome], machine: &Description, options: &Options) -> String {
    let mut out = String::from("# Benchmarks\n\n");
    out.push_str(&origin(machine, options));
    out.push_str(METHOD);
    let _ = write!(out, "\n## The bar\n\n{BAR_HEADING}");
    outcomes.iter().for_each(|outcome| push_bars(&mut out, outcome));
    let _ = write!(out, "\n## Figures\n\n{}", figures_heading());
    outcomes.iter().for_each(|outcome| push_figures(&mut out, outcome));
    out.push('\n');
    outcomes.iter().for_each(|outcome| push_notes(&mut out, outcome));
    push_commands(&mut out);
    out
}

fn redis_part(outcomes: &[&Outcome], machine: &Description, options: &Options) -> String {
    let mut out = String::from("## Redis\n\n");
    out.push_str(&origin(machine, options));
    let _ = write!(out, "{REDIS_METHOD}\n{BAR_HEADING}");
    outcomes.iter().for_each(|outcome| push_bars(&mut out, outcome));
    let _ = write!(out, "\n{}", figures_heading());
    outcomes.iter().for_each(|outcome| push_figures(&mut out, outcome));
    out.push('\n');
    outcomes.iter().for_each(|outcome| push_notes(&mut out, outcome));
    let command = Backend::Redis.command();
    let _ = write!(out, "\n```\ntaskset -c {LOAD_CPU} {command}\n```\n");
    out
}

fn section(outcome: &Outcome, machine: &Description, options: &Options) -> String {
    let mut out = format!("## {}: {}\n\n", outcome.row.name, outcome.row.what);
    out.push_str(&short_origin(machine, options));
    out.push_str(&figures_heading());
    push_figures(&mut out, outcome);
    let _ = write!(out, "\n{BAR_HEADING}");
    push_bars(&mut out, outcome);
    out.push('\n');
    push_notes(&mut out, outcome);
    out
}

fn push_bars(out: &mut String, outcome: &Outcome) {
    let row = outcome.row.name;
    for verdict in report::verdicts(outcome) {
        let Verdict { bar, value, spread: (low, high) } = verdict;
        let met = match bar.limit {
            None => "",
            Some(_) if verdict.met() => "met",
            Some(_) => "**not met**",
        };
        let (pair, figure, limit) = (verdict.pair(), bar.figure.name(), verdict.limit());
        let _ = writeln!(
            out,
            "| {row} | {pair} | {figure} | {value:.3} | {low:.3} to {high:.3} | {limit} | {met} |"
        );
    }
}

fn push_figures(out: &mut String, outcome: &Outcome) {
    let name = outcome.row.name;
    for (who, cells) in report::figures(outcome) {
        let _ = writeln!(out, "| {name} | {} | {} |", who.name(), cells.join(" | "));
    }
    for (who, fault) in &outcome.faults {
        let _ = writeln!(out, "| {name} | {} | thrown out: {fault} |", who.name());
    }
}

fn push_notes(out: &mut String, outcome: &Outcome) {
    let row = &outcome.row;
    if row.part != Part::Own {
        let _ = writeln!(out, "- {}: {}", row.name, row.what);
    }
    for note in report::notes(outcome) {
        let _ = writeln!(out, "- {}: {note}", row.name);
    }
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

fn figures_heading() -> String {
    let columns = report::COLUMNS.split(',').collect::<Vec<_>>();
    let rule = "---|".repeat(columns.len() + 2);
    format!("| row | proxy | {} |\n|{rule}\n", columns.join(" | "))
}

const BAR_HEADING: &str = "\
| row | who / beside whom | what | median | windows | bar | |
|---|---|---|---|---|---|---|
";

const REDIS_METHOD: &str = "
As above, in RESP2, with Redis behind and `redis: true` in the file of both proxies. A value begins
with its key, and an MGET's values are checked for their order. Keys looked up and calls of SET, as
the servers count them, must have grown by what the generator had answered.
";

const METHOD: &str = "
## How it is measured

- Everything runs on 127.0.0.1. The proxy, master and workers alike, is pinned to CPU 0, with one
  worker where nothing else is said (`w4`: four); the load generator and the servers share CPU 1.
  Where that CPU is full, requests/s says little about the proxy: compare CPU per request.
- Each row starts all programs afresh and stores all keys first. Then windows of the peers take
  turns, in an order that rotates. A ratio is the median of the ratios of paired windows. A window
  in which others had more than 6 % of either CPU is run again.
- CPU: the scheduler's own count of the time the proxy's serving processes have run (user and
  system, with the network work done on their behalf) over the requests answered in the window;
  `+ servers` adds the servers' time. What quickack's master has run in a window stands apart.
- `req/turn`: requests answered for each turn of a worker's loop: what can be done together.
- Closed loop: each connection sends its full depth in one write; each read of replies is followed
  by one write of as many new requests. Every reply is checked for kind, key, length and end.
- Open loop: Poisson arrivals at a fixed rate; latency counts from the time a request was due, sent
  or not.
- Counts: `cmd_get` and `cmd_set` of the servers must have grown by exactly what the generator had
  answered, or the row is thrown out.
- Memory: of all the proxy's processes at the end of the last window, connections open and requests
  outstanding.
";

#[cfg(test)]
mod tests {
    use super::with_section;

    #[test]
    fn a_section_is_written_and_the_others_are_kept() {
        let page = with_section("# Old\n", Some("--seed"), "## Seed\n");
        assert_eq!(page, "# Old\n\n<!-- cargo xtask bench --seed -->\n## Seed\n");
        let page = with_section(&page, Some("--rows n2"), "## n2\n");
        let page = with_section(&page, Some("--seed"), "## Seed again\n");
        let page = with_section(&page, None, "# New\n\n");
        let seed = "<!-- cargo xtask bench --seed -->\n## Seed again";
        let pairs = "<!-- cargo xtask bench --rows n2 -->\n## n2";
        assert_eq!(page, format!("# New\n\n{seed}\n\n{pairs}\n"));
    }
}
