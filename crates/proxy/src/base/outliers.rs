//! Outlier detection: one decision for all workers on the servers that leave the ring, made from
//! the reports of each worker.
//!
//! ```text
//!   worker 0 ─Failed(2)──▶ ┌────────┐
//!   worker 1 ─Failed(1)──▶ │ decide │ ─Eject─▶ every worker's `set_ejected`
//!   worker 2 ─Answered───▶ └────────┘ ─Return─▶
//! ```
//!
//! It is as pure as the data plane: the program's master holds one, and so does the simulator. Each
//! worker counts consecutive failures for itself. A server is ejected when their sum reaches the
//! pool's limit, while fewer than `max_ejected` servers of its pool are out. It comes back when a
//! probe of any worker is answered. A server in maintenance is judged by nobody, and counts as out.

use std::collections::BTreeMap;

use super::plan::{AdminState, OnFailure, Plan};
use crate::Report;

/// A decision for all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The server with this id leaves the ring.
    Eject(u32),
    /// The server with this id comes back into the ring.
    Return(u32),
}

/// All pools whose servers may be ejected.
#[derive(Clone, Debug, Default)]
pub struct OutlierDetector {
    /// By pool id.
    pools: BTreeMap<u32, Rules>,
    /// By server id.
    records: BTreeMap<u32, Record>,
    /// Counts ejections, so that the oldest is known.
    ejections: u64,
}

/// The rules in a pool's plan.
#[derive(Clone, Copy, Debug)]
struct Rules {
    failure_limit: u32,
    ejected_max: usize,
}

/// The record of one server.
#[derive(Clone, Debug)]
struct Record {
    pool: u32,
    /// Consecutive failures, by the worker that met them.
    failures: BTreeMap<usize, u32>,
    /// The number of the ejection, if it is out.
    out: Option<u64>,
}

impl OutlierDetector {
    pub fn new(plan: &Plan) -> OutlierDetector {
        let mut outliers = OutlierDetector::default();
        outliers.install(plan);
        outliers
    }

    /// Applies another plan. Servers that are not in it are forgotten. Servers that may not be out
    /// any more come back, beginning with the last ejected.
    pub fn install(&mut self, plan: &Plan) -> Vec<Decision> {
        let before = std::mem::take(&mut self.records);
        self.pools.clear();
        let mut decisions = Vec::new();
        for pool in &plan.pools {
            let moves_keys = pool.on_failure == OnFailure::Eject;
            let mut in_maintenance = 0;
            for server in &pool.servers {
                let ejects = moves_keys && server.admin != AdminState::Maint;
                in_maintenance += usize::from(moves_keys && !ejects);
                let old = before.get(&server.id).filter(|record| record.pool == pool.id);
                let record = Record { pool: pool.id, failures: BTreeMap::new(), out: None };
                let record = old.cloned().unwrap_or(record);
                match record.out {
                    Some(_) if !ejects => decisions.push(Decision::Return(server.id)),
                    _ if ejects => drop(self.records.insert(server.id, record)),
                    _ => {}
                }
            }
            if moves_keys {
                let rules = Rules {
                    failure_limit: pool.server_failure_limit,
                    ejected_max: pool.ejected_max().saturating_sub(in_maintenance),
                };
                self.pools.insert(pool.id, rules);
                self.let_back(pool.id, rules.ejected_max, &mut decisions);
            }
        }
        decisions
    }

    /// Takes a worker's report.
    pub fn hear(&mut self, worker: usize, report: &Report) -> Option<Decision> {
        match *report {
            Report::Failed { server, failures, .. } => self.failed(worker, server, failures),
            Report::Answered { server, probe } => self.answered(worker, server, probe),
            Report::Doubted { .. } => None,
        }
    }

    /// Takes the number of consecutive failures at a worker.
    pub fn failed(&mut self, worker: usize, server: u32, failures: u32) -> Option<Decision> {
        let record = self.records.get_mut(&server)?;
        record.failures.insert(worker, failures);
        let (pool, is_out) = (record.pool, record.out.is_some());
        let sum = record.failures.values().fold(0, |sum: u32, one| sum.saturating_add(*one));
        let rules = self.pools[&pool];
        if is_out || sum < rules.failure_limit || self.count_out(pool) >= rules.ejected_max {
            return None;
        }
        self.ejections += 1;
        let number = self.ejections;
        self.records.get_mut(&server)?.out = Some(number);
        Some(Decision::Eject(server))
    }

    /// Notes that a request or a probe was answered. An answer to a request that was sent before
    /// the ejection brings no server back.
    pub fn answered(&mut self, worker: usize, server: u32, probe: bool) -> Option<Decision> {
        let record = self.records.get_mut(&server)?;
        if record.out.is_none() {
            record.failures.remove(&worker);
            return None;
        }
        if !probe {
            return None;
        }
        record.failures.clear();
        record.out = None;
        Some(Decision::Return(server))
    }

    /// Forgets the reports of a worker that is gone: its successor has met no failure yet.
    pub fn forget_worker(&mut self, worker: usize) {
        for record in self.records.values_mut() {
            record.failures.remove(&worker);
        }
    }

    pub fn is_out(&self, server: u32) -> bool {
        self.records.get(&server).is_some_and(|record| record.out.is_some())
    }

    /// Lists the ids of all servers that are out.
    pub fn out(&self) -> impl Iterator<Item = u32> {
        self.records.iter().filter(|(_, record)| record.out.is_some()).map(|(id, _)| *id)
    }

    fn count_out(&self, pool: u32) -> usize {
        let is_out = |record: &&Record| record.pool == pool && record.out.is_some();
        self.records.values().filter(is_out).count()
    }

    /// Lets the last ejected servers of a pool come back until no more than `ejected_max` are out.
    fn let_back(&mut self, pool: u32, ejected_max: usize, decisions: &mut Vec<Decision>) {
        while self.count_out(pool) > ejected_max {
            let of_pool = self.records.iter_mut().filter(|(_, record)| record.pool == pool);
            let last = of_pool.max_by_key(|(_, record)| record.out);
            let (id, record) = last.expect("somebody is out");
            record.out = None;
            record.failures.clear();
            decisions.push(Decision::Return(*id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{PoolPlan, ServerPlan};
    use super::*;

    /// Makes pools of so many servers, with a limit of two failures. Pool 0 has id 1, its servers
    /// 2, 3...
    fn plan(counts: &[usize]) -> Plan {
        let server = |at| ServerPlan::new(&format!("s{at}"), &format!("s{at}"), 1);
        let pool = |count: &usize| {
            let servers = (0..*count).map(server).collect();
            let mut pool = PoolPlan::new("pool", proto::PROTOCOLS[0], servers);
            pool.on_failure = OnFailure::Eject;
            pool
        };
        Plan::new(counts.iter().map(pool).collect())
    }

    #[test]
    fn a_server_in_maintenance_is_judged_by_nobody_and_counts_as_out() {
        let mut plan = plan(&[4]);
        let mut outliers = OutlierDetector::new(&plan);
        assert_eq!(outliers.failed(0, 2, 2), Some(Decision::Eject(2)));
        plan.pools[0].servers[0].admin = AdminState::Maint;
        assert_eq!(outliers.install(&plan), [Decision::Return(2)]);
        assert_eq!(outliers.failed(0, 2, 9), None);
        assert_eq!(outliers.failed(0, 3, 2), Some(Decision::Eject(3)));
        assert_eq!(outliers.failed(0, 4, 2), None, "two of four are out");
        plan.pools[0].servers[0].admin = AdminState::Drain;
        assert_eq!(outliers.install(&plan), []);
        assert_eq!(outliers.failed(0, 4, 2), Some(Decision::Eject(4)));
    }

    #[test]
    fn the_failures_of_all_workers_count_together() {
        let mut outliers = OutlierDetector::new(&plan(&[4]));
        assert_eq!(outliers.failed(0, 2, 1), None);
        assert_eq!(outliers.failed(0, 2, 1), None, "the same failure told twice is one");
        assert_eq!(outliers.failed(1, 2, 1), Some(Decision::Eject(2)));
        assert_eq!(outliers.failed(1, 2, 2), None, "out is out");
        assert_eq!(outliers.out().collect::<Vec<_>>(), [2]);
        assert_eq!(outliers.answered(3, 2, false), None, "asked before it was ejected");
        assert_eq!(outliers.answered(3, 2, true), Some(Decision::Return(2)));
        assert!(!outliers.is_out(2));
        assert_eq!(outliers.failed(1, 2, 1), None, "all is forgotten");
    }

    #[test]
    fn a_report_is_taken_for_what_it_says() {
        let mut outliers = OutlierDetector::new(&plan(&[4]));
        let failed = |failures| Report::Failed { server: 2, failures, why: "some reason".into() };
        let answered = |probe| Report::Answered { server: 2, probe };
        assert_eq!(outliers.hear(0, &failed(1)), None);
        assert_eq!(outliers.hear(1, &failed(1)), Some(Decision::Eject(2)));
        assert_eq!(outliers.hear(0, &answered(false)), None);
        assert_eq!(outliers.hear(0, &answered(true)), Some(Decision::Return(2)));
    }

    #[test]
    fn an_answer_is_the_end_of_a_request_of_failures() {
        let mut outliers = OutlierDetector::new(&plan(&[2]));
        outliers.failed(0, 2, 1);
        assert_eq!(outliers.answered(0, 2, false), None);
        assert_eq!(outliers.failed(1, 2, 1), None);
        assert_eq!(outliers.failed(1, 2, 2), Some(Decision::Eject(2)));
    }

    #[test]
    fn a_worker_that_dies_takes_its_reports_with_it() {
        let mut outliers = OutlierDetector::new(&plan(&[2]));
        outliers.failed(0, 2, 1);
        outliers.forget_worker(0);
        assert_eq!(outliers.failed(1, 2, 1), None);
        assert_eq!(outliers.failed(0, 2, 1), Some(Decision::Eject(2)));
    }

    #[test]
    fn half_the_pool_stays_and_a_single_server_may_go() {
        for (servers, most) in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)] {
            let mut outliers = OutlierDetector::new(&plan(&[servers, 1]));
            for id in 2..2 + servers as u32 {
                outliers.failed(0, id, 9);
            }
            assert_eq!(outliers.out().count(), most, "of {servers}");
            let other = 3 + servers as u32;
            assert_eq!(outliers.failed(0, other, 2), Some(Decision::Eject(other)), "another pool");
        }
        let mut bounded = plan(&[4]);
        bounded.pools[0].max_ejected = Some(0);
        assert_eq!(OutlierDetector::new(&bounded).failed(0, 2, 9), None);
    }

    #[test]
    fn a_plan_with_less_room_lets_the_last_ejected_back() {
        let mut outliers = OutlierDetector::new(&plan(&[4]));
        outliers.failed(0, 4, 2);
        outliers.failed(0, 2, 2);
        let mut next = plan(&[4]);
        assert_eq!(outliers.install(&next), [], "the same again");
        assert_eq!(outliers.out().collect::<Vec<_>>(), [2, 4]);
        next.pools[0].servers.pop();
        assert_eq!(outliers.install(&next), [Decision::Return(2)]);
        next.pools[0].on_failure = OnFailure::FailFast;
        assert_eq!(outliers.install(&next), [Decision::Return(4)]);
        assert_eq!(outliers.failed(0, 2, 9), None, "nobody is ejected there");
        // A server that has left the plan has no record any more.
        let mut outliers = OutlierDetector::new(&plan(&[4]));
        outliers.failed(0, 2, 2);
        let mut next = plan(&[4]);
        next.pools[0].servers.remove(0);
        assert_eq!((outliers.install(&next), outliers.out().count()), (vec![], 0));
    }
}
