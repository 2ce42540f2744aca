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
