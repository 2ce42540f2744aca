//! The arguments of commands, as in COMMAND DOCS.
//!
//! `arguments.txt` is made together with the table, in its order. It is a text of its own that is
//! read in place on demand, so that the program has nothing to read or to relocate at its start.

use super::COUNT;

const TEXT: &str = include_str!("arguments.txt");

/// Returns the arguments of a command.
pub(in crate::redis) fn arguments(row: u16) -> Arguments {
    let row = usize::from(row);
    let end = PLACES[row + 1] as usize;
    let block = &TEXT[PLACES[row] as usize..end];
    // Behind the line with the name.
    let start = block.find('\n').map_or(block.len(), |end| end + 1);
    Arguments { text: &block[start..], depth: 0 }
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
    assert!(row == COUNT, "arguments.txt has every row: run `cargo xtask commands`");
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
        }
    }

    #[test]
    fn arguments_are_a_tree() {
        let set: Vec<Argument> = arguments(id::SET).collect();
        assert_eq!((set[0].name, set[0].kind), ("key", "key"));
        let more: Vec<_> = set[0].more().collect();
        assert_eq!(more, [("display_text", "key"), ("key_spec_index", "0")]);
        let expiry = set.iter().find(|one| one.name == "expiration").expect("it expires");
        assert_eq!(expiry.kind, "oneof");
        assert_eq!(expiry.more().next(), Some(("flags", "optional")));
        let first = expiry.below.clone().next().expect("one of several");
        assert!(first.more().any(|pair| pair == ("token", "EX")));
        assert_eq!(arguments(id::DBSIZE).count(), 0);
    }
}
