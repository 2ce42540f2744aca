//! The master's reports about itself and its workers.

use std::collections::BTreeSet;

use serde_json::json;

use super::workers::{State, Worker};
use super::{Master, Running, reader, say, say_of};
use crate::log::{Clocks, Level};
use crate::stats::{self, Facts, Snapshot, WorkerFacts};

impl Master {
    /// The first lines of the log.
    pub(super) fn announce(&mut self, accept: &str) {
        self.scoreboard.registry().set_debug(self.log.is_debug());
        let mut lines = Vec::new();
        let mut said = BTreeSet::new();
        for entry in &self.running.listeners {
            let bound = &self.listeners.find(entry.id).bound;
            if said.insert((bound.clone(), entry.pool)) {
                let pool = &self.running.config.plan.pools[entry.pool].name;
                lines.push(format!("listening on {bound} (pool {pool})"));
            }
        }
        let workers = self.running.config.process.worker_count();
        lines.push(format!("workers: {workers}; {accept}"));
        if let Some(address) = self.stats_port.address() {
            lines.push(format!("statistics on {address}"));
        }
        if let Some(address) = self.http.bound() {
            lines.push(format!("HTTP on {address}"));
        }
        if let Some(path) = self.admin.path() {
            lines.push(format!("admin socket: {}", path.display()));
        }
        for line in lines {
            say(&mut self.log, Level::Notice, "started", &line);
        }
        let Running { config, resolved, addresses, .. } = &self.running;
        for (about, text) in reader::unresolved(config, resolved, addresses) {
            say_of(&mut self.log, Level::Warning, "name_unresolved", about, &text);
        }
        for text in self.names.lists.troubles(&self.running.config) {
            say(&mut self.log, Level::Warning, "list_failed", &text);
        }
        if let Some(welcome) = self.welcome() {
            crate::log::line(Level::Notice, &welcome);
        }
    }

    /// How to try what runs without a configuration.
    fn welcome(&self) -> Option<String> {
        if self.running.config.text != crate::config::DEFAULT_TEXT {
            return None;
        }
        let address = &self.listeners.find(self.running.listeners.first()?.id).bound;
        let (host, port) = address.rsplit_once(':')?;
        Some(format!(
            "it serves an embedded cache; try it from another terminal:\n\n    \
             printf 'set greeting 0 0 5\\r\\nhello\\r\\nget greeting\\r\\nquit\\r\\n' \
             | nc {host} {port}\n\n\
             quickack: in front of your own servers: quickack run -c nutcracker.yml; \
             to stop: Ctrl-C"
        ))
    }

    /// `quickack workers`.
    pub(super) fn workers_text(&self, as_json: bool) -> String {
        let epoch = self.running.epoch;
        let health = self.scoreboard.health_epoch();
        let workers = self.slots.iter().filter_map(|slot| {
            let worker = slot.worker.as_ref()?;
            let installed = self.scoreboard.installed(slot.number);
            Some(json!({
                "worker": slot.number,
                "pid": worker.pid(),
                "state": state(worker.state),
                "clients": self.scoreboard.connections(slot.number),
                "turns": self.scoreboard.beats(slot.number),
                "config_epoch": installed.config,
                "health_epoch": installed.health,
                "uptime_s": worker.started.elapsed().as_secs(),
                "deaths": slot.deaths,
            }))
        });
        let workers: Vec<serde_json::Value> = workers.collect();
        let ejected: Vec<String> = self.ejected_servers();
        let problems = self.worker_problems();
        if as_json {
            let all = json!({
                "master": {
                    "pid": std::process::id(),
                    "uptime_s": self.started.elapsed().as_secs(),
                    "config_epoch": epoch,
                    "health_epoch": health,
                    "ejected": ejected,
                    "caches": self.caches.pids(),
                    "http": self.http.pid(),
                    "log_writer": self.access_log.pid(),
                    "resolver": self.names.pid(),
                },
                "workers": workers,
                "problems": problems,
            });
            return all.to_string();
        }
        let mut text = format!(
            "master {}, up {} s, configuration epoch {epoch}, health epoch {health}\n",
            std::process::id(),
            self.started.elapsed().as_secs()
        );
        text += &worker_table(&workers);
        for (name, pid) in self.helpers() {
            text += &format!("{name:>6}  {pid:>7}\n");
        }
        for problem in problems {
            text += &format!("{problem}\n");
        }
        for server in ejected {
            text += &format!("ejected: {server}\n");
        }
        text
    }

    /// The processes beside the workers.
    fn helpers(&self) -> Vec<(&'static str, u32)> {
        let caches = self.caches.pids().into_iter().map(|pid| ("cache", pid));
        let others = [
            ("http", self.http.pid()),
            ("log", self.access_log.pid()),
            ("names", self.names.pid()),
        ];
        caches.chain(others.into_iter().filter_map(|(name, pid)| Some((name, pid?)))).collect()
    }

    /// `quickack config`.
    pub(super) fn config_text(&self, diff: bool, json: bool) -> String {
        let config = &self.running.config;
        match (diff, json) {
            (false, false) => config.running_text(),
            (false, true) => config.running_json(),
            (true, false) => config.diff_text(),
            (true, true) => config.diff_json(),
        }
    }

    /// `quickack stats`.
    pub(super) fn stats_text(&self, as_json: bool) -> String {
        let snapshot = self.snapshot();
        if as_json { snapshot.json() } else { snapshot.text() }
    }

    /// Returns the answer of the `stats:` port.
    pub(super) fn twemproxy_stats(&self) -> String {
        self.snapshot().twemproxy_json()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let wanted = self.running.config.process.worker_count();
        let workers = self.slots.iter().map(|slot| WorkerFacts {
            slot: slot.number,
            pid: slot.worker.as_ref().map(Worker::pid),
            state: match &slot.worker {
                Some(worker) => state(worker.state).to_string(),
                None if slot.deaths > 0 && slot.number < wanted => "dead".to_string(),
                None => "vacant".to_string(),
            },
            restarts: slot.deaths,
        });
        let unix_us = Clocks::read().unix_us;
        let facts = Facts {
            release: env!("CARGO_PKG_VERSION").to_string(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            unix_s: unix_us / 1_000_000,
            uptime_s: self.started.elapsed().as_secs(),
            epoch: self.running.epoch,
            memory_max: self.running.config.plan.memory_max as u64,
            reloads: self.reloads.clone(),
            workers: workers.collect(),
            names: self.names.counts,
            lists: self.names.lists.troubles(&self.running.config),
            unresolved: self.running.unresolved(),
            failures: self.health.failures(),
            problems: self.problems(),
        };
        let measured = (self.scoreboard.registry(), &self.seconds.windows);
        stats::take(measured, &self.running.plan(), facts, &|id| {
            stats::health(&self.scoreboard, id)
        })
    }
}

/// Returns the table of `quickack workers`.
fn worker_table(workers: &[serde_json::Value]) -> String {
    let mut text =
        String::from("\nWORKER      PID  STATE     CLIENTS  EPOCH  HEALTH  UPTIME  DEATHS\n");
    for worker in workers {
        let word = |name: &str| match &worker[name] {
            serde_json::Value::String(word) => word.clone(),
            other => other.to_string(),
        };
        text += &format!(
            "{:>6}  {:>7}  {:8}  {:>7}  {:>5}  {:>6}  {:>5}s  {:>6}\n",
            word("worker"),
            word("pid"),
            word("state"),
            word("clients"),
            word("config_epoch"),
            word("health_epoch"),
            word("uptime_s"),
            word("deaths")
        );
    }
    text
}

fn state(state: State) -> &'static str {
    match state {
        State::Starting => "starting",
        State::Serving => "serving",
        State::Leaving => "leaving",
        State::Hung => "hung",
    }
}

/// Lines as one for the log, without the excerpts of the file, which are for whoever asked.
pub fn one_line(text: &str) -> String {
    let is_excerpt = |line: &str| line.split_whitespace().take(2).any(|word| word == "|");
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !is_excerpt(line));
    lines.map(str::trim).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line_of_the_log_without_its_excerpts() {
        let report = "error: no `servers`\n  --> a.yml:3:1\n   |\n 3 | alpha:\n   | ^^^^^\n\n\
                      a.yml: invalid";
        assert_eq!(one_line(report), "error: no `servers`; --> a.yml:3:1; a.yml: invalid");
        assert_eq!(one_line("this | and | that"), "");
        assert_eq!(one_line("either this | or that\n"), "either this | or that");
    }
}
