//! The proxy's counters as its clients see them (`stats`) and as the program reports them.

use metrics::{POOL, SERVER};
use proto::Answer;

use crate::id::ConnId;
use crate::{Proxy, Time};

/// A server's counters, with what they belong to.
pub struct ServerView<'a> {
    pub pool: &'a str,
    pub server: &'a str,
    /// "ready", "down" or "ejected".
    pub health: &'static str,
    /// In the order of `metrics::SERVER`.
    pub values: &'a [u64],
}

impl Proxy {
    /// Every server with its counters.
    pub fn servers(&self) -> impl Iterator<Item = ServerView<'_>> {
        self.desk.pools.iter().flat_map(|pool| {
            pool.servers.iter().zip(&pool.plan.servers).map(|(server, plan)| ServerView {
                pool: &pool.plan.name,
                server: &plan.label,
                health: server.health.name(),
                values: server.counters.values(),
            })
        })
    }

    /// A pool's counters, in the order of `metrics::POOL`.
    pub fn pool_counters(&self, pool: usize) -> &[u64] {
        self.desk.pools[pool].counters.values()
    }

    /// Bytes held in buffers now.
    pub fn memory_held(&self) -> usize {
        self.desk.memory.held
    }

    /// How long it has run, seconds.
    pub fn uptime(&self, now: Time) -> u64 {
        now.since(self.started) / 1_000_000
    }

    pub(super) fn answer_stats(&mut self, id: ConnId) {
        let mut lines = vec![
            ("version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
            ("curr_connections".to_string(), self.desk.clients.len().to_string()),
            ("bytes_held".to_string(), self.desk.memory.held.to_string()),
        ];
        for pool in &self.desk.pools {
            let name = word(&pool.plan.name);
            for (row, value) in POOL.iter().zip(pool.counters.values()) {
                lines.push((format!("{name}.{}", row.name), value.to_string()));
            }
        }
        for view in self.servers() {
            let prefix = format!("{}.{}", word(view.pool), word(view.server));
            lines.push((format!("{prefix}.health"), view.health.to_string()));
            for (row, value) in SERVER.iter().zip(view.values) {
                lines.push((format!("{prefix}.{}", row.name), value.to_string()));
            }
        }
        let mut answers: Vec<Answer<'_>> =
            lines.iter().map(|(name, value)| Answer::Stat(name, value)).collect();
        answers.push(Answer::End);
        self.desk.answer_all(id, &answers);
    }
}

/// A name as one word: a space would end it.
fn word(name: &str) -> String {
    name.replace(char::is_whitespace, "_")
}
