//! Tests the table against the plan, directive by directive; texts against values; garbage.

mod faults;
mod migration;
mod redis;
mod tenants;

use std::fs;
use std::time::Duration;

use proxy::plan::{OnFailure, OnSubscriptionLost, Partial, PoolPlan, PubSub, QuickAck, SlowKeys};
use proxy::tenants::plan::RemovedUsers;
use shard::{Distribution, Hash};

use super::directives::{GLOBAL, POOL, Unwritten};
use super::*;
use crate::log;

const POOL_TEXT: &str = "p:\n  listen: 127.0.0.1:1\n  servers: [127.0.0.1:11211:1]\n";

fn config(text: &str) -> Config {
    let outcome = compile("test.yml", text, &[]);
    let report = outcome.report.render_text();
    outcome.config.unwrap_or_else(|| panic!("{text}\n{report}"))
}

/// Compiles a pool with one more directive.
fn with(directive: &str) -> Config {
    config(&format!("{POOL_TEXT}  {directive}\n"))
}

fn pool(config: &Config) -> &PoolPlan {
    &config.plan.pools[0]
}

/// Renders everything in a configuration as text.
fn shown(config: &Config) -> String {
    let pools: Vec<String> = config.plan.pools.iter().map(shown_pool).collect();
    let Config { plan, process, listeners, upstreams, .. } = config;
    let (memory_max, clients_max) = (plan.memory_max, plan.clients_max);
    format!("{pools:?} {process:?} {memory_max} {clients_max} {listeners:?} {upstreams:?}")
}

fn shown_pool(pool: &PoolPlan) -> String {
    let PoolPlan { name, protocol, hash, distribution, hash_tag, servers, .. } = pool;
    let PoolPlan { server_connections, preconnect, timeouts, on_failure, .. } = pool;
    let PoolPlan { server_failure_limit, server_retry_timeout, client_connections, .. } = pool;
    let PoolPlan { merge_gets, partial, allow, item_size_max, quickack, server_quickack, .. } =
        pool;
    let PoolPlan {
        hold_after,
        users,
        server_login,
        multi_key,
        databases,
        database,
        extras,
        slow,
        access_one_in,
        ..
    } = pool;
    let protocol = protocol.name();
    format!(
        "{name} {protocol} {hash:?} {distribution:?} {hash_tag:?} {servers:?} {server_connections} \
         {preconnect} {timeouts:?} {on_failure:?} {server_failure_limit} {server_retry_timeout} \
         {client_connections} {merge_gets} {partial:?} {allow:?} {item_size_max} {quickack:?} \
         {server_quickack:?} {hold_after:?} {users:?} {server_login:?} {multi_key:?} \
         {databases} {database} {extras:?} {slow:?} {access_one_in}"
    )
}

#[test]
fn a_directive_that_is_written_with_its_default_changes_nothing() {
    let mut written = String::from(POOL_TEXT);
    let unwritten = config(&written);
    for directive in POOL {
        if let Unwritten::Value(word) = directive.unwritten {
            written += &format!("  {}: {word}\n", directive.name);
        }
    }
    written += "global:\n";
    for directive in GLOBAL {
        if let Unwritten::Value(word) = directive.unwritten {
            written += &format!("  {}: {word}\n", directive.name);
        }
    }
    let outcome = compile("test.yml", &written, &[]);
    let written = outcome.config.unwrap();
    assert_eq!(shown(&written), shown(&unwritten));
    for block in &written.blocks {
        assert_eq!(block.told(), Vec::<String>::new(), "and is not told of as a setting");
    }
}

#[test]
fn the_defaults_are_twemproxys() {
    let config = config(POOL_TEXT);
    let pool = pool(&config);
    assert_eq!((pool.hash, pool.distribution), (Hash::Fnv64a, Distribution::Ketama));
    assert_eq!((pool.server_connections, pool.preconnect), (1, false));
    assert_eq!((pool.server_failure_limit, pool.server_retry_timeout), (2, 30_000_000));
    assert_eq!(pool.on_failure, OnFailure::FailFast);
    assert_eq!(pool.client_connections, usize::MAX);
    assert_eq!(config.listeners[0].backlog, 512);
    assert!(!config.listeners[0].tcp.keepalive);
}

/// A directive, and a condition on a pool with it.
type Effect = (&'static str, fn(&Config) -> bool);

const EFFECTS: &[Effect] = &[
    ("client_connections: 7", |c| pool(c).client_connections == 7),
    ("hash: md5", |c| pool(c).hash == Hash::Md5),
    ("hash_tag: '{}'", |c| pool(c).hash_tag == Some(*b"{}")),
    ("distribution: modula", |c| pool(c).distribution == Distribution::Modula),
    ("slowlog_threshold: 30ms", |c| pool(c).slow.after == 30_000),
    ("slowlog_sample: 7", |c| pool(c).slow.one_in == 7),
    ("access_log: 1/9\nglobal:\n  access_log_file: /a", |c| pool(c).access_one_in == 9),
    ("access_log: all\nglobal:\n  access_log_file: /a", |c| pool(c).access_one_in == 1),
    ("slowlog_keys: none", |c| pool(c).slow.keys == SlowKeys::None),
    ("timeout: 400", |c| pool(c).timeouts.reply == 400_000),
    ("backlog: 9", |c| c.listeners[0].backlog == 9),
    ("tcpkeepalive: true", |c| c.listeners[0].tcp.keepalive),
    ("preconnect: true", |c| pool(c).preconnect),
    ("required: no", |c| !c.upstreams[0].required),
    ("server_connections: 3", |c| pool(c).server_connections == 3),
    ("auto_eject_hosts: true", |c| pool(c).on_failure == OnFailure::Eject),
    ("server_retry_timeout: 2000", |c| pool(c).server_retry_timeout == 2_000_000),
    ("server_failure_limit: 5", |c| pool(c).server_failure_limit == 5),
    ("max_ejected: 0", |c| pool(c).max_ejected == Some(0)),
    ("server_connections_max: 64\n  server_connections: 65", |c| {
        pool(c).server_connections == 64 / c.process.worker_count()
    }),
    ("proxy_protocol: from [10.0.0.0/8, ::1]", |c| {
        let shown: Vec<String> =
            c.listeners[0].proxy_protocol.iter().map(|n| n.to_string()).collect();
        shown == ["10.0.0.0/8", "::1/128"]
    }),
    ("reuseport: true", |c| c.listeners[0].reuseport),
    ("on_failure: eject", |c| pool(c).on_failure == OnFailure::Eject),
    ("timeout_connect: 2s", |c| pool(c).timeouts.connect == 2_000_000),
    ("timeout_queue: 30us", |c| pool(c).timeouts.queue == 30),
    ("timeout_reply: 1m", |c| pool(c).timeouts.reply == 60_000_000),
    ("timeout_write: 5s", |c| pool(c).timeouts.write == 5_000_000),
    ("client_buffer_max: 1m", |c| pool(c).client_buffer_max == 1 << 20),
    ("timeout_slow: 30s", |c| pool(c).timeouts.slow == 30_000_000),
    ("hold_after: 0", |c| pool(c).hold_after.is_none()),
    ("links: private\n  protocol: redis", |c| pool(c).private),
    ("pubsub: hashed\n  protocol: redis", |c| pool(c).pubsub == PubSub::Hashed),
    ("on_subscription_lost: keep\n  protocol: redis", |c| {
        pool(c).on_subscription_lost == OnSubscriptionLost::Keep
    }),
    ("merge_gets: off", |c| !pool(c).merge_gets),
    ("partial: miss", |c| pool(c).partial == Partial::Miss),
    ("allow: [flush_all]", |c| pool(c).allow == ["flush_all"]),
    ("allow: [stats reset, slabs, slabs]", |c| pool(c).allow == ["stats reset", "slabs"]),
    ("item_size_max: 8k", |c| pool(c).item_size_max == 8192),
    ("tcp_nodelay: no", |c| !c.listeners[0].tcp.nodelay && !c.upstreams[0].tcp.nodelay),
    ("quickack: off", |c| {
        let everywhere = [pool(c).quickack, pool(c).server_quickack, c.listeners[0].quickack];
        everywhere == [QuickAck::Off; 3]
    }),
    ("server_quickack: always", |c| {
        pool(c).quickack == QuickAck::Partial && pool(c).server_quickack == QuickAck::Always
    }),
];

#[test]
fn every_directive_has_its_effect() {
    let elsewhere = [
        "listen",
        "servers",
        "discovery",
        "memory",
        "protocol",
        "redis",
        "redis_auth",
        "redis_db",
        "multi_key",
        "databases",
        "commands",
        "users",
        "server_login",
    ];
    for directive in POOL.iter().filter(|directive| !elsewhere.contains(&directive.name)) {
        let name = directive.name;
        let start = format!("{name}:");
        let (line, holds) = EFFECTS.iter().find(|(line, _)| line.starts_with(&start)).expect(name);
        assert!(holds(&with(line)), "{line}");
        assert!(!holds(&config(POOL_TEXT)), "{line} would hold without being written");
    }
}

const GLOBAL_EFFECTS: &[Effect] = &[
    ("workers: 3", |c| c.process.worker_count() == 3),
    ("worker_cpu_affinity: [1, 0]", |c| c.process.affinity == Affinity::List(vec![1, 0])),
    ("accept: reuseport", |c| c.process.accept == Some(AcceptMode::Reuseport)),
    ("epoll_timeout: 7us", |c| c.process.epoll_timeout_us == 7),
    ("memory_max: 2g", |c| c.plan.memory_max == 2 << 30),
    ("clients_max: 9", |c| c.plan.clients_max == 9),
    ("private_connections_max: 9", |c| c.plan.private_max == 9),
    ("server_connects_max: 0", |c| c.process.server_connects_max == 0),
    ("admin: off", |c| c.process.admin == Admin::Off),
    ("stats: 127.0.0.1:22222", |c| c.process.stats.is_some()),
    ("http: '[::1]:9100'", |c| {
        c.process.http.as_ref().is_some_and(|it| it.to_string() == "[::1]:9100")
    }),
    ("log: /tmp/log", |c| c.process.log == log::Target::File("/tmp/log".into())),
    ("log_format: json", |c| c.process.log_format == log::Format::Json),
    ("access_log_file: /a b", |c| c.process.access_log.as_deref() == Some("/a b")),
    ("access_log_format: json", |c| c.process.access_log_format == log::Format::Json),
    ("log_level: debug", |c| c.process.log_level == log::Level::Debug),
    ("shutdown_delay: 5s", |c| c.process.shutdown_delay_us == 5_000_000),
    ("shutdown_timeout: 0", |c| c.process.shutdown_timeout_us == 0),
    ("tenants: {shop: {pools: [p]}}", |c| c.plan.pools[0].tenant == Some(0)),
    ("removed_users: keep", |c| c.plan.removed_users == RemovedUsers::Keep),
    ("resolve_every: 1s", |c| c.process.resolve_every_us == 1_000_000),
    ("hang_timeout: 1m", |c| c.process.hang_timeout_us == 60_000_000),
];

#[test]
fn every_directive_of_the_process_has_its_effect() {
    let unwritten = compile_for("test.yml", POOL_TEXT, &[], 2, Source::Nowhere).config.unwrap();
    assert_eq!(unwritten.process.worker_count(), 2);
    for directive in GLOBAL {
        let name = directive.name;
        let start = format!("{name}:");
        let (line, holds) =
            GLOBAL_EFFECTS.iter().find(|(line, _)| line.starts_with(&start)).expect(name);
        assert!(holds(&config(&format!("{POOL_TEXT}global:\n  {line}\n"))), "{line}");
        assert!(!holds(&unwritten), "{line} would hold without being written");
    }
}

#[test]
fn the_narrower_timeout_wins_wherever_it_stands() {
    let before = with("timeout_reply: 5s\n  timeout: 400");
    let after = with("timeout: 400\n  timeout_reply: 5s");
    for config in [before, after] {
        let timeouts = pool(&config).timeouts;
        assert_eq!((timeouts.connect, timeouts.queue), (400_000, 400_000));
        assert_eq!(Duration::from_micros(timeouts.reply), Duration::from_secs(5));
    }
    assert_eq!(pool(&with("timeout: 0")).timeouts, pool(&config(POOL_TEXT)).timeouts);
}

#[test]
fn a_slow_command_may_take_ten_seconds_or_as_long_as_any_other() {
    let slow = |directives: &str| Duration::from_micros(pool(&with(directives)).timeouts.slow);
    assert_eq!(slow("timeout: 400"), Duration::from_secs(10));
    assert_eq!(slow("timeout_reply: 1m"), Duration::from_secs(60));
    assert_eq!(slow("timeout: 20s"), Duration::from_secs(20));
    assert_eq!(slow("timeout: 20s\n  timeout_slow: 3s"), Duration::from_secs(3));
}

#[test]
fn a_server_is_held_from_after_a_while_or_never() {
    let held = |directive: &str| pool(&with(directive)).hold_after;
    assert_eq!(pool(&config(POOL_TEXT)).hold_after, Some(30_000));
    assert_eq!([held("hold_after: 5"), held("hold_after: 200us")], [Some(5_000), Some(200)]);
    assert_eq!([held("hold_after: off"), held("hold_after: 0s")], [None, None]);
}

/// Compiles a pool whose `users` file came with the text, or did not come.
fn with_users(contents: Option<&str>) -> Outcome {
    let mut attachments = Attachments::default();
    if let Some(contents) = contents {
        attachments.insert("secrets", contents.to_string());
    }
    let text = format!("{POOL_TEXT}  users: secrets\n");
    compile_for("test.yml", &text, &[], 2, Source::Attached(&attachments))
}

#[test]
fn what_a_file_holds_is_compiled_where_it_came_with_the_text() {
    let config = with_users(Some("anna:new\nanna:old\n")).config.unwrap();
    let users = pool(&config).users.as_ref().unwrap();
    assert!(users.admit(b"anna", b"new") && users.admit(b"anna", b"old"));
    assert!(!users.admit(b"anna", b"other"));
    let shown = format!("{:?} {} {}", config.attachments, config.running_text(), shown(&config));
    assert!(shown.contains("secrets") && !shown.contains("anna"), "{shown}");
    let told = with_users(None).report.render_text();
    assert!(told.contains("users: `secrets`: it was not passed to this process"), "{told}");
    let told = compile("test.yml", &format!("{POOL_TEXT}  users: x\n"), &[]).report.render_text();
    assert!(told.contains("users: `x`: no file can be named here"), "{told}");
}

#[test]
fn another_password_is_a_difference_and_another_comment_is_none() {
    let [old, same, new] = ["a:1\n", "# One.\na:1\n", "a:2\nb:1\n"]
        .map(|contents| with_users(Some(contents)).config.unwrap());
    assert!(difference(&old, &same).lines.is_empty());
    let told = "pool p: other users or passwords: 1 user with 1 password, now 2 users with 2 \
                passwords";
    assert_eq!(difference(&old, &new).lines, [told]);
}

#[test]
fn a_failure_limit_of_0_is_1_as_in_twemproxy() {
    assert_eq!(pool(&with("server_failure_limit: 0")).server_failure_limit, 1);
}

#[test]
fn the_ring_hashes_the_name_that_twemproxy_would() {
    let names = [
        ("127.0.0.1:11211:1", "127.0.0.1"),
        ("127.0.0.1:11212:1", "127.0.0.1:11212"),
        ("127.0.0.1:11212:1 one", "one"),
        ("127.0.0.1:011212:1", "127.0.0.1:011212"),
        ("127.0.0.1:011211:1", "127.0.0.1"),
        ("::1:11211:1", "::1"),
        ("::1:11212:1", "::1:11212"),
        ("'[::1]:11212:1'", "[::1]:11212"),
        ("/tmp/x.sock:1", "/tmp/x.sock:"),
        ("/tmp/x.sock:1 x", "x"),
        ("embedded", "embedded"),
    ];
    for (line, name) in names {
        let config = config(&format!("p:\n  listen: h:1\n  servers:\n  - {line}\n"));
        assert_eq!(pool(&config).servers[0].name, name, "{line}");
    }
}

#[test]
fn a_server_is_shown_by_its_name_or_its_address() {
    let text = "p:\n  listen: h:1\n  servers: ['::1:11211:2', 'h:1:3 one', '/tmp/x:1']\n";
    let config = config(text);
    let labels: Vec<&str> = pool(&config).servers.iter().map(|server| &*server.label).collect();
    assert_eq!(labels, ["[::1]:11211", "one", "/tmp/x"]);
    let weights: Vec<u32> = pool(&config).servers.iter().map(|server| server.weight).collect();
    assert_eq!(weights, [2, 3, 1]);
    let addresses = &config.upstreams[0].servers;
    assert_eq!(addresses[0], ServerAddress::Tcp { host: "::1".to_string(), port: 11211 });
    assert_eq!(addresses[0].to_string(), "[::1]:11211");
    assert_eq!(addresses[2], ServerAddress::Unix("/tmp/x".into()));
}

#[test]
fn a_listener_is_an_address_or_a_path_with_a_mode() {
    let address = |word: &str| parse_address(word);
    let tcp = |host: &str, port| Ok(Address::Tcp { host: host.to_string(), port });
    let unix = |path: &str, mode| Ok(Address::Unix { path: path.into(), mode });
    assert_eq!(address("127.0.0.1:22121"), tcp("127.0.0.1", 22121));
    assert_eq!(address("::1:0"), tcp("::1", 0));
    assert_eq!(address("[::1]:80"), tcp("::1", 80));
    assert_eq!(address("/tmp/x"), unix("/tmp/x", None));
    assert_eq!(address("/tmp/x 0770"), unix("/tmp/x", Some(0o770)));
    assert_eq!(address("/tmp/a b 777"), unix("/tmp/a b", Some(0o777)));
    assert_eq!(address("/tmp/x 0"), unix("/tmp/x", None));
    for wrong in ["", ":1", "host", "host:", "host:x", "h:65536", "a b:1", "/x 8", "/x +7", "/x "] {
        assert!(address(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn pools_on_port_0_are_not_in_each_others_way() {
    let second = POOL_TEXT.replace("p:", "q:");
    let twice = format!("{POOL_TEXT}{second}");
    assert!(compile("test.yml", &twice, &[]).config.is_none());
    assert_eq!(config(&twice.replace(".1:1\n", ".1:0\n")).listeners.len(), 2);
}

#[test]
fn the_memory_of_an_embedded_server_is_the_pools() {
    let text = "p:\n  listen: h:1\n  memory: 3m\n  servers: [embedded a, embedded b]\n";
    let embedded = || ServerAddress::Embedded { memory: 3 << 20 };
    assert_eq!(config(text).upstreams[0].servers, [embedded(), embedded()]);
    let embedded = [ServerAddress::Embedded { memory: 64 << 20 }];
    assert_eq!(default().upstreams[0].servers, embedded);
    assert_eq!(default().listeners[0].address.to_string(), "127.0.0.1:22121");
}

#[test]
fn words_are_shown_as_they_would_be_written() {
    for word in ["0", "1us", "1500us", "2ms", "61s", "90m", "24h"] {
        assert_eq!(duration_word(value::duration(word).unwrap()), word);
    }
    for word in ["0", "1", "1025", "3k", "1m", "1536m", "2g", "1t"] {
        assert_eq!(value::size_word(value::size(word, &(0..=u64::MAX)).unwrap()), word);
    }
    for wrong in ["", "s", "1 s", "-1", "1.5s", "1d", "1S", "18446744073709551616", "25d"] {
        assert!(value::duration(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_nearest_word_is_near() {
    let words = ["fnv1_64", "fnv1a_64", "warning", "listen"];
    assert_eq!(nearest("fnv1a64", words), Some("fnv1a_64"));
    assert_eq!(nearest("WARN", words), Some("warning"));
    assert_eq!(nearest("lsiten", words), Some("listen"));
    assert_eq!(nearest("l", words), None);
    assert_eq!(nearest("random", words), None);
}

#[test]
fn a_long_line_is_cut_around_what_is_wrong_in_it() {
    let text = format!("{POOL_TEXT}  allow: [{}wrong, flush_all]\n", "flush_all, ".repeat(1000));
    let report = compile("test.yml", &text, &[]).report.render_text();
    let lines: Vec<&str> = report.lines().collect();
    let [excerpt, carets] = [lines[3], lines[4]];
    assert!(excerpt.chars().count() < 200, "{report}");
    let column = |line: &str, part: &str| line[..line.find(part).unwrap()].chars().count();
    assert_eq!(column(excerpt, "wrong"), column(carets, "^^^^^"), "{report}");
    assert!(excerpt.ends_with("wrong, flush_all]"), "{report}");
}

#[test]
fn a_file_without_an_end_is_not_a_configuration() {
    let outcome = read(Path::new("/dev/zero"));
    assert!(outcome.report.render_text().contains("longer than 16 MiB"));
    assert!(outcome.config.is_none());
}

#[test]
fn a_byte_that_is_no_text_is_marked_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latin1.yml");
    fs::write(&path, b"alpha:\n  listen: 127.0.0.1:1\n  log: caf\xe9 and a longer text\n").unwrap();
    let told = read(&path).report.render_text();
    assert!(told.contains("latin1.yml:3:11\n"), "{told}");
    assert!(told.contains("\n   |           ^\n"), "{told}");
}

/// Any text either is a configuration or has an error; every report can be rendered.
#[test]
fn garbage_is_reported_and_never_panics() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/config");
    let signs = ":-[]{}\"'#&*!|>%@`,~ \n\t\u{0}0aé\u{feff}";
    let signs: Vec<char> = signs.chars().collect();
    let mut random = 1u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below
    };
    for file in
        ["native/every_directive.yml", "native/redis.yml", "bad/values.yml", "bad/redis.yml"]
    {
        let text: Vec<char> =
            fs::read_to_string(format!("{folder}/{file}")).unwrap().chars().collect();
        for _ in 0..2000 {
            let mut text = text.clone();
            for _ in 0..=draw(3) {
                let at = draw(text.len());
                match draw(3) {
                    // At least one byte must remain for the next change.
                    0 if text.len() > 1 => drop(text.remove(at)),
                    1 => text.insert(at, signs[draw(signs.len())]),
                    _ => text.truncate(at.max(1)),
                }
            }
            let outcome = compile("test.yml", &text.iter().collect::<String>(), &[]);
            let invalid = outcome.report.count(Severity::Error) > 0;
            assert_eq!(outcome.config.is_none(), invalid);
            assert_eq!(outcome.report.render_text().contains("error: "), invalid);
            assert!(outcome.report.render_json().starts_with('['));
        }
    }
}

/// The largest that is allowed, and one more.
#[test]
fn a_limit_is_the_largest_value_that_is_allowed() {
    let text = |global: &str, pool: &str| {
        format!(
            "global: {{{global}}}\nalpha:\n  listen: 127.0.0.1:1\n{pool}  \
             servers: [127.0.0.1:2:1]\n"
        )
    };
    let path = |len: usize| format!("admin: /{}", "x".repeat(len - 1));
    let rows = [
        ("workers: 64", "workers: 65", ""),
        ("workers: 1", "workers: 0", ""),
        ("worker_cpu_affinity: [0, 1023]", "worker_cpu_affinity: [0, 1024]", ""),
        ("worker_cpu_affinity: auto", "worker_cpu_affinity: [0, auto]", ""),
        ("worker_cpu_affinity: off", "worker_cpu_affinity: [off, 1]", ""),
        ("worker_cpu_affinity: [1, 0]", "worker_cpu_affinity: [auto, 1]", ""),
        ("workers: 3, memory_max: 96m", "workers: 3, memory_max: 95m", "  item_size_max: 32m\n"),
        ("workers: 1, memory_max: 96m", "workers: 1, memory_max: 95m", "  item_size_max: 96m\n"),
        ("workers: 3", "workers: 4", "  server_connections_max: 3\n"),
        ("stats: 127.0.0.1:9", "stats: 127.0.0.1:1", ""),
        ("stats: 127.0.0.1:9", "stats: /stats.sock", ""),
        ("http: 127.0.0.1:9", "http: 127.0.0.1:1", ""),
        ("http: /http.sock 0660", "http: http.sock", ""),
        ("stats: h:9, http: h:8", "stats: h:9, http: h:9", ""),
        ("admin: /a, http: /b", "admin: /a, http: /a 0660", ""),
        ("shutdown_timeout: 2147483647", "shutdown_timeout: 2147483648", ""),
        ("shutdown_timeout: 2147483s", "shutdown_timeout: 2147484s", ""),
        (&path(107), &path(108), ""),
        ("log: /x", "log: x", ""),
        ("log: syslog", "log: sylog", ""),
        ("log: syslog:/run/log", "log: syslog:run/log", ""),
        ("admin: off", "admin: of", ""),
        ("access_log_file: /a", "access_log_file: a", "  access_log: all\n"),
        ("access_log_file: /a", "workers: 1", "  access_log: 1/100\n"),
    ];
    for (valid, invalid, pool) in rows {
        for (global, is_valid) in [(valid, true), (invalid, false)] {
            let text = text(global, pool);
            let outcome = compile_for("test", &text, &[], 2, Source::Nowhere);
            let told = outcome.report.render_text();
            assert_eq!(outcome.config.is_some(), is_valid, "{text}{told}");
            assert_eq!(outcome.report.count(Severity::Error) == 0, is_valid, "{text}{told}");
        }
    }
}

#[test]
fn what_a_worker_may_hold_is_its_part_of_the_whole() {
    let text = "global: {workers: 3, memory_max: 90m}\nalpha:\n  listen: 127.0.0.1:1\n  \
                server_connections: 5\n  server_connections_max: 7\n  servers: [127.0.0.1:2:1]\n";
    let config = compile_for("test", text, &[], 2, Source::Nowhere).config.unwrap();
    assert_eq!(pool(&config).server_connections, 2);
    assert_eq!(config.plan.memory_max, 90 << 20);
    let message = |text: &str| {
        let outcome = compile_for("test", text, &[], 2, Source::Nowhere);
        outcome.report.render_text()
    };
    let told = message(&text.replace("  server_connections: 5", "  item_size_max: 31m"));
    assert!(told.contains("31m is more than the part"), "{told}");
    assert!(told.contains("90m / 3 = 30m"), "{told}");
    let told = message(&text.replace("_max: 7", "_max: 2"));
    assert!(told.contains("each of the 3 workers needs a link"), "{told}");
}
