//! THE table of directives: name, type, default, one sentence, and the setter.
//!
//! The parser, the checks, the suggestions and the reference page all use these rows; a new
//! directive is a new row. A row's type and its setter are one value, so they cannot disagree.

use std::ops::RangeInclusive;

use proxy::limits;
use shard::{Distribution, Hash};

use super::draft::{
    AllowDraft, CommandDraft, CountOrPercent, GlobalDraft, PoolDraft, ServersDraft,
};
use super::list::{DISCOVERY, SERVERS};
use super::network::networks;
use super::process::{AcceptMode, Admin, Workers, access_log_file, log_target, stats_address};
use super::pubsub::{ON_SUBSCRIPTION_LOST, PUBSUB};
use super::tenants::TenantDraft;
use super::unread::{CLIENT_BUFFER_MAX, TIMEOUT_WRITE};
use super::value::Fault;
use super::words::{
    access_log, file_name, multi_key, on_failure, partial, quickack, quickack_words, redis_auth,
    removed_users, slow_keys,
};
use super::{Address, MEMORY_RANGE};
use crate::log::{Format, Level};

/// One directive of a block whose values are collected in a `D`.
pub struct Directive<D: 'static> {
    pub name: &'static str,
    pub kind: Kind<D>,
    pub unwritten: Unwritten,
    pub origin: Origin,
    /// `quickack set` may change it in a running process.
    pub runtime: bool,
    /// One sentence for the reference.
    pub text: &'static str,
}

/// The effect of leaving a directive out.
pub enum Unwritten {
    Required,
    /// A default value, in the form of the file.
    Value(&'static str),
    /// No default value; the text describes the effect.
    Unset(&'static str),
}

/// The origin of a directive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// twemproxy 0.5, with its spelling and meaning.
    Twemproxy,
    /// A directive of our own.
    Native,
}

/// The type of a directive, with the setter for a value of that type.
pub enum Kind<D> {
    /// `true`, `yes` or `on`, and their opposites.
    Switch(fn(&mut D, bool)),
    Number(RangeInclusive<u64>, fn(&mut D, u64)),
    /// Microseconds.
    Duration(fn(&mut D, u64)),
    /// A duration in microseconds, or `off`; 0 means `off` too.
    DurationOrOff(fn(&mut D, Option<u64>)),
    /// A duration that cannot be 0.
    Deadline(fn(&mut D, u64)),
    /// Bytes.
    Size(RangeInclusive<u64>, fn(&mut D, u64)),
    /// One of a few words. The setter returns None for an unknown word.
    Word(fn() -> Vec<&'static str>, fn(&mut D, &str) -> Option<()>),
    /// A list of commands.
    Allow(fn(&mut D, Vec<AllowDraft>)),
    /// Two bytes.
    Tag(fn(&mut D, [u8; 2])),
    /// A secret text, which is never shown.
    Secret(fn(&mut D, &str) -> Result<(), Fault>),
    /// A word with its own grammar, named by the text; it is shown as it was written.
    Own(&'static str, fn(&mut D, &str) -> Result<(), Fault>),
    /// A list of such words. The flag passed to the setter marks the first word of the list.
    Owns(&'static str, fn(&mut D, &str, bool) -> Result<(), Fault>),
    Listen(fn(&mut D, Address)),
    Servers(fn(&mut D, ServersDraft)),
    /// A mapping of command names to the positions of their keys.
    Commands(fn(&mut D, Vec<CommandDraft>)),
    /// A mapping of names to the directives of tenants.
    Tenants(fn(&mut D, Vec<TenantDraft>)),
}

/// A row that a reload and `quickack set` may change.
pub const fn row<D>(
    name: &'static str,
    origin: Origin,
    unwritten: Unwritten,
    kind: Kind<D>,
    text: &'static str,
) -> Directive<D> {
    Directive { name, kind, unwritten, origin, runtime: true, text }
}

/// A row that needs a restart, that names a file, or whose value is secret.
const fn fixed<D>(
    name: &'static str,
    origin: Origin,
    unwritten: Unwritten,
    kind: Kind<D>,
    text: &'static str,
) -> Directive<D> {
    Directive { name, kind, unwritten, origin, runtime: false, text }
}

use Origin::{Native, Twemproxy};
use Unwritten::{Required, Unset, Value};

/// Directives of a pool, twemproxy's first.
#[rustfmt::skip] // One row a thought: name, origin and default on its first line.
pub static POOL: &[Directive<PoolDraft>] = &[
    row("listen", Twemproxy, Required, Kind::Listen(|pool, address| pool.listen = Some(address)),
        "Where clients connect: `host:port` (port 0: any free port), or `/path/of/socket`. An \
         octal file mode may follow the path after a space; without it the umask decides."),
    row("client_connections", Twemproxy, Value("0"),
        Kind::Number(0..=INT_MAX, |pool, count| pool.client_connections = count as usize),
        "The most clients that may be connected at a time. One more is refused with an error \
         line. 0 sets no limit. (twemproxy 0.5 reads the number and ignores it.)"),
    row("hash", Twemproxy, Value("fnv1a_64"),
        Kind::Word(
            || Hash::ALL.iter().map(|hash| hash.name()).collect(),
            |pool, word| Hash::from_name(word).map(|hash| pool.plan.hash = hash),
        ),
        "The hash function for keys; its results are bit for bit those of twemproxy."),
    row("hash_tag", Twemproxy, Unset("the whole key is hashed"),
        Kind::Tag(|pool, tag| pool.plan.hash_tag = Some(tag)),
        "Two characters, such as \"{}\". Only the part of a key between them is hashed, so that \
         keys can be kept together."),
    row("distribution", Twemproxy, Value("ketama"),
        Kind::Word(
            || Distribution::ALL.iter().map(|distribution| distribution.name()).collect(),
            |pool, word| {
                Distribution::from_name(word).map(|found| pool.plan.distribution = found)
            },
        ),
        "How a hash value selects a server: `ketama` uses a consistent-hashing ring, `modula` \
         takes the hash modulo the sum of the weights, `random` picks any server."),
    row("timeout", Twemproxy, Unset("the three `timeout_…` apply"),
        Kind::Duration(|pool, us| pool.timeout = Some(us)),
        "Sets `timeout_connect`, `timeout_queue` and `timeout_reply` at once. 0 means no deadline \
         in twemproxy; here 0 leaves the three at their defaults, so that no request waits \
         forever."),
    row("backlog", Twemproxy, Value("512"),
        Kind::Number(0..=INT_MAX, |pool, count| pool.backlog = count as i32),
        "Connections that the kernel may keep waiting for accept. The kernel has its own bound \
         too, `net.core.somaxconn`."),
    row("tcpkeepalive", Twemproxy, Value("off"),
        Kind::Switch(|pool, on| pool.tcpkeepalive = on),
        "TCP keepalive on the connections of clients. Links to servers always have it."),
    row("preconnect", Twemproxy, Value("off"),
        Kind::Switch(|pool, on| pool.plan.preconnect = on),
        "Connect to every server at start, not at the first request for it."),
    fixed("redis", Twemproxy, Value("off"), Kind::Switch(|pool, on| pool.redis = Some(on)),
        "`true` means `protocol: redis`: clients and servers of the pool speak Redis's protocol."),
    fixed("redis_auth", Twemproxy, Unset("no password"),
        Kind::Secret(|pool, word| redis_auth(word).map(|word| pool.redis_auth = word)),
        "Redis pools: the password that clients must give (`AUTH password`; they are then the \
         user `default`), and that the proxy gives to the servers. `users` replaces the first \
         use, `server_login` the second."),
    row("redis_db", Twemproxy, Value("0"),
        Kind::Number(0..=INT_MAX, |pool, number| pool.redis_db = number as u32),
        "Redis pools: the database that clients use before they send `SELECT`. If a server lacks \
         it, clients get an error; twemproxy would go on in database 0."),
    row("server_connections", Twemproxy, Value("1"),
        Kind::Number(1..=INT_MAX, |pool, count| pool.plan.server_connections = count as usize),
        "Links to each server; in a Redis pool, for each database and RESP version that clients \
         use. One pipelined link is nearly always best."),
    row("auto_eject_hosts", Twemproxy, Value("off"),
        Kind::Switch(|pool, on| pool.auto_eject = Some(on)),
        "`true` means `on_failure: eject`, `false` means `on_failure: fail_fast`."),
    row("server_retry_timeout", Twemproxy, Value("30s"),
        Kind::Duration(|pool, us| pool.plan.server_retry_timeout = us),
        "How long a server stays ejected before it is probed."),
    row("server_failure_limit", Twemproxy, Value("2"),
        Kind::Number(0..=INT_MAX, |pool, count| {
            pool.plan.server_failure_limit = count.max(1) as u32;
        }),
        "Failures in a row after which a server is ejected; 0 is read as 1."),
    SERVERS,
    DISCOVERY,
    fixed("reuseport", Native, Value("off"), Kind::Switch(|pool, on| pool.reuseport = on),
        "`SO_REUSEPORT` on the listener, as in twemproxy's versions after 0.5."),
    fixed("protocol", Native, Value("memcached"),
        Kind::Word(
            || proto::NAMED.iter().map(|protocol| protocol.name()).collect(),
            |pool, word| proto::protocol(word).map(|protocol| pool.protocol = Some(protocol)),
        ),
        "The protocol that clients and servers of the pool speak."),
    row("multi_key", Native, Unset("`split` in a Redis pool"),
        Kind::Word(
            || vec!["split", "refuse"],
            |pool, word| multi_key(word).map(|choice| pool.plan.multi_key = choice),
        ),
        "Redis pools: how DEL, EXISTS, MGET, MSET, TOUCH and UNLINK are handled if their keys are \
         on several servers. `split` asks each server for its own keys and makes one answer; an \
         MSET is then several steps. `refuse` answers CROSSSLOT."),
    row("databases", Native, Unset("16 in a Redis pool, or `redis_db` + 1 if that is more"),
        Kind::Number(1..=DATABASES_MAX, |pool, count| pool.databases = Some(count as u32)),
        "Redis pools: how many databases clients may choose from with `SELECT`, like the \
         directive of that name in the servers' own configuration. Each database in use has its \
         own links."),
    row("commands", Native, Unset("none"),
        Kind::Commands(|pool, rows| pool.commands = rows),
        "Redis pools: commands that quickack does not know, such as those of modules: `{json.get: \
         {key: 1, access: read}}`. `key` is `first[..last[:step]]`, counted as in the servers' \
         COMMAND: the name is 0 and the last argument -1. `access` is `read` or `write`. All keys \
         of a request must be on one server."),
    row("on_failure", Native, Value("fail_fast"),
        Kind::Word(
            || vec!["eject", "fail_fast"],
            |pool, word| on_failure(word).map(|choice| pool.on_failure = Some(choice)),
        ),
        "How the keys of a failed server are handled: `eject` moves them to the other servers \
         until it is back, `fail_fast` answers them with an error at once."),
    row("max_ejected", Native, Value("50%"),
        Kind::Own("number or percentage", |pool, word| CountOrPercent::parse(word).map(|share| {
            pool.max_ejected = share;
        })),
        "How many servers of the pool may be ejected at a time: a number, or a percentage that \
         allows at least one. When that many are ejected, further servers that fail stay in the \
         ring, and requests for them are answered with an error at once."),
    row("server_connections_max", Native, Unset("no cap"),
        Kind::Number(1..=INT_MAX, |pool, count| pool.server_connections_max = Some(count as usize)),
        "The most links to each server that all workers together may have; in a Redis pool, for \
         each database and RESP version that clients use. Each worker needs one link. What \
         `server_connections` leaves of it goes to links of their own for slow requests, for \
         `SCRIPT KILL`, large requests and those that go around a slow one, in this order."),
    row("proxy_protocol", Native, Unset("none"),
        Kind::Owns("list of networks", |pool, word, first| {
            if first {
                pool.proxy_protocol.clear();
            }
            networks(word, &mut pool.proxy_protocol)
        }),
        "Networks, such as `[10.0.0.0/8, ::1]` or `from [10.0.0.0/8]`, whose connections begin \
         with a PROXY header (version 1 or 2) that names the client. On connections from other \
         networks no header is read."),
    fixed("users", Native, Unset("all clients are served"),
        Kind::Own("path of a file", |pool, word| file_name(word).map(|word| {
            pool.users = Some(word);
        })),
        "The users that may use the pool: a file of `name:password` lines that nobody but its \
         owner may read. A relative path begins in the configuration's folder. A name may have \
         several lines. Clients must log in before anything else is answered: by SASL PLAIN, or \
         by a `set` whose value is `name password`; in a Redis pool by `AUTH` or `HELLO`. The \
         file is read again at a reload; `removed_users` says what becomes of clients that are \
         logged in."),
    fixed("server_login", Native, Unset("none"),
        Kind::Own("path of a file", |pool, word| file_name(word).map(|word| {
            pool.server_login = Some(word);
        })),
        "The proxy's own login to the pool's servers: a file like that of `users` with one line, \
         for servers that want a login (memcached's `-Y`, a user of Redis). Each link logs in \
         before it sends anything else. A server that refuses the login is down."),
    row("required", Native, Value("on"), Kind::Switch(|pool, on| pool.required = on),
        "Whether `/readyz` says that the proxy is not ready while the pool has no server that is \
         up."),
    row("timeout_connect", Native, Value("1s"),
        Kind::Deadline(|pool, us| pool.timeout_connect = Some(us)),
        "How long a connect to a server may take."),
    row("timeout_queue", Native, Value("1s"),
        Kind::Deadline(|pool, us| pool.timeout_queue = Some(us)),
        "How long a request may wait before its first byte is sent. One of 1 MiB or more waits for \
         `timeout_slow` if that is longer."),
    row("timeout_reply", Native, Value("1s"),
        Kind::Deadline(|pool, us| pool.timeout_reply = Some(us)),
        "How long a server that owes an answer may be silent."),
    row("timeout_slow", Native, Unset("10s, or `timeout_reply` if that is longer"),
        Kind::Deadline(|pool, us| pool.timeout_slow = Some(us)),
        "How long a command may take, counted from when it was sent, if its data or arguments \
         decide how much work it is: `KEYS`, `SORT`, scripts and others marked `slow` or `varies` \
         in [commands.md](commands.md). While a server is busy with one, its silence is no \
         failure. No command of memcached is one."),
    TIMEOUT_WRITE,
    CLIENT_BUFFER_MAX,
    row("hold_after", Native, Value("30ms"),
        Kind::DurationOrOff(|pool, us| pool.plan.hold_after = us),
        "A server that owes an answer and has been silent this long is sent nothing more until it \
         sends something; far away, three round trips count, at most a quarter of `timeout_reply`. \
         Requests that wait are dropped when their client leaves. `off`, or 0: never."),
    row("slowlog_threshold", Native, Value("off"),
        Kind::DurationOrOff(|pool, us| pool.plan.slow.after = us.unwrap_or(u64::MAX)),
        "A request that takes this long, from its first byte to the last of its answer, is in \
         `quickack slowlog`. `off`: none is. It costs small requests two or three per cent of the \
         worker's instructions. Of a pool a worker records 128 at once, and then 20 a second; \
         `requests_slow_total` counts them all."),
    row("slowlog_sample", Native, Value("1"),
        Kind::Number(1..=1_000_000, |pool, count| pool.plan.slow.one_in = count as u32),
        "One in so many slow requests is recorded."),
    row("slowlog_keys", Native, Value("hash"),
        Kind::Word(|| vec!["hash", "full", "none"], |pool, word| {
            slow_keys(word).map(|keys| pool.plan.slow.keys = keys)
        }),
        "What the slow log and the access log have of a request's first key: a `hash`, the key \
         itself (`full`; of a long key the first 128 bytes), or nothing but its length (`none`)."),
    row("access_log", Native, Value("off"),
        Kind::Own("`off`, `all` or `1/N`", |pool, word| access_log(word).map(|one_in| {
            pool.plan.access_one_in = one_in;
        })),
        "Which requests have a line in `access_log_file`: none, all, or one in so many. What a \
         line has of the key is `slowlog_keys`. See [logs.md](../logs.md)."),
    row("links", Native, Value("shared"),
        Kind::Word(|| vec!["shared", "private"], |pool, word| {
            let is_private = ["shared", "private"].iter().position(|one| *one == word);
            is_private.map(|at| pool.plan.private = at == 1)
        }),
        "Whose the links to the servers are. `shared`: all clients', and a client has links of its \
         own only while it needs them. `private`: each client has a link of its own to each server \
         that it asks, as long as it is connected; `private_connections_max` bounds them."),
    PUBSUB,
    ON_SUBSCRIPTION_LOST,
    row("merge_gets", Native, Value("on"), Kind::Switch(|pool, on| pool.plan.merge_gets = on),
        "Merge the gets that arrive together (in one turn of the event loop) into one multi-key \
         get for each server. Meta reads that ask only for value, flags and cas are merged too, \
         until a client of the pool uses the marks *stale* or *win* through this proxy. If other \
         programs set such marks directly on the servers, use `off`."),
    row("partial", Native, Value("error"),
        Kind::Word(|| vec!["error", "miss"], |pool, word| {
            partial(word).map(|choice| pool.plan.partial = choice)
        }),
        "How a get of several keys ends if a server did not answer: `error` ends it with an error \
         line after the hits of the other servers, `miss` as if those keys had been misses."),
    row("allow", Native, Unset("nothing"),
        Kind::Allow(|pool, names| pool.allow = names),
        "Commands about the servers themselves that clients may give, by their names in \
         [commands.md](commands.md): `[flush_all, stats reset]`, or `[flushall, config|set]` in a \
         Redis pool. `config` alone means all its subcommands that can be allowed. Such a command \
         goes to every server of the pool. If all give the same answer, the client gets that \
         answer; otherwise it gets an error that names each server. A refused command is answered \
         with an error; libmemcached, and so PHP, does not look at the answer to a binary flush. \
         Commands that a script calls are not checked."),
    row("item_size_max", Native,
        Unset("1g, with an `embedded` server 1m, in a Redis pool 128m; or a worker's part of \
               `memory_max` if that is less"),
        Kind::Size(1..=limits::ITEM_SIZE_MAX as u64, |pool, bytes| {
            pool.item_size_max = Some(bytes as usize);
        }),
        "The largest value; a larger one is refused and never sent. A memcached has a limit of its \
         own (`-I`); that of an `embedded` server is this one. As there, the value that a refused \
         `set` or `ms` was to replace is removed; the error adds `old value kept` if the removal \
         could not be sent. In a Redis pool it bounds each argument of 4k or more; such a request \
         is skipped to its end. A whole request may take a worker's part of `memory_max`."),
    fixed("memory", Native, Value("64m"),
        Kind::Size(MEMORY_RANGE, |pool, bytes| pool.memory = Some(bytes as usize)),
        "Memory of each `embedded` server."),
    row("tcp_nodelay", Native, Value("on"), Kind::Switch(|pool, on| pool.tcp_nodelay = on),
        "`TCP_NODELAY` on every connection, of clients and to servers; `off` clears it."),
    row("quickack", Native, Value("partial"),
        Kind::Word(quickack_words, |pool, word| {
            quickack(word).map(|choice| pool.quickack = Some(choice))
        }),
        "Sends the pending ACK to a client at once: `partial` if the bytes received cannot be \
         answered yet, `always` after every read, `off` never. This cures the 40 ms stall of \
         clients that write a request in two pieces."),
    row("server_quickack", Native, Unset("as `quickack`"),
        Kind::Word(quickack_words, |pool, word| {
            quickack(word).map(|choice| pool.server_quickack = Some(choice))
        }),
        "The same for the links to servers."),
];

/// Directives of the `global:` block: settings of the process.
#[rustfmt::skip] // As above.
pub static GLOBAL: &[Directive<GlobalDraft>] = &[
    row("workers", Native, Value("auto"),
        Kind::Own("`auto` or number, 1 to 64", |global, word| Workers::parse(word).map(|workers| {
            global.process.workers = workers;
        })),
        "Worker processes. `auto` starts one for each processor that the process may use, \
         according to its CPU affinity and its cgroup's CPU quota."),
    row("worker_cpu_affinity", Native, Value("off"),
        Kind::Owns("`off`, `auto` or list of numbers", |global, word, first| {
            global.process.affinity.add(word, first)
        }),
        "Processors to which workers are pinned, one each. `auto` takes the processors that may \
         be used, in their order. A list starts again after its last entry."),
    fixed("accept", Native, Value("auto"),
        Kind::Word(
            || ["auto"].into_iter().chain(AcceptMode::ALL.map(AcceptMode::name)).collect(),
            |global, word| {
                global.process.accept = AcceptMode::ALL.into_iter().find(|it| it.name() == word);
                (global.process.accept.is_some() || word == "auto").then_some(())
            },
        ),
        "How workers share new connections: `gate` gives each to the worker with the fewest \
         clients, `reuseport` has a queue for each worker, `mutex` lets one worker at a time \
         accept and is for kernels that support neither, `auto` takes the first of these that the \
         kernel supports."),
    row("epoll_timeout", Native, Value("50ms"),
        Kind::Deadline(|global, us| global.process.epoll_timeout_us = us),
        "With `accept: mutex`: how long a worker that did not get the mutex waits before it tries \
         again."),
    row("memory_max", Native, Value("1g"),
        Kind::Size(16 << 20..=1 << 40, |global, bytes| global.memory_max = bytes as usize),
        "Bytes that all buffers of all workers together may hold, in equal parts. A worker that \
         would exceed its part refuses values and never queues them."),
    row("clients_max", Native, Unset("as many as the limit of open files allows"),
        Kind::Number(1..=INT_MAX, |global, count| global.clients_max = Some(count as usize)),
        "The most clients of all pools and workers together."),
    row("private_connections_max", Native, Value("1000"),
        Kind::Number(0..=INT_MAX, |global, count| global.private_max = count),
        "The most links that serve one client only, of all pools and workers together: those of \
         pools with `links: private`, and of clients that watch keys or wait for elements. A \
         request that needs one more is answered with an error."),
    fixed("tenants", Native, Unset("none"),
        Kind::Tenants(|global, tenants| global.tenants = tenants),
        "Groups of users, listeners and pools with limits, rules and figures of their own: see \
         below, and [tenants.md](../tenants.md)."),
    row("removed_users", Native, Value("close"),
        Kind::Word(|| vec!["close", "keep"], |global, word| {
            removed_users(word).map(|choice| global.removed_users = choice)
        }),
        "What becomes of a client whose user a reload has removed: `close` closes it when its \
         outstanding requests are answered, `keep` lets it stay until it closes."),
    row("server_connects_max", Native, Value("1000"),
        Kind::Number(0..=INT_MAX, |global, count| global.process.server_connects_max = count),
        "Connects to servers that all workers together may start in a second, so that a server \
         that comes back is not flooded. 0 sets no limit."),
    fixed("admin", Native, Unset("a path derived from the file's"),
        Kind::Own("`/path/of/socket` or `off`", |global, word| Admin::parse(word).map(|admin| {
            global.process.admin = admin;
        })),
        "The socket for `quickack reload`, `set`, `config`, `stats` and the like. Only its owner \
         and root may use it. admin.md says where it is by default."),
    row("stats", Native, Unset("not served"),
        Kind::Own("`host:port`", |global, word| stats_address(word).map(|address| {
            global.process.stats = Some(address);
        })),
        "Address on which twemproxy's JSON is served to everybody who connects; port 0 is any \
         free port."),
    row("http", Native, Unset("not served"),
        Kind::Own("`host:port` or `/path/of/socket [mode]`", |global, word| {
            Address::parse(word).map(|address| global.process.http = Some(address))
        }),
        "Address on which a process of its own serves `/metrics` for Prometheus, `/healthz`, \
         `/readyz` and `/stats.json` to everybody who connects; port 0 is any free port. Nothing \
         can be changed over it."),
    row("log", Native, Value("stderr"),
        Kind::Own("`stderr`, `syslog`, `syslog:/path/of/socket` or `/path/of/file`",
            |global, word| log_target(word).map(|target| global.process.log = target)),
        "Where the log goes. `syslog` is the daemon behind /dev/log. Lines to stderr have the \
         level in the form of systemd's journal if that is what reads them. A file is reopened \
         at USR1, at HUP and by `quickack reload`. Lines that cannot be written, as on a full \
         disk, are counted and reported later."),
    row("log_format", Native, Value("text"),
        Kind::Word(Format::names, |global, word| {
            Format::from_name(word).map(|format| global.process.log_format = format)
        }),
        "`text` for people; `json` is one object per line."),
    row("log_level", Native, Value("notice"),
        Kind::Word(Level::names, |global, word| {
            Level::from_name(word).map(|level| global.process.log_level = level)
        }),
        "The log has messages of this level and of all more important ones: `error` (an operator \
         must act), `warning` (a problem that the proxy has handled), `notice` (of interest to an \
         operator), `debug` (everything else)."),
    fixed("access_log_file", Native, Unset("none"),
        Kind::Own("`/path/of/file`", |global, word| access_log_file(word).map(|path| {
            global.process.access_log = Some(path);
        })),
        "The file, or named pipe, that the lines of pools with an `access_log` go to. A process \
         of its own writes it, so that no worker waits for a disk. It is reopened when the log \
         is. Lines that cannot be written are counted (`access_lines_lost_total`)."),
    fixed("access_log_format", Native, Value("text"),
        Kind::Word(Format::names, |global, word| {
            Format::from_name(word).map(|format| global.process.access_log_format = format)
        }),
        "`text`: `name=value` fields behind the time; `json`: one object per line."),
    row("shutdown_delay", Native, Value("0"),
        Kind::Duration(|global, us| global.process.shutdown_delay_us = us),
        "How long the proxy serves on after it was told to end (TERM, `quickack drain`), while \
         `/readyz` says 503: so a balancer sends its clients elsewhere before any is closed. A \
         second signal ends the delay."),
    row("shutdown_timeout", Native, Value("10s"),
        Kind::Duration(|global, us| global.process.shutdown_timeout_us = us),
        "How long clients may take for their last answers, and to send the rest of a request that \
         they have begun, when the process, or one of its workers, is to exit; 0 waits for no \
         client."),
    row("hang_timeout", Native, Value("2s"),
        Kind::Duration(|global, us| global.process.hang_timeout_us = us),
        "A worker whose heartbeat stops for this long is killed with a core dump and replaced, and \
         so is one that has not read a message of the master for 5 s. 0 turns both off."),
    row("resolve_every", Native, Value("30s"),
        Kind::Deadline(|global, us| global.process.resolve_every_us = us),
        "How often the names of servers' hosts are looked up. A server whose name has another \
         address moves there, for all workers at once; its keys stay its own. A name that does \
         not resolve is looked up again after a second, then after twice as long each time."),
];

/// twemproxy keeps its numbers in an `int`.
pub const INT_MAX: u64 = i32::MAX as u64;
/// More than any deployment has. Each database in use has its own links.
const DATABASES_MAX: u64 = 65_536;
