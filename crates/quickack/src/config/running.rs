//! What holds now, beside what the file says: `quickack config --running` and `--diff`.

use std::fmt::Write;

use serde::Serialize;

use super::Config;
use super::directives::{Directive, GLOBAL, POOL, Unwritten};

/// What was written in one block, and what was set over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// None for the `global:` block.
    pub pool: Option<String>,
    pub settings: Vec<Setting>,
}

/// A directive that was written or set. Its words are in their plainest form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    /// What the file says.
    pub file: Option<String>,
    /// What was set at run time; it wins.
    pub set: Option<String>,
}

/// A directive's value, as it is shown.
#[derive(Debug, Serialize)]
pub struct Value<'c> {
    /// None for the `global:` block.
    pub pool: Option<&'c str>,
    pub name: &'static str,
    /// What holds now. None where nothing is written and there is no default.
    pub value: Option<&'c str>,
    pub from: Source,
    /// What the file alone would come to, where something else was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<&'c str>,
    /// What an unwritten directive without a value means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

/// Who said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Default,
    File,
    /// `quickack set`.
    Set,
}

impl Block {
    /// What was written and differs from the default, as `name: value`; where a pool listens and
    /// its servers are left out, because they have none.
    pub fn told(&self) -> Vec<String> {
        let differs = |setting: &&Setting| match unwritten(self.pool.is_some(), setting.name) {
            Unwritten::Required => false,
            Unwritten::Value(default) => setting.word() != Some(default),
            Unwritten::Unset(_) => true,
        };
        let line =
            |setting: &Setting| setting.word().map(|word| format!("{}: {word}", setting.name));
        self.settings.iter().filter(differs).filter_map(line).collect()
    }

    /// Every directive of the block's table.
    pub fn values(&self) -> Vec<Value<'_>> {
        match self.pool {
            Some(_) => POOL.iter().map(|row| self.value(row)).collect(),
            None => GLOBAL.iter().map(|row| self.value(row)).collect(),
        }
    }

    fn value<D>(&self, directive: &Directive<D>) -> Value<'_> {
        let setting = self.settings.iter().find(|setting| setting.name == directive.name);
        let (default, note) = match directive.unwritten {
            Unwritten::Required => (None, None),
            Unwritten::Value(word) => (Some(word), None),
            Unwritten::Unset(words) => (None, Some(words)),
        };
        let file = setting.and_then(|setting| setting.file.as_deref());
        let set = setting.and_then(|setting| setting.set.as_deref());
        let value = set.or(file).or(default);
        Value {
            pool: self.pool.as_deref(),
            name: directive.name,
            value,
            from: match (set, file) {
                (Some(_), _) => Source::Set,
                (None, Some(_)) => Source::File,
                (None, None) => Source::Default,
            },
            file: set.and(Some(file.or(default).or(note).unwrap_or_default())),
            note: if value.is_none() { note } else { None },
        }
    }
}

impl Setting {
    /// What holds.
    fn word(&self) -> Option<&str> {
        self.set.as_deref().or(self.file.as_deref())
    }
}

fn unwritten(pool: bool, name: &str) -> &'static Unwritten {
    let found = match pool {
        true => POOL.iter().find(|row| row.name == name).map(|row| &row.unwritten),
        false => GLOBAL.iter().find(|row| row.name == name).map(|row| &row.unwritten),
    };
    found.expect("a setting is read by its table")
}

impl Config {
    /// Every directive of every block with the value that holds now.
    pub fn values(&self) -> Vec<Value<'_>> {
        self.blocks.iter().flat_map(Block::values).collect()
    }

    /// For people: the whole as a file would say it, with a comment on what the file does not.
    pub fn running_text(&self) -> String {
        let mut out = String::new();
        for block in &self.blocks {
            let name = block.pool.as_deref().unwrap_or("global");
            let _ = writeln!(out, "{name}:");
            for value in block.values() {
                let comment = value.comment();
                let _ = match value.value {
                    Some(word) => writeln!(out, "  {}: {word}{comment}", value.name),
                    None => writeln!(out, "  # {}:{comment}", value.name),
                };
            }
        }
        out
    }

    /// For programs: an array with one object a directive.
    pub fn running_json(&self) -> String {
        json(&self.values())
    }

    /// For people: what was set at run time, beside the file. Empty if nothing was.
    pub fn diff_text(&self) -> String {
        let mut out = String::new();
        for value in self.values().iter().filter(|value| value.from == Source::Set) {
            let pool = value.pool.map_or(String::new(), |pool| format!("{pool}."));
            let [now, file] = [value.value, value.file].map(Option::unwrap_or_default);
            let _ = writeln!(out, "{pool}{}: {file} -> {now}", value.name);
        }
        out
    }

    /// The same for programs.
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
