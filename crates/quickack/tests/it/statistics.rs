//! `stats` as monitors read it: memcached's own names, for a pool as if it were one memcached.

use std::collections::BTreeMap;

use rustix::process::Signal;
use testkit::process::{Client, Memcached, Quickack, send, wait_until};

use super::harness::{self, workers};
use super::quickack;

/// Returns a list of statistics in its order.
fn lines(client: &mut Client, argument: &str) -> Vec<(String, String)> {
    client.send(format!("stats{argument}\r\n"));
    let text = client.read_until("END\r\n");
    let facts = text.lines().filter_map(|line| line.strip_prefix("STAT "));
    let split = |fact: &str| {
        let (name, value) = fact.split_once(' ').unwrap_or((fact, ""));
        (name.to_string(), value.to_string())
    };
    facts.map(split).collect()
}

fn facts(quickack: &Quickack) -> BTreeMap<String, String> {
    lines(&mut quickack.client(), "").into_iter().collect()
}

fn number(facts: &BTreeMap<String, String>, name: &str) -> u64 {
    let value = facts.get(name).unwrap_or_else(|| panic!("no {name} in {facts:?}"));
    value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
}

/// Stores keys so that each of two servers has one.
fn spread(client: &mut Client, memcacheds: &[Memcached]) {
    for n in 0..40 {
        client.ask(&format!("set key{n} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
    assert!(memcacheds.iter().all(|one| one.stat("curr_items") > 0), "keys on both");
}

#[test]
fn stats_before_memcached_have_its_names_and_tell_of_the_pool() {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|one| one.address);
    let quickack = quickack(&addresses, &["hash: md5"]);
    let mut client = quickack.client();
    spread(&mut client, &memcacheds);
    client.ask("get key1 none\r\n", "VALUE key1 0 1\r\n1\r\nEND\r\n");
    client.ask("mg key1 t\r\nmg none s\r\nmg none v\r\n", "HD t-1\r\nEN\r\nEN\r\n");
    client.ask("delete key1\r\ndelete none\r\n", "DELETED\r\nNOT_FOUND\r\n");
    let ours = facts(&quickack);
    for (name, expected) in [
        ("pid", quickack.process.id().into()),
        ("cmd_get", 5),
        ("get_hits", 2),
        ("get_misses", 3),
        ("cmd_set", 40),
        ("delete_hits", 1),
        ("delete_misses", 1),
        ("curr_items", 39),
        ("total_items", 40),
        ("limit_maxbytes", 128 << 20),
        ("evictions", 0),
        ("curr_connections", 2),
        ("total_connections", 2),
        ("threads", quickack.workers().len() as u64),
        ("pointer_size", 64),
        ("auth_cmds", 0),
    ] {
        assert_eq!(number(&ours, name), expected, "{name} of {ours:?}");
    }
    let bytes: u64 = memcacheds.iter().map(|one| one.stat("bytes")).sum();
    assert_eq!(number(&ours, "bytes"), bytes);
    assert!(number(&ours, "bytes_read") > 40 * 20 && number(&ours, "bytes_written") > 40 * 8);
    assert!(number(&ours, "time") > 1_600_000_000 && number(&ours, "max_connections") > 0);
    assert!(ours["rusage_user"].split_once('.').is_some_and(|(_, us)| us.len() == 6), "{ours:?}");
    client.ask("version\r\n", &format!("VERSION {}\r\n", ours["version"]));
    // In memcached's order, and without names that memcached lacks.
    let theirs = lines(&mut memcacheds[0].client(), "");
    let mut places = lines(&mut client, "").into_iter().map(|(name, _)| {
        let place = theirs.iter().position(|(other, _)| *other == name);
        place.unwrap_or_else(|| panic!("memcached has no {name}"))
    });
    assert!(places.by_ref().is_sorted());
}

/// Includes the proxy's own statistics, in memcached's order.
#[test]
fn stats_before_one_memcached_have_all_its_names_and_no_others() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[]);
    let names = |mut client| lines(&mut client, "").into_iter().map(|one| one.0).collect();
    let (theirs, ours): (Vec<_>, Vec<String>) =
        (names(memcached.client()), names(quickack.client()));
    assert_eq!(ours, theirs);
    assert_eq!(
        facts(&quickack)["hash_power_level"],
        memcached.stat("hash_power_level").to_string()
    );
}

#[test]
fn words_of_stats_before_one_memcached_pass_and_before_two_do_not_make_a_client_wait() {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|one| one.address);
    let (one, two) = (quickack(&addresses[..1], &[]), quickack(&addresses, &[]));
    let mut client = one.client();
    memcacheds[0].client().ask("stats detail on\r\n", "OK\r\n");
    client.ask("set shop:a 0 0 1\r\n1\r\n", "STORED\r\n");
    let dump = "PREFIX shop get 0 hit 0 set 1 del 0\r\nEND\r\n";
    client.ask("stats detail dump\r\n", dump);
    // memcached shows an item only when its maintenance has seen it.
    for words in ["2 10", "1 0 x"] {
        client.send(format!("stats cachedump {words}\r\n"));
        let told = client.read_until("END\r\n");
        assert!(told == "END\r\n" || told.starts_with("ITEM shop:a "), "{told}");
    }
    client.ask("stats cachedump 999 1\r\n", "CLIENT_ERROR Illegal slab id\r\n");
    memcacheds[0].client().ask("stats detail dump\r\n", dump);
    // Arguments that change something are not allowed.
    for word in ["detail on", "detail off", "sizes_enable", "sizes_disable", "reset"] {
        let name = word.split(' ').next().expect("a word");
        let refused = format!(
            "CLIENT_ERROR refused by the proxy: `allow: [stats {name}]` in its pool permits it\r\n"
        );
        client.ask(&format!("stats {word}\r\n"), &refused);
    }
    client.ask("stats sizes\r\n", "STAT sizes_status disabled\r\nEND\r\n");
    let refused = "CLIENT_ERROR refused by the proxy: each server has its own; ask the server \
                   itself\r\n";
    let mut client = two.client();
    client.ask("stats detail dump\r\n", refused);
    client.ask("stats cachedump 1 1\r\n", refused);
    client.ask("stats nonsense\r\n", "ERROR\r\n");
}

#[test]
fn words_of_stats_that_change_something_reach_every_memcached_where_they_are_allowed() {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|one| one.address);
    let allow = "allow: [stats detail, stats sizes_enable, stats sizes_disable]";
    let quickack = quickack(&addresses, &[allow]);
    let mut client = quickack.client();
    client.ask("stats detail on\r\n", "OK\r\n");
    client.ask("stats sizes_enable\r\nget a\r\n", "STAT sizes_status enabled\r\nEND\r\n");
    for memcached in &memcacheds {
        memcached.client().ask("get shop:a\r\n", "END\r\n");
        let dump = "PREFIX shop get 1 hit 0 set 0 del 0\r\nEND\r\n";
        memcached.client().ask("stats detail dump\r\n", dump);
        memcached.client().ask("stats sizes\r\n", "END\r\n");
    }
    client.ask("stats sizes_disable\r\n", "STAT sizes_status disabled\r\n");
    client.ask("stats detail off\r\n", "OK\r\n");
}

#[test]
fn stats_before_memcached_name_a_server_that_is_down() {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|one| one.address);
    let quickack = quickack(&addresses, &["hash: md5"]);
    spread(&mut quickack.client(), &memcacheds);
    let [first, second] = memcacheds;
    let left = first.stat("curr_items");
    drop(second);
    let ours = facts(&quickack);
    assert_eq!(ours["quickack_servers_missing"], addresses[1].to_string());
    assert_eq!((number(&ours, "curr_items"), number(&ours, "cmd_set")), (left, 40));
    let lists = lines(&mut quickack.client(), " settings");
    let down = ("quickack_servers_missing".to_string(), addresses[1].to_string());
    assert_eq!(lists.last(), Some(&down));
    assert!(lists[0].0.starts_with(&format!("{}:", addresses[0])), "{lists:?}");
}

/// A monitor must not mistake it for a restarted memcached.
#[test]
fn stats_before_memcached_stay_when_a_worker_is_replaced() {
    let memcached = Memcached::start();
    let quickack = harness::start(2, &[], &[memcached.address], &[]);
    quickack.client().ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    let before = facts(&quickack);
    for number in [0, 1] {
        let old = workers(&quickack)[&number].pid;
        send(old, Signal::KILL);
        wait_until("a successor serves", || {
            let workers = workers(&quickack);
            workers.get(&number).is_some_and(|one| one.pid != old && one.is_serving())
        });
    }
    let after = facts(&quickack);
    assert_eq!((&after["pid"], &after["threads"]), (&before["pid"], &"2".to_string()));
    assert_eq!(number(&after, "cmd_set"), 1);
    assert!(number(&after, "uptime") >= number(&before, "uptime"));
}

#[test]
fn lists_of_stats_before_one_memcached_pass_and_before_two_each_name_has_its_server() {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|one| one.address);
    let (one, two) = (quickack(&addresses[..1], &[]), quickack(&addresses, &[]));
    for argument in [" settings", " sizes", " slabs", " settings x"] {
        let direct = lines(&mut memcacheds[0].client(), argument);
        let ours = lines(&mut one.client(), argument);
        let names = |facts: &[(String, String)]| facts.iter().map(|one| one.0.clone()).collect();
        let (direct, ours): (Vec<String>, Vec<String>) = (names(&direct), names(&ours));
        assert_eq!(ours, direct, "{argument}");
        let both = names(&lines(&mut two.client(), argument));
        let named = |at: usize| direct.iter().map(move |name| format!("{}:{name}", addresses[at]));
        let named: Vec<String> = named(0).chain(named(1)).collect();
        assert_eq!(both, named, "{argument}");
    }
    let own = lines(&mut one.client(), " proxy");
    assert!(own.iter().any(|(name, _)| name == "alpha.requests_total"), "{own:?}");
    one.client().ask("stats nonsense\r\n", "ERROR\r\n");
}

#[test]
fn stats_before_the_embedded_cache_have_memcacheds_names() {
    let text = "alpha:\n  listen: 127.0.0.1:0\n  servers: [embedded]\n";
    let quickack = Quickack::start(super::QUICKACK, text);
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\n1\r\nget a b\r\n", "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    let ours = facts(&quickack);
    for (name, expected) in
        [("curr_items", 1), ("limit_maxbytes", 64 << 20), ("get_hits", 1), ("get_misses", 1)]
    {
        assert_eq!(number(&ours, name), expected, "{name}");
    }
    let settings = lines(&mut client, " settings");
    assert!(settings.contains(&("maxbytes".to_string(), (64 << 20).to_string())), "{settings:?}");
    client.ask("stats items\r\n", "END\r\n");
}
