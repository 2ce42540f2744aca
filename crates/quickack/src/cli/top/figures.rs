//! What `quickack top` shows, taken out of the statistics.

use metrics::Phase;
use serde_json::{Map, Value, json};

use super::troubles::{self, Trouble};

/// The percentiles that have a column.
pub const QUANTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

pub struct Figures {
    pub release: String,
    pub host: String,
    pub uptime_s: u64,
    pub epoch: u64,
    /// Seconds that the window covers.
    pub seconds: u64,
    pub clients: u64,
    pub buffer_bytes: u64,
    pub memory_max: u64,
    pub pools: Vec<Pool>,
    pub workers: Vec<Worker>,
    pub troubles: Vec<Trouble>,
    /// What is wrong now, in sentences.
    pub problems: Vec<String>,
    pub tenants: Vec<Tenant>,
}

pub struct Tenant {
    pub name: String,
    pub clients: u64,
    /// Clients that are not read now because of a limit.
    pub waiting: u64,
    pub denied: u64,
    pub delayed: u64,
    pub over: u64,
    pub requests: Times,
}

pub struct Pool {
    pub name: String,
    pub clients: u64,
    pub reads: Times,
    pub updates: Times,
    /// How long requests took that failed.
    pub failures: Times,
    pub phases: Vec<(&'static str, Times)>,
    pub failed: u64,
    pub refused: u64,
    pub servers: Vec<Server>,
}

pub struct Server {
    pub label: String,
    pub state: String,
    pub is_well: bool,
    pub links: u64,
    pub pending: u64,
    pub inflight: u64,
    pub errors: u64,
    pub timeouts: u64,
    pub replies: Times,
}

pub struct Worker {
    pub slot: u64,
    pub pid: u64,
    pub state: String,
    pub clients: u64,
    pub requests: u64,
    pub buffer_bytes: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub restarts: u64,
}

/// The clients that did most in the last seconds, and addresses that send requests in pieces.
pub struct Busiest {
    pub clients: Vec<Client>,
    pub in_pieces: Vec<InPieces>,
    /// What all workers have answered, as it came.
    answer: Value,
}

pub struct Client {
    pub address: String,
    pub pool: String,
    pub worker: u64,
    /// In a second.
    pub requests: u64,
    pub bytes: u64,
    pub requests_ever: u64,
    pub owed: u64,
}

pub struct InPieces {
    pub address: String,
    pub count: u64,
    /// The mean and the longest time after which the rest came, in microseconds.
    pub late_us: u64,
    pub latest_us: u64,
}

/// Requests in the window: how many, and how long they took, in microseconds.
pub struct Times {
    pub count: u64,
    /// In the order of `QUANTILES`.
    pub us: [u64; QUANTILES.len()],
}

impl Figures {
    /// Reads the answer of `stats --json`. `window` is a name in it, or `start`.
    pub fn read(text: &str, window: &str) -> Result<Figures, String> {
        let all: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let all = &all;
        let workers = list(all, "workers")?.iter().filter(|one| one["state"] != "vacant");
        let workers = workers.map(worker).collect::<Result<Vec<Worker>, String>>()?;
        let serving = workers.iter().filter(|worker| worker.state == "serving").count();
        let pools = list(all, "pools")?.iter().map(|one| pool(one, window, serving));
        let uptime_s = number(all, "uptime_s")?;
        Ok(Figures {
            release: word(all, "release")?,
            host: word(all, "host")?,
            uptime_s,
            epoch: number(all, "epoch")?,
            seconds: all["window_seconds"][window].as_u64().unwrap_or(uptime_s),
            clients: number(&all["totals"], "clients")?,
            buffer_bytes: number(&all["totals"], "buffer_bytes")?,
            memory_max: number(all, "memory_max")?,
            troubles: troubles::all(all)?,
            problems: sentences(all, "problems")?,
            tenants: list(all, "tenants")?
                .iter()
                .map(|one| tenant(one, window))
                .collect::<Result<_, String>>()?,
            pools: pools.collect::<Result<_, String>>()?,
            workers,
        })
    }

    /// Returns how many a second there were in the window.
    pub fn rate(&self, count: u64) -> u64 {
        let seconds = self.seconds.max(1);
        (count + seconds / 2) / seconds
    }

    pub fn json(&self) -> Value {
        let times = |times: &Times| {
            let mut all = json!({"per_second": self.rate(times.count), "count": times.count});
            for (name, us) in QUANTILES.iter().zip(times.us) {
                all[format!("{name}_us")] = us.into();
            }
            all
        };
        let server = |one: &Server| {
            json!({
                "label": one.label, "state": one.state, "links": one.links, "pending": one.pending,
                "inflight": one.inflight, "errors_total": one.errors,
                "timeouts_total": one.timeouts, "replies": times(&one.replies),
            })
        };
        let pool = |one: &Pool| {
            json!({
                "name": one.name, "clients": one.clients, "reads": times(&one.reads),
                "updates": times(&one.updates), "failed": times(&one.failures),
                "failed_total": one.failed,
                "phases": one.phases.iter().map(|(name, one)| (name.to_string(), times(one)))
                    .collect::<Map<String, Value>>(),
                "refused_total": one.refused,
                "servers": one.servers.iter().map(server).collect::<Vec<Value>>(),
            })
        };
        let worker = |one: &Worker| {
            json!({
                "slot": one.slot, "pid": one.pid, "state": one.state, "clients": one.clients,
                "requests": one.requests, "buffer_bytes": one.buffer_bytes,
                "user_us_total": one.user_us, "system_us_total": one.system_us,
                "restarts_total": one.restarts,
            })
        };
        let trouble = |one: &Trouble| {
            let (of, name) = (&one.place, one.name);
            json!({"of": of, "name": name, "since_start": one.since_start})
        };
        let tenant = |one: &Tenant| {
            json!({
                "name": one.name, "clients": one.clients, "waiting": one.waiting,
                "denied_total": one.denied, "delayed_total": one.delayed,
                "over_total": one.over, "requests": times(&one.requests),
            })
        };
        json!({
            "release": self.release, "host": self.host, "uptime_s": self.uptime_s,
            "epoch": self.epoch, "window_seconds": self.seconds, "clients": self.clients,
            "buffer_bytes": self.buffer_bytes, "memory_max": self.memory_max,
            "troubles": self.troubles.iter().map(trouble).collect::<Vec<Value>>(),
            "problems": self.problems,
            "tenants": self.tenants.iter().map(tenant).collect::<Vec<Value>>(),
            "pools": self.pools.iter().map(pool).collect::<Vec<Value>>(),
            "workers": self.workers.iter().map(worker).collect::<Vec<Value>>(),
        })
    }
}

impl Busiest {
    /// Reads the answer of `clients --busiest --json`.
    pub fn read(text: &str) -> Result<Busiest, String> {
        let answer: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let clients = list(&answer, "clients")?.iter().map(client).collect::<Result<_, _>>()?;
        let in_pieces = list(&answer, "in_pieces")?.iter();
        let in_pieces = in_pieces.map(sends_in_pieces).collect::<Result<_, _>>()?;
        Ok(Busiest { clients, in_pieces, answer })
    }

    pub fn json(&self) -> Value {
        self.answer.clone()
    }
}

fn client(one: &Value) -> Result<Client, String> {
    let us = number(one, "recent_us")?.max(1);
    let rate = |name: &str| Ok::<u64, String>((number(one, name)? * 1_000_000).div_ceil(us));
    Ok(Client {
        address: word(one, "address")?,
        pool: word(one, "pool")?,
        worker: number(one, "worker")?,
        requests: rate("recent_requests")?,
        bytes: rate("recent_bytes")?,
        requests_ever: number(one, "requests")?,
        owed: number(one, "owed")?,
    })
}

fn sends_in_pieces(one: &Value) -> Result<InPieces, String> {
    let count = number(one, "count")?;
    let counted = count.saturating_sub(number(one, "over")?).max(1);
    Ok(InPieces {
        address: word(one, "address")?,
        count,
        late_us: number(one, "late_us")? / counted,
        latest_us: number(one, "latest_us")?,
    })
}

fn pool(one: &Value, window: &str, serving: usize) -> Result<Pool, String> {
    let servers = list(one, "servers")?.iter().map(|one| server(one, window, serving));
    Ok(Pool {
        name: word(one, "name")?,
        clients: number(one, "clients")?,
        reads: times(&one["latency_us"]["reads"], window)?,
        updates: times(&one["latency_us"]["updates"], window)?,
        failures: times(&one["latency_us"]["failed"], window)?,
        phases: Phase::ALL
            .iter()
            .map(|phase| Ok((phase.name(), times(&one["phase_us"][phase.name()], window)?)))
            .collect::<Result<_, String>>()?,
        failed: number(one, "requests_failed_total")?,
        refused: number(one, "requests_refused_total")?,
        servers: servers.collect::<Result<_, String>>()?,
    })
}

fn server(one: &Value, window: &str, serving: usize) -> Result<Server, String> {
    let (health, down) = (word(one, "health")?, number(one, "down_workers")?);
    let state = match down {
        0 if one["admin"] == "drain" => format!("drain, {health}"),
        0 => health.clone(),
        down => format!("down for {down} of {serving} workers"),
    };
    Ok(Server {
        label: word(one, "label")?,
        is_well: health == "up" && down == 0,
        state,
        links: number(one, "links")?,
        pending: number(one, "pending")?,
        inflight: number(one, "inflight")?,
        errors: number(one, "errors_total")?,
        timeouts: number(one, "reply_timeout_total")? + number(one, "queue_timeout_total")?,
        replies: times(&one["latency_us"]["replies"], window)?,
    })
}

fn worker(one: &Value) -> Result<Worker, String> {
    Ok(Worker {
        slot: number(one, "slot")?,
        pid: one["pid"].as_u64().unwrap_or(0),
        state: word(one, "state")?,
        clients: number(one, "clients")?,
        requests: number(one, "requests")?,
        buffer_bytes: number(one, "buffer_bytes")?,
        user_us: number(one, "user_us_total")?,
        system_us: number(one, "system_us_total")?,
        restarts: number(one, "restarts_total")?,
    })
}

fn tenant(one: &Value, window: &str) -> Result<Tenant, String> {
    Ok(Tenant {
        name: word(one, "name")?,
        clients: number(one, "clients")?,
        waiting: number(one, "waiting")?,
        denied: number(one, "requests_denied_total")?,
        delayed: number(one, "requests_delayed_total")?,
        over: number(one, "requests_over_total")?,
        requests: times(&one["latency_us"][metrics::TENANT_LATENCIES[0].name], window)?,
    })
}

fn sentences(all: &Value, name: &str) -> Result<Vec<String>, String> {
    let sentence = |one: &Value| one.as_str().map(String::from);
    let said = list(all, name)?.iter().map(sentence).collect::<Option<_>>();
    said.ok_or_else(|| format!("`{name}` has something that is no text"))
}

fn times(one: &Value, window: &str) -> Result<Times, String> {
    let one = if window == "start" { one } else { &one["windows"][window] };
    let mut us = [0; QUANTILES.len()];
    for (us, name) in us.iter_mut().zip(QUANTILES) {
        *us = number(one, name)?;
    }
    Ok(Times { count: number(one, "count")?, us })
}

pub(super) fn number(one: &Value, name: &str) -> Result<u64, String> {
    one[name].as_u64().ok_or_else(|| format!("`{name}` is no number"))
}

pub(super) fn word(one: &Value, name: &str) -> Result<String, String> {
    one[name].as_str().map(String::from).ok_or_else(|| format!("`{name}` is no text"))
}

pub(super) fn list<'a>(one: &'a Value, name: &str) -> Result<&'a [Value], String> {
    one[name].as_array().map(Vec::as_slice).ok_or_else(|| format!("`{name}` is no list"))
}
