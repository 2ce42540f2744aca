//! INFO from several servers: one text, as a server with all their keys would give it.
//!
//! ```text
//!   s1   used_memory:100   maxmemory_policy:noeviction   ─┐
//!   s2   used_memory:200   maxmemory_policy:allkeys-lru  ─┤
//!        used_memory:300   maxmemory_policy:s1=noeviction,s2=allkeys-lru
//! ```
//!
//! [`RULES`] decides for each field how the servers' values become one. A field without a rule is
//! shown once where the servers agree, and otherwise with each server's name: it is never added up
//! on a guess. The section `Quickack` names servers that did not answer, and shows the proxy's own
//! fields.

mod number;
mod pieces;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;

use super::reply::Walk;
use super::{arguments, words};
use crate::Asked;
use crate::part::{Outcome, Part, ProxyFacts};
use number::{Number, ONE, human, version};
use pieces::parts;

/// How the servers' values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The sum.
    Sum,
    /// The sum; 0 at one server means that there is no limit.
    Limit,
    Least,
    Greatest,
    /// The oldest version.
    Oldest,
    /// As the inner rule, but only if every server has the field.
    All(&'static Rule),
    /// The common value, or otherwise each with its server's name.
    Same,
    /// This value if all servers have it; otherwise the value of another.
    Good(&'static str),
    /// This value if one server has it.
    Any(&'static str),
    /// The sum of the field with that name without `_human`, formatted for people.
    Human,
    /// One sum divided by another.
    Ratio(&'static str, &'static str),
    /// One sum as a percentage of another, from which a third may be subtracted.
    Percent(&'static str, &'static str, &'static str),
    /// `a=1,b=2`: each part by itself.
    Parts,
    /// Numbered lines: those of all servers, numbered anew.
    Counted,
    /// Lines with the same name: those that every server has, each once, as in MODULE LIST.
    Each,
    /// A fixed value for clients of the proxy, whatever the servers are.
    Is(&'static str),
    Clients,
    ClientsEver,
}

use Rule::*;

/// `*` matches any end or any beginning, `#` a number at the end. The first match wins.
#[rustfmt::skip]
const RULES: &[(&str, Rule)] = &[
    // Server.
    ("redis_version", Oldest),
    ("server_name", All(&Same)),
    ("valkey_version", All(&Oldest)),
    ("valkey_release_stage", All(&Same)),
    ("redis_mode", Is("standalone")),
    ("server_mode", All(&Is("standalone"))),
    ("availability_zone", All(&Same)),
    ("listener#", All(&Same)),
    ("cluster_enabled", Is("0")),
    ("uptime_in_*", Least),
    ("server_time_usec", Greatest),
    ("lru_clock", Greatest),
    // Clients.
    ("connected_clients", Clients),
    ("total_connections_received", ClientsEver),
    ("maxclients", Least),
    ("client_recent_max_*", Greatest),
    ("*_clients", Sum),
    ("clients_in_timeout_table", Sum),
    ("cluster_connections", Sum),
    ("total_*", Sum),
    // Memory.
    ("*_human", Human),
    ("used_memory_peak_perc", Percent("used_memory", "used_memory_peak", "")),
    ("used_memory_dataset_perc",
        Percent("used_memory_dataset", "used_memory", "used_memory_startup")),
    ("used_memory*", Sum),
    ("allocator_frag_ratio", Ratio("allocator_active", "allocator_allocated")),
    ("allocator_rss_ratio", Ratio("allocator_resident", "allocator_active")),
    ("rss_overhead_ratio", Ratio("used_memory_rss", "allocator_resident")),
    ("mem_fragmentation_ratio", Ratio("used_memory_rss", "used_memory")),
    ("allocator_*", Sum),
    ("rss_overhead_bytes", Sum),
    ("maxmemory", Limit),
    ("mem_allocator", Same),
    ("mem_*", Sum),
    // All servers have the same ones.
    ("number_of_*", Greatest),
    ("active_defrag_running", Greatest),
    ("lazyfree*", Sum),
    // Persistence. A client waits while a server loads, so this is 1 only if all servers load.
    ("loading", Least),
    ("async_loading", Greatest),
    ("loading_start_time", Least),
    ("loading_loaded_perc", Least),
    ("loading_eta_seconds", Greatest),
    ("loading_*", Sum),
    ("current_cow_size_age", Greatest),
    ("current_fork_perc", Greatest),
    ("current_eviction_exceeded_time", Greatest),
    ("current_active_defrag_time", Greatest),
    ("current_*", Sum),
    ("master_link_status", Good("up")),
    ("*_status", Good("ok")),
    ("*_in_progress", Greatest),
    ("*_time_sec", Greatest),
    ("rdb_last_save_time", Least),
    ("rdb_*", Sum),
    ("aof_enabled", Same),
    ("aof_rewrite_scheduled", Greatest),
    ("aof_*", Sum),
    ("module_fork_last_cow_size", Sum),
    // Stats.
    ("instantaneous_*", Sum),
    ("rejected_connections", Sum),
    ("sync_*", Sum),
    ("*_perc", Greatest),
    ("expire*", Sum),
    ("evicted_*", Sum),
    ("keyspace_*", Sum),
    ("pubsub*", Sum),
    ("latest_fork_usec", Greatest),
    ("migrate_cached_sockets", Sum),
    ("slave_expires_tracked_keys", Sum),
    ("active_defrag_*", Sum),
    ("tracking_*", Sum),
    ("unexpected_error_replies", Sum),
    ("dump_payload_sanitizations", Sum),
    ("io_threaded_*", Sum),
    ("reply_buffer_*", Sum),
    ("*_disconnections", Sum),
    ("eventloop_*", Sum),
    ("acl_access_denied_*", Sum),
    // Replication.
    ("role", Any("master")),
    ("connected_slaves", Sum),
    ("replicas_*", Sum),
    ("slave#", Counted),
    ("master_repl_offset", Greatest),
    ("second_repl_offset", Greatest),
    ("repl_backlog_active", Greatest),
    ("repl_backlog_first_byte_offset", Least),
    ("repl_backlog_*", Sum),
    ("master_last_io_seconds_ago", Greatest),
    ("slave_repl_offset", Least),
    // The rest.
    ("used_cpu_*", Sum),
    ("used_active_time*", Sum),
    ("io_thread_#", Parts),
    ("module", Each),
    ("cmdstat_*", Parts),
    ("errorstat_*", Parts),
    ("latency_percentiles_usec_*", Parts),
    ("engines_count", Greatest),
    ("engines_total_*", Sum),
    ("db#", Parts),
];

fn rule(name: &str) -> Rule {
    let fits = |pattern: &str| match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(start), _) => name.starts_with(start),
        (_, Some(end)) => name.ends_with(end),
        _ => match pattern.strip_suffix('#') {
            Some(start) => name.strip_prefix(start).is_some_and(is_number),
            None => name == pattern,
        },
    };
    RULES.iter().find(|(pattern, _)| fits(pattern)).map_or(Same, |(_, rule)| *rule)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// One section from all servers' texts.
struct Section<'a> {
    name: &'a str,
    fields: Vec<Field<'a>>,
}

struct Field<'a> {
    name: &'a str,
    rule: Rule,
    /// The value of each server that has the field: once each, unless lines may have the same name.
    values: Vec<(&'a str, &'a str)>,
    /// The index of the server of the last value.
    last: usize,
}

/// Writes the answer, if at least one server replied.
pub(super) fn gather(
    asked: &Asked<'_>,
    parts: &[Part<'_>],
    proxy: &dyn ProxyFacts,
    out: &mut Vec<u8>,
) -> Option<()> {
    let texts: Vec<(&str, Cow<'_, str>)> =
        parts.iter().filter_map(|part| Some((part.server, text(part.reply()?)?))).collect();
    let first = parts.iter().find_map(Part::reply)?;
    let proto_version = if first.starts_with(b"=") { 3 } else { 2 };
    let sections = sections(&texts);
    let mut answer = InfoAnswer::new(&sections, texts.len(), proxy);
    answer.servers();
    if texts.len() < parts.len() || wants_proxy_section(asked) {
        answer.proxy_section(parts);
    }
    words::verbatim(answer.out.as_bytes(), proto_version, out);
    Some(())
}

/// Whether the request names our section, or asks for the default sections.
fn wants_proxy_section(asked: &Asked<'_>) -> bool {
    let arguments = arguments::all(asked.head);
    let names = ["default", "all", "everything", PROXY_SECTION];
    let is_one = |word: &[u8]| names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
    arguments.len() <= 1 || arguments[1..].iter().any(|word| is_one(word))
}

const PROXY_SECTION: &str = "Quickack";

/// Returns the text of a reply. The first letters of a verbatim string are its format.
fn text(reply: &[u8]) -> Option<Cow<'_, str>> {
    let text = Walk::new(reply).text()?;
    let text = if reply.starts_with(b"=") { text.get(4..)? } else { text };
    Some(String::from_utf8_lossy(text))
}

/// Returns the sections and fields of all servers, in the order of the first server that has them.
fn sections<'a>(texts: &'a [(&'a str, Cow<'a, str>)]) -> Vec<Section<'a>> {
    let mut sections: Vec<Section<'a>> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut places: HashMap<(usize, &str), usize> = HashMap::new();
    for (nth, (server, text)) in texts.iter().enumerate() {
        let mut open = None;
        for line in text.lines().map(str::trim_end) {
            if let Some(name) = line.strip_prefix("# ") {
                let place = *known.entry(name).or_insert(sections.len());
                open = Some(place);
                if place == sections.len() {
                    sections.push(Section { name, fields: Vec::new() });
                }
            } else if let (Some((name, value)), Some(open)) = (line.split_once(':'), open) {
                let fields = &mut sections[open].fields;
                let place = *places.entry((open, name)).or_insert(fields.len());
                if place == fields.len() {
                    fields.push(Field { name, rule: rule(name), values: Vec::new(), last: nth });
                }
                let field = &mut fields[place];
                if field.values.is_empty() || field.last != nth || field.rule == Each {
                    field.values.push((server, value));
                    field.last = nth;
                }
            }
        }
    }
    sections
}

/// The answer, as far as it is written.
struct InfoAnswer<'a> {
    sections: &'a [Section<'a>],
    /// Fields by name, in whichever section they are: the first.
    fields: HashMap<&'a str, &'a Field<'a>>,
    /// Sums, each computed once, however many fields use it.
    totals: RefCell<HashMap<&'a str, Option<Number>>>,
    /// The number of servers that have answered.
    servers: usize,
    proxy: &'a dyn ProxyFacts,
    out: String,
}

impl<'a> InfoAnswer<'a> {
    fn new(sections: &'a [Section<'a>], servers: usize, proxy: &'a dyn ProxyFacts) -> Self {
        let mut fields = HashMap::new();
        for field in sections.iter().flat_map(|section| &section.fields) {
            fields.entry(field.name).or_insert(field);
        }
        let (totals, out) = (RefCell::default(), String::new());
        InfoAnswer { sections, fields, totals, servers, proxy, out }
    }

    fn servers(&mut self) {
        for section in self.sections {
            self.open(section.name);
            let mut counted = 0;
            for field in &section.fields {
                self.field(field, &mut counted);
            }
        }
    }

    fn open(&mut self, section: &str) {
        if !self.out.is_empty() {
            self.out.push_str("\r\n");
        }
        let _ = write!(self.out, "# {section}\r\n");
    }

    fn line(&mut self, name: &str, value: &str) {
        let _ = write!(self.out, "{name}:{value}\r\n");
    }

    /// Writes one field. `counted` is the count of numbered lines written so far.
    fn field(&mut self, Field { name, rule, values, .. }: &Field<'a>, counted: &mut u32) {
        match *rule {
            Counted => {
                let start = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
                for (_, value) in values {
                    self.line(&format!("{start}{counted}"), value);
                    *counted += 1;
                }
            }
            Each => {
                self.shared(values).into_iter().for_each(|value| self.line(name, value));
            }
            rule => {
                if let Some(value) = self.combine(rule, name, values) {
                    self.line(name, &value);
                }
            }
        }
    }

    /// Returns the values that every server has.
    fn shared(&self, values: &[(&'a str, &'a str)]) -> Vec<&'a str> {
        // How many servers have each value, and the last server that has it.
        let mut counts: HashMap<&str, (usize, &str)> = HashMap::new();
        for (server, value) in values {
            let (count, last) = counts.entry(value).or_insert((0, ""));
            if *count == 0 || last != server {
                (*count, *last) = (*count + 1, server);
            }
        }
        let is_new_and_shared = |(_, value): &&(&'a str, &'a str)| {
            counts.remove(value).is_some_and(|(count, _)| count == self.servers)
        };
        values.iter().filter(is_new_and_shared).map(|(_, value)| *value).collect()
    }

    fn combine(&self, rule: Rule, name: &str, values: &[(&str, &str)]) -> Option<String> {
        match rule {
            Is(value) => return Some(value.to_string()),
            Clients => return Some(self.proxy.totals().clients.to_string()),
            ClientsEver => return Some(self.proxy.totals().clients_ever.to_string()),
            All(_) if values.len() < self.servers => return None,
            All(rule) => return self.combine(*rule, name, values),
            // A value that other servers lack does not hold for all of them.
            Same if values.len() < self.servers => return Some(named(values)),
            _ => {}
        }
        if let [(_, value)] = values {
            return Some(value.to_string());
        }
        let numbers = || values.iter().map(|(_, value)| Number::read(value));
        let made = match rule {
            Sum => numbers().reduce(|one, other| Some(one?.plus(other?)))?.map(Number::tell),
            Limit if values.iter().any(|(_, value)| *value == "0") => Some("0".to_string()),
            Limit => numbers().reduce(|one, other| Some(one?.plus(other?)))?.map(Number::tell),
            Least => numbers().reduce(|one, other| Some(one?.min(other?)))?.map(Number::tell),
            Greatest => numbers().reduce(|one, other| Some(one?.max(other?)))?.map(Number::tell),
            Oldest => values.iter().map(|value| value.1).min_by_key(|text| version(text)).map(into),
            Good(good) => {
                let bad = values.iter().find(|(_, value)| *value != good);
                Some(into(bad.map_or(good, |(_, value)| value)))
            }
            Any(word) => values.iter().any(|(_, value)| *value == word).then(|| into(word)),
            Human => name.strip_suffix("_human").and_then(|base| self.bytes(base)).and_then(human),
            Ratio(of, by) => self.quotient((of, by, ""), 100),
            Percent(of, by, less) => self.quotient((of, by, less), 100 * 100).map(|it| it + "%"),
            Parts => parts(values),
            _ => None,
        };
        made.or_else(|| Some(same(values)))
    }

    /// Returns the servers' values of a field, in whichever section it is.
    fn values(&self, name: &str) -> &'a [(&'a str, &'a str)] {
        self.fields.get(name).map_or(&[], |field| &field.values)
    }

    fn total(&self, name: &str) -> Option<Number> {
        let field = *self.fields.get(name)?;
        let add = || {
            let numbers = field.values.iter().map(|(_, value)| Number::read(value));
            numbers.reduce(|one, other| Some(one?.plus(other?)))?
        };
        *self.totals.borrow_mut().entry(field.name).or_insert_with(add)
    }

    /// Returns the sum of a field of bytes.
    fn bytes(&self, name: &str) -> Option<Number> {
        let is_limit = rule(name) == Limit;
        let no_limit = is_limit && self.values(name).iter().any(|(_, value)| *value == "0");
        if no_limit { Some(Number::ZERO) } else { self.total(name) }
    }

    /// Returns a total divided by another less a third, with two places. `factor` is 100 for a
    /// percentage.
    fn quotient(&self, (of, by, less): (&str, &str, &str), factor: i128) -> Option<String> {
        let (of, by) = (self.total(of)?.value, self.total(by)?.value);
        let by = by.checked_sub(self.total(less).map_or(0, |less| less.value))?;
        let value = of.checked_mul(factor)?.checked_add(by / 2)?.checked_div(by)?;
        Some(Number { value: value.checked_mul(ONE)? / 100, places: 2 }.tell())
    }

    /// Writes the proxy's own fields, and the outcome for each server that was asked.
    fn proxy_section(&mut self, parts: &[Part<'_>]) {
        self.open(PROXY_SECTION);
        let (facts, totals) = (self.proxy.facts(), self.proxy.totals());
        let version = facts.version.trim_start_matches("quickack-");
        self.line("quickack_version", &plain(version));
        self.line("quickack_pool", &plain(facts.pool));
        self.line("quickack_uptime_in_seconds", &facts.uptime_s.to_string());
        self.line("quickack_requests", &totals.requests.to_string());
        for name in ["connected_clients", "total_connections_received"] {
            // The servers' values of these differ from the proxy's above.
            if let Some(number) = self.total(name) {
                self.line(&format!("servers_{name}"), &number.tell());
            }
        }
        self.line("quickack_servers", &parts.len().to_string());
        self.line("quickack_servers_up", &self.servers.to_string());
        for (nth, part) in parts.iter().enumerate() {
            let name = plain(part.server);
            let why = match part.outcome {
                Outcome::Reply(_) => None,
                Outcome::Error(line) => Some(("refused", String::from_utf8_lossy(line))),
                Outcome::Fault { words, .. } => Some(("down", Cow::Borrowed(words))),
            };
            let value = match why {
                None => format!("name={name},state=up{}", self.state(part.server)),
                Some((state, why)) => format!("name={name},state={state},why={}", plain(&why)),
            };
            self.line(&format!("quickack_server{nth}"), &value);
        }
    }

    /// Returns the fields of one server that an operator looks at first.
    fn state(&self, server: &str) -> String {
        let mut answer = String::new();
        for name in ["role", "redis_version", "loading"] {
            if let Some((_, value)) = self.values(name).iter().find(|(one, _)| *one == server) {
                let _ = write!(answer, ",{name}={}", plain(value));
            }
        }
        answer
    }
}

/// Returns the common value, or each with its server's name.
pub(super) fn same(values: &[(&str, &str)]) -> String {
    let first = values.first().map_or("", |(_, value)| value);
    if values.iter().all(|(_, value)| *value == first) {
        return first.to_string();
    }
    named(values)
}

/// Returns each value with its server's name.
fn named(values: &[(&str, &str)]) -> String {
    let each = values.iter().map(|(server, value)| format!("{}={}", plain(server), plain(value)));
    each.collect::<Vec<_>>().join(",")
}

/// Returns text that may stand between `=` and `,`, in one line.
pub(super) fn plain(text: &str) -> String {
    let letter = |letter| match letter {
        ',' => ';',
        '=' => ':',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    text.trim_end().chars().map(letter).collect()
}

fn into(text: &str) -> String {
    text.to_string()
}

#[cfg(test)]
mod tests;
