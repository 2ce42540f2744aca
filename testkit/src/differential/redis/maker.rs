//! Draws calls of a command from its grammar, mostly valid ones.
//!
//! ```text
//!   zunionstore   destination   numkeys   key...   [WEIGHTS weight...]
//!                 {a}z1         2         {a}z0 {a}t1     as many as there are keys
//! ```

use super::docs::{Argument, Doc, Kind};
use super::keys::{self, Keys};
use super::values::Values;

/// A word of a call, and whether it is a key.
#[derive(Clone, Debug)]
pub struct Word {
    pub bytes: Vec<u8>,
    pub is_key: bool,
}

impl Word {
    pub fn new(bytes: impl AsRef<[u8]>) -> Word {
        Word { bytes: bytes.as_ref().to_vec(), is_key: false }
    }
}

pub struct Maker<'a> {
    pub values: Values<'a>,
    pub keys: &'a Keys,
    pub row: &'a str,
    letter: Option<u8>,
    tag: Option<&'static str>,
    words: Vec<Word>,
    /// The position of a number that counts later arguments.
    counter: Option<(usize, Counts)>,
    /// The number of keys or fields drawn.
    counted: usize,
}

/// Commands that sometimes get many keys: more than one message holds.
const MANY: &[&str] = &["mget", "mset", "del", "exists", "touch", "unlink"];
/// Numbers that count later arguments.
const COUNTERS: &[(&str, Counts)] =
    &[("numkeys", Counts::Keys), ("numfields", Counts::Others), ("num-vertices", Counts::Others)];

#[derive(Clone, Copy)]
enum Counts {
    Keys,
    Others,
}

impl<'a> Maker<'a> {
    pub fn new(values: Values<'a>, keys: &'a Keys, row: &'a str, doc: &Doc) -> Self {
        let letter = match row {
            "incr" | "decr" | "incrby" | "decrby" | "incrbyfloat" => Some(keys::NUMBER),
            _ => Keys::letter_of(&doc.group),
        };
        let tag = Keys::tag(values.random);
        let words = Vec::new();
        Maker { values, keys, row, letter, tag, words, counter: None, counted: 0 }
    }

    /// Makes a whole call.
    pub fn call(mut self, doc: &Doc) -> Vec<Word> {
        for part in self.row.split('|') {
            let name = self.in_any_case(part);
            self.words.push(Word::new(name));
        }
        self.arguments(&doc.arguments);
        self.words
    }

    fn in_any_case(&mut self, name: &str) -> String {
        match self.values.random.below(10) {
            0 => name.to_string(),
            1 => name.chars().map(|c| self.any_case(c)).collect(),
            _ => name.to_uppercase(),
        }
    }

    fn any_case(&mut self, c: char) -> char {
        if self.values.random.permille(500) { c.to_ascii_uppercase() } else { c }
    }

    fn arguments(&mut self, all: &[Argument]) {
        for argument in all {
            if argument.optional && !self.values.random.permille(self.taken(argument)) {
                continue;
            }
            self.argument(argument);
        }
    }

    /// Returns the probability of an optional argument, in a thousand.
    fn taken(&self, argument: &Argument) -> usize {
        match (self.row, argument.name.as_str()) {
            // They would block, and later commands with them.
            ("xread" | "xreadgroup", "milliseconds") => 0,
            ("hscan" | "sscan" | "zscan", "count") => 800,
            ("hello", _) => 300,
            ("client|reply", _) => 1000,
            (_, "key") => 850,
            ("sort" | "sort_ro", "by-pattern" | "get-pattern") => 150,
            ("xgroup|create", "mkstream") => 700,
            ("sort", "destination") | ("georadius" | "georadiusbymember", "store") => 500,
            ("georadius" | "georadiusbymember", "storekey" | "storedistkey") => 300,
            ("function|load", "replace") => 900,
            // Two of these three exclude each other.
            ("zadd" | "geoadd", _) => 150,
            _ => 300,
        }
    }

    fn argument(&mut self, argument: &Argument) {
        let times = self.times(argument);
        if argument.multiple && self.counts(argument) {
            self.counted = times;
            if let Some((at, _)) = self.counter.take() {
                self.words[at].bytes = times.to_string().into_bytes();
            }
        }
        for nth in 0..times {
            if let Some(token) = &argument.token
                && (nth == 0 || argument.multiple_token)
            {
                // A token without a value appears once.
                let token = self.in_any_case(&token.to_lowercase());
                self.words.push(Word::new(token));
            }
            self.one(argument);
        }
    }

    /// Returns whether an earlier number counts this argument.
    fn counts(&self, argument: &Argument) -> bool {
        let inside = |all: &[Argument]| all.iter().any(|one| matches!(one.kind, Kind::Key));
        let of_others = matches!(self.counter, Some((_, Counts::Others)));
        match &argument.kind {
            Kind::Key => true,
            Kind::Block(all) => inside(all) || of_others,
            _ => of_others,
        }
    }

    fn times(&mut self, argument: &Argument) -> usize {
        if !argument.multiple {
            return 1;
        }
        let random = &mut *self.values.random;
        match (self.row, argument.name.as_str()) {
            ("xread" | "xreadgroup", "id") | (_, "weight") => self.counted,
            ("bitop", "key") => 1 + random.below(2),
            (_, "vertices") => 3,
            // Rare, because a call that deletes so many keys leaves little data.
            ("del" | "unlink", "key") if !random.permille(3) => 1 + random.below(4),
            (row, _) if MANY.contains(&row) && random.permille(15) => 90 + random.below(160),
            (row, _) if MANY.contains(&row) => 1 + random.below(8),
            _ => 1 + random.below(3),
        }
    }

    fn one(&mut self, argument: &Argument) {
        match &argument.kind {
            Kind::Token => {}
            Kind::OneOf(all) => {
                let choice = self.values.random.pick(all).clone();
                self.argument(&choice);
            }
            Kind::Block(all) => self.arguments(all),
            Kind::Key => self.key(),
            Kind::Value => self.value(&argument.name),
        }
    }

    fn key(&mut self) {
        let bytes = self.keys.draw(self.values.random, self.letter, self.tag);
        self.words.push(Word { bytes, is_key: true });
    }

    fn value(&mut self, name: &str) {
        if let Some((_, counts)) = COUNTERS.iter().find(|(known, _)| *known == name) {
            self.counter = Some((self.words.len(), *counts));
            return self.words.push(Word::new("0"));
        }
        if name == "count" && matches!(self.row, "hscan" | "sscan" | "zscan") {
            return self.words.push(Word::new("100000"));
        }
        let row = self.row;
        let bytes = self.values.value(row, name);
        self.words.push(Word::new(bytes));
    }
}

/// Spoils a call: too few words, too many, or one that is invalid.
pub fn spoil(words: &mut Vec<Word>, fixed: usize, values: &mut Values<'_>) {
    let len = words.len();
    match values.random.below(4) {
        0 if len > fixed => drop(words.pop()),
        1 if len > fixed => words.truncate(fixed + values.random.below(len - fixed)),
        2 if len > fixed => {
            let at = fixed + values.random.below(len - fixed);
            words[at].bytes = values.junk();
        }
        _ => words.push(Word::new(values.junk())),
    }
}
