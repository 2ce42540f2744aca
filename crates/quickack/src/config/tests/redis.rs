//! Redis pools: the values of their directives, and their logins.

use proto::Extra;
use proxy::plan::MultiKey;

use super::*;

const REDIS_TEXT: &str =
    "p:\n  listen: 127.0.0.1:1\n  redis: true\n  servers: [127.0.0.1:6379:1]\n";

fn redis(directives: &str) -> Config {
    config(&format!("{REDIS_TEXT}  {directives}\n"))
}

/// A directive of such a pool, and a condition on the pool.
const REDIS_EFFECTS: &[Effect] = &[
    ("multi_key: refuse", |c| pool(c).multi_key == MultiKey::Refuse),
    ("databases: 4", |c| pool(c).databases == 4),
    ("redis_db: 7", |c| pool(c).database == 7),
    ("redis_auth: x", |c| pool(c).users.is_some() && pool(c).server_login.is_some()),
    ("allow: [flushall, flushdb]", |c| pool(c).allow == ["flushall", "flushdb"]),
    ("allow: [config|set, pfdebug]", |c| pool(c).allow == ["config|set", "pfdebug"]),
    ("allow: [config]", |c| pool(c).allow == ["config|resetstat", "config|rewrite", "config|set"]),
    ("allow: [memory|stats, memory]", |c| {
        pool(c).allow == ["memory|stats", "memory|doctor", "memory|malloc-stats", "memory|purge"]
    }),
    ("allow: debug|object", |c| pool(c).allow == ["debug|object"]),
    ("commands: {a.b: {key: 2..-1:3, access: write}}", |c| {
        let extra = Extra { name: "a.b".to_string(), first: 2, last: -1, step: 3, writes: true };
        pool(c).extras == [extra]
    }),
    ("item_size_max: 8k", |c| pool(c).item_size_max == 8192),
];

#[test]
fn the_words_of_redis_have_their_effects() {
    for (line, holds) in REDIS_EFFECTS {
        assert!(holds(&redis(line)), "{line}");
        assert!(!holds(&config(REDIS_TEXT)), "{line} would hold without being written");
    }
}

#[test]
fn a_pool_speaks_redis_by_either_word_and_is_otherwise_as_any() {
    let native = REDIS_TEXT.replace("redis: true", "protocol: redis");
    let both = REDIS_TEXT.replace("redis: true", "redis: true\n  protocol: redis");
    for text in [REDIS_TEXT, &native, &both] {
        assert_eq!(shown(&config(text)), shown(&config(REDIS_TEXT)));
    }
    let [memcached, redis] = [POOL_TEXT, REDIS_TEXT].map(config);
    assert_eq!(pool(&memcached).protocol.name(), "memcached");
    assert_eq!((pool(&redis).protocol.name(), pool(&redis).databases), ("redis", 16));
    assert_eq!(pool(&redis).hash, pool(&memcached).hash);
    assert_eq!(pool(&redis).timeouts, pool(&memcached).timeouts);
}

#[test]
fn there_are_as_many_databases_as_redis_db_needs() {
    let databases = |words: &str| (pool(&redis(words)).database, pool(&redis(words)).databases);
    assert_eq!(databases("redis_db: 0"), (0, 16));
    assert_eq!(databases("redis_db: 15"), (15, 16));
    assert_eq!(databases("redis_db: 16"), (16, 17));
    assert_eq!(databases("redis_db: 3\n  databases: 4"), (3, 4));
    let text = format!("{REDIS_TEXT}  redis_db: 4\n  databases: 4\n");
    let told = compile("test.yml", &text, &[]).report.render_text();
    assert!(told.contains("redis_db: 4 is not one of `databases`, which are 0 to 3"), "{told}");
}

#[test]
fn a_name_that_cannot_be_allowed_is_told_where_it_stands_and_why() {
    let told = |text: &str, names: &str| {
        let text = format!("{text}  allow: [{names}]\n");
        compile("test.yml", &text, &[]).report.render_text()
    };
    for (names, expected) in [
        ("save, psync", "allow: `psync` cannot be allowed: only servers say this, to one another"),
        ("save, debug|protocol", "`debug|protocol` cannot be allowed: it would change the replies"),
        ("save, shutdown", "allow: `shutdown` cannot be allowed: it would end the server"),
        ("save, replicaof", "allow: `replicaof` cannot be allowed: it would change which servers"),
        (
            "save, cluster",
            "allow: `cluster` cannot be allowed: behind the proxy there are separate",
        ),
        ("save, get", "allow: `get` needs no permission; remove it"),
        ("save, config set", "did you mean `config|set`?"),
        ("save, config set", "speak redis; subcommands are written with `|`"),
        ("save, Nosuch cmd", "allow: `Nosuch cmd` is not a command of pools that speak redis"),
        ("save, PSYNC", "allow: `PSYNC` cannot be allowed: only servers say this, to one another"),
        ("save, script", "allow: `script` has no subcommand that could be allowed"),
        ("save, function", "allow: `function` needs no permission; remove it"),
        ("save, script|kill", "allow: `script|kill` needs no permission; remove it"),
        ("save, debug|loadaof", "allow: `debug|loadaof` cannot be allowed: it would end the"),
        ("save, debug|reload", "allow: `debug|reload` cannot be allowed: it would end the server"),
        ("save, debug|set-disable-deny-scripts", "cannot be allowed: it would end the server"),
        ("save, latencys", "did you mean `latency`?"),
        ("save, flush_all", "allow: `flush_all` is not a command of pools that speak redis"),
    ] {
        let report = told(REDIS_TEXT, names);
        assert!(report.contains(expected), "{names}: {report}");
        assert!(!report.contains("save`"), "{names}: {report}");
        let line = REDIS_TEXT.lines().count() + 1;
        let column = "  allow: [save, ".len() + 1;
        assert!(report.contains(&format!("test.yml:{line}:{column}")), "{names}: {report}");
    }
    for (names, expected) in [
        ("watch", "allow: `watch` cannot be allowed: it is a stream; ask the server itself"),
        ("shutdown", "allow: `shutdown` cannot be allowed: ask the server itself"),
        ("stats", "allow: `stats` needs no permission"),
        ("stats rest", "did you mean `stats reset`?"),
        ("flushall", "did you mean `flush_all`?"),
    ] {
        let report = told(POOL_TEXT, names);
        assert!(report.contains(expected), "{names}: {report}");
    }
}

#[test]
fn a_command_may_be_allowed_in_any_case() {
    let allowed = |names: &str| {
        let text = format!("{REDIS_TEXT}  allow: [{names}]\n");
        pool(&config(&text)).allow.clone()
    };
    assert_eq!(allowed("FLUSHALL, Config|Set, config|SET"), ["flushall", "config|set"]);
    assert_eq!(allowed("CONFIG"), allowed("config"));
}

/// These commands end a server, or let a client's script end it.
#[test]
fn the_debug_commands_that_end_a_server_are_not_allowed_with_debug() {
    let text = format!("{REDIS_TEXT}  allow: [debug]\n");
    let allowed = pool(&config(&text)).allow.clone();
    assert!(allowed.iter().any(|name| name == "debug|sleep"), "{allowed:?}");
    for name in ["loadaof", "reload", "set-disable-deny-scripts", "segfault", "restart"] {
        let name = format!("debug|{name}");
        assert!(!allowed.contains(&name), "{allowed:?}");
    }
}

#[test]
fn a_value_has_what_a_worker_can_hold_where_the_file_is_silent() {
    let size = |text: &str, workers: usize| {
        let text = format!("{text}global: {{workers: {workers}, memory_max: 256m}}\n");
        pool(&config(&text)).item_size_max
    };
    assert_eq!([1, 2, 4].map(|n| size(REDIS_TEXT, n)), [128 << 20, 128 << 20, 64 << 20]);
    assert_eq!([1, 64].map(|n| size(POOL_TEXT, n)), [256 << 20, 4 << 20]);
    let embedded = POOL_TEXT.replace("127.0.0.1:11211:1", "embedded");
    assert_eq!(size(&embedded, 1), 1 << 20);
}

/// Compiles these directives and files to a plan, for tests of `AUTH` and of the servers' login.
fn logins(directives: &str) -> PoolPlan {
    let mut attachments = Attachments::default();
    attachments.insert("users", "anna:new\n".to_string());
    attachments.insert("login", "proxy:two words\n".to_string());
    let text = format!("{REDIS_TEXT}  {directives}\n");
    let outcome = compile_for("test.yml", &text, &[], 2, Source::Attached(&attachments));
    let report = outcome.report.render_text();
    let config = outcome.config.unwrap_or_else(|| panic!("{report}"));
    for text in [report, config.running_text(), config.running_json()] {
        assert!(!text.contains("sesame") && !text.contains("two words"), "{text}");
    }
    pool(&config).clone()
}

#[test]
fn redis_auth_is_what_clients_say_and_what_servers_are_told() {
    let admits = |plan: &PoolPlan, name: &str, password: &str| {
        plan.users.as_ref().unwrap().admit(name.as_bytes(), password.as_bytes())
    };
    let told = |plan: &PoolPlan| {
        let login = plan.server_login.as_ref().unwrap();
        (login.name.clone(), login.password.clone())
    };
    let plan = logins("redis_auth: sesame");
    assert!(admits(&plan, "default", "sesame") && !admits(&plan, "default", ""));
    assert_eq!(told(&plan), (String::new(), "sesame".to_string()));
    let plan = logins("redis_auth: sesame\n  users: users");
    assert!(admits(&plan, "anna", "new") && !admits(&plan, "default", "sesame"));
    assert_eq!(told(&plan).1, "sesame");
    let plan = logins("redis_auth: sesame\n  server_login: login");
    assert!(admits(&plan, "default", "sesame"));
    assert_eq!(told(&plan), ("proxy".to_string(), "two words".to_string()));
    let plan = logins("redis_auth: ''");
    assert!(plan.users.is_none() && plan.server_login.is_none());
    let longest = "x".repeat(255);
    assert!(admits(&logins(&format!("redis_auth: {longest}")), "default", &longest));
}

#[test]
fn a_password_that_cannot_be_one_is_told_and_not_shown() {
    for password in ["x".repeat(256), "\"sesame\\tx\"".to_string()] {
        let text = format!("{REDIS_TEXT}  redis_auth: {password}\n");
        let told = compile("test.yml", &text, &[]).report.render_text();
        assert!(told.contains("redis_auth: a password has at most 255 bytes"), "{told}");
        assert!(!told.contains("sesame") && !told.contains("xxx"), "{told}");
    }
}

#[test]
fn a_reload_tells_what_changes_for_redis() {
    let lines = |old: &str, new: &str| {
        let difference = difference(&redis(old), &redis(new));
        assert_eq!(difference.remap(), None);
        assert!(difference.impossible.is_empty());
        difference.lines
    };
    assert_eq!(lines("redis_db: 1", "redis_db: 2"), ["pool p: redis_db: 1 -> 2"]);
    assert_eq!(
        lines("multi_key: split", "commands: {a: {key: 1, access: read}}"),
        [
            "pool p: multi_key: split -> (`split` in a Redis pool)",
            "pool p: commands: (none) -> {\"a\": {key: 1, access: read}}",
        ]
    );
    assert_eq!(
        lines("redis_auth: old", "redis_auth: new"),
        [
            "pool p: other users or passwords: 1 user with 1 password, now 1 user with 1 password",
            "pool p: another login to its servers",
        ]
    );
    let native = REDIS_TEXT.replace("redis: true", "protocol: redis");
    let same = difference(&config(REDIS_TEXT), &config(&native));
    assert!(same.impossible.is_empty(), "it is the same, in other words");
    let other = difference(&config(REDIS_TEXT), &config(POOL_TEXT));
    let told = "pool p: protocol: redis -> memcached needs a restart, or a pool with another name";
    assert_eq!(other.impossible, [told]);
}
