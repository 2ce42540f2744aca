//! `tenants:`, their rules, and what contradicts itself.

use proxy::tenants::plan::Over;

use super::super::{Attachments, Config, Override, Source, compile_for, difference, set};

const TEXT: &str = "\
global:
  clients_max: 1000
  tenants:
    shop:
      users: [anna, bob]
      weight: 3
      clients_max: 100
      requests_per_s: 5000
      received_per_s: 10m
      sent_per_s: 50m
      inflight_max: 64m
      over: refuse
      databases: [0, 2..4]
      allow: ['@read', set]
      deny: [keys]
      key_prefix: 'shop:'
    rest:
      listeners: ['127.0.0.1:2']
      pools: [alpha]
alpha:
  listen: 127.0.0.1:1
  redis: true
  users: names
  servers: [127.0.0.1:6379:1]
beta:
  listen: 127.0.0.1:2
  servers: [127.0.0.1:11211:1]
";

fn compile(text: &str, overrides: &[Override]) -> (Option<Config>, String) {
    let mut attachments = Attachments::default();
    attachments.insert("names", "anna:x\nbob:y\n".to_string());
    let outcome = compile_for("test.yml", text, overrides, 2, Source::Attached(&attachments));
    (outcome.config, outcome.report.render_text())
}

fn config(text: &str, overrides: &[Override]) -> Config {
    let (config, told) = compile(text, overrides);
    config.unwrap_or_else(|| panic!("{text}{told}"))
}

#[test]
fn a_tenant_has_users_listeners_and_pools_with_limits_of_its_own() {
    let config = config(TEXT, &[]);
    assert_eq!(config.plan.pools[0].tenant, Some(1));
    assert_eq!(config.plan.pools[1].tenant, Some(1));
    let [shop, rest] = config.plan.tenants.as_slice() else { panic!("two tenants") };
    assert_eq!((shop.name.as_str(), &*shop.users, shop.weight), ("shop", &*names(), 3));
    assert_eq!((shop.clients_max, shop.rates), (100, [5_000, 10 << 20, 50 << 20]));
    assert_eq!((shop.inflight_max, shop.over), (64 << 20, Over::Refuse));
    let rules = shop.rules.as_ref().expect("it has some");
    assert_eq!((&*rules.databases, &*rules.key_prefix), (&[(0, 0), (2, 4)][..], &b"shop:"[..]));
    assert!(rest.rules.is_none() && rest.rates == [u64::MAX; 3]);
    assert_eq!(shop.id + 1, rest.id, "they have ids of their own");
}

fn names() -> Vec<String> {
    vec!["anna".to_string(), "bob".to_string()]
}

#[test]
fn what_contradicts_itself_is_told() {
    for (from, to, told) in [
        ("    rest:\n", "    rest:\n      users: [bob]\n", "user `bob` belongs to tenant `shop`"),
        ("[anna, bob]", "[anna, bop]", "no pool has a user `bop`; did you mean `bob`?"),
        ("pools: [alpha]", "pools: [alpa]", "no pool is called `alpa`; did you mean `alpha`?"),
        ("'127.0.0.1:2'", "'127.0.0.1:3'", "no pool listens on 127.0.0.1:3"),
        ("[keys]", "[kyes]", "`kyes` is neither a command nor a category; did you mean `keys`?"),
        ("'@read', set", "'@reed', set", "`@reed` is neither a command nor a category"),
        ("deny: [keys]", "deny: [set]", "without effect for `set`, which `deny` names"),
        ("'@read', set", "flushall", "`flushall` is refused all the same: no pool allows it"),
        ("_max: 100\n", "_max: 2000\n", "2000 are never reached: all tenants have 1000 together"),
        ("_max: 64m", "_max: 64g", "64g are never reached: `memory_max` is 1g"),
        ("[0, 2..4]", "[0, 2..16]", "16 is in no pool"),
        ("[0, 2..4]", "[4..2]", "`4..2` ends before it begins"),
        ("'shop:'", "''", "a prefix has 1 to 200 bytes"),
        ("weight: 3", "weight: 0", "0 is out of range"),
        ("weight: 3", "wieght: 3", "did you mean `weight`?"),
        ("over: refuse", "over: refusing", "is not one of: delay, refuse"),
        ("    rest:\n", "    sh.p:\n", "a name has 1 to 64 bytes"),
        ("    rest:\n", "    none:\n    rest:\n", "tenant `none` has no clients"),
        ("weight: 3", "private_links_max: 3", ""),
        ("weight: 3", "private_links_max: 3000", "`private_connections_max` is 1000"),
        ("redis: true", "client_connections: 500\n  redis: true", ""),
        ("redis: true", "client_connections: 5\n  redis: true", "its pools allow 5 together"),
        ("deny: [keys]", "deny: ['@write']", "without effect for `set`: `deny` has `@write`"),
        ("deny: [keys]", "deny: ['@all']", "without effect for `@read`: `deny` has `@all`"),
        ("deny: [keys]", "deny: ['@all']", "tenant `shop` may run no command but those of a login"),
    ] {
        assert!(TEXT.contains(from), "{from}");
        let (_, report) = compile(&TEXT.replacen(from, to, 1), &[]);
        assert!(report.contains(told), "{to}: {report}");
        assert_eq!(report.is_empty(), told.is_empty(), "{to}: {report}");
    }
    assert_eq!(compile(TEXT, &[]).1, "");
}

#[test]
fn limits_are_set_at_run_time_and_told_as_differences() {
    let before = config(TEXT, &[]);
    let overrides = set(&before, &[], "tenants.shop.requests_per_s=7000").unwrap();
    let overrides = set(&before, &overrides, "tenants.rest.weight=2").unwrap();
    let after = config(TEXT, &overrides);
    assert_eq!((after.plan.tenants[0].rates[0], after.plan.tenants[1].weight), (7_000, 2));
    let lines = ["tenant shop: requests_per_s: 5000 -> 7000", "tenant rest: weight: 1 -> 2"];
    assert_eq!(difference(&before, &after).lines, lines);
    let told = "tenants.shop.requests_per_s: 5000 -> 7000\ntenants.rest.weight: 1 -> 2\n";
    assert_eq!(after.diff_text(), told);
    let words: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let again: Vec<Override> = words.iter().map(|word| Override::parse(word).unwrap()).collect();
    assert_eq!(again, overrides, "a child reads what its master wrote");
    // What is shown is itself a configuration.
    let shown = after.running_text();
    let line = shown.lines().find(|line| line.starts_with("  tenants: ")).unwrap();
    let (start, end) = (TEXT.find("  tenants:").unwrap(), TEXT.find("alpha:\n").unwrap());
    let again = config(&format!("{}{line}\n{}", &TEXT[..start], &TEXT[end..]), &[]);
    assert_eq!(again.plan.tenants, after.plan.tenants);
    for (word, hint) in [
        ("tenants.shpo.weight=2", "no tenant is called `shpo`; did you mean `shop`?"),
        ("tenants={}", "set one of a tenant's"),
        ("tenants.shop.weight=0", "0 is out of range"),
    ] {
        let told = set(&before, &[], word).unwrap_err().to_string();
        assert!(told.contains(hint), "{word}: {told}");
    }
    let gone =
        TEXT.replace("    rest:\n      listeners: ['127.0.0.1:2']\n      pools: [alpha]\n", "");
    let (_, report) = compile(&gone, &overrides);
    assert!(report.contains("no tenant is called `rest` any more"), "{report}");
    let lines = difference(&before, &config(&gone, &[])).lines;
    assert_eq!(lines, ["tenant rest removed"]);
}
