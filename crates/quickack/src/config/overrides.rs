//! Directives set at run time over the file: `memory_max=2g`, `alpha.timeout_reply=200ms`.
//!
//! An override is parsed by the same table as the file, and compiled with it. So the same rules
//! apply to a worker that starts later, and to a file that is read again. The state that an
//! operator gives a server is such an override as well.

use std::fmt;

use proxy::plan::{AdminState, PoolPlan, ServerPlan};

use super::apply::{apply_entry, apply_word};
use super::directives::{Directive, GLOBAL, POOL};
use super::draft::{GlobalDraft, PoolDraft, Setting};
use super::file::ConfigFile;
use super::findings::Findings;
use super::report::{Diagnostic, Place, Spot, nearest, printable};
use super::tenants::{TENANT, TenantDraft};
use super::value::Fault;
use super::{Config, VALUE_LEN_MAX};
use crate::error::Error;

/// The block that a directive belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The `global:` block.
    Proxy,
    /// The pool of this name.
    Pool(String),
    /// The tenant of this name.
    Tenant(String),
    /// The server that is called so, with its pool: `POOL/NAME`.
    Server(String),
}

/// What the names of tenants are written behind.
const TENANTS: &str = "tenants.";
/// What the names of servers are written behind; a server's state is written without a directive.
const SERVERS: &str = "servers.";
/// The name of that state, for whoever asks for a name.
const STATE: &str = "";

impl Owner {
    /// Returns what stands before the name of a directive.
    pub fn prefix(&self) -> String {
        match self {
            Owner::Proxy => String::new(),
            Owner::Pool(name) => format!("{name}."),
            Owner::Tenant(name) => format!("{TENANTS}{name}."),
            Owner::Server(name) => format!("{SERVERS}{name}"),
        }
    }
}

/// One directive's value, over the file's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    pub owner: Owner,
    pub name: &'static str,
    /// The value, in the form of the file. Empty restores the file's value.
    pub value: String,
}

impl Override {
    /// Makes the override that gives a server a state.
    pub fn of_server(name: &str, state: AdminState) -> Override {
        let value = state.word().to_string();
        Override { owner: Owner::Server(name.to_string()), name: STATE, value }
    }

    /// The state that it gives a server; none if it is about something else.
    pub(super) fn state_of(&self, pool: &PoolPlan, server: &ServerPlan) -> Option<AdminState> {
        match &self.owner {
            Owner::Server(name) if *name == server_key(pool, server) => {
                AdminState::parse(&self.value)
            }
            _ => None,
        }
    }

    /// Parses `KEY=VALUE`, where KEY is a directive of `global:` or `POOL.DIRECTIVE`. It checks the
    /// value; it cannot check that the pool exists.
    pub fn parse(text: &str) -> Result<Override, Error> {
        Ok(read(text)?)
    }

    pub(super) fn key(&self) -> String {
        format!("{}{}", self.owner.prefix(), self.name)
    }

    fn same_key(&self, other: &Override) -> bool {
        self.name == other.name && self.owner == other.owner
    }
}

/// In the form that `parse` reads.
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key(), self.value)
    }
}

/// Reads a directive set at run time into `draft`, over the file's value.
pub fn apply_override<D>(
    table: &'static [Directive<D>],
    set: &Override,
    draft: &mut D,
    settings: &mut Vec<Setting>,
    findings: &mut Findings,
) {
    let directive = table.iter().find(|directive| directive.name == set.name);
    let directive = directive.expect("an override is read by the same table");
    findings.set = Some(Spot::Set(set.to_string()));
    if let Some(word) = apply_value(directive, &set.value, draft, findings) {
        match settings.iter_mut().find(|setting| setting.name == set.name) {
            Some(setting) => setting.set = Some(word),
            None => settings.push(Setting { name: set.name, file: None, set: Some(word) }),
        }
    }
    findings.set = None;
}

/// Reads a value that stands in no file: a word as it is, a list as it would be written in a file.
/// Returns it in the plainest form; None after an error.
fn apply_value<D>(
    directive: &Directive<D>,
    value: &str,
    draft: &mut D,
    findings: &mut Findings,
) -> Option<String> {
    if !directive.kind.is_list() {
        return match apply_word(&directive.kind, value, draft) {
            Ok(word) => Some(word),
            Err(fault) => {
                findings.fault(Spot::File, fault.about(directive.name));
                None
            }
        };
    }
    match ConfigFile::parse(&format!("{}: {value}", directive.name)) {
        Ok(file) => apply_entry(directive, file.entries.first()?, draft, findings),
        Err(Diagnostic { message, .. }) => {
            findings.error(Spot::File, format!("{}: {message}", directive.name));
            None
        }
    }
}

/// Returns the `overrides` of `config` after one more `KEY=VALUE`. It replaces an earlier one of
/// the same key; `KEY=` removes that. `compile` decides whether the whole is valid.
pub fn set(config: &Config, overrides: &[Override], text: &str) -> Result<Vec<Override>, Error> {
    let new = Override::parse(text)?;
    if let Owner::Server(name) = &new.owner {
        // Without a value it is as the file has it.
        let state = AdminState::parse(&new.value).unwrap_or_default();
        return set_server(config, overrides, name, state);
    }
    let blocks = |is_tenant: bool| {
        let names = config.blocks.iter().filter_map(move |block| match &block.owner {
            Owner::Pool(name) if !is_tenant => Some(name.as_str()),
            Owner::Tenant(name) if is_tenant => Some(name.as_str()),
            _ => None,
        });
        names.collect::<Vec<&str>>()
    };
    let (kind, name, names) = match &new.owner {
        Owner::Proxy => ("", "", vec![""]),
        Owner::Pool(name) => ("pool", name.as_str(), blocks(false)),
        Owner::Tenant(name) => ("tenant", name.as_str(), blocks(true)),
        Owner::Server(_) => unreachable!("it has been set"),
    };
    if !names.contains(&name) {
        let hint = match nearest(name, names) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => String::new(),
        };
        return Err(Error::Config(format!("no {kind} is called `{}`{hint}", printable(name))));
    }
    with(overrides, new)
}

/// Returns `overrides` after a server has been given a state; `Ready` lifts the one it has. The
/// name is `POOL/NAME`: the server's own, its name in the ring or its address.
pub fn set_server(
    config: &Config,
    overrides: &[Override],
    name: &str,
    state: AdminState,
) -> Result<Vec<Override>, Error> {
    let found = servers(config).find(|(pool, server, address)| {
        let names = [&server.label, &server.name, address];
        names.into_iter().any(|one| format!("{}/{one}", pool.name) == name)
    });
    let Some((pool, server, _)) = found else {
        let all: Vec<String> =
            servers(config).map(|(pool, server, _)| server_key(pool, server)).collect();
        let hint = match nearest(name, all.iter().map(String::as_str)) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => "; `quickack servers` lists them".to_string(),
        };
        let why = format!("no server is called `{}`{hint}", printable(name));
        return Err(Error::Config(why));
    };
    let key = server_key(pool, server);
    let others = overrides.iter().filter(|one| one.owner != Owner::Server(key.clone()));
    let given = (state != AdminState::Ready).then(|| Override::of_server(&key, state));
    Ok(others.cloned().chain(given).collect())
}

/// Returns how a server is called from outside.
pub fn server_key(pool: &PoolPlan, server: &ServerPlan) -> String {
    format!("{}/{}", pool.name, server.label)
}

fn servers(config: &Config) -> impl Iterator<Item = (&PoolPlan, &ServerPlan, String)> {
    let pools = config.plan.pools.iter().zip(&config.upstreams);
    pools.flat_map(|(pool, upstream)| {
        let both = pool.servers.iter().zip(&upstream.servers);
        both.map(move |(server, address)| (pool, server, address.to_string()))
    })
}

/// Returns `overrides` with a further one, which replaces one of the same key or removes it.
fn with(overrides: &[Override], new: Override) -> Result<Vec<Override>, Error> {
    let (same, mut others): (Vec<Override>, Vec<Override>) =
        overrides.iter().cloned().partition(|earlier| earlier.same_key(&new));
    match (new.value.is_empty(), same.is_empty()) {
        (true, true) => {
            Err(Error::Config(format!("{} has the file's value: it was not set", new.key())))
        }
        (true, false) => Ok(others),
        (false, _) => {
            others.push(new);
            Ok(others)
        }
    }
}

fn read(text: &str) -> Result<Override, Fault> {
    if let Some(set) = read_server(text) {
        return set;
    }
    let Some((key, value)) = text.split_once('=') else {
        return Err(Fault::new(format!("`{text}` is not `KEY=VALUE`, such as `memory_max=2g`")));
    };
    if value.len() > VALUE_LEN_MAX || value.contains(char::is_control) {
        return Err(Fault::new(format!(
            "{key}: a value has at most {VALUE_LEN_MAX} bytes and no control characters"
        )));
    }
    let (owner, name) = match key.rsplit_once('.') {
        None => (Owner::Proxy, checked(GLOBAL, key, value, &mut GlobalDraft::new(1))?),
        Some((owner, name)) => match owner.strip_prefix(TENANTS) {
            Some(tenant) => {
                let nowhere = Place { start: 0, end: 0 };
                let mut draft = TenantDraft::new(tenant, nowhere);
                let name = checked(TENANT, name, value, &mut draft)?;
                (Owner::Tenant(tenant.to_string()), name)
            }
            None => {
                let name = checked(POOL, name, value, &mut PoolDraft::new(owner))?;
                (Owner::Pool(owner.to_string()), name)
            }
        },
    };
    Ok(Override { owner, name, value: value.to_string() })
}

/// Reads `servers.POOL/NAME=STATE`; none if it is about no server. A name may be the path of a
/// socket.
fn read_server(text: &str) -> Option<Result<Override, Fault>> {
    let (key, _) = text.split_once('=')?;
    let (name, value) = text.rsplit_once('=')?;
    let name = name.strip_prefix(SERVERS).filter(|_| key.contains('/'))?;
    let is_state = value.is_empty() || AdminState::parse(value).is_some();
    Some(match is_state && !name.contains(char::is_control) {
        true => {
            let owner = Owner::Server(name.to_string());
            Ok(Override { owner, name: STATE, value: value.to_string() })
        }
        false => Err(Fault::new(format!("{SERVERS}{name}: {NO_STATE}"))),
    })
}

/// An answer to a word that is no state.
pub const NO_STATE: &str = "a server is `ready`, `drain` or `maint`";

/// Returns the directive's own name, if it can be set at run time to that value.
fn checked<D>(
    table: &'static [Directive<D>],
    name: &str,
    value: &str,
    scratch: &mut D,
) -> Result<&'static str, Fault> {
    let Some(directive) = table.iter().find(|directive| directive.name == name) else {
        return Err(unknown(table, name));
    };
    if !directive.runtime {
        let message = format!("`{name}` cannot be set at run time; {}", instead(name));
        return Err(Fault::new(message));
    }
    if !value.is_empty() {
        let mut findings = Findings::default();
        apply_value(directive, value, scratch, &mut findings);
        if let Some(Diagnostic { message, suggestion, .. }) = findings.diagnostics.pop() {
            return Err(Fault { suggestion, ..Fault::new(message) });
        }
    }
    Ok(directive.name)
}

/// Returns what to do about a directive that cannot be set.
fn instead(name: &str) -> &'static str {
    match name {
        "tenants" => "set one of a tenant's: `tenants.NAME.DIRECTIVE=VALUE`",
        "accept" | "admin" | "reuseport" | "protocol" | "redis" | "memory" => {
            "change the file and restart"
        }
        _ => "change the file and reload",
    }
}

fn unknown<D>(table: &'static [Directive<D>], name: &str) -> Fault {
    let settable = table.iter().filter(|directive| directive.runtime);
    let near = nearest(name, settable.map(|directive| directive.name));
    let message = if POOL.iter().any(|directive| directive.name == name) {
        format!("`{name}` belongs to a pool: write `POOL.{name}=VALUE`")
    } else if GLOBAL.iter().any(|directive| directive.name == name) {
        format!("`{name}` belongs to the process, not to a pool: write `{name}=VALUE`")
    } else {
        format!("unknown directive `{name}`")
    };
    Fault::new(message).suggest(near)
}

#[cfg(test)]
mod tests {
    use super::super::{Source, compile_for};
    use super::*;

    const TEXT: &str = "global: {workers: 2}\nalpha:\n  listen: 127.0.0.1:1\n  timeout: 400\n  \
                        servers: [127.0.0.1:11211:1]\n";

    fn config(overrides: &[Override]) -> Config {
        compile_for("test.yml", TEXT, overrides, 2, Source::Nowhere).config.unwrap()
    }

    fn set_all(words: &[&str]) -> Result<Config, String> {
        words.iter().try_fold(config(&[]), |before, word| {
            let overrides = set(&before, &before.overrides, word).map_err(|it| it.to_string())?;
            let outcome = compile_for("test.yml", TEXT, &overrides, 2, Source::Nowhere);
            outcome.config.ok_or_else(|| outcome.report.render_text())
        })
    }

    #[test]
    fn what_is_set_wins_over_the_file() {
        let config = set_all(&["memory_max=2g", "alpha.timeout_reply=200ms"]).unwrap();
        assert_eq!(config.plan.memory_max, 2 << 30);
        let timeouts = config.plan.pools[0].timeouts;
        assert_eq!((timeouts.reply, timeouts.queue), (200_000, 400_000));
        let words: Vec<String> = config.overrides.iter().map(Override::to_string).collect();
        assert_eq!(words, ["memory_max=2g", "alpha.timeout_reply=200ms"]);
        let again: Vec<Override> =
            words.iter().map(|word| Override::parse(word).unwrap()).collect();
        assert_eq!(again, config.overrides, "a child reads what its master wrote");
    }

    #[test]
    fn the_later_one_wins_and_nothing_takes_it_away() {
        let config = set_all(&["alpha.timeout=1s", "memory_max=2g", "alpha.timeout=2s"]).unwrap();
        assert_eq!(config.plan.pools[0].timeouts.queue, 2_000_000);
        assert_eq!(config.overrides.len(), 2);
        let back = set_all(&["alpha.timeout=1s", "memory_max=2g", "alpha.timeout="]).unwrap();
        assert_eq!(back.plan.pools[0].timeouts.queue, 400_000);
        assert_eq!(back.overrides.len(), 1);
    }

    #[test]
    fn what_was_set_too_low_is_named_and_not_what_was_set_beside_it() {
        let text = TEXT.replace("workers: 2", "workers: 20");
        for words in [["log_level=debug", "memory_max=16m"], ["memory_max=16m", "log_level=debug"]]
        {
            let overrides = words.map(|word| Override::parse(word).unwrap());
            let outcome = compile_for("test.yml", &text, &overrides, 2, Source::Nowhere);
            let told = outcome.report.render_text();
            let places: Vec<&str> = told.lines().filter(|line| line.contains("-->")).collect();
            assert_eq!(places, ["  --> set memory_max=16m"], "{words:?}: {told}");
        }
    }

    #[test]
    fn what_cannot_be_set_is_told_with_a_hint() {
        let told = |word: &str| set_all(&[word]).err().expect(word);
        let hints = [
            ("memory_max", "`memory_max` is not `KEY=VALUE`"),
            ("memory_mx=1g", "did you mean `memory_max`?"),
            ("memory_max=1x", "memory_max: `1x` is not a size"),
            ("log_level=warn", "did you mean `warning`?"),
            ("timeout=1s", "write `POOL.timeout=VALUE`"),
            ("alpha.memory_max=1g", "write `memory_max=VALUE`"),
            ("alpha.timeot=1s", "did you mean `timeout`?"),
            ("alpah.timeout=1s", "no pool is called `alpah`; did you mean `alpha`?"),
            ("alpha.users=some.file", "change the file and reload"),
            ("alpha.timeout=", "it was not set"),
            ("alpha.timeout=1s\n", "no control characters"),
        ];
        for (word, hint) in hints {
            let text = told(word);
            assert!(text.contains(hint), "{word}: {text}");
        }
    }

    #[test]
    fn a_rule_that_an_override_breaks_names_it() {
        let told = set_all(&["memory_max=16m", "alpha.server_connections_max=1"]).err().unwrap();
        assert!(told.contains("each of the 2 workers needs a link"), "{told}");
        assert!(told.contains("--> set alpha.server_connections_max=1"), "{told}");
    }

    #[test]
    fn the_state_of_a_server_is_an_override_and_goes_with_the_server() {
        let text = "alpha:\n  listen: 127.0.0.1:1\n  servers: ['10.0.0.1:11211:1 one', \
                    '/tmp/a=b.c:1']\n";
        let compile = |text: &str, overrides: &[Override]| {
            let outcome = compile_for("test.yml", text, overrides, 2, Source::Nowhere);
            outcome.config.unwrap_or_else(|| panic!("{}", outcome.report.render_text()))
        };
        let config = compile(text, &[]);
        let mut overrides = Vec::new();
        for (name, state) in [
            ("alpha/one", AdminState::Drain),
            ("alpha//tmp/a=b.c", AdminState::Drain),
            ("alpha//tmp/a=b.c", AdminState::Maint),
        ] {
            overrides = set_server(&config, &overrides, name, state).unwrap();
        }
        let words: Vec<String> = overrides.iter().map(Override::to_string).collect();
        assert_eq!(words, ["servers.alpha/one=drain", "servers.alpha//tmp/a=b.c=maint"]);
        let again = words.iter().map(|word| Override::parse(word).unwrap());
        assert_eq!(again.collect::<Vec<_>>(), overrides, "a child reads what its master wrote");
        let with = compile(text, &overrides);
        let states = |config: &Config| -> Vec<AdminState> {
            config.plan.pools[0].servers.iter().map(|server| server.admin).collect()
        };
        assert_eq!(states(&with), [AdminState::Drain, AdminState::Maint]);
        // By its address, and as `set` writes it.
        let lifted = set_server(&with, &overrides, "alpha/10.0.0.1:11211", AdminState::Ready);
        assert_eq!(lifted.unwrap(), overrides[1..]);
        assert_eq!(set(&with, &overrides, "servers.alpha/one=").unwrap(), overrides[1..]);
        let other = compile(&text.replace("11211:1 one", "11211:1 uno"), &overrides);
        assert_eq!(states(&other), [AdminState::Ready, AdminState::Maint]);
        assert_eq!(other.overrides, overrides[1..], "it has gone with its server");
        let told = |word: &str| set(&config, &[], word).unwrap_err().to_string();
        assert!(told("servers.alpha/one=off").contains("`ready`, `drain` or `maint`"));
        assert!(told("servers.alpha/on=drain").contains("did you mean `alpha/one`?"));
    }

    #[test]
    fn an_override_goes_with_its_pool() {
        let overrides = [Override::parse("beta.timeout=1s").unwrap()];
        let outcome = compile_for("test.yml", TEXT, &overrides, 2, Source::Nowhere);
        let told = outcome.report.render_text();
        assert!(told.contains("warning: no pool is called `beta` any more"), "{told}");
        assert!(outcome.report.render_json().contains("\"set\": \"beta.timeout=1s\""));
        assert!(outcome.config.unwrap().overrides.is_empty());
    }

    #[test]
    fn what_holds_is_shown_beside_the_file() {
        let words = ["memory_max=2g", "alpha.timeout=1s", "alpha.server_connections_max=9"];
        let config = set_all(&words).unwrap();
        let diff = "memory_max: 1g -> 2g\nalpha.timeout: 400ms -> 1s\n\
                    alpha.server_connections_max: no cap -> 9\n";
        assert_eq!(config.diff_text(), diff);
        let text = config.running_text();
        for line in [
            "global:\n  workers: 2\n",
            "  memory_max: 2g  # set; the file: 1g\n",
            "  # clients_max: as many as the limit of open files allows\n",
            "alpha:\n  listen: 127.0.0.1:1\n",
            "  backlog: 512  # default\n",
            "  timeout: 1s  # set; the file: 400ms\n",
            "  servers: [127.0.0.1:11211:1]\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&config.running_json()).unwrap();
        assert_eq!(json.as_array().unwrap().len(), GLOBAL.len() + POOL.len());
        let json: serde_json::Value = serde_json::from_str(&config.diff_json()).unwrap();
        let first = serde_json::json!({
            "pool": null, "name": "memory_max", "value": "2g", "from": "set", "file": "1g"
        });
        assert_eq!(json[0], first);
        assert_eq!(config_text_again(&text).plan.memory_max, 2 << 30);
    }

    /// The output is itself a configuration.
    fn config_text_again(text: &str) -> Config {
        let outcome = compile_for("running", text, &[], 2, Source::Nowhere);
        outcome.config.unwrap_or_else(|| panic!("{text}{}", outcome.report.render_text()))
    }
}
