//! The texts about each command: the facts that COMMAND and COMMAND DOCS tell, and the note in the
//! reference.
//!
//! `texts.txt` is made together with the table, in its order. It is a text of its own that is read
//! in place on demand, so that the program has nothing to read or to relocate at its start.

use super::COUNT;

const TEXT: &str = include_str!("texts.txt");

/// Returns the texts about a command.
pub(in crate::redis) fn texts(command: u16) -> Texts {
    let place = usize::from(command);
    let block = &TEXT[PLACES[place] as usize..PLACES[place + 1] as usize];
    // Only an argument has a tab in its line.
    let lines = block.split_inclusive('\n').take_while(|line| !line.contains('\t'));
    let (fields, arguments) = block.split_at(lines.map(str::len).sum());
    Texts { fields, arguments: Arguments { text: arguments, depth: 0 } }
}

/// Returns the note about a command, which stands right behind its name.
pub(super) const fn note(command: u16) -> &'static str {
    let (_, text) = TEXT.as_bytes().split_at(PLACES[command as usize] as usize);
    let (_, text) = text.split_at(line(text) + 1);
    let Some((b"note: ", text)) = text.split_first_chunk() else { return "" };
    match str::from_utf8(text.split_at(line(text)).0) {
        Ok(note) => note,
        Err(_) => panic!("a part of a text that ends at a line's end"),
    }
}

/// Returns the group of a command, in servers' words.
pub(super) const fn group(command: u16) -> &'static [u8] {
    let (_, mut text) = TEXT.as_bytes().split_at(PLACES[command as usize] as usize);
    while !text.is_empty() {
        let (first, rest) = text.split_at(line(text));
        if let Some((b"group: ", group)) = first.split_first_chunk() {
            return group;
        }
        text = rest.split_at(1).1;
    }
    panic!("each command has a group")
}

/// Returns the length of the first line.
const fn line(text: &[u8]) -> usize {
    let mut end = 0;
    while end < text.len() && text[end] != b'\n' {
        end += 1;
    }
    end
}

/// The texts about one command.
#[derive(Clone, Copy, Debug)]
pub(in crate::redis) struct Texts {
    /// A line for each: `name: text`.
    fields: &'static str,
    pub arguments: Arguments,
}

impl Texts {
    /// Returns the text with this name; empty if there is none.
    pub fn field(self, name: &str) -> &'static str {
        self.fields_of(name).next().unwrap_or_default()
    }

    /// Returns the words of the text with this name.
    pub fn words(self, name: &str) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.field(name).split_ascii_whitespace()
    }

    /// Returns the use of the keys of each specification, in words.
    pub fn key_flags(self) -> impl Iterator<Item = &'static str> {
        self.fields_of("key")
    }

    fn fields_of(self, name: &str) -> impl Iterator<Item = &'static str> {
        self.fields.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Arguments on one level.
#[derive(Clone, Copy, Debug)]
pub(in crate::redis) struct Arguments {
    text: &'static str,
    depth: usize,
}

/// One argument.
#[derive(Clone, Copy, Debug)]
pub(in crate::redis) struct Argument {
    pub name: &'static str,
    pub kind: &'static str,
    /// Its other fields: `name=value`, with tabs between.
    more: &'static str,
    /// The arguments that it consists of.
    pub below: Arguments,
}

impl Iterator for Arguments {
    type Item = Argument;

    fn next(&mut self) -> Option<Argument> {
        let (line, rest) = self.text.split_once('\n')?;
        let is_below = |line: &str| line.as_bytes().get(self.depth) == Some(&b' ');
        let below: usize =
            rest.split_inclusive('\n').take_while(|line| is_below(line)).map(str::len).sum();
        self.text = &rest[below..];
        let mut words = line[self.depth..].splitn(3, '\t');
        let mut word = || words.next().unwrap_or_default();
        let below = Arguments { text: &rest[..below], depth: self.depth + 1 };
        Some(Argument { name: word(), kind: word(), more: word(), below })
    }
}

impl Argument {
    /// Returns its other fields.
    pub fn more(&self) -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
        let is_leaf = self.below.text.is_empty();
        let shown = self.more.starts_with("display_text=");
        let text = (is_leaf && !shown).then_some(("display_text", self.name));
        text.into_iter().chain(self.more.split('\t').filter_map(|it| it.split_once('=')))
    }
}

/// The beginning of each command's text; the last is the end of the whole.
static PLACES: [u32; COUNT + 1] = {
    let text = TEXT.as_bytes();
    let mut places = [text.len() as u32; COUNT + 1];
    let (mut at, mut row) = (0, 0);
    while at < text.len() {
        if text[at] == b'=' && text[at - 1] == b'\n' {
            places[row] = at as u32;
            row += 1;
        }
        at += 1;
    }
    assert!(row == COUNT, "texts.txt has every row: run `cargo xtask commands`");
    places
};

#[cfg(test)]
mod tests {
    use super::super::{id, rows};
    use super::*;

    #[test]
    fn every_row_has_its_own_block() {
        for (row, place) in rows().iter().zip(&PLACES) {
            let line = TEXT[*place as usize..].lines().next();
            assert_eq!(line, Some(&format!("= {}", row.name)[..]));
            let texts = texts(row.id);
            assert_eq!(texts.field("note"), note(row.id), "{}", row.name);
            assert_eq!(texts.words("legacy").count(), 3, "{}", row.name);
            assert_eq!(texts.key_flags().count(), row.keys.len(), "{}", row.name);
            assert!(!texts.field("group").is_empty(), "{}", row.name);
        }
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        let get = texts(id::GET);
        assert_eq!(get.words("flags").collect::<Vec<_>>(), ["readonly", "fast"]);
        assert_eq!(get.key_flags().collect::<Vec<_>>(), ["RO access"]);
        assert_eq!((get.field("since"), get.field("tips"), get.field("sinc")), ("1.0.0", "", ""));
        assert_eq!(note(id::DBSIZE), "the sum");
        assert_eq!(note(id::GET), "");
    }

    #[test]
    fn arguments_are_a_tree() {
        let set: Vec<Argument> = texts(id::SET).arguments.collect();
        assert_eq!((set[0].name, set[0].kind), ("key", "key"));
        let more: Vec<_> = set[0].more().collect();
        assert_eq!(more, [("display_text", "key"), ("key_spec_index", "0")]);
        let expiry = set.iter().find(|one| one.name == "expiration").expect("it expires");
        assert_eq!(expiry.kind, "oneof");
        assert_eq!(expiry.more().next(), Some(("flags", "optional")));
        let first = expiry.below.clone().next().expect("one of several");
        assert!(first.more().any(|pair| pair == ("token", "EX")));
        assert_eq!(texts(id::DBSIZE).arguments.count(), 0);
    }
}
