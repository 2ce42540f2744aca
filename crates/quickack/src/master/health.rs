//! Decides once, for all workers, which servers are out of their rings. Workers report what
//! they see; the outlier detector weighs it; the scoreboard's health epoch makes all of them change
//! at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proxy::outliers::{Decision, OutlierDetector};
use proxy::plan::{AdminState, Plan};

use super::say_of;
use super::{Master, Running};
use crate::ipc::ToWorker;
use crate::log::{About, Clocks, Level};
use crate::scoreboard::Ejection;

/// The outlier detector, and what it calls those it judges.
pub struct Health {
    outliers: OutlierDetector,
    names: BTreeMap<u32, About>,
    /// The last failure of servers that have not answered since.
    failures: BTreeMap<u32, Failure>,
    /// Why servers are out of their rings.
    ejected_for: BTreeMap<u32, String>,
    /// Why servers took no further connection of late.
    refusals: BTreeMap<u32, Refusal>,
    /// When each server was given the state that it has by hand, in seconds since 1970.
    admin_since: BTreeMap<u32, (AdminState, u64)>,
}

/// What a server fails with, and when it began to, in seconds since 1970.
pub struct Failure {
    pub why: String,
    pub since: u64,
}

/// Why a server took no further connection, and when it was last said.
struct Refusal {
    why: String,
    at: Instant,
}

impl Refusal {
    /// There may be room again if nobody has tried for a while.
    fn words(&self, ago: Duration) -> String {
        let tried = match ago.as_secs() {
            0 | 1 => String::new(),
            ago => format!(", as last said {ago} s ago"),
        };
        format!("no further connection{tried}: {}", self.why)
    }
}

/// A refusal that was not said again for so long is over: workers say it once a second, as long as
/// anybody wants such a connection.
const REFUSAL_LASTS: Duration = Duration::from_secs(10);

impl Health {
    pub fn new(running: &Running) -> Health {
        let plan = running.plan();
        let mut health = Health {
            outliers: OutlierDetector::default(),
            names: BTreeMap::new(),
            failures: BTreeMap::new(),
            ejected_for: BTreeMap::new(),
            refusals: BTreeMap::new(),
            admin_since: BTreeMap::new(),
        };
        health.follow(&plan);
        health
    }

    /// Why a server fails, if it does.
    pub fn failure(&self, server: u32) -> Option<&Failure> {
        self.failures.get(&server)
    }

    pub(super) fn note_refusal(&mut self, server: u32, why: String) {
        if self.names.contains_key(&server) {
            self.refusals.insert(server, Refusal { why, at: Instant::now() });
        }
    }

    /// Why a server that is up takes no further connection, if it does not.
    pub fn refusal(&self, server: u32) -> Option<String> {
        let refusal = self.refusals.get(&server)?;
        let ago = refusal.at.elapsed();
        (ago < REFUSAL_LASTS).then(|| refusal.words(ago))
    }

    /// Why servers failed last, by their ids.
    pub fn failures(&self) -> BTreeMap<u32, String> {
        self.failures.iter().map(|(id, failure)| (*id, failure.why.clone())).collect()
    }

    /// Since when a server has the state that it was given by hand, in seconds since 1970.
    pub fn admin_since(&self, server: u32) -> u64 {
        self.admin_since.get(&server).map_or(0, |(_, since)| *since)
    }

    /// The reports of a dead worker count no more.
    pub fn forget_worker(&mut self, number: usize) {
        self.outliers.forget_worker(number);
    }

    fn follow(&mut self, plan: &Plan) -> Vec<Decision> {
        self.names.clear();
        let before = std::mem::take(&mut self.admin_since);
        let now = Clocks::read().unix_us / 1_000_000;
        for pool in &plan.pools {
            for server in &pool.servers {
                let since = before.get(&server.id).filter(|(state, _)| *state == server.admin);
                let since = since.map_or(now, |(_, since)| *since);
                self.admin_since.insert(server.id, (server.admin, since));
                if server.admin == AdminState::Maint {
                    self.failures.remove(&server.id);
                }
                self.names.insert(server.id, About::server(&server.label, &pool.name));
            }
        }
        self.failures.retain(|id, _| self.names.contains_key(id));
        self.refusals.retain(|id, _| self.names.contains_key(id));
        self.ejected_for.retain(|id, _| self.names.contains_key(id));
        self.outliers.install(plan)
    }
}

impl Master {
    pub(super) fn note_failure(&mut self, number: usize, server: u32, failures: u32, why: &str) {
        if self.health.names.contains_key(&server) {
            let since = Clocks::read().unix_us / 1_000_000;
            let failure = Failure { why: String::new(), since };
            self.health.failures.entry(server).or_insert(failure).why = why.to_string();
        }
        if let Some(decision) = self.health.outliers.failed(number, server, failures) {
            self.carry_out(&[decision], why);
        }
    }

    pub(super) fn note_answer(&mut self, number: usize, server: u32, probe: bool) {
        self.health.failures.remove(&server);
        if let Some(decision) = self.health.outliers.answered(number, server, probe) {
            self.carry_out(&[decision], "it answers");
        }
    }

    /// A worker gets no answer from a server: the others ask on the links that they have.
    pub(super) fn ask_others(&mut self, number: usize, server: u32) {
        let others = self.slots.iter_mut().enumerate().filter(|(at, _)| *at != number);
        let others = others.filter_map(|(_, slot)| slot.worker.as_mut());
        others.for_each(|worker| worker.tell(ToWorker::AskServer { server }));
    }

    /// A configuration is about to hold: who may not be out by it comes back first.
    pub(super) fn prepare_health(&mut self, next: &Running) {
        let decisions = self.health.follow(&next.plan());
        self.carry_out(&decisions, "the configuration changed");
    }

    fn carry_out(&mut self, decisions: &[Decision], why: &str) {
        if decisions.is_empty() {
            return;
        }
        let change = |decision: &Decision| match *decision {
            Decision::Eject(server) => Ejection { server, ejected: true },
            Decision::Return(server) => Ejection { server, ejected: false },
        };
        let changes: Vec<Ejection> = decisions.iter().map(change).collect();
        self.scoreboard.set_ejected(&changes);
        let metrics = self.scoreboard.master_metrics();
        for Ejection { server, ejected } in changes {
            let name = self.health.names.get(&server).cloned().unwrap_or_default();
            let counters = metrics.counters(server);
            let (level, event, text) = if ejected {
                self.note_ejected(server, why);
                counters.add(metrics::ServerCounter::Ejections, 1);
                counters.set(metrics::ServerCounter::EjectedAt, Clocks::read().unix_us);
                let text = format!("{name} is ejected ({why}); its keys move to the others");
                (Level::Error, "server_ejected", text)
            } else {
                self.health.ejected_for.remove(&server);
                counters.set(metrics::ServerCounter::EjectedAt, 0);
                (Level::Notice, "server_returned", format!("{name} is back ({why})"))
            };
            say_of(&mut self.log, level, event, name, &text);
        }
        // Sleepers need not be woken: they look before they read anything.
    }

    /// Notes why a server is out, and tells all workers: not each has met its failure.
    fn note_ejected(&mut self, server: u32, why: &str) {
        self.health.ejected_for.insert(server, why.to_string());
        for worker in self.slots.iter_mut().filter_map(|slot| slot.worker.as_mut()) {
            worker.tell(ToWorker::ServerEjected { server, why: why.to_string() });
        }
    }

    /// Tells a worker that has begun to serve why servers are out.
    pub(super) fn tell_new_worker(&mut self, number: usize) {
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        for (server, why) in &self.health.ejected_for {
            worker.tell(ToWorker::ServerEjected { server: *server, why: why.clone() });
        }
    }

    /// The names of the servers that are out.
    pub(super) fn ejected_servers(&self) -> Vec<String> {
        let names = self.health.names.iter().filter(|(id, _)| self.scoreboard.is_ejected(**id));
        names.map(|(_, name)| name.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_nobody_has_met_for_a_while_has_its_age() {
        let refusal = Refusal { why: "it is full".to_string(), at: Instant::now() };
        let words = |ago| refusal.words(Duration::from_secs(ago));
        assert_eq!(words(1), "no further connection: it is full");
        assert_eq!(words(7), "no further connection, as last said 7 s ago: it is full");
    }
}
