//! Everything at once, from a seed: kills, stops, valid and invalid reloads, changes of the number
//! of workers, settings, servers that fail and return, under a load that checks every reply.

use std::time::Duration;

use rustix::process::Signal;
use testkit::load::{Load, Options, Trust};
use testkit::process::{Answer, Memcached, Quickack, freeze, send, wait_until_within};
use testkit::random::Random;

use super::harness::{self, Worker, workers};

#[test]
fn a_little_chaos_before_memcached_mixes_nothing_up() {
    check(1, 25);
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn soak_chaos_before_memcached_mixes_nothing_up() {
    (2..12).for_each(|seed| check(seed, 150));
}

struct Chaos {
    memcacheds: Vec<Memcached>,
    quickack: Quickack,
    random: Random,
    workers: usize,
    timeout: u64,
    /// Workers that were killed, or stopped until they were replaced.
    deaths: u64,
    /// The value of `deaths` when all workers last applied a change.
    deaths_before: u64,
    /// The text of the file, and the text last applied.
    file: String,
    holds: String,
}

const RULES: &[&str] =
    &["hash: md5", "auto_eject_hosts: true", "server_failure_limit: 2", "server_retry_timeout: 50"];
const GLOBAL: &[&str] = &["hang_timeout: 4s"];

fn check(seed: u64, steps: usize) {
    let memcacheds: Vec<Memcached> = (0..3).map(|_| Memcached::start()).collect();
    let text = text(&memcacheds, 3, 2_000);
    let quickack = Quickack::start(super::QUICKACK, &text);
    harness::wait_for_workers(&quickack, 3);
    let mut chaos = Chaos {
        memcacheds,
        quickack,
        random: Random::new(seed),
        workers: 3,
        timeout: 2_000,
        deaths: 0,
        deaths_before: 0,
        file: text.clone(),
        holds: text,
    };
    // Keys move when servers fail, so old values may come back; another client's never.
    let options = Options { trust: Trust::Old, rate: Some(4_000), depth: 2, ..Options::default() };
    let load = harness::load(&chaos.quickack, 60, options);
    let master = chaos.quickack.process.facts();
    for _ in 0..steps {
        chaos.step();
        load.wait_for_requests(150);
    }
    chaos.settle(&load);
    let tally = load.stop();
    let (total, deaths) = (tally.total(), chaos.deaths);
    println!(
        "seed {seed}: {steps} steps, {deaths} deaths, {} KiB; {tally}",
        master.status("VmRSS")
    );
    assert!(tally.connections.iter().all(|counts| counts.lost <= deaths), "{tally}");
    assert_eq!(total.refused, 0, "{tally}");
}

fn text(memcacheds: &[Memcached], workers: usize, timeout: u64) -> String {
    let addresses: Vec<_> = memcacheds.iter().map(|memcached| memcached.address).collect();
    let timeout = format!("timeout: {timeout}");
    harness::text(workers, GLOBAL, &addresses, &[RULES, &[&timeout]].concat())
}

impl Chaos {
    fn step(&mut self) {
        let victims: Vec<u32> = self.quickack.workers().into_values().collect();
        match self.random.below(10) {
            0 | 1 if !victims.is_empty() => {
                let at = self.random.below(victims.len());
                self.deaths += 1;
                send(victims[at], Signal::KILL);
            }
            2 if !victims.is_empty() => {
                // For a moment, or for good: a worker that is stopped too long is replaced.
                let at = self.random.below(victims.len());
                self.deaths += 1;
                freeze(victims[at]);
                let goes_on = self.random.below(2) == 0;
                self.reload_with_a_stopped_worker(goes_on.then_some(victims[at]));
            }
            3 | 4 => {
                self.timeout = 1_500 + self.random.below(1_000) as u64;
                self.reload();
            }
            5 => {
                self.workers = 1 + self.random.below(6);
                self.reload();
            }
            6 => {
                self.file = "alpha:\n  listen: nowhere\n".to_string();
                self.quickack.rewrite(&self.file);
                let answer = self.quickack.admin(&["reload"]);
                assert!(!answer.ok && answer.text.contains("nowhere"), "{answer:?}");
            }
            7 => {
                let word = format!("alpha.timeout_connect={}ms", 300 + self.random.below(500));
                let answer = self.quickack.admin(&["set", &word]);
                self.judge(&answer);
            }
            _ => self.bounce(),
        }
    }

    /// Stops one server and starts it again.
    fn bounce(&mut self) {
        let at = self.random.below(self.memcacheds.len());
        let address = self.memcacheds[at].address;
        self.memcacheds[at].process.signal(Signal::KILL);
        self.memcacheds[at].process.wait_for_end();
        let mut back = None;
        wait_until_within(testkit::process::DEADLINE, "its port is free again", || {
            back = Memcached::start_on(address);
            back.is_some()
        });
        self.memcacheds[at] = back.expect("it was waited for");
    }

    fn reload(&mut self) {
        self.file = text(&self.memcacheds, self.workers, self.timeout);
        self.quickack.rewrite(&self.file);
        let answer = self.quickack.admin(&["reload"]);
        if self.file == self.holds {
            assert!(answer.ok && answer.text.contains("nothing changed"), "{answer:?}");
        }
        self.judge(&answer);
        if answer.ok {
            self.holds.clone_from(&self.file);
        }
    }

    /// If one worker cannot apply a change, none does: a timeout that no other step sets is
    /// refused. If it goes on meanwhile, all do.
    fn reload_with_a_stopped_worker(&mut self, goes_on: Option<u32>) {
        self.file = text(&self.memcacheds, self.workers, 3_000 + self.deaths);
        self.quickack.rewrite(&self.file);
        let Some(worker) = goes_on else {
            let answer = self.quickack.admin(&["reload"]);
            assert!(!answer.ok, "{answer:?}");
            return self.judge(&answer);
        };
        let answer = std::thread::scope(|scope| {
            let reload = scope.spawn(|| self.quickack.admin(&["reload"]));
            send(worker, Signal::CONT);
            reload.join().expect("it answers")
        });
        self.judge(&answer);
        if answer.ok {
            self.holds.clone_from(&self.file);
        }
    }

    /// Judges the answer to a valid change. It is refused for two reasons only, and then by all: a
    /// worker has died since the last change, or does not answer because it is stopped or the
    /// machine is busy.
    fn judge(&mut self, answer: &Answer) {
        if answer.ok {
            let all = answer.text.contains("applied by") && !answer.text.contains("not confirmed");
            if all {
                self.deaths_before = self.deaths;
            }
            return;
        }
        let text = &answer.text;
        let has_died = text.contains("died during the preparation");
        assert!(has_died || text.contains("did not answer in time"), "{answer:?}");
        assert!(!has_died || self.deaths > self.deaths_before, "nobody was killed: {answer:?}");
        assert!(text.contains("nothing has changed"), "{answer:?}");
    }

    /// Waits until all clients are served again, by as many workers as in the file, with one
    /// configuration.
    fn settle(&mut self, load: &Load) {
        let limit = Duration::from_secs(30);
        wait_until_within(limit, "the last reload is applied", || {
            self.quickack.rewrite(&text(&self.memcacheds, self.workers, self.timeout));
            self.quickack.admin(&["reload"]).ok
        });
        wait_until_within(
            limit,
            &format!("all are one: {}", self.quickack.process.stderr_text()),
            || {
                let workers = workers(&self.quickack);
                let mut epochs = workers.values().map(|worker| (worker.epoch, worker.health));
                let first = epochs.next();
                let serving =
                    workers.values().all(Worker::is_serving) && workers.len() == self.workers;
                serving && epochs.all(|epochs| Some(epochs) == first)
            },
        );
        let mut failed = load.tally().total().failed;
        wait_until_within(limit, "nobody is refused any more", || {
            load.wait_for_everybody();
            let before = std::mem::replace(&mut failed, load.tally().total().failed);
            before == failed
        });
    }
}
