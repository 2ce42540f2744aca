//! Renders the JSON of twemproxy 0.5's stats port: the same names in the same nesting, so that
//! collectors for a nutcracker work unchanged.

use metrics::{Pool, Server, Worker};
use serde_json::Value;

use super::{Counts, PoolStats, ServerStats, Snapshot};

/// A name of twemproxy's, and its value from our counters.
type Field<C> = (&'static str, fn(&Counts<C>) -> u64);

/// Fields of a pool, in twemproxy's order. `server_ejects` is summed over its servers.
const POOL: &[Field<Pool>] = &[
    ("client_eof", |pool| pool.value(Pool::ClientsEnded)),
    ("client_err", |pool| pool.value(Pool::ClientsLost)),
    ("client_connections", |pool| pool.value(Pool::ClientsNow)),
    (EJECTS, |_| 0),
    ("forward_error", |pool| pool.value(Pool::Failed)),
    ("fragments", |pool| pool.value(Pool::Fragments)),
];

/// Fields of a server, in twemproxy's order.
const SERVER: &[Field<Server>] = &[
    ("server_eof", |server| server.value(Server::LinkEnded)),
    ("server_err", errors),
    ("server_timedout", |server| {
        server.value(Server::ReplyTimeout) + server.value(Server::ConnectTimeout)
    }),
    ("server_connections", |server| server.value(Server::LinksNow)),
    ("server_ejected_at", |server| server.value(Server::EjectedAt)),
    ("requests", |server| server.value(Server::Messages)),
    ("request_bytes", |server| server.value(Server::MessageBytes)),
    ("responses", |server| server.value(Server::Replies)),
    ("response_bytes", |server| server.value(Server::ReplyBytes)),
    ("in_queue", |server| server.value(Server::PendingNow)),
    ("in_queue_bytes", |server| server.value(Server::PendingBytesNow)),
    ("out_queue", |server| server.value(Server::InflightNow)),
    ("out_queue_bytes", |server| server.value(Server::InflightBytesNow)),
];

const EJECTS: &str = "server_ejects";

/// Returns the links that ended by an error other than end of file or a timeout.
fn errors(server: &Counts<Server>) -> u64 {
    let of = |all, less| server.value(all).saturating_sub(server.value(less));
    of(Server::LinkLost, Server::LinkEnded)
        + of(Server::ConnectFailed, Server::ConnectTimeout)
        + server.value(Server::Poisoned)
}

impl Snapshot {
    /// Renders the JSON as one line.
    pub fn twemproxy_json(&self) -> String {
        let (facts, totals) = (&self.facts, &self.totals);
        // twemproxy counts every connection, and a listener is one.
        let listeners = self.pools.len() as u64;
        let now = totals.value(Worker::ClientsNow) + totals.value(Worker::LinksNow);
        let ever = totals.value(Worker::Accepts) + totals.value(Worker::Connects);
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
    let ejects = pool.servers.iter().map(|server| server.counts.value(Server::Ejections)).sum();
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
