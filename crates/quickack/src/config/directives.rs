//! THE table of directives: name, type, default, one sentence, and the setter.
//!
//! The parser, the checks, the suggestions and the reference page all use these rows; a new
//! directive is a new row. A row's type and its setter are one value, so they cannot disagree.

use std::ops::RangeInclusive;

use proxy::limits;
use proxy::plan::{MultiKey, OnFailure, Partial, QuickAck};
use shard::{Distribution, Hash};

use super::allow::AllowDraft;
use super::commands::CommandDraft;
use super::draft::{GlobalDraft, PoolDraft, ServerDraft, Share};
use super::network::networks;
use super::process::{Accept, Admin, Workers, log_target, stats_address};
use super::value::Fault;
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
    Servers(fn(&mut D, Vec<ServerDraft>)),
    /// A mapping of command names to the positions of their keys.
    Commands(fn(&mut D, Vec<CommandDraft>)),
}

const fn row<D>(
    name: &'static str,
    origin: Origin,
    unwritten: Unwritten,
    kind: Kind<D>,
    text: &'static str,
) -> Directive<D> {
    Directive { name, kind, unwritten, origin, runtime: false, text }
}

/// A row of our own that `quickack set` may change.
const fn live<D>(
    name: &'static str,
    unwritten: Unwritten,
    kind: Kind<D>,
    text: &'static str,
) -> Directive<D> {
    Directive { name, kind, unwritten, origin: Native, runtime: true, text }
}

/// A row of twemproxy's that `quickack set` may change.
const fn live_twemproxy<D>(
    name: &'static str,
    unwritten: Unwritten,
    kind: Kind<D>,
    text: &'static str,
) -> Directive<D> {
    Directive { name, kind, unwritten, origin: Twemproxy, runtime: true, text }
}

use Origin::{Native, Twemproxy};
use Unwritten::{Required, Unset, Value};

/// Directives of a pool, twemproxy's first.
#[rustfmt::skip] // One row a thought: name, origin and default on its first line.
pub static POOL: &[Directive<PoolDraft>] = &[
    row("listen", Twemproxy, Required, Kind::Listen(|pool, address| pool.listen = Some(address)),
        "Where clients connect: `host:port` (port 0: any free one), or `/path/of/socket`, with an \
         octal file mode after a space if the umask is not to decide."),
    live_twemproxy("client_connections", Value("0"),
        Kind::Number(0..=INT_MAX, |pool, count| pool.client_connections = count as usize),
        "Clients that may be connected at a time; one more is refused with a sentence. 0 sets no \
         limit. (twemproxy 0.5 reads the number and ignores it.)"),
    row("hash", Twemproxy, Value("fnv1a_64"),
        Kind::Word(
            || Hash::ALL.iter().map(|hash| hash.name()).collect(),
            |pool, word| Hash::from_name(word).map(|hash| pool.plan.hash = hash),
        ),
        "How a key becomes a number; bit for bit twemproxy's."),
    row("hash_tag", Twemproxy, Unset("the whole key counts"),
        Kind::Tag(|pool, tag| pool.plan.hash_tag = Some(tag)),
        "Two characters, such as \"{}\": only what stands between them in a key is hashed, so \
         that keys can be kept together."),
    row("distribution", Twemproxy, Value("ketama"),
        Kind::Word(
            || Distribution::ALL.iter().map(|distribution| distribution.name()).collect(),
            |pool, word| {
                Distribution::from_name(word).map(|found| pool.plan.distribution = found)
            },
        ),
        "How the servers share the numbers: a consistent ring, the number modulo the sum of \
         weights, or any server."),
    live_twemproxy("timeout", Unset("the three `timeout_…` hold"),
        Kind::Duration(|pool, us| pool.timeout = Some(us)),
        "Sets `timeout_connect`, `timeout_queue` and `timeout_reply` at once. 0, which is no \
         deadline in twemproxy, leaves their defaults: nobody here waits forever."),
    row("backlog", Twemproxy, Value("512"),
        Kind::Number(0..=INT_MAX, |pool, count| pool.backlog = count as i32),
        "Connections that the kernel may keep waiting for accept; it has a bound of its own, \
         `net.core.somaxconn`."),
    row("tcpkeepalive", Twemproxy, Value("off"),
        Kind::Switch(|pool, on| pool.tcpkeepalive = on),
        "TCP keepalive on the connections of clients. Links to servers always have it."),
    row("preconnect", Twemproxy, Value("off"),
        Kind::Switch(|pool, on| pool.plan.preconnect = on),
        "Connect to every server at start, not at the first request for it."),
    row("redis", Twemproxy, Value("off"), Kind::Switch(|pool, on| pool.redis = Some(on)),
        "Whether clients and servers of the pool speak Redis: `true` is `protocol: redis`."),
    row("redis_auth", Twemproxy, Unset("no password"),
        Kind::Secret(|pool, word| redis_auth(word).map(|word| pool.redis_auth = word)),
        "Redis pools: the password that clients have to give (`AUTH password`; as a user they are \
         `default`), and that the servers are given. `users` stands in for the one, \
         `server_login` for the other."),
    row("redis_db", Twemproxy, Value("0"),
        Kind::Number(0..=INT_MAX, |pool, number| pool.redis_db = number as u32),
        "Redis pools: the database that clients are in before they say `SELECT`. A server that \
         lacks it answers an error, where twemproxy would go on in database 0."),
    row("server_connections", Twemproxy, Value("1"),
        Kind::Number(1..=INT_MAX, |pool, count| pool.plan.server_connections = count as usize),
        "Links to each server; in a Redis pool, for each database and version of RESP that clients \
         are in. One pipelined link is nearly always best."),
    row("auto_eject_hosts", Twemproxy, Value("off"),
        Kind::Switch(|pool, on| pool.auto_eject = Some(on)),
        "`true` is `on_failure: eject`, `false` is `on_failure: fail_fast`."),
    live_twemproxy("server_retry_timeout", Value("30s"),
        Kind::Duration(|pool, us| pool.plan.server_retry_timeout = us),
        "How long an ejected server stays out before it is probed."),
    live_twemproxy("server_failure_limit", Value("2"),
        Kind::Number(0..=INT_MAX, |pool, count| {
            pool.plan.server_failure_limit = count.max(1) as u32;
        }),
        "Failures in a row after which a server is ejected; 0 is read as 1."),
    row("servers", Twemproxy, Required, Kind::Servers(|pool, servers| pool.servers = servers),
        "A list of `host:port:weight [name]`, `/path/of/socket:weight [name]`, or `embedded`: a \
         cache process of this program. The ring hashes the name or, without one, the host and \
         port (the host alone if the port is 11211). Hosts are looked up once, at start."),
    row("reuseport", Native, Value("off"), Kind::Switch(|pool, on| pool.reuseport = on),
        "`SO_REUSEPORT` on the listener, as in twemproxy's versions after 0.5."),
    row("protocol", Native, Value("memcached"),
        Kind::Word(
            || proto::NAMED.iter().map(|protocol| protocol.name()).collect(),
            |pool, word| proto::protocol(word).map(|protocol| pool.protocol = Some(protocol)),
        ),
        "What clients and servers of the pool speak."),
    row("multi_key", Native, Unset("`split` in a Redis pool"),
        Kind::Word(
            || vec!["split", "refuse"],
            |pool, word| multi_key(word).map(|choice| pool.plan.multi_key = choice),
        ),
        "Redis pools: what becomes of DEL, EXISTS, MGET, MSET, TOUCH and UNLINK whose keys live on \
         several servers. `split` asks each for its own and makes one answer; an MSET is then \
         several steps. `refuse` answers CROSSSLOT."),
    row("databases", Native, Unset("16, or `redis_db` and one more, in a Redis pool"),
        Kind::Number(1..=DATABASES_MAX, |pool, count| pool.databases = Some(count as u32)),
        "Redis pools: how many databases clients may choose from with `SELECT`, as the directive \
         of that name in the servers' own configuration. Each that is used has links of its own."),
    row("commands", Native, Unset("none"),
        Kind::Commands(|pool, rows| pool.commands = rows),
        "Redis pools: commands that quickack does not know, such as those of modules: \
         `{json.get: {key: 1, access: read}}`. `key` is `first[..last[:step]]`, counted as in the \
         servers' COMMAND, where the name is 0 and the last argument -1; `access` is `read` or \
         `write`. All keys of a request must live on one server."),
    row("on_failure", Native, Value("fail_fast"),
        Kind::Word(
            || vec!["eject", "fail_fast"],
            |pool, word| on_failure(word).map(|choice| pool.on_failure = Some(choice)),
        ),
        "What becomes of the keys of a server that is gone: `eject` moves them to the others \
         until it is back, `fail_fast` answers them with an error at once."),
    live("max_ejected", Value("50%"),
        Kind::Own("number or percentage", |pool, word| Share::parse(word).map(|share| {
            pool.max_ejected = share;
        })),
        "How many servers of the pool may be ejected at a time: a number, or a part of them, of \
         which at least one. What fails beyond it stays in the ring and fails fast."),
    live("server_connections_max", Unset("no cap"),
        Kind::Number(1..=INT_MAX, |pool, count| pool.server_connections_max = Some(count as usize)),
        "Links to each server that all workers together may have; in a Redis pool, of each \
         database and version of RESP that clients are in. Each worker needs one, so the number of \
         workers is the least."),
    row("proxy_protocol", Native, Unset("nobody"),
        Kind::Owns("list of networks", |pool, word, first| {
            if first {
                pool.proxy_protocol.clear();
            }
            networks(word, &mut pool.proxy_protocol)
        }),
        "Networks, such as `[10.0.0.0/8, ::1]` or `from [10.0.0.0/8]`, whose connections begin \
         with a PROXY header (version 1 or 2) that names the client. From elsewhere none is \
         read."),
    row("users", Native, Unset("everybody is served"),
        Kind::Own("path of a file", |pool, word| file_name(word).map(|word| {
            pool.users = Some(word);
        })),
        "Who may use the pool: a file of `name:password` lines, in the configuration's folder if \
         its path is relative, that nobody but its owner may read. A name may have several lines. \
         Clients are answered nothing before they have logged in: by SASL PLAIN, or by a `set` \
         whose value is `name password`; in a Redis pool by `AUTH` or `HELLO`. Read again at a \
         reload; who is logged in stays."),
    row("server_login", Native, Unset("none"),
        Kind::Own("path of a file", |pool, word| file_name(word).map(|word| {
            pool.server_login = Some(word);
        })),
        "Who the proxy is to the pool's servers: a file like that of `users` with one line, for \
         servers that want a login (memcached's `-Y`, a user of Redis). Each link says it before \
         anything else; a server that refuses it is down."),
    live("timeout_connect", Value("1s"),
        Kind::Deadline(|pool, us| pool.timeout_connect = Some(us)),
        "How long a connect to a server may take."),
    live("timeout_queue", Value("1s"),
        Kind::Deadline(|pool, us| pool.timeout_queue = Some(us)),
        "How long a request may wait before its first byte is sent."),
    live("timeout_reply", Value("1s"),
        Kind::Deadline(|pool, us| pool.timeout_reply = Some(us)),
        "How long a server that owes an answer may be silent."),
    live("hold_after", Value("30ms"), Kind::DurationOrOff(|pool, us| pool.plan.hold_after = us),
        "A server that owes an answer and has been silent this long is sent nothing more until it \
         speaks; what waits for it is dropped when its client leaves. `off`, or 0, sends at once."),
    row("merge_gets", Native, Value("on"), Kind::Switch(|pool, on| pool.plan.merge_gets = on),
        "Gather the gets of one turn into one get of several keys for each server. Meta reads of \
         value, flags and cas join them until somebody in the pool uses stale or win marks through \
         this proxy; where marks are made past it, say `off`."),
    row("partial", Native, Value("error"),
        Kind::Word(
            || vec!["error", "miss"],
            |pool, word| partial(word).map(|choice| pool.plan.partial = choice),
        ),
        "How a get of several keys ends when a server did not answer: with an error line after \
         the hits of the others, or plainly, as if those keys had been misses."),
    row("allow", Native, Unset("nothing"),
        Kind::Allow(|pool, names| pool.allow = names),
        "Commands about the servers themselves that clients may give, by the names of \
         [commands.md](commands.md), such as `[flush_all, stats reset]`, or \
         `[flushall, config|set]` in a Redis pool; `config` alone means all subcommands of it that \
         can be allowed. Such a command goes to every server of the pool. If all give the same \
         answer the client reads that, otherwise an error that names each. A refused one says so; \
         libmemcached, and php with it, does not look at the answer to a binary flush. What a \
         script calls is not looked at."),
    row("item_size_max", Native,
        Unset("1m; in a Redis pool 128m, or a worker's part of `memory_max`"),
        Kind::Size(1..=limits::ITEM_SIZE_MAX as u64, |pool, bytes| {
            pool.item_size_max = Some(bytes as usize);
        }),
        "The largest value; a larger one is refused and never sent. As with memcached, what a \
         `set` or `ms` was to replace is removed; the error adds `old value kept` where that could \
         not be sent. In a Redis pool it bounds a request's last argument; all others together \
         have 32m."),
    row("memory", Native, Value("64m"),
        Kind::Size(MEMORY_RANGE, |pool, bytes| pool.memory = Some(bytes as usize)),
        "Memory of each `embedded` server."),
    row("tcp_nodelay", Native, Value("on"), Kind::Switch(|pool, on| pool.tcp_nodelay = on),
        "`TCP_NODELAY` on every connection, of clients and to servers; `off` clears it."),
    row("quickack", Native, Value("partial"),
        Kind::Word(quickack_words, |pool, word| {
            quickack(word).map(|choice| pool.quickack = Some(choice))
        }),
        "When the pending ACK of a client is sent at once: `partial` if what has arrived cannot \
         be answered yet, `always` after every read, `off` never. It cures the stall of clients \
         that write a request in two pieces."),
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
        "Worker processes; `auto` is one for each processor that may be used, by affinity and by \
         the cgroup's quota."),
    row("worker_cpu_affinity", Native, Value("off"),
        Kind::Owns("`off`, `auto` or list of numbers", |global, word, first| {
            global.process.affinity.add(word, first)
        }),
        "Processors that workers are pinned to, one each: `auto` takes those that may be used in \
         their order, a list is begun again after its last."),
    row("accept", Native, Value("auto"),
        Kind::Word(
            || Accept::ALL.iter().map(|accept| accept.name()).collect(),
            |global, word| {
                let found = Accept::ALL.iter().find(|accept| accept.name() == word)?;
                global.process.accept = *found;
                Some(())
            },
        ),
        "How workers share new connections: `gate` gives each to the worker that has the fewest, \
         `reuseport` has a queue for each worker, `mutex` lets one worker at a time accept and is \
         for kernels that cannot do either, `auto` asks the kernel."),
    live("epoll_timeout", Value("50ms"),
        Kind::Deadline(|global, us| global.process.epoll_timeout_us = us),
        "With `accept: mutex`: how long a worker that did not get the mutex waits before it tries \
         again."),
    live("memory_max", Value("1g"),
        Kind::Size(16 << 20..=1 << 40, |global, bytes| global.memory_max = bytes as usize),
        "Bytes that all buffers of all workers together may hold, in equal parts; above its part \
         a worker refuses values and never queues them."),
    live("clients_max", Unset("what the limit of open files leaves room for"),
        Kind::Number(1..=INT_MAX, |global, count| global.clients_max = Some(count as usize)),
        "Clients of all pools and workers together."),
    live("server_connects_max", Value("1000"),
        Kind::Number(0..=INT_MAX, |global, count| global.process.server_connects_max = count),
        "Connects to servers that all workers together may begin in a second, so that a server \
         that comes back is not buried; 0 sets no limit."),
    row("admin", Native, Unset("a path that follows from the file's"),
        Kind::Own("`/path/of/socket` or `off`", |global, word| Admin::parse(word).map(|admin| {
            global.process.admin = admin;
        })),
        "The socket of `quickack reload`, `set`, `config`, `stats` and the like; only its owner \
         and root may use it. See admin.md for where it is otherwise."),
    row("stats", Native, Unset("nowhere"),
        Kind::Own("`host:port`", |global, word| stats_address(word).map(|address| {
            global.process.stats = Some(address);
        })),
        "Where twemproxy's JSON is served to whoever connects; port 0 is any free one."),
    row("log", Native, Value("stderr"),
        Kind::Own("`stderr` or `/path/of/file`", |global, word| log_target(word).map(|target| {
            global.process.log = target;
        })),
        "Where the log goes. A file is opened anew at USR1, at HUP and by `quickack reload`. Lines \
         that cannot be written, as on a full disk, are counted and told of later."),
    row("log_format", Native, Value("text"),
        Kind::Word(Format::names, |global, word| {
            Format::from_name(word).map(|format| global.process.log_format = format)
        }),
        "`text` for people; `json` is one object a line."),
    live("log_level", Value("notice"),
        Kind::Word(Level::names, |global, word| {
            Level::from_name(word).map(|level| global.process.log_level = level)
        }),
        "The least that is logged: `error` is what needs somebody, `warning` what was dealt with, \
         `notice` what an operator wants to know, `debug` the rest."),
    live("shutdown_timeout", Value("10s"),
        Kind::Duration(|global, us| global.process.shutdown_timeout_us = us),
        "How long clients may wait for their last answers when the process, or one of its \
         workers, is to end; 0 waits for nobody."),
    live("hang_timeout", Value("2s"),
        Kind::Duration(|global, us| global.process.hang_timeout_us = us),
        "A worker whose heartbeat stands still that long is dumped and replaced; 0 lets it \
         stand."),
];

/// twemproxy keeps its numbers in an `int`.
const INT_MAX: u64 = i32::MAX as u64;

fn file_name(word: &str) -> Result<String, Fault> {
    match word.is_empty() || word.contains(char::is_control) {
        true => Err(Fault::new("a file's path is of visible characters")),
        false => Ok(word.to_string()),
    }
}

fn on_failure(word: &str) -> Option<OnFailure> {
    match word {
        "eject" => Some(OnFailure::Eject),
        "fail_fast" => Some(OnFailure::FailFast),
        _ => None,
    }
}

fn multi_key(word: &str) -> Option<MultiKey> {
    match word {
        "split" => Some(MultiKey::Split),
        "refuse" => Some(MultiKey::Refuse),
        _ => None,
    }
}

/// Returns None if the value is empty, which twemproxy also treats as no password.
fn redis_auth(word: &str) -> Result<Option<String>, Fault> {
    match word.len() {
        0 => Ok(None),
        1..=REDIS_AUTH_LEN_MAX if !word.contains(char::is_control) => Ok(Some(word.to_string())),
        _ => {
            let message = format!(
                "a password has at most {REDIS_AUTH_LEN_MAX} bytes and no control characters"
            );
            Err(Fault::new(message))
        }
    }
}

/// twemproxy's limit.
const REDIS_AUTH_LEN_MAX: usize = 255;
/// More than any deployment has. Each database in use has its own links.
const DATABASES_MAX: u64 = 65_536;

fn partial(word: &str) -> Option<Partial> {
    match word {
        "error" => Some(Partial::Error),
        "miss" => Some(Partial::Miss),
        _ => None,
    }
}

fn quickack_words() -> Vec<&'static str> {
    vec!["partial", "always", "off"]
}

fn quickack(word: &str) -> Option<QuickAck> {
    match word {
        "partial" => Some(QuickAck::Partial),
        "always" => Some(QuickAck::Always),
        "off" => Some(QuickAck::Off),
        _ => None,
    }
}
