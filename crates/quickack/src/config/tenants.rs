//! `tenants:` of the `global:` block: the directives of a tenant, and their values as written.
//!
//! ```text
//!   tenants:
//!     shop:
//!       users: [anna, bob]
//!       requests_per_s: 5000
//!       key_prefix: "shop:"
//! ```

use std::collections::HashSet;

use proxy::tenants::plan::{Over, TenantPlan};

use super::address::Address;
use super::apply::apply;
use super::directives::{Directive, INT_MAX, Kind, Origin, Unwritten, row};
use super::draft::Setting;
use super::file::{Entry, Shape};
use super::findings::Findings;
use super::report::{Place, Spot};
use super::value::{self, Fault, quoted};

use Origin::Native;
use Unwritten::{Unset, Value};

/// One tenant while it is read.
pub struct TenantDraft {
    /// Limits go straight into the plan.
    pub plan: TenantPlan,
    pub listeners: Vec<Address>,
    pub pools: Vec<String>,
    pub databases: Vec<(u32, u32)>,
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub key_prefix: String,
    pub settings: Vec<Setting>,
    /// The place of its name, and those of the values of its directives.
    place: Place,
    places: Vec<(String, Place)>,
}

/// Directives of a tenant.
#[rustfmt::skip] // One row a thought: name, origin and default on its first line.
pub static TENANT: &[Directive<TenantDraft>] = &[
    row("users", Native, Unset("none"),
        Kind::Owns("list of names", |tenant, word, first| {
            add(&mut tenant.plan.users, word.to_string(), first)
        }),
        "Users of the tenant, by their names in the files of `users:`, in all pools."),
    row("listeners", Native, Unset("none"),
        Kind::Owns("list of addresses", |tenant, word, first| {
            add(&mut tenant.listeners, Address::parse(word)?, first)
        }),
        "Addresses as in `listen:` of pools. A client that comes there belongs to the tenant, \
         unless its user has another."),
    row("pools", Native, Unset("none"),
        Kind::Owns("list of pools", |tenant, word, first| {
            add(&mut tenant.pools, word.to_string(), first)
        }),
        "Pools whose clients belong to the tenant, unless their user or listener has another."),
    row("weight", Native, Value("1"),
        Kind::Number(1..=WEIGHT_MAX, |tenant, weight| tenant.plan.weight = weight as u32),
        "The tenant's part of what is shared with others that want as much: the queues of \
         servers, a worker's time, and its memory. 2 is twice as much as 1."),
    row("clients_max", Native, Unset("no limit"),
        Kind::Number(1..=INT_MAX, |tenant, count| tenant.plan.clients_max = count),
        "The most clients. One more is refused, or its login is, with an error that names the \
         tenant and the limit."),
    row("requests_per_s", Native, Unset("no limit"),
        Kind::Number(1..=RATE_MAX, |tenant, rate| tenant.plan.rates[0] = rate),
        "Requests in a second."),
    row("received_per_s", Native, Unset("no limit"),
        Kind::Size(1..=RATE_BYTES_MAX, |tenant, rate| tenant.plan.rates[1] = rate),
        "Bytes of requests in a second."),
    row("sent_per_s", Native, Unset("no limit"),
        Kind::Size(1..=RATE_BYTES_MAX, |tenant, rate| tenant.plan.rates[2] = rate),
        "Bytes sent to clients in a second."),
    row("inflight_max", Native, Unset("no limit"),
        Kind::Size(1..=RATE_BYTES_MAX, |tenant, bytes| tenant.plan.inflight_max = bytes),
        "Bytes of requests without an answer, with the answers that are expected to them. One \
         request may always be in flight."),
    row("over", Native, Value("delay"),
        Kind::Word(|| vec!["delay", "refuse"], |tenant, word| {
            over(word).map(|choice| tenant.plan.over = choice)
        }),
        "What becomes of a request above one of the limits but `clients_max`: `delay` reads it \
         later, `refuse` answers it with an error that names the tenant and the limit."),
    row("private_links_max", Native, Unset("no limit"),
        Kind::Number(1..=INT_MAX, |tenant, count| tenant.plan.private_links_max = count),
        "The most links that belong to one of its clients alone. A request that needs one more is \
         answered with an error that names the tenant and the limit. `private_connections_max` \
         bounds them for all tenants together."),
    row("databases", Native, Unset("all of the pool's"),
        Kind::Owns("list of numbers and ranges", |tenant, word, first| {
            add(&mut tenant.databases, range(word)?, first)
        }),
        "Databases that the tenant may use in Redis pools, such as `[0, 2..4]`."),
    row("allow", Native, Unset("all commands"),
        Kind::Owns("list of commands", |tenant, word, first| {
            add(&mut tenant.allow, word.to_ascii_lowercase(), first)
        }),
        "Commands that the tenant may give, by their names in [commands.md](commands.md) or by \
         category: those of the servers' ACLs, such as `\"@read\"`, and `\"@all\"`. memcached's \
         commands are in `@read`, `@write`, `@admin`, `@dangerous` or `@connection`. A command of \
         the servers themselves needs `allow` of the pool as well."),
    row("deny", Native, Unset("none"),
        Kind::Owns("list of commands", |tenant, word, first| {
            add(&mut tenant.deny, word.to_ascii_lowercase(), first)
        }),
        "Commands that the tenant may not give, whatever `allow` says. Logins, `HELLO`, `RESET` \
         and `QUIT` are never refused."),
    row("key_prefix", Native, Unset("any key"),
        Kind::Own("text", |tenant, word| key_prefix(word).map(|()| {
            tenant.key_prefix = word.to_string();
        })),
        "What every key must begin with; the proxy adds nothing to a key. Requests that do not \
         name all keys that they reach are refused: scripts, `FLUSHALL`, `RANDOMKEY`, `SORT` with \
         `BY` or `GET`, `KEYS` and `SCAN` unless their pattern begins with the prefix, \
         `flush_all`, `stats items` and the like."),
];

/// A queue is served in rounds, in which each weight counts.
const WEIGHT_MAX: u64 = 1_000;
/// More than a machine can do.
const RATE_MAX: u64 = 1_000_000_000;
const RATE_BYTES_MAX: u64 = 1 << 40;
/// Tenants of one configuration.
const TENANTS_MAX: usize = 1_000;
/// The longest prefix of a key: memcached's keys have 250 bytes.
const PREFIX_LEN_MAX: usize = 200;
const DATABASE_MAX: u64 = 65_535;

/// Reads the mapping, and also returns it as one line. None after an error.
pub fn tenants(entry: &Entry, findings: &mut Findings) -> Option<(Vec<TenantDraft>, String)> {
    let rows = match &entry.value.shape {
        Shape::Map(rows) => rows.as_slice(),
        Shape::Nothing => &[],
        Shape::Word(_) | Shape::List(_) => {
            let message = "tenants: names were expected, each with directives under it";
            findings.error(entry.value.place, message);
            return None;
        }
    };
    if rows.len() > TENANTS_MAX {
        let message = format!("tenants: {} are too many; the limit is {TENANTS_MAX}", rows.len());
        findings.error(entry.key_place, message);
        return None;
    }
    let mut seen = HashSet::new();
    let mut drafts = Vec::new();
    for row in rows {
        match seen.insert(row.key.as_str()) {
            true => drafts.extend(tenant(row, findings)),
            false => findings.twice(row, rows),
        }
    }
    let shown = word(drafts.iter().map(|draft| (&*draft.plan.name, &*draft.settings)));
    (drafts.len() == rows.len()).then_some((drafts, shown))
}

/// Returns tenants and their settings as one line.
pub fn word<'d>(tenants: impl Iterator<Item = (&'d str, &'d [Setting])>) -> String {
    let one = |(name, settings): (&str, &[Setting])| {
        let values: Vec<String> = settings.iter().filter_map(shown).collect();
        format!("{}: {{{}}}", quoted(name), values.join(", "))
    };
    let all: Vec<String> = tenants.map(one).collect();
    format!("{{{}}}", all.join(", "))
}

fn shown(setting: &Setting) -> Option<String> {
    let word = setting.word()?;
    let is_list = word.starts_with('[') && setting.name != "key_prefix";
    let word = if is_list { word.to_string() } else { quoted(word) };
    Some(format!("{}: {word}", setting.name))
}

fn tenant(row: &Entry, findings: &mut Findings) -> Option<TenantDraft> {
    let is_odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '\'' | '.');
    if row.key.is_empty() || row.key.len() > NAME_LEN_MAX || row.key.contains(is_odd) {
        let message = format!(
            "tenants: a name has 1 to {NAME_LEN_MAX} bytes, without spaces, points and quotes"
        );
        findings.error(row.key_place, message);
        return None;
    }
    let entries = match &row.value.shape {
        Shape::Map(entries) => entries.as_slice(),
        Shape::Nothing => &[],
        Shape::Word(_) | Shape::List(_) => {
            let message = format!("tenants: `{}` has no directives under it", row.key);
            findings.error(row.key_place, message);
            return None;
        }
    };
    let mut draft = TenantDraft::new(&row.key, row.key_place);
    draft.settings = apply(TENANT, entries, &mut draft, findings);
    draft.places = entries.iter().map(|one| (one.key.clone(), one.value.place)).collect();
    Some(draft)
}

const NAME_LEN_MAX: usize = 64;

impl TenantDraft {
    pub fn new(name: &str, place: Place) -> TenantDraft {
        TenantDraft {
            plan: TenantPlan::new(name),
            listeners: Vec::new(),
            pools: Vec::new(),
            databases: Vec::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            key_prefix: String::new(),
            settings: Vec::new(),
            place,
            places: Vec::new(),
        }
    }

    /// Returns the source of a directive's value: set at run time, or its place in the file, or
    /// else the tenant's name.
    pub fn spot_of(&self, name: &str) -> Spot {
        let set = self.settings.iter().find(|setting| setting.name == name);
        if let Some(word) = set.and_then(|setting| setting.set.as_ref()) {
            return Spot::Set(format!("tenants.{}.{name}={word}", self.plan.name));
        }
        let written = self.places.iter().find(|(key, _)| key == name);
        written.map_or(self.place, |(_, place)| *place).into()
    }
}

/// Adds a word of a list; the first one begins it anew.
fn add<T>(list: &mut Vec<T>, value: T, first: bool) -> Result<(), Fault> {
    if first {
        list.clear();
    }
    list.push(value);
    Ok(())
}

fn over(word: &str) -> Option<Over> {
    match word {
        "delay" => Some(Over::Delay),
        "refuse" => Some(Over::Refuse),
        _ => None,
    }
}

/// `3` or `2..4`.
fn range(word: &str) -> Result<(u32, u32), Fault> {
    let (first, last) = word.split_once("..").unwrap_or((word, word));
    let number = |word| value::number(word, &(0..=DATABASE_MAX)).map(|number| number as u32);
    let (first, last) = (number(first)?, number(last)?);
    match first <= last {
        true => Ok((first, last)),
        false => Err(Fault::new(format!("`{word}` ends before it begins"))),
    }
}

fn key_prefix(word: &str) -> Result<(), Fault> {
    let is_good = !word.is_empty() && word.len() <= PREFIX_LEN_MAX;
    match is_good && !word.contains(|c: char| c.is_control() || c == ' ') {
        true => Ok(()),
        false => {
            let message = format!(
                "a prefix has 1 to {PREFIX_LEN_MAX} bytes, without spaces and control characters"
            );
            Err(Fault::new(message))
        }
    }
}
