//! COMMAND: the commands that this proxy accepts, in the format of a server.

use std::sync::OnceLock;

use super::super::commands::{self, Begin, Find, KeySpec, Row, id};
use super::super::words;
use super::glob::Pattern;
use super::{ANSWER_LEN_MAX, LONG_ANSWER, LocalAnswer, MANY_NAMES, NAMES_MAX};
use crate::Class;
use crate::scan::decimal;

const SYNTAX: &[u8] = b"ERR syntax error";
const NO_COMMAND: &[u8] = b"ERR Invalid command specified";
const NO_KEYS: &[u8] = b"ERR The command has no key arguments";
const BAD_COUNT: &[u8] = b"ERR Invalid number of arguments specified for command";
/// The most keys in one answer.
const KEYS_MAX: usize = 10_000;
const MANY_KEYS: &[u8] = b"ERR at most 10000 keys are told at once";
const BAD_ARGUMENTS: &[u8] = b"ERR Invalid arguments specified for command";

/// Whether clients are shown it; refused commands are not shown.
pub(super) fn is_taken(row: &Row) -> bool {
    match row.class {
        Class::Refuse(_) => row.container && subs(row).next().is_some(),
        // These are answered, but never executed.
        Class::Local(_) => !matches!(row.name, "multi" | "exec" | "discard"),
        _ => true,
    }
}

/// Returns the subcommands that are accepted.
pub(super) fn subs(row: &Row) -> impl Iterator<Item = &'static Row> {
    let container = row.name;
    let rows = if row.container { commands::rows() } else { &[] };
    rows.iter().filter(move |sub| {
        sub.container() == Some(container) && !matches!(sub.class, Class::Refuse(_))
    })
}

/// Returns the accepted commands, subcommands included. They never change, and are found once: to
/// ask for their number costs no more than another number.
fn taken() -> &'static [&'static Row] {
    static TAKEN: OnceLock<Vec<&'static Row>> = OnceLock::new();
    TAKEN.get_or_init(|| commands::rows().iter().filter(|row| is_taken(row)).collect())
}

/// Returns the accepted commands that are no subcommands.
pub(super) fn tops() -> &'static [&'static Row] {
    static TOPS: OnceLock<Vec<&'static Row>> = OnceLock::new();
    TOPS.get_or_init(|| taken().iter().copied().filter(|row| row.container().is_none()).collect())
}

/// Returns the entry of a name such as `client|id` or `get`.
fn find(name: &[u8]) -> Option<&'static Row> {
    place(name).map(|row| &commands::rows()[usize::from(row)])
}

/// Returns its index in the table.
pub(super) fn place(name: &[u8]) -> Option<u16> {
    match name.iter().position(|&byte| byte == b'|') {
        None => commands::lookup(name),
        Some(bar) => commands::lookup(&name[..bar])
            .and_then(|container| commands::lookup_sub(container, &name[bar + 1..])),
    }
}

impl LocalAnswer<'_> {
    pub(super) fn command_count(&mut self) {
        words::number(tops().len() as u64, self.out);
    }

    pub(super) fn command_info(&mut self, names: &[&[u8]]) {
        if names.is_empty() {
            words::open_array(tops().len(), self.out);
            tops().iter().for_each(|row| self.describe(row));
            return;
        }
        if names.len() > NAMES_MAX {
            return self.error(&[MANY_NAMES]);
        }
        let start = self.out.len();
        words::open_array(names.len(), self.out);
        for name in names {
            match find(name).filter(|row| is_taken(row)) {
                Some(row) => self.describe(row),
                None => words::null(self.proto_version(), self.out),
            }
            if self.out.len() - start > ANSWER_LEN_MAX {
                self.out.truncate(start);
                return self.error(&[LONG_ANSWER]);
            }
        }
    }

    /// Writes one entry of COMMAND.
    fn describe(&mut self, row: &Row) {
        let proto_version = self.proto_version();
        let texts = commands::texts(row.id);
        words::open_array(10, self.out);
        words::bulk(row.name.as_bytes(), self.out);
        words::signed(row.arity.into(), self.out);
        self.set_of_words(texts.field("flags"));
        let legacy = texts.words("legacy").filter_map(|number| number.parse().ok());
        legacy.for_each(|number| words::signed(number, self.out));
        self.set_of_words(texts.field("categories"));
        let tips = texts.words("tips");
        words::open_set(tips.clone().count(), proto_version, self.out);
        tips.for_each(|tip| words::bulk(tip.as_bytes(), self.out));
        words::open_set(row.keys.len(), proto_version, self.out);
        let specs = row.keys.iter().zip(texts.key_flags());
        specs.for_each(|(spec, flags)| self.key_spec(spec, flags));
        words::open_array(subs(row).count(), self.out);
        subs(row).for_each(|sub| self.describe(sub));
    }

    fn set_of_words(&mut self, names: &str) {
        words::simple_set(names.split_ascii_whitespace(), self.proto_version(), self.out);
    }

    fn key_spec(&mut self, spec: &KeySpec, flags: &str) {
        words::open_map(3, self.proto_version(), self.out);
        words::bulk(b"flags", self.out);
        self.set_of_words(flags);
        words::bulk(b"begin_search", self.out);
        match spec.begin {
            Begin::At(index) => self.typed("index", &[("index", index.into())], None),
            Begin::After { word, from } => {
                self.typed("keyword", &[("startfrom", from.into())], Some(word));
            }
            Begin::Unknown => self.typed("unknown", &[], None),
        }
        words::bulk(b"find_keys", self.out);
        match spec.find {
            Find::Range { last, step, limit } => {
                let numbers =
                    [("lastkey", last.into()), ("keystep", step.into()), ("limit", limit.into())];
                self.typed("range", &numbers, None);
            }
            Find::Number { at, first, step } => {
                let numbers = [
                    ("keynumidx", at.into()),
                    ("firstkey", first.into()),
                    ("keystep", step.into()),
                ];
                self.typed("keynum", &numbers, None);
            }
            Find::Unknown => self.typed("unknown", &[], None),
        }
    }

    /// Writes `type`, and under `spec` these numbers, after the keyword that is searched.
    fn typed(&mut self, kind: &str, numbers: &[(&str, i64)], keyword: Option<&str>) {
        let proto_version = self.proto_version();
        words::open_map(2, proto_version, self.out);
        words::bulk(b"type", self.out);
        words::bulk(kind.as_bytes(), self.out);
        words::bulk(b"spec", self.out);
        words::open_map(numbers.len() + usize::from(keyword.is_some()), proto_version, self.out);
        if let Some(keyword) = keyword {
            words::bulk(b"keyword", self.out);
            words::bulk(keyword.as_bytes(), self.out);
        }
        for (name, number) in numbers {
            words::bulk(name.as_bytes(), self.out);
            words::signed(*number, self.out);
        }
    }

    /// Writes the names, including subcommands.
    pub(super) fn command_list(&mut self, under: &[&[u8]]) {
        let filter = match under {
            [] => None,
            [by, kind, text] if by.eq_ignore_ascii_case(b"FILTERBY") => Some((*kind, *text)),
            _ => return self.error(&[SYNTAX]),
        };
        let pattern = filter.map(|(_, text)| Pattern::read(text));
        let is_right = |row: &&&Row| match filter {
            Some((kind, text)) if kind.eq_ignore_ascii_case(b"ACLCAT") => commands::texts(row.id)
                .words("categories")
                .any(|category| category.as_bytes()[1..].eq_ignore_ascii_case(text)),
            Some((kind, _)) if kind.eq_ignore_ascii_case(b"PATTERN") => {
                pattern.as_ref().is_some_and(|pattern| pattern.matches(row.name.as_bytes()))
            }
            // Modules exist only at the servers.
            Some(_) => false,
            None => true,
        };
        let known: [&[u8]; 3] = [b"ACLCAT", b"PATTERN", b"MODULE"];
        if filter.is_some_and(|(kind, _)| !known.iter().any(|it| kind.eq_ignore_ascii_case(it))) {
            return self.error(&[SYNTAX]);
        }
        let rows = taken().iter().filter(is_right);
        words::open_array(rows.clone().count(), self.out);
        rows.for_each(|row| words::bulk(row.name.as_bytes(), self.out));
    }

    /// Writes the keys of a command that is not executed; with `flags`, also the use of each.
    pub(super) fn command_keys(&mut self, command: &[&[u8]], flags: bool) {
        let keys = match keys(command) {
            Ok(keys) if keys.len() > KEYS_MAX => return self.error(&[MANY_KEYS]),
            Ok(keys) => keys,
            Err(why) => return self.error(&[why]),
        };
        words::open_array(keys.len(), self.out);
        for (at, key_flags) in keys {
            if !flags {
                words::bulk(command[at], self.out);
                continue;
            }
            words::open_array(2, self.out);
            words::bulk(command[at], self.out);
            self.set_of_words(flags_of(key_flags, command));
        }
    }
}

/// Returns the use of a key, which depends on the arguments of some commands.
fn flags_of(flags: &'static str, command: &[&[u8]]) -> &'static str {
    let is_said = |from: usize, word: &[u8]| {
        command.iter().skip(from).any(|it| it.eq_ignore_ascii_case(word))
    };
    if !flags.contains("variable_flags") {
        return flags;
    }
    match command[0].to_ascii_lowercase().as_slice() {
        b"set" if is_said(3, b"GET") => "RW access update",
        b"set" => "OW update",
        b"bitfield" if !is_said(2, b"SET") && !is_said(2, b"INCRBY") => "RO access",
        b"bitfield" => "RW access update",
        _ => flags,
    }
}

/// Returns the positions of a command's keys, according to the servers' description, and the use
/// of each.
fn keys(command: &[&[u8]]) -> Result<Vec<(usize, &'static str)>, &'static [u8]> {
    let name = command.first().copied().unwrap_or_default();
    let mut found = commands::lookup(name).ok_or(NO_COMMAND)?;
    if let Some(sub) = command.get(1)
        && let Some(row) = commands::lookup_sub(found, sub)
    {
        found = row;
    }
    let row = &commands::rows()[usize::from(found)];
    if row.keys.is_empty() {
        return Err(NO_KEYS);
    }
    if !row.takes(command.len()) {
        return Err(BAD_COUNT);
    }
    let texts = commands::texts(found);
    let may_be_none = texts.words("flags").any(|flag| flag == "no_mandatory_keys");
    let mut keys = Vec::new();
    for (spec, flags) in row.keys.iter().zip(texts.key_flags()) {
        // A number larger than the count of keys makes the whole command invalid.
        let counts = matches!(spec.find, Find::Number { .. }) && !may_be_none;
        if counts && range(spec, command).is_none() {
            return Err(BAD_ARGUMENTS);
        }
        for at in range(spec, command).into_iter().flatten().take(KEYS_MAX + 1) {
            keys.push((at, flags));
        }
        // The only accepted command for which the servers' description does not give this position.
        if found == id::SORT && flags.starts_with("OW") {
            let store = |word: &&[u8]| word.eq_ignore_ascii_case(b"STORE");
            let at = command.iter().rposition(store).map(|at| at + 1);
            keys.extend(at.filter(|at| *at > 2 && *at < command.len()).map(|at| (at, flags)));
        }
    }
    if keys.is_empty() && !may_be_none { Err(BAD_ARGUMENTS) } else { Ok(keys) }
}

/// Returns the positions of one specification's keys; `None` if they are missing.
fn range(spec: &KeySpec, command: &[&[u8]]) -> Option<impl Iterator<Item = usize>> {
    let count = command.len();
    let begin = match spec.begin {
        Begin::At(at) => usize::from(at),
        Begin::After { word, from } => {
            let is_it = |argument: &&[u8]| argument.eq_ignore_ascii_case(word.as_bytes());
            let found = if from >= 0 {
                let from = usize::from(from.unsigned_abs());
                from + command.get(from..)?.iter().position(is_it)?
            } else {
                let end = (count + 1).checked_sub(usize::from(from.unsigned_abs()))?;
                command.get(..end)?.iter().rposition(is_it)?
            };
            found + 1
        }
        Begin::Unknown => return None,
    };
    let (first, last, step) = match spec.find {
        Find::Range { last, step, limit } => {
            let room = count.checked_sub(begin)?;
            let end = match (last, limit) {
                (0.., _) => begin + last as usize,
                (_, 0 | 1) => count.checked_sub(usize::from(last.unsigned_abs()))?,
                _ => {
                    let part = begin + room / usize::from(limit);
                    part.checked_sub(usize::from(last.unsigned_abs()))?
                }
            };
            (begin, end, step)
        }
        Find::Number { at, first, step } => {
            let number = decimal(command.get(begin + usize::from(at))?, count as u64)? as usize;
            let first = begin + usize::from(first);
            (first, (first + number * usize::from(step)).checked_sub(usize::from(step))?, step)
        }
        Find::Unknown => return None,
    };
    (first <= last && last < count).then(|| (first..=last).step_by(usize::from(step.max(1))))
}
