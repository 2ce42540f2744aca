//! The states of servers that an operator sets by hand, and the list of servers.
//!
//! A state is an override, as `set` makes them: it takes effect for all workers by one epoch, a
//! worker that starts later has it, and a file that is read again is compiled with it
//! ([ADR 35](../../../../docs/adr/0035-states-of-servers.md)).

use std::time::Instant;

use metrics::ServerCounter;
use proxy::plan::{AdminState, ServerPlan};
use serde_json::{Value, json};

use super::Master;
use super::admin_server::ConnectionId;
use super::change_queue::Asked;
use crate::config::{self, grouped};
use crate::log::Clocks;
use crate::stats::{self, Health};

impl Master {
    /// `server POOL/NAME STATE`. The name may have spaces.
    pub(super) fn ask_server(&mut self, id: ConnectionId, question: &str, now: Instant) {
        let words = question.trim().strip_prefix("server").unwrap_or_default();
        let Some((name, state)) = words.trim().rsplit_once(' ') else {
            return self.admin.refuse(id, "server needs POOL/NAME and a state");
        };
        match AdminState::parse(state) {
            Some(state) => self.begin_server(Asked::set(id, false), name.trim(), state, now),
            None => self.admin.refuse(id, &format!("`{state}`: {}", config::NO_STATE)),
        }
    }

    /// `quickack servers`.
    pub(super) fn servers_text(&self, as_json: bool) -> String {
        let plan = self.running.plan();
        let pools = plan.pools.iter().zip(&self.running.config.upstreams);
        let servers = pools.flat_map(|(pool, upstream)| {
            let both = pool.servers.iter().zip(&upstream.servers);
            both.map(|(server, address)| self.server(&pool.name, server, &address.to_string()))
        });
        let servers: Vec<Value> = servers.collect();
        if as_json {
            return super::info::pretty(&json!({ "servers": servers }));
        }
        let head = [
            "SERVER",
            "ADDRESS",
            "STATE",
            "HEALTH",
            "SINCE",
            "LINKS",
            "WAITING",
            "IN FLIGHT",
            "WHY",
        ];
        let mut rows = vec![head.map(str::to_string).to_vec()];
        let now = Clocks::read().unix_us / 1_000_000;
        rows.extend(servers.iter().map(|server| row(server, now)));
        stats::table(&rows)
    }

    fn server(&self, pool: &str, plan: &ServerPlan, address: &str) -> Value {
        let registry = self.scoreboard.registry();
        let now = |counter| registry.total(plan.id, counter);
        let health = stats::health(&self.scoreboard, plan.id).under(plan.admin);
        let failure = self.health.failure(plan.id).filter(|_| health != Health::Up);
        let admin_since = self.health.admin_since(plan.id);
        let health_since = match (health, failure) {
            (Health::Ejected { since_us }, _) => Some(since_us / 1_000_000),
            (Health::Maint, _) => Some(admin_since),
            (_, failure) => failure.map(|failure| failure.since),
        };
        let refusal = || self.health.refusal(plan.id);
        let by_hand = "set by hand".to_string();
        let why = match plan.admin {
            AdminState::Ready => failure.map(|failure| failure.why.clone()).or_else(refusal),
            _ => Some(failure.map_or(by_hand.clone(), |one| format!("{by_hand}; {}", one.why))),
        };
        json!({
            "pool": pool,
            "name": plan.label,
            "ring_name": plan.name,
            "address": address,
            "state": plan.admin.word(),
            "state_since": admin_since,
            "health": health.word(),
            "health_since": health_since,
            "why": why,
            "links": now(ServerCounter::LinksNow),
            "waiting": now(ServerCounter::PendingNow),
            "in_flight": now(ServerCounter::InflightNow),
        })
    }
}

fn row(server: &Value, now: u64) -> Vec<String> {
    let word = |name: &str| server[name].as_str().unwrap_or("-").to_string();
    let number = |name: &str| grouped(server[name].as_u64().unwrap_or_default());
    // Of the two, the later is the news.
    let since = server["state_since"].as_u64().max(server["health_since"].as_u64());
    vec![
        format!("{}/{}", word("pool"), word("name")),
        word("address"),
        word("state"),
        word("health"),
        since.map_or("-".to_string(), |since| stats::duration(now.saturating_sub(since))),
        number("links"),
        number("waiting"),
        number("in_flight"),
        word("why"),
    ]
}
