//! The reviewed notes on each command.

use std::collections::BTreeMap;

use super::facts::{Fact, Facts, Key};

/// The lines of `review.txt`.
#[derive(Debug, Default)]
pub struct Review {
    pub lines: BTreeMap<String, Line>,
    /// Sentences by their short names.
    pub sentences: BTreeMap<String, String>,
    /// Subcommands that servers have but do not report.
    pub untold: Vec<Untold>,
}

/// A subcommand that servers do not report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Untold {
    pub name: String,
    pub arity: i64,
    /// The position of its only key or, if `many`, of the first of its keys, which go up to the
    /// last argument; 0 if it has none.
    pub key: u8,
    pub many: bool,
}

/// The notes on one command; the file explains the words.
#[derive(Debug, Default)]
pub struct Line {
    pub what: String,
    pub writes: bool,
    /// How much work it is for a server; empty if little.
    pub work: String,
    pub note: String,
}

pub fn read(text: &str) -> Result<Review, String> {
    let mut review = Review::default();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("what is this line? {line}");
        if let Some(rest) = line.strip_prefix("= ") {
            let (name, sentence) = rest.split_once(' ').ok_or_else(wrong)?;
            review.sentences.insert(name.into(), sentence.trim().into());
            continue;
        }
        if let Some(rest) = line.strip_prefix("+ ") {
            review.untold.push(untold(rest).ok_or_else(wrong)?);
            continue;
        }
        let (row, note) = line.split_once(" | ").unwrap_or((line, ""));
        let (name, what, work) = match row.split_whitespace().collect::<Vec<_>>()[..] {
            [name, what] => (name, what, ""),
            [name, what, work] => (name, what, work),
            _ => return Err(wrong()),
        };
        let line = Line {
            what: what.trim_end_matches("+writes").into(),
            writes: what.ends_with("+writes"),
            work: work.into(),
            note: note.trim().into(),
        };
        if review.lines.insert(name.into(), line).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(review)
}

fn untold(line: &str) -> Option<Untold> {
    let [name, arity, keys] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let many = keys.ends_with("..");
    let key = match keys.trim_end_matches("..") {
        "-" => 0,
        first => first.parse().ok()?,
    };
    Some(Untold { name: name.into(), arity: arity.parse().ok()?, key, many })
}

impl Review {
    /// Adds subcommands that servers do not report to the reported ones.
    pub fn complete(&self, facts: &mut Facts) -> Result<(), String> {
        for Untold { name, arity, key, many } in &self.untold {
            let (container, sub) =
                name.split_once('|').ok_or(format!("{name} is no subcommand"))?;
            let above = facts.get_mut(container).ok_or(format!("{name}: no {container}"))?;
            above.container = true;
            let first = i64::from(*key);
            let legacy = if *key > 0 { [first, if *many { -1 } else { first }, 1] } else { [0; 3] };
            let spec = Key {
                position: if *many { format!("range({key}, -1, 1)") } else { format!("at({key})") },
                flags: vec!["RO".into()],
            };
            let fact = Fact {
                arity: *arity,
                legacy,
                keys: if *key > 0 { vec![spec] } else { Vec::new() },
                container: false,
                summary: format!("{} of {}.", sub.to_uppercase(), container.to_uppercase()),
                ..above.clone()
            };
            if facts.insert(name.clone(), fact).is_some() {
                return Err(format!("{name}: the servers do tell of it"));
            }
        }
        Ok(())
    }

    /// Returns the sentence of that name.
    pub fn sentence(&self, name: &str) -> Result<&str, String> {
        let found = self.sentences.get(name).map(String::as_str);
        found.ok_or_else(|| format!("there is no sentence {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_do_not_tell_of_is_added() {
        let review = read("+ debug|object 3 2\n+ debug|digest 2 -\n+ debug|v -3 2..\n").unwrap();
        let mut facts = Facts::from([("debug".to_string(), Fact::default())]);
        review.complete(&mut facts).expect("new rows");
        assert!(facts["debug"].container && !facts["debug|object"].container);
        assert_eq!(facts["debug|object"].legacy, [2, 2, 1]);
        assert_eq!(facts["debug|v"].legacy, [2, -1, 1]);
        assert!(facts["debug|digest"].keys.is_empty());
        assert!(review.complete(&mut facts).is_err(), "they are there");
        assert!(read("+ debug|object 3\n").is_err() && read("+ a|b x -\n").is_err());
    }

    #[test]
    fn a_line_says_what_and_why() {
        let text = "# a word\n\n= admin  ask it\nget  one\neval one+writes script | note it\n";
        let review = read(text).expect("three lines");
        assert_eq!(review.sentence("admin"), Ok("ask it"));
        let eval = &review.lines["eval"];
        assert_eq!((eval.what.as_str(), eval.writes, eval.work.as_str()), ("one", true, "script"));
        assert_eq!(eval.note, "note it");
        assert!(!review.lines["get"].writes && review.lines["get"].work.is_empty());
        for bad in ["get\n", "get one x y\n", "get one\nget one\n"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
