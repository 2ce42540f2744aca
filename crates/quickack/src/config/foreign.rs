//! Names that other programs use: forks of twemproxy, nginx, HAProxy, memcached, Redis; and common
//! mistakes. Each has a line of help, which follows the error or the warning.

use super::directives::{GLOBAL, POOL};

/// A name, and what to write instead or why there is nothing to write.
type Help = (&'static str, &'static str);

/// Directives that are none here, in lower case.
const KEYS: &[Help] = &[
    // The process, in forks with a `global:` block.
    ("worker_processes", "write `workers: N` under `global:`; `auto` is one for each processor"),
    ("processes", "write `workers: N` under `global:`; `auto` is one for each processor"),
    ("threads", "write `workers: N` under `global:`; each worker has one thread"),
    ("worker_threads", "write `workers: N` under `global:`; each worker has one thread"),
    ("nbthread", "write `workers: N` under `global:`; each worker has one thread"),
    (
        "worker_connections",
        "write `clients_max: N` under `global:`; it is for all workers together",
    ),
    ("maxconn", "write `clients_max: N` under `global:`; it is for all workers together"),
    ("worker_shutdown_timeout", "write `shutdown_timeout: 30s` under `global:`"),
    ("reload_timeout", "write `shutdown_timeout: 60s` under `global:`; a reload closes no client"),
    ("worker_rlimit_nofile", FILES),
    ("max_openfiles", FILES),
    ("maxfiles", FILES),
    ("user", USER),
    ("group", USER),
    ("daemonize", "run `quickack -d -c FILE` for a daemon, as with nutcracker; or use systemd"),
    ("daemon", "run `quickack -d -c FILE` for a daemon, as with nutcracker; or use systemd"),
    ("pid_file", PID_FILE),
    ("pidfile", PID_FILE),
    ("pid", PID_FILE),
    ("mbuf_size", "remove it: buffers grow and shrink by themselves, up to `memory_max`"),
    ("mbuf", "remove it: buffers grow and shrink by themselves, up to `memory_max`"),
    // Logs and statistics.
    ("output", LOG),
    ("log_file", LOG),
    ("logfile", LOG),
    ("loglevel", LOG_LEVEL),
    ("verbose", LOG_LEVEL),
    ("verbosity", LOG_LEVEL),
    ("stats_addr", STATS),
    ("stats_port", STATS),
    ("stats_listen", STATS),
    ("stats_interval", "remove it: statistics are always of this moment"),
    ("stats_duration", "remove it: statistics are always of this moment"),
    ("stats_file", "write `stats: HOST:PORT` or `http: HOST:PORT` under `global:`"),
    ("slow_req_duration", SLOW),
    ("slowlog", SLOW),
    ("slowlog_slower_than", SLOW),
    ("slowlog-log-slower-than", SLOW),
    // The listener and its clients.
    ("host", LISTEN),
    ("port", LISTEN),
    ("bind", LISTEN),
    ("address", LISTEN),
    ("addr", LISTEN),
    ("mode", "write a socket's mode behind its path: `listen: /path/of/socket 0777`"),
    ("perm", "write a socket's mode behind its path: `listen: /path/of/socket 0777`"),
    ("so_reuseport", "write `reuseport: on`"),
    ("max_connections", CLIENTS),
    ("maxclients", CLIENTS),
    ("client_max", CLIENTS),
    ("tcp_keepidle", KEEPALIVE),
    ("tcp_keepintvl", KEEPALIVE),
    ("tcp_keepcnt", KEEPALIVE),
    ("whitelist", ADDRESSES),
    ("blacklist", ADDRESSES),
    ("ip_whitelist", ADDRESSES),
    ("allow_ips", ADDRESSES),
    ("ssl", TLS),
    ("tls", TLS),
    ("ssl_cert", TLS),
    ("tls_cert", TLS),
    // Servers.
    ("server", SERVERS),
    ("backends", SERVERS),
    ("backend", SERVERS),
    ("nodes", SERVERS),
    ("hosts", SERVERS),
    ("upstream", SERVERS),
    ("weight", "write the weight in the server's line: `- HOST:PORT:WEIGHT NAME`"),
    ("weights", "write the weight in the server's line: `- HOST:PORT:WEIGHT NAME`"),
    ("sentinels", SENTINEL),
    ("sentinel", SENTINEL),
    ("sentinel_servers", SENTINEL),
    ("sentinel_heartbeat", SENTINEL),
    ("groups", SENTINEL),
    ("master_name", SENTINEL),
    ("masters", REPLICAS),
    ("slaves", REPLICAS),
    ("slave", REPLICAS),
    ("replicas", REPLICAS),
    ("read_prefer", REPLICAS),
    ("read_from", REPLICAS),
    ("rediscluster", CLUSTER),
    ("redis_cluster", CLUSTER),
    ("cluster", CLUSTER),
    ("zone", ZONES),
    ("zone_aware", ZONES),
    ("zone_weight", ZONES),
    (
        "failover",
        "remove it: there is no second pool for a pool that fails; `on_failure: eject` \
                  moves the keys of a server that fails to the others of its pool",
    ),
    ("dns_resolve_interval", "`global: {resolve_every: 30s}` says how often names are looked up"),
    ("env", "remove it: it has no meaning here"),
    ("virtual", "remove it: a pool has servers of its own"),
    ("gutter", "remove it: `on_failure: eject` moves the keys of a server that fails"),
    // Passwords and databases.
    ("auth", PASSWORD),
    ("password", PASSWORD),
    ("passwd", PASSWORD),
    ("requirepass", PASSWORD),
    ("masterauth", PASSWORD),
    ("redis_password", PASSWORD),
    ("redis_pass", PASSWORD),
    ("username", "write `users: FILE` for clients and `server_login: FILE` for servers"),
    ("select", "write `redis_db: N`"),
    ("db", "write `redis_db: N`"),
    ("database", "write `redis_db: N`, or `databases: N` for how many there are"),
    // Requests and time.
    ("msg_max_length_limit", "write `item_size_max: SIZE`"),
    ("max_value_size", "write `item_size_max: SIZE`"),
    ("max_item_size", "write `item_size_max: SIZE`"),
    ("retries", "remove it: a request that may have run is never sent again, a read is once"),
    ("read_timeout", "write `timeout_reply: 400ms`"),
    ("write_timeout", "write `timeout_queue: 400ms`"),
    ("connect_timeout", "write `timeout_connect: 400ms`"),
    ("conn_timeout", "write `timeout_connect: 400ms`"),
    ("retry_timeout", "write `server_retry_timeout: 30s`"),
    ("failure_limit", "write `server_failure_limit: N`"),
    ("eject", "write `on_failure: eject`"),
    ("consistent", "write `distribution: ketama`"),
    ("memcache", "write `protocol: memcached`, which is the default"),
    ("memcached", "write `protocol: memcached`, which is the default"),
];

const FILES: &str = "raise the limit where the proxy is started: `LimitNOFILE=` of systemd, \
                     `ulimit -n`; the soft limit is raised to the hard one by itself";
const USER: &str = "start the proxy as that user: `User=` of systemd, `setpriv`; it never needs \
                    root";
const PID_FILE: &str = "give it on the command line: `quickack -d -p FILE`, as with nutcracker";
const LOG: &str = "write `log: /path/of/file` under `global:`, or give `-o FILE` as with \
                   nutcracker";
const LOG_LEVEL: &str = "write `log_level: notice` under `global:`, or give `-v N` as with \
                         nutcracker";
const STATS: &str = "write `stats: HOST:PORT` under `global:`, or give `-a` and `-s` as with \
                     nutcracker";
const SLOW: &str = "write `slowlog_threshold: 100ms`; `quickack slowlog` shows the requests";
const LISTEN: &str = "write `listen: HOST:PORT`, or `listen: /path/of/socket`";
const CLIENTS: &str = "write `client_connections: N` in the pool, or `clients_max: N` under \
                       `global:`";
const KEEPALIVE: &str = "write `tcpkeepalive: on`; the times are the system's, \
                         `net.ipv4.tcp_keepalive_*`";
const ADDRESSES: &str = "bind the listener to an address that only they can reach, use a \
                         firewall, or have clients log in: `users: FILE`";
const TLS: &str = "there is no TLS here: put stunnel or the like beside the proxy";
const SERVERS: &str = "write `servers:` and a list under it: `- HOST:PORT:WEIGHT NAME`";
const SENTINEL: &str = "Sentinel is not asked here: name the masters under `servers:`, best by a \
                        host name that moves with the master; it is looked up every \
                        `resolve_every`";
const REPLICAS: &str = "replicas are not read here: name the masters under `servers:`";
const CLUSTER: &str = "Redis Cluster is not spoken here: servers are standalone, and the proxy \
                       divides the keys";
const ZONES: &str = "remove it: every key has one server, whatever zone that is in";
const PASSWORD: &str = "write `redis_auth: PASSWORD`, or `users: FILE` for clients and \
                        `server_login: FILE` for servers";

/// Values that are none here: directive, value, help.
const VALUES: &[(&str, &str, &str)] = &[
    (
        "distribution",
        "modhash",
        "ranges of hashes are not known here; `modula` is hash modulo weights",
    ),
    (
        "distribution",
        "range",
        "ranges of keys are not known here; keys would move to other servers",
    ),
    ("distribution", "modulo", "write `modula`"),
    ("distribution", "consistent", "write `ketama`"),
    ("distribution", "slot", "Redis Cluster's slots are not known here"),
    ("hash", "murmur_64", "only murmur of 32 bits is known: keys would move to other servers"),
    ("hash", "murmur2", "write `murmur`"),
    ("hash", "murmur3", "murmur 3 is not known: keys would move to other servers"),
    ("hash", "crc32c", "Castagnoli's CRC is not known: keys would move to other servers"),
    ("hash", "fnv1a", "write `fnv1a_64` or `fnv1a_32`; twemproxy's default is `fnv1a_64`"),
    ("hash", "fnv1", "write `fnv1_64` or `fnv1_32`"),
    ("hash", "none", "write `hash_tag` if only a part of the key counts; a hash is always needed"),
    ("protocol", "memcache", "write `memcached`"),
    ("protocol", "valkey", "write `redis`: it is the same protocol"),
    ("protocol", "binary", "write `memcached`: a client's protocol is recognised by itself"),
];

/// Returns the help for a directive that is unknown.
pub fn of_key(key: &str) -> Option<&'static str> {
    let key = key.to_ascii_lowercase();
    let found = KEYS.iter().find(|(name, _)| *name == key);
    found.map(|(_, help)| *help).or_else(|| key.ends_with(":auth").then_some(PASSWORD))
}

/// Returns the help for a key of the top level that has no directives under it.
pub fn of_top(key: &str) -> Option<&'static str> {
    if POOL.iter().any(|row| row.name == key) {
        return Some("it is a directive of a pool: write it below the name of one, and indent it");
    }
    if GLOBAL.iter().any(|row| row.name == key) {
        return Some("it is a directive of the process: write it below `global:`, and indent it");
    }
    of_key(key)
}

/// Returns the help for a text that should have been replaced.
pub fn of_template(text: &str) -> Option<&'static str> {
    let marks = ["{{", "<%", "${", "%{"];
    let has_one = marks.iter().any(|mark| text.contains(mark));
    has_one.then_some("this looks like a template that was not filled in")
}

/// Returns the help for a value that a directive does not have.
pub fn of_value(directive: &str, value: &str) -> Option<&'static str> {
    if let Some(help) = of_template(value) {
        return Some(help);
    }
    let value = value.to_ascii_lowercase();
    let found = VALUES.iter().find(|(name, odd, _)| *name == directive && *odd == value);
    let places = |separator: char| value.matches(separator).count();
    let is_server = directive == "listen" && !value.starts_with('/') && places(':') == 2;
    found
        .map(|(_, _, help)| *help)
        .or(is_server.then_some("a listener has no weight: write `HOST:PORT`"))
}

/// The help for a server's line that has no weight.
pub const NO_WEIGHT: &str = "the weight is part of the line: `HOST:PORT:WEIGHT`, and 1 is usual";
/// The help for a server's line with more words than a name.
pub const WORDS: &str = "one name may follow, without spaces: `HOST:PORT:WEIGHT NAME`";
/// The help for pools under another key.
pub const NESTED: &str = "every top-level key but `global` is a pool: remove this line, and move \
                          what is under it to the left";
/// The help for a name that looks like one with a password.
pub const NAMED_PASSWORD: &str = "as in twemproxy, the whole of it is the name, and places the \
                                  keys; a password belongs in `redis_auth` or in the file of \
                                  `server_login`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_here_is_one_of_ours_and_each_help_says_what_to_do() {
        for (key, help) in KEYS {
            let is_ours = POOL.iter().any(|row| row.name == *key)
                || GLOBAL.iter().any(|row| row.name == *key);
            assert!(!is_ours, "{key} is a directive");
            assert_eq!(KEYS.iter().filter(|(other, _)| other == key).count(), 1, "{key}");
            assert!(!help.ends_with('.') && help.len() > 10, "{key}: {help}");
        }
        for (directive, ..) in VALUES {
            assert!(POOL.iter().any(|row| row.name == *directive), "{directive}");
        }
    }
}
