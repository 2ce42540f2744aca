//! The master's work while its workers are busy: almost none.

use std::path::Path;

use testkit::process::Facts;

use crate::contest::Stage;
use crate::load::{Generator, now_ns};
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Peer};
use crate::process;
use crate::rows;

const WORKERS: usize = 8;
/// CPU time of the master in a minute of full load.
const CPU_MS_MAX: f64 = 300.0;
const WAKE_UPS_MAX: f64 = 20.0;

/// Loads eight workers for the requested time; returns true if the bars are met.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = format!("## The master beside {WORKERS} busy workers\n\n");
    text.push_str(&page::short_origin(&machine, options));
    let row = rows::busy();
    let stage = Stage::build(&row, options)?;
    let who = Contestant::of(Peer::Quickack, WORKERS);
    let endpoint = stage.endpoint(who, &row, options, folder, &[])?;
    let master = endpoint.master_id().ok_or("only quickack has a master")?;
    let workers = endpoint.serving_ids();
    let addresses = &endpoint.addresses;
    let wakeups = |id| Facts::of([id]).wakeups();
    let mut generator = Generator::start(&stage.work, &stage.corpus, addresses, 1)?;
    generator.run_until(now_ns() + 1_000_000_000)?;

    let begin = (process::cpu_ns(&[master]), process::cpu_ns(&workers), wakeups(master));
    let (from, answered) = (now_ns(), generator.tally.requests());
    generator.run_until(from + (options.minutes.unwrap_or(1.0) * 60e9) as u64)?;
    let end = (process::cpu_ns(&[master]), process::cpu_ns(&workers), wakeups(master));
    let seconds = (now_ns() - from) as f64 / 1e9;
    let answered = generator.tally.requests() - answered;
    generator.drain()?;

    let master_ms = (end.0 - begin.0) as f64 / 1e6;
    let busy = (end.1 - begin.1) as f64 / 1e9 / seconds;
    let wake_ups = (end.2 - begin.2) as f64 / seconds;
    let met = master_ms <= CPU_MS_MAX * seconds / 60.0 && wake_ups <= WAKE_UPS_MAX;
    let judged = if met { "met" } else { "**not met**" };
    text.push_str(&format!(
        "{}: {answered} requests in {seconds:.0} s kept {busy:.2} CPUs busy in the workers. The \
         master ran {master_ms:.1} ms (schedstat; at most {CPU_MS_MAX} ms a minute) and woke up \
         {wake_ups:.1} times a second (voluntary context switches; at most {WAKE_UPS_MAX}): \
         {judged}.\n",
        row.what
    ));
    print!("{text}");
    if options.write {
        page::write(Some("--master"), &text)?;
    }
    Ok(met)
}
