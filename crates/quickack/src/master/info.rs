//! What the proxy is, what it has and whether it is ready: `quickack info`, `pools`, and what
//! `quickack wait` waits for.

use std::fmt::Write;

use proxy::plan::ServerPlan;
use serde_json::{Value, json};

use super::Master;
use super::workers::State;
use crate::config::{WORKERS_MAX, grouped, size_word};
use crate::log::Clocks;
use crate::stats::{self, Health};
use crate::version;

impl Master {
    /// `quickack info`.
    pub(super) fn info_text(&self, as_json: bool) -> String {
        let info = self.info();
        if as_json {
            return pretty(&info);
        }
        let word = |value: &Value| match value {
            Value::String(word) => word.clone(),
            Value::Null => "none".to_string(),
            Value::Array(words) => match words.is_empty() {
                true => "none".to_string(),
                false => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            },
            Value::Number(number) => grouped(number.as_u64().unwrap_or_default()),
            Value::Bool(true) => "yes".to_string(),
            other => {
                if *other == false {
                    "no".to_string()
                } else {
                    other.to_string()
                }
            }
        };
        let mut out = String::new();
        let lines = [
            ("release", format!("quickack {}", version::LONG)),
            ("master", info["pid"].to_string()),
            ("host", word(&info["host"])),
            ("up", stats::duration(self.started.elapsed().as_secs())),
            ("configuration", word(&info["file"])),
            ("epoch", info["epoch"].to_string()),
            ("set at run time", word(&info["set"])),
            ("lists", word(&info["lists"])),
            ("ready", word(&info["ready"])),
            ("not ready because", word(&info["not_ready"])),
            ("workers", format!("{} of {}", info["workers_serving"], info["workers"])),
            ("accept", word(&info["accept"])),
            ("admin socket", word(&info["admin"])),
            ("statistics", word(&info["stats"])),
            ("HTTP", word(&info["http"])),
            ("clients_max", word(&info["limits"]["clients_max"])),
            ("memory_max", size_word(self.running.config.plan.memory_max as u64)),
            ("open files", word(&info["limits"]["open_files"])),
            ("pools and servers", word(&info["limits"]["pools_and_servers"])),
        ];
        let told = lines.iter().filter(|(name, value)| match *name {
            "not ready because" => info["ready"] == false,
            "lists" => value != "none",
            _ => true,
        });
        for (name, value) in told {
            let _ = writeln!(out, "{name:<18} {value}");
        }
        for problem in self.problems() {
            let _ = writeln!(out, "{:<18} {problem}", "problem");
        }
        out
    }

    fn info(&self) -> Value {
        let config = &self.running.config;
        let sets = config.overrides.iter().map(ToString::to_string);
        let why = self.unreadiness();
        let clients_max = Some(config.plan.clients_max).filter(|most| *most < usize::MAX);
        json!({
            "release": env!("CARGO_PKG_VERSION"),
            "commit": version::COMMIT,
            "build": version::BUILD,
            "pid": std::process::id(),
            "host": rustix::system::uname().nodename().to_string_lossy(),
            "time": Clocks::read().unix_us / 1_000_000,
            "started": self.started_unix_us / 1_000_000,
            "uptime_s": self.started.elapsed().as_secs(),
            "file": self.file.as_ref().map(|file| file.display().to_string()),
            "set": sets.collect::<Vec<String>>(),
            "epoch": self.running.epoch,
            "lists": self.names.lists.troubles(config),
            "applied": self.unapplied().is_empty(),
            "ready": why.is_empty(),
            "not_ready": why,
            "problems": self.problems(),
            "draining": self.ending.is_some(),
            "workers": config.process.worker_count(),
            "workers_serving": self.serving(),
            "accept": self.running.mode.name(),
            "admin": self.admin.path().map(|path| path.display().to_string()),
            "stats": self.stats_port.address(),
            "http": self.http.bound(),
            "limits": {
                "clients_max": clients_max,
                "memory_max": config.plan.memory_max,
                "open_files": sys::process::descriptors_max(),
                "workers": WORKERS_MAX,
                "pools_and_servers": self.scoreboard.ids_max(),
            },
        })
    }

    fn serving(&self) -> usize {
        let serving = |slot: &&super::Slot| {
            slot.worker.as_ref().is_some_and(|worker| worker.state == State::Serving)
        };
        self.slots.iter().filter(serving).count()
    }

    /// Returns the workers that have not installed the configuration that holds.
    fn unapplied(&self) -> Vec<usize> {
        let epoch = self.running.epoch;
        let workers = self.slots.iter().filter(|slot| slot.worker.is_some());
        let late = workers.filter(|slot| self.scoreboard.installed(slot.number).config != epoch);
        late.map(|slot| slot.number).collect()
    }

    /// Returns why the proxy is not ready, one reason each. The HTTP process, which may outlive the
    /// master's attention, judges by what it sees itself.
    fn unreadiness(&self) -> Vec<String> {
        let mut said = Vec::new();
        if self.ending.is_some() {
            said.push("the proxy is draining".to_string());
        }
        let (serving, wanted) = (self.serving(), self.running.config.process.worker_count());
        if serving < wanted {
            said.push(format!("{serving} of {wanted} workers serve"));
        }
        if let Some(worker) = self.unapplied().first() {
            let epoch = self.running.epoch;
            said.push(format!("worker {worker} has not installed epoch {epoch}"));
        }
        let plan = self.running.plan();
        for (pool, upstream) in plan.pools.iter().zip(&self.running.config.upstreams) {
            let is_up = |server: &ServerPlan| {
                stats::health(&self.scoreboard, server.id).under(server.admin) == Health::Up
            };
            if upstream.required && !pool.servers.iter().any(is_up) {
                said.push(format!("pool {} has no server that is up", pool.name));
            }
        }
        said
    }

    /// `quickack pools`.
    pub(super) fn pools_text(&self, as_json: bool) -> String {
        let snapshot = self.snapshot();
        let plan = self.running.plan();
        let pools = plan.pools.iter().zip(&snapshot.pools).enumerate().map(|(at, (plan, pool))| {
            let entries = self.running.listeners.iter().filter(|entry| entry.pool == at);
            let mut bound: Vec<&str> =
                entries.map(|entry| &*self.listeners.find(entry.id).bound).collect();
            bound.dedup();
            let servers = pool.servers.iter().zip(&self.running.config.upstreams[at].servers);
            let servers = servers.zip(&plan.servers).map(|((server, address), plan)| {
                json!({
                    "label": server.label,
                    "name": server.name,
                    "address": address.to_string(),
                    "at": self.running.addresses.get(&address.to_string()),
                    "weight": plan.weight,
                    "admin": server.admin.word(),
                    "health": server.health.word(),
                    "why": server.why,
                })
            });
            let list = self.running.config.upstreams[at].list.as_ref();
            json!({
                "name": pool.name,
                "list": list.map(|list| self.names.lists.told(&pool.name, list)),
                "protocol": plan.protocol.name(),
                "listen": bound,
                "required": self.running.config.upstreams[at].required,
                "clients": pool.counts.value(metrics::PoolCounter::ClientsNow),
                "requests": pool.counts.value(metrics::PoolCounter::Requests),
                "servers": servers.collect::<Vec<Value>>(),
            })
        });
        let pools: Vec<Value> = pools.collect();
        if as_json {
            return pretty(&json!({ "pools": pools }));
        }
        let mut text = pool_table(&pools);
        for trouble in self.names.lists.troubles(&self.running.config) {
            let _ = writeln!(text, "{trouble}");
        }
        for pool in &snapshot.pools {
            let nowhere = pool.servers.iter().filter_map(|it| Some((it, it.why.as_ref()?)));
            for (server, why) in nowhere {
                let _ = writeln!(text, "server {} of pool {}: {why}", server.label, pool.name);
            }
        }
        text
    }
}

/// Returns the table of `quickack pools`.
fn pool_table(pools: &[Value]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let mut rows = vec![
        ["POOL", "PROTOCOL", "LISTEN", "CLIENTS", "REQUESTS", "UP", "DOWN", "EJECTED", "MAINT"]
            .map(str::to_string)
            .to_vec(),
    ];
    rows.extend(pools.iter().map(|pool| {
        let servers = pool["servers"].as_array().map_or(&[][..], Vec::as_slice);
        let count = |health: &str| {
            servers.iter().filter(|server| server["health"] == health).count().to_string()
        };
        let number = |name: &str| grouped(pool[name].as_u64().unwrap_or_default());
        vec![
            text(&pool["name"]),
            text(&pool["protocol"]),
            text(&pool["listen"][0]),
            number("clients"),
            number("requests"),
            count("up"),
            count("down"),
            count("ejected"),
            count("maint"),
        ]
    }));
    stats::table(&rows)
}

pub(super) fn pretty(value: &Value) -> String {
    let mut out = serde_json::to_string_pretty(value).expect("words and numbers only");
    out.push('\n');
    out
}
