//! Renders the JSON of twemproxy 0.5's stats port: the same names in the same nesting, so that
//! collectors for a nutcracker work unchanged.

use metrics::{PoolCounter, ServerCounter, WorkerCounter};
use serde_json::Value;

use super::{Counts, PoolStats, ServerStats, Snapshot};

/// A name of twemproxy's, and its value from our counters.
type Field<C> = (&'static str, fn(&Counts<C>) -> u64);

/// Fields of a pool, in twemproxy's order. `server_ejects` is summed over its servers.
const POOL: &[Field<PoolCounter>] = &[
    ("client_eof", |pool| pool.value(PoolCounter::ClientsEnded)),
    ("client_err", |pool| pool.value(PoolCounter::ClientsLost)),
    ("client_connections", |pool| pool.value(PoolCounter::ClientsNow)),
    (EJECTS, |_| 0),
    ("forward_error", |pool| pool.value(PoolCounter::Failed)),
    ("fragments", |pool| pool.value(PoolCounter::Fragments)),
];

/// Fields of a server, in twemproxy's order.
const SERVER: &[Field<ServerCounter>] = &[
    ("server_eof", |server| server.value(ServerCounter::LinkEnded)),
    ("server_err", errors),
    ("server_timedout", |server| {
        server.value(ServerCounter::ReplyTimeout) + server.value(ServerCounter::ConnectTimeout)
    }),
    ("server_connections", |server| server.value(ServerCounter::LinksNow)),
    ("server_ejected_at", |server| server.value(ServerCounter::EjectedAt)),
    ("requests", |server| server.value(ServerCounter::Messages)),
    ("request_bytes", |server| server.value(ServerCounter::MessageBytes)),
    ("responses", |server| server.value(ServerCounter::Replies)),
    ("response_bytes", |server| server.value(ServerCounter::ReplyBytes)),
    ("in_queue", |server| server.value(ServerCounter::PendingNow)),
    ("in_queue_bytes", |server| server.value(ServerCounter::PendingBytesNow)),
    ("out_queue", |server| server.value(ServerCounter::InflightNow)),
    ("out_queue_bytes", |server| server.value(ServerCounter::InflightBytesNow)),
];

const EJECTS: &str = "server_ejects";

/// Returns the links that ended by an error other than end of file or a timeout.
fn errors(server: &Counts<ServerCounter>) -> u64 {
    let of = |all, less| server.value(all).saturating_sub(server.value(less));
    of(ServerCounter::LinkLost, ServerCounter::LinkEnded)
        + of(ServerCounter::ConnectFailed, ServerCounter::ConnectTimeout)
        + server.value(ServerCounter::Poisoned)
}

impl Snapshot {
    /// Renders the JSON as one line.
    pub fn twemproxy_json(&self) -> String {
        let (facts, totals) = (&self.facts, &self.totals);
        // twemproxy counts every connection, and a listener is one.
        let listeners = self.pools.len() as u64;
        let now = totals.value(WorkerCounter::ClientsNow) + totals.value(WorkerCounter::LinksNow);
        let ever = totals.value(WorkerCounter::Accepts) + totals.value(WorkerCounter::Connects);
        let mut members = vec![
            member("service", "quickack"),
            member("source", facts.host.as_str()),
            member("version", facts.release.as_str()),
            member("uptime", facts.uptime_s),
            member("timestamp", facts.unix_s),
            member("total_connections", ever + listeners),
            member("curr_connections", now + listeners),
        ];
        members.extend(self.pools.iter().map(|pool| nested(&pool.name, &fields_of(pool))));
        format!("{{{}}}\n", members.join(", "))
    }
}

fn fields_of(pool: &PoolStats) -> Vec<String> {
    let ejects =
        pool.servers.iter().map(|server| server.counts.value(ServerCounter::Ejections)).sum();
    let fields = POOL.iter().map(|(name, value)| match *name {
        EJECTS => member::<u64>(EJECTS, ejects),
        _ => member(name, value(&pool.counts)),
    });
    fields.chain(pool.servers.iter().map(fields_of_server)).collect()
}

fn fields_of_server(server: &ServerStats) -> String {
    let fields: Vec<String> =
        SERVER.iter().map(|(name, value)| member(name, value(&server.counts))).collect();
    nested(&server.name, &fields)
}

fn nested(name: &str, members: &[String]) -> String {
    format!("{}: {{{}}}", Value::from(name), members.join(", "))
}

fn member<V: Into<Value>>(name: &str, value: V) -> String {
    format!("{}:{}", Value::from(name), value.into())
}
