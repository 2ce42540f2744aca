//! Renders the JSON of twemproxy 0.5's stats port: the same names in the same nesting, so that
//! collectors for a nutcracker work unchanged.

use metrics::{PoolCounter, ServerCounter, WorkerCounter};
use serde_json::Value;

use super::{Counts, PoolStats, ServerStats, Snapshot};

/// A name of twemproxy's, with its description there, and its value from our counters.
struct Field<C> {
    name: &'static str,
    text: &'static str,
    value: fn(&Counts<C>) -> u64,
}

const fn field<C>(
    name: &'static str,
    text: &'static str,
    value: fn(&Counts<C>) -> u64,
) -> Field<C> {
    Field { name, text, value }
}

/// Fields of a pool, in twemproxy's order. `server_ejects` is summed over its servers.
#[rustfmt::skip] // One row a field.
const POOL: &[Field<PoolCounter>] = &[
    field("client_eof", "# eof on client connections", |pool| {
        pool.value(PoolCounter::ClientsEnded)
    }),
    field("client_err", "# errors on client connections", |pool| {
        pool.value(PoolCounter::ClientsLost)
    }),
    field("client_connections", "# active client connections", |pool| {
        pool.value(PoolCounter::ClientsNow)
    }),
    field(EJECTS, "# times backend server was ejected", |_| 0),
    field("forward_error", "# times we encountered a forwarding error", |pool| {
        pool.value(PoolCounter::Failed)
    }),
    field("fragments", "# fragments created from a multi-vector request", |pool| {
        pool.value(PoolCounter::Fragments)
    }),
];

/// Fields of a server, in twemproxy's order.
#[rustfmt::skip] // One row a field.
const SERVER: &[Field<ServerCounter>] = &[
    field("server_eof", "# eof on server connections", |it| it.value(ServerCounter::LinkEnded)),
    field("server_err", "# errors on server connections", errors),
    field("server_timedout", "# timeouts on server connections", |it| {
        it.value(ServerCounter::ReplyTimeout) + it.value(ServerCounter::ConnectTimeout)
    }),
    field("server_connections", "# active server connections", |it| {
        it.value(ServerCounter::LinksNow)
    }),
    field("server_ejected_at", "timestamp when server was ejected in usec since epoch", |it| {
        it.value(ServerCounter::EjectedAt)
    }),
    field("requests", "# requests", |it| it.value(ServerCounter::Messages)),
    field("request_bytes", "total request bytes", |it| it.value(ServerCounter::MessageBytes)),
    field("responses", "# responses", |it| it.value(ServerCounter::Replies)),
    field("response_bytes", "total response bytes", |it| it.value(ServerCounter::ReplyBytes)),
    field("in_queue", "# requests in incoming queue", |it| it.value(ServerCounter::PendingNow)),
    field("in_queue_bytes", "current request bytes in incoming queue", |it| {
        it.value(ServerCounter::PendingBytesNow)
    }),
    field("out_queue", "# requests in outgoing queue", |it| it.value(ServerCounter::InflightNow)),
    field("out_queue_bytes", "current request bytes in outgoing queue", |it| {
        it.value(ServerCounter::InflightBytesNow)
    }),
];

const EJECTS: &str = "server_ejects";

/// Returns the links that ended by an error other than end of file or a timeout.
fn errors(server: &Counts<ServerCounter>) -> u64 {
    let of = |all, less| server.value(all).saturating_sub(server.value(less));
    of(ServerCounter::LinkLost, ServerCounter::LinkEnded)
        + of(ServerCounter::ConnectFailed, ServerCounter::ConnectTimeout)
        + server.value(ServerCounter::Poisoned)
}

/// Describes the fields as `nutcracker -D` does.
pub fn describe() -> String {
    let pool = POOL.iter().map(|field| (field.name, field.text));
    let server = SERVER.iter().map(|field| (field.name, field.text));
    let lines = |fields: &mut dyn Iterator<Item = (&'static str, &'static str)>| {
        let line = |(name, text)| format!("  {name:<18}  \"{text}\"\n");
        fields.map(line).collect::<String>()
    };
    let (mut pool, mut server) = (pool, server);
    format!("pool stats:\n{}\nserver stats:\n{}", lines(&mut pool), lines(&mut server))
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
    let fields = POOL.iter().map(|field| match field.name {
        EJECTS => member::<u64>(EJECTS, ejects),
        name => member(name, (field.value)(&pool.counts)),
    });
    fields.chain(pool.servers.iter().map(fields_of_server)).collect()
}

fn fields_of_server(server: &ServerStats) -> String {
    let fields: Vec<String> =
        SERVER.iter().map(|field| member(field.name, (field.value)(&server.counts))).collect();
    nested(&server.name, &fields)
}

fn nested(name: &str, members: &[String]) -> String {
    format!("{}: {{{}}}", Value::from(name), members.join(", "))
}

fn member<V: Into<Value>>(name: &str, value: V) -> String {
    format!("{}:{}", Value::from(name), value.into())
}
