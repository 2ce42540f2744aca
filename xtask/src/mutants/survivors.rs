//! The list of mutants that may survive. An empty line separates entries:
//!
//! ```text
//! crates/cache/src/hash.rs
//!     low | high << 8
//!     5: replace | with ^ in tail
//!     equivalent: the two have no bit in common
//! ```
//!
//! An entry has the file; the changed line; the column and the change; then `equivalent`, if no
//! test can detect it, or `left`, and the reason. A mutant marked `left` counts against its crate.

use std::fs;

use super::play::Mutant;
use crate::root;

/// The list, from the workspace's folder.
pub const FILE: &str = "testkit/mutants/survivors.txt";

/// One entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Survivor {
    file: String,
    text: String,
    column: u64,
    change: String,
    /// No test can distinguish it from the original.
    pub equivalent: bool,
    why: String,
}

impl Survivor {
    pub fn is(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file
            && self.text == mutant.text
            && self.column == mutant.column
            && self.change == mutant.change
    }
}

pub fn read() -> Result<Vec<Survivor>, String> {
    let text = fs::read_to_string(root().join(FILE)).map_err(|error| format!("{FILE}: {error}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Survivor>, String> {
    let entries = text.split("\n\n").map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| one(entry).ok_or_else(|| format!("{FILE}: not an entry:\n{entry}")))
        .collect()
}

fn one(entry: &str) -> Option<Survivor> {
    let mut lines = entry.lines().map(|line| line.trim().to_string());
    let (file, text, change, why) = (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
    let (column, change) = change.split_once(": ")?;
    let (verdict, why) = why.split_once(": ")?;
    let equivalent = match verdict {
        "equivalent" => true,
        "left" => false,
        _ => return None,
    };
    lines.next().is_none().then_some(Survivor {
        file,
        text,
        column: column.parse().ok()?,
        change: change.to_string(),
        equivalent,
        why: why.to_string(),
    })
}

/// Renders the mutant as an entry of the list, to which a person adds the reason.
pub fn entry(mutant: &Mutant, known: Option<&Survivor>) -> String {
    let Mutant { file, text, column, change, .. } = mutant;
    let why = match known {
        Some(Survivor { equivalent: true, why, .. }) => format!("equivalent: {why}"),
        Some(Survivor { why, .. }) => format!("left: {why}"),
        None => "new".to_string(),
    };
    format!("{file}\n    {text}\n    {column}: {change}\n    {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::play::Fate;

    fn mutant(text: &str) -> Mutant {
        Mutant {
            file: "crates/cache/src/hash.rs".to_string(),
            text: text.to_string(),
            column: 5,
            change: "replace | with ^ in tail".to_string(),
            fate: Fate::Survived,
        }
    }

    #[test]
    fn an_entry_is_known_by_its_line_and_not_by_the_lines_number() {
        let new = entry(&mutant("low | high << 8"), None);
        assert!(parse(&new).is_err(), "somebody has to say why");
        let text = new.replace("new", "equivalent: the two have no bit in common");
        let list = parse(&format!("{text}\n{text}")).unwrap();
        assert_eq!(list.len(), 2);
        assert!(list[0].equivalent && list[0].is(&mutant("low | high << 8")));
        assert!(!list[0].is(&mutant("low | high << 16")));
        assert_eq!(entry(&mutant("low | high << 8"), Some(&list[0])), text);
    }

    #[test]
    fn the_list_can_be_read() {
        read().unwrap();
    }
}
