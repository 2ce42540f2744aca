//! Lists of servers that come from elsewhere: `servers: {file: PATH}`, `{srv: NAME}`,
//! `{elasticache: HOST:PORT}`.
//!
//! ```text
//!   file, SRV records, configuration endpoint ──resolver──▶ a text ──plain──▶ attached to the
//!   configuration, by the name of the pool ──compile──▶ the pool's servers
//! ```
//!
//! A list that is attached has been checked, so none makes a configuration invalid. A pool whose
//! list is not known has no servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Config;
use super::address::{Address, ServerAddress, ServerLine};
use super::directives::{Directive, Kind, Origin, Unwritten, row};
use super::draft::{PoolDraft, ServersDraft};
use super::file::{Entry, Node, Shape};
use super::findings::Findings;
use super::report::nearest;
use super::value::{Fault, quoted};

/// Where the list of a pool's servers comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListSource {
    /// A file, which has what stands under `servers:`, one a line. A relative path begins in the
    /// folder of the configuration.
    File(String),
    /// SRV records of this name.
    Srv(String),
    /// The configuration endpoint of a cluster of memcached.
    Elasticache { host: String, port: u16 },
}

/// The list of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// It counts only while the pool takes its list from there.
    pub source: ListSource,
    /// As `plain` returns it.
    pub text: String,
}

/// Lists, by the names of their pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lists(BTreeMap<String, List>);

/// A pool that takes its list from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub source: ListSource,
    /// A list that moves keys is applied by itself.
    pub applies: bool,
}

pub const SERVERS: Directive<PoolDraft> = row(
    "servers",
    Origin::Twemproxy,
    Unwritten::Required,
    Kind::Servers(PoolDraft::set_servers),
    "A list of `host:port:weight [name]`, `/path/of/socket:weight [name]`, or `embedded`, \
     which is a cache process of this program. The ring hashes the name or, without one, the \
     host and port (the host alone if the port is 11211). Hosts are looked up by the system's \
     resolver, at start and every `resolve_every`; a server whose host does not resolve is \
     down. In place of a list, `{file: PATH}`, `{srv: NAME}` or `{elasticache: HOST:PORT}` \
     takes it from elsewhere, again and again: see [names.md](../names.md).",
);

pub const DISCOVERY: Directive<PoolDraft> = row(
    "discovery",
    Origin::Native,
    Unwritten::Value("warn"),
    Kind::Word(
        || vec!["apply", "warn"],
        |pool, word| {
            let at = ["apply", "warn"].iter().position(|one| *one == word);
            at.map(|at| pool.applies_lists = at == 0)
        },
    ),
    "What becomes of a list from elsewhere that would move keys to other servers. `warn`: it \
     waits, with a warning, until `quickack reload --allow-remap` applies it. `apply`: it is \
     applied by itself. One that moves no keys is applied in any case; one that is empty or wrong \
     never.",
);

impl Lists {
    /// The text of a pool's list, if it comes from there.
    pub fn get(&self, pool: &str, source: &ListSource) -> Option<&str> {
        let list = self.0.get(pool).filter(|list| list.source == *source)?;
        Some(&list.text)
    }

    pub fn set(&mut self, pool: &str, source: &ListSource, text: &str) {
        self.insert(pool, List { source: source.clone(), text: text.to_string() });
    }

    pub fn insert(&mut self, pool: &str, list: List) {
        self.0.insert(pool.to_string(), list);
    }

    /// Leaves only the lists that pools of this configuration take.
    pub fn retain_of(&mut self, config: &Config) {
        let of = |pool: &str| config.lists().find(|(name, _)| *name == pool);
        self.0.retain(|pool, list| of(pool).is_some_and(|(_, it)| it.source == list.source));
    }
}

impl Config {
    /// The pools that take their lists from elsewhere, by name.
    pub fn lists(&self) -> impl Iterator<Item = (&str, &Listed)> {
        let pools = self.plan.pools.iter().zip(&self.upstreams);
        pools.filter_map(|(pool, upstream)| Some((&*pool.name, upstream.list.as_ref()?)))
    }
}

/// Reads `{file: PATH}` and the like; None after an error.
pub fn source(entry: &Entry, findings: &mut Findings) -> Option<ServersDraft> {
    let Shape::Map(entries) = &entry.value.shape else { return None };
    let [one] = entries.as_slice() else {
        let message = "servers: one of `{file: PATH}`, `{srv: NAME}` and `{elasticache: \
                       HOST:PORT}` was expected";
        findings.error(entry.value.place, message);
        return None;
    };
    let word = one.value.word("servers", findings)?;
    match named(&one.key, word) {
        Ok(source) => Some(ServersDraft::From(source, findings.spot(entry.value.place))),
        Err(fault) => {
            let place = if KINDS.contains(&&*one.key) { one.value.place } else { one.key_place };
            findings.fault(place, fault.about("servers"));
            None
        }
    }
}

fn named(kind: &str, word: &str) -> Result<ListSource, Fault> {
    if word.is_empty() || word.contains(char::is_control) {
        return Err(Fault::new(format!("`{kind}` needs a value of visible characters")));
    }
    match kind {
        FILE => Ok(ListSource::File(word.to_string())),
        SRV => match word.trim_end_matches('.') {
            name if is_name(name) => Ok(ListSource::Srv(name.to_string())),
            _ => Err(Fault::new(format!(
                "`{word}` is no name of SRV records, such as `_memcached._tcp.example.com`"
            ))),
        },
        ELASTICACHE => match Address::parse(word)? {
            Address::Tcp { host, port } if port > 0 => Ok(ListSource::Elasticache { host, port }),
            _ => Err(Fault::new(format!("`{word}` is no `host:port`"))),
        },
        _ => Err(Fault::new(format!("`{kind}` is none of: {}", KINDS.join(", ")))
            .suggest(nearest(kind, KINDS))),
    }
}

fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=LABEL_LEN_MAX).contains(&label.len()) && label.bytes().all(is_plain)
    };
    name.len() <= NAME_LEN_MAX && name.split('.').all(is_label)
}

/// Checks a list and returns it in its plainest form: a line for each server, in the order of their
/// names. So two lists with the same servers are the same text.
pub fn plain(text: &str) -> Result<String, String> {
    if text.len() > TEXT_LEN_MAX {
        return Err(format!("it is longer than {} KiB", TEXT_LEN_MAX >> 10));
    }
    let mut servers: BTreeMap<String, String> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let Some(line) = content(line) else { continue };
        let told = |why: &str| format!("line {}: {why}", at + 1);
        let server = ServerLine::parse(line).map_err(|fault| told(&fault.message))?;
        if matches!(server.address, ServerAddress::Embedded { .. }) {
            return Err(told("an embedded cache cannot be in a list from elsewhere"));
        }
        let name = server.ring_name().to_string();
        if servers.contains_key(&name) {
            let name = name.escape_default();
            return Err(told(&format!("another server of the list is called `{name}`")));
        }
        servers.insert(name, server.text);
    }
    match servers.len() {
        0 => Err("it has no servers".to_string()),
        1..=SERVERS_MAX => Ok(servers.into_values().map(|line| line + "\n").collect()),
        more => Err(format!("it has {more} servers; at most {SERVERS_MAX} are allowed")),
    }
}

/// What a line has but for its comment; None for an empty line. As in the configuration, ` #`
/// begins a comment, and a dash may stand before a server.
fn content(line: &str) -> Option<&str> {
    let is_comment =
        |at: &usize| line[..*at].is_empty() || line[..*at].ends_with(char::is_whitespace);
    let end = line.match_indices('#').map(|(at, _)| at).find(is_comment);
    let line = line[..end.unwrap_or(line.len())].trim();
    let line = line.strip_prefix("- ").unwrap_or(line).trim_start();
    (!line.is_empty()).then_some(line)
}

/// The servers of a list that has been checked.
pub fn servers(text: &str) -> impl Iterator<Item = ServerLine> {
    text.lines().filter_map(|line| ServerLine::parse(line).ok())
}

/// The hosts of its servers.
pub fn hosts(text: &str) -> BTreeSet<String> {
    let host = |server: ServerLine| match server.address {
        ServerAddress::Tcp { host, .. } => Some(host),
        ServerAddress::Unix(_) | ServerAddress::Embedded { .. } => None,
    };
    servers(text).filter_map(host).collect()
}

/// In the form of the file.
impl fmt::Display for ListSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListSource::File(path) => write!(f, "{{{FILE}: {}}}", quoted(path)),
            ListSource::Srv(name) => write!(f, "{{{SRV}: {}}}", quoted(name)),
            ListSource::Elasticache { host, port } => {
                let address = Address::Tcp { host: host.clone(), port: *port };
                write!(f, "{{{ELASTICACHE}: {}}}", quoted(&address.to_string()))
            }
        }
    }
}

/// The place of a list in a file, for `migrate-config`.
pub fn written(value: &Node) -> Option<String> {
    let Shape::Map(entries) = &value.shape else { return None };
    let one = entries.first()?;
    match &one.value.shape {
        Shape::Word(word) => Some(format!("{{{}: {}}}", one.key, quoted(word))),
        Shape::List(_) | Shape::Map(_) | Shape::Nothing => None,
    }
}

const FILE: &str = "file";
const SRV: &str = "srv";
const ELASTICACHE: &str = "elasticache";
const KINDS: [&str; 3] = [FILE, SRV, ELASTICACHE];
/// The labels and names of DNS (RFC 1035, 2.3.4).
const LABEL_LEN_MAX: usize = 63;
const NAME_LEN_MAX: usize = 253;
/// More servers than any cache has.
const SERVERS_MAX: usize = 1000;
pub const TEXT_LEN_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::super::{Attachments, Override, Source, compile_for};
    use super::*;

    #[test]
    fn a_list_is_the_same_text_in_any_order_and_with_any_comments() {
        let expected = "10.0.0.1:11211:1\ncache.test:1:2 two\n/tmp/x:1 unix\n";
        for text in [
            "/tmp/x:1 unix\ncache.test:1:2 two\n10.0.0.1:11211:1\n",
            "# Ours.\n\n- 10.0.0.1:11211:1 # the first\r\n  - cache.test:1:2 two\n/tmp/x:1 unix",
        ] {
            assert_eq!(plain(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(plain(expected).as_deref(), Ok(expected), "the plainest form is itself a list");
        assert_eq!(hosts(expected), ["10.0.0.1", "cache.test"].map(str::to_string).into());
        assert_eq!(plain("a:1:1 a#b\n").as_deref(), Ok("a:1:1 a#b\n"), "no comment");
    }

    const TEXT: &str = "alpha:\n  listen: 127.0.0.1:1\n  discovery: apply\n  servers: {file: \
                        'a, b'}\n";

    fn compile(sets: &[&str], lists: &Lists) -> Config {
        let attachments = Attachments::default().with(lists.clone());
        let sets: Vec<Override> = sets.iter().map(|set| Override::parse(set).unwrap()).collect();
        let outcome = compile_for("test.yml", TEXT, &sets, 2, Source::Attached(&attachments));
        outcome.config.unwrap_or_else(|| panic!("{}", outcome.report.render_text()))
    }

    #[test]
    fn the_servers_of_a_pool_are_those_of_its_list_from_its_source_only() {
        let mut lists = Lists::default();
        let source = ListSource::File("a, b".to_string());
        lists.set("alpha", &source, "10.0.0.1:1:2 one\n10.0.0.2:1:1\n");
        let config = compile(&[], &lists);
        let expected = Listed { source: source.clone(), applies: true };
        assert_eq!(config.lists().collect::<Vec<_>>(), [("alpha", &expected)]);
        let names = |config: &Config| -> Vec<String> {
            config.plan.pools[0].servers.iter().map(|server| server.name.clone()).collect()
        };
        assert_eq!(names(&config), ["one", "10.0.0.2:1"]);
        assert_eq!(config.attachments.lists, lists, "the workers get it");
        assert!(config.running_text().contains("  servers: {file: 'a, b'}\n"));
        assert!(super::super::native(&config).contains("  servers: {file: 'a, b'}\n"));
        // What is known of one source is not that of another.
        for (set, source) in [
            ("alpha.servers={file: c}", "{file: c}"),
            ("alpha.servers={srv: _a._tcp.b.}", "{srv: _a._tcp.b}"),
            ("alpha.servers={elasticache: '[::1]:7'}", "{elasticache: '[::1]:7'}"),
        ] {
            let other = compile(&[set], &lists);
            let list = other.lists().next().expect("it comes from elsewhere").1;
            assert_eq!((names(&other), list.source.to_string()), (Vec::new(), source.to_string()));
            assert_eq!(other.attachments.lists, Lists::default());
        }
        let written = compile(&["alpha.servers=[a:1:1]"], &lists);
        assert_eq!((names(&written), written.lists().count()), (vec!["a:1".to_string()], 0));
    }

    #[test]
    fn a_list_that_is_empty_or_wrong_is_none() {
        for (text, told) in [
            ("", "it has no servers"),
            ("\n# a:1:1\n  \n", "it has no servers"),
            ("a:1:1\nb:1\n", "line 2: "),
            ("a:1:1\na:1:2\n", "line 2: another server of the list is called `a:1`"),
            ("a:1:1 x\nb:1:1 x\n", "another server of the list is called `x`"),
            ("a:0:1\n", "line 1: wrong port"),
            ("a:1:0\n", "line 1: wrong weight"),
            ("embedded\n", "line 1: an embedded cache"),
            ("\u{0}\u{1}\n", "line 1: "),
            ("[1, 2]\n", "line 1: "),
        ] {
            let why = plain(text).unwrap_err();
            assert!(why.contains(told) && !why.contains(char::is_control), "{text:?}: {why}");
        }
        let many: String = (0..1001).map(|n| format!("a:{}:1\n", n + 1)).collect();
        assert!(plain(&many).unwrap_err().contains("1001 servers; at most 1000"));
        assert!(plain(&"#".repeat(300 << 10)).unwrap_err().contains("longer than 256 KiB"));
    }
}
