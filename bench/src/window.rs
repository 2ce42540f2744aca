//! One measured window: warm up, measure, drain, and compare the counts with the servers' own.

use crate::acts::Operator;
use crate::load::{Corpus, Generator, Tally, Workload};
use crate::machine::Witness;
use crate::peers::{Contestant, Endpoint};
use crate::process::{self, Cpus, Memory};
use crate::servers::{Counts, Servers};

/// The lengths of a window's parts.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    pub warm_up_s: f64,
    pub measure_s: f64,
}

/// The results of one window.
#[derive(Clone, Debug)]
pub struct Window {
    pub who: Contestant,
    pub requests_per_s: f64,
    /// CPU of the proxy's serving processes per request.
    pub proxy_us: f64,
    /// CPU of quickack's master in the whole window, milliseconds.
    pub master_ms: f64,
    /// Requests per turn of quickack's workers: the amount of work done together.
    pub per_turn: f64,
    /// Number of operator actions on the proxy.
    pub acts: usize,
    /// CPU of the servers per request.
    pub servers_us: f64,
    /// CPU of the load generator per request.
    pub load_us: f64,
    pub latency: Percentiles,
    /// Measured from the write instead of the due time; differs only in open loop.
    pub service: Percentiles,
    pub memory: Memory,
    pub misses: u64,
    /// All requests answered, including before and after the measured time.
    pub answered: u64,
    /// Requests that were due and not sent when the window ended (open loop).
    pub waiting: usize,
    /// The share of the proxy's and the load's CPU used by other processes.
    pub elsewhere: [f64; 2],
    /// False if the servers have no counters to compare with.
    pub counts_checked: bool,
}

/// Microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Percentiles {
    fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Percentiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// One peer with one kind of load.
pub struct Bench<'a> {
    pub endpoint: &'a Endpoint,
    pub servers: &'a Servers,
    pub corpus: &'a Corpus,
    pub work: &'a Workload,
    pub cpus: Cpus,
}

/// Readings at the start and the end of the measured time.
struct Border {
    at_ns: u64,
    proxy_ns: u64,
    master_ns: u64,
    servers_ns: u64,
    load_ns: u64,
}

impl Bench<'_> {
    /// Measures a window. `seed` selects the keys: the same for all peers of a round.
    pub fn measure(&self, lengths: Lengths, seed: u64) -> Result<Window, String> {
        let (proxy_ids, server_ids) = (self.endpoint.ids(), self.servers.ids());
        let before = self.servers.counts()?;
        // Counted over the whole window, because a query in between would delay the load.
        let turns = self.turns()?;
        let addresses = &self.endpoint.addresses;
        let work = Workload { wire: self.endpoint.who.wire, ..self.work.clone() };
        let mut generator = Generator::start(&work, self.corpus, addresses, seed)?;
        generator.run_until(later(lengths.warm_up_s))?;

        let Contestant { act, count, .. } = self.endpoint.who;
        let operator = Operator::start(act, self.endpoint.admin.as_ref(), count)?;
        let witness = Witness::start(&proxy_ids, &server_ids, self.cpus);
        let begin = self.border(&server_ids);
        generator.tally.recording = true;
        generator.run_until(later(lengths.measure_s))?;
        generator.tally.recording = false;
        let end = self.border(&server_ids);
        let elsewhere = witness.elsewhere();
        let memory = process::memory(&proxy_ids);
        let waiting = generator.waiting();
        generator.drain()?;
        let turns = self.turns()?.saturating_sub(turns);
        let acts = operator.map_or(Ok(0), Operator::stop)?;

        let counts_checked = self.check_counts(before, &generator.tally)?;
        let tally = &generator.tally;
        let per_request_us = |ns: u64| ns as f64 / 1000.0 / tally.recorded.max(1) as f64;
        let latency = Percentiles::of(&tally.latency_ns);
        let service =
            if tally.service_ns.is_empty() { latency } else { Percentiles::of(&tally.service_ns) };
        Ok(Window {
            who: self.endpoint.who,
            requests_per_s: tally.recorded as f64 / ((end.at_ns - begin.at_ns) as f64 / 1e9),
            // Workers that have ended meanwhile are not counted.
            proxy_us: per_request_us(end.proxy_ns.saturating_sub(begin.proxy_ns)),
            master_ms: (end.master_ns - begin.master_ns) as f64 / 1e6,
            per_turn: tally.requests() as f64 / turns as f64,
            acts,
            servers_us: per_request_us(end.servers_ns - begin.servers_ns),
            load_us: per_request_us(end.load_ns - begin.load_ns),
            latency,
            service,
            memory,
            misses: tally.misses,
            answered: tally.requests(),
            waiting,
            elsewhere,
            counts_checked,
        })
    }

    fn border(&self, server_ids: &[u32]) -> Border {
        let master = self.endpoint.master_id();
        Border {
            at_ns: crate::load::now_ns(),
            proxy_ns: process::cpu_ns(&self.endpoint.serving_ids()),
            master_ns: process::cpu_ns(master.as_slice()),
            servers_ns: process::cpu_ns(server_ids),
            load_ns: process::cpu_ns(&[std::process::id()]),
        }
    }

    /// Returns the number of turns of quickack's workers.
    fn turns(&self) -> Result<u64, String> {
        let Some(admin) = &self.endpoint.admin else { return Ok(0) };
        Ok(admin.workers()?.iter().map(|worker| worker.turns).sum())
    }

    /// Checks that the servers' counters equal the generator's.
    fn check_counts(&self, before: Option<Counts>, tally: &Tally) -> Result<bool, String> {
        if let Some(error) = &tally.first_error {
            return Err(format!("{} requests failed, the first with: {error}", tally.errors));
        }
        if self.work.missing && tally.misses != tally.get_keys {
            return Err("a key was found that nobody has stored".into());
        }
        let Some((before, after)) = before.zip(self.servers.counts()?) else { return Ok(false) };
        let served =
            Counts { get_keys: after.get_keys - before.get_keys, sets: after.sets - before.sets };
        let answered = Counts { get_keys: tally.get_keys, sets: tally.sets };
        if served != answered {
            return Err(format!("counts disagree: servers {served:?}, generator {answered:?}"));
        }
        Ok(true)
    }
}

fn later(seconds: f64) -> u64 {
    crate::load::now_ns() + (seconds * 1e9) as u64
}
