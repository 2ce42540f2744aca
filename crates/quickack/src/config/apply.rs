//! One block's entries through its table: every entry is read by the row of its name.

use super::address::{Address, ServerLine};
use super::directives::{Directive, GLOBAL, Kind, POOL, Unwritten};
use super::draft::ServerDraft;
use super::file::{Entry, Node, Shape};
use super::report::{Diagnostic, Place, Severity, nearest};
use super::value::{self, Fault};

/// Collects what is to be told, so that one mistake does not hide the next.
#[derive(Default)]
pub struct Findings {
    pub diagnostics: Vec<Diagnostic>,
}

impl Findings {
    pub fn error(&mut self, place: Place, message: impl Into<String>) {
        self.fault(place, Fault::new(message));
    }

    pub fn warning(&mut self, place: Place, message: impl Into<String>) {
        let message = message.into();
        let severity = Severity::Warning;
        let place = Some(place);
        self.diagnostics.push(Diagnostic { severity, place, message, suggestion: None });
    }

    /// An error about the file as a whole.
    pub fn file_error(&mut self, message: &str) {
        let severity = Severity::Error;
        let message = message.to_string();
        self.diagnostics.push(Diagnostic { severity, place: None, message, suggestion: None });
    }

    pub fn fault(&mut self, place: Place, fault: Fault) {
        self.diagnostics.push(Diagnostic {
            severity: Severity::Error,
            place: Some(place),
            message: fault.message,
            suggestion: fault.suggestion,
        });
    }
}

/// Reads the entries of a block into `draft`. Gives what was written and is not the default;
/// where a pool listens and its servers are left out, because they have none.
pub fn apply<D>(
    table: &'static [Directive<D>],
    entries: &[Entry],
    draft: &mut D,
    findings: &mut Findings,
) -> Vec<String> {
    let mut settings = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entries[..index].iter().any(|earlier| earlier.key == entry.key) {
            findings.error(entry.key_place, format!("`{}` is written twice here", entry.key));
            continue;
        }
        let Some(directive) = table.iter().find(|directive| directive.name == entry.key) else {
            findings.fault(entry.key_place, unknown(table, &entry.key));
            continue;
        };
        let word = apply_entry(directive, entry, draft, findings);
        settings.extend(setting(directive, word));
    }
    settings
}

fn setting<D>(directive: &Directive<D>, word: Option<String>) -> Option<String> {
    let word = word?;
    let told = match directive.unwritten {
        Unwritten::Required => false,
        Unwritten::Value(default) => word != default,
        Unwritten::Unset(_) => true,
    };
    told.then(|| format!("{}: {word}", directive.name))
}

fn unknown<D>(table: &[Directive<D>], key: &str) -> Fault {
    let near = nearest(key, table.iter().map(|directive| directive.name));
    let message = if near.is_some() {
        format!("unknown directive `{key}`")
    } else if GLOBAL.iter().any(|directive| directive.name == key) {
        format!("`{key}` belongs in the `global:` block")
    } else if POOL.iter().any(|directive| directive.name == key) {
        format!("`{key}` belongs in a pool")
    } else {
        format!("unknown directive `{key}`")
    };
    Fault::new(message).suggest(near)
}

/// Reads one entry; gives its value as it would be written most plainly. A list of servers has
/// no such word: None.
fn apply_entry<D>(
    directive: &Directive<D>,
    entry: &Entry,
    draft: &mut D,
    findings: &mut Findings,
) -> Option<String> {
    let result = match &directive.kind {
        Kind::Servers(set) => {
            set(draft, servers(entry, findings));
            return None;
        }
        Kind::Words(words, set) => {
            let names = list(entry, findings, |word| member(word, &words()))?;
            let shown = format!("[{}]", names.join(", "));
            set(draft, names);
            return Some(shown);
        }
        kind => {
            let word = scalar(entry, findings)?;
            apply_word(kind, word, draft)
        }
    };
    match result {
        Ok(shown) => Some(shown),
        Err(fault) => {
            findings.fault(part_place(&entry.value, &fault), about(directive.name, fault));
            None
        }
    }
}

/// Names the directive in the fault of its value.
fn about(name: &str, fault: Fault) -> Fault {
    Fault { message: format!("{name}: {}", fault.message), ..fault }
}

fn apply_word<D>(kind: &Kind<D>, word: &str, draft: &mut D) -> Result<String, Fault> {
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
        Kind::Deadline(set) => {
            let us = value::duration(word)?;
            if us == 0 {
                return Err(Fault::new("a deadline is longer than 0; none is endless"));
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
            set(draft);
            Ok("(hidden)".to_string())
        }
        Kind::Listen(set) => {
            let address = Address::parse(word)?;
            let shown = address.to_string();
            set(draft, address);
            Ok(shown)
        }
        Kind::Words(..) | Kind::Servers(_) => unreachable!("lists are read by apply_entry"),
    }
}

fn member(word: &str, words: &[&'static str]) -> Result<String, Fault> {
    match words.contains(&word) {
        true => Ok(word.to_string()),
        false => Err(not_a_member(word, words)),
    }
}

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
    let word = node_word(node, "servers", findings)?;
    match ServerLine::parse(word) {
        Ok(line) => Some(ServerDraft { line, place: node.place }),
        Err(fault) => {
            findings.fault(part_place(node, &fault), about("servers", fault));
            None
        }
    }
}

/// Reads a list of words; one word alone is a list too. None after an error.
fn list<T>(
    entry: &Entry,
    findings: &mut Findings,
    read: impl Fn(&str) -> Result<T, Fault>,
) -> Option<Vec<T>> {
    let nodes = match &entry.value.shape {
        Shape::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(&entry.value),
    };
    let mut values = Vec::new();
    for node in nodes {
        match read(node_word(node, &entry.key, findings)?) {
            Ok(value) => values.push(value),
            Err(fault) => findings.fault(node.place, about(&entry.key, fault)),
        }
    }
    (values.len() == nodes.len()).then_some(values)
}

/// The one word of an entry, or an error about what stands there instead.
fn scalar<'e>(entry: &'e Entry, findings: &mut Findings) -> Option<&'e str> {
    match &entry.value.shape {
        Shape::Nothing => {
            findings.error(entry.key_place, format!("`{}` has no value", entry.key));
            None
        }
        _ => node_word(&entry.value, &entry.key, findings),
    }
}

fn node_word<'n>(node: &'n Node, name: &str, findings: &mut Findings) -> Option<&'n str> {
    let found = match &node.shape {
        Shape::Word(word) => return Some(word),
        Shape::Nothing => "nothing",
        Shape::List(_) => "a list",
        Shape::Map(_) => "a mapping",
    };
    let message = format!("{name}: a word was expected, not {found}; signs stand in quotes");
    findings.error(node.place, message);
    None
}

/// The place of what is wrong in a word: a part of it, if it stands in the text as it is.
fn part_place(node: &Node, fault: &Fault) -> Place {
    const QUOTES_LEN: usize = 2;
    let (Some(part), Shape::Word(word)) = (&fault.part, &node.shape) else { return node.place };
    let start = match node.place.end - node.place.start {
        len if len == word.len() => node.place.start,
        len if len == word.len() + QUOTES_LEN => node.place.start + 1,
        _ => return node.place, // Escaped or folded: its bytes are not the text's.
    };
    Place { start: start + part.start, end: start + part.end }
}
