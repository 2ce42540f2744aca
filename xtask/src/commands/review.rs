//! What a person has written down of each command.

use std::collections::BTreeMap;

/// The lines of `review.txt`.
#[derive(Debug, Default)]
pub struct Review {
    pub lines: BTreeMap<String, Line>,
    /// Sentences by their short names.
    pub sentences: BTreeMap<String, String>,
}

/// What is written of one command; the words are explained in the file.
#[derive(Debug, Default)]
pub struct Line {
    pub what: String,
    pub writes: bool,
    pub compare: String,
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
        let (row, note) = line.split_once(" | ").unwrap_or((line, ""));
        let [name, what, compare] = row.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        let line = Line {
            what: what.trim_end_matches("+writes").into(),
            writes: what.ends_with("+writes"),
            compare: compare.into(),
            note: note.trim().into(),
        };
        if review.lines.insert(name.into(), line).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(review)
}

impl Review {
    /// The sentence of that name.
    pub fn sentence(&self, name: &str) -> Result<&str, String> {
        let found = self.sentences.get(name).map(String::as_str);
        found.ok_or_else(|| format!("there is no sentence {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_and_how_and_why() {
        let text = "# a word\n\n= admin  ask it\nget  one  exact\neval one+writes near | note it\n";
        let review = read(text).expect("three lines");
        assert_eq!(review.sentence("admin"), Ok("ask it"));
        let eval = &review.lines["eval"];
        assert_eq!((eval.what.as_str(), eval.writes), ("one", true));
        assert_eq!((eval.compare.as_str(), eval.note.as_str()), ("near", "note it"));
        assert!(!review.lines["get"].writes);
        for bad in ["get\n", "get one\n", "get one exact x\n", "get one exact\nget one exact\n"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
