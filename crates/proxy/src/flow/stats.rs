//! Counters for clients (`stats`: of all workers together), and gauges in the metrics registry.
//!
//! Counters are written to the metrics registry as events happen. Gauges of queues, links and
//! memory are summed up a few times a second while anything changes, and once more afterwards. So
//! the path of a request pays nothing for them.

use metrics::{Counter, PoolCounter, Registry, ServerCounter, WorkerCounter};
use proto::{Answer, Request};

use crate::id::ConnId;
use crate::link::State;
use crate::pool::{Gauges, Server, Stage};
use crate::timers::Due;
use crate::{Proxy, Time, limits};

/// A server, as this worker sees it.
pub struct ServerView<'a> {
    pub id: u32,
    pub pool: &'a str,
    pub server: &'a str,
    /// One of "ready", "down" and "ejected".
    pub health: &'static str,
}

impl Proxy {
    /// Lists every server, in the order of the plan.
    pub fn servers(&self) -> impl Iterator<Item = ServerView<'_>> {
        let pools = self.pipelines.pools.iter().filter(|pool| pool.stage == Stage::Planned);
        pools.flat_map(|pool| {
            let servers = pool.servers.iter().filter(|one| one.stage == Stage::Planned);
            servers.map(|server| ServerView {
                id: server.plan.id,
                pool: &pool.plan.name,
                server: &server.plan.label,
                health: server.health_name(),
            })
        })
    }

    /// Returns the bytes held in buffers now.
    pub fn memory_held(&self) -> usize {
        self.pipelines.memory.used
    }

    /// Returns for how many seconds it has run.
    pub fn uptime(&self, now: Time) -> u64 {
        now.since(self.pipelines.started) / 1_000_000
    }

    /// Schedules the next writing of the gauges, if anything has changed since the last.
    pub(crate) fn plan_publishing(&mut self, now: Time) {
        if self.gauges_changed && !self.publish_due {
            self.publish_due = true;
            self.timers.set(now.after(limits::PUBLISH_PAUSE_US), Due::Publish);
        }
    }

    /// Writes the gauges to the metrics registry.
    pub(crate) fn publish(&mut self) {
        self.pipelines.requests.rest();
        self.pipelines.spares.rest();
        self.gauges_changed = false;
        for server in self.pipelines.pools.iter_mut().flat_map(|pool| &mut pool.servers) {
            server.gauges = Gauges::default();
        }
        for (_, link) in self.links.iter() {
            let server =
                &mut self.pipelines.pools[link.pool as usize].servers[link.server as usize];
            let pending = link.outstanding.len() - link.first_pending();
            server.gauges.links += u64::from(link.state == State::Up);
            server.gauges.pending += pending as u64;
            server.gauges.pending_bytes += link.out.len() as u64;
            server.gauges.inflight += (link.outstanding.len() - pending) as u64;
            server.gauges.inflight_bytes += link.sent - link.done;
        }
        let servers = self.pipelines.pools.iter().flat_map(|pool| &pool.servers);
        // The id of a vacant place may belong to another server by now.
        servers.filter(|one| one.stage != Stage::Vacant).for_each(Server::publish);
        let worker = self.pipelines.worker;
        worker.set(WorkerCounter::LinksNow, self.links.len() as u64);
        worker.set(WorkerCounter::RequestsNow, self.pipelines.requests.len() as u64);
        worker.set(WorkerCounter::BufferBytesNow, self.pipelines.memory.used as u64);
    }

    pub(super) fn answer_stats(&mut self, id: ConnId, request: &Request, head: &[u8]) {
        self.publish();
        let registry = self.pipelines.metrics.registry();
        let mut lines = vec![
            ("version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
            (
                "curr_connections".to_string(),
                registry.total(0, WorkerCounter::ClientsNow).to_string(),
            ),
            (
                "buffer_bytes".to_string(),
                registry.total(0, WorkerCounter::BufferBytesNow).to_string(),
            ),
        ];
        for pool in self.pipelines.pools.iter().filter(|pool| pool.stage == Stage::Planned) {
            totals::<PoolCounter>(&registry, pool.plan.id, &word(&pool.plan.name), &mut lines);
        }
        for view in self.servers() {
            let prefix = format!("{}.{}", word(view.pool), word(view.server));
            lines.push((format!("{prefix}.health"), view.health.to_string()));
            totals::<ServerCounter>(&registry, view.id, &prefix, &mut lines);
        }
        let mut answers: Vec<Answer<'_>> =
            lines.iter().map(|(name, value)| Answer::Stat(name, value)).collect();
        answers.push(Answer::End);
        self.pipelines.answer_all(id, request, head, &answers);
    }
}

/// Adds a line for each counter of an id, over all workers.
fn totals<C: Counter>(
    registry: &Registry,
    id: u32,
    prefix: &str,
    lines: &mut Vec<(String, String)>,
) {
    for counter in C::ALL {
        let name = format!("{prefix}.{}", counter.metric().name);
        lines.push((name, registry.total(id, *counter).to_string()));
    }
}

/// Returns a name as one word, since a space would end it.
fn word(name: &str) -> String {
    name.replace(char::is_whitespace, "_")
}
