//! Applies a block's entries through its table: the row of its name reads each entry.

use std::collections::HashSet;

use super::address::{Address, ServerLine};
use super::commands::commands;
use super::directives::{Directive, GLOBAL, Kind, POOL};
use super::draft::{AllowDraft, ServerDraft, ServersDraft, Setting};
use super::file::{Entry, Node, Shape};
use super::findings::Findings;
use super::foreign;
use super::list;
use super::report::{Spot, nearest};
use super::tenants::tenants;
use super::value::{self, Fault};

/// Reads the entries of a block into `draft`. Returns the settings in the order of the file;
/// entries with an error are missing.
pub fn apply<D>(
    table: &'static [Directive<D>],
    entries: &[Entry],
    draft: &mut D,
    findings: &mut Findings,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut seen = HashSet::new();
    for entry in entries {
        if !seen.insert(entry.key.as_str()) {
            findings.twice(entry, entries);
            continue;
        }
        let Some(directive) = table.iter().find(|directive| directive.name == entry.key) else {
            findings.fault(entry.key_place, unknown(table, &entry.key));
            continue;
        };
        if let Some(word) = apply_entry(directive, entry, draft, findings) {
            settings.push(Setting { name: directive.name, file: Some(word), set: None });
        }
    }
    settings
}

fn unknown<D>(table: &[Directive<D>], key: &str) -> Fault {
    let help = foreign::of_key(key);
    let near = nearest(key, table.iter().map(|directive| directive.name));
    let near = near.filter(|_| help.is_none());
    let message = if near.is_some() || help.is_some() {
        format!("unknown directive `{key}`")
    } else if GLOBAL.iter().any(|directive| directive.name == key) {
        format!("`{key}` belongs in the `global:` block")
    } else if POOL.iter().any(|directive| directive.name == key) {
        format!("`{key}` belongs in a pool")
    } else {
        format!("unknown directive `{key}`")
    };
    Fault::new(message).suggest(near).help(help)
}

/// Reads one entry and returns its value in the plainest form. None after an error.
pub fn apply_entry<D>(
    directive: &Directive<D>,
    entry: &Entry,
    draft: &mut D,
    findings: &mut Findings,
) -> Option<String> {
    let result = match &directive.kind {
        Kind::Servers(set) => {
            let servers = match &entry.value.shape {
                Shape::Map(_) => list::source(entry, findings)?,
                _ => ServersDraft::Written(servers(entry, findings)),
            };
            let shown = servers.shown();
            set(draft, servers);
            return Some(shown);
        }
        Kind::Allow(set) => {
            let names = list(entry, findings, |name, spot| {
                Ok(AllowDraft { name: name.to_string(), spot })
            })?;
            let shown: Vec<&str> = names.iter().map(|draft| &*draft.name).collect();
            let shown = format!("[{}]", shown.join(", "));
            set(draft, names);
            return Some(shown);
        }
        Kind::Commands(set) => {
            let (rows, shown) = commands(entry, findings)?;
            set(draft, rows);
            return Some(shown);
        }
        Kind::Tenants(set) => {
            let (drafts, shown) = tenants(entry, findings)?;
            set(draft, drafts);
            return Some(shown);
        }
        Kind::Owns(_, set) => {
            let mut first = true;
            let words = list(entry, findings, |word, _| {
                set(draft, word, std::mem::take(&mut first)).map(|()| word.to_string())
            })?;
            return Some(match &entry.value.shape {
                Shape::Word(word) => word.clone(),
                _ => {
                    let words: Vec<String> = words.iter().map(|word| value::quoted(word)).collect();
                    format!("[{}]", words.join(", "))
                }
            });
        }
        kind => {
            let word = entry.word(findings)?;
            apply_word(kind, word, draft)
        }
    };
    match result {
        Ok(shown) => Some(shown),
        Err(fault) => {
            let help = match &entry.value.shape {
                Shape::Word(word) => foreign::of_value(directive.name, word),
                _ => None,
            };
            let place = entry.value.place_of(&fault);
            findings.fault(place, fault.about(directive.name).help(help));
            None
        }
    }
}

/// Reads one value and returns it in the plainest form.
pub fn apply_word<D>(kind: &Kind<D>, word: &str, draft: &mut D) -> Result<String, Fault> {
    match kind {
        Kind::Switch(set) => {
            let on = value::switch(word)
                .map_err(|fault| fault.suggest(nearest(word, value::SWITCH_WORDS.to_vec())))?;
            set(draft, on);
            Ok(if on { "on" } else { "off" }.to_string())
        }
        Kind::Number(range, set) => {
            let number = value::number(word, range)?;
            set(draft, number);
            Ok(number.to_string())
        }
        Kind::Duration(set) => {
            let us = value::duration(word)?;
            set(draft, us);
            Ok(value::duration_word(us))
        }
        Kind::DurationOrOff(set) => {
            let us = if word == OFF { 0 } else { value::duration(word)? };
            set(draft, (us > 0).then_some(us));
            Ok(if us > 0 { value::duration_word(us) } else { OFF.to_string() })
        }
        Kind::Deadline(set) => {
            let us = value::duration(word)?;
            if us == 0 {
                return Err(Fault::new("a deadline must be longer than 0"));
            }
            set(draft, us);
            Ok(value::duration_word(us))
        }
        Kind::Size(range, set) => {
            let bytes = value::size(word, range)?;
            set(draft, bytes);
            Ok(value::size_word(bytes))
        }
        Kind::Word(words, set) => {
            let known = set(draft, word);
            known.map(|()| word.to_string()).ok_or_else(|| not_a_member(word, &words()))
        }
        Kind::Tag(set) => {
            let tag = <[u8; 2]>::try_from(word.as_bytes()).map_err(|_| {
                Fault::new(format!("`{word}` is not two characters such as \"{{}}\""))
            })?;
            set(draft, tag);
            Ok(format!("{word:?}"))
        }
        Kind::Secret(set) => {
            set(draft, word)?;
            Ok("(hidden)".to_string())
        }
        Kind::Listen(set) => {
            let address = Address::parse(word)?;
            let shown = address.to_string();
            set(draft, address);
            Ok(shown)
        }
        Kind::Own(_, set) => set(draft, word).map(|()| word.to_string()),
        Kind::Allow(_)
        | Kind::Owns(..)
        | Kind::Servers(_)
        | Kind::Commands(_)
        | Kind::Tenants(_) => {
            unreachable!("lists are read by apply_entry")
        }
    }
}

impl<D> Kind<D> {
    /// Returns whether a value is more than a word, also where it stands in no file.
    pub fn is_list(&self) -> bool {
        match self {
            Kind::Allow(_)
            | Kind::Owns(..)
            | Kind::Servers(_)
            | Kind::Commands(_)
            | Kind::Tenants(_) => true,
            Kind::Switch(_)
            | Kind::Number(..)
            | Kind::Duration(_)
            | Kind::DurationOrOff(_)
            | Kind::Deadline(_)
            | Kind::Size(..)
            | Kind::Word(..)
            | Kind::Tag(_)
            | Kind::Secret(_)
            | Kind::Own(..)
            | Kind::Listen(_) => false,
        }
    }
}

const OFF: &str = "off";

fn not_a_member(word: &str, words: &[&'static str]) -> Fault {
    let choice = words.join(", ");
    Fault::new(format!("`{word}` is not one of: {choice}"))
        .suggest(nearest(word, words.iter().copied()))
}

fn servers(entry: &Entry, findings: &mut Findings) -> Vec<ServerDraft> {
    let nodes = match &entry.value.shape {
        Shape::List(nodes) => nodes.as_slice(),
        Shape::Nothing => &[],
        Shape::Word(_) | Shape::Map(_) => {
            findings.error(entry.value.place, "servers: a list was expected, one `- ` line each");
            &[]
        }
    };
    nodes.iter().filter_map(|node| server(node, findings)).collect()
}

fn server(node: &Node, findings: &mut Findings) -> Option<ServerDraft> {
    let word = node.word("servers", findings)?;
    match ServerLine::parse(word) {
        Ok(line) => Some(ServerDraft { line, spot: findings.spot(node.place) }),
        Err(fault) => {
            let help = foreign::of_template(word);
            findings.fault(node.place_of(&fault), fault.about("servers").help(help));
            None
        }
    }
}

/// Reads a list of words; a single word is a list too. None after an error.
fn list<T>(
    entry: &Entry,
    findings: &mut Findings,
    mut read: impl FnMut(&str, Spot) -> Result<T, Fault>,
) -> Option<Vec<T>> {
    let nodes = match &entry.value.shape {
        Shape::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(&entry.value),
    };
    let mut values = Vec::new();
    for node in nodes {
        let spot = findings.spot(node.place);
        match read(node.word(&entry.key, findings)?, spot) {
            Ok(value) => values.push(value),
            Err(fault) => findings.fault(node.place, fault.about(&entry.key)),
        }
    }
    (values.len() == nodes.len()).then_some(values)
}
