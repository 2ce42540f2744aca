//! Merged answers from servers' texts.

use super::*;
use crate::Quiet;
use crate::part::tests::{Nothing, fault, parts};
use crate::redis::commands::id;

const SERVER: &str = "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n";

/// Returns the merged answer of these texts, from servers called `s0` and so on; lines end with
/// `\n`.
fn made(head: &str, texts: &[&str]) -> String {
    let replies: Vec<String> = texts
        .iter()
        .map(|text| {
            let text = text.replace('\n', "\r\n");
            format!("${}\r\n{text}\r\n", text.len())
        })
        .collect();
    let outcomes: Vec<Outcome<'_>> =
        replies.iter().map(|reply| Outcome::Reply(reply.as_bytes())).collect();
    told(head, &outcomes)
}

fn told(head: &str, outcomes: &[Outcome<'_>]) -> String {
    let ask = crate::Ask { command: id::INFO };
    let (command, quiet, head) = (id::INFO, Quiet::Loud, head.as_bytes());
    let asked = Asked { command, quiet, ask, head, at: 0, next: None };
    let parts: Vec<Part<'_>> = parts(outcomes).collect();
    let mut out = Vec::new();
    gather(&asked, &parts, &Nothing, &mut out).expect("somebody has answered");
    text(&out).expect("a bulk").replace("\r\n", "\n")
}

/// Checks one field of servers with these values.
fn check(name: &str, values: &[&str], expected: &str) {
    let texts: Vec<String> = values.iter().map(|it| format!("# S\n{name}:{it}\n")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(made(SERVER, &texts), format!("# S\n{name}:{expected}\n"), "{values:?}");
}

/// A rule that another hides would have no effect.
#[test]
fn every_row_is_found_by_a_name_that_it_is_for() {
    for (pattern, expected) in RULES {
        let name = pattern.replace('*', "zz").replace('#', "12");
        assert_eq!(rule(&name), *expected, "{pattern}");
    }
    assert_eq!(rule("slave_priority"), Same);
    assert_eq!(rule("db0"), Parts);
    assert_eq!(rule("dbsize"), Same);
}

#[test]
fn what_can_be_counted_is_added_up() {
    check("used_memory", &["100", "200", "300"], "600");
    check("keyspace_hits", &["18446744073709551615", "1"], "18446744073709551616");
    check("used_cpu_sys", &["0.500100", "1.500050"], "2.000150");
    check("instantaneous_input_kbps", &["0.14", "-1"], "-0.86");
    check("maxmemory", &["100", "200"], "300");
    // One of them has no limit.
    check("maxmemory", &["100", "0"], "0");
    check(
        "db0",
        &["keys=3,expires=1,avg_ttl=100", "keys=5,expires=3,avg_ttl=500"],
        "keys=8,expires=4,avg_ttl=400",
    );
    check(
        "db7",
        &["keys=3,expires=0,avg_ttl=0,x=1", "keys=5,expires=0,avg_ttl=0"],
        "keys=8,expires=0,avg_ttl=0,x=1",
    );
    check(
        "cmdstat_get",
        &["calls=1,usec=10,usec_per_call=10.00", "calls=3,usec=60,usec_per_call=20.00"],
        "calls=4,usec=70,usec_per_call=17.50",
    );
    check(
        "latency_percentiles_usec_get",
        &["p50=1.003,p99.9=9.5", "p50=2.007,p99.9=3.0"],
        "p50=2.007,p99.9=9.5",
    );
    check("errorstat_ERR", &["count=1", "count=2"], "count=3");
    // A value that is no number cannot be added.
    check("used_memory", &["100", "much"], "s0=100,s1=much");
    check("cmdstat_get", &["calls=1", "x"], "s0=calls:1,s1=x");
}

#[test]
fn what_cannot_be_added_up_is_what_a_client_can_go_by() {
    check("redis_version", &["7.0.15", "6.2.5", "7.2.4"], "6.2.5");
    check("redis_version", &["10.0.0", "9.1.2"], "9.1.2");
    check("uptime_in_seconds", &["500", "3"], "3");
    check("rdb_last_save_time", &["1795351520", "1795351420"], "1795351420");
    check("loading", &["1", "0"], "0");
    check("role", &["slave", "master"], "master");
    check("role", &["slave", "slave"], "slave");
    check("rdb_last_bgsave_status", &["ok", "ok"], "ok");
    check("rdb_last_bgsave_status", &["ok", "err"], "err");
    check("master_link_status", &["up", "down"], "down");
    check("redis_mode", &["cluster"], "standalone");
}

#[test]
fn servers_that_differ_are_named_with_what_they_say() {
    check("maxmemory_policy", &["noeviction", "noeviction"], "noeviction");
    check("maxmemory_policy", &["noeviction", "allkeys-lru"], "s0=noeviction,s1=allkeys-lru");
    check("never_heard_of", &["1", "2"], "s0=1,s1=2");
    check("os", &["a,b=c", "d"], "s0=a;b:c,s1=d");
}

/// A limit of 0 is none, and a size of 0 is a size.
#[test]
fn a_sum_of_bytes_is_told_for_people_as_well() {
    let text = |memory: u64, limit: u64| {
        format!(
            "# Memory\nused_memory:{memory}\nused_memory_human:x\nmaxmemory:{limit}\n\
             maxmemory_human:x\n"
        )
    };
    for (limits, sum, human) in [((2048, 1024), 3072, "3.00K"), ((2048, 0), 0, "0B")] {
        let found = made(SERVER, &[&text(2048, limits.0), &text(0, limits.1)]);
        let wanted = format!(
            "# Memory\nused_memory:2048\nused_memory_human:2.00K\nmaxmemory:{sum}\n\
             maxmemory_human:{human}\n"
        );
        assert_eq!(found, wanted);
    }
}

#[test]
fn ratios_are_those_of_the_sums() {
    let text = |rss: u64, used: u64| {
        format!(
            "# Memory\nused_memory:{used}\nused_memory_human:x\nused_memory_rss:{rss}\n\
             used_memory_peak:{}\nused_memory_peak_perc:x\nmem_fragmentation_ratio:x\n",
            2 * used
        )
    };
    let found = made(SERVER, &[&text(300, 1024), &text(212, 1024)]);
    assert_eq!(
        found,
        "# Memory\nused_memory:2048\nused_memory_human:2.00K\nused_memory_rss:512\n\
         used_memory_peak:4096\nused_memory_peak_perc:50.00%\nmem_fragmentation_ratio:0.25\n"
    );
}

#[test]
fn names_that_one_kind_of_server_has_are_told_of_no_mixed_pool() {
    let valkey = "# Server\nredis_version:7.2.4\nserver_name:valkey\nvalkey_version:9.1.2\n";
    let older = valkey.replace("9.1.2", "8.0.1");
    assert_eq!(made(SERVER, &[valkey, valkey]), valkey);
    assert_eq!(made(SERVER, &[valkey, &older]), older);
    let redis = "# Server\nredis_version:7.0.15\n";
    assert_eq!(made(SERVER, &[valkey, redis]), redis);
}

#[test]
fn a_field_that_one_server_has_is_not_told_as_everybodys() {
    let valkey = "# Server\nserver_mode:standalone\navailability_zone:\nlistener0:name=tcp\n\
        new_one:1\n\n# Modules\nmodule:name=lua\n";
    assert_eq!(made(SERVER, &[valkey]), valkey);
    assert_eq!(made(SERVER, &[valkey, valkey]), valkey);
    let redis = "# Server\n\n# Modules\n";
    assert_eq!(made(SERVER, &[valkey, redis]), "# Server\nnew_one:s0=1\n\n# Modules\n");
    // A database that only one server has counts as a database of the pool.
    let keys = "# Keyspace\ndb3:keys=1,expires=0,avg_ttl=0\n";
    assert_eq!(made(SERVER, &[keys, "# Keyspace\n"]), keys);
}

#[test]
fn lines_that_stand_side_by_side_stay_so() {
    let text = "# Replication\nslave0:ip=a,port=1\nslave1:ip=b,port=1\n\n# Modules\n\
         module:name=lua\nmodule:name=json\n";
    let other = "# Replication\nslave0:ip=c,port=1\n\n# Modules\nmodule:name=lua\n\n# New\nx:1\n";
    assert_eq!(
        made(SERVER, &[text, other]),
        "# Replication\nslave0:ip=a,port=1\nslave1:ip=c,port=1\nslave2:ip=b,port=1\n\n# Modules\n\
         module:name=lua\n\n# New\nx:s1=1\n"
    );
}

#[test]
fn one_server_says_what_it_says() {
    let text = "# Server\nredis_version:7.0.15\nrun_id:e93\n\n# Memory\nused_memory_human:1.11M\n\
         mem_fragmentation_ratio:6.47\n\n# Modules\n\n# Keyspace\ndb0:keys=1,expires=1,avg_ttl=0\n";
    assert_eq!(made(SERVER, &[text]), text);
    assert_eq!(made(SERVER, &[""]), "");
}

#[test]
fn the_proxy_tells_of_itself_and_of_who_has_not_answered() {
    let one = "# Clients\nconnected_clients:5\n";
    for head in ["*1\r\n$4\r\nINFO\r\n", "*2\r\n$4\r\nINFO\r\n$8\r\nQUICKACK\r\n", ""] {
        let found = made(head, &[one, one]);
        assert!(found.starts_with("# Clients\nconnected_clients:0\n\n# Quickack\n"), "{found}");
        for line in [
            "quickack_pool:p",
            "quickack_servers:2",
            "quickack_servers_up:2",
            "servers_connected_clients:10",
            "quickack_server1:name=s1,state=up",
        ] {
            assert!(found.lines().any(|it| it == line), "{line} is not in\n{found}");
        }
    }
    // They are named whether the request asks for it or not.
    let outcomes = [
        Outcome::Reply(b"$0\r\n\r\n"),
        fault("down, waiting", false),
        Outcome::Error(b"-NOPERM no, no\r\n"),
    ];
    let found = told(SERVER, &outcomes);
    for line in [
        "quickack_servers_up:1",
        "quickack_server1:name=s1,state=down,why=down; waiting",
        "quickack_server2:name=s2,state=refused,why=-NOPERM no; no",
    ] {
        assert!(found.lines().any(|it| it == line), "{line} is not in\n{found}");
    }
}

#[test]
fn each_version_of_resp_is_answered_in_its_own_words() {
    let outcomes = [Outcome::Reply(b"=16\r\ntxt:# Keyspace\r\n\r\n")];
    assert_eq!(told(SERVER, &outcomes), "# Keyspace\n");
}

/// Servers send what they like: each of these once held up a worker until its master ended it.
#[test]
fn as_long_a_text_as_a_server_likes_is_gathered_at_once() {
    let lines = |count: usize, line: &dyn Fn(usize) -> String| -> String {
        (0..count).map(line).collect::<String>()
    };
    let parts: Vec<String> = (0..100_000).map(|n| format!("a{n}=1")).collect();
    let humans =
        |n| format!("# s{n}\nused_memory_human:1K\nused_memory_peak_perc:1%\nused_memory:1\n");
    let same = "used_memory:1\n".repeat(60_000) + "used_memory_peak:1\n";
    let start = std::time::Instant::now();
    for text in [
        lines(60_000, &|n| format!("# s{n}\n")),
        lines(60_000, &|n| format!("# s{n}\nx:{n}\n")),
        format!("# S\ncmdstat_get:{}\n", parts.join(",")),
        format!("# S\ncmdstat_get:{}\n", "a=1,".repeat(100_000) + "a=1"),
        format!("# S\n{}", lines(60_000, &|n| format!("f{n}_human:1\n"))),
        format!("# S\n{same}{}", lines(30_000, &humans)),
        format!("# Modules\n{}", lines(60_000, &|n| format!("module:name=m{n}\n"))),
        format!("# Replication\n{}", lines(60_000, &|n| format!("slave{n}:ip=a\n"))),
        format!("# S\nx{}:1\n", "_human".repeat(60_000)),
        format!("# S\nx:1\nx_human:1\n{0}_human:1\n{0}_human_human:1\n", "x".repeat(100_000)),
    ] {
        assert!(!made("", &[&text, &text]).is_empty());
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn a_line_that_a_server_repeats_is_heard_once() {
    assert_eq!(
        made(SERVER, &["# S\nkeyspace_hits:1\nkeyspace_hits:5\n", "# S\n"]),
        "# S\nkeyspace_hits:1\n"
    );
    check("errorstat_ERR", &["count=1,count=7", "count=2"], "count=3");
}

#[test]
fn numbers_that_are_too_large_to_weigh_are_told_by_server() {
    let huge = "keys=1,expires=18446744073709551615,avg_ttl=18446744073709551615";
    let told = huge.replace('=', ":").replace(',', ";");
    check(
        "db0",
        &[huge, "keys=1,expires=0,avg_ttl=0"],
        &format!("s0={told},s1=keys:1;expires:0;avg_ttl:0"),
    );
    check("db0", &[huge, huge], huge);
}

/// Servers' texts are made from these.
const PIECES: &[&str] = &[
    "\n",
    "\n",
    "\n",
    ":",
    ":",
    "=",
    ",",
    ".",
    "-",
    "# ",
    "# S\n",
    "# Memory\n",
    "0",
    "1",
    "9",
    "18446744073709551615",
    "-18446744073709551615",
    "0.000001",
    "18446744073709551615.999999",
    "99999999999999999999",
    "1e308",
    "x",
    "\u{fffd}",
    " ",
    "\t",
    "db0:",
    "keys=",
    "expires=",
    "avg_ttl=",
    "calls=",
    "usec=",
    "usec_per_call=",
    "p99=",
    "cmdstat_x:",
    "used_memory:",
    "used_memory_human:",
    "used_memory_rss:",
    "used_memory_peak:",
    "used_memory_peak_perc:",
    "used_memory_dataset:",
    "used_memory_dataset_perc:",
    "used_memory_startup:",
    "maxmemory:",
    "maxmemory_human:",
    "mem_fragmentation_ratio:",
    "allocator_active:",
    "allocator_allocated:",
    "allocator_frag_ratio:",
    "redis_version:",
    "slave",
    "slave0:",
    "module:",
    "role:",
    "_human",
];

/// Any text of a server can be merged.
#[test]
fn no_text_of_a_server_is_too_odd() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n
    };
    for _ in 0..20_000 {
        let texts: Vec<String> = (0..1 + below(3))
            .map(|_| (0..below(40)).map(|_| PIECES[below(PIECES.len())]).collect())
            .collect();
        let texts: Vec<String> = texts.iter().map(|text| format!("# S\n{text}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        made("", &texts);
    }
}
