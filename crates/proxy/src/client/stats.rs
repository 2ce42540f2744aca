//! `stats`: counters and gauges of all workers together, as a client asks for them.

use metrics::{Counter, PoolCounter, Registry, ServerCounter, WorkerCounter};
use proto::{Answer, Request};

use super::Clients;
use crate::base::id::ConnId;
use crate::base::pool::Stage;
use crate::base::{Base, limits};

impl Clients {
    /// Answers with every counter of the pools in the plan.
    pub(super) fn answer_stats(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        head: &[u8],
    ) {
        let registry = base.metrics.registry();
        let mut lines = vec![
            ("version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
            (
                "curr_connections".to_string(),
                registry.total(0, WorkerCounter::ClientsNow).to_string(),
            ),
            (
                "bytes_held".to_string(),
                registry.total(0, WorkerCounter::BufferBytesNow).to_string(),
            ),
        ];
        for pool in base.pools.iter().filter(|pool| pool.stage == Stage::Planned) {
            totals::<PoolCounter>(&registry, pool.plan.id, &word(&pool.plan.name), &mut lines);
        }
        for view in base.servers() {
            let prefix = format!("{}.{}", word(view.pool), word(view.server));
            lines.push((format!("{prefix}.health"), view.health.to_string()));
            totals::<ServerCounter>(&registry, view.id, &prefix, &mut lines);
            lines.extend(view.upstream.retryable_errors().iter().map(|error| {
                let value = registry.total_own(view.id, error.place);
                (format!("{prefix}.{}", error.counter), value.to_string())
            }));
        }
        if let Some(client) = self.table.find_mut(id) {
            let bytes: usize = lines.iter().map(|(name, value)| name.len() + value.len()).sum();
            client.charge((bytes / limits::ANSWER_WORK_BYTES) as u32);
        }
        let mut answers: Vec<Answer<'_>> =
            lines.iter().map(|(name, value)| Answer::Stat(name, value)).collect();
        answers.push(Answer::End);
        self.answer_all(base, id, request, head, &answers);
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
