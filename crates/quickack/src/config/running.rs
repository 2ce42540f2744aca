//! The current values beside the file's: `quickack config --running` and `--diff`.

use std::fmt::Write;

use serde::Serialize;

use super::Config;
use super::directives::{Directive, GLOBAL, POOL, Unwritten};
use super::draft::Setting;
use super::overrides::Owner;
use super::tenants::{self, TENANT};

/// The settings of one block: those in the file and those set at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub owner: Owner,
    pub settings: Vec<Setting>,
}

/// A directive's value as shown to operators.
#[derive(Debug, Serialize)]
pub struct Value<'c> {
    /// The pool; None for the `global:` block.
    pub pool: Option<&'c str>,
    /// The tenant, for a directive of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<&'c str>,
    pub name: &'static str,
    /// The current value. None if nothing is written and there is no default.
    pub value: Option<&'c str>,
    pub from: Source,
    /// The value from the file alone, if another one was set at run time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<&'c str>,
    /// The effect of leaving out a directive without a default value, or where its value is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Default,
    File,
    /// `quickack set`.
    Set,
}

impl Block {
    /// Returns the settings that differ from the default, as `name: value`. Listener and servers
    /// are left out, because they have no default.
    pub fn told(&self) -> Vec<String> {
        let differs = |setting: &&Setting| match unwritten(&self.owner, setting.name) {
            Unwritten::Required => false,
            Unwritten::Value(default) => setting.word() != Some(default),
            Unwritten::Unset(_) => true,
        };
        let line =
            |setting: &Setting| setting.word().map(|word| format!("{}: {word}", setting.name));
        self.settings.iter().filter(differs).filter_map(line).collect()
    }

    /// Returns the name of the pool, if it is a pool's.
    pub fn pool(&self) -> Option<&str> {
        match &self.owner {
            Owner::Pool(name) => Some(name),
            Owner::Proxy | Owner::Tenant(_) | Owner::Server(_) => None,
        }
    }

    /// Returns the name of the tenant, if it is a tenant's.
    pub fn tenant(&self) -> Option<&str> {
        match &self.owner {
            Owner::Tenant(name) => Some(name),
            Owner::Proxy | Owner::Pool(_) | Owner::Server(_) => None,
        }
    }

    /// Returns every directive of the block's table.
    pub fn values(&self) -> Vec<Value<'_>> {
        match self.owner {
            Owner::Pool(_) => POOL.iter().map(|row| self.value(row)).collect(),
            Owner::Tenant(_) => TENANT.iter().map(|row| self.value(row)).collect(),
            Owner::Proxy => GLOBAL.iter().map(|row| self.value(row)).collect(),
            Owner::Server(_) => Vec::new(),
        }
    }

    fn value<D>(&self, directive: &Directive<D>) -> Value<'_> {
        let setting = self.settings.iter().find(|setting| setting.name == directive.name);
        let (default, note) = match directive.unwritten {
            Unwritten::Required => (None, None),
            Unwritten::Value(word) => (Some(word), None),
            Unwritten::Unset(words) => (None, Some(words)),
        };
        let general = self.general(directive.name);
        let (default, note) = match general {
            Some(_) => (general, Some(BY_TIMEOUT)),
            None => (default, note),
        };
        let file = setting.and_then(|setting| setting.file.as_deref());
        let set = setting.and_then(|setting| setting.set.as_deref());
        let value = set.or(file).or(default);
        Value {
            pool: self.pool(),
            tenant: self.tenant(),
            name: directive.name,
            value,
            from: match (set, file) {
                (Some(_), _) => Source::Set,
                (None, Some(_)) => Source::File,
                (None, None) => Source::Default,
            },
            file: set.and(Some(file.or(default).or(note).unwrap_or_default())),
            note: note.filter(|_| value.is_none() || (general.is_some() && value == general)),
        }
    }

    /// Returns the value that a deadline has by `timeout`, if that is more than 0.
    fn general(&self, name: &str) -> Option<&str> {
        let is_deadline = ["timeout_connect", "timeout_queue", "timeout_reply"].contains(&name);
        let timeout = || self.settings.iter().find(|setting| setting.name == "timeout")?.word();
        is_deadline.then(timeout).flatten().filter(|word| *word != "0")
    }
}

const BY_TIMEOUT: &str = "by `timeout`";

fn unwritten(owner: &Owner, name: &str) -> &'static Unwritten {
    let found = match owner {
        Owner::Pool(_) => POOL.iter().find(|row| row.name == name).map(|row| &row.unwritten),
        Owner::Tenant(_) => TENANT.iter().find(|row| row.name == name).map(|row| &row.unwritten),
        Owner::Proxy => GLOBAL.iter().find(|row| row.name == name).map(|row| &row.unwritten),
        Owner::Server(_) => None,
    };
    found.expect("a setting is read by its table")
}

impl Config {
    /// Returns every directive of every block with its current value.
    pub fn values(&self) -> Vec<Value<'_>> {
        self.blocks.iter().flat_map(Block::values).collect()
    }

    /// Renders the whole for people, as a file; comments mark values that are not from the file.
    pub fn running_text(&self) -> String {
        let mut out = String::new();
        let tenants = self.blocks.iter().filter_map(|block| Some((block.tenant()?, block)));
        let tenants = tenants::word(tenants.map(|(name, block)| (name, &*block.settings)));
        for block in self.blocks.iter().filter(|block| block.tenant().is_none()) {
            let name = block.pool().unwrap_or("global");
            let _ = writeln!(out, "{name}:");
            for value in block.values() {
                let comment = value.comment();
                let _ = match value.value {
                    Some(_) if value.name == "tenants" => {
                        // Each value may have been set.
                        writeln!(out, "  {}: {tenants}", value.name)
                    }
                    Some(word) => writeln!(out, "  {}: {word}{comment}", value.name),
                    None => writeln!(out, "  # {}:{comment}", value.name),
                };
            }
        }
        out
    }

    /// Renders the whole for programs: an array with one object for each directive.
    pub fn running_json(&self) -> String {
        json(&self.values())
    }

    /// Renders the values set at run time beside the file's, for people. Empty if there are none.
    pub fn diff_text(&self) -> String {
        let mut out = String::new();
        for value in self.values().iter().filter(|value| value.from == Source::Set) {
            let pool = value.pool.map_or(String::new(), |pool| format!("{pool}."));
            let tenant = value.tenant.map_or(String::new(), |name| format!("tenants.{name}."));
            let [now, file] = [value.value, value.file].map(Option::unwrap_or_default);
            let _ = writeln!(out, "{pool}{tenant}{}: {file} -> {now}", value.name);
        }
        out
    }

    /// Renders the values set at run time for programs.
    pub fn diff_json(&self) -> String {
        let mut values = self.values();
        values.retain(|value| value.from == Source::Set);
        json(&values)
    }
}

impl Value<'_> {
    fn comment(&self) -> String {
        match self.from {
            Source::File => String::new(),
            Source::Default => match self.note {
                Some(note) if self.value.is_some() => format!("  # {note}"),
                Some(note) => format!(" {note}"),
                None => "  # default".to_string(),
            },
            Source::Set => format!("  # set; the file: {}", self.file.unwrap_or_default()),
        }
    }
}

fn json(values: &[Value]) -> String {
    let mut out = serde_json::to_string_pretty(values).expect("strings only");
    out.push('\n');
    out
}
