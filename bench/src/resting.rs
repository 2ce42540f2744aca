//! Memory of idle clients, and of one large value in transit.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::contest::Stage;
use crate::load::{Generator, Mix, Wire, Workload};
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Endpoint, Peer};
use crate::process;
use crate::rows::{self, Row};

const CLIENTS: usize = 10_000;
/// Limit on bytes for each idle client.
const CLIENT_MAX: f64 = 1024.0;
/// Limit on memory relative to idle, while a value of 1 MB is in transit.
const LARGE_MAX: f64 = 1.25;
const LARGE_LEN: usize = 1_000_000;
/// The kernel's number must be equal this many times, this long apart.
const ALIKE: usize = 4;
const PAUSE: Duration = Duration::from_millis(100);
const LOOKS_MAX: usize = 100;

/// Measures both; returns true if the bars are met.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = String::from("## Memory of clients at rest, and of a large value under way\n\n");
    text.push_str(&page::short_origin(&machine, options));
    let resting = resting(options, folder)?;
    let large = large(options, folder)?;
    let _ = write!(text, "{RESTING}{}\n{LARGE}{}", resting.0, large.0);
    print!("{text}");
    if options.write {
        page::write(Some("--memory"), &text)?;
    }
    Ok(resting.1 && large.1)
}

/// Measures many clients, each of which got one value of 10 KB.
fn resting(options: &Options, folder: &Path) -> Result<(String, bool), String> {
    let (mut out, mut all_met) = (String::new(), true);
    let row = rows::idle();
    let stage = Stage::build(&row, options)?;
    for wire in [Wire::Text, Wire::Meta, Wire::Binary] {
        let endpoint = started(wire, &stage, &row, options, folder)?;
        let before = proportional_kb(&endpoint);
        let work = one_get_of_each(&stage, wire, CLIENTS);
        let mut clients = Generator::start(&work, &stage.corpus, &endpoint.addresses, 1)?;
        clients.drain()?;
        expect(&clients, CLIENTS)?;
        let after = proportional_kb(&endpoint);
        drop(clients);
        let left = proportional_kb(&endpoint);
        let each = (after as f64 - before as f64) * 1024.0 / CLIENTS as f64;
        let met = each <= CLIENT_MAX;
        all_met &= met;
        let (name, judged) = (endpoint.who.name(), judged(met));
        let _ = writeln!(
            out,
            "| {name} | {before} | {after} | {left} | {each:.0} | <= {CLIENT_MAX} | {judged} |"
        );
    }
    Ok((out, all_met))
}

/// Measures one client that requests 1 MB, does not read it, and then reads.
fn large(options: &Options, folder: &Path) -> Result<(String, bool), String> {
    let (mut out, mut all_met) = (String::new(), true);
    let row = rows::one_large();
    let stage = Stage::build(&row, options)?;
    for wire in [Wire::Text, Wire::Meta, Wire::Binary] {
        for name in ["not read", "read at once"] {
            let endpoint = started(wire, &stage, &row, options, folder)?;
            let work = one_get_of_each(&stage, wire, 1);
            let idle = peak_kb(&endpoint, true)?;
            let mut client = Generator::start(&work, &stage.corpus, &endpoint.addresses, 1)?;
            if name == "not read" {
                proportional_kb(&endpoint);
            }
            client.drain()?;
            expect(&client, 1)?;
            let peak = peak_kb(&endpoint, false)?;
            drop(client);
            let above = (peak as f64 - idle as f64) / 1024.0;
            let met = above <= LARGE_MAX;
            all_met &= met;
            let (who, judged) = (endpoint.who.name(), judged(met));
            let _ = writeln!(
                out,
                "| {who} | {name} | {idle} | {peak} | {above:.2} | <= {LARGE_MAX} | {judged} |"
            );
        }
    }
    Ok((out, all_met))
}

fn judged(met: bool) -> &'static str {
    if met { "met" } else { "**not met**" }
}

/// Starts a proxy. If one value is small, it passes through first, so that the code in use is
/// mapped.
fn started(
    wire: Wire,
    stage: &Stage,
    row: &Row,
    options: &Options,
    folder: &Path,
) -> Result<Endpoint, String> {
    let who = Contestant::one(Peer::Quickack).speaking(wire);
    let endpoint = stage.endpoint(who, row, options, folder, &[])?;
    if row.work.value_len < LARGE_LEN {
        let work = one_get_of_each(stage, wire, 1);
        Generator::start(&work, &stage.corpus, &endpoint.addresses, 2)?.drain()?;
    }
    Ok(endpoint)
}

fn one_get_of_each(stage: &Stage, wire: Wire, connections: usize) -> Workload {
    Workload { connections, wire, mix: Mix::Gets, verify: true, ..stage.work.clone() }
}

fn expect(clients: &Generator, gets: usize) -> Result<(), String> {
    let tally = &clients.tally;
    let right = (tally.gets, tally.misses, tally.errors) == (gets as u64, 0, 0);
    if right { Ok(()) } else { Err(format!("{gets} gets: {} answered", tally.gets)) }
}

/// Returns the proportional memory of all its processes, once it no longer changes.
fn proportional_kb(endpoint: &Endpoint) -> u64 {
    let read = || process::memory(&endpoint.ids()).proportional_kb;
    let (mut last, mut alike) = (read(), 0);
    for _ in 0..LOOKS_MAX {
        std::thread::sleep(PAUSE);
        let now = read();
        alike = if now == last { alike + 1 } else { 0 };
        last = now;
        if alike == ALIKE {
            break;
        }
    }
    last
}

/// Returns the workers' peak memory since the last call with `again`.
fn peak_kb(endpoint: &Endpoint, again: bool) -> Result<u64, String> {
    let mut sum = 0;
    for id in endpoint.serving_ids() {
        if again {
            proportional_kb(endpoint);
            fs::write(format!("/proc/{id}/clear_refs"), "5")
                .map_err(|error| format!("clear_refs of a worker: {error}"))?;
        }
        sum += process::peak_kb(id);
    }
    Ok(sum)
}

const RESTING: &str = "\
10,000 connections open at once, each of which has got one value of 10 KB: PSS of all processes,
with the connections open and after them.

| clients | before KB | with them KB | after KB | bytes a client | bar | |
|---|---|---|---|---|---|---|
";
const LARGE: &str = "\
One get of 1 MB, by a client that reads nothing until the proxy has stopped growing (what it does
not read waits in the kernel, which takes 4 MB), and by one that reads: the worker's peak (VmHWM)
beside what it held before.

| client | its answer is | before KB | peak KB | MB above | bar | |
|---|---|---|---|---|---|---|
";
