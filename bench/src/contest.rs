//! One row: all peers started afresh, their windows interleaved, disturbed windows repeated.

use std::path::Path;

use crate::load::{Arrival, Corpus, Workload};
use crate::options::Options;
use crate::peers::{Contestant, Endpoint, Limits, Peer, Place};
use crate::process::{self, Cpus};
use crate::relay::Relay;
use crate::rows::{Bar, Row};
use crate::servers::Servers;
use crate::window::{Bench, Lengths, Window};

/// The results of a row.
pub struct Outcome {
    pub row: Row,
    pub rounds: Vec<Round>,
    /// Contestants that failed, with the reason; their windows are discarded.
    pub faults: Vec<(Contestant, String)>,
    /// Windows that were repeated because other processes used the CPUs.
    pub reruns: usize,
    /// Requests a second offered (open loop).
    pub rate: Option<f64>,
}

/// One window of each contestant, close to each other in time.
pub type Round = Vec<Window>;

/// A window in which other processes had more than this share of a CPU is repeated.
pub const ELSEWHERE_MAX: f64 = 0.06;

impl Outcome {
    pub fn windows(&self, who: Contestant) -> Vec<&Window> {
        self.rounds.iter().flatten().filter(|window| window.who == who).collect()
    }

    /// Returns the median over a contestant's windows.
    pub fn median(&self, who: Contestant, figure: impl Fn(&Window) -> f64) -> Option<f64> {
        median(self.windows(who).into_iter().map(figure).collect())
    }

    /// Returns a comparison for each round that has both contestants.
    pub fn compared(&self, bar: &Bar) -> Vec<f64> {
        let of = |round: &Round, who| round.iter().find(|window| window.who == who).cloned();
        let pair = |round| of(round, bar.of).zip(of(round, bar.beside));
        let pairs = self.rounds.iter().filter_map(pair);
        pairs.map(|(ours, theirs)| bar.figure.compare(&ours, &theirs)).collect()
    }
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Servers that hold every key of a row, and the load for them.
pub struct Stage {
    pub servers: Servers,
    pub corpus: Corpus,
    pub work: Workload,
    cpus: Cpus,
    /// Delays in front of the servers, or nothing.
    relays: Vec<Relay>,
}

impl Stage {
    pub fn build(row: &Row, options: &Options) -> Result<Stage, String> {
        process::stay_on(&row.cpus.of_load())?;
        let quickack = options.quickack();
        let servers = Servers::start(row.backend, row.servers, row.cpus, &quickack)?;
        let work = Workload { verify: options.verify, ..row.work.clone() };
        let corpus = Corpus::new(work.key_count, work.value_len);
        if !work.missing {
            servers.fill(&corpus, work.key_count)?;
        }
        let delayed = servers.ports.iter().filter(|_| !row.round_trip.is_zero());
        let relays = delayed.map(|&port| Relay::delaying(port, row.round_trip / 2));
        let relays = relays.collect::<Result<Vec<_>, String>>()?;
        Ok(Stage { servers, corpus, work, cpus: row.cpus, relays })
    }

    /// Starts a proxy in front of the servers. `wrapper` is a command that runs it, usually empty.
    pub fn endpoint(
        &self,
        who: Contestant,
        row: &Row,
        options: &Options,
        folder: &Path,
        wrapper: &[String],
    ) -> Result<Endpoint, String> {
        let quickack = &options.quickack();
        let relays: Vec<u16> = self.relays.iter().map(|relay| relay.port).collect();
        let servers = if relays.is_empty() { &self.servers.ports } else { &relays };
        let Row { backend, merge_gets, cpus, .. } = *row;
        let (limits, added) = (Limits::default(), &options.added);
        let place =
            Place { folder, quickack, servers, backend, merge_gets, cpus, wrapper, limits, added };
        Endpoint::start(who, &place)
    }

    pub fn bench<'a>(&'a self, endpoint: &'a Endpoint) -> Bench<'a> {
        let Stage { servers, corpus, work, cpus, .. } = self;
        Bench { endpoint, servers, corpus, work, cpus: *cpus }
    }
}

/// Runs one row completely.
pub fn run(row: Row, options: &Options, folder: &Path) -> Result<Outcome, String> {
    let all = row.contestants.iter().copied();
    let contestants: Vec<_> = all.filter(|who| options.peers.contains(&who.peer)).collect();
    let (mut endpoints, mut faults) = (Vec::new(), Vec::new());
    let stage = match Stage::build(&row, options) {
        Ok(stage) => stage,
        Err(fault) => {
            let faults = contestants.into_iter().map(|who| (who, fault.clone())).collect();
            return Ok(Outcome { row, rounds: Vec::new(), faults, reruns: 0, rate: None });
        }
    };
    for who in contestants {
        match stage.endpoint(who, &row, options, folder, &[]) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(fault) => faults.push((who, fault)),
        }
    }
    let outcome = Outcome { row, rounds: Vec::new(), faults, reruns: 0, rate: None };
    Contest { outcome, endpoints, stage, options }.run()
}

struct Contest<'a> {
    outcome: Outcome,
    endpoints: Vec<Endpoint>,
    stage: Stage,
    options: &'a Options,
}

impl Contest<'_> {
    fn run(mut self) -> Result<Outcome, String> {
        if let Some(share) = self.outcome.row.load_share {
            let rate = share * self.nutcracker_rate()?;
            self.stage.work.arrival = Arrival::Poisson(rate);
        }
        if let Arrival::Poisson(rate) = self.stage.work.arrival {
            self.outcome.rate = Some(rate);
        }
        for index in 0..self.options.runs {
            let round = self.round(index);
            self.outcome.rounds.push(round);
        }
        let failed = self.outcome.faults.iter().map(|(who, _)| *who).collect::<Vec<_>>();
        for round in &mut self.outcome.rounds {
            round.retain(|window| !failed.contains(&window.who));
        }
        Ok(self.outcome)
    }

    /// Measures the requests a second that nutcracker answers in closed loop, in this run.
    fn nutcracker_rate(&mut self) -> Result<f64, String> {
        let endpoint = self.endpoints.iter().find(|each| each.who.peer == Peer::Nutcracker);
        let endpoint = endpoint.ok_or("this row needs nutcracker among the peers")?;
        let mut rates = Vec::new();
        for seed in 0..3 {
            let (window, reruns) = self.calm_window(endpoint, seed)?;
            self.outcome.reruns += reruns;
            rates.push(window.requests_per_s);
        }
        Ok(median(rates).expect("three windows have a median"))
    }

    /// Runs one window of each contestant; the order changes from round to round.
    fn round(&mut self, index: usize) -> Round {
        let mut round = Round::new();
        let count = self.endpoints.len();
        for at in 0..count {
            let endpoint = &self.endpoints[(index + at) % count];
            if self.outcome.faults.iter().any(|(who, _)| *who == endpoint.who) {
                continue;
            }
            match self.calm_window(endpoint, index as u64) {
                Ok((window, reruns)) => {
                    self.outcome.reruns += reruns;
                    round.push(window);
                }
                Err(fault) => self.outcome.faults.push((endpoint.who, fault)),
            }
        }
        round
    }

    /// Returns the first undisturbed window, or the calmest of a few, and the number discarded.
    fn calm_window(&self, endpoint: &Endpoint, seed: u64) -> Result<(Window, usize), String> {
        let bench = self.stage.bench(endpoint);
        let disturbance = |window: &Window| window.elsewhere[0].max(window.elsewhere[1]);
        let mut best: Option<Window> = None;
        for attempt in 0..self.options.attempts {
            let window = bench.measure(self.options.lengths, seed * 2 + 1)?;
            let calm = disturbance(&window) <= ELSEWHERE_MAX;
            if best.as_ref().is_none_or(|best| disturbance(&window) < disturbance(best)) {
                best = Some(window);
            }
            if calm {
                return Ok((best.expect("just set"), attempt));
            }
        }
        Ok((best.expect("at least one attempt"), self.options.attempts - 1))
    }
}

impl Default for Lengths {
    fn default() -> Self {
        Lengths { warm_up_s: 0.5, measure_s: 1.75 }
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_stands_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(vec![9.0, 1.0, 4.0, 5.0]), Some(4.5));
    }
}
