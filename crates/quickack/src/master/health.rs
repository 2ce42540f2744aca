//! Which servers are out of their rings: decided here, once, for all workers. Workers report what
//! they see; the jury weighs it; the board's health epoch makes all of them change at once.

use std::collections::BTreeMap;
use std::time::Instant;

use proxy::jury::{Jury, Verdict};
use proxy::plan::Plan;

use super::{Master, Running};
use crate::log::Level;

/// The jury, and what it calls those it judges.
pub struct Health {
    jury: Jury,
    names: BTreeMap<u32, String>,
}

impl Health {
    pub fn new(running: &Running) -> Health {
        let plan = running.plan();
        let mut health = Health { jury: Jury::default(), names: BTreeMap::new() };
        health.follow(&plan);
        health
    }

    fn follow(&mut self, plan: &Plan) -> Vec<Verdict> {
        self.names.clear();
        for pool in &plan.pools {
            for server in &pool.servers {
                let name = format!("server {} of pool {}", server.label, pool.name);
                self.names.insert(server.row, name);
            }
        }
        self.jury.install(&plan.pools)
    }
}

impl Master {
    pub(super) fn note_failure(&mut self, number: usize, server: u32, failures: u32, why: &str) {
        if let Some(verdict) = self.health.jury.failed(number, server, failures) {
            self.carry_out(&[verdict], why);
        }
    }

    pub(super) fn note_answer(&mut self, number: usize, server: u32) {
        if let Some(verdict) = self.health.jury.answered(number, server) {
            self.carry_out(&[verdict], "it answers");
        }
    }

    /// What a dead worker had seen counts no more.
    pub(super) fn forget_reports(&mut self, number: usize) {
        self.health.jury.forget(number);
    }

    /// A configuration is about to hold: who may not be out by it comes back with it.
    pub(super) fn prepare_health(&mut self, next: &Running) {
        let verdicts = self.health.follow(&next.plan());
        self.carry_out(&verdicts, "the configuration changed");
    }

    fn carry_out(&mut self, verdicts: &[Verdict], why: &str) {
        if verdicts.is_empty() {
            return;
        }
        let changes: Vec<(u32, bool)> =
            verdicts.iter().map(|verdict| (verdict.server, verdict.ejected)).collect();
        self.board.set_ejected(&changes);
        let now = Instant::now();
        for verdict in verdicts {
            let name = self.health.names.get(&verdict.server).map_or("a server", String::as_str);
            let book = self.board.book();
            let sheet = book.sheet(self.board.master_slot());
            let (level, text) = if verdict.ejected {
                sheet.counters(verdict.server).add(metrics::Server::Ejections, 1);
                (Level::Error, format!("{name} is ejected ({why}); its keys go to the others"))
            } else {
                (Level::Notice, format!("{name} is back in its ring ({why})"))
            };
            self.log.say_at(level, &text, now);
        }
        // Sleepers need not be woken: they look before they read anything.
    }

    pub(super) fn is_ejected(&self, row: u32) -> bool {
        self.board.is_ejected(row)
    }
}
